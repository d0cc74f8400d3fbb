//! Fuzz targets: every function that reads untrusted bytes.

use backtrail_elf::archive::Archive;
use backtrail_elf::edit::{ObjectField, ObjectTable};
use backtrail_elf::{Error, File, Image, Kind, Segment, Symbols, Table, edit};

const PT_GNU_SFRAME: u32 = 0x6474_e554;
const SHT_RELA: u32 = 4;
const RECIPE: edit::Recipe = *b"made by the test";
const SHT_REL: u32 = 9;
const SHT_CREL: u32 = 0x4000_0014;
const SHT_GNU_SFRAME: u32 = 0x6fff_fff4;

/// Parses `data` as a file of a known machine, as memory, and as a file of any machine, and reads
/// everything in them.
pub fn image(data: &[u8]) {
    for parsed in [Image::parse(data), Image::parse_memory(data, 0x7f12_3456_7000)] {
        let Ok(image) = parsed else { continue };
        touch(&image);
    }
    if let Ok(file) = File::parse(data) {
        touch_file(&file);
    }
}

fn touch_file(file: &File<'_>) {
    let _ = (file.build_id(), file.debuglink(), file.debugaltlink());
    // Decompressing may expand a thousandfold; the first sections are enough.
    for section in file.sections().iter().take(64) {
        if let Err(error) = file.contents(section).and_then(|_| file.relocated(section)) {
            let _ = error.to_string();
        }
    }
    for table in [Table::Full, Table::Dynamic] {
        if let Some((symbols, _)) = file.symbol_table(table) {
            let _ = symbols.take(64).count();
        }
    }
    let _ = file.exports();
}

fn touch(image: &Image<'_>) {
    touch_file(image);
    let _ = (image.base_vaddr(), image.mem_size(), image.code_ranges());
    let _ = (
        image.text_address(),
        image.got_address(),
        image.svma_of_offset(image.entry()),
    );
    let _ = (image.eh_frame(), image.eh_frame_hdr(), image.sframe());
    let symbols = Symbols::new(image);
    for symbol in symbols.iter().take(64) {
        assert!(symbol.size > 0, "a symbol of no size would cover nothing");
        assert!(
            symbols
                .lookup(symbol.address)
                .is_some_and(|found| found.address == symbol.address)
        );
    }
}

/// Adds a section that is not loaded to the file `data`, replaces it with a larger one, and that
/// with a small one: each must be found, and nothing that is loaded may change.
fn section(data: &[u8]) {
    let mut bytes = data.to_vec();
    for len in [64, 700, 5] {
        let contents: Vec<u8> = (0..len).map(|index| index as u8 | 1).collect();
        let Ok(edited) = edit::set_section(&bytes, ".types", &contents) else {
            return;
        };
        let after = edited.to_vec();
        let image = Image::parse(&after).expect("what was written can be read");
        let found = image
            .section(".types")
            .expect("its section is whole")
            .expect("it is there");
        assert_eq!(found.data, contents);
        let before = Image::parse(&bytes).expect("an unreadable file is not edited");
        assert_eq!(before.segments(), image.segments());
        // The ELF header contains the position of the sections.
        for load in before
            .segments()
            .iter()
            .filter(|load| load.is_load() && load.offset >= 64)
        {
            let own = |image: &Image<'_>| image.data_at(load.vaddr).map(<[u8]>::to_vec);
            assert!(own(&before) == own(&image), "{load:x?}");
        }
        bytes = after;
    }
}

/// Adds a small and a large table to the file `data`, and checks what must hold for any file: the
/// table is found at its stated place, everything loaded is unchanged, adding again changes
/// nothing, and the table can be removed again.
pub fn edit(data: &[u8]) {
    section(data);
    let stripped = edit::remove_table(data).map(|edited| edited.map(|edited| edited.to_vec()));
    for len in [64, 70_000] {
        let table: Vec<u8> = (0..len).map(|index| index as u8 | 1).collect();
        let mut told = Vec::new();
        let mut make = |address| {
            told.push(address);
            Ok::<_, Error>(table.clone())
        };
        let Ok(edited) = edit::add_table(data, RECIPE, &mut make) else {
            continue;
        };
        let added = edited.to_vec();
        assert_eq!(added.len() as u64, edited.len());
        let after = Image::parse(&added).expect("what was written can be read");
        let found = after.sframe().expect("its section is whole").expect("it is there");
        assert!(told.last() == Some(&found.address) && found.address.is_multiple_of(8));
        assert_eq!(found.data, table);
        assert_eq!(
            after.data_at(found.address).map(|bytes| &bytes[..len]),
            Some(&table[..])
        );
        let before = Image::parse(data).expect("an unreadable file is not edited");
        assert_eq!(before.entry(), after.entry());
        for load in before
            .segments()
            .iter()
            .filter(|segment| segment.is_load() && segment.filesz > 0)
        {
            let end = |load: &Segment| load.vaddr + load.filesz;
            // Pages may have been inserted before the first one.
            let kept = |new: &&Segment| {
                new.is_load() && end(new) >= end(load) && new.vaddr <= load.vaddr && new.flags == load.flags
            };
            let own_table = before.segments().iter().any(|segment| segment.kind == PT_GNU_SFRAME);
            assert!(own_table || after.segments().iter().any(|new| kept(&new)), "{load:x?}");
        }
        let mut make = |_| Ok::<_, Error>(table.clone());
        let again = edit::add_table(&added, RECIPE, &mut make).expect("what was edited can be edited again");
        assert!(again.to_vec() == added, "adding twice is adding once");
        if edit::is_edited(&added) {
            assert_eq!(edit::original(&added).1, Some(RECIPE));
        }
        let without = edit::remove_table(&added)
            .expect("it can be taken out")
            .expect("it is there");
        let expected = stripped
            .as_ref()
            .expect("it could be taken out before")
            .as_deref()
            .unwrap_or(data);
        let without = without.to_vec();
        // A linker's table is back, and a table that was added before is not. A linker's table
        // whose place was used again may have had a second one after it.
        assert!(
            added.len() <= data.len() || without == data || without == expected,
            "it is as it was"
        );
    }
}

