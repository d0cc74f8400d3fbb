//! Names and lines of code that a program made while it ran, from its `jit-PID.dump`.
//!
//! Unlike a perf map the file has times, so that an address gets the name of the code that was
//! there when it was sampled (Linux, `tools/perf/Documentation/jitdump-specification.txt`). All
//! numbers are in the byte order of the magic number.
//!
//! Header: magic `JiTD` (0x4A695444), version, size of the header, machine, padding, process (4
//! bytes each); time, flags (8 bytes each). Flag 1: times are those of a counter of the CPU, not of
//! the monotonic clock.
//!
//! A record begins with its kind, its size with that header (4 bytes each) and its time (8 bytes):
//!
//! | kind | content |
//! |---|---|
//! | 0, load | process, thread (4 bytes each), vma, address, size, index (8 bytes each), name with a zero, code |
//! | 1, move | process, thread (4), vma, old address, new address, size, index (8 each) |
//! | 2, debug info | address, number of entries (8 each); entries of address (8), line, discriminator (4 each), file with a zero |
//! | 3, close | nothing: the end |
//! | 4, unwinding info | not read |
//!
//! Debug info belongs to the next load at its address. For code of its baseline compiler, V8 (node
//! 20) writes other bytes than it declares; so lines are used only if all of them are in their
//! function. A file `\xff` is that of the previous entry. V8 counts its lines' addresses from an
//! ELF header of 64 bytes that perf puts before the code when it makes files of it.

use std::sync::Arc;

use backtrail_cfi::announced::Function;
use backtrail_wire::{Bytes, Cursor, Endian};
use rustc_hash::FxHashMap;

use crate::ranges::RangeMap;

const MAGIC: u32 = 0x4a69_5444;
/// Times are those of a counter of the CPU.
const ARCH_TIMESTAMP: u64 = 1;

const LOAD: u32 = 0;
const MOVE: u32 = 1;
const DEBUG_INFO: u32 = 2;
const CLOSE: u32 = 3;

/// Bytes of a record's header.
const RECORD: u32 = 16;
/// Bytes that V8 adds to the addresses of lines.
const ELF_HEADER: u64 = 64;
/// The number of functions from which on it is no coincidence that the lines of all start so late.
const ENOUGH: usize = 4;

/// The contents of a dump, in time order.
#[derive(Clone, Debug, Default)]
pub struct JitDump {
    process: u32,
    /// Whether times are those of the monotonic clock, which recordings use.
    has_times: bool,
    functions: Vec<CodeEnd>,
    changes: Vec<Change>,
    names: String,
    lines: Vec<Line>,
    /// Files of lines.
    files: Vec<String>,
    /// The calls at which functions were inlined, by their numbers in `functions`.
    calls: FxHashMap<u32, InlinedAt>,
}

/// A call at which functions were inlined.
#[derive(Clone, Debug)]
struct InlinedAt {
    /// Bytes from the start of the function that they were inlined into.
    offset: u64,
    /// Their names, the innermost first.
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct CodeEnd {
    /// The ends of its name in `names` and of its lines in `lines`; both begin at the ends of the
    /// previous function's.
    name_end: usize,
    lines_end: usize,
}

/// From a time on, an address has a function, or none any more.
#[derive(Clone, Copy, Debug)]
struct Change {
    time: u64,
    start: u64,
    end: u64,
    function: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    /// Bytes from the function's start.
    offset: u64,
    line: u32,
    file: u32,
}

/// A function of a dump at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitFunction<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Source file and line, from 1.
    pub(crate) line: Option<(&'a str, u32)>,
    /// Bytes from its start.
    pub(crate) offset: u64,
    /// The functions inlined there, the innermost first.
    pub(crate) inlined: &'a [String],
}

impl JitDump {
    /// Reads a dump up to its end or to the first invalid record: programs write it while they run.
    /// `None` if its beginning is not that of a dump.
    pub fn parse(data: &[u8]) -> Option<JitDump> {
        let endian = [Endian::Little, Endian::Big]
            .into_iter()
            .find(|&endian| Bytes::new(data, endian).u32(0) == Ok(MAGIC))?;
        let bytes = Bytes::new(data, endian);
        let header = bytes.u32(8).ok()?;
        let mut reading = Reading {
            dump: JitDump {
                process: bytes.u32(20).ok()?,
                has_times: bytes.u64(32).ok()? & ARCH_TIMESTAMP == 0,
                ..JitDump::default()
            },
            ..Reading::default()
        };
        let mut at = header as usize;
        while let Some(next) = reading.record(bytes, at) {
            at = next;
        }
        let mut dump = reading.dump;
        dump.changes.sort_by_key(|change| change.time);
        dump.settle_lines();
        Some(dump)
    }

