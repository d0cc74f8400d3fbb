//! The arguments of a stack's functions, from the tables of arguments of their files.
//!
//! An argument is at the place that the table gives for the call in progress. If the table says
//! that it equals a register at the function's entry, or gives no place, the caller's own call has
//! it, provided that this call went to the function: the instruction before the return address
//! shows that. In the innermost frame, arguments are where they were passed as long as the table
//! says so. Values that can't be found are not guessed.

mod contents;
mod float;
mod inside;
mod libcxx;
mod lists;
pub(crate) mod module;
mod owned;
mod show;
mod slices;
mod tables;
mod variants;

use std::cell::RefCell;
use std::sync::Arc;

use backtrail_arch::{Arch, Register, Registers};
use backtrail_args::abi::{Passing, Piece, Place};
use backtrail_args::table::{BEYOND, CallSite, Outcome, PARAMETERS, Value, Values, compute};
use backtrail_cfi::proof;
use backtrail_ctype::{Kind, TypeId, Types};
use backtrail_process::Snapshot;
use backtrail_unwind::AddressKind;
use backtrail_wire::Endian;
use rustc_hash::FxHashMap;

use crate::process::{Argument, Frame, Hidden, ThreadStack};
use crate::shown::{Amount, HIDDEN, Shown};
use crate::space::Space;
use module::Opened;
use module::Source;
use module::defined;
use show::{Byte, MOST_VALUES, Show, known};

/// Maximum size of a value; larger ones are not shown.
const LARGEST_VALUE: u64 = 256;
/// Maximum number of arguments.
const MOST_PARAMETERS: usize = 256;
/// Maximum length of a name.
const LONGEST_NAME: usize = 256;
/// Maximum number of frames through which a value is traced to where it was passed.
const MOST_ENTRIES: u32 = 100;
/// Maximum number of functions searched for a sequence of jumps.
const MOST_JUMPING: u32 = 32;
/// Maximum number of jumps of a function that are followed.
const MOST_JUMPS: usize = 16;

/// Finds the arguments of each frame of these threads.
pub(crate) fn find(snapshot: &Snapshot<'_>, space: &Space<'_>, shown: &Shown, threads: &mut [ThreadStack]) {
    find_by(snapshot, space, shown, threads, |address| space.arguments_of(address));
}

/// The same with other tables: given an address, the module's table, its number, and its distance
/// from its addresses in the file.
pub(crate) fn find_by<'t>(
    snapshot: &Snapshot<'_>,
    space: &Space<'_>,
    shown: &Shown,
    threads: &mut [ThreadStack],
    table: impl Fn(u64) -> Option<(&'t Source, u32, u64)>,
) {
    // Waiting threads are at the same few places, and so are the calls of a recursion.
    let frames = threads.iter().flat_map(|thread| &thread.frames);
    let frames: FxHashMap<Where, Frame> = frames.map(|frame| (stands(frame), *frame)).collect();
    let tables = frames
        .values()
        .filter_map(|frame| Some((frame, table(looked_up(frame))?)));
    let tables: Vec<_> = tables.collect();
    let mut opened: FxHashMap<u32, Option<Opened<'_>>> = FxHashMap::default();
    for (_, (source, number, _)) in &tables {
        opened
            .entry(*number)
            .or_insert_with(|| Opened::new(source, snapshot.arch));
    }
    let known = tables.iter().filter_map(|(frame, (_, number, bias))| {
        let opened = opened.get(number)?.as_ref()?;
        Some((stands(frame), Known::read(opened, *bias, frame)?))
    });
    let known: FxHashMap<Where, Known<'_, '_>> = known.collect();
    let vectors = snapshot.threads.iter().filter(|thread| !thread.vectors.is_empty());
    let vectors: FxHashMap<u32, &[u8]> = vectors.map(|thread| (thread.tid, &*thread.vectors)).collect();
    for thread in threads {
        let look = Look {
            snapshot,
            space,
            shown,
            thread,
            vectors: vectors.get(&thread.tid).copied().unwrap_or_default(),
            known: &known,
            entered: RefCell::default(),
        };
        // Callers first, since callees depend on them.
        let frames = (0..thread.frames.len()).rev();
        let mut arguments: Vec<Vec<Argument>> = frames.map(|frame| look.frame(frame).unwrap_or_default()).collect();
        arguments.reverse();
        thread.arguments = arguments;
    }
}

