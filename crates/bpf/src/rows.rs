//! Rows of a fixed size, made from SFrame rows.

use std::ops::Range;

use backtrail_arch::Arch;
use backtrail_sframe::{Base, Fde, Location, Section};

use crate::layout::{PAGE_BYTES, PAGES, ROWS};

/// The most rows made from one section: a hostile one may repeat a pattern any number of times.
const MOST_ROWS: usize = 1 << 24;
/// The most addresses of a table: the rest of 32 bits stands for no address.
const MOST_ADDRESSES: u64 = u32::MAX as u64 - 1;

/// How to leave a frame, in a form that the program reads: a kind (3 bits), the offset of the CFA
/// (16 bits), and the distance below it of what is saved (13 bits), both in words. Saved is the
/// frame pointer, or nothing (0); with a link register, the return address above it, or that alone.
/// If another stack follows, the offset is that of the word which leads there (8 bits), and that of
/// the CFA from there (8 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule(u32);

impl Rule {
    /// None: if little of the stack is left, the program reads all of it, otherwise the stack is
    /// copied.
    pub const NONE: Rule = Rule(0);
    /// One that the program cannot follow: the stack is copied. No other rule has its kind.
    pub const BEYOND: Rule = Rule(1 << 3);
    const FROM_SP: u32 = 1;
    const FROM_FP: u32 = 2;
    /// The outermost frame.
    pub const OUTERMOST: Rule = Rule(3);
    /// The kernel's frame for a signal handler.
    pub const SIGNAL: Rule = Rule(4);
    /// The CFA is above the stack pointer, and only the return address is saved.
    const FROM_SP_ALONE: u32 = 5;
    /// A word above the stack pointer leads to another stack: the CFA is above where it leads.
    const BY_WORD: u32 = 6;
    /// That word is the address of the one that leads there.
    const BY_WORD_OF_WORD: u32 = 7;

