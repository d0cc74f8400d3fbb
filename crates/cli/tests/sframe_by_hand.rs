//! `backtrail sframe show` of sections that no assembler makes: compared with readelf if it can
//! read them, and reported as damaged if they are.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, scratch};
use serde_json::Value;

fn show(arguments: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.args(["sframe", "show"]).args(arguments).arg(file);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// ABI numbers of the specification.
const AARCH64_BIG: u8 = 1;
const AARCH64: u8 = 2;
const AMD64: u8 = 3;
const S390X: u8 = 4;

/// A function: where it starts, its info bytes (the second only in version 3), its size of repeated
/// blocks, its rows.
struct Function<'a> {
    start: i32,
    info: u8,
    info2: u8,
    rep_size: u8,
    count: u16,
    rows: &'a [u8],
}

fn function(start: i32, count: u16, rows: &[u8]) -> Function<'_> {
    Function {
        start,
        info: 0,
        info2: 0,
        rep_size: 0,
        count,
        rows,
    }
}

fn flex(start: i32, count: u16, rows: &[u8]) -> Function<'_> {
    Function {
        info2: 1,
        ..function(start, count, rows)
    }
}

/// A section, by the specification and not by the project's writer.
struct Made {
    version: u8,
    flags: u8,
    abi: u8,
    fixed_fp: i8,
    auxiliary: Vec<u8>,
}

impl Made {
    fn new(version: u8, abi: u8) -> Made {
        Made {
            version,
            flags: 1,
            abi,
            fixed_fp: 0,
            auxiliary: Vec::new(),
        }
    }

    fn big(&self) -> bool {
        matches!(self.abi, AARCH64_BIG | S390X)
    }

    fn number(&self, bytes: &mut Vec<u8>, value: i64, len: usize) {
        match self.big() {
            true => bytes.extend(&value.to_be_bytes()[8 - len..]),
            false => bytes.extend(&value.to_le_bytes()[..len]),
        }
    }

    fn bytes(&self, functions: &[Function<'_>]) -> Vec<u8> {
        let (mut table, mut rows) = (Vec::new(), Vec::new());
        for function in functions {
            let at = rows.len() as i64;
            self.number(&mut table, function.start.into(), if self.version == 3 { 8 } else { 4 });
            self.number(&mut table, 64, 4);
            self.number(&mut table, at, 4);
            if self.version == 3 {
                self.number(&mut rows, function.count.into(), 2);
                rows.extend([function.info, function.info2, function.rep_size]);
            } else {
                self.number(&mut table, function.count.into(), 4);
                table.push(function.info);
            }
            if self.version == 2 {
                table.extend([function.rep_size, 0, 0]);
            }
            rows.extend(function.rows);
        }
        let mut bytes = Vec::new();
        self.number(&mut bytes, 0xdee2, 2);
        let fixed_ra = if self.abi == AMD64 { -8i8 } else { 0 };
        bytes.extend([self.version, self.flags, self.abi, self.fixed_fp as u8, fixed_ra as u8]);
        bytes.push(self.auxiliary.len() as u8);
        let all: u32 = functions.iter().map(|function| u32::from(function.count)).sum();
        for value in [functions.len(), all as usize, rows.len(), 0, table.len()] {
            self.number(&mut bytes, value as i64, 4);
        }
        [bytes, self.auxiliary.clone(), table, rows].concat()
    }
}

/// Files with sections in them.
struct Files {
    folder: TempDir,
    binutils: Binutils,
}

impl Files {
    fn new(release: Release) -> Option<Files> {
        Some(Files {
            folder: scratch(),
            binutils: Binutils::get(release)?,
        })
    }

    fn object(&self, section: &[u8], name: &str) -> PathBuf {
        let abi = section[4];
        let machine = match abi {
            AMD64 => Machine::X86_64,
            S390X => Machine::S390x,
            _ => Machine::Aarch64,
        };
        let (source, object) = (self.folder.path().join("s.s"), self.folder.path().join("s.o"));
        let bytes: Vec<String> = section.iter().map(u8::to_string).collect();
        // The string in quotes is a type that every release knows.
        let source_text = format!(".section {name},\"a\",%progbits\n.byte {}\n", bytes.join(","));
        std::fs::write(&source, source_text).unwrap();
        let mut assembler = self.binutils.tool(machine, "as").command();
        if abi == AARCH64_BIG {
            assembler.arg("-EB");
        }
        let done = assembler.arg(&source).arg("-o").arg(&object).output().unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        object
    }

