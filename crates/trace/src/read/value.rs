//! The values of an event's fields, borrowed from the reader's buffers.

use crate::description::{Encoding, Integer, Mapping};
use crate::plan::{Field, FieldId, Found, LabelIndex, Node, Plan, Raw, Shape};
use backtrail_wire::{Bytes, Endian, read_bits, sign_extend};

/// A tape, and the data that it was made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    plan: &'a Plan,
    data: &'a [u8],
    tape: &'a [Node],
}

impl<'a> View<'a> {
    pub(super) fn new(plan: &'a Plan, data: &'a [u8], tape: &'a [Node]) -> View<'a> {
        View { plan, data, tape }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub(crate) fn field(&self, node: usize) -> &'a Field {
        self.plan.field(self.tape[node].field)
    }

    #[cfg(feature = "render")]
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub(crate) fn node(&self, node: usize) -> Node {
        self.tape[node]
    }

    /// The node after this one and its contents.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub(crate) fn after(&self, node: usize) -> usize {
        match self.tape.get(node).map(|node| node.raw) {
            Some(Raw::Group { end, .. }) => end as usize,
            _ => node + 1,
        }
    }

    /// A part of the packet.
    #[cfg(feature = "render")]
    pub(crate) fn bytes(&self, start: usize, end: usize) -> &'a [u8] {
        self.data.get(start..end).unwrap_or_default()
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub(crate) fn value(&self, node: usize) -> Option<Value<'a>> {
        let raw = self.tape.get(node)?.raw;
        Some(match (&self.field(node).shape, raw) {
            (Shape::Integer(class), Raw::Bits(bits)) => Value::Integer(IntegerValue::plain(bits, class)),
            (Shape::Enumeration(class, mappings), Raw::Bits(bits)) => {
                let labels = (!mappings.is_empty()).then_some(mappings);
                Value::Integer(IntegerValue { bits, class, labels })
            }
            (Shape::Float(class), Raw::Bits(bits)) => Value::Float(float(class.size, bits)),
            (shape, Raw::Bytes { start, end }) => self.text(shape, self.data.get(start..end)?),
            (Shape::Array(array), Raw::Packed { bit, count }) if array.blob => {
                let start = (bit / 8) as usize;
                Value::Blob(self.data.get(start..start + count as usize)?)
            }
            (Shape::Array(_), Raw::Packed { count, .. }) => Value::Array(Elements {
                view: *self,
                node,
                count,
            }),
            (Shape::Array(_), Raw::Group { count, .. }) => Value::Array(Elements {
                view: *self,
                node,
                count: u64::from(count),
            }),
            (Shape::BitMap(_, flags), Raw::Bits(bits)) => Value::Flags(Flags { bits, flags }),
            (Shape::Boolean(_), Raw::Bits(bits)) => Value::Boolean(bits != 0),
            (Shape::Variant { .. }, _) => Value::Variant(Chosen { view: *self, node }),
            (Shape::Optional { .. }, Raw::Group { count, .. }) => {
                Value::Optional((count > 0).then_some(Chosen { view: *self, node }))
            }
            (Shape::Struct(_), _) => Value::Struct(Fields { view: *self, node }),
            _ => return None,
        })
    }

    fn text(&self, shape: &Shape, bytes: &'a [u8]) -> Value<'a> {
        let encoding = match shape {
            Shape::String(encoding) => *encoding,
            Shape::Array(array) => match self.plan.field(array.element).integer() {
                Some(character) => character.encoding,
                None => Encoding::None,
            },
            _ => Encoding::None,
        };
        match encoding.unit_bytes() {
            1 => Value::Text(text(bytes)),
            _ => Value::WideText(WideText { bytes, encoding }),
        }
    }

    /// The elements of an array of plain numbers: their class, and their bits as on the tape.
    /// `None` for other arrays.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub(crate) fn plain_elements(&self, node: usize) -> Option<(PlainClass<'a>, impl Iterator<Item = u64> + use<'a>)> {
        let Raw::Packed { bit, count } = self.tape.get(node)?.raw else {
            return None;
        };
        let Shape::Array(array) = &self.field(node).shape else {
            return None;
        };
        let (class, size, order, signed) = match &self.plan.field(array.element).shape {
            Shape::Integer(class) => (PlainClass::Integer(class), class.size, class.byte_order, class.signed),
            Shape::Float(class) => (PlainClass::Float(class.size), class.size, class.byte_order, false),
            _ => return None,
        };
        let (data, stride) = (self.data, array.stride?);
        let values = (0..count).map(move |index| {
            let bits = read_bits(data, bit + index * stride, size, order).unwrap_or(0);
            match signed {
                true => sign_extend(bits, size) as u64,
                false => bits,
            }
        });
        Some((class, values))
    }
}

/// The class of plain elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlainClass<'a> {
    Integer(&'a Integer),
    /// Its bits.
    Float(u32),
}

