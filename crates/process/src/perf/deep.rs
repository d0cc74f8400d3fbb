//! Copies of the parts of stacks that samples have no room for.
//!
//! A record is at most 64 KiB long, so a sample's copy ends at some 60 KiB. For threads whose
//! stacks are deeper, a BPF program at the event copies what follows, at the same moment, into the
//! ring: its records come right before the sample's. Requires the right to load programs
//! (`CAP_BPF` and `CAP_PERFMON`).
//!
//! The sample's copy also ends at the first page that is not present; the program copies what lies
//! beyond such a hole, too. The recorder sets where a thread's stack ends, and no more than that is
//! copied; until it does, a little more is copied than what the sample has.
//!
//! A frame may be larger than all that may be copied, as those of functions that work in a buffer
//! on the stack. The word in which a walk was interrupted (an edge) mostly serves the next samples,
//! too: what follows it is copied in addition.
//!
//! Some threads have more than one stack: that of signal handlers, or OCaml 5's own and that of
//! the functions of C. Of a stack that the thread has left, a part is copied, too, from where walks
//! have ended before. Until that is known, it is a part around the stack pointer that the thread
//! had in its last sample on its own stack.
//!
//! Some code keeps the address of its frame below the stack pointer, where samples' copies do not
//! reach (OpenSSL's SHA-512): that is copied, too, for threads that have met such code.
//!
//! Events that threads inherit have the program that the event had then, so a program that only
//! continues with others is attached from the start.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use backtrail_arch::Arch;

use super::other_stacks::{self, OtherStacks};
use super::part::{self, VALUE_OF_CPU, part_copier};
use super::program::{Code, GoRegisters, Jumps, PAGE, PAGES, Target, helper, op, sp_offset};
use super::programs::{BEGIN, COPIER, OTHERS, PROGRAMS, TASKS, is_initial_namespace};
use super::task_stacks::{self, TaskStacks};
use super::walker::WalkLoader;
use crate::sys::{self, BpfMap, MapKind};

/// The most records of a sample.
const MOST_PARTS: i32 = 16;
/// Nanoseconds of a CPU's time per copied byte, as a power of two: 250 MB a second, which takes a
/// few percent of it. What it does not use it may use later, up to a limit.
const BYTE_NS_LOG: i32 = 2;
const MOST_SAVED: i32 = 4 << 20;
/// What is copied for a thread about which nothing is known counts this much more, as a power of
/// two: a program that starts many threads must not fill the ring with their stacks.
const NEW_WEIGHT_LOG: i32 = 2;
/// The most threads whose stacks are known.
const MOST_THREADS: u32 = 8192;
/// Records of a sample of a thread about which nothing is known.
const PARTS_OF_NEW: i32 = 12;
/// How far that is searched at most.
const BYTES_OF_NEW: i32 = 2 << 20;
/// Pages that are skipped at most to find the other end of a hole in a stack: of a thread that is
/// known, whose edges lie beyond wide ones, and of others. For these, only each fourth page is
/// tried: the memory above the short stacks of most threads is one wide hole.
const PAGES_OF_HOLE: usize = 16;
const PAGES_OF_NEW_HOLE: usize = 256;
const STRIDE: usize = 4;
/// Words that are known of a thread: where its stack begins and ends, the bytes to be copied below
/// the stack pointer, its edges, and two that the program writes.
const VALUE_WORDS: usize = 5 + MOST_EDGES;
/// The words that the program writes: the last stack pointer in the thread's stack, and how often
/// something around that may still be copied while the thread is on another one.
const LAST_SP: usize = 3 + MOST_EDGES;
const TRIES: usize = LAST_SP + 1;
/// How often at first: the recorder mostly learns in this time whether these copies are of use.
const MOST_TRIES: u64 = 32;
/// What is copied around the page of that stack pointer: bytes below it, and from it on.
const BELOW_LAST: i32 = 8 << 10;
const ABOVE_LAST: i32 = 24 << 10;
const VALUE: u32 = 8 * VALUE_WORDS as u32;
/// Words that are known of a stack that a thread has left.
const WORDS_OF_LEFT: usize = 4;
const VALUE_OF_LEFT: u32 = 8 * (WORDS_OF_LEFT * MOST_LEFT) as u32;
/// Records for each edge.
const PARTS_OF_EDGE: usize = 1;

