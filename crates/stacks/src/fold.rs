//! Threads with the same stack, and changes from one snapshot to the next.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use crate::process::{End, Process, ThreadStack};

/// Groups threads with equal stacks. Each group lists their indices; groups are in the order of
/// their first threads.
pub fn equal_stacks(threads: &[ThreadStack]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known = FxHashMap::default();
    for (index, thread) in threads.iter().enumerate() {
        // Threads without a stack are reported one by one, and so is a thread that a signal
        // concerns.
        let is_alone = matches!(thread.end, End::NotStopped(_)) || thread.signal.is_some_and(|_| index == 0);
        if is_alone {
            groups.push(vec![index]);
            continue;
        }
        let group = *known
            .entry((&thread.frames, thread.end.name(), &thread.arguments))
            .or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
        groups[group].push(index);
    }
    groups
}

/// How a thread has changed since an earlier snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its stack is the same, including the arguments if requested.
    Same,
    /// Its stack or its arguments differ.
    Moved,
    /// It is new.
    New,
}

/// The change of each thread of `now`, and the numbers of the threads that have ended.
pub fn changes(before: &Process, now: &Process) -> (Vec<Change>, Vec<u32>) {
    let old: HashMap<u32, &ThreadStack> = before.threads.iter().map(|thread| (thread.tid, thread)).collect();
    let changes = now.threads.iter().map(|thread| match old.get(&thread.tid) {
        None => Change::New,
        Some(old) => {
            let is_same =
                old.frames == thread.frames && old.end.name() == thread.end.name() && old.arguments == thread.arguments;
            if is_same { Change::Same } else { Change::Moved }
        }
    });
    let changes = changes.collect();
    let there: HashMap<u32, ()> = now.threads.iter().map(|thread| (thread.tid, ())).collect();
    let gone = before.threads.iter().map(|thread| thread.tid);
    (changes, gone.filter(|tid| !there.contains_key(tid)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Argument, Hidden};
    use crate::process::{Frame, FrameRegisters, How};
    use backtrail_unwind::AddressKind;

    fn thread(tid: u32, addresses: &[u64]) -> ThreadStack {
        let frame = |&address| Frame {
            address,
            kind: AddressKind::Ra,
            how: How::EhFrame,
        };
        ThreadStack {
            tid,
            name: Some(format!("thread {tid}")),
            signal: None,
            frames: addresses.iter().map(frame).collect(),
            end: End::COMPLETE,
            lacked_memory: false,
            registers: FrameRegisters::default(),
            arguments: Vec::new(),
        }
    }

    #[test]
    fn equal_stacks_fold_whatever_the_threads_are_called() {
        let threads = [
            thread(1, &[1, 2]),
            thread(2, &[3]),
            thread(3, &[1, 2]),
            thread(4, &[3, 4]),
        ];
        assert_eq!(equal_stacks(&threads), [vec![0, 2], vec![1], vec![3]]);
    }

    #[test]
    fn other_arguments_are_a_change() {
        let with = |value: &str| {
            let mut thread = thread(1, &[1]);
            thread.arguments = vec![vec![Argument {
                name: "fd".into(),
                type_name: None,
                value: Some(value.to_owned()),
                place: None,
                at_entry: false,
                code: Vec::new(),
                hidden: Hidden::Nothing,
            }]];
            Process {
                threads: vec![thread],
                ..Process::default()
            }
        };
        assert_eq!(changes(&with("3"), &with("3")).0, [Change::Same]);
        assert_eq!(changes(&with("3"), &with("4")).0, [Change::Moved]);
    }

    #[test]
    fn changes_are_by_thread() {
        let process = |threads: Vec<ThreadStack>| Process {
            threads,
            ..Process::default()
        };
        let before = process(vec![thread(1, &[1]), thread(2, &[2]), thread(3, &[3])]);
        let now = process(vec![thread(1, &[1]), thread(3, &[4]), thread(4, &[2])]);
        let (each, gone) = changes(&before, &now);
        assert_eq!(each, [Change::Same, Change::Moved, Change::New]);
        assert_eq!(gone, [2]);
    }
}
