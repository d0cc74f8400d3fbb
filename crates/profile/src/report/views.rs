//! Parts of a report: samples by what runs them, around one function, against another recording.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::Report;
use crate::Thread;
use crate::clean::clean;
use crate::function_name::matches_function;
use crate::stacks::{StackFrame, StackId};
use crate::weights::{Weights, weigh};

/// What samples are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupBy {
    /// Threads.
    Thread,
    /// Processes.
    Process,
    /// Files, the kernel and its modules.
    Module,
    /// Lines of source files; code without lines is one row for each module.
    Line,
    /// Addresses of code.
    Address,
    /// Control groups of processes.
    Group,
    /// Namespaces of process numbers.
    Namespace,
    /// Where and when stacks were walked.
    Walk,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the row is about.
    pub name: String,
    /// Its module, or whatever else distinguishes rows of one name; may be empty.
    pub module: String,
    /// Samples that ended there.
    pub samples: u64,
    /// Samples with it anywhere on their stack.
    pub total: u64,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Heading of the names.
    pub heading: String,
    /// Heading of the modules; empty if the rows have none.
    pub module_heading: String,
    /// In order of descending samples.
    pub rows: Vec<Row>,
    /// Samples that shares are of.
    pub samples: u64,
}

/// Numbers for names.
#[derive(Default)]
struct Keys(HashMap<(String, String), u32>);

impl Keys {
    fn number(&mut self, name: &str, module: &str) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry((name.to_owned(), module.to_owned())).or_insert(next)
    }

    fn into_rows(self, weights: &Weights) -> Vec<Row> {
        let rows = self.0.into_iter().map(|((name, module), key)| {
            let (samples, total) = weights.of(key);
            Row {
                name,
                module,
                samples,
                total,
            }
        });
        let mut rows: Vec<Row> = rows.filter(|row| row.total > 0).collect();
        sort(&mut rows);
        rows
    }
}

pub(crate) fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| {
        let key = |row: &Row| (Reverse(row.samples), Reverse(row.total));
        let names = || (&a.name, &a.module).cmp(&(&b.name, &b.module));
        key(a).cmp(&key(b)).then_with(names)
    });
}

fn label_rows(labels: impl Iterator<Item = (String, u64)>) -> Vec<Row> {
    let rows = labels.map(|(name, samples)| Row {
        name,
        module: String::new(),
        samples,
        total: samples,
    });
    let mut rows: Vec<Row> = rows.collect();
    sort(&mut rows);
    rows
}

impl Report {
    /// The samples by what `by` says.
    pub fn rows_by(&self, by: GroupBy) -> Rows {
        let table = |heading: &str, module_heading: &str, rows| Rows {
            heading: heading.to_owned(),
            module_heading: module_heading.to_owned(),
            rows,
            samples: self.summary().samples,
        };
        match by {
            GroupBy::Thread => table("thread", "process", self.by_thread(true)),
            GroupBy::Process => table("process", "", self.by_thread(false)),
            GroupBy::Module => table(
                "module",
                "",
                self.by_key(|location, _| (location.module.clone(), String::new())),
            ),
            GroupBy::Line => {
                let line = |location: &crate::Location, call: usize| {
                    let call = &location.calls[call];
                    let place = call.file.as_deref().zip(call.line);
                    let text = place.map(|(file, line)| format!("{file}:{line}"));
                    let text = text.unwrap_or_else(|| "[no line]".to_owned());
                    (text, location.module.clone())
                };
                table("line", "module", self.by_key(line))
            }
            GroupBy::Address => table("address", "module", self.by_address()),
            GroupBy::Group => {
                let group = |thread: &Thread| match thread.group.as_str() {
                    "" => "[unknown]".to_owned(),
                    group => clean(group, ' '),
                };
                table("cgroup", "", self.by_label(group))
            }
            GroupBy::Namespace => {
                let namespace = |thread: &Thread| match thread.namespace {
                    0 => "[unknown]".to_owned(),
                    inode => format!("pid:[{inode}]"),
                };
                table("namespace", "", self.by_label(namespace))
            }
            GroupBy::Walk => {
                let walks = self.summary().walks.iter();
                let walks = walks.map(|&(name, samples)| (name.to_owned(), samples));
                table("walked", "", label_rows(walks))
            }
        }
    }

