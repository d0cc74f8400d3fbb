//! Where stacks come from: recordings of ours, and what `perf script` prints.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use backtrail_recording::{Frame, FrameKind, Item, Reader, Stop, is_kernel_address};
use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::judge::{Judge, Verdict};

/// What a recording holds, judged.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// By the name of the process.
    pub(crate) by_process: BTreeMap<String, Verdict>,
    pub(crate) samples: u64,
    pub(crate) lost: u64,
    /// Samples in which something was read after the moment of the sample.
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

/// Judges a recording of `backtrail record`. Only processes with these names are counted, or all if there are none.
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
            Item::Fork { .. } | Item::Exit { .. } | Item::ThreadName(_) => {}
            Item::Lost { count, .. } => judged.lost += count,
            Item::Sample(sample) => {
                let name = names.of(sample.pid);
                if !wanted.is_empty() && !wanted.contains(&&*name) {
                    continue;
                }
                judged.samples += 1;
                judged.late += u64::from(sample.live);
                let verdict = judged.by_process.entry(name).or_default();
                judge.add(sample.pid, sample.frames, sample.stop, verdict);
            }
        }
    }
    judged.problems = reader.problems();
    Ok(judged)
}

/// How perf found the callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PerfStacks {
    /// By frame pointers: addresses are return addresses.
    FramePointers,
    /// By `.eh_frame`: addresses are one less than return addresses.
    Dwarf,
}

/// Judges what `perf script` prints of a file of samples. Of what is in files it prints offsets there, not addresses.
pub(crate) fn perf(data: &Path, how: PerfStacks, judge: &mut Judge, wanted: &[&str]) -> Result<Judged, String> {
    let mut script = Command::new("perf");
    script
        .args([
            "script",
            "--no-inline",
            "--max-stack",
            "20000",
            "-F",
            "comm,pid,tid,time,event,ip",
        ])
        .args(["--show-mmap-events", "--show-task-events", "--show-lost-events", "-i"])
        .arg(data)
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = script.spawn().map_err(|error| format!("perf: {error}"))?;
    let output = child.stdout.take().ok_or("perf has no output")?;
    let mut reader = PerfScript::new(judge, how, wanted);
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        reader.line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    reader.sample();
    let judged = reader.judged;
    child.wait().map_err(|error| format!("perf: {error}"))?;
    Ok(judged)
}

struct PerfScript<'j> {
    judge: &'j mut Judge,
    how: PerfStacks,
    wanted: &'j [&'j str],
    judged: Judged,
    names: Names,
    /// By process: address, length, offset and path of what is mapped.
    mapped: FxHashMap<u32, Vec<(u64, u64, u64, String)>>,
    frames: Vec<Frame>,
    pid: Option<u32>,
}

