//! Copies of the parts of stacks that samples have no room for.
//!
//! A record is at most 64 KiB long, so a sample's copy ends at some 60 KiB. For threads whose
//! stacks are deeper, a BPF program at the event copies what follows, at the same moment, into the
//! ring: its records come right before the sample's. Requires the right to load programs
//! (`CAP_BPF` and `CAP_PERFMON`).
//!
//! The sample's copy also ends at the first page that is not present; the program copies what lies
//! beyond such a hole, too. The recorder says where a thread's stack ends, so that no more than
//! that is copied; until it does, a little more is copied than what the sample has.
//!
//! A frame may be larger than all that may be copied, as those of functions that work in a buffer
//! on the stack. The word in which a walk was interrupted (an edge) mostly serves the next samples,
//! too: what follows it is copied in addition.
//!
//! Some code keeps the address of its frame below the stack pointer, where samples' copies do not
//! reach (OpenSSL's SHA-512): that is copied, too, for threads that have met such code.
//!
//! Events that threads inherit have the program that the event had then, so a program that only
//! continues with others is attached from the start.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use backtrail_arch::Arch;

use super::other_stacks::{self, OtherStacks};
use super::program::{Code, Jumps, Target, VALUE_OF_CPU as VALUE_OF_OTHERS, helper, op, sp_offset};
use super::programs::{BEGIN, COPIER, LICENSE, OTHERS, PROGRAMS, is_initial_namespace};
use super::records::DEEP_PART;
use super::walker::{KernelTables, WalkProgram, Walker};
use crate::sys::{self, BpfMap, MapKind};

/// Bytes of a page: also where pages are larger, parts of them are copied.
const PAGE: i32 = 4096;
/// Pages of a record.
const PAGES: i32 = 15;
/// The most records of a sample.
const MOST_PARTS: i32 = 16;
/// A CPU may copy one byte in this many nanoseconds, as a power of two: 250 MB a second, which
/// takes a few percent of it. What it does not use it may use later, up to a limit.
const BYTE_NS_LOG: i32 = 2;
const MOST_SAVED: i32 = 4 << 20;
/// Bytes before the copied ones: the mark (4), the stack pointer, and the first address (8 each).
const HEAD: i32 = 20;
/// Keeps what follows the mark aligned.
const PAD: i32 = 4;
/// What each CPU has.
const VALUE_OF_CPU: u32 = (STATE + BUFFER) as u32;
const BUFFER: i32 = PAD + HEAD + PAGES * PAGE;
/// Before the buffer: the time of the last sample, and the bytes that may be copied.
const TIME: i16 = 0;
const SAVED: i16 = 8;
const STATE: i32 = 16;
/// The most threads whose stacks are known.
const MOST_THREADS: u32 = 8192;
/// Records of a sample of a thread about which nothing is known.
const PARTS_OF_NEW: i32 = 2;
/// Pages that are skipped at most to find the other end of a hole in its stack.
const PAGES_OF_HOLE: usize = 16;
/// Words that are known of a thread: where its stack begins and ends, the bytes to be copied below
/// the stack pointer, and its edges.
const VALUE_WORDS: usize = 3 + MOST_EDGES;
const VALUE: u32 = 8 * VALUE_WORDS as u32;
/// Records for each edge.
const PARTS_OF_EDGE: usize = 1;

/// The threads whose deep stacks are copied.
#[derive(Clone, Debug)]
pub struct DeepStacks {
    threads: Rc<BpfMap>,
    most_bytes: u32,
}

/// The most edges of a stack.
pub const MOST_EDGES: usize = 6;

/// Places in a stack at which copies of it go on; 0: none.
pub type Edges = [u64; MOST_EDGES];

