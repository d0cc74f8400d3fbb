//! The examples in the help, run as they are printed.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{SKIPPED, alone, available, readers, scratch};
use rustix::process::{Pid, Signal, kill_process_group};

#[cfg(feature = "store")]
use crate::common::collector::Collector;

const LIMIT: Duration = Duration::from_secs(120);
const BACKTRAIL: &str = env!("CARGO_BIN_EXE_backtrail");

#[test]
fn every_verb_ends_its_help_with_examples_that_run() {
    let _alone = alone("recording");
    let folder = scratch();
    let Some(server) = prepare(folder.path()) else { return };
    // A relay daemon for the example that receives, once another one has recorded a session.
    let serve = "while :; do backtrail trace serve session --listen localhost:5356 --duration 2 || sleep 0.2; done";
    let _relay = Server::start(&mut in_shell(folder.path(), serve));
    // It takes what all examples send, one after the other.
    let receive = "backtrail trace receive --listen tcp://localhost:5347 -o collected --duration 3600";
    let _receiver = Server::start(&mut in_shell(folder.path(), receive));
    // What collects OpenTelemetry's profiles.
    #[cfg(feature = "store")]
    let _collector = Collector::start("127.0.0.1:4318", "200 OK", "application/x-protobuf", b"");
    let mut left: Vec<String> = verbs(&[]).iter().flat_map(|verb| examples(verb)).collect();
    let mut perf = Command::new("perf");
    perf.args("record -q -g -o perf.data ./server 100".split(' '))
        .current_dir(folder.path());
    if available(command::run(&mut perf, LIMIT)).is_none() {
        left.retain(|line| !line.contains("perf.data"));
    }
    let core = folder.path().join("core");
    if available(backtrail_testkit::debugger::gcore(server.0.id(), &core)).is_none() {
        left.retain(|line| !line.contains("--folder crashes"));
    }
    let packages = available(readers::python("duckdb"));
    if packages.is_none() {
        left.retain(|line| !line.contains("store query") || line.contains("--sql"));
    }
    // An example may need a file that another one makes.
    loop {
        let mut failed = Vec::new();
        for line in &left {
            if ["--entry", " -a ", "--off-cpu"].iter().any(|part| line.contains(part))
                && !rustix::process::geteuid().is_root()
            {
                eprintln!("{SKIPPED} only root may run `{line}`");
                continue;
            }
            let finished = shell(folder.path(), line);
            if !finished.status.success() {
                failed.push(format!("{line}\n{}", finished.describe()));
            }
        }
        if failed.is_empty() {
            return;
        }
        assert!(failed.len() < left.len(), "{}", failed.join("\n"));
        left = failed
            .iter()
            .filter_map(|text| Some(text.lines().next()?.to_owned()))
            .collect();
    }
}

/// Compiles the program that the examples name, and starts it.
fn prepare(folder: &Path) -> Option<Server> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/server.c");
    std::fs::copy(source, folder.join("server.c")).unwrap();
    std::fs::create_dir(folder.join("rootfs")).unwrap();
    for line in [
        "cc -g -O2 -o server server.c",
        "cc -O2 -o rootfs/server server.c",
        "cc -g -O2 -c server.c",
        "cc -gctf -O2 -c server.c -o server.ctf.o",
        "cc -gctf -O2 -c server.c -o parse.ctf.o",
    ] {
        let mut words = line.split(' ');
        let mut compile = Command::new(words.next()?);
        let finished = available(command::run(compile.args(words).current_dir(folder), LIMIT))?;
        assert!(finished.status.success(), "{}", finished.describe());
    }
    Some(Server::start(&mut Command::new(folder.join("server"))))
}

/// A command that runs beside the examples, with all that it starts: a shell's commands would stay.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Self {
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(quiet.process_group(0).spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}

fn shell(folder: &Path, line: &str) -> Finished {
    command::run(&mut in_shell(folder, line), LIMIT).unwrap()
}

fn in_shell(folder: &Path, line: &str) -> Command {
    let programs = Path::new(BACKTRAIL).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut run = Command::new("sh");
    run.args(["-ec", line]).current_dir(folder).env("PATH", path);
    run.env("XDG_CACHE_HOME", folder.join("cache"));
    // Where DuckDB is, for the examples that ask a store.
    run.env("PYTHONPATH", backtrail_testkit::place::target().join("readers/python"));
    run
}

fn help(verb: &[String]) -> String {
    let mut run = Command::new(BACKTRAIL);
    let finished = command::run(run.args(verb).arg("--help"), LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.describe());
    finished.stdout
}

/// The verbs below a verb, and those below them; a verb without any is itself.
fn verbs(of: &[String]) -> Vec<Vec<String>> {
    let text = help(of);
    let Some((_, list)) = text.split_once("\nCommands:\n") else {
        return vec![of.to_vec()];
    };
    let names = list
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help");
    names
        .flat_map(|name| verbs(&[of, &[name.to_owned()]].concat()))
        .collect()
}

fn examples(verb: &[String]) -> Vec<String> {
    let text = help(verb);
    let lines = text
        .split_once("\nEXAMPLES\n")
        .unwrap_or_else(|| panic!("{verb:?} has no examples"))
        .1;
    lines
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}
