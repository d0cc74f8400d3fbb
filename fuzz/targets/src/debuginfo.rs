//! The entry points for fuzzing.

use std::io::Write as _;
use std::path::Path;

use backtrail_ctype::link;
use backtrail_debuginfo::lines::{DebugSections, Lines, MAX_INLINED};
use backtrail_debuginfo::split::RestsOnDemand;
use backtrail_debuginfo::{split, types};
use backtrail_elf::{File, FileBytes, Image};

/// Builds types from the debug information in the ELF file `data`, and links them.
pub fn types(data: &[u8]) {
    let Ok(file) = File::parse(data) else { return };
    let Ok(Some(sections)) = types::Sections::load(&file, None) else {
        return;
    };
    let Ok(parts) = types::Parts::read(&sections) else {
        return;
    };
    let entries = file.section_header(".debug_info").map_or(0, |section| section.size);
    for unit in parts.make().units.iter().chain(&parts.make_with_arguments().units) {
        for node in unit.types.nodes() {
            unit.types
                .references(node, |id| assert!(unit.types.get(id).is_some(), "a type that there is"));
        }
        // Each entry yields a few types at most; compressed sections hide their number.
        assert!(file.section_header(".debug_info").is_none() || unit.types.len() as u64 <= 4 * entries + 4);
    }
    let _ = link::link(&parts.make().units, &link::Options::default());
}

/// Looks up lines and inlined calls of some addresses in the ELF file `data`.
pub fn lines(data: &[u8]) {
    let Ok(image) = Image::parse(data) else { return };
    let ranges = image.code_ranges();
    let asked: Vec<u64> = ranges
        .iter()
        .take(4)
        .flat_map(|range| {
            let size = range.end.saturating_sub(range.start);
            [0, size / 3, size / 2, size.saturating_sub(1)].map(|offset| range.start.saturating_add(offset))
        })
        .collect();
    for asked_first in [&[][..], &asked] {
        let Ok(Some(sections)) = DebugSections::load(&image, None, asked_first) else {
            return;
        };
        let Ok(lines) = Lines::new(&sections) else { return };
        // The file itself has the rests of its units.
        let own = data.to_vec();
        let open = move |_: &Path| {
            let mut file = tempfile::tempfile()?;
            file.write_all(&own)?;
            FileBytes::from_file(file)
        };
        let rests = RestsOnDemand::new(&lines.split_units(&asked), &[Path::new("/")], Box::new(open));
        let lines = lines.with_rests(&rests);
        for svma in asked.iter().chain(&[0, u64::MAX]) {
            assert!(lines.lookup(*svma).len() <= 1 + MAX_INLINED);
        }
    }
}

/// Reads the ELF file `data` as one with skeletons, and as one with the rests of their units.
pub fn split(data: &[u8]) {
    let Ok(file) = File::parse(data) else { return };
    let Ok(Some(mut sections)) = types::Sections::load(&file, None) else {
        return;
    };
    let Ok(units) = sections.split_units() else { return };
    assert!(units.len() <= data.len().max(file.len()));
    split::forget_packed(&mut units.iter().collect(), &file);
    if sections.add_split(&file).is_ok()
        && let Ok(parts) = types::Parts::read(&sections)
    {
        let _ = link::link(&parts.make().units, &link::Options::default());
    }
}
