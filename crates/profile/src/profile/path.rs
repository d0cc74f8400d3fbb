//! The paths of samples in the tree of stacks. What a sample shares with an earlier one is not
//! walked again.

use backtrail_recording::{FIRST_NODE, Frame, FrameKind, NumberedSample, NumberedStacks, Stop};
use backtrail_recording::{ending, is_kernel_address, walked_in_kernel};
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::{Markers, Options, Profile, Space};
use crate::stacks::{StackFrame, StackId, Stacks};
use crate::symbolize::{LocationId, Symbolizer};
use crate::threads::{Thread, ThreadId};

/// The walked part of a stack: its outer frames, or all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walked {
    /// Where the part is in the tree.
    pub(super) stack: StackId,
    /// The reason why the stack ends; `None` if only the innermost frame is known.
    pub(super) stop: Option<Stop>,
    /// Whether outer frames were read later.
    pub(super) live: bool,
    /// Whether the kernel walked it.
    pub(super) in_kernel: bool,
    /// Whether inner frames had no room in the tree.
    pub(super) is_cut: bool,
    /// Frames, without gaps.
    pub(super) frames: u32,
    /// Frames with gaps.
    depth: u32,
    /// The location of the innermost frame, if it is code.
    pub(super) leaf: Option<LocationId>,
}

/// The stacks of a process that were walked before.
#[derive(Debug, Default)]
pub(super) struct Memo {
    /// [`NumberedStacks::version`] for which the rest holds.
    version: (u64, u64),
    /// By the number of the stack, and whether only kernel frames follow.
    callers: HashMap<Callers, Walked, BuildHasherDefault<InOrder>>,
    /// By the number of the callers' stack and the innermost address.
    whole: FxHashMap<(u32, u64), Walked>,
}

/// The number of a stack, and whether only kernel frames follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Callers(u32, bool);

impl Hash for Callers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.0) << 1 | u64::from(self.1));
    }
}

/// A hash that leaves numbers in their order: those of stacks are dense, and the callers of a stack
/// mostly follow each other. Thus what a walk needs is together in memory.
#[derive(Debug, Default)]
struct InOrder(u64);

impl Hasher for InOrder {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 << 8 | u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The table distinguishes neighbours by the highest bits.
        self.0 = number ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x7f << 57;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A frame that is not in the memo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    stack: u32,
    /// Whether all frames called from this one are in the kernel, and whether this one is, too.
    only_kernel_follows: bool,
    in_kernel: bool,
    frame: Frame,
}

/// What the frames of a process become.
struct Steps<'p> {
    pid: u32,
    located: &'p mut FxHashMap<(FrameKind, u64), LocationId>,
    symbolizer: &'p mut Symbolizer,
    stacks: &'p mut Stacks,
    markers: &'p Markers,
    options: &'p Options,
    thread: &'p Thread,
}

impl Profile {
    /// The path of a sample by the number of its stack.
    pub(super) fn walk_numbered(&mut self, sample: &NumberedSample<'_>, thread: ThreadId) -> Walked {
        if sample.ip == 0 && sample.stack < FIRST_NODE && sample.wait.is_some() {
            // It could not be seen where the thread waits.
            let (stop, live) = ending(sample.stack).map_or((None, false), |(stop, live)| (Some(stop), live));
            return self.walk_frames(sample.pid, &[], (stop, live), thread);
        }
        let leaf = Frame {
            kind: FrameKind::Pc,
            address: sample.ip,
        };
        let Space { located, memos, .. } = self.spaces.entry(sample.pid).or_default();
        let memo = memos
            .entry(if self.options.thread_root { sample.tid } else { 0 })
            .or_default();
        if memo.version != sample.stacks.version() {
            *memo = Memo {
                version: sample.stacks.version(),
                ..Memo::default()
            };
        }
        if let Some(walked) = memo.whole.get(&(sample.stack, sample.ip))
            && !walked.is_cut
        {
            return *walked;
        }
        let mut steps = Steps {
            pid: sample.pid,
            located,
            symbolizer: &mut self.symbolizer,
            stacks: &mut self.stacks,
            markers: &self.markers,
            options: &self.options,
            thread: self.threads.get(thread),
        };
        let in_kernel = is_kernel_address(sample.ip);
        let callers = steps.callers(memo, &sample.stacks, sample.stack, in_kernel, &mut self.steps);
        let Some(mut walked) = callers else {
            return self.walk_frames(sample.pid, &[leaf], (None, false), thread);
        };
        steps.step(&mut walked, leaf, in_kernel);
        memo.whole.insert((sample.stack, sample.ip), walked);
        if walked.is_cut {
            let mut frames = vec![leaf];
            let mut at = sample.stack;
            while let Some((frame, below)) = sample.stacks.innermost(at) {
                frames.push(frame);
                at = below;
            }
            self.gather(sample.pid, &frames);
        }
        walked
    }

