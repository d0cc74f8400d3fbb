//! From a recording's items to samples with names.

use std::collections::HashMap;

use backtrail_profile::{File, LocationId, NO_STACK, OMITTED, Processes, Symbolizer};
use backtrail_recording::{Frame as Address, FrameKind, Item, Module, Origin, Sample, is_jit_dump, is_kernel_address};
use rustc_hash::FxHashMap;

use crate::samples::{CodeFile, Ending, Frame, Node, Process, Row, Samples, Thread};

/// Takes a recording's items in time order, and returns its [`Samples`].
pub struct Collector {
    samples: Samples,
    symbolizer: Symbolizer,
    clock_offset: u64,
    names: Processes,
    mapped: Mapped,
    processes: FxHashMap<Process, u32>,
    threads: FxHashMap<Thread, u32>,
    /// The frame of an address in a process, valid until its modules change.
    located: FxHashMap<u32, FxHashMap<Address, u32>>,
    /// Frames by location.
    of_location: FxHashMap<LocationId, u32>,
    markers: HashMap<String, u32>,
    children: FxHashMap<(u32, u32), u32>,
    /// Nodes at the root of stacks, by ending.
    roots: FxHashMap<Ending, (u8, u32)>,
    /// The last stack of each thread: most share their outer frames with the one before.
    last: FxHashMap<(u32, u32), Last>,
    /// The thread that was sampled last under its names, and its index.
    current: FxHashMap<u32, u32>,
}

/// A thread's last stack, outermost first.
#[derive(Default)]
struct Last {
    ending: Option<Ending>,
    addresses: Vec<Address>,
    nodes: Vec<u32>,
}

impl Collector {
    /// Starts without items. `clock_offset` is that of the recording's reader; the symbolizer gives
    /// the names.
    pub fn new(origin: Origin, clock_offset: u64, symbolizer: Symbolizer) -> Collector {
        let root = Node { parent: 0, frame: 0 };
        Collector {
            samples: Samples {
                origin,
                nodes: vec![root],
                ..Samples::default()
            },
            symbolizer,
            clock_offset,
            names: Processes::default(),
            mapped: Mapped::default(),
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
            located: FxHashMap::default(),
            of_location: FxHashMap::default(),
            markers: HashMap::new(),
            children: FxHashMap::default(),
            roots: FxHashMap::default(),
            last: FxHashMap::default(),
            current: FxHashMap::default(),
        }
    }

    /// Takes the next item.
    pub fn add(&mut self, item: &Item<'_>) {
        match item {
            Item::Module(module) => {
                self.symbolizer.map(module);
                self.mapped.map(module);
                if is_kernel_address(module.base) {
                    self.located.clear();
                    self.last.clear();
                } else {
                    self.forget_frames(module.pid);
                    self.names.mapped(module);
                    self.current.clear();
                }
            }
            Item::Exec { pid, .. } => {
                self.forget_modules(*pid);
                self.names.executed(*pid);
                self.current.clear();
            }
            Item::ThreadName(name) => {
                self.names.named(name.pid, name.tid, &name.name);
                self.current.clear();
            }
            Item::Fork { pid, tid, parent, .. } => {
                if self.names.forked(*pid, *tid, *parent) {
                    self.forget_modules(*pid);
                }
                self.current.clear();
            }
            Item::Exit { pid, tid, .. } => {
                self.names.exited(*pid, *tid);
                self.last.remove(&(*pid, *tid));
            }
            Item::Lost { count, .. } => self.samples.lost = self.samples.lost.saturating_add(*count),
            Item::Sample(sample) => self.add_sample(sample),
        }
    }

    /// Ends the collection. `trace_bytes` is the size of the recording on disk.
    pub fn finish(mut self, trace_bytes: u64) -> Samples {
        self.samples.trace_bytes = trace_bytes;
        self.samples.notes = self.symbolizer.notes();
        self.samples
    }

