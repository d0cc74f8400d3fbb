//! Records in a file that perf has written: `perf.data`
//! (`tools/perf/Documentation/perf.data-file-format.txt`).
//!
//! Only places and times of records are kept, in 24 bytes each; a record is read when it is asked
//! for. Compressed records are unpacked into a file without a name.

mod features;
mod group;
mod layout;
mod store;
mod unpack;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;

use backtrail_wire::{Bytes, Endian};

pub use features::About;
use group::Groups;
use layout::{Attribute, LEAST_ATTRIBUTE, sample, trailer_bytes};
use store::{Spool, Store, Window};
use unpack::Unpacker;

use super::constants::{record_type, sample_type};
use super::records::{Build, Cause, MISC_MMAP_BUILD_ID, Mapping, Record, decode_body};

/// `PERFILE2`, in the byte order of the machine that wrote it.
const MAGIC: [u8; 8] = *b"PERFILE2";
/// The same of a machine of the other byte order.
const SWAPPED_MAGIC: [u8; 8] = *b"2ELIFREP";
/// The first bytes of a file that perf wrote to a pipe: the header has only the magic and 16.
const PIPE_HEADER: u64 = 16;
/// Where the features are in the header of a file, a bit each.
const FEATURES: u64 = 72;
const HEADER: usize = 104;
/// Bytes before the contents of a record.
const RECORD_HEADER: usize = 8;
/// `PERF_RECORD_MISC_MMAP_DATA`: not code.
const MISC_MMAP_DATA: u16 = 1 << 13;
const ENDIAN: Endian = Endian::NATIVE;

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileError {
    /// It is not a `perf.data`.
    NoPerfData,
    /// It is of a machine of the other byte order.
    ByteOrder,
    /// It has no bytes: what perf leaves if it cannot record.
    Empty,
    /// Reading failed.
    Io(io::ErrorKind),
    /// The compressed records of the file cannot be unpacked.
    Packed,
    /// They claim to be much longer than any recording is.
    Expansion,
    /// The file for unpacked records cannot be written.
    Scratch(io::ErrorKind),
    /// It ends before this offset, or the number there makes no sense.
    Damaged(u64),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::NoPerfData => write!(f, "not a perf.data file"),
            FileError::ByteOrder => write!(f, "is of a machine of the other byte order"),
            FileError::Empty => write!(f, "is empty: perf recorded nothing"),
            FileError::Io(kind) => write!(f, "cannot be read: {kind}"),
            FileError::Packed => write!(f, "has compressed records that are damaged"),
            FileError::Expansion => write!(f, "has compressed records of absurd length"),
            FileError::Scratch(kind) => write!(f, "cannot be unpacked: writing a temporary file failed: {kind}"),
            FileError::Damaged(offset) => write!(f, "is damaged at byte {offset:#x}"),
        }
    }
}

impl std::error::Error for FileError {}

impl From<backtrail_wire::Error> for FileError {
    fn from(error: backtrail_wire::Error) -> Self {
        FileError::Damaged(error.offset)
    }
}

type Result<T> = std::result::Result<T, FileError>;

/// An event of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name, as perf was asked for it.
    pub name: String,
    /// Its number, as samples have it.
    pub number: u16,
    /// Its samples.
    pub samples: u64,
    /// Samples per second of CPU time, if it is a clock.
    pub clock: Option<u64>,
}

/// Where a record is, and when it was written.
#[derive(Clone, Copy, Debug)]
struct Found {
    time: u64,
    /// Among the unpacked records if [`UNPACKED`] is set, else in the file.
    offset: u64,
    cpu: u32,
    length: u16,
    /// The number of its event, and [`IS_SAMPLE`] or [`IS_LOSS`].
    event: u16,
}

const UNPACKED: u64 = 1 << 63;
const IS_SAMPLE: u16 = 1 << 15;
/// It says how many samples of its event were lost.
const IS_LOSS: u16 = 1 << 14;
const EVENT: u16 = IS_LOSS - 1;

