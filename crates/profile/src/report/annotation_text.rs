//! Writes the lines and instructions of a function as text for a terminal.

use std::collections::HashMap;
use std::io;

use backtrail_elf::door;

use super::table::{INSTEAD, MIN_WIDTH, percent, push_wrapped, shorten};
use super::{Annotation, AnnotationRow, Listing, ListingRow, Report, TableOptions};
use crate::clean::clean;
use crate::symbolize::{Call, CodeFiles, Instruction};

/// Columns before a line: `  12.34   100.00  `.
const NUMBERS_WIDTH: usize = 18;
/// Columns before an instruction: the numbers and its address.
const ADDRESS_WIDTH: usize = NUMBERS_WIDTH + 12;
/// Columns for an instruction, if its line follows.
const INSTRUCTION_WIDTH: usize = 44;
/// Source files that are larger are not read.
const LARGEST_SOURCE: u64 = 16 << 20;
/// Instructions that are shown before and after each one with samples.
const AROUND: usize = 4;

impl Report {
    /// Writes the lines of a function, with their text if their file is there, and its
    /// instructions, if `files` have its code. Returns whether there is such a function.
    pub fn write_annotation(
        &self,
        function: &str,
        files: &mut CodeFiles,
        out: &mut dyn io::Write,
        options: &TableOptions,
    ) -> io::Result<bool> {
        let annotations = self.annotate(function);
        let mut text = Text {
            samples: self.summary().samples,
            width: options.width.map(|width| width.max(MIN_WIDTH)),
            whole: options.whole,
            sources: HashMap::new(),
            out,
        };
        for (index, annotation) in annotations.iter().enumerate() {
            if index > 0 {
                writeln!(text.out)?;
            }
            text.heading(annotation)?;
            text.lines(annotation)?;
            let (listings, missing) = self.listings(annotation, files);
            for listing in &listings {
                text.listing(listing, annotation)?;
            }
            if !missing.is_empty() {
                text.addresses(annotation)?;
            }
            for reason in missing {
                let note = clean(&format!("instructions are not shown: {reason}"), INSTEAD);
                text.paragraph("note: ", note.split(' '), " ")?;
            }
        }
        Ok(!annotations.is_empty())
    }
}

struct Text<'o> {
    /// All samples, which shares are of.
    samples: u64,
    width: Option<usize>,
    whole: bool,
    sources: HashMap<String, Option<Vec<String>>>,
    out: &'o mut dyn io::Write,
}

