//! Files of other users are read by a process without privileges; what ends it costs one module.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use backtrail_elf::isolation::{Isolate, Job, Lost};
use backtrail_process::isolated::Workers;
use backtrail_testkit::command::{self, Finished, Running, Signal};
use backtrail_testkit::skip;

use crate::common::{LIMIT, Setup, without_sampling};

/// A user without files.
const STRANGER: u32 = 65_533;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("only root can run programs of other users");
    }
    is_root
}

fn workers() -> Workers {
    Workers::of(Path::new(env!("CARGO_BIN_EXE_backtrail")), "isolated-worker")
}

/// A program of a stranger, in a folder that all may enter, with functions that no table and no
/// name is known of beforehand.
fn strange_program(setup: &Setup) -> Option<PathBuf> {
    let source =
        b"#include <unistd.h>\nstatic inline __attribute__((always_inline)) int inner(int x) { return pause() + x; }\n\
        __attribute__((noipa)) int wait_here(int x) { return inner(x) + 1; }\n\
        int main(void) { write(1, \"ready\\n\", 6); return wait_here(3) + 1; }\n";
    let source = setup.file("strange.c", source);
    let path = setup.path("strange");
    let mut compile = Command::new("gcc");
    compile
        .args(["-O1", "-g", "-fno-omit-frame-pointer"])
        .arg(&source)
        .arg("-o")
        .arg(&path);
    if !compile.status().is_ok_and(|status| status.success()) {
        skip("gcc");
        return None;
    }
    // Not the folder of all temporary files, in which everybody may write.
    let shared = std::env::temp_dir();
    let own = path.ancestors().skip(1).take_while(|folder| *folder != shared);
    for folder in own.filter(|folder| folder.starts_with(&shared)) {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(&path, Some(STRANGER), Some(STRANGER)).unwrap();
    Some(path)
}

fn start(program: &Path) -> Running {
    let mut program = Command::new(program);
    let running = command::start(program.uid(STRANGER).gid(STRANGER), LIMIT).unwrap();
    assert!(running.wait_for_output("ready"));
    running
}

fn stack_of(setup: &Setup, running: &Running, arguments: &[&str]) -> Finished {
    let pid = running.pid().to_string();
    let mut stack = setup.backtrail.command([&["stack", &pid][..], arguments].concat());
    command::run(&mut stack, LIMIT).unwrap()
}

/// The lines with frames in them.
fn frames(finished: &Finished) -> Vec<String> {
    let lines = finished.stdout.lines().map(str::trim);
    lines.filter(|line| line.starts_with('#')).map(str::to_owned).collect()
}

/// What `/proc` says about a worker that this process, or a child of it, has started.
fn worker() -> Option<PathBuf> {
    let own = std::process::id().to_string();
    let parent = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.map(|pid| pid.trim().to_owned()).unwrap_or_default()
    };
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let is_worker = fs::read(path.join("cmdline"))
                .is_ok_and(|line| line.windows(15).any(|part| part == b"isolated-worker"));
            let pid = path.file_name().unwrap_or_default().to_string_lossy();
            is_worker && (parent(&pid) == own || parent(&parent(&pid)) == own)
        })
}

