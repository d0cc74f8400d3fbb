//! Walking the stacks of the same threads again and again.
//!
//! A step depends on the frame's registers, on the words that it reads, and on the tables, and on nothing else. So where a walk
//! comes to a frame to which the thread's last walk came too, with the same registers, all that followed then
//! follows now, as long as the same words are read. To compare them is several times faster than to walk: no table is
//! looked at, and no read waits for the one before.

use backtrail_arch::{Arch, Registers};
use backtrail_unwind::{AddressKind, Frame, Memory, Modules, RuleCache, Stop, step};
use rustc_hash::FxHashMap;

/// Threads whose last walks are kept; with more, all begin anew.
const MOST_THREADS: usize = 256;
/// Frames of the longest walk that is kept.
const MOST_STEPS: usize = 1 << 14;

/// The last walks of threads.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    by_thread: FxHashMap<u32, Walk>,
    /// The walk at hand; its memory goes round.
    now: Walk,
}

/// Whose stack it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walker {
    /// The thread.
    pub(crate) tid: u32,
    /// A number that changes whenever the process has other modules.
    pub(crate) generation: u64,
}

/// What one walk did.
#[derive(Debug, Default)]
struct Walk {
    generation: u64,
    steps: Vec<Step>,
    reads: Vec<Read>,
    /// `None` where it is not kept.
    stop: Option<Stop>,
}

/// A frame from which a step was taken.
#[derive(Clone, Copy, Debug)]
struct Step {
    frame: Frame,
    sp: Option<u64>,
    fp: Option<u64>,
    /// Index of the first of its reads.
    first_read: usize,
}

impl Step {
    fn new(arch: &Arch, registers: &Registers, kind: AddressKind, first_read: usize) -> Step {
        Step {
            frame: Frame {
                address: registers.pc,
                kind,
            },
            sp: registers.get(arch.sp),
            fp: registers.get(arch.fp),
            first_read,
        }
    }

    /// Whether these are all registers that are known: a step gives its caller no more than three, but that through a signal frame.
    fn is_whole(&self) -> bool {
        self.frame.kind == AddressKind::Ra
    }

    /// Whether a walk that is here goes on as one that was at the other.
    fn is_at(&self, other: &Step) -> bool {
        self.is_whole() && (self.frame, self.sp, self.fp) == (other.frame, other.sp, other.fp)
    }

    fn restore(&self, arch: &Arch, registers: &mut Registers) {
        registers.forget_all();
        registers.pc = self.frame.address;
        for (register, value) in [(arch.sp, self.sp), (arch.fp, self.fp)] {
            if let Some(value) = value {
                registers.set(register, value);
            }
        }
    }
}

/// A word that a step wanted, and what it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    address: u64,
    word: Option<u64>,
}

/// Memory whose reads are noted.
struct Noted<'m, M> {
    memory: &'m mut M,
    reads: &'m mut Vec<Read>,
}

impl<M: Memory> Memory for Noted<'_, M> {
    #[inline]
    fn word(&mut self, address: u64) -> Option<u64> {
        let word = self.memory.word(address);
        self.reads.push(Read { address, word });
        word
    }
}

