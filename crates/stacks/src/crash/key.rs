//! Which crashes are the same: the function that a crash is blamed on, and the key of its stack.

use crate::names::{NamedFrame, NamedThread};

/// Number of functions in a key. Further out, the way to a mistake varies.
const KEY_FUNCTIONS: usize = 8;

/// Functions that end a process because of a mistake of their callers, by the beginning of their
/// names.
const ENDING: [&str; 45] = [
    "__GI_abort",
    "__GI_raise",
    "__abort_msg",
    "__assert",
    "__chk_fail",
    "__cxa_call_terminate",
    "__cxa_call_unexpected",
    "__cxa_rethrow",
    "__cxa_throw",
    "__cxxabiv1::__terminate",
    "__fortify_fail",
    "__gnu_cxx::__verbose_terminate_handler",
    "__gxx_personality",
    "__kernel_rt_sigreturn",
    "__libc_message",
    "__libc_assert_fail",
    "__pthread_kill",
    "__restore_rt",
    "__rust_start_panic",
    "__rustc::",
    "__stack_chk_fail",
    "_Unwind_",
    "abort",
    "core::option::expect_failed",
    "core::option::unwrap_failed",
    "core::panicking::",
    "core::result::unwrap_failed",
    "gsignal",
    "malloc_printerr",
    "node::Abort",
    "node::Assert",
    "node::OnFatalError",
    "panic_abort::",
    "pthread_kill",
    "raise",
    "rust_begin_unwind",
    "rust_panic",
    "runtime.crash",
    "runtime.dieFromSignal",
    "runtime.fatal",
    "runtime.gopanic",
    "runtime.panic",
    "runtime.raise",
    "runtime.sig",
    "runtime.throw",
];

/// More of them, whose names begin with what others begin with too.
const ENDING_EXACTLY: [&str; 6] = [
    "kill",
    "tgkill",
    "runtime.asyncPreempt",
    "std::terminate()",
    "std::unexpected()",
    "__libc_fatal",
];

/// The allocator's functions: a message about a damaged heap is their callers' matter.
const ALLOCATOR: [&str; 15] = [
    "_int_free",
    "_int_malloc",
    "_int_realloc",
    "_int_memalign",
    "__GI___libc_",
    "__libc_free",
    "__libc_memalign",
    "__libc_malloc",
    "__libc_realloc",
    "__libc_calloc",
    "cfree",
    "free",
    "malloc",
    "unlink_chunk",
    "tcache_",
];

fn ends(frame: &NamedFrame) -> bool {
    let name = frame.function.as_str();
    ENDING.iter().any(|ending| name.starts_with(ending))
        || ENDING_EXACTLY.contains(&name)
        || name.starts_with("std::panicking::")
        || name.starts_with("std::sys::backtrace::__rust_end_short_backtrace")
        || name.contains("abort_internal")
        || name.starts_with("std::process::abort")
}

/// The frames of the thread that died, from the function on that the crash is blamed on.
pub(super) fn blamed(thread: &NamedThread) -> &[NamedFrame] {
    let frames = thread.frames.as_slice();
    // What ended the process may lie below handlers: everything up to the last of the innermost
    // functions that do.
    const NEAR: usize = 24;
    let near = &frames[..NEAR.min(frames.len())];
    let mut first = near.iter().take_while(|frame| ends(frame) || is_glue(frame)).count();
    if let Some(heap) = near[..first]
        .iter()
        .position(|frame| frame.function == "malloc_printerr")
    {
        let is_allocator = |frame: &NamedFrame| ALLOCATOR.iter().any(|name| frame.function.starts_with(name));
        first = first.max(heap + 1);
        first += frames[first..].iter().take_while(|frame| is_allocator(frame)).count();
    }
    if first == frames.len() {
        frames
    } else {
        &frames[first..]
    }
}

/// Whether a frame only connects others: code without a name in the libraries that end a process,
/// and an address without code that was called.
fn is_glue(frame: &NamedFrame) -> bool {
    const LIBRARIES: [&str; 4] = ["libc.so", "libc++", "libgcc_s", "libstdc++"];
    let is_unnamed = frame.offset.is_none() && frame.function.contains("+0x");
    is_unnamed && (frame.path.is_none() || LIBRARIES.iter().any(|library| frame.module.starts_with(library)))
}

