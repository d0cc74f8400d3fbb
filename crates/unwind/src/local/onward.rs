//! Continues walks by rows of program counter, stack pointer and frame pointer that end before the
//! stack does, because a row needs another register or no table describes the code. Both are rare,
//! so the walk is repeated, more slowly, with every register that call frame information restores.

use backtrail_arch::{Call, Registers};
use backtrail_callframe::{Caller, Frame as Whole, Missing, caller};

use super::ARCH;
use super::calls;
use super::frames::Bytes;
use super::loaded::Module;
use super::memory::{Bounds, OwnMemory};
use super::modules::Published;
use crate::circle::Circle;
use crate::sink::Sink;
use crate::step::{forget_guessed_end, loses_frame_pointer, step};
use crate::{AddressKind, Memo, MemoState, MemoStep, Memory, Position, RuleCache, Stop};

/// Counts the frames that were passed on.
struct Counted<'s, S> {
    sink: &'s mut S,
    frames: usize,
}

impl<S: Sink> Sink for Counted<'_, S> {
    fn push(&mut self, step: &MemoStep) {
        self.frames += 1;
        self.sink.push(step);
    }
}

/// What is known about the current frame, and the kind of its program counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here {
    whole: Whole,
    kind: AddressKind,
}

impl Here {
    pub(super) fn new(from: &Position) -> Here {
        Here {
            whole: Whole::new(from.registers),
            kind: from.kind,
        }
    }

    pub(super) fn position(&self) -> Position {
        Position {
            registers: self.whole.registers,
            kind: self.kind,
        }
    }

    fn looked_up(&self) -> u64 {
        match self.kind {
            AddressKind::Pc => self.whole.registers.pc,
            AddressKind::Ra => self.whole.registers.pc.wrapping_sub(1),
        }
    }

    fn sp(&self) -> Option<u64> {
        self.whole.registers.get(ARCH.sp)
    }
}

/// Whether a walk that ended for this reason may be continued in other ways.
#[inline(always)]
pub(super) fn may_go_on(stop: Stop) -> bool {
    matches!(stop, Stop::NotExpressible(_) | Stop::NoTable | Stop::NoModule)
}

/// Why the stack ends at its outermost frame, if that frame alone shows that [`go_on`], which
/// repeats the walk, would not get further: nothing describes its code, and its frame pointer leads
/// nowhere. Other registers do not matter then.
#[cold]
#[inline(never)]
pub(super) fn ends_at(
    outermost: &MemoStep,
    stop: Stop,
    published: &Published,
    memory: &mut OwnMemory<'_>,
) -> Option<Stop> {
    if !matches!(stop, Stop::NoTable | Stop::NoModule) {
        return None;
    }
    let Some(module) = published.module(outermost.looked_up()) else {
        // Nothing leads out of code that belongs to no module.
        return Some(stop).filter(|stop| *stop == Stop::NoModule);
    };
    let here = Here::new(&outermost.position(ARCH));
    let is_known = outermost.has(MemoStep::WHOLE) && here.whole.registers.get(ARCH.fp).is_some();
    let is_last = is_known
        && matches!(by_call_frames(&here, published, memory), Err(Missing::Entry))
        && by_frame_pointer(&here, module, published, memory).is_none();
    is_last.then_some(Stop::NoTable)
}

/// Continues after the walk from `first` has ended before `limit` frames. Values that the walk
/// keeps in registers are passed by value, or created anew.
#[cold]
#[inline(never)]
pub(super) fn go_on<S: Sink>(
    first: MemoStep,
    registers: &impl Fn() -> Registers,
    bounds: &Bounds,
    published: Published,
    limit: usize,
    mut sink: S,
) -> S {
    let mut window = None;
    let mut memory = OwnMemory::new(bounds, first.sp, &mut window);
    let from = Here {
        whole: Whole::new(registers()),
        kind: first.kind(),
    };
    let stop = walk(from, &published, &mut memory, limit, &mut sink);
    sink.end(stop);
    sink
}

