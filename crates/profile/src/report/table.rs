//! Writes the report as text for a terminal.

use std::fmt::Write as _;
use std::io;

use super::{FunctionCount, Report, Summary};
use crate::clean::clean;
use crate::function_name::without_parameters;

/// In place of characters that could move a terminal's cursor or worse.
pub(super) const INSTEAD: char = char::REPLACEMENT_CHARACTER;

/// How the table is laid out.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// The most columns, never below 60; longer names are shortened in their middle. `None`: names
    /// stay complete.
    pub width: Option<usize>,
    /// The most functions; the others are counted. `None`: all.
    pub limit: Option<usize>,
    /// Whether a listing has all instructions, and not only those around samples.
    pub whole: bool,
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions {
            width: Some(100),
            limit: Some(40),
            whole: false,
        }
    }
}

/// Columns before the function's name: `  12.34   100.00  `.
const NUMBERS_WIDTH: usize = 18;
/// Columns before the function of durations.
const DURATIONS_WIDTH: usize = 71;
/// Columns before the called function: `  12.34  123456789  `.
const CALLS_WIDTH: usize = 20;
pub(super) const MIN_WIDTH: usize = 60;
/// The fraction of the width that a module's name may take, so that functions keep their room.
const MODULE_PART: usize = 4;
/// Without a limit of columns, longer names extend their own line instead of moving the modules of
/// all lines.
const MAX_ALIGNED_NAME: usize = 80;

impl Report {
    /// Writes the summary of the recording, then the functions with their shares of the samples.
    pub fn write_table(&self, out: &mut dyn io::Write, options: &TableOptions) -> io::Result<()> {
        let width = options.width.map(|width| width.max(MIN_WIDTH));
        let mut text = String::new();
        push_summary(&mut text, &self.summary, width);
        for note in &self.notes {
            push_wrapped(&mut text, "note: ", note.split(' '), " ", width);
        }
        out.write_all(text.as_bytes())?;
        if self.functions.is_empty() {
            return Ok(());
        }
        let shown = &self.functions[..options.limit.unwrap_or(usize::MAX).min(self.functions.len())];
        out.write_all(b"\n")?;
        self.write_rows(out, shown, width)?;
        let left_out = self.functions.len() - shown.len();
        if left_out > 0 {
            let samples: u64 = self.functions[shown.len()..]
                .iter()
                .map(|function| function.samples)
                .sum();
            writeln!(
                out,
                "{:>7.2}           {left_out} more",
                percent(samples, self.summary.samples)
            )?;
        }
        self.write_durations(out, options.limit, width)?;
        self.write_calls(out, options.limit, width)
    }

    /// Writes how long calls took, if that was recorded.
    fn write_durations(&self, out: &mut dyn io::Write, limit: Option<usize>, width: Option<usize>) -> io::Result<()> {
        if self.durations.is_empty() {
            return Ok(());
        }
        let headings = ["total", "min", "median", "p99", "max"];
        write!(out, "\n{:>9}", "calls")?;
        headings.iter().try_for_each(|heading| write!(out, "  {heading:>10}"))?;
        writeln!(out, "  function")?;
        let shown = limit.unwrap_or(usize::MAX).min(self.durations.len());
        for function in &self.durations[..shown] {
            let name = clean(&function.function, INSTEAD);
            let name = width.map_or(name.clone(), |width| {
                shorten(&name, width.saturating_sub(DURATIONS_WIDTH).max(1))
            });
            write!(out, "{:>9}", function.count)?;
            let times = [
                function.total,
                function.min,
                function.median,
                function.p99,
                function.max,
            ];
            times
                .iter()
                .try_for_each(|&time| write!(out, "  {:>10}", duration(time)))?;
            writeln!(out, "  {name}")?;
        }
        match self.durations.len() - shown {
            0 => Ok(()),
            more => writeln!(out, "{more:>9} more functions"),
        }
    }

