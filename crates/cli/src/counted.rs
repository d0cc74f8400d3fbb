//! Numbers of things, in words.

use std::fmt;

/// A number and what it counts, by the word for one: `1 unit`, `2 units`.
pub(crate) struct Counted<N>(pub(crate) N, pub(crate) &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Counted<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counted(number, one) = self;
        if *number == N::from(1) {
            return write!(f, "1 {one}");
        }
        match one.strip_suffix('y') {
            Some(stem) => write!(f, "{number} {stem}ies"),
            None if one.ends_with("sh") || one.ends_with("ch") || one.ends_with("ss") => write!(f, "{number} {one}es"),
            None => write!(f, "{number} {one}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        let said = [0_u64, 1, 2].map(|number| Counted(number, "crash").to_string());
        assert_eq!(said, ["0 crashes", "1 crash", "2 crashes"]);
        assert_eq!(Counted(1_usize, "unit").to_string(), "1 unit");
        let said = ["entry", "address", "mismatch"].map(|one| Counted(2_u64, one).to_string());
        assert_eq!(said, ["2 entries", "2 addresses", "2 mismatches"]);
    }
}
