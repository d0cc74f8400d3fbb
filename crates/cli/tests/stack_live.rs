//! `backtrail stack PID`, beside gdb.

use crate::stack;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::program::{self, Program};
use backtrail_testkit::{available, debugger, scratch, skip};

use stack::{LIMIT, nginx_settings, parked, same, stack, states, threads};

/// Our stacks of a parked program, held against gdb's.
fn as_gdb(running: &Running, what: &str) {
    let pid = running.pid().to_string();
    let ours = threads(&stack(&[&pid, "--json"]));
    let Some(gdb) = available(debugger::gdb(&[OsStr::new("-p"), OsStr::new(&pid)])) else {
        return;
    };
    same(&ours, &gdb, what);
}

fn program_as_gdb(program: &Program, arguments: &[&str]) {
    let Some(built) = available(program.build()) else {
        return;
    };
    let running = parked(&built, arguments);
    as_gdb(&running, &format!("{} {}", program.name, arguments.join(" ")));
    running.signal(Signal::KILL);
}

#[test]
fn threads_in_known_functions() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["5"]);
    as_gdb(&running, "parked 5");
    let threads = threads(&stack(&[&running.pid().to_string(), "--json"]));
    let chain = |inner: &str| {
        let found = threads
            .values()
            .find(|thread| thread.frames.iter().any(|frame| frame.function == inner));
        let thread = found.unwrap_or_else(|| panic!("no thread in {inner}: {threads:?}"));
        let functions = thread.frames.iter().map(|frame| frame.function.as_str());
        let from: Vec<&str> = functions.skip_while(|function| *function != inner).collect();
        assert_eq!(from[..4], [inner, "middle", "outer", "begin"], "{thread:?}");
        thread.clone()
    };
    chain("wait_for_condition");
    chain("wait_in_sleep");
    let handler = chain("wait_in_handler");
    let how: Vec<&str> = handler.frames.iter().map(|frame| frame.how.as_str()).collect();
    assert_eq!(how[0], "initial");
    assert_eq!(how.iter().filter(|how| **how == "signal").count(), 1, "{how:?}");
    let line = &handler
        .frames
        .iter()
        .find(|frame| frame.function == "middle")
        .expect("it is there")
        .value;
    assert!(
        line["file"].as_str().is_some_and(|file| file.ends_with("parked.c")),
        "{line}"
    );
    assert!(line["line"].as_u64().is_some_and(|line| line > 1), "{line}");
    assert!(
        line["module"]
            .as_str()
            .is_some_and(|module| module.ends_with("/parked")),
        "{line}"
    );
    running.signal(Signal::KILL);
}

#[test]
fn a_static_program() {
    program_as_gdb(&program::PARKED_STATIC, &["5"]);
}

#[test]
fn a_rust_program() {
    program_as_gdb(&program::PARKED_RUST, &[]);
}

/// The kernel cuts names of threads after 15 bytes, here within a character.
#[test]
fn a_program_whose_name_is_cut_within_a_character() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let folder = scratch();
    let copy = folder.path().join("é".repeat(9));
    fs::copy(&built, &copy).expect("the test's directory can be written");
    let running = parked(&copy, &["2"]);
    as_gdb(&running, "a name in two-byte characters");
    running.signal(Signal::KILL);
}

/// Who may not open the mappings of a process may still open its program.
#[test]
fn a_removed_program_of_an_ordinary_user() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let folder = scratch();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("a scratch folder");
    let copy = folder.path().join("removed");
    fs::copy(&built, &copy).expect("a scratch folder");
    let by_user = |program: &Path| {
        let mut run = Command::new("setpriv");
        run.args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(program);
        run
    };
    let Some(running) = available(command::start(by_user(&copy).arg("2"), LIMIT)) else {
        return;
    };
    if !running.wait_at_rest("ready") {
        skip("setpriv needs root");
        return;
    }
    let pid = running.pid().to_string();
    // gdb does not find a program that was removed.
    let gdb = available(debugger::gdb(&[OsStr::new("-p"), OsStr::new(&pid)]));
    fs::remove_file(&copy).expect("it was there");
    let mut ours = by_user(Path::new(env!("CARGO_BIN_EXE_backtrail")));
    let ours = command::run(ours.args(["stack", &pid, "--json"]), LIMIT).expect("setpriv has just run");
    if let Some(gdb) = gdb {
        same(&threads(&ours), &gdb, "a removed program");
    }
    running.signal(Signal::KILL);
}

