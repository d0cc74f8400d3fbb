//! Sections from the assembler and linker of each release: our text equals that of its readelf, and
//! rows and look-ups equal those of the second reader.

use crate::common;

use std::path::Path;
use std::process::Command;

use backtrail_sframe::write::{self, Options, Reason};
use backtrail_sframe::{Abi, Section, Version, dump};
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::skip;

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

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The section, its address and readelf's text, for a program built with the C compiler's options.
fn linked(binutils: &Binutils, machine: Machine, folder: &Path, options: &[&str]) -> (Vec<u8>, u64, String) {
    let (source, program, raw) = (folder.join("p.c"), folder.join("p"), folder.join("sframe"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut compiler = Command::new(format!("{}-gcc", machine.triplet()));
    compiler.arg("-B").arg(binutils.for_gcc(machine)).arg("-Wa,--gsframe");
    run(compiler.args(options).arg(&source).arg("-o").arg(&program));
    let tool = |name: &str| binutils.tool(machine, name).command();
    let mut copy = tool("objcopy");
    copy.args(["-O", "binary", "--only-section=.sframe"]);
    run(copy.arg(&program).arg(&raw));
    let sections = run(tool("readelf").arg("-SW").arg(&program));
    let line = sections.lines().find(|line| line.contains(" .sframe ")).unwrap();
    let fields: Vec<&str> = line.split(']').nth(1).unwrap().split_whitespace().collect();
    let address = u64::from_str_radix(fields[2], 16).unwrap();
    let text = run(tool("readelf").arg("--sframe").arg(&program));
    (std::fs::read(raw).unwrap(), address, text)
}

fn linked_programs(release: Release, machine: Machine, options: &[&[&str]]) {
    let Some(binutils) = Binutils::get(release) else { return };
    let compiler = format!("{}-gcc", machine.triplet());
    if !binutils.has(machine) || Command::new(&compiler).arg("--version").output().is_err() {
        skip(format!("no {compiler}, or no binutils {} for it", release.number()));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for options in options {
        let (bytes, address, text) = linked(&binutils, machine, folder.path(), options);
        let section = Section::parse_strict(&bytes, address).unwrap();
        assert_eq!(section.version() as u8, release.sframe_version());
        let mut ours = String::new();
        dump::dump(&section, ".sframe", &mut ours).unwrap();
        assert_eq!(ours, text, "{} {machine:?} {options:?}", release.number());
        compared += section.num_fdes();
        agrees_with_the_second_reader(&section, &bytes, address);
        survives_rewriting(&section);
    }
    println!("{} {machine:?}: {compared} functions", release.number());
    assert!(compared >= 6);
}

#[test]
fn x86_64() {
    for release in Release::ALL {
        let options = [&["-O2"][..], &["-O0"], &["-O2", "-fcf-protection=full", "-static"]];
        linked_programs(release, Machine::X86_64, &options);
    }
}

#[test]
fn aarch64() {
    for release in Release::ALL {
        let options = [
            &["-O2"][..],
            &["-O0"],
            &["-O2", "-mbranch-protection=pac-ret+b-key", "-static"],
        ];
        linked_programs(release, Machine::Aarch64, &options);
    }
}

#[test]
fn s390x() {
    linked_programs(
        Release::V2_47,
        Machine::S390x,
        &[&["-O2"], &["-O1", "-mbackchain", "-static"]],
    );
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

/// Rewriting the section in every version keeps its contents, and in its own version the size does
/// not grow.
fn survives_rewriting(section: &Section<'_>) {
    let functions: Vec<write::FunctionRows> = section
        .functions()
        .map(|fde| write::FunctionRows::read(&fde.unwrap()).unwrap())
        .collect();
    // Version 1 does not know s390x.
    let versions = Version::ALL.into_iter();
    for version in versions.filter(|version| *version != Version::V1 || section.abi() != Abi::S390xBig) {
        let options = Options::new(version, section.abi(), section.address());
        let output = write::section(&functions, &options).unwrap();
        // Version 1 does not store the size of repeated blocks: they have 16 bytes, but those of
        // .plt.got have 8.
        let unsaid = |skipped: &write::Skipped| version == Version::V1 && skipped.reason == Reason::Repeat;
        assert!(output.skipped.iter().all(unsaid), "{:?}", output.skipped);
        if version == section.version() {
            assert!(output.bytes.len() <= section.size());
        }
        let again = Section::parse(&output.bytes, section.address()).unwrap();
        let skipped = |start: u64| output.skipped.iter().any(|skipped| skipped.start == start);
        for function in functions.iter().filter(|function| !skipped(function.start)) {
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
