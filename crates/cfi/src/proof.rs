//! Code that no table row describes: how to leave its frames, and how to verify that the values
//! found there are return addresses.
//!
//! The live sampler and the readers of a process or a core share this code; they differ in their
//! [`ProcessCode`].

use std::cell::RefCell;
use std::hash::Hash;

use backtrail_arch::{Arch, Call, Cpu, Register, Registers};
use backtrail_sframe::{Base, Location, Rule};
use backtrail_unwind::{OnTop, Uncovered};
use rustc_hash::FxHashMap;

use crate::announced::{Function, Made};
use crate::around::{CodeAround, Elsewhere, read};
use crate::code;
use crate::erlang;
use crate::fixed;
use crate::haskell::Haskell;
use crate::hosts::Hosts;
use crate::hotspot::{HotSpot, JavaFrame};
use crate::instructions;
use crate::lisp;
pub use crate::process_code::{ProcessCode, Region};
use crate::pushed::Pushed;
pub use crate::tail_calls::stub_target;
use crate::tail_calls::{function_at, jumps, may_lead_to};
use crate::v8::V8;
use crate::{records, roots};

/// Answers that are cached; beyond this number the cache is cleared.
const MOST_ANSWERS: usize = 1 << 16;

/// Bytes of the longest function that is checked for the registers it preserves.
const LONGEST_HELPER: u64 = 32 << 10;

/// Bytes of the longest indirect call that the last bytes of a direct call can hide.
const SHORT_CALL: usize = 4;

/// Cached results about code, keyed by the place of an address.
#[derive(Debug)]
pub struct CodeProofs<P> {
    frames: RefCell<FxHashMap<(P, bool), Uncovered>>,
    calls: RefCell<FxHashMap<P, Option<Call>>>,
    pushed: RefCell<Pushed>,
    haskell: RefCell<Haskell<P>>,
    hotspot: RefCell<HotSpot<P>>,
    v8: RefCell<V8<P>>,
    endless: RefCell<FxHashMap<P, bool>>,
    kept: RefCell<FxHashMap<(P, P, Register), bool>>,
    below: RefCell<FxHashMap<P, Option<u64>>>,
    led: RefCell<FxHashMap<(P, P), bool>>,
    hosts: RefCell<Hosts<P>>,
    shared: RefCell<FxHashMap<(P, bool), Option<Rule>>>,
    sizes: RefCell<FxHashMap<P, Option<Rule>>>,
}

impl<P> Default for CodeProofs<P> {
    fn default() -> Self {
        CodeProofs {
            frames: RefCell::default(),
            calls: RefCell::default(),
            pushed: RefCell::default(),
            haskell: RefCell::default(),
            hotspot: RefCell::default(),
            v8: RefCell::default(),
            endless: RefCell::default(),
            kept: RefCell::default(),
            below: RefCell::default(),
            led: RefCell::default(),
            hosts: RefCell::default(),
            shared: RefCell::default(),
            sizes: RefCell::default(),
        }
    }
}

impl<P: Copy + Eq + Hash> CodeProofs<P> {
    /// Returns how to leave the frame at `pc`: by the instructions there, otherwise by frame
    /// pointers.
    pub fn uncovered(&self, process: &impl ProcessCode<Place = P>, pc: u64, is_return: bool) -> Uncovered {
        let Some(mapping) = process.find(pc.wrapping_sub(is_return.into())) else {
            return Uncovered::Unknown;
        };
        // Such an address is known only when the walk before this one has come to it.
        if is_return && !process.is_file(mapping) && self.pushed.borrow().ends_stack(process, pc) {
            return Uncovered::Outermost;
        }
        let shown = self.shown(process, mapping, pc, is_return);
        match shown {
            Uncovered::FramePointer | Uncovered::Unknown if !process.is_file(mapping) => self
                .in_interpreter(process, mapping, pc, is_return)
                .map_or(shown, Uncovered::Rule),
            _ => shown,
        }
    }

