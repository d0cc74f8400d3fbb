//! The kernel's tables of sections, made by another thread: the kernel lets whoever sets one wait
//! until no program uses the older one any more, some ten milliseconds, and a ring holds a quarter
//! of a second of samples.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use backtrail_arch::Arch;
use backtrail_bpf::{self as bpf, Rule};
use backtrail_process::perf::{KernelTable, KernelTables};
use backtrail_sframe::Section;

use crate::aside;

/// The tables that the kernel has of a section.
#[derive(Debug, Default)]
pub(crate) struct SectionTables {
    /// The section's number.
    pub(crate) section: u64,
    /// The parts of its addresses, and the numbers of their tables.
    pub(crate) parts: Vec<(Range<u64>, u32)>,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Makes tables, whose numbers count from 0.
#[derive(Debug)]
pub(crate) struct TableMaker {
    jobs: Sender<Job>,
    made: Receiver<SectionTables>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Job {
    section: u64,
    bytes: Vec<u8>,
    address: u64,
    others: Vec<(Range<u64>, Rule)>,
}

impl TableMaker {
    /// `None` if there can be no thread.
    pub(crate) fn start(arch: &'static Arch, tables: KernelTables) -> Option<TableMaker> {
        let (jobs, to_do) = channel::<Job>();
        let (done, made) = channel();
        let work = move || {
            let mut next = 0;
            while let Ok(job) = to_do.recv() {
                let jobs: Vec<Job> = [job].into_iter().chain(to_do.try_iter()).collect();
                for made in make(arch, &tables, &mut next, &jobs) {
                    if done.send(made).is_err() {
                        return;
                    }
                }
            }
        };
        Some(TableMaker {
            jobs,
            made,
            thread: aside::start("backtrail-rows", work).ok()?,
        })
    }

    /// Begins to make the tables of a section, to which the caller has given a number, and of code
    /// for which it has no rows.
    pub(crate) fn begin(&self, number: u64, section: &Section<'_>, bytes: &[u8], others: &[(Range<u64>, Rule)]) {
        let job = Job {
            section: number,
            bytes: bytes.to_vec(),
            address: section.address(),
            others: others.to_vec(),
        };
        // Without the thread, stacks are copied.
        let _ = self.jobs.send(job);
    }

    /// Those that were made by now.
    pub(crate) fn take(&self) -> impl Iterator<Item = SectionTables> {
        self.made.try_iter()
    }

    /// Waits until no more are made.
    pub(crate) fn end(self) {
        drop((self.jobs, self.made));
        let _ = self.thread.join();
    }
}

/// Makes the tables of sections, and sets them all at once.
fn make(arch: &Arch, tables: &KernelTables, next: &mut u32, jobs: &[Job]) -> Vec<SectionTables> {
    let first = *next;
    let mut maps = Vec::new();
    let mut sections = Vec::new();
    for job in jobs {
        let mut made = SectionTables {
            section: job.section,
            ..SectionTables::default()
        };
        if let Ok(section) = Section::parse(&job.bytes, job.address) {
            bpf::tables(arch, &section, &job.others, |table| {
                // Without memory for it, these stacks are copied.
                if let Ok(map) = KernelTable::new(&table.pages, tables.page_bytes()) {
                    made.parts.push((table.addresses, *next));
                    made.rows += table.rows as u64;
                    made.bytes += table.pages.len() as u64;
                    maps.push(map);
                    *next += 1;
                }
            });
        }
        sections.push(made);
    }
    if tables.set_tables(first, &maps).is_err() {
        sections.iter_mut().for_each(|made| made.parts.clear());
    }
    sections
}
