//! Bytes written by hand from the format's specification, and their meaning.

use backtrail_sframe::write::{self, FunctionRows, Options};
use backtrail_sframe::{Abi, Base, Error, ErrorKind, Location, Row, Rule, Section, Version, dump};

const ADDRESS: u64 = 0x1_0000;

fn at(base: Base, offset: i32, deref: bool) -> Location {
    Location { base, offset, deref }
}

fn rule(cfa: Location, ra: Location, fp: Option<Location>) -> Option<Rule> {
    Some(Rule {
        cfa,
        ra,
        fp,
        mangled_ra: false,
    })
}

/// A little-endian section of version 3 with these functions: (start, size, attribute and rows).
fn version_3(abi: u8, flags: u8, functions: &[(i64, u32, &[u8])]) -> Vec<u8> {
    let fre_len: usize = functions.iter().map(|(.., block)| block.len()).sum();
    let fixed_ra = if abi == 3 { 0xf8 } else { 0 };
    let mut bytes = vec![0xe2, 0xde, 3, flags, abi, 0, fixed_ra, 0];
    let table = functions.len() as u32 * 16;
    for number in [functions.len() as u32, functions.len() as u32, fre_len as u32, 0, table] {
        bytes.extend(number.to_le_bytes());
    }
    let mut fre_off = 0u32;
    for (start, size, block) in functions {
        bytes.extend(start.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(fre_off.to_le_bytes());
        fre_off += block.len() as u32;
    }
    for (.., block) in functions {
        bytes.extend(*block);
    }
    bytes
}

fn rows(bytes: &[u8]) -> Vec<Row> {
    let section = Section::parse(bytes, ADDRESS).unwrap();
    let fde = section.fde(0).unwrap();
    fde.rows().map(Result::unwrap).collect()
}

/// Attribute of `count` FLEX rows with one-byte starts.
fn flex(count: u8, row_bytes: &[u8]) -> Vec<u8> {
    [&[count, 0, 0, 1, 0], row_bytes].concat()
}

#[test]
fn flex_examples_of_the_description() {
    let block = flex(
        5,
        &[
            0x00, 0x04, 0x39, 0x08, // CFA = rsp+8
            0x01, 0x04, 0x51, 0x00, // CFA = r10
            0x02, 0x04, 0x33, 0xf8, // CFA = *(rbp-8)
            0x03, 0x0a, 0x51, 0x00, 0x00, 0x33, 0x00, // CFA = r10, RA by default, FP = *rbp
            0x04, 0x08, 0x39, 0x08, 0x19, 0x00, // CFA = rsp+8, RA = rbx
        ],
    );
    let bytes = version_3(3, 1, &[(0x100, 16, &block)]);
    let expected = [
        rule(Location::register(7, 8), Location::saved(-8), None),
        rule(Location::register(10, 0), Location::saved(-8), None),
        rule(at(Base::Register(6), -8, true), Location::saved(-8), None),
        rule(
            Location::register(10, 0),
            Location::saved(-8),
            Some(at(Base::Register(6), 0, true)),
        ),
        rule(Location::register(7, 8), Location::register(3, 0), None),
    ];
    let expected: Vec<Row> = (0..).zip(expected).map(|(start, rule)| Row { start, rule }).collect();
    assert_eq!(rows(&bytes), expected);

    let function = FunctionRows::new(ADDRESS + 0x100, 16, expected);
    let options = Options {
        pcrel: false,
        ..Options::new(Version::V3, Abi::Amd64Little, ADDRESS)
    };
    let mut written = write::section(&[function], &options).unwrap().bytes;
    written[12] = 1; // This test's sections count one row for each function.
    assert_eq!(written, bytes);

    let mut text = String::new();
    dump::dump(&Section::parse(&bytes, ADDRESS).unwrap(), ".sframe", &mut text).unwrap();
    let columns: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(
        columns.contains(&vec!["0000000000010102", "(fp-8)", "u", "f"]),
        "{text}"
    );
    assert!(
        columns.contains(&vec!["0000000000010103", "r10+0", "(fp+0)", "U"]),
        "{text}"
    );
    assert!(
        columns.contains(&vec!["0000000000010104", "sp+8", "u", "r3+0"]),
        "{text}"
    );
}

#[test]
fn outermost_frames() {
    let default: &[u8] = &[0, 0, 0, 0, 0];
    let row_of_none: &[u8] = &[2, 0, 0, 0, 0, 0x00, 0x00, 0x08, 0x03, 0x10];
    let no_flex: &[u8] = &[0, 0, 0, 1, 0];
    let bytes = version_3(
        3,
        1,
        &[(0x100, 16, default), (0x110, 16, row_of_none), (0x120, 16, no_flex)],
    );
    let section = Section::parse(&bytes, ADDRESS).unwrap();
    let row = |pc| section.lookup(ADDRESS + pc).unwrap().map(|found| found.row);
    assert_eq!(row(0xff), None);
    for pc in [0x100, 0x10f, 0x110, 0x117] {
        assert_eq!(row(pc), Some(Row { start: 0, rule: None }), "{pc:#x}");
    }
    assert_eq!(
        row(0x118).unwrap().rule,
        rule(Location::register(7, 16), Location::saved(-8), None)
    );
    assert_eq!(row(0x120), None, "a FLEX function without rows says nothing");
    assert_eq!(row(0x130), None);
    assert_eq!(rows(&bytes), [Row { start: 0, rule: None }]);
}

#[test]
fn functions_of_size_zero_and_gaps() {
    let block: &[u8] = &[1, 0, 0, 0, 0, 0x00, 0x03, 0x08];
    let late: &[u8] = &[1, 0, 0, 0, 0, 0x02, 0x03, 0x18];
    let functions = [
        (0x100, 0, block),
        (0x100, 16, late),
        (0x100, 0, block),
        (0x108, 0, block),
        (0x120, 8, block),
    ];
    for flags in [0, 1] {
        let bytes = version_3(3, flags, &functions);
        let section = Section::parse(&bytes, ADDRESS).unwrap();
        let cfa = |pc: u64| {
            let found = section.lookup(ADDRESS + pc).unwrap();
            found.map(|found| (found.function.size, found.row.rule.unwrap().cfa.offset))
        };
        assert_eq!(cfa(0x101), None, "before the first row");
        for pc in [0x102, 0x107, 0x108, 0x10f] {
            assert_eq!(cfa(pc), Some((16, 24)), "{pc:#x}");
        }
        assert_eq!(cfa(0x110), None, "in a gap");
        assert_eq!(cfa(0x11f), None, "in a gap");
        assert_eq!(cfa(0x120), Some((8, 8)));
        assert_eq!(cfa(0x128), None);
    }
}

#[test]
fn repeated_blocks_and_a_signal_frame() {
    let plt: &[u8] = &[2, 0, 0x10, 0, 16, 0x00, 0x03, 0x08, 0x0b, 0x03, 0x10];
    // The block size of PLT0 is ignored, because its FDE is not PCMASK.
    let plt0: &[u8] = &[2, 0, 0, 0, 16, 0x00, 0x03, 0x10, 0x06, 0x03, 0x18];
    let signal: &[u8] = &[1, 0, 0x80, 0, 0, 0x00, 0x03, 0x08];
    let bytes = version_3(3, 1, &[(0x100, 32, plt0), (0x120, 0x40, plt), (0x200, 9, signal)]);
    let section = Section::parse(&bytes, ADDRESS).unwrap();
    for pc in 0..0x40u64 {
        let expected = if pc % 16 >= 11 { 16 } else { 8 };
        let found = section.lookup(ADDRESS + 0x120 + pc).unwrap().unwrap();
        assert_eq!(found.row.rule.unwrap().cfa.offset, expected, "{pc:#x}");
        assert_eq!(found.function.repeat, Some(16));
    }
    for pc in 0..32u64 {
        let expected = if pc >= 6 { 24 } else { 16 };
        let found = section.lookup(ADDRESS + 0x100 + pc).unwrap().unwrap();
        assert_eq!(found.row.rule.unwrap().cfa.offset, expected, "{pc:#x}");
        assert_eq!(found.function.repeat, None);
    }
    assert!(section.lookup(ADDRESS + 0x200).unwrap().unwrap().function.signal_frame);
}

#[test]
fn s390x_of_version_2() {
    // CFA = r15+160; then RA in f0 (register 16) and FP at CFA-72; then RA not saved, FP in
    // register 17.
    let rows: &[u8] = &[0, 0x03, 0, 4, 0x07, 20, 33, 0xb8, 8, 0x06, 20, 0, 35];
    let mut bytes = vec![0xde, 0xe2, 2, 1, 4, 0, 0, 0];
    for number in [1, 3, rows.len() as u32, 0, 20] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(0x40i32.to_be_bytes());
    for number in [16u32, 0, 3] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend([0, 0, 0, 0]);
    bytes.extend(rows);
    let expected = [
        rule(Location::register(15, 160), Location::register(14, 0), None),
        rule(
            Location::register(15, 320),
            Location::register(16, 0),
            Some(Location::saved(-72)),
        ),
        rule(
            Location::register(11, 320),
            Location::register(14, 0),
            Some(Location::register(17, 0)),
        ),
    ];
    let section = Section::parse(&bytes, ADDRESS).unwrap();
    let fde = section.fde(0).unwrap();
    let read: Vec<_> = fde.rows().map(|row| row.unwrap().rule).collect();
    assert_eq!(read, expected);
    let options = Options {
        share: false,
        merge: 1,
        ..Options::new(Version::V2, Abi::S390xBig, ADDRESS)
    };
    let output = write::section(&[FunctionRows::read(&fde).unwrap()], &options).unwrap();
    assert_eq!(output.bytes, bytes);
}

#[test]
fn fixed_offsets_and_an_auxiliary_header() {
    let block: &[u8] = &[1, 0, 0, 0, 0, 0x00, 0x03, 0x20];
    let mut bytes = version_3(3, 1, &[(0x100, 16, block)]);
    bytes[5] = (-16i8) as u8;
    bytes[7] = 3;
    for byte in [7, 8, 9] {
        bytes.insert(28, byte);
    }
    assert_eq!(
        rows(&bytes)[0].rule,
        rule(
            Location::register(7, 32),
            Location::saved(-8),
            Some(Location::saved(-16))
        )
    );
    let section = Section::parse(&bytes, ADDRESS).unwrap();
    assert_eq!((section.auxiliary_header_len(), section.fixed_fp_offset()), (3, -16));
    // The segment may be longer than the section.
    bytes.extend([0xff; 40]);
    assert_eq!(Section::parse(&bytes, ADDRESS).unwrap().size(), bytes.len() - 40);
}

#[test]
fn addresses_at_the_ends_of_the_address_space() {
    let block: &[u8] = &[1, 0, 0, 0, 0, 0x00, 0x03, 0x20];
    let bytes = version_3(3, 1, &[(-0x2000, 16, block), (0x100, 16, block)]);
    let section = Section::parse(&bytes, 0x1000).unwrap();
    assert!(section.lookup(0xffff_ffff_ffff_f005).unwrap().is_some());
    assert!(section.lookup(0x1105).unwrap().is_some());
    assert!(section.lookup(0x2000).unwrap().is_none());
    let far = version_3(3, 1, &[(i64::MIN, u32::MAX, block), (i64::MAX - 3, u32::MAX, block)]);
    let section = Section::parse(&far, 0).unwrap();
    assert!(section.lookup(1 << 63).unwrap().is_some());
    assert!(section.lookup((1 << 63) - 2).unwrap().is_some());
    assert!(section.lookup(0).unwrap().is_none());
}

#[test]
fn errors_say_what_and_where() {
    let block: &[u8] = &[1, 0, 0, 0, 0, 0x00, 0x03, 0x20];
    let good = version_3(3, 1, &[(0x100, 16, block)]);
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        let section = Section::parse(&bytes, ADDRESS)?;
        section.lookup(ADDRESS + 0x100).map(|found| found.is_some())
    };
    let error = |kind, offset| Err(Error { kind, offset });
    assert_eq!(changed(28, 0), Ok(true));
    assert_eq!(changed(0, 0), error(ErrorKind::Magic(0xde00), 0));
    assert_eq!(changed(2, 9), error(ErrorKind::Version(9), 2));
    assert_eq!(changed(4, 5), error(ErrorKind::Abi(5), 4));
    assert_eq!(changed(8, 3), error(ErrorKind::Truncated { missing: 24 }, 52));
    assert_eq!(changed(16, 9), error(ErrorKind::Truncated { missing: 1 }, 52));
    assert_eq!(changed(44, 2), error(ErrorKind::Truncated { missing: 1 }, 52));
    assert_eq!(changed(46, 3), error(ErrorKind::FreType(3), 46));
    assert_eq!(changed(46, 0x10), error(ErrorKind::RepeatOfZero, 48));
    assert_eq!(changed(47, 2), error(ErrorKind::FdeType(2), 47));
    assert_eq!(changed(50, 0x63), error(ErrorKind::WordSize(3), 50));
    assert_eq!(changed(47, 1), error(ErrorKind::FlexCfaBase(0x20), 51));
    let message = Section::parse(&good[..40], ADDRESS).unwrap_err().to_string();
    assert_eq!(message, "SFrame section ends 12 bytes too early at offset 0x28");
    let control = version_3(3, 1, &[(0x100, 16, &flex(1, &[0, 0x02, 0x39]))]);
    let section = Section::parse(&control, ADDRESS).unwrap();
    let kind = ErrorKind::FlexOffset(0x39);
    assert_eq!(section.lookup(ADDRESS + 0x100), Err(Error { kind, offset: 51 }));
}