/// Without care, each of the two waits for the other: the process for the tracer to learn that its
/// threads have ended, and the tracer for the process to let it trace one more.
#[test]
fn a_process_that_becomes_another_program_meanwhile() {
    let Some(built) = available(program::EXECS.build()) else {
        return;
    };
    let running = command::start(&mut Command::new(built), LIMIT).expect("it was just built");
    for _ in 0..60 {
        let finished = stack(&[&running.pid().to_string(), "--json"]);
        // It may have no thread at the moment when it is looked at.
        assert!([0, 2].contains(&finished.code()), "{}", finished.describe());
    }
}

#[test]
fn sixty_five_threads() {
    program_as_gdb(&program::PARKED, &["64"]);
}

#[test]
fn a_thousand_threads() {
    program_as_gdb(&program::PARKED, &["1000"]);
}

#[test]
fn python() {
    let script = "import threading,time,sys\n\
                  for _ in range(3): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n\
                  time.sleep(0.3)\nprint('ready', flush=True)\nlist(map(time.sleep, [1000]))";
    let Some(running) = available(command::start(Command::new("python3").args(["-c", script]), LIMIT)) else {
        return;
    };
    assert!(running.wait_at_rest("ready"));
    as_gdb(&running, "python3");
    running.signal(Signal::KILL);
}

#[test]
fn a_program_in_a_system_call() {
    let running = command::start(Command::new("sleep").arg("1000"), LIMIT).expect("there is sleep");
    sleep(Duration::from_millis(300));
    as_gdb(&running, "sleep");
    running.signal(Signal::KILL);
}

#[test]
fn servers_and_interpreters() {
    let folder = backtrail_testkit::scratch();
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (socket, conf, pipe) = (path("redis.sock"), nginx_settings(&folder), path("pipe"));
    let programs: [&[&str]; 4] = [
        &["redis-server", "--port", "0", "--unixsocket", &socket, "--save", ""],
        &["nginx", "-c", &conf],
        &["node", "-e", "setTimeout(() => {}, 1000000)"],
        &["sh", "-c", "mkfifo $0 && exec sqlite3 :memory: 0<>$0", &pipe],
    ];
    for arguments in programs {
        let mut program = Command::new(arguments[0]);
        let Some(running) = available(command::start(program.args(&arguments[1..]), LIMIT)) else {
            continue;
        };
        sleep(Duration::from_secs(2));
        as_gdb(&running, &arguments.join(" "));
        running.signal_group(Signal::KILL);
    }
}

#[test]
fn equal_stacks_are_folded_and_unfolded() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["50"]);
    let pid = running.pid().to_string();
    let folded = stack(&[&pid]);
    assert_eq!(folded.code(), 0, "{}", folded.describe());
    assert!(
        folded
            .stdout
            .starts_with(&format!("process {pid} \"parked\", 51 threads\n")),
        "{}",
        folded.describe()
    );
    assert_eq!(
        folded.stdout.matches("10 threads: ").count(),
        5,
        "{}",
        folded.describe()
    );
    assert_eq!(
        folded.stdout.matches(" in wait_in_recursion").count(),
        61,
        "{}",
        folded.describe()
    );
    let unfolded = stack(&[&pid, "--all"]);
    assert_eq!(
        unfolded
            .stdout
            .lines()
            .filter(|line| line.starts_with("thread "))
            .count(),
        51
    );
    let line = unfolded
        .stdout
        .lines()
        .find(|line| line.contains(" in wait_in_sleep+0x"));
    assert!(
        line.is_some_and(|line| line.contains("parked.c:") && line.ends_with(" (parked)")),
        "{line:?}"
    );
    running.signal(Signal::KILL);
}

