//! Gets the stacks of a process or a core from gdb and eu-stack.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Missing, TempDir, command, scratch};

/// A frame as reported by gdb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GdbFrame {
    /// Program counter or return address.
    pub pc: u64,
    /// The function, if gdb knows one.
    pub function: Option<String>,
    /// Whether it was inlined: its frame is the next one's.
    pub inlined: bool,
    /// Whether gdb calls it `<signal handler called>`.
    pub signal_trampoline: bool,
    /// Its registers, if requested, as far as gdb knows them.
    pub registers: BTreeMap<String, u64>,
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
        for name in REGISTERS:
            try:
                value = frame.read_register(name)
                if not value.is_optimized_out:
                    print("REGISTER", name, int(value.cast(gdb.lookup_type("long"))) & 0xffffffffffffffff)
            except gdb.error:
                pass
        try:
            frame = frame.older()
        except gdb.error:
            frame = None
print("WHOLE")
"#;

/// The stacks of all threads by their number, without the functions that gdb concludes have left by
/// a jump; `target` are gdb's own arguments: `-p PID`, or a program and a core.
///
/// # Errors
/// [`Missing`] if there is no gdb, or it has no Python or may not attach.
pub fn gdb(target: &[&OsStr]) -> Result<BTreeMap<u32, Vec<GdbFrame>>, Missing> {
    gdb_with_registers("gdb", target, &[])
}

/// The same with the gdb of this name, such as `gdb-multiarch`, and these registers.
///
/// # Errors
/// As [`gdb`].
pub fn gdb_with_registers(
    name: &str,
    target: &[&OsStr],
    registers: &[&str],
) -> Result<BTreeMap<u32, Vec<GdbFrame>>, Missing> {
    // Python's notation of a list of texts is Rust's.
    let script = format!("REGISTERS = {registers:?}\n{SCRIPT}");
    Ok(stacks(&print(name, target, &script)?))
}

/// The gdb of this name without user settings or network access.
pub(crate) fn plain(name: &str) -> Command {
    let mut gdb = Command::new(name);
    gdb.args(["-batch", "-nx"]);
    for setting in ["set debuginfod enabled off", "set auto-load no"] {
        gdb.args(["-iex", setting]);
    }
    gdb
}

/// The output of a script in gdb's Python, which prints `WHOLE` at its end.
fn print(name: &str, target: &[&OsStr], script: &str) -> Result<String, Missing> {
    let folder = scratch();
    let path = folder.path().join("script.py");
    fs::write(&path, script).expect("a scratch folder can be written");
    let mut gdb = plain(name);
    gdb.args(target).arg("-x").arg(&path);
    let finished = command::run(&mut gdb, Duration::from_secs(120))?;
    match finished.stdout.contains("WHOLE") {
        true => Ok(finished.stdout),
        false => Err(Missing(format!("{name} shows no stacks: {}", finished.describe()))),
    }
}

fn stacks(text: &str) -> BTreeMap<u32, Vec<GdbFrame>> {
    // `enum frame_type`.
    const INLINE_FRAME: &str = "2";
    const TAILCALL_FRAME: &str = "3";
    const SIGTRAMP_FRAME: &str = "4";
    let mut stacks: BTreeMap<u32, Vec<GdbFrame>> = BTreeMap::new();
    let mut current = 0;
    let mut is_frame = true;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("THREAD"), Some(tid), None, None) => {
                current = tid.parse().expect("a number");
                stacks.insert(current, Vec::new());
            }
            // Not a frame of the stack: a function that has left by a jump, which gdb concludes
            // from the compiler's notes.
            (Some("FRAME"), _, Some(TAILCALL_FRAME), _) => is_frame = false,
            (Some("FRAME"), Some(pc), Some(kind), Some(name)) => {
                is_frame = true;
                let frame = GdbFrame {
                    pc: pc.parse().expect("a number"),
                    function: Some(name.to_owned()).filter(|name| name != "?"),
                    inlined: kind == INLINE_FRAME,
                    signal_trampoline: kind == SIGTRAMP_FRAME,
                    registers: BTreeMap::new(),
                };
                stacks.entry(current).or_default().push(frame);
            }
            (Some("REGISTER"), Some(name), Some(value), None) if is_frame => {
                let frame = stacks.get_mut(&current).and_then(|frames| frames.last_mut());
                let value = value.parse().expect("a number");
                frame.expect("a frame").registers.insert(name.to_owned(), value);
            }
            _ => {}
        }
    }
    stacks
}

/// How shells and `env` end then.
const NO_SUCH_PROGRAM: i32 = 127;

/// Runs a program that crashes in a writable `folder`, and returns the core that the kernel, or
/// qemu, has written there.
///
/// # Errors
/// [`Missing`] if there is no such program, or cores go elsewhere.
///
/// # Panics
/// If it does not crash.
pub fn crashed(folder: &TempDir, command: &[&OsStr]) -> Result<PathBuf, Missing> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -c unlimited && exec \"$0\" \"$@\""])
        .args(command);
    let finished = command::run(shell.current_dir(folder.path()), Duration::from_secs(120))?;
    if finished.code() == NO_SUCH_PROGRAM {
        return Err(Missing(finished.stderr));
    }
    assert!(finished.code() > 128, "it did not crash: {}", finished.describe());
    let entries = fs::read_dir(folder.path()).expect("a scratch folder").flatten();
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut cores: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| name(path).contains("core"))
        .collect();
    // Besides the core that qemu writes of its guest, the kernel may write one of qemu.
    cores.sort_by_key(|path| !name(path).starts_with("qemu_"));
    cores
        .into_iter()
        .next()
        .ok_or(Missing("no core was written here (core_pattern)".to_owned()))
}

/// The stacks of all threads by their number, from eu-stack: program counters and return addresses,
/// without inlined calls. A stack ends where eu-stack cannot continue.
///
/// # Errors
/// [`Missing`] if there is no eu-stack, or it shows nothing.
pub fn eu_stack(target: &[&OsStr]) -> Result<BTreeMap<u32, Vec<u64>>, Missing> {
    let mut command = Command::new("eu-stack");
    command.args(["-q", "-n", "0"]).args(target);
    command.env_remove("DEBUGINFOD_URLS");
    let finished = command::run(&mut command, Duration::from_secs(120))?;
    let mut stacks: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut current = 0;
    for line in finished.stdout.lines() {
        if let Some(tid) = line.strip_prefix("TID ") {
            current = tid.trim_end_matches(':').parse().expect("a number");
            stacks.insert(current, Vec::new());
        } else if let Some(frame) = line.strip_prefix('#') {
            let address = frame.split_whitespace().nth(1).and_then(|word| word.strip_prefix("0x"));
            let address = address.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            stacks.entry(current).or_default().push(address.expect("an address"));
        }
    }
    match stacks.is_empty() {
        true => Err(Missing(format!("eu-stack shows no stacks: {}", finished.describe()))),
        false => Ok(stacks),
    }
}

/// Writes a core of a running process with gdb's `generate-core-file`.
///
/// # Errors
/// [`Missing`] if there is no gdb, or it may not attach.
pub fn gcore(pid: u32, path: &Path) -> Result<(), Missing> {
    let mut gdb = plain("gdb");
    gdb.args(["-p", &pid.to_string(), "-ex"]);
    gdb.arg(format!("generate-core-file {}", path.display()));
    let finished = command::run(&mut gdb, Duration::from_secs(120))?;
    match path.exists() {
        true => Ok(()),
        false => Err(Missing(format!("gdb makes no core: {}", finished.describe()))),
    }
}
