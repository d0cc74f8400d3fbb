//! An open file of types.

use std::ffi::c_int;
use std::path::Path;

use backtrail_ctype::link::{self, Section, Symbols};
use backtrail_ctype::print::{Name, Plain};
use backtrail_ctype::{Error, ErrorKind, Surroundings, Symbol, SymbolKind, TypeId, Types, find, threads, write};
use backtrail_debuginfo::types::{Parts, Sections, Source, SourceError};
use backtrail_elf::{File, FileBytes};

/// The types of a file, together with the data they were read from.
pub struct Handle {
    // Declared before the data it borrows, so that it is dropped first.
    section: Section<'static>,
    symbols: Vec<(Vec<u8>, SymbolKind)>,
    _strings: Vec<u8>,
    _bytes: Vec<u8>,
}

/// A program's identifier of a type: its dict's number plus one, and its id in that dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) dict: usize,
    pub(super) id: TypeId,
}

impl Id {
    pub(super) fn from_raw(raw: u64) -> Result<Id, c_int> {
        let dict = (raw >> 32).checked_sub(1).ok_or(libc::EINVAL)?;
        Ok(Id {
            dict: dict as usize,
            id: TypeId(raw as u32),
        })
    }

    /// 0 for no type.
    pub(super) fn raw(self) -> u64 {
        match self.id.is_none() {
            true => 0,
            false => (self.dict as u64 + 1) << 32 | u64::from(self.id.0),
        }
    }

    pub(super) fn other(self, id: TypeId) -> Id {
        Id { id, ..self }
    }
}

impl Handle {
    pub(super) fn open(path: &Path, debug_information: bool) -> Result<Handle, c_int> {
        let file = FileBytes::open(path).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        let source = match Source::find(file.bytes()) {
            Ok(source) => source,
            Err(SourceError::NoTypes) if debug_information => {
                let (made, pointer) = threads::scoped(|| from_debug_information(file.bytes()))?;
                let surroundings = Surroundings {
                    pointer,
                    ..Surroundings::default()
                };
                return Handle::of(&made, surroundings, Vec::new());
            }
            Err(SourceError::NoTypes) => return Err(libc::ENODATA),
            Err(_) => return Err(libc::EBADMSG),
        };
        let symbols = source.symbols().unwrap_or_default();
        let symbols = symbols
            .iter()
            .map(|symbol| (symbol.name.to_vec(), symbol.kind))
            .collect();
        Handle::of(source.section(), source.surroundings(), symbols)
    }

    fn of(bytes: &[u8], surroundings: Surroundings<'_>, symbols: Vec<(Vec<u8>, SymbolKind)>) -> Result<Handle, c_int> {
        let (bytes, strings) = (bytes.to_vec(), surroundings.strings.to_vec());
        // SAFETY: a vector's bytes stay on the heap when the vector moves. The handle neither
        // changes nor gives away the vectors, and drops them after the section that borrows them;
        // no reference handed out outlives the handle.
        let lend = |vec: &Vec<u8>| -> &'static [u8] { unsafe { std::slice::from_raw_parts(vec.as_ptr(), vec.len()) } };
        let (lent_bytes, lent_strings) = (lend(&bytes), lend(&strings));
        let surroundings = Surroundings {
            strings: lent_strings,
            pointer: surroundings.pointer,
            ..Surroundings::default()
        };
        Ok(Handle {
            section: Section::open(lent_bytes, surroundings).map_err(damage)?,
            symbols,
            _strings: strings,
            _bytes: bytes,
        })
    }

    /// The types of a dict.
    pub(super) fn types(&self, dict: usize) -> Result<Types<'_>, c_int> {
        self.section.get(dict).map(|(_, types)| types).ok_or(libc::EINVAL)
    }

    /// Every type.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> {
        let dicts = self.section.types().enumerate();
        dicts.flat_map(|(dict, types)| types.dict().ids().map(move |id| Id { dict, id }))
    }

    /// The first symbol or type with a name, in a unit or, without one, anywhere, shared types
    /// first.
    pub(super) fn find(&self, unit: Option<&[u8]>, name: &str) -> Option<Id> {
        let symbols = self.symbols.iter();
        let symbols: Vec<Symbol<'_>> = symbols.map(|(name, kind)| Symbol { name, kind: *kind }).collect();
        let parsed = Name::parse(name);
        let in_dict = |dict: usize| {
            let (_, types) = self.section.get(dict)?;
            let found = *find::find(types, &symbols, parsed).first()?;
            Some(Id { dict, id: found.id })
        };
        let all = 0..self.section.len();
        let Some(unit) = unit else {
            return all.into_iter().find_map(in_dict);
        };
        let mut own = all
            .clone()
            .filter(|&dict| self.section.get(dict).is_some_and(|(name, _)| name == unit));
        // Types that units share are in the parent.
        own.find_map(in_dict)
            .or_else(|| all.into_iter().find(|&dict| self.is_parent(dict)).and_then(in_dict))
    }

    fn is_parent(&self, dict: usize) -> bool {
        self.section
            .get(dict)
            .is_some_and(|(_, types)| !types.dict().is_child())
    }

    /// The C declaration of a name with a type.
    pub(super) fn text(&self, id: Id, name: &str) -> Result<String, c_int> {
        Plain::new(self.types(id.dict)?)
            .declaration(id.id, name)
            .map_err(damage)
    }
}

/// The error number for damaged types; a wrong id is the program's error.
pub(super) fn damage(error: Error) -> c_int {
    match error.kind {
        ErrorKind::TypeId(_) => libc::EINVAL,
        _ => libc::EBADMSG,
    }
}

/// Makes a section with the types of all C units and all functions and variables by name. Also
/// returns the size of a pointer in bytes.
fn from_debug_information(bytes: &[u8]) -> Result<(Vec<u8>, u8), c_int> {
    let file = File::parse(bytes).map_err(|_| libc::EBADMSG)?;
    let sections = Sections::load(&file, None)
        .map_err(|_| libc::EBADMSG)?
        .ok_or(libc::ENODATA)?;
    let parts = Parts::read(&sections).map_err(|_| libc::EBADMSG)?;
    let made = parts.make();
    let options = link::Options {
        symbols: Symbols::Named,
        ..link::Options::default()
    };
    let linked = link::link(&made.units, &options).map_err(|_| libc::EBADMSG)?;
    let options = write::Options {
        compress_from: usize::MAX,
        ..write::Options::new(file.endian())
    };
    let section = linked.write(&options, file.address_bytes());
    Ok((section.map_err(|_| libc::EOVERFLOW)?, file.address_bytes()))
}
