//! Field classes.

use crate::constants::PAYLOAD_SIZE;
use backtrail_wire::Endian;

/// The class of a field (CTF 1.8.3, section 4; CTF 2, section 5.3).
#[derive(Clone, Debug, PartialEq)]
pub enum FieldClass {
    /// A number.
    Integer(Integer),
    /// A number whose ranges have names.
    Enumeration(Enumeration),
    /// A floating point number.
    Float(Float),
    /// Text that ends with a zero byte.
    String(Encoding),
    /// Fields with names.
    Struct(Struct),
    /// Elements of one class.
    Array(Array),
    /// One of several classes.
    Variant(Variant),
    /// A field that may be absent (CTF 2).
    Optional(Optional),
    /// Bits, some of which have names (CTF 2's bit maps and bit arrays).
    BitMap(BitMap),
    /// A number of which only zero and non-zero are distinguished (CTF 2).
    Boolean(Integer),
}

/// An integer of 1 to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    /// Bits, 1 to 64.
    pub size: u32,
    /// Alignment from the packet's start in bits, a power of two.
    pub align: u32,
    /// Whether it is in two's complement.
    pub signed: bool,
    /// The base in which it is printed.
    pub base: Base,
    /// Order of its bytes.
    pub byte_order: Endian,
    /// Whether it is a character; arrays of such 8-bit integers are text.
    pub encoding: Encoding,
    /// Its meaning for the trace's structure.
    pub role: Option<Role>,
    /// Index of the clock whose cycles it counts.
    pub clock: Option<usize>,
    /// How its bits are stored in the packet.
    pub storage: Storage,
}

impl Integer {
    /// A byte-aligned unsigned decimal integer of this many bits.
    pub const fn unsigned(size: u32, byte_order: Endian) -> Integer {
        Integer {
            size,
            align: 8,
            signed: false,
            base: Base::Decimal,
            byte_order,
            encoding: Encoding::None,
            role: None,
            clock: None,
            storage: Storage::Bits,
        }
    }

    /// A byte-aligned signed decimal integer of this many bits.
    pub const fn signed(size: u32, byte_order: Endian) -> Integer {
        Integer {
            signed: true,
            ..Integer::unsigned(size, byte_order)
        }
    }

    /// The same, read in hexadecimal.
    pub const fn hexadecimal(self) -> Integer {
        Integer {
            base: Base::Hexadecimal,
            ..self
        }
    }

    /// The same with a role.
    pub const fn role(self, role: Role) -> Integer {
        Integer {
            role: Some(role),
            ..self
        }
    }

    /// The same, counting a clock's cycles.
    pub const fn clock(self, clock: usize) -> Integer {
        Integer {
            clock: Some(clock),
            ..self
        }
    }

    /// The same with an alignment in bits.
    pub const fn align(self, align: u32) -> Integer {
        Integer { align, ..self }
    }

    /// An 8-bit character of text.
    pub const fn character(byte_order: Endian) -> Integer {
        Integer {
            encoding: Encoding::Utf8,
            ..Integer::unsigned(8, byte_order)
        }
    }

    /// Whether an array of it is text.
    pub fn is_character(&self) -> bool {
        self.encoding != Encoding::None && self.size == 8 && self.align == 8
    }
}

/// How the bits of an integer are stored in the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// [`Integer::size`] bits, one after the other.
    #[default]
    Bits,
    /// Likewise, but within one of the units of this many bits that form the packet: an integer
    /// that would cross the end of a unit begins with the next one (RFC 4.1.6). Structs around it
    /// are aligned like the unit.
    Unit(u32),
    /// Likewise, but the first bit has the significance of the last one (CTF 2, the bit order that
    /// does not match the byte order).
    Reversed,
    /// LEB128: as many bytes as the value needs (CTF 2, section 5.3.10).
    Leb128,
}

/// The base in which a number is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// 2.
    Binary,
    /// 8.
    Octal,
    /// 10.
    #[default]
    Decimal,
    /// 16.
    Hexadecimal,
}

impl Base {
    /// The number of digits.
    pub const fn number(self) -> u64 {
        match self {
            Base::Binary => 2,
            Base::Octal => 8,
            Base::Decimal => 10,
            Base::Hexadecimal => 16,
        }
    }

    /// The base with this number.
    pub const fn from_number(number: u64) -> Option<Base> {
        Some(match number {
            2 => Base::Binary,
            8 => Base::Octal,
            10 => Base::Decimal,
            16 => Base::Hexadecimal,
            _ => return None,
        })
    }
}

/// How characters are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Not a character.
    #[default]
    None,
    /// UTF-8.
    Utf8,
    /// ASCII.
    Ascii,
    /// UTF-16, the low byte first (CTF 2).
    Utf16Le,
    /// UTF-16, the high byte first (CTF 2).
    Utf16Be,
    /// UTF-32, the lowest byte first (CTF 2).
    Utf32Le,
    /// UTF-32, the highest byte first (CTF 2).
    Utf32Be,
}

