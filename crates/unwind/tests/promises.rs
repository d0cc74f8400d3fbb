//! Checks that walking in place allocates nothing, takes no lock, does not panic, and calls nothing
//! of the C library, in a release build's object code.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use backtrail_testkit::reached::{Compiler, FRAME, mentions};
use backtrail_testkit::{available, command};

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

/// What a handler calls, each in a function of its own. Compiled only by the test.
const CALLS: &str = include_str!("audited/calls.txt");

fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let mut compiler = Compiler::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("promises"));
        for folder in ["wire", "arch", "callframe", "sframe"] {
            compiler.dependency(folder, &["-Funsafe_code"]);
        }
        compiler.dependency("unwind", &["--cfg", "feature=\"local\""]);
        compiler
    })
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
    let library = compiler().shared_library("audited", &[FRAME, CALLS].concat());
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
    let text = "#[no_mangle]\npub fn audited_index(words: &[u64], at: usize) -> usize {\n\
                backtrail_unwind::local::read_words(words[at], &mut [0])\n}\n";
    let object = compiler().reached("panics", &[FRAME, text].concat());
    assert!(mentions(&object, "panicking"));
}
