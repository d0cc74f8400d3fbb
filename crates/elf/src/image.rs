//! The view of an ELF file, or of a module as it lies in memory.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use backtrail_arch::Arch;
use backtrail_wire::{Bytes, Endian};

use crate::budget::Budget;
use crate::compression::Packed;
use crate::constants::*;
use crate::header::{Class, Header, Kind, to_usize};
use crate::map::FileBytes;
use crate::section::{Section, sections};
use crate::segment::{Segment, segments};
use crate::source::{Source, Stored};
use crate::{Result, notes};

/// The page size that a module's base is rounded to. Files may be aligned to larger pages; the
/// kernel maps at multiples of this one.
const PAGE: u64 = 4096;

/// Where a file is loaded: enough to convert an address in an executable mapping of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeSegments(Vec<(u64, u64, u64)>);

impl CodeSegments {
    /// File offset, file size and address of the loaded segments, those for execution first. lld
    /// lets segments share a page of the file, so an offset alone does not distinguish them; mostly
    /// only one of these can be mapped for execution. Lisp images have code in their data, which
    /// they make executable.
    pub fn of(image: &Image<'_>) -> CodeSegments {
        let is_code = |wanted| image.loads().filter(move |segment| segment.is_executable() == wanted);
        CodeSegments(
            is_code(true)
                .chain(is_code(false))
                .map(|segment| (segment.offset, segment.filesz, segment.vaddr))
                .collect(),
        )
    }

    /// The address (svma) of the byte at `offset`; mappings begin at whole pages, so it may lie
    /// before its segment.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        self.0
            .iter()
            .find(|&&(start, len, _)| start & !(PAGE - 1) <= offset && offset < start.saturating_add(len))
            .map(|&(start, _, address)| address.wrapping_add(offset.wrapping_sub(start)))
    }
}

/// The contents of a section and where they lie in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionData<'a> {
    /// Address in the file's own terms (svma); 0 if it is not loaded.
    pub address: u64,
    /// The bytes, decompressed.
    pub data: Cow<'a, [u8]>,
}

impl<'a> SectionData<'a> {
    fn unpacked(packed: Packed<'a>) -> Result<SectionData<'a>> {
        Ok(SectionData {
            address: packed.address,
            data: packed.unpack()?,
        })
    }
}

/// `.gnu_debuglink`: the file that the debug information was split off to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugLink<'a> {
    /// The file's name, without a directory.
    pub name: &'a [u8],
    /// CRC-32 of the whole file.
    pub crc: u32,
}

/// `.gnu_debugaltlink`: the file that dwz moved shared debug information to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltLink<'a> {
    /// The file's path, absolute or relative to this file's directory.
    pub path: &'a [u8],
    /// That file's build id.
    pub build_id: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Bytes lie at their file offsets.
    File,
    /// Bytes lie at their addresses, counted from the base; the module was loaded at `at`.
    Memory { at: u64 },
}

/// A parsed ELF file of any machine, class and byte order: its decoded headers, and its bytes.
#[derive(Clone, Debug)]
pub struct File<'a> {
    source: Source<'a>,
    endian: Endian,
    layout: Layout,
    class: Class,
    machine: u16,
    kind: Kind,
    entry: u64,
    segments: Vec<Segment>,
    sections: Vec<Section<'a>>,
}

/// A [`File`] whose code is for a CPU with supported stack walks.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    file: File<'a>,
    arch: &'static Arch,
}

impl<'a> Deref for Image<'a> {
    type Target = File<'a>;

    fn deref(&self) -> &File<'a> {
        &self.file
    }
}

impl<'a> Image<'a> {
    /// Parses a file: linked, relocatable or core; 64-bit, either byte order, x86-64, AArch64 or
    /// s390x.
    ///
    /// Section headers that are missing or lie outside the file count as absent: program headers
    /// then locate everything that the dynamic linker needs.
    pub fn parse(bytes: &'a [u8]) -> Result<Image<'a>> {
        Image::of_source(Source::memory(bytes))
    }

    /// The same for a copy of a file that has a budget.
    pub fn parse_within(bytes: &'a [u8], budget: &'a Budget) -> Result<Image<'a>> {
        Image::of_source(Source::Memory(bytes, budget))
    }

