//! "Reading and look-up allocate nothing, never panic and have no unsafe code": checked in the
//! object code of a release build, for just the functions that they reach.

use std::path::Path;
use std::sync::OnceLock;

use backtrail_testkit::reached::{Compiler, FRAME, mentions};

/// Symbol names that code refers to if it may panic or allocate.
const FORBIDDEN: [&str; 3] = ["panicking", "__rust_alloc", "5alloc"];

/// Calls that are safe in a signal handler, and validation. Each becomes a separate function that
/// nothing else needs.
const CALLS: &str = r#"
use backtrail_sframe::{Abi, ErrorKind, Flags, Index, Row, Rule, Section, Version};
use backtrail_sframe::validate::validate;
use core::ops::ControlFlow;

fn fold_rule(rule: Option<Rule>) -> i64 {
    let Some(rule) = rule else { return -1 };
    let fp = rule.fp.map_or(0, |fp| i64::from(fp.offset));
    i64::from(rule.cfa.offset) ^ i64::from(rule.ra.offset) << 20 ^ fp << 40 ^ i64::from(rule.mangled_ra)
}

fn fold_row(row: Row) -> i64 {
    fold_rule(row.rule).wrapping_add(row.start.into())
}

#[no_mangle]
pub fn audited_parse(bytes: &[u8], address: u64) -> u64 {
    match Section::parse(bytes, address) {
        Ok(section) => {
            let same = section.abi() == Abi::Amd64Little && section.version() == Version::V3;
            u64::from(section.num_fdes()) + u64::from(section.num_fres()) + section.size() as u64
                + u64::from(section.flags().contains(Flags::FDE_SORTED)) + u64::from(same)
                + u64::from(section.auxiliary_header_len()) + section.address()
                & (section.fixed_fp_offset() as u64 | section.fixed_ra_offset() as u64)
        }
        Err(error) => error.offset + u64::from(matches!(error.kind, ErrorKind::Truncated { .. })),
    }
}

#[no_mangle]
pub fn audited_parse_lenient(bytes: &[u8], address: u64) -> u64 {
    Section::parse_lenient(bytes, address).map_or(0, |(section, missing)| {
        section.size() as u64 + u64::from(missing.is_some())
    })
}

#[no_mangle]
pub fn audited_lookup(section: &Section<'_>, pc: u64) -> i64 {
    match section.lookup(pc) {
        Ok(Some(found)) => fold_row(found.row).wrapping_add(found.function.start as i64),
        Ok(None) => -2,
        Err(error) => error.offset as i64,
    }
}

#[no_mangle]
pub fn audited_lookup_by(section: &Section<'_>, words: &mut [u32], pc: u64) -> i64 {
    let Some(index) = Index::build(section, words) else { return (Index::words(section) + Index::words_with_rows(section)) as i64 };
    match section.lookup_by(&index, pc) {
        Ok(Some(found)) => fold_row(found.row).wrapping_add(found.function.start as i64),
        Ok(None) => -2,
        Err(error) => error.offset as i64,
    }
}

#[no_mangle]
pub fn audited_functions(section: &Section<'_>) -> i64 {
    let mut sum = section.functions().len() as i64;
    for fde in section.functions() {
        match fde {
            Ok(fde) => {
                let function = fde.function();
                sum = sum.wrapping_add(function.start as i64).wrapping_add(function.size.into());
                for row in fde.rows() {
                    sum = sum.wrapping_add(row.map_or(1, fold_row));
                }
            }
            Err(error) => sum = sum.wrapping_add(error.offset as i64),
        }
    }
    sum
}

#[no_mangle]
pub fn audited_fde(section: &Section<'_>, index: u32) -> i64 {
    section.starts_relative_to_field().fde(index).map_or(0, |fde| fde.function().size.into())
}

#[no_mangle]
pub fn audited_validate(bytes: &[u8], address: u64) -> u64 {
    let mut count = 0u64;
    validate(bytes, address, &mut |finding| {
        count = count.wrapping_add(finding.offset);
        ControlFlow::Continue(())
    });
    count + u64::from(Section::parse_strict(bytes, address).is_ok())
}
"#;

/// May panic, to check that the search finds it.
const PANICS: [&str; 2] = [
    "#[no_mangle]\npub fn audited_index(bytes: &[u8], at: usize) -> u8 { bytes[at] }\n",
    "#[no_mangle]\npub fn audited_unwrap(bytes: &[u8]) -> u32 {\n\
         backtrail_sframe::Section::parse(bytes, 0).unwrap().num_fdes()\n\
     }\n",
];

/// Allocates, to check that the search finds it.
const ALLOCATES: &str = "#[no_mangle]\npub fn audited_box(value: u64) -> Box<u64> { Box::new(value) }\n";

fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let mut compiler = Compiler::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("promises"));
        for folder in ["wire", "arch", "sframe"] {
            compiler.dependency(folder, &["-Funsafe_code"]);
        }
        compiler
    })
}

#[test]
fn what_reading_and_lookup_reach_has_no_way_to_panic_or_to_allocate() {
    let object = compiler().reached("audited", &[FRAME, CALLS].concat());
    let functions = CALLS
        .split("pub fn ")
        .skip(1)
        .map(|text| text.split('(').next().unwrap());
    for function in functions {
        assert!(mentions(&object, function), "{function} was compiled");
    }
    for name in FORBIDDEN {
        assert!(!mentions(&object, name), "the object code mentions {name}");
    }
}

#[test]
fn what_panics_or_allocates_is_found() {
    let compiler = compiler();
    for (number, text) in PANICS.iter().enumerate() {
        let object = compiler.reached(&format!("panics{number}"), &[FRAME, text].concat());
        assert!(mentions(&object, "panicking"), "{text}");
    }
    let object = compiler.reached("allocates", ALLOCATES);
    for name in ["__rust_alloc", "5alloc"] {
        assert!(mentions(&object, name), "{name}");
    }
}
