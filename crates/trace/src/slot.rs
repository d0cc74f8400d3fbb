//! Slots in a plan and in a reader for data that a higher layer derives from them. Only that layer
//! knows the type.

use std::any::Any;
use std::cell::OnceCell;
#[cfg(feature = "render")]
use std::sync::{Arc, OnceLock};

/// A value shared by all threads. It is made once and stays.
#[cfg(feature = "render")]
#[derive(Default)]
pub(crate) struct SharedSlot(OnceLock<Arc<dyn Any + Send + Sync>>);

#[cfg(feature = "render")]
impl SharedSlot {
    /// The value, made on first use. It is not stored if the slot has a value of another type.
    pub(crate) fn get_or_make<T: Any + Send + Sync>(&self, make: impl Fn() -> T) -> Arc<T> {
        let kept = self.0.get_or_init(|| Arc::new(make()));
        kept.clone().downcast().unwrap_or_else(|_| Arc::new(make()))
    }
}

/// A value that is made again after each [`Slot::clear`].
#[derive(Default)]
pub(crate) struct Slot(OnceCell<Box<dyn Any + Send>>);

impl Slot {
    /// The value, made on first use; `None` if the slot has a value of another type.
    #[cfg(feature = "render")]
    #[inline]
    pub(crate) fn get_or_make<T: Any + Send>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }

    /// Drops the value, because its source has changed.
    pub(crate) fn clear(&mut self) {
        self.0.take();
    }
}

#[cfg(feature = "render")]
impl std::fmt::Debug for SharedSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedSlot")
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

#[cfg(all(test, feature = "render"))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_keeps_one_value_until_it_is_cleared() {
        let mut slot = Slot::default();
        assert_eq!(slot.get_or_make(|| 1u32), Some(&1));
        assert_eq!(slot.get_or_make(|| 2u32), Some(&1));
        assert_eq!(slot.get_or_make(|| "other"), None);
        slot.clear();
        assert_eq!(slot.get_or_make(|| 3u32), Some(&3));
    }

    #[test]
    fn a_shared_slot_keeps_its_first_value() {
        let slot = SharedSlot::default();
        let first = slot.get_or_make(|| 1u32);
        assert!(Arc::ptr_eq(&first, &slot.get_or_make(|| 2u32)));
        assert_eq!(*slot.get_or_make(|| "other"), "other");
    }
}
