//! The properties that users of a type rely on: its size, its members and their offsets, its
//! values.

use std::fmt;

use super::Severity;
use super::reach::Node;
use super::same::{Comparison, Likeness};
use crate::constants::Kind;
use crate::error::{ErrorKind, Result};
use crate::measure::{AlignmentRule, Measures};
use crate::print::Plain;
use crate::read::{TypeId, Types};

/// Limits on nested nameless structs, and on the members of a type including those of nameless
/// structs.
const MAX_DEPTH: usize = 40;
const MAX_MEMBERS: usize = 1 << 18;

/// A type as its users see it.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// For a typedef of another type, that type.
    of: Option<(String, Node)>,
    size: Option<u64>,
    members: Vec<Member>,
    values: Vec<(String, String)>,
}

#[derive(Debug)]
struct Member {
    /// Includes the enclosing members, if they have a nameless type.
    path: String,
    declaration: String,
    bit_offset: u64,
    bits: Option<u16>,
    size: Option<u64>,
    /// Its type, without that of the bit field.
    of: Node,
    sort: Sort,
}

/// What decides in which registers a member is passed, with the struct that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Float,
    Other,
    /// A nameless struct or union, whose members are listed.
    Listed,
    /// A named struct or union.
    Named,
}

/// One difference.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Aspect {
    Size(Option<u64>, Option<u64>),
    Of(String, String),
    Moved(String, u64, u64),
    Resized(String, String, String),
    /// The type is the same to code, but its qualifiers differ (`const`, …).
    Qualified(String, String),
    QualifiedMember(String, String, String),
    Removed(String),
    /// Another member of the same type took its place.
    Renamed(String, String),
    /// A new member, and its bit offset.
    Added(String, u64),
    ValueChanged(String, String, String),
    ValueRemoved(String),
    ValueAdded(String, String),
}

impl Layout {
    /// The layout of the type at a node, which is in a dict with these types.
    pub(super) fn of(types: Types<'_>, Node { unit, id }: Node) -> Result<Layout> {
        let mut layout = Layout::default();
        let mut reader = Reader {
            unit,
            types,
            plain: Plain::new(types),
            measures: Measures::new(types, AlignmentRule::StrictestMember),
        };
        let found = types.get(id)?;
        let body = match found.kind() {
            Kind::Typedef => types.get(found.reference()?)?,
            _ => found,
        };
        layout.size = reader.measures.size(id).ok();
        let nameless = body.name()?.is_empty();
        match body.kind() {
            Kind::Struct | Kind::Union if nameless || found.kind() != Kind::Typedef => {
                reader.members(body.id(), "", 0, 0, &mut layout.members)?;
            }
            Kind::Enum if nameless || found.kind() != Kind::Typedef => {
                for (name, value) in body.all_values()? {
                    layout.values.push((String::from_utf8_lossy(name).into_owned(), value));
                }
            }
            // Changes to the named type are reported for that type.
            _ => {
                let of = Node { unit, id: body.id() };
                layout.of = Some((reader.plain.declaration(body.id(), "")?, of));
            }
        }
        Ok(layout)
    }

    pub(super) fn compare(&self, new: &Layout, comparison: &mut Comparison<'_, '_>) -> Vec<Aspect> {
        let mut aspects = Vec::new();
        let likeness = match (&self.of, &new.of) {
            (Some((_, one)), Some((_, other))) => comparison.compare(*one, *other),
            (None, None) => Likeness::Same,
            _ => Likeness::Different,
        };
        // The size of a typedef changes with that of the type it names, for which it is reported.
        let is_of_another = self.of.is_some() && likeness != Likeness::Different;
        if self.size != new.size && !is_of_another {
            aspects.push(Aspect::Size(self.size, new.size));
        }
        if likeness != Likeness::Same {
            let text = |of: &Option<(String, Node)>| match of {
                Some((text, _)) => text.clone(),
                None => "a type of its own".to_owned(),
            };
            let (before, after) = (text(&self.of), text(&new.of));
            aspects.push(match likeness {
                Likeness::Different => Aspect::Of(before, after),
                _ => Aspect::Qualified(before, after),
            });
        }
        self.compare_members(new, &mut aspects, comparison);
        for (name, value) in &self.values {
            match new.values.iter().find(|(other, _)| other == name) {
                None => aspects.push(Aspect::ValueRemoved(name.clone())),
                Some((_, now)) if now != value => {
                    aspects.push(Aspect::ValueChanged(name.clone(), value.clone(), now.clone()))
                }
                Some(_) => {}
            }
        }
        for (name, value) in &new.values {
            if !self.values.iter().any(|(other, _)| other == name) {
                aspects.push(Aspect::ValueAdded(name.clone(), value.clone()));
            }
        }
        aspects
    }

