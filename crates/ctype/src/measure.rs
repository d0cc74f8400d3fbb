//! Sizes and alignments of types. They are cached, because otherwise nested types would be measured
//! again for each type that contains them.

use rustc_hash::FxHashMap;

use crate::constants::Kind;
use crate::error::{ErrorKind, Result};
use crate::read::{StructMember, TypeId, Types};

/// The deepest nesting of structs and arrays; real ones nest a few dozen deep.
const MAX_DEPTH: usize = 200;

/// How to derive the alignment of a struct, which the format does not store. Attributes in the
/// source may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlignmentRule {
    /// The alignment of the strictest member, as in C.
    StrictestMember,
    /// The alignment of the first member, as GNU tools print it.
    FirstMember,
}

/// Measures types.
#[derive(Debug)]
pub struct Measures<'d> {
    types: Types<'d>,
    rule: AlignmentRule,
    sizes: FxHashMap<TypeId, Result<u64>>,
    alignments: FxHashMap<TypeId, Result<u64>>,
}

/// The alignment of enums, and their size under [`AlignmentRule::FirstMember`].
const ENUM: u64 = 4;

impl<'d> Measures<'d> {
    /// Creates a cache for the types of a dict and its parent.
    pub fn new(types: Types<'d>, rule: AlignmentRule) -> Measures<'d> {
        Measures {
            types,
            rule,
            sizes: FxHashMap::default(),
            alignments: FxHashMap::default(),
        }
    }

    /// The size of a type in bytes; 0 for a function.
    pub fn size(&mut self, id: TypeId) -> Result<u64> {
        self.size_at(id, 0)
    }

    /// The alignment of a type in bytes; 0 for void and for a struct without members.
    pub fn alignment(&mut self, id: TypeId) -> Result<u64> {
        self.alignment_at(id, 0)
    }

    fn size_at(&mut self, id: TypeId, depth: usize) -> Result<u64> {
        if let Some(&known) = self.sizes.get(&id) {
            return known;
        }
        let size = self.find_size(id, depth);
        self.sizes.insert(id, size);
        size
    }

    fn find_size(&mut self, id: TypeId, depth: usize) -> Result<u64> {
        let found = self.types.resolve(id)?;
        if depth > MAX_DEPTH {
            return Err(found.error(ErrorKind::Cycle(id.0)));
        }
        match found.kind() {
            Kind::Pointer => Ok(self.types.dict().lent_pointer()),
            Kind::Function => Ok(0),
            Kind::Enum => Ok(if self.rule == AlignmentRule::FirstMember {
                ENUM
            } else {
                found.size()
            }),
            Kind::Array => {
                let array = found.array()?;
                let element = self.size_at(array.contents, depth + 1)?;
                let size = element.checked_mul(array.count.into());
                size.ok_or(found.error(ErrorKind::SizeOverflow(id.0)))
            }
            Kind::Unknown | Kind::Forward => Err(found.error(ErrorKind::NoSize(id.0))),
            _ => Ok(found.size()),
        }
    }

    fn alignment_at(&mut self, id: TypeId, depth: usize) -> Result<u64> {
        if let Some(&known) = self.alignments.get(&id) {
            return known;
        }
        let alignment = self.find_alignment(id, depth);
        self.alignments.insert(id, alignment);
        alignment
    }

    fn find_alignment(&mut self, id: TypeId, depth: usize) -> Result<u64> {
        let found = self.types.resolve(id)?;
        if depth > MAX_DEPTH {
            return Err(found.error(ErrorKind::Cycle(id.0)));
        }
        match found.kind() {
            Kind::Pointer | Kind::Function => Ok(self.types.dict().lent_pointer()),
            Kind::Enum => Ok(ENUM),
            Kind::Array => self.alignment_at(found.array()?.contents, depth + 1),
            Kind::Struct if self.rule == AlignmentRule::FirstMember => match found.members()?.next() {
                Some(first) => self.alignment_at(first?.id, depth + 1),
                None => Ok(0),
            },
            Kind::Struct | Kind::Union => {
                let mut strictest = 0;
                for member in found.members()? {
                    let StructMember { id, .. } = member?;
                    strictest = strictest.max(self.alignment_at(id, depth + 1)?);
                }
                Ok(strictest)
            }
            Kind::Unknown | Kind::Forward => Err(found.error(ErrorKind::NoSize(id.0))),
            _ => Ok(found.size()),
        }
    }
}