/// A `perf.data`, and its records in the order of their times.
#[derive(Debug)]
pub struct PerfFile<'b> {
    store: Store<'b>,
    spool: Option<Spool>,
    attributes: Vec<Attribute>,
    by_id: HashMap<u64, u16>,
    about: About,
    found: Vec<Found>,
    groups: Groups,
    /// Records that are not read, by their type.
    ignored: BTreeMap<u32, u64>,
    /// Whether records say what each event has lost.
    has_losses: bool,
    cut: bool,
    /// The record that was asked for last.
    record: Vec<u8>,
}

/// A record with its time and its CPU.
#[derive(Clone, Copy, Debug)]
pub struct Timed<'a> {
    /// Nanoseconds of the clock of the recording.
    pub time: u64,
    /// The CPU that it comes from.
    pub cpu: u32,
    /// The record.
    pub record: Record<'a>,
}

/// Makes a file for unpacked records.
type Scratch<'s> = &'s dyn Fn() -> io::Result<File>;

impl<'b> PerfFile<'b> {
    /// Reads the header of a file in memory, and orders the records.
    ///
    /// # Errors
    ///
    /// If it is no such file. A file that was cut off is read up to there, see
    /// [`PerfFile::is_cut`].
    pub fn parse(data: &'b [u8]) -> Result<PerfFile<'b>> {
        Self::of_store(Store::Memory(data), &[], None)
    }

    /// The same for a file that is read piece by piece. `scratch` makes a file without a name for
    /// unpacked records, if there are any.
    ///
    /// # Errors
    ///
    /// As [`PerfFile::parse`].
    pub fn of_file(file: &'b File, scratch: &dyn Fn() -> io::Result<File>) -> Result<PerfFile<'b>> {
        Self::of_files(file, &[], scratch)
    }

    /// The same with the files of perf's threads (`perf record --threads`), which have no headers;
    /// their records are copied into what `scratch` makes.
    ///
    /// # Errors
    ///
    /// As [`PerfFile::parse`].
    pub fn of_files(
        file: &'b File,
        of_threads: &[File],
        scratch: &dyn Fn() -> io::Result<File>,
    ) -> Result<PerfFile<'b>> {
        let of_threads: Vec<Store<'_>> = of_threads.iter().map(Store::of_file).collect::<Result<_>>()?;
        Self::of_store(Store::of_file(file)?, &of_threads, Some(scratch))
    }

    fn of_store(store: Store<'b>, of_threads: &[Store<'_>], scratch: Option<Scratch<'_>>) -> Result<PerfFile<'b>> {
        let mut file = PerfFile {
            store,
            spool: None,
            attributes: Vec::new(),
            by_id: HashMap::new(),
            about: About::default(),
            found: Vec::new(),
            groups: Groups::default(),
            ignored: BTreeMap::new(),
            has_losses: false,
            cut: false,
            record: Vec::new(),
        };
        let mut header = vec![0; HEADER];
        let read = file.store.read(0, &mut header)?;
        header.truncate(read);
        if header.is_empty() {
            return Err(FileError::Empty);
        }
        if !header.starts_with(&MAGIC) {
            return Err(match header.starts_with(&SWAPPED_MAGIC) {
                true => FileError::ByteOrder,
                false => FileError::NoPerfData,
            });
        }
        let header = Bytes::new(&header, ENDIAN);
        let (begin, end) = match header.u64(8)? {
            PIPE_HEADER => (PIPE_HEADER, file.store.len()),
            _ => file.read_header(header)?,
        };
        let length = of_threads
            .iter()
            .map(Store::len)
            .fold(file.store.len(), u64::saturating_add);
        let spooling = Spooling { scratch, length };
        file.scan(None, begin..end, spooling)?;
        for store in of_threads {
            file.scan(Some(store), 0..store.len(), spooling)?;
        }
        if let Some(spool) = &mut file.spool {
            spool.write()?;
        }
        // Each CPU's are in order, but not all together.
        file.found.sort_by_key(|found| found.time);
        if file.attributes.is_empty() {
            return Err(FileError::Damaged(begin));
        }
        Ok(file)
    }

    /// Reads the header of a file that is not from a pipe, and returns where records begin and end.
    fn read_header(&mut self, header: Bytes<'_>) -> Result<(u64, u64)> {
        let each = header.u64(16)?;
        let attributes = self.store.part(header.u64(24)?, header.u64(32)?)?;
        let (begin, size) = (header.u64(40)?, header.u64(48)?);
        let end = begin.checked_add(size).ok_or(FileError::Damaged(40))?;
        // An attribute, then where its ids are.
        const IDS: usize = 16;
        let each = usize::try_from(each).ok().filter(|&each| each >= LEAST_ATTRIBUTE + IDS);
        let each = each.ok_or(FileError::Damaged(16))?;
        for chunk in attributes.chunks_exact(each) {
            let (attribute, ids) = chunk.split_at(each - IDS);
            let ids = Bytes::new(ids, ENDIAN);
            let ids = self.store.part(ids.u64(0)?, ids.u64(8)?)?;
            self.add_event(attribute, &ids);
        }
        if self.attributes.is_empty() {
            return Err(FileError::Damaged(24));
        }
        // perf writes the size when it ends.
        if size == 0 && self.store.len() > begin {
            self.cut = true;
            return Ok((begin, self.store.len()));
        }
        self.read_features(header, end);
        Ok((begin, end))
    }

    fn add_event(&mut self, attribute: &[u8], ids: &[u8]) {
        let number = self.attributes.len() as u16;
        if number > EVENT {
            return;
        }
        self.attributes.push(Attribute::of(attribute));
        for id in ids.as_chunks::<8>().0 {
            self.by_id.insert(u64::from_ne_bytes(*id), number);
        }
    }

    /// What perf noted about the recording.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Whether the file ends in the middle of its records.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Pieces of hardware traces (Intel PT and the like), which are not read.
    pub fn hardware_traces(&self) -> u64 {
        self.ignored.get(&record_type::AUXTRACE).copied().unwrap_or(0)
    }

    /// The most bytes of stack that a sample has.
    pub fn stack_bytes(&self) -> u32 {
        let bytes = self.attributes.iter().map(|attribute| attribute.stack_bytes);
        bytes.max().unwrap_or(0)
    }

    /// The events that have samples, in the order in which perf was asked for them.
    pub fn events(&self) -> Vec<Event> {
        let mut samples = vec![0; self.attributes.len()];
        for found in self.found.iter().filter(|found| found.event & IS_SAMPLE != 0) {
            samples[usize::from(found.event & EVENT)] += 1;
        }
        let events = samples.into_iter().enumerate().filter(|&(_, samples)| samples > 0);
        let events = events.map(|(number, samples)| Event {
            name: self.event_name(number),
            number: number as u16,
            samples,
            clock: self.attributes[number].clock(),
        });
        events.collect()
    }

    fn event_name(&self, number: usize) -> String {
        let noted = self.about.events.get(number).filter(|name| !name.is_empty());
        noted.map_or_else(|| self.attributes[number].name(), Clone::clone)
    }

    /// Leaves out the samples of all other events than those with these numbers.
    pub fn retain(&mut self, is_wanted: impl FnMut(u16) -> bool) {
        let numbers = 0..self.attributes.len() as u16;
        let wanted: Vec<bool> = numbers.map(is_wanted).collect();
        let is_kept = |event: u16| event & (IS_SAMPLE | IS_LOSS) == 0 || wanted[usize::from(event & EVENT)];
        self.found.retain(|found| is_kept(found.event));
    }

    /// The CPUs of the records, in ascending order.
    pub fn cpus(&self) -> Vec<u32> {
        let mut cpus: Vec<u32> = self.found.iter().map(|found| found.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The record with this number, in the order of times; `None` if it is damaged.
    pub fn record(&mut self, number: usize) -> Option<Timed<'_>> {
        let found = *self.found.get(number)?;
        self.record.resize(found.length.into(), 0);
        let read = match (&self.spool, found.offset & UNPACKED) {
            (Some(spool), UNPACKED) => spool.read(found.offset & !UNPACKED, &mut self.record),
            _ => self.store.read(found.offset, &mut self.record),
        };
        if read != Ok(self.record.len()) {
            return None;
        }
        let record = self.decode(&found).ok()?;
        Some(Timed {
            time: found.time,
            cpu: found.cpu,
            record,
        })
    }

    /// Reads the features after the records; damaged ones are left out.
    fn read_features(&mut self, header: Bytes<'_>, behind: u64) {
        let mut section_at = behind;
        for bit in 0..256_u64 {
            let word = header.u64((FEATURES + 8 * (bit / 64)) as usize).unwrap_or(0);
            if word & 1 << (bit % 64) == 0 {
                continue;
            }
            let section = self.store.part(section_at, 16).ok().and_then(|section| {
                let section = Bytes::new(&section, ENDIAN);
                self.store.part(section.u64(0).ok()?, section.u64(8).ok()?).ok()
            });
            section_at = section_at.saturating_add(16);
            self.about.read(bit, &section.unwrap_or_default());
        }
    }

    /// Finds the records in a part of the file, or of another one, from which they are copied.
    fn scan(&mut self, other: Option<&Store<'_>>, part: Range<u64>, spooling: Spooling<'_>) -> Result<()> {
        let mut window = Window::default();
        let mut unpacking: Option<Unpacking> = None;
        let mut at = part.start;
        while at < part.end {
            let header = window.bytes(other.unwrap_or(&self.store), at, RECORD_HEADER)?;
            let length = header.and_then(|header| Bytes::new(header, ENDIAN).u16(6).ok());
            let Some(length) = length.map(usize::from).filter(|&length| length >= RECORD_HEADER) else {
                self.cut = true;
                break;
            };
            let Some(record) = window.bytes(other.unwrap_or(&self.store), at, length)? else {
                self.cut = true;
                break;
            };
            let bytes = Bytes::new(record, ENDIAN);
            let kind = bytes.u32(0)?;
            if let Some(packed) = packed(kind, bytes) {
                self.spool(spooling)?;
                let unpacking = unpacking.get_or_insert_with(Unpacking::new);
                unpacking.unpacker.add(packed, &mut unpacking.bytes)?;
                self.take_unpacked(&mut unpacking.bytes)?;
            } else if other.is_some() {
                let offset = self.spool(spooling)?.append(record)?;
                self.take(bytes, offset | UNPACKED);
            } else {
                self.take(bytes, at);
            }
            at = at
                .saturating_add(length as u64)
                .saturating_add(bytes_behind(kind, bytes));
        }
        if let Some(mut unpacking) = unpacking {
            self.cut |= !unpacking.unpacker.end(&mut unpacking.bytes);
            self.take_unpacked(&mut unpacking.bytes)?;
            self.cut |= !unpacking.bytes.is_empty();
        }
        Ok(())
    }

    /// Where records are copied to.
    fn spool(&mut self, spooling: Spooling<'_>) -> Result<&mut Spool> {
        let spool = match self.spool.take() {
            Some(spool) => spool,
            None => {
                let file = spooling.scratch.map(|scratch| scratch()).transpose();
                let file = file.map_err(|error| FileError::Scratch(error.kind()))?;
                Spool::new(file, spooling.length)
            }
        };
        Ok(self.spool.insert(spool))
    }

    /// Takes the whole records among unpacked bytes, and leaves the rest.
    fn take_unpacked(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let mut at = 0;
        while let Some(header) = bytes.get(at..at + RECORD_HEADER) {
            let length = usize::from(Bytes::new(header, ENDIAN).u16(6)?);
            if length < RECORD_HEADER {
                return Err(FileError::Packed);
            }
            let Some(record) = bytes.get(at..at + length) else {
                break;
            };
            let Some(spool) = &mut self.spool else { break };
            let offset = spool.append(record)?;
            self.take(Bytes::new(record, ENDIAN), offset | UNPACKED);
            at += length;
        }
        bytes.drain(..at);
        Ok(())
    }

    /// Takes the next record.
    fn take(&mut self, record: Bytes<'_>, offset: u64) {
        let Ok(kind) = record.u32(0) else { return };
        let all = record.slice(0, record.len()).unwrap_or_default();
        let body = all.get(RECORD_HEADER..).unwrap_or_default();
        match kind {
            record_type::HEADER_ATTR => {
                let size = Bytes::new(body, ENDIAN).u32(4).unwrap_or(0) as usize;
                if let Some((attribute, ids)) = body.split_at_checked(size.max(LEAST_ATTRIBUTE)) {
                    self.add_event(attribute, ids);
                }
            }
            record_type::HEADER_BUILD_ID => self.about.read_build_ids(all),
            record_type::HEADER_FEATURE => {
                if let Ok(feature) = record.u64(RECORD_HEADER) {
                    self.about.read(feature, body.get(8..).unwrap_or_default());
                }
            }
            kind if kind >= record_type::USER => *self.ignored.entry(kind).or_default() += 1,
            kind => {
                if matches!(kind, record_type::MMAP | record_type::MMAP2) {
                    self.about.kernel_start = self.about.kernel_start.or_else(|| kernel_start(kind, record));
                }
                if let Some(found) = self.locate(kind, record, offset) {
                    self.has_losses |= found.event & IS_LOSS != 0;
                    self.found.push(found);
                    if found.event & IS_SAMPLE != 0 {
                        self.take_group(record, found);
                    }
                }
            }
        }
    }

    /// Takes a sample once more for each other event that it counts.
    fn take_group(&mut self, record: Bytes<'_>, found: Found) {
        let own = found.event & EVENT;
        let layout = &self.attributes[usize::from(own)];
        for event in self.groups.take(record, found.offset, (own, layout), &self.by_id) {
            self.found.push(Found {
                event: event | IS_SAMPLE,
                ..found
            });
        }
    }

    /// The time, the event and the CPU of a record; `None` before the first event.
    fn locate(&self, kind: u32, record: Bytes<'_>, offset: u64) -> Option<Found> {
        let length = record.len();
        let first = self.attributes.first()?;
        let id = id_at(first, kind, length).and_then(|at| record.u64(at).ok());
        let event = id.and_then(|id| self.by_id.get(&id).copied()).unwrap_or(0);
        let layout = self.attributes[usize::from(event)];
        // Bytes before the time in a sample, and from the time to the end in other records.
        let words = |bits: &[u64]| bits.iter().filter(|&&bit| layout.is_set(bit)).count() * 8;
        let (time, cpu) = if kind == record_type::SAMPLE {
            use sample_type::{ADDR, ID, IDENTIFIER, IP, STREAM_ID, TID, TIME};
            let time = 8 + words(&[IDENTIFIER, IP, TID]);
            (time, time + words(&[TIME, ADDR, ID, STREAM_ID]))
        } else {
            use sample_type::{CPU, ID, IDENTIFIER, STREAM_ID, TIME};
            let from_end = words(&[TIME, ID, STREAM_ID, CPU, IDENTIFIER]);
            let cpu_from_end = words(&[CPU, IDENTIFIER]);
            (length.saturating_sub(from_end), length.saturating_sub(cpu_from_end))
        };
        let has_times = kind == record_type::SAMPLE || layout.has_sample_id;
        let read = |bit: u64, at: usize| {
            let value = record.u64(at).unwrap_or(0);
            if has_times && layout.is_set(bit) { value } else { 0 }
        };
        Some(Found {
            time: read(sample_type::TIME, time),
            offset,
            cpu: read(sample_type::CPU, cpu) as u32,
            length: length as u16,
            event: event
                | match kind {
                    record_type::SAMPLE => IS_SAMPLE,
                    record_type::LOST_SAMPLES => IS_LOSS,
                    _ => 0,
                },
        })
    }

    fn decode(&self, found: &Found) -> backtrail_wire::Result<Record<'_>> {
        let length = self.record.len();
        let bytes = Bytes::new(&self.record, ENDIAN);
        let (kind, misc) = (bytes.u32(0)?, bytes.u16(4)?);
        let event = found.event & EVENT;
        let layout = self.attributes[usize::from(event)];
        if kind == record_type::SAMPLE {
            let counted = self.groups.count(found.offset, event);
            let layout = counted.map_or(layout, |(own, _)| self.attributes[usize::from(own)]);
            let mut sample = sample(bytes.cursor(RECORD_HEADER), event, &layout)?;
            if let Some((_, count)) = counted {
                sample.cause = Cause::Counted { event, count };
            }
            return Ok(Record::Sample(sample));
        }
        let trailer = match layout.has_sample_id {
            true => trailer_bytes(layout.sample_type),
            false => 0,
        };
        let body = bytes.slice(0, length.saturating_sub(trailer))?;
        let body = Bytes::new(body, ENDIAN).cursor(RECORD_HEADER);
        match kind {
            record_type::MMAP => self.old_mapping(misc, body),
            // It counts samples of all events, and perf has noted the same losses by event.
            record_type::LOST if self.has_losses && layout.counts_lost() => Ok(Record::Other),
            // The kernel also marks mappings for events that did not ask for build ids, if another
            // recorder of the same process did; they have inodes all the same.
            record_type::MMAP2 if !layout.has_build_ids => decode_body(kind, misc & !MISC_MMAP_BUILD_ID, body),
            _ => decode_body(kind, misc, body),
        }
    }

    /// A mapping without the file's identity, as old kernels report it; used if perf noted the
    /// file's build id.
    fn old_mapping<'a>(
        &'a self,
        misc: u16,
        mut cursor: backtrail_wire::Cursor<'a>,
    ) -> backtrail_wire::Result<Record<'a>> {
        let (pid, _tid) = (cursor.u32()?, cursor.u32()?);
        let (start, len, file_offset) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let path = cursor.c_str()?;
        let build = self.about.build_ids.get(path);
        // Those of no process are the kernel's.
        let build = build.filter(|_| pid != u32::MAX && misc & MISC_MMAP_DATA == 0);
        Ok(build.map_or(Record::Other, |id| {
            Record::Mapping(Mapping {
                pid,
                start,
                len,
                file_offset,
                build: Build::Id(id),
                path,
            })
        }))
    }
}

