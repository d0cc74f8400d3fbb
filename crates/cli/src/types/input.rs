//! Where types come from: an ELF file, or the bytes of a section.

use std::borrow::Cow;
use std::path::Path;

use backtrail_ctype::{Archive, Dict, Flags, Lent, Member, Symbol, SymbolKind, Types};
use backtrail_elf::{Image, MappedFile, Table};
use backtrail_wire::Endian;

use crate::error::Failure;

/// The section's name.
const SECTION: &str = ".ctf";

pub(super) fn open(path: &Path) -> Result<MappedFile, Failure> {
    MappedFile::open(path).map_err(|error| Failure::of(path, error))
}

/// A section and what is to be known of its file to read it.
pub(super) struct Source<'a> {
    path: &'a Path,
    image: Option<Image<'a>>,
    section: Cow<'a, [u8]>,
}

/// A dict, open, with its parent.
pub(super) struct Opened<'s> {
    /// The member's name.
    pub(super) name: &'s [u8],
    dict: Dict<'s>,
    parent: Option<Dict<'s>>,
}

impl Opened<'_> {
    /// The unit whose types these are; empty for what units share.
    pub(super) fn unit(&self) -> String {
        let unit = self.dict.cu_name().ok().flatten();
        let unit = unit.or(self.dict.is_child().then_some(self.name));
        String::from_utf8_lossy(unit.unwrap_or_default()).into_owned()
    }

    pub(super) fn types(&self) -> Types<'_> {
        Types::with_parent(&self.dict, self.parent.as_ref())
    }
}

impl<'a> Source<'a> {
    /// The section in a file's bytes; `path` is for messages.
    pub(super) fn find(path: &'a Path, bytes: &'a [u8]) -> Result<Source<'a>, Failure> {
        if !bytes.starts_with(b"\x7fELF") {
            return Ok(Source {
                path,
                image: None,
                section: Cow::Borrowed(bytes),
            });
        }
        let image = Image::parse(bytes).map_err(|error| Failure::of(path, error))?;
        let section = image.section(SECTION).map_err(|error| Failure::of(path, error))?;
        let Some(section) = section else {
            let failure = Failure::of(path, "no .ctf section");
            return Err(failure.help("gcc -gctf makes one"));
        };
        Ok(Source {
            path,
            section: section.data,
            image: Some(image),
        })
    }

    /// What is wrong with it.
    pub(super) fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure::of(self.path, what)
    }

    /// The dicts in it.
    pub(super) fn archive(&self) -> Result<Archive<'_>, Failure> {
        Archive::parse(&self.section).map_err(|error| self.failure(error))
    }

    /// How GNU tools name the file's format.
    pub(super) fn format(&self) -> Option<&'static str> {
        let image = self.image.as_ref()?;
        Some(match (image.arch().name, image.endian()) {
            ("x86_64", _) => "elf64-x86-64",
            ("aarch64", Endian::Little) => "elf64-littleaarch64",
            ("aarch64", Endian::Big) => "elf64-bigaarch64",
            ("s390x", _) => "elf64-s390",
            _ => "elf64",
        })
    }

    /// The symbols that dicts number, in the order of the table that the first dict chooses, as GNU tools have it.
    /// `None` where there is no such table.
    pub(super) fn symbols(&self) -> Option<Vec<Symbol<'_>>> {
        let (symbols, _) = self.image.as_ref()?.symbol_table(self.table())?;
        let symbols = symbols.filter_map(|entry| {
            let kind = match (entry.is_object, entry.is_function) {
                (true, _) => SymbolKind::Object,
                (_, true) => SymbolKind::Function,
                _ => return None,
            };
            Symbol::counted(entry.name, kind, entry.is_undefined, entry.is_absolute, entry.value)
        });
        Some(symbols.collect())
    }

    /// Opens a member with its parent.
    pub(super) fn open<'s>(&'s self, archive: &Archive<'s>, member: &Member<'s>) -> Result<Opened<'s>, Failure> {
        let told = |error| self.failure(format_args!("{}: {error}", String::from_utf8_lossy(member.name)));
        let lent = self.lent();
        let dict = member.open(lent).map_err(told)?;
        let parent = archive.parent_of(&dict, lent).map_err(told)?;
        Ok(Opened {
            name: member.name,
            dict,
            parent,
        })
    }

    /// Opens all members; what can't be opened is told.
    pub(super) fn open_all(&self, tell: &mut dyn FnMut(Failure)) -> Result<Vec<Opened<'_>>, Failure> {
        let archive = self.archive()?;
        let mut opened = Vec::new();
        for member in archive.members() {
            let member = member.map_err(|error| self.failure(error));
            match member.and_then(|member| self.open(&archive, &member)) {
                Ok(dict) => opened.push(dict),
                Err(failure) => tell(failure),
            }
        }
        Ok(opened)
    }

    fn lent(&self) -> Lent<'_> {
        let strings = self.image.as_ref().and_then(|image| image.symbol_table(self.table()));
        Lent {
            strings: strings.map_or(&[], |(_, strings)| strings),
            ..Lent::default()
        }
    }

    fn table(&self) -> Table {
        let archive = Archive::parse(&self.section);
        let first = archive.and_then(|archive| archive.member(0));
        let flags = first.ok().and_then(|first| first.bytes.get(3).copied());
        match Flags(flags.unwrap_or(0)).contains(Flags::DYNSTR) {
            true => Table::Dynamic,
            false => Table::Full,
        }
    }
}
