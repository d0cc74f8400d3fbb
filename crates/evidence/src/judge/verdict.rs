//! The judge's findings for the stacks of a program.

use std::collections::{BTreeMap, HashMap};

use super::Fit;

/// Counts, and examples of wrong or cut stacks.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Stacks with frames of the program.
    pub(crate) stacks: u64,
    /// Samples whose stacks the kernel walked.
    pub(crate) in_kernel: u64,
    /// Samples with frames of the kernel only, or with none.
    pub(crate) without_program: u64,
    /// Stacks that end in a start routine, and contain no error.
    pub(crate) complete: u64,
    /// Stacks in which a return address does not fit the frame above it.
    pub(crate) wrong: u64,
    /// Stacks that the recorder calls complete, but whose outermost frame is not a start routine.
    pub(crate) false_ends: u64,
    /// Frames by how they fit the one above.
    pub(crate) fits: BTreeMap<Fit, u64>,
    /// Complete stacks by the start routine.
    pub(crate) ends: BTreeMap<String, u64>,
    /// Incomplete stacks by the reason.
    pub(crate) stops: BTreeMap<&'static str, u64>,
    examples: HashMap<String, (u64, String)>,
    cuts: HashMap<(&'static str, String), (u64, String)>,
}

impl Verdict {
    pub(crate) fn example(&mut self, what: String, stack: impl FnOnce() -> String) {
        let entry = self.examples.entry(what).or_insert_with(|| (0, stack()));
        entry.0 += 1;
    }

    pub(crate) fn cut(&mut self, reason: &'static str, last: String, stack: impl FnOnce() -> String) {
        *self.stops.entry(reason).or_default() += 1;
        let entry = self.cuts.entry((reason, last)).or_insert_with(|| (0, stack()));
        entry.0 += 1;
    }

    /// Adds what was found in the stacks of another program.
    pub(crate) fn merge(&mut self, other: &Verdict) {
        self.stacks += other.stacks;
        self.without_program += other.without_program;
        self.complete += other.complete;
        self.wrong += other.wrong;
        self.false_ends += other.false_ends;
        for (fit, count) in &other.fits {
            *self.fits.entry(*fit).or_default() += count;
        }
        for (end, count) in &other.ends {
            *self.ends.entry(end.clone()).or_default() += count;
        }
        for (stop, count) in &other.stops {
            *self.stops.entry(stop).or_default() += count;
        }
        for (what, (count, stack)) in &other.examples {
            let entry = self.examples.entry(what.clone()).or_insert_with(|| (0, stack.clone()));
            entry.0 += count;
        }
        for (what, (count, stack)) in &other.cuts {
            let entry = self.cuts.entry(what.clone()).or_insert_with(|| (0, stack.clone()));
            entry.0 += count;
        }
    }

    /// The percentage of stacks that are complete by the strict rule.
    pub(crate) fn completeness(&self) -> f64 {
        if self.stacks == 0 {
            return 0.0;
        }
        self.complete as f64 * 100.0 / self.stacks as f64
    }

    /// The percentage of calls whose target only the program knows.
    pub(crate) fn unproved(&self) -> f64 {
        let all: u64 = self.fits.values().sum();
        let proved: u64 = self
            .fits
            .iter()
            .filter(|(fit, _)| fit.is_proved())
            .map(|(_, n)| n)
            .sum();
        if all == 0 {
            0.0
        } else {
            (all - proved) as f64 * 100.0 / all as f64
        }
    }

    /// Everything, as text, with as many examples of each kind as `examples`.
    pub(crate) fn describe(&self, examples: usize) -> String {
        let mut text = format!(
            "stacks {}, complete {} ({:.2} %), wrong {}, complete without a start routine {}, without frames of the program {}\n",
            self.stacks,
            self.complete,
            self.completeness(),
            self.wrong,
            self.false_ends,
            self.without_program
        );
        let list = |counts: &mut dyn Iterator<Item = (String, u64)>| {
            let counts: Vec<String> = counts.map(|(name, count)| format!("{name} {count}")).collect();
            counts.join(", ")
        };
        let mut fits = self.fits.iter().map(|(fit, &n)| (fit.name().to_owned(), n));
        text.push_str(&format!("  frames: {}\n", list(&mut fits)));
        text.push_str(&format!(
            "  ends: {}\n",
            list(&mut self.ends.iter().map(|(e, &n)| (e.clone(), n)))
        ));
        let mut stops = self.stops.iter().map(|(&stop, &n)| (stop.to_owned(), n));
        text.push_str(&format!("  cut: {}\n", list(&mut stops)));
        let mut wrong: Vec<_> = self.examples.iter().collect();
        wrong.sort_by_key(|(what, (count, _))| (std::cmp::Reverse(*count), (*what).clone()));
        for (what, (count, stack)) in wrong.into_iter().take(examples) {
            text.push_str(&format!("  {count} x {what}\n{stack}"));
        }
        let mut cuts: Vec<_> = self.cuts.iter().collect();
        cuts.sort_by_key(|(what, (count, _))| (std::cmp::Reverse(*count), (*what).clone()));
        for ((reason, last), (count, stack)) in cuts.into_iter().take(examples) {
            text.push_str(&format!("  {count} x cut, {reason}, in {last}\n{stack}"));
        }
        text
    }
}
