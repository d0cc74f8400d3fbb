//! Errors of traces on disk or in memory. The errors of metadata are in the modules of their
//! dialects.

use crate::description::DescriptionError;
use crate::dialect::Dialect;
use crate::{json2, tsdl};
use std::error::Error;
use std::path::{Path, PathBuf};

/// An error in a packet, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// What is wrong.
    pub kind: DecodeErrorKind,
    /// Bits from the packet's start.
    pub bit: u64,
}

/// Errors in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// A field goes past the end of the packet's content, or of the file.
    Truncated,
    /// A string has no zero byte before the end of the content.
    Unterminated,
    /// The packet does not begin with the magic number.
    Magic(u64),
    /// The packet's size is not a multiple of 8 bits, or less than its own header.
    PacketSize(u64),
    /// The packet is longer than the rest of the file, by this many bytes.
    PacketPastEnd {
        /// Bytes that are missing.
        missing: u64,
    },
    /// The content is larger than the packet, or less than the packet's header.
    ContentSize(u64),
    /// The metadata has no stream class with this id.
    UnknownStreamClass(u64),
    /// A packet of a stream of another class than the packets before.
    StreamClassChanged(u64),
    /// A packet of the stream with this id among those of another stream of its class.
    StreamChanged(u64),
    /// This many cycles exceed signed 64-bit nanoseconds from the clock's origin.
    Clock(u64),
    /// The metadata has no event class with this id.
    UnknownEventClass(u64),
    /// No option of a variant matches this value of its tag.
    NoOption(u64),
    /// An event without any bits: there would be infinitely many.
    EmptyEvent,
    /// A field begins within a byte whose other bits belong to a field of the other byte order.
    ByteOrder,
    /// More elements than the packet's size can account for.
    TooManyFields,
    /// A LEB128 number of more than 64 bits.
    Leb128,
    /// The packet belongs to another session than the metadata.
    Session(u64),
    /// A compression scheme that the specification does not know.
    CompressionScheme(u64),
    /// An encryption scheme that the specification does not know.
    EncryptionScheme(u64),
    /// A checksum scheme that the specification does not know.
    ChecksumScheme(u64),
    /// The content's checksum differs from the one in the packet.
    Checksum {
        /// The packet's.
        stored: u32,
        /// The content's.
        computed: u32,
    },
    /// The content is encrypted, and there is no key.
    NoKey,
    /// The content was not encrypted with this key, or is damaged.
    Decrypt,
    /// The compressed content is malformed.
    Decompress,
    /// The compressed content expands without a reasonable bound.
    Bomb,
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use DecodeErrorKind as Kind;
        match self.kind {
            Kind::Truncated => write!(f, "field goes past the end of the packet")?,
            Kind::Unterminated => write!(f, "unterminated string")?,
            Kind::Magic(value) => write!(f, "packet begins with {value:#x}, not with the magic number")?,
            Kind::PacketSize(bits) => write!(f, "packet size of {bits} bits")?,
            Kind::PacketPastEnd { missing } => write!(f, "file ends {missing} bytes before the packet does")?,
            Kind::ContentSize(bits) => write!(f, "content size of {bits} bits does not fit the packet")?,
            Kind::UnknownStreamClass(id) => write!(f, "no stream class has the id {id}")?,
            Kind::StreamClassChanged(id) => write!(f, "packet of stream class {id} among those of another")?,
            Kind::StreamChanged(id) => write!(f, "packet of stream {id} among those of another")?,
            Kind::Clock(cycles) => write!(f, "{cycles} cycles are too far from the clock's origin")?,
            Kind::UnknownEventClass(id) => write!(f, "no event class has the id {id}")?,
            Kind::NoOption(tag) => write!(f, "no option of the variant is for {tag}")?,
            Kind::EmptyEvent => write!(f, "event of no bits")?,
            Kind::ByteOrder => write!(f, "fields of different byte orders share a byte")?,
            Kind::TooManyFields => write!(f, "more elements than the packet can hold")?,
            Kind::Leb128 => write!(f, "variable-length integer of more than 64 bits")?,
            Kind::Session(id) => write!(f, "packet of session {id:#x}, not of the metadata's")?,
            Kind::CompressionScheme(scheme) => write!(f, "unknown compression scheme {scheme}")?,
            Kind::EncryptionScheme(scheme) => write!(f, "unknown encryption scheme {scheme}")?,
            Kind::ChecksumScheme(scheme) => write!(f, "unknown checksum scheme {scheme}")?,
            Kind::Checksum { stored, computed } => {
                write!(f, "content has the checksum {computed:#010x}, not {stored:#010x}")?
            }
            Kind::NoKey => write!(f, "content is encrypted, and no key was given")?,
            Kind::Decrypt => write!(f, "content cannot be decrypted with this key")?,
            Kind::Decompress => write!(f, "malformed compressed content")?,
            Kind::Bomb => write!(f, "compressed content is suspiciously large")?,
        }
        write!(f, " at byte {:#x}", self.bit / 8)?;
        if !self.bit.is_multiple_of(8) {
            write!(f, ", bit {}", self.bit % 8)?;
        }
        write!(f, " of the packet")
    }
}

