//! Writes parts of reports as text for a terminal.

use std::collections::HashMap;
use std::io;

use backtrail_elf::door;

use super::table::{INSTEAD, MIN_WIDTH, percent, push_wrapped, shorten};
use super::{Report, Rows, TableOptions};
use crate::clean::clean;

/// Columns before the name: `  12.34   100.00  `.
const NUMBERS_WIDTH: usize = 18;
/// Columns before the name in a difference: `  12.34    56.78   +44.44  `.
const CHANGES_WIDTH: usize = 27;
/// Source files that are larger are not read.
const LARGEST_SOURCE: u64 = 16 << 20;

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
        writeln!(
            out,
            "{} samples before, {} samples after; shares of own samples\n",
            before.summary().samples,
            self.summary().samples
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

    /// Writes the lines of a function, with their text if their file is there, and its
    /// instructions. Returns whether there is such a function.
    pub fn write_annotation(
        &self,
        function: &str,
        out: &mut dyn io::Write,
        options: &TableOptions,
    ) -> io::Result<bool> {
        let annotations = self.annotate(function);
        let whole = self.summary().samples;
        let width = options.width.map(|width| width.max(MIN_WIDTH));
        let mut sources: HashMap<String, Option<Vec<String>>> = HashMap::new();
        for (index, annotation) in annotations.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            let (name, module) = &annotation.function;
            let mut heading = String::new();
            push_wrapped(
                &mut heading,
                "",
                [clean(name, INSTEAD), clean(module, INSTEAD)]
                    .iter()
                    .map(String::as_str),
                "  ",
                width,
            );
            out.write_all(heading.as_bytes())?;
            writeln!(out, "{:>7}  {:>7}  line", "self %", "total %")?;
            let mut file = None;
            for row in &annotation.lines {
                if file != Some(&row.file) && !row.file.is_empty() {
                    writeln!(out, "{:18}{}", "", clean(&row.file, INSTEAD))?;
                }
                file = Some(&row.file);
                let lines = sources
                    .entry(row.file.clone())
                    .or_insert_with(|| read_source(&row.file));
                let text = lines
                    .as_ref()
                    .and_then(|lines| lines.get((row.line as usize).checked_sub(1)?));
                let text = text.map_or(String::new(), |text| format!("  {}", clean(text, INSTEAD)));
                let line = match row.line {
                    0 => "[no line]".to_owned(),
                    line => format!("{line:>6}{text}"),
                };
                let line = width.map_or(line.clone(), |width| cut(&line, width - NUMBERS_WIDTH));
                let (own, total) = (percent(row.samples, whole), percent(row.total, whole));
                writeln!(out, "{own:>7.2}  {total:>7.2}  {line}")?;
            }
            writeln!(
                out,
                "\n{:>7}  {:>7}  {:>12}  {:>10}  line",
                "self %", "total %", "address", "offset"
            )?;
            for row in &annotation.addresses {
                let (own, total) = (percent(row.samples, whole), percent(row.total, whole));
                let offset = row.offset.map_or(String::new(), |offset| format!("+{offset:#x}"));
                let place = match row.line {
                    0 => String::new(),
                    line => format!(
                        "{}:{line}",
                        clean(row.file.rsplit('/').next().unwrap_or_default(), INSTEAD)
                    ),
                };
                let address = format!("{:#x}", row.address);
                let line = format!("{own:>7.2}  {total:>7.2}  {address:>12}  {offset:>10}  {place}");
                writeln!(out, "{}", line.trim_end())?;
            }
        }
        Ok(!annotations.is_empty())
    }
}

/// The lines of a source file.
fn read_source(path: &str) -> Option<Vec<String>> {
    let bytes = door::open(path.as_ref()).ok()?.read(LARGEST_SOURCE).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.lines().map(|line| line.replace('\t', "    ")).collect())
}

/// The first characters of a text.
fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}
