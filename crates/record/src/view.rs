//! Answers the unwinder's questions while it walks one process's stack.

use std::cell::Cell;
use std::ops::Range;

use backtrail_arch::{Register, Registers};
use backtrail_cfi::proof;
use backtrail_sframe::{Base, Location, Rule};
use backtrail_unwind::{AddressKind, Coverage, Memory, OnTop, Restore, Restored, Uncovered};

use crate::announced::Announced;
use crate::process::{Code, Process};

/// Answers the unwinder's questions while it walks one process's stack.
pub(crate) struct SpaceView<'v, 'a> {
    process: Process<'v, 'a>,
    code: &'v Code,
    announced: &'v Announced,
    /// The last answer and its address range: a frame's caller is mostly in the same module.
    last: Cell<Option<(Range<u64>, Coverage<'v>)>>,
}

impl<'v, 'a> SpaceView<'v, 'a> {
    pub(crate) fn new(process: Process<'v, 'a>, code: &'v Code, announced: &'v Announced) -> Self {
        SpaceView {
            process,
            code,
            announced,
            last: Cell::new(None),
        }
    }

    /// Whether the code before `pc` is the system call that creates a thread.
    pub(crate) fn makes_thread(&self, pc: u64) -> bool {
        proof::makes_thread(&self.process, pc)
    }

    /// Whether the code from `ra` on cannot return: it may have been entered without a call.
    pub(crate) fn never_returns(&self, ra: u64) -> bool {
        self.code.never_returns(&self.process, ra)
    }

    /// Whether Go's compiler made the code at `pc`.
    pub(crate) fn is_go(&self, pc: u64) -> bool {
        let mapping = self.process.space.find(pc);
        mapping.is_some_and(|mapping| self.process.modules.is_go(mapping))
    }

    /// Whether `ra` is the start of a function, and no call before it can have led to `callee`.
    pub(crate) fn is_made_up(&self, ra: u64, callee: u64) -> bool {
        self.code.is_made_up(&self.process, ra, callee)
    }

    /// The rule of code in memory without a file that the process describes itself.
    fn announced_rule(&self, address: u64) -> Option<Uncovered> {
        let Process { space, modules, .. } = self.process;
        let mapping = space.find(address)?;
        let is_file = modules.is_file(mapping);
        (!is_file)
            .then(|| self.announced.uncovered(&self.process, address))
            .flatten()
    }

    /// A number that changes whenever the process's modules change, or what is known of them.
    pub(crate) fn generation(&self) -> u64 {
        let Process {
            pid, space, modules, ..
        } = self.process;
        space.generation() ^ modules.made().rotate_left(32) ^ self.announced.generation(pid).rotate_left(48)
    }
}

impl backtrail_unwind::Modules for SpaceView<'_, '_> {
    const LOOKS_ON_TOP: bool = true;

    #[inline]
    fn coverage(&self, address: u64) -> Coverage<'_> {
        if let Some((range, coverage)) = self.last.take() {
            let fits = range.contains(&address);
            self.last.set(Some((range, coverage)));
            if fits {
                return coverage;
            }
        }
        let Some(mapping) = self.process.space.find(address) else {
            return Coverage::NoModule;
        };
        let (range, coverage) = self.process.modules.coverage(mapping, address);
        self.last.set(Some((range, coverage)));
        coverage
    }

    fn uncovered(&self, pc: u64, kind: AddressKind, _in_table: bool) -> Uncovered {
        let is_return = kind == AddressKind::Ra;
        let announced = self.announced_rule(pc.wrapping_sub(is_return.into()));
        announced.unwrap_or_else(|| self.code.uncovered(&self.process, pc, is_return))
    }

    /// Compiled Go code links all frames that it makes; see `go_frames` in the crate for DWARF.
    fn links_frames(&self, pc: u64, kind: AddressKind, rule: &Rule) -> bool {
        const SAVED: Option<Location> = Some(Location::saved(-16));
        let by_sp = Base::Register(self.process.arch.sp.0);
        kind == AddressKind::Ra
            && (rule.cfa.base, rule.cfa.deref, rule.ra, rule.fp) == (by_sp, false, Location::saved(-8), SAVED)
            && self.is_go(pc.wrapping_sub(1))
    }

    fn is_called(&self, ra: u64, callee: u64) -> bool {
        self.code.is_called(&self.process, ra, callee)
    }

    fn calls_into(&self, ra: u64, function: (u64, u64)) -> bool {
        self.code.calls_into(&self.process, ra, function)
    }

    fn on_top(&self, word: u64, pc: u64, frame: u64) -> OnTop {
        self.code.on_top(&self.process, word, pc, frame)
    }
}

impl Restore for SpaceView<'_, '_> {
    fn caller(&self, callee: &Registers, address: u64, memory: &mut impl Memory) -> Option<Restored> {
        let Process { space, modules, .. } = self.process;
        let (frames, bias) = modules.call_frames(space.find(address)?)?;
        match frames.caller(callee, address.wrapping_sub(bias), |address| memory.word(address)) {
            Some(caller) => Some(Restored {
                registers: caller.registers,
                signal_frame: caller.signal_frame,
            }),
            None => self
                .code
                .caller_by_size(&self.process, callee, address, |address| memory.word(address))
                .map(Restored::called),
        }
    }

    fn keeps(&self, pc: u64, ra: u64, register: Register) -> bool {
        self.code.keeps(&self.process, pc, ra, register)
    }
}
