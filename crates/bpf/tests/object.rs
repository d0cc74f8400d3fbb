//! The committed objects are what the source makes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::{available, command, scratch, skip};

/// As in `cargo xtask bpf`.
const ARGUMENTS: &[&str] = &[
    "-O2", "-g0", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-c",
];
const CPUS: [(&str, &str); 2] = [("-DX86_64", "x86_64.bpf.o"), ("-DAARCH64", "aarch64.bpf.o")];

#[test]
fn the_committed_objects_are_what_the_source_makes() {
    let limit = Duration::from_secs(60);
    let Some(version) = available(command::run(Command::new("clang").arg("--version"), limit)) else {
        return;
    };
    // Each version makes other instructions.
    if !version.stdout.contains("clang version 14.") {
        return skip("the objects were made by clang 14");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/program");
    let scratch = scratch();
    for (cpu, name) in CPUS {
        let object = scratch.path().join(name);
        let mut clang = Command::new("clang");
        clang.args(ARGUMENTS).args([cpu, "walk.bpf.c", "-o"]).arg(&object);
        let finished = command::run(clang.current_dir(&folder), limit).expect("it has just run");
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        let [made, committed] = [object, folder.join(name)].map(|path| std::fs::read(path).expect("it is there"));
        assert!(made == committed, "{name}: run `cargo xtask bpf`");
    }
}
