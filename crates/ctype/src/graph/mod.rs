//! Types as a graph in memory: what the reader, debug information and the linker fill and the
//! writer takes.

mod read;

use core::ops::Range;

use crate::constants::{Encoding, Kind};
use crate::read::{Array, Enumerator, Slice, StructMember, TypeId};

/// A type of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// The name; empty where it has none.
    pub name: &'a [u8],
    /// Whether look-ups by name see it ("root-visible").
    pub root: bool,
    /// What it is.
    pub body: Body,
}

/// What a type is. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A type that the format can't represent.
    Unknown,
    /// An integer or a float: its kind, its size, its encoding.
    Number(Kind, u64, Encoding),
    /// A pointer, a typedef or a qualifier: its kind, and what it refers to.
    Reference(Kind, TypeId),
    /// An array.
    Array(Array),
    /// A function.
    Function(Function),
    /// A struct or union: its kind, its size, its members.
    Aggregate(Kind, u64, Span),
    /// An enum: its size, its values.
    Enum(u64, Span),
    /// A struct, union or enum that is only declared: its kind.
    Forward(Kind),
    /// Some bits of another type: the size of their storage, and which they are.
    Slice(u64, Slice),
}

/// A function type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// What it returns.
    pub returns: TypeId,
    /// Its arguments.
    pub arguments: Span,
    /// Whether more may follow.
    pub variadic: bool,
}

/// Members, values or arguments in their graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    fn of<T>(list: &[T], len: usize) -> Span {
        Span {
            start: (list.len() - len) as u32,
            len: len as u32,
        }
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }

    /// How many.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Types that refer to each other. Their names are borrowed from what they were made of.
#[derive(Clone, Debug, Default)]
pub struct Graph<'a> {
    child: bool,
    nodes: Vec<Node<'a>>,
    members: Vec<StructMember<'a>>,
    values: Vec<Enumerator<'a>>,
    arguments: Vec<TypeId>,
}

