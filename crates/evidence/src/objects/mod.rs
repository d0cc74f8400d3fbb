//! Stores in object storage, against a server that implements S3 (the Python package moto): many
//! writers at once, some of which are killed, and a server that fails. DuckDB's answers must be
//! those of a store in a folder.

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::command::{self, Finished, Signal};
use backtrail_testkit::recorder::Backtrail;
use backtrail_testkit::text::Random;
use backtrail_testkit::{TempDir, endings, place, readers, scratch};

use crate::questions::ABOUT_SAMPLES;
use server::Server;

const LIMIT: Duration = Duration::from_secs(300);

/// The release of DuckDB for which PyPI has the extension httpfs.
const PACKAGES: [&str; 3] = ["duckdb==1.5.5", "duckdb-extension-httpfs==1.5.5", "moto[server]==5.2.5"];

/// How often each is tried.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this command, which must be built with the feature s3 [default: a release build]
    #[arg(long, value_name = "FILE")]
    command: Option<PathBuf>,
    /// Start this many writers at once.
    #[arg(long, default_value_t = 20)]
    writers: usize,
    /// Repeat that so often, each time into an empty prefix.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Start the sequence of random times with this number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What is recorded, each as a service of its own.
const PROGRAMS: [(&str, &str); 6] = [
    ("loop", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"),
    ("awk", "awk 'BEGIN { while (i < 6000000) i++ }'"),
    ("sums", "python3 -c 'sum(i * i for i in range(3000000))'"),
    (
        "text",
        "python3 -c 'import json; [json.dumps(list(range(999))) for _ in range(2000)]'",
    ),
    ("gzip", "head -c 20000000 /dev/urandom | gzip -9 >/dev/null"),
    ("find", "for i in 1 2 3; do find /usr -xdev >/dev/null 2>&1; done"),
];

/// Files of a store by their names in it.
type Contents = BTreeMap<PathBuf, Vec<u8>>;

pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let binary = match &options.command {
        Some(binary) => binary.canonicalize().map_err(|error| error.to_string())?,
        None => built()?,
    };
    let packages = readers::python_in("objects", &PACKAGES).map_err(|missing| missing.to_string())?;
    let bench = Bench::new(binary, &packages)?;
    let mut wrong = Vec::new();
    for (what, check) in [
        (
            "writers at once",
            Bench::writers as fn(&Bench, &Options) -> Result<(), String>,
        ),
        ("a server that fails", Bench::faults),
        ("refusals", Bench::refusals),
        ("answers", Bench::answers),
        ("retention", Bench::retention),
    ] {
        let started = Instant::now();
        let done = check(&bench, options);
        println!(
            "{what}: {}, {:.1} s",
            done.as_ref().map_or_else(String::as_str, |()| "right"),
            started.elapsed().as_secs_f64()
        );
        wrong.extend(done.err());
    }
    Ok(wrong.is_empty())
}

/// The command with the feature.
fn built() -> Result<PathBuf, String> {
    let mut build = std::env::var_os("CARGO").map_or_else(|| Command::new("cargo"), Command::new);
    build.args(["build", "--release", "--package", "backtrail", "--features", "s3"]);
    match build.current_dir(place::workspace()).status() {
        Ok(status) if status.success() => Ok(place::target().join("release/backtrail")),
        status => Err(format!("cargo build: {status:?}")),
    }
}

struct Bench {
    backtrail: Backtrail,
    packages: PathBuf,
    folder: TempDir,
    server: Server,
    traces: Vec<PathBuf>,
    /// The same recordings in a folder.
    wanted: Contents,
}

impl Bench {
    fn new(binary: PathBuf, packages: &Path) -> Result<Bench, String> {
        let mut bench = Bench {
            backtrail: Backtrail::new(binary),
            packages: packages.to_owned(),
            folder: scratch(),
            server: Server::start(packages)?,
            traces: Vec::new(),
            wanted: Contents::new(),
        };
        bench.install_extension()?;
        for (name, script) in PROGRAMS {
            let trace = bench.path(name);
            let record = &mut bench.backtrail.record(&trace, &["-F", "997"], &["sh", "-c", script]);
            succeeded(&command::run(record, LIMIT).map_err(|missing| missing.to_string())?)?;
            bench.traces.push(trace);
        }
        bench.record_unnamed()?;
        let store = bench.path("store");
        succeeded(&bench.add(&bench.traces, &store)?)?;
        bench.wanted = contents(&store)?;
        println!(
            "{} recordings, {} files of a store, {} KiB",
            bench.traces.len(),
            bench.wanted.len(),
            bench.wanted.values().map(Vec::len).sum::<usize>() / 1024
        );
        Ok(bench)
    }

