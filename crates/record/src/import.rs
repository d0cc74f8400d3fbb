//! Turns what perf has recorded into a recording: walks the copies of stacks, keeps the chains of
//! frame pointers.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use backtrail_cfi::tables::Tables;
use backtrail_elf::door;
use backtrail_process::perf::{About, Build, Cause, Event, FileError, Mapping, PerfFile, Record, Task};
use backtrail_recording::{CreateError, Dialect, Environment, Writer, WriterOptions};
use rustc_hash::FxHashMap;
use rustix::fs::{Mode, OFlags};

use crate::Outcome;
use crate::arena::Arena;
use crate::environment;
use crate::kernel_module;
use crate::modules::Modules;
use crate::numbers::not_running;
use crate::session::Session;

/// What to import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The file that perf wrote, or the directory of several; `-` for standard input.
    pub input: PathBuf,
    /// The events to import, by name. Empty: the first one, with those that are the same for other
    /// modes or kinds of CPU cores.
    pub events: Vec<String>,
    /// The trace's directory, which must not exist.
    pub output: PathBuf,
    /// The folder with the files of the recorded machine; `None` if it is this one.
    pub sysroot: Option<PathBuf>,
    /// The dialect of the trace's metadata.
    pub dialect: Dialect,
    /// The folder of the cache of tables; `None` for the usual one.
    pub cache: Option<PathBuf>,
}

/// What was imported.
#[derive(Debug)]
pub struct Imported {
    /// As of a recording.
    pub outcome: Outcome,
    /// Whether the file ends in the middle of its records.
    pub is_cut: bool,
    /// Records that could not be understood.
    pub damaged: u64,
    /// Events whose samples were left out.
    pub other_events: Vec<Event>,
    /// Pieces of hardware traces, which were left out.
    pub hardware_traces: u64,
    /// Files in the sysroot that were used although no build ID shows that they are those recorded.
    pub unchecked: Vec<String>,
}

