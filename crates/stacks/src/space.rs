//! The code of a snapshot, as the unwinder needs it while it walks stacks.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use backtrail_arch::{Arch, Register, Registers};
use backtrail_cfi::announced::{self, AnnouncedCode, Function};
use backtrail_cfi::proof::{self, CodeProofs, ProcessCode, Region};
use backtrail_cfi::registers::FunctionRule;
use backtrail_cfi::tables::TableOrigin;
use backtrail_process::Snapshot;
use backtrail_process::proc::is_file;
use backtrail_process::snapshot::{Mapping, Pages};
use backtrail_recording::{Module as Recorded, is_jit_dump};
use backtrail_unwind::{AddressKind, Coverage, Memory, Modules, OnTop, Restore, Restored, Table, Uncovered};

use crate::arguments::module::Source;
use crate::modules::{Bytes, Module, ModuleSet, first_mapping, identity_in_memory};
use crate::process::How;

/// A mapping of code, and its file.
type Found<'s, 'm> = (&'s Mapping, Option<&'m Module>);

/// Answers the unwinder while it walks the stacks of a snapshot.
pub(crate) struct Space<'s> {
    snapshot: &'s Snapshot<'s>,
    set: &'s ModuleSet,
    /// By the index of the mapping.
    modules: Vec<OnceCell<Option<Rc<Module>>>>,
    /// Pages read for arguments: threads share call sites and strings.
    pages: RefCell<Pages>,
    /// Whether memory that may change was read while the process was running.
    read_changing: Cell<bool>,
    /// The code that the process announces to debuggers, read when a walk first meets generated
    /// code.
    announced: OnceCell<AnnouncedCode>,
    /// Results about code that no table row describes, by its address.
    proofs: CodeProofs<u64>,
}