    /// The path of a sample by its frames.
    pub(super) fn walk_frames(
        &mut self,
        pid: u32,
        frames: &[Frame],
        (stop, live): (Option<Stop>, bool),
        thread: ThreadId,
    ) -> Walked {
        let space = self.spaces.entry(pid).or_default();
        let mut steps = Steps {
            pid,
            located: &mut space.located,
            symbolizer: &mut self.symbolizer,
            stacks: &mut self.stacks,
            markers: &self.markers,
            options: &self.options,
            thread: self.threads.get(thread),
        };
        let mut walked = steps.outside(stop, live);
        if frames.is_empty() {
            walked.stack = steps.stacks.call_marker(walked.stack, steps.markers.no_stack);
        }
        let user = first_user(frames);
        for (index, &frame) in frames.iter().enumerate().rev() {
            steps.step(&mut walked, frame, index < user);
        }
        if walked.is_cut {
            self.gather(pid, frames);
        }
        walked
    }

    /// Continues the stack of a wait with that of the thread that ended it, if that is wanted.
    pub(super) fn add_waker(&mut self, walked: &mut Walked, (pid, tid, interrupt): (u32, u32, bool), frames: &[Frame]) {
        if !self.options.wakers || walked.is_cut {
            return;
        }
        let user = first_user(frames);
        let located = &mut self.spaces.entry(pid).or_default().located;
        let frames = frames.iter().enumerate();
        let mut callers: Vec<LocationId> = frames
            .filter(|(_, frame)| frame.kind != FrameKind::Omitted)
            .map(|(index, frame)| locate(&mut self.symbolizer, located, pid, frame, index < user))
            .collect();
        let (source, len) = waking(&self.symbolizer, &callers, interrupt);
        callers.truncate(len);
        let text = match source {
            Source::Timer => "[woken by a timer]".to_owned(),
            Source::Interrupt => "[woken by an interrupt]".to_owned(),
            Source::Exit => format!("[woken by the exit of {}]", self.processes.thread_name(pid, tid)),
            Source::Thread => format!("[woken by {}]", self.processes.thread_name(pid, tid)),
        };
        let marker = self.stacks.marker_of(&text);
        walked.stack = self.stacks.call_marker(walked.stack, marker);
        for &location in callers.iter().rev() {
            // Without room, it ends there.
            let Some(stack) = self.stacks.call(walked.stack, StackFrame::Location(location)) else {
                return;
            };
            walked.stack = stack;
        }
    }

    /// Notes the locations of a stack that has no room in the tree.
    fn gather(&mut self, pid: u32, frames: &[Frame]) {
        let user = first_user(frames);
        self.beyond.clear();
        let Some(space) = self.spaces.get_mut(&pid) else { return };
        for (index, frame) in frames.iter().enumerate() {
            if frame.kind != FrameKind::Omitted {
                let location = locate(&mut self.symbolizer, &mut space.located, pid, frame, index < user);
                self.beyond.push(location);
            }
        }
    }