/// The key of a crash: the same wherever the program's modules are mapped, in every build whose
/// functions have the same names, and however deep its recursions are. The message, without its
/// numbers, says which of a function's assertions failed.
pub(super) fn key(program: &str, signal: Option<u32>, message: Option<&str>, blamed: &[NamedFrame]) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for frame in blamed.iter().filter(|frame| !frame.inlined) {
        // Code made at run time, without a name, is elsewhere each time.
        let is_nowhere = frame.path.is_none() && frame.function.contains("0x");
        let part = match (is_nowhere, &frame.offset) {
            (true, _) => "?",
            // A file and an offset, which the next build changes.
            (false, None) => frame.function.split("+0x").next().unwrap_or_default(),
            (false, Some(_)) => frame.function.as_str(),
        };
        if !parts.contains(&part) {
            parts.push(part);
        }
        if parts.len() == KEY_FUNCTIONS {
            break;
        }
    }
    let signal = signal.unwrap_or(0).to_string();
    let message = without_numbers(message.unwrap_or_default());
    let parts = [program, &signal, &message].into_iter().chain(parts);
    format!("{:016x}", fnv(parts.flat_map(|part| part.bytes().chain([0]))))
}

/// A text in which each number, such as an address or a line, is `0`.
fn without_numbers(text: &str) -> String {
    let mut short = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let number = &rest[at..];
        let end = match number.strip_prefix("0x") {
            Some(digits) => 2 + digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len()),
            None => number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len()),
        };
        short.push_str(&rest[..at]);
        short.push('0');
        rest = &number[end..];
    }
    short.push_str(rest);
    short
}

/// FNV-1a, 64 bits.
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{End, How};

    fn thread(functions: &[&str]) -> NamedThread {
        let frame = |(index, function): (usize, &&str)| NamedFrame {
            pc: 0x1000 * index as u64,
            function: (*function).to_owned(),
            offset: (!function.contains("+0x")).then_some(1),
            file: None,
            line: None,
            module: "program".to_owned(),
            path: None,
            build_id: Vec::new(),
            inlined: function.starts_with("inlined"),
            how: How::Sframe,
            arguments: Vec::new(),
        };
        NamedThread {
            tid: 1,
            name: None,
            signal: Some(6),
            frames: functions.iter().enumerate().map(frame).collect(),
            end: End::COMPLETE,
        }
    }

    fn function(functions: &[&str]) -> String {
        blamed(&thread(functions))[0].function.clone()
    }

    #[test]
    fn the_functions_that_end_a_process_are_not_blamed() {
        let abort = ["__pthread_kill_implementation", "raise", "abort"];
        assert_eq!(function(&[&abort[..], &["work", "main"]].concat()), "work");
        assert_eq!(function(&["work", "abort", "main"]), "work");
        let heap = ["__libc_message_impl", "malloc_printerr", "_int_free", "free"];
        assert_eq!(
            function(&[&abort[..], &heap, &["close_all", "main"]].concat()),
            "close_all"
        );
        assert_eq!(function(&["free", "close_all"]), "free");
        assert_eq!(function(&["[unknown]+0x0", "main"]), "main");
        assert_eq!(function(&["raise", "abort"]), "raise");
        assert_eq!(blamed(&thread(&[])).len(), 0);
    }

    #[test]
    fn a_key_does_not_depend_on_depth_or_inlined_calls() {
        let key_of = |functions: &[&str]| key("p", Some(11), None, &thread(functions).frames);
        let one = key_of(&["a", "walk", "walk", "main"]);
        assert_eq!(one, key_of(&["a", "walk", "walk", "walk", "walk", "main"]));
        assert_eq!(one, key_of(&["a", "inlined", "walk", "main"]));
        assert_ne!(one, key_of(&["b", "walk", "main"]));
        assert_ne!(one, key("q", Some(11), None, &thread(&["a", "walk", "main"]).frames));
        assert_ne!(one, key("p", Some(6), None, &thread(&["a", "walk", "main"]).frames));
    }

    #[test]
    fn a_key_does_not_depend_on_the_build() {
        let key_of = |message: &str, functions: &[&str]| {
            let mut frames = thread(functions).frames;
            frames.iter_mut().for_each(|frame| frame.path = Some("/p".into()));
            key("p", Some(6), Some(message), &frames)
        };
        let one = key_of("a.c:17: f: Assertion `x > 0x1f2' failed.", &["a", "p+0x1234", "main"]);
        assert_eq!(
            one,
            key_of("a.c:9: f: Assertion `x > 0x7' failed.", &["a", "p+0x20", "main"])
        );
        assert_ne!(
            one,
            key_of("a.c:17: f: Assertion `y > 0x1f2' failed.", &["a", "p+0x1234", "main"])
        );
        assert_ne!(
            one,
            key_of("a.c:17: f: Assertion `x > 0x1f2' failed.", &["a", "q+0x1234", "main"])
        );
        assert_eq!(without_numbers("é1é0xfé"), "é0é0é");
    }
}