impl Encoding {
    /// Bytes of the smallest piece of text, and of the zero that ends it.
    pub const fn unit_bytes(self) -> usize {
        match self {
            Encoding::None | Encoding::Utf8 | Encoding::Ascii => 1,
            Encoding::Utf16Le | Encoding::Utf16Be => 2,
            Encoding::Utf32Le | Encoding::Utf32Be => 4,
        }
    }
}

/// The meaning of a field for the structure of the trace: 1.8's reserved names, CTF 2's roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Packet header: [`crate::constants::PACKET_MAGIC`].
    Magic,
    /// Packet header: id of the stream class.
    StreamClassId,
    /// Packet header: number of the stream within its class.
    StreamInstanceId,
    /// Packet context: the clock at the packet's start. Event header: at the event.
    Timestamp,
    /// Packet context: the clock at the packet's end.
    TimestampEnd,
    /// Packet context: bits including the header, without the padding.
    ContentSize,
    /// Packet context: bits including the padding.
    PacketSize,
    /// Packet context: number of the packet in its stream.
    SequenceNumber,
    /// Packet context: events that the tracer dropped so far, at the packet's end.
    EventsDiscarded,
    /// Event header: id of the event class.
    EventClassId,
    /// [`Role::ContentSize`] in bytes (RFC 5).
    ContentBytes,
    /// [`Role::PacketSize`] in bytes (RFC 5).
    PacketBytes,
    /// The number of significant bits of [`Role::SequenceNumber`] (RFC 5).
    SequenceNumberBits,
    /// The metadata that the packet belongs to (RFC 5).
    SessionId,
    /// Checksum of the stored content (RFC 5).
    Checksum,
    /// The checksum algorithm (RFC 5).
    ChecksumScheme,
    /// The compression of the content (RFC 5).
    CompressionScheme,
    /// The encryption of the content (RFC 5).
    EncryptionScheme,
}

impl Role {
    pub(crate) const COUNT: usize = Role::EncryptionScheme as usize + 1;
}

/// A number whose ranges have names.
#[derive(Clone, Debug, PartialEq)]
pub struct Enumeration {
    /// How the number is stored.
    pub integer: Integer,
    /// The names; ranges may overlap.
    pub mappings: Vec<Mapping>,
}

/// Bits, some of which have names.
#[derive(Clone, Debug, PartialEq)]
pub struct BitMap {
    /// How the bits are stored; unsigned.
    pub integer: Integer,
    /// Names of ranges of bits, counted from the least significant one. A bit array has no names.
    pub flags: Vec<Mapping>,
}

/// A name of some ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The name.
    pub name: String,
    /// The values with this name.
    pub ranges: Vec<Range>,
}

/// Integers from `first` to `last`, both included. Wide enough for signed and unsigned 64-bit
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The smallest.
    pub first: i128,
    /// The largest.
    pub last: i128,
}

impl Range {
    /// One number.
    pub const fn one(value: i128) -> Range {
        Range {
            first: value,
            last: value,
        }
    }

    /// Whether both have a number in common.
    pub(crate) fn meets(&self, other: &Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// All numbers but zero: the values of a boolean tag that mean true.
    pub const TRUE: [Range; 2] = [
        Range {
            first: i128::MIN,
            last: -1,
        },
        Range {
            first: 1,
            last: i128::MAX,
        },
    ];

    /// Whether `value` lies in it.
    pub const fn contains(&self, value: i128) -> bool {
        self.first <= value && value <= self.last
    }
}

/// An IEEE 754 binary number of 32 or 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float {
    /// Bits: 32 or 64.
    pub size: u32,
    /// Alignment in bits, a power of two.
    pub align: u32,
    /// Order of its bytes.
    pub byte_order: Endian,
    /// Whether its first bit has the significance of the last one, as [`Storage::Reversed`].
    pub reversed: bool,
}

/// Fields with names, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Struct {
    /// The fields; names are unique.
    pub members: Vec<Member>,
    /// Least alignment in bits, a power of two; 0 and 1: only what the members need.
    pub min_align: u32,
}

/// A field of a struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Name, without 1.8's escaping underscore.
    pub name: String,
    /// Class.
    pub class: FieldClass,
}

impl Struct {
    /// The number with the payload's size, of a context that consists of it (RFC 7).
    pub fn payload_size(&self) -> Option<Integer> {
        match self.members.as_slice() {
            [member] if member.name == PAYLOAD_SIZE => match &member.class {
                FieldClass::Integer(integer) if integer.size == 16 && !integer.signed => Some(*integer),
                _ => None,
            },
            _ => None,
        }
    }

    /// No field yet.
    pub fn new() -> Struct {
        Struct::default()
    }

    /// The same with one more field.
    #[must_use]
    pub fn with(mut self, name: &str, class: impl Into<FieldClass>) -> Struct {
        self.members.push(Member {
            name: name.to_owned(),
            class: class.into(),
        });
        self
    }

