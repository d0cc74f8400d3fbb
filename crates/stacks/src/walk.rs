//! Walks the stacks of a snapshot.

use std::collections::BTreeSet;

use backtrail_arch::{Register, Registers};
use backtrail_cfi::announced::Function;
use backtrail_process::Snapshot;
use backtrail_process::snapshot::{SnapshotMemory, Thread};
use backtrail_unwind::goroutine::{GoThread, Outside, is_left};
use backtrail_unwind::{
    AddressKind, CacheEntry, Link, Memory, RuleCache, Stop, check_end, goroutine, is_at_start, keep_register, link,
    step, step_restoring,
};

use crate::arguments;
use crate::modules::ModuleSet;
use crate::process::{End, Frame, FrameRegisters, How, Process, ThreadStack};
use crate::shown::Shown;
use crate::space::Space;

/// Maximum number of frames in a stack. A recursion that overflows the largest usual stack has
/// fewer.
const MOST_FRAMES: usize = 1 << 20;
/// Number of cached rules: threads often have the same frames.
const CACHED_RULES: usize = 1 << 12;

/// What to find besides frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants<'w> {
    /// The registers of each frame.
    pub(crate) registers: bool,
    /// The arguments of each frame, which need its registers.
    pub(crate) arguments: Option<&'w Shown>,
}

/// The stacks of all threads of the snapshot, with the requested details of their frames; and the
/// functions in them that the process announces to debuggers.
pub(crate) fn stacks(snapshot: &Snapshot<'_>, modules: &ModuleSet, wants: Wants<'_>) -> (Process, Vec<Function>) {
    let space = Space::new(snapshot, modules);
    let mut entries = vec![CacheEntry::EMPTY; CACHED_RULES];
    let mut cache = RuleCache::new(&mut entries);
    let threads = snapshot.threads.iter().map(|thread| {
        stack(
            snapshot,
            thread,
            &space,
            &mut cache,
            wants.registers || wants.arguments.is_some(),
        )
    });
    let mut threads: Vec<ThreadStack> = threads.collect();
    if let Some(shown) = wants.arguments {
        arguments::find(snapshot, &space, shown, &mut threads);
        let has_changed = space.has_read_changing();
        threads
            .iter_mut()
            .for_each(|thread| thread.lacked_memory |= has_changed);
    }
    let announced = announced(&space, &threads);
    let process = Process {
        pid: snapshot.pid,
        name: snapshot.name.clone(),
        architecture: snapshot.arch.name().to_owned(),
        signal: snapshot.signal,
        threads,
        modules: space.recorded(),
    };
    (process, announced)
}

/// The address that a frame is looked up by.
fn looked_up(address: u64, kind: AddressKind) -> u64 {
    match kind {
        AddressKind::Pc => address,
        // The call, which is at the byte before.
        AddressKind::Ra => address.wrapping_sub(1),
    }
}

/// The announced functions that frames are in, and after these, their calls with inlined functions.
fn announced(space: &Space<'_>, threads: &[ThreadStack]) -> Vec<Function> {
    let frames = threads.iter().flat_map(|thread| &thread.frames);
    let looked_up = frames.map(|frame| (looked_up(frame.address, frame.kind), frame.kind == AddressKind::Ra));
    let addresses: BTreeSet<(u64, bool)> = looked_up.collect();
    let (mut functions, mut calls): (Vec<Function>, Vec<Function>) = Default::default();
    for (address, is_call) in addresses {
        if !functions.last().is_some_and(|last| last.addresses.contains(&address)) {
            functions.extend(space.announced_function(address));
        }
        if is_call && functions.last().is_some_and(|last| last.addresses.contains(&address)) {
            calls.extend(space.announced_call(address + 1));
        }
    }
    functions.append(&mut calls);
    functions
}