/// The threads whose deep stacks are copied.
#[derive(Clone, Debug)]
pub struct DeepStacks {
    threads: Rc<BpfMap>,
    left: Rc<BpfMap>,
    most_bytes: u32,
}

/// The most edges of a stack.
pub const MOST_EDGES: usize = 6;

/// Places in a stack at which copies of it go on; 0: none.
pub type Edges = [u64; MOST_EDGES];

/// The most stacks of a thread beside the one that it is on.
pub const MOST_LEFT: usize = 2;

/// The most bytes that are copied of each.
pub const BYTES_OF_LEFT: u64 = 32 << 10;

/// A stack that a thread leaves for another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftStack {
    /// The stack; empty for none. Nothing of it is copied while the thread is on it.
    pub stack: Range<u64>,
    /// From where on it is copied: [`BYTES_OF_LEFT`], or up to its end.
    pub from: u64,
}

impl LeftStack {
    /// What is copied.
    pub fn part(&self) -> Range<u64> {
        self.from..self.from.saturating_add(BYTES_OF_LEFT).min(self.stack.end)
    }
}

impl DeepStacks {
    /// Copies parts of stacks that the thread has left from now on.
    ///
    /// # Errors
    ///
    /// If there are too many threads.
    pub fn add_left(&self, tid: u32, left: &[LeftStack; MOST_LEFT]) -> io::Result<()> {
        let mut value = [0; WORDS_OF_LEFT * MOST_LEFT];
        for (words, left) in value.chunks_exact_mut(WORDS_OF_LEFT).zip(left) {
            let part = left.part();
            if part.start < part.end {
                words.copy_from_slice(&[left.stack.start, left.stack.end, part.start, part.end]);
            }
        }
        self.left
            .set(&tid.to_ne_bytes(), value.map(u64::to_ne_bytes).as_flattened())
    }

    /// Copies more of a thread's stack from now on, up to the end of the mapping that contains it:
    /// what lies from each edge on, and then what follows the sample's own copy. Thus frames
    /// outside of a large one are known without a copy of that one.
    /// With `below`, also what the code has put below the stack pointer. What the thread had in a
    /// sample, `sp`, counts if it lies in that stack.
    pub fn add(&self, tid: u32, stack: &Range<u64>, sp: u64, below: bool, edges: Edges) -> io::Result<()> {
        let mut value = [0; VALUE_WORDS];
        let below = if below { Arch::native().red_zone } else { 0 };
        value[..3].copy_from_slice(&[stack.start, stack.end, below]);
        value[3..LAST_SP].copy_from_slice(&edges);
        value[LAST_SP] = if stack.contains(&sp) { sp } else { 0 };
        value[TRIES] = MOST_TRIES;
        self.threads
            .set(&tid.to_ne_bytes(), value.map(u64::to_ne_bytes).as_flattened())
    }

    /// The most bytes beyond a sample's copy.
    pub fn most_bytes(&self) -> u32 {
        self.most_bytes
    }

    /// No longer does so.
    pub fn remove(&self, tid: u32) {
        // The thread may have ended.
        let _ = self.threads.remove(&tid.to_ne_bytes());
        let _ = self.left.remove(&tid.to_ne_bytes());
    }
}

/// The program at the events, from the start.
#[derive(Debug)]
pub(super) struct Dispatcher {
    next: BpfMap,
    program: OwnedFd,
    /// Of the timer.
    period_ns: u64,
    outputs: Option<Outputs>,
    begun: Option<DeepStacks>,
    others: Option<OtherStacks>,
    tasks: Option<TaskStacks>,
}

/// Each CPU's event that is written to, and the map of them, which forgets them when closed.
#[derive(Debug)]
struct Outputs {
    events: BpfMap,
    /// One more than the highest number of a CPU.
    cpus: u32,
    by_cpu: Vec<(u32, OwnedFd)>,
}

impl Outputs {
    /// Into these rings, each of a CPU.
    fn open<'r>(rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>) -> Option<Outputs> {
        let rings: Vec<_> = rings.collect();
        let cpus = rings.iter().map(|&(cpu, _)| cpu + 1).max()?;
        let events = BpfMap::new(MapKind::Events, 4, 4, cpus).ok()?;
        let mut by_cpu = Vec::with_capacity(rings.len());
        for (cpu, ring) in rings {
            let output = sys::open_program_output(cpu as i32, super::records::DEEP_SAMPLE_TYPE).ok()?;
            sys::redirect_output(&output, ring).ok()?;
            events.set(&cpu.to_ne_bytes(), &output.as_raw_fd().to_ne_bytes()).ok()?;
            by_cpu.push((cpu, output));
        }
        Some(Outputs { events, cpus, by_cpu })
    }
}

