//! Recordings that are reported where none of their programs are.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::workload::{self, Workload};
use backtrail_testkit::{available, command, program, skip};
use common::{LIMIT, Setup, setup, text};

/// A folder with the command and the libraries that it needs, at other places than at home: nothing
/// that was recorded is in there.
struct Away {
    root: PathBuf,
    loader: String,
}

impl Away {
    fn new(setup: &Setup) -> Option<Away> {
        let root = setup.path("away");
        fs::create_dir_all(root.join("lib")).expect("the test's directory can be written");
        let own = Path::new(env!("CARGO_BIN_EXE_backtrail"));
        fs::copy(own, root.join("backtrail")).expect("the command is there");
        let needed = available(command::run(Command::new("ldd").arg(own), LIMIT))?;
        let files = needed.stdout.split_whitespace().filter(|word| word.starts_with('/'));
        let mut loader = None;
        for file in files {
            let name = Path::new(file).file_name()?.to_str()?;
            fs::copy(file, root.join("lib").join(name)).expect("a library that ldd names");
            if name.starts_with("ld-") {
                loader = Some(name.to_owned());
            }
        }
        Some(Away { root, loader: loader? })
    }

    fn run(&self, arguments: &[&str]) -> Option<String> {
        let mut run = Command::new("chroot");
        run.arg(&self.root).arg(format!("/lib/{}", self.loader));
        run.args(["--library-path", "/lib", "/backtrail"]).args(arguments);
        let finished = available(command::run(&mut run, LIMIT))?;
        if finished.stderr.contains("cannot change root") {
            skip("no permission for chroot");
            return None;
        }
        assert!(finished.status.success(), "{}", finished.describe());
        Some(finished.stdout)
    }
}

const VIEWS: [&[&str]; 9] = [
    &[],
    &["--wide", "--limit", "100000"],
    &["--folded", "-"],
    &["--json", "-"],
    &["--flamegraph", "-"],
    &["--by", "line", "--limit", "100000"],
    &["--by", "address", "--limit", "100000"],
    &["--html", "-"],
    &["--html", "-", "--function", "main"],
];
const EXPORTS: [&str; 6] = ["pprof", "firefox", "speedscope", "otlp", "folded", "perf-script"];

fn at_home(setup: &Setup, arguments: &[&str]) -> String {
    let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    run.current_dir(setup.folder.path()).args(arguments);
    let finished = command::run(&mut run, LIMIT).expect("the command is there");
    assert!(finished.status.success(), "{}", finished.describe());
    finished.stdout
}

/// Records a program, and compares all views here and away. Returns the table.
fn compare(workload: &Workload) -> Option<String> {
    let setup = setup()?;
    let recording = setup.record(&[], workload);
    recording.ended_with(0).readable();
    assert!(recording.trace.join("symbols").is_file());
    let away = Away::new(&setup)?;
    let copied = command::run(
        Command::new("cp").arg("-r").arg(&recording.trace).arg(&away.root),
        LIMIT,
    );
    assert!(copied.expect("cp").status.success());
    for view in VIEWS {
        let arguments: Vec<&str> = ["report", "trace"].iter().chain(view).copied().collect();
        assert_eq!(at_home(&setup, &arguments), away.run(&arguments)?, "{view:?}");
    }
    for format in EXPORTS {
        let arguments = ["export", "trace", "--to", format, "-o", "-"];
        assert_eq!(at_home(&setup, &arguments), away.run(&arguments)?, "{format}");
    }
    // Names do come from the recording: none are found without them.
    let table = at_home(&setup, &["report", "trace", "--wide"]);
    let before = fs::read(recording.trace.join("symbols")).expect("it is there");
    fs::remove_file(away.root.join("trace/symbols")).expect("it was copied");
    let bare = away.run(&["report", "trace", "--wide"])?;
    assert_ne!(table, bare);
    // Nothing is lost by looking everything up again, and nothing by looking where nothing is.
    at_home(&setup, &["pack", "trace"]);
    assert_eq!(at_home(&setup, &["report", "trace", "--wide"]), table);
    fs::write(away.root.join("trace/symbols"), before).expect("it can be written");
    away.run(&["pack", "trace", "-q"])?;
    let again = away.run(&["report", "trace", "--folded", "-"])?;
    assert_eq!(again, at_home(&setup, &["report", "trace", "--folded", "-"]));
    Some(table)
}

