//! Finds a unit's types in the section of types in the file.

use std::hash::{Hash, Hasher};

use backtrail_ctype::graph::{Body, Graph, Node};
use backtrail_ctype::link::Section;
use backtrail_ctype::{Error, Kind, TypeId};
use rustc_hash::{FxHashMap, FxHasher};

/// The deepest nesting of types.
const DEEPEST: u32 = 32;

/// The key of a type without a name in a dict.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Reference(Kind, u32),
    Array(u32, u32),
    Function(u32, Vec<u32>, bool),
}

/// The types of a dict. Several may share a name: types of functions, and types with a different
/// definition in each unit.
#[derive(Default)]
struct Dict<'a> {
    nameless: FxHashMap<Key, TypeId>,
    /// Structs and unions without a name, by their looks.
    aggregates: FxHashMap<u64, TypeId>,
    named: FxHashMap<(Option<Kind>, &'a [u8]), Vec<Named>>,
}

/// A type with a name.
#[derive(Clone, Copy)]
struct Named {
    id: TypeId,
    /// Whether the type is only declared, or is a name of one that is.
    is_declaration: bool,
    looks: u64,
}

/// The dicts of the file, ready to be searched.
pub(super) struct Dicts<'a> {
    names: Vec<&'a [u8]>,
    dicts: Vec<Dict<'a>>,
    parent: Option<usize>,
}

impl<'a> Dicts<'a> {
    /// Reads the dicts; `names` are those of the archive's members, in their order.
    pub(super) fn read(section: &'a Section<'a>, names: Vec<&'a [u8]>) -> Result<Dicts<'a>, Error> {
        let graphs = section.types().map(Graph::read).collect::<Result<Vec<_>, Error>>()?;
        let parent = graphs.iter().rposition(|graph| !graph.is_child());
        let dict = |graph| {
            let shared = parent.and_then(|parent| graphs.get(parent));
            dict(graph, &mut Looks::new(graph, shared))
        };
        Ok(Dicts {
            names,
            dicts: graphs.iter().map(dict).collect(),
            parent,
        })
    }

    /// The dict of a unit, if it is not the parent.
    fn child(&self, unit: &[u8]) -> Option<usize> {
        let named = self.names.iter().position(|&name| name == unit);
        named.filter(|&number| Some(number) != self.parent && number < self.dicts.len())
    }
}

fn dict<'a>(graph: &Graph<'a>, looks: &mut Looks<'_, 'a>) -> Dict<'a> {
    let mut dict = Dict::default();
    for (index, node) in graph.nodes().iter().enumerate() {
        let id = graph.id(index);
        let key = match node.body {
            Body::Reference(kind, to) if kind != Kind::Typedef => Key::Reference(kind, to.0),
            Body::Array(array) => Key::Array(array.contents.0, array.count),
            Body::Function(function) => {
                let arguments = graph.arguments(function.arguments).iter();
                Key::Function(
                    function.returns.0,
                    arguments.map(|id| id.0).collect(),
                    function.variadic,
                )
            }
            Body::Unknown | Body::Slice(..) => continue,
            Body::Aggregate(..) if node.name.is_empty() => {
                dict.aggregates.entry(looks.of(id, 0)).or_insert(id);
                continue;
            }
            _ if node.name.is_empty() => continue,
            _ => {
                let named = dict.named.entry((node.body.namespace(), node.name)).or_default();
                named.push(Named {
                    id,
                    is_declaration: is_declared(graph, node),
                    looks: looks.of(id, 0),
                });
                continue;
            }
        };
        dict.nameless.entry(key).or_insert(id);
    }
    dict
}

/// Whether the type is only declared in this dict, or is a name of one that is.
fn is_declared(graph: &Graph<'_>, node: &Node<'_>) -> bool {
    let mut body = node.body;
    for _ in 0..DEEPEST {
        let to = match body {
            Body::Forward(_) => return true,
            Body::Reference(kind, to) if kind != Kind::Pointer => to,
            Body::Array(array) => array.contents,
            _ => return false,
        };
        match graph.get(to) {
            Some(node) => body = node.body,
            None => return false,
        }
    }
    false
}

