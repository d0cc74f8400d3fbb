//! `backtrail types diff`: compares two files' types as their users see them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use backtrail_ctype::diff::{self, Change, Exported, Exports, Severity, Side};
use backtrail_ctype::{Symbol, SymbolKind};
use backtrail_elf::File;
use backtrail_profile::demangle;
use clap::{Args, ValueEnum, ValueHint};
use serde_json::json;

use super::anywhere::{Base, Input};
use super::input::Opened;
use super::visible::{self, Patterns};
use crate::error::{Failure, Status};
use crate::output;

/// Compare what two files export: report the functions and objects that have changed, or that lead
/// to changed types.
///
/// The exit status is 1 if anything is reported. If no exported function or object has a type,
/// every type counts.
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
    /// Report only changes that are at least this severe.
    #[arg(long, value_enum, default_value = "harmless", value_name = "LEVEL")]
    severity: Level,
    /// Take types as hidden from users if no header in this folder defines them [default: if debug
    /// information says that only source files do]. Repeatable.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    headers: Vec<PathBuf>,
    /// Leave out the changes that the lines of FILE name: `KIND NAME`, where `*` stands for any
    /// letters, such as `function test_*`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    suppress: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Level {
    /// All changes.
    Harmless,
    /// Those that break users in some cases.
    Possible,
    /// Those that break users.
    Breaking,
}

impl Level {
    fn severity(self) -> Severity {
        match self {
            Level::Harmless => Severity::Harmless,
            Level::Possible => Severity::Possible,
            Level::Breaking => Severity::Breaking,
        }
    }
}

pub(crate) fn run(arguments: &Diff) -> Result<Status, Failure> {
    let mut bad = false;
    let mut tell = |failure: Failure| {
        failure.report();
        bad = true;
    };
    let base = Base::default();
    let old = Input::open(&arguments.old, &base)?;
    let new = Input::open(&arguments.new, &base)?;
    let suppressed = arguments.suppress.as_deref().map(Patterns::read).transpose()?;
    let seen = |input: &Input<'_>| visible::visible(&input.origins()?, &arguments.headers);
    let (old_visible, new_visible) = (seen(&old)?, seen(&new)?);
    let (old, new) = (old.compared()?, new.compared()?);
    let (old_exports, new_exports) = (exports(old.file()), exports(new.file()));
    let (old_symbols, new_symbols) = (old.symbols().unwrap_or_default(), new.symbols().unwrap_or_default());
    let (old, new) = (old.open_all(&mut tell)?, new.open_all(&mut tell)?);
    let (mut old, mut new) = (side(&old, &old_symbols), side(&new, &new_symbols));
    (old.visible, new.visible) = (old_visible, new_visible);
    (old.exports, new.exports) = (old_exports, new_exports);
    let blind = old.symbols.is_empty() && new.symbols.is_empty();
    let mut changes = diff::compare(&old, &new);
    changes.retain(|change| arguments.all || blind || !change.reaches.is_empty());
    changes.retain(|change| change.severity >= arguments.severity.severity());
    let before = changes.len();
    if let Some(suppressed) = &suppressed {
        changes.retain(|change| !suppressed.has(change));
    }
    let left_out = before - changes.len();
    output::to_stdout(|out| match arguments.json {
        true => as_json(out, &changes, left_out),
        false => as_text(out, &changes, [&arguments.old, &arguments.new], blind, left_out),
    })?;
    Ok(match (bad, changes.is_empty()) {
        (true, _) => Status::Bad,
        (false, true) => Status::Done,
        (false, false) => Status::Found,
    })
}

fn exports(file: Option<&File<'_>>) -> Option<Exports> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let mut all = Exports::default();
    for export in file?.exports()? {
        let versions = all.0.entry(text(export.name)).or_default();
        versions.extend(export.version.map(text));
    }
    Some(all)
}

fn side<'d>(opened: &'d [Opened<'_>], symbols: &'d [Symbol<'d>]) -> Side<'d> {
    let mut side = Side::default();
    for (unit, dict) in opened.iter().enumerate() {
        let types = dict.types();
        // The only unit's types are those of the whole file.
        let unit_name = if opened.len() > 1 { dict.unit() } else { String::new() };
        side.units.push((unit_name, types));
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

fn as_json(out: &mut dyn Write, changes: &[Change], suppressed: usize) -> io::Result<()> {
    let verdict = verdict(changes);
    let changes: Vec<_> = changes
        .iter()
        .map(|change| {
            json!({
                "kind": change.kind,
                "name": change.name,
                "unit": change.unit,
                "reaches": change.reaches,
                "breaking": change.severity > Severity::Harmless,
                "severity": change.severity.name(),
                "detail": change.detail,
            })
        })
        .collect();
    let document = json!({"verdict": verdict, "suppressed": suppressed, "changes": changes});
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

/// The most symbol names on one line.
const MOST_NAMES: usize = 8;

/// A change's text with the names of C++ as they are in the source. The symbol itself is shown
/// without parameters, which follow it.
fn readable(text: &str, symbol: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("_Z") {
        let (before, name) = rest.split_at(at);
        let (name, after) = name.split_at(name.find(|c| !is_part(c)).unwrap_or(name.len()));
        out += before;
        let is_start = !before.ends_with(is_part);
        match is_start {
            false => out += name,
            true if name == symbol => out += without_parameters(&demangle(name)),
            true => out += &demangle(name),
        }
        rest = after;
    }
    out + rest
}

/// A function's name without the last parentheses and what follows these.
fn without_parameters(name: &str) -> &str {
    let Some(end) = name.rfind(')') else { return name };
    let mut depth = 0;
    for (at, c) in name[..=end].char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &name[..at];
        }
    }
    name
}

/// The greatest severity of the changes, or `same`.
fn verdict(changes: &[Change]) -> &'static str {
    let most = changes.iter().map(|change| change.severity).max();
    most.map_or("same", Severity::name)
}

fn as_text(
    out: &mut dyn Write,
    changes: &[Change],
    files: [&Path; 2],
    blind: bool,
    suppressed: usize,
) -> io::Result<()> {
    let [old, new] = files.map(|path| path.display().to_string());
    let count = |severity| changes.iter().filter(|change| change.severity == severity).count();
    let breaking = count(Severity::Breaking);
    let changed = match changes.len() {
        1 => "1 change".to_owned(),
        count => format!("{count} changes"),
    };
    write!(out, "{old} -> {new}: {changed}, {breaking} of them breaking")?;
    match count(Severity::Possible) {
        0 => {}
        possible => write!(out, ", {possible} possibly")?,
    }
    match suppressed {
        0 => writeln!(out)?,
        suppressed => writeln!(out, "; {suppressed} suppressed")?,
    }
    if blind {
        writeln!(out, "(no exported function or object has a type: every type counts)")?;
    }
    for change in changes {
        let mark = change.severity.name();
        let unit = change.unit.as_ref().map_or(String::new(), |unit| format!(" of {unit}"));
        let name = demangle(&change.name);
        let detail = readable(&change.detail, &change.name);
        writeln!(out, "{mark}: {} {name}{unit}: {detail}", change.kind)?;
        let itself = change.reaches.len() == 1 && change.reaches[0] == change.name;
        if !change.reaches.is_empty() && !itself {
            let more = change.reaches.len().saturating_sub(MOST_NAMES);
            let names = &change.reaches[..change.reaches.len() - more];
            let mut names: Vec<_> = names.iter().map(|name| demangle(name)).collect();
            // Constructors and destructors have several symbols.
            names.dedup();
            let names = names.join(", ");
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
