//! Names that a store gets long after recordings were added.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{available, readers};
use serde_json::Value;

use crate::common::collector::Collector;
use crate::common::{LIMIT, Setup, setup, text};

const SOURCE: &[u8] = b"#include <time.h>
volatile unsigned n;
static inline __attribute__((always_inline)) void inlined(void) { for (int i = 0; i < 1000000; i++) n += i; }
__attribute__((noinline)) void spin(void) { inlined(); n++; }
int main(void) { for (long end = clock() + CLOCKS_PER_SEC / 2; clock() < end;) spin(); }
";

/// Runs a tool; `None` if it is not installed.
fn tool(setup: &Setup, line: &str) -> Option<()> {
    let mut words = line.split(' ');
    let mut run = Command::new(words.next()?);
    run.args(words).current_dir(setup.folder.path());
    let finished = available(command::run(&mut run, LIMIT))?;
    assert!(finished.status.success(), "{line}: {}", finished.describe());
    Some(())
}

fn backtrail(setup: &Setup, line: &str) -> Finished {
    let mut run = setup.backtrail.command(line.split(' '));
    run.current_dir(setup.folder.path()).env_remove("DEBUGINFOD_URLS");
    run.env("DEBUGINFOD_CACHE_PATH", setup.path("cache"));
    let finished = command::run(&mut run, LIMIT).unwrap_or_else(|missing| panic!("{missing}"));
    assert!(finished.status.success(), "{line}: {}", finished.describe());
    finished
}

/// A stripped program, `uploads/some/file` with its names, and a store that has neither.
fn prepare(setup: &Setup) -> Option<()> {
    setup.file("spin.c", SOURCE);
    fs::create_dir_all(setup.path("uploads/some")).expect("the test's directory can be written");
    tool(setup, "gcc -g -O1 -Wl,--build-id -o spin spin.c")?;
    tool(setup, "objcopy --only-keep-debug spin uploads/some/file")?;
    tool(setup, "cp spin whole")?;
    tool(setup, "strip spin")?;
    backtrail(setup, "record -q --no-symbols -o trace -- ./spin");
    tool(setup, "mv spin stripped")?;
    let added = backtrail(setup, "store add trace --to fleet");
    assert!(
        added.stderr.contains("not found, so shown as module+offset"),
        "{}",
        added.stderr
    );
    Some(())
}

/// What was found of the recorded program: addresses, and how many have names and lines.
fn symbols(setup: &Setup, options: &str) -> (Value, [u64; 3]) {
    let finished = backtrail(setup, &format!("store symbols fleet --json{options}"));
    let document: Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
    let path = setup.path("spin").canonicalize().unwrap_or_else(|_| setup.path("spin"));
    let mut modules = document["modules"].as_array().expect("a list").iter();
    let module = modules.find(|module| module["path"] == text(&path));
    let counts = ["addresses", "named", "lines"].map(|key| match module {
        Some(module) => module[key].as_u64().expect("a number"),
        None => 0,
    });
    (document, counts)
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.clone(), fs::read(&path).expect("a file"))),
        }
    }
    found.sort();
    found
}

/// The functions that most samples are in, and through.
fn top(setup: &Setup, packages: &Path, question: &str) -> Vec<String> {
    let mut query = setup.backtrail.command(["store", "query", "fleet", question, "--json"]);
    let finished = command::run(
        query.current_dir(setup.folder.path()).env("PYTHONPATH", packages),
        LIMIT,
    );
    let finished = finished.expect("the binary is there");
    assert!(finished.status.success(), "{}", finished.describe());
    let rows: Vec<Value> = serde_json::from_str(&finished.stdout).expect("it is JSON");
    let name = |row: &Value| row["function"].as_str().expect("a text").to_owned();
    rows.iter().map(name).collect()
}

