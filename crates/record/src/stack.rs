//! One sample's stack.

use backtrail_arch::{Arch, Registers};
use backtrail_recording::{Frame, FrameKind, Stop};
use backtrail_target::SampledStack;
use backtrail_target::perf::{Sample, UserState};
use backtrail_target::stack::LiveBuffer;
use backtrail_unwind::{AddressKind, CacheEntry, Modules, Position, RuleCache};

use crate::walks::{Walker, Walks};

/// Frames that are kept at each end of a stack; what lies between is counted, not kept.
const KEPT_AT_EACH_END: usize = 8192;
/// Frames after which a walk is given up: a stack of 8 MiB holds half a million of the smallest frames.
const LONGEST_WALK: usize = 1 << 20;
/// Rules that are remembered.
const CACHED_RULES: usize = 1 << 15;

/// Walks stacks; its memory is kept from sample to sample.
pub(crate) struct StackWalker {
    arch: &'static Arch,
    cache: Vec<CacheEntry>,
    live: LiveBuffer,
    walks: Walks,
    /// The frames of the last walk, from the innermost outwards.
    pub(crate) frames: Vec<Frame>,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked {
    pub(crate) stop: Stop,
    /// Whether outer frames were read from the running process.
    pub(crate) live: bool,
}

impl StackWalker {
    pub(crate) fn new() -> Self {
        StackWalker {
            arch: Arch::native(),
            cache: vec![CacheEntry::EMPTY; CACHED_RULES],
            live: LiveBuffer::default(),
            walks: Walks::default(),
            frames: Vec::new(),
        }
    }

    /// The last walk again, without a user stack that is none: in execve, and while a process ends, the registers are
    /// still those of a program whose memory is gone.
    pub(crate) fn without_gone_program(&mut self, sample: &Sample<'_>, walked: Walked) -> Walked {
        let kernel = sample.kernel_frames().count();
        let UserState::Native { stack, .. } = sample.user else {
            return walked;
        };
        let gone = match walked.stop {
            Stop::NoModule => true,
            Stop::NoTable | Stop::Unreadable => stack.is_empty(),
            _ => false,
        };
        if kernel == 0 || self.frames.len() != kernel + 1 || !gone {
            return walked;
        }
        self.frames.truncate(kernel);
        Walked {
            stop: Stop::NoUserStack,
            live: false,
        }
    }

    /// Forgets the last walks: more than a moment has passed since.
    pub(crate) fn forget(&mut self) {
        self.walks = Walks::default();
    }

    /// Walks the stack of a sample that was taken at `time`: the kernel's frames as the kernel found them, then the program's. `generation` changes whenever
    /// the process has other modules.
    pub(crate) fn walk(&mut self, time: u64, sample: &Sample<'_>, generation: u64, modules: &impl Modules) -> Walked {
        self.frames.clear();
        for (index, address) in sample.kernel_frames().enumerate() {
            let kind = if index == 0 { FrameKind::Pc } else { FrameKind::Ra };
            self.frames.push(Frame { kind, address });
        }
        let stop = match sample.user {
            UserState::Native { registers, stack } => {
                return self.walk_program(time, sample, registers, stack, generation, modules);
            }
            UserState::Foreign => Stop::NotExpressible,
            UserState::None => Stop::NoUserStack,
        };
        if self.frames.is_empty() {
            self.frames.push(Frame {
                kind: FrameKind::Pc,
                address: sample.ip,
            });
        }
        Walked { stop, live: false }
    }

