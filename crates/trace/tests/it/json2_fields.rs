//! Classes of fields that only CTF 2 has, as babeltrace2 2.1 prints them.

use crate::support::json2::{METADATA, event};
use backtrail_testkit::peers::babeltrace2_2_1;
use backtrail_trace::{ClockFormat, JsonWriter, Options, Plan, TextWriter, Trace, json2};

/// What babeltrace2 2.1.2 prints.
const TEXT: &str = "\
x: { v = 300000, w = 0xFFFFFFFFFFFFFF7F, e = ( \"big\" : container = 1500 ), b = true, o = { 4660 }, n = 5, p = { { q = 9 } }, a = 0x8001, blob = { 00 01 02 03 04 }, sblob = { 01 ff 10 }, ds = \"hello\", da = [ [0] = 0, [1] = 200, [2] = 400, [3] = 600, [4] = 800 ], dopt = [ [0] = { 1 }, [1] = { 2 } ], s16 = \"hé€\", d16 = \"a😀\", s32 = \"z€\", r = 1154, t = 0b0111 }
x: { v = 300000, w = 0xFFFFFFFFFFFFFF7F, e = ( <unknown> : container = 3 ), b = false, o = <none>, n = 0, p = <none>, a = 0x8001, blob = { }, sblob = { 01 ff 10 }, ds = \"\", da = [ ], dopt = [ [0] = <none>, [1] = <none> ], s16 = \"hé€\", d16 = \"a😀\", s32 = \"z€\", r = 1154, t = 0b0111 }
x: { v = 300000, w = 0xFFFFFFFFFFFFFF7F, e = ( \"big\" : container = 1500 ), b = true, o = { 4660 }, n = 2, p = { { q = 9 } }, a = 0x8001, blob = { 00 01 }, sblob = { 01 ff 10 }, ds = \"he\", da = [ [0] = 0, [1] = 200 ], dopt = [ [0] = { 1 }, [1] = { 2 } ], s16 = \"hé€\", d16 = \"a😀\", s32 = \"z€\", r = 1154, t = 0b0111 }
";

#[test]
fn fields_that_only_ctf_2_has() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("metadata"), METADATA).unwrap();
    let stream = [event(1, 5), event(0, 0), event(0xff, 2)].concat();
    std::fs::write(directory.path().join("s"), stream).unwrap();
    let mut events = Trace::open(directory.path())
        .unwrap()
        .events(Options::default())
        .unwrap();
    let (mut text, mut json) = (Vec::new(), Vec::new());
    let mut writer = TextWriter::new(ClockFormat::Seconds);
    while let Some(event) = events.next().unwrap() {
        writer.event(&mut text, &event);
        JsonWriter.event(&mut json, &event);
    }
    let (text, json) = (String::from_utf8(text).unwrap(), String::from_utf8(json).unwrap());
    assert_eq!(text, TEXT);
    assert_eq!(
        json.lines().nth(1).unwrap(),
        "{\"stream\": \"s\", \"name\": \"x\", \"ts\": null, \"fields\": {\"v\": 300000, \"w\": -129, \"e\": 3, \"b\": false, \
         \"o\": null, \"n\": 0, \"p\": null, \"a\": {\"bits\": 32769, \"flags\": []}, \"blob\": \"\", \"sblob\": \"01ff10\", \
         \"ds\": \"\", \"da\": [], \"dopt\": [null, null], \"s16\": \"hé€\", \"d16\": \"a😀\", \"s32\": \"z€\", \"r\": 1154, \"t\": 7}}"
    );
    let Some(peer) = babeltrace2_2_1() else { return };
    let output = peer.command().arg(directory.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), TEXT);
}

#[test]
fn they_are_written_as_they_were_read() {
    let description = json2::parse(METADATA).unwrap();
    let written = json2::write(&description).unwrap();
    assert_eq!(json2::parse(&written).unwrap(), description);
    Plan::new(description).unwrap();
}

#[test]
fn variable_length_numbers_of_more_than_64_bits_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("metadata"), METADATA).unwrap();
    std::fs::write(directory.path().join("s"), [0xff; 30]).unwrap();
    let mut events = Trace::open(directory.path())
        .unwrap()
        .events(Options::default())
        .unwrap();
    let error = events.next().unwrap_err().to_string();
    assert!(
        error.contains("variable-length integer of more than 64 bits at byte 0x0 "),
        "{error}"
    );
}
