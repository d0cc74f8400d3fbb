//! Walking the stack of the calling thread, in place.
//!
//! Everything here may be called from a signal handler, at any moment, on any stack, unless stated
//! otherwise: it does not allocate (except that a thread's first walk maps some pages), lock or
//! panic, calls no function of the C library except `_dl_find_object`, leaves `errno` unchanged,
//! and reads foreign memory only in ways that cannot fault.
//!
//! Callers must [`publish`] the modules' tables first, and again after modules were loaded. No
//! other preparation is needed.
#![allow(unsafe_code)]

mod calls;
mod found;
mod frames;
pub mod guarded;
mod kept;
mod loaded;
mod memory;
mod modules;
mod onward;
mod outermost;
mod registers;
mod syscall;
mod thread;

pub use backtrail_callframe::{Entries, Function, Search, Source, is_searchable};
pub use kept::KeptStack;
pub use loaded::{CallFrames, Identity, Module, loaded_range, loader_name};
pub use memory::read_words;
pub use modules::{Arrivals, Snapshot, is_published, publish, wait_for_unknown_module};
pub use registers::{Captured, position_of, set_result};
pub use syscall::call as system_call;

use core::mem::MaybeUninit;
use core::ops::Range;

use backtrail_arch::{Arch, Registers};

use crate::sink::{Each, Sink};
use crate::step::step;
use crate::{AddressKind, Frame, Memo, MemoState, MemoStep, Position, RuleCache, Stop};
use memory::OwnMemory;
use modules::Published;
use thread::Lent;

/// The CPU, as a compile-time constant.
pub const ARCH: &Arch = &{ *Arch::native() };

/// Walks the calling thread's stack, from `from` outwards: see [`walk`](crate::walk()).
///
/// `from` must be a frame of this thread that has not returned: [`Captured`] registers or those of
/// interrupted code ([`position_of`]). Otherwise the frames are wrong, but nothing worse happens.
pub fn walk(from: &Position, limit: usize, visit: impl FnMut(Frame)) -> Stop {
    let first = MemoStep::new(ARCH, &from.registers, from.kind);
    walk_from(first, &|| from.registers, limit, Each::new(visit)).stop
}

/// Walks like [`walk`], but passes on neither the first frame whose stack pointer lies in `gone`,
/// where frames were overwritten, nor those further outwards. Then there is no reason to return.
pub fn walk_until(from: &Position, gone: Range<u64>, limit: usize, visit: impl FnMut(Frame)) -> Option<Stop> {
    let first = MemoStep::new(ARCH, &from.registers, from.kind);
    let sink = Until {
        each: Each::new(visit),
        gone,
        is_over: false,
    };
    let sink = walk_from(first, &|| from.registers, limit, sink);
    (!sink.is_over).then_some(sink.each.stop)
}

struct Until<F> {
    each: Each<F>,
    gone: Range<u64>,
    is_over: bool,
}

impl<F: FnMut(Frame)> Sink for Until<F> {
    fn push(&mut self, step: &MemoStep) {
        self.is_over = self.is_over || self.gone.contains(&step.sp);
        if !self.is_over {
            self.each.push(step);
        }
    }

    fn end(&mut self, stop: Stop) {
        self.each.end(stop);
    }
}

/// Writes the return addresses of a frame's callers in the calling thread, as many as fit, and
/// returns them. Like [`walk`] from its [position](Captured::position), but faster.
pub fn return_addresses<'a>(from: &Captured, addresses: &'a mut [MaybeUninit<u64>]) -> &'a [u64] {
    let limit = addresses.len();
    let sink = Addresses { addresses, used: 0 };
    let sink = walk_from(from.frame(), &|| from.position().registers, limit, sink);
    sink.written()
}

/// A frame, with the registers that walks keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FrameRegisters {
    /// Program counter or return address.
    pub pc: u64,
    /// The stack pointer; after a call, as it is when the call has returned.
    pub sp: u64,
    /// The frame pointer; 0 if it is not known.
    pub fp: u64,
    /// Whether `pc` is a return address; otherwise the code there was interrupted.
    pub is_return_address: bool,
}

impl FrameRegisters {
    /// The address to look up for the frame's function.
    pub fn looked_up(&self) -> u64 {
        match self.is_return_address {
            true => self.pc.wrapping_sub(1),
            false => self.pc,
        }
    }

    /// The position of a walk that begins here. Frames further outwards that depend on other
    /// registers are not found from here.
    pub fn position(&self) -> Position {
        let mut registers = Registers::new(self.pc);
        registers.set(ARCH.sp, self.sp);
        registers.set(ARCH.fp, self.fp);
        let kind = match self.is_return_address {
            true => AddressKind::Ra,
            false => AddressKind::Pc,
        };
        Position { registers, kind }
    }
}

