//! The text that `perf script` prints, which many tools read.

use std::io::{self, Write};

use crate::samples::{Frame, Samples};
use crate::strings::visible;

pub(crate) fn write(samples: &Samples, out: &mut dyn Write) -> io::Result<()> {
    let event = match (&samples.measure, samples.origin.frequency) {
        (Some(measure), _) => visible(&measure.name).into_owned(),
        (None, Some(_)) => "cpu-clock".to_owned(),
        (None, None) => "samples".to_owned(),
    };
    // perf's periods of times are in nanoseconds.
    let scale = match &samples.measure {
        Some(measure) if measure.is_time => 1000,
        _ => samples.period().unwrap_or(1),
    };
    let lines: Vec<String> = samples.frames.iter().map(|frame| lines(samples, frame)).collect();
    for row in &samples.rows {
        let (process, thread) = (samples.process_of(row.thread), &samples.threads[row.thread as usize]);
        let period = row.weight.saturating_mul(scale);
        writeln!(
            out,
            "{} {}/{} [{:03}] {}.{:09}: {period} {event}: ",
            visible(&thread.name),
            process.pid,
            thread.tid,
            row.cpu,
            row.time / 1_000_000_000,
            row.time % 1_000_000_000,
        )?;
        for frame in samples.stack(row.node) {
            out.write_all(lines[frame as usize].as_bytes())?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// The lines of a frame: inlined calls first. A remark has none, as perf knows no such frames.
fn lines(samples: &Samples, frame: &Frame) -> String {
    let Frame::Code {
        address,
        file,
        location,
    } = frame
    else {
        return String::new();
    };
    let location = &samples.locations[*location as usize];
    let module = match file {
        Some(file) => &samples.files[*file as usize].path,
        None => &location.module,
    };
    let mut lines = String::new();
    for call in &location.calls {
        let name = visible(&call.function);
        let line = match call.offset {
            _ if call.inlined => format!("\t{address:16x} {name} (inlined)\n"),
            Some(offset) => format!("\t{address:16x} {name}+{offset:#x} ({})\n", visible(module)),
            None => format!("\t{address:16x} {name} ({})\n", visible(module)),
        };
        lines.push_str(&line);
    }
    lines
}
