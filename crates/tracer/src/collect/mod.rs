//! From rings to traces: what a program's own thread does, and `backtrail trace record`.
//!
//! [`Collector`] looks for the rings of processes in a folder and writes a trace for each, while
//! they run and after they have ended in whatever way. [`recover`] does so once.

mod describe;
mod drain;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

pub use describe::ClassError;
pub use describe::parse as parse_class;
pub(crate) use drain::{Drain, snapshot};

use crate::layout::head;
use crate::map::Map;

/// The environment variable with the folder of a collector that starts programs.
pub const FOLDER_VARIABLE: &str = "BACKTRAIL_TRACE";
/// The file in that folder with the rules that new processes begin with.
pub(crate) const RULES_FILE: &str = "rules";

/// The folder in which programs that nobody traces yet wait: one for each user, in memory.
pub fn default_folder() -> PathBuf {
    // The process's own directory belongs to its user.
    let user = fs::metadata("/proc/self").map_or(0, |of| of.uid());
    PathBuf::from(format!("/dev/shm/backtrail-{user}"))
}

/// The folder of the collector that has started this program. A program that runs with more rights
/// than its caller has none: whoever starts it chooses the environment.
pub(crate) fn folder_of_starter() -> Option<PathBuf> {
    let is_privileged = crate::map::is_privileged();
    let folder = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty() && !is_privileged);
    folder.map(PathBuf::from)
}

/// Makes the folder in which programs and collectors meet. Everybody can make a folder with the
/// name of the [default one](default_folder), so it must be ours, and is closed to others.
pub(crate) fn make_meeting_folder(folder: &Path) -> io::Result<()> {
    match folder == default_folder() {
        true => make_own_folder(folder),
        false => make_private_folder(folder),
    }
}

fn make_own_folder(folder: &Path) -> io::Result<()> {
    make_private_folder(folder)?;
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != crate::map::user() {
        let text = format!("{} is not a folder of this user", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Makes a folder that others cannot read, unless it exists.
fn make_private_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Opens rings: a regular file, and not one that a link in the folder leads to.
fn open_rings(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of rings")),
    }
}

/// When a process started, in clock ticks since boot; `None` without one.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any bytes.
    let text = String::from_utf8_lossy(&text);
    let (_, rest) = text.rsplit_once(')')?;
    let mut words = rest.split_ascii_whitespace();
    let state = words.next()?;
    // 20 words after the state.
    words.nth(18).filter(|_| !["Z", "X"].contains(&state))?.parse().ok()
}

/// How a [`Collector`] writes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CollectOptions {
    /// Rules that replace those of the processes.
    pub rules: Option<String>,
    /// Bytes of a process's trace after which the next one begins.
    pub rotate_bytes: Option<u64>,
    /// Whether metadata is that of CTF 2 instead of 1.8.
    pub ctf2: bool,
}

/// What rings have, and the traces do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unwritten {
    /// Bytes of events.
    pub bytes: u64,
    /// Events that the programs discarded because the rings were full, and that no trace reports.
    pub discarded: u64,
}

/// Collects the rings of a folder.
#[derive(Debug)]
pub struct Collector {
    folder: PathBuf,
    output: PathBuf,
    options: CollectOptions,
    processes: BTreeMap<PathBuf, Process>,
    /// Processes so far.
    met: usize,
    /// Number of the rotation; 0 for the first traces, which are directly in the output.
    chunk: u64,
}

#[derive(Debug)]
struct Process {
    drain: Drain,
    pid: u32,
    started: u64,
    /// Classes that the rules were applied to.
    ruled: usize,
    is_finished: bool,
    inode: u64,
}

