//! Cores of bounded size: the headers and notes of a core, and the most useful parts of its memory.
//!
//! The beginning of a core ([`head`]) describes threads, files and the layout of memory. From it,
//! [`Selection::of`] chooses what fits into a number of bytes, and [`write()`] writes a core,
//! from a stream or from the process itself. Memory that is left out has a program header without
//! bytes, so that readers know it as missing instead of as zeros.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use backtrail_wire::Endian;

use super::Core;
use crate::constants::{EHDR_BYTES, PHDR_BYTES, PT_LOAD, PT_NOTE};
use crate::header::Header;
use crate::{Image, Kind, Segment};

/// The most bytes of a core's headers and notes. Ten thousand threads with AVX-512 have 50 MiB.
const LONGEST_HEAD: u64 = 256 << 20;
/// Bytes around a stack pointer that are kept first: of the thread that died, and of others.
const FIRST_STACK: u64 = 8 << 20;
const OTHER_STACK: u64 = 256 << 10;
/// What functions without calls use below the stack pointer, on any CPU.
const RED_ZONE: u64 = 512;
const PAGE: u64 = 4096;
/// The most program headers of a written core: with more, their number is elsewhere.
const MOST_HEADERS: usize = 60_000;

/// Reads the headers and notes that a core begins with.
///
/// # Errors
/// Those of the stream; `InvalidData` if this is not the beginning of a core.
pub fn head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_to(stream, &mut bytes, EHDR_BYTES as u64)?;
    let (header, _) = Header::with_arch(&bytes).map_err(invalid)?;
    if header.kind != Kind::Core {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a core"));
    }
    let headers_end = u64::from(header.phnum) * PHDR_BYTES as u64;
    read_to(stream, &mut bytes, header.phoff.saturating_add(headers_end))?;
    let image = Image::parse(&bytes).map_err(invalid)?;
    let notes = image.segments().iter().filter(|segment| segment.kind == PT_NOTE);
    let end = notes.map(|segment| segment.offset.saturating_add(segment.filesz)).max();
    read_to(stream, &mut bytes, end.unwrap_or(0))?;
    Ok(bytes)
}

fn invalid(error: crate::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Reads until `bytes` has this length, or the stream ends.
fn read_to(stream: &mut impl Read, bytes: &mut Vec<u8>, len: u64) -> io::Result<()> {
    if len > LONGEST_HEAD {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let missing = len.saturating_sub(bytes.len() as u64);
    stream.take(missing).read_to_end(bytes)?;
    Ok(())
}

/// Which parts of a core's memory are kept.
#[derive(Debug)]
pub struct Selection {
    /// The core's `PT_LOAD` segments, by ascending address.
    loads: Vec<Segment>,
    /// The parts, by their first address.
    kept: BTreeMap<u64, u64>,
    left: u64,
}

impl Selection {
    /// Chooses at most this many bytes: stacks, what lies around the threads' program counters, the
    /// headers of files, and then the smallest segments first.
    pub fn of(core: &Core<'_>, head: &[u8], most: u64) -> Selection {
        let segments = Image::parse(head).map(|image| image.segments().to_vec());
        let mut loads: Vec<Segment> = segments.unwrap_or_default();
        loads.retain(Segment::is_load);
        loads.sort_by_key(|load| load.vaddr);
        let mut selection = Selection {
            loads,
            kept: BTreeMap::new(),
            left: most,
        };
        for (index, thread) in core.threads.iter().enumerate() {
            let size = if index == 0 { FIRST_STACK } else { OTHER_STACK };
            if let Some(sp) = thread.registers.get(core.arch.sp) {
                let start = sp.saturating_sub(RED_ZONE) & !(PAGE - 1);
                selection.keep(start..start.saturating_add(size));
            }
            let page = thread.registers.pc & !(PAGE - 1);
            selection.keep(page.saturating_sub(PAGE)..page.saturating_add(2 * PAGE));
        }
        for file in core.files.iter().filter(|file| file.file_offset == 0) {
            selection.keep(file.start..file.start.saturating_add(PAGE));
        }
        let mut smallest: Vec<Range<u64>> = selection.loads.iter().map(in_file).collect();
        smallest.sort_by_key(|range| range.end - range.start);
        for range in smallest {
            selection.keep(range);
        }
        selection
    }

    /// Number of bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.kept.iter().map(|(start, end)| end - start).sum()
    }

    /// Adds what the core has of a range, as far as there is room.
    fn keep(&mut self, range: Range<u64>) {
        let first = self.loads.partition_point(|load| in_file(load).end <= range.start);
        for index in first..self.loads.len() {
            let part = in_file(&self.loads[index]);
            if part.start >= range.end || self.left == 0 {
                break;
            }
            self.keep_part(part.start.max(range.start), part.end.min(range.end));
        }
    }

    fn keep_part(&mut self, mut at: u64, end: u64) {
        while at < end && self.left > 0 && self.kept.len() < MOST_HEADERS / 4 {
            let before = self.kept.range(..=at).next_back().map(|(_, &end)| end);
            if let Some(covered) = before.filter(|&covered| covered > at) {
                at = covered;
                continue;
            }
            let next = self.kept.range(at..).next().map_or(end, |(&start, _)| start.min(end));
            let len = (next - at).min(self.left);
            self.left -= len;
            self.kept.insert(at, at + len);
            at += len;
        }
    }

    /// The parts that lie in a segment, by ascending address.
    fn parts(&self, load: &Segment) -> Vec<Range<u64>> {
        let whole = in_file(load);
        let mut parts: Vec<Range<u64>> = Vec::new();
        for (&start, &end) in self.kept.range(whole.clone()) {
            match parts.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => parts.push(start..end),
            }
        }
        parts
    }
}

