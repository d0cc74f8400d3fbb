//! Compares the chain that the engine walks with the shadow of the calls at every instruction.

use std::collections::BTreeMap;
use std::time::Duration;

use backtrail_arch::Registers;
use backtrail_process::sys::read_process;
use backtrail_unwind::{
    AddressKind, CacheEntry, Frame, Memo, MemoRead, MemoState, MemoStep, Memory, Position, RuleCache, Stop, walk,
};
use rustc_hash::FxHashMap;

use super::cpu::{Class, Cpu, Ran, SystemCall};
use super::shadow::Shadow;
use super::space::{CodeIs, Library, Source, Space, View};

/// No stack of a program here is deeper.
const LIMIT: usize = 4096;
/// Bytes below the stack pointer that are read with the stack: more than any red zone.
const BELOW: u64 = 256;
/// The most of a stack that is read at once; the rest is read on demand.
const LONGEST_READ: usize = 64 << 10;
const FURTHER_READ: usize = 4 << 10;
/// The size of the memory of walks.
const MEMO_STEPS: usize = 512;
const CACHE_ENTRIES: usize = 4096;

/// How a chain is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) source: Source,
    pub(crate) walker: Walker,
}

/// Who walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walker {
    /// The engine, without a cache.
    Plain,
    /// The engine, with a cache of rules, and only as far as this walk differs from the thread's
    /// last one.
    Remembered,
    /// The C library in the stepped process; see [`Checker::arrive_with`].
    InProcess,
}

/// The stack of a thread that stands still: one read of the part in use, and more on demand.
pub(crate) struct Stack {
    pid: i32,
    start: u64,
    bytes: Vec<u8>,
    further_start: u64,
    further: Vec<u8>,
}

impl Stack {
    pub(crate) fn new() -> Stack {
        Stack {
            pid: 0,
            start: 0,
            bytes: Vec::new(),
            further_start: 0,
            further: Vec::new(),
        }
    }

    fn read(&mut self, pid: i32, sp: u64, reach: u64) {
        let wanted = reach.saturating_sub(sp).saturating_add(BELOW + 64) as usize;
        self.pid = pid;
        self.start = sp.wrapping_sub(BELOW);
        self.further.clear();
        self.bytes.resize(wanted.min(LONGEST_READ), 0);
        let read = read_process(pid, self.start, &mut self.bytes).unwrap_or(0);
        self.bytes.truncate(read);
    }

    fn further(&mut self, address: u64) -> Option<u64> {
        if let Some(word) = word_in(&self.further, self.further_start, address) {
            return Some(word);
        }
        self.further.resize(FURTHER_READ, 0);
        self.further_start = address;
        let read = read_process(self.pid, address, &mut self.further).unwrap_or(0);
        self.further.truncate(read);
        word_in(&self.further, self.further_start, address)
    }
}

impl Memory for Stack {
    #[inline]
    fn word(&mut self, address: u64) -> Option<u64> {
        word_in(&self.bytes, self.start, address).or_else(|| self.further(address))
    }
}

#[inline]
fn word_in(bytes: &[u8], start: u64, address: u64) -> Option<u64> {
    let offset = usize::try_from(address.wrapping_sub(start)).ok()?;
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk::<8>()?))
}

/// The last walk of a thread, for one way.
struct Remembered {
    state: MemoState,
    steps: Vec<MemoStep>,
    reads: Vec<MemoRead>,
}

/// A chain that was walked.
struct Walked {
    /// How many frames it has.
    visited: usize,
    /// The first frame that differs, and its number.
    differs: Option<(usize, Frame)>,
    stop: Stop,
}

/// A stepped thread.
pub(crate) struct Thread {
    /// Its process, which owns the memory.
    pub(crate) pid: i32,
    pub(crate) shadow: Shadow,
    before: Option<(Registers, Class)>,
    /// It was given a signal, so that a handler may start.
    pub(crate) signalled: bool,
    remembered: Option<Box<Remembered>>,
}

impl Thread {
    /// A thread with these calls.
    pub(crate) fn new(pid: i32, shadow: Shadow) -> Thread {
        Thread {
            pid,
            shadow,
            before: None,
            signalled: false,
            remembered: None,
        }
    }
}

