//! Reading.

use backtrail_wire::{Bytes, Endian};

use super::bits::{Codes, Reader, Stream};
use super::{GROUP, HEADER, MAGIC, POOLS, Pool, VERSION, Value, flag, kind, storage_of};
use crate::abi::{Abi, Storage};
use crate::error::{Error, ErrorKind, Result};

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    bytes: Bytes<'a>,
    abi: Abi,
    /// Call addresses are multiples of two to the power of this.
    shift: u32,
    types: u32,
    base: u64,
    strings: (u32, u32),
    pools: [(u32, u32); POOLS],
    codes: Codes<'a>,
}

/// A function, or a piece of one.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// Its address in the file.
    pub start: u64,
    /// For so many bytes from its start its arguments are where they were passed.
    pub prefix: u64,
    signature: u64,
    calls: u64,
    reader: Reader<'a>,
    shift: u32,
}

/// What is known at a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSite {
    /// The list of where the function's own arguments are: [`Table::places`].
    pub places: Option<u64>,
    /// The list of what the call passes in general registers: [`Table::entries`].
    pub entries: Option<u64>,
}

/// The parameters of a function.
#[derive(Clone, Copy, Debug)]
pub struct Signature<'a> {
    /// Whether what a function was called with may be asked of its caller: it is not reached by jumps from what was called.
    pub trusted: bool,
    /// Whether the first general register has the address for the result.
    pub result_address: bool,
    /// Whether more arguments may follow.
    pub variadic: bool,
    /// The dict with the types, where it is not the parent: its number in the archive.
    pub dict: Option<u32>,
    /// The numbers of its parameters: [`Table::parameter`].
    pub parameters: List<'a>,
}

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The id of its type; 0 where it has none.
    pub type_id: u32,
    /// How it is passed, where that is known.
    pub storage: Option<Storage>,
}

/// Numbers of records.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    reader: Reader<'a>,
    left: u64,
    stream: Stream,
}

impl Iterator for List<'_> {
    type Item = Result<u64>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let number = self.reader.number(self.stream);
        if number.is_err() {
            self.left = 0;
        }
        Some(number)
    }
}

