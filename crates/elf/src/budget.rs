//! What the files of one module may cost: bytes, steps and seconds.
//!
//! Whoever makes a file decides what its headers promise, so a few bytes could ask for gigabytes. A
//! [`Budget`] travels with each opened file ([`FileBytes`](crate::FileBytes)) through everything
//! that reads it. Whoever exceeds it gets an error, loses this module's names or rows, and nothing
//! else. The limits hold for any real file: those of Chromium and libLLVM with all their debug
//! information take less than a tenth.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Longest file that is read at all, in bytes; its parts are limited by [`BYTES`].
const FILE_BYTES: u64 = 64 << 30;
/// Longest file that is read from its first to its last byte: for a checksum.
const WHOLE_BYTES: u64 = 8 << 30;
/// Bytes of a module that may be in memory: read, unpacked, or decoded.
const BYTES: u64 = 6 << 30;
/// Unpacked bytes that any section may have, and how many more for each packed byte: debug
/// information seldom packs to a twentieth.
const UNPACKED_FREELY: u64 = 64 << 20;
const UNPACKED_RATIO: u64 = 64;
/// Entries, symbols and instructions of a module.
const STEPS: u64 = 1 << 32;
/// Symbols of a table.
const SYMBOLS: u64 = 32 << 20;
/// Time for a module, in milliseconds.
const TIME: u64 = 120_000;
/// A longer time between two looks at the clock was spent on something else, in milliseconds.
const IDLE: u64 = 1000;
/// Steps after which the time is looked at.
const STEPS_BETWEEN_CLOCKS: u64 = 1 << 16;

/// What all limits are multiplied with.
static FACTOR: AtomicU32 = AtomicU32::new(1);

/// Multiplies all limits of this process, for files that are larger than any known one. They
/// protect the memory of the process, so they are the same for all its files.
pub fn raise(factor: u32) {
    FACTOR.store(factor.max(1), Ordering::Relaxed);
}

/// What all limits are multiplied with.
pub fn factor() -> u32 {
    FACTOR.load(Ordering::Relaxed)
}

/// The longest time that reading a module may take.
pub fn longest() -> Duration {
    Duration::from_millis(times(TIME))
}

/// The most memory that the contents of a module may take, and the longest file.
pub fn most_bytes() -> (u64, u64) {
    (times(BYTES), times(FILE_BYTES))
}

/// The most bytes that this many packed bytes may expand to.
pub fn most_unpacked(packed: u64) -> u64 {
    times(UNPACKED_FREELY.saturating_add(packed.saturating_mul(UNPACKED_RATIO)))
}

fn now() -> u64 {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    FIRST.elapsed().as_millis() as u64
}

fn times(limit: u64) -> u64 {
    limit.saturating_mul(FACTOR.load(Ordering::Relaxed).into())
}

/// A limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// Length of a file.
    File,
    /// Bytes in memory.
    Bytes,
    /// Size of an unpacked section, in comparison with its packed size.
    Unpacked,
    /// Symbols in a table.
    Symbols,
    /// Steps.
    Steps,
    /// Time.
    Time,
}

const ALL: [Limit; 6] = [
    Limit::File,
    Limit::Bytes,
    Limit::Unpacked,
    Limit::Symbols,
    Limit::Steps,
    Limit::Time,
];

impl Limit {
    /// Its number, from 1.
    pub fn number(self) -> u8 {
        let at = ALL.iter().position(|known| *known == self);
        at.map_or(0, |at| at as u8 + 1)
    }

    /// The limit with this number.
    pub fn of_number(number: u8) -> Option<Limit> {
        ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::File => "the file is longer than the limit",
            Limit::Bytes => "the file's contents need more memory than the limit",
            Limit::Unpacked => "a compressed section expands more than the limit",
            Limit::Symbols => "a symbol table has more symbols than the limit",
            Limit::Steps => "the file takes more steps to read than the limit",
            Limit::Time => "the file takes longer to read than the limit",
        })
    }
}

impl std::error::Error for Limit {}

/// What is left for the files of a module. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Left>);

#[derive(Debug)]
struct Left {
    bytes: AtomicU64,
    steps: AtomicU64,
    /// Milliseconds that are left.
    time: AtomicU64,
    /// When the clock was looked at, in milliseconds since this program's first budget.
    looked: AtomicU64,
    /// The first limit that was exceeded, from 1; 0 if none was.
    exceeded: AtomicU8,
}

impl Default for Budget {
    fn default() -> Self {
        Budget::new()
    }
}

/// That of data in memory, whose size its owner has limited.
static UNLIMITED: LazyLock<Budget> = LazyLock::new(|| {
    Budget(Arc::new(Left {
        bytes: AtomicU64::new(u64::MAX),
        steps: AtomicU64::new(u64::MAX),
        time: AtomicU64::new(u64::MAX),
        looked: AtomicU64::new(0),
        exceeded: AtomicU8::new(0),
    }))
});

impl Budget {
    /// A full one, for a module that begins to be read now.
    pub fn new() -> Budget {
        Budget(Arc::new(Left {
            bytes: AtomicU64::new(times(BYTES)),
            steps: AtomicU64::new(times(STEPS)),
            time: AtomicU64::new(times(TIME)),
            looked: AtomicU64::new(now()),
            exceeded: AtomicU8::new(0),
        }))
    }

