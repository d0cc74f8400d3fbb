//! The form that `docs/sframe-v4-proposal.md` proposes, written and read.
//!
//! A table is a list of changes: at this address, that state begins. States are in a dictionary,
//! the most frequent first. A change takes one byte if its step, the pair of its gap to the
//! previous change and its state, is in the second dictionary; else it is a state and a gap.

use std::cmp::Reverse;
use std::collections::HashMap;

use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Base, Location, Row, Rule};

/// What a table says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Found {
    pub rule: Option<Rule>,
    pub signal_frame: bool,
    pub key_b: bool,
}

/// What holds from an address on.
#[derive(Clone, PartialEq, Eq, Hash)]
enum State {
    /// No rows.
    Nothing,
    Row(Found),
    /// Repeated blocks of `size` bytes.
    Repeat {
        size: u8,
        rows: Vec<Row>,
    },
}

/// How a table is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Changes in a page.
    pub page: usize,
    /// The most steps in the dictionary, up to [`MOST_STEPS`].
    pub steps: usize,
}

/// Byte values from here on always begin a state and a gap.
pub(crate) const MOST_STEPS: usize = 192;

/// The size of each part of a table in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    pub states: usize,
    pub steps: usize,
    pub pages: usize,
    pub changes: usize,
    /// The number of changes.
    pub count: usize,
}

/// A table, and what its parts take.
pub(crate) struct Written {
    pub bytes: Vec<u8>,
    pub parts: Parts,
}

const HEADER: usize = 40;
const PAGE_ENTRY: usize = 8;
/// No number has more than 32 bits.
const MOST_LEB: usize = 5;

/// The address where a state begins, and its number in order of appearance.
type Change = (u64, usize);

/// Writes the functions, which are sorted and do not overlap. `None` if a part would be too large.
pub(crate) fn write(functions: &[FunctionRows], ra: Location, form: Form) -> Option<Written> {
    let (mut changes, states) = changes(functions);
    let order = by_frequency(&mut changes, states.len());
    let origin = changes.first()?.0;
    let unit = [4u64, 2, 1]
        .into_iter()
        .find(|unit| changes.iter().all(|(at, _)| (at - origin) % unit == 0))?;
    let changes: Vec<(u32, usize)> = changes
        .iter()
        .map(|(at, state)| Some((u32::try_from((at - origin) / unit).ok()?, *state)))
        .collect::<Option<_>>()?;
    let steps = steps(&changes, form);
    let mut pages = Vec::new();
    let mut stream = Vec::new();
    for page in changes.chunks(form.page) {
        pages.extend(page[0].0.to_le_bytes());
        pages.extend(u32::try_from(stream.len()).ok()?.to_le_bytes());
        push_leb(&mut stream, page[0].1 as u64);
        for pair in page.windows(2) {
            push_change(&mut stream, (pair[1].0 - pair[0].0, pair[1].1), &steps);
        }
    }
    let mut dictionary = Vec::new();
    let mut places = Vec::new();
    for state in order {
        places.extend(u16::try_from(dictionary.len()).ok()?.to_le_bytes());
        push_state(&mut dictionary, &states[state], ra);
    }
    let mut listed = Vec::new();
    for (gap, state) in steps.order() {
        push_leb(&mut listed, u64::from(gap));
        push_leb(&mut listed, state as u64);
    }
    let parts = Parts {
        states: places.len() + dictionary.len(),
        steps: listed.len(),
        pages: pages.len(),
        changes: stream.len(),
        count: changes.len(),
    };
    let mut bytes = origin.to_le_bytes().to_vec();
    let numbers = [unit as usize, form.page, changes.len(), places.len() / 2, steps.len()];
    let sizes = [dictionary.len(), listed.len(), stream.len()];
    for number in numbers.into_iter().chain(sizes) {
        bytes.extend(u32::try_from(number).ok()?.to_le_bytes());
    }
    for part in [pages, places, dictionary, listed, stream] {
        bytes.extend(part);
    }
    Some(Written { bytes, parts })
}

fn changes(functions: &[FunctionRows]) -> (Vec<Change>, Vec<State>) {
    let mut known: HashMap<State, usize> = HashMap::new();
    let mut states = Vec::new();
    let mut changes: Vec<Change> = Vec::new();
    let mut push = |at: u64, state: State| {
        let repeats = matches!(state, State::Repeat { .. });
        let number = *known.entry(state).or_insert_with_key(|state| {
            states.push(state.clone());
            states.len() - 1
        });
        // A second block of the same rows begins with its own first row.
        if repeats || changes.last().is_none_or(|(_, last)| *last != number) {
            changes.push((at, number));
        }
    };
    let mut end = None;
    for function in functions {
        if let Some(end) = end.filter(|end| *end < function.start) {
            push(end, State::Nothing);
        }
        let rows = || function.rows.iter().filter(|row| row.start < function.size);
        match function.repeat {
            Some(size) => push(
                function.start,
                State::Repeat {
                    size,
                    rows: function.rows.clone(),
                },
            ),
            None => {
                if rows().next().is_none_or(|row| row.start > 0) {
                    push(function.start, State::Nothing);
                }
                for row in rows() {
                    let found = Found {
                        rule: row.rule,
                        signal_frame: function.signal_frame,
                        key_b: function.pauth_key_b,
                    };
                    push(function.start + u64::from(row.start), State::Row(found));
                }
            }
        }
        end = Some(function.start + u64::from(function.size));
    }
    if let Some(end) = end {
        push(end, State::Nothing);
    }
    (changes, states)
}

