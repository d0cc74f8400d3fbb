//! The stack of a sampled thread: the copy that came with the sample, and behind it the live process.

use backtrail_unwind::Memory;

use crate::perf::monotonic_ns;
use crate::sys;

/// Bytes of the first read from a live process beyond the sample's copy; each further one is twice as long.
const FIRST_READ: usize = 16 << 10;
/// The longest single read. A deep stack is walked in pieces of this size, so memory stays bounded.
const LONGEST_READ: usize = 1 << 20;

/// Bytes below the stack pointer whose contents change too fast to be read afterwards: the red zone of x86-64.
const RED_ZONE: u64 = backtrail_arch::x86_64::ARCH.red_zone;

/// Memory that the stacks of samples are read from; kept between samples for its buffer.
#[derive(Debug, Default)]
pub struct LiveBuffer {
    bytes: Vec<u8>,
}

/// A sample that is no older, in nanoseconds, when its stack is walked has its outer frames compared with the process itself.
const FRESH: u64 = 1_000_000;

/// What stands for the words beyond a sample's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// None was asked for yet.
    Unknown,
    /// What the thread's last walk has read: nothing is read, and what is compared is the same.
    LastWalk,
    /// The process as it is now.
    Process,
    /// Nothing else than for [`Beyond::LastWalk`]: the process has ended.
    Ended,
}

/// The stack of one sample.
///
/// Beyond the copy nobody knows what the stack was. There are two who know what it was at another time: the process, which has run
/// on since, and the thread's last walk, which mostly was a millisecond of its CPU time before. The process is asked while the sample
/// is fresh, and where the last walk is of no help ([`SampledStack::ask_process`]); else the last walk is believed. Either way
/// [`SampledStack::was_live`] says that the stack may be of two moments.
#[derive(Debug)]
pub struct SampledStack<'a> {
    pid: i32,
    /// When the sample was taken.
    time: u64,
    /// Address of the copy's first byte.
    start: u64,
    copy: &'a [u8],
    live: &'a mut LiveBuffer,
    /// Address of the live buffer's first byte.
    live_start: u64,
    next_read: usize,
    was_live: bool,
    beyond: Beyond,
}

impl<'a> SampledStack<'a> {
    /// The stack of process `pid` at `time`, in nanoseconds of the monotonic clock, whose bytes from `start` on are in `copy`.
    pub fn new(pid: i32, time: u64, start: u64, copy: &'a [u8], live: &'a mut LiveBuffer) -> Self {
        live.bytes.clear();
        SampledStack {
            pid,
            time,
            start,
            copy,
            live,
            live_start: 0,
            next_read: FIRST_READ,
            was_live: false,
            beyond: Beyond::Unknown,
        }
    }

    /// Whether there is anything of another moment than the sample's.
    pub fn was_live(&self) -> bool {
        self.was_live
    }

    /// Has the process asked if only the last walk was. Returns whether that is so.
    pub fn ask_process(&mut self) -> bool {
        let may_help = self.beyond == Beyond::LastWalk;
        if may_help {
            self.beyond = Beyond::Process;
        }
        may_help
    }

    /// Whom to believe.
    fn beyond(&mut self) -> Beyond {
        if self.beyond == Beyond::Unknown {
            self.beyond = match monotonic_ns().saturating_sub(self.time) <= FRESH {
                true => Beyond::Process,
                false => Beyond::LastWalk,
            };
        }
        self.beyond
    }

    #[cold]
    fn live_word(&mut self, address: u64) -> Option<u64> {
        if self.beyond() != Beyond::Process {
            return None;
        }
        if let Some(word) = word_in(&self.live.bytes, self.live_start, address) {
            return Some(word);
        }
        // Stacks are walked upwards: what follows the address will be wanted next.
        self.live.bytes.resize(self.next_read, 0);
        self.live_start = address;
        let read = sys::read_process(self.pid, address, &mut self.live.bytes);
        if let Err(error) = &read
            && error.raw_os_error() == Some(libc::ESRCH)
        {
            self.beyond = Beyond::Ended;
        }
        self.live.bytes.truncate(read.unwrap_or(0));
        self.next_read = (self.next_read * 2).min(LONGEST_READ);
        let word = word_in(&self.live.bytes, self.live_start, address)?;
        self.was_live = true;
        Some(word)
    }

