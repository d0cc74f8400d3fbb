//! How a recording went.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use backtrail_cfi::announced::AnnouncedAt;
use backtrail_elf::HeldFile;
use backtrail_process::perf::Trigger;
use backtrail_recording::Stop;

use crate::calls::CallCounts;
use crate::error::Incomplete;

/// A file whose unwind table could not be made, or only partly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleProblem {
    /// The file.
    pub path: String,
    /// What is wrong with the file, and where.
    pub reason: String,
    /// Whether nothing of the file could be used, so that its functions may have no names either.
    pub is_missing: bool,
    /// Samples whose stacks reach into it.
    pub samples: u64,
    /// Those whose stacks are not complete, for which the file may be the reason.
    pub cut: u64,
}

/// What samples are taken at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occasion {
    /// Intervals of CPU time.
    #[default]
    Clock,
    /// Calls of functions.
    Call,
    /// Threads that leave the CPU.
    Wait,
    /// Events.
    Event,
}

impl From<&Trigger> for Occasion {
    fn from(trigger: &Trigger) -> Occasion {
        match trigger {
            Trigger::Clock(_) => Occasion::Clock,
            Trigger::Entries(_) | Trigger::Calls(..) => Occasion::Call,
            Trigger::Waits(_) => Occasion::Wait,
            Trigger::Counted(_) => Occasion::Event,
        }
    }
}

/// What happens while a recording is made.
#[derive(Debug)]
#[non_exhaustive]
pub enum Progress<'p> {
    /// One of several recordings is complete.
    Written {
        /// Its directory.
        recording: &'p Path,
        /// What its names come from besides files with paths.
        names: NameSources,
    },
    /// The recording is over, but its command is not, and is waited for.
    Waiting,
}

/// What names come from besides files with paths. A reader needs it while the recorder runs.
#[derive(Clone, Debug, Default)]
pub struct NameSources {
    /// Files that no path leads to, open for their names: those of containers, and deleted ones.
    pub held: Vec<HeldFile>,
    /// Functions that processes made at run time, and announced to debuggers or published.
    pub announced: Vec<AnnouncedAt>,
}

/// How a recording went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Samples in the trace.
    pub samples: u64,
    /// Samples that the kernel could not deliver.
    pub lost: u64,
    /// How often walks ended for each reason, by [`Stop`]'s number.
    pub stops: [u64; Stop::ALL.len()],
    /// Stacks with outer frames that were read apart from the sample, and proved to be those of its
    /// moment.
    pub read_apart: u64,
    /// Stacks that were walked in the kernel, not from copies.
    pub walked_in_kernel: u64,
    /// Rows, and bytes, of the tables that the kernel had for that.
    pub kernel_rows: u64,
    /// See [`Outcome::kernel_rows`].
    pub kernel_table_bytes: u64,
    /// Whether stacks were to be walked in the kernel, and could not be.
    pub no_kernel_walks: bool,
    /// Waits among the samples, and those whose waker is known.
    pub waits: u64,
    /// See [`Outcome::waits`].
    pub wakers: u64,
    /// Whether waits were recorded without what ended them, which the rights do not allow.
    pub no_wakers: bool,
    /// Whether waits were recorded without the stacks of the threads that waited.
    pub no_places: bool,
    /// What samples were taken at.
    pub occasion: Occasion,
    /// Whether a file whose functions' calls were to be sampled was replaced meanwhile.
    pub is_replaced: bool,
    /// What became of the calls that are not recorded, if calls were followed.
    pub calls: Option<CallCounts>,
    /// Frames of all samples.
    pub frames: u64,
    /// Bytes of the trace, or of all traces together.
    pub trace_bytes: u64,
    /// Recordings that were written, if there are several, and old ones that were deleted.
    pub recordings: u64,
    /// See [`Outcome::recordings`].
    pub forgotten: u64,
    /// Samples that were not taken, because walks in the kernel took longer than the timer's
    /// period.
    pub missed: u64,
    /// How often the kernel paused sampling because it took too much time.
    pub throttled: u64,
    /// Whether time in the kernel was sampled.
    pub kernel: bool,
    /// CPU time of the recorder, including the conversion of tables; without the sampled program's.
    pub cpu_time: Duration,
    /// Files without a complete table, those of most samples first. Stacks that reach into them may
    /// end there.
    pub problems: Vec<ModuleProblem>,
    /// How many more there were.
    pub further_problems: u64,
    /// What names come from besides files with paths.
    pub names: NameSources,
    /// How many more files there were that no path leads to, beyond the limit of open files.
    pub not_held: u64,
    /// Whether the command runs with the privileges of its file's owner, which the user cannot
    /// sample.
    pub set_id: bool,
    /// What ended the recording early, if anything did.
    pub incomplete: Option<Incomplete>,
    /// The command's exit status as a shell reports it (128 + number for a signal); 0 if no command
    /// was started.
    pub exit_status: i32,
}

