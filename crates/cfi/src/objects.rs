//! The tables of a relocatable file, with the fields that a linker has to fill in.

use std::collections::BTreeMap;

use backtrail_elf::edit::{self, ObjectField, ObjectTable};
use backtrail_elf::{Image, Kind, Section};
use backtrail_sframe::Version;
use backtrail_sframe::write::{self, Options, StartField};

use crate::build::{Built, Skipped};
use crate::eh_frame::FunctionRows;
use crate::tables::Error;
use crate::whole::Whole;

/// The tables of a relocatable file.
#[derive(Clone, Debug)]
pub struct ObjectTables {
    /// One for each section group with functions, and one for all functions outside groups, if any.
    pub tables: Vec<ObjectTable>,
    /// The contents of all tables together, and what is missing. It has no bytes: they are in the
    /// tables.
    pub built: Built,
}

/// Builds the tables for `image`, a relocatable file whose sections were placed
/// ([`Image::with_sections_placed`]): the rows of `.eh_frame`, and rows that only its present
/// tables have.
///
/// Version, ABI and readers of `options` apply. With `one_table` all functions share one table, as
/// GNU as writes it: lld refuses to link such files if it drops one of their groups.
///
/// Fails if there is neither `.eh_frame` nor a table, if `.eh_frame` is not valid to its end, or if
/// a table would be larger than its header can express.
pub fn of_image(image: &Image<'_>, options: &Options, one_table: bool) -> Result<ObjectTables, Error> {
    debug_assert_eq!(image.kind(), Kind::Relocatable);
    let converted = Whole::of_image(image)?.into_converted();
    let places = Places::of(image);
    let groups = edit::section_groups(image);
    let mut by_group: BTreeMap<Option<usize>, Vec<FunctionRows>> = BTreeMap::new();
    for function in converted.functions {
        let section = places.find(function.start).map(|place| place.section);
        let group = section.filter(|_| !one_table);
        let group = group.and_then(|section| groups.get(section).copied().flatten());
        by_group.entry(group).or_default().push(function);
    }
    let by_any = converted.skipped.iter().map(|skipped| Skipped {
        start: skipped.start,
        size: skipped.size,
        reason: skipped.reason.name(),
    });
    let mut built = Built {
        bytes: Vec::new(),
        functions: 0,
        rows: 0,
        covered_bytes: 0,
        skipped: by_any.collect(),
        damage: None,
    };
    let mut made = Vec::new();
    // When GNU ld 2.47 collects garbage, it keeps everything that tables refer to, except for one
    // table of each file: the second, if there are several. That must be the one that refers to
    // functions outside of groups.
    let ungrouped = by_group.remove(&None).map(|functions| (None, functions));
    let mut by_group: Vec<_> = by_group.into_iter().collect();
    by_group.splice(by_group.len().min(1)..by_group.len().min(1), ungrouped);
    for (group, functions) in by_group {
        let (output, starts) = write::relocatable(&functions, options).map_err(Error::Write)?;
        built.functions += output.functions;
        built.rows += output.rows;
        built.covered_bytes += functions.iter().map(|function| u64::from(function.size)).sum::<u64>();
        for skipped in &output.skipped {
            built.covered_bytes -= skipped.size;
            built.skipped.push(Skipped {
                start: skipped.start,
                size: skipped.size,
                reason: skipped.reason.name(),
            });
        }
        if output.functions > 0 {
            made.push(ObjectTable {
                bytes: output.bytes,
                fields: starts.iter().filter_map(|start| places.field(start)).collect(),
                group,
                own_type: options.version == Version::V3,
            });
        }
    }
    built.skipped.sort_by_key(|skipped| (skipped.start, skipped.size));
    Ok(ObjectTables { tables: made, built })
}

/// The sections with code, by address.
struct Places<'a> {
    sections: Vec<(usize, &'a Section<'a>)>,
}

struct Place {
    section: usize,
    offset: u64,
}

impl<'a> Places<'a> {
    fn of(image: &'a Image<'a>) -> Places<'a> {
        let sections = image.sections().iter().enumerate();
        let mut sections: Vec<_> = sections
            .filter(|(_, section)| section.is_loaded() && section.is_code() && section.size > 0)
            .collect();
        sections.sort_by_key(|(_, section)| section.address);
        Places { sections }
    }

    fn find(&self, address: u64) -> Option<Place> {
        let after = self.sections.partition_point(|(_, section)| section.address <= address);
        let (number, section) = self.sections[..after].last()?;
        let offset = address - section.address;
        (offset < section.size).then_some(Place {
            section: *number,
            offset,
        })
    }

    /// A function always lies in a section: others were left out during conversion.
    fn field(&self, start: &StartField) -> Option<ObjectField> {
        let place = self.find(start.start)?;
        Some(ObjectField {
            offset: start.offset as u64,
            width: start.width,
            section: place.section,
            place: place.offset,
        })
    }
}
