//! Code that processes make while they run: their jitdumps and perf maps.

use std::path::Path;
use std::sync::Arc;

use backtrail_cfi::announced::{AnnouncedAt, Function};
use rustc_hash::FxHashMap;

use super::jitdump::{JitCode, JitDump};
use super::notes::{Notes, Trouble};
use super::perf_map::PerfMap;
use super::source::Call;
use super::trusted;
use super::{Location, Origin};
use crate::demangle::demangle;

/// The run-time code of all processes.
#[derive(Default)]
pub(super) struct RunTimeCode {
    reader: trusted::Reader,
    perf_maps: FxHashMap<u32, Option<PerfMap>>,
    /// By path; `None` for those that cannot be used.
    read: FxHashMap<String, Option<Arc<JitDump>>>,
    /// All dumps, by number.
    dumps: Vec<Dump>,
    processes: FxHashMap<u32, Process>,
    announced: FxHashMap<u32, Announced>,
}

/// What a process last announced to debuggers.
struct Announced {
    functions: Vec<Function>,
    /// The number of the dump that these are kept as.
    dump: u32,
}

struct Dump {
    path: String,
    code: JitCode,
}

#[derive(Default)]
struct Process {
    /// Numbers of its dumps.
    dumps: Vec<u32>,
    /// The current time, once it has been set.
    time: Option<u64>,
    /// Whether a dump without a known mapping was searched for.
    searched: bool,
}

impl RunTimeCode {
    /// A process has mapped the dump at a path. Returns whether that is news.
    pub(super) fn map(&mut self, pid: u32, path: &str, notes: &mut Notes) -> bool {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let dump = self.read.entry(path.to_owned()).or_insert_with(|| {
            let data = self.reader.mapped(pid, Path::new(path), notes);
            let dump = data.and_then(|data| JitDump::parse(&data));
            if dump.is_none() {
                notes.add(Trouble::NoJitDump, path);
            }
            dump.map(Arc::new)
        });
        dump.clone().is_some_and(|dump| self.add(pid, path, dump))
    }

    /// Finds the dump of a process in the folder of perf maps, if none is known from its mappings.
    /// The process number may have been another process's before, so the dump must name this
    /// process.
    pub(super) fn find_dump(&mut self, folder: &Path, pid: u32, notes: &mut Notes) {
        let process = self.processes.entry(pid).or_default();
        if process.searched || !process.dumps.is_empty() {
            return;
        }
        process.searched = true;
        let name = |pid| format!("jit-{pid}.dump");
        let Some((data, own)) = self.reader.in_folder(pid, folder, name, notes) else {
            return;
        };
        if let Some(dump) = JitDump::parse(&data).filter(|dump| dump.process() == own) {
            self.add(pid, &folder.join(name(own)).to_string_lossy(), Arc::new(dump));
        }
    }

    /// Returns whether the process did not have it.
    fn add(&mut self, pid: u32, path: &str, dump: Arc<JitDump>) -> bool {
        let process = self.processes.entry(pid).or_default();
        let dumps = &self.dumps;
        if process.dumps.iter().any(|&number| dumps[number as usize].path == path) {
            return false;
        }
        let mut code = JitCode::new(dump);
        code.advance(process.time.unwrap_or(u64::MAX));
        process.dumps.push(self.dumps.len() as u32);
        self.dumps.push(Dump {
            path: path.to_owned(),
            code,
        });
        true
    }

    /// A process announces functions to debuggers, which replace those that it announced before.
    pub(super) fn announce(&mut self, pid: u32, functions: &[Function]) {
        let known = self.announced.get(&pid);
        if known.is_none() && functions.is_empty() {
            return;
        }
        // The places in a dump are known by its number.
        let same = known.filter(|known| known.functions == functions);
        let same = same.map(|known| known.dump);
        let mut code = JitCode::new(Arc::default());
        functions.iter().for_each(|function| code.announce(0, function));
        let dump = same.unwrap_or_else(|| self.add_announced(pid, functions.to_vec()));
        let there = &mut self.dumps[dump as usize].code;
        *there = code;
        there.advance(u64::MAX);
    }