    #[track_caller]
    fn same(&self, what: &str, section: &[u8]) {
        let object = self.object(section, ".sframe");
        let mut readelf = self.binutils.tool(Machine::X86_64, "readelf").command();
        let theirs = readelf.arg("--sframe").arg(&object).output().unwrap();
        assert_eq!(text(&theirs.stderr), "", "{what}");
        let ours = show(&[], &object);
        assert_eq!(text(&ours.stderr), "", "{what}");
        assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{what}");
        assert!(text(&ours.stdout).contains("func idx [0]"), "{what}");
        // The same bytes without a file around them.
        let raw = self.folder.path().join("raw");
        std::fs::write(&raw, section).unwrap();
        assert_eq!(text(&show(&[], &raw).stdout), text(&theirs.stdout), "{what}");
    }
}

/// CFA = SP + 8; then CFA = SP + 16 and FP at CFA - 16.
const ROWS: &[u8] = &[0, 0x03, 8, 1, 0x05, 16, 0xf0];
const SIGNED: &[u8] = &[0, 0x83, 8, 1, 0x85, 16, 0xf0];
const THREE_WORDS: &[u8] = &[0, 0x07, 8, 0xf0, 0xf8];

fn plain_rows(made: Made, rows: &[u8]) -> Vec<u8> {
    made.bytes(&[function(0x100, 2, rows)])
}

/// What every release understands of its own version.
fn common(files: &Files, version: u8, flags: &[u8]) {
    let made = |abi| Made::new(version, abi);
    let plain = |abi| made(abi).bytes(&[function(0x100, 2, ROWS), function(0x200, 2, SIGNED)]);
    files.same("plain", &plain(AMD64));
    for &flags in flags {
        let section = Made { flags, ..made(AMD64) };
        files.same(&format!("flags {flags}"), &section.bytes(&[function(0x100, 2, ROWS)]));
    }
    let fixed_fp = Made {
        fixed_fp: -16,
        ..made(AMD64)
    };
    files.same(
        "CFA below",
        &plain_rows(made(AMD64), &[0, 0x03, 0xf0, 1, 0x22, 0xf0, 0xff]),
    );
    files.same("fixed FP", &fixed_fp.bytes(&[function(0x100, 2, ROWS)]));
    let auxiliary = Made {
        auxiliary: vec![1, 2, 3],
        ..made(AMD64)
    };
    files.same("auxiliary header", &auxiliary.bytes(&[function(0x100, 2, ROWS)]));
    let plt = Function {
        info: 0x10,
        rep_size: 16,
        ..function(0x100, 2, ROWS)
    };
    files.same("PCMASK", &made(AMD64).bytes(&[plt]));
    for abi in [AMD64, AARCH64, AARCH64_BIG] {
        let key_b = Function {
            info: 0x20,
            ..function(0x100, 1, &[0, 0x87, 16, 0xf8, 0xf0])
        };
        files.same("key B", &made(abi).bytes(&[key_b]));
    }
    files.same("three words", &made(AMD64).bytes(&[function(0x100, 1, THREE_WORDS)]));
    files.same(
        "no rows",
        &made(AMD64).bytes(&[function(0x100, 0, &[]), function(0x200, 2, ROWS)]),
    );
}

#[test]
fn version_1() {
    let Some(files) = Files::new(Release::V2_40) else {
        return;
    };
    common(&files, 1, &[0, 1, 2, 3]);
}

#[test]
fn version_2() {
    let Some(files) = Files::new(Release::V2_44) else {
        return;
    };
    common(&files, 2, &[0, 1, 2]);
    // With the errata, which 2.45 brought.
    let Some(files) = Files::new(Release::V2_47) else {
        return;
    };
    common(&files, 2, &[0, 1, 2, 3, 4, 5, 7]);
    let outermost = function(0x100, 2, &[0, 0x01, 1, 0x03, 8]);
    files.same("outermost", &Made::new(2, AMD64).bytes(&[outermost]));
    let rows = [
        &[0, 0x03, 0][..],             // CFA = SP + 160
        &[1, 0x07, 20, 33, 0xb8],      // RA in register 16, FP at CFA - 72
        &[2, 0x06, 20, 0, 35],         // RA not saved, FP in register 17
        &[3, 0x05, 20, 0],             // RA not saved
        &[4, 0x05, 20, 33],            // RA in register 16
        &[5, 0x85, 20, 0xd0],          // RA at CFA - 48
        &[6, 0x07, 20, 0xd0, 0],       // FP at the CFA
        &[7, 0x27, 1, 0, 0, 0, 0, 23], // two bytes a word, FP in register 11
    ];
    files.same(
        "s390x",
        &Made::new(2, S390X).bytes(&[function(0x100, 8, &rows.concat())]),
    );
    let none_saved = function(0x100, 2, &[0, 0x07, 16, 0, 0xf0, 1, 0x05, 16, 0]);
    files.same("no RA", &Made::new(2, AARCH64).bytes(&[none_saved]));
}

#[test]
fn version_3() {
    let Some(files) = Files::new(Release::V2_47) else {
        return;
    };
    common(&files, 3, &[0, 1, 4, 5]);
    let rows = [
        &[0, 0x04, 0x39, 8][..],                            // CFA = SP + 8
        &[1, 0x08, 0x39, 8, 2, 0xf8],                       // RA at CFA - 8, in words
        &[2, 0x0c, 0x39, 8, 2, 0xf8, 2, 0xf0],              // and FP at CFA - 16
        &[3, 0x06, 0x39, 8, 0],                             // padding for RA
        &[4, 0x08, 0x39, 8, 0, 0],                          // and for FP
        &[5, 0x0a, 0x39, 8, 2, 0xf8, 0],                    // for FP alone
        &[6, 0x8a, 0x39, 8, 0, 0x33, 0xf8],                 // FP at FP - 8
        &[7, 0x88, 0x39, 8, 0x19, 0],                       // RA in a register
        &[8, 0x0c, 0x3b, 8, 0x3b, 16, 0x3b, 24],            // all in memory
        &[9, 0x24, 0x39, 0, 0xf0, 0xff],                    // two bytes a word
        &[10, 0x44, 0x81, 7, 0, 0, 0xff, 0xff, 0xff, 0xff], // four, and a large register
        &[11, 0x00],                                        // outermost
    ];
    let rows = rows.concat();
    let signal = Function {
        info: 0x80,
        ..flex(0x200, 12, &rows)
    };
    let both = [flex(0x100, 12, &rows), signal];
    files.same("FLEX", &Made::new(3, AMD64).bytes(&both));
    let rows = [
        &[0, 0x04, 0xf9, 16][..],
        &[1, 0x08, 0xf9, 16, 2, 0xf8],
        &[2, 0x0c, 0xe9, 16, 2, 0xf8, 2, 0xf0],
        &[3, 0x0a, 0xe9, 16, 0, 2, 0xf0],
        &[4, 0x88, 0xf9, 16, 0x89, 0],
        &[5, 0x86, 0xf9, 16, 0],
        &[6, 0x08, 0x29, 16, 0, 0],
    ];
    let rows = rows.concat();
    for abi in [AARCH64, AARCH64_BIG, S390X] {
        files.same("FLEX", &Made::new(3, abi).bytes(&[flex(0x100, 7, &rows)]));
    }
    let rows = [
        &[0, 0x03, 0][..],
        &[1, 0x07, 20, 0xd0, 0xb8],
        &[2, 0x06, 20, 0, 0xb8],
        &[3, 0x05, 20, 0],
        &[4, 0x05, 20, 33],
    ];
    files.same(
        "s390x",
        &Made::new(3, S390X).bytes(&[function(0x100, 5, &rows.concat())]),
    );
    let outermost = [function(0x100, 0, &[]), flex(0x200, 0, &[])];
    files.same("outermost", &Made::new(3, AMD64).bytes(&outermost));
}

/// Runs `show` on bytes and gives standard output, standard error and the exit status.
fn of_bytes(arguments: &[&str], bytes: &[u8]) -> (String, String, i32) {
    let folder = scratch();
    let file = folder.path().join("table");
    std::fs::write(&file, bytes).unwrap();
    let output = show(arguments, &file);
    let errors = text(&output.stderr).replace(file.to_str().unwrap(), "FILE");
    (text(&output.stdout), errors, output.status.code().unwrap())
}

#[test]
fn damage_is_told_after_what_could_be_shown() {
    let whole = Made::new(3, AMD64).bytes(&[function(0x100, 2, ROWS), function(0x200, 2, ROWS)]);
    let (all, errors, status) = of_bytes(&[], &whole);
    assert_eq!((errors.as_str(), status), ("", 0));
    let parts: Vec<&str> = all.split_inclusive("\n\n").collect();

    // The second row of the second function has an unknown word size.
    let mut bytes = whole.clone();
    let last_row = bytes.len() - 4;
    bytes[last_row + 1] |= 0x60;
    let (shown, errors, status) = of_bytes(&[], &bytes);
    let until = all.trim_end().rfind('\n').unwrap();
    assert_eq!(shown, all[..=until]);
    let place = format!("{:#x}", last_row + 1);
    let expected = format!("backtrail: FILE: fde[1].row[1]: word size 3 is not known at offset {place}\n");
    assert_eq!((errors, status), (expected, 2));
    let (json, errors, status) = of_bytes(&["--json"], &bytes);
    assert_eq!(
        errors,
        format!("backtrail: FILE: fde[1].row[1]: word size 3 is not known at offset {place}\n")
    );
    assert_eq!(status, 2);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["functions"][1]["rows"].as_array().unwrap().len(), 1);
    assert_eq!(
        json[0]["functions"][1]["error"],
        format!("fde[1].row[1]: word size 3 is not known at offset {place}")
    );