    fn forget_modules(&mut self, pid: u32) {
        self.symbolizer.clear(pid);
        self.mapped.processes.remove(&pid);
        self.forget_frames(pid);
    }

    fn forget_frames(&mut self, pid: u32) {
        self.located.remove(&pid);
        self.last.retain(|&(of, _), _| of != pid);
    }

    fn add_sample(&mut self, sample: &Sample<'_>) {
        let monotonic = sample.time.saturating_sub(self.clock_offset);
        if self.symbolizer.advance(sample.pid, monotonic) {
            self.forget_frames(sample.pid);
        }
        let ending = Ending {
            stop: sample.stop,
            live: sample.live,
        };
        let (ending_index, root) = self.root(ending);
        let key = (sample.pid, sample.tid);
        let mut last = self.last.remove(&key).unwrap_or_default();
        let kept = match last.ending == Some(ending) {
            true => common(&last.addresses, sample.frames),
            false => 0,
        };
        last.ending = Some(ending);
        last.addresses.truncate(kept);
        last.nodes.truncate(kept);
        let mut at = last.nodes.last().copied().unwrap_or(root);
        let user = sample.frames.iter().position(|frame| !is_kernel_address(frame.address));
        let user = user.unwrap_or(sample.frames.len());
        for (index, address) in sample.frames.iter().enumerate().rev().skip(kept) {
            let frame = self.frame(sample.pid, address, index < user);
            at = self.child(at, frame);
            last.addresses.push(*address);
            last.nodes.push(at);
        }
        self.last.insert(key, last);
        if sample.frames.is_empty() {
            let marker = self.marker(NO_STACK.to_owned());
            at = self.child(at, marker);
        }
        let thread = self.thread(sample.pid, sample.tid);
        self.samples.rows.push(Row {
            time: sample.time,
            thread,
            cpu: sample.cpu,
            node: at,
            ending: ending_index,
        });
    }

    /// The number of an ending, and the node at the root of such stacks.
    fn root(&mut self, ending: Ending) -> (u8, u32) {
        if let Some(&known) = self.roots.get(&ending) {
            return known;
        }
        let mut node = 0;
        for text in ending.markers() {
            let frame = self.marker(text);
            node = self.child(node, frame);
        }
        // There are two for each of a few reasons.
        let known = (self.samples.endings.len() as u8, node);
        self.samples.endings.push(ending);
        self.roots.insert(ending, known);
        known
    }

    fn thread(&mut self, pid: u32, tid: u32) -> u32 {
        if let Some(&thread) = self.current.get(&tid)
            && self.samples.process_of(thread).pid == pid
        {
            return thread;
        }
        let process = Process {
            pid,
            name: self.names.process_name(pid).into_owned(),
        };
        let process = intern(&mut self.processes, &mut self.samples.processes, process);
        let thread = Thread {
            process,
            tid,
            name: self.names.thread_name(pid, tid).into_owned(),
        };
        let thread = intern(&mut self.threads, &mut self.samples.threads, thread);
        self.current.insert(tid, thread);
        thread
    }

    fn child(&mut self, parent: u32, frame: u32) -> u32 {
        let nodes = &mut self.samples.nodes;
        *self.children.entry((parent, frame)).or_insert_with(|| {
            nodes.push(Node { parent, frame });
            nodes.len() as u32 - 1
        })
    }

    fn marker(&mut self, text: String) -> u32 {
        if let Some(&frame) = self.markers.get(&text) {
            return frame;
        }
        let frame = self.samples.frames.len() as u32;
        self.samples.frames.push(Frame::Marker(text.clone()));
        self.markers.insert(text, frame);
        frame
    }