impl<'s> Space<'s> {
    pub(crate) fn new(snapshot: &'s Snapshot<'s>, set: &'s ModuleSet) -> Space<'s> {
        Space {
            snapshot,
            set,
            modules: snapshot.mappings.iter().map(|_| OnceCell::new()).collect(),
            pages: RefCell::default(),
            read_changing: Cell::new(false),
            announced: OnceCell::new(),
            proofs: CodeProofs::default(),
        }
    }

    /// Passes the announced code and the memory that it is in to `look`, if `address` is in
    /// executable memory without a file.
    fn in_announced<T>(
        &self,
        address: u64,
        look: impl FnOnce(&AnnouncedCode, &announced::Memory<'_>) -> Option<T>,
    ) -> Option<T> {
        let (_, None) = self.find(address)? else {
            return None;
        };
        let snapshot = self.snapshot;
        let memory = announced::Memory {
            endian: snapshot.endian,
            read: &|address, bytes| self.set.read(snapshot, address, bytes),
        };
        let announced = self.announced.get_or_init(|| {
            let descriptors = self.set.descriptors(snapshot);
            if snapshot.is_live && !snapshot.is_held && !descriptors.is_empty() {
                // A list that may change is read when the process is held.
                self.read_changing.set(true);
                return AnnouncedCode::default();
            }
            AnnouncedCode::read(&memory, &descriptors)
        });
        look(announced, &memory)
    }

    /// The announced function with the code at `address`.
    pub(crate) fn announced_function(&self, address: u64) -> Option<Function> {
        let (_, None) = self.find(address)? else {
            return None;
        };
        let announced = self.in_announced(address, |announced, memory| announced.function(memory, address));
        announced.or_else(|| Some(self.proofs.function(&self, address)?.function))
    }

    /// The call that returns to `ra`, if functions were inlined there that only the process knows.
    pub(crate) fn announced_call(&self, ra: u64) -> Option<Function> {
        self.proofs.inlined(&self, ra)
    }

    fn announced_rule(&self, address: u64) -> Option<Uncovered> {
        self.in_announced(address, |announced, memory| announced.uncovered(memory, address))
    }

    fn find(&self, address: u64) -> Option<Found<'s, '_>> {
        let mappings = &self.snapshot.mappings;
        let index = mappings.partition_point(|mapping| mapping.end <= address);
        let mapping = mappings
            .get(index)
            .filter(|mapping| mapping.start <= address && mapping.executable)?;
        let module = self.modules[index].get_or_init(|| self.set.of(self.snapshot, mapping));
        Some((mapping, module.as_deref()))
    }

    /// How the caller of the frame at this address is found.
    pub(crate) fn how(&self, address: u64) -> How {
        let Some((mapping, Some(module))) = self.find(address) else {
            return match self.announced_rule(address) {
                Some(_) => How::EhFrame,
                None => How::FramePointer,
            };
        };
        let (Some(bias), Some(origin)) = (module.bias(mapping), module.origin) else {
            return How::FramePointer;
        };
        let svma = address.wrapping_sub(bias);
        if module.function(svma, self.set).is_none() {
            return How::FramePointer;
        }
        let own = module.own.as_ref().and_then(Bytes::section);
        match own.and_then(|own| own.lookup(svma).ok().flatten()) {
            Some(_) => How::Sframe,
            None if origin == TableOrigin::Shipped => How::Sframe,
            None => How::EhFrame,
        }
    }

    /// The table of arguments of the module with this address, the module's number, and its
    /// distance from its addresses in the file.
    pub(crate) fn arguments_of(&self, address: u64) -> Option<(&Source, u32, u64)> {
        let (mapping, module) = self.find(address)?;
        let module = module?;
        Some((module.arguments()?, module.number, module.bias(mapping)?))
    }

    /// Copies memory from `address` on, and returns the number of bytes: like [`ModuleSet::read`],
    /// but reads each page once.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let snapshot = self.snapshot;
        let mut done = 0;
        while done < buffer.len() {
            let Some(at) = address.checked_add(done as u64) else {
                break;
            };
            let rest = &mut buffer[done..];
            let mut got = snapshot.pieces.read(at, rest);
            if got == 0 {
                let is_constant = || snapshot.mapping(at).is_none_or(Mapping::is_constant);
                if snapshot.is_live && !snapshot.is_held && !is_constant() {
                    self.read_changing.set(true);
                }
                let mut pages = self.pages.borrow_mut();
                let bytes = pages.at(at, |page, bytes| self.set.read(snapshot, page, bytes));
                got = bytes.len().min(rest.len());
                rest[..got].copy_from_slice(&bytes[..got]);
            }
            if got == 0 {
                break;
            }
            done += got;
        }
        done
    }

    /// The modules that were looked up, by ascending address, in the form of recordings.
    pub(crate) fn recorded(&self) -> Vec<Recorded> {
        let mut recorded: Vec<Recorded> = Vec::new();
        for (mapping, module) in self.snapshot.mappings.iter().zip(&self.modules) {
            if is_jit_dump(&mapping.path) {
                // No frame lies in it; it contains the names of code made at run time.
                recorded.push(self.told_without_file(mapping));
                continue;
            }
            let Some(module) = module.get() else { continue };
            let told = match module {
                Some(module) => self.told(mapping, module),
                None if is_file(&mapping.path) => Some(self.told_without_file(mapping)),
                None => None,
            };
            recorded.extend(told);
        }
        recorded.sort_by_key(|module| module.addresses().start);
        recorded.dedup();
        recorded
    }

    fn told(&self, mapping: &Mapping, module: &Module) -> Option<Recorded> {
        let bias = module.bias(mapping)?;
        let base = bias.wrapping_add(module.base_vaddr);
        let first = first_mapping(self.snapshot, mapping);
        // A part that the process has mapped again elsewhere, without the file's other pages beside
        // it.
        let is_piece = match module.position_independent {
            true => first.file_offset != 0 || first.start != base,
            false => bias != 0,
        };
        Some(Recorded {
            time: 0,
            pid: self.snapshot.pid,
            base,
            size: module.mem_size,
            mapped: is_piece.then_some(mapping.start..mapping.end),
            position_independent: module.position_independent || bias != 0,
            path: mapping.path.clone(),
            build_id: module.build_id.clone(),
            elsewhere: 0,
        })
    }

    /// Describes a file that is missing: its addresses count from the mapping of its first byte.
    fn told_without_file(&self, mapping: &Mapping) -> Recorded {
        let first = first_mapping(self.snapshot, mapping);
        let base = match first.file_offset {
            0 => first.start,
            _ => mapping.start.wrapping_sub(mapping.file_offset),
        };
        Recorded {
            time: 0,
            pid: self.snapshot.pid,
            base,
            size: mapping.end.saturating_sub(base),
            mapped: (first.file_offset != 0).then_some(mapping.start..mapping.end),
            position_independent: true,
            path: mapping.path.clone(),
            // Go's too, so that no other file at this path is taken for it.
            build_id: identity_in_memory(self.snapshot, first),
            elsewhere: 0,
        }
    }
}

impl Space<'_> {
    /// Whether memory that may change was read since the last call, while the process was running.
    pub(crate) fn has_read_changing(&self) -> bool {
        self.read_changing.take()
    }

