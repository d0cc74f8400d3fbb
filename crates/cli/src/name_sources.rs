//! Passes what names come from to `backtrail pack` in another process: functions that programs made
//! at run time, and open files. That they have no path is why they are open.

use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use backtrail_cfi::announced::{AnnouncedAt, Function};
use backtrail_elf::HeldFile;
use backtrail_elf::door::{self, Root};
use backtrail_record::NameSources;
use serde_json::{Value, json};

use crate::hex;

/// Describes sources to another process, which must open the files while this one runs.
pub(crate) fn write(sources: &NameSources, out: impl Write) -> io::Result<()> {
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
    let function = |at: &AnnouncedAt| {
        json!({
            "pid": at.pid,
            "time": at.time,
            "start": at.function.addresses.start,
            "end": at.function.addresses.end,
            "of": at.function.start,
            "name": at.function.name,
            "inlined": at.function.inlined,
        })
    };
    let all = json!({
        "held": sources.held.iter().map(described).collect::<Vec<_>>(),
        "announced": sources.announced.iter().map(function).collect::<Vec<_>>(),
    });
    // A pipe takes each write as a call.
    let mut out = BufWriter::new(out);
    serde_json::to_writer(&mut out, &all)?;
    out.flush()
}

/// Reads what another process has described. Files that it does not let us open are left out.
pub(crate) fn read(mut input: impl Read) -> io::Result<NameSources> {
    let mut text = Vec::new();
    input.read_to_end(&mut text)?;
    let all: Value = serde_json::from_slice(&text)?;
    let each = |name: &str| all[name].as_array().into_iter().flatten();
    Ok(NameSources {
        held: each("held").filter_map(open).collect(),
        announced: each("announced").filter_map(announced).collect(),
    })
}

fn announced(described: &Value) -> Option<AnnouncedAt> {
    let names = |all: &Value| {
        let name = |name: &Value| name.as_str().map(str::to_owned);
        all.as_array()?.iter().map(name).collect::<Option<Vec<_>>>()
    };
    let number = |name: &str| described[name].as_u64();
    Some(AnnouncedAt {
        pid: number("pid")?.try_into().ok()?,
        time: number("time")?,
        function: Function {
            addresses: number("start")?..number("end")?,
            start: number("of")?,
            name: described["name"].as_str()?.to_owned(),
            inlined: names(&described["inlined"])?,
        },
    })
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
