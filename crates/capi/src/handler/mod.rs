//! The functions that handlers may call. Like `backtrail_local::handler`, this needs only `core`.

pub(crate) mod entry;
pub(crate) mod options;
pub(crate) mod symbols;
