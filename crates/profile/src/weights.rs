//! Samples of whatever frames stand for (functions, modules, lines), summed once over the tree of
//! stacks.

use crate::stacks::{StackId, Stacks, Step};

/// The samples of keys: numbers without gaps.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    own: Vec<u64>,
    totals: Vec<u64>,
}

impl Weights {
    /// Own samples, and samples with the key anywhere on their stack.
    pub(crate) fn of(&self, key: u32) -> (u64, u64) {
        let at = |all: &[u64]| all.get(key as usize).copied().unwrap_or(0);
        (at(&self.own), at(&self.totals))
    }

    /// Makes room for this many keys.
    fn resize(&mut self, keys: usize) {
        if keys > self.own.len() {
            self.own.resize(keys, 0);
            self.totals.resize(keys, 0);
        }
    }

    /// Adds own samples.
    pub(crate) fn own(&mut self, key: u32, samples: u64) {
        self.resize(key as usize + 1);
        self.own[key as usize] += samples;
    }

    /// Adds samples with the key on their stack.
    pub(crate) fn total(&mut self, key: u32, samples: u64) {
        self.resize(key as usize + 1);
        self.totals[key as usize] += samples;
    }
}

/// Sums samples by key. `keys_of` adds the keys of a stack's innermost frame, and returns the key
/// that has the stack's own samples. A key that a stack has several times counts once.
pub(crate) fn weigh(stacks: &Stacks, mut keys_of: impl FnMut(StackId, &mut Vec<u32>) -> Option<u32>) -> Weights {
    let totals = stacks.totals();
    let mut weights = Weights::default();
    // How often each key is on the current stack.
    let mut open: Vec<u32> = Vec::new();
    let mut keys = Vec::new();
    stacks.walk(|step| {
        let (Step::Enter(stack) | Step::Leave(stack)) = step;
        // What has no samples is on no stack that is counted.
        if totals[stack.index()] == 0 {
            return;
        }
        keys.clear();
        let own = keys_of(stack, &mut keys);
        match step {
            Step::Enter(_) => {
                for &key in &keys {
                    weights.resize(key as usize + 1);
                    open.resize(weights.own.len(), 0);
                    if open[key as usize] == 0 {
                        weights.totals[key as usize] += totals[stack.index()];
                    }
                    open[key as usize] += 1;
                }
                if let Some(own) = own {
                    weights.own(own, stacks.samples(stack));
                }
            }
            Step::Leave(_) => keys.iter().for_each(|&key| open[key as usize] -= 1),
        }
    });
    weights
}
