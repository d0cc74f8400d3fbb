//! Writes docs/precision.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::causes::{Exception, Key};
use super::check::{Counts, Walker, Way};

/// The results for one program.
pub(crate) struct Result {
    pub(crate) name: &'static str,
    pub(crate) ways: Vec<(Way, Counts, BTreeMap<Key, Exception>)>,
    pub(crate) instructions: u64,
    pub(crate) deepest: usize,
    pub(crate) threads: u64,
    pub(crate) handlers: u64,
    pub(crate) redirected: u64,
    /// Whether it was stepped to its end.
    pub(crate) is_whole: bool,
}

impl Result {
    /// A line.
    pub(crate) fn summary(&self) -> String {
        let ways = self.ways.iter().map(|(way, counts, _)| {
            let compared = counts.exact + counts.differing;
            format!("{} {}", way.name, percent(counts.exact, compared))
        });
        format!(
            "{}: {} instructions; {}; {} unexplained",
            self.name,
            number(self.instructions),
            ways.collect::<Vec<_>>().join(", "),
            self.unexplained().len()
        )
    }

    pub(crate) fn unexplained(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (way, _, exceptions) in &self.ways {
            for (key, exception) in exceptions.iter().filter(|(key, _)| !key.cause.is_explained()) {
                all.push(format!(
                    "{}, {}: {} {} at {}: {} times: {}",
                    self.name,
                    way.name,
                    key.module,
                    key.function,
                    addresses(&exception.addresses),
                    exception.instructions,
                    exception.example,
                ));
            }
        }
        all
    }
}

/// A table of programs.
pub(crate) fn programs(results: &[Result]) -> String {
    let mut page = String::from(
        "| program | instructions | deepest | threads and processes | handlers | returns elsewhere | tables | chains compared | frames compared | the same | the same, of what tables can say |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut sum = 0;
    for result in results {
        sum += result.instructions;
        for (index, (way, counts, exceptions)) in result.ways.iter().enumerate() {
            let head = match index {
                0 => format!(
                    "{}{} | {} | {} | {} | {} | {}",
                    result.name,
                    if result.is_whole { "" } else { " (not to its end)" },
                    number(result.instructions),
                    result.deepest,
                    result.threads,
                    result.handlers,
                    result.redirected
                ),
                _ => " | | | | |".into(),
            };
            let compared = counts.exact + counts.differing;
            let unexplained: u64 = exceptions
                .iter()
                .filter(|(key, _)| !key.cause.is_explained())
                .map(|(_, exception)| exception.instructions)
                .sum();
            let _ = writeln!(
                page,
                "| {head} | {} | {} | {} | {} | {} |",
                way.name,
                number(compared),
                number(counts.frames),
                percent(counts.exact, compared),
                percent(counts.exact, counts.exact + unexplained),
            );
        }
    }
    let _ = writeln!(page, "| **all** | **{}** | | | | | | | | | |", number(sum));
    page
}

/// The differences, by place and cause, of all programs together.
pub(crate) fn exceptions(results: &[Result]) -> String {
    let mut merged: BTreeMap<(&str, Key), (Exception, Vec<&str>)> = BTreeMap::new();
    for result in results {
        for (way, _, exceptions) in result.ways.iter().filter(|(way, ..)| way.walker != Walker::Remembered) {
            for (key, exception) in exceptions {
                let (all, names) = merged.entry((way.name, key.clone())).or_default();
                all.addresses.extend(&exception.addresses);
                all.instructions += exception.instructions;
                names.push(result.name);
            }
        }
    }
    let mut page = String::from(
        "| tables | module | function | addresses | cause | chains | programs |\n|---|---|---|---|---|---|---|\n",
    );
    for ((way, key), (exception, names)) in merged {
        let _ = writeln!(
            page,
            "| {way} | {} | {} | {} | {} | {} | {} |",
            key.module,
            key.function.replace('|', "\\|"),
            addresses(&exception.addresses),
            key.cause.text(),
            number(exception.instructions),
            match names.len() {
                0..=2 => names.join("; "),
                many => format!("{many} programs"),
            },
        );
    }
    page
}

/// A few addresses as they are; of many the first, the last, and their number.
fn addresses(all: &[u64]) -> String {
    let mut all = all.to_vec();
    all.sort_unstable();
    all.dedup();
    match &all[..] {
        [] => String::new(),
        [first, .., last] if all.len() > 6 => format!("{first:#x} to {last:#x} ({})", all.len()),
        few => few
            .iter()
            .map(|address| format!("{address:#x}"))
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// Never rounded up: 100.000 % means all.
pub(super) fn percent(part: u64, all: u64) -> String {
    let thousandths = (u128::from(part) * 100_000).checked_div(u128::from(all)).unwrap_or(0);
    format!("{}.{:03} %", thousandths / 1000, thousandths % 1000)
}

pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(percent(99_999, 100_000), "99.999 %");
        assert_eq!(percent(999_999, 1_000_000), "99.999 %");
        assert_eq!(percent(7, 7), "100.000 %");
        assert_eq!(number(1_234_567), "1,234,567");
        assert_eq!(number(12), "12");
        assert_eq!(addresses(&[3, 1, 3]), "0x1 0x3");
        assert_eq!(addresses(&[1, 2, 3, 4, 5, 6, 7]), "0x1 to 0x7 (7)");
    }
}