    /// Parses a file of which only the needed parts are read, within its budget; else as
    /// [`Image::parse`].
    pub fn of(file: &'a FileBytes) -> Result<Image<'a>> {
        Image::of_source(Source::File(file))
    }

    fn of_source(source: Source<'a>) -> Result<Image<'a>> {
        let (header, arch) = Header::with_arch(header_bytes(source)?)?;
        let file = File::with_header(source, &header)?;
        Ok(Image { file, arch })
    }

    /// Parses a module as it lies in memory: the vdso, or pages copied from a process whose file is
    /// gone.
    ///
    /// `bytes` begin with the module's first mapped byte, at address `at` of its process, and each
    /// segment's data lies at its address. Only program headers are used. All returned addresses
    /// are the module's own (svma), as if the file had been parsed.
    pub fn parse_memory(bytes: &'a [u8], at: u64) -> Result<Image<'a>> {
        let (header, arch) = Header::with_arch(bytes)?;
        let source = Source::memory(bytes);
        let file = File {
            layout: Layout::Memory { at },
            ..File::new(&header, source, segments(source, &header)?, Vec::new())
        };
        Ok(Image { file, arch })
    }

    /// Assigns addresses to the sections of a relocatable file, which have none: first those with
    /// code, from 0, then the others that are loaded, in sequence with their alignments. So code of
    /// several sections does not overlap, and if there is one code section, its addresses are its
    /// offsets. Other files stay unchanged.
    pub fn with_sections_placed(mut self) -> Image<'a> {
        if self.kind != Kind::Relocatable {
            return self;
        }
        let mut next = 0u64;
        for code in [true, false] {
            let is_next = |section: &&mut Section<'_>| section.is_loaded() && section.is_code() == code;
            for section in self.file.sections.iter_mut().filter(is_next) {
                // No valid file of this size exceeds these limits; if exceeded, sections may
                // overlap.
                let align = section.align.clamp(1, PAGE);
                section.address = next.checked_next_multiple_of(align).unwrap_or(next);
                next = section.address.saturating_add(section.size);
            }
        }
        self
    }

    /// The CPU.
    pub fn arch(&self) -> &'static Arch {
        self.arch
    }
}

impl<'a> File<'a> {
    /// Parses a file: linked, relocatable or core, of any machine.
    ///
    /// Section headers that are missing or lie outside the file count as absent.
    pub fn parse(bytes: &'a [u8]) -> Result<File<'a>> {
        File::of_source(Source::memory(bytes))
    }

    /// Parses a file of which only the needed parts are read, within its budget; else as
    /// [`File::parse`].
    pub fn of(file: &'a FileBytes) -> Result<File<'a>> {
        File::of_source(Source::File(file))
    }

    fn of_source(source: Source<'a>) -> Result<File<'a>> {
        File::with_header(source, &Header::parse(header_bytes(source)?)?)
    }

    fn with_header(source: Source<'a>, header: &Header) -> Result<File<'a>> {
        let sections = sections(source, header);
        Ok(File::new(header, source, segments(source, header)?, sections))
    }

    fn new(header: &Header, source: Source<'a>, segments: Vec<Segment>, sections: Vec<Section<'a>>) -> File<'a> {
        File {
            source,
            endian: header.endian,
            layout: Layout::File,
            class: header.class,
            machine: header.machine,
            kind: header.kind,
            entry: header.entry,
            segments,
            sections,
        }
    }

    /// `e_machine`: the CPU's number.
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// Size of an address in bytes: 4 or 8.
    pub fn address_bytes(&self) -> u8 {
        self.class.word_bytes()
    }

    pub(crate) fn class(&self) -> Class {
        self.class
    }

    /// The byte order.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// The file's type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// All bytes of the file, which reads all of it.
    pub fn bytes(&self) -> &'a [u8] {
        self.source.whole()
    }

    /// The bytes of a range of the file, which reads only these.
    ///
    /// # Errors
    /// If the file does not have them, or reading them exceeds the budget.
    pub fn bytes_in(&self, range: Range<usize>) -> Result<&'a [u8]> {
        self.source.slice(range.start, range.len())
    }

    /// The length of the file in bytes.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Whether there are no bytes; never, since they were parsed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is left for reading it.
    pub fn budget(&self) -> &'a Budget {
        self.source.budget()
    }

