//! `backtrail store query`: asks a store.

use std::path::{Path, PathBuf};

use backtrail_export::Format;
use backtrail_export::page::{self, Recording};
use backtrail_store::{By, Choice, Engine, QUESTIONS, Question, Store, Value, read_result};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum, ValueHint};

use super::engine::{self, Job};
use super::{add::pair, samples};
use crate::error::{Failure, Status, one_line};
use crate::output;

/// Ask a store, or export any selection of its samples.
///
/// The questions are SQL, printed by --sql, that DuckDB, DataFusion or Spark answers; one of these
/// must be installed (`pip install duckdb`).
#[derive(Args)]
pub(crate) struct Query {
    #[cfg_attr(not(feature = "s3"), doc = "Directory of the store.")]
    #[cfg_attr(feature = "s3", doc = "Directory of the store, or s3://BUCKET/PREFIX.")]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// What to ask.
    #[arg(value_name = "QUESTION")]
    question: Asked,
    /// Print the SQL instead of running it.
    #[arg(long, conflicts_with_all = ["json", "output"])]
    sql: bool,
    /// Run the query in this engine.
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = Runs::Duckdb)]
    engine: Runs,
    /// Count samples from this time on: '2026-11-23T16:00Z', '2026-11-23', or '2h' ago.
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<i64>,
    /// Count samples before this time.
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<i64>,
    /// Count only this service.
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
    /// Count only where host, version, process, thread, kind, date, hour, or a label, is VALUE.
    /// Repeatable.
    #[arg(long = "where", value_name = "KEY=VALUE", value_parser = pair)]
    filters: Vec<(String, String)>,
    /// Count only stacks through FUNCTION; its parameters and namespaces may be left out.
    #[arg(long, value_name = "FUNCTION")]
    function: Option<String>,
    /// Group results, or compare these: see --old and --new.
    #[arg(long, value_name = "COLUMN")]
    by: Option<Grouped>,
    /// For 'changed': compare from this version, or value of --by.
    #[arg(long, value_name = "VALUE", requires = "new")]
    old: Option<String>,
    /// For 'changed': compare to this version, or value of --by.
    #[arg(long, value_name = "VALUE", requires = "old")]
    new: Option<String>,
    /// Print at most N rows, for each group.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// For 'flame': write this format.
    #[arg(long, value_name = "FORMAT")]
    to: Option<Target>,
    /// For 'flame': write this file; '-' is standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