    // Neither function can be read.
    let mut bytes = whole.clone();
    for at in [28 + 12, 28 + 16 + 12] {
        bytes[at..at + 4].copy_from_slice(&[0xff; 4]);
    }
    let (shown, errors, status) = of_bytes(&[], &bytes);
    assert!(shown.ends_with("Function Index :\n"), "{shown}");
    assert!(
        errors.starts_with("backtrail: FILE: fde[0]: ") && errors.ends_with(", and 1 more like this\n"),
        "{errors}"
    );
    assert_eq!((errors.lines().count(), status), (1, 2));

    // Cut off in the last row: what is there is shown.
    let (shown, errors, status) = of_bytes(&[], &whole[..whole.len() - 1]);
    assert_eq!(shown, all[..=until]);
    assert!(errors.contains("ends 1 bytes too early"), "{errors}");
    assert_eq!(status, 2);
    // Cut off in the table of functions, of which the first is whole; its rows are not.
    let (shown, _, status) = of_bytes(&[], &whole[..28 + 20]);
    assert!(shown.starts_with(parts[0]) && status == 2, "{shown}");
    assert_eq!(of_bytes(&[], &whole[..20]).2, 2);
}

#[test]
fn strict_tells_every_finding() {
    let section = Made {
        flags: 0x41,
        ..Made::new(3, AMD64)
    };
    let bytes = section.bytes(&[
        function(0x100, 2, ROWS),
        function(0x120, 2, &[1, 0x03, 8, 1, 0x87, 16, 0xf0, 0]),
    ]);
    let (shown, errors, status) = of_bytes(&["--strict"], &bytes);
    assert!(shown.contains("func idx [1]"));
    let rows = 28 + 2 * 16 + 2 * 5 + ROWS.len();
    let expected = [
        "header.flags: unknown flags 0x40 at offset 0x3".to_owned(),
        "fde[1].start: function starts 32 bytes before the end of another at offset 0x2c".to_owned(),
        format!(
            "fde[1].row[1].start: row starts at 0x1, not after the one before it at offset {:#x}",
            rows + 3
        ),
        format!(
            "fde[1].row[1].info: bits 0x80 have no meaning here at offset {:#x}",
            rows + 4
        ),
        format!("fde[1].row[1].info: row of 3 words at offset {:#x}", rows + 4),
    ];
    let lines: Vec<String> = expected
        .iter()
        .map(|line| format!("backtrail: FILE: {line}\n"))
        .collect();
    assert_eq!((errors, status), (lines.concat(), 1));
    let (json, _, status) = of_bytes(&["--strict", "--json"], &bytes);
    let json: Value = serde_json::from_str(&json).unwrap();
    let findings = json[0]["findings"].as_array().unwrap();
    assert_eq!((findings.len(), status), (5, 1));
    assert_eq!(findings[2]["path"], "fde[1].row[1].start");
    let fine = Made::new(3, AMD64).bytes(&[function(0x100, 2, ROWS)]);
    assert_eq!(of_bytes(&["--strict"], &fine).2, 0);
}

#[test]
fn what_is_no_table() {
    let (shown, errors, status) = of_bytes(&[], b"#!/bin/sh\n");
    assert_eq!(shown, "");
    assert_eq!(
        errors,
        "backtrail: FILE: no SFrame section: magic number 0x2123 at offset 0x0\n"
    );
    assert_eq!(status, 2);
    assert_eq!(of_bytes(&[], b"").2, 2);
    let Some(files) = Files::new(Release::V2_47) else {
        return;
    };
    let section = Made::new(3, AMD64).bytes(&[function(0x100, 2, ROWS)]);
    let object = files.object(&section, ".ctf_frame");
    let output = show(&[], &object);
    let errors = text(&output.stderr);
    assert!(
        errors.contains(".ctf_frame") && errors.contains("version 0"),
        "{errors}"
    );
    assert_eq!((errors.lines().count(), output.status.code()), (2, Some(2)));
    let object = files.object(&section, ".other");
    let output = show(&[], &object);
    assert!(
        text(&output.stderr).contains(": no .sframe section\nhelp: "),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(2));
}
