//! Passes open files to `backtrail pack` in another process: that they have no path is why they are
//! open.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use backtrail_elf::HeldFile;
use backtrail_elf::door::{self, Root};
use serde_json::{Value, json};

use crate::hex;

/// Describes open files of this process to another one, which must read them while this one runs.
pub(crate) fn write(files: &[HeldFile], out: impl Write) -> io::Result<()> {
    let pid = std::process::id();
    let place = |descriptor: i32| format!("/proc/{pid}/fd/{descriptor}");
    let described = |held: &HeldFile| {
        json!({
            "path": held.path,
            "build_id": hex::encode(&held.build_id),
            "elsewhere": held.elsewhere,
            "file": place(held.file.as_raw_fd()),
            "root": held.root.as_ref().map(|root| place(root.descriptor().as_raw_fd())),
        })
    };
    let all: Vec<Value> = files.iter().map(described).collect();
    Ok(serde_json::to_writer(out, &all)?)
}

/// Opens the files that another process has described. Those that it does not let us open are left
/// out.
pub(crate) fn read(mut input: impl Read) -> io::Result<Vec<HeldFile>> {
    let mut text = Vec::new();
    input.read_to_end(&mut text)?;
    let all: Vec<Value> = serde_json::from_slice(&text)?;
    Ok(all.iter().filter_map(open).collect())
}

fn open(described: &Value) -> Option<HeldFile> {
    let text = |name: &str| described[name].as_str();
    let root = text("root").and_then(|path| Root::at(Path::new(path)).ok());
    Some(HeldFile {
        path: text("path")?.to_owned(),
        build_id: hex::decode(text("build_id")?.as_bytes()).ok()?,
        elsewhere: described["elsewhere"].as_u64()?.try_into().ok()?,
        file: Arc::clone(door::named(Path::new(text("file")?)).ok()?.file()),
        root: root.map(Arc::new),
    })
}