/// Adds tables to the relocatable file `data`, one that refers to each section with code and one in
/// each group, and checks what must hold for any file: they are found, relocated; adding again
/// changes nothing, and they can be removed again. Returns whether the file accepts tables.
pub fn object(data: &[u8]) -> bool {
    let Ok(image) = Image::parse(data).map(Image::with_sections_placed) else {
        return false;
    };
    if image.kind() != Kind::Relocatable {
        return false;
    }
    let groups = edit::section_groups(&image);
    let code = image.sections().iter().enumerate();
    let code = code.filter(|(_, section)| section.is_loaded() && section.is_code() && section.size > 0);
    let tables = code.map(|(number, _)| ObjectTable {
        bytes: vec![0x11; 40],
        fields: vec![ObjectField {
            offset: 8,
            width: 8,
            section: number,
            place: 3,
        }],
        group: groups.get(number).copied().flatten(),
        own_type: number % 2 == 0,
    });
    let tables: Vec<ObjectTable> = tables.take(32).collect();
    let Ok(edited) = edit::set_object_tables(data, &tables) else {
        return false;
    };
    let added = edited.to_vec();
    assert_eq!(added.len() as u64, edited.len());
    let after = Image::parse(&added).expect("what was written can be read");
    let after = after.with_sections_placed();
    let found = after.sframe_tables().expect("they are whole");
    assert_eq!(found.len(), tables.len());
    for ((header, found), table) in found.iter().zip(&tables) {
        assert!(header.is_some() && found.data.len() == table.bytes.len());
        assert!(found.data[..8] == table.bytes[..8] && found.data[16..] == table.bytes[16..]);
    }
    let again = edit::set_object_tables(&added, &renumbered(&tables, &image, &after)).expect("it can be edited again");
    assert!(again.to_vec() == added, "adding twice is adding once");
    let without = edit::remove_object_tables(&added).expect("they can be taken out");
    assert!(without.is_some() != tables.is_empty());
    if let Some(without) = without.map(|without| without.to_vec()) {
        let bare = Image::parse(&without).expect("what is left can be read");
        assert!(bare.sframe_tables().expect("there is nothing to read").is_empty());
        assert!(
            edit::remove_object_tables(&without)
                .expect("it is read once more")
                .is_none()
        );
    }
    true
}

/// The tables for the edited file, in which sections may be renumbered, since those of its old
/// tables are gone.
fn renumbered(tables: &[ObjectTable], before: &Image<'_>, after: &Image<'_>) -> Vec<ObjectTable> {
    let is_table = |index: usize| {
        let sections = before.sections();
        let of = |index: usize| sections[index].kind == SHT_GNU_SFRAME || sections[index].name == b".sframe";
        let relocations = matches!(sections[index].kind, SHT_REL | SHT_RELA | SHT_CREL);
        of(index)
            || (relocations
                && sections.get(sections[index].info as usize).is_some()
                && of(sections[index].info as usize))
    };
    let moved = |old: usize| old - (0..old).filter(|index| is_table(*index)).count();
    let groups = edit::section_groups(after);
    let mut tables = tables.to_vec();
    for table in &mut tables {
        for field in &mut table.fields {
            field.section = moved(field.section);
            table.group = groups.get(field.section).copied().flatten();
        }
    }
    tables
}

/// Reads `data` as an archive, and writes it unchanged: only padding that was missing at the end
/// may differ.
pub fn archive(data: &[u8]) {
    let Ok(archive) = Archive::parse(data) else { return };
    let changes: Vec<_> = archive.members().iter().map(|_| None).collect();
    let Ok(rewritten) = archive.rewrite(&changes) else {
        return;
    };
    let mut out = Vec::new();
    if rewritten.write_to(&mut out).is_err() {
        return;
    }
    let again = Archive::parse(&out).expect("what was written can be read");
    let held = |archive: &Archive<'_>| {
        let members = archive.members().iter();
        members
            .map(|member| (member.name.to_string(), member.data.to_vec()))
            .collect::<Vec<_>>()
    };
    // The index contains offsets, which padding between members may change.
    let sizes = |members: &[(String, Vec<u8>)]| members.iter().map(|member| member.1.len()).collect::<Vec<_>>();
    assert_eq!(sizes(&held(&archive)), sizes(&held(&again)));
    assert!(out.len() <= data.len() + 1);
}