    fn by_label(&self, label: impl Fn(&Thread) -> String) -> Vec<Row> {
        let mut samples: BTreeMap<String, u64> = BTreeMap::new();
        for (thread, count) in self.threads().iter().filter(|(_, count)| *count > 0) {
            let sum = samples.entry(label(thread)).or_default();
            *sum = sum.saturating_add(*count);
        }
        label_rows(samples.into_iter())
    }

    fn by_thread(&self, threads: bool) -> Vec<Row> {
        let mut samples: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (thread, count) in self.threads().iter().filter(|(_, count)| *count > 0) {
            let process = format!("{} {}", thread.process, thread.pid);
            let key = match threads {
                true => (format!("{} {}", thread.name, thread.tid), process),
                false => (process, String::new()),
            };
            *samples.entry(key).or_default() += count;
        }
        let rows = samples.into_iter().map(|((name, module), samples)| Row {
            name,
            module,
            samples,
            total: samples,
        });
        let mut rows: Vec<Row> = rows.collect();
        sort(&mut rows);
        rows
    }

    /// Samples by a name and a module that each call of a location has.
    fn by_key(&self, name_of: impl Fn(&crate::Location, usize) -> (String, String)) -> Vec<Row> {
        let mut keys = Keys::default();
        let mut of_location: HashMap<usize, Vec<u32>> = HashMap::new();
        let weights = weigh(self.stacks(), |stack, found| {
            let StackFrame::Location(id) = self.stacks().frame(stack) else {
                return None;
            };
            let numbers = of_location.entry(id.index()).or_insert_with(|| {
                let location = self.location(id);
                let calls = (0..location.calls.len()).rev();
                calls
                    .map(|call| {
                        let (name, module) = name_of(location, call);
                        keys.number(&name, &module)
                    })
                    .collect()
            });
            found.extend_from_slice(numbers);
            found.last().copied()
        });
        keys.into_rows(&weights)
    }

    fn by_address(&self) -> Vec<Row> {
        let mut keys = Keys::default();
        let mut of_location: HashMap<usize, u32> = HashMap::new();
        let weights = weigh(self.stacks(), |stack, found| {
            let StackFrame::Location(id) = self.stacks().frame(stack) else {
                return None;
            };
            let number = *of_location.entry(id.index()).or_insert_with(|| {
                let location = self.location(id);
                let outer = &location.calls[location.calls.len() - 1];
                let offset = outer.offset.map_or(String::new(), |offset| format!("+{offset:#x}"));
                let address = self.address(id).address;
                keys.number(&format!("{address:#x} {}{offset}", outer.function), &location.module)
            });
            found.push(number);
            Some(number)
        });
        keys.into_rows(&weights)
    }

    /// The functions that call a function directly, with the samples that it has through them;
    /// `samples` are its own. `None` if the recording has no such function.
    pub fn callers(&self, function: &str) -> Option<Rows> {
        let mut keys = Keys::default();
        let weights = weigh(self.stacks(), |stack, found| {
            let mut own = None;
            self.each_call(stack, |caller, name, _| {
                own = None;
                if matches_function(name, function) {
                    let (name, module) = caller;
                    let key = keys.number(name, module);
                    found.push(key);
                    own = Some(key);
                }
            });
            own
        });
        self.around("caller", keys, &weights)
    }

