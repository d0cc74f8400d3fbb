//! Types as a graph in memory: the output of the reader, of debug information and of the linker,
//! and the input of the writer.

mod read;

use core::ops::Range;

use crate::constants::{Encoding, Kind};
use crate::read::{Array, Enumerator, Slice, StructMember, TypeId};

/// A type of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// The name; empty if it has none.
    pub name: &'a [u8],
    /// Whether look-ups by name can find it ("root-visible").
    pub root: bool,
    /// The contents, which depend on the kind.
    pub body: Body,
}

/// The contents of a type, by kind. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A type that the format can't represent.
    Unknown,
    /// An integer or a float: its kind, its size, its encoding.
    Number(Kind, u64, Encoding),
    /// A pointer, a typedef or a qualifier: its kind, and the type it refers to.
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
    /// Some bits of another type: the size of their storage, and the bits.
    Slice(u64, Slice),
}

/// A function type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The return type.
    pub returns: TypeId,
    /// The argument types.
    pub arguments: Span,
    /// Whether the function is variadic.
    pub variadic: bool,
}

/// A range of members, values or arguments in a graph.
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

    /// The number of items.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether the range is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Types that refer to each other. Their names are borrowed from the input that they came from.
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

    /// An empty graph of a child: its own types' ids have the highest bit set, all other ids are
    /// the parent's.
    pub fn of_child() -> Graph<'a> {
        Graph {
            child: true,
            ..Graph::default()
        }
    }

    /// Whether this is the graph of a child.
    pub fn is_child(&self) -> bool {
        self.child
    }

    /// The number of types.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the graph has no types.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a type.
    pub fn add(&mut self, node: Node<'a>) -> TypeId {
        self.nodes.push(node);
        TypeId::new(self.nodes.len() as u32, self.child)
    }

    /// Adds a type without a name that is root-visible.
    pub fn add_nameless(&mut self, body: Body) -> TypeId {
        self.add(Node {
            name: &[],
            root: true,
            body,
        })
    }

    /// Replaces an own type, to which others may already refer. Does nothing if there is no such
    /// type.
    pub fn replace(&mut self, id: TypeId, node: Node<'a>) {
        if let Some(place) = self.index(id).and_then(|index| self.nodes.get_mut(index)) {
            *place = node;
        }
    }

    /// Adds members for a struct or union.
    pub fn add_members(&mut self, members: impl IntoIterator<Item = StructMember<'a>>) -> Span {
        let before = self.members.len();
        self.members.extend(members);
        Span::of(&self.members, self.members.len() - before)
    }

    /// Adds values for an enum.
    pub fn add_values(&mut self, values: impl IntoIterator<Item = Enumerator<'a>>) -> Span {
        let before = self.values.len();
        self.values.extend(values);
        Span::of(&self.values, self.values.len() - before)
    }

    /// Adds arguments for a function.
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

    /// The id of the type at this index of [`Graph::nodes`].
    pub fn id(&self, index: usize) -> TypeId {
        TypeId::new(index as u32 + 1, self.child)
    }

    /// The index in [`Graph::nodes`] of an own type.
    pub fn index(&self, id: TypeId) -> Option<usize> {
        // The index in a child's id may be 0, but the first type has the index 1.
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

    /// Adds a copy of another graph's type. `id` maps each type that it refers to.
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

    /// Calls `each` for every type that a type refers to.
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

    /// The namespace of the type's name: struct, union or enum, or `None` for that of all other
    /// types ("Type names").
    pub fn namespace(&self) -> Option<Kind> {
        match *self {
            Body::Aggregate(kind, ..) | Body::Forward(kind) => Some(kind),
            Body::Enum(..) => Some(Kind::Enum),
            _ => None,
        }
    }
}
