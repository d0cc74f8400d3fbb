//! Linking: an example from a talk, comparison with GNU ld, equal children, threads.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_ctype::link::{self, LinkErrorKind, LinkedSymbol, Mode, Options, Section, Symbols, Unit};
use backtrail_ctype::write::{self, ExternalStrings};
use backtrail_ctype::{Archive, Dict, Kind, Surroundings, Symbol, TypeId, Types};
use backtrail_elf::{Image, Table};
use backtrail_testkit::objdump_types::Dicts;
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, available, place, scratch};
use backtrail_wire::Endian;
use common::{Body, Maker};

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Objects that gcc compiled from some sources.
struct Objects {
    binutils: Binutils,
    folder: TempDir,
    paths: Vec<PathBuf>,
    sections: Vec<Vec<u8>>,
}

impl Objects {
    fn compile(release: Release, sources: &[PathBuf]) -> Option<Objects> {
        let binutils = Binutils::get(release)?;
        let mut objects = Objects {
            binutils,
            folder: scratch(),
            paths: Vec::new(),
            sections: Vec::new(),
        };
        for source in sources {
            // Relative paths give units short names that are the same everywhere.
            let name = source.file_name().unwrap();
            fs::copy(source, objects.folder.path().join(name)).unwrap();
            let object = objects.folder.path().join(name).with_extension("o");
            run(objects.gcc().arg("-c").arg(name).arg("-o").arg(&object));
            let bytes = fs::read(&object).unwrap();
            let section = Image::parse(&bytes).unwrap().section(".ctf").unwrap().unwrap();
            objects.sections.push(section.data.into_owned());
            objects.paths.push(object);
        }
        Some(objects)
    }

    fn gcc(&self) -> Command {
        let mut gcc = Command::new("gcc");
        gcc.args(["-gctf", "-w", "-fPIC", "-O1", "-B"])
            .arg(self.binutils.for_gcc(Machine::X86_64))
            .current_dir(self.folder.path());
        gcc
    }

    /// The file that GNU ld links from them.
    fn linked(&self, flags: &[&str]) -> PathBuf {
        let output = self.folder.path().join("linked");
        run(self.gcc().args(flags).args(&self.paths).arg("-o").arg(&output));
        output
    }

    fn ours(&self, mode: Mode, symbols: Symbols<'_>, options: &write::Options<'_>) -> Vec<u8> {
        linked(&self.sections, mode, symbols, options)
    }

    fn objdump(&self, file: &Path) -> String {
        let mut objdump = self.binutils.tool(Machine::X86_64, "objdump").command();
        run(objdump.arg("--ctf").arg(file))
    }

    /// objdump's text of a file whose section is replaced by another.
    fn objdump_of(&self, file: &Path, section: &[u8]) -> String {
        let (bytes, other) = (self.folder.path().join("section"), self.folder.path().join("other"));
        fs::write(&bytes, section).unwrap();
        let mut objcopy = self.binutils.tool(Machine::X86_64, "objcopy").command();
        let update = format!("--update-section=.ctf={}", bytes.display());
        run(objcopy.arg(update).arg(file).arg(&other));
        self.objdump(&other)
    }
}

fn linked(sections: &[Vec<u8>], mode: Mode, symbols: Symbols<'_>, options: &write::Options<'_>) -> Vec<u8> {
    let opened = sections
        .iter()
        .map(|bytes| Section::open(bytes, Surroundings::default()).unwrap());
    let opened: Vec<Section<'_>> = opened.collect();
    let units: Vec<Unit<'_>> = opened.iter().flat_map(|section| section.units(&[]).unwrap()).collect();
    let options_of_link = Options {
        mode,
        symbols,
        variables: false,
    };
    let linked = link::link(&units, &options_of_link).unwrap();
    linked.write(options, 8).unwrap()
}

fn unit_of<'d>(dicts: &'d Dicts, name: &str) -> &'d backtrail_testkit::objdump_types::Dict {
    let unit = dicts.units().into_iter().find(|unit| unit.ends_with(name)).unwrap();
    dicts.get(unit).unwrap()
}

fn plain() -> write::Options<'static> {
    write::Options::new(Endian::Little)
}

