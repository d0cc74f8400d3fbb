//! Builds compact C types from debug information: DWARF 2 to 5 of C compilers.
//!
//! Each unit becomes a graph of types ([`backtrail_ctype::link::Unit`]), which the linker accepts
//! like the output of a compiler. It equals the output of `gcc -gctf`, except that it is right if
//! gcc is wrong: arrays of arrays have their dimensions in C's order, large structs their sizes.
//! The format lacks `_Atomic`: the type under it is used. Anything that cannot be expressed is
//! counted with its reason.

mod build;
mod compared;
mod dies;
mod elements;
mod left_out;
mod origins;
mod sections;
mod source;
mod variants;

use backtrail_ctype::link::Unit;
use backtrail_ctype::{TypeId, threads};
use gimli::{DwLang, RunTimeEndian, constants as dw};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::reader::Slice;
use crate::sections::{Dwarf, headers};
use dies::{Parsed, Ref, UnitKind};
pub use left_out::{LeftOut, Reason};
pub use origins::Origins;
pub use sections::Sections;
pub use source::{Source, SourceError, counted, surroundings};

/// Limit of entries that refer to each other for missing attributes; real chains have two at most.
const MAX_ORIGINS: usize = 8;

pub(crate) use build::Place;

/// The parsed units, with their names, which are joined from parts. [`Conversion`] borrows from
/// them and from the sections.
pub struct Parts<'d>(All<'d>);

/// The result.
pub struct Conversion<'d> {
    /// Each C unit's types, functions and variables.
    pub units: Vec<Unit<'d>>,
    /// The debug information that was left out.
    pub left_out: LeftOut,
}

/// All units of a file and of its supplementary one.
struct All<'d> {
    units: Vec<Parsed<'d>>,
    /// The number of the file's own units; those of the supplementary file and type units follow.
    own: usize,
    supplementary: usize,
    /// The number of the first unit that was in its own file.
    split: usize,
    types: FxHashMap<u64, u32>,
    big: bool,
}

/// Which types of units in languages other than C are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Foreign {
    Named,
    /// Those with names, and those of functions and variables.
    Compared,
    Arguments,
    Both,
}

impl<'d> Parts<'d> {
    /// Reads all units, in parallel.
    pub fn read(sections: &'d Sections<'_>) -> Result<Parts<'d>, Error> {
        threads::scoped(|| Parts::read_in_pool(sections))
    }

    fn read_in_pool(sections: &'d Sections<'_>) -> Result<Parts<'d>, Error> {
        let dwarf = sections.main()?;
        let mut units = parse_all(&dwarf)?;
        let own = units.len();
        if let Some(dwarf) = sections.supplementary()? {
            units.extend(parse_all(&dwarf)?);
        }
        let supplementary = units.len();
        units.extend(parse_types(&dwarf)?);
        let split = units.len();
        add_split(&mut units, own, sections, &dwarf)?;
        let mut types = FxHashMap::default();
        for (number, unit) in units.iter().enumerate() {
            if let UnitKind::Type(signature, _) = unit.kind {
                types.insert(signature, number as u32);
            }
        }
        Ok(Parts(All {
            units,
            own,
            supplementary,
            split,
            types,
            big: sections.endian == RunTimeEndian::Big,
        }))
    }

    /// Builds the types, in parallel.
    pub fn make<'p>(&'p self) -> Conversion<'p>
    where
        'd: 'p,
    {
        self.make_of(Foreign::Named)
    }

    /// Like `Parts::make`, but to be compared only: with the functions and variables of all
    /// languages, the tables of virtual functions, and vectors. Names are in full after
    /// [`Parts::name_in_full`].
    pub fn make_compared<'p>(&'p self) -> Conversion<'p>
    where
        'd: 'p,
    {
        self.make_of(Foreign::Compared)
    }

    /// Like `Parts::make`, but of units in other languages only the types of arguments and results
    /// that C has too.
    pub fn make_with_arguments<'p>(&'p self) -> Conversion<'p>
    where
        'd: 'p,
    {
        self.make_of(Foreign::Arguments)
    }

    /// Like `Parts::make`, and of units in other languages also the types of arguments and results.
    pub fn make_with_names_and_arguments<'p>(&'p self) -> Conversion<'p>
    where
        'd: 'p,
    {
        self.make_of(Foreign::Both)
    }

    fn make_of<'p>(&'p self, foreign: Foreign) -> Conversion<'p>
    where
        'd: 'p,
    {
        threads::scoped(|| self.make_in_pool(foreign))
    }

    fn make_in_pool<'p>(&'p self, foreign: Foreign) -> Conversion<'p>
    where
        'd: 'p,
    {
        let all = &self.0;
        let compared = foreign == Foreign::Compared;
        let numbers: Vec<usize> = (0..all.own).chain(all.split..all.units.len()).collect();
        let made = numbers.into_par_iter().map(|number| {
            let parsed = &all.units[number];
            let mut left_out = LeftOut::default();
            match (parsed.kind, parsed.language) {
                (UnitKind::Skeleton, _) => left_out.add(Reason::Split, &parsed.name),
                (UnitKind::Compilation, Some(language)) if !is_c(language) => {
                    if !compared {
                        left_out.add(Reason::Language(language), &parsed.name);
                    }
                    let number = number as u32;
                    let mut units = Vec::new();
                    // Arguments are looked for in the first dict with the unit's name.
                    if matches!(foreign, Foreign::Arguments | Foreign::Both) {
                        units.push(build::arguments_with_ids(all, number).0);
                    }
                    if foreign != Foreign::Arguments {
                        let (unit, of_types) = build::foreign(all, number, compared);
                        left_out.merge(of_types);
                        units.push(unit);
                    }
                    units.iter_mut().for_each(|unit| unit.name = &parsed.name[..]);
                    return (units, left_out);
                }
                (UnitKind::Compilation, _) => {
                    let (unit, left_out) = build::unit(all, number as u32, compared);
                    let unit = Unit {
                        name: &parsed.name[..],
                        ..unit
                    };
                    return (vec![unit], left_out);
                }
                (UnitKind::Partial | UnitKind::Type(..), _) => {}
            }
            (Vec::new(), left_out)
        });
        let mut result = Conversion {
            units: Vec::new(),
            left_out: LeftOut::default(),
        };
        for (units, left_out) in made.collect::<Vec<_>>() {
            result.units.extend(units);
            result.left_out.merge(left_out);
        }
        // Units need not refer to all type units: the types of a function's variables are not among
        // the types of its unit.
        if !all.types.is_empty() {
            let numbers = (0..all.units.len()).filter(|&number| matches!(all.units[number].kind, UnitKind::Type(..)));
            let (unit, left_out) = build::units(all, numbers, compared);
            result.units.push(unit);
            result.left_out.merge(left_out);
        }
        result
    }
}

