//! Code that sampled processes made at run time and announce to debuggers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use backtrail_cfi::announced::{AnnouncedAt, AnnouncedCode, Head, Memory};
use backtrail_process::sys;
use backtrail_recording::{Frame, FrameKind};
use backtrail_unwind::Uncovered;
use backtrail_wire::Endian;
use rustc_hash::FxHashMap;

use crate::process::Process;

/// The shortest time between two looks at a process's lists.
const PAUSE: Duration = Duration::from_millis(10);
/// A look at the lists takes at most this part of the time: a program may announce thousands of
/// objects, and change them all the time.
const SHARE: u32 = 50;
/// The longest time that files of a process are searched for lists.
const LONGEST_SEARCH: Duration = Duration::from_secs(1);
/// Bytes of all functions that are noted.
const MOST_NAMES: usize = 64 << 20;
/// Processes whose lists are kept.
const MOST_PROCESSES: usize = 16;

/// The announced code of all processes.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    processes: RefCell<FxHashMap<u32, Lists>>,
    /// Functions that stacks have reached into.
    functions: Vec<AnnouncedAt>,
    /// Bytes of their names.
    names: usize,
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
    pub(crate) fn note(&mut self, process: &Process<'_, '_>, time: u64, frames: &[Frame]) {
        let lists = self.processes.get_mut().get_mut(&process.pid);
        let Some(lists) = lists.filter(|lists| !lists.code.is_empty()) else {
            return;
        };
        let read = reader(process.pid);
        let memory = in_memory(&read);
        for frame in frames {
            let address = frame.address.wrapping_sub(u64::from(frame.kind == FrameKind::Ra));
            let known = lists.named.range(..=address).next_back();
            if known.is_some_and(|(_, end)| address < *end) || self.names > MOST_NAMES {
                continue;
            }
            let is_generated = || {
                process
                    .space
                    .find(address)
                    .is_some_and(|mapping| !process.modules.is_file(mapping))
            };
            if let Some(function) = is_generated().then(|| lists.code.function(&memory, address)).flatten() {
                lists.named.insert(function.addresses.start, function.addresses.end);
                self.names += function.name.len() + size_of::<AnnouncedAt>();
                self.functions.push(AnnouncedAt {
                    pid: process.pid,
                    time,
                    function,
                });
            }
        }
    }

    /// The functions that were noted.
    pub(crate) fn into_functions(self) -> Vec<AnnouncedAt> {
        self.functions
    }

    /// A number that changes with what is known of a process's code.
    pub(crate) fn generation(&self, pid: u32) -> u64 {
        self.processes.borrow().get(&pid).map_or(0, |lists| lists.read)
    }

    /// The process runs another program, or has ended.
    pub(crate) fn forget(&self, pid: u32) {
        self.processes.borrow_mut().remove(&pid);
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

/// The lists of a process.
#[derive(Debug, Default)]
struct Lists {
    /// The space's generation when its files were searched.
    searched: Option<u64>,
    descriptors: Vec<u64>,
    heads: Vec<Option<Head>>,
    code: AnnouncedCode,
    /// The functions that were noted since, by their starts, with their ends.
    named: BTreeMap<u64, u64>,
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
                self.named.clear();
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