/// How a chain differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// No row for the address.
    NotCovered,
    /// The walk stopped for another reason, with this name.
    Stopped(&'static str),
    /// All frames are there, but nothing marks the last one as the last.
    EndNotMarked,
    /// The caller is another one.
    Wrong,
    /// The caller is wrong, and its return address is no longer where its call stored it.
    Overwritten,
    /// A caller is reported that does not exist.
    Surplus,
}

/// The place of a wrong step: the frame whose step failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) way: usize,
    pub(crate) module: String,
    /// Address in the module.
    pub(crate) svma: u64,
    /// Whether the frame is at a call, and not interrupted; its byte is then the one before.
    pub(crate) is_call: bool,
    pub(crate) fault: Fault,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) instructions: u64,
    pub(crate) example: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) exact: u64,
    pub(crate) differing: u64,
    /// Frames that were compared and are equal.
    pub(crate) frames: u64,
}

/// When to end before the program does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) instructions: u64,
    pub(crate) time: Duration,
}

/// Why a program cannot be stepped, or not to its end.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The machine does not allow it.
    NotAllowed(String),
    Broken(String),
}

/// The results for a program.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Those that went on to another one; the rounds of a repeated instruction count once.
    pub(crate) instructions: u64,
    pub(crate) counts: Vec<Counts>,
    pub(crate) places: BTreeMap<Place, Seen>,
    pub(crate) deepest: usize,
    pub(crate) threads: u64,
    pub(crate) handlers: u64,
    /// Returns to an address that does not follow their call.
    pub(crate) redirected: u64,
}

/// Compares, for one program.
pub(crate) struct Checker<C> {
    ways: Vec<Way>,
    pub(crate) files: Library,
    code: CodeIs,
    spaces: FxHashMap<i32, Known>,
    stack: Stack,
    cache: Vec<Vec<CacheEntry>>,
    pub(crate) outcome: Outcome,
    cpu: std::marker::PhantomData<C>,
}

/// The state of a process.
#[derive(Clone, Default)]
struct Known {
    space: Space,
    classes: FxHashMap<u64, Class>,
    is_old: bool,
}

impl<C: Cpu> Checker<C> {
    pub(crate) fn new(ways: &[Way], code: CodeIs) -> Checker<C> {
        let mut sources: Vec<Source> = ways.iter().map(|way| way.source).collect();
        sources.sort();
        sources.dedup();
        Checker {
            ways: ways.to_vec(),
            files: Library::new(&sources, C::ARCH.name()),
            code,
            spaces: FxHashMap::default(),
            stack: Stack::new(),
            cache: ways.iter().map(|_| vec![CacheEntry::EMPTY; CACHE_ENTRIES]).collect(),
            outcome: Outcome {
                counts: vec![Counts::default(); ways.len()],
                ..Outcome::default()
            },
            cpu: std::marker::PhantomData,
        }
    }

    /// A process starts with the mappings of another one, or without any.
    pub(crate) fn begin_process(&mut self, pid: i32, like: Option<i32>) {
        let mut known = like
            .and_then(|like| self.spaces.get(&like))
            .cloned()
            .unwrap_or_default();
        known.is_old |= like.is_none();
        self.spaces.insert(pid, known);
    }

    pub(crate) fn end_process(&mut self, pid: i32) {
        self.spaces.remove(&pid);
    }

    /// A thread at this place is about to be given a signal; it may have come out of the kernel
    /// since.
    pub(crate) fn signal(&mut self, thread: &mut Thread, now: &Registers) {
        thread.signalled = true;
        if let Some((before, class)) = &mut thread.before {
            let gone_on = before.pc != now.pc;
            *before = *now;
            if gone_on {
                *class = Class::Other;
            }
        }
    }

