//! Stacks as JSON.

use std::io::{self, Write};

use backtrail_stacks::{Argument, Hidden, NamedFrame, NamedThread, Process};
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

fn thread(thread: &NamedThread, args: bool) -> Value {
    let frames: Vec<Value> = thread.frames.iter().map(|one| frame(one, args)).collect();
    json!({
        "tid": thread.tid,
        "name": thread.name,
        "stop": thread.end.name(),
        "signal": thread.signal,
        "frames": frames,
    })
}

fn frame(frame: &NamedFrame, args: bool) -> Value {
    let build_id: String = frame.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut document = json!({
        "pc": format!("{:#x}", frame.pc),
        "function": frame.function,
        "offset": frame.offset,
        "file": frame.file,
        "line": frame.line,
        "module": frame.path.as_deref().unwrap_or(&frame.module),
        "build_id": Some(build_id).filter(|id| !id.is_empty()),
        "inlined": frame.inlined,
        "how": frame.how.name(),
    });
    if args {
        document["args"] = frame.arguments.iter().map(argument).collect();
    }
    document
}

fn argument(argument: &Argument) -> Value {
    json!({
        "name": &*argument.name,
        "type": argument.type_name.as_deref(),
        "value": argument.value,
        "place": argument.place.as_deref(),
        "as_passed": argument.at_entry,
        "hidden": argument.hidden.name(),
    })
}
