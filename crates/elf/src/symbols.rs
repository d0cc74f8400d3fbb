//! Names of functions.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;

use backtrail_wire::Bytes;

use crate::compression::unpack_debugdata;
use crate::constants::*;
use crate::header::{Kind, to_usize};
use crate::{Image, dynamic};

/// How many symbols before the nearest one are checked for whether they reach an address: functions
/// nest a few levels at most (entry points within hand-written code).
const MAX_NESTING: usize = 16;

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol<'s> {
    /// Address of its first byte, in the file's own terms (svma).
    pub address: u64,
    /// Size in bytes; if the file says 0, up to the next symbol or the end of the code.
    pub size: u64,
    /// The name as stored in the file, not demangled; invalid UTF-8 is replaced.
    pub name: Cow<'s, str>,
}

/// All functions of a file, sorted by address, with one name for each address.
///
/// Includes `STT_FUNC` and `STT_GNU_IFUNC` of `.symtab`, `.dynsym` and the file in
/// `.gnu_debugdata`, and symbols without a type that lie in code outside every function (labels of
/// hand-written assembly). If several names have the same address, the best is kept: a typed symbol
/// before an untyped one, then a global or weak one before a local one, then the larger, then the
/// one with fewer leading underscores, then the first by its bytes.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    entries: Vec<Entry>,
    /// String tables, copied whole: names are found in them on demand.
    strings: Vec<Box<[u8]>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    size: u64,
    table: u32,
    name: u32,
    typed: bool,
    global: bool,
    indirect: bool,
}

/// A function that was [looked up by name](Symbols::named).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// Address of its first byte, in the file's own terms (svma).
    pub address: u64,
    /// It is `STT_GNU_IFUNC`: its code runs once and chooses the function.
    pub is_indirect: bool,
}

impl Symbols {
    /// Collects the symbols of `image`. From damaged tables, takes the symbols that can be read.
    pub fn new(image: &Image<'_>) -> Symbols {
        Self::of_files(image, None)
    }

    /// The symbols of `image` and of a file that was split off from it.
    pub fn with_debug_file(image: &Image<'_>, debug: &Image<'_>) -> Symbols {
        Self::of_files(image, Some(debug))
    }

