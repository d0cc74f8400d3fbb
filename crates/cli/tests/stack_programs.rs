//! `backtrail stack` beside gdb and eu-stack: programs as people have them, running, in gdb's cores
//! and in the kernel's.

use crate::stack;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::debugger::{self, GdbFrame};
use backtrail_testkit::stat::Stat;
use backtrail_testkit::{Missing, TempDir, available, place, program, scratch};

use stack::{LIMIT, Thread, nginx_settings, same, stack, threads};

/// A program that waits.
struct Subject {
    what: &'static str,
    /// Held as long as it is looked at.
    running: Running,
    /// The process that is looked at: the one that was started, or one of its children.
    pid: u32,
    /// The signal that is sent for a core; `None` where none ends it as it would any program, or
    /// the core would be huge.
    core_signal: Option<&'static str>,
}

impl Subject {
    fn new(what: &'static str, running: Running) -> Subject {
        let pid = running.pid();
        Subject {
            what,
            running,
            pid,
            core_signal: Some("SYS"),
        }
    }

    fn executable(&self) -> PathBuf {
        std::fs::read_link(format!("/proc/{}/exe", self.pid)).expect("it runs")
    }
}

/// Starts a program in `folder`, where its core will be, with a pipe that nobody writes to as its
/// input.
fn start(what: &'static str, folder: &TempDir, arguments: &[&str]) -> Result<Subject, Missing> {
    let mut shell = Command::new("sh");
    // Report a missing program before the shell hides it.
    if !Command::new("sh")
        .args(["-c", "command -v \"$0\"", arguments[0]])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        return Err(Missing(format!("there is no {}", arguments[0])));
    }
    shell.args(["-c", "ulimit -c unlimited; mkfifo in && exec \"$0\" \"$@\" 0<>in"]);
    let running = command::start(shell.args(arguments).current_dir(folder.path()), LIMIT)?;
    Ok(Subject::new(what, running))
}

/// Our stacks of a running process.
fn look(pid: u32) -> BTreeMap<u32, Thread> {
    threads(&stack(&[&pid.to_string(), "--json"]))
}

fn pcs(thread: &Thread) -> Vec<u64> {
    thread.frames.iter().map(|frame| frame.pc).collect()
}

/// The threads that stand where they stood.
fn still(mut before: BTreeMap<u32, Thread>, now: &BTreeMap<u32, Thread>) -> BTreeMap<u32, Thread> {
    before.retain(|tid, thread| now.get(tid).is_some_and(|now| pcs(now) == pcs(thread)));
    before
}

/// Waits until the process has come to where it waits. Threads that wake up by themselves now and
/// then don't count.
fn settle(pid: u32) {
    let begin = Instant::now();
    let stat = PathBuf::from(format!("/proc/{pid}/stat"));
    // One that could run, but is not let, stands as still.
    let waits = || Stat::read(&stat).is_none_or(|stat| stat.state != 'R');
    let mut before = look(pid);
    let mut calm = 0;
    while calm < 2 && begin.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(250));
        let now = look(pid);
        let all = now.len();
        let standing = still(before, &now);
        calm = if waits() && standing.contains_key(&pid) && standing.len() * 3 >= all * 2 {
            calm + 1
        } else {
            0
        };
        before = now;
    }
}

/// What each tool shows of the threads of a running process.
struct Looks {
    ours: BTreeMap<u32, Thread>,
    eu_stack: Result<BTreeMap<u32, Vec<u64>>, Missing>,
    gdb: Result<BTreeMap<u32, Vec<GdbFrame>>, Missing>,
}