    /// Whether a new member is in eight bytes that held floats only, of a type that registers hold:
    /// these eight bytes are then passed in a general register.
    pub(super) fn is_passed_otherwise(&self, new: &Layout, aspects: &[Aspect]) -> bool {
        const EIGHT_BYTES: u64 = 64;
        if self.size.is_none_or(|size| size > 16) || self.size != new.size {
            return false;
        }
        let added = aspects.iter().filter_map(|aspect| match aspect {
            Aspect::Added(path, at) => Some((path, at)),
            _ => None,
        });
        let mut added = added.filter(|(path, at)| {
            let mut members = new.members.iter();
            members.any(|member| member.path == **path && member.bit_offset == **at && member.sort == Sort::Other)
        });
        added.any(|(_, at)| {
            let eight = at / EIGHT_BYTES;
            let overlaps = |member: &&Member| {
                let bits = member.size.unwrap_or(0).saturating_mul(8).max(1);
                let last = member.bit_offset.saturating_add(bits - 1);
                (member.bit_offset / EIGHT_BYTES..=last / EIGHT_BYTES).contains(&eight)
            };
            let before = self.members.iter().filter(overlaps);
            let sorts: Vec<Sort> = before
                .map(|member| member.sort)
                .filter(|sort| *sort != Sort::Listed)
                .collect();
            !sorts.is_empty() && sorts.iter().all(|sort| *sort == Sort::Float)
        })
    }

    /// How much these differences matter to those who see the type.
    pub(super) fn severity(&self, aspects: &[Aspect]) -> Severity {
        let mut breaking = aspects.iter().filter(|aspect| aspect.is_breaking()).peekable();
        if breaking.peek().is_none() {
            return Severity::Harmless;
        }
        let grows = |aspect: &Aspect| matches!(aspect, Aspect::Size(Some(old), Some(new)) if old < new);
        let has_members = !self.members.is_empty();
        match has_members && breaking.all(grows) {
            true => Severity::Possible,
            false => Severity::Breaking,
        }
    }

    fn compare_members(&self, new: &Layout, aspects: &mut Vec<Aspect>, comparison: &mut Comparison<'_, '_>) {
        // Names may repeat in nameless unions: the first one matches the first.
        let mut taken = vec![false; new.members.len()];
        let mut gone = Vec::new();
        for member in &self.members {
            let mut all = new.members.iter().enumerate();
            let found = all.find(|(index, other)| !taken[*index] && other.path == member.path);
            let Some((index, now)) = found else {
                gone.push(member);
                continue;
            };
            taken[index] = true;
            if now.bit_offset != member.bit_offset {
                aspects.push(Aspect::Moved(member.path.clone(), member.bit_offset, now.bit_offset));
            }
            let likeness = member.likeness(now, comparison);
            if likeness != Likeness::Same {
                let (path, before, after) = (member.path.clone(), member.text(), now.text());
                aspects.push(match likeness {
                    Likeness::Different => Aspect::Resized(path, before, after),
                    _ => Aspect::QualifiedMember(path, before, after),
                });
            }
        }
        for member in gone {
            let mut all = new.members.iter().enumerate();
            let found = all.find(|(index, other)| {
                let same_place = !taken[*index] && other.bit_offset == member.bit_offset;
                same_place && member.likeness(other, comparison) != Likeness::Different
            });
            aspects.push(match found {
                Some((index, now)) => {
                    taken[index] = true;
                    Aspect::Renamed(member.path.clone(), now.path.clone())
                }
                None => Aspect::Removed(member.path.clone()),
            });
        }
        for (member, taken) in new.members.iter().zip(taken) {
            if !taken {
                aspects.push(Aspect::Added(member.path.clone(), member.bit_offset));
            }
        }
    }
}

impl Member {
    fn text(&self) -> String {
        match (self.bits, self.size) {
            (Some(bits), _) => format!("{} : {bits}", self.declaration),
            (None, Some(size)) => format!("{} ({size} bytes)", self.declaration),
            (None, None) => self.declaration.clone(),
        }
    }

    /// How much the types are alike.
    fn likeness(&self, now: &Member, comparison: &mut Comparison<'_, '_>) -> Likeness {
        if (self.bits, self.size) != (now.bits, now.size) {
            return Likeness::Different;
        }
        comparison.compare(self.of, now.of)
    }
}

struct Reader<'d> {
    unit: usize,
    types: Types<'d>,
    plain: Plain<'d>,
    measures: Measures<'d>,
}

