//! `cargo evidence arguments`: tests calling conventions at length.

use std::env;
use std::process::Command;

/// Runs the test of calling conventions with this many signatures per compiler.
pub(crate) fn conventions(signatures: u32) -> Result<(), String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "test",
            "-p",
            "backtrail-args",
            "--test",
            "all",
            "conventions::",
            "--",
            "--nocapture",
        ])
        .env("BACKTRAIL_SIGNATURES", signatures.to_string())
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| "arguments are elsewhere".to_owned())
}
