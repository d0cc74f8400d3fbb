//! How code that no table covers leaves its frame, as its instructions show.
//!
//! Whatever a function has done to its stack pointer, every way to its return undoes it. So one way from a program
//! counter to a return, followed instruction by instruction, says where the return address lies and where the caller's
//! frame pointer is. Calls give back the stack pointer as they found it; where code of a run-time system does not
//! follow that, it keeps a frame pointer, and a way that ends in restoring the stack pointer from it does not depend on
//! what came before.

use std::collections::HashSet;

use backtrail_arch::{Arch, InstructionSet};
use backtrail_sframe::{Base, Location, Rule};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use crate::prologue;

/// Bytes around a program counter that are worth having: loops jump backwards, and returns lie at ends.
pub const BYTES_BEFORE: u64 = 8 << 10;
/// See [`BYTES_BEFORE`].
pub const BYTES_FROM: u64 = 8 << 10;

/// Instructions that are followed for one program counter, over all ways.
const MOST_INSTRUCTIONS: usize = 2000;
/// Instructions of the longest function that is asked which registers it keeps.
const LONGEST_HELPER: usize = 1 << 13;
/// Ways that wait to be tried if the one at hand leads nowhere.
const MOST_WAYS: usize = 32;

/// A piece of memory with code.
#[derive(Clone, Copy, Debug)]
pub struct Code<'c> {
    /// Its bytes.
    pub bytes: &'c [u8],
    /// Its address.
    pub start: u64,
    /// Addresses at which functions are known to begin, in order; there may be others.
    pub functions: &'c [u64],
}

impl Code<'_> {
    /// Whether code does not go on at `at`, after a call: another function begins there, perhaps after padding.
    pub(crate) fn ends(&self, at: u64) -> bool {
        self.functions.binary_search(&at).is_ok() || prologue::is_end(self.bytes, self.start, at)
    }
}

/// The rule of the frame at `pc`, which lies in `code` and is a return address or where code was interrupted. `None` if no
/// way from there shows one.
pub fn rule(arch: &Arch, code: &Code<'_>, pc: u64, is_return: bool) -> Option<Rule> {
    match arch.instructions {
        // Behind a call that does not return.
        InstructionSet::X86_64 if is_return && code.ends(pc) => prologue::rule(arch, code, pc, is_return),
        InstructionSet::X86_64 => {
            let returning = Search::new(code).rule(arch, pc);
            let restores = returning.filter(|rule| rule.fp != Some(LOST));
            restores
                .or_else(|| prologue::rule(arch, code, pc, is_return))
                .or(returning)
        }
        // Leaf functions there keep the return address in its register, and others a frame record.
        InstructionSet::Aarch64 | InstructionSet::S390x => None,
    }
}

/// Where the frame pointer is that a helper of assembly has overwritten: nowhere. Who calls it has saved it.
const LOST: Location = Location {
    base: Base::Register(u8::MAX),
    offset: 0,
    deref: true,
};

/// Whether code shortly before `pc` has given the frame pointer back already, as V8's builtins do before they jump to
/// another one.
pub fn has_left_frame(arch: &Arch, code: &Code<'_>, pc: u64) -> bool {
    /// `mov rbp, [rbp]`.
    const RESTORES: [u8; 4] = [0x48, 0x8b, 0x6d, 0x00];
    /// What such code does until it jumps: moving a few arguments.
    const BYTES: usize = 96;
    let end = usize::try_from(pc.saturating_sub(code.start))
        .unwrap_or(usize::MAX)
        .min(code.bytes.len());
    let before = &code.bytes[end.saturating_sub(BYTES)..end];
    arch.instructions == InstructionSet::X86_64 && before.windows(RESTORES.len()).any(|bytes| bytes == RESTORES)
}