impl<'a> Table<'a> {
    /// Opens a table, in the byte order of its file. What is in it is read when it is asked for.
    pub fn parse(data: &'a [u8], endian: Endian) -> Result<Table<'a>> {
        let bytes = Bytes::new(data, endian);
        let truncated = |error: backtrail_wire::Error| Error {
            kind: ErrorKind::Truncated(HEADER as u64),
            offset: error.offset,
        };
        let wrong = |kind, offset| Err(Error { kind, offset });
        let magic = bytes.u16(0).map_err(truncated)?;
        if magic != MAGIC {
            return wrong(ErrorKind::Magic(magic), 0);
        }
        let version = bytes.u8(2).map_err(truncated)?;
        if version != VERSION {
            return wrong(ErrorKind::Version(version), 2);
        }
        let abi = match bytes.u8(3).map_err(truncated)? {
            1 => Abi::SysvX86_64,
            2 => Abi::Aapcs64,
            other => return wrong(ErrorKind::Abi(other), 3),
        };
        let shift = bytes.u8(4).map_err(truncated)?;
        if shift > 4 {
            return wrong(ErrorKind::Value(shift.into()), 4);
        }
        let word = |at| bytes.u32(at).map_err(truncated);
        let mut pools = [(0, 0); POOLS];
        for (index, pool) in pools.iter_mut().enumerate() {
            *pool = (word(32 + index * 8)?, word(36 + index * 8)?);
        }
        Ok(Table {
            bytes,
            abi,
            shift: shift.into(),
            types: word(8)?,
            base: bytes.u64(16).map_err(truncated)?,
            strings: (word(24)?, word(28)?),
            pools,
            codes: Codes::parse(data, HEADER)?,
        })
    }

    /// The calling convention.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// CRC-32 of the section of types that ids refer to.
    pub fn types(&self) -> u32 {
        self.types
    }

    /// The lowest address of a function in the file.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// How many functions and pieces of functions there are.
    pub fn len(&self) -> usize {
        self.pools[Pool::Functions as usize].0 as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn reader(&self, bit: u64) -> Reader<'a> {
        Reader {
            bytes: self.bytes.data(),
            codes: self.codes,
            bit,
        }
    }

    fn truncated(at: usize) -> Error {
        Error {
            kind: ErrorKind::Truncated(at as u64 + 4),
            offset: at as u64,
        }
    }

    fn word(&self, at: usize) -> Result<u32> {
        self.bytes.u32(at).map_err(|_| Self::truncated(at))
    }

    /// The start of a group of records.
    fn group(&self, pool: Pool, group: usize, words: usize) -> Result<(Reader<'a>, usize)> {
        let (count, offset) = self.pools[pool as usize];
        let groups = (count as usize).div_ceil(GROUP);
        let place = (offset as usize).saturating_add(group * words * 4);
        let bit = self.word(place + (words - 1) * 4)?;
        let bits = (offset as u64 + (groups * words * 4) as u64) * 8;
        Ok((self.reader(bits + u64::from(bit)), place))
    }

    /// A reader at a record, behind those of its group that `skip` has passed.
    fn record(&self, pool: Pool, number: u64, skip: impl Fn(&mut Reader<'a>) -> Result<()>) -> Result<Reader<'a>> {
        let (count, offset) = self.pools[pool as usize];
        if number >= u64::from(count) {
            return Err(Error {
                kind: ErrorKind::Record(number),
                offset: offset.into(),
            });
        }
        let (mut reader, _) = self.group(pool, number as usize / GROUP, 1)?;
        for _ in 0..number as usize % GROUP {
            skip(&mut reader)?;
        }
        Ok(reader)
    }

    /// The function that begins at this address of the file or is the last before it.
    pub fn function(&self, address: u64) -> Result<Option<Function<'a>>> {
        let groups = self.len().div_ceil(GROUP);
        let Some(wanted) = address.checked_sub(self.base) else {
            return Ok(None);
        };
        let offset = self.pools[Pool::Functions as usize].1 as usize;
        let (mut low, mut high) = (0, groups);
        while low < high {
            let middle = (low + high) / 2;
            match u64::from(self.word(offset.saturating_add(middle * 8))?) <= wanted {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let Some(group) = low.checked_sub(1) else {
            return Ok(None);
        };
        let (mut reader, place) = self.group(Pool::Functions, group, 2)?;
        let mut start = u64::from(self.word(place)?);
        let mut found = None;
        for index in 0..GROUP.min(self.len() - group * GROUP) {
            let gap = reader.number(Stream::Start)?;
            if index > 0 {
                // Functions mostly begin at multiples of 16.
                let gap = if gap & 1 == 0 { (gap >> 1) << 4 } else { gap >> 1 };
                start = start.saturating_add(gap);
            }
            if start > wanted {
                break;
            }
            let signature = reader.number(Stream::Signature)?;
            let prefix = reader.number(Stream::Prefix)?;
            let calls = reader.number(Stream::Calls)?;
            found = Some(Function {
                start: self.base.wrapping_add(start),
                prefix: 1u64.unbounded_shl(u32::try_from(prefix).unwrap_or(u32::MAX)) >> 1,
                signature,
                calls,
                reader,
                shift: self.shift,
            });
            for _ in 0..calls {
                Function::call(&mut reader)?;
            }
        }
        Ok(found)
    }

    /// A function's parameters; `None` where it only stands for code of which nothing is known.
    pub fn signature(&self, function: &Function<'a>) -> Result<Option<Signature<'a>>> {
        let Some(number) = function.signature.checked_sub(1) else {
            return Ok(None);
        };
        let skip = |reader: &mut Reader<'a>| {
            reader.number(Stream::Flags)?;
            Self::skip_list(reader, Stream::Parameter)
        };
        let mut reader = self.record(Pool::Signatures, number, skip)?;
        let flags = reader.number(Stream::Flags)?;
        let has = |bit: u64| flags & bit != 0;
        Ok(Some(Signature {
            trusted: has(flag::TRUSTED),
            result_address: has(flag::RESULT_ADDRESS),
            variadic: has(flag::VARIADIC),
            dict: (flags >> flag::BITS)
                .checked_sub(1)
                .and_then(|dict| u32::try_from(dict).ok()),
            parameters: Self::list(reader, Stream::Parameter)?,
        }))
    }

    /// A parameter.
    pub fn parameter(&self, number: u64) -> Result<Parameter<'a>> {
        let skip = |reader: &mut Reader<'a>| {
            for stream in [Stream::Name, Stream::Type, Stream::Storage] {
                reader.number(stream)?;
            }
            Ok(())
        };
        let mut reader = self.record(Pool::Parameters, number, skip)?;
        let offset = reader.bit / 8;
        let name = reader.number(Stream::Name)?;
        let type_id = reader.number(Stream::Type)?;
        let (start, len) = self.strings;
        let names = self.bytes.slice(start as usize, len as usize);
        let names = names.map_err(|_| Self::truncated(start as usize))?;
        let rest = usize::try_from(name).ok().and_then(|name| names.get(name..));
        let name = rest.and_then(|rest| rest.split(|&byte| byte == 0).next());
        let wrong = |value| Error {
            kind: ErrorKind::Value(value),
            offset,
        };
        Ok(Parameter {
            name: name.ok_or(wrong(0))?,
            type_id: u32::try_from(type_id).map_err(|_| wrong(type_id))?,
            storage: match reader.number(Stream::Storage)?.checked_sub(1) {
                Some(number) => self.storage(number)?,
                None => None,
            },
        })
    }

    fn storage(&self, number: u64) -> Result<Option<Storage>> {
        let skip = |reader: &mut Reader<'a>| reader.number(Stream::Code).map(|_| ());
        let mut reader = self.record(Pool::Storages, number, skip)?;
        Ok(storage_of(reader.number(Stream::Code)?))
    }

    /// Where a function's own arguments are: the numbers of values.
    pub fn places(&self, number: u64) -> Result<List<'a>> {
        let reader = self.record(Pool::Places, number, |reader| Self::skip_list(reader, Stream::Place))?;
        Self::list(reader, Stream::Place)
    }

    /// What a call passes in each general register: the numbers of values.
    pub fn entries(&self, number: u64) -> Result<List<'a>> {
        let reader = self.record(Pool::Entries, number, |reader| Self::skip_list(reader, Stream::Entry))?;
        Self::list(reader, Stream::Entry)
    }