impl Walks {
    /// What [`backtrail_unwind::walk`] does.
    #[allow(
        clippy::too_many_arguments,
        reason = "those of the walk that it stands for, and whose it is"
    )]
    pub(crate) fn walk(
        &mut self,
        walker: Walker,
        arch: &Arch,
        registers: &Registers,
        modules: &impl Modules,
        memory: &mut impl Memory,
        cache: &mut RuleCache<'_>,
        limit: usize,
        mut visit: impl FnMut(Frame),
    ) -> Stop {
        if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&walker.tid) {
            self.by_thread.clear();
        }
        let last = self.by_thread.entry(walker.tid).or_default();
        if last.generation != walker.generation {
            last.clear();
        }
        let now = &mut self.now;
        now.clear();
        now.generation = walker.generation;
        let mut registers = *registers;
        let mut kind = AddressKind::Pc;
        // Of the last walk's frames, those before have lower stack pointers than the frame at hand.
        let mut next = 0;
        let mut frames = 0;
        let stop = loop {
            if frames == limit {
                break Stop::Limit;
            }
            let here = Step::new(arch, &registers, kind, now.reads.len());
            visit(here.frame);
            frames += 1;
            if frames > MOST_STEPS {
                now.reads.clear();
            } else {
                now.steps.push(here);
                next += last.steps[next..].iter().take_while(|step| step.sp < here.sp).count();
                let rest = last.steps.len() - next;
                if last.steps.get(next).is_some_and(|step| step.is_at(&here)) && frames + rest < MOST_STEPS.min(limit) {
                    let (end, stop) = now.follow(last, next, memory);
                    let followed = &last.steps[next + 1..=end];
                    followed.iter().for_each(|step| visit(step.frame));
                    frames += followed.len();
                    if let Some(stop) = stop {
                        break stop;
                    }
                    last.steps[end].restore(arch, &mut registers);
                    kind = last.steps[end].frame.kind;
                    next = end + 1;
                }
            }
            let mut noted = Noted {
                memory,
                reads: &mut now.reads,
            };
            match step(arch, &mut registers, kind, modules, &mut noted, cache) {
                Ok(caller) => kind = caller,
                Err(stop) => break stop,
            }
        };
        now.stop = Some(stop);
        // The limit is not of the stack but of where its walk began.
        if frames > MOST_STEPS || stop == Stop::Limit {
            now.clear();
        }
        std::mem::swap(now, last);
        stop
    }
}

impl Walk {
    fn clear(&mut self) {
        self.steps.clear();
        self.reads.clear();
        self.stop = None;
    }

    /// Appends what the last walk did from its frame `from` on, which is where this one is, as long as the same words are read.
    /// Returns the index of the last walk's frame that this one came to, and how the walk ended, where it came to the end.
    fn follow(&mut self, last: &Walk, from: usize, memory: &mut impl Memory) -> (usize, Option<Stop>) {
        let first = last.steps[from].first_read;
        let same = last.reads[first..]
            .iter()
            .take_while(|read| memory.word(read.address) == read.word)
            .count();
        let mut end = last.steps.len() - 1;
        let mut stop = last.stop;
        if first + same < last.reads.len() {
            // The frame whose step read something else was come to, and what a step through a signal frame restored is not kept.
            end = last.steps.partition_point(|step| step.first_read <= first + same) - 1;
            while !last.steps[end].is_whole() {
                end -= 1;
            }
            stop = None;
        }
        let moved = |step: &Step| Step {
            first_read: step.first_read - first + self.reads.len(),
            ..*step
        };
        self.steps.extend(last.steps[from + 1..=end].iter().map(moved));
        let reads_end = match stop {
            Some(_) => last.reads.len(),
            None => last.steps[end].first_read,
        };
        self.reads.extend_from_slice(&last.reads[first..reads_end]);
        (end, stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_unwind::{CacheEntry, Coverage};
    use proptest::prelude::*;

    /// Code of a generation: everywhere, or up to an address.
    struct FramePointers {
        end: u64,
    }

    impl Modules for FramePointers {
        fn coverage(&self, address: u64) -> Coverage<'_> {
            match address < self.end {
                true => Coverage::FramePointer,
                false => Coverage::NoModule,
            }
        }
    }

    struct Words<'w> {
        words: &'w [u64],
        read: usize,
    }

    const STACK: u64 = 0x7000_0000;

