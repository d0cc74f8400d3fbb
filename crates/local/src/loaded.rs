//! The modules of this process, as far as they are known.

use crate::handler::names::all_named;
pub use backtrail_unwind::local::look_for_modules;

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
/// libraries last looked, by address.
pub fn modules() -> Vec<LoadedModule> {
    let mut modules: Vec<LoadedModule> = Vec::new();
    for named in all_named() {
        let of_same = |last: &&mut LoadedModule| (last.bias, last.path) == (named.bias, named.name);
        match modules.last_mut().filter(of_same) {
            Some(last) => last.end = last.end.max(named.end),
            None => modules.push(LoadedModule {
                path: named.name,
                bias: named.bias,
                start: named.lowest,
                end: named.end,
                build_id: named.build_id,
            }),
        }
    }
    modules
}
