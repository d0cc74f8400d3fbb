//! Types built from debug information, compared with those that gcc -gctf writes in the same run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_ctype::link::{self, Options, Symbols};
use backtrail_ctype::write;
use backtrail_debuginfo::split::SplitFiles;
use backtrail_debuginfo::types::{LeftOut, Made, Parts, Reason, Sections};
use backtrail_elf::{Image, Table};
use backtrail_testkit::objdump_types::Dicts;
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, available, place, scratch, skip};
use backtrail_wire::Endian;

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
        self.compile_to(self.folder.path().join("object.o"), compiler, flags, source)
    }

    fn compile_to(&self, object: PathBuf, compiler: &str, flags: &[&str], source: &Path) -> Option<PathBuf> {
        let mut command = Command::new(compiler);
        command
            .args(["-w", "-fPIC", "-O1", "-c"])
            .args(flags)
            .arg(source)
            .arg("-o")
            .arg(&object);
        match command.output() {
            Ok(output) if output.status.success() => Some(object),
            other => {
                skip(format!("{compiler} {flags:?}: {other:?}"));
                None
            }
        }
    }

    /// objdump's text of the file's own types, and of the types that are built from its debug
    /// information.
    fn both(&self, object: &Path) -> (Dicts, Dicts, LeftOut) {
        let bytes = fs::read(object).unwrap();
        let (section, left_out) = made(&bytes);
        let has = Image::parse(&bytes).unwrap().section_header(".ctf").is_some();
        let theirs = if has { self.objdump(object) } else { Dicts::default() };
        (theirs, self.shown(object, &section), left_out)
    }

    /// objdump's text of a section that replaces a file's own.
    fn shown(&self, object: &Path, section: &[u8]) -> Dicts {
        let (path, other) = (self.folder.path().join("section"), self.folder.path().join("other.o"));
        fs::write(&path, section).unwrap();
        let bytes = fs::read(object).unwrap();
        let has = Image::parse(&bytes).unwrap().section_header(".ctf").is_some();
        let mut objcopy = self.binutils.tool(self.machine, "objcopy").command();
        let how = if has { "--update-section" } else { "--add-section" };
        run(objcopy
            .arg(format!("{how}=.ctf={}", path.display()))
            .arg(object)
            .arg(&other));
        self.objdump(&other)
    }

    fn objdump(&self, file: &Path) -> Dicts {
        let mut objdump = self.binutils.tool(self.machine, "objdump").command();
        Dicts::parse(&with_bits_at_members(&run(objdump.arg("--ctf").arg(file))))
    }
}

/// For DWARF up to 4, gcc describes a bit field by its storage and its bits in that storage; for
/// later versions by the position of its bits. Returns the text with the latter in either case.
fn with_bits_at_members(text: &str) -> String {
    let line = |line: &str| -> Option<String> {
        let (before, slice) = line.split_once("[slice 0x")?;
        let (offset, rest) = slice.split_once(':')?;
        let offset = u64::from_str_radix(offset, 16).ok()?;
        let before = match before
            .trim_start()
            .strip_prefix("[0x")
            .and_then(|rest| rest.split_once(']'))
        {
            Some((place, rest)) => {
                let place = u64::from_str_radix(place, 16).ok()? + offset;
                format!("         [{place:#x}]{rest}")
            }
            None => before.to_owned(),
        };
        Some(format!("{before}[slice 0x0:{rest}"))
    };
    text.lines()
        .map(|text| line(text).unwrap_or(text.to_owned()) + "\n")
        .collect()
}

fn made(bytes: &[u8]) -> (Vec<u8>, LeftOut) {
    let image = Image::parse(bytes).unwrap();
    let sections = Sections::load(&image, None)
        .unwrap()
        .expect("there is debug information");
    let parts = Parts::read(&sections).unwrap();
    let made = parts.make();
    (linked(&made, image.endian()), made.left_out)
}

