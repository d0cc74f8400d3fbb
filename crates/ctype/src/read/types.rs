//! Looking up types by id, and decoding the data after each kind's record ("The type section").

use super::dict::{Dict, WideValue};
use super::record::{Record, TypeId};
use crate::constants::{Encoding, Kind};
use crate::error::{Error, ErrorKind, Result};

/// The longest chain of references to follow; real ones end after a dozen.
pub(crate) const MAX_REFERENCES: usize = 512;

/// A dict together with its parent, for looking up types.
#[derive(Clone, Copy, Debug)]
pub struct Types<'d> {
    dict: &'d Dict<'d>,
    parent: Option<&'d Dict<'d>>,
}

impl Dict<'_> {
    /// Looks up types in this dict alone. A child needs [`Types::with_parent`].
    pub fn types(&self) -> Types<'_> {
        Types::new(self, None)
    }
}

impl<'d> Types<'d> {
    pub(crate) fn new(dict: &'d Dict<'d>, parent: Option<&'d Dict<'d>>) -> Types<'d> {
        // The types of a parent's own parent have no ids in the child.
        let parent = parent.filter(|parent| dict.is_child() && !parent.is_child());
        Types { dict, parent }
    }

    /// Looks up types in `dict`, and ids that are not its own in `parent`.
    pub fn with_parent(dict: &'d Dict<'d>, parent: Option<&'d Dict<'d>>) -> Types<'d> {
        Types::new(dict, parent)
    }

    /// The dict itself.
    pub fn dict(&self) -> &'d Dict<'d> {
        self.dict
    }

    /// The dict's parent, if available.
    pub fn parent(&self) -> Option<&'d Dict<'d>> {
        self.parent
    }

    /// The type with this id.
    pub fn get(&self, id: TypeId) -> Result<Type<'d>> {
        let dict = match (self.dict.is_child(), id.is_child()) {
            (true, true) | (false, false) => self.dict,
            (true, false) => match self.parent {
                Some(parent) => parent,
                None => return Err(Error::new(ErrorKind::NoParent(id.0), 0)),
            },
            (false, true) => return Err(Error::new(ErrorKind::TypeId(id.0), 0)),
        };
        let record = dict.record(id.index())?;
        Ok(Type { dict, id, record })
    }

    /// The type without typedefs and qualifiers.
    pub fn resolve(&self, id: TypeId) -> Result<Type<'d>> {
        let mut found = self.get(id)?;
        for _ in 0..MAX_REFERENCES {
            match found.kind() {
                Kind::Typedef | Kind::Volatile | Kind::Const | Kind::Restrict => {
                    found = self.get(found.reference()?)?;
                }
                _ => return Ok(found),
            }
        }
        Err(found.error(ErrorKind::Cycle(id.0)))
    }
}

/// A type.
#[derive(Clone, Copy, Debug)]
pub struct Type<'d> {
    dict: &'d Dict<'d>,
    id: TypeId,
    record: Record,
}

/// An array type ("Arrays").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of an element.
    pub contents: TypeId,
    /// The type of an index.
    pub index: TypeId,
    /// The number of elements; also 0 if the C declaration leaves it open.
    pub count: u32,
}

/// Some bits of another type ("Slices").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The type that is sliced.
    pub of: TypeId,
    /// The offset of the first bit.
    pub offset: u16,
    /// The number of bits.
    pub bits: u16,
}

/// A member of a struct or union ("Structs and unions").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructMember<'d> {
    /// Its name; empty for an anonymous struct or union.
    pub name: &'d [u8],
    /// The offset from the struct's start, in bits.
    pub offset: u64,
    /// Its type.
    pub id: TypeId,
}

/// A value of an enum ("Enums").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enumerator<'d> {
    /// Its name.
    pub name: &'d [u8],
    /// Its value.
    pub value: i32,
}

impl<'d> Type<'d> {
    /// The id.
    pub fn id(&self) -> TypeId {
        self.id
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.record.kind
    }

    /// Whether look-ups by name can find it ("root-visible").
    pub fn is_root(&self) -> bool {
        self.record.root
    }

