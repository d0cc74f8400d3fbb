//! What the kernel says of a process or thread in its `stat` (proc(5)).

use std::path::Path;
use std::time::Duration;

/// A process or thread, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// Its state's letter.
    pub state: char,
    /// The process that waits for it.
    pub parent: u32,
    /// User and system time.
    pub cpu: Duration,
    /// Bytes of resident memory.
    pub resident: u64,
}

impl Stat {
    /// Reads the file; `None` if the process or thread does not exist.
    pub fn read(path: &Path) -> Option<Stat> {
        // A name may contain any bytes.
        let stat = String::from_utf8_lossy(&std::fs::read(path).ok()?).into_owned();
        // The name, in brackets, may contain spaces and brackets itself.
        let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let ticks = number(11)? + number(12)?;
        let per_second = rustix::param::clock_ticks_per_second();
        Some(Stat {
            state: fields.first()?.chars().next()?,
            parent: number(1)?.try_into().ok()?,
            cpu: Duration::from_secs_f64(ticks as f64 / per_second as f64),
            resident: number(21)? * rustix::param::page_size() as u64,
        })
    }

    /// Whether it has ended, and only its status is left.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}
