//! Types made from debug information, held against those that gcc -gctf makes in the same run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_ctype::link::{self, Options, Symbols};
use backtrail_ctype::write;
use backtrail_dwarf::types::{LeftOut, Parts, Sections};
use backtrail_elf::{Image, Table};
use backtrail_testkit::objdump_types::Dicts;
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, available, place, scratch, skip};

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

struct Tools {
    binutils: Binutils,
    machine: Machine,
    folder: TempDir,
}

impl Tools {
    fn get(machine: Machine) -> Option<Tools> {
        let binutils = Binutils::get(Release::V2_47)?;
        let folder = scratch();
        Some(Tools {
            binutils,
            machine,
            folder,
        })
    }

    fn gcc(&self, flags: &[&str], source: &Path) -> Option<PathBuf> {
        self.compile(&format!("{}-gcc", self.machine.triplet()), flags, source)
    }

    fn compile(&self, compiler: &str, flags: &[&str], source: &Path) -> Option<PathBuf> {
        let object = self.folder.path().join("object.o");
        let mut command = Command::new(compiler);
        command.args(["-w", "-fPIC", "-O1", "-c"]).args(flags).arg(source).arg("-o").arg(&object);
        match command.output() {
            Ok(output) if output.status.success() => Some(object),
            other => {
                skip(format!("{compiler} {flags:?}: {other:?}"));
                None
            }
        }
    }

    /// objdump's text of the file's own types, and of those that are made from its debug information.
    fn both(&self, object: &Path) -> (Dicts, Dicts, LeftOut) {
        let bytes = fs::read(object).unwrap();
        let (section, left_out) = made(&bytes);
        let (path, other) = (self.folder.path().join("section"), self.folder.path().join("other.o"));
        fs::write(&path, section).unwrap();
        let mut objcopy = self.binutils.tool(self.machine, "objcopy").command();
        let has = Image::parse(&bytes).unwrap().section_header(".ctf").is_some();
        let how = if has { "--update-section" } else { "--add-section" };
        run(objcopy.arg(format!("{how}=.ctf={}", path.display())).arg(object).arg(&other));
        let objdump = |file: &Path| {
            let mut objdump = self.binutils.tool(self.machine, "objdump").command();
            Dicts::parse(&run(objdump.arg("--ctf").arg(file)))
        };
        let theirs = if has { objdump(object) } else { Dicts::default() };
        (theirs, objdump(&other), left_out)
    }
}

fn made(bytes: &[u8]) -> (Vec<u8>, LeftOut) {
    let image = Image::parse(bytes).unwrap();
    let sections = Sections::load(&image, None).unwrap().expect("there is debug information");
    let parts = Parts::read(&sections).unwrap();
    let made = parts.make();
    let options = Options {
        symbols: Symbols::Named,
        ..Options::default()
    };
    let linked = link::link(&made.units, &options).unwrap();
    let section = linked.write(&write::Options::new(image.endian()), 8).unwrap();
    (section, made.left_out)
}

fn sources() -> Vec<PathBuf> {
    let programs = ["types_kinds.c", "types_odd.c", "types_headers.c"].map(|name| place::programs().join(name));
    let mut sources = programs.to_vec();
    if let Some(shared) = available(place::shared()) {
        for part in ["talk", "names"] {
            let entries = fs::read_dir(shared.join("corpus/ctype").join(part)).unwrap();
            sources.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    sources.sort();
    sources
}

/// What gcc 12 says otherwise than its debug information, which is right.
fn is_known(text: &str) -> bool {
    // Arrays of arrays the wrong way round; see `nested_arrays`.
    let nested = text.matches('[').count() >= 2 && text.contains("][");
    nested || text.contains("nonrepresentable")
}

fn same_types(machine: Machine, flags: &[&str]) {
    let Some(tools) = Tools::get(machine) else { return };
    let mut all = Vec::new();
    for source in sources() {
        let flags = [&["-gctf", "-fno-eliminate-unused-debug-types"], flags].concat();
        let Some(object) = tools.gcc(&flags, &source) else { return };
        let (theirs, ours, _) = tools.both(&object);
        let missing = ours.missing(&theirs);
        // gcc also tells the types of symbols that the unit only declares.
        let bytes = fs::read(&object).unwrap();
        let image = Image::parse(&bytes).unwrap();
        let (symbols, _) = image.symbol_table(Table::Full).unwrap();
        let defined: Vec<&[u8]> = symbols.filter(|symbol| !symbol.is_undefined).map(|symbol| symbol.name).collect();
        let is_declared = |text: &str| {
            let name = text.trim_start_matches(": ").split(" -> ").next().unwrap();
            !name.starts_with("(kind") && !defined.contains(&name.as_bytes())
        };
        let missing = missing.iter().filter(|text| !is_known(text) && !is_declared(text));
        let missing: Vec<&String> = missing.collect();
        println!("{source:?}: {} of gcc's, {} of ours", theirs.types(), ours.types());
        all.extend(missing.into_iter().map(|text| format!("{source:?} {flags:?}{text}")));
        assert!(ours.types() * 10 >= theirs.types() * 9 && ours.types() > 0);
    }
    assert!(all.is_empty(), "{all:#?}");
}

#[test]
fn as_gcc_dwarf_5() {
    same_types(Machine::X86_64, &["-gdwarf-5"]);
}

#[test]
fn as_gcc_dwarf_4() {
    same_types(Machine::X86_64, &["-gdwarf-4"]);
    same_types(Machine::X86_64, &["-gdwarf-4", "-fdebug-types-section", "-gz"]);
}

#[test]
fn as_gcc_dwarf_2() {
    same_types(Machine::X86_64, &["-gdwarf-2", "-gstrict-dwarf"]);
}

#[test]
fn as_gcc_big_endian() {
    same_types(Machine::S390x, &["-gdwarf-4"]);
}
