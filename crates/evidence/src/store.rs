//! A store of a fleet that does not exist, of any size, and how long its questions take.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use backtrail_store::tables::{FRAMES, FUNCTIONS, LABELS, MODULES, RECORDINGS, SAMPLES, STACK_FUNCTIONS, STACKS};
use backtrail_store::{Cell, Partition, Rows, Store, Table, TableWriter, Texts};
use backtrail_testkit::text::Random;
use clap::{Args, ValueEnum};

/// How large the fleet is.
#[derive(Args)]
pub(crate) struct Options {
    /// The number of samples.
    samples: u64,
    /// Write the store into this folder, which must be new.
    #[arg(long)]
    to: PathBuf,
    /// Machines.
    #[arg(long, default_value_t = 10_000)]
    hosts: u64,
    /// Services; each machine runs one.
    #[arg(long, default_value_t = 60)]
    services: u64,
    /// Count equal stacks by the minute.
    #[arg(long)]
    minute: bool,
    /// Then ask these engines every question, and compare the answers.
    #[arg(long, value_enum)]
    ask: Vec<Engine>,
    /// The program `backtrail` [default: beside this one].
    #[arg(long)]
    backtrail: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    Duckdb,
    Datafusion,
    Spark,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Duckdb => "duckdb",
            Engine::Datafusion => "datafusion",
            Engine::Spark => "spark",
        }
    }
}

/// 2026-11-23 16:00 UTC, in microseconds.
const BEGIN: i64 = 1_795_449_600_000_000;
/// Microseconds between the samples of a machine: 97 in a second.
const PERIOD: i64 = 10_309;
const STACKS_OF_SERVICE: u64 = 5_000;
const FUNCTIONS_OF_SERVICE: u64 = 16_000;
const THREADS: u64 = 16;
const GROUP: usize = 1 << 20;

pub(crate) fn run(options: &Options) -> Result<(), String> {
    if options.to.exists() {
        return Err(format!("{}: is there already", options.to.display()));
    }
    let store = Store::open_or_create(&options.to).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let mut written = Written::default();
    for service in 0..options.services {
        Service::new(&store, options, service).write(&mut written)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{} samples of {} hosts in {} rows, written in {seconds:.0} s: {:.2} bytes a sample; stacks, frames and \
         functions {:.1} MB",
        written.samples,
        options.hosts,
        written.rows,
        written.sample_bytes as f64 / written.samples.max(1) as f64,
        written.other_bytes as f64 / 1e6
    );
    ask(options)
}

/// What was written.
#[derive(Default)]
struct Written {
    samples: u64,
    rows: u64,
    sample_bytes: u64,
    other_bytes: u64,
}

struct Service<'o> {
    store: &'o Store,
    options: &'o Options,
    number: u64,
    random: Random,
    texts: Texts,
    stacks: Vec<i64>,
}

