//! Names, files and lines of Go's functions, including inlined calls, from `.gopclntab`, which
//! remains in stripped Go programs.
//!
//! The section is a header and tables at offsets from the header (`runtime/symtab.go`,
//! `internal/abi/symtab.go`): names and file names, each ending in a zero; a table of file numbers
//! for each compilation unit; tables of values by pc; and functions. A function (`_func`) has the
//! offsets of its name and of its tables: file, line, and the index in the tree of inlined calls.
//! That tree lies outside the section, at an offset from `go:func.*`, whose address only the
//! runtime's `moduledata` contains. `moduledata` is found by its first word, the address of the
//! section.
//!
//! Header: magic (4 bytes), 2 zeros, the pc's quantum, bytes of a pointer, then words: functions,
//! files, from Go 1.18 on the start of the text (0 from Go 1.26 on: `moduledata` has it), and the
//! offsets of names, units, files, tables by pc, functions.

use std::borrow::Cow;
use std::ops::Range;

use backtrail_elf::{Image, Kind};
use backtrail_wire::{Bytes, Endian};

use crate::gopclntab;

/// The magic numbers of Go 1.16, 1.18 and 1.20.
const GO_1_16: u32 = 0xffff_fffa;
const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;

/// Index of the table by pc that contains inlined calls (`abi.PCDATA_InlTreeIndex`).
const INLINE_INDEX: u32 = 2;
/// Index of the tree of inlined calls among the data of a function (`abi.FUNCDATA_InlTree`).
const INLINE_TREE: u8 = 3;
/// Words of `moduledata` that contain the start of the text, and that may contain `go:func.*`,
/// whose place differs between versions.
const TEXT: usize = 22;
const GO_FUNC: Range<usize> = 36..48;
/// Functions with inlined calls that are checked to find the address of `go:func.*`.
const CHECKED: usize = 64;
/// The deepest nesting of inlined calls that is read.
const MOST_INLINED: usize = 128;
/// The longest name, in bytes.
const LONGEST_NAME: usize = 8 << 10;

/// A call that is in progress at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoCall {
    /// The function, with its package.
    pub function: String,
    /// Start of the function in whose frame the call runs (svma).
    pub start: u64,
    /// Source file.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
}

/// The layout of a version.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes of an entry in the table of functions: the offsets of its code and its `_func`.
    entry: usize,
    /// In `_func`: the offset of its name. After it come the tables of files and lines, and the
    /// number of other tables.
    name: usize,
    /// In `_func`: the number of its data, the last byte before the offsets of its other tables by
    /// pc.
    data_count: usize,
    /// In a node of a tree of inlined calls: the name and the pc of the call, and the node's size.
    inlined: (usize, usize, usize),
}

const LAYOUT_1_16: Layout = Layout {
    entry: 16,
    name: 8,
    data_count: 43,
    inlined: (12, 16, 20),
};
const LAYOUT_1_18: Layout = Layout {
    entry: 8,
    name: 4,
    data_count: 39,
    inlined: (12, 16, 20),
};
const LAYOUT_1_20: Layout = Layout {
    entry: 8,
    name: 4,
    data_count: 43,
    inlined: (4, 8, 16),
};

/// The functions of a Go program.
#[derive(Debug)]
pub struct GoNames<'a> {
    section: Cow<'a, [u8]>,
    endian: Endian,
    layout: Layout,
    quantum: u64,
    /// The address from which offsets of code count.
    text: u64,
    functions: usize,
    names: usize,
    units: usize,
    files: usize,
    tables: usize,
    table: usize,
    /// Loaded bytes by address, which contain the inlined calls.
    memory: Vec<(u64, &'a [u8])>,
    /// The address of `go:func.*`; `None` if it is not known, and 0 if functions have addresses
    /// instead of offsets.
    go_func: Option<u64>,
}

/// A function in the table.
#[derive(Clone, Copy, Debug)]
struct Function {
    start: u64,
    size: u64,
    /// Offset of its `_func` in the section.
    at: usize,
}