/// The values that the structs of a dict would have at these addresses, for the fuzz targets.
pub(crate) fn values_at(
    types: Types<'_>,
    endian: Endian,
    read: &dyn Fn(u64, &mut [u8]) -> usize,
    addresses: &[u64],
) -> Vec<String> {
    let (names, shown) = (module::by_name(types), Shown::default());
    let value = |id: TypeId, address: u64| {
        let size = Some(types.resolve(id).ok()?.size()).filter(|&size| size <= LARGEST_VALUE)?;
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        (read(address, &mut bytes) == bytes.len()).then_some(())?;
        let bytes: Vec<Byte> = bytes.into_iter().map(Some).collect();
        let mut show = Show {
            read,
            named: &|name| *names.get(name)?,
            endian,
            x87: true,
            types,
            out: String::new(),
            code: Vec::new(),
            shown: &shown,
            left: MOST_VALUES,
            hidden: Hidden::Nothing,
        };
        show.value(id, &bytes, 0)?;
        Some(show.out)
    };
    let is_struct = |id: &TypeId| types.get(*id).is_ok_and(|found| found.kind() == Kind::Struct);
    let structs = types.dict().ids().filter(is_struct).take(MOST_PARAMETERS);
    let values = structs.flat_map(|id| addresses.iter().filter_map(move |&address| value(id, address)));
    values.collect()
}

/// Frames with the same value have the same table entries.
type Where = (u64, AddressKind);

fn stands(frame: &Frame) -> Where {
    (frame.address, frame.kind)
}

/// The address to look up for a frame.
fn looked_up(frame: &Frame) -> u64 {
    match frame.kind {
        AddressKind::Pc => frame.address,
        AddressKind::Ra => frame.address.wrapping_sub(1),
    }
}

/// What a table says about an address that frames have.
struct Known<'l, 's> {
    opened: &'l Opened<'s>,
    bias: u64,
    /// Where the function begins in memory.
    start: u64,
    /// Its arguments may be taken from its caller's call.
    trusted: bool,
    /// Arguments are where they were passed.
    at_start: bool,
    /// The dict of the types.
    dict: Option<u32>,
    parameters: Vec<Parameter>,
    /// The known places, one for each parameter.
    places: Vec<Value>,
    /// The values passed in each general register, then the callee's address, then parameters that
    /// are in no register.
    entries: Vec<Value>,
}

struct Parameter {
    name: Arc<str>,
    type_id: TypeId,
    type_name: Option<Arc<str>>,
    /// Size of its type in bytes.
    size: Option<u64>,
    /// How it is passed, and where it is at the function's start. If unknown, so is that of the
    /// following parameters.
    passed: Option<(Passing, Vec<Piece>)>,
    location: LocationText,
}

/// Where a parameter is, in readable form.
struct LocationText {
    /// The table's place.
    now: Option<Arc<str>>,
    /// Where it was passed.
    passed: Option<Arc<str>>,
    /// The same, for a function that has run on since.
    before: Option<Arc<str>>,
}

