//! Man pages and completions, as a packager gets them.

use std::time::Duration;

use backtrail_testkit::{command, scratch};

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