    /// The function with the code at `address`, in memory without a file, if the run-time system
    /// that made it publishes names.
    pub fn function(&self, process: &impl ProcessCode<Place = P>, address: u64) -> Option<Made> {
        let java = self.hotspot.borrow_mut().function(process, address);
        java.or_else(|| self.v8.borrow_mut().function(process, address))
    }

    /// The call that returns to `ra`, in such a function, if others were inlined there.
    pub fn inlined(&self, process: &impl ProcessCode<Place = P>, ra: u64) -> Option<Function> {
        self.hotspot.borrow_mut().inlined(process, ra)
    }

    /// The rule of code made at run time that goes on at addresses which are not known, in a
    /// process where other such code has shown the frame that all of it shares ([`Hosts`]).
    fn in_interpreter<C: ProcessCode<Place = P>>(
        &self,
        process: &C,
        mapping: C::Mapping,
        pc: u64,
        is_return: bool,
    ) -> Option<Rule> {
        let rule = self.hosts.borrow().rule(process)?;
        remembered(&self.shared, (process.place(mapping, pc), is_return), || {
            let (arch, around) = (process.arch(), CodeAround::new(process, mapping, pc));
            let below = instructions::dispatched(arch, &around.code(), pc, &Elsewhere::new(process))?;
            let offset = rule.cfa.offset.checked_add(below)?;
            Some(Rule {
                cfa: Location { offset, ..rule.cfa },
                ..rule
            })
        })
    }

    /// What the instructions of the frame at `pc` show.
    fn shown<C: ProcessCode<Place = P>>(
        &self,
        process: &C,
        mapping: C::Mapping,
        pc: u64,
        is_return: bool,
    ) -> Uncovered {
        let is_described = || process.is_described(mapping, pc.wrapping_sub(is_return.into()));
        remembered(&self.frames, (process.place(mapping, pc), is_return), || {
            // Call frame information describes this code, though table rows can't express it: the
            // instructions can't say more.
            if is_described() {
                return Uncovered::Unknown;
            }
            if let Some(rule) = self.haskell.borrow_mut().frame(process, mapping, (pc, is_return)) {
                return Uncovered::Rule(rule);
            }
            let java = match process.is_file(mapping) {
                true => None,
                false => self.hotspot.borrow_mut().frame(process, pc, is_return),
            };
            let interpreted = match java {
                Some(JavaFrame::Compiled(rule)) => return Uncovered::Rule(rule),
                Some(JavaFrame::Interpreted(rule)) if is_return => return Uncovered::Rule(rule),
                Some(JavaFrame::Interpreted(rule)) => Some(rule),
                None => None,
            };
            let (arch, around) = (process.arch(), CodeAround::new(process, mapping, pc));
            let (code, elsewhere) = (around.code(), Elsewhere::new(process));
            if arch.cpu == Cpu::Aarch64 {
                return match (records::uncovered(&code, pc, is_return), interpreted) {
                    (Uncovered::FramePointer, Some(interpreted)) => Uncovered::Linked(interpreted),
                    (shown, _) => shown,
                };
            }
            let is_unpacked = is_return && arch.cpu == Cpu::X86_64 && !process.is_file(mapping);
            if is_unpacked && roots::is_entry(code.before(pc)) {
                return Uncovered::Outermost;
            }
            if !is_return && arch.cpu == Cpu::X86_64 && instructions::has_popped_return_address(&code, pc) {
                return Uncovered::Unknown;
            }
            let read = |at: u64, bytes: &mut [u8]| process.read(at, bytes);
            if !is_return && let Some(rule) = lisp::in_call(arch, &code, pc, read) {
                return Uncovered::Rule(rule);
            }
            let by_fp = |rule: &Rule| rule.cfa.base == Base::Register(arch.fp.0);
            // After a call that does not return, the code at `pc` is another function's.
            let has_left_frame =
                || !(is_return && code.ends(pc)) && instructions::has_left_frame(arch, &code, pc, &elsewhere);
            let is_made = interpreted.is_none() && !process.is_file(mapping);
            if is_made && self.pushed.borrow_mut().is_erlang(process) {
                return Uncovered::Tagged {
                    stack: erlang::stack(&code, pc),
                    rule: (!is_return)
                        .then(|| instructions::rule(arch, &code, pc, is_return, &elsewhere))
                        .flatten(),
                    heap: erlang::HEAP,
                };
            }
            let host = || {
                is_made
                    .then(|| instructions::host(arch, &code, pc, &elsewhere))
                    .flatten()
            };
            let rule = match is_made {
                true => instructions::rule_at_run_time(arch, &code, pc, is_return, &elsewhere),
                false => fixed::rule(arch, &code, pc, |at| elsewhere.preceding(at))
                    .or_else(|| instructions::rule(arch, &code, pc, is_return, &elsewhere)),
            };
            if is_made && let Some((at, rule)) = elsewhere.interpreter.get() {
                self.hosts.borrow_mut().add(process, at, rule);
            } else if is_made && let Some(rule) = &rule {
                self.hosts.borrow_mut().learn(process, (pc, rule), &code);
            }
            match (rule, interpreted) {
                (Some(rule), Some(interpreted)) if by_fp(&rule) => Uncovered::Rule(interpreted),
                (Some(rule), _) => Uncovered::Rule(rule),
                (None, Some(interpreted)) => Uncovered::Linked(interpreted),
                (None, None) if let Some(host) = host() => Uncovered::Hosted {
                    function: (host.function.start, host.function.end),
                    rule: host.rule,
                },
                (None, None) if has_left_frame() => Uncovered::Unknown,
                (None, None) => match lisp::in_function(arch, &code, pc) {
                    Some(rule) if !is_return => Uncovered::Rule(rule),
                    _ => Uncovered::FramePointer,
                },
            }
        })
    }