/// Where a record has the id of its event: events of which records have none are all alike.
fn id_at(first: &Attribute, kind: u32, length: usize) -> Option<usize> {
    use sample_type::{ADDR, CPU, ID, IDENTIFIER, IP, STREAM_ID, TID, TIME};
    let words = |bits: &[u64]| bits.iter().filter(|&&bit| first.is_set(bit)).count() * 8;
    match (first.is_set(IDENTIFIER), kind == record_type::SAMPLE) {
        (true, true) => Some(RECORD_HEADER),
        (true, false) => length.checked_sub(8),
        (false, _) if !first.is_set(ID) => None,
        (false, true) => Some(RECORD_HEADER + words(&[IP, TID, TIME, ADDR])),
        (false, false) => length.checked_sub(words(&[ID, STREAM_ID, CPU])),
    }
}

/// How records are copied, and the bytes that all files have.
#[derive(Clone, Copy)]
struct Spooling<'s> {
    scratch: Option<Scratch<'s>>,
    length: u64,
}

/// Compressed records that are being unpacked.
struct Unpacking {
    unpacker: Unpacker,
    bytes: Vec<u8>,
}

impl Unpacking {
    fn new() -> Unpacking {
        Unpacking {
            unpacker: Unpacker::new(),
            bytes: Vec::new(),
        }
    }
}

