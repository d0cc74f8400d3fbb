//! Rows for the functions of Go's executables. Go's linker writes no `.eh_frame`, and no
//! `.debug_frame` if debug information is disabled.
//!
//! `.gopclntab` is always present: the language's own stack traces need it. It gives the distance
//! of the stack pointer from its value at each function's entry, which is all that `.debug_frame`
//! would say. Only the format of Go 1.18 and later is read (`internal/abi`, `runtime/symtab.go`).

use backtrail_arch::Arch;
use backtrail_elf::{Image, SectionData};
use backtrail_sframe::write::FunctionRows;
use backtrail_sframe::{Location, Row, Rule};
use backtrail_wire::Bytes;

/// The magic numbers of Go 1.18 and Go 1.20.
const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;

/// Offsets in the header. Fields after the first two are words of a pointer's size.
const MIN_LC: usize = 6;
const PTR_SIZE: usize = 7;
const NFUNC: usize = 8;
const TEXT_START: usize = 24;
const NAMES_OFFSET: usize = 32;
const PCTAB_OFFSET: usize = 56;
const PCLN_OFFSET: usize = 64;

/// Offsets in `_func`.
const NAME: usize = 4;
const PCSP: usize = 16;
const FLAG_1_18: usize = 37;
const FLAG_1_20: usize = 41;
/// `abi.FuncFlagTopFrame`: the function has no caller.
const TOP_FRAME: u8 = 1;

/// Bytes of an entry in the table of functions: the offsets of its code and its `_func`.
const FUNCTAB_ENTRY: usize = 8;
/// The longest name that is read, in bytes.
const LONGEST_NAME: usize = 256;

/// If the header does not give the start of the text: it is a multiple of this from the start of
/// its section.
const TEXT_ALIGNMENT: u64 = 16;
const TEXT_REACH: u64 = 1 << 16;
/// Functions that are checked to find the start of the text.
const CHECKED: usize = 256;
/// The padding between functions: `int3`.
const PADDING: u8 = 0xcc;

/// The section; position-independent executables store it in the part that the loader relocates.
pub(crate) fn section<'a>(image: &Image<'a>) -> Option<SectionData<'a>> {
    let names = [".gopclntab", ".data.rel.ro.gopclntab"];
    names.iter().find_map(|name| image.section(name).ok().flatten())
}

/// The functions of `.gopclntab`; `None` if the section is missing or invalid.
pub(crate) fn functions(image: &Image<'_>) -> Option<Vec<Function>> {
    let section = section(image)?;
    let table = Table::new(Bytes::new(&section.data, image.endian()), image.arch())?;
    let text = table.text_in(image)?;
    Some(Table { text, ..table }.functions())
}

/// The address from which the table's offsets of code count; `None` if the section is missing or
/// invalid.
pub(crate) fn text(image: &Image<'_>) -> Option<u64> {
    let section = section(image)?;
    Table::new(Bytes::new(&section.data, image.endian()), image.arch())?.text_in(image)
}

/// Finds the start of the text, which Go 1.26 and later leave out of the header: the start from
/// which most functions in the table follow padding.
fn text_start(image: &Image<'_>, table: &Table<'_>) -> Option<u64> {
    let section = image.section_header(".text")?;
    let code = image.data_in(section.memory())?;
    let offsets: Vec<usize> = (1..table.count)
        .map_while(|index| table.start(index))
        .map(|start| start as usize)
        .take(CHECKED)
        .collect();
    let shows = |text: usize| {
        let padded = offsets.iter().filter(|&&offset| {
            let end = text.checked_add(offset);
            end.and_then(|end| code.get(end.checked_sub(1)?..end.checked_add(1)?))
                .is_some_and(|around| around[0] == PADDING && around[1] != PADDING)
        });
        padded.count()
    };
    let candidates = (0..TEXT_REACH).step_by(TEXT_ALIGNMENT as usize);
    let best = candidates.max_by_key(|&text| (shows(text as usize), std::cmp::Reverse(text)))?;
    // Few functions end without padding.
    let most = offsets.len() - offsets.len() / 8;
    (!offsets.is_empty() && shows(best as usize) >= most).then(|| section.address + best)
}

