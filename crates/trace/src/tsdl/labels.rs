//! The labels of tags that select options of variants.

use crate::description::{Mapping, Range};

/// The values of a tag that select an option: those of the label with its name, with or without
/// 1.8's underscore.
pub(super) fn label_ranges(mappings: &[Mapping], option: &str) -> Vec<Range> {
    let find = |name: &str| mappings.iter().find(|mapping| mapping.name == name);
    find(option)
        .or_else(|| option.strip_prefix('_').and_then(find))
        .or_else(|| {
            mappings
                .iter()
                .find(|mapping| mapping.name.strip_prefix('_') == Some(option))
        })
        .map(|mapping| mapping.ranges.clone())
        .unwrap_or_default()
}