impl<'l, 's> Known<'l, 's> {
    /// `None` if the table has no entry, or is damaged.
    fn read(opened: &'l Opened<'s>, bias: u64, frame: &Frame) -> Option<Known<'l, 's>> {
        let table = &opened.table;
        let svma = frame.address.wrapping_sub(bias);
        let function = table.function(looked_up(frame).wrapping_sub(bias)).ok()??;
        let signature = function.signature().ok()??;
        let is_pc = frame.kind == AddressKind::Pc;
        let site = match is_pc {
            true => CallSite {
                places: function.places_at(svma).ok()?,
                entries: None,
            },
            false => function.call_site(svma).ok()?,
        };
        let values = |values: Option<Values<'_>>| {
            let values = values.into_iter().flatten().take(MOST_PARAMETERS);
            values.collect::<Result<Vec<Value>, _>>().ok()
        };
        let places = values(site.places)?;
        let arch = opened.arch;
        let mut placer = Some(table.abi().placer(signature.result_address));
        let mut parameters = Vec::new();
        for (index, parameter) in signature.parameters.take(MOST_PARAMETERS).enumerate() {
            let parameter = parameter.ok()?;
            let passed = parameter.storage.and_then(|storage| {
                let mut pieces = Vec::new();
                placer.as_mut()?.next(&storage, &mut |piece| pieces.push(piece))?;
                Some((storage.passing, pieces))
            });
            if passed.is_none() {
                placer = None;
            }
            let name: Vec<u8> = parameter.name.take(LONGEST_NAME).collect();
            let type_id = TypeId(parameter.type_id);
            let (type_name, size) = opened.known(signature.dict, type_id);
            let pieces = passed.as_ref().map(|(_, pieces)| pieces_text(arch, pieces));
            parameters.push(Parameter {
                name: String::from_utf8_lossy(&name).into(),
                type_id,
                type_name,
                size,
                location: LocationText {
                    now: places.get(index).map(|value| location_text(arch, value).into()),
                    before: pieces.as_ref().map(|pieces| format!("passed {pieces}").into()),
                    passed: pieces.map(Arc::from),
                },
                passed,
            });
        }
        Some(Known {
            opened,
            bias,
            start: function.start.wrapping_add(bias),
            trusted: signature.trusted,
            at_start: is_pc && svma.wrapping_sub(function.start) < function.prefix,
            dict: signature.dict,
            parameters,
            places,
            entries: values(site.entries)?,
        })
    }
}

/// A value that was found.
enum Found {
    /// The value, or its lowest eight bytes.
    Word(u64),
    /// The address of the value.
    At(u64),
    Bytes(Vec<Byte>),
}

struct Look<'l, 's> {
    snapshot: &'l Snapshot<'l>,
    space: &'l Space<'l>,
    shown: &'l Shown,
    thread: &'l ThreadStack,
    /// The set of its vector registers.
    vectors: &'l [u8],
    known: &'l FxHashMap<Where, Known<'l, 's>>,
    /// Register values when functions were called, by frame and register. In a deep recursion, each
    /// call would otherwise ask all outer ones.
    entered: RefCell<FxHashMap<(usize, u8), Option<u64>>>,
}

