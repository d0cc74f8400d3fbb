//! How traces are read.

/// Options for reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What to do if a packet cannot be read, as after a crash.
    pub recover: Recover,
    /// Leave out events before this time, in nanoseconds from the clock's origin, and those without
    /// a time. Packets that end before it are skipped by their headers.
    pub begin: Option<i64>,
    /// Leave out events after this time. A stream ends with the first packet that begins after it.
    pub end: Option<i64>,
}

/// What to do if a packet cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recover {
    /// Fail.
    #[default]
    Never,
    /// End that stream there, and count it.
    EndStream,
    /// Continue with the next packet, if its start is known, and count the damaged one. A packet
    /// that is cut off by the end of the file is read as far as possible.
    NextPacket,
}
