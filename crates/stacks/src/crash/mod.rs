//! Crash reports: what is kept of a process that died, made from its core while the kernel writes
//! it, and the folder of them.
//!
//! [`collect`] reads only the beginning of a core, which describes threads and memory. The memory
//! itself is read from the process, which stands still until the core is written; if it is gone,
//! from the stream, as much as [`Options::memory`] allows. A [`Report`] grows while it is made: it
//! is saved as soon as something is known, so that whatever ends the collector leaves a report.

mod facts;
mod folder;
mod key;

use std::fs::File;
use std::io::{self, Read};
use std::time::Instant;

use backtrail_elf::FileBytes;
use backtrail_elf::core::{Core, bounded};
use backtrail_process::snapshot::Mapping;
use backtrail_process::{Snapshot, core, live, proc};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Map, Value, json};

pub use facts::Facts;
pub use folder::{Entry, Folder, Keep, Slot};

use crate::process::Process;
use crate::shown::Shown;
use crate::{Looker, NamedThread, Options as LookerOptions, json, modules, record};

/// The most frames of a stack that a report has at each end.
const MOST_AT_ENDS: usize = 128;
/// The most threads whose stacks a report has.
const MOST_THREADS: usize = 1024;
/// The most modules that a report lists.
const MOST_MODULES: usize = 4096;
/// Bytes of instructions before and after the program counter.
const CODE: u64 = 32;
/// The most bytes of text in a summary.
const LONGEST_TEXT: usize = 512;

/// How a report is made.
#[derive(Debug)]
pub struct Options {
    /// Find the arguments of functions, and show this much of them; also which names on the command
    /// line are hidden.
    pub shown: Shown,
    /// Find the arguments of functions.
    pub arguments: bool,
    /// The most bytes of memory that are copied, to a core that is kept or for stacks whose process
    /// is gone.
    pub memory: u64,
    /// When reading the stream stops.
    pub until: Instant,
}

/// What is known of a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What lists need: `id`, `time`, `program`, `name`, `pid`, `uid`, `signal`, `function`, `key`,
    /// `core`, `complete`.
    pub summary: Value,
    /// Everything.
    pub details: Value,
}

impl Report {
    fn set(&mut self, name: &str, value: Value) {
        self.details[name] = value;
    }

    fn problem(&mut self, text: impl ToString) {
        if let Some(problems) = self.details["problems"].as_array_mut() {
            problems.push(text.to_string().into());
        }
    }

    /// The summary, as one line of text.
    pub fn line(&self) -> String {
        let of = |name: &str| self.summary[name].as_str().unwrap_or("?").to_owned();
        format!(
            "{} died by {} in {}, crash {}",
            of("program"),
            of("signal"),
            of("function"),
            of("id")
        )
    }
}

/// A core that is kept: where it is written to.
#[derive(Debug)]
pub struct Kept<'k> {
    /// The file.
    pub file: &'k mut File,
    /// Its name.
    pub name: &'k str,
}

/// Makes a report from a core that arrives, and passes each state of it to `save`.
pub fn collect(
    id: &str,
    facts: &Facts,
    stream: &mut impl Read,
    options: &Options,
    kept: Option<Kept<'_>>,
    save: &mut dyn FnMut(&Report),
) -> Report {
    let mut report = begin(id, facts, options);
    save(&report);
    if let Err(error) = complete(&mut report, facts, stream, options, kept, save) {
        report.problem(format_args!("the core could not be read: {error}"));
    }
    report.summary["complete"] = true.into();
    save(&report);
    report
}

/// What is known without the core.
fn begin(id: &str, facts: &Facts, options: &Options) -> Report {
    let path = facts.program();
    let program = path
        .as_deref()
        .map(|path| path.strip_suffix(proc::DELETED).unwrap_or(path));
    let base = program.and_then(|path| path.rsplit('/').next());
    let name = base.or(facts.name.as_deref()).unwrap_or("?");
    let summary = json!({
        "id": id,
        "time": folder::time(facts.time),
        "program": bounded_text(name),
        "pid": facts.pid,
        "uid": facts.uid,
        "signal": facts.signal.map(facts::signal_name),
        "function": null,
        "key": null,
        "core": null,
        "complete": false,
    });
    let host = rustix::system::uname();
    let details = json!({
        "id": id,
        "time": folder::time(facts.time),
        "host": host.nodename().to_string_lossy(),
        "kernel": host.release().to_string_lossy(),
        "pid": facts.pid,
        "pid_in_container": facts.pid_in_container(),
        "uid": facts.uid,
        "gid": facts.gid,
        "name": facts.name,
        "path": path,
        "command_line": facts.command_line(&options.shown),
        "control_group": facts.control_group(),
        "signal": facts::signal(facts.signal, None),
        "problems": [],
    });
    Report { summary, details }
}

