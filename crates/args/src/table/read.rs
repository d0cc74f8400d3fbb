//! Reading tables.

use backtrail_wire::{Bytes, Endian};

use super::bits::{AllCodes, Reader, Stream, entries_stream, places_stream};
use super::{
    CHOSEN, EVERYWHERE, GROUP, HEADER, MAGIC, Operation, POOLS, Pool, Step, TYPES_AT, VERSION, Value, flag, kind,
    storage_of,
};
use crate::abi::{Abi, Storage};
use crate::error::{Error, ErrorKind, Result};

/// A table.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    bytes: Bytes<'a>,
    abi: Abi,
    /// Call addresses are multiples of two to this power.
    shift: u32,
    /// In which functions places are recorded everywhere: [`AT_CALLS`], [`EVERYWHERE`], [`CHOSEN`].
    everywhere: u8,
    types: u32,
    base: u64,
    pools: [(u32, u32); POOLS],
    codes: AllCodes,
}

/// A function, or a piece of one.
#[derive(Clone, Copy, Debug)]
pub struct Function<'t> {
    /// Its address in the file.
    pub start: u64,
    /// For this many bytes from its start, its arguments are where they were passed.
    pub prefix: u64,
    signature: Option<Record<'t>>,
    calls: u64,
    /// Whether places are recorded everywhere.
    everywhere: bool,
    reader: Reader<'t>,
    table: &'t Table<'t>,
}

/// What is known about a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallSite<'t> {
    /// Where the function's own arguments are.
    pub places: Option<Values<'t>>,
    /// The values that the call passes in general registers, in order; then the callee's address,
    /// and each parameter that is in no register.
    pub entries: Option<Values<'t>>,
}

/// The parameters of a function.
#[derive(Clone, Copy, Debug)]
pub struct Signature<'t> {
    /// Whether the function's arguments may be taken from its caller's call: it is not reached by
    /// jumps from the function that was called.
    pub trusted: bool,
    /// Whether the first general register contains the address for the result.
    pub result_address: bool,
    /// Whether the function is variadic.
    pub variadic: bool,
    /// The number of the dict with the types in the archive, if it is not the parent.
    pub dict: Option<u32>,
    /// Its parameters.
    pub parameters: Parameters<'t>,
}

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub struct Parameter<'t> {
    /// Its name.
    pub name: Name<'t>,
    /// The id of its type; 0 if it has none.
    pub type_id: u32,
    /// How it is passed, if known.
    pub storage: Option<Storage>,
}

/// A name, as an iterator over its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Name<'t>(Reader<'t>);

impl Iterator for Name<'_> {
    type Item = u8;

    /// Ends at damage.
    fn next(&mut self) -> Option<u8> {
        let byte = self.0.number(Stream::Character).ok()?;
        u8::try_from(byte).ok().filter(|&byte| byte != 0)
    }
}

/// The parameters of a signature.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'t> {
    table: &'t Table<'t>,
    reader: Reader<'t>,
    left: u64,
}

impl<'t> Iterator for Parameters<'t> {
    type Item = Result<Parameter<'t>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let parameter = self.table.parameter(&mut self.reader);
        if parameter.is_err() {
            self.left = 0;
        }
        Some(parameter)
    }
}

/// The values of a list.
#[derive(Clone, Copy, Debug)]
pub struct Values<'t> {
    table: &'t Table<'t>,
    reader: Reader<'t>,
    stream: Stream,
    left: u64,
}

impl Iterator for Values<'_> {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let value = self.table.value(&mut self.reader, self.stream, false);
        if value.is_err() {
            self.left = 0;
        }
        Some(value)
    }
}

/// Where a record is.
#[derive(Clone, Copy, Debug)]
enum Record<'t> {
    Here(Reader<'t>),
    /// In its pool.
    Number(u64),
}

