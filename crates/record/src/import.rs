//! Turns what perf has recorded into a recording: walks the copies of stacks, keeps the chains of
//! frame pointers.

use std::fmt;
use std::io;
use std::path::PathBuf;

use backtrail_cfi::tables::Tables;
use backtrail_elf::FileBytes;
use backtrail_process::perf::{Build, FileError, Mapping, PerfFile, Record, Task};
use backtrail_recording::{CreateError, Dialect, Environment, Writer, WriterOptions};

use crate::Outcome;
use crate::arena::Arena;
use crate::environment;
use crate::modules::{self, Modules};
use crate::session::{Session, not_running};

/// What to import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The file that perf wrote.
    pub input: PathBuf,
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
}

/// Why nothing was imported.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read.
    Read(io::Error),
    /// It cannot be imported.
    File(FileError),
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
    let input = FileBytes::open(&options.input).map_err(ImportError::Read)?;
    let file = PerfFile::parse(input.bytes()).map_err(ImportError::File)?;
    let about = file.about();
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
        frequency: None,
        measured: backtrail_recording::Measured::Cpu,
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
    let mut session = Session::new(modules, file.stack_bytes(), writer);
    // The kernel that runs here may be loaded elsewhere than the recorded one was.
    let build_id = about.build_ids.get(&b"[kernel.kallsyms]"[..]);
    let kernel = about
        .kernel_start
        .map(|start| modules::kernel_at(start, build_id.cloned().unwrap_or_default()));
    let _ = session.kernel.set(kernel);
    let mut damaged = 0;
    for number in 0..file.len() {
        let Some(timed) = file.record(number) else {
            damaged += 1;
            continue;
        };
        let stream = cpus.binary_search(&timed.cpu).unwrap_or(0);
        let record = of_another_time(timed.record, &file);
        let taken = session.take(stream, timed.time, record);
        let failed = taken.is_err();
        session.check(taken);
        if failed {
            break;
        }
    }
    session.finish(None);
    let mut outcome = session.outcome;
    outcome.problems = session.modules.into_problems();
    outcome.kernel = true;
    Ok(Imported {
        outcome,
        is_cut: file.is_cut(),
        damaged,
    })
}

/// The record with numbers that no running process has, and with the build id that perf knows.
fn of_another_time<'a>(record: Record<'a>, file: &'a PerfFile<'_>) -> Record<'a> {
    match record {
        Record::Sample(mut sample) => {
            sample.pid = not_running(sample.pid);
            sample.tid = not_running(sample.tid);
            Record::Sample(sample)
        }
        Record::Mapping(mapping) => {
            let known = file.about().build_ids.get(mapping.path);
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
