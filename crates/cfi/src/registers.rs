//! The registers of callers, from call frame information itself; and tables of single functions.
//!
//! SFrame restores what a stack trace needs: program counter, stack pointer and frame pointer. To
//! show the values of arguments, a debugger also needs the other registers that a function
//! preserves, and has the time to read `.eh_frame`; a sampler does not. A debugger also meets so
//! few functions of a module that a table of all of them would be wasted.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use backtrail_arch::{Arch, Cpu, REGISTERS, Register, Registers};
use backtrail_elf::Image;
use backtrail_elf::budget::Budget;
use backtrail_sframe::write::{FunctionRows, Options};
use backtrail_sframe::{Abi, Base, Location, Rule, Section, Version};
use backtrail_wire::{Bytes, Endian};
use gimli::{BaseAddresses, CfaRule, RegisterRule, UnwindContext, UnwindSection};

use crate::asked::Asked;
use crate::eh_frame::{self, MAX_CIE_BYTES, Prepared, Storage, augmentation, evaluate};
use crate::reader::{Slice, run_time};
use crate::{build, linked, tables};

/// Longer FDEs are not read, because each new address would do so again; real ones take some KiB.
const MAX_FDE_BYTES: usize = 256 << 10;
/// Rows that are cached: threads often stop at the same places.
const MOST_ROWS: usize = 1 << 14;

/// A section's bytes, owned or borrowed, and its address.
#[derive(Clone, Debug)]
pub struct Held<B> {
    /// The bytes.
    pub bytes: B,
    /// The address (svma).
    pub address: u64,
}

/// A module's call frame information, from which callers' registers are restored.
#[derive(Debug)]
pub struct CallFrames<B> {
    pub(crate) eh_frame: Held<B>,
    /// `.eh_frame_hdr`, whose search table finds an FDE.
    header: Option<Held<B>>,
    normalized: OnceCell<Normalized>,
    /// Start and offset of each FDE, by start; built if there is no search table.
    starts: OnceCell<Vec<(u64, usize)>>,
    pub(crate) bases: BaseAddresses,
    pub(crate) arch: &'static Arch,
    abi: Abi,
    pub(crate) endian: Endian,
    /// The ranges that may contain code.
    code: Vec<Range<u64>>,
    entry: u64,
    rows: RefCell<HashMap<u64, Option<Rc<Row>>>>,
    asked: Asked,
    budget: Budget,
}

/// The section without augmentation letters that its reader does not know (AArch64).
#[derive(Debug, Default)]
struct Normalized {
    /// `None` if it has no such letters.
    bytes: Option<Vec<u8>>,
    /// Offsets of the CIEs whose return addresses are signed with key B.
    key_b: HashSet<usize>,
}

/// The call frame information at a pc.
#[derive(Debug)]
struct Row {
    cfa: CfaRule<usize>,
    rules: Vec<(gimli::Register, RegisterRule<usize>)>,
    /// The column of the return address.
    ra: gimli::Register,
    signal_frame: bool,
}

/// The caller of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The canonical frame address of the frame that was left.
    pub cfa: u64,
    /// The known registers, as they are after the call returns.
    pub registers: Registers,
    /// Whether the frame is a signal frame: its caller was interrupted and called nothing.
    pub signal_frame: bool,
}

/// What call frame information says about code in a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRule {
    /// The rule of the code.
    pub rule: Rule,
    /// The function's addresses.
    pub function: Range<u64>,
    /// Whether the function begins with nothing but the return address in its frame, as after a
    /// call. Interpreters in assembly have one rule for all of their code.
    pub is_called: bool,
}

/// Bytes of the shortest function that is taken for an interpreter.
const LEAST_INTERPRETER: u64 = 8 << 10;

impl FunctionRule {
    /// Whether code that jumps here, into the middle of a large function with a frame of its own,
    /// runs in that frame.
    pub(crate) fn is_interpreter(&self, arch: &Arch) -> bool {
        let has_frame = self.rule.cfa.offset > arch.pointer_bytes.into();
        let size = self.function.end.saturating_sub(self.function.start);
        self.is_called && has_frame && self.is_plain(arch) && size >= LEAST_INTERPRETER
    }

    /// Whether the frame ends a known number of bytes above the stack pointer, with the return
    /// address there.
    pub(crate) fn is_plain(&self, arch: &Arch) -> bool {
        is_plain(arch, &self.rule)
    }

    /// The same for a file that is loaded `bias` bytes above its own addresses.
    #[must_use]
    pub fn moved(self, bias: u64) -> FunctionRule {
        let Range { start, end } = self.function;
        FunctionRule {
            function: start.wrapping_add(bias)..end.wrapping_add(bias),
            ..self
        }
    }
}

