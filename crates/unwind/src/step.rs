//! One step.

use backtrail_arch::{Arch, Register, Registers};
use backtrail_sframe::{Base, Location, Rule};

use crate::cache::{PackedRule, TableRule};
use crate::{Coverage, Memory, Modules, OnTop, RuleCache, Table, Uncovered};

/// What a frame's program counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressKind {
    /// The instruction that is about to run: the innermost frame's, and that of code which a signal
    /// interrupted.
    Pc,
    /// A return address. The call lies before it, perhaps as the last instruction of its function,
    /// so look-ups use the byte before.
    Ra,
}

/// Why a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// The outermost frame: its table says so, or has a return address of 0 for it.
    EndOfStack,
    /// The address lies in no module.
    NoModule,
    /// The module's table does not cover the address, or is damaged there.
    NoTable,
    /// The word at this address cannot be read.
    Unreadable(u64),
    /// The caller's frame is not above this one.
    DidNotAdvance,
    /// The rule needs a register whose value is not known in this frame.
    NotExpressible(Register),
    /// More frames than the caller's limit.
    Limit,
    /// What stands for a return address, found without a table row, follows no call that leads
    /// here.
    NoCall,
    /// A chain of frame pointers ends in code that no table names as the start of a stack.
    NoStart,
}

/// Turns the `registers` of a frame into its caller's, and says what the caller's program counter
/// is. Where that fails they stay as they are.
pub fn step(
    arch: &Arch,
    registers: &mut Registers,
    kind: AddressKind,
    modules: &impl Modules,
    memory: &mut impl Memory,
    cache: &mut RuleCache<'_>,
) -> Result<AddressKind, Stop> {
    let found = find(arch, registers.pc, kind, modules, cache);
    follow(arch, registers, kind, &found, modules, memory)
}

/// What says how to leave a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// A rule that fits into a word.
    Packed(PackedRule),
    /// One that does not.
    Rule(TableRule),
    FramePointer,
    NoModule,
}

impl Found {
    /// Whether the step needs no registers but SP and FP; `uncovered` says how code without a row
    /// is left.
    pub(crate) fn is_narrow(&self, arch: &Arch, uncovered: impl FnOnce(bool) -> Uncovered) -> bool {
        let is_one = |location: Location| match location.base {
            Base::Cfa => true,
            Base::Register(number) => number == arch.sp.0 || number == arch.fp.0,
        };
        let needs_these = |rule: Rule| is_one(rule.cfa) && is_one(rule.ra) && rule.fp.is_none_or(is_one);
        let shown = |in_table| match uncovered(in_table) {
            Uncovered::Rule(rule) | Uncovered::Linked(rule) => needs_these(rule),
            Uncovered::FramePointer | Uncovered::Unknown => true,
        };
        let rule = match self {
            Found::NoModule => return true,
            Found::FramePointer => return shown(false),
            Found::Packed(packed) => packed.unpack(arch),
            Found::Rule(rule) => *rule,
        };
        match rule {
            TableRule::Caller { rule, .. } => needs_these(rule),
            TableRule::Signal | TableRule::Outermost => true,
            TableRule::NotCovered => shown(true),
        }
    }
}

/// The address by which a frame's rule is found.
#[inline(always)]
fn looked_up(pc: u64, kind: AddressKind) -> u64 {
    match kind {
        AddressKind::Pc => pc,
        AddressKind::Ra => pc.wrapping_sub(1),
    }
}

/// Finds the rule of a frame.
#[inline(always)]
pub(crate) fn find<M: Modules>(
    arch: &Arch,
    pc: u64,
    kind: AddressKind,
    modules: &M,
    cache: &mut RuleCache<'_>,
) -> Found {
    if M::CAN_LAST
        && kind == AddressKind::Ra
        && pc != 0
        && let Some(rule) = cache.at(pc)
    {
        return Found::Packed(rule);
    }
    let table = match modules.coverage(looked_up(pc, kind)) {
        Coverage::Table(table) => table,
        Coverage::FramePointer => return Found::FramePointer,
        Coverage::NoModule => return Found::NoModule,
    };
    let address = looked_up(pc, kind).wrapping_sub(table.bias);
    if kind == AddressKind::Ra
        && let Some(rule) = cache.get(table.id, address)
    {
        return Found::Packed(rule);
    }
    look_up_and_keep(arch, pc, kind, &table, modules, cache)
}

