//! `backtrail types diff`: compares two files' types as their users see them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use backtrail_ctype::diff::{self, Change, Exported, Side};
use backtrail_ctype::{Symbol, SymbolKind};
use clap::{Args, ValueHint};
use serde_json::json;

use super::input::{self, Opened, Source};
use crate::error::{Failure, Status};
use crate::output;

/// Compare what two files export: report the functions and objects that have changed, or that lead
/// to changed types.
///
/// The exit status is 1 if anything has changed. If the files do not say what they export, every
/// type counts.
#[derive(Args)]
pub(crate) struct Diff {
    /// The old file: an ELF file, or the bytes of a .ctf section.
    #[arg(value_name = "OLD", value_hint = ValueHint::FilePath)]
    old: PathBuf,
    /// The new file.
    #[arg(value_name = "NEW", value_hint = ValueHint::FilePath)]
    new: PathBuf,
    /// Report changed types too that no function or object leads to.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Diff) -> Result<Status, Failure> {
    let mut bad = false;
    let mut tell = |failure: Failure| {
        failure.report();
        bad = true;
    };
    let files = [&arguments.old, &arguments.new].map(|path| input::open(path));
    let [old, new] = files;
    let (old, new) = (old?, new?);
    let (old, new) = (
        Source::find(&arguments.old, old.bytes())?,
        Source::find(&arguments.new, new.bytes())?,
    );
    let (old_symbols, new_symbols) = (old.symbols().unwrap_or_default(), new.symbols().unwrap_or_default());
    let (old, new) = (old.open_all(&mut tell)?, new.open_all(&mut tell)?);
    let (old, new) = (side(&old, &old_symbols), side(&new, &new_symbols));
    let blind = old.symbols.is_empty() && new.symbols.is_empty();
    let mut changes = diff::compare(&old, &new);
    changes.retain(|change| arguments.all || blind || !change.reaches.is_empty());
    output::to_stdout(|out| match arguments.json {
        true => as_json(out, &changes),
        false => as_text(out, &changes, [&arguments.old, &arguments.new], blind),
    })?;
    Ok(match (bad, changes.is_empty()) {
        (true, _) => Status::Bad,
        (false, true) => Status::Done,
        (false, false) => Status::Found,
    })
}

fn side<'d>(opened: &'d [Opened<'_>], symbols: &'d [Symbol<'d>]) -> Side<'d> {
    let mut side = Side::default();
    for (unit, dict) in opened.iter().enumerate() {
        let types = dict.types();
        side.units.push((dict.unit(), types));
        for kind in [SymbolKind::Function, SymbolKind::Object] {
            let typed = types.dict().symbol_types(kind, symbols).flatten();
            side.symbols.extend(typed.map(|(name, id)| Exported {
                name: String::from_utf8_lossy(name).into_owned(),
                kind,
                unit,
                id,
            }));
        }
    }
    side
}

fn as_json(out: &mut dyn Write, changes: &[Change]) -> io::Result<()> {
    let changes: Vec<_> = changes
        .iter()
        .map(|change| {
            json!({
                "kind": change.kind,
                "name": change.name,
                "unit": change.unit,
                "reaches": change.reaches,
                "breaking": change.breaking,
                "detail": change.detail,
            })
        })
        .collect();
    serde_json::to_writer_pretty(&mut *out, &json!({ "changes": changes }))?;
    writeln!(out)
}

/// The most symbol names on one line.
const MOST_NAMES: usize = 8;

fn as_text(out: &mut dyn Write, changes: &[Change], files: [&Path; 2], blind: bool) -> io::Result<()> {
    let [old, new] = files.map(|path| path.display().to_string());
    let breaking = changes.iter().filter(|change| change.breaking).count();
    writeln!(
        out,
        "{old} -> {new}: {} changes, {breaking} of them breaking",
        changes.len()
    )?;
    if blind {
        writeln!(out, "(neither file tells what it exports: every type counts)")?;
    }
    for change in changes {
        let mark = if change.breaking { "breaking" } else { "harmless" };
        let unit = change.unit.as_ref().map_or(String::new(), |unit| format!(" of {unit}"));
        writeln!(out, "{mark}: {} {}{unit}: {}", change.kind, change.name, change.detail)?;
        let itself = change.reaches.len() == 1 && change.reaches[0] == change.name;
        if !change.reaches.is_empty() && !itself {
            let more = change.reaches.len().saturating_sub(MOST_NAMES);
            let names = change.reaches[..change.reaches.len() - more].join(", ");
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            writeln!(out, "    reached from {names}{more}")?;
        }
    }
    Ok(())
}
