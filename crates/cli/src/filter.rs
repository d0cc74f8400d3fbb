//! Options that choose samples of a recording.

use std::cmp::Reverse;
use std::ops::Range;

use backtrail_profile::{Filter, Report, Thread};
use clap::Args;

/// Which samples count.
#[derive(Args)]
pub(crate) struct FilterArguments {
    /// Count only samples from FROM to TO, in seconds since the first sample: '1.5..2', '3..' or
    /// '..0.25'.
    #[arg(long, value_name = "FROM..TO", value_parser = times)]
    time: Option<Range<u64>>,
    /// Count only the process with this name or number.
    #[arg(long, value_name = "NAME|PID")]
    process: Option<String>,
    /// Count only threads with this name, or the one with this number.
    #[arg(long, value_name = "NAME|TID")]
    thread: Option<String>,
    /// Count only samples on this CPU.
    #[arg(long, value_name = "CPU")]
    cpu: Option<u32>,
    /// Count only stacks through FUNCTION; its parameters and namespaces may be left out.
    #[arg(long, value_name = "FUNCTION")]
    function: Option<String>,
}

impl FilterArguments {
    /// The samples that count.
    pub(crate) fn filter(&self) -> Filter {
        let mut filter = Filter::default();
        filter.time.clone_from(&self.time);
        filter.process.clone_from(&self.process);
        filter.thread.clone_from(&self.thread);
        filter.cpu = self.cpu;
        filter.function.clone_from(&self.function);
        filter
    }

    /// What the filter leaves, for a reader of the result; `None` if that is everything.
    pub(crate) fn description(&self) -> Option<String> {
        let seconds = |time: u64| time as f64 / 1e9;
        let time = self.time.as_ref().map(|time| match time.end {
            u64::MAX => format!("from {} s on", seconds(time.start)),
            end => format!("from {} s to {} s", seconds(time.start), seconds(end)),
        });
        let parts = [
            time,
            self.process.as_ref().map(|process| format!("of process {process}")),
            self.thread.as_ref().map(|thread| format!("of thread {thread}")),
            self.cpu.map(|cpu| format!("on CPU {cpu}")),
            self.function.as_ref().map(|function| format!("through {function}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("only samples {}", parts.join(", ")))
    }
}

/// The most names that are listed.
const MOST_NAMED: usize = 8;

impl FilterArguments {
    /// What a recording has of that which the filter names, if it has no such samples.
    pub(crate) fn what_there_is(&self, report: &Report) -> Option<String> {
        let list = |names: Vec<&str>| match names.len() {
            0..=MOST_NAMED => names.join(", "),
            many => format!("{} and {} more", names[..MOST_NAMED].join(", "), many - MOST_NAMED),
        };
        let seconds = report.summary().times.map(|(first, last)| (last - first) as f64 / 1e9);
        if let (Some(time), Some(seconds)) = (&self.time, seconds)
            && time.start as f64 / 1e9 > seconds
        {
            return Some(format!("the samples are from 0 s to {seconds:.3} s"));
        }
        if let Some(function) = &self.function {
            return unlike(report, function);
        }
        let mut threads: Vec<_> = report.threads().iter().collect();
        threads.sort_by_key(|(_, samples)| Reverse(*samples));
        let names = |name: fn(&Thread) -> &str| {
            let mut names: Vec<&str> = Vec::new();
            for (thread, _) in &threads {
                if !names.contains(&name(thread)) {
                    names.push(name(thread));
                }
            }
            names
        };
        if self.process.is_some() {
            return Some(format!("the processes are {}", list(names(|thread| &thread.process))));
        }
        self.thread.as_ref()?;
        Some(format!("the threads are {}", list(names(|thread| &thread.name))))
    }
}

/// Names of functions like one that there is not.
pub(crate) fn unlike(report: &Report, function: &str) -> Option<String> {
    let alike = report.functions_like(function, MOST_NAMED);
    (!alike.is_empty()).then(|| format!("functions with such a name: {}", alike.join(", ")))
}

fn times(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text
        .split_once("..")
        .ok_or("not two times in seconds with '..' in between")?;
    let nanoseconds = |text: &str, default: u64| match text {
        "" => Ok(default),
        text => match text.parse::<f64>() {
            Ok(seconds) if seconds >= 0.0 => Ok((seconds * 1e9) as u64),
            _ => Err(format!("'{text}' is not a time in seconds")),
        },
    };
    let times = nanoseconds(from, 0)?..nanoseconds(to, u64::MAX)?;
    match times.is_empty() {
        true => Err("ends before it begins".to_owned()),
        false => Ok(times),
    }
}
