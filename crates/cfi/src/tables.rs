//! The one unwind table that sampling uses for a module: its own `.sframe`, or its `.eh_frame`
//! converted to SFrame version 3 and stored in a cache.
//!
//! A module's own `.sframe` is often incomplete: it lacks code that the linker made and code that
//! was assembled without it, such as the start files that mark where a stack ends. Functions that
//! only `.eh_frame` describes are added then. `.debug_frame` (the only one that Go's linker writes)
//! adds what `.eh_frame` lacks; and Go's `.gopclntab` what neither of them has.
//!
//! A cache entry is an SFrame section, which any SFrame reader can show, and a trailer in
//! little-endian: the bytes of code without rows (8), the hash of the bytes that it was made from
//! (32), which is also its name, and the CRC-32 of everything before (4). A damaged entry is made
//! anew.

pub mod isolated;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use backtrail_arch::Cpu;
use backtrail_elf::isolation::Lost;
use backtrail_elf::{ErrorKind, Image, SectionData, Symbols};
use backtrail_sframe::write::{FunctionRows, Options};
use backtrail_sframe::{Abi, Section, Version};
use backtrail_wire::{Bytes, Endian};

use crate::build;
use crate::by_hand;
use crate::cache::{self, Cache, FileIdentity, Name, Namer};
use crate::eh_frame::{self, Converted, EhFrame, debug_frame};
pub use crate::error::Error;
use crate::plt;
use crate::roots;
use crate::source::{KIND, Source};
use crate::{go_frames, gopclntab, greenlets, landings, linked, resumed, returns, signal};
use isolated::Wanted;

/// The most code of a file, whose functions may overlap, that is read to correct rows, in bytes.
const MOST_READ: u32 = 1 << 24;

/// The subfolder that stores which entry a file has.
const FILES: &str = "files-v1";

const TRAILER_BYTES: usize = 44;
/// Longer entries are not read: they would not have been written.
const LONGEST: u64 = cache::MOST_BYTES / 4;
/// More bytes are not hashed: no program has as much code.
const LONGEST_SOURCE: usize = 1 << 30;

/// The origin of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableOrigin {
    /// The module's own `.sframe`.
    Shipped,
    /// The module's own `.sframe`, with the functions it lacks from `.eh_frame`.
    Completed,
    /// Converted from `.eh_frame` now.
    Converted,
    /// Converted or completed earlier, and read from the cache.
    Cached,
}

/// An unwind table.
#[derive(Clone, Debug)]
pub struct Table {
    /// An SFrame section; more bytes may follow its end.
    pub bytes: Vec<u8>,
    /// The section's address, from which the functions' starts are addresses of the file (svma).
    pub address: u64,
    /// Its origin.
    pub origin: TableOrigin,
    /// Bytes of code that `.eh_frame` describes and the table does not; 0 for a shipped table.
    pub uncovered_bytes: u64,
    /// Code that was left out, by the reason's name; only known for a table converted now.
    pub skipped: BTreeMap<&'static str, u64>,
    /// The first invalid place in `.eh_frame`; only known for a table converted now.
    pub damage: Option<eh_frame::Error>,
}

impl Table {
    /// The section's reader.
    pub fn section(&self) -> backtrail_sframe::Result<Section<'_>> {
        Section::parse(&self.bytes, self.address)
    }
}

/// The ABI that SFrame sections of `image` declare.
pub fn abi(image: &Image<'_>) -> Abi {
    match (image.arch().cpu, image.endian()) {
        (Cpu::Aarch64, Endian::Little) => Abi::Aarch64Little,
        (Cpu::Aarch64, Endian::Big) => Abi::Aarch64Big,
        (Cpu::S390x, _) => Abi::S390xBig,
        (Cpu::X86_64, _) => Abi::Amd64Little,
    }
}

/// Whether a module's table says more than its call frame information does, even about the code
/// that call frame information describes.
pub fn exceeds_call_frames(image: &Image<'_>) -> bool {
    gopclntab::section(image).is_some()
}

/// Changes `function`, which has the rows of call frame information, to what a module's table says.
/// Returns false if that needs the whole table.
pub fn correct(image: &Image<'_>, function: &mut FunctionRows) -> bool {
    correct_by_code(image, function, &mut { MOST_READ });
    !is_misdescribed(image, function.start)
}

