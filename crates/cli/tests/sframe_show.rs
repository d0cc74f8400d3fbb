//! `backtrail sframe show`, held against readelf of the release that made the table.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{place, scratch, skip};
use serde_json::Value;

fn show(arguments: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.args(["sframe", "show"]).args(arguments).args(files);
    command.output().unwrap()
}

/// The text, if the command ran without a complaint.
#[track_caller]
fn shown(arguments: &[&str], files: &[&Path]) -> String {
    let output = show(arguments, files);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{files:?}");
    assert_eq!(output.status.code(), Some(0), "{files:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn must(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What tables are made for and by: a release's tools for a machine in a byte order.
struct Tools {
    binutils: Binutils,
    machine: Machine,
    big: bool,
}

impl Tools {
    fn new(release: Release, machine: Machine, big: bool) -> Option<Tools> {
        let binutils = Binutils::get(release)?;
        if !binutils.has(machine) || Command::new(compiler(machine)).arg("--version").output().is_err() {
            skip(format!("no compiler and binutils {} for {machine:?}", release.number()));
            return None;
        }
        Some(Tools { binutils, machine, big })
    }

    fn release(&self) -> &'static str {
        self.binutils.release().number()
    }

    fn readelf(&self, files: &[&Path]) -> String {
        let mut readelf = self.binutils.tool(self.machine, "readelf").command();
        let output = readelf.arg("--sframe").args(files).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors, "", "readelf {} {files:?}", self.release());
        String::from_utf8(output.stdout).unwrap()
    }

    fn assemble(&self, source: &Path, object: &Path) {
        let mut assembler = self.binutils.tool(self.machine, "as").command();
        assembler.arg("--gsframe").arg(source).arg("-o").arg(object);
        if self.big && self.machine == Machine::Aarch64 {
            assembler.arg("-EB");
        }
        must(&mut assembler);
    }

    /// Compiles the shapes with these flags, and assembles them with the release's assembler.
    fn compile(&self, flags: &[&str], object: &Path) {
        let assembly = object.with_extension("s");
        let mut compiler = Command::new(compiler(self.machine));
        compiler.args(["-S", "-w", "-o"]).arg(&assembly).args(flags);
        if self.big && self.machine == Machine::Aarch64 {
            compiler.args(["-mbig-endian", "-DBARE", "-ffreestanding"]);
        }
        must(compiler.arg(program("shapes.c")));
        self.assemble(&assembly, object);
    }

    /// Links a program or a library with the release's linker.
    fn link(&self, kind: &str, objects: &[PathBuf], output: &Path) {
        if self.big && self.machine == Machine::Aarch64 {
            // There is no C library for it.
            let mut linker = self.binutils.tool(self.machine, "ld").command();
            linker.args(["-m", "aarch64linuxb", "-e", "main", "-z", "undefs", kind]);
            must(linker.args(objects).arg("-o").arg(output));
        } else {
            let mut compiler = Command::new(compiler(self.machine));
            compiler.arg("-B").arg(self.binutils.for_gcc(self.machine)).arg(kind);
            must(compiler.args(objects).arg("-o").arg(output));
        }
    }
}

fn compiler(machine: Machine) -> String {
    format!("{}-gcc", machine.triplet())
}

fn program(name: &str) -> PathBuf {
    place::workspace().join("crates/testkit/programs").join(name)
}

/// Flags that make different tables, by machine.
fn flags(machine: Machine) -> &'static [&'static [&'static str]] {
    match machine {
        Machine::X86_64 => &[
            &["-O2", "-fPIC"],
            &["-O0", "-fPIC", "-fno-omit-frame-pointer", "-fcf-protection=full"],
        ],
        Machine::Aarch64 => &[
            &["-O2", "-fPIC"],
            &["-O1", "-fPIC", "-fomit-frame-pointer"],
            &["-O2", "-fPIC", "-mbranch-protection=pac-ret"],
            &["-O2", "-fPIC", "-mbranch-protection=pac-ret+leaf+b-key"],
        ],
        Machine::S390x => &[&["-O2", "-fPIC"], &["-O1", "-fPIC", "-mbackchain"]],
    }
}

