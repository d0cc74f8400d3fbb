//! A single step.

use backtrail_arch::{Arch, REGISTERS, Register, Registers};
use backtrail_sframe::{Base, Location, Rule};

use crate::cache::{PackedRule, TableRule};
use crate::trampoline;
use crate::{Coverage, Described, Memory, Modules, OnTop, RuleCache, Table, Uncovered};

/// Words of a frame that are looked through. Erlang's frames may have 1,024, and seldom have
/// thirty; a hostile program may have this many in each of its frames.
const MOST_WORDS: u64 = 128;
/// Words that code in an interpreter's frame may have on the stack. LuaJIT's traces take up to 256
/// slots of 4 bytes, and mostly a few.
const MOST_BELOW: u64 = 34;
/// A return address has none of these bits.
const TAG: u64 = 3;

/// The kind of a frame's program counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressKind {
    /// The instruction that is about to run, in the innermost frame or in code that a signal
    /// interrupted.
    Pc,
    /// A return address. The call lies before it, perhaps as the last instruction of its function,
    /// so look-ups use the byte before.
    Ra,
}

/// Why a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// The outermost frame: its table says so, or its return address is 0.
    EndOfStack,
    /// The address lies in no module.
    NoModule,
    /// The module's table does not cover the address, or is damaged there.
    NoTable,
    /// The word at this address cannot be read.
    Unreadable(u64),
    /// The caller's frame is not above this frame.
    DidNotAdvance,
    /// The rule needs a register whose value is unknown in this frame.
    NotExpressible(Register),
    /// The caller's limit of frames was reached.
    Limit,
    /// A supposed return address, found without a table row, follows no call that leads here.
    NoCall,
    /// A chain of frame pointers ends in code that no table marks as the start of a stack.
    NoStart,
}

impl Stop {
    /// Whether a table says that a value is lost: no frame has the register that it names.
    pub(crate) fn is_of_lost_value(self) -> bool {
        matches!(self, Stop::NotExpressible(register) if usize::from(register.0) >= REGISTERS)
    }
}

/// Whether a step has lost the frame pointer because a table says so: then the other registers that
/// the callees have saved are lost, too.
pub(crate) fn loses_frame_pointer(arch: &Arch, callee: &Registers, caller: &Registers) -> bool {
    callee.get(arch.fp).is_some() && caller.get(arch.fp).is_none()
}

/// Changes the `registers` of a frame to its caller's, and returns the kind of the caller's program
/// counter. On failure, they stay unchanged.
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

/// A look-up's result: how to leave a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// A rule that fits into a word.
    Packed(PackedRule),
    /// A rule that does not.
    Rule(TableRule),
    FramePointer,
    NoModule,
}

impl Found {
    /// Whether the step needs only SP and FP; `uncovered` gives how code without a row is left.
    pub(crate) fn is_narrow(&self, arch: &Arch, uncovered: impl FnOnce(bool) -> Uncovered) -> bool {
        let is_one = |location: Location| match location.base {
            Base::Cfa => true,
            Base::Register(number) => number == arch.sp.0 || number == arch.fp.0,
        };
        let needs_these = |rule: Rule| is_one(rule.cfa) && is_one(rule.ra) && rule.fp.is_none_or(is_one);
        let shown = |in_table| match uncovered(in_table) {
            Uncovered::Rule(rule) | Uncovered::Exact(rule) | Uncovered::Linked(rule) => needs_these(rule),
            Uncovered::Leaf(_) => false,
            Uncovered::Tagged { stack, .. } => stack.is_none_or(is_one),
            Uncovered::FramePointer | Uncovered::Unknown | Uncovered::Outermost | Uncovered::Hosted { .. } => true,
        };
        let Some(rule) = self.rule(arch) else {
            return matches!(self, Found::NoModule) || shown(false);
        };
        match rule {
            TableRule::Caller { rule, .. } => needs_these(rule),
            TableRule::Signal | TableRule::Outermost => true,
            TableRule::NotCovered => shown(true),
        }
    }