/// As [`FunctionRule::is_plain`].
pub(crate) fn is_plain(arch: &Arch, rule: &Rule) -> bool {
    let saved = Location::saved(-i32::from(arch.pointer_bytes));
    (rule.cfa.base, rule.cfa.deref, rule.ra) == (Base::Register(arch.sp.0), false, saved)
}

impl<B: AsRef<[u8]>> CallFrames<B> {
    /// Reads the call frame information of `image`; `eh_frame` and `header` are its `.eh_frame` and
    /// `.eh_frame_hdr`.
    pub fn new(image: &Image<'_>, eh_frame: Held<B>, header: Option<Held<B>>) -> CallFrames<B> {
        let mut bases = BaseAddresses::default().set_eh_frame(eh_frame.address);
        if let Some(text) = image.text_address() {
            bases = bases.set_text(text);
        }
        if let Some(got) = image.got_address() {
            bases = bases.set_got(got);
        }
        if let Some(header) = &header {
            bases = bases.set_eh_frame_hdr(header.address);
        }
        CallFrames {
            eh_frame,
            header,
            normalized: OnceCell::new(),
            starts: OnceCell::new(),
            bases,
            arch: image.arch(),
            abi: tables::abi(image),
            endian: image.endian(),
            code: image.code_ranges(),
            entry: image.entry(),
            rows: RefCell::default(),
            asked: Asked::default(),
            budget: image.budget().clone(),
        }
    }

    /// The table of the function that has the code at `svma`: an SFrame section at address 0 with
    /// the rows that [`tables::Tables`] has for it. `None` if no FDE covers the address, if rows
    /// can't express its rules, or for any new address after many thousands of others: use the
    /// table of the whole module then. The same goes for functions for which `correct`
    /// ([`tables::correct`]) returns false.
    pub fn function(&self, svma: u64, correct: impl Fn(&mut FunctionRows) -> bool) -> Option<&[u8]> {
        self.asked.table(svma, |made| {
            let fde = self.offset(&self.section(), svma)?;
            let table = made
                .entry(fde)
                .or_insert_with(|| self.table(fde, &correct).map(Rc::from))
                .clone();
            table.filter(|table| {
                let section = Section::parse(table, 0);
                section.is_ok_and(|section| matches!(section.lookup(svma), Ok(Some(_))))
            })
        })
    }

    /// The same table for a caller that keeps it.
    pub fn function_table(&self, svma: u64) -> Option<Vec<u8>> {
        self.table(self.offset(&self.section(), svma)?, |_| true)
    }

    /// The table of one FDE.
    fn table(&self, fde: usize, correct: impl Fn(&mut FunctionRows) -> bool) -> Option<Vec<u8>> {
        self.fde(&self.section(), fde)?;
        let prepared = Prepared {
            section: self.section(),
            key_b: &self.normalized().key_b,
            bases: self.bases.clone(),
            code: &self.code,
            arch: self.arch,
            budget: &self.budget,
        };
        let mut converted = prepared.one(fde);
        if self.arch.cpu == Cpu::Aarch64 {
            linked::enter(&mut converted.functions, self.entry);
        }
        if !converted.functions.iter_mut().all(correct) {
            return None;
        }
        let built = build::table(&converted, &Options::new(Version::V3, self.abi, 0)).ok()?;
        (built.functions > 0).then_some(built.bytes)
    }

    /// The caller of a frame with these registers. `svma` is the address to look up, as an address
    /// of the file: the frame's program counter, or the byte before its return address. `word`
    /// reads memory. `None` if nothing describes the address, if the frame is outermost, or if the
    /// CFA or the return address can't be known.
    ///
    /// A register of the caller is known if a rule gives its place, or if no rule mentions it and
    /// functions preserve it ([`Arch::preserved`]).
    pub fn caller(&self, registers: &Registers, svma: u64, word: impl FnMut(u64) -> Option<u64>) -> Option<Caller> {
        let section = self.section();
        let row = self.known_row(&section, svma)?;
        let machine = Target {
            arch: self.arch,
            registers,
            word,
        };
        caller(&section, &row, machine)
    }

    /// Whether an FDE describes the code at this address.
    pub fn describes(&self, svma: u64) -> bool {
        self.known_row(&self.section(), svma).is_some()
    }

    /// The range of the function that an FDE describes at this address.
    pub fn function_at(&self, svma: u64) -> Option<Range<u64>> {
        let section = self.section();
        let fde = self.fde(&section, self.offset(&section, svma)?)?;
        let range = fde.initial_address()..fde.initial_address().checked_add(fde.len())?;
        range.contains(&svma).then_some(range)
    }