    /// One without limits of bytes, steps and time, for data in memory.
    pub fn unlimited() -> &'static Budget {
        &UNLIMITED
    }

    /// The first limit that was exceeded.
    pub fn exceeded(&self) -> Option<Limit> {
        Limit::of_number(self.0.exceeded.load(Ordering::Relaxed))
    }

    /// Takes memory.
    ///
    /// # Errors
    /// If there is not that much left.
    pub fn take(&self, bytes: u64) -> Result<(), Limit> {
        self.in_time()?;
        self.subtract(&self.0.bytes, bytes, Limit::Bytes)
    }

    /// Counts steps that were made or will be, and looks at the clock from time to time.
    ///
    /// # Errors
    /// If there are not that many left, or no time.
    pub fn step(&self, steps: u64) -> Result<(), Limit> {
        let before = self.0.steps.load(Ordering::Relaxed) / STEPS_BETWEEN_CLOCKS;
        self.subtract(&self.0.steps, steps, Limit::Steps)?;
        match before == self.0.steps.load(Ordering::Relaxed) / STEPS_BETWEEN_CLOCKS {
            true => Ok(()),
            false => self.in_time(),
        }
    }

    /// Checks the length of a file of which parts are read.
    pub(crate) fn allows_file(&self, len: u64) -> Result<(), Limit> {
        self.check(len <= times(FILE_BYTES), Limit::File)
    }

    /// Checks the length of a file that is read from its first to its last byte.
    pub(crate) fn allows_whole_file(&self, len: u64) -> Result<(), Limit> {
        self.check(len <= times(WHOLE_BYTES), Limit::File)
    }

    /// Checks the number of symbols of a table.
    pub(crate) fn allows_symbols(&self, symbols: u64) -> Result<(), Limit> {
        self.check(symbols <= times(SYMBOLS), Limit::Symbols)
    }

    /// Takes memory for an unpacked section.
    pub(crate) fn take_unpacked(&self, packed: u64, unpacked: u64) -> Result<(), Limit> {
        self.check(unpacked <= most_unpacked(packed), Limit::Unpacked)?;
        self.take(unpacked)
    }

    /// Counts the steps of a loop.
    pub fn steps(&self) -> Steps<'_> {
        Steps {
            budget: self,
            counted: 0,
            kept: 0,
        }
    }

    fn in_time(&self) -> Result<(), Limit> {
        let now = now();
        let spent = now.saturating_sub(self.0.looked.swap(now, Ordering::Relaxed));
        self.subtract(&self.0.time, if spent > IDLE { 0 } else { spent }, Limit::Time)
    }

    fn subtract(&self, left: &AtomicU64, amount: u64, limit: Limit) -> Result<(), Limit> {
        let next = |left: u64| match left {
            u64::MAX => Some(u64::MAX),
            left => left.checked_sub(amount),
        };
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        self.check(taken.is_ok(), limit)
    }

    fn check(&self, holds: bool, limit: Limit) -> Result<(), Limit> {
        if holds {
            return Ok(());
        }
        let number = limit.number();
        let _ = self
            .0
            .exceeded
            .compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        Err(limit)
    }
}

/// Steps that a loop takes one at a time, and a budget some at a time: threads share budgets.
#[derive(Debug)]
pub struct Steps<'b> {
    budget: &'b Budget,
    counted: u64,
    kept: u64,
}

impl Steps<'_> {
    /// Counts a step, after which this many more bytes are kept.
    ///
    /// # Errors
    /// If the budget has no more of either.
    #[inline]
    pub fn step(&mut self, kept: usize) -> Result<(), Limit> {
        const STEPS: u64 = 1024;
        const BYTES: u64 = 64 << 10;
        self.counted += 1;
        self.kept += kept as u64;
        match self.counted < STEPS && self.kept < BYTES {
            true => Ok(()),
            false => self.count(),
        }
    }

    fn count(&mut self) -> Result<(), Limit> {
        self.budget.step(std::mem::take(&mut self.counted))?;
        match std::mem::take(&mut self.kept) {
            0 => Ok(()),
            kept => self.budget.take(kept),
        }
    }
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        // Whoever counts next sees that there is nothing left.
        let _ = self.count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_by_one_clone_is_gone_for_all() {
        let budget = Budget::new();
        let other = budget.clone();
        assert_eq!(budget.take(BYTES - 1), Ok(()));
        assert_eq!(other.take(1), Ok(()));
        assert_eq!(
            (other.take(1), budget.exceeded()),
            (Err(Limit::Bytes), Some(Limit::Bytes))
        );
        assert_eq!(budget.step(STEPS + 1), Err(Limit::Steps));
        assert_eq!(budget.exceeded(), Some(Limit::Bytes), "the first one");
        assert_eq!(Budget::unlimited().take(u64::MAX), Ok(()));
        assert_eq!(Budget::unlimited().take(u64::MAX), Ok(()));
    }

    #[test]
    fn loops_end_when_nothing_is_left() {
        let budget = Budget::new();
        budget.step(STEPS - 5000).unwrap();
        let mut steps = budget.steps();
        let taken = (0..).take_while(|_| steps.step(0).is_ok()).count();
        assert!((4000..6100).contains(&taken), "{taken}");
        assert_eq!(budget.exceeded(), Some(Limit::Steps));
        let budget = Budget::new();
        budget.take(BYTES - 1_000_000).unwrap();
        let mut steps = budget.steps();
        let taken = (0..).take_while(|_| steps.step(1000).is_ok()).count();
        assert!((900..1100).contains(&taken), "{taken}");
        drop(steps);
        let other = Budget::new();
        drop((other.steps().step(1 << 40), other.steps()));
        assert_eq!(other.exceeded(), Some(Limit::Bytes));
    }

    #[test]
    fn small_sections_may_expand_to_the_free_amount_only() {
        let budget = Budget::new();
        assert_eq!(budget.take_unpacked(92 << 10, UNPACKED_FREELY), Ok(()));
        assert_eq!(budget.take_unpacked(92 << 10, 2 << 30), Err(Limit::Unpacked));
        assert_eq!(budget.take_unpacked(100 << 20, 2 << 30), Ok(()));
    }
}