    /// Whether a step that found no caller would have found none with any frame pointer. Rules with
    /// a CFA from SP read FP from the stack if at all, after what can fail.
    pub(crate) fn ends_without_fp(&self) -> bool {
        match self {
            Found::Packed(rule) => rule.is_outermost() || rule.is_plain() && !rule.is_from_fp(),
            _ => false,
        }
    }

    /// What a table says.
    fn rule(&self, arch: &Arch) -> Option<TableRule> {
        match self {
            Found::NoModule | Found::FramePointer => None,
            Found::Packed(packed) => Some(packed.unpack(arch)),
            Found::Rule(rule) => Some(*rule),
        }
    }
}

/// The address to look up for a frame's rule.
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
        Coverage::Described { id, bias } => return describe(arch, pc, kind, (id, bias), modules, cache),
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
    keep(arch, pc, kind, (table.id, address), rule, modules, cache)
}

/// Finds the rule of a frame in a module without a table.
#[inline(never)]
fn describe(
    arch: &Arch,
    pc: u64,
    kind: AddressKind,
    (id, bias): (u32, u64),
    modules: &impl Modules,
    cache: &mut RuleCache<'_>,
) -> Found {
    let looked_up = looked_up(pc, kind);
    let address = looked_up.wrapping_sub(bias);
    if kind == AddressKind::Ra
        && let Some(rule) = cache.get(id, address)
    {
        return Found::Packed(rule);
    }
    let rule = match modules.described(looked_up) {
        Described::Caller { rule, signal_frame } => called(arch, rule, signal_frame),
        Described::Outermost => TableRule::Outermost,
        Described::NotCovered => TableRule::NotCovered,
    };
    keep(arch, pc, kind, (id, address), rule, modules, cache)
}

/// Puts a rule into the cache, under its table and address, if it fits.
fn keep(
    arch: &Arch,
    pc: u64,
    kind: AddressKind,
    (id, address): (u32, u64),
    rule: TableRule,
    modules: &impl Modules,
    cache: &mut RuleCache<'_>,
) -> Found {
    let Some(packed) = PackedRule::new(arch, rule) else {
        return Found::Rule(rule);
    };
    // Innermost addresses mostly occur once: they would only evict call sites, which recur.
    if kind == AddressKind::Ra {
        match packed.is_plain() && modules.is_lasting(looked_up(pc, kind)) {
            true => cache.put_at(pc, packed),
            false => cache.put(id, address, packed),
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
            Some(rule) => called(arch, rule, found.function.signal_frame),
            None => TableRule::Outermost,
        },
        Ok(None) | Err(_) => TableRule::NotCovered,
    }
}

fn called(arch: &Arch, rule: Rule, signal_frame: bool) -> TableRule {
    match signal_frame && is_kernels(arch, &rule) {
        true => TableRule::Signal,
        false => TableRule::Caller { rule, signal_frame },
    }
}

/// The meaning of the word on top of the stack, or in the link register, for code that no table row
/// describes.
fn on_top<M: Modules>(
    arch: &Arch,
    registers: &Registers,
    kind: AddressKind,
    modules: &M,
    memory: &mut impl Memory,
) -> OnTop {
    if !M::LOOKS_ON_TOP || kind == AddressKind::Ra {
        return OnTop::Other;
    }
    let word = match arch.link_register {
        false => registers.get(arch.sp).and_then(|sp| memory.word(sp)),
        true => {
            let in_register = registers.get(arch.ra);
            let fp = registers.get(arch.fp);
            let saved = fp.and_then(|fp| memory.word(fp.wrapping_add_signed(arch.ra_from_fp)));
            in_register
                .map(|ra| arch.strip(ra))
                .filter(|ra| saved.map(|ra| arch.strip(ra)) != Some(*ra))
        }
    };
    let frame = match (registers.get(arch.sp), registers.get(arch.fp)) {
        (Some(sp), Some(fp)) => fp.saturating_sub(sp),
        _ => 0,
    };
    word.map_or(OnTop::Other, |word| modules.on_top(word, registers.pc, frame))
}