    /// Counts the functions of a stack that has no room in the tree, and are not in the part there.
    pub(super) fn count_unplaced(&mut self, walked: &Walked, weight: u64) {
        let mut seen = Vec::new();
        let mut at = walked.stack;
        while at != StackId::EMPTY {
            if let StackFrame::Location(id) = self.stacks.frame(at) {
                seen.extend_from_slice(self.functions.at(id, self.symbolizer.location(id)));
            }
            at = self.stacks.parent(at);
        }
        let mut new = Vec::new();
        for &id in &self.beyond {
            new.extend_from_slice(self.functions.at(id, self.symbolizer.location(id)));
        }
        seen.sort_unstable();
        new.sort_unstable();
        new.dedup();
        for function in new.into_iter().filter(|function| seen.binary_search(function).is_err()) {
            let total = self.unplaced.totals.entry(function).or_default();
            *total = total.saturating_add(weight);
        }
        if let Some(leaf) = walked.leaf {
            let own = self.unplaced.leaves.entry(leaf).or_default();
            *own = own.saturating_add(weight);
        }
    }

    /// Whether a stack goes through the wanted function.
    pub(super) fn is_through(&mut self, walked: &Walked) -> bool {
        let has = |id: LocationId| self.options.filter.has_function(self.symbolizer.location(id));
        while self.through.len() <= self.stacks.len() {
            let stack = StackId::of_index(self.through.len() as u32);
            let here = match self.stacks.frame(stack) {
                StackFrame::Location(id) => has(id),
                StackFrame::Marker(_) => false,
            };
            self.through
                .push(here || self.through[self.stacks.parent(stack).index()]);
        }
        self.through[walked.stack.index()] || walked.is_cut && self.beyond.iter().copied().any(has)
    }
}

impl Steps<'_> {
    /// The callers of a sample, as far as the memo does not know them from the stacks. `None` if
    /// they are not known.
    fn callers(
        &mut self,
        memo: &mut Memo,
        stacks: &NumberedStacks<'_>,
        stack: u32,
        in_kernel: bool,
        pending: &mut Vec<Pending>,
    ) -> Option<Walked> {
        pending.clear();
        let (mut at, mut in_kernel) = (stack, in_kernel);
        let mut walked = loop {
            if let Some(&walked) = memo.callers.get(&Callers(at, in_kernel)) {
                break walked;
            }
            if at < FIRST_NODE {
                let (stop, live) = ending(at)?;
                break Walked {
                    in_kernel: walked_in_kernel(at),
                    ..self.outside(Some(stop), live)
                };
            }
            if pending.len() >= NumberedStacks::FRAME_LIMIT {
                return None;
            }
            let (frame, below) = stacks.innermost(at)?;
            let only_kernel_follows = in_kernel;
            in_kernel &= is_kernel_address(frame.address);
            pending.push(Pending {
                stack: at,
                only_kernel_follows,
                in_kernel,
                frame,
            });
            at = below;
        };
        if walked.depth as usize + pending.len() > NumberedStacks::FRAME_LIMIT {
            return None;
        }
        for pending in pending.drain(..).rev() {
            self.step(&mut walked, pending.frame, pending.in_kernel);
            memo.callers
                .insert(Callers(pending.stack, pending.only_kernel_follows), walked);
        }
        Some(walked)
    }

    /// The frames outside of a stack: its process, its thread, what is to be known of it.
    fn outside(&mut self, stop: Option<Stop>, live: bool) -> Walked {
        let mut stack = StackId::EMPTY;
        let mut push = |stacks: &mut Stacks, marker| stack = stacks.call_marker(stack, marker);
        if self.options.process_root {
            let process = self.stacks.marker_of(&self.thread.process);
            push(self.stacks, process);
        }
        if self.options.thread_root {
            let thread = self.stacks.marker_of(&self.thread.name);
            push(self.stacks, thread);
        }
        if live && self.options.mark_incomplete {
            push(self.stacks, self.markers.late);
        }
        match stop {
            None => push(self.stacks, self.markers.lost),
            Some(Stop::EndOfStack | Stop::NoUserStack) => {}
            Some(stop) if self.options.mark_incomplete => push(self.stacks, self.markers.incomplete[stop as usize]),
            Some(_) => {}
        }
        Walked {
            stack,
            stop,
            live,
            in_kernel: false,
            is_cut: false,
            frames: 0,
            depth: 0,
            leaf: None,
        }
    }

    /// Adds an inner frame.
    fn step(&mut self, walked: &mut Walked, frame: Frame, in_kernel: bool) {
        walked.depth += 1;
        let called = match frame.kind {
            FrameKind::Omitted => {
                walked.leaf = None;
                self.markers.omitted
            }
            FrameKind::Pc | FrameKind::Ra => {
                let location = locate(self.symbolizer, self.located, self.pid, &frame, in_kernel);
                walked.frames += 1;
                walked.leaf = Some(location);
                StackFrame::Location(location)
            }
        };
        if walked.is_cut {
            return;
        }
        match self.stacks.call(walked.stack, called) {
            Some(stack) => walked.stack = stack,
            None => {
                walked.is_cut = true;
                walked.stack = self.stacks.call_marker(walked.stack, self.markers.left_out);
            }
        }
    }
}

