//! What gdb says of the stacks of a process or a core.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::{Missing, command, scratch};

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
    /// Its registers, where they were asked for: those that gdb has.
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

/// The stacks of all threads by their number, without the functions that gdb concludes have left by a jump; `target` are gdb's own arguments: `-p PID`, or a program and a core.
///
/// # Errors
/// [`Missing`] where there is no gdb, or it has no Python or may not attach.
pub fn gdb(target: &[&OsStr]) -> Result<BTreeMap<u32, Vec<GdbFrame>>, Missing> {
    gdb_with_registers("gdb", target, &[])
}

/// The same by a gdb of this name, `gdb-multiarch` for one, with these registers.
///
/// # Errors
/// As [`gdb`].
pub fn gdb_with_registers(
    name: &str,
    target: &[&OsStr],
    registers: &[&str],
) -> Result<BTreeMap<u32, Vec<GdbFrame>>, Missing> {
    let folder = scratch();
    let script = folder.path().join("stacks.py");
    // Python's notation of a list of texts is Rust's.
    let script_text = format!("REGISTERS = {registers:?}\n{SCRIPT}");
    fs::write(&script, script_text).expect("a scratch folder can be written");
    let mut gdb = Command::new(name);
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
    let mut is_frame = true;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("THREAD"), Some(tid), None, None) => {
                current = tid.parse().expect("a number");
                stacks.insert(current, Vec::new());
            }
            // No frame of the stack: a function that has left by a jump, which gdb concludes from the compiler's notes.
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