/// Why nothing was imported.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read.
    Read(io::Error),
    /// It cannot be imported.
    File(FileError),
    /// It has no samples of this event, but of those.
    NoEvent(String, Vec<Event>),
    /// It was recorded on a CPU of another kind: its name.
    OtherCpu(String),
    /// The machine's description cannot be read.
    Environment(io::Error),
    /// The trace cannot be created.
    Create(CreateError),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Read(error) => error.fmt(f),
            ImportError::File(error) => error.fmt(f),
            ImportError::NoEvent(_, events) if events.is_empty() => write!(f, "has no samples"),
            ImportError::NoEvent(name, events) => {
                let events: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
                write!(f, "has no samples of the event {name}, but of {}", events.join(", "))
            }
            ImportError::OtherCpu(name) => write!(f, "was recorded on {name}, whose stacks are not walked here"),
            ImportError::Environment(error) => error.fmt(f),
            ImportError::Create(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ImportError {}

/// Imports a `perf.data`: samples with copies of stacks (`perf record --call-graph dwarf`) are
/// walked, and of others the call chain (`-g`) is kept as it is.
///
/// # Errors
/// If nothing could be imported: then no trace is left behind.
pub fn import(options: &ImportOptions) -> Result<Imported, ImportError> {
    let (input, of_threads) = open(options).map_err(ImportError::Read)?;
    let scratch = || scratch_file(&options.output);
    let mut file = PerfFile::of_files(&input, &of_threads, &scratch).map_err(ImportError::File)?;
    let chosen = choose(&mut file, &options.events)?;
    let about = file.about().clone();
    let here = environment::read().map_err(ImportError::Environment)?;
    if !about.machine.is_empty() && about.machine != here.machine {
        return Err(ImportError::OtherCpu(about.machine.clone()));
    }
    let or_here = |known: &str, here: String| if known.is_empty() { here } else { known.to_owned() };
    let mut cpus = file.cpus();
    if cpus.is_empty() {
        cpus.push(0);
    }
    let writer_options = WriterOptions {
        dialect: options.dialect,
        cpus: &cpus,
        command: &about.command,
        frequency: chosen.frequency(),
        measured: backtrail_recording::Measured::Cpu,
        events: &chosen.recorded(),
        min_duration: None,
        environment: Environment {
            hostname: or_here(&about.hostname, here.hostname.clone()),
            kernel: or_here(&about.kernel, here.kernel.clone()),
            // Its clock is that of perf, which nothing else uses.
            boot_uuid: None,
            clock_offset_ns: 0,
            ..here
        },
    };
    let writer = Writer::create(&options.output, &writer_options).map_err(ImportError::Create)?;
    let tables = Tables::open(options.cache.clone());
    let arena = Arena::default();
    let mut modules = Modules::new(&tables, &arena);
    modules.sysroot.clone_from(&options.sysroot);
    // A pipe's copy ends now, and no file is younger.
    modules.ended = input.metadata().and_then(|metadata| metadata.modified()).ok();
    let mut session = Session::new(modules, file.stack_bytes(), writer);
    session.walker.is_elsewhere = true;
    // The kernel that runs here may be loaded elsewhere than the recorded one was.
    let build_id = about.build_ids.get(&b"[kernel.kallsyms]"[..]);
    let kernel = about
        .kernel_start
        .map(|start| kernel_module::kernel_at(start, build_id.cloned().unwrap_or_default()));
    let _ = session.kernel.set(kernel);
    let mut damaged = 0;
    for number in 0..file.len() {
        let Some(timed) = file.record(number) else {
            damaged += 1;
            continue;
        };
        let stream = cpus.binary_search(&timed.cpu).unwrap_or(0);
        let record = of_another_time(timed.record, &about, &chosen);
        let taken = session.take(stream, timed.time, record);
        let failed = taken.is_err();
        session.check(taken);
        if failed {
            break;
        }
    }
    session.finish(None);
    let mut outcome = session.outcome;
    let unchecked = session.modules.take_unchecked();
    (outcome.problems, outcome.further_problems) = session.modules.into_problems();
    outcome.kernel = true;
    Ok(Imported {
        outcome,
        is_cut: file.is_cut(),
        damaged,
        other_events: chosen.others,
        hardware_traces: file.hardware_traces(),
        unchecked: unchecked.into_iter().collect(),
    })
}

/// The file to import, and those of perf's threads. Standard input is copied, because its records
/// are needed in the order of their times.
fn open(options: &ImportOptions) -> io::Result<(File, Vec<File>)> {
    let input = &options.input;
    if input.as_os_str() == "-" {
        let mut copy = scratch_file(&options.output)?;
        io::copy(&mut io::stdin().lock(), &mut copy)?;
        return Ok((copy, Vec::new()));
    }
    let named = |path: &Path| door::named(path)?.file().try_clone();
    // What `perf record --threads` or `--kcore` has written.
    let first = input.join("data");
    if !first.is_file() {
        return Ok((named(input)?, Vec::new()));
    }
    let paths = (0..).map(|number: u32| input.join(format!("data.{number}")));
    let of_threads = paths.take_while(|path| path.exists()).map(|path| named(&path));
    Ok((named(&first)?, of_threads.collect::<io::Result<_>>()?))
}

/// A file without a name in the folder of the output, which has room for what the output needs.
fn scratch_file(output: &Path) -> io::Result<File> {
    let folder = match output.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let open = |folder: &Path| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
    };
    // Not every file system has files without names.
    let fd = open(folder).or_else(|_| open(&std::env::temp_dir()))?;
    Ok(File::from(fd))
}

/// The events that are imported.
#[derive(Debug, Default)]
struct Chosen {
    /// Their names, and the samples per second of those that are clocks.
    events: Vec<(String, Option<u64>)>,
    /// The place of each there, by perf's number.
    places: FxHashMap<u16, u8>,
    others: Vec<Event>,
}

