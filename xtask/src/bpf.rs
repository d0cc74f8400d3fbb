//! Compiles the program that walks stacks in the kernel. Its object is committed: whoever builds
//! Backtrail needs no clang.

use std::path::Path;
use std::process::Command;

/// The crate's `tests/object.rs` compiles in the same way, and compares.
const ARGUMENTS: &[&str] = &[
    "-O2", "-g0", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-c",
];
const FOLDER: &str = "crates/bpf/src/program";

pub(crate) fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new("clang")
        .args(ARGUMENTS)
        .args(["walk.bpf.c", "-o", "walk.bpf.o"])
        .current_dir(root.join(FOLDER))
        .status()
        .map_err(|error| format!("clang: {error}"))?;
    status.success().then_some(()).ok_or_else(|| format!("clang: {status}"))
}