/// The frame this many callers outwards, with all its registers that can be known.
pub(super) fn outwards(
    from: Here,
    callers: usize,
    published: &Published,
    memory: &mut OwnMemory<'_>,
) -> Result<Here, Stop> {
    let mut here = from;
    for _ in 0..callers {
        let mut narrow = here.whole.registers;
        here = match step(
            ARCH,
            &mut narrow,
            here.kind,
            published,
            memory,
            &mut RuleCache::new(&mut []),
        ) {
            Ok(kind) => Here {
                whole: match narrow.are_only(&[ARCH.sp, ARCH.fp]) {
                    true => beside(&here, &narrow, published, memory),
                    false => Whole::new(narrow),
                },
                kind,
            },
            Err(stop) if may_go_on(stop) => leave(&here, stop, published, memory)?,
            Err(stop) => return Err(stop),
        };
    }
    Ok(here)
}

fn walk(first: Here, published: &Published, memory: &mut OwnMemory<'_>, limit: usize, sink: &mut impl Sink) -> Stop {
    let mut from = first;
    let mut left = limit;
    // The frames of the first part were already passed on.
    let mut is_first = true;
    let mut circle = Circle::default();
    loop {
        let (end, frames, stop) = replay(from, published, memory);
        if is_first {
            left = left.saturating_sub(frames);
            is_first = false;
        }
        let found = match may_go_on(stop) {
            true => leave(&end, stop, published, memory),
            false => Err(stop),
        };
        from = match found {
            Ok(caller) => caller,
            Err(stop) => return stop,
        };
        if left == 0 {
            return Stop::Limit;
        }
        if from
            .sp()
            .is_some_and(|sp| circle.is_closed_by(from.whole.registers.pc, sp))
        {
            return Stop::DidNotAdvance;
        }
        let mut counted = Counted { sink, frames: 0 };
        let stop = plain(from, published, memory, left, &mut counted);
        left = left.saturating_sub(counted.frames);
        if !may_go_on(stop) {
            return stop;
        }
    }
}

/// A walk by rows alone, without a memo.
fn plain(from: Here, published: &Published, memory: &mut OwnMemory<'_>, limit: usize, sink: &mut impl Sink) -> Stop {
    let mut nothing = MemoState::EMPTY;
    let mut memo = Memo::new(&mut nothing, &mut [], &mut []);
    let mut no_cache = RuleCache::new(&mut []);
    let registers = || from.whole.registers;
    let first = MemoStep::new(ARCH, &from.whole.registers, from.kind);
    memo.walk_from(ARCH, first, &registers, published, memory, &mut no_cache, limit, sink)
}

/// Repeats the steps while tracking all registers. Returns the frame at which they end, the number
/// of frames, and why they end.
fn replay(from: Here, published: &Published, memory: &mut OwnMemory<'_>) -> (Here, usize, Stop) {
    let mut narrow = from.whole.registers;
    let mut here = from;
    let mut frames = 1;
    loop {
        let kind = here.kind;
        let kind = match step(ARCH, &mut narrow, kind, published, memory, &mut RuleCache::new(&mut [])) {
            Ok(kind) => kind,
            Err(stop) => return (here, frames, stop),
        };
        frames += 1;
        let whole = match narrow.are_only(&[ARCH.sp, ARCH.fp]) {
            true => beside(&here, &narrow, published, memory),
            // After a signal, all registers are known.
            false => Whole::new(narrow),
        };
        here = Here { whole, kind };
    }
}

/// All that is known about a caller with this program counter, stack pointer and frame pointer.
fn beside(here: &Here, caller: &Registers, published: &Published, memory: &mut OwnMemory<'_>) -> Whole {
    if loses_frame_pointer(ARCH, &here.whole.registers, caller) {
        return Whole::new(*caller);
    }
    let found = by_call_frames(here, published, memory).map(|found| found.frame);
    let is_same =
        |whole: &Whole| whole.registers.pc == caller.pc && whole.registers.get(ARCH.sp) == caller.get(ARCH.sp);
    let mut whole = found.ok().filter(is_same).unwrap_or(Whole::new(*caller));
    if let Some(fp) = caller.get(ARCH.fp) {
        whole.registers.set(ARCH.fp, fp);
    }
    whole
}

