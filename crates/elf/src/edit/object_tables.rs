//! Tables in relocatable files: sections with relocations, which a linker merges.
//!
//! Functions in a section group have their rows in a separate table, which is a member of the
//! group: it is kept or discarded with them, even by a linker that does not know the format. All
//! others share one table.

use std::collections::HashSet;

use backtrail_arch::Cpu;
use backtrail_wire::Bytes;

use super::headers::SectionHeader;
use super::object::{Object, Rewritten};
use crate::constants::*;
use crate::header::to_usize;
use crate::{Error, ErrorKind, Image, Result};

/// The names with their terminating zero; one is a suffix of the other.
const TABLE_NAME: &[u8] = b".sframe\0";
const RELOCATIONS_NAME: &[u8] = b".rela.sframe\0";
/// `.sframe` as assemblers name it.
const NAME: &[u8] = b".sframe";
const ALIGN: u64 = 8;

/// A table to add to a relocatable file. Sections have the numbers that they have in that file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectTable {
    /// Its bytes; its fields contain the values that the linker should find there.
    pub bytes: Vec<u8>,
    /// The fields to relocate.
    pub fields: Vec<ObjectField>,
    /// The group (`SHT_GROUP`) to make it a member of.
    pub group: Option<usize>,
    /// Whether its section has the type `SHT_GNU_SFRAME`, as tools expect since version 3;
    /// otherwise `SHT_PROGBITS`.
    pub own_type: bool,
}

/// A field that a linker should fill with the distance from itself to a place in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectField {
    /// Offset of the field from the table's start, in bytes.
    pub offset: u64,
    /// Its width in bytes: 4 or 8.
    pub width: usize,
    /// The number of the section.
    pub section: usize,
    /// Offset of the place from the section's start, in bytes.
    pub place: u64,
}

/// Replaces all tables of the relocatable file `bytes` with `tables`. An empty list only removes
/// them.
///
/// Adding again gives the same bytes. Fails if the file cannot be edited: see [`ErrorKind`].
pub fn set_object_tables<'a>(bytes: &'a [u8], tables: &[ObjectTable]) -> Result<Rewritten<'a>> {
    let mut object = Object::parse(bytes)?;
    let symbols = Symbols::of(&object, &tables_of(&object))?;
    let gone = tables_and_relocations(&object);
    let new = object.remove(&gone);
    if !gone.is_empty() {
        object.forget_name(RELOCATIONS_NAME);
    }
    if tables.is_empty() {
        return Ok(object.into_file());
    }
    let symtab = new.get(symbols.table).copied().flatten().unwrap_or_default();
    let kinds = relocation_types(bytes)?;
    let relocations_name = object.name_at(RELOCATIONS_NAME);
    let table_name = relocations_name + (RELOCATIONS_NAME.len() - TABLE_NAME.len()) as u32;
    for table in tables {
        let group = table.group.and_then(|group| new.get(group).copied().flatten());
        let grouped = if group.is_some() { SHF_GROUP } else { 0 };
        let relocations = encode_fields(&object, table, &symbols, kinds)?;
        let section = object.push(
            SectionHeader {
                name: table_name,
                kind: if table.own_type { SHT_GNU_SFRAME } else { SHT_PROGBITS },
                flags: SHF_ALLOC | grouped,
                align: ALIGN,
                ..SectionHeader::default()
            },
            table.bytes.clone(),
        );
        let relocations = object.push(
            SectionHeader {
                name: relocations_name,
                kind: SHT_RELA,
                flags: SHF_INFO_LINK | grouped,
                link: symtab,
                info: section,
                align: ALIGN,
                entsize: RELA_BYTES as u64,
                ..SectionHeader::default()
            },
            relocations,
        );
        if let Some(group) = group {
            object.join_group(group, &[section, relocations]);
        }
    }
    Ok(object.into_file())
}

/// Removes all tables from the relocatable file `bytes`; `None` if it has none.
pub fn remove_object_tables(bytes: &[u8]) -> Result<Option<Rewritten<'_>>> {
    let has_any = !tables_of(&Object::parse(bytes)?).is_empty();
    has_any.then(|| set_object_tables(bytes, &[])).transpose()
}

/// For each section of a relocatable file, the number of its group, if any.
pub fn section_groups(image: &Image<'_>) -> Vec<Option<usize>> {
    let sections = image.sections();
    let mut groups = vec![None; sections.len()];
    for (group, section) in sections
        .iter()
        .enumerate()
        .filter(|(_, section)| section.kind == SHT_GROUP)
    {
        let Ok(Some(data)) = image.raw(section) else { continue };
        let words = Bytes::new(data, image.endian());
        for member in (1..data.len() / 4).map_while(|index| words.u32(index * 4).ok()) {
            if let Some(of_member) = groups.get_mut(member as usize) {
                *of_member = Some(group);
            }
        }
    }
    groups
}

/// The numbers of the sections with tables.
fn tables_of(object: &Object<'_>) -> HashSet<usize> {
    let sections = object.draft.sections.iter().enumerate();
    let is_table = |section: &SectionHeader| {
        section.kind == SHT_GNU_SFRAME || (section.kind != SHT_NULL && object.name(section) == NAME)
    };
    sections
        .filter(|(_, section)| is_table(section))
        .map(|(index, _)| index)
        .collect()
}

