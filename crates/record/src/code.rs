//! Code that no table row describes: how its frames are left, and whether what is found there can be return addresses.

use std::cell::RefCell;
use std::hash::Hash;
use std::ops::Range;

use backtrail_arch::{Arch, Call, InstructionSet, Register};
use backtrail_dwarf::instructions::{self, Around};
use backtrail_sframe::{Base, Rule};
use backtrail_target::sys;
use backtrail_unwind::{Coverage, OnTop, Uncovered};
use rustc_hash::FxHashMap;

use crate::hotspot::{HotSpot, JavaFrame};
use crate::made::Made;
use crate::modules::{Mapping, Modules};
use crate::spaces::Space;

/// Answers that are kept; with more, all are asked for again.
const MOST_ANSWERS: usize = 1 << 16;

/// Bytes that are read where code made at run time jumps far.
const FAR_BYTES: u64 = 256;

/// Bytes of the longest function that is asked which registers it keeps.
const LONGEST_HELPER: u64 = 64 << 10;

/// An address: in a file, whichever process has it mapped, or in memory that a process filled itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    File { module: u32, offset: u64 },
    Process { pid: u32, generation: u64, address: u64 },
}

/// What was found out about code.
#[derive(Debug, Default)]
pub(crate) struct Code {
    frames: RefCell<FxHashMap<Place, Uncovered>>,
    calls: RefCell<FxHashMap<Place, Option<Call>>>,
    made: RefCell<Made>,
    hotspot: RefCell<HotSpot>,
    endless: RefCell<FxHashMap<Place, bool>>,
    kept: RefCell<FxHashMap<(Place, Register), bool>>,
}

/// A process's memory and modules, as far as code is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Process<'v, 'a> {
    pub(crate) pid: u32,
    pub(crate) arch: &'static Arch,
    pub(crate) space: &'v Space,
    pub(crate) modules: &'v Modules<'a>,
}

impl Process<'_, '_> {
    fn place(&self, mapping: &Mapping, address: u64) -> Place {
        match self.modules.is_file(mapping) {
            true => Place::File {
                module: mapping.module.0,
                offset: address.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset),
            },
            false => Place::Process {
                pid: self.pid,
                generation: self.space.generation(),
                address,
            },
        }
    }

    /// The code around an address, and where it begins.
    fn code_around(&self, mapping: &Mapping, pc: u64) -> (u64, Vec<u8>) {
        let start = pc.saturating_sub(instructions::BYTES_BEFORE).max(mapping.start);
        let end = pc.saturating_add(instructions::BYTES_FROM).min(mapping.end);
        let mut code = vec![0; end.saturating_sub(start) as usize];
        let read = self.read(start, &mut code);
        code.truncate(read);
        (start, code)
    }

    pub(crate) fn read(&self, start: u64, bytes: &mut [u8]) -> usize {
        sys::read_process(self.pid as i32, start, bytes).unwrap_or(0)
    }
}

impl Around for Process<'_, '_> {
    fn is_start(&self, at: u64) -> bool {
        let mut before = [0; instructions::BYTES_BEFORE_START];
        let read = self.read(at.wrapping_sub(before.len() as u64), &mut before);
        instructions::is_start(&before[..read], at)
    }

    fn code(&self, at: u64) -> Vec<u8> {
        let Some(mapping) = self.space.find(at).filter(|mapping| !self.modules.is_file(mapping)) else {
            return Vec::new();
        };
        let mut code = vec![0; FAR_BYTES.min(mapping.end - at) as usize];
        let read = self.read(at, &mut code);
        code.truncate(read);
        code
    }
}

impl Code {
    /// How to leave the frame at `pc`: as the instructions there show, else by frame pointers.
    pub(crate) fn uncovered(&self, process: &Process<'_, '_>, pc: u64, is_return: bool) -> Uncovered {
        let Some(mapping) = process.space.find(pc.wrapping_sub(is_return.into())) else {
            return Uncovered::Unknown;
        };
        let is_described = || {
            let frames = process.modules.call_frames(mapping);
            frames.is_some_and(|(frames, bias)| frames.describes(pc.wrapping_sub(bias + u64::from(is_return))))
        };
        remembered(&self.frames, process.place(mapping, pc), || {
            // There is a description, which table rows can't express: instructions can't be clearer.
            if is_described() {
                return Uncovered::Unknown;
            }
            let java = match process.modules.is_file(mapping) {
                true => None,
                false => self.hotspot.borrow_mut().frame(process, pc, is_return),
            };
            let interpreted = match java {
                Some(JavaFrame::Compiled(rule)) => return Uncovered::Rule(rule),
                Some(JavaFrame::Interpreted(rule)) if is_return => return Uncovered::Rule(rule),
                Some(JavaFrame::Interpreted(rule)) => Some(rule),
                None => None,
            };
            let (start, code) = process.code_around(mapping, pc);
            let by_fp = |rule: &Rule| rule.cfa.base == Base::Register(process.arch.fp.0);
            match (instructions::rule(process.arch, &code, start, pc, process), interpreted) {
                (Some(rule), Some(interpreted)) if by_fp(&rule) => Uncovered::Rule(interpreted),
                (Some(rule), _) => Uncovered::Rule(rule),
                (None, Some(interpreted)) => Uncovered::Linked(interpreted),
                (None, None) if instructions::has_left_frame(process.arch, &code, start, pc, process) => {
                    Uncovered::Unknown
                }
                (None, None) => Uncovered::FramePointer,
            }
        })
    }