    /// Whose file it is, if [workers](crate::isolation) should make tables and names of it.
    pub fn foreign_owner(&self) -> Option<u32> {
        self.source.foreign_owner()
    }

    /// Whether the bytes were parsed as a module in memory ([`Image::parse_memory`]).
    pub fn is_in_memory(&self) -> bool {
        matches!(self.layout, Layout::Memory { .. })
    }

    /// Whether the code that it describes is in another file, as in separate debug files.
    pub fn is_separate_debug_information(&self) -> bool {
        let code = self
            .sections
            .iter()
            .filter(|section| section.is_loaded() && section.is_code());
        let mut code = code.peekable();
        code.peek().is_some() && code.all(|section| !section.has_bytes())
    }

    /// `e_entry`; 0 if the file has no entry point.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// Whether it can be loaded at any address (`ET_DYN`).
    pub fn is_position_independent(&self) -> bool {
        self.kind == Kind::Shared
    }

    /// All program headers, in the file's order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// All section headers, including the null one at index 0; empty for an image in memory.
    pub fn sections(&self) -> &[Section<'a>] {
        &self.sections
    }

    /// The page address of the lowest loaded segment; 0 if nothing is loaded. In a process, this
    /// page is mapped at the module's base.
    pub fn base_vaddr(&self) -> u64 {
        let lowest = self.loads().map(|segment| segment.vaddr).min().unwrap_or(0);
        lowest & !(PAGE - 1)
    }

    /// Size in bytes from `Image::base_vaddr` to the end of the last loaded segment.
    pub fn mem_size(&self) -> u64 {
        let end = self.loads().map(|segment| segment.memory().end).max().unwrap_or(0);
        end - self.base_vaddr()
    }

    /// Executable address ranges, in the order of the program headers; in a relocatable file, those
    /// of the sections with code, which overlap unless they were placed
    /// ([`Image::with_sections_placed`]).
    pub fn code_ranges(&self) -> Vec<Range<u64>> {
        if self.kind == Kind::Relocatable {
            let code = self
                .sections
                .iter()
                .filter(|section| section.is_loaded() && section.is_code());
            return code.map(Section::memory).collect();
        }
        let code = self.loads().filter(|segment| segment.is_executable());
        code.map(Segment::memory).collect()
    }

    /// The address (svma) at which the byte at `offset` of the file is loaded.
    pub fn svma_of_offset(&self, offset: u64) -> Option<u64> {
        let segment = self
            .loads()
            .find(|segment| offset >= segment.offset && offset - segment.offset < segment.filesz)?;
        segment.vaddr.checked_add(offset - segment.offset)
    }

    /// The offset in the file of the byte that is loaded at this address (svma).
    pub fn offset_of_svma(&self, svma: u64) -> Option<u64> {
        let segment = self
            .loads()
            .find(|segment| svma >= segment.vaddr && svma - segment.vaddr < segment.filesz)?;
        segment.offset.checked_add(svma - segment.vaddr)
    }

    /// The build id, from a note section or segment.
    pub fn build_id(&self) -> Option<&'a [u8]> {
        self.in_notes(notes::build_id)
    }

