//! Module names: a list that was published in advance.

use core::sync::atomic::{AtomicPtr, Ordering};

/// An executable segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'n> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Address in the process minus address in the file's terms.
    pub(crate) bias: u64,
    /// Address of the module's first page.
    pub(crate) lowest: u64,
    pub(crate) name: &'n [u8],
    /// Empty if it has none.
    pub(crate) build_id: &'n [u8],
}

/// Names of the snapshot's modules, by address.
static NAMES: AtomicPtr<&'static [Named<'static>]> = AtomicPtr::new(core::ptr::null_mut());

/// Publishes these names.
pub(crate) fn publish(names: &'static &'static [Named<'static>]) {
    NAMES.store(core::ptr::from_ref(names).cast_mut(), Ordering::Release);
}

/// All segments with names, by address.
pub(crate) fn all_named() -> &'static [Named<'static>] {
    // SAFETY: null or a list that lives for ever, written before it was published.
    unsafe { NAMES.load(Ordering::Acquire).as_ref() }.map_or(&[], |names| names)
}

/// The module at an address.
pub(crate) fn named(address: u64) -> Option<&'static Named<'static>> {
    let names = all_named();
    let before = names.partition_point(|named| named.start <= address);
    let named = names.get(before.checked_sub(1)?)?;
    (address < named.end).then_some(named)
}
