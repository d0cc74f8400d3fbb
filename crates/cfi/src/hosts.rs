//! The frames that all code which a program makes at run time may share: that of an interpreter
//! which such code jumps into, or one that such code leaves by jumps to the same place.

use std::hash::Hash;

use backtrail_arch::Arch;
use backtrail_sframe::Rule;
use rustc_hash::FxHashMap;

use crate::around::{CodeAround, Elsewhere};
use crate::instructions;
use crate::process_code::ProcessCode;
use crate::registers::is_plain;

/// Processes that are remembered; beyond this number all are forgotten.
const MOST_PROCESSES: usize = 1 << 10;

/// Places in a process that code is seen to jump to before it returns.
const MOST_EXITS: usize = 8;

/// Pieces of code that are seen to jump to one of them before it counts as shared.
const ENOUGH: usize = 4;

/// Bytes between these and it. Functions that are shorter have returns of their own.
const LEAST_DISTANCE: u64 = 64 << 10;

/// The frame of a process's code, where the stack pointer is known: at this address, by this rule.
pub(crate) type Host<P> = (u64, P, Rule);

/// Shared frames by process, which may become another program.
#[derive(Debug)]
pub(crate) struct Hosts<P> {
    known: FxHashMap<u32, Host<P>>,
    /// Addresses that code jumps to before it returns, and where that code was.
    exits: FxHashMap<u32, Vec<(u64, Vec<u64>)>>,
}

impl<P> Default for Hosts<P> {
    fn default() -> Self {
        Hosts {
            known: FxHashMap::default(),
            exits: FxHashMap::default(),
        }
    }
}

impl<P: Copy + Eq + Hash> Hosts<P> {
    /// The rule of a process's shared frame, if the code that showed it is still there.
    pub(crate) fn rule(&self, process: &impl ProcessCode<Place = P>) -> Option<Rule> {
        let (at, place, rule) = *self.known.get(&process.process())?;
        let mapping = process.find(at)?;
        (process.place(mapping, at) == place).then_some(rule)
    }

    /// Remembers where code jumps into an interpreter.
    pub(crate) fn add(&mut self, process: &impl ProcessCode<Place = P>, at: u64, rule: Rule) {
        let Some(mapping) = process.find(at) else { return };
        if self.known.len() >= MOST_PROCESSES {
            self.known.clear();
        }
        self.known
            .insert(process.process(), (at, process.place(mapping, at), rule));
    }

    /// Remembers where the code at `pc`, whose frame has this rule, jumps before it returns.
    pub(crate) fn learn(
        &mut self,
        process: &impl ProcessCode<Place = P>,
        (pc, rule): (u64, &Rule),
        code: &instructions::Code<'_>,
    ) {
        let arch = process.arch();
        if !has_plain_frame(arch, rule) || self.rule(process).is_some() {
            return;
        }
        let exit = instructions::exit(arch, code, pc, &Elsewhere::new(process));
        let Some(at) = exit.filter(|at| at.abs_diff(pc) >= LEAST_DISTANCE) else {
            return;
        };
        if self.exits.len() >= MOST_PROCESSES {
            self.exits.clear();
        }
        let exits = self.exits.entry(process.process()).or_default();
        let index = exits.iter().position(|(known, _)| *known == at);
        if index.is_none() && exits.len() >= MOST_EXITS {
            exits.remove(0);
        }
        let index = index.unwrap_or_else(|| {
            exits.push((at, Vec::new()));
            exits.len() - 1
        });
        let Some((_, from)) = exits.get_mut(index) else { return };
        if !from.contains(&pc) {
            from.push(pc);
        }
        if from.len() < ENOUGH {
            return;
        }
        self.exits.remove(&process.process());
        let shown = process.find(at).and_then(|mapping| {
            let around = CodeAround::new(process, mapping, at);
            instructions::rule(arch, &around.code(), at, false, &Elsewhere::new(process))
        });
        if let Some(rule) = shown.filter(|rule| has_plain_frame(arch, rule)) {
            self.add(process, at, rule);
        }
    }
}