fn tables_and_relocations(object: &Object<'_>) -> HashSet<usize> {
    let mut gone = tables_of(object);
    let sections = object.draft.sections.iter().enumerate();
    let relocations: Vec<usize> = sections
        .filter(|(_, section)| matches!(section.kind, SHT_REL | SHT_RELA | SHT_CREL))
        .filter(|(_, section)| gone.contains(&(section.info as usize)))
        .map(|(index, _)| index)
        .collect();
    gone.extend(relocations);
    gone
}

/// The relocation types for 4-byte and 8-byte fields that hold a distance from themselves.
fn relocation_types(bytes: &[u8]) -> Result<[u32; 2]> {
    let (_, arch) = crate::header::Header::with_arch(bytes)?;
    let [_, _, relative32, relative64] = match arch.cpu {
        Cpu::Aarch64 => AARCH64_RELOCATIONS,
        Cpu::S390x => S390X_RELOCATIONS,
        Cpu::X86_64 => X86_64_RELOCATIONS,
    };
    Ok([relative32, relative64])
}

fn encode_fields(object: &Object<'_>, table: &ObjectTable, symbols: &Symbols, kinds: [u32; 2]) -> Result<Vec<u8>> {
    let mut out = object.draft.encoder();
    for field in &table.fields {
        let symbol = symbols.by_section.get(field.section).copied().flatten();
        let symbol = symbol.ok_or(Error::at(ErrorKind::NoSymbol(field.section as u64), E_SHOFF))?;
        out.u64(field.offset);
        out.u64(u64::from(symbol.index) << 32 | u64::from(kinds[usize::from(field.width == 8)]));
        out.u64(field.place.wrapping_sub(symbol.value));
    }
    Ok(out.bytes)
}

/// A symbol that relocations of places in a section can refer to.
#[derive(Clone, Copy)]
struct Symbol {
    index: u32,
    value: u64,
    /// Lower is better.
    rank: u8,
}

/// For each section, the symbol that relocations use for places in it.
struct Symbols {
    /// The number of the symbol table.
    table: usize,
    by_section: Vec<Option<Symbol>>,
}

impl Symbols {
    /// Chooses the section symbol, as assemblers do, otherwise a symbol that `.eh_frame` or a table
    /// uses, preferably a local one: a global one may turn out to be another file's.
    fn of(object: &Object<'_>, tables: &HashSet<usize>) -> Result<Symbols> {
        let sections = &object.draft.sections;
        let mut found = Symbols {
            table: 0,
            by_section: vec![None; sections.len()],
        };
        let Some(table) = sections.iter().position(|section| section.kind == SHT_SYMTAB) else {
            return Ok(found);
        };
        found.table = table;
        let used = used_symbols(object, tables)?;
        let extended = sections
            .iter()
            .position(|section| section.kind == SHT_SYMTAB_SHNDX && section.link as usize == table);
        let extended = Bytes::new(extended.map_or(&[][..], |index| &object.data[index]), object.endian());
        let symbols = Bytes::new(&object.data[table], object.endian());
        for index in 1..symbols.len() / SYM_BYTES {
            let at = index * SYM_BYTES;
            let (info, section) = (symbols.u8(at + 4)?, symbols.u16(at + 6)?);
            let section = match section {
                SHN_XINDEX => extended.u32(index * 4).unwrap_or_default(),
                SHN_UNDEF | SHN_LORESERVE.. => continue,
                section => section.into(),
            };
            let rank = match (info & 0xf, info >> 4) {
                (STT_SECTION, _) => 0,
                (STT_GNU_IFUNC | STT_TLS, _) => continue,
                _ if !used.contains(&(index as u32)) => continue,
                (_, STB_LOCAL) => 1,
                _ => 2,
            };
            if let Some(best) = found.by_section.get_mut(to_usize(section.into()))
                && best.is_none_or(|best: Symbol| rank < best.rank)
            {
                *best = Some(Symbol {
                    index: index as u32,
                    value: symbols.u64(at + 8)?,
                    rank,
                });
            }
        }
        Ok(found)
    }
}

/// The numbers of the symbols that relocations of `.eh_frame` and of tables use.
fn used_symbols(object: &Object<'_>, tables: &HashSet<usize>) -> Result<HashSet<u32>> {
    let sections = &object.draft.sections;
    let is_about_code = |index: usize| {
        let section = sections.get(index);
        tables.contains(&index) || section.is_some_and(|section| object.name(section) == b".eh_frame")
    };
    let mut used = HashSet::new();
    for (section, data) in sections.iter().zip(&object.data) {
        if section.kind != SHT_RELA || !is_about_code(section.info as usize) {
            continue;
        }
        let entries = Bytes::new(data, object.endian());
        for entry in 0..data.len() / RELA_BYTES {
            used.insert((entries.u64(entry * RELA_BYTES + 8)? >> 32) as u32);
        }
    }
    Ok(used)
}
