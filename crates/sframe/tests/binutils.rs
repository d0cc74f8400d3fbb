//! What the installed assembler and linker make, compared with what the installed readelf prints for it.

mod common;

use std::path::Path;
use std::process::Command;

use backtrail_sframe::write::{self, Options};
use backtrail_sframe::{Abi, Section, Version, dump};

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static int compare(const void *a, const void *b) { return *(const char *)a - *(const char *)b; }
int sum(int n, ...) {
    __builtin_va_list list; int all = 0;
    __builtin_va_start(list, n);
    while (n--) all += __builtin_va_arg(list, int);
    __builtin_va_end(list);
    return all;
}
int main(int count, char **arguments) {
    char *place = __builtin_alloca(count * 16);
    snprintf(place, 16, "%s %d", arguments[0], sum(3, 1, 2, count));
    qsort(place, 3, 1, compare);
    return puts(place) < 0;
}
"#;

fn run(command: &mut Command) -> Option<Vec<u8>> {
    let output = command.output().ok()?;
    output.status.success().then_some(output.stdout)
}

/// The section, its address and the text of readelf, of a program made with the C compiler's options.
fn linked(folder: &Path, options: &[&str]) -> Option<(Vec<u8>, u64, String)> {
    let (source, program, raw) = (folder.join("p.c"), folder.join("p"), folder.join("sframe"));
    std::fs::write(&source, PROGRAM).ok()?;
    let mut compiler = Command::new("gcc");
    compiler.arg("-Wa,--gsframe").args(options);
    run(compiler.arg(&source).arg("-o").arg(&program))?;
    let mut copy = Command::new("objcopy");
    copy.args(["-O", "binary", "--only-section=.sframe"]);
    run(copy.arg(&program).arg(&raw))?;
    let sections = String::from_utf8(run(Command::new("readelf").arg("-SW").arg(&program))?).ok()?;
    let line = sections.lines().find(|line| line.contains(" .sframe "))?;
    let fields: Vec<&str> = line.split(']').nth(1)?.split_whitespace().collect();
    let address = u64::from_str_radix(fields[2], 16).ok()?;
    let text = String::from_utf8(run(Command::new("readelf").arg("--sframe").arg(&program))?).ok()?;
    let bytes = std::fs::read(raw).ok()?;
    (!bytes.is_empty()).then_some((bytes, address, text))
}

#[test]
fn linked_programs() {
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for options in [&["-O2"][..], &["-O0"], &["-O2", "-fcf-protection=full", "-static"]] {
        let Some((bytes, address, text)) = linked(folder.path(), options) else {
            println!("SKIPPED: no assembler that makes .sframe with {options:?}");
            continue;
        };
        let section = Section::parse(&bytes, address).unwrap();
        let mut ours = String::new();
        dump::dump(&section, ".sframe", &mut ours).unwrap();
        assert_eq!(ours.trim(), text.trim(), "{options:?}");
        compared += section.num_fdes();
        agrees_with_the_second_reader(&section, &bytes, address);
        survives_rewriting(&section);
    }
    println!("{compared} functions");
}

fn agrees_with_the_second_reader(section: &Section<'_>, bytes: &[u8], address: u64) {
    let naive = common::naive::read(bytes, address);
    for (fde, expected) in section.functions().zip(&naive) {
        let rows: Vec<_> = fde.unwrap().rows().map(Result::unwrap).collect();
        assert_eq!(rows, expected.rows);
        for pc in expected.start..expected.start + expected.size {
            let found = section.lookup(pc).unwrap();
            let expected = common::naive::look_up(std::slice::from_ref(expected), pc);
            assert_eq!(found.map(|found| found.row), expected.map(|(_, row)| row), "{pc:#x}");
        }
    }
}

/// The section in every version says the same, and is not larger in its own.
fn survives_rewriting(section: &Section<'_>) {
    let functions: Vec<write::FunctionRows> = section
        .functions()
        .map(|fde| write::FunctionRows::read(&fde.unwrap()).unwrap())
        .collect();
    for version in Version::ALL {
        let options = Options::new(version, Abi::Amd64Little, section.address());
        let output = write::section(&functions, &options).unwrap();
        assert_eq!(output.skipped, []);
        if version == section.version() {
            assert!(output.bytes.len() <= section.size());
        }
        let again = Section::parse(&output.bytes, section.address()).unwrap();
        for function in &functions {
            for pc in function.start..function.start + u64::from(function.size) {
                let [one, other] = [section, &again].map(|section| section.lookup(pc).unwrap());
                assert_eq!(
                    one.map(|found| found.row.rule),
                    other.map(|found| found.row.rule),
                    "{pc:#x}"
                );
            }
        }
        println!("{version:?}: {} of {} bytes", output.bytes.len(), section.size());
    }
}