    /// Whether the code from `ra` on cannot reach a return.
    pub(crate) fn never_returns(&self, ra: u64) -> bool {
        self.proofs.never_returns(&self, ra)
    }

    /// Whether `ra` is the start of a function, and no call before it can have led to `callee`.
    pub(crate) fn is_made_up(&self, ra: u64, callee: u64) -> bool {
        self.proofs.is_made_up(&self, ra, callee)
    }

    /// The end of the memory that the stack at `sp` is in.
    pub(crate) fn stack_end(&self, sp: u64) -> Option<u64> {
        let mappings = &self.snapshot.mappings;
        let first = mappings.partition_point(|mapping| mapping.end <= sp);
        let stack = mappings.get(first).filter(|mapping| mapping.start <= sp)?;
        // Advice about parts of a stack splits its mapping; beyond a guard page lies another one.
        let mut end = stack.end;
        for mapping in &mappings[first + 1..] {
            if mapping.start != end || !mapping.writable {
                break;
            }
            end = mapping.end;
        }
        Some(end)
    }

    /// Whether the code before `pc` is the system call that creates a thread.
    pub(crate) fn makes_thread(&self, pc: u64) -> bool {
        proof::makes_thread(&self, pc)
    }

    /// Whether a call of mapped code ends at `ra`.
    pub(crate) fn follows_call(&self, ra: u64) -> bool {
        self.proofs.follows_call(&self, ra)
    }
}

impl Modules for Space<'_> {
    const LOOKS_ON_TOP: bool = true;

    fn coverage(&self, address: u64) -> Coverage<'_> {
        let Some((mapping, module)) = self.find(address) else {
            return Coverage::NoModule;
        };
        let table = module.and_then(|module| {
            let bias = module.bias(mapping)?;
            Some(Table {
                section: module.table(address.wrapping_sub(bias), self.set)?,
                bias,
                id: module.number,
                index: None,
            })
        });
        table.map_or(Coverage::FramePointer, Coverage::Table)
    }

    fn uncovered(&self, pc: u64, kind: AddressKind, _in_table: bool) -> Uncovered {
        let is_return = kind == AddressKind::Ra;
        let announced = self.announced_rule(pc.wrapping_sub(is_return.into()));
        announced.unwrap_or_else(|| self.proofs.uncovered(&self, pc, is_return))
    }

    fn is_called(&self, ra: u64, callee: u64) -> bool {
        self.proofs.is_called(&self, ra, callee)
    }

    fn is_same_stack(&self, sp: u64, address: u64) -> bool {
        self.stack_end(sp).is_none_or(|end| (sp..end).contains(&address))
    }

    fn calls_into(&self, ra: u64, function: (u64, u64)) -> bool {
        self.proofs.calls_into(&self, ra, function)
    }

    fn on_top(&self, word: u64, pc: u64, frame: u64) -> OnTop {
        self.proofs.on_top(&self, word, pc, frame)
    }
}

impl Restore for Space<'_> {
    fn caller(&self, callee: &Registers, address: u64, memory: &mut impl Memory) -> Option<Restored> {
        let (mapping, module) = self.find(address)?;
        let module = module?;
        let svma = address.wrapping_sub(module.bias(mapping)?);
        let frames = module.frames.as_ref()?;
        match frames.caller(callee, svma, |address| memory.word(address)) {
            Some(caller) => Some(Restored {
                registers: caller.registers,
                signal_frame: caller.signal_frame,
            }),
            None => self
                .proofs
                .caller_by_size(&self, callee, address, |address| memory.word(address))
                .map(Restored::called),
        }
    }

    fn keeps(&self, pc: u64, ra: u64, register: Register) -> bool {
        self.proofs.keeps(&self, pc, ra, register)
    }
}

