//! Reading the BPF Type Format: the types of kernels and BPF programs, as written by `pahole` and
//! `gcc -gbtf`.
//!
//! BTF is read as a whole, into the same graph as compact C types ([`crate::graph`]): [`read`]
//! returns a unit that can be written as a dict, linked, or opened. Most types are the same in both
//! formats. A type tag is replaced by the type it tags; declaration tags and the offsets of
//! variables in sections are ignored; functions and variables become symbols. Enum values beyond 32
//! bits can't be stored in a dict; they are returned beside it ([`WideValue`]).
//!
//! The BTF of a kernel module continues the kernel's ("split BTF"): [`Base`] reads it into a child.

mod constants;

use backtrail_wire::{Bytes, Endian};

use crate::constants::{BTF_MAGIC, Encoding, Kind, SymbolKind};
use crate::error::{Error, ErrorKind, Foreign, Result};
use crate::graph::{Body, Function, Graph, Node, Span};
use crate::link::{Unit, UnitSymbol};
use crate::read::{Array, Enumerator, MAX_REFERENCES, Slice, StructMember, TypeId, WideValue};
use crate::write::{self, Contents, Table, WriteError};
use constants::{BTF_VERSION, BtfKind, EXTERN, HEADER, STATIC};

/// The contents of BTF data.
#[derive(Clone, Debug, Default)]
pub struct Btf<'a> {
    /// Its types, functions and variables.
    pub unit: Unit<'a>,
    /// The byte order.
    pub big: bool,
    /// Enum values beyond 32 bits, in the order of their enums' ids.
    pub wide_values: Vec<WideValue>,
}

/// Whether the bytes begin like BTF, in either byte order, and not like version 4 of compact C
/// types.
pub fn is_btf(bytes: &[u8]) -> bool {
    matches!(Parts::bytes(bytes), Ok(bytes) if !crate::read::is_ctf4(bytes))
}

impl<'a> Btf<'a> {
    /// Writes the unit as a dict of compact C types, with its functions and variables in tables.
    /// The dict of a module is a child of `parent`.
    pub fn to_dict(self, parent: &[u8]) -> core::result::Result<Vec<u8>, WriteError> {
        let (symbols, name) = (self.unit.symbols, self.unit.name);
        let (parent_name, cu_name) = match self.unit.types.is_child() {
            true => (parent, name),
            false => (&b""[..], &b""[..]),
        };
        let table = |kind| {
            let own = symbols.iter().filter(|symbol| symbol.kind == kind && !symbol.declared);
            Table::Named(own.map(|symbol| (symbol.name, symbol.id)).collect())
        };
        let contents = Contents {
            objects: table(SymbolKind::Object),
            functions: table(SymbolKind::Function),
            types: self.unit.types,
            parent_name,
            cu_name,
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

/// Whether BTF continues that of another file: its strings then do not begin with the empty one.
pub fn is_continued(bytes: &[u8]) -> bool {
    let first = |parts: Parts<'_>| parts.string(0, 0).map(<[u8]>::len);
    Parts::header(bytes).is_ok_and(|parts| first(parts) != Ok(0))
}

/// Reads BTF data as a whole.
pub fn read(bytes: &[u8]) -> Result<Btf<'_>> {
    Ok(Base::read(bytes)?.1)
}

/// BTF that other BTF continues: its types and its strings have the numbers after those here.
pub struct Base<'a> {
    parts: Parts<'a>,
    records: Vec<Record>,
    /// Ids in the graph, by BTF id.
    ids: Vec<TypeId>,
}

impl<'a> Base<'a> {
    /// Reads BTF data as a whole, and keeps what reading its continuations needs.
    pub fn read(bytes: &'a [u8]) -> Result<(Base<'a>, Btf<'a>)> {
        let parts = Parts::header(bytes)?;
        let records = parts.records()?;
        let ids = ids(&parts, &records, None)?;
        let (ids, btf) = contents(&parts, &records, ids, None)?;
        Ok((Base { parts, records, ids }, btf))
    }

