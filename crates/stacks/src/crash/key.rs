//! Which crashes are the same: the function that a crash is blamed on, and the key of its stack.

use crate::names::{NamedFrame, NamedThread};

/// Number of functions in a key. Further out, the way to a mistake varies.
const KEY_FUNCTIONS: usize = 8;

/// Functions that end a process because of a mistake of their callers, by the beginning of their
/// names.
const ENDING: [&str; 50] = [
    "__GI_abort",
    "__GI_raise",
    "__abort_msg",
    "__assert",
    "__chk_fail",
    "__cxa_call_terminate",
    "__cxa_call_unexpected",
    "__cxa_deleted_virtual",
    "__cxa_pure_virtual",
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
    "std::__glibcxx_assert_fail",
    "std::__terminate",
    "std::__throw_",
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
        // _FORTIFY_SOURCE's checks of buffers.
        || (name.starts_with("__") && name.ends_with("_chk"))
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

/// The module of a function that has no name of its own. An offset in the module stands for its
/// name, whether it is known where the function begins or not.
fn unnamed(frame: &NamedFrame) -> Option<&str> {
    let (module, start) = frame.function.rsplit_once("+0x")?;
    let is_number = !start.is_empty() && start.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_number && (frame.offset.is_none() || module == frame.module)).then_some(module)
}

/// The C library has variants of some functions, of which the processor decides: the name up to
/// that of the instructions used.
fn without_variant(function: &str) -> &str {
    const INSTRUCTIONS: [&str; 13] = [
        "sse", "ssse3", "avx", "evex", "erms", "fma", "sve", "asimd", "simd", "mops", "mte", "generic", "a64fx",
    ];
    let is_variant = |part: &str| INSTRUCTIONS.iter().any(|name| part.starts_with(name));
    let own = function.strip_prefix("__").unwrap_or_default();
    let variant = own.match_indices('_').find(|(at, _)| is_variant(&own[at + 1..]));
    variant.map_or(function, |(at, _)| &own[..at])
}

/// Whether a frame only connects others: code without a name in the libraries that end a process,
/// and an address without code that was called.
fn is_glue(frame: &NamedFrame) -> bool {
    const LIBRARIES: [&str; 4] = ["libc.so", "libc++", "libgcc_s", "libstdc++"];
    unnamed(frame).is_some()
        && (frame.path.is_none() || LIBRARIES.iter().any(|library| frame.module.starts_with(library)))
}

/// The key of a crash: the same wherever the program's modules are mapped, in every build whose
/// functions have the same names, and however deep its recursions are. The message, without its
/// numbers, says which of a function's assertions failed.
pub(super) fn key(program: &str, signal: Option<u32>, message: Option<&str>, blamed: &[NamedFrame]) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for frame in blamed.iter().filter(|frame| !frame.inlined) {
        // Code made at run time, without a name, is elsewhere each time.
        let is_nowhere = frame.path.is_none() && frame.function.contains("0x");
        let part = match is_nowhere {
            true => "?",
            // The next build changes the offset in the module.
            false => unnamed(frame).unwrap_or_else(|| without_variant(&frame.function)),
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
        for checks in [
            &["__fortify_fail", "__chk_fail", "__strcpy_chk"][..],
            &["std::terminate()", "__cxa_pure_virtual"],
            &["std::terminate()", "std::__terminate()"],
            &[
                "std::terminate()",
                "__cxa_throw",
                "std::__throw_length_error(char const*)",
            ],
        ] {
            assert_eq!(function(&[&abort[..], checks, &["close_all"]].concat()), "close_all");
        }
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

    #[test]
    fn a_key_does_not_depend_on_the_processor() {
        let key_of = |function: &str| key("p", Some(11), None, &thread(&[function, "copy", "main"]).frames);
        for [one, other] in [
            ["__memcpy_avx512_unaligned_erms", "__memcpy_ssse3"],
            ["__memmove_chk_evex_unaligned_erms", "__memmove_chk_erms"],
            ["__strlen_evex", "__strlen_sse2"],
            ["__strncasecmp_l_avx2_rtm", "__strncasecmp_l_sse42"],
            ["__memcpy_generic", "__memcpy_sve"],
            ["__sin_fma", "__sin_avx"],
        ] {
            assert_eq!(key_of(one), key_of(other), "{one} {other}");
        }
        assert_ne!(key_of("__memcpy_sse2"), key_of("__memset_sse2"));
        assert_ne!(key_of("pack_avx2"), key_of("pack_sse2"));
    }

    /// Unwind tables say where a function begins that has no name.
    #[test]
    fn functions_without_names_are_those_of_their_modules() {
        let frames = |module: &str, start: &str| {
            let mut frames = thread(&["abort", "unnamed", "std::terminate()", "thrower()", "main"]).frames;
            frames[1].module = module.to_owned();
            frames[1].path = Some(format!("/lib/{module}"));
            frames[1].function = format!("{module}+0x{start}");
            frames[1].offset = Some(0x60);
            frames
        };
        let mut of_library = thread(&[]);
        of_library.frames = frames("libstdc++.so.6.0.30", "9d8b9");
        assert_eq!(blamed(&of_library)[0].function, "thrower()");
        of_library.frames = frames("libown.so", "9d8b9");
        assert_eq!(blamed(&of_library)[0].function, "libown.so+0x9d8b9");
        let key_of = |start: &str| key("p", Some(6), None, &frames("libown.so", start));
        assert_eq!(key_of("9d8b9"), key_of("7ab10"));
    }
}
