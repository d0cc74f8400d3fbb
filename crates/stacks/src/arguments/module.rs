//! A module's table of arguments and its types.

use std::cell::RefCell;
use std::sync::Arc;

use backtrail_arch::Arch;
use backtrail_args::table::{SECTION, Table};
use backtrail_ctype::link::Section;
use backtrail_ctype::print::Plain;
use backtrail_ctype::{AlignmentRule, Error, Kind, Measures, Surroundings, Type, TypeId, Types};
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
    /// The names in each dict.
    names: RefCell<FxHashMap<Option<u32>, Names>>,
}

/// Limit of the dimensions of an array; a type that contains itself has no end.
const MOST_DIMENSIONS: u32 = 64;

/// Types by their names; `None` for several of one name.
pub(super) type Names = FxHashMap<Vec<u8>, Option<TypeId>>;

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
            names: RefCell::default(),
        })
    }

    /// The types of the dict with this number; those of the parent if `None`.
    pub(super) fn types(&self, dict: Option<u32>) -> Option<Types<'_>> {
        let number = dict.map_or(Some(self.parent), |dict| usize::try_from(dict).ok())?;
        self.section.types().nth(number)
    }

    /// The number, struct or union of this name in a dict, if there is exactly one.
    pub(super) fn named(&self, dict: Option<u32>, name: &[u8]) -> Option<TypeId> {
        let mut names = self.names.borrow_mut();
        let names = names
            .entry(dict)
            .or_insert_with(|| self.types(dict).map(by_name).unwrap_or_default());
        *names.get(name)?
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
            (name, size(types, &|name| self.named(dict, name), id))
        });
        found.clone()
    }
}

/// The type without typedefs and qualifiers. Types that units share lead to declarations of structs
/// that units define differently; `named` finds the unit's own definition.
pub(super) fn defined<'d>(
    types: Types<'d>,
    named: &dyn Fn(&[u8]) -> Option<TypeId>,
    id: TypeId,
) -> Result<Type<'d>, Error> {
    let found = types.resolve(id)?;
    if found.kind() != Kind::Forward {
        return Ok(found);
    }
    let definition = named(found.name()?);
    definition.map_or(Ok(found), |definition| types.resolve(definition))
}

/// The size of a type's values in bytes, also if it is known only from the unit's own definition.
pub(super) fn size(types: Types<'_>, named: &dyn Fn(&[u8]) -> Option<TypeId>, id: TypeId) -> Option<u64> {
    let mut count = 1u64;
    let mut found = defined(types, named, id).ok()?;
    for _ in 0..MOST_DIMENSIONS {
        let Ok(array) = found.array() else { break };
        count = count.checked_mul(array.count.into())?;
        found = defined(types, named, array.contents).ok()?;
    }
    let mut measures = Measures::new(types, AlignmentRule::StrictestMember);
    count.checked_mul(measures.size(found.id()).ok()?)
}

/// The numbers, structs and unions of a dict and its parent by their names; `None` for several.
pub(super) fn by_name(types: Types<'_>) -> Names {
    let mut names = Names::default();
    let own = types.dict().ids();
    let ids = own.chain(types.parent().into_iter().flat_map(|parent| parent.ids()));
    for found in ids.filter_map(|id| types.get(id).ok()) {
        let is_named = matches!(found.kind(), Kind::Integer | Kind::Float | Kind::Struct | Kind::Union);
        let Some(name) = found.name().ok().filter(|name| is_named && !name.is_empty()) else {
            continue;
        };
        let id = found.id();
        names
            .entry(name.to_vec())
            .and_modify(|known| *known = known.filter(|&known| known == id))
            .or_insert(Some(id));
    }
    names
}
