//! `backtrail trace record` and `recover`, with programs that use the tracer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use backtrail_testkit::endings::SmallDisk;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn backtrail(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.args(["trace"]).args(arguments);
    command
}

/// An example of the tracer's crate, built now if it was not.
fn example(name: &str) -> PathBuf {
    let built = backtrail_testkit::place::built(&["--example", name]);
    built.expect("the workspace can be built").join("examples").join(name)
}

/// Lines of babeltrace2 with this name.
fn count(directory: &Path, name: &str) -> Option<usize> {
    let peer = backtrail_testkit::peers::babeltrace2_2_0()?;
    let output = peer.command().arg(directory).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.lines().filter(|line| line.contains(name)).count())
}

#[test]
fn a_command_and_its_children() {
    let scratch = backtrail_testkit::scratch();
    let (session, unused) = (scratch.path().join("session"), scratch.path().join("unused"));
    let session_text = session.to_str().unwrap();
    let output = backtrail(&[
        "record",
        "-o",
        session_text,
        "--events",
        "*,-hammer:interrupt",
        "--rotate-size",
        "20000",
        "--",
    ])
    .arg(example("hammer"))
    .arg(&unused)
    .args(["500", "2", "2"])
    .output()
    .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "nothing to warn of: {output:?}");
    // The recorder has the events, not the directory that the program asks for.
    assert!(!unused.exists());
    assert!(session.join("000001").is_dir(), "rotated by size");
    if let Some(ticks) = count(&session, "hammer:tick") {
        assert_eq!((ticks, count(&session, "hammer:interrupt")), (3 * 2 * 500, Some(0)));
    }
}

