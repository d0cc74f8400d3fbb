//! Tables built from real files, compared with their call frame information at every pc; and tests
//! that the check itself finds errors.

use crate::common;

use backtrail_cfi::build::{self, Built};
use backtrail_cfi::check::{self, Report, What};
use backtrail_cfi::eh_frame::{self, EhFrame, FunctionRows};
use backtrail_cfi::tables;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::write::{self, Options};
use backtrail_sframe::{Section, Version};
use common::real_files;

/// Bytes of call frame information of a small file, as the loader.
const SMALL: usize = 64 << 10;

fn checked(input: &EhFrame<'_>, bytes: &[u8], skipped: &[build::Skipped]) -> Report {
    check::check(input, &Section::parse(bytes, 0).unwrap(), skipped)
}

fn built(image: &Image<'_>, input: &EhFrame<'_>, version: Version) -> Built {
    build::table(&eh_frame::convert(input), &Options::new(version, tables::abi(image), 0)).unwrap()
}

#[test]
fn tables_of_real_files_say_what_eh_frame_says() {
    let mut pcs = 0;
    for path in real_files() {
        let file = FileBytes::open(&path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let Some(section) = image.eh_frame().unwrap() else {
            backtrail_testkit::skip(format_args!("{} has no .eh_frame", path.display()));
            continue;
        };
        let input = EhFrame::of_image(&image, &section.data, section.address);
        for version in Version::ALL {
            let built = built(&image, &input, version);
            let report = checked(&input, &built.bytes, &built.skipped);
            assert_eq!(report.mismatches, [], "{} {version:?}", path.display());
            assert_eq!(report.uncovered_bytes(), built.uncovered_bytes());
            assert_eq!(report.pcs, built.uncovered_bytes() + built.covered_bytes);
            assert_eq!((report.damage, report.gave_up_at), (None, None));
            assert!(!report.skipped.contains_key("absent"), "{:?}", report.skipped);
            let coverage = built.covered_bytes as f64 / report.pcs as f64;
            println!(
                "{} {version:?}: {coverage:.6} of {} pcs, {:?}",
                path.display(),
                report.pcs,
                report.skipped
            );
            assert!(version != Version::V3 || coverage >= 0.9998, "{}", path.display());
            pcs += report.pcs;
            // A small file shows for the other versions what is merged.
            if version == Version::V3 || section.data.len() < SMALL {
                merged(&image, &input, version, &report);
            }
        }
    }
    assert!(pcs > 1_000_000, "only {pcs} comparisons");
}

/// Tables whose functions are merged say the same as those that are not, of which this is the
/// report.
fn merged(image: &Image<'_>, input: &EhFrame<'_>, version: Version, report: &Report) {
    let options = Options::new(version, tables::abi(image), 0);
    let merged = build::table(&eh_frame::convert(input), &Options { merge: 8, ..options }).unwrap();
    let joined = checked(input, &merged.bytes, &merged.skipped);
    assert_eq!(joined.mismatches, [], "{version:?}");
    assert_eq!(joined.uncovered, report.uncovered);
    assert_eq!(joined.pcs - joined.padding, report.pcs);
}

/// A small file with the relevant cases: a procedure linkage table of repeated blocks, and
/// functions with frame pointers.
fn sample() -> Option<(FileBytes, Vec<FunctionRows>)> {
    let path = real_files()
        .into_iter()
        .find(|path| path.ends_with("ld-linux-x86-64.so.2") || path.ends_with("git"))?;
    let file = FileBytes::open(path).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let section = image.eh_frame().unwrap()?;
    let functions = eh_frame::convert(&EhFrame::of_image(&image, &section.data, section.address)).functions;
    Some((file, functions))
}

/// The report of a check after `spoil` has changed the table.
fn found(file: &FileBytes, functions: &[FunctionRows], spoil: impl FnOnce(&mut Vec<FunctionRows>)) -> Report {
    let image = Image::parse(file.bytes()).unwrap();
    let section = image.eh_frame().unwrap().unwrap();
    let input = EhFrame::of_image(&image, &section.data, section.address);
    let mut functions = functions.to_vec();
    spoil(&mut functions);
    let output = write::section(&functions, &Options::new(Version::V3, tables::abi(&image), 0)).unwrap();
    assert_eq!(output.skipped, []);
    checked(&input, &output.bytes, &[])
}

fn told(report: &Report) -> Vec<(u64, u64, What)> {
    report
        .mismatches
        .iter()
        .map(|found| (found.pc, found.pcs, found.what))
        .collect()
}

#[test]
fn what_is_wrong_is_found_where_it_is() {
    let Some((file, functions)) = sample() else {
        backtrail_testkit::skip("no file to spoil");
        return;
    };
    let with_fp = |function: &FunctionRows| {
        let rows = &function.rows;
        rows.len() > 3 && function.repeat.is_none() && rows[2].rule.is_some_and(|rule| rule.fp.is_some())
    };
    let at = functions.iter().position(with_fp).unwrap();
    let function = &functions[at];
    let (pc, next) = (
        function.start + u64::from(function.rows[2].start),
        function.rows[3].start,
    );
    let pcs = u64::from(next - function.rows[2].start);
    let rule = |functions: &mut Vec<FunctionRows>, change: fn(&mut backtrail_sframe::Rule)| {
        change(functions[at].rows[2].rule.as_mut().unwrap());
    };
    assert_eq!(told(&found(&file, &functions, |_| {})), []);

    let report = found(&file, &functions, |all| rule(all, |rule| rule.cfa.offset += 8));
    assert_eq!(told(&report), [(pc, pcs, What::Cfa)]);
    assert_ne!(report.mismatches[0].sframe, report.mismatches[0].eh_frame);
    let report = found(&file, &functions, |all| rule(all, |rule| rule.ra.offset -= 8));
    assert_eq!(told(&report), [(pc, pcs, What::Ra)]);
    assert_eq!(
        (&*report.mismatches[0].sframe, &*report.mismatches[0].eh_frame),
        ("*(CFA-16)", "*(CFA-8)")
    );
    let report = found(&file, &functions, |all| rule(all, |rule| rule.fp = None));
    assert_eq!(told(&report), [(pc, pcs, What::Fp)]);
    assert_eq!(report.mismatches[0].sframe, "unchanged");
    let report = found(&file, &functions, |all| all[at].rows[2].rule = None);
    assert_eq!(told(&report), [(pc, pcs, What::Ra)]);

    // A row that begins one byte late, a missing row, a missing function, and an additional
    // function.
    let report = found(&file, &functions, |all| all[at].rows[2].start += 1);
    assert_eq!(report.mismatches[0].pc, pc);
    assert!(report.mismatches.iter().all(|found| found.pcs == 1));
    let report = found(&file, &functions, |all| _ = all[at].rows.remove(0));
    assert_eq!(
        report.uncovered.as_slice(),
        std::slice::from_ref(&(function.start..function.start + u64::from(function.rows[1].start)))
    );
    let report = found(&file, &functions, |all| _ = all.remove(at));
    assert_eq!(
        report.uncovered.as_slice(),
        std::slice::from_ref(&(function.start..function.start + u64::from(function.size)))
    );
    assert_eq!((report.mismatches.len(), report.skipped["absent"]), (0, 1));
    let more = FunctionRows {
        start: 0x10,
        size: 5,
        ..function.clone()
    };
    let report = found(&file, &functions, |all| {
        all.push(FunctionRows {
            rows: more.rows[..1].to_vec(),
            ..more.clone()
        })
    });
    assert_eq!(told(&report), [(0x10, 5, What::Code)]);
    let report = found(&file, &functions, |all| all[at].signal_frame = true);
    assert!(report.mismatches.iter().all(|found| found.what == What::SignalFrame));
    assert_eq!(
        report.mismatches.iter().map(|found| found.pcs).sum::<u64>(),
        u64::from(function.size)
    );
}

/// A row of a procedure linkage table that begins one byte late is wrong at one pc of each block.
#[test]
fn linkage_tables_are_compared_at_each_pc() {
    let Some((file, functions)) = sample() else {
        backtrail_testkit::skip("no file to spoil");
        return;
    };
    let Some(at) = functions.iter().position(|function| function.repeat.is_some()) else {
        backtrail_testkit::skip("no procedure linkage table");
        return;
    };
    let blocks = u64::from(functions[at].size / u32::from(functions[at].repeat.unwrap()));
    let report = found(&file, &functions, |all| all[at].rows[1].start += 1);
    assert_eq!(report.mismatches.len(), 1);
    let found = &report.mismatches[0];
    assert_eq!((found.what, found.pcs), (What::Cfa, blocks));
    assert_eq!(found.pc, functions[at].start + u64::from(functions[at].rows[1].start));
    assert!(
        found.eh_frame.starts_with("expression 77 08 80 00"),
        "{}",
        found.eh_frame
    );
}

/// If functions share endless rows, the check gives up in time and reports it.
#[test]
fn endless_rows_end() {
    let Some((file, functions)) = sample() else {
        backtrail_testkit::skip("no file to spoil");
        return;
    };
    let rule = functions[0].rows[0].rule.unwrap();
    let rows: Vec<_> = (0..60_000u32)
        .map(|start| backtrail_sframe::Row {
            start,
            rule: Some(backtrail_sframe::Rule {
                mangled_ra: start % 2 == 0,
                ..rule
            }),
        })
        .collect();
    let report = found(&file, &functions, |all| {
        // Of larger files, they would take gigabytes.
        all.truncate(500);
        for function in all.iter_mut() {
            function.rows.clone_from(&rows);
            function.repeat = None;
            function.signal_frame = false;
        }
    });
    assert!(report.gave_up_at.is_some());
}