    /// Adds a function that a program has announced to debuggers instead, not before any other.
    fn announce(&mut self, time: u64, function: &Function) {
        let number = self.push(&function.name);
        if !function.inlined.is_empty() {
            let offset = function.addresses.start.wrapping_sub(function.start);
            let names = function.inlined.clone();
            self.calls.insert(number, InlinedAt { offset, names });
        }
        self.changes.push(Change {
            time,
            start: function.addresses.start,
            end: function.addresses.end,
            function: Some(number),
        });
    }

    /// Adds a function, and returns its number.
    fn push(&mut self, name: &str) -> u32 {
        self.names.push_str(name);
        self.functions.push(CodeEnd {
            name_end: self.names.len(),
            lines_end: self.lines.len(),
        });
        self.functions.len() as u32 - 1
    }

    /// The process that wrote it, according to its header.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// The number of its functions.
    pub fn count(&self) -> usize {
        self.functions.len()
    }

    fn function(&self, number: u32, offset: u64) -> JitFunction<'_> {
        let call = self.calls.get(&number);
        let number = number as usize;
        let before = number.checked_sub(1).map(|before| self.functions[before]);
        let (name, lines) = before.map_or((0, 0), |before| (before.name_end, before.lines_end));
        let function = self.functions[number];
        let lines = &self.lines[lines..function.lines_end];
        let after = lines.partition_point(|line| line.offset <= offset);
        let line = after.checked_sub(1).map(|index| lines[index]);
        let line = line.filter(|line| line.line > 0);
        JitFunction {
            name: &self.names[name..function.name_end],
            line: line.map(|line| (self.files[line.file as usize].as_str(), line.line)),
            offset: offset + call.map_or(0, |call| call.offset),
            inlined: call.map(|call| call.names.as_slice()).unwrap_or_default(),
        }
    }

    /// Sorts lines, and removes V8's header.
    fn settle_lines(&mut self) {
        let mut start = 0;
        let (mut with_lines, mut first) = (0, u64::MAX);
        for function in &self.functions {
            let lines = &mut self.lines[start..function.lines_end];
            lines.sort_by_key(|line| line.offset);
            if let Some(line) = lines.first() {
                with_lines += 1;
                first = first.min(line.offset);
            }
            start = function.lines_end;
        }
        if with_lines >= ENOUGH && first >= ELF_HEADER {
            for line in &mut self.lines {
                line.offset -= ELF_HEADER;
            }
        }
    }
}

/// A dump that is being read.
#[derive(Debug, Default)]
struct Reading {
    dump: JitDump,
    /// Functions by the index that the program gave them.
    by_index: FxHashMap<u64, u32>,
    /// Numbers of files by name.
    files: FxHashMap<String, u32>,
    /// Debug info that waits for its function: the address that it is for, and the range of its
    /// entries.
    debug: Option<(u64, usize, usize)>,
}