    fn frame(&mut self, pid: u32, address: &Address, in_kernel: bool) -> u32 {
        if address.kind == FrameKind::Omitted {
            return self.marker(OMITTED.to_owned());
        }
        let outside = is_kernel_address(address.address) && !in_kernel;
        if !outside && let Some(&frame) = self.located.get(&pid).and_then(|known| known.get(address)) {
            return frame;
        }
        let location = match outside {
            true => self
                .symbolizer
                .resolve_outside_kernel(pid, address.kind, address.address),
            false => self.symbolizer.resolve(pid, address.kind, address.address),
        };
        let frame = match self.of_location.get(&location) {
            Some(&frame) => frame,
            None => self.add_code(pid, address, location, outside),
        };
        if !outside {
            self.located.entry(pid).or_default().insert(*address, frame);
        }
        frame
    }

    fn add_code(&mut self, pid: u32, address: &Address, location: LocationId, outside: bool) -> u32 {
        let within = match address.kind {
            FrameKind::Ra => address.address.saturating_sub(1),
            FrameKind::Pc | FrameKind::Omitted => address.address,
        };
        let place = match outside {
            true => None,
            false => self.mapped.find(pid, within, &mut self.samples.files),
        };
        let frame = self.samples.frames.len() as u32;
        self.samples.frames.push(Frame::Code {
            address: place.map_or(within, |(_, relative)| relative),
            file: place.map(|(file, _)| file),
            location: self.samples.locations.len() as u32,
        });
        self.samples.locations.push(self.symbolizer.location(location).clone());
        self.of_location.insert(location, frame);
        frame
    }
}

/// How many of the outermost frames, which come last in a sample, are as in this stack. Kernel
/// addresses count as different: their names depend on the frames around them.
fn common(outermost_first: &[Address], frames: &[Address]) -> usize {
    let pairs = outermost_first.iter().zip(frames.iter().rev());
    pairs
        .take_while(|(a, b)| a == b && (a.kind == FrameKind::Omitted || !is_kernel_address(a.address)))
        .count()
}

fn intern<T: Clone + Eq + std::hash::Hash>(known: &mut FxHashMap<T, u32>, all: &mut Vec<T>, value: T) -> u32 {
    *known.entry(value).or_insert_with_key(|value| {
        all.push(value.clone());
        all.len() as u32 - 1
    })
}

/// The current mappings of files.
#[derive(Default)]
struct Mapped {
    /// The latest last; asked once for each distinct address.
    processes: FxHashMap<u32, Vec<Module>>,
    kernel: Vec<Module>,
    files: FxHashMap<File, u32>,
}

impl Mapped {
    fn map(&mut self, module: &Module) {
        if is_jit_dump(&module.path) {
            return;
        }
        let modules = match is_kernel_address(module.base) {
            true => &mut self.kernel,
            false => self.processes.entry(module.pid).or_default(),
        };
        let addresses = module.addresses();
        modules.retain(|old| {
            let old = old.addresses();
            old.start < addresses.start || old.end > addresses.end
        });
        modules.push(module.clone());
    }

    /// The file at an address, and the address in it.
    fn find(&mut self, pid: u32, address: u64, files: &mut Vec<CodeFile>) -> Option<(u32, u64)> {
        let kernel = is_kernel_address(address);
        let modules = match kernel {
            true => &self.kernel,
            false => self.processes.get(&pid)?,
        };
        let module = modules
            .iter()
            .rev()
            .find(|module| module.addresses().contains(&address))?;
        let described = File::of(module);
        if described.is_anonymous() && described.path != "[vdso]" && !kernel {
            return None;
        }
        let relative = module.position_independent && !kernel;
        let start = if relative { 0 } else { module.base };
        let file = *self.files.entry(described).or_insert_with_key(|file| {
            files.push(CodeFile {
                path: file.path.clone(),
                build_id: file.build_id.clone(),
                start,
                end: start.saturating_add(module.size),
            });
            files.len() as u32 - 1
        });
        let offset = if relative { module.base } else { 0 };
        let within = address.wrapping_sub(offset);
        let known = &mut files[file as usize];
        known.end = known.end.max(within.saturating_add(1));
        Some((file, within))
    }
}