    impl Memory for Words<'_> {
        fn word(&mut self, address: u64) -> Option<u64> {
            self.read += 1;
            let offset = address.checked_sub(STACK)?;
            self.words.get(usize::try_from(offset / 8).ok()?).copied()
        }
    }

    /// A stack of frames, each so many words long, with return addresses, that ends as a chain of frame pointers does.
    fn stack(frames: &[(u8, u64)]) -> Vec<u64> {
        let mut words = Vec::new();
        for &(gap, address) in frames {
            words.extend(vec![0; usize::from(gap % 8)]);
            let next = STACK + 8 * (words.len() as u64 + 2);
            words.extend([next, address]);
        }
        // Each frame pointer leads to the next pair.
        let mut at = 0;
        let mut pairs = Vec::new();
        for &(gap, _) in frames {
            at += usize::from(gap % 8);
            pairs.push(at);
            at += 2;
        }
        for pair in pairs.windows(2) {
            words[pair[0]] = STACK + 8 * pair[1] as u64;
        }
        if let Some(&last) = pairs.last() {
            words[last] = 0;
        }
        words
    }

    fn compare(walks: &mut Walks, generation: u64, words: &[u64], skip: usize, limit: usize) -> usize {
        let arch = &backtrail_arch::x86_64::ARCH;
        let modules = FramePointers {
            end: if generation == 0 { 1 << 40 } else { 0x500 },
        };
        // The innermost frame begins behind the first words.
        let first = words[skip..].iter().position(|&word| word >= STACK).unwrap_or(0) + skip;
        let mut registers = Registers::new(0x10 + skip as u64);
        registers.set(arch.sp, STACK + 8 * skip as u64);
        registers.set(arch.fp, STACK + 8 * first as u64);
        let mut entries = vec![CacheEntry::EMPTY; 16];
        let mut cache = RuleCache::new(&mut entries);
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        let mut memory = Words { words, read: 0 };
        let stop = backtrail_unwind::walk(arch, &registers, &modules, &mut memory, &mut cache, limit, |frame| {
            expected.push(frame)
        });
        let mut memory = Words { words, read: 0 };
        let walker = Walker { tid: 1, generation };
        let found_stop = walks.walk(
            walker,
            arch,
            &registers,
            &modules,
            &mut memory,
            &mut cache,
            limit,
            |frame| found.push(frame),
        );
        assert_eq!((found, found_stop), (expected, stop));
        memory.read
    }

    proptest! {
        /// Whatever changes from walk to walk, each is the one that begins from nothing.
        #[test]
        fn the_same_as_without_memory(
            mut frames in prop::collection::vec((any::<u8>(), 1u64..0x600), 1..40),
            changes in prop::collection::vec(
                (any::<prop::sample::Index>(), 0u64..0x600, 0usize..60, 0u64..2, any::<bool>()), 1..20),
            limit in 1usize..60,
        ) {
            let mut walks = Walks::default();
            for (place, address, skip, generation, deeper) in changes {
                let place = place.index(frames.len());
                frames[place].1 = address;
                if deeper {
                    frames[place].0 ^= 3;
                }
                let words = stack(&frames);
                compare(&mut walks, generation, &words, skip.min(words.len() - 1), limit);
                compare(&mut walks, generation, &words, 0, limit);
            }
        }
    }

    #[test]
    fn long_walks_are_right_and_not_kept() {
        let mut walks = Walks::default();
        let words = stack(&vec![(0, 0x20); MOST_STEPS + 100]);
        for _ in 0..2 {
            compare(&mut walks, 0, &words, 0, 1 << 20);
        }
        assert!(walks.by_thread[&1].steps.is_empty());
        let words = stack(&vec![(0, 0x20); MOST_STEPS - 100]);
        for _ in 0..2 {
            compare(&mut walks, 0, &words, 0, 1 << 20);
        }
        assert_eq!(walks.by_thread[&1].steps.len(), MOST_STEPS - 99);
    }

    #[test]
    fn memory_is_bounded() {
        let mut walks = Walks::default();
        for tid in 0..10 * MOST_THREADS as u32 {
            walks.by_thread.entry(tid).or_default();
            if walks.by_thread.len() > MOST_THREADS {
                break;
            }
        }
        compare(&mut walks, 0, &stack(&[(0, 1)]), 0, 10);
        assert!(walks.by_thread.len() <= MOST_THREADS + 1);
    }
}