/// Walks like [`walk`], leaves out `skip` frames, and writes the next ones, as many as fit. Returns
/// their number and, unless there may be more, why the walk has ended.
pub fn frames_of(from: &Position, skip: usize, frames: &mut [FrameRegisters]) -> (usize, Option<Stop>) {
    let first = MemoStep::new(ARCH, &from.registers, from.kind);
    let limit = skip.saturating_add(frames.len());
    let sink = Frames {
        frames,
        skip,
        used: 0,
        stop: None,
    };
    let sink = walk_from(first, &|| from.registers, limit, sink);
    (sink.used, sink.stop.filter(|stop| *stop != Stop::Limit))
}

/// A buffer for frames.
struct Frames<'f> {
    frames: &'f mut [FrameRegisters],
    skip: usize,
    used: usize,
    stop: Option<Stop>,
}

impl Sink for Frames<'_> {
    #[inline(always)]
    fn push(&mut self, step: &MemoStep) {
        if self.skip > 0 {
            self.skip -= 1;
        } else if let Some(place) = self.frames.get_mut(self.used) {
            *place = FrameRegisters {
                pc: step.pc,
                sp: step.sp,
                fp: step.fp,
                is_return_address: step.kind() == AddressKind::Ra,
            };
            self.used += 1;
        }
    }

    fn end(&mut self, stop: Stop) {
        self.stop = Some(stop);
    }
}

/// A frame of the calling thread's stack with every register that can be known, from which frames
/// further outwards are reached without the steps from the first one. Slower than [`walk`].
#[derive(Clone, Copy, Debug)]
pub struct Outer(onward::Here);

impl Outer {
    /// The innermost frame.
    pub fn new(from: &Position) -> Outer {
        Outer(onward::Here::new(from))
    }

    /// The frame this many callers further outwards: 0 is this one.
    ///
    /// # Errors
    /// Why the stack ends before.
    pub fn outwards(&self, callers: usize) -> Result<Outer, Stop> {
        let Position { registers, kind } = self.position();
        let first = MemoStep::new(ARCH, &registers, kind);
        let published = Published::now();
        let found = thread::lend(|lent| {
            let bounds = match &lent {
                Lent::All(state) => state.bounds(),
                Lent::Bounds(bounds) => bounds,
            };
            let mut window = None;
            let mut memory = OwnMemory::new(bounds, first.sp, &mut window);
            onward::outwards(self.0, callers, &published, &mut memory)
        });
        found.map(Outer)
    }

    /// Its registers that can be known.
    pub fn position(&self) -> Position {
        self.0.position()
    }
}

/// Takes one step outwards from a frame of the calling thread, of which the registers may be all or
/// only those that walks keep. On failure, it stays unchanged.
///
/// # Errors
/// Why there is no caller, or that the step needs other registers: then [`Outer`] can do more.
pub fn step_once(position: &mut Position) -> Result<(), Stop> {
    let first = MemoStep::new(ARCH, &position.registers, position.kind);
    let published = Published::now();
    let (registers, kind) = (&mut position.registers, position.kind);
    let stepped = thread::lend(|lent| {
        let mut window = None;
        match lent {
            Lent::All(mut state) => {
                let mut memory = OwnMemory::new(state.bounds(), first.sp, &mut window);
                state.forget_what_changed(&published);
                let (volatile, _, _, _, entries) = state.parts();
                let modules = published.noting(volatile);
                step(
                    ARCH,
                    registers,
                    kind,
                    &modules,
                    &mut memory,
                    &mut RuleCache::new(entries),
                )
            }
            Lent::Bounds(bounds) => {
                let mut memory = OwnMemory::new(bounds, first.sp, &mut window);
                step(
                    ARCH,
                    registers,
                    kind,
                    &published,
                    &mut memory,
                    &mut RuleCache::new(&mut []),
                )
            }
        }
    });
    position.kind = stepped?;
    Ok(())
}

/// The function that an address is in, by its module's call frame information.
pub fn function_at(address: u64) -> Option<Function> {
    frames::function_at(Published::now().module(address)?, address)
}

/// Whether the kernel has made the frame at an address to look up.
pub fn is_signal_frame(address: u64) -> bool {
    let module = Published::now().module(address);
    module.is_some_and(|module| frames::described(module, address).is_ok_and(|found| found.signal_frame))
}

