//! How a function that never returns leaves its frame: by its effects on the stack since its start.
//!
//! The path from a program counter to a return shows most frames, but code that ends in `exit` or
//! `longjmp` has no such path. Its path from the function's start is followed instead, if the start
//! is known or recognizable: an aligned address that is entered by a `push`, a `sub` of the stack
//! pointer or an `endbr64`, after the padding that follows code which does not continue; or one
//! after a row of `int3`, as in V8's builtins.

use std::collections::BTreeMap;

use backtrail_arch::Arch;
use backtrail_sframe::{Base, Location, Rule};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// A piece of memory that contains code.
#[derive(Clone, Copy, Debug)]
pub struct Code<'c> {
    /// Its bytes.
    pub bytes: &'c [u8],
    /// Its address.
    pub start: u64,
    /// Known starts of functions, in order; there may be others.
    pub functions: &'c [u64],
}

impl Code<'_> {
    /// Whether code ends at `at`, after a call: another function begins there, perhaps after
    /// padding.
    pub(crate) fn ends(&self, at: u64) -> bool {
        self.functions.binary_search(&at).is_ok() || is_end(self.bytes, self.start, at)
    }

    /// The bytes before `at`.
    pub(crate) fn before(&self, at: u64) -> &[u8] {
        let len = usize::try_from(at.saturating_sub(self.start)).unwrap_or(usize::MAX);
        &self.bytes[..len.min(self.bytes.len())]
    }

    /// The instruction at `at`.
    pub(crate) fn instruction(&self, at: u64) -> Option<Instruction> {
        decoded(self.bytes, self.start, at)
    }
}

pub(crate) fn decoded(code: &[u8], start: u64, at: u64) -> Option<Instruction> {
    let bytes = code.get(usize::try_from(at.checked_sub(start)?).ok()?..)?;
    let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Whether a `lea` or `mov` writes to a register what is in it: Mono's compiler pads with these.
pub(crate) fn changes_nothing(instruction: &Instruction) -> bool {
    let written = instruction.op0_register();
    match instruction.mnemonic() {
        Mnemonic::Lea => {
            written.is_gpr64()
                && instruction.memory_base() == written
                && instruction.memory_index() == Register::None
                && instruction.memory_displacement64() == 0
        }
        Mnemonic::Mov => {
            written.is_gpr64() && instruction.op1_kind() == OpKind::Register && instruction.op1_register() == written
        }
        _ => false,
    }
}

/// The number that is the second operand.
pub(crate) fn immediate(instruction: &Instruction) -> Option<i64> {
    let is_immediate = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    is_immediate.then(|| instruction.immediate(1).cast_signed())
}

/// Where a jump or a call leads that contains its target.
pub(crate) fn branch_target(instruction: &Instruction) -> Option<u64> {
    let is_direct = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
    is_direct.then(|| instruction.near_branch_target())
}

pub(crate) const INT3: u8 = 0xcc;
/// The alignment of functions.
pub(crate) const ALIGN: u64 = 16;
const MOST_INSTRUCTIONS: usize = 2000;
/// How many `int3` in a row mark the end of code.
pub(crate) const TRAPS: usize = 8;
/// The `nop` encodings that assemblers pad with, the longest first.
const PADDING: [&[u8]; 10] = [
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x2e, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
    &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
    &[0x0f, 0x1f, 0x44, 0, 0],
    &[0x0f, 0x1f, 0x40, 0],
    &[0x0f, 0x1f, 0],
    &[0x90],
    &[0xcc],
];

/// Whether code ends at `at`, after a call: padding fills the space from there to a function's
/// start, or a function's frame is made right there.
pub(crate) fn is_end(code: &[u8], start: u64, at: u64) -> bool {
    let Some(bytes) = bytes_at(code, start, at) else {
        return false;
    };
    if makes_frame(bytes) {
        return true;
    }
    let padding = padding_len(bytes);
    let next = at.wrapping_add(padding as u64);
    padding > 0 && next.is_multiple_of(ALIGN) && bytes.get(padding..).is_some_and(begins_function)
}

/// The code from `at` on.
pub(crate) fn bytes_at(code: &[u8], start: u64, at: u64) -> Option<&[u8]> {
    code.get(usize::try_from(at.checked_sub(start)?).ok()?..)
}

/// Bytes of padding at the start of `bytes`, less than the alignment.
fn padding_len(bytes: &[u8]) -> usize {
    let mut len = 0;
    while len < ALIGN as usize {
        let rest = bytes.get(len..).unwrap_or_default();
        // Any number of `66` prefixes may precede each of them.
        let prefixes = rest.iter().take_while(|byte| **byte == 0x66).count();
        let form = |rest: &[u8]| {
            PADDING
                .iter()
                .find(|form| rest.starts_with(form))
                .map(|form| form.len())
        };
        let found = (0..=prefixes).find_map(|prefixes| Some(prefixes + form(rest.get(prefixes..)?)?));
        match found {
            Some(bytes) => len += bytes,
            None => break,
        }
    }
    len
}

/// Whether code begins like a function that allocates stack.
fn begins_function(bytes: &[u8]) -> bool {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    matches!(
        bytes,
        [0x53 | 0x55, ..] | [0x41, 0x54..=0x57, ..] | [0x48, 0x83 | 0x81, 0xec, ..]
    ) || bytes.starts_with(ENDBR64)
}

/// Whether code pushes the frame pointer and sets it.
fn makes_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0x55, 0x48, 0x89, 0xe5, ..] | [0x55, 0x48, 0x8b, 0xec, ..])
}

