//! Tracepoints at the first instructions of functions, made by writing to `uprobe_events` of
//! tracefs (Documentation/trace/uprobetracer.rst).
//!
//! The kernel's `uprobe` PMU would need no file system, and leave nothing behind that is killed.
//! But an event of it can't be inherited: for each child the kernel reads the file's path anew,
//! from the child's memory, and forks fail (Linux 6.18).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process;

use rustix::mount::{MountFlags, mount};

use super::error::{Entry, OpenError};

/// Where it is, in the order in which it is looked for.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const LIST: &str = "uprobe_events";
/// What the group of a process's tracepoints is called, with its number behind it.
const GROUP: &str = "backtrail_";

/// Tracepoints, which are taken away again; events on them must be closed before.
#[derive(Debug, Default)]
pub(super) struct Probes {
    folder: PathBuf,
    /// Their names with their group.
    names: Vec<String>,
}

impl Probes {
    /// A tracepoint at each of these, and its number.
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
        let path = entry.file.to_str().filter(|path| !path.contains(char::is_whitespace));
        let path =
            path.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "tracefs takes no such name of a file"))?;
        self.write(&format!("p:{name} {path}:{:#x}", entry.offset))?;
        self.names.push(name.to_owned());
        let number = fs::read_to_string(self.folder.join("events").join(name).join("id"))?;
        let number = number.trim().parse();
        number.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "its tracepoint has no number"))
    }

    /// One line into the list: written at once, as the kernel wants it.
    fn write(&self, line: &str) -> io::Result<()> {
        open(&self.folder)?.write_all(format!("{line}\n").as_bytes())
    }

    /// Takes away what a recorder has left that was killed.
    fn forget_those_of_the_dead(&self) {
        let list = fs::read_to_string(self.folder.join(LIST)).unwrap_or_default();
        let names = list
            .lines()
            .filter_map(|line| line.strip_prefix("p:")?.split(' ').next());
        for name in names {
            let process = name.strip_prefix(GROUP).and_then(|rest| rest.split_once('/'));
            let is_gone = |process: &str| !Path::new("/proc").join(process).exists();
            if process.is_some_and(|(process, _)| process.parse::<u32>().is_ok() && is_gone(process)) {
                // Another recorder may have done so just now.
                let _ = self.write(&format!("-:{name}"));
            }
        }
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        for name in &self.names {
            // What stays is taken away by the next one.
            let _ = self.write(&format!("-:{name}"));
        }
    }
}

/// The folder of tracefs, which is mounted where it belongs if it is nowhere.
fn tracefs() -> Result<PathBuf, OpenError> {
    let [usual, _] = TRACEFS;
    let found = || {
        TRACEFS
            .into_iter()
            .map(Path::new)
            .find_map(|folder| match open(folder) {
                Ok(_) => Some(Ok(folder.to_owned())),
                // It is there, for others.
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

/// The list of a folder, to add to it.
fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(folder.join(LIST))
}
