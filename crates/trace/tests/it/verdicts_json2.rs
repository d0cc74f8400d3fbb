//! What of CTF 2's metadata is accepted and what is refused, rule by rule, held against babeltrace2
//! 2.1: small traces that differ in one place each.
//!
//! `json2_cases.txt` has a case between empty lines: the verdict and what it is about, then the
//! fragments, one a line. `$P`, `$D`, `$C`, `$U8` stand for the constants below; `$E name=class ;
//! …` is an event with these members. Every stream is 24 bytes of 1. Behind `alone` is where
//! babeltrace2 says otherwise: it reads on after a wrong magic number, goes further up than the
//! root of a location, and aborts where ranges of one option of a variant overlap.

use crate::support;
use backtrail_trace::{Plan, json2};

const CASES: &str = include_str!("json2_cases.txt");
const PREAMBLE: &str = r#"{"type":"preamble","version":2}"#;
const STREAM: &str = r#"{"type":"data-stream-class"}"#;
const CLOCK: &str = r#"{"type":"clock-class","id":"c","frequency":1000}"#;
const U8: &str = r#"{"type":"fixed-length-unsigned-integer","length":8,"byte-order":"little-endian"}"#;

/// A structure with these members: names, and classes without braces.
fn structure(members: &[(&str, &str)]) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(name, class)| format!(r#"{{"name":"{name}","field-class":{class}}}"#))
        .collect();
    format!(r#"{{"type":"structure","member-classes":[{}]}}"#, members.join(","))
}

fn event(payload: &str) -> String {
    format!(r#"{{"type":"event-record-class","name":"e","payload-field-class":{payload}}}"#)
}

fn expand(line: &str) -> String {
    let line = line.replace("$P", PREAMBLE).replace("$D", STREAM);
    let line = line.replace("$C", CLOCK).replace("$U8", U8);
    let Some(fields) = line.strip_prefix("$E ") else {
        return line;
    };
    let members = fields.split(" ; ").filter_map(|field| field.split_once('='));
    event(&structure(&members.collect::<Vec<_>>()))
}

/// Fragments, one a line, as the metadata have them.
fn metadata(fragments: &str) -> String {
    fragments
        .lines()
        .map(|line| format!("\x1e{}\n", expand(line)))
        .collect()
}

#[test]
fn every_case() {
    support::verdicts::expect_all(CASES, metadata);
}

/// What a location says of whichever option was taken is still said when the metadata is written
/// again.
#[test]
fn locations_through_variants_are_written() {
    for case in CASES.split("\n\n") {
        let (head, fragments) = case.split_once('\n').unwrap();
        if !head.starts_with("accept") {
            continue;
        }
        let description = json2::parse(&metadata(fragments)).unwrap();
        let again = json2::parse(&json2::write(&description).unwrap()).unwrap();
        assert_eq!(again.streams, description.streams, "{head}");
        Plan::new(again).unwrap();
    }
}
