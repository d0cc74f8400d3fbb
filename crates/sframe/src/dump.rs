//! Dumping a section as text, exactly as GNU objdump and readelf print it.
//!
//! The text depends on the section's version: binutils 2.40 for version 1, 2.44 for version 2 (2.45
//! and later with the errata), 2.47 for version 3.

use core::fmt::{self, Write};

use crate::constants::{FdeType, Flags, Version};
use crate::error::Error;
use crate::read::{Fde, RawRow, Section};
use crate::row::{Base, Location};
use crate::validate::Finding;

/// Why a dump is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DumpError {
    /// Some functions or rows can't be read; everything else was written.
    Damaged {
        /// The first unreadable function or row.
        first: Finding,
        /// The number of unreadable items.
        count: u32,
    },
    /// The text could not be written.
    Write,
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpError::Damaged { first, count: 1 } => first.fmt(f),
            DumpError::Damaged { first, count } => write!(f, "{first}, and {} more like this", count.saturating_sub(1)),
            DumpError::Write => f.write_str("the text of an SFrame section could not be written"),
        }
    }
}

impl core::error::Error for DumpError {}

impl From<fmt::Error> for DumpError {
    fn from(_: fmt::Error) -> Self {
        DumpError::Write
    }
}

/// Writes the section's text, from "Contents of the SFrame section" to the last row. `name` is the
/// section's name.
///
/// A function that can't be read is left out, and so are a function's rows from the first
/// unreadable one on. The error at the end reports them.
pub fn dump(section: &Section<'_>, name: &str, out: &mut dyn Write) -> Result<(), DumpError> {
    writeln!(out, "Contents of the SFrame section {name}:")?;
    header(section, out)?;
    let (mut first, mut count) = (None, 0u32);
    for (index, fde) in (0..).zip(section.functions()) {
        let damage = match fde {
            Ok(fde) => function(section, index, &fde, out)?.err(),
            Err(error) => Some(Finding::of_fde(index, error)),
        };
        if damage.is_some() {
            first = first.or(damage);
            count = count.saturating_add(1);
        }
    }
    match first {
        Some(first) => Err(DumpError::Damaged { first, count }),
        None => Ok(()),
    }
}

fn header(section: &Section<'_>, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "  Header :\n")?;
    writeln!(out, "    Version: {}", section.version().name())?;
    write!(out, "    Flags: ")?;
    let mut separator = "";
    let flags = flags_shown(section);
    for (flag, name) in Flags::NAMES {
        if flags.contains(flag) {
            write!(out, "{separator}{name}")?;
            separator = ",\n           ";
        }
    }
    writeln!(out, "{}", if separator.is_empty() { "NONE" } else { "" })?;
    if section.version() != Version::V1 {
        if section.fixed_fp_offset() != 0 {
            writeln!(out, "    CFA fixed FP offset: {}", section.fixed_fp_offset())?;
        }
        if section.fixed_ra_offset() != 0 {
            writeln!(out, "    CFA fixed RA offset: {}", section.fixed_ra_offset())?;
        }
    }
    writeln!(out, "    Num FDEs: {}", section.num_fdes())?;
    writeln!(out, "    Num FREs: {}\n", section.num_fres())?;
    writeln!(out, "  Function Index :")
}

/// The flags that the version's tool knows. The tool for version 1 prints at most one.
fn flags_shown(section: &Section<'_>) -> Flags {
    let version = section.version();
    let flags = Flags(section.flags().0 & Flags::known(version).0);
    match version {
        Version::V1 if flags.contains(Flags::FRAME_POINTER) => Flags::FRAME_POINTER,
        _ => flags,
    }
}

/// Writes one function; the inner result is that of reading it.
fn function(
    section: &Section<'_>,
    index: u32,
    fde: &Fde<'_>,
    out: &mut dyn Write,
) -> Result<Result<(), Finding>, fmt::Error> {
    let function = fde.function();
    write!(
        out,
        "\n    func idx [{index}]: pc = {:#x}, size = {} bytes",
        function.start, function.size
    )?;
    match (function.signal_frame, fde.is_flex()) {
        (true, true) => write!(out, ", attr = \"SF\"")?,
        (true, false) => write!(out, ", attr = \"S\"")?,
        (false, true) => write!(out, ", attr = \"F\"")?,
        (false, false) => {}
    }
    if function.pauth_key_b {
        write!(out, ", pauth = B key")?;
    }
    let column = if function.repeat.is_some() {
        "STARTPC[m]"
    } else {
        "STARTPC"
    };
    writeln!(out, "\n    {column:<16}{:<10}{:<10}{:<13}", "CFA", "FP", "RA")?;
    let base = if function.repeat.is_some() { 0 } else { function.start };
    let mut rows = fde.raw_rows();
    for number in 0.. {
        let row = match rows
            .next()
            .and_then(|raw| raw.map(|raw| columns(section, fde, &raw)).transpose())
        {
            Ok(Some(row)) => row,
            Ok(None) => break,
            Err(error) => return Ok(Err(Finding::of_row(index, number, error))),
        };
        write!(out, "    {:016x}  ", base.wrapping_add(row.start.into()))?;
        match row.columns {
            Some([cfa, fp, ra]) => writeln!(out, "{:<10}{:<10}{:<13}", cfa.as_str(), fp.as_str(), ra.as_str())?,
            None => writeln!(out, "RA undefined")?,
        }
    }
    Ok(Ok(()))
}

