//! The committed lists of what C programs depend on, compared with what compilers and linkers make
//! of it. `cargo xtask api` compares the same lists with the headers' text.

use crate::common;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_ctype::find;
use backtrail_ctype::link::Section;
use backtrail_ctype::print::Name;
use backtrail_debuginfo::types::Source;
use backtrail_testkit::lists::difference;
use backtrail_testkit::{available, command, place, scratch, skip};
use common::{libraries, link_versioned, symbols};

const LIMIT: Duration = Duration::from_secs(60);

/// If set, the tests write the lists.
const WRITE: &str = "BACKTRAIL_WRITE_LISTS";

fn of(room: &str, file: &str) -> PathBuf {
    place::workspace().join("crates").join(room).join(file)
}

/// Compares a list with the committed one.
fn compare(room: &str, file: &str, current: &str) {
    let path = of(room, file);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, current).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let rewrite = format!("{WRITE}=1 cargo test -p backtrail-capi --test all interface");
    if let Some(text) = difference(&format!("crates/{room}/{file}"), &committed, current, &rewrite) {
        panic!("{text}");
    }
}

/// Sizes, and the offsets of members in bits. x86-64 and AArch64 have the same.
#[test]
fn structs_are_laid_out_as_listed() {
    for (room, library) in [("capi", "backtrail"), ("tracer-capi", "backtrail-tracer")] {
        let header = format!("include/{library}.h");
        let text = fs::read_to_string(of(room, &header)).unwrap();
        let defined = text
            .lines()
            .filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
        let names: Vec<&str> = defined.collect();
        assert!(names.len() > 3, "{names:?}");
        let Some(object) = types_of(&of(room, &header), &names) else {
            return;
        };
        let source = Source::find(&object).unwrap();
        let section = Section::open(source.section(), source.surroundings()).unwrap();
        let mut list = format!("// The structs of {library}.h on 64-bit systems; offsets are in bits.\n");
        for name in names {
            let name = format!("struct {name}");
            let found = section.types().find_map(|types| {
                let found = find::find(types, &[], Name::parse(&name));
                find::describe(types, *found.first()?, &name).ok()
            });
            let found = found.unwrap_or_else(|| panic!("{name} is not in the object"));
            writeln!(list, "{name}: {} bytes", found.size.unwrap()).unwrap();
            for member in found.members {
                let size = member.size.unwrap() * 8;
                writeln!(list, "{name}: {} +{size}: {}", member.bit_offset, member.declaration).unwrap();
            }
        }
        compare(room, "layout.txt", &list);
    }
}

/// An object with the types of a header.
fn types_of(header: &Path, names: &[&str]) -> Option<Vec<u8>> {
    let folder = scratch();
    let (source, object) = (folder.path().join("types.c"), folder.path().join("types.o"));
    let mut text = format!("#include \"{}\"\n", header.display());
    for (at, name) in names.iter().enumerate() {
        writeln!(text, "struct {name} value_{at};").unwrap();
    }
    fs::write(&source, text).unwrap();
    let mut compile = Command::new("gcc");
    compile.args(["-c", "-gctf", "-o"]).arg(&object).arg(&source);
    let compiled = available(command::run(&mut compile, LIMIT))?;
    assert!(compiled.status.success(), "{}", compiled.describe());
    Some(fs::read(&object).unwrap())
}

/// What a library exports, with versions if it has any.
fn exported(library: &Path) -> Option<BTreeSet<String>> {
    // The names of versions are symbols, too, but absolute ones.
    let symbols = symbols(library)?.into_iter().filter(|(_, kind)| kind != "A");
    Some(symbols.map(|(name, _)| format!("symbol {name}")).collect())
}

#[test]
fn installed_libraries_export_the_listed_symbols() {
    for (room, package, name) in [
        ("capi", "backtrail", "backtrail"),
        ("tracer-capi", "backtrail-tracer", "backtrail_tracer"),
    ] {
        let folder = scratch();
        let script = of(room, &format!("{package}.map"));
        let list = fs::read_to_string(of(room, "abi.txt")).unwrap();
        let listed: BTreeSet<String> = list
            .lines()
            .filter(|line| line.starts_with("symbol "))
            .map(str::to_owned)
            .collect();
        assert!(listed.len() > 5, "{listed:?}");
        let Some(library) = link_versioned(folder.path(), name, &script) else {
            return;
        };
        let Some(exported) = exported(&library) else { return };
        assert_eq!(exported, listed, "{room}");
    }
}

/// The names that they take over from other libraries.
#[test]
fn preloaded_libraries_export_the_listed_symbols() {
    if !cfg!(target_arch = "x86_64") {
        return skip("the lists are those of x86-64");
    }
    for (room, library) in [
        ("preload", "libbacktrail_preload.so"),
        ("unwind-capi", "libbacktrail_unwind.so"),
    ] {
        let Some(exported) = exported(&libraries().join(library)) else {
            return;
        };
        let mut list = format!("// What {library} exports on x86-64.\n");
        for symbol in exported {
            writeln!(list, "{symbol}").unwrap();
        }
        compare(room, "abi.txt", &list);
    }
}