/// For threads that have moved meanwhile the others rightly report something else: threads that
/// were at another place before and after are left out. One may also have woken up in between and
/// returned, so there are several tries.
fn all_three(pid: u32, target: &[&OsStr]) -> Looks {
    const TRIES: u32 = 4;
    let mut tries = 0;
    loop {
        let before = look(pid);
        let mut looks = Looks {
            eu_stack: debugger::eu_stack(target),
            gdb: debugger::gdb(target),
            ours: still(before, &look(pid)),
        };
        let ours = &looks.ours;
        if let Ok(gdb) = &mut looks.gdb {
            gdb.retain(|tid, _| ours.contains_key(tid));
        }
        let frames = |tid: &u32| real_pcs(&ours[tid]);
        let gdb_agrees = looks.gdb.as_ref().is_ok_and(|gdb| {
            gdb.iter().all(|(tid, frames_of_gdb)| {
                let pcs = frames_of_gdb
                    .iter()
                    .filter(|frame| !frame.inlined && frame.pc != 0)
                    .map(|frame| frame.pc);
                pcs.eq(frames(tid))
            })
        });
        let eu_agrees = looks.eu_stack.as_ref().is_ok_and(|theirs| {
            theirs
                .iter()
                .all(|(tid, pcs)| !ours.contains_key(tid) || frames(tid).starts_with(pcs))
        });
        tries += 1;
        if gdb_agrees && eu_agrees || tries == TRIES {
            return looks;
        }
    }
}

/// Without those of inlined calls.
fn real_pcs(thread: &Thread) -> Vec<u64> {
    thread
        .frames
        .iter()
        .filter(|frame| !frame.inlined)
        .map(|frame| frame.pc)
        .collect()
}

/// Takes out what is known to differ, and says why.
type Explained = fn(&mut BTreeMap<u32, Thread>, &mut BTreeMap<u32, Vec<GdbFrame>>);

/// Holds what we show of a running process and of its cores against gdb, and eu-stack's frames
/// against both.
fn as_gdb(subject: Subject, folder: &TempDir, explained: Explained) {
    settle(subject.pid);
    let pid = subject.pid.to_string();
    let target = [OsStr::new("-p"), OsStr::new(&pid)];
    let executable = subject.executable();
    let compare = |mut ours: BTreeMap<u32, Thread>, mut gdb: BTreeMap<u32, Vec<GdbFrame>>, how: &str| {
        explained(&mut ours, &mut gdb);
        same(&ours, &gdb, &format!("{}, {how}", subject.what));
    };
    let running = all_three(subject.pid, &target);
    assert!(
        running.ours.contains_key(&subject.pid),
        "{} does not wait",
        subject.what
    );
    if let Some(theirs) = available(running.eu_stack) {
        second_opinion(&running.ours, &theirs, subject.what);
    }
    if let Some(gdb) = available(running.gdb) {
        compare(running.ours, gdb, "running");
    }
    let compare_core = |core: &Path, how: &str| {
        let ours = threads(&stack(&[core.to_str().expect("text"), "--json"]));
        if let Some(gdb) = available(debugger::gdb(&[executable.as_os_str(), core.as_os_str()])) {
            compare(ours, gdb, how);
        }
    };
    let core = folder.path().join("gcore");
    if available(debugger::gcore(subject.pid, &core)).is_some() {
        compare_core(&core, "gdb's core");
    }
    if let Some(signal) = subject.core_signal {
        let place = std::fs::read_link(format!("/proc/{pid}/cwd")).expect("it runs");
        kill(&pid, signal);
        if let Some(core) = available(kernels_core(&place, subject.pid)) {
            compare_core(&core, "the kernel's core");
        }
    }
    subject.running.signal_group(Signal::KILL);
}

fn kill(pid: &str, signal: &str) {
    let sent = Command::new("kill").args(["-s", signal, pid]).status();
    assert!(sent.is_ok_and(|status| status.success()));
}

