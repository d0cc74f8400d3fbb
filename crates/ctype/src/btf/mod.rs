//! Reading the BPF Type Format: the types of kernels and BPF programs, as written by `pahole` and
//! `gcc -gbtf`.
//!
//! BTF is read as a whole, into the same graph as compact C types ([`crate::graph`]): [`read`]
//! returns a unit that can be written as a dict, linked, or opened. Most types are the same in both
//! formats. A type tag is replaced by the type it tags; declaration tags and the offsets of
//! variables in sections are ignored; functions and variables become symbols. Enum values beyond 32
//! bits can't be stored in a dict; they are left out and counted.

mod constants;

use backtrail_wire::{Bytes, Endian};

use crate::constants::{BTF_MAGIC, Encoding, Kind, SymbolKind};
use crate::error::{Error, ErrorKind, Foreign, Result};
use crate::graph::{Body, Function, Node, Span};
use crate::link::{Unit, UnitSymbol};
use crate::read::{Array, Enumerator, MAX_REFERENCES, Slice, StructMember, TypeId};
use crate::write::{self, Contents, Table, WriteError};
use constants::{BTF_VERSION, BtfKind, EXTERN, HEADER, STATIC};

/// The contents of BTF data.
#[derive(Clone, Debug, Default)]
pub struct Btf<'a> {
    /// Its types, functions and variables.
    pub unit: Unit<'a>,
    /// The byte order.
    pub big: bool,
    /// Enum values beyond 32 bits: their number, and the name of the first.
    pub wide_values: Option<(u64, &'a [u8])>,
}

/// Whether the bytes begin like BTF, in either byte order, and not like version 4 of compact C
/// types.
pub fn is_btf(bytes: &[u8]) -> bool {
    matches!(Parts::bytes(bytes), Ok(bytes) if !crate::read::is_ctf4(bytes))
}

impl<'a> Btf<'a> {
    /// Writes the unit as a dict of compact C types, with its functions and variables in tables.
    pub fn to_dict(self) -> core::result::Result<Vec<u8>, WriteError> {
        let symbols = self.unit.symbols;
        let table = |kind| {
            let own = symbols.iter().filter(|symbol| symbol.kind == kind && !symbol.declared);
            Table::Named(own.map(|symbol| (symbol.name, symbol.id)).collect())
        };
        let contents = Contents {
            objects: table(SymbolKind::Object),
            functions: table(SymbolKind::Function),
            types: self.unit.types,
            ..Contents::default()
        };
        let endian = if self.big { Endian::Big } else { Endian::Little };
        let options = write::Options {
            compress_from: usize::MAX,
            ..write::Options::new(endian)
        };
        write::dict(&contents, &options)
    }
}

/// Reads BTF data as a whole.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "there is always the entry of void"
)]
pub fn read(bytes: &[u8]) -> Result<Btf<'_>> {
    let parts = Parts::header(bytes)?;
    let records = parts.records()?;
    let mut reader = Reader {
        ids: ids(&parts, &records)?,
        records: &records,
        parts,
        btf: Btf::default(),
        slices: Vec::new(),
        first_slice: 0,
    };
    reader.btf.big = parts.bytes.endian() == Endian::Big;
    reader.first_slice = reader.ids[0].0 + 1;
    for record in reader.records {
        reader.add(record)?;
    }
    reader.btf.unit.types.add(VOID);
    for node in std::mem::take(&mut reader.slices) {
        reader.btf.unit.types.add(node);
    }
    Ok(reader.btf)
}

/// The parts of the data: types and strings.
#[derive(Clone, Copy)]
struct Parts<'a> {
    bytes: Bytes<'a>,
    types: (usize, usize),
    strings: (usize, usize),
}

/// A type record.
#[derive(Clone, Copy)]
struct Record {
    name: u32,
    kind: BtfKind,
    vlen: usize,
    flag: bool,
    /// A size or an id.
    word: u32,
    data: usize,
}

impl Record {
    /// Whether it becomes a type of the graph: tags do not.
    fn becomes_type(&self) -> bool {
        self.kind.is_type() && self.kind != BtfKind::TypeTag
    }
}