    /// Reads the BTF of a module with this name, as the types of a child.
    pub fn module(&self, name: &'a [u8], bytes: &'a [u8]) -> Result<Btf<'a>> {
        let parts = Parts::header(bytes)?;
        let records = parts.records()?;
        let ids = ids(&parts, &records, Some(self))?;
        let (_, mut btf) = contents(&parts, &records, ids, Some(self))?;
        btf.unit.name = name;
        Ok(btf)
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "there is always the entry of void; fewer types than 2^32"
)]
fn contents<'a>(
    parts: &Parts<'a>,
    records: &[Record],
    ids: Vec<TypeId>,
    base: Option<&Base<'a>>,
) -> Result<(Vec<TypeId>, Btf<'a>)> {
    let types = match base {
        None => Graph::new(),
        Some(_) => Graph::of_child(),
    };
    let own = records.iter().filter(|record| record.becomes_type()).count() as u32;
    let mut reader = Reader {
        base,
        first_slice: own + if base.is_some() { 1 } else { 2 },
        ids,
        records,
        parts: *parts,
        btf: Btf {
            big: parts.bytes.endian() == Endian::Big,
            ..Btf::default()
        },
        slices: Vec::new(),
    };
    reader.btf.unit.types = types;
    for record in reader.records {
        reader.add(record)?;
    }
    if base.is_none() {
        debug_assert_eq!(reader.ids[0].0, own + 1);
        reader.btf.unit.types.add(VOID);
    }
    for node in std::mem::take(&mut reader.slices) {
        reader.btf.unit.types.add(node);
    }
    Ok((reader.ids, reader.btf))
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

    fn strings_len(&self) -> u32 {
        let (start, end) = self.strings;
        end.saturating_sub(start) as u32
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

/// The id in the graph of each type, those of the base first; for tags, that of the tagged type.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "fewer than 2^32 records, each with an entry"
)]
fn ids(parts: &Parts<'_>, records: &[Record], base: Option<&Base<'_>>) -> Result<Vec<TypeId>> {
    let mut ids = match base {
        Some(base) => base.ids.clone(),
        None => {
            let void = 1 + records.iter().filter(|record| record.becomes_type()).count() as u32;
            vec![TypeId(void)]
        }
    };
    let first = ids.len();
    let mut next = 0;
    for record in records {
        next += u32::from(record.becomes_type());
        ids.push(match record.becomes_type() {
            true => TypeId::new(next, base.is_some()),
            false => TypeId(0),
        });
    }
    for (number, record) in records
        .iter()
        .enumerate()
        .filter(|(_, record)| record.kind == BtfKind::TypeTag)
    {
        let mut to = record.word;
        let mut left = MAX_REFERENCES;
        while let Some(other) = (to as usize).checked_sub(first).and_then(|to| records.get(to)) {
            if other.kind != BtfKind::TypeTag {
                break;
            }
            left = left
                .checked_sub(1)
                .ok_or(Error::new(ErrorKind::Cycle((first + number) as u32), record.data))?;
            to = other.word;
        }
        ids[first + number] = *ids.get(to as usize).ok_or(parts.no_type(to, record.data))?;
    }
    Ok(ids)
}

impl Parts<'_> {
    fn no_type(&self, id: u32, at: usize) -> Error {
        Error::new(ErrorKind::TypeId(id), at)
    }
}

struct Reader<'a, 'r> {
    base: Option<&'r Base<'a>>,
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
    /// The record of a BTF id, which may be one of the base.
    fn record(&self, id: u32) -> Option<Record> {
        let index = (id as usize).checked_sub(1)?;
        let base = self.base.map_or(&[][..], |base| &base.records);
        match index.checked_sub(base.len()) {
            None => base.get(index).copied(),
            Some(own) => self.records.get(own).copied(),
        }
    }

    /// The encoding of an integer's record, which may be one of the base.
    fn integer(&self, id: u32, record: &Record) -> Option<u32> {
        let of_base = self.base.filter(|base| (id as usize) < base.ids.len());
        of_base.map_or(&self.parts, |base| &base.parts).u32(record.data).ok()
    }

    /// The string at an offset, which counts from the start of the base's strings.
    fn string(&self, offset: u32, at: usize) -> Result<&'a [u8]> {
        let Some(base) = self.base else {
            return self.parts.string(offset, at);
        };
        match offset.checked_sub(base.parts.strings_len()) {
            None => base.parts.string(offset, at),
            Some(own) => self.parts.string(own, at),
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn add(&mut self, record: &Record) -> Result<()> {
        let name = self.string(record.name, record.data - 12)?;
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
            let name = self.string(self.parts.u32(at)?, at)?;
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
        let record = self.record(id).filter(|record| record.kind == BtfKind::Int);
        let word = record.and_then(|record| Some((record, self.integer(id, &record)?)));
        let Some((record, word)) = word else {
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
        TypeId::new(self.first_slice + self.slices.len() as u32 - 1, self.base.is_some())
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`records` compared the end of the record with that of the types"
    )]
    fn values(&mut self, record: &Record, bytes: usize) -> Result<Span> {
        let mut values = Vec::with_capacity(record.vlen);
        for index in 0..record.vlen {
            let at = record.data + bytes * index;
            let name = self.string(self.parts.u32(at)?, at)?;
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
                Err(_) => self.btf.wide_values.push(WideValue {
                    unit: Vec::new(),
                    id: self.own(),
                    position: index as u32,
                    name: name.to_vec(),
                    value,
                    unsigned: bytes == 8 || !record.flag,
                }),
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

    /// The id of the type that is being read.
    #[expect(clippy::arithmetic_side_effects, reason = "fewer types than 2^32")]
    fn own(&self) -> TypeId {
        TypeId::new(self.btf.unit.types.len() as u32 + 1, self.base.is_some())
    }

    fn id_at(&self, at: usize) -> Result<TypeId> {
        self.id(self.parts.u32(at)?, at)
    }

    /// Maps a BTF id to an id in the graph; `at` is the id's position, for errors.
    fn id(&self, id: u32, at: usize) -> Result<TypeId> {
        let wrong = self.parts.no_type(id, at);
        let found = *self.ids.get(id as usize).ok_or(wrong)?;
        match self.record(id) {
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
