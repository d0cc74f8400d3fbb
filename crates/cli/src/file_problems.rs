//! Reports files of recorded programs that could not be used, and what that costs.

use backtrail_record::Outcome;

use crate::counted::Counted;
use crate::error::{one_line, say};

/// The most files that are named; the others are counted.
const MOST_NAMED: usize = 20;

/// Prints a line for each file without a complete table, those of most samples first. Returns
/// whether a file is missing.
pub(crate) fn report(outcome: &Outcome) -> bool {
    let (named, others) = outcome.problems.split_at(outcome.problems.len().min(MOST_NAMED));
    for problem in named {
        let cost = match (problem.samples, problem.cut) {
            (0, _) => "stacks may end in it".to_owned(),
            (1, 0) => "it is on the stack of 1 sample".to_owned(),
            (1, _) => "it is on the stack of 1 sample, which is incomplete".to_owned(),
            (samples, 0) => format!("it is on the stacks of {samples} samples"),
            (samples, cut) => format!("it is on the stacks of {samples} samples, {cut} of them incomplete"),
        };
        let (path, reason) = (one_line(&problem.path), one_line(&problem.reason));
        say!("backtrail: warning: {path}: {reason}; {cost}");
    }
    let unnamed = others.len() as u64 + outcome.further_problems;
    if unnamed > 0 {
        let samples: u64 = others.iter().map(|problem| problem.samples).sum();
        let (files, samples) = (Counted(unnamed, "more file"), Counted(samples, "sample"));
        let have = if unnamed == 1 { "has" } else { "have" };
        say!("backtrail: warning: {files} {have} such problems, on the stacks of {samples}");
    }
    outcome.problems.iter().any(|problem| problem.is_missing)
}
