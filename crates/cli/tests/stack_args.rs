//! `backtrail stack --args`: programs that tell what their functions were called with, stripped of debug information after their tables were made.

mod stack;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::gdb_arguments::{self, Tally, is_same};
use backtrail_testkit::program::{self, Program};
use backtrail_testkit::{TempDir, available, debugger, scratch};
use serde_json::Value;

use stack::{LIMIT, parked, stack};

fn backtrail(arguments: &[&str]) -> command::Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command::run(command.args(arguments), LIMIT).expect("the binary is there")
}

/// Copies with tables: one that has its debug information too and is run, for gdb, which believes only a file with the same segments; and one
/// without, which the arguments are taken from.
fn with_tables(program: &Path, folder: &TempDir) -> [PathBuf; 2] {
    with_tables_by("strip", program, folder)
}

fn with_tables_by(strip: &str, program: &Path, folder: &TempDir) -> [PathBuf; 2] {
    let [whole, out] = ["whole", "stripped"].map(|name| folder.path().join(name));
    let (from, to) = (program.to_str().expect("a name"), whole.to_str().expect("a name"));
    let added = backtrail(&["sframe", "add", from, "-o", to, "--args"]);
    assert_eq!(added.code(), 0, "{}", added.describe());
    let strip = command::run(
        Command::new(strip).args(["-g", "-o"]).arg(&out).arg(&whole),
        Duration::from_secs(60),
    );
    assert!(strip.expect("binutils are there").status.success());
    [whole, out]
}

/// By function and argument: value and place.
type Shown = BTreeMap<(String, String), (String, String)>;

/// What is shown of the process: the document, and in it each argument that is not lost.
fn shown(running: &Running, executable: &Path) -> (Value, Shown) {
    let document = stack_of(Path::new(&running.pid().to_string()), executable);
    let all = values(&document);
    (document, all)
}

/// The document that is shown of a process, by its number, or of a core.
fn stack_of(target: &Path, executable: &Path) -> Value {
    let [target, executable] = [target, executable].map(|path| path.to_str().expect("a name"));
    let finished = stack(&["--args", "--json", "--exe", executable, target]);
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    serde_json::from_str(&finished.stdout).expect("JSON")
}

/// Each argument that is not lost.
fn values(document: &Value) -> Shown {
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
    all
}

/// Every value that is shown is the one that the program told, and gdb's of at least so many arguments; how many are told.
fn as_told(program: &Program, least: usize) -> Option<usize> {
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
        assert!(tally.arguments >= least, "{tally:?}");
    }
    running.signal(Signal::KILL);
    Some(count)
}

#[test]
fn values_are_those_that_the_program_told() {
    let least = [(&program::ARGUMENTS, 13), (&program::ARGUMENTS_DWARF_4, 13)];
    for (program, least) in least {
        if let Some(count) = as_told(program, 20) {
            assert!(count >= least, "{}: {count} values", program.name);
        }
    }
}

#[test]
fn other_languages_tell_numbers_and_addresses() {
    for (program, least) in [(&program::ARGUMENTS_CPP, 9), (&program::ARGUMENTS_RUST, 5)] {
        if let Some(count) = as_told(program, 7) {
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

/// What is shown of a core that leaves out what is in files is what is shown of the process.
#[test]
fn a_core_shows_what_the_process_does() {
    let Some(built) = available(program::ARGUMENTS.build()) else {
        return;
    };
    let folder = scratch();
    let [whole, stripped] = with_tables(&built, &folder);
    let running = parked(&whole, &[]);
    let (_, of_process) = shown(&running, &stripped);
    let core = folder.path().join("made");
    let made = available(debugger::gcore(running.pid(), &core));
    running.signal(Signal::KILL);
    if made.is_some() {
        let of_core = values(&stack_of(&core, &stripped));
        assert!(
            of_core[&("stop".to_owned(), "why".to_owned())]
                .0
                .ends_with(" \"because\"")
        );
        assert_eq!(of_core, of_process);
    }
}

#[test]
fn a_core_of_qemu_for_aarch64() {
    let folder = scratch();
    let built = folder.path().join("built");
    let mut gcc = Command::new("aarch64-linux-gnu-gcc");
    gcc.args(["-O2", "-g", "-fomit-frame-pointer", "-static", "-o"])
        .arg(&built);
    gcc.arg(backtrail_testkit::place::programs().join("arguments.c"));
    let Some(compiled) = available(command::run(&mut gcc, LIMIT)) else {
        return;
    };
    assert!(compiled.status.success(), "{}", compiled.describe());
    let [whole, stripped] = with_tables_by("aarch64-linux-gnu-strip", &built, &folder);
    let arguments = ["env", "CRASH=1", "qemu-aarch64-static"].map(OsStr::new);
    let arguments = [&arguments[..], &[whole.as_os_str()]].concat();
    let Some(core) = available(debugger::crashed(&folder, &arguments)) else {
        return;
    };
    let shown = values(&stack_of(&core, &stripped));
    let value = |function: &str, name: &str| &shown[&(function.to_owned(), name.to_owned())].0[..];
    assert_eq!(value("stop", "depth"), "4");
    assert!(value("stop", "why").ends_with(" \"because\""));
    assert_eq!(value("through", "depth"), "4");
    assert_eq!(value("middle", "pair"), "{a = 7, p = {x = 8, y = 9}}");
    assert!(value("keep", "name").ends_with(" \"from jumps\""));
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