impl Reader<'_> {
    fn members(&mut self, id: TypeId, path: &str, base: u64, depth: usize, out: &mut Vec<Member>) -> Result<()> {
        let found = self.types.get(id)?;
        if depth > MAX_DEPTH || out.len() > MAX_MEMBERS {
            return Err(found.error(ErrorKind::TooLong(id.0)));
        }
        for member in found.members()? {
            let member = member?;
            let name = String::from_utf8_lossy(member.name);
            let path = match (path.is_empty(), name.is_empty()) {
                (_, true) => path.to_owned(),
                (true, false) => name.into_owned(),
                (false, false) => format!("{path}.{name}"),
            };
            let bit_offset = base.saturating_add(member.offset);
            let of = self.types.get(member.id)?;
            let (bits, id) = match of.kind() {
                Kind::Slice => {
                    let slice = of.slice()?;
                    (Some(slice.bits), slice.of)
                }
                _ => (None, member.id),
            };
            let inner = self.nameless(id)?;
            if !member.name.is_empty() {
                out.push(Member {
                    declaration: self.plain.declaration(id, "")?,
                    size: self.measures.size(id).ok(),
                    path: path.clone(),
                    bit_offset,
                    bits,
                    of: Node { unit: self.unit, id },
                    sort: match inner {
                        Some(_) => Sort::Listed,
                        None => self.sort(id)?,
                    },
                });
            }
            if let Some(inner) = inner {
                self.members(inner, &path, bit_offset, depth + 1, out)?;
            }
        }
        Ok(())
    }

    fn sort(&self, id: TypeId) -> Result<Sort> {
        let mut found = self.types.get(id)?;
        for _ in 0..MAX_DEPTH {
            match found.kind() {
                Kind::Array => found = self.types.get(found.array()?.contents)?,
                Kind::Typedef => found = self.types.get(found.reference()?)?,
                kind if kind.is_qualifier() => found = self.types.get(found.reference()?)?,
                Kind::Float => return Ok(Sort::Float),
                Kind::Integer | Kind::Pointer | Kind::Enum => return Ok(Sort::Other),
                _ => break,
            }
        }
        Ok(Sort::Named)
    }

    /// The nameless struct or union that is a member's type, or its element type.
    fn nameless(&self, id: TypeId) -> Result<Option<TypeId>> {
        let mut found = self.types.get(id)?;
        for _ in 0..MAX_DEPTH {
            match found.kind() {
                Kind::Array => found = self.types.get(found.array()?.contents)?,
                kind if kind.is_qualifier() => found = self.types.get(found.reference()?)?,
                Kind::Struct | Kind::Union if found.name()?.is_empty() => return Ok(Some(found.id())),
                _ => break,
            }
        }
        Ok(None)
    }
}

impl Aspect {
    /// Whether code compiled against the old type would read the wrong place, or see other values.
    /// A new member in former padding, a new value, and other names and qualifiers don't affect it.
    fn is_breaking(&self) -> bool {
        !matches!(
            self,
            Aspect::Added(..)
                | Aspect::ValueAdded(..)
                | Aspect::Renamed(..)
                | Aspect::Qualified(..)
                | Aspect::QualifiedMember(..)
        )
    }
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Aspect::Size(Some(old), Some(new)) => write!(f, "{old} bytes, now {new}"),
            Aspect::Size(Some(old), None) => write!(f, "{old} bytes, now of no known size"),
            Aspect::Size(None, new) => write!(f, "of no known size, now {} bytes", new.unwrap_or(0)),
            Aspect::Of(old, new) | Aspect::Qualified(old, new) => write!(f, "was {old}, is {new}"),
            Aspect::Moved(name, old, new) => write!(f, "{name} was at {}, is at {}", Place(*old), Place(*new)),
            // The type's name is the same; the type has a line of its own.
            Aspect::Resized(name, old, new) if old == new => write!(f, "{name} is {old}, which has changed"),
            Aspect::Resized(name, old, new) | Aspect::QualifiedMember(name, old, new) => {
                write!(f, "{name} was {old}, is {new}")
            }
            Aspect::Renamed(old, new) => write!(f, "{old} is called {new}"),
            Aspect::Removed(name) => write!(f, "{name} is gone"),
            Aspect::Added(name, at) => write!(f, "{name} is new at {}", Place(*at)),
            Aspect::ValueChanged(name, old, new) => write!(f, "{name} was {old}, is {new}"),
            Aspect::ValueRemoved(name) => write!(f, "{name} is gone"),
            Aspect::ValueAdded(name, value) => write!(f, "{name} = {value} is new"),
        }
    }
}

/// Prints bytes, and bits if the offset is not a whole number of bytes.
struct Place(u64);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 8 {
            0 => write!(f, "{}", self.0 / 8),
            bit => write!(f, "{} bit {bit}", self.0 / 8),
        }
    }
}
