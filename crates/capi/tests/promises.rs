//! Checks what the header promises "in handlers", and of the crash handler, in a release build's
//! object code: it refers to nothing that allocates, locks or panics, and to no function that would
//! have to be bound.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use backtrail_testkit::reached::{Compiler, FRAME, mentions};
use backtrail_testkit::{available, command, place};

/// Parts of the names that code refers to if it may panic or allocate.
const FORBIDDEN: [&str; 3] = ["panicking", "__rust_alloc", "5alloc"];

/// External names that are allowed: from the loader, and what the compiler emits for copies.
const EXTERNAL: [&str; 7] = [
    "_dl_find_object",
    "__libc_stack_end",
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "bcmp",
];

/// Functions that the library does not export, and what runs before `main`, which is no handler.
const CALLS: &str = r#"
static BEGIN: extern "C" fn() = nothing;
extern "C" fn nothing() {}
#[unsafe(no_mangle)]
pub fn audited_crash(fd: i32, file: *mut handler::output::OutputFile, helper: *mut core::ffi::c_char) -> *const () {
    // Else the compiler knows that there is none.
    handler::crash::name_by(helper);
    handler::output::set(fd, file);
    handler::crash::report as *const ()
}
#[unsafe(no_mangle)]
pub fn audited_before(signal: i32, place: &'static mut [usize; 4]) -> Result<bool, i32> {
    handler::crash::remember(signal, |_| place)
}
#[unsafe(no_mangle)]
pub fn audited_capture() -> handler::capture::Backtrace {
    handler::capture::Backtrace::capture()
}
"#;

/// With the crates whose functions handlers may call.
fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let mut compiler = Compiler::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("handlers")).as_the_workspace();
        compiler.library("libc");
        for folder in ["wire", "arch", "callframe", "sframe", "cbf"] {
            compiler.dependency(folder, &["-Funsafe_code"]);
        }
        compiler.dependency("unwind", &["--cfg", "feature=\"local\""]);
        compiler
    })
}

/// Object code of the folders whose functions handlers may call.
fn audited(name: &str) -> std::path::PathBuf {
    let module = ["local", "capi"].map(|part| {
        let handler = place::workspace().join(format!("crates/{part}/src/handler/mod.rs"));
        format!(
            "#[path = {handler:?}]\n#[allow(dead_code)]\npub mod {};\n",
            if part == "local" { "handler" } else { "c" }
        )
    });
    // The C functions refer to what they call by its crate.
    let module = format!("extern crate self as backtrail_local;\n{}", module.concat());
    compiler().shared_library(name, &[FRAME, &module, CALLS].concat())
}

fn symbols(library: &Path) -> Option<String> {
    let mut list = Command::new("readelf");
    let listing = available(command::run(
        list.args(["--dyn-syms", "-W"]).arg(library),
        Duration::from_secs(30),
    ))?;
    assert!(listing.status.success(), "{}", listing.describe());
    Some(listing.stdout)
}

/// Names of symbols that the library defines, or that it needs.
fn names(symbols: &str, needed: bool) -> Vec<&str> {
    let lines = symbols.lines().filter(|line| line.contains(" UND ") == needed);
    let names = lines.filter_map(|line| line.split_whitespace().nth(7)?.split('@').next());
    names.collect()
}

#[test]
fn handlers_reach_nothing_that_they_may_not_call() {
    let library = audited("handlers");
    let object = std::fs::read(&library).unwrap();
    for name in FORBIDDEN {
        assert!(!mentions(&object, name), "the object code mentions {name}");
    }
    let Some(symbols) = symbols(&library) else { return };
    let own = names(&symbols, false);
    for name in [
        "audited_crash",
        "audited_capture",
        "backtrail_backtrace",
        "backtrail_backtrace_cbf",
        "backtrail_backtrace_from_ucontext",
        "backtrail_backtrace_symbols_fd",
    ] {
        assert!(own.contains(&name), "{name} was compiled: {own:?}");
    }
    let needed = names(&symbols, true);
    assert!(mentions(&object, "SIGTRAP"), "the crash handler was compiled");
    for name in needed {
        assert!(EXTERNAL.contains(&name), "it needs {name}");
    }
}

/// Checks that the search finds forbidden code.
#[test]
fn what_panics_or_calls_the_c_library_is_found() {
    let more = "#[unsafe(no_mangle)]\npub extern \"C\" fn audited_more(at: usize) -> i32 {\n\
                i32::from([1u8, 2, 3][at]) + unsafe { libc::getpid() }\n}\n";
    let library = compiler().shared_library("control", &[FRAME, more].concat());
    assert!(mentions(&std::fs::read(&library).unwrap(), "panicking"));
    let Some(symbols) = symbols(&library) else { return };
    assert!(names(&symbols, true).contains(&"getpid"), "{symbols}");
}
