//! Leads from the system stack of Go's runtime back to the goroutine, on x86-64 and AArch64.
//!
//! `runtime.systemstack`, `asmcgocall`, `morestack` and `mcall` save the goroutine's position in
//! its `g`, and continue on the stack of the thread's `g0`. Up to Go 1.20 nothing on that stack
//! leads back, and later nothing after the last two. But a register (R14, or R28) contains a `g` in
//! all Go code, and each `g` leads to its thread's `m`. Values are accepted only if all of them
//! refer to each other, and a call leads from the goroutine to the frame on the system stack.

use core::ops::Range;

use backtrail_arch::{Arch, Cpu, Register, Registers};

use crate::{Memory, Modules};

/// The register of the current `g` (ABIInternal, "Special-purpose registers").
pub const fn g_register(arch: &Arch) -> Option<Register> {
    match arch.cpu {
        Cpu::X86_64 => Some(Register(14)),
        Cpu::Aarch64 => Some(Register(28)),
        Cpu::S390x => None,
    }
}

/// The register in which the functions that read the clock keep their stack pointer while they are
/// on the system stack: their goroutine has not left its stack for the runtime's other functions.
pub const fn kept_sp(arch: &Arch) -> Option<Register> {
    match arch.cpu {
        Cpu::X86_64 => Some(Register(12)),
        Cpu::Aarch64 => Some(Register(20)),
        Cpu::S390x => None,
    }
}

/// Words of a frame that may contain a `g`: `asmcgocall` makes one of this size, or smaller.
pub const KEPT_WORDS: usize = 8;

/// What rows of AArch64 need to leave a frame whose caller is on another stack. Go leaves the
/// platform's register alone, so no frame needs it.
pub const ELSEWHERE_ON_AARCH64: Register = Register(18);

/// `struct g` (`runtime/runtime2.go`, the same from Go 1.17 on up to the last word of `sched`).
pub mod g {
    /// The lowest address of its stack.
    pub const STACK_LO: u64 = 0;
    /// The end of its stack.
    pub const STACK_HI: u64 = 8;
    /// The thread that runs it.
    pub const M: u64 = 48;
    /// The stack pointer where it was left.
    pub const SCHED_SP: u64 = 56;
    /// The instruction where it was left.
    pub const SCHED_PC: u64 = 64;
    /// The `g` itself.
    pub const SCHED_G: u64 = 72;
    /// Bytes from the caller's return address to the frame pointer, which is the last word.
    pub(super) const SCHED_FP_FROM_LR: u64 = 8;
    /// Bytes up to the end of `sched`.
    pub const SIZE: u64 = 112;
}

/// `struct m`. From Go 1.25 on `gobuf`, which is in both structures, has a word less.
mod m {
    pub(super) const G0: u64 = 0;
}

/// Offsets that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// `m.gsignal`.
    signal: u64,
    /// `m.curg`.
    current: u64,
    /// `g.sched.bp`.
    fp: u64,
}

const LAYOUTS: [Layout; 2] = [
    Layout {
        signal: 80,
        current: 192,
        fp: 104,
    },
    Layout {
        signal: 72,
        current: 184,
        fp: 96,
    },
];

/// A thread of a Go program: its `m`, which stays the same while the thread exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoThread {
    m: u64,
    layout: Layout,
    system: u64,
    system_stack: (u64, u64),
}

/// What follows a frame on the system stack.
#[expect(clippy::large_enum_variant, reason = "returned once a walk, and never stored")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// The goroutine that left its stack. There may be a frame in between, given by its return
    /// address: a function that was about to make its frame.
    Goroutine(Option<u64>, Registers),
    /// No goroutine: the thread has left it for good, and looks for another. The system stack
    /// begins after this return address.
    Start(u64),
}

/// The `g` in these registers, if any.
pub fn held(arch: &Arch, registers: &Registers) -> Option<u64> {
    registers.get(g_register(arch)?)
}

/// The words of a frame that has left the goroutine's stack, from its stack pointer on; 0 where
/// memory is not readable. `asmcgocall` keeps the `g` in one of them while it calls C, which may
/// use the register for anything.
pub fn kept(arch: &Arch, callee: &Registers, memory: &mut impl Memory) -> [u64; KEPT_WORDS] {
    let sp = callee.get(arch.sp).unwrap_or(0);
    core::array::from_fn(|word| {
        let address = sp.checked_add(8 * word as u64);
        address.and_then(|address| memory.word(address)).unwrap_or(0)
    })
}

