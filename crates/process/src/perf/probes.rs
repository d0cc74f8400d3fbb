//! Tracepoints at the first instructions of functions, made by writing to `uprobe_events` of
//! tracefs (Documentation/trace/uprobetracer.rst).
//!
//! The kernel's `uprobe` PMU would need no file system, and would leave nothing behind when we are
//! killed. But its events cannot be inherited: for each child the kernel reads the file's path
//! again from the child's memory, and forks fail (Linux 6.18).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process;

use rustix::mount::{MountFlags, mount};

use super::error::{Entry, OpenError};

/// The places to look for tracefs, in this order.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const LIST: &str = "uprobe_events";
/// The name of the group of a process's tracepoints; the process number follows.
const GROUP: &str = "backtrail_";

/// Tracepoints, which are removed on drop; events on them must be closed before.
#[derive(Debug, Default)]
pub(super) struct Probes {
    folder: PathBuf,
    /// Their names, including the group.
    names: Vec<String>,
}

impl Probes {
    /// Makes a tracepoint at each of these, and returns their numbers.
    pub(super) fn at(entries: &[Entry]) -> Result<(Probes, Vec<u64>), OpenError> {
        let mut probes = Probes {
            folder: tracefs()?,
            names: Vec::new(),
        };
        probes.forget_those_of_the_dead();
        let own = process::id();
        let mut numbers = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let name = format!("{GROUP}{own}/entry_{index}");
            let made = probes.make(&name, entry);
            numbers.push(made.map_err(|error| OpenError::Entry(entry.clone(), error))?);
        }
        Ok((probes, numbers))
    }

    fn make(&mut self, name: &str, entry: &Entry) -> io::Result<u64> {
        // A line of tracefs can't contain every path, and the kernel looks it up only now.
        let file = File::open(&entry.file)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.write(&format!("p:{name} {path}:{:#x}", entry.offset))?;
        self.names.push(name.to_owned());
        let number = fs::read_to_string(self.folder.join("events").join(name).join("id"))?;
        let number = number.trim().parse();
        number.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "its tracepoint has no number"))
    }

    /// Adds a line to the list, in one write, as the kernel requires.
    fn write(&self, line: &str) -> io::Result<()> {
        open(&self.folder)?.write_all(format!("{line}\n").as_bytes())
    }

    /// Removes what a killed recorder has left.
    fn forget_those_of_the_dead(&self) {
        let list = fs::read_to_string(self.folder.join(LIST)).unwrap_or_default();
        let names = list
            .lines()
            .filter_map(|line| line.strip_prefix("p:")?.split(' ').next());
        for name in names {
            let process = name.strip_prefix(GROUP).and_then(|rest| rest.split_once('/'));
            let is_gone = |process: &str| !Path::new("/proc").join(process).exists();
            if process.is_some_and(|(process, _)| process.parse::<u32>().is_ok() && is_gone(process)) {
                // Another recorder may just have done so.
                let _ = self.write(&format!("-:{name}"));
            }
        }
    }
}

/// The number of a tracepoint of the kernel.
pub(super) fn number_of(subsystem: &str, event: &str) -> io::Result<u64> {
    let path = tracefs_for_reading()
        .join("events")
        .join(subsystem)
        .join(event)
        .join("id");
    let number = fs::read_to_string(path)?;
    let number = number.trim().parse();
    number.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a tracepoint without a number"))
}

/// The folder of tracefs that has events, or the usual one if we may not look into any.
fn tracefs_for_reading() -> &'static Path {
    let mut folders = TRACEFS.iter().map(Path::new);
    let usual = Path::new(TRACEFS[0]);
    folders.find(|folder| folder.join("events").is_dir()).unwrap_or(usual)
}

/// The number of the tracepoint of wakings, and where its records have the woken thread. `None` if
/// we may not know it.
pub(super) fn waking() -> Option<(u64, usize)> {
    TRACEFS.into_iter().find_map(|folder| {
        let folder = Path::new(folder).join("events/sched/sched_waking");
        let number = fs::read_to_string(folder.join("id")).ok()?.trim().parse().ok()?;
        let format = fs::read_to_string(folder.join("format")).ok()?;
        let field = format.lines().find(|line| line.contains("field:pid_t pid;"))?;
        let (_, offset) = field.split_once("offset:")?;
        let (offset, _) = offset.split_once(';')?;
        Some((number, offset.trim().parse().ok()?))
    })
}

impl Drop for Probes {
    fn drop(&mut self) {
        for name in &self.names {
            // The next recorder removes what remains.
            let _ = self.write(&format!("-:{name}"));
        }
    }
}

/// The folder of tracefs, which is mounted at its usual place if it is not mounted anywhere.
fn tracefs() -> Result<PathBuf, OpenError> {
    let [usual, _] = TRACEFS;
    let found = || {
        TRACEFS
            .into_iter()
            .map(Path::new)
            .find_map(|folder| match open(folder) {
                Ok(_) => Some(Ok(folder.to_owned())),
                // It exists, but only for others.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    Some(Err(OpenError::EntriesNotPermitted))
                }
                Err(_) => None,
            })
    };
    if let Some(found) = found() {
        return found;
    }
    match mount(
        "tracefs",
        usual,
        "tracefs",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    ) {
        Ok(()) => found().unwrap_or(Err(OpenError::NoEntries)),
        Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => Err(OpenError::EntriesNotPermitted),
        Err(_) => Err(OpenError::NoEntries),
    }
}

/// Opens the list of a folder for appending.
fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(folder.join(LIST))
}
