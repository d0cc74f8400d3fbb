//! Rows of a fixed size, made from SFrame rows.

use std::ops::Range;

use backtrail_arch::Arch;
use backtrail_sframe::{Base, Fde, Location, Section};

use crate::layout::{PAGE_BYTES, PAGES, ROWS};

/// The most rows made from one section: a hostile one may repeat a pattern any number of times.
const MOST_ROWS: usize = 1 << 23;
/// The most addresses of a table: the rest of 32 bits stands for no address.
const MOST_ADDRESSES: u64 = u32::MAX as u64 - 1;

/// How to leave a frame, in a form that the program reads: a kind (3 bits), the offset of the CFA
/// (16 bits), and the distance of the saved frame pointer below it, 0 without (13 bits), both in
/// words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule(u32);

impl Rule {
    /// None, or none that the program can follow: the stack is copied.
    pub const NONE: Rule = Rule(0);
    const FROM_SP: u32 = 1;
    const FROM_FP: u32 = 2;
    /// The outermost frame.
    pub const OUTERMOST: Rule = Rule(3);
    /// The kernel's frame for a signal handler.
    pub const SIGNAL: Rule = Rule(4);

    /// Where a program finds the caller: the CFA's offset from SP, or else from FP, and the saved
    /// frame pointer's from the CFA.
    pub fn parts(self) -> Option<(bool, u64, Option<i64>)> {
        let from_sp = match self.0 & 7 {
            Rule::FROM_SP => true,
            Rule::FROM_FP => false,
            _ => return None,
        };
        let saved = i64::from(self.0 >> 19);
        Some((
            from_sp,
            u64::from(self.0 >> 3 & 0xffff) << 3,
            (saved != 0).then_some(-8 * saved),
        ))
    }

    fn new(arch: &Arch, rule: &backtrail_sframe::Rule) -> Rule {
        let packed = || {
            let kind = match rule.cfa.base {
                Base::Register(number) if number == arch.sp.0 => Rule::FROM_SP,
                Base::Register(number) if number == arch.fp.0 => Rule::FROM_FP,
                _ => return None,
            };
            if rule.cfa.deref || rule.ra != Location::saved(-8) {
                return None;
            }
            let cfa = words(rule.cfa.offset)?;
            let fp = match rule.fp {
                None => 0,
                Some(Location {
                    base: Base::Cfa,
                    offset,
                    deref: true,
                }) => words(offset.checked_neg()?).filter(|&below| below > 1)?,
                Some(_) => return None,
            };
            (cfa < 1 << 16 && fp < 1 << 13).then_some(Rule(kind | cfa << 3 | fp << 19))
        };
        packed().unwrap_or(Rule::NONE)
    }

    fn of_signal_frame(arch: &Arch, rule: &backtrail_sframe::Rule) -> Rule {
        /// Where the program looks for it.
        const PC: i64 = 168;
        let is_kernels = rule.ra.deref
            && rule.ra.base == Base::Register(arch.sp.0)
            && i64::from(rule.ra.offset) == PC
            && arch.signal_frame.pc_offset == PC;
        if is_kernels { Rule::SIGNAL } else { Rule::NONE }
    }
}

fn words(bytes: i32) -> Option<u32> {
    let bytes = u32::try_from(bytes).ok()?;
    bytes.is_multiple_of(8).then_some(bytes / 8)
}

/// Rows for some of a section's addresses, in pages: the first one has the first address of each of
/// the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The addresses; rows count from the first one.
    pub addresses: Range<u64>,
    /// Rows.
    pub rows: usize,
    /// The pages, one after the other.
    pub pages: Vec<u8>,
}

