//! Writing tables.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

use backtrail_wire::Endian;

use super::bits::{LONGEST_CODE, STREAMS, SYMBOLS, Stream, entries_stream, places_stream, symbol};
use super::{
    AT_CALLS, CHOSEN, EVERYWHERE, GROUP, HEADER, MAGIC, POOLS, Pool, Step, VERSION, Value, flag, kind, storage_code,
};
use crate::abi::{Abi, Storage};

/// Where a value is; see [`Value`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In one piece; neither [`Value::Parts`] nor [`Value::Computed`].
    One(Value),
    /// In several parts: the size of each in bytes, and its value.
    Parts(Vec<(u8, Value)>),
    /// Computed from other values.
    Computed(Vec<Step>),
}

impl Location {
    /// Nowhere.
    pub const LOST: Location = Location::One(Value::Lost);

    /// Its single values.
    pub fn values(&self) -> Vec<Value> {
        match self {
            Location::One(value) => vec![*value],
            Location::Parts(parts) => parts.iter().map(|&(_, value)| value).collect(),
            Location::Computed(steps) => {
                let pushed = steps.iter().filter_map(|step| match step {
                    Step::Push(value) => Some(*value),
                    Step::Do(_) => None,
                });
                pushed.collect()
            }
        }
    }
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parameter {
    /// Its name.
    pub name: Vec<u8>,
    /// The id of its type; 0 if it has none.
    pub type_id: u32,
    /// How it is passed, if known.
    pub storage: Option<Storage>,
}

/// The parameters of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Whether the function's arguments may be taken from its caller's call.
    pub trusted: bool,
    /// Whether the first general register contains the address for the result.
    pub result_address: bool,
    /// Whether the function is variadic.
    pub variadic: bool,
    /// The number of the dict with the types, if it is not the parent.
    pub dict: Option<u32>,
    /// The parameters.
    pub parameters: Vec<Parameter>,
}

/// The kind of a described place in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// A call.
    Call,
    /// A jump in place of a call, after which the function's frame is gone.
    Jump,
    /// A place between calls, at which the places of own arguments change.
    Between,
}

/// A call, or another place in code that a table describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The return address; for a jump, the address after it; for a place between calls, the address
    /// after the first instruction (on x86-64, after its first byte) that it describes.
    pub return_address: u64,
    /// The kind of place.
    pub site: Site,
    /// Where the function's own arguments are meanwhile; empty for a jump.
    pub places: Vec<Location>,
    /// The values it passes in general registers, in order; then the callee's address if the
    /// instruction does not give it, or for a jump [`BEYOND`](super::BEYOND); then each parameter
    /// that is in no register.
    pub entries: Vec<Location>,
}

/// A function, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its first address in the file.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// Its parameters.
    pub signature: Signature,
    /// For this many bytes from its start, arguments are where they were passed.
    pub prefix: u64,
    /// Its calls, by ascending address.
    pub calls: Vec<Call>,
    /// Whether the places of its arguments are described everywhere ([`Places::Chosen`]).
    pub everywhere: bool,
}

/// Records of one kind.
struct Ranked<T> {
    /// Each record once, in order of first use.
    distinct: Vec<T>,
    /// Records with a number, which is their index here; the most used ones come first.
    order: Vec<T>,
    ranks: HashMap<T, u64>,
}

impl<T: Clone + Eq + Hash> Ranked<T> {
    /// Records that are used at least `least` times get a number.
    fn new<'t>(all: impl Iterator<Item = &'t T>, least: u64) -> Ranked<T>
    where
        T: 't,
    {
        let mut counts: HashMap<&T, u64> = HashMap::new();
        let mut distinct = Vec::new();
        for one in all {
            let count = counts.entry(one).or_insert(0);
            if *count == 0 {
                distinct.push(one);
            }
            *count += 1;
        }
        let mut order: Vec<&T> = distinct.iter().copied().filter(|one| counts[one] >= least).collect();
        order.sort_by_key(|one| Reverse(counts[one]));
        Ranked {
            ranks: order.iter().copied().cloned().zip(0..).collect(),
            order: order.into_iter().cloned().collect(),
            distinct: distinct.into_iter().cloned().collect(),
        }
    }

    fn rank(&self, one: &T) -> Option<u64> {
        self.ranks.get(one).copied()
    }
}

