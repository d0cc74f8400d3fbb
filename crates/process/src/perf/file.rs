//! Records in a file that perf has written: `perf.data`
//! (`tools/perf/Documentation/perf.data-file-format.txt`).

use std::collections::HashMap;
use std::fmt;

use backtrail_arch::{Arch, Registers};
use backtrail_wire::{Bytes, Cursor, Endian};

use super::constants::{REGS_ABI_64, record_type, sample_type};
use super::records::{Cause, Record, Sample, UserState, decode_body};

/// `PERFILE2`, in the byte order of the machine that wrote it.
const MAGIC: [u8; 8] = *b"PERFILE2";
/// The first bytes of a file that perf wrote to a pipe: the header has only the magic and 16.
const PIPE_HEADER: u64 = 16;
/// Bits of the features that are read (`HEADER_*` in `tools/perf/util/header.h`).
const HEADER_BUILD_ID: u32 = 2;
const HEADER_HOSTNAME: u32 = 3;
const HEADER_OSRELEASE: u32 = 4;
const HEADER_ARCH: u32 = 6;
const HEADER_CMDLINE: u32 = 11;

const BRANCH_COUNTERS: u64 = 1 << 19;
const BRANCH_HW_INDEX: u64 = 1 << 17;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;
const ENDIAN: Endian = Endian::NATIVE;

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileError {
    /// It is not a `perf.data`, or of a machine of the other byte order.
    NoPerfData,
    /// It was written to a pipe.
    Pipe,
    /// Its records are compressed (`perf record -z`).
    Compressed,
    /// It ends before this offset, or the number there makes no sense.
    Damaged(u64),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::NoPerfData => write!(f, "is no perf.data of a machine of this byte order"),
            FileError::Pipe => write!(f, "was written to a pipe, which has another format"),
            FileError::Compressed => write!(f, "has compressed records"),
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

/// What perf noted about the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The machine's name.
    pub hostname: String,
    /// The kernel's release.
    pub kernel: String,
    /// The CPU's name, as `uname -m` prints it.
    pub machine: String,
    /// The command of perf.
    pub command: String,
    /// Build ids by path.
    pub build_ids: HashMap<Vec<u8>, Vec<u8>>,
    /// The address of the kernel's first symbol.
    pub kernel_start: Option<u64>,
}

/// An event and the layout of its records.
#[derive(Clone, Copy, Debug, Default)]
struct Attribute {
    sample_type: u64,
    read_format: u64,
    branch_sample_type: u64,
    registers: u64,
    stack_bytes: u32,
    has_sample_id: bool,
}

/// Where a record is, and when it was written.
#[derive(Clone, Copy, Debug)]
struct Found {
    time: u64,
    offset: u64,
    attribute: u32,
    cpu: u32,
}

/// A `perf.data`, and its records in the order of their times.
#[derive(Debug)]
pub struct PerfFile<'b> {
    bytes: Bytes<'b>,
    attributes: Vec<Attribute>,
    about: About,
    found: Vec<Found>,
    cut: bool,
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