/// Numbers the states by their frequency. Returns the old number of each.
fn by_frequency(changes: &mut [Change], states: usize) -> Vec<usize> {
    let mut counts = vec![0usize; states];
    changes.iter().for_each(|(_, state)| counts[*state] += 1);
    let mut order: Vec<usize> = (0..states).collect();
    order.sort_by_key(|state| Reverse(counts[*state]));
    let mut numbers = vec![0; states];
    for (number, state) in order.iter().enumerate() {
        numbers[*state] = number;
    }
    changes.iter_mut().for_each(|(_, state)| *state = numbers[*state]);
    order
}

/// A gap in units, and the state that follows it.
type Step = (u32, usize);

#[derive(Default)]
struct Steps(HashMap<Step, usize>);

impl Steps {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn order(&self) -> Vec<Step> {
        let mut order: Vec<Step> = self.0.keys().copied().collect();
        order.sort_by_key(|step| self.0[step]);
        order
    }
}

/// The steps whose place in the dictionary saves most.
fn steps(changes: &[(u32, usize)], form: Form) -> Steps {
    let mut counts: HashMap<Step, usize> = HashMap::new();
    for page in changes.chunks(form.page) {
        for pair in page.windows(2) {
            *counts.entry((pair[1].0 - pair[0].0, pair[1].1)).or_default() += 1;
        }
    }
    let saved = |(gap, state): Step, count: usize| {
        let long = leb_len(u64::from(gap)) + leb_len(state as u64);
        (count * (long - 1)).saturating_sub(long)
    };
    let mut steps: Vec<(usize, Step)> = counts
        .into_iter()
        .map(|(step, count)| (saved(step, count), step))
        .collect();
    steps.retain(|(saved, _)| *saved > 0);
    steps.sort_unstable_by_key(|(saved, step)| (Reverse(*saved), *step));
    steps.truncate(form.steps.min(MOST_STEPS));
    Steps(
        steps
            .into_iter()
            .zip(0..)
            .map(|((_, step), number)| (step, number))
            .collect(),
    )
}

/// A step's number; or a state, counted from the number of steps on, and its gap.
fn push_change(stream: &mut Vec<u8>, step: Step, steps: &Steps) {
    if let Some(number) = steps.0.get(&step) {
        stream.push(*number as u8);
        return;
    }
    match u8::try_from(steps.len() + step.1) {
        Ok(byte) if byte < u8::MAX => stream.push(byte),
        _ => {
            stream.push(u8::MAX);
            push_leb(stream, step.1 as u64);
        }
    }
    push_leb(stream, u64::from(step.0));
}

const NOTHING: u8 = 1;
const OUTERMOST: u8 = 2;
const SIGNAL_FRAME: u8 = 4;
const KEY_B: u8 = 8;
const MANGLED: u8 = 16;
const REPEAT: u8 = 32;
/// A location follows for the return address, or for the frame pointer.
const RA: u8 = 64;
const FP: u8 = 128;

fn push_state(out: &mut Vec<u8>, state: &State, ra: Location) {
    match state {
        State::Nothing => out.push(NOTHING),
        State::Row(found) => {
            let flags = flag(found.signal_frame, SIGNAL_FRAME) | flag(found.key_b, KEY_B);
            push_rule(out, found.rule.as_ref(), flags, ra);
        }
        State::Repeat { size, rows } => {
            out.extend([REPEAT, *size, rows.len() as u8]);
            for row in rows {
                out.push(row.start as u8);
                push_rule(out, row.rule.as_ref(), 0, ra);
            }
        }
    }
}

fn push_rule(out: &mut Vec<u8>, rule: Option<&Rule>, flags: u8, ra: Location) {
    let Some(rule) = rule else {
        out.push(flags | OUTERMOST);
        return;
    };
    let has_ra = rule.ra != ra;
    out.push(flags | flag(rule.mangled_ra, MANGLED) | flag(has_ra, RA) | flag(rule.fp.is_some(), FP));
    let locations = [Some(rule.cfa), has_ra.then_some(rule.ra), rule.fp];
    for location in locations.into_iter().flatten() {
        let base = match location.base {
            Base::Cfa => 0,
            Base::Register(number) => u64::from(number) + 1,
        };
        push_leb(out, base << 1 | u64::from(location.deref));
        // Zigzag: small negative numbers are short, too.
        push_leb(out, u64::from((location.offset << 1 ^ location.offset >> 31) as u32));
    }
}

fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

fn push_leb(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn leb_len(number: u64) -> usize {
    let mut bytes = Vec::new();
    push_leb(&mut bytes, number);
    bytes.len()
}

/// A written table, read.
pub(crate) struct Table<'a> {
    origin: u64,
    unit: u64,
    page: usize,
    count: usize,
    pages: &'a [u8],
    places: &'a [u8],
    dictionary: &'a [u8],
    /// Read once: at most [`MOST_STEPS`].
    steps: Vec<Step>,
    stream: &'a [u8],
    ra: Location,
}

