//! How code that no table covers leaves its frame, from its instructions.
//!
//! Whatever a function does to its stack pointer, every path to its return undoes it. So one path
//! from a program counter to a return, followed instruction by instruction, shows where the return
//! address and the caller's frame pointer are. Calls restore the stack pointer; code of run-time
//! systems that does not follow this rule keeps a frame pointer, and a path that ends in restoring
//! the stack pointer from it does not depend on anything before.

mod state;

use std::cell::RefCell;
use std::collections::HashSet;

use backtrail_arch::{Arch, Cpu};
use backtrail_sframe::Rule;
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

pub(crate) use crate::code::LOST;
pub use crate::kept::keeps;
use crate::kept::{dwarf_number, written};
pub use crate::prologue::Code;
use crate::prologue::{self, branch_target, decoded};
use crate::registers::FunctionRule;
use state::{
    AtReturn, FramePointer, Place, Slot, State, Top, addressed, moved, restore, rule_at_return, unaligned_register,
};

/// Bytes before a program counter that should be read: loops jump backwards.
pub const BYTES_BEFORE: u64 = 8 << 10;
/// Bytes from a program counter on that should be read: returns lie at the ends of functions.
pub const BYTES_FROM: u64 = 8 << 10;

/// Bytes before an address that [`is_start`] needs.
pub const BYTES_BEFORE_START: usize = prologue::TRAPS;

/// Whether the bytes before `at` show that a function begins there: padding of a kind that occurs
/// nowhere else.
pub fn is_start(before: &[u8], at: u64) -> bool {
    prologue::is_padded_start(before, at)
}

/// Whether a function begins at `at` whose first instruction uses a frame that is there already.
/// No call leads there: V8 returns to such code in frames that it has made from those of optimized
/// code. `bytes` begin [`BYTES_BEFORE_START`] before `at`.
pub fn continues_frame(arch: &Arch, bytes: &[u8], at: u64) -> bool {
    let Some((before, code)) = bytes.split_at_checked(BYTES_BEFORE_START) else {
        return false;
    };
    let uses_frame = |first: Instruction| match first.mnemonic() {
        Mnemonic::Pop => true,
        Mnemonic::Mov => {
            let is_below = first.memory_displacement64().cast_signed() < 0;
            first.op1_kind() == OpKind::Memory && first.memory_base() == Register::RBP && is_below
        }
        _ => false,
    };
    arch.cpu == Cpu::X86_64 && is_start(before, at) && decoded(code, at, at).is_some_and(uses_frame)
}

/// Access to code elsewhere in memory.
pub trait Around {
    /// Whether a function begins at this address: a jump there is a tail call.
    fn is_start(&self, at: u64) -> bool;

    /// Code from `at` on, as much as is worth reading; empty if it should not be followed.
    fn code(&self, at: u64) -> Vec<u8>;

    /// The code that continues at `at` what was passed.
    fn following(&self, at: u64) -> Vec<u8> {
        self.code(at)
    }

    /// What call frame information says about the code at `at`.
    fn described(&self, _at: u64) -> Option<FunctionRule> {
        None
    }
}

/// Compilers align functions by this, unless they optimize for size.
const FUNCTION_ALIGN: u64 = 16;
/// Pieces of code elsewhere that are followed.
const MOST_PIECES: usize = 32;
/// Instructions that are followed for one program counter, over all paths.
const MOST_INSTRUCTIONS: usize = 2000;
/// Instructions up to the first branch: assembly that is unrolled is long.
const MOST_STRAIGHT: usize = 10_000;
/// Alternative paths that wait to be tried if the current one leads nowhere.
const MOST_WAYS: usize = 32;

/// The rule of the frame at `pc`, which is a return address or an interrupted instruction in
/// `code`. `None` if no path from there shows a rule.
pub fn rule(arch: &Arch, code: &Code<'_>, pc: u64, is_return: bool, around: &dyn Around) -> Option<Rule> {
    match arch.cpu {
        // After a call that does not return.
        Cpu::X86_64 if is_return && code.ends(pc) => prologue::rule(arch, code, pc, is_return),
        Cpu::X86_64 => {
            let returning = Search::new(code, around).rule(arch, pc);
            let restores = returning.filter(|rule| rule.fp != Some(LOST));
            restores
                .or_else(|| prologue::rule(arch, code, pc, is_return))
                .or(returning)
        }
        // Leaf functions there keep the return address in its register, and others use a frame
        // record.
        Cpu::Aarch64 | Cpu::S390x => None,
    }
}