fn linked(made: &Made<'_>, endian: Endian) -> Vec<u8> {
    let options = Options {
        symbols: Symbols::Named,
        ..Options::default()
    };
    let linked = link::link(&made.units, &options).unwrap();
    linked.write(&write::Options::new(endian), 8).unwrap()
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

/// Known differences between gcc 12 and its debug information, which is right.
fn is_known(text: &str) -> bool {
    // Arrays of arrays in the wrong order, and types that contain them; see `what_gcc_gets_wrong`.
    let inner = [": (kind 4) int [2] (size 0x8)", ": (kind 4) int [3] (size 0xc)"];
    let nested = text.contains("][") || inner.iter().any(|inner| text.starts_with(inner));
    nested || text.contains("nonrepresentable")
}

fn same_types(machine: Machine, flags: &[&str]) {
    let Some(tools) = Tools::get(machine) else { return };
    let mut all = Vec::new();
    for source in sources() {
        let flags = [&["-gctf", "-fno-eliminate-unused-debug-types"], flags].concat();
        let Some(object) = tools.gcc(&flags, &source) else {
            return;
        };
        let (theirs, ours, _) = tools.both(&object);
        let missing = ours.missing(&theirs);
        // gcc also writes the types of symbols that the unit only declares.
        let bytes = fs::read(&object).unwrap();
        let image = Image::parse(&bytes).unwrap();
        let (symbols, _) = image.symbol_table(Table::Full).unwrap();
        let defined: Vec<&[u8]> = symbols
            .filter(|symbol| !symbol.is_undefined)
            .map(|symbol| symbol.name)
            .collect();
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
    same_types(Machine::X86_64, &["-gdwarf-4", "-gz"]);
}

#[test]
fn as_gcc_dwarf_2() {
    same_types(Machine::X86_64, &["-gdwarf-2", "-gstrict-dwarf"]);
}

#[test]
fn as_gcc_big_endian() {
    same_types(Machine::S390x, &["-gdwarf-4"]);
}

/// The types of a file, as objdump prints them.
fn text_of(tools: &Tools, compiler: &str, flags: &[&str], source: &str) -> Option<(Dicts, LeftOut)> {
    let path = tools.folder.path().join("source.c");
    fs::write(&path, source).unwrap();
    let object = tools.compile(compiler, flags, &path)?;
    let (_, ours, left_out) = tools.both(&object);
    Some((ours, left_out))
}

const WRONG: &str = "
int nested[2][3]; char deep[4][5][6];
struct large { char first[0x30000000]; int last; } *large;
enum wide { SMALL = 1, UNSIGNED = 0xfffffff0u, WIDE = 0x100000000 } wide;
enum __attribute__((packed)) tiny { TINY } tiny;
_Atomic int atomic; struct with { _Atomic(long) counter; _Atomic int *pointer; } with;
typedef float vector __attribute__((vector_size(16))); vector v;
_Complex int complex_int;
";

/// The types are right where gcc is wrong; anything that cannot be expressed is counted.
#[test]
fn what_gcc_gets_wrong() {
    let Some(tools) = Tools::get(Machine::X86_64) else {
        return;
    };
    for flags in [&["-gdwarf-4"], &["-gdwarf-5"]] {
        let Some((dicts, left_out)) = text_of(&tools, "gcc", flags, WRONG) else {
            return;
        };
        let types = &dicts.get("").unwrap().types;
        let has = |text: &str| types.iter().any(|known| known.contains(text));
        for text in [
            "int [2][3] (size 0x18)",
            "char [4][5][6] (size 0x78)",
            "struct large (size 0x30000004)",
            "[0x180000000] last: (kind 1) int",
            "SMALL: 1",
            "[0x0] counter: (kind 1) long int",
            "[0x40] pointer: (kind 3) int *",
        ] {
            assert!(has(text), "{text}: {types:#?}");
        }
        assert!(!has("UNSIGNED") && !has("WIDE"));
        let count = |reason: Reason| left_out.0.get(&reason).map(|(count, _)| *count);
        assert_eq!(count(Reason::Enumerator), Some(2));
        assert_eq!(left_out.0[&Reason::Enumerator].1, "UNSIGNED");
        assert_eq!(count(Reason::Vector), Some(1));
        assert!(
            left_out.0.keys().any(|reason| matches!(reason, Reason::Encoding(_))),
            "{left_out:?}"
        );
    }
}

/// clang's types of the same source, in either version, equal gcc's.
#[test]
fn clang_says_the_same() {
    let Some(tools) = Tools::get(Machine::X86_64) else {
        return;
    };
    let programs = ["types_kinds.c", "types_headers.c"].map(|name| place::programs().join(name));
    for source in programs {
        let text = fs::read_to_string(&source).unwrap();
        let Some((gcc, _)) = text_of(&tools, "gcc", &["-gdwarf-5"], &text) else {
            return;
        };
        for flags in [&["-gdwarf-4"], &["-gdwarf-5"]] {
            let Some((clang, _)) = text_of(&tools, "clang", flags, &text) else {
                return;
            };
            // Compilers give some numbers different names: structs are compared by their members'
            // names and offsets.
            let layouts = |dicts: &Dicts| {
                let structs = dicts.get("").unwrap().types.iter().filter(|text| {
                    ["(kind 6) struct ", "(kind 7) union "]
                        .iter()
                        .any(|start| text.starts_with(start))
                });
                let layouts = structs.map(|text| {
                    let lines = text.lines().map(|line| line.split(": (kind").next().unwrap());
                    lines.collect::<Vec<_>>().join("\n")
                });
                layouts.collect::<std::collections::BTreeSet<_>>()
            };
            let (gcc, clang) = (layouts(&gcc), layouts(&clang));
            assert!(clang.len() > 3, "{clang:?}");
            let others: Vec<&String> = clang.difference(&gcc).collect();
            assert!(others.is_empty(), "{flags:?}: {others:#?}");
        }
    }
}

/// The types of a file and of the units split off from it, and what was left out; `found` receives
/// the paths of the opened files.
fn made_with_split(file: &Path, found: &mut Vec<PathBuf>) -> (Vec<u8>, LeftOut) {
    let bytes = fs::read(file).unwrap();
    let image = Image::parse(&bytes).unwrap();
    let mut sections = Sections::load(&image, None).unwrap().unwrap();
    let split = SplitFiles::find(&sections.split_units().unwrap(), &[file], &backtrail_elf::budget::Budget::new());
    for (place, opened) in split.iter() {
        found.push(place.to_path_buf());
        sections.add_split(&Image::parse(opened.bytes()).unwrap()).unwrap();
    }
    let parts = Parts::read(&sections).unwrap();
    let made = parts.make();
    for unit in &made.units {
        let is_of_types = unit.name.is_empty();
        assert!(is_of_types || unit.name.starts_with(b"/") && unit.name.ends_with(b".c"));
    }
    (linked(&made, image.endian()), made.left_out)
}

/// Whether `ours` contains all of `whole`, except for types that nothing refers to, which remain in
/// only one of them.
fn has_all(ours: &Dicts, whole: &Dicts, what: &str) {
    assert!(whole.types() > 50, "{what}: {}", whole.types());
    let mut missing = ours.missing(whole);
    missing.retain(|text| {
        !["(kind 3)", "(kind 12)", "(kind 13)"]
            .iter()
            .any(|kind| text.contains(&format!(": {kind}")))
    });
    assert_eq!(missing, Vec::<String>::new(), "{what}");
}

/// Split units give the same types as the unsplit object; without their files, they are named.
#[test]
fn split_units() {
    let Some(tools) = Tools::get(Machine::X86_64) else {
        return;
    };
    let source = place::programs().join("types_kinds.c");
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let Some(object) = tools.gcc(&[version], &source) else {
            return;
        };
        let (_, whole, _) = tools.both(&object);
        for flags in [
            &["-gsplit-dwarf"][..],
            &["-gsplit-dwarf", "-gz"],
            &["-fdebug-types-section"],
            &["-gsplit-dwarf", "-fdebug-types-section"],
            &["-gsplit-dwarf", "-fdebug-types-section", "-gz"],
        ] {
            let what = format!("{version} {flags:?}");
            let Some(object) = tools.gcc(&[flags, &[version]].concat(), &source) else {
                return;
            };
            let mut found = Vec::new();
            let (section, left_out) = made_with_split(&object, &mut found);
            assert_eq!(left_out.0.get(&Reason::Split), None, "{what}");
            has_all(&tools.shown(&object, &section), &whole, &what);
            let is_split = flags.contains(&"-gsplit-dwarf");
            assert_eq!(found.len(), usize::from(is_split), "{what}");
            if let Some(rest) = found.pop() {
                fs::remove_file(rest).unwrap();
                let (_, left_out) = made_with_split(&object, &mut found);
                assert_eq!(
                    left_out.0.keys().collect::<Vec<_>>(),
                    [&Reason::Split],
                    "{what}: {left_out:?}"
                );
            }
        }
    }
}

/// A package contains the same as the files that it was built from. Files that were written for
/// another build are not used.
#[test]
fn packages() {
    let Some(tools) = Tools::get(Machine::X86_64) else {
        return;
    };
    let Some(old) = Binutils::get(Release::V2_40) else {
        return;
    };
    let folder = tools.folder.path();
    let (program, package) = (folder.join("program"), folder.join("program.dwp"));
    let build = |compiler: &str, flags: &[&str]| -> Option<()> {
        let mut link = Command::new(compiler);
        link.args(["-shared", "-o"]).arg(&program);
        for name in ["types_kinds", "types_headers"] {
            let source = place::programs().join(name).with_extension("c");
            let object = folder.join(name).with_extension("o");
            link.arg(tools.compile_to(object, compiler, flags, &source)?);
        }
        run(&mut link);
        Some(())
    };
    let types = |found: &mut Vec<PathBuf>| {
        let (section, left_out) = made_with_split(&program, found);
        (tools.shown(&program, &section), left_out)
    };
    // dwp 2.40 aborts on DWARF 5, and version 14 of LLVM's never terminates on gcc's.
    let gnu = || old.tool(Machine::X86_64, "dwp").command();
    let llvm = || Command::new("llvm-dwp");
    let all: [(&str, &str, &dyn Fn() -> Command); 4] = [
        ("gcc", "-gdwarf-4", &gnu),
        ("gcc", "-gdwarf-4", &llvm),
        ("clang", "-gdwarf-4", &gnu),
        ("clang", "-gdwarf-5", &llvm),
    ];
    for (compiler, version, packer) in all {
        for more in [&[][..], &["-fdebug-types-section"]] {
            let what = format!("{compiler} {version} {more:?} {:?}", packer().get_program());
            let Some(()) = build(compiler, &[&[version], more].concat()) else {
                return;
            };
            let (whole, _) = types(&mut Vec::new());
            let Some(()) = build(compiler, &[&[version, "-gsplit-dwarf"], more].concat()) else {
                return;
            };
            match packer().arg("-e").arg(&program).arg("-o").arg(&package).output() {
                Ok(output) => assert!(output.status.success(), "{what}: {output:?}"),
                Err(error) => {
                    skip(format!("{what}: {error}"));
                    continue;
                }
            }
            let mut found = Vec::new();
            let (packed, left_out) = types(&mut found);
            assert_eq!(
                (found, left_out.0.get(&Reason::Split)),
                (vec![package.clone()], None),
                "{what}"
            );
            has_all(&packed, &whole, &what);
            // Different code makes another build, which the package does not contain; the other
            // unit has no code.
            let Some(()) = build(compiler, &[&[version, "-gsplit-dwarf", "-O0"], more].concat()) else {
                return;
            };
            let mut found = Vec::new();
            let (apart, left_out) = types(&mut found);
            assert_eq!(
                (found.len(), left_out.0.get(&Reason::Split)),
                (2, None),
                "{what}: {found:?}"
            );
            has_all(&apart, &whole, &what);
            found.drain(1..).for_each(|rest| fs::remove_file(rest).unwrap());
            let left_out = types(&mut Vec::new()).1;
            let (count, _) = left_out.0[&Reason::Split];
            assert_eq!(count, 1, "{what}");
            fs::remove_file(&package).unwrap();
        }
    }
}

/// Units in other languages are reported by name, not guessed at.
#[test]
fn other_languages() {
    let Some(tools) = Tools::get(Machine::X86_64) else {
        return;
    };
    let source = tools.folder.path().join("source.cc");
    fs::write(
        &source,
        "struct s { virtual int f(); int a; }; int s::f() { return a; }\n",
    )
    .unwrap();
    let Some(object) = tools.compile("g++", &["-g"], &source) else {
        return;
    };
    let (_, left_out) = made(&fs::read(object).unwrap());
    assert_eq!(left_out.0.len(), 1);
    assert!(
        matches!(left_out.0.keys().next(), Some(Reason::Language(_))),
        "{left_out:?}"
    );
}

/// Types in type units, and units that refer to each other, give the same types as separate units.
#[test]
fn type_units_and_shared_ones() {
    let Some(tools) = Tools::get(Machine::X86_64) else {
        return;
    };
    let library = tools.folder.path().join("library.so");
    let build = |flags: &[&str]| {
        let mut gcc = Command::new("gcc");
        gcc.args(["-w", "-fPIC", "-O1", "-shared"]).args(flags);
        gcc.args(sources().iter().filter(|path| !path.ends_with("types_odd.c")));
        run(gcc.arg("-o").arg(&library));
        tools.both(&library)
    };
    // Qualified types and pointers that nothing refers to remain in one of them, but not in the
    // other.
    let missing = |dicts: &Dicts, of: &Dicts| {
        let mut missing = dicts.missing(of);
        missing.retain(|text| {
            !["(kind 3)", "(kind 12)", "(kind 13)"]
                .iter()
                .any(|kind| text.contains(&format!(": {kind}")))
        });
        missing
    };
    let (_, plain, _) = build(&["-gdwarf-4"]);
    let (_, in_units, left_out) = build(&["-gdwarf-4", "-fdebug-types-section"]);
    assert!(plain.types() > 200);
    assert_eq!(missing(&in_units, &plain), Vec::<String>::new());
    assert_eq!(left_out.0.get(&Reason::Reference), None);
    let (_, in_units, left_out) = build(&["-gdwarf-5", "-fdebug-types-section"]);
    assert_eq!(missing(&in_units, &plain), Vec::<String>::new());
    assert_eq!(left_out.0.get(&Reason::Reference), None);
    // dwz does not know type units of DWARF 5.
    build(&["-gdwarf-5"]);
    let Ok(dwz) = Command::new("dwz").arg("-L").arg("none").arg(&library).output() else {
        return skip("no dwz");
    };
    assert!(dwz.status.success(), "{}", String::from_utf8_lossy(&dwz.stderr));
    let (_, shared, left_out) = tools.both(&library);
    assert_eq!(missing(&shared, &plain), Vec::<String>::new());
    assert_eq!(left_out.0.get(&Reason::Reference), None);
}