    fn list(mut reader: Reader<'a>, stream: Stream) -> Result<List<'a>> {
        let left = reader.number(Stream::Count)?;
        Ok(List { reader, left, stream })
    }

    fn skip_list(reader: &mut Reader<'a>, stream: Stream) -> Result<()> {
        for _ in 0..reader.number(Stream::Count)? {
            reader.number(stream)?;
        }
        Ok(())
    }

    /// A value.
    pub fn value(&self, number: u64) -> Result<Value> {
        let mut reader = self.record(Pool::Values, number, |reader| self.read_value(reader).map(|_| ()))?;
        self.read_value(&mut reader)
    }

    fn read_value(&self, reader: &mut Reader<'a>) -> Result<Value> {
        let at = reader.bit / 8;
        let code = reader.number(Stream::Kind)?;
        Ok(match code {
            kind::LOST => Value::Lost,
            kind::FRAME => Value::Frame(reader.signed(Stream::Offset)?),
            kind::AT_FRAME => Value::AtFrame(reader.signed(Stream::Offset)?),
            kind::CONSTANT => Value::Constant(reader.signed(Stream::Offset)?),
            kind::ADDRESS => Value::Address(self.address(reader)?),
            kind::AT_ADDRESS => Value::AtAddress(self.address(reader)?),
            kind::PARTS => {
                let count = reader.number(Stream::Count)?;
                let start = reader.bit;
                for _ in 0..count {
                    reader.number(Stream::Count)?;
                    reader.number(Stream::Place)?;
                }
                let count = u8::try_from(count).map_err(|_| Error {
                    kind: ErrorKind::Value(count),
                    offset: at,
                })?;
                Value::Parts(start, count)
            }
            _ => {
                let wrong = Error {
                    kind: ErrorKind::Value(code),
                    offset: at,
                };
                let index = code.checked_sub(kind::REGISTERS).ok_or(wrong)?;
                let register = u8::try_from(index / 3).map_err(|_| wrong)?;
                let offset = reader.signed(Stream::Offset)?;
                match index % 3 {
                    kind::REGISTER => Value::Register(register, offset),
                    kind::AT_REGISTER => Value::AtRegister(register, offset),
                    _ => Value::Entry(register, offset),
                }
            }
        })
    }

    fn address(&self, reader: &mut Reader<'a>) -> Result<u64> {
        Ok(self.base.wrapping_add_signed(reader.signed(Stream::Offset)?))
    }

    /// The parts of a value: the size of each in bytes, and the number of its value.
    pub fn parts(&self, start: u64, count: u8) -> impl Iterator<Item = Result<(u64, u64)>> + use<'a> {
        let mut reader = self.reader(start);
        (0..count).map(move |_| Ok((reader.number(Stream::Count)?, reader.number(Stream::Place)?)))
    }
}

impl Function<'_> {
    /// The next call: how far it is from the one before, and its lists.
    fn call(reader: &mut Reader<'_>) -> Result<(u64, u64, u64)> {
        Ok((
            reader.number(Stream::Call)?,
            reader.number(Stream::Places)?,
            reader.number(Stream::Entries)?,
        ))
    }

    /// What is known at the call that returns to this address of the file.
    pub fn call_site(&self, return_address: u64) -> Result<CallSite> {
        let mut site = CallSite::default();
        let mut reader = self.reader;
        let mut address = self.start;
        for _ in 0..self.calls {
            let (gap, places, entries) = Self::call(&mut reader)?;
            address = address.saturating_add(gap << self.shift);
            if address > return_address {
                break;
            }
            if places > 0 {
                site.places = Some(places - 1);
            }
            site.entries = (address == return_address).then(|| entries.checked_sub(1)).flatten();
        }
        Ok(site)
    }
}