#[test]
fn repeated_looks_show_what_has_changed() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["5", "vfork"]);
    let pid = running.pid().to_string();
    let looks = stack(&[&pid, "--every", "4", "--count", "2"]);
    assert_eq!(looks.code(), 0, "{}", looks.describe());
    let (first, second) = looks.stdout.rsplit_once("process ").expect("two looks");
    assert!(first.contains("no stack: uninterruptible"), "{}", looks.describe());
    assert!(second.contains("\n6 threads as before"), "{}", looks.describe());
    assert!(second.contains("in begin_vfork"), "{}", looks.describe());
    running.signal(Signal::KILL);
}

#[test]
fn a_look_at_what_has_not_changed_is_one_line() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["5"]);
    let pid = running.pid().to_string();
    let later = format!("process {pid} \"parked\", 6 threads as before\n");
    let begin = Instant::now();
    loop {
        let looks = stack(&[&pid, "--every", "0.5", "--count", "2"]);
        assert_eq!(looks.code(), 0, "{}", looks.describe());
        let first = looks.stdout.strip_suffix(&later);
        if first.is_some_and(|first| first.matches("process ").count() == 1 && first.contains(" in wait_in_sleep")) {
            break;
        }
        // A thread may be about to go back into its system call, on a busy machine for long.
        assert!(begin.elapsed() < LIMIT, "{}", looks.describe());
    }
    running.signal(Signal::KILL);
}

/// Whether a process goes on: a thread that is stopped, for a debugger or not, does not.
fn runs(pid: u32) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while states(pid).iter().any(|state| "tT".contains(*state)) {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
    true
}

#[test]
fn nothing_is_left_stopped_or_undone() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["20", "vfork"]);
    let pid = running.pid();
    let begin = Instant::now();
    let ours = threads(&stack(&[&pid.to_string(), "--json"]));
    println!("with a thread in uninterruptible sleep: {:?}", begin.elapsed());
    let uninterruptible: Vec<_> = ours
        .values()
        .filter(|thread| thread.stop == "uninterruptible")
        .collect();
    assert_eq!(uninterruptible.len(), 1, "{ours:?}");
    assert!(uninterruptible[0].frames.is_empty());
    assert!(runs(pid), "{:?}", states(pid));
    // The thread that was not waited for must not stop when it wakes up either.
    sleep(Duration::from_millis(3500));
    assert!(runs(pid), "{:?}", states(pid));
    let later = threads(&stack(&[&pid.to_string(), "--json"]));
    assert!(later.values().all(|thread| thread.stop == "end_of_stack"), "{later:?}");
    running.signal(Signal::KILL);
}

#[test]
fn a_process_that_was_stopped_stays_so_and_goes_on_when_told() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["3"]);
    let pid = running.pid();
    running.signal(Signal::STOP);
    sleep(Duration::from_millis(200));
    assert!(states(pid).iter().all(|state| *state == 'T'), "{:?}", states(pid));
    let ours = threads(&stack(&[&pid.to_string(), "--json"]));
    assert_eq!(ours.len(), 4);
    assert!(ours.values().all(|thread| thread.stop == "end_of_stack"), "{ours:?}");
    sleep(Duration::from_millis(200));
    assert!(states(pid).iter().all(|state| *state == 'T'), "{:?}", states(pid));
    running.signal(Signal::CONT);
    assert!(runs(pid), "{:?}", states(pid));
    running.signal(Signal::KILL);
}

#[test]
fn a_killed_look_lets_go() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["20"]);
    let pid = running.pid();
    // Endless looks that hold the process; whenever it dies, it dies in one of them or between two.
    for _ in 0..5 {
        let mut look = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        look.args(["stack", &pid.to_string(), "--freeze", "--every", "0"]);
        let look = command::start(&mut look, LIMIT).expect("the binary is there");
        assert!(look.wait_for_output("process"), "it never looked");
        look.signal(Signal::KILL);
        look.finish();
        assert!(runs(pid), "{:?}", states(pid));
    }
    running.signal(Signal::KILL);
}