/// How often a record must be used to get a number. Most are used once, and written in place.
const SHARED: u64 = 2;

/// A record: its numbers, each with its stream.
type Record = Vec<(Stream, u64)>;

/// The records of each kind.
struct Sorts {
    base: u64,
    signatures: Ranked<Signature>,
    parameters: Ranked<Parameter>,
    names: Ranked<Vec<u8>>,
    storages: Ranked<u64>,
    places: Ranked<Vec<Location>>,
    entries: Ranked<Vec<Location>>,
    values: Ranked<Location>,
}

impl Sorts {
    fn of(functions: &[Function], changes: &[Vec<usize>], base: u64) -> Sorts {
        let signatures = Ranked::new(functions.iter().map(|function| &function.signature), SHARED);
        let parameters = signatures.distinct.iter().flat_map(|one| &one.parameters);
        let parameters = Ranked::new(parameters, SHARED);
        let codes = parameters
            .distinct
            .iter()
            .filter_map(|one| storage(one.storage.as_ref()));
        let codes: Vec<u64> = codes.collect();
        let changing = functions.iter().zip(changes);
        let places = changing.flat_map(|(function, at)| at.iter().map(|&at| &function.calls[at].places));
        let places = Ranked::new(places, SHARED);
        let calls = functions.iter().flat_map(|function| &function.calls);
        let passed = calls.map(|call| &call.entries).filter(|entries| !entries.is_empty());
        let entries = Ranked::new(passed, SHARED);
        let lists = || places.distinct.iter().chain(&entries.distinct).flatten();
        let all = Ranked::new(lists(), SHARED);
        let of_several = all
            .distinct
            .iter()
            .filter(|location| !matches!(location, Location::One(_)));
        let parts: Vec<Location> = of_several.flat_map(Location::values).map(Location::One).collect();
        Sorts {
            base,
            names: Ranked::new(parameters.distinct.iter().map(|one| &one.name), 1),
            storages: Ranked::new(codes.iter(), 1),
            values: Ranked::new(lists().chain(&parts), SHARED),
            signatures,
            parameters,
            places,
            entries,
        }
    }

    /// The records of each pool except the functions'.
    fn pools(&self) -> [Vec<Record>; POOLS] {
        let mut pools: [Vec<Record>; POOLS] = Default::default();
        let parameters = self.parameters.order.iter().map(|one| self.parameter(one));
        pools[Pool::Parameters as usize] = parameters.collect();
        pools[Pool::Signatures as usize] = self.signatures.order.iter().map(|one| self.signature(one)).collect();
        pools[Pool::Values as usize] = self.values.order.iter().map(|one| self.value(one)).collect();
        pools[Pool::Places as usize] = self.places.order.iter().map(|one| self.list(one, &PLACES)).collect();
        pools[Pool::Entries as usize] = self.entries.order.iter().map(|one| self.list(one, &ENTRIES)).collect();
        let storages = self.storages.order.iter().map(|&code| vec![(Stream::Code, code)]);
        pools[Pool::Storages as usize] = storages.collect();
        pools[Pool::Names as usize] = self.names.order.iter().map(|one| name(one)).collect();
        pools
    }

    fn parameter(&self, one: &Parameter) -> Record {
        let storage = storage(one.storage.as_ref()).and_then(|code| self.storages.rank(&code));
        vec![
            (Stream::Name, self.names.rank(&one.name).unwrap_or(0)),
            (Stream::Type, one.type_id.into()),
            (Stream::Storage, storage.map_or(0, |number| number + 1)),
        ]
    }

    fn signature(&self, one: &Signature) -> Record {
        let set = |condition, bit| if condition { bit } else { 0 };
        let flags = set(one.trusted, flag::TRUSTED)
            | set(one.result_address, flag::RESULT_ADDRESS)
            | set(one.variadic, flag::VARIADIC);
        let dict = one.dict.map_or(0, |dict| u64::from(dict) + 1);
        let mut record = vec![
            (Stream::Flags, flags | dict << flag::BITS),
            (Stream::Parameters, one.parameters.len() as u64),
        ];
        for one in &one.parameters {
            let number = self.parameters.rank(one);
            refer(&mut record, Stream::Parameter, 0, number, || self.parameter(one));
        }
        record
    }

