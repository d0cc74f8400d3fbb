//! The program in docs/tracing.md and on other pages.

use crate::common::{babeltrace2, example};

#[test]
fn the_program_of_the_page_does_what_it_says() {
    let page = include_str!("../../../docs/tracing.md");
    let program = include_str!("../examples/packets.rs");
    let (_about, code) = program.split_once("\n\n").unwrap();
    for page in [
        page,
        include_str!("../../../README.md"),
        include_str!("../../../docs/how-to/trace-application.md"),
    ] {
        assert!(page.contains(code), "a page has another program");
    }
    let scratch = backtrail_testkit::scratch();
    let run = example("packets").current_dir(scratch.path()).status().unwrap();
    assert!(run.success());
    let Some(lines) = babeltrace2(&scratch.path().join("trace")) else {
        return;
    };
    assert_eq!(lines.len(), 4);
    for (len, line) in lines[..3].iter().enumerate() {
        assert!(line.contains("net:packet"), "{line}");
        assert!(
            line.ends_with(&format!("{{ len = {len}, peer = \"10.0.0.1\" }}")),
            "{line}"
        );
    }
    assert!(
        lines[3].contains("net:lost") && lines[3].contains("count = 2"),
        "{}",
        lines[3]
    );
}