fn corpus(part: &str) -> Option<Vec<PathBuf>> {
    let folder = available(place::shared())?.join("corpus/ctype").join(part);
    let mut sources: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    sources.sort();
    Some(sources)
}

fn names(section: &[u8]) -> Vec<String> {
    let archive = Archive::parse(section).unwrap();
    let members = archive
        .members()
        .map(|member| String::from_utf8_lossy(member.unwrap().name).into_owned());
    // gcc prefixes the folder.
    members
        .map(|name| name.rsplit('/').next().unwrap().to_owned())
        .collect()
}

/// The talk's example: a struct of two units that refers to itself.
#[test]
fn the_talks_layout() {
    let Some(sources) = corpus("talk") else { return };
    for release in [Release::V2_40, Release::V2_47] {
        let Some(objects) = Objects::compile(release, &sources) else {
            return;
        };
        let program = objects.linked(&["-pie"]);
        let section = objects.ours(Mode::ShareUnconflicted, Symbols::None, &plain());
        assert_eq!(names(&section), [".ctf", "one.c", "two.c"]);
        let text = objects.objdump_of(&program, &section);
        let dicts = Dicts::parse(&text);
        let parent = dicts.get("").unwrap();
        assert!(parent.types.contains("(kind 9) struct foo"), "{text}");
        assert!(parent.types.iter().any(|text| text.contains("FILE")), "{text}");
        let one = &unit_of(&dicts, "one.c").types;
        assert_eq!(one.len(), 1);
        let foo = one.first().unwrap();
        assert!(
            foo.starts_with("(kind 6) struct foo (size 0x10)") && foo.contains("[0x40] next:"),
            "{foo}"
        );
        assert!(
            unit_of(&dicts, "two.c")
                .types
                .first()
                .unwrap()
                .contains("[0x20] zebar:")
        );
        // Everything that GNU ld has, in a smaller section.
        let theirs = objects.objdump(&program);
        assert_eq!(dicts.missing(&Dicts::parse(&theirs)), Vec::<String>::new());
        let file = fs::read(&program).unwrap();
        let their_section = Image::parse(&file).unwrap().section(".ctf").unwrap().unwrap().data;
        println!(
            "{}: ours {}, ld's {}",
            release.number(),
            section.len(),
            their_section.len()
        );
        assert!(section.len() < their_section.len());

        let section = objects.ours(Mode::ShareDuplicated, Symbols::None, &plain());
        assert_eq!(names(&section), [".ctf", "main.c", "one.c", "two.c"]);
        let section = objects.ours(Mode::SingleDict, Symbols::None, &plain());
        assert_eq!(names(&section), [".ctf"]);
        let text = objects.objdump_of(&program, &section);
        assert!(
            text.contains("[0x20] zebar") && text.matches("struct foo (size").count() >= 2,
            "{text}"
        );
    }
}

/// Static functions with the same name do not duplicate types.
#[test]
fn names_of_functions_are_not_types() {
    let Some(sources) = corpus("names") else { return };
    let Some(objects) = Objects::compile(Release::V2_40, &sources) else {
        return;
    };
    let library = objects.linked(&["-shared"]);
    let theirs = Dicts::parse(&objects.objdump(&library));
    assert!(!theirs.units().is_empty(), "ld has learnt it");
    let section = objects.ours(Mode::ShareUnconflicted, Symbols::None, &plain());
    assert_eq!(names(&section), [".ctf"]);
    let ours = Dicts::parse(&objects.objdump_of(&library, &section));
    let parent = ours.get("").unwrap();
    for wanted in ["int (*) ()", "void (*) (int)"] {
        assert!(parent.types.iter().any(|text| text.contains(wanted)), "{wanted}");
    }
    let types_of_theirs = ours.missing(&theirs);
    assert!(
        types_of_theirs.iter().all(|text| text.contains("->")),
        "{types_of_theirs:?}"
    );
}

