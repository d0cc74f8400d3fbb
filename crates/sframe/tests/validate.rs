//! Each kind of finding, with its path and offset, in sections built by hand; and no findings in
//! valid sections.

use crate::common;

use std::ops::ControlFlow;

use backtrail_sframe::validate::{Finding, validate};
use backtrail_sframe::{Section, Version};

const ADDRESS: u64 = 0x1_0000;

fn findings(bytes: &[u8]) -> Vec<Finding> {
    let mut found = Vec::new();
    validate(bytes, ADDRESS, &mut |finding| {
        found.push(finding);
        ControlFlow::Continue(())
    });
    let strict = Section::parse_strict(bytes, ADDRESS);
    assert_eq!(strict.err(), found.first().copied());
    found
}

#[track_caller]
fn expect(bytes: &[u8], expected: &[&str]) {
    let found: Vec<String> = findings(bytes).iter().map(Finding::to_string).collect();
    assert_eq!(found, expected);
}

/// A little-endian section with these functions of 16 bytes each, 32 bytes apart, in version 2
/// (FDEs of 20 bytes, from offset 28) or 3 (FDEs of 16 bytes).
fn section(version: u8, abi: u8, functions: &[(u8, u16, &[u8])]) -> Vec<u8> {
    let (mut table, mut rows) = (Vec::new(), Vec::new());
    for (index, &(info, count, bytes)) in functions.iter().enumerate() {
        let start = 0x100 + 32 * index as i64;
        match version {
            3 => table.extend(start.to_le_bytes()),
            _ => table.extend((start as i32).to_le_bytes()),
        }
        table.extend(16u32.to_le_bytes());
        table.extend((rows.len() as u32).to_le_bytes());
        match version {
            3 => {
                rows.extend(count.to_le_bytes());
                rows.extend([info, 0, 0]);
            }
            _ => {
                table.extend(u32::from(count).to_le_bytes());
                table.extend([info, 0, 0, 0]);
            }
        }
        rows.extend(bytes);
    }
    let fixed_ra = if abi == 3 { 0xf8 } else { 0 };
    let mut bytes = vec![0xe2, 0xde, version, 1, abi, 0, fixed_ra, 0];
    let all: u32 = functions.iter().map(|function| u32::from(function.1)).sum();
    for value in [functions.len() as u32, all, rows.len() as u32, 0, table.len() as u32] {
        bytes.extend(value.to_le_bytes());
    }
    [bytes, table, rows].concat()
}

const ROWS: (u8, u16, &[u8]) = (0, 2, &[0, 0x03, 8, 1, 0x05, 16, 0xf0]);

/// Two functions with the same rows, and changes: (offset, bytes).
fn changed(version: u8, changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = section(version, 3, &[ROWS, ROWS]);
    for (at, new) in changes {
        bytes[*at..at + new.len()].copy_from_slice(new);
    }
    bytes
}

#[test]
fn nothing_is_wrong() {
    for version in [2, 3] {
        expect(&changed(version, &[]), &[]);
    }
    expect(&section(3, 2, &[(0x20, 1, &[0, 0x87, 16, 0xf8, 0xf0])]), &[]);
    // An outermost function, and an outermost row.
    expect(&section(3, 3, &[(0, 0, &[]), (0, 1, &[0, 0])]), &[]);
}

#[test]
fn header() {
    expect(b"", &["header: SFrame section ends 2 bytes too early at offset 0x0"]);
    expect(
        &changed(3, &[(2, &[7])]),
        &["header: SFrame version 7 is not known at offset 0x2"],
    );
    let unknown = ["header.flags: unknown flags 0x2 at offset 0x3"];
    expect(&changed(3, &[(3, &[3])]), &unknown);
    expect(&changed(2, &[(3, &[3])]), &[]);
    expect(
        &changed(2, &[(3, &[0])]),
        &["header.flags: functions are not flagged as sorted at offset 0x3"],
    );
    let found = findings(&changed(3, &[(4, &[4]), (5, &[0xf0])]));
    let found: Vec<String> = found.iter().map(Finding::to_string).collect();
    assert_eq!(
        found[..3],
        [
            "header.abi_arch: ABI of the other byte order at offset 0x4",
            "header.cfa_fixed_fp_offset: fixed offset -16, which the ABI does not have at offset 0x5",
            "header.cfa_fixed_ra_offset: fixed offset -8, which the ABI does not have at offset 0x6",
        ]
    );
    let mut auxiliary = changed(3, &[(7, &[2])]);
    auxiliary.splice(28..28, [1, 2]);
    expect(
        &auxiliary,
        &["header.auxhdr_len: auxiliary header of 2 bytes at offset 0x7"],
    );
    expect(
        &section(3, 3, &[]),
        &[
            "header.num_fdes: nothing in the table at offset 0x8",
            "header.num_fres: nothing in the table at offset 0xc",
        ],
    );
    expect(
        &changed(3, &[(12, &[9])]),
        &["header.num_fres: functions have 4 rows together at offset 0xc"],
    );
    let mut cut = changed(3, &[]);
    cut.pop();
    expect(
        &cut,
        &[
            "header: SFrame section ends 1 bytes too early at offset 0x53",
            "fde[1].row[1]: SFrame section ends 1 bytes too early at offset 0x52",
        ],
    );
}

