//! Runs SQL in an engine that is installed. None is linked in.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use backtrail_store::{Engine, Store};
use serde_json::json;

use crate::error::Failure;

/// Reads statements and queries as JSON, and writes each query's result as Parquet.
const DUCKDB: &str = "\
import sys, json, duckdb
job = json.load(sys.stdin)
c = duckdb.connect()
for s in job['views']: c.execute(s)
for q in job['queries']:
    c.execute('COPY (' + q['sql'] + ') TO ' + q['literal'] + ' (FORMAT parquet, COMPRESSION uncompressed)')
";

const DATAFUSION: &str = "\
import sys, json, datafusion, pyarrow.parquet
job = json.load(sys.stdin)
c = datafusion.SessionContext()
for s in job['views']: c.sql(s).collect()
for q in job['queries']:
    pyarrow.parquet.write_table(c.sql(q['sql']).to_arrow_table(), q['out'], compression='none', store_schema=False)
";

const SPARK: &str = "\
import sys, json, glob, shutil
from pyspark.sql import SparkSession
job = json.load(sys.stdin)
c = SparkSession.builder.appName('backtrail').getOrCreate()
if c.sparkContext.master.startswith('local'): c.conf.set('spark.sql.shuffle.partitions', '8')
for s in job['views']: c.sql(s).collect()
for q in job['queries']:
    d = q['out'] + '.parts'
    c.sql(q['sql']).coalesce(1).write.option('compression', 'uncompressed').parquet(d)
    shutil.move(glob.glob(d + '/*.parquet')[0], q['out'])
c.stop()
";

/// A query, and the file for its result.
pub(super) struct Job {
    pub(super) sql: String,
    pub(super) out: PathBuf,
}

/// The statements that name the store's tables, wherever they are run.
pub(super) fn definitions(engine: Engine, store: &Store) -> Result<Vec<String>, Failure> {
    let place = store.folder();
    if store.is_remote() {
        if engine != Engine::DuckDb {
            return Err(Failure::of(place, "only DuckDB is run on a store in a bucket").help("leave out --engine"));
        }
    } else {
        let place = place.canonicalize().map_err(|error| Failure::of(place, error))?;
        if place.to_string_lossy().contains(['*', '?', '[', '{', '\\']) {
            return Err(Failure::of(&place, "engines take this path for a pattern").help("rename the directory"));
        }
    }
    store.views(engine).map_err(|error| super::failed(place, &error))
}

/// DuckDB reads buckets by an extension, which it fetches itself. One that is there may be from
/// anywhere, and must not be installed again.
fn check_httpfs() -> Result<(), Failure> {
    let load = "LOAD httpfs".to_owned();
    if duckdb(std::slice::from_ref(&load), &[]).is_ok() {
        return Ok(());
    }
    duckdb(&["INSTALL httpfs".to_owned(), load], &[]).map_err(|failure| match failure {
        Failure::Message { excerpt, .. } if !excerpt.is_empty() => {
            Failure::new("DuckDB cannot load its extension httpfs, by which it reads s3://")
                .show(excerpt)
                .help("run `INSTALL httpfs` in DuckDB where it can reach its server for extensions")
        }
        other => other,
    })
}

/// Answers the queries.
pub(super) fn run(engine: Engine, store: &Store, jobs: &[Job]) -> Result<(), Failure> {
    let views = definitions(engine, store)?;
    match engine {
        Engine::DuckDb => {
            if store.is_remote() {
                check_httpfs()?;
            }
            duckdb(&views, jobs)
        }
        Engine::DataFusion => python("datafusion", DATAFUSION, &input(&views, jobs)),
        Engine::Spark => python("pyspark", SPARK, &input(&views, jobs)),
    }
}

fn duckdb(views: &[String], jobs: &[Job]) -> Result<(), Failure> {
    if !program("duckdb") {
        return python("duckdb", DUCKDB, &input(views, jobs));
    }
    let copies = jobs.iter().map(|job| {
        let out = literal(&job.out);
        format!("COPY ({}) TO {out} (FORMAT parquet, COMPRESSION uncompressed)", job.sql)
    });
    let statements: Vec<String> = views.iter().cloned().chain(copies).collect();
    let mut command = Command::new("duckdb");
    command.args(["-bail", "-batch"]);
    pipe(command, &(statements.join(";\n") + ";\n"))
}

/// What the scripts read.
fn input(views: &[String], jobs: &[Job]) -> String {
    let queries = jobs
        .iter()
        .map(|job| json!({"sql": job.sql, "out": job.out.display().to_string(), "literal": literal(&job.out)}));
    json!({"views": views, "queries": queries.collect::<Vec<_>>()}).to_string()
}

fn literal(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "''"))
}

/// Whether this program is installed.
fn program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Runs a script that needs the package.
fn python(package: &str, script: &str, input: &str) -> Result<(), Failure> {
    let missing = || {
        let (command, install) = match package {
            "duckdb" => ("neither the command duckdb nor ", "install DuckDB's command, or "),
            _ => ("no ", ""),
        };
        Failure::new(format!(
            "the engine is not installed: there is {command}Python's package {package}"
        ))
        .help(format!(
            "{install}run `pip install {package}` (in a virtual environment where the system's packages are \
             protected), or print the query with --sql"
        ))
    };
    let mut probe = Command::new("python3");
    probe.args([
        "-c",
        &format!("import importlib.util as u, sys; sys.exit(not u.find_spec('{package}'))"),
    ]);
    match probe.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        _ => return Err(missing()),
    }
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    pipe(command, input)
}

/// A line of an engine's error without the credentials that it has from the environment.
fn without_secrets(line: &str) -> String {
    let mut line = line.to_owned();
    for name in ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"] {
        let secret = std::env::var(name).unwrap_or_default();
        // A shorter one is not a key, and words would be replaced.
        if secret.len() >= 8 {
            line = line.replace(&secret, "\u{2026}");
        }
    }
    line
}

/// Runs a command with this input; its last lines explain a failure.
fn pipe(mut command: Command, input: &str) -> Result<(), Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("{name}: {error}"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let written = child.stdin.take().map(|mut stdin| {
        // All of it at once: an engine that fails early does not read to the end.
        stdin.write_all(input.as_bytes())
    });
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let first = lines.len().saturating_sub(8);
        let excerpt = lines[first..].iter().map(|line| without_secrets(line)).collect();
        return Err(failed(&format_args!("the query failed, {}", output.status)).show(excerpt));
    }
    match written {
        Some(Err(error)) => Err(failed(&error)),
        _ => Ok(()),
    }
}
