//! What of TSDL is accepted and what is refused, rule by rule, held against babeltrace2 2.1: small
//! traces that differ in one place each.
//!
//! `tsdl_cases.txt` has a case between empty lines: the verdict and what it is about, then the
//! metadata. `$T` are types, `$H` these and a trace block; `$C` is a clock; `$F fields` is a stream
//! and an event with these fields. Every stream is 24 bytes of 1. `alone` marks cases in which
//! babeltrace2 disagrees: it accepts words as clocks and booleans, and aborts.

use crate::support;

const CASES: &str = include_str!("tsdl_cases.txt");
const TYPES: &str = "/* CTF 1.8 */
typealias integer { size = 8; align = 8; } := u8;
typealias integer { size = 8; align = 8; signed = true; } := s8;
typealias integer { size = 16; align = 8; } := u16;
typealias integer { size = 32; align = 8; } := u32;";
const TRACE: &str = "trace { major = 1; minor = 8; byte_order = le; };";
const CLOCK: &str = "clock { name = c; freq = 1000; };";

fn expand(line: &str) -> String {
    let line = line
        .replace("$H", &format!("{TYPES}\n{TRACE}"))
        .replace("$T", TYPES)
        .replace("$C", CLOCK);
    match line.strip_prefix("$F ") {
        Some(fields) => format!("stream {{ }};\nevent {{ name = e; fields := struct {{ {fields} }}; }};"),
        None => line,
    }
}

#[test]
fn every_case() {
    support::verdicts::expect_all(CASES, |lines| {
        let lines: Vec<String> = lines.lines().map(expand).collect();
        lines.join("\n") + "\n"
    });
}
