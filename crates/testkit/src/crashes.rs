//! Ways to die, in many surroundings: what a crash report says, and how the process ends.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use std::os::unix::process::ExitStatusExt;

use crate::{Missing, command, program};

const LIMIT: Duration = Duration::from_secs(30);
/// The exit status of the program if the machine does not allow what it needs.
const NOT_ALLOWED: i32 = 77;

/// Ways to die, and the signals of them.
pub const DEATHS: [(&str, i32); 17] = [
    ("read", 11),
    ("write", 11),
    ("call", 11),
    ("address", 11),
    ("overflow", 11),
    ("bus", 7),
    ("illegal", 4),
    ("division", 8),
    ("abort", 6),
    ("assert", 6),
    ("heap", 6),
    ("smash", 6),
    ("trap", 5),
    ("system-call", 31),
    ("throw", 6),
    ("data", 11),
    ("alignment", 7),
];

/// Where the process dies.
pub const PLACES: [&str; 13] = [
    "main",
    "thread",
    "early-thread",
    "fork",
    "coroutine",
    "handler",
    "no-proc",
    "memory",
    "descriptors",
    "filter-kill",
    "filter-mmap",
    "filter-list",
    "filter-trap",
];

/// Who reports.
#[derive(Clone, Copy, Debug)]
pub enum Reporter<'r> {
    /// The C library, which the program asks; each thread asks, too.
    Library(&'r Path),
    /// The library for `LD_PRELOAD`; the program knows nothing of it.
    Preload(&'r Path),
}

/// A process that has died.
#[derive(Clone, Debug)]
pub struct Death {
    /// The reports that began, by the names of their signals.
    pub signals: Vec<String>,
    /// Whether the stack has a frame of the code that died.
    pub has_culprit: bool,
    /// Whether the stack reaches the outermost frame; or, after an overflow of the alternate stack,
    /// what the kernel has overwritten.
    pub is_whole: bool,
    /// Modules with their addresses.
    pub modules: usize,
    /// Threads besides the one that died.
    pub threads: usize,
    /// The signal that the process died of.
    pub died_of: Option<i32>,
    /// From right before until the parent knew, in milliseconds, to 2 ms.
    pub milliseconds: u64,
    /// Everything that was reported.
    pub text: String,
}

impl Death {
    /// What is wrong with a death that should be of this signal, if anything.
    pub fn wrong(&self, how: &str, signal: i32) -> Option<String> {
        let name = match signal {
            4 => "SIGILL",
            5 => "SIGTRAP",
            6 => "SIGABRT",
            7 => "SIGBUS",
            8 => "SIGFPE",
            11 => "SIGSEGV",
            _ => "SIGSYS",
        };
        let wrong = if self.died_of != Some(signal) {
            format!("died of {:?}", self.died_of)
        } else if self.signals != [name] {
            format!("reported {:?}", self.signals)
        } else if !self.has_culprit {
            "not the code that died".to_owned()
        } else if !self.is_whole && how != "smash" {
            // There, the frames above are overwritten.
            "not the whole stack".to_owned()
        } else if self.modules == 0 {
            "no modules".to_owned()
        } else if self.milliseconds > 2500 {
            format!("{} ms", self.milliseconds)
        } else {
            return None;
        };
        Some(wrong)
    }
}

/// Runs the program that dies.
///
/// # Errors
/// [`Missing`] without a C++ compiler, or if the machine does not allow what the place needs.
///
/// # Panics
/// If the program could not prepare its death.
pub fn death(reporter: Reporter<'_>, how: &str, place: &str) -> Result<Death, Missing> {
    let mut run = Command::new(program::CRASHES.build()?);
    match reporter {
        Reporter::Library(library) => run.arg(library),
        Reporter::Preload(library) => run.arg("-").env("LD_PRELOAD", library).env("BACKTRAIL_CRASH", "-"),
    };
    run.args([how, place]);
    let finished = command::run(&mut run, LIMIT)?;
    let after = monotonic();
    if finished.status.code() == Some(NOT_ALLOWED) {
        return Err(Missing(format!("{place}: the machine does not allow it")));
    }
    let word = |start: &str, index: usize| {
        let line = finished.stdout.lines().find(|line| line.starts_with(start))?;
        line.split(' ').nth(index).map(str::to_owned)
    };
    let time = word("now ", 1).and_then(|time| time.parse::<u64>().ok());
    let time = time.unwrap_or_else(|| panic!("{how} {place}: {}", finished.describe()));
    let code = [1, 2].map(|index| word("code ", index).and_then(|address| hex(&address)).unwrap_or(0));
    let text = &finished.stderr;
    let starting = |start: &'static str| text.lines().filter_map(move |line| line.strip_prefix(start));
    let address = |frame: &str| hex(frame.rsplit_once("[")?.1.split(']').next()?);
    Ok(Death {
        signals: starting("crash: ")
            .map(|head| head.split(' ').next().unwrap_or_default().to_owned())
            .collect(),
        has_culprit: starting("#")
            .filter_map(address)
            .any(|address| (code[0]..=code[1]).contains(&address)),
        is_whole: starting("end: ").eq([match (how, place) {
            ("overflow", "handler") => "outer frames were overwritten when the signal came",
            _ => "the outermost frame",
        }]),
        modules: starting("module: ").count(),
        threads: starting("thread: ").count(),
        died_of: finished.status.signal(),
        milliseconds: after.saturating_sub(time) / 1_000_000,
        text: finished.describe(),
    })
}

fn hex(address: &str) -> Option<u64> {
    u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()
}

/// Nanoseconds of the clock that the program prints.
fn monotonic() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
