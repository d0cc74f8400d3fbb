//! The Firefox Profiler's processed profile, in the layout of its version 55; later viewers upgrade
//! it.

use std::io::{self, Write};

use backtrail_profile::Origin;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::samples::{CodeFile, Frame, Row, Samples};
use crate::strings::{Table, hex};

const VERSION: u32 = 55;
/// Categories, by their places in the list that is written.
const OTHER: u32 = 0;
const USER: u32 = 1;
const KERNEL: u32 = 2;
const GENERATED: u32 = 3;

pub(crate) fn write(samples: &Samples, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let (first, last) = samples.times().unwrap_or_default();
    let category = |name: &str, color: &str| json!({"name": name, "color": color, "subcategories": ["Other"]});
    let interval = samples.period().unwrap_or(1_000_000) as f64 / 1e6;
    let meta = json!({
        "categories": [
            category("Other", "grey"), category("User", "yellow"), category("Kernel", "orange"),
            category("Generated", "green"),
        ],
        "debug": false,
        "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
        "interval": interval,
        "preprocessedProfileVersion": VERSION,
        "processType": 0,
        "product": title,
        "oscpu": format!("Linux {} {}", samples.origin.kernel, samples.origin.machine),
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs"},
        "startTime": first as f64 / 1e6,
        "symbolicated": true,
        "pausedRanges": [],
        "version": 24,
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "markerSchema": [],
        "arguments": samples.origin.command,
    });
    out.write_all(br#"{"meta":"#)?;
    serde_json::to_writer(&mut *out, &meta)?;
    let libs: Vec<Value> = samples.files.iter().map(library).collect();
    out.write_all(br#","libs":"#)?;
    serde_json::to_writer(&mut *out, &libs)?;
    out.write_all(br#","pages":[],"counters":[],"profilerOverhead":[],"threads":["#)?;
    let mut by_thread: Vec<Vec<&Row>> = vec![Vec::new(); samples.threads.len()];
    for row in &samples.rows {
        by_thread[row.thread as usize].push(row);
    }
    for (index, rows) in by_thread.iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        let end = (last - first) as f64 / 1e6;
        serde_json::to_writer(&mut *out, &thread(samples, index, rows, first, end))?;
    }
    out.write_all(b"]}\n")
}

fn library(file: &CodeFile) -> Value {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    json!({
        "name": name, "path": file.path, "debugName": name, "debugPath": file.path,
        "breakpadId": breakpad_id(&file.build_id), "codeId": hex(&file.build_id), "arch": null,
    })
}

/// The id by which symbol servers know a file: the first 16 bytes of its build id as a GUID, and an
/// age of 0.
fn breakpad_id(build_id: &[u8]) -> String {
    let mut guid = [0; 16];
    let length = build_id.len().min(16);
    guid[..length].copy_from_slice(&build_id[..length]);
    guid[..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    format!("{}0", hex(&guid).to_uppercase())
}

/// The tables of one thread.
#[derive(Default)]
struct Tables {
    strings: Table<String>,
    /// Name, resource or -1.
    functions: Table<(u32, i64)>,
    /// The source file of each function, by its first call.
    sources: Vec<Option<u32>>,
    /// Resources: a library, and its name.
    resources: Table<(u32, u32)>,
    frames: Table<FrameRow>,
    /// Prefix, frame.
    stacks: Table<(Option<u32>, u32)>,
    /// The stack of a node.
    of_node: FxHashMap<u32, Option<u32>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct FrameRow {
    address: i64,
    inline_depth: u32,
    category: u32,
    function: u32,
    line: Option<u32>,
}

fn thread(samples: &Samples, index: usize, rows: &[&Row], first: u64, end: f64) -> Value {
    let described = &samples.threads[index];
    let process = &samples.processes[described.process as usize];
    let mut tables = Tables::default();
    let mut stacks = Vec::with_capacity(rows.len());
    let mut deltas = Vec::with_capacity(rows.len());
    let mut before = first;
    for row in rows {
        stacks.push(tables.stack(samples, row.node));
        deltas.push(row.time.saturating_sub(before) as f64 / 1e6);
        before = row.time;
    }
    let at = |row: Option<&&Row>| row.map_or(0.0, |row| row.time.saturating_sub(first) as f64 / 1e6);
    let mut value = tables.into_json();
    let is_time = samples.measure.as_ref().map(|measure| measure.is_time);
    let weight_type = if is_time == Some(true) { "tracing-ms" } else { "samples" };
    let weights: Option<Vec<f64>> = is_time.map(|is_time| {
        let scale = if is_time { 1e3 } else { 1.0 };
        rows.iter().map(|row| row.weight as f64 / scale).collect()
    });
    let rest = json!({
        "samples": {
            "length": rows.len(), "weightType": weight_type, "weight": weights,
            "stack": stacks, "timeDeltas": deltas,
        },
        "markers": {
            "length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": [],
        },
        "name": described.name,
        "isMainThread": described.tid == process.pid,
        "pausedRanges": [],
        "pid": process.pid.to_string(),
        "processName": process.name,
        "processShutdownTime": null,
        "processStartupTime": 0.0,
        "processType": "default",
        "registerTime": at(rows.first()),
        "tid": described.tid,
        "unregisterTime": end,
        "showMarkersInTimeline": false,
    });
    if let (Value::Object(value), Value::Object(rest)) = (&mut value, rest) {
        value.extend(rest);
    }
    value
}

impl Tables {
    /// The number of a node's stack.
    fn stack(&mut self, samples: &Samples, node: u32) -> Option<u32> {
        let mut new = Vec::new();
        let mut at = node;
        let mut stack = loop {
            if at == 0 {
                break None;
            }
            if let Some(&known) = self.of_node.get(&at) {
                break known;
            }
            new.push(at);
            at = samples.nodes[at as usize].parent;
        };
        while let Some(at) = new.pop() {
            for frame in self.frames_of(samples, &samples.frames[samples.nodes[at as usize].frame as usize]) {
                stack = Some(self.stacks.of((stack, frame)));
            }
            self.of_node.insert(at, stack);
        }
        stack
    }

    /// The rows of a frame and its inlined calls, outermost first.
    fn frames_of(&mut self, samples: &Samples, frame: &Frame) -> Vec<u32> {
        let (address, file, location) = match frame {
            Frame::Marker(text) => {
                let name = self.strings.text(text);
                let function = self.function(name, -1, None);
                return vec![self.frames.of(FrameRow {
                    address: -1,
                    inline_depth: 0,
                    category: OTHER,
                    function,
                    line: None,
                })];
            }
            Frame::Code {
                address,
                file,
                location,
            } => (*address, *file, &samples.locations[*location as usize]),
        };
        let category = match location.origin {
            Origin::File => USER,
            Origin::Generated => GENERATED,
            Origin::Kernel => KERNEL,
        };
        // Numbers of JSON are exact below 2^53, and addresses count from the library's start.
        let relative = file.map(|file| address.wrapping_sub(samples.files[file as usize].start));
        let address = relative
            .filter(|&address| address < 1 << 53)
            .map_or(-1, |address| address as i64);
        let resource = match file {
            Some(file) => {
                let name = self.strings.text(&location.module);
                i64::from(self.resources.of((file, name)))
            }
            None => -1,
        };
        let calls = location.calls.iter().rev().enumerate();
        calls
            .map(|(depth, call)| {
                let name = self.strings.text(&call.function);
                let source = call.file.as_deref().map(|file| self.strings.text(file));
                let function = self.function(name, resource, source);
                self.frames.of(FrameRow {
                    address,
                    inline_depth: depth as u32,
                    category,
                    function,
                    line: call.line,
                })
            })
            .collect()
    }

    fn function(&mut self, name: u32, resource: i64, source: Option<u32>) -> u32 {
        let function = self.functions.of((name, resource));
        if function as usize == self.sources.len() {
            self.sources.push(source);
        }
        function
    }

    fn into_json(self) -> Value {
        let frames = self.frames.values();
        let column = |of: fn(&FrameRow) -> Value| frames.iter().map(of).collect::<Vec<Value>>();
        let all = |length: usize, value: Value| vec![value; length];
        let functions = self.functions.values();
        let resources = self.resources.values();
        let stacks = self.stacks.values();
        json!({
            "frameTable": {
                "length": frames.len(),
                "address": column(|row| row.address.into()),
                "inlineDepth": column(|row| row.inline_depth.into()),
                "category": column(|row| row.category.into()),
                "subcategory": all(frames.len(), 0.into()),
                "func": column(|row| row.function.into()),
                "nativeSymbol": all(frames.len(), Value::Null),
                "innerWindowID": all(frames.len(), 0.into()),
                "line": column(|row| row.line.into()),
                "column": all(frames.len(), Value::Null),
            },
            "funcTable": {
                "length": functions.len(),
                "name": functions.iter().map(|function| function.0).collect::<Vec<_>>(),
                "isJS": all(functions.len(), false.into()),
                "relevantForJS": all(functions.len(), false.into()),
                "resource": functions.iter().map(|function| function.1).collect::<Vec<_>>(),
                "fileName": self.sources,
                "lineNumber": all(functions.len(), Value::Null),
                "columnNumber": all(functions.len(), Value::Null),
            },
            "resourceTable": {
                "length": resources.len(),
                "lib": resources.iter().map(|resource| resource.0).collect::<Vec<_>>(),
                "name": resources.iter().map(|resource| resource.1).collect::<Vec<_>>(),
                "host": all(resources.len(), Value::Null),
                // 1: a library.
                "type": all(resources.len(), 1.into()),
            },
            "nativeSymbols": {"length": 0, "address": [], "functionSize": [], "libIndex": [], "name": []},
            "stackTable": {
                "length": stacks.len(),
                "prefix": stacks.iter().map(|stack| stack.0).collect::<Vec<_>>(),
                "frame": stacks.iter().map(|stack| stack.1).collect::<Vec<_>>(),
                "category": stacks.iter().map(|stack| frames[stack.1 as usize].category).collect::<Vec<_>>(),
                "subcategory": all(stacks.len(), 0.into()),
            },
            "stringArray": self.strings.values(),
        })
    }
}
