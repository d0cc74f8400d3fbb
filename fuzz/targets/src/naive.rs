//! A second reader: slow, allocating, checking everything, and written from the format's
//! specification alone, so that the library can be compared with code that it does not share.

use backtrail_sframe::{Base, Location, Row, Rule};

/// A function with its rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NaiveFunction {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) block: Option<u64>,
    pub(crate) rows: Vec<Row>,
}

/// A function of a section that may be damaged.
#[derive(Debug, Clone)]
pub(crate) struct AnyFunction {
    /// In bytes from the section's start.
    pub(crate) start: i64,
    pub(crate) size: u64,
    /// `None` if the FDE can't be read.
    pub(crate) body: Option<Body>,
}

#[derive(Debug, Clone)]
pub(crate) struct Body {
    pub(crate) block: Option<u64>,
    pub(crate) rows: Vec<AnyRow>,
    /// Whether all rows could be read.
    pub(crate) complete: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct AnyRow {
    pub(crate) start: u32,
    /// The outer `None` is a rule that can't be read, the inner one the outermost frame.
    pub(crate) rule: Option<Option<Rule>>,
}

#[derive(Clone, Copy)]
struct Input<'a> {
    bytes: &'a [u8],
    big: bool,
}

impl Input<'_> {
    fn unsigned(&self, at: usize, len: usize) -> Option<u64> {
        let mut value = 0;
        for index in 0..len {
            let byte = if self.big { index } else { len - 1 - index };
            value = value << 8 | u64::from(*self.bytes.get(at + byte)?);
        }
        Some(value)
    }

    fn signed(&self, at: usize, len: usize) -> Option<i64> {
        let unused = 64 - 8 * len as u32;
        Some(((self.unsigned(at, len)? << unused) as i64) >> unused)
    }
}

/// All functions of a section without damage, in the table's order.
pub(crate) fn read(bytes: &[u8], address: u64) -> Vec<NaiveFunction> {
    let functions = read_any(bytes).expect("a header");
    let whole = |function: AnyFunction| {
        let body = function.body.expect("an FDE");
        assert!(body.complete, "rows that can be read");
        let rows = body.rows.into_iter().map(|row| Row {
            start: row.start,
            rule: row.rule.expect("a rule"),
        });
        NaiveFunction {
            start: address.wrapping_add(function.start as u64),
            size: function.size,
            block: body.block,
            rows: rows.collect(),
        }
    };
    functions.into_iter().map(whole).collect()
}

/// All functions of any bytes; `None` if the header can't be read, or describes more than there is.
pub(crate) fn read_any(bytes: &[u8]) -> Option<Vec<AnyFunction>> {
    let big = match bytes.get(..2)? {
        [0xde, 0xe2] => true,
        [0xe2, 0xde] => false,
        _ => return None,
    };
    let input = Input { bytes, big };
    let (version, flags, abi) = (*bytes.get(2)?, *bytes.get(3)?, *bytes.get(4)?);
    if !(1..=3).contains(&version) || !(1..=4).contains(&abi) {
        return None;
    }
    let pcrel = version > 1 && flags & 4 != 0;
    let after_header = 28 + *bytes.get(7)? as usize;
    let count = input.unsigned(8, 4)? as usize;
    let table = after_header + input.unsigned(20, 4)? as usize;
    let fres = after_header + input.unsigned(24, 4)? as usize;
    let fres_end = fres + input.unsigned(16, 4)? as usize;
    let stride = [17, 20, 16][version as usize - 1];
    if table + stride * count > bytes.len() || fres_end > bytes.len() {
        return None;
    }
    let rows = Input {
        bytes: &bytes[..fres_end],
        big,
    };
    (0..count)
        .map(|index| table + stride * index)
        .map(|at| {
            let (start_len, size_at) = if version == 3 { (8, 8) } else { (4, 4) };
            let base = if pcrel { at as i64 } else { 0 };
            Some(AnyFunction {
                start: input.signed(at, start_len)?.wrapping_add(base),
                size: input.unsigned(at + size_at, 4)?,
                body: match version {
                    3 => wide(&rows, fres + input.unsigned(at + 12, 4)? as usize),
                    _ => narrow(&rows, &input, at, fres),
                },
            })
        })
        .collect()
}

