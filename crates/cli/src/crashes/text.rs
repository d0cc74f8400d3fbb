//! Crashes as text.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use backtrail_stacks::crash::Entry;
use serde_json::Value;

use super::Group;
use crate::error::{one_line, shown};

/// The longest program and function in a list, in characters.
const PROGRAM: usize = 20;
const FUNCTION: usize = 60;

/// A line for each crash.
pub(super) fn list(out: &mut dyn Write, entries: &[Entry]) -> io::Result<()> {
    if entries.is_empty() {
        return writeln!(out, "no crashes");
    }
    writeln!(
        out,
        "{:20}  {:26}  {:8}  {:PROGRAM$}  function",
        "time", "crash", "signal", "program"
    )?;
    for entry in entries {
        let summary = &entry.summary;
        writeln!(
            out,
            "{:20}  {:26}  {:8}  {:PROGRAM$}  {}",
            field(summary, "time"),
            field(summary, "id"),
            field(summary, "signal"),
            cut(&field(summary, "program"), PROGRAM),
            function(summary),
        )?;
    }
    Ok(())
}

/// A line for each group of crashes with the same stack.
pub(super) fn groups(out: &mut dyn Write, groups: &[Group<'_>]) -> io::Result<()> {
    if groups.is_empty() {
        return writeln!(out, "no crashes");
    }
    writeln!(
        out,
        "{:>5}  {:20}  {:26}  {:8}  {:PROGRAM$}  function",
        "count", "last time", "last crash", "signal", "program"
    )?;
    for group in groups {
        let summary = group.last();
        writeln!(
            out,
            "{:>5}  {:20}  {:26}  {:8}  {:PROGRAM$}  {}",
            group.entries.len(),
            field(summary, "time"),
            field(summary, "id"),
            field(summary, "signal"),
            cut(&field(summary, "program"), PROGRAM),
            function(summary),
        )?;
    }
    Ok(())
}

fn field(summary: &Value, name: &str) -> String {
    one_line(summary[name].as_str().unwrap_or("?")).into_owned()
}

fn function(summary: &Value) -> String {
    match summary["complete"].as_bool() {
        Some(true) => cut(&field(summary, "function"), FUNCTION).into_owned(),
        _ => format!("{} (incomplete)", cut(&field(summary, "function"), FUNCTION)),
    }
}

fn cut(text: &str, longest: usize) -> Cow<'_, str> {
    match text.char_indices().nth(longest) {
        None => Cow::Borrowed(text),
        Some(_) => Cow::Owned(text.chars().take(longest - 1).chain(['…']).collect()),
    }
}

/// All about a crash.
pub(super) fn crash(out: &mut dyn Write, crash: &Value, core: Option<&Path>) -> io::Result<()> {
    let path = text(&crash["path"]).or_else(|| text(&crash["name"]));
    write!(out, "crash {}: {}", plain(&crash["id"]), path.unwrap_or_default())?;
    signal(out, &crash["signal"])?;
    writeln!(out)?;
    line(out, "time", text(&crash["time"]))?;
    let inside = crash["pid_in_container"].as_u64();
    let inside = inside.map_or(String::new(), |pid| format!(" ({pid} in its container)"));
    line(
        out,
        "process",
        crash["pid"].as_u64().map(|pid| format!("{pid}{inside}").into()),
    )?;
    line(out, "user", crash["uid"].as_u64().map(|uid| uid.to_string().into()))?;
    let words = crash["command_line"].as_array();
    let words = words.map(|words| words.iter().filter_map(text).collect::<Vec<_>>().join(" "));
    line(out, "command line", words.map(Cow::Owned))?;
    line(out, "control group", text(&crash["control_group"]))?;
    line(out, "message", text(&crash["abort_message"]))?;
    line(out, "stack key", text(&crash["key"]))?;
    line(out, "core", core.map(|path| shown(path).into()))?;
    for problem in crash["problems"].as_array().into_iter().flatten() {
        line(out, "problem", text(problem))?;
    }
    threads(out, crash)?;
    registers(out, &crash["registers"])?;
    if let (Some(pc), Some(bytes)) = (
        text(&crash["instructions"]["pc"]),
        text(&crash["instructions"]["bytes"]),
    ) {
        let start = plain(&crash["instructions"]["start"]);
        writeln!(out, "\ninstructions from {start}, pc {pc}:\n{bytes}")?;
    }
    let modules = crash["modules"].as_array();
    if let Some(modules) = modules.filter(|modules| !modules.is_empty()) {
        writeln!(out, "\nmodules:")?;
        for module in modules {
            let build_id = text(&module["build_id"]).unwrap_or(Cow::Borrowed("-"));
            writeln!(out, "{} {build_id} {}", plain(&module["base"]), plain(&module["path"]))?;
        }
    }
    Ok(())
}

