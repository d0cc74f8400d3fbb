//! The frames of code whose compiler reports its frame size, such as HotSpot's.
//!
//! Such code has one frame from the end of its prologue on. Its instructions, followed in the order
//! of their addresses, show where the frame is not complete yet, where an epilogue has removed it,
//! and whether the prologue makes a frame of the reported size.

mod aarch64;
mod x86_64;

use std::collections::BTreeMap;

use backtrail_arch::{Arch, Cpu};
use backtrail_sframe::{Location, Rule};

/// Bytes of the frame record at the end of a frame: the frame pointer, and the return address.
const RECORD_BYTES: i64 = 16;
/// Limit of jump targets with an incomplete frame: there are a few per return.
const MOST_TARGETS: usize = 1 << 12;

/// A piece of compiled code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compiled<'c> {
    /// Its instructions.
    pub(crate) code: &'c [u8],
    /// The address of its first byte.
    pub(crate) start: u64,
    /// Bytes from the stack pointer to the CFA once the frame is complete.
    pub(crate) frame_bytes: u32,
    /// Address from which the frame is complete.
    pub(crate) complete: u64,
    /// A second entry, for loops that began in the interpreter.
    pub(crate) second_entry: Option<u64>,
}

/// The frame before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    /// Bytes from the stack pointer to the CFA; `None`: unknown.
    bytes: Option<i64>,
    /// Whether the caller's frame pointer is saved below the return address; on AArch64, with it.
    is_linked: bool,
    /// A register with a copy of the stack pointer, and the bytes from there to the CFA.
    copy: Option<(u32, i64)>,
}

/// Where an instruction leads.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// A known target of a jump that is no call.
    jump: Option<u64>,
    /// Whether the next instruction may follow it.
    goes_on: bool,
}

/// Instructions in the order of their addresses.
trait Instructions {
    /// The address of the next one.
    fn at(&self) -> u64;

    /// Decodes it, and has it change the frame. `None` at the end, and if it is not valid.
    fn step(&mut self, frame: &mut Frame, is_complete: bool) -> Option<Step>;
}

impl Compiled<'_> {
    /// The rule of the frame at `pc`. `None` if the instructions contradict the reported frame.
    pub(crate) fn rule(&self, arch: &Arch, pc: u64, is_return: bool) -> Option<Rule> {
        let frame = match arch.cpu {
            Cpu::X86_64 => self.frame_at(x86_64::Decoded::new(*self), x86_64::AT_ENTRY, pc, is_return),
            Cpu::Aarch64 => self.frame_at(aarch64::Words::new(*self), aarch64::AT_ENTRY, pc, is_return),
            _ => None,
        }?;
        let bytes = frame.bytes?;
        let cfa = Location::register(arch.sp.0, i32::try_from(bytes).ok()?);
        let saved = |distance: i64| Location::saved(-distance as i32);
        match frame.is_linked {
            true if bytes >= RECORD_BYTES => Some(Rule {
                fp: Some(saved(RECORD_BYTES)),
                ..Rule::new(cfa, saved(8))
            }),
            false if !arch.link_register && bytes >= 8 => Some(Rule::new(cfa, saved(8))),
            false if arch.link_register && bytes >= 0 && !is_return => {
                Some(Rule::new(cfa, Location::register(arch.ra.0, 0)))
            }
            _ => None,
        }
    }

    fn frame_at(
        &self,
        mut instructions: impl Instructions,
        at_entry: Frame,
        pc: u64,
        is_return: bool,
    ) -> Option<Frame> {
        let whole = Frame {
            bytes: Some(self.frame_bytes.into()),
            is_linked: true,
            copy: None,
        };
        let mut frame = at_entry;
        let mut is_complete = false;
        let mut targets: BTreeMap<u64, Frame> = BTreeMap::new();
        loop {
            let at = instructions.at();
            if at >= self.complete && !is_complete {
                // The frame differs from the reported one: nothing here can be relied on.
                let fits = at == self.complete && frame.bytes == whole.bytes && frame.is_linked;
                if !fits {
                    return None;
                }
                is_complete = true;
            }
            // A return address belongs to the call before it, not to other jumps to the same place.
            if at < pc || !is_return {
                if let Some(known) = targets.remove(&at) {
                    frame = known;
                }
                if is_complete && self.second_entry == Some(at) {
                    frame = at_entry;
                }
            }
            if at > pc {
                return None;
            }
            if at == pc {
                // The end of the code is no place in it.
                return (pc.wrapping_sub(self.start) < self.code.len() as u64).then_some(frame);
            }
            let step = instructions.step(&mut frame, is_complete)?;
            let target = step.jump.filter(|target| *target > at && frame != whole);
            if let Some(target) = target.filter(|_| targets.len() < MOST_TARGETS) {
                targets.insert(target, frame);
            }
            if !step.goes_on {
                frame = if is_complete { whole } else { at_entry };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_are_too_odd() {
        for (code, state) in crate::odd::pieces() {
            for arch in [&backtrail_arch::x86_64::ARCH, &backtrail_arch::aarch64::ARCH] {
                for (start, frame_bytes) in [(u64::MAX - 100, state), (0x1000, 8), (u64::MAX - 10, 16)] {
                    let odd = Compiled {
                        code: &code,
                        start,
                        frame_bytes,
                        complete: start,
                        second_entry: None,
                    };
                    let _ = odd.rule(arch, u64::from(state), false);
                    let _ = odd.rule(arch, start.wrapping_add(u64::from(state >> 25)), true);
                }
            }
        }
    }
}