fn by_call_frames(here: &Here, published: &Published, memory: &mut OwnMemory<'_>) -> Result<Caller, Missing> {
    let module = published.module(here.looked_up()).ok_or(Missing::Entry)?;
    let frames = module.call_frames.as_ref().ok_or(Missing::Entry)?;
    let mut bytes = Bytes::of(module, frames);
    let word = |address| memory.word(address);
    caller(ARCH, &frames.search, &here.whole, here.looked_up(), &mut bytes, word)
}

/// Leaves a frame that rows cannot leave.
fn leave(here: &Here, stop: Stop, published: &Published, memory: &mut OwnMemory<'_>) -> Result<Here, Stop> {
    if stop.is_of_lost_value() {
        return Err(stop);
    }
    let module = published.module(here.looked_up()).ok_or(stop)?;
    // A module without a table still is a module.
    let stop = if stop == Stop::NoModule { Stop::NoTable } else { stop };
    match by_call_frames(here, published, memory) {
        Ok(found) => {
            let caller = Here {
                whole: found.frame,
                kind: match found.signal_frame {
                    true => AddressKind::Pc,
                    false => AddressKind::Ra,
                },
            };
            let is_above = found.signal_frame || caller.sp() > here.sp();
            let is_proved = || !found.is_doubtful || is_called(published, caller.whole.registers.pc, found.start);
            match is_above && is_proved() {
                true => Ok(caller),
                false => Err(stop),
            }
        }
        Err(Missing::Outermost) => Err(Stop::EndOfStack),
        Err(Missing::Value) => Err(stop),
        Err(Missing::Entry) => match stop {
            Stop::NoTable => by_frame_pointer(here, module, published, memory).ok_or(stop),
            _ => by_row(here, published, memory),
        },
    }
}

/// Used if there are only rows, but more registers are known than a walk keeps.
fn by_row(here: &Here, published: &Published, memory: &mut OwnMemory<'_>) -> Result<Here, Stop> {
    let mut registers = here.whole.registers;
    let mut no_cache = RuleCache::new(&mut []);
    let kind = step(ARCH, &mut registers, here.kind, published, memory, &mut no_cache)?;
    Ok(Here {
        whole: Whole::new(registers),
        kind,
    })
}

/// Whether a function that begins at `start` can have been called before this return address.
fn is_called(published: &Published, return_address: u64, start: u64) -> bool {
    match calls::before(published, return_address) {
        Some(Call::Direct(target)) => target == start || calls::stub_leads_to(published, target, start),
        Some(Call::Indirect) => true,
        None => false,
    }
}

/// The caller by the frame pointer, if no table describes the code and everything else shows that
/// it keeps one.
fn by_frame_pointer(here: &Here, module: &Module, published: &Published, memory: &mut OwnMemory<'_>) -> Option<Here> {
    let registers = &here.whole.registers;
    let (pc, sp, fp) = (registers.pc, registers.get(ARCH.sp)?, registers.get(ARCH.fp)?);
    let ra_at = fp.checked_add_signed(ARCH.ra_from_fp)?;
    let is_own = fp >= sp && memory.is_of_stack(fp) && memory.is_of_stack(ra_at);
    if !is_own || !calls::is_silent(published, module, here.looked_up()) {
        return None;
    }
    let (saved, ra) = (memory.word(fp)?, ARCH.strip(memory.word(ra_at)?));
    let leads = match calls::before(published, ra)? {
        Call::Direct(target) => calls::can_lead_to(published, target, pc),
        Call::Indirect => true,
    };
    // Code that has made no frame yet, or never does, has its return address here; the frame
    // pointer is then its caller's.
    let mut is_return_address = |at: u64| {
        let word = memory.word(at);
        word.is_some_and(|word| calls::before(published, ARCH.strip(word)).is_some())
    };
    let places = [sp, sp.wrapping_add(8)];
    let is_unclear = here.kind == AddressKind::Pc && places.into_iter().any(|at| at != ra_at && is_return_address(at));
    if !leads || is_unclear {
        return None;
    }
    let mut caller = Registers::new(ra);
    caller.set(ARCH.sp, fp.checked_add_signed(ARCH.cfa_from_fp)?);
    caller.set(ARCH.fp, saved);
    forget_guessed_end(ARCH, &mut caller, AddressKind::Ra, published);
    Some(Here {
        whole: Whole::new(caller),
        kind: AddressKind::Ra,
    })
}
