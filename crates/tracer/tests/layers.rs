//! `tracing` and `log`, as babeltrace2 prints them.

use crate::common::{babeltrace2, example};

#[test]
fn spans_events_and_logs() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    assert!(example("layers").arg(&directory).status().unwrap().success());
    let Some(lines) = babeltrace2(&directory) else { return };
    let expected = [
        r#"tracing:begin: { span = 1, parent = 0, target = "layers", name = "request", fields = "number=5" }"#,
        "tracing:enter: { span = 1 }",
        r#"tracing:begin: { span = 2, parent = 1, target = "layers", name = "query", fields = "" }"#,
        "tracing:enter: { span = 2 }",
        r#"tracing:warn: { span = 2, target = "layers", message = "slow", fields = "rows=3 table=\"users\"" }"#,
        r#"tracing:record: { span = 1, fields = "status=200" }"#,
        "tracing:follows: { span = 2, before = 1 }",
        "tracing:exit: { span = 2 }",
        "tracing:end: { span = 2 }",
        "tracing:exit: { span = 1 }",
        "tracing:end: { span = 1 }",
        r#"log:error: { target = "layers", message = "disk 7 is full", file = "crates/tracer/examples/layers.rs""#,
    ];
    assert_eq!(lines.len(), expected.len());
    for (line, expected) in lines.iter().zip(expected) {
        let (head, fields) = line.split_once(" }, ").unwrap();
        let name = head.split(' ').nth(2).unwrap();
        let line = format!("{name} {fields}");
        let plain = line.replace("\\\"", "\"");
        assert!(
            line.starts_with(expected) || plain.starts_with(&expected.replace("\\\"", "\"")),
            "{line}\n{expected}"
        );
    }
}
