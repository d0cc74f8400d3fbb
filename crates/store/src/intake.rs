//! From a recording's report to rows of the tables, partition by partition.

use std::collections::BTreeMap;
use std::ops::Range;

use backtrail_profile::{
    CodeAddress, File, Location, LocationId, Report, StackFrame, StackId, StackSample, Thread, is_kernel_address,
};
use backtrail_recording::{Origin, Stop};
use jiff::Timestamp;
use parquet::data_type::ByteArray;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::columns::Columns;
use crate::description::{Description, Resolution};
use crate::error::StoreError;
use crate::frames::{self, CallCells, PlaceCells};
use crate::id::{self, Id};
use crate::partition::Partition;
use crate::rows::{Cell, Tables, Texts, Values, table};
use crate::tables::{self, Table};

const HOUR: u64 = 3_600_000_000_000;
const MINUTE: u64 = 60_000_000_000;

/// Hours with samples of one recording, six weeks of it: more is a wrong clock, and would be as
/// many files.
const MAX_HOURS: usize = 1000;

/// A recording, whose rows are made partition by partition.
pub(crate) struct Intake<'r> {
    report: &'r Report,
    origin: &'r Origin,
    description: &'r Description,
    recording: i64,
    /// Numbers of its samples, by the hours' partitions in order of time.
    hours: Vec<(Partition, Vec<u32>)>,
}

/// What the tables have of a recording's stacks, each thing once.
struct Names<'r> {
    report: &'r Report,
    recording: i64,
    texts: Texts,
    frames: FxHashMap<StackFrame, Frame<'r>>,
    /// The stacks' ids.
    stacks: FxHashMap<StackKey, i64>,
    /// The functions of each location, innermost first.
    functions: FxHashMap<LocationId, Vec<i64>>,
    /// The first address after a module's last that code was met at.
    past: FxHashMap<&'r File, u64>,
}

/// A frame, and what its rows need.
#[derive(Clone, Copy)]
struct Frame<'r> {
    id: i64,
    module: Option<(i64, CodeAddress<'r>, &'r File)>,
    offset: i64,
}

/// What stacks of samples differ in.
type StackKey = (StackId, Option<Stop>, bool);

fn key(sample: &StackSample) -> StackKey {
    (sample.stack, sample.stop, sample.live)
}

impl<'r> Intake<'r> {
    /// The recording of a report.
    ///
    /// # Errors
    ///
    /// If its times cannot be the tables'.
    pub(crate) fn of(
        report: &'r Report,
        origin: &'r Origin,
        description: &'r Description,
    ) -> Result<Intake<'r>, StoreError> {
        let mut hours: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (index, sample) in report.samples().iter().enumerate() {
            hours.entry(sample.time / HOUR).or_default().push(index as u32);
            if hours.len() > MAX_HOURS {
                return Err(StoreError::Times(format!(
                    "samples in more than {MAX_HOURS} hours: the recorded machine's clock was wrong"
                )));
            }
        }
        let hours = hours.into_iter();
        let hours = hours.map(|(hour, samples)| Ok((partition(hour, &description.service)?, samples)));
        Ok(Intake {
            report,
            origin,
            description,
            recording: recording_id(report, origin),
            hours: hours.collect::<Result<_, StoreError>>()?,
        })
    }

    /// The recording's id.
    pub(crate) fn recording(&self) -> i64 {
        self.recording
    }

    /// The number of partitions.
    pub(crate) fn partitions(&self) -> usize {
        self.hours.len()
    }

    /// Passes on the rows of each partition. Samples are among the tables, or made while they are
    /// written.
    pub(crate) fn for_each(
        self,
        mut add: impl FnMut(&Partition, &Tables, Option<&dyn Columns>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut names = Names::of(self.report, self.recording);
        for (number, (partition, samples)) in self.hours.into_iter().enumerate() {
            let mut part = Part {
                report: self.report,
                origin: self.origin,
                description: self.description,
                samples,
                is_first: number == 0,
            };
            let tables = part.tables(&mut names);
            let samples = match self.description.resolution {
                Resolution::Exact => Some(part.samples(&mut names)),
                Resolution::Minute => None,
            };
            add(
                &partition,
                &tables,
                samples.as_ref().map(|samples| samples as &dyn Columns),
            )?;
        }
        Ok(())
    }
}

