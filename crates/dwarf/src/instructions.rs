//! How code that no table covers leaves its frame, as its instructions show.
//!
//! Whatever a function has done to its stack pointer, every way to its return undoes it. So one way from a program
//! counter to a return, followed instruction by instruction, says where the return address lies and where the caller's
//! frame pointer is. Calls give back the stack pointer as they found it; where code of a run-time system does not
//! follow that, it keeps a frame pointer, and a way that ends in restoring the stack pointer from it does not depend on
//! what came before.

use std::cell::RefCell;

use backtrail_arch::{Arch, InstructionSet};
use backtrail_sframe::{Base, Location, Rule};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

pub use crate::kept::keeps;
use crate::kept::{dwarf_number, is_plain};
use crate::prologue;

/// Bytes around a program counter that are worth having: loops jump backwards, and returns lie at ends.
pub const BYTES_BEFORE: u64 = 1 << 10;
/// See [`BYTES_BEFORE`].
pub const BYTES_FROM: u64 = 3 << 10;

/// Bytes before an address that [`is_start`] wants.
pub const BYTES_BEFORE_START: usize = prologue::TRAPS;

/// Whether a function begins at `at`, as far as the bytes before tell: padding of a kind that lies nowhere else.
pub fn is_start(before: &[u8], at: u64) -> bool {
    prologue::is_padded_start(before, at)
}

/// What lies elsewhere in memory.
pub trait Around {
    /// Whether a function begins at this address: a jump there is a tail call.
    fn is_start(&self, at: u64) -> bool;

    /// Code from `at` on, as much as is worth reading; empty if none is to be followed.
    fn code(&self, at: u64) -> Vec<u8>;
}

struct Nothing;

impl Around for Nothing {
    fn is_start(&self, _at: u64) -> bool {
        false
    }

    fn code(&self, _at: u64) -> Vec<u8> {
        Vec::new()
    }
}

/// Pieces of code elsewhere that are followed.
const MOST_PIECES: usize = 32;
/// Instructions that are followed for one program counter, over all ways.
const MOST_INSTRUCTIONS: usize = 600;
/// Ways that wait to be tried if the one at hand leads nowhere.
const MOST_WAYS: usize = 32;

/// The rule of the frame at `pc`, which lies in `code`, a piece of memory that begins at `start`. `None` if no way from
/// there shows one.
pub fn rule(arch: &Arch, code: &[u8], start: u64, pc: u64, around: &dyn Around) -> Option<Rule> {
    match arch.instructions {
        // Behind a call that does not return.
        InstructionSet::X86_64 if prologue::is_end(code, start, pc) => prologue::rule(arch, code, start, pc),
        InstructionSet::X86_64 => {
            let returning = Search::new(code, start, around).rule(arch, pc);
            returning.or_else(|| prologue::rule(arch, code, start, pc))
        }
        // Leaf functions there keep the return address in its register, and others a frame record.
        InstructionSet::Aarch64 | InstructionSet::S390x => None,
    }
}

/// Whether the frame pointer at `pc` is the caller's: no branch or call lies
/// between it and a return that has the same, or code shortly before `pc` has given
/// it back already, as V8's builtins do before they jump to another one.
pub fn has_left_frame(arch: &Arch, code: &[u8], start: u64, pc: u64, around: &dyn Around) -> bool {
    /// `mov rbp, [rbp]`.
    const RESTORES: [u8; 4] = [0x48, 0x8b, 0x6d, 0x00];
    /// What such code does until it jumps: moving a few arguments.
    const BYTES: usize = 96;
    let end = usize::try_from(pc.saturating_sub(start))
        .unwrap_or(usize::MAX)
        .min(code.len());
    let before = &code[end.saturating_sub(BYTES)..end];
    if arch.instructions != InstructionSet::X86_64 {
        return false;
    }
    let at_return = || Search::new(code, start, around).at_return(pc);
    before.windows(RESTORES.len()).any(|bytes| bytes == RESTORES)
        || at_return().is_some_and(|end| end.is_straight && end.state.fp == FramePointer::Kept)
}