/// The known outputs, or else new ones into these rings.
fn outputs<'o, 'r>(
    known: &'o mut Option<Outputs>,
    rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>,
) -> Option<&'o Outputs> {
    if known.is_none() {
        *known = Outputs::open(rings);
    }
    known.as_ref()
}

impl Dispatcher {
    /// `None` if programs may not be loaded.
    pub(super) fn new(frequency: u64) -> Option<Dispatcher> {
        sp_offset()?;
        let next = BpfMap::new(MapKind::Programs, 4, 4, PROGRAMS).ok()?;
        let mut code = Code::default();
        code.push(op::COPY, register::CONTEXT, 1, 0, 0);
        for program in [BEGIN, OTHERS, TASKS, COPIER] {
            code.continue_with(next.as_fd(), program);
        }
        code.exit();
        let program = code.load().ok()?;
        Some(Dispatcher {
            next,
            program,
            period_ns: 1_000_000_000 / frequency.max(1),
            outputs: None,
            begun: None,
            others: None,
            tasks: None,
        })
    }

    /// How many records of programs a CPU's ring had no room for; 0 if the kernel does not say.
    pub(super) fn lost(&self, cpu: u32) -> u64 {
        let outputs = self.outputs.iter().flat_map(|outputs| &outputs.by_cpu);
        let mut of_cpu = outputs.filter(|(of, _)| *of == cpu);
        of_cpu.next().map_or(0, |(_, output)| sys::lost_by_output(output))
    }

    pub(super) fn attach(&self, event: impl AsFd) -> io::Result<()> {
        sys::set_program(event, &self.program)
    }

    /// Loads the program that walks, with records into these rings, each of a CPU.
    pub(super) fn walk_loader<'r>(&mut self, rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>) -> Option<WalkLoader> {
        let outputs = outputs(&mut self.outputs, rings)?;
        Some(WalkLoader {
            cpus: outputs.cpus,
            period_ns: self.period_ns,
            programs: self.next.try_clone().ok()?,
            events: outputs.events.try_clone().ok()?,
        })
    }

    /// Starts to copy into these rings, each of a CPU, beyond copies of `stack_bytes`.
    pub(super) fn begin<'r>(
        &mut self,
        stack_bytes: u32,
        rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>,
    ) -> Option<DeepStacks> {
        if let Some(begun) = &self.begun {
            return Some(begun.clone());
        }
        if !is_initial_namespace() {
            return None;
        }
        let outputs = outputs(&mut self.outputs, rings)?;
        let threads = BpfMap::new(MapKind::Hash, 4, VALUE, MOST_THREADS).ok()?;
        let left = BpfMap::new(MapKind::Hash, 4, VALUE_OF_LEFT, MOST_THREADS).ok()?;
        let buffers = BpfMap::new(MapKind::Array, 4, VALUE_OF_CPU, outputs.cpus).ok()?;
        let code = copier(
            sp_offset()?,
            stack_bytes as i32,
            (threads.as_fd(), left.as_fd()),
            Target {
                buffers: buffers.as_fd(),
                events: outputs.events.as_fd(),
            },
        );
        let program = code.load().ok()?;
        self.install(COPIER, &program).ok()?;
        let stacks = DeepStacks {
            threads: Rc::new(threads),
            left: Rc::new(left),
            most_bytes: (MOST_PARTS * PAGES * PAGE) as u32,
        };
        self.begun = Some(stacks.clone());
        Some(stacks)
    }

    /// Starts to copy parts of stacks that threads have left for another one, and what lies beyond
    /// copies of `stack_bytes`, into these rings.
    pub(super) fn other_stacks<'r>(
        &mut self,
        stack_bytes: u32,
        rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>,
    ) -> Option<OtherStacks> {
        if self.others.is_none() {
            let registers = GoRegisters::offsets()?;
            self.others = self.copy(OTHERS, rings, OtherStacks::new, |sp, stacks, target, next| {
                other_stacks::copier(sp, registers, stack_bytes as i32, stacks, target, next)
            });
        }
        self.others.clone()
    }

    /// Starts to copy the stacks of tasks into these rings.
    pub(super) fn task_stacks<'r>(&mut self, rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>) -> Option<TaskStacks> {
        if self.tasks.is_none() {
            self.tasks = self.copy(TASKS, rings, TaskStacks::new, task_stacks::copier);
        }
        self.tasks.clone()
    }

    /// Installs a program that copies other stacks into these rings, by the map of threads that it
    /// needs, and continues with the copier of the rest.
    fn copy<'r, S>(
        &mut self,
        number: u32,
        rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>,
        threads: impl FnOnce() -> io::Result<S>,
        copier: impl FnOnce(i16, &S, Target<'_>, (BorrowedFd<'_>, u32)) -> Code,
    ) -> Option<S> {
        if !is_initial_namespace() {
            return None;
        }
        let outputs = outputs(&mut self.outputs, rings)?;
        let threads = threads().ok()?;
        let buffers = BpfMap::new(MapKind::Array, 4, VALUE_OF_CPU, outputs.cpus).ok()?;
        let target = Target {
            buffers: buffers.as_fd(),
            events: outputs.events.as_fd(),
        };
        let code = copier(sp_offset()?, &threads, target, (self.next.as_fd(), COPIER));
        // The program keeps the buffers.
        let program = code.load().ok()?;
        self.install(number, &program).ok()?;
        Some(threads)
    }

    fn install(&self, number: u32, program: &OwnedFd) -> io::Result<()> {
        let program = program.as_raw_fd().to_ne_bytes();
        self.next.set(&number.to_ne_bytes(), &program)
    }
}