impl Reading {
    /// Reads the record at an offset, and returns the offset of the next one; `None` at the end.
    fn record(&mut self, bytes: Bytes<'_>, at: usize) -> Option<usize> {
        let mut cursor = bytes.cursor(at);
        let (kind, size, time) = (cursor.u32().ok()?, cursor.u32().ok()?, cursor.u64().ok()?);
        let content = cursor.slice(size.checked_sub(RECORD)? as usize).ok()?;
        let content = Bytes::new(content, bytes.endian());
        match kind {
            LOAD => self.load(content, time),
            MOVE => self.moved(content, time),
            DEBUG_INFO => {
                let address = content.u64(0).ok();
                let begin = at.checked_add(RECORD as usize)?;
                self.debug = address.map(|address| (address, begin, content.len()));
                // The entries are read again when their function comes.
                return at.checked_add(size as usize);
            }
            CLOSE => return None,
            _ => None,
        };
        if kind == LOAD {
            self.take_lines(bytes, content);
        }
        at.checked_add(size as usize)
    }

    fn load(&mut self, content: Bytes<'_>, time: u64) -> Option<()> {
        let (start, size, index) = (content.u64(16).ok()?, content.u64(24).ok()?, content.u64(32).ok()?);
        let name = content.cursor(40).c_str().ok()?;
        let number = self.dump.push(&String::from_utf8_lossy(name));
        self.by_index.insert(index, number);
        self.change(time, start, size, Some(number));
        Some(())
    }

    fn moved(&mut self, content: Bytes<'_>, time: u64) -> Option<()> {
        let (old, new) = (content.u64(16).ok()?, content.u64(24).ok()?);
        let (size, index) = (content.u64(32).ok()?, content.u64(40).ok()?);
        let number = *self.by_index.get(&index)?;
        self.change(time, old, size, None);
        self.change(time, new, size, Some(number));
        Some(())
    }

    fn change(&mut self, time: u64, start: u64, size: u64, function: Option<u32>) {
        let (time, end) = (if self.dump.has_times { time } else { 0 }, start.saturating_add(size));
        self.dump.changes.push(Change {
            time,
            start,
            end,
            function,
        });
    }

    /// Gives the last loaded function the lines that came before it, if they make sense.
    fn take_lines(&mut self, bytes: Bytes<'_>, loaded: Bytes<'_>) -> Option<()> {
        let (start, size) = (loaded.u64(16).ok()?, loaded.u64(24).ok()?);
        let (_, begin, len) = self.debug.take().filter(|(address, ..)| *address == start)?;
        let entries = Bytes::new(bytes.slice(begin, len).ok()?, bytes.endian());
        let mut cursor = entries.cursor(8);
        let count = cursor.u64().ok()?;
        let (before, mut file) = (self.dump.lines.len(), None);
        for _ in 0..count {
            let line = self.line(&mut cursor, start, &mut file);
            match line.filter(|line| line.offset <= size.saturating_add(ELF_HEADER)) {
                Some(line) => self.dump.lines.push(line),
                None => {
                    self.dump.lines.truncate(before);
                    break;
                }
            }
        }
        let end = self.dump.lines.len();
        self.dump.functions.last_mut()?.lines_end = end;
        Some(())
    }

    /// An entry of debug info; `None` if the record ends, or if the entry lies before the function.
    fn line(&mut self, cursor: &mut Cursor<'_>, start: u64, file: &mut Option<u32>) -> Option<Line> {
        let (address, line, _) = (cursor.u64().ok()?, cursor.u32().ok()?, cursor.u32().ok()?);
        let name = cursor.c_str().ok()?;
        if name != b"\xff" {
            *file = Some(self.file(&String::from_utf8_lossy(name))?);
        }
        Some(Line {
            offset: address.checked_sub(start)?,
            line,
            file: (*file)?,
        })
    }

    fn file(&mut self, name: &str) -> Option<u32> {
        if let Some(&known) = self.files.get(name) {
            return Some(known);
        }
        let number = u32::try_from(self.dump.files.len()).ok()?;
        self.dump.files.push(name.to_owned());
        self.files.insert(name.to_owned(), number);
        Some(number)
    }
}

/// The code at one moment of a dump.
#[derive(Clone, Debug)]
pub struct JitCode {
    dump: Arc<JitDump>,
    /// The number of changes so far.
    happened: usize,
    now: RangeMap<u32>,
}