fn narrow(rows_input: &Input, input: &Input, at: usize, fres: usize) -> Option<Body> {
    let info = input.bytes[at + 16];
    let rep_size = if input.bytes[2] == 1 { 16 } else { input.bytes[at + 17] };
    body(
        rows_input,
        fres + input.unsigned(at + 8, 4)? as usize,
        input.unsigned(at + 12, 4)?,
        [info, 0, rep_size],
    )
}

fn wide(input: &Input, attribute: usize) -> Option<Body> {
    let infos = input.bytes.get(attribute + 2..attribute + 5)?;
    let count = input.unsigned(attribute, 2)?;
    let body = body(input, attribute + 5, count, [infos[0], infos[1], infos[2]])?;
    if count == 0 && infos[1] & 31 == 0 {
        let outermost = AnyRow {
            start: 0,
            rule: Some(None),
        };
        return Some(Body {
            rows: vec![outermost],
            ..body
        });
    }
    Some(body)
}

fn body(input: &Input, mut at: usize, count: u64, [info, info2, rep_size]: [u8; 3]) -> Option<Body> {
    let start_len = *[1, 2, 4].get(usize::from(info & 15))?;
    let pcmask = info & 0x10 != 0;
    if info2 & 31 > 1 || pcmask && rep_size == 0 {
        return None;
    }
    let mut rows = Vec::new();
    let mut complete = true;
    for _ in 0..count {
        let Some((row, next)) = row(input, at, start_len, info2 & 31 == 1) else {
            complete = false;
            break;
        };
        rows.push(row);
        at = next;
    }
    Some(Body {
        block: pcmask.then_some(rep_size.into()),
        rows,
        complete,
    })
}

/// A row, and the offset of the next one.
fn row(input: &Input, at: usize, start_len: usize, flex: bool) -> Option<(AnyRow, usize)> {
    let start = input.unsigned(at, start_len)? as u32;
    let info = *input.bytes.get(at + start_len)?;
    let word_len = *[1, 2, 4].get(usize::from(info >> 5 & 3))?;
    let mut words = Vec::new();
    let mut next = at + start_len + 1;
    for _ in 0..info >> 1 & 15 {
        words.push((input.signed(next, word_len)?, input.unsigned(next, word_len)?));
        next += word_len;
    }
    let rule = match (words.is_empty(), flex) {
        (true, _) => Some(None),
        (_, true) => flex_rule(input, &words, info).map(Some),
        (_, false) => default_rule(input, &words, info).map(Some),
    };
    Some((AnyRow { start, rule }, next))
}

fn cfa_offset(input: &Input, word: i64) -> Option<i32> {
    i32::try_from(if input.bytes[4] == 4 { word * 8 + 160 } else { word }).ok()
}

fn ra_without_words(input: &Input) -> Location {
    match (input.bytes[6] as i8, input.bytes[4]) {
        (0, 3) => in_register(16),
        (0, 4) => in_register(14),
        (0, _) => in_register(30),
        (fixed, _) => at_cfa(fixed.into()),
    }
}

fn fp_without_words(input: &Input) -> Option<Location> {
    let fixed = input.bytes[5] as i8;
    (fixed != 0).then(|| at_cfa(fixed.into()))
}

fn at_cfa(offset: i64) -> Location {
    Location {
        base: Base::Cfa,
        offset: offset as i32,
        deref: true,
    }
}

fn in_register(number: u8) -> Location {
    Location {
        base: Base::Register(number),
        offset: 0,
        deref: false,
    }
}