/// The core that the kernel leaves in a process's folder.
fn kernels_core(place: &Path, pid: u32) -> Result<PathBuf, Missing> {
    let is_core = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("core"))
    };
    let begin = Instant::now();
    // It is whole when the process has gone.
    while Path::new(&format!("/proc/{pid}/maps")).exists() && !stack::states(pid).iter().all(|state| *state == 'Z') {
        if begin.elapsed() > Duration::from_secs(30) {
            return Err(Missing(format!("process {pid} does not end")));
        }
        sleep(Duration::from_millis(20));
    }
    let entries = std::fs::read_dir(place).expect("a scratch folder").flatten();
    entries
        .map(|entry| entry.path())
        .find(is_core)
        .ok_or(Missing("no core was written here (core_pattern)".to_owned()))
}

/// Fails if eu-stack reaches another frame than we do. It gives up earlier at some: after code
/// without call frame information, and with an error at frames that need what it does not keep.
fn second_opinion(ours: &BTreeMap<u32, Thread>, theirs: &BTreeMap<u32, Vec<u64>>, what: &str) {
    let (mut frames, mut short) = (0, 0);
    for (tid, thread) in ours {
        let Some(theirs) = theirs.get(tid) else { continue };
        let mut pcs = real_pcs(thread);
        let has_left = has_left_its_goroutine(thread);
        if has_left {
            pcs.pop();
        }
        let theirs = match has_left || ends_in_its_own_way(thread) {
            true => &theirs[..theirs.len().min(pcs.len())],
            false => &theirs[..],
        };
        let common = pcs.iter().zip(theirs).take_while(|(our, their)| our == their).count();
        // On AArch64 it repeats a frame that it has no call frame information for, as the vDSO's,
        // and goes on somewhere else.
        let repeats = common > 0 && theirs.get(common).is_some_and(|next| *next == theirs[common - 1]);
        let theirs = match cfg!(target_arch = "aarch64") && repeats {
            true => &theirs[..common],
            false => theirs,
        };
        assert!(
            common == theirs.len().min(pcs.len()) && theirs.len() <= pcs.len(),
            "{what}, thread {tid}, {}: {pcs:x?}\neu-stack: {theirs:x?}",
            thread.stop
        );
        frames += common;
        short += usize::from(common < pcs.len());
    }
    println!("{what}: {frames} frames as eu-stack has them; {short} stacks it shows no further");
}

/// Whether a stack of Go ends where its run-time library says that nothing called (`mstart`, though
/// `clone` has), or, in Go 1.19, where the goroutine has been left for the system stack: what
/// others find after that is left over on it.
fn ends_in_its_own_way(thread: &Thread) -> bool {
    const SWITCHES: [&str; 4] = [
        "runtime.systemstack",
        "runtime.asmcgocall",
        "runtime.mcall",
        "runtime.morestack",
    ];
    let last = thread.frames.last();
    let last = last.map_or("", |frame| frame.function.trim_end_matches(".abi0"));
    let is_whole = thread.stop == "end_of_stack";
    is_whole && last == "runtime.mstart" || !is_whole && SWITCHES.contains(&last)
}

/// Whether the thread's beginning follows the scheduler's switch: others then show the goroutine
/// that it was on before, or nothing.
fn has_left_its_goroutine(thread: &Thread) -> bool {
    let functions = thread.frames.iter().rev().map(|frame| frame.function.as_str());
    let mut outermost = functions.map(|function| function.trim_end_matches(".abi0"));
    outermost.next() == Some("runtime.mstart0") && outermost.next() == Some("runtime.mcall")
}

fn up_to_switches(ours: &mut BTreeMap<u32, Thread>, gdb: &mut BTreeMap<u32, Vec<GdbFrame>>) {
    for (tid, thread) in &*ours {
        if let Some(frames) = gdb.get_mut(tid).filter(|_| ends_in_its_own_way(thread)) {
            frames.truncate(thread.frames.len());
        }
    }
    without_address_0(ours, gdb);
    // A thread that has left its goroutine for good: gdb ends in `mcall`, though the thread's
    // beginning follows.
    for (tid, thread) in ours {
        let theirs = gdb.get(tid).and_then(|frames| frames.last());
        let left = theirs.and_then(|frame| frame.function.as_deref()) == Some("runtime.mcall");
        let begins = |frame: &stack::Frame| frame.function == "runtime.mstart0";
        if left && thread.frames.last().is_some_and(begins) {
            thread.frames.pop();
        }
    }
}

