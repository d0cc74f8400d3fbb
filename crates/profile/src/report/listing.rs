//! The instructions of a function with their samples.

use std::collections::{BTreeMap, HashMap};

use super::{Annotation, Report};
use crate::modules::File;
use crate::stacks::StackFrame;
use crate::symbolize::{CodeFiles, Instruction, Location, LocationId, NoCode};
use crate::weights::weigh;

/// A function's code. A function that is inlined has one for each function that it is inlined into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The function whose code it is.
    pub function: String,
    /// Its instructions in the order of addresses: all, or those that belong to the inlined
    /// function.
    pub rows: Vec<ListingRow>,
    /// Whether the function has more instructions than are decoded.
    pub is_cut: bool,
}

/// An instruction with its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingRow {
    /// The instruction.
    pub instruction: Instruction,
    /// Bytes from the function's start.
    pub offset: u64,
    /// Samples that ended there.
    pub samples: u64,
    /// Samples with it anywhere on their stack: calls are on those of what they called.
    pub total: u64,
}

/// Functions by file and start, each with its addresses that were met.
type Functions<'r> = BTreeMap<(&'r str, u64), (&'r File, Vec<LocationId>)>;

impl Report {
    /// The code of an annotated function, with the reasons why code is missing. The function with
    /// most samples of its own comes first.
    pub fn listings(&self, annotation: &Annotation, files: &mut CodeFiles) -> (Vec<Listing>, Vec<NoCode>) {
        let (functions, mut missing) = self.functions_with(annotation, files);
        let mut listings = Vec::new();
        // By address: the number of the instruction.
        let mut numbers: HashMap<LocationId, u32> = HashMap::new();
        let mut next = 0;
        for ((_, start), (file, locations)) in functions {
            let code = match files.function(file, start) {
                Ok(code) => code,
                Err(reason) => {
                    missing.push(reason);
                    continue;
                }
            };
            let all = code.instructions;
            let mut met_by = vec![None; all.len()];
            let mut met_at = Vec::new();
            for location in locations {
                let address = self.address(location).address;
                let index = all.partition_point(|instruction| instruction.address <= address);
                let Some(index) = index.checked_sub(1) else { continue };
                if address - all[index].address < all[index].bytes {
                    met_by[index] = Some(location);
                    met_at.push((location, index));
                }
            }
            let location = met_at.first().map(|(location, _)| self.location(*location));
            let Some(outer) = location.and_then(|location| location.calls.last()) else {
                missing.push(NoCode::NoStart);
                continue;
            };
            let is_itself = outer.function == annotation.function.0;
            let belongs = |instruction: &Instruction| {
                let mut calls = instruction.calls.iter();
                is_itself || calls.any(|call| call.function == annotation.function.0)
            };
            // The numbers of the rows, which come in the order of instructions.
            let mut rows = Vec::new();
            let mut number_of = HashMap::new();
            for (index, mut instruction) in all.into_iter().enumerate() {
                match met_by[index] {
                    // The recording may have lines that the file has not.
                    Some(location) => instruction.calls.clone_from(&self.location(location).calls),
                    None if belongs(&instruction) => {}
                    None => continue,
                }
                number_of.insert(index, next);
                next += 1;
                rows.push(ListingRow {
                    offset: instruction.address - start,
                    instruction,
                    samples: 0,
                    total: 0,
                });
            }
            numbers.extend(
                met_at
                    .into_iter()
                    .filter_map(|(location, index)| Some((location, *number_of.get(&index)?))),
            );
            listings.push(Listing {
                function: outer.function.clone(),
                rows,
                is_cut: code.is_cut,
            });
        }
        self.weigh_rows(&mut listings, &numbers);
        let own = |listing: &Listing| listing.rows.iter().map(|row| row.samples).sum::<u64>();
        listings.sort_by_key(|listing| std::cmp::Reverse(own(listing)));
        missing.dedup();
        (listings, missing)
    }

    /// The functions whose code belongs to an annotated function, and why others are not known.
    fn functions_with(&self, annotation: &Annotation, files: &mut CodeFiles) -> (Functions<'_>, Vec<NoCode>) {
        let (name, module) = &annotation.function;
        let is_in = |location: &Location| {
            location.module == *module && location.calls.iter().any(|call| call.function == *name)
        };
        let mut functions = Functions::new();
        let mut missing = Vec::new();
        for id in self.met_locations(is_in) {
            let code = self.address(id);
            let Some(file) = code.file else {
                missing.push(NoCode::NotInFile);
                continue;
            };
            let location = self.location(id);
            let offset = location.calls.last().and_then(|call| call.offset);
            let start = match offset {
                Some(offset) => code.address.checked_sub(offset),
                None => files.start(file, code.address),
            };
            let Some(start) = start else {
                missing.push(files.reason(file));
                continue;
            };
            let (_, locations) = functions.entry((&file.path, start)).or_insert((file, Vec::new()));
            locations.push(id);
        }
        (functions, missing)
    }

    /// The locations that stacks with samples have.
    fn met_locations(&self, is_wanted: impl Fn(&Location) -> bool) -> Vec<LocationId> {
        let totals = self.stacks().totals();
        let mut met: Vec<LocationId> = self
            .stacks()
            .ids()
            .filter(|id| totals[id.index()] > 0)
            .filter_map(|id| match self.stacks().frame(id) {
                StackFrame::Location(location) => Some(location),
                StackFrame::Marker(_) => None,
            })
            .collect();
        met.sort_unstable();
        met.dedup();
        met.retain(|&id| is_wanted(self.location(id)));
        met
    }

    /// Sums the samples of instructions, which have numbers from the first listing's to the last's.
    fn weigh_rows(&self, listings: &mut [Listing], numbers: &HashMap<LocationId, u32>) {
        let weights = weigh(self.stacks(), |stack, found| {
            let StackFrame::Location(id) = self.stacks().frame(stack) else {
                return None;
            };
            let number = *numbers.get(&id)?;
            found.push(number);
            Some(number)
        });
        let rows = listings.iter_mut().flat_map(|listing| &mut listing.rows);
        for (number, row) in (0..).zip(rows) {
            (row.samples, row.total) = weights.of(number);
        }
    }
}