fn complete(
    report: &mut Report,
    facts: &Facts,
    stream: &mut impl Read,
    options: &Options,
    kept: Option<Kept<'_>>,
    save: &mut dyn FnMut(&Report),
) -> io::Result<()> {
    let head = bounded::head(stream)?;
    let parsed = Core::parse(&head).map_err(io::Error::other)?;
    let dead = core::snapshot(&parsed);
    let signal = facts.signal.or(dead.signal);
    report.set("signal", facts::signal(signal, parsed.signal_info));
    report.summary["signal"] = signal.map(facts::signal_name).into();
    if facts.name.is_none() && report.details["path"].is_null() {
        report.summary["program"] = bounded_text(&dead.name).into();
        report.set("name", dead.name.clone().into());
    }
    save(report);

    if let Ok(mut snapshot) = live::dumping(facts.pid, &dead) {
        snapshot.signal = signal;
        let is_there = stacks_of(report, &snapshot, options, save);
        if let Some(kept) = kept {
            let selection = bounded::Selection::of(&parsed, &head, options.memory);
            let read = |address: u64, _: u64, buffer: &mut [u8]| snapshot.read(address, buffer);
            write_core(report, &parsed, &head, &selection, kept, read);
        }
        return is_there;
    }
    let selection = bounded::Selection::of(&parsed, &head, options.memory);
    let mut at = head.len() as u64;
    let read = |_: u64, offset: u64, buffer: &mut [u8]| read_at(stream, &mut at, offset, buffer, options.until);
    let file = match kept {
        Some(kept) => {
            let file = kept.file.try_clone()?;
            write_core(report, &parsed, &head, &selection, kept, read);
            file
        }
        None => {
            // The disk may be full.
            let mut file = File::from(memfd_create("core", MemfdFlags::CLOEXEC)?);
            bounded::write(&parsed, &head, &selection, &mut file, read)?;
            file
        }
    };
    let bytes = FileBytes::from_file(file)?;
    let smaller = Core::of(&bytes).map_err(io::Error::other)?;
    stacks_of(report, &core::snapshot(&smaller), options, save)
}

