//! The functions of a unit, and the calls that are inlined into them.

use std::sync::OnceLock;

use backtrail_elf::budget::{Budget, Steps};
use gimli::{Attribute, AttributeValue, EntriesRaw, Range, RangeListsOffset, UnitOffset, UnitRef};

use crate::reader::Slice;

/// More inlined calls than this at one address mean damage.
pub const MAX_INLINED: usize = 256;

/// Copying this much of a name is one step.
const BYTES_OF_A_STEP: u64 = 64;

/// The attributes that give an entry's code (DWARF 5, 2.17).
#[derive(Debug, Default)]
pub(super) struct Extent {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    list: Option<RangeListsOffset>,
}

impl Extent {
    /// Stores this attribute, if it is one of them.
    pub(super) fn note<'d>(
        &mut self,
        unit: UnitRef<'_, Slice<'d>>,
        attribute: &Attribute<Slice<'d>>,
    ) -> gimli::Result<()> {
        match attribute.name() {
            gimli::DW_AT_low_pc => self.low = unit.attr_address(attribute.value())?,
            gimli::DW_AT_high_pc => match attribute.value() {
                AttributeValue::Udata(size) => self.size = Some(size),
                value => self.high = unit.attr_address(value)?,
            },
            gimli::DW_AT_ranges => self.list = unit.attr_ranges_offset(attribute.value())?,
            _ => {}
        }
        Ok(())
    }

    /// The ranges of code that are not empty, as far as the budget allows: any number of entries
    /// may refer to one long list.
    pub(super) fn ranges(self, unit: UnitRef<'_, Slice<'_>>, budget: &Budget) -> gimli::Result<Vec<Range>> {
        let mut ranges = Vec::new();
        if let Some(list) = self.list {
            let mut steps = budget.steps();
            let mut list = unit.ranges(list)?;
            while let Some(range) = list.next()? {
                if steps.step(size_of::<(Range, usize)>()).is_err() {
                    break;
                }
                ranges.push(range);
            }
        } else if let Some(begin) = self.low {
            // Ranges of code that the linker has dropped may overflow; their end is then below
            // their beginning.
            let end = self.high.or(self.size.map(|size| begin.wrapping_add(size)));
            ranges.extend(end.map(|end| Range { begin, end }));
        }
        ranges.retain(|range| range.begin < range.end);
        Ok(ranges)
    }
}

/// The functions of a unit that have code.
#[derive(Debug, Default)]
pub(super) struct Functions {
    functions: Vec<Function>,
    /// Ranges by start, each with the index of its function.
    ranges: Vec<(Range, usize)>,
}

#[derive(Debug)]
struct Function {
    entry: UnitOffset,
    inlined: OnceLock<Inlined>,
}

/// An inlined call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Its entry, which refers to the called function.
    pub(super) entry: UnitOffset,
    /// The file of the call site, by its number in the line number program.
    pub(super) file: Option<u64>,
    /// The line of the call site; 0 if it is not known.
    pub(super) line: u32,
}

/// The calls that are inlined into a function.
#[derive(Debug, Default)]
struct Inlined {
    calls: Vec<Call>,
    /// By depth and start: the number of inlined calls around it, a range, and the index of its
    /// call.
    ranges: Vec<(usize, Range, usize)>,
}

impl Functions {
    /// Reads the functions of a unit, up to the first damage or the end of the budget.
    pub(super) fn read(unit: UnitRef<'_, Slice<'_>>, budget: &Budget) -> Functions {
        let mut functions = Functions::default();
        // Functions that were found before damage are kept.
        let _ = functions.read_all(unit, budget);
        functions.ranges.sort_unstable_by_key(|(range, _)| range.begin);
        functions
    }

    fn read_all(&mut self, unit: UnitRef<'_, Slice<'_>>, budget: &Budget) -> gimli::Result<()> {
        let mut steps = budget.steps();
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() && steps.step(0).is_ok() {
            let entry = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            if abbreviation.tag() != gimli::DW_TAG_subprogram {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut extent = Extent::default();
            for specification in abbreviation.attributes() {
                extent.note(unit, &entries.read_attribute(*specification)?)?;
            }
            let ranges = extent.ranges(unit, budget)?;
            if !ranges.is_empty() {
                let index = self.functions.len();
                self.ranges.extend(ranges.into_iter().map(|range| (range, index)));
                self.functions.push(Function {
                    entry,
                    inlined: OnceLock::new(),
                });
            }
        }
        Ok(())
    }

    /// The function that has the code at an address: its entry, and the calls inlined there, the
    /// outermost first.
    pub(super) fn at(
        &self,
        unit: UnitRef<'_, Slice<'_>>,
        address: u64,
        budget: &Budget,
    ) -> Option<(UnitOffset, Vec<Call>)> {
        let before = self.ranges.partition_point(|(range, _)| range.begin <= address);
        let (range, index) = self.ranges.get(before.checked_sub(1)?)?;
        let function = self.functions.get(*index).filter(|_| address < range.end)?;
        let inlined = function
            .inlined
            .get_or_init(|| Inlined::read(unit, function.entry, budget));
        Some((function.entry, inlined.at(address)))
    }
}

impl Inlined {
    /// Reads the calls inlined into the function with this entry, up to the first damage or the end
    /// of the budget.
    fn read(unit: UnitRef<'_, Slice<'_>>, function: UnitOffset, budget: &Budget) -> Inlined {
        let mut inlined = Inlined::default();
        let _ = inlined.read_all(unit, function, budget);
        inlined
            .ranges
            .sort_unstable_by_key(|(depth, range, _)| (*depth, range.begin));
        inlined
    }

