//! Linker-made code without call frame information: AArch64's procedure linkage table. The correct
//! rows follow from its instructions (Arm Architecture Reference Manual, C6.2): they push register
//! pairs and jump.

use backtrail_arch::Cpu;
use std::ops::Range;

use backtrail_elf::Image;
use backtrail_sframe::{Base, Rule};
use backtrail_wire::Bytes;

/// DWARF numbers of registers (AADWARF64, section 4.1).
const LR: u8 = 30;
const SP: u8 = 31;
const NOP: u32 = 0xd503_201f;
/// Bytes of an instruction.
pub(super) const WORD: u64 = 4;

/// Such code, instruction by instruction.
pub(super) struct Stubs {
    address: u64,
    states: Vec<State>,
}

/// The values to restore at a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Bytes from SP to the CFA.
    pub(super) depth: i32,
    /// Offset from SP of the pushed return address; `None` if it is still in its register.
    pub(super) pushed: Option<i32>,
}

impl Stubs {
    /// The stubs of `image`; `None` if there are none, or if call frame information describes them.
    pub(super) fn of_image(image: &Image<'_>) -> Option<Stubs> {
        if image.arch().cpu != Cpu::Aarch64 {
            return None;
        }
        let section = image.section_header(".plt")?;
        let data = image.data_in(section.memory())?;
        let code = data.get(..usize::try_from(section.size).ok()?)?;
        // Instructions are little-endian even if data is big-endian.
        Some(Stubs {
            address: section.address,
            states: states(Bytes::new(code, backtrail_wire::Endian::Little)),
        })
    }

    /// Whether all of `code` lies in it.
    pub(super) fn holds(&self, code: &Range<u64>) -> bool {
        let end = self.address.saturating_add(self.states.len() as u64 * WORD);
        self.address <= code.start && code.end <= end
    }

    /// The instructions of `code`, by address, and the state before each.
    pub(super) fn states(&self, code: &Range<u64>) -> impl Iterator<Item = (u64, State)> {
        let index = |pc: u64| (pc.saturating_sub(self.address) / WORD) as usize;
        let (first, end) = (index(code.start), index(code.end).min(self.states.len()));
        let states = self.states.get(first..end).unwrap_or_default().iter().enumerate();
        states.map(move |(number, state)| (self.address + (first + number) as u64 * WORD, *state))
    }
}

/// The state before each instruction.
fn states(code: Bytes<'_>) -> Vec<State> {
    let entered = State { depth: 0, pushed: None };
    let mut state = entered;
    let mut left = false;
    let mut states = Vec::with_capacity(code.len() / WORD as usize);
    while let Ok(word) = code.u32(states.len() * WORD as usize) {
        // After a jump comes padding, which is never reached, and then the next entry.
        if left && word != NOP {
            (state, left) = (entered, false);
        }
        states.push(state);
        if word & 0xffc0_03e0 == 0xa980_03e0 {
            // stp Xt, Xt2, [sp, #imm7 * 8]!
            let pushed = -(((word << 10) as i32 >> 25) * 8);
            state.depth = state.depth.saturating_add(pushed);
            state.pushed = state.pushed.map(|at| at.saturating_add(pushed));
            for (register, place) in [(word & 31, 0), (word >> 10 & 31, 8)] {
                if register == LR.into() {
                    state.pushed = Some(place);
                }
            }
        } else if word & 0xffff_fc1f == 0xd61f_0000 {
            // br Xn
            left = true;
        }
    }
    states
}

impl State {
    /// Whether a rule has this state.
    pub(super) fn is(&self, rule: &Rule) -> bool {
        let cfa = rule.cfa.base == Base::Register(SP) && !rule.cfa.deref && rule.cfa.offset == self.depth;
        let ra = match self.pushed {
            None => rule.ra.base == Base::Register(LR) && !rule.ra.deref && rule.ra.offset == 0,
            Some(at) => {
                rule.ra.base == Base::Cfa
                    && rule.ra.deref
                    && i64::from(rule.ra.offset) == i64::from(at) - i64::from(self.depth)
            }
        };
        cfa && ra && rule.fp.is_none() && !rule.mangled_ra
    }
}