/// Whether this frame's row says that the caller is on another of Go's stacks.
pub fn is_left(arch: &Arch, needed: Register) -> bool {
    match arch.cpu {
        Cpu::X86_64 => needed == arch.ra,
        Cpu::Aarch64 => needed == ELSEWHERE_ON_AARCH64,
        Cpu::S390x => false,
    }
}

impl GoThread {
    /// The most bytes of the thread's structure that are needed.
    pub const M_SIZE: u64 = 200;

    /// Where the goroutine that it runs may be in there: the one of these that refers to it.
    pub const CURRENT: [u64; LAYOUTS.len()] = [LAYOUTS[0].current, LAYOUTS[1].current];

    /// Where a `g` mostly is: in what Go's heap begins with (`runtime.mallocinit`), on AArch64 and
    /// on x86-64, up to a terabyte; and that of the main thread's system stack in the data of a
    /// program with fixed addresses, which follow those where Go's linker begins.
    pub fn places(arch: &Arch) -> [Range<u64>; 2] {
        let lowest = match arch.cpu {
            Cpu::Aarch64 => 1 << 16,
            _ => 4 << 20,
        };
        [0x40 << 32..0x100 << 32, lowest..1 << 32]
    }

    /// The thread of a `g`, if it is one. Memory need not have that of the signal handlers' stack.
    pub fn of(g: u64, memory: &mut impl Memory) -> Option<GoThread> {
        let mut word = |base: u64, offset: u64| memory.word(base.checked_add(offset)?);
        let m = word(g, g::M)?;
        let system = word(m, m::G0)?;
        if word(system, g::M)? != m {
            return None;
        }
        let stack_of = |word: &mut dyn FnMut(u64, u64) -> Option<u64>, g| {
            let (low, high) = (word(g, g::STACK_LO)?, word(g, g::STACK_HI)?);
            (low < high).then_some((low, high))
        };
        let system_stack = stack_of(&mut word, system)?;
        let mut fits = |layout: &Layout| {
            let signal = word(m, layout.signal)?;
            let current = word(m, layout.current)?;
            let is_one = [system, signal, current].contains(&g);
            let owns = |word: &mut dyn FnMut(u64, u64) -> Option<u64>, g| word(g, g::M) == Some(m);
            let is_owned = word(signal, g::M).is_none_or(|of_signal| of_signal == m);
            let fits = signal != system && is_owned && (current == 0 || owns(&mut word, current));
            Some(is_one && fits)
        };
        let layout = *LAYOUTS.iter().find(|layout| fits(layout) == Some(true))?;
        Some(GoThread {
            m,
            layout,
            system,
            system_stack,
        })
    }

    /// The thread's number, in the process's namespace: `m.procid`.
    pub fn number(&self, memory: &mut impl Memory) -> Option<u64> {
        let before_signal = self.layout.signal.checked_sub(8)?;
        memory.word(self.m.checked_add(before_signal)?)
    }

    /// Address of the thread's structure, and the offset in it of the goroutine that it runs.
    pub fn structure(&self) -> (u64, u64) {
        (self.m, self.layout.current)
    }

    /// The `g` of the system stack.
    pub fn system(&self) -> u64 {
        self.system
    }

    /// The system stack.
    pub fn system_stack(&self) -> Range<u64> {
        self.system_stack.0..self.system_stack.1
    }

    /// The stack of signal handlers, as memory has it.
    pub fn signal_stack(&self, memory: &mut impl Memory) -> Option<Range<u64>> {
        let signal = memory.word(self.m.checked_add(self.layout.signal)?)?;
        Some(memory.word(signal)?..memory.word(signal.checked_add(g::STACK_HI)?)?)
    }