impl<'b> PerfFile<'b> {
    /// Reads the header, and orders the records.
    ///
    /// # Errors
    ///
    /// If it is no such file, or one of a kind that is not read. A file that was cut off is read up
    /// to there, see [`PerfFile::is_cut`].
    pub fn parse(data: &'b [u8]) -> Result<PerfFile<'b>> {
        let bytes = Bytes::new(data, ENDIAN);
        if !data.starts_with(&MAGIC) {
            return Err(FileError::NoPerfData);
        }
        if bytes.u64(8)? == PIPE_HEADER {
            return Err(FileError::Pipe);
        }
        let attribute_size = at(bytes.u64(16)?)?;
        let attributes = section(bytes, 24)?;
        let (records, records_size) = span(bytes, 40)?;
        let mut file = PerfFile {
            bytes,
            attributes: Vec::new(),
            about: About::default(),
            found: Vec::new(),
            cut: false,
        };
        let mut by_id = HashMap::default();
        if attribute_size < 64 + 16 {
            return Err(FileError::Damaged(16));
        }
        for chunk in attributes.chunks_exact(attribute_size) {
            let number = file.attributes.len() as u32;
            let attribute = Bytes::new(chunk, ENDIAN);
            let word = |offset: usize| attribute.u64(offset).unwrap_or(0);
            // Older kernels have shorter attributes: what follows them is not part of it.
            let own = |offset: usize| if offset + 24 <= chunk.len() { word(offset) } else { 0 };
            file.attributes.push(Attribute {
                sample_type: word(24),
                read_format: word(32),
                branch_sample_type: own(72),
                registers: own(80),
                stack_bytes: own(88) as u32,
                has_sample_id: word(40) & SAMPLE_ID_ALL != 0,
            });
            let (ids, size) = (at(word(chunk.len() - 16))?, at(word(chunk.len() - 8))?);
            for id in bytes.slice(ids, size)?.as_chunks::<8>().0 {
                by_id.insert(u64::from_ne_bytes(*id), number);
            }
        }
        if file.attributes.is_empty() {
            return Err(FileError::Damaged(24));
        }
        file.read_features(records + records_size);
        file.order(records, records_size, &by_id)?;
        Ok(file)
    }

    /// What perf noted about the recording.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Whether the file ends in the middle of its records.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The most bytes of stack that a sample has.
    pub fn stack_bytes(&self) -> u32 {
        let bytes = self.attributes.iter().map(|attribute| attribute.stack_bytes);
        bytes.max().unwrap_or(0)
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
    pub fn record(&self, number: usize) -> Option<Timed<'b>> {
        let found = self.found.get(number)?;
        let record = self.decode(found).ok()?;
        Some(Timed {
            time: found.time,
            cpu: found.cpu,
            record,
        })
    }

    /// Finds the features behind the records; damaged ones are left out.
    fn read_features(&mut self, behind: usize) {
        let bytes = self.bytes;
        let mut section_at = behind;
        for bit in 0..256_u32 {
            let word = bytes.u64(72 + 8 * (bit / 64) as usize).unwrap_or(0);
            if word & 1 << (bit % 64) == 0 {
                continue;
            }
            let content = section(bytes, section_at).unwrap_or_default();
            section_at += 16;
            let text = || feature_text(content, 0).map(|(text, _)| text).unwrap_or_default();
            match bit {
                HEADER_BUILD_ID => self.read_build_ids(content),
                HEADER_HOSTNAME => self.about.hostname = text(),
                HEADER_OSRELEASE => self.about.kernel = text(),
                HEADER_ARCH => self.about.machine = text(),
                HEADER_CMDLINE => self.about.command = command_line(content).unwrap_or_default(),
                _ => {}
            }
        }
    }

    fn read_build_ids(&mut self, content: &[u8]) {
        let mut rest = content;
        while let Some((entry, after)) = build_id_entry(rest) {
            rest = after;
            if let Some((path, id)) = entry {
                self.about.build_ids.insert(path, id);
            }
        }
    }

    /// Finds all records, and orders them by time: each CPU's are in order, but not all together.
    fn order(&mut self, records: usize, size: usize, by_id: &HashMap<u64, u32>) -> Result<()> {
        let mut at = records;
        let end = records.saturating_add(size);
        while at < end {
            let Ok(length) = self.bytes.u16(at + 6) else {
                self.cut = true;
                break;
            };
            let length = usize::from(length);
            let whole = self.bytes.slice(at, length).ok().filter(|_| length >= 8);
            let Some(record) = whole else {
                self.cut = true;
                break;
            };
            let record = Bytes::new(record, ENDIAN);
            let kind = record.u32(0)?;
            match kind {
                record_type::COMPRESSED | record_type::COMPRESSED2 => return Err(FileError::Compressed),
                // The trace follows the record.
                record_type::AUXTRACE => {
                    let more = record.u64(8).ok().and_then(|more| usize::try_from(more).ok());
                    at = at.saturating_add(more.unwrap_or(usize::MAX - end));
                }
                kind if kind < record_type::USER => {
                    if matches!(kind, record_type::MMAP | record_type::MMAP2) {
                        self.about.kernel_start = self.about.kernel_start.or_else(|| kernel_start(kind, record));
                    }
                    let found = self.locate(kind, record, at as u64, length, by_id);
                    self.found.push(found);
                }
                _ => {}
            }
            at = at.saturating_add(length);
        }
        self.found.sort_by_key(|found| found.time);
        Ok(())
    }

    /// The time, the event and the CPU of a record.
    fn locate(&self, kind: u32, record: Bytes<'b>, offset: u64, length: usize, by_id: &HashMap<u64, u32>) -> Found {
        let first = self.attributes[0];
        let id = match (first.sample_type & sample_type::IDENTIFIER != 0, kind) {
            (false, _) => None,
            (true, record_type::SAMPLE) => record.u64(8).ok(),
            (true, _) => record.u64(length.saturating_sub(8)).ok(),
        };
        let attribute = id.and_then(|id| by_id.get(&id).copied()).unwrap_or(0);
        let layout = self.attributes[attribute as usize];
        let is_set = |bit: u64| layout.sample_type & bit != 0;
        // Bytes before the time in a sample, and from the time to the end in other records.
        let words = |bits: &[u64]| bits.iter().filter(|&&bit| is_set(bit)).count() * 8;
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
            if has_times && is_set(bit) { value } else { 0 }
        };
        Found {
            time: read(sample_type::TIME, time),
            offset,
            attribute,
            cpu: read(sample_type::CPU, cpu) as u32,
        }
    }

