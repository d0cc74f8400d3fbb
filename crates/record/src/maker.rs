//! Unwind tables of large files, made by a thread of their own, so that samples need not wait.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use backtrail_cfi::cache::FileIdentity;
use backtrail_cfi::tables::{self, Table, Tables};
use backtrail_elf::Image;
use backtrail_elf::budget::Budget;
use backtrail_elf::door::{self, RegularFile};
use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// Each has a file open.
const MOST_WAITING: usize = 64;

/// Makes tables, and keeps them in the cache.
#[derive(Debug)]
pub(crate) struct Maker {
    tables: Tables,
    /// `None` if there can be no thread.
    worker: OnceCell<Option<Worker>>,
    /// Tables that were not taken yet.
    waiting: Cell<usize>,
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
    file: RegularFile,
    identity: FileIdentity,
}

/// The table of a module.
#[derive(Debug)]
pub(crate) struct Made {
    /// The module's number.
    pub(crate) number: u32,
    /// `None` if the file can't be read again.
    pub(crate) table: Option<Result<Table, tables::Error>>,
}

impl Maker {
    pub(crate) fn new(tables: Tables) -> Self {
        Maker {
            tables,
            worker: OnceCell::new(),
            waiting: Cell::new(0),
        }
    }

    /// Begins to make the table of a module's file, if that can be opened and is the one meant, and
    /// not too many wait.
    pub(crate) fn begin(&self, number: u32, path: &Path, identity: &FileIdentity) -> bool {
        if self.waiting.get() == MOST_WAITING {
            return false;
        }
        let Ok(file) = door::open(path) else { return false };
        if FileIdentity::of(file.metadata()).as_ref() != Some(identity) {
            return false;
        }
        let worker = self.worker.get_or_init(|| Worker::start(self.tables.clone()));
        let job = Job {
            number,
            file,
            identity: identity.clone(),
        };
        let is_begun = worker.as_ref().is_some_and(|worker| worker.jobs.send(job).is_ok());
        self.waiting.set(self.waiting.get() + usize::from(is_begun));
        is_begun
    }

    /// The tables that are made by now; with `all`, also those that still are being made.
    pub(crate) fn take(&mut self, all: bool) -> Vec<Made> {
        let Some(Some(worker)) = self.worker.get() else {
            return Vec::new();
        };
        let next = || match all {
            true => worker.made.recv().ok(),
            false => worker.made.try_recv().ok(),
        };
        let mut taken = Vec::new();
        while taken.len() < self.waiting.get()
            && let Some(made) = next()
        {
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
            // The recorder itself has a higher one.
            let _ = setpriority_process(Some(gettid()), 0);
            for job in to_do {
                let number = job.number;
                let table = make(&tables, job);
                if done.send(Made { number, table }).is_err() {
                    break;
                }
            }
        };
        let started = thread::Builder::new().name("backtrail-tables".to_owned()).spawn(work);
        started.ok().map(|_| Worker { jobs, made })
    }
}

fn make(tables: &Tables, job: Job) -> Option<Result<Table, tables::Error>> {
    let file = job.file.contents(&Budget::new()).ok()?;
    let image = Image::of(&file).ok()?;
    Some(tables.load_file(&image, Some(&job.identity)))
}