impl Table {
    fn new(rows: &[(u64, Rule)], end: u64) -> Table {
        let first = rows.first().map_or(end, |row| row.0);
        let relative = |address: u64| (address - first) as u32;
        let mut directory: Vec<u32> = rows.chunks(ROWS).map(|page| relative(page[0].0)).collect();
        directory.resize(PAGES, u32::MAX);
        let mut pages: Vec<u8> = directory.iter().flat_map(|first| first.to_ne_bytes()).collect();
        for page in rows.chunks(ROWS) {
            pages.extend(page.iter().flat_map(|&(address, rule)| {
                let halves = [relative(address), rule.0].map(u32::to_ne_bytes);
                u64::from_ne_bytes(halves.as_flattened().try_into().unwrap_or_default()).to_ne_bytes()
            }));
            pages.resize(pages.len().next_multiple_of(PAGE_BYTES), u8::MAX);
        }
        Table {
            addresses: first..end,
            rows: rows.len(),
            pages,
        }
    }

    /// The rule for an address, as the program finds it.
    pub fn find(&self, address: u64) -> Rule {
        if !self.addresses.contains(&address) {
            return Rule::NONE;
        }
        let pc = (address - self.addresses.start) as u32;
        let word = |at: usize| {
            let bytes = self.pages.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(u32::MAX, u32::from_ne_bytes)
        };
        let last_of = |count: usize, pc_of: &dyn Fn(usize) -> u32| {
            let (mut low, mut high) = (0, count);
            while high - low > 1 {
                let middle = low.midpoint(high);
                match pc_of(middle) <= pc {
                    true => low = middle,
                    false => high = middle,
                }
            }
            low
        };
        let page = PAGE_BYTES * (1 + last_of(PAGES, &|index| word(4 * index)));
        let row = page + 8 * last_of(ROWS, &|index| word(page + 8 * index));
        if word(row) <= pc {
            Rule(word(row + 4))
        } else {
            Rule::NONE
        }
    }
}

/// The tables for a section, by ascending address.
pub fn tables(arch: &Arch, section: &Section<'_>) -> Vec<Table> {
    let (rows, end) = fixed_rows(arch, section);
    let mut rest = rows.as_slice();
    let mut tables = Vec::new();
    while let Some(&(first, _)) = rest.first() {
        let near = rest.partition_point(|row| row.0 - first < MOST_ADDRESSES);
        let (rows, others) = rest.split_at(near.min(ROWS * PAGES));
        let next = others.first().map_or(end, |row| row.0);
        tables.push(Table::new(rows, next.min(first.saturating_add(MOST_ADDRESSES))));
        rest = others;
    }
    tables
}

/// All rows by ascending address, of which no two neighbours have the same rule; and the end of the
/// last one.
fn fixed_rows(arch: &Arch, section: &Section<'_>) -> (Vec<(u64, Rule)>, u64) {
    let mut functions: Vec<Fde<'_>> = section.functions().flatten().collect();
    functions.sort_by_key(|function| function.function().start);
    let mut rows: Vec<(u64, Rule)> = Vec::new();
    let mut end = 0;
    for (index, fde) in functions.iter().enumerate() {
        let function = fde.function();
        let limit = functions.get(index + 1).map_or(u64::MAX, |next| next.function().start);
        let stop = function.start.saturating_add(function.size.into()).min(limit);
        if stop <= function.start || rows.len() >= MOST_ROWS {
            continue;
        }
        if end < function.start {
            add(&mut rows, end, Rule::NONE);
        }
        // What comes before the first row.
        add(&mut rows, function.start, Rule::NONE);
        let block = function.repeat.map_or(u64::MAX, |repeat| u64::from(repeat.max(1)));
        let mut start = function.start;
        while start < stop && rows.len() < MOST_ROWS {
            let block_end = start.saturating_add(block).min(stop);
            let mut decoded = true;
            for row in fde.rows() {
                let Ok(row) = row else {
                    decoded = false;
                    break;
                };
                let address = start.saturating_add(row.start.into());
                if address >= block_end {
                    break;
                }
                let rule = match row.rule {
                    None => Rule::OUTERMOST,
                    Some(rule) if function.signal_frame => Rule::of_signal_frame(arch, &rule),
                    Some(rule) => Rule::new(arch, &rule),
                };
                add(&mut rows, address, rule);
            }
            if !decoded {
                add(&mut rows, start, Rule::NONE);
            }
            start = block_end;
        }
        end = start;
    }
    if rows.first().is_some_and(|row| row.1 == Rule::NONE) {
        rows.remove(0);
    }
    (rows, end)
}