struct Line {
    start: u32,
    /// CFA, FP and RA; `None` in the outermost frame.
    columns: Option<[Text; 3]>,
}

fn columns(section: &Section<'_>, fde: &Fde<'_>, raw: &RawRow) -> Result<Line, Error> {
    let row = fde.decode(raw)?;
    let Some(rule) = row.rule else {
        return Ok(Line {
            start: row.start,
            columns: None,
        });
    };
    let (mut cfa, mut fp, mut ra) = (Text::default(), Text::default(), Text::default());
    match fde.fde_type() {
        FdeType::Default => default_cfa(&mut cfa, section, rule.cfa),
        FdeType::Flex => place(&mut cfa, section, rule.cfa),
    }
    match rule.fp {
        // The tool for version 1 does not know a fixed offset of FP.
        Some(_) if section.version() == Version::V1 && section.fixed_fp_offset() != 0 => fp.push(format_args!("u")),
        Some(location) => slot(&mut fp, section, fde, location),
        None => fp.push(format_args!("u")),
    }
    match ra_word(section, fde, raw)? {
        RaWord::Place => slot(&mut ra, section, fde, rule.ra),
        RaWord::Padding => ra.push(format_args!("U")),
        RaWord::None if section.fixed_ra_offset() != 0 && section.version() != Version::V1 => {
            ra.push(format_args!("f"));
        }
        RaWord::None => ra.push(format_args!("u")),
    }
    if rule.mangled_ra {
        ra.push(format_args!("[s]"));
    }
    Ok(Line {
        start: row.start,
        columns: Some([cfa, fp, ra]),
    })
}

/// The RA word of a row; the decoded rule no longer contains it.
enum RaWord {
    None,
    Padding,
    Place,
}

fn ra_word(section: &Section<'_>, fde: &Fde<'_>, raw: &RawRow) -> Result<RaWord, Error> {
    let words = fde.words(raw);
    let (index, is_there) = match fde.fde_type() {
        FdeType::Default => (1, section.fixed_ra_offset() == 0),
        FdeType::Flex => (2, true),
    };
    Ok(if !is_there || index >= words.len() {
        RaWord::None
    } else if words.unsigned(index)? == 0 && section.version() != Version::V1 {
        RaWord::Padding
    } else {
        RaWord::Place
    })
}

/// The CFA of the DEFAULT type: the tools print the plus sign even before a negative offset.
fn default_cfa(out: &mut Text, section: &Section<'_>, location: Location) {
    let sp = location.base == Base::Register(section.abi().arch().sp.0);
    let register = if sp { "sp" } else { "fp" };
    out.push(format_args!("{register}+{}", location.offset));
}

/// The location of RA or FP. In DEFAULT rows, a register is printed without an offset.
fn slot(out: &mut Text, section: &Section<'_>, fde: &Fde<'_>, location: Location) {
    match location.base {
        Base::Register(number) if fde.fde_type() == FdeType::Default => out.push(format_args!("r{number}")),
        _ => place(out, section, location),
    }
}

/// A location as the tools print it: `c-16` is the word at CFA - 16, `sp+8` is SP + 8, `(fp-8)` the
/// word at FP - 8.
fn place(out: &mut Text, section: &Section<'_>, location: Location) {
    let arch = section.abi().arch();
    let (base, offset) = (location.base, location.offset);
    let (open, close) = if location.deref { ("(", ")") } else { ("", "") };
    match base {
        Base::Cfa => out.push(format_args!("c{offset:+}")),
        Base::Register(number) if number == arch.sp.0 => out.push(format_args!("{open}sp{offset:+}{close}")),
        Base::Register(number) if number == arch.fp.0 => out.push(format_args!("{open}fp{offset:+}{close}")),
        Base::Register(number) => out.push(format_args!("{open}r{number}{offset:+}{close}")),
    }
}

/// A column before it is padded. The longest is `(r255-2147483648)[s]`.
#[derive(Default)]
struct Text {
    bytes: [u8; 32],
    len: usize,
}

impl Text {
    fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl Text {
    /// Drops anything that does not fit; all columns fit.
    fn push(&mut self, text: fmt::Arguments<'_>) {
        let _ = self.write_fmt(text);
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len.saturating_add(text.len());
        let place = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}