#[test]
fn signals_that_arrive_meanwhile_are_delivered() {
    // Reports each signal that it gets.
    let script = "import signal,time\ncount=0\ndef tick(*_):\n global count\n count+=1\n print(f'[{count}]',flush=True)\n\
                  signal.signal(signal.SIGUSR1,tick)\nprint('ready',flush=True)\nwhile True: time.sleep(0.001)";
    let Some(running) = available(command::start(Command::new("python3").args(["-c", script]), LIMIT)) else {
        return;
    };
    assert!(running.wait_for_output("ready"));
    let pid = running.pid();
    let mut look = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    look.args(["stack", &pid.to_string(), "--every", "0"]);
    let look = command::start(&mut look, LIMIT).expect("the binary is there");
    assert!(look.wait_for_output("process"), "it never looked");
    for number in 1..=100 {
        running.signal(Signal::USR1);
        let begin = Instant::now();
        while !running.stdout_so_far().contains(&format!("[{number}]")) {
            assert!(begin.elapsed() < LIMIT, "signal {number} was lost");
            sleep(Duration::from_millis(1));
        }
    }
    look.signal(Signal::KILL);
    look.finish();
    running.signal(Signal::KILL);
}

#[test]
fn a_record_is_named_later() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["5"]);
    let pid = running.pid().to_string();
    let now = stack(&[&pid, "--json"]);
    let record = stack(&[&pid, "--cbf"]);
    running.signal(Signal::KILL);
    running.finish();
    assert_eq!(record.code(), 0, "{}", record.describe());
    assert!(
        !record.stdout.contains("wait_in_read"),
        "a record has no names: {}",
        record.describe()
    );
    let folder = backtrail_testkit::scratch();
    let path = folder.path().join("record");
    std::fs::write(&path, &record.stdout).expect("a scratch folder");
    let path = path.to_str().expect("text");
    assert_eq!(stack(&[path, "--json"]).stdout, now.stdout);
    // The record can be written again, and a damaged one is reported with the place.
    assert_eq!(stack(&[path, "--cbf"]).stdout, record.stdout);
    std::fs::write(path, &record.stdout[..record.stdout.len() / 2]).expect("a scratch folder");
    let damaged = stack(&[path]);
    assert_eq!(damaged.code(), 2, "{}", damaged.describe());
    assert!(
        damaged
            .stderr
            .starts_with(&format!("backtrail: {path}: not JSON, line 1, column ")),
        "{}",
        damaged.describe()
    );
}

#[test]
fn a_process_in_namespaces_of_its_own() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    // Its executable is where only it can see it, and has gone even from there.
    let script = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/hidden && exec unshare -p -f sh -c '\
                  /mnt/hidden 5 & sleep 0.5; rm /mnt/hidden; wait'";
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", script]).arg(&built);
    let Some(running) = available(command::start(&mut unshare, LIMIT)) else {
        return;
    };
    if !running.wait_for_output("ready") {
        backtrail_testkit::skip("namespaces can't be made here");
        return;
    }
    sleep(Duration::from_millis(600));
    let found = std::fs::read_dir("/proc").expect("proc").flatten().find_map(|entry| {
        let executable = std::fs::read_link(entry.path().join("exe")).ok()?;
        let is_it = executable.to_str()? == "/mnt/hidden (deleted)";
        is_it.then(|| entry.file_name().to_str().map(str::to_owned)).flatten()
    });
    let pid = found.expect("it runs");
    let ours = threads(&stack(&[&pid, "--json"]));
    assert_eq!(ours.len(), 6, "{ours:?}");
    for inner in [
        "wait_for_condition",
        "wait_in_read",
        "wait_in_handler",
        "wait_in_recursion",
        "wait_in_sleep",
    ] {
        let is_in = |thread: &&stack::Thread| thread.frames.iter().any(|frame| frame.function == inner);
        let thread = ours
            .values()
            .find(is_in)
            .unwrap_or_else(|| panic!("no thread in {inner}: {ours:?}"));
        assert_eq!(thread.stop, "end_of_stack", "{thread:?}");
        let has_line = thread.frames.iter().any(|frame| {
            frame.value["file"]
                .as_str()
                .is_some_and(|file| file.ends_with("parked.c"))
        });
        assert!(has_line, "{thread:?}");
    }
    running.signal_group(Signal::KILL);
}