    /// Go's build ID: a text. Before Go 1.24, its linker writes no other one.
    pub fn go_build_id(&self) -> Option<&'a [u8]> {
        self.in_notes(notes::go_build_id)
    }

    /// The first thing that is found in a note section or segment.
    fn in_notes(&self, find: impl Fn(Bytes<'a>, u64) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
        let sections = self.sections.iter().filter(|section| section.kind == SHT_NOTE);
        let by_section = sections.filter_map(|section| Some((self.raw(section).ok()??, section.align)));
        let segments = self.segments.iter().filter(|segment| segment.kind == PT_NOTE);
        let by_segment = segments.filter_map(|segment| Some((self.segment_bytes(segment)?, segment.align)));
        by_section
            .chain(by_segment)
            .find_map(|(data, align)| find(Bytes::new(data, self.endian()), align))
    }

    /// The header of the first section with this name.
    pub fn section_header(&self, name: &str) -> Option<&Section<'a>> {
        let mut active = self.sections.iter().filter(|section| section.kind != SHT_NULL);
        active.find(|section| section.name == name.as_bytes())
    }

    /// The header of the section whose code is at address `svma`.
    pub fn code_section(&self, svma: u64) -> Option<&Section<'a>> {
        let mut code = self
            .sections
            .iter()
            .filter(|section| section.is_loaded() && section.is_code());
        code.find(|section| section.memory().contains(&svma))
    }

    /// The contents of the first section with this name, decompressed; a section `.debug_*` is also
    /// found by its older compressed name `.zdebug_*`. `None` if there is no such section or the
    /// file contains none of its bytes (`SHT_NOBITS`, as in separate debug files).
    pub fn section(&self, name: &str) -> Result<Option<SectionData<'a>>> {
        self.packed(name)?.map(SectionData::unpacked).transpose()
    }

    /// The same section as stored in the file, perhaps compressed.
    pub fn packed(&self, name: &str) -> Result<Option<Packed<'a>>> {
        if let Some(section) = self.section_header(name) {
            return self.packed_contents(section);
        }
        let Some(rest) = name.strip_prefix(".debug_") else {
            return Ok(None);
        };
        let Some(section) = self.section_header(&format!(".zdebug_{rest}")) else {
            return Ok(None);
        };
        let Some(raw) = self.raw(section)? else {
            return Ok(None);
        };
        Packed::zdebug(raw, section.address, section.offset, self.budget()).map(Some)
    }

    /// The contents of a section, decompressed; `None` if the file contains none of its bytes.
    pub fn contents(&self, section: &Section<'a>) -> Result<Option<SectionData<'a>>> {
        self.packed_contents(section)?.map(SectionData::unpacked).transpose()
    }

    fn packed_contents(&self, section: &Section<'a>) -> Result<Option<Packed<'a>>> {
        let (address, offset) = (section.address, section.offset);
        if section.kind != SHT_NOBITS && section.flags & SHF_COMPRESSED == 0 {
            return Packed::plain(self.source, address, to_usize(offset), to_usize(section.size)).map(Some);
        }
        let Some(raw) = self.raw(section)? else {
            return Ok(None);
        };
        Packed::with_header(
            Bytes::new(raw, self.endian()),
            self.class,
            address,
            offset,
            self.budget(),
        )
        .map(Some)
    }

    /// The bytes of a section as stored in the file; `None` for `SHT_NOBITS`.
    pub(crate) fn raw(&self, section: &Section<'a>) -> Result<Option<&'a [u8]>> {
        if section.kind == SHT_NOBITS {
            return Ok(None);
        }
        let (offset, size) = (to_usize(section.offset), to_usize(section.size));
        Ok(Some(self.source.slice(offset, size)?))
    }

    /// The same for bytes that are needed once.
    pub(crate) fn raw_once(&self, section: &Section<'a>) -> Result<Option<Cow<'a, [u8]>>> {
        if section.kind == SHT_NOBITS {
            return Ok(None);
        }
        let (offset, size) = (to_usize(section.offset), to_usize(section.size));
        self.source.once(offset, size).map(Some)
    }

    /// The address of `.text`: the base of `DW_EH_PE_textrel` pointers.
    pub fn text_address(&self) -> Option<u64> {
        self.section_header(".text").map(|section| section.address)
    }

    /// The address of `.got`: the base of `DW_EH_PE_datarel` pointers in `.eh_frame`.
    pub fn got_address(&self) -> Option<u64> {
        self.section_header(".got").map(|section| section.address)
    }

    /// `.gnu_debuglink`; `None` if it is missing or damaged.
    pub fn debuglink(&self) -> Option<DebugLink<'a>> {
        let data = self.raw(self.section_header(".gnu_debuglink")?).ok()??;
        let mut cursor = Bytes::new(data, self.endian()).cursor(0);
        let name = cursor.c_str().ok()?;
        let crc_at = cursor.offset().next_multiple_of(4);
        let crc = Bytes::new(data, self.endian()).u32(crc_at).ok()?;
        Some(DebugLink { name, crc })
    }

    /// `.gnu_debugaltlink`; `None` if it is missing or damaged.
    pub fn debugaltlink(&self) -> Option<AltLink<'a>> {
        let data = self.raw(self.section_header(".gnu_debugaltlink")?).ok()??;
        let mut cursor = Bytes::new(data, self.endian()).cursor(0);
        let path = cursor.c_str().ok()?;
        let build_id = &data[cursor.offset()..];
        Some(AltLink { path, build_id })
    }

    /// `.gnu_debugdata`: an ELF file with more symbols, compressed with xz.
    pub fn gnu_debugdata(&self) -> Option<&'a [u8]> {
        self.raw(self.section_header(".gnu_debugdata")?).ok()?
    }

    /// The loaded bytes from address `svma` to the end of its segment's bytes in the image, which
    /// reads all of these; see [`File::data_in`].
    pub fn data_at(&self, svma: u64) -> Option<&'a [u8]> {
        self.data_in(svma..u64::MAX)
    }

    /// The loaded bytes of a range of addresses, up to the end of the first segment's bytes in the
    /// image; `None` if its start is not loaded.
    pub fn data_in(&self, svmas: Range<u64>) -> Option<&'a [u8]> {
        let svma = svmas.start;
        let holds = |segment: &&Segment| svma >= segment.vaddr && svma - segment.vaddr < self.held(segment);
        let segment = self.loads().find(holds)?;
        let skipped = svma - segment.vaddr;
        let len = (self.held(segment) - skipped).min(svmas.end.saturating_sub(svma));
        let start = self.start_of(segment)?.checked_add(skipped)?;
        self.source.up_to(to_usize(start), to_usize(len))
    }

    /// The bytes of a segment that the image contains.
    pub(crate) fn segment_bytes(&self, segment: &Segment) -> Option<&'a [u8]> {
        let start = self.start_of(segment)?;
        self.source.up_to(to_usize(start), to_usize(self.held(segment)))
    }

    /// The bytes of a segment, which are read when they are asked for.
    pub(crate) fn stored(&self, segment: &Segment) -> Stored<'a> {
        let start = self.start_of(segment).map_or(usize::MAX, to_usize);
        Stored::new(self.source, start, to_usize(self.held(segment)))
    }

    /// The offset of a segment in the image.
    fn start_of(&self, segment: &Segment) -> Option<u64> {
        match self.layout {
            Layout::File => Some(segment.offset),
            Layout::Memory { .. } => segment.vaddr.checked_sub(self.base_vaddr()),
        }
    }

    /// The svma of a pointer found in the image: the dynamic linker relocates the pointers of
    /// `PT_DYNAMIC` in memory.
    pub(crate) fn unrelocate(&self, pointer: u64) -> u64 {
        match self.layout {
            Layout::Memory { at } if pointer >= at && pointer - at < self.mem_size() => {
                pointer - at + self.base_vaddr()
            }
            _ => pointer,
        }
    }

    pub(crate) fn bytes_in_order(&self, data: &'a [u8]) -> Bytes<'a> {
        Bytes::new(data, self.endian())
    }

    fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.is_load())
    }

    fn held(&self, segment: &Segment) -> u64 {
        match self.layout {
            Layout::File => segment.filesz,
            Layout::Memory { .. } => segment.memsz,
        }
    }
}

/// The first bytes of a file, with its header.
fn header_bytes(source: Source<'_>) -> Result<&[u8]> {
    source.slice(0, EHDR_BYTES.min(source.len()))
}
