//! A folder of recordings, each named by the time at which it begins.

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::time::{ClockId, clock_gettime};

use crate::Keep;

/// What follows the time in a name.
const SUFFIX: &str = ".trace";
/// Recordings whose size may still change: the names of their addresses are being added.
const CHANGING: usize = 4;

/// The folder, which no other recorder uses as long as this exists.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Complete recordings, also of earlier recorders, oldest first.
    past: Vec<Past>,
    clock: Clock,
    _lock: OwnedFd,
}

/// The time of day, but for that it goes on where it is set back: recordings keep their order, and
/// old ones are forgotten in time.
#[derive(Debug)]
struct Clock {
    /// Milliseconds since the epoch, and when that was.
    last: Cell<(u64, Duration)>,
}

impl Clock {
    fn new(first: u64) -> Clock {
        Clock {
            last: Cell::new((first, running())),
        }
    }

    fn now(&self) -> u64 {
        let (last, at) = self.last.get();
        let running = running();
        let passed = u64::try_from(running.saturating_sub(at).as_millis()).unwrap_or(u64::MAX);
        let now = milliseconds(SystemTime::now()).max(last.saturating_add(passed));
        self.last.set((now, running));
        now
    }
}

/// The time since the machine has started, which nobody sets.
fn running() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A complete recording.
#[derive(Clone, Debug)]
struct Past {
    name: String,
    /// Milliseconds since the epoch.
    begin: u64,
    bytes: u64,
}

impl Folder {
    /// Makes the folder, or uses it with the recordings that are there. Whatever a killed recorder
    /// has left incomplete is removed.
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let lock = open(
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let mut past = Vec::new();
        for entry in fs::read_dir(path)? {
            let Ok(name) = entry?.file_name().into_string() else {
                continue;
            };
            match name.strip_prefix('.') {
                Some(hidden) if begin(hidden).is_some() => fs::remove_dir_all(path.join(name))?,
                _ => past.extend(begin(&name).map(|begin| Past {
                    bytes: bytes(&path.join(&name)),
                    name,
                    begin,
                })),
            }
        }
        past.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Folder {
            path: path.to_owned(),
            clock: Clock::new(past.last().map_or(0, |last| last.begin)),
            past,
            _lock: lock,
        })
    }

    /// The path of a recording that begins now.
    pub(crate) fn next(&self) -> PathBuf {
        let after_last = self.past.last().map_or(0, |last| last.begin + 1);
        let free = (self.clock.now().max(after_last)..).map(|time| self.path.join(name(time)));
        let mut free = free.filter(|path| !path.exists());
        free.next().unwrap_or_default()
    }

    /// A recording is complete.
    pub(crate) fn add(&mut self, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        self.past.extend(begin(name).map(|begin| Past {
            name: name.to_owned(),
            begin,
            bytes: bytes(path),
        }));
    }

    /// Deletes the oldest recordings until the rest, and `current` bytes of another one, are no
    /// more than is kept. Returns how many it deleted.
    pub(crate) fn forget(&mut self, keep: Keep, current: u64) -> u64 {
        let mut forgotten = 0;
        while self.is_too_much(keep, current) {
            let oldest = self.past.remove(0);
            // Gone at once for readers, then in peace.
            let hidden = self.path.join(format!(".{}", oldest.name));
            let renamed = fs::rename(self.path.join(&oldest.name), &hidden);
            // Somebody else may have deleted it.
            if renamed.is_ok() && fs::remove_dir_all(&hidden).is_ok() {
                forgotten += 1;
            }
        }
        forgotten
    }

    /// Looks again at the sizes that may have changed.
    pub(crate) fn measure(&mut self) {
        let settled = self.past.len().saturating_sub(CHANGING);
        for past in &mut self.past[settled..] {
            past.bytes = bytes(&self.path.join(&past.name));
        }
    }

    fn is_too_much(&self, keep: Keep, current: u64) -> bool {
        match keep {
            Keep::Time(time) => {
                let from = self
                    .clock
                    .now()
                    .saturating_sub(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
                // It ends where the next one begins.
                self.past.get(1).is_some_and(|next| next.begin <= from)
            }
            Keep::Bytes(most) => {
                let all: u64 = self.past.iter().map(|past| past.bytes).sum();
                !self.past.is_empty() && all.saturating_add(current) > most
            }
        }
    }
}

