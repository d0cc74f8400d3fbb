//! Where types come from: an ELF file, or the bytes of a section.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use backtrail_ctype::constants::CTFA_MAGIC;
use backtrail_ctype::{Archive, Dict, Error, Flags, Lent, Member, Symbol, SymbolKind, Types};
use backtrail_dwarf::arguments::lent;
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

/// The dicts of a section, opened one after the other. Children share their open parent.
pub(super) struct Dicts<'s> {
    source: &'s Source<'s>,
    archive: Archive<'s>,
    lent: Lent<'s>,
    /// Those that are no children, by where they are: each may be the parent of any.
    parents: HashMap<usize, Rc<Dict<'s>>>,
    next: usize,
}

/// A dict, open, with its parent.
pub(super) struct Opened<'s> {
    /// The member's name.
    pub(super) name: &'s [u8],
    dict: Rc<Dict<'s>>,
    parent: Option<Rc<Dict<'s>>>,
}

impl<'s> Iterator for Dicts<'s> {
    type Item = Result<Opened<'s>, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next;
        if index >= self.archive.len() {
            return None;
        }
        self.next += 1;
        Some(match self.archive.member(index) {
            Ok(member) => self.open(&member).map_err(|error| {
                let name = String::from_utf8_lossy(member.name);
                self.source.failure(format_args!("{name}: {error}"))
            }),
            Err(error) => Err(self.source.failure(error)),
        })
    }
}

impl<'s> Dicts<'s> {
    fn open(&mut self, member: &Member<'s>) -> Result<Opened<'s>, Error> {
        let dict = self.open_once(member)?;
        let parent = self.archive.parent_of(&dict)?;
        let parent = parent.map(|parent| self.open_once(&parent)).transpose()?;
        Ok(Opened {
            name: member.name,
            dict,
            parent,
        })
    }

    fn open_once(&mut self, member: &Member<'s>) -> Result<Rc<Dict<'s>>, Error> {
        if let Some(parent) = self.parents.get(&member.offset) {
            return Ok(Rc::clone(parent));
        }
        let dict = Rc::new(member.open(self.lent)?);
        if !dict.is_child() {
            self.parents.insert(member.offset, Rc::clone(&dict));
        }
        Ok(dict)
    }
}

impl Opened<'_> {
    /// The unit whose types these are; empty for what units share.
    pub(super) fn unit(&self) -> String {
        let unit = self.dict.cu_name().ok().flatten();
        let unit = unit.or(self.dict.is_child().then_some(self.name));
        String::from_utf8_lossy(unit.unwrap_or_default()).into_owned()
    }

    pub(super) fn types(&self) -> Types<'_> {
        Types::with_parent(&self.dict, self.parent.as_deref())
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

    /// The bytes of the section.
    pub(super) fn section(&self) -> &[u8] {
        &self.section
    }

    /// Whether it holds an archive, rather than dicts.
    pub(super) fn is_archive(&self) -> bool {
        self.section.starts_with(&CTFA_MAGIC.to_le_bytes())
    }

    /// The file around the section, if it is an ELF file.
    pub(super) fn image(&self) -> Option<&Image<'a>> {
        self.image.as_ref()
    }

    /// What is wrong with it.
    pub(super) fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure::of(self.path, what)
    }

    /// The dicts in it.
    pub(super) fn dicts(&self) -> Result<Dicts<'_>, Failure> {
        let archive = Archive::parse(&self.section).map_err(|error| self.failure(error))?;
        Ok(Dicts {
            source: self,
            archive,
            lent: self.lent(),
            parents: HashMap::new(),
            next: 0,
        })
    }

    /// All of them; what can't be opened is told.
    pub(super) fn open_all(&self, tell: &mut dyn FnMut(Failure)) -> Result<Vec<Opened<'_>>, Failure> {
        let opened = self.dicts()?.filter_map(|dict| match dict {
            Ok(dict) => Some(dict),
            Err(failure) => {
                tell(failure);
                None
            }
        });
        Ok(opened.collect())
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

    pub(super) fn lent(&self) -> Lent<'_> {
        let image = self.image.as_ref();
        image.map_or_else(Lent::default, |image| lent(image, &self.section))
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