#[test]
fn sub_sections() {
    // Rows that begin in the middle of the last FDE make no sense; the finding about the header
    // is enough.
    let found = findings(&changed(2, &[(24, &[36])]));
    assert_eq!(
        found[0].to_string(),
        "header.freoff: last 4 bytes of the FDE sub-section lie in the FRE sub-section at offset 0x18"
    );
    let mut behind = changed(2, &[]);
    let rows: Vec<u8> = behind.drain(68..).collect();
    behind.splice(28..28, rows.iter().copied());
    behind[20] = rows.len() as u8;
    behind[24] = 0;
    expect(
        &behind,
        &["header.fdeoff: FDE sub-section after the FRE sub-section at offset 0x14"],
    );
}

#[test]
fn functions() {
    let same = |path: &str, what: &str, at: usize| format!("{path}: {what} at offset {at:#x}");
    expect(
        &changed(3, &[(44, &[0xf0, 0])]),
        &[&same("fde[1].start", "function starts before the one before it", 44)],
    );
    expect(
        &changed(3, &[(44, &[0x0c, 1])]),
        &[&same(
            "fde[1].start",
            "function starts 4 bytes before the end of another",
            44,
        )],
    );
    // If flagged as unsorted, only that is reported.
    expect(
        &changed(3, &[(3, &[0]), (44, &[0xf0, 0])]),
        &["header.flags: functions are not flagged as sorted at offset 0x3"],
    );
    let attribute = 28 + 32;
    expect(
        &changed(3, &[(attribute + 2, &[0x60])]),
        &[&same("fde[0].info", "bits 0x60 have no meaning here", attribute + 2)],
    );
    expect(
        &changed(3, &[(attribute + 3, &[0x40])]),
        &[&same("fde[0].info2", "bits 0x40 have no meaning here", attribute + 3)],
    );
    expect(
        &changed(2, &[(28 + 16, &[0x80, 0, 1, 2])]),
        &[
            &same("fde[0].info", "bits 0x80 have no meaning here", 28 + 16),
            &same("fde[0].padding", "padding is 0x201", 28 + 18),
        ],
    );
    expect(
        &changed(2, &[(28 + 12, &[0]), (12, &[2])]),
        &[&same("fde[0].num_fres", "function without rows", 28)],
    );
    expect(
        &changed(2, &[(28 + 16, &[7]), (12, &[2])]),
        &[&same("fde[0]", "row type 7 is not known", 28 + 16)],
    );
}

#[test]
fn rows() {
    let one = |rows: &[u8], count: u16, expected: &[&str]| expect(&section(3, 3, &[(0, count, rows)]), expected);
    let at = 28 + 16 + 5;
    let text =
        |path: &str, what: &str, offset: usize| format!("fde[0].row[{path}: {what} at offset {:#x}", at + offset);
    one(
        &[0, 0x03, 8, 0, 0x03, 16],
        2,
        &[&text("1].start", "row starts at 0x0, not after the one before it", 3)],
    );
    one(
        &[0, 0x03, 8, 16, 0x03, 16],
        2,
        &[&text("1].start", "row starts at 0x10 of 0x10 bytes of code", 3)],
    );
    one(&[0, 0x07, 8, 0xf0, 0xe8], 1, &[&text("0].info", "row of 3 words", 1)]);
    one(
        &[0, 0x83, 8],
        1,
        &[&text("0].info", "bits 0x80 have no meaning here", 1)],
    );
    one(&[0, 0x63, 8], 1, &[&text("0]", "word size 3 is not known", 1)]);
    one(
        &[0, 0x05, 8, 0],
        1,
        &[&text("0]", "register saved at the CFA, in the caller's frame", 0)],
    );
    let flex = |rows: &[u8], expected: &[&str]| {
        let mut bytes = section(3, 3, &[(0, 1, rows)]);
        bytes[28 + 16 + 3] = 1;
        expect(&bytes, expected);
    };
    flex(&[0, 0x08, 0x39, 8, 2, 0xf8], &[]);
    flex(
        &[0, 0x08, 0x3d, 8, 6, 0xf8],
        &[
            &text("0].offset[0]", "control word 0x3d has bits without a meaning", 2),
            &text("0].offset[2]", "control word 0x6 has bits without a meaning", 4),
        ],
    );
    flex(
        &[0, 0x0e, 0x39, 8, 2, 0xf8, 2, 0xf0, 0],
        &[&text("0].info", "row of 7 words", 1)],
    );
    flex(
        &[0, 0x06, 0x39, 8, 2],
        &[&text("0]", "no offset follows control word 0x2", 4)],
    );
}

/// A strict reader accepts sections that binutils links.
#[test]
fn the_corpus() {
    let Some(cases) = common::corpus() else { return };
    for case in cases.iter().filter(|case| !case.bytes.is_empty()) {
        assert_eq!(findings(&case.bytes), [], "{}", case.name);
    }
}

/// The search ends when the callback breaks.
#[test]
fn one_finding_is_enough() {
    let bytes = changed(3, &[(3, &[0x40]), (12, &[9])]);
    let mut count = 0;
    validate(&bytes, ADDRESS, &mut |_| {
        count += 1;
        ControlFlow::Break(())
    });
    assert_eq!(count, 1);
    assert_eq!(findings(&bytes).len(), 3);
    assert_eq!(Section::parse(&bytes, ADDRESS).unwrap().version(), Version::V3);
}
