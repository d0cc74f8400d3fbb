//! What `backtrail --version` prints.

/// The version, the commit if it is known, and the features that were chosen.
pub(crate) const LONG: &str = match (COMMIT.is_empty(), cfg!(feature = "store")) {
    (true, true) => concat!(env!("CARGO_PKG_VERSION"), " (with store)"),
    (true, false) => concat!(env!("CARGO_PKG_VERSION"), " (without store)"),
    (false, true) => concat!(
        env!("CARGO_PKG_VERSION"),
        " (",
        env!("BACKTRAIL_COMMIT"),
        ", with store)"
    ),
    (false, false) => concat!(
        env!("CARGO_PKG_VERSION"),
        " (",
        env!("BACKTRAIL_COMMIT"),
        ", without store)"
    ),
};

const COMMIT: &str = env!("BACKTRAIL_COMMIT");
