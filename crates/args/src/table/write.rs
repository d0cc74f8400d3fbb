//! Writing.

use std::collections::HashMap;
use std::hash::Hash;

use backtrail_wire::Endian;

use super::bits::{LENGTHS, LONGEST_CODE, STREAMS, Stream};
use super::{GROUP, HEADER, MAGIC, POOLS, Pool, VERSION, Value, flag, kind, storage_code};
use crate::abi::{Abi, Storage};

/// Where a value is; see [`Value`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// In one piece. [`Value::Parts`] is none of these.
    One(Value),
    /// In several: the bytes of each.
    Parts(Vec<(u8, Value)>),
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parameter {
    /// Its name.
    pub name: Vec<u8>,
    /// The id of its type; 0 where it has none.
    pub type_id: u32,
    /// How it is passed, where that is known.
    pub storage: Option<Storage>,
}

/// The parameters of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Whether what a function was called with may be asked of its caller.
    pub trusted: bool,
    /// Whether the first general register has the address for the result.
    pub result_address: bool,
    /// Whether more arguments may follow.
    pub variadic: bool,
    /// The number of the dict with the types, where it is not the parent.
    pub dict: Option<u32>,
    /// The parameters.
    pub parameters: Vec<Parameter>,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Where it returns to.
    pub return_address: u64,
    /// Where the function's own arguments are meanwhile.
    pub places: Vec<Told>,
    /// What it passes in general registers, in their order.
    pub entries: Vec<Told>,
}

/// A function, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its first address in the file, and the one behind its last.
    pub start: u64,
    /// The one behind its last.
    pub end: u64,
    /// Its parameters.
    pub signature: Signature,
    /// For so many bytes from its start arguments are where they were passed.
    pub prefix: u64,
    /// Its calls, by rising address.
    pub calls: Vec<Call>,
}

/// Records of one sort, each once; those that are used most come first.
struct Ranked<T> {
    order: Vec<T>,
    ranks: HashMap<T, u64>,
}

impl<T: Clone + Eq + Hash> Ranked<T> {
    fn new<'t>(all: impl Iterator<Item = &'t T>) -> Ranked<T>
    where
        T: 't,
    {
        let mut counts: HashMap<&T, (u64, usize)> = HashMap::new();
        for (at, one) in all.enumerate() {
            counts.entry(one).or_insert((0, at)).0 += 1;
        }
        let mut sorted: Vec<(&T, (u64, usize))> = counts.into_iter().collect();
        sorted.sort_by_key(|&(_, (count, first))| (std::cmp::Reverse(count), first));
        let order: Vec<T> = sorted.into_iter().map(|(one, _)| one.clone()).collect();
        let ranks = order.iter().cloned().zip(0..).collect();
        Ranked { order, ranks }
    }

    fn rank(&self, one: &T) -> u64 {
        self.ranks.get(one).copied().unwrap_or(0)
    }
}

/// A record: its numbers, each with its stream.
type Record = Vec<(Stream, u64)>;

/// Writes the table of these functions, sorted by address and apart from each other. `types` is the CRC-32 of the section of types.
pub fn table(functions: &[Function], abi: Abi, types: u32, endian: Endian) -> Vec<u8> {
    let shift = if abi == Abi::Aapcs64 { 2 } else { 0 };
    let base = functions.first().map_or(0, |function| function.start);
    let signatures = Ranked::new(functions.iter().map(|function| &function.signature));
    let parameters = Ranked::new(functions.iter().flat_map(|function| &function.signature.parameters));
    let calls = || functions.iter().flat_map(|function| &function.calls);
    let changes: Vec<Vec<usize>> = functions.iter().map(changes).collect();
    let changing = functions.iter().zip(&changes);
    let places = Ranked::new(changing.flat_map(|(function, at)| at.iter().map(|&at| &function.calls[at].places)));
    let entries = Ranked::new(calls().map(|call| &call.entries).filter(|entries| !entries.is_empty()));
    let lists = || places.order.iter().chain(&entries.order).flatten();
    let parts: Vec<Told> = lists()
        .filter_map(parts)
        .flatten()
        .map(|&(_, value)| Told::One(value))
        .collect();
    let values = Ranked::new(lists().chain(&parts));
    let codes = |one: &Parameter| Some(storage_code(one.storage.as_ref())).filter(|&code| code != 0);
    let all_codes: Vec<u64> = parameters.order.iter().filter_map(codes).collect();
    let storages = Ranked::new(all_codes.iter());
    let (strings, names) = strings(&parameters.order);
    let pools: [Vec<Record>; POOLS] = [
        parameters
            .order
            .iter()
            .map(|one| parameter(one, &names, &storages))
            .collect(),
        signatures.order.iter().map(|one| signature(one, &parameters)).collect(),
        values.order.iter().map(|one| value(one, &values, base)).collect(),
        places
            .order
            .iter()
            .map(|one| list(one, Stream::Place, &values))
            .collect(),
        entries
            .order
            .iter()
            .map(|one| list(one, Stream::Entry, &values))
            .collect(),
        storages.order.iter().map(|&code| vec![(Stream::Code, code)]).collect(),
        function_records(functions, &changes, shift, &signatures, &places, &entries),
    ];
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
    let at = out.len() as u32;
    out.extend(&strings);
    let mut header = Vec::with_capacity(HEADER);
    header.extend(match endian {
        Endian::Little => MAGIC.to_le_bytes(),
        Endian::Big => MAGIC.to_be_bytes(),
    });
    let convention = match abi {
        Abi::SysvX86_64 => 1,
        Abi::Aapcs64 => 2,
    };
    header.extend([VERSION, convention, shift as u8, 0, 0, 0]);
    header.extend(word(types));
    header.extend(word(0));
    header.extend(match endian {
        Endian::Little => base.to_le_bytes(),
        Endian::Big => base.to_be_bytes(),
    });
    header.extend(word(at).into_iter().chain(word(strings.len() as u32)));
    for (count, offset) in heads {
        header.extend(word(count).into_iter().chain(word(offset)));
    }
    out[..HEADER].copy_from_slice(&header);
    out
}

