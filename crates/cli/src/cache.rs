//! `backtrail cache`: shows and empties the cache.

use backtrail_cfi::cache::{self, Cache, Contents, MOST_BYTES, Refused};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::counted::Counted;
use crate::error::{Failure, Status, shown};
use crate::output;

/// Show or remove cached unwind tables and names.
#[derive(Subcommand)]
pub(crate) enum Command {
    Info(Info),
    Clear(Clear),
}

/// Show where the cache is, if it is used, and how large it is.
#[derive(Args)]
pub(crate) struct Info {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Remove all cached unwind tables and names.
#[derive(Args)]
pub(crate) struct Clear {}

pub(crate) fn run(command: &Command) -> Result<Status, Failure> {
    let folder = cache::folder().ok_or_else(|| {
        Failure::new("no cache: neither XDG_CACHE_HOME nor HOME is an absolute path").help("set HOME")
    })?;
    let cache = Cache::new(folder);
    match command {
        Command::Info(Info { json: true }) => info_json(&cache),
        Command::Info(_) => info(&cache),
        Command::Clear(_) => clear(&cache),
    }
}

fn info(cache: &Cache) -> Result<Status, Failure> {
    let contents = cache.contents().map_err(|refused| not_used(cache, &refused))?;
    let contents = contents.unwrap_or_default();
    output::to_stdout(|out| {
        writeln!(out, "folder: {}", shown(cache.path()))?;
        for (kind, entries, bytes) in &contents.kinds {
            writeln!(out, "{kind}: {}", size(*entries, *bytes))?;
        }
        let limit = MOST_BYTES >> 20;
        writeln!(
            out,
            "total: {}; limit {limit} MiB",
            size(contents.entries, contents.bytes)
        )
    })?;
    Ok(Status::Done)
}

fn info_json(cache: &Cache) -> Result<Status, Failure> {
    let (contents, refused) = match cache.contents() {
        Ok(contents) => (contents.unwrap_or_default(), None),
        Err(refused) => (Contents::default(), Some(refused.to_string())),
    };
    let kinds: Map<String, Value> = contents
        .kinds
        .iter()
        .map(|(kind, entries, bytes)| (kind.clone(), json!({"entries": entries, "bytes": bytes})))
        .collect();
    let info = json!({
        "folder": shown(cache.path()),
        "not_used": refused,
        "kinds": kinds,
        "entries": contents.entries,
        "bytes": contents.bytes,
        "limit_bytes": MOST_BYTES,
    });
    output::to_stdout(|out| writeln!(out, "{info}"))?;
    Ok(Status::Done)
}

fn clear(cache: &Cache) -> Result<Status, Failure> {
    let contents = cache.clear().map_err(|refused| not_used(cache, &refused))?;
    let contents = contents.unwrap_or_default();
    output::to_stdout(|out| {
        let size = size(contents.entries, contents.bytes);
        writeln!(out, "removed {size} from {}", shown(cache.path()))
    })?;
    Ok(Status::Done)
}

fn size(entries: u64, bytes: u64) -> String {
    format!("{}, {} KiB", Counted(entries, "entry"), bytes.div_ceil(1024))
}

/// Why the cache is not used, and how it can be.
fn not_used(cache: &Cache, refused: &Refused) -> Failure {
    let failure = Failure::of(cache.path(), format_args!("not used: {refused}"));
    match refused {
        Refused::Owner { .. } => failure.help("set XDG_CACHE_HOME to a folder of your own"),
        Refused::Writable { path } => {
            failure.help(format_args!("take the permission away: chmod go-w {}", path.display()))
        }
        _ => failure,
    }
}