#[test]
fn attached_and_rotated() {
    let scratch = backtrail_testkit::scratch();
    let (folder, session) = (scratch.path().join("folder"), scratch.path().join("session"));
    let mut program = Command::new(example("attachable"))
        .arg(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    // No directory is made for the time before the program came.
    let parts = |session: &Path| std::fs::read_dir(session).map_or(0, |parts| parts.count());
    let record = |session: &Path, events: &str| {
        let mut recorder = backtrail(&[
            "record",
            "--attach",
            "--folder",
            &text(&folder),
            "-o",
            &text(session),
            "--events",
            events,
        ])
        .args(["--rotate-every", "0.2"])
        .spawn()
        .unwrap();
        while parts(session) < 2 && recorder.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        kill_process(Pid::from_child(&recorder), Signal::INT).unwrap();
        assert!(recorder.wait().unwrap().success());
    };
    record(&session, "app:odd");
    let second = scratch.path().join("second");
    record(&second, "app:even");
    // Its end of input is its end.
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert!(parts(&session) >= 2, "rotated by time");
    if let Some(odd) = count(&session, "app:odd") {
        assert!(odd > 0);
        assert_eq!(count(&session, "app:even"), Some(0));
        assert_eq!(count(&second, "app:odd"), Some(0));
        assert!(count(&second, "app:even").unwrap() > 0);
    }
}

#[test]
fn recovers_what_a_killed_program_left() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let mut program = Command::new(example("hammer"))
        .arg(&directory)
        .args(["300", "1", "0", "wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(program.stdout.as_mut().unwrap()),
        &mut line,
    )
    .unwrap();
    assert_eq!(line, "done\n");
    program.kill().unwrap();
    program.wait().unwrap();
    let output = backtrail(&["recover", directory.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    if let Some(ticks) = count(&directory, "hammer:tick") {
        assert_eq!(ticks, 300);
    }
    let nowhere = backtrail(&["recover", "/nowhere"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&nowhere.stderr).contains("/nowhere"),
        "{nowhere:?}"
    );
}

#[test]
fn stacks_have_names() {
    let scratch = backtrail_testkit::scratch();
    let directory = scratch.path().join("trace");
    let output = Command::new(example("modes"))
        .args(["family", directory.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    for arguments in [&["--symbols"][..], &["--symbols", "--json"]] {
        let output = backtrail(&["show", directory.to_str().unwrap()])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let depth = |line: &str| {
            let (_, symbols) = line.split_once("symbols").unwrap();
            assert!(
                symbols.contains("modes::main+") && symbols.contains("(libc.so.6)"),
                "{line}"
            );
            let innermost = symbols.find("::").map(|at| symbols.split_at(at).0);
            assert!(innermost.is_some_and(|before| before.ends_with("modes")), "{line}");
            symbols.matches("modes::descend+").count()
        };
        let mut depths: Vec<usize> = text.lines().map(depth).collect();
        depths.sort_unstable();
        // The child, which ended at once, and its parent.
        assert_eq!(depths, [11, 21]);
    }
}

/// More frames than are shown, and a stack that was cut when it was recorded.
#[test]
fn what_is_missing_of_a_stack_is_said() {
    let scratch = backtrail_testkit::scratch();
    for (mode, frames) in [("deep", 513..=513), ("cut", 50..=512)] {
        let directory = scratch.path().join(mode);
        let status = Command::new(example("modes"))
            .arg(mode)
            .arg(&directory)
            .status()
            .unwrap();
        assert!(status.success(), "{mode}");
        let output = backtrail(&["show", "--symbols", "--json", directory.to_str().unwrap()])
            .output()
            .unwrap();
        let event: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let stack = event["symbols"]["stack"].as_array().unwrap();
        assert!(frames.contains(&stack.len()), "{mode}: {}", stack.len());
        assert_eq!(stack[stack.len() - 1], "outer frames are missing", "{mode}");
    }
}

/// A recorder of a program with an event each millisecond, onto a disk that is full by now: a file
/// takes a half of it.
struct FullDisk {
    disk: SmallDisk,
    scratch: TempDir,
    recorder: Child,
}

impl FullDisk {
    fn new() -> Option<FullDisk> {
        let Some(disk) = SmallDisk::new(64) else {
            backtrail_testkit::skip("only root can mount a small disk");
            return None;
        };
        let scratch = backtrail_testkit::scratch();
        fs::write(disk.path().join("filler"), [0; 32 << 10]).unwrap();
        let recorder = backtrail(&["record", "-o"])
            .arg(disk.path().join("session"))
            .arg("--")
            .arg(example("attachable"))
            .arg(scratch.path())
            .stdin(Stdio::piped())
            .stderr(fs::File::create(scratch.path().join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let full = FullDisk {
            disk,
            scratch,
            recorder,
        };
        full.wait("the disk is not full", || full.stderr().contains("No space left"));
        Some(full)
    }

    fn wait(&self, for_what: &str, until: impl Fn() -> bool) {
        let begin = Instant::now();
        while !until() {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "{for_what}: {}",
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.scratch.path().join("stderr")).unwrap()
    }

    /// The trace of the only process.
    fn trace(&self) -> PathBuf {
        let mut traces = fs::read_dir(self.disk.path().join("session")).unwrap();
        traces.next().expect("a trace").unwrap().path()
    }

    fn bytes(&self) -> u64 {
        let files = fs::read_dir(self.trace()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    /// Ends the program, and returns the recorder's exit status.
    fn end(&mut self) -> Option<i32> {
        drop(self.recorder.stdin.take());
        self.recorder.wait().unwrap().code()
    }

    /// The numbers of all events, as babeltrace2 reads them.
    fn numbers(&self) -> Option<Vec<u64>> {
        let peer = backtrail_testkit::peers::babeltrace2_2_0()?;
        let output = peer.command().arg(self.trace()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = |line: &str| line.split("number = ").nth(1)?.split(' ').next()?.parse().ok();
        Some(text.lines().filter_map(number).collect())
    }
}

#[test]
fn goes_on_when_a_full_disk_has_space_again() {
    let Some(mut full) = FullDisk::new() else { return };
    let before = full.bytes();
    fs::remove_file(full.disk.path().join("filler")).unwrap();
    full.wait("it does not go on", || full.bytes() > before);
    assert_eq!(full.end(), Some(0), "{}", full.stderr());
    assert_eq!(full.stderr().lines().count(), 1, "{}", full.stderr());
    if let Some(numbers) = full.numbers() {
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "none is missing");
    }
}

#[test]
fn what_a_full_disk_has_cost_is_reported() {
    let Some(mut full) = FullDisk::new() else { return };
    // The stream's last page may still have room, though not for ever.
    std::thread::sleep(Duration::from_secs(1));
    let status = full.end();
    let stderr = full.stderr();
    let nothing = stderr.contains("no event is lost");
    assert_eq!(status, Some(if nothing { 0 } else { 2 }), "{stderr}");
    let lost = stderr.split(" KiB of events are lost").next().unwrap_or_default();
    let lost: u64 = lost.rsplit(' ').next().unwrap_or_default().parse().unwrap_or(0);
    assert_ne!(lost > 0, nothing, "{stderr}");
    let check = backtrail(&["check"]).arg(full.trace()).output().unwrap();
    assert!(check.status.success(), "{check:?}");
    if let Some(numbers) = full.numbers() {
        assert!(!numbers.is_empty() && numbers.iter().copied().eq(0..numbers.len() as u64));
    }
}
