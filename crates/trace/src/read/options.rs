//! How traces are read.

/// How to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What to do if a packet cannot be read, as after a crash.
    pub recover: Recover,
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
    /// Go on with the next packet, if its begin is known, and count the damaged one. A packet that
    /// the file's end has cut is read as far as it goes.
    NextPacket,
}
