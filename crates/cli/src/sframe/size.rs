//! `backtrail sframe size`: compares the sizes of tables and `.eh_frame`.

use std::io;
use std::path::{Path, PathBuf};

use backtrail_cfi::sizes::{Built, MERGE, Sizes};
use backtrail_sframe::Version;
use clap::Args;
use serde_json::{Map, Value, json};

use super::input;
use crate::error::{Failure, Status, shown};
use crate::output;

/// Show the sizes of files' tables, and of tables made from their .eh_frame.
///
/// Sizes are fractions of .eh_frame and .eh_frame_hdr together: for the file's own .sframe, and for
/// tables of each version in which every function has rows of its own (apart), functions with equal
/// rows share them (shared), and neighbours share one FDE, or one function has several, if that is
/// smaller (merged).
#[derive(Args)]
pub(crate) struct Size {
    /// Executables, shared libraries or relocatable files with .eh_frame.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON document, with sizes in bytes.
    #[arg(long)]
    json: bool,
    /// Put up to N neighbouring functions under one FDE in merged tables.
    #[arg(long, value_name = "N", default_value_t = MERGE)]
    merge: u8,
}

pub(crate) fn run(arguments: &Size) -> Result<Status, Failure> {
    let mut status = Status::Done;
    let mut all: Vec<(&Path, Sizes)> = Vec::new();
    for path in &arguments.files {
        match sizes(path, arguments.merge) {
            Ok(sizes) => all.push((path, sizes)),
            Err(failure) => {
                failure.report();
                status = Status::Bad;
            }
        }
    }
    if arguments.json {
        let files: Vec<Value> = all.iter().map(|(path, sizes)| to_json(path, sizes)).collect();
        output::to_stdout(|out| writeln!(out, "{}", Value::from(files)))?;
    } else if !all.is_empty() {
        output::to_stdout(|out| table(out, &all))?;
    }
    Ok(status)
}

fn sizes(path: &Path, merge: u8) -> Result<Sizes, Failure> {
    let file = input::open_single(path)?;
    let image = input::image(path, &file)?;
    Sizes::of(&image, merge).map_err(|error| Failure::of(path, error))
}

fn to_json(path: &Path, sizes: &Sizes) -> Value {
    let built = Version::ALL.into_iter().zip(&sizes.built);
    let built: Map<String, Value> = built
        .map(|(version, built)| {
            let sizes = json!({"unshared": built.unshared, "shared": built.shared, "merged": built.merged});
            ((version as u8).to_string(), sizes)
        })
        .collect();
    json!({
        "file": path.to_string_lossy(),
        "eh_frame": sizes.eh_frame,
        "eh_frame_hdr": sizes.eh_frame_hdr,
        "present": sizes.present,
        "built": built,
    })
}

fn table(out: &mut dyn io::Write, all: &[(&Path, Sizes)]) -> io::Result<()> {
    write!(out, "{:>12}  {:>8}", ".eh_frame", ".sframe")?;
    for version in Version::ALL {
        let apart = format!("V{} apart", version as u8);
        write!(out, "  {apart:>9}  {:>6}  {:>6}", "shared", "merged")?;
    }
    writeln!(out, "  file")?;
    for (path, sizes) in all {
        line(out, sizes, &shown(path))?;
    }
    if all.len() > 1 {
        line(out, &all.iter().map(|(_, sizes)| *sizes).sum(), "total")?;
    }
    Ok(())
}

fn line(out: &mut dyn io::Write, sizes: &Sizes, name: &str) -> io::Result<()> {
    let ratio = |size: u64| format!("{:.3}", size as f64 / sizes.dwarf().max(1) as f64);
    let present = sizes.present.map_or("-".to_owned(), ratio);
    write!(out, "{:>12}  {present:>8}", sizes.dwarf())?;
    for Built {
        unshared,
        shared,
        merged,
    } in sizes.built
    {
        let [unshared, shared, merged] = [unshared, shared, merged].map(ratio);
        write!(out, "  {unshared:>9}  {shared:>6}  {merged:>6}")?;
    }
    writeln!(out, "  {name}")
}
