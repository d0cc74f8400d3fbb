//! `backtrail crashes`: what `collect` has reported.

mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use backtrail_record::Keep;
use backtrail_stacks::crash::{Entry, Folder};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::collect::FOLDER;
use crate::counted::Counted;
use crate::error::{Failure, Status};
use crate::output;
use crate::record::keep;

/// List the crashes that 'backtrail collect' has reported.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Crashes {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: List,
}

#[derive(Subcommand)]
enum Command {
    List(List),
    Show(Show),
    Clear(Clear),
}

/// List crashes, those with the same stack as one.
#[derive(Args)]
struct List {
    #[command(flatten)]
    place: Place,
    /// List each crash separately.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Show a crash: its stacks, registers, modules and where its core is.
#[derive(Args)]
struct Show {
    /// The crash's ID, the beginning of it, or 'last'.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    place: Place,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Remove reports and their cores.
#[derive(Args)]
struct Clear {
    /// The IDs of crashes [default: all].
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    place: Place,
    /// Remove only what is older than TIME, as 12h, 30d.
    #[arg(long, value_name = "TIME", value_parser = age)]
    before: Option<Duration>,
}

#[derive(Args)]
struct Place {
    /// The folder of reports.
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    folder: PathBuf,
}

fn age(text: &str) -> Result<Duration, String> {
    match keep(text) {
        Ok(Keep::Time(time)) => Ok(time),
        _ => Err("not a time, as 12h, 30d".to_owned()),
    }
}

/// Crashes with the same key.
struct Group<'e> {
    entries: Vec<&'e Entry>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Crashes) -> Result<Status, Failure> {
    match &arguments.command {
        None => list(&arguments.list),
        Some(Command::List(arguments)) => list(arguments),
        Some(Command::Show(arguments)) => show(arguments),
        Some(Command::Clear(arguments)) => clear(arguments),
    }
}

fn entries(place: &Place) -> Result<(Folder, Vec<Entry>), Failure> {
    let folder = Folder::at(&place.folder);
    let (entries, unreadable) = folder.list().map_err(|error| {
        let failure = Failure::of(&place.folder, &error);
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                failure.help("nothing was collected here; see `backtrail collect --help` for core_pattern")
            }
            _ => failure,
        }
    })?;
    if unreadable > 0 {
        crate::error::say!("backtrail: note: crashes of {unreadable} other users are shown to root only");
    }
    Ok((folder, entries))
}

fn list(arguments: &List) -> Result<Status, Failure> {
    let (folder, entries) = entries(&arguments.place)?;
    let skipped = folder.skipped();
    let groups = groups(&entries);
    output::to_stdout(|out| {
        if arguments.json {
            let crashes: Vec<&Value> = entries.iter().map(|entry| &entry.summary).collect();
            let skipped: Vec<Value> = skipped.iter().map(skipped_to_json).collect();
            let groups: Vec<Value> = groups.iter().map(group_to_json).collect();
            return writeln!(
                out,
                "{}",
                json!({"crashes": crashes, "groups": groups, "skipped": skipped})
            );
        }
        match arguments.all {
            true => text::list(out, &entries)?,
            false => text::groups(out, &groups)?,
        }
        for (user, count, last) in &skipped {
            writeln!(
                out,
                "not reported, more than the rate of user {user}: {count}, the last at {last}"
            )?;
        }
        Ok(())
    })?;
    Ok(Status::Done)
}

fn skipped_to_json((user, count, last): &(String, u64, String)) -> Value {
    json!({"uid": user.parse::<u32>().ok(), "count": count, "last": last})
}

fn group_to_json(group: &Group<'_>) -> Value {
    let last = group.last();
    json!({
        "key": last["key"],
        "count": group.entries.len(),
        "program": last["program"],
        "signal": last["signal"],
        "function": last["function"],
        "first": group.entries.first().map(|entry| &entry.summary["time"]),
        "last": last["time"],
        "last_id": last["id"],
    })
}

impl Group<'_> {
    /// The summary of the last crash.
    fn last(&self) -> &Value {
        self.entries.last().map_or(&Value::Null, |entry| &entry.summary)
    }
}

/// Crashes with the same key; those without a stack by program and signal. The latest group last.
fn groups(entries: &[Entry]) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<String, (usize, Group<'_>)> = BTreeMap::new();
    for (index, entry) in entries.iter().enumerate() {
        let text = |name: &str| entry.summary[name].as_str().unwrap_or_default();
        let key = match text("key") {
            "" => format!("{} {}", text("program"), text("signal")),
            key => key.to_owned(),
        };
        let (last, group) = groups.entry(key).or_insert((index, Group { entries: Vec::new() }));
        *last = index;
        group.entries.push(entry);
    }
    let mut groups: Vec<(usize, Group<'_>)> = groups.into_values().collect();
    groups.sort_unstable_by_key(|(last, _)| *last);
    groups.into_iter().map(|(_, group)| group).collect()
}

fn show(arguments: &Show) -> Result<Status, Failure> {
    let (_, entries) = entries(&arguments.place)?;
    let entry = find(&entries, &arguments.id)?;
    let details = entry.details().map_err(|error| Failure::of(&entry.path, error))?;
    let core = entry.core();
    output::to_stdout(|out| match arguments.json {
        true => writeln!(out, "{details}"),
        false => text::crash(out, &details, core.as_deref()),
    })?;
    Ok(Status::Done)
}

fn find<'e>(entries: &'e [Entry], id: &str) -> Result<&'e Entry, Failure> {
    let unknown = || Failure::new(format_args!("there is no crash {id:?}")).help("backtrail crashes --all lists them");
    if id == "last" {
        return entries.last().ok_or_else(unknown);
    }
    if let Some(entry) = entries.iter().find(|entry| entry.id() == id) {
        return Ok(entry);
    }
    let mut begin = entries.iter().filter(|entry| entry.id().starts_with(id));
    match (begin.next(), begin.next()) {
        (Some(entry), None) => Ok(entry),
        (Some(one), Some(other)) => Err(Failure::new(format_args!("{id:?} is not one crash")).help(format_args!(
            "{} or {}",
            one.id(),
            other.id()
        ))),
        _ => Err(unknown()),
    }
}

fn clear(arguments: &Clear) -> Result<Status, Failure> {
    let (_, entries) = entries(&arguments.place)?;
    let chosen: Vec<&Entry> = match arguments.ids.is_empty() {
        true => entries.iter().collect(),
        false => {
            let found = arguments.ids.iter().map(|id| find(&entries, id));
            found.collect::<Result<_, _>>()?
        }
    };
    let now = SystemTime::now();
    let is_old = |entry: &&Entry| {
        let time = std::fs::metadata(&entry.path).and_then(|metadata| metadata.modified());
        let age = time.ok().and_then(|time| now.duration_since(time).ok());
        arguments
            .before
            .is_none_or(|before| age.is_some_and(|age| age > before))
    };
    let mut removed = 0_u64;
    for entry in chosen.into_iter().filter(is_old) {
        entry.remove().map_err(|error| Failure::of(&entry.path, error))?;
        removed += 1;
    }
    output::to_stdout(|out| writeln!(out, "removed {}", Counted(removed, "crash")))?;
    Ok(Status::Done)
}