    /// Records a program whose file is gone when recordings are added.
    fn record_unnamed(&mut self) -> Result<(), String> {
        let built = endings::worker().map_err(|missing| missing.to_string())?;
        let (program, trace) = (self.path("spin"), self.path("unnamed"));
        fs::copy(&built, &program).map_err(|error| error.to_string())?;
        let spin = [program.as_os_str(), "1".as_ref()];
        let record = &mut self.backtrail.record(&trace, &["-F", "997", "--no-symbols"], &spin);
        succeeded(&command::run(record, LIMIT).map_err(|missing| missing.to_string())?)?;
        fs::create_dir(self.path("uploads")).map_err(|error| error.to_string())?;
        fs::rename(&program, self.path("uploads/spin")).map_err(|error| error.to_string())?;
        self.traces.push(trace);
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// DuckDB looks for extensions in its user's folder.
    fn install_extension(&self) -> Result<(), String> {
        let from = self.packages.join("duckdb_extension_httpfs/extensions");
        let failed = |error: std::io::Error| format!("{}: {error}", from.display());
        for version in fs::read_dir(&from).map_err(failed)?.flatten() {
            let to = self
                .path(".duckdb/extensions")
                .join(version.file_name())
                .join("linux_amd64");
            fs::create_dir_all(&to).map_err(failed)?;
            let name = "httpfs.duckdb_extension";
            fs::copy(version.path().join(name), to.join(name)).map_err(failed)?;
        }
        Ok(())
    }

    /// `backtrail store …` with the credentials of a writer.
    fn store(&self, arguments: &[&str]) -> Command {
        let mut command = self.backtrail.command(["store"]);
        command.args(arguments).current_dir(self.folder.path());
        command
            .env("HOME", self.folder.path())
            .env("PYTHONPATH", &self.packages);
        self.server.surroundings(&mut command);
        command
    }

    fn adding(&self, traces: &[PathBuf], store: &Path) -> Command {
        let mut command = self.store(&["add"]);
        command.args(traces).arg("--to").arg(store).args(["--service", "test"]);
        command
    }

    fn add(&self, traces: &[PathBuf], store: &Path) -> Result<Finished, String> {
        command::run(&mut self.adding(traces, store), LIMIT).map_err(|missing| missing.to_string())
    }

    fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        let finished = command::run(&mut self.store(arguments), LIMIT).map_err(|missing| missing.to_string())?;
        succeeded(&finished).map(|()| finished.stdout)
    }

    /// The objects must be the files of a store in a folder: none lost, none twice, none in part.
    fn compare(&self, prefix: &str) -> Result<(), String> {
        self.compare_with(prefix, &self.wanted)
    }

    fn compare_with(&self, prefix: &str, wanted: &Contents) -> Result<(), String> {
        let copy = scratch();
        self.server.copy(prefix, copy.path())?;
        let found = contents(copy.path())?;
        let differ = |(name, bytes): &(&PathBuf, &Vec<u8>)| wanted.get(*name) != Some(*bytes);
        let missing = wanted.keys().filter(|name| !found.contains_key(*name)).count();
        match found.iter().filter(differ).count() + missing {
            0 => Ok(()),
            _ => Err(format!(
                "{prefix}: of {} objects, {missing} are missing, {} differ from files",
                wanted.len(),
                found.iter().filter(differ).count()
            )),
        }
    }