/// The functions of a section with these bytes. Functions may share the data of their rows, so a
/// small section could claim endless rows: at most as many rows are read as the section has bytes.
pub fn of_section(bytes: Bytes<'_>, arch: &'static Arch) -> Option<Vec<FunctionRows>> {
    let functions = Table::new(bytes, arch)?.functions();
    Some(functions.into_iter().map(Function::into_rows).collect())
}
/// A function, with its name and flags.
pub(crate) struct Function {
    pub(crate) start: u64,
    pub(crate) size: u32,
    /// Empty if it is the first function of a stack.
    pub(crate) distances: Vec<Distance>,
    /// `abi.FuncFlag`.
    pub(crate) flags: u8,
    pub(crate) name: String,
    pub(crate) arch: &'static Arch,
}

/// The stack pointer's distance, from `pc` on, below its value at the function's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Distance {
    /// Bytes from the function's start.
    pub(crate) pc: u32,
    pub(crate) bytes: i32,
}

impl Function {
    /// Whether the function has no caller.
    pub(crate) fn is_first(&self) -> bool {
        self.flags & TOP_FRAME != 0
    }

    /// Its rows, from the table alone.
    pub(crate) fn into_rows(self) -> FunctionRows {
        let outermost = || vec![Row { start: 0, rule: None }];
        let rows = match self.is_first() {
            true => outermost(),
            false => {
                let rows = self.distances.iter().map(|distance| Row {
                    start: distance.pc,
                    rule: rule(self.arch, distance.bytes),
                });
                rows.collect()
            }
        };
        FunctionRows::new(self.start, self.size, rows)
    }
}

struct Table<'a> {
    bytes: Bytes<'a>,
    arch: &'static Arch,
    /// The address from which offsets of code count.
    text: u64,
    /// The unit of the steps of the pc.
    quantum: u64,
    /// Offset of the names.
    names: usize,
    /// Offset of the tables of values by pc.
    pctab: usize,
    /// Offset of the table of functions and of the functions.
    pcln: usize,
    /// Number of functions.
    count: usize,
    /// Offset of the flags in a function.
    flag: usize,
}