/// Whether the frame ends a known number of bytes above the stack pointer, and has more than the
/// return address.
fn has_plain_frame(arch: &Arch, rule: &Rule) -> bool {
    rule.cfa.offset > arch.pointer_bytes.into() && is_plain(arch, rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::CodeProofs;
    use backtrail_arch::x86_64::ARCH;
    use backtrail_sframe::Location;
    use backtrail_unwind::Uncovered;
    use std::ops::Range;

    use crate::process_code::Region;
    use crate::registers::FunctionRule;

    const START: u64 = 0x10_0000;
    /// `add rsp, 0x18; pop rbx; ret`
    const EXIT: [u8; 6] = [0x48, 0x83, 0xc4, 0x18, 0x5b, 0xc3];
    /// Bytes from the exit to the code that jumps to it.
    const FAR: u64 = 0x2_0000;

    /// Code made at run time that begins with [`EXIT`].
    struct Made {
        code: Vec<u8>,
    }

    impl Made {
        /// Code with jumps to the exit at these distances from it.
        fn new(jumps: impl IntoIterator<Item = u64>) -> Made {
            let mut code = vec![0x90; 2 * FAR as usize];
            code[..EXIT.len()].copy_from_slice(&EXIT);
            for at in jumps {
                let distance = -(at as i32 + 5);
                code[at as usize] = 0xe9;
                code[at as usize + 1..at as usize + 5].copy_from_slice(&distance.to_le_bytes());
            }
            Made { code }
        }

        fn put(&mut self, at: u64, code: &[u8]) {
            self.code[at as usize..at as usize + code.len()].copy_from_slice(code);
        }
    }

    impl ProcessCode for Made {
        /// Whether it is the code that jumps.
        type Mapping = bool;
        type Place = u64;

        fn arch(&self) -> &'static Arch {
            &ARCH
        }

        fn process(&self) -> u32 {
            1
        }

        fn find(&self, address: u64) -> Option<bool> {
            let range = START..START + self.code.len() as u64;
            range.contains(&address).then_some(address >= START + 0x1000)
        }

        fn range(&self, jumps: bool) -> Range<u64> {
            match jumps {
                true => START + 0x1000..START + self.code.len() as u64,
                false => START..START + 0x1000,
            }
        }

        fn place(&self, _: bool, address: u64) -> u64 {
            address
        }

        fn is_file(&self, _: bool) -> bool {
            false
        }

        fn is_same_file(&self, one: bool, other: bool) -> bool {
            one == other
        }

        fn has_table(&self, _: bool) -> bool {
            false
        }

        fn function_at(&self, _: bool, _: u64) -> Option<Range<u64>> {
            None
        }

        fn described_function(&self, _: bool, _: u64) -> Option<Range<u64>> {
            None
        }

        fn has_call_frames(&self, _: bool) -> bool {
            false
        }

        fn starts(&self, _: bool, _: Range<u64>) -> Vec<u64> {
            Vec::new()
        }

        fn objects(&self, _: bool, _: &str) -> Vec<(String, u64)> {
            Vec::new()
        }

        fn is_described(&self, _: bool, _: u64) -> bool {
            false
        }

        fn rule(&self, _: bool, _: u64) -> Option<FunctionRule> {
            None
        }

        fn regions(&self) -> Vec<Region> {
            Vec::new()
        }

        fn read(&self, start: u64, bytes: &mut [u8]) -> usize {
            let code = start
                .checked_sub(START)
                .and_then(|offset| self.code.get(offset as usize..));
            let code = code.unwrap_or_default();
            let read = code.len().min(bytes.len());
            bytes[..read].copy_from_slice(&code[..read]);
            read
        }
    }

    fn leaves(bytes: i32) -> Rule {
        Rule::new(Location::register(ARCH.sp.0, bytes), Location::saved(-8))
    }

    /// The rules found one after another for code at these distances from the exit.
    fn shown(code: &Made, at: impl IntoIterator<Item = u64>) -> Vec<Option<Rule>> {
        let proofs = CodeProofs::default();
        let found = at
            .into_iter()
            .map(|at| match proofs.uncovered(code, START + at, false) {
                Uncovered::Rule(rule) => Some(rule),
                _ => None,
            });
        found.collect()
    }

    #[test]
    fn code_that_leaves_by_one_exit_shares_its_frame() {
        let exits = [0, 1, 2, 3].map(|index| FAR + index * 0x2000);
        let lost = FAR + 0x1_0000;
        let mut code = Made::new(exits);
        // push rax; jmp rax
        code.put(lost, &[0x50, 0xff, 0xe0]);
        let all = |code: &Made, seen: usize| shown(code, exits[..seen].iter().copied().chain([lost])).pop().flatten();
        assert_eq!(all(&code, 3), None, "three pieces of code may be one function's");
        assert_eq!(all(&code, 4), Some(leaves(32)));
        assert_eq!(shown(&code, exits), [Some(leaves(40)); 4]);
        // The exit of one function, which is near.
        let near = [0, 1, 2, 3].map(|index| 0x2000 + index * 0x2000);
        let mut code = Made::new(near);
        code.put(lost, &[0x50, 0xff, 0xe0]);
        assert_eq!(shown(&code, near.into_iter().chain([lost])).pop().flatten(), None);
        // It removes no frame: `nop; ret`.
        let mut code = Made::new(exits);
        code.put(lost, &[0x50, 0xff, 0xe0]);
        code.put(0, &[0x90, 0x90, 0x90, 0x90, 0x90]);
        assert_eq!(all(&code, 4), None);
    }
}