impl<'s, 'm> ProcessCode for &'m Space<'s> {
    type Mapping = Found<'s, 'm>;
    type Place = u64;

    fn arch(&self) -> &'static Arch {
        self.snapshot.arch
    }

    fn process(&self) -> u32 {
        self.snapshot.pid
    }

    fn find(&self, address: u64) -> Option<Found<'s, 'm>> {
        Space::find(self, address)
    }

    fn range(&self, (mapping, _): Found<'s, 'm>) -> Range<u64> {
        mapping.start..mapping.end
    }

    fn place(&self, _: Found<'s, 'm>, address: u64) -> u64 {
        address
    }

    fn is_file(&self, (_, module): Found<'s, 'm>) -> bool {
        module.is_some()
    }

    fn is_same_file(&self, (_, one): Found<'s, 'm>, (_, other): Found<'s, 'm>) -> bool {
        one.map(|module| module.number) == other.map(|module| module.number)
    }

    fn has_table(&self, (_, module): Found<'s, 'm>) -> bool {
        module.is_some_and(|module| module.origin.is_some())
    }

    fn function_at(&self, (mapping, module): Found<'s, 'm>, address: u64) -> Option<Range<u64>> {
        let bias = module?.bias(mapping)?;
        let function = module?.function(address.wrapping_sub(bias), self.set)?;
        Some(function.start.wrapping_add(bias)..function.end.wrapping_add(bias))
    }

    fn described_function(&self, (mapping, module): Found<'s, 'm>, address: u64) -> Option<Range<u64>> {
        let bias = module?.bias(mapping)?;
        let function = module?.frames.as_ref()?.function_at(address.wrapping_sub(bias))?;
        Some(function.start.wrapping_add(bias)..function.end.wrapping_add(bias))
    }

    fn has_call_frames(&self, (_, module): Found<'s, 'm>) -> bool {
        module.is_some_and(|module| module.frames.is_some())
    }

    fn starts(&self, (mapping, module): Found<'s, 'm>, range: Range<u64>) -> Vec<u64> {
        let known = module.and_then(|module| Some((module.called(), module.bias(mapping)?)));
        let Some((called, bias)) = known else {
            return Vec::new();
        };
        let from = |address: u64| called.partition_point(|&target| target.wrapping_add(bias) < address);
        let inside = called.get(from(range.start)..from(range.end)).unwrap_or_default();
        inside.iter().map(|target| target.wrapping_add(bias)).collect()
    }

    fn objects(&self, (mapping, module): Found<'s, 'm>, prefix: &str) -> Vec<(String, u64)> {
        let Some((module, bias)) = module.and_then(|module| Some((module, module.bias(mapping)?))) else {
            return Vec::new();
        };
        let mut objects = module.objects(prefix);
        objects
            .iter_mut()
            .for_each(|(_, value)| *value = value.wrapping_add(bias));
        objects
    }

    fn is_described(&self, (mapping, module): Found<'s, 'm>, address: u64) -> bool {
        let bias = module.and_then(|module| module.bias(mapping));
        let frames = module.and_then(|module| module.frames.as_ref());
        let describes = frames
            .zip(bias)
            .map(|(frames, bias)| frames.describes(address.wrapping_sub(bias)));
        describes.unwrap_or(false)
    }

    fn rule(&self, (mapping, module): Found<'s, 'm>, address: u64) -> Option<FunctionRule> {
        let bias = module?.bias(mapping)?;
        let rule = module?.frames.as_ref()?.rule(address.wrapping_sub(bias))?;
        Some(rule.moved(bias))
    }

    fn read(&self, start: u64, bytes: &mut [u8]) -> usize {
        Space::read(self, start, bytes)
    }

    fn regions(&self) -> Vec<Region> {
        let regions = self.snapshot.mappings.iter().map(|mapping| Region {
            range: mapping.start..mapping.end,
            writable: mapping.writable,
            executable: mapping.executable,
            path: mapping.path.clone(),
        });
        regions.collect()
    }
}