impl<'d> Parts<'d> {
    /// The numbers of the file's own units.
    pub(crate) fn own(&self) -> std::ops::Range<u32> {
        0..self.0.own as u32
    }

    /// The units in files of their own, by their ids: the number of the skeleton, and their own.
    pub(crate) fn rests(&self) -> FxHashMap<u64, (usize, u32)> {
        let own = self.0.units[..self.0.own].iter().enumerate();
        let skeletons: FxHashMap<u64, usize> = own
            .filter_map(|(number, unit)| Some((unit.rest.as_ref()?.id, number)))
            .collect();
        let rests = self.0.units.iter().enumerate().skip(self.0.split);
        let rests = rests.filter(|(_, unit)| unit.kind == UnitKind::Compilation);
        rests
            .filter_map(|(number, unit)| Some((unit.id?, (*skeletons.get(&unit.id?)?, number as u32))))
            .collect()
    }

    /// A unit's types, and the id of each entry that is a type; for a language other than C, only
    /// those of arguments and results. `None` for units of other kinds.
    pub(crate) fn unit(&self, number: u32) -> Option<(Unit<'_>, FxHashMap<Place, TypeId>)> {
        if self.0.units[number as usize].kind != UnitKind::Compilation {
            return None;
        }
        Some(match self.is_c(number) {
            true => build::unit_with_ids(&self.0, number),
            false => build::arguments_with_ids(&self.0, number),
        })
    }

    /// Whether a unit is in C, or does not name its language.
    pub(crate) fn is_c(&self, number: u32) -> bool {
        self.0.units[number as usize].language.is_none_or(is_c)
    }

    /// A unit's name.
    pub(crate) fn name(&self, number: u32) -> &[u8] {
        &self.0.units[number as usize].name
    }

    /// The entry at an offset of a unit.
    pub(crate) fn entry(&self, unit: u32, offset: u64) -> Option<Place> {
        self.0.entry(unit, offset)
    }

    /// The entry that an attribute refers to, from its unit.
    pub(crate) fn referred(&self, unit: u32, value: &gimli::AttributeValue<Slice<'_>>) -> Option<Place> {
        self.0.resolve(unit, dies::reference(value)?)
    }

    /// The last entry in the chain of origins: the entry itself, or the one that it is a copy or
    /// the definition of.
    pub(crate) fn root(&self, mut at: Place) -> Place {
        for _ in 0..MAX_ORIGINS {
            match self.die(at).origin.and_then(|origin| self.0.resolve(at.0, origin)) {
                Some(origin) => at = origin,
                None => break,
            }
        }
        at
    }

