//! Copies of the parts of stacks that samples have no room for.
//!
//! A record is at most 64 KiB long, so a sample's copy ends at some 60 KiB. For threads whose
//! stacks are deeper, a BPF program at the event copies what follows, at the same moment, into the
//! ring: its records come right before the sample's. Requires the right to load programs
//! (`CAP_BPF` and `CAP_PERFMON`).
//!
//! Events that threads inherit have the program that the event had then, so a program that only
//! continues with another one is attached from the start. The other one is loaded for the first
//! deep stack.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use backtrail_arch::{Arch, Cpu};

use super::programs::{BEGIN, COPIER, LICENSE, PROGRAMS, is_initial_namespace};
use super::records::DEEP_PART;
use super::walker::{KernelTables, WalkProgram, Walker};
use crate::sys::{self, BpfMap, MapKind};

/// Bytes of a page: also where pages are larger, parts of them are copied.
const PAGE: i32 = 4096;
/// Pages of a record.
const PAGES: i32 = 15;
/// The most records of a sample.
const MOST_PARTS: u64 = 8;
/// The most bytes copied in a second of a thread's time: so much takes a few percent of it.
const BYTES_A_SECOND: u64 = 250_000_000;
/// Bytes before the copied ones: the mark (4), the stack pointer, and the first address (8 each).
const HEAD: i32 = 20;
/// Keeps what follows the mark aligned.
const PAD: i32 = 4;
const BUFFER: i32 = PAD + HEAD + PAGES * PAGE;
/// The most threads with deep stacks.
const MOST_THREADS: u32 = 1024;

/// The threads whose deep stacks are copied.
#[derive(Clone, Debug)]
pub struct DeepStacks {
    threads: Rc<BpfMap>,
    most_bytes: u32,
}

