//! Parts of a report with hand-made items, to the letter.

use super::tests::{recorded, text};
use super::{GroupBy, Measure, Row, Rows, TableOptions};
use crate::CodeFiles;

fn rows(rows: &Rows) -> Vec<(&str, u64, u64)> {
    let row = |row: &'_ Row| -> (u64, u64) { (row.samples, row.total) };
    rows.rows
        .iter()
        .map(|each| (each.name.as_str(), row(each).0, row(each).1))
        .collect()
}

#[test]
fn callers_and_callees_have_what_goes_through_them() {
    let report = recorded();
    let callers = report.callers("parse<[u8; 8]>").unwrap();
    assert_eq!(rows(&callers), [("main", 5, 7), ("[stack lost]", 1, 1)]);
    let callees = report.callees("main").unwrap();
    assert_eq!(
        rows(&callees),
        [("parse<[u8; 8]>", 5, 7), ("worker 7", 1, 1), ("fib", 0, 1)]
    );
    // Inlined calls call, too; recursion counts once.
    assert_eq!(rows(&report.callers("hash").unwrap()), [("mix", 1, 1)]);
    assert_eq!(
        rows(&report.callees("parse<[u8; 8]>").unwrap()),
        [("[self]", 6, 6), ("do_syscall_64", 0, 1), ("update", 0, 1)]
    );
    assert_eq!(
        rows(&report.callers("fib").unwrap()),
        [("fib", 2, 2), ("[frames omitted]", 0, 1), ("main", 0, 1)]
    );
    assert_eq!(report.callers("no such function"), None);
    assert_eq!(report.callees("no such function"), None);
}

#[test]
fn names_like_one_are_found() {
    let report = recorded();
    assert_eq!(report.functions_like("PARSE", 9), ["parse<[u8; 8]>"]);
    assert_eq!(report.functions_like("i", 1), ["main"]);
    assert!(report.functions_like("none such", 9).is_empty());
}

#[test]
fn samples_are_grouped_by_what_ran() {
    let report = recorded();
    assert_eq!(
        rows(&report.rows_by(GroupBy::Module)),
        [("server", 10, 12), ("[anon]", 1, 1), ("[kernel]", 1, 1)]
    );
    let threads = report.rows_by(GroupBy::Thread);
    assert_eq!(rows(&threads), [("server 10", 11, 11), ("pool 11", 1, 1)]);
    assert_eq!(threads.rows[1].module, "server 10");
    assert_eq!(rows(&report.rows_by(GroupBy::Process)), [("server 10", 12, 12)]);
    let lines = report.rows_by(GroupBy::Line);
    let of_fib: Vec<_> = rows(&lines)
        .into_iter()
        .filter(|(name, ..)| name.starts_with("src/fib.c"))
        .collect();
    assert_eq!(
        of_fib,
        [("src/fib.c:5", 2, 2), ("src/fib.c:4", 0, 2), ("src/fib.c:6", 0, 1)]
    );
    let addresses = report.rows_by(GroupBy::Address);
    assert_eq!(rows(&addresses)[0], ("0x1210 parse<[u8; 8]>+0x10", 6, 6));
    for by in [
        GroupBy::Thread,
        GroupBy::Process,
        GroupBy::Module,
        GroupBy::Line,
        GroupBy::Address,
    ] {
        let own: u64 = report.rows_by(by).rows.iter().map(|row| row.samples).sum();
        assert_eq!(own, 12, "{by:?}");
    }
}

#[test]
fn a_table_of_parts_says_what_it_leaves_out() {
    let report = recorded();
    let options = TableOptions {
        width: Some(60),
        limit: Some(1),
        ..TableOptions::default()
    };
    let shown = text(|out| report.rows_by(GroupBy::Module).write(out, &options));
    let expected = " self %  total %  module
  83.33   100.00  server
  16.67           2 more
";
    assert_eq!(shown, expected);
    let shown = text(|out| {
        report
            .callers("parse<[u8; 8]>")
            .unwrap()
            .write(out, &TableOptions::default())
    });
    let expected = " self %  total %  caller        module
  41.67    58.33  main          server
   8.33     8.33  [stack lost]
";
    assert_eq!(shown, expected);
}

