//! Dicts built by hand, compared with objdump: every version, both byte orders, archives, parents
//! and children.

use crate::common;

use std::fs;
use std::path::Path;
use std::process::Command;

use backtrail_ctype::dump::{self, Style};
use backtrail_ctype::{Archive, Surroundings, Symbol, Types};
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::scratch;
use common::{Body, Maker, archive, every_kind, pack};

const STYLES: [(Release, Style); 3] = [
    (Release::V2_40, Style::Binutils2_40),
    (Release::V2_44, Style::Binutils2_44),
    (Release::V2_47, Style::Binutils2_47),
];

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// objdump's text of a section, starting with "Contents".
fn objdump(binutils: &Binutils, section: &[u8], big: bool, folder: &Path) -> String {
    let machine = if big { Machine::S390x } else { Machine::X86_64 };
    let path = |name: &str| folder.join(name);
    fs::write(path("section"), section).unwrap();
    // libctf accepts version 1 only without a symbol table, and so only without symbols.
    let source = if has_symbols(section) { "symbol:\n" } else { "" };
    fs::write(path("symbol.s"), source).unwrap();
    let assembler = &mut binutils.tool(machine, "as").command();
    run(assembler.arg(path("symbol.s")).arg("-o").arg(path("object")));
    let add = format!(".ctf={}", path("section").display());
    let objcopy = &mut binutils.tool(machine, "objcopy").command();
    run(objcopy.arg("--add-section").arg(add).arg(path("object")));
    let text = run(binutils
        .tool(machine, "objdump")
        .command()
        .arg("--ctf")
        .arg(path("object")));
    text[text.find("Contents").unwrap()..].to_owned()
}

/// Whether the section goes into a file with symbols.
fn has_symbols(section: &[u8]) -> bool {
    !matches!(section[2], 1 | 2)
}

fn ours(section: &[u8], style: Style) -> String {
    let mut text = b"Contents of CTF section .ctf:\n".to_vec();
    let archive = Archive::parse(section).unwrap();
    let symbols: Option<&[Symbol<'_>]> = has_symbols(section).then_some(&[]);
    for member in archive.members() {
        let member = member.unwrap();
        let dict = member.open(Surroundings::default()).unwrap();
        let parent = archive.parent_of(&dict).unwrap();
        let parent = parent.map(|parent| parent.open(Surroundings::default()).unwrap());
        if member.name != b".ctf" {
            text.extend(b"\nCTF archive member: ");
            text.extend(member.name);
            text.extend(b":\n");
        }
        let types = Types::with_parent(&dict, parent.as_ref());
        dump::dump(types, style, symbols, &mut text).unwrap().unwrap();
    }
    String::from_utf8(text).unwrap()
}

fn compare(section: &[u8], big: bool, types: usize) {
    compare_with(section, section, big, types);
}

/// Compares our text of one section with objdump's text of another.
fn compare_with(section: &[u8], for_them: &[u8], big: bool, types: usize) {
    let folder = scratch();
    for (release, style) in STYLES {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        let theirs = objdump(&binutils, for_them, big, folder.path());
        assert!(theirs.matches("    0x").count() >= types, "{theirs}");
        let ours = ours(section, style);
        // For version 1, objdump prints the offsets after libctf has rewritten the dict.
        let begin = match for_them[2] {
            1 => "  Labels:",
            _ => "Contents",
        };
        let [ours, theirs] = [&ours, &theirs].map(|text| &text[text.find(begin).unwrap()..]);
        for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
            assert_eq!(
                ours,
                theirs,
                "binutils {}, line {number}, big-endian: {big}",
                release.number()
            );
        }
        assert_eq!(ours.len(), theirs.len(), "{ours}\n{theirs}");
    }
}

/// libctf can't read older versions in the other byte order, so big-endian dicts are compared with
/// its text of the little-endian ones.
fn compare_old(version: u8) {
    let little = every_kind(version, false).finish();
    compare(&little, false, 18);
    compare_with(&every_kind(version, true).finish(), &little, false, 18);
}

#[test]
fn version_1() {
    compare_old(1);
}

#[test]
fn version_1_with_newer_records() {
    compare_old(2);
}

#[test]
fn version_2() {
    compare_old(3);
}

#[test]
fn version_3() {
    for big in [false, true] {
        let mut maker = every_kind(4, big);
        maker.symbols[0] = vec![(Some("object"), 8), (Some("of_no_type"), 0), (Some("a_object"), 1)];
        maker.symbols[1] = vec![(Some("function"), 6)];
        compare(&maker.finish(), big, 25);
    }
}

#[test]
fn compressed() {
    for (version, big) in [(1, false), (3, false), (4, false), (4, true)] {
        let mut maker = every_kind(version, big);
        maker.flags |= 1;
        compare(&pack(&mut maker), big, 18);
    }
}

#[test]
fn parents_and_children() {
    for big in [false, true] {
        let parent = every_kind(4, big).finish();
        let child = |first: &'static str| {
            let mut maker = Maker::new(4, big);
            maker.parent = Some(".ctf");
            let own = 0x8000_0001;
            maker.add(
                6,
                "mine",
                &Body::Struct(24, vec![(first, 0, 1), ("next", 64, own + 1), ("s", 128, 3)]),
            );
            maker.add(3, "", &Body::Refers(own));
            maker.add(10, "small_and_mine", &Body::Refers(8));
            maker.variables.push(("of_the_unit", own));
            maker
        };
        let mut packed = child("packed");
        packed.flags |= 1;
        let members = [
            (".ctf", parent),
            ("one.c", child("one").finish()),
            ("two.c", pack(&mut packed)),
        ];
        compare(&archive(&members), big, 30);
    }
}
