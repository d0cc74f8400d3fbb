//! `backtrail store symbols`: looks up names long after recordings were added.

use std::path::PathBuf;

use backtrail_store::{ModuleNames, Store, SymbolSources, Symbolized};
use clap::{Args, ValueHint};
use serde_json::json;

use crate::counted::Counted;
use crate::debuginfod::Servers;
use crate::error::{Failure, Status, one_line};
use crate::output;

/// Add missing names and lines to a store, by build ID.
///
/// It searches the files at the recorded paths, /usr/lib/debug, the folders of --from, and
/// debuginfod servers, and uses a file only if its build ID is the recorded one. Run it anywhere,
/// as often as you like, and beside other runs: it adds what it finds and removes nothing.
#[derive(Args)]
pub(crate) struct Symbols {
    #[cfg_attr(not(feature = "s3"), doc = "Directory of the store.")]
    #[cfg_attr(feature = "s3", doc = "Directory of the store, or s3://BUCKET/PREFIX.")]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// Search this folder, and those in it, for programs and debug files of any name. Repeatable.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    from: Vec<PathBuf>,
    #[command(flatten)]
    servers: Servers,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Symbols) -> Result<Status, Failure> {
    let failed = |error| super::failed(&arguments.store, &error);
    let store = Store::open(&arguments.store).map_err(failed)?;
    let sources = SymbolSources {
        folders: arguments.from.clone(),
        fetch: arguments.servers.fetch(),
    };
    let symbolized = store.symbols(&sources).map_err(failed)?;
    if arguments.json {
        let document = document(&symbolized);
        output::to_stdout(|out| writeln!(out, "{document}"))?;
    } else {
        output::to_stdout(|out| {
            for module in &symbolized.modules {
                writeln!(out, "{}", one_line(&line(module)))?;
            }
            writeln!(out, "{}", summary(&symbolized))
        })?;
    }
    Ok(Status::Done)
}

fn line(module: &ModuleNames) -> String {
    let ModuleNames {
        path,
        build_id,
        addresses,
        named,
        lines,
        trouble,
    } = module;
    let build_id = match &build_id[..] {
        "" => String::new(),
        id => format!(" {id}"),
    };
    let trouble = trouble.as_ref().map_or(String::new(), |trouble| format!("; {trouble}"));
    format!("{path}{build_id}: {named} of {addresses} addresses have names, {lines} have lines{trouble}")
}

fn summary(symbolized: &Symbolized) -> String {
    let unnamed = symbolized.modules.iter().map(|module| module.addresses - module.named);
    let unnamed: u64 = unnamed.sum();
    let added = match symbolized.files {
        0 => "nothing new".to_owned(),
        files => format!(
            "added names to {}, {} KiB in {}",
            Counted(symbolized.stacks, "stack"),
            symbolized.bytes.div_ceil(1024),
            Counted(files, "file")
        ),
    };
    format!("{added}; {} without a name", Counted(unnamed, "address"))
}

fn document(symbolized: &Symbolized) -> serde_json::Value {
    let modules = symbolized.modules.iter().map(|module| {
        json!({
            "path": module.path,
            "build_id": Some(&module.build_id).filter(|id| !id.is_empty()),
            "addresses": module.addresses,
            "named": module.named,
            "lines": module.lines,
            "trouble": module.trouble,
        })
    });
    json!({
        "modules": modules.collect::<Vec<_>>(),
        "stacks": symbolized.stacks,
        "files": symbolized.files,
        "bytes": symbolized.bytes,
    })
}
