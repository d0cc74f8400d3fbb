//! Printing types as C that compiles: each after the types it needs, with the layout in the file.
//!
//! If C or the format can't express something, the printer substitutes: a tag for a nameless struct
//! that several types refer to, a number after a name that is taken, bytes for padding and for
//! members that are not represented.

mod body;
mod declare;
mod names;
mod order;

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::constants::Kind;
use crate::error::{Error, ErrorKind, Result};
use crate::measure::{AlignmentRule, Measures};
use crate::read::{TypeId, Types};
use names::Names;

/// The longest chain of types that need each other, and of nested bodies. Real ones have a few
/// hundred.
const MAX_DEPTH: usize = 400;
/// The limit on members to process, to which the length of the dicts in bytes is added.
const STEPS: usize = 100_000;
/// The longest declaration in bytes; real ones have a few kilobytes.
const MAX_DECLARATION: usize = 16 << 20;

/// Options for printing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Follow each type with static assertions of its size and of its members' offsets.
    pub assertions: bool,
    /// Arrays of arrays have their dimensions in reverse order, as gcc up to 13 writes them.
    pub inner_first: bool,
}

/// Prints the types of related dicts: those of a parent and then of its children, or those of one
/// child and then of its parent.
#[derive(Debug)]
pub struct Printer<'d> {
    options: Options,
    units: Vec<Unit<'d>>,
    /// Types keep their own names, and bodies are left out.
    plain: bool,
    names: Names,
    states: FxHashMap<Key, State>,
    /// The typedefs that nameless types were printed under: other units may have others for them.
    printed_as: FxHashMap<Key, String>,
    /// Functions and objects to declare: the unit, the name, the type.
    symbols: Vec<(usize, String, TypeId)>,
    /// Tags that have been declared, to leave out a second declaration.
    declared: FxHashSet<String>,
    alignments: FxHashMap<Key, u64>,
    /// The number of members that may still be processed: nameless structs are repeated wherever
    /// they are used.
    steps: usize,
    out: Vec<u8>,
}

/// A dict to print.
#[derive(Debug)]
struct Unit<'d> {
    name: String,
    types: Types<'d>,
    /// The unit of the parent; an index past all units if the parent is not among them.
    parent: usize,
    measures: Measures<'d>,
    /// For each nameless struct, union or enum, the number of types that refer to it, and the first
    /// typedef.
    nameless: FxHashMap<TypeId, Nameless>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Nameless {
    references: u32,
    /// The number of those references that are members.
    members: u32,
    typedef: Option<TypeId>,
}

/// A type among those of all units; the unit is that of the dict that contains the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    unit: usize,
    id: TypeId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begun,
    Done,
}

/// Prints single declarations, in which every type keeps its own name.
#[derive(Debug)]
pub struct Plain<'d>(Printer<'d>);

impl<'d> Plain<'d> {
    /// Creates a printer for the types of a dict and its parent.
    pub fn new(types: Types<'d>) -> Plain<'d> {
        let mut printer = Printer::new(Options::default());
        printer.plain = true;
        printer.units.push(Unit {
            name: String::new(),
            types,
            parent: usize::MAX,
            measures: Measures::new(types, AlignmentRule::StrictestMember),
            nameless: FxHashMap::default(),
        });
        Plain(printer)
    }

    /// The declaration of `name` with a type, without a semicolon; the type alone if `name` is
    /// empty.
    pub fn declaration(&mut self, id: TypeId, name: &str) -> Result<String> {
        self.0.declaration(0, id, name, 0, 0)
    }
}

/// The printed text, and the types that are missing from it.
#[derive(Debug, Default)]
pub struct Printed {
    /// The C text.
    pub text: Vec<u8>,
    /// Types that can't be printed: the unit, and the reason.
    pub damage: Vec<(String, Error)>,
}

impl<'d> Printer<'d> {
    /// A printer without any dicts.
    pub fn new(options: Options) -> Printer<'d> {
        Printer {
            options,
            units: Vec::new(),
            plain: false,
            names: Names::default(),
            states: FxHashMap::default(),
            printed_as: FxHashMap::default(),
            symbols: Vec::new(),
            declared: FxHashSet::default(),
            alignments: FxHashMap::default(),
            steps: STEPS,
            out: Vec::new(),
        }
    }

