//! Where a table comes from: an ELF file, or the bytes of a section.

use std::borrow::Cow;
use std::path::Path;

use backtrail_elf::{Image, Kind, MappedFile, SectionData};
use backtrail_sframe::{Error, Flags, Section};

use crate::error::Failure;

/// A section and what is to be known of its file to read it.
pub(super) struct Table<'a> {
    /// `sh_name`.
    pub(super) name: String,
    /// Where its first byte lies; 0 in a relocatable file and for bytes without one.
    pub(super) address: u64,
    /// The bytes, relocated.
    pub(super) bytes: Cow<'a, [u8]>,
    /// The bytes before they were relocated, where that changed them.
    stored: Option<Cow<'a, [u8]>>,
}

pub(super) fn open(path: &Path) -> Result<MappedFile, Failure> {
    MappedFile::open(path).map_err(|error| Failure::of(path, error))
}

/// The file, its sections placed where it is a relocatable one; `path` is for messages.
pub(super) fn image<'a>(path: &Path, bytes: &'a [u8]) -> Result<Image<'a>, Failure> {
    let image = Image::parse(bytes).map_err(|error| Failure::of(path, error))?;
    Ok(image.with_sections_placed())
}

impl<'a> Table<'a> {
    /// The table in a file's bytes; `path` is for messages.
    pub(super) fn find(path: &Path, bytes: &'a [u8]) -> Result<Table<'a>, Failure> {
        if !bytes.starts_with(b"\x7fELF") {
            return Ok(Table {
                name: ".sframe".to_owned(),
                address: 0,
                bytes: Cow::Borrowed(bytes),
                stored: None,
            });
        }
        let image = Image::parse(bytes).map_err(|error| Failure::of(path, error))?;
        Table::of_image(&image).map_err(|error| Failure::of(path, error))?.ok_or_else(|| {
            match image.section_header(".ctf_frame") {
                Some(_) => Failure::of(
                    path,
                    "section .ctf_frame holds a table of version 0 of the format, the CTF Frame, which no released tool makes",
                )
                .help("binutils 2.40 and later make .sframe instead"),
                None => Failure::of(path, "no .sframe section"),
            }
        })
    }

    /// The table of a file; `None` where it has none.
    pub(super) fn of_image(image: &Image<'a>) -> backtrail_elf::Result<Option<Table<'a>>> {
        let Some(SectionData { address, data }) = image.sframe()? else {
            return Ok(None);
        };
        let header = image.sframe_header();
        let stored = match header {
            Some(header) if image.kind() == Kind::Relocatable => image.contents(header)?.map(|stored| stored.data),
            _ => None,
        };
        let name = header.map_or(&b".sframe"[..], |header| header.name);
        Ok(Some(Table {
            name: String::from_utf8_lossy(name).into_owned(),
            address,
            bytes: data,
            stored,
        }))
    }

    /// The table with functions where they are, and what is missing of it.
    pub(super) fn section(&self) -> Result<(Section<'_>, Option<Error>), Error> {
        let (section, missing) = Section::parse_lenient(&self.bytes, self.address)?;
        // No tool before the flag set it, and relocations count from the field all the same.
        Ok(match self.stored {
            Some(_) => (section.starts_relative_to_field(), missing),
            None => (section, missing),
        })
    }

    /// The table as readelf sees it: it relocates the start fields only where a flag says that they count from
    /// themselves.
    pub(super) fn section_of_readelf(&self) -> Result<(Section<'_>, Option<Error>), Error> {
        let relocated = Section::parse_lenient(&self.bytes, self.address)?;
        match &self.stored {
            Some(stored) if !relocated.0.flags().contains(Flags::FDE_FUNC_START_PCREL) => {
                Section::parse_lenient(stored, self.address)
            }
            _ => Ok(relocated),
        }
    }
}