impl<'a> Graph<'a> {
    /// A graph without types.
    pub fn new() -> Graph<'a> {
        Graph::default()
    }

    /// One of a child: its own types' ids have the uppermost bit set, all others are of the parent.
    pub fn of_child() -> Graph<'a> {
        Graph {
            child: true,
            ..Graph::default()
        }
    }

    /// Whether it is a child's.
    pub fn is_child(&self) -> bool {
        self.child
    }

    /// How many types there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a type.
    pub fn add(&mut self, node: Node<'a>) -> TypeId {
        self.nodes.push(node);
        TypeId::new(self.nodes.len() as u32, self.child)
    }

    /// Adds a type without a name, which look-ups by name see.
    pub fn add_nameless(&mut self, body: Body) -> TypeId {
        self.add(Node {
            name: &[],
            root: true,
            body,
        })
    }

    /// Puts another type in the place of an own one, which others may refer to already. Nothing
    /// happens where there is none.
    pub fn replace(&mut self, id: TypeId, node: Node<'a>) {
        if let Some(place) = self.index(id).and_then(|index| self.nodes.get_mut(index)) {
            *place = node;
        }
    }

    /// Adds members that a struct or union may have.
    pub fn add_members(&mut self, members: impl IntoIterator<Item = StructMember<'a>>) -> Span {
        let before = self.members.len();
        self.members.extend(members);
        Span::of(&self.members, self.members.len() - before)
    }

    /// Adds values that an enum may have.
    pub fn add_values(&mut self, values: impl IntoIterator<Item = Enumerator<'a>>) -> Span {
        let before = self.values.len();
        self.values.extend(values);
        Span::of(&self.values, self.values.len() - before)
    }

    /// Adds arguments that a function may have.
    pub fn add_arguments(&mut self, arguments: impl IntoIterator<Item = TypeId>) -> Span {
        let before = self.arguments.len();
        self.arguments.extend(arguments);
        Span::of(&self.arguments, self.arguments.len() - before)
    }

    /// An own type.
    pub fn get(&self, id: TypeId) -> Option<&Node<'a>> {
        self.nodes.get(self.index(id)?)
    }

    /// All types, in the order of their ids.
    pub fn nodes(&self) -> &[Node<'a>] {
        &self.nodes
    }

    /// The id of the type at this place of [`Graph::nodes`].
    pub fn id(&self, index: usize) -> TypeId {
        TypeId::new(index as u32 + 1, self.child)
    }

    /// Where in [`Graph::nodes`] an own type is.
    pub fn index(&self, id: TypeId) -> Option<usize> {
        // A child's id may say that it is the one before the first.
        let index = (id.index() as usize).checked_sub(1)?;
        (id.is_child() == self.child).then_some(index)
    }

    /// Members of a struct or union.
    pub fn members(&self, span: Span) -> &[StructMember<'a>] {
        self.members.get(span.range()).unwrap_or_default()
    }

    /// Values of an enum.
    pub fn values(&self, span: Span) -> &[Enumerator<'a>] {
        self.values.get(span.range()).unwrap_or_default()
    }

    /// Arguments of a function.
    pub fn arguments(&self, span: Span) -> &[TypeId] {
        self.arguments.get(span.range()).unwrap_or_default()
    }

    /// Adds a copy of another graph's type. Each type that it refers to becomes what `id` makes of
    /// it.
    pub fn add_copy(&mut self, from: &Graph<'a>, node: &Node<'a>, id: &mut dyn FnMut(TypeId) -> TypeId) -> TypeId {
        let body = match node.body {
            Body::Unknown | Body::Number(..) | Body::Forward(_) => node.body,
            Body::Reference(kind, to) => Body::Reference(kind, id(to)),
            Body::Array(array) => Body::Array(Array {
                contents: id(array.contents),
                index: id(array.index),
                ..array
            }),
            Body::Function(function) => Body::Function(Function {
                returns: id(function.returns),
                arguments: self.add_arguments(from.arguments(function.arguments).iter().map(|&to| id(to))),
                ..function
            }),
            Body::Aggregate(kind, size, members) => {
                let members = from.members(members).iter();
                let members = members.map(|member| StructMember {
                    id: id(member.id),
                    ..*member
                });
                Body::Aggregate(kind, size, self.add_members(members))
            }
            Body::Enum(size, values) => Body::Enum(size, self.add_values(from.values(values).iter().copied())),
            Body::Slice(size, slice) => Body::Slice(
                size,
                Slice {
                    of: id(slice.of),
                    ..slice
                },
            ),
        };
        self.add(Node { body, ..*node })
    }

    /// Every type that a type refers to.
    pub fn references(&self, node: &Node<'a>, mut each: impl FnMut(TypeId)) {
        match node.body {
            Body::Unknown | Body::Number(..) | Body::Forward(_) | Body::Enum(..) => {}
            Body::Reference(_, to) => each(to),
            Body::Array(array) => {
                each(array.contents);
                each(array.index);
            }
            Body::Function(function) => {
                each(function.returns);
                self.arguments(function.arguments).iter().for_each(|&to| each(to));
            }
            Body::Aggregate(_, _, members) => self.members(members).iter().for_each(|member| each(member.id)),
            Body::Slice(_, slice) => each(slice.of),
        }
    }
}

impl Body {
    /// The kind.
    pub fn kind(&self) -> Kind {
        match *self {
            Body::Unknown => Kind::Unknown,
            Body::Number(kind, ..) | Body::Reference(kind, _) | Body::Aggregate(kind, ..) => kind,
            Body::Array(_) => Kind::Array,
            Body::Function(_) => Kind::Function,
            Body::Enum(..) => Kind::Enum,
            Body::Forward(_) => Kind::Forward,
            Body::Slice(..) => Kind::Slice,
        }
    }

    /// The namespace in which the type has its name: struct, union or enum, or that of everything
    /// else ("Type names").
    pub fn namespace(&self) -> Option<Kind> {
        match *self {
            Body::Aggregate(kind, ..) | Body::Forward(kind) => Some(kind),
            Body::Enum(..) => Some(Kind::Enum),
            _ => None,
        }
    }
}
