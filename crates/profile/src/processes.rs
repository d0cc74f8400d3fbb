//! Names of processes and threads over the time of the recording.

use std::borrow::Cow;
use std::collections::hash_map::Entry;

use backtrail_recording::{Module, ProcessLabels};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::modules::File;

/// The current names of processes and threads.
#[derive(Debug, Default)]
pub struct Processes {
    /// By thread; a process has the name of its first thread, whose number is the process's.
    names: FxHashMap<u32, String>,
    /// The name of a process without one: its first file that is not a library.
    first_files: FxHashMap<u32, String>,
    /// The name of a process that has neither: the thread that was named first.
    first_threads: FxHashMap<u32, u32>,
    /// The control group, and the namespace of process numbers, of each process.
    labels: FxHashMap<u32, (String, u64)>,
    /// Processes that have ended, whose numbers may be reused.
    ended: FxHashSet<u32>,
}

impl Processes {
    /// A thread has a name. Returns whether that is news.
    pub fn named(&mut self, pid: u32, tid: u32, name: &str) -> bool {
        let is_first = !self.first_threads.contains_key(&pid);
        if is_first {
            self.first_threads.insert(pid, tid);
        } else if self.names.get(&tid).is_some_and(|known| known == name) {
            return false;
        }
        self.names.insert(tid, name.to_string());
        true
    }

    /// A process runs in a control group and in a namespace. Returns whether that is news.
    pub fn labelled(&mut self, labels: &ProcessLabels) -> bool {
        let new = (labels.group.clone(), labels.namespace);
        self.labels.insert(labels.pid, new.clone()) != Some(new)
    }

    /// The control group of a process; empty if it is not known.
    pub fn group(&self, pid: u32) -> &str {
        self.labels.get(&pid).map_or("", |(group, _)| group)
    }

    /// The namespace of a process; 0 if it is not known.
    pub fn namespace(&self, pid: u32) -> u64 {
        self.labels.get(&pid).map_or(0, |&(_, namespace)| namespace)
    }

    /// A file was mapped: the first file of a new program is the program. For a process that was
    /// already running, only the files that its stacks reached into are known, libraries first.
    /// Returns whether the process may have another name from now on.
    pub fn mapped(&mut self, module: &Module) -> bool {
        let Entry::Vacant(vacant) = self.first_files.entry(module.pid) else {
            return false;
        };
        let file = File::of(module);
        let is_program = !file.is_anonymous() && !is_library(file.display_name());
        if is_program {
            vacant.insert(file.display_name().to_string());
        }
        is_program
    }

    /// The process now runs another program, whose name comes later.
    pub fn executed(&mut self, pid: u32) {
        self.first_files.remove(&pid);
        self.first_threads.remove(&pid);
    }

    /// A process or thread started. Returns whether it is a process whose number another one had
    /// before.
    pub fn forked(&mut self, pid: u32, tid: u32, parent: u32) -> bool {
        // A thread has the name of its creator until it sets another.
        match self.names.get(&parent).cloned() {
            Some(name) => self.names.insert(tid, name),
            None => self.names.remove(&tid),
        };
        let is_reused = pid == tid && self.ended.remove(&pid);
        if pid == tid {
            // A child begins where its parent is.
            match self.labels.get(&parent).cloned() {
                Some(labels) => self.labels.insert(pid, labels),
                None => self.labels.remove(&pid),
            };
            self.first_files.remove(&pid);
            self.first_threads.remove(&pid);
            if let Some(file) = self.first_files.get(&parent).cloned() {
                self.first_files.insert(pid, file);
            }
        }
        is_reused
    }

    /// A thread ended, and with the first one usually the process.
    pub fn exited(&mut self, pid: u32, tid: u32) {
        if pid == tid {
            self.ended.insert(pid);
        }
    }

    /// The name of the process.
    pub fn process_name(&self, pid: u32) -> Cow<'_, str> {
        let of_thread = || self.names.get(self.first_threads.get(&pid)?);
        let name = self.names.get(&pid).or_else(|| self.first_files.get(&pid));
        match name.or_else(of_thread) {
            Some(name) if !name.trim().is_empty() => name.into(),
            _ => format!("[pid {pid}]").into(),
        }
    }

    /// The name of the thread.
    pub fn thread_name(&self, pid: u32, tid: u32) -> Cow<'_, str> {
        match self.names.get(&tid) {
            Some(name) if !name.trim().is_empty() => name.into(),
            _ if pid == tid => self.process_name(pid),
            _ => format!("[tid {tid}]").into(),
        }
    }
}

/// Whether a file of this name is a library: `libc.so.6`, `_json.cpython-311-x86_64-linux-gnu.so`.
fn is_library(name: &str) -> bool {
    name.ends_with(".so") || name.contains(".so.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(processes: &mut Processes, pid: u32, path: &str) {
        processes.mapped(&Module {
            time: 0,
            pid,
            base: 0x1000,
            size: 0x1000,
            mapped: None,
            position_independent: true,
            path: path.into(),
            build_id: Vec::new(),
            elsewhere: 0,
        });
    }

    #[test]
    fn a_process_is_called_by_its_name_its_program_or_its_number() {
        let mut processes = Processes::default();
        assert_eq!(processes.process_name(5), "[pid 5]");
        mapped(&mut processes, 5, "[vdso]");
        mapped(&mut processes, 5, "/usr/bin/git");
        mapped(&mut processes, 5, "/lib/libc.so.6");
        assert_eq!(processes.process_name(5), "git");
        processes.named(5, 5, "git-gc");
        assert_eq!(processes.process_name(5), "git-gc");
        assert_eq!(processes.thread_name(5, 5), "git-gc");
        assert_eq!(processes.thread_name(5, 6), "[tid 6]");
    }

    /// In a process that ran before the recording, stacks may reach into libraries first, and its
    /// first thread may never run.
    #[test]
    fn a_process_is_not_called_after_a_library() {
        let mut processes = Processes::default();
        mapped(&mut processes, 5, "/lib/x86_64-linux-gnu/libc.so.6");
        assert_eq!(processes.process_name(5), "[pid 5]");
        processes.named(5, 7, "worker");
        processes.named(5, 8, "writer");
        assert_eq!(processes.process_name(5), "worker");
        mapped(&mut processes, 5, "/usr/lib/python3/_json.cpython-311.so");
        mapped(&mut processes, 5, "/usr/bin/python3.11");
        assert_eq!(processes.process_name(5), "python3.11");
        assert_eq!(processes.thread_name(5, 7), "worker");
        processes.named(5, 5, "python3");
        assert_eq!(processes.process_name(5), "python3");
    }

    #[test]
    fn children_are_called_as_their_parents_until_they_are_named() {
        let mut processes = Processes::default();
        processes.named(5, 5, "make");
        assert!(!processes.forked(9, 9, 5));
        assert_eq!(processes.process_name(9), "make");
        processes.named(9, 9, "cc");
        assert_eq!(processes.process_name(9), "cc");
        processes.forked(9, 10, 9);
        assert_eq!(processes.thread_name(9, 10), "cc");
    }

    #[test]
    fn a_number_that_comes_again_is_another_process() {
        let mut processes = Processes::default();
        mapped(&mut processes, 5, "/bin/old");
        processes.exited(5, 6);
        assert!(!processes.forked(5, 7, 5), "a thread");
        processes.exited(5, 5);
        assert!(processes.forked(5, 5, 1));
        assert_eq!(processes.process_name(5), "[pid 5]");
    }
}
