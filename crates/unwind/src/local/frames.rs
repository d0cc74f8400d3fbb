//! Rows of modules without a table, from their call frame information in memory.

use backtrail_arch::Arch;
use backtrail_callframe::{Description, Function, Missing, Place, Source, describe, function};
use backtrail_sframe::{Base, Location, Rule};

use super::loaded::{CallFrames, Module};
use super::{ARCH, memory};
use crate::Described;

/// The bytes of a module's call frame information.
pub(super) struct Bytes<'m> {
    module: &'m Module,
    readable: (u64, u64),
}

impl<'m> Bytes<'m> {
    pub(super) fn of(module: &'m Module, frames: &CallFrames) -> Bytes<'m> {
        Bytes {
            module,
            readable: frames.readable,
        }
    }
}

impl Source for Bytes<'_> {
    fn copy(&mut self, address: u64, words: &mut [u64]) -> usize {
        let (start, end) = self.readable;
        if self.module.identity.is_some() || address < start || address >= end {
            return memory::read_words(address, words);
        }
        let count = words.len().min(((end - address) / 8) as usize);
        match count {
            // The last bytes of a segment.
            0 => memory::read_words(address, words),
            _ => {
                // SAFETY: this many words lie in a readable segment of a module that is never
                // unloaded.
                unsafe { memory::load_words(address, words.get_mut(..count).unwrap_or_default()) };
                count
            }
        }
    }
}

/// What a module's call frame information says about an address.
pub(super) fn described(module: &Module, address: u64) -> Result<Description, Missing> {
    let frames = module.call_frames.as_ref().ok_or(Missing::Entry)?;
    describe(ARCH, &frames.search, address, &mut Bytes::of(module, frames))
}

/// The function that an address of a module is in.
pub(super) fn function_at(module: &Module, address: u64) -> Option<Function> {
    let frames = module.call_frames.as_ref()?;
    function(&frames.search, address, &mut Bytes::of(module, frames))
}

/// The row as the engine knows it.
#[cold]
#[inline(never)]
pub(super) fn row(module: &Module, address: u64) -> Described {
    let Ok(found) = described(module, address) else {
        return Described::NotCovered;
    };
    match found.ra {
        None => Described::Outermost,
        Some(_) if is_inside(module, found.start, address) => Described::Outermost,
        Some(ra) => Described::Caller {
            rule: Rule {
                cfa: location(found.cfa),
                ra: location(ra),
                fp: found.fp.map(location),
                mangled_ra: false,
            },
            signal_frame: found.signal_frame,
        },
    }
}

/// Whether a stack begins in the function that starts at `start` and that `address` is in, although
/// call frame information describes its caller.
fn is_inside(module: &Module, start: u64, address: u64) -> bool {
    address.wrapping_sub(start) < Arch::START_CONTEXT_BYTES.0 && is_start_context(module, start)
}

/// Whether the function at an address is glibc's `__start_context`.
pub(super) fn is_start_context(module: &Module, start: u64) -> bool {
    let words = module
        .words::<{ Arch::START_CONTEXT_BYTES.1 / 8 }>(start)
        .map(|words| words.map(u64::to_ne_bytes));
    words.is_some_and(|bytes| ARCH.is_start_context(bytes.as_flattened()))
}

fn location(place: Place) -> Location {
    Location {
        base: place.base.map_or(Base::Cfa, |register| Base::Register(register.0)),
        offset: place.offset,
        deref: place.deref,
    }
}
