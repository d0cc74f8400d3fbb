//! Code that no table row describes: how its frames are left, and whether what is found there can be return addresses.
//!
//! Samplers and looks at a process or a core ask the same; [`ProcessCode`] is what they differ in.

use std::cell::RefCell;
use std::hash::Hash;
use std::ops::Range;

use backtrail_arch::{Arch, Call, InstructionSet, Register};
use backtrail_unwind::{OnTop, Uncovered};
use rustc_hash::FxHashMap;

use crate::instructions;
use crate::pushed::Pushed;
pub use crate::pushed::Region;

/// Answers that are kept; with more, all are asked for again.
const MOST_ANSWERS: usize = 1 << 16;

/// Bytes of the longest function that is looked at as a whole.
const LONGEST_FUNCTION: u64 = 64 << 10;

/// Bytes behind rows that were read from instructions, within which a jump may still be the same function's.
const MOST_BEHIND_ROWS: u64 = 4 << 10;

/// The code of a process.
pub trait ProcessCode {
    /// A piece of code that is mapped.
    type Mapping: Copy;
    /// What tells one address from another: answers are kept by it.
    type Place: Copy + Eq + Hash;

    /// The CPU.
    fn arch(&self) -> &'static Arch;

    /// A number that stands for this process and no other.
    fn process(&self) -> u32;

    /// The code that is mapped at an address.
    fn find(&self, address: u64) -> Option<Self::Mapping>;

    /// The addresses of a mapping.
    fn range(&self, mapping: Self::Mapping) -> Range<u64>;

    /// An address in, or right after, a mapping.
    fn place(&self, mapping: Self::Mapping, address: u64) -> Self::Place;

    /// Whether a mapping is one of a file's code, not of memory that the process filled itself.
    fn is_file(&self, mapping: Self::Mapping) -> bool;

    /// Whether two mappings are of one file.
    fn is_same_file(&self, one: Self::Mapping, other: Self::Mapping) -> bool;

    /// Whether there is a table for a mapping.
    fn has_table(&self, mapping: Self::Mapping) -> bool;

    /// The function of a mapping's table that has the code at `address`.
    fn function_at(&self, mapping: Self::Mapping, address: u64) -> Option<Range<u64>>;

    /// The function that call frame information describes at `address`, whether or not table rows can express it.
    fn described_function(&self, mapping: Self::Mapping, address: u64) -> Option<Range<u64>>;

    /// Whether call frame information describes the code at `address`.
    fn is_described(&self, mapping: Self::Mapping, address: u64) -> bool;

    /// Copies memory from `start` on and returns how many bytes came.
    fn read(&self, start: u64, bytes: &mut [u8]) -> usize;

    /// Everything that is mapped.
    fn regions(&self) -> Vec<Region>;
}

/// The code around an address, and where it begins.
fn code_around<C: ProcessCode>(process: &C, mapping: C::Mapping, pc: u64) -> (u64, Vec<u8>) {
    let range = process.range(mapping);
    let start = pc.saturating_sub(instructions::BYTES_BEFORE).max(range.start);
    let end = pc.saturating_add(instructions::BYTES_FROM).min(range.end);
    let mut code = vec![0; end.saturating_sub(start) as usize];
    let read = process.read(start, &mut code);
    code.truncate(read);
    (start, code)
}

/// What was found out about code, by the place of an address.
#[derive(Debug)]
pub struct CodeProofs<P> {
    frames: RefCell<FxHashMap<P, Uncovered>>,
    calls: RefCell<FxHashMap<P, Option<Call>>>,
    pushed: RefCell<Pushed>,
    endless: RefCell<FxHashMap<P, bool>>,
    kept: RefCell<FxHashMap<(P, Register), bool>>,
}

impl<P> Default for CodeProofs<P> {
    fn default() -> Self {
        CodeProofs {
            frames: RefCell::default(),
            calls: RefCell::default(),
            pushed: RefCell::default(),
            endless: RefCell::default(),
            kept: RefCell::default(),
        }
    }
}

impl<P: Copy + Eq + Hash> CodeProofs<P> {
    /// How to leave the frame at `pc`: as the instructions there show, else by frame pointers.
    pub fn uncovered(&self, process: &impl ProcessCode<Place = P>, pc: u64, is_return: bool) -> Uncovered {
        let Some(mapping) = process.find(pc.wrapping_sub(is_return.into())) else {
            return Uncovered::Unknown;
        };
        let is_described = || process.is_described(mapping, pc.wrapping_sub(is_return.into()));
        remembered(&self.frames, process.place(mapping, pc), || {
            // There is a description, which table rows can't express: instructions can't be clearer.
            if is_described() {
                return Uncovered::Unknown;
            }
            let (start, code) = code_around(process, mapping, pc);
            match instructions::rule(process.arch(), &code, start, pc) {
                Some(rule) => Uncovered::Rule(rule),
                None if instructions::has_left_frame(process.arch(), &code, start, pc) => Uncovered::Unknown,
                None => Uncovered::FramePointer,
            }
        })
    }

