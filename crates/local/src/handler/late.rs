//! Modules that were loaded after the list of names was made: what the loader says about those that
//! the stacks of a report lead through. They may be unloaded, so their memory is copied.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use backtrail_unwind::local::{loaded_range, loader_name, read_words};

use super::names::{self, Named};
use super::notes::BuildId;

/// Longer paths are not read.
pub(crate) const LONGEST_PATH: usize = 4096;
/// The most modules that a report lists.
const MOST: usize = 64;

/// Where the modules that were met begin, by the order in which they were; and how many of them are
/// written. Only the thread uses them whose turn it is to write its stack.
static MET: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static WRITTEN: AtomicUsize = AtomicUsize::new(0);

/// Whether a module has this address.
pub(crate) fn is_in_module(address: u64) -> bool {
    names::named(address).is_some() || loaded_range(address).is_some()
}

/// The bias of the module at an address. Its path is copied, and followed by zeros.
pub(crate) fn bias_and_path(address: u64, path: &mut [u8; LONGEST_PATH]) -> Option<u64> {
    let (bias, name) = loader_name(address)?;
    copy_string(name, path)?;
    Some(bias)
}

/// Copies a C string that may be unmapped at any moment.
fn copy_string(address: u64, to: &mut [u8; LONGEST_PATH]) -> Option<()> {
    // Words need not be aligned to be copied.
    for (index, bytes) in to.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mut word = [0];
        if read_words(address.checked_add(8 * index as u64)?, &mut word) != 1 {
            return None;
        }
        *bytes = word[0].to_ne_bytes();
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            bytes.get_mut(end..)?.fill(0);
            return Some(());
        }
    }
    None
}

/// Remembers the module at an address of a stack, unless it is in the list of names.
pub(crate) fn meet(address: u64) {
    if names::named(address).is_some() {
        return;
    }
    let Some((start, _)) = loaded_range(address) else {
        return;
    };
    let place = MET
        .iter()
        .find(|place| [0, start].contains(&place.load(Ordering::Relaxed)));
    if let Some(place) = place {
        place.store(start, Ordering::Relaxed);
    }
}

/// Forgets which modules another process's report has written.
pub(crate) fn forget() {
    WRITTEN.store(0, Ordering::Relaxed);
    MET.iter().for_each(|place| place.store(0, Ordering::Relaxed));
}

/// Calls `write` with each module that was met and has not been written yet.
pub(crate) fn each_new(mut write: impl FnMut(&Named<'_>)) {
    while let Some(place) = MET.get(WRITTEN.load(Ordering::Relaxed)) {
        let start = place.load(Ordering::Relaxed);
        if start == 0 {
            return;
        }
        WRITTEN.fetch_add(1, Ordering::Relaxed);
        let mut path = [0; LONGEST_PATH];
        let Some((start, end)) = loaded_range(start) else {
            continue;
        };
        let Some(bias) = bias_and_path(start, &mut path) else {
            continue;
        };
        let build_id = BuildId::of(start, bias).unwrap_or_default();
        write(&Named {
            start,
            end,
            bias,
            lowest: start,
            name: until_zero(&path),
            build_id: build_id.bytes(),
        });
    }
}

/// A C string without its end.
pub(crate) fn until_zero(path: &[u8]) -> &[u8] {
    path.split(|byte| *byte == 0).next().unwrap_or_default()
}