/// Steps to the caller of code on a stack of tagged words. Each word of such a stack is a term,
/// whose two low bits are its tag, or a return address, whose low bits are clear: no term on a
/// stack has that tag. So a frame ends at the next return address, however large it is. Code that
/// helps compiled code, and was called with any alignment, is found on top of the stack only.
///
/// `stack` is where the code keeps its stack pointer, if that is not in its register; `rule` is
/// what its instructions show; `heap` is the register with an address in the same memory.
fn tagged_step(
    arch: &Arch,
    registers: &mut Registers,
    kind: AddressKind,
    (stack, rule, heap): (Option<Location>, Option<Rule>, Register),
    modules: &impl Modules,
    memory: &mut impl Memory,
) -> Result<AddressKind, Stop> {
    let word_bytes = u64::from(arch.pointer_bytes);
    let sp = match stack {
        Some(location) => evaluate(location, None, registers, memory)?,
        None => {
            let sp = registers.get(arch.sp).ok_or(Stop::NotExpressible(arch.sp))?;
            // The frame pointer is known if the step before this one did not come from such code.
            let is_on_stack = match kind {
                AddressKind::Pc => registers
                    .get(heap)
                    .is_some_and(|heap| heap < sp && modules.is_same_stack(heap, sp)),
                AddressKind::Ra => registers.get(arch.fp).is_none(),
            };
            if !is_on_stack {
                return Err(Stop::NoCall);
            }
            sp
        }
    };
    let callee = looked_up(registers.pc, kind);
    let mut found = None;
    for index in 0..MOST_WORDS {
        let slot = sp.wrapping_add(index * word_bytes);
        let word = memory.word(slot).ok_or(Stop::Unreadable(slot))?;
        let is_on_top = index == 0 && kind == AddressKind::Pc;
        let may_return = word != 0 && (word & TAG == 0 || is_on_top);
        if !may_return || !matches!(modules.coverage(word.wrapping_sub(1)), Coverage::FramePointer) {
            continue;
        }
        if modules.is_called(word, callee) {
            found = Some((slot, word));
            break;
        }
        // Nothing else on such a stack leads into code.
        if word & TAG == 0 {
            return Err(Stop::NoCall);
        }
    }
    let (slot, ra) = found.ok_or(Stop::NoCall)?;
    // Where a function has just begun, the words of its frame are what was there before.
    let shown = rule
        .filter(|_| kind == AddressKind::Pc && stack.is_none())
        .and_then(|rule| {
            let cfa = evaluate(rule.cfa, None, registers, memory).ok()?;
            let is_above = rule.ra == Location::saved(rule.ra.offset);
            is_above.then(|| cfa.wrapping_add_signed(rule.ra.offset.into()))
        });
    if let Some(shown) = shown.filter(|shown| *shown != slot && *shown > sp)
        && let Some(word) = memory.word(shown)
        && word & TAG == 0
        && modules.is_called(word, callee)
    {
        return Err(Stop::NoCall);
    }
    become_caller(arch, registers, ra, slot.wrapping_add(word_bytes), None);
    Ok(AddressKind::Ra)
}

/// Steps to the caller of an interpreter from code that the interpreter has jumped to. What that
/// code keeps on the stack lies below the interpreter's frame, so the return address of the call
/// that led to the interpreter is the first one that can be its own.
fn hosted_step(
    arch: &Arch,
    registers: &mut Registers,
    (function, rule): ((u64, u64), Rule),
    modules: &impl Modules,
    memory: &mut impl Memory,
) -> Result<AddressKind, Stop> {
    let sp = registers.get(arch.sp).ok_or(Stop::NotExpressible(arch.sp))?;
    let word_bytes = u64::from(arch.pointer_bytes);
    for below in 0..MOST_BELOW {
        let cfa = sp
            .wrapping_add(below * word_bytes)
            .wrapping_add_signed(rule.cfa.offset.into());
        let slot = cfa.wrapping_add_signed(rule.ra.offset.into());
        let ra = memory.word(slot).ok_or(Stop::Unreadable(slot))?;
        if modules.calls_into(ra, function) {
            let fp = rule.fp.and_then(|fp| evaluate(fp, Some(cfa), registers, memory).ok());
            become_caller(arch, registers, ra, cfa, fp);
            return Ok(AddressKind::Ra);
        }
    }
    Err(Stop::NoCall)
}