/// Whether the code at `pc` may come to a return, or to where nobody can say.
pub fn may_return(arch: &Arch, code: &[u8], start: u64, pc: u64) -> bool {
    if arch.instructions != InstructionSet::X86_64 {
        return true;
    }
    if prologue::is_end(code, start, pc) {
        return false;
    }
    let search = Search::new(code, start, &Nothing);
    let (mut ways, mut seen) = (vec![pc], Vec::new());
    while let Some(mut at) = ways.pop() {
        while !seen.contains(&at) {
            seen.push(at);
            let Some(instruction) = search.decode(at).filter(|_| seen.len() < MOST_INSTRUCTIONS) else {
                return true;
            };
            let target = (instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64)
                .then(|| instruction.near_branch_target());
            at = match (instruction.mnemonic(), target) {
                (Mnemonic::Ret | Mnemonic::Retf | Mnemonic::Iretq | Mnemonic::Leave, _) => return true,
                (Mnemonic::Jmp, Some(target)) => target,
                (Mnemonic::Jmp, None) => return true,
                (Mnemonic::Int3 | Mnemonic::Ud2 | Mnemonic::Hlt, _) => break,
                (Mnemonic::Call, _) | (_, None) => instruction.next_ip(),
                (_, Some(target)) => {
                    ways.push(target);
                    instruction.next_ip()
                }
            };
        }
    }
    false
}

/// Whether the code from `entry` on has left the stack and the frame pointer alone when it comes to `pc`.
pub fn is_at_entry(arch: &Arch, code: &[u8], start: u64, entry: u64, pc: u64) -> bool {
    if arch.instructions != InstructionSet::X86_64 {
        return false;
    }
    let search = Search::new(code, start, &Nothing);
    let mut at = entry;
    while at < pc {
        let Some(instruction) = search.decode(at) else {
            return false;
        };
        let mnemonic = instruction.mnemonic();
        let moves = matches!(
            mnemonic,
            Mnemonic::Push
                | Mnemonic::Pop
                | Mnemonic::Call
                | Mnemonic::Ret
                | Mnemonic::Leave
                | Mnemonic::Pushfq
                | Mnemonic::Popfq
        );
        let is_past = mnemonic == Mnemonic::Jmp && instruction.next_ip() <= pc;
        if moves || is_past || writes(&instruction, Register::RSP) || writes(&instruction, Register::RBP) {
            return false;
        }
        at = instruction.next_ip();
    }
    at == pc && entry <= pc
}

/// Bytes from what a register is at the program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Sp(i64),
    Fp(i64),
}

impl Place {
    fn plus(self, bytes: i64) -> Place {
        match self {
            Place::Sp(offset) => Place::Sp(offset.wrapping_add(bytes)),
            Place::Fp(offset) => Place::Fp(offset.wrapping_add(bytes)),
        }
    }

    fn location(self, arch: &Arch, deref: bool) -> Option<Location> {
        let (register, offset) = match self {
            Place::Sp(offset) => (arch.sp, offset),
            Place::Fp(offset) => (arch.fp, offset),
        };
        Some(Location {
            base: Base::Register(register.0),
            offset: i32::try_from(offset).ok()?,
            deref,
        })
    }
}

/// What the frame pointer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePointer {
    /// What it held at the program counter.
    Kept,
    /// What was loaded from here.
    Loaded(Place),
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// `None`: unknown.
    sp: Option<Place>,
    fp: FramePointer,
    /// Where on this way the frame pointer was pushed while it was kept: it will be kept again when it is popped.
    pushed: Option<Place>,
    /// A register with a word of memory whose address needs no index: no entry of a jump table.
    loaded: Option<Register>,
    /// What was popped first and still is in its register, and from where.
    popped: Option<(Register, Place)>,
    /// What lies on top of the stack, if it was pushed on this way.
    top: Option<Top>,
    /// Registers that were written on this way, by number.
    written: u32,
}

