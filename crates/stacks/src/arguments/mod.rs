//! What the functions of a stack were called with, by the tables of arguments of their files.
//!
//! An argument is where the table has it at the call that its function has not returned from. Where that says that it is what a register was at the
//! function's entry, or says nothing, the caller's own call has it, if that called this function: the instruction in front of the return address
//! says which. In the innermost frame arguments are where they were passed as long as the table says so.
//! What can't be found is not guessed.

mod module;
mod show;

use std::collections::HashMap;
use std::fmt;

use backtrail_arch::{Arch, Register, Registers};
use backtrail_args::abi::{Passing, Piece, Place};
use backtrail_args::table::{Function, Signature, Table, Value};
use backtrail_ctype::TypeId;
use backtrail_target::Snapshot;
use backtrail_unwind::AddressKind;

use crate::modules::Space;
use crate::process::ThreadStack;
use module::Opened;
pub(crate) use module::Source;
use show::Show;

/// Bytes of a value; larger ones are not shown.
const LARGEST_VALUE: u64 = 256;
/// Frames through which a value is followed to where it was passed from.
const MOST_ENTRIES: u32 = 100;

/// An argument of a frame's function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    /// Its name; empty where it has none.
    pub name: String,
    /// Its type, where that is known.
    pub type_name: Option<String>,
    /// Its value; `None` where it is lost.
    pub value: Option<String>,
    /// Where that was found.
    pub place: Option<String>,
    /// The function may have changed it since: it is what it was called with.
    pub at_entry: bool,
}

/// `name=value`; `name@entry=value` where the function may have changed it since, and `...` for what is lost.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = if self.at_entry { "@entry" } else { "" };
        let value = self.value.as_deref().unwrap_or("...");
        write!(f, "{}{entry}={value}", self.name)
    }
}

/// The arguments of each frame of a thread.
pub(crate) fn arguments<'s>(
    snapshot: &Snapshot<'_>,
    space: &'s Space<'s>,
    thread: &ThreadStack,
    opened: &mut HashMap<u32, Option<Opened<'s>>>,
) -> Vec<Vec<Argument>> {
    for frame in 0..thread.frames.len() {
        let (address, _) = looked_up(thread, frame);
        if let Some((source, number, _)) = space.arguments_of(address) {
            opened.entry(number).or_insert_with(|| Opened::new(source));
        }
    }
    let look = Look {
        snapshot,
        space,
        thread,
        opened,
    };
    (0..thread.frames.len())
        .map(|frame| look.frame(frame).unwrap_or_default())
        .collect()
}

/// The address by which a frame is looked up, and its own.
fn looked_up(thread: &ThreadStack, frame: usize) -> (u64, u64) {
    let found = &thread.frames[frame];
    match found.kind {
        AddressKind::Pc => (found.address, found.address),
        AddressKind::Ra => (found.address.wrapping_sub(1), found.address),
    }
}

struct Look<'l, 's> {
    snapshot: &'l Snapshot<'l>,
    space: &'s Space<'s>,
    thread: &'l ThreadStack,
    opened: &'l HashMap<u32, Option<Opened<'s>>>,
}

/// A frame with its table.
struct Known<'l, 's> {
    opened: &'l Opened<'s>,
    table: Table<'s>,
    function: Function<'s>,
    signature: Option<Signature<'s>>,
    /// Its address in the file.
    svma: u64,
    bias: u64,
}

/// A value that was found.
enum Found {
    /// It, or its lowest eight bytes.
    Word(u64),
    /// It lies there.
    At(u64),
    Bytes(Vec<u8>),
}

