//! Tables that are written and read again, in both byte orders, and damaged tables.

use crate::fuzz;
use backtrail_args::ErrorKind;
use backtrail_args::abi::{Abi, Bank, Passing, Storage};
use backtrail_args::table::write::{self, Call, Function, Location, Places, Signature, Site};
use backtrail_args::table::{Operation, Parameter, Step, Table, Value, Values};
use backtrail_wire::Endian;

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % limit
    }

    fn value(&mut self) -> Value {
        let offset = self.below(1 << 20) as i64 - (1 << 19);
        match self.below(9) {
            0 => Value::Lost,
            1 => Value::Register(self.below(32) as u8, offset),
            2 => Value::AtRegister(self.below(32) as u8, offset),
            3 => Value::Frame(offset),
            4 => Value::AtFrame(offset),
            5 => Value::Constant(if self.below(4) == 0 { i64::MIN } else { offset }),
            6 => Value::Address(0x40_0000u64.wrapping_add_signed(offset)),
            7 => Value::AtAddress(0x40_0000u64.wrapping_add_signed(offset)),
            _ => Value::Entry(self.below(32) as u8, offset),
        }
    }

    fn location(&mut self) -> Location {
        match self.below(8) {
            0 => Location::Parts((0..1 + self.below(3)).map(|_| (8, self.value())).collect()),
            1 => Location::Computed((0..1 + self.below(5)).map(|_| self.step()).collect()),
            _ => Location::One(self.value()),
        }
    }

    fn step(&mut self) -> Step {
        match self.below(6) {
            0 => Step::Do(Operation::Plus),
            1 => Step::Do(Operation::Signed2),
            2 => Step::Do(Operation::There),
            _ => Step::Push(self.value()),
        }
    }

    fn list(&mut self, longest: u64) -> Vec<Location> {
        (0..self.below(longest + 1)).map(|_| self.location()).collect()
    }
}

fn storage(random: &mut Random) -> Option<Storage> {
    let passing = match random.below(7) {
        0 => return None,
        1 => Passing::Nothing,
        2 => Passing::Eightbytes([Some(Bank::Vector), Some(Bank::General)]),
        3 => Passing::Members(4, 16),
        4 => Passing::General,
        5 => Passing::Reference,
        _ => Passing::Memory,
    };
    Some(Storage {
        passing,
        bytes: random.below(100),
        align: 1 << random.below(7),
    })
}

fn functions(seed: u64, count: u64, align: u64) -> Vec<Function> {
    let mut random = Random(seed);
    let mut at = 0x40_0000;
    let functions = (0..count).map(|_| {
        let start = at;
        let mut address = start;
        let calls = (0..random.below(12)).map(|_| {
            address += align * (1 + random.below(40));
            Call {
                return_address: address,
                site: Site::Call,
                places: random.list(3),
                entries: random.list(6),
            }
        });
        let calls: Vec<Call> = calls.collect();
        let end = address + align * random.below(9);
        at = if random.below(3) == 0 {
            end + align * random.below(500)
        } else {
            end.next_multiple_of(16)
        };
        at = at.max(start + align);
        let parameters = (0..random.below(4)).map(|number| write::Parameter {
            name: format!("p{}", number + random.below(3)).into_bytes(),
            type_id: random.below(1 << 31) as u32,
            storage: storage(&mut random),
        });
        Function {
            start,
            end: end.max(start + align),
            signature: Signature {
                parameters: parameters.collect(),
                trusted: random.below(2) == 0,
                result_address: random.below(2) == 0,
                variadic: random.below(2) == 0,
                dict: Some(random.below(9) as u32).filter(|&dict| dict > 2),
            },
            prefix: 1 << random.below(9),
            calls,
            everywhere: seed % 2 == 1,
        }
    });
    functions.collect()
}

fn is_same(table: &Table<'_>, value: Value, expected: &Location) -> bool {
    match (value, expected) {
        (Value::Parts(start, count), Location::Parts(parts)) => {
            let read = table.parts(start, count).map(|part| part.expect("the part is there"));
            read.map(|(bytes, value)| (bytes as u8, value))
                .eq(parts.iter().copied())
        }
        (Value::Computed(start, count), Location::Computed(steps)) => {
            let read = table.steps(start, count).map(|step| step.expect("the step is there"));
            read.eq(steps.iter().copied())
        }
        (value, Location::One(one)) => value == *one,
        _ => false,
    }
}

/// Whether these are the values that were written.
fn are_same(table: &Table<'_>, values: Option<Values<'_>>, expected: &[Location]) -> bool {
    let values: Vec<Value> = values
        .into_iter()
        .flatten()
        .map(|one| one.expect("no damage"))
        .collect();
    values.len() == expected.len()
        && values
            .iter()
            .zip(expected)
            .all(|(&value, expected)| is_same(table, value, expected))
}