/// Whether the code at `pc` may come to a return, or to where nobody can say.
pub fn may_return(arch: &Arch, code: &Code<'_>, pc: u64) -> bool {
    if arch.instructions != InstructionSet::X86_64 {
        return true;
    }
    if code.ends(pc) {
        return false;
    }
    let search = Search::new(code);
    let (mut ways, mut seen) = (vec![pc], HashSet::new());
    while let Some(mut at) = ways.pop() {
        while seen.insert(at) {
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
                (Mnemonic::Call, _) if code.ends(instruction.next_ip()) => break,
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
pub fn is_at_entry(arch: &Arch, code: &Code<'_>, entry: u64, pc: u64) -> bool {
    if arch.instructions != InstructionSet::X86_64 {
        return false;
    }
    let search = Search::new(code);
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

/// Whether the function that begins at `entry` leaves `register` alone on every way, comes to `pc` on one, and calls nothing:
/// assembly code has helpers of its own that keep more than the calling convention asks for.
pub fn keeps(arch: &Arch, code: &Code<'_>, entry: u64, pc: u64, register: backtrail_arch::Register) -> bool {
    if arch.instructions != InstructionSet::X86_64 || register.0 > 15 {
        return false;
    }
    let mut search = Search::new(code);
    let (mut ways, mut seen, mut meets) = (vec![entry], HashSet::new(), false);
    while let Some(mut at) = ways.pop() {
        while seen.insert(at) {
            let Some(instruction) = search.decode(at).filter(|_| seen.len() < LONGEST_HELPER) else {
                return false;
            };
            meets |= at == pc;
            if written(&mut search.info, &instruction) & 1 << register.0 != 0 {
                return false;
            }
            at = match instruction.flow_control() {
                FlowControl::Next => instruction.next_ip(),
                FlowControl::Return => break,
                FlowControl::UnconditionalBranch => instruction.near_branch_target(),
                FlowControl::ConditionalBranch => {
                    ways.push(instruction.near_branch_target());
                    instruction.next_ip()
                }
                _ => return false,
            };
        }
    }
    meets
}

/// The general registers of which the instruction may write any part, named as operands or not: a bit for each DWARF number.
fn written(info: &mut InstructionInfoFactory, instruction: &Instruction) -> u16 {
    let used = info.info(instruction).used_registers().iter();
    used.filter(|used| {
        !matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        )
    })
    .filter_map(|used| dwarf_number(used.register()))
    .fold(0, |all, number| all | 1 << number)
}

/// The DWARF number of a general register or a part of one.
fn dwarf_number(register: Register) -> Option<u8> {
    const BY_ENCODING: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
    let whole = register.full_register();
    let encoding = (whole as usize).checked_sub(Register::RAX as usize)?;
    BY_ENCODING.get(encoding).copied()
}

/// Bytes from what a register is at the program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Sp(i64),
    Fp(i64),
    /// From a register by its DWARF number: code that aligns its stack keeps the old pointer there.
    Other(u8, i64),
}

impl Place {
    fn plus(self, bytes: i64) -> Place {
        match self {
            Place::Sp(offset) => Place::Sp(offset.wrapping_add(bytes)),
            Place::Fp(offset) => Place::Fp(offset.wrapping_add(bytes)),
            Place::Other(register, offset) => Place::Other(register, offset.wrapping_add(bytes)),
        }
    }

    fn location(self, arch: &Arch, deref: bool) -> Option<Location> {
        let (register, offset) = match self {
            Place::Sp(offset) => (arch.sp.0, offset),
            Place::Fp(offset) => (arch.fp.0, offset),
            Place::Other(register, offset) => (register, offset),
        };
        Some(Location {
            base: Base::Register(register),
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
    /// Registers that were written on this way, a bit for each DWARF number.
    written: u16,
}

struct Search<'c> {
    code: &'c Code<'c>,
    /// Where the way begins.
    pc: u64,
    info: InstructionInfoFactory,
    ways: Vec<(u64, State)>,
    seen: HashSet<u64>,
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
    fn new(code: &'c Code<'c>) -> Search<'c> {
        Search {
            code,
            pc: code.start,
            info: InstructionInfoFactory::new(),
            ways: Vec::new(),
            seen: HashSet::new(),
        }
    }

    fn rule(mut self, arch: &Arch, pc: u64) -> Option<Rule> {
        let begin = State {
            sp: Some(Place::Sp(0)),
            fp: FramePointer::Kept,
            pushed: None,
            written: 0,
        };
        self.pc = pc;
        self.ways.push((pc, begin));
        let mut left = MOST_INSTRUCTIONS;
        while let Some((at, state)) = self.ways.pop() {
            if let Some((state, popped)) = self.follow(at, state, &mut left) {
                return rule_at_return(arch, &state, popped);
            }
        }
        None
    }

    /// Follows one way to its return; what is on top of the stack then, and the bytes of arguments that the return pops.
    fn follow(&mut self, mut at: u64, mut state: State, left: &mut usize) -> Option<(State, i64)> {
        loop {
            *left = left.checked_sub(1)?;
            // Every way into code that was seen has the same stack there.
            if !self.seen.insert(at) {
                return None;
            }
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
        let offset = usize::try_from(at.checked_sub(self.code.start)?).ok()?;
        let bytes = self.code.bytes.get(offset..)?;
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
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
                    pushed: None,
                    written: 0,
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
                state.sp = state.sp.filter(|_| first != Register::RSP).map(|sp| sp.plus(8));
            }
            Mnemonic::Pushfq => state.sp = state.sp.map(|sp| sp.plus(-8)),
            Mnemonic::Popfq => state.sp = state.sp.map(|sp| sp.plus(8)),
            Mnemonic::Add if first == Register::RSP => state.sp = moved(state.sp, instruction, 1),
            Mnemonic::Sub if first == Register::RSP => state.sp = moved(state.sp, instruction, -1),
            Mnemonic::Lea if first == Register::RSP => state.sp = addressed(state, instruction),
            Mnemonic::Mov if first == Register::RSP => state.sp = self.kept_in(state, second),
            Mnemonic::Mov if first == Register::RBP && instruction.op1_kind() == OpKind::Memory => {
                state.fp = addressed(state, instruction).map_or(FramePointer::Unknown, FramePointer::Loaded);
            }
            Mnemonic::Call if self.code.ends(instruction.next_ip()) => return Next::Ends,
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Call => {}
            _ => {
                if [first, second].contains(&Register::RSP) && writes(instruction, Register::RSP) {
                    state.sp = None;
                }
                if writes(instruction, Register::RBP) {
                    state.fp = FramePointer::Unknown;
                }
            }
        }
        // A call's callee may write others, but code that takes its stack pointer from one knows that it does not.
        if instruction.mnemonic() != Mnemonic::Call {
            state.written |= written(&mut self.info, instruction);
        }
        // What is left of those with a target are conditional jumps.
        let may_jump = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::NearBranch64
            && instruction.mnemonic() != Mnemonic::Call;
        if may_jump && self.ways.len() < MOST_WAYS {
            self.ways.push((instruction.near_branch_target(), *state));
        }
        Next::Follows
    }

    /// The old stack pointer, if this register has held it since before the way began.
    fn kept_in(&self, state: &State, register: Register) -> Option<Place> {
        let number = dwarf_number(register).filter(|number| state.written & 1 << number == 0)?;
        self.was_saved_in(register).then_some(Place::Other(number, 0))
    }

    /// Whether `mov register, rsp` lies before the way's begin. What takes its stack pointer from a register that never held
    /// it changes from one stack to another.
    fn was_saved_in(&self, register: Register) -> bool {
        let encoding = (register as u32).wrapping_sub(Register::RAX as u32);
        if register == Register::RSP || encoding > 15 {
            return false;
        }
        let (high, low) = (encoding as u8 >> 3, encoding as u8 & 7);
        let saves = [
            [0x48 | high, 0x89, 0xe0 | low],
            [0x48 | high << 2, 0x8b, 0xc4 | low << 3],
        ];
        let end = usize::try_from(self.pc.saturating_sub(self.code.start)).unwrap_or(usize::MAX);
        let before = &self.code.bytes[..end.min(self.code.bytes.len())];
        before.windows(3).any(|bytes| saves.iter().any(|saved| saved == bytes))
    }

    /// Whether `push rbp` lies before.
    fn follows_push(&self, at: u64) -> bool {
        const PUSH_RBP: u8 = 0x55;
        let before = at.wrapping_sub(1).checked_sub(self.code.start);
        before.is_some_and(|before| self.code.bytes.get(before as usize) == Some(&PUSH_RBP))
    }

    /// Whether `mov rbp, rsp` lies there.
    fn sets_frame(&self, at: u64) -> bool {
        self.decode(at).is_some_and(|next| {
            next.mnemonic() == Mnemonic::Mov
                && (register(&next, 0), register(&next, 1)) == (Register::RBP, Register::RSP)
        })
    }
}

/// The rule of a function whose return finds this on top of the stack.
fn rule_at_return(arch: &Arch, state: &State, popped: i64) -> Option<Rule> {
    let sp = state.sp.filter(|sp| !matches!(sp, Place::Sp(offset) if *offset < 0))?;
    let cfa = sp.plus(8 + popped);
    let fp = match state.fp {
        FramePointer::Kept => None,
        FramePointer::Loaded(place) => Some(place.location(arch, true)?),
        FramePointer::Unknown => Some(LOST),
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
        written: state.written,
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

    fn plain(bytes: &[u8]) -> Code<'_> {
        Code {
            bytes,
            start: START,
            functions: &[],
        }
    }

    /// CFA from SP or FP, and where the frame pointer was saved, if anywhere, from the same register.
    fn found(code: &[u8], pc: u64) -> Option<(Place, Option<Place>)> {
        let rule = rule(&ARCH, &plain(code), START + pc, false)?;
        let place = |location: Location| match location.base {
            Base::Register(number) if number == ARCH.sp.0 => Place::Sp(location.offset.into()),
            Base::Register(number) if number == ARCH.fp.0 => Place::Fp(location.offset.into()),
            Base::Register(number) => Place::Other(number, location.offset.into()),
            Base::Cfa => panic!("a place from the frame itself"),
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
    fn what_is_not_clear_is_not_said() {
        // and rsp, -32; ret
        assert_eq!(found(&[0x48, 0x83, 0xe4, 0xe0, 0xc3], 0), None);
        // xor ebp, ebp; ret: the caller's frame pointer is gone, but not the frame.
        let lost = rule(&ARCH, &[0x31, 0xed, 0xc3], START, START).map(|rule| (rule.cfa.offset, rule.fp));
        assert_eq!(lost, Some((8, Some(LOST))));
        // push rax; push rax; jmp rax
        assert_eq!(found(&[0x50, 0x50, 0xff, 0xe0], 0), None);
        // The bytes end.
        assert_eq!(found(&[0x90, 0x90], 0), None);
        assert_eq!(found(&[0x90], 7), None);
    }

    #[test]
    fn ways_that_never_return() {
        let may_return = |code: &[u8]| may_return(&ARCH, &plain(code), START);
        // A loop; test eax, eax; je to ud2, and a jump back; the same with a return.
        assert!(!may_return(&[0xeb, 0xfe]));
        assert!(!may_return(&[0x85, 0xc0, 0x74, 0x02, 0xeb, 0xfa, 0x0f, 0x0b]));
        assert!(may_return(&[0x85, 0xc0, 0x74, 0x02, 0xeb, 0xfa, 0xc3]));
        // jmp rax; the code ends.
        assert!(may_return(&[0xff, 0xe0]) && may_return(&[0x90]));
    }

    #[test]
    fn a_call_before_another_function_does_not_return() {
        // push rbx; sub rsp, 8; call; next: push rbp; push rbx; pop rbx; pop rbp; ret
        let bytes = [
            0x53, 0x48, 0x83, 0xec, 8, 0xe8, 0, 0, 0, 0, 0x55, 0x53, 0x5b, 0x5d, 0xc3,
        ];
        let next = [START, START + 10];
        let code = Code {
            functions: &next,
            ..plain(&bytes)
        };
        assert!(!may_return(&ARCH, &code, START + 5) && may_return(&ARCH, &plain(&bytes), START + 5));
        // The way from the start says what the way through the next function would get wrong.
        for pc in [5, 10] {
            let found = rule(&ARCH, &code, START + pc, true).expect("a start");
            assert_eq!((found.cfa, found.fp), (Location::register(ARCH.sp.0, 24), None), "{pc}");
        }
        assert_eq!(found(&bytes, 5), Some((Place::Sp(8), None)));
        // What was interrupted there is the next function.
        assert_eq!(
            rule(&ARCH, &code, START + 10, false).map(|found| found.cfa.offset),
            Some(8)
        );
        // call; next: jmp rax, which goes nobody knows where.
        let bytes = [0x53, 0xe8, 0, 0, 0, 0, 0xff, 0xe0];
        let next = [START, START + 6];
        let code = Code {
            functions: &next,
            ..plain(&bytes)
        };
        let offset = |is_return| rule(&ARCH, &code, START + 6, is_return).map(|found| found.cfa.offset);
        assert_eq!((offset(true), offset(false)), (Some(16), Some(8)));
    }

    #[test]
    fn frames_that_were_left() {
        // mov rbp, [rbp]; nop; nop
        let code = [0x48, 0x8b, 0x6d, 0x00, 0x90, 0x90];
        let has_left = |pc| has_left_frame(&ARCH, &plain(&code), START + pc);
        assert!(has_left(4) && has_left(6) && has_left(700));
        assert!(!has_left(0) && !has_left(3));
    }

    #[test]
    fn entries_have_not_touched_the_stack() {
        // mov eax, 1; test eax, eax; push rbp; nop
        let code = [0xb8, 1, 0, 0, 0, 0x85, 0xc0, 0x55, 0x90];
        let is_at_entry = |pc| is_at_entry(&ARCH, &plain(&code), START, START + pc);
        assert!([0, 5, 7].into_iter().all(is_at_entry));
        assert!(!is_at_entry(8), "something was pushed");
        assert!(!is_at_entry(6), "no instruction begins there");
    }

    #[test]
    fn helpers_keep_what_they_do_not_write() {
        let keeps = |code: &[u8], register, pc| {
            let register = backtrail_arch::Register(register);
            keeps(&ARCH, &plain(code), START, START + pc, register)
        };
        let (rax, rbx, r12) = (0, 3, 12);
        // vpxor xmm0, xmm0, xmm0; movbe r13, [r14+8]; lea r14, [r14+0x60]; mov [rsp+8], r13; setae r12b; rep ret
        let helper = [
            0xc5, 0xf9, 0xef, 0xc0, 0x4d, 0x0f, 0x38, 0xf0, 0x6e, 0x08, 0x4d, 0x8d, 0x76, 0x60, 0x4c, 0x89, 0x6c, 0x24,
            0x08, 0x41, 0x0f, 0x93, 0xc4, 0xf3, 0xc3, 0x31, 0xc0,
        ];
        assert!(keeps(&helper, rax, 0) && keeps(&helper, rbx, 23));
        assert!(!keeps(&helper, rax, 25), "behind the return");
        assert!(!keeps(&helper, rax, 3) && !keeps(&helper, r12, 0));
        assert!(!keeps(&helper, 13, 0) && !keeps(&helper, 14, 0));
        // xor eax, eax; mov bl, 1; mov ah, 1
        assert!(!keeps(&[0x31, 0xc0, 0xc3], rax, 0) && keeps(&[0x31, 0xc0, 0xc3], rbx, 0));
        assert!(!keeps(&[0xb3, 0x01, 0xc3], rbx, 0) && !keeps(&[0xb4, 0x01, 0xc3], rax, 0));
        // mul ecx: rax and rdx, which no operand names.
        assert!(!keeps(&[0xf7, 0xe1, 0xc3], rax, 0) && !keeps(&[0xf7, 0xe1, 0xc3], 1, 0));
        assert!(keeps(&[0xf7, 0xe1, 0xc3], rbx, 0));
        // je over `xor ebx, ebx`: one way writes it.
        assert!(!keeps(&[0x74, 0x02, 0x31, 0xdb, 0xc3], rbx, 0));
        // A call, a jump out of the code, jmp rax, nothing, half an instruction.
        for code in [
            &[0xe8, 0, 0, 0, 0, 0xc3][..],
            &[0xeb, 0x7f],
            &[0xff, 0xe0],
            &[],
            &[0x48],
        ] {
            assert!(!keeps(code, rbx, 0), "{code:x?}");
        }
    }

    #[test]
    fn an_aligned_stack_is_left_by_the_old_pointer() {
        // mov rcx, rsp; and rsp, -16; sub rsp, 0x30; call +0; nop; mov rsp, rcx; ret
        let code = [
            0x48, 0x89, 0xe1, 0x48, 0x83, 0xe4, 0xf0, 0x48, 0x83, 0xec, 0x30, 0xe8, 0, 0, 0, 0, 0x90, 0x48, 0x89, 0xcc,
            0xc3,
        ];
        let by_rcx = Some((Place::Other(2, 8), None));
        for pc in [3, 7, 11, 16, 17] {
            assert_eq!(found(&code, pc), by_rcx, "{pc}");
        }
        assert_eq!(found(&code, 20), Some((Place::Sp(8), None)));
        // The register is another one; mov rcx, rdx lies between; the same in the other encoding.
        let change = |at: usize, bytes: &[u8]| {
            let mut code = code;
            code[at..at + bytes.len()].copy_from_slice(bytes);
            found(&code, 11)
        };
        assert_eq!(change(0, &[0x48, 0x89, 0xe0]), None);
        assert_eq!(change(11, &[0x48, 0x89, 0xd1, 0x90, 0x90]), None);
        assert_eq!(change(0, &[0x48, 0x8b, 0xcc]), by_rcx);
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
            let _ = rule(&ARCH, &plain(&code), START + u64::from(state >> 25), state & 1 == 0);
            let at_end = Code {
                start: u64::MAX - 100,
                ..plain(&code)
            };
            let _ = rule(&ARCH, &at_end, u64::MAX - 50, true);
        }
    }
}
