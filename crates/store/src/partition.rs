//! The parts into which tables are divided, and the names of their folders.

use std::path::PathBuf;

use crate::tables::PARTITIONS;

/// A part of the store that is written and removed as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The day, `2026-11-23`, in UTC.
    pub date: String,
    /// The hour, `00` to `23`.
    pub hour: String,
    /// The service.
    pub service: String,
}

impl Partition {
    /// Its folder within a table's.
    pub fn path(&self) -> PathBuf {
        let values = [&self.date, &self.hour, &self.service];
        let names = PARTITIONS
            .iter()
            .zip(values)
            .map(|(key, value)| format!("{key}={value}"));
        names.collect()
    }
}

/// Whether a service can be the name of a folder in every engine without escapes.
pub fn is_service(name: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=128).contains(&name.len()) && name.chars().all(is_fine) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_names_of_folders() {
        for (name, fine) in [
            ("web-1.x_y", true),
            ("", false),
            ("a/b", false),
            ("..", false),
            ("a=b", false),
        ] {
            assert_eq!(is_service(name), fine, "{name}");
        }
        assert!(!is_service(&"a".repeat(129)));
    }
}
