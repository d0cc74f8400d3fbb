//! The source files in which types are defined.

use std::collections::{BTreeMap, BTreeSet};

use backtrail_ctype::Kind;
use gimli::constants as dw;
use rayon::prelude::*;

use super::dies::{Die, Parsed};
use super::{Parts, Sections};
use crate::lines::Error;
use crate::reader::Slice;
use crate::sections::Dwarf;

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
        let mut headers = Vec::new();
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            headers.push(header);
        }
        let each = headers.into_par_iter().zip(&self.0.units).map(|(header, parsed)| {
            let mut found = Origins::new();
            let unit = dwarf.unit(header)?;
            let mut names: BTreeMap<u64, Option<String>> = BTreeMap::new();
            for (die, kind, name) in parsed.dies.iter().filter_map(|die| defined(parsed, die)) {
                let Some(number) = die.file else { continue };
                let file = names.entry(number).or_insert_with(|| path(&dwarf, &unit, number));
                if let Some(file) = file {
                    let key = (kind, String::from_utf8_lossy(name).into_owned());
                    found.entry(key).or_default().insert(file.clone());
                }
            }
            Ok(found)
        });
        let each: gimli::Result<Vec<Origins>> = each.collect();
        let mut all = Origins::new();
        for (key, files) in each?.into_iter().flatten() {
            all.entry(key).or_default().extend(files);
        }
        Ok(all)
    }
}

/// The kind and name of a type that users would see the contents of.
fn defined<'p, 'd>(parsed: &'p Parsed<'d>, die: &'p Die<'d>) -> Option<(&'p Die<'d>, Kind, &'d [u8])> {
    let kind = |die: &Die<'_>| match die.tag {
        dw::DW_TAG_structure_type | dw::DW_TAG_class_type => Some(Kind::Struct),
        dw::DW_TAG_union_type => Some(Kind::Union),
        dw::DW_TAG_enumeration_type => Some(Kind::Enum),
        _ => None,
    };
    if die.declaration || die.name.is_empty() {
        return None;
    }
    if die.tag == dw::DW_TAG_typedef {
        let super::Ref::Unit(offset) = die.of? else { return None };
        let index = parsed.dies.binary_search_by_key(&offset, |die| die.offset).ok()?;
        let of = parsed.dies.get(index).filter(|of| of.name.is_empty())?;
        return kind(of).map(|_| (die, Kind::Typedef, die.name));
    }
    Some((die, kind(die)?, die.name))
}

/// The path of a file in a unit's line table.
fn path(dwarf: &Dwarf<'_>, unit: &gimli::Unit<Slice<'_>>, number: u64) -> Option<String> {
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
