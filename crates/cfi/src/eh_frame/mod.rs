//! Converts call frame information (`.eh_frame`; LSB 5.0, section 10.6, and DWARF 5, section 6.4)
//! to SFrame rows.
//!
//! SFrame restores three registers: the stack pointer (by the CFA), the frame pointer and the
//! program counter. Only those columns of an FDE matter, and a row that equals the row before in
//! them is left out. If rows cannot express a rule, the code under it becomes a gap: the function
//! is split around it, and the gap is reported with its reason. The rest of the function is kept.

pub(crate) mod augmentation;
mod converted;
mod converter;
pub mod debug_frame;
pub(crate) mod evaluate;
pub(crate) mod expression;
mod initial;
mod pieces;
mod reason;
mod rule;
mod section;
mod sign_state;

use backtrail_arch::Cpu;
use std::panic::resume_unwind;
use std::thread;

use backtrail_elf::budget::Budget;
use backtrail_wire::Bytes;

pub use backtrail_sframe::write::FunctionRows;
pub use converted::Converted;
pub(crate) use converted::{MAX_ENTRY_BYTES, end_of};
use converter::Converter;
pub(crate) use converter::Prepared;
pub use reason::{Error, ErrorKind, Reason, Skipped};
pub use section::{EhFrame, search_table};
pub(crate) use section::{MAX_CIE_BYTES, Storage, bases, fdes};

use crate::reader::run_time;

/// Converts a whole section. Never panics; time and memory are bounded by a multiple of the
/// section's length.
///
/// A large section is converted by as many threads as there are CPUs, at most four; the result is
/// the same.
pub fn convert(input: &EhFrame<'_>) -> Converted {
    convert_within(input, Budget::unlimited())
}

/// The same for a file with a budget. What exceeds that is left out.
pub(crate) fn convert_within(input: &EhFrame<'_>, budget: &Budget) -> Converted {
    let (offsets, damage) = fdes(Bytes::new(input.data, input.endian));
    let endian = run_time(input.endian);
    let normalized = augmentation::normalize(Bytes::new(input.data, input.endian), input.arch.cpu);
    let mut section = gimli::EhFrame::new(&normalized.data, endian);
    section.set_address_size(input.arch.pointer_bytes);
    if input.arch.cpu == Cpu::Aarch64 {
        section.set_vendor(gimli::Vendor::AArch64);
    }
    let prepared = Prepared {
        section,
        key_b: &normalized.key_b,
        bases: bases(input),
        code: &input.code,
        arch: input.arch,
        budget,
    };
    let converter = || Converter::new(&prepared);
    let share = offsets.len().div_ceil(threads(offsets.len())).max(1);
    let mut shares = offsets.chunks(share);
    let first = shares.next().unwrap_or_default();
    let settled = thread::scope(|scope| {
        let spawn = |offsets| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || converter().convert(offsets));
            thread.map_err(|_| offsets)
        };
        let others: Vec<_> = shares.map(spawn).collect();
        let mut all = converter().convert(first);
        for other in others {
            all.append(match other {
                Ok(other) => other.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // The system has no more threads.
                Err(offsets) => converter().convert(offsets),
            });
        }
        all.settle()
    });
    settled.with_damage(damage)
}

/// The number of threads for this number of FDEs.
fn threads(fdes: usize) -> usize {
    const WORTH_A_THREAD: usize = 8192;
    const MOST: usize = 4;
    let cpus = || thread::available_parallelism().map_or(1, usize::from);
    match fdes / WORTH_A_THREAD {
        0 | 1 => 1,
        worth => worth.min(MOST).min(cpus()),
    }
}