/// The start of the function with the code at `inside`: the nearest one that is recognizable.
fn function_start(code: &[u8], start: u64, inside: u64) -> Option<u64> {
    let padded = padded_start(code, start, inside);
    // Compilers that write small code do not align it.
    let mut nearer = (padded.unwrap_or(start)..=inside).rev();
    nearer.find(|&at| adjoins(code, start, at)).or(padded)
}

/// The nearest aligned start after padding.
fn padded_start(code: &[u8], start: u64, inside: u64) -> Option<u64> {
    let mut at = inside & !(ALIGN - 1);
    while at > start {
        let begins = bytes_at(code, start, at).is_some_and(begins_function);
        let padded = (1..ALIGN).rev().any(|back| {
            let from = at.wrapping_sub(back);
            let bytes = bytes_at(code, start, from).and_then(|bytes| bytes.get(..back as usize));
            bytes.is_some_and(|bytes| padding_len(bytes) == bytes.len()) && ends_before(code, start, from)
        });
        let is_first =
            || bytes_at(code, start, at).is_some_and(makes_frame) && zeros_before(code, start, at) >= MANY_ZEROS;
        if begins && padded || follows_traps(code, start, at) || is_first() {
            return Some(at);
        }
        at = at.checked_sub(ALIGN)?;
    }
    None
}

/// The nearest aligned start right after code that does not continue. The target of a jump can look
/// like it, so starts of other kinds count first.
fn unpadded_start(code: &[u8], start: u64, inside: u64) -> Option<u64> {
    /// As far as [`MOST_INSTRUCTIONS`] may reach.
    const FARTHEST: u64 = 16 << 10;
    let nearest = inside & !(ALIGN - 1);
    let places = (start.max(nearest.saturating_sub(FARTHEST))..=nearest).rev();
    let mut aligned = places.step_by(ALIGN as usize);
    aligned.find(|&at| bytes_at(code, start, at).is_some_and(saves_registers) && jumps_before(code, start, at))
}

/// Whether code pushes a register, and then another one, or allocates stack.
fn saves_registers(bytes: &[u8]) -> bool {
    let after_push = |bytes: &[u8]| match bytes {
        [0x53 | 0x55, ..] => Some(1),
        [0x41, 0x54..=0x57, ..] => Some(2),
        _ => None,
    };
    let rest = after_push(bytes).and_then(|len| bytes.get(len..));
    rest.is_some_and(|rest| after_push(rest).is_some() || rest.starts_with(&[0x48, 0x83, 0xec]))
}

