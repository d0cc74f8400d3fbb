//! The table of programs: each is recorded by us and by others, and the same judge judges all
//! stacks.

mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use backtrail_testkit::{command, perf as perf_tool, place};

use crate::judge::copies::{Copies, Watcher};
use crate::judge::{Judge, Verdict};
use crate::recipes::{RECIPES, Recipe};
use crate::sources::{self, Judged};

/// Samples per second of each recorder.
const FREQUENCY: u32 = 997;
/// No program takes longer.
const LIMIT: Duration = Duration::from_secs(240);
/// The variable that marks the processes of a run.
pub(crate) const MARK: &str = "BACKTRAIL_EVIDENCE";

/// Options of `cargo evidence stacks`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Record only these programs, and do not write the page.
    names: Vec<String>,
    /// List the programs and end.
    #[arg(long)]
    list: bool,
    /// Only compile and fetch what the programs need.
    #[arg(long)]
    prepare: bool,
    /// Write the page from the results of earlier runs.
    #[arg(long)]
    page: bool,
    /// Record with Backtrail only.
    #[arg(long)]
    alone: bool,
    /// Use this recorder [default: built, as it is shipped].
    #[arg(long)]
    backtrail: Option<PathBuf>,
    /// Have Backtrail walk stacks there, record with nothing else, and keep no results for the
    /// page.
    #[arg(long, value_parser = ["kernel", "copy"])]
    walk: Option<String>,
    /// Record each program for this many seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Print this many examples of each kind.
    #[arg(long, default_value_t = 3)]
    examples: usize,
}

/// The recorder's summary.
const SUMMARY: &str = "summary.json";

/// Runs the selected steps. Returns whether no stack was wrong.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let wanted: Vec<&Recipe> = RECIPES
        .iter()
        .filter(|recipe| options.names.is_empty() || options.names.iter().any(|name| name == recipe.name))
        .collect();
    if let Some(unknown) = options
        .names
        .iter()
        .find(|name| RECIPES.iter().all(|r| r.name != **name))
    {
        return Err(format!("no program {unknown}; --list prints all"));
    }
    if options.list {
        wanted.iter().for_each(|recipe| println!("{}", recipe.name));
        return Ok(true);
    }
    if options.page {
        return page::write().map(|()| true);
    }
    let backtrail = match &options.backtrail {
        None if options.prepare => PathBuf::new(),
        binary => crate::chosen_or_built(binary.as_deref())?,
    };
    let mut fine = true;
    for recipe in wanted {
        if let Some(missing) = recipe.needs.iter().find(|needed| !is_there(needed)) {
            println!("SKIPPED: {}: no {missing}", recipe.name);
            continue;
        }
        let bench = Bench::new(recipe, options.seconds);
        if let Err(error) = bench.prepare() {
            println!("SKIPPED: {}: {error}", recipe.name);
            continue;
        }
        if options.prepare {
            continue;
        }
        fine &= bench.measure(&backtrail, options)?;
    }
    if options.names.is_empty() && !options.prepare && !options.alone && options.walk.is_none() {
        page::write()?;
    }
    Ok(fine)
}

pub(crate) fn is_there(needed: &str) -> bool {
    if needed.starts_with('/') {
        return Path::new(needed).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(needed).is_file())
}

/// One program, in its folder.
pub(crate) struct Bench<'r> {
    pub(crate) recipe: &'r Recipe,
    pub(crate) folder: PathBuf,
    seconds: u32,
}