fn nothing(_: &mut BTreeMap<u32, Thread>, _: &mut BTreeMap<u32, Vec<GdbFrame>>) {}

fn simple(what: &'static str, arguments: &[&str]) {
    let folder = scratch();
    if let Some(subject) = available(start(what, &folder, arguments)) {
        as_gdb(subject, &folder, nothing);
    }
}

#[test]
fn tools_that_wait_for_input() {
    for (what, arguments) in [
        ("cat", &["cat"][..]),
        ("bash", &["bash", "-c", "f() { read x; }; f"]),
        ("perl", &["perl", "-e", "sub f { <STDIN> } f()"]),
        ("sqlite3", &["sqlite3", ":memory:"]),
        ("awk", &["awk", "{ print }"]),
        ("vim", &["vim", "-u", "NONE", "-es"]),
        ("openssl", &["openssl", "enc", "-base64"]),
        ("tclsh", &["tclsh"]),
    ] {
        simple(what, arguments);
    }
}

/// A vtable's shim and the closure that it calls are the same code, which has both names; gdb takes
/// the shim's.
fn shims(_: &mut BTreeMap<u32, Thread>, gdb: &mut BTreeMap<u32, Vec<GdbFrame>>) {
    for frame in gdb.values_mut().flatten() {
        frame.function = frame.function.take().filter(|name| !name.contains("{shim:vtable"));
    }
}

/// Their code is in libraries of a hundred megabytes and more.
#[test]
fn compilers() {
    let folder = scratch();
    let compilers: [(&str, &[&str]); 2] = [
        ("clang", &["clang", "-fintegrated-cc1", "-fsyntax-only", "-x", "c", "-"]),
        ("rustc", &["rustc", "--crate-type", "lib", "-"]),
    ];
    for (what, arguments) in compilers {
        let folder = TempDir::new_in(folder.path()).expect("a scratch folder");
        if let Some(mut subject) = available(start(what, &folder, arguments)) {
            subject.core_signal = None;
            as_gdb(subject, &folder, shims);
        }
    }
}

#[test]
fn python() {
    let script = "import threading,time,sys\n\
                  for _ in range(3): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n\
                  list(map(time.sleep, [1000]))";
    simple("python3", &["python3", "-c", script]);
}

#[test]
fn git() {
    let folder = scratch();
    let Some(made) = available(command::run(
        Command::new("git").args(["init", "-q"]).arg(folder.path()),
        LIMIT,
    )) else {
        return;
    };
    assert!(made.status.success(), "{}", made.describe());
    if let Some(subject) = available(start("git", &folder, &["git", "cat-file", "--batch"])) {
        as_gdb(subject, &folder, nothing);
    }
}

#[test]
fn servers() {
    let folder = scratch();
    let socket = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        "redis.sock",
        "--save",
        "",
    ];
    if let Some(mut subject) = available(start("redis", &folder, &socket)) {
        // It writes a report of its own when it is ended by others.
        subject.core_signal = Some("XCPU");
        as_gdb(subject, &folder, nothing);
    }
    let folder = scratch();
    if let Some(mut subject) = available(start("nginx", &folder, &["nginx", "-c", &nginx_settings(&folder)])) {
        // It ignores the other signal.
        subject.core_signal = Some("XCPU");
        as_gdb(subject, &folder, nothing);
    }
}

#[test]
fn node() {
    simple("node", &["node", "-e", "setTimeout(() => {}, 1000000)"]);
}

/// PostgreSQL's own programs, which distributions keep out of the way.
fn postgres_program(name: &str) -> Result<PathBuf, Missing> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut programs = versions.map(|version| version.path().join("bin").join(name));
    programs
        .find(|program| program.is_file())
        .ok_or(Missing(format!("there is no {name} of PostgreSQL")))
}

