//! Writes parts of reports as text for a terminal.

use std::io;

use super::table::{INSTEAD, MIN_WIDTH, percent, shorten, whole};
use super::{Change, Report, Rows, Summary, TableOptions};
use crate::clean::clean;

/// Columns before the name: `  12.34   100.00  `.
const NUMBERS_WIDTH: usize = 18;
/// Columns before the name in a difference: `  12.34    56.78   +44.44  `.
const CHANGES_WIDTH: usize = 27;

impl Rows {
    /// Writes the rows with their shares of the samples.
    pub fn write(&self, out: &mut dyn io::Write, options: &TableOptions) -> io::Result<()> {
        let shown = &self.rows[..options.limit.unwrap_or(usize::MAX).min(self.rows.len())];
        let names: Vec<(&str, &str)> = shown
            .iter()
            .map(|row| (row.name.as_str(), row.module.as_str()))
            .collect();
        let names = Columns::new(&names, (&self.heading, &self.module_heading), NUMBERS_WIDTH, options);
        writeln!(out, "{:>7}  {:>7}  {}", "self %", "total %", names.heading)?;
        for (row, name) in shown.iter().zip(&names.rows) {
            let own = percent(row.samples, self.samples);
            let total = percent(row.total, self.samples);
            writeln!(out, "{own:>7.2}  {total:>7.2}  {name}")?;
        }
        let left_out = self.rows.len() - shown.len();
        if left_out > 0 {
            let samples = self.rows[shown.len()..].iter().map(|row| row.samples).sum();
            writeln!(out, "{:>7.2}           {left_out} more", percent(samples, self.samples))?;
        }
        Ok(())
    }
}

/// Names and modules side by side.
struct Columns {
    heading: String,
    rows: Vec<String>,
}

impl Columns {
    fn new(names: &[(&str, &str)], headings: (&str, &str), before: usize, options: &TableOptions) -> Columns {
        let width = options.width.map(|width| width.max(MIN_WIDTH) - before);
        let longest = |texts: &mut dyn Iterator<Item = &str>| texts.map(|text| text.chars().count()).max().unwrap_or(0);
        let modules = longest(&mut names.iter().map(|(_, module)| *module));
        let modules = width.map_or(modules, |width| modules.min(width / 3));
        let name = longest(&mut names.iter().map(|(name, _)| *name));
        let room = width.map_or(80, |width| width - modules - 2);
        let name = name.clamp(headings.0.len().min(room), room);
        let line = |text: &str, module: &str| match module {
            "" => text.to_owned(),
            module => format!("{text:name$}  {module}"),
        };
        let rows = names.iter().map(|(text, module)| {
            let (text, module) = (clean(text, INSTEAD), clean(module, INSTEAD));
            match width {
                Some(_) => line(&shorten(&text, name), &shorten(&module, modules)),
                None => line(&text, &module),
            }
        });
        Columns {
            rows: rows.collect(),
            heading: line(headings.0, headings.1),
        }
    }
}

impl Report {
    /// Writes how functions changed since an earlier recording, the largest change first: their
    /// shares of own samples. Waits all end in the scheduler, so of them it is the seconds with a
    /// function on the stack.
    pub fn write_changes(&self, before: &Report, out: &mut dyn io::Write, options: &TableOptions) -> io::Result<()> {
        let is_waits = |report: &Report| {
            let summary = report.summary();
            summary.waits.is_some() && summary.measure.as_ref().is_some_and(|measure| measure.is_time)
        };
        let mut changes = self.changes_since(before);
        let by_seconds = is_waits(before) && is_waits(self);
        let (before, after) = (before.summary(), self.summary());
        let seconds = |change: &Change| {
            let of = |share: f64, summary: &Summary| share * summary.samples as f64 / 1e6;
            (of(change.total.0, before), of(change.total.1, after))
        };
        let numbers = |change: &Change| match by_seconds {
            true => seconds(change),
            false => (change.own.0 * 100.0, change.own.1 * 100.0),
        };
        if by_seconds {
            let moved = |change: &Change| {
                let (before, after) = seconds(change);
                (after - before).abs()
            };
            changes.sort_by(|a, b| moved(b).total_cmp(&moved(a)));
        }
        let of = match (&after.measure, by_seconds) {
            (_, true) => "seconds with a function on the stack".into(),
            (Some(measure), _) if measure.is_time => "shares of own time".into(),
            (Some(measure), _) => format!("shares of own {}", clean(&measure.name, INSTEAD)),
            (None, _) => "shares of own samples".to_owned(),
        };
        writeln!(out, "{} before, {} after; {of}\n", whole(before), whole(after))?;
        let shown = &changes[..options.limit.unwrap_or(usize::MAX).min(changes.len())];
        let names: Vec<(&str, &str)> = shown
            .iter()
            .map(|change| (change.name.as_str(), change.module.as_str()))
            .collect();
        let names = Columns::new(&names, ("function", "module"), CHANGES_WIDTH, options);
        let (was, is) = match by_seconds {
            true => ("before s", "after s"),
            false => ("before %", "after %"),
        };
        writeln!(out, "{was:>8} {is:>8} {:>8}  {}", "change", names.heading)?;
        for (change, name) in shown.iter().zip(&names.rows) {
            let (before, after) = numbers(change);
            writeln!(out, "{before:>8.2} {after:>8.2} {:>+8.2}  {name}", after - before)?;
        }
        match changes.len() - shown.len() {
            0 => Ok(()),
            more => writeln!(out, "{:>26} {more} more", ""),
        }
    }
}
