//! Whole sections of real files: at every row boundary and its neighbours, the converted rows and gimli's evaluation
//! of the call frame information come to the same caller.

mod common;

use backtrail_dwarf::cfi::{self, EhFrame, Reason};
use backtrail_elf::{Image, MappedFile};
use common::{Oracle, by_rule, real_files, row_at};
use gimli::RunTimeEndian;

#[derive(Default, Debug)]
struct Count {
    fdes: usize,
    functions: usize,
    rows: usize,
    pcs: usize,
    uncovered: u64,
    repeats: usize,
    outermost: usize,
}

fn compare(image: &Image<'_>, name: &str) -> Count {
    let section = image.eh_frame().unwrap().unwrap();
    let input = EhFrame::of_image(image, &section.data, section.address);
    let converted = cfi::convert(&input);
    assert_eq!(converted.damage, None, "{name}");
    for skipped in &converted.skipped {
        println!("{name}: {:#x}+{:#x} {}", skipped.start, skipped.size, skipped.reason);
        assert!(
            !matches!(
                skipped.reason,
                Reason::Damaged | Reason::UnknownInstruction | Reason::Overlap
            ),
            "{name}: {skipped:?}"
        );
    }
    let oracle = Oracle {
        section: gimli::EhFrame::new(&section.data, RunTimeEndian::Little),
        arch: image.arch(),
    };
    let bases = gimli::BaseAddresses::default().set_eh_frame(section.address);
    let mut context = gimli::UnwindContext::new();
    let mut count = Count {
        functions: converted.functions.len(),
        rows: converted.functions.iter().map(|function| function.rows.len()).sum(),
        repeats: converted
            .functions
            .iter()
            .filter(|function| function.repeat.is_some())
            .count(),
        ..Count::default()
    };
    for fde in oracle.fdes(&bases) {
        count.fdes += 1;
        let mut table = fde.rows(&oracle.section, &bases, &mut context).unwrap();
        while let Some(row) = table.next_row().unwrap() {
            let (start, end) = (row.start_address(), row.end_address().min(fde.end_address()));
            if start >= end {
                continue;
            }
            // A procedure linkage table is one row of many blocks.
            let blocks = if matches!(row.cfa(), gimli::CfaRule::Expression(_)) {
                64
            } else {
                0
            };
            let inner = (start..end).take(blocks);
            for pc in [start, (start + 1).min(end - 1), end - 1].into_iter().chain(inner) {
                let Some(function) = converted.find(pc) else {
                    if pc == start {
                        count.uncovered += end - start;
                    }
                    continue;
                };
                assert_eq!(function.signal_frame, fde.is_signal_trampoline());
                let rule = row_at(&function.rows, function.repeat, pc - function.start).rule;
                assert_eq!(by_rule(rule), oracle.caller(row, pc), "{name}: pc {pc:#x}, {rule:?}");
                count.pcs += 1;
                count.outermost += usize::from(rule.is_none());
            }
        }
    }
    assert_eq!(count.uncovered, converted.uncovered_bytes(), "{name}");
    count
}

#[test]
fn every_row_of_real_files() {
    let mut pcs = 0;
    for path in real_files() {
        let file = MappedFile::open(&path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        if image.eh_frame().unwrap().is_none() {
            println!("SKIPPED: {} has no .eh_frame", path.display());
            continue;
        }
        let count = compare(&image, path.file_name().unwrap().to_str().unwrap());
        println!("{}: {count:?}", path.display());
        assert!(count.fdes > 0 && count.rows >= count.functions && count.functions + count.repeats >= count.fdes);
        pcs += count.pcs;
    }
    assert!(pcs > 10_000, "only {pcs} comparisons");
}
