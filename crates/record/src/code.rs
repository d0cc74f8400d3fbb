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
const LONGEST_HELPER: u64 = 32 << 10;

/// Bytes of the longest indirect call that hides behind the first byte of a direct one.
const SHORT_CALL: usize = 4;

/// An address: in a file, whichever process has it mapped, or in memory that a process filled itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    File { module: u32, offset: u64 },
    Process { pid: u32, generation: u64, address: u64 },
}

/// What was found out about code.
#[derive(Debug, Default)]
pub(crate) struct Code {
    frames: RefCell<FxHashMap<(Place, bool), Uncovered>>,
    calls: RefCell<FxHashMap<Place, Option<Call>>>,
    made: RefCell<Made>,
    hotspot: RefCell<HotSpot>,
    endless: RefCell<FxHashMap<Place, bool>>,
    kept: RefCell<FxHashMap<(Place, Place, Register), bool>>,
}

/// A process's memory and modules, as far as code is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Process<'v, 'a> {
    pub(crate) pid: u32,
    pub(crate) arch: &'static Arch,
    pub(crate) space: &'v Space,
    pub(crate) modules: &'v Modules<'a>,
}

/// A piece of a process's code.
struct CodeAround {
    bytes: Vec<u8>,
    start: u64,
    functions: Vec<u64>,
}