fn signal(out: &mut dyn Write, signal: &Value) -> io::Result<()> {
    let Some(name) = text(&signal["name"]) else {
        return Ok(());
    };
    write!(out, " died by {name}")?;
    if let Some(address) = text(&signal["address"]) {
        write!(out, " at address {address}")?;
    }
    match signal["sender"].as_u64() {
        Some(sender) => write!(out, ", sent by process {sender}"),
        None => Ok(()),
    }
}

fn line(out: &mut dyn Write, name: &str, value: Option<Cow<'_, str>>) -> io::Result<()> {
    match value {
        Some(value) => writeln!(out, "  {:14} {value}", format!("{name}:")),
        None => Ok(()),
    }
}

fn threads(out: &mut dyn Write, crash: &Value) -> io::Result<()> {
    let Some(threads) = crash["threads"].as_array() else {
        return writeln!(out, "\nno stacks");
    };
    for thread in threads {
        write!(out, "\nthread {}", thread["tid"])?;
        if let Some(name) = text(&thread["name"]) {
            write!(out, " \"{name}\"")?;
        }
        if let Some(signal) = thread["signal"].as_u64() {
            write!(out, ", signal {signal}")?;
        }
        writeln!(out)?;
        let left_out = &thread["omitted"];
        let frames = thread["frames"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut stepped = 0;
        for (number, frame) in frames.iter().enumerate() {
            if left_out["after"].as_u64() == Some(stepped) && frame["inlined"] == false {
                writeln!(out, "   … {} more frames", left_out["count"])?;
            }
            stepped += u64::from(frame["inlined"] == false);
            write_frame(out, number, frame)?;
        }
        if let Some(stop) = text(&thread["stop"]).filter(|stop| stop != "end_of_stack") {
            writeln!(out, "the stack ends early: {stop}")?;
        }
    }
    Ok(())
}

fn write_frame(out: &mut dyn Write, number: usize, frame: &Value) -> io::Result<()> {
    write!(
        out,
        "#{number:<2} {} in {}",
        plain(&frame["pc"]),
        plain(&frame["function"])
    )?;
    if let Some(offset) = frame["offset"].as_u64() {
        write!(out, "+{offset:#x}")?;
    }
    let arguments = frame["args"].as_array().filter(|arguments| !arguments.is_empty());
    if let Some(arguments) = arguments {
        let arguments: Vec<String> = arguments.iter().map(argument).collect();
        write!(out, " ({})", arguments.join(", "))?;
    }
    if let Some(file) = text(&frame["file"]) {
        write!(out, " at {file}")?;
        if let Some(line) = frame["line"].as_u64() {
            write!(out, ":{line}")?;
        }
    }
    let inlined = if frame["inlined"] == true { ", inlined" } else { "" };
    let module = plain(&frame["module"]);
    writeln!(out, " ({}{inlined})", module.rsplit('/').next().unwrap_or_default())
}

fn argument(argument: &Value) -> String {
    let name = plain(&argument["name"]);
    if argument["hidden"] == "value" {
        return format!("{name}=<{}>", plain(&argument["type"]));
    }
    let entry = if argument["as_passed"] == true { "@entry" } else { "" };
    let value = text(&argument["value"]).unwrap_or(Cow::Borrowed("..."));
    format!("{name}{entry}={value}")
}

/// The registers of the thread that died, four in a line.
fn registers(out: &mut dyn Write, registers: &Value) -> io::Result<()> {
    let Some(first) = registers[0]["registers"].as_object().filter(|first| !first.is_empty()) else {
        return Ok(());
    };
    writeln!(out, "\nregisters of thread {}:", registers[0]["tid"])?;
    let named: Vec<String> = first
        .iter()
        .map(|(name, value)| format!("{name:>4} {:18}", plain(value)))
        .collect();
    for four in named.chunks(4) {
        writeln!(out, "{}", four.join(" ").trim_end())?;
    }
    Ok(())
}

/// A text of a report, as one line without control characters.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    value.as_str().map(one_line)
}

fn plain(value: &Value) -> Cow<'_, str> {
    text(value).unwrap_or_default()
}
