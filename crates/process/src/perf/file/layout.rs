//! Events, and the layout of their records.

use backtrail_arch::{Arch, Registers};
use backtrail_wire::{Bytes, Cursor, Result};

use super::ENDIAN;
use crate::perf::constants::{REGS_ABI_64, sample_type};
use crate::perf::records::{Cause, Sample, UserState};

const BRANCH_COUNTERS: u64 = 1 << 19;
const BRANCH_HW_INDEX: u64 = 1 << 17;
/// Children of threads have the event too.
const INHERIT: u64 = 1 << 1;
/// The kernel adapts the period to a number of samples per second.
const FREQUENCY: u64 = 1 << 10;
const SAMPLE_ID_ALL: u64 = 1 << 18;
/// `PERF_FORMAT_LOST`: the kernel counts the samples that each event loses.
const READ_LOST: u64 = 1 << 4;
const BUILD_ID: u64 = 1 << 34;

/// Bytes of the first version of `struct perf_event_attr`.
pub(super) const LEAST_ATTRIBUTE: usize = 64;

/// An event and the layout of its records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attribute {
    /// `type` and `config`, which say what is counted.
    pub(super) what: (u32, u64),
    /// How often it happens for one sample; samples per second if that is [adapted](FREQUENCY).
    pub(super) period: u64,
    pub(super) is_adapted: bool,
    pub(super) is_inherited: bool,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) branch_sample_type: u64,
    pub(super) registers: u64,
    pub(super) stack_bytes: u32,
    pub(super) has_sample_id: bool,
    /// Whether mappings have build ids, where the kernel found some.
    pub(super) has_build_ids: bool,
}

impl Attribute {
    /// Reads a `struct perf_event_attr`: older kernels have shorter ones.
    pub(super) fn of(bytes: &[u8]) -> Attribute {
        let bytes = Bytes::new(bytes, ENDIAN);
        let word = |offset: usize| bytes.u64(offset).unwrap_or(0);
        Attribute {
            what: (word(0) as u32, word(8)),
            period: word(16),
            is_adapted: word(40) & FREQUENCY != 0,
            is_inherited: word(40) & INHERIT != 0,
            sample_type: word(24),
            read_format: word(32),
            branch_sample_type: word(72),
            registers: word(80),
            stack_bytes: word(88) as u32,
            has_sample_id: word(40) & SAMPLE_ID_ALL != 0,
            has_build_ids: word(40) & BUILD_ID != 0,
        }
    }

    pub(super) fn is_set(&self, bit: u64) -> bool {
        self.sample_type & bit != 0
    }

    /// Samples per second of CPU time, if the event is a clock that takes samples. One without a
    /// period is counted by those of another event.
    pub(super) fn clock(&self) -> Option<u64> {
        const SOFTWARE: u32 = 1;
        const CLOCKS: [u64; 2] = [0, 1];
        let (kind, config) = self.what;
        let frequency = match self.is_adapted {
            true => self.period,
            false => 1_000_000_000_u64.checked_div(self.period).unwrap_or(0),
        };
        (kind == SOFTWARE && CLOCKS.contains(&config) && self.period != 0).then_some(frequency)
    }

    /// Whether perf wrote at its end how many samples the event lost.
    pub(super) fn counts_lost(&self) -> bool {
        self.read_format & READ_LOST != 0
    }

    /// The name of the event, if the file has none.
    pub(super) fn name(&self) -> String {
        const HARDWARE: [&str; 10] = [
            "cycles",
            "instructions",
            "cache-references",
            "cache-misses",
            "branches",
            "branch-misses",
            "bus-cycles",
            "stalled-cycles-frontend",
            "stalled-cycles-backend",
            "ref-cycles",
        ];
        const SOFTWARE: [&str; 11] = [
            "cpu-clock",
            "task-clock",
            "page-faults",
            "context-switches",
            "cpu-migrations",
            "minor-faults",
            "major-faults",
            "alignment-faults",
            "emulation-faults",
            "dummy",
            "bpf-output",
        ];
        let (kind, config) = self.what;
        let known = match kind {
            0 => HARDWARE.get(config as usize),
            1 => SOFTWARE.get(config as usize),
            _ => None,
        };
        known.map_or_else(|| format!("{kind}:{config:#x}"), |name| (*name).to_owned())
    }
}

/// Bytes of `struct sample_id` at the end of records that are no samples.
pub(super) fn trailer_bytes(sample_type: u64) -> usize {
    use sample_type::{CPU, ID, IDENTIFIER, STREAM_ID, TID, TIME};
    let bits = [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER];
    bits.iter().filter(|&&bit| sample_type & bit != 0).count() * 8
}

/// Decodes a sample after its header.
pub(super) fn sample<'a>(mut cursor: Cursor<'a>, event: u16, layout: &Attribute) -> Result<Sample<'a>> {
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
    ] {
        word(&mut cursor, bit)?;
    }
    let count = match (is_set(sample_type::PERIOD), layout.is_adapted) {
        (true, _) => cursor.u64()?,
        (false, true) => 1,
        (false, false) => layout.period.max(1),
    };
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
        // Registers alone lead no further, but there may be a call chain: perf adds the link
        // register to chains of AArch64.
        user = match abi {
            _ if !is_set(sample_type::STACK_USER) => UserState::None,
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
        cause: Cause::Counted { event, count },
        ip,
        pid,
        tid,
        user,
        chain,
    })
}

/// Skips the values of counters (`PERF_FORMAT_*`).
fn skip_read(cursor: &mut Cursor<'_>, format: u64) -> Result<()> {
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
