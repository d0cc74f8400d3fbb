//! Types that a file already contains: a section of compact C types or of BTF in an ELF file, or
//! the bytes of such a section.

use std::borrow::Cow;
use std::fmt;

use backtrail_ctype::constants::{CTF_SECTION, CTFA_MAGIC};
use backtrail_ctype::write::{self, WriteError};
use backtrail_ctype::{Archive, Flags, Surroundings, Symbol, SymbolKind, WideValue, btf};
use backtrail_elf::{File, SymbolEntry, Table};

/// The section's name.
const SECTION: &str = ".ctf";
/// The name of the BTF section, which is read if the other one is missing.
const BTF_SECTION: &str = ".BTF";
/// The part of the kernel's BTF that a module's continues, if it was built apart from the kernel.
const BASE_SECTION: &str = ".BTF.base";

/// A section, with the facts about its file that are needed to read it.
pub struct Source<'a> {
    file: Option<File<'a>>,
    section: Cow<'a, [u8]>,
    wide_values: Vec<WideValue>,
}

/// Why a file has no types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceError {
    /// The ELF file is damaged.
    Elf(backtrail_elf::Error),
    /// BTF is damaged.
    Btf(backtrail_ctype::Error),
    /// Compact C types cannot express all of the BTF.
    Write(WriteError),
    /// BTF continues the BTF of another file, which was not given.
    NoBase,
    /// The ELF file has no such section.
    NoTypes,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Elf(error) => write!(f, "{error}"),
            SourceError::Btf(error) => write!(f, "{error}"),
            SourceError::Write(error) => write!(f, "{error}"),
            SourceError::NoBase => f.write_str("this BTF continues the kernel's"),
            SourceError::NoTypes => f.write_str("no .ctf section, and no .BTF"),
        }
    }
}

impl std::error::Error for SourceError {}

impl<'a> Source<'a> {
    /// Finds the section in a file's bytes. BTF is read completely and converted to a section of
    /// compact C types.
    pub fn find(bytes: &'a [u8]) -> Result<Source<'a>, SourceError> {
        if !bytes.starts_with(b"\x7fELF") {
            return match btf::is_btf(bytes) {
                true => Source::of_btf(None, bytes, None),
                false => Ok(Source::of_section(None, Cow::Borrowed(bytes))),
            };
        }
        let file = File::parse(bytes).map_err(SourceError::Elf)?;
        if let Some(section) = file.section(SECTION).map_err(SourceError::Elf)? {
            return Ok(Source::of_section(Some(file), section.data));
        }
        let Some(btf) = file.section(BTF_SECTION).map_err(SourceError::Elf)? else {
            return Err(SourceError::NoTypes);
        };
        let base = file.section(BASE_SECTION).map_err(SourceError::Elf)?;
        Source::of_btf(Some(file), &btf.data, base.as_ref().map(|base| &base.data[..]))
    }

    /// A section, and the file around it that its dicts may borrow from.
    pub fn of_section(file: Option<File<'a>>, section: Cow<'a, [u8]>) -> Source<'a> {
        Source {
            file,
            section,
            wide_values: Vec::new(),
        }
    }

    fn of_btf(file: Option<File<'a>>, bytes: &[u8], base: Option<&[u8]>) -> Result<Source<'a>, SourceError> {
        if let Some(base) = base {
            return Source::of_modules(base, &[(b"module", bytes)]);
        }
        if btf::is_continued(bytes) {
            return Err(SourceError::NoBase);
        }
        let found = btf::read(bytes).map_err(SourceError::Btf)?;
        let mut source = Source::of_section(file, Cow::Borrowed(&[]));
        source.wide_values.clone_from(&found.wide_values);
        source.section = Cow::Owned(found.to_dict(&[]).map_err(SourceError::Write)?);
        Ok(source)
    }

    /// The BTF of a kernel, and those of modules, which continue it, by their names: an archive
    /// with a dict for each.
    pub fn of_modules(kernel: &[u8], modules: &[(&[u8], &[u8])]) -> Result<Source<'a>, SourceError> {
        let (base, found) = btf::Base::read(kernel).map_err(SourceError::Btf)?;
        let mut wide_values = found.wide_values.clone();
        let parent = CTF_SECTION;
        let mut dicts = vec![found.to_dict(parent).map_err(SourceError::Write)?];
        let mut names = vec![(parent, 0)];
        for &(name, bytes) in modules {
            let found = base.module(name, bytes).map_err(SourceError::Btf)?;
            let unit = |value: &WideValue| WideValue {
                unit: name.to_vec(),
                ..value.clone()
            };
            wide_values.extend(found.wide_values.iter().map(unit));
            names.push((name, dicts.len()));
            dicts.push(found.to_dict(parent).map_err(SourceError::Write)?);
        }
        wide_values.sort();
        Ok(Source {
            wide_values,
            ..Source::of_section(None, Cow::Owned(write::archive(&names, &dicts, 8)))
        })
    }