impl<'o> Service<'o> {
    fn new(store: &'o Store, options: &'o Options, number: u64) -> Service<'o> {
        Service {
            store,
            options,
            number,
            random: Random::new(1 + number),
            texts: Texts::default(),
            stacks: Vec::new(),
        }
    }

    fn partition(&self) -> Partition {
        Partition {
            date: "2026-11-23".to_owned(),
            hour: "16".to_owned(),
            service: format!("service-{:02}", self.number),
        }
    }

    fn create(&self, table: &'static Table) -> Result<(PathBuf, TableWriter<File>), String> {
        let folder = self.store.table(table).join(self.partition().path());
        let path = folder.join("generated.parquet");
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let file = File::create(&path).map_err(|error| error.to_string())?;
        let writer = TableWriter::new(file, table).map_err(|error| error.to_string())?;
        Ok((path, writer))
    }

    fn finish(&self, path: &Path, writer: TableWriter<File>) -> Result<u64, String> {
        let parts = BTreeSet::from(["generated".to_owned()]);
        writer.finish(&parts).map_err(|error| error.to_string())?;
        Ok(fs::metadata(path).map_err(|error| error.to_string())?.len())
    }

    fn write_table(&self, rows: &Rows, written: &mut Written) -> Result<(), String> {
        let (path, mut writer) = self.create(rows.table)?;
        writer.write(rows).map_err(|error| error.to_string())?;
        written.other_bytes += self.finish(&path, writer)?;
        Ok(())
    }

    fn write(mut self, written: &mut Written) -> Result<(), String> {
        self.write_names(written)?;
        let (hosts, services) = (self.options.hosts, self.options.services);
        let of_service: Vec<u64> = (0..hosts).filter(|host| host % services == self.number).collect();
        let each = self.options.samples / hosts.max(1);
        let (path, mut writer) = self.create(&SAMPLES)?;
        let mut rows = Rows::new(&SAMPLES);
        let mut recordings = Rows::new(&RECORDINGS);
        let mut labels = Rows::new(&LABELS);
        for host in of_service {
            let ran = self.ran(each);
            let name = format!("host-{host:05}");
            let version = format!("1.{}", host % 3);
            self.describe(host, (&name, &version), &ran, (&mut recordings, &mut labels));
            for sample in &ran {
                self.push(&mut rows, host, (&name, &version), sample);
                if rows.len() == GROUP {
                    writer.write(&rows).map_err(|error| error.to_string())?;
                    rows = Rows::new(&SAMPLES);
                }
            }
            written.samples += ran.iter().map(|sample| sample.count as u64).sum::<u64>();
            written.rows += ran.len() as u64;
        }
        if !rows.is_empty() {
            writer.write(&rows).map_err(|error| error.to_string())?;
        }
        written.sample_bytes += self.finish(&path, writer)?;
        self.write_table(&recordings, written)?;
        self.write_table(&labels, written)
    }

    /// The samples of a machine, those of a thread behind each other.
    fn ran(&mut self, each: u64) -> Vec<Ran> {
        let mut ran = Vec::with_capacity(each as usize);
        let (mut thread, mut stack) = (0, 0);
        for number in 0..each {
            if self.random.below(8) == 0 {
                thread = self.random.below(THREADS as usize) as u64;
            }
            if self.random.below(3) != 0 {
                stack = self.stack();
            }
            let jitter = self.random.below(100_000) as i64;
            let nanos = number as i64 * PERIOD * 1000 + jitter;
            ran.push(Ran {
                thread,
                time: BEGIN + nanos / 1000,
                nanos: (nanos % 1000) as i32,
                stack,
                count: 1,
            });
        }
        if self.options.minute {
            return by_minute(ran);
        }
        ran.sort_by_key(|sample| (sample.thread, sample.time));
        ran
    }

    /// A stack: few are frequent, as in any service.
    fn stack(&mut self) -> i64 {
        let share = (self.random.number() >> 11) as f64 / (1_u64 << 53) as f64;
        let index = (STACKS_OF_SERVICE as f64).powf(share) - 1.0;
        self.stacks[(index as usize).min(self.stacks.len() - 1)]
    }

    fn push(&mut self, rows: &mut Rows, host: u64, (name, version): (&str, &str), sample: &Ran) {
        let is_exact = !self.options.minute;
        let number = |number: u64| Cell::Int(if is_exact { number as i32 } else { 0 });
        let pid = 1000 + host * 7 % 30_000;
        rows.push([
            Cell::Long(sample.time),
            Cell::Int(sample.nanos),
            Cell::Text(self.texts.of(name)),
            Cell::Text(self.texts.of(version)),
            Cell::Long(recording(host)),
            number(pid),
            number(pid + sample.thread),
            Cell::Text(self.texts.of(&format!("service-{:02}", self.number))),
            Cell::Text(self.texts.of(&format!("worker-{}", sample.thread / 4))),
            Cell::Int(if is_exact { (sample.thread % 8) as i32 } else { -1 }),
            Cell::Text(self.texts.of("cpu")),
            Cell::Long(sample.stack),
            Cell::Long(PERIOD * 1000),
            Cell::Long(sample.count),
        ]);
    }

    fn describe(
        &mut self,
        host: u64,
        (name, version): (&str, &str),
        ran: &[Ran],
        (recordings, labels): (&mut Rows, &mut Rows),
    ) {
        let time = |time: Option<i64>| Cell::Long(time.unwrap_or(BEGIN));
        let mut text = |text: &str| Cell::Text(self.texts.of(text));
        recordings.push([
            Cell::Long(recording(host)),
            text(name),
            text(version),
            time(ran.iter().map(|sample| sample.time).min()),
            time(ran.iter().map(|sample| sample.time).max()),
            text("service"),
            text("6.1"),
            text("x86_64"),
            text("generated"),
            Cell::Long(PERIOD * 1000),
            text(if self.options.minute { "minute" } else { "exact" }),
            Cell::Long(ran.iter().map(|sample| sample.count).sum()),
            Cell::Long(0),
            Cell::Long(0),
        ]);
        labels.push([Cell::Long(recording(host)), text("version"), text(version)]);
    }

    /// Functions, each one frame, and stacks of 22 of them on average.
    fn write_names(&mut self, written: &mut Written) -> Result<(), String> {
        let mut functions = Rows::new(&FUNCTIONS);
        let mut frames = Rows::new(&FRAMES);
        let base = self.number << 32;
        let module = format!("service-{:02}", self.number);
        let ids: Vec<i64> = (0..FUNCTIONS_OF_SERVICE)
            .map(|function| hash(base | function))
            .collect();
        for (function, &id) in ids.iter().enumerate() {
            let name = format!(
                "shop::{module}::part{}::Handler{function}::run(Request const&)",
                function % 40
            );
            let mut text = |text: &str| Cell::Text(self.texts.of(text));
            functions.push([Cell::Long(id), text(&name), text(&module)]);
            frames.push([
                Cell::Long(id),
                Cell::Int(0),
                text("file"),
                Cell::Long(hash(base | 1 << 31)),
                Cell::Long(function as i64 * 64),
                Cell::Long(id),
                text(&name),
                text(&module),
                text(&format!("src/part{}.cc", function % 40)),
                Cell::Long(1 + function as i64 % 900),
                Cell::Bool(false),
                Cell::Long(12),
            ]);
        }
        let mut modules = Rows::new(&MODULES);
        modules.push([
            Cell::Long(hash(base | 1 << 31)),
            Cell::Long(0),
            Cell::Text(self.texts.of(&format!("/opt/{module}"))),
            Cell::Text(self.texts.of(&format!("{:040x}", self.number))),
            Cell::Long(0),
            Cell::Long(FUNCTIONS_OF_SERVICE as i64 * 64),
        ]);
        let mut stacks = Rows::new(&STACKS);
        let mut on_stack = Rows::new(&STACK_FUNCTIONS);
        for stack in 0..STACKS_OF_SERVICE {
            let id = hash(base | 1 << 30 | stack);
            let depth = 4 + self.random.below(37) as u64;
            // Callers are chosen by what is nearer to the root, so that stacks share them.
            let mut seed = 0;
            let mut outer = Vec::new();
            for level in 0..depth {
                let choices = 1 + level.min(6) as usize;
                seed = seed * 7 + self.random.below(choices) as u64;
                outer.push(ids[(hash(seed << 8 | level) as u64 % FUNCTIONS_OF_SERVICE) as usize]);
            }
            outer.reverse();
            stacks.push([
                Cell::Long(id),
                Cell::Longs(&outer),
                Cell::Text(self.texts.of("end_of_stack")),
                Cell::Bool(false),
            ]);
            let mut seen = BTreeSet::new();
            for (place, &function) in outer.iter().enumerate() {
                if seen.insert(function) {
                    on_stack.push([Cell::Long(id), Cell::Long(function), Cell::Bool(place == 0)]);
                }
            }
            self.stacks.push(id);
        }
        for rows in [&modules, &functions, &frames, &stacks, &on_stack] {
            self.write_table(rows, written)?;
        }
        Ok(())
    }
}

