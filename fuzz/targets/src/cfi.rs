//! Entry points for fuzzing: every function that reads untrusted bytes.

use std::borrow::Cow;

use backtrail_arch::{Registers, aarch64, s390x, x86_64};
use backtrail_elf::{Image, Kind, SectionData, edit};
use backtrail_sframe::write::Options;
use backtrail_sframe::{Section, Version};
use backtrail_wire::{Bytes, Endian};

use backtrail_cfi::eh_frame::{self, EhFrame};
use backtrail_cfi::go_names::GoNames;
use backtrail_cfi::registers::{CallFrames, Held};
use backtrail_cfi::whole::Whole;
use backtrail_cfi::{build, check, internals, objects, tables};

/// Reads `data` as an `.eh_frame` and as an `.eh_frame_hdr` section of each CPU, and checks the
/// properties that hold for every input.
pub fn cfi(data: &[u8]) {
    for (arch, endian) in [
        (&x86_64::ARCH, Endian::Little),
        (&aarch64::ARCH, Endian::Little),
        (&s390x::ARCH, Endian::Big),
    ] {
        let input = EhFrame {
            data,
            address: 0x10_0000,
            text: None,
            got: Some(0x20_0000),
            arch,
            endian,
            code: Vec::new(),
        };
        sound(&eh_frame::convert(&input));
        let starts = eh_frame::search_table(data, 0x10_0000, endian);
        assert!(starts.is_none_or(|starts| starts.len() <= data.len()));
    }
}

/// Reads `data` as a `.gopclntab` of each CPU whose Go programs are supported.
pub fn go_tables(data: &[u8]) {
    for arch in [&x86_64::ARCH, &aarch64::ARCH] {
        let functions = internals::go_table(Bytes::new(data, Endian::Little), arch).unwrap_or_default();
        let rows: usize = functions.iter().map(|function| function.rows.len()).sum();
        assert!(functions.len() * 8 <= data.len() && rows <= data.len());
        for function in functions {
            assert!(function.rows.is_sorted_by(|one, next| one.start < next.start));
            assert!(function.rows.iter().all(|row| row.start < function.size));
        }
    }
}

/// Reads `data` as a `.gopclntab` with names and as the memory that contains inlined calls, and
/// looks up addresses all over it.
pub fn go_names(data: &[u8]) {
    for base in [0, 0x40_0000] {
        let memory = vec![(base, data)];
        let Some(names) = GoNames::parse(Cow::Borrowed(data), Endian::Little, memory) else {
            return;
        };
        for address in (base..base + 4096).step_by(61) {
            let calls = names.lookup(address);
            assert!(
                calls
                    .iter()
                    .all(|call| call.start <= address && !call.function.is_empty())
            );
        }
    }
}

/// Looks up callers of frames all over the code of the ELF file `data` in its call frame
/// information, on a made-up stack.
pub fn registers(data: &[u8]) {
    const FRAMES: u64 = 64;
    let Ok(image) = Image::parse(data) else { return };
    let Ok(Some(section)) = image.eh_frame() else { return };
    let held = |section: SectionData<'_>| Held {
        address: section.address,
        bytes: section.data.into_owned(),
    };
    let header = image.eh_frame_hdr().ok().flatten().map(held);
    let frames = [
        CallFrames::new(&image, held(section.clone()), header),
        CallFrames::new(&image, held(section), None),
    ];
    // The table of the whole section agrees with those of its functions.
    let whole = build::of_image(&image, &Options::new(Version::V3, tables::abi(&image), 0));
    let row = |table: &[u8], svma: u64| {
        let found = Section::parse(table, 0).expect("a written section reads").lookup(svma);
        found
            .expect("so do its rows")
            .map(|found| (found.row.rule, found.function.signal_frame))
    };
    for range in image.code_ranges().iter().take(4) {
        let step = ((range.end - range.start) / FRAMES).max(1);
        for svma in (range.start..range.end).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let mut registers = Registers::new(svma);
            registers.set(image.arch().sp, 0x7000_0000);
            registers.set(image.arch().fp, 0x7000_0100);
            // A search table may contain wrong entries.
            let _ = frames[0].function(svma, |_| true);
            if let (Some(function), Ok(whole)) = (frames[1].function(svma, |_| true), &whole) {
                assert_eq!(row(function, svma), row(&whole.bytes, svma), "{svma:#x}");
            }
            for frames in &frames {
                let word = |address: u64| (address >> 28 == 7).then_some(address.rotate_left(7));
                if let Some(caller) = frames.caller(&registers, svma, word) {
                    assert!(caller.registers.get(image.arch().sp).is_some());
                }
            }
        }
    }
}