/// Registers that calls preserve, and the frame pointer.
mod register {
    pub(super) const CONTEXT: u8 = 6;
    pub(super) const NEXT: u8 = 7;
    pub(super) const SP: u8 = 8;
    pub(super) const STATE: u8 = 9;
    pub(super) const FRAME: u8 = 10;
}

/// Places in the CPU's state. Everything that changes is kept there, because the kernel's verifier
/// takes what is loaded from there for any number: it sees one state where it would otherwise
/// follow each way through the program by itself, which took most of a second.
mod place {
    pub(super) use super::part::place::LEFT;
    use super::part::place::OWN;

    /// The time of the last sample, and the bytes that may be copied.
    pub(super) const TIME: i16 = OWN;
    pub(super) const SAVED: i16 = OWN + 8;
    /// What is known of the thread, or what holds for those of which nothing is.
    pub(super) const START: i16 = OWN + 16;
    pub(super) const END: i16 = OWN + 24;
    pub(super) const BELOW: i16 = OWN + 32;
    /// Where the rest of the stack begins.
    pub(super) const COPIED: i16 = OWN + 40;
    pub(super) const NEXT: i16 = OWN + 48;
    /// Whether nothing is known of the thread.
    pub(super) const IS_NEW: i16 = OWN + 56;
    /// Whether it is known which stacks the thread leaves.
    pub(super) const KNOWS_LEFT: i16 = OWN + 64;
    /// That of the first edge; the others follow.
    pub(super) const EDGES: i16 = OWN + 72;
    /// What is known of the first stack that was left: its start and end, and those of the part.
    pub(super) const STACKS: i16 = EDGES + 8 * super::MOST_EDGES as i16;
    const FREE: i16 = STACKS + 8 * (super::WORDS_OF_LEFT * super::MOST_LEFT) as i16;
    const _: () = assert!(FREE as i32 <= super::part::RECORD);
}

/// The place in the program's frame to which bytes are read whose value does not matter.
const PROBE: i16 = -16;