impl Chosen {
    fn frequency(&self) -> Option<u64> {
        let first = self.events.iter().find_map(|(_, clock)| *clock);
        first.filter(|&frequency| frequency > 0)
    }

    /// The events as a recording has them: samples say themselves how often theirs has happened.
    fn recorded(&self) -> Vec<(&str, u64)> {
        match &self.events[..] {
            [(_, Some(_))] => Vec::new(),
            events => events
                .iter()
                .map(|(name, clock)| (name.as_str(), u64::from(clock.is_none())))
                .collect(),
        }
    }

    fn cause(&self, of_file: Cause) -> Cause {
        let Cause::Counted { event, count } = of_file else {
            return of_file;
        };
        let place = self.places.get(&event).copied().unwrap_or(0);
        let is_clock = self
            .events
            .get(usize::from(place))
            .is_some_and(|(_, clock)| clock.is_some());
        match (is_clock, self.events.len()) {
            (true, 1) => Cause::Time,
            (true, _) => Cause::Event(place.into()),
            (false, _) => Cause::Counted {
                event: place.into(),
                count,
            },
        }
    }
}

/// Leaves out the samples of events that are not to be imported.
fn choose(file: &mut PerfFile<'_>, wanted: &[String]) -> Result<Chosen, ImportError> {
    let events = file.events();
    let names: Vec<&str> = match wanted {
        [] => events
            .first()
            .map(|event| kind_of_event(&event.name))
            .into_iter()
            .collect(),
        wanted => wanted.iter().map(String::as_str).collect(),
    };
    let mut chosen = Chosen {
        events: names.iter().map(|name| ((*name).to_owned(), None)).collect(),
        ..Chosen::default()
    };
    for ((place, name), described) in (0..=u8::MAX).zip(&names).zip(&mut chosen.events) {
        let exact = !wanted.is_empty();
        let found = events_of(&events, name, exact);
        if found.is_empty() {
            return Err(ImportError::NoEvent((*name).to_owned(), events));
        }
        for event in found {
            chosen.places.entry(event.number).or_insert(place);
            described.1 = event.clock;
        }
    }
    if events.is_empty() {
        // What was lost is worth a recording.
        return Ok(chosen);
    }
    file.retain(|number| chosen.places.contains_key(&number));
    let is_other = |event: &Event| !chosen.places.contains_key(&event.number);
    chosen.others = events.into_iter().filter(is_other).collect();
    Ok(chosen)
}

/// The events that a name stands for: those called exactly so if there are any and `exact` is set,
/// or those of this kind. Events that count what an earlier one has counted would be counted twice.
fn events_of<'e>(events: &'e [Event], wanted: &str, exact: bool) -> Vec<&'e Event> {
    let found: Vec<&Event> = events.iter().filter(|event| event.name == wanted).collect();
    if exact && !found.is_empty() {
        return found;
    }
    let mut found: Vec<&Event> = Vec::new();
    for event in events.iter().filter(|event| kind_of_event(&event.name) == wanted) {
        let counts_the_same = |other: &&Event| other.name != event.name && overlap(&other.name, &event.name);
        if !found.iter().any(counts_the_same) {
            found.push(event);
        }
    }
    found
}

/// Whether two events of one kind count some occurrences both: on the same kind of cores, in the
/// same mode, and not one in guests and the other in hosts.
fn overlap(one: &str, other: &str) -> bool {
    let modes = |name: &str, all: &'static str| {
        let modifiers = name.rsplit(['/', ':']).next().filter(|_| kind_of_event(name) != name);
        let modes = modifiers.unwrap_or_default().matches(|letter| all.contains(letter));
        let modes: Vec<&str> = modes.collect();
        if modes.is_empty() {
            all.to_owned()
        } else {
            modes.concat()
        }
    };
    let cores = |name: &str| name.split_once('/').map(|(cores, _)| cores.to_owned());
    let share = |all: &'static str| modes(one, all).contains(|mode| modes(other, all).contains(mode));
    cores(one) == cores(other) && share("ukh") && share("GH")
}