impl Collector {
    /// Collects the rings in `folder` into traces below `output`.
    ///
    /// # Errors
    /// A rule is wrong, or a folder cannot be made.
    pub fn new(folder: &Path, output: &Path, options: CollectOptions) -> io::Result<Collector> {
        if let Some(rule) = options.rules.as_deref().and_then(crate::rules::wrong) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("not a rule: {rule}"),
            ));
        }
        make_meeting_folder(folder)?;
        make_private_folder(output)?;
        if let Some(rules) = &options.rules {
            if rules.len() >= head::RULES_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "rules are too long"));
            }
            fs::write(folder.join(RULES_FILE), rules)?;
        }
        Ok(Collector {
            folder: folder.to_owned(),
            output: output.to_owned(),
            options,
            processes: BTreeMap::new(),
            met: 0,
            chunk: 0,
        })
    }

    /// Takes what the rings have; with `flush` also packets that are not full. Rings of processes
    /// that have ended are taken whole and removed. Returns the bytes written.
    ///
    /// # Errors
    /// A trace cannot be written. What was not written stays in its ring.
    pub fn round(&mut self, flush: bool) -> io::Result<u64> {
        self.find_processes()?;
        let mut written = 0;
        let mut ended = Vec::new();
        for (path, process) in &mut self.processes {
            process.apply_rules(self.options.rules.as_deref());
            // Before the last look at the rings.
            let has_ended = started(process.pid) != Some(process.started);
            let is_last = has_ended || process.drain.map.word(head::ENDED).load(Ordering::Acquire) != 0;
            written += process.drain.round(flush || is_last)?;
            if is_last {
                if has_ended || !process.is_finished {
                    process.drain.finish()?;
                    process.is_finished = true;
                }
                // Its threads may still be in the middle of an event if it runs.
                if has_ended {
                    ended.push(path.clone());
                }
            }
        }
        for path in ended {
            fs::remove_file(&path)?;
            if let Some(process) = self.processes.remove(&path) {
                process.drain.map.unmap();
            }
        }
        Ok(written)
    }

    /// Ends all current traces; what follows goes to new ones.
    ///
    /// # Errors
    /// As [`Collector::round`].
    pub fn rotate(&mut self) -> io::Result<()> {
        self.round(true)?;
        self.chunk += 1;
        for process in self.processes.values_mut() {
            let next = process.drain.chunk.max(self.chunk - 1) + 1;
            process.drain.rotate(next)?;
        }
        Ok(())
    }

    /// Switches everything off in the processes that still run, and takes what is left.
    ///
    /// # Errors
    /// As [`Collector::round`].
    pub fn stop(&mut self) -> io::Result<()> {
        for process in self.processes.values() {
            process.drain.map.write(head::RULES, &[0; head::RULES_BYTES]);
            crate::classes::each_switch(&process.drain.map, |switch| switch.store(0, Ordering::Relaxed));
        }
        let _ = fs::remove_file(self.folder.join(RULES_FILE));
        self.round(true)?;
        for process in self.processes.values_mut() {
            process.drain.finish()?;
            process.drain.map.word(head::COLLECTOR).store(0, Ordering::Release);
        }
        Ok(())
    }

    /// What the traces lack: all that [`Collector::stop`] could not write, after an error.
    pub fn unwritten(&self) -> Unwritten {
        let mut sum = Unwritten::default();
        for process in self.processes.values() {
            process.drain.add_unwritten(&mut sum);
        }
        sum
    }

    /// Number of processes whose rings have been found, also of those that have ended since.
    pub fn processes(&self) -> usize {
        self.met
    }

    fn find_processes(&mut self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_rings = name.starts_with('.') && name.ends_with(".rings");
            if !is_rings {
                continue;
            }
            let inode = fs::metadata(&path).map_or(0, |of| of.ino());
            match self.processes.get_mut(&path) {
                Some(process) if process.inode == inode => continue,
                // The process has called exec, and the new program has rings of its own.
                Some(process) => {
                    process.drain.round(true)?;
                    process.drain.finish()?;
                    process.drain.map.unmap();
                    self.processes.remove(&path);
                }
                None => {}
            }
            let is_over = is_of_ended(&path);
            match Process::open(&path, &self.output, &self.options, self.chunk) {
                Ok(process) => {
                    self.processes.insert(path, process);
                    self.met += 1;
                }
                // One that is being made is looked at again in the next round.
                Err(error) if error.kind() != io::ErrorKind::ResourceBusy && is_over => {
                    let _ = fs::remove_file(&path);
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Process {
    fn open(path: &Path, output: &Path, options: &CollectOptions, chunk: u64) -> io::Result<Process> {
        let file = open_rings(path)?;
        let map = Map::open(&file)?;
        let pid = map.word(head::PID).load(Ordering::Acquire) as u32;
        let collector = map.word(head::COLLECTOR).load(Ordering::Acquire);
        let us = u64::from(std::process::id());
        if collector != 0 && collector != us && started(collector as u32).is_some() {
            map.unmap();
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another process collects it",
            ));
        }
        map.word(head::COLLECTOR).store(us, Ordering::Release);
        let inode = file.metadata()?.ino();
        let mut drain = Drain::new(map, file, output, options.ctf2, chunk);
        drain.start_files();
        drain.rotate_bytes = options.rotate_bytes;
        Ok(Process {
            pid,
            started: map.word(head::STARTED).load(Ordering::Acquire),
            drain,
            ruled: 0,
            is_finished: false,
            inode,
        })
    }

    fn apply_rules(&mut self, rules: Option<&str>) {
        let Some(rules) = rules else { return };
        let map = &self.drain.map;
        if self.ruled == 0 {
            let mut page = [0; head::RULES_BYTES];
            page.iter_mut()
                .zip(rules.bytes())
                .for_each(|(place, byte)| *place = byte);
            map.write(head::RULES, &page);
        }
        // The classes that the process entered before it saw the rules, and those it entered since.
        let mut number = 0;
        crate::classes::each(map, |at| {
            number += 1;
            if number > self.ruled {
                crate::classes::apply(map, at, rules.as_bytes());
            }
        });
        self.ruled = number.max(1);
    }
}

/// Writes what ended processes have left in the rings of a folder, to traces in that folder, and
/// removes these rings. Returns the number of processes.
///
/// For a flight recorder's file, its traces are beside it.
///
/// # Errors
/// The folder cannot be read, or a trace cannot be written.
pub fn recover(path: &Path) -> io::Result<usize> {
    match path.is_file() {
        true => recover_file(path).map(|()| 1),
        false => recover_folder(path, None),
    }
}

/// The same for a folder. The rings of process `own`, which is about to make new ones, are those of
/// the program that it was before an exec.
pub(crate) fn recover_folder(path: &Path, own: Option<u32>) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(path)? {
        let rings = entry?.path();
        let name = rings.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with('.') || !name.ends_with(".rings") {
            continue;
        }
        let was_over = is_of_ended(&rings);
        let opened = open_rings(&rings).and_then(|file| Ok((Map::open(&file)?, file)));
        let Ok((map, file)) = opened else {
            if was_over {
                let _ = fs::remove_file(rings);
            }
            continue;
        };
        let pid = map.word(head::PID).load(Ordering::Acquire) as u32;
        // Several processes of a program may end, and look, at the same time.
        if file.try_lock().is_err() {
            map.unmap();
            continue;
        }
        let is_over = own == Some(pid) || started(pid) != Some(map.word(head::STARTED).load(Ordering::Acquire));
        if is_over {
            let mut drain = Drain::new(map, file, path, false, 0);
            drain.resume()?;
            drain.round(true)?;
            drain.finish()?;
            fs::remove_file(&rings)?;
            count += 1;
        }
        map.unmap();
    }
    Ok(count)
}

