//! `backtrail sframe size`: its figures against those of readelf's section headers, and of the
//! tables that `build` makes.

use std::path::Path;
use std::process::{Command, Output};

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{elf_file, scratch};
use serde_json::Value;

fn backtrail(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.arg("sframe").args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A program with thousands of functions; a test build of the command has ten times as many.
fn some_program() -> &'static str {
    const GIT: &str = "/usr/bin/git";
    let is_there = Path::new(GIT).exists();
    if is_there { GIT } else { env!("CARGO_BIN_EXE_backtrail") }
}

#[test]
fn figures_are_those_of_sections_and_of_built_tables() {
    let folder = scratch();
    let (source, program, raw) = (
        folder.path().join("p.c"),
        folder.path().join("p"),
        folder.path().join("raw"),
    );
    std::fs::write(
        &source,
        "int main(int n, char **v) { char *s = __builtin_alloca(n); return s == v[0]; }\n",
    )
    .unwrap();
    let Some(binutils) = Binutils::get(Release::V2_40) else {
        return;
    };
    let mut gcc = Command::new("gcc");
    gcc.arg("-B")
        .arg(binutils.for_gcc(Machine::X86_64))
        .arg("-Wa,--gsframe");
    assert!(gcc.arg("-o").arg(&program).arg(&source).status().unwrap().success());

    let output = backtrail(&["size", "--json", text(&program), some_program()]);
    assert!(output.status.success(), "{output:?}");
    let files = json(&output);
    for file in files.as_array().unwrap() {
        let path = file["file"].as_str().unwrap();
        let bytes = std::fs::read(path).unwrap();
        let section = |name| elf_file::section(&bytes, name).map(|range| range.len() as u64);
        assert_eq!(file["eh_frame"].as_u64(), section(".eh_frame"), "{path}");
        assert_eq!(file["eh_frame_hdr"].as_u64(), section(".eh_frame_hdr"), "{path}");
        assert_eq!(file["present"].as_u64(), section(".sframe"), "{path}");
        for version in ["1", "2", "3"] {
            let ways: [(&str, &[&str]); 3] = [
                ("unshared", &["--no-share", "--merge", "1"]),
                ("shared", &["--merge", "1"]),
                ("merged", &[]),
            ];
            for (name, options) in ways {
                let build = ["build", path, "-q", "-o", text(&raw), "--version", version];
                let built = backtrail(&[&build, options].concat());
                assert!(built.status.success(), "{built:?}");
                let expected = std::fs::metadata(&raw).unwrap().len();
                assert_eq!(
                    file["built"][version][name].as_u64(),
                    Some(expected),
                    "{path}, {version}, {name}"
                );
            }
        }
    }
    let [small, large] = [0, 1].map(|index| &files[index]);
    assert!(small["present"].is_u64() && large["present"].is_null());
    let sizes = ["merged", "shared", "unshared"].map(|name| large["built"]["3"][name].as_u64().unwrap());
    assert!(sizes.is_sorted() && sizes[0] < sizes[1] && sizes[1] < sizes[2]);
}

#[test]
fn the_table_has_a_line_for_each_file_and_one_for_all() {
    let program = some_program();
    let output = backtrail(&["size", program, program]);
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert_eq!(lines[1], lines[2]);
    // The sizes of both together are as parts of .eh_frame what each one's are.
    let count = lines[1].len();
    assert_eq!(
        (lines[3][count - 1], &lines[3][1..count - 1]),
        ("total", &lines[1][1..count - 1])
    );
    let bytes = |line: &[&str]| line[0].parse::<u64>().unwrap();
    assert_eq!(bytes(&lines[3]), 2 * bytes(&lines[1]));
}

#[test]
fn what_cannot_be_measured_is_told() {
    let folder = scratch();
    let other = folder.path().join("other");
    std::fs::write(&other, "no program").unwrap();
    let missing = folder.path().join("missing");
    let output = backtrail(&["size", "--json", text(&other), some_program(), text(&missing)]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(json(&output).as_array().unwrap().len(), 1);
    let errors = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<&str> = errors.lines().filter(|line| line.starts_with("backtrail: ")).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("other: not an ELF file") && errors[1].contains("missing: "));
}