    /// The field with this name.
    pub fn get(&self, name: &str) -> Option<&FieldClass> {
        self.members
            .iter()
            .find(|member| member.name == name)
            .map(|member| &member.class)
    }
}

/// Elements of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The number of elements.
    pub length: Length,
    /// The class of the elements.
    pub element: Box<FieldClass>,
    /// Least alignment in bits, a power of two; 0 and 1: only what the elements need (CTF 2).
    pub min_align: u32,
    /// Packet header: the 16 bytes are the trace's UUID.
    pub trace_uuid: bool,
    /// The bytes are one value, not numbers (CTF 2).
    pub blob: bool,
}

impl Array {
    /// Always `length` elements.
    pub fn fixed(length: u64, element: impl Into<FieldClass>) -> Array {
        Array {
            length: Length::Fixed(length),
            element: Box::new(element.into()),
            min_align: 0,
            trace_uuid: false,
            blob: false,
        }
    }

    /// As many elements as the value of an earlier integer (1.8's sequence).
    pub fn sequence(length: Reference, element: impl Into<FieldClass>) -> Array {
        Array {
            length: Length::Field(length),
            element: Box::new(element.into()),
            min_align: 0,
            trace_uuid: false,
            blob: false,
        }
    }
}

/// The number of elements of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Length {
    /// A constant.
    Fixed(u64),
    /// The value of an earlier unsigned integer.
    Field(Reference),
    /// The value of an unsigned integer directly before the first element (RFC 4.2.3).
    Prefixed {
        /// The integer.
        length: Integer,
        /// Its name in a trace of another dialect, where it is a separate field.
        name: Option<String>,
    },
}

/// One of several classes, chosen by an earlier integer.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// The integer.
    pub tag: Reference,
    /// The classes. The first one whose ranges contain the tag's value is selected.
    pub options: Vec<VariantOption>,
}

/// A class of a variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantOption {
    /// Name; in 1.8 the label of the tag that selects it.
    pub name: String,
    /// Values of the tag that select it.
    pub ranges: Vec<Range>,
    /// The class.
    pub class: FieldClass,
}

/// A field whose presence depends on an earlier integer.
#[derive(Clone, Debug, PartialEq)]
pub struct Optional {
    /// The integer.
    pub tag: Reference,
    /// The values for which the field is present.
    pub ranges: Vec<Range>,
    /// The field.
    pub class: Box<FieldClass>,
}

/// An earlier field: the names of members, and of options of variants, from the root of a scope.
/// Arrays have no name: the path leads into the element that is being read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// The path's first struct.
    pub scope: Scope,
    /// Names, at least one.
    pub path: Vec<String>,
    /// Whether names of options are left out, so that the field of the selected option is meant
    /// (CTF 2, section 5.3.2).
    pub any_option: bool,
}

impl Reference {
    /// A field of the scope.
    pub fn new(scope: Scope, path: &[&str]) -> Reference {
        Reference {
            scope,
            path: path.iter().map(|&name| name.to_owned()).collect(),
            any_option: false,
        }
    }

    /// A field of the event's payload.
    pub fn payload(path: &[&str]) -> Reference {
        Reference::new(Scope::EventPayload, path)
    }
}

/// The structs that form packets and events, in stream order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// `trace.packet.header`.
    PacketHeader,
    /// `stream.packet.context`.
    PacketContext,
    /// `stream.event.header`.
    EventHeader,
    /// `stream.event.context`.
    StreamEventContext,
    /// `event.context`.
    EventContext,
    /// `event.fields`.
    EventPayload,
}

impl Scope {
    /// All scopes, in stream order.
    pub const ALL: [Scope; 6] = [
        Scope::PacketHeader,
        Scope::PacketContext,
        Scope::EventHeader,
        Scope::StreamEventContext,
        Scope::EventContext,
        Scope::EventPayload,
    ];

    /// Its name in 1.8 (CTF 1.8.3, section 7.3.2).
    pub const fn tsdl_name(self) -> &'static str {
        match self {
            Scope::PacketHeader => "trace.packet.header",
            Scope::PacketContext => "stream.packet.context",
            Scope::EventHeader => "stream.event.header",
            Scope::StreamEventContext => "stream.event.context",
            Scope::EventContext => "event.context",
            Scope::EventPayload => "event.fields",
        }
    }

    /// Its name in CTF 2 (section 5.3.2).
    pub const fn json_name(self) -> &'static str {
        match self {
            Scope::PacketHeader => "packet-header",
            Scope::PacketContext => "packet-context",
            Scope::EventHeader => "event-record-header",
            Scope::StreamEventContext => "event-record-common-context",
            Scope::EventContext => "event-record-specific-context",
            Scope::EventPayload => "event-record-payload",
        }
    }
}

macro_rules! into_field_class {
    ($($class:ident),*) => {
        $(impl From<$class> for FieldClass {
            fn from(class: $class) -> FieldClass {
                FieldClass::$class(class)
            }
        })*
    };
}
into_field_class!(Integer, Enumeration, Float, Struct, Array, Variant, Optional, BitMap);