    fn decode(&self, found: &Found) -> backtrail_wire::Result<Record<'b>> {
        let start = found.offset as usize;
        let length = usize::from(self.bytes.u16(start + 6)?);
        let record = self.bytes.slice(start, length)?;
        let bytes = Bytes::new(record, ENDIAN);
        let (kind, misc) = (bytes.u32(0)?, bytes.u16(4)?);
        let layout = self.attributes[found.attribute as usize];
        if kind == record_type::SAMPLE {
            return sample(bytes.cursor(8), &layout).map(Record::Sample);
        }
        // mmap without the file's identity: only the kernel's own is left in today's files.
        if kind == record_type::MMAP {
            return Ok(Record::Other);
        }
        let trailer = match layout.has_sample_id {
            true => trailer_bytes(layout.sample_type),
            false => 0,
        };
        let body = bytes.slice(0, length.saturating_sub(trailer))?;
        decode_body(kind, misc, Bytes::new(body, ENDIAN).cursor(8))
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

/// Bytes of `struct sample_id` at the end of records that are no samples.
fn trailer_bytes(sample_type: u64) -> usize {
    use sample_type::{CPU, ID, IDENTIFIER, STREAM_ID, TID, TIME};
    let bits = [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER];
    bits.iter().filter(|&&bit| sample_type & bit != 0).count() * 8
}

fn sample<'a>(mut cursor: Cursor<'a>, layout: &Attribute) -> backtrail_wire::Result<Sample<'a>> {
    let is_set = |bit: u64| layout.sample_type & bit != 0;
    let word = |cursor: &mut Cursor<'a>, bit: u64| match is_set(bit) {
        true => cursor.u64(),
        false => Ok(0),
    };
    word(&mut cursor, sample_type::IDENTIFIER)?;
    let ip = word(&mut cursor, sample_type::IP)?;
    let (pid, tid) = match is_set(sample_type::TID) {
        true => (cursor.u32()?, cursor.u32()?),
        false => (0, 0),
    };
    for bit in [
        sample_type::TIME,
        sample_type::ADDR,
        sample_type::ID,
        sample_type::STREAM_ID,
        sample_type::CPU,
        sample_type::PERIOD,
    ] {
        word(&mut cursor, bit)?;
    }
    if is_set(sample_type::READ) {
        skip_read(&mut cursor, layout.read_format)?;
    }
    let mut chain: &[u8] = &[];
    if is_set(sample_type::CALLCHAIN) {
        let count = cursor.u64()?;
        chain = cursor.slice((count as usize).saturating_mul(8))?;
    }
    if is_set(sample_type::RAW) {
        let size = cursor.u32()? as usize;
        cursor.slice(size)?;
    }
    if is_set(sample_type::BRANCH_STACK) {
        let count = cursor.u64()? as usize;
        if layout.branch_sample_type & BRANCH_HW_INDEX != 0 {
            cursor.u64()?;
        }
        let counters = layout.branch_sample_type & BRANCH_COUNTERS != 0;
        cursor.slice(count.saturating_mul(if counters { 32 } else { 24 }))?;
    }
    let mut user = UserState::None;
    if is_set(sample_type::REGS_USER) {
        let abi = cursor.u64()?;
        let mut registers = Registers::new(0);
        if abi != 0 {
            let arch = Arch::native();
            for bit in (0..64).filter(|bit| layout.registers & 1 << bit != 0) {
                let value = cursor.u64()?;
                if bit == arch.perf.pc {
                    registers.pc = value;
                } else if let Some(&(_, register)) = arch.perf.general.iter().find(|(known, _)| *known == bit) {
                    registers.set(register, value);
                }
            }
        }
        let mut stack: &[u8] = &[];
        if is_set(sample_type::STACK_USER) {
            let size = cursor.u64()? as usize;
            stack = cursor.slice(size)?;
            if size != 0 {
                let valid = cursor.u64()? as usize;
                stack = stack.get(..valid).unwrap_or(stack);
            }
        }
        user = match abi {
            0 => UserState::None,
            REGS_ABI_64 => UserState::Native {
                registers,
                stack,
                pieces: &[],
            },
            _ => UserState::Foreign,
        };
    }
    Ok(Sample {
        cause: Cause::Time,
        ip,
        pid,
        tid,
        user,
        chain,
    })
}

