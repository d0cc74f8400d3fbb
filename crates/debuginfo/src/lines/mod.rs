//! Functions, inlined calls and source lines of addresses.
//!
//! Only the units that contain the addresses are read: `ranges` finds these units, `unit` keeps
//! them, `functions` and `rows` read the contents of one. `sections` unpacks the sections.

mod functions;
mod ranges;
mod rows;
mod sections;
mod unit;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use backtrail_elf::budget::Budget;
use gimli::AttributeValue;

pub use crate::error::Error;
pub use functions::MAX_INLINED;
use functions::Name;
pub use sections::DebugSections;
use unit::{File, Unit};

use crate::split::{RestsOnDemand, SplitUnit};

/// Limit of references in a row from which a name is read; real chains are shorter.
const MOST_REFERENCES: usize = 16;

/// A function at an address, with the source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The name: the mangled one if the file has it.
    pub function: Option<String>,
    /// The source file as the compiler named it.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<u32>,
}

/// Looks up the addresses of one module. A unit is read at the first address that lies in it.
pub struct Lines<'d> {
    sections: &'d DebugSections<'d>,
    main: File<'d>,
    /// A file with all of `.debug_info`, opened at the first lookup outside the parts that were
    /// unpacked.
    whole: OnceLock<File<'d>>,
    supplementary: Option<File<'d>>,
    rests: Option<&'d RestsOnDemand>,
    /// Files with the rests of units, by the units' ids, each with the place of the unit.
    files_of_rests: Mutex<HashMap<u64, Option<OfRest<'d>>>>,
}

/// A file with the rest of a unit, and the place of that.
type OfRest<'d> = (Arc<File<'d>>, usize);

/// The address is outside the parts of `.debug_info` that were unpacked.
struct Elsewhere;

