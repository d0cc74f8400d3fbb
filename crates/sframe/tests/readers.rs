//! What other readers refuse, in tables of the writer and in changed ones.

use std::ops::ControlFlow;

use backtrail_sframe::readers::{Reader, Readers};
use backtrail_sframe::write::{self, FunctionRows, Options, Reason, Skipped};
use backtrail_sframe::{Abi, Location, Row, Rule, Section, Version};

const ADDRESS: u64 = 0x1_0000;
const FLAGS: usize = 3;

fn row(start: u32, offset: i32) -> Row {
    Row {
        start,
        rule: Some(Rule::new(Location::register(7, offset), Location::saved(-8))),
    }
}

/// Two functions; each has rows of its own.
fn table(version: Version, pcrel: bool) -> Vec<u8> {
    let functions = [
        FunctionRows::new(0x1000, 0x20, vec![row(0, 8), row(1, 16)]),
        FunctionRows::new(0x2000, 0x20, vec![row(0, 8), row(4, 24)]),
    ];
    let options = Options {
        pcrel,
        share: false,
        ..Options::new(version, Abi::Amd64Little, ADDRESS)
    };
    write::section(&functions, &options).unwrap().bytes
}

#[track_caller]
fn expect(reader: Reader, bytes: &[u8], expected: &[&str]) {
    let (section, _) = Section::parse_lenient(bytes, ADDRESS).unwrap();
    let mut found = Vec::new();
    reader.refusals(&section, &mut |refusal| {
        assert_eq!(refusal.reader, reader);
        let function = refusal
            .function
            .map(|start| format!("{start:#x}: "))
            .unwrap_or_default();
        found.push(format!("{function}{} at {}", refusal.what, refusal.offset));
        ControlFlow::Continue(())
    });
    assert_eq!(found, expected);
}