    /// A thread is before its next instruction: applies the last one, and compares the stack.
    pub(crate) fn arrive(&mut self, thread: &mut Thread, now: &Registers) {
        let sp = now.get(C::ARCH.sp).unwrap_or(0);
        let reach = thread.shadow.reach().unwrap_or(sp).max(sp);
        self.stack.read(thread.pid, sp, reach);
        let known = self.spaces.entry(thread.pid).or_default();
        if let Some((before, Class::System)) = &thread.before
            && C::system_call(before) == SystemCall::Mappings
        {
            known.is_old = true;
        }
        if known.is_old {
            known.space = Space::read(thread.pid, &mut self.files, self.code);
            known.is_old = false;
            known.classes.clear();
            self.cache.iter_mut().for_each(|cache| cache.fill(CacheEntry::EMPTY));
            thread.remembered = None;
        }
        let stack = &mut self.stack;
        let word = &mut |address: u64| stack.word(address).unwrap_or(0);
        if let Some((before, class)) = &thread.before {
            let ran = Ran {
                class: *class,
                before,
                now,
            };
            match (thread.signalled, class) {
                (true, _) if begins_handler::<C>(&mut thread.shadow, before, now, word) => self.outcome.handlers += 1,
                (_, Class::System) if C::system_call(before) == SystemCall::SignalReturn => {
                    thread.shadow.signal_return();
                }
                _ => C::follow(&mut thread.shadow, &ran, word, &|from, to| {
                    known.space.is_inside(from, to)
                }),
            }
            self.outcome.instructions += u64::from(before.pc != now.pc);
        }
        thread.signalled = false;
        let class = class_at::<C>(known, thread.pid, now.pc);
        self.outcome.redirected += u64::from(C::arrive(&mut thread.shadow, class, now, word));
        self.outcome.deepest = self.outcome.deepest.max(thread.shadow.depth());
        thread.before = Some((*now, class));
        for way in 0..self.ways.len() {
            if self.ways[way].walker != Walker::InProcess {
                self.compare(way, thread, now);
            }
        }
    }

    /// Compares the chain that the thread's own process has walked at the place where it is.
    pub(crate) fn arrive_with(&mut self, thread: &Thread, now: &Registers, chain: &[u64]) {
        let Some(number) = self.ways.iter().position(|way| way.walker == Walker::InProcess) else {
            return;
        };
        // Addresses come without their kinds, so kinds are not compared.
        let known = |at: usize| thread.shadow.frame(now.pc, at);
        let differs = chain.iter().enumerate().find_map(|(at, address)| {
            let kind = match known(at) {
                Some(frame) if frame.address == *address => return None,
                frame => frame.map_or(AddressKind::Ra, |frame| frame.kind),
            };
            Some((
                at,
                Frame {
                    address: *address,
                    kind,
                },
            ))
        });
        let stop = match chain.len() < thread.shadow.depth() {
            true => Stop::Limit,
            false => Stop::EndOfStack,
        };
        let walked = Walked {
            visited: chain.len(),
            differs,
            stop,
        };
        self.judge(number, thread, now.pc, &walked);
    }

    /// The registers after a system call, if the emulator has run the following instruction in the
    /// same step: those that entered the kernel, or that the kernel took from a signal's frame.
    pub(crate) fn passed(&mut self, thread: &Thread, now: &Registers) -> Option<Registers> {
        let (before, Class::System) = thread.before.as_ref()? else {
            return None;
        };
        let mut passed = *before;
        match C::system_call(before) {
            SystemCall::SignalReturn => {
                let frame = &C::ARCH.signal_frame;
                let saved = |offset: i64| {
                    let at = before.get(C::ARCH.sp)?.wrapping_add_signed(offset);
                    let mut word = [0; 8];
                    let read = read_process(thread.pid, at, &mut word).ok()?;
                    (read == 8).then_some(u64::from_le_bytes(word))
                };
                passed.pc = saved(frame.pc_offset)?;
                for &(register, offset) in frame.registers {
                    passed.set(register, saved(offset)?);
                }
            }
            // An instruction of 4 bytes, which may be restarted.
            _ => passed.pc += 4,
        }
        (passed.pc != now.pc && before.pc != now.pc).then_some(passed)
    }