fn stack(
    snapshot: &Snapshot<'_>,
    thread: &Thread,
    space: &Space<'_>,
    cache: &mut RuleCache<'_>,
    wants_registers: bool,
) -> ThreadStack {
    let mut walk = Walk {
        snapshot,
        space,
        memory: snapshot.memory(),
        cache,
        restores: wants_registers,
        frames: Vec::new(),
        registers: wants_registers.then(FrameRegisters::default),
        has_start: false,
        sp: None,
    };
    let end = match thread.registers {
        Ok(registers) => End::Stop(walk.all(registers)),
        Err(why) => End::NotStopped(why),
    };
    ThreadStack {
        tid: thread.tid,
        name: thread.name.clone(),
        signal: thread.signal,
        frames: walk.frames,
        end,
        lacked_memory: walk.memory.lacked() | space.has_read_changing(),
        registers: walk.registers.unwrap_or_default(),
        arguments: Vec::new(),
    }
}

/// The walk of one stack.
struct Walk<'w, 's, 'c> {
    snapshot: &'s Snapshot<'s>,
    space: &'w Space<'s>,
    memory: SnapshotMemory<'s>,
    cache: &'w mut RuleCache<'c>,
    /// Whether registers that tables don't restore are restored from `.eh_frame`.
    restores: bool,
    frames: Vec<Frame>,
    registers: Option<FrameRegisters>,
    /// Whether the last frame is proved to be the outermost one.
    has_start: bool,
    /// The stack pointer of the last frame.
    sp: Option<u64>,
}

