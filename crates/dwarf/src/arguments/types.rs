//! The types of a unit in a section of types that the file has.

use backtrail_ctype::graph::{Body, Graph, Node};
use backtrail_ctype::link::Section;
use backtrail_ctype::{Error, Kind, TypeId};
use rustc_hash::FxHashMap;

/// Types in each other.
const DEEPEST: u32 = 32;

/// What finds a type among those of a dict.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key<'a> {
    Named(Option<Kind>, &'a [u8]),
    Reference(Kind, u32),
    Array(u32, u32),
    Function(u32, Vec<u32>, bool),
}

type Dict<'a> = FxHashMap<Key<'a>, TypeId>;

/// The dicts of the file, ready to be searched.
pub(super) struct Dicts<'a> {
    names: Vec<&'a [u8]>,
    dicts: Vec<Dict<'a>>,
    parent: Option<usize>,
}

impl<'a> Dicts<'a> {
    /// `names` are those of the archive's members, in their order.
    pub(super) fn read(section: &'a Section<'a>, names: Vec<&'a [u8]>) -> Result<Dicts<'a>, Error> {
        let mut dicts = Vec::new();
        let mut parent = None;
        for (number, types) in section.types().enumerate() {
            if !types.dict().is_child() {
                parent = Some(number);
            }
            dicts.push(keys(&Graph::read(types)?));
        }
        Ok(Dicts { names, dicts, parent })
    }

    /// The dict of a unit, where it is not the parent.
    fn child(&self, unit: &[u8]) -> Option<usize> {
        let named = self.names.iter().position(|&name| name == unit);
        named.filter(|&number| Some(number) != self.parent && number < self.dicts.len())
    }
}

fn keys<'a>(graph: &Graph<'a>) -> Dict<'a> {
    let mut dict = Dict::default();
    for (index, node) in graph.nodes().iter().enumerate() {
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
            _ if node.name.is_empty() => continue,
            _ => Key::Named(node.body.namespace(), node.name),
        };
        dict.entry(key).or_insert(graph.id(index));
    }
    dict
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

    /// The id of a type of the unit's graph in the unit's dict, or else in the parent; 0 where neither has it.
    pub(super) fn find(&mut self, graph: &Graph<'_>, id: TypeId) -> TypeId {
        let [own, shared] = self.both(graph, id, 0);
        if own.is_none() { shared } else { own }
    }

    /// In the unit's own dict and in the parent. Pointers of the parent lead to declarations of what a unit has its own of.
    fn both(&mut self, graph: &Graph<'_>, id: TypeId, depth: u32) -> [TypeId; 2] {
        if let Some(&known) = self.known.get(&id) {
            return known;
        }
        let Some(node) = graph.get(id).filter(|_| depth < DEEPEST) else {
            return NONE;
        };
        let found = self.search(graph, node, depth);
        self.known.insert(id, found);
        found
    }

    fn search(&mut self, graph: &Graph<'_>, node: &Node<'_>, depth: u32) -> [TypeId; 2] {
        // What a type refers to is in both dicts, or in one.
        let keys: Vec<Key<'_>> = match node.body {
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
            Body::Unknown | Body::Slice(..) => Vec::new(),
            _ if node.name.is_empty() => Vec::new(),
            _ => vec![Key::Named(node.body.namespace(), node.name)],
        };
        let within = |dict: Option<usize>| {
            let dict = dict.and_then(|dict| self.target.dicts.get(dict));
            let found = dict.and_then(|dict| keys.iter().find_map(|key| dict.get(key)));
            found.copied().unwrap_or(TypeId(0))
        };
        [within(self.child), within(self.target.parent)]
    }
}
