//! Writing classes to dicts: shared ones to the parent, the rest to children.

use rustc_hash::{FxHashMap, FxHashSet};

use super::classes::{ClassId, Classes, Meaning, NameId};
use super::hash::{aligned_by, counts_by_name};
use super::{Mode, Unit};
use crate::constants::Kind;
use crate::graph::{Body, Graph, Node};
use crate::read::TypeId;

/// The parent's types, and the id of each class among them.
pub(super) struct Parent<'a> {
    pub(super) types: Graph<'a>,
    of_class: Vec<TypeId>,
    /// Declarations of ambiguous types that no unit has.
    declared: FxHashMap<NameId, TypeId>,
}

/// A unit's own types.
pub(super) struct Child<'a> {
    pub(super) types: Graph<'a>,
    /// The unit's own classes, sorted; a class's position determines its id.
    classes: Vec<ClassId>,
}

impl<'a> Parent<'a> {
    pub(super) fn new(units: &[Unit<'a>], classes: &Classes, mode: Mode) -> Parent<'a> {
        let mut parent = Parent {
            types: Graph::new(),
            of_class: vec![TypeId(0); classes.all.len()],
            declared: FxHashMap::default(),
        };
        let mut next = 1;
        let mut emitted = Vec::new();
        for (number, class) in classes.all.iter().enumerate() {
            let node = &units[class.unit as usize].types.nodes()[class.index as usize];
            let here = mode == Mode::SingleDict || !class.ambiguous;
            if here && !is_needless(node, number as ClassId, classes) {
                parent.of_class[number] = TypeId(next);
                emitted.push(number);
                next += 1;
            }
        }
        // Made-up declarations follow all of these.
        let mut made_up = Vec::new();
        let mut seen = Seen::default();
        for &number in &emitted {
            let class = &classes.all[number];
            let graph = &units[class.unit as usize].types;
            let node = graph.nodes()[class.index as usize];
            let node = seen.once(node);
            let of = &classes.of[class.unit as usize];
            let mut types = std::mem::take(&mut parent.types);
            types.add_copy(graph, &node, &mut |id| {
                parent.place(graph, of, classes, id, &mut |node| {
                    made_up.push(node);
                    TypeId(next + made_up.len() as u32 - 1)
                })
            });
            parent.types = types;
        }
        parent.declare(units, classes, mode, next, made_up);
        parent
    }

    /// Adds the declarations that shared types refer to, and those that only children refer to.
    fn declare(&mut self, units: &[Unit<'a>], classes: &Classes, mode: Mode, next: u32, mut made_up: Vec<Node<'a>>) {
        let units = units.iter().filter(|_| mode != Mode::SingleDict);
        for (unit, of) in units.zip(&classes.of) {
            let graph = &unit.types;
            for (node, &class) in graph.nodes().iter().zip(of) {
                if !classes.all[class as usize].ambiguous {
                    continue;
                }
                graph.references(node, |id| {
                    let to = graph.index(id).map(|to| &graph.nodes()[to]);
                    if to.is_some_and(|to| forwarded(to).is_some()) {
                        self.place(graph, of, classes, id, &mut |node| {
                            made_up.push(node);
                            TypeId(next + made_up.len() as u32 - 1)
                        });
                    }
                });
            }
        }
        for node in made_up {
            self.types.add(node);
        }
    }

    /// The parent's id for a type that a unit's type refers to. Calls `make` if a declaration is
    /// needed and does not exist yet.
    fn place(
        &mut self,
        graph: &Graph<'a>,
        of: &[ClassId],
        classes: &Classes,
        id: TypeId,
        make: &mut dyn FnMut(Node<'a>) -> TypeId,
    ) -> TypeId {
        let Some(index) = graph.index(id) else { return TypeId(0) };
        let (node, class) = (&graph.nodes()[index], of[index]);
        let Some(kind) = counts_by_name(node).or(forwarded(node)) else {
            return self.of_class[class as usize];
        };
        match classes.meaning(class) {
            Meaning::Shared(class) | Meaning::Declared(Some(class)) => self.of_class[class as usize],
            Meaning::Declared(None) => {
                let Some(name) = classes.all[class as usize].name else {
                    return TypeId(0);
                };
                *self.declared.entry(name).or_insert_with(|| {
                    let declaration = Node {
                        name: node.name,
                        root: true,
                        body: Body::Forward(kind),
                    };
                    make(declaration)
                })
            }
        }
    }

    /// The parent's id for a class, or the id 0 if it does not have the class.
    pub(super) fn id(&self, class: ClassId) -> TypeId {
        self.of_class[class as usize]
    }

    /// The parent's id for a class, or for its declaration.
    fn declared(&self, classes: &Classes, class: ClassId) -> TypeId {
        match classes.meaning(class) {
            Meaning::Shared(class) | Meaning::Declared(Some(class)) => self.id(class),
            Meaning::Declared(None) => {
                let name = classes.all[class as usize].name;
                name.and_then(|name| self.declared.get(&name))
                    .copied()
                    .unwrap_or(TypeId(0))
            }
        }
    }
}

impl<'a> Child<'a> {
    /// The types that a unit does not share.
    pub(super) fn new(unit: &Unit<'a>, of: &[ClassId], classes: &Classes, parent: &Parent<'a>) -> Child<'a> {
        let ambiguous = of
            .iter()
            .enumerate()
            .filter(|&(_, &class)| classes.all[class as usize].ambiguous);
        let mut own: Vec<(ClassId, u32)> = ambiguous.map(|(index, &class)| (class, index as u32)).collect();
        // In the parent, the types that lead from a struct to an ambiguous part of it lead only to
        // a declaration, so the child needs its own.
        let nodes = unit.types.nodes();
        let mut added = FxHashSet::default();
        for at in 0..own.len() {
            aligned_by(&unit.types, &nodes[own[at].1 as usize], &mut |part, way| {
                if classes.all[of[part] as usize].ambiguous {
                    let way = way.iter().filter(|&&index| added.insert(index));
                    own.extend(way.map(|&index| (of[index], index as u32)));
                }
            });
        }
        own.sort_unstable();
        own.dedup_by_key(|(class, _)| *class);
        let mut child = Child {
            types: Graph::of_child(),
            classes: own.iter().map(|(class, _)| *class).collect(),
        };
        let mut types = Graph::of_child();
        let mut seen = Seen::default();
        for (_, index) in own {
            let node = seen.once(unit.types.nodes()[index as usize]);
            types.add_copy(&unit.types, &node, &mut |id| {
                let index = unit.types.index(id);
                index.map_or(TypeId(0), |index| {
                    child.id(&unit.types.nodes()[index], of[index], classes, parent)
                })
            });
        }
        child.types = types;
        child
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// The child's own classes, sorted.
    pub(super) fn classes(&self) -> &[ClassId] {
        &self.classes
    }

    /// The id of a unit's type with this class, in the child itself or in the parent.
    pub(super) fn id(&self, node: &Node<'a>, class: ClassId, classes: &Classes, parent: &Parent<'a>) -> TypeId {
        if let Some(own) = self.own(class) {
            return own;
        }
        if counts_by_name(node).or(forwarded(node)).is_none() {
            return parent.id(class);
        }
        // The unit may also have the definition of a declaration.
        let own = classes.definitions(class).iter().find_map(|&class| self.own(class));
        own.unwrap_or_else(|| parent.declared(classes, class))
    }

    fn own(&self, class: ClassId) -> Option<TypeId> {
        let at = self.classes.binary_search(&class).ok()?;
        Some(TypeId::new(at as u32 + 1, true))
    }
}

/// Whether a declaration is not needed, because the parent has the definition.
fn is_needless(node: &Node<'_>, class: ClassId, classes: &Classes) -> bool {
    forwarded(node).is_some() && classes.meaning(class) != Meaning::Declared(Some(class))
}

fn forwarded(node: &Node<'_>) -> Option<Kind> {
    match node.body {
        Body::Forward(kind) => Some(kind),
        _ => None,
    }
}

/// Names that look-ups already find: they must not see a second type with one of them in a dict.
#[derive(Default)]
struct Seen<'a>(FxHashSet<(Option<Kind>, &'a [u8])>);

impl<'a> Seen<'a> {
    fn once(&mut self, node: Node<'a>) -> Node<'a> {
        let named = !node.name.is_empty() && !matches!(node.body, Body::Function(_));
        // A function type has the name of only one of its functions.
        let name = if matches!(node.body, Body::Function(_)) {
            &[]
        } else {
            node.name
        };
        Node {
            name,
            root: node.root && (!named || self.0.insert((node.body.namespace(), node.name))),
            body: node.body,
        }
    }
}