impl Walk<'_, '_, '_> {
    /// Walks from these registers to the end.
    fn all(&mut self, registers: Registers) -> Stop {
        let mut stop = self.from(registers);
        if !self.restores && matches!(stop, Stop::NotExpressible(_) | Stop::NoTable) {
            // A few stacks need more registers than tables restore, or have code that tables cannot
            // describe.
            self.restores = true;
            self.frames.clear();
            stop = self.from(registers);
        }
        if self.is_new_thread(&registers, stop) {
            return Stop::EndOfStack;
        }
        self.check_end(stop)
    }

    /// Whether this thread has just been created: it is after the call that made it, with the
    /// result that only the new thread gets.
    fn is_new_thread(&self, innermost: &Registers, stop: Stop) -> bool {
        const RESULT: Register = Register(0);
        matches!(stop, Stop::NoCall | Stop::NoStart | Stop::NoTable | Stop::Unreadable(_))
            && self.frames.len() == 1
            && innermost.get(RESULT) == Some(0)
            && self.space.makes_thread(innermost.pc)
    }

    /// What the outermost frame shows about the end of its walk.
    fn check_end(&mut self, stop: Stop) -> Stop {
        let Some(&last) = self.frames.last().filter(|_| !self.has_start) else {
            return stop;
        };
        if last.kind == AddressKind::Pc {
            // A word of zero where a row supposes the return address is no start.
            let mut is_start =
                || link(self.snapshot.arch, last.address, last.kind, self.space, self.cache) == Link::Outermost;
            return match stop {
                Stop::EndOfStack if !is_start() => Stop::NoStart,
                stop => stop,
            };
        }
        if stop == Stop::NoModule {
            // No call returns here: there is no code.
            self.frames.pop();
        }
        let (arch, space) = (self.snapshot.arch, self.space);
        if let [.., callee, frame] = self.frames[..]
            && frame.kind == AddressKind::Ra
            && space.is_made_up(frame.address, callee.address)
            && link(arch, frame.address, frame.kind, space, self.cache) != Link::Outermost
        {
            self.frames.pop();
            return Stop::EndOfStack;
        }
        let is_first = || self.sp.zip(self.sp.and_then(|sp| space.stack_end(sp)));
        check_end(arch, last.address, stop, space, self.cache, |ra| {
            space.never_returns(ra) || is_first().is_some_and(|(sp, end)| is_at_start(sp, end))
        })
    }

    fn from(&mut self, innermost: Registers) -> Stop {
        let mut registers = innermost;
        let mut kind = AddressKind::Pc;
        let mut how = How::Initial;
        let mut current = None;
        loop {
            self.push(&registers, kind, how);
            current = goroutine::held(self.snapshot.arch, &registers).or(current);
            if self.frames.len() == MOST_FRAMES {
                return Stop::Limit;
            }
            let mut stepped = self.step(&mut registers, kind);
            if let Err(Stop::NotExpressible(needed)) = stepped
                && self.restores
                && self.frames.len() == 2
                && keep_register(needed, &innermost, &mut registers, self.space)
            {
                stepped = self.step(&mut registers, kind);
            }
            let (arch, space) = (self.snapshot.arch, self.space);
            if let Err(Stop::NotExpressible(needed)) = stepped
                && is_left(arch, needed)
                && let Some(thread) = self.go_thread(current, &registers)
            {
                match thread.outside(arch, &registers, space, &mut self.memory) {
                    Some(Outside::Goroutine(between, caller)) => {
                        if let Some(between) = between {
                            self.push(&Registers::new(between), AddressKind::Ra, How::FramePointer);
                        }
                        registers = caller;
                        stepped = Ok((AddressKind::Ra, How::FramePointer));
                    }
                    Some(Outside::Start(start)) => {
                        self.push(&Registers::new(start), AddressKind::Ra, How::FramePointer);
                        self.has_start = true;
                        return Stop::EndOfStack;
                    }
                    None => {}
                }
            }
            match stepped {
                Ok((AddressKind::Pc, _)) => {
                    // The handler's return address is the trampoline's first instruction: no call
                    // precedes it.
                    if let Some(trampoline) = self.frames.last_mut() {
                        trampoline.kind = AddressKind::Pc;
                    }
                    (kind, how) = (AddressKind::Pc, How::Signal);
                }
                Ok(found) => (kind, how) = found,
                Err(stop) => return stop,
            }
        }
    }

    /// The thread of Go with this `g` in its register, or one in the frame with these registers.
    fn go_thread(&mut self, current: Option<u64>, registers: &Registers) -> Option<GoThread> {
        let kept = goroutine::kept(self.snapshot.arch, registers, &mut self.memory);
        let mut candidates = current.into_iter().chain(kept);
        candidates.find_map(|g| GoThread::of(g, &mut self.memory))
    }

    fn push(&mut self, registers: &Registers, kind: AddressKind, how: How) {
        self.frames.push(Frame {
            address: registers.pc,
            kind,
            how,
        });
        self.sp = registers.get(self.snapshot.arch.sp);
        if let Some(kept) = &mut self.registers {
            kept.push(registers);
        }
    }

    fn step(&mut self, registers: &mut Registers, kind: AddressKind) -> Result<(AddressKind, How), Stop> {
        let address = looked_up(registers.pc, kind);
        let (arch, space) = (self.snapshot.arch, self.space);
        let stepped = match self.restores {
            true => step_restoring(arch, registers, kind, space, &mut self.memory, self.cache),
            false => step(arch, registers, kind, space, &mut self.memory, self.cache).map(|kind| (kind, false)),
        };
        match stepped {
            Ok((kind, true)) => Ok((kind, How::EhFrame)),
            Ok((kind, false)) => Ok((kind, space.how(address))),
            Err(Stop::NoModule) if kind == AddressKind::Pc => {
                self.called_nothing(registers).ok_or(Stop::NoModule)?;
                Ok((AddressKind::Ra, How::FramePointer))
            }
            Err(stop) => Err(stop),
        }
    }

    /// A call to an address without code, mostly a null pointer, has only left its return address.
    fn called_nothing(&mut self, registers: &mut Registers) -> Option<()> {
        let arch = self.snapshot.arch;
        let sp = registers.get(arch.sp)?;
        let (ra, caller_sp) = if arch.link_register {
            (registers.get(arch.ra), sp)
        } else {
            (self.memory.word(sp), sp.wrapping_add(u64::from(arch.pointer_bytes)))
        };
        let ra = ra.map(|ra| arch.strip(ra)).filter(|&ra| ra != 0)?;
        if !self.space.follows_call(ra) {
            return None;
        }
        registers.pc = ra;
        registers.set(arch.sp, caller_sp);
        Some(())
    }
}
