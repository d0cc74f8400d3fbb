//! Names the frames of stacks.

use std::collections::{HashMap, HashSet};

use backtrail_cfi::announced::Function;
use backtrail_profile::Symbolizer;
use backtrail_recording::{FrameKind, Module};
use backtrail_unwind::AddressKind;

use crate::process::{Argument, End, Frame, How, Process};

/// A thread's stack with names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedThread {
    /// Its thread ID.
    pub tid: u32,
    /// Its name, if known.
    pub name: Option<String>,
    /// The signal that it stopped or died with.
    pub signal: Option<u32>,
    /// The calls, the innermost first; inlined calls have frames of their own.
    pub frames: Vec<NamedFrame>,
    /// Why the stack ends there.
    pub end: End,
}

/// A call in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFrame {
    /// Program counter or return address; for an inlined call, that of the frame it was inlined
    /// into.
    pub pc: u64,
    /// The function, demangled; `module+0x…` if unknown.
    pub function: String,
    /// Offset of [`NamedFrame::pc`] from the function's start in bytes, if the start is known.
    pub offset: Option<u64>,
    /// Source file.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// The module's short name.
    pub module: String,
    /// The module's path; `None` outside of files.
    pub path: Option<String>,
    /// The module's build ID; empty if it has none.
    pub build_id: Vec<u8>,
    /// Whether the call was inlined and has no frame of its own on the stack.
    pub inlined: bool,
    /// How its frame was found.
    pub how: How,
    /// Its arguments, if requested.
    pub arguments: Vec<Argument>,
}

/// The stacks with names, of which the process has `announced` some.
pub(crate) fn names(process: &Process, announced: &[Function], symbolizer: &mut Symbolizer) -> Vec<NamedThread> {
    symbolizer.clear(process.pid);
    symbolizer.announce(process.pid, announced);
    for module in &process.modules {
        symbolizer.map(module);
    }
    let frames: HashSet<&Frame> = process.threads.iter().flat_map(|thread| &thread.frames).collect();
    let asked = frames.into_iter().map(|frame| (kind(frame), frame.address));
    let arguments = process
        .threads
        .iter()
        .flat_map(|thread| thread.arguments.iter().flatten());
    let code = arguments.flat_map(|argument| &argument.code);
    let code = code.map(|&(_, address)| (FrameKind::Pc, address));
    symbolizer.expect(process.pid, asked.chain(code));
    // Threads often have the same frames.
    let mut known: HashMap<Frame, Vec<NamedFrame>> = HashMap::new();
    let named = process.threads.iter().map(|thread| {
        let mut frames = Vec::with_capacity(thread.frames.len());
        for (index, frame) in thread.frames.iter().enumerate() {
            let calls = known.entry(*frame).or_insert_with(|| calls(process, symbolizer, frame));
            frames.extend_from_slice(calls);
            // Arguments of inlined calls are unknown; the outermost call is the function that owns
            // the frame.
            if let (Some(own), Some(arguments)) = (frames.last_mut(), thread.arguments.get(index)) {
                own.arguments.clone_from(arguments);
                for argument in &mut own.arguments {
                    name_code(argument, process, symbolizer);
                }
            }
        }
        NamedThread {
            tid: thread.tid,
            name: thread.name.clone(),
            signal: thread.signal,
            frames,
            end: thread.end,
        }
    });
    named.collect()
}

/// Writes the names of functions after their addresses, as debuggers do.
fn name_code(argument: &mut Argument, process: &Process, symbolizer: &mut Symbolizer) {
    let Some(value) = &mut argument.value else { return };
    // From the last one on, so that the places of the others stay.
    for &(end, address) in argument.code.iter().rev() {
        let id = symbolizer.resolve(process.pid, FrameKind::Pc, address);
        let call = symbolizer.location(id).calls.last();
        let name = call.and_then(|call| match call.offset? {
            0 => Some(format!(" <{}>", call.function)),
            offset => Some(format!(" <{}+{offset:#x}>", call.function)),
        });
        if let Some(name) = name.filter(|_| value.is_char_boundary(end)) {
            value.insert_str(end, &name);
        }
    }
}

fn kind(frame: &Frame) -> FrameKind {
    match frame.kind {
        AddressKind::Pc => FrameKind::Pc,
        AddressKind::Ra => FrameKind::Ra,
    }
}

fn calls(process: &Process, symbolizer: &mut Symbolizer, frame: &Frame) -> Vec<NamedFrame> {
    let back = match frame.kind {
        AddressKind::Pc => 0,
        // Look up the call, which is at the byte before.
        AddressKind::Ra => 1,
    };
    let id = symbolizer.resolve(process.pid, kind(frame), frame.address);
    let location = symbolizer.location(id);
    let module = module_at(&process.modules, frame.address.wrapping_sub(back));
    let named = location.calls.iter().map(|call| NamedFrame {
        pc: frame.address,
        function: call.function.clone(),
        offset: call.offset.map(|offset| offset + back),
        file: call.file.clone(),
        line: call.line,
        module: location.module.clone(),
        path: module.map(|module| module.path.clone()),
        build_id: module.map(|module| module.build_id.clone()).unwrap_or_default(),
        inlined: call.inlined,
        how: frame.how,
        arguments: Vec::new(),
    });
    named.collect()
}

fn module_at(modules: &[Module], address: u64) -> Option<&Module> {
    let index = modules.partition_point(|module| module.addresses().start <= address);
    let module = modules.get(index.checked_sub(1)?)?;
    module.addresses().contains(&address).then_some(module)
}
