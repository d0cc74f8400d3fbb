//! What handlers may call. As `backtrail_local::handler`, it needs no more than `core`.

pub(crate) mod entry;
pub(crate) mod options;
pub(crate) mod symbols;