/// What a way has made of the stack at its return.
struct AtReturn {
    state: State,
    /// Bytes of arguments that the return pops.
    popped: i64,
    /// Whether the way has written what it finds as its return address.
    is_written: bool,
    /// Whether there is no other way: no branch and no call.
    is_straight: bool,
}

/// A word that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Top {
    /// What this register held at the program counter, by its DWARF number.
    Register(u8),
    /// What lay here.
    Loaded(Place),
}

struct Search<'c> {
    code: &'c [u8],
    start: u64,
    around: &'c dyn Around,
    /// Code elsewhere, as it was asked for.
    pieces: RefCell<Vec<(u64, Vec<u8>)>>,
    /// Where to begin, with what state, and how many of the stores lie on the way there.
    ways: Vec<(u64, State, usize)>,
    seen: Vec<u64>,
    /// What this way has written to the stack.
    stores: Vec<Place>,
}

/// What follows an instruction on its way.
enum Next {
    Follows,
    Jumps(u64),
    /// It leads nowhere that can be known.
    Ends,
    Found(State, i64),
}

impl<'c> Search<'c> {
    fn new(code: &'c [u8], start: u64, around: &'c dyn Around) -> Search<'c> {
        Search {
            code,
            start,
            around,
            pieces: RefCell::default(),
            ways: Vec::new(),
            seen: Vec::new(),
            stores: Vec::new(),
        }
    }

    fn rule(self, arch: &Arch, pc: u64) -> Option<Rule> {
        let AtReturn {
            state,
            popped,
            is_written,
            ..
        } = self.at_return(pc)?;
        // What this way writes there is the return address only later.
        rule_at_return(arch, &state, popped).filter(|_| !is_written)
    }

    fn at_return(mut self, pc: u64) -> Option<AtReturn> {
        let begin = State {
            sp: Some(Place::Sp(0)),
            fp: FramePointer::Kept,
            pushed: None,
            loaded: self.loaded_before(pc),
            popped: None,
            top: None,
            written: 0,
        };
        self.ways.push((pc, begin, 0));
        let mut left = MOST_INSTRUCTIONS;
        let mut is_first = true;
        while let Some((at, state, stores)) = self.ways.pop() {
            self.stores.truncate(stores);
            if let Some((state, popped)) = self.follow(at, state, &mut left) {
                let is_written = state.top.is_none() && state.sp.is_some_and(|sp| self.stores.contains(&sp));
                return Some(AtReturn {
                    state,
                    popped,
                    is_written,
                    is_straight: is_first && self.ways.is_empty() && state.written != u32::MAX,
                });
            }
            is_first = false;
        }
        None
    }

    /// Follows one way to its return; what is on top of the stack then, and the bytes of arguments that the return pops.
    fn follow(&mut self, mut at: u64, mut state: State, left: &mut usize) -> Option<(State, i64)> {
        loop {
            *left = left.checked_sub(1)?;
            // Every way into code that was seen has the same stack there.
            if self.seen.contains(&at) {
                return None;
            }
            self.seen.push(at);
            let instruction = self.decode(at)?;
            match self.take(&instruction, &mut state) {
                Next::Follows => at = instruction.next_ip(),
                Next::Jumps(target) => at = target,
                Next::Ends => return None,
                Next::Found(state, popped) => return Some((state, popped)),
            }
        }
    }

    fn decode(&self, at: u64) -> Option<Instruction> {
        let decoded = |bytes: &[u8]| {
            let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            (!instruction.is_invalid()).then_some(instruction)
        };
        let bytes_from = |code: &'_ [u8], start: u64| Some(usize::try_from(at.checked_sub(start)?).ok()?..code.len());
        if let Some(bytes) = bytes_from(self.code, self.start).and_then(|range| self.code.get(range))
            && let Some(instruction) = decoded(bytes)
        {
            return Some(instruction);
        }
        let mut pieces = self.pieces.borrow_mut();
        let found = pieces.iter().find_map(|(start, code)| {
            let bytes = code.get(bytes_from(code, *start)?)?;
            decoded(bytes)
        });
        if found.is_some() || pieces.len() >= MOST_PIECES {
            return found;
        }
        let code = self.around.code(at);
        let instruction = decoded(&code);
        pieces.push((at, code));
        instruction
    }

    fn take(&mut self, instruction: &Instruction, state: &mut State) -> Next {
        let (first, second) = (register(instruction, 0), register(instruction, 1));
        match instruction.mnemonic() {
            Mnemonic::Ret => {
                let popped = match instruction.op_count() {
                    0 => 0,
                    _ => i64::from(instruction.immediate16()),
                };
                return Next::Found(*state, popped);
            }
            // The frame pointer has just been pushed, and does not point to the frame yet.
            Mnemonic::Mov
                if (first, second) == (Register::RBP, Register::RSP)
                    && self.seen.len() == 1
                    && self.follows_push(instruction.ip()) =>
            {
                let pushed = State {
                    sp: Some(Place::Sp(8)),
                    fp: FramePointer::Loaded(Place::Sp(0)),
                    ..*state
                };
                return Next::Found(pushed, 0);
            }
            // From here on the stack is as a return wants it.
            Mnemonic::Leave => return restored(state).map_or(Next::Ends, |state| Next::Found(state, 0)),
            Mnemonic::Mov if (first, second) == (Register::RSP, Register::RBP) => {
                let is_popped = self
                    .decode(instruction.next_ip())
                    .is_some_and(|next| is(&next, Mnemonic::Pop));
                match restored(state) {
                    Some(state) if is_popped => return Next::Found(state, 0),
                    Some(_) => state.sp = Some(Place::Fp(0)),
                    None => return Next::Ends,
                }
            }
            Mnemonic::Jmp => {
                return match instruction.op0_kind() {
                    // Another function begins with the stack as it would be at a return.
                    OpKind::NearBranch64 if self.around.is_start(instruction.near_branch_target()) => {
                        Next::Found(*state, 0)
                    }
                    OpKind::Register if state.loaded == Some(first) => Next::Found(*state, 0),
                    OpKind::NearBranch64 => Next::Jumps(instruction.near_branch_target()),
                    _ => Next::Ends,
                };
            }
            Mnemonic::Int3 | Mnemonic::Ud2 | Mnemonic::Hlt | Mnemonic::Iretq | Mnemonic::Retf => return Next::Ends,
            Mnemonic::Push => {
                // Here a function begins, and its frame is not there yet.
                if first == Register::RBP && self.sets_frame(instruction.next_ip()) {
                    return Next::Found(*state, 0);
                }
                state.sp = state.sp.map(|sp| sp.plus(-8));
                let popped = state
                    .popped
                    .filter(|(popped, _)| *popped == first)
                    .map(|(_, place)| place);
                // What goes back to where it was is no store.
                self.stores.extend(state.sp.filter(|sp| popped != Some(*sp)));
                let number = dwarf_number(first).filter(|number| state.written & 1 << number == 0);
                state.top = popped.map(Top::Loaded).or(number.map(Top::Register));
                if first == Register::RBP && state.fp == FramePointer::Kept {
                    state.pushed = state.sp;
                }
            }
            Mnemonic::Pop => {
                if first == Register::RBP {
                    state.fp = match state.sp {
                        Some(_) if state.sp == state.pushed => FramePointer::Kept,
                        Some(sp) => FramePointer::Loaded(sp),
                        None => FramePointer::Unknown,
                    };
                }
                if state.popped.is_none_or(|(popped, _)| popped == first) {
                    state.popped = state.sp.map(|sp| (first, sp));
                }
                state.sp = state.sp.filter(|_| first != Register::RSP).map(|sp| sp.plus(8));
            }
            Mnemonic::Pushfq => state.sp = state.sp.map(|sp| sp.plus(-8)),
            Mnemonic::Popfq => state.sp = state.sp.map(|sp| sp.plus(8)),
            Mnemonic::Add if first == Register::RSP => state.sp = moved(state.sp, instruction, 1),
            Mnemonic::Sub if first == Register::RSP => state.sp = moved(state.sp, instruction, -1),
            Mnemonic::Lea if first == Register::RSP => state.sp = addressed(state, instruction),
            Mnemonic::Mov if first == Register::RBP && instruction.op1_kind() == OpKind::Memory => {
                state.fp = addressed(state, instruction).map_or(FramePointer::Unknown, FramePointer::Loaded);
            }
            Mnemonic::Call if prologue::is_end(self.code, self.start, instruction.next_ip()) => return Next::Ends,
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Call => {}
            _ => {
                if [first, second].contains(&Register::RSP) && writes(instruction, Register::RSP) {
                    state.sp = None;
                }
                if writes(instruction, Register::RBP) {
                    state.fp = FramePointer::Unknown;
                }
                if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Memory {
                    self.stores.extend(addressed(state, instruction));
                }
            }
        }
        keep_registers(instruction, state);
        // What is left of those with a target are conditional jumps.
        let may_jump = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::NearBranch64
            && instruction.mnemonic() != Mnemonic::Call;
        if may_jump && self.ways.len() < MOST_WAYS {
            self.ways
                .push((instruction.near_branch_target(), *state, self.stores.len()));
        }
        Next::Follows
    }

    /// The register that the instruction before loads, if it looks like `mov REG, [REG + BYTE]`.
    fn loaded_before(&self, at: u64) -> Option<Register> {
        const LOAD_BYTES: u64 = 4;
        let load = self.decode(at.checked_sub(LOAD_BYTES)?)?;
        let is_plain = load.len() as u64 == LOAD_BYTES
            && load.mnemonic() == Mnemonic::Mov
            && load.op1_kind() == OpKind::Memory
            && load.memory_index() == Register::None
            && load.memory_base() != Register::RSP;
        let loaded = register(&load, 0);
        (is_plain && loaded == loaded.full_register() && loaded != Register::None).then_some(loaded)
    }

    /// Whether `push rbp` lies before.
    fn follows_push(&self, at: u64) -> bool {
        const PUSH_RBP: u8 = 0x55;
        let before = at.wrapping_sub(1).checked_sub(self.start);
        before.is_some_and(|before| self.code.get(before as usize) == Some(&PUSH_RBP))
    }

    /// Whether `mov rbp, rsp` lies there.
    fn sets_frame(&self, at: u64) -> bool {
        self.decode(at).is_some_and(|next| {
            next.mnemonic() == Mnemonic::Mov
                && (register(&next, 0), register(&next, 1)) == (Register::RBP, Register::RSP)
        })
    }
}

