//! The last walks of the sampled threads.

use backtrail_arch::Arch;
use backtrail_unwind::{Frame, Memo, MemoRead, MemoState, MemoStep, Memory, Modules, Position, RuleCache, Stop};
use rustc_hash::FxHashMap;

/// The most threads whose last walks are kept; with more, all start again.
const MOST_THREADS: usize = 256;
/// Frames of the longest walk that is kept completely.
const MOST_STEPS: usize = 1 << 14;
/// A thread's initial room for frames.
const FIRST_STEPS: usize = 1 << 7;
/// Return address and frame pointer.
const READS_A_STEP: usize = 2;

/// The last walks of threads.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    by_thread: FxHashMap<u32, Thread>,
    /// Whether the last walk was its thread's first.
    was_first: bool,
}

/// The owner of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walker {
    /// The thread.
    pub(crate) tid: u32,
    /// A number that changes whenever the process's modules change.
    pub(crate) generation: u64,
}

/// A thread's last walk.
#[derive(Debug, Default)]
struct Thread {
    generation: u64,
    state: MemoState,
    steps: Vec<MemoStep>,
    reads: Vec<MemoRead>,
}

impl Thread {
    /// Makes more room if the last walk had too little; the old room still holds what was kept.
    fn make_room(&mut self) {
        let steps = match self.steps.len() {
            0 => FIRST_STEPS,
            len if self.state.was_short() && len < MOST_STEPS => 2 * len,
            _ => return,
        };
        self.state = MemoState::EMPTY;
        self.steps = vec![MemoStep::EMPTY; steps];
        self.reads = vec![MemoRead::EMPTY; READS_A_STEP * steps];
    }
}

impl Walks {
    /// Whether the last walk was the first one of its thread, as far as is known.
    pub(crate) fn was_first(&self) -> bool {
        self.was_first
    }

    /// The stack pointer of the outermost frame of a thread's last walk.
    pub(crate) fn outermost(&self, tid: u32) -> Option<u64> {
        let thread = self.by_thread.get(&tid)?;
        thread
            .state
            .kept(&thread.steps)
            .iter()
            .find_map(MemoStep::stack_pointer)
    }

    /// The thread has ended, or runs another program.
    pub(crate) fn forget(&mut self, tid: u32) {
        self.by_thread.remove(&tid);
    }

    /// What [`backtrail_unwind::walk`] does.
    #[allow(
        clippy::too_many_arguments,
        reason = "those of the walk that it stands for, and whose it is"
    )]
    pub(crate) fn walk(
        &mut self,
        walker: Walker,
        arch: &Arch,
        from: &Position,
        modules: &impl Modules,
        memory: &mut impl Memory,
        cache: &mut RuleCache<'_>,
        limit: usize,
        visit: impl FnMut(Frame),
    ) -> Stop {
        if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&walker.tid) {
            self.by_thread.clear();
        }
        let thread = self.by_thread.entry(walker.tid).or_default();
        self.was_first = thread.steps.is_empty();
        thread.make_room();
        let mut memo = Memo::new(&mut thread.state, &mut thread.steps, &mut thread.reads);
        if thread.generation != walker.generation {
            thread.generation = walker.generation;
            memo.clear();
        }
        memo.walk(arch, from, modules, memory, cache, limit, visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::{Registers, x86_64};
    use backtrail_unwind::{CacheEntry, Coverage};

    /// Code up to an address.
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

    /// A chain of `frames` frame pointers, one word after the other, whose reads are counted.
    struct Chain {
        frames: u64,
    }

    const STACK: u64 = 0x7000_0000;

    impl Memory for Chain {
        fn word(&mut self, address: u64) -> Option<u64> {
            let frame = address.checked_sub(STACK)? / 16;
            match address % 16 {
                0 if frame + 1 < self.frames => Some(STACK + 16 * (frame + 1)),
                8 if frame < self.frames => Some(0x100 + frame % 256),
                _ if frame + 1 == self.frames => Some(0),
                _ => None,
            }
        }
    }

    fn walk(walks: &mut Walks, tid: u32, generation: u64, frames: u64) -> (usize, Stop) {
        let mut registers = Registers::new(0x10);
        registers.set(x86_64::RSP, STACK);
        registers.set(x86_64::RBP, STACK);
        let from = Position::interrupted(registers);
        let modules = FramePointers {
            end: if generation == 0 { 1 << 40 } else { 0x105 },
        };
        let mut cache: [CacheEntry; 0] = [];
        let mut seen = 0;
        let walker = Walker { tid, generation };
        let stop = walks.walk(
            walker,
            &x86_64::ARCH,
            &from,
            &modules,
            &mut Chain { frames },
            &mut RuleCache::new(&mut cache),
            1 << 20,
            |_| seen += 1,
        );
        (seen, stop)
    }

    #[test]
    fn other_modules_are_another_walk() {
        let mut walks = Walks::default();
        for _ in 0..2 {
            assert_eq!(walk(&mut walks, 1, 0, 50), (51, Stop::NoStart));
            assert_eq!(walk(&mut walks, 1, 1, 50), (8, Stop::NoModule));
        }
    }

    #[test]
    fn room_grows_with_stacks_and_no_further() {
        let mut walks = Walks::default();
        for frames in [10, 200, 3000, 2 * MOST_STEPS as u64, 5] {
            for _ in 0..20 {
                assert_eq!(walk(&mut walks, 1, 0, frames), (frames as usize + 1, Stop::NoStart));
            }
            let (room, frames) = (walks.by_thread[&1].steps.len(), frames as usize);
            assert!(
                (frames.min(MOST_STEPS)..=MOST_STEPS).contains(&room),
                "{room} for {frames}"
            );
        }
        walk(&mut walks, 2, 0, 3);
        assert_eq!(walks.by_thread[&2].steps.len(), FIRST_STEPS);
    }

    #[test]
    fn threads_are_bounded() {
        let mut walks = Walks::default();
        for tid in 0..10 * MOST_THREADS as u32 {
            walk(&mut walks, tid, 0, 1);
            assert!(walks.by_thread.len() <= MOST_THREADS);
        }
    }
}