/// The compressed bytes of a record that has such.
fn packed<'a>(kind: u32, record: Bytes<'a>) -> Option<&'a [u8]> {
    match kind {
        record_type::COMPRESSED => record.slice(RECORD_HEADER, record.len() - RECORD_HEADER).ok(),
        // Padded, so its length is noted.
        record_type::COMPRESSED2 => {
            let length = usize::try_from(record.u64(RECORD_HEADER).ok()?).ok()?;
            record.slice(RECORD_HEADER + 8, length).ok()
        }
        _ => None,
    }
}

/// Bytes that follow a record and are not counted in its length.
fn bytes_behind(kind: u32, record: Bytes<'_>) -> u64 {
    match kind {
        record_type::AUXTRACE => record.u64(RECORD_HEADER).unwrap_or(0),
        record_type::TRACING_DATA => {
            let length = record.u32(RECORD_HEADER).unwrap_or(0);
            u64::from(length).next_multiple_of(8)
        }
        _ => 0,
    }
}

/// The address of the kernel's first symbol, if the record maps the kernel: perf writes it where
/// files have their offset.
fn kernel_start(kind: u32, record: Bytes<'_>) -> Option<u64> {
    const KERNEL: &[u8] = b"[kernel.kallsyms]";
    let path = if kind == record_type::MMAP { 40 } else { 72 };
    let is_kernel = record.slice(path, KERNEL.len()).ok()? == KERNEL && record.u32(8).ok()? == u32::MAX;
    let (start, symbol) = (record.u64(16).ok()?, record.u64(32).ok()?);
    is_kernel.then_some(if symbol == 0 { start } else { symbol })
}
