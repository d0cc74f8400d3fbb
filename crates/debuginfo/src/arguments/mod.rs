//! Builds the table of arguments ([`backtrail_args::table`]) from debug information: the parameters
//! of C units with their locations, and call sites with the values that they pass.

mod calls;
mod chosen;
mod expression;
mod needed;
mod symbol;
mod tails;
mod types;
mod units;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use backtrail_arch::{Arch, Register};
use backtrail_args::abi::{Abi, Passing, Piece, Place as Where, Placer, Storage};
use backtrail_args::shape::{Form, Shape};
use backtrail_args::table::write::{self, Location, Places, Site};
use backtrail_args::table::{PARAMETERS, Step, Value};
use backtrail_ctype::graph::{Body, Graph};
use backtrail_ctype::link::Section;
use backtrail_ctype::{Archive, Surroundings, TypeId, threads};
use backtrail_elf::Image;
use gimli::{EndianSlice, RunTimeEndian};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::lines;
use crate::sections::headers;
use crate::types::{Parts, Place, Sections};
use tails::Tails;
use types::{Dicts, Finder};

type Slice<'d> = EndianSlice<'d, RunTimeEndian>;

/// Why no table can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The CPU's calling convention is not supported.
    Architecture(&'static str),
    /// The debug information is invalid.
    Debug(lines::Error),
    /// The section of types is invalid.
    Types(backtrail_ctype::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Architecture(name) => write!(f, "the calling convention of {name} is not known"),
            Error::Debug(error) => error.fmt(f),
            Error::Types(error) => write!(f, ".ctf: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<gimli::Error> for Error {
    fn from(error: gimli::Error) -> Error {
        Error::Debug(error.into())
    }
}

impl From<lines::Error> for Error {
    fn from(error: lines::Error) -> Error {
        Error::Debug(error)
    }
}

impl From<backtrail_ctype::Error> for Error {
    fn from(error: backtrail_ctype::Error) -> Error {
        Error::Types(error)
    }
}

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentTable {
    /// The table.
    pub bytes: Vec<u8>,
    /// Functions and parts of functions in it.
    pub functions: usize,
    /// Calls in them.
    pub calls: usize,
    /// Bytes of the debug information that it was built from.
    pub debug: u64,
}

/// The types of the file: the section, and the data that is borrowed to read it.
#[derive(Clone, Copy, Debug)]
pub struct TypesOfFile<'a> {
    /// The section `.ctf`.
    pub section: &'a [u8],
    /// The borrowed data.
    pub surroundings: Surroundings<'a>,
}

/// Builds the table of `image` from its debug information
/// ([`load_for_arguments`](Sections::load_for_arguments)).
pub fn table(
    image: &Image<'_>,
    sections: &Sections<'_>,
    types: TypesOfFile<'_>,
    places: Places,
) -> Result<ArgumentTable, Error> {
    threads::scoped(|| table_in_pool(image, sections, types, places))
}

fn table_in_pool(
    image: &Image<'_>,
    sections: &Sections<'_>,
    types: TypesOfFile<'_>,
    places: Places,
) -> Result<ArgumentTable, Error> {
    let arch = image.arch();
    let abi = Abi::of(arch.cpu).ok_or(Error::Architecture(arch.name()))?;
    let parts = Parts::read(sections)?;
    let opened = Section::open(types.section, types.surroundings)?;
    let archive = Archive::parse(types.section)?;
    let names = archive.members().map(|member| Ok(member?.name));
    let dicts = Dicts::read(&opened, names.collect::<Result<Vec<_>, backtrail_ctype::Error>>()?)?;
    let mut units = read_units(sections, &parts)?;
    let code = image.code_ranges();
    units.par_iter_mut().for_each(|(_, functions)| {
        let functions = functions.iter_mut();
        functions.for_each(|function| read_code(function, image, &code, abi));
    });
    let tails = Tails::new(&parts, units.iter().flat_map(|(_, functions)| functions));
    let maker = Maker {
        abi,
        arch,
        code: &code,
        parts: &parts,
        dicts: &dicts,
        tails: &tails,
        places,
    };
    let made: Vec<Vec<Unfinished>> = units
        .into_par_iter()
        .map(|(number, functions)| maker.unit(number, &functions))
        .collect();
    let made = made.into_iter().flatten().collect();
    let finished = |unfinished| apart(needed::only(unfinished, abi));
    let write =
        |functions: &[write::Function]| write::table(functions, abi, checksum(types.section), image.endian(), places);
    let (functions, bytes) = match places {
        Places::Chosen => chosen::within_limit(made, &finished, &write),
        _ => {
            let functions = finished(made);
            let bytes = write(&functions);
            (functions, bytes)
        }
    };
    Ok(ArgumentTable {
        bytes,
        calls: functions.iter().map(calls_in).sum(),
        functions: functions.len(),
        debug: sections.bytes,
    })
}

fn calls_in(function: &write::Function) -> usize {
    let calls = function.calls.iter();
    calls.filter(|call| call.site != Site::Between).count()
}

/// The checksum by which a table identifies a section of types.
pub fn checksum(section: &[u8]) -> u32 {
    crc32fast::hash(section)
}

/// A unit's number, and its functions.
type Read = (u32, Vec<units::Function>);

fn read_units(sections: &Sections<'_>, parts: &Parts<'_>) -> Result<Vec<Read>, Error> {
    let dwarf = sections.main()?;
    let headers = headers(&dwarf)?;
    let read = headers.par_iter().zip(parts.own()).map(|(header, number)| {
        let unit = dwarf.unit(*header)?;
        Ok((number, units::functions(&dwarf, &unit, number, parts)?))
    });
    let mut units = read.collect::<gimli::Result<Vec<_>>>()?;
    let rests = parts.rests();
    let ids: Vec<u64> = rests.keys().copied().collect();
    let of_split = sections.rest_dwarfs(&dwarf, &ids)?;
    let read = of_split
        .par_iter()
        .map(|split| read_rests(&dwarf, &headers, split, &rests, parts));
    let rests = read.collect::<gimli::Result<Vec<_>>>()?.into_iter().flatten();
    // A unit may be in several files.
    let mut seen = FxHashSet::default();
    units.extend(rests.filter(|(number, _)| seen.insert(*number)));
    Ok(units)
}

/// Reads the units of a split file whose skeletons are in the main one.
fn read_rests<'d>(
    main: &gimli::Dwarf<Slice<'d>>,
    skeletons: &[gimli::UnitHeader<Slice<'d>>],
    split: &gimli::Dwarf<Slice<'d>>,
    rests: &FxHashMap<u64, (usize, u32)>,
    parts: &Parts<'_>,
) -> gimli::Result<Vec<Read>> {
    let mut read = Vec::new();
    for header in headers(split)? {
        let mut unit = split.unit(header)?;
        let found = unit.dwo_id.and_then(|id| rests.get(&id.0));
        if let Some((skeleton, number)) = found.and_then(|&(at, number)| Some((skeletons.get(at)?, number))) {
            unit.copy_relocated_attributes(&main.unit(*skeleton)?);
            read.push((number, units::functions(split, &unit, number, parts)?));
        }
    }
    Ok(read)
}

/// Finds a function's calls and jumps.
fn read_code(function: &mut units::Function, image: &Image<'_>, code: &[Range<u64>], abi: Abi) {
    let pieces = function.pieces.iter().filter(|piece| is_in(code, piece));
    let transfers = pieces.flat_map(|piece| calls::transfers(image, piece, abi));
    function.transfers = transfers.collect();
    let transfers = &function.transfers;
    for call in function.calls.iter_mut().filter(|call| !call.is_behind) {
        if let Some(found) = transfers.iter().find(|one| one.at == call.return_address) {
            (call.return_address, call.is_behind) = (found.behind, true);
        }
    }
}

fn is_in(code: &[Range<u64>], piece: &Range<u64>) -> bool {
    code.iter()
        .any(|code| code.start <= piece.start && piece.end <= code.end)
}

/// Sorts functions and removes those that share code: it is unknown which of several folded copies
/// was called.
fn apart(mut functions: Vec<write::Function>) -> Vec<write::Function> {
    functions.sort_by_key(|function| (function.start, function.end));
    let mut shared = vec![false; functions.len()];
    let mut last = 0;
    for index in 1..functions.len() {
        if functions[index].start < functions[last].end {
            (shared[index], shared[last]) = (true, true);
        }
        if functions[index].end > functions[last].end {
            last = index;
        }
    }
    let mut shared = shared.into_iter();
    functions.retain(|_| !shared.next().unwrap_or(false));
    functions
}

struct Maker<'m> {
    abi: Abi,
    arch: &'static Arch,
    code: &'m [Range<u64>],
    parts: &'m Parts<'m>,
    dicts: &'m Dicts<'m>,
    tails: &'m Tails,
    places: Places,
}

