//! Functions whose first instruction makes their whole frame, as those of GraalVM's native images.
//!
//! Such code moves the stack pointer only to make the frame and to leave it, so the frame's size is
//! known at every instruction, however long the function is and wherever its returns are. `int3`
//! pads these functions, and all code from the start up to a program counter is read: anything else
//! that moves the stack pointer shows that the function is of another kind.

use std::collections::BTreeSet;

use backtrail_arch::{Arch, Cpu};
use backtrail_sframe::{Location, Rule};
use iced_x86::{FlowControl, Instruction, Mnemonic, Register};

use crate::instructions::{LOST, register, writes};
use crate::prologue::{ALIGN, Code, INT3, branch_target, decoded, immediate, jumps_before};

const NOP: u8 = 0x90;
/// Bytes of a cache's line, by which the longest functions are aligned.
const MOST_PADDING: usize = 64;

/// The rule of the frame at `pc`, if the function there is of this kind. `preceding` has the code
/// before an address.
pub(crate) fn rule(arch: &Arch, code: &Code<'_>, pc: u64, preceding: impl Fn(u64) -> Vec<u8>) -> Option<Rule> {
    if arch.cpu != Cpu::X86_64 {
        return None;
    }
    let before = code.before(pc);
    if let Some(start) = padded_start(before, code.start) {
        return scan(code.bytes, code.start, start, pc)?.rule(arch);
    }
    let mut bytes = preceding(code.start);
    let start = code.start.checked_sub(bytes.len() as u64)?;
    let known = bytes.len() + before.len();
    bytes.extend_from_slice(code.bytes);
    scan(&bytes, start, padded_start(bytes.get(..known)?, start)?, pc)?.rule(arch)
}

/// The last aligned address that follows padding after code that ends.
fn padded_start(before: &[u8], start: u64) -> Option<u64> {
    let end = start.checked_add(before.len() as u64)?;
    let mut at = end & !(ALIGN - 1);
    while at > start {
        let (code, function) = before.split_at_checked(usize::try_from(at - start).ok()?)?;
        let last = code.iter().rev().take(MOST_PADDING);
        let padding = last.take_while(|byte| **byte == INT3).count();
        let code = &code[..code.len() - padding];
        let is_padded = (1..MOST_PADDING).contains(&padding) && function.first() != Some(&INT3);
        if is_padded && ends(code, at - padding as u64) {
            return Some(at);
        }
        at -= ALIGN;
    }
    None
}

/// Whether code ends in a jump, a return, or a call that does not return, after which there may be
/// a `nop`.
fn ends(code: &[u8], end: u64) -> bool {
    let start = end.wrapping_sub(code.len() as u64);
    let called = code.strip_suffix(&[NOP]).unwrap_or(code);
    jumps_before(code, start, end) || [code, called].iter().any(|code| matches!(code, [.., 0xe8, _, _, _, _]))
}

/// The frame at a program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    /// Bytes from the stack pointer to the return address.
    depth: i64,
    /// Whether the function, up to its end, leaves the frame pointer as it is, and calls nothing.
    is_fp_kept: bool,
}

impl Frame {
    /// A function whose end was not seen.
    fn cut(depth: Option<i64>) -> Option<Frame> {
        Some(Frame {
            depth: depth?,
            is_fp_kept: false,
        })
    }

    fn rule(self, arch: &Arch) -> Option<Rule> {
        let cfa = Location::register(arch.sp.0, i32::try_from(self.depth.checked_add(8)?).ok()?);
        Some(Rule {
            fp: (!self.is_fp_kept).then_some(LOST),
            ..Rule::new(cfa, Location::saved(-8))
        })
    }
}

/// Reads the function at `begin` up to `pc`, and on to its end for the frame pointer.
fn scan(bytes: &[u8], start: u64, begin: u64, pc: u64) -> Option<Frame> {
    let mut function = Function::begin(&decoded(bytes, start, begin)?)?;
    let mut at = begin;
    let mut depth = (at == pc).then_some(0);
    loop {
        let Some(instruction) = decoded(bytes, start, at) else {
            return Frame::cut(depth);
        };
        if depth.is_some() && instruction.mnemonic() == Mnemonic::Int3 {
            return Some(Frame {
                depth: depth?,
                is_fp_kept: !function.changes_fp,
            });
        }
        let next = match at == begin {
            true => Some(instruction.next_ip()),
            false => function.take(&instruction),
        };
        // What comes after the program counter matters for the frame pointer alone.
        let Some(next) = next else {
            return Frame::cut(depth);
        };
        if depth.is_none() && next > pc {
            return None;
        }
        if next == pc {
            depth = Some(function.depth);
        }
        at = next;
    }
}

