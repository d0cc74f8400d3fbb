//! Written sections read back unchanged, for every shape of rule, version, ABI and byte order, and
//! look-up at every address finds the same as a second reader.

use crate::common;

use backtrail_sframe::write::{self, FunctionRows, Options, Reason};
use backtrail_sframe::{Abi, Base, Flags, Location, Row, Rule, Section, Version};
use common::naive;
use proptest::prelude::*;

const ADDRESS: u64 = 0x7000_0000;

fn offset() -> impl Strategy<Value = i32> {
    prop_oneof![
        6 => -128i32..=127,
        3 => (-16i32..=40).prop_map(|eighth| eighth * 8),
        2 => -0x8000i32..=0x7fff,
        1 => any::<i32>(),
        1 => (-2000i32..=2000).prop_map(|eighth| eighth * 8),
    ]
}

fn location() -> impl Strategy<Value = Location> {
    let base = prop_oneof![
        3 => Just(Base::Cfa),
        2 => (0u8..=31).prop_map(Base::Register),
        1 => any::<u8>().prop_map(Base::Register),
    ];
    (base, offset(), any::<bool>()).prop_map(|(base, offset, deref)| Location { base, offset, deref })
}

fn saved() -> impl Strategy<Value = Location> {
    offset().prop_map(|offset| Location {
        base: Base::Cfa,
        offset,
        deref: true,
    })
}

fn default_ra(abi: Abi) -> Location {
    match abi {
        Abi::Amd64Little => Location::saved(-8),
        _ => Location::register(abi.arch().ra.0, 0),
    }
}

/// Mostly rules that compilers emit, sometimes any rule.
fn rule(abi: Abi) -> impl Strategy<Value = Option<Rule>> {
    let arch = abi.arch();
    let usual_cfa = (any::<bool>(), offset())
        .prop_map(move |(sp, offset)| Location::register(if sp { arch.sp.0 } else { arch.fp.0 }, offset));
    let cfa = prop_oneof![20 => usual_cfa, 1 => location()];
    let ra = prop_oneof![20 => Just(default_ra(abi)), 10 => saved(), 1 => location()];
    let fp = prop_oneof![20 => Just(None), 20 => saved().prop_map(Some), 1 => location().prop_map(Some)];
    let rule = (cfa, ra, fp, prop::bool::weighted(0.1)).prop_map(|(cfa, ra, fp, mangled_ra)| Rule {
        cfa,
        ra,
        fp,
        mangled_ra,
    });
    prop_oneof![30 => rule.prop_map(Some), 1 => Just(None)]
}

fn rows(abi: Abi) -> impl Strategy<Value = Vec<Row>> {
    let step = prop_oneof![8 => 1u32..20, 1 => 1u32..300, 1 => 1u32..70_000];
    let first = prop_oneof![4 => Just(0u32), 1 => 0u32..8];
    (first, prop::collection::vec((step, rule(abi)), 1..8)).prop_map(|(mut start, steps)| {
        let rows = steps.into_iter().map(|(step, rule)| {
            let row = Row { start, rule };
            start += step;
            row
        });
        rows.collect()
    })
}

/// Functions in address order without overlaps, some of size 0, some with the same rows.
fn functions(abi: Abi) -> impl Strategy<Value = Vec<FunctionRows>> {
    let gap = prop_oneof![3 => Just(0u64), 2 => 1u64..64, 1 => 1u64..0x10_0000];
    let size = prop_oneof![1 => Just(0u32), 8 => 1u32..90, 1 => 1u32..70_000];
    let repeat = prop_oneof![8 => Just(None), 1 => Just(Some(16u8)), 1 => (1u8..=255).prop_map(Some)];
    let function = (
        gap,
        size,
        rows(abi),
        repeat,
        prop::bool::weighted(0.1),
        any::<bool>(),
        any::<bool>(),
    );
    // Other CPUs do not sign return addresses, and their bit is unused.
    let signs = matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little);
    prop::collection::vec(function, 0..12).prop_map(move |parts| {
        let mut address = ADDRESS - 0x800;
        let mut functions: Vec<FunctionRows> = Vec::new();
        for (gap, size, rows, repeat, signal_frame, pauth_key_b, copy) in parts {
            let start = address + gap;
            address = start + u64::from(size);
            let rows = match functions.last() {
                Some(before) if copy => before.rows.clone(),
                _ => rows,
            };
            functions.push(FunctionRows {
                start,
                size,
                rows,
                repeat,
                signal_frame,
                pauth_key_b: pauth_key_b && signs,
            });
        }
        functions
    })
}