impl<'a> Parts<'a> {
    fn bytes(data: &'a [u8]) -> Result<Bytes<'a>> {
        let magic = Bytes::new(data, Endian::Little).u16(0)?;
        match magic {
            BTF_MAGIC => Ok(Bytes::new(data, Endian::Little)),
            swapped if swapped.swap_bytes() == BTF_MAGIC => Ok(Bytes::new(data, Endian::Big)),
            other => Err(Error::new(ErrorKind::Magic(other), 0)),
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "24 bytes of header were read")]
    fn header(data: &'a [u8]) -> Result<Parts<'a>> {
        let bytes = Parts::bytes(data)?;
        if crate::read::is_ctf4(bytes) {
            return Err(Error::new(ErrorKind::Foreign(Foreign::Ctf4), 0));
        }
        let version = bytes.u8(2)?;
        if version != BTF_VERSION {
            return Err(Error::new(ErrorKind::BtfVersion(version), 2));
        }
        let header = bytes.u32(4)? as usize;
        if header < HEADER {
            return Err(Error::new(ErrorKind::PartLength(header as u32), 4));
        }
        let part = |at: usize| -> Result<(usize, usize)> {
            let (offset, len) = (bytes.u32(at)?, bytes.u32(at + 4)?);
            let start = header.checked_add(offset as usize);
            let end = start.and_then(|start| start.checked_add(len as usize));
            match (start, end) {
                (Some(start), Some(end)) if end <= data.len() => Ok((start, end)),
                _ => Err(Error::new(ErrorKind::PartOffset(offset), at)),
            }
        };
        Ok(Parts {
            bytes,
            types: part(8)?,
            strings: part(16)?,
        })
    }

    /// Reads all type records, and checks that each is inside its part.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`at` is before the end of the types; a record has less than a MiB"
    )]
    fn records(&self) -> Result<Vec<Record>> {
        let (mut at, end) = self.types;
        let mut records = Vec::new();
        while at < end {
            let (name, info, word) = (self.u32(at)?, self.u32(at + 4)?, self.u32(at + 8)?);
            let number = info >> 24 & 0x1f;
            let kind = BtfKind::from_number(number).ok_or(Error::new(ErrorKind::Kind(number), at + 4))?;
            let vlen = (info & 0xffff) as usize;
            let data = at + 12;
            at = data + kind.data_bytes(vlen);
            if at > end {
                let missing = (at - end) as u64;
                return Err(Error::new(ErrorKind::Truncated { missing }, end));
            }
            let flag = info >> 31 != 0;
            records.push(Record {
                name,
                kind,
                vlen,
                flag,
                word,
                data,
            });
        }
        Ok(records)
    }

    fn u32(&self, at: usize) -> Result<u32> {
        Ok(self.bytes.u32(at)?)
    }

    /// The string at an offset; `at` is the position of that offset, for errors.
    #[expect(clippy::indexing_slicing, reason = "`len` is a position in `tail`")]
    fn string(&self, offset: u32, at: usize) -> Result<&'a [u8]> {
        let bad = Error::new(ErrorKind::Name(offset), at);
        let (start, end) = self.strings;
        let table = self.bytes.data().get(start..end).unwrap_or_default();
        let tail = table.get(offset as usize..).ok_or(bad)?;
        let len = tail.iter().position(|&byte| byte == 0).ok_or(bad)?;
        Ok(&tail[..len])
    }
}

/// void has the id 0 in BTF. In compact C types it is a type of size 0, added after all others.
const VOID: Node<'static> = Node {
    name: b"void",
    root: true,
    body: Body::Number(
        Kind::Integer,
        0,
        Encoding {
            format: Encoding::SIGNED,
            offset: 0,
            bits: 0,
        },
    ),
};

/// The id in the graph of each type; for tags, that of the tagged type.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "fewer than 2^32 records, each with an entry"
)]
fn ids(parts: &Parts<'_>, records: &[Record]) -> Result<Vec<TypeId>> {
    let void = 1 + records.iter().filter(|record| record.becomes_type()).count() as u32;
    let mut ids = vec![TypeId(void)];
    let mut next = 0;
    for record in records {
        next += u32::from(record.becomes_type());
        ids.push(TypeId(if record.becomes_type() { next } else { 0 }));
    }
    for (number, record) in records
        .iter()
        .enumerate()
        .filter(|(_, record)| record.kind == BtfKind::TypeTag)
    {
        let mut to = record.word;
        let mut left = MAX_REFERENCES;
        while let Some(other) = (to as usize).checked_sub(1).and_then(|to| records.get(to)) {
            if other.kind != BtfKind::TypeTag {
                break;
            }
            left = left
                .checked_sub(1)
                .ok_or(Error::new(ErrorKind::Cycle(number as u32 + 1), record.data))?;
            to = other.word;
        }
        ids[number + 1] = *ids.get(to as usize).ok_or(parts.no_type(to, record.data))?;
    }
    Ok(ids)
}

