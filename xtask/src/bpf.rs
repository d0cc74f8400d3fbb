//! Compiles the program that walks stacks in the kernel. Its objects are committed: whoever builds
//! Backtrail needs no clang.

use std::path::Path;
use std::process::Command;

/// The crate's `tests/object.rs` compiles in the same way, and compares.
const ARGUMENTS: &[&str] = &[
    "-O2", "-g0", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-c",
];
const FOLDER: &str = "crates/bpf/src/program";
/// The definition that chooses each CPU, and its object.
const CPUS: [(&str, &str); 2] = [("-DX86_64", "x86_64.bpf.o"), ("-DAARCH64", "aarch64.bpf.o")];

pub(crate) fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (cpu, object) in CPUS {
        let status = Command::new("clang")
            .args(ARGUMENTS)
            .args([cpu, "walk.bpf.c", "-o", object])
            .current_dir(root.join(FOLDER))
            .status()
            .map_err(|error| format!("clang: {error}"))?;
        if !status.success() {
            return Err(format!("clang: {status}"));
        }
    }
    Ok(())
}
