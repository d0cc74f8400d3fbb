//! Every verb, if a system call or an allocation fails. `cargo evidence faults` lets each of them
//! fail; these are some, spread over all.

use std::path::Path;

use backtrail_testkit::available;
use backtrail_testkit::faults::{CASES, Case, Faults, What};

/// How many failures of each kind are tried for a case.
const TRIED: u64 = 4;

fn spread(what: What) {
    let Some(faults) = available(Faults::new(Path::new(env!("CARGO_BIN_EXE_backtrail")))) else {
        return;
    };
    let mut wrong = Vec::new();
    let cases: Vec<&Case> = CASES.iter().filter(|case| faults.can_run(case)).collect();
    assert!(cases.len() >= 28);
    for (index, case) in cases.into_iter().enumerate() {
        let unharmed = faults.run(case, what, 0).unwrap();
        assert!(unharmed.count > 0, "{}", case.arguments);
        wrong.extend(unharmed.wrong);
        for part in 0..TRIED {
            // Each case fails at other places of its run.
            let offset = index as u64 * unharmed.count / 37 / TRIED;
            let number = 1 + (part * unharmed.count / TRIED + offset) % unharmed.count;
            wrong.extend(faults.run(case, what, number).unwrap().wrong);
        }
    }
    assert!(wrong.is_empty(), "{} failures:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_failing_system_call_does_no_harm() {
    spread(What::Call);
}

#[test]
fn a_failing_allocation_does_no_harm() {
    spread(What::Allocation);
}

#[test]
fn every_verb_answers_or_says_why_in_little_memory() {
    let Some(faults) = available(Faults::new(Path::new(env!("CARGO_BIN_EXE_backtrail")))) else {
        return;
    };
    let cases = CASES.iter().filter(|case| faults.can_run(case));
    let runs = cases.flat_map(|case| [64, 128, 512].map(|mebibytes| faults.run(case, What::Memory, mebibytes)));
    let wrong: Vec<String> = runs.filter_map(|run| run.unwrap().wrong).collect();
    assert!(wrong.is_empty(), "{} failures:\n{}", wrong.len(), wrong.join("\n"));
}
