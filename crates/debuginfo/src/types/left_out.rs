//! The debug information that compact C types cannot express, and why.

use std::collections::BTreeMap;
use std::fmt;

use gimli::{DwAte, DwLang, DwTag};

/// Why something is left out, or why a type is not represented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A unit in a language other than C.
    Language(DwLang),
    /// A unit whose debug information is in its own file or a package, and was not given.
    Split,
    /// An enumerator beyond 32 bits.
    Enumerator,
    /// A vector.
    Vector,
    /// A number encoding that the format lacks: decimal floats, complex integers, fixed point.
    Encoding(DwAte),
    /// An array whose number of elements does not fit into 32 bits.
    Elements,
    /// A kind of type that C does not have.
    Kind(DwTag),
    /// A reference to nothing, or to something that is not a type.
    Reference,
    /// A member whose location is computed at run time, or beyond the type's end.
    Place,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Language(language) => write!(
                f,
                "functions, variables, and what C lacks of the types of a unit in {language}"
            ),
            Reason::Split => f.write_str("a unit whose debug information is in another file, which was not found"),
            Reason::Enumerator => f.write_str("a value of an enum beyond 32 bits"),
            Reason::Vector => f.write_str("a vector"),
            Reason::Encoding(encoding) => write!(f, "numbers in the encoding {encoding}"),
            Reason::Elements => f.write_str("an array of more than 4294967295 elements"),
            Reason::Kind(tag) => write!(f, "a type that C has not ({tag})"),
            Reason::Reference => f.write_str("a reference to no type"),
            Reason::Place => f.write_str("a member whose place is computed, or beyond the end"),
        }
    }
}

/// The number of cases for each reason, and the name of the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut(pub BTreeMap<Reason, (u64, String)>);

impl LeftOut {
    pub(super) fn add(&mut self, reason: Reason, name: &[u8]) {
        let first = || (0, String::from_utf8_lossy(name).into_owned());
        self.0.entry(reason).or_insert_with(first).0 += 1;
    }

    pub(super) fn merge(&mut self, other: LeftOut) {
        for (reason, (count, name)) in other.0 {
            self.0.entry(reason).or_insert((0, name)).0 += count;
        }
    }
}
