//! The modules of this process, as far as they are known.

use crate::handler::names::{Named, all_named};

/// A program or library that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedModule {
    /// The path that the loader used.
    pub path: &'static [u8],
    /// Address in the process minus address in the file's terms.
    pub bias: u64,
    /// Address of its first page.
    pub start: u64,
    /// The address after its code.
    pub end: u64,
    /// Empty if it has none.
    pub build_id: &'static [u8],
}

/// The modules that were loaded at the last [`init`](crate::init), or when the thread that follows
/// libraries last looked, by address. For handlers, too.
pub fn modules() -> impl Iterator<Item = LoadedModule> {
    let is_of_one = |one: &Named<'static>, other: &Named<'static>| (one.bias, one.name) == (other.bias, other.name);
    let segments = all_named().chunk_by(is_of_one);
    segments.filter_map(|segments| {
        let (first, last) = (segments.first()?, segments.last()?);
        Some(LoadedModule {
            path: first.name,
            bias: first.bias,
            start: first.lowest,
            end: last.end,
            build_id: first.build_id,
        })
    })
}