/// Skips the values of counters (`PERF_FORMAT_*`).
fn skip_read(cursor: &mut Cursor<'_>, format: u64) -> backtrail_wire::Result<()> {
    let is_set = |bit: u32| usize::from(format & 1 << bit != 0);
    let (times, each) = (is_set(0) + is_set(1), 1 + is_set(2) + is_set(4));
    let words = match is_set(3) {
        0 => times + each,
        _ => {
            let count = cursor.u64()? as usize;
            times.saturating_add(count.saturating_mul(each))
        }
    };
    cursor.slice(words.saturating_mul(8)).map(|_| ())
}

fn at(offset: u64) -> Result<usize> {
    usize::try_from(offset).map_err(|_| FileError::Damaged(offset))
}

/// Offset and size of a section.
fn span(bytes: Bytes<'_>, offset: usize) -> Result<(usize, usize)> {
    let (start, size) = (at(bytes.u64(offset)?)?, at(bytes.u64(offset + 8)?)?);
    match start.checked_add(size) {
        Some(_) => Ok((start, size)),
        None => Err(FileError::Damaged(offset as u64)),
    }
}

fn section(bytes: Bytes<'_>, offset: usize) -> Result<&[u8]> {
    let (start, size) = span(bytes, offset)?;
    Ok(bytes.slice(start, size)?)
}

/// A text with its length before it, which includes padding, and the offset of what follows.
fn feature_text(content: &[u8], offset: usize) -> Option<(String, usize)> {
    let bytes = Bytes::new(content, ENDIAN);
    let length = bytes.u32(offset).ok()? as usize;
    let text = bytes.slice(offset + 4, length).ok()?;
    let text = text.split(|&byte| byte == 0).next()?;
    Some((String::from_utf8_lossy(text).into_owned(), offset + 4 + length))
}

