//! Recordings are private, and what was written of them outlives the recorder and the disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use backtrail_testkit::text::Random;
use backtrail_testkit::workload;
use backtrail_testkit::{available, command, endings, program, skip};

use crate::common::{LIMIT, setup, text};

/// Fails if others may read anything of a trace.
fn private(trace: &Path) {
    assert_eq!(
        fs::metadata(trace).unwrap().mode() & 0o777,
        0o700,
        "{}",
        trace.display()
    );
    let files: Vec<_> = fs::read_dir(trace)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(files.len() > 1);
    for file in files {
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600, "{}", file.display());
    }
}

#[test]
fn others_cannot_read_recordings() {
    for format in ["1.8", "2"] {
        let Some(setup) = setup() else { return };
        let Some(workload) = available(workload::built("spin", &program::SPIN, &["0.3"])) else {
            return;
        };
        let recording = setup.record(&["--format", format], &workload);
        private(&recording.trace);
        for to in ["1.8", "2", "rfc1.1"] {
            let copy = setup.path(&format!("copy-{to}"));
            let mut convert = setup
                .backtrail
                .command(["trace", "convert", "--to", to, "-o", text(&copy)]);
            let done = command::run(convert.arg(&recording.trace), LIMIT).unwrap();
            assert_eq!(done.code(), 0, "{}", done.describe());
            private(&copy);
        }
    }
}

#[test]
fn a_killed_recorder_leaves_what_it_has_written() {
    let Some(setup) = setup() else { return };
    let Some(program) = available(endings::worker()) else {
        return;
    };
    let mut random = Random::new(19);
    for _ in 0..6 {
        let after = Duration::from_millis(random.below(3000) as u64);
        endings::killed(&setup.backtrail, &program, after).unwrap_or_else(|error| panic!("{after:?}: {error}"));
    }
}

#[test]
fn a_full_disk_leaves_what_was_written() {
    let Some(setup) = setup() else { return };
    let Some(program) = available(endings::worker()) else {
        return;
    };
    for kibibytes in [4, 8, 16, 24, 64, 200] {
        let done = endings::full(&setup.backtrail, &program, kibibytes).unwrap_or_else(|error| panic!("{error}"));
        if done.is_none() {
            skip("no file system can be mounted");
            return;
        }
    }
}

#[test]
fn a_stopped_recorder_goes_on() {
    let Some(setup) = setup() else { return };
    let Some(program) = available(endings::worker()) else {
        return;
    };
    endings::stopped(&setup.backtrail, &program).unwrap_or_else(|error| panic!("{error}"));
}
