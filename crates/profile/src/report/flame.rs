//! Draws the flame graph.

use std::io;

use inferno::flamegraph;

use super::Report;
use super::folded::push_line;
use crate::clean::clean;
use crate::fold::{LabelId, LabelKind};

/// Width of the unscaled image in pixels.
const IMAGE_WIDTH: u64 = 1200;
/// A frame narrower than a tenth of a pixel is invisible.
const FRAMES_PER_PIXEL: u64 = 10;
/// With more frames, browsers take minutes to open the image. Usual recordings have some thousands
/// of visible frames; deep recursion with several call sites has millions.
const MAX_FRAMES: usize = 50_000;
/// The number of reasons for incomplete stacks that fit into the line below the title.
const NAMED_REASONS: usize = 5;
/// The library takes the stacks as text, which for deep recursion is much larger than the tree.
const MAX_TEXT: usize = 128 << 20;

impl Report {
    /// Writes the flame graph as an SVG image that can be searched and zoomed in a browser. The
    /// same report always gives the same image. Colours: orange is the kernel, yellow is C++ and
    /// Rust, red is everything else.
    pub fn write_flame_graph(&self, out: &mut dyn io::Write, title: &str) -> io::Result<()> {
        let (lines, narrowest) = self.visible_lines();
        let mut options = flamegraph::Options::default();
        options.title = clean(title, ' ');
        options.subtitle = Some(clean(&self.subtitle(narrowest), ' '));
        let unit = self
            .summary
            .measure
            .as_ref()
            .map_or("samples", |measure| measure.unit());
        options.count_name = unit.to_string();
        options.colors = flamegraph::Palette::Multi(flamegraph::color::MultiPalette::Perl);
        options.deterministic = true;
        options.min_width = 100.0 / (IMAGE_WIDTH * FRAMES_PER_PIXEL) as f64;

        match flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out) {
            // The image is complete, and says that there is nothing to see.
            Err(error) if lines.is_empty() && error.kind() == io::ErrorKind::InvalidData => Ok(()),
            result => result,
        }
    }

    /// The folded stacks without calls of fewer samples than the second value, which would be too
    /// narrow to see or too many to draw.
    fn visible_lines(&self) -> (Vec<String>, u64) {
        let invisible = self.summary.samples / (IMAGE_WIDTH * FRAMES_PER_PIXEL);
        let mut narrowest = invisible.max(self.tree().min_total_for(MAX_FRAMES));
        loop {
            // A minimum above all samples leaves one line, so this ends.
            match self.lines_of(narrowest) {
                Some(lines) => return (lines, narrowest),
                None => narrowest = narrowest * 2 + 1,
            }
        }
    }

    /// The folded stacks as the library reads them; `None` if they are too long.
    fn lines_of(&self, narrowest: u64) -> Option<Vec<String>> {
        let mark_kernel = |line: &mut String, label: LabelId| {
            if self.tree().label_of(label).kind == LabelKind::Kernel {
                // The suffix by which the palette recognises the kernel; it is not drawn.
                line.push_str("_[k]");
            }
        };
        let mut lines = Vec::new();
        let mut drawn = 0;
        let mut length = 0;
        let whole = self.tree().for_each_path(narrowest, |path, samples| {
            let mut line = String::new();
            push_line(&mut line, self.tree(), path, samples, mark_kernel);
            length += line.len();
            lines.push(line);
            drawn += samples;
            if length <= MAX_TEXT { Ok(()) } else { Err(()) }
        });
        whole.ok()?;
        // Outermost calls have no caller to count for, but fractions are of all samples.
        if drawn < self.summary.samples {
            lines.push(format!("[not drawn] {}", self.summary.samples - drawn));
        }
        Some(lines)
    }

    fn subtitle(&self, narrowest: u64) -> String {
        let summary = &self.summary;
        let what = match &summary.measure {
            Some(measure) if measure.is_time => format!("µs of {}", measure.name),
            Some(measure) => measure.name.clone(),
            None => "samples".to_owned(),
        };
        let mut text = format!("{} {what}", summary.samples);
        if summary.samples > 0 {
            text.push_str(&format!(
                ", {:.1} % complete stacks",
                summary.complete_fraction() * 100.0
            ));
        }
        let mut share = |what: &str, samples: u64| {
            let percent = samples as f64 * 100.0 / summary.samples as f64;
            text.push_str(&format!(", {percent:.1} % {what}"));
        };
        if summary.live > 0 {
            share("read late", summary.live);
        }
        let reasons = summary.incomplete();
        let (named, others) = reasons.split_at(reasons.len().min(NAMED_REASONS));
        for &(reason, samples) in named {
            share(reason, samples);
        }
        if !others.is_empty() {
            share("otherwise incomplete", others.iter().map(|(_, samples)| samples).sum());
        }
        if summary.lost > 0 {
            text.push_str(&format!(", {} lost", summary.lost));
        }
        if narrowest > summary.samples / (IMAGE_WIDTH * FRAMES_PER_PIXEL) {
            text.push_str(&format!(", calls of fewer than {narrowest} samples not drawn"));
        }
        text
    }
}
