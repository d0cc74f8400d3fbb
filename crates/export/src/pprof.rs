//! pprof's `profile.proto`, compressed by gzip. Field numbers are those of the proto file.

use std::cmp::Reverse;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustc_hash::FxHashMap;

use crate::locations::{self, Fields};
use crate::protobuf::Message;
use crate::samples::{CodeFile, Frame, Samples};
use crate::strings::{Table, hex};

mod profile {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const MAPPING: u32 = 3;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const DURATION_NANOS: u32 = 10;
    pub(super) const PERIOD_TYPE: u32 = 11;
    pub(super) const PERIOD: u32 = 12;
    pub(super) const COMMENT: u32 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

const LOCATION: Fields = Fields {
    mapping: 2,
    address: 3,
    lines: 4,
};

/// Writes the message in pieces, so that it is never in memory as a whole.
pub(crate) fn write(samples: &Samples, out: &mut dyn Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    let mut strings = Table::default();
    // The first text must be empty.
    strings.text("");
    let period = samples.period();
    let value_type = |strings: &mut Table<String>, kind: &str, unit: &str| (strings.text(kind), strings.text(unit));
    let mut types = vec![value_type(&mut strings, "samples", "count")];
    if period.is_some() {
        types.push(value_type(&mut strings, "cpu", "nanoseconds"));
    }
    if let Some(measure) = &samples.measure {
        let unit = if measure.is_time { "microseconds" } else { "count" };
        types.push(value_type(&mut strings, &measure.name, unit));
    }
    let mut message = Message::default();
    for (kind, unit) in &types {
        message.message(profile::SAMPLE_TYPE, |inner| {
            inner.number(1, (*kind).into());
            inner.number(2, (*unit).into());
        });
    }
    let counts = counted(samples);
    for &((node, thread, ending), count, weight) in &counts {
        message.message(profile::SAMPLE, |sample| {
            sample.packed(1, samples.stack(node).map(|frame| u64::from(frame) + 1));
            let weight = samples.measure.as_ref().map(|_| weight);
            let value = period.map(|period| count * period).or(weight);
            sample.packed(2, std::iter::once(count).chain(value));
            labels(sample, samples, &mut strings, thread, ending);
        });
        flush(&mut message, &mut gzip)?;
    }
    for index in files_in_order(samples, &counts) {
        let file = &samples.files[index];
        let (path, build_id) = (strings.text(&file.path), strings.text(&hex(&file.build_id)));
        message.message(profile::MAPPING, |mapping| {
            mapping.number(1, index as u64 + 1);
            mapping.number(2, file.start);
            mapping.number(3, file.end);
            mapping.number(5, path.into());
            mapping.number(6, build_id.into());
            // All names are here, so that pprof does not look for the file.
            (7..=10).for_each(|has| mapping.number(has, 1));
        });
    }
    let functions = write_locations(samples, &mut message, &mut strings, &mut gzip)?;
    for (index, &(name, file)) in functions.values().iter().enumerate() {
        message.message(profile::FUNCTION, |function| {
            function.number(1, index as u64 + 1);
            function.number(2, name.into());
            // Without a system name, pprof takes the name as it is.
            function.number(4, file.into());
        });
    }
    let comment = strings.text(&samples.origin.command);
    for text in strings.values() {
        message.text(profile::STRING_TABLE, text);
    }
    if let Some((first, last)) = samples.times() {
        message.number(profile::TIME_NANOS, first);
        message.number(profile::DURATION_NANOS, last - first);
    }
    if let (Some(period), Some(&(kind, unit))) = (period, types.get(1)) {
        message.message(profile::PERIOD_TYPE, |inner| {
            inner.number(1, kind.into());
            inner.number(2, unit.into());
        });
        message.number(profile::PERIOD, period);
    }
    message.number(profile::COMMENT, comment.into());
    // A wait is no less for being one.
    let default = if samples.measure.is_some() {
        types.last()
    } else {
        types.first()
    };
    let default = default.map_or(0, |&(kind, _)| kind);
    message.number(profile::DEFAULT_SAMPLE_TYPE, default.into());
    gzip.write_all(&message.bytes)?;
    gzip.finish()?;
    Ok(())
}

/// The numbers of files, programs before libraries. pprof takes the first one for the program, so
/// it is that in which most stacks begin.
fn files_in_order(samples: &Samples, counts: &[Counted]) -> Vec<usize> {
    let is_program = |file: &CodeFile| file.path.starts_with('/') && !file.path.contains(".so");
    let mut begun = vec![0_u64; samples.files.len()];
    for &((node, ..), count, _) in counts {
        let files = samples
            .stack(node)
            .filter_map(|frame| match samples.frames[frame as usize] {
                Frame::Code { file, .. } => file.map(|file| file as usize),
                Frame::Marker(_) => None,
            });
        if let Some(outermost) = files.filter(|&file| is_program(&samples.files[file])).last() {
            begun[outermost] += count;
        }
    }
    let mut files: Vec<usize> = (0..samples.files.len()).collect();
    files.sort_by_key(|&file| (!is_program(&samples.files[file]), Reverse(begun[file])));
    files
}

/// Node, thread and ending of samples; how many there are, and their weight.
pub(crate) type Counted = ((u32, u32, u8), u64, u64);

/// Samples of one thread with the same stack, in the order of their first: their number and weight.
pub(crate) fn counted(samples: &Samples) -> Vec<Counted> {
    let mut places: FxHashMap<(u32, u32, u8), usize> = FxHashMap::default();
    let mut counts: Vec<Counted> = Vec::new();
    for row in &samples.rows {
        let key = (row.node, row.thread, row.ending);
        let place = *places.entry(key).or_insert(counts.len());
        if place == counts.len() {
            counts.push((key, 0, 0));
        }
        counts[place].1 += 1;
        counts[place].2 = counts[place].2.saturating_add(row.weight);
    }
    counts
}

fn labels(sample: &mut Message, samples: &Samples, strings: &mut Table<String>, thread: u32, ending: u8) {
    let (process, thread) = (samples.process_of(thread), &samples.threads[thread as usize]);
    let ending = samples.endings[usize::from(ending)];
    let mut text = |key: &str, value: &str| {
        let (key, value) = (strings.text(key), strings.text(value));
        sample.message(3, |label| {
            label.number(1, key.into());
            label.number(2, value.into());
        });
    };
    text("process", &process.name);
    text("thread", &thread.name);
    text("stack", ending.name());
    if ending.live {
        text("read", "late");
    }
    for (key, value) in [("pid", process.pid), ("tid", thread.tid)] {
        let key = strings.text(key);
        sample.message(3, |label| {
            label.number(1, key.into());
            label.number(3, value.into());
        });
    }
}

/// Writes the locations, and returns their functions: name and source file.
fn write_locations(
    samples: &Samples,
    message: &mut Message,
    strings: &mut Table<String>,
    out: &mut impl Write,
) -> io::Result<Table<(u32, u32)>> {
    let mut functions = Table::default();
    for (index, frame) in samples.frames.iter().enumerate() {
        message.message(profile::LOCATION, |written| {
            written.number(1, index as u64 + 1);
            locations::add(written, &LOCATION, (samples, frame), strings, &mut functions);
        });
        flush(message, out)?;
    }
    Ok(functions)
}

/// Writes what has gathered, if it is much.
fn flush(message: &mut Message, out: &mut impl Write) -> io::Result<()> {
    if message.bytes.len() > 1 << 16 {
        out.write_all(&message.bytes)?;
        message.bytes.clear();
    }
    Ok(())
}
