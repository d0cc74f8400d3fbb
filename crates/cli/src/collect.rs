//! `backtrail collect`: the handler of cores.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::exit;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use backtrail_record::Keep as Limit;
use backtrail_stacks::Shown;
use backtrail_stacks::crash::{self, Facts, Folder, Keep, Kept, Options, Report};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, nice, setrlimit};

use crate::error::{Failure, Status, one_line};
use crate::record::keep;
use crate::stack::What;

/// Where reports are unless --folder names another place.
pub(crate) const FOLDER: &str = "/var/lib/backtrail/crashes";
/// The most memory that a collector takes.
const MEMORY: u64 = 1 << 30;
/// How many collectors work at once; the others wait.
const AT_ONCE: usize = 4;
/// The most bytes of memory copied if the process is gone and no core is kept.
const SPOOLED: u64 = 64 << 20;

/// Report a crash whose core arrives on standard input. For /proc/sys/kernel/core_pattern.
///
/// The report has the stacks of all threads with arguments, registers, the signal, the modules with
/// their build IDs, and the command line. Backtrail reads the beginning of the core and then the
/// memory of the process, which waits meanwhile; so the process ends as soon as the report is made,
/// however large it is. 'backtrail crashes' lists the reports.
#[derive(Args)]
pub(crate) struct Collect {
    /// Write reports into DIR.
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    folder: PathBuf,
    /// Keep reports for TIME, and at most BYTES of them (as 500MB, 2GiB). Repeatable
    /// [default: 30d, 1GiB].
    #[arg(long, value_name = "TIME|BYTES", value_parser = keep)]
    keep: Vec<Limit>,
    /// Report at most N crashes of a user in ten minutes; count the others.
    #[arg(long, value_name = "N", default_value_t = 100)]
    rate: usize,
    /// Also keep a core with at most BYTES of memory: stacks first, then the smallest mappings.
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true, default_missing_value = "64MiB", value_parser = bytes)]
    core: Option<u64>,
    /// Show this much of the arguments of functions.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "all")]
    args: What,
    /// Do not show the values of arguments, members and options whose names match, in addition to
    /// those that are usual for secrets. Repeatable.
    #[arg(long, value_name = "PATTERN")]
    hide: Vec<String>,
    /// End after SECS seconds, with the report made so far.
    #[arg(long, value_name = "SECS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// What the kernel inserts for %P %u %g %s %t %e; all but PID may be left out.
    #[arg(
        value_name = "PID [UID [GID [SIGNAL [TIME [NAME]]]]]",
        required = true,
        trailing_var_arg = true
    )]
    crash: Vec<OsString>,
}

fn bytes(text: &str) -> Result<u64, String> {
    match keep(text) {
        Ok(Limit::Bytes(bytes)) => Ok(bytes),
        _ => Err("not a size, as 64MiB, 2GB".to_owned()),
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Collect) -> Result<Status, Failure> {
    let collected = collect(arguments);
    if let Err(failure) = &collected {
        // The kernel gives its handlers no standard error.
        log(3, &failure.to_string());
    }
    collected
}

fn collect(arguments: &Collect) -> Result<Status, Failure> {
    let facts = facts(&arguments.crash)?;
    let started = Instant::now();
    let until = started + Duration::from_secs(arguments.timeout);
    watch(arguments.timeout, facts.pid);
    bound();
    let keep = limits(arguments);
    let folder = Folder::at(&arguments.folder);
    let failed = |error: io::Error| Failure::of(folder.path(), error);
    let admitted = folder.admit(facts.uid, facts.pid, facts.time, &keep).or_else(|error| {
        retry(&folder, error)?;
        folder.admit(facts.uid, facts.pid, facts.time, &keep)
    });
    let Some(id) = admitted.map_err(failed)? else {
        return Ok(Status::Done);
    };
    // The process stands still meanwhile, and keeps its memory.
    let _slot = folder
        .slot(AT_ONCE, started + Duration::from_secs(arguments.timeout) / 2)
        .map_err(failed)?;
    let report = report(arguments, &id, &facts, &folder, until);
    if let Err(error) = report.1 {
        folder.remove_empty(&id, facts.uid);
        // At least the log has it.
        log(4, &report.0.line());
        return Err(failed(error));
    }
    log(6, &report.0.line());
    Ok(Status::Done)
}

/// Makes the report; the error is that of the last attempt to save it.
fn report(arguments: &Collect, id: &str, facts: &Facts, folder: &Folder, until: Instant) -> (Report, io::Result<()>) {
    // The owner of `/proc/PID` is known only as long as the process is there.
    let shared = facts.uid.filter(|_| facts.user_may_read());
    let mut core = arguments.core.and_then(|most| {
        let has_room = folder.free().is_none_or(|free| free / 2 > most);
        let core = has_room.then(|| folder.core(id, facts.uid).ok()).flatten();
        if core.is_none() {
            log(4, "no room for a core");
        }
        core
    });
    let kept = core.as_mut().map(|(file, name)| Kept { file, name });
    let mut shown = Shown::to_others();
    shown.amount = arguments.args.amount();
    shown.hidden.extend(arguments.hide.iter().cloned());
    let options = Options {
        shown,
        arguments: true,
        memory: arguments.core.unwrap_or(SPOOLED),
        until: until - Duration::from_secs(arguments.timeout) / 3,
    };
    let mut saved = Ok(());
    let mut save = |report: &Report| {
        saved = folder.save(id, facts.uid, report).or_else(|error| {
            retry(folder, error)?;
            folder.save(id, facts.uid, report)
        });
        if let Some(user) = shared {
            folder.share(id, user);
        }
    };
    let mut stdin = io::stdin().lock();
    let report = crash::collect(id, facts, &mut stdin, &options, kept, &mut save);
    if report.summary["core"].is_null() {
        folder.remove_core(id, facts.uid);
    }
    (report, saved)
}

/// Makes room if the disk is full; another error stays.
fn retry(folder: &Folder, error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            folder.make_room();
            Ok(())
        }
        _ => Err(error),
    }
}

