//! Files of other users are read by this program, started again without privileges. That is no
//! verb: it is not for users.

use std::process::ExitCode;

use backtrail_cfi::tables;
use backtrail_elf::isolation::{self, Job};
use backtrail_process::isolated::{self, Workers};
use backtrail_profile::IsolatedNames;

/// The first argument of a worker.
const ARGUMENT: &str = "isolated-worker";

/// Lets workers read the files of other users. They are started when there is such a file.
pub(crate) fn use_workers() {
    isolation::isolate(Box::new(Workers::new(ARGUMENT)));
}

/// Runs this process as a worker, if it was started as one.
pub(crate) fn run_as_worker() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let arguments: Vec<String> = arguments.filter_map(|argument| argument.into_string().ok()).collect();
    let mut names = IsolatedNames::default();
    let status = isolated::serve(&arguments, |job, files, request| match job {
        Job::Table => Some(tables::isolated::answer(files, request)),
        Job::Names => names.answer(files, request),
        _ => None,
    });
    Some(status.into())
}
