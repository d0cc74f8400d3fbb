//! The ends of stacks: start routines, known by their names or by what they do.

use super::code::Cpu;
use super::space::{Held, Place};

/// Start routines by name: no call leads to them.
const STARTS: [&str; 26] = [
    "_start",
    "_dl_start_user",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "__clone_internal",
    // makecontext: the frame of the new context's function.
    "__start_context",
    // Go: the entry of a goroutine, of the scheduler's stack, of a thread, of the program.
    "runtime.goexit",
    "runtime.goexit.abi0",
    "runtime.mstart",
    "runtime.mstart.abi0",
    "runtime.rt0_go",
    "runtime.rt0_go.abi0",
    "_rt0_amd64_linux",
    "_rt0_amd64",
    "_rt0_arm64_linux",
    "runtime.clone",
    "runtime.clone.abi0",
    // C code that Go starts a thread with.
    "runtime.mstart0",
    // boost.context: the end of a fibre's function returns here.
    "make_fcontext",
    "jump_fcontext",
    "ontop_fcontext",
    // GHC: Haskell code has a stack of its own beyond this.
    "StgRun",
    "StgRunIsImplementedInAssembler",
    // greenlet, while it exchanges the stacks of two greenlets: its caller is on neither.
    "slp_switch",
];

/// The first function of Crystal's fibres, whose stacks hold 0 where it returns to; the type of its
/// result follows.
const OF_CRYSTAL: &str = "*Fiber#run:";

/// The first function of greenlets, which never returns; its parameters' types follow.
const OF_GREENLETS: &str = "_ZN8greenlet12UserGreenlet15inner_bootstrapE";

/// Functions containing return addresses that no call has pushed.
const MADE: [&str; 12] = [
    "__start_context",
    "runtime.goexit",
    "make_fcontext",
    "_dl_start_user",
    // V8 returns to these in frames that it has made from those of optimized code.
    "Builtins_InterpreterEnterAtBytecode",
    "Builtins_InterpreterEnterAtNextBytecode",
    "Builtins_BaselineOrInterpreterEnterAtBytecode",
    "Builtins_BaselineOrInterpreterEnterAtNextBytecode",
    "Builtins_ContinueToCodeStubBuiltin",
    "Builtins_ContinueToCodeStubBuiltinWithResult",
    "Builtins_ContinueToJavaScriptBuiltin",
    "Builtins_ContinueToJavaScriptBuiltinWithResult",
];

/// Functions that run as if they had been called where a signal interrupted.
const INJECTED: [&str; 4] = [
    "runtime.asyncPreempt",
    "runtime.sigpanic",
    "runtime.sigpanic0",
    "runtime.debugCallV2",
];

/// The kind of start routine at an address, by which it is counted; `None` for other code.
pub(crate) fn start_routine(held: &Held) -> Option<String> {
    let Held::File(place) = held else { return None };
    let image = &place.image;
    let named = |name: &str| format!("{name} ({})", image.name);
    if is_entry(place) {
        return Some(named("entry point"));
    }
    let name = image.name_of(place.address);
    if let Some(known) = name.and_then(|name| STARTS.iter().find(|start| **start == base(name))) {
        return Some(named(known));
    }
    if name.is_some_and(|name| name.starts_with(OF_CRYSTAL)) {
        return Some(named("a fibre of Crystal"));
    }
    if name.is_some_and(|name| name.starts_with(OF_GREENLETS)) {
        return Some(named("a greenlet"));
    }
    if let Some(extent) = image.function(place.address) {
        // AArch64's C library ends the description of `clone` where the child begins.
        let before = match image.cpu {
            Cpu::Aarch64 => 64.min(extent.start),
            Cpu::X86_64 => 0,
        };
        let bytes = image.bytes(extent.start - before);
        let length = bytes.len().min((extent.end - extent.start + before) as usize).min(1024);
        if image.cpu.makes_threads(&bytes[..length], extent.start) {
            return Some(named("thread start"));
        }
        let bytes = image.bytes(extent.start);
        let whole = bytes.len().min((extent.end - extent.start) as usize);
        if extent.end - extent.start < 1 << 16 && image.cpu.never_returns(&bytes[..whole], extent.start) {
            return Some(named("never returns"));
        }
    } else {
        let start = place.address.saturating_sub(128);
        let bytes = image.bytes(start);
        if image.cpu.makes_threads(&bytes[..bytes.len().min(128)], start) {
            return Some(named("thread start"));
        }
    }
    None
}

/// The program's entry, if it was unpacked into memory: run-time code that glibc's start returns
/// to.
pub(crate) fn unpacked_entry(outermost: &Held, callee: &Held) -> Option<String> {
    const CALLED_BY_ENTRY: [&str; 2] = ["__libc_start_main", "__libc_start_main_impl"];
    let (Held::Generated | Held::Unknown, Held::File(place)) = (outermost, callee) else {
        return None;
    };
    let name = base(place.image.name_of(place.address)?);
    CALLED_BY_ENTRY
        .contains(&name)
        .then(|| "entry point of an unpacked program".to_owned())
}

/// Whether an address is in the code that the kernel or the dynamic linker jumps to.
fn is_entry(place: &Place) -> bool {
    let (entry, address) = (place.image.entry, place.address);
    match place.image.function(entry) {
        Some(extent) => extent.contains(address),
        None => entry <= address && address < place.image.next_start(entry).min(entry + 128),
    }
}

/// Whether a return address is one that the program made for a start routine.
pub(crate) fn is_made(place: &Place) -> bool {
    [place.address, place.address - 1].iter().any(|&address| {
        let name = place.image.name_of(address);
        name.is_some_and(|name| MADE.contains(&base(name)))
    })
}

/// Whether a function runs as if the place where a signal interrupted had called it.
pub(crate) fn is_injected(place: &Place) -> bool {
    let name = place.image.name_of(place.address);
    name.is_some_and(|name| INJECTED.contains(&base(name)))
}

/// Whether this is how the stack of one of Go's threads begins after it has left a goroutine for
/// good: `mcall` and `morestack` go on where `mstart0` has left the stack, and nothing returns
/// there.
pub(crate) fn begins_anew(callee: &Place, ra: &Place) -> bool {
    const LEAVE: [&str; 3] = ["runtime.mcall", "runtime.morestack", "runtime.morestack.abi0"];
    let is = |place: &Place, address, wanted: &[&str]| {
        let name = place.image.name_of(address);
        name.is_some_and(|name| wanted.contains(&base(name)))
    };
    is(callee, callee.address, &LEAVE) && is(ra, ra.address - 1, &["runtime.mstart0"])
}

fn base(name: &str) -> &str {
    name.split('@').next().unwrap_or(name).trim_end_matches(".abi0")
}
