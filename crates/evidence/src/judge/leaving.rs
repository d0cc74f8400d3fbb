//! What code does at its ends: calls, and jumps that leave a function.

/// Where a call or a jump leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To this address.
    Direct(u64),
    /// To what the slot at this address holds.
    Slot(u64),
    /// To a place that only the running program knows.
    Unknown,
    /// To one of the places in the table at this address.
    Table(u64),
}

/// How code continues after its last instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// Targets of jumps out of the function.
    pub(crate) jumps: Vec<Target>,
    /// Whether the last instruction goes on to the next byte.
    pub(crate) falls_through: bool,
}