/// The caller of a function that has not changed its stack yet.
fn return_from_entry(arch: &Arch, registers: &mut Registers, memory: &mut impl Memory) -> Result<AddressKind, Stop> {
    let sp = registers.get(arch.sp).ok_or(Stop::NotExpressible(arch.sp))?;
    let ra = memory.word(sp).ok_or(Stop::Unreadable(sp))?;
    let fp = registers.get(arch.fp);
    become_caller(arch, registers, ra, sp.wrapping_add(arch.pointer_bytes.into()), fp);
    Ok(AddressKind::Ra)
}

/// Takes a step by a look-up's result.
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
            let (callee, called) = (*registers, looked_up(registers.pc, kind));
            let kind = rule_step(arch, registers, kind, &rule, signal_frame, memory)?;
            if !modules.is_called(registers.pc, called) {
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

/// Steps out of code that no table row describes. The result is accepted only if it follows a call,
/// and the end of a chain does not prove that the stack is whole.
fn uncovered_step(
    arch: &Arch,
    registers: &mut Registers,
    kind: AddressKind,
    in_table: bool,
    modules: &impl Modules,
    memory: &mut impl Memory,
) -> Result<AddressKind, Stop> {
    let callee = *registers;
    let is_trampoline = kind == AddressKind::Pc && !in_table && trampoline::is_at(arch, &callee, memory);
    let mut prove = |step: &mut dyn FnMut(&mut Registers) -> Result<AddressKind, Stop>| {
        let mut caller = callee;
        match step(&mut caller) {
            Ok(_) if !is_same_stack(arch, &callee, &caller, modules) => Err(Stop::DidNotAdvance),
            Ok(_) if !modules.is_called(caller.pc, looked_up(callee.pc, kind)) => Err(Stop::NoCall),
            Ok(kind) => {
                *registers = caller;
                Ok(kind)
            }
            Err(Stop::EndOfStack) => Err(Stop::NoStart),
            Err(stop) => Err(stop),
        }
    };
    if is_trampoline {
        return prove(&mut |caller| return_from_entry(arch, caller, memory));
    }
    match modules.uncovered(callee.pc, kind, in_table) {
        Uncovered::Unknown => Err(Stop::NoTable),
        Uncovered::Outermost => Err(Stop::EndOfStack),
        Uncovered::Exact(rule) => rule_step(arch, registers, kind, &rule, false, memory),
        found @ (Uncovered::FramePointer | Uncovered::Linked(_) | Uncovered::Leaf(_)) => {
            match on_top(arch, &callee, kind, modules, memory) {
                OnTop::Other => prove(&mut |caller| match found {
                    Uncovered::Linked(rule) => rule_step(arch, caller, kind, &rule, false, memory),
                    _ => uncovered_frame_pointer_step(arch, caller, modules, memory),
                }),
                OnTop::ReturnAddress => prove(&mut |caller| return_from_entry(arch, caller, memory)),
                OnTop::Unclear => match found {
                    Uncovered::Leaf(rule) => prove(&mut |caller| rule_step(arch, caller, kind, &rule, false, memory)),
                    _ => Err(Stop::NoCall),
                },
            }
        }
        Uncovered::Tagged { stack, rule, heap } => {
            tagged_step(arch, registers, kind, (stack, rule, heap), modules, memory)
        }
        Uncovered::Hosted { function, rule } => {
            prove(&mut |caller| hosted_step(arch, caller, (function, rule), modules, memory))
        }
        Uncovered::Rule(rule) => {
            let by_rule = prove(&mut |caller| {
                let kind = rule_step(arch, caller, kind, &rule, false, memory)?;
                pop_return_address(arch, caller, &rule);
                Ok(kind)
            });
            match by_rule {
                // The instructions were misread; code that has made a call mostly keeps a frame
                // pointer.
                Err(Stop::NoCall | Stop::NoStart) if kind == AddressKind::Ra => {
                    prove(&mut |caller| uncovered_frame_pointer_step(arch, caller, modules, memory))
                }
                stepped => stepped,
            }
        }
    }
}

fn uncovered_frame_pointer_step(
    arch: &Arch,
    caller: &mut Registers,
    modules: &impl Modules,
    memory: &mut impl Memory,
) -> Result<AddressKind, Stop> {
    let kind = frame_pointer_step(arch, caller, memory)?;
    forget_guessed_end(arch, caller, kind, modules);
    Ok(kind)
}

/// After a step by frame pointers: where calls leave the return address in a register, the frame
/// pointer need not point to the end of the frame. Callers whose frames tables describe need the
/// true one.
pub(crate) fn forget_guessed_end(arch: &Arch, caller: &mut Registers, kind: AddressKind, modules: &impl Modules) {
    let is_described = || {
        let found = find(arch, caller.pc, kind, modules, &mut RuleCache::new(&mut []));
        found.rule(arch).is_some_and(|rule| rule != TableRule::NotCovered)
    };
    if arch.link_register && is_described() {
        caller.forget(arch.sp);
    }
}

/// The CFA of a rule from instructions may be an address that the frame holds, with the return
/// address there or above: the caller's stack begins behind it.
fn pop_return_address(arch: &Arch, caller: &mut Registers, rule: &Rule) {
    let is_above = rule.ra.base == Base::Cfa && rule.ra.deref && rule.ra.offset >= 0;
    if let Some(cfa) = caller.get(arch.sp).filter(|_| is_above && !arch.link_register) {
        let sp = cfa
            .wrapping_add_signed(rule.ra.offset.into())
            .wrapping_add(arch.pointer_bytes.into());
        caller.set(arch.sp, sp);
    }
}

/// Whether the callee's frame ends in the stack in which it begins.
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
    // A caller's link register was overwritten by its own call.
    if kind == AddressKind::Ra && rule.ra == link_register(arch) {
        return Err(Stop::NotExpressible(arch.ra));
    }
    let sp = registers.get(arch.sp).ok_or(Stop::NotExpressible(arch.sp))?;
    let cfa = evaluate(rule.cfa, None, registers, memory)?;
    let caller_sp = cfa.wrapping_add_signed(arch.sp_from_cfa);
    // A leaf on a machine with a link register may have no frame at all, glibc's vfork keeps its
    // return address in a register, and OCaml's caml_c_call has popped it, or there keeps it in
    // another register; all other code changes SP. A signal may have come from another stack.
    let is_other = |register| registers.get(register).is_none_or(|ra| arch.strip(ra) != registers.pc);
    let may_stay = || kind == AddressKind::Pc || kept_return_address(arch, rule).is_some_and(is_other);
    let advances = caller_sp > sp || caller_sp == sp && may_stay();
    let switches = switches_stacks(arch, rule);
    if !signal_frame && !advances && !switches {
        return Err(match preserved_base(arch, rule) {
            // It may hold the end of a stack that the code has left.
            Some(register) => Stop::NotExpressible(register),
            None => Stop::DidNotAdvance,
        });
    }
    let ra = arch.strip(evaluate(rule.ra, Some(cfa), registers, memory)?);
    let fp = match rule.fp {
        None => registers.get(arch.fp),
        Some(location) if !switches && is_popped(arch, location, registers, sp, cfa) => registers.get(arch.fp),
        Some(location) => match evaluate(location, Some(cfa), registers, memory) {
            Ok(fp) => Some(fp),
            // In an epilogue the register is popped, but compilers still say that it is saved in a
            // slot that is now below the stack pointer (gcc 12, every function that saves rbp). A
            // sample's copy does not contain it.
            Err(Stop::Unreadable(slot)) if slot < sp && sp - slot <= arch.red_zone => registers.get(arch.fp),
            // The step works without it; only a caller that needs it will stop.
            Err(_) => None,
        },
    };
    if ra == 0 {
        // A stack cannot begin in the middle of a switch from one stack to another.
        return Err(if switches { Stop::NoStart } else { Stop::EndOfStack });
    }
    become_caller(arch, registers, ra, caller_sp, fp);
    Ok(if signal_frame { AddressKind::Pc } else { AddressKind::Ra })
}