/// Bytes of the files in a directory.
fn bytes(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let lengths = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    lengths.sum()
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The name of a recording that begins at a time: `2026-01-31T23-59-59.999Z.trace`.
fn name(milliseconds: u64) -> String {
    let (days, of_day) = (milliseconds / 86_400_000, milliseconds % 86_400_000);
    let (year, month, day) = date(days);
    let (seconds, milliseconds) = (of_day / 1000, of_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}.{milliseconds:03}Z{SUFFIX}")
}

/// Year, month and day of a day since the epoch.
fn date(days: u64) -> (u64, u64, u64) {
    // Years that begin in March, in cycles of 400 years: a leap day is the last day of one.
    let days = days + 719_468;
    let (cycle, of_cycle) = (days / 146_097, days % 146_097);
    let year = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (cycle * 400 + year + u64::from(month <= 2), month, day)
}

/// The time in a recording's name, in milliseconds since the epoch; `None` for other names.
fn begin(given: &str) -> Option<u64> {
    let time = given.strip_suffix(SUFFIX)?.strip_suffix('Z')?;
    let mut numbers = time.split(['-', 'T', '.']).map(|part| part.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (year, month, day) = (next()?, next()?, next()?);
    let (hour, minute, second, milliseconds) = (next()?, next()?, next()?, next()?);
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let years = if month > 2 { year } else { year - 1 };
    let month_from_march = (month + 9) % 12;
    let days = 365 * years + years / 4 - years / 100 + years / 400 + (153 * month_from_march + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    let seconds = days
        .checked_mul(24)?
        .checked_add(hour)?
        .checked_mul(60)?
        .checked_add(minute)?;
    let seconds = seconds.checked_mul(60)?.checked_add(second)?;
    let time = seconds.checked_mul(1000)?.checked_add(milliseconds)?;
    // Anything that we would write otherwise is not ours.
    (name(time) == given).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_times() {
        // As `date -u -d @SECONDS +%Y-%m-%dT%H-%M-%S` prints them.
        for (seconds, expected) in [
            (0, "1970-01-01T00-00-00"),
            (951_782_399, "2000-02-28T23-59-59"),
            (951_782_400, "2000-02-29T00-00-00"),
            (951_868_800, "2000-03-01T00-00-00"),
            (1_735_689_599, "2024-12-31T23-59-59"),
            (4_107_542_400, "2100-03-01T00-00-00"),
            (253_402_300_799, "9999-12-31T23-59-59"),
        ] {
            let name = name(seconds * 1000 + 7);
            assert_eq!(name, format!("{expected}.007Z.trace"));
            assert_eq!(begin(&name), Some(seconds * 1000 + 7));
        }
        for days in 0..200_000 {
            assert_eq!(begin(&name(days * 86_400_000)), Some(days * 86_400_000));
        }
        for other in [
            "",
            ".trace",
            "Z.trace",
            "2026-02-30T00-00-00.000Z.trace",
            "2026-13-01T00-00-00.000Z.trace",
            "2026-01-01T24-00-00.000Z.trace",
            "2026-01-01T00-00-00Z.trace",
            "2026-01-01T00-00-00.000Z",
            "2026-01-01T00-00-00.000Z.trace.old",
            "+2026-01-01T00-00-00.000Z.trace",
            "18446744073709551615-01-01T00-00-00.000Z.trace",
            "2026-01-01T18446744073709551615-00-00.000Z.trace",
        ] {
            assert_eq!(begin(other), None, "{other}");
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A recording of this age, in seconds, with this many bytes.
    fn make(folder: &Path, age: u64, len: usize) -> String {
        let name = name(milliseconds(SystemTime::now()) - age * 1000);
        fs::create_dir(folder.join(&name)).unwrap();
        fs::write(folder.join(&name).join("metadata"), vec![0; len]).unwrap();
        name
    }

    #[test]
    fn only_recordings_are_forgotten_and_the_oldest_first() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        fs::create_dir(path.join("other.trace")).unwrap();
        let made: Vec<String> = [400, 300, 200, 100].map(|age| make(path, age, 1000)).to_vec();
        let left = format!(".{}", name(5));
        fs::create_dir(path.join(&left)).unwrap();
        let mut folder = Folder::open(path).unwrap();
        assert!(!names(path).contains(&left), "a killed recorder's");
        assert!(Folder::open(path).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
        assert_eq!(folder.forget(Keep::Time(Duration::from_secs(500)), 0), 0);
        // The first one has ended 300 seconds ago, the second one 200.
        assert_eq!(folder.forget(Keep::Time(Duration::from_secs(250)), 0), 1);
        assert!(!path.join(&made[0]).exists() && path.join(&made[1]).exists());
        assert_eq!(folder.forget(Keep::Bytes(3500), 400), 0);
        // The names of its addresses were added meanwhile.
        fs::write(path.join(&made[3]).join("symbols"), vec![0; 1000]).unwrap();
        folder.measure();
        assert_eq!(folder.forget(Keep::Bytes(3500), 400), 1);
        assert!(!path.join(&made[1]).exists() && path.join(&made[2]).exists());
        assert_eq!(folder.forget(Keep::Bytes(1), 0), 2);
        assert_eq!(names(path), ["notes.txt", "other.trace"]);
        drop(folder);
        assert!(Folder::open(path).is_ok());
    }

    #[test]
    fn recordings_keep_their_order_when_the_clock_is_set_back() {
        let scratch = tempfile::tempdir().unwrap();
        let future = name(milliseconds(SystemTime::now()) + 1_000_000);
        fs::create_dir(scratch.path().join(&future)).unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        let next = folder.next();
        assert!(next.file_name().and_then(|name| name.to_str()).unwrap() > future.as_str());
    }

    #[test]
    fn old_recordings_are_forgotten_in_time_when_the_clock_is_set_back() {
        let scratch = tempfile::tempdir().unwrap();
        let future = milliseconds(SystemTime::now()) + 1_000_000;
        for begin in [future, future + 5000] {
            fs::create_dir(scratch.path().join(name(begin))).unwrap();
        }
        let mut folder = Folder::open(scratch.path()).unwrap();
        let keep = Keep::Time(Duration::from_secs(60));
        assert_eq!(folder.forget(keep, 0), 0);
        // A minute and some seconds later.
        let (last, at) = folder.clock.last.get();
        folder
            .clock
            .last
            .set((last, at.saturating_sub(Duration::from_secs(66))));
        assert_eq!(folder.forget(keep, 0), 1);
        assert_eq!(names(scratch.path()), [name(future + 5000)]);
        let next = folder.next();
        let begin = begin(next.file_name().and_then(|name| name.to_str()).unwrap());
        assert!(begin.is_some_and(|begin| begin >= future + 71_000), "{begin:?}");
    }
}