impl DeepStacks {
    /// Copies more of a thread's stack from now on, up to the end of the mapping that contains it:
    /// what lies from each edge on, and then what follows the sample's own copy. Thus frames
    /// outside of a large one are known without a copy of that one.
    /// With `below`, also what the code has put below the stack pointer.
    pub fn add(&self, tid: u32, stack: &std::ops::Range<u64>, below: bool, edges: Edges) -> io::Result<()> {
        let mut value = [0; VALUE_WORDS];
        let below = if below { Arch::native().red_zone } else { 0 };
        value[..3].copy_from_slice(&[stack.start, stack.end, below]);
        value[3..].copy_from_slice(&edges);
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
    }
}

/// The program at the events, from the start.
#[derive(Debug)]
pub(super) struct Dispatcher {
    next: BpfMap,
    program: OwnedFd,
    outputs: Option<Outputs>,
    walker: Option<Walker>,
    begun: Option<DeepStacks>,
    others: Option<OtherStacks>,
}

/// Each CPU's event that is written to, and the map of them, which forgets them when closed.
#[derive(Debug)]
struct Outputs {
    events: BpfMap,
    /// One more than the highest number of a CPU.
    cpus: u32,
    _by_cpu: Vec<OwnedFd>,
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
            by_cpu.push(output);
        }
        Some(Outputs {
            events,
            cpus,
            _by_cpu: by_cpu,
        })
    }
}

impl Dispatcher {
    /// `None` if programs may not be loaded.
    pub(super) fn new() -> Option<Dispatcher> {
        sp_offset()?;
        let next = BpfMap::new(MapKind::Programs, 4, 4, PROGRAMS).ok()?;
        let mut code = Code::default();
        code.push(op::COPY, register::CONTEXT, 1, 0, 0);
        for program in [BEGIN, OTHERS, COPIER] {
            code.continue_with(next.as_fd(), program);
        }
        code.exit();
        let program = sys::load_program(&code.instructions, LICENSE).ok()?;
        Some(Dispatcher {
            next,
            program,
            outputs: None,
            walker: None,
            begun: None,
            others: None,
        })
    }

    pub(super) fn attach(&self, event: impl AsFd) -> io::Result<()> {
        sys::set_program(event, &self.program)
    }

    /// Starts to walk stacks in the kernel, with records into these rings, each of a CPU.
    pub(super) fn walk<'r>(
        &mut self,
        program: &WalkProgram,
        rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>,
    ) -> Option<KernelTables> {
        if self.outputs.is_none() {
            self.outputs = Outputs::open(rings);
        }
        let outputs = self.outputs.as_ref()?;
        let walker = Walker::load(program, outputs.cpus, &self.next, &outputs.events).ok()?;
        Some(self.walker.insert(walker).tables())
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
        if self.outputs.is_none() {
            self.outputs = Outputs::open(rings);
        }
        let outputs = self.outputs.as_ref()?;
        let threads = BpfMap::new(MapKind::Hash, 4, VALUE, MOST_THREADS).ok()?;
        let buffers = BpfMap::new(MapKind::Array, 4, VALUE_OF_CPU, outputs.cpus).ok()?;
        let code = copier(
            sp_offset()?,
            stack_bytes as i32,
            threads.as_fd(),
            buffers.as_fd(),
            outputs.events.as_fd(),
        );
        let program = sys::load_program(&code.instructions, LICENSE).ok()?;
        self.next
            .set(&COPIER.to_ne_bytes(), &program.as_raw_fd().to_ne_bytes())
            .ok()?;
        let stacks = DeepStacks {
            threads: Rc::new(threads),
            most_bytes: (MOST_PARTS * PAGES * PAGE) as u32,
        };
        self.begun = Some(stacks.clone());
        Some(stacks)
    }

    /// Starts to copy parts of stacks that threads have left for another one into these rings.
    pub(super) fn other_stacks<'r>(
        &mut self,
        rings: impl Iterator<Item = (u32, BorrowedFd<'r>)>,
    ) -> Option<OtherStacks> {
        if self.others.is_none() {
            if !is_initial_namespace() {
                return None;
            }
            if self.outputs.is_none() {
                self.outputs = Outputs::open(rings);
            }
            let outputs = self.outputs.as_ref()?;
            let stacks = OtherStacks::new().ok()?;
            let buffers = BpfMap::new(MapKind::Array, 4, VALUE_OF_OTHERS, outputs.cpus).ok()?;
            let target = Target {
                buffers: buffers.as_fd(),
                events: outputs.events.as_fd(),
            };
            let code = other_stacks::copier(sp_offset()?, &stacks, target, (self.next.as_fd(), COPIER));
            // The program keeps the buffers.
            let program = sys::load_program(&code.instructions, LICENSE).ok()?;
            let program = program.as_raw_fd().to_ne_bytes();
            self.next.set(&OTHERS.to_ne_bytes(), &program).ok()?;
            self.others = Some(stacks);
        }
        self.others.clone()
    }
}

