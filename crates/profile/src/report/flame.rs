//! The flame graph.

use std::io;

use inferno::flamegraph;

use super::Report;
use super::folded::push_line;
use crate::fold::LabelKind;

/// Width of the image in pixels, where it is not scaled.
const IMAGE_WIDTH: u64 = 1200;
/// Of a frame narrower than a tenth of a pixel nothing is seen.
const FRAMES_PER_PIXEL: u64 = 10;

impl Report {
    /// Writes the flame graph as an SVG image, which a browser makes searchable and zoomable. The same report always
    /// gives the same image. Colours: orange is the kernel, yellow is C++ and Rust, red is all else.
    pub fn write_flame_graph(&self, out: &mut dyn io::Write, title: &str) -> io::Result<()> {
        let mut options = flamegraph::Options::default();
        options.title = printable(title);
        options.subtitle = Some(printable(&self.subtitle()));
        options.count_name = "samples".to_string();
        options.colors = flamegraph::Palette::Multi(flamegraph::color::MultiPalette::Perl);
        options.deterministic = true;
        options.min_width = 100.0 / (IMAGE_WIDTH * FRAMES_PER_PIXEL) as f64;

        let lines = self.visible_lines();
        match flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out) {
            // The image is whole, and says that there is nothing to see.
            Err(error) if lines.is_empty() && error.kind() == io::ErrorKind::InvalidData => Ok(()),
            result => result,
        }
    }

    /// The folded stacks without calls that would be too narrow to see: deep recursion has so many that the lines would
    /// not fit into memory.
    fn visible_lines(&self) -> Vec<String> {
        let narrowest = self.summary.samples / (IMAGE_WIDTH * FRAMES_PER_PIXEL);
        let mut lines = Vec::new();
        let Ok(()) = self.tree.for_each_path(narrowest, |path, samples| {
            let mut line = String::new();
            push_line(&mut line, &self.tree, path, samples, |line, label| {
                if self.tree.label_of(label).kind == LabelKind::Kernel {
                    // What the palette knows the kernel by; it is not drawn.
                    line.push_str("_[k]");
                }
            });
            lines.push(line);
            Ok::<(), std::convert::Infallible>(())
        });
        lines
    }

    fn subtitle(&self) -> String {
        let summary = &self.summary;
        let mut text = format!(
            "{} samples, {:.1} % complete stacks",
            summary.samples,
            summary.complete_fraction() * 100.0
        );
        if summary.lost > 0 {
            text.push_str(&format!(", {} lost", summary.lost));
        }
        text
    }
}

/// Without the characters that XML can't hold.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') {
                ' '
            } else {
                c
            }
        })
        .collect()
}
