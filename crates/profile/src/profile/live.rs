//! Counts sample by sample, for a recording that is still being made.

use backtrail_recording::{Item, Stop};

use super::Profile;
use crate::threads::{Thread, ThreadId};

impl Profile {
    /// Takes the next item. If it is a sample that counts, returns its time, its thread and whether
    /// its stack is complete, and adds the functions on its stack, the innermost first. Samples
    /// must be [kept](super::Options::keep_samples) and the tree have no room for frames.
    pub(crate) fn add_live(&mut self, item: &Item<'_>, functions: &mut Vec<u32>) -> Option<(u64, ThreadId, bool)> {
        self.beyond.clear();
        self.add(item);
        let sample = self.samples.pop()?;
        for &id in &self.beyond {
            let calls = self.functions.at(id, self.symbolizer.location(id));
            functions.extend(calls.iter().rev());
        }
        Some((sample.time, sample.thread, sample.stop == Some(Stop::EndOfStack)))
    }

    /// All functions so far: module, name and number.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (&str, &str, u32)> {
        self.functions.named()
    }

    /// All threads so far, by number.
    pub(crate) fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.all()
    }

    /// Notes about the names, one sentence each.
    pub(crate) fn name_notes(&self) -> Vec<String> {
        self.symbolizer.notes()
    }
}