fn changed(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

#[test]
fn each_reader_has_its_versions() {
    let v1 = table(Version::V1, false);
    for reader in Reader::ALL {
        assert_eq!(Reader::from_name(reader.name()), Some(reader));
        expect(reader, &v1, &["version 1 at 2"]);
    }
    assert_eq!(Reader::from_name("glibc"), None);
    let v2 = table(Version::V2, true);
    expect(Reader::Kernel, &v2, &["version 2 at 2"]);
    expect(Reader::Glibc2_42, &v2, &[]);
    expect(Reader::Binutils2_47, &v2, &[]);
    let v3 = table(Version::V3, true);
    expect(Reader::Kernel, &v3, &[]);
    expect(Reader::Glibc2_42, &v3, &["version 3 at 2"]);
    expect(Reader::Binutils2_47, &v3, &[]);
}

#[test]
fn starts_that_count_from_the_section() {
    let refused = ["starts are not relative to their fields at 3"];
    expect(Reader::Glibc2_42, &table(Version::V2, false), &[]);
    expect(Reader::Binutils2_47, &table(Version::V2, false), &refused);
    let v3 = table(Version::V3, false);
    expect(Reader::Binutils2_47, &v3, &refused);
    expect(Reader::Kernel, &v3, &refused);
}

#[test]
fn tables_that_are_not_sorted() {
    let refused = ["functions are not flagged as sorted at 3"];
    let v3 = table(Version::V3, true);
    expect(Reader::Kernel, &changed(v3.clone(), FLAGS, 4), &refused);
    expect(Reader::Binutils2_47, &changed(v3.clone(), FLAGS, 4), &refused);
    expect(
        Reader::Glibc2_42,
        &changed(table(Version::V2, true), FLAGS, 4),
        &refused,
    );
    // Flagged as sorted, with the first function at 0x3000.
    let mut wrong = v3;
    let start = 0x3000 - (ADDRESS as i64 + 28);
    wrong[28..36].copy_from_slice(&start.to_le_bytes());
    for reader in [Reader::Kernel, Reader::Binutils2_47] {
        expect(
            reader,
            &wrong,
            &["0x2000: function starts before the one before it at 44"],
        );
    }
}

#[test]
fn flags_and_headers() {
    let v3 = table(Version::V3, true);
    expect(
        Reader::Binutils2_47,
        &changed(v3.clone(), FLAGS, 7),
        &["flags 0x2 at 3"],
    );
    expect(Reader::Kernel, &changed(v3.clone(), FLAGS, 7), &[]);
    let v2 = table(Version::V2, true);
    expect(Reader::Glibc2_42, &changed(v2, FLAGS, 13), &["flags 0x8 at 3"]);
    // No rows in the header's number, which only the kernel reads.
    let none = changed(v3.clone(), 12, 0);
    expect(Reader::Kernel, &none, &["nothing in the table at 12"]);
    expect(Reader::Binutils2_47, &none, &[]);
    // One byte of rows is missing.
    expect(
        Reader::Kernel,
        &v3[..v3.len() - 1],
        &[
            "sub-sections overlap or extend past the section at 16",
            "0x2000: SFrame section ends 1 bytes too early at 81",
        ],
    );
    // An FDE table that does not follow the header.
    let mut moved = table(Version::V2, true);
    moved.splice(28..28, [0; 4]);
    moved[20] += 4;
    moved[24] += 4;
    expect(
        Reader::Glibc2_42,
        &moved,
        &[
            "FDE table 0x4 bytes after the header at 20",
            "rows 0x2c bytes after the header, not after the FDE table at 24",
        ],
    );
    expect(
        Reader::Binutils2_47,
        &moved,
        &["FDE table 0x4 bytes after the header at 20"],
    );
}

#[test]
fn rows() {
    // Version 3: two indexes of 16 bytes from 28 on, attributes of 5, rows of 3 bytes.
    let v3 = table(Version::V3, true);
    let second = 60 + 5 + 3;
    expect(
        Reader::Kernel,
        &changed(v3.clone(), second, 0),
        &["0x1000: row starts at 0x0, not after the one before it at 68"],
    );
    expect(Reader::Kernel, &changed(v3.clone(), second, 0x20), &[]);
    expect(
        Reader::Kernel,
        &changed(v3.clone(), second, 0x21),
        &["0x1000: row starts at 0x21, after the function's end at 68"],
    );
    // Three words: the CFA, the frame pointer, and one too many.
    expect(
        Reader::Kernel,
        &changed(v3.clone(), second + 1, 1 | 3 << 1),
        &["0x1000: row of 3 words at 68"],
    );
    expect(
        Reader::Kernel,
        &changed(v3.clone(), second + 1, 0x60),
        &["0x1000: word size 3 is not known at 69"],
    );
    expect(Reader::Binutils2_47, &changed(v3, second + 1, 0x60), &[]);
    // Version 2: FDEs of 20 bytes.
    let v2 = table(Version::V2, true);
    let first = 28 + 40;
    expect(
        Reader::Glibc2_42,
        &changed(v2.clone(), first + 1, 1),
        &["0x1000: row that marks the outermost frame at 68"],
    );
    expect(
        Reader::Glibc2_42,
        &changed(v2.clone(), first + 1, 1 | 4 << 1),
        &["0x1000: row of 4 words at 68"],
    );
    // Without a fixed place for the return address, a row of one word has none.
    expect(
        Reader::Glibc2_42,
        &changed(v2, 6, 0),
        &[
            "0x1000: row without a return address at 68",
            "0x2000: row without a return address at 74",
        ],
    );
}

#[test]
fn one_version_for_several_readers() {
    let version = |readers: &[Reader]| readers.iter().copied().collect::<Readers>().version();
    assert_eq!(version(&[]), Some(Version::V3));
    assert_eq!(version(&[Reader::Kernel]), Some(Version::V3));
    assert_eq!(version(&[Reader::Binutils2_47]), Some(Version::V3));
    assert_eq!(version(&[Reader::Glibc2_42, Reader::Binutils2_47]), Some(Version::V2));
    assert_eq!(version(&Reader::ALL), None);
    let all: Readers = Reader::ALL.into_iter().collect();
    assert!(all.iter().eq(Reader::ALL));
}

/// Without anything that the reader refuses.
fn restricted(functions: &[FunctionRows], abi: Abi, reader: Reader) -> (Vec<FunctionRows>, Vec<Skipped>) {
    let readers: Readers = [reader].into_iter().collect();
    let options = Options::new(readers.version().unwrap(), abi, ADDRESS).for_readers(readers);
    let output = write::section(functions, &options).unwrap();
    expect(reader, &output.bytes, &[]);
    let section = Section::parse_strict(&output.bytes, ADDRESS).unwrap();
    (FunctionRows::read_all(&section).unwrap(), output.skipped)
}

#[test]
fn code_whose_rows_are_refused_is_cut_out() {
    let in_register = |start| Row {
        start,
        rule: Some(Rule::new(Location::register(31, 0), Location::register(30, 0))),
    };
    let saved = |start, offset| Row {
        start,
        rule: Some(Rule::new(Location::register(31, offset), Location::saved(-8))),
    };
    let plain = FunctionRows::new(0x1000, 0x20, vec![saved(0, 16)]);
    let usual = FunctionRows::new(
        0x2000,
        0x40,
        vec![
            in_register(0),
            saved(8, 32),
            saved(12, 48),
            in_register(0x30),
            saved(0x38, 16),
        ],
    );
    let leaf = FunctionRows::new(0x3000, 0x10, vec![in_register(0)]);
    let functions = [leaf, usual, plain.clone()];
    let (written, skipped) = restricted(&functions, Abi::Aarch64Little, Reader::Glibc2_42);
    let pieces = [
        plain,
        FunctionRows::new(0x2008, 0x28, vec![saved(0, 32), saved(4, 48)]),
        FunctionRows::new(0x2038, 8, vec![saved(0, 16)]),
    ];
    assert_eq!(written, pieces);
    let left_out = |index, start, size| Skipped {
        index,
        start,
        size,
        reason: Reason::RaInRegister,
    };
    let expected = [
        left_out(0, 0x3000, 0x10),
        left_out(1, 0x2000, 8),
        left_out(1, 0x2030, 8),
    ];
    assert_eq!(skipped, expected);
    // The kernel takes them all.
    let (written, skipped) = restricted(&functions, Abi::Aarch64Little, Reader::Kernel);
    assert_eq!((written.len(), skipped.len()), (3, 0));
}

#[test]
fn rows_that_only_some_readers_take() {
    let outermost = FunctionRows::new(0x1000, 0x20, vec![row(0, 8), Row { start: 4, rule: None }]);
    let (written, skipped) = restricted(std::slice::from_ref(&outermost), Abi::Amd64Little, Reader::Glibc2_42);
    assert_eq!(written, [FunctionRows::new(0x1000, 4, vec![row(0, 8)])]);
    let [
        Skipped {
            start, size, reason, ..
        },
    ] = skipped[..]
    else {
        panic!("{skipped:?}")
    };
    assert_eq!((start, size, reason), (0x1004, 0x1c, Reason::Outermost));
    for reader in [Reader::Kernel, Reader::Binutils2_47] {
        let (written, skipped) = restricted(std::slice::from_ref(&outermost), Abi::Amd64Little, reader);
        assert_eq!((written.as_slice(), skipped.len()), (&[outermost.clone()][..], 0));
    }
    // Rows after the function's end describe nothing, but the kernel refuses the function.
    let beyond = FunctionRows::new(0x1000, 8, vec![row(0, 8), row(4, 16), row(9, 24)]);
    let (written, skipped) = restricted(&[beyond], Abi::Amd64Little, Reader::Kernel);
    assert_eq!(written, [FunctionRows::new(0x1000, 8, vec![row(0, 8), row(4, 16)])]);
    assert_eq!(skipped, []);
    // A version that is chosen for a reader has starts that both kinds of its readers take.
    let readers: Readers = [Reader::Binutils2_47].into_iter().collect();
    let options = Options::new(Version::V2, Abi::Amd64Little, ADDRESS).for_readers(readers);
    let output = write::section(&[FunctionRows::new(0x1000, 8, vec![row(0, 8)])], &options).unwrap();
    expect(Reader::Binutils2_47, &output.bytes, &[]);
}
