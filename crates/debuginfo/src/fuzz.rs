//! The entry points for fuzzing.

use backtrail_ctype::link;
use backtrail_elf::File;

use crate::types;

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