/// Gives a function the rows that its code shows, where call frame information is wrong. `left` is
/// how many bytes of code may still be read.
fn correct_by_code(image: &Image<'_>, function: &mut FunctionRows, left: &mut u32) {
    let corrected = returns::corrected(image, function, left)
        .or_else(|| landings::corrected(image, function, left))
        .or_else(|| resumed::corrected(image, function));
    if let Some(rows) = corrected {
        function.rows = rows;
    }
}

fn is_misdescribed(image: &Image<'_>, svma: u64) -> bool {
    roots::is_misdescribed(image, svma)
        || greenlets::is_misdescribed(image, svma)
        || linked::is_resolver(image, svma)
        || linked::is_profiler(image, svma)
}

/// The module's own `.sframe`, if it has a valid one.
pub fn own_section<'a>(image: &Image<'a>) -> Option<SectionData<'a>> {
    let own = image.sframe().ok().flatten();
    own.filter(|own| is_sound(&own.data, own.address, abi(image)))
}

/// The rows of `image`'s `.eh_frame`. Rows of the entry point and, on AArch64, of the procedure
/// linkage table are added if no FDE describes them.
pub fn convert(image: &Image<'_>) -> Result<Converted, Error> {
    let section = image.eh_frame()?.ok_or(Error::NoUnwindInformation)?;
    Ok(convert_section(image, &section))
}

fn convert_section(image: &Image<'_>, section: &SectionData<'_>) -> Converted {
    let mut converted = eh_frame::convert_within(
        &EhFrame::of_image(image, &section.data, section.address),
        image.budget(),
    );
    let mut left = MOST_READ;
    for function in &mut converted.functions {
        correct_by_code(image, function, &mut left);
    }
    let entry = image.entry();
    let is_code = image.code_ranges().iter().any(|range| range.contains(&entry));
    if entry != 0 && is_code && converted.find(entry).is_none() {
        let symbols = Symbols::new(image);
        let end = symbols.lookup(entry).map(|symbol| symbol.address + symbol.size);
        let end = end.or_else(|| symbols.next_address(entry));
        let shown = roots::end_of_entry(image, entry, eh_frame::MAX_ENTRY_BYTES);
        let end = end.into_iter().chain(shown).filter(|end| *end > entry).min();
        converted.add_entry_point(entry, end);
    }
    plt::add(&mut converted, image);
    go_frames::add(&mut converted, image);
    roots::add(&mut converted, image);
    greenlets::add(&mut converted, image);
    signal::add(&mut converted, image);
    by_hand::add(&mut converted, image);
    linked::add(&mut converted, image);
    converted
}

/// The table of a file without any call frame information: roots of stacks and linkage tables.
/// `None` if it has neither.
pub fn without_call_frames(image: &Image<'_>) -> Option<Table> {
    if let Some(owner) = image.foreign_owner() {
        return isolated::table(image, &Source::of(image).ok()?, owner, Wanted::WithoutCallFrames).ok();
    }
    let converted = convert_section(image, &NO_SECTION);
    let built = build::table(&converted, &Options::new(Version::V3, abi(image), 0)).ok()?;
    (!converted.functions.is_empty()).then(|| Table {
        address: 0,
        origin: TableOrigin::Converted,
        uncovered_bytes: 0,
        skipped: BTreeMap::new(),
        damage: None,
        bytes: built.bytes,
    })
}

/// A table of a file without call frame information is stored if there is this much code: all of it
/// is searched.
const LARGE_CODE: u64 = 4 << 20;

/// Provides the tables of modules.
#[derive(Clone, Debug)]
pub struct Tables {
    cache: Option<Cache>,
}

impl Tables {
    /// Stores converted tables in `cache_dir`; by default in `$XDG_CACHE_HOME/backtrail`, or
    /// `~/.cache/backtrail`. Works without a cache if no such folder is available, or if somebody
    /// else could write to it.
    pub fn open(cache_dir: Option<PathBuf>) -> Tables {
        Tables {
            cache: cache_dir.or_else(cache::folder).map(Cache::new),
        }
    }

    /// Stores nothing.
    pub fn without_cache() -> Tables {
        Tables { cache: None }
    }

    /// Loads the table of `image`. Reads at most what a table is made from; a cache that cannot be
    /// read or written only costs time.
    pub fn load(&self, image: &Image<'_>) -> Result<Table, Error> {
        self.load_file(image, None)
    }

