//! The sizes and formats of what the program shares with its loader, as in `walk.bpf.c`.

use std::ops::Range;

use backtrail_arch::Arch;

/// Rows of a page of a table.
pub const ROWS: usize = 512;
/// Pages with rows of a table, at most: the first page has the first address of each.
pub const PAGES: usize = 1024;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 8 * ROWS;
/// The most ranges of a process.
pub const RANGES: usize = 128;
/// Bytes of a process's ranges.
pub const PROCESS_BYTES: usize = 24 + RANGES * RANGE_BYTES;
/// Words of the registers that the kernel saves (`struct pt_regs`, `struct user_pt_regs`).
const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 34 } else { 21 };
/// Where, in what the program keeps for each CPU, the timer's period is, in nanoseconds (`u64`).
pub const PERIOD_AT: usize = 0;
/// Where the number of samples is that the timer left out during longer walks (`u64`).
pub const MISSED_AT: usize = 8;
/// Bytes of what the program keeps for each CPU.
pub const STATE_BYTES: usize = 88 + BLOCK * 8 + CACHED * 16 + (24 + 128 * 8) + (24 + REGISTERS * 8 + 256 + 1024 * 16);

/// Words that are read at once.
const BLOCK: usize = 64;
/// Rules of the last look-ups.
const CACHED: usize = 512;
const RANGE_BYTES: usize = 32;

/// Above all addresses of programs.
const NO_ADDRESS: u64 = i64::MAX as u64;

/// Addresses of a process for which a table has rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRange {
    /// The addresses.
    pub addresses: Range<u64>,
    /// Where the table's first address is.
    pub base: u64,
    /// The number of the table.
    pub table: u32,
}

/// The value of a process in the map of processes. Ranges are by ascending address, without
/// overlaps; `None` if they are too many. `generation` is another one for each value, and never 0.
/// `stack_end` is where the first thread's stack began to grow; 0 if that is not known.
pub fn process(arch: &Arch, generation: u32, stack_end: u64, ranges: &[TableRange]) -> Option<Vec<u8>> {
    if ranges.len() > RANGES {
        return None;
    }
    let mut bytes = Vec::with_capacity(PROCESS_BYTES);
    bytes.extend(arch.strip(u64::MAX).to_ne_bytes());
    bytes.extend([generation, 0].map(u32::to_ne_bytes).as_flattened());
    bytes.extend(stack_end.to_ne_bytes());
    for range in ranges {
        let words = [
            range.addresses.start,
            range.addresses.end,
            range.base,
            range.table.into(),
        ];
        bytes.extend(words.map(u64::to_ne_bytes).as_flattened());
    }
    while bytes.len() < PROCESS_BYTES {
        bytes.extend([NO_ADDRESS, 0, 0, 0].map(u64::to_ne_bytes).as_flattened());
    }
    Some(bytes)
}