/// The samples' partition.
pub(crate) fn partition(hour: u64, service: &str) -> Result<Partition, StoreError> {
    let seconds = i64::try_from(hour).ok().and_then(|hour| hour.checked_mul(3600));
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = time.ok_or_else(|| StoreError::Times("times beyond the year 9999".to_owned()))?;
    Ok(Partition {
        date: time.strftime("%Y-%m-%d").to_string(),
        hour: time.strftime("%H").to_string(),
        service: service.to_owned(),
    })
}

/// The id of a recording: the same wherever its copies are, and whatever names were added to it.
fn recording_id(report: &Report, origin: &Origin) -> i64 {
    let mut id = Id::new("recording")
        .text(&origin.hostname)
        .text(&origin.kernel)
        .text(&origin.command);
    let threads = report.threads();
    for sample in report.samples() {
        let (thread, _) = &threads[sample.thread.index()];
        id = id
            .number(sample.time as i64)
            .number(i64::from(sample.cpu) << 32 | i64::from(thread.pid))
            .number(thread.tid.into());
    }
    id.finish()
}

/// The kind of a recording's samples.
fn kind(report: &Report, origin: &Origin) -> &'static str {
    match origin.frequency {
        Some(_) => "cpu",
        None if !report.calls().is_empty() => "call",
        None => "event",
    }
}

fn period(origin: &Origin) -> i64 {
    origin
        .frequency
        .map_or(0, |frequency| (1_000_000_000 / frequency.max(1)) as i64)
}

/// The file that a frame's module is; memory that a program filled itself is not one.
fn file<'r>(code: &CodeAddress<'r>) -> Option<&'r File> {
    let is_file = |file: &&File| !file.is_anonymous() || file.path == "[vdso]" || is_kernel_address(code.address);
    code.file.filter(is_file)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn kind_of(location: &Location) -> &'static str {
    match location.origin {
        backtrail_profile::Origin::File => "file",
        backtrail_profile::Origin::Generated => "generated",
        backtrail_profile::Origin::Kernel => "kernel",
    }
}

fn ending(stop: Option<Stop>) -> &'static str {
    stop.map_or("stack_lost", Stop::name)
}

impl<'r> Names<'r> {
    fn of(report: &'r Report, recording: i64) -> Names<'r> {
        let mut names = Names {
            report,
            recording,
            texts: Texts::default(),
            frames: FxHashMap::default(),
            stacks: FxHashMap::default(),
            functions: FxHashMap::default(),
            past: FxHashMap::default(),
        };
        for sample in report.samples() {
            names.add_stack(sample);
        }
        names
    }

    fn add_stack(&mut self, sample: &StackSample) {
        if self.stacks.contains_key(&key(sample)) {
            return;
        }
        let ids: Vec<i64> = path(self.report, sample.stack)
            .map(|frame| self.frame(frame).id)
            .collect();
        let id = id::stack(&ids, ending(sample.stop), sample.live);
        self.stacks.insert(key(sample), id);
    }

    fn frame(&mut self, frame: StackFrame) -> Frame<'r> {
        if let Some(&known) = self.frames.get(&frame) {
            return known;
        }
        let made = match frame {
            StackFrame::Marker(marker) => Frame {
                id: Id::new("marker").text(self.report.stacks().marker(marker)).finish(),
                module: None,
                offset: 0,
            },
            StackFrame::Location(location) => {
                let code = self.report.address(location);
                let location = self.report.location(location);
                let module = file(&code).map(|file| (module_id(file), code, file));
                // The kernel's addresses change with each start, and so does where it begins.
                let start = if module.is_some() { code.extent.0 } else { 0 };
                let offset = code.address.wrapping_sub(start) as i64;
                if let Some((_, _, file)) = module {
                    let past = self.past.entry(file).or_default();
                    *past = code.extent.1.max(code.address.saturating_add(1)).max(*past);
                }
                let place = PlaceCells {
                    kind: kind_of(location),
                    module: module.map_or(0, |(id, ..)| id),
                    address: offset,
                    module_name: &location.module,
                };
                Frame {
                    id: frames::frame_id(place, location.calls.iter().map(CallCells::from)),
                    module,
                    offset,
                }
            }
        };
        self.frames.insert(frame, made);
        made
    }

