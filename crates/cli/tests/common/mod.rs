//! What the tests of recordings share.

#[cfg(feature = "store")]
pub(crate) mod collector;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use backtrail_testkit::command::{self, Finished, Running};
use backtrail_testkit::recorder::{Backtrail, Summary, babeltrace2};
use backtrail_testkit::workload::Workload;
use backtrail_testkit::{self as testkit, TempDir, available, perf, scratch};

/// No recording of a test takes longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The share of stacks that must be complete.
pub(crate) const PROMISED: f64 = 0.995;

/// This many incomplete stacks are no share yet: each start of a program has one or two.
const FEW: u64 = 5;
/// The most stacks that a busy machine cuts.
const MOST_CUT: f64 = 0.4;

/// The command under test, and a directory to work in.
pub(crate) struct Setup {
    pub(crate) backtrail: Backtrail,
    pub(crate) folder: TempDir,
    _recording: Option<File>,
}

/// A recording, and how the recorder ended.
pub(crate) struct Recording<'a> {
    setup: &'a Setup,
    pub(crate) trace: PathBuf,
    pub(crate) finished: Finished,
}

/// Everything for a test that records, or nothing where this machine does not let anybody sample.
pub(crate) fn setup() -> Option<Setup> {
    sampling(testkit::beside_others)
}

/// The same for a test that no other recording may disturb.
pub(crate) fn undisturbed() -> Option<Setup> {
    sampling(testkit::alone)
}

fn sampling(lock: fn(&str) -> File) -> Option<Setup> {
    available(perf::sampling_permitted())?;
    Some(Setup {
        _recording: Some(lock("recording")),
        ..without_sampling()
    })
}

/// The same for tests in which no sampling takes place.
pub(crate) fn without_sampling() -> Setup {
    Setup {
        backtrail: Backtrail::new(env!("CARGO_BIN_EXE_backtrail")),
        folder: scratch(),
        _recording: None,
    }
}

impl Setup {
    /// A path in the test's own directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path of a file with this content.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("the test's directory can be written");
        path
    }

    /// Records a program to its end.
    pub(crate) fn record(&self, options: &[&str], workload: &Workload) -> Recording<'_> {
        let trace = self.path("trace");
        let finished = self.start(&trace, options, workload).finish();
        Recording {
            setup: self,
            trace,
            finished,
        }
    }

    /// Starts to record.
    pub(crate) fn start(&self, trace: &Path, options: &[&str], workload: &Workload) -> Running {
        let mut record = self.backtrail.record(trace, options, &workload.arguments);
        command::start(&mut record, LIMIT).expect("the binary is there")
    }

    /// A recording that ended some other way.
    pub(crate) fn recording(&self, trace: PathBuf, finished: Finished) -> Recording<'_> {
        Recording {
            setup: self,
            trace,
            finished,
        }
    }
}