impl<'l, 's> Look<'l, 's> {
    fn arch(&self) -> &'static Arch {
        self.snapshot.arch
    }

    fn known(&self, frame: usize) -> Option<&'l Known<'l, 's>> {
        self.known.get(&stands(self.thread.frames.get(frame)?))
    }

    fn registers(&self, frame: usize) -> Option<Registers> {
        self.thread.registers.get(frame)
    }

    /// The lowest 16 bytes of a vector register. A call preserves none of them, or only a part.
    fn vector(&self, frame: usize, register: Register) -> Option<[u8; 16]> {
        let vectors = self.arch().vectors.filter(|_| frame == 0)?;
        vectors.value(self.vectors, register)
    }

    /// The lowest eight bytes of a register of an innermost frame.
    fn low(&self, frame: usize, register: Register) -> Option<u64> {
        let general = self.registers(frame).and_then(|registers| registers.get(register));
        let vector = || self.vector(frame, register)?.first_chunk().copied();
        general.or_else(|| vector().map(u64::from_le_bytes))
    }

    /// The canonical frame address of a frame.
    fn cfa(&self, frame: usize) -> Option<u64> {
        let sp = self.registers(frame + 1)?.get(self.arch().sp)?;
        Some(sp.wrapping_add_signed(-self.arch().sp_from_cfa))
    }

    fn frame(&self, frame: usize) -> Option<Vec<Argument>> {
        let known = self.known(frame)?;
        let parameters = known.parameters.iter().enumerate();
        Some(
            parameters
                .map(|(index, one)| self.argument(frame, known, index, one))
                .collect(),
        )
    }

    fn argument(&self, frame: usize, known: &Known<'_, '_>, index: usize, parameter: &Parameter) -> Argument {
        let mut argument = Argument {
            name: Arc::clone(&parameter.name),
            type_name: parameter.type_name.clone(),
            value: None,
            place: None,
            at_entry: false,
            code: Vec::new(),
            hidden: Hidden::Nothing,
        };
        if self.shown.amount == Amount::Types {
            argument.hidden = Hidden::Value;
            return argument;
        }
        if self.shown.hides(&parameter.name) {
            argument.value = Some(HIDDEN.to_owned());
            argument.hidden = Hidden::Name;
            return argument;
        }
        if known.at_start
            && let Some((passing, pieces)) = &parameter.passed
        {
            let mut register = |register| self.low(frame, Register(register));
            let found = self.passed(pieces, *passing, &mut register, frame);
            self.show(&mut argument, known, parameter, found, &parameter.location.passed);
        }
        let place = known.places.get(index).filter(|_| !known.at_start);
        if let Some(value) = place.filter(|value| !self.is_in_doubt(frame, known, parameter, value)) {
            let found = self.value(known, frame, *value, 0);
            self.show(&mut argument, known, parameter, found, &parameter.location.now);
        }
        // Arguments passed in memory, or by the address of a copy, may have been changed there.
        let in_registers = |pieces: &[Piece]| {
            let mut pieces = pieces.iter();
            pieces.all(|piece| matches!(piece.place, Place::Register(_)))
        };
        if argument.value.is_none()
            && known.trusted
            && let Some((passing, pieces)) = &parameter.passed
            && in_registers(pieces)
            && *passing != Passing::Reference
        {
            let mut register = |register| self.entry(frame, register, 0);
            let found = self.passed(pieces, Passing::General, &mut register, frame);
            self.show(&mut argument, known, parameter, found, &parameter.location.before);
            argument.at_entry = argument.value.is_some();
        }
        argument
    }

    /// Whether a place may be that of the value's address. Rust passes structs of more than a word
    /// by address, and if there is no register for it, LLVM says that the struct itself is where
    /// the caller has put its address. gcc's places count from the frame, and C's structs have a
    /// storage.
    fn is_in_doubt(&self, frame: usize, known: &Known<'_, '_>, parameter: &Parameter, value: &Value) -> bool {
        let is_passed_there = || {
            let cfa = self.cfa(frame)?;
            let Value::AtRegister(number, offset) = *value else {
                return None;
            };
            let base = self.registers(frame)?.get(Register(number))?;
            Some(base < cfa && base.wrapping_add_signed(offset) >= cfa)
        };
        let is_struct = || {
            let named = |name: &[u8]| known.opened.named(known.dict, name);
            let found = defined(known.opened.types(known.dict)?, &named, parameter.type_id);
            Some(matches!(found.ok()?.kind(), Kind::Struct | Kind::Union))
        };
        let is_large = parameter.size.is_some_and(|size| size > 8);
        is_large && parameter.passed.is_none() && is_struct() == Some(true) && is_passed_there() == Some(true)
    }

    fn show(
        &self,
        argument: &mut Argument,
        known: &Known<'_, '_>,
        parameter: &Parameter,
        found: Option<Found>,
        place: &Option<Arc<str>>,
    ) {
        let shown = found.and_then(|found| {
            let types = known.opened.types(known.dict)?;
            let bytes = self.bytes(found, parameter.size?)?;
            let mut show = Show {
                read: &|address, buffer| self.space.read(address, buffer),
                named: &|name| known.opened.named(known.dict, name),
                endian: self.snapshot.endian,
                x87: known.opened.table.abi().data_model().x87,
                types,
                out: String::new(),
                code: Vec::new(),
                shown: self.shown,
                left: MOST_VALUES,
                hidden: Hidden::Nothing,
            };
            show.value(parameter.type_id, &bytes, 0)?;
            Some((show.out, show.code, show.hidden))
        });
        if let Some((shown, code, hidden)) = shown {
            argument.hidden = hidden;
            argument.value = Some(shown);
            argument.code = code;
            argument.place.clone_from(place);
        }
    }

    /// The bytes of a value of this size, of which some may be lost.
    fn bytes(&self, found: Found, size: u64) -> Option<Vec<Byte>> {
        if size == 0 || size > LARGEST_VALUE {
            return None;
        }
        let size = size as usize;
        let all = |bytes: &[u8]| bytes.iter().copied().map(Some).collect();
        match found {
            // All CPUs with a supported calling convention here are little-endian.
            Found::Word(word) => word.to_le_bytes().get(..size).map(all),
            Found::At(address) => {
                let mut bytes = vec![0; size];
                (self.space.read(address, &mut bytes) == size).then(|| all(&bytes))
            }
            Found::Bytes(mut bytes) => {
                // Padding at the end has no place, nor has a last member that is lost.
                bytes.resize(size, None);
                Some(bytes).filter(|bytes| bytes.iter().any(Option::is_some))
            }
        }
    }

    /// A value from the places in which it was passed; `register` gives a register's value at that
    /// time.
    fn passed(
        &self,
        pieces: &[Piece],
        passing: Passing,
        register: &mut dyn FnMut(u8) -> Option<u64>,
        frame: usize,
    ) -> Option<Found> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let [offset, len] = [piece.offset, piece.bytes].map(usize::try_from);
            let (offset, len) = (offset.ok()?, len.ok()?);
            if offset.max(len) as u64 > LARGEST_VALUE {
                return None;
            }
            let part = match piece.place {
                Place::Register(number) => match register(number) {
                    Some(word) => self.bytes(Found::Word(word), piece.bytes)?,
                    None => vec![None; len],
                },
                Place::Stack(at) => self.bytes(Found::At(self.cfa(frame)?.wrapping_add(at)), piece.bytes)?,
            };
            bytes.resize(offset, None);
            bytes.extend(part);
        }
        match passing {
            Passing::Reference => Some(Found::At(self.word(Found::Bytes(bytes))?)),
            _ => Some(Found::Bytes(bytes)),
        }
    }

    /// A value in a frame, or at a call from it.
    fn value(&self, known: &Known<'_, '_>, frame: usize, value: Value, depth: u32) -> Option<Found> {
        let is_innermost = self.thread.frames.get(frame)?.kind == AddressKind::Pc;
        let register = |number: u8| {
            let register = Register(number);
            // Caller-saved registers no longer contain the frame's values.
            let is_known = is_innermost || register == self.arch().sp || self.arch().preserved.contains(&register);
            self.registers(frame)?.get(register).filter(|_| is_known)
        };
        Some(match value {
            Value::Lost => return None,
            Value::Register(number, 0) if let Some(bytes) = self.vector(frame, Register(number)) => {
                Found::Bytes(bytes.into_iter().map(Some).collect())
            }
            Value::Register(number, offset) => Found::Word(register(number)?.wrapping_add_signed(offset)),
            Value::AtRegister(number, offset) => Found::At(register(number)?.wrapping_add_signed(offset)),
            Value::Frame(offset) => Found::Word(self.cfa(frame)?.wrapping_add_signed(offset)),
            Value::AtFrame(offset) => Found::At(self.cfa(frame)?.wrapping_add_signed(offset)),
            Value::Constant(number) => Found::Word(number as u64),
            Value::Address(address) => Found::Word(address.wrapping_add(known.bias)),
            Value::AtAddress(address) => Found::At(address.wrapping_add(known.bias)),
            Value::Entry(number, offset) => Found::Word(self.entry(frame, number, depth)?.wrapping_add_signed(offset)),
            Value::Parts(start, count) => {
                let mut bytes = Vec::new();
                for part in known.opened.table.parts(start, count) {
                    let (size, value) = part.ok()?;
                    let len = usize::try_from(size).ok().filter(|_| size <= LARGEST_VALUE)?;
                    let part = self.value(known, frame, value, depth);
                    let part = part.and_then(|found| self.bytes(found, size));
                    bytes.extend(part.unwrap_or_else(|| vec![None; len]));
                }
                Found::Bytes(bytes)
            }
            Value::Computed(start, count) => {
                let steps = known.opened.table.steps(start, count);
                let word = |value| self.word(self.value(known, frame, value, depth)?);
                match compute(steps, word, |address| self.code(address).map(u64::from_le_bytes))? {
                    Outcome::Word(word) => Found::Word(word),
                    Outcome::At(address) => Found::At(address),
                }
            }
        })
    }

    fn word(&self, found: Found) -> Option<u64> {
        Some(u64::from_le_bytes(known(&self.bytes(found, 8)?)?.try_into().ok()?))
    }

    /// A register's value when a frame's function was called, from its caller's call.
    fn entry(&self, frame: usize, register: u8, depth: u32) -> Option<u64> {
        if let Some(known) = self.entered.borrow().get(&(frame, register)) {
            return *known;
        }
        let found = self.passed_to(frame, register, depth);
        // Further in, a search may have ended only because of its length.
        if depth == 0 || found.is_some() {
            self.entered.borrow_mut().insert((frame, register), found);
        }
        found
    }

    fn passed_to(&self, frame: usize, register: u8, depth: u32) -> Option<u64> {
        let caller = frame + 1;
        if depth > MOST_ENTRIES || self.thread.frames.get(caller)?.kind != AddressKind::Ra {
            return None;
        }
        let (callee, known) = (self.known(frame)?, self.known(caller)?);
        let passed = |register: u8| {
            let value = nth(&known.entries, known, register)?;
            self.word(self.value(known, caller, *value, depth + 1)?)
        };
        let location = known
            .entries
            .get(registers(known).len())
            .filter(|location| **location != Value::Lost);
        let called = match location {
            Some(location) => self.word(self.value(known, caller, *location, depth + 1)?)?,
            None => self.called(self.thread.frames[caller].address, caller)?,
        };
        if called == callee.start {
            return passed(register);
        }
        // The called function has jumped to this one or to one that did, and they no longer have
        // frames.
        let (mut register, mut added) = (register, 0_i64);
        for entries in self.jumps(called, callee, &mut { MOST_JUMPING })? {
            match *nth(&entries, callee, register)? {
                Value::Constant(number) => return Some(number.wrapping_add(added) as u64),
                Value::Address(address) => {
                    return Some(address.wrapping_add(callee.bias).wrapping_add_signed(added));
                }
                Value::Entry(before, offset) => (register, added) = (before, added.wrapping_add(offset)),
                _ => return None,
            }
        }
        Some(passed(register)?.wrapping_add_signed(added))
    }

    /// What the function at an address passes to another function of its file by its only jump, or
    /// only sequence of jumps, to it: the values of each jump, the last jump first.
    fn jumps(&self, from: u64, to: &Known<'_, '_>, functions_left: &mut u32) -> Option<Vec<Vec<Value>>> {
        *functions_left = functions_left.checked_sub(1)?;
        let function = to.opened.table.function(from.wrapping_sub(to.bias)).ok()??;
        if function.start.wrapping_add(to.bias) != from {
            return None;
        }
        let (mut direct, mut others) = (Vec::new(), Vec::new());
        let found = function.each_passing(|behind, values| {
            match self.direct(behind.wrapping_add(to.bias), &JUMP) {
                Some(target) if target == to.start => direct.push(values),
                Some(target) if others.len() < MOST_JUMPS => others.push((target, values)),
                _ => {}
            }
            direct.truncate(2);
        });
        found.ok()?;
        let list = |values: Values<'_>| values.take(MOST_PARAMETERS).collect::<Result<Vec<_>, _>>().ok();
        match direct.len() {
            0 => others.into_iter().find_map(|(target, values)| {
                let entries = list(values)?;
                if entries.get(registers(to).len()) != Some(&Value::Constant(BEYOND)) {
                    return None;
                }
                let mut jumps = self.jumps(target, to, functions_left)?;
                jumps.push(entries);
                Some(jumps)
            }),
            1 => Some(vec![list(direct.pop()?)?]),
            _ => None,
        }
    }

    /// The callee of a frame's call that returns to this address, if the instruction shows it: a
    /// direct call, one through a stub of the linkage table, or one by a callee-saved register.
    fn called(&self, return_address: u64, frame: usize) -> Option<u64> {
        if let Some(called) = self.direct(return_address, &CALL) {
            return Some(proof::stub_target(&self.space, called).unwrap_or(called));
        }
        let register = Register(match self.arch().link_register {
            true => {
                // `blr`
                let word = u32::from_le_bytes(self.code(return_address.wrapping_sub(4))?);
                (word & 0xffff_fc1f == 0xd63f_0000).then_some((word >> 5 & 31) as u8)?
            }
            false => {
                // `call *register`, of the higher eight with a prefix
                const LOW: [u8; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
                match self.code(return_address.wrapping_sub(3))? {
                    [0x41, 0xff, register @ 0xd0..=0xd7] => register - 0xd0 + 8,
                    [_, 0xff, register @ 0xd0..=0xd7] => LOW[usize::from(register - 0xd0)],
                    _ => return None,
                }
            }
        });
        let is_preserved = self.arch().preserved.contains(&register);
        self.registers(frame)?.get(register).filter(|_| is_preserved)
    }

    /// The target of the instruction before this address, if it is a direct one.
    fn direct(&self, behind: u64, instruction: &Direct) -> Option<u64> {
        if self.arch().link_register {
            let at = behind.wrapping_sub(4);
            let word = u32::from_le_bytes(self.code(at)?);
            let offset = i64::from((word << 6) as i32 >> 4);
            return (word >> 26 == instruction.aarch64).then(|| at.wrapping_add_signed(offset));
        }
        let [before, opcode, a, b, c, d] = self.code(behind.wrapping_sub(6))?;
        let offset = i32::from_le_bytes([a, b, c, d]);
        let is_conditional = instruction.conditional && before == 0x0f && opcode & 0xf0 == 0x80;
        (opcode == instruction.x86_64 || is_conditional).then(|| behind.wrapping_add_signed(offset.into()))
    }

    fn code<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.space.read(address, &mut bytes) == N).then_some(bytes)
    }
}

