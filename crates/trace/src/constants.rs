//! The specifications' numbers and names.

/// First field of a data packet (CTF 1.8.3, section 5.1; CTF 2, section 6.1).
pub const PACKET_MAGIC: u64 = 0xc1fc_1fc1;

/// First field of a packet of the metadata stream (CTF 1.8.3, section 7.1).
pub const METADATA_PACKET_MAGIC: u32 = 0x75d1_1d57;

/// Bytes of the header of a metadata packet (CTF 1.8.3, section 7.1), unpadded.
pub const METADATA_PACKET_HEADER_BYTES: usize = 37;

/// Bytes of the header of a packet of CTF 2 metadata (CTF2-PMETA-1.0).
pub const PMETA_PACKET_HEADER_BYTES: usize = 44;

/// The first line of every TSDL text (CTF 1.8.3, section 7.1).
pub const TSDL_FIRST_LINE: &str = "/* CTF 1.8 */\n";

/// The byte before each fragment of CTF 2 metadata (RFC 7464, section 2.2).
pub const RECORD_SEPARATOR: u8 = 0x1e;

/// Name of the metadata file in a trace directory.
pub const METADATA_FILE: &str = "metadata";

/// Our packets are whole pages, so that a reader can map each of them.
pub const PACKET_ALIGN_BYTES: usize = 4096;

/// The depth below a given directory to which traces are searched. LTTng's are five below a
/// session's.
pub const MAX_DIRECTORY_DEPTH: usize = 16;

/// The most problems of a stream that are reported individually; further ones are counted.
pub const MAX_PROBLEMS: usize = 10_000;

/// The depth to which field classes may nest, in every dialect. Real metadata nests below ten; the
/// readers recurse.
pub const MAX_NESTING: usize = 48;

/// Fields that an event may have beyond one per bit, for elements without any bits.
pub const MAX_EMPTY_FIELDS: u64 = 1 << 16;

/// The namespace of our attributes in CTF 2 metadata.
pub const NAMESPACE: &str = "backtrail";

/// The only field of the context of events whose section says `event_size = true` (RFC 7 and
/// 6.2.1).
pub const PAYLOAD_SIZE: &str = "payload_size";
