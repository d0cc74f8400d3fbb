//! Takes the items of a recording that is not written.

use std::fmt;

use crate::Item;

/// Gets every item as soon as it is known.
pub struct Observer(Box<dyn FnMut(&Item<'_>)>);

impl Observer {
    /// Passes items to `take`.
    pub fn new(take: impl FnMut(&Item<'_>) + 'static) -> Observer {
        Observer(Box::new(take))
    }

    pub(super) fn take(&mut self, item: &Item<'_>) {
        (self.0)(item);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
