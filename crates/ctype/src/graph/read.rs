//! Reading the types of a dict into a graph.

use rustc_hash::FxHashMap;

use super::{Body, Function, Graph, Node};
use crate::constants::Kind;
use crate::error::Result;
use crate::read::{Type, TypeId, Types};

impl<'a> Graph<'a> {
    /// Reads a dict's own types, which keep their ids.
    pub fn read(types: Types<'a>) -> Result<Graph<'a>> {
        let dict = types.dict();
        let mut graph = if dict.is_child() {
            Graph::of_child()
        } else {
            Graph::new()
        };
        graph.nodes.reserve(dict.len());
        for id in dict.ids() {
            let node = graph.read_type(&types.get(id)?)?;
            graph.add(node);
        }
        Ok(graph)
    }

    /// Reads a dict's own types, and the types of its parent that they and `more` need, as types of
    /// one dict without a parent. Its own types come first, in their order.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "fewer types than 2^32, which the header bounds; its own lists"
    )]
    pub fn read_flat(types: Types<'a>, more: impl IntoIterator<Item = TypeId>) -> Result<Flat<'a>> {
        let mut graph = Graph::read(types)?;
        let mut flat = Flat {
            graph: Graph::new(),
            of_child: graph.is_child(),
            parents: FxHashMap::default(),
        };
        if !flat.of_child {
            flat.graph = graph;
            return Ok(flat);
        }
        graph.child = false;
        // The list of types to copy from the parent grows during the copying.
        let own = graph.len() as u32;
        let mut wanted = Vec::new();
        let place = |id: TypeId, parents: &mut FxHashMap<TypeId, TypeId>, wanted: &mut Vec<TypeId>| match id {
            id if id.is_none() => id,
            id if id.is_child() => TypeId(id.index()),
            id => *parents.entry(id).or_insert_with(|| {
                wanted.push(id);
                TypeId(own + wanted.len() as u32)
            }),
        };
        for id in more {
            place(id, &mut flat.parents, &mut wanted);
        }
        for index in 0..graph.len() {
            let node = graph.nodes[index];
            flat.graph
                .add_copy(&graph, &node, &mut |id| place(id, &mut flat.parents, &mut wanted));
        }
        let mut copied = 0;
        while let Some(&id) = wanted.get(copied) {
            let mut single = Graph::new();
            let node = single.read_type(&types.get(id)?)?;
            flat.graph
                .add_copy(&single, &node, &mut |id| place(id, &mut flat.parents, &mut wanted));
            copied += 1;
        }
        Ok(flat)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "fewer types than 2^32, which the header bounds; its own lists"
    )]
    fn read_type(&mut self, found: &Type<'a>) -> Result<Node<'a>> {
        let kind = found.kind();
        let size = found.size();
        let body = match kind {
            Kind::Unknown => Body::Unknown,
            Kind::Integer | Kind::Float => Body::Number(kind, size, found.encoding()?),
            Kind::Array => Body::Array(found.array()?),
            Kind::Function => {
                let (arguments, variadic) = found.arguments()?;
                Body::Function(Function {
                    returns: found.reference()?,
                    arguments: self.add_arguments(arguments.collect::<Result<Vec<_>>>()?),
                    variadic,
                })
            }
            Kind::Struct | Kind::Union => {
                let before = self.members.len();
                for member in found.members()? {
                    self.members.push(member?);
                }
                Body::Aggregate(kind, size, super::Span::of(&self.members, self.members.len() - before))
            }
            Kind::Enum => {
                let values = found.enumerators()?.collect::<Result<Vec<_>>>()?;
                Body::Enum(size, self.add_values(values))
            }
            Kind::Forward => Body::Forward(found.forwarded()?),
            Kind::Slice => Body::Slice(size, found.slice()?),
            Kind::Pointer | Kind::Typedef | Kind::Volatile | Kind::Const | Kind::Restrict => {
                Body::Reference(kind, found.reference()?)
            }
        };
        Ok(Node {
            name: found.name()?,
            root: found.is_root(),
            body,
        })
    }
}

/// A child's types, together with the types that they need from the parent.
#[derive(Clone, Debug)]
pub struct Flat<'a> {
    /// The types.
    pub graph: Graph<'a>,
    of_child: bool,
    /// The ids in the graph of the parent's types.
    parents: FxHashMap<TypeId, TypeId>,
}

impl Flat<'_> {
    /// Maps a type's id in the dict to its id in the graph; `None` if the graph does not contain
    /// the type.
    pub fn id(&self, id: TypeId) -> Option<TypeId> {
        match (self.of_child, id.is_child()) {
            (true, true) => Some(TypeId(id.index())),
            (true, false) => self.parents.get(&id).copied(),
            (false, _) => Some(id),
        }
        .filter(|&id| self.graph.get(id).is_some())
    }
}
