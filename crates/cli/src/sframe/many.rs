//! Adds tables to many files at once: those that are named, and those in folders.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::report::{Format, Outcome, Report};
use crate::error::{Failure, Status, shown};
use crate::output;
use crate::replacement;

/// A file with all its names.
struct Entry {
    /// The name that is edited, then the other hard links to the same file.
    names: Vec<PathBuf>,
    /// The user named it, rather than a folder that contains it.
    named: bool,
    /// Device and inode.
    key: (u64, u64),
    size: u64,
    links: u64,
}

impl Entry {
    fn path(&self) -> &Path {
        self.names.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// All files of the run.
#[derive(Default)]
pub(super) struct Files {
    entries: Vec<Entry>,
    /// Index by device and inode.
    known: HashMap<(u64, u64), usize>,
    /// Files and folders that could not be read, and why.
    unreadable: Vec<(PathBuf, String)>,
}

impl Files {
    /// Adds a file that was named; a symbolic link is followed.
    pub(super) fn add(&mut self, path: &Path) {
        let found = fs::canonicalize(path).and_then(|real| fs::metadata(&real).map(|metadata| (real, metadata)));
        match found {
            Ok((_, metadata)) if metadata.is_dir() => {
                let what = "is a folder; --recursive takes the files in it";
                self.unreadable.push((path.to_owned(), what.to_owned()));
            }
            Ok((real, metadata)) => self.push(real, &metadata, true),
            Err(error) => self.unreadable.push((path.to_owned(), error.to_string())),
        }
    }

    /// Adds all ELF files in a folder and in the folders in it, on the same file system. Symbolic
    /// links are not followed.
    pub(super) fn add_folder(&mut self, folder: &Path) -> Result<(), Failure> {
        let fails = |error| Failure::of(folder, error);
        let device = fs::metadata(folder).map_err(fails)?.dev();
        // A folder that is named must be readable.
        fs::read_dir(folder).map_err(fails)?;
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            if let Err(error) = self.add_files_of(&folder, device, &mut folders) {
                self.unreadable.push((folder, error.to_string()));
            }
        }
        Ok(())
    }

    fn add_files_of(&mut self, folder: &Path, device: u64, folders: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let metadata = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                // It was removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    self.unreadable.push((path, error.to_string()));
                    continue;
                }
            };
            if metadata.dev() != device {
                continue;
            }
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file() {
                match is_elf(&path) {
                    Ok(true) => self.push(path, &metadata, false),
                    Ok(false) => {}
                    Err(error) => self.unreadable.push((path, error.to_string())),
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, path: PathBuf, metadata: &Metadata, named: bool) {
        let key = (metadata.dev(), metadata.ino());
        let known = self.known.get(&key).and_then(|&index| self.entries.get_mut(index));
        if let Some(entry) = known {
            entry.named |= named;
            if !entry.names.contains(&path) {
                entry.names.push(path);
            }
            return;
        }
        self.known.insert(key, self.entries.len());
        self.entries.push(Entry {
            names: vec![path],
            named,
            key,
            size: metadata.size(),
            links: metadata.nlink(),
        });
    }
}

fn is_elf(path: &Path) -> io::Result<bool> {
    let mut magic = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == b"\x7fELF")
}