impl<'a> GoNames<'a> {
    /// The names of `image`; `None` if it is not a Go program, or of an unknown version.
    pub fn of_image(image: &Image<'a>) -> Option<GoNames<'a>> {
        let section = gopclntab::section(image)?;
        let segments = image.segments().iter().filter(|segment| segment.is_load());
        let memory = segments.filter_map(|segment| Some((segment.vaddr, image.data_at(segment.vaddr)?)));
        let mut names = GoNames::parse(section.data, image.endian(), memory.collect())?;
        let module = names.module_data(section.address);
        if names.text == 0 && names.layout.entry == LAYOUT_1_18.entry {
            let by_module = module.and_then(|at| names.word_at(at, TEXT));
            names.text = by_module.or_else(|| names.text_by_entry(image))?;
        }
        if names.go_func.is_none() {
            names.go_func = module.and_then(|at| names.find_go_func(at));
        }
        Some(names)
    }

    /// Reads the header. Names come from `section` alone, inlined calls from `memory`.
    #[doc(hidden)]
    pub fn parse(section: Cow<'a, [u8]>, endian: Endian, memory: Vec<(u64, &'a [u8])>) -> Option<GoNames<'a>> {
        let bytes = Bytes::new(&section, endian);
        let (layout, words) = match bytes.u32(0).ok()? {
            GO_1_16 => (LAYOUT_1_16, 24),
            GO_1_18 => (LAYOUT_1_18, 32),
            GO_1_20 => (LAYOUT_1_20, 32),
            _ => return None,
        };
        if bytes.u8(7).ok()? != 8 {
            return None;
        }
        let word = |at| usize::try_from(bytes.u64(at).ok()?).ok();
        let table = word(words + 32)?;
        let room = bytes.len().checked_sub(table)? / layout.entry;
        Some(GoNames {
            endian,
            layout,
            quantum: bytes.u8(6).ok()?.into(),
            text: if words == 24 { 0 } else { bytes.u64(24).ok()? },
            // The last entry only marks the end of the last function.
            functions: word(8)?.min(room.saturating_sub(1)),
            names: word(words)?,
            units: word(words + 8)?,
            files: word(words + 16)?,
            tables: word(words + 24)?,
            table,
            memory,
            go_func: (words == 24).then_some(0),
            section,
        })
    }

    /// The calls in progress at `svma`, the innermost first; empty outside of Go's code.
    pub fn lookup(&self, svma: u64) -> Vec<GoCall> {
        self.calls(svma).unwrap_or_default()
    }

    fn calls(&self, svma: u64) -> Option<Vec<GoCall>> {
        let function = self.function_at(svma)?;
        let mut calls = Vec::new();
        let mut pc = svma - function.start;
        if let Some(tree) = self.inline_tree(function) {
            while calls.len() < MOST_INLINED
                && let Some(node) = self.inline_node(function, tree, pc)
            {
                calls.push(self.call(function, node.name, pc)?);
                pc = node.parent_pc;
            }
        }
        let name = self.u32(function.at + self.layout.name)?;
        calls.push(self.call(function, name, pc)?);
        Some(calls)
    }

    /// The call in progress at an offset of the code, in a function with this name.
    fn call(&self, function: Function, name: u32, pc: u64) -> Option<GoCall> {
        let line = self.value(self.field(function, 20)?, pc);
        Some(GoCall {
            function: self
                .text_at(self.names.checked_add(name as usize)?)
                .filter(|name| !name.is_empty())?,
            start: function.start,
            file: self.file(function, pc),
            line: line.and_then(|line| u32::try_from(line).ok()).filter(|&line| line > 0),
        })
    }

    fn file(&self, function: Function, pc: u64) -> Option<String> {
        let number = self.value(self.field(function, 16)?, pc)?;
        let unit = self.field(function, 28)?;
        let index = (unit as usize).checked_add(usize::try_from(number).ok()?)?;
        let offset = self.u32(self.units.checked_add(index.checked_mul(4)?)?)?;
        let file = self.text_at(self.files.checked_add(offset as usize)?)?;
        (offset != u32::MAX && !file.is_empty()).then_some(file)
    }

    /// A field of `_func`, by its distance from the field with the name.
    fn field(&self, function: Function, from_name: usize) -> Option<u32> {
        self.u32(function.at + self.layout.name + from_name)
    }

    fn function_at(&self, svma: u64) -> Option<Function> {
        let (mut low, mut high) = (0, self.functions);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle)? <= svma {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let function = self.function(low.checked_sub(1)?)?;
        (svma.checked_sub(function.start)? < function.size).then_some(function)
    }

    fn function(&self, index: usize) -> Option<Function> {
        let start = self.start(index)?;
        let entry = self.table + index * self.layout.entry;
        let offset = match self.layout.entry {
            8 => self.u32(entry + 4)?.into(),
            _ => self.bytes().u64(entry + 8).ok()?,
        };
        let at = self.table.checked_add(usize::try_from(offset).ok()?)?;
        // Keeps the offsets of fields from overflowing.
        (at < self.section.len()).then_some(())?;
        Some(Function {
            start,
            size: self.start(index + 1)?.checked_sub(start)?,
            at,
        })
    }

    /// The start of the function with this index; the entry after the last function has the end of
    /// the text.
    fn start(&self, index: usize) -> Option<u64> {
        let entry = self.table + index * self.layout.entry;
        match self.layout.entry {
            8 => self.text.checked_add(self.u32(entry)?.into()),
            _ => self.bytes().u64(entry).ok(),
        }
    }

    /// The value in a table by pc at an offset of the code.
    fn value(&self, table: u32, pc: u64) -> Option<i32> {
        if table == 0 {
            return None;
        }
        let mut cursor = self.bytes().cursor(self.tables.checked_add(table as usize)?);
        let (mut at, mut value) = (0u64, -1i32);
        loop {
            let change = cursor.uleb128().ok()?;
            if change == 0 && at != 0 {
                return None;
            }
            let change = u32::try_from(change).ok()?;
            // The lowest bit is the sign; if it is set, the rest is the complement.
            value = value.wrapping_add((change >> 1) as i32 ^ -((change & 1) as i32));
            let step = cursor.uleb128().ok()?.checked_mul(self.quantum)?;
            at = at.checked_add(step).filter(|_| step != 0)?;
            if pc < at {
                return Some(value);
            }
        }
    }

    /// The function's tree of inlined calls.
    fn inline_tree(&self, function: Function) -> Option<&'a [u8]> {
        let address = self.inline_offset(function)?.checked_add(self.go_func?)?;
        self.memory_at(address)
    }

    fn inline_offset(&self, function: Function) -> Option<u64> {
        let count = function.at + self.layout.data_count;
        if self.bytes().u8(count).ok()? <= INLINE_TREE || self.field(function, 24)? <= INLINE_INDEX {
            return None;
        }
        let data = count + 1 + (self.field(function, 24)? as usize).checked_mul(4)?;
        match self.layout.entry {
            8 => {
                let offset = self.u32(data.checked_add(4 * usize::from(INLINE_TREE))?)?;
                (offset != u32::MAX).then_some(offset.into())
            }
            _ => {
                let data = data.checked_next_multiple_of(8)?;
                let address = self.bytes().u64(data.checked_add(8 * usize::from(INLINE_TREE))?).ok()?;
                (address != 0).then_some(address)
            }
        }
    }

    /// The innermost inlined call at an offset of the code.
    fn inline_node(&self, function: Function, tree: &[u8], pc: u64) -> Option<Inlined> {
        let table = self.u32(function.at + self.layout.data_count + 1 + 4 * INLINE_INDEX as usize)?;
        let index = usize::try_from(self.value(table, pc)?).ok()?;
        self.node(function, tree, index)
    }

    fn node(&self, function: Function, tree: &[u8], index: usize) -> Option<Inlined> {
        let (name, parent_pc, size) = self.layout.inlined;
        let node = Bytes::new(tree, self.endian);
        let at = index.checked_mul(size)?;
        let found = Inlined {
            name: node.u32(at.checked_add(name)?).ok()?,
            parent_pc: node.u32(at.checked_add(parent_pc)?).ok()?.into(),
        };
        // A name begins after the terminator of the one before it.
        let before = self.names.checked_add((found.name as usize).checked_sub(1)?)?;
        (found.parent_pc < function.size && self.bytes().u8(before) == Ok(0)).then_some(found)
    }

    /// The address of the runtime's `moduledata`, whose first two words are the addresses of the
    /// section and of its names.
    fn module_data(&self, section: u64) -> Option<u64> {
        let names = section.checked_add(self.names as u64)?;
        let wanted = |word: u64| match self.endian {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        };
        let wanted: Vec<u8> = [section, names].map(wanted).concat();
        self.memory.iter().find_map(|(address, bytes)| {
            let words = bytes.chunks_exact(8).enumerate();
            let mut starts = words
                .filter(|(_, word)| *word == &wanted[..8])
                .map(|(index, _)| index * 8);
            let at = starts.find(|&at| bytes.get(at..at + 16) == Some(&wanted[..]))?;
            Some(address + at as u64)
        })
    }

    /// A word of `moduledata`, if it is not 0.
    fn word_at(&self, module: u64, index: usize) -> Option<u64> {
        let bytes = self.memory_at(module.checked_add(8 * index as u64)?)?;
        Bytes::new(bytes, self.endian).u64(0).ok().filter(|&word| word != 0)
    }

    /// The start of the text of a program whose entry point is Go's own.
    fn text_by_entry(&self, image: &Image<'_>) -> Option<u64> {
        if image.kind() == Kind::Relocatable {
            return None;
        }
        let functions = (0..self.functions).filter_map(|index| self.function(index));
        let mut entries = functions.filter(|function| {
            let name = self.u32(function.at + self.layout.name);
            let name = name.and_then(|name| self.text_at(self.names.checked_add(name as usize)?));
            name.is_some_and(|name| name.starts_with("_rt0_") && !name.ends_with("_lib"))
        });
        image.entry().checked_sub(entries.next()?.start)
    }

    /// The word of `moduledata` that makes all checked trees of inlined calls valid.
    fn find_go_func(&self, module: u64) -> Option<u64> {
        let functions = (0..self.functions).filter_map(|index| self.function(index));
        let with_tree = functions.filter_map(|function| Some((function, self.inline_offset(function)?)));
        let checked: Vec<(Function, u64)> = with_tree.take(CHECKED).collect();
        let candidates = GO_FUNC.filter_map(|index| self.word_at(module, index));
        let mut sensible = candidates.filter(|candidate| {
            checked.iter().all(|&(function, offset)| {
                let tree = candidate
                    .checked_add(offset)
                    .and_then(|address| self.memory_at(address));
                tree.is_some_and(|tree| self.node(function, tree, 0).is_some())
            })
        });
        sensible.next().filter(|_| !checked.is_empty())
    }

    fn memory_at(&self, address: u64) -> Option<&'a [u8]> {
        self.memory.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(offset..).filter(|rest| !rest.is_empty())
        })
    }

    fn text_at(&self, at: usize) -> Option<String> {
        let tail = self.section.get(at..)?;
        let tail = &tail[..tail.len().min(LONGEST_NAME)];
        let len = tail.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&tail[..len]).into_owned())
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.bytes().u32(at).ok()
    }

    fn bytes(&self) -> Bytes<'_> {
        Bytes::new(&self.section, self.endian)
    }
}

/// A node of a tree of inlined calls.
#[derive(Clone, Copy, Debug)]
struct Inlined {
    /// Offset of the function's name.
    name: u32,
    /// Offset in the code of an instruction at the call site in the caller.
    parent_pc: u64,
}

#[cfg(test)]
mod tests;
