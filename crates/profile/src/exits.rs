//! Where functions return, from their instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use backtrail_arch::{Cpu, Registers};
use backtrail_cfi::registers::{CallFrames, Held};
use backtrail_elf::{Image, Symbols};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction};

/// Functions that are followed from one, and instructions that may end its calls.
const MOST_FOLLOWED: usize = 32;
const MOST_EXITS: usize = 512;
/// Bytes of a function that are decoded.
const MOST_BYTES: u64 = 4 << 20;

/// What an instruction means for calls of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaves {
    /// The function returns.
    Return,
    /// Another function returns that the function may have jumped to (a tail call).
    ReturnElsewhere,
    /// It may jump to code that is not known, such as another library's.
    Jump,
}

/// Where calls of a function end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exits {
    /// By address, in the file's own terms (svma).
    pub(crate) exits: BTreeMap<u64, Leaves>,
    /// Whether code jumps to the function's first instruction: a loop, or a tail call to itself.
    pub(crate) repeats: bool,
}

/// Why it is not known where a function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoExits {
    /// Its code can't be decoded at this address.
    Code(u64),
    /// It has no instruction that returns.
    Endless,
    /// The code of this CPU is not decoded.
    OtherCpu(&'static str),
    /// There is more code than is looked at.
    Large,
}

/// Finds where the function at `entry` returns, also by way of functions of the file that it jumps
/// to.
pub(crate) fn exits(image: &Image<'_>, symbols: &Symbols, entry: u64) -> Result<Exits, NoExits> {
    if image.arch().cpu != Cpu::X86_64 {
        return Err(NoExits::OtherCpu(image.arch().name()));
    }
    let own = function_at(symbols, entry).filter(|own| own.start == entry);
    let own = own.ok_or(NoExits::Code(entry))?;
    let mut search = Search {
        image,
        symbols,
        frames: frames(image),
        starts: BTreeSet::new(),
        targets: BTreeSet::new(),
        found: Exits::default(),
    };
    let mut followed = vec![own];
    let mut next = 0;
    while let Some(range) = followed.get(next).cloned() {
        let is_own = next == 0 || search.is_part_of(entry, range.start);
        search.decode(range, is_own, entry, &mut followed)?;
        next += 1;
    }
    // A jump into the middle of an instruction means that data was decoded, or code that hides:
    // a probe might overwrite a part of an instruction.
    if let Some(&odd) = search.targets.difference(&search.starts).next() {
        return Err(NoExits::Code(odd));
    }
    match search.found.exits.is_empty() {
        true => Err(NoExits::Endless),
        false => Ok(search.found),
    }
}

fn function_at(symbols: &Symbols, svma: u64) -> Option<Range<u64>> {
    let symbol = symbols.lookup(svma)?;
    Some(symbol.address..symbol.address.checked_add(symbol.size)?)
}

fn frames(image: &Image<'_>) -> Option<CallFrames<Vec<u8>>> {
    let held = |section: backtrail_elf::SectionData<'_>| Held {
        address: section.address,
        bytes: section.data.into_owned(),
    };
    let section = image.eh_frame().ok().flatten()?;
    let header = image.eh_frame_hdr().ok().flatten();
    Some(CallFrames::new(image, held(section), header.map(held)))
}

struct Search<'i> {
    image: &'i Image<'i>,
    symbols: &'i Symbols,
    frames: Option<CallFrames<Vec<u8>>>,
    /// Where instructions begin, and where jumps within the code that is followed lead.
    starts: BTreeSet<u64>,
    targets: BTreeSet<u64>,
    found: Exits,
}

impl Search<'_> {
    /// Decodes a function, and adds those that it jumps to.
    fn decode(
        &mut self,
        range: Range<u64>,
        is_own: bool,
        entry: u64,
        followed: &mut Vec<Range<u64>>,
    ) -> Result<(), NoExits> {
        if range.end - range.start > MOST_BYTES {
            return Err(NoExits::Large);
        }
        let code = self.image.data_in(range.clone()).ok_or(NoExits::Code(range.start))?;
        let mut decoder = Decoder::with_ip(64, code, range.start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() && decoder.ip() < range.end {
            decoder.decode_out(&mut instruction);
            if instruction.code() == Code::INVALID {
                return Err(NoExits::Code(instruction.ip()));
            }
            let at = instruction.ip();
            self.starts.insert(at);
            let leaves = match instruction.flow_control() {
                FlowControl::Return if is_own => Some(Leaves::Return),
                FlowControl::Return => Some(Leaves::ReturnElsewhere),
                FlowControl::IndirectBranch if self.may_leave(&instruction) => Some(Leaves::Jump),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    self.jump(instruction.near_branch_target(), entry, followed)
                }
                _ => None,
            };
            if let Some(leaves) = leaves {
                self.found.exits.insert(at, leaves);
            }
            if self.found.exits.len() > MOST_EXITS {
                return Err(NoExits::Large);
            }
        }
        Ok(())
    }

    /// A jump to this address: what it means, if its target is not followed.
    fn jump(&mut self, target: u64, entry: u64, followed: &mut Vec<Range<u64>>) -> Option<Leaves> {
        self.found.repeats |= target == entry;
        if followed.iter().any(|range| range.contains(&target)) {
            self.targets.insert(target);
            return None;
        }
        let section = |svma| self.image.code_section(svma).map(|section| section.address);
        // What lies between functions, such as linkage stubs, may seem to be a part of one.
        let is_within = |range: &Range<u64>| range.contains(&target) && section(range.start) == section(target);
        let function = function_at(self.symbols, target).filter(is_within);
        match function.filter(|_| followed.len() < MOST_FOLLOWED) {
            Some(function) => {
                self.targets.insert(target);
                followed.push(function);
                None
            }
            None => Some(Leaves::Jump),
        }
    }

    /// Whether an indirect jump may leave the function: that of a `switch` has the frame in place,
    /// or is marked as one that needs no check of its target.
    fn may_leave(&self, jump: &Instruction) -> bool {
        const SP: u64 = 1 << 32;
        let arch = self.image.arch();
        let mut registers = Registers::new(jump.ip());
        for &(_, register) in arch.perf.general {
            // Far from each other, so that no sum is another one.
            registers.set(register, (u64::from(register.0) + 2) << 40);
        }
        registers.set(arch.sp, SP);
        let caller = self
            .frames
            .as_ref()
            .and_then(|frames| frames.caller(&registers, jump.ip(), |_| Some(1)));
        match caller {
            Some(caller) => caller.cfa == SP + 8 && !is_unchecked(jump),
            None => !is_unchecked(jump),
        }
    }

    /// Whether the function at `part` is a piece of the one at `entry` that the compiler has moved
    /// away.
    fn is_part_of(&self, entry: u64, part: u64) -> bool {
        let name = |svma| self.symbols.lookup(svma).map(|symbol| symbol.name.into_owned());
        match (name(entry), name(part)) {
            (Some(whole), Some(part)) => part
                .strip_prefix(whole.as_str())
                .is_some_and(|rest| rest.starts_with(".cold")),
            _ => false,
        }
    }
}

/// `notrack`, with which compilers mark jumps through their own tables.
fn is_unchecked(jump: &Instruction) -> bool {
    jump.segment_prefix() == iced_x86::Register::DS
}