impl<'t> Record<'t> {
    /// Interprets a number of which 0 means that the record follows here.
    fn of(number: u64, reader: &Reader<'t>) -> Record<'t> {
        match number.checked_sub(1) {
            Some(number) => Record::Number(number),
            None => Record::Here(*reader),
        }
    }

    /// The same for numbers of which 0 means that there is no record.
    fn maybe(number: u64, reader: &Reader<'t>) -> Option<Record<'t>> {
        Some(Record::of(number.checked_sub(1)?, reader))
    }

    fn is_here(&self) -> bool {
        matches!(self, Record::Here(_))
    }
}

impl<'a> Table<'a> {
    /// Opens a table, in the byte order of its file. Its contents are read on demand.
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
        let everywhere = bytes.u8(5).map_err(truncated)?;
        if everywhere > CHOSEN {
            return wrong(ErrorKind::Value(everywhere.into()), 5);
        }
        let word = |at| bytes.u32(at).map_err(truncated);
        let mut pools = [(0, 0); POOLS];
        for (index, pool) in pools.iter_mut().enumerate() {
            *pool = (word(24 + index * 8)?, word(28 + index * 8)?);
        }
        Ok(Table {
            bytes,
            abi,
            shift: shift.into(),
            everywhere,
            types: word(TYPES_AT)?,
            base: bytes.u64(16).map_err(truncated)?,
            pools,
            codes: AllCodes::parse(data, HEADER)?,
        })
    }

    /// The calling convention.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// CRC-32 of the type section that ids refer to.
    pub fn types(&self) -> u32 {
        self.types
    }

    /// The lowest address of a function in the file.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The number of functions and pieces of functions.
    pub fn len(&self) -> usize {
        self.pools[Pool::Functions as usize].0 as usize
    }

    /// Whether there are no functions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn reader(&self, bit: u64) -> Reader<'_> {
        Reader {
            bytes: self.bytes.data(),
            codes: &self.codes,
            bit,
        }
    }

    fn word(&self, at: usize) -> Result<u32> {
        self.bytes.u32(at).map_err(|_| Error {
            kind: ErrorKind::Truncated(at as u64 + 4),
            offset: at as u64,
        })
    }

    /// The start of a group of records.
    fn group(&self, pool: Pool, group: usize, words: usize) -> Result<(Reader<'_>, usize)> {
        let (count, offset) = self.pools[pool as usize];
        let groups = (count as usize).div_ceil(GROUP);
        let place = (offset as usize).saturating_add(group * words * 4);
        let bit = self.word(place + (words - 1) * 4)?;
        let bits = (offset as u64 + (groups * words * 4) as u64) * 8;
        Ok((self.reader(bits + u64::from(bit)), place))
    }

    /// A reader at a record, after the records of its group that `skip` has passed.
    fn record<'t>(
        &'t self,
        pool: Pool,
        number: u64,
        skip: impl Fn(&mut Reader<'t>) -> Result<()>,
    ) -> Result<Reader<'t>> {
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