/// A sample.
#[derive(Clone, Copy)]
struct Ran {
    thread: u64,
    time: i64,
    nanos: i32,
    stack: i64,
    count: i64,
}

fn by_minute(ran: Vec<Ran>) -> Vec<Ran> {
    let mut counts = std::collections::BTreeMap::new();
    for sample in ran {
        // Four threads have one name.
        let key = (
            sample.thread / 4 * 4,
            sample.stack,
            sample.time / 60_000_000 * 60_000_000,
        );
        *counts.entry(key).or_insert(0) += 1;
    }
    let row = |((thread, stack, time), count)| Ran {
        thread,
        time,
        nanos: 0,
        stack,
        count,
    };
    counts.into_iter().map(row).collect()
}

fn recording(host: u64) -> i64 {
    hash(1 << 60 | host)
}

/// A number that looks like a hash.
fn hash(number: u64) -> i64 {
    Random::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).number() as i64
}

/// The questions, and what they are asked with.
const ASKED: [(&str, &[&str]); 9] = [
    ("self", &["--service", "service-07"]),
    ("self", &[]),
    ("total", &["--service", "service-07"]),
    ("total", &[]),
    ("load", &["--by", "host"]),
    ("changed", &["--service", "service-07", "--old", "1.0", "--new", "1.1"]),
    ("stacks", &["--service", "service-07"]),
    ("rare", &["--service", "service-07"]),
    ("recordings", &["--service", "service-07"]),
];

