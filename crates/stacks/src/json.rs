//! Named stacks as JSON, as `backtrail stack --json` prints them.

use serde_json::{Value, json};

use crate::names::{NamedFrame, NamedThread};
use crate::process::Argument;

/// A thread; its arguments too, if they were requested.
pub fn thread(thread: &NamedThread, args: bool) -> Value {
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
    let build_id = hex(&frame.build_id);
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

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
