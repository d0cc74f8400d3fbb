//! All questions to a store, answered by each engine: whether the answers are the same, and what
//! they cost.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::{command, place};

const LIMIT: Duration = Duration::from_secs(1800);
const PAUSE: Duration = Duration::from_millis(50);
/// Clock ticks per second, in which `/proc` counts times.
const TICKS: f64 = 100.0;
const PAGE: f64 = 4096.0;

const QUESTIONS: [&str; 12] = [
    "self",
    "total",
    "load",
    "changed",
    "stacks",
    "rare",
    "threads",
    "modules",
    "complete",
    "recordings",
    "top-crashes",
    "crashes",
];

/// The store, the engines and the questions.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The store.
    store: PathBuf,
    /// Ask only these questions.
    #[arg(value_parser = QUESTIONS)]
    questions: Vec<String>,
    /// Ask these engines; the others must give the first one's answers.
    #[arg(long, value_delimiter = ',', default_value = "duckdb,datafusion,spark")]
    engines: Vec<String>,
    /// Numbers of Spark's workers, each a process of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    workers: Vec<u32>,
    /// Compare from this version.
    #[arg(long, default_value = "1.0")]
    old: String,
    /// Compare to this version.
    #[arg(long, default_value = "1.1")]
    new: String,
    /// Run this command [default: a release build]
    #[arg(long, value_name = "FILE")]
    command: Option<PathBuf>,
}

/// What an answer cost.
struct Answer {
    text: String,
    wall: Duration,
    cpu: f64,
    bytes: f64,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let binary = options.command.clone();
    let binary = binary.unwrap_or_else(|| place::target().join("release/backtrail"));
    let asked: Vec<String> = match options.questions.is_empty() {
        true => QUESTIONS.map(str::to_owned).to_vec(),
        false => options.questions.clone(),
    };
    let mut wrong = 0;
    println!("| question | engine | seconds | of processor time | GB | rows | the first one's answer |");
    println!("|---|---|---|---|---|---|---|");
    for question in &asked {
        let mut first = None;
        for (engine, workers) in engines(options) {
            let answer = ask(&binary, options, question, &engine, workers)?;
            let rows = serde_json::from_str::<Vec<serde_json::Value>>(&answer.text);
            let rows = rows.map_err(|error| format!("{question} by {engine}: {error}"))?.len();
            let is_same = *first.get_or_insert_with(|| answer.text.clone()) == answer.text;
            wrong += u32::from(!is_same);
            let name = workers.map_or_else(|| engine.clone(), |workers| format!("{engine}, {workers}"));
            println!(
                "| {question} | {name} | {:.1} | {:.1} | {:.2} | {rows} | {} |",
                answer.wall.as_secs_f64(),
                answer.cpu,
                answer.bytes / 1e9,
                if is_same { "yes" } else { "**no**" }
            );
        }
    }
    match wrong {
        0 => Ok(()),
        _ => Err(format!("{wrong} answers differ")),
    }
}

/// The engines to be asked, Spark with each number of workers.
fn engines(options: &Options) -> impl Iterator<Item = (String, Option<u32>)> {
    options.engines.iter().flat_map(|engine| {
        let workers = match engine.as_str() {
            "spark" => options.workers.iter().copied().map(Some).collect(),
            _ => vec![None],
        };
        workers.into_iter().map(|workers| (engine.clone(), workers))
    })
}

fn ask(
    binary: &PathBuf,
    options: &Options,
    question: &str,
    engine: &str,
    workers: Option<u32>,
) -> Result<Answer, String> {
    let mut query = Command::new(binary);
    query.args(["store", "query", "--json", "--engine", engine]);
    query.arg(&options.store).arg(question);
    if question == "changed" {
        query.args(["--old", &options.old, "--new", &options.new]);
    }
    if let Some(workers) = workers {
        let master = format!("local-cluster[{workers},1,2048]");
        query.env(
            "PYSPARK_SUBMIT_ARGS",
            format!("--master {master} --driver-memory 4g --conf spark.executor.memory=2g pyspark-shell"),
        );
    }
    let begin = Instant::now();
    let running = command::start(&mut query, LIMIT).map_err(|missing| missing.to_string())?;
    let mut used = Used::default();
    while used.look(running.pid()) {
        sleep(PAUSE);
    }
    let finished = running.finish();
    if finished.code() != 0 {
        return Err(finished.describe());
    }
    Ok(Answer {
        text: finished.stdout,
        wall: begin.elapsed(),
        cpu: used.ticks.values().sum::<f64>() / TICKS,
        bytes: used.most * PAGE,
    })
}

/// What a command and all that it started have used.
#[derive(Default)]
struct Used {
    /// Ticks, by process: one that ends keeps the last that was seen.
    ticks: BTreeMap<u32, f64>,
    /// The most pages that were resident in all of them at once.
    most: f64,
}

impl Used {
    /// Looks at the processes below `root`, and returns whether that is still running.
    fn look(&mut self, root: u32) -> bool {
        let Ok(entries) = fs::read_dir("/proc") else {
            return false;
        };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let all: BTreeMap<u32, Stat> = pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
        let is_below = |mut pid: u32| loop {
            match all.get(&pid) {
                _ if pid == root => return true,
                Some(stat) if stat.parent != 0 => pid = stat.parent,
                _ => return false,
            }
        };
        // A process whose parent has ended is still of this command if it was before.
        let known: Vec<u32> = all
            .keys()
            .copied()
            .filter(|pid| self.ticks.contains_key(pid) || is_below(*pid))
            .collect();
        let mut pages = 0.0;
        for stat in known.iter().filter_map(|pid| Some((pid, all.get(pid)?))) {
            let (pid, Stat { ticks, resident, .. }) = stat;
            self.ticks.insert(*pid, *ticks);
            pages += resident;
        }
        self.most = self.most.max(pages);
        all.get(&root).is_some_and(|stat| !stat.has_ended)
    }
}

/// What `/proc/PID/stat` says.
struct Stat {
    parent: u32,
    has_ended: bool,
    ticks: f64,
    resident: f64,
}

impl Stat {
    fn of(pid: u32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(Stat {
            parent: fields.get(1)?.parse().ok()?,
            has_ended: matches!(*fields.first()?, "Z" | "X"),
            ticks: number(11)? + number(12)?,
            resident: number(21)?,
        })
    }
}
