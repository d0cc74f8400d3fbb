//! A second reader: slow, allocating, trusting its input, written from the format's description alone, so that the
//! library can be compared with something that shares no code with it.

use backtrail_sframe::{Base, Location, Row, Rule};

/// A function with its rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NaiveFunction {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) block: Option<u64>,
    pub(crate) rows: Vec<Row>,
}

struct Input<'a> {
    bytes: &'a [u8],
    big: bool,
}

impl Input<'_> {
    fn unsigned(&self, at: usize, len: usize) -> u64 {
        let mut value = 0;
        for index in 0..len {
            let byte = if self.big { index } else { len - 1 - index };
            value = value << 8 | u64::from(self.bytes[at + byte]);
        }
        value
    }

    fn signed(&self, at: usize, len: usize) -> i64 {
        let unused = 64 - 8 * len as u32;
        ((self.unsigned(at, len) << unused) as i64) >> unused
    }
}

/// All functions, in the table's order.
pub(crate) fn read(bytes: &[u8], address: u64) -> Vec<NaiveFunction> {
    let input = Input {
        bytes,
        big: bytes[0] == 0xde,
    };
    let version = bytes[2];
    let pcrel = version > 1 && bytes[3] & 4 != 0;
    let after_header = 28 + bytes[7] as usize;
    let count = input.unsigned(8, 4) as usize;
    let table = after_header + input.unsigned(20, 4) as usize;
    let fres = after_header + input.unsigned(24, 4) as usize;
    let mut functions = Vec::new();
    for index in 0..count {
        let functions_entry = match version {
            1 => narrow(&input, table + 17 * index, fres, None),
            2 => narrow(
                &input,
                table + 20 * index,
                fres,
                Some(u64::from(bytes[table + 20 * index + 17])),
            ),
            _ => wide(&input, table + 16 * index, fres),
        };
        let mut function = functions_entry;
        let stride = [17, 20, 16][version as usize - 1];
        function.start = function.start.wrapping_add(address);
        if pcrel {
            function.start = function.start.wrapping_add((table + stride * index) as u64);
        }
        functions.push(function);
    }
    functions
}

fn narrow(input: &Input, at: usize, fres: usize, rep_size: Option<u64>) -> NaiveFunction {
    let info = input.bytes[at + 16];
    NaiveFunction {
        start: input.signed(at, 4) as u64,
        size: input.unsigned(at + 4, 4),
        block: (info & 0x10 != 0).then(|| rep_size.unwrap_or(16)),
        rows: rows(
            input,
            fres + input.unsigned(at + 8, 4) as usize,
            input.unsigned(at + 12, 4),
            info,
            false,
        ),
    }
}

fn wide(input: &Input, at: usize, fres: usize) -> NaiveFunction {
    let attribute = fres + input.unsigned(at + 12, 4) as usize;
    let count = input.unsigned(attribute, 2);
    let info = input.bytes[attribute + 2];
    let flex = input.bytes[attribute + 3] & 31 == 1;
    let mut rows = rows(input, attribute + 5, count, info, flex);
    if count == 0 && !flex {
        rows.push(Row { start: 0, rule: None });
    }
    NaiveFunction {
        start: input.unsigned(at, 8),
        size: input.unsigned(at + 8, 4),
        block: (info & 0x10 != 0).then(|| u64::from(input.bytes[attribute + 4])),
        rows,
    }
}

fn rows(input: &Input, mut at: usize, count: u64, info: u8, flex: bool) -> Vec<Row> {
    let start_len = [1, 2, 4][usize::from(info & 15)];
    let mut rows = Vec::new();
    for _ in 0..count {
        let start = input.unsigned(at, start_len) as u32;
        at += start_len;
        let info = input.bytes[at];
        at += 1;
        let word_len = [1, 2, 4][usize::from(info >> 5 & 3)];
        let words: Vec<(i64, u64)> = (0..usize::from(info >> 1 & 15))
            .map(|index| at + index * word_len)
            .map(|at| (input.signed(at, word_len), input.unsigned(at, word_len)))
            .collect();
        at += words.len() * word_len;
        let rule = match (words.is_empty(), flex) {
            (true, _) => None,
            (_, true) => Some(flex_rule(input, &words, info)),
            (_, false) => Some(default_rule(input, &words, info)),
        };
        rows.push(Row { start, rule });
    }
    rows
}

fn cfa_offset(input: &Input, word: i64) -> i32 {
    if input.bytes[4] == 4 {
        (word * 8 + 160) as i32
    } else {
        word as i32
    }
}

fn ra_without_words(input: &Input) -> Location {
    match input.bytes[4] {
        3 => at_cfa(-8),
        4 => in_register(14),
        _ => in_register(30),
    }
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

fn default_rule(input: &Input, words: &[(i64, u64)], info: u8) -> Rule {
    let abi = input.bytes[4];
    let (sp, fp) = [(31, 29), (31, 29), (7, 6), (15, 11)][usize::from(abi) - 1];
    let slot = |word: i64| {
        if abi == 4 && word % 2 != 0 && input.bytes[2] < 3 {
            in_register((word / 2) as u8)
        } else {
            at_cfa(word)
        }
    };
    let (ra, fp_word) = match (abi, words) {
        (3, [_, fp, ..]) => (ra_without_words(input), Some(fp)),
        (4, [_, (0, _), rest @ ..]) => (ra_without_words(input), rest.first()),
        (1 | 2 | 4, [_, ra, rest @ ..]) => (slot(ra.0), rest.first()),
        _ => (ra_without_words(input), None),
    };
    Rule {
        cfa: Location {
            base: Base::Register(if info & 1 == 1 { sp } else { fp }),
            offset: cfa_offset(input, words[0].0),
            deref: false,
        },
        ra,
        fp: fp_word.map(|word| slot(word.0)),
        mangled_ra: info & 0x80 != 0,
    }
}

fn flex_rule(input: &Input, words: &[(i64, u64)], info: u8) -> Rule {
    let mut places = Vec::new();
    let mut rest = words;
    while let [control, tail @ ..] = rest {
        if control.1 == 0 {
            places.push(None);
            rest = tail;
            continue;
        }
        places.push(Some(Location {
            base: if control.1 & 1 == 1 {
                Base::Register((control.1 >> 3) as u8)
            } else {
                Base::Cfa
            },
            offset: tail[0].0 as i32,
            deref: control.1 & 2 == 2,
        }));
        rest = &tail[1..];
    }
    let mut cfa = places[0].unwrap();
    cfa.offset = cfa_offset(input, cfa.offset.into());
    Rule {
        cfa,
        ra: places.get(1).copied().flatten().unwrap_or(ra_without_words(input)),
        fp: places.get(2).copied().flatten(),
        mangled_ra: info & 0x80 != 0,
    }
}

/// The row at `pc`, by looking at every function and every row.
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