impl<'j> PerfScript<'j> {
    fn new(judge: &'j mut Judge, how: PerfStacks, wanted: &'j [&'j str]) -> Self {
        PerfScript {
            judge,
            how,
            wanted,
            judged: Judged::default(),
            names: Names::default(),
            mapped: FxHashMap::default(),
            frames: Vec::new(),
            pid: None,
        }
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            self.sample();
            return;
        }
        if let Some((head, event)) = line.split_once(" PERF_RECORD_") {
            _ = head;
            self.sample();
            if self.event(event).is_none() && event.starts_with("LOST") {
                let count = event.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok());
                self.judged.lost += count.unwrap_or(1);
            }
            return;
        }
        if line.starts_with(|c: char| c.is_whitespace()) && self.pid.is_some() {
            let word = line.split_whitespace().next();
            let address = word.and_then(|word| u64::from_str_radix(word, 16).ok());
            let file = line
                .rsplit_once(" (")
                .map_or("", |(_, file)| file.trim_end_matches(')'));
            if let (Some(address), Some(pid)) = (address, self.pid) {
                self.frame(self.address(pid, file, address));
            }
            return;
        }
        // `comm  PID/TID  TIME: event:`
        self.sample();
        let pid = line
            .split_whitespace()
            .filter_map(|word| word.split_once('/'))
            .find_map(|(pid, tid)| tid.parse::<u32>().ok().and(pid.parse::<u32>().ok()));
        self.pid = pid;
    }

    fn event(&mut self, event: &str) -> Option<()> {
        if let Some(rest) = event.strip_prefix("MMAP") {
            let (pid, rest) = rest
                .split_once(": [")?
                .0
                .split_once(' ')
                .map_or(("", rest), |(_, p)| (p, rest));
            let pid: u32 = pid.split('/').next()?.trim().parse().ok()?;
            let inside = rest.split_once('[')?.1;
            let (range, rest) = inside.split_once(']')?;
            let mut words = range.split_whitespace();
            let (start, length) = words.next()?.split_once('(')?;
            let offset = words.nth(1).or_else(|| words.next())?;
            let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
            let (start, length, offset) = (hex(start)?, hex(length.trim_end_matches(')'))?, hex(offset)?);
            let (access, path) = rest.trim_start_matches(':').trim().split_once(' ')?;
            if access.contains('x') && !is_kernel_address(start) {
                let end = start.saturating_add(length);
                self.judge.mapping(pid, start, end, offset, path);
                let mapped = self.mapped.entry(pid).or_default();
                mapped.push((start, length, offset, path.to_owned()));
            }
        } else if let Some(rest) = event.strip_prefix("COMM") {
            let exec = rest.starts_with(" exec");
            let rest = rest.trim_start_matches(" exec").trim_start_matches(':').trim();
            let (name, numbers) = rest.rsplit_once(':')?;
            let (pid, tid) = numbers.split_once('/')?;
            let (pid, tid): (u32, u32) = (pid.parse().ok()?, tid.parse().ok()?);
            if exec {
                self.judge.forget(pid);
                self.mapped.remove(&pid);
            }
            if pid == tid {
                self.names.0.insert(pid, name.to_owned());
            }
        } else if let Some(rest) = event.strip_prefix("FORK(") {
            let (child, rest) = rest.split_once(')')?;
            let (parent, _) = rest.trim_start_matches(":(").split_once(':')?;
            let (pid, tid) = child.split_once(':')?;
            if pid == tid {
                let (pid, parent) = (pid.parse().ok()?, parent.parse().ok()?);
                self.judge.fork(parent, pid);
                let mapped = self.mapped.get(&parent).cloned().unwrap_or_default();
                self.mapped.insert(pid, mapped);
                let name = self.names.of(parent);
                self.names.0.insert(pid, name);
            }
        } else {
            return None;
        }
        Some(())
    }

    /// The address of an offset in a file that a process has mapped.
    fn address(&self, pid: u32, file: &str, offset: u64) -> u64 {
        let mapped = self.mapped.get(&pid).into_iter().flatten().rev();
        let holds = |(_, length, start, path): &&(u64, u64, u64, String)| {
            path == file && path.starts_with('/') && !path.starts_with("//") && offset.wrapping_sub(*start) < *length
        };
        mapped
            .into_iter()
            .find(holds)
            .map_or(offset, |(address, _, start, _)| address + (offset - start))
    }

    fn frame(&mut self, address: u64) {
        let first = self.frames.last().is_none_or(|last| is_kernel_address(last.address));
        let (kind, address) = match self.how {
            _ if first && !is_kernel_address(address) => (FrameKind::Pc, address),
            _ if is_kernel_address(address) => (FrameKind::Ra, address),
            PerfStacks::FramePointers => (FrameKind::Ra, address),
            PerfStacks::Dwarf => (FrameKind::Ra, address.wrapping_add(1)),
        };
        self.frames.push(Frame { kind, address });
    }

    /// The sample whose lines have ended.
    fn sample(&mut self) {
        let Some(pid) = self.pid.take() else { return };
        let frames = std::mem::take(&mut self.frames);
        let name = self.names.of(pid);
        if !self.wanted.is_empty() && !self.wanted.contains(&&*name) {
            return;
        }
        self.judged.samples += 1;
        // perf does not say why a stack ends: whether it is whole is the judge's to say.
        let program = crate::judge::program_frames(&frames);
        let whole = self.judge.end(pid, program).is_some();
        let stop = if whole { Stop::EndOfStack } else { Stop::Unreadable };
        let verdict = self.judged.by_process.entry(name).or_default();
        self.judge.add(pid, &frames, Some(stop), verdict);
    }
}

/// Judges what samply makes of a file of samples: `profile` is what `samply import` writes.
pub(crate) fn samply(profile: &Path, judge: &mut Judge, wanted: &[&str]) -> Result<Judged, String> {
    let text = std::fs::read(profile).map_err(|error| format!("{}: {error}", profile.display()))?;
    let profile: Value = serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", profile.display()))?;
    let mut judged = Judged::default();
    for (number, thread) in list(&profile["threads"]).iter().enumerate() {
        let name = thread["processName"].as_str().unwrap_or("?").to_owned();
        if !wanted.is_empty() && !wanted.contains(&&*name) {
            continue;
        }
        // Addresses are those of files: each thread gets a space of its own, in which every file has a place.
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

/// Where a library's first byte is put.
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
            // Of return addresses, samply keeps the byte before.
            let address = address + u64::from(kind == FrameKind::Ra);
            frames.push(Frame { kind, address });
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::copies::Copies;

    #[test]
    fn offsets_that_perf_prints_become_addresses() {
        let mut judge = Judge::new(Copies::default());
        let mut reader = PerfScript::new(&mut judge, PerfStacks::FramePointers, &[]);
        for line in [
            "sh 7/7  1.5: PERF_RECORD_COMM exec: sh:7/7",
            "sh 7/7  1.6: PERF_RECORD_MMAP2 7/7: [0x41f000(0x2b3000) @ 0x1f000 fe:00 247706 0]: r-xp /usr/bin/none",
            "sh 7/7  1.7: cpu-clock: ",
            "\tffffffff8168c064 in_the_kernel ([kernel.kallsyms])",
            "\t           20010 leaf (/usr/bin/none)",
            "\t           20020 caller (/usr/bin/none)",
            "\t    7f0000000000 [unknown] ([unknown])",
        ] {
            reader.line(line);
        }
        let addresses: Vec<u64> = reader.frames.iter().map(|frame| frame.address).collect();
        assert_eq!(
            addresses,
            [0xffff_ffff_8168_c064, 0x42_0010, 0x42_0020, 0x7f00_0000_0000]
        );
        assert_eq!(reader.frames[1].kind, FrameKind::Pc);
        reader.line("");
        assert_eq!((reader.judged.samples, reader.frames.len()), (1, 0));
    }
}