    /// Adds a dict. Its types get names that earlier dicts have not taken.
    pub fn add(&mut self, unit: &str, types: Types<'d>) {
        self.steps = self.steps.saturating_add(types.dict().body_len());
        self.units.push(Unit {
            name: unit.to_owned(),
            types,
            parent: usize::MAX,
            measures: Measures::new(types, AlignmentRule::StrictestMember),
            nameless: nameless(types),
        });
    }

    /// Adds a function or object of the dict that was added last: it is declared after the wanted
    /// types and the types that it needs.
    pub fn add_symbol(&mut self, name: &str, id: TypeId) {
        let unit = self.units.len().saturating_sub(1);
        self.symbols.push((unit, name.to_owned(), id));
    }

    /// Prints all types that have a name, or those with one of the `wanted` names and the types
    /// that they need. Also returns which of the wanted names exist.
    pub fn print(mut self, wanted: Option<&[Name<'_>]>) -> (Printed, Vec<bool>) {
        self.find_parents();
        let children = self.units.iter().filter(|unit| unit.types.dict().is_child()).count();
        for unit in 0..self.units.len() {
            self.name_types(unit, children <= 1);
        }
        let mut found = vec![false; wanted.map_or(0, <[_]>::len)];
        let mut damage = Vec::new();
        for unit in 0..self.units.len() {
            let types = self.units[unit].types;
            if self.units.len() > 1 && wanted.is_none() && !types.dict().is_empty() {
                let title = format!("/* {} */\n\n", self.units[unit].name.replace("*/", "* /"));
                self.out.extend(title.bytes());
            }
            for id in types.dict().ids() {
                let matched = match wanted {
                    None => true,
                    Some(wanted) => matches(types, id, wanted, &mut found),
                };
                if !matched {
                    continue;
                }
                // Types that it needed and that could be printed stay.
                if let Err(error) = self.print_one(unit, id) {
                    damage.push((self.units[unit].name.clone(), error));
                }
            }
        }
        for (unit, name, id) in std::mem::take(&mut self.symbols) {
            if let Err(error) = self.declare_symbol(unit, &name, id) {
                damage.push((self.units[unit].name.clone(), error));
            }
        }
        let text = self.out;
        (Printed { text, damage }, found)
    }

    /// Declares a function or object, with all types that are passed or accessed by value.
    fn declare_symbol(&mut self, unit: usize, name: &str, id: TypeId) -> Result<()> {
        let found = self.units[unit].types.get(id)?;
        let mut storage = "extern ";
        match found.kind() {
            Kind::Function => {
                storage = "";
                self.complete(unit, found.reference()?, 0)?;
                for argument in found.arguments()?.0 {
                    self.complete(unit, argument?, 0)?;
                }
            }
            _ => self.complete(unit, id, 0)?,
        }
        let declaration = self.declaration(unit, id, name, 0, 0)?;
        self.out.extend(format!("{storage}{declaration};\n").bytes());
        Ok(())
    }

    fn find_parents(&mut self) {
        let dicts: Vec<_> = self.units.iter().map(|unit| unit.types.dict()).collect();
        for unit in &mut self.units {
            let parent = unit.types.parent();
            let place = parent.and_then(|parent| dicts.iter().position(|dict| std::ptr::eq(*dict, parent)));
            unit.parent = place.unwrap_or(usize::MAX);
        }
    }

    fn print_one(&mut self, unit: usize, id: TypeId) -> Result<()> {
        let found = self.units[unit].types.get(id)?;
        let named = !found.name()?.is_empty();
        match found.kind() {
            Kind::Struct | Kind::Union if named => self.define(unit, id, 0),
            // A nameless enum is printed for its values, even if nothing has its type.
            Kind::Enum if !self.stands_in_member(unit, id) => self.define(unit, id, 0),
            Kind::Typedef if named => self.complete(unit, id, 0),
            Kind::Forward => self.declare(unit, id, 0),
            _ => Ok(()),
        }
    }

    /// Whether a nameless enum is printed inside the only member of its type.
    fn stands_in_member(&self, unit: usize, id: TypeId) -> bool {
        let nameless = self.units[unit].nameless.get(&id);
        nameless.is_some_and(|nameless| nameless.typedef.is_none() && (nameless.references, nameless.members) == (1, 1))
    }

    fn key(&self, unit: usize, id: TypeId) -> Key {
        let Unit { types, parent, .. } = &self.units[unit];
        let unit = match types.dict().is_child() && !id.is_child() {
            true => *parent,
            false => unit,
        };
        Key { unit, id }
    }

    /// Counts a member against the limit.
    fn step(&mut self, of: &crate::read::Type<'_>) -> Result<()> {
        self.steps = self
            .steps
            .checked_sub(1)
            .ok_or(of.error(ErrorKind::TooLong(of.id().0)))?;
        Ok(())
    }

    fn is_done(&self, key: Key) -> bool {
        self.states.get(&key) == Some(&State::Done)
    }

    /// Begins to print a type, unless it has already been printed.
    fn begin(&mut self, unit: usize, id: TypeId, depth: usize) -> Result<bool> {
        let key = self.key(unit, id);
        let cycle = Error::new(ErrorKind::Cycle(id.0), 0);
        match self.states.get(&key) {
            Some(State::Done) => Ok(false),
            Some(State::Begun) => Err(cycle),
            None if depth > MAX_DEPTH => Err(cycle),
            None => {
                self.states.insert(key, State::Begun);
                Ok(true)
            }
        }
    }
}

/// A type's name in C: with `struct`, `union` or `enum`, or without, which matches any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'n> {
    /// The keyword.
    pub kind: Option<Kind>,
    /// The name.
    pub name: &'n str,
}

