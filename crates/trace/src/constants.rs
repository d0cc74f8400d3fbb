//! The specifications' numbers and names.

/// First field of a data packet (CTF 1.8.3, section 5.1; CTF 2, section 6.1).
pub const PACKET_MAGIC: u64 = 0xc1fc_1fc1;

/// First field of a packet of the metadata stream (CTF 1.8.3, section 7.1).
pub const METADATA_PACKET_MAGIC: u32 = 0x75d1_1d57;

/// Bytes of the header of a metadata packet (CTF 1.8.3, section 7.1), unpadded.
pub const METADATA_PACKET_HEADER_BYTES: usize = 37;

/// Bytes of the header of a packet of CTF 2 metadata (CTF2-PMETA-1.0).
pub const PMETA_PACKET_HEADER_BYTES: usize = 44;

/// Bytes of the header of every packet of the RFC (RFC 5).
pub const RFC_PACKET_HEADER_BYTES: usize = 48;

/// Where in the RFC's packet header the size of the content stands (RFC 5).
pub const RFC_CONTENT_SIZE: std::ops::Range<usize> = 8..12;

/// Where in the RFC's packet header the size of the packet stands (RFC 5).
pub const RFC_PACKET_SIZE: std::ops::Range<usize> = 12..16;

/// Where in the RFC's packet header the schemes of compression, encryption and checksum stand (RFC 5).
pub const RFC_SCHEMES: std::ops::Range<usize> = 45..48;

/// Where in the RFC's packet header the checksum stands (RFC 5).
pub const RFC_CHECKSUM: std::ops::Range<usize> = 16..20;

/// What every text of 1.8 begins with (CTF 1.8.3, section 7.1).
pub const TSDL_FIRST_LINE: &str = "/* CTF 1.8 */\n";

/// The byte before each fragment of CTF 2 metadata (RFC 7464, section 2.2).
pub const RECORD_SEPARATOR: u8 = 0x1e;

/// Name of the metadata file in a trace directory.
pub const METADATA_FILE: &str = "metadata";

/// Our packets are whole pages, so that a reader can map each of them.
pub const PACKET_ALIGN_BYTES: usize = 4096;

/// Compressed content may grow to so many times what is stored, and [`UNPACK_ALLOWANCE`]. Deflate cannot do more than
/// 1032; bzip2 can, for content that tells nothing.
pub const MAX_UNPACK_RATIO: u64 = 1100;

/// What compressed content may grow to, however short it is: more than the packets of any tracer have.
pub const UNPACK_ALLOWANCE: u64 = 16 << 20;

/// Metadata may be so many bytes longer than its file, all its compressed packets together: many times what the kernel's
/// tracers write. Its tokens take much more memory than its text.
pub const METADATA_ALLOWANCE: usize = 4 << 20;

/// How deep below a given directory traces are looked for. LTTng's lie five below a session's.
pub const MAX_DIRECTORY_DEPTH: usize = 16;

/// Problems of a stream of which each is told; the others are counted.
pub const MAX_PROBLEMS: usize = 10_000;

/// How deep field classes may nest, in every dialect. Real metadata nests below ten; the readers recurse.
pub const MAX_NESTING: usize = 48;

/// Fields that an event may have beyond one for each of its bits: what elements without any bits can add.
pub const MAX_EMPTY_FIELDS: u64 = 1 << 16;

/// The namespace of our attributes in CTF 2 metadata.
pub const NAMESPACE: &str = "backtrail";

/// Values with labels that an enumeration of the RFC may have when it is written: ranges have to be told number by number.
pub const MAX_MAPPINGS: u32 = 4096;
