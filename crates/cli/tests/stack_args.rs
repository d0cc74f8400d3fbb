//! `backtrail stack --args`: programs that tell what their functions were called with, stripped of debug information after their tables were made.

mod stack;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::gdb_arguments::{self, Tally, is_same};
use backtrail_testkit::program::{self, Program};
use backtrail_testkit::{TempDir, available, scratch};
use serde_json::Value;

use stack::{LIMIT, parked, stack};

fn backtrail(arguments: &[&str]) -> command::Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command::run(command.args(arguments), LIMIT).expect("the binary is there")
}

/// Copies with tables: one that has its debug information too and is run, for gdb, which believes only a file with the same segments; and one
/// without, which the arguments are taken from.
fn with_tables(program: &Path, folder: &TempDir) -> [PathBuf; 2] {
    let [whole, out] = ["whole", "stripped"].map(|name| folder.path().join(name));
    let (from, to) = (program.to_str().expect("a name"), whole.to_str().expect("a name"));
    let added = backtrail(&["sframe", "add", from, "-o", to, "--args"]);
    assert_eq!(added.code(), 0, "{}", added.describe());
    let strip = command::run(
        Command::new("strip").args(["-g", "-o"]).arg(&out).arg(&whole),
        Duration::from_secs(60),
    );
    assert!(strip.expect("binutils are there").status.success());
    [whole, out]
}

/// By function and argument: value and place.
type Shown = BTreeMap<(String, String), (String, String)>;

/// What is shown of the process: the document, and in it each argument that is not lost.
fn shown(running: &Running, executable: &Path) -> (Value, Shown) {
    let executable = executable.to_str().expect("a name");
    let finished = stack(&["--args", "--json", "--exe", executable, &running.pid().to_string()]);
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let document: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let mut all = BTreeMap::new();
    for frame in document["threads"][0]["frames"].as_array().expect("frames") {
        for argument in frame["args"].as_array().expect("arguments") {
            let text = |key: &str| argument[key].as_str().map(str::to_owned);
            if let (Some(name), Some(value), Some(place)) = (text("name"), text("value"), text("place")) {
                let function = frame["function"].as_str().expect("a function").to_owned();
                all.insert((function, name), (value, place));
            }
        }
    }
    (document, all)
}

/// Every value that is shown is the one that the program told; how many are.
fn as_told(program: &Program) -> Option<usize> {
    let built = available(program.build())?;
    let folder = scratch();
    let [whole, stripped] = with_tables(&built, &folder);
    let running = parked(&whole, &[]);
    let (document, shown) = shown(&running, &stripped);
    let told = running.stdout_so_far();
    let mut count = 0;
    for ((function, name), (value, place)) in &shown {
        let Some(line) = told
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix(&format!("{function} {name}=")))
        else {
            continue;
        };
        count += 1;
        assert!(
            is_same(value, line),
            "{}: {function} {name} in {place}: {value}, told {line}",
            program.name
        );
    }
    if let Some(gdb) = available(gdb_arguments::arguments(&whole, running.pid())) {
        let mut tally = Tally::default();
        tally.count(&document, &gdb, false);
        println!("{}: {count} as told; {tally:?}", program.name);
        assert!(tally.wrong.is_empty(), "{:?}", tally.wrong);
        assert!(tally.arguments >= 20, "{tally:?}");
    }
    running.signal(Signal::KILL);
    Some(count)
}

#[test]
fn values_are_those_that_the_program_told() {
    let least = [(&program::ARGUMENTS, 13), (&program::ARGUMENTS_DWARF_4, 13)];
    for (program, least) in least {
        if let Some(count) = as_told(program) {
            assert!(count >= least, "{}: {count} values", program.name);
        }
    }
}

#[test]
fn text_has_them_behind_the_function() {
    let Some(built) = available(program::ARGUMENTS.build()) else {
        return;
    };
    let folder = scratch();
    let [_, stripped] = with_tables(&built, &folder);
    let running = parked(&stripped, &[]);
    let text = stack(&["--args", &running.pid().to_string()]).stdout;
    running.signal(Signal::KILL);
    assert!(text.contains("(depth=4, why=0x"), "{text}");
    assert!(text.contains(" \"because\") "), "{text}");
    assert!(text.contains("depth=3, c=BLUE"), "{text}");
}

#[test]
fn tables_are_for_linked_files_with_debug_information() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).to_str().expect("a name").to_owned();
    std::fs::write(
        path("one.c"),
        "int main(int argc, char **argv) { return argc + !argv; }\n",
    )
    .expect("it can be written");
    for (arguments, out) in [(&["-c"][..], "one.o"), (&[][..], "one")] {
        let mut gcc = Command::new("gcc");
        let built = command::run(gcc.args(arguments).arg(path("one.c")).arg("-o").arg(path(out)), LIMIT);
        let Some(built) = available(built) else { return };
        assert!(built.status.success(), "{}", built.describe());
    }
    for (file, what) in [
        ("one.o", "addresses in it are not known yet"),
        ("one", "no debug information"),
    ] {
        let refused = backtrail(&["sframe", "add", &path(file), "--args"]);
        assert_eq!(refused.code(), 2, "{}", refused.describe());
        assert!(refused.stderr.contains(what), "{}", refused.describe());
    }
}

#[test]
fn link_adds_them() {
    let folder = scratch();
    let out = folder.path().join("linked");
    let source = backtrail_testkit::place::programs().join("arguments.c");
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command
        .args(["link", "--args", "--strict", "--", "gcc", "-O2", "-g", "-o"])
        .arg(&out)
        .arg(source);
    let linked = command::run(&mut command, LIMIT).expect("the binary is there");
    assert_eq!(linked.code(), 0, "{}", linked.describe());
    let running = parked(&out, &[]);
    let (_, shown) = shown(&running, &out);
    running.signal(Signal::KILL);
    assert_eq!(shown[&("stop".to_owned(), "depth".to_owned())].0, "4");
}