    /// The name; empty if it has none. The type of a defined function may have the function's name.
    pub fn name(&self) -> Result<&'d [u8]> {
        self.dict.string(self.record.name)
    }

    /// The size in the record, in bytes: for integers, floats, structs, unions, enums and slices.
    pub fn size(&self) -> u64 {
        self.record.size
    }

    /// The type that a pointer points to, a typedef names, a qualifier qualifies, a slice slices,
    /// or a function returns.
    pub fn reference(&self) -> Result<TypeId> {
        match self.kind() {
            Kind::Pointer | Kind::Function | Kind::Typedef | Kind::Volatile | Kind::Const | Kind::Restrict => {
                Ok(TypeId::from_raw(self.record.word, self.dict.layout()))
            }
            Kind::Slice => Ok(self.slice()?.of),
            kind => Err(self.error(ErrorKind::WrongKind(kind))),
        }
    }

    /// The kind that a forward declares: struct, union or enum. An unknown number counts as a
    /// struct, because older producers left it open.
    pub fn forwarded(&self) -> Result<Kind> {
        match (self.kind(), Kind::from_number(self.record.word)) {
            (Kind::Forward, Some(kind @ (Kind::Union | Kind::Enum))) => Ok(kind),
            (Kind::Forward, _) => Ok(Kind::Struct),
            (kind, _) => Err(self.error(ErrorKind::WrongKind(kind))),
        }
    }

    /// The encoding of an integer or float.
    pub fn encoding(&self) -> Result<Encoding> {
        self.must_be(&[Kind::Integer, Kind::Float])?;
        let word = self.u32(0)?;
        Ok(Encoding {
            format: (word >> 24) as u8,
            offset: (word >> 16 & 0xff) as u16,
            bits: word as u16,
        })
    }

    /// The elements and index of an array.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the record was found to be whole; an entry of it, by its index"
    )]
    pub fn array(&self) -> Result<Array> {
        self.must_be(&[Kind::Array])?;
        let word = self.dict.layout().word;
        Ok(Array {
            contents: self.id_at(0)?,
            index: self.id_at(word)?,
            count: self.u32(2 * word)?,
        })
    }

    /// The bits of a slice.
    pub fn slice(&self) -> Result<Slice> {
        self.must_be(&[Kind::Slice])?;
        let raw = self.u32(0)?;
        Ok(Slice {
            of: TypeId::from_raw(raw, self.dict.layout()),
            offset: self.u16(4)?,
            bits: self.u16(6)?,
        })
    }

    /// The arguments of a function, and whether it is variadic. The terminating argument 0 of a
    /// variadic function is not included.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the record was found to be whole; an entry of it, by its index"
    )]
    pub fn arguments(&self) -> Result<(impl ExactSizeIterator<Item = Result<TypeId>> + use<'d>, bool)> {
        self.must_be(&[Kind::Function])?;
        let (this, word) = (*self, self.dict.layout().word);
        let last = match self.record.vlen {
            0 => None,
            count => Some(self.id_at((count - 1) * word)?),
        };
        let variadic = last.is_some_and(TypeId::is_none);
        let count = self.record.vlen - usize::from(variadic);
        Ok(((0..count).map(move |index| this.id_at(index * word)), variadic))
    }

    /// The members of a struct or union.
    pub fn members(&self) -> Result<Members<'d>> {
        self.must_be(&[Kind::Struct, Kind::Union])?;
        Ok(Members { of: *self, next: 0 })
    }

    /// The values of an enum.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the record was found to be whole; an entry of it, by its index"
    )]
    pub fn enumerators(&self) -> Result<impl ExactSizeIterator<Item = Result<Enumerator<'d>>> + use<'d>> {
        self.must_be(&[Kind::Enum])?;
        let this = *self;
        Ok((0..self.record.vlen).map(move |index| {
            let name = this.dict.string(this.u32(8 * index)?)?;
            let value = this.u32(8 * index + 4)? as i32;
            Ok(Enumerator { name, value })
        }))
    }

    /// The values of an enum, with those that the format cannot store: names, and values as text.
    pub fn all_values(&self) -> Result<Vec<(&'d [u8], String)>> {
        let mut all = Vec::new();
        for value in self.enumerators()? {
            let value = value?;
            all.push((value.name, value.value.to_string()));
        }
        for wide in self.wide_values() {
            let place = (wide.position as usize).min(all.len());
            all.insert(place, (&wide.name, wide.to_string()));
        }
        Ok(all)
    }

    /// The values of an enum that the format cannot store.
    pub fn wide_values(&self) -> &'d [WideValue] {
        self.dict.wide_values(self.id)
    }

    /// An error about this type.
    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        self.dict.located(Error::new(kind, self.record.data))
    }

    fn must_be(&self, kinds: &[Kind]) -> Result<()> {
        match kinds.contains(&self.kind()) {
            true => Ok(()),
            false => Err(self.error(ErrorKind::WrongKind(self.kind()))),
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the record was found to be whole; an entry of it, by its index"
    )]
    fn member(&self, index: usize) -> Result<StructMember<'d>> {
        let layout = self.dict.layout();
        let bytes = layout.member(self.size());
        let at = index * bytes;
        let (offset, id) = match (bytes, layout.wide()) {
            (12, _) => (u64::from(self.u32(at + 4)?), self.id_at(at + 8)?),
            (8, _) => (u64::from(self.u16(at + 6)?), self.id_at(at + 4)?),
            (_, true) => (self.halves(at + 4, at + 12)?, self.id_at(at + 8)?),
            (_, false) => (self.halves(at + 8, at + 12)?, self.id_at(at + 4)?),
        };
        let name = self.dict.string(self.u32(at)?)?;
        Ok(StructMember { name, offset, id })
    }

    fn halves(&self, high: usize, low: usize) -> Result<u64> {
        Ok(u64::from(self.u32(high)?) << 32 | u64::from(self.u32(low)?))
    }

    fn id_at(&self, offset: usize) -> Result<TypeId> {
        let raw = match self.dict.layout().wide() {
            true => self.u32(offset)?,
            false => self.u16(offset)?.into(),
        };
        Ok(TypeId::from_raw(raw, self.dict.layout()))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the record was found to be whole; an entry of it, by its index"
    )]
    fn u32(&self, offset: usize) -> Result<u32> {
        let read = self.dict.body().u32(self.record.data + offset);
        read.map_err(|error| self.dict.located(error.into()))
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the record was found to be whole; an entry of it, by its index"
    )]
    fn u16(&self, offset: usize) -> Result<u16> {
        let read = self.dict.body().u16(self.record.data + offset);
        read.map_err(|error| self.dict.located(error.into()))
    }
}

/// The members of a struct or union.
#[derive(Clone, Debug)]
pub struct Members<'d> {
    of: Type<'d>,
    next: usize,
}

impl<'d> Iterator for Members<'d> {
    type Item = Result<StructMember<'d>>;

    #[expect(clippy::arithmetic_side_effects, reason = "`next` is below the number of members")]
    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next;
        if index >= self.of.record.vlen {
            return None;
        }
        self.next += 1;
        Some(self.of.member(index))
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`next` is below the number of members")]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.of.record.vlen - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Members<'_> {}