/// Copies what follows the first `stack_bytes` of the stack, in up to 16 records, if the
/// thread is on the stack that `threads` gives for it: first what lies beyond the edges that are
/// known, and then what follows the copy. Threads that are not known have a little copied, too.
fn copier(
    sp_offset: i16,
    stack_bytes: i32,
    (threads, left): (BorrowedFd<'_>, BorrowedFd<'_>),
    target: Target<'_>,
) -> Code {
    use register::{CONTEXT, NEXT, SP, STATE};
    let mut code = Code::default();
    let (mut out, mut calls) = (Jumps::default(), Jumps::default());
    code.push(op::COPY, CONTEXT, 1, 0, 0);
    code.load_sp(sp_offset);
    // A thread of the kernel has no other stack.
    code.jump(&mut out, op::JUMP_IF_NUMBER, SP, 0, 0);
    code.call(helper::CPU);
    code.look_up(&mut out, target.buffers);
    code.push(op::COPY, STATE, 0, 0, 0);
    copy_left(&mut code, &mut calls, left);
    set_limits(&mut code, &mut out, &mut calls, stack_bytes, threads);
    save(&mut code);
    let mut above = Jumps::default();
    code.push(op::LOAD, 4, STATE, place::BELOW, 0);
    code.jump(&mut above, op::JUMP_IF_NUMBER, 4, 0, 0);
    code.push(op::COPY, NEXT, SP, 0, 0);
    code.push(op::SUBTRACT_REGISTER, NEXT, 4, 0, 0);
    code.push(op::COPY, 5, SP, 0, 0);
    call_part(&mut code, &mut calls);
    code.land(above);
    find_rest(&mut code, &mut out, stack_bytes);
    code.push(op::STORE, STATE, NEXT, place::COPIED, 0);
    // One part from NEXT on; goes to `end` if it is not a whole one.
    let part = |code: &mut Code, out: &mut Jumps, calls: &mut Jumps, end: &mut Jumps| {
        code.push(op::LOAD, 1, STATE, place::LEFT, 0);
        code.jump(out, op::JUMP_IF_NUMBER, 1, 0, 0);
        code.push(op::ADD, 1, 0, 0, -1);
        code.push(op::STORE, STATE, 1, place::LEFT, 0);
        code.push(op::LOAD, 5, STATE, place::END, 0);
        call_part(code, calls);
        code.push(op::COPY, 1, 0, 0, 0);
        code.push(op::SUBTRACT_REGISTER, 1, NEXT, 0, 0);
        code.push(op::COPY, NEXT, 0, 0, 0);
        code.push(op::COPY, 3, 1, 0, 0);
        code.push(op::LOAD, 2, STATE, place::IS_NEW, 0);
        code.push(op::JUMP_IF_NUMBER, 2, 0, 1, 0);
        code.push(op::SHIFT_LEFT, 3, 0, 0, NEW_WEIGHT_LOG);
        code.push(op::LOAD, 2, STATE, place::SAVED, 0);
        code.push(op::JUMP_IF_NOT_BELOW, 2, 3, 1, 0);
        code.push(op::COPY, 3, 2, 0, 0);
        code.push(op::SUBTRACT_REGISTER, 2, 3, 0, 0);
        code.push(op::STORE, STATE, 2, place::SAVED, 0);
        code.jump(end, op::JUMP_IF_AT_MOST, 1, 0, (PAGES - 1) * PAGE);
        forget(code);
    };
    for edge in edges() {
        let mut next = Jumps::default();
        code.push(op::LOAD, NEXT, STATE, edge, 0);
        code.push(op::LOAD, 1, STATE, place::COPIED, 0);
        code.jump(&mut next, op::JUMP_IF_BELOW, NEXT, 1, 0);
        code.push(op::LOAD, 1, STATE, place::END, 0);
        code.jump(&mut next, op::JUMP_IF_NOT_BELOW, NEXT, 1, 0);
        for _ in 0..PARTS_OF_EDGE {
            part(&mut code, &mut out, &mut calls, &mut next);
        }
        code.land(next);
    }
    let (mut end, mut searches) = (Jumps::default(), Jumps::default());
    code.push(op::LOAD, NEXT, STATE, place::COPIED, 0);
    for _ in 0..MOST_PARTS {
        let (mut hole, mut next) = (Jumps::default(), Jumps::default());
        part(&mut code, &mut out, &mut calls, &mut hole);
        code.jump(&mut next, op::JUMP, 0, 0, 0);
        code.land(hole);
        code.push(op::COPY, 1, NEXT, 0, 0);
        code.push(op::LOAD, 2, STATE, place::END, 0);
        code.call_own(&mut searches);
        code.push(op::COPY, NEXT, 0, 0, 0);
        code.jump(&mut end, op::JUMP_IF_NUMBER, NEXT, 0, 0);
        forget(&mut code);
        code.land(next);
    }
    code.land(end);
    code.land(out);
    code.exit();
    part_copier(&mut code, calls, target);
    hole_search(&mut code, searches);
    code
}