fn ask(options: &Options) -> Result<(), String> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("backtrail"));
    let backtrail = options
        .backtrail
        .clone()
        .or_else(beside)
        .ok_or("no program backtrail")?;
    let mut differ = 0;
    for (question, filters) in ASKED {
        if options.ask.is_empty() {
            return Ok(());
        }
        let mut answers = Vec::new();
        let mut line = format!("{question} {}:", filters.join(" "));
        for engine in &options.ask {
            let begin = Instant::now();
            let mut query = Command::new(&backtrail);
            query.args(["store", "query", "--json", "--engine", engine.name()]);
            query.arg(&options.to).arg(question).args(filters);
            let output = query.output().map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(format!("{question}: {}", String::from_utf8_lossy(&output.stderr)));
            }
            line.push_str(&format!(" {} {:.2} s", engine.name(), begin.elapsed().as_secs_f64()));
            answers.push(rounded(&output.stdout)?);
        }
        let is_same = answers.windows(2).all(|two| two[0] == two[1]) && answers.iter().all(|rows| !rows.is_empty());
        differ += u64::from(!is_same);
        println!(
            "{line}; {} rows, {}",
            answers[0].len(),
            if is_same { "same" } else { "DIFFERENT" }
        );
    }
    match differ {
        0 => Ok(()),
        _ => Err(format!("{differ} questions have different answers")),
    }
}

/// The rows of an answer. Sums of floating point numbers differ in their last digits.
fn rounded(json: &[u8]) -> Result<Vec<String>, String> {
    let rows: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let text = |value: &serde_json::Value| match value.as_f64() {
        Some(number) if !value.is_i64() => format!("{number:.6}"),
        _ => value.to_string(),
    };
    Ok(rows
        .iter()
        .map(|row| row.values().map(text).collect::<Vec<_>>().join(" "))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_store_is_in_order() {
        let folder = backtrail_testkit::scratch();
        for minute in [false, true] {
            let to = folder.path().join(format!("store-{minute}"));
            let options = Options {
                samples: 4_000,
                to: to.clone(),
                hosts: 4,
                services: 2,
                minute,
                ask: Vec::new(),
                backtrail: None,
            };
            run(&options).unwrap();
            let store = Store::open(&to).unwrap();
            assert_eq!(store.partitions(&SAMPLES).unwrap().len(), 2);
            let checked = store.check().unwrap();
            assert_eq!(checked.samples, 4_000);
            // Ids are numbers that only look like hashes.
            let other = checked
                .findings
                .iter()
                .find(|finding| !finding.what.contains("not their hashes"));
            assert_eq!(other, None);
        }
    }
}