    /// The function that begins at this address of the file, or the last one before it.
    pub fn function(&self, address: u64) -> Result<Option<Function<'_>>> {
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
        let mut found: Option<Function<'_>> = None;
        for index in 0..GROUP.min(self.len() - group * GROUP) {
            if let Some(before) = &found {
                reader = before.end()?;
            }
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
            let signature = Record::maybe(signature, &reader);
            if signature.as_ref().is_some_and(Record::is_here) {
                skip_signature(&mut reader)?;
            }
            let prefix = reader.number(Stream::Prefix)?;
            let calls = reader.number(Stream::Calls)?;
            let (calls, everywhere) = match self.everywhere {
                CHOSEN => (calls >> 1, calls & 1 == 1),
                everywhere => (calls, everywhere == EVERYWHERE),
            };
            found = Some(Function {
                start: self.base.wrapping_add(start),
                prefix: 1u64.unbounded_shl(u32::try_from(prefix).unwrap_or(u32::MAX)) >> 1,
                signature,
                calls,
                everywhere,
                reader,
                table: self,
            });
        }
        Ok(found)
    }

    /// Reads a parameter, or its number.
    fn parameter(&self, reader: &mut Reader<'_>) -> Result<Parameter<'_>> {
        match reader.number(Stream::Parameter)?.checked_sub(1) {
            None => self.read_parameter(reader),
            Some(number) => self.read_parameter(&mut self.record(Pool::Parameters, number, skip_parameter)?),
        }
    }

    fn read_parameter(&self, reader: &mut Reader<'_>) -> Result<Parameter<'_>> {
        let offset = reader.bit / 8;
        let name = reader.number(Stream::Name)?;
        let type_id = reader.number(Stream::Type)?;
        let storage = reader.number(Stream::Storage)?;
        let skip = |reader: &mut Reader<'_>| {
            while reader.number(Stream::Character)? != 0 {}
            Ok(())
        };
        Ok(Parameter {
            name: Name(self.record(Pool::Names, name, skip)?),
            type_id: u32::try_from(type_id).map_err(|_| Error {
                kind: ErrorKind::Value(type_id),
                offset,
            })?,
            storage: match storage.checked_sub(1) {
                Some(number) => self.storage(number)?,
                None => None,
            },
        })
    }

    fn storage(&self, number: u64) -> Result<Option<Storage>> {
        let skip = |reader: &mut Reader<'_>| reader.number(Stream::Code).map(|_| ());
        let mut reader = self.record(Pool::Storages, number, skip)?;
        Ok(storage_of(reader.number(Stream::Code)?))
    }

    /// The values of a list.
    fn values<'t>(&'t self, record: Record<'t>, list: &List) -> Result<Values<'t>> {
        let mut reader = match record {
            Record::Here(reader) => reader,
            Record::Number(number) => self.record(list.pool, number, |reader| list.skip(self, reader))?,
        };
        Ok(Values {
            table: self,
            left: reader.number(list.count)?,
            reader,
            stream: list.value,
        })
    }

    /// Reads a value, or its number.
    fn value(&self, reader: &mut Reader<'_>, stream: Stream, is_inner: bool) -> Result<Value> {
        match reader.number(stream)?.checked_sub(1) {
            None => self.read_value(reader, is_inner),
            Some(number) => {
                let skip = |reader: &mut Reader<'_>| self.read_value(reader, false).map(|_| ());
                self.read_value(&mut self.record(Pool::Values, number, skip)?, is_inner)
            }
        }
    }

    /// Parts and steps have no parts and no steps of their own.
    fn read_value(&self, reader: &mut Reader<'_>, is_inner: bool) -> Result<Value> {
        let at = reader.bit / 8;
        let code = reader.number(Stream::Kind)?;
        let wrong = |value| Error {
            kind: ErrorKind::Value(value),
            offset: at,
        };
        Ok(match code {
            kind::LOST => Value::Lost,
            kind::FRAME => Value::Frame(reader.signed(Stream::Offset)?),
            kind::AT_FRAME => Value::AtFrame(reader.signed(Stream::Offset)?),
            kind::CONSTANT => Value::Constant(reader.signed(Stream::Constant)?),
            kind::ADDRESS => Value::Address(self.address(reader)?),
            kind::AT_ADDRESS => Value::AtAddress(self.address(reader)?),
            kind::PARTS | kind::COMPUTED if is_inner => return Err(wrong(code)),
            kind::PARTS | kind::COMPUTED => {
                let count = reader.number(Stream::Parts)?;
                let count = u8::try_from(count).map_err(|_| wrong(count))?;
                let start = reader.bit;
                for _ in 0..count {
                    element(reader, code, |reader| self.skip_value(reader, Stream::Place, true))?;
                }
                match code {
                    kind::PARTS => Value::Parts(start, count),
                    _ => Value::Computed(start, count),
                }
            }
            _ => {
                let index = code.checked_sub(kind::REGISTERS).ok_or(wrong(code))?;
                let register = u8::try_from(index / 3).map_err(|_| wrong(code))?;
                let offset = reader.signed(Stream::Offset)?;
                match index % 3 {
                    kind::REGISTER => Value::Register(register, offset),
                    kind::AT_REGISTER => Value::AtRegister(register, offset),
                    _ => Value::Entry(register, offset),
                }
            }
        })
    }

    /// Skips a value; one that is elsewhere is not looked up.
    fn skip_value(&self, reader: &mut Reader<'_>, stream: Stream, is_inner: bool) -> Result<()> {
        if reader.number(stream)? == 0 {
            self.read_value(reader, is_inner)?;
        }
        Ok(())
    }

    fn address(&self, reader: &mut Reader<'_>) -> Result<u64> {
        Ok(self.base.wrapping_add_signed(reader.signed(Stream::Address)?))
    }

    /// The parts of a value: the size of each in bytes, and its value, which has no parts itself.
    pub fn parts(&self, start: u64, count: u8) -> impl Iterator<Item = Result<(u64, Value)>> {
        self.elements(kind::PARTS, start, count)
            .map(|element| element.map(|(bytes, value)| (bytes, value.unwrap_or(Value::Lost))))
    }

    /// The steps of a computed value.
    pub fn steps(&self, start: u64, count: u8) -> impl Iterator<Item = Result<Step>> {
        self.elements(kind::COMPUTED, start, count).map(move |element| {
            Ok(match element? {
                (_, Some(value)) => Step::Push(value),
                (number, None) => Step::Do(Operation::of(number).ok_or(Error {
                    kind: ErrorKind::Value(number),
                    offset: start / 8,
                })?),
            })
        })
    }

    /// The elements of a value of this kind, which has several.
    fn elements(&self, kind: u64, start: u64, count: u8) -> impl Iterator<Item = Result<(u64, Option<Value>)>> {
        let mut reader = self.reader(start);
        (0..count).map(move |_| element(&mut reader, kind, |reader| self.value(reader, Stream::Place, true)))
    }
}

