//! Dicts are read and rewritten, and the result is read by this crate, libctf (objdump) and gdb.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_ctype::write::{self, Contents, ExternalStrings, Options, WriteError};
use backtrail_ctype::{Archive, Dict, Kind, Surroundings, TypeId, Types, graph};
use backtrail_elf::{Image, Table};
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{available, place, scratch, skip};
use backtrail_wire::Endian;
use common::{Maker, every_kind, pack, symbols};

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Reads and rewrites a file's section: with or without the file's strings, compressed or not.
fn rewritten(file: &[u8], lend: bool, compress_from: usize) -> Vec<u8> {
    let image = Image::parse(file).unwrap();
    let section = image.section(".ctf").unwrap().unwrap().data;
    let dynamic = {
        let first = Archive::parse(&section).unwrap().member(0).unwrap();
        first.bytes[3] & 8 != 0
    };
    let (symbols, strings) = symbols(&image, if dynamic { Table::Dynamic } else { Table::Full });
    let external = ExternalStrings::new(strings);
    let options = Options {
        strings: lend.then_some(&external),
        dynamic,
        compress_from,
        ..Options::new(image.endian())
    };
    let archive = Archive::parse(&section).unwrap();
    let surroundings = Surroundings {
        strings,
        ..Surroundings::default()
    };
    let (mut names, mut dicts) = (Vec::new(), Vec::new());
    for member in archive.members() {
        let member = member.unwrap();
        let dict = member.open(surroundings).unwrap();
        let parent = archive.parent_of(&dict).unwrap();
        let parent = parent.map(|parent| parent.open(surroundings).unwrap());
        let types = Types::with_parent(&dict, parent.as_ref());
        let contents = Contents::read(types, &symbols).unwrap();
        names.push((member.name, dicts.len()));
        dicts.push(write::dict(&contents, &options).unwrap());
    }
    match dicts.len() {
        1 => dicts.remove(0),
        _ => write::archive(&names, &dicts, 8),
    }
}

/// objdump's text of a file's types without offsets: strings move, and indexes get sorted.
fn contents(binutils: &Binutils, machine: Machine, file: &Path) -> String {
    let mut objdump = binutils.tool(machine, "objdump").command();
    let text = run(objdump.arg("--ctf").arg(file));
    let (mut kept, mut sorting) = (String::new(), Vec::new());
    let mut part = "";
    for line in text.lines().skip_while(|line| !line.starts_with("Contents")) {
        if line.ends_with(':') && line.starts_with("  ") && !line.starts_with("   ") {
            part = line.trim();
            kept.extend(std::mem::take(&mut sorting));
        }
        match part {
            "Header:" | "Strings:" if !line.starts_with("CTF archive member") => {}
            "Data objects:" | "Function objects:" if !line.contains("(Section is indexed.)") => {
                let at = sorting.partition_point(|other: &String| other.as_str() < line);
                sorting.insert(at, format!("{line}\n"));
            }
            "Data objects:" | "Function objects:" => {}
            _ => kept.push_str(&format!("{line}\n")),
        }
    }
    kept
}

struct Gcc {
    binutils: Binutils,
    machine: Machine,
}

impl Gcc {
    fn get(release: Release, machine: Machine) -> Option<Gcc> {
        let binutils = Binutils::get(release)?;
        let gcc = Gcc { binutils, machine };
        let works = gcc.command().arg("--version").output();
        if !works.is_ok_and(|output| output.status.success()) {
            skip(format!("no gcc for {machine:?}"));
            return None;
        }
        Some(gcc)
    }

    fn command(&self) -> Command {
        let mut gcc = Command::new(format!("{}-gcc", self.machine.triplet()));
        gcc.args(["-gctf", "-w", "-fPIC", "-O1", "-B"])
            .arg(self.binutils.for_gcc(self.machine));
        gcc
    }
}

fn sources(part: &str) -> Vec<PathBuf> {
    if part == "kinds" {
        let names = ["types_kinds.c", "types_odd.c"];
        return names.iter().map(|name| place::programs().join(name)).collect();
    }
    let Some(shared) = available(place::shared()) else {
        return Vec::new();
    };
    let entries = fs::read_dir(shared.join("corpus/ctype").join(part)).unwrap();
    let mut sources: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    sources.retain(|path| path.extension().is_some_and(|c| c == "c"));
    sources.sort();
    sources
}

/// Each file's section, rewritten in every way, must show the same types as before.
fn round_trips(gcc: &Gcc, folder: &Path, file: &Path, readers: &[Binutils]) {
    let bytes = fs::read(file).unwrap();
    for (lend, compress_from) in [(true, 0), (false, 0), (true, usize::MAX)] {
        let (section, other) = (folder.join("section"), folder.join("other"));
        fs::write(&section, rewritten(&bytes, lend, compress_from)).unwrap();
        let mut objcopy = gcc.binutils.tool(gcc.machine, "objcopy").command();
        let update = format!("--update-section=.ctf={}", section.display());
        run(objcopy.arg(update).arg(file).arg(&other));
        for reader in readers {
            let [before, after] = [file, &other].map(|file| contents(reader, gcc.machine, file));
            assert!(before.contains("  Types:\n    0x"), "{before}");
            for (before, after) in before.lines().zip(after.lines()) {
                assert_eq!(
                    before,
                    after,
                    "{file:?}, surroundings: {lend}, {}",
                    reader.release().number()
                );
            }
            assert_eq!(before.len(), after.len(), "{file:?}");
        }
    }
}