/// Keeps track of what registers hold after an instruction.
fn keep_registers(instruction: &Instruction, state: &mut State) {
    let mnemonic = instruction.mnemonic();
    let first = register(instruction, 0);
    let written = match instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register {
        true => instruction.op0_register().full_register(),
        false => Register::None,
    };
    let is_jump =
        instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64 && mnemonic != Mnemonic::Call;
    let only_reads = is_jump
        || matches!(
            mnemonic,
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Nop
        );
    if only_reads {
        return;
    }
    let is_load = mnemonic == Mnemonic::Mov
        && instruction.op_count() == 2
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None
        && instruction.memory_base() != Register::RIP
        && first == written
        && first != Register::None;
    if !is_plain(mnemonic) {
        (state.loaded, state.popped, state.written) = (None, None, u32::MAX);
    } else if let Some(number) = dwarf_number(written) {
        state.written |= 1 << number;
        state.loaded = if is_load {
            Some(written)
        } else {
            state.loaded.filter(|loaded| *loaded != written)
        };
        let is_pop = mnemonic == Mnemonic::Pop;
        state.popped = state.popped.filter(|(popped, _)| is_pop || *popped != written);
    }
    if written == Register::RSP || mnemonic == Mnemonic::Pop || mnemonic == Mnemonic::Call {
        state.top = None;
    }
}