    fn compare(&mut self, number: usize, thread: &mut Thread, now: &Registers) {
        let way = self.ways[number];
        let space = &self.spaces[&thread.pid].space;
        let view = View {
            space,
            source: way.source,
        };
        let shadow = &thread.shadow;
        let mut visited = 0;
        let mut differs: Option<(usize, Frame)> = None;
        let visit = |frame: Frame| {
            if differs.is_none() && shadow.frame(now.pc, visited) != Some(frame) {
                differs = Some((visited, frame));
            }
            visited += 1;
        };
        let from = Position::interrupted(*now);
        let stack = &mut self.stack;
        let stop = if way.walker == Walker::Remembered {
            let remembered = thread.remembered.get_or_insert_with(|| {
                Box::new(Remembered {
                    state: MemoState::EMPTY,
                    steps: vec![MemoStep::EMPTY; MEMO_STEPS],
                    reads: vec![MemoRead::EMPTY; 3 * MEMO_STEPS],
                })
            });
            let Remembered { state, steps, reads } = &mut **remembered;
            let mut cache = RuleCache::new(&mut self.cache[number]);
            Memo::new(state, steps, reads).walk(C::ARCH, &from, &view, stack, &mut cache, LIMIT, visit)
        } else {
            walk(C::ARCH, &from, &view, stack, &mut RuleCache::new(&mut []), LIMIT, visit)
        };
        let walked = Walked { visited, differs, stop };
        self.judge(number, thread, now.pc, &walked);
    }

    /// Counts a chain, and the place where it differs.
    fn judge(&mut self, number: usize, thread: &Thread, pc: u64, walked: &Walked) {
        let &Walked { visited, differs, stop } = walked;
        let space = &self.spaces[&thread.pid].space;
        let view = View {
            space,
            source: self.ways[number].source,
        };
        let shadow = &thread.shadow;
        let depth = shadow.depth();
        let counts = &mut self.outcome.counts[number];
        let (right, fault) = match differs {
            Some((at, _)) if at >= depth => (at, Some(Fault::Surplus)),
            Some((at, _)) if C::RETURNS_BY_STACK && is_overwritten(shadow, at, &mut self.stack) => {
                (at, Some(Fault::Overwritten))
            }
            Some((at, _)) => (at, Some(Fault::Wrong)),
            None if visited < depth => (visited, Some(stopped(stop))),
            None if stop != Stop::EndOfStack => (visited, Some(Fault::EndNotMarked)),
            None => (visited, None),
        };
        counts.frames += right as u64;
        match fault {
            None => counts.exact += 1,
            Some(fault) => {
                counts.differing += 1;
                let found = differs.map(|(_, frame)| frame);
                let place = place_of(number, shadow, pc, right, fault, &view);
                let seen = self.outcome.places.entry(place).or_default();
                if seen.instructions == 0 {
                    seen.example = example(shadow, pc, right, found, stop, space);
                }
                seen.instructions += 1;
            }
        }
    }
}

#[cold]
fn is_overwritten(shadow: &Shadow, frame: usize, stack: &mut Stack) -> bool {
    let entry = shadow.entry(frame).filter(|entry| entry.kind == AddressKind::Ra);
    entry.is_some_and(|entry| stack.word(entry.slot) != Some(entry.address))
}

/// The frame whose step went wrong. The error may be its callee's: one whose return address is said
/// to lie above its frame gave it a wrong stack pointer, and one of the C++ runtime that resumes in
/// a handler a wrong frame pointer.
#[cold]
fn place_of(way: usize, shadow: &Shadow, pc: u64, right: usize, fault: Fault, view: &View<'_>) -> Place {
    let code = |number: usize| {
        let frame = shadow.frame(pc, number)?;
        let is_call = frame.kind == AddressKind::Ra;
        Some((frame.address - u64::from(is_call), is_call))
    };
    let last = right.saturating_sub(1);
    // A frame that is missing among callers at the same address, as of a recursion, is missed only
    // behind them.
    let is_alike = |number: &usize| shadow.frame(pc, *number) == shadow.frame(pc, last);
    let first_alike = (0..=last).rev().take_while(is_alike).last().unwrap_or(last);
    let is_to_blame = |(address, is_call): &(u64, bool)| {
        view.returns_above_frame(*address)
            || view.function(*address).starts_with("_Unwind_")
            || !is_call && view.is_described_at_calls_only(*address)
            // Which the walk in the process may leave, but not enter another frame from.
            || fault == Fault::Stopped("limit") && view.is_in_init_or_fini(*address)
    };
    let callees = [
        right.checked_sub(2),
        first_alike.checked_sub(1),
        first_alike.checked_sub(2),
    ];
    let callees = callees.into_iter().flatten().filter_map(code);
    let callee = callees.filter(|_| fault != Fault::NotCovered).find(is_to_blame);
    let (address, is_call) = callee.or_else(|| code(last)).unwrap_or((pc, false));
    let (module, svma) = match view.space.find(address) {
        Some(mapped) => (
            mapped.module.path.to_string_lossy().into_owned(),
            address.wrapping_sub(mapped.bias),
        ),
        None => ("no module".to_owned(), address),
    };
    Place {
        way,
        module,
        svma,
        is_call,
        fault,
    }
}

