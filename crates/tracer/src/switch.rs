//! What switches classes of events on and off: levels, and the values of a switch.

/// Values and bits of a class's switch.
pub(crate) const OFF: u32 = 0;
pub(crate) const ON: u32 = 1;
/// Each event gets a stack.
pub(crate) const STACK: u32 = 2;
/// One of some events gets a stack.
pub(crate) const SAMPLED: u32 = 4;
/// Not entered yet.
pub(crate) const NEW: u32 = 1 << 16;

/// How important an event is: LTTng's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Level {
    /// The system is unusable.
    Emergency = 0,
    /// Somebody must act at once.
    Alert = 1,
    /// A critical condition.
    Critical = 2,
    /// An error.
    Error = 3,
    /// Something that may become an error.
    Warning = 4,
    /// Normal, but significant.
    Notice = 5,
    /// Information.
    #[default]
    Info = 6,
    /// For developers.
    Debug = 14,
}

impl Level {
    const ALL: [(&'static str, Level); 8] = [
        ("emergency", Level::Emergency),
        ("alert", Level::Alert),
        ("critical", Level::Critical),
        ("error", Level::Error),
        ("warning", Level::Warning),
        ("notice", Level::Notice),
        ("info", Level::Info),
        ("debug", Level::Debug),
    ];

    /// Its number in the trace.
    pub const fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn named(name: &[u8]) -> Option<Level> {
        let found = Level::ALL.iter().find(|(known, _)| known.as_bytes() == name);
        found.map(|&(_, level)| level)
    }
}