    /// Writes the arguments of calls, if they were recorded and are known.
    fn write_calls(&self, out: &mut dyn io::Write, limit: Option<usize>, width: Option<usize>) -> io::Result<()> {
        if self.calls.iter().all(|call| call.arguments.is_empty()) {
            return Ok(());
        }
        let (shown, left_out) = self.calls.split_at(limit.unwrap_or(usize::MAX).min(self.calls.len()));
        writeln!(out, "\n{:>7}  {:>9}  called", "calls %", "calls")?;
        let mut row = |count: u64, what: &str| {
            let share = percent(count, self.summary.samples);
            writeln!(out, "{share:>7.2}  {count:>9}  {what}")
        };
        for call in shown {
            let text = clean(&call.to_string(), INSTEAD);
            row(
                call.count,
                &width.map_or(text.clone(), |width| shorten(&text, width - CALLS_WIDTH)),
            )?;
        }
        if !left_out.is_empty() {
            let count = left_out.iter().map(|call| call.count).sum();
            row(count, &format!("with {} other arguments", left_out.len()))?;
        }
        Ok(())
    }

    fn write_rows(&self, out: &mut dyn io::Write, shown: &[FunctionCount], width: Option<usize>) -> io::Result<()> {
        let longest = |name: fn(&FunctionCount) -> &str| {
            let lengths = shown.iter().map(|function| name(function).chars().count());
            lengths.max().unwrap_or(0)
        };
        let modules = longest(|function| &function.module).min(width.map_or(usize::MAX, |width| width / MODULE_PART));
        let room = width.map_or(MAX_ALIGNED_NAME, |width| width - NUMBERS_WIDTH - 2 - modules);
        let names = longest(|function| &function.name).clamp("function".len(), room);
        writeln!(out, "{:>7}  {:>7}  {:names$}  module", "self %", "total %", "function")?;
        for function in shown {
            let (name, module) = match width {
                Some(_) => (
                    shorten(&clean(&function.name, INSTEAD), names),
                    shorten(&clean(&function.module, INSTEAD), modules),
                ),
                None => (clean(&function.name, INSTEAD), clean(&function.module, INSTEAD)),
            };
            let own = percent(function.samples, self.summary.samples);
            let total = percent(function.total, self.summary.samples);
            writeln!(out, "{own:>7.2}  {total:>7.2}  {name:names$}  {module}")?;
        }
        Ok(())
    }
}

/// A time with the unit that suits it.
fn duration(nanoseconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")];
    match UNITS.iter().find(|(unit, _)| nanoseconds >= *unit) {
        Some((unit, name)) => format!("{:.3} {name}", nanoseconds as f64 / *unit as f64),
        None => format!("{nanoseconds} ns"),
    }
}

/// What all samples count for, in words.
pub(super) fn whole(summary: &Summary) -> String {
    let seconds = summary.samples as f64 / 1e6;
    match &summary.measure {
        Some(measure) if measure.is_time && summary.waits.is_some() => {
            format!("{seconds:.6} s {}", clean(&measure.name, INSTEAD))
        }
        Some(measure) if measure.is_time => format!("{seconds:.6} s of {}", clean(&measure.name, INSTEAD)),
        Some(measure) => format!("{} {}", summary.samples, clean(&measure.name, INSTEAD)),
        None => counted(summary.samples, "sample"),
    }
}

