//! Single-steps code that is hard to unwind in its own process, and compares with libgcc's
//! `_Unwind_Backtrace`.
#![cfg(target_arch = "x86_64")]

use crate::common;

use std::collections::HashMap;

use backtrail_testkit::{place, skip};
use common::{Link, compile, run};

/// The counts that the program prints for a part.
fn counts(line: &str) -> HashMap<&str, u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let pairs = words.chunks_exact(2);
    pairs
        .filter_map(|pair| Some((pair[0], pair[1].parse().ok()?)))
        .collect()
}

/// The counts of each part whose library is installed.
fn step(parts: &[&str]) -> Option<Vec<(String, HashMap<String, u64>)>> {
    let source = place::programs().join("steps_inproc.c");
    let program = compile(source.to_str()?, &["-Wl,-z,lazy"], Link::Shared)?;
    let finished = run(&program, parts);
    assert!(finished.status.success(), "{}", finished.describe());
    let mut all = Vec::new();
    for line in finished.stdout.lines() {
        let (part, rest) = line.split_once(": ").unwrap();
        if rest == "missing" {
            skip(format!("there is no library for {part}"));
            continue;
        }
        let counts = counts(rest);
        assert_eq!(counts["shorter"] + counts["different"], 0, "{}", finished.describe());
        let owned = counts.into_iter().map(|(name, count)| (name.to_owned(), count));
        all.push((part.to_owned(), owned.collect()));
    }
    Some(all)
}

/// Every chain ends in `main`.
#[test]
fn frames_on_any_register() {
    let parts = [
        "registers",
        "memory",
        "stubs",
        "AES-128-GCM",
        "AES-256-CTR",
        "ChaCha20-Poly1305",
        "CAMELLIA-128-CBC",
        "SHA1",
        "SHA256",
        "SHA512",
    ];
    let Some(all) = step(&parts) else { return };
    assert!(all.len() >= 3, "{all:?}");
    for (part, counts) in all {
        assert!(counts["steps"] > 500, "{part}: {counts:?}");
        assert_eq!(counts["whole"], counts["steps"], "{part}: {counts:?}");
    }
}

/// No table describes this code, and libgcc's backtraces end there.
#[test]
fn code_without_call_frame_information() {
    let Some(all) = step(&["silent", "swscale", "dgemm"]) else {
        return;
    };
    let silent = &all[0].1;
    // Walks continue through the frame pointer; without one the chain is short, but never wrong.
    assert!(silent["longer"] > 100, "{silent:?}");
    assert!(silent["whole"] < silent["steps"], "{silent:?}");
}