impl Error for DecodeError {}

/// An event or packet that cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodeError {
    /// There is no stream class with this id.
    UnknownStreamClass(u64),
    /// There is no event class with this id.
    UnknownEventClass(u64),
    /// The event would make the packet larger than allowed: finish the packet, then try again.
    Full,
    /// The event alone is larger than a packet may be.
    TooLarge,
    /// A value of another kind than the class has at this place, or too many values.
    WrongField,
    /// The event was finished before all its fields had values.
    MissingField,
    /// The value does not fit into its field.
    OutOfRange(u64),
    /// A text contains a zero byte, or a fixed-length text is longer than its field.
    Text,
    /// No option of a variant matches this tag.
    NoOption(u64),
    /// This packet header, packet context or event header cannot be written.
    Unwritable,
    /// An event class has fields that are not byte-aligned whole bytes.
    NotByteAligned {
        /// Its id.
        event: u64,
    },
    /// An event class whose events could have no bytes: there is no event header either.
    EmptyEvent {
        /// Its id.
        event: u64,
    },
    /// The content could not be compressed.
    Compress,
    /// The system provides no random numbers, which encryption requires.
    Random,
    /// The payload's size differs from the one in the event's context.
    PayloadSize {
        /// The context's.
        declared: u64,
        /// The payload's.
        actual: u64,
    },
    /// The headers of these packets cannot declare the transformation of their content.
    Packing,
}

impl std::fmt::Display for EncodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EncodeError::UnknownStreamClass(id) => write!(f, "no stream class has the id {id}"),
            EncodeError::UnknownEventClass(id) => write!(f, "no event class has the id {id}"),
            EncodeError::Full => write!(f, "packet is full"),
            EncodeError::TooLarge => write!(f, "event is larger than a packet"),
            EncodeError::WrongField => write!(f, "value does not belong to the event's next field"),
            EncodeError::MissingField => write!(f, "event ends before its last field"),
            EncodeError::OutOfRange(value) => write!(f, "{value} does not fit into its field"),
            EncodeError::Text => write!(f, "text does not fit into its field"),
            EncodeError::NoOption(tag) => write!(f, "no option of the variant is for {tag}"),
            EncodeError::Unwritable => write!(f, "no writer for these packet or event headers"),
            EncodeError::NotByteAligned { event } => {
                write!(f, "event class {event} has fields that are not whole bytes")
            }
            EncodeError::EmptyEvent { event } => write!(f, "events of class {event} could be empty"),
            EncodeError::Compress => write!(f, "content cannot be compressed"),
            EncodeError::Random => write!(f, "no random numbers for encryption"),
            EncodeError::PayloadSize { declared, actual } => {
                write!(f, "payload of {actual} bytes, not {declared} as its context says")
            }
            EncodeError::Packing => write!(f, "only packets of RFC v1.1 can be compressed, encrypted or checked"),
        }
    }
}

impl Error for EncodeError {}

/// A trace that cannot be read: the file, and the reason.
#[derive(Debug)]
pub struct TraceError {
    /// The file or directory.
    pub path: PathBuf,
    /// The reason.
    pub kind: TraceErrorKind,
}

/// Why a trace cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// An error of the operating system.
    Io(std::io::Error),
    /// The metadata is in no known dialect; these are its first bytes.
    UnknownDialect([u8; 4]),
    /// The dialect is implemented in another crate.
    OtherDialect(Dialect),
    /// A packet of the metadata is malformed, at this byte of the file.
    MetadataPacket(u64),
    /// The metadata's packets have another byte order than the trace that they describe.
    MetadataOrder,
    /// The file's name is not that of a section, optionally followed by `_` and a number (RFC 2).
    UnknownSection,
    /// The metadata is not valid UTF-8 at this byte.
    Utf8(u64),
    /// The metadata of 1.8 or the RFC is wrong.
    Tsdl(tsdl::Error),
    /// The CTF 2 metadata is wrong.
    Json2(json2::Error),
    /// The metadata describes something impossible.
    Description(DescriptionError),
    /// A packet is wrong.
    Packet {
        /// Bytes from the file's start to the packet.
        offset: u64,
        /// The error in the packet.
        error: DecodeError,
    },
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.kind)
    }
}