/// More zeros in a row than an instruction ends in: memory where compilers at run time have put no
/// code yet.
const MANY_ZEROS: usize = 12;

fn zeros_before(code: &[u8], start: u64, at: u64) -> usize {
    let before = at.checked_sub(start).and_then(|len| code.get(..len as usize));
    let before = before.unwrap_or_default().iter().rev();
    before.take_while(|byte| **byte == 0).count()
}

/// Whether a frame is made at `at`, right after code that ends.
fn adjoins(code: &[u8], start: u64, at: u64) -> bool {
    bytes_at(code, start, at).is_some_and(makes_frame) && ends_before(code, start, at)
}

/// Whether a function begins at `at` in code like V8's builtins, which `int3` pads to this
/// alignment; `before` contains the preceding bytes.
pub(crate) fn is_padded_start(before: &[u8], at: u64) -> bool {
    const PADDED_ALIGN: u64 = 64;
    at.is_multiple_of(PADDED_ALIGN) && before.len() >= TRAPS && before.iter().all(|byte| *byte == INT3)
}

fn follows_traps(code: &[u8], start: u64, at: u64) -> bool {
    let end = at.checked_sub(start).map_or(0, |end| end as usize);
    let before = end.checked_sub(TRAPS).and_then(|begin| code.get(begin..end));
    before.is_some_and(|before| is_padded_start(before, at))
}

/// Whether execution need not continue after the last instruction before `at`: it is a return, a
/// jump or a call.
fn ends_before(code: &[u8], start: u64, at: u64) -> bool {
    let before = at.checked_sub(start).and_then(|len| code.get(..len as usize));
    let is_call = matches!(before, Some([.., 0xe8, _, _, _, _] | [.., 0xff, 0xd0..=0xd7]));
    is_call || jumps_before(code, start, at)
}

/// Whether execution does not continue after the last instruction before `at`: it is a return, a
/// jump, or one that is not allowed.
pub(crate) fn jumps_before(code: &[u8], start: u64, at: u64) -> bool {
    let before = at.checked_sub(start).and_then(|len| code.get(..len as usize));
    matches!(
        before,
        Some([.., 0xc3 | 0xf4] | [.., 0x0f, 0x0b] | [.., 0xeb, _] | [.., 0xe9, _, _, _, _] | [.., 0xff, 0xe0..=0xe7])
    )
}

/// Whether the code before `at`, an aligned address, ends: in a return, or before zeros, which only
/// compilers at run time put between functions.
pub(crate) fn follows_end(code: &Code<'_>, at: u64) -> bool {
    const RET: u8 = 0xc3;
    let before = at
        .checked_sub(code.start)
        .and_then(|len| code.bytes.get(..len as usize));
    let Some(before) = before else {
        return false;
    };
    let zeros = zeros_before(code.bytes, code.start, at);
    let last = &before[..before.len() - zeros];
    let jumps = matches!(last, [.., 0xff, 0x20..=0x27 | 0xe0..=0xe7]);
    zeros >= MANY_ZEROS || last.ends_with(&[RET]) || zeros > 0 && jumps
}

/// The state of the stack since the function's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    /// Bytes from the stack pointer to the return address, if known.
    depth: Option<i64>,
    /// Bytes from the frame pointer to the return address, if the frame pointer is the function's
    /// own.
    frame: Option<i64>,
    /// Whether the frame pointer is still the caller's.
    is_kept: bool,
    /// Bytes from the saved frame pointer of the caller to the return address.
    saved: Option<i64>,
}

impl State {
    /// The facts that two paths to one place share; `None` if they disagree about the stack.
    fn join(&self, other: &State) -> Option<State> {
        (self.depth == other.depth && self.saved == other.saved).then_some(State {
            frame: self.frame.filter(|_| self.frame == other.frame),
            is_kept: self.is_kept && other.is_kept,
            ..*self
        })
    }
}