/// Registers that calls preserve, and the frame pointer.
mod register {
    pub(super) const CONTEXT: u8 = 6;
    pub(super) const SP: u8 = 8;
    pub(super) const NEXT: u8 = 9;
    pub(super) const FRAME: u8 = 10;
}

/// Places in the program's frame.
mod slot {
    pub(super) const KEY: i16 = -4;
    pub(super) const BUFFER: i16 = -16;
    pub(super) const START: i16 = -24;
    pub(super) const END: i16 = -32;
    pub(super) const COPIED: i16 = -40;
    pub(super) const PROBE: i16 = -48;
    pub(super) const BELOW: i16 = -56;
    /// That of the first edge; the others follow.
    pub(super) const EDGES: i16 = -64;
    /// In the frame of the part's copier.
    pub(super) const LEN: i16 = -24;
    pub(super) const PIECE: i16 = -32;
}

/// Copies what follows the first `stack_bytes` of the stack, in up to 16 records, if the
/// thread is on the stack that `threads` gives for it: first what lies beyond the edges that are
/// known, and then what follows the copy. Threads that are not known have a little copied, too.
fn copier(
    sp_offset: i16,
    stack_bytes: i32,
    threads: BorrowedFd<'_>,
    buffers: BorrowedFd<'_>,
    events: BorrowedFd<'_>,
) -> Code {
    use register::{CONTEXT, FRAME, NEXT, SP};
    /// Records that may still be written.
    const LEFT: u8 = 7;
    let mut code = Code::default();
    let (mut out, mut calls) = (Jumps::default(), Jumps::default());
    let look_up = |code: &mut Code, out: &mut Jumps, map| {
        code.push(op::STORE_HALF, FRAME, 0, slot::KEY, 0);
        code.map(1, map);
        code.push(op::COPY, 2, FRAME, 0, 0);
        code.push(op::ADD, 2, 0, 0, slot::KEY.into());
        code.call(helper::MAP_LOOKUP);
        code.jump(out, op::JUMP_IF_NUMBER, 0, 0, 0);
    };
    let (mut new, mut ready) = (Jumps::default(), Jumps::default());
    code.push(op::COPY, CONTEXT, 1, 0, 0);
    code.call(helper::CURRENT_TASK);
    code.push(op::COPY, 1, 0, 0, 0);
    code.call(helper::TASK_REGISTERS);
    code.push(op::LOAD, SP, 0, sp_offset, 0);
    code.call(helper::PID_TGID);
    look_up(&mut code, &mut new, threads);
    for (word, slot) in (0..).zip([slot::START, slot::END, slot::BELOW].into_iter().chain(edge_slots())) {
        code.push(op::LOAD, 1, 0, 8 * word, 0);
        code.push(op::STORE, FRAME, 1, slot, 0);
    }
    code.push(op::LOAD, 1, FRAME, slot::START, 0);
    code.jump(&mut out, op::JUMP_IF_BELOW, SP, 1, 0);
    code.push(op::LOAD, 1, FRAME, slot::END, 0);
    code.jump(&mut out, op::JUMP_IF_NOT_BELOW, SP, 1, 0);
    code.push(op::MOV, LEFT, 0, 0, MOST_PARTS);
    code.jump(&mut ready, op::JUMP, 0, 0, 0);
    code.land(new);
    code.push(op::MOV, LEFT, 0, 0, PARTS_OF_NEW);
    for slot in edge_slots() {
        code.push(op::STORE_NUMBER, FRAME, 0, slot, 0);
    }
    code.push(op::COPY, NEXT, SP, 0, 0);
    code.push(op::ADD, NEXT, 0, 0, stack_bytes + PARTS_OF_NEW * PAGES * PAGE);
    code.push(op::STORE, FRAME, NEXT, slot::END, 0);
    code.push(op::STORE_NUMBER, FRAME, 0, slot::BELOW, Arch::native().red_zone as i32);
    code.land(ready);
    code.call(helper::CPU);
    look_up(&mut code, &mut out, buffers);
    code.push(op::STORE, FRAME, 0, slot::BUFFER, 0);
    save(&mut code, LEFT);
    let mut above = Jumps::default();
    code.push(op::LOAD, 4, FRAME, slot::BELOW, 0);
    code.jump(&mut above, op::JUMP_IF_NUMBER, 4, 0, 0);
    code.push(op::COPY, 3, SP, 0, 0);
    code.push(op::SUBTRACT_REGISTER, 3, 4, 0, 0);
    code.push(op::COPY, 4, 3, 0, 0);
    code.push(op::COPY, 1, CONTEXT, 0, 0);
    code.push(op::LOAD, 2, FRAME, slot::BUFFER, 0);
    code.push(op::ADD, 2, 0, 0, STATE);
    code.push(op::COPY, 3, SP, 0, 0);
    code.push(op::COPY, 5, SP, 0, 0);
    code.call_own(&mut calls);
    code.land(above);
    find_rest(&mut code, &mut out, stack_bytes);
    code.push(op::STORE, FRAME, NEXT, slot::COPIED, 0);
    // One part from NEXT on; goes to `end` if it is not a whole one.
    let part = |code: &mut Code, out: &mut Jumps, calls: &mut Jumps, end: &mut Jumps| {
        code.jump(out, op::JUMP_IF_NUMBER, LEFT, 0, 0);
        code.push(op::ADD, LEFT, 0, 0, -1);
        code.push(op::COPY, 1, CONTEXT, 0, 0);
        code.push(op::LOAD, 2, FRAME, slot::BUFFER, 0);
        code.push(op::LOAD, 3, 2, SAVED, 0);
        code.push(op::ADD, 3, 0, 0, -PAGES * PAGE);
        code.push(op::STORE, 2, 3, SAVED, 0);
        code.push(op::ADD, 2, 0, 0, STATE);
        code.push(op::COPY, 3, SP, 0, 0);
        code.push(op::COPY, 4, NEXT, 0, 0);
        code.push(op::LOAD, 5, FRAME, slot::END, 0);
        code.call_own(calls);
        code.push(op::COPY, 1, 0, 0, 0);
        code.push(op::SUBTRACT_REGISTER, 1, NEXT, 0, 0);
        code.push(op::COPY, NEXT, 0, 0, 0);
        code.jump(end, op::JUMP_UNLESS_NUMBER, 1, 0, PAGES * PAGE);
    };
    for slot in edge_slots() {
        let mut next = Jumps::default();
        code.push(op::LOAD, NEXT, FRAME, slot, 0);
        code.push(op::LOAD, 1, FRAME, slot::COPIED, 0);
        code.jump(&mut next, op::JUMP_IF_BELOW, NEXT, 1, 0);
        code.push(op::LOAD, 1, FRAME, slot::END, 0);
        code.jump(&mut next, op::JUMP_IF_NOT_BELOW, NEXT, 1, 0);
        for _ in 0..PARTS_OF_EDGE {
            part(&mut code, &mut out, &mut calls, &mut next);
        }
        code.land(next);
    }
    let mut end = Jumps::default();
    code.push(op::LOAD, NEXT, FRAME, slot::COPIED, 0);
    for _ in 0..MOST_PARTS {
        part(&mut code, &mut out, &mut calls, &mut end);
    }
    code.land(end);
    code.land(out);
    code.exit();
    code.land_calls(calls);
    part_copier(&mut code, events);
    code
}