/// Adds a row, which replaces those from its address on.
fn add(rows: &mut Vec<(u64, Rule)>, address: u64, rule: Rule) {
    while rows.last().is_some_and(|last| last.0 >= address) {
        rows.pop();
    }
    if rows.last().is_none_or(|last| last.1 != rule) {
        rows.push((address, rule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64::{ARCH, RBP, RSP};
    use backtrail_sframe::write::{FunctionRows, Options, section};
    use backtrail_sframe::{Abi, Row, Version};

    fn row(start: u32, cfa: Location, fp: Option<Location>) -> Row {
        let mut rule = backtrail_sframe::Rule::new(cfa, Location::saved(-8));
        rule.fp = fp;
        Row {
            start,
            rule: Some(rule),
        }
    }

    /// Functions with gaps between them, of which every tenth is the outermost.
    fn functions(count: u64) -> Vec<FunctionRows> {
        let function = |number: u64| {
            let saved = Some(Location::saved(-16));
            let rows = match number % 10 {
                9 => vec![Row { start: 0, rule: None }],
                _ => vec![
                    row(0, Location::register(RSP.0, 8), None),
                    row(1, Location::register(RSP.0, 16), saved),
                    row(4, Location::register(RBP.0, 16 + 8 * (number % 7) as i32), saved),
                ],
            };
            FunctionRows::new(0x1000 + 32 * number, 16 + (number % 17) as u32, rows)
        };
        (0..count).map(function).collect()
    }

    fn expected(section: &Section<'_>, pc: u64) -> Rule {
        match section.lookup(pc).expect("it was just written") {
            None => Rule::NONE,
            Some(found) => match found.row.rule {
                None => Rule::OUTERMOST,
                Some(rule) => Rule::new(&ARCH, &rule),
            },
        }
    }

    #[test]
    fn rows_say_what_the_section_says_at_every_address() {
        for count in [1, 2, 100, 3000] {
            let bytes = section(&functions(count), &Options::new(Version::V3, Abi::Amd64Little, 0))
                .expect("it can be expressed")
                .bytes;
            let section = Section::parse(&bytes, 0).expect("it was just written");
            let tables = tables(&ARCH, &section);
            assert_eq!(tables.len(), 1);
            for pc in 0xff0..0x1010 + 32 * count {
                assert_eq!(tables[0].find(pc), expected(&section, pc), "{count} functions, {pc:#x}");
            }
        }
    }

    #[test]
    fn a_rule_comes_back() {
        let saved = |offset| Some(Location::saved(offset));
        let of = |row: Row| Rule::new(&ARCH, &row.rule.expect("it has one")).parts();
        assert_eq!(of(row(0, Location::register(RSP.0, 8), None)), Some((true, 8, None)));
        let deep = row(0, Location::register(RBP.0, 0x7_fff8), saved(-0xfff8));
        assert_eq!(of(deep), Some((false, 0x7_fff8, Some(-0xfff8))));
        // What does not fit is left to the copy of the stack.
        for other in [
            row(0, Location::register(RSP.0, 0x8_0000), None),
            row(0, Location::register(RSP.0, 12), None),
            row(0, Location::register(RSP.0, -8), None),
            row(0, Location::register(RSP.0, 16), saved(-8)),
            row(0, Location::register(3, 16), None),
        ] {
            assert_eq!(of(other), None, "{other:?}");
        }
    }

    #[test]
    fn large_sections_become_several_tables() {
        let count = (ROWS * PAGES) as u64;
        let rows: Vec<(u64, Rule)> = (0..count)
            .map(|at| (16 * at, Rule(1 | (1 + at as u32 % 2) << 3)))
            .collect();
        let table = Table::new(&rows, 16 * count);
        assert_eq!(table.pages.len(), PAGE_BYTES * (1 + PAGES));
        for at in (0..16 * count).step_by(1237) {
            assert_eq!(table.find(at), rows[at as usize / 16].1);
        }
    }
}
