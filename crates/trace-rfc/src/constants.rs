//! The numbers of the RFC v1.1 of 2010, and limits of its reader and writer.

use std::ops::Range;

/// Bytes of the header of every packet (RFC 5).
pub const PACKET_HEADER_BYTES: usize = 48;

/// Place of the content's size in the packet header (RFC 5).
pub const CONTENT_SIZE: Range<usize> = 8..12;

/// Place of the packet's size in the packet header (RFC 5).
pub const PACKET_SIZE: Range<usize> = 12..16;

/// Place of the checksum in the packet header (RFC 5).
pub const CHECKSUM: Range<usize> = 16..20;

/// Place of the schemes of compression, encryption and checksum in the packet header (RFC 5).
pub const SCHEMES: Range<usize> = 45..48;

/// Compressed content may grow by this factor, plus [`UNPACK_ALLOWANCE`]. Deflate cannot exceed
/// 1032; bzip2 can, for content that repeats.
pub const MAX_UNPACK_RATIO: u64 = 1100;

/// What compressed content may grow to, however short it is: more than the packets of any tracer
/// have.
pub const UNPACK_ALLOWANCE: u64 = 16 << 20;

/// How much longer than their file all packets of compressed metadata may be together: many times
/// what the kernel's tracers write. Its tokens take much more memory than its text.
pub const METADATA_ALLOWANCE: usize = 4 << 20;

/// Labelled values that a written enumeration may have: its ranges are written number by number.
pub const MAX_MAPPINGS: u32 = 4096;
