//! The source files in which types are defined.

use std::collections::{BTreeMap, BTreeSet};

use backtrail_ctype::Kind;
use gimli::{Unit, UnitHeader, UnitType, constants as dw};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::dies::{Die, Parsed};
use super::{Parts, Sections};
use crate::error::Error;
use crate::reader::Slice;
use crate::sections::{Dwarf, headers as headers_of};

/// The paths of the source files that define a type, by the kind and name of the type: structs,
/// unions and enums, and typedefs of those that have no other name.
pub type Origins = BTreeMap<(Kind, String), BTreeSet<String>>;

impl Parts<'_> {
    /// The source files of the file's own types, as debug information names them.
    ///
    /// # Errors
    /// If debug information is invalid.
    pub fn origins(&self, sections: &Sections<'_>) -> Result<Origins, Error> {
        let dwarf = sections.main()?;
        let headers = headers_of(&dwarf)?;
        let own = headers.par_iter().zip(&self.0.units).map(|(header, parsed)| {
            let unit = dwarf.unit(*header)?;
            Ok(of_unit(parsed, |number| path(&dwarf, &unit, number)))
        });
        let mut each = own.collect::<gimli::Result<Vec<Origins>>>()?;
        let rests = self.rests();
        let ids: Vec<u64> = rests.keys().copied().collect();
        for split in sections.rest_dwarfs(&dwarf, &ids)? {
            for header in headers_of(&split)? {
                let unit = split.unit(header)?;
                each.extend(self.of_split(&dwarf, &headers, &rests, &split, &unit)?);
            }
        }
        let mut all = Origins::new();
        for (key, files) in each.into_iter().flatten() {
            all.entry(key).or_default().extend(files);
        }
        Ok(all)
    }

    /// The source files of a split unit, which its skeleton's line table names, or of a type unit
    /// there, which has one of its own; `None` if the unit was not read.
    fn of_split<'u>(
        &self,
        main: &Dwarf<'u>,
        skeletons: &[UnitHeader<Slice<'u>>],
        rests: &FxHashMap<u64, (usize, u32)>,
        split: &Dwarf<'u>,
        unit: &Unit<Slice<'u>>,
    ) -> gimli::Result<Option<Origins>> {
        if let UnitType::SplitType { type_signature, .. } | UnitType::Type { type_signature, .. } = unit.header.type_()
        {
            let parsed = self.0.types.get(&type_signature.0);
            let parsed = parsed.and_then(|&number| self.0.units.get(number as usize));
            return Ok(parsed.map(|parsed| of_unit(parsed, |number| path(split, unit, number))));
        }
        let rest = unit.dwo_id.and_then(|id| rests.get(&id.0));
        let found = rest.and_then(|&(at, number)| Some((skeletons.get(at)?, self.0.units.get(number as usize)?)));
        let Some((skeleton, parsed)) = found else {
            return Ok(None);
        };
        let skeleton = main.unit(*skeleton)?;
        Ok(Some(of_unit(parsed, |number| path(main, &skeleton, number))))
    }
}

/// The source files of a unit's types; `path` is that of the file with a number.
fn of_unit(parsed: &Parsed<'_>, path: impl Fn(u64) -> Option<String>) -> Origins {
    let mut found = Origins::new();
    let mut names: BTreeMap<u64, Option<String>> = BTreeMap::new();
    let all = parsed.dies.iter().enumerate();
    for (die, kind, name) in all.filter_map(|(index, die)| defined(parsed, index as u32, die)) {
        let Some(number) = die.file else { continue };
        if let Some(file) = names.entry(number).or_insert_with(|| path(number)) {
            let key = (kind, String::from_utf8_lossy(name).into_owned());
            found.entry(key).or_default().insert(file.clone());
        }
    }
    found
}

/// The kind and name of a type that users would see the contents of.
fn defined<'p>(parsed: &'p Parsed<'_>, index: u32, die: &'p Die<'_>) -> Option<(&'p Die<'p>, Kind, &'p [u8])> {
    let kind = |die: &Die<'_>| match die.tag {
        dw::DW_TAG_structure_type | dw::DW_TAG_class_type => Some(Kind::Struct),
        dw::DW_TAG_union_type => Some(Kind::Union),
        dw::DW_TAG_enumeration_type => Some(Kind::Enum),
        _ => None,
    };
    let declared = || match die.origin? {
        super::Ref::Unit(offset) => parsed.dies.binary_search_by_key(&offset, |die| die.offset).ok(),
        _ => None,
    };
    let full = |index: u32| parsed.full_names.get(&index).map(Vec::as_slice);
    let name = match die.name {
        // A class that is defined outside of the one that declares it.
        b"" => declared().and_then(|index| full(index as u32)).unwrap_or_default(),
        name => full(index).unwrap_or(name),
    };
    if die.declaration || name.is_empty() {
        return None;
    }
    if die.tag == dw::DW_TAG_typedef {
        let super::Ref::Unit(offset) = die.of? else { return None };
        let index = parsed.dies.binary_search_by_key(&offset, |die| die.offset).ok()?;
        let of = parsed.dies.get(index).filter(|of| of.name.is_empty())?;
        return kind(of).map(|_| (die, Kind::Typedef, name));
    }
    Some((die, kind(die)?, name))
}

/// The path of a file in a unit's line table.
fn path(dwarf: &Dwarf<'_>, unit: &Unit<Slice<'_>>, number: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(number)?;
    let name = dwarf.attr_string(unit, file.path_name()).ok()?;
    let name = String::from_utf8_lossy(name.slice());
    if name.starts_with('/') {
        return Some(name.into_owned());
    }
    let folder = file
        .directory(header)
        .and_then(|folder| dwarf.attr_string(unit, folder).ok());
    let folder = folder.map(|folder| String::from_utf8_lossy(folder.slice()).into_owned());
    Some(match folder {
        Some(folder) if !folder.is_empty() => format!("{folder}/{name}"),
        _ => name.into_owned(),
    })
}