impl DeepStacks {
    /// Copies more of a thread's stack from now on, up to the end of the mapping that contains it.
    pub fn add(&self, tid: u32, stack: &std::ops::Range<u64>) -> io::Result<()> {
        let range = [stack.start.to_ne_bytes(), stack.end.to_ne_bytes()];
        self.threads.set(&tid.to_ne_bytes(), range.as_flattened())
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
    /// Records of a sample.
    parts: u64,
    outputs: Option<Outputs>,
    walker: Option<Walker>,
    begun: Option<DeepStacks>,
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
    /// For events of this frequency. `None` if programs may not be loaded.
    pub(super) fn new(frequency: u64) -> Option<Dispatcher> {
        sp_offset()?;
        let next = BpfMap::new(MapKind::Programs, 4, 4, PROGRAMS).ok()?;
        let mut code = Code::default();
        code.push(op::COPY, 6, 1, 0, 0);
        for program in [BEGIN, COPIER] {
            code.push(op::COPY, 1, 6, 0, 0);
            code.map(2, next.as_fd());
            code.push(op::MOV, 3, 0, 0, program as i32);
            code.call(helper::TAIL_CALL);
        }
        code.exit();
        let program = sys::load_program(&code.instructions, LICENSE).ok()?;
        Some(Dispatcher {
            next,
            program,
            parts: (BYTES_A_SECOND / frequency.max(1) / (PAGES * PAGE) as u64).clamp(1, MOST_PARTS),
            outputs: None,
            walker: None,
            begun: None,
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
        let threads = BpfMap::new(MapKind::Hash, 4, 16, MOST_THREADS).ok()?;
        let buffers = BpfMap::new(MapKind::Array, 4, BUFFER as u32, outputs.cpus).ok()?;
        let code = copier(
            sp_offset()?,
            (stack_bytes as i32, self.parts),
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
            most_bytes: self.parts as u32 * (PAGES * PAGE) as u32,
        };
        self.begun = Some(stacks.clone());
        Some(stacks)
    }
}

/// The stack pointer's offset in the kernel's `struct pt_regs`.
fn sp_offset() -> Option<i16> {
    match Arch::native().cpu {
        Cpu::X86_64 => Some(152),
        Cpu::Aarch64 if cfg!(target_endian = "little") => Some(248),
        _ => None,
    }
}

/// Codes of instructions (`linux/bpf.h`).
mod op {
    pub(super) const LOAD_MAP: u8 = 0x18;
    pub(super) const LOAD: u8 = 0x79;
    pub(super) const STORE: u8 = 0x7b;
    pub(super) const STORE_HALF: u8 = 0x63;
    pub(super) const STORE_HALF_NUMBER: u8 = 0x62;
    pub(super) const STORE_NUMBER: u8 = 0x7a;
    pub(super) const MOV: u8 = 0xb7;
    pub(super) const MOV_HALF: u8 = 0xb4;
    pub(super) const COPY: u8 = 0xbf;
    pub(super) const ADD: u8 = 0x07;
    pub(super) const ADD_REGISTER: u8 = 0x0f;
    pub(super) const SUBTRACT_REGISTER: u8 = 0x1f;
    pub(super) const JUMP_IF_NUMBER: u8 = 0x15;
    pub(super) const JUMP_UNLESS_NUMBER: u8 = 0x55;
    pub(super) const JUMP_IF_AT_MOST: u8 = 0xb5;
    pub(super) const JUMP_IF_NOT_BELOW: u8 = 0x3d;
    pub(super) const JUMP_IF_BELOW: u8 = 0xad;
    pub(super) const JUMP: u8 = 0x05;
    pub(super) const CALL: u8 = 0x85;
    pub(super) const EXIT: u8 = 0x95;
}

/// Numbers of the kernel's helpers (`enum bpf_func_id`).
mod helper {
    pub(super) const MAP_LOOKUP: i32 = 1;
    pub(super) const CPU: i32 = 8;
    pub(super) const TAIL_CALL: i32 = 12;
    pub(super) const PID_TGID: i32 = 14;
    pub(super) const OUTPUT: i32 = 25;
    pub(super) const READ_USER: i32 = 112;
    pub(super) const CURRENT_TASK: i32 = 158;
    pub(super) const TASK_REGISTERS: i32 = 175;
}

/// Instructions, and jumps that lead to a place that follows later.
#[derive(Default)]
struct Code {
    instructions: Vec<u64>,
}

/// Jumps to one place.
#[derive(Default)]
struct Jumps(Vec<usize>);

impl Code {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, number: i32) {
        let registers = u64::from(to | from << 4) << 8;
        let operands = u64::from(offset as u16) << 16 | u64::from(number as u32) << 32;
        self.instructions.push(u64::from(code) | registers | operands);
    }

    fn map(&mut self, to: u8, map: BorrowedFd<'_>) {
        /// `BPF_PSEUDO_MAP_FD`.
        const MAP_FD: u8 = 1;
        self.push(op::LOAD_MAP, to, MAP_FD, 0, map.as_raw_fd());
        self.instructions.push(0);
    }

    fn call(&mut self, helper: i32) {
        self.push(op::CALL, 0, 0, 0, helper);
    }

    /// The sample is written in any case.
    fn exit(&mut self) {
        self.push(op::MOV, 0, 0, 0, 1);
        self.push(op::EXIT, 0, 0, 0, 0);
    }

    fn jump(&mut self, jumps: &mut Jumps, code: u8, left: u8, right: u8, number: i32) {
        jumps.0.push(self.instructions.len());
        self.push(code, left, right, 0, number);
    }

    /// The jumps lead here.
    fn land(&mut self, jumps: Jumps) {
        for at in jumps.0 {
            let distance = self.instructions.len() - at - 1;
            if let Some(jump) = self.instructions.get_mut(at) {
                *jump |= u64::from(distance as u16) << 16;
            }
        }
    }
}

/// Copies what follows the first `stack_bytes` of the stack, in up to `parts` records, if the
/// thread is in `threads`, and on the stack given there.
fn copier(
    sp_offset: i16,
    (stack_bytes, parts): (i32, u64),
    threads: BorrowedFd<'_>,
    buffers: BorrowedFd<'_>,
    events: BorrowedFd<'_>,
) -> Code {
    /// Registers that calls preserve, and the frame pointer.
    const CONTEXT: u8 = 6;
    const END: u8 = 7;
    const SP: u8 = 8;
    const NEXT: u8 = 9;
    const FRAME: u8 = 10;
    /// Places in the frame.
    const KEY: i16 = -4;
    const AT: i16 = -16;
    const START: i16 = -24;
    const LEN: i16 = -32;
    const PIECE: i16 = -40;
    /// `BPF_F_CURRENT_CPU`, as 32 bits.
    const THIS_CPU: i32 = -1;
    let mut code = Code::default();
    let mut out = Jumps::default();
    let look_up = |code: &mut Code, out: &mut Jumps, map| {
        code.push(op::STORE_HALF, FRAME, 0, KEY, 0);
        code.map(1, map);
        code.push(op::COPY, 2, FRAME, 0, 0);
        code.push(op::ADD, 2, 0, 0, KEY.into());
        code.call(helper::MAP_LOOKUP);
        code.jump(out, op::JUMP_IF_NUMBER, 0, 0, 0);
    };
    code.push(op::COPY, CONTEXT, 1, 0, 0);
    code.call(helper::PID_TGID);
    look_up(&mut code, &mut out, threads);
    code.push(op::LOAD, END, 0, 8, 0);
    code.push(op::LOAD, NEXT, 0, 0, 0);
    code.push(op::STORE, FRAME, NEXT, START, 0);
    code.call(helper::CURRENT_TASK);
    code.push(op::COPY, 1, 0, 0, 0);
    code.call(helper::TASK_REGISTERS);
    code.push(op::LOAD, SP, 0, sp_offset, 0);
    code.push(op::LOAD, NEXT, FRAME, START, 0);
    code.jump(&mut out, op::JUMP_IF_BELOW, SP, NEXT, 0);
    code.jump(&mut out, op::JUMP_IF_NOT_BELOW, SP, END, 0);
    code.push(op::COPY, NEXT, SP, 0, 0);
    code.push(op::ADD, NEXT, 0, 0, stack_bytes);
    code.jump(&mut out, op::JUMP_IF_NOT_BELOW, NEXT, END, 0);
    code.call(helper::CPU);
    look_up(&mut code, &mut out, buffers);
    code.push(op::STORE, FRAME, 0, AT, 0);
    for _ in 0..parts {
        code.jump(&mut out, op::JUMP_IF_NOT_BELOW, NEXT, END, 0);
        code.push(op::LOAD, 1, FRAME, AT, 0);
        code.push(op::STORE_HALF_NUMBER, 1, 0, 4, DEEP_PART as i32);
        code.push(op::STORE, 1, SP, 8, 0);
        code.push(op::STORE, 1, NEXT, 16, 0);
        code.push(op::STORE_NUMBER, FRAME, 0, LEN, 0);
        let (mut whole, mut at_hole) = (Jumps::default(), Jumps::default());
        for page in 0..PAGES {
            code.jump(&mut whole, op::JUMP_IF_NOT_BELOW, NEXT, END, 0);
            code.push(op::COPY, 2, END, 0, 0);
            code.push(op::SUBTRACT_REGISTER, 2, NEXT, 0, 0);
            code.push(op::JUMP_IF_AT_MOST, 2, 0, 1, PAGE);
            code.push(op::MOV, 2, 0, 0, PAGE);
            code.push(op::STORE, FRAME, 2, PIECE, 0);
            code.push(op::LOAD, 1, FRAME, AT, 0);
            code.push(op::ADD, 1, 0, 0, PAD + HEAD + page * PAGE);
            code.push(op::COPY, 3, NEXT, 0, 0);
            code.call(helper::READ_USER);
            code.jump(&mut at_hole, op::JUMP_UNLESS_NUMBER, 0, 0, 0);
            code.push(op::LOAD, 1, FRAME, PIECE, 0);
            code.push(op::ADD_REGISTER, NEXT, 1, 0, 0);
            code.push(op::LOAD, 2, FRAME, LEN, 0);
            code.push(op::ADD_REGISTER, 2, 1, 0, 0);
            code.push(op::STORE, FRAME, 2, LEN, 0);
        }
        code.jump(&mut whole, op::JUMP, 0, 0, 0);
        code.land(at_hole);
        code.push(op::COPY, END, NEXT, 0, 0);
        code.land(whole);
        code.push(op::LOAD, 5, FRAME, LEN, 0);
        code.jump(&mut out, op::JUMP_IF_NUMBER, 5, 0, 0);
        code.push(op::ADD, 5, 0, 0, HEAD);
        code.push(op::COPY, 1, CONTEXT, 0, 0);
        code.map(2, events);
        code.push(op::MOV_HALF, 3, 0, 0, THIS_CPU);
        code.push(op::LOAD, 4, FRAME, AT, 0);
        code.push(op::ADD, 4, 0, 0, PAD);
        code.call(helper::OUTPUT);
        code.jump(&mut out, op::JUMP_UNLESS_NUMBER, 0, 0, 0);
    }
    code.land(out);
    code.exit();
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_to_what_follows() {
        let (mut code, mut jumps) = (Code::default(), Jumps::default());
        code.jump(&mut jumps, op::JUMP_IF_BELOW, 8, 9, 0);
        code.push(op::MOV, 0, 0, 0, -1);
        code.land(jumps);
        code.exit();
        // struct bpf_insn: code, registers, offset, number.
        assert_eq!(code.instructions[0].to_le_bytes(), [0xad, 0x98, 1, 0, 0, 0, 0, 0]);
        assert_eq!(
            code.instructions[1].to_le_bytes(),
            [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]
        );
        assert_eq!(code.instructions.len(), 4);
    }

    #[test]
    fn the_kernel_accepts_the_programs() {
        for (frequency, parts) in [(100_000, 1), (997, 4), (49, MOST_PARTS)] {
            let Some(mut dispatcher) = Dispatcher::new(frequency) else {
                println!("SKIPPED: no programs may be loaded here");
                return;
            };
            assert_eq!(dispatcher.parts, parts);
            let stacks = dispatcher.begin(61_440, [].into_iter());
            assert!(stacks.is_none(), "there is no ring");
            let map = |kind, value| BpfMap::new(kind, 4, value, 8).expect("others could be created");
            let (threads, buffers) = (map(MapKind::Hash, 16), map(MapKind::Array, BUFFER as u32));
            let events = map(MapKind::Events, 4);
            let sp = sp_offset().expect("there is a dispatcher");
            let code = copier(sp, (61_440, parts), threads.as_fd(), buffers.as_fd(), events.as_fd());
            sys::load_program(&code.instructions, LICENSE).expect("it is like the dispatcher");
        }
    }
}