/// The rule of a function whose return finds this on top of the stack.
fn rule_at_return(arch: &Arch, state: &State, popped: i64) -> Option<Rule> {
    if let (Some(top), FramePointer::Kept) = (state.top, state.fp) {
        // Where the caller's stack will be depends on arguments; it is not further inwards than what has been found.
        let (cfa, ra) = match top {
            Top::Register(number) => (Place::Sp(0), Location::register(number, 0)),
            Top::Loaded(place @ Place::Sp(0..)) => (place.plus(8), place.location(arch, true)?),
            Top::Loaded(_) => return None,
        };
        return Some(Rule::new(cfa.location(arch, false)?, ra));
    }
    let sp = state.sp.filter(|sp| !matches!(sp, Place::Sp(offset) if *offset < 0))?;
    let cfa = sp.plus(8 + popped);
    let fp = match state.fp {
        FramePointer::Kept => None,
        FramePointer::Loaded(place) => Some(place.location(arch, true)?),
        FramePointer::Unknown => return None,
    };
    Some(Rule {
        fp,
        ..Rule::new(cfa.location(arch, false)?, Location::saved(-8 - popped as i32))
    })
}

/// What `mov rsp, rbp; pop rbp` makes of a state.
fn restored(state: &State) -> Option<State> {
    (state.fp == FramePointer::Kept).then_some(State {
        sp: Some(Place::Fp(8)),
        fp: FramePointer::Loaded(Place::Fp(0)),
        pushed: None,
        ..*state
    })
}