impl<'a> Table<'a> {
    pub(crate) fn read(bytes: &'a [u8], ra: Location) -> Option<Table<'a>> {
        let number = |index: usize| u32_at(bytes, 8 + 4 * index).map(|number| number as usize);
        let (unit, page, count, states) = (number(0)?, number(1)?, number(2)?, number(3)?);
        let mut at = HEADER;
        let mut take = |len: usize| {
            let part = bytes.get(at..at.checked_add(len)?)?;
            at += len;
            Some(part)
        };
        let pages = take(PAGE_ENTRY * count.div_ceil(page))?;
        let (places, dictionary) = (take(2 * states)?, take(number(5)?)?);
        let (mut listed, stream) = (take(number(6)?)?, take(number(7)?)?);
        let mut steps = Vec::new();
        for _ in 0..number(4)?.min(MOST_STEPS) {
            steps.push((leb(&mut listed)? as u32, leb(&mut listed)? as usize));
        }
        Some(Table {
            origin: u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?),
            unit: unit as u64,
            page,
            count,
            pages,
            places,
            dictionary,
            steps,
            stream,
            ra,
        })
    }

    /// What holds at an address; `None` if there are no rows.
    pub(crate) fn lookup(&self, pc: u64) -> Option<Found> {
        let target = u32::try_from(pc.checked_sub(self.origin)? / self.unit).ok()?;
        let page = self.page_of(target)?;
        let mut at = u32_at(self.pages, page * PAGE_ENTRY)?;
        let offset = u32_at(self.pages, page * PAGE_ENTRY + 4)? as usize;
        let mut rest = self.stream.get(offset..)?;
        let mut state = leb(&mut rest)? as usize;
        for _ in 1..self.page.min(self.count - page * self.page) {
            let (gap, next) = self.change(&mut rest)?;
            if target - at < gap {
                break;
            }
            (at, state) = (at + gap, next);
        }
        self.state(state, pc - self.origin - u64::from(at) * self.unit)
    }

    /// The last page that does not begin after `target`.
    fn page_of(&self, target: u32) -> Option<usize> {
        let (mut from, mut to) = (0, self.pages.len() / PAGE_ENTRY);
        while from < to {
            let middle = from.midpoint(to);
            match u32_at(self.pages, middle * PAGE_ENTRY)? <= target {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from.checked_sub(1)
    }

    fn change(&self, rest: &mut &[u8]) -> Option<Step> {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        if let Some(step) = self.steps.get(usize::from(byte)) {
            return Some(*step);
        }
        let state = match byte {
            u8::MAX => leb(rest)? as usize,
            _ => usize::from(byte) - self.steps.len(),
        };
        Some((leb(rest)? as u32, state))
    }

    /// What a state says about the byte at this offset from where it begins.
    fn state(&self, number: usize, offset: u64) -> Option<Found> {
        let place = self.places.get(2 * number..2 * number + 2)?;
        let mut rest = self
            .dictionary
            .get(usize::from(u16::from_le_bytes(place.try_into().ok()?))..)?;
        let &flags = rest.first()?;
        if flags == NOTHING {
            return None;
        }
        let rule = match flags {
            REPEAT => self.repeated(rest, offset)?,
            _ => self.rule(&mut rest)?,
        };
        Some(Found {
            rule,
            signal_frame: flags & SIGNAL_FRAME != 0,
            key_b: flags & KEY_B != 0,
        })
    }

    /// The last row of a block that does not begin after the offset.
    fn repeated(&self, state: &[u8], offset: u64) -> Option<Option<Rule>> {
        let [size, count] = *state.get(1..3)?.first_chunk()?;
        let offset = offset.checked_rem(size.into())?;
        let mut rest = state.get(3..)?;
        let mut found = None;
        for _ in 0..count {
            let (&start, tail) = rest.split_first()?;
            rest = tail;
            let rule = self.rule(&mut rest)?;
            if u64::from(start) <= offset {
                found = Some(rule);
            }
        }
        found
    }

    fn rule(&self, rest: &mut &[u8]) -> Option<Option<Rule>> {
        let (&flags, tail) = rest.split_first()?;
        *rest = tail;
        if flags & OUTERMOST != 0 {
            return Some(None);
        }
        let mut location = || {
            let (base, offset) = (leb(rest)?, leb(rest)? as u32);
            Some(Location {
                base: match (base >> 1) as u8 {
                    0 => Base::Cfa,
                    number => Base::Register(number - 1),
                },
                offset: (offset >> 1) as i32 ^ -((offset & 1) as i32),
                deref: base & 1 != 0,
            })
        };
        Some(Some(Rule {
            cfa: location()?,
            ra: if flags & RA != 0 { location()? } else { self.ra },
            fp: if flags & FP != 0 { Some(location()?) } else { None },
            mangled_ra: flags & MANGLED != 0,
        }))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn leb(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..MOST_LEB {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