impl<'d> Lines<'d> {
    /// Looks up addresses in these sections.
    pub fn new(sections: &'d DebugSections<'_>) -> Result<Lines<'d>, Error> {
        let dwarf = sections.dwarf()?;
        Ok(Lines {
            sections,
            supplementary: dwarf.sup.clone().map(File::new),
            main: match sections.parts() {
                Some(parts) => File::of_parts(Arc::new(dwarf), parts, sections.endian()),
                None => File::new(Arc::new(dwarf)),
            },
            whole: OnceLock::new(),
            rests: None,
            files_of_rests: Mutex::default(),
        })
    }

    /// The units whose functions and inlined calls are in other files. If debug information was
    /// unpacked only in part, these are the ones of these addresses.
    pub fn split_units(&self, asked: &[u64]) -> Vec<SplitUnit> {
        if !self.main.may_be_split() {
            return Vec::new();
        }
        let units: BTreeSet<usize> = match self.main.is_partial() {
            true => asked
                .iter()
                .flat_map(|svma| self.sections.ranges().units_at(*svma))
                .collect(),
            false => self.main.offsets().iter().copied().collect(),
        };
        let mut steps = self.budget().steps();
        let read = units.into_iter().take_while(|_| steps.step(0).is_ok());
        read.filter_map(|unit| self.main.rest(unit)).collect()
    }

    /// Looks for functions and inlined calls of split units there.
    #[must_use]
    pub fn with_rests(self, rests: &'d RestsOnDemand) -> Lines<'d> {
        Lines {
            rests: Some(rests),
            ..self
        }
    }

    /// The functions at `svma`: the innermost inlined one first, the function that contains the
    /// code last. Empty if nothing is known. Damage in a unit only hides the entries after it.
    pub fn lookup(&self, svma: u64) -> Vec<Frame> {
        let listed = |file: &File<'d>| self.in_units(file, self.sections.ranges().units_at(svma), svma);
        let found = match listed(&self.main) {
            Err(Elsewhere) => listed(self.whole()),
            found => found,
        };
        match found {
            Ok(frames) if !frames.is_empty() => frames,
            _ => {
                let whole = self.whole();
                let units = self
                    .sections
                    .ranges()
                    .unlisted_units_at(&whole.dwarf, svma, self.budget());
                self.in_units(whole, units, svma).unwrap_or_default()
            }
        }
    }

    fn budget(&self) -> &Budget {
        self.sections.budget()
    }

    fn whole(&self) -> &File<'d> {
        if !self.main.is_partial() {
            return &self.main;
        }
        self.whole.get_or_init(|| {
            let dwarf = self.sections.whole_dwarf();
            File::new(dwarf.map_or_else(|_| Arc::clone(&self.main.dwarf), Arc::new))
        })
    }

    /// The frames from the first of these units that knows the address.
    fn in_units(&self, file: &File<'d>, units: Vec<usize>, svma: u64) -> Result<Vec<Frame>, Elsewhere> {
        for offset in units {
            // Any number of units may claim the same address.
            if self.budget().step(1).is_err() {
                break;
            }
            let frames = match file.unit(offset) {
                Some(unit) => self.frames(file, &unit, svma)?,
                None if file.is_partial() => return Err(Elsewhere),
                None => continue,
            };
            if !frames.is_empty() {
                return Ok(frames);
            }
        }
        Ok(Vec::new())
    }

    fn frames(&self, file: &File<'d>, unit: &Arc<Unit<'d>>, svma: u64) -> Result<Vec<Frame>, Elsewhere> {
        let unit_ref = file.unit_ref(unit);
        let rows = unit.rows(unit_ref, self.budget());
        let frame = |function: Option<String>, place: Option<(Option<u64>, u32)>| Frame {
            function,
            file: place.and_then(|(file, _)| rows.file(unit_ref, file?)),
            line: place.map(|(_, line)| line).filter(|line| *line != 0),
        };
        let mut place = rows.at(svma).map(|row| (Some(row.file), row.line));
        let rest = self.rest(file, unit);
        let (file, unit) = rest.as_ref().map_or((file, unit), |(file, unit)| (&**file, unit));
        let unit_with_functions = file.unit_ref(unit);
        let Some((function, calls)) =
            unit.functions(unit_with_functions, self.budget())
                .at(unit_with_functions, svma, self.budget())
        else {
            return Ok(place.map(|place| frame(None, Some(place))).into_iter().collect());
        };
        let mut frames = Vec::with_capacity(calls.len() + 1);
        // The next frame contains the call site of each one.
        for call in calls.iter().rev() {
            frames.push(frame(self.name(file, unit, call.entry)?, place));
            place = Some((call.file, call.line));
        }
        frames.push(frame(self.name(file, unit, function)?, place));
        Ok(frames)
    }

    /// The rest of a unit, if it is split and the rest is known, and its file.
    fn rest(&self, file: &File<'d>, skeleton: &Arc<Unit<'d>>) -> Option<(Arc<File<'d>>, Arc<Unit<'d>>)> {
        let (rests, id) = (self.rests?, skeleton.split_id()?);
        let open = || {
            let (dwarf, place) = rests.unit(&file.dwarf, id)?;
            let file = File::of_rest(Arc::new(dwarf), Arc::clone(skeleton));
            Some((Arc::new(file), place.0))
        };
        let mut files = self.files_of_rests.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, place) = files.entry(id).or_insert_with(open).clone()?;
        drop(files);
        let unit = file.unit(place)?;
        Some((file, unit))
    }

    /// The name of a function: its own, or that of the entry that it refers to, which may be in
    /// another unit or file.
    fn name<'f>(
        &'f self,
        mut file: &'f File<'d>,
        unit: &Arc<Unit<'d>>,
        mut entry: gimli::UnitOffset,
    ) -> Result<Option<String>, Elsewhere> {
        let mut unit = Arc::clone(unit);
        for _ in 0..MOST_REFERENCES {
            let referred = match functions::name(file.unit_ref(&unit), entry, self.budget()) {
                Ok(Name::Is(name)) => return Ok(Some(name)),
                Ok(Name::At(referred)) => referred,
                Err(_) => return Ok(None),
            };
            let elsewhere = match referred {
                AttributeValue::UnitRef(offset) => {
                    entry = offset;
                    continue;
                }
                AttributeValue::DebugInfoRef(offset) => Some(offset),
                AttributeValue::DebugInfoRefSup(offset) => self.supplementary.as_ref().map(|supplementary| {
                    file = supplementary;
                    offset
                }),
                _ => None,
            };
            let Some(elsewhere) = elsewhere else { return Ok(None) };
            (unit, entry) = match file.entry(elsewhere) {
                Some(found) => found,
                None if file.is_partial() => return Err(Elsewhere),
                None => return Ok(None),
            };
        }
        Ok(None)
    }
}