impl Text<'_> {
    fn paragraph<'a>(
        &mut self,
        heading: &str,
        parts: impl Iterator<Item = &'a str>,
        separator: &str,
    ) -> io::Result<()> {
        let mut text = String::new();
        push_wrapped(&mut text, heading, parts, separator, self.width);
        self.out.write_all(text.as_bytes())
    }

    fn heading(&mut self, annotation: &Annotation) -> io::Result<()> {
        let (name, module) = &annotation.function;
        let parts = [clean(name, INSTEAD), clean(module, INSTEAD)];
        self.paragraph("", parts.iter().map(String::as_str), "  ")
    }

    fn lines(&mut self, annotation: &Annotation) -> io::Result<()> {
        writeln!(self.out, "{:>7}  {:>7}  line", "self %", "total %")?;
        let mut file = None;
        for row in &annotation.lines {
            if file != Some(&row.file) && !row.file.is_empty() {
                writeln!(self.out, "{:18}{}", "", clean(&row.file, INSTEAD))?;
            }
            file = Some(&row.file);
            let line = match row.line {
                0 => "[no line]".to_owned(),
                line => format!("{line:>6}{}", self.source_line(row)),
            };
            let line = self.cut(&line, NUMBERS_WIDTH);
            let (own, total) = (percent(row.samples, self.samples), percent(row.total, self.samples));
            writeln!(self.out, "{own:>7.2}  {total:>7.2}  {line}")?;
        }
        Ok(())
    }

    fn source_line(&mut self, row: &AnnotationRow) -> String {
        let lines = self
            .sources
            .entry(row.file.clone())
            .or_insert_with(|| read_source(&row.file));
        let text = lines
            .as_ref()
            .and_then(|lines| lines.get((row.line as usize).checked_sub(1)?));
        text.map_or(String::new(), |text| format!("  {}", clean(text, INSTEAD)))
    }

    /// The addresses that were met, without their instructions.
    fn addresses(&mut self, annotation: &Annotation) -> io::Result<()> {
        writeln!(
            self.out,
            "\n{:>7}  {:>7}  {:>12}  {:>10}  line",
            "self %", "total %", "address", "offset"
        )?;
        for row in &annotation.addresses {
            let (own, total) = (percent(row.samples, self.samples), percent(row.total, self.samples));
            let offset = row.offset.map_or(String::new(), |offset| format!("+{offset:#x}"));
            let place = match row.line {
                0 => String::new(),
                line => place(&row.file, line),
            };
            let address = format!("{:#x}", row.address);
            let line = format!("{own:>7.2}  {total:>7.2}  {address:>12}  {offset:>10}  {place}");
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn listing(&mut self, listing: &Listing, annotation: &Annotation) -> io::Result<()> {
        let inside = match listing.function == annotation.function.0 {
            true => String::new(),
            false => format!(", inlined into {}", clean(&listing.function, INSTEAD)),
        };
        let heading = format!("instruction{inside}");
        let heading = self.cut(&heading, ADDRESS_WIDTH);
        writeln!(
            self.out,
            "\n{:>7}  {:>7}  {:>10}  {heading}",
            "self %", "total %", "address"
        )?;
        let shown = match self.whole {
            true => vec![true; listing.rows.len()],
            false => near_samples(&listing.rows),
        };
        let mut left_out = 0;
        for (row, is_shown) in listing.rows.iter().zip(shown) {
            if is_shown {
                self.gap(left_out)?;
                left_out = 0;
                self.instruction(row)?;
            } else {
                left_out += 1;
            }
        }
        self.gap(left_out)?;
        if listing.is_cut {
            writeln!(self.out, "{:>30}and further ones, which are not decoded", "")?;
        }
        Ok(())
    }

    fn gap(&mut self, instructions: usize) -> io::Result<()> {
        match instructions {
            0 => Ok(()),
            1 => writeln!(self.out, "{:>30}1 instruction without samples", ""),
            many => writeln!(self.out, "{:>30}{many} instructions without samples", ""),
        }
    }

    fn instruction(&mut self, row: &ListingRow) -> io::Result<()> {
        let share = |samples: u64| match samples {
            0 => String::new(),
            samples => format!("{:.2}", percent(samples, self.samples)),
        };
        let (own, total) = (share(row.samples), share(row.total));
        let address = format!("{:#x}", row.instruction.address);
        let text = self.instruction_text(&row.instruction);
        let text = match innermost_place(&row.instruction.calls) {
            Some(place) => format!("{text:INSTRUCTION_WIDTH$}  {}", clean(&place, INSTEAD)),
            None => text,
        };
        let text = self.cut(&text, ADDRESS_WIDTH);
        let line = format!("{own:>7}  {total:>7}  {address:>10}  {text}");
        writeln!(self.out, "{}", line.trim_end())
    }

    /// An instruction, with the name of the function that it leads to as far as there is room.
    fn instruction_text(&self, instruction: &Instruction) -> String {
        let text = clean(&instruction.text, INSTEAD);
        let Some(target) = &instruction.target else {
            return text;
        };
        let target = clean(target, INSTEAD);
        let room = INSTRUCTION_WIDTH.saturating_sub(text.len() + 3);
        match self.width {
            Some(_) => format!("{text} <{}>", shorten(&target, room)),
            None => format!("{text} <{target}>"),
        }
    }

    /// The first characters of a text that follows this many columns.
    fn cut(&self, text: &str, before: usize) -> String {
        match self.width {
            Some(width) => text.chars().take(width.saturating_sub(before)).collect(),
            None => text.to_owned(),
        }
    }
}

/// Which rows are shown: those with samples, and those near them.
fn near_samples(rows: &[ListingRow]) -> Vec<bool> {
    let mut shown = vec![false; rows.len()];
    for (index, _) in rows.iter().enumerate().filter(|(_, row)| row.total > 0) {
        let end = rows.len().min(index + AROUND + 1);
        shown[index.saturating_sub(AROUND)..end].fill(true);
    }
    shown
}

/// The line of the innermost call, and its function if that is inlined.
fn innermost_place(calls: &[Call]) -> Option<String> {
    let call = calls.first()?;
    let place = place(call.file.as_deref()?, call.line?);
    Some(match call.inlined {
        true => format!("{place} {}", call.function),
        false => place,
    })
}

fn place(file: &str, line: u32) -> String {
    format!("{}:{line}", clean(file.rsplit('/').next().unwrap_or_default(), INSTEAD))
}

/// The lines of a source file.
fn read_source(path: &str) -> Option<Vec<String>> {
    let bytes = door::open(path.as_ref()).ok()?.read(LARGEST_SOURCE).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.lines().map(|line| line.replace('\t', "    ")).collect())
}
