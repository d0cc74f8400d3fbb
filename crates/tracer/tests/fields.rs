//! Every kind of field, as babeltrace2 prints it.

use crate::common::{babeltrace2, example};

#[test]
fn babeltrace2_prints_every_kind_of_field() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    assert!(example("fields").arg(&directory).status().unwrap().success());
    let Some(lines) = babeltrace2(&directory) else { return };
    let expected = [
        ("empty", "{ }"),
        ("numbers", "{ a = 1, b = -2, c = 1.5, d = 1, e = 0xFF, f = 9 }"),
        ("texts", r#"{ peer = "10.0.0.1", type = "", cut = "a" }"#),
        (
            "arrays",
            "{ fixed = [ [0] = 1, [1] = 2, [2] = 3 ], grid = [ [0] = [ [0] = 1, [1] = 2 ], [1] = [ [0] = 3, [1] = 4 ] ], \
             _bytes_length = 2, bytes = [ [0] = 9, [1] = 8 ], _nested_length = 3, nested = [ \
             [0] = { _value_length = 1, value = [ [0] = 1 ] }, [1] = { _value_length = 0, value = [ ] }, \
             [2] = { _value_length = 2, value = [ [0] = 2, [1] = 3 ] } ], _none_length = 0, none = [ ] }",
        ),
        (
            "labels",
            r#"{ state = ( "Broken" : container = -1 ), all = [ [0] = ( "Idle" : container = 0 ), [1] = ( "Busy" : container = 1 ) ] }"#,
        ),
        (
            "optional",
            r#"{ _some_is = ( "some" : container = 1 ), some = { { value = 5 } }, _none_is = ( "none" : container = 0 ), none = { { } }, _list_length = 2, list = [ [0] = { _value_is = ( "none" : container = 0 ), value = { { } } }, [1] = { _value_is = ( "some" : container = 1 ), value = { { value = 3 } } } ] }"#,
        ),
        (
            "structs",
            r#"{ place = { x = 0.25, _names_length = 2, names = [ [0] = "a", [1] = "bc" ], _inner_is = ( "some" : container = 1 ), inner = { { value = 4 } } }, _all_length = 1, all = [ [0] = { x = 0.25, _names_length = 2, names = [ [0] = "a", [1] = "bc" ], _inner_is = ( "some" : container = 1 ), inner = { { value = 4 } } } ] }"#,
        ),
    ];
    for (name, fields) in expected {
        let of_name = |line: &&String| line.contains(&format!(" kinds:{name}: "));
        let line = lines
            .iter()
            .find(of_name)
            .unwrap_or_else(|| panic!("{name}: {lines:?}"));
        assert!(line.ends_with(fields), "{line}\n{fields}");
        assert!(line.contains(r#"procname = "fields", request = 77 }"#), "{line}");
    }
    let stack = lines.iter().find(|line| line.contains("kinds:stack")).unwrap();
    assert!(
        stack.contains("_stack_length = ") && stack.ends_with("value = 1 }"),
        "{stack}"
    );
    assert!(!stack.contains("_stack_length = 0,"), "{stack}");
    assert_eq!(lines.len(), expected.len() + 1);
}

/// The compact backtrace is the calls that led to the event.
#[test]
fn the_stack_is_that_of_the_event() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let run = example("modes").arg("stack").arg(&directory).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    // The program prints its own return addresses, from glibc.
    let expected: Vec<u64> = String::from_utf8(run.stdout)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    let trace = backtrail_trace::find_traces(&directory).unwrap().remove(0);
    let opened = backtrail_trace::Trace::open(&trace).unwrap();
    let mut events = opened.events(backtrail_trace::Options::default()).unwrap();
    let event = events.next().unwrap().unwrap();
    let bytes = event.field("stack").unwrap().as_array().unwrap().as_bytes().unwrap();
    let addresses = |frame| match frame {
        backtrail_cbf::Frame::Pc(address) | backtrail_cbf::Frame::Ra(address) => address,
        other => panic!("{other:?}"),
    };
    let found: Vec<u64> = backtrail_cbf::Decoder::new(bytes)
        .unwrap()
        .flat_map(|item| {
            let item = item.unwrap();
            std::iter::repeat_n(addresses(item.frame), item.repeat as usize)
        })
        .collect();
    assert!(expected.len() > 20, "{expected:?}");
    // All but the function in which the two were taken, at its own places.
    assert_eq!(found.len(), expected.len(), "{found:x?} {expected:x?}");
    assert_eq!(found[1..], expected[1..], "{found:x?} {expected:x?}");
    assert!(
        found[0] < expected[0] && expected[0] - found[0] < 200,
        "{found:x?} {expected:x?}"
    );
}