/// Something about a recording that its user should know, and what can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// There are no samples.
    NoSamples,
    /// There are no calls.
    NoCalls,
    /// There are no calls, and the file with the functions is another one now.
    NoCallsOfReplaced,
    /// No call took as long as was asked for, of this many.
    NoLongCalls(u64),
    /// No thread was blocked.
    NoWaits,
    /// There are no samples, because the events did not occur, or not often enough.
    NoEvents,
    /// There are no samples: the kernel does not let users sample a program that runs with other
    /// privileges.
    NoSamplesOfSetId,
    /// There are no samples, and time in the kernel, where short programs spend most of theirs, may
    /// not be sampled.
    NoSamplesOfKernel,
    /// Who wakes threads is not known.
    NoWakers,
    /// Where threads wait is not known either.
    NoPlaces,
    /// Stacks were copied, because the kernel does not let us walk them.
    NoKernelWalks,
    /// This many files of containers, or deleted ones, could not be kept open for their names.
    NotHeld(u64),
    /// This many percent of the samples were lost, which were taken at this.
    Lost(u64, Occasion),
    /// This many percent of the stacks were cut where their copies end.
    Cut(u64),
    /// This many percent of the stacks have outer frames that were read apart from the sample.
    ReadApart(u64),
}

impl Warning {
    /// What can be done.
    pub fn help(self) -> Option<&'static str> {
        match self {
            Warning::NoCalls => Some("the function was not called; inlined calls are not recorded"),
            Warning::NoCallsOfReplaced => Some("record again once the file no longer changes"),
            Warning::NoLongCalls(_) => Some("give a shorter --min-duration"),
            Warning::NoSamples => Some("sample more often with -F, or record something that takes longer"),
            Warning::NoSamplesOfSetId => Some("record it as root"),
            Warning::NoSamplesOfKernel => {
                Some("to sample time in the kernel, run `sysctl kernel.perf_event_paranoid=1` as root")
            }
            Warning::NotHeld(_) => Some("raise the limit of open files with ulimit -n"),
            Warning::Lost(_, Occasion::Clock) => Some(
                "sample less often with -F, copy less stack with --stack-copy, write less as root with --walk kernel, \
                 or let the recorder raise its priority (as root, or with ulimit -e)",
            ),
            Warning::Lost(_, Occasion::Event) => Some(
                "sample less often with --count, copy less stack with --stack-copy, or let the recorder raise its \
                 priority (as root, or with ulimit -e)",
            ),
            Warning::Lost(_, Occasion::Call) => Some(
                "copy less stack with --stack-copy, write less as root with --walk kernel, or let the recorder raise \
                 its priority (as root, or with ulimit -e)",
            ),
            Warning::Lost(_, Occasion::Wait) => Some(
                "copy less stack with --stack-copy, record fewer processes, or let the recorder raise its priority \
                 (as root, or with ulimit -e)",
            ),
            Warning::Cut(_) => Some(
                "copies of short programs, and of stacks deeper than 60 KiB that change fast, are cut; as root, deep stacks \
                 are walked in the kernel where files have tables",
            ),
            Warning::NoEvents => Some("take a sample more often with --count, or record something that takes longer"),
            Warning::NoWaits | Warning::ReadApart(_) => None,
            Warning::NoPlaces => Some(
                "run this command as root or with CAP_PERFMON, or run `sysctl kernel.perf_event_paranoid=1` as root",
            ),
            Warning::NoWakers => Some("run it as root, with tracefs mounted at /sys/kernel/tracing"),
            Warning::NoKernelWalks => Some(
                "it needs Linux 5.15 on x86-64 or AArch64, root or CAP_BPF and CAP_PERFMON, and the initial PID namespace",
            ),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::NoCalls => write!(f, "no calls"),
            Warning::NoCallsOfReplaced => write!(f, "no calls: the file with the function was replaced meanwhile"),
            Warning::NoLongCalls(calls) => write!(f, "none of {calls} calls took as long as --min-duration"),
            Warning::NoWaits => write!(f, "no waits: no thread was blocked"),
            Warning::NoEvents => write!(
                f,
                "no samples: the events did not occur, or less often than samples were to be taken"
            ),
            Warning::NoSamples => write!(
                f,
                "no samples: the programs used less CPU time than the interval between two samples"
            ),
            Warning::NoSamplesOfSetId => {
                write!(
                    f,
                    "no samples: the command runs with its owner's rights (set-user-ID or set-group-ID), or you may \
                     not read it"
                )
            }
            Warning::NoSamplesOfKernel => write!(
                f,
                "no samples: the programs used less CPU time of their own than the interval between two samples, and \
                 time in the kernel is not sampled"
            ),
            Warning::NoPlaces => write!(
                f,
                "how long threads waited is recorded, but this user may not see where, nor what woke them"
            ),
            Warning::NoWakers => write!(f, "this user may not see what woke the threads"),
            Warning::NoKernelWalks => write!(f, "stacks were copied: this kernel does not let us walk them"),
            Warning::NotHeld(files) => write!(
                f,
                "no names of {files} files of containers, or deleted ones: too many to keep them open"
            ),
            Warning::Lost(percent, _) => write!(
                f,
                "{percent} % of the samples were lost: the recorder could not keep up"
            ),
            Warning::Cut(percent) => write!(
                f,
                "{percent} % of the stacks are cut: their outer frames are beyond the part of the stack that the kernel copied"
            ),
            Warning::ReadApart(percent) => write!(
                f,
                "{percent} % of the stacks have outer frames that were read before the sample and proved unchanged"
            ),
        }
    }
}