    fn value(&self, one: &Location) -> Record {
        let parts = match one {
            Location::One(value) => return single(value, self.base),
            Location::Parts(parts) => parts,
            Location::Computed(steps) => return self.computed(steps),
        };
        let mut record = vec![(Stream::Kind, kind::PARTS), (Stream::Parts, parts.len() as u64)];
        for &(bytes, value) in parts {
            record.push((Stream::Parts, bytes.into()));
            self.refer_to_value(&mut record, Stream::Place, &Location::One(value));
        }
        record
    }

    fn computed(&self, steps: &[Step]) -> Record {
        let mut record = vec![(Stream::Kind, kind::COMPUTED), (Stream::Parts, steps.len() as u64)];
        for step in steps {
            match *step {
                Step::Do(operation) => record.push((Stream::Parts, operation.number())),
                Step::Push(value) => {
                    record.push((Stream::Parts, 0));
                    self.refer_to_value(&mut record, Stream::Place, &Location::One(value));
                }
            }
        }
        record
    }

    fn refer_to_value(&self, record: &mut Record, stream: Stream, one: &Location) {
        refer(record, stream, 0, self.values.rank(one), || self.value(one));
    }

    fn list(&self, all: &[Location], list: &List) -> Record {
        let mut record = vec![(list.count, all.len() as u64)];
        for one in all {
            self.refer_to_value(&mut record, list.value, one);
        }
        record
    }
}

/// The format of a list of values.
struct List {
    count: Stream,
    value: Stream,
}

const PLACES: List = List {
    count: Stream::Known,
    value: Stream::Place,
};

const ENTRIES: List = List {
    count: Stream::Passed,
    value: Stream::Entry,
};

/// Writes a record's number, counted after `here`, or `here` and the record itself.
fn refer(out: &mut Record, stream: Stream, here: u64, number: Option<u64>, record: impl FnOnce() -> Record) {
    match number {
        Some(number) => out.push((stream, here + 1 + number)),
        None => {
            out.push((stream, here));
            out.extend(record());
        }
    }
}

/// The code of a storage; `None` if it is unknown or has no code.
fn storage(storage: Option<&Storage>) -> Option<u64> {
    Some(storage_code(storage)).filter(|&code| code != 0)
}

/// A name, without bytes that cannot be in text.
fn name(name: &[u8]) -> Record {
    let bytes = name.iter().copied().filter(|byte| !matches!(byte, 0 | 0xff));
    bytes.chain([0]).map(|byte| (Stream::Character, byte.into())).collect()
}

/// Where a table gives the places of own arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Places {
    /// At calls.
    #[default]
    AtCalls,
    /// Everywhere in the functions that say so, elsewhere at calls.
    Chosen,
    /// Everywhere.
    Everywhere,
}

/// Writes the table of these functions, which must be sorted by address and not overlap. `types` is
/// the CRC-32 of the type section.
pub fn table(functions: &[Function], abi: Abi, types: u32, endian: Endian, places: Places) -> Vec<u8> {
    let shift = abi.shift();
    let base = functions.first().map_or(0, |function| function.start);
    let changes: Vec<Vec<usize>> = functions.iter().map(changes).collect();
    let sorts = Sorts::of(functions, &changes, base);
    let mut pools = sorts.pools();
    pools[Pool::Functions as usize] = function_records(functions, &changes, shift, &sorts, places);
    let starts = starts(functions);
    let codes = Codes::new(pools.iter().flatten().flatten());
    let mut out = vec![0; HEADER];
    codes.write(&mut out);
    let word = |value: u32| match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    };
    let mut heads = Vec::new();
    for (index, records) in pools.iter().enumerate() {
        while !out.len().is_multiple_of(4) {
            out.push(0);
        }
        heads.push((records.len() as u32, out.len() as u32));
        let mut bits = Bits::default();
        for (number, record) in records.iter().enumerate() {
            if number % GROUP == 0 {
                if index == Pool::Functions as usize {
                    out.extend(word((starts[number] - base) as u32));
                }
                out.extend(word(bits.len as u32));
            }
            record
                .iter()
                .for_each(|&(stream, number)| codes.put(&mut bits, stream, number));
        }
        out.extend(bits.bytes);
    }
    let mut header = Vec::with_capacity(HEADER);
    header.extend(match endian {
        Endian::Little => MAGIC.to_le_bytes(),
        Endian::Big => MAGIC.to_be_bytes(),
    });
    let convention = match abi {
        Abi::SysvX86_64 => 1,
        Abi::Aapcs64 => 2,
    };
    let everywhere = match places {
        Places::AtCalls => AT_CALLS,
        Places::Everywhere => EVERYWHERE,
        Places::Chosen => CHOSEN,
    };
    header.extend([VERSION, convention, shift as u8, everywhere, 0, 0]);
    header.extend(word(types));
    header.extend(word(0));
    header.extend(match endian {
        Endian::Little => base.to_le_bytes(),
        Endian::Big => base.to_be_bytes(),
    });
    for (count, offset) in heads {
        header.extend(word(count).into_iter().chain(word(offset)));
    }
    out[..HEADER].copy_from_slice(&header);
    out
}