/// Adds what this CPU may copy for the time since its last sample, and lets `left` be as many
/// records as that is enough for, or less.
fn save(code: &mut Code, left: u8) {
    use register::FRAME;
    code.call(helper::TIME);
    code.push(op::LOAD, 1, FRAME, slot::BUFFER, 0);
    code.push(op::LOAD, 2, 1, TIME, 0);
    code.push(op::STORE, 1, 0, TIME, 0);
    code.push(op::SUBTRACT_REGISTER, 0, 2, 0, 0);
    code.push(op::SHIFT_RIGHT, 0, 0, 0, BYTE_NS_LOG);
    code.push(op::LOAD, 2, 1, SAVED, 0);
    code.push(op::ADD_REGISTER, 0, 2, 0, 0);
    code.push(op::JUMP_IF_AT_MOST, 0, 0, 1, MOST_SAVED);
    code.push(op::MOV, 0, 0, 0, MOST_SAVED);
    code.push(op::STORE, 1, 0, SAVED, 0);
    code.push(op::DIVIDE, 0, 0, 0, PAGES * PAGE);
    code.push(op::JUMP_IF_NOT_BELOW, 0, left, 1, 0);
    code.push(op::COPY, left, 0, 0, 0);
}

/// Leads NEXT to what the sample's copy lacks of the stack: what follows it, or lies beyond the
/// first page that is not present. Goes `out` if there is nothing.
fn find_rest(code: &mut Code, out: &mut Jumps, stack_bytes: i32) {
    use register::{FRAME, NEXT, SP};
    let probe = |code: &mut Code| {
        code.push(op::COPY, 1, FRAME, 0, 0);
        code.push(op::ADD, 1, 0, 0, slot::PROBE.into());
        code.push(op::MOV, 2, 0, 0, 1);
        code.push(op::COPY, 3, NEXT, 0, 0);
        code.call(helper::READ_USER);
    };
    let next_page = |code: &mut Code, out: &mut Jumps| {
        code.push(op::AND, NEXT, 0, 0, -PAGE);
        code.push(op::ADD, NEXT, 0, 0, PAGE);
        code.push(op::LOAD, 1, FRAME, slot::END, 0);
        code.jump(out, op::JUMP_IF_NOT_BELOW, NEXT, 1, 0);
    };
    let (mut hole, mut found) = (Jumps::default(), Jumps::default());
    code.push(op::COPY, NEXT, SP, 0, 0);
    for _ in 0..stack_bytes / PAGE {
        probe(code);
        code.jump(&mut hole, op::JUMP_UNLESS_NUMBER, 0, 0, 0);
        next_page(code, out);
    }
    code.push(op::COPY, NEXT, SP, 0, 0);
    code.push(op::ADD, NEXT, 0, 0, stack_bytes);
    code.push(op::LOAD, 1, FRAME, slot::END, 0);
    code.jump(out, op::JUMP_IF_NOT_BELOW, NEXT, 1, 0);
    code.jump(&mut found, op::JUMP, 0, 0, 0);
    code.land(hole);
    for _ in 0..PAGES_OF_HOLE {
        next_page(code, out);
        probe(code);
        code.jump(&mut found, op::JUMP_IF_NUMBER, 0, 0, 0);
    }
    // Nothing follows it soon, but there may be edges further outside.
    code.land(found);
}