    /// A process has announced a function while it was recorded, not before any other.
    pub(super) fn announce_at(&mut self, at: &AnnouncedAt) {
        let known = self.announced.get(&at.pid).map(|announced| announced.dump);
        let dump = known.unwrap_or_else(|| self.add_announced(at.pid, Vec::new()));
        self.dumps[dump as usize].code.announce(at.time, &at.function);
    }

    fn add_announced(&mut self, pid: u32, functions: Vec<Function>) -> u32 {
        let dump = self.dumps.len() as u32;
        self.dumps.push(Dump {
            path: String::new(),
            code: JitCode::new(Arc::default()),
        });
        self.announced.insert(pid, Announced { functions, dump });
        dump
    }

    /// Whether a process has announced functions.
    pub(super) fn has_announced(&self, pid: u32) -> bool {
        self.announced.contains_key(&pid)
    }

    /// The process runs another program, or has ended.
    pub(super) fn clear(&mut self, pid: u32) {
        self.processes.remove(&pid);
        if let Some(announced) = self.announced.get(&pid) {
            self.dumps[announced.dump as usize].code.clear();
        }
    }

    /// Advances to a time, and returns whether anything changes.
    pub(super) fn advance(&mut self, pid: u32, time: u64) -> bool {
        let process = self.processes.entry(pid).or_default();
        process.time = Some(time);
        let dumps = &mut self.dumps;
        // Advance each, whatever the others return.
        let announced = self.announced.get(&pid).map(|announced| announced.dump);
        process
            .dumps
            .iter()
            .copied()
            .chain(announced)
            .fold(false, |changed, number| {
                dumps[number as usize].code.advance(time) | changed
            })
    }

    /// The dump, the change and the distance from the function's start for an address.
    pub(super) fn find(&self, pid: u32, address: u64) -> Option<(u32, u32, u64)> {
        let find = |&number: &u32| {
            let (change, offset) = self.dumps[number as usize].code.find(address)?;
            Some((number, change, offset))
        };
        let process = self.processes.get(&pid);
        let found = process.and_then(|process| process.dumps.iter().rev().find_map(find));
        // A perf map does not say what was inlined.
        let is_better = |&(dump, change, offset): &(u32, u32, u64)| {
            let function = self.dumps[dump as usize].code.function(change, offset);
            function.is_some_and(|function| !function.inlined.is_empty()) || !self.is_in_perf_map(pid, address)
        };
        found.or_else(|| find(&self.announced.get(&pid)?.dump).filter(is_better))
    }

    /// Whether a perf map that was read has a name for the address. Emulators announce all of their
    /// code as one function, and write the names of its parts there.
    fn is_in_perf_map(&self, pid: u32, address: u64) -> bool {
        let map = self.perf_maps.get(&pid).and_then(Option::as_ref);
        map.is_some_and(|map| map.lookup(address).is_some())
    }

    /// The location of a place that was [found](Self::find).
    pub(super) fn location(&self, dump: u32, change: u32, offset: u64) -> Location {
        let function = self
            .dumps
            .get(dump as usize)
            .and_then(|dump| dump.code.function(change, offset));
        let calls = function.map(|function| {
            let inlined = function.inlined.iter().map(|name| Call {
                function: demangle(name).into_owned(),
                inlined: true,
                ..Call::default()
            });
            let own = Call {
                function: match function.name {
                    "" => "[unnamed]".to_owned(),
                    name => demangle(name).into_owned(),
                },
                offset: Some(function.offset),
                file: function.line.map(|(file, _)| file.to_owned()),
                line: function.line.map(|(_, line)| line),
                inlined: false,
            };
            inlined.chain([own]).collect()
        });
        Location {
            module: "[jit]".into(),
            origin: Origin::Generated,
            calls: calls.unwrap_or_else(|| vec![Call::default()]),
        }
    }

    /// The perf map of a process.
    pub(super) fn perf_map(&mut self, folder: &Path, pid: u32, notes: &mut Notes) -> Option<&PerfMap> {
        let read = || {
            let (data, _) = self
                .reader
                .in_folder(pid, folder, |pid| format!("perf-{pid}.map"), notes)?;
            Some(PerfMap::parse(&data))
        };
        self.perf_maps.entry(pid).or_insert_with(read).as_ref()
    }
}