impl Bench<'_> {
    pub(crate) fn new(recipe: &Recipe, seconds: u32) -> Bench<'_> {
        Bench {
            recipe,
            folder: folder(recipe.name),
            seconds,
        }
    }

    pub(crate) fn shell(&self, command: &mut Command, mark: &str) {
        command
            .current_dir(&self.folder)
            .env("P", programs())
            .env("S", self.seconds.to_string())
            .env("PORT", port(self.recipe.name).to_string())
            .env(MARK, mark)
            .stdin(Stdio::null());
    }

    pub(crate) fn prepare(&self) -> Result<(), String> {
        let done = self.folder.join("prepared");
        let wanted = self.prepared();
        if fs::read_to_string(&done).is_ok_and(|known| known == wanted) {
            return Ok(());
        }
        fs::create_dir_all(&self.folder).map_err(|error| error.to_string())?;
        let mut script = Command::new("sh");
        script.args(["-ec", self.recipe.prepare]);
        self.shell(&mut script, "prepare");
        let finished = command::run(&mut script, Duration::from_secs(900)).map_err(|missing| missing.to_string())?;
        if !finished.status.success() {
            return Err(finished.describe());
        }
        fs::write(done, wanted).map_err(|error| error.to_string())
    }

    /// The script, and the sources that it names: if one of them changes, it is run again.
    fn prepared(&self) -> String {
        let mut all = self.recipe.prepare.to_owned();
        for name in self
            .recipe
            .prepare
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("$P/"))
        {
            let name = name.trim_end_matches(['\'', '"', ';']);
            all.push_str(&fs::read_to_string(programs().join(name)).unwrap_or_default());
        }
        // Which changes with the recipes before this one.
        if all.contains("$PORT") {
            all.push_str(&port(self.recipe.name).to_string());
        }
        all
    }

    pub(crate) fn command(&self) -> Vec<String> {
        vec!["sh".to_owned(), "-ec".to_owned(), self.recipe.run.to_owned()]
    }

    fn measure(&self, backtrail: &Path, options: &Options) -> Result<bool, String> {
        let own = self.record_own(backtrail, options.walk.as_deref())?;
        let own_verdict = merged(&own);
        println!("## {}: {}", self.recipe.name, own_verdict.describe(options.examples));
        for problem in &own.problems {
            println!("  {problem}");
        }
        if options.walk.is_some() {
            println!("  walked in the kernel: {}", self.walked_in_kernel()?);
            return Ok(own_verdict.wrong == 0 && own_verdict.false_ends == 0);
        }
        let mut others = Vec::new();
        if !options.alone {
            for form in ["fp", "dwarf"] {
                for (name, other) in self.record_perf(form)? {
                    println!("  {name}: {} samples, {:.2} % complete", other.samples, other.complete);
                    others.push(other);
                }
            }
        }
        page::keep(&self.folder, self.recipe.name, (&own, &own_verdict), &others)?;
        Ok(own_verdict.wrong == 0 && own_verdict.false_ends == 0)
    }

    /// The share of samples that were walked in the kernel, and the size of the tables for that.
    fn walked_in_kernel(&self) -> Result<String, String> {
        let text = fs::read_to_string(self.folder.join(SUMMARY)).map_err(|error| error.to_string())?;
        let summary: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let field = |name: &str| summary[name].as_u64().unwrap_or(0);
        Ok(format!(
            "{:.2} %; {} rows in {} KiB",
            100.0 * field("walked_in_kernel") as f64 / field("samples").max(1) as f64,
            field("kernel_rows"),
            field("kernel_table_bytes") / 1024
        ))
    }

    fn record_own(&self, backtrail: &Path, walk: Option<&str>) -> Result<Judged, String> {
        let trace = self.folder.join("trace");
        let _ = fs::remove_dir_all(&trace);
        let mark = format!("{}-{}", self.recipe.name, std::process::id());
        let mut record = Command::new(backtrail);
        record.args(["record", "-q", "-F", &FREQUENCY.to_string(), "-o"]);
        record.arg(&trace).arg("--json").arg(self.folder.join(SUMMARY));
        record.args(walk.into_iter().flat_map(|place| ["--walk", place]));
        record.arg("--").args(self.command());
        self.shell(&mut record, &mark);
        let watcher = Watcher::start(format!("{MARK}={mark}"));
        let finished = command::run(&mut record, LIMIT).map_err(|missing| missing.to_string())?;
        let copies = watcher.finish();
        if !trace.is_dir() {
            return Err(format!("{}: {}", self.recipe.name, finished.describe()));
        }
        if !finished.stderr.is_empty() {
            println!("  {}: {}", self.recipe.name, finished.stderr.trim_end());
        }
        sources::recording(&trace, &mut Judge::new(copies), self.recipe.processes)
    }

    /// The stacks of perf for all processes, complete according to their names; and those of samply
    /// from the same samples, judged.
    fn record_perf(&self, form: &str) -> Result<Vec<(String, Other)>, String> {
        let data = self.folder.join("perf.data");
        let mut record = perf_tool::record(&data, FREQUENCY, Some(form), &self.command());
        self.shell(&mut record, form);
        command::run(&mut record, LIMIT).map_err(|missing| missing.to_string())?;
        let stacks = perf_tool::stacks(&data).map_err(|missing| missing.to_string())?;
        let other = Other {
            samples: stacks.samples,
            complete: stacks.complete as f64 * 100.0 / stacks.samples.max(1) as f64,
        };
        let mut all = vec![(format!("perf {form}"), other)];
        if form == "dwarf" && is_there("samply") {
            let profile = self.folder.join("samply.json");
            let mut import = Command::new("samply");
            import.args(["import", "--save-only", "-o"]).arg(&profile).arg(&data);
            self.shell(&mut import, "samply");
            command::run(&mut import, LIMIT).map_err(|missing| missing.to_string())?;
            match sources::samply(&profile, &mut Judge::new(Copies::default()), self.recipe.processes) {
                Ok(judged) => all.push((
                    "samply".to_owned(),
                    Other {
                        samples: judged.samples,
                        complete: merged(&judged).completeness(),
                    },
                )),
                Err(error) => println!("  {error}"),
            }
        }
        let _ = fs::remove_file(&data);
        Ok(all)
    }
}

/// The results of another recorder for the same program.
struct Other {
    samples: u64,
    /// In percent.
    complete: f64,
}

fn merged(judged: &Judged) -> Verdict {
    let mut all = Verdict::default();
    for verdict in judged.by_process.values() {
        all.merge(verdict);
    }
    all
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

fn folder(name: &str) -> PathBuf {
    place::target().join("evidence").join(name)
}

/// A port for each program, so that one that is still running does not disturb the next.
fn port(name: &str) -> u16 {
    let index = RECIPES.iter().position(|recipe| recipe.name == name).unwrap_or(0);
    28_300 + index as u16
}