    /// The same. If the file that `image` was read from has an identity, and had a table in the
    /// cache before, its bytes need not be hashed again.
    pub fn load_file(&self, image: &Image<'_>, file: Option<&FileIdentity>) -> Result<Table, Error> {
        if let Some(owner) = image.foreign_owner() {
            return self.load_foreign(image, file, owner);
        }
        let Some(cache) = &self.cache else {
            return Inputs::of(image)?.make(image);
        };
        let file = file.map(name_of_file);
        if let Some(table) = known(cache, file.as_ref(), image) {
            return Ok(table);
        }
        let inputs = Inputs::of(image)?;
        if !inputs.are_worth_an_entry(image) {
            return inputs.make(image);
        }
        let source = Source::of(image).ok();
        let Some(source) = source.filter(|source| source.hashed() <= LONGEST_SOURCE) else {
            return inputs.make(image);
        };
        let name = source.name();
        if let Some(table) = read_entry(cache, &name, abi(image)) {
            remember(cache, file, &name);
            return Ok(table);
        }
        let table = match source.alone() {
            _ if source.is_in_memory() => inputs.make(image)?,
            Some(alone) => {
                let image = Image::parse_within(&alone, image.budget())?;
                Inputs::of(&image)?.make(&image)?
            }
            None => return inputs.make(image),
        };
        store(cache, file, &name, &table);
        Ok(table)
    }

    /// The table of a file as [`load_file`](Self::load_file) has it, or of one without call frame
    /// information; `None` if there is nothing to make it from.
    pub fn load_any(&self, image: &Image<'_>, file: Option<&FileIdentity>) -> Option<Result<Table, Error>> {
        match self.load_file(image, file) {
            Err(Error::NoUnwindInformation) => self.load_without_call_frames(image, file).map(Ok),
            made => Some(made),
        }
    }

    /// The table that [`load_file`](Self::load_file) has without making one: that of a file which
    /// had one in the cache before.
    pub fn known(&self, image: &Image<'_>, file: &FileIdentity) -> Option<Table> {
        known(self.cache.as_ref()?, Some(&name_of_file(file)), image)
    }

    /// The table of a file without any call frame information, as [`without_call_frames`] makes it.
    /// If the file has an identity, [`known`](Self::known) has it from then on.
    pub fn load_without_call_frames(&self, image: &Image<'_>, file: Option<&FileIdentity>) -> Option<Table> {
        let table = without_call_frames(image)?;
        let code = image.code_ranges().into_iter().map(|range| range.end - range.start);
        let is_kept = image.foreign_owner().is_none() && code.sum::<u64>() >= LARGE_CODE;
        if let (Some(cache), Some(file)) = (self.cache.as_ref().filter(|_| is_kept), file) {
            let mut namer = Namer::new("without call frame information");
            let name = namer.add(KIND.as_bytes()).numbers(file.numbers()).name();
            store(cache, Some(name_of_file(file)), &name, &table);
        }
        Some(table)
    }

    /// The same for a file of another user, whose contents are not looked at here. The worker gets
    /// a copy of what the name was made from: the file may change meanwhile.
    fn load_foreign(&self, image: &Image<'_>, file: Option<&FileIdentity>, owner: u32) -> Result<Table, Error> {
        let cache = self.cache.as_ref();
        let file = file.map(name_of_file);
        if let Some(table) = cache.and_then(|cache| known(cache, file.as_ref(), image)) {
            return Ok(table);
        }
        let source = Source::of(image)?;
        if source.hashed() > LONGEST_SOURCE {
            return Err(Lost::Memory.into());
        }
        let cache = cache.filter(|_| image.build_id().is_some() || source.hashed() >= LARGE);
        let named = cache.map(|cache| (cache, source.name()));
        if let Some((cache, name)) = &named
            && let Some(table) = read_entry(cache, name, abi(image))
        {
            remember(cache, file, name);
            return Ok(table);
        }
        let table = isolated::table(image, &source, owner, Wanted::Any)?;
        if let Some((cache, name)) = &named {
            store(cache, file, name, &table);
        }
        Ok(table)
    }
}

/// The name under which it is stored which entry a file has.
fn name_of_file(file: &FileIdentity) -> Name {
    Namer::new(FILES).add(KIND.as_bytes()).numbers(file.numbers()).name()
}

