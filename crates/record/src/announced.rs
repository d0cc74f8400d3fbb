//! Code that sampled processes made at run time, and announce to debuggers or publish the names of.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use backtrail_cfi::announced::{AnnouncedAt, AnnouncedCode, Function, Head, Made, Memory};
use backtrail_process::sys;
use backtrail_recording::{Frame, FrameKind};
use backtrail_unwind::Uncovered;
use backtrail_wire::Endian;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::process::{Code, Process};

/// The shortest time between two looks at a process's lists.
const PAUSE: Duration = Duration::from_millis(10);
/// A look at the lists takes at most this part of the time: a program may announce thousands of
/// objects, and change them all the time.
const SHARE: u32 = 50;
/// The longest time that files of a process are searched for lists.
const LONGEST_SEARCH: Duration = Duration::from_secs(1);
/// How long a function is taken to be where it was found.
const KNOWN_FOR: Duration = Duration::from_millis(200);
/// Bytes of all functions that are noted.
const MOST_NAMES: usize = 64 << 20;
/// The time that reading names from run-time systems takes at most: this long, and a part of the
/// time since then. A program may pretend to have any number of functions and calls.
const FIRST_READING: Duration = Duration::from_secs(1);
const READING_SHARE: u32 = 10;
/// Processes whose lists are kept.
const MOST_PROCESSES: usize = 16;

/// The time that reading from run-time systems has taken.
#[derive(Debug, Default)]
struct Reading {
    /// When the first name was read, and how long reading took in all.
    so_far: Option<(Instant, Duration)>,
}

impl Reading {
    /// Reads something, unless that has taken too long already.
    fn within_budget<T>(&mut self, read: impl FnOnce() -> T) -> Option<T> {
        let begin = Instant::now();
        let (first, took) = self.so_far.get_or_insert((begin, Duration::ZERO));
        if *took > FIRST_READING + (begin - *first) / READING_SHARE {
            return None;
        }
        let found = read();
        *took += begin.elapsed();
        Some(found)
    }
}

/// The announced code of all processes.
#[derive(Default)]
pub(crate) struct Announced {
    processes: RefCell<FxHashMap<u32, Lists>>,
    /// The functions of each process that were last noted, by their starts.
    noted: FxHashMap<u32, BTreeMap<u64, Noted>>,
    /// Functions that stacks have reached into, and after each, calls in it.
    functions: Vec<AnnouncedAt>,
    /// Bytes of their names.
    names: usize,
    reading: Reading,
    /// Who gets them, if they are not kept.
    taker: Option<Box<dyn FnMut(AnnouncedAt)>>,
}

impl Announced {
    /// How to leave the frame with the code at `address`, in memory without a file, if the process
    /// describes it.
    pub(crate) fn uncovered(&self, process: &Process<'_, '_>, address: u64) -> Option<Uncovered> {
        let mut processes = self.processes.borrow_mut();
        if processes.len() >= MOST_PROCESSES && !processes.contains_key(&process.pid) {
            processes.clear();
        }
        let lists = processes.entry(process.pid).or_default();
        let read = reader(process.pid);
        let memory = in_memory(&read);
        lists.renew(process, &memory);
        lists.code.uncovered(&memory, address)
    }

    /// Notes the functions of frames, for their names: when the recording ends, they may be gone.
    pub(crate) fn note(&mut self, process: &Process<'_, '_>, code: &Code, time: u64, frames: &[Frame]) {
        // A frame's caller is mostly in the same file.
        let mut last = 0..0;
        for frame in frames {
            let is_call = frame.kind == FrameKind::Ra;
            let address = frame.address.wrapping_sub(is_call.into());
            if last.contains(&address) {
                continue;
            }
            match process.space.find(address) {
                Some(mapping) if process.modules.is_file(mapping) => last = mapping.start..mapping.end,
                Some(_) => {
                    self.note_function(process, code, time, address);
                    if is_call {
                        self.note_call(process, code, time, frame.address);
                    }
                }
                None => {}
            }
        }
    }

    fn note_function(&mut self, process: &Process<'_, '_>, code: &Code, time: u64, address: u64) {
        let lists = self.processes.get_mut().get(&process.pid);
        let read_lists = lists.map_or(0, |lists| lists.read);
        let noted = self.noted.entry(process.pid).or_default();
        let now = Instant::now();
        let known = noted.range(..=address).next_back().map(|(_, known)| known);
        let known = known.filter(|known| address < known.end);
        if known.is_some_and(|known| known.read_lists == read_lists && now < known.until) {
            return;
        }
        let read = reader(process.pid);
        let announced = lists.and_then(|lists| lists.code.function(&in_memory(&read), address));
        let announced = announced.map(|function| Made {
            function,
            version: None,
        });
        let made = announced.or_else(|| self.reading.within_budget(|| code.function(process, address))?);
        let Some(Made { function, version }) = made else {
            return;
        };
        let hash = FxBuildHasher.hash_one((&function, version));
        let (start, end) = (function.addresses.start, function.addresses.end);
        let until = now + KNOWN_FOR;
        if let Some(same) = noted.get_mut(&start).filter(|known| known.hash == hash) {
            (same.read_lists, same.until) = (read_lists, until);
            return;
        }
        if self.names + bytes(&function) > MOST_NAMES {
            return;
        }
        let is_now = Noted {
            end,
            time,
            hash,
            read_lists,
            until,
            calls: version.map(|_| FxHashSet::default()),
        };
        noted.insert(start, is_now);
        self.take(AnnouncedAt {
            pid: process.pid,
            time,
            function,
        });
    }