/// Reads the bytes at an offset of a stream; those before it are dropped.
fn read_at(stream: &mut impl Read, at: &mut u64, offset: u64, buffer: &mut [u8], until: Instant) -> usize {
    while *at < offset && Instant::now() < until {
        let skipped = io::copy(&mut stream.take((offset - *at).min(1 << 20)), &mut io::sink());
        match skipped {
            Ok(skipped) if skipped > 0 => *at += skipped,
            _ => return 0,
        }
    }
    if *at != offset {
        return 0;
    }
    let mut done = 0;
    while done < buffer.len() {
        match stream.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    *at += done as u64;
    done
}

fn write_core(
    report: &mut Report,
    core: &Core<'_>,
    head: &[u8],
    selection: &bounded::Selection,
    kept: Kept<'_>,
    read: impl FnMut(u64, u64, &mut [u8]) -> usize,
) {
    match bounded::write(core, head, selection, kept.file, read) {
        Ok(bytes) => {
            let whole = core.missing.saturating_add(head.len() as u64);
            report.summary["core"] = kept.name.into();
            report.set("core", json!({"file": kept.name, "bytes": bytes, "whole_bytes": whole}));
        }
        Err(error) => report.problem(format_args!("the core could not be written: {error}")),
    }
}

/// Adds stacks and everything that comes with them.
fn stacks_of(
    report: &mut Report,
    snapshot: &Snapshot<'_>,
    options: &Options,
    save: &mut dyn FnMut(&Report),
) -> io::Result<()> {
    report.set("architecture", snapshot.arch.name().into());
    report.set("modules", modules_of(snapshot));
    report.set("registers", registers_of(snapshot));
    let mut looker = Looker::new(LookerOptions {
        arguments: options.arguments,
        shown: options.shown.clone(),
        ..LookerOptions::default()
    });
    report.set("instructions", instructions(snapshot, &looker));
    report.set("abort_message", looker.abort_message(snapshot).into());
    save(report);
    let (process, left_out) = shortened(looker.stacks(snapshot));
    report.set("record", record::to_json(&process));
    save(report);

    let named = looker.names(&process);
    let threads = named.iter().zip(&left_out).map(|(thread, left_out)| {
        let mut value = json::thread(thread, options.arguments);
        if let Some((after, count)) = left_out {
            value["omitted"] = json!({"after": after, "count": count});
        }
        value
    });
    report.set("threads", threads.collect());
    if snapshot.threads.len() > named.len() {
        report.problem(format_args!(
            "{} more threads are not shown",
            snapshot.threads.len() - named.len()
        ));
    }
    for problem in looker.problems() {
        report.problem(problem);
    }
    blame(report, snapshot.signal, named.first());
    Ok(())
}

fn blame(report: &mut Report, signal: Option<u32>, thread: Option<&NamedThread>) {
    let Some(thread) = thread.filter(|thread| !thread.frames.is_empty()) else {
        return;
    };
    let blamed = key::blamed(thread);
    let program = report.summary["program"].as_str().unwrap_or_default();
    let message = report.details["abort_message"].as_str();
    let key = key::key(program, signal, message, blamed);
    let function = blamed.first().map(|frame| bounded_text(&frame.function));
    report.set("key", key.clone().into());
    report.set("function", function.clone().into());
    report.summary["key"] = key.into();
    report.summary["function"] = function.into();
}

/// Stacks without the middle of those that are long; for each, the index after which frames are
/// missing, and their number.
fn shortened(mut process: Process) -> (Process, Vec<Option<(usize, usize)>>) {
    process.threads.truncate(MOST_THREADS);
    let mut left_out = Vec::new();
    for thread in &mut process.threads {
        let count = thread.frames.len();
        if count <= 2 * MOST_AT_ENDS {
            left_out.push(None);
            continue;
        }
        let middle = MOST_AT_ENDS..count - MOST_AT_ENDS;
        thread.frames.drain(middle.clone());
        if thread.arguments.len() == count {
            thread.arguments.drain(middle.clone());
        }
        // Inlined calls make frames of their own, so a reader of names finds the place by address.
        left_out.push(Some((MOST_AT_ENDS, middle.len())));
    }
    (process, left_out)
}

/// All files with code that the process had mapped.
fn modules_of(snapshot: &Snapshot<'_>) -> Value {
    let code = snapshot
        .mappings
        .iter()
        .filter(|mapping| mapping.executable && is_module(mapping));
    let described = code.take(MOST_MODULES).map(|mapping| {
        let first = modules::first_mapping(snapshot, mapping);
        let build_id = json::hex(&modules::build_id_in_memory(snapshot, first));
        json!({
            "path": mapping.path,
            "base": format!("{:#x}", first.start),
            "code": [format!("{:#x}", mapping.start), format!("{:#x}", mapping.end)],
            "build_id": Some(build_id).filter(|id| !id.is_empty()),
        })
    });
    described.collect()
}

fn is_module(mapping: &Mapping) -> bool {
    mapping.path == proc::VDSO || proc::is_file(&mapping.path)
}

/// The registers of each thread, by name.
fn registers_of(snapshot: &Snapshot<'_>) -> Value {
    let threads = snapshot.threads.iter().take(MOST_THREADS).map(|thread| {
        let mut named = Map::new();
        if let Ok(registers) = &thread.registers {
            named.insert("pc".to_owned(), format!("{:#x}", registers.pc).into());
            for number in 0..backtrail_arch::REGISTERS as u8 {
                let register = backtrail_arch::Register(number);
                let name = snapshot.arch.register_name(register);
                if let Some((name, value)) = name.zip(registers.get(register)) {
                    named.insert(name.to_owned(), format!("{value:#x}").into());
                }
            }
        }
        json!({"tid": thread.tid, "registers": named})
    });
    threads.collect()
}

/// The code around the program counter of the thread that died.
fn instructions(snapshot: &Snapshot<'_>, looker: &Looker) -> Value {
    let died = snapshot
        .threads
        .first()
        .and_then(|thread| thread.registers.as_ref().ok());
    let Some(pc) = died.map(|registers| registers.pc) else {
        return Value::Null;
    };
    let Some(mapping) = snapshot.mapping(pc).filter(|mapping| mapping.executable) else {
        return Value::Null;
    };
    let start = pc.saturating_sub(CODE).max(mapping.start);
    let mut bytes = vec![0; (pc.saturating_add(CODE).min(mapping.end) - start) as usize];
    let got = looker.read(snapshot, start, &mut bytes);
    if got == 0 {
        return Value::Null;
    }
    json!({"pc": format!("{pc:#x}"), "start": format!("{start:#x}"), "bytes": json::hex(&bytes[..got])})
}

fn bounded_text(text: &str) -> String {
    match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Frame;

    #[test]
    fn a_stream_is_read_forwards() {
        let bytes: Vec<u8> = (0..=255).collect();
        let (mut stream, mut at) = (&bytes[16..], 16);
        let until = Instant::now() + std::time::Duration::from_secs(3600);
        let mut buffer = [0; 8];
        assert_eq!(read_at(&mut stream, &mut at, 100, &mut buffer, until), 8);
        assert_eq!((buffer[0], at), (100, 108));
        assert_eq!(read_at(&mut stream, &mut at, 50, &mut buffer, until), 0);
        assert_eq!(read_at(&mut stream, &mut at, 252, &mut buffer, until), 4);
        assert_eq!(read_at(&mut stream, &mut at, 300, &mut buffer, until), 0);
    }

    #[test]
    fn long_stacks_keep_both_ends() {
        let frame = |address| Frame {
            address,
            kind: backtrail_unwind::AddressKind::Ra,
            how: crate::How::Sframe,
        };
        let thread = |count: u64| crate::ThreadStack {
            tid: 1,
            name: None,
            signal: None,
            frames: (0..count).map(frame).collect(),
            end: crate::End::COMPLETE,
            lacked_memory: false,
            registers: crate::FrameRegisters::default(),
            arguments: Vec::new(),
        };
        let process = Process {
            threads: vec![thread(256), thread(1000)],
            ..Process::default()
        };
        let (process, left_out) = shortened(process);
        assert_eq!(left_out, [None, Some((128, 744))]);
        assert_eq!(process.threads[0].frames.len(), 256);
        assert_eq!(process.threads[1].frames[127].address, 127);
        assert_eq!(process.threads[1].frames[128].address, 872);
    }
}
