//! Stacks as JSON.

use std::io::{self, Write};

use backtrail_stacks::{Hidden, NamedThread, Process, json::thread};
use serde_json::{Value, json};

/// Writes one document.
pub(super) fn write(out: &mut dyn Write, process: &Process, threads: &[NamedThread], args: bool) -> io::Result<()> {
    let named = threads;
    let threads: Vec<Value> = named.iter().map(|one| thread(one, args)).collect();
    let mut document = json!({
        "pid": process.pid,
        "name": process.name,
        "architecture": process.architecture,
        "signal": process.signal,
        "threads": threads,
    });
    if args {
        document["hidden_arguments"] = hidden(named).into();
    }
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}

/// The number of arguments that are not shown in full.
pub(super) fn hidden(threads: &[NamedThread]) -> usize {
    let frames = threads.iter().flat_map(|thread| &thread.frames);
    let arguments = frames.flat_map(|frame| &frame.arguments);
    arguments.filter(|argument| argument.hidden != Hidden::Nothing).count()
}