fn options() -> impl Strategy<Value = Options> {
    let version = prop_oneof![1 => Just(Version::V1), 1 => Just(Version::V2), 2 => Just(Version::V3)];
    let abi = prop::sample::select(Abi::ALL.to_vec());
    (version, abi, any::<bool>(), any::<bool>()).prop_map(|(version, abi, pcrel, share)| Options {
        pcrel: pcrel && version != Version::V1,
        share,
        ..Options::new(version, abi, ADDRESS)
    })
}

/// Whether version 3 can express the rule, according to the format's specification.
fn version_3_says(abi: Abi, rule: &Rule) -> bool {
    let value_from_cfa = |location: Location| location.base == Base::Cfa && !location.deref;
    let cfa = match abi {
        Abi::S390xBig => (i64::from(rule.cfa.offset) - 160) % 8 == 0,
        _ => true,
    };
    cfa && rule.cfa.base != Base::Cfa && !value_from_cfa(rule.ra) && !rule.fp.is_some_and(value_from_cfa)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn written_functions_are_read(
        (options, functions, seed) in options().prop_flat_map(|options| {
            (Just(options), functions(options.abi), any::<u64>())
        })
    ) {
        let mut random = backtrail_testkit::text::Random::new(seed | 1);
        let mut shuffled: Vec<usize> = (0..functions.len()).collect();
        for index in 1..shuffled.len() {
            shuffled.swap(index, random.below(index + 1));
        }
        let input: Vec<FunctionRows> = shuffled.iter().map(|&index| functions[index].clone()).collect();
        let output = write::section(&input, &options).unwrap();
        let section = Section::parse(&output.bytes, ADDRESS).unwrap();
        prop_assert_eq!(section.version(), options.version);
        prop_assert_eq!(section.abi(), options.abi);
        prop_assert_eq!(section.endian(), options.abi.endian());
        prop_assert!(section.flags().contains(Flags::FDE_SORTED));
        prop_assert_eq!(section.num_fdes(), output.functions);
        prop_assert_eq!(section.size(), output.bytes.len());
        if options.version == Version::V3 {
            for function in &input {
                let left_out = output.skipped.iter().any(|skipped| input[skipped.index] == *function);
                let says = function.rows.iter().filter_map(|row| row.rule.as_ref()).all(|rule| {
                    version_3_says(options.abi, rule)
                });
                prop_assert_eq!(left_out, !says, "{:?}: {:?}", output.skipped, function);
            }
        }

        // The same functions, sorted, each as it was passed.
        let kept: Vec<usize> = (0..functions.len())
            .filter(|&index| !output.skipped.iter().any(|skipped| shuffled[skipped.index] == index))
            .collect();
        prop_assert_eq!(kept.len(), section.functions().len());
        let mut total = 0;
        let mut read: Vec<FunctionRows> = Vec::new();
        for fde in section.functions() {
            let fde = fde.unwrap();
            total += fde.function().rows;
            read.push(FunctionRows::read(&fde).unwrap());
        }
        prop_assert_eq!(total, section.num_fres());
        prop_assert_eq!(total, output.rows);
        let mut expected: Vec<FunctionRows> = kept.iter().map(|&index| functions[index].clone()).collect();
        for function in &mut expected {
            function.rows.dedup_by_key(|row| row.rule);
        }
        let by_all = |function: &FunctionRows| {
            let flags = (function.repeat, function.signal_frame, function.pauth_key_b);
            (function.start, function.size, function.rows.clone(), flags)
        };
        read.sort_by_key(by_all);
        expected.sort_by_key(by_all);
        prop_assert_eq!(&read, &expected);

        // The second reader decodes the same bytes to the same functions.
        let naive = naive::read(&output.bytes, ADDRESS);
        for (fde, naive) in section.functions().zip(&naive) {
            let fde = fde.unwrap();
            prop_assert_eq!(fde.function().start, naive.start);
            prop_assert_eq!(fde.rows().map(Result::unwrap).collect::<Vec<_>>(), naive.rows.clone());
        }
        let mut unsorted_bytes = output.bytes.clone();
        unsorted_bytes[3] &= !Flags::FDE_SORTED.0;
        let unsorted = Section::parse(&unsorted_bytes, ADDRESS).unwrap();
        for function in &naive {
            let end = function.start + function.size;
            let inside = function.start..function.start + function.size.min(100);
            for pc in (function.start - 2..function.start).chain(inside).chain(end..end + 2) {
                let expected = naive::look_up(&naive, pc).map(|(index, row)| (naive[index].start, row));
                let found = section.lookup(pc).unwrap().map(|found| (found.function.start, found.row));
                prop_assert_eq!(found, expected, "at {:#x}", pc);
                let found = unsorted.lookup(pc).unwrap().map(|found| (found.function.start, found.row));
                prop_assert_eq!(found, expected, "unsorted, at {:#x}", pc);
            }
        }
    }

    /// Sharing changes only the size.
    #[test]
    fn sharing_is_not_seen(
        (options, functions) in options().prop_flat_map(|options| (Just(options), functions(options.abi)))
    ) {
        let [shared, apart] = [true, false].map(|share| {
            write::section(&functions, &Options { share, ..options }).unwrap()
        });
        prop_assert!(shared.bytes.len() <= apart.bytes.len());
        prop_assert_eq!((shared.rows, &shared.skipped), (apart.rows, &apart.skipped));
        prop_assert_eq!(naive::read(&shared.bytes, ADDRESS), naive::read(&apart.bytes, ADDRESS));
    }

    /// Joining neighbours changes only the size, and the rules of the padding between them.
    #[test]
    fn joining_is_seen_in_padding_only(
        (options, functions) in options().prop_flat_map(|options| (Just(options), functions(options.abi))),
        merge in 2u8..10,
    ) {
        let [apart, joined] = [1, merge].map(|merge| {
            write::section(&functions, &Options { merge, ..options }).unwrap()
        });
        prop_assert!(joined.bytes.len() <= apart.bytes.len());
        prop_assert_eq!(&joined.skipped, &apart.skipped);
        let [before, after] = [&apart, &joined].map(|output| naive::read(&output.bytes, ADDRESS));
        for function in &before {
            let edges = [0, 1, 2, 3, function.size / 2, function.size.saturating_sub(1)].into_iter();
            for offset in edges.chain(function.rows.iter().map(|row| u64::from(row.start))) {
                let pc = function.start + offset;
                let [one, other] = [&before, &after].map(|functions| naive::look_up(functions, pc));
                if offset < function.size {
                    prop_assert_eq!(one.map(|(_, row)| row.rule), other.map(|(_, row)| row.rule), "at {:#x}", pc);
                }
            }
        }
    }
}