fn edge_slots() -> impl Iterator<Item = i16> {
    (0..MOST_EDGES as i16).map(|edge| slot::EDGES - 8 * edge)
}

/// Copies a part into the buffer and writes it: a function of the context, the buffer, the stack
/// pointer, the first address, and the address at which to end; returns where the part ends.
fn part_copier(code: &mut Code, events: BorrowedFd<'_>) {
    use register::{CONTEXT, FRAME, NEXT, SP};
    use slot::{BUFFER, LEN, PIECE};
    const END: u8 = 7;
    /// `BPF_F_CURRENT_CPU`, as 32 bits.
    const THIS_CPU: i32 = -1;
    code.push(op::COPY, CONTEXT, 1, 0, 0);
    code.push(op::STORE, FRAME, 2, BUFFER, 0);
    code.push(op::COPY, SP, 3, 0, 0);
    code.push(op::COPY, NEXT, 4, 0, 0);
    code.push(op::COPY, END, 5, 0, 0);
    code.push(op::STORE_HALF_NUMBER, 2, 0, 4, DEEP_PART as i32);
    code.push(op::STORE, 2, SP, 8, 0);
    code.push(op::STORE, 2, NEXT, 16, 0);
    code.push(op::STORE_NUMBER, FRAME, 0, LEN, 0);
    let mut whole = Jumps::default();
    for page in 0..PAGES {
        code.jump(&mut whole, op::JUMP_IF_NOT_BELOW, NEXT, END, 0);
        code.push(op::COPY, 2, END, 0, 0);
        code.push(op::SUBTRACT_REGISTER, 2, NEXT, 0, 0);
        code.push(op::JUMP_IF_AT_MOST, 2, 0, 1, PAGE);
        code.push(op::MOV, 2, 0, 0, PAGE);
        code.push(op::STORE, FRAME, 2, PIECE, 0);
        code.push(op::LOAD, 1, FRAME, BUFFER, 0);
        code.push(op::ADD, 1, 0, 0, PAD + HEAD + page * PAGE);
        code.push(op::COPY, 3, NEXT, 0, 0);
        code.call(helper::READ_USER);
        code.jump(&mut whole, op::JUMP_UNLESS_NUMBER, 0, 0, 0);
        code.push(op::LOAD, 1, FRAME, PIECE, 0);
        code.push(op::ADD_REGISTER, NEXT, 1, 0, 0);
        code.push(op::LOAD, 2, FRAME, LEN, 0);
        code.push(op::ADD_REGISTER, 2, 1, 0, 0);
        code.push(op::STORE, FRAME, 2, LEN, 0);
    }
    code.land(whole);
    let mut done = Jumps::default();
    code.push(op::LOAD, 5, FRAME, LEN, 0);
    code.jump(&mut done, op::JUMP_IF_NUMBER, 5, 0, 0);
    code.push(op::ADD, 5, 0, 0, HEAD);
    code.push(op::COPY, 1, CONTEXT, 0, 0);
    code.map(2, events);
    code.push(op::MOV_HALF, 3, 0, 0, THIS_CPU);
    code.push(op::LOAD, 4, FRAME, BUFFER, 0);
    code.push(op::ADD, 4, 0, 0, PAD);
    code.call(helper::OUTPUT);
    code.land(done);
    code.push(op::COPY, 0, NEXT, 0, 0);
    code.push(op::EXIT, 0, 0, 0, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_accepts_the_programs() {
        let Some(mut dispatcher) = Dispatcher::new() else {
            println!("SKIPPED: no programs may be loaded here");
            return;
        };
        let stacks = dispatcher.begin(61_440, [].into_iter());
        assert!(stacks.is_none(), "there is no ring");
        let map = |kind, value| BpfMap::new(kind, 4, value, 8).expect("others could be created");
        let (threads, buffers) = (map(MapKind::Hash, VALUE), map(MapKind::Array, VALUE_OF_CPU));
        let events = map(MapKind::Events, 4);
        let sp = sp_offset().expect("there is a dispatcher");
        let code = copier(sp, 61_440, threads.as_fd(), buffers.as_fd(), events.as_fd());
        sys::load_program(&code.instructions, LICENSE).expect("it is like the dispatcher");
    }
}