/// A hash of the layout of a type's values: it differs for types that differ, whatever dicts they
/// are in. Of the targets of pointers, only the names matter.
struct Looks<'g, 'a> {
    graph: &'g Graph<'a>,
    /// The graph of the parent.
    shared: Option<&'g Graph<'a>>,
    known: FxHashMap<TypeId, u64>,
}

impl<'g, 'a> Looks<'g, 'a> {
    fn new(graph: &'g Graph<'a>, shared: Option<&'g Graph<'a>>) -> Looks<'g, 'a> {
        Looks {
            graph,
            shared,
            known: FxHashMap::default(),
        }
    }

    fn of(&mut self, id: TypeId, depth: u32) -> u64 {
        if let Some(&known) = self.known.get(&id) {
            return known;
        }
        let own = (self.graph, self.graph.get(id));
        let shared = || self.shared.map(|shared| (shared, shared.get(id)));
        let (graph, node) = match own {
            (graph, Some(node)) => (graph, node),
            _ => match shared() {
                Some((graph, Some(node))) if depth < DEEPEST => (graph, node),
                _ => return 0,
            },
        };
        if depth >= DEEPEST {
            return 0;
        }
        let looks = self.node(graph, node, depth);
        self.known.insert(id, looks);
        looks
    }

    fn node(&mut self, graph: &Graph<'_>, node: &Node<'_>, depth: u32) -> u64 {
        let mut hasher = FxHasher::default();
        match node.body {
            Body::Reference(Kind::Pointer, to) => {
                let own = self.graph.get(to);
                let target = own.or_else(|| self.shared?.get(to));
                (Kind::Pointer, target.map_or(&[][..], |target| target.name)).hash(&mut hasher);
            }
            Body::Function(_) | Body::Unknown => {
                std::mem::discriminant(&node.body).hash(&mut hasher);
            }
            Body::Reference(_, to) => return self.of(to, depth + 1),
            Body::Number(kind, bytes, encoding) => (kind, bytes, encoding.format).hash(&mut hasher),
            Body::Array(array) => (self.of(array.contents, depth + 1), array.count).hash(&mut hasher),
            Body::Aggregate(kind, bytes, members) => {
                (kind, bytes, node.name).hash(&mut hasher);
                for member in graph.members(members) {
                    (member.name, member.offset, self.of(member.id, depth + 1)).hash(&mut hasher);
                }
            }
            Body::Enum(bytes, values) => {
                bytes.hash(&mut hasher);
                for value in graph.values(values) {
                    (value.name, value.value).hash(&mut hasher);
                }
            }
            Body::Forward(kind) => kind.hash(&mut hasher),
            Body::Slice(_, slice) => (self.of(slice.of, depth + 1), slice.offset, slice.bits).hash(&mut hasher),
        }
        hasher.finish()
    }
}

/// Finds the types of one unit.
pub(super) struct Finder<'t, 'a> {
    target: &'t Dicts<'a>,
    /// The unit's own dict.
    pub(super) child: Option<usize>,
    known: FxHashMap<TypeId, [TypeId; 2]>,
}

const NONE: [TypeId; 2] = [TypeId(0); 2];

impl<'t, 'a> Finder<'t, 'a> {
    pub(super) fn new(target: &'t Dicts<'a>, unit: &[u8]) -> Finder<'t, 'a> {
        Finder {
            target,
            child: target.child(unit),
            known: FxHashMap::default(),
        }
    }

    /// The id in the unit's dict of a type of the unit's graph, or else in the parent; 0 if neither
    /// contains it.
    pub(super) fn find(&mut self, graph: &Graph<'_>, id: TypeId) -> TypeId {
        let [own, shared] = self.both(graph, id, 0);
        if own.is_none() { shared } else { own }
    }