/// What the kernel passed on. Nothing after the first word is an option: a program chooses its own
/// name.
fn facts(words: &[OsString]) -> Result<Facts, Failure> {
    let text = |index: usize| words.get(index).map(|word| word.to_string_lossy().into_owned());
    let number = |index: usize, what: &str| match text(index) {
        None => Ok(None),
        Some(word) => word.parse::<u64>().map(Some).map_err(|_| {
            Failure::new(format_args!("{word:?} is not a {what}")).help("core_pattern: |PATH collect %P %u %g %s %t %e")
        }),
    };
    let small = |number: Option<u64>| number.and_then(|number| u32::try_from(number).ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name: Vec<String> = (5..words.len()).filter_map(text).collect();
    Ok(Facts {
        pid: small(number(0, "process number")?).unwrap_or(0),
        uid: small(number(1, "user number")?),
        gid: small(number(2, "group number")?),
        signal: small(number(3, "signal number")?).filter(|&signal| signal != 0),
        time: number(4, "time in seconds")?.unwrap_or(now.as_secs()),
        name: Some(name.join(" ")).filter(|name| !name.is_empty()),
    })
}

fn limits(arguments: &Collect) -> Keep {
    let mut keep = Keep {
        bytes: 1 << 30,
        age: Duration::from_secs(30 * 86_400),
        rate: arguments.rate,
    };
    for limit in &arguments.keep {
        match limit {
            Limit::Bytes(bytes) => keep.bytes = *bytes,
            Limit::Time(age) => keep.age = *age,
        }
    }
    keep
}

/// Ends this process in time, whatever it is waiting for. The report is saved as far as it is made.
fn watch(seconds: u64, pid: u32) {
    let end = move || {
        thread::sleep(Duration::from_secs(seconds));
        log(
            4,
            &format!("the report of process {pid} took longer than {seconds} s and is not complete"),
        );
        exit(2);
    };
    // Without a thread, there is no limit.
    let _ = thread::Builder::new().name("watch".to_owned()).spawn(end);
}

/// Takes no more memory than this, and the processor only if nothing else needs it.
fn bound() {
    let maximum = getrlimit(Resource::Data).maximum;
    let current = Some(maximum.map_or(MEMORY, |maximum| maximum.min(MEMORY)));
    let _ = setrlimit(Resource::Data, Rlimit { current, maximum });
    let _ = nice(10);
}

/// Writes a line to standard error, or to the kernel's log if the kernel has started us, which
/// leaves standard error closed. The level is that of `syslog(3)`.
fn log(level: u8, text: &str) {
    let is_null = rustix::fs::fstat(io::stderr()).is_ok_and(|status| status.st_rdev == null_device());
    let text = one_line(text);
    if !is_null {
        crate::error::say!("backtrail: {text}");
    } else if let Ok(mut log) = File::options().write(true).open("/dev/kmsg") {
        let _ = log.write_all(format!("<{level}>backtrail: {text}\n").as_bytes());
    }
}

fn null_device() -> u64 {
    std::fs::metadata("/dev/null").map_or(u64::MAX, |metadata| metadata.rdev())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts_of(line: &[&str]) -> Option<Facts> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        facts(&words).ok()
    }

    #[test]
    fn a_name_is_never_an_option() {
        let given = facts_of(&["7", "1000", "100", "11", "60", "--core=9TB", "x"]).expect("it is right");
        assert_eq!(given.name.as_deref(), Some("--core=9TB x"));
        assert_eq!((given.pid, given.uid, given.gid), (7, Some(1000), Some(100)));
        assert_eq!((given.signal, given.time), (Some(11), 60));
        assert_eq!(facts_of(&["7"]).expect("the rest may be left out").signal, None);
        assert!(facts_of(&["%P"]).is_none());
    }
}