#[inline(never)]
fn look_up_and_keep(
    arch: &Arch,
    pc: u64,
    kind: AddressKind,
    table: &Table<'_>,
    modules: &impl Modules,
    cache: &mut RuleCache<'_>,
) -> Found {
    let address = looked_up(pc, kind).wrapping_sub(table.bias);
    let rule = look_up(arch, table, address);
    let Some(packed) = PackedRule::new(arch, rule) else {
        return Found::Rule(rule);
    };
    // Innermost addresses are mostly met once: they would only push out call sites, which come
    // again and again.
    if kind == AddressKind::Ra {
        match packed.is_plain() && modules.is_lasting(looked_up(pc, kind)) {
            true => cache.put_at(pc, packed),
            false => cache.put(table.id, address, packed),
        }
    }
    Found::Packed(packed)
}

fn look_up(arch: &Arch, table: &Table<'_>, address: u64) -> TableRule {
    let found = match table.index {
        Some(index) => table.section.lookup_by(index, address),
        None => table.section.lookup(address),
    };
    match found {
        Ok(Some(found)) => match found.row.rule {
            Some(rule) if found.function.signal_frame && is_kernels(arch, &rule) => TableRule::Signal,
            Some(rule) => TableRule::Caller {
                rule,
                signal_frame: found.function.signal_frame,
            },
            None => TableRule::Outermost,
        },
        Ok(None) | Err(_) => TableRule::NotCovered,
    }
}

/// What is on top of the stack of code that no table row describes.
fn on_top<M: Modules>(
    arch: &Arch,
    registers: &Registers,
    kind: AddressKind,
    modules: &M,
    memory: &mut impl Memory,
) -> OnTop {
    if !M::LOOKS_ON_TOP || kind == AddressKind::Ra || arch.link_register {
        return OnTop::Other;
    }
    match registers.get(arch.sp).and_then(|sp| memory.word(sp)) {
        Some(word) => modules.on_top(word, registers.pc),
        None => OnTop::Other,
    }
}

/// The caller of a function that has not touched its stack.
fn return_from_entry(arch: &Arch, registers: &mut Registers, memory: &mut impl Memory) -> Result<AddressKind, Stop> {
    let sp = registers.get(arch.sp).ok_or(Stop::NotExpressible(arch.sp))?;
    let ra = memory.word(sp).ok_or(Stop::Unreadable(sp))?;
    let fp = registers.get(arch.fp);
    become_caller(arch, registers, ra, sp.wrapping_add(arch.pointer_bytes.into()), fp);
    Ok(AddressKind::Ra)
}

/// Takes a step by what was found.
pub(crate) fn follow(
    arch: &Arch,
    registers: &mut Registers,
    kind: AddressKind,
    found: &Found,
    modules: &impl Modules,
    memory: &mut impl Memory,
) -> Result<AddressKind, Stop> {
    let rule = match found {
        Found::Packed(packed) => packed.unpack(arch),
        Found::Rule(rule) => *rule,
        Found::FramePointer => return uncovered_step(arch, registers, kind, false, modules, memory),
        Found::NoModule => return Err(Stop::NoModule),
    };
    match rule {
        TableRule::Caller { rule, signal_frame } if !signal_frame && is_stored_at_fp(arch, &rule) => {
            let callee = *registers;
            let kind = rule_step(arch, registers, kind, &rule, signal_frame, memory)?;
            if !modules.is_called(registers.pc, callee.pc) {
                *registers = callee;
                return Err(Stop::NoCall);
            }
            Ok(kind)
        }
        TableRule::Caller { rule, signal_frame } => rule_step(arch, registers, kind, &rule, signal_frame, memory),
        TableRule::Signal => signal_step(arch, registers, memory),
        TableRule::Outermost => Err(Stop::EndOfStack),
        TableRule::NotCovered => uncovered_step(arch, registers, kind, true, modules, memory),
    }
}