    /// The functions that a function calls directly, and `[self]` for its own samples. `None` if
    /// the recording has no such function.
    pub fn callees(&self, function: &str) -> Option<Rows> {
        let mut keys = Keys::default();
        let weights = weigh(self.stacks(), |stack, found| {
            let mut own = None;
            self.each_call(stack, |caller, name, module| {
                own = None;
                if matches_function(caller.0, function) {
                    let key = keys.number(name, module);
                    found.push(key);
                    own = Some(key);
                }
                if matches_function(name, function) {
                    own = Some(keys.number("[self]", module));
                }
            });
            // Samples of its own are no call, so they are their own total.
            match own {
                Some(key) if self.stacks().samples(stack) > 0 && !found.contains(&key) => {
                    found.push(key);
                    Some(key)
                }
                own => own,
            }
        });
        let mut rows = self.around("callee", keys, &weights)?;
        for row in rows.rows.iter_mut().filter(|row| row.name == "[self]") {
            row.total = row.samples;
        }
        sort(&mut rows.rows);
        Some(rows)
    }

    fn around(&self, heading: &str, keys: Keys, weights: &Weights) -> Option<Rows> {
        let rows = keys.into_rows(weights);
        (!rows.is_empty()).then(|| Rows {
            heading: heading.to_owned(),
            module_heading: "module".to_owned(),
            rows,
            samples: self.summary().samples,
        })
    }

    /// Calls `visit` with the caller (name and module) and the callee of each call in a stack's
    /// innermost frame, the outermost first.
    fn each_call<'r>(&'r self, stack: StackId, mut visit: impl FnMut((&'r str, &'r str), &'r str, &'r str)) {
        let stacks = self.stacks();
        let StackFrame::Location(id) = stacks.frame(stack) else {
            return;
        };
        let mut caller = match stacks.parent(stack) {
            StackId::EMPTY => ("[outermost]", ""),
            parent => match stacks.frame(parent) {
                StackFrame::Location(id) => {
                    let location = self.location(id);
                    (location.calls[0].function.as_str(), location.module.as_str())
                }
                StackFrame::Marker(number) => (stacks.marker(number), ""),
            },
        };
        let location = self.location(id);
        for call in location.calls.iter().rev() {
            visit(caller, &call.function, &location.module);
            caller = (&call.function, &location.module);
        }
    }
}

/// A function in two recordings.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// Its module.
    pub module: String,
    /// Shares of own samples, from 0 to 1, before and after.
    pub own: (f64, f64),
    /// Shares of samples with it on their stack, before and after.
    pub total: (f64, f64),
    /// Own samples before and after.
    pub samples: (u64, u64),
}

impl Report {
    /// All functions of this recording and of an earlier one, those first whose shares changed the
    /// most.
    pub fn changes_since(&self, before: &Report) -> Vec<Change> {
        let mut changes: BTreeMap<(&str, &str), Change> = BTreeMap::new();
        let whole = |report: &Report| report.summary().samples.max(1) as f64;
        for (report, is_after) in [(before, false), (self, true)] {
            for function in report.functions() {
                let change = changes
                    .entry((&function.name, &function.module))
                    .or_insert_with(|| Change {
                        name: function.name.clone(),
                        module: function.module.clone(),
                        own: (0.0, 0.0),
                        total: (0.0, 0.0),
                        samples: (0, 0),
                    });
                let own = function.samples as f64 / whole(report);
                let total = function.total as f64 / whole(report);
                match is_after {
                    false => (change.own.0, change.total.0, change.samples.0) = (own, total, function.samples),
                    true => (change.own.1, change.total.1, change.samples.1) = (own, total, function.samples),
                }
            }
        }
        let mut changes: Vec<Change> = changes.into_values().collect();
        let moved = |change: &Change| {
            let of = |(before, after): (f64, f64)| (after - before).abs();
            (of(change.own), of(change.total))
        };
        changes.sort_by(|a, b| {
            let ((a_own, a_total), (b_own, b_total)) = (moved(a), moved(b));
            b_own.total_cmp(&a_own).then(b_total.total_cmp(&a_total))
        });
        changes
    }
}
