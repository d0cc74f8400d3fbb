//! Steps that restore every register that can be known, for code whose rows depend on registers
//! other than SP and FP.

use backtrail_arch::{Arch, REGISTERS, Register, Registers};

use crate::step::{AddressKind, Stop, frame_pointer_step, loses_frame_pointer, step};
use crate::{Memory, Modules, RuleCache};

/// A caller with all registers that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The registers after the call has returned.
    pub registers: Registers,
    /// Whether the callee was a signal frame: the caller was interrupted, and has called nothing.
    pub signal_frame: bool,
}

impl Restored {
    /// A caller that has called.
    pub fn called(registers: Registers) -> Restored {
        Restored {
            registers,
            signal_frame: false,
        }
    }
}

/// Modules that know more about callers than table rows do.
pub trait Restore: Modules {
    /// The caller of a frame with these registers. `address` is the address to look up, in the
    /// process.
    fn caller(&self, callee: &Registers, address: u64, memory: &mut impl Memory) -> Option<Restored>;

    /// Whether the function at `pc`, called from `ra`, never changes `register`, although the
    /// calling convention may allow it.
    fn keeps(&self, _pc: u64, _ra: u64, _register: Register) -> bool {
        false
    }
}

/// Gives `caller` a register that it needs if its callee, the innermost function, leaves it
/// unchanged. Returns whether it does.
pub fn keep_register(register: Register, callee: &Registers, caller: &mut Registers, modules: &impl Restore) -> bool {
    match callee.get(register) {
        Some(value) if modules.keeps(callee.pc, caller.pc, register) => {
            caller.set(register, value);
            true
        }
        _ => false,
    }
}

/// Takes a step like [`step`], but the caller also keeps all other known registers, and code whose
/// rows tables can't express is left by what the modules know about it. Also returns whether the
/// step was one of these.
pub fn step_restoring(
    arch: &Arch,
    registers: &mut Registers,
    kind: AddressKind,
    modules: &impl Restore,
    memory: &mut impl Memory,
    cache: &mut RuleCache<'_>,
) -> Result<(AddressKind, bool), Stop> {
    let address = match kind {
        AddressKind::Pc => registers.pc,
        AddressKind::Ra => registers.pc.wrapping_sub(1),
    };
    let callee = *registers;
    match step(arch, registers, kind, modules, memory, cache) {
        Ok(kind) if loses_frame_pointer(arch, &callee, registers) => Ok((kind, false)),
        Ok(kind) => {
            if let Some(caller) = modules.caller(&callee, address, memory) {
                complete(arch, registers, &caller.registers);
            }
            Ok((kind, false))
        }
        Err(stop) if stop.is_of_lost_value() => Err(stop),
        Err(stop @ (Stop::NotExpressible(_) | Stop::NoTable | Stop::NoCall)) => {
            let mut noting = Noting { memory, missing: None };
            let caller = modules.caller(&callee, address, &mut noting);
            let missing = noting.missing.map_or(stop, Stop::Unreadable);
            let caller = caller.ok_or(missing)?;
            let (ra, is_called) = (caller.registers.pc, || modules.is_called(caller.registers.pc, address));
            // A description marks a call that changes stacks as a signal's, whose caller may be on
            // any stack: debuggers reject other frames that lead inwards. Or code that leaves its
            // stack for a call keeps the end of it in a register (both in OCaml 5).
            let is_kept = |base| ![arch.sp, arch.fp, arch.ra].contains(&base);
            let by_register = matches!(stop, Stop::NotExpressible(base) if is_kept(base));
            let changes_stacks = (caller.signal_frame || by_register) && ra != 0 && is_called();
            if !changes_stacks && !leads_outwards(arch, &callee, kind, &caller) {
                return Err(stop);
            }
            if changes_stacks || is_called() {
                *registers = caller.registers;
                return Ok((AddressKind::Ra, true));
            }
            // Hand-written descriptions are sometimes wrong; code that has made a call mostly keeps
            // a frame pointer.
            let mut linked = callee;
            match frame_pointer_step(arch, &mut linked, memory) {
                Ok(next) if kind == AddressKind::Ra && modules.is_called(linked.pc, address) => {
                    *registers = linked;
                    Ok((next, true))
                }
                Err(unreadable @ Stop::Unreadable(_)) if kind == AddressKind::Ra => Err(unreadable),
                _ => Err(Stop::NoCall),
            }
        }
        Err(stop) => Err(stop),
    }
}

/// Memory that records the first unreadable word.
struct Noting<'m, M> {
    memory: &'m mut M,
    missing: Option<u64>,
}

impl<M: Memory> Memory for Noting<'_, M> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let word = self.memory.word(address);
        if word.is_none() {
            self.missing.get_or_insert(address);
        }
        word
    }
}