/// Symbols of the linked file: those with types, numbered or by name, with names in its own table.
#[test]
fn symbols_of_the_linked_file() {
    let Some(sources) = corpus("talk") else { return };
    let Some(objects) = Objects::compile(Release::V2_40, &sources) else {
        return;
    };
    for (flags, table) in [
        (&["-pie", "-rdynamic"], Table::Dynamic),
        (&["-pie", "-rdynamic"], Table::Full),
    ] {
        let program = objects.linked(flags);
        let theirs = Dicts::parse(&objects.objdump(&program));
        let file = fs::read(&program).unwrap();
        let image = Image::parse(&file).unwrap();
        let (symbols, strings) = common::symbols(&image, table);
        let linked = symbols.into_iter().map(|Symbol { name, kind }| LinkedSymbol {
            name,
            kind,
            file: None,
            address: None,
        });
        let symbols: Vec<LinkedSymbol<'_>> = linked.collect();
        let external = ExternalStrings::new(strings);
        let options = write::Options {
            strings: Some(&external),
            dynamic: table == Table::Dynamic,
            ..plain()
        };
        let symbols_of = match table {
            Table::Dynamic => Symbols::Numbered,
            Table::Full => Symbols::Listed,
        };
        let section = objects.ours(Mode::ShareUnconflicted, symbols_of(&symbols), &options);
        let ours = Dicts::parse(&objects.objdump_of(&program, &section));
        assert_eq!(ours.missing(&theirs), Vec::<String>::new());
        let told = &ours.get("").unwrap().symbols;
        for wanted in [
            "one_add -> (kind 5) int (*) (struct foo *)",
            "two_head -> (kind 3) struct foo * (size 0x8) -> (kind 9) struct foo",
        ] {
            assert!(told.contains(wanted), "{told:?}");
        }
    }
}

/// GNU ld makes this struct two bytes larger than it is in gcc, because it ends with a bit field.
const LD_GROWS: &str = "struct bits (size 0xa)";

/// Types of every kind, and those of the C library: everything that GNU ld has is there.
#[test]
fn nothing_is_missing() {
    let programs = place::programs();
    let sources = ["types_kinds.c", "types_odd.c", "types_headers.c"].map(|name| programs.join(name));
    for release in [Release::V2_40, Release::V2_47] {
        let Some(objects) = Objects::compile(release, &sources) else {
            return;
        };
        let library = objects.linked(&["-shared"]);
        let theirs = Dicts::parse(&objects.objdump(&library));
        for mode in [Mode::ShareUnconflicted, Mode::ShareDuplicated, Mode::SingleDict] {
            let section = objects.ours(mode, Symbols::Named, &plain());
            let ours = Dicts::parse(&objects.objdump_of(&library, &section));
            for object in &objects.paths {
                // Declarations may have become definitions.
                let missing = ours.missing(&Dicts::parse(&objects.objdump(object)));
                let missing = missing
                    .iter()
                    .filter(|text| !text.contains("(kind 9)") && mode == Mode::SingleDict);
                assert_eq!(
                    missing.collect::<Vec<_>>(),
                    Vec::<&String>::new(),
                    "{mode:?}, {object:?}"
                );
            }
            assert!(ours.types() > 100 && theirs.types() > 100);
            let missing = ours.missing(&theirs);
            // In one dict a unit's types are the parent's.
            let missing = missing.iter().filter(|text| !text.contains(LD_GROWS));
            let missing = missing.filter(|_| mode != Mode::SingleDict);
            assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new(), "{mode:?}");
        }
    }
}

/// A unit with an int, a struct of `ints` ints, and a pointer to the struct.
fn unit(name: &'static str, ints: u32) -> Vec<u8> {
    let mut maker = Maker::new(4, false);
    maker.add(1, "int", &Body::Number(4, 1 << 24 | 32));
    let members = (0..ints).map(|number| ("member", u64::from(number) * 32, 1)).collect();
    maker.add(6, "clash", &Body::Struct(u64::from(ints) * 4, members));
    maker.add(3, "", &Body::Refers(2));
    maker.add(10, name, &Body::Refers(3));
    maker.finish()
}