/// Builds tables of each version from the ELF file `data`, and compares them with its `.eh_frame`:
/// they must agree, and only code that was reported as left out may be missing.
pub fn build(data: &[u8]) {
    let Ok(image) = Image::parse(data).map(Image::with_sections_placed) else {
        return;
    };
    let Ok(Some(frames)) = image.eh_frame() else { return };
    let input = EhFrame::of_image(&image, &frames.data, frames.address);
    for version in Version::ALL {
        let Ok(built) = build::of_image(&image, &Options::new(version, tables::abi(&image), 0)) else {
            return;
        };
        let table = Section::parse(&built.bytes, 0).expect("a written section reads");
        let report = check::check(&input, &table, &built.skipped);
        if report.gave_up_at.is_some() {
            continue;
        }
        assert_eq!(report.mismatches, [], "{version:?}");
        // If damaged FDEs overlap, code is reported for each of them.
        assert!(
            report.uncovered_bytes() <= built.uncovered_bytes(),
            "{version:?}: {:x?}",
            built.skipped
        );
    }
}

/// Adds a table of each version to the ELF file `data`, as the command does: it is found again,
/// agrees with `.eh_frame`, and adding it once more changes nothing. Returns whether the file can
/// take tables at all.
pub fn add(data: &[u8]) -> bool {
    for version in Version::ALL {
        let Some(added) = with_table(data, version) else {
            return false;
        };
        let image = Image::parse(&added).expect("an edited file can be read");
        let own = image.sframe().expect("its section is whole").expect("it is there");
        let table = Section::parse(&own.data, own.address).expect("a written section reads");
        if let Ok(report) = check::check_image(&image, &table, &[]) {
            only_kept_rows_differ(&report, version);
        }
        assert!(
            with_table(&added, version).as_ref() == Some(&added),
            "{version:?}: adding twice is adding once"
        );
    }
    true
}

/// Rows that only the table had before are kept; nothing else may differ.
fn only_kept_rows_differ(report: &check::Report, version: Version) {
    let only_kept = report.mismatches.iter().all(|found| found.what == check::What::Code);
    assert!(
        report.gave_up_at.is_some() || only_kept,
        "{version:?}: {:x?}",
        report.mismatches
    );
}

fn with_table(data: &[u8], version: Version) -> Option<Vec<u8>> {
    let image = Image::parse(data).ok()?;
    let whole = Whole::of_image(&image).ok()?;
    let mut make = |address| {
        let options = Options::new(version, tables::abi(&image), address);
        let built = whole.table(&options).map_err(|_| None)?;
        (built.functions > 0).then_some(built.bytes).ok_or(None)
    };
    Some(
        edit::add_table::<Option<backtrail_elf::Error>>(data, [0; 16], &mut make)
            .ok()?
            .to_vec(),
    )
}

/// Adds tables of each version to the relocatable file `data`, as the command does: together they
/// agree with `.eh_frame`, and adding them once more changes nothing. Returns whether the file can
/// take tables at all.
pub fn object(data: &[u8]) -> bool {
    for version in Version::ALL {
        let Some(added) = with_object_tables(data, version) else {
            return false;
        };
        let image = Image::parse(&added)
            .expect("an edited file can be read")
            .with_sections_placed();
        let frames = image.eh_frame().expect("it was read before");
        for (_, own) in image.sframe_tables().expect("its sections are whole") {
            let table = Section::parse(&own.data, own.address).expect("a written section reads");
            let Some(frames) = &frames else { continue };
            let input = EhFrame::of_image(&image, &frames.data, frames.address);
            let report = check::check(&input, &table.starts_relative_to_field(), &[]);
            only_kept_rows_differ(&report, version);
        }
        assert!(
            with_object_tables(&added, version).as_ref() == Some(&added),
            "{version:?}: adding twice is adding once"
        );
    }
    true
}

fn with_object_tables(data: &[u8], version: Version) -> Option<Vec<u8>> {
    let image = Image::parse(data).ok()?;
    if image.kind() != Kind::Relocatable {
        return None;
    }
    let options = Options::new(version, tables::abi(&image), 0);
    let made = objects::of_image(&image.with_sections_placed(), &options, false).ok()?;
    if made.tables.is_empty() {
        return None;
    }
    Some(edit::set_object_tables(data, &made.tables).ok()?.to_vec())
}

fn sound(converted: &eh_frame::Converted) {
    let mut end = 0;
    for function in &converted.functions {
        assert!(function.start >= end, "functions overlap or are not sorted");
        assert!(function.size > 0);
        end = function.start + u64::from(function.size);
        assert_eq!(function.rows.first().map(|row| row.start), Some(0));
        let limit = function.repeat.map_or(function.size, u32::from);
        assert!(function.rows.iter().all(|row| row.start < limit));
        assert!(function.rows.windows(2).all(|pair| pair[0].start < pair[1].start));
    }
    let _ = (
        converted.uncovered_bytes(),
        converted.damage.map(|error| error.to_string()),
    );
}