    /// The rule of the code at this address, as call frame information has it; `None` if rows can't
    /// express it.
    pub fn rule(&self, svma: u64) -> Option<FunctionRule> {
        let table = self.function_table(svma)?;
        let table = Section::parse(&table, 0).ok()?;
        let rule = |address| table.lookup(address).ok().flatten()?.row.rule;
        let function = self.function_at(svma)?;
        let called = Location::register(self.arch.sp.0, self.arch.pointer_bytes.into());
        Some(FunctionRule {
            rule: rule(svma)?,
            is_called: rule(function.start)?.cfa == called,
            function,
        })
    }

    fn known_row(&self, section: &gimli::EhFrame<Slice<'_>>, svma: u64) -> Option<Rc<Row>> {
        if let Some(known) = self.rows.borrow().get(&svma) {
            return known.clone();
        }
        let row = self.row(section, svma).map(Rc::new);
        let mut rows = self.rows.borrow_mut();
        if rows.len() >= MOST_ROWS {
            rows.clear();
        }
        rows.insert(svma, row.clone());
        row
    }

    pub(crate) fn section(&self) -> gimli::EhFrame<Slice<'_>> {
        let bytes = self.eh_frame.bytes.as_ref();
        let bytes = self.normalized().bytes.as_deref().unwrap_or(bytes);
        let mut section = gimli::EhFrame::new(bytes, run_time(self.endian));
        section.set_address_size(self.arch.pointer_bytes);
        if self.arch.cpu == Cpu::Aarch64 {
            section.set_vendor(gimli::Vendor::AArch64);
        }
        section
    }

    fn normalized(&self) -> &Normalized {
        self.normalized.get_or_init(|| {
            if self.arch.cpu != Cpu::Aarch64 {
                return Normalized::default();
            }
            let normalized =
                augmentation::normalize(Bytes::new(self.eh_frame.bytes.as_ref(), self.endian), self.arch.cpu);
            Normalized {
                bytes: match normalized.data {
                    Cow::Owned(bytes) => Some(bytes),
                    Cow::Borrowed(_) => None,
                },
                key_b: normalized.key_b,
            }
        })
    }

    fn row(&self, section: &gimli::EhFrame<Slice<'_>>, svma: u64) -> Option<Row> {
        let fde = self.fde(section, self.offset(section, svma)?)?;
        let mut context = UnwindContext::<usize, Storage>::new_in();
        let found = fde.unwind_info_for_address(section, &self.bases, &mut context, svma);
        let row = found.ok()?;
        Some(Row {
            cfa: row.cfa().clone(),
            rules: row.registers().cloned().collect(),
            ra: fde.cie().return_address_register(),
            signal_frame: fde.is_signal_trampoline(),
        })
    }

    pub(crate) fn fde<'s>(
        &self,
        section: &gimli::EhFrame<Slice<'s>>,
        offset: usize,
    ) -> Option<gimli::FrameDescriptionEntry<Slice<'s>>> {
        let fde = section.fde_from_offset(&self.bases, offset.into(), |section, bases, cie| {
            let cie = section.cie_from_offset(bases, cie)?;
            match cie.entry_len() <= MAX_CIE_BYTES {
                true => Ok(cie),
                false => Err(gimli::Error::NotCieId(cie.offset() as u64)),
            }
        });
        fde.ok().filter(|fde| fde.entry_len() <= MAX_FDE_BYTES)
    }

    /// The offset of the last FDE that begins at or before `svma`.
    fn offset(&self, section: &gimli::EhFrame<Slice<'_>>, svma: u64) -> Option<usize> {
        if let Some(header) = &self.header
            && let Some(found) = self.search(header, svma)
        {
            return Some(found);
        }
        let starts = self.starts.get_or_init(|| self.list(section));
        let after = starts.partition_point(|(start, _)| *start <= svma);
        Some(starts.get(after.checked_sub(1)?)?.1)
    }

    fn search(&self, header: &Held<B>, svma: u64) -> Option<usize> {
        let parsed = gimli::EhFrameHdr::new(header.bytes.as_ref(), run_time(self.endian));
        let parsed = parsed.parse(&self.bases, self.arch.pointer_bytes).ok()?;
        let found = parsed.table()?.lookup(svma, &self.bases).ok()?;
        let offset = found.direct().ok()?.checked_sub(self.eh_frame.address)?;
        usize::try_from(offset).ok()
    }

    fn list(&self, section: &gimli::EhFrame<Slice<'_>>) -> Vec<(u64, usize)> {
        let (offsets, _) = eh_frame::fdes(Bytes::new(self.eh_frame.bytes.as_ref(), self.endian));
        let start = |offset| Some((self.fde(section, offset)?.initial_address(), offset));
        let mut starts: Vec<(u64, usize)> = offsets.into_iter().filter_map(start).collect();
        // If several have one start, the first in the section counts.
        starts.sort_unstable();
        starts.dedup_by_key(|(start, _)| *start);
        starts
    }
}