impl std::fmt::Display for TraceErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceErrorKind::Io(error) => error.fmt(f),
            TraceErrorKind::UnknownDialect(bytes) => {
                write!(f, "metadata of no known kind, it begins with {bytes:02x?}")
            }
            TraceErrorKind::OtherDialect(dialect) => write!(f, "this reader does not read {dialect}"),
            TraceErrorKind::MetadataPacket(offset) => write!(f, "malformed metadata packet at offset {offset:#x}"),
            TraceErrorKind::MetadataOrder => write!(f, "metadata packets are not in the byte order that they tell"),
            TraceErrorKind::UnknownSection => write!(f, "no section of the metadata has this file's name"),
            TraceErrorKind::Utf8(offset) => write!(f, "metadata is not UTF-8 at offset {offset:#x}"),
            TraceErrorKind::Tsdl(error) => error.fmt(f),
            TraceErrorKind::Json2(error) => error.fmt(f),
            TraceErrorKind::Description(error) => error.fmt(f),
            TraceErrorKind::Packet { offset, error } => write!(f, "packet at offset {offset:#x}: {error}"),
        }
    }
}

impl Error for TraceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}

impl Error for TraceErrorKind {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            TraceErrorKind::Io(error) => Some(error),
            TraceErrorKind::Tsdl(error) => Some(error),
            TraceErrorKind::Json2(error) => Some(error),
            TraceErrorKind::Description(error) => Some(error),
            TraceErrorKind::Packet { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl TraceError {
    /// The error for a file or directory.
    pub fn new(path: &Path, kind: TraceErrorKind) -> TraceError {
        TraceError {
            path: path.to_owned(),
            kind,
        }
    }
}

/// A trace that cannot be written: the file, and the reason.
#[derive(Debug)]
pub struct CreateError {
    /// The file or directory.
    pub path: PathBuf,
    /// The reason.
    pub kind: CreateErrorKind,
}

impl CreateError {
    /// The error for a file or directory.
    pub fn new(path: &Path, kind: CreateErrorKind) -> CreateError {
        CreateError {
            path: path.to_owned(),
            kind,
        }
    }

    pub(crate) fn io(path: &Path, error: std::io::Error) -> CreateError {
        CreateError::new(path, CreateErrorKind::Io(error))
    }
}

/// Why a trace cannot be written.
#[derive(Debug)]
#[non_exhaustive]
pub enum CreateErrorKind {
    /// An error of the operating system.
    Io(std::io::Error),
    /// The directory is not empty.
    NotEmpty,
    /// The file exists already, or the name is not valid for a stream.
    StreamName,
    /// CTF 1.8 cannot express the description.
    Tsdl(tsdl::WriteError),
    /// CTF 2 cannot express the description.
    Json2(json2::WriteError),
    /// The dialect is implemented in another crate.
    OtherDialect(Dialect),
    /// A dialect of another crate cannot express the description, or a stream.
    Inexpressible(Box<dyn Error + Send + Sync>),
    /// The description is impossible.
    Description(DescriptionError),
    /// The packet or its stream class cannot be encoded.
    Encode(EncodeError),
    /// The trace to convert cannot be read.
    Read(TraceErrorKind),
    /// An event or a packet without a time, or before the clock's origin, which the RFC cannot
    /// express.
    Time,
    /// A packet could not be written completely, so it was removed: the trace is readable up to the
    /// previous packet.
    PacketLost(std::io::Error),
}

impl std::fmt::Display for CreateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.kind)
    }
}

impl std::fmt::Display for CreateErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CreateErrorKind::Io(error) => error.fmt(f),
            CreateErrorKind::NotEmpty => write!(f, "directory is not empty"),
            CreateErrorKind::StreamName => write!(f, "no name for a new stream's file"),
            CreateErrorKind::Tsdl(error) => error.fmt(f),
            CreateErrorKind::Json2(error) => error.fmt(f),
            CreateErrorKind::OtherDialect(dialect) => write!(f, "this writer does not write {dialect}"),
            CreateErrorKind::Inexpressible(error) => error.fmt(f),
            CreateErrorKind::Description(error) => error.fmt(f),
            CreateErrorKind::Encode(error) => error.fmt(f),
            CreateErrorKind::Read(error) => error.fmt(f),
            CreateErrorKind::Time => write!(
                f,
                "RFC v1.1 cannot express events without a time after the clock's origin"
            ),
            CreateErrorKind::PacketLost(error) => write!(f, "packet not written: {error}"),
        }
    }
}

impl Error for CreateError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}

impl Error for CreateErrorKind {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            CreateErrorKind::Io(error) | CreateErrorKind::PacketLost(error) => Some(error),
            CreateErrorKind::Tsdl(error) => Some(error),
            CreateErrorKind::Json2(error) => Some(error),
            CreateErrorKind::Inexpressible(error) => Some(&**error),
            CreateErrorKind::Description(error) => Some(error),
            CreateErrorKind::Encode(error) => Some(error),
            CreateErrorKind::Read(kind) => Some(kind),
            _ => None,
        }
    }
}
