//! What types have only to be compared: full names, the functions and variables of languages other
//! than C, the tables of virtual functions, vectors, atomic types.

use backtrail_ctype::graph::{Body, Function, Node};
use backtrail_ctype::link::{Unit, UnitSymbol};
use backtrail_ctype::{Array, Kind, StructMember, SymbolKind, TypeId};
use gimli::constants as dw;
use rustc_hash::FxHashMap;

use super::build::{Builder, Place};
use super::dies::{Die, NONE, Parsed, Ref, is_class, is_type};
use super::{MAX_ORIGINS, Parts, is_c};

/// The start of the names of atomic types, which are typedefs here.
const ATOMIC: &[u8] = b"_Atomic ";
/// Limit of entries in each other; real names have some ten parts.
const MOST_PARTS: usize = 64;
/// The most virtual functions of a class.
const MOST_SLOTS: u64 = 1 << 16;
/// Bits of an address. The tables have no other size; that of a real one does not matter.
const SLOT_BITS: u64 = 64;

impl Parts<'_> {
    /// Gives the types of languages other than C their full names, and atomic types names.
    pub fn name_in_full(&mut self) {
        for unit in &mut self.0.units {
            if unit.language.is_some_and(|language| !is_c(language)) {
                let (full, tables) = names(unit);
                (unit.full_names, unit.table_names) = (full, tables);
            }
            let atomic = unit.dies.iter().enumerate();
            let atomic = atomic.filter(|(_, die)| die.tag == dw::DW_TAG_atomic_type);
            let atomic: Vec<_> = atomic
                .map(|(index, die)| (index as u32, [ATOMIC, base_name(unit, die)].concat()))
                .collect();
            unit.full_names.extend(atomic);
        }
    }
}

/// The name of the type that another one of the unit refers to.
fn base_name<'u>(unit: &Parsed<'u>, die: &Die<'u>) -> &'u [u8] {
    let of = match die.of {
        Some(Ref::Unit(offset)) => unit.dies.binary_search_by_key(&offset, |die| die.offset).ok(),
        _ => None,
    };
    of.map_or(&[], |of| unit.dies[of].name)
}

fn names(unit: &Parsed<'_>) -> (FxHashMap<u32, Vec<u8>>, FxHashMap<u32, Vec<u8>>) {
    let (mut full, mut tables) = (FxHashMap::default(), FxHashMap::default());
    for (index, die) in unit.dies.iter().enumerate() {
        let index = index as u32;
        let is_named = is_class(die.tag) || matches!(die.tag, dw::DW_TAG_enumeration_type | dw::DW_TAG_typedef);
        if is_named && !die.name.is_empty() {
            full.insert(index, full_name(unit, index));
        }
        let parent = unit.dies.get(die.parent as usize);
        let is_virtual = die.tag == dw::DW_TAG_subprogram && die.is_virtual;
        if is_virtual && parent.is_some_and(|parent| is_class(parent.tag)) {
            let own = || [&full_name(unit, die.parent)[..], b"::vtable"].concat();
            tables.entry(die.parent).or_insert_with(own);
        }
    }
    (full, tables)
}

/// The name of an entry with those of the classes, functions and namespaces around it.
fn full_name(unit: &Parsed<'_>, index: u32) -> Vec<u8> {
    let (mut parts, mut at, mut space) = (Vec::new(), index, NONE);
    for _ in 0..MOST_PARTS {
        let Some(die) = unit.dies.get(at as usize) else { break };
        parts.push(if die.name.is_empty() { b"(anonymous)" } else { die.name });
        (at, space) = (die.parent, die.namespace);
    }
    for _ in 0..MOST_PARTS {
        let Some((name, around)) = unit.namespaces.get(space as usize) else {
            break;
        };
        parts.push(name);
        space = *around;
    }
    parts.reverse();
    parts.join(&b"::"[..])
}

impl<'p, 'd> Builder<'p, 'd> {
    /// The entry, and those that it is a copy or the definition of.
    fn origins(&self, at: Place) -> Vec<Place> {
        let mut chain = vec![at];
        for _ in 0..MAX_ORIGINS {
            let Some(&last) = chain.last() else { break };
            match self
                .die(last)
                .origin
                .and_then(|origin| self.all.resolve(last.0, origin))
            {
                Some(origin) => chain.push(origin),
                None => break,
            }
        }
        chain
    }