    /// The program's frames, behind those of the kernel.
    fn walk_program(
        &mut self,
        time: u64,
        sample: &Sample<'_>,
        registers: Registers,
        copy: &[u8],
        generation: u64,
        modules: &impl Modules,
    ) -> Walked {
        let sp = registers.get(self.arch.sp).unwrap_or(0);
        let mut memory = SampledStack::new(sample.pid as i32, time, sp, copy, &mut self.live);
        let mut cache = RuleCache::new(&mut self.cache);
        let walker = Walker {
            tid: sample.tid,
            generation,
        };
        let kernel = self.frames.len();
        let stop = loop {
            let mut kept = TwoEnds::new(&mut self.frames);
            let stop = self.walks.walk(
                walker,
                self.arch,
                &Position::interrupted(registers),
                modules,
                &mut memory,
                &mut cache,
                LONGEST_WALK,
                |frame| {
                    kept.push(Frame {
                        kind: match frame.kind {
                            AddressKind::Pc => FrameKind::Pc,
                            AddressKind::Ra => FrameKind::Ra,
                        },
                        address: frame.address,
                    });
                },
            );
            kept.finish();
            let may_go_on = matches!(stop, backtrail_unwind::Stop::Unreadable(_)) && memory.ask_process();
            if !may_go_on {
                break stop;
            }
            self.frames.truncate(kernel);
        };
        Walked {
            stop: reason(stop),
            live: memory.was_live(),
        }
    }
}

fn reason(stop: backtrail_unwind::Stop) -> Stop {
    match stop {
        backtrail_unwind::Stop::EndOfStack => Stop::EndOfStack,
        backtrail_unwind::Stop::NoModule => Stop::NoModule,
        backtrail_unwind::Stop::NoTable => Stop::NoTable,
        backtrail_unwind::Stop::Unreadable(_) => Stop::Unreadable,
        backtrail_unwind::Stop::DidNotAdvance => Stop::DidNotAdvance,
        backtrail_unwind::Stop::NotExpressible(_) => Stop::NotExpressible,
        backtrail_unwind::Stop::Limit => Stop::Limit,
    }
}

/// Keeps the first and the last frames of a sequence and counts those between.
struct TwoEnds<'f> {
    frames: &'f mut Vec<Frame>,
    /// Where the ring of last frames begins in `frames`, once the first ones are full.
    ring: usize,
    /// Frames that came after the first ones.
    after_head: usize,
}

impl<'f> TwoEnds<'f> {
    fn new(frames: &'f mut Vec<Frame>) -> Self {
        let ring = frames.len() + KEPT_AT_EACH_END;
        TwoEnds {
            frames,
            ring,
            after_head: 0,
        }
    }

    fn push(&mut self, frame: Frame) {
        if self.frames.len() < self.ring + KEPT_AT_EACH_END {
            self.frames.push(frame);
        } else {
            self.frames[self.ring + self.after_head % KEPT_AT_EACH_END] = frame;
        }
        if self.frames.len() > self.ring {
            self.after_head += 1;
        }
    }

    /// Puts the last frames in order, with the count of those that were left out before them.
    fn finish(self) {
        let omitted = self.after_head.saturating_sub(KEPT_AT_EACH_END);
        if omitted == 0 {
            return;
        }
        self.frames[self.ring..].rotate_left(self.after_head % KEPT_AT_EACH_END);
        let gap = Frame {
            kind: FrameKind::Omitted,
            address: omitted as u64,
        };
        self.frames.insert(self.ring, gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(count: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut kept = TwoEnds::new(&mut frames);
        for address in 0..count as u64 {
            kept.push(Frame {
                kind: FrameKind::Ra,
                address,
            });
        }
        kept.finish();
        frames
    }

    #[test]
    fn both_ends_of_a_deep_stack_stay() {
        for count in [0, 1, KEPT_AT_EACH_END, 2 * KEPT_AT_EACH_END] {
            let frames = collect(count);
            assert_eq!(frames.len(), count);
            assert!(frames.iter().zip(0..).all(|(frame, address)| frame.address == address));
        }
        for extra in [1, 2, 1000, KEPT_AT_EACH_END, 3 * KEPT_AT_EACH_END + 17] {
            let count = 2 * KEPT_AT_EACH_END + extra;
            let frames = collect(count);
            assert_eq!(frames.len(), 2 * KEPT_AT_EACH_END + 1);
            assert_eq!(frames[KEPT_AT_EACH_END].kind, FrameKind::Omitted);
            assert_eq!(frames[KEPT_AT_EACH_END].address, extra as u64);
            let tail = &frames[KEPT_AT_EACH_END + 1..];
            assert!(
                tail.iter()
                    .zip(count - KEPT_AT_EACH_END..)
                    .all(|(frame, i)| frame.address == i as u64)
            );
        }
    }
}