/// The calls before which the places of own arguments change.
fn changes(function: &Function) -> Vec<usize> {
    let mut before: &[Location] = &[];
    let mut changes = Vec::new();
    for (at, call) in function.calls.iter().enumerate() {
        if call.site != Site::Jump && call.places != before {
            changes.push(at);
            before = &call.places;
        }
    }
    changes
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn single(value: &Value, base: u64) -> Record {
    let of_register = |register: u8, how| kind::REGISTERS + u64::from(register) * 3 + how;
    let from_base = |address: u64| address.wrapping_sub(base) as i64;
    let (code, stream, offset) = match *value {
        Value::Lost | Value::Parts(..) | Value::Computed(..) => return vec![(Stream::Kind, kind::LOST)],
        Value::Frame(offset) => (kind::FRAME, Stream::Offset, offset),
        Value::AtFrame(offset) => (kind::AT_FRAME, Stream::Offset, offset),
        Value::Constant(number) => (kind::CONSTANT, Stream::Constant, number),
        Value::Address(address) => (kind::ADDRESS, Stream::Address, from_base(address)),
        Value::AtAddress(address) => (kind::AT_ADDRESS, Stream::Address, from_base(address)),
        Value::Register(register, offset) => (of_register(register, kind::REGISTER), Stream::Offset, offset),
        Value::AtRegister(register, offset) => (of_register(register, kind::AT_REGISTER), Stream::Offset, offset),
        Value::Entry(register, offset) => (of_register(register, kind::ENTRY), Stream::Offset, offset),
    };
    vec![(Stream::Kind, code), (stream, zigzag(offset))]
}

/// Whether the code after this function belongs to no function of the table.
fn has_gap(function: &Function, next: Option<&Function>) -> bool {
    next.is_none_or(|next| function.end.next_multiple_of(16) != next.start && function.end != next.start)
}

/// Where records of functions begin: functions, and the gaps between them.
fn starts(functions: &[Function]) -> Vec<u64> {
    let mut starts = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        starts.push(function.start);
        if has_gap(function, functions.get(index + 1)) {
            starts.push(function.end);
        }
    }
    starts
}

fn function_records(
    functions: &[Function],
    changes: &[Vec<usize>],
    shift: u32,
    sorts: &Sorts,
    places: Places,
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut before = functions.first().map_or(0, |function| function.start);
    let mut gap = |start: u64| {
        let gap = start - before;
        before = start;
        let coded = if gap.is_multiple_of(16) {
            gap >> 4 << 1
        } else {
            gap << 1 | 1
        };
        (Stream::Start, coded)
    };
    for (index, (function, changes)) in functions.iter().zip(changes).enumerate() {
        let (count, calls) = calls(function, changes, shift, sorts);
        let mut record = vec![gap(function.start)];
        let signature = &function.signature;
        let number = sorts.signatures.rank(signature);
        refer(&mut record, Stream::Signature, 1, number, || sorts.signature(signature));
        record.push((Stream::Prefix, length(function.prefix).into()));
        record.push((
            Stream::Calls,
            match places {
                Places::Chosen => count << 1 | u64::from(function.everywhere),
                _ => count,
            },
        ));
        record.extend(calls);
        records.push(record);
        if has_gap(function, functions.get(index + 1)) {
            let nothing = [Stream::Signature, Stream::Prefix, Stream::Calls].map(|stream| (stream, 0));
            records.push([&[gap(function.end)][..], &nothing].concat());
        }
    }
    records
}