/// Units with equal types share a dict, and each unit's name finds it.
#[test]
fn equal_children_are_one() {
    let sections: Vec<Vec<u8>> = [1, 2, 2, 2, 1, 3].iter().map(|&ints| unit("t", ints)).collect();
    let section = linked(&sections, Mode::ShareUnconflicted, Symbols::None, &plain());
    let archive = Archive::parse(&section).unwrap();
    // All units have the same name here.
    let expected = [
        ".ctf", "unit.c", "unit.c#1", "unit.c#2", "unit.c#3", "unit.c#4", "unit.c#5",
    ];
    assert_eq!(names(&section), expected);
    let places: Vec<usize> = archive.members().map(|member| member.unwrap().offset).collect();
    let at = |name: &[u8]| archive.find(name).unwrap().offset;
    assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    assert_eq!(at(b"unit.c#1"), at(b"unit.c#2"));
    assert_eq!(at(b"unit.c"), at(b"unit.c#4"));
    let open = |name: &[u8]| archive.find(name).unwrap().open(Surroundings::default()).unwrap();
    let parent = open(b".ctf");
    for (name, size) in [(&b"unit.c"[..], 4), (b"unit.c#3", 8), (b"unit.c#5", 12)] {
        let child = open(name);
        let types = Types::with_parent(&child, Some(&parent));
        assert_eq!(types.get(TypeId(0x8000_0001)).unwrap().size(), size);
        // Shared dicts do not name a unit.
        assert_eq!(child.cu_name().unwrap().is_some(), size == 12);
    }
    // The pointer and the typedef are shared, and lead to the declaration.
    let kinds: Vec<Kind> = parent.ids().map(|id| parent.types().get(id).unwrap().kind()).collect();
    assert_eq!(kinds, [Kind::Integer, Kind::Pointer, Kind::Typedef, Kind::Forward]);
}

/// A type that takes its alignment from an ambiguous struct is in the children, too, with all types
/// in between: in the parent it would have no alignment.
#[test]
fn alignment_comes_from_what_is_there() {
    let unit = |ints: u64| {
        let mut maker = Maker::new(4, false);
        maker.add(1, "int", &Body::Number(4, 1 << 24 | 32));
        let members = (0..ints).map(|number| ("member", number * 32, 1)).collect();
        maker.add(6, "clash", &Body::Struct(ints * 4, members));
        maker.add(10, "Clash", &Body::Refers(2));
        maker.add(4, "", &Body::Array(3, 1, 2));
        maker.add(6, "begins", &Body::Struct(16, vec![("first", 0, 3)]));
        maker.add(6, "ends", &Body::Struct(24, vec![("first", 0, 1), ("last", 64, 3)]));
        maker.add(7, "or", &Body::Struct(16, vec![("one", 0, 1), ("other", 0, 3)]));
        maker.add(3, "", &Body::Refers(3));
        maker.finish()
    };
    let sections = [unit(1), unit(2)];
    let section = linked(&sections, Mode::ShareUnconflicted, Symbols::None, &plain());
    let archive = Archive::parse(&section).unwrap();
    let parent = archive.find(b".ctf").unwrap().open(Surroundings::default()).unwrap();
    let kinds: Vec<Kind> = parent.ids().map(|id| parent.types().get(id).unwrap().kind()).collect();
    let expected = [Kind::Integer, Kind::Typedef, Kind::Struct, Kind::Pointer, Kind::Forward];
    assert_eq!(kinds, expected);
    for (name, ints) in [(&b"unit.c"[..], 1), (b"unit.c#1", 2)] {
        let child = archive.find(name).unwrap().open(Surroundings::default()).unwrap();
        let types = Types::with_parent(&child, Some(&parent));
        let found = |kind: Kind, name: &[u8]| {
            let mut found = child.ids().map(|id| types.get(id).unwrap());
            found.find(|found| found.kind() == kind && found.name().unwrap() == name)
        };
        let begins = found(Kind::Struct, b"begins").unwrap();
        let member = begins.members().unwrap().next().unwrap().unwrap().id;
        assert_eq!(types.resolve(member).unwrap().size(), 4 * ints);
        let array = found(Kind::Array, b"").unwrap().array().unwrap();
        assert_eq!(types.resolve(array.contents).unwrap().size(), 4 * ints);
        assert!(found(Kind::Union, b"or").is_some() && found(Kind::Struct, b"ends").is_none());
    }
}

