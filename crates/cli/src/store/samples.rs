//! From a query's rows to the samples that every export is written from.

use std::collections::HashMap;
use std::path::Path;

use backtrail_export::{CodeFile, Ending, Frame, Node, Process, Row, Samples, Thread};
use backtrail_profile::{Call, Location, Origin};
use backtrail_recording::Stop;
use backtrail_store::tables::SAMPLES;
use backtrail_store::{FrameRow, Rows, Selection, StackRow, StoreError, TableReader};

use crate::error::Failure;

/// Two gigabytes of samples: an export of more is for no viewer.
const MOST: u64 = 1 << 26;

/// Reads the results of [`Choice::selection`](backtrail_store::Choice::selection): samples, stacks,
/// frames, modules and recordings.
pub(super) fn read(store: &Path, results: &[&Path]) -> Result<Samples, Failure> {
    let failed = |error: StoreError| super::failed(store, &error);
    let &[samples, stacks, frames, modules, recordings] = results else {
        return Err(Failure::new("results are missing"));
    };
    let selection = Selection::read([stacks, frames, modules, recordings]).map_err(failed)?;
    let mut making = Making::of(&selection);
    let mut reader = TableReader::open(samples, &SAMPLES).map_err(failed)?;
    while let Some(rows) = reader.next_group().map_err(failed)? {
        for row in 0..rows.len() {
            making.add(&rows, row)?;
        }
    }
    Ok(making.samples)
}

/// Columns of the samples.
struct Columns {
    time: usize,
    nanos: usize,
    pid: usize,
    tid: usize,
    process: usize,
    thread: usize,
    cpu: usize,
    stack: usize,
    count: usize,
}

impl Columns {
    fn new() -> Columns {
        // The table has all of these; a test compares every sample of a recording.
        let of = |name: &str| SAMPLES.column(name).unwrap_or(0);
        Columns {
            time: of("time"),
            nanos: of("nanos"),
            pid: of("pid"),
            tid: of("tid"),
            process: of("process"),
            thread: of("thread"),
            cpu: of("cpu"),
            stack: of("stack"),
            count: of("count"),
        }
    }
}

struct Making<'s> {
    selection: &'s Selection,
    columns: Columns,
    samples: Samples,
    processes: HashMap<(u32, String), u32>,
    threads: HashMap<(u32, u32, String), u32>,
    /// By frame of the store.
    frames: HashMap<i64, u32>,
    /// By module of the store.
    files: HashMap<i64, u32>,
    /// By caller and frame.
    nodes: HashMap<(u32, u32), u32>,
    endings: HashMap<Ending, u8>,
    /// By stack of the store.
    stacks: HashMap<i64, (u32, u8)>,
}

