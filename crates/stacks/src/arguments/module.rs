//! A module's table of arguments and its types.

use std::cell::RefCell;
use std::sync::Arc;

use backtrail_arch::Arch;
use backtrail_args::table::{SECTION, Table};
use backtrail_ctype::link::Section;
use backtrail_ctype::print::Plain;
use backtrail_ctype::{AlignmentRule, Measures, Surroundings, TypeId, Types};
use backtrail_debuginfo::arguments::checksum;
use backtrail_debuginfo::types::surroundings;
use backtrail_elf::Image;
use backtrail_wire::Endian;
use rustc_hash::FxHashMap;

/// The sections as stored in the file.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) table: Vec<u8>,
    pub(crate) types: Vec<u8>,
    /// Strings that the types borrow.
    pub(crate) strings: Vec<u8>,
    pub(crate) endian: Endian,
}

impl Source {
    /// `None` if the file has no table.
    pub(crate) fn of(image: &Image<'_>) -> Option<Source> {
        let table = image.section(SECTION).ok().flatten()?.data.into_owned();
        let types = image.section(".ctf").ok().flatten()?.data.into_owned();
        let strings = surroundings(image, &types).strings.to_vec();
        Some(Source {
            table,
            types,
            strings,
            endian: image.endian(),
        })
    }
}

/// A type as it is shown.
type Known = (Option<Arc<str>>, Option<u64>);

/// The opened sections.
pub(crate) struct Opened<'s> {
    pub(super) arch: &'static Arch,
    pub(super) table: Table<'s>,
    section: Section<'s>,
    /// The dict that is not a child.
    parent: usize,
    known: RefCell<FxHashMap<(Option<u32>, TypeId), Known>>,
}

impl<'s> Opened<'s> {
    /// `None` if the table can't be read, or was made for other types than the file's.
    pub(super) fn new(source: &'s Source, arch: &'static Arch) -> Option<Opened<'s>> {
        let table = Table::parse(&source.table, source.endian).ok()?;
        let surroundings = Surroundings {
            strings: &source.strings,
            ..Surroundings::default()
        };
        let section = Section::open(&source.types, surroundings).ok()?;
        let parent = section.types().position(|types| !types.dict().is_child())?;
        (table.types() == checksum(&source.types)).then_some(Opened {
            arch,
            table,
            section,
            parent,
            known: RefCell::default(),
        })
    }

    /// The types of the dict with this number; those of the parent if `None`.
    pub(super) fn types(&self, dict: Option<u32>) -> Option<Types<'_>> {
        let number = dict.map_or(Some(self.parent), |dict| usize::try_from(dict).ok())?;
        self.section.types().nth(number)
    }

    /// A type's name and its size in bytes.
    pub(super) fn known(&self, dict: Option<u32>, id: TypeId) -> Known {
        if id.is_none() {
            return (None, None);
        }
        let mut known = self.known.borrow_mut();
        let found = known.entry((dict, id)).or_insert_with(|| {
            let Some(types) = self.types(dict) else {
                return (None, None);
            };
            let name = Plain::new(types).declaration(id, "").ok().map(Arc::from);
            (name, Measures::new(types, AlignmentRule::StrictestMember).size(id).ok())
        });
        found.clone()
    }
}