    /// For a frame with these registers on the stack of the thread's `g0`, what follows it.
    pub fn outside(
        &self,
        arch: &Arch,
        callee: &Registers,
        modules: &impl Modules,
        memory: &mut impl Memory,
    ) -> Option<Outside> {
        let mut word = |base: u64, offset: u64| memory.word(base.checked_add(offset)?);
        let is_in = |sp: u64, (low, high): (u64, u64)| (low..=high).contains(&sp);
        let sp = callee.get(arch.sp)?;
        let (system, goroutine) = (word(self.m, m::G0)?, word(self.m, self.layout.current)?);
        let system_stack = (word(system, g::STACK_LO)?, word(system, g::STACK_HI)?);
        if system != self.system || word(system, g::M)? != self.m || !is_in(sp, system_stack) || system == goroutine {
            return None;
        }
        if goroutine == 0 {
            // Where the system stack was left, `mcall` pushes a word, and `morestack` calls. Stack
            // pointers of AArch64 are multiples of 16.
            let pushed = if arch.link_register { 16 } else { 8 };
            let (begin, pc) = (word(system, g::SCHED_SP)?, word(system, g::SCHED_PC)?);
            let is_next = begin.checked_sub(sp).is_some_and(|bytes| bytes == pushed || bytes == 0);
            let is_first = is_next && word(system, g::SCHED_G)? == system;
            return is_first.then_some(Outside::Start(pc));
        }
        let sp = word(goroutine, g::SCHED_SP)?;
        let stack = (word(goroutine, g::STACK_LO)?, word(goroutine, g::STACK_HI)?);
        if !is_in(sp, stack) || (word(goroutine, g::M)?, word(goroutine, g::SCHED_G)?) != (self.m, goroutine) {
            return None;
        }
        let (pc, fp) = (word(goroutine, g::SCHED_PC)?, word(goroutine, self.layout.fp)?);
        let position = |ra, sp, fp: Option<u64>| {
            let mut caller = Registers::new(ra);
            caller.set(arch.sp, sp);
            fp.into_iter().for_each(|fp| caller.set(arch.fp, fp));
            caller
        };
        // `morestack` and `mcall` have saved their caller, the others themselves.
        if !modules.is_called(pc, callee.pc) {
            let top = arch.strip(word(sp, 0)?);
            let caller = match arch.link_register {
                false => position(top, sp.checked_add(8)?, Some(fp)),
                // They have a frame of two words, below which the caller's frame pointer is: mostly
                // not in a sample's copy, and Go's rows don't need it.
                true => position(top, sp.checked_add(16)?, word(fp, 0)),
            };
            return modules
                .is_called(top, callee.pc)
                .then_some(Outside::Goroutine(None, caller));
        }
        // The link register of a function that called `morestack` before it made its frame; `mcall`
        // leaves 0.
        let lr = match arch.link_register {
            false => 0,
            true => arch.strip(word(goroutine, self.layout.fp.checked_sub(g::SCHED_FP_FROM_LR)?)?),
        };
        if lr == 0 {
            return Some(Outside::Goroutine(None, position(pc, sp, Some(fp))));
        }
        let is_callers = modules.is_called(lr, pc);
        is_callers.then_some(Outside::Goroutine(Some(pc), position(lr, sp, Some(fp))))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::Coverage;
    use backtrail_arch::{aarch64, x86_64};
    use std::collections::BTreeMap;

    const SYSTEM: u64 = 0x1000;
    const THREAD: u64 = 0x2000;
    const GOROUTINE: u64 = 0x3000;
    const SIGNAL: u64 = 0x4000;
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

    fn words(layout: Layout) -> BTreeMap<u64, u64> {
        let sp = STACK + 0x80;
        BTreeMap::from([
            (SYSTEM, SYSTEM_STACK),
            (SYSTEM + 8, SYSTEM_STACK + 0x1000),
            (SYSTEM + 48, THREAD),
            (SYSTEM + 56, SYSTEM_STACK + 0x508),
            (SYSTEM + 64, 0x40_3000),
            (SYSTEM + 72, SYSTEM),
            (SIGNAL + 48, THREAD),
            (THREAD, SYSTEM),
            (THREAD + layout.signal - 8, 4711),
            (THREAD + layout.signal, SIGNAL),
            (THREAD + layout.current, GOROUTINE),
            (GOROUTINE, STACK),
            (GOROUTINE + 8, STACK + 0x1000),
            (GOROUTINE + 48, THREAD),
            (GOROUTINE + 56, sp),
            (GOROUTINE + 64, 0x40_1000),
            (GOROUTINE + 72, GOROUTINE),
            (GOROUTINE + layout.fp, STACK + 0x90),
            (sp, 0x40_2000),
        ])
    }

    fn outside(arch: &Arch, words: BTreeMap<u64, u64>, callee: u64, current: u64) -> Option<Outside> {
        let mut registers = Registers::new(callee);
        registers.set(arch.sp, SYSTEM_STACK + 0x500);
        let calls = Calls(BTreeMap::from([
            (0x40_1000, MORESTACK),
            (0x40_2000, SYSTEMSTACK),
            (0x40_4000, 0x40_1000),
        ]));
        let mut memory = Words(words);
        let thread = GoThread::of(current, &mut memory)?;
        thread.outside(arch, &registers, &calls, &mut memory)
    }

    /// The caller's pc and stack pointer.
    fn found(words: BTreeMap<u64, u64>, callee: u64, current: u64) -> Option<(u64, u64)> {
        let arch = &x86_64::ARCH;
        let Outside::Goroutine(None, caller) = outside(arch, words, callee, current)? else {
            return None;
        };
        assert_eq!(caller.get(arch.fp), Some(STACK + 0x90));
        Some((caller.pc, caller.get(arch.sp)?))
    }

    #[test]
    fn a_thread_has_a_number() {
        for layout in LAYOUTS {
            let mut memory = Words(words(layout));
            let thread = GoThread::of(GOROUTINE, &mut memory).expect("all fits");
            assert_eq!(thread.number(&mut memory), Some(4711));
        }
    }

    #[test]
    fn on_aarch64_functions_and_the_runtime_leave_return_addresses_in_the_link_register() {
        let arch = &aarch64::ARCH;
        for layout in LAYOUTS {
            let mut words = words(layout);
            // systemstack has a frame of its own, mcall has none, and leaves no return address.
            let sp = STACK + 0x80;
            let mut expected = Registers::new(0x40_2000);
            expected.set(arch.sp, sp + 16);
            let of = |words: &BTreeMap<u64, u64>, callee| outside(arch, words.clone(), callee, GOROUTINE);
            assert_eq!(of(&words, SYSTEMSTACK), Some(Outside::Goroutine(None, expected)));
            let lr = GOROUTINE + layout.fp - 8;
            words.insert(lr, 0);
            let mut expected = Registers::new(0x40_1000);
            expected.set(arch.sp, sp);
            expected.set(arch.fp, STACK + 0x90);
            assert_eq!(of(&words, MORESTACK), Some(Outside::Goroutine(None, expected)));
            words.insert(lr, 0x40_4000);
            expected.pc = 0x40_4000;
            assert_eq!(
                of(&words, MORESTACK),
                Some(Outside::Goroutine(Some(0x40_1000), expected))
            );
            words.insert(lr, 0x40_2000);
            assert_eq!(of(&words, MORESTACK), None, "no call leads to the function in between");
        }
    }

    #[test]
    fn both_ways_lead_back_to_the_goroutine() {
        for layout in LAYOUTS {
            for current in [SYSTEM, GOROUTINE, SIGNAL] {
                let words = || words(layout);
                assert_eq!(found(words(), SYSTEMSTACK, current), Some((0x40_2000, STACK + 0x88)));
                assert_eq!(found(words(), MORESTACK, current), Some((0x40_1000, STACK + 0x80)));
            }
        }
    }

    #[test]
    fn a_thread_without_a_goroutine_begins_where_its_system_stack_was_left() {
        for layout in LAYOUTS {
            let mut words = words(layout);
            words.insert(THREAD + layout.current, 0);
            let start = Some(Outside::Start(0x40_3000));
            assert_eq!(outside(&x86_64::ARCH, words.clone(), 0x40_0300, SYSTEM), start);
            words.insert(SYSTEM + 56, SYSTEM_STACK + 0x500);
            assert_eq!(outside(&x86_64::ARCH, words.clone(), MORESTACK, SYSTEM), start);
            words.insert(SYSTEM + 56, SYSTEM_STACK + 0x600);
            assert_eq!(
                outside(&x86_64::ARCH, words, 0x40_0300, SYSTEM),
                None,
                "there is something in between"
            );
        }
    }

    #[test]
    fn what_does_not_fit_together_leads_nowhere() {
        let layout = LAYOUTS[0];
        assert_eq!(found(words(layout), 0x40_0300, SYSTEM), None, "nothing calls it");
        assert_eq!(found(words(layout), SYSTEMSTACK, THREAD), None);
        for (address, value) in [
            (SYSTEM + 48, GOROUTINE),
            (SIGNAL + 48, GOROUTINE),
            (THREAD + layout.current, 0),
            (THREAD + layout.current, SYSTEM),
            (GOROUTINE + 48, 0x7000),
            (GOROUTINE + 56, SYSTEM_STACK + 0x80),
            (GOROUTINE + 72, SYSTEM),
            (SYSTEM + 8, SYSTEM_STACK + 0x100),
        ] {
            let mut words = words(layout);
            words.insert(address, value);
            assert_eq!(found(words, SYSTEMSTACK, SYSTEM), None, "{address:#x}");
        }
    }
}