#[test]
fn a_program_with_lines_and_inlined_calls() {
    let Some(workload) = available(workload::built("shares", &program::SHARES, &["1"])) else {
        return;
    };
    if let Some(table) = compare(&workload) {
        assert!(table.contains("main"), "{table}");
    }
}

/// The names of its inlined calls are in another file.
#[test]
fn a_program_with_split_units() {
    let scratch = backtrail_testkit::scratch();
    let source = scratch.path().join("split.c");
    let code = "#include <stdlib.h>
#include <time.h>
static inline __attribute__((always_inline)) double inner(double x) {
  for (int i = 0; i < 1000; i++) x = x * 1.0001 + i;
  return x;
}
__attribute__((noinline)) double outer(double x) { return inner(x) + 1; }
int main(void) {
  volatile double x = 0;
  while (clock() < CLOCKS_PER_SEC) x = outer(x);
  return x > 1 ? 0 : 1;
}
";
    fs::write(&source, code).expect("the folder can be written");
    let mut compile = Command::new("gcc");
    compile.current_dir(scratch.path()).args(["-O2", "-g", "-gsplit-dwarf"]);
    let built = compile.args(["split.c", "-o", "split"]);
    let Some(built) = available(command::run(built, LIMIT)) else {
        return;
    };
    assert!(built.status.success(), "{}", built.describe());
    let workload = Workload {
        name: "split",
        arguments: vec![text(&scratch.path().join("split")).to_owned()],
    };
    if let Some(table) = compare(&workload) {
        assert!(table.contains("inner") && table.contains("outer"), "{table}");
    }
}

#[test]
fn a_stripped_program() {
    let Some(workload) = available(workload::built("shares", &program::SHARES_STRIPPED, &["1"])) else {
        return;
    };
    compare(&workload);
}

/// Names of code made at run time change, and are gone with the program's files.
#[test]
fn code_made_at_run_time() {
    let scratch = backtrail_testkit::scratch();
    let folder = text(scratch.path()).to_owned();
    let Some(workload) = available(workload::built("jit_dump", &program::JIT_DUMP, &[&folder, "2"])) else {
        return;
    };
    if let Some(table) = compare(&workload) {
        assert!(
            table.contains("compiled_first") && table.contains("compiled_again"),
            "{table}"
        );
    }
}

#[test]
fn a_recording_without_symbols_gets_them_later() {
    let Some(setup) = setup() else { return };
    let Some(workload) = available(workload::built("shares", &program::SHARES, &["1"])) else {
        return;
    };
    let recording = setup.record(&["--no-symbols"], &workload);
    recording.ended_with(0);
    assert!(!recording.trace.join("symbols").exists());
    let before = at_home(&setup, &["report", text(&recording.trace), "--wide"]);
    at_home(&setup, &["pack", text(&recording.trace)]);
    assert!(recording.trace.join("symbols").is_file());
    assert_eq!(at_home(&setup, &["report", text(&recording.trace), "--wide"]), before);
    recording.readable();
    // Damaged names are said to be, and looked up as if there were none.
    let symbols = recording.trace.join("symbols");
    let mut bytes = fs::read(&symbols).expect("it is there");
    let middle = bytes.len() / 2;
    bytes.truncate(middle);
    fs::write(&symbols, bytes).expect("it can be written");
    let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let finished = command::run(run.args(["report", text(&recording.trace), "--wide"]), LIMIT).expect("it runs");
    assert!(finished.stderr.contains("damaged"), "{}", finished.describe());
    assert_eq!(finished.stdout, before);
}

#[test]
fn files_that_are_not_found_are_noted() {
    let Some(setup) = setup() else { return };
    let Some(built) = available(program::SHARES.build()) else {
        return;
    };
    let copy = setup.path("copy");
    fs::copy(&built, &copy).expect("the test's directory can be written");
    let workload = Workload {
        name: "a copy",
        arguments: vec![text(&copy).to_owned(), "1".to_owned()],
    };
    let recording = setup.record(&["--no-symbols"], &workload);
    recording.ended_with(0);
    fs::remove_file(&copy).expect("it is there");
    let mut run = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let finished = command::run(run.args(["pack", text(&recording.trace)]), LIMIT).expect("it runs");
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let note = format!("note: not found, so shown as module+offset: {}", copy.display());
    assert!(finished.stderr.contains(&note), "{}", finished.describe());
}