impl<'a> PlainClass<'a> {
    fn value(self, bits: u64) -> Value<'a> {
        match self {
            PlainClass::Integer(class) => Value::Integer(IntegerValue::plain(bits, class)),
            PlainClass::Float(size) => Value::Float(float(size, bits)),
        }
    }
}

pub(crate) fn float(size: u32, bits: u64) -> f64 {
    match size {
        32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// Text of fixed length ends at its first zero byte.
#[expect(
    clippy::indexing_slicing,
    reason = "nodes and ranges are those of this tape and its packet"
)]
fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

/// The value of a field. The methods access the selected option of a variant, and the field inside
/// an optional field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A number, also of an enumeration.
    Integer(IntegerValue<'a>),
    /// A floating point number.
    Float(f64),
    /// A text, usually UTF-8, without its zero byte.
    Text(&'a [u8]),
    /// A text in UTF-16 or UTF-32.
    WideText(WideText<'a>),
    /// Bytes that are not numbers.
    Blob(&'a [u8]),
    /// Fields with names.
    Struct(Fields<'a>),
    /// Elements.
    Array(Elements<'a>),
    /// One of several.
    Variant(Chosen<'a>),
    /// A field that may be absent.
    Optional(Option<Chosen<'a>>),
    /// Bits with names.
    Flags(Flags<'a>),
    /// True or false.
    Boolean(bool),
}

/// A text in UTF-16 or UTF-32.
#[derive(Clone, Copy, Debug)]
pub struct WideText<'a> {
    bytes: &'a [u8],
    encoding: Encoding,
}

impl WideText<'_> {
    /// Its characters up to the first zero; invalid ones are replaced.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "as many units as bytes; surrogates were compared with their ranges"
    )]
    pub fn chars(&self) -> impl Iterator<Item = char> {
        let order = match self.encoding {
            Encoding::Utf16Be | Encoding::Utf32Be => Endian::Big,
            _ => Endian::Little,
        };
        let unit = self.encoding.unit_bytes();
        let bytes = Bytes::new(self.bytes, order);
        let units = (0..self.bytes.len() / unit).map(move |index| match unit {
            2 => bytes.u16(index * unit).map_or(0, u32::from),
            _ => bytes.u32(index * unit).unwrap_or(0),
        });
        let mut units = units.take_while(|&unit| unit != 0).peekable();
        let wide = unit == 2;
        std::iter::from_fn(move || {
            let first = units.next()?;
            let is_high = wide && (0xd800..0xdc00).contains(&first);
            let low = if is_high {
                units.next_if(|low| (0xdc00..0xe000).contains(low))
            } else {
                None
            };
            let character = match low {
                Some(low) => 0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00),
                None => first,
            };
            Some(char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER))
        })
    }
}

/// Bits, some of which have names.
#[derive(Clone, Copy, Debug)]
pub struct Flags<'a> {
    bits: u64,
    flags: &'a [Mapping],
}

impl<'a> Flags<'a> {
    /// All bits.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Names with at least one bit set, in the order of the metadata.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let bits = self.bits;
        let set = move |place: u32| bits >> place & 1 == 1;
        self.flags
            .iter()
            .filter(move |flag| {
                let named = |place: u32| flag.ranges.iter().any(|range| range.contains(i128::from(place)));
                (0..u64::BITS).any(|place| set(place) && named(place))
            })
            .map(|flag| flag.name.as_str())
    }
}

/// The selected option of a variant, or a present optional field.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    view: View<'a>,
    node: usize,
}

impl<'a> Chosen<'a> {
    /// Its value.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub fn value(&self) -> Option<Value<'a>> {
        self.view.value(self.node + 1)
    }
}

impl<'a> Value<'a> {
    /// The value itself, or the selected option, also through nested variants.
    fn chosen(self) -> Option<Value<'a>> {
        let mut value = self;
        loop {
            value = match value {
                Value::Variant(chosen) => chosen.value()?,
                Value::Optional(chosen) => chosen?.value()?,
                other => return Some(other),
            };
        }
    }

    /// The number, if the value is one and not negative.
    #[inline]
    pub fn as_u64(&self) -> Option<u64> {
        if let Value::Integer(integer) = self {
            return integer.as_u64();
        }
        match self.chosen()? {
            Value::Integer(integer) => integer.as_u64(),
            _ => None,
        }
    }

    /// The number, if the value is one and fits.
    #[inline]
    pub fn as_i64(&self) -> Option<i64> {
        if let Value::Integer(integer) = self {
            return integer.as_i64();
        }
        match self.chosen()? {
            Value::Integer(integer) => integer.as_i64(),
            _ => None,
        }
    }

    /// The floating point number.
    pub fn as_f64(&self) -> Option<f64> {
        match self.chosen()? {
            Value::Float(value) => Some(value),
            _ => None,
        }
    }

    /// The text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match self.chosen()? {
            Value::Text(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// The bytes of a text, of a BLOB or of an array of plain bytes.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match self.chosen()? {
            Value::Text(text) => Some(text),
            Value::Blob(bytes) => Some(bytes),
            Value::Array(elements) => elements.as_bytes(),
            _ => None,
        }
    }

    /// The elements.
    pub fn as_array(&self) -> Option<Elements<'a>> {
        match self.chosen()? {
            Value::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The fields.
    pub fn as_struct(&self) -> Option<Fields<'a>> {
        match self.chosen()? {
            Value::Struct(fields) => Some(fields),
            _ => None,
        }
    }
}