    /// Whether the code from `ra` on has no way to a return.
    pub fn never_returns(&self, process: &impl ProcessCode<Place = P>, ra: u64) -> bool {
        let Some(mapping) = process.find(ra.wrapping_sub(1)) else {
            return false;
        };
        remembered(&self.endless, process.place(mapping, ra), || {
            let around = CodeAround::new(process, mapping, ra);
            !instructions::may_return(process.arch(), &around.code(), ra)
        })
    }

    /// Whether `ra` is the start of a function, and no call before it can have led to `callee`,
    /// which returns there: `callee` is the first function of a stack, whose maker put a function
    /// there to run next.
    pub fn is_made_up(&self, process: &impl ProcessCode<Place = P>, ra: u64, callee: u64) -> bool {
        let Some(mapping) = process.find(ra).filter(|mapping| process.is_file(*mapping)) else {
            return false;
        };
        let is_start = || {
            let described = process.described_function(mapping, ra);
            described.is_some_and(|function| function.start == ra)
                || !process.starts(mapping, ra..ra.saturating_add(1)).is_empty()
                || stub_target(process, ra).is_some()
        };
        !self.is_called(process, ra, callee) && is_start()
    }

    /// Classifies `word`, on top of the stack of code interrupted at `pc`: it is the return address
    /// if it follows a call of code that has not touched the stack from the call's target to `pc`,
    /// or an indirect call and `pc` lies in a stub. On machines with a link register it is that.
    /// Code made at run time that uses the `frame` bytes below its frame pointer has a frame, and
    /// `word` was left there by an earlier call.
    pub fn on_top(&self, process: &impl ProcessCode<Place = P>, word: u64, pc: u64, frame: u64) -> OnTop {
        let Some(mapping) = process.find(word.wrapping_sub(1)) else {
            return OnTop::Other;
        };
        let (Some(call), Some(callee)) = (self.call_before(process, mapping, word), process.find(pc)) else {
            return OnTop::Other;
        };
        let arch = process.arch();
        if arch.link_register {
            // Calls of the code's own leave addresses in itself: what follows a call elsewhere is
            // where this code returns to, whose frame the frame pointer would skip.
            let is_other = process.is_file(callee) && process.is_described(mapping, word.wrapping_sub(1));
            return if is_other { OnTop::Unclear } else { OnTop::Other };
        }
        let around = CodeAround::new(process, callee, pc);
        let code = around.code();
        let is_entered = match call {
            Call::Direct(target) => instructions::is_at_entry(arch, &code, target, pc),
            Call::Indirect => instructions::is_in_stub(arch, &code, pc),
        };
        let below = || {
            remembered(&self.below, process.place(callee, pc), || {
                instructions::below_frame_pointer(arch, &code, pc, &Elsewhere::new(process))
            })
        };
        let uses_frame = || !process.is_file(callee) && below().is_some_and(|below| below <= frame);
        match is_entered {
            true => OnTop::ReturnAddress,
            false if uses_frame() => OnTop::Other,
            false => OnTop::Unclear,
        }
    }

