//! Finds the types of an input: an ELF file, or the bytes of a section.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use backtrail_ctype::{Archive, Dict, Error, Member, Surroundings, Symbol, Types};
use backtrail_debuginfo::types::{self, Reason, SourceError};
use backtrail_elf::machines::*;
use backtrail_elf::{File, FileBytes};
use backtrail_wire::Endian;

use crate::error::Failure;

pub(super) fn open(path: &Path) -> Result<FileBytes, Failure> {
    FileBytes::open(path).map_err(|error| Failure::of(path, error))
}

/// The failure for a file whose types can't be found.
pub(super) fn no_types(path: &Path, error: SourceError) -> Failure {
    let failure = Failure::of(path, error);
    match error {
        SourceError::NoTypes => failure.help("gcc -gctf makes one, and backtrail types add from debug information"),
        SourceError::NoBase => failure.help("--base /sys/kernel/btf/vmlinux adds the running kernel's"),
        _ => failure,
    }
}

/// A section, and what a reader needs to know of its file.
pub(super) struct Source<'a> {
    path: &'a Path,
    inner: types::Source<'a>,
}

/// The dicts of a section, opened one after the other. Children share their open parent.
pub(super) struct Dicts<'s> {
    source: &'s Source<'s>,
    archive: Archive<'s>,
    surroundings: Surroundings<'s>,
    /// Dicts that are not children, by position: each may be the parent of any other.
    parents: HashMap<usize, Rc<Dict<'s>>>,
    next: usize,
}

/// An open dict with its parent.
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
        let dict = Rc::new(member.open(self.surroundings)?);
        if !dict.is_child() {
            self.parents.insert(member.offset, Rc::clone(&dict));
        }
        Ok(dict)
    }
}

impl Opened<'_> {
    /// The unit whose types these are; empty for the shared types of all units.
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
    /// Finds the section in a file's bytes; `path` is for messages.
    pub(super) fn find(path: &'a Path, bytes: &'a [u8]) -> Result<Source<'a>, Failure> {
        let inner = types::Source::find(bytes).map_err(|error| no_types(path, error))?;
        Ok(Source::new(path, inner))
    }

    /// The types that were found for the file at this path.
    pub(super) fn new(path: &'a Path, inner: types::Source<'a>) -> Source<'a> {
        Source { path, inner }
    }

    /// Reports what compact C types cannot have of the file's.
    pub(super) fn report_left_out(&self) {
        if let [first, ..] = self.inner.wide_values() {
            let (count, reason) = (self.inner.wide_values().len(), Reason::Enumerator);
            let first = String::from_utf8_lossy(&first.name);
            crate::error::say!(
                "{}: left out: {reason}: {count} (the first: {first})",
                self.path.display()
            );
        }
    }

    /// The bytes of the section.
    pub(super) fn section(&self) -> &[u8] {
        self.inner.section()
    }

    /// Whether the section holds an archive instead of plain dicts.
    pub(super) fn is_archive(&self) -> bool {
        self.inner.is_archive()
    }

    /// The file around the section, if it is an ELF file.
    pub(super) fn file(&self) -> Option<&File<'a>> {
        self.inner.file()
    }

    /// A failure that names this file.
    pub(super) fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure::of(self.path, what)
    }

    /// The dicts in the section.
    pub(super) fn dicts(&self) -> Result<Dicts<'_>, Failure> {
        self.dicts_with(self.surroundings())
    }

    /// The dicts in the section, as objdump reads them.
    pub(super) fn dicts_of_objdump(&self) -> Result<Dicts<'_>, Failure> {
        self.dicts_with(self.inner.surroundings_like_libctf())
    }

    fn dicts_with<'s>(&'s self, surroundings: Surroundings<'s>) -> Result<Dicts<'s>, Failure> {
        let archive = Archive::parse(self.section()).map_err(|error| self.failure(error))?;
        Ok(Dicts {
            source: self,
            archive,
            surroundings,
            parents: HashMap::new(),
            next: 0,
        })
    }

    /// Opens all dicts; reports each one that cannot be opened.
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

    /// The name that GNU tools use for the file's format.
    pub(super) fn format(&self) -> Option<&'static str> {
        let file = self.file()?;
        let (bits, big) = (file.address_bytes() * 8, file.endian() == Endian::Big);
        Some(match (file.machine(), bits, big) {
            (EM_X86_64, 64, _) => "elf64-x86-64",
            (EM_X86_64, ..) => "elf32-x86-64",
            (EM_386, ..) => "elf32-i386",
            (EM_AARCH64, 64, false) => "elf64-littleaarch64",
            (EM_AARCH64, 64, true) => "elf64-bigaarch64",
            (EM_ARM, _, false) => "elf32-littlearm",
            (EM_ARM, _, true) => "elf32-bigarm",
            (EM_S390, 64, _) => "elf64-s390",
            (EM_S390, ..) => "elf32-s390",
            (EM_PPC, _, false) => "elf32-powerpcle",
            (EM_PPC, _, true) => "elf32-powerpc",
            (EM_PPC64, _, false) => "elf64-powerpcle",
            (EM_PPC64, _, true) => "elf64-powerpc",
            (EM_RISCV, 64, _) => "elf64-littleriscv",
            (EM_RISCV, ..) => "elf32-littleriscv",
            (_, 64, false) => "elf64-little",
            (_, 64, true) => "elf64-big",
            (_, _, false) => "elf32-little",
            (_, _, true) => "elf32-big",
        })
    }

    /// The symbols whose numbers the dicts use.
    pub(super) fn symbols(&self) -> Option<Vec<Symbol<'_>>> {
        self.inner.symbols()
    }

    /// The parts of the file that the readers of its dicts borrow.
    pub(super) fn surroundings(&self) -> Surroundings<'_> {
        self.inner.surroundings()
    }
}
