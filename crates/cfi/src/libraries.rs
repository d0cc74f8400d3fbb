//! What the library of a run-time system says about itself, for each process that has it.

use rustc_hash::FxHashMap;

use crate::patience::Patience;
use crate::process_code::ProcessCode;

/// Processes that are remembered; beyond this number all are forgotten.
const MOST_PROCESSES: usize = 1 << 10;

/// What a library says, and where it is: an address of its mapping, and the place of that address.
pub(crate) type Found<P, T> = (u64, P, T);

/// The library of one process.
#[derive(Debug)]
struct Known<P, T> {
    found: Option<Found<P, T>>,
    /// How soon it is searched again.
    patience: Patience,
}

/// The libraries of all processes.
#[derive(Debug)]
pub(crate) struct Libraries<P, T> {
    by_process: FxHashMap<u32, Known<P, T>>,
}

impl<P, T> Default for Libraries<P, T> {
    fn default() -> Self {
        Libraries {
            by_process: FxHashMap::default(),
        }
    }
}

impl<P: Copy + Eq, T> Libraries<P, T> {
    /// What the library of this process says, if it has one; `find` searches it.
    pub(crate) fn of<C: ProcessCode<Place = P>>(
        &mut self,
        process: &C,
        find: impl FnOnce(&C) -> Option<Found<P, T>>,
    ) -> Option<&mut T> {
        if self.by_process.len() >= MOST_PROCESSES && !self.by_process.contains_key(&process.process()) {
            self.by_process.clear();
        }
        let known = self.by_process.entry(process.process()).or_insert(Known {
            found: None,
            patience: Patience::default(),
        });
        let is_still = |(address, place, _): &Found<P, T>| {
            let mapping = process.find(*address);
            mapping.is_some_and(|mapping| process.place(mapping, *address) == *place)
        };
        if !known.found.as_ref().is_some_and(is_still) {
            known.found = None;
            if !known.patience.is_over() {
                return None;
            }
            known.found = Some(find(process)?);
        }
        known.found.as_mut().map(|(_, _, said)| said)
    }
}