fn counted(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

fn push_summary(text: &mut String, summary: &Summary, width: Option<usize>) {
    let whole = whole(summary);
    let mut facts = vec![match (&summary.measure, summary.waits) {
        (Some(measure), Some(waits)) if measure.is_time => format!("{whole} in {}", counted(waits, "wait")),
        (Some(measure), None) if measure.is_time => format!("{whole} in {}", counted(summary.taken, "call")),
        (Some(_), _) => format!("{whole} in {}", counted(summary.taken, "sample")),
        (None, _) => whole,
    }];
    if let Some((first, last)) = summary.times.filter(|(first, last)| last > first) {
        facts[0].push_str(&format!(" over {:.2} s", (last - first) as f64 / 1e9));
    }
    facts.push(format!("{} lost", summary.lost));
    if summary.samples > 0 {
        // Otherwise it would differ from that of `record`, which counts samples.
        let of = match &summary.measure {
            Some(measure) if measure.is_time => " of the time",
            _ => "",
        };
        facts.push(format!("{:.1} %{of} complete", summary.complete_fraction() * 100.0));
    }
    facts.push(format!("{} frames", summary.frames));
    facts.push(format!("{} of trace", bytes(summary.trace_bytes)));
    push_wrapped(text, "", facts.iter().map(String::as_str), ", ", width);

    let events = summary.events.iter().map(|event| {
        let happened = event.count.map_or_else(String::new, |count| format!("{count} in "));
        let shown = if event.is_shown { " (shown below)" } else { "" };
        format!(
            "{} {happened}{} samples{shown}",
            clean(&event.name, INSTEAD),
            event.samples
        )
    });
    let events: Vec<String> = events.collect();
    push_wrapped(text, "events: ", events.iter().map(String::as_str), ", ", width);
    let is_time = summary.measure.as_ref().is_some_and(|measure| measure.is_time);
    let amount = |count: u64| match is_time {
        true => format!("{:.3} s", count as f64 / 1e6),
        false => count.to_string(),
    };
    let counted = |(name, samples): (&str, u64)| format!("{} {}", clean(name, INSTEAD), amount(samples));
    let stops: Vec<String> = summary.stops.iter().map(|&stop| counted(stop)).collect();
    push_wrapped(text, "stops: ", stops.iter().map(String::as_str), ", ", width);
    if summary.live > 0 {
        let share = percent(summary.live, summary.samples);
        let late = [
            match is_time {
                true => format!("{}, {share:.1} %:", amount(summary.live)),
                false => format!("{} samples, {share:.1} %:", summary.live),
            },
            "their outer frames were read from the running process after the sample".to_owned(),
        ];
        push_wrapped(text, "read late: ", late.iter().map(String::as_str), " ", width);
    }
    const NAMED_PROCESSES: usize = 10;
    let mut processes: Vec<String> = summary
        .processes
        .iter()
        .take(NAMED_PROCESSES)
        .map(|(name, samples)| counted((name, *samples)))
        .collect();
    if summary.processes.len() > NAMED_PROCESSES {
        processes.push(format!("{} more", summary.processes.len() - NAMED_PROCESSES));
    }
    push_wrapped(text, "processes: ", processes.iter().map(String::as_str), ", ", width);
}

/// Adds a paragraph of unbreakable parts; continuation lines are indented. Without parts it adds
/// nothing.
pub(super) fn push_wrapped<'a>(
    text: &mut String,
    heading: &str,
    parts: impl Iterator<Item = &'a str>,
    separator: &str,
    width: Option<usize>,
) {
    let mut column = 0;
    for (index, part) in parts.enumerate() {
        let length = part.chars().count();
        if index == 0 {
            text.push_str(heading);
            column = heading.len();
        } else if width.is_some_and(|width| column + separator.len() + length > width) {
            text.push_str(separator.trim_end());
            text.push_str("\n  ");
            column = 2;
        } else {
            text.push_str(separator);
            column += separator.len();
        }
        text.push_str(part);
        column += length;
    }
    if column > 0 {
        text.push('\n');
    }
}

pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 * 100.0 / whole as f64
}

fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| count >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", count as f64 / *size as f64),
        None => format!("{count} bytes"),
    }
}

/// At most `width` characters: a long name loses its middle, because both its ends identify the
/// function. If only its parameters do not fit, they are cut, and not the name before them.
pub(super) fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width || width == 0 {
        return name.to_string();
    }
    let named = match without_parameters(name) {
        named if named.len() < name.len() => named.chars().count() + "(".len(),
        _ => 0,
    };
    let usual = (width - 1) - (width - 1) * 2 / 5;
    // The end keeps at least the closing parenthesis.
    let start = if named + 1 < width { usual.max(named) } else { usual };
    let end = width - 1 - start;
    let mut short = String::new();
    short.extend(name.chars().take(start));
    let _ = short.write_char('…');
    short.extend(name.chars().skip(length - end));
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_loses_its_parameters_first() {
        let crosses = |digit| format!("primesieve::EratMedium::crossOff_{digit}(unsigned char*, Bucket*)");
        for (name, width, short) in [
            (crosses(13), 62, crosses(13)),
            (
                crosses(13),
                48,
                "primesieve::EratMedium::crossOff_13(…*, Bucket*)".to_owned(),
            ),
            (crosses(13), 38, "primesieve::EratMedium::crossOff_13(…)".to_owned()),
            (crosses(13), 37, "primesieve::EratMedium…har*, Bucket*)".to_owned()),
            (
                "f(a_type, another_type) const".to_owned(),
                20,
                "f(a_type, an…) const".to_owned(),
            ),
            ("a::long::path::f::<b::c>".to_owned(), 11, "a::lon…::c>".to_owned()),
        ] {
            assert_eq!(shorten(&name, width), short, "{width}");
        }
    }
}
