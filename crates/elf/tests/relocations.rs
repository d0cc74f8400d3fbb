//! Relocations of an object file that gcc made, compared with where its symbols are; and damaged
//! ones.

use std::process::Command;

use backtrail_elf::machines::{EM_386, EM_PPC};
use backtrail_elf::{Error, ErrorKind, File, Image, Kind, Table};
use backtrail_wire::Endian;

const SOURCE: &str = "
int first(int a) { return a + 1; }
__attribute__((section(\".text.other\"))) int other(int a) { return first(a) * 3; }
int second(int a) { return other(a) + first(a); }
int (*const table[])(int) = {second, other, first};
";

/// An object file of this machine; `None`, with a message, if there is no compiler.
fn object() -> Option<Vec<u8>> {
    object_by("gcc", &[])
}

fn object_by(compiler: &str, flags: &[&str]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("o.c"), folder.path().join("o.o"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut gcc = Command::new(compiler);
    let made = gcc
        .args(["-c", "-O1", "-fPIC"])
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        backtrail_testkit::skip(format_args!("{compiler} {flags:?} cannot compile here"));
        return None;
    }
    Some(std::fs::read(object).unwrap())
}

/// 32-bit objects: relocations with addends (PowerPC) and with addends in the field (i386).
#[test]
fn objects_of_32_bits() {
    for (compiler, flags, machine, big) in [
        ("gcc", &["-m32"][..], EM_386, false),
        ("powerpc-linux-gnu-gcc", &[], EM_PPC, true),
    ] {
        let Some(object) = object_by(compiler, flags) else {
            continue;
        };
        assert_eq!(Image::parse(&object).unwrap_err().kind, ErrorKind::Class(1));
        let file = File::parse(&object).unwrap();
        assert_eq!((file.machine(), file.address_bytes()), (machine, 4));
        assert_eq!(file.endian() == Endian::Big, big);
        assert_eq!(
            (file.kind(), file.entry(), file.segments()),
            (Kind::Relocatable, 0, &[][..])
        );
        let (symbols, _) = file.symbol_table(Table::Full).unwrap();
        let symbols: Vec<_> = symbols.filter(|symbol| symbol.is_function).collect();
        let value = |name: &[u8]| symbols.iter().find(|symbol| symbol.name == name).unwrap().value;
        let relocated = file.debug_section(".data.rel.ro").unwrap().unwrap();
        let words = relocated.data.chunks_exact(4).map(|word| {
            let word: [u8; 4] = word.try_into().unwrap();
            u64::from(if big {
                u32::from_be_bytes(word)
            } else {
                u32::from_le_bytes(word)
            })
        });
        let words: Vec<u64> = words.collect();
        assert_eq!(words, [value(b"second"), value(b"other"), value(b"first")]);
        assert!(words[0] > 0, "{words:x?}");
    }
}

fn relocated(file: &[u8], name: &str) -> Result<Vec<u8>, Error> {
    let image = Image::parse(file)?;
    assert_eq!(image.kind(), Kind::Relocatable);
    let section = *image.section_header(name).unwrap();
    Ok(image.relocated(&section)?.unwrap().data.into_owned())
}

#[test]
fn tables_point_to_their_functions() {
    let Some(file) = object() else { return };
    // Addresses of 8 bytes: first is at 0 of .text, other at 0 of .text.other, second follows
    // first.
    let words = |bytes: &[u8]| -> Vec<u64> {
        let words = bytes.chunks_exact(8);
        words.map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    };
    let table = words(&relocated(&file, ".data.rel.ro").unwrap());
    assert_eq!(table.len(), 3);
    assert!(table[0] > 0 && table[0] < 64, "{table:x?}");
    assert_eq!(table[1..], [0, 0]);
    // Distances of 4 bytes: the starts in .eh_frame, found by their values.
    let image = Image::parse(&file).unwrap();
    let plain = image.section(".eh_frame").unwrap().unwrap().data;
    let frames = relocated(&file, ".eh_frame").unwrap();
    assert_eq!(frames.len(), plain.len());
    let starts: Vec<u64> = (0..frames.len() / 4)
        .filter(|index| frames[4 * index..][..4] != plain[4 * index..][..4])
        .map(|index| {
            let distance = i32::from_ne_bytes(frames[4 * index..][..4].try_into().unwrap());
            (4 * index as u64).wrapping_add(distance as u64)
        })
        .collect();
    assert_eq!(starts, [0, 0, table[0]], "first, other, second");
    // A section without relocations, and a linked file, stay as they are.
    assert_eq!(
        relocated(&file, ".comment").unwrap(),
        *image.section(".comment").unwrap().unwrap().data
    );
    let linked = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let image = Image::parse(&linked).unwrap();
    let header = *image.section_header(".eh_frame").unwrap();
    assert_eq!(image.relocated(&header), image.contents(&header));
}

#[test]
fn damaged_relocations_are_told() {
    let Some(file) = object() else { return };
    let image = Image::parse(&file).unwrap();
    let entries = image.section_header(".rela.eh_frame").unwrap().offset;
    let size = image.section_header(".eh_frame").unwrap().size;
    let changed = |at: u64, value: u64| {
        let mut file = file.clone();
        let at = (entries + at) as usize;
        file[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        relocated(&file, ".eh_frame").map(|data| data.len() as u64)
    };
    let error = |kind| Err(Error { kind, offset: entries });
    assert_eq!(changed(0, 0), Ok(size));
    for offset in [size - 3, u64::MAX] {
        assert_eq!(changed(0, offset), error(ErrorKind::RelocationOffset(offset)));
    }
    assert_eq!(changed(8, 77), error(ErrorKind::Relocation(77)));
    // R_AARCH64_PREL32 and R_X86_64_PC32.
    let relative = if cfg!(target_arch = "aarch64") { 261 } else { 2 };
    assert_eq!(
        changed(8, 9999 << 32 | relative),
        error(ErrorKind::RelocationSymbol(9999))
    );
    // The type 0 does nothing.
    assert_eq!(changed(8, 0), Ok(size));
}