/// Everything that a release makes for a machine: relocatable, static, position-independent and
/// shared.
fn compare(release: Release, machine: Machine, big: bool) {
    let Some(tools) = Tools::new(release, machine, big) else {
        return;
    };
    let folder = scratch();
    let path = |name: String| folder.path().join(name);
    let by_hand = path("by_hand.o".to_owned());
    let source = match machine {
        Machine::X86_64 => "shapes_x86_64.s",
        Machine::Aarch64 => "shapes_aarch64.s",
        Machine::S390x => "shapes_s390x.s",
    };
    tools.assemble(&program(source), &by_hand);
    let mut files = vec![by_hand.clone()];
    for (number, flags) in flags(machine).iter().enumerate() {
        let object = path(format!("shapes{number}.o"));
        tools.compile(flags, &object);
        starts_are_those_of_symbols(&tools, &object);
        for kind in ["-static", "-pie", "-shared", "-no-pie"] {
            let output = path(format!("shapes{number}{kind}"));
            tools.link(kind, &[object.clone(), by_hand.clone()], &output);
            // The validator has nothing to say against what linkers make.
            shown(&["--strict"], &[&output]);
            files.push(output);
        }
        files.push(object);
    }
    let mut functions = 0;
    for file in &files {
        let text = tools.readelf(&[file]);
        assert_eq!(shown(&[], &[file]), text, "{} {machine:?} {file:?}", tools.release());
        let here = text.matches("func idx").count();
        assert!(here >= 3, "{file:?}: {text}");
        functions += here;
        let json: Value = serde_json::from_str(&shown(&["--json"], &[file])).unwrap();
        assert_eq!(json[0]["functions"].as_array().unwrap().len(), here);
        let rows = json[0]["functions"].as_array().unwrap().iter();
        let rows: u64 = rows.map(|function| function["num_fres"].as_u64().unwrap()).sum();
        assert_eq!(Some(rows), json[0]["num_fres"].as_u64());
    }
    let all: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    assert_eq!(shown(&[], &all), tools.readelf(&all), "several files");
    println!(
        "{} {machine:?}: {} files, {functions} functions",
        tools.release(),
        files.len()
    );
}

/// In JSON, functions of relocatable files are where the symbol table says, in every version.
fn starts_are_those_of_symbols(tools: &Tools, object: &Path) {
    let json: Value = serde_json::from_str(&shown(&["--json"], &[object])).unwrap();
    let starts: BTreeSet<u64> = json[0]["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|function| function["start"].as_str().unwrap().strip_prefix("0x").unwrap())
        .map(|digits| u64::from_str_radix(digits, 16).unwrap())
        .collect();
    let symbols = must(
        tools
            .binutils
            .tool(tools.machine, "readelf")
            .command()
            .arg("-sW")
            .arg(object),
    );
    let fields = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let values: BTreeSet<u64> = fields
        .filter(|fields| fields.get(3) == Some(&"FUNC"))
        .map(|fields| u64::from_str_radix(fields[1], 16).unwrap())
        .collect();
    assert!(values.len() > 8, "{symbols}");
    assert_eq!(starts, values, "{} {object:?}", tools.release());
}

#[test]
fn x86_64() {
    for release in Release::ALL {
        compare(release, Machine::X86_64, false);
    }
}

#[test]
fn aarch64_little_endian() {
    for release in Release::ALL {
        compare(release, Machine::Aarch64, false);
    }
}

#[test]
fn aarch64_big_endian() {
    for release in Release::ALL {
        compare(release, Machine::Aarch64, true);
    }
}

#[test]
fn s390x() {
    compare(Release::V2_47, Machine::S390x, true);
}
