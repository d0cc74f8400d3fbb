//! Unwind tables that other threads make, so that samples need not wait: those of large files, and
//! those of other users' files, which take as long as their owners like.

use std::cell::{Cell, OnceCell};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use backtrail_cfi::cache::FileIdentity;
use backtrail_cfi::tables::{self, Table, Tables};
use backtrail_elf::budget::Budget;
use backtrail_elf::{FileBytes, Image};

use crate::aside;

/// Files that may wait in a lane: each is open.
const MOST_WAITING: usize = 64;
/// Bytes of call frame information that other users' files may keep in a lane while they wait,
/// unless a single file has more.
const MOST_KEPT: u64 = 32 << 20;
/// Lanes for other users, so that one who delays a table delays few others.
const LANES: u32 = 4;
/// How long the end of a recording waits for tables of other users' files. Those of our own are
/// waited for, because the next recording finds them in the cache.
const LONGEST_ENDING: Duration = Duration::from_secs(2);

/// Makes tables, and keeps them in the cache.
#[derive(Debug)]
pub(crate) struct Maker {
    tables: Tables,
    /// The first one is for files that are not foreign.
    lanes: Vec<Lane>,
}

/// Files whose tables are made one after the other.
#[derive(Debug, Default)]
struct Lane {
    /// `None` if there can be no thread.
    worker: OnceCell<Option<Worker>>,
    /// Tables that were not taken yet.
    waiting: Cell<usize>,
    /// Bytes of call frame information that are kept for them.
    kept: Cell<u64>,
}

/// The thread, which ends with the sender.
#[derive(Debug)]
struct Worker {
    jobs: Sender<Job>,
    made: Receiver<Made>,
}

#[derive(Debug)]
struct Job {
    number: u32,
    file: FileBytes,
    identity: Option<FileIdentity>,
    kept: u64,
}

/// The table of a module.
#[derive(Debug)]
pub(crate) struct Made {
    /// The module's number.
    pub(crate) number: u32,
    /// Whose file it is, if that is another user.
    pub(crate) foreign_owner: Option<u32>,
    /// `None` if there is nothing to make it from.
    pub(crate) table: Option<Result<Table, tables::Error>>,
    kept: u64,
}

impl Maker {
    pub(crate) fn new(tables: Tables) -> Self {
        Maker {
            tables,
            lanes: (0..=LANES).map(|_| Lane::default()).collect(),
        }
    }

    /// Whether this much of a file may be kept until its table is made.
    pub(crate) fn has_room(&self, file: &FileBytes, bytes: u64) -> bool {
        let kept = self.lane(file).kept.get();
        file.foreign_owner().is_none() || kept == 0 || kept.saturating_add(bytes) <= MOST_KEPT
    }

    /// Begins to make the table of a module's file, of which `kept` bytes are kept meanwhile;
    /// unless too many wait.
    pub(crate) fn begin(&self, number: u32, file: &FileBytes, identity: Option<&FileIdentity>, kept: u64) -> bool {
        let lane = self.lane(file);
        if lane.waiting.get() == MOST_WAITING {
            return false;
        }
        let Ok(file) = file.again(&Budget::new()) else {
            return false;
        };
        let job = Job {
            number,
            file,
            identity: identity.cloned(),
            kept,
        };
        let worker = lane.worker.get_or_init(|| Worker::start(self.tables.clone()));
        let is_begun = worker.as_ref().is_some_and(|worker| worker.jobs.send(job).is_ok());
        if is_begun {
            lane.waiting.set(lane.waiting.get() + 1);
            lane.kept.set(lane.kept.get().saturating_add(kept));
        }
        is_begun
    }

    fn lane(&self, file: &FileBytes) -> &Lane {
        let number = file.foreign_owner().map_or(0, |owner| 1 + owner % LANES);
        &self.lanes[number as usize]
    }

    /// The tables that are made by now.
    pub(crate) fn take(&mut self) -> Vec<Made> {
        let taken = self.lanes.iter_mut().flat_map(|lane| lane.take(Some(Duration::ZERO)));
        taken.collect()
    }

    /// Also those that still are being made, at the end.
    pub(crate) fn take_all(&mut self) -> Vec<Made> {
        let end = Instant::now() + LONGEST_ENDING;
        let mut taken = self.lanes[0].take(None);
        for lane in &mut self.lanes[1..] {
            taken.extend(lane.take(Some(end.saturating_duration_since(Instant::now()))));
        }
        taken
    }
}

impl Lane {
    /// The tables that are made in this time from now.
    fn take(&mut self, time: Option<Duration>) -> Vec<Made> {
        let Some(Some(worker)) = self.worker.get() else {
            return Vec::new();
        };
        let end = time.map(|time| Instant::now() + time);
        let next = || match end {
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                worker.made.recv_timeout(left).ok()
            }
            None => worker.made.recv().ok(),
        };
        let mut taken = Vec::new();
        while taken.len() < self.waiting.get()
            && let Some(made) = next()
        {
            self.kept.set(self.kept.get().saturating_sub(made.kept));
            taken.push(made);
        }
        self.waiting.set(self.waiting.get() - taken.len());
        taken
    }
}

impl Worker {
    fn start(tables: Tables) -> Option<Worker> {
        let (jobs, to_do) = channel::<Job>();
        let (done, made) = channel();
        let work = move || {
            for job in to_do {
                let made = Made {
                    number: job.number,
                    foreign_owner: job.file.foreign_owner(),
                    table: make(&tables, &job),
                    kept: job.kept,
                };
                if done.send(made).is_err() {
                    break;
                }
            }
        };
        let started = aside::start("backtrail-tables", work);
        started.ok().map(|_| Worker { jobs, made })
    }
}

fn make(tables: &Tables, job: &Job) -> Option<Result<Table, tables::Error>> {
    match Image::of(&job.file) {
        Ok(image) => tables.load_any(&image, job.identity.as_ref()),
        Err(error) => Some(Err(error.into())),
    }
}