    /// The functions of a location, innermost first.
    fn functions(&mut self, id: LocationId) -> &[i64] {
        let location = self.report.location(id);
        self.functions.entry(id).or_insert_with(|| {
            let calls = location.calls.iter();
            calls
                .map(|call| id::function(&call.function, &location.module))
                .collect()
        })
    }

    fn text(&mut self, text: &str) -> Cell<'static> {
        Cell::Text(self.texts.of(text))
    }

    /// Adds the rows of a frame.
    fn write_frame(&mut self, frame: StackFrame, tables: &mut Tables) {
        let made = self.frame(frame);
        match frame {
            StackFrame::Marker(marker) => {
                let name = self.report.stacks().marker(marker);
                let cells = [
                    Cell::Long(made.id),
                    Cell::Int(0),
                    self.text("marker"),
                    Cell::Long(0),
                    Cell::Long(0),
                    Cell::Long(0),
                    self.text(name),
                    self.text(""),
                    self.text(""),
                    Cell::Long(0),
                    Cell::Bool(false),
                    Cell::Long(-1),
                ];
                table(tables, &tables::FRAMES).push(cells);
            }
            StackFrame::Location(location) => {
                let location = self.report.location(location);
                let place = PlaceCells {
                    kind: kind_of(location),
                    module: made.module.map_or(0, |(id, ..)| id),
                    address: made.offset,
                    module_name: &location.module,
                };
                let calls = location.calls.iter().map(CallCells::from);
                frames::push_frame(tables, &mut self.texts, made.id, place, calls);
            }
        }
    }

    fn write_module(&mut self, id: i64, code: CodeAddress<'r>, file: &'r File, tables: &mut Tables) {
        let is_kernel = is_kernel_address(code.extent.0);
        let past = self.past.get(file).copied().unwrap_or(code.extent.1);
        let cells = [
            Cell::Long(id),
            Cell::Long(if is_kernel { self.recording } else { 0 }),
            self.text(&file.path),
            self.text(&hex(&file.build_id)),
            Cell::Long(code.extent.0 as i64),
            Cell::Long(past as i64),
        ];
        table(tables, &tables::MODULES).push(cells);
    }
}

/// The frames of a stack, innermost first.
fn path(report: &Report, stack: StackId) -> impl Iterator<Item = StackFrame> + '_ {
    let stacks = report.stacks();
    let on_stack = |at: StackId| (at != StackId::EMPTY).then_some(at);
    let ids = std::iter::successors(on_stack(stack), move |&at| on_stack(stacks.parent(at)));
    ids.map(|at| stacks.frame(at))
}

fn module_id(file: &File) -> i64 {
    id::module(&file.path, &hex(&file.build_id))
}

/// The part of a recording that belongs to a partition.
struct Part<'r> {
    report: &'r Report,
    origin: &'r Origin,
    description: &'r Description,
    /// Numbers of its samples.
    samples: Vec<u32>,
    is_first: bool,
}

impl<'r> Part<'r> {
    fn tables(&self, names: &mut Names<'r>) -> Tables {
        let mut tables = Tables::default();
        self.write_stacks(names, &mut tables);
        self.write_recording(names, &mut tables);
        if self.description.resolution == Resolution::Minute {
            self.write_minutes(names, &mut tables);
        }
        tables
    }