impl JitCode {
    /// The state before the first change.
    pub fn new(dump: Arc<JitDump>) -> JitCode {
        JitCode {
            dump,
            happened: 0,
            now: RangeMap::default(),
        }
    }

    /// Adds a function that a program has announced to debuggers, or a call in the last such
    /// function there, not before any other.
    pub(crate) fn announce(&mut self, time: u64, function: &Function) {
        Arc::make_mut(&mut self.dump).announce(time, function);
    }

    /// Forgets what is there, until the next change.
    pub(crate) fn clear(&mut self) {
        self.now = RangeMap::default();
    }

    /// Advances to a time. Returns whether anything changes.
    pub fn advance(&mut self, time: u64) -> bool {
        let before = self.happened;
        while let Some(change) = self
            .dump
            .changes
            .get(self.happened)
            .filter(|change| change.time <= time)
        {
            self.now.insert(change.start, change.end, self.happened as u32);
            self.happened += 1;
        }
        self.happened != before
    }

    /// The number of the change that put a function at this address, and the distance from the
    /// function's start.
    pub fn find(&self, address: u64) -> Option<(u32, u64)> {
        let (_, change) = self.now.get(address)?;
        let found = self.dump.changes[change as usize];
        found.function.map(|_| (change, address - found.start))
    }

    /// The function of a change that was [found](JitCode::find).
    pub fn function(&self, change: u32, offset: u64) -> Option<JitFunction<'_>> {
        let number = self.dump.changes.get(change as usize)?.function?;
        Some(self.dump.function(number, offset))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A made-up dump, record by record.
    pub(crate) struct MadeUp(pub(crate) Vec<u8>);

    impl MadeUp {
        pub(crate) fn new(process: u32, flags: u64) -> MadeUp {
            let words = [MAGIC, 1, 40, 62, 0, process].map(u32::to_le_bytes).concat();
            MadeUp([words, [77u64, flags].map(u64::to_le_bytes).concat()].concat())
        }

        fn record(mut self, kind: u32, time: u64, content: &[u8]) -> MadeUp {
            let size = RECORD + content.len() as u32;
            self.0.extend([kind, size].map(u32::to_le_bytes).concat());
            self.0.extend(time.to_le_bytes());
            self.0.extend(content);
            self
        }

        pub(crate) fn load(self, time: u64, start: u64, size: u64, index: u64, name: &str) -> MadeUp {
            let mut content = [7u32, 8].map(u32::to_le_bytes).concat();
            content.extend([start, start, size, index].map(u64::to_le_bytes).concat());
            content.extend(name.as_bytes());
            content.push(0);
            content.resize(content.len() + size as usize, 0x90);
            self.record(LOAD, time, &content)
        }

        fn moved(self, time: u64, old: u64, new: u64, size: u64, index: u64) -> MadeUp {
            let mut content = [7u32, 8].map(u32::to_le_bytes).concat();
            content.extend([new, old, new, size, index].map(u64::to_le_bytes).concat());
            self.record(MOVE, time, &content)
        }

        fn debug(self, start: u64, lines: &[(u64, u32, &[u8])]) -> MadeUp {
            let mut content = [start, lines.len() as u64].map(u64::to_le_bytes).concat();
            for (address, line, file) in lines {
                content.extend(address.to_le_bytes());
                content.extend([*line, 0].map(u32::to_le_bytes).concat());
                content.extend(*file);
                content.push(0);
            }
            self.record(DEBUG_INFO, 0, &content)
        }

        fn code(&self) -> JitCode {
            JitCode::new(Arc::new(JitDump::parse(&self.0).expect("a dump")))
        }
    }

    fn name(code: &JitCode, address: u64) -> Option<(String, Option<u32>)> {
        let (change, offset) = code.find(address)?;
        let function = code.function(change, offset)?;
        Some((function.name.to_owned(), function.line.map(|(_, line)| line)))
    }

    fn named(name: &str) -> Option<(String, Option<u32>)> {
        Some((name.to_owned(), None))
    }