    /// The ids in the unit's own dict and in the parent. The parent's pointers lead to declarations
    /// of types that a unit defines itself.
    fn both(&mut self, graph: &Graph<'_>, id: TypeId, depth: u32) -> [TypeId; 2] {
        if let Some(&known) = self.known.get(&id) {
            return known;
        }
        let Some(node) = graph.get(id).filter(|_| depth < DEEPEST) else {
            return NONE;
        };
        let found = self.search(graph, id, node, depth);
        self.known.insert(id, found);
        found
    }

    fn search(&mut self, graph: &Graph<'_>, id: TypeId, node: &Node<'_>, depth: u32) -> [TypeId; 2] {
        // The type that it refers to is in one of the dicts, or in both.
        let keys: Vec<Key> = match node.body {
            Body::Reference(kind, to) if kind != Kind::Typedef => {
                let to = self.both(graph, to, depth + 1);
                to.iter()
                    .filter(|id| !id.is_none())
                    .map(|id| Key::Reference(kind, id.0))
                    .collect()
            }
            Body::Array(array) => {
                let contents = self.both(graph, array.contents, depth + 1);
                let contents = contents.iter().filter(|id| !id.is_none());
                contents.map(|id| Key::Array(id.0, array.count)).collect()
            }
            Body::Function(function) => {
                let returns = self.both(graph, function.returns, depth + 1);
                let arguments: Vec<_> = graph.arguments(function.arguments).to_vec();
                let arguments: Vec<_> = arguments
                    .into_iter()
                    .map(|id| self.both(graph, id, depth + 1))
                    .collect();
                let pick = |[own, shared]: [TypeId; 2], is_own: bool| match (is_own, own.is_none()) {
                    (true, false) => own.0,
                    _ => shared.0,
                };
                let keys = [true, false].map(|is_own| {
                    let arguments = arguments.iter().map(|&both| pick(both, is_own)).collect();
                    Key::Function(pick(returns, is_own), arguments, function.variadic)
                });
                keys.into_iter().collect()
            }
            Body::Unknown | Body::Slice(..) => return NONE,
            Body::Aggregate(..) if node.name.is_empty() => {
                let looks = Looks::new(graph, None).of(id, 0);
                return self.dicts().map(|dict| {
                    dict.and_then(|dict| dict.aggregates.get(&looks))
                        .copied()
                        .unwrap_or(TypeId(0))
                });
            }
            _ if node.name.is_empty() => return NONE,
            _ => return self.named(graph, id, node),
        };
        self.dicts().map(|dict| {
            let found = dict.and_then(|dict| keys.iter().find_map(|key| dict.nameless.get(key)));
            found.copied().unwrap_or(TypeId(0))
        })
    }

    /// The unit's own dict and the parent.
    fn dicts(&self) -> [Option<&'t Dict<'a>>; 2] {
        [self.child, self.target.parent].map(|dict| self.target.dicts.get(dict?))
    }

    /// Finds a type with a name: if several have this name, the one with the same layout.
    fn named(&self, graph: &Graph<'_>, id: TypeId, node: &Node<'_>) -> [TypeId; 2] {
        let lists = self.dicts().map(|dict| {
            let list = dict.and_then(|dict| dict.named.get(&(node.body.namespace(), node.name)));
            list.map_or(&[][..], |list| &list[..])
        });
        let is_declaration = matches!(node.body, Body::Forward(_));
        let defined = lists.iter().flat_map(|list| list.iter());
        let is_only_one = defined.filter(|one| !one.is_declaration).count() <= 1;
        let looks = match is_only_one || is_declaration {
            true => None,
            false => Some(Looks::new(graph, None).of(id, 0)),
        };
        let may_be = |one: &&Named| looks.is_none_or(|looks| looks == one.looks);
        lists.map(|list| {
            let defined = list.iter().find(|one| !one.is_declaration && may_be(one));
            let found = defined.or_else(|| list.iter().find(|one| one.is_declaration));
            found.map_or(TypeId(0), |one| one.id)
        })
    }
}
