//! The threads of a recording, under the names that they had.

use std::cmp::Reverse;
use std::collections::HashMap;

use backtrail_recording::Stop;

use crate::processes::Processes;
use crate::stacks::StackId;

/// A thread, as long as its names stay the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    /// The number of its process.
    pub pid: u32,
    /// Its own number.
    pub tid: u32,
    /// The name of its process.
    pub process: String,
    /// Its own name.
    pub name: String,
    /// The control group of its process; empty if it is not known.
    pub group: String,
    /// The inode of the process's namespace of process numbers; 0 if it is not known.
    pub namespace: u64,
}

/// A [`Thread`], by its number in [`Report::threads`](crate::Report::threads).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(u32);

impl ThreadId {
    /// Threads are numbered from 0 without gaps.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSample {
    /// When, in nanoseconds of the trace's clock.
    pub time: u64,
    /// Its stack.
    pub stack: StackId,
    /// Its thread.
    pub thread: ThreadId,
    /// Its CPU.
    pub cpu: u32,
    /// What it counts for: 1, microseconds, or events; see [`Measure`](crate::Measure).
    pub weight: u64,
    /// The reason why its stack ends; `None` if only the innermost frame is known.
    pub stop: Option<Stop>,
    /// Whether outer frames were read from the running process after the sample was taken.
    pub live: bool,
}

/// All threads with their samples.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    list: Vec<(Thread, u64)>,
    numbers: HashMap<Thread, ThreadId>,
}

impl Threads {
    /// The number of a thread with its current names.
    pub(crate) fn number(&mut self, processes: &Processes, pid: u32, tid: u32) -> ThreadId {
        let thread = Thread {
            pid,
            tid,
            process: processes.process_name(pid).into_owned(),
            name: processes.thread_name(pid, tid).into_owned(),
            group: processes.group(pid).to_owned(),
            namespace: processes.namespace(pid),
        };
        if let Some(&number) = self.numbers.get(&thread) {
            return number;
        }
        let number = ThreadId(self.list.len() as u32);
        self.list.push((thread.clone(), 0));
        self.numbers.insert(thread, number);
        number
    }

    /// The thread with this number.
    pub(crate) fn get(&self, number: ThreadId) -> &Thread {
        &self.list[number.index()].0
    }

    /// All threads, by number.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Thread> {
        self.list.iter().map(|(thread, _)| thread)
    }

    /// Counts samples.
    pub(crate) fn count(&mut self, number: ThreadId, samples: u64) {
        let count = &mut self.list[number.index()].1;
        *count = count.saturating_add(samples);
    }

    /// The names of processes with their samples, most sampled first.
    pub(crate) fn by_process(&self) -> Vec<(String, u64)> {
        let mut by_name: HashMap<&str, u64> = HashMap::new();
        for (thread, samples) in self.list.iter().filter(|(_, samples)| *samples > 0) {
            *by_name.entry(&thread.process).or_default() += samples;
        }
        let mut sorted: Vec<(String, u64)> = by_name
            .into_iter()
            .map(|(name, samples)| (name.to_owned(), samples))
            .collect();
        sorted.sort_by(|(a_name, a), (b_name, b)| (Reverse(a), a_name).cmp(&(Reverse(b), b_name)));
        sorted
    }

    /// All threads with their samples, by number.
    pub(crate) fn into_list(self) -> Vec<(Thread, u64)> {
        self.list
    }
}