fn leads_outwards(arch: &Arch, callee: &Registers, kind: AddressKind, caller: &Restored) -> bool {
    let (Some(sp), Some(caller_sp)) = (callee.get(arch.sp), caller.registers.get(arch.sp)) else {
        return false;
    };
    let may_stay = kind == AddressKind::Pc && arch.link_register;
    let advances = caller_sp > sp || may_stay && caller_sp == sp;
    advances && !caller.signal_frame && caller.registers.pc != 0
}

/// Adds the other known registers to a frame, if it is the same frame.
fn complete(arch: &Arch, registers: &mut Registers, others: &Registers) {
    if (registers.pc, registers.get(arch.sp)) != (others.pc, others.get(arch.sp)) {
        return;
    }
    for register in (0..REGISTERS as u8).map(Register) {
        if let (None, Some(value)) = (registers.get(register), others.get(register)) {
            registers.set(register, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coverage, Uncovered};
    use backtrail_arch::x86_64::ARCH;

    const STACK: u64 = 0x7000;
    /// The only return address that follows a call.
    const CALLED: u64 = 0x4000;

    /// A stack of words that begins at [`STACK`].
    struct Stack([u64; 4]);

    impl Memory for Stack {
        fn word(&mut self, address: u64) -> Option<u64> {
            let index = address.checked_sub(STACK)? / 8;
            self.0.get(usize::try_from(index).ok()?).copied()
        }
    }

    /// Code whose description says that the return address is the word at this address, which may
    /// be on another stack, or that of a signal frame.
    struct Described {
        ra_at: u64,
        caller_sp: u64,
        signal_frame: bool,
    }

    impl Modules for Described {
        fn coverage(&self, _address: u64) -> Coverage<'_> {
            Coverage::FramePointer
        }

        fn uncovered(&self, _pc: u64, _kind: AddressKind, _in_table: bool) -> Uncovered {
            Uncovered::Unknown
        }

        fn is_called(&self, ra: u64, _callee: u64) -> bool {
            ra == CALLED
        }
    }

    impl Restore for Described {
        fn caller(&self, _callee: &Registers, _address: u64, memory: &mut impl Memory) -> Option<Restored> {
            let mut registers = Registers::new(memory.word(self.ra_at)?);
            registers.set(ARCH.sp, self.caller_sp);
            Some(Restored {
                registers,
                signal_frame: self.signal_frame,
            })
        }
    }

    fn caller(ra_at: u64, fp: u64, kind: AddressKind) -> Result<(u64, bool), Stop> {
        let described = Described {
            ra_at,
            caller_sp: STACK + 32,
            signal_frame: false,
        };
        caller_of(described, fp, kind)
    }

    fn caller_of(modules: Described, fp: u64, kind: AddressKind) -> Result<(u64, bool), Stop> {
        let mut registers = Registers::new(0x1000);
        registers.set(ARCH.sp, STACK);
        registers.set(ARCH.fp, fp);
        let mut memory = Stack([STACK + 16, CALLED, 0, 0x5000]);
        let mut cache = RuleCache::new(&mut []);
        let stepped = step_restoring(&ARCH, &mut registers, kind, &modules, &mut memory, &mut cache);
        stepped.map(|(_, restored)| (registers.pc, restored))
    }

    #[test]
    fn what_a_description_leads_to_is_proved() {
        let (called, other, beyond) = (STACK + 8, STACK + 24, STACK + 0x100);
        assert_eq!(caller(called, 0, AddressKind::Pc), Ok((CALLED, true)));
        // The description is wrong, and the frame pointer leads to a call.
        assert_eq!(caller(other, STACK, AddressKind::Ra), Ok((CALLED, true)));
        // Interrupted code may not keep a frame pointer, and here it leads nowhere.
        assert_eq!(caller(other, STACK, AddressKind::Pc), Err(Stop::NoCall));
        assert_eq!(caller(other, STACK + 16, AddressKind::Ra), Err(Stop::NoCall));
        // What the description needs is not in the copy.
        assert_eq!(caller(beyond, STACK, AddressKind::Ra), Err(Stop::Unreadable(beyond)));
    }

    #[test]
    fn a_call_may_come_from_another_stack() {
        let described = |ra_at, caller_sp, signal_frame| Described {
            ra_at,
            caller_sp,
            signal_frame,
        };
        let (called, other) = (STACK + 8, STACK + 24);
        for elsewhere in [STACK - 0x1000, STACK + 0x1000] {
            let changes = described(called, elsewhere, true);
            assert_eq!(caller_of(changes, 0, AddressKind::Ra), Ok((CALLED, true)));
            // A signal has interrupted code that has called nothing: only its own rule restores it.
            let interrupted = described(other, elsewhere, true);
            assert_eq!(caller_of(interrupted, 0, AddressKind::Ra), Err(Stop::NoTable));
        }
        // No other frame leads inwards.
        let inwards = described(called, STACK - 0x1000, false);
        assert_eq!(caller_of(inwards, 0, AddressKind::Ra), Err(Stop::NoTable));
    }
}
