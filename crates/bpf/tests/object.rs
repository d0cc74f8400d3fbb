//! The committed object is what the source makes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::{available, command, scratch, skip};

/// As in `cargo xtask bpf`.
const ARGUMENTS: &[&str] = &[
    "-O2", "-g0", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-c",
];

#[test]
fn the_committed_object_is_what_the_source_makes() {
    let limit = Duration::from_secs(60);
    let Some(version) = available(command::run(Command::new("clang").arg("--version"), limit)) else {
        return;
    };
    // Each version makes other instructions.
    if !version.stdout.contains("clang version 14.") {
        return skip("the object was made by clang 14");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/program");
    let scratch = scratch();
    let object = scratch.path().join("walk.bpf.o");
    let mut clang = Command::new("clang");
    clang.args(ARGUMENTS).arg("walk.bpf.c").arg("-o").arg(&object);
    let finished = command::run(clang.current_dir(&folder), limit).expect("it has just run");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let [made, committed] = [object, folder.join("walk.bpf.o")].map(|path| std::fs::read(path).expect("it is there"));
    assert!(made == committed, "run `cargo xtask bpf`");
}
