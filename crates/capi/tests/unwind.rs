//! The library that walks in place of libgcc and libunwind: in programs that compare both, in
//! programs that throw, and in programs of others.

use crate::common;

use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{available, packages, program, skip};
use common::{Link, Program, compile, libraries, run};

const LIMIT: Duration = Duration::from_secs(60);
const NOT_TAKEN_OVER: i32 = 77;

/// Exceptions are libunwind's, too, if it comes before libgcc.
const WITH_LIBUNWIND: &[&str] = &["-Wl,--no-as-needed", "-lunwind"];

fn has_libunwind() -> bool {
    ["", "x86_64-linux-gnu/"]
        .map(|folder| format!("/usr/include/{folder}libunwind.h"))
        .iter()
        .any(|header| std::path::Path::new(header).exists())
}

fn library() -> std::path::PathBuf {
    libraries().join("libbacktrail_unwind.so")
}

fn preloaded(program: &Program, arguments: &[&str]) -> Finished {
    let mut run = Command::new(&program.path);
    run.args(arguments)
        .env("LD_PRELOAD", library())
        .env_remove("LD_LIBRARY_PATH");
    command::run(&mut run, LIMIT).expect("it was just built")
}

/// Frame by frame: addresses, stack pointers, functions, language-specific data, the saved frame
/// pointer, and how the walk ends. Also in constructors, handlers and libraries from `dlopen`.
#[test]
fn frames_are_libgccs() {
    let Some(plugin) = available(program::PLUGIN.build()) else {
        return;
    };
    for flags in [
        &["-fomit-frame-pointer"][..],
        &["-O0"],
        &["-fcf-protection=none", "-fno-pie", "-no-pie"],
    ] {
        let Some(program) = compile("unwind_frames.c", flags, Link::Not) else {
            return;
        };
        let finished = preloaded(&program, &[plugin.to_str().unwrap()]);
        assert_eq!(finished.status.code(), Some(0), "{flags:?}: {}", finished.describe());
        let count: u32 = finished.stdout.split(' ').next().unwrap().parse().unwrap();
        assert!(count > 200, "{}", finished.describe());
        // Without the library, there is nothing to compare. (Where an executable has a function's
        // address, that of its stub, it can't see that.)
        if !flags.contains(&"-no-pie") {
            assert_eq!(run(&program, &[]).status.code(), Some(NOT_TAKEN_OVER));
        }
    }
}

#[test]
fn cursors_are_libunwinds() {
    if !cfg!(target_arch = "x86_64") {
        return skip("cursors are for x86-64");
    }
    if !has_libunwind() {
        return skip("libunwind's header is not installed");
    }
    let Some(program) = compile("unwind_cursor.c", WITH_LIBUNWIND, Link::Not) else {
        return;
    };
    let finished = preloaded(&program, &[]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.describe());
    assert!(finished.stdout.starts_with("735 frames"), "{}", finished.describe());
    assert_eq!(run(&program, &[]).status.code(), Some(NOT_TAKEN_OVER));
}

/// What the libraries keep for ever is no leak, as gperftools' heap checker, which follows only
/// pointers to the beginning of a block, and LeakSanitizer see it.
#[test]
fn leak_checkers_find_no_leaks() {
    let checker = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4";
    let has_checker = packages::install(&[(checker, "libgoogle-perftools4")]).is_empty();
    let Some((program, sanitized)) =
        compile("keeps.c", &[], Link::Shared).zip(compile("keeps.c", &["-fsanitize=address"], Link::Shared))
    else {
        return;
    };
    let finished = run(&sanitized, &[]);
    assert!(finished.status.success(), "{}", finished.describe());
    if !has_checker {
        return skip("gperftools' library can't be installed");
    }
    for preload in [checker.to_owned(), format!("{} {checker}", library().display())] {
        let mut run = Command::new(&program.path);
        run.env("LD_PRELOAD", &preload)
            .env("LD_LIBRARY_PATH", libraries())
            .env("HEAPCHECK", "normal");
        let finished = command::run(&mut run, LIMIT).expect("it was just built");
        assert!(finished.status.success(), "{preload}: {}", finished.describe());
        let found_none = finished.stderr.contains("No leaks found");
        assert!(found_none, "{preload}: {}", finished.describe());
    }
}

#[test]
fn exceptions_stay_as_they_are() {
    let built = compile("unwind_throws.cc", &["-fnon-call-exceptions"], Link::Not).zip(compile(
        "unwind_library.cc",
        &["-shared", "-fPIC"],
        Link::Not,
    ));
    let Some((program, thrower)) = built else { return };
    let arguments = [thrower.path.to_str().unwrap()];
    let (alone, ours) = (run(&program, &arguments), preloaded(&program, &arguments));
    assert!(alone.status.success(), "{}", alone.describe());
    assert_eq!(ours.stdout, alone.stdout, "{}", ours.describe());
    assert!(ours.stdout.lines().count() > 20, "{}", ours.describe());
}

/// Output and exit status, with walks inside of destructors, stop functions and terminate handlers.
fn kinds_stay(kinds: &[&str], flags: &[&str]) {
    let throws_anywhere = ["-std=c++20", "-fnon-call-exceptions", "-Wno-infinite-recursion"];
    let Some(program) = compile("unwind_kinds.cc", &[&throws_anywhere, flags].concat(), Link::Not) else {
        return;
    };
    for kind in kinds {
        let (alone, ours) = (run(&program, &[kind]), preloaded(&program, &[kind]));
        assert!(!alone.stdout.is_empty(), "{kind}: {}", alone.describe());
        assert_eq!(
            (ours.status, &ours.stdout),
            (alone.status, &alone.stdout),
            "{kind}: {}",
            ours.describe()
        );
    }
}

const KINDS: [&str; 11] = [
    "constructors",
    "nested",
    "threads",
    "foreign",
    "signals",
    "coroutines",
    "noexcept",
    "uncaught",
    "thread",
    "rethrow",
    "twice",
];

#[test]
fn exceptions_of_every_kind_stay_libgccs() {
    kinds_stay(&KINDS, &[]);
    kinds_stay(&["forced"], &[]);
}

/// Without `pthread_cancel` and `pthread_exit`, for which the C library loads libgcc.
#[test]
fn exceptions_of_every_kind_stay_libunwinds() {
    if !cfg!(target_arch = "x86_64") || !has_libunwind() {
        return skip("libunwind's header is not installed");
    }
    kinds_stay(&KINDS, WITH_LIBUNWIND);
}

/// Plain names are another library's: LLVM's cursors and contexts are smaller than libunwind's.
#[test]
fn names_that_others_use_otherwise_are_not_exported() {
    let mut list = Command::new("nm");
    list.args(["-D", "--defined-only", "--format=posix"]).arg(library());
    let Some(listing) = available(command::run(&mut list, LIMIT)) else {
        return;
    };
    let names: Vec<&str> = listing
        .stdout
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    for name in ["_Unwind_Backtrace", "_Unwind_GetIP", "unw_backtrace", "backtrace"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for name in ["unw_step", "unw_getcontext", "_Unwind_RaiseException", "_Unwind_Resume"] {
        assert!(!names.contains(&name), "{name} is exported");
    }
}
