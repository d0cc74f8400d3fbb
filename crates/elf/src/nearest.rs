//! The function at an address, read from a file in memory without allocating: for signal handlers.

use crate::constants::{SHT_DYNSYM, SHT_SYMTAB};

const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const SHN_UNDEF: u16 = 0;
const SECTION: usize = 64;
const SYMBOL: usize = 24;

/// A function's symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearestSymbol<'f> {
    /// Its name in the file.
    pub name: &'f [u8],
    /// Its address in the file's terms.
    pub value: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

/// A range of the file whose ends are words at these places.
fn range(file: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    file.get(start..start.checked_add(usize::try_from(size).ok()?)?)
}

/// The function that an address in the file's terms is in, from `.symtab`, or else from `.dynsym`.
/// Only for 64-bit little-endian files, which is what processes that walk themselves are made of.
pub fn nearest_symbol(file: &[u8], address: u64) -> Option<NearestSymbol<'_>> {
    if number(file, 0)? != *b"\x7fELF\x02\x01" {
        return None;
    }
    let count = usize::from(u16::from_le_bytes(number(file, 60)?));
    let sections = range(file, word(file, 40)?, (count * SECTION) as u64)?;
    let tables = |kind: u32| {
        let sections = sections.chunks_exact(SECTION);
        sections.filter(move |section| number(section, 4).map(u32::from_le_bytes) == Some(kind))
    };
    let mut tables = tables(SHT_SYMTAB).chain(tables(SHT_DYNSYM));
    tables.find_map(|table| nearest_of(file, sections, table, address))
}

fn nearest_of<'f>(file: &'f [u8], sections: &[u8], table: &[u8], address: u64) -> Option<NearestSymbol<'f>> {
    let symbols = range(file, word(table, 24)?, word(table, 32)?)?;
    let link = u32::from_le_bytes(number(table, 40)?) as usize;
    let names = sections.get(link.checked_mul(SECTION)?..)?.get(..SECTION)?;
    let names = range(file, word(names, 24)?, word(names, 32)?)?;
    // Where the last function at or below the address begins, and the last that holds it.
    let (mut last, mut nearest) = (0, None::<(u64, usize)>);
    // Assembly often has no sizes: such a function ends where the next one begins.
    let mut endless = None::<(u64, usize)>;
    for symbol in symbols.chunks_exact(SYMBOL) {
        let kind = symbol.get(4)? & 15;
        let section = u16::from_le_bytes(number(symbol, 6)?);
        let (value, size) = (word(symbol, 8)?, word(symbol, 16)?);
        if !matches!(kind, STT_FUNC | STT_GNU_IFUNC) || section == SHN_UNDEF || value > address {
            continue;
        }
        last = last.max(value);
        let best = if size == 0 { &mut endless } else { &mut nearest };
        if (size == 0 || address - value < size) && best.is_none_or(|(found, _)| value > found) {
            *best = Some((value, u32::from_le_bytes(number(symbol, 0)?) as usize));
        }
    }
    let endless = endless.filter(|(value, _)| *value == last);
    let (value, name) = nearest.into_iter().chain(endless).max_by_key(|(value, _)| *value)?;
    let name = names.get(name..)?;
    let length = name.iter().position(|byte| *byte == 0)?;
    Some(NearestSymbol {
        name: name.get(..length)?,
        value,
    })
}