#[test]
fn a_function_is_annotated_by_line_and_by_instruction() {
    let report = recorded();
    let annotations = report.annotate("fib");
    assert_eq!(annotations.len(), 1);
    let fib = &annotations[0];
    assert_eq!(fib.function, ("fib".to_owned(), "server".to_owned()));
    let lines: Vec<_> = fib.lines.iter().map(|row| (row.line, row.samples, row.total)).collect();
    assert_eq!(lines, [(4, 0, 2), (5, 2, 2), (6, 0, 1)]);
    let addresses: Vec<_> = fib
        .addresses
        .iter()
        .map(|row| (row.address, row.offset, row.line, row.samples, row.total))
        .collect();
    assert_eq!(
        addresses,
        [
            (0x140f, Some(0xf), 4, 0, 2),
            (0x1410, Some(0x10), 5, 2, 2),
            (0x1417, Some(0x17), 6, 0, 1)
        ]
    );
    let mut is_found = false;
    let shown = text(|out| {
        is_found = report.write_annotation("fib", &mut CodeFiles::default(), out, &TableOptions::default())?;
        Ok(())
    });
    assert!(is_found);
    assert!(shown.contains("  16.67    16.67       5\n"), "{shown}");
    assert!(
        shown.contains("  16.67    16.67        0x1410       +0x10  fib.c:5\n"),
        "{shown}"
    );
    // There is no such file.
    assert!(shown.contains("/opt/app/bin/server is not here"), "{shown}");
}

#[test]
fn a_difference_is_of_shares() {
    let (before, after) = (recorded(), recorded());
    assert!(
        after
            .changes_since(&before)
            .iter()
            .all(|change| change.own.0 == change.own.1)
    );
    let mut other = super::tests::Recording::new(crate::Options::default());
    other.stack(&[super::tests::FIB]);
    let after = other.profile.finish(0);
    let changes = after.changes_since(&before);
    assert_eq!((changes[0].name.as_str(), changes[0].samples), ("fib", (2, 1)));
    assert!((changes[0].own.1 - changes[0].own.0 - 10.0 / 12.0).abs() < 1e-9);
    assert_eq!(
        (changes[1].name.as_str(), changes[1].samples),
        ("parse<[u8; 8]>", (6, 0))
    );
    let shown = text(|out| after.write_changes(&before, out, &TableOptions::default()));
    assert!(shown.contains("   16.67   100.00   +83.33  fib"), "{shown}");
}

fn measure(name: &str, is_time: bool) -> Option<Measure> {
    let name = name.to_owned();
    Some(Measure { name, is_time })
}

#[test]
fn a_difference_names_what_is_compared() {
    let (before, mut after) = (recorded(), recorded());
    let heading = |after: &super::Report| {
        let shown = text(|out| after.write_changes(&before, out, &TableOptions::default()));
        shown.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(
        heading(&after),
        "12 samples before, 12 samples after; shares of own samples"
    );
    after.summary.measure = measure("page-faults", false);
    assert_eq!(
        heading(&after),
        "12 samples before, 12 page-faults after; shares of own page-faults"
    );
    (after.summary.measure, after.summary.waits) = (measure("off-cpu", true), Some(1));
    assert_eq!(
        heading(&after),
        "12 samples before, 0.000012 s off-cpu after; shares of own time"
    );
    let table = text(|out| after.write_table(out, &TableOptions::default()));
    assert!(table.starts_with("0.000012 s off-cpu in 1 wait"), "{table}");
}

/// All waits end in the scheduler, so own time never changes.
#[test]
fn a_difference_of_waits_is_in_seconds() {
    let (mut before, mut after) = (recorded(), recorded());
    for report in [&mut before, &mut after] {
        let summary = &mut report.summary;
        (summary.measure, summary.waits) = (measure("off-cpu", true), Some(1));
    }
    let shown = text(|out| after.write_changes(&before, out, &TableOptions::default()));
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines[0],
        "0.000012 s off-cpu before, 0.000012 s off-cpu after; seconds with a function on the stack"
    );
    assert!(lines[2].starts_with("before s  after s   change  function"), "{shown}");
}
