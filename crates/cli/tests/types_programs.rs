//! Whole programs: types linked from objects and made from debug information are the same, compile
//! as C, and are read by GNU tools.
//!
//! The large ones take minutes to compile for the first time:
//! `cargo test -p backtrail --test command types_programs:: -- --include-ignored`.

use crate::types;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::objdump_types::Dicts;
use backtrail_testkit::peers::{Binutils, CProgram, Compiler, Machine, Release};
use backtrail_testkit::{TempDir, scratch, skip};
use types::{must, types};

struct Program {
    program: CProgram,
    binutils: Vec<Binutils>,
    folder: TempDir,
}

impl Program {
    fn get(name: &str) -> Option<Program> {
        Some(Program {
            program: CProgram::get(name, Compiler::Gcc)?,
            binutils: Release::ALL.into_iter().map(Binutils::get).collect::<Option<_>>()?,
            folder: scratch(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The section linked of the objects, in a copy of the program that has nothing but it; and its
    /// size.
    fn linked(&self) -> (PathBuf, usize) {
        let (section, copy) = (self.path("linked.ctf"), self.path("linked"));
        let mut link = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        link.args(["types", "link", "--quiet"]).args(&self.program.objects);
        must(link.arg("--for").arg(&self.program.linked).arg("-o").arg(&section));
        self.replaced(&section, &copy);
        (copy, fs::metadata(section).unwrap().len() as usize)
    }

    /// The section made from the debug information of a program, in a copy of ours.
    fn built(&self, from: &Path, name: &str) -> PathBuf {
        let (section, copy) = (self.path("built.ctf"), self.path(name));
        let mut build = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        let build = build.args(["types", "build", "--quiet"]).arg(from);
        // Anything that cannot be expressed is reported, which is not a failure.
        assert!(build.arg("-o").arg(&section).status().unwrap().success());
        self.replaced(&section, &copy);
        copy
    }

    fn replaced(&self, section: &Path, copy: &Path) {
        let mut objcopy = self.binutils[2].tool(Machine::X86_64, "objcopy").command();
        let update = format!("--update-section=.ctf={}", section.display());
        must(
            objcopy
                .args(["--strip-debug", "--keep-section=.ctf"])
                .arg(update)
                .arg(&self.program.linked)
                .arg(copy),
        );
    }

    /// What each release's objdump says; none may complain. The text of the last one.
    fn dicts(&self, file: &Path) -> Dicts {
        let texts = self.binutils.iter().map(|binutils| {
            let mut objdump = binutils.tool(Machine::X86_64, "objdump").command();
            must(objdump.arg("--ctf").arg(file))
        });
        let texts: Vec<String> = texts.collect();
        Dicts::parse(&texts[2])
    }
}

/// What is printed compiles, and its assertions hold.
fn compiles(file: &Path, more: &[&str]) -> usize {
    let output = types(&[&["print", "--asserts"], more, &[file.to_str().unwrap()]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let source = file.with_extension("c");
    fs::write(&source, &output.stdout).unwrap();
    must(Command::new("gcc").args(["-w", "-fsyntax-only"]).arg(&source));
    String::from_utf8_lossy(&output.stdout)
        .matches("_Static_assert")
        .count()
}

/// Members and their places of every struct and union with a name, in any dict. (For the nameless
/// `__SOCKADDR_ARG` gcc describes no members.)
fn layouts(dicts: &Dicts) -> BTreeSet<String> {
    let names = dicts.units().into_iter().chain([""]);
    let all = names.flat_map(|name| &dicts.get(name).unwrap().types);
    let structs = all.filter(|text| {
        let starts = ["(kind 6) struct ", "(kind 7) union "];
        let rest = starts.iter().find_map(|start| text.strip_prefix(start));
        rest.is_some_and(|rest| !rest.starts_with('('))
    });
    let layouts = structs.map(|text| {
        let lines = text.lines().map(|line| line.split(": (kind").next().unwrap());
        lines.collect::<Vec<_>>().join("\n")
    });
    layouts.collect()
}

/// The names of all symbols with types.
fn symbols(dicts: &Dicts) -> BTreeSet<&str> {
    let names = dicts.units().into_iter().chain([""]);
    let all = names.flat_map(|name| &dicts.get(name).unwrap().symbols);
    all.filter_map(|text| Some(text.split_once(" -> ")?.0)).collect()
}

/// The functions that have a type.
fn functions(dicts: &Dicts) -> Vec<&str> {
    let names = dicts.units().into_iter().chain([""]);
    let all = names.flat_map(|name| &dicts.get(name).unwrap().symbols);
    let functions = all.filter(|text| text.contains("(kind 5)"));
    functions.filter_map(|text| Some(text.split_once(" -> ")?.0)).collect()
}

/// What gcc 12 says otherwise than its debug information: arrays of arrays the wrong way round, and
/// so what they consist of.
fn is_of_nested_arrays(text: &str) -> bool {
    text.contains("][") || text.contains("(kind 4)")
}

/// Whether a struct in GNU ld's output is one of ours except for its size: GNU ld takes a bit field
/// at the end to be as large as its storage, from the byte in which it begins, and so makes structs
/// larger than their compiler says.
fn is_grown(text: &str, ours: &Dicts) -> bool {
    let number = |text: &str| u64::from_str_radix(text.trim_end_matches(')'), 16).ok();
    let parts = |text: &str| -> Option<(String, String, u64)> {
        let (first, members) = text.split_once('\n')?;
        let (what, size) = first.trim_start_matches(": ").rsplit_once("(size 0x")?;
        Some((what.to_owned(), members.to_owned(), number(size)?))
    };
    let overhang = |members: &str| -> Option<u64> {
        let last = members.lines().last().filter(|last| last.contains("[slice "))?;
        let (offset, _) = last.strip_prefix("[0x")?.split_once(']')?;
        let (_, storage) = last.rsplit_once("(size 0x")?;
        Some(number(offset)? / 8 + number(storage)?)
    };
    let Some((what, members, size)) = parts(text) else {
        return false;
    };
    let mut all = ours
        .units()
        .into_iter()
        .chain([""])
        .flat_map(|unit| &ours.get(unit).unwrap().types);
    let is_same = |(other, its, smaller): (String, String, u64)| other == what && its == members && smaller < size;
    overhang(&members) == Some(size) && all.any(|text| parts(text).is_some_and(is_same))
}

fn holds(name: &str, most: usize) {
    let Some(program) = Program::get(name) else { return };
    let (linked, size) = program.linked();
    // The name of each unit begins with the folder in which it was compiled.
    let units = program.dicts(&linked).units().len();
    let size = size - units * program.program.linked.parent().unwrap().as_os_str().len();
    println!("{name}: {size} bytes without folders");
    assert!(size <= most, "{name}: {size} bytes");
    let built = program.built(&program.program.linked, "built");
    for (file, more) in [(&linked, &["--inner-first"][..]), (&built, &[])] {
        let assertions = compiles(file, more);
        println!("{name}: {file:?}: {assertions} assertions");
        assert!(assertions > 300);
    }
    let (ours, from_dwarf) = (program.dicts(&linked), program.dicts(&built));
    assert!(ours.types() > 500, "{}", ours.types());
    let theirs = program.dicts(&program.program.linked);
    let mut missing = ours.missing(&theirs);
    // For a symbol that units declare differently, GNU ld describes some declaration; here it is
    // the definition's.
    let symbols = symbols(&ours);
    missing.retain(
        |text| match text.split_once(": ").and_then(|(_, text)| text.split_once(" -> ")) {
            Some((symbol, _)) if !symbol.starts_with('(') => !symbols.contains(symbol),
            _ => true,
        },
    );
    missing.retain(|text| !is_grown(text, &ours));
    assert_eq!(missing, Vec::<String>::new(), "{name}: what GNU ld has");
    let mut missing = from_dwarf.missing(&ours);
    missing.retain(|text| !is_of_nested_arrays(text));
    assert_eq!(
        missing,
        Vec::<String>::new(),
        "{name}: what -gctf says and DWARF does not"
    );
    let (all, ours, from_dwarf) = (ours.clone(), layouts(&ours), layouts(&from_dwarf));
    let only: Vec<&String> = ours.difference(&from_dwarf).collect();
    assert_eq!(only, Vec::<&String>::new(), "{name}: layouts");
    // sqlite3 is linked without names of functions.
    let asked = gdb_reads(&linked, &all);
    assert_eq!(asked > 0, !functions(&theirs).is_empty());
    let Some(clang) = CProgram::get(name, Compiler::Clang) else {
        return;
    };
    println!("{name}: the same types from clang");
    let by_clang = program.built(&clang.linked, "clang");
    assert!(compiles(&by_clang, &[]) > 300);
    let by_clang = layouts(&program.dicts(&by_clang));
    let only: Vec<&String> = by_clang.difference(&from_dwarf).collect();
    assert_eq!(only, Vec::<&String>::new(), "{name}: layouts by clang");
    assert!(2 * by_clang.len() > from_dwarf.len());
}

/// gdb, which ends on sections in which a struct begins with a mere declaration, is asked for each
/// struct that units share, and for functions.
fn gdb_reads(file: &Path, ours: &Dicts) -> usize {
    let shared = ours.get("").unwrap();
    // A struct's name, and its first member's.
    let structs = shared.types.iter().filter_map(|text| {
        let (name, members) = text.strip_prefix("(kind 6) struct ")?.split_once(" (")?;
        let (_, first) = members.split_once("\n[0x0] ")?;
        Some((name, first.split_once(':')?.0))
    });
    // Nameless ones begin with their size.
    let structs: Vec<(&str, &str)> = structs.filter(|(name, _)| !name.contains('(')).collect();
    let functions = functions(ours);
    let asked = structs.iter().map(|(name, _)| format!("ptype struct {name}"));
    let asked: Vec<String> = asked
        .chain(functions.iter().map(|name| format!("whatis {name}")))
        .collect();
    let script = file.with_extension("gdb");
    let lines = asked
        .iter()
        .map(|command| format!("echo \\n@{command}\\n\n{command}\n"));
    // To print a type, gdb makes a value of it.
    let begin = "set max-value-size unlimited\n".to_owned();
    fs::write(&script, begin + &lines.collect::<String>()).unwrap();
    let mut gdb = Command::new("gdb");
    let output = match gdb.args(["-nx", "-batch", "-x"]).arg(&script).arg(file).output() {
        Ok(output) => output,
        Err(error) => {
            skip(format_args!("gdb: {error}"));
            return functions.len();
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers: Vec<&str> = text.split("\n@").skip(1).collect();
    assert_eq!(
        answers.len(),
        asked.len(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for ((_, first), answer) in structs.iter().zip(&answers) {
        let is_told = answer.contains("type = struct ") && answer.contains(first);
        assert!(is_told, "{answer}");
    }
    for answer in &answers[structs.len()..] {
        assert!(answer.contains("\ntype = ") && answer.contains('('), "{answer}");
    }
    println!("{} structs and {} functions by gdb", structs.len(), functions.len());
    assert!(structs.len() > 20);
    functions.len()
}

#[test]
fn lua() {
    holds("lua", 12_599);
}

#[test]
#[ignore = "a minute to compile"]
fn sqlite3() {
    holds("sqlite3", 52_201);
}

#[test]
#[ignore = "a minute to compile"]
fn redis() {
    holds("redis-server", 83_000);
}

#[test]
#[ignore = "minutes to compile"]
fn git() {
    holds("git", 150_000);
}

#[test]
#[ignore = "minutes to compile"]
fn ld() {
    holds("ld", 118_000);
}