/// The rule of code made at run time, which calls what does not return as often as what does: a
/// frame that it has made for itself is known better from its start than from a way to its return.
pub fn rule_at_run_time(arch: &Arch, code: &Code<'_>, pc: u64, is_return: bool, around: &dyn Around) -> Option<Rule> {
    let framed = || prologue::framed(arch, code, pc, is_return);
    let framed = (arch.cpu == Cpu::X86_64).then(framed).flatten();
    framed.or_else(|| rule(arch, code, pc, is_return, around))
}

/// Whether the frame pointer at `pc` is the caller's: either no branch or call lies between `pc`
/// and a return with the same frame pointer, or code shortly before `pc` has already restored it,
/// as V8's builtins do before they jump to another one.
pub fn has_left_frame(arch: &Arch, code: &Code<'_>, pc: u64, around: &dyn Around) -> bool {
    /// `mov rbp, [rbp]`.
    const RESTORES: [u8; 4] = [0x48, 0x8b, 0x6d, 0x00];
    /// Bytes of such code up to its jump: it moves a few arguments.
    const BYTES: usize = 96;
    let before = code.before(pc);
    let before = &before[before.len().saturating_sub(BYTES)..];
    if arch.cpu != Cpu::X86_64 {
        return false;
    }
    let at_return = || Search::new(code, around).at_return(pc);
    before.windows(RESTORES.len()).any(|bytes| bytes == RESTORES)
        || at_return().is_some_and(|end| end.is_straight && end.state.fp == FramePointer::Kept)
}

/// How far below the frame pointer the code from `pc` on reaches for what is nearest to it there.
/// `None` if it uses nothing below that pointer.
pub fn below_frame_pointer(arch: &Arch, code: &Code<'_>, pc: u64, around: &dyn Around) -> Option<u64> {
    let mut search = Search::new(code, around);
    if arch.cpu == Cpu::X86_64 {
        search.at_return(pc);
    }
    search.nearest
}

/// The interpreter in whose frame the code at `pc` runs: the code jumps there, and leaves it to
/// the interpreter to remove what the code has put on the stack.
pub fn host(arch: &Arch, code: &Code<'_>, pc: u64, around: &dyn Around) -> Option<FunctionRule> {
    let mut search = Search::new(code, around);
    if arch.cpu == Cpu::X86_64 {
        search.at_return(pc);
    }
    search.host.filter(|host| host.is_plain(arch))
}

/// Bytes from the stack pointer at `pc` to where it is when the code goes on at an address from a
/// register or memory, and leaves its frame to what is there. `None` if the code returns.
pub fn dispatched(arch: &Arch, code: &Code<'_>, pc: u64, around: &dyn Around) -> Option<i32> {
    let mut search = Search::new(code, around);
    if arch.cpu != Cpu::X86_64 || search.at_return(pc).is_some() {
        return None;
    }
    match search.dispatched {
        Some(Place::Sp(offset)) => i32::try_from(offset).ok(),
        _ => None,
    }
}

/// Where the code at `pc` jumps before it returns without another branch.
pub fn exit(arch: &Arch, code: &Code<'_>, pc: u64, around: &dyn Around) -> Option<u64> {
    let mut search = Search::new(code, around);
    if arch.cpu == Cpu::X86_64 {
        search.at_return(pc);
    }
    search.exit
}

/// Whether the code at `pc` may reach a return, or code that is not known.
pub fn may_return(arch: &Arch, code: &Code<'_>, pc: u64) -> bool {
    if arch.cpu != Cpu::X86_64 {
        return true;
    }
    !code.ends(pc) && reaches_return(code, pc)
}