/// Every reason can occur, and each has its own case.
#[test]
fn reasons() {
    let at = |base, offset, deref| Location { base, offset, deref };
    let rule = Rule::new(Location::register(7, 8), Location::saved(-8));
    let function = |rules: &[Option<Rule>]| {
        let rows = (0u32..).zip(rules).map(|(start, &rule)| Row { start, rule });
        FunctionRows::new(ADDRESS, 100, rows.collect())
    };
    let plain = function(&[Some(rule)]);
    let with = |rule: Rule| function(&[Some(rule)]);
    let mut backwards = function(&[Some(rule), None]);
    backwards.rows.swap(0, 1);
    let many: Vec<Option<Rule>> = (0..65_536)
        .map(|offset| {
            Some(Rule {
                cfa: at(Base::Register(7), offset, false),
                ..rule
            })
        })
        .collect();
    let aarch64 = Rule {
        cfa: at(Base::Register(31), 16, false),
        ra: at(Base::Register(30), 0, false),
        fp: Some(at(Base::Cfa, -16, true)),
        mangled_ra: false,
    };
    let (v1, v2, v3) = (Version::V1, Version::V2, Version::V3);
    let (amd64, arm, s390x) = (Abi::Amd64Little, Abi::Aarch64Big, Abi::S390xBig);
    let cases = [
        (v3, amd64, function(&[]), Reason::NoRows),
        (v3, amd64, backwards, Reason::RowOrder),
        (v3, amd64, function(&many), Reason::TooManyRows),
        (
            v2,
            amd64,
            FunctionRows {
                start: ADDRESS + (1 << 31),
                ..plain.clone()
            },
            Reason::StartOutOfRange,
        ),
        (
            v1,
            amd64,
            FunctionRows {
                repeat: Some(8),
                ..plain.clone()
            },
            Reason::Repeat,
        ),
        (
            v3,
            amd64,
            FunctionRows {
                repeat: Some(0),
                ..plain.clone()
            },
            Reason::Repeat,
        ),
        (
            v2,
            amd64,
            FunctionRows {
                signal_frame: true,
                ..plain.clone()
            },
            Reason::SignalFrame,
        ),
        (v1, amd64, function(&[None]), Reason::Outermost),
        (
            v2,
            amd64,
            with(Rule {
                cfa: at(Base::Register(10), 0, false),
                ..rule
            }),
            Reason::CfaRegister,
        ),
        (
            v2,
            amd64,
            with(Rule {
                cfa: at(Base::Register(6), -8, true),
                ..rule
            }),
            Reason::CfaInMemory,
        ),
        (
            v3,
            amd64,
            with(Rule {
                cfa: at(Base::Cfa, 8, false),
                ..rule
            }),
            Reason::CfaFromCfa,
        ),
        (
            v3,
            s390x,
            with(Rule {
                cfa: at(Base::Register(15), 164, false),
                ra: at(Base::Register(14), 0, false),
                ..rule
            }),
            Reason::CfaOffset,
        ),
        (
            v2,
            amd64,
            with(Rule {
                ra: at(Base::Register(3), 0, false),
                ..rule
            }),
            Reason::RaPlace,
        ),
        (
            v3,
            amd64,
            with(Rule {
                fp: Some(at(Base::Cfa, -16, false)),
                ..rule
            }),
            Reason::FpPlace,
        ),
        (v1, arm, with(aarch64), Reason::FpWithoutRa),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for (version, abi, function, reason) in cases {
        let options = Options::new(version, abi, ADDRESS);
        let (start, size) = (function.start, function.size);
        let output = write::section(&[function], &options).unwrap();
        let expected = write::Skipped {
            index: 0,
            start,
            size: size.into(),
            reason,
        };
        assert_eq!(output.skipped, [expected], "{version:?} {abi:?}");
        assert_eq!((output.functions, output.rows, output.bytes.len()), (0, 0, 28));
        seen.insert(reason);
    }
    // Only what a reader refuses has this reason: see tests/readers.rs.
    seen.insert(Reason::RaInRegister);
    assert!(seen.iter().eq(Reason::ALL.iter()));
    let mut options = Options::new(v1, amd64, ADDRESS);
    options.pcrel = true;
    assert_eq!(write::section(&[plain], &options), Err(write::WriteError::PcrelInV1));
}

/// A start field that is relative to itself reaches less far down, by its offset in the section.
#[test]
fn the_lowest_start_of_narrow_fields() {
    let function = FunctionRows::new(ADDRESS.wrapping_sub(1 << 31), 16, vec![Row { start: 0, rule: None }]);
    for (pcrel, skipped) in [(false, 0), (true, 1)] {
        let options = Options {
            pcrel,
            ..Options::new(Version::V2, Abi::Amd64Little, ADDRESS)
        };
        let output = write::section(std::slice::from_ref(&function), &options).unwrap();
        assert_eq!(output.skipped.len(), skipped, "pcrel {pcrel}");
        let section = Section::parse(&output.bytes, ADDRESS).unwrap();
        assert_eq!(section.lookup(function.start + 1).unwrap().is_some(), skipped == 0);
    }
}