    /// An entry's name and the entry of its type, from itself or from its origins.
    pub(crate) fn described(&self, mut at: Place) -> (&'d [u8], Option<Place>) {
        let (mut name, mut of) = (&b""[..], None);
        for _ in 0..MAX_ORIGINS {
            let die = self.die(at);
            if name.is_empty() {
                name = die.name;
            }
            of = of.or(die.of.and_then(|of| self.0.resolve(at.0, of)));
            match die.origin.and_then(|origin| self.0.resolve(at.0, origin)) {
                Some(origin) => at = origin,
                None => break,
            }
        }
        (name, of)
    }

    /// Whether the entry is visible outside its unit.
    pub(crate) fn is_external(&self, at: Place) -> bool {
        self.die(at).external || self.die(self.root(at)).external
    }

    fn die(&self, at: Place) -> &dies::Die<'d> {
        &self.0.units[at.0 as usize].dies[at.1 as usize]
    }
}

/// Adds the available rests of the first `own` units, and their type units. A skeleton whose rest
/// is available has nothing to add.
fn add_split<'d>(
    units: &mut Vec<Parsed<'d>>,
    own: usize,
    sections: &'d Sections<'_>,
    dwarf: &Dwarf<'d>,
) -> Result<(), Error> {
    let rests = units[..own].iter().enumerate();
    let rests: Vec<(u64, usize)> = rests
        .filter_map(|(number, unit)| Some((unit.rest.as_ref()?.id, number)))
        .collect();
    let ids: Vec<u64> = rests.iter().map(|(id, _)| *id).collect();
    let skeletons: FxHashMap<u64, usize> = rests.into_iter().collect();
    for mut unit in sections.split(dwarf, &ids)? {
        let skeleton = unit
            .id
            .and_then(|id| skeletons.get(&id))
            .map(|&number| &mut units[number]);
        if let Some(skeleton) = skeleton {
            skeleton.kind = UnitKind::Partial;
            // Only the skeleton gives the folder.
            let folder = skeleton.rest.as_ref().map_or(&[][..], |rest| &rest.folder);
            if !unit.name.starts_with(b"/") {
                unit.name = [folder, b"/", &unit.name].concat();
            }
        }
        units.push(unit);
    }
    Ok(())
}

fn parse_all<'d>(dwarf: &Dwarf<'d>) -> gimli::Result<Vec<Parsed<'d>>> {
    let parsed = headers(dwarf)?.into_par_iter().map(|header| dies::parse(dwarf, header));
    parsed.collect()
}

fn parse_types<'d>(dwarf: &Dwarf<'d>) -> gimli::Result<Vec<Parsed<'d>>> {
    let mut headers = Vec::new();
    let mut all = dwarf.type_units();
    while let Some(header) = all.next()? {
        headers.push(header);
    }
    let parsed = headers.into_par_iter().map(|header| dies::parse(dwarf, header));
    parsed.collect()
}

/// Whether the language is C or assembly, whose units have no types.
fn is_c(language: DwLang) -> bool {
    matches!(
        language,
        dw::DW_LANG_C89
            | dw::DW_LANG_C
            | dw::DW_LANG_C99
            | dw::DW_LANG_C11
            | dw::DW_LANG_C17
            | dw::DW_LANG_Mips_Assembler
    )
}

impl All<'_> {
    /// The entry that a reference in a unit leads to.
    fn resolve(&self, unit: u32, reference: Ref) -> Option<build::Place> {
        match reference {
            Ref::Unit(offset) => self.entry(unit, offset),
            Ref::Info(offset) => {
                let of_supplementary = (self.own..self.supplementary).contains(&(unit as usize));
                let range = if of_supplementary {
                    self.own..self.supplementary
                } else {
                    0..self.own
                };
                self.in_section(range, offset)
            }
            Ref::Supplementary(offset) => self.in_section(self.own..self.supplementary, offset),
            Ref::Signature(signature) => {
                let &unit = self.types.get(&signature)?;
                match self.units[unit as usize].kind {
                    UnitKind::Type(_, offset) => self.entry(unit, offset),
                    _ => None,
                }
            }
        }
    }

    fn in_section(&self, range: std::ops::Range<usize>, offset: u64) -> Option<build::Place> {
        let start = range.start;
        let units = self.units.get(range)?;
        let after = units.partition_point(|unit| unit.start <= offset);
        let number = after.checked_sub(1)?;
        self.entry((start + number) as u32, offset - units[number].start)
    }

    fn entry(&self, unit: u32, offset: u64) -> Option<build::Place> {
        let dies = &self.units.get(unit as usize)?.dies;
        let index = dies.binary_search_by_key(&offset, |die| die.offset).ok()?;
        Some((unit, index as u32))
    }
}
