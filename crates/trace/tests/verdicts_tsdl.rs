//! What of TSDL is accepted and what is refused, rule by rule, held against babeltrace2 2.1: small traces that differ in one place each.
//!
//! `tsdl_cases.txt` has a case between empty lines: the verdict and what it is about, then the metadata. `$T` are types, `$H` these and a trace block; `$C` is a clock;
//! `$F fields` is a stream and an event with these fields. Every stream is 24 bytes of 1. Behind `alone` is where babeltrace2 says
//! otherwise: it takes words for clocks and booleans, labels that are no numbers of the enumeration, refuses references to fields of the own scope by their whole path, and aborts.

mod support;

use backtrail_testkit::peers::babeltrace2_2_1;

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
    let peer = babeltrace2_2_1();
    let mut count = 0;
    for case in CASES.split("\n\n") {
        let (head, lines) = case.split_once('\n').unwrap();
        let (verdict, what) = head.split_once(": ").unwrap();
        let lines: Vec<String> = lines.lines().map(expand).collect();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("metadata"), lines.join("\n") + "\n").unwrap();
        std::fs::write(directory.path().join("s"), [1; 24]).unwrap();
        let ours = support::text_of(directory.path());
        let accepted = verdict.starts_with("accept");
        let error = ours.as_ref().err().map(ToString::to_string);
        assert_eq!(ours.is_ok(), accepted, "{what}: {error:?}");
        count += 1;
        let Some(peer) = peer.as_ref().filter(|_| !verdict.ends_with("alone")) else {
            continue;
        };
        let output = peer
            .command()
            .arg("--clock-seconds")
            .arg(directory.path())
            .output()
            .unwrap();
        assert_eq!(output.status.success(), accepted, "babeltrace2 differs: {what}");
        if let Ok(ours) = ours {
            assert_eq!(
                String::from_utf8_lossy(&ours),
                String::from_utf8_lossy(&output.stdout),
                "{what}"
            );
        }
    }
    assert!(count > 300, "{count}");
}
