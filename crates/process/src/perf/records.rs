//! The records that the kernel writes (`enum perf_event_type` in `linux/perf_event.h`).

use backtrail_arch::{Arch, Registers};
use backtrail_wire::{Bytes, Cursor, Endian, Result};

use super::constants::{REGS_ABI_64, record_type, sample_type};
use crate::stack::Piece;

/// The `sample_type` to ask for.
pub(super) const SAMPLE_TYPE: u64 = sample_type::IP
    | sample_type::TID
    | sample_type::TIME
    | sample_type::CALLCHAIN
    | sample_type::CPU
    | sample_type::REGS_USER
    | sample_type::STACK_USER;

/// That of the records with deeper parts of stacks. What both kinds have in common is in the same
/// places.
pub(super) const DEEP_SAMPLE_TYPE: u64 =
    sample_type::IP | sample_type::TID | sample_type::TIME | sample_type::CPU | sample_type::RAW;

/// Marks these records: where samples have the length of their call chain, these have their own,
/// and then this.
pub(super) const DEEP_PART: u32 = 0x5354_4b44;

/// Where switches and wakings are sampled too: clocks and switches have different periods, and the
/// raw part is the tracepoint's.
pub(super) const WAITS_SAMPLE_TYPE: u64 = SAMPLE_TYPE | sample_type::PERIOD | sample_type::RAW;

/// Where several events are sampled: each sample, and each other record, has its event's id.
pub(super) const SEVERAL_SAMPLE_TYPE: u64 = SAMPLE_TYPE | sample_type::ID;

const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;
/// `TRACE_FLAG_HARDIRQ`, `TRACE_FLAG_SOFTIRQ`, `TRACE_FLAG_NMI`: the thread was interrupted.
const IN_INTERRUPT: u8 = 0x08 | 0x10 | 0x40;
pub(super) const MISC_MMAP_BUILD_ID: u16 = 1 << 14;
const HEADER: usize = 8;
/// `struct sample_id` for this sample type: pid, tid, time, cpu, reserved.
const SAMPLE_ID: usize = 24;
/// The same with an event's id, after the time.
const SAMPLE_ID_OF_SEVERAL: usize = SAMPLE_ID + 8;
const PROT_EXEC: u32 = 4;
/// Callchain entries from here on are markers (`PERF_CONTEXT_MAX`), not addresses.
const CONTEXT_MARKERS: u64 = -4095i64 as u64;
/// `PERF_CONTEXT_USER`: the program's frames follow.
const CONTEXT_USER: u64 = -512i64 as u64;

/// What identifies a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build<'a> {
    /// Its build id, read by the kernel.
    Id(&'a [u8]),
    /// Device (major, minor) and inode.
    Inode {
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
        /// Inode number.
        inode: u64,
    },
}

/// An executable mapping made by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// The file's identity.
    pub build: Build<'a>,
    /// Path as the kernel prints it; `//anon`, `[vdso]` and the like if it is not a file.
    pub path: &'a [u8],
}

/// The task that a task record describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Parent process.
    pub parent_pid: u32,
    /// The thread that created it.
    pub parent_tid: u32,
}

/// The user state of a sampled thread.
#[derive(Clone, Copy, Debug)]
pub enum UserState<'a> {
    /// A 64-bit program: its registers and a copy of its stack from the stack pointer upwards.
    Native {
        /// Registers.
        registers: Registers,
        /// Stack bytes.
        stack: &'a [u8],
        /// Parts of the stack further outside, from the same moment.
        pieces: &'a [Piece<'a>],
    },
    /// A 64-bit program whose stack was walked in the kernel: its registers, some bytes from the
    /// stack pointer upwards, and the words that the walk has read, by ascending address.
    Walked {
        /// Registers.
        registers: Registers,
        /// Stack bytes.
        stack: &'a [u8],
        /// Addresses, and the words there.
        words: &'a [(u64, u64)],
    },
    /// A program of another word size.
    Foreign,
    /// A kernel thread, or a process that has already given up its memory.
    None,
}

/// Why there is a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// A clock, or a call.
    #[default]
    Time,
    /// One of several events, by its number: of [`Trigger::Counted`](super::Trigger::Counted), or
    /// of [`CallProbes`](super::CallProbes).
    Event(u32),
    /// Of a file of perf: the number of the event, and how often it happened for this sample.
    Counted {
        /// The number of the event.
        event: u16,
        /// How often it happened.
        count: u64,
    },
    /// The thread leaves the CPU.
    Switch,
    /// The thread wakes another one.
    Waking {
        /// The other thread.
        woken: u32,
        /// Whether it is not the thread that does so, but an interrupt that came while it ran.
        interrupt: bool,
    },
}

/// How samples are written, and what wakings look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitsLayout {
    /// The number of the tracepoint; 0 without one.
    pub(super) waking: u64,
    /// Where the number of the woken thread is in its record.
    pub(super) woken_at: usize,
}

