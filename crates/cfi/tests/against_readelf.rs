//! A small program with every special case, freshly compiled: GNU readelf's own interpretation of
//! its call frame information equals the converted rows.

use crate::common;

use std::collections::BTreeMap;
use std::process::Command;

use backtrail_cfi::eh_frame::Converted;
use backtrail_cfi::tables;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::{Base, Location};
use backtrail_testkit::peers::{Binutils, Machine, Release};
use common::row_at;

const SOURCE: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
__attribute__((noinline)) int aligned(int n) { char buf[64] __attribute__((aligned(64))); memset(buf, n, 64); char *v = alloca(n + 1); v[n] = 1; return buf[n & 63] + v[n] + puts(v); }
__attribute__((noinline)) int many(int a, int b, int c, int d, int e, int f, int g, int h) { int x = rand(); if (a) x += many(b, c, d, e, f, g, h, a - 1) * b; return x + c * d + e + f * g + h; }
__attribute__((noinline)) int early(int a) { if (a == 1) return 2; int *p = malloc(a); int r = rand() + *p; free(p); return r; }
int main(int argc, char **argv) { (void)argv; return aligned(argc) + many(argc, 2, 3, 4, 5, 6, 7, 8) + early(argc); }
"#;

/// A place as readelf writes it: the name of the register, and the offset with its sign.
fn cfa_text(image: &Image<'_>, location: Location) -> String {
    let Base::Register(number) = location.base else {
        panic!("a CFA from the CFA")
    };
    if location.deref {
        return "exp".into();
    }
    let name = image.arch().register_name(backtrail_arch::Register(number)).unwrap();
    format!("{name}{:+}", location.offset)
}

fn saved_text(image: &Image<'_>, location: Option<Location>) -> String {
    match location {
        None => "u".into(),
        Some(Location {
            base: Base::Cfa,
            offset,
            deref: true,
        }) => format!("c{offset:+}"),
        Some(Location {
            base: Base::Register(number),
            offset: 0,
            deref: false,
        }) => image
            .arch()
            .register_name(backtrail_arch::Register(number))
            .unwrap()
            .into(),
        Some(_) => "exp".into(),
    }
}

/// How many rows were compared, and how many of them have expressions.
#[derive(Default)]
struct Rows {
    checked: usize,
    special: usize,
}

/// Compares with readelf's table of all frames; `fp` is its name of the frame pointer.
fn compare(image: &Image<'_>, converted: &Converted, text: &str, fp: &str) -> Rows {
    let mut rows = Rows::default();
    let mut columns: Vec<&str> = Vec::new();
    let mut in_fde = false;
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if line.contains(" CIE ") || line.contains(" FDE ") {
            in_fde = line.contains(" FDE ");
            columns.clear();
        } else if fields.first() == Some(&"LOC") {
            columns = fields;
        } else if in_fde && !columns.is_empty() && fields.len() == columns.len() {
            let cells: BTreeMap<&str, &str> = columns.iter().copied().zip(fields.iter().copied()).collect();
            let pc = u64::from_str_radix(cells["LOC"], 16).unwrap();
            let function = converted.find(pc).unwrap_or_else(|| panic!("no rows: {line}"));
            let row = row_at(&function.rows, function.repeat, pc - function.start);
            match row.rule {
                None => assert_eq!(cells["ra"], "u", "{line}"),
                Some(rule) => {
                    // readelf only prints `exp` for an expression; a table of repeated blocks
                    // has one.
                    let cfa = if function.repeat.is_some() {
                        "exp".into()
                    } else {
                        cfa_text(image, rule.cfa)
                    };
                    assert_eq!(cells["CFA"], cfa, "{line}");
                    assert_eq!(cells["ra"], ra_text(image, rule.ra), "{line}");
                    let saved = cells.get(fp).copied().unwrap_or("u");
                    assert_eq!(saved, saved_text(image, rule.fp), "{line}");
                    rows.special += usize::from(cfa == "exp" || saved == "exp");
                }
            }
            rows.checked += 1;
        }
    }
    rows
}

/// A register that still holds the return address is not in readelf's table.
fn ra_text(image: &Image<'_>, location: Location) -> String {
    let arch = image.arch();
    match arch.link_register && location == Location::register(arch.ra.0, 0) {
        true => "u".into(),
        false => saved_text(image, Some(location)),
    }
}

#[test]
fn interpreted_frames() {
    if !cfg!(target_arch = "x86_64") {
        backtrail_testkit::skip("readelf's table is compared on x86-64");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("a.c"), dir.path().join("a"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut checked = 0;
    let mut special = 0;
    for options in [
        &["-O0"][..],
        &["-O2"],
        &["-O2", "-fno-omit-frame-pointer", "-fcf-protection=full"],
    ] {
        let made = Command::new("gcc")
            .args(options)
            .arg("-Wl,-z,lazy")
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .status();
        let dump = Command::new("readelf")
            .args(["-W", "--debug-dump=frames-interp"])
            .arg(&program)
            .output();
        let (Ok(true), Ok(dump)) = (made.map(|status| status.success()), dump) else {
            backtrail_testkit::skip("no gcc or readelf");
            return;
        };
        let file = FileBytes::open(&program).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let converted = tables::convert(&image).unwrap();
        let rows = compare(&image, &converted, &String::from_utf8_lossy(&dump.stdout), "rbp");
        checked += rows.checked;
        special += rows.special;
    }
    println!("{checked} rows, {special} with expressions");
    assert!(checked > 60 && special > 2);
}

/// `DW_CFA_AARCH64_negate_ra_state_with_pc`, which older assemblers do not know. readelf does not
/// show which rows have a signed return address: the instructions do.
#[test]
fn return_addresses_signed_with_the_program_counter() {
    let Some(binutils) = Binutils::get(Release::V2_47) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (object, program) = (dir.path().join("a.o"), dir.path().join("a"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/signs_with_pc.s");
    let run = |tool: &str, arguments: &[&std::ffi::OsStr]| {
        let mut command = binutils.tool(Machine::Aarch64, tool).command();
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run("as", &["-o".as_ref(), object.as_ref(), source.as_ref()]);
    run(
        "ld",
        &[
            "-e".as_ref(),
            "signs".as_ref(),
            "-o".as_ref(),
            program.as_ref(),
            object.as_ref(),
        ],
    );
    let dump = run(
        "readelf",
        &["-W".as_ref(), "--debug-dump=frames-interp".as_ref(), program.as_ref()],
    );
    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let converted = tables::convert(&image).unwrap();
    assert_eq!(converted.skipped, []);
    let rows = compare(&image, &converted, &String::from_utf8_lossy(&dump), "x29");
    assert_eq!(rows.checked, 11);
    let signed = |function: usize| -> Vec<(u32, bool)> {
        let rows = converted.functions[function].rows.iter();
        rows.filter_map(|row| Some((row.start, row.rule?.mangled_ra))).collect()
    };
    let mut before_authentication = signed(0).into_iter().filter(|(start, _)| !(28..36).contains(start));
    assert!(before_authentication.all(|(_, signed)| signed));
    assert!(signed(0).contains(&(28, false)) && signed(0).contains(&(36, true)));
    assert_eq!(signed(1).first(), Some(&(0, false)));
    assert_eq!(signed(1)[1], (4, true));
}
