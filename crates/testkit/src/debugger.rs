//! What gdb says of the stacks of a process or a core.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::{Missing, TempDir, command, scratch};

/// A frame as gdb has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GdbFrame {
    /// Program counter or return address.
    pub pc: u64,
    /// The function, where gdb knows one.
    pub function: Option<String>,
    /// Whether it was inlined: its frame is the next one's.
    pub inlined: bool,
    /// Whether gdb calls it `<signal handler called>`.
    pub signal_trampoline: bool,
}

/// Prints every frame of every thread, beyond `main` and the entry point too.
const SCRIPT: &str = r#"
import gdb
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
for thread in gdb.selected_inferior().threads():
    thread.switch()
    print("THREAD", thread.ptid[1] or thread.ptid[0])
    frame = gdb.newest_frame()
    while frame is not None:
        print("FRAME", frame.pc(), frame.type(), frame.name() or "?")
        try:
            frame = frame.older()
        except gdb.error:
            frame = None
print("WHOLE")
"#;

/// The stacks of all threads by their number, without the functions that gdb concludes have left by a jump; `target` are gdb's own arguments: `-p PID`, or a program and a core.
///
/// # Errors
/// [`Missing`] where there is no gdb, or it has no Python or may not attach.
pub fn gdb(target: &[&OsStr]) -> Result<BTreeMap<u32, Vec<GdbFrame>>, Missing> {
    let folder = scratch();
    let script = folder.path().join("stacks.py");
    fs::write(&script, SCRIPT).expect("a scratch folder can be written");
    let mut gdb = Command::new("gdb");
    gdb.args([
        "-batch",
        "-nx",
        "-iex",
        "set debuginfod enabled off",
        "-iex",
        "set auto-load no",
    ]);
    gdb.args(target).arg("-x").arg(&script);
    let finished = command::run(&mut gdb, Duration::from_secs(120))?;
    if !finished.stdout.contains("WHOLE") {
        return Err(Missing(format!("gdb shows no stacks: {}", finished.describe())));
    }
    Ok(stacks(&finished.stdout))
}

fn stacks(text: &str) -> BTreeMap<u32, Vec<GdbFrame>> {
    // `enum frame_type`.
    const INLINE_FRAME: &str = "2";
    const TAILCALL_FRAME: &str = "3";
    const SIGTRAMP_FRAME: &str = "4";
    let mut stacks: BTreeMap<u32, Vec<GdbFrame>> = BTreeMap::new();
    let mut current = 0;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("THREAD"), Some(tid), None, None) => {
                current = tid.parse().expect("a number");
                stacks.insert(current, Vec::new());
            }
            // No frame of the stack: a function that has left by a jump, which gdb concludes from the compiler's notes.
            (Some("FRAME"), _, Some(TAILCALL_FRAME), _) => {}
            (Some("FRAME"), Some(pc), Some(kind), Some(name)) => {
                let frame = GdbFrame {
                    pc: pc.parse().expect("a number"),
                    function: Some(name.to_owned()).filter(|name| name != "?"),
                    inlined: kind == INLINE_FRAME,
                    signal_trampoline: kind == SIGTRAMP_FRAME,
                };
                stacks.entry(current).or_default().push(frame);
            }
            _ => {}
        }
    }
    stacks
}

/// Runs a program that crashes, where cores may be written, and gives the core that the kernel, or qemu, has left in `folder`.
///
/// # Errors
/// [`Missing`] where cores go elsewhere.
///
/// # Panics
/// If it does not crash.
pub fn crashed(folder: &TempDir, command: &[&OsStr]) -> Result<PathBuf, Missing> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -c unlimited && exec \"$0\" \"$@\""])
        .args(command);
    let finished = command::run(shell.current_dir(folder.path()), Duration::from_secs(120))?;
    assert!(finished.code() > 128, "it did not crash: {}", finished.describe());
    let entries = fs::read_dir(folder.path()).expect("a scratch folder").flatten();
    let mut paths = entries.map(|entry| entry.path());
    let is_core = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().contains("core"))
    };
    paths
        .find(is_core)
        .ok_or(Missing("no core was written here (core_pattern)".to_owned()))
}
