//! Whether the kernel copies other stacks than the sample's, which is found out when a thread needs
//! it.

/// By what threads are added.
#[derive(Debug, Default)]
pub(crate) enum Copying<S> {
    #[default]
    Unknown,
    /// To be found out after the current samples.
    Wanted,
    Possible(S),
    Impossible,
}

impl<S> Copying<S> {
    pub(crate) fn is_impossible(&self) -> bool {
        matches!(self, Copying::Impossible)
    }

    /// By what threads are added, if that is known; otherwise it is wanted from now on.
    pub(crate) fn stacks(&mut self) -> Option<&S> {
        if let Copying::Unknown = self {
            *self = Copying::Wanted;
        }
        self.known()
    }

    pub(crate) fn known(&self) -> Option<&S> {
        match self {
            Copying::Possible(stacks) => Some(stacks),
            _ => None,
        }
    }

    /// Finds out, if that is wanted, by what threads are added: all that are known are to be added
    /// then.
    pub(crate) fn prepare(&mut self, begin: impl FnOnce() -> Option<S>) -> Option<&S> {
        if let Copying::Wanted = self {
            *self = begin().map_or(Copying::Impossible, Copying::Possible);
            return self.known();
        }
        None
    }
}
