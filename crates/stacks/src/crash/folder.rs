//! The folder of crash reports: `UID/ID.jsonl`, two lines of JSON, and `UID/ID.core`.
//!
//! The first line of a report is its summary, which lists read; the second one is everything. A
//! report appears whole, and grows by being replaced. Each user's reports are in a folder of their
//! own, which that user may read if the file system has access control lists.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use backtrail_elf::door;
use rustix::fs::XattrFlags;
use serde_json::Value;

use super::Report;

const REPORT: &str = "jsonl";
const CORE: &str = "core";
/// Counts the crashes of a user that were not reported.
const SKIPPED: &str = "skipped";
/// The most bytes of a summary and of a report.
const LONGEST_SUMMARY: u64 = 64 << 10;
const LONGEST_REPORT: u64 = 256 << 20;
/// The time in which a user's reports are counted.
pub(super) const RATE_TIME: Duration = Duration::from_secs(600);
/// How long a collector that waits for its turn sleeps.
const WAIT: Duration = Duration::from_millis(50);

/// A folder of crash reports.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// How much of a folder is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The most bytes of all reports and cores.
    pub bytes: u64,
    /// The age of the oldest.
    pub age: Duration,
    /// The most reports of a user in ten minutes.
    pub rate: usize,
}

/// A report in the folder.
#[derive(Clone, Debug)]
pub struct Entry {
    /// [`Report::summary`].
    pub summary: Value,
    /// The file.
    pub path: PathBuf,
}

/// The right to work while few others do, until this is dropped.
#[derive(Debug)]
pub struct Slot {
    _file: File,
}

/// A file in the folder.
struct Stored {
    path: PathBuf,
    user: String,
    bytes: u64,
    time: SystemTime,
}

impl Folder {
    /// A folder that exists, or may not.
    pub fn at(path: &Path) -> Folder {
        Folder { path: path.to_owned() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes room for the report of a user's crash, and returns its name; `None` if this user has
    /// had too many.
    ///
    /// # Errors
    /// If the folder can't be made or written.
    pub fn admit(&self, user: Option<u32>, pid: u32, time: u64, keep: &Keep) -> io::Result<Option<String>> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(&self.path)?;
        let lock = self.own_file(".lock")?;
        lock.lock()?;
        self.prune(keep);
        let folder = self.of_user(user);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let now = SystemTime::now();
        let is_recent = |file: &&Stored| now.duration_since(file.time).unwrap_or_default() < RATE_TIME;
        let recent = files(&folder, "").into_iter().filter(|file| is(&file.path, REPORT));
        if recent.collect::<Vec<_>>().iter().filter(is_recent).count() >= keep.rate {
            self.skip(&folder)?;
            return Ok(None);
        }
        let (base, mut id, mut number) = (format!("{}-{pid}", compact_time(time)), String::new(), 1);
        while id.is_empty() || folder.join(format!("{id}.{REPORT}")).exists() {
            id = if number == 1 {
                base.clone()
            } else {
                format!("{base}-{number}")
            };
            number += 1;
        }
        // The name is taken from now on.
        private(&folder.join(format!("{id}.{REPORT}")))?;
        Ok(Some(id))
    }

    /// Saves a report, in place of its earlier state.
    ///
    /// # Errors
    /// Those of writing.
    pub fn save(&self, id: &str, user: Option<u32>, report: &Report) -> io::Result<()> {
        let folder = self.of_user(user);
        let temporary = folder.join(format!(".{id}.tmp"));
        let write = || {
            let mut file = private(&temporary)?;
            writeln!(file, "{}\n{}", report.summary, report.details)?;
            fs::rename(&temporary, folder.join(format!("{id}.{REPORT}")))
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
    }

    /// The file of a crash's core, new, and its name.
    ///
    /// # Errors
    /// Those of creating it.
    pub fn core(&self, id: &str, user: Option<u32>) -> io::Result<(File, String)> {
        let name = format!("{id}.{CORE}");
        Ok((private(&self.of_user(user).join(&name))?, name))
    }

    /// Removes a report that could not be saved.
    pub fn remove_empty(&self, id: &str, user: Option<u32>) {
        let path = self.of_user(user).join(format!("{id}.{REPORT}"));
        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() == 0) {
            let _ = fs::remove_file(path);
        }
    }

    /// Removes a core that could not be written.
    pub fn remove_core(&self, id: &str, user: Option<u32>) {
        let _ = fs::remove_file(self.of_user(user).join(format!("{id}.{CORE}")));
    }

    /// Lets the user read about this crash. Without access control lists only the owner of the
    /// folder reads.
    pub fn share(&self, id: &str, user: u32) {
        if rustix::process::geteuid().as_raw() == user {
            return;
        }
        let folder = self.of_user(Some(user));
        set_access(&folder, user, 0o5);
        for extension in [REPORT, CORE] {
            set_access(&folder.join(format!("{id}.{extension}")), user, 0o4);
        }
    }

    /// Waits until fewer than `count` others work; `None` if that takes until then.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn slot(&self, count: usize, until: Instant) -> io::Result<Option<Slot>> {
        loop {
            for number in 0..count.max(1) {
                let file = self.own_file(&format!(".slot{number}"))?;
                if file.try_lock().is_ok() {
                    return Ok(Some(Slot { _file: file }));
                }
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(WAIT);
        }
    }

    /// The bytes that its file system has left for others.
    pub fn free(&self) -> Option<u64> {
        let status = rustix::fs::statvfs(&self.path).ok()?;
        status.f_bavail.checked_mul(status.f_frsize)
    }

    /// All reports, the oldest first, and the number of those that we may not read.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn list(&self) -> io::Result<(Vec<Entry>, usize)> {
        fs::read_dir(&self.path)?;
        let (mut entries, mut unreadable) = (Vec::new(), 0);
        for user in users(&self.path) {
            let folder = self.path.join(&user);
            if fs::read_dir(&folder).is_err() {
                unreadable += 1;
                continue;
            }
            for file in files(&folder, &user).into_iter().filter(|file| is(&file.path, REPORT)) {
                match summary(&file.path) {
                    Ok(Some(summary)) => {
                        let path = file.path;
                        entries.push((file.time, Entry { summary, path }));
                    }
                    // It has just been begun.
                    Ok(None) => {}
                    Err(_) => unreadable += 1,
                }
            }
        }
        // Of those of the same second, process numbers do not say which was last.
        entries.sort_by_cached_key(|(written, entry)| {
            let text = |name: &str| entry.summary[name].as_str().unwrap_or_default().to_owned();
            (text("time"), *written, text("id"))
        });
        Ok((entries.into_iter().map(|(_, entry)| entry).collect(), unreadable))
    }