    /// The bytes of the section.
    pub fn section(&self) -> &[u8] {
        &self.section
    }

    /// The file around the section, if it is an ELF file.
    pub fn file(&self) -> Option<&File<'a>> {
        self.file.as_ref()
    }

    /// Enum values that the section cannot have.
    pub fn wide_values(&self) -> &[WideValue] {
        &self.wide_values
    }

    /// Whether the section is an archive, not plain dicts.
    pub fn is_archive(&self) -> bool {
        self.section.starts_with(&CTFA_MAGIC.to_le_bytes())
    }

    /// The symbols that dicts number, in the order of the table that the first dict chooses, as in
    /// GNU tools. `None` if there is no such table.
    pub fn symbols(&self) -> Option<Vec<Symbol<'_>>> {
        let (symbols, _) = self.file.as_ref()?.symbol_table(table_of(&self.section))?;
        Some(symbols.filter_map(|entry| counted(&entry)).collect())
    }

    /// The parts of the file that the readers of its dicts borrow.
    pub fn surroundings(&self) -> Surroundings<'_> {
        let found = match &self.file {
            Some(file) => surroundings(file, &self.section),
            None => Surroundings {
                pointer: self.recorded_pointer().unwrap_or(Surroundings::default().pointer),
                ..Surroundings::default()
            },
        };
        Surroundings {
            wide: &self.wide_values,
            ..found
        }
    }

    /// Like `Source::surroundings`, but with libctf's pointer size: the one in the archive,
    /// whatever the file is, or else the one of the file's symbol table.
    pub fn surroundings_like_libctf(&self) -> Surroundings<'_> {
        let surroundings = self.surroundings();
        let table = self
            .file
            .as_ref()
            .and_then(|file| file.symbol_table(table_of(&self.section)));
        let pointer = self.recorded_pointer().or(table.map(|_| surroundings.pointer));
        Surroundings {
            pointer: pointer.unwrap_or(Surroundings::default().pointer),
            ..surroundings
        }
    }

    fn recorded_pointer(&self) -> Option<u8> {
        Archive::parse(&self.section).ok()?.pointer_bytes()
    }
}

/// The parts of a file that the readers of the dicts in a section of types borrow.
pub fn surroundings<'a>(file: &File<'a>, section: &[u8]) -> Surroundings<'a> {
    let strings = file.symbol_table(table_of(section));
    Surroundings {
        strings: strings.map_or(&[], |(_, strings)| strings),
        pointer: file.address_bytes(),
        ..Surroundings::default()
    }
}

/// Converts a symbol for the tables of types, if it is counted there ([`Symbol::counted`]).
pub fn counted<'a>(entry: &SymbolEntry<'a>) -> Option<Symbol<'a>> {
    let kind = match (entry.is_object, entry.is_function) {
        (true, _) => SymbolKind::Object,
        (_, true) => SymbolKind::Function,
        _ => return None,
    };
    Symbol::counted(entry.name, kind, entry.is_undefined, entry.is_absolute, entry.value)
}

/// The symbol table that the first dict chooses.
fn table_of(section: &[u8]) -> Table {
    let first = Archive::parse(section).and_then(|archive| archive.member(0));
    let flags = first.ok().and_then(|first| first.bytes.get(3).copied());
    match Flags(flags.unwrap_or(0)).contains(Flags::DYNSTR) {
        true => Table::Dynamic,
        false => Table::Full,
    }
}