/// A step out of code that no table row describes. What it leads to is believed only if it follows
/// a call, and a chain that merely ends is no proof of a whole stack.
fn uncovered_step(
    arch: &Arch,
    registers: &mut Registers,
    kind: AddressKind,
    in_table: bool,
    modules: &impl Modules,
    memory: &mut impl Memory,
) -> Result<AddressKind, Stop> {
    let callee = *registers;
    let mut prove = |step: &mut dyn FnMut(&mut Registers) -> Result<AddressKind, Stop>| {
        let mut caller = callee;
        match step(&mut caller) {
            Ok(_) if !is_same_stack(arch, &callee, &caller, modules) => Err(Stop::DidNotAdvance),
            Ok(_) if !modules.is_called(caller.pc, callee.pc) => Err(Stop::NoCall),
            Ok(kind) => {
                *registers = caller;
                Ok(kind)
            }
            Err(Stop::EndOfStack) => Err(Stop::NoStart),
            Err(stop) => Err(stop),
        }
    };
    match modules.uncovered(callee.pc, kind, in_table) {
        Uncovered::Unknown => Err(Stop::NoTable),
        found @ (Uncovered::FramePointer | Uncovered::Linked(_)) => {
            match on_top(arch, &callee, kind, modules, memory) {
                OnTop::Other => prove(&mut |caller| match found {
                    Uncovered::Linked(rule) => rule_step(arch, caller, kind, &rule, false, memory),
                    _ => frame_pointer_step(arch, caller, memory),
                }),
                OnTop::ReturnAddress => prove(&mut |caller| return_from_entry(arch, caller, memory)),
                OnTop::Unclear => Err(Stop::NoCall),
            }
        }
        Uncovered::Rule(rule) => {
            let by_rule = prove(&mut |caller| rule_step(arch, caller, kind, &rule, false, memory));
            match by_rule {
                // The instructions were misread; code that has made a call mostly keeps a frame
                // pointer.
                Err(Stop::NoCall | Stop::NoStart) if kind == AddressKind::Ra => {
                    prove(&mut |caller| frame_pointer_step(arch, caller, memory))
                }
                stepped => stepped,
            }
        }
    }
}

/// Whether the frame that was left ends in the stack in which it begins.
fn is_same_stack(arch: &Arch, callee: &Registers, caller: &Registers, modules: &impl Modules) -> bool {
    match (callee.get(arch.sp), caller.get(arch.sp)) {
        (Some(sp), Some(end)) => sp == end || modules.is_same_stack(sp, end.wrapping_sub(1)),
        _ => true,
    }
}

fn rule_step(
    arch: &Arch,
    registers: &mut Registers,
    kind: AddressKind,
    rule: &Rule,
    signal_frame: bool,
    memory: &mut impl Memory,
) -> Result<AddressKind, Stop> {
    // A caller's link register was overwritten by its call.
    if kind == AddressKind::Ra && rule.ra == link_register(arch) {
        return Err(Stop::NotExpressible(arch.ra));
    }
    let sp = registers.get(arch.sp).ok_or(Stop::NotExpressible(arch.sp))?;
    let cfa = evaluate(rule.cfa, None, registers, memory)?;
    let caller_sp = cfa.wrapping_add_signed(arch.sp_from_cfa);
    // A leaf on a machine with a link register may have no frame at all, and glibc's vfork keeps
    // its return address in a register; nothing else keeps SP. A signal may have come from another
    // stack.
    let may_stay = kind == AddressKind::Pc && (arch.link_register || !rule.ra.deref);
    let advances = caller_sp > sp || caller_sp == sp && may_stay;
    let switches = switches_stacks(arch, rule);
    if !signal_frame && !advances && !switches {
        return Err(Stop::DidNotAdvance);
    }
    let ra = arch.strip(evaluate(rule.ra, Some(cfa), registers, memory)?);
    let fp = match rule.fp {
        None => registers.get(arch.fp),
        Some(location) if !switches && is_popped(arch, location, registers, sp, cfa) => registers.get(arch.fp),
        Some(location) => match evaluate(location, Some(cfa), registers, memory) {
            Ok(fp) => Some(fp),
            // In an epilogue the register is popped, and compilers go on saying that it is saved in
            // a slot which by now lies below the stack pointer (gcc 12, every function that saves
            // rbp). A sample's copy does not have it.
            Err(Stop::Unreadable(slot)) if slot < sp && sp - slot <= arch.red_zone => registers.get(arch.fp),
            // The frame can be left without it; only a caller that needs it will stop.
            Err(_) => None,
        },
    };
    if ra == 0 {
        // Nothing begins in the middle of a switch from one stack to another.
        return Err(if switches { Stop::NoStart } else { Stop::EndOfStack });
    }
    become_caller(arch, registers, ra, caller_sp, fp);
    Ok(if signal_frame { AddressKind::Pc } else { AddressKind::Ra })
}

/// Whether the CFA lies in memory that FP points to. Whatever FP is, there is such a word: if it
/// belongs to another frame, as behind code that keeps none, so does what is found.
fn is_stored_at_fp(arch: &Arch, rule: &Rule) -> bool {
    rule.cfa.deref && rule.cfa.base == Base::Register(arch.fp.0) && !switches_stacks(arch, rule)
}

