//! Leads from the system stack of Go's runtime back to the goroutine, up to Go 1.20; x86-64 only.
//!
//! `runtime.systemstack` and `runtime.morestack` save the goroutine's position in its `g`, and
//! continue on the stack of the thread's `g0`. Nothing on that stack leads back (see `go_frames` in
//! the crate for DWARF), but R14 contains a `g` in all Go code. The values are accepted only if all
//! of them refer to each other, and a call leads from there to here.

use backtrail_arch::{Arch, Cpu, Register, Registers};
use backtrail_unwind::{Memory, Modules};

/// The register of the current `g` (ABIInternal, "Special-purpose registers").
const G: Register = Register(14);

/// `struct g` (`runtime/runtime2.go`, the same from Go 1.17 to 1.20).
mod g {
    pub(super) const STACK_LO: u64 = 0;
    pub(super) const STACK_HI: u64 = 8;
    pub(super) const M: u64 = 48;
    pub(super) const SCHED_SP: u64 = 56;
    pub(super) const SCHED_PC: u64 = 64;
    pub(super) const SCHED_G: u64 = 72;
    pub(super) const SCHED_BP: u64 = 104;
}

/// `struct m`.
mod m {
    pub(super) const G0: u64 = 0;
    pub(super) const CURG: u64 = 192;
}

/// The `g` in these registers, if any.
pub(crate) fn held(registers: &Registers) -> Option<u64> {
    registers.get(G)
}

/// For a frame with these registers on the stack of the thread's `g0`, finds the caller in the
/// goroutine that the thread runs. `current` is the last known value of R14.
pub(crate) fn caller(
    arch: &Arch,
    callee: &Registers,
    current: u64,
    modules: &impl Modules,
    memory: &mut impl Memory,
) -> Option<Registers> {
    if arch.cpu != Cpu::X86_64 {
        return None;
    }
    let mut word = |base: u64, offset: u64| memory.word(base.checked_add(offset)?);
    let is_in = |sp: u64, (low, high): (u64, u64)| (low..=high).contains(&sp);
    let thread = word(current, g::M)?;
    let (system, goroutine) = (word(thread, m::G0)?, word(thread, m::CURG)?);
    let system_stack = (word(system, g::STACK_LO)?, word(system, g::STACK_HI)?);
    if ![system, goroutine].contains(&current) || system == goroutine || !is_in(callee.get(arch.sp)?, system_stack) {
        return None;
    }
    let sp = word(goroutine, g::SCHED_SP)?;
    let stack = (word(goroutine, g::STACK_LO)?, word(goroutine, g::STACK_HI)?);
    if !is_in(sp, stack) || (word(goroutine, g::M)?, word(goroutine, g::SCHED_G)?) != (thread, goroutine) {
        return None;
    }
    // `morestack` has saved its caller, `systemstack` itself.
    let (pc, top) = (word(goroutine, g::SCHED_PC)?, word(sp, 0)?);
    let (ra, sp) = match modules.is_called(pc, callee.pc) {
        true => (pc, sp),
        false => (top, sp.checked_add(8)?),
    };
    if !modules.is_called(ra, callee.pc) {
        return None;
    }
    let mut caller = Registers::new(ra);
    caller.set(arch.sp, sp);
    caller.set(arch.fp, word(goroutine, g::SCHED_BP)?);
    Some(caller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::ARCH;
    use backtrail_unwind::Coverage;
    use std::collections::BTreeMap;

    const SYSTEM: u64 = 0x1000;
    const THREAD: u64 = 0x2000;
    const GOROUTINE: u64 = 0x3000;
    const SYSTEM_STACK: u64 = 0x1_0000;
    const STACK: u64 = 0x2_0000;
    const SYSTEMSTACK: u64 = 0x40_0100;
    const MORESTACK: u64 = 0x40_0200;

    struct Words(BTreeMap<u64, u64>);

    impl Memory for Words {
        fn word(&mut self, address: u64) -> Option<u64> {
            self.0.get(&address).copied()
        }
    }

    /// The targets of calls, by return address.
    struct Calls(BTreeMap<u64, u64>);

    impl Modules for Calls {
        fn coverage(&self, _address: u64) -> Coverage<'_> {
            Coverage::NoModule
        }

        fn is_called(&self, ra: u64, callee: u64) -> bool {
            self.0.get(&ra) == Some(&callee)
        }
    }

    fn words() -> BTreeMap<u64, u64> {
        let sp = STACK + 0x80;
        BTreeMap::from([
            (SYSTEM, SYSTEM_STACK),
            (SYSTEM + 8, SYSTEM_STACK + 0x1000),
            (SYSTEM + 48, THREAD),
            (THREAD, SYSTEM),
            (THREAD + 192, GOROUTINE),
            (GOROUTINE, STACK),
            (GOROUTINE + 8, STACK + 0x1000),
            (GOROUTINE + 48, THREAD),
            (GOROUTINE + 56, sp),
            (GOROUTINE + 64, 0x40_1000),
            (GOROUTINE + 72, GOROUTINE),
            (GOROUTINE + 104, STACK + 0x90),
            (sp, 0x40_2000),
        ])
    }

    /// The caller's pc and stack pointer.
    fn found(words: BTreeMap<u64, u64>, callee: u64, current: u64) -> Option<(u64, u64)> {
        let mut registers = Registers::new(callee);
        registers.set(ARCH.sp, SYSTEM_STACK + 0x500);
        let calls = Calls(BTreeMap::from([(0x40_1000, MORESTACK), (0x40_2000, SYSTEMSTACK)]));
        let caller = caller(&ARCH, &registers, current, &calls, &mut Words(words))?;
        assert_eq!(caller.get(ARCH.fp), Some(STACK + 0x90));
        Some((caller.pc, caller.get(ARCH.sp)?))
    }

    #[test]
    fn both_ways_lead_back_to_the_goroutine() {
        for current in [SYSTEM, GOROUTINE] {
            assert_eq!(found(words(), SYSTEMSTACK, current), Some((0x40_2000, STACK + 0x88)));
            assert_eq!(found(words(), MORESTACK, current), Some((0x40_1000, STACK + 0x80)));
        }
    }

    #[test]
    fn what_does_not_fit_together_leads_nowhere() {
        assert_eq!(found(words(), 0x40_0300, SYSTEM), None, "nothing calls it");
        assert_eq!(found(words(), SYSTEMSTACK, THREAD), None);
        for (address, value) in [
            (SYSTEM + 48, GOROUTINE),
            (THREAD + 192, 0),
            (THREAD + 192, SYSTEM),
            (GOROUTINE + 48, 0x7000),
            (GOROUTINE + 56, SYSTEM_STACK + 0x80),
            (GOROUTINE + 72, SYSTEM),
            (SYSTEM + 8, SYSTEM_STACK + 0x100),
        ] {
            let mut words = words();
            words.insert(address, value);
            assert_eq!(found(words, SYSTEMSTACK, SYSTEM), None, "{address:#x}");
        }
    }
}