fn reaches_return(code: &Code<'_>, pc: u64) -> bool {
    let (mut ways, mut seen) = (vec![pc], HashSet::new());
    while let Some(mut at) = ways.pop() {
        while seen.insert(at) {
            let Some(instruction) = code.instruction(at).filter(|_| seen.len() < MOST_INSTRUCTIONS) else {
                return true;
            };
            let target = branch_target(&instruction);
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

/// Whether this is a jump to the address in a register.
fn jumps_to(instruction: &Instruction, register: Register) -> bool {
    instruction.mnemonic() == Mnemonic::Jmp
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == register
}

/// Whether the return address has just been popped, into the register to which `pc` jumps.
pub(crate) fn has_popped_return_address(code: &Code<'_>, pc: u64) -> bool {
    /// `pop` of one of the first eight registers, and what precedes it for the others.
    const POP: u8 = 0x58;
    const OTHERS: u8 = 0x41;
    let jump = code.instruction(pc).filter(|jump| jumps_to(jump, jump.op0_register()));
    let (Some(jump), Some(&[before, pop])) = (jump, code.before(pc).last_chunk::<2>()) else {
        return false;
    };
    let number = jump.op0_register().number() as u8;
    pop == POP | number & 7 && (number >= 8) == (before == OTHERS)
}

/// Bytes of a jump that reaches 127 bytes.
const SHORT_JUMP: usize = 2;

/// Whether the function at `entry` leaves its frame by a jump to an address from a register or from
/// memory. The tables of `switch` are jumped through with the frame in place.
pub fn makes_indirect_tail_call(arch: &Arch, code: &Code<'_>, entry: u64) -> bool {
    if arch.cpu != Cpu::X86_64 {
        return false;
    }
    let (mut at, mut farthest) = (entry, entry);
    let (mut has_frame, mut is_left) = (false, false);
    for _ in 0..MOST_INSTRUCTIONS {
        let Some(instruction) = code.instruction(at) else {
            return false;
        };
        let next = instruction.next_ip();
        let target = branch_target(&instruction);
        let moves = writes(&instruction, Register::RSP);
        let ends = match (instruction.mnemonic(), target) {
            (Mnemonic::Jmp, None) if is_left || !has_frame => return true,
            // A jump in its short form leads on in the same function.
            (Mnemonic::Jmp, Some(target)) if instruction.len() == SHORT_JUMP => {
                farthest = farthest.max(target);
                true
            }
            (Mnemonic::Jmp | Mnemonic::Ret | Mnemonic::Ud2 | Mnemonic::Hlt, _) => true,
            (Mnemonic::Int3, _) => return false,
            (Mnemonic::Call, _) => code.ends(next),
            (_, Some(target)) => {
                farthest = farthest.max(target.min(entry.saturating_add(BYTES_FROM)));
                false
            }
            _ => false,
        };
        // Nothing that was followed leads on.
        if ends && farthest < next {
            return false;
        }
        is_left = match instruction.mnemonic() {
            Mnemonic::Pop | Mnemonic::Leave => true,
            Mnemonic::Add => moves,
            _ => false,
        };
        has_frame |= moves || matches!(instruction.mnemonic(), Mnemonic::Push | Mnemonic::Call);
        at = next;
    }
    false
}

/// Whether the code from `entry` to `pc` has left the stack and the frame pointer unchanged.
pub fn is_at_entry(arch: &Arch, code: &Code<'_>, entry: u64, pc: u64) -> bool {
    if arch.cpu != Cpu::X86_64 {
        return false;
    }
    let (mut at, mut farthest) = (entry, entry);
    while at < pc {
        let Some(instruction) = code.instruction(at) else {
            return false;
        };
        let (mnemonic, next) = (instruction.mnemonic(), instruction.next_ip());
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
        // What follows a jump is another function's, unless a branch leads there.
        let is_past = mnemonic == Mnemonic::Jmp && next <= pc && farthest < next;
        if moves || is_past || writes(&instruction, Register::RSP) || writes(&instruction, Register::RBP) {
            return false;
        }
        if instruction.flow_control() == FlowControl::ConditionalBranch && instruction.near_branch_target() <= pc {
            farthest = farthest.max(instruction.near_branch_target());
        }
        at = next;
    }
    at == pc && entry <= pc
}

/// Whether `pc` lies in a stub that chooses where to jump and leaves the stack to that code, as
/// compilers at run time make for calls of interfaces and delegates.
pub fn is_in_stub(arch: &Arch, code: &Code<'_>, pc: u64) -> bool {
    /// Bytes of a stub.
    const LONGEST: u64 = 256;
    let mut starts =
        (0..LONGEST / prologue::ALIGN).map(|back| (pc & !(prologue::ALIGN - 1)).wrapping_sub(back * prologue::ALIGN));
    let start = starts.find(|start| prologue::follows_end(code, *start));
    start.is_some_and(|start| is_at_entry(arch, code, start, pc) && makes_indirect_tail_call(arch, code, start))
}

struct Search<'c> {
    code: &'c Code<'c>,
    around: &'c dyn Around,
    /// Code elsewhere that was requested.
    pieces: RefCell<Vec<(u64, Vec<u8>)>>,
    /// Whether the path has neither branched nor jumped.
    is_straight: bool,
    /// The start of the path.
    pc: u64,
    info: InstructionInfoFactory,
    /// Paths to try: their start, their state, and the number of stores made before them.
    ways: Vec<(u64, State, usize)>,
    seen: HashSet<u64>,
    /// The places on the stack that this path has written.
    stores: Vec<Place>,
    /// Bytes from the nearest place that any path has used below the frame pointer up to it.
    nearest: Option<u64>,
    /// Code with a frame of its own that a path has jumped to.
    host: Option<FunctionRule>,
    /// Where the stack pointer was when a path jumped to an address that is not known.
    dispatched: Option<Place>,
    /// Where the path to the return has jumped last, if it has not branched since.
    exit: Option<u64>,
}

/// How a path continues after an instruction.
enum Next {
    Follows,
    Jumps(u64),
    /// Its target cannot be known.
    Ends,
    /// The state is that of a return, which pops these bytes of arguments.
    Returns(i64),
}

impl<'c> Search<'c> {
    fn new(code: &'c Code<'c>, around: &'c dyn Around) -> Search<'c> {
        Search {
            code,
            around,
            pieces: RefCell::default(),
            is_straight: true,
            pc: code.start,
            info: InstructionInfoFactory::new(),
            ways: Vec::new(),
            seen: HashSet::new(),
            stores: Vec::new(),
            nearest: None,
            host: None,
            dispatched: None,
            exit: None,
        }
    }

    fn rule(mut self, arch: &Arch, pc: u64) -> Option<Rule> {
        let AtReturn {
            state,
            popped,
            is_written,
            ..
        } = self.at_return(pc)?;
        // The return address that this path writes is not there yet at the path's start.
        rule_at_return(arch, &state, popped).filter(|_| !is_written)
    }

    fn at_return(&mut self, pc: u64) -> Option<AtReturn> {
        let begin = State {
            sp: Some(Place::Sp(0)),
            fp: FramePointer::Kept,
            pushed: None,
            loaded: self.loaded_before(pc),
            constant: None,
            popped: None,
            fetched: None,
            top: None,
            written: 0,
            has_called: false,
            called: None,
            is_leaving: false,
            copy: None,
            kept: None,
            unaligned: [None; 2],
        };
        self.pc = pc;
        self.ways.push((pc, begin, 0));
        let mut left = MOST_STRAIGHT;
        let mut is_first = true;
        while let Some((at, state, stores)) = self.ways.pop() {
            self.stores.truncate(stores);
            if let Some((state, popped)) = self.follow(at, state, &mut left) {
                let is_written = state.top.is_none() && state.sp.is_some_and(|sp| self.stores.contains(&sp));
                return Some(AtReturn {
                    state,
                    popped,
                    is_written,
                    is_straight: is_first && self.ways.is_empty() && !state.has_called,
                });
            }
            is_first = false;
        }
        None
    }

    /// Follows one path to its return; returns the state there, and the bytes of arguments that the
    /// return pops.
    fn follow(&mut self, mut at: u64, mut state: State, left: &mut usize) -> Option<(State, i64)> {
        self.exit = None;
        loop {
            *left = left.checked_sub(1)?;
            // All paths to the same instruction have the same stack there, so the first one is
            // enough.
            if !self.seen.insert(at) {
                return None;
            }
            let Some(instruction) = self.decode(at) else {
                let described = self.around.described(at)?;
                if described.is_called {
                    return Some((state.joined(&described.rule)?, 0));
                }
                self.host.get_or_insert(described);
                return None;
            };
            let ways = self.ways.len();
            let next = self.take(&instruction, &mut state);
            self.exit = match next {
                Next::Jumps(target) => Some(target),
                _ => self.exit.filter(|_| self.ways.len() == ways),
            };
            if !self.ways.is_empty() || matches!(next, Next::Jumps(_)) {
                self.is_straight = false;
                *left = (*left).min(MOST_INSTRUCTIONS);
            }
            match next {
                Next::Follows => at = instruction.next_ip(),
                Next::Jumps(target) => at = target,
                Next::Ends => return None,
                Next::Returns(popped) => return Some((state, popped)),
            }
        }
    }

    fn decode(&self, at: u64) -> Option<Instruction> {
        if let Some(instruction) = self.code.instruction(at) {
            return Some(instruction);
        }
        let mut pieces = self.pieces.borrow_mut();
        let found = pieces.iter().find_map(|(start, code)| decoded(code, *start, at));
        if found.is_some() || pieces.len() >= MOST_PIECES {
            return found;
        }
        let code = match self.is_straight && at > self.pc {
            true => self.around.following(at),
            false => self.around.code(at),
        };
        let instruction = decoded(&code, at, at);
        pieces.push((at, code));
        instruction
    }

    /// Whether the frame pointer still points to the frame: the code uses what is below it.
    fn has_frame(&self, state: &State) -> bool {
        state.fp == FramePointer::Kept && self.nearest.is_some()
    }

    /// Whether code that has just restored the stack jumps to a function that is called last: it is
    /// too far away to be followed, and aligned as functions are.
    fn is_other_function(&self, target: u64) -> bool {
        target.is_multiple_of(FUNCTION_ALIGN)
            && self.code.instruction(target).is_none()
            && self.around.described(target).is_none()
            && self.around.code(target).is_empty()
    }

    fn take(&mut self, instruction: &Instruction, state: &mut State) -> Next {
        if prologue::changes_nothing(instruction) {
            return Next::Follows;
        }
        if let Some(Place::Fp(offset @ ..0)) = addressed(state, instruction) {
            self.nearest = Some(offset.unsigned_abs().min(self.nearest.unwrap_or(u64::MAX)));
        }
        let (first, second) = (register(instruction, 0), register(instruction, 1));
        let is_leaving = std::mem::take(&mut state.is_leaving);
        match instruction.mnemonic() {
            Mnemonic::Ret => {
                let popped = match instruction.op_count() {
                    0 => 0,
                    _ => i64::from(instruction.immediate16()),
                };
                return Next::Returns(popped);
            }
            // The frame pointer has just been pushed, and does not point to the frame yet.
            Mnemonic::Mov
                if (first, second) == (Register::RBP, Register::RSP)
                    && self.seen.len() == 1
                    && self.follows_push(instruction.ip()) =>
            {
                (state.sp, state.fp) = (Some(Place::Sp(8)), FramePointer::Loaded(Place::Sp(0)));
                return Next::Returns(0);
            }
            // From here on the stack is as it is at a return.
            Mnemonic::Leave if state.fp == FramePointer::Kept => {
                restore(state);
                let next = self.decode(instruction.next_ip());
                if next.is_none_or(|next| unaligned_register(&next).is_none()) {
                    return Next::Returns(0);
                }
            }
            Mnemonic::Leave => return Next::Ends,
            Mnemonic::Mov if (first, second) == (Register::RSP, Register::RBP) => {
                let is_popped = self
                    .decode(instruction.next_ip())
                    .is_some_and(|next| is(&next, Mnemonic::Pop));
                if state.fp != FramePointer::Kept {
                    return Next::Ends;
                }
                if is_popped {
                    restore(state);
                    return Next::Returns(0);
                }
                state.sp = Some(Place::Fp(0));
            }
            Mnemonic::Jmp => {
                let constant = state.constant.filter(|(register, _)| *register == first);
                let target = match instruction.op0_kind() {
                    OpKind::NearBranch64 => Some(instruction.near_branch_target()),
                    _ => constant.map(|(_, address)| address),
                };
                return match (target, instruction.op0_kind()) {
                    // Another function begins with the same stack as at a return, unless it is left
                    // to it to remove the frame.
                    (Some(target), _) if !self.has_frame(state) && self.around.is_start(target) => Next::Returns(0),
                    (Some(target), OpKind::NearBranch64) if is_leaving && self.is_other_function(target) => {
                        Next::Returns(0)
                    }
                    (Some(target), _) => Next::Jumps(target),
                    (_, OpKind::Register) if state.loaded == Some(first) => Next::Returns(0),
                    // A jump table needs an index, and the frame. A slot at a fixed place has
                    // another function.
                    (_, OpKind::Memory)
                        if instruction.memory_index() == Register::None
                            && (is_leaving || instruction.memory_base() == Register::RIP) =>
                    {
                        Next::Returns(0)
                    }
                    _ => {
                        self.dispatched = self.dispatched.or(state.sp);
                        Next::Ends
                    }
                };
            }
            Mnemonic::Int3 | Mnemonic::Ud2 | Mnemonic::Hlt | Mnemonic::Iretq | Mnemonic::Retf => return Next::Ends,
            Mnemonic::Push if self.follows_end(state) => return Next::Ends,
            Mnemonic::Sub if first == Register::RSP && self.follows_end(state) => return Next::Ends,
            Mnemonic::Push => {
                // A function begins here, and its frame does not exist yet.
                if first == Register::RBP && self.sets_frame(instruction.next_ip()) {
                    return Next::Returns(0);
                }
                state.sp = state.sp.map(|sp| sp.plus(-8));
                let from_stack = [state.popped, state.fetched].into_iter().flatten();
                let popped = from_stack
                    .filter(|(popped, _)| *popped == first)
                    .map(|(_, place)| place)
                    .next();
                // A value that returns to its own place is not a store.
                self.stores.extend(state.sp.filter(|sp| popped != Some(*sp)));
                let is_kept = |number: &u8| !state.has_called && state.written & 1 << number == 0;
                let number = dwarf_number(first).filter(is_kept);
                state.top = popped.map(Top::Loaded).or(number.map(Top::Register));
                if first == Register::RBP && state.fp == FramePointer::Kept {
                    state.pushed = state.sp;
                }
            }
            // As a return does it.
            Mnemonic::Pop
                if self
                    .decode(instruction.next_ip())
                    .is_some_and(|next| jumps_to(&next, first)) =>
            {
                return Next::Returns(0);
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
                let unwritten = state.sp.filter(|place| !self.stores.contains(place));
                state.load_unaligned(first, unwritten);
                state.sp = match first {
                    Register::RSP if self.is_in_epilogue(instruction, state) => {
                        state.sp.and_then(|slot| self.kept_at(state, slot, 0))
                    }
                    Register::RSP => None,
                    _ => state.sp.map(|sp| sp.plus(8)),
                };
                state.is_leaving = true;
            }
            Mnemonic::Pushfq => state.sp = state.sp.map(|sp| sp.plus(-8)),
            Mnemonic::Popfq => state.sp = state.sp.map(|sp| sp.plus(8)),
            Mnemonic::Add if first == Register::RSP => {
                state.sp = moved(state.sp, instruction, 1);
                state.is_leaving = true;
            }
            Mnemonic::Sub if first == Register::RSP => state.sp = moved(state.sp, instruction, -1),
            Mnemonic::Lea if first == Register::RSP => {
                state.sp = addressed(state, instruction).or_else(|| state.unaligned_by(instruction));
            }
            Mnemonic::And if first == Register::RSP => {
                let is_aligned = matches!(state.sp, None | Some(Place::Aligned(_)));
                state.sp = (!is_aligned).then_some(Place::Aligned(0));
            }
            Mnemonic::Mov if first == Register::RSP && instruction.op1_kind() == OpKind::Memory => {
                let place = addressed(state, instruction);
                state.sp = place.and_then(|place| self.kept_at(state, place, instruction.memory_displacement64()));
            }
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
                if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Memory {
                    let place = addressed(state, instruction);
                    self.stores.extend(place);
                    let stored = |place| Some((place, self.stack_pointer_in(state, second)?));
                    let is_mov = instruction.mnemonic() == Mnemonic::Mov;
                    let is_other = |place| state.kept.filter(|(kept, _)| *kept != place);
                    state.kept = place.map_or(state.kept, |place| stored(place).filter(|_| is_mov).or(is_other(place)));
                }
            }
        }
        self.keep_registers(instruction, state);
        // The remaining instructions with a target are conditional jumps.
        let may_jump = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::NearBranch64
            && instruction.mnemonic() != Mnemonic::Call;
        if may_jump && self.ways.len() < MOST_WAYS {
            self.ways
                .push((instruction.near_branch_target(), *state, self.stores.len()));
        }
        Next::Follows
    }

    /// Whether an instruction that makes a frame belongs to another function, because the path's
    /// last call does not return. Small code has no padding there.
    fn follows_end(&self, state: &State) -> bool {
        state.called.is_some_and(|target| !reaches_return(self.code, target))
    }

    /// Updates the known values of registers after an instruction.
    fn keep_registers(&mut self, instruction: &Instruction, state: &mut State) {
        let mnemonic = instruction.mnemonic();
        if mnemonic == Mnemonic::Call {
            // The callee may write any register; code that restores its stack pointer from one
            // knows that its callee preserves it.
            (state.loaded, state.popped, state.top, state.has_called) = (None, None, None, true);
            (state.copy, state.fetched, state.constant) = (None, None, None);
            state.unaligned = [None; 2];
            let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
            state.called = is_direct.then(|| instruction.near_branch_target());
            return;
        }
        let written = written(&mut self.info, instruction);
        let is_written = |register: Register| dwarf_number(register).is_some_and(|number| written & 1 << number != 0);
        state.written |= written;
        let first = register(instruction, 0);
        let is_load = mnemonic == Mnemonic::Mov
            && instruction.op_count() == 2
            && instruction.op1_kind() == OpKind::Memory
            && instruction.memory_index() == Register::None
            && instruction.memory_base() != Register::RIP
            && first == first.full_register()
            && first != Register::None;
        state.loaded = match is_load {
            true => Some(first),
            false => state.loaded.filter(|loaded| !is_written(*loaded)),
        };
        state.constant = match (mnemonic, state.constant) {
            (Mnemonic::Mov, _) if instruction.op1_kind() == OpKind::Immediate64 => {
                Some((first, instruction.immediate64()))
            }
            (Mnemonic::Lea, Some((base, address)))
                if instruction.memory_base() == base && instruction.memory_index() == Register::None =>
            {
                Some((first, address.wrapping_add(instruction.memory_displacement64())))
            }
            _ => state.constant.filter(|(register, _)| !is_written(*register)),
        };
        state.copy = match (mnemonic, register(instruction, 1), state.sp) {
            (Mnemonic::Mov, Register::RSP, Some(sp)) if first.is_gpr64() => Some((first, sp)),
            _ => state.copy.filter(|(copy, _)| !is_written(*copy)),
        };
        let is_pop = mnemonic == Mnemonic::Pop;
        state.popped = state.popped.filter(|(popped, _)| is_pop || !is_written(*popped));
        let place = is_load.then(|| addressed(state, instruction)).flatten();
        let unwritten = place.filter(|place| !self.stores.contains(place));
        match mnemonic {
            _ if is_load => state.load_unaligned(first, unwritten),
            Mnemonic::Pop => {}
            _ => state.forget_unaligned(is_written),
        }
        state.fetched = match unwritten {
            Some(place) => Some((first, place)),
            None => state.fetched.filter(|(fetched, _)| !is_written(*fetched)),
        };
        if mnemonic != Mnemonic::Push && is_written(Register::RSP) {
            state.top = None;
        }
    }

    /// The old stack pointer, if this register has held it since before the path began.
    fn kept_in(&self, state: &State, register: Register) -> Option<Place> {
        let number = dwarf_number(register).filter(|number| state.written & 1 << number == 0)?;
        self.was_saved_in(register).then_some(Place::Other(number, 0))
    }

    /// The stack pointer that a register holds, now or since before the path began.
    fn stack_pointer_in(&self, state: &State, register: Register) -> Option<Place> {
        let copy = state.copy.filter(|(copy, _)| *copy == register);
        copy.map(|(_, place)| place).or_else(|| self.kept_in(state, register))
    }

    /// Whether `pop rsp` is part of `mov rsp, rbp; pop rsp; pop rbp`: its byte occurs in all data.
    fn is_in_epilogue(&self, pop: &Instruction, state: &State) -> bool {
        let follows = pop.ip() == self.pc || state.sp == Some(Place::Fp(0));
        follows && self.decode(pop.next_ip()).is_some_and(|next| is(&next, Mnemonic::Pop))
    }

    /// The old stack pointer, which an instruction loads from this place on the stack: so far from
    /// where the stack pointer or the frame pointer is.
    fn kept_at(&self, state: &State, place: Place, displacement: u64) -> Option<Place> {
        let slot = match place {
            Place::Sp(offset @ 0..) => Some(Slot::Sp(offset)),
            Place::Fp(offset) => Some(Slot::Fp(offset)),
            _ => None,
        };
        match (state.kept, slot) {
            (Some((kept, value)), _) if kept == place => Some(value),
            (_, Some(slot)) if !self.stores.contains(&place) && self.was_stored_at(displacement) => {
                Some(Place::Stored(slot, 0))
            }
            _ => None,
        }
    }

    /// Whether an instruction before the path stores a register this far from the stack pointer,
    /// and code before that has copied the stack pointer to that register.
    fn was_stored_at(&self, displacement: u64) -> bool {
        let before = self.code.before(self.pc);
        // mov [rsp + displacement], register
        before.windows(4).enumerate().any(|(at, bytes)| {
            let is_store =
                matches!(bytes, [0x48 | 0x4c, 0x89, mode, 0x24] if matches!(mode & 0xc7, 0x04 | 0x44 | 0x84));
            let store = || self.code.instruction(self.code.start.wrapping_add(at as u64));
            is_store
                && store().is_some_and(|store| {
                    store.memory_displacement64() == displacement && self.was_saved_in(register(&store, 1))
                })
        })
    }

    /// Whether `mov register, rsp` precedes the path. Code that loads its stack pointer from a
    /// register that never held it switches stacks.
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
        let before = self.code.before(self.pc);
        before.windows(3).any(|bytes| saves.iter().any(|saved| saved == bytes))
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

    /// Whether `push rbp` precedes `at`.
    fn follows_push(&self, at: u64) -> bool {
        const PUSH_RBP: u8 = 0x55;
        let before = at.wrapping_sub(1).checked_sub(self.code.start);
        before.is_some_and(|before| self.code.bytes.get(before as usize) == Some(&PUSH_RBP))
    }

    /// Whether `mov rbp, rsp` is at `at`.
    fn sets_frame(&self, at: u64) -> bool {
        self.decode(at).is_some_and(|next| {
            next.mnemonic() == Mnemonic::Mov
                && (register(&next, 0), register(&next, 1)) == (Register::RBP, Register::RSP)
        })
    }
}

fn is(instruction: &Instruction, mnemonic: Mnemonic) -> bool {
    instruction.mnemonic() == mnemonic && register(instruction, 0) == Register::RBP
}

/// The register operand; for parts of the stack pointer and the frame pointer, the whole register.
pub(crate) fn register(instruction: &Instruction, operand: u32) -> Register {
    if operand >= instruction.op_count() || instruction.op_kind(operand) != OpKind::Register {
        return Register::None;
    }
    match instruction.op_register(operand) {
        Register::SPL | Register::SP | Register::ESP => Register::RSP,
        Register::BPL | Register::BP | Register::EBP => Register::RBP,
        register => register,
    }
}

/// Whether the instruction may write the register, from its operands: the first one, and both of an
/// exchange.
pub(crate) fn writes(instruction: &Instruction, written: Register) -> bool {
    if prologue::changes_nothing(instruction) {
        return false;
    }
    register(instruction, 0) == written
        || matches!(instruction.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd) && register(instruction, 1) == written
}

#[cfg(test)]
mod tests;