/// The addresses of a segment whose bytes are in the file.
fn in_file(load: &Segment) -> Range<u64> {
    load.vaddr..load.vaddr.saturating_add(load.filesz.min(load.memsz))
}

/// Writes a core with the selected memory, and returns its length.
///
/// `read` fills a buffer with the memory at an address, which the original has at an offset, and
/// returns how many bytes it has. It is called in the order of offsets. What it does not have is
/// left out.
///
/// # Errors
/// Those of writing.
pub fn write(
    core: &Core<'_>,
    head: &[u8],
    selection: &Selection,
    out: &mut (impl Write + Seek),
    mut read: impl FnMut(u64, u64, &mut [u8]) -> usize,
) -> io::Result<u64> {
    let image = Image::parse(head).map_err(invalid)?;
    let notes: Vec<&Segment> = image.segments().iter().filter(|one| one.kind == PT_NOTE).collect();
    let mut loads: Vec<&Segment> = selection.loads.iter().collect();
    loads.sort_by_key(|load| load.offset);
    let planned: usize = loads.iter().map(|load| 3 * selection.parts(load).len() + 1).sum();
    let has_gaps = planned < MOST_HEADERS;
    let room = (notes.len() + planned).min(MOST_HEADERS + notes.len()) * PHDR_BYTES;

    let mut at = (EHDR_BYTES + room) as u64;
    out.seek(SeekFrom::Start(at))?;
    let mut headers = Vec::new();
    for note in notes {
        let bytes = image.segment_bytes(note).unwrap_or_default();
        out.write_all(bytes)?;
        headers.push(Segment {
            offset: at,
            filesz: bytes.len() as u64,
            ..*note
        });
        at += bytes.len() as u64;
    }
    let mut buffer = vec![0; 1 << 16];
    for load in loads {
        let mut done = load.vaddr;
        let mut push = |range: Range<u64>, offset: u64, filesz: u64| {
            if !range.is_empty() && (filesz > 0 || has_gaps) {
                headers.push(Segment {
                    offset,
                    vaddr: range.start,
                    filesz,
                    memsz: range.end - range.start,
                    align: 1,
                    ..*load
                });
            }
        };
        for part in selection.parts(load) {
            let mut next = part.start;
            while next < part.end {
                let len = (part.end - next).min(buffer.len() as u64) as usize;
                let offset = load.offset.saturating_add(next - load.vaddr);
                let got = read(next, offset, &mut buffer[..len]).min(len);
                out.write_all(&buffer[..got])?;
                next += got as u64;
                if got < len {
                    break;
                }
            }
            push(done..part.start, at, 0);
            push(part.start..next, at, next - part.start);
            at += next - part.start;
            done = next;
        }
        push(done..load.vaddr.saturating_add(load.memsz.max(load.filesz)), at, 0);
    }
    headers.sort_by_key(|header| (header.kind == PT_LOAD, header.vaddr));
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&elf_header(core.endian, head, headers.len()))?;
    for header in headers {
        out.write_all(&program_header(core.endian, &header))?;
    }
    Ok(at)
}

/// The original's header, with the program headers right after it and without sections.
fn elf_header(endian: Endian, head: &[u8], count: usize) -> Vec<u8> {
    let mut header = head[..EHDR_BYTES.min(head.len())].to_vec();
    header.resize(EHDR_BYTES, 0);
    header[32..40].copy_from_slice(&word(endian, EHDR_BYTES as u64));
    header[40..48].fill(0);
    header[56..58].copy_from_slice(&half(endian, count as u16));
    header[58..].fill(0);
    header
}

fn program_header(endian: Endian, header: &Segment) -> Vec<u8> {
    let kinds = match endian {
        Endian::Little => u64::from(header.kind) | u64::from(header.flags) << 32,
        Endian::Big => u64::from(header.kind) << 32 | u64::from(header.flags),
    };
    let fields = [
        kinds,
        header.offset,
        header.vaddr,
        0,
        header.filesz,
        header.memsz,
        header.align,
    ];
    fields.into_iter().flat_map(|field| word(endian, field)).collect()
}

fn word(endian: Endian, value: u64) -> [u8; 8] {
    match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}

fn half(endian: Endian, value: u16) -> [u8; 2] {
    match endian {
        Endian::Little => value.to_le_bytes(),
        Endian::Big => value.to_be_bytes(),
    }
}