/// The calls before which own arguments are elsewhere than before.
fn changes(function: &Function) -> Vec<usize> {
    let mut before: &[Told] = &[];
    let mut changes = Vec::new();
    for (at, call) in function.calls.iter().enumerate() {
        if call.places != before {
            changes.push(at);
            before = &call.places;
        }
    }
    changes
}

fn parts(told: &Told) -> Option<&Vec<(u8, Value)>> {
    match told {
        Told::Parts(parts) => Some(parts),
        Told::One(_) => None,
    }
}

/// Names, each once, and where each is. One that another ends with is a part of it.
fn strings(parameters: &[Parameter]) -> (Vec<u8>, HashMap<Vec<u8>, u64>) {
    let mut names: Vec<Vec<u8>> = parameters.iter().map(|one| one.name.clone()).collect();
    names.sort_by(|one, other| other.iter().rev().cmp(one.iter().rev()));
    names.dedup();
    let (mut bytes, mut places) = (Vec::new(), HashMap::new());
    let mut before: Option<(Vec<u8>, u64)> = None;
    for name in names {
        let place = match &before {
            Some((longer, at)) if longer.ends_with(&name) => at + (longer.len() - name.len()) as u64,
            _ => {
                let at = bytes.len() as u64;
                bytes.extend(name.iter().copied().filter(|&byte| byte != 0).chain([0]));
                before = Some((name.clone(), at));
                at
            }
        };
        places.insert(name, place);
    }
    (bytes, places)
}

fn parameter(one: &Parameter, names: &HashMap<Vec<u8>, u64>, storages: &Ranked<u64>) -> Record {
    let storage = match storage_code(one.storage.as_ref()) {
        0 => 0,
        code => storages.rank(&code) + 1,
    };
    vec![
        (Stream::Name, names.get(&one.name).copied().unwrap_or(0)),
        (Stream::Type, one.type_id.into()),
        (Stream::Storage, storage),
    ]
}

fn signature(one: &Signature, parameters: &Ranked<Parameter>) -> Record {
    let set = |condition, bit| if condition { bit } else { 0 };
    let flags = set(one.trusted, flag::TRUSTED)
        | set(one.result_address, flag::RESULT_ADDRESS)
        | set(one.variadic, flag::VARIADIC);
    let dict = one.dict.map_or(0, |dict| u64::from(dict) + 1);
    let mut record = vec![
        (Stream::Flags, flags | dict << flag::BITS),
        (Stream::Count, one.parameters.len() as u64),
    ];
    record.extend(
        one.parameters
            .iter()
            .map(|one| (Stream::Parameter, parameters.rank(one))),
    );
    record
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn value(one: &Told, values: &Ranked<Told>, base: u64) -> Record {
    let parts = match one {
        Told::One(value) => return single(value, base),
        Told::Parts(parts) => parts,
    };
    let mut record = vec![(Stream::Kind, kind::PARTS), (Stream::Count, parts.len() as u64)];
    for &(bytes, value) in parts {
        record.push((Stream::Count, bytes.into()));
        record.push((Stream::Place, values.rank(&Told::One(value))));
    }
    record
}

fn single(value: &Value, base: u64) -> Record {
    let of_register = |register: u8, how| kind::REGISTERS + u64::from(register) * 3 + how;
    let (code, offset) = match *value {
        Value::Lost | Value::Parts(..) => return vec![(Stream::Kind, kind::LOST)],
        Value::Frame(offset) => (kind::FRAME, offset),
        Value::AtFrame(offset) => (kind::AT_FRAME, offset),
        Value::Constant(number) => (kind::CONSTANT, number),
        Value::Address(address) => (kind::ADDRESS, address.wrapping_sub(base) as i64),
        Value::AtAddress(address) => (kind::AT_ADDRESS, address.wrapping_sub(base) as i64),
        Value::Register(register, offset) => (of_register(register, kind::REGISTER), offset),
        Value::AtRegister(register, offset) => (of_register(register, kind::AT_REGISTER), offset),
        Value::Entry(register, offset) => (of_register(register, kind::ENTRY), offset),
    };
    vec![(Stream::Kind, code), (Stream::Offset, zigzag(offset))]
}

fn list(all: &[Told], stream: Stream, values: &Ranked<Told>) -> Record {
    let mut record = vec![(Stream::Count, all.len() as u64)];
    record.extend(all.iter().map(|one| (stream, values.rank(one))));
    record
}

/// Whether code behind this function belongs to none that the table has.
fn has_gap(function: &Function, next: Option<&Function>) -> bool {
    next.is_none_or(|next| function.end.next_multiple_of(16) != next.start && function.end != next.start)
}

/// Where records of functions begin: functions, and what lies between them.
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
    signatures: &Ranked<Signature>,
    places: &Ranked<Vec<Told>>,
    entries: &Ranked<Vec<Told>>,
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
        let calls = calls(function, changes, shift, places, entries);
        let mut record = vec![
            gap(function.start),
            (Stream::Signature, signatures.rank(&function.signature) + 1),
            (Stream::Prefix, length(function.prefix).into()),
            (Stream::Calls, calls.len() as u64 / 3),
        ];
        record.extend(calls);
        records.push(record);
        if has_gap(function, functions.get(index + 1)) {
            let nothing = [Stream::Signature, Stream::Prefix, Stream::Calls].map(|stream| (stream, 0));
            records.push([&[gap(function.end)][..], &nothing].concat());
        }
    }
    records
}