impl CodeAround {
    fn code(&self) -> instructions::Code<'_> {
        instructions::Code {
            bytes: &self.bytes,
            start: self.start,
            functions: &self.functions,
        }
    }
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

    /// The code around an address.
    fn code_around(&self, mapping: &Mapping, pc: u64) -> CodeAround {
        let start = pc.saturating_sub(instructions::BYTES_BEFORE).max(mapping.start);
        let end = pc.saturating_add(instructions::BYTES_FROM).min(mapping.end);
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        let read = self.read(start, &mut bytes);
        bytes.truncate(read);
        let functions = self.modules.called(mapping).map(|(called, bias)| {
            let from = |address: u64| called.partition_point(|&target| target.wrapping_add(bias) < address);
            let inside = called.get(from(start)..from(end)).unwrap_or_default();
            inside.iter().map(|target| target.wrapping_add(bias)).collect()
        });
        CodeAround {
            bytes,
            start,
            functions: functions.unwrap_or_default(),
        }
    }

    /// The function at an address: what call frame information says, and without any the table.
    fn function_at(&self, address: u64) -> Option<Range<u64>> {
        let mapping = self.space.find(address)?;
        // Tables also have pieces of functions that nobody describes.
        let Some((frames, bias)) = self.modules.call_frames(mapping) else {
            return self.modules.function_at(mapping, address);
        };
        let function = frames.function_at(address.wrapping_sub(bias))?;
        Some(function.start.wrapping_add(bias)..function.end.wrapping_add(bias))
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
        remembered(&self.frames, (process.place(mapping, pc), is_return), || {
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
            let around = process.code_around(mapping, pc);
            let code = around.code();
            let by_fp = |rule: &Rule| rule.cfa.base == Base::Register(process.arch.fp.0);
            match (
                instructions::rule(process.arch, &code, pc, is_return, process),
                interpreted,
            ) {
                (Some(rule), Some(interpreted)) if by_fp(&rule) => Uncovered::Rule(interpreted),
                (Some(rule), _) => Uncovered::Rule(rule),
                (None, Some(interpreted)) => Uncovered::Linked(interpreted),
                (None, None) if instructions::has_left_frame(process.arch, &code, pc, process) => Uncovered::Unknown,
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
            let around = process.code_around(mapping, ra);
            !instructions::may_return(process.arch, &around.code(), ra)
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
        let around = process.code_around(callee, pc);
        match instructions::is_at_entry(process.arch, &around.code(), target, pc) {
            true => OnTop::ReturnAddress,
            false => OnTop::Unclear,
        }
    }

    fn call_before(&self, process: &Process<'_, '_>, mapping: &Mapping, ra: u64) -> Option<Call> {
        // A file lies elsewhere in another process: how far a call leads is kept, not where.
        let call = remembered(&self.calls, process.place(mapping, ra), || {
            let mut before = [0; Arch::LONGEST_CALL];
            let start = ra.saturating_sub(before.len() as u64).max(mapping.start);
            let len = (ra - start) as usize;
            let read = process.read(start, &mut before[..len]);
            let call = process.arch.call_before(ra, &before[..read]).filter(|_| read == len);
            let call = match call {
                // The end of another instruction and a short indirect call look like a direct one, to nowhere.
                Some(Call::Direct(target)) if process.space.find(target).is_none() => process
                    .arch
                    .call_before(ra, &before[len.saturating_sub(SHORT_CALL)..len]),
                call => call,
            };
            call.map(|call| moved(call, ra.wrapping_neg()))
        });
        call.map(|call| moved(call, ra))
    }

    /// Whether the code before `pc` is the system call that makes a thread, which comes back twice.
    pub(crate) fn makes_thread(&self, process: &Process<'_, '_>, pc: u64) -> bool {
        /// `mov eax, n; syscall` with the numbers of `clone` and `clone3`.
        const CALLS: [[u8; 7]; 2] = [[0xb8, 56, 0, 0, 0, 0x0f, 0x05], [0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05]];
        let mut before = [0; 7];
        let read = process.read(pc.saturating_sub(before.len() as u64), &mut before);
        process.arch.instructions == InstructionSet::X86_64 && read == before.len() && CALLS.contains(&before)
    }

    /// Whether the function at `pc`, called directly from `ra`, never changes `register`.
    pub(crate) fn keeps(&self, process: &Process<'_, '_>, pc: u64, ra: u64, register: Register) -> bool {
        let (Some(caller), Some(mapping)) = (process.space.find(ra.wrapping_sub(1)), process.space.find(pc)) else {
            return false;
        };
        let Some(Call::Direct(entry)) = self.call_before(process, caller, ra) else {
            return false;
        };
        let places = (process.place(mapping, entry), process.place(mapping, pc), register);
        remembered(&self.kept, places, || {
            let start = entry.saturating_sub(LONGEST_HELPER / 4).max(mapping.start);
            let end = entry.saturating_add(LONGEST_HELPER).min(mapping.end);
            let mut code = vec![0; end.saturating_sub(start) as usize];
            let read = process.read(start, &mut code);
            let code = instructions::Code {
                bytes: &code[..read],
                start,
                functions: &[],
            };
            instructions::keeps(process.arch, &code, entry, pc, register)
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

/// Bytes behind a description that may still be the function's.
const BEHIND_END: u64 = 32;

/// A call whose target lies that many bytes further on.
fn moved(call: Call, by: u64) -> Call {
    match call {
        Call::Direct(target) => Call::Direct(target.wrapping_add(by)),
        Call::Indirect => Call::Indirect,
    }
}

/// Whether a call of `target` may have led to `callee`, which no table row describes. A function that is described has
/// called on itself, if it is not what was found: then its own frame is missing.
fn may_lead_to(process: &Process<'_, '_>, target: u64, callee: u64) -> bool {
    let Some(mapping) = process.space.find(target) else {
        return false;
    };
    let is_elsewhere = process.space.find(callee).is_some_and(|callee| {
        callee.module != mapping.module && matches!(process.modules.coverage(callee), Coverage::Table(_))
    });
    let function = process.function_at(target);
    let Some(function) = function.filter(|function| function.start == target && !function.contains(&callee)) else {
        return true;
    };
    // Descriptions of the calls that make threads end at the system call: what follows runs in both threads.
    let falls_out = callee.wrapping_sub(function.end) < BEHIND_END;
    let callee = process.function_at(callee);
    // What leads to another module is a linkage stub, whose callee nobody sees here.
    is_elsewhere
        || falls_out && callee.is_none()
        || jumps(process, function, |target| match &callee {
            Some(callee) => callee.contains(&target),
            // Where the callee begins is not known, but a jump into code that is not described may lead there.
            None => process.function_at(target).is_none(),
        })
}

/// Whether there is such a jump in a function: it may end in calling that.
fn jumps(process: &Process<'_, '_>, function: Range<u64>, is_it: impl Fn(u64) -> bool) -> bool {
    const LONGEST: u64 = 1 << 16;
    if process.arch.instructions != InstructionSet::X86_64 || function.end - function.start > LONGEST {
        return false;
    }
    let mut code = vec![0; (function.end - function.start) as usize];
    let read = process.read(function.start, &mut code);
    let leads = |at: usize, distance: &[u8]| {
        let end = function.start + (at + distance.len()) as u64;
        let distance = distance.try_into().map(i32::from_le_bytes);
        distance.is_ok_and(|distance| is_it(end.wrapping_add_signed(distance.into())))
    };
    // `jmp rel32` and the conditional ones.
    code[..read].windows(6).enumerate().any(|(at, bytes)| match bytes {
        [0x0f, 0x80..=0x8f, distance @ ..] => leads(at + 2, distance),
        _ => false,
    }) || code[..read].windows(5).enumerate().any(|(at, bytes)| match bytes {
        [0xe9, distance @ ..] => leads(at + 1, distance),
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
