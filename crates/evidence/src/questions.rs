//! All questions to a store, answered by each engine: whether the answers are the same, and what
//! they cost.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::command;
use backtrail_testkit::stat::Stat;
use clap::builder::PossibleValuesParser;

use crate::command_or_release;

const LIMIT: Duration = Duration::from_secs(1800);
const PAUSE: Duration = Duration::from_millis(50);

/// Questions about the samples of any store.
pub(crate) const ABOUT_SAMPLES: [&str; 9] = [
    "self",
    "total",
    "load",
    "stacks",
    "rare",
    "threads",
    "modules",
    "complete",
    "recordings",
];
/// Those about two versions, and about crashes.
const OTHERS: [&str; 3] = ["changed", "top-crashes", "crashes"];

/// The store, the engines and the questions.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The store.
    store: PathBuf,
    /// Ask only these questions.
    #[arg(value_parser = PossibleValuesParser::new(questions()))]
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
    cpu: Duration,
    bytes: u64,
}

fn questions() -> impl Iterator<Item = &'static str> {
    ABOUT_SAMPLES.into_iter().chain(OTHERS)
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let binary = command_or_release(options.command.as_ref());
    let asked: Vec<String> = match options.questions.is_empty() {
        true => questions().map(str::to_owned).collect(),
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
                answer.cpu.as_secs_f64(),
                answer.bytes as f64 / 1e9,
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
        cpu: used.cpu.values().sum(),
        bytes: used.most,
    })
}

/// What a command and all that it started have used.
#[derive(Default)]
struct Used {
    /// Processor time, by process: one that ends keeps the last that was seen.
    cpu: BTreeMap<u32, Duration>,
    /// The most bytes that were resident in all of them at once.
    most: u64,
}

impl Used {
    /// Looks at the processes below `root`, and returns whether that is still running.
    fn look(&mut self, root: u32) -> bool {
        let Ok(entries) = fs::read_dir("/proc") else {
            return false;
        };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let stat = |pid: u32| Some((pid, Stat::read(format!("/proc/{pid}/stat").as_ref())?));
        let all: BTreeMap<u32, Stat> = pids.filter_map(stat).collect();
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
            .filter(|pid| self.cpu.contains_key(pid) || is_below(*pid))
            .collect();
        let mut bytes = 0;
        for (pid, stat) in known.iter().filter_map(|pid| Some((pid, all.get(pid)?))) {
            self.cpu.insert(*pid, stat.cpu);
            bytes += stat.resident;
        }
        self.most = self.most.max(bytes);
        all.get(&root).is_some_and(|stat| !stat.has_ended())
    }
}