    /// Many first writers, each of which adds all recordings in an order of its own; half of them
    /// are killed.
    fn writers(&self, options: &Options) -> Result<(), String> {
        let mut random = Random::new(options.seed);
        let (mut killed, mut done) = (0, 0);
        self.server.control(r#"{"clear": true}"#)?;
        for round in 0..options.rounds {
            let prefix = format!("writers{round}");
            let store = PathBuf::from(format!("s3://recordings/{prefix}"));
            let mut running = Vec::new();
            for number in 0..options.writers {
                let mut traces = self.traces.clone();
                traces.rotate_left(random.below(self.traces.len()));
                let after = Duration::from_millis(random.below(3000) as u64);
                let deadline = (number % 2 == 0).then(|| Instant::now() + after);
                let started = command::start(&mut self.adding(&traces, &store), LIMIT);
                running.push((started.map_err(|missing| missing.to_string())?, deadline));
            }
            let mut victims: Vec<_> = running.iter().filter_map(|(run, at)| Some(((*at)?, run))).collect();
            victims.sort_by_key(|(at, _)| *at);
            for (at, run) in victims {
                sleep(at.saturating_duration_since(Instant::now()));
                run.signal(Signal::KILL);
            }
            for (run, deadline) in running {
                let finished = run.finish();
                match finished.code() {
                    137 if deadline.is_some() => killed += 1,
                    0 => done += 1,
                    _ => return Err(finished.describe()),
                }
            }
            self.compare(&prefix)?;
            let again = self.add(&self.traces, &store)?;
            succeeded(&again)?;
            if again.stderr.matches("in the store already").count() != self.traces.len() {
                return Err(again.describe());
            }
            self.compare(&prefix)?;
            self.killed_alone(round, &mut random)?;
        }
        let state = self.server.control("{}")?;
        let counts = &state["counts"];
        println!(
            "{killed} of {} writers killed, {done} done; {} requests, of them {} puts, which created {} objects",
            killed + done,
            ["GET", "PUT", "HEAD"]
                .iter()
                .map(|verb| counts[verb].as_u64().unwrap_or(0))
                .sum::<u64>(),
            counts["PUT"],
            state["puts"]
        );
        match state["twice"].as_array().is_some_and(Vec::is_empty) && counts["unconditional"].is_null() {
            true => Ok(()),
            false => Err(format!("objects were put twice, or without a condition: {state}")),
        }
    }

    /// A single writer that is killed leaves whole objects; the next one completes them.
    fn killed_alone(&self, round: usize, random: &mut Random) -> Result<(), String> {
        let prefix = format!("alone{round}");
        let store = PathBuf::from(format!("s3://recordings/{prefix}"));
        for _ in 0..5 {
            let started = command::start(&mut self.adding(&self.traces, &store), LIMIT);
            let run = started.map_err(|missing| missing.to_string())?;
            sleep(Duration::from_millis(random.below(600) as u64));
            run.signal(Signal::KILL);
            run.finish();
            let copy = scratch();
            self.server.copy(&prefix, copy.path())?;
            let found = contents(copy.path())?;
            let part = found
                .iter()
                .find(|(name, bytes)| self.wanted.get(*name) != Some(*bytes));
            if let Some((name, _)) = part {
                return Err(format!("{prefix}/{} is not whole", name.display()));
            }
        }
        succeeded(&self.add(&self.traces, &store)?)?;
        self.compare(&prefix)
    }

    fn faults(&self, _: &Options) -> Result<(), String> {
        for fault in ["500", "503", "silence", "closed", "unanswered"] {
            let prefix = format!("fault-{fault}");
            let store = PathBuf::from(format!("s3://recordings/{prefix}"));
            self.server.fault(fault, 5)?;
            let mut adding = self.adding(&self.traces, &store);
            adding.env("AWS_TIMEOUT", "2s");
            let finished = command::run(&mut adding, LIMIT).map_err(|missing| missing.to_string())?;
            println!(
                "{fault} for 5 s: status {}, {:.1} s",
                finished.code(),
                finished.wall.as_secs_f64()
            );
            if finished.code() != 0 {
                // Nothing is promised but that an error is reported, and that another run ends it.
                self.report(&finished)?;
                sleep(Duration::from_secs(5));
                succeeded(&self.add(&self.traces, &store)?)?;
            }
            self.compare(&prefix)?;
        }
        // Longer than anybody repeats requests.
        let store = PathBuf::from("s3://recordings/fault-500");
        self.server.fault("503", 600)?;
        let finished = self.add(&self.traces[..1], &store)?;
        println!(
            "503 without an end: reported after {:.1} s",
            finished.wall.as_secs_f64()
        );
        self.server.fault("none", 0)?;
        self.report(&finished)?;
        self.compare("fault-500")
    }

    /// A failure must be a line without secrets, and one of help at most.
    fn report(&self, finished: &Finished) -> Result<(), String> {
        println!("  {}", finished.stderr.lines().next().unwrap_or_default());
        let secret = &self.server.secret;
        let lines = finished
            .stderr
            .lines()
            .filter(|line| !line.starts_with("help: "))
            .count();
        let is_short = lines <= self.traces.len() && !finished.stderr.contains("panicked");
        match finished.code() == 2 && is_short && !finished.stderr.contains(secret.as_str()) {
            true => Ok(()),
            false => Err(finished.describe()),
        }
    }

    fn refusals(&self, _: &Options) -> Result<(), String> {
        let refused = |store: &str, variables: &[(&str, &str)], what: &str| -> Result<(), String> {
            let mut adding = self.adding(&self.traces[..1], store.as_ref());
            adding.envs(variables.iter().copied());
            let finished = command::run(&mut adding, LIMIT).map_err(|missing| missing.to_string())?;
            self.report(&finished)?;
            match finished.stderr.contains(what) {
                true => Ok(()),
                false => Err(format!("no '{what}': {}", finished.describe())),
            }
        };
        let secret = ("AWS_SECRET_ACCESS_KEY", "not-this-one-either");
        refused("s3://recordings/writers0", &[secret], "SignatureDoesNotMatch")?;
        let key = ("AWS_ACCESS_KEY_ID", "AKIANOBODYKNOWSTHIS0");
        refused("s3://recordings/writers0", &[key], "InvalidAccessKeyId")?;
        refused("s3://nobody-made-this/a", &[], "the bucket does not exist")?;
        refused("s3://key:word@recordings/a", &[], "not s3://BUCKET/PREFIX")?;
        refused("s3://recordings/a", &[("AWS_ALLOW_HTTP", "false")], "AWS_ALLOW_HTTP")?;
        refused(
            "s3://recordings/a",
            &[("AWS_ENDPOINT_URL", "http://127.0.0.1:1")],
            "no connection",
        )?;
        self.server.fault("replaces", 60)?;
        refused("s3://recordings/replaces", &[], "ignores If-None-Match")?;
        self.server.fault("none", 0)?;
        match self.path("s3:").exists() {
            true => Err("there is a folder named s3:".to_owned()),
            false => Ok(()),
        }
    }

    /// DuckDB reads the bucket by its extension httpfs.
    fn answers(&self, _: &Options) -> Result<(), String> {
        let stores = ["store", "s3://recordings/writers0"];
        let mut compared = 0;
        for named in [false, true] {
            for question in ABOUT_SAMPLES {
                let [folder, bucket] =
                    stores.map(|store| self.ask(&["query", store, question, "--json", "--limit", "1000"]));
                if folder? != bucket? {
                    return Err(format!("{question}: another answer"));
                }
                compared += 1;
            }
            let [folder, bucket] =
                stores.map(|store| self.ask(&["query", store, "flame", "--to", "folded", "-o", "-"]));
            if folder? != bucket? {
                return Err("flame: another answer".to_owned());
            }
            let [folder, bucket] = stores.map(|store| self.ask(&["check", store]));
            let bucket = bucket?;
            if folder? != bucket || !bucket.contains("; 0 findings") {
                return Err(format!("check: {bucket}"));
            }
            print!("{bucket}");
            if !named {
                let [folder, bucket] =
                    stores.map(|store| self.ask(&["symbols", store, "--no-debuginfod", "--from", "uploads"]));
                let bucket = bucket?;
                if folder? != bucket {
                    return Err(format!("symbols: {bucket}"));
                }
                println!("{}", bucket.lines().last().unwrap_or_default());
                self.compare_with("writers0", &contents(&self.path("store"))?)?;
            }
        }
        println!("{compared} answers and 2 exports are those of the folder");
        Ok(())
    }

    fn retention(&self, _: &Options) -> Result<(), String> {
        let store = "s3://recordings/writers1";
        let merged =
            command::run(&mut self.store(&["compact", store]), LIMIT).map_err(|missing| missing.to_string())?;
        self.report(&merged)?;
        self.compare("writers1")?;
        self.ask(&["compact", store, "--remove-before", "2000-01-01"])?;
        self.compare("writers1")?;
        self.ask(&["compact", store, "--remove-before", "2999-01-01"])?;
        let checked = self.ask(&["check", store])?;
        match checked.starts_with("0 samples in 0 partitions, 0 crashes, 0 files") {
            true => self.compare("alone1"),
            false => Err(checked),
        }
    }
}

fn succeeded(finished: &Finished) -> Result<(), String> {
    match finished.code() {
        0 => Ok(()),
        _ => Err(finished.describe()),
    }
}

/// The files below a folder.
fn contents(folder: &Path) -> Result<Contents, String> {
    let mut found = Contents::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        let entries = fs::read_dir(&inner).map_err(|error| format!("{}: {error}", inner.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                    let name = path.strip_prefix(folder).unwrap_or(&path).to_owned();
                    found.insert(name, bytes);
                }
            }
        }
    }
    Ok(found)
}