/// Lets `work` edit each file by its first name, on this number of threads, and prints the report.
pub(super) fn run(
    mut files: Files,
    jobs: usize,
    format: Format,
    work: &(dyn Fn(&Path, bool) -> Outcome + Sync),
) -> Result<Status, Failure> {
    let begun = Instant::now();
    // Large files first, so that no thread ends long after the others.
    files
        .entries
        .sort_by(|one, other| (other.size, &one.names).cmp(&(one.size, &other.names)));
    let entries = &files.entries;
    let next = AtomicUsize::new(0);
    let done = Mutex::new((Vec::with_capacity(entries.len()), Progress::new(entries.len())));
    let run = || {
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = of_entry(entry, work);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.0.push((entry, outcome));
            let count = done.0.len();
            done.1.show(count);
        }
    };
    thread::scope(|scope| {
        // Fewer threads take longer; this one works, too.
        for _ in 1..jobs.min(entries.len()) {
            if thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    let (mut done, progress) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    progress.clear();
    done.sort_by(|(one, _), (other, _)| one.names.cmp(&other.names));
    let outcomes = done.iter().map(|(entry, outcome)| (entry.path(), entry.named, outcome));
    let report = Report::of(outcomes, &files.unreadable, begun.elapsed());
    match format {
        Format::Json => output::to_stdout(|out| writeln!(out, "{}", report.to_json()))?,
        Format::Text => output::to_stdout(|out| report.write_text(out))?,
        Format::None => {}
    }
    for (path, why) in &report.failed {
        Failure::of(path, why).report();
    }
    Ok(match report.failed.is_empty() {
        true => Status::Done,
        false => Status::Bad,
    })
}

/// Edits the file by its first name, and lets its other names lead to the new file.
fn of_entry(entry: &Entry, work: &(dyn Fn(&Path, bool) -> Outcome + Sync)) -> Outcome {
    let Some((first, others)) = entry.names.split_first() else {
        return Outcome::Left("files without a name");
    };
    let now = match fs::symlink_metadata(first) {
        Ok(now) => now,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    // Nobody may lead the edit to another file, by a symbolic link, once the folders were read.
    if (now.dev(), now.ino()) != entry.key {
        return Outcome::Failed("was replaced during the run".to_owned());
    }
    if now.nlink() > entry.names.len() as u64 || entry.links > entry.names.len() as u64 {
        return Outcome::Refused("has names (hard links) elsewhere".to_owned());
    }
    let outcome = work(first, entry.named);
    if let Outcome::Added { .. } = outcome {
        for other in others {
            if let Err(error) = relink(first, other) {
                let other = shown(other);
                return Outcome::Failed(format!("has its table, but {other} is still the old file: {error}"));
            }
        }
    }
    outcome
}

/// Replaces the file at `name` by a hard link to `file`.
fn relink(file: &Path, name: &Path) -> io::Result<()> {
    let folder = name.parent().unwrap_or(Path::new("."));
    let mut number = 0;
    let temporary = loop {
        let temporary = folder.join(format!(".backtrail-link-{}-{number}.tmp", std::process::id()));
        match fs::hard_link(file, &temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
            Ok(()) => break temporary,
        }
    };
    fs::rename(&temporary, name).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Why a file must not change although it could have a table; `None` for nearly all.
pub(super) fn must_stay(path: &Path) -> Option<&'static str> {
    let beside = |name: PathBuf| name.symlink_metadata().is_ok();
    let hidden = || {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name()?);
        name.push(".hmac");
        Some(path.with_file_name(name))
    };
    // NSS (Firefox, Chromium) and the FIPS modules compare themselves with these.
    if beside(path.with_extension("chk")) || hidden().is_some_and(beside) {
        return Some("has its checksum in a file beside it (.chk, .hmac)");
    }
    replacement::is_signed(path).then_some("is signed for the kernel (security.ima)")
}

/// Shows on a terminal how far the run is.
struct Progress {
    all: usize,
    terminal: bool,
    shown: Option<Instant>,
}

impl Progress {
    fn new(all: usize) -> Progress {
        Progress {
            all,
            terminal: io::stderr().is_terminal(),
            shown: None,
        }
    }

    fn show(&mut self, done: usize) {
        const WIDTH: usize = 30;
        const EVERY: Duration = Duration::from_millis(100);
        if !self.terminal || self.shown.is_some_and(|shown| shown.elapsed() < EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let bar = "#".repeat(WIDTH * done / self.all.max(1));
        // If the terminal is gone, nothing else is lost.
        let _ = write!(io::stderr(), "\r[{bar:<WIDTH$}] {done} of {} files", self.all);
    }

    fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All names of a file are one entry, and lead to one file afterwards.
    #[test]
    fn hard_links_stay_links() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("bin")).unwrap();
        fs::write(path("bin/one"), b"\x7fELF first").unwrap();
        fs::hard_link(path("bin/one"), path("two")).unwrap();
        std::os::unix::fs::symlink("one", path("bin/link")).unwrap();
        fs::write(path("text"), "no program").unwrap();
        let mut files = Files::default();
        files.add_folder(folder.path()).unwrap();
        files.add(&path("bin/link"));
        assert_eq!((files.entries.len(), files.unreadable.len()), (1, 0));
        let replace = |path: &Path, named: bool| {
            assert!(named);
            fs::remove_file(path).unwrap();
            fs::write(path, b"\x7fELF second").unwrap();
            Outcome::Added {
                before: 10,
                after: 11,
                added: Box::default(),
            }
        };
        assert!(matches!(run(files, 2, Format::None, &replace), Ok(Status::Done)));
        let inode = |name: &str| fs::metadata(path(name)).unwrap().ino();
        assert_eq!(inode("bin/one"), inode("two"));
        assert_eq!(fs::read(path("two")).unwrap(), b"\x7fELF second");
        assert!(fs::symlink_metadata(path("bin/link")).unwrap().is_symlink());

        // With a name elsewhere, it stays as it is.
        let mut files = Files::default();
        files.add_folder(&path("bin")).unwrap();
        let never = |_: &Path, _: bool| -> Outcome { panic!("edited") };
        assert!(matches!(run(files, 1, Format::None, &never), Ok(Status::Done)));
        // Nor is a file edited that took the place of the one that was found.
        let mut files = Files::default();
        files.add_folder(folder.path()).unwrap();
        fs::rename(path("two"), path("three")).unwrap();
        fs::remove_file(path("bin/one")).unwrap();
        std::os::unix::fs::symlink("../three", path("bin/one")).unwrap();
        fs::write(path("two"), b"\x7fELF another").unwrap();
        assert!(matches!(run(files, 1, Format::None, &never), Ok(Status::Bad)));
    }

    #[test]
    fn files_with_a_checksum_elsewhere_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in [
            "libsoftokn3.so",
            "libsoftokn3.chk",
            "libhmac.so.1",
            ".libhmac.so.1.hmac",
            "plain",
        ] {
            fs::write(path(name), "").unwrap();
        }
        for name in ["libsoftokn3.so", "libhmac.so.1"] {
            assert!(must_stay(&path(name)).is_some_and(|why| why.contains("checksum")));
        }
        assert_eq!(must_stay(&path("plain")), None);
    }
}
