//! The text that GNU objdump and readelf of the section's version print for it: 2.40 for version 1, 2.45 for version 2,
//! 2.46 for version 3.

use core::fmt::{self, Write};

use crate::constants::{FdeType, Flags, Version};
use crate::error::Error;
use crate::read::{Fde, RawRow, Section};
use crate::row::{Base, Location, Rule};

/// Why a dump is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpError {
    /// The section can't be read; the text up to there was written.
    Section(Error),
    /// The text could not be written.
    Write,
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpError::Section(error) => error.fmt(f),
            DumpError::Write => f.write_str("the text of an SFrame section could not be written"),
        }
    }
}

impl core::error::Error for DumpError {}

impl From<Error> for DumpError {
    fn from(error: Error) -> Self {
        DumpError::Section(error)
    }
}

impl From<fmt::Error> for DumpError {
    fn from(_: fmt::Error) -> Self {
        DumpError::Write
    }
}

/// Writes the section's text, from "Contents of the SFrame section" to the last row. `name` is the section's.
pub fn dump(section: &Section<'_>, name: &str, out: &mut dyn Write) -> Result<(), DumpError> {
    writeln!(out, "Contents of the SFrame section {name}:")?;
    header(section, out)?;
    for (index, fde) in section.functions().enumerate() {
        function(section, index, &fde?, out)?;
    }
    Ok(())
}

fn header(section: &Section<'_>, out: &mut dyn Write) -> fmt::Result {
    writeln!(out, "  Header :\n")?;
    writeln!(out, "    Version: {}", section.version().name())?;
    write!(out, "    Flags: ")?;
    let mut separator = "";
    for (flag, name) in Flags::NAMES {
        if section.flags().contains(flag) {
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

fn function(section: &Section<'_>, index: usize, fde: &Fde<'_>, out: &mut dyn Write) -> Result<(), DumpError> {
    let function = fde.function();
    write!(
        out,
        "\n    func idx [{index}]: pc = {:#x}, size = {} bytes",
        function.start, function.size
    )?;
    if function.signal_frame {
        write!(out, ", attr = \"S\"")?;
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
    while let Some(raw) = rows.next()? {
        let row = fde.decode(&raw)?;
        write!(out, "    {:016x}  ", base.wrapping_add(row.start.into()))?;
        match row.rule {
            Some(rule) => writeln!(out, "{}", Columns(section, fde, &raw, &rule))?,
            None => writeln!(out, "RA undefined")?,
        }
    }
    Ok(())
}

/// The columns of a row.
struct Columns<'a>(&'a Section<'a>, &'a Fde<'a>, &'a RawRow<'a>, &'a Rule);

impl fmt::Display for Columns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Columns(section, fde, raw, rule) = *self;
        let context = fde.context();
        let mut cfa = Text::default();
        place(&mut cfa, section, rule.cfa)?;
        let mut fp = Text::default();
        match rule.fp {
            Some(location) if Some(location) != context.default_fp() => place(&mut fp, section, location)?,
            Some(_) => fp.write_str("f")?,
            None => fp.write_str("u")?,
        }
        let mut ra = Text::default();
        if rule.ra != context.default_ra() {
            place(&mut ra, section, rule.ra)?;
        } else if context.fixed_ra != 0 && section.version() != Version::V1 {
            ra.write_str("f")?;
        } else {
            let words_of_cfa = if fde.fde_type() == FdeType::Flex { 2 } else { 1 };
            let padded = context.fixed_ra == 0 && raw.words.len() > words_of_cfa;
            ra.write_str(if padded { "U" } else { "u" })?;
        }
        if rule.mangled_ra {
            ra.write_str("[s]")?;
        }
        write!(f, "{:<10}{:<10}{:<13}", cfa.as_str(), fp.as_str(), ra.as_str())
    }
}

/// A place as the tools write it: `c-16` is what lies at CFA - 16, `sp+8` is SP + 8, `(fp-8)` what lies at FP - 8.
fn place(out: &mut Text, section: &Section<'_>, location: Location) -> fmt::Result {
    let arch = section.abi().arch();
    let offset = location.offset;
    match (location.base, location.deref) {
        (Base::Cfa, true) => return write!(out, "c{offset:+}"),
        // No tool prints it, because no producer makes it.
        (Base::Cfa, false) => return write!(out, "c{offset:+}[v]"),
        (Base::Register(_), deref) if deref => out.write_str("(")?,
        _ => {}
    }
    match location.base {
        Base::Register(number) if number == arch.sp.0 => write!(out, "sp{offset:+}")?,
        Base::Register(number) if number == arch.fp.0 => write!(out, "fp{offset:+}")?,
        Base::Register(number) => write!(out, "r{number}{offset:+}")?,
        Base::Cfa => {}
    }
    out.write_str(if location.deref { ")" } else { "" })
}

/// A column before it is padded. The longest is `(r255-2147483648)[s]`.
#[derive(Default)]
struct Text {
    bytes: [u8; 32],
    len: usize,
}

impl Text {
    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        let place = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}