/// Searches the end of a hole: a function of the first page that is not present, and of the address
/// at which to end; returns the first page after it that is present, or 0. A few functions with
/// large buffers have several holes in their frames.
fn hole_search(code: &mut Code, calls: Jumps) {
    const AT: u8 = 6;
    const END: u8 = 7;
    let (mut none, mut found) = (Jumps::default(), Jumps::default());
    code.land_calls(calls, true);
    code.push(op::COPY, AT, 1, 0, 0);
    code.push(op::COPY, END, 2, 0, 0);
    code.push(op::AND, AT, 0, 0, -PAGE);
    for _ in 0..PAGES_OF_HOLE {
        code.push(op::ADD, AT, 0, 0, PAGE);
        code.jump(&mut none, op::JUMP_IF_NOT_BELOW, AT, END, 0);
        probe(code, AT);
        code.jump(&mut found, op::JUMP_IF_NUMBER, 0, 0, 0);
    }
    code.land(none);
    code.push(op::MOV, AT, 0, 0, 0);
    code.land(found);
    code.push(op::COPY, 0, AT, 0, 0);
    code.push(op::EXIT, 0, 0, 0, 0);
}

/// Copies parts of the stacks that the thread has left.
fn copy_left(code: &mut Code, calls: &mut Jumps, left: BorrowedFd<'_>) {
    use register::{NEXT, SP, STATE};
    let mut none = Jumps::default();
    code.push(op::STORE_NUMBER, STATE, 0, place::KNOWS_LEFT, 0);
    code.call(helper::PID_TGID);
    code.look_up(&mut none, left);
    code.push(op::STORE_NUMBER, STATE, 0, place::KNOWS_LEFT, 1);
    for word in 0..(WORDS_OF_LEFT * MOST_LEFT) as i16 {
        code.push(op::LOAD, 1, 0, 8 * word, 0);
        code.push(op::STORE, STATE, 1, place::STACKS + 8 * word, 0);
    }
    for index in 0..MOST_LEFT {
        let start = place::STACKS + (8 * WORDS_OF_LEFT * index) as i16;
        let (end, from, to) = (start + 8, start + 16, start + 24);
        let (mut next, mut elsewhere) = (Jumps::default(), Jumps::default());
        code.push(op::LOAD, 1, STATE, to, 0);
        code.jump(&mut next, op::JUMP_IF_NUMBER, 1, 0, 0);
        code.push(op::LOAD, 1, STATE, start, 0);
        code.jump(&mut elsewhere, op::JUMP_IF_BELOW, SP, 1, 0);
        code.push(op::LOAD, 1, STATE, end, 0);
        code.jump(&mut next, op::JUMP_IF_BELOW, SP, 1, 0);
        code.land(elsewhere);
        code.push(op::LOAD, NEXT, STATE, from, 0);
        code.push(op::LOAD, 5, STATE, to, 0);
        call_part(code, calls);
        code.land(next);
    }
    code.land(none);
}

/// Puts into the state where the thread's stack ends, what else is to be copied, and how much. Goes
/// `out` if the thread is on another stack.
fn set_limits(code: &mut Code, out: &mut Jumps, calls: &mut Jumps, stack_bytes: i32, threads: BorrowedFd<'_>) {
    use register::{SP, STATE};
    let (mut new, mut ready, mut elsewhere) = (Jumps::default(), Jumps::default(), Jumps::default());
    code.call(helper::PID_TGID);
    code.look_up(&mut new, threads);
    let places = [place::START, place::END, place::BELOW].into_iter().chain(edges());
    for (word, place) in (0..).zip(places) {
        code.push(op::LOAD, 1, 0, 8 * word, 0);
        code.push(op::STORE, STATE, 1, place, 0);
    }
    code.push(op::LOAD, 1, STATE, place::START, 0);
    code.jump(&mut elsewhere, op::JUMP_IF_BELOW, SP, 1, 0);
    code.push(op::LOAD, 1, STATE, place::END, 0);
    code.jump(&mut elsewhere, op::JUMP_IF_NOT_BELOW, SP, 1, 0);
    code.push(op::STORE, 0, SP, word(LAST_SP), 0);
    code.push(op::STORE_NUMBER, STATE, 0, place::LEFT, MOST_PARTS);
    code.push(op::STORE_NUMBER, STATE, 0, place::IS_NEW, 0);
    code.jump(&mut ready, op::JUMP, 0, 0, 0);
    code.land(elsewhere);
    copy_last(code, out, calls);
    code.jump(out, op::JUMP, 0, 0, 0);
    code.land(new);
    code.push(op::COPY, 1, SP, 0, 0);
    code.push(op::ADD, 1, 0, 0, stack_bytes + BYTES_OF_NEW);
    code.push(op::STORE, STATE, 1, place::END, 0);
    code.push(op::STORE_NUMBER, STATE, 0, place::BELOW, Arch::native().red_zone as i32);
    for edge in edges() {
        code.push(op::STORE_NUMBER, STATE, 0, edge, 0);
    }
    code.push(op::STORE_NUMBER, STATE, 0, place::LEFT, PARTS_OF_NEW);
    code.push(op::STORE_NUMBER, STATE, 0, place::IS_NEW, 1);
    code.land(ready);
}

