//! Helpers shared by the test programs.

// Each test program uses only some of them.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use backtrail_sframe::Row;

/// The row that holds `offset` bytes into a function.
pub(crate) fn row_at(rows: &[Row], repeat: Option<u8>, offset: u64) -> &Row {
    let offset = repeat.map_or(offset, |block| offset % u64::from(block));
    rows.iter().rev().find(|row| u64::from(row.start) <= offset).unwrap()
}

/// Files of this machine, those that exist.
pub(crate) fn real_files() -> Vec<PathBuf> {
    let tool = |name: &str| {
        let output = std::process::Command::new("gcc")
            .arg(format!("-print-prog-name={name}"))
            .output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        PathBuf::from(text.unwrap_or_default())
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let which = |name: &str| {
        let found = path
            .split(':')
            .map(|dir| Path::new(dir).join(name))
            .find(|path| path.is_file());
        found.unwrap_or_default()
    };
    let library = |name: &str| {
        let folders = [
            "/lib/x86_64-linux-gnu",
            "/lib64",
            "/usr/lib64",
            "/lib/aarch64-linux-gnu",
            "/lib",
        ];
        let found = folders
            .iter()
            .map(|dir| Path::new(dir).join(name))
            .find(|path| path.exists());
        found.unwrap_or_default()
    };
    let python = std::process::Command::new("python3")
        .args(["-c", "import os,sys; print(os.path.realpath(sys.executable))"])
        .output()
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let candidates = [
        library("libc.so.6"),
        library("ld-linux-x86-64.so.2"),
        library("ld-linux-aarch64.so.1"),
        library("libstdc++.so.6"),
        which("git"),
        which("gdb"),
        python.unwrap_or_default(),
        tool("cc1plus"),
        std::env::current_exe().unwrap(),
    ];
    candidates.into_iter().filter(|path| path.is_file()).collect()
}