/// The table of a file that had one before.
fn known(cache: &Cache, file: Option<&Name>, image: &Image<'_>) -> Option<Table> {
    let entry = <[u8; 32]>::try_from(cache.read(FILES, file?, 32)?).ok()?;
    read_entry(cache, &Name::from_bytes(entry), abi(image))
}

/// Stores a new table. Without a cache the next load takes as long as this one.
fn store(cache: &Cache, file: Option<Name>, name: &Name, table: &Table) {
    if table.origin != TableOrigin::Shipped && write_entry(cache, name, table).is_ok() {
        remember(cache, file, name);
    }
}

/// Stores which entry a file has.
fn remember(cache: &Cache, file: Option<Name>, entry: &Name) {
    if let Some(file) = file {
        // Otherwise the next load hashes the file again.
        let _ = cache.write(FILES, &file, entry.bytes());
    }
}

/// A file without a build ID gets a cache entry if it has this many bytes of call frame
/// information, or of Go's table: Rust's compiler writes no build ID, and Go's linker one of its
/// own.
const LARGE: usize = 1 << 16;

/// The sections that a table is made from.
struct Inputs<'a> {
    section: SectionData<'a>,
    own: Option<SectionData<'a>>,
    more: Option<SectionData<'a>>,
    /// Whether the module's own table is all there is to say.
    is_shipped: bool,
}

impl<'a> Inputs<'a> {
    fn of(image: &Image<'a>) -> Result<Inputs<'a>, Error> {
        let own = own_section(image);
        let debug = match own {
            Some(_) => None,
            None => debug_frame::of_image(image),
        };
        let (section, more, is_shipped) = match (image.eh_frame(), &own, debug) {
            (Ok(Some(section)), None, debug) => (section, debug, false),
            (Ok(Some(section)), Some(own), _) if lacks_functions(image, own) => (section, None, false),
            (_, Some(_), _) => (NO_SECTION, None, true),
            (_, None, Some(debug)) => (debug, None, false),
            (Ok(None), None, None) if gopclntab::section(image).is_some() => (NO_SECTION, None, false),
            (Ok(None), None, None) => return Err(Error::NoUnwindInformation),
            (Err(error), None, None) => return Err(error.into()),
        };
        Ok(Inputs {
            section,
            own,
            more,
            is_shipped,
        })
    }

    fn are_worth_an_entry(&self, image: &Image<'_>) -> bool {
        let is_large = || {
            let go_bytes = || gopclntab::section(image).map_or(0, |section| section.data.len());
            self.section.data.len() >= LARGE || go_bytes() >= LARGE
        };
        !self.is_shipped && (image.build_id().is_some() || is_large())
    }

    fn make(&self, image: &Image<'_>) -> Result<Table, Error> {
        match (&self.own, self.is_shipped) {
            (Some(own), true) => Ok(shipped(own)),
            (own, _) => make(image, &self.section, own.as_ref(), self.more.as_ref()),
        }
    }
}

/// Empty call frame information, for files that have none.
const NO_SECTION: SectionData<'static> = SectionData {
    address: 0,
    data: Cow::Borrowed(&[]),
};

fn shipped(own: &SectionData<'_>) -> Table {
    Table {
        bytes: own.data.to_vec(),
        address: own.address,
        origin: TableOrigin::Shipped,
        uncovered_bytes: 0,
        skipped: BTreeMap::new(),
        damage: None,
    }
}

fn make(
    image: &Image<'_>,
    section: &SectionData<'_>,
    own: Option<&SectionData<'_>>,
    more: Option<&SectionData<'_>>,
) -> Result<Table, Error> {
    let mut converted = convert_section(image, section);
    if let Some(more) = more {
        let mut with_more =
            eh_frame::convert_within(&EhFrame::of_image(image, &more.data, more.address), image.budget());
        complete(&mut with_more, std::mem::take(&mut converted.functions));
        converted.functions = with_more.functions;
    }
    let mut origin = TableOrigin::Converted;
    if let Some(own) = own {
        let section = Section::parse(&own.data, own.address);
        let Ok(functions) = section.and_then(|section| FunctionRows::read_all(&section)) else {
            return Ok(shipped(own));
        };
        complete(&mut converted, functions);
        origin = TableOrigin::Completed;
    }
    if let (Some(damage), true) = (converted.damage, converted.functions.is_empty()) {
        return Err(Error::Cfi(damage));
    }
    if let Some(limit) = image.budget().exceeded() {
        let kind = ErrorKind::Limit(limit);
        return Err(Error::Elf(backtrail_elf::Error { kind, offset: 0 }));
    }
    let options = Options::new(Version::V3, abi(image), 0);
    let built = build::table(&converted, &options).map_err(Error::Write)?;
    let reasons = built.skipped_by_reason().into_iter();
    Ok(Table {
        address: 0,
        origin,
        uncovered_bytes: built.uncovered_bytes(),
        skipped: reasons.map(|(reason, (count, _))| (reason, count)).collect(),
        damage: built.damage,
        bytes: built.bytes,
    })
}

