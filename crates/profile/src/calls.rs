//! The arguments of functions, in recordings of their calls.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::modules::File;
use crate::symbolize::{LocationId, Symbolizer};

/// The most distinct calls per function start. A function called with a different address each time
/// has one for every call.
const MOST_DIFFERENT: usize = 1 << 16;

/// An argument as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallArgument {
    /// Its name; empty if it has none.
    pub name: Arc<str>,
    /// Its type, if known.
    pub type_name: Option<Arc<str>>,
    /// Its value; `None` if unknown.
    pub value: Option<String>,
}

/// Calls of a function with the same arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCount {
    /// The function's name.
    pub function: String,
    /// Short name of its module.
    pub module: String,
    /// Its arguments, as far as known; empty before
    /// [`Report::explain_calls`](crate::Report::explain_calls).
    pub arguments: Vec<CallArgument>,
    /// The number of these calls.
    pub count: u64,
    pub(crate) recorded: Option<Recorded>,
}

/// `function (name=value, ...)`; `...` also replaces unknown values.
impl fmt::Display for CallCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        if self.arguments.is_empty() {
            return Ok(());
        }
        for (index, argument) in self.arguments.iter().enumerate() {
            let before = if index == 0 { " (" } else { ", " };
            let value = argument.value.as_deref().unwrap_or("...");
            write!(f, "{before}{}={value}", argument.name)?;
        }
        f.write_str(")")
    }
}

/// A recorded call of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recorded {
    /// The function's file.
    pub file: File,
    /// The address that its first byte was mapped at.
    pub base: u64,
    /// The address of the call's first instruction.
    pub address: u64,
    /// The values of the general registers that pass arguments, in the order of the calling
    /// convention.
    pub passed: Vec<u64>,
}

/// Calls by the start of their function: its location, and its address in a process.
#[derive(Debug, Default)]
pub(crate) struct Calls(FxHashMap<(LocationId, u64), OfFunction>);

#[derive(Debug)]
struct OfFunction {
    /// The file that contains it, and where that was mapped.
    place: Option<(File, u64)>,
    /// By the values passed.
    counts: FxHashMap<Box<[u64]>, u64>,
    /// Calls that were too many to be distinguished.
    others: u64,
}

impl Calls {
    /// Counts a call of the function that starts at `address`, the location `leaf`.
    pub(crate) fn add(&mut self, pid: u32, address: u64, passed: &[u64], leaf: LocationId, symbolizer: &Symbolizer) {
        let of_function = self.0.entry((leaf, address)).or_insert_with(|| {
            let found = symbolizer.file_at(pid, address);
            OfFunction {
                place: found.map(|(file, base)| (file.clone(), base)),
                counts: FxHashMap::default(),
                others: 0,
            }
        });
        let counts = &mut of_function.counts;
        if let Some(count) = counts.get_mut(passed) {
            *count += 1;
        } else if counts.len() < MOST_DIFFERENT {
            counts.insert(passed.into(), 1);
        } else {
            of_function.others += 1;
        }
    }

    /// All calls, in any order.
    pub(crate) fn into_counts(self, symbolizer: &Symbolizer) -> Vec<CallCount> {
        let mut all = Vec::new();
        for ((leaf, address), of_function) in self.0 {
            let location = symbolizer.location(leaf);
            let mut push = |count, recorded| {
                all.push(CallCount {
                    // The outermost call is the one with the entry.
                    function: location
                        .calls
                        .last()
                        .map_or_else(String::new, |call| call.function.clone()),
                    module: location.module.clone(),
                    arguments: Vec::new(),
                    count,
                    recorded,
                });
            };
            for (passed, count) in of_function.counts {
                let place = of_function.place.clone();
                let recorded = place.map(|(file, base)| Recorded {
                    file,
                    base,
                    address,
                    passed: passed.into_vec(),
                });
                push(count, recorded);
            }
            if of_function.others > 0 {
                push(of_function.others, None);
            }
        }
        all
    }
}

/// Finds the arguments of calls of functions of a file that was mapped at an address.
pub(crate) type Explain<'f> = dyn FnMut(&File, u64, &[&Recorded]) -> Vec<Vec<CallArgument>> + 'f;

/// Gives calls their arguments, merges those with the same ones, and sorts them by descending
/// count.
pub(crate) fn explain(calls: &mut Vec<CallCount>, explain: &mut Explain<'_>) {
    let mut by_file: HashMap<(&File, u64), Vec<(usize, &Recorded)>> = HashMap::new();
    for (index, call) in calls.iter().enumerate() {
        if let Some(recorded) = &call.recorded {
            let of_file = by_file.entry((&recorded.file, recorded.base)).or_default();
            of_file.push((index, recorded));
        }
    }
    let mut found = vec![Vec::new(); calls.len()];
    for ((file, base), of_file) in by_file {
        let recorded: Vec<&Recorded> = of_file.iter().map(|(_, recorded)| *recorded).collect();
        for ((index, _), arguments) in of_file.iter().zip(explain(file, base, &recorded)) {
            found[*index] = arguments;
        }
    }
    let mut together: HashMap<(String, String, Vec<CallArgument>), u64> = HashMap::new();
    for (call, arguments) in calls.drain(..).zip(found) {
        *together.entry((call.function, call.module, arguments)).or_default() += call.count;
    }
    calls.extend(
        together
            .into_iter()
            .map(|((function, module, arguments), count)| CallCount {
                function,
                module,
                arguments,
                count,
                recorded: None,
            }),
    );
    calls.sort_by(|a, b| {
        let values = |call: &CallCount| {
            call.arguments
                .iter()
                .map(|argument| argument.value.clone())
                .collect::<Vec<_>>()
        };
        let by_count = b.count.cmp(&a.count);
        by_count.then_with(|| (&a.function, &a.module, values(a)).cmp(&(&b.function, &b.module, values(b))))
    });
}