/// The opcodes of an instruction that contains its target's distance.
struct Direct {
    /// Followed by 32 bits.
    x86_64: u8,
    /// Whether there are conditional forms: 0x0f, 0x80 and the condition.
    conditional: bool,
    /// Above the lowest 26 bits.
    aarch64: u32,
}

/// `call rel32`, `bl`
const CALL: Direct = Direct {
    x86_64: 0xe8,
    conditional: false,
    aarch64: 0b100101,
};

/// `jmp rel32`, `b`
const JUMP: Direct = Direct {
    x86_64: 0xe9,
    conditional: true,
    aarch64: 0b000101,
};

/// Of the values that a call passes, the one in this register, or that of a parameter in no
/// register.
fn nth<'v>(values: &'v [Value], known: &Known<'_, '_>, register: u8) -> Option<&'v Value> {
    let registers = registers(known);
    let place = match register.checked_sub(PARAMETERS) {
        Some(parameter) => registers.len() + 1 + usize::from(parameter),
        None => registers.iter().position(|&other| other == register)?,
    };
    values.get(place)
}

/// The registers that pass arguments.
fn registers(known: &Known<'_, '_>) -> &'static [u8] {
    known.opened.table.abi().general_registers()
}

fn name(arch: &Arch, register: u8) -> String {
    let register = Register(register);
    let vector = || {
        let vectors = arch.vectors?;
        Some(format!("{}{}", vectors.name, vectors.index(register)?))
    };
    let general = arch.register_name(register).map(str::to_owned);
    let name = general.or_else(vector);
    name.unwrap_or_else(|| format!("register {}", register.0))
}