    fn read_all(&mut self, unit: UnitRef<'_, Slice<'_>>, function: UnitOffset, budget: &Budget) -> gimli::Result<()> {
        let mut steps = budget.steps();
        let mut entries = unit.entries_raw(Some(function))?;
        let outside = entries.next_depth();
        if let Some(abbreviation) = entries.read_abbreviation()? {
            entries.skip_attributes(abbreviation.attributes())?;
        }
        // The depths of the entries of the inlined calls around the current one.
        let mut within: Vec<isize> = Vec::new();
        while !entries.is_empty() && entries.next_depth() > outside && steps.step(0).is_ok() {
            let (entry, depth) = (entries.next_offset(), entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            while within.last().is_some_and(|call| *call >= depth) {
                within.pop();
            }
            match abbreviation.tag() {
                gimli::DW_TAG_inlined_subroutine => {
                    let mut extent = Extent::default();
                    let mut call = Call {
                        entry,
                        file: None,
                        line: 0,
                    };
                    for specification in abbreviation.attributes() {
                        let attribute = entries.read_attribute(*specification)?;
                        match attribute.name() {
                            gimli::DW_AT_call_file => call.file = file_number(&attribute),
                            gimli::DW_AT_call_line => {
                                call.line = attribute
                                    .udata_value()
                                    .and_then(|line| line.try_into().ok())
                                    .unwrap_or(0);
                            }
                            _ => extent.note(unit, &attribute)?,
                        }
                    }
                    let ranges = extent.ranges(unit, budget)?;
                    let index = self.calls.len();
                    self.ranges
                        .extend(ranges.into_iter().map(|range| (within.len(), range, index)));
                    self.calls.push(call);
                    within.push(depth);
                }
                // A nested function has its own code.
                gimli::DW_TAG_subprogram => {
                    entries.skip_attributes(abbreviation.attributes())?;
                    skip_children(&mut entries, depth, &mut steps)?;
                }
                _ => entries.skip_attributes(abbreviation.attributes())?,
            }
        }
        Ok(())
    }

    fn at(&self, address: u64) -> Vec<Call> {
        let call = |depth: usize| {
            let before = self
                .ranges
                .partition_point(|(other, range, _)| (*other, range.begin) <= (depth, address));
            let (at, range, index) = self.ranges.get(before.checked_sub(1)?)?;
            (*at == depth && address < range.end).then(|| self.calls[*index])
        };
        (0..MAX_INLINED - 1).map_while(call).collect()
    }
}

/// A file's number, from a constant or an index of the list of files.
fn file_number(attribute: &Attribute<Slice<'_>>) -> Option<u64> {
    match attribute.value() {
        AttributeValue::FileIndex(number) => Some(number),
        _ => attribute.udata_value(),
    }
}

fn skip_children(entries: &mut EntriesRaw<'_, Slice<'_>>, depth: isize, steps: &mut Steps<'_>) -> gimli::Result<()> {
    while !entries.is_empty() && entries.next_depth() > depth && steps.step(0).is_ok() {
        if let Some(abbreviation) = entries.read_abbreviation()? {
            entries.skip_attributes(abbreviation.attributes())?;
        }
    }
    Ok(())
}

/// The name of an entry.
pub(super) enum Name<'d> {
    /// Its own name: the mangled one if it has both.
    Is(String),
    /// The name of the entry that it refers to.
    At(AttributeValue<Slice<'d>>),
}

/// The name of the function of this entry.
pub(super) fn name<'d>(unit: UnitRef<'_, Slice<'d>>, entry: UnitOffset, budget: &Budget) -> gimli::Result<Name<'d>> {
    let missing = gimli::Error::NoEntryAtGivenOffset(entry.0 as u64);
    let mut entries = unit.entries_raw(Some(entry))?;
    let abbreviation = entries.read_abbreviation()?.ok_or(missing)?;
    let text = |value| {
        let name = unit.attr_string(value)?;
        // A string may have no end, and be the name of any number of functions.
        let counted = budget.step(1 + name.len() as u64 / BYTES_OF_A_STEP);
        counted.map_err(|_| gimli::Error::UnexpectedEof(gimli::ReaderOffsetId(0)))?;
        Ok::<_, gimli::Error>(Name::Is(name.to_string_lossy().into_owned()))
    };
    let (mut plain, mut referred) = (None, None);
    for specification in abbreviation.attributes() {
        let attribute = entries.read_attribute(*specification)?;
        match attribute.name() {
            gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => return text(attribute.value()),
            gimli::DW_AT_name => plain = Some(attribute.value()),
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => referred = Some(attribute.value()),
            _ => {}
        }
    }
    match (plain, referred) {
        (Some(plain), _) => text(plain),
        (None, Some(referred)) => Ok(Name::At(referred)),
        (None, None) => Err(missing),
    }
}