/// Copies a part of the stack that the thread has just left, if it is not known which ones it
/// leaves: around the page of its last stack pointer there. What is known of the thread is at the
/// address in register 0.
fn copy_last(code: &mut Code, out: &mut Jumps, calls: &mut Jumps) {
    use register::{NEXT, STATE};
    code.push(op::LOAD, 1, STATE, place::KNOWS_LEFT, 0);
    code.jump(out, op::JUMP_UNLESS_NUMBER, 1, 0, 0);
    code.push(op::LOAD, NEXT, 0, word(LAST_SP), 0);
    code.jump(out, op::JUMP_IF_NUMBER, NEXT, 0, 0);
    code.push(op::LOAD, 1, 0, word(TRIES), 0);
    code.jump(out, op::JUMP_IF_NUMBER, 1, 0, 0);
    code.push(op::ADD, 1, 0, 0, -1);
    code.push(op::STORE, 0, 1, word(TRIES), 0);
    code.push(op::AND, NEXT, 0, 0, -PAGE);
    code.push(op::COPY, 5, NEXT, 0, 0);
    code.push(op::ADD, 5, 0, 0, ABOVE_LAST);
    code.push(op::LOAD, 1, STATE, place::END, 0);
    code.push(op::JUMP_IF_NOT_BELOW, 1, 5, 1, 0);
    code.push(op::COPY, 5, 1, 0, 0);
    call_part(code, calls);
    // Apart, since the page at which it begins may not be present.
    code.push(op::COPY, 5, NEXT, 0, 0);
    code.push(op::ADD, NEXT, 0, 0, -BELOW_LAST);
    call_part(code, calls);
}

/// Where a word is in what is known of a thread.
fn word(index: usize) -> i16 {
    8 * index as i16
}

/// Adds what this CPU may copy for the time since its last sample, and limits the records that may
/// be written to those that this is enough for.
fn save(code: &mut Code) {
    use register::STATE;
    code.call(helper::TIME);
    code.push(op::LOAD, 2, STATE, place::TIME, 0);
    code.push(op::STORE, STATE, 0, place::TIME, 0);
    code.push(op::SUBTRACT_REGISTER, 0, 2, 0, 0);
    code.push(op::SHIFT_RIGHT, 0, 0, 0, BYTE_NS_LOG);
    code.push(op::LOAD, 2, STATE, place::SAVED, 0);
    code.push(op::ADD_REGISTER, 0, 2, 0, 0);
    code.push(op::JUMP_IF_AT_MOST, 0, 0, 1, MOST_SAVED);
    code.push(op::MOV, 0, 0, 0, MOST_SAVED);
    code.push(op::STORE, STATE, 0, place::SAVED, 0);
    code.push(op::DIVIDE, 0, 0, 0, PAGES * PAGE);
    code.push(op::LOAD, 2, STATE, place::LEFT, 0);
    code.push(op::JUMP_IF_NOT_BELOW, 0, 2, 1, 0);
    code.push(op::STORE, STATE, 0, place::LEFT, 0);
}

