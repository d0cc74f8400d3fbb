//! Stacks as text.

use std::borrow::Cow;
use std::io::{self, Write};

use backtrail_stacks::fold::{self, Change};
use backtrail_stacks::{End, NamedFrame, NamedThread, Process};

use crate::error::one_line;

/// The most thread numbers printed for threads with equal stacks.
const NAMED_THREADS: usize = 8;

/// The longest function name, in characters: C++ templates and Rust's generic types can fill pages.
const LONGEST_NAME: usize = 200;

/// How the names of code in no file begin; an address follows.
const UNKNOWN: &str = "[unknown]+0x";

/// How threads and frames are printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Print each thread separately.
    pub(super) all: bool,
    /// Print function names in full.
    pub(super) full_names: bool,
}

/// Writes the process and its threads; after an earlier look only what has changed, or one line if
/// nothing has.
pub(super) fn write(
    out: &mut dyn Write,
    process: &Process,
    named: &[NamedThread],
    changes: Option<&(Vec<Change>, Vec<u32>)>,
    options: Options,
) -> io::Result<()> {
    write_process(out, process)?;
    if changes.is_some_and(|(each, gone)| gone.is_empty() && each.iter().all(|change| *change == Change::Same)) {
        return writeln!(out, " as before");
    }
    match process.signal {
        Some(signal) => writeln!(out, ", {} signal {signal}", what_it_did(signal))?,
        None => writeln!(out)?,
    }
    let groups = if options.all {
        (0..named.len()).map(|index| vec![index]).collect()
    } else {
        fold::equal_stacks(&process.threads)
    };
    let change = |index: usize| changes.map(|(each, _)| each[index]);
    let mut unchanged = 0;
    for mut group in groups {
        let size = group.len();
        group.retain(|&index| change(index) != Some(Change::Same));
        unchanged += size - group.len();
        let Some(&first) = group.first() else { continue };
        writeln!(out)?;
        let new = change(first) == Some(Change::New);
        write_heading(out, named, &group, new)?;
        write_frames(out, &named[first], options)?;
    }
    if unchanged > 0 {
        writeln!(out, "\n{unchanged} {} as before", threads(unchanged))?;
    }
    if let Some((_, gone)) = changes.filter(|(_, gone)| !gone.is_empty()) {
        let numbers: Vec<String> = gone.iter().map(u32::to_string).collect();
        writeln!(out, "\nended: {} {}", threads(gone.len()), numbers.join(" "))?;
    }
    match super::json::hidden(named) {
        0 => Ok(()),
        1 => writeln!(out, "\nnot shown in full: 1 argument (--args, --hide)"),
        count => writeln!(out, "\nnot shown in full: {count} arguments (--args, --hide)"),
    }
}

/// What the signal of a core did to its process. A debugger also writes cores of processes that
/// run on, as gdb's gcore does, with the signal that has stopped them.
fn what_it_did(signal: u32) -> &'static str {
    match i32::try_from(signal) {
        Ok(libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => "stopped by",
        Ok(libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH) => "at",
        _ => "ended by",
    }
}

fn threads(count: usize) -> &'static str {
    if count == 1 { "thread" } else { "threads" }
}

fn write_process(out: &mut dyn Write, process: &Process) -> io::Result<()> {
    let count = process.threads.len();
    write!(out, "process {}", process.pid)?;
    if !process.name.is_empty() {
        write!(out, " {:?}", process.name)?;
    }
    write!(out, ", {count} {}", threads(count))
}

fn write_heading(out: &mut dyn Write, named: &[NamedThread], group: &[usize], new: bool) -> io::Result<()> {
    let first = &named[group[0]];
    if group.len() == 1 {
        write!(out, "thread {}", first.tid)?;
    } else {
        let numbers: Vec<String> = group
            .iter()
            .take(NAMED_THREADS)
            .map(|&index| named[index].tid.to_string())
            .collect();
        write!(out, "{} threads: {}", group.len(), numbers.join(" "))?;
        if group.len() > NAMED_THREADS {
            write!(out, " …")?;
        }
    }
    if let Some(name) = &first.name {
        let alike = group.iter().all(|&index| named[index].name.as_ref() == Some(name));
        write!(out, " {name:?}{}", if alike { "" } else { " …" })?;
    }
    if let Some(signal) = first.signal {
        write!(out, ", signal {signal}")?;
    }
    writeln!(out, "{}", if new { ", new" } else { "" })
}