fn check(functions: &[Function], abi: Abi, endian: Endian) {
    let bytes = write::table(functions, abi, 0x1234_5678, endian, Places::AtCalls);
    let table = Table::parse(&bytes, endian).expect("what was written can be read");
    assert_eq!((table.abi(), table.types()), (abi, 0x1234_5678));
    for function in functions {
        for address in [function.start, function.end - 1] {
            let found = table
                .function(address)
                .expect("no damage")
                .expect("the function is there");
            assert_eq!((found.start, found.prefix), (function.start, function.prefix));
            let signature = found.signature().expect("no damage").expect("it has one");
            let wanted = &function.signature;
            assert_eq!(
                (
                    signature.trusted,
                    signature.result_address,
                    signature.variadic,
                    signature.dict
                ),
                (wanted.trusted, wanted.result_address, wanted.variadic, wanted.dict)
            );
            let read: Vec<Parameter<'_>> = signature.parameters.map(|one| one.expect("no damage")).collect();
            assert_eq!(read.len(), wanted.parameters.len());
            for (read, parameter) in read.into_iter().zip(&wanted.parameters) {
                assert_eq!(
                    (read.name.collect(), read.type_id, read.storage),
                    (parameter.name.clone(), parameter.type_id, parameter.storage)
                );
            }
            let mut passing = Vec::new();
            let each = |address, values| passing.push((address, values));
            found.each_passing(each).expect("no damage");
            let mut wanted = function.calls.iter().filter(|call| !call.entries.is_empty());
            for (address, values) in passing {
                let wanted = wanted.next().expect("no more than were written");
                assert!(address == wanted.return_address && are_same(&table, Some(values), &wanted.entries));
            }
            assert!(wanted.next().is_none());
            for call in &function.calls {
                let site = found.call_site(call.return_address).expect("no damage");
                assert!(are_same(&table, site.places, &call.places));
                assert!(are_same(&table, site.entries, &call.entries));
                // Between calls nothing is passed.
                assert_eq!(
                    found
                        .call_site(call.return_address + 1)
                        .expect("no damage")
                        .entries
                        .is_some(),
                    {
                        function
                            .calls
                            .iter()
                            .any(|other| other.return_address == call.return_address + 1 && !other.entries.is_empty())
                    }
                );
            }
        }
    }
    assert!(table.function(0x3f_ffff).expect("no damage").is_none());
    let last = functions.last().map_or(0, |function| function.end);
    let behind = table
        .function(last + 1000)
        .expect("no damage")
        .expect("what says that nothing is known");
    assert!(behind.signature().expect("no damage").is_none());
}

#[test]
fn what_is_written_is_read() {
    for seed in 1..9 {
        for endian in [Endian::Little, Endian::Big] {
            check(&functions(seed, 1 + seed * 5, 1), Abi::SysvX86_64, endian);
            check(&functions(seed + 100, 1 + seed * 5, 4), Abi::Aapcs64, endian);
        }
    }
}

/// A place between calls holds from its instruction to the next place or call, and describes no
/// calls.
#[test]
fn places_between_calls_hold_where_they_are_described() {
    let at = |return_address: u64, site, register| Call {
        return_address,
        site,
        places: vec![Location::One(Value::Register(register, 0))],
        entries: Vec::new(),
    };
    for (abi, unit) in [(Abi::SysvX86_64, 1), (Abi::Aapcs64, 4)] {
        let function = Function {
            start: 0x1000,
            end: 0x1100,
            signature: Signature::default(),
            prefix: 0,
            calls: vec![
                at(0x1000 + unit, Site::Between, 5),
                at(0x1040, Site::Call, 3),
                at(0x1080 + unit, Site::Between, 6),
            ],
            everywhere: true,
        };
        let read = |places, address| {
            let bytes = write::table(std::slice::from_ref(&function), abi, 0, Endian::Little, places);
            let table = Table::parse(&bytes, Endian::Little).expect("what was written can be read");
            let found = table.function(address).expect("no damage").expect("it is there");
            let places = found.places_at(address).expect("no damage");
            places.map(|values| values.map(|value| value.expect("no damage")).collect::<Vec<Value>>())
        };
        for (address, register) in [
            (0x1000, 5),
            (0x103c - unit, 5),
            (0x1040, 3),
            (0x107c, 3),
            (0x1080, 6),
            (0x10f0, 6),
        ] {
            let expected = Some(vec![Value::Register(register, 0)]);
            assert_eq!(read(Places::Everywhere, address), expected, "{address:#x}");
            assert_eq!(read(Places::Chosen, address), expected, "{address:#x}");
            assert_eq!(read(Places::AtCalls, address), None);
        }
    }
}

#[test]
fn both_byte_orders_say_the_same() {
    let functions = functions(7, 100, 1);
    let little = write::table(&functions, Abi::SysvX86_64, 0, Endian::Little, Places::AtCalls);
    let big = write::table(&functions, Abi::SysvX86_64, 0, Endian::Big, Places::AtCalls);
    assert_eq!(little.len(), big.len());
    assert!(matches!(
        Table::parse(&little, Endian::Big).unwrap_err().kind,
        ErrorKind::Magic(_)
    ));
}

#[test]
fn bad_headers_are_refused_with_their_place() {
    let bytes = write::table(&functions(3, 5, 1), Abi::SysvX86_64, 0, Endian::Little, Places::AtCalls);
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        let error = Table::parse(&bytes, Endian::Little).expect_err("it is damaged");
        (error.kind, error.offset)
    };
    assert_eq!(with(2, 9), (ErrorKind::Version(9), 2));
    assert_eq!(with(3, 9), (ErrorKind::Abi(9), 3));
    assert_eq!(with(4, 9), (ErrorKind::Value(9), 4));
    assert_eq!(with(5, 3), (ErrorKind::Value(3), 5));
    for len in 0..120 {
        assert!(Table::parse(&bytes[..len], Endian::Little).is_err(), "{len}");
    }
}

#[test]
fn nothing_breaks_on_mutated_tables() {
    let valid = write::table(
        &functions(11, 60, 1),
        Abi::SysvX86_64,
        0,
        Endian::Little,
        Places::AtCalls,
    );
    fuzz::read_args(&valid);
    let mut random = Random(99);
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_secs(1) {
        let mut bytes = valid.clone();
        for _ in 0..1 + random.below(8) {
            let at = if random.below(2) == 0 {
                random.below(400)
            } else {
                random.below(bytes.len() as u64)
            };
            bytes[at as usize] = random.below(256) as u8;
        }
        bytes.truncate(bytes.len() - (random.below(3) * random.below(200)) as usize);
        fuzz::read_args(&bytes);
    }
}