/// Leads NEXT to what the sample's copy lacks of the stack: what follows it, or lies beyond the
/// first page that is not present. Goes `out` if there is nothing.
fn find_rest(code: &mut Code, out: &mut Jumps, stack_bytes: i32) {
    use register::{NEXT, SP, STATE};
    let next_page = |code: &mut Code, out: &mut Jumps, pages: usize| {
        code.push(op::AND, NEXT, 0, 0, -PAGE);
        code.push(op::ADD, NEXT, 0, 0, pages as i32 * PAGE);
        forget(code);
        code.push(op::LOAD, 1, STATE, place::END, 0);
        code.jump(out, op::JUMP_IF_NOT_BELOW, NEXT, 1, 0);
    };
    let (mut hole, mut found) = (Jumps::default(), Jumps::default());
    code.push(op::COPY, NEXT, SP, 0, 0);
    for _ in 0..stack_bytes / PAGE {
        probe(code, NEXT);
        code.jump(&mut hole, op::JUMP_UNLESS_NUMBER, 0, 0, 0);
        next_page(code, out, 1);
    }
    code.push(op::COPY, NEXT, SP, 0, 0);
    code.push(op::ADD, NEXT, 0, 0, stack_bytes);
    code.push(op::LOAD, 1, STATE, place::END, 0);
    code.jump(out, op::JUMP_IF_NOT_BELOW, NEXT, 1, 0);
    code.jump(&mut found, op::JUMP, 0, 0, 0);
    code.land(hole);
    let search = |code: &mut Code, out: &mut Jumps, found: &mut Jumps, probes: usize, pages: usize| {
        for _ in 0..probes {
            next_page(code, out, pages);
            probe(code, NEXT);
            code.jump(found, op::JUMP_IF_NUMBER, 0, 0, 0);
        }
    };
    search(code, out, &mut found, PAGES_OF_HOLE, 1);
    code.push(op::LOAD, 1, STATE, place::IS_NEW, 0);
    code.jump(&mut found, op::JUMP_IF_NUMBER, 1, 0, 0);
    let mut near = Jumps::default();
    search(
        code,
        out,
        &mut near,
        (PAGES_OF_NEW_HOLE - PAGES_OF_HOLE) / STRIDE,
        STRIDE,
    );
    code.jump(&mut found, op::JUMP, 0, 0, 0);
    code.land(near);
    code.push(op::ADD, NEXT, 0, 0, -(STRIDE as i32) * PAGE);
    search(code, out, &mut found, STRIDE, 1);
    // Nothing follows it soon, but there may be edges further outside.
    code.land(found);
    forget(code);
}

/// Leaves 0 in register 0 if the page of the address in a register is present.
fn probe(code: &mut Code, address: u8) {
    code.push(op::COPY, 1, register::FRAME, 0, 0);
    code.push(op::ADD, 1, 0, 0, PROBE.into());
    code.push(op::MOV, 2, 0, 0, 1);
    code.push(op::COPY, 3, address, 0, 0);
    code.call(helper::READ_USER);
}

/// Nothing is known about NEXT from here on.
fn forget(code: &mut Code) {
    use register::{NEXT, STATE};
    code.push(op::STORE, STATE, NEXT, place::NEXT, 0);
    code.push(op::LOAD, NEXT, STATE, place::NEXT, 0);
}

/// The places of edges in the state.
fn edges() -> impl Iterator<Item = i16> {
    (0..MOST_EDGES as i16).map(|edge| place::EDGES + 8 * edge)
}

/// Calls the part's copier for what lies from NEXT to the address in register 5.
fn call_part(code: &mut Code, calls: &mut Jumps) {
    use register::{CONTEXT, NEXT, SP, STATE};
    for (argument, value) in (1..).zip([CONTEXT, STATE, SP, NEXT]) {
        code.push(op::COPY, argument, value, 0, 0);
    }
    code.call_own(calls);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_accepts_the_programs() {
        let Some(mut dispatcher) = Dispatcher::new(997) else {
            println!("SKIPPED: no programs may be loaded here");
            return;
        };
        let stacks = dispatcher.begin(61_440, [].into_iter());
        assert!(stacks.is_none(), "there is no ring");
        let map = |kind, value| BpfMap::new(kind, 4, value, 8).expect("others could be created");
        let (threads, buffers) = (map(MapKind::Hash, VALUE), map(MapKind::Array, VALUE_OF_CPU));
        let left = map(MapKind::Hash, VALUE_OF_LEFT);
        let events = map(MapKind::Events, 4);
        let sp = sp_offset().expect("there is a dispatcher");
        let code = copier(
            sp,
            61_440,
            (threads.as_fd(), left.as_fd()),
            Target {
                buffers: buffers.as_fd(),
                events: events.as_fd(),
            },
        );
        code.load().expect("it is like the dispatcher");
    }
}
