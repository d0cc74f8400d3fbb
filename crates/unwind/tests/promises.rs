//! "Allocates nothing, takes no lock, does not panic, and calls nothing of the C library": seen in
//! a release build's object code of what walking in place reaches.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::reached::{Compiler, FRAME, mentions};
use backtrail_testkit::{available, command};

/// Names that code which may panic, or may allocate, refers to.
const FORBIDDEN: [&str; 3] = ["panicking", "__rust_alloc", "5alloc"];

/// What is not in the library itself: what the loader may have, and what the compiler makes of
/// copies.
const EXTERNAL: [&str; 7] = [
    "_dl_find_object",
    "__libc_stack_end",
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "bcmp",
];

/// What a handler calls, each as a function of its own that nothing else needs. It is compiled by
/// the test only.
const CALLS: &str = include_str!("audited/calls.txt");

fn compiler(name: &str) -> Compiler {
    let mut compiler = Compiler::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    for folder in ["wire", "arch", "callframe", "sframe"] {
        compiler.dependency(folder, &["-Funsafe_code"]);
    }
    compiler.dependency("unwind", &["--cfg", "feature=\"local\""]);
    compiler
}

fn listing(tool: &str, option: &str, library: &Path) -> Option<String> {
    let mut list = Command::new(tool);
    let listing = available(command::run(
        list.args([option, "-W"]).arg(library),
        Duration::from_secs(30),
    ))?;
    assert!(listing.status.success(), "{}", listing.describe());
    Some(listing.stdout)
}

#[test]
fn walking_in_place_reaches_nothing_that_a_handler_may_not_call() {
    let compiler = compiler("promises");
    let library = compiler.shared_library("audited", &[FRAME, CALLS].concat());
    let object = std::fs::read(&library).unwrap();
    for function in CALLS.split("fn audited_").skip(1) {
        let function = function.split('(').next().unwrap();
        assert!(
            mentions(&object, &format!("audited_{function}")),
            "{function} was compiled"
        );
    }
    for name in FORBIDDEN {
        assert!(!mentions(&object, name), "the object code mentions {name}");
    }
    let Some(symbols) = listing("readelf", "--dyn-syms", &library) else {
        return;
    };
    assert!(symbols.contains("_dl_find_object"), "{symbols}");
    for line in symbols.lines().filter(|line| line.contains(" UND ")) {
        let name = line.split_whitespace().nth(7).unwrap_or_default();
        assert!(name.is_empty() || EXTERNAL.contains(&name), "it needs {name}");
    }
    let Some(dynamic) = listing("readelf", "-d", &library) else {
        return;
    };
    assert!(
        dynamic.contains("STATIC_TLS"),
        "thread-local storage is there from the start: {dynamic}"
    );
}

#[test]
fn what_panics_is_found() {
    let compiler = compiler("promises_control");
    let text = "#[no_mangle]\npub fn audited_index(words: &[u64], at: usize) -> usize {\n\
                backtrail_unwind::local::read_words(words[at], &mut [0])\n}\n";
    let object = compiler.reached("panics", &[FRAME, text].concat());
    assert!(mentions(&object, "panicking"));
}