impl<'l, 's> Look<'l, 's> {
    fn arch(&self) -> &'static Arch {
        self.snapshot.arch
    }

    fn known(&self, frame: usize) -> Option<Known<'l, 's>> {
        if frame >= self.thread.frames.len() {
            return None;
        }
        let (address, own) = looked_up(self.thread, frame);
        let (_, number, bias) = self.space.arguments_of(address)?;
        let opened = self.opened.get(&number)?.as_ref()?;
        let table = opened.table;
        let function = table.function(address.wrapping_sub(bias)).ok()??;
        let signature = table.signature(&function).ok()?;
        Some(Known {
            opened,
            table,
            function,
            signature,
            svma: own.wrapping_sub(bias),
            bias,
        })
    }

    fn registers(&self, frame: usize) -> Option<Registers> {
        self.thread.registers.get(frame)
    }

    /// The canonical frame address of a frame.
    fn cfa(&self, frame: usize) -> Option<u64> {
        let sp = self.registers(frame + 1)?.get(self.arch().sp)?;
        Some(sp.wrapping_add_signed(-self.arch().sp_from_cfa))
    }

    fn frame(&self, frame: usize) -> Option<Vec<Argument>> {
        let known = self.known(frame)?;
        let signature = known.signature?;
        let is_pc = self.thread.frames[frame].kind == AddressKind::Pc;
        let site = match is_pc {
            true => Default::default(),
            false => known.function.call_site(known.svma).ok()?,
        };
        let at_start = is_pc && known.svma.wrapping_sub(known.function.start) < known.function.prefix;
        let mut places = site.places.and_then(|list| known.table.places(list).ok());
        let mut placer = Some(known.table.abi().placer(signature.result_address));
        let mut all = Vec::new();
        for number in signature.parameters {
            let parameter = known.table.parameter(number.ok()?).ok()?;
            let mut pieces = Vec::new();
            let passing = parameter.storage.and_then(|storage| {
                placer.as_mut()?.next(&storage, &mut |piece| pieces.push(piece))?;
                Some(storage.passing)
            });
            if passing.is_none() {
                placer = None;
            }
            let place = places.as_mut().and_then(Iterator::next).and_then(|number| number.ok());
            let place = place.and_then(|number| known.table.value(number).ok());
            let mut argument = self.described(&known, parameter.name, signature.dict, parameter.type_id);
            let id = TypeId(parameter.type_id);
            if at_start && let Some(passing) = passing {
                let found = self.passed(
                    &pieces,
                    passing,
                    &mut |register| self.registers(frame)?.get(Register(register)),
                    frame,
                );
                self.show(&mut argument, &known, signature.dict, id, found, || {
                    told_pieces(self.arch(), &pieces)
                });
            }
            if let Some(value) = place.filter(|_| !at_start) {
                let found = self.value(&known, frame, value, 0);
                self.show(&mut argument, &known, signature.dict, id, found, || {
                    told(self.arch(), &value)
                });
            }
            let in_registers = pieces.iter().all(|piece| matches!(piece.place, Place::Register(_)));
            if argument.value.is_none()
                && signature.trusted
                && in_registers
                && passing.is_some_and(|passing| passing != Passing::Reference)
            {
                let found = self.passed(
                    &pieces,
                    Passing::General,
                    &mut |register| self.entry(frame, register, 0),
                    frame,
                );
                self.show(&mut argument, &known, signature.dict, id, found, || {
                    format!("passed {}", told_pieces(self.arch(), &pieces))
                });
                argument.at_entry = argument.value.is_some();
            }
            all.push(argument);
        }
        Some(all)
    }

    fn described(&self, known: &Known<'_, '_>, name: &[u8], dict: Option<u32>, type_id: u32) -> Argument {
        Argument {
            name: String::from_utf8_lossy(name).into_owned(),
            type_name: known.opened.known(dict, TypeId(type_id)).0,
            value: None,
            place: None,
            at_entry: false,
        }
    }

    fn show(
        &self,
        argument: &mut Argument,
        known: &Known<'_, '_>,
        dict: Option<u32>,
        id: TypeId,
        found: Option<Found>,
        place: impl FnOnce() -> String,
    ) {
        let shown = found.and_then(|found| {
            let types = known.opened.types(dict)?;
            let bytes = self.bytes(found, known.opened.known(dict, id).1?)?;
            let mut show = Show {
                snapshot: self.snapshot,
                types,
                out: String::new(),
            };
            show.value(id, &bytes, 0)?;
            Some(show.out)
        });
        if let Some(shown) = shown {
            argument.value = Some(shown);
            argument.place = Some(place());
        }
    }

    /// The bytes of a value of this size.
    fn bytes(&self, found: Found, size: u64) -> Option<Vec<u8>> {
        if size == 0 || size > LARGEST_VALUE {
            return None;
        }
        let size = size as usize;
        match found {
            // The CPUs that have a calling convention here have the lowest byte first.
            Found::Word(word) => word.to_le_bytes().get(..size).map(<[u8]>::to_vec),
            Found::At(address) => {
                let mut bytes = vec![0; size];
                (self.snapshot.read(address, &mut bytes) == size).then_some(bytes)
            }
            Found::Bytes(bytes) => (bytes.len() >= size).then_some(bytes),
        }
    }

    /// A value from the places in which it was passed; `register` is what a register was then.
    fn passed(
        &self,
        pieces: &[Piece],
        passing: Passing,
        register: &mut dyn FnMut(u8) -> Option<u64>,
        frame: usize,
    ) -> Option<Found> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let mut part = vec![
                0;
                usize::try_from(piece.bytes)
                    .ok()
                    .filter(|&len| len as u64 <= LARGEST_VALUE)?
            ];
            match piece.place {
                Place::Register(number) => {
                    let word = register(number)?.to_le_bytes();
                    part.copy_from_slice(word.get(..piece.bytes as usize)?);
                }
                Place::Stack(at) => {
                    let address = self.cfa(frame)?.wrapping_add(at);
                    if self.snapshot.read(address, &mut part) < part.len() {
                        return None;
                    }
                }
            }
            bytes.resize(
                usize::try_from(piece.offset)
                    .ok()
                    .filter(|&at| at as u64 <= LARGEST_VALUE)?,
                0,
            );
            bytes.extend(part);
        }
        if bytes.is_empty() {
            return None;
        }
        match passing {
            Passing::Reference => Some(Found::At(u64::from_le_bytes(bytes.try_into().ok()?))),
            _ => Some(Found::Bytes(bytes)),
        }
    }

    /// A value in a frame that is not the innermost, or at a call from it.
    fn value(&self, known: &Known<'_, '_>, frame: usize, value: Value, depth: u32) -> Option<Found> {
        let register = |number: u8| self.registers(frame)?.get(Register(number));
        Some(match value {
            Value::Lost => return None,
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
                for part in known.table.parts(start, count) {
                    let (size, number) = part.ok()?;
                    let value = known.table.value(number).ok()?;
                    // Parts of parts are no values that anybody writes.
                    if matches!(value, Value::Parts(..)) {
                        return None;
                    }
                    let found = self.value(known, frame, value, depth)?;
                    bytes.extend(self.bytes(found, size)?.get(..usize::try_from(size).ok()?)?);
                }
                Found::Bytes(bytes)
            }
        })
    }

    /// What a register was when a frame's function was called: its caller's call has it.
    fn entry(&self, frame: usize, register: u8, depth: u32) -> Option<u64> {
        let caller = frame + 1;
        if depth > MOST_ENTRIES || self.thread.frames.get(caller)?.kind != AddressKind::Ra {
            return None;
        }
        let callee = self.known(frame)?;
        let known = self.known(caller)?;
        let return_address = self.thread.frames[caller].address;
        if self.called(return_address)? != callee.function.start.wrapping_add(callee.bias) {
            return None;
        }
        let site = known.function.call_site(known.svma).ok()?;
        let index = known
            .table
            .abi()
            .general_registers()
            .iter()
            .position(|&other| other == register)?;
        let number = known.table.entries(site.entries?).ok()?.nth(index)?.ok()?;
        let found = self.value(&known, caller, known.table.value(number).ok()?, depth + 1)?;
        let bytes = self.bytes(found, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Where the call goes that returns to this address, if the instruction says so, or the linkage table's stub that it leads to.
    fn called(&self, return_address: u64) -> Option<u64> {
        let target = match self.arch().link_register {
            false => {
                // `call rel32`
                let bytes: [u8; 5] = self.code(return_address.wrapping_sub(5))?;
                let [0xe8, a, b, c, d] = bytes else { return None };
                return_address.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into())
            }
            true => {
                // `bl`
                let at = return_address.wrapping_sub(4);
                let word = u32::from_le_bytes(self.code(at)?);
                let is_bl = word >> 26 == 0b100101;
                let offset = i64::from((word << 6) as i32 >> 4);
                is_bl.then(|| at.wrapping_add_signed(offset))?
            }
        };
        Some(self.stub_target(target).unwrap_or(target))
    }

    /// Where a stub of the linkage table on x86-64 leads: `jmp *offset(%rip)`, perhaps behind `endbr64` and with a prefix.
    fn stub_target(&self, stub: u64) -> Option<u64> {
        if self.arch().link_register {
            return None;
        }
        let mut at = stub;
        if self.code(at) == Some([0xf3, 0x0f, 0x1e, 0xfa]) {
            at = at.wrapping_add(4);
        }
        if self.code(at) == Some([0xf2]) {
            at = at.wrapping_add(1);
        }
        let bytes: [u8; 6] = self.code(at)?;
        let [0xff, 0x25, a, b, c, d] = bytes else { return None };
        let slot = at
            .wrapping_add(6)
            .wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
        let mut word = [0; 8];
        (self.snapshot.read(slot, &mut word) == 8).then(|| u64::from_le_bytes(word))
    }

    /// Code: from the process, or, where a core has left it out, from its file.
    fn code<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        if self.snapshot.read(address, &mut bytes) == N {
            return Some(bytes);
        }
        self.space.code(address, N)?.as_slice().try_into().ok()
    }
}

fn name(arch: &Arch, register: u8) -> String {
    match arch.register_name(Register(register)) {
        Some(name) => name.to_owned(),
        None => format!("register {register}"),
    }
}

fn told_pieces(arch: &Arch, pieces: &[Piece]) -> String {
    let told = |piece: &Piece| match piece.place {
        Place::Register(register) => name(arch, register),
        Place::Stack(at) => format!("[cfa+{at:#x}]"),
    };
    pieces.iter().map(told).collect::<Vec<_>>().join(", ")
}

/// A place, as people read it.
fn told(arch: &Arch, value: &Value) -> String {
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
        Value::Entry(register, from) => format!("entry {}{}", name(arch, register), offset(from)),
        Value::Parts(..) => "parts".to_owned(),
    }
}