    /// Crashes that were not reported because of the rate: the user, their number, the time of the
    /// last one.
    pub fn skipped(&self) -> Vec<(String, u64, String)> {
        let of_user = |user: String| {
            let path = self.path.join(&user).join(SKIPPED);
            let text = door::named(&path).ok()?.read(LONGEST_SUMMARY).ok()?;
            let count = std::str::from_utf8(&text).ok()?.trim().parse().ok()?;
            let changed = fs::metadata(&path).ok()?.modified().ok()?;
            let seconds = changed.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            Some((user, count, time(seconds)))
        };
        users(&self.path).into_iter().filter_map(of_user).collect()
    }

    /// Removes what is too old, and then the oldest of the user with the most, until the rest fits.
    pub fn prune(&self, keep: &Keep) {
        let mut stored = self.stored();
        let now = SystemTime::now();
        stored.retain(|file| {
            let is_kept = now.duration_since(file.time).unwrap_or_default() <= keep.age;
            if !is_kept {
                let _ = fs::remove_file(&file.path);
            }
            is_kept
        });
        self.shrink(stored, keep.bytes);
    }

    /// Removes a tenth of what there is, to make room.
    pub fn make_room(&self) {
        let stored = self.stored();
        let bytes: u64 = stored.iter().map(|file| file.bytes).sum();
        self.shrink(stored, bytes / 10 * 9);
    }

    fn shrink(&self, mut stored: Vec<Stored>, most: u64) {
        // The oldest last.
        stored.sort_by_key(|file| std::cmp::Reverse(file.time));
        let mut total: u64 = stored.iter().map(|file| file.bytes).sum();
        let mut by_user: HashMap<String, u64> = HashMap::new();
        for file in &stored {
            *by_user.entry(file.user.clone()).or_default() += file.bytes;
        }
        while total > most {
            let Some(user) = by_user
                .iter()
                .max_by_key(|(_, bytes)| **bytes)
                .map(|(user, _)| user.clone())
            else {
                break;
            };
            let Some(index) = stored.iter().rposition(|file| file.user == user) else {
                by_user.remove(&user);
                continue;
            };
            let file = stored.remove(index);
            let _ = fs::remove_file(&file.path);
            total -= file.bytes;
            if let Some(bytes) = by_user.get_mut(&user) {
                *bytes -= file.bytes;
            }
        }
    }