/// Whether these rings are those of a process that has ended. If they then cannot be opened, it has
/// not finished making them, and they have no events. This must be asked before: a process may
/// finish them, record, and end between the two.
fn is_of_ended(rings: &Path) -> bool {
    let name = rings.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let pid = name.trim_matches(|c: char| !c.is_ascii_digit()).parse();
    pid.is_ok_and(|pid| started(pid).is_none())
}

/// The newest events in a flight recorder's file.
fn recover_file(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let map = Map::open(&file)?;
    let mut directory = path.as_os_str().to_owned();
    directory.push(".trace");
    let done = snapshot(&map, &file, Path::new(&directory));
    map.unmap();
    done
}

/// A file that ends with whole packets.
fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn folders_of_others_are_not_used() {
        let scratch = backtrail_testkit::scratch();
        let place = |name: &str| scratch.path().join(name);
        make_own_folder(&place("own")).unwrap();
        fs::set_permissions(place("own"), Permissions::from_mode(0o777)).unwrap();
        make_own_folder(&place("own")).unwrap();
        assert_eq!(fs::metadata(place("own")).unwrap().mode() & 0o777, 0o700);
        symlink(place("own"), place("link")).unwrap();
        assert!(make_own_folder(&place("link")).is_err());
        // Only root can give a folder away.
        if chown(place("own"), Some(65_533), None).is_ok() {
            assert!(make_own_folder(&place("own")).is_err());
        }
    }

    #[test]
    fn processes_whose_names_are_no_text_are_there() {
        let scratch = backtrail_testkit::scratch();
        // The kernel cuts the name after 15 bytes, within a character.
        let copy = scratch.path().join("é".repeat(9));
        fs::copy("/bin/sleep", &copy).unwrap();
        let mut sleeping = std::process::Command::new(&copy).arg("1000").spawn().unwrap();
        let pid = sleeping.id();
        let before = started(std::process::id()).unwrap();
        assert!(started(pid).is_some_and(|time| time >= before), "{:?}", started(pid));
        sleeping.kill().unwrap();
        sleeping.wait().unwrap();
        assert_eq!(started(pid), None);
    }

    #[test]
    fn rings_behind_links_are_not_opened() {
        let scratch = backtrail_testkit::scratch();
        let place = |name: &str| scratch.path().join(name);
        fs::write(place("file"), "").unwrap();
        symlink(place("file"), place("link")).unwrap();
        assert!(open_rings(&place("file")).is_ok());
        assert!(open_rings(&place("link")).is_err());
        assert!(open_rings(Path::new("/dev/null")).is_err());
    }
}