    /// The functions with a `wanted` name, by address, even if other names of their addresses rank
    /// higher.
    pub fn named(image: &Image<'_>, debug: Option<&Image<'_>>, mut wanted: impl FnMut(&str) -> bool) -> Vec<Named> {
        let symbols = Self::collected(image, debug, &image.code_ranges());
        let typed = symbols.entries.iter().filter(|entry| entry.typed);
        let found = typed.filter(|entry| wanted(&String::from_utf8_lossy(symbols.name(entry))));
        let mut found: Vec<Named> = found
            .map(|entry| Named {
                address: entry.address,
                is_indirect: entry.indirect,
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The number of bytes that they take in memory.
    pub fn bytes_in_memory(&self) -> usize {
        let strings = self.strings.iter().map(|table| table.len());
        size_of_val(&self.entries[..]) + strings.sum::<usize>()
    }

    fn of_files(image: &Image<'_>, debug: Option<&Image<'_>>) -> Symbols {
        let code = image.code_ranges();
        let mut symbols = Self::collected(image, debug, &code);
        symbols.settle(&code);
        symbols
    }

    /// All symbols, in the order of their tables.
    fn collected(image: &Image<'_>, debug: Option<&Image<'_>>, code: &[Range<u64>]) -> Symbols {
        let mut symbols = Symbols::default();
        symbols.collect(image, code);
        if let Some(unpacked) = image
            .gnu_debugdata()
            .and_then(|xz| unpack_debugdata(xz, image.budget()))
            && let Ok(inner) = Image::parse(&unpacked)
        {
            symbols.collect(&inner, code);
        }
        if let Some(debug) = debug {
            symbols.collect(debug, code);
        }
        symbols
    }

    /// The number of functions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no functions.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The function that contains `svma`; the innermost if functions overlap.
    pub fn lookup(&self, svma: u64) -> Option<Symbol<'_>> {
        let after = self.entries.partition_point(|entry| entry.address <= svma);
        let near = self.entries[..after].iter().rev().take(MAX_NESTING);
        let found = near.into_iter().find(|entry| svma - entry.address < entry.size)?;
        Some(self.symbol(found))
    }

    /// All functions, by address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|entry| self.symbol(entry))
    }

    /// The address of the first function that begins after `svma`.
    pub fn next_address(&self, svma: u64) -> Option<u64> {
        let after = self.entries.partition_point(|entry| entry.address <= svma);
        self.entries.get(after).map(|entry| entry.address)
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'_> {
        Symbol {
            address: entry.address,
            size: entry.size,
            name: String::from_utf8_lossy(self.name(entry)),
        }
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        let table = &self.strings[entry.table as usize];
        let tail = table.get(entry.name as usize..).unwrap_or_default();
        let len = tail.iter().position(|&byte| byte == 0).unwrap_or(tail.len());
        &tail[..len]
    }

    fn collect(&mut self, image: &Image<'_>, code: &[Range<u64>]) {
        let mut found = false;
        for section in image.sections() {
            if section.kind != SHT_SYMTAB && section.kind != SHT_DYNSYM {
                continue;
            }
            // More symbols than any file has are not read: their names are lost.
            if image.budget().allows_symbols(section.size / SYM_BYTES as u64).is_err() {
                found = true;
                continue;
            }
            let strings = image.sections().get(section.link as usize);
            let (Ok(Some(table)), Some(Ok(Some(strings)))) =
                (image.raw_once(section), strings.map(|s| image.raw_once(s)))
            else {
                continue;
            };
            self.collect_table(image, &table, strings.into_owned(), code);
            found = true;
        }
        if !found && let Some(table) = dynamic::symbol_table(image) {
            self.collect_table(image, table.symbols, table.strings.to_vec(), code);
        }
    }

    fn collect_table(&mut self, image: &Image<'_>, table: &[u8], strings: Vec<u8>, code: &[Range<u64>]) {
        let table = Bytes::new(table, image.endian());
        let number = self.strings.len() as u32;
        let entries = table.len() / SYM_BYTES * size_of::<Entry>();
        let budget = image.budget();
        if budget.take(entries as u64).is_err() || budget.step((table.len() / SYM_BYTES) as u64).is_err() {
            return;
        }
        for index in 0..table.len() / SYM_BYTES {
            if let Some(entry) = read_symbol(image, table, index * SYM_BYTES, number, &strings, code) {
                self.entries.push(entry);
            }
        }
        self.strings.push(strings.into_boxed_slice());
    }

    /// Sorts, keeps the best symbol of each address, and gives sizes to those that have none.
    fn settle(&mut self, code: &[Range<u64>]) {
        let mut entries = std::mem::take(&mut self.entries);
        // Most symbols of `.dynsym` are in `.symtab` too, so names are compared only at equal
        // addresses.
        entries.sort_unstable_by_key(|entry| (entry.address, rank(entry)));
        let mut kept = 0;
        for index in 0..entries.len() {
            let entry = entries[index];
            if kept == 0 || entries[kept - 1].address != entry.address {
                entries[kept] = entry;
                kept += 1;
            } else if rank(&entries[kept - 1]) == rank(&entry)
                && self.rank_of_name(&entry) < self.rank_of_name(&entries[kept - 1])
            {
                entries[kept - 1] = entry;
            }
        }
        entries.truncate(kept);
        let mut covered = 0;
        entries.retain(|entry| {
            let keep = entry.typed || entry.size > 0 || entry.address >= covered;
            if entry.typed {
                covered = covered.max(entry.address.saturating_add(entry.size));
            }
            keep
        });
        for index in 0..entries.len() {
            if entries[index].size == 0 {
                let address = entries[index].address;
                let code_end = code
                    .iter()
                    .find(|range| range.contains(&address))
                    .map(|range| range.end);
                let next = entries.get(index + 1).map(|entry| entry.address);
                let end = next.into_iter().chain(code_end).min();
                entries[index].size = end.map_or(1, |end| end - address);
            }
        }
        self.entries = entries;
    }

    fn rank_of_name(&self, entry: &Entry) -> (usize, &[u8]) {
        let name = self.name_prefix(entry);
        (name.iter().take_while(|&&byte| byte == b'_').count(), name)
    }

    /// Enough of the name to rank it; a hostile string table may have one endless name for all
    /// symbols.
    fn name_prefix(&self, entry: &Entry) -> &[u8] {
        let table = &self.strings[entry.table as usize];
        let tail = table.get(entry.name as usize..).unwrap_or_default();
        let tail = &tail[..tail.len().min(64)];
        let len = tail.iter().position(|&byte| byte == 0).unwrap_or(tail.len());
        &tail[..len]
    }
}

/// The rank of a symbol among those of one address, apart from its name.
fn rank(entry: &Entry) -> (bool, bool, Reverse<u64>) {
    (!entry.typed, !entry.global, Reverse(entry.size))
}

/// The symbol at `offset` of its table, if it can be a function.
fn read_symbol(
    image: &Image<'_>,
    table: Bytes<'_>,
    offset: usize,
    number: u32,
    strings: &[u8],
    code: &[Range<u64>],
) -> Option<Entry> {
    let name = table.u32(offset).ok()?;
    let info = table.u8(offset + 4).ok()?;
    let shndx = table.u16(offset + 6).ok()?;
    let mut address = table.u64(offset + 8).ok()?;
    let size = table.u64(offset + 16).ok()?;
    let first = *strings.get(to_usize(u64::from(name)))?;
    let kind = info & 0xf;
    let typed = kind == STT_FUNC || kind == STT_GNU_IFUNC;
    if first == 0 || shndx == SHN_UNDEF || !(typed || kind == STT_NOTYPE) {
        return None;
    }
    if !typed {
        // `$x` and `$d` mark code and data on Arm; they are not names.
        let in_code = match image.sections().get(usize::from(shndx)) {
            Some(section) if shndx < SHN_LORESERVE => section.flags & SHF_EXECINSTR != 0,
            // An image in memory has no section headers.
            None if shndx < SHN_LORESERVE && image.sections().is_empty() => {
                code.iter().any(|range| range.contains(&address))
            }
            _ => false,
        };
        if first == b'$' || !in_code {
            return None;
        }
    }
    // In relocatable files, values count from the section's start.
    if image.kind() == Kind::Relocatable && shndx < SHN_LORESERVE {
        let section = image.sections().get(usize::from(shndx));
        address = address.wrapping_add(section.map_or(0, |section| section.address));
    }
    // Symbols outside the code of a linked file cannot run; linkers leave them for discarded
    // sections.
    if image.kind() != Kind::Relocatable && !code.is_empty() && !code.iter().any(|range| range.contains(&address)) {
        return None;
    }
    Some(Entry {
        address,
        size,
        table: number,
        name,
        typed,
        global: info >> 4 != STB_LOCAL,
        indirect: kind == STT_GNU_IFUNC,
    })
}
