//! What runs now, on a terminal and elsewhere.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{available, program};
use serde_json::Value;

use crate::common::{LIMIT, setup};

/// A program that spends its time in its function `work`.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn busy() -> Option<(Busy, Workload)> {
    let workload = available(workload::built("shares", &program::SHARES, &["60"]))?;
    let mut start = Command::new(&workload.arguments[0]);
    start.args(&workload.arguments[1..]).stdout(Stdio::null());
    Some((Busy(start.spawn().expect("it was built")), workload))
}

fn top(arguments: &[&str]) -> Finished {
    let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command::run(run.arg("top").args(arguments), LIMIT).expect("the command is there")
}

#[test]
fn one_table_is_printed_at_once_and_several_until_the_end() {
    let Some(_setup) = setup() else { return };
    let Some((busy, workload)) = busy() else { return };
    let pid = busy.0.id().to_string();
    let once = top(&["--once", "-p", &pid]);
    assert_eq!(once.code(), 0, "{}", once.describe());
    assert_eq!(
        once.stdout.matches(" self %  total %").count(),
        1,
        "{}",
        once.describe()
    );
    assert!(once.stdout.contains("main"), "{}", once.describe());
    let threads = top(&["--once", "--by", "thread", "-p", &pid]);
    assert!(threads.stdout.contains(&pid), "{}", threads.describe());
    drop(busy);
    let mut arguments = vec!["--interval", "0.2", "--"];
    arguments.push(&workload.arguments[0]);
    arguments.push("1");
    let command = top(&arguments);
    assert_eq!(command.code(), 0, "{}", command.describe());
    assert!(
        command.stdout.matches(" self %  total %").count() > 1,
        "{}",
        command.describe()
    );
    assert!(
        command.stdout.contains("samples since the start"),
        "{}",
        command.describe()
    );
    let nobody = top(&["--once", "-p", "4194000"]);
    assert_eq!(nobody.code(), 2, "{}", nobody.describe());
    assert!(nobody.stdout.is_empty(), "{}", nobody.describe());
}

#[test]
fn all_processes_and_those_of_a_group() {
    let Some(_setup) = setup() else { return };
    let Some((busy, _workload)) = busy() else { return };
    let pid = busy.0.id().to_string();
    let all = top(&["--once", "--interval", "2", "--by", "process", "-a"]);
    assert_eq!(all.code(), 0, "{}", all.describe());
    assert!(all.stdout.starts_with("all processes: "), "{}", all.describe());
    assert!(all.stdout.contains(&format!(" shares {pid}")), "{}", all.describe());
    let both = top(&["-a", "-p", &pid]);
    assert_eq!(both.code(), 2, "{}", both.describe());
    let nowhere = top(&["--once", "--cgroup", "/no/such/group"]);
    assert_eq!(nowhere.code(), 2, "{}", nowhere.describe());
    assert!(nowhere.stderr.contains("/no/such/group"), "{}", nowhere.describe());
}

/// What `backtrail top` writes to a terminal after each key, and its status. With each key comes
/// what is waited for, before the first key with an empty one.
fn typed(keys: &[[&str; 2]], environment: (&str, &str), pid: u32) -> Option<(Vec<String>, i64)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/terminal.py");
    let mut run = Command::new("python3");
    run.arg(script).arg(serde_json::to_string(keys).expect("plain text"));
    run.env(environment.0, environment.1);
    run.args([env!("CARGO_BIN_EXE_backtrail"), "top", "--interval", "0.5", "-p"]);
    let finished = available(command::run(run.arg(pid.to_string()), LIMIT))?;
    assert!(finished.status.success(), "{}", finished.describe());
    let parts: Vec<Value> = serde_json::from_str(&finished.stdout).expect("JSON");
    let (status, texts) = parts.split_last().expect("a status");
    let texts = texts.iter().map(|text| text.as_str().expect("text").to_owned());
    Some((texts.collect(), status.as_i64().expect("a number")))
}

#[test]
fn a_screen_obeys_its_keys_and_sends_changed_lines_only() {
    let Some(_setup) = setup() else { return };
    let Some((busy, _)) = busy() else { return };
    let keys = [
        ["", "main"],
        ["p", "process\u{1b}[m"],
        ["t", "thread "],
        [" ", "[paused]"],
        ["a", "since the start"],
        ["+", "\u{1b}[2;1Hf functions"],
        ["q", "\u{1b}[?1049l"],
    ];
    let Some((parts, status)) = typed(&keys, ("NO_COLOR", ""), busy.0.id()) else {
        return;
    };
    let [first, process, thread, paused, whole, larger, end] = &parts[..] else {
        panic!("{parts:#?}");
    };
    assert_eq!(status, 0);
    // The keys' line, an emphasised heading.
    assert!(
        first.contains("\u{1b}[?1049h") && first.contains("\u{1b}[2;1Hf functions"),
        "{first}"
    );
    assert!(first.contains("\u{1b}[7m self %") && first.contains("main"), "{first}");
    assert!(process.contains("process\u{1b}[m"), "{process}");
    for part in [process, thread, paused, whole] {
        assert!(
            !part.contains("\u{1b}[2;1H"),
            "the line of keys has not changed: {part}"
        );
    }
    assert!(thread.contains("thread "), "{thread}");
    assert!(paused.contains("[paused]"), "{paused}");
    assert!(
        whole.contains("since the start") && whole.contains("[paused]"),
        "{whole}"
    );
    assert!(
        larger.contains("\u{1b}[2J") && larger.contains("\u{1b}[2;1Hf functions"),
        "{larger}"
    );
    let (_, last) = end
        .split_once("\u{1b}[?25h\u{1b}[?1049l")
        .expect("the terminal is given back");
    assert!(last.contains("since the start") && !last.contains('\u{1b}'), "{last}");
}

#[test]
fn a_screen_without_colours_has_none() {
    let Some(_setup) = setup() else { return };
    let Some((busy, _)) = busy() else { return };
    let Some((parts, status)) = typed(&[["", " self %"], ["q", ""]], ("NO_COLOR", "1"), busy.0.id()) else {
        return;
    };
    assert_eq!(status, 0);
    assert!(!parts.iter().any(|part| part.contains("\u{1b}[7m")), "{parts:#?}");
    assert!(parts.iter().any(|part| part.contains(" self %")), "{parts:#?}");
}