/// Reads an element of a value of this kind, which has several: a number, and the result of `value`
/// for the value after it. Every part has a value, and every step with the number 0.
fn element<'t, T>(
    reader: &mut Reader<'t>,
    kind: u64,
    value: impl FnOnce(&mut Reader<'t>) -> Result<T>,
) -> Result<(u64, Option<T>)> {
    let number = reader.number(Stream::Parts)?;
    let has_value = kind == kind::PARTS || number == 0;
    Ok((number, has_value.then(|| value(reader)).transpose()?))
}

fn skip_parameter(reader: &mut Reader<'_>) -> Result<()> {
    for stream in [Stream::Name, Stream::Type, Stream::Storage] {
        reader.number(stream)?;
    }
    Ok(())
}

fn skip_signature(reader: &mut Reader<'_>) -> Result<()> {
    reader.number(Stream::Flags)?;
    for _ in 0..reader.number(Stream::Parameters)? {
        if reader.number(Stream::Parameter)? == 0 {
            skip_parameter(reader)?;
        }
    }
    Ok(())
}

/// The format of a list of values.
struct List {
    pool: Pool,
    count: Stream,
    value: Stream,
}

const PLACES: List = List {
    pool: Pool::Places,
    count: Stream::Known,
    value: Stream::Place,
};

const ENTRIES: List = List {
    pool: Pool::Entries,
    count: Stream::Passed,
    value: Stream::Entry,
};

impl List {
    fn skip(&self, table: &Table<'_>, reader: &mut Reader<'_>) -> Result<()> {
        for _ in 0..reader.number(self.count)? {
            table.skip_value(reader, self.value, false)?;
        }
        Ok(())
    }

    /// Reads past the next list; `None` if there is none.
    fn next<'t>(&self, table: &Table<'_>, reader: &mut Reader<'t>, stream: Stream) -> Result<Option<Record<'t>>> {
        let number = reader.number(stream)?;
        let record = Record::maybe(number, reader);
        if record.as_ref().is_some_and(Record::is_here) {
            self.skip(table, reader)?;
        }
        Ok(record)
    }
}