    /// Notes what was inlined at the call that returns to `ra`, once for as long as its function is
    /// there.
    fn note_call(&mut self, process: &Process<'_, '_>, code: &Code, time: u64, ra: u64) {
        let noted = self.noted.get_mut(&process.pid);
        let function = noted.and_then(|noted| noted.range_mut(..ra).next_back());
        let function = function
            .map(|(_, function)| function)
            .filter(|function| ra <= function.end);
        let Some(calls) = function.and_then(|function| function.calls.as_mut()) else {
            return;
        };
        if calls.contains(&ra) {
            return;
        }
        let Some(inlined) = self.reading.within_budget(|| code.inlined(process, ra)) else {
            return;
        };
        calls.insert(ra);
        if let Some(function) = inlined
            && self.names + bytes(&function) <= MOST_NAMES
        {
            let pid = process.pid;
            self.take(AnnouncedAt { pid, time, function });
        }
    }

    fn take(&mut self, found: AnnouncedAt) {
        match &mut self.taker {
            Some(take) => take(found),
            None => {
                self.names += bytes(&found.function);
                self.functions.push(found);
            }
        }
    }

    /// Passes functions on, as they are noted, instead of keeping them.
    pub(crate) fn pass_to(&mut self, taker: Option<Box<dyn FnMut(AnnouncedAt)>>) {
        self.taker = taker;
    }

    /// Drops the functions that are gone: a new recording begins.
    pub(crate) fn release(&mut self) {
        let is_there = |AnnouncedAt { pid, time, function }: &AnnouncedAt| {
            let noted = self.noted.get(pid).and_then(|noted| noted.get(&function.start));
            noted.is_some_and(|noted| noted.time <= *time)
        };
        self.functions.retain(is_there);
        self.names = self.functions.iter().map(|noted| bytes(&noted.function)).sum();
    }

    /// The functions that were noted.
    pub(crate) fn functions(&self) -> &[AnnouncedAt] {
        &self.functions
    }

    /// The same, at the end.
    pub(crate) fn into_functions(self) -> Vec<AnnouncedAt> {
        self.functions
    }

    /// A number that changes with what is known of a process's code.
    pub(crate) fn generation(&self, pid: u32) -> u64 {
        self.processes.borrow().get(&pid).map_or(0, |lists| lists.read)
    }

    /// The process runs another program, or has ended.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.processes.get_mut().remove(&pid);
        self.noted.remove(&pid);
    }
}

/// Reads the memory of a process.
fn reader(pid: u32) -> impl Fn(u64, &mut [u8]) -> usize {
    move |address, bytes| sys::read_process(pid as i32, address, bytes).unwrap_or(0)
}

fn in_memory(read: &dyn Fn(u64, &mut [u8]) -> usize) -> Memory<'_> {
    Memory {
        endian: Endian::NATIVE,
        read,
    }
}

/// A function that was noted.
#[derive(Debug)]
struct Noted {
    end: u64,
    /// When a stack first reached into it.
    time: u64,
    hash: u64,
    /// How often the process's lists had been read.
    read_lists: u64,
    /// When to look again: another function may have come to its place.
    until: Instant,
    /// The return addresses of its calls that were noted; `None` if nothing is inlined at any.
    calls: Option<FxHashSet<u64>>,
}

/// The memory that a function takes.
fn bytes(function: &Function) -> usize {
    let inlined = function.inlined.iter().map(|name| name.len() + size_of::<String>());
    function.name.len() + inlined.sum::<usize>() + size_of::<AnnouncedAt>()
}

/// The lists of a process.
#[derive(Debug, Default)]
struct Lists {
    /// The space's generation when its files were searched.
    searched: Option<u64>,
    descriptors: Vec<u64>,
    heads: Vec<Option<Head>>,
    code: AnnouncedCode,
    /// How often the lists were read.
    read: u64,
    /// When to look again.
    next: Option<Instant>,
}

impl Lists {
    /// Reads the lists again if they have changed, and not too often.
    fn renew(&mut self, process: &Process<'_, '_>, memory: &Memory<'_>) {
        let begin = Instant::now();
        if self.next.is_some_and(|next| begin < next) {
            return;
        }
        let generation = process.space.generation();
        if self.searched != Some(generation) {
            self.searched = Some(generation);
            self.descriptors = descriptors(process, begin);
        }
        let heads = self.descriptors.iter().map(|&descriptor| memory.head(descriptor));
        let heads: Vec<Option<Head>> = heads.collect();
        if heads != self.heads {
            let mut code = AnnouncedCode::read(memory, &self.descriptors);
            // Its last samples come when the process has ended: what it announced stays true.
            let is_readable = |&descriptor: &u64| (memory.read)(descriptor, &mut [0]) == 1;
            if self.descriptors.iter().any(is_readable) {
                code.keep(std::mem::take(&mut self.code));
                self.code = code;
                self.heads = heads;
                self.read += 1;
            }
        }
        let took = begin.elapsed();
        self.next = Some(begin + took + PAUSE.max(took.saturating_mul(SHARE)));
    }
}

/// Where the files of a process have lists.
fn descriptors(process: &Process<'_, '_>, begin: Instant) -> Vec<u64> {
    let mappings = process.space.mappings();
    let in_time = mappings.take_while(|_| begin.elapsed() < LONGEST_SEARCH);
    let mut found: Vec<u64> = in_time
        .filter_map(|mapping| process.modules.announced_list(mapping))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}