    /// Where a program finds the caller: the CFA's offset from SP, or else from FP, and the offset
    /// of what is saved from the CFA.
    pub fn parts(self) -> Option<(bool, u64, Option<i64>)> {
        let from_sp = match self.0 & 7 {
            Rule::FROM_SP | Rule::FROM_SP_ALONE => true,
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

    /// The rule of a frame that leads to another stack, by the word `slot` bytes above the stack
    /// pointer, or by the one whose address it is, to `cfa` bytes below the CFA; the frame pointer
    /// is saved at a distance below that, if it is saved. `None` if the numbers are too large.
    pub fn by_word(slot: u32, is_indirect: bool, cfa: u32, saved_fp: Option<u32>) -> Option<Rule> {
        let in_words = |bytes: u32| bytes.is_multiple_of(8).then_some(bytes / 8);
        let (slot, cfa, saved) = (in_words(slot)?, in_words(cfa)?, in_words(saved_fp.unwrap_or(0))?);
        let kind = if is_indirect {
            Rule::BY_WORD_OF_WORD
        } else {
            Rule::BY_WORD
        };
        let fits = slot < 1 << 8 && cfa < 1 << 8 && saved < 1 << 13 && (saved_fp.is_none() || saved > 1);
        fits.then_some(Rule(kind | slot << 3 | cfa << 11 | saved << 19))
    }

    fn new(arch: &Arch, rule: &backtrail_sframe::Rule) -> Rule {
        let packed = || {
            let kind = match rule.cfa.base {
                Base::Register(number) if number == arch.sp.0 => Rule::FROM_SP,
                Base::Register(number) if number == arch.fp.0 => Rule::FROM_FP,
                _ => return None,
            };
            if rule.cfa.deref {
                return None;
            }
            let cfa = words(rule.cfa.offset)?;
            let (kind, saved) = if arch.link_register {
                with_link(arch, kind, rule)?
            } else {
                (kind, without_link(rule)?)
            };
            (cfa < 1 << 16 && saved < 1 << 13).then_some(Rule(kind | cfa << 3 | saved << 19))
        };
        packed().unwrap_or(Rule::BEYOND)
    }

    fn of_signal_frame(arch: &Arch, rule: &backtrail_sframe::Rule) -> Rule {
        let is_kernels = rule.ra.deref
            && rule.ra.base == Base::Register(arch.sp.0)
            && i64::from(rule.ra.offset) == arch.signal_frame.pc_offset;
        if is_kernels { Rule::SIGNAL } else { Rule::BEYOND }
    }
}

/// The distance of the saved frame pointer below the CFA, 0 without, where a call has pushed the
/// return address.
fn without_link(rule: &backtrail_sframe::Rule) -> Option<u32> {
    if rule.ra != Location::saved(-8) {
        return None;
    }
    rule.fp
        .map_or(Some(0), |fp| below_cfa(fp).filter(|&distance| distance > 1))
}

/// The kind, and the distance of what is saved, where a call leaves the return address in a
/// register.
fn with_link(arch: &Arch, kind: u32, rule: &backtrail_sframe::Rule) -> Option<(u32, u32)> {
    match rule.fp {
        None if rule.ra == Location::register(arch.ra.0, 0) => Some((kind, 0)),
        None if kind == Rule::FROM_SP => Some((Rule::FROM_SP_ALONE, below_cfa(rule.ra)?)),
        Some(fp) => {
            let distance = below_cfa(fp)?;
            (distance.checked_sub(1) == below_cfa(rule.ra)).then_some((kind, distance))
        }
        None => None,
    }
}

/// How many words below the CFA a register is saved, if it is.
fn below_cfa(saved: Location) -> Option<u32> {
    let is_saved = saved.base == Base::Cfa && saved.deref;
    let distance = saved.offset.checked_neg().filter(|_| is_saved)?;
    words(distance).filter(|&distance| distance > 0)
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

/// Makes the tables for a section, by ascending address, and passes each to `take` before it makes
/// the next: all tables of a large file are much memory. `others` are rules of code that has no row
/// in the section, in order.
pub fn tables(arch: &Arch, section: &Section<'_>, others: &[(Range<u64>, Rule)], take: impl FnMut(Table)) {
    let mut tables = Tables::new(others, take);
    let mut functions: Vec<(u64, u32)> = (0_u32..)
        .zip(section.functions())
        .filter_map(|(index, fde)| Some((fde.ok()?.function().start, index)))
        .collect();
    if !functions.is_sorted() {
        functions.sort_unstable();
    }
    let mut end = 0;
    for (number, &(start, index)) in functions.iter().enumerate() {
        let Ok(fde) = section.fde(index) else { continue };
        let limit = functions.get(number + 1).map_or(u64::MAX, |next| next.0);
        let stop = start.saturating_add(fde.function().size.into()).min(limit);
        if stop <= start {
            continue;
        }
        if tables.rows >= MOST_ROWS {
            break;
        }
        if end < start {
            tables.add(end, Rule::NONE);
        }
        tables.add_function(arch, &fde, stop);
        end = stop;
    }
    tables.finish(end);
}

/// Tables in the making.
struct Tables<'o, F> {
    take: F,
    /// Rules that are not the section's, and come after the newest row.
    others: std::slice::Iter<'o, (Range<u64>, Rule)>,
    /// The newest row, which the next one may still replace; and the rule of the one before.
    newest: Option<(u64, Rule)>,
    before: Rule,
    /// First address of the current table, and of its pages relative to that.
    first: u64,
    directory: Vec<u32>,
    /// Pages after the directory.
    pages: Vec<u8>,
    /// Rows of the current table, and of all.
    in_table: usize,
    rows: usize,
}

impl<'o, F: FnMut(Table)> Tables<'o, F> {
    fn new(others: &'o [(Range<u64>, Rule)], take: F) -> Self {
        Tables {
            take,
            others: others.iter(),
            newest: None,
            before: Rule::NONE,
            first: 0,
            directory: Vec::new(),
            pages: Vec::new(),
            in_table: 0,
            rows: 0,
        }
    }

    fn add_function(&mut self, arch: &Arch, fde: &Fde<'_>, stop: u64) {
        let function = fde.function();
        let block = function.repeat.map_or(u64::MAX, |repeat| u64::from(repeat.max(1)));
        let mut start = function.start;
        while start < stop && self.rows < MOST_ROWS {
            // What comes before the first row.
            self.add(start, Rule::NONE);
            let block_end = start.saturating_add(block).min(stop);
            for row in fde.rows() {
                let Ok(row) = row else {
                    // What was read before cannot be relied on, either; later rows of the stack are
                    // proved anyway.
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
                self.add(address, rule);
            }
            start = block_end;
        }
        if start < stop {
            self.add(start, Rule::NONE);
        }
    }

    /// Adds a row, after the other rules that come before it, where code has no row that can be
    /// followed.
    fn add(&mut self, address: u64, rule: Rule) {
        while let Some((addresses, other)) = self.others.as_slice().first()
            && addresses.start < address
        {
            self.others.next();
            let before = self.newest.map_or(Rule::NONE, |(_, rule)| rule);
            if matches!(before, Rule::NONE | Rule::BEYOND) {
                self.put(addresses.start, *other);
                self.put(addresses.end.min(address), before);
            }
        }
        self.put(address, rule);
    }

    /// Adds a row, which replaces one at the same address. Rows that go back are damage.
    fn put(&mut self, address: u64, rule: Rule) {
        match self.newest {
            Some((newest, _)) if address < newest => {}
            Some((newest, _)) if address == newest => self.newest = Some((newest, rule)),
            _ => {
                self.keep_newest();
                self.newest = Some((address, rule));
            }
        }
    }

    /// Puts the newest row into its page, unless its rule is that of the one before.
    fn keep_newest(&mut self) {
        let Some((address, rule)) = self.newest.take() else {
            return;
        };
        if rule == self.before {
            return;
        }
        let is_full = self.in_table >= ROWS * PAGES;
        if self.in_table > 0 && (is_full || address - self.first >= MOST_ADDRESSES) {
            self.finish_table(address);
        }
        if self.in_table == 0 {
            self.first = address;
        }
        let relative = (address - self.first) as u32;
        if self.in_table.is_multiple_of(ROWS) {
            self.directory.push(relative);
        }
        self.pages
            .extend([relative, rule.0].map(u32::to_ne_bytes).as_flattened());
        self.before = rule;
        self.in_table += 1;
        self.rows += 1;
    }

    fn finish_table(&mut self, end: u64) {
        self.directory.resize(PAGES, u32::MAX);
        let directory = self.directory.drain(..).flat_map(u32::to_ne_bytes);
        let mut pages: Vec<u8> = directory.collect();
        pages.append(&mut self.pages);
        pages.resize(pages.len().next_multiple_of(PAGE_BYTES), u8::MAX);
        (self.take)(Table {
            addresses: self.first..end.min(self.first.saturating_add(MOST_ADDRESSES)),
            rows: std::mem::take(&mut self.in_table),
            pages,
        });
        // The first row of a table is always one.
        self.before = Rule::NONE;
    }

    fn finish(mut self, mut end: u64) {
        if let Some((last, _)) = self.others.as_slice().last() {
            self.add(end, Rule::NONE);
            end = end.max(last.end);
            self.add(end, Rule::NONE);
        }
        self.keep_newest();
        if self.in_table > 0 {
            self.finish_table(end);
        }
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
            let mut made = Vec::new();
            tables(&ARCH, &section, &[], |table| made.push(table));
            assert_eq!(made.len(), 1);
            for pc in 0xff0..0x1010 + 32 * count {
                assert_eq!(made[0].find(pc), expected(&section, pc), "{count} functions, {pc:#x}");
            }
        }
    }

    #[test]
    fn a_rule_comes_back() {
        let saved = |offset| Some(Location::saved(offset));
        let made = |row: &Row| Rule::new(&ARCH, &row.rule.expect("it has one"));
        let of = |row: Row| made(&row).parts();
        assert_eq!(of(row(0, Location::register(RSP.0, 8), None)), Some((true, 8, None)));
        let deep = row(0, Location::register(RBP.0, 0x7_fff8), saved(-0xfff8));
        assert_eq!(of(deep), Some((false, 0x7_fff8, Some(-0xfff8))));
        // What does not fit is left to the copy of the stack, however little of it is left.
        for other in [
            row(0, Location::register(RSP.0, 0x8_0000), None),
            row(0, Location::register(RSP.0, 12), None),
            row(0, Location::register(RSP.0, -8), None),
            row(0, Location::register(RSP.0, 16), saved(-8)),
            row(0, Location::register(3, 16), None),
        ] {
            assert_eq!((made(&other), of(other)), (Rule::BEYOND, None), "{other:?}");
        }
    }

    #[test]
    fn a_rule_of_a_link_register_comes_back() {
        use backtrail_arch::aarch64::{ARCH, SP, X29, X30};
        let of = |cfa, ra, fp: Option<i32>| {
            let mut rule = backtrail_sframe::Rule::new(cfa, ra);
            rule.fp = fp.map(Location::saved);
            Rule::new(&ARCH, &rule)
        };
        let (sp, link) = (|offset| Location::register(SP.0, offset), Location::register(X30.0, 0));
        assert_eq!(of(sp(0), link, None).parts(), Some((true, 0, None)));
        let pair = of(sp(32), Location::saved(-24), Some(-32));
        let alone = of(sp(32), Location::saved(-32), None);
        assert_eq!(pair.parts(), Some((true, 32, Some(-32))));
        assert_eq!(alone.parts(), pair.parts());
        assert_ne!(alone, pair);
        let by_frame = of(Location::register(X29.0, 16), Location::saved(-8), Some(-16));
        assert_eq!(by_frame.parts(), Some((false, 16, Some(-16))));
        for other in [
            of(sp(32), Location::saved(-8), Some(-32)),
            of(sp(32), link, Some(-32)),
            of(Location::register(X29.0, 16), Location::saved(-8), None),
            of(sp(32), Location::register(X30.0, 8), None),
        ] {
            assert_eq!(other, Rule::BEYOND);
        }
    }

    #[test]
    fn other_rules_are_for_code_without_rows() {
        let mut functions = functions(3);
        functions.remove(1);
        let bytes = section(&functions, &Options::new(Version::V3, Abi::Amd64Little, 0)).expect("it can be expressed");
        let section = Section::parse(&bytes.bytes, 0).expect("it was just written");
        let rule = |slot| Rule::by_word(slot, slot > 8, 80, Some(16)).expect("the numbers are small");
        // Where there is a row, at the beginning and in the middle of holes, and behind the last
        // function.
        let others = [
            (0x1000..0x1004, rule(0)),
            (0x1010..0x1014, rule(8)),
            (0x1022..0x1028, rule(16)),
            (0x1030..0x1034, rule(24)),
            (0x1060..0x1068, rule(32)),
        ];
        let mut made = Vec::new();
        tables(&ARCH, &section, &others, |table| made.push(table));
        for pc in 0xff0..0x1080 {
            let other = others.iter().find(|(addresses, _)| addresses.contains(&pc));
            let expected = match (expected(&section, pc), other) {
                (Rule::NONE, Some((_, other))) => *other,
                (own, _) => own,
            };
            assert_eq!(made[0].find(pc), expected, "{pc:#x}");
        }
        for (slot, cfa, saved) in [
            (4, 8, None),
            (0x800, 8, None),
            (8, 0x800, None),
            (8, 8, Some(8)),
            (8, 8, Some(1 << 16)),
        ] {
            assert_eq!(Rule::by_word(slot, false, cfa, saved), None);
        }
    }

    #[test]
    fn large_sections_become_several_tables() {
        let count = 2 * (ROWS * PAGES) as u64 + 100;
        let rule = |at: u64| Rule(1 | (1 + at as u32 % 2) << 3);
        let mut made = Vec::new();
        let mut tables = Tables::new(&[], |table| made.push(table));
        for at in 0..count {
            tables.add(16 * at, rule(at));
        }
        tables.finish(16 * count);
        assert_eq!(
            made.iter().map(|table| table.rows).collect::<Vec<_>>(),
            [ROWS * PAGES, ROWS * PAGES, 100]
        );
        assert_eq!(made[0].pages.len(), PAGE_BYTES * (1 + PAGES));
        for address in (0..16 * count).step_by(1237) {
            let table = made
                .iter()
                .find(|table| table.addresses.contains(&address))
                .expect("it has one");
            assert_eq!(table.find(address), rule(address / 16));
        }
        // More addresses than a table can have.
        let mut made = Vec::new();
        let mut tables = Tables::new(&[], |table| made.push(table));
        for at in 0..4 {
            tables.add(at << 31, rule(at));
        }
        tables.finish(4 << 31);
        assert!(
            made.iter()
                .all(|table| table.addresses.end - table.addresses.start <= MOST_ADDRESSES)
        );
        for at in 0..4 {
            let table = made
                .iter()
                .find(|table| table.addresses.contains(&(at << 31)))
                .expect("it has one");
            assert_eq!(table.find(at << 31), rule(at));
        }
    }
}