    fn call_before<C: ProcessCode<Place = P>>(&self, process: &C, mapping: C::Mapping, ra: u64) -> Option<Call> {
        // A file has another address in another process: the cache stores the call's distance.
        let call = remembered(&self.calls, process.place(mapping, ra), || {
            let mut before = [0; Arch::LONGEST_CALL];
            let start = ra.saturating_sub(before.len() as u64).max(process.range(mapping).start);
            let len = (ra - start) as usize;
            let read = process.read(start, &mut before[..len]);
            let call = process.arch().call_before(ra, &before[..read]).filter(|_| read == len);
            let call = match call {
                // The end of another instruction and a short indirect call together look like a
                // direct call to an unmapped address.
                Some(Call::Direct(target)) if process.find(target).is_none() => process
                    .arch()
                    .call_before(ra, &before[len.saturating_sub(SHORT_CALL)..len]),
                call => call,
            };
            call.map(|call| moved(call, ra.wrapping_neg()))
        });
        call.map(|call| moved(call, ra))
    }

    /// Whether the function at `pc`, called from `ra`, never changes `register`.
    pub fn keeps(&self, process: &impl ProcessCode<Place = P>, pc: u64, ra: u64, register: Register) -> bool {
        let (Some(caller), Some(mapping)) = (process.find(ra.wrapping_sub(1)), process.find(pc)) else {
            return false;
        };
        let entry = match self.call_before(process, caller, ra) {
            Some(Call::Direct(entry)) => Some(entry),
            Some(Call::Indirect) => function_at(process, pc).map(|function| function.start),
            None => None,
        };
        let Some(entry) = entry else { return false };
        let places = (process.place(mapping, entry), process.place(mapping, pc), register);
        remembered(&self.kept, places, || {
            let range = process.range(mapping);
            let start = entry.saturating_sub(LONGEST_HELPER / 4).max(range.start);
            let bytes = read(process, start..entry.saturating_add(LONGEST_HELPER).min(range.end));
            let code = instructions::Code {
                bytes: &bytes,
                start,
                functions: &[],
            };
            instructions::keeps(process.arch(), &code, entry, pc, register)
        })
    }

    /// The caller of a frame whose frame pointer is lost, if call frame information counts from it
    /// at the call at `address`, but the code shows how far the frame reaches from the stack
    /// pointer. `word` reads the stack.
    pub fn caller_by_size(
        &self,
        process: &impl ProcessCode<Place = P>,
        callee: &Registers,
        address: u64,
        mut word: impl FnMut(u64) -> Option<u64>,
    ) -> Option<Registers> {
        let arch = process.arch();
        let sp = callee.get(arch.sp).filter(|_| callee.get(arch.fp).is_none())?;
        let mapping = process.find(address)?;
        let rule = remembered(&self.sizes, process.place(mapping, address), || {
            rule_by_size(process, mapping, address)
        })?;
        let saved = |location: Location| match location == Location::saved(location.offset) {
            true => Some(i64::from(location.offset)),
            false => None,
        };
        let cfa = sp.checked_add_signed(rule.cfa.offset.into())?;
        let mut caller = Registers::new(word(cfa.checked_add_signed(saved(rule.ra)?)?)?);
        caller.set(arch.sp, cfa);
        if let Some(fp) = rule
            .fp
            .and_then(saved)
            .and_then(|offset| word(cfa.checked_add_signed(offset)?))
        {
            caller.set(arch.fp, fp);
        }
        Some(caller)
    }