/// The numbers of several events, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EventIds(Vec<(u64, u32)>);

impl EventIds {
    /// Samples with this id are of the event with this number.
    pub(super) fn insert(&mut self, id: u64, number: u32) {
        let at = self.0.partition_point(|&(known, _)| known < id);
        self.0.insert(at, (id, number));
    }

    fn number(&self, id: u64) -> Option<u32> {
        let at = self.0.binary_search_by_key(&id, |&(known, _)| known).ok()?;
        self.0.get(at).map(|&(_, number)| number)
    }
}

/// What records of a ring have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout<'i> {
    /// If switches are sampled.
    pub(super) waits: Option<WaitsLayout>,
    /// If several events are sampled.
    pub(super) ids: Option<&'i EventIds>,
}

impl Layout<'_> {
    fn sample_id(self) -> usize {
        sample_id(self.ids.is_some())
    }
}

fn sample_id(has_ids: bool) -> usize {
    match has_ids {
        true => SAMPLE_ID_OF_SEVERAL,
        false => SAMPLE_ID,
    }
}

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Why it was taken.
    pub cause: Cause,
    /// Interrupted instruction, of the kernel or of the program.
    pub ip: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The user state.
    pub user: UserState<'a>,
    /// The call chain as the kernel found it, with its markers.
    pub(super) chain: &'a [u8],
}

impl Sample<'_> {
    /// The kernel's frames, innermost first; none if the program itself was interrupted.
    pub fn kernel_frames(&self) -> impl Iterator<Item = u64> {
        let words = self.chain().take_while(|&word| word != CONTEXT_USER);
        words.filter(|&address| address < CONTEXT_MARKERS)
    }

    /// The program's frames by its chain of frame pointers, innermost first, as the kernel followed
    /// it at the moment of the sample: correct as far as each function keeps a frame pointer, and
    /// at most as long as `kernel.perf_event_max_stack` allows.
    pub fn frame_pointer_chain(&self) -> impl Iterator<Item = u64> {
        let words = self.chain().skip_while(|&word| word != CONTEXT_USER);
        words.filter(|&address| address < CONTEXT_MARKERS)
    }

    #[cfg(test)]
    pub(super) fn for_tests(user: UserState<'_>) -> Sample<'_> {
        Sample {
            cause: Cause::Time,
            ip: 0x10,
            pid: 1,
            tid: 1,
            user,
            chain: &[],
        }
    }

    fn chain(&self) -> impl Iterator<Item = u64> {
        let words = self.chain.as_chunks::<8>().0.iter();
        words.map(|word| u64::from_ne_bytes(*word))
    }
}

/// A record.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// A new executable mapping.
    Mapping(Mapping<'a>),
    /// A thread has a new name.
    Name {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Whether this is because the process started another program.
        exec: bool,
        /// The name.
        name: &'a [u8],
    },
    /// A thread leaves the CPU, or gets it.
    Switch {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Whether it leaves.
        out: bool,
        /// Whether it leaves although it could go on.
        preempted: bool,
    },
    /// A thread or process was created.
    Fork(Task),
    /// A thread ended.
    Exit(Task),
    /// Records (most likely samples) that did not fit into the ring.
    Lost(u64),
    /// The kernel stops sampling for a while, because it takes too much time.
    Throttled,
    /// Anything else.
    Other,
}

/// The time of a record, without decoding all of it; 0 if it is too short to have one.
pub fn time(record: &[u8]) -> u64 {
    time_of(record, false)
}

/// The same where several events may be sampled.
pub(super) fn time_of(record: &[u8], has_ids: bool) -> u64 {
    let bytes = Bytes::new(record, Endian::NATIVE);
    let offset = match bytes.u32(0) {
        // ip, then pid and tid.
        Ok(record_type::SAMPLE) => HEADER + 16,
        _ => record.len().saturating_sub(sample_id(has_ids) - 8),
    };
    bytes.u64(offset).unwrap_or(0)
}

/// A part of a stack beyond the copy of the sample that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeepPart<'a> {
    /// The thread's stack pointer.
    pub(super) sp: u64,
    /// Address of the first byte.
    pub(super) start: u64,
    pub(super) bytes: &'a [u8],
    /// Where these are in the record.
    pub(super) offset: usize,
}

/// Decodes a record with its header, if it is one with a deeper part of a stack.
pub(super) fn deep_part(record: &[u8]) -> Option<DeepPart<'_>> {
    let bytes = Bytes::new(record, Endian::NATIVE);
    if bytes.u32(0).ok()? != record_type::SAMPLE {
        return None;
    }
    let mut cursor = bytes.cursor(HEADER + 32);
    let size = cursor.u32().ok()? as usize;
    if cursor.u32().ok()? != DEEP_PART {
        return None;
    }
    let (sp, start) = (cursor.u64().ok()?, cursor.u64().ok()?);
    let offset = cursor.offset();
    let bytes = cursor.slice(size.checked_sub(20)?).ok()?;
    Some(DeepPart {
        sp,
        start,
        bytes,
        offset,
    })
}

