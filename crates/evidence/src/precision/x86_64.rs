//! x86-64 (Intel's manual, volume 2, chapter 2: prefixes and opcodes).

use backtrail_arch::x86_64::{ARCH, RSP};
use backtrail_arch::{Arch, Register, Registers};

use super::cpu::{Class, Cpu, Ran, SignalEntry, SystemCall};
use super::shadow::Shadow;

const RAX: Register = Register(0);

/// Bytes of the longest call with all its prefixes.
const LONGEST_CALL: u64 = 15;

/// `ucontext_t` begins with flags and a link.
const UC_STACK: u64 = 16;

pub(crate) struct X86_64;

impl Cpu for X86_64 {
    const ARCH: &'static Arch = &ARCH;
    const LONGEST: usize = 15;
    const RETURNS_BY_STACK: bool = true;

    fn classify(code: &[u8]) -> Class {
        let is_prefix = |byte: &u8| {
            matches!(
                byte,
                0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
            )
        };
        let at = code.iter().take_while(|byte| is_prefix(byte)).count();
        match code.get(at..).unwrap_or_default() {
            [0xe8, ..] => Class::Call,
            [0xff, operand, ..] => match operand >> 3 & 7 {
                2 => Class::Call,
                4 => Class::Jump,
                6 => Class::Push,
                _ => Class::Other,
            },
            [0xc2 | 0xc3, ..] => Class::Return,
            [0x0f, 0x05, ..] => Class::System,
            [0x50..=0x57, ..] => Class::Push,
            [0x58..=0x5f, ..] => Class::Pop,
            _ => Class::Other,
        }
    }

    fn system_call(registers: &Registers) -> SystemCall {
        // asm/unistd_64.h: mmap, mprotect, munmap, mremap.
        match registers.get(RAX) {
            Some(15) => SystemCall::SignalReturn,
            Some(9 | 10 | 11 | 25) => SystemCall::Mappings,
            _ => SystemCall::Other,
        }
    }

    fn signal_entry(now: &Registers, word: &mut dyn FnMut(u64) -> u64) -> SignalEntry {
        SignalEntry {
            restorer: word(sp(now)),
            frame: 8,
            stack: UC_STACK,
        }
    }

    fn follow(
        shadow: &mut Shadow,
        ran: &Ran<'_>,
        word: &mut dyn FnMut(u64) -> u64,
        _is_inside: &dyn Fn(u64, u64) -> bool,
    ) {
        let (before, now) = (sp(ran.before), sp(ran.now));
        if ran.class == Class::Call && now == before.wrapping_sub(8) {
            let address = word(now);
            if (ran.before.pc + 2..=ran.before.pc + LONGEST_CALL).contains(&address) {
                shadow.call(address, now);
                return;
            }
        }
        // The C library's vfork keeps its return address in a register while both processes use the
        // stack.
        if let Some(top) = shadow.top_mut()
            && top.in_register
        {
            let is_back = ran.class == Class::Push && now == top.slot && word(now) == top.address;
            top.in_register = !is_back;
        }
        shadow.cut(now, |entry| {
            if entry.in_register {
                return ran.now.pc == entry.address || ran.class == Class::Return || now > entry.slot + 8;
            }
            // If the return address is unchanged: code that has put another one there pops that, to
            // jump to it.
            let popped =
                ran.class == Class::Pop && entry.slot == before && now == before + 8 && word(before) == entry.address;
            entry.in_register = popped;
            entry.slot < now && !popped
        });
    }

    fn arrive(shadow: &mut Shadow, class: Class, now: &Registers, word: &mut dyn FnMut(u64) -> u64) -> bool {
        if class != Class::Return {
            return false;
        }
        // This is where the instruction goes, whatever its purpose.
        let (slot, address) = (sp(now), word(sp(now)));
        match shadow.top_mut() {
            Some(top) if top.slot == slot => {
                let other = top.address != address;
                top.address = address;
                other
            }
            _ => {
                shadow.call(address, slot);
                true
            }
        }
    }
}

fn sp(registers: &Registers) -> u64 {
    registers.get(RSP).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes() {
        for (code, class) in [
            (&[0xe8, 0, 0, 0, 0][..], Class::Call),
            (&[0xff, 0xd0], Class::Call),
            (&[0x41, 0xff, 0x54, 0x24, 0x18], Class::Call),
            (&[0x3e, 0xff, 0xd7], Class::Call),
            (&[0xff, 0xe1], Class::Jump),
            (&[0xf3, 0xc3], Class::Return),
            (&[0xc2, 8, 0], Class::Return),
            (&[0x0f, 0x05], Class::System),
            (&[0x41, 0x5f], Class::Pop),
            (&[0x55], Class::Push),
            (&[0x48, 0x89, 0xe5], Class::Other),
            (&[], Class::Other),
        ] {
            assert_eq!(X86_64::classify(code), class, "{code:x?}");
        }
    }

    fn at(pc: u64, sp: u64) -> Registers {
        let mut registers = Registers::new(pc);
        registers.set(RSP, sp);
        registers
    }

    fn run(shadow: &mut Shadow, class: Class, before: Registers, now: Registers, words: u64) {
        let (before, now) = (&before, &now);
        X86_64::follow(shadow, &Ran { class, before, now }, &mut |_| words, &|_, _| false);
    }

    #[test]
    fn a_return_address_in_a_register_is_the_callers_still() {
        let mut shadow = Shadow::default();
        run(&mut shadow, Class::Call, at(0x10, 0x1000), at(0x50, 0xff8), 0x15);
        let mut other = shadow.clone();
        run(&mut other, Class::Pop, at(0x50, 0xff8), at(0x51, 0x1000), 0x1234);
        assert_eq!(other.depth(), 1);
        run(&mut shadow, Class::Pop, at(0x50, 0xff8), at(0x51, 0x1000), 0x15);
        assert_eq!(shadow.depth(), 2);
        run(&mut shadow, Class::System, at(0x51, 0x1000), at(0x53, 0x1000), 0);
        assert_eq!(shadow.depth(), 2);
        run(&mut shadow, Class::Push, at(0x53, 0x1000), at(0x54, 0xff8), 0x15);
        assert!(!shadow.top().unwrap().in_register);
        run(&mut shadow, Class::Return, at(0x54, 0xff8), at(0x15, 0x1000), 0);
        assert_eq!(shadow.depth(), 1);
    }

    #[test]
    fn what_is_no_call_leaves_no_frame() {
        let mut shadow = Shadow::default();
        // The word is not the return address after the call: the kernel came in between.
        run(&mut shadow, Class::Call, at(0x10, 0x1000), at(0x50, 0xff8), 0x9999);
        assert_eq!(shadow.depth(), 1);
    }
}
