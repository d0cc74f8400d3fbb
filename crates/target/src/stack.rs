//! The stack of a sampled thread: the copy that came with the sample, and behind it the live process.

use backtrail_unwind::Memory;

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

/// The stack of one sample.
///
/// Frames beyond the copy are read from the process as it is now. Outer frames hardly ever move between the sample
/// and its unwinding, but they can, so [`SampledStack::was_live`] says whether that happened.
///
/// The last samples of a process are unwound when it has ended. Then nobody can tell what lay beyond their copies but the
/// thread's last walk, and what is compared with that is taken for the same: the outer frames are as old as the sample
/// before, where they would have been as much younger than this one. That too counts as live. One can do the same with a process
/// that has overwritten its outer frames meanwhile, as on its way out ([`SampledStack::end`]).
#[derive(Debug)]
pub struct SampledStack<'a> {
    pid: i32,
    /// Address of the copy's first byte.
    start: u64,
    copy: &'a [u8],
    live: &'a mut LiveBuffer,
    /// Address of the live buffer's first byte.
    live_start: u64,
    next_read: usize,
    was_live: bool,
    /// Nothing beyond the copy can be read any more.
    ended: bool,
}

impl<'a> SampledStack<'a> {
    /// The stack of process `pid`, whose bytes from `start` on are in `copy`.
    pub fn new(pid: i32, start: u64, copy: &'a [u8], live: &'a mut LiveBuffer) -> Self {
        live.bytes.clear();
        SampledStack {
            pid,
            start,
            copy,
            live,
            live_start: 0,
            next_read: FIRST_READ,
            was_live: false,
            ended: false,
        }
    }

    /// Whether anything was read from the running process.
    pub fn was_live(&self) -> bool {
        self.was_live
    }

    /// Takes the process for one that has ended. Returns whether that changes anything.
    pub fn end(&mut self) -> bool {
        !std::mem::replace(&mut self.ended, true)
    }

    #[cold]
    fn live_word(&mut self, address: u64) -> Option<u64> {
        if self.ended {
            return None;
        }
        if let Some(word) = word_in(&self.live.bytes, self.live_start, address) {
            return Some(word);
        }
        // Stacks are walked upwards: what follows the address will be wanted next.
        self.live.bytes.resize(self.next_read, 0);
        self.live_start = address;
        let read = sys::read_process(self.pid, address, &mut self.live.bytes);
        self.ended = read
            .as_ref()
            .is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH));
        self.live.bytes.truncate(read.unwrap_or(0));
        self.next_read = (self.next_read * 2).min(LONGEST_READ);
        let word = word_in(&self.live.bytes, self.live_start, address)?;
        self.was_live = true;
        Some(word)
    }

    /// Whether the address lies beyond the copy, in a process that has ended.
    #[cold]
    fn cannot_differ(&mut self, address: u64) -> bool {
        let at = address.checked_sub(self.start);
        let is_gone = self.ended && at.is_some_and(|at| at >= self.copy.len() as u64);
        self.was_live |= is_gone;
        is_gone
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
            None => self.cannot_differ(address),
        }
    }

    fn is_later(&self) -> bool {
        self.was_live && !self.ended
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

    #[test]
    fn goes_on_where_the_copy_ends() {
        let words: Vec<u64> = (0..10_000).collect();
        let start = words.as_ptr() as u64;
        let copy: Vec<u8> = words[..16].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut live = LiveBuffer::default();
        let mut stack = SampledStack::new(std::process::id() as i32, start, &copy, &mut live);
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
        assert!(stack.is_later() && stack.end() && !stack.is_later());
        assert_eq!((stack.word(start + 8), stack.word(start + 16 * 8)), (Some(1), None));
        assert!(!stack.end(), "once is enough");
    }

    #[test]
    fn of_an_ended_process_the_copy_alone_can_differ() {
        let mut child = std::process::Command::new("true").spawn().expect("there is a `true`");
        child.wait().expect("it is ours");
        let copy = 7u64.to_ne_bytes();
        let mut live = LiveBuffer::default();
        let mut stack = SampledStack::new(child.id() as i32, 0x8000, &copy, &mut live);
        assert!(stack.is(0x8000, u64::MAX, 7) && !stack.is(0x8000, u64::MAX, 8));
        assert!(!stack.was_live());
        assert_eq!(stack.word(0x8008), None);
        assert!(stack.is(0x8008, u64::MAX, 8) && stack.are(0x8010, 1, u64::MAX, 2));
        assert!(stack.was_live());
        assert!(!stack.is(0x7ff8, u64::MAX, 0), "the red zone is no frame's");
    }
}
