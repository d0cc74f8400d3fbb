//! Types of which the value selects the members, such as enums with data in Rust: as unions, whose
//! first members say which of the others there is.

use backtrail_ctype::graph::Body;
use backtrail_ctype::{Enumerator, Kind, StructMember, TypeId};
use gimli::constants as dw;
use rustc_hash::FxHashSet;

use super::build::{Builder, Place};
use super::dies::{Die, NONE};

/// Bits of an enumerator's value.
const HALF: u32 = 32;

/// A variant: its member, and the value that selects it, if it is not the one for all others.
type Variant<'d> = (Place, Die<'d>, Option<u64>);

impl<'d> Builder<'_, 'd> {
    /// Whether the entry is the struct of a variant's members. Many types have a variant of one
    /// name.
    pub(super) fn is_variant(&self, at: Place) -> bool {
        let parent = self.die(at).parent;
        parent != NONE && self.part((at.0, parent)).is_some()
    }

    /// The only variant part of a type.
    fn part(&self, at: Place) -> Option<(Place, Die<'d>)> {
        let children = self.children(at).into_iter();
        let mut parts = children.filter(|(_, child)| child.tag == dw::DW_TAG_variant_part);
        parts.next().filter(|_| parts.next().is_none())
    }

    /// A union of all variants, each a struct. It begins with a member without a name, the
    /// discriminant, followed by one or two enums without names, which name the variant that each
    /// value of its lower and its upper four bytes selects. A variant that they don't name has all
    /// other values. `None` if the type has anything else.
    pub(super) fn variants(&mut self, at: Place, die: &Die<'d>) -> Option<Body> {
        let (part, discriminant) = self.part(at)?;
        let is_member = |(_, child): &(Place, Die<'_>)| child.tag == dw::DW_TAG_member;
        if self.all.big || self.children(at).iter().any(is_member) {
            return None;
        }
        let variants = self.children(part).into_iter();
        let variants = variants.filter(|(_, child)| child.tag == dw::DW_TAG_variant);
        let variants = variants.map(|(place, variant)| {
            let mut members = self.children(place).into_iter().filter(is_member);
            let (place, member) = members.next().filter(|_| members.next().is_none())?;
            let selected = variant.value.map(|value| value as u64);
            (!variant.place.computed && !member.name.is_empty()).then_some((place, member, selected))
        });
        let variants: Vec<Variant<'d>> = variants.collect::<Option<_>>()?;
        let names: FxHashSet<&[u8]> = variants.iter().map(|(_, member, _)| member.name).collect();
        let others = variants.iter().filter(|(.., value)| value.is_none()).count();
        if names.len() != variants.len() || others > 1 {
            return None;
        }
        let mut members = match (discriminant.of, &variants[..]) {
            (None, [_]) => Vec::new(),
            (of, _) => {
                let place = self.all.resolve(at.0, of?)?;
                self.discriminant(place, &variants)?
            }
        };
        for (place, member, _) in &variants {
            members.push(self.member(*place, member));
        }
        let span = self.graph.add_members(members);
        Some(Body::Aggregate(Kind::Union, die.size?, span))
    }

    /// The members that select the variant.
    fn discriminant(&mut self, at: Place, variants: &[Variant<'d>]) -> Option<Vec<StructMember<'d>>> {
        let die = *self.die(at);
        let bytes = self.size_of(&die, at).filter(|bytes| matches!(bytes, 1 | 2 | 4 | 8))?;
        if die.place.computed || die.bits.is_some() {
            return None;
        }
        let offset = die.place.bytes.checked_mul(8)?;
        let id = self.type_of(&die, at);
        let nameless = |offset: u64, id: TypeId| StructMember { name: &[], offset, id };
        let mut members = vec![nameless(offset, id)];
        let halves = if bytes == 8 { 2 } else { 1 };
        for half in 0..halves {
            let mask = u64::MAX >> (64 - (bytes * 8).min(HALF.into()));
            let values = variants.iter().filter_map(|(_, member, value)| {
                let half = (*value)? >> (half * HALF) & mask;
                Some(Enumerator {
                    name: member.name,
                    value: half as u32 as i32,
                })
            });
            let values = self.graph.add_values(values.collect::<Vec<_>>());
            let id = self.graph.add_nameless(Body::Enum(bytes.min(4), values));
            members.push(nameless(offset + u64::from(half * HALF), id));
        }
        Some(members)
    }
}
