//! AArch64 (Arm's architecture manual, C4.1: branches, exception generating and system
//! instructions).

use backtrail_arch::aarch64::{ARCH, SP, X30};
use backtrail_arch::{Arch, Register, Registers};

use super::cpu::{Class, Cpu, Ran, SignalEntry, SystemCall};
use super::shadow::Shadow;

const X8: Register = Register(8);

/// The kernel's frame begins with `siginfo_t`, and `ucontext_t` with flags and a link.
const UC_STACK: u64 = 128 + 16;

pub(crate) struct Aarch64;

impl Cpu for Aarch64 {
    const ARCH: &'static Arch = &ARCH;
    const LONGEST: usize = 4;
    const RETURNS_BY_STACK: bool = false;

    fn classify(code: &[u8]) -> Class {
        let Some(bytes) = code.first_chunk::<4>() else {
            return Class::Other;
        };
        let word = u32::from_le_bytes(*bytes);
        // Bits 24 and 11 to 10 say how the address is authenticated.
        match word & 0xfeff_f000 {
            _ if word >> 26 == 0b10_0101 => Class::Call,
            0xd63f_0000 => Class::Call,
            0xd65f_0000 => Class::Return,
            0xd61f_0000 => Class::Jump,
            _ if word == 0xd400_0001 => Class::System,
            _ => Class::Other,
        }
    }

    fn system_call(registers: &Registers) -> SystemCall {
        // asm-generic/unistd.h: munmap, mremap, mmap, mprotect.
        match registers.get(X8) {
            Some(139) => SystemCall::SignalReturn,
            Some(215 | 216 | 222 | 226) => SystemCall::Mappings,
            _ => SystemCall::Other,
        }
    }

    fn signal_entry(now: &Registers, _word: &mut dyn FnMut(u64) -> u64) -> SignalEntry {
        SignalEntry {
            // The emulator stops after the handler's first instruction, which may have signed it.
            restorer: ARCH.strip(now.get(X30).unwrap_or(0)),
            frame: 0,
            stack: UC_STACK,
        }
    }

    fn follow(
        shadow: &mut Shadow,
        ran: &Ran<'_>,
        _word: &mut dyn FnMut(u64) -> u64,
        is_inside: &dyn Fn(u64, u64) -> bool,
    ) {
        let (before, now) = (sp(ran.before), sp(ran.now));
        if ran.class == Class::Call {
            shadow.call(ran.before.pc + 4, before);
            return;
        }
        if matches!(ran.class, Class::Return | Class::Jump)
            && let Some(top) = shadow.top()
        {
            if ran.now.pc == top.address && now == top.slot {
                shadow.pop();
                return;
            }
            // A jump into the middle of a caller ends the calls that it had made, even if it had
            // not moved the stack pointer further.
            if is_inside(top.address.wrapping_sub(4), ran.now.pc) && !is_inside(ran.before.pc, ran.now.pc) {
                shadow.cut(now, |entry| entry.slot <= now);
                return;
            }
        }
        shadow.cut(now, |entry| entry.slot < now);
    }

    fn arrive(shadow: &mut Shadow, class: Class, now: &Registers, _word: &mut dyn FnMut(u64) -> u64) -> bool {
        class == Class::Return && shadow.top().is_some_and(|top| top.slot != sp(now))
    }
}

fn sp(registers: &Registers) -> u64 {
    registers.get(SP).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes() {
        for (word, class) in [
            (0x9400_0010u32, Class::Call),
            (0xd63f_0020, Class::Call),
            // blraa x1, sp and blraaz x1
            (0xd73f_083f, Class::Call),
            (0xd63f_083f, Class::Call),
            (0xd65f_03c0, Class::Return),
            // retaa, retab
            (0xd65f_0bff, Class::Return),
            (0xd65f_0fff, Class::Return),
            (0xd61f_0220, Class::Jump),
            (0xd400_0001, Class::System),
            (0x1400_0001, Class::Other),
            (0xd503_233f, Class::Other),
        ] {
            assert_eq!(Aarch64::classify(&word.to_le_bytes()), class, "{word:x}");
        }
    }

    fn at(pc: u64, sp: u64) -> Registers {
        let mut registers = Registers::new(pc);
        registers.set(SP, sp);
        registers
    }

    #[test]
    fn calls_of_a_frameless_function_end_where_they_began() {
        let mut shadow = Shadow::default();
        let run = |shadow: &mut Shadow, class, before, now, inside: bool| {
            let (before, now) = (&before, &now);
            Aarch64::follow(shadow, &Ran { class, before, now }, &mut |_| 0, &|from, _| {
                inside && from < 0x100
            });
        };
        run(&mut shadow, Class::Call, at(0x10, 0x1000), at(0x100, 0x1000), false);
        run(&mut shadow, Class::Jump, at(0x100, 0x1000), at(0x200, 0x1000), false);
        assert_eq!(shadow.depth(), 2);
        run(&mut shadow, Class::Return, at(0x200, 0x1000), at(0x14, 0x1000), false);
        assert_eq!(shadow.depth(), 1);
        // The same, left by an exception to a landing pad of the caller.
        run(&mut shadow, Class::Call, at(0x10, 0x1000), at(0x100, 0x1000), false);
        run(&mut shadow, Class::Call, at(0x110, 0xf00), at(0x200, 0xf00), false);
        run(&mut shadow, Class::Other, at(0x200, 0xf00), at(0x204, 0x1000), false);
        assert_eq!(shadow.depth(), 2);
        run(&mut shadow, Class::Jump, at(0x204, 0x1000), at(0x40, 0x1000), true);
        assert_eq!(shadow.depth(), 1);
    }
}