    fn sample(&self, index: u32) -> &'r StackSample {
        &self.report.samples()[index as usize]
    }

    fn thread(&self, sample: &StackSample) -> &'r Thread {
        &self.report.threads()[sample.thread.index()].0
    }

    fn write_stacks(&self, names: &mut Names<'r>, tables: &mut Tables) {
        let mut written = FxHashSet::default();
        let mut written_frames = FxHashSet::default();
        let mut functions = FxHashSet::default();
        let mut modules = FxHashSet::default();
        for &index in &self.samples {
            let sample = self.sample(index);
            let Some(&id) = names.stacks.get(&key(sample)) else {
                continue;
            };
            if !written.insert(id) {
                continue;
            }
            let ids: Vec<i64> = path(self.report, sample.stack)
                .map(|frame| names.frame(frame).id)
                .collect();
            let cells = [
                Cell::Long(id),
                Cell::Longs(&ids),
                names.text(ending(sample.stop)),
                Cell::Bool(sample.live),
            ];
            table(tables, &tables::STACKS).push(cells);
            let mut on_stack = Vec::new();
            for frame in path(self.report, sample.stack) {
                let made = names.frame(frame);
                let is_new = written_frames.insert(made.id);
                if is_new {
                    names.write_frame(frame, tables);
                    if let Some((module, code, file)) = made.module
                        && modules.insert(module)
                    {
                        names.write_module(module, code, file, tables);
                    }
                }
                let StackFrame::Location(id) = frame else {
                    continue;
                };
                let inner = on_stack.len();
                on_stack.extend_from_slice(names.functions(id));
                // Equal frames have equal functions.
                if !is_new {
                    continue;
                }
                let location = self.report.location(id);
                for (call, &function) in location.calls.iter().zip(&on_stack[inner..]) {
                    if functions.insert(function) {
                        frames::push_function(tables, &mut names.texts, function, &call.function, &location.module);
                    }
                }
            }
            frames::push_stack_functions(tables, id, on_stack);
        }
    }

    fn write_recording(&self, names: &mut Names<'r>, tables: &mut Tables) {
        let summary = self.report.summary();
        let times = || self.samples.iter().map(|&index| self.sample(index).time);
        let micros = |time: Option<u64>| Cell::Long((time.unwrap_or(0) / 1000) as i64);
        let once = |number: u64| Cell::Long(if self.is_first { number as i64 } else { 0 });
        let description = self.description;
        let resolution = match description.resolution {
            Resolution::Exact => "exact",
            Resolution::Minute => "minute",
        };
        let cells = [
            Cell::Long(names.recording),
            names.text(&description.host),
            names.text(description.version()),
            micros(times().min()),
            micros(times().max()),
            names.text(&self.origin.command),
            names.text(&self.origin.kernel),
            names.text(&self.origin.machine),
            names.text(&self.origin.producer),
            Cell::Long(period(self.origin)),
            names.text(resolution),
            Cell::Long(self.samples.len() as i64),
            once(summary.lost),
            once(summary.trace_bytes),
        ];
        table(tables, &tables::RECORDINGS).push(cells);
        for (key, value) in &description.labels {
            let cells = [Cell::Long(names.recording), names.text(key), names.text(value)];
            table(tables, &tables::LABELS).push(cells);
        }
    }

    /// The cells that all samples have in common.
    fn common(&self, names: &mut Names<'r>) -> Common {
        Common {
            host: names.texts.of(&self.description.host),
            version: names.texts.of(self.description.version()),
            kind: names.texts.of(kind(self.report, self.origin)),
            recording: names.recording,
            period: period(self.origin),
        }
    }

    /// A row for each sample. Those of a thread follow each other: so its number and its names take
    /// nearly no space, and its times are regular.
    fn samples<'n>(&mut self, names: &'n mut Names<'r>) -> Samples<'n, 'r> {
        let common = self.common(names);
        let mut order = std::mem::take(&mut self.samples);
        order.sort_by_key(|&index| {
            let sample = self.sample(index);
            let thread = self.thread(sample);
            (thread.pid, thread.tid, sample.time, index)
        });
        let threads = self.report.threads().iter();
        let texts = threads
            .map(|(thread, _)| [&thread.process, &thread.name].map(|name| names.texts.of(name)))
            .collect();
        Samples {
            report: self.report,
            stacks: &names.stacks,
            common,
            texts,
            order,
        }
    }

    /// A row for the equal samples of each minute, stack by stack: there are more stacks than
    /// threads and minutes.
    fn write_minutes(&self, names: &mut Names<'r>, tables: &mut Tables) {
        let common = self.common(names);
        let mut counts: BTreeMap<(i64, &str, &str, u64), i64> = BTreeMap::new();
        for &index in &self.samples {
            let sample = self.sample(index);
            let thread = self.thread(sample);
            let stack = names.stacks.get(&key(sample)).copied().unwrap_or(0);
            let minute = sample.time / MINUTE * MINUTE;
            *counts
                .entry((stack, &thread.process, &thread.name, minute))
                .or_default() += 1;
        }
        let rows = table(tables, &tables::SAMPLES);
        for ((stack, process, thread, minute), count) in counts {
            rows.push([
                Cell::Long((minute / 1000) as i64),
                Cell::Int(0),
                Cell::Text(common.host.clone()),
                Cell::Text(common.version.clone()),
                Cell::Long(common.recording),
                Cell::Int(0),
                Cell::Int(0),
                Cell::Text(names.texts.of(process)),
                Cell::Text(names.texts.of(thread)),
                Cell::Int(-1),
                Cell::Text(common.kind.clone()),
                Cell::Long(stack),
                Cell::Long(common.period),
                Cell::Long(count),
            ]);
        }
    }
}