fn kill(process: &Path) {
    let pid = process.file_name().and_then(|name| name.to_str()?.parse().ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Tests that look for workers of this process take turns.
static WORKERS: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_worker_has_no_rights_and_no_files() {
    let _turn = turn();
    let workers = workers();
    let module = File::open("/proc/self/exe").unwrap();
    let table = workers.ask(STRANGER, Job::Table, &[&module], &[0]).unwrap();
    assert!(table.len() > 1000 && table[0] == 1, "{} bytes", table.len());
    let process = worker().expect("it waits for the next file");
    let status = fs::read_to_string(process.join("status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(field("Seccomp:"), ["2"], "{status}");
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    for capabilities in ["CapInh:", "CapPrm:", "CapEff:"] {
        assert_eq!(field(capabilities), ["0000000000000000"]);
    }
    let limits = fs::read_to_string(process.join("limits")).unwrap();
    let limit = limits
        .lines()
        .find(|line| line.starts_with("Max address space"))
        .unwrap();
    assert!(!limit.contains("unlimited"), "{limit}");
    if rustix::process::geteuid().is_root() {
        assert_eq!(field("Uid:"), ["65534"; 4]);
        assert_eq!(field("Groups:"), Vec::<String>::new());
        let descriptors: Vec<_> = fs::read_dir(process.join("fd")).unwrap().collect();
        assert_eq!(descriptors.len(), 1, "{descriptors:?}");
    }
}

#[test]
fn what_ends_a_worker_costs_one_request() {
    let _turn = turn();
    let workers = workers();
    let module = File::open("/proc/self/exe").unwrap();
    assert!(workers.ask(STRANGER, Job::Table, &[&module], &[0]).is_ok());
    // A request without a file is one that only a broken parent sends; and one with half a number.
    assert!(
        workers
            .ask(STRANGER, Job::Table, &[], &[0])
            .is_ok_and(|answer| answer[0] == 0)
    );
    assert!(workers.ask(STRANGER, Job::Names, &[&module], &[1, 2, 3]).is_err());
    let killer = |ended: &AtomicBool| {
        while !ended.load(Ordering::Relaxed) {
            if let Some(process) = worker() {
                return kill(&process);
            }
            thread::sleep(Duration::from_millis(1));
        }
    };
    let ended = AtomicBool::new(false);
    let mut was_lost = false;
    for _ in 0..50 {
        was_lost |= thread::scope(|scope| {
            let killed = scope.spawn(|| killer(&ended));
            let answer = workers.ask(STRANGER, Job::Table, &[&module], &[0]);
            ended.store(true, Ordering::Relaxed);
            killed.join().unwrap();
            ended.store(false, Ordering::Relaxed);
            answer == Err(Lost::Ended)
        });
        if was_lost {
            break;
        }
    }
    assert!(was_lost);
    assert!(
        workers.ask(STRANGER, Job::Table, &[&module], &[0]).is_ok(),
        "another one is started"
    );
}

#[test]
fn strange_files_have_the_same_stacks_and_names() {
    let _turn = turn();
    if !is_root() {
        return;
    }
    let setup = without_sampling();
    let Some(program) = strange_program(&setup) else { return };
    let running = start(&program);
    let isolated = stack_of(&setup, &running, &[]);
    running.signal(Signal::KILL);
    assert_eq!(isolated.code(), 0, "{}", isolated.describe());
    chown(&program, Some(0), Some(0)).unwrap();
    let running = start(&program);
    let here = stack_of(&setup, &running, &[]);
    running.signal(Signal::KILL);
    let isolated = frames(&isolated);
    assert!(isolated.iter().any(|line| line.contains("inner")), "{isolated:?}");
    assert!(isolated.iter().any(|line| line.contains("strange.c:")), "{isolated:?}");
    let without_address = |frames: Vec<String>| {
        let words = |line: &str| {
            line.split_whitespace()
                .filter(|word| !word.contains("0x"))
                .map(str::to_owned)
                .collect()
        };
        frames.iter().map(|line| words(line)).collect::<Vec<Vec<String>>>()
    };
    assert_eq!(without_address(isolated), without_address(frames(&here)));
}

#[test]
fn a_killed_worker_costs_the_names_of_one_module() {
    let _turn = turn();
    if !is_root() {
        return;
    }
    let setup = without_sampling();
    let Some(program) = strange_program(&setup) else { return };
    let running = start(&program);
    let pid = running.pid().to_string();
    let (mut was_lost, ended) = (false, AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                worker().iter().for_each(|process| kill(process));
            }
        });
        for _ in 0..30 {
            let mut shell = setup.backtrail.command(["stack", &pid]);
            let finished = command::run(&mut shell, LIMIT).unwrap();
            assert_eq!(finished.code(), 0, "{}", finished.describe());
            let frames = frames(&finished);
            assert!(frames.iter().any(|line| line.contains("pause")), "{frames:?}");
            was_lost |= finished.stderr.contains("isolated process");
            if was_lost {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    running.signal(Signal::KILL);
    assert!(was_lost);
}

#[test]
fn a_worker_is_replaced_before_it_has_too_many_files_open() {
    /// More than a process may have open.
    const MANY: u64 = 1500;
    let _turn = turn();
    let workers = workers();
    let module = File::open("/proc/self/exe").unwrap();
    // The module's number, that it has no further files, and no address.
    let asked = |number: u64| {
        let request = [&number.to_le_bytes()[..], &[0]].concat();
        workers.ask(STRANGER, Job::Names, &[&module], &request)
    };
    for number in 0..MANY {
        assert_eq!(asked(number), Ok(vec![0]), "{number}");
    }
}