/// The CFA of the outermost frame, if call frame information describes it: the stack pointer before
/// it was entered.
pub fn end_of(outermost: &FrameRegisters) -> Option<u64> {
    let address = outermost.looked_up();
    let found = frames::described(Published::now().module(address)?, address).ok()?;
    let base = match found.cfa.base? {
        register if register == ARCH.sp => outermost.sp,
        register if register == ARCH.fp => outermost.fp,
        _ => return None,
    };
    let cfa = base.wrapping_add_signed(found.cfa.offset.into());
    let mut word = [0];
    match found.cfa.deref {
        false => Some(cfa),
        true => (read_words(cfa, &mut word) == 1).then_some(word[0]),
    }
}

/// A buffer for addresses, of which the first are written.
struct Addresses<'a> {
    addresses: &'a mut [MaybeUninit<u64>],
    used: usize,
}

impl<'a> Addresses<'a> {
    fn written(self) -> &'a [u64] {
        let written = self.addresses.get(..self.used).unwrap_or_default();
        // SAFETY: this many were written.
        unsafe { written.assume_init_ref() }
    }
}

impl Sink for Addresses<'_> {
    #[inline(always)]
    fn push(&mut self, step: &MemoStep) {
        if let Some(place) = self.addresses.get_mut(self.used) {
            place.write(step.pc);
            self.used += 1;
        }
    }

    #[inline(always)]
    fn push_kept(&mut self, steps: &[MemoStep]) {
        let places = self.addresses.get_mut(self.used..).unwrap_or_default();
        self.used += places.len().min(steps.len());
        // Four at a time, the last of them first.
        let (few, fours) = steps.as_rchunks::<4>();
        let (places, last_places) = match places.split_at_mut_checked(4 * fours.len()) {
            Some((places, last)) => (places.as_chunks_mut().0, last),
            None => (places.as_chunks_mut().0, Default::default()),
        };
        for ([a, b, c, d], [w, x, y, z]) in places.iter_mut().zip(fours.iter().rev()) {
            a.write(z.pc);
            b.write(y.pc);
            c.write(x.pc);
            d.write(w.pc);
        }
        for (place, step) in last_places.iter_mut().zip(few.iter().rev()) {
            place.write(step.pc);
        }
    }
}

/// Whether an address in a module's code follows a call instruction, like every return address.
pub fn follows_call(address: u64) -> bool {
    calls::before(&Published::now(), address).is_some()
}

#[inline(always)]
fn walk_from<S: Sink>(first: MemoStep, registers: &impl Fn() -> Registers, limit: usize, mut sink: S) -> S {
    let published = Published::now();
    thread::lend(|lent| match lent {
        Lent::All(mut state) => {
            let mut window = None;
            let mut memory = OwnMemory::new(state.bounds(), first.sp, &mut window);
            state.forget_what_changed(&published);
            let (volatile, memo, steps, reads, entries) = state.parts();
            let modules = published.noting(volatile);
            let mut cache = RuleCache::new(entries);
            let mut memo = Memo::new(memo, steps, reads);
            let stop = memo.walk_from(
                ARCH,
                first,
                registers,
                &modules,
                &mut memory,
                &mut cache,
                limit,
                &mut sink,
            );
            let end = match onward::may_go_on(stop) {
                true => memo
                    .outermost()
                    .and_then(|outermost| onward::ends_at(outermost, stop, &published, &mut memory)),
                false => Some(stop),
            };
            if modules.is_partial() {
                memo.clear();
            }
            match end {
                None => onward::go_on(first, registers, state.bounds(), published, limit, sink),
                Some(stop) => {
                    sink.remembered(state.walk());
                    sink.end(stop);
                    sink
                }
            }
        }
        Lent::Bounds(bounds) => walk_without(bounds, published, first, registers, limit, sink),
    })
}

#[cold]
#[inline(never)]
fn walk_without<S: Sink>(
    bounds: &memory::Bounds,
    published: Published,
    first: MemoStep,
    registers: &impl Fn() -> Registers,
    limit: usize,
    mut sink: S,
) -> S {
    let mut window = None;
    let mut memory = OwnMemory::new(bounds, first.sp, &mut window);
    let mut nothing = MemoState::EMPTY;
    let mut memo = Memo::new(&mut nothing, &mut [], &mut []);
    let mut cache = RuleCache::new(&mut []);
    let stop = memo.walk_from(
        ARCH,
        first,
        registers,
        &published,
        &mut memory,
        &mut cache,
        limit,
        &mut sink,
    );
    match onward::may_go_on(stop) {
        true => onward::go_on(first, registers, bounds, published, limit, sink),
        false => {
            sink.end(stop);
            sink
        }
    }
}