impl<'s> Making<'s> {
    fn of(selection: &'s Selection) -> Making<'s> {
        let samples = Samples {
            origin: backtrail_recording::Origin {
                command: selection.command.clone(),
                frequency: selection.period.map(|period| 1_000_000_000 / period),
                ..Default::default()
            },
            nodes: vec![Node { parent: 0, frame: 0 }],
            lost: selection.lost,
            ..Samples::default()
        };
        Making {
            selection,
            columns: Columns::new(),
            samples,
            processes: HashMap::new(),
            threads: HashMap::new(),
            frames: HashMap::new(),
            files: HashMap::new(),
            nodes: HashMap::new(),
            endings: HashMap::new(),
            stacks: HashMap::new(),
        }
    }

    fn add(&mut self, rows: &Rows, row: usize) -> Result<(), Failure> {
        let columns = &self.columns;
        let time = rows.long(columns.time, row).max(0) as u64;
        let time = time
            .saturating_mul(1000)
            .saturating_add(rows.long(columns.nanos, row).max(0) as u64);
        let cpu = rows.long(columns.cpu, row).max(0) as u32;
        let count = rows.long(columns.count, row).max(0) as u64;
        let stack = rows.long(columns.stack, row);
        let thread = self.thread(rows, row);
        let (node, ending) = self.stack(stack)?;
        if self.samples.rows.len() as u64 + count > MOST {
            return Err(Failure::new(format!("more than {MOST} samples")).help("choose fewer, by --since or --where"));
        }
        let made = Row {
            time,
            thread,
            cpu,
            node,
            ending,
            weight: 1,
        };
        self.samples.rows.extend((0..count).map(|_| made));
        Ok(())
    }

    fn thread(&mut self, rows: &Rows, row: usize) -> u32 {
        let columns = &self.columns;
        let (pid, tid) = (rows.long(columns.pid, row) as u32, rows.long(columns.tid, row) as u32);
        let (process, name) = (rows.text(columns.process, row), rows.text(columns.thread, row));
        let samples = &mut self.samples;
        let process = *self.processes.entry((pid, process)).or_insert_with_key(|(pid, name)| {
            let name = name.clone();
            samples.processes.push(Process { pid: *pid, name });
            samples.processes.len() as u32 - 1
        });
        *self
            .threads
            .entry((process, tid, name))
            .or_insert_with_key(|(process, tid, name)| {
                samples.threads.push(Thread {
                    process: *process,
                    tid: *tid,
                    name: name.clone(),
                });
                samples.threads.len() as u32 - 1
            })
    }

    /// The node of a stack, and its ending.
    fn stack(&mut self, id: i64) -> Result<(u32, u8), Failure> {
        if let Some(&known) = self.stacks.get(&id) {
            return Ok(known);
        }
        let stack = self
            .selection
            .stacks
            .get(&id)
            .ok_or_else(|| Failure::new(format!("the store has samples of stack {id}, which it does not have")))?;
        let mut node = 0;
        for &frame in stack.frames.iter().rev() {
            let frame = self.frame(frame)?;
            let samples = &mut self.samples;
            node = *self.nodes.entry((node, frame)).or_insert_with_key(|&(parent, frame)| {
                samples.nodes.push(Node { parent, frame });
                samples.nodes.len() as u32 - 1
            });
        }
        let made = (node, self.ending(stack));
        self.stacks.insert(id, made);
        Ok(made)
    }

    fn ending(&mut self, stack: &StackRow) -> u8 {
        let ending = Ending {
            stop: Stop::ALL.into_iter().find(|stop| stop.name() == stack.ending),
            live: stack.late,
        };
        let endings = &mut self.samples.endings;
        *self.endings.entry(ending).or_insert_with(|| {
            endings.push(ending);
            // There are two for each of a few reasons.
            endings.len() as u8 - 1
        })
    }

    fn frame(&mut self, id: i64) -> Result<u32, Failure> {
        if let Some(&known) = self.frames.get(&id) {
            return Ok(known);
        }
        let row = self.selection.frames.get(&id);
        let row =
            row.ok_or_else(|| Failure::new(format!("the store has stacks with frame {id}, which it does not have")))?;
        let frame = match (&row.kind[..], &row.calls[..]) {
            ("marker", [call, ..]) => Frame::Marker(call.function.clone()),
            _ => {
                self.samples.locations.push(location(row));
                let location = self.samples.locations.len() as u32 - 1;
                let file = self.file(row.module);
                let first = self.selection.modules.get(&row.module).map_or(0, |module| module.first);
                Frame::Code {
                    address: first.wrapping_add(row.address),
                    file,
                    location,
                }
            }
        };
        self.samples.frames.push(frame);
        let number = self.samples.frames.len() as u32 - 1;
        self.frames.insert(id, number);
        Ok(number)
    }

    fn file(&mut self, id: i64) -> Option<u32> {
        let module = self.selection.modules.get(&id)?;
        let files = &mut self.samples.files;
        Some(*self.files.entry(id).or_insert_with(|| {
            files.push(CodeFile {
                path: module.path.clone(),
                build_id: crate::hex::decode(module.build_id.as_bytes()).unwrap_or_default(),
                start: module.first,
                end: module.past,
            });
            files.len() as u32 - 1
        }))
    }
}

fn location(row: &FrameRow) -> Location {
    let calls = row.calls.iter().map(|call| Call {
        function: call.function.clone(),
        offset: call.from_start,
        file: (!call.file.is_empty()).then(|| call.file.clone()),
        line: (call.line > 0).then_some(call.line),
        inlined: call.inlined,
    });
    Location {
        module: row.module_name.clone(),
        origin: match &row.kind[..] {
            "kernel" => Origin::Kernel,
            "generated" => Origin::Generated,
            _ => Origin::File,
        },
        calls: calls.collect(),
    }
}
