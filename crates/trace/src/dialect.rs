//! The dialects of the Common Trace Format.

/// A dialect of the Common Trace Format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// RFC v1.1 of 2010. The crate `backtrail-trace-rfc` reads and writes it.
    Rfc1_1,
    /// CTF 1.8: TSDL metadata.
    V1_8,
    /// CTF 2: JSON metadata, also in packets (CTF2-PMETA-1.0).
    V2,
}

impl Dialect {
    /// The short name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::Rfc1_1 => "rfc1.1",
            Dialect::V1_8 => "1.8",
            Dialect::V2 => "2",
        }
    }
}

impl std::fmt::Display for Dialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Dialect::Rfc1_1 => "RFC v1.1",
            Dialect::V1_8 => "CTF 1.8",
            Dialect::V2 => "CTF 2",
        })
    }
}