/// The rule of the frame at `pc`, from the last known or recognizable function start before it.
pub(crate) fn rule(arch: &Arch, code: &Code<'_>, pc: u64, is_return: bool) -> Option<Rule> {
    let state = state_since_start(code, pc, is_return)?;
    let cfa = match (state.depth, state.frame) {
        (Some(depth), _) => Location::register(arch.sp.0, i32::try_from(depth + 8).ok()?),
        (None, Some(frame)) => Location::register(arch.fp.0, i32::try_from(frame + 8).ok()?),
        (None, None) => return None,
    };
    let fp = match state.saved {
        Some(depth) => Some(Location {
            base: Base::Cfa,
            offset: i32::try_from(-8 - depth).ok()?,
            deref: true,
        }),
        None if state.is_kept => None,
        // The value from which outer frames would be found is lost.
        None => return None,
    };
    Some(Rule {
        fp,
        ..Rule::new(cfa, Location::saved(-8))
    })
}

/// Starts of functions before a program counter that are tried.
const MOST_STARTS: usize = 8;

/// The rule of a function that has pushed the frame pointer first of all and set its own, on all
/// ways from such a start to `pc`.
pub(crate) fn framed(arch: &Arch, code: &Code<'_>, pc: u64, is_return: bool) -> Option<Rule> {
    const WORD: i64 = 8;
    let mut state = state_since_start(code, pc, is_return);
    // Such code may contain functions of its own, which begin before `pc` and end before it, too.
    let mut inside = pc;
    for _ in 0..MOST_STARTS {
        if state.is_some() {
            break;
        }
        inside = function_start(code.bytes, code.start, inside.checked_sub(1)?)?;
        state = state_at(code, inside, pc, is_return);
    }
    let state = state?;
    let has_frame = state.frame == Some(WORD) && state.saved == Some(WORD);
    has_frame.then(|| Rule {
        fp: Some(Location::saved(-16)),
        ..Rule::new(Location::register(arch.fp.0, 16), Location::saved(-8))
    })
}

fn state_since_start(code: &Code<'_>, pc: u64, is_return: bool) -> Option<State> {
    let Code {
        bytes,
        start,
        functions,
    } = *code;
    let inside = pc.checked_sub(is_return.into())?;
    let before = functions.partition_point(|function| *function <= inside).checked_sub(1);
    let known = before.map(|last| functions[last]).filter(|known| *known >= start);
    let seen = function_start(bytes, start, inside);
    let last = known.max(seen);
    let first = known.min(seen).filter(|_| known != seen);
    let from = |begin| state_at(code, begin, pc, is_return);
    // An apparent start of a function may be the target of a jump.
    last.and_then(from)
        .or_else(|| from(first?))
        .or_else(|| from(unpadded_start(bytes, start, inside)?))
}

/// The state at `pc` on the paths from `begin`, which all must agree.
fn state_at(code: &Code<'_>, begin: u64, pc: u64, is_return: bool) -> Option<State> {
    let mut waiting = BTreeMap::from([(
        begin,
        State {
            depth: Some(0),
            frame: None,
            is_kept: true,
            saved: None,
        },
    )]);
    for _ in 0..MOST_INSTRUCTIONS {
        let (at, mut state) = waiting.pop_first()?;
        if at >= pc {
            return (at == pc).then_some(state);
        }
        let bytes = bytes_at(code.bytes, code.start, at)?;
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return None;
        }
        take(&instruction, &mut state);
        let next = instruction.next_ip();
        let jumps = match instruction.flow_control() {
            // The call does not return, but the caller may ask for its return address.
            FlowControl::Call | FlowControl::IndirectCall if !(is_return && next == pc) && code.ends(next) => {
                [None, None]
            }
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => [None, Some(instruction.next_ip())],
            FlowControl::ConditionalBranch => [Some(instruction.near_branch_target()), Some(instruction.next_ip())],
            FlowControl::UnconditionalBranch => [Some(instruction.near_branch_target()), None],
            _ => [None, None],
        };
        // A backward jump leads to code that has been followed already.
        for to in jumps.into_iter().flatten().filter(|to| *to > at && *to <= pc) {
            let known = waiting.entry(to).or_insert(state);
            *known = known.join(&state)?;
        }
    }
    None
}