fn default_rule(input: &Input, words: &[(i64, u64)], info: u8) -> Option<Rule> {
    let abi = input.bytes[4];
    let (sp_number, fp_number) = [(31, 29), (31, 29), (7, 6), (15, 11)][usize::from(abi) - 1];
    let slot = |word: i64| {
        if abi == 4 && word % 2 != 0 && input.bytes[2] < 3 {
            u8::try_from(word >> 1).ok().map(in_register)
        } else {
            Some(at_cfa(word))
        }
    };
    let mut rest = &words[1..];
    let mut ra = ra_without_words(input);
    if let (0, [(word, _), tail @ ..]) = (input.bytes[6], rest) {
        rest = tail;
        if (abi, *word) != (4, 0) {
            ra = slot(*word)?;
        }
    }
    let fp = match (input.bytes[5], rest) {
        (0, [(word, _), ..]) => Some(slot(*word)?),
        _ => fp_without_words(input),
    };
    Some(Rule {
        cfa: Location {
            base: Base::Register(if info & 1 == 1 { sp_number } else { fp_number }),
            offset: cfa_offset(input, words[0].0)?,
            deref: false,
        },
        ra,
        fp,
        mangled_ra: info & 0x80 != 0,
    })
}

fn flex_rule(input: &Input, words: &[(i64, u64)], info: u8) -> Option<Rule> {
    let mut places = Vec::new();
    let mut rest = words;
    while let ([control, tail @ ..], true) = (rest, places.len() < 3) {
        // Padding is not a location for the CFA, and has no offset.
        if control.1 == 0 && !places.is_empty() {
            places.push(None);
            rest = tail;
            continue;
        }
        let base = match control.1 & 1 {
            1 => Base::Register(u8::try_from(control.1 >> 3).ok()?),
            _ => Base::Cfa,
        };
        places.push(Some(Location {
            base,
            offset: tail.first()?.0 as i32,
            deref: control.1 & 2 == 2,
        }));
        rest = &tail[1..];
    }
    let mut cfa = places[0]?;
    if cfa.base == Base::Cfa {
        return None;
    }
    cfa.offset = cfa_offset(input, cfa.offset.into())?;
    let place = |index: usize| places.get(index).copied().flatten();
    Some(Rule {
        cfa,
        ra: place(1).unwrap_or(ra_without_words(input)),
        fp: place(2).or(fp_without_words(input)),
        mangled_ra: info & 0x80 != 0,
    })
}

/// The row at `pc`, found by checking every function and every row.
pub(crate) fn look_up(functions: &[NaiveFunction], pc: u64) -> Option<(usize, Row)> {
    let (index, function) = functions
        .iter()
        .enumerate()
        .filter(|(_, function)| pc.wrapping_sub(function.start) < function.size)
        .max_by_key(|(index, function)| (function.start, *index))?;
    let mut offset = pc - function.start;
    if let Some(block) = function.block {
        offset %= block;
    }
    let row = function.rows.iter().rfind(|row| u64::from(row.start) <= offset)?;
    Some((index, *row))
}

/// The result of a look-up in a section that may be damaged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Found {
    Nothing,
    /// The index of the function, and the row.
    Row(usize, Row),
    /// The function, or one of its rows up to the one after the result, can't be read.
    Damage,
}

/// The result at `target`, in bytes from the section's start, for an unsorted table: of the
/// functions that contain it, the one that starts last, and its last row before the first that
/// starts after it.
pub(crate) fn look_up_any(functions: &[AnyFunction], target: i64) -> Found {
    let distance = |function: &AnyFunction| i128::from(target) - i128::from(function.start);
    let containing = functions
        .iter()
        .enumerate()
        .filter(|(_, function)| (0..i128::from(function.size)).contains(&distance(function)));
    let Some((index, function)) = containing.max_by_key(|(index, function)| (function.start, *index)) else {
        return Found::Nothing;
    };
    let Some(body) = &function.body else {
        return Found::Damage;
    };
    let mut offset = distance(function) as u64;
    if let Some(block) = body.block {
        offset %= block;
    }
    let before = body.rows.iter().take_while(|row| u64::from(row.start) <= offset);
    let count = before.clone().count();
    if count == body.rows.len() && !body.complete {
        return Found::Damage;
    }
    match before.last() {
        None => Found::Nothing,
        Some(AnyRow { rule: None, .. }) => Found::Damage,
        Some(&AnyRow {
            start,
            rule: Some(rule),
        }) => Found::Row(index, Row { start, rule }),
    }
}