    /// Whether `ra` follows a call that leads to code in this range: of that code, or of a function
    /// that jumps there, itself or through a linkage stub.
    pub fn calls_into(&self, process: &impl ProcessCode<Place = P>, ra: u64, function: (u64, u64)) -> bool {
        let Some(mapping) = process.find(ra.wrapping_sub(1)) else {
            return false;
        };
        let Some(Call::Direct(target)) = self.call_before(process, mapping, ra) else {
            return false;
        };
        let place = |mapping, at| process.place(mapping, at);
        let Some((callee, into)) = process.find(target).zip(process.find(function.0)) else {
            return false;
        };
        let places = (place(callee, target), place(into, function.0));
        remembered(&self.led, places, || {
            let into = function.0..function.1;
            let target = stub_target(process, target).unwrap_or(target);
            let is_there = |target: u64| into.contains(&target);
            is_there(target) || function_at(process, target).is_some_and(|called| jumps(process, called, is_there))
        })
    }

    /// Whether `ra` follows any call at all.
    pub fn follows_call(&self, process: &impl ProcessCode<Place = P>, ra: u64) -> bool {
        let mapping = process.find(ra.wrapping_sub(1));
        mapping.is_some_and(|mapping| self.call_before(process, mapping, ra).is_some())
    }

    /// Whether `ra` follows a call that can lead to `callee`, or is an address that a run-time
    /// system pushes itself.
    pub fn is_called(&self, process: &impl ProcessCode<Place = P>, ra: u64, callee: u64) -> bool {
        let Some(mapping) = process.find(ra.wrapping_sub(1)) else {
            return false;
        };
        let call = self.call_before(process, mapping, ra);
        match call {
            None if continues_frame(process, ra) => true,
            None if process.is_file(mapping) => false,
            None => self.pushed.borrow_mut().has(process, ra) || self.hotspot.borrow_mut().is_deoptimized(process, ra),
            Some(Call::Indirect) => true,
            Some(Call::Direct(target)) => may_lead_to(process, target, callee),
        }
    }
}

/// Whether a function begins at `ra` that only continues an existing frame.
fn continues_frame(process: &impl ProcessCode, ra: u64) -> bool {
    const FIRST: u64 = 8;
    let start = ra.saturating_sub(instructions::BYTES_BEFORE_START as u64);
    let bytes = read(process, start..ra.saturating_add(FIRST));
    instructions::continues_frame(process.arch(), &bytes, ra)
}

/// Whether the code before `pc` is the system call that creates a thread, which returns twice.
pub fn makes_thread(process: &impl ProcessCode, pc: u64) -> bool {
    /// `mov eax, n; syscall` with the numbers of `clone` and `clone3`.
    const CALLS: [[u8; 7]; 2] = [[0xb8, 56, 0, 0, 0, 0x0f, 0x05], [0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05]];
    let mut before = [0; 7];
    let read = process.read(pc.saturating_sub(before.len() as u64), &mut before);
    process.arch().cpu == Cpu::X86_64 && read == before.len() && CALLS.contains(&before)
}

/// The call with its target moved `by` bytes further on.
fn moved(call: Call, by: u64) -> Call {
    match call {
        Call::Direct(target) => Call::Direct(target.wrapping_add(by)),
        Call::Indirect => Call::Indirect,
    }
}

/// The rule at the call at `address` that counts from the stack pointer, as the function's
/// instructions show it, if call frame information counts from the frame pointer.
fn rule_by_size<C: ProcessCode>(process: &C, mapping: C::Mapping, address: u64) -> Option<Rule> {
    let arch = process.arch();
    let said = process.rule(mapping, address).filter(|_| arch.cpu == Cpu::X86_64)?;
    let function = process.described_function(mapping, address)?;
    let is_by_fp = said.rule.cfa.base == Base::Register(arch.fp.0) && said.is_called;
    if !is_by_fp || function.end.checked_sub(function.start)? > LONGEST_HELPER {
        return None;
    }
    let bytes = read(process, function.clone());
    code::rule_of_calls(&code::Input {
        range: function.clone(),
        bytes: &bytes,
        entries: &[function.start],
        convention: code::Convention::Compiled,
    })
}