fn take(instruction: &Instruction, state: &mut State) {
    let register = |operand: u32| match instruction.op_count() > operand {
        true if instruction.op_kind(operand) == OpKind::Register => instruction.op_register(operand).full_register(),
        _ => Register::None,
    };
    if changes_nothing(instruction) {
        return;
    }
    let (first, second) = (register(0), register(1));
    let moved = |sign: i64| immediate(instruction).map(|bytes| sign * bytes);
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => {
            state.depth = state.depth.map(|depth| depth + 8);
            if first == Register::RBP && state.is_kept && state.saved.is_none() {
                state.saved = state.depth;
            }
        }
        Mnemonic::Pop | Mnemonic::Popfq => {
            if first == Register::RBP {
                state.is_kept = state.saved.is_some() && state.saved == state.depth;
                state.frame = None;
                state.saved = state.saved.filter(|_| !state.is_kept);
            }
            state.depth = state.depth.filter(|_| first != Register::RSP).map(|depth| depth - 8);
        }
        Mnemonic::Sub if first == Register::RSP => {
            state.depth = moved(1).and_then(|bytes| state.depth?.checked_add(bytes));
        }
        Mnemonic::Add if first == Register::RSP => {
            state.depth = moved(-1).and_then(|bytes| state.depth?.checked_add(bytes));
        }
        Mnemonic::Mov if (first, second) == (Register::RBP, Register::RSP) => {
            state.frame = state.depth;
            state.is_kept = false;
        }
        Mnemonic::Mov if (first, second) == (Register::RSP, Register::RBP) => state.depth = state.frame,
        Mnemonic::Lea if first == Register::RSP => state.depth = None,
        // These only read their first operand.
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Call | Mnemonic::Nop | Mnemonic::Bt => {}
        Mnemonic::Leave => {
            state.depth = state.frame.map(|frame| frame - 8);
            state.is_kept = state.saved.is_some() && state.saved == state.frame;
            state.frame = None;
        }
        mnemonic => {
            let exchanges = matches!(mnemonic, Mnemonic::Xchg | Mnemonic::Xadd);
            let writes = |written: Register| first == written || exchanges && second == written;
            if writes(Register::RSP) {
                state.depth = None;
            }
            if writes(Register::RBP) {
                state.is_kept = false;
                state.frame = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;

    fn rule(arch: &Arch, bytes: &[u8], start: u64, pc: u64) -> Option<Rule> {
        let functions = &[];
        super::rule(
            arch,
            &Code {
                bytes,
                start,
                functions,
            },
            pc,
            true,
        )
    }

    const START: u64 = 0x1000;

    /// `libc_start_main_stage2` of musl 1.2.3, after the end of another function.
    fn stage2() -> Vec<u8> {
        let mut code = vec![0x90; 13];
        code.extend([0xc3, 0x66, 0x90]);
        // push r13; movslq rax, esi; push r12; lea r13, [rdx+rax*8+8]; mov r12, rdx; push rbp; mov
        // rbp, rax; push rbx; mov rbx, rdi
        code.extend([
            0x41, 0x55, 0x48, 0x63, 0xc6, 0x41, 0x54, 0x4c, 0x8d, 0x6c, 0xc2, 0x08, 0x49, 0x89, 0xd4,
        ]);
        code.extend([0x55, 0x48, 0x89, 0xc5, 0x53, 0x48, 0x89, 0xfb, 0x48, 0x83, 0xec, 0x08]);
        // call rbx; mov edi, eax; call exit; padding; then the next function: push rbx
        code.extend([0xff, 0xd3, 0x89, 0xc7, 0xe8, 0, 0, 0, 0]);
        code.extend([0x0f, 0x1f, 0x40, 0, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]);
        assert_eq!(code.len() % 16, 0);
        code.extend([0x53, 0x5b, 0xc3]);
        code
    }

    #[test]
    fn a_function_that_never_returns() {
        let code = stage2();
        let at = |offset: u64| rule(&ARCH, &code, START, START + offset);
        for (offset, cfa, saved) in [
            (18, 16, None),
            (32, 32, Some(-32)),
            (45, 48, Some(-32)),
            (52, 48, Some(-32)),
        ] {
            let rule = at(offset).unwrap();
            assert_eq!(rule.cfa, Location::register(ARCH.sp.0, cfa), "{offset}");
            assert_eq!(rule.fp.map(|fp| fp.offset), saved, "{offset}");
        }
        // Between two instructions, and before any start.
        assert_eq!(at(19), None);
        assert_eq!(at(8), None);
        assert!(is_end(&code, START, START + 52));
        assert!(!is_end(&code, START, START + 45));
    }

    #[test]
    fn functions_with_a_frame_of_their_own() {
        // ret; padding; push rbp; mov rbp, rsp; sub rsp, 0x30; nop; leave; nop
        let mut code = vec![0xcc; 15];
        code.insert(0, 0xc3);
        code.extend([0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x30, 0x90, 0xc9, 0x90]);
        let framed = |code: &[u8], offset: u64| {
            let code = Code {
                bytes: code,
                start: START,
                functions: &[],
            };
            super::framed(&ARCH, &code, START + offset, false)
        };
        let rule = framed(&code, 24).unwrap();
        assert_eq!(rule.cfa, Location::register(ARCH.fp.0, 16));
        assert_eq!(rule.fp, Some(Location::saved(-16)));
        assert_eq!(framed(&code, 24), framed(&code, 20));
        assert_eq!(framed(&code, 17), None, "it is not set yet");
        assert_eq!(framed(&code, 26), None, "it is restored");
        // With a function of its own, around which it jumps: jmp +9; push rbp; mov rbp, rsp; nop;
        // nop; nop; leave; ret
        let mut around = code[..24].to_vec();
        around.extend([
            0xe9, 9, 0, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0x90, 0xc9, 0xc3, 0x90,
        ]);
        assert_eq!(framed(&around, 38), framed(&code, 24));
        around[36] = 0x90;
        around[37] = 0x90;
        assert_eq!(
            framed(&around, 38),
            framed(&code, 24),
            "of the inner one, which goes on"
        );
        // Behind memory without code.
        let mut first = code.clone();
        first[..16].fill(0);
        assert_eq!(framed(&first, 24), framed(&code, 24));
        first[8] = 1;
        assert_eq!(framed(&first, 24), None);
        // push rbx first: no frame record.
        code[16..20].copy_from_slice(&[0x53, 0x55, 0x90, 0x90]);
        assert_eq!(framed(&code, 24), None);
    }

    #[test]
    fn padding_has_any_number_of_prefixes() {
        // `data16 cs nopw 0(rax,rax,1)`, as gas pads after a jump.
        let nop = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
        for prefixes in 0..5 {
            let padding = [&[0x66; 5][..prefixes], &nop].concat();
            assert_eq!(padding_len(&padding), 10 + prefixes);
        }
        assert_eq!(padding_len(&[0x66, 0x66, 0x90, 0x55]), 3);
        assert_eq!(padding_len(&[0x66, 0x66, 0x55]), 0);
    }

    #[test]
    fn functions_that_are_not_aligned() {
        // As in a program that is compiled to be small: pop rbp; ret; then push rbp; mov rbp, rsp;
        // call of the next function, which does not return; then that function.
        let code = [
            0x90, 0x5d, 0xc3, 0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0x41, 0x57,
        ];
        assert!(is_end(&code, START, START + 12));
        let found = rule(&ARCH, &code, START, START + 12).unwrap();
        assert_eq!(found.cfa, Location::register(ARCH.sp.0, 16));
        assert_eq!(found.fp.map(|fp| fp.offset), Some(-16));
    }

    #[test]
    fn an_aligned_function_that_needs_no_padding() {
        // A function; then, after its last jump, `start` of musl 1.2: push rbp; push rbx; mov rbx,
        // rdi; sub rsp, 8; call [rbx]; mov rdi, rax; call of what does not return.
        let mut code = vec![0x90; 30];
        (code[0], code[16]) = (0xc3, 0x53);
        code.extend([0xeb, 0xf0]);
        code.extend([0x55, 0x53, 0x48, 0x89, 0xfb, 0x48, 0x83, 0xec, 0x08, 0xff, 0x13]);
        code.extend([0x48, 0x89, 0xc7, 0xe8, 0, 0, 0, 0]);
        let found = rule(&ARCH, &code, START, START + 43).unwrap();
        assert_eq!(found.cfa, Location::register(ARCH.sp.0, 32));
        assert_eq!(found.fp.map(|fp| fp.offset), Some(-16));
        // If the code before it goes on, it is part of that function.
        code[30..32].copy_from_slice(&[0x66, 0x90]);
        let padded = rule(&ARCH, &code, START, START + 43).unwrap();
        assert_eq!(padded.cfa, Location::register(ARCH.sp.0, 40));
        // Without the start before it.
        code[16] = 0x90;
        code[30..32].copy_from_slice(&[0xeb, 0xf0]);
        assert_eq!(rule(&ARCH, &code, START, START + 43), Some(found));
        // push rdx in front of it: an argument, not a register to keep.
        code[30..34].copy_from_slice(&[0xeb, 0xf0, 0x52, 0x53]);
        assert_eq!(rule(&ARCH, &code, START, START + 43), None);
    }

    #[test]
    fn ways_that_do_not_agree_say_nothing() {
        let mut code = vec![0x90; 15];
        code.insert(0, 0xc3);
        // push rbx; je +1; push rax; nop
        code.extend([0x53, 0x74, 0x01, 0x50, 0x90]);
        assert!(rule(&ARCH, &code, START, START + 19).is_some());
        assert_eq!(rule(&ARCH, &code, START, START + 20), None);
        // push rbx; xor ebp, ebp; nop: the caller's frame pointer is lost.
        let lost = [&code[..16], &[0x53, 0x31, 0xed, 0x90]].concat();
        assert!(rule(&ARCH, &lost, START, START + 17).is_some());
        assert_eq!(rule(&ARCH, &lost, START, START + 19), None);
        // push rbp; je +4; lea rbp, [rdi+16]; nop: one path has changed the frame pointer, both
        // have saved it.
        let saved = [&code[..16], &[0x55, 0x74, 0x04, 0x48, 0x8d, 0x6f, 0x10, 0x90]].concat();
        let found = rule(&ARCH, &saved, START, START + 24).unwrap();
        assert_eq!(found.cfa, Location::register(ARCH.sp.0, 16));
        assert_eq!(found.fp.map(|fp| fp.offset), Some(-16));
        // push rbp; mov rbp, rsp; and rsp, -32: from the frame pointer.
        let aligned = [&code[..16], &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xe0, 0x90]].concat();
        let found = rule(&ARCH, &aligned, START, START + 24).unwrap();
        assert_eq!(found.cfa, Location::register(ARCH.fp.0, 16));
        assert_eq!(found.fp.map(|fp| fp.offset), Some(-16));
    }

    #[test]
    fn no_bytes_are_too_odd() {
        for (mut code, state) in crate::odd::pieces() {
            code[15..20].copy_from_slice(&[0xc3, 0x53, 0x55, 0x48, 0x83]);
            let _ = rule(&ARCH, &code, START, START + u64::from(state >> 25));
            let _ = rule(&ARCH, &code, u64::MAX - 100, u64::MAX - 50);
        }
    }
}
