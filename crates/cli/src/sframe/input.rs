//! Finds the table of an input: an ELF file, or the bytes of a section.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

use backtrail_elf::budget::Budget;
use backtrail_elf::{FileBytes, Image, Kind, archive, door};
use backtrail_sframe::write::{self, FunctionRows, Options};
use backtrail_sframe::{Error, Flags, Section};

use crate::error::Failure;

/// A section, and what a reader needs to know of its file.
pub(super) struct Table<'a> {
    /// `sh_name`.
    pub(super) name: String,
    /// The address of its first byte; 0 in a relocatable file and for raw bytes.
    pub(super) address: u64,
    /// The bytes, relocated.
    pub(super) bytes: Cow<'a, [u8]>,
    /// The bytes before relocation, if that changed them.
    stored: Option<Cow<'a, [u8]>>,
}

pub(super) fn open(path: &Path) -> Result<FileBytes, Failure> {
    FileBytes::open(path).map_err(|error| Failure::of_io(path, &error))
}

/// Opens a file that has a table or frames itself, as an archive does not.
pub(super) fn open_single(path: &Path) -> Result<FileBytes, Failure> {
    let file = open(path)?;
    match is_archive(&file) {
        true => Err(Failure::of(path, "an archive: only its object files have tables")
            .help("extract them with `ar x`, and name them instead")),
        false => Ok(file),
    }
}

/// Opens the file, and its contents.
pub(super) fn open_both(path: &Path) -> Result<(File, FileBytes), Failure> {
    let fails = |error: std::io::Error| Failure::of_io(path, &error);
    let file = door::named(path).map_err(fails)?;
    let plain = file.file().try_clone().map_err(fails)?;
    let contents = file.contents(&Budget::new()).map_err(fails)?;
    Ok((plain, contents))
}

/// Whether the file is an archive, from its first bytes.
pub(super) fn is_archive(file: &FileBytes) -> bool {
    const MAGIC: usize = 8;
    file.slice(0, MAGIC).is_ok_and(archive::is_archive)
}

/// Parses the file, and places the sections of a relocatable one; `path` is for messages.
pub(super) fn image<'a>(path: &Path, file: &'a FileBytes) -> Result<Image<'a>, Failure> {
    let image = Image::of(file).map_err(|error| Failure::of(path, error))?;
    Ok(image.with_sections_placed())
}

impl<'a> Table<'a> {
    /// The table in a file's bytes, the first one if there are several; `path` is for messages.
    pub(super) fn find(path: &Path, bytes: &'a [u8]) -> Result<Table<'a>, Failure> {
        let mut tables = Table::find_all(path, bytes)?;
        Ok(tables.swap_remove(0))
    }

    /// All tables in a file's bytes, at least one: an object file has one for each group of
    /// sections.
    pub(super) fn find_all(path: &Path, bytes: &'a [u8]) -> Result<Vec<Table<'a>>, Failure> {
        if !bytes.starts_with(b"\x7fELF") {
            return Ok(vec![Table {
                name: ".sframe".to_owned(),
                address: 0,
                bytes: Cow::Borrowed(bytes),
                stored: None,
            }]);
        }
        let image = Image::parse(bytes).map_err(|error| Failure::of(path, error))?;
        let tables = Table::all_of_image(&image).map_err(|error| Failure::of(path, error))?;
        if !tables.is_empty() {
            return Ok(tables);
        }
        Err(match image.section_header(".ctf_frame") {
            None if image.sframe_header().is_some() => Failure::of(path, "section .sframe is empty")
                .help("`backtrail sframe add` makes a table from .eh_frame, `sframe strip` removes the section"),
            Some(_) => Failure::of(
                path,
                "section .ctf_frame holds a table of version 0 of the format, the CTF Frame, which no released tool makes",
            )
            .help("binutils 2.40 and later make .sframe instead"),
            None => Failure::of(path, "no .sframe section")
                .help("`backtrail sframe add` makes one from .eh_frame, `sframe build` only the table"),
        })
    }

    /// The table of a file; `None` if it has none. Several tables of an object file are joined into
    /// one.
    pub(super) fn of_image(image: &Image<'a>) -> backtrail_elf::Result<Option<Table<'a>>> {
        let mut tables = Table::all_of_image(image)?;
        let joined = if tables.len() > 1 { joined(&tables) } else { None };
        Ok(joined.or_else(|| (!tables.is_empty()).then(|| tables.swap_remove(0))))
    }

    /// The tables of a file, none or several, as they are stored.
    pub(super) fn all_of_image(image: &Image<'a>) -> backtrail_elf::Result<Vec<Table<'a>>> {
        let name = |header: Option<&[u8]>| String::from_utf8_lossy(header.unwrap_or(b".sframe")).into_owned();
        let tables = image.sframe_tables()?.into_iter().map(|(header, data)| {
            let stored = match header {
                Some(header) if image.kind() == Kind::Relocatable => image.contents(header)?.map(|stored| stored.data),
                _ => None,
            };
            Ok(Table {
                name: name(header.map(|header| header.name)),
                address: data.address,
                bytes: data.data,
                stored,
            })
        });
        tables.collect()
    }

    /// The table with its functions' addresses resolved, and the error that cut it short.
    pub(super) fn section(&self) -> Result<(Section<'_>, Option<Error>), Error> {
        let (section, missing) = Section::parse_lenient(&self.bytes, self.address)?;
        // Tools older than the flag do not set it, but relocations count from the field all the
        // same.
        Ok(match self.stored {
            Some(_) => (section.starts_relative_to_field(), missing),
            None => (section, missing),
        })
    }

    /// The table as readelf sees it: readelf relocates the start fields only if a flag says that
    /// they count from themselves.
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

/// One table with the functions of several; `None` if one of them cannot be read completely.
fn joined<'a>(tables: &[Table<'_>]) -> Option<Table<'a>> {
    let mut functions = Vec::new();
    let mut options = None;
    for table in tables {
        let (section, missing) = table.section().ok()?;
        if missing.is_some() {
            return None;
        }
        options.get_or_insert(Options::new(section.version(), section.abi(), 0));
        functions.extend(FunctionRows::read_all(&section).ok()?);
    }
    Some(Table {
        name: tables.first()?.name.clone(),
        address: 0,
        bytes: Cow::Owned(write::section(&functions, &options?).ok()?.bytes),
        stored: None,
    })
}
