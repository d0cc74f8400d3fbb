//! What a stream has that the RFC cannot express.

/// What a stream has that the RFC cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConvertError {
    /// Packets of the RFC have no context, so this field of one is lost.
    PacketContext(String),
    /// The stream's file has a name that no section of the RFC can have.
    SectionName,
}

impl std::fmt::Display for ConvertError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConvertError::PacketContext(field) => {
                write!(
                    f,
                    "RFC v1.1 cannot express a context of packets, with the field {field}"
                )
            }
            ConvertError::SectionName => f.write_str("RFC v1.1 cannot express a stream of this file name"),
        }
    }
}

impl std::error::Error for ConvertError {}