#[test]
fn postgres_with_a_client() {
    let Some((initdb, postgres)) =
        available(postgres_program("initdb").and_then(|initdb| Ok((initdb, postgres_program("postgres")?))))
    else {
        return;
    };
    let folder = scratch();
    let as_nobody = |program: &Path| {
        // It refuses to run as root.
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -c unlimited; exec setpriv \"$0\" \"$@\""])
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(program);
        command.current_dir(folder.path()).env("HOME", folder.path());
        command
    };
    let opened = Command::new("chmod")
        .args(["777", folder.path().to_str().expect("text")])
        .status();
    assert!(opened.is_ok_and(|status| status.success()));
    let mut init = as_nobody(&initdb);
    init.args([
        "-D",
        "data",
        "-U",
        "someone",
        "-A",
        "trust",
        "--no-sync",
        "-E",
        "UTF8",
        "--no-locale",
    ]);
    let Some(made) = available(command::run(&mut init, LIMIT)) else {
        return;
    };
    if made.stderr.contains("setpriv: ") {
        backtrail_testkit::skip("only root can become another user");
        return;
    }
    assert!(made.status.success(), "{}", made.describe());
    let mut server = as_nobody(&postgres);
    server
        .args([
            "-D",
            "data",
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=off",
            "-c",
            "shared_buffers=1MB",
            "-k",
        ])
        .arg(folder.path());
    let server = command::start(&mut server, LIMIT).expect("it is there");
    let mut client = Command::new("psql");
    client
        .args(["-U", "someone", "-d", "postgres", "-c", "select pg_sleep(1000)", "-h"])
        .arg(folder.path());
    client.env("PGCONNECT_TIMEOUT", LIMIT.as_secs().to_string());
    let begin = Instant::now();
    // It refuses clients between making its socket and this.
    let is_ready = || {
        let state = std::fs::read_to_string(folder.path().join("data/postmaster.pid")).unwrap_or_default();
        state.lines().any(|line| line.trim_end() == "ready")
    };
    while !is_ready() && begin.elapsed() < LIMIT {
        sleep(Duration::from_millis(50));
    }
    let Some(client) = available(command::start(&mut client, LIMIT)) else {
        server.signal(Signal::INT);
        return;
    };
    let backend = loop {
        if let Some(pid) = child_called(server.pid(), "SELECT") {
            break pid;
        }
        assert!(begin.elapsed() < LIMIT, "no backend: {}", server.stdout_so_far());
        sleep(Duration::from_millis(50));
    };
    let subject = Subject {
        what: "postgres",
        running: server,
        pid: backend,
        core_signal: Some("XCPU"),
    };
    as_gdb(subject, &folder, nothing);
    client.signal(Signal::KILL);
}

/// The child of a process whose command line holds `text`.
fn child_called(parent: u32, text: &str) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let mut children = children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
    children.find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    })
}

/// gdb knows no frames of code that was made at run time, and what it makes up for them ends its
/// stacks anywhere; so the threads that run only what is in files are compared.
fn native_threads(ours: &mut BTreeMap<u32, Thread>, gdb: &mut BTreeMap<u32, Vec<GdbFrame>>) {
    let is_native = |thread: &Thread| thread.frames.iter().all(|frame| frame.value["build_id"].is_string());
    ours.retain(|_, thread| is_native(thread));
    assert!(ours.len() > 5, "a JVM has more threads of its own: {ours:?}");
    gdb.retain(|tid, _| ours.contains_key(tid));
}

#[test]
fn a_jvm_s_native_threads() {
    let folder = scratch();
    let source =
        "public class Waits { public static void main(String[] a) throws Exception { Thread.sleep(1000000); } }";
    std::fs::write(folder.path().join("Waits.java"), source).expect("a scratch folder");
    if let Some(mut subject) = available(start("java", &folder, &["java", "-Xmx64m", "Waits.java"])) {
        // It handles most signals itself.
        subject.core_signal = Some("XCPU");
        sleep(Duration::from_secs(3));
        as_gdb(subject, &folder, native_threads);
    }
}