fn locate(
    symbolizer: &mut Symbolizer,
    located: &mut FxHashMap<(FrameKind, u64), LocationId>,
    pid: u32,
    frame: &Frame,
    in_kernel: bool,
) -> LocationId {
    if is_kernel_address(frame.address) && !in_kernel {
        return symbolizer.resolve_outside_kernel(pid, frame.kind, frame.address);
    }
    *located
        .entry((frame.kind, frame.address))
        .or_insert_with(|| symbolizer.resolve(pid, frame.kind, frame.address))
}

/// What wakes a thread.
enum Source {
    Timer,
    Interrupt,
    /// A thread that ends, and wakes who waits for that.
    Exit,
    Thread,
}

/// What has woken a thread, by the kernel's functions on the stack of the waker, innermost first,
/// and how many of the frames belong to it: what an interrupted thread did has nothing to do with
/// the waking.
fn waking(symbolizer: &Symbolizer, callers: &[LocationId], interrupt: bool) -> (Source, usize) {
    let is_one_of = |id: &LocationId, wanted: &[&str]| {
        let calls = &symbolizer.location(*id).calls;
        calls.iter().any(|call| wanted.contains(&call.function.as_str()))
    };
    if !interrupt {
        // `do_exit` is also on the stack of whoever that wakes: another thread at a mutex of the
        // process, or who waits for its end.
        let ends = callers.iter().any(|id| is_one_of(id, &["do_exit", "do_group_exit"]));
        return (if ends { Source::Exit } else { Source::Thread }, callers.len());
    }
    let timers = [
        "hrtimer_wakeup",
        "process_timeout",
        "call_timer_fn",
        "__hrtimer_run_queues",
        "hrtimer_interrupt",
    ];
    if callers.iter().any(|id| is_one_of(id, &timers)) {
        return (Source::Timer, 0);
    }
    let enters = |id: &LocationId| {
        let calls = &symbolizer.location(*id).calls;
        calls.iter().any(|call| {
            let name = call.function.as_str();
            name.starts_with("asm_") || name == "el1h_64_irq" || name == "el0t_64_irq"
        })
    };
    (Source::Interrupt, callers.iter().position(enters).unwrap_or(0))
}

/// The index of the innermost frame outside the kernel.
fn first_user(frames: &[Frame]) -> usize {
    let user = frames.iter().position(|frame| !is_kernel_address(frame.address));
    user.unwrap_or(frames.len())
}