fn command_line(content: &[u8]) -> Option<String> {
    let count = Bytes::new(content, ENDIAN).u32(0).ok()?;
    let mut offset = 4;
    let mut words = Vec::new();
    for _ in 0..count {
        let (word, after) = feature_text(content, offset)?;
        words.push(word);
        offset = after;
    }
    Some(words.join(" "))
}

/// Path and build id.
type BuildIdEntry = (Vec<u8>, Vec<u8>);

/// The first entry of a list of build ids, if it makes sense, and what follows it.
fn build_id_entry(content: &[u8]) -> Option<(Option<BuildIdEntry>, &[u8])> {
    const PATH: usize = 36;
    let bytes = Bytes::new(content, ENDIAN);
    let (misc, length) = (bytes.u16(4).ok()?, usize::from(bytes.u16(6).ok()?));
    let (entry, rest) = content.split_at_checked(length.max(8))?;
    let size = match misc & MISC_BUILD_ID_SIZE {
        0 => 20,
        _ => usize::from(*entry.get(32)?).min(20),
    };
    let read = || {
        let id = entry.get(12..12 + size)?.to_vec();
        let path = entry.get(PATH..)?.split(|&byte| byte == 0).next()?;
        Some((path.to_vec(), id))
    };
    Some((read(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::Mapping;

    const IDS: [u64; 2] = [77, 78];
    const TYPE: u64 = sample_type::IDENTIFIER
        | sample_type::IP
        | sample_type::TID
        | sample_type::TIME
        | sample_type::CPU
        | sample_type::PERIOD
        | sample_type::CALLCHAIN
        | sample_type::REGS_USER
        | sample_type::STACK_USER;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut record = kind.to_ne_bytes().to_vec();
        record.extend(misc.to_ne_bytes());
        record.extend((8 + body.len() as u16).to_ne_bytes());
        record.extend(body);
        record
    }

    /// `struct sample_id`.
    fn trailer(time: u64, cpu: u64) -> Vec<u8> {
        words(&[5 << 32 | 5, time, cpu, IDS[0]])
    }

    fn sample(time: u64, cpu: u64, chain: &[u64], stack: &[u64]) -> Vec<u8> {
        let mut body = words(&[IDS[1], 0x1234, 6 << 32 | 5, time, cpu, 1]);
        body.extend(words(&[chain.len() as u64]));
        body.extend(words(chain));
        let registers = Arch::native().perf.general.len() + 1;
        body.extend(words(&[REGS_ABI_64]));
        body.extend(words(&vec![9; registers]));
        body.extend(words(&[stack.len() as u64 * 8]));
        body.extend(words(stack));
        body.extend(words(&[stack.len() as u64 * 8 - 8]));
        record(record_type::SAMPLE, 0, &body)
    }

    fn mapping(path: &[u8]) -> Vec<u8> {
        let mut body = words(&[5 << 32 | 5, 0x1000, 0x2000, 0, 3 << 32 | 8, 99, 0, 4]);
        body.extend(path);
        body.resize(body.len().next_multiple_of(8) + 8, 0);
        body.extend(trailer(0, 0));
        record(record_type::MMAP2, 0, &body)
    }

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let mask = Arch::native().perf.general.iter().map(|(bit, _)| *bit);
        let mask = mask
            .chain([Arch::native().perf.pc])
            .fold(0_u64, |mask, bit| mask | 1 << bit);
        const ATTRIBUTE: usize = 128;
        let records = records.concat();
        let (attributes, ids) = (104, 104 + ATTRIBUTE as u64);
        let data = ids + 16;
        let features = data + records.len() as u64;
        let mut build_id = record(0, MISC_BUILD_ID_SIZE, &[]);
        build_id.extend([0; 4]);
        build_id.extend([7; 20]);
        build_id.extend([3, 0, 0, 0]);
        build_id.extend(b"/bin/a\0\0");
        let length = build_id.len() as u16;
        build_id[6..8].copy_from_slice(&length.to_ne_bytes());
        let mut host = 16_u32.to_ne_bytes().to_vec();
        host.extend(b"host\0\0\0\0\0\0\0\0\0\0\0\0");

        let mut bytes = MAGIC.to_vec();
        bytes.extend(words(&[104, ATTRIBUTE as u64, attributes, ATTRIBUTE as u64]));
        bytes.extend(words(&[data, records.len() as u64, 0, 0]));
        bytes.extend(words(&[1 << HEADER_BUILD_ID | 1 << HEADER_HOSTNAME, 0, 0, 0]));
        let mut attribute = words(&[112 << 32 | 1, 0, 1, TYPE, 0, SAMPLE_ID_ALL, 0, 0, 0, 0, mask, 8_192]);
        attribute.resize(ATTRIBUTE - 16, 0);
        attribute.extend(words(&[ids, 16]));
        bytes.extend(attribute);
        bytes.extend(words(&IDS));
        bytes.extend(records);
        let contents = features + 32;
        bytes.extend(words(&[contents, build_id.len() as u64]));
        bytes.extend(words(&[contents + build_id.len() as u64, host.len() as u64]));
        bytes.extend(build_id);
        bytes.extend(host);
        bytes
    }

    fn made_up() -> Vec<u8> {
        let mut comm = words(&[6 << 32 | 5]);
        comm.extend(b"thread\0\0");
        comm.extend(trailer(30, 1));
        file(&[
            sample(40, 1, &[-512_i64 as u64, 0x1234, 0x1300], &[1, 2, 3]),
            mapping(b"/bin/a"),
            record(68, 0, &[]),
            sample(20, 0, &[-128_i64 as u64, 0xffff_ffff_8100_0000], &[4, 5]),
            record(3, 0, &comm),
        ])
    }

    #[test]
    fn records_come_in_the_order_of_their_times() {
        let bytes = made_up();
        let file = PerfFile::parse(&bytes).unwrap();
        assert_eq!((file.len(), file.is_cut(), file.stack_bytes()), (4, false, 8_192));
        assert_eq!(file.cpus(), [0, 1]);
        assert_eq!(file.about().hostname, "host");
        assert_eq!(file.about().build_ids[&b"/bin/a"[..]], [7, 7, 7]);
        let records: Vec<_> = (0..4).map(|number| file.record(number).unwrap()).collect();
        let times: Vec<_> = records.iter().map(|record| (record.time, record.cpu)).collect();
        assert_eq!(times, [(0, 0), (20, 0), (30, 1), (40, 1)]);
        let Record::Mapping(Mapping { path, start, .. }) = records[0].record else {
            panic!("{:?}", records[0])
        };
        assert_eq!((path, start), (&b"/bin/a"[..], 0x1000));
        let Record::Sample(first) = records[1].record else {
            panic!("{:?}", records[1])
        };
        assert!(first.kernel_frames().eq([0xffff_ffff_8100_0000]));
        assert!(matches!(first.user, UserState::Native { stack, .. } if stack == words(&[4])));
        assert!(matches!(
            records[2].record,
            Record::Name {
                tid: 6,
                name: b"thread",
                ..
            }
        ));
        let Record::Sample(last) = records[3].record else {
            panic!("{:?}", records[3])
        };
        assert_eq!((last.ip, last.pid, last.tid), (0x1234, 5, 6));
        assert!(last.frame_pointer_chain().eq([0x1234, 0x1300]));
    }

    #[test]
    fn a_file_that_was_cut() {
        let bytes = made_up();
        let cut = &bytes[..bytes.len() - 200];
        assert!(PerfFile::parse(cut).unwrap().is_cut());
        assert_eq!(PerfFile::parse(b"ELF").unwrap_err(), FileError::NoPerfData);
    }
}