fn moved(sp: Option<Place>, instruction: &Instruction, sign: i64) -> Option<Place> {
    let is_immediate = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    let bytes = is_immediate.then(|| instruction.immediate(1).cast_signed())?;
    Some(sp?.plus(bytes.wrapping_mul(sign)))
}

/// The address of a memory operand that stands on the stack pointer or the frame pointer alone.
fn addressed(state: &State, instruction: &Instruction) -> Option<Place> {
    if instruction.memory_index() != Register::None || instruction.segment_prefix() != Register::None {
        return None;
    }
    let base = match instruction.memory_base() {
        Register::RSP => state.sp?,
        Register::RBP if state.fp == FramePointer::Kept => Place::Fp(0),
        _ => return None,
    };
    Some(base.plus(instruction.memory_displacement64().cast_signed()))
}

fn is(instruction: &Instruction, mnemonic: Mnemonic) -> bool {
    instruction.mnemonic() == mnemonic && register(instruction, 0) == Register::RBP
}

/// The register that an operand is; of parts of the stack pointer and the frame pointer, the whole.
fn register(instruction: &Instruction, operand: u32) -> Register {
    if operand >= instruction.op_count() || instruction.op_kind(operand) != OpKind::Register {
        return Register::None;
    }
    match instruction.op_register(operand) {
        Register::SPL | Register::SP | Register::ESP => Register::RSP,
        Register::BPL | Register::BP | Register::EBP => Register::RBP,
        register => register,
    }
}