fn everything(release: Release, machine: Machine) {
    let Some(gcc) = Gcc::get(release, machine) else { return };
    let readers: Vec<Binutils> = [Release::V2_40, Release::V2_47]
        .into_iter()
        .filter_map(Binutils::get)
        .collect();
    let folder = scratch();
    let mut files = 0;
    for part in ["kinds", "talk", "names"] {
        let mut objects = Vec::new();
        for source in sources(part) {
            let name = format!("{part}-{}.o", source.file_stem().unwrap().to_string_lossy());
            let object = folder.path().join(name);
            run(gcc.command().arg("-c").arg(&source).arg("-o").arg(&object));
            round_trips(&gcc, folder.path(), &object, &readers);
            objects.push(object);
        }
        if objects.is_empty() {
            continue;
        }
        let linked = folder.path().join(part);
        run(gcc.command().arg("-shared").args(&objects).arg("-o").arg(&linked));
        round_trips(&gcc, folder.path(), &linked, &readers);
        files += objects.len() + 1;
    }
    println!("{machine:?}, linked by {}: {files} files", release.number());
    assert!(files >= 3);
}

#[test]
fn x86_64() {
    everything(Release::V2_40, Machine::X86_64);
    everything(Release::V2_47, Machine::X86_64);
}

#[test]
fn s390x_is_big_endian() {
    everything(Release::V2_40, Machine::S390x);
}

/// Structs of more than 512 MiB, and members past that size.
#[test]
fn large_structs() {
    let Some(gcc) = Gcc::get(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let folder = scratch();
    let object = folder.path().join("large.o");
    let source = place::programs().join("types_large.c");
    run(gcc.command().arg("-c").arg(source).arg("-o").arg(&object));
    let readers = [Release::V2_40, Release::V2_47].map(Binutils::get);
    let readers: Vec<Binutils> = readers.into_iter().flatten().collect();
    round_trips(&gcc, folder.path(), &object, &readers);
}

/// gdb reads the rewritten section.
#[test]
fn gdb_knows_the_types() {
    let Some(gcc) = Gcc::get(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let folder = scratch();
    let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
    let text = "struct tree { int depth; struct tree *left, *right; unsigned colour : 3; } root;\nint main(void) { return root.depth; }\n";
    fs::write(&source, text).unwrap();
    run(gcc.command().args(["-rdynamic"]).arg(&source).arg("-o").arg(&program));
    let section = folder.path().join("section");
    fs::write(&section, rewritten(&fs::read(&program).unwrap(), true, 0)).unwrap();
    let other = folder.path().join("other");
    let update = format!("--update-section=.ctf={}", section.display());
    let mut objcopy = gcc.binutils.tool(Machine::X86_64, "objcopy").command();
    run(objcopy.arg(update).arg(&program).arg(&other));
    let mut gdb = Command::new("gdb");
    let output = gdb
        .args(["-q", "-nx", "-batch", "-ex", "ptype struct tree"])
        .arg(&other)
        .output();
    let Ok(output) = output else {
        return skip("no gdb");
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("struct tree *left;") && text.contains("colour : 3"),
        "{text}"
    );
}

/// Rewriting a hand-made dict of any version and byte order keeps everything in it.
#[test]
fn dicts_by_hand() {
    for (version, big) in [(1, false), (2, false), (3, true), (4, false), (4, true)] {
        let mut maker = every_kind(version, big);
        maker.flags |= 1;
        let before = pack(&mut maker);
        let before = Dict::open(&before, Surroundings::default()).unwrap();
        let endian = if big { Endian::Big } else { Endian::Little };
        let contents = Contents::read(before.types(), &[]).unwrap();
        let after = write::dict(&contents, &Options::new(endian)).unwrap();
        let after = Dict::open(&after, Surroundings::default()).unwrap();
        let again = Contents::read(after.types(), &[]).unwrap();
        assert_eq!(format!("{contents:?}"), format!("{again:?}"), "version {version}");
        assert_eq!(after.header().endian, endian);
        assert_eq!(contents.variables.len(), 2);
    }
}

/// Exceeding the format's limits is an error.
#[test]
fn limits() {
    let options = Options::new(Endian::Little);
    let write = |fill: &dyn Fn(&mut graph::Graph<'static>)| {
        let mut contents = Contents::default();
        fill(&mut contents.types);
        write::dict(&contents, &options).map(|_| ())
    };
    let refers = |kind, id| graph::Body::Reference(kind, TypeId(id));
    assert_eq!(
        write(&|graph| _ = graph.add_nameless(refers(Kind::Pointer, 2))),
        Err(WriteError::NoType(TypeId(2)))
    );
    assert_eq!(
        write(&|graph| _ = graph.add_nameless(refers(Kind::Pointer, 0x8000_0001))),
        Err(WriteError::NoType(TypeId(0x8000_0001)))
    );
    assert_eq!(
        write(&|graph| _ = graph.add_nameless(refers(Kind::Enum, 0))),
        Err(WriteError::Kind(TypeId(1), Kind::Enum))
    );
    let name = |name| graph::Node {
        name,
        root: true,
        body: refers(Kind::Typedef, 0),
    };
    assert_eq!(
        write(&|graph| _ = graph.add(name(b"a\0b"))),
        Err(WriteError::Name(TypeId(1)))
    );
    assert_eq!(write(&|graph| _ = graph.add(name(b"a"))), Ok(()));
    let far = |graph: &mut graph::Graph<'static>| {
        let member = backtrail_ctype::StructMember {
            name: b"far",
            offset: 1 << 32,
            id: TypeId(0),
        };
        let members = graph.add_members([member]);
        graph.add_nameless(graph::Body::Aggregate(Kind::Struct, 8, members));
    };
    assert_eq!(write(&far), Err(WriteError::Number(TypeId(1))));
    // An empty dict is valid.
    let empty = Maker::new(4, false).finish();
    assert!(Dict::open(&empty, Surroundings::default()).unwrap().is_empty());
    assert_eq!(write(&|_| ()), Ok(()));
}