/// A frame's registers and memory.
struct Target<'r, W> {
    arch: &'static Arch,
    registers: &'r Registers,
    word: W,
}

impl<W: FnMut(u64) -> Option<u64>> evaluate::Machine for Target<'_, W> {
    fn register(&mut self, register: gimli::Register) -> Option<u64> {
        // Linkers' rules for linkage tables read the pc by the column of the return address.
        if register.0 == u16::from(self.arch.ra.0) && !self.arch.link_register {
            return Some(self.registers.pc);
        }
        self.registers.get(number(register)?)
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        (self.word)(address)
    }
}

impl<W: FnMut(u64) -> Option<u64>> Target<'_, W> {
    /// The value of the caller's `register` by this rule.
    fn value(
        &mut self,
        section: &gimli::EhFrame<Slice<'_>>,
        cfa: u64,
        register: gimli::Register,
        rule: &RegisterRule<usize>,
    ) -> Option<u64> {
        match rule {
            RegisterRule::SameValue => self.registers.get(number(register)?),
            RegisterRule::Offset(offset) => {
                let slot = cfa.wrapping_add_signed(*offset);
                // In an epilogue the register has been popped, but compilers still describe it as
                // saved in a slot that is below the stack pointer by then (gcc 12 on x86-64). A
                // whole frame below it is on another stack (OCaml 5).
                let below = match self.registers.get(self.arch.sp) {
                    Some(sp) if sp <= cfa && slot < sp => sp - slot,
                    _ => return evaluate::Machine::word(self, slot),
                };
                let kept = self.registers.get(number(register)?);
                match below > self.arch.red_zone {
                    true => kept,
                    // A sample's copy does not contain it.
                    false => evaluate::Machine::word(self, slot).or(kept),
                }
            }
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => self.registers.get(number(*other)?),
            RegisterRule::Expression(found) => {
                let slot = evaluate::evaluate(section, found, Some(cfa), self)?;
                evaluate::Machine::word(self, slot)
            }
            RegisterRule::ValExpression(found) => evaluate::evaluate(section, found, Some(cfa), self),
            RegisterRule::Constant(value) => Some(*value),
            _ => None,
        }
    }
}

fn number(register: gimli::Register) -> Option<Register> {
    let number = u8::try_from(register.0).ok()?;
    (usize::from(number) < REGISTERS).then_some(Register(number))
}

fn caller<W: FnMut(u64) -> Option<u64>>(
    section: &gimli::EhFrame<Slice<'_>>,
    row: &Row,
    mut machine: Target<'_, W>,
) -> Option<Caller> {
    let (arch, callee) = (machine.arch, machine.registers);
    let cfa = match &row.cfa {
        CfaRule::RegisterAndOffset { register, offset } => callee.get(number(*register)?)?.wrapping_add_signed(*offset),
        CfaRule::Expression(expression) => evaluate::evaluate(section, expression, None, &mut machine)?,
    };
    let rule = |register: gimli::Register| {
        row.rules
            .iter()
            .find(|(known, _)| *known == register)
            .map(|(_, rule)| rule)
    };
    let ra = match rule(row.ra) {
        Some(rule) => machine.value(section, cfa, row.ra, rule)?,
        None => callee.get(number(row.ra).filter(|_| arch.link_register)?)?,
    };
    let mut registers = Registers::new(arch.strip(ra));
    for &register in arch.preserved {
        if rule(gimli::Register(register.0.into())).is_none()
            && let Some(value) = callee.get(register)
        {
            registers.set(register, value);
        }
    }
    registers.set(arch.sp, cfa.wrapping_add_signed(arch.sp_from_cfa));
    for (register, rule) in &row.rules {
        let is_value = *register != row.ra || arch.link_register && row.signal_frame;
        let Some(known) = number(*register).filter(|_| is_value) else {
            continue;
        };
        if let Some(value) = machine.value(section, cfa, *register, rule) {
            registers.set(known, value);
        }
    }
    Some(Caller {
        cfa,
        registers,
        signal_frame: row.signal_frame,
    })
}