/// Whether the caller's frame lies in another stack: FP leads there, and the return address counts
/// from FP too rather than from the CFA. Go's runtime calls so from a goroutine's stack into its
/// thread's.
fn switches_stacks(arch: &Arch, rule: &Rule) -> bool {
    let by_fp = |location: Location| location.base == Base::Register(arch.fp.0);
    by_fp(rule.cfa) && by_fp(rule.ra) && rule.ra.deref
}

/// Whether FP, said to be saved where FP itself points, has been restored: what it points to does
/// not lie in this frame. In epilogues of functions that realign their stack, compilers go on
/// saying so (gcc 12).
#[inline(always)]
fn is_popped(arch: &Arch, saved: Location, registers: &Registers, sp: u64, cfa: u64) -> bool {
    saved.deref
        && saved.base == Base::Register(arch.fp.0)
        && registers
            .get(arch.fp)
            .is_some_and(|fp| !(sp..cfa).contains(&fp.wrapping_add_signed(i64::from(saved.offset))))
}

/// Leaves known only what a step restores.
#[inline]
fn become_caller(arch: &Arch, registers: &mut Registers, pc: u64, sp: u64, fp: Option<u64>) {
    registers.forget_all();
    registers.pc = pc;
    registers.set(arch.sp, sp);
    if let Some(fp) = fp {
        registers.set(arch.fp, fp);
    }
}

/// Whether the rule is that of the kernel's own frame.
fn is_kernels(arch: &Arch, rule: &Rule) -> bool {
    rule.ra.deref
        && rule.ra.base == Base::Register(arch.sp.0)
        && i64::from(rule.ra.offset) == arch.signal_frame.pc_offset
        && !arch.signal_frame.registers.is_empty()
}

/// The kernel's frame holds every register of the interrupted code; a table keeps only three, and
/// the interrupted code may need others (a leaf that has realigned its stack through r10).
fn signal_step(arch: &Arch, registers: &mut Registers, memory: &mut impl Memory) -> Result<AddressKind, Stop> {
    let sp = registers.get(arch.sp).ok_or(Stop::NotExpressible(arch.sp))?;
    let mut read = |offset: i64| {
        let address = sp.wrapping_add_signed(offset);
        memory.word(address).ok_or(Stop::Unreadable(address))
    };
    let mut interrupted = Registers::new(read(arch.signal_frame.pc_offset)?);
    for &(register, offset) in arch.signal_frame.registers {
        interrupted.set(register, read(offset)?);
    }
    *registers = interrupted;
    Ok(AddressKind::Pc)
}

/// The caller by the chain of saved frame pointers. Right only where the code keeps one.
pub(crate) fn frame_pointer_step(
    arch: &Arch,
    registers: &mut Registers,
    memory: &mut impl Memory,
) -> Result<AddressKind, Stop> {
    let sp = registers.get(arch.sp).ok_or(Stop::NotExpressible(arch.sp))?;
    let fp = registers.get(arch.fp).ok_or(Stop::NotExpressible(arch.fp))?;
    if fp == 0 {
        return Err(Stop::EndOfStack);
    }
    let cfa = fp.wrapping_add_signed(arch.cfa_from_fp);
    if arch.cfa_from_fp == 0 || fp < sp || cfa < fp || !fp.is_multiple_of(u64::from(arch.pointer_bytes)) {
        return Err(Stop::DidNotAdvance);
    }
    let ra_address = fp.wrapping_add_signed(arch.ra_from_fp);
    let caller_fp = memory.word(fp).ok_or(Stop::Unreadable(fp))?;
    let ra = memory.word(ra_address).ok_or(Stop::Unreadable(ra_address))?;
    let ra = arch.strip(ra);
    if ra == 0 {
        return Err(Stop::EndOfStack);
    }
    become_caller(arch, registers, ra, cfa, Some(caller_fp));
    Ok(AddressKind::Ra)
}

fn link_register(arch: &Arch) -> Location {
    Location {
        base: Base::Register(if arch.link_register { arch.ra.0 } else { u8::MAX }),
        offset: 0,
        deref: false,
    }
}

fn evaluate(
    location: Location,
    cfa: Option<u64>,
    registers: &Registers,
    memory: &mut impl Memory,
) -> Result<u64, Stop> {
    let base = match location.base {
        Base::Cfa => cfa.ok_or(Stop::NoTable)?,
        Base::Register(number) => {
            let register = Register(number);
            registers.get(register).ok_or(Stop::NotExpressible(register))?
        }
    };
    let value = base.wrapping_add_signed(i64::from(location.offset));
    if location.deref {
        memory.word(value).ok_or(Stop::Unreadable(value))
    } else {
        Ok(value)
    }
}