fn pieces_text(arch: &Arch, pieces: &[Piece]) -> String {
    let location = |piece: &Piece| match piece.place {
        Place::Register(register) => name(arch, register),
        Place::Stack(at) => format!("[cfa+{at:#x}]"),
    };
    pieces.iter().map(location).collect::<Vec<_>>().join(", ")
}

/// A place in readable form.
fn location_text(arch: &Arch, value: &Value) -> String {
    let offset = |offset: i64| match offset {
        0 => String::new(),
        offset if offset < 0 => format!("-{:#x}", offset.unsigned_abs()),
        offset => format!("+{offset:#x}"),
    };
    match *value {
        Value::Lost => "lost".to_owned(),
        Value::Register(register, from) => format!("{}{}", name(arch, register), offset(from)),
        Value::AtRegister(register, from) => format!("[{}{}]", name(arch, register), offset(from)),
        Value::Frame(from) => format!("cfa{}", offset(from)),
        Value::AtFrame(from) => format!("[cfa{}]", offset(from)),
        Value::Constant(_) => "constant".to_owned(),
        Value::Address(_) => "address".to_owned(),
        Value::AtAddress(address) => format!("[{address:#x}]"),
        Value::Entry(parameter, _) if parameter >= PARAMETERS => "known to the caller".to_owned(),
        Value::Entry(register, from) => format!("entry {}{}", name(arch, register), offset(from)),
        Value::Parts(..) => "parts".to_owned(),
        Value::Computed(..) => "computed".to_owned(),
    }
}