    /// Reports and cores of all users, and what collectors that were killed have left.
    fn stored(&self) -> Vec<Stored> {
        let of_user = |user: String| files(&self.path.join(&user), &user);
        let mut stored: Vec<Stored> = users(&self.path).into_iter().flat_map(of_user).collect();
        stored.retain(|file| is(&file.path, REPORT) || is(&file.path, CORE) || is(&file.path, "tmp"));
        stored
    }

    fn of_user(&self, user: Option<u32>) -> PathBuf {
        self.path
            .join(user.map_or("unknown".to_owned(), |user| user.to_string()))
    }

    fn own_file(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options.open(self.path.join(name))
    }

    fn skip(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(SKIPPED);
        let before = fs::metadata(&path).ok().and_then(|_| {
            let text = door::named(&path).ok()?.read(LONGEST_SUMMARY).ok()?;
            std::str::from_utf8(&text).ok()?.trim().parse::<u64>().ok()
        });
        writeln!(private(&path)?, "{}", before.unwrap_or(0).saturating_add(1))
    }
}

impl Entry {
    /// A report outside of a folder of them.
    ///
    /// # Errors
    /// If it can't be read, or is not a report.
    pub fn open(path: &Path) -> io::Result<Entry> {
        let summary = summary(path)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        match summary["id"].is_string() {
            true => Ok(Entry {
                summary,
                path: path.to_owned(),
            }),
            false => Err(io::Error::other("not a crash report")),
        }
    }

    /// Everything about the crash.
    ///
    /// # Errors
    /// If it can't be read, or is not a report.
    pub fn details(&self) -> io::Result<Value> {
        let text = door::named(&self.path)?.read(LONGEST_REPORT)?;
        let second = text.splitn(2, |&byte| byte == b'\n').nth(1).unwrap_or_default();
        serde_json::from_slice(second).map_err(io::Error::other)
    }

    /// The crash's core, if it was kept.
    pub fn core(&self) -> Option<PathBuf> {
        Some(self.path.with_extension(CORE)).filter(|path| path.exists())
    }

    /// Its ID.
    pub fn id(&self) -> &str {
        self.summary["id"].as_str().unwrap_or_default()
    }

    /// Removes the report and the core.
    ///
    /// # Errors
    /// Those of removing.
    pub fn remove(&self) -> io::Result<()> {
        if let Some(core) = self.core() {
            fs::remove_file(core)?;
        }
        fs::remove_file(&self.path)
    }
}

/// The first line of a report; `None` if there is nothing yet.
fn summary(path: &Path) -> io::Result<Option<Value>> {
    let mut line = String::new();
    let reader = door::named(path)?.reader();
    BufReader::new(reader.take(LONGEST_SUMMARY)).read_line(&mut line)?;
    match line.is_empty() {
        true => Ok(None),
        false => serde_json::from_str(&line).map(Some).map_err(io::Error::other),
    }
}

/// The folders of users.
fn users(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| name == "unknown" || name.parse::<u32>().is_ok())
        .collect()
}

fn files(folder: &Path, user: &str) -> Vec<Stored> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let stored = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(Stored {
            path: entry.path(),
            user: user.to_owned(),
            bytes: metadata.blocks() * 512,
            time: metadata.modified().ok()?,
        })
    });
    stored.collect()
}