/// What an event counts: the same for `cycles`, `cycles:u`, `cpu_core/cycles/` and
/// `cpu_atom/cycles/P`. Tracepoints (`sched:sched_switch`) keep their names.
fn kind_of_event(name: &str) -> &str {
    let mut parts = name.split('/');
    if let (Some(_), Some(event), Some(_)) = (parts.next(), parts.next(), parts.next()) {
        return event;
    }
    match name.rsplit_once(':') {
        Some((event, modifiers)) if modifiers.chars().all(|letter| "ukhHGIpPSDWeb".contains(letter)) => event,
        _ => name,
    }
}

/// The record with numbers that no running process has, with the build id that perf knows, and with
/// its event's number in the recording.
fn of_another_time<'a>(record: Record<'a>, about: &'a About, chosen: &Chosen) -> Record<'a> {
    match record {
        Record::Sample(mut sample) => {
            sample.cause = chosen.cause(sample.cause);
            sample.pid = not_running(sample.pid);
            sample.tid = not_running(sample.tid);
            Record::Sample(sample)
        }
        Record::Mapping(mapping) => {
            let known = about.build_ids.get(mapping.path);
            Record::Mapping(Mapping {
                pid: not_running(mapping.pid),
                build: known.map_or(mapping.build, |id| Build::Id(id)),
                ..mapping
            })
        }
        Record::Name { pid, tid, exec, name } => Record::Name {
            pid: not_running(pid),
            tid: not_running(tid),
            exec,
            name,
        },
        Record::Fork(task) => Record::Fork(of_another_task(task)),
        Record::Exit(task) => Record::Exit(of_another_task(task)),
        other => other,
    }
}

fn of_another_task(task: Task) -> Task {
    Task {
        pid: not_running(task.pid),
        tid: not_running(task.tid),
        parent_pid: not_running(task.parent_pid),
        parent_tid: not_running(task.parent_tid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_events() {
        for (name, kind) in [
            ("cycles", "cycles"),
            ("cycles:u", "cycles"),
            ("cycles:Pk", "cycles"),
            ("cpu_core/cycles/", "cycles"),
            ("cpu_atom/cycles/P", "cycles"),
            ("sched:sched_switch", "sched:sched_switch"),
            ("sched:sched_switch:u", "sched:sched_switch"),
            ("1:0x7", "1:0x7"),
        ] {
            assert_eq!(kind_of_event(name), kind);
        }
    }

    #[test]
    fn nothing_is_counted_twice() {
        for (names, wanted, exact, found) in [
            ("cpu-clock cpu-clock:u cpu-clock:k", "cpu-clock", true, "cpu-clock"),
            ("cpu-clock:u cpu-clock:k", "cpu-clock", true, "cpu-clock:u cpu-clock:k"),
            (
                "cycles:Pu cycles cycles:k cycles:uk",
                "cycles",
                false,
                "cycles:Pu cycles:k",
            ),
            ("cycles:G cycles:H cycles", "cycles", false, "cycles:G cycles:H"),
            (
                "cpu_core/cycles/ cpu_atom/cycles/u",
                "cycles",
                false,
                "cpu_core/cycles/ cpu_atom/cycles/u",
            ),
            (
                "sched:sched_switch sched:sched_switch:u",
                "sched:sched_switch",
                false,
                "sched:sched_switch",
            ),
            ("cycles cycles", "cycles", false, "cycles cycles"),
            ("cycles", "instructions", true, ""),
        ] {
            let events = names.split(' ').zip(0..).map(|(name, number)| Event {
                name: name.to_owned(),
                number,
                samples: 1,
                clock: None,
            });
            let events: Vec<Event> = events.collect();
            let all = events_of(&events, wanted, exact);
            let all: Vec<&str> = all.iter().map(|event| event.name.as_str()).collect();
            assert_eq!(all.join(" "), found, "{names}");
        }
    }
}