fn write_frames(out: &mut dyn Write, thread: &NamedThread, options: Options) -> io::Result<()> {
    let width = thread.frames.len().saturating_sub(1).to_string().len();
    for (number, frame) in thread.frames.iter().enumerate() {
        write!(out, "#{number:<width$} ")?;
        write_frame(out, frame, options)?;
    }
    match thread.end {
        End::COMPLETE => Ok(()),
        End::NotStopped(_) => writeln!(out, "no stack: {}", thread.end.name()),
        End::Stop(_) => writeln!(out, "the stack ends early: {}", thread.end.name()),
    }
}

fn write_frame(out: &mut dyn Write, frame: &NamedFrame, options: Options) -> io::Result<()> {
    let function = match options.full_names {
        // The address within no file is that of the frame.
        _ if frame.function.starts_with(UNKNOWN) => Cow::Borrowed("[unknown]"),
        true => Cow::Borrowed(&*frame.function),
        false => shortened(&frame.function, LONGEST_NAME),
    };
    write!(out, "{:#018x} in {}", frame.pc, one_line(&function))?;
    if let Some(offset) = frame.offset {
        write!(out, "+{offset:#x}")?;
    }
    if !frame.arguments.is_empty() {
        for (index, argument) in frame.arguments.iter().enumerate() {
            out.write_all(if index == 0 { b" (" } else { b", " })?;
            out.write_all(one_line(&argument.to_string()).as_bytes())?;
        }
        out.write_all(b")")?;
    }
    if let Some(file) = &frame.file {
        write!(out, " at {}", one_line(file))?;
        if let Some(line) = frame.line {
            write!(out, ":{line}")?;
        }
    }
    let inlined = if frame.inlined { ", inlined" } else { "" };
    writeln!(out, " ({}{inlined})", one_line(&frame.module))
}

/// A name of at most `longest` characters: a longer one keeps its beginning and its end.
fn shortened(name: &str, longest: usize) -> Cow<'_, str> {
    let count = name.chars().count();
    if count <= longest {
        return Cow::Borrowed(name);
    }
    let kept = longest.saturating_sub(1);
    let begin: String = name.chars().take(kept.div_ceil(2)).collect();
    let end = name.chars().skip(count - kept / 2);
    Cow::Owned(begin.chars().chain(['…']).chain(end).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_in_no_file_has_its_address_once() {
        let frame = NamedFrame {
            pc: 0x7f12_3456,
            function: "[unknown]+0x7f123455".to_owned(),
            offset: None,
            file: None,
            line: None,
            module: "[anon]".to_owned(),
            path: None,
            build_id: Vec::new(),
            inlined: false,
            how: backtrail_stacks::How::FramePointer,
            arguments: Vec::new(),
        };
        for full_names in [false, true] {
            let mut out = Vec::new();
            write_frame(&mut out, &frame, Options { all: false, full_names }).expect("memory can be written");
            assert_eq!(
                String::from_utf8_lossy(&out),
                "0x000000007f123456 in [unknown] ([anon])\n"
            );
        }
    }

    #[test]
    fn signals_that_end_no_process_are_said_to_stop_it() {
        assert_eq!(what_it_did(libc::SIGSEGV.unsigned_abs()), "ended by");
        assert_eq!(what_it_did(libc::SIGSTOP.unsigned_abs()), "stopped by");
        assert_eq!(what_it_did(libc::SIGCHLD.unsigned_abs()), "at");
        assert_eq!(what_it_did(u32::MAX), "ended by");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("12345", 5), "12345");
        assert_eq!(shortened("123456", 5), "12…56");
        assert_eq!(shortened("123456", 4), "12…6");
        assert_eq!(shortened("äöüäöü", 4), "äö…ü");
        assert_eq!(shortened("123456", 1), "…");
        let long = "vector<int, ".repeat(500);
        assert_eq!(shortened(&long, LONGEST_NAME).chars().count(), LONGEST_NAME);
    }
}