fn remembered<K: Eq + Hash, T: Copy>(answers: &RefCell<FxHashMap<K, T>>, place: K, ask: impl FnOnce() -> T) -> T {
    if let Some(&known) = answers.borrow().get(&place) {
        return known;
    }
    let answer = ask();
    let mut answers = answers.borrow_mut();
    if answers.len() >= MOST_ANSWERS {
        answers.clear();
    }
    answers.insert(place, answer);
    answer
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::registers::FunctionRule;
    use backtrail_arch::x86_64::ARCH;

    const START: u64 = 0x1000;
    /// The called function's description ends here, but its code continues.
    const DESCRIBED: u64 = START + 4;
    const CALLER: u64 = 0x1100;
    /// `call START`, encoded at [`CALLER`].
    const CALL: [u8; 5] = [0xe8, 0xfb, 0xfe, 0xff, 0xff];
    const RA: u64 = CALLER + CALL.len() as u64;

    /// A file whose only function with rows begins at [`START`], whether call frame information
    /// describes that function, instead of it several functions, and whether it is a file at all.
    /// [`INTERPRETER`] is described if the file has any other function.
    struct OneFunction(Vec<u8>, bool, Vec<Range<u64>>, bool);

    const INTERPRETER: Range<u64> = START + 0x180..START + 0x180 + (16 << 10);

    impl OneFunction {
        fn new(code: &[u8]) -> OneFunction {
            let mut bytes = vec![0x90; 0x200];
            bytes[..code.len()].copy_from_slice(code);
            let caller = (CALLER - START) as usize;
            bytes[caller..caller + CALL.len()].copy_from_slice(&CALL);
            OneFunction(bytes, true, Vec::new(), true)
        }
    }

    impl ProcessCode for OneFunction {
        type Mapping = ();
        type Place = u64;

        fn arch(&self) -> &'static Arch {
            &ARCH
        }

        fn process(&self) -> u32 {
            1
        }

        fn find(&self, address: u64) -> Option<()> {
            self.range(()).contains(&address).then_some(())
        }

        fn range(&self, (): ()) -> Range<u64> {
            START..START + self.0.len() as u64
        }

        fn place(&self, (): (), address: u64) -> u64 {
            address
        }

        fn is_file(&self, (): ()) -> bool {
            self.3
        }

        fn is_same_file(&self, (): (), (): ()) -> bool {
            true
        }

        fn has_table(&self, (): ()) -> bool {
            true
        }

        fn function_at(&self, (): (), address: u64) -> Option<Range<u64>> {
            let only = START..DESCRIBED;
            let all = if self.2.is_empty() {
                std::slice::from_ref(&only)
            } else {
                &self.2
            };
            all.iter().find(|function| function.contains(&address)).cloned()
        }

        fn described_function(&self, (): (), address: u64) -> Option<Range<u64>> {
            self.function_at((), address).filter(|_| self.1)
        }

        fn has_call_frames(&self, (): ()) -> bool {
            true
        }

        fn starts(&self, (): (), _range: Range<u64>) -> Vec<u64> {
            Vec::new()
        }

        fn objects(&self, (): (), _prefix: &str) -> Vec<(String, u64)> {
            Vec::new()
        }

        fn is_described(&self, (): (), address: u64) -> bool {
            self.1 && self.function_at((), address).is_some()
        }

        fn rule(&self, (): (), address: u64) -> Option<FunctionRule> {
            let is_there = !self.2.is_empty() && INTERPRETER.contains(&address);
            is_there.then(|| FunctionRule {
                rule: Rule::new(Location::register(ARCH.sp.0, 160), Location::saved(-8)),
                function: INTERPRETER,
                is_called: true,
            })
        }

        fn read(&self, start: u64, bytes: &mut [u8]) -> usize {
            let offset = start.checked_sub(START);
            let held = offset
                .and_then(|offset| self.0.get(offset as usize..))
                .unwrap_or_default();
            let len = held.len().min(bytes.len());
            bytes[..len].copy_from_slice(&held[..len]);
            len
        }

        fn regions(&self) -> Vec<Region> {
            Vec::new()
        }
    }

    #[test]
    fn a_function_goes_on_behind_its_description() {
        let is_called = |code: &[u8], callee: u64| CodeProofs::default().is_called(&OneFunction::new(code), RA, callee);
        // mov eax, 56; nop; syscall; ret. Only the first four bytes are described.
        let clone = [0xb8, 56, 0, 0, 0, 0x90, 0x0f, 0x05, 0xc3];
        assert!(is_called(&clone, START) && is_called(&clone, START + 8));
        assert!(!is_called(&clone, START + 9), "after the return");
        // push rax; nop; nop; nop; nop: its frame would be missing.
        assert!(!is_called(&[0x50], START + 5));
        assert!(
            !CodeProofs::default().is_called(&OneFunction::new(&clone), RA + 1, START),
            "no call is before it"
        );
    }

    #[test]
    fn rows_that_were_read_from_code_do_not_say_where_a_function_ends() {
        // push rbp; mov rbp, rsp; call. Nothing after the call is understood.
        let mut code = OneFunction::new(&[0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0]);
        assert!(!CodeProofs::default().is_called(&code, RA, START + 9));
        code.1 = false;
        assert!(CodeProofs::default().is_called(&code, RA, START + 9));
        assert!(
            !CodeProofs::default().is_called(&code, RA, START - 1),
            "what lies before is another function"
        );
    }

    #[test]
    fn tail_calls_lead_through_another_function() {
        // The first function jumps past the first byte of the second one, which jumps into the
        // third one.
        let mut code = OneFunction::new(&[0xe9, 0x3c, 0, 0, 0]);
        code.0[0x41..0x46].copy_from_slice(&[0xe9, 0x3b, 0, 0, 0]);
        let function = |start, end| START + start..START + end;
        code.2 = vec![function(0, 0x10), function(0x40, 0x70), function(0x80, 0x90)];
        let is_called = |code: &OneFunction| CodeProofs::default().is_called(code, RA, START + 0x88);
        assert!(is_called(&code));
        code.0[1] = 0x5b;
        assert!(!is_called(&code), "nobody enters a function in its middle");
        code.0[1] = 0x3c;
        // mov eax, n: with the bytes of such a jump.
        code.0[..6].copy_from_slice(&[0xb8, 0xe9, 0x3b, 0, 0, 0]);
        assert!(!is_called(&code), "these are another instruction's bytes");
        code.0[..6].copy_from_slice(&[0xe9, 0x3c, 0, 0, 0, 0x90]);
        code.0[0x41] = 0x90;
        assert!(!is_called(&code), "the second function goes nowhere");
        // push rbx; pop rbx; jmp rax
        code.0[..4].copy_from_slice(&[0x53, 0x5b, 0xff, 0xe0]);
        assert!(is_called(&code), "such a call leads anywhere");
        code.0[1] = 0x90;
        assert!(!is_called(&code), "its frame is missing");
    }

    /// As from Rust's `__rust_dealloc` to musl's `__libc_free`.
    #[test]
    fn tail_calls_lead_through_many_functions() {
        let mut code = OneFunction::new(&[0xe9, 0x1b, 0, 0, 0]);
        code.0[0x20..0x25].copy_from_slice(&[0xe9, 0x1b, 0, 0, 0]);
        code.0[0x40..0x45].copy_from_slice(&[0xe9, 0x3b, 0, 0, 0]);
        let function = |start, end| START + start..START + end;
        code.2 = vec![
            function(0, 0x10),
            function(0x20, 0x30),
            function(0x40, 0x50),
            function(0x80, 0x90),
        ];
        let is_called = |code: &OneFunction| CodeProofs::default().is_called(code, RA, START + 0x88);
        assert!(is_called(&code));
        code.0[0x41] = 0x5b;
        assert!(!is_called(&code), "the last jump leads elsewhere");
        // push rbx; pop rbx; jmp rax
        code.0[0x40..0x44].copy_from_slice(&[0x53, 0x5b, 0xff, 0xe0]);
        assert!(is_called(&code), "such a call leads anywhere");
        // push rbx; jmp 1f; 0: pop rbx; jmp rax; 1: jmp 0b
        code.0[0x40..0x48].copy_from_slice(&[0x53, 0xeb, 0x03, 0x5b, 0xff, 0xe0, 0xeb, 0xfb]);
        assert!(is_called(&code), "after a short jump");
        code.0[0x20] = 0xc3;
        assert!(!is_called(&code), "the second function returns");
    }

    #[test]
    fn what_an_earlier_call_left_on_top_is_no_return_address() {
        // nop; mov [rbp - 0x58], r9; jmp to the store: no way leads to a return.
        let mut code = OneFunction::new(&[0x90, 0x4c, 0x89, 0x4d, 0xa8, 0xeb, 0xfa]);
        let caller = (CALLER - START) as usize;
        // call START + 7
        code.0[caller..caller + 5].copy_from_slice(&[0xe8, 0x02, 0xff, 0xff, 0xff]);
        let on_top = |code: &OneFunction, frame| CodeProofs::default().on_top(code, RA, START + 1, frame);
        assert_eq!(on_top(&code, 0x60), OnTop::Unclear, "files describe their code");
        code.3 = false;
        assert_eq!(on_top(&code, 0x60), OnTop::Other);
        assert_eq!(
            on_top(&code, 0x50),
            OnTop::Unclear,
            "the frame pointer is another function's"
        );
        // mov rbp, rsp: what lies below it is not this frame.
        code.0[1..5].copy_from_slice(&[0x48, 0x89, 0xe5, 0x90]);
        assert_eq!(on_top(&code, 0x60), OnTop::Unclear);
    }

    #[test]
    fn code_that_goes_on_at_unknown_addresses_is_in_the_frame_of_its_interpreter() {
        const OTHER: u64 = START + 0x20;
        // je INTERPRETER; jmp [r15 + rcx]
        let mut code = OneFunction::new(&[0x0f, 0x84, 0x7a, 0x01, 0, 0, 0x41, 0xff, 0x24, 0x0f]);
        // push rax; jmp [r15 + rcx]
        code.0[0x20..0x25].copy_from_slice(&[0x50, 0x41, 0xff, 0x24, 0x0f]);
        // No instruction.
        code.0[0x180] = 0x06;
        (code.1, code.2, code.3) = (false, std::vec::from_elem(INTERPRETER, 1), false);
        let proofs = CodeProofs::default();
        let depth = |pc| match proofs.uncovered(&code, pc, false) {
            Uncovered::Rule(rule) => Some(rule.cfa.offset),
            _ => None,
        };
        assert_eq!(depth(OTHER), None, "no jump into an interpreter was met");
        assert_eq!(depth(START), Some(160));
        assert_eq!(depth(OTHER), Some(152));
    }

    #[test]
    fn calls_that_lead_into_an_interpreter() {
        const INTERPRETER: (u64, u64) = (START + 0x180, START + 0x1c0);
        // jmp INTERPRETER.0 + 0x10
        let leads = |code: &OneFunction| CodeProofs::default().calls_into(code, RA, INTERPRETER);
        let mut code = OneFunction::new(&[0xe9, 0x8b, 0x01, 0x00, 0x00]);
        code.2 = std::vec::from_elem(START..START + 0x10, 1);
        assert!(leads(&code), "the called function jumps there");
        code.0[1] = 0xeb;
        assert!(!leads(&code), "it jumps elsewhere");
        // endbr64; jmp [rip + 0x86]: a slot at START + 0x90, with an address in the interpreter.
        code.0[..10].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0x86, 0x00, 0x00, 0x00]);
        code.0[0x90..0x98].copy_from_slice(&(INTERPRETER.0 + 8).to_le_bytes());
        assert!(leads(&code), "a linkage stub");
        code.0[0x90..0x98].copy_from_slice(&(INTERPRETER.1 + 8).to_le_bytes());
        assert!(!leads(&code));
    }

    #[test]
    fn any_call_leaves_a_return_address() {
        let code = OneFunction::new(&[]);
        let proofs = CodeProofs::default();
        assert!(proofs.follows_call(&code, RA));
        assert!(!proofs.follows_call(&code, RA - 1) && !proofs.follows_call(&code, 0x10));
    }
}