/// A unit whose types are a subset of another unit's shares its dict, unless it defines a further
/// name in it differently, or declares it.
#[test]
fn some_of_anothers_types() {
    let unit = |structs: &[(&'static str, u64)], declared: Option<&'static str>| {
        let mut maker = Maker::new(4, false);
        maker.add(1, "int", &Body::Number(4, 1 << 24 | 32));
        for (name, ints) in structs {
            let members = (0..*ints).map(|number| ("member", number * 32, 1)).collect();
            maker.add(6, name, &Body::Struct(ints * 4, members));
        }
        if let Some(name) = declared {
            maker.add(9, name, &Body::Refers(6));
        }
        maker.finish()
    };
    let sections = [
        unit(&[("a", 1)], None),
        unit(&[("a", 1), ("b", 1)], None),
        unit(&[("a", 1)], Some("b")),
        unit(&[("a", 2), ("b", 1)], None),
        unit(&[("a", 1), ("b", 2)], None),
        unit(&[("b", 2)], None),
    ];
    let section = linked(&sections, Mode::ShareUnconflicted, Symbols::None, &plain());
    let archive = Archive::parse(&section).unwrap();
    let at = |name: &str| archive.find(name.as_bytes()).unwrap().offset;
    assert_eq!(at("unit.c"), at("unit.c#1"));
    assert_eq!(at("unit.c#5"), at("unit.c#4"));
    let places: Vec<usize> = ["unit.c", "unit.c#2", "unit.c#3", "unit.c#4"].map(at).to_vec();
    assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
}

/// Linking the result of linking gives the same types.
#[test]
fn linked_again() {
    let Some(sources) = corpus("talk") else { return };
    let Some(objects) = Objects::compile(Release::V2_40, &sources) else {
        return;
    };
    let program = objects.linked(&["-pie"]);
    let once = objects.ours(Mode::ShareUnconflicted, Symbols::None, &plain());
    let twice = linked(
        std::slice::from_ref(&once),
        Mode::ShareUnconflicted,
        Symbols::None,
        &plain(),
    );
    let [once, twice] = [once, twice].map(|section| Dicts::parse(&objects.objdump_of(&program, &section)));
    assert_eq!(once.missing(&twice), Vec::<String>::new());
    assert_eq!(twice.missing(&once), Vec::<String>::new());
    assert_eq!(once.units(), twice.units());
}

/// The result is the same with any number of threads, to the byte.
#[test]
fn threads_change_nothing() {
    let sections: Vec<Vec<u8>> = (0..200)
        .map(|number| unit(["a", "b", "c"][number % 3], 1 + number as u32 % 7))
        .collect();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| linked(&sections, Mode::ShareUnconflicted, Symbols::Named, &plain()))
    };
    let one = with(1);
    for threads in [2, 3, 8] {
        assert!(with(threads) == one, "{threads} threads");
    }
}

#[test]
fn circles_and_wild_references_are_errors() {
    let failed = |fill: &dyn Fn(&mut Maker)| {
        let mut maker = Maker::new(4, false);
        fill(&mut maker);
        let bytes = maker.finish();
        let dict = Dict::open(&bytes, Surroundings::default()).unwrap();
        let units = [Unit::read(dict.types(), b"u", &[]).unwrap()];
        link::link(&units, &Options::default()).unwrap_err().kind
    };
    let itself = failed(&|maker| _ = maker.add(10, "t", &Body::Refers(1)));
    assert_eq!(itself, LinkErrorKind::Cycle(TypeId(1)));
    let wild = failed(&|maker| _ = maker.add(10, "t", &Body::Refers(7)));
    assert_eq!(wild, LinkErrorKind::NoType(TypeId(7)));
    let child = failed(&|maker| _ = maker.add(10, "t", &Body::Refers(0x8000_0001)));
    assert_eq!(child, LinkErrorKind::NoType(TypeId(0x8000_0001)));
    // A named struct may seem to contain itself, because references use only its name.
    let mut maker = Maker::new(4, false);
    maker.add(6, "s", &Body::Struct(8, vec![("again", 0, 1)]));
    let bytes = maker.finish();
    assert!(!linked(&[bytes], Mode::SingleDict, Symbols::None, &plain()).is_empty());
}