    /// Whether the code from `ra` on has no way to a return.
    pub fn never_returns(&self, process: &impl ProcessCode<Place = P>, ra: u64) -> bool {
        let Some(mapping) = process.find(ra.wrapping_sub(1)) else {
            return false;
        };
        remembered(&self.endless, process.place(mapping, ra), || {
            let (start, code) = code_around(process, mapping, ra);
            !instructions::may_return(process.arch(), &code, start, ra)
        })
    }

    /// What `word`, on top of the stack, is to the interrupted code at `pc`: its return address if it follows a call of code
    /// that has not touched the stack from there to `pc`.
    pub fn on_top(&self, process: &impl ProcessCode<Place = P>, word: u64, pc: u64) -> OnTop {
        let Some(mapping) = process.find(word.wrapping_sub(1)) else {
            return OnTop::Other;
        };
        let (Some(call), Some(callee)) = (self.call_before(process, mapping, word), process.find(pc)) else {
            return OnTop::Other;
        };
        let Call::Direct(target) = call else {
            return OnTop::Unclear;
        };
        let (start, code) = code_around(process, callee, pc);
        match instructions::is_at_entry(process.arch(), &code, start, target, pc) {
            true => OnTop::ReturnAddress,
            false => OnTop::Unclear,
        }
    }

    fn call_before<C: ProcessCode<Place = P>>(&self, process: &C, mapping: C::Mapping, ra: u64) -> Option<Call> {
        remembered(&self.calls, process.place(mapping, ra), || {
            let mut before = [0; Arch::LONGEST_CALL];
            let start = ra.saturating_sub(before.len() as u64).max(process.range(mapping).start);
            let len = (ra - start) as usize;
            let read = process.read(start, &mut before[..len]);
            process.arch().call_before(ra, &before[..read]).filter(|_| read == len)
        })
    }

    /// Whether the function at `pc` never changes `register`.
    pub fn keeps(&self, process: &impl ProcessCode<Place = P>, pc: u64, register: Register) -> bool {
        let Some(mapping) = process.find(pc) else {
            return false;
        };
        let Some(function) = process.described_function(mapping, pc) else {
            return false;
        };
        let start = function.start;
        remembered(&self.kept, (process.place(mapping, start), register), || {
            let size = function.end.saturating_sub(function.start);
            let len = size.min(LONGEST_FUNCTION);
            let mut code = vec![0; len as usize];
            let read = process.read(start, &mut code);
            read == code.len() && size == len && instructions::keeps(process.arch(), &code, start, register)
        })
    }

    /// Whether `ra` follows any call at all.
    pub fn follows_call(&self, process: &impl ProcessCode<Place = P>, ra: u64) -> bool {
        let mapping = process.find(ra.wrapping_sub(1));
        mapping.is_some_and(|mapping| self.call_before(process, mapping, ra).is_some())
    }

    /// Whether `ra` follows a call that can lead to `callee`, or is an address that a run-time system pushes itself.
    pub fn is_called(&self, process: &impl ProcessCode<Place = P>, ra: u64, callee: u64) -> bool {
        let Some(mapping) = process.find(ra.wrapping_sub(1)) else {
            return false;
        };
        let call = self.call_before(process, mapping, ra);
        match call {
            None => !process.is_file(mapping) && self.pushed.borrow_mut().has(process, ra),
            Some(Call::Indirect) => true,
            Some(Call::Direct(target)) => may_lead_to(process, target, callee),
        }
    }
}