/// The calls with something new to describe, and their number.
fn calls(function: &Function, changes: &[usize], shift: u32, sorts: &Sorts) -> (u64, Record) {
    let (mut count, mut record) = (0, Record::new());
    let mut before = function.start;
    for (at, call) in function.calls.iter().enumerate() {
        let changed = changes.binary_search(&at).is_ok();
        if !changed && call.entries.is_empty() {
            continue;
        }
        let stream = places_stream(count == 0);
        count += 1;
        record.push((Stream::Call, (call.return_address - before) >> shift));
        before = call.return_address;
        let places = &call.places;
        match changed {
            true => refer(&mut record, stream, 1, sorts.places.rank(places), || {
                sorts.list(places, &PLACES)
            }),
            false => record.push((stream, 0)),
        }
        let entries = &call.entries;
        let stream = entries_stream(changed);
        match entries.is_empty() {
            true => record.push((stream, 0)),
            false => refer(&mut record, stream, 1, sorts.entries.rank(entries), || {
                sorts.list(entries, &ENTRIES)
            }),
        }
    }
    (count, record)
}

/// A bit stream, the most significant bit of each byte first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    len: u64,
}

impl Bits {
    fn put(&mut self, value: u64, width: u32) {
        for bit in (0..width).rev() {
            if self.len.is_multiple_of(8) {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((value >> bit & 1) as u8) << (7 - self.len % 8);
            }
            self.len += 1;
        }
    }
}

/// The codes of each stream, derived from how often each symbol occurs in it.
struct Codes {
    /// The length of each symbol's code, and the code.
    codes: Vec<[(u8, u64); SYMBOLS]>,
}

impl Codes {
    fn new<'r>(numbers: impl Iterator<Item = &'r (Stream, u64)>) -> Codes {
        let mut counts = vec![[0u64; SYMBOLS]; STREAMS];
        for &(stream, number) in numbers {
            counts[stream as usize][symbol(stream, number).0] += 1;
        }
        Codes {
            codes: counts.iter().map(|counts| canonical(&code_lengths(counts))).collect(),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        for codes in &self.codes {
            let used = codes.iter().rposition(|&(len, _)| len > 0).map_or(0, |last| last + 1);
            out.push(used as u8);
            let lengths = codes[..used].chunks(2);
            out.extend(lengths.map(|both| both[0].0 << 4 | both.get(1).map_or(0, |other| other.0)));
        }
    }

    fn put(&self, bits: &mut Bits, stream: Stream, number: u64) {
        let (symbol, below) = symbol(stream, number);
        let (len, code) = self.codes[stream as usize][symbol];
        bits.put(code, len.into());
        bits.put(number, below);
    }
}

/// Shorter codes first; codes of the same length in the order of their symbols.
fn canonical(lengths: &[u8; SYMBOLS]) -> [(u8, u64); SYMBOLS] {
    let mut codes = [(0, 0); SYMBOLS];
    let mut next = 0;
    for len in 1..=LONGEST_CODE as u8 {
        next <<= 1;
        for (_, code) in codes
            .iter_mut()
            .enumerate()
            .filter(|&(symbol, _)| lengths[symbol] == len)
        {
            *code = (len, next);
            next += 1;
        }
    }
    codes
}

fn length(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// Huffman code lengths, limited to the readers' maximum.
fn code_lengths(counts: &[u64; SYMBOLS]) -> [u8; SYMBOLS] {
    let mut lengths = [0; SYMBOLS];
    // Counts are halved until the longest code is short enough.
    for halved in 0.. {
        let used = counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        let leaves = used.map(|(symbol, &count)| Reverse(((count >> halved).max(1), vec![symbol])));
        let mut trees: BinaryHeap<_> = leaves.collect();
        lengths = [0; SYMBOLS];
        if let (1, Some(Reverse((_, only)))) = (trees.len(), trees.peek()) {
            lengths[only[0]] = 1;
        }
        while let (Some(Reverse(one)), Some(Reverse(other))) = (trees.pop(), trees.pop()) {
            let both = [one.1, other.1].concat();
            both.iter().for_each(|&symbol| lengths[symbol] += 1);
            trees.push(Reverse((one.0 + other.0, both)));
            if trees.len() == 1 {
                break;
            }
        }
        if lengths.iter().all(|&len| usize::from(len) <= LONGEST_CODE) {
            break;
        }
    }
    lengths
}