/// A function whose calls still contain values that no reader needs.
#[derive(Clone)]
struct Unfinished {
    /// Its start; for a part of a function, the start of the function.
    start: u64,
    made: write::Function,
    /// The target of each of its calls.
    targets: Vec<Target>,
}

/// The target of a call.
#[derive(Clone)]
enum Target {
    /// The function in the file that begins here.
    Function(u64),
    /// For a jump: this function, and the only way to those that it leads to by jumps.
    Beyond(u64),
    /// Any function that a register leads to, whose value is still known at the function's start.
    Any,
    /// Any function that this value leads to; the instruction alone does not show it.
    Location(Location),
    /// Something else.
    Elsewhere,
}

/// A function's parameters as its type has them.
struct Typed {
    signature: write::Signature,
    /// The place of each at the function's start, as far as the calling convention can be followed.
    pieces: Vec<Placed>,
}

/// How a parameter is passed, and its place at its function's start.
type Placed = Option<(Storage, Vec<Piece>)>;

impl Maker<'_> {
    fn unit(&self, number: u32, functions: &[units::Function]) -> Vec<Unfinished> {
        let Some((unit, ids)) = self.parts.unit(number) else {
            return Vec::new();
        };
        let mut finder = Finder::new(self.dicts, self.parts.name(number));
        let made = functions.iter().flat_map(|function| {
            let typed = self.typed(function, &unit.types, &ids, &mut finder, self.parts.is_c(number));
            self.pieces(function, typed)
        });
        made.collect()
    }

    fn typed(
        &self,
        function: &units::Function,
        graph: &Graph<'_>,
        ids: &FxHashMap<Place, TypeId>,
        finder: &mut Finder<'_, '_>,
        is_c: bool,
    ) -> Typed {
        let model = self.abi.data_model();
        let id_of = |place: Option<Place>| place.and_then(|place| ids.get(&place)).copied();
        let described = function.parameters.iter().map(|parameter| {
            let (name, of) = self.parts.described(parameter.entry);
            (name, id_of(of))
        });
        let described: Vec<(&[u8], Option<TypeId>)> = described.collect();
        let shapes = described.iter().map(|(_, id)| Shape::of(graph, (*id)?, model));
        let shapes: Vec<Option<Shape>> = shapes.collect();
        let (_, returns) = self.parts.described(function.entry);
        let result = id_of(returns).and_then(|id| Shape::of(graph, id, model));
        let is_plain = result.as_ref().is_none_or(|result| result.form != Form::Aggregate);
        let known = returns.is_none() || id_of(returns).is_some_and(|id| is_known(graph, id, model));
        let (result_address, pieces) = match is_c || known && is_plain {
            true => {
                let result_address = result.is_some_and(|result| self.abi.passes_result_address(&result));
                // A function whose result has an unknown type may have an additional argument.
                let placer = known.then(|| self.abi.placer(result_address));
                (result_address, self.placed(function, &shapes, placer, is_c))
            }
            // The places of the arguments show whether the address of the result is passed.
            false => {
                let both =
                    [false, true].map(|it| (it, self.placed(function, &shapes, Some(self.abi.placer(it)), is_c)));
                let [without, with] = both;
                let count = |(_, pieces): &(bool, Vec<Placed>)| pieces.iter().flatten().count();
                if count(&with) > count(&without) { with } else { without }
            }
        };
        let mut signature = write::Signature {
            result_address,
            variadic: function.variadic,
            ..write::Signature::default()
        };
        for ((name, id), placed) in described.into_iter().zip(&pieces) {
            let found = id.map_or(TypeId(0), |id| finder.find(graph, id));
            // In C++ and Rust, what the parent has may refer to what it only declares.
            if found.is_child() || !is_c {
                signature.dict = finder.child.and_then(|child| u32::try_from(child).ok());
            }
            signature.parameters.push(write::Parameter {
                name: name.to_vec(),
                type_id: found.0,
                storage: placed.as_ref().map(|(storage, _)| *storage),
            });
        }
        Typed { signature, pieces }
    }

    /// The parameters' places by the calling convention, as far as it can be followed. Other
    /// languages pass some values by address and others directly, which their types do not show; a
    /// parameter of theirs only counts if debug information gives the same place.
    fn placed(
        &self,
        function: &units::Function,
        shapes: &[Option<Shape>],
        mut placer: Option<Placer>,
        is_c: bool,
    ) -> Vec<Placed> {
        let parameters = function.parameters.iter().zip(shapes);
        let placed = parameters.map(|(parameter, shape)| {
            let (before, shape) = (placer.take()?, shape.as_ref()?);
            let by_value = self.abi.classify(shape, true);
            let by_address = Storage {
                passing: Passing::Reference,
                ..by_value
            };
            let ways = [by_value, by_address].into_iter().take(if is_c { 1 } else { 2 });
            let mut fitting = ways.filter_map(|storage| {
                let (mut placer, mut pieces) = (before, Vec::new());
                placer.next(&storage, &mut |piece| pieces.push(piece))?;
                let begins = |(range, location): &(Range<u64>, Location)| {
                    range.contains(&function.start()) && is_passed_so(location, &storage, &pieces)
                };
                let is_there = storage.passing == Passing::Nothing || parameter.places.iter().any(begins);
                (is_c || is_there).then_some((placer, (storage, pieces)))
            });
            let (after, placed) = fitting.next()?;
            placer = Some(after);
            Some(placed)
        });
        placed.collect()
    }

    fn pieces(&self, function: &units::Function, typed: Typed) -> Vec<Unfinished> {
        let prefix = function
            .pieces
            .first()
            .and_then(|first| self.prefix(function, &typed, first.start));
        let safe = self.tails.is_safe(function.start());
        let signature = write::Signature {
            trusted: safe && prefix.is_some(),
            ..typed.signature
        };
        let pieces = function.pieces.iter().enumerate();
        let pieces = pieces
            .filter(|(_, piece)| is_in(self.code, piece))
            .map(|(index, piece)| {
                let within = |call: &&units::Call| piece.contains(&call.return_address.wrapping_sub(1));
                let described = function.calls.iter().filter(within);
                let known: FxHashSet<u64> = described.clone().map(|call| call.return_address).collect();
                let found = function.transfers.iter().filter(|one| one.is_call);
                let found = found.filter(|one| piece.contains(&one.at) && !known.contains(&one.behind));
                let undescribed: Vec<units::Call> = found.map(|one| units::Call::undescribed(one.behind)).collect();
                let calls = described.chain(&undescribed);
                let mut calls: Vec<(write::Call, Target)> = calls
                    .filter_map(|call| {
                        let target = self.called(function, call, safe);
                        match target {
                            _ if !call.is_tail => Some((self.call(function, call, safe, &target), target)),
                            Target::Function(to) if call.is_behind => self.jump(function, call, safe, to),
                            _ => None,
                        }
                    })
                    .collect();
                if self.places != Places::AtCalls {
                    calls.extend(self.between(function, piece, safe));
                }
                // Calls come before places of the same address.
                calls.sort_by_key(|(call, _)| (call.return_address, call.site == Site::Between));
                calls.dedup_by_key(|(call, _)| call.return_address);
                let (calls, targets) = calls.into_iter().unzip();
                let made = write::Function {
                    start: piece.start,
                    end: piece.end,
                    signature: signature.clone(),
                    prefix: prefix.filter(|_| index == 0).unwrap_or(0).min(piece.end - piece.start),
                    calls,
                    everywhere: self.places != Places::AtCalls,
                };
                Unfinished {
                    start: function.start(),
                    made,
                    targets,
                }
            });
        let has_something = |one: &Unfinished| !one.made.signature.parameters.is_empty() || !one.made.calls.is_empty();
        pieces.filter(has_something).collect()
    }

    /// The number of bytes in which the arguments stay where they were passed. `None` if they are
    /// not there at the function's start: copies of functions that compilers make have their own
    /// calling conventions.
    fn prefix(&self, function: &units::Function, typed: &Typed, start: u64) -> Option<u64> {
        let mut prefix = u64::MAX;
        for (parameter, pieces) in function.parameters.iter().zip(&typed.pieces) {
            let (storage, pieces) = pieces.as_ref()?;
            if storage.passing == Passing::Nothing {
                continue;
            }
            let mut until = start;
            for (range, location) in &parameter.places {
                if range.contains(&until) && is_passed_so(location, storage, pieces) {
                    until = range.end;
                }
            }
            if until == start {
                return None;
            }
            prefix = prefix.min(until - start);
        }
        Some(prefix)
    }

    fn called(&self, function: &units::Function, call: &units::Call, safe: bool) -> Target {
        if let Some(called) = self.tails.called(self.parts, function, call) {
            return Target::Function(called);
        }
        let through = call.through.as_ref().filter(|_| call.target.is_none());
        match through.map(|through| self.kept(through, safe)) {
            None | Some(Location::LOST) => Target::Elsewhere,
            Some(Location::One(Value::Register(_, 0))) => Target::Any,
            Some(location) => Target::Location(location),
        }
    }

    fn call(&self, function: &units::Function, call: &units::Call, safe: bool, target: &Target) -> write::Call {
        write::Call {
            return_address: call.return_address,
            site: Site::Call,
            places: places_at(function, call.return_address.wrapping_sub(1), |location| {
                self.kept(location, safe)
            }),
            entries: match target {
                // The arguments of an unknown function can't be identified.
                Target::Elsewhere => Vec::new(),
                _ => self.entries(call, target, |location| self.kept(location, safe)),
            },
        }
    }

    /// The places of the function's own arguments, from each address at which one of them moves.
    fn between(&self, function: &units::Function, piece: &Range<u64>, safe: bool) -> Vec<(write::Call, Target)> {
        let ranges = function.parameters.iter().flat_map(|one| &one.places);
        // gcc ends ranges one byte before the end of a call.
        let unit = 1 << self.abi.shift();
        let moves = ranges.flat_map(|(range, _)| [range.start, range.end]);
        let moves = moves.filter_map(|at| at.checked_next_multiple_of(unit));
        let moves: BTreeSet<u64> = moves.filter(|at| piece.contains(at)).chain([piece.start]).collect();
        let calls = moves.into_iter().map(|at| write::Call {
            return_address: at + unit,
            site: Site::Between,
            // In the innermost frame all registers are known.
            places: places_at(function, at, |location| {
                kept_by(location, |value| !matches!(value, Value::Entry(..)) || safe)
            }),
            entries: Vec::new(),
        });
        calls.map(|call| (call, Target::Elsewhere)).collect()
    }

    /// The values that a jump from one function passes to another; `None` if other jumps may reach
    /// it.
    fn jump(
        &self,
        function: &units::Function,
        call: &units::Call,
        safe: bool,
        to: u64,
    ) -> Option<(write::Call, Target)> {
        // All registers have the values of the jumping function's caller again.
        let kept = |location: &Location| match location {
            Location::One(Value::Constant(_) | Value::Address(_)) => location.clone(),
            Location::One(Value::Entry(..)) if safe => location.clone(),
            _ => Location::LOST,
        };
        if !self.tails.is_only_way(function.start(), to) {
            return None;
        }
        let made = write::Call {
            return_address: call.return_address,
            site: Site::Jump,
            places: Vec::new(),
            entries: self.entries(call, &Target::Function(to), kept),
        };
        let is_beyond = self.tails.leads_on(to) && self.tails.is_only_way_beyond(function.start(), to);
        let target = if is_beyond { Target::Beyond } else { Target::Function };
        Some((made, target(to)))
    }

    /// The value of each general register, and of each parameter that was removed from the called
    /// function.
    fn entries(&self, call: &units::Call, target: &Target, kept: impl Fn(&Location) -> Location) -> Vec<Location> {
        let mut entries = Vec::new();
        for (passed, location) in &call.passed {
            let number = match (passed, target) {
                (units::Passed::Register(register), _) => Some(*register),
                (units::Passed::Parameter(parameter), Target::Function(called)) => {
                    let index = self.tails.parameter(*called, *parameter);
                    index.and_then(|index| PARAMETERS.checked_add(u8::try_from(index).ok()?))
                }
                _ => None,
            };
            if let (Some(place), location) = (
                number.and_then(|number| needed::place(number, self.abi)),
                kept(location),
            ) && location != Location::LOST
            {
                needed::put(&mut entries, place, location);
            }
        }
        entries
    }

    /// The part of a value that is known in a frame that is not the innermost.
    fn kept(&self, location: &Location, safe: bool) -> Location {
        kept_by(location, |value| match value {
            Value::Register(register, _) | Value::AtRegister(register, _) => self.is_preserved(register),
            Value::Entry(..) => safe,
            _ => true,
        })
    }

    fn is_preserved(&self, register: u8) -> bool {
        register == self.arch.sp.0 || self.arch.preserved.contains(&Register(register))
    }
}

