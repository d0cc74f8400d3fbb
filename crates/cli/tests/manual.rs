//! Man pages and completions, as a packager gets them.

use std::fs;
use std::time::Duration;

use backtrail_testkit::{command, place, scratch};

fn backtrail(arguments: &[&str]) -> String {
    let mut run = std::process::Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let finished = command::run(run.args(arguments), Duration::from_secs(30)).unwrap();
    assert!(finished.status.success(), "{}", finished.describe());
    finished.stdout
}

#[test]
fn every_verb_has_a_page() {
    let folder = scratch();
    backtrail(&["man", "--directory", folder.path().to_str().unwrap()]);
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let decode = page("backtrail-cbf-decode.1");
    assert!(decode.contains("lenient") && decode.contains("limit"));
    assert!(page("backtrail.1").starts_with(".ie") && backtrail(&["man"]).contains("backtrail"));
}

#[test]
fn every_shell_knows_every_verb() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = backtrail(&["completions", shell]);
        assert!(script.contains("lenient") && script.contains("decode"), "{shell}");
    }
}

/// The pages of the book that describe the options of a verb and of those below it. `command.md`
/// describes those that many verbs share.
const PAGES: [(&str, &[&str]); 17] = [
    ("cache", &[]),
    ("cbf", &[]),
    ("collect", &["how-to/collect-crashes.md"]),
    ("crashes", &["how-to/collect-crashes.md"]),
    (
        "export",
        &["export.md", "report.md", "calls.md", "off-cpu.md", "events.md"],
    ),
    ("import", &["report.md"]),
    ("link", &["linking.md"]),
    ("man", &[]),
    ("pack", &["report.md"]),
    (
        "record",
        &[
            "machine.md",
            "calls.md",
            "off-cpu.md",
            "events.md",
            "how-to/always-on.md",
            "report.md",
        ],
    ),
    (
        "report",
        &["report.md", "page.md", "calls.md", "off-cpu.md", "events.md"],
    ),
    ("sframe", &["sframe.md"]),
    ("stack", &["stack.md"]),
    (
        "store",
        &[
            "store.md",
            "export.md",
            "report.md",
            "calls.md",
            "off-cpu.md",
            "events.md",
        ],
    ),
    ("top", &["report.md"]),
    ("trace", &["reading-traces.md", "writing-traces.md", "tracing.md"]),
    ("types", &["types.md"]),
];

#[test]
fn every_option_is_in_the_book() {
    let folder = scratch();
    backtrail(&["man", "--directory", folder.path().to_str().unwrap()]);
    let book = place::workspace().join("docs");
    let (mut checked, mut missing) = (0, Vec::new());
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let Some(verb) = name.strip_prefix("backtrail-") else {
            continue;
        };
        let options = options(&fs::read_to_string(&path).unwrap());
        if options.is_empty() {
            continue;
        }
        let pages = PAGES.iter().find(|(start, _)| verb.split('-').next() == Some(start));
        let (_, pages) = pages.unwrap_or_else(|| panic!("no page describes {verb}"));
        let pages: Vec<String> = pages
            .iter()
            .chain(&["command.md"])
            .map(|page| fs::read_to_string(book.join(page)).unwrap())
            .collect();
        for names in options {
            checked += 1;
            if !names.iter().any(|name| pages.iter().any(|page| mentions(page, name))) {
                missing.push(format!("{verb}: {}", names.join(", ")));
            }
        }
    }
    assert!(checked > 200, "only {checked} options");
    assert!(missing.is_empty(), "not in the book:\n{}", missing.join("\n"));
    assert!(mentions("with `-o OUT`, --read", "-o") && mentions("--read", "--read"));
    assert!(!mentions("--read-limits --rea --a-o x-o -on", "--read") && !mentions("--a-o x-o -on", "-o"));
}

/// The names of each option that a man page lists, without help and version.
fn options(man: &str) -> Vec<Vec<String>> {
    let man = man.replace("\\-", "-");
    let listed = man.split(".SH OPTIONS").nth(1).unwrap_or_default();
    let listed = listed.split(".SH ").next().unwrap_or_default();
    let names = listed.lines().filter(|line| line.starts_with("\\fB-")).map(|line| {
        let names = line.split("\\fB").filter_map(|rest| rest.split("\\fR").next());
        names.filter(|name| name.starts_with('-')).map(str::to_owned).collect()
    });
    names
        .filter(|names: &Vec<String>| names[0] != "-h" && names[0] != "-V")
        .collect()
}

/// Whether a page has this option, not only one whose name contains it.
fn mentions(page: &str, option: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    page.match_indices(option)
        .any(|(at, _)| !page[..at].ends_with(is_name) && !page[at + option.len()..].starts_with(is_name))
}