/// The calls at which something is told that was not before.
fn calls(
    function: &Function,
    changes: &[usize],
    shift: u32,
    places: &Ranked<Vec<Told>>,
    entries: &Ranked<Vec<Told>>,
) -> Record {
    let mut record = Vec::new();
    let mut before = function.start;
    for (at, call) in function.calls.iter().enumerate() {
        let changed = changes.binary_search(&at).is_ok();
        if !changed && call.entries.is_empty() {
            continue;
        }
        let entry = if call.entries.is_empty() {
            0
        } else {
            entries.rank(&call.entries) + 1
        };
        record.push((Stream::Call, (call.return_address - before) >> shift));
        record.push((Stream::Places, if changed { places.rank(&call.places) + 1 } else { 0 }));
        record.push((Stream::Entries, entry));
        before = call.return_address;
    }
    record
}

/// Bits, the most significant of each byte first.
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

/// Codes for the lengths of numbers, by how often each length occurs in each stream.
struct Codes {
    lengths: [[u8; LENGTHS]; STREAMS],
}

impl Codes {
    fn new<'r>(numbers: impl Iterator<Item = &'r (Stream, u64)>) -> Codes {
        let mut counts = [[0u64; LENGTHS]; STREAMS];
        for &(stream, number) in numbers {
            counts[stream as usize][length(number) as usize] += 1;
        }
        Codes {
            lengths: counts.map(|counts| code_lengths(&counts)),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        for lengths in &self.lengths {
            let used = lengths.iter().rposition(|&len| len > 0).map_or(0, |last| last + 1);
            out.push(used as u8);
            out.extend(&lengths[..used]);
        }
    }

    fn put(&self, bits: &mut Bits, stream: Stream, number: u64) {
        let lengths = &self.lengths[stream as usize];
        let (bits_of_number, mut code) = (length(number), 0u64);
        let own = lengths[bits_of_number as usize];
        // Canonical codes: shorter ones first, and those of one length in the order of what they stand for.
        for len in 1..=own {
            code <<= 1;
            let before = lengths.iter().enumerate().filter(|&(_, &other)| other == len);
            let before = before.filter(|&(what, _)| len < own || what < bits_of_number as usize);
            code += before.count() as u64;
        }
        bits.put(code, own.into());
        if bits_of_number > 1 {
            bits.put(number, bits_of_number - 1);
        }
    }
}

fn length(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// Huffman's lengths, none longer than what readers take.
fn code_lengths(counts: &[u64; LENGTHS]) -> [u8; LENGTHS] {
    let mut lengths = [0; LENGTHS];
    // Counts are halved until the longest code is short enough.
    for halved in 0.. {
        let mut trees: Vec<(u64, Vec<usize>)> = Vec::new();
        for (what, &count) in counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            trees.push(((count >> halved).max(1), vec![what]));
        }
        lengths = [0; LENGTHS];
        if let [(_, only)] = &trees[..] {
            lengths[only[0]] = 1;
        }
        while trees.len() > 1 {
            trees.sort_by(|one, other| other.0.cmp(&one.0).then(other.1.cmp(&one.1)));
            let (Some(one), Some(other)) = (trees.pop(), trees.pop()) else {
                break;
            };
            let both = [one.1, other.1].concat();
            both.iter().for_each(|&what| lengths[what] += 1);
            trees.push((one.0 + other.0, both));
        }
        if lengths.iter().all(|&len| u32::from(len) <= LONGEST_CODE) {
            break;
        }
    }
    lengths
}