/// A question.
#[derive(Clone, Copy)]
enum Asked {
    Table(&'static Question),
    /// All selected samples.
    Flame,
}

impl ValueEnum for Asked {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: [Asked; QUESTIONS.len() + 1] = {
            let mut all = [Asked::Flame; QUESTIONS.len() + 1];
            let mut index = 0;
            while index < QUESTIONS.len() {
                all[index] = Asked::Table(&QUESTIONS[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Asked::Table(question) => {
                PossibleValue::new(question.name).help(question.meaning().trim_end_matches('.').to_owned())
            }
            Asked::Flame => {
                PossibleValue::new("flame").help("All selected samples as a flame graph: --to html, pprof, folded ...")
            }
        })
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Runs {
    /// DuckDB: the command, or Python's package
    Duckdb,
    /// Python's package datafusion
    Datafusion,
    /// Python's package pyspark
    Spark,
}

impl From<Runs> for Engine {
    fn from(runs: Runs) -> Engine {
        match runs {
            Runs::Duckdb => Engine::DuckDb,
            Runs::Datafusion => Engine::DataFusion,
            Runs::Spark => Engine::Spark,
        }
    }
}

/// A column.
#[derive(Clone, Copy)]
struct Grouped(By);

impl ValueEnum for Grouped {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: [Grouped; By::ALL.len()] = {
            let mut all = [Grouped(By::All); By::ALL.len()];
            let mut index = 0;
            while index < By::ALL.len() {
                all[index] = Grouped(By::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

/// A format of `export`, or the page.
#[derive(Clone, Copy)]
enum Target {
    Page,
    Export(Format),
}

impl ValueEnum for Target {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: [Target; Format::ALL.len() + 1] = {
            let mut all = [Target::Page; Format::ALL.len() + 1];
            let mut index = 0;
            while index < Format::ALL.len() {
                all[index + 1] = Target::Export(Format::ALL[index]);
                index += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Target::Page => PossibleValue::new("html"),
            Target::Export(format) => PossibleValue::new(format.name()),
        })
    }
}

/// A moment, or a time before now.
pub(super) fn time(text: &str) -> Result<i64, String> {
    let wrong = || format!("'{text}' is neither a time nor a duration before now");
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Ok(time.as_microsecond());
    }
    let utc = |text: String| text.parse::<jiff::Timestamp>().ok();
    let whole = [format!("{text}T00:00:00Z"), format!("{text}Z"), format!("{text}:00Z")];
    if let Some(time) = whole.into_iter().find_map(utc) {
        return Ok(time.as_microsecond());
    }
    let seconds = match text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)? {
        (number, "s") => (number, 1),
        (number, "m") => (number, 60),
        (number, "h") => (number, 3600),
        (number, "d") => (number, 86_400),
        _ => return Err(wrong()),
    };
    let ago: i64 = seconds.0.parse().map_err(|_| wrong())?;
    let ago = ago.checked_mul(seconds.1 * 1_000_000).ok_or_else(wrong)?;
    jiff::Timestamp::now()
        .as_microsecond()
        .checked_sub(ago)
        .ok_or_else(wrong)
}

pub(crate) fn run(arguments: &Query) -> Result<Status, Failure> {
    let store = Store::open(&arguments.store).map_err(|error| super::failed(&arguments.store, &error))?;
    let choice = choice(arguments, &store)?;
    let engine = Engine::from(arguments.engine);
    match arguments.question {
        Asked::Flame => flame(arguments, &store, &choice, engine),
        Asked::Table(_) if arguments.to.is_some() || arguments.output.is_some() => {
            Err(Failure::new("--to and --output are for the question 'flame'"))
        }
        Asked::Table(question) => table(arguments, &store, question, &choice, engine),
    }
}

fn choice(arguments: &Query, store: &Store) -> Result<Choice, Failure> {
    let mut choice = Choice {
        since: arguments.since,
        until: arguments.until,
        service: arguments.service.clone(),
        function: arguments.function.clone(),
        by: arguments.by.map(|by| by.0),
        limit: arguments.limit,
        named: store
            .has_names()
            .map_err(|error| super::failed(&arguments.store, &error))?,
        ..Choice::default()
    };
    for (key, value) in &arguments.filters {
        match By::named(key) {
            Some(column) => choice.columns.push((column, value.clone())),
            None => choice.labels.push((key.clone(), value.clone())),
        }
    }
    match (&arguments.old, &arguments.new, arguments.question) {
        (Some(old), Some(new), _) => choice.between = (old.clone(), new.clone()),
        (_, _, Asked::Table(question)) if question.compares() => {
            return Err(Failure::new("'changed' compares two values").help("give --old and --new"));
        }
        _ => {}
    }
    Ok(choice)
}

fn table(
    arguments: &Query,
    store: &Store,
    question: &Question,
    choice: &Choice,
    engine: Engine,
) -> Result<Status, Failure> {
    let sql = question.sql(choice, engine);
    if arguments.sql {
        return print_sql(store, engine, [sql.trim_end()]);
    }
    let folder = tempfile::tempdir().map_err(|error| Failure::of(std::env::temp_dir(), error))?;
    let out = folder.path().join("result.parquet");
    let job = Job { sql, out: out.clone() };
    engine::run(engine, store, &[job])?;
    let (names, rows) = read_result(&out, 1 << 20).map_err(|error| super::failed(&out, &error))?;
    match arguments.json {
        true => json(&names, &rows),
        false => print(&names, &rows),
    }
}

/// Prints queries after the definitions of the tables.
fn print_sql<'a>(store: &Store, engine: Engine, queries: impl IntoIterator<Item = &'a str>) -> Result<Status, Failure> {
    let views = engine::definitions(engine, store)?;
    output::to_stdout(|out| {
        views.iter().try_for_each(|view| writeln!(out, "{view};"))?;
        queries.into_iter().try_for_each(|sql| writeln!(out, "\n{sql};"))
    })?;
    Ok(Status::Done)
}

fn json(names: &[String], rows: &[Vec<Value>]) -> Result<Status, Failure> {
    let value = |value: &Value| match value {
        Value::Null => serde_json::Value::Null,
        Value::Integer(value) => (*value).into(),
        Value::Number(value) => (*value).into(),
        Value::Bool(value) => (*value).into(),
        Value::Text(value) => value.as_str().into(),
    };
    let object = |row: &Vec<Value>| -> serde_json::Map<String, serde_json::Value> {
        names.iter().cloned().zip(row.iter().map(value)).collect()
    };
    let rows: Vec<_> = rows.iter().map(object).collect();
    let rows = serde_json::to_string(&rows).map_err(Failure::new)?;
    output::to_stdout(|out| writeln!(out, "{rows}"))?;
    Ok(Status::Done)
}

/// Prints columns: numbers to the right, texts to the left. A column with the same value
/// everywhere that the user did not ask for is left out.
fn print(names: &[String], rows: &[Vec<Value>]) -> Result<Status, Failure> {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::Integer(value) => value.to_string(),
        Value::Number(value) => format!("{value:.2}"),
        Value::Bool(value) => value.to_string(),
        Value::Text(value) => shortened(&one_line(value)),
    };
    let is_all = |column: usize| {
        names[column] == "grouped_by" && rows.iter().all(|row| row[column] == Value::Text("all".to_owned()))
    };
    let columns: Vec<usize> = (0..names.len()).filter(|&column| !is_all(column)).collect();
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| columns.iter().map(|&column| text(&row[column])).collect())
        .collect();
    let width = |index: usize| {
        let longest = cells.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
        longest.max(names[columns[index]].len())
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let is_number = |column: usize| {
        let mut values = rows.iter().map(|row| &row[column]);
        values.all(|value| matches!(value, Value::Integer(_) | Value::Number(_) | Value::Null))
    };
    let line = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(index, cell)| {
            let padding = " ".repeat(widths[index].saturating_sub(cell.chars().count()));
            match is_number(columns[index]) {
                true => format!("{padding}{cell}"),
                false => format!("{cell}{padding}"),
            }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    output::to_stdout(|out| {
        let header: Vec<String> = columns.iter().map(|&column| names[column].replace('_', " ")).collect();
        writeln!(out, "{}", line(&header))?;
        cells.iter().try_for_each(|row| writeln!(out, "{}", line(row)))
    })?;
    Ok(Status::Done)
}

/// A text in a table: of a long one the beginning and the end.
fn shortened(text: &str) -> String {
    /// Half of the characters that are left of a longer text.
    const HALF: usize = 40;
    let length = text.chars().count();
    if length <= 2 * HALF + 1 {
        return text.to_owned();
    }
    let end = text.chars().skip(length - HALF);
    text.chars().take(HALF).chain(['\u{2026}']).chain(end).collect()
}

/// Exports the selected samples.
fn flame(arguments: &Query, store: &Store, choice: &Choice, engine: Engine) -> Result<Status, Failure> {
    let queries = choice.selection(engine);
    if arguments.sql {
        return print_sql(store, engine, queries.iter().map(|(_, sql)| sql.as_str()));
    }
    let Some(to) = &arguments.output else {
        return Err(Failure::new("'flame' writes a file").help("give --output FILE, and --to pprof, folded ..."));
    };
    let target = arguments.to.unwrap_or_else(|| target_of(to));
    let folder = tempfile::tempdir().map_err(|error| Failure::of(std::env::temp_dir(), error))?;
    let jobs: Vec<Job> = queries
        .into_iter()
        .map(|(table, sql)| Job {
            sql,
            out: folder.path().join(format!("{}.parquet", table.name)),
        })
        .collect();
    engine::run(engine, store, &jobs)?;
    let paths: Vec<&Path> = jobs.iter().map(|job| job.out.as_path()).collect();
    let samples = samples::read(store.folder(), &paths)?;
    let title = store.folder().display().to_string();
    output::to(to, |out| match target {
        Target::Page => {
            let recording = Recording {
                samples: &samples,
                title: &title,
            };
            page::write(recording, None, out)
        }
        Target::Export(format) => backtrail_export::write(&samples, format, &title, out),
    })?;
    Ok(Status::Done)
}

/// The format that a file's name suggests.
fn target_of(path: &Path) -> Target {
    let name = path.to_string_lossy();
    match () {
        () if name.ends_with(".html") => Target::Page,
        () if name.ends_with(".folded") => Target::Export(Format::Folded),
        () => Target::Export(Format::Pprof),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_moments_or_ago() {
        let whole = time("2026-11-23T16:00:00Z").unwrap();
        assert_eq!(time("2026-11-23T16:00").unwrap(), whole);
        assert_eq!(time("2026-11-23").unwrap() + 16 * 3_600_000_000, whole);
        let (now, hour) = (jiff::Timestamp::now().as_microsecond(), 3_600_000_000);
        assert!((now - time("2h").unwrap() - 2 * hour).abs() < hour);
        for wrong in ["", "x", "9999999999999999999d", "12", "\u{e4}"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