impl<'n> Name<'n> {
    /// Splits a name into keyword and name.
    pub fn parse(text: &'n str) -> Name<'n> {
        let text = text.trim();
        for kind in [Kind::Struct, Kind::Union, Kind::Enum] {
            if let Some((kind_name, name)) = text.split_once(char::is_whitespace)
                && kind_name == kind.name()
            {
                let name = name.trim_start();
                return Name { kind: Some(kind), name };
            }
        }
        Name { kind: None, name: text }
    }

    /// Whether a type has this name; a mere declaration counts as the kind that it declares.
    pub fn is_of(&self, types: Types<'_>, id: TypeId) -> bool {
        let Ok(found) = types.get(id) else { return false };
        let kind = match found.kind() {
            Kind::Forward => found.forwarded().unwrap_or(Kind::Struct),
            Kind::Function => return false,
            kind => kind,
        };
        let name = found.name().unwrap_or_default();
        !name.is_empty() && name == self.name.as_bytes() && self.kind.is_none_or(|wanted| wanted == kind)
    }
}

fn matches(types: Types<'_>, id: TypeId, wanted: &[Name<'_>], found: &mut [bool]) -> bool {
    let mut matched = false;
    for (name, found) in wanted.iter().zip(found) {
        if name.is_of(types, id) {
            *found = true;
            matched = true;
        }
    }
    matched
}

/// Counts the references to nameless types.
fn nameless(types: Types<'_>) -> FxHashMap<TypeId, Nameless> {
    let mut counted: FxHashMap<TypeId, Nameless> = FxHashMap::default();
    let parent_ids = types.parent().into_iter().flat_map(|parent| parent.ids());
    for id in parent_ids.chain(types.dict().ids()) {
        let Ok(found) = types.get(id) else { continue };
        // A struct that has two members of one nameless type refers to it twice.
        let mut refer = |to: TypeId| counted.entry(to).or_default().references += 1;
        match found.kind() {
            Kind::Struct | Kind::Union => {
                let members = found.members().into_iter().flatten().flatten();
                members.for_each(|member| {
                    let entry = counted.entry(member.id).or_default();
                    entry.references += 1;
                    entry.members += 1;
                });
            }
            Kind::Function => {
                found.reference().into_iter().for_each(&mut refer);
                if let Ok((arguments, _)) = found.arguments() {
                    arguments.flatten().for_each(refer);
                }
            }
            Kind::Array => found.array().into_iter().for_each(|array| refer(array.contents)),
            Kind::Typedef => {
                if let Ok(to) = found.reference() {
                    refer(to);
                    let named = found.name().is_ok_and(|name| !name.is_empty());
                    let entry = counted.entry(to).or_default();
                    entry.typedef = entry.typedef.or(named.then_some(id));
                }
            }
            _ => found.reference().into_iter().for_each(refer),
        }
    }
    let nameless_ids: BTreeSet<TypeId> = counted.keys().copied().collect();
    for id in nameless_ids {
        let keep = types.get(id).is_ok_and(|found| {
            matches!(found.kind(), Kind::Struct | Kind::Union | Kind::Enum) && found.name().is_ok_and(<[u8]>::is_empty)
        });
        if !keep {
            counted.remove(&id);
        }
    }
    counted
}