/// What was read of a function.
#[derive(Debug)]
struct Function {
    /// The size of its frame.
    frame: i64,
    /// Bytes from the stack pointer to the return address.
    depth: i64,
    /// Whether the frame pointer may be changed.
    changes_fp: bool,
    /// Where its jumps lead forward.
    targets: BTreeSet<u64>,
    /// Addresses that it computes: tables of a `switch` may be among its code, or after it.
    data: BTreeSet<u64>,
}

impl Function {
    /// `None` if its first instruction makes no frame.
    fn begin(first: &Instruction) -> Option<Function> {
        let is_made = first.mnemonic() == Mnemonic::Sub && register(first, 0) == Register::RSP;
        let frame = immediate(first).filter(|bytes| is_made && *bytes > 0)?;
        Some(Function {
            frame,
            depth: frame,
            changes_fp: false,
            targets: BTreeSet::new(),
            data: BTreeSet::new(),
        })
    }

    /// Whether a table begins at `at`, or after padding.
    fn has_data(&self, at: u64) -> bool {
        self.data.range(at..at.saturating_add(ALIGN)).next().is_some()
    }

    /// Takes an instruction, and returns the address of the one to read next. `None` if the
    /// function is of another kind, or has ended.
    fn take(&mut self, instruction: &Instruction) -> Option<u64> {
        let next = instruction.next_ip();
        let has_left = self.depth == 0;
        let target = branch_target(instruction);
        match (instruction.flow_control(), target) {
            (FlowControl::Return, _) if !has_left || instruction.op_count() > 0 => return None,
            (FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return, target) => {
                self.depth = self.frame;
                self.targets.extend(target.filter(|to| !has_left && *to > next));
                let is_switch = target.is_none() && !has_left;
                return match is_switch && self.has_data(next) {
                    true => self.targets.range(next..).next().copied(),
                    // Unless a jump leads there or beyond, another function may begin here.
                    false if next.is_multiple_of(ALIGN) && !is_switch => {
                        self.targets.range(next..).next().map(|_| next)
                    }
                    false => Some(next),
                };
            }
            _ if has_left => return None,
            (FlowControl::ConditionalBranch, Some(target)) => self.targets.extend((target > next).then_some(target)),
            // Functions of such compilers need not preserve it.
            (FlowControl::Call | FlowControl::IndirectCall, _) => self.changes_fp = true,
            (FlowControl::Next, _) => match instruction.mnemonic() {
                Mnemonic::Add if register(instruction, 0) == Register::RSP => {
                    self.depth = immediate(instruction).filter(|bytes| *bytes == self.frame).map(|_| 0)?;
                }
                Mnemonic::Cmp | Mnemonic::Test => {}
                Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq | Mnemonic::Leave => return None,
                Mnemonic::Enter => return None,
                _ if writes(instruction, Register::RSP) => return None,
                mnemonic => {
                    self.changes_fp |= writes(instruction, Register::RBP);
                    if mnemonic == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
                        self.data.insert(instruction.ip_rel_memory_address());
                    }
                }
            },
            _ => return None,
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;
    use backtrail_sframe::Base;

    const START: u64 = 0x1000;
    /// `sub rsp, 0x18`.
    const MAKE: &[u8] = &[0x48, 0x83, 0xec, 0x18];
    /// `add rsp, 0x18; ret`.
    const LEAVE: &[u8] = &[0x48, 0x83, 0xc4, 0x18, 0xc3];
    /// `mov ebp, eax`.
    const WRITES_FP: &[u8] = &[0x89, 0xc5];
    const CALLS: &[u8] = &[0xe8, 0, 0, 0, 0];

    /// A function that returns and its padding, then a function of these parts, which `int3` pads.
    fn code(parts: &[&[u8]]) -> Vec<u8> {
        let mut code = vec![0xc3];
        for part in [&[][..]].iter().chain(parts) {
            code.extend_from_slice(part);
            if part.is_empty() {
                code.resize(code.len().next_multiple_of(16), INT3);
            }
        }
        code.resize((code.len() + 1).next_multiple_of(16), INT3);
        code
    }

    /// Bytes from the stack pointer to the CFA, and whether the frame pointer is kept.
    fn found(bytes: &[u8], pc: u64) -> Option<(i32, bool)> {
        let (start, functions) = (START, &[][..]);
        let code = Code {
            bytes,
            start,
            functions,
        };
        let rule = rule(&ARCH, &code, START + pc, |_| Vec::new())?;
        assert_eq!(
            (rule.cfa.base, rule.ra),
            (Base::Register(ARCH.sp.0), Location::saved(-8))
        );
        Some((rule.cfa.offset, rule.fp.is_none()))
    }

    #[test]
    fn the_frame_has_one_size_between_its_ends() {
        // je over the first return, which is in the middle.
        let nops: &[u8] = &[0x90; 6];
        let code = code(&[MAKE, &[0x74, 0x05], LEAVE, nops, LEAVE]);
        for (pc, size) in [(0, 8), (4, 32), (6, 32), (10, 8), (11, 32), (17, 32), (21, 8)] {
            assert_eq!(found(&code, 16 + pc), Some((size, true)), "{pc}");
        }
        // Inside an instruction, and in the padding.
        assert_eq!([found(&code, 16 + 5), found(&code, 16 + 23)], [None, None]);
        for (at, writes) in [(6, WRITES_FP), (11, WRITES_FP), (17, WRITES_FP), (11, CALLS)] {
            let mut other = code.clone();
            other.splice(16 + at..16 + at, writes.iter().copied());
            assert_eq!(found(&other, 16 + 4), Some((32, false)), "written at {at}");
        }
    }

    #[test]
    fn other_functions_are_not_of_this_kind() {
        // push rax; pop rax; sub rsp, 8; lea rsp, [rsp + 8]; and rsp, -16; mov rsp, rax;
        // add rsp, 8; leave
        let moves: [&[u8]; 8] = [
            &[0x50],
            &[0x58],
            &[0x48, 0x83, 0xec, 0x08],
            &[0x48, 0x8d, 0x64, 0x24, 0x08],
            &[0x48, 0x83, 0xe4, 0xf0],
            &[0x48, 0x89, 0xc4],
            &[0x48, 0x83, 0xc4, 0x08],
            &[0xc9],
        ];
        for moves in moves {
            let moved = code(&[MAKE, moves, &[0x90], LEAVE]);
            let after = 16 + (MAKE.len() + moves.len()) as u64;
            assert_eq!(
                [found(&moved, after), found(&moved, after + 1)],
                [None, None],
                "{moves:x?}"
            );
        }
        // Those that begin otherwise, behind one that is.
        let leaf: [&[u8]; 3] = [&[0x90], &[0x55, 0x48, 0x89, 0xe5], &[0x48, 0x83, 0xec, 0xf8]];
        for leaf in leaf {
            let after = code(&[MAKE, LEAVE, &[], leaf, &[0xc3]]);
            assert_eq!(found(&after, 32 + leaf.len() as u64), None, "{leaf:x?}");
        }
        // Right behind a return, with no padding between them.
        let nops = [0x90; 7];
        let after = code(&[MAKE, &nops, LEAVE, &[0x90, 0xc3]]);
        assert_eq!(
            (found(&after, 16 + 15), found(&after, 32 + 1)),
            (Some((8, false)), None)
        );
        // Aligned by more.
        let mut after = code(&[MAKE, LEAVE, &[], MAKE, LEAVE]);
        after.splice(32..32, [INT3; 32]);
        assert_eq!(found(&after, 64 + 4), Some((32, true)));
        // Code that is not padded with `int3` may be anything.
        let mut unpadded = code(&[MAKE, LEAVE]);
        unpadded[..16].fill(0x90);
        assert_eq!(found(&unpadded, 16 + 4), None);
    }

    #[test]
    fn tables_between_instructions_are_passed_over() {
        // lea rcx, [rip + 4], which is the table; ja over it; jmp rcx.
        let jump: &[u8] = &[0x48, 0x8d, 0x0d, 4, 0, 0, 0, 0x77, 0x06, 0xff, 0xe1];
        let table: &[u8] = &[0x50, 0xff, 0x58, 0x0f];
        let inside = code(&[MAKE, jump, table, &[0x90], LEAVE]);
        assert_eq!(found(&inside, 16 + 20), Some((32, true)));
        assert_eq!(found(&inside, 16 + 16), None, "in the table");
        // The table is elsewhere, and nothing else is between the instructions.
        let jump: &[u8] = &[0x48, 0x8d, 0x0d, 0x44, 0, 0, 0, 0xff, 0xe1];
        let outside = code(&[MAKE, jump, &[0x90], LEAVE]);
        assert_eq!(found(&outside, 16 + 14), Some((32, true)));
    }

    #[test]
    fn a_long_function_begins_before_what_was_read() {
        let nops = [0x90; 9 << 10];
        let code = code(&[MAKE, &nops, LEAVE]);
        let (before, bytes) = code.split_at(8 << 10);
        let (start, functions) = (START + before.len() as u64, &[][..]);
        let code = Code {
            bytes,
            start,
            functions,
        };
        let found = |preceding: &[u8]| rule(&ARCH, &code, start + 0x200, |_| preceding.to_vec());
        assert_eq!(found(before).map(|rule| rule.cfa.offset), Some(32));
        assert_eq!(found(&before[32..]), None);
    }
}
