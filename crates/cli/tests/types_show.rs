//! `backtrail types show`, held against objdump of three releases, on what gcc and their linkers
//! make.

use crate::types;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{place, scratch};
use types::{Tools, corpus, kinds, must};

fn show(like: &str, files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.args(["types", "show", "--like", like]).args(files);
    command.output().unwrap()
}

/// Every release's objdump of the machine must say what we say.
fn compare(tools: &Tools, file: &Path) -> usize {
    let mut lines = 0;
    for release in Release::ALL {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        let theirs = must(binutils.tool(tools.machine, "objdump").command().arg("--ctf").arg(file));
        assert!(theirs.contains("  Types:\n    0x"), "{theirs}");
        let output = show(release.number(), &[file]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{file:?}");
        assert_eq!(output.status.code(), Some(0), "{file:?}");
        let ours = String::from_utf8(output.stdout).unwrap();
        for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
            assert_eq!(ours, theirs, "{file:?}, binutils {}, line {number}", release.number());
        }
        assert_eq!(ours.len(), theirs.len(), "{file:?}");
        lines += ours.lines().count();
    }
    lines
}

/// Objects, and what a linker makes of them: relocatable, shared, and a program with and without
/// exported symbols.
fn objects_and_linked(tools: &Tools, name: &str, sources: &[PathBuf], has_main: bool) {
    let objects: Vec<PathBuf> = sources.iter().map(|source| tools.compile(source)).collect();
    let mut files = objects.clone();
    let mut kinds: Vec<&[&str]> = vec![&["-shared"], &["-r"]];
    kinds.push(&["-shared", "-Wl,--ctf-share-types=share-duplicated"]);
    // GNU ld crashes with the variables whose types can't be represented.
    if name != "kinds" {
        kinds.push(&["-shared", "-Wl,--ctf-variables"]);
    }
    if has_main {
        kinds.extend([&["-pie"][..], &["-rdynamic"]]);
    }
    for (number, flags) in kinds.into_iter().enumerate() {
        files.push(tools.link(flags, &objects, &format!("{name}{number}")));
    }
    let lines: usize = files.iter().map(|file| compare(tools, file)).sum();
    println!("{name} {:?}: {} files, {lines} lines", tools.machine, files.len());
}

fn everything(release: Release, machine: Machine) {
    let Some(tools) = Tools::new(release, machine) else {
        return;
    };
    objects_and_linked(&tools, "kinds", &kinds(), false);
    compare(&tools, &tools.compile(&place::programs().join("types_large.c")));
    for (part, has_main) in [("talk", true), ("names", false)] {
        if let Some(sources) = corpus(part) {
            objects_and_linked(&tools, part, &sources, has_main);
        }
    }
    // A file whose symbols are gone still has the dynamic ones.
    let stripped = tools.path("stripped");
    must(
        tools
            .command("strip")
            .arg(tools.path("kinds0"))
            .arg("-o")
            .arg(&stripped),
    );
    compare(&tools, &stripped);
}

#[test]
fn x86_64() {
    for release in Release::ALL {
        everything(release, Machine::X86_64);
    }
}

#[test]
fn aarch64() {
    everything(Release::V2_47, Machine::Aarch64);
}

#[test]
fn s390x_is_big_endian() {
    for release in Release::ALL {
        everything(release, Machine::S390x);
    }
}

/// Types of the C library's headers, which real programs have by the thousand.
#[test]
fn headers() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let object = tools.compile_headers();
    let lines = compare(&tools, &object);
    assert!(lines > 6000, "only {lines} lines");
    compare(&tools, &tools.link(&["-shared"], &[object], "headers.so"));
}

#[test]
fn several_files_and_bad_ones() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let object = tools.compile(&kinds()[0]);
    let none = tools.path("none.o");
    must(
        Command::new("gcc")
            .args(["-x", "c", "-c", "/dev/null", "-o"])
            .arg(&none),
    );
    let output = show("2.47", &[&object, &none, &object]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches("struct nested (size 0x20)").count() % 2, 0);
    assert_eq!(text.matches("Contents of CTF section").count(), 2);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("none.o: no .ctf section, and no .BTF\nhelp: "), "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");
}

/// Related formats are named.
#[test]
fn other_formats() {
    let folder = scratch();
    let mut version_4 = vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
    version_4.resize(24, 0);
    version_4.extend((0xd167_ae03_a2c5_u64 << 16 | 5).to_le_bytes());
    let cases: [(&[u8], &str); 5] = [
        (&[0x9f, 0xeb, 2, 0], "version 2 of BTF is not known"),
        (&version_4, "CTF version 4, which is not read"),
        (&[0xcf, 0xf1, 2, 0], "the CTF of Solaris, illumos and the BSDs"),
        (&[0xf1, 0xcf, 2, 0], "the CTF of Solaris, illumos and the BSDs"),
        (b"hello, world", "no compact C types: magic number 0x6568 at offset 0x0"),
    ];
    for (bytes, expected) in cases {
        let file = folder.path().join("section");
        fs::write(&file, bytes).unwrap();
        let output = show("2.47", &[&file]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(expected), "{told}");
        assert_eq!(output.status.code(), Some(2));
    }
}