    /// Adds a function or variable that a unit in a language other than C defines.
    pub(super) fn foreign_symbol(
        &mut self,
        at: Place,
        die: &Die<'d>,
        unit: &mut Unit<'p>,
        seen: &mut FxHashMap<(SymbolKind, &'d [u8]), usize>,
    ) {
        let kind = match die.tag {
            dw::DW_TAG_subprogram => SymbolKind::Function,
            dw::DW_TAG_variable => SymbolKind::Object,
            _ => return,
        };
        // Functions without an address were only inlined.
        if die.declaration || die.address.is_none() && kind == SymbolKind::Function {
            return;
        }
        let chain = self.origins(at);
        let first = |name: fn(&Die<'d>) -> &'d [u8]| {
            let names = chain.iter().map(|&at| name(self.die(at)));
            names.into_iter().find(|name| !name.is_empty())
        };
        let Some(name) = first(|die| die.linkage).or_else(|| first(|die| die.name)) else {
            return;
        };
        let external = chain.iter().any(|&at| self.die(at).external);
        let typed = chain.iter().find(|&&at| self.die(at).of.is_some());
        let typed = typed.copied();
        let id = match (kind, typed) {
            (SymbolKind::Function, _) => {
                // What is declared has the parameters as callers see them.
                let declared = chain.last().copied().unwrap_or(at);
                let root = *self.die(declared);
                let Function {
                    arguments, variadic, ..
                } = self.function(declared, &root);
                let returns = match typed {
                    Some(typed) => self.type_of(&self.die(typed).to_owned(), typed),
                    None => self.void(),
                };
                let function = Function {
                    returns,
                    arguments,
                    variadic,
                };
                self.graph.add_nameless(Body::Function(function))
            }
            (SymbolKind::Object, Some(typed)) => self.type_of(&self.die(typed).to_owned(), typed),
            (SymbolKind::Object, None) => return,
        };
        if seen.insert((kind, name), unit.symbols.len()).is_some() {
            return;
        }
        unit.addresses
            .extend(die.address.map(|address| (address, unit.symbols.len() as u32)));
        unit.symbols.push(UnitSymbol {
            name,
            kind,
            id,
            local: !external,
            declared: false,
        });
    }

    /// A member without a name, whose type leads to the table of the class's virtual functions: a
    /// struct of pointers to them, at their places in the table.
    pub(super) fn virtual_functions(&mut self, at: Place) -> Option<StructMember<'p>> {
        let name = self.parsed(at).table_names.get(&at.1)?;
        let functions = self.children(at).into_iter();
        let functions =
            functions.filter_map(|(place, die)| Some((die.slot.filter(|&slot| slot < MOST_SLOTS)?, place, die)));
        let mut functions: Vec<_> = functions.filter(|(.., die)| die.tag == dw::DW_TAG_subprogram).collect();
        functions.sort_by_key(|(slot, place, _)| (*slot, *place));
        let mut members = Vec::new();
        let mut end = 0;
        for (slot, place, die) in functions {
            let function = self.function(place, &die);
            let function = self.graph.add_nameless(Body::Function(function));
            members.push(StructMember {
                name: if die.linkage.is_empty() { die.name } else { die.linkage },
                offset: slot * SLOT_BITS,
                id: self.graph.add_nameless(Body::Reference(Kind::Pointer, function)),
            });
            // Destructors have two places.
            end = end.max(slot + if die.name.starts_with(b"~") { 2 } else { 1 });
        }
        let members = self.graph.add_members(members);
        let table = self.graph.add(Node {
            name,
            root: true,
            body: Body::Aggregate(Kind::Struct, end * SLOT_BITS / 8, members),
        });
        let contents = self.graph.add_nameless(Body::Reference(Kind::Pointer, table));
        Some(StructMember {
            name: &[],
            offset: 0,
            id: self.array_of(contents, 0),
        })
    }

    fn array_of(&mut self, contents: TypeId, count: u32) -> TypeId {
        let index = contents;
        self.graph.add_nameless(Body::Array(Array { contents, index, count }))
    }

    /// A pointer to a member has the size of an address; one to a member function, of two.
    pub(super) fn member_pointer(&mut self, at: Place, die: &Die<'d>) -> Body {
        let to = die.of.and_then(|of| self.all.resolve(at.0, of));
        let is_function = to.is_some_and(|to| self.die(to).tag == dw::DW_TAG_subroutine_type);
        let target = match to.filter(|&to| is_type(self.die(to).tag)) {
            Some(to) => self.type_at(to),
            None => self.void(),
        };
        if !is_function {
            return Body::Reference(Kind::Pointer, target);
        }
        let contents = self.graph.add_nameless(Body::Reference(Kind::Pointer, target));
        let index = contents;
        Body::Array(Array {
            contents,
            index,
            count: 2,
        })
    }

    /// A vector: a struct with its elements, which no struct of C has as a member without a name.
    pub(super) fn vector(&mut self, at: Place, die: &Die<'d>, array: Array) -> Body {
        let size = die
            .size
            .or_else(|| self.size_of(die, at)?.checked_mul(array.count.into()));
        let member = StructMember {
            name: &b"vector"[..],
            offset: 0,
            id: self.graph.add_nameless(Body::Array(array)),
        };
        let members = self.graph.add_members([member]);
        Body::Aggregate(Kind::Struct, size.unwrap_or(0), members)
    }
}
