//! Which samples of a recording count.

use std::ops::Range;

use crate::function_name::matches_function;
use crate::symbolize::Location;
use crate::threads::Thread;

/// Which samples count. By default, all do.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Filter {
    /// Nanoseconds since the recording's first sample.
    pub time: Option<Range<u64>>,
    /// Only this process: its name or its number.
    pub process: Option<String>,
    /// Only this thread: its name or its number.
    pub thread: Option<String>,
    /// Only samples on this CPU.
    pub cpu: Option<u32>,
    /// Only stacks through this function; see [`matches_function`](crate::matches_function).
    pub function: Option<String>,
}

impl Filter {
    pub(crate) fn has_time(&self, since_begin: u64) -> bool {
        self.time.as_ref().is_none_or(|time| time.contains(&since_begin))
    }

    pub(crate) fn has_cpu(&self, cpu: u32) -> bool {
        self.cpu.is_none_or(|wanted| wanted == cpu)
    }

    pub(crate) fn is_everyone(&self) -> bool {
        self.process.is_none() && self.thread.is_none()
    }

    pub(crate) fn has_thread(&self, thread: &Thread) -> bool {
        let is = |wanted: &Option<String>, name: &str, number: u32| match wanted {
            Some(wanted) => wanted == name || wanted.parse() == Ok(number),
            None => true,
        };
        is(&self.process, &thread.process, thread.pid) && is(&self.thread, &thread.name, thread.tid)
    }

    pub(crate) fn has_function(&self, location: &Location) -> bool {
        let wanted = self.function.as_deref().unwrap_or_default();
        location
            .calls
            .iter()
            .any(|call| matches_function(&call.function, wanted))
    }
}