/// Whether a section is readable to its end, is for this CPU, and has functions at all. Functions
/// may share their rows, so a small section can claim endless ones: after a multiple of its length
/// the rest is not checked. An invalid row there costs an unwinder no more than a missing row.
fn is_sound(bytes: &[u8], address: u64, abi: Abi) -> bool {
    let Ok(section) = Section::parse(bytes, address) else {
        return false;
    };
    if section.abi() != abi || section.num_fdes() == 0 {
        return false;
    }
    let mut budget = row_budget(bytes);
    for function in section.functions() {
        let Ok(fde) = function else { return false };
        for row in fde.rows() {
            if row.is_err() {
                return false;
            }
            let Some(rest) = budget.checked_sub(1) else {
                return true;
            };
            budget = rest;
        }
    }
    true
}

/// The limit of rows that are checked in a section of this length.
fn row_budget(bytes: &[u8]) -> usize {
    bytes.len().saturating_mul(4)
}

/// Whether conversion finds functions that the module's own table lacks. The functions of
/// `.eh_frame` come from the search table of `.eh_frame_hdr`, which is much faster to read than
/// `.eh_frame` itself.
fn lacks_functions(image: &Image<'_>, own: &SectionData<'_>) -> bool {
    let Ok(section) = Section::parse(&own.data, own.address) else {
        return true;
    };
    let knows = |address| matches!(section.lookup(address), Ok(Some(_)));
    let entry = image.entry();
    if entry != 0 && !knows(entry) && image.code_ranges().iter().any(|range| range.contains(&entry)) {
        return true;
    }
    if !plt::functions(image).iter().all(|function| knows(function.start)) {
        return true;
    }
    let Ok(Some(header)) = image.eh_frame_hdr() else {
        return true;
    };
    let starts = eh_frame::search_table(&header.data, header.address, image.endian());
    !starts.is_some_and(|starts| starts.into_iter().all(knows))
}

/// Replaces converted functions by the module's own ones.
fn complete(converted: &mut Converted, mut own: Vec<FunctionRows>) {
    own.sort_by_key(|function| function.start);
    let end = |function: &FunctionRows| function.start.saturating_add(u64::from(function.size));
    converted.functions.retain(|function| {
        let before = own.partition_point(|own| own.start < end(function));
        own[..before].last().is_none_or(|own| end(own) <= function.start)
    });
    converted.functions.append(&mut own);
    converted.functions.sort_by_key(|function| function.start);
}

fn read_entry(cache: &Cache, name: &Name, abi: Abi) -> Option<Table> {
    let mut content = cache.read(KIND, name, LONGEST)?;
    let (head, crc) = content.split_last_chunk::<4>()?;
    let split = (head.len() + 4).checked_sub(TRAILER_BYTES)?;
    let trailer = Bytes::new(&head[split..], Endian::Little);
    // This program wrote the entry: its rows need no second check.
    let fits = u32::from_le_bytes(*crc) == crc32fast::hash(head) && trailer.slice(8, 32) == Ok(&name.bytes()[..]);
    let is_ours = |section: Section<'_>| section.abi() == abi && section.num_fdes() > 0;
    if !fits || !Section::parse(&head[..split], 0).is_ok_and(is_ours) {
        return None;
    }
    let uncovered_bytes = trailer.u64(0).ok()?;
    content.truncate(split);
    Some(Table {
        bytes: content,
        address: 0,
        origin: TableOrigin::Cached,
        uncovered_bytes,
        skipped: BTreeMap::new(),
        damage: None,
    })
}

fn write_entry(cache: &Cache, name: &Name, table: &Table) -> io::Result<()> {
    let mut content = table.bytes.clone();
    content.extend(table.uncovered_bytes.to_le_bytes());
    content.extend(name.bytes());
    content.extend(crc32fast::hash(&content).to_le_bytes());
    cache.write(KIND, name, &content)
}