impl Outcome {
    /// Counts a sample with this many frames.
    pub(crate) fn count(&mut self, stop: Stop, read_apart: bool, frames: usize) {
        self.samples += 1;
        self.stops[stop as usize] += 1;
        self.read_apart += u64::from(read_apart);
        self.frames += frames as u64;
    }

    /// What the user should know.
    pub fn warnings(&self) -> Vec<Warning> {
        const MANY_LOST: u64 = 5;
        const MANY_CUT: u64 = 20;
        const MOST: u64 = 50;
        let percent = |part: u64, of: u64| (part * 100).checked_div(of).unwrap_or(0);
        let lost = percent(self.lost, self.samples + self.lost);
        let cut = percent(self.stops[Stop::BeyondCopy as usize], self.samples);
        let apart = percent(self.read_apart, self.samples);
        let warnings = [
            (self.samples == 0 && self.lost == 0).then(|| self.reason_of_no_samples()),
            self.no_places.then_some(Warning::NoPlaces),
            (self.no_wakers && !self.no_places).then_some(Warning::NoWakers),
            self.no_kernel_walks.then_some(Warning::NoKernelWalks),
            (self.not_held > 0).then_some(Warning::NotHeld(self.not_held)),
            (lost >= MANY_LOST).then_some(Warning::Lost(lost, self.occasion)),
            (cut >= MANY_CUT).then_some(Warning::Cut(cut)),
            (apart > MOST).then_some(Warning::ReadApart(apart)),
        ];
        warnings.into_iter().flatten().collect()
    }

    fn reason_of_no_samples(&self) -> Warning {
        let short_calls = self.calls.map_or(0, |calls| calls.short);
        match self.occasion {
            _ if self.set_id => Warning::NoSamplesOfSetId,
            Occasion::Call if short_calls > 0 => Warning::NoLongCalls(short_calls),
            Occasion::Call if self.is_replaced => Warning::NoCallsOfReplaced,
            Occasion::Call => Warning::NoCalls,
            Occasion::Wait => Warning::NoWaits,
            Occasion::Event => Warning::NoEvents,
            Occasion::Clock if self.kernel => Warning::NoSamples,
            Occasion::Clock => Warning::NoSamplesOfKernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_for_what_is_unusual() {
        let good = Outcome {
            samples: 1000,
            lost: 40,
            read_apart: 500,
            kernel: true,
            ..Outcome::default()
        };
        assert_eq!(good.warnings(), []);
        let mut bad = Outcome {
            lost: 9000,
            read_apart: 510,
            ..good.clone()
        };
        bad.stops[Stop::BeyondCopy as usize] = 333;
        assert_eq!(
            bad.warnings(),
            [
                Warning::Lost(90, Occasion::Clock),
                Warning::Cut(33),
                Warning::ReadApart(51)
            ]
        );
        // Waits are not taken by a timer, and their stacks are copied always.
        let waits = Warning::Lost(90, Occasion::Wait).help().unwrap_or_default();
        assert!(!waits.contains("-F") && !waits.contains("--walk"), "{waits}");
        let nothing = |set_id, kernel| {
            Outcome {
                set_id,
                kernel,
                ..Outcome::default()
            }
            .warnings()
        };
        assert_eq!(nothing(false, true), [Warning::NoSamples]);
        assert_eq!(nothing(false, false), [Warning::NoSamplesOfKernel]);
        assert_eq!(nothing(true, false), [Warning::NoSamplesOfSetId]);
        let no_calls = |is_replaced| Outcome {
            occasion: Occasion::Call,
            is_replaced,
            ..Outcome::default()
        };
        assert_eq!(no_calls(false).warnings(), [Warning::NoCalls]);
        assert_eq!(no_calls(true).warnings(), [Warning::NoCallsOfReplaced]);
    }
}