    /// Whether the last walk is believed in what it has read at this address.
    #[cold]
    fn is_believed(&mut self, address: u64) -> bool {
        let at = address.checked_sub(self.start);
        let is_beyond = at.is_some_and(|at| at >= self.copy.len() as u64);
        let is_believed = is_beyond && self.beyond() != Beyond::Process;
        self.was_live |= is_believed;
        is_believed
    }
}

impl Memory for SampledStack<'_> {
    #[inline]
    fn word(&mut self, address: u64) -> Option<u64> {
        match word_in(self.copy, self.start, address) {
            Some(word) => Some(word),
            // Just below the stack pointer nothing outlives the next call: what is there now is not what was.
            None if (1..=RED_ZONE).contains(&self.start.wrapping_sub(address)) => None,
            None => self.live_word(address),
        }
    }

    #[inline]
    fn is(&mut self, address: u64, mask: u64, value: u64) -> bool {
        match self.word(address) {
            Some(word) => word & mask == value,
            None => self.is_believed(address),
        }
    }
}

#[inline]
fn word_in(bytes: &[u8], start: u64, address: u64) -> Option<u64> {
    let offset = usize::try_from(address.wrapping_sub(start)).ok()?;
    let word = bytes.get(offset..)?.first_chunk::<8>()?;
    Some(u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No sample is older than now.
    const NOW: u64 = u64::MAX;

    #[test]
    fn goes_on_where_the_copy_ends() {
        let words: Vec<u64> = (0..10_000).collect();
        let start = words.as_ptr() as u64;
        let copy: Vec<u8> = words[..16].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut live = LiveBuffer::default();
        let mut stack = SampledStack::new(std::process::id() as i32, NOW, start, &copy, &mut live);
        for index in 0..16 {
            assert_eq!(stack.word(start + index * 8), Some(index));
        }
        assert!(!stack.was_live());
        for index in 16..10_000 {
            assert_eq!(stack.word(start + index * 8), Some(index));
        }
        assert!(stack.was_live());
        assert_eq!(stack.word(start - 8), None);
        assert_eq!(stack.word(16), None);
        assert_eq!(stack.word(u64::MAX - 3), None);
        assert!(stack.is(start + 80, u64::MAX, 10) && !stack.is(start + 80, u64::MAX, 11));
        assert!(!stack.is(16, u64::MAX, 0));
        assert!(!stack.ask_process(), "it was");
    }

    #[test]
    fn the_last_walk_is_believed_until_it_is_of_no_help() {
        let words: Vec<u64> = (0..100).collect();
        let start = words.as_ptr() as u64;
        let copy = [0; 8];
        let mut live = LiveBuffer::default();
        let mut stack = SampledStack::new(std::process::id() as i32, 0, start, &copy, &mut live);
        assert!(stack.is(start, u64::MAX, 0) && !stack.was_live());
        assert!(stack.is(start + 8, u64::MAX, 77) && stack.was_live());
        assert_eq!(stack.word(start + 8), None);
        assert!(stack.ask_process());
        assert_eq!(stack.word(start + 8), Some(1));
        assert!(!stack.is(start + 8, u64::MAX, 77));
        assert!(!stack.ask_process(), "once is enough");
    }

    #[test]
    fn of_an_ended_process_the_copy_alone_can_differ() {
        let mut child = std::process::Command::new("true").spawn().expect("there is a `true`");
        child.wait().expect("it is ours");
        let copy = 7u64.to_ne_bytes();
        let mut live = LiveBuffer::default();
        let mut stack = SampledStack::new(child.id() as i32, NOW, 0x8000, &copy, &mut live);
        assert!(stack.is(0x8000, u64::MAX, 7) && !stack.is(0x8000, u64::MAX, 8));
        assert!(!stack.was_live());
        assert_eq!(stack.word(0x8008), None);
        assert!(stack.is(0x8008, u64::MAX, 8) && stack.are(0x8010, 1, u64::MAX, 2));
        assert!(stack.was_live());
        assert!(!stack.is(0x7ff8, u64::MAX, 0), "the red zone is no frame's");
    }
}