/// A call of a function.
struct Call<'t> {
    return_address: u64,
    places: Option<Record<'t>>,
    entries: Option<Record<'t>>,
}

/// The calls of a function, in order.
struct Calls<'t> {
    table: &'t Table<'t>,
    reader: Reader<'t>,
    is_first: bool,
    left: u64,
    /// The return address of the last call read.
    address: u64,
}

impl<'t> Calls<'t> {
    fn next(&mut self) -> Result<Option<Call<'t>>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        let reader = &mut self.reader;
        let gap = reader.number(Stream::Call)? << self.table.shift;
        self.address = self.address.saturating_add(gap);
        let places = PLACES.next(self.table, reader, places_stream(self.is_first))?;
        let entries = ENTRIES.next(self.table, reader, entries_stream(places.is_some()))?;
        (self.left, self.is_first) = (left, false);
        Ok(Some(Call {
            return_address: self.address,
            places,
            entries,
        }))
    }
}

impl<'t> Function<'t> {
    fn calls(&self) -> Calls<'t> {
        Calls {
            table: self.table,
            reader: self.reader,
            is_first: true,
            left: self.calls,
            address: self.start,
        }
    }

    /// A reader after the calls.
    fn end(&self) -> Result<Reader<'t>> {
        let mut calls = self.calls();
        while calls.next()?.is_some() {}
        Ok(calls.reader)
    }

    /// Its parameters; `None` if it only represents code of which nothing is known.
    pub fn signature(&self) -> Result<Option<Signature<'t>>> {
        let mut reader = match self.signature {
            None => return Ok(None),
            Some(Record::Here(reader)) => reader,
            Some(Record::Number(number)) => self.table.record(Pool::Signatures, number, skip_signature)?,
        };
        let flags = reader.number(Stream::Flags)?;
        let has = |bit: u64| flags & bit != 0;
        Ok(Some(Signature {
            trusted: has(flag::TRUSTED),
            result_address: has(flag::RESULT_ADDRESS),
            variadic: has(flag::VARIADIC),
            dict: (flags >> flag::BITS)
                .checked_sub(1)
                .and_then(|dict| u32::try_from(dict).ok()),
            parameters: Parameters {
                table: self.table,
                left: reader.number(Stream::Parameters)?,
                reader,
            },
        }))
    }

    /// Calls `each` for every call or jump that is known to pass something, with the address after
    /// it and the values it passes.
    pub fn each_passing(&self, mut each: impl FnMut(u64, Values<'t>)) -> Result<()> {
        let mut calls = self.calls();
        while let Some(call) = calls.next()? {
            if let Some(passed) = call.entries {
                each(call.return_address, self.table.values(passed, &ENTRIES)?);
            }
        }
        Ok(())
    }

    /// Where the function's own arguments are before the instruction at this address of the file;
    /// `None` if the table gives places only at calls.
    pub fn places_at(&self, address: u64) -> Result<Option<Values<'t>>> {
        if !self.everywhere {
            return Ok(None);
        }
        Ok(self.call_site(address.saturating_add(1 << self.table.shift))?.places)
    }

    /// What is known about the call that returns to this address of the file.
    pub fn call_site(&self, return_address: u64) -> Result<CallSite<'t>> {
        let (mut places, mut entries) = (None, None);
        let mut calls = self.calls();
        while let Some(call) = calls.next()? {
            if call.return_address > return_address {
                break;
            }
            places = call.places.or(places);
            entries = call.entries.filter(|_| call.return_address == return_address);
        }
        let values =
            |record: Option<Record<'t>>, list| record.map(|record| self.table.values(record, list)).transpose();
        Ok(CallSite {
            places: values(places, &PLACES)?,
            entries: values(entries, &ENTRIES)?,
        })
    }
}