/// Whether a call of `target` may have led to `callee`, which no table row describes. A function that a table describes
/// has called on itself, if it is not what was found: then its own frame is missing.
fn may_lead_to(process: &impl ProcessCode, target: u64, callee: u64) -> bool {
    let Some(mapping) = process.find(target) else {
        return false;
    };
    let callee_mapping = process.find(callee);
    let is_elsewhere =
        callee_mapping.is_some_and(|callee| !process.is_same_file(callee, mapping) && process.has_table(callee));
    let function = process.function_at(mapping, target);
    let Some(function) = function.filter(|function| function.start == target && !function.contains(&callee)) else {
        return true;
    };
    if !process.is_described(mapping, target) {
        // Its rows were read from its instructions, and end where these were not understood:
        // it may be longer, and jump from there.
        let is_near = |start: u64| callee.wrapping_sub(start) < LONGEST_FUNCTION;
        let end = function
            .end
            .saturating_add(MOST_BEHIND_ROWS)
            .min(process.range(mapping).end);
        return is_elsewhere || is_near(target) || jumps(process, target..end, is_near);
    }
    let callee_function = callee_mapping.and_then(|mapping| process.function_at(mapping, callee));
    // The description may end before the function does, as that of glibc's `clone3` at the system call.
    let goes_on = || {
        callee_mapping.is_some_and(|mapping| {
            let (start, code) = code_around(process, mapping, callee);
            instructions::is_at_entry(process.arch(), &code, start, function.start, callee)
        })
    };
    let is_described = |address: u64| {
        let mapping = process.find(address);
        mapping.is_none_or(|mapping| process.function_at(mapping, address).is_some())
    };
    // What leads to another module is a linkage stub, whose callee nobody sees here.
    is_elsewhere
        || callee_function.is_none() && goes_on()
        || jumps(process, function.clone(), |target| match &callee_function {
            Some(callee) => target == callee.start,
            // Where the callee begins is not known, but a jump into code that is not described may lead there.
            None => !is_described(target),
        })
}

/// Whether there is such a jump in a function: it may end in calling that.
fn jumps(process: &impl ProcessCode, function: Range<u64>, is_it: impl Fn(u64) -> bool) -> bool {
    const LONGEST: u64 = 1 << 16;
    const JUMP: u8 = 0xe9;
    let size = function.end.saturating_sub(function.start);
    if process.arch().instructions != InstructionSet::X86_64 || size > LONGEST {
        return false;
    }
    let mut code = vec![0; size as usize];
    let read = process.read(function.start, &mut code);
    code[..read].windows(5).enumerate().any(|(at, bytes)| match bytes {
        [JUMP, distance @ ..] => distance.try_into().is_ok_and(|distance| {
            let end = function.start + at as u64 + 5;
            is_it(end.wrapping_add_signed(i32::from_le_bytes(distance).into()))
        }),
        _ => false,
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
    use super::*;
    use backtrail_arch::x86_64::ARCH;

    const START: u64 = 0x1000;
    /// The function that is called; its description ends here, and its code goes on.
    const DESCRIBED: u64 = START + 4;
    const CALLER: u64 = 0x1100;
    /// `call START`, as seen from [`CALLER`].
    const CALL: [u8; 5] = [0xe8, 0xfb, 0xfe, 0xff, 0xff];
    const RA: u64 = CALLER + CALL.len() as u64;

    /// A file whose only function with rows begins at [`START`], and whether call frame information says so.
    struct OneFunction(Vec<u8>, bool);

    impl OneFunction {
        fn new(code: &[u8]) -> OneFunction {
            let mut bytes = vec![0x90; 0x200];
            bytes[..code.len()].copy_from_slice(code);
            let caller = (CALLER - START) as usize;
            bytes[caller..caller + CALL.len()].copy_from_slice(&CALL);
            OneFunction(bytes, true)
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
            true
        }

        fn is_same_file(&self, (): (), (): ()) -> bool {
            true
        }

        fn has_table(&self, (): ()) -> bool {
            true
        }

        fn function_at(&self, (): (), address: u64) -> Option<Range<u64>> {
            (START..DESCRIBED).contains(&address).then_some(START..DESCRIBED)
        }

        fn described_function(&self, (): (), address: u64) -> Option<Range<u64>> {
            self.function_at((), address)
        }

        fn is_described(&self, (): (), address: u64) -> bool {
            self.1 && self.function_at((), address).is_some()
        }

        fn read(&self, start: u64, bytes: &mut [u8]) -> usize {
            let held = &self.0[(start - START) as usize..];
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
        // mov eax, 56; nop; syscall; ret, of which four bytes are described.
        let clone = [0xb8, 56, 0, 0, 0, 0x90, 0x0f, 0x05, 0xc3];
        assert!(is_called(&clone, START) && is_called(&clone, START + 8));
        assert!(!is_called(&clone, START + 9), "behind the return");
        // push rax; nop; nop; nop; nop: its frame would be missing.
        assert!(!is_called(&[0x50], START + 5));
        assert!(
            !CodeProofs::default().is_called(&OneFunction::new(&clone), RA + 1, START),
            "no call is before it"
        );
    }

    #[test]
    fn rows_that_were_read_from_code_do_not_say_where_a_function_ends() {
        // push rbp; mov rbp, rsp; call, behind which nothing is understood.
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
    fn any_call_leaves_a_return_address() {
        let code = OneFunction::new(&[]);
        let proofs = CodeProofs::default();
        assert!(proofs.follows_call(&code, RA));
        assert!(!proofs.follows_call(&code, RA - 1) && !proofs.follows_call(&code, 0x10));
    }
}