/// Go's stacks begin in its run-time library (`runtime.goexit` of a goroutine, `runtime.clone` of a
/// thread, `runtime.mcall` of the scheduler), with zeros above: gdb shows an address 0 there.
fn without_address_0(_: &mut BTreeMap<u32, Thread>, gdb: &mut BTreeMap<u32, Vec<GdbFrame>>) {
    for frames in gdb.values_mut() {
        let first = frames.iter().rev().nth(1).and_then(|frame| frame.function.as_deref());
        let is_first = first.is_some_and(|name| name.starts_with("runtime."));
        if is_first && frames.last().is_some_and(|frame| frame.pc == 0) {
            frames.pop();
        }
    }
}

/// The parked program in Go, with these flags for its linker.
pub(crate) fn go_program(folder: &TempDir, flags: &str) -> Result<PathBuf, Missing> {
    let built = folder.path().join("parked_go");
    let mut build = Command::new("go");
    build.args(["build", "-ldflags", flags, "-o"]).arg(&built);
    build
        .arg(place::workspace().join("crates/cli/tests/programs/parked.go"))
        .env("GOCACHE", place::target().join("testprograms/go"))
        .env("GOFLAGS", "-mod=mod")
        .env("GO111MODULE", "off");
    let made = command::run(&mut build, LIMIT)?;
    assert!(made.status.success(), "{}", made.describe());
    Ok(built)
}

#[test]
fn a_go_program() {
    let folder = scratch();
    let Some(built) = available(go_program(&folder, "")) else {
        return;
    };
    if let Some(mut subject) = available(start("go", &folder, &[built.to_str().expect("text")])) {
        // It ends in a way of its own.
        subject.core_signal = None;
        as_gdb(subject, &folder, up_to_switches);
    }
}

/// Without `.debug_frame` gdb takes words on the stack for return addresses; but the program is the
/// same one, linked in another way.
#[test]
fn a_go_program_without_debug_information() {
    let waiting = |flags: &str| {
        let folder = scratch();
        let built = available(go_program(&folder, flags))?;
        let subject = available(start("go", &folder, &[built.to_str().expect("text")]))?;
        settle(subject.pid);
        let threads = look(subject.pid);
        // Inlined calls are debug information's.
        let frames = |thread: &Thread| thread.frames.clone().into_iter().filter(|frame| !frame.inlined);
        let functions = |thread: &Thread| frames(thread).map(|frame| frame.function).collect();
        let chains: Vec<Vec<String>> = threads.values().map(functions).collect();
        subject.running.signal_group(Signal::KILL);
        let waits = chains
            .iter()
            .find(|chain| chain.iter().any(|function| function == "main.wait"));
        Some(waits.unwrap_or_else(|| panic!("nobody waits: {chains:?}")).clone())
    };
    let (Some(whole), Some(without)) = (waiting(""), waiting("-w")) else {
        return;
    };
    assert!(whole.len() > 6, "{whole:?}");
    let plain = |name: &String| name.trim_end_matches(".abi0").to_owned();
    assert_eq!(
        without.iter().map(plain).collect::<Vec<_>>(),
        whole.iter().map(plain).collect::<Vec<_>>()
    );
}

#[test]
fn programs_of_our_own() {
    for (built, arguments) in [
        (program::PARKED, &["5"][..]),
        (program::PARKED_STATIC, &["5"]),
        (program::PARKED_CPP, &[]),
        (program::PARKED_RUST, &[]),
        (program::PARKED, &["64"]),
    ] {
        let Some(path) = available(built.build()) else { continue };
        let folder = scratch();
        let command = [&[path.to_str().expect("text")], arguments].concat();
        if let Some(subject) = available(start(built.name, &folder, &command)) {
            assert!(subject.running.wait_at_rest("ready"));
            as_gdb(subject, &folder, nothing);
        }
    }
}