impl Parts<'_> {
    fn no_type(&self, id: u32, at: usize) -> Error {
        Error::new(ErrorKind::TypeId(id), at)
    }
}

struct Reader<'a, 'r> {
    parts: Parts<'a>,
    records: &'r [Record],
    /// Ids in the graph, by BTF id.
    ids: Vec<TypeId>,
    btf: Btf<'a>,
    /// The types of bit fields, which follow all others.
    slices: Vec<Node<'a>>,
    first_slice: u32,
}

impl<'a> Reader<'a, '_> {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn add(&mut self, record: &Record) -> Result<()> {
        let name = self.parts.string(record.name, record.data - 12)?;
        match record.kind {
            BtfKind::Func => return self.symbol(SymbolKind::Function, name, record, record.vlen as u32),
            BtfKind::Var => {
                let linkage = self.parts.u32(record.data)?;
                return self.symbol(SymbolKind::Object, name, record, linkage);
            }
            BtfKind::Datasec | BtfKind::DeclTag | BtfKind::TypeTag => return Ok(()),
            _ => {}
        }
        let body = self.body(name, record)?;
        self.btf.unit.types.add(Node { name, root: true, body });
        Ok(())
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn body(&mut self, name: &[u8], record: &Record) -> Result<Body> {
        let size = u64::from(record.word);
        Ok(match record.kind {
            BtfKind::Int => Body::Number(Kind::Integer, size, encoding(self.parts.u32(record.data)?)),
            BtfKind::Float => Body::Number(Kind::Float, size, float(name, size)),
            BtfKind::Ptr => self.reference(Kind::Pointer, record)?,
            BtfKind::Typedef => self.reference(Kind::Typedef, record)?,
            BtfKind::Volatile => self.reference(Kind::Volatile, record)?,
            BtfKind::Const => self.reference(Kind::Const, record)?,
            BtfKind::Restrict => self.reference(Kind::Restrict, record)?,
            BtfKind::Array => Body::Array(Array {
                contents: self.id_at(record.data)?,
                index: self.id_at(record.data + 4)?,
                count: self.parts.u32(record.data + 8)?,
            }),
            BtfKind::Struct => Body::Aggregate(Kind::Struct, size, self.members(record)?),
            BtfKind::Union => Body::Aggregate(Kind::Union, size, self.members(record)?),
            BtfKind::Enum => Body::Enum(size, self.values(record, 8)?),
            BtfKind::Enum64 => Body::Enum(size, self.values(record, 12)?),
            BtfKind::Fwd => Body::Forward(if record.flag { Kind::Union } else { Kind::Struct }),
            // Only function prototypes are left: the other kinds do not become types.
            _ => Body::Function(self.function(record)?),
        })
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn reference(&self, kind: Kind, record: &Record) -> Result<Body> {
        Ok(Body::Reference(kind, self.id(record.word, record.data - 4)?))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn function(&mut self, record: &Record) -> Result<Function> {
        let returns = self.id(record.word, record.data - 4)?;
        let mut arguments = Vec::with_capacity(record.vlen);
        for index in 0..record.vlen {
            arguments.push(self.id_at(record.data + 8 * index + 4)?);
        }
        // A last argument of type void means that the function is variadic
        // ("BTF_KIND_FUNC_PROTO").
        let variadic = arguments.last() == Some(&self.ids[0]);
        arguments.truncate(record.vlen - usize::from(variadic));
        Ok(Function {
            returns,
            arguments: self.btf.unit.types.add_arguments(arguments),
            variadic,
        })
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn members(&mut self, record: &Record) -> Result<Span> {
        let mut members = Vec::with_capacity(record.vlen);
        for index in 0..record.vlen {
            let at = record.data + 12 * index;
            let name = self.parts.string(self.parts.u32(at)?, at)?;
            let (id, place) = (self.parts.u32(at + 4)?, self.parts.u32(at + 8)?);
            let plain = self.id(id, at + 4)?;
            let (offset, bits) = match record.flag {
                true => (place & 0xff_ffff, place >> 24),
                false => (place, 0),
            };
            // Before the flag was added, bit fields had integer types of their own.
            let (more, bits) = if bits == 0 { self.narrow(id) } else { (0, bits) };
            let offset = u64::from(offset) + u64::from(more);
            let id = if bits == 0 {
                plain
            } else {
                self.slice(plain, bits as u16)
            };
            members.push(StructMember { name, offset, id });
        }
        Ok(self.btf.unit.types.add_members(members))
    }

    /// The bit offset and width of an integer type that is narrower than its bytes; a width of 0
    /// for any other type.
    fn narrow(&self, id: u32) -> (u32, u32) {
        let record = (id as usize).checked_sub(1).and_then(|index| self.records.get(index));
        let Some(record) = record.filter(|record| record.kind == BtfKind::Int) else {
            return (0, 0);
        };
        let Ok(word) = self.parts.u32(record.data) else {
            return (0, 0);
        };
        let (offset, bits) = (word >> 16 & 0xff, word & 0xff);
        match u64::from(bits) < 8 * u64::from(record.word) {
            true => (offset, bits),
            false => (0, 0),
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "fewer slices than members")]
    fn slice(&mut self, of: TypeId, bits: u16) -> TypeId {
        let size = u64::from(bits).div_ceil(8).next_power_of_two();
        let body = Body::Slice(size, Slice { of, offset: 0, bits });
        let node = Node {
            name: &[],
            root: true,
            body,
        };
        self.slices.push(node);
        TypeId(self.first_slice + self.slices.len() as u32 - 1)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn values(&mut self, record: &Record, bytes: usize) -> Result<Span> {
        let mut values = Vec::with_capacity(record.vlen);
        for index in 0..record.vlen {
            let at = record.data + bytes * index;
            let name = self.parts.string(self.parts.u32(at)?, at)?;
            let low = self.parts.u32(at + 4)?;
            let high = match bytes {
                12 => self.parts.u32(at + 8)?,
                // The flag means that the values are signed. It was added later, so the meaning of
                // large values from older producers is unknown.
                _ if record.flag => (low as i32 >> 31) as u32,
                _ => 0,
            };
            let value = (u64::from(high) << 32 | u64::from(low)) as i64;
            match i32::try_from(value) {
                Ok(value) => values.push(Enumerator { name, value }),
                Err(_) => self.btf.wide_values.get_or_insert((0, name)).0 += 1,
            }
        }
        Ok(self.btf.unit.types.add_values(values))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn symbol(&mut self, kind: SymbolKind, name: &'a [u8], record: &Record, linkage: u32) -> Result<()> {
        let id = self.id(record.word, record.data - 4)?;
        self.btf.unit.symbols.push(UnitSymbol {
            name,
            kind,
            id,
            local: linkage == STATIC,
            declared: linkage == EXTERN,
        });
        Ok(())
    }

    fn id_at(&self, at: usize) -> Result<TypeId> {
        self.id(self.parts.u32(at)?, at)
    }

    /// Maps a BTF id to an id in the graph; `at` is the id's position, for errors.
    fn id(&self, id: u32, at: usize) -> Result<TypeId> {
        let wrong = self.parts.no_type(id, at);
        let found = *self.ids.get(id as usize).ok_or(wrong)?;
        let record = (id as usize).checked_sub(1).and_then(|index| self.records.get(index));
        match record {
            Some(record) if !record.kind.is_type() => Err(wrong),
            _ => Ok(found),
        }
    }
}

/// `BTF_INT_ENCODING`, `BTF_INT_OFFSET` and `BTF_INT_BITS` mean the same as in compact C types
/// ("BTF_KIND_INT").
fn encoding(word: u32) -> Encoding {
    Encoding {
        format: (word >> 24 & 0x7) as u8,
        offset: (word >> 16 & 0xff) as u16,
        bits: (word & 0xff) as u16,
    }
}

/// BTF stores only the size and name of a float.
#[expect(clippy::arithmetic_side_effects, reason = "a 32-bit size in 64 bits")]
fn float(name: &[u8], size: u64) -> Encoding {
    let is_complex = ["complex", "_Complex"].iter().any(|word| {
        let mut words = name.split(|&byte| byte == b' ');
        words.any(|found| found == word.as_bytes())
    });
    let format = match (is_complex, size) {
        (false, 0..=4) => 1,
        (false, 5..=8) => 2,
        (true, 0..=8) => 3,
        (true, 9..=16) => 4,
        (true, _) => 5,
        (false, _) => 6,
    };
    Encoding {
        format,
        offset: 0,
        bits: (8 * size).min(u64::from(u16::MAX)) as u16,
    }
}