/// Whether the instruction may write the register, as far as operands say: the first one, and both of an exchange.
fn writes(instruction: &Instruction, written: Register) -> bool {
    register(instruction, 0) == written
        || matches!(instruction.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd) && register(instruction, 1) == written
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;

    const START: u64 = 0x1000;

    /// A function that begins, and a `ret`.
    struct Elsewhere;

    impl Around for Elsewhere {
        fn is_start(&self, at: u64) -> bool {
            at == START + 0x1000
        }

        fn code(&self, at: u64) -> Vec<u8> {
            if at == START + 0x2000 { vec![0xc3] } else { Vec::new() }
        }
    }

    /// CFA from SP or FP, and where the frame pointer was saved, if anywhere, from the same register.
    fn found(code: &[u8], pc: u64) -> Option<(Place, Option<Place>)> {
        let rule = rule(&ARCH, code, START, START + pc, &Elsewhere)?;
        let place = |location: Location| match location.base {
            Base::Register(number) if number == ARCH.sp.0 => Place::Sp(location.offset.into()),
            _ => Place::Fp(location.offset.into()),
        };
        Some((place(rule.cfa), rule.fp.map(place)))
    }

    #[test]
    fn a_frame_pointer_function_at_each_instruction() {
        // push rbp; mov rbp, rsp; sub rsp, 0x20; nop; leave; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0x90, 0xc9, 0xc3];
        let in_frame = Some((Place::Fp(16), Some(Place::Fp(0))));
        assert_eq!(found(&code, 0), Some((Place::Sp(8), None)));
        assert_eq!(found(&code, 1), Some((Place::Sp(16), Some(Place::Sp(0)))));
        for pc in [4, 8, 9] {
            assert_eq!(found(&code, pc), in_frame, "{pc}");
        }
        assert_eq!(found(&code, 10), Some((Place::Sp(8), None)));
    }

    #[test]
    fn pushes_are_popped() {
        // push rbx; push rbp; sub rsp, 8; mov ebp, 1; add rsp, 8; pop rbp; pop rbx; ret
        let code = [
            0x53, 0x55, 0x48, 0x83, 0xec, 0x08, 0xbd, 1, 0, 0, 0, 0x48, 0x83, 0xc4, 0x08, 0x5d, 0x5b, 0xc3,
        ];
        assert_eq!(found(&code, 1), Some((Place::Sp(16), None)));
        assert_eq!(found(&code, 11), Some((Place::Sp(32), Some(Place::Sp(8)))));
        assert_eq!(found(&code, 16), Some((Place::Sp(16), None)));
    }

    #[test]
    fn a_way_that_ends_is_not_the_only_one() {
        // test eax, eax; je +2; ud2; ret 0x10
        let code = [0x85, 0xc0, 0x74, 0x02, 0x0f, 0x0b, 0xc2, 0x10, 0x00];
        assert_eq!(found(&code, 0), Some((Place::Sp(24), None)));
        // A loop without an end: jmp $.
        assert_eq!(found(&[0xeb, 0xfe], 0), None);
    }

    #[test]
    fn tail_calls_find_the_return_address_on_top() {
        // mov rcx, [rdi+0x2f]; mov rcx, [rcx+0x27]; jmp rcx
        let by_register = [0x48, 0x8b, 0x4f, 0x2f, 0x48, 0x8b, 0x49, 0x27, 0xff, 0xe1];
        assert_eq!(found(&by_register, 0), Some((Place::Sp(8), None)));
        assert_eq!(found(&by_register, 4), Some((Place::Sp(8), None)));
        assert_eq!(found(&by_register, 8), Some((Place::Sp(8), None)));
        assert_eq!(found(&by_register[8..], 0), None, "any jump");
        // mov rcx, [rdi+rax*8]; jmp rcx: a switch.
        assert_eq!(found(&[0x48, 0x8b, 0x0c, 0xc7, 0xff, 0xe1], 0), None);
        // mov rcx, [rdi]; add rcx, rax; jmp rcx
        assert_eq!(found(&[0x48, 0x8b, 0x0f, 0x48, 0x01, 0xc1, 0xff, 0xe1], 0), None);
        // add rsp, 0x10; jmp to a start, and to anywhere
        let far = |at: u32| [&[0x48, 0x83, 0xc4, 0x10, 0xe9][..], &at.to_le_bytes()].concat();
        assert_eq!(found(&far(0x1000 - 9), 0), Some((Place::Sp(24), None)));
        assert_eq!(found(&far(0x1000 - 8), 0), None);
        // Code that is not at hand, but can be read.
        assert_eq!(found(&far(0x2000 - 9), 0), Some((Place::Sp(24), None)));
    }

    #[test]
    fn a_return_address_that_is_being_moved() {
        // mov r10, [rsp+0x10]; mov [rsp+8], r10; add rsp, 8; ret
        let code = [
            0x4c, 0x8b, 0x54, 0x24, 0x10, 0x4c, 0x89, 0x54, 0x24, 0x08, 0x48, 0x83, 0xc4, 0x08, 0xc3,
        ];
        assert_eq!(found(&code, 0), None);
        assert_eq!(found(&code, 10), Some((Place::Sp(16), None)));
        // pop rcx; pop rax; push rcx; ret: it is on top until it is popped, and in rcx until it is pushed.
        let moves = [0x59, 0x58, 0x51, 0xc3];
        assert_eq!(found(&moves, 0), Some((Place::Sp(8), None)));
        let in_register = rule(&ARCH, &moves, START, START + 1, &Nothing).unwrap();
        assert_eq!((in_register.ra, in_register.cfa.offset), (Location::register(2, 0), 0));
        // pop rcx; lea rsp, [r15+8]; push rcx; ret: as V8 removes arguments.
        assert_eq!(
            found(&[0x59, 0x49, 0x8d, 0x67, 0x08, 0x51, 0xc3], 0),
            Some((Place::Sp(8), None))
        );
        // xor ecx, ecx; push rcx; ret: what is returned to is made here.
        assert_eq!(found(&[0x31, 0xc9, 0x51, 0xc3], 0), None);
        assert!(has_left_frame(&ARCH, &[0x31, 0xc9, 0x51, 0xc3], START, START, &Nothing));
        assert_eq!(found(&[0x59, 0x51, 0xc3], 0), Some((Place::Sp(8), None)));
    }

    #[test]
    fn what_is_not_clear_is_not_said() {
        // and rsp, -32; ret
        assert_eq!(found(&[0x48, 0x83, 0xe4, 0xe0, 0xc3], 0), None);
        // xor ebp, ebp; ret: the caller's frame pointer is gone.
        assert_eq!(found(&[0x31, 0xed, 0xc3], 0), None);
        // push rax; push rax; jmp rax
        assert_eq!(found(&[0x50, 0x50, 0xff, 0xe0], 0), None);
        // The bytes end.
        assert_eq!(found(&[0x90, 0x90], 0), None);
        assert_eq!(found(&[0x90], 7), None);
    }

    #[test]
    fn ways_that_never_return() {
        let may_return = |code: &[u8]| may_return(&ARCH, code, START, START);
        // A loop; test eax, eax; je to ud2, and a jump back; the same with a return.
        assert!(!may_return(&[0xeb, 0xfe]));
        assert!(!may_return(&[0x85, 0xc0, 0x74, 0x02, 0xeb, 0xfa, 0x0f, 0x0b]));
        assert!(may_return(&[0x85, 0xc0, 0x74, 0x02, 0xeb, 0xfa, 0xc3]));
        // jmp rax; the code ends.
        assert!(may_return(&[0xff, 0xe0]) && may_return(&[0x90]));
    }

    #[test]
    fn frames_that_were_left() {
        // mov rbp, [rbp]; nop; nop
        let code = [0x48, 0x8b, 0x6d, 0x00, 0x90, 0x90];
        let has_left = |pc| has_left_frame(&ARCH, &code, START, START + pc, &Nothing);
        assert!(has_left(4) && has_left(6) && has_left(700));
        assert!(!has_left(0) && !has_left(3));
    }

    #[test]
    fn entries_have_not_touched_the_stack() {
        // mov eax, 1; test eax, eax; push rbp; nop
        let code = [0xb8, 1, 0, 0, 0, 0x85, 0xc0, 0x55, 0x90];
        let is_at_entry = |pc| is_at_entry(&ARCH, &code, START, START, START + pc);
        assert!([0, 5, 7].into_iter().all(is_at_entry));
        assert!(!is_at_entry(8), "something was pushed");
        assert!(!is_at_entry(6), "no instruction begins there");
    }

    #[test]
    fn no_bytes_are_too_odd() {
        let mut state = 0x1234_5678_u32;
        let mut code = [0; 256];
        for _ in 0..2000 {
            for byte in &mut code {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
            }
            let _ = rule(&ARCH, &code, START, START + u64::from(state >> 25), &Nothing);
            let _ = rule(&ARCH, &code, u64::MAX - 100, u64::MAX - 50, &Nothing);
        }
    }
}
