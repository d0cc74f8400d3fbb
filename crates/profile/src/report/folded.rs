//! Folded stacks: one line per distinct stack, `main;work;hash 12`, as flame graph tools read them.

use std::io;

use super::Report;
use crate::fold::{LabelId, Tree};

impl Report {
    /// Writes the folded stacks, outermost frame first, sorted by name. Semicolons in names are
    /// written as colons.
    pub fn write_folded(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let mut line = String::new();
        self.tree().for_each_path(0, |path, samples| {
            line.clear();
            push_line(&mut line, self.tree(), path, samples, |_, _| {});
            line.push('\n');
            out.write_all(line.as_bytes())
        })
    }
}

/// Adds a line, without its line feed. `annotate` may add text to each frame.
pub(super) fn push_line(
    line: &mut String,
    tree: &Tree,
    path: &[LabelId],
    samples: u64,
    annotate: impl Fn(&mut String, LabelId),
) {
    for (index, &label) in path.iter().enumerate() {
        if index > 0 {
            line.push(';');
        }
        line.push_str(&tree.label_of(label).text);
        annotate(line, label);
    }
    line.push_str(&format!(" {samples}"));
}