impl<'a> Table<'a> {
    fn new(bytes: Bytes<'a>, arch: &'static Arch) -> Option<Table<'a>> {
        let flag = match bytes.u32(0).ok()? {
            GO_1_18 => FLAG_1_18,
            GO_1_20 => FLAG_1_20,
            _ => return None,
        };
        if bytes.u8(PTR_SIZE).ok()? != 8 {
            return None;
        }
        let word = |at| usize::try_from(bytes.u64(at).ok()?).ok();
        let pcln = word(PCLN_OFFSET)?;
        // The last entry only marks the end of the last function.
        let room = bytes.len().checked_sub(pcln)? / FUNCTAB_ENTRY;
        Some(Table {
            bytes,
            arch,
            text: bytes.u64(TEXT_START).ok()?,
            quantum: bytes.u8(MIN_LC).ok()?.into(),
            names: word(NAMES_OFFSET)?,
            pctab: word(PCTAB_OFFSET)?,
            pcln,
            count: word(NFUNC)?.min(room),
            flag,
        })
    }

    fn functions(&self) -> Vec<Function> {
        let mut budget = self.bytes.len();
        let functions = (0..self.count).filter_map(|index| {
            let function = self.function(index, budget)?;
            budget -= function.distances.len().max(1);
            Some(function)
        });
        functions.collect()
    }

    fn text_in(&self, image: &Image<'_>) -> Option<u64> {
        match self.text {
            0 => text_start(image, self),
            text => Some(text),
        }
    }

    /// The start of the function with this index, from the start of the text.
    fn start(&self, index: usize) -> Option<u32> {
        self.bytes.u32(self.pcln + index * FUNCTAB_ENTRY).ok()
    }

    /// The function with this index, if it has no more than `most` rows.
    fn function(&self, index: usize, most: usize) -> Option<Function> {
        let entry = self.pcln + index * FUNCTAB_ENTRY;
        let (start, end) = (self.start(index)?, self.start(index + 1)?);
        let size = end.checked_sub(start).filter(|&size| size != 0)?;
        let function = self.pcln.checked_add(self.bytes.u32(entry + 4).ok()? as usize)?;
        let flags = self.bytes.u8(function.checked_add(self.flag)?).ok()?;
        let pcsp = self.bytes.u32(function + PCSP).ok()?;
        let is_first = flags & TOP_FRAME != 0;
        let distances = match pcsp {
            0 => return None,
            pcsp => self.distances(pcsp as usize, size, most),
        };
        let distances = match distances {
            None if is_first => Vec::new(),
            distances => distances?,
        };
        let address = self.text.checked_add(start.into())?;
        address.checked_add(size.into())?;
        let has_rows = is_first || !distances.is_empty();
        (has_rows && most > 0 && distances.len() <= most).then(|| Function {
            start: address,
            size,
            distances,
            flags,
            name: self.name(function).unwrap_or_default(),
            arch: self.arch,
        })
    }

    /// The name of the function whose `_func` is at `function`.
    fn name(&self, function: usize) -> Option<String> {
        let at = self.names.checked_add(self.bytes.u32(function + NAME).ok()? as usize)?;
        let len = (0..LONGEST_NAME).find(|len| at.checked_add(*len).is_none_or(|end| self.bytes.u8(end) == Ok(0)))?;
        let bytes: Option<Vec<u8>> = (at..at + len).map(|at| self.bytes.u8(at).ok()).collect();
        String::from_utf8(bytes?).ok()
    }

    /// The distances of the stack pointer from the table at `pcsp`.
    fn distances(&self, pcsp: usize, size: u32, most: usize) -> Option<Vec<Distance>> {
        let mut cursor = self.bytes.cursor(self.pctab.checked_add(pcsp)?);
        let (mut rows, mut pc, mut distance) = (Vec::<Distance>::new(), 0u64, -1i64);
        while pc < u64::from(size) && rows.len() <= most {
            let change = cursor.uleb128().ok()?;
            if change == 0 && pc != 0 {
                break;
            }
            // The lowest bit is the sign; if it is set, the rest is the complement.
            distance = distance.checked_add((change >> 1) as i64 ^ -((change & 1) as i64))?;
            let bytes = i32::try_from(distance).ok()?;
            rule(self.arch, bytes)?;
            if rows.last().is_none_or(|last| last.bytes != bytes) {
                rows.push(Distance { pc: pc as u32, bytes });
            }
            let step = cursor.uleb128().ok()?.checked_mul(self.quantum)?;
            pc = pc.checked_add(step).filter(|_| step != 0)?;
        }
        Some(rows)
    }
}