fn refused(arguments: &[&str], what: &str) {
    let finished = stack(arguments);
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    let complaints: Vec<&str> = finished
        .stderr
        .lines()
        .filter(|line| !line.starts_with("help: "))
        .collect();
    assert!(
        complaints.len() == 1 && complaints[0].contains(what),
        "{what}: {}",
        finished.describe()
    );
}

#[test]
fn processes_that_have_no_stack_to_show() {
    let ended = command::start(&mut Command::new("true"), LIMIT).expect("there is true");
    let pid = ended.pid().to_string();
    sleep(Duration::from_millis(300));
    refused(&[&pid], "has ended already (a zombie)");
    ended.finish();
    refused(&[&pid], "no such process");
    refused(&["4294967295"], "no such process");
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        refused(&["2"], "is a thread of the kernel");
    } else {
        backtrail_testkit::skip("the kernel's threads are not seen here");
    }
}

#[test]
fn a_process_that_may_not_be_traced() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let running = parked(&built, &["1"]);
    let pid = running.pid().to_string();
    // The binary lies where only its owner may go.
    let folder = backtrail_testkit::scratch();
    let copy = folder.path().join("backtrail");
    std::fs::copy(env!("CARGO_BIN_EXE_backtrail"), &copy).expect("a scratch folder");
    let opened = Command::new("chmod")
        .args(["755", folder.path().to_str().expect("text")])
        .status();
    assert!(opened.is_ok_and(|status| status.success()));
    let mut other = Command::new("setpriv");
    other
        .args(["--reuid=65534", "--clear-groups", "--inh-caps=-all"])
        .arg(&copy)
        .args(["stack", &pid]);
    let Some(finished) = available(command::run(&mut other, LIMIT)) else {
        return;
    };
    if finished.stderr.starts_with("setpriv: ") {
        backtrail_testkit::skip("only root can become another user");
        return;
    }
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    assert!(
        finished.stderr.contains("may not be traced: it belongs to user 0"),
        "{}",
        finished.describe()
    );
    assert!(finished.stderr.contains("\nhelp: "), "{}", finished.describe());
    // And one that a debugger holds already.
    let mut debugger = Command::new("gdb");
    debugger.args(["-batch", "-nx", "-p", &pid, "-ex", "shell echo it is held; sleep 60"]);
    if let Some(debugger) = available(command::start(&mut debugger, LIMIT)) {
        assert!(debugger.wait_for_output("it is held"));
        let refused = stack(&[&pid]);
        debugger.signal(Signal::KILL);
        debugger.finish();
        assert_eq!(refused.code(), 2, "{}", refused.describe());
        assert!(
            refused.stderr.contains("is traced by process"),
            "{}",
            refused.describe()
        );
    }
    running.signal(Signal::KILL);
}

/// Whoever names a function or a file may not write lines, or to the terminal, of those who look at
/// it.
#[test]
fn names_are_shown_without_control_characters() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let folder = scratch();
    let odd = folder.path().join("par\u{1b}[31m\nked");
    let mut bytes = fs::read(&built).unwrap();
    let (name, hostile) = (b"wait_in_sleep\0", b"wait\x1b[7m\nslee\0");
    let places: Vec<usize> = (0..bytes.len() - name.len())
        .filter(|at| bytes[*at..].starts_with(name))
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + name.len()].copy_from_slice(hostile);
    }
    fs::write(&odd, bytes).unwrap();
    fs::set_permissions(&odd, fs::metadata(&built).unwrap().permissions()).unwrap();
    let running = parked(&odd, &["5"]);
    let told = stack(&[&running.pid().to_string()]);
    running.signal(Signal::KILL);
    assert_eq!(told.code(), 0, "{}", told.describe());
    let controls = |c: char| c.is_control() && c != '\n';
    assert!(!told.stdout.contains(controls), "{}", told.describe());
    assert!(told.stdout.contains("wait\\u{1b}[7m\\nslee+0x"), "{}", told.describe());
    assert!(told.stdout.contains("(par\\u{1b}[31m\\nked)"), "{}", told.describe());
}