struct Common {
    host: ByteArray,
    version: ByteArray,
    kind: ByteArray,
    recording: i64,
    period: i64,
}

/// The rows of a partition's samples.
struct Samples<'n, 'r> {
    report: &'r Report,
    stacks: &'n FxHashMap<StackKey, i64>,
    common: Common,
    /// By thread: the names of the process and of the thread.
    texts: Vec<[ByteArray; 2]>,
    /// Numbers of the samples.
    order: Vec<u32>,
}

impl Columns for Samples<'_, '_> {
    fn table(&self) -> &'static Table {
        &tables::SAMPLES
    }

    fn count(&self) -> usize {
        self.order.len()
    }

    fn read(&self, column: usize, rows: Range<usize>, values: &mut Values) {
        let common = &self.common;
        let mut each = |cell: &dyn Fn(&StackSample) -> Cell<'static>| {
            for &index in &self.order[rows.clone()] {
                values.push(cell(&self.report.samples()[index as usize]));
            }
        };
        let thread = |sample: &StackSample| &self.report.threads()[sample.thread.index()].0;
        let text = |text: &ByteArray| Cell::Text(text.clone());
        match tables::SAMPLES.columns[column].name {
            "time" => each(&|sample| Cell::Long((sample.time / 1000) as i64)),
            "nanos" => each(&|sample| Cell::Int((sample.time % 1000) as i32)),
            "host" => each(&|_| text(&common.host)),
            "version" => each(&|_| text(&common.version)),
            "recording" => each(&|_| Cell::Long(common.recording)),
            "pid" => each(&|sample| Cell::Int(thread(sample).pid as i32)),
            "tid" => each(&|sample| Cell::Int(thread(sample).tid as i32)),
            "process" => each(&|sample| text(&self.texts[sample.thread.index()][0])),
            "thread" => each(&|sample| text(&self.texts[sample.thread.index()][1])),
            "cpu" => each(&|sample| Cell::Int(sample.cpu as i32)),
            "kind" => each(&|_| text(&common.kind)),
            "stack" => each(&|sample| Cell::Long(self.stacks.get(&key(sample)).copied().unwrap_or(0))),
            "period" => each(&|_| Cell::Long(common.period)),
            "count" => each(&|_| Cell::Long(1)),
            name => debug_assert!(false, "samples have no {name}"),
        }
    }
}