/// The places of the function's own arguments at an address, as far as they are kept.
fn places_at(function: &units::Function, address: u64, kept: impl Fn(&Location) -> Location) -> Vec<Location> {
    let place = |parameter: &units::Parameter| {
        let location = parameter.places.iter().find(|(range, _)| range.contains(&address));
        location.map_or(Location::LOST, |(_, location)| kept(location))
    };
    let mut places: Vec<Location> = function.parameters.iter().map(place).collect();
    if places.iter().all(|place| *place == Location::LOST) {
        places.clear();
    }
    places
}

/// The part of a value that is known if `is_kept` holds for its single values.
fn kept_by(location: &Location, is_kept: impl Fn(Value) -> bool) -> Location {
    let one = |value| if is_kept(value) { value } else { Value::Lost };
    match location {
        Location::One(value) => Location::One(one(*value)),
        Location::Parts(parts) => {
            let kept: Vec<(u8, Value)> = parts.iter().map(|&(bytes, value)| (bytes, one(value))).collect();
            match kept.iter().all(|(_, value)| *value == Value::Lost) {
                true => Location::LOST,
                false => Location::Parts(kept),
            }
        }
        Location::Computed(steps) => {
            let is_lost = |step: &Step| matches!(*step, Step::Push(value) if one(value) == Value::Lost);
            match steps.iter().any(is_lost) {
                true => Location::LOST,
                false => location.clone(),
            }
        }
    }
}

fn is_known(graph: &Graph<'_>, id: TypeId, model: backtrail_args::shape::DataModel) -> bool {
    let is_void = |body: &Body| matches!(body, Body::Number(_, 0, _));
    let resolved = backtrail_args::shape::resolve(graph, id);
    resolved.is_some_and(|(_, node)| is_void(&node.body)) || Shape::of(graph, id, model).is_some()
}

/// Whether a location is the one that the calling convention gives to the argument.
fn is_passed_so(location: &Location, storage: &Storage, pieces: &[Piece]) -> bool {
    let in_register = |value: &Value, piece: &Piece| match piece.place {
        Where::Register(register) if storage.passing == Passing::Reference => *value == Value::AtRegister(register, 0),
        Where::Register(register) => *value == Value::Register(register, 0),
        Where::Stack(at) => i64::try_from(at).is_ok_and(|at| *value == Value::AtFrame(at)),
    };
    match (location, pieces) {
        (Location::One(value), [piece]) => in_register(value, piece),
        (Location::Parts(parts), pieces) => {
            parts.len() == pieces.len()
                && parts
                    .iter()
                    .zip(pieces)
                    .all(|((_, value), piece)| in_register(value, piece))
        }
        _ => false,
    }
}