/// The register that the CFA is relative to, if it is neither SP nor FP.
fn preserved_base(arch: &Arch, rule: &Rule) -> Option<Register> {
    match rule.cfa.base {
        Base::Register(number) if ![arch.sp.0, arch.fp.0].contains(&number) => Some(Register(number)),
        _ => None,
    }
}

/// Whether the CFA is stored in memory that FP points to. Any FP points to some word: if FP belongs
/// to another frame, as after code that keeps none, so does the result.
fn is_stored_at_fp(arch: &Arch, rule: &Rule) -> bool {
    rule.cfa.deref && rule.cfa.base == Base::Register(arch.fp.0) && !switches_stacks(arch, rule)
}

/// Whether the caller's frame lies in another stack: FP leads there, and the return address is
/// relative to FP rather than to the CFA. Go's runtime makes such calls from a goroutine's stack to
/// its thread's.
fn switches_stacks(arch: &Arch, rule: &Rule) -> bool {
    let by_fp = |location: Location| location.base == Base::Register(arch.fp.0);
    by_fp(rule.cfa) && by_fp(rule.ra) && rule.ra.deref
}

/// Whether FP, supposedly saved where FP itself points, has been restored: it points outside this
/// frame. In epilogues of functions that realign their stack, compilers still claim that it is
/// saved (gcc 12).
#[inline(always)]
fn is_popped(arch: &Arch, saved: Location, registers: &Registers, sp: u64, cfa: u64) -> bool {
    saved.deref
        && saved.base == Base::Register(arch.fp.0)
        && registers
            .get(arch.fp)
            .is_some_and(|fp| !(sp..cfa).contains(&fp.wrapping_add_signed(i64::from(saved.offset))))
}

