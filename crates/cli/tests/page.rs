//! The page of real recordings, read back from the browser.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use backtrail_testkit::browser::Browser;
use backtrail_testkit::{available, command, workload};
use common::{LIMIT, Setup, setup};
use serde_json::Value;

const READY: &str = "performance.getEntriesByName('all-samples').length";

/// The cells of a view's table, row by row.
fn cells(browser: &mut Browser, view: &str) -> Vec<Vec<String>> {
    browser.value(&format!("document.getElementById('tab-{view}').click()"));
    let rows = browser.value(&format!(
        "[...document.querySelectorAll('#view-{view} tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    ));
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let row = |row: &Value| row.as_array().expect("cells").iter().map(text).collect();
    rows.as_array().expect("rows").iter().map(row).collect()
}

fn page(setup: &Setup, trace: &Path, options: &[&str]) -> PathBuf {
    let path = setup.path("page.html");
    let mut report = setup.backtrail.command(["report"]);
    let finished = command::run(report.arg(trace).args(options).arg("--html").arg(&path), LIMIT).expect("it is there");
    assert!(finished.status.success(), "{}", finished.describe());
    path
}

#[test]
fn the_page_has_the_numbers_of_the_table() {
    let Some(setup) = setup() else { return };
    let Some(mut browser) = available(Browser::start(1200, 800)) else {
        return;
    };
    for workload in [workload::compiler(2, setup.folder.path()), workload::rust_threads(2)] {
        let Some(workload) = available(workload) else { continue };
        let recording = setup.record(&["-F", "499"], &workload);
        recording.ended_with(0);
        let file = page(&setup, &recording.trace, &[]);
        browser.open(&file, READY);
        compare(&setup, &recording.trace, &mut browser);
        let requests = browser.requests();
        let outside: Vec<_> = requests.iter().filter(|url| !url.starts_with("file://")).collect();
        assert!(outside.is_empty(), "{outside:?}");
        assert_eq!(browser.faults(), Vec::<String>::new());
        fs::remove_dir_all(&recording.trace).expect("it was written");
    }
    assert_eq!(browser.requests().len(), 2, "{:?}", browser.requests());
}

fn compare(setup: &Setup, trace: &Path, browser: &mut Browser) {
    let mut report = setup.backtrail.command(["report"]);
    let finished = command::run(report.arg(trace).args(["--json", "-"]), LIMIT).expect("it is there");
    let json: Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
    let samples = json["samples"].as_u64().expect("a number");
    let functions = json["functions"].as_array().expect("functions");

    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let wanted: BTreeMap<(String, String), [String; 4]> = functions
        .iter()
        .map(|function| {
            let count = |name: &str| function[name].as_u64().expect("a number");
            let share = |name: &str| format!("{:.2}", count(name) as f64 * 100.0 / samples as f64);
            let row = [
                share("self"),
                count("self").to_string(),
                share("total"),
                count("total").to_string(),
            ];
            ((text(&function["name"]), text(&function["module"])), row)
        })
        .collect();
    let rows = cells(browser, "functions");
    assert!(
        rows.len() == 200 || rows.len() == functions.len(),
        "{} rows",
        rows.len()
    );
    for row in &rows {
        let key = (row[4].clone(), row[5].clone());
        assert_eq!(wanted.get(&key).map(|row| &row[..]), Some(&row[..4]), "{key:?}");
    }
    // The order is the table's, too.
    for (row, function) in rows.iter().zip(functions).take(10) {
        assert_eq!(row[1], function["self"].to_string());
        assert_eq!(row[3], function["total"].to_string());
    }
    let sum = |rows: &[Vec<String>]| -> u64 { rows.iter().map(|row| row[1].parse::<u64>().expect("a number")).sum() };
    assert_eq!(sum(&cells(browser, "threads")), samples);
    let endings = cells(browser, "endings");
    assert_eq!(sum(&endings), samples);
    for (reason, count) in json["stops"].as_object().expect("an object") {
        let shown = endings.iter().filter(|row| row[2] == *reason);
        let shown: u64 = shown.map(|row| row[1].parse::<u64>().expect("a number")).sum();
        assert_eq!(shown, count.as_u64().expect("a number"), "{reason}");
    }
    let late = endings.iter().filter(|row| row[3] == "late");
    let late: u64 = late.map(|row| row[1].parse::<u64>().expect("a number")).sum();
    assert_eq!(late, json["live"].as_u64().expect("a number"));
}
