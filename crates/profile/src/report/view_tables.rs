//! Writes parts of reports as text for a terminal.

use std::io;

use super::table::{INSTEAD, MIN_WIDTH, percent, shorten, whole};
use super::{Report, Rows, TableOptions};
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
    /// Writes how the shares of functions changed since an earlier recording, the largest change
    /// first.
    pub fn write_changes(&self, before: &Report, out: &mut dyn io::Write, options: &TableOptions) -> io::Result<()> {
        let changes = self.changes_since(before);
        let shown = &changes[..options.limit.unwrap_or(usize::MAX).min(changes.len())];
        let of = match &self.summary().measure {
            Some(measure) if measure.is_time => "time".into(),
            Some(measure) => clean(&measure.name, INSTEAD),
            None => "samples".into(),
        };
        writeln!(
            out,
            "{} before, {} after; shares of own {of}\n",
            whole(before.summary()),
            whole(self.summary())
        )?;
        let names: Vec<(&str, &str)> = shown
            .iter()
            .map(|change| (change.name.as_str(), change.module.as_str()))
            .collect();
        let names = Columns::new(&names, ("function", "module"), CHANGES_WIDTH, options);
        writeln!(
            out,
            "{:>8} {:>8} {:>8}  {}",
            "before %", "after %", "change", names.heading
        )?;
        for (change, name) in shown.iter().zip(&names.rows) {
            let (before, after) = (change.own.0 * 100.0, change.own.1 * 100.0);
            writeln!(out, "{before:>8.2} {after:>8.2} {:>+8.2}  {name}", after - before)?;
        }
        match changes.len() - shown.len() {
            0 => Ok(()),
            more => writeln!(out, "{:>26} {more} more", ""),
        }
    }
}