/// Sets the caller's registers; all that a step does not restore become unknown.
#[inline]
fn become_caller(arch: &Arch, registers: &mut Registers, pc: u64, sp: u64, fp: Option<u64>) {
    registers.forget_all();
    registers.pc = pc;
    registers.set(arch.sp, sp);
    if let Some(fp) = fp {
        registers.set(arch.fp, fp);
    }
}

/// Whether this is the rule of the kernel's own frame.
fn is_kernels(arch: &Arch, rule: &Rule) -> bool {
    rule.ra.deref
        && rule.ra.base == Base::Register(arch.sp.0)
        && i64::from(rule.ra.offset) == arch.signal_frame.pc_offset
        && !arch.signal_frame.registers.is_empty()
}

/// The kernel's frame contains every register of the interrupted code. A table describes only
/// three, and the interrupted code may need others (a leaf that has realigned its stack through
/// r10).
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

/// The caller by the chain of saved frame pointers; correct only if the code keeps one.
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

/// The register in which code with a link register keeps its return address during calls, if it is
/// not saved.
fn kept_return_address(arch: &Arch, rule: &Rule) -> Option<Register> {
    let Base::Register(number) = rule.ra.base else {
        return None;
    };
    let register = Register(number);
    let is_kept = arch.link_register && register != arch.fp && arch.preserved.contains(&register);
    (is_kept && rule.ra == Location::register(number, 0)).then_some(register)
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