/// A block that is a prefix of another has no bytes of its own if the FDE holds the row count.
#[test]
fn prefixes_are_shared_in_versions_1_and_2() {
    let row = |start, offset| Row {
        start,
        rule: rule(Location::register(7, offset), Location::saved(-8), None),
    };
    let function = |start, rows: &[Row]| FunctionRows::new(start, 32, rows.to_vec());
    let all = [row(0, 8), row(1, 16), row(9, 8)];
    let functions = [
        function(0x2_0000, &all[..1]),
        function(0x2_0020, &all),
        function(0x2_0040, &all[..2]),
        function(0x2_0060, &all),
    ];
    for (version, fde_size, blocks) in [
        (Version::V1, 17, 9),
        (Version::V2, 20, 9),
        (Version::V3, 16, 8 + 14 + 11),
    ] {
        let options = Options {
            share: true,
            merge: 1,
            ..Options::new(version, Abi::Amd64Little, ADDRESS)
        };
        let output = write::section(&functions, &options).unwrap();
        assert_eq!(output.bytes.len(), 28 + 4 * fde_size + blocks, "{version:?}");
        assert_eq!(output.rows, 1 + 3 + 2 + 3);
        let section = Section::parse(&output.bytes, ADDRESS).unwrap();
        let read: Vec<_> = section
            .functions()
            .map(|fde| FunctionRows::read(&fde.unwrap()).unwrap())
            .collect();
        assert_eq!(read, functions);
    }
}
