//! Tables built from real files, as each release of GNU readelf prints them: sharing rows does not
//! change the output, and ranges of several functions give the same rules for every address.

use std::path::Path;
use std::process::Command;

use backtrail_cfi::eh_frame::Converted;
use backtrail_cfi::tables;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::Version;
use backtrail_sframe::write::Options;
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{scratch, skip};

/// The output of readelf from `binutils` for a section with these bytes at address 0.
fn printed(binutils: &Binutils, bytes: &[u8]) -> String {
    let folder = scratch();
    let (raw, source, object) = (
        folder.path().join("raw"),
        folder.path().join("p.s"),
        folder.path().join("p.o"),
    );
    std::fs::write(&raw, bytes).unwrap();
    // From V3 on the section has its own type.
    let kind = match binutils.release() {
        Release::V2_47 => "0x6ffffff4",
        _ => "progbits",
    };
    let text = format!(".section .sframe,\"a\",@{kind}\n.incbin \"{}\"\n", raw.display());
    std::fs::write(&source, text).unwrap();
    run(binutils
        .tool(Machine::X86_64, "as")
        .command()
        .arg("-o")
        .arg(&object)
        .arg(&source));
    run(binutils
        .tool(Machine::X86_64, "readelf")
        .command()
        .arg("--sframe")
        .arg(&object))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The printed rules for the code from `start` to `end`.
#[derive(Debug, PartialEq)]
struct Printed {
    start: u64,
    end: u64,
    rule: String,
}

/// The rows of all functions except those of repeated blocks, which are printed from the start of
/// the block.
fn rows(text: &str) -> Vec<Printed> {
    let mut rows: Vec<Printed> = Vec::new();
    let mut function_end = 0;
    let mut repeated = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("func idx") {
            let field = |name: &str| line.split(name).nth(1).unwrap().split([',', ' ']).next().unwrap();
            let start = u64::from_str_radix(field("pc = 0x"), 16).unwrap();
            function_end = start + field("size = ").parse::<u64>().unwrap();
            repeated = false;
        } else if line.starts_with("STARTPC") {
            repeated = line.starts_with("STARTPC[m]");
        } else if let Some((start, rule)) = line.split_once(char::is_whitespace)
            && start.len() == 16
            && let Ok(start) = u64::from_str_radix(start, 16)
            && !repeated
        {
            if let Some(last) = rows.last_mut().filter(|last| last.end > start) {
                last.end = start;
            }
            rows.push(Printed {
                start,
                end: function_end,
                rule: rule.trim().to_owned(),
            });
        }
    }
    rows
}

fn converted(path: &Path) -> Option<(Converted, Options)> {
    let Ok(file) = FileBytes::open(path) else {
        skip(format!("{} is not there", path.display()));
        return None;
    };
    let image = Image::parse(file.bytes()).unwrap();
    let options = Options::new(Version::V1, tables::abi(&image), 0);
    Some((tables::convert(&image).unwrap(), options))
}

#[test]
fn readelf_sees_the_same() {
    let versions = [
        (Release::V2_40, Version::V1),
        (Release::V2_44, Version::V2),
        (Release::V2_47, Version::V3),
    ];
    for path in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/aarch64-linux-gnu/lib/libc.so.6",
    ] {
        let Some((converted, options)) = converted(Path::new(path)) else {
            continue;
        };
        for (release, version) in versions {
            let Some(binutils) = Binutils::get(release) else {
                continue;
            };
            let [apart, shared, merged] = [(false, 1), (true, 1), (true, 8)].map(|(share, merge)| {
                let output = converted.write(&Options {
                    version,
                    pcrel: version == Version::V3,
                    share,
                    merge,
                    ..options
                });
                output.unwrap()
            });
            assert!(merged.bytes.len() < shared.bytes.len() && shared.bytes.len() < apart.bytes.len());
            let [apart, shared, merged] = [&apart, &shared, &merged].map(|output| printed(&binutils, &output.bytes));
            // The lines before the functions contain the numbers of rows and bytes.
            let body = |text: &str| text[text.find("func idx").unwrap()..].to_owned();
            assert!(
                body(&apart) == body(&shared),
                "{path}, {version:?}: shared rows are seen"
            );
            let (functions, ranges) = (rows(&apart), rows(&merged));
            assert!(functions.len() > 1000 && ranges.len() > 1000);
            assert!(ranges.is_sorted_by_key(|row| row.start));
            for row in &functions {
                let mut at = row.start;
                while at < row.end {
                    let after = ranges.partition_point(|range| range.start <= at);
                    let range = &ranges[after - 1];
                    assert!(range.end > at, "{path}, {version:?}: nothing at {at:#x}");
                    assert_eq!(range.rule, row.rule, "{path}, {version:?}, at {at:#x}");
                    at = range.end;
                }
            }
            println!(
                "{path}, {version:?}: {} rows of functions, {} of ranges",
                functions.len(),
                ranges.len()
            );
        }
    }
}
