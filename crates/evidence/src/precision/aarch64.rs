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

/// Whether an instruction always jumps or returns: `b`, `br`, `ret`, and their authenticated forms.
pub(crate) fn goes_elsewhere(word: u32) -> bool {
    word >> 26 == 0b00_0101 || matches!(word & 0xfeff_f000, 0xd61f_0000 | 0xd65f_0000)
}

/// Whether an instruction of a function's first or last ones writes x29, or the stack pointer (31):
/// additions of a number, loads, and stores that change their base (C4.1.65, C4.1.66).
pub(crate) fn writes(word: u32, register: u32) -> bool {
    let field = |low: u32| word >> low & 31 == register;
    let adds = matches!(word >> 24, 0x91 | 0xd1) && field(0);
    let changes_base = (word & 0x3a80_0000 == 0x2880_0000 || word & 0x3b20_0400 == 0x3800_0400) && field(5);
    // In these places 31 is the zero register.
    let loads = register != 31
        && (word & 0xfe40_0000 == 0xa840_0000 && (field(0) || field(10))
            || (word & 0xffc0_0000 == 0xf940_0000 || word & 0xffe0_0000 == 0xf840_0000) && field(0));
    adds || changes_base || loads
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

    /// As GNU as 2.40 writes them.
    #[test]
    fn written_registers() {
        for (word, sp, fp) in [
            (0xd100_83ffu32, true, false), // sub sp, sp, #0x20
            (0xa901_7bfd, false, false),   // stp x29, x30, [sp, #16]
            (0x9100_43fd, false, true),    // add x29, sp, #0x10
            (0xa941_7bfd, false, true),    // ldp x29, x30, [sp, #16]
            (0x9100_83ff, true, false),    // add sp, sp, #0x20
            (0xa8c2_7bfd, true, true),     // ldp x29, x30, [sp], #32
            (0xa9be_7bfd, true, false),    // stp x29, x30, [sp, #-32]!
            (0xf84107fe, true, false),     // ldr x30, [sp], #16
            (0xf81f0ffe, true, false),     // str x30, [sp, #-16]!
            (0xf940_0bfd, false, true),    // ldr x29, [sp, #16]
            (0x6dbe_27e8, true, false),    // stp d8, d9, [sp, #-32]!
            (0xa941_4ff4, false, false),   // ldp x20, x19, [sp, #16]
            (0xd65f_03c0, false, false),   // ret
        ] {
            assert_eq!((writes(word, 31), writes(word, 29)), (sp, fp), "{word:x}");
        }
        assert!(goes_elsewhere(0xd65f_03c0) && goes_elsewhere(0x1400_0003) && !goes_elsewhere(0x9400_0003));
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