/// Decodes a record with its header.
pub fn decode<'a>(record: &'a [u8], arch: &Arch) -> Result<Record<'a>> {
    decode_as(record, arch, Layout::default())
}

/// The same where records have more.
pub(super) fn decode_as<'a>(record: &'a [u8], arch: &Arch, layout: Layout<'_>) -> Result<Record<'a>> {
    let bytes = Bytes::new(record, Endian::NATIVE);
    let record_type = bytes.u32(0)?;
    let misc = bytes.u16(4)?;
    if record_type == record_type::SAMPLE {
        return sample(bytes.cursor(HEADER), arch, layout).map(Record::Sample);
    }
    if matches!(record_type, record_type::SWITCH | record_type::SWITCH_CPU_WIDE) {
        let mut id = bytes.cursor(record.len().saturating_sub(layout.sample_id()));
        return Ok(Record::Switch {
            pid: id.u32()?,
            tid: id.u32()?,
            out: misc & MISC_SWITCH_OUT != 0,
            preempted: misc & MISC_SWITCH_OUT_PREEMPT != 0,
        });
    }
    let body = bytes.slice(0, record.len().saturating_sub(layout.sample_id()))?;
    decode_body(record_type, misc, Bytes::new(body, Endian::NATIVE).cursor(HEADER))
}

/// Decodes a record that is no sample, from behind its header to before its `struct sample_id`.
pub(super) fn decode_body(record_type: u32, misc: u16, mut cursor: Cursor<'_>) -> Result<Record<'_>> {
    Ok(match record_type {
        record_type::MMAP2 => mapping(&mut cursor, misc)?,
        record_type::COMM => {
            let (pid, tid) = (cursor.u32()?, cursor.u32()?);
            Record::Name {
                pid,
                tid,
                exec: misc & MISC_COMM_EXEC != 0,
                name: cursor.c_str()?,
            }
        }
        record_type::FORK => Record::Fork(task(&mut cursor)?),
        record_type::EXIT => Record::Exit(task(&mut cursor)?),
        record_type::LOST => {
            let _id = cursor.u64()?;
            Record::Lost(cursor.u64()?)
        }
        record_type::LOST_SAMPLES => Record::Lost(cursor.u64()?),
        record_type::THROTTLE => Record::Throttled,
        _ => Record::Other,
    })
}

fn task(cursor: &mut Cursor<'_>) -> Result<Task> {
    let (pid, parent_pid, tid, parent_tid) = (cursor.u32()?, cursor.u32()?, cursor.u32()?, cursor.u32()?);
    Ok(Task {
        pid,
        tid,
        parent_pid,
        parent_tid,
    })
}

fn mapping<'a>(cursor: &mut Cursor<'a>, misc: u16) -> Result<Record<'a>> {
    let (pid, _tid) = (cursor.u32()?, cursor.u32()?);
    let (start, len, file_offset) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let build = if misc & MISC_MMAP_BUILD_ID != 0 {
        let size = usize::from(cursor.u8()?);
        let _reserved = cursor.slice(3)?;
        let id = cursor.slice(20)?;
        Build::Id(id.get(..size).unwrap_or(id))
    } else {
        let (major, minor, inode) = (cursor.u32()?, cursor.u32()?, cursor.u64()?);
        let _generation = cursor.u64()?;
        Build::Inode { major, minor, inode }
    };
    let (protection, _flags) = (cursor.u32()?, cursor.u32()?);
    let path = cursor.c_str()?;
    if protection & PROT_EXEC == 0 {
        return Ok(Record::Other);
    }
    Ok(Record::Mapping(Mapping {
        pid,
        start,
        len,
        file_offset,
        build,
        path,
    }))
}