    /// Whether the code from `ra` on has no way to a return.
    pub(crate) fn never_returns(&self, process: &Process<'_, '_>, ra: u64) -> bool {
        let Some(mapping) = process.space.find(ra.wrapping_sub(1)) else {
            return false;
        };
        remembered(&self.endless, process.place(mapping, ra), || {
            let (start, code) = process.code_around(mapping, ra);
            !instructions::may_return(process.arch, &code, start, ra)
        })
    }

    /// What `word`, on top of the stack, is to the interrupted code at `pc`: its return address if it follows a call of code
    /// that has not touched the stack from there to `pc`.
    pub(crate) fn on_top(&self, process: &Process<'_, '_>, word: u64, pc: u64) -> OnTop {
        let Some(mapping) = process.space.find(word.wrapping_sub(1)) else {
            return OnTop::Other;
        };
        let (Some(call), Some(callee)) = (self.call_before(process, mapping, word), process.space.find(pc)) else {
            return OnTop::Other;
        };
        let Call::Direct(target) = call else {
            return OnTop::Unclear;
        };
        let (start, code) = process.code_around(callee, pc);
        match instructions::is_at_entry(process.arch, &code, start, target, pc) {
            true => OnTop::ReturnAddress,
            false => OnTop::Unclear,
        }
    }

    fn call_before(&self, process: &Process<'_, '_>, mapping: &Mapping, ra: u64) -> Option<Call> {
        remembered(&self.calls, process.place(mapping, ra), || {
            let mut before = [0; Arch::LONGEST_CALL];
            let start = ra.saturating_sub(before.len() as u64).max(mapping.start);
            let len = (ra - start) as usize;
            let read = process.read(start, &mut before[..len]);
            process.arch.call_before(ra, &before[..read]).filter(|_| read == len)
        })
    }

    /// Whether the function at `pc` never changes `register`.
    pub(crate) fn keeps(&self, process: &Process<'_, '_>, pc: u64, register: Register) -> bool {
        let Some(mapping) = process.space.find(pc) else {
            return false;
        };
        let Some((frames, bias)) = process.modules.call_frames(mapping) else {
            return false;
        };
        let Some(function) = frames.function_at(pc.wrapping_sub(bias)) else {
            return false;
        };
        let start = function.start.wrapping_add(bias);
        remembered(&self.kept, (process.place(mapping, start), register), || {
            let len = (function.end - function.start).min(LONGEST_HELPER);
            let mut code = vec![0; len as usize];
            let read = process.read(start, &mut code);
            read == code.len()
                && function.end - function.start == len
                && instructions::keeps(process.arch, &code, start, register)
        })
    }

    /// Whether `ra` follows a call that can lead to `callee`, or is an address that a run-time system pushes itself.
    pub(crate) fn is_called(&self, process: &Process<'_, '_>, ra: u64, callee: u64) -> bool {
        let Some(mapping) = process.space.find(ra.wrapping_sub(1)) else {
            return false;
        };
        let call = self.call_before(process, mapping, ra);
        match call {
            None if process.modules.is_file(mapping) => false,
            None => self.made.borrow_mut().has(process, ra) || self.hotspot.borrow_mut().is_deoptimized(process, ra),
            Some(Call::Indirect) => true,
            Some(Call::Direct(target)) => may_lead_to(process, target, callee),
        }
    }
}

/// Whether a call of `target` may have led to `callee`, which no table row describes. A function that a table describes
/// has called on itself, if it is not what was found: then its own frame is missing.
fn may_lead_to(process: &Process<'_, '_>, target: u64, callee: u64) -> bool {
    let Some(mapping) = process.space.find(target) else {
        return false;
    };
    let callee_mapping = process.space.find(callee);
    let is_elsewhere = callee_mapping.is_some_and(|callee| {
        callee.module != mapping.module && matches!(process.modules.coverage(callee), Coverage::Table(_))
    });
    let function = process.modules.function_at(mapping, target);
    let Some(function) = function.filter(|function| function.start == target && !function.contains(&callee)) else {
        return true;
    };
    let callee = callee_mapping.and_then(|mapping| process.modules.function_at(mapping, callee));
    let is_described = |address: u64| {
        let mapping = process.space.find(address);
        mapping.is_none_or(|mapping| process.modules.function_at(mapping, address).is_some())
    };
    // What leads to another module is a linkage stub, whose callee nobody sees here.
    is_elsewhere
        || jumps(process, function, |target| match &callee {
            Some(callee) => target == callee.start,
            // Where the callee begins is not known, but a jump into code that is not described may lead there.
            None => !is_described(target),
        })
}

/// Whether there is such a jump in a function: it may end in calling that.
fn jumps(process: &Process<'_, '_>, function: Range<u64>, is_it: impl Fn(u64) -> bool) -> bool {
    const LONGEST: u64 = 1 << 16;
    const JUMP: u8 = 0xe9;
    if process.arch.instructions != InstructionSet::X86_64 || function.end - function.start > LONGEST {
        return false;
    }
    let mut code = vec![0; (function.end - function.start) as usize];
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