/// The rule for the caller when the stack pointer is `distance` bytes below its value at the entry.
fn rule(arch: &Arch, distance: i32) -> Option<Rule> {
    let sp = arch.sp.0;
    if !arch.link_register {
        let cfa = distance.checked_add(arch.pointer_bytes.into())?;
        return Some(Rule::new(Location::register(sp, cfa), Location::saved(-8)));
    }
    // A function with a frame has saved the link register at the bottom of the frame.
    let ra = match distance {
        ..=0 => Location::register(arch.ra.0, 0),
        distance => Location::saved(distance.checked_neg()?),
    };
    Some(Rule::new(Location::register(sp, distance), ra))
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::{aarch64, x86_64};
    use backtrail_wire::Endian;

    /// A section of functions, each with its size, whether it is the first of a stack, and its
    /// rows.
    fn section(magic: u32, quantum: u8, functions: &[(u32, bool, &[u8])]) -> Vec<u8> {
        let (pctab, mut tables) = (72u64, vec![0]);
        let mut places = Vec::new();
        for (_, _, table) in functions {
            places.push(tables.len() as u32);
            tables.extend_from_slice(table);
        }
        let pcln = pctab + tables.len() as u64;
        let mut bytes = magic.to_le_bytes().to_vec();
        bytes.extend([0, 0, quantum, 8]);
        for word in [functions.len() as u64, 0, 0x40_0000, 0, 0, 0, pctab, pcln] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(tables);
        let (mut start, mut at) = (0, (functions.len() as u32 + 1) * 8);
        for (size, ..) in functions {
            bytes.extend([start, at].map(u32::to_le_bytes).concat());
            (start, at) = (start + size, at + 44);
        }
        bytes.extend([start, 0].map(u32::to_le_bytes).concat());
        for ((_, is_first, _), place) in functions.iter().zip(places) {
            let mut function = [0; 44];
            function[PCSP..PCSP + 4].copy_from_slice(&place.to_le_bytes());
            function[if magic == GO_1_20 { FLAG_1_20 } else { FLAG_1_18 }] = u8::from(*is_first);
            bytes.extend(function);
        }
        bytes
    }

    fn read(bytes: &[u8], arch: &'static Arch) -> Vec<FunctionRows> {
        of_section(Bytes::new(bytes, Endian::Little), arch).unwrap_or_default()
    }

    #[test]
    fn distances_of_the_stack_pointer_are_rows() {
        // 0 for 4 steps, 24 for 10, 0 to the end; and a function without a caller.
        let functions: [(u32, bool, &[u8]); 2] = [(24, false, &[2, 4, 48, 10, 47, 10, 0]), (16, true, &[2, 16, 0])];
        for magic in [GO_1_18, GO_1_20] {
            let bytes = section(magic, 1, &functions);
            let found = read(&bytes, &x86_64::ARCH);
            let shape = |function: &FunctionRows| {
                let rows = function.rows.iter();
                let rows = rows.map(|row| (row.start, row.rule.map(|rule| (rule.cfa.offset, rule.ra.offset))));
                (function.start, function.size, rows.collect::<Vec<_>>())
            };
            let saved = |cfa| Some((cfa, -8));
            assert_eq!(
                found.iter().map(shape).collect::<Vec<_>>(),
                [
                    (0x40_0000, 24, vec![(0, saved(8)), (4, saved(32)), (14, saved(8))]),
                    (0x40_0018, 16, vec![(0, None)]),
                ]
            );
        }
        let bytes = section(GO_1_20, 4, &[(64, false, &[2, 4, 64, 10, 0])]);
        let rows = &read(&bytes, &aarch64::ARCH)[0].rows;
        let ra = |row: &Row| row.rule.map(|rule| (rule.cfa.offset, rule.ra));
        assert_eq!(
            (rows[0].start, ra(&rows[0]), rows[1].start, ra(&rows[1])),
            (
                0,
                Some((0, Location::register(30, 0))),
                16,
                Some((32, Location::saved(-32)))
            )
        );
    }

    #[test]
    fn shared_rows_are_bounded() {
        let table: Vec<u8> = [2, 1].into_iter().chain([2, 1, 1, 1].repeat(30)).chain([0]).collect();
        let functions: [(u32, bool, &[u8]); 3] = [
            (60, false, &table),
            (24, false, &[2, 4, 48, 20, 0]),
            (9, true, &[2, 9, 0]),
        ];
        let original = section(GO_1_20, 1, &functions);
        assert_eq!(read(&original, &x86_64::ARCH).len(), 3);
        // Every function may claim the longest table.
        let many: Vec<(u32, bool, &[u8])> = vec![(60, false, &[]); 500];
        let mut shared = section(GO_1_20, 1, &many);
        let pctab = shared.len() as u64;
        shared.extend([0, 0].into_iter().chain(table));
        shared[PCTAB_OFFSET..PCTAB_OFFSET + 8].copy_from_slice(&pctab.to_le_bytes());
        for function in shared[..pctab as usize].rchunks_mut(44).take(500) {
            function[PCSP] = 2;
        }
        let rows: usize = read(&shared, &x86_64::ARCH)
            .iter()
            .map(|function| function.rows.len())
            .sum();
        assert!(
            (shared.len() - 60..=shared.len()).contains(&rows),
            "{rows} rows of {} bytes",
            shared.len()
        );
    }
}