/// A description of the first occurrence.
#[cold]
fn example(shadow: &Shadow, pc: u64, right: usize, found: Option<Frame>, stop: Stop, space: &Space) -> String {
    let name = |address: u64| match space.find(address) {
        Some(mapped) => {
            let svma = address.wrapping_sub(mapped.bias);
            let module = super::space::short(&mapped.module.path);
            format!("{module}:{svma:#x} {}", mapped.module.describe(svma))
        }
        None => format!("{address:#x}"),
    };
    let at = right.saturating_sub(1);
    let true_chain = (at.saturating_sub(1)..at + 4).map_while(|number| shadow.frame(pc, number));
    let true_chain: Vec<String> = true_chain.map(|frame| name(frame.address)).collect();
    let found = found.map_or_else(|| format!("{stop:?}"), |frame| name(frame.address));
    format!(
        "frame {at} of {}: {} but {found}",
        shadow.depth(),
        true_chain.join(" < ")
    )
}

/// Whether a handler starts here, on the kernel's frame. The interrupted place in it must be where
/// the thread was.
fn begins_handler<C: Cpu>(
    shadow: &mut Shadow,
    before: &Registers,
    now: &Registers,
    word: &mut dyn FnMut(u64) -> u64,
) -> bool {
    let frame = &C::ARCH.signal_frame;
    let sp = now.get(C::ARCH.sp).unwrap_or(0);
    let entry = C::signal_entry(now, word);
    let base = sp.wrapping_add(entry.frame);
    let pc = word(base.wrapping_add_signed(frame.pc_offset));
    let saved_sp = frame.registers.iter().find(|(register, _)| *register == C::ARCH.sp);
    let interrupted_sp = saved_sp.map_or(0, |(_, offset)| word(base.wrapping_add_signed(*offset)));
    // A restarted system call: its instruction, of 2 or 4 bytes.
    let stood_there = (before.pc.wrapping_sub(4)..=before.pc).contains(&pc);
    if !stood_there || before.get(C::ARCH.sp) != Some(interrupted_sp) {
        return false;
    }
    // stack_t: address, flags, size.
    let at = base.wrapping_add(entry.stack);
    let (start, size) = (word(at), word(at.wrapping_add(16)));
    let stack = start..start.saturating_add(size);
    let alternate = (stack.contains(&sp) && !stack.contains(&interrupted_sp)).then_some(stack);
    shadow.signal(pc, interrupted_sp, alternate, entry.restorer, sp);
    true
}

fn stopped(stop: Stop) -> Fault {
    match stop {
        Stop::NoTable | Stop::NoModule => Fault::NotCovered,
        Stop::EndOfStack => Fault::Stopped("end of stack"),
        Stop::Unreadable(_) => Fault::Stopped("unreadable"),
        Stop::DidNotAdvance => Fault::Stopped("did not advance"),
        Stop::NotExpressible(_) => Fault::Stopped("register not known"),
        Stop::NoCall => Fault::Stopped("no call"),
        Stop::NoStart => Fault::Stopped("no start"),
        Stop::Limit => Fault::Stopped("limit"),
    }
}

fn class_at<C: Cpu>(known: &mut Known, pid: i32, pc: u64) -> Class {
    *known.classes.entry(pc).or_insert_with(|| {
        let mut code = vec![0; C::LONGEST];
        let read = read_process(pid, pc, &mut code).unwrap_or(0);
        C::classify(&code[..read])
    })
}