/// A number and its class.
#[derive(Clone, Copy, Debug)]
pub struct IntegerValue<'a> {
    bits: u64,
    class: &'a Integer,
    labels: Option<&'a LabelIndex>,
}

impl<'a> IntegerValue<'a> {
    pub(crate) fn plain(bits: u64, class: &'a Integer) -> IntegerValue<'a> {
        IntegerValue {
            bits,
            class,
            labels: None,
        }
    }

    /// The bits of the number, in two's complement if the class is signed.
    pub(crate) fn bits(&self) -> u64 {
        self.bits
    }

    /// The number.
    pub fn value(&self) -> i128 {
        match self.class.signed {
            true => i128::from(self.bits as i64),
            false => i128::from(self.bits),
        }
    }

    /// The number, if it is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        u64::try_from(self.value()).ok()
    }

    /// The number, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        i64::try_from(self.value()).ok()
    }

    /// How it is stored and printed.
    pub fn class(&self) -> &'a Integer {
        self.class
    }

    /// The names of the number, if its class is an enumeration.
    pub fn labels(&self) -> Option<Labels<'a>> {
        Some(Labels(self.labels?.labels(self.value())))
    }
}

/// Prints the number in decimal, avoiding 128-bit arithmetic.
impl std::fmt::Display for IntegerValue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.class.signed {
            true => (self.bits as i64).fmt(f),
            false => self.bits.fmt(f),
        }
    }
}

/// The names of a number: none, one or several.
#[derive(Clone, Debug)]
pub struct Labels<'a>(Found<'a>);

impl<'a> Iterator for Labels<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }
}

/// The fields of a struct.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    pub(crate) view: View<'a>,
    pub(crate) node: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(view: View<'a>, node: usize) -> Fields<'a> {
        Fields { view, node }
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let view = self.view;
        self.nodes()
            .filter_map(move |node| Some((&*view.field(node).name, view.value(node)?)))
    }

    /// The value of the field with this name.
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        let node = self.nodes().find(|&node| &*self.view.field(node).name == name)?;
        self.view.value(node)
    }

    /// Where the field with this name is on the tape, its plan, and its value.
    #[expect(
        clippy::indexing_slicing,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub(super) fn find(&self, name: &str) -> Option<(usize, FieldId, Option<Value<'a>>)> {
        let node = self.nodes().find(|&node| &*self.view.field(node).name == name)?;
        Some((node, self.view.tape[node].field, self.view.value(node)))
    }

    #[cfg(feature = "render")]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub(crate) fn is_empty(&self) -> bool {
        self.view.after(self.node) <= self.node + 1
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    fn nodes(&self) -> impl Iterator<Item = usize> + use<'a> {
        let view = self.view;
        let end = view.after(self.node);
        std::iter::successors(Some(self.node + 1), move |&node| Some(view.after(node)))
            .take_while(move |&node| node < end)
    }

    /// The fields without a role in the trace's structure, as tools print a packet context.
    pub fn without_roles(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let view = self.view;
        self.nodes()
            .filter(move |&node| view.field(node).role().is_none())
            .filter_map(move |node| Some((&*view.field(node).name, view.value(node)?)))
    }
}

/// The elements of an array.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    view: View<'a>,
    node: usize,
    count: u64,
}

impl<'a> Elements<'a> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All elements, in order.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let Elements { view, node, count } = *self;
        let mut plain = view.plain_elements(node);
        let mut next = node + 1;
        (0..count).map_while(move |_| match &mut plain {
            Some((class, values)) => Some(class.value(values.next()?)),
            None => {
                let value = view.value(next);
                next = view.after(next);
                value
            }
        })
    }

    /// The elements as unsigned numbers; other values count as 0.
    pub fn u64s(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.iter().map(|value| value.as_u64().unwrap_or(0))
    }

    /// The bytes, if elements are 8-bit numbers.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "nodes and ranges are those of this tape and its packet"
    )]
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        let Raw::Packed { bit, count } = self.view.tape[self.node].raw else {
            return None;
        };
        let Shape::Array(array) = &self.view.field(self.node).shape else {
            return None;
        };
        let element = self.view.plan.field(array.element).integer()?;
        if element.size != 8 || array.stride != Some(8) || !bit.is_multiple_of(8) {
            return None;
        }
        let start = (bit / 8) as usize;
        self.view.data.get(start..start + count as usize)
    }
}
