//! Names of code that a program made while it ran, from its `/tmp/perf-PID.map`.
//!
//! A line is `START SIZE NAME`, both numbers hexadecimal; the name extends to the end of the line
//! and may contain spaces (Linux, `tools/perf/Documentation/jit-interface.txt`). Programs append to
//! the file while they compile, so a later line replaces what it overlaps, and the last line may be
//! cut off.

use std::ops::Range;

use crate::ranges::RangeMap;

/// The functions of a perf map, by address.
#[derive(Debug, Default)]
pub struct PerfMap {
    text: String,
    functions: RangeMap<Name>,
    skipped: usize,
}

/// The position of a name in the text.
#[derive(Clone, Copy, Debug)]
struct Name {
    start: usize,
    end: usize,
}

impl PerfMap {
    /// Reads a perf map. Malformed lines are skipped and counted; bytes that are not UTF-8 become
    /// U+FFFD.
    pub fn parse(data: &[u8]) -> PerfMap {
        let text = String::from_utf8_lossy(data).into_owned();
        let mut functions = RangeMap::default();
        let mut skipped = 0;
        let mut line_start = 0;
        for line in text.split_inclusive('\n') {
            match parse_line(line) {
                Some((start, size, name)) => {
                    let name = Name {
                        start: line_start + name.start,
                        end: line_start + name.end,
                    };
                    functions.insert(start, start.saturating_add(size), name);
                }
                None if line.trim().is_empty() => {}
                None => skipped += 1,
            }
            line_start += line.len();
        }
        PerfMap {
            text,
            functions,
            skipped,
        }
    }

    /// The function at the address, and the distance from its start in bytes.
    pub fn lookup(&self, address: u64) -> Option<(&str, u64)> {
        let (start, name) = self.functions.get(address)?;
        Some((&self.text[name.start..name.end], address - start))
    }

    /// The number of lines that were not understood.
    pub fn skipped_lines(&self) -> usize {
        self.skipped
    }
}

/// Start, size and the range of the name in the line.
fn parse_line(line: &str) -> Option<(u64, u64, Range<usize>)> {
    let content = line.trim();
    let (start, rest) = content.split_once(char::is_whitespace)?;
    let (size, name) = rest.trim_start().split_once(char::is_whitespace)?;
    let name = name.trim_start();
    if name.is_empty() {
        return None;
    }
    let name_end = line.trim_end().len();
    Some((parse_hex(start)?, parse_hex(size)?, name_end - name.len()..name_end))
}

/// A hexadecimal number; some programs write the prefix `0x`, which perf does not.
fn parse_hex(digits: &str) -> Option<u64> {
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    // from_str_radix would take a sign.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_spaces() {
        let map = PerfMap::parse(b"7f00 10 LazyCompile:~main /srv/app.js:12\n0x8000 0x20 py::f:/a.py\r\n");
        assert_eq!(map.lookup(0x7f00), Some(("LazyCompile:~main /srv/app.js:12", 0)));
        assert_eq!(map.lookup(0x7f0f), Some(("LazyCompile:~main /srv/app.js:12", 15)));
        assert_eq!(map.lookup(0x7f10), None);
        assert_eq!(map.lookup(0x801f), Some(("py::f:/a.py", 0x1f)));
        assert_eq!(map.skipped_lines(), 0);
    }

    #[test]
    fn later_lines_override() {
        let map = PerfMap::parse(b"1000 100 old\n1040 20 new\n");
        assert_eq!(map.lookup(0x103f).unwrap().0, "old");
        assert_eq!(map.lookup(0x1040).unwrap().0, "new");
        assert_eq!(map.lookup(0x1060).unwrap().0, "old");
    }

    #[test]
    fn garbage_lines_are_skipped_and_counted() {
        let map = PerfMap::parse(
            b"\nhello\n1000\n1000 10\nzz 10 f\n1000 -1 f\n+1 1 f\n2000 8 \xff\xfeok\n1ffff0000ffff0000 1 f\n3000 8 cut",
        );
        assert_eq!(map.skipped_lines(), 7);
        assert_eq!(map.lookup(0x2004).unwrap().0, "\u{fffd}\u{fffd}ok");
        assert_eq!(map.lookup(0x3000).unwrap().0, "cut");
    }

    #[test]
    fn huge_sizes_reach_to_the_end_and_empty_ones_nowhere() {
        let map = PerfMap::parse(b"f000 ffffffffffffffff all\n100 0 none\n");
        assert_eq!(map.lookup(u64::MAX - 1).unwrap().0, "all");
        assert_eq!(map.lookup(0x100), None);
    }
}