fn is(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// A file that only we read and write, empty.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).read(true).write(true).mode(0o600);
    let file = options.open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Gives one more user these rights (`acl(5)`; the value's layout is that of
/// `linux/posix_acl_xattr.h`).
fn set_access(path: &Path, user: u32, rights: u16) {
    const VERSION: u32 = 2;
    const NOBODY: u32 = u32::MAX;
    let (owner, one, group, mask, others) = (0x01, 0x02, 0x04, 0x10, 0x20);
    let entries: [(u16, u16, u32); 5] = [
        (owner, rights | 0o2, NOBODY),
        (one, rights, user),
        (group, 0, NOBODY),
        (mask, rights, NOBODY),
        (others, 0, NOBODY),
    ];
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(rights.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    let _ = rustix::fs::setxattr(path, "system.posix_acl_access", &value, XattrFlags::empty());
}

/// A time in seconds since the epoch, as `2026-01-31T23:59:59Z`.
pub(super) fn time(seconds: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn compact_time(seconds: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(seconds);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

fn parts(seconds: u64) -> [u64; 6] {
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // The calendar repeats after 400 years.
    const CYCLE: u64 = 146_097;
    let mut year = 1970 + days / CYCLE * 400;
    days %= CYCLE;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [
        31,
        28 + u64::from(is_leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 1;
    for len in months {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    [year, month, days + 1, of_day / 3600, of_day / 60 % 60, of_day % 60]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const KEEP: Keep = Keep {
        bytes: 1 << 30,
        age: Duration::from_secs(3600),
        rate: 3,
    };

    fn report(id: &str, text: &str) -> Report {
        Report {
            summary: json!({"id": id, "time": time(0)}),
            details: json!({"id": id, "text": text}),
        }
    }

    #[test]
    fn times_are_dates() {
        // As `date -u -d @SECONDS` prints them.
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(time(1_795_219_199), "2026-11-20T23:59:59Z");
        assert_eq!(time(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(compact_time(951_827_696), "20000229-123456");
    }

    #[test]
    fn reports_are_listed_and_limited_by_user() {
        let scratch = backtrail_testkit::scratch();
        let folder = Folder::at(&scratch.path().join("crashes"));
        let mut ids = Vec::new();
        for user in [Some(1), Some(1), Some(1), Some(2)] {
            let id = folder.admit(user, 77, 0, &KEEP).unwrap().expect("within the rate");
            folder.save(&id, user, &report(&id, "begun")).unwrap();
            folder.save(&id, user, &report(&id, "done")).unwrap();
            ids.push(id);
        }
        assert_eq!(ids[0], "19700101-000000-77");
        assert_eq!(ids[1], "19700101-000000-77-2");
        assert_eq!(folder.admit(Some(1), 78, 0, &KEEP).unwrap(), None);
        assert_eq!(folder.admit(Some(1), 78, 0, &KEEP).unwrap(), None);
        let skipped = folder.skipped();
        assert_eq!((skipped.len(), &*skipped[0].0, skipped[0].1), (1, "1", 2));
        let (entries, unreadable) = folder.list().unwrap();
        assert_eq!((entries.len(), unreadable), (4, 0));
        assert!(entries.iter().all(|entry| entry.details().unwrap()["text"] == "done"));
        entries[0].remove().unwrap();
        assert_eq!(folder.list().unwrap().0.len(), 3);
    }

    /// Process numbers begin again at small ones.
    #[test]
    fn crashes_of_one_second_are_listed_in_their_order() {
        let scratch = backtrail_testkit::scratch();
        let folder = Folder::at(scratch.path());
        let (begin, mut ids) = (SystemTime::now(), Vec::new());
        for (at, pid) in [32_700, 311, 9999, 10_001].into_iter().enumerate() {
            let id = folder
                .admit(Some(1), pid, 0, &Keep { rate: 9, ..KEEP })
                .unwrap()
                .expect("within the rate");
            folder.save(&id, Some(1), &report(&id, "")).unwrap();
            let (entries, _) = folder.list().unwrap();
            let entry = entries.iter().find(|entry| entry.id() == id).expect("it was saved");
            let written = begin + Duration::from_millis(at as u64);
            let file = fs::File::options().append(true).open(&entry.path).unwrap();
            file.set_modified(written).unwrap();
            ids.push(id);
        }
        let listed: Vec<String> = folder
            .list()
            .unwrap()
            .0
            .iter()
            .map(|entry| entry.id().to_owned())
            .collect();
        assert_eq!(listed, ids);
    }

    #[test]
    fn the_user_with_the_most_loses_the_oldest() {
        let scratch = backtrail_testkit::scratch();
        let folder = Folder::at(scratch.path());
        let keep = Keep { rate: 100, ..KEEP };
        for (user, count) in [(1, 1), (2, 5)] {
            for _ in 0..count {
                let id = folder.admit(Some(user), 7, 0, &keep).unwrap().expect("within the rate");
                folder.save(&id, Some(user), &report(&id, &"x".repeat(40_000))).unwrap();
            }
        }
        folder.prune(&Keep { bytes: 100_000, ..keep });
        let users: Vec<String> = folder
            .list()
            .unwrap()
            .0
            .iter()
            .map(|entry| {
                entry
                    .path
                    .parent()
                    .unwrap()
                    .file_name()
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        assert_eq!(users, ["1", "2"]);
        folder.prune(&Keep {
            age: Duration::ZERO,
            ..keep
        });
        assert!(folder.list().unwrap().0.is_empty());
    }

    #[test]
    fn few_work_at_once() {
        let scratch = backtrail_testkit::scratch();
        let folder = Folder::at(scratch.path());
        let now = Instant::now();
        let first = folder.slot(2, now).unwrap();
        let second = folder.slot(2, now).unwrap();
        assert!(first.is_some() && second.is_some());
        assert!(folder.slot(2, now).unwrap().is_none());
        drop(first);
        assert!(folder.slot(2, now).unwrap().is_some());
    }
}