    #[test]
    fn an_address_has_the_name_of_its_time() {
        let mut code = MadeUp::new(7, 0)
            .load(10, 0x1000, 0x40, 1, "first")
            .load(20, 0x1040, 0x40, 2, "second")
            .moved(30, 0x1000, 0x2000, 0x40, 1)
            .load(40, 0x1020, 0x40, 3, "third")
            .code();
        assert_eq!(code.dump.process, 7);
        assert!(!code.advance(9));
        assert_eq!(name(&code, 0x1000), None);
        assert!(code.advance(25));
        assert_eq!(name(&code, 0x103f), named("first"));
        assert_eq!(name(&code, 0x1040), named("second"));
        assert!(code.advance(30));
        assert_eq!((name(&code, 0x1000), name(&code, 0x2008)), (None, named("first")));
        assert!(code.advance(u64::MAX) && !code.advance(u64::MAX));
        assert_eq!(name(&code, 0x1050), named("third"));
        assert_eq!(name(&code, 0x1060), named("second"));
        assert_eq!(
            code.find(0x1070),
            Some((1, 0x30)),
            "bytes from the function's start, not from what is left of it"
        );
    }

    #[test]
    fn times_of_another_clock_do_not_count() {
        let mut code = MadeUp::new(7, ARCH_TIMESTAMP)
            .load(1 << 60, 0x1000, 0x40, 1, "first")
            .code();
        assert!(code.advance(1));
        assert_eq!(name(&code, 0x1000), named("first"));
    }

    #[test]
    fn lines_are_of_the_next_function_at_their_address() {
        let mut code = MadeUp::new(7, 0)
            .debug(
                0x1000,
                &[(0x1010, 12, b"a.js"), (0x1000, 11, b"\xff"), (0x1018, 13, b"\xff")],
            )
            .load(1, 0x1000, 0x40, 1, "first")
            .debug(0x9000, &[(0x9000, 9, b"a.js")])
            .load(1, 0x2000, 0x40, 2, "second")
            .debug(0x3000, &[(0x3000, 1, b"a.js"), (0x9000, 2, b"a.js")])
            .load(1, 0x3000, 0x40, 3, "third, with a line elsewhere")
            .code();
        code.advance(1);
        let line = |address| name(&code, address).expect("a function").1;
        assert_eq!(
            [0x1000, 0x1017, 0x1018, 0x103f, 0x2000, 0x3000].map(line),
            [Some(11), Some(12), Some(13), Some(13), None, None]
        );
    }

    #[test]
    fn lines_of_v8_count_from_an_elf_header() {
        let mut dump = MadeUp::new(7, 0);
        for index in 0..ENOUGH as u64 {
            let start = 0x1000 + index * 0x100;
            dump = dump
                .debug(start, &[(start + 0x40, 1, b"a.js"), (start + 0x50, 2, b"a.js")])
                .load(1, start, 0x80, index, "function");
        }
        let mut code = dump.code();
        code.advance(1);
        let line = |address| name(&code, address).expect("a function").1;
        assert_eq!([0x1000, 0x100f, 0x1010].map(line), [Some(1), Some(1), Some(2)]);
    }

    #[test]
    fn a_dump_is_read_to_where_it_makes_no_sense() {
        let whole = MadeUp::new(7, 0)
            .load(1, 0x1000, 0x40, 1, "first")
            .load(1, 0x2000, 0x40, 2, "second")
            .0;
        assert_eq!(JitDump::parse(&whole).map(|dump| dump.count()), Some(2));
        assert_eq!(
            JitDump::parse(&whole[..whole.len() - 1]).map(|dump| dump.count()),
            Some(1)
        );
        assert!(JitDump::parse(&whole[..30]).is_none());
        assert!(JitDump::parse(b"perf").is_none());
        let mut zero = whole;
        zero[44..48].fill(0);
        assert_eq!(
            JitDump::parse(&zero).map(|dump| dump.count()),
            Some(0),
            "a record without a size"
        );
    }
}