fn sample<'a>(mut cursor: Cursor<'a>, arch: &Arch, layout: Layout<'_>) -> Result<Sample<'a>> {
    let ip = cursor.u64()?;
    let (pid, tid) = (cursor.u32()?, cursor.u32()?);
    let _time = cursor.u64()?;
    let event = match layout.ids {
        Some(ids) => ids.number(cursor.u64()?),
        None => None,
    };
    let (_cpu, _reserved) = (cursor.u32()?, cursor.u32()?);
    // Clocks count nanoseconds.
    let is_single = layout.waits.is_some() && cursor.u64()? == 1;
    let chain_len = cursor.u64()?;
    let chain = cursor.slice((chain_len as usize).saturating_mul(8))?;
    let mut cause = match event {
        Some(number) => Cause::Event(number),
        None if is_single => Cause::Switch,
        None => Cause::Time,
    };
    if let Some(layout) = layout.waits {
        let len = cursor.u32()? as usize;
        cause = waking(cursor.slice(len)?, layout).unwrap_or(cause);
    }
    let abi = cursor.u64()?;
    let mut registers = Registers::new(0);
    if abi != 0 {
        // In the order of the kernel's numbers.
        let (before_pc, behind_pc) = arch
            .perf
            .general
            .split_at(arch.perf.general.partition_point(|&(bit, _)| bit < arch.perf.pc));
        for &(_, register) in before_pc {
            registers.set(register, cursor.u64()?);
        }
        registers.pc = cursor.u64()?;
        for &(_, register) in behind_pc {
            registers.set(register, cursor.u64()?);
        }
    }
    let stack_size = cursor.u64()? as usize;
    let mut stack = cursor.slice(stack_size)?;
    if stack_size != 0 {
        let valid = cursor.u64()? as usize;
        stack = stack.get(..valid).unwrap_or(stack);
    }
    let user = match abi {
        0 => UserState::None,
        REGS_ABI_64 => UserState::Native {
            registers,
            stack,
            pieces: &[],
        },
        _ => UserState::Foreign,
    };
    Ok(Sample {
        cause,
        ip,
        pid,
        tid,
        user,
        chain,
    })
}

/// The waking that a tracepoint's record is of: a common type, flags, then the fields.
fn waking(raw: &[u8], layout: WaitsLayout) -> Option<Cause> {
    let bytes = Bytes::new(raw, Endian::NATIVE);
    let is_waking = layout.waking != 0 && u64::from(bytes.u16(0).ok()?) == layout.waking;
    is_waking.then_some(Cause::Waking {
        woken: bytes.u32(layout.woken_at).ok()?,
        interrupt: bytes.u8(2).ok()? & IN_INTERRUPT != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_move_what_follows_them() {
        let mut ids = EventIds::default();
        ids.insert(90, 1);
        ids.insert(70, 0);
        let layout = Layout {
            ids: Some(&ids),
            ..Layout::default()
        };
        let arch = Arch::native();
        let sample = |id: u64| {
            // ip, pid and tid, time, id, CPU, no chain, no registers, no stack.
            let words = [0x10, 7 << 32 | 5, 33, id, 0, 0, 0, 0];
            let mut record = [record_type::SAMPLE, 72 << 16].map(u32::to_ne_bytes).concat();
            record.extend(words.map(u64::to_ne_bytes).as_flattened());
            record
        };
        for (id, cause) in [(90, Cause::Event(1)), (70, Cause::Event(0)), (80, Cause::Time)] {
            let record = sample(id);
            assert_eq!(time_of(&record, true), 33);
            let Ok(Record::Sample(sample)) = decode_as(&record, arch, layout) else {
                panic!("it is a sample")
            };
            assert_eq!((sample.cause, sample.pid, sample.tid), (cause, 5, 7));
        }
        // An exit: its own fields, then pid and tid, time, id, CPU.
        let mut exit = [record_type::EXIT, 64 << 16].map(u32::to_ne_bytes).concat();
        exit.extend([5_u32, 4, 7, 4].map(u32::to_ne_bytes).as_flattened());
        exit.extend([1_u64, 7 << 32 | 5, 44, 90, 0].map(u64::to_ne_bytes).as_flattened());
        assert_eq!(time_of(&exit, true), 44);
        assert!(matches!(
            decode_as(&exit, arch, layout),
            Ok(Record::Exit(Task { pid: 5, tid: 7, .. }))
        ));
    }

    #[test]
    fn deeper_parts_are_no_samples() {
        let record = |size: u32, mark: u32| {
            let mut record = [record_type::SAMPLE, 80 << 16].map(u32::to_ne_bytes).concat();
            record.extend([1_u64, 2, 3, 4].map(u64::to_ne_bytes).as_flattened());
            record.extend([size, mark].map(u32::to_ne_bytes).as_flattened());
            record.extend([0x7000_u64, 0x7800, 5].map(u64::to_ne_bytes).as_flattened());
            record
        };
        let bytes = 5_u64.to_ne_bytes();
        let part = DeepPart {
            sp: 0x7000,
            start: 0x7800,
            bytes: &bytes,
            offset: 64,
        };
        assert_eq!(deep_part(&record(28, DEEP_PART)), Some(part));
        assert_eq!(time(&record(28, DEEP_PART)), 3);
        // The length of a chain, damaged lengths, and records that end early.
        for other in [record(28, 0), record(19, DEEP_PART), record(29, DEEP_PART)] {
            assert_eq!(deep_part(&other), None);
        }
        let whole = record(28, DEEP_PART);
        assert!((0..whole.len()).all(|len| deep_part(&whole[..len]).is_none()));
    }
}
