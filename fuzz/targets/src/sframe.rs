//! Entry points of the fuzz targets and property tests: any bytes give an answer or an error.

use std::fmt::{self, Write};
use std::ops::ControlFlow;

use backtrail_sframe::validate::{FindingKind, validate};
use backtrail_sframe::{Index, Section};

/// Limit on the rows to read, because shared blocks let a small file claim many.
const MAX_ROWS: usize = 10_000;

/// The address at which sections are read.
const ADDRESS: u64 = 0x40_0000;

/// Reads every function and row, writes them, and reads them again.
pub fn read_sframe(data: &[u8]) {
    let Ok((section, missing)) = Section::parse_lenient(data, ADDRESS) else {
        return;
    };
    assert_eq!(missing.is_none(), Section::parse(data, ADDRESS).is_ok());
    let mut budget = MAX_ROWS;
    for fde in section.functions().take(MAX_ROWS).flatten() {
        let rows = fde.rows();
        let (_, most) = rows.size_hint();
        let count = rows.take(budget).count();
        assert!(most.is_some_and(|most| count <= most), "more rows than promised");
        budget -= count;
    }
    rewrite(&section);
}

/// Looks up addresses at the ends of functions, and addresses that may have no function.
pub fn lookup_sframe(data: &[u8]) {
    let Ok(section) = Section::parse(data, ADDRESS) else {
        return;
    };
    let ends = section.functions().take(1000).flatten().flat_map(|fde| {
        let function = fde.function();
        let end = function.start.wrapping_add(function.size.into());
        [function.start, function.start.wrapping_sub(1), end.wrapping_sub(1), end]
    });
    let mut words = [0; 1 << 13];
    let (functions, rows) = words.split_at_mut(1 << 12);
    let least = Index::words(&section).min(functions.len());
    let indexes = [
        Index::build(&section, &mut functions[..least]),
        Index::build(&section, rows),
    ];
    for pc in ends.chain([0, 1, ADDRESS, ADDRESS + 0x1000, u64::MAX]) {
        for index in indexes.iter().flatten() {
            assert_eq!(section.lookup_by(index, pc), section.lookup(pc));
        }
        for section in [section, section.starts_relative_to_field()] {
            let Ok(Some(found)) = section.lookup(pc) else { continue };
            let offset = pc.wrapping_sub(found.function.start);
            assert!(
                offset < found.function.size.into(),
                "a function that doesn't contain the address"
            );
            let in_block = match found.function.repeat {
                Some(size) => offset % u64::from(size),
                None => offset,
            };
            assert!(
                u64::from(found.row.start) <= in_block,
                "a row that begins behind the address"
            );
        }
    }
}

/// Dumps a section as text, even if it is incomplete.
pub fn show_sframe(data: &[u8]) {
    if let Ok((section, _)) = Section::parse_lenient(data, ADDRESS) {
        let _ = backtrail_sframe::dump::dump(&section, ".sframe", &mut Limited(1 << 20));
    }
}

/// Validates a section. If there are no findings, all of it must be readable, and look-up must
/// find each row.
pub fn validate_sframe(data: &[u8]) {
    let mut findings = 0usize;
    validate(data, ADDRESS, &mut |finding| {
        findings += 1;
        let end = data.len() as u64;
        assert!(finding.offset <= end || matches!(finding.kind, FindingKind::Unreadable(_)));
        write!(Limited(1 << 10), "{finding}").expect("a line");
        match findings {
            MAX_ROWS => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    let strict = Section::parse_strict(data, ADDRESS);
    assert_eq!(strict.is_ok(), findings == 0);
    let Ok(section) = strict else { return };
    for fde in section.functions() {
        let fde = fde.expect("nothing is wrong");
        let function = fde.function();
        for row in fde.rows().take(MAX_ROWS) {
            let row = row.expect("nothing is wrong");
            if function.size > row.start {
                let found = section.lookup(function.start.wrapping_add(row.start.into()));
                let found = found.expect("nothing is wrong").expect("it is in a function");
                assert_eq!((found.function, found.row), (function, row));
            }
        }
    }
}

/// Checks that the functions of a section can be written, and read back unchanged.
fn rewrite(section: &Section<'_>) {
    use backtrail_sframe::{Row, write};

    let mut budget = MAX_ROWS;
    let mut functions: Vec<write::FunctionRows> = Vec::new();
    for fde in section.functions().take(MAX_ROWS).flatten() {
        let rows = fde.function().rows as usize;
        if rows <= budget
            && let Ok(function) = write::FunctionRows::read(&fde)
        {
            budget -= rows;
            functions.push(function);
        }
    }
    for version in backtrail_sframe::Version::ALL {
        let options = write::Options::new(version, section.abi(), section.address());
        let output = write::section(&functions, &options).expect("small enough");
        let joined = write::Options { merge: 8, ..options };
        let joined = write::section(&functions, &joined).expect("small enough");
        assert!(joined.bytes.len() <= output.bytes.len() && joined.skipped == output.skipped);
        assert!(Section::parse(&joined.bytes, section.address()).is_ok());
        let again = Section::parse(&output.bytes, section.address()).expect("a written header reads");
        assert_eq!(again.size(), output.bytes.len());
        let mut written: Vec<&write::FunctionRows> = functions.iter().collect();
        for skipped in output.skipped.iter().rev() {
            written.remove(skipped.index);
        }
        written.sort_by_key(|function| (function.start.wrapping_sub(section.address()) as i64, function.size));
        assert_eq!(written.len(), again.num_fdes() as usize);
        for (function, fde) in written.iter().zip(again.functions()) {
            let fde = fde.expect("a written FDE reads");
            assert_eq!(
                (fde.function().start, fde.function().size),
                (function.start, function.size)
            );
            let mut expected = function.rows.clone();
            expected.dedup_by_key(|row| row.rule);
            let rows: Vec<Row> = fde.rows().map(|row| row.expect("a written row reads")).collect();
            assert_eq!(rows, expected);
        }
    }
}

/// Converts `data` into every version and byte order; checks that the result has the same functions
/// except those reported as skipped.
pub fn convert_sframe(data: &[u8]) {
    use backtrail_sframe::write::{self, FunctionRows, Options};
    use backtrail_sframe::{Abi, Version};

    let Ok(section) = Section::parse(data, 0x40_0000) else {
        return;
    };
    let of_this_cpu = Abi::ALL.into_iter().filter(|abi| abi.arch() == section.abi().arch());
    for (abi, version) in of_this_cpu.flat_map(|abi| Version::ALL.map(|version| (abi, version))) {
        let options = Options::new(version, abi, 0x40_0000);
        let (Ok(output), Ok(mut functions)) = (write::convert(&section, &options), FunctionRows::read_all(&section))
        else {
            return;
        };
        let again = Section::parse(&output.bytes, 0x40_0000).expect("a written section reads");
        let mut index = 0;
        functions.retain_mut(|function| {
            function.rows.dedup_by_key(|row| row.rule);
            index += 1;
            !output.skipped.iter().any(|skipped| skipped.index + 1 == index)
        });
        let mut found = FunctionRows::read_all(&again).expect("a written function reads");
        let key = |function: &FunctionRows| {
            let rows: Vec<_> = function.rows.iter().map(|row| (row.start, row.rule)).collect();
            (function.start, function.size, rows)
        };
        functions.sort_by_key(key);
        found.sort_by_key(key);
        assert_eq!(found, functions, "{abi:?} {version:?}");
    }
}

/// A writer that accepts at most this many bytes of text.
struct Limited(usize);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.checked_sub(text.len()).ok_or(fmt::Error)?;
        Ok(())
    }
}
