//! How a dialect may transform a packet's content before it is stored. CTF 1.8 and 2 store it
//! unchanged.

use crate::description::Role;
use crate::error::{DecodeErrorKind, EncodeError};
use crate::plan::Roles;
use backtrail_wire::Endian;
use std::fmt::Debug;

/// A stored packet.
#[derive(Clone, Copy, Debug)]
pub struct StoredPacket<'p> {
    header: &'p [u8],
    content: &'p [u8],
    roles: &'p Roles,
}

impl<'p> StoredPacket<'p> {
    pub(crate) fn new(header: &'p [u8], content: &'p [u8], roles: &'p Roles) -> StoredPacket<'p> {
        StoredPacket { header, content, roles }
    }

    /// Packet header and packet context.
    pub fn header(&self) -> &'p [u8] {
        self.header
    }

    /// The rest, without padding.
    pub fn content(&self) -> &'p [u8] {
        self.content
    }

    /// The header's number with this role.
    pub fn number(&self, role: Role) -> Option<u64> {
        self.roles.get(role)
    }
}

/// Reverses the transformation of packets' content, and checks them.
pub trait ContentDecoder: Debug + Send + Sync {
    /// The original content; `None` if it is stored unchanged.
    ///
    /// # Errors
    ///
    /// The content is damaged, or was stored in a way that this decoder does not know.
    fn decode(&self, packet: &StoredPacket<'_>) -> Result<Option<Vec<u8>>, DecodeErrorKind>;
}

/// Appends a packet's header for the byte at which the content ends and the packet's size in bytes.
pub type PutHeader<'h> = dyn FnMut(&mut Vec<u8>, u64, u64) -> Result<(), EncodeError> + 'h;

/// Transforms the content of packets before they are stored.
pub trait ContentEncoder: Debug + Send + Sync {
    /// The packet header's number with this role.
    fn number(&self, role: Role) -> Option<u64>;

    /// Sets `out` to the whole packet with this content, padded to a multiple of `align` bytes,
    /// with numbers in this byte order. `put_header` appends the header, without a checksum.
    ///
    /// # Errors
    ///
    /// The content cannot be stored, or the header does not suit this encoder.
    fn store(
        &self,
        content: &[u8],
        align: usize,
        order: Endian,
        out: &mut Vec<u8>,
        put_header: &mut PutHeader<'_>,
    ) -> Result<(), EncodeError>;
}
