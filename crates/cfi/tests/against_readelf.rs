//! A small program with every special case, freshly compiled: GNU readelf's own interpretation of
//! its call frame information equals the converted rows.

use crate::common;

use std::collections::BTreeMap;
use std::process::Command;

use backtrail_cfi::tables;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::{Base, Location};
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
        let text = String::from_utf8_lossy(&dump.stdout);
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
                            cfa_text(&image, rule.cfa)
                        };
                        assert_eq!(cells["CFA"], cfa, "{line}");
                        assert_eq!(cells["ra"], saved_text(&image, Some(rule.ra)), "{line}");
                        let fp = cells.get("rbp").copied().unwrap_or("u");
                        assert_eq!(fp, saved_text(&image, rule.fp), "{line}");
                        special += usize::from(cfa == "exp" || fp == "exp");
                    }
                }
                checked += 1;
            }
        }
    }
    println!("{checked} rows, {special} with expressions");
    assert!(checked > 60 && special > 2);
}