impl Recording<'_> {
    /// What the report says; it must be able to.
    pub(crate) fn summary(&self) -> Summary {
        self.setup.backtrail.summary(&self.trace)
    }

    /// The folded stacks.
    pub(crate) fn folded(&self) -> Vec<(Vec<String>, u64)> {
        self.folded_with(&[])
    }

    /// The folded stacks of those samples that the options choose.
    pub(crate) fn folded_with(&self, options: &[&str]) -> Vec<(Vec<String>, u64)> {
        self.setup.backtrail.folded_with(&self.trace, options)
    }

    /// The share of samples whose stack goes, without a gap, through these functions, the outermost
    /// first.
    pub(crate) fn share_through(&self, chain: &[&str]) -> f64 {
        let stacks = self.folded();
        let all: u64 = stacks.iter().map(|(_, count)| count).sum();
        let through = |stack: &[String]| stack.windows(chain.len()).any(|part| part == chain);
        let with: u64 = stacks
            .iter()
            .filter(|(stack, _)| through(stack))
            .map(|(_, count)| count)
            .sum();
        with as f64 / all.max(1) as f64
    }

    /// Fails unless the recorder ended with this status.
    pub(crate) fn ended_with(&self, code: i32) -> &Self {
        assert_eq!(self.finished.code(), code, "{}", self.finished.describe());
        self
    }

    /// Fails unless there are samples (at least a quarter of `expected_samples`, since the machine
    /// may be busy), and at least this share of those whose process has a stack is complete, or cut
    /// where its copy ends: on a busy machine the recorder comes late to the pages that copies
    /// lack.
    pub(crate) fn complete(&self, expected_samples: u64, least_share: f64) -> &Self {
        self.complete_or_cut(expected_samples, least_share, MOST_CUT)
    }

    /// The same where the kernel walks: on a busy machine it has tables late, and the recorder
    /// comes late to the memory of threads that have ended.
    pub(crate) fn complete_in_kernel(&self, expected_samples: u64, least_share: f64) -> &Self {
        self.complete_or_ended(expected_samples, least_share, MOST_CUT, &["beyond_copy", "unreadable"])
    }

    /// The same where stacks are cut that are deeper than their copies, up to a share.
    pub(crate) fn complete_or_cut(&self, expected_samples: u64, least_share: f64, most_cut: f64) -> &Self {
        self.complete_or_ended(expected_samples, least_share, most_cut, &["beyond_copy"])
    }

    fn complete_or_ended(&self, expected_samples: u64, least_share: f64, most_cut: f64, reasons: &[&str]) -> &Self {
        let summary = self.summary();
        let told = format!(
            "{} samples, {} lost, {:.2} % complete; incomplete: {}",
            summary.samples,
            summary.lost,
            summary.completeness() * 100.0,
            summary.incomplete()
        );
        println!("{told}");
        assert!(
            // Other programs may have the CPUs.
            summary.samples >= expected_samples / 20,
            "too few samples: {told}\n{}",
            self.finished.describe()
        );
        let stops = |reason| summary.stops.get(reason).copied().unwrap_or(0);
        let with_stack = summary.samples - stops("no_user_stack");
        let cut: u64 = reasons.iter().map(|reason| stops(reason)).sum();
        let incomplete = with_stack - stops("end_of_stack") - cut;
        let most = ((1.0 - least_share) * with_stack as f64) as u64;
        assert!(incomplete <= most.max(FEW), "{told}");
        assert!(cut as f64 <= (most_cut * with_stack as f64).max(FEW as f64), "{told}");
        assert!(
            (summary.complete - summary.completeness()).abs() < 1e-3,
            "the share is not that of the counts: {}",
            summary.complete
        );
        let ended: u64 = summary.stops.values().sum();
        assert_eq!(ended, summary.samples, "every stack ends for one reason: {told}");
        self
    }

    /// Fails unless our report and babeltrace2 read it, the latter without complaint and to the
    /// same number of samples.
    pub(crate) fn readable(&self) -> &Self {
        let summary = self.summary();
        let Some(other) = available(babeltrace2(&self.trace)) else {
            return self;
        };
        // That samples were lost is what it should tell, and only then.
        let complaints = other
            .complaints
            .lines()
            .filter(|line| summary.lost == 0 || !line.contains("discarded"));
        let complaints: Vec<&str> = complaints.collect();
        assert!(
            other.success && complaints.is_empty(),
            "babeltrace2 complains: {complaints:?}"
        );
        let samples: u64 = other
            .by_name
            .iter()
            .filter(|(name, _)| name.ends_with(":sample"))
            .map(|(_, count)| count)
            .sum();
        assert_eq!(
            samples, summary.samples,
            "babeltrace2 sees other samples: {:?}",
            other.by_name
        );
        self
    }

    /// Fails unless exactly one line of the recorder's own mentions this.
    pub(crate) fn one_line_about(&self, what: &str) -> &Self {
        one_line_about(&self.finished, what);
        self
    }
}

/// Fails unless exactly one error line mentions this.
pub(crate) fn one_line_about(finished: &Finished, what: &str) {
    let about = errors(finished).into_iter().filter(|line| line.contains(what)).count();
    assert_eq!(about, 1, "not one line about {what:?}: {}", finished.describe());
}

/// The lines in which the command itself complains.
pub(crate) fn errors(finished: &Finished) -> Vec<&str> {
    finished
        .stderr
        .lines()
        .filter(|line| line.starts_with("backtrail: "))
        .collect()
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("paths of test files are text")
}
