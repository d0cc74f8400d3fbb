//! Sources of stacks: our recordings, and profiles of samply.

use std::collections::BTreeMap;
use std::path::Path;

use backtrail_recording::{Frame, FrameKind, Item, Reader, Stop};
use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::judge::{Judge, Verdict};

/// The judged contents of a recording.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// By the name of the process.
    pub(crate) by_process: BTreeMap<String, Verdict>,
    pub(crate) samples: u64,
    pub(crate) lost: u64,
    /// Samples in which memory was read after the moment of the sample.
    pub(crate) late: u64,
    pub(crate) problems: Vec<String>,
}

/// Names of processes, by number.
#[derive(Default)]
struct Names(FxHashMap<u32, String>);

impl Names {
    fn of(&self, pid: u32) -> String {
        self.0.get(&pid).cloned().unwrap_or_else(|| "?".to_owned())
    }
}

/// Judges a recording of `backtrail record`. If there are names, only processes with these names
/// are counted.
pub(crate) fn recording(trace: &Path, judge: &mut Judge, wanted: &[&str]) -> Result<Judged, String> {
    let mut reader = Reader::open(trace).map_err(|error| format!("{}: {error}", trace.display()))?;
    let mut judged = Judged::default();
    let mut names = Names::default();
    while let Some(item) = reader.next().map_err(|error| format!("{}: {error}", trace.display()))? {
        match item {
            Item::Module(module) => judge.module(&module),
            Item::Exec { pid, .. } => judge.forget(pid),
            Item::Fork { pid, tid, parent, .. } if pid == tid => {
                judge.forget(pid);
                judge.fork(parent, pid);
                let name = names.of(parent);
                names.0.insert(pid, name);
            }
            Item::ThreadName(name) if name.pid == name.tid => _ = names.0.insert(name.pid, name.name),
            Item::Fork { .. } | Item::Exit { .. } | Item::ThreadName(_) | Item::ProcessLabels(_) => {}
            Item::Lost { count, .. } => judged.lost += count,
            Item::Sample(sample) => {
                let name = names.of(sample.pid);
                if !wanted.is_empty() && !wanted.contains(&&*name) {
                    continue;
                }
                judged.samples += 1;
                judged.late += u64::from(sample.live);
                let verdict = judged.by_process.entry(name).or_default();
                verdict.in_kernel += u64::from(sample.in_kernel);
                judge.add(sample.pid, sample.frames, sample.stop, verdict);
            }
        }
    }
    judged.problems = reader.problems();
    Ok(judged)
}

/// Judges samply's profile of a file of samples: `profile` is the output of `samply import`.
pub(crate) fn samply(profile: &Path, judge: &mut Judge, wanted: &[&str]) -> Result<Judged, String> {
    let text = std::fs::read(profile).map_err(|error| format!("{}: {error}", profile.display()))?;
    let profile: Value = serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", profile.display()))?;
    let mut judged = Judged::default();
    for (number, thread) in list(&profile["threads"]).iter().enumerate() {
        let name = thread["processName"].as_str().unwrap_or("?").to_owned();
        if !wanted.is_empty() && !wanted.contains(&&*name) {
            continue;
        }
        // Addresses are those of files: each thread gets a space of its own, in which every file
        // has a place.
        let pid = number as u32 + 1;
        for (index, library) in list(&profile["libs"]).iter().enumerate() {
            judge.library(pid, library["path"].as_str().unwrap_or(""), place_of(index as u64));
        }
        let stacks = SamplyThread { thread };
        let verdict = judged.by_process.entry(name).or_default();
        for (index, stack) in list(&thread["samples"]["stack"]).iter().enumerate() {
            let weight = thread["samples"]["weight"][index].as_u64().unwrap_or(1);
            let frames = stacks.frames(stack.as_u64());
            for _ in 0..weight {
                judged.samples += 1;
                let whole = judge.end(pid, crate::judge::program_frames(&frames)).is_some();
                let stop = if whole { Stop::EndOfStack } else { Stop::Unreadable };
                judge.add(pid, &frames, Some(stop), verdict);
            }
        }
    }
    Ok(judged)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The place of a library's first byte.
fn place_of(index: u64) -> u64 {
    (index + 1) << 32
}

struct SamplyThread<'p> {
    thread: &'p Value,
}

impl SamplyThread<'_> {
    fn frames(&self, mut stack: Option<u64>) -> Vec<Frame> {
        let table = |name: &str, column: &str, row: u64| self.thread[name][column][row as usize].clone();
        let mut frames = Vec::new();
        while let Some(at) = stack {
            let frame = table("stackTable", "frame", at).as_u64().unwrap_or(0);
            stack = table("stackTable", "prefix", at).as_u64();
            let function = table("frameTable", "func", frame).as_u64().unwrap_or(0);
            let resource = table("funcTable", "resource", function).as_u64();
            let library = resource.and_then(|resource| table("resourceTable", "lib", resource).as_u64());
            let offset = table("frameTable", "address", frame).as_u64();
            let inlined = table("frameTable", "inlineDepth", frame).as_u64().unwrap_or(0) > 0;
            if inlined {
                continue;
            }
            let address = match (library, offset) {
                (Some(library), Some(offset)) => place_of(library) + offset,
                // Code without a file: below the first library.
                _ => 0x10_0000,
            };
            let kind = if frames.is_empty() {
                FrameKind::Pc
            } else {
                FrameKind::Ra
            };
            // For return addresses, samply stores the byte before.
            let address = address + u64::from(kind == FrameKind::Ra);
            frames.push(Frame { kind, address });
        }
        frames
    }
}
