//! Whether the kernel copies other stacks than the sample's, which is found out when a thread needs
//! it, and when a thread is searched for what leads to them.

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

/// The first pause in nanoseconds after a search, which doubles.
const FIRST_PAUSE: u64 = 1_000_000;

/// When a thread may be searched again.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    attempts: u32,
    next: u64,
}

impl Pauses {
    /// Whether the thread may be searched at this time; the next pause begins then.
    pub(crate) fn are_over(&mut self, time: u64, most_doublings: u32) -> bool {
        if time < self.next {
            return false;
        }
        self.next = time.saturating_add(FIRST_PAUSE << self.attempts.min(most_doublings));
        self.attempts += 1;
        true
    }
}
