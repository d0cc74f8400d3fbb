//! Recordings report correctly where time goes.

use crate::common;

use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{available, program};
use common::{PROMISED, Recording, undisturbed};

/// Two percentage points, five standard errors of a half of 16,000 samples.
const TOLERANCE: f64 = 0.02;

/// The kernel's functions have time of their own in a program that only computes, the more the more
/// the machine has to do besides.
const KERNEL: f64 = 0.06;

fn shares() -> Option<Workload> {
    available(workload::built("shares", &program::SHARES, &["4"]))
}

fn truth(recording: &Recording<'_>, chain: &str) -> f64 {
    let told: serde_json::Value =
        serde_json::from_str(&recording.finished.stdout).expect("the program tells its shares");
    told[chain].as_f64().expect("a share")
}

#[test]
fn known_shares() {
    let Some(setup) = undisturbed() else { return };
    let Some(workload) = shares() else { return };
    let recording = setup.record(&["-F", "4000"], &workload);
    recording.ended_with(0).complete(4000, PROMISED);
    of_call_chains(&recording);
    of_functions(&recording);
}

fn of_call_chains(recording: &Recording<'_>) {
    let chains: [(&str, &[&str]); 3] = [
        ("alpha", &["main", "alpha", "middle", "leaf", "spin"]),
        ("beta", &["main", "beta", "leaf", "spin"]),
        ("gamma_", &["main", "gamma_", "delta", "middle", "leaf", "spin"]),
    ];
    for (name, chain) in chains {
        let (reported, true_share) = (recording.share_through(chain), truth(recording, name));
        println!("{name}: reported {reported:.4}, true {true_share:.4}");
        assert!(
            (reported - true_share).abs() <= TOLERANCE,
            "{name}: {reported} was reported, {true_share} is true"
        );
    }
}

/// By themselves, and with what they call.
fn of_functions(recording: &Recording<'_>) {
    let summary = recording.summary();
    let share = |count: u64| count as f64 / summary.samples as f64;
    let of = |name: &str| {
        summary
            .function(name)
            .unwrap_or_else(|| panic!("no function {name} in {:?}", summary.functions))
    };
    let shared = truth(recording, "alpha") + truth(recording, "gamma_");
    for (name, own, total) in [
        ("spin", 1.0, 1.0),
        ("leaf", 0.0, 1.0),
        ("middle", 0.0, shared),
        ("alpha", 0.0, truth(recording, "alpha")),
        ("beta", 0.0, truth(recording, "beta")),
        ("delta", 0.0, truth(recording, "gamma_")),
    ] {
        let function = of(name);
        let range = own - if own > 0.0 { KERNEL } else { 0.0 }..=own + TOLERANCE;
        assert!(
            range.contains(&share(function.own)),
            "{name}: self {} of {}",
            function.own,
            summary.samples
        );
        assert!(
            (share(function.total) - total).abs() <= TOLERANCE,
            "{name}: total {} of {}",
            function.total,
            summary.samples
        );
    }
}