#[test]
fn a_recording_without_symbols_gets_names_from_uploads() {
    let Some(setup) = setup() else { return };
    let Some(()) = prepare(&setup) else { return };
    let untouched = files(&setup.path("fleet"));
    // Another program at its place, and a folder without it: nothing gets a name from them.
    setup.file("other.c", &[SOURCE, b"int other;\n"].concat());
    let Some(()) = tool(&setup, "gcc -g -O2 -Wl,--build-id -o spin other.c") else {
        return;
    };
    fs::create_dir(setup.path("others")).expect("the test's directory can be written");
    fs::copy(setup.path("spin"), setup.path("others/spin")).expect("it was built");
    let (document, [addresses, named, lines]) = symbols(&setup, " --from others");
    assert!(addresses > 0 && named == 0 && lines == 0, "{document}");
    assert!(
        document["modules"].to_string().contains("another build ID"),
        "{document}"
    );
    assert_eq!(files(&setup.path("fleet")), untouched);

    let said = backtrail(&setup, "store symbols fleet --from uploads").stdout;
    assert!(
        said.contains(&format!(": {addresses} of {addresses} addresses have names")),
        "{said}"
    );
    assert!(said.contains("added names to "), "{said}");
    let named = files(&setup.path("fleet"));
    assert!(named.len() > untouched.len());
    assert!(untouched.iter().all(|file| named.contains(file)), "a file was changed");
    let again = backtrail(&setup, "store symbols fleet --from uploads").stdout;
    assert!(again.contains("nothing new; "), "{again}");
    assert_eq!(files(&setup.path("fleet")), named);
    backtrail(&setup, "store check fleet");

    if let Some(packages) = available(readers::python("duckdb")) {
        let check = || {
            assert_eq!(top(&setup, &packages, "self")[0], "inlined");
            let total = top(&setup, &packages, "total");
            for function in ["main", "spin", "inlined"] {
                assert!(total.iter().any(|name| name == function), "{function}: {total:?}");
            }
            assert!(!total.iter().any(|name| name.starts_with("spin+0x")), "{total:?}");
        };
        check();
        backtrail(&setup, "store compact -q fleet");
        backtrail(&setup, "store check fleet");
        check();
    }
}

#[test]
fn names_come_from_a_server_and_only_for_their_build_id() {
    let Some(setup) = setup() else { return };
    let Some(()) = prepare(&setup) else { return };
    let Some(()) = tool(&setup, "debuginfod-find --version") else {
        return;
    };
    // It answers every request with the same file.
    let file = fs::read(setup.path("uploads/some/file")).expect("it was built");
    let server = Collector::start("127.0.0.1:0", "200 OK", "application/octet-stream", &file);
    let (_, [addresses, named, lines]) = symbols(&setup, " --no-debuginfod");
    assert!(addresses > 0 && named == 0 && lines == 0);
    let options = format!(" --debuginfod http://{}", server.address);
    let (document, [addresses, named, lines]) = symbols(&setup, &options);
    assert!(addresses > 0 && named == addresses && lines > 0, "{document}");
    let modules = document["modules"].as_array().expect("a list");
    let with_lines = modules.iter().filter(|module| module["lines"] != 0).count();
    assert_eq!(with_lines, 1, "{document}");
    let (request, _) = server.received();
    assert!(request.starts_with("GET /buildid/"), "{request}");
    let (document, _) = symbols(&setup, &options);
    assert_eq!(document["files"], 0, "{document}");
    backtrail(&setup, "store check fleet");
    if let Some(packages) = available(readers::python("duckdb")) {
        assert_eq!(top(&setup, &packages, "self")[0], "inlined");
    }
}

#[test]
fn local_files_and_two_runs_at_once() {
    let Some(setup) = setup() else { return };
    let Some(()) = prepare(&setup) else { return };
    let (_, [addresses, named, _]) = symbols(&setup, "");
    assert!(addresses > 0 && named == 0);
    // The program is back, with names; the debug file is elsewhere.
    fs::copy(setup.path("whole"), setup.path("spin")).expect("it was built");
    let runs = std::thread::scope(|scope| {
        let run = |options: &'static str| {
            let setup = &setup;
            scope.spawn(move || symbols(setup, options).1)
        };
        let runs = [run(""), run(" --from uploads"), run(" --no-debuginfod"), run("")];
        runs.map(|run| run.join().expect("no panic"))
    });
    assert!(runs.iter().all(|[addresses, named, _]| addresses == named), "{runs:?}");
    let before = files(&setup.path("fleet"));
    let (document, [addresses, named, _]) = symbols(&setup, " --from uploads");
    assert_eq!((document["files"].as_u64(), addresses), (Some(0), named), "{document}");
    assert_eq!(files(&setup.path("fleet")), before);
    backtrail(&setup, "store check fleet");
}

#[test]
fn what_cannot_be_searched_is_an_error() {
    let setup = crate::common::without_sampling();
    let run = |line: &str| {
        let mut run = setup.backtrail.command(line.split(' '));
        let finished = command::run(run.current_dir(setup.folder.path()), LIMIT).expect("the binary is there");
        assert_eq!(finished.code(), 2, "{}", finished.describe());
        finished.stderr
    };
    assert!(run("store symbols nothing").starts_with("backtrail: nothing: not a store\nhelp: "));
    let schema = serde_json::json!({"format": "backtrail store", "version": 2}).to_string();
    fs::create_dir(setup.path("empty")).expect("the test's directory can be written");
    fs::write(setup.path("empty/backtrail-store.json"), schema).expect("the test's directory can be written");
    let said = run("store symbols empty --from missing");
    assert!(said.starts_with("backtrail: missing: No such file"), "{said}");
    fs::create_dir(setup.path("missing")).expect("the test's directory can be written");
    let said = backtrail(&setup, "store symbols empty --from missing").stdout;
    assert_eq!(said, "nothing new; 0 addresses without a name\n");
}
