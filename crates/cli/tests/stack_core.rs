//! `backtrail stack CORE`, beside gdb.

use crate::stack;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use backtrail_testkit::command::{self, Finished, Signal};
use backtrail_testkit::program;
use backtrail_testkit::{Missing, TempDir, available, debugger, place, scratch};

use stack::{LIMIT, chains, parked, same, stack, threads};

/// A core of a running process, written by gdb.
fn gcore(folder: &TempDir, pid: u32) -> Result<PathBuf, Missing> {
    let path = folder.path().join("gcore");
    debugger::gcore(pid, &path).map(|()| path)
}

/// A program with this many more threads that has ended in this way, and the kernel's core of it,
/// in a folder of its own.
fn crashed(program: &program::Program, threads: &str, how: &str) -> Option<(TempDir, PathBuf, PathBuf)> {
    let built = available(program.build())?;
    let folder = scratch();
    let command = [built.as_os_str(), threads.as_ref(), how.as_ref()];
    let core = available(debugger::crashed(&folder, &command))?;
    Some((folder, built, core))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of test files are text")
}

/// Our stacks of a core held against gdb's.
fn as_gdb(program: &Path, core: &Path, what: &str) {
    let ours = threads(&stack(&[text(core), "--json"]));
    let Some(gdb) = available(debugger::gdb(&[program.as_os_str(), core.as_os_str()])) else {
        return;
    };
    same(&ours, &gdb, what);
}

#[test]
fn a_core_of_the_kernel() {
    let Some((_folder, built, core)) = crashed(&program::PARKED, "5", "crash") else {
        return;
    };
    as_gdb(&built, &core, "kernel's core");
    let shown = stack(&[text(&core)]);
    assert!(
        shown.stdout.contains("6 threads, ended by signal 11"),
        "{}",
        shown.describe()
    );
    let first: Vec<&str> = shown.stdout.lines().skip(3).take(3).collect();
    for (line, function) in first.iter().zip(["bad_read", "crash", "main"]) {
        assert!(line.contains(&format!(" in {function}")), "{}", shown.describe());
    }
}

#[test]
fn cores_of_a_thousand_threads() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let folder = scratch();
    let running = parked(&built, &["999"]);
    let core = available(gcore(&folder, running.pid()));
    running.signal(Signal::KILL);
    if let Some(core) = core {
        as_gdb(&built, &core, "gdb's core of 1,000 threads");
    }
    let folder = scratch();
    let command = [built.as_os_str(), "999".as_ref(), "crash".as_ref()];
    if let Some(core) = available(debugger::crashed(&folder, &command)) {
        as_gdb(&built, &core, "kernel's core of 1,000 threads");
        let shown = stack(&[text(&core)]);
        assert!(
            shown.stdout.contains("1000 threads, ended by signal 11"),
            "{}",
            shown.describe()
        );
    }
}

#[test]
fn a_call_to_nowhere() {
    let Some((_folder, built, core)) = crashed(&program::PARKED, "1", "null") else {
        return;
    };
    as_gdb(&built, &core, "call of address 0");
}

#[test]
fn a_core_of_a_static_program() {
    let Some((_folder, built, core)) = crashed(&program::PARKED_STATIC, "5", "crash") else {
        return;
    };
    as_gdb(&built, &core, "kernel's core of a static program");
}

#[test]
fn a_core_of_gdb_plain_and_compressed_and_from_a_stream() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let folder = scratch();
    let running = parked(&built, &["5"]);
    let Some(core) = available(gcore(&folder, running.pid())) else {
        return;
    };
    running.signal(Signal::KILL);
    as_gdb(&built, &core, "gdb's core");
    // gdb has stopped it to write the core, and let it run on.
    let shown = stack(&[text(&core)]);
    assert!(
        shown.stdout.contains("6 threads, stopped by signal 19\n"),
        "{}",
        shown.describe()
    );
    let plain = stack(&[text(&core), "--json"]);
    assert_eq!(plain.code(), 0, "{}", plain.describe());
    for tool in ["gzip", "zstd", "lz4"] {
        let packed = folder.path().join(format!("packed.{tool}"));
        let out = fs::File::create(&packed).expect("a scratch folder");
        let status = Command::new(tool).args(["-q", "-c", text(&core)]).stdout(out).status();
        let Some(status) = available(status.map_err(|error| Missing(format!("{tool}: {error}")))) else {
            continue;
        };
        assert!(status.success());
        assert_eq!(stack(&[text(&packed), "--json"]).stdout, plain.stdout, "{tool}");
        assert_eq!(from_stream(&packed).stdout, plain.stdout.as_bytes(), "{tool}");
    }
    assert_eq!(from_stream(&core).stdout, plain.stdout.as_bytes());
}

fn from_stream(path: &Path) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.args(["stack", "-", "--json"]);
    command.stdin(Stdio::from(fs::File::open(path).expect("it was just written")));
    command.output().expect("the binary is there")
}

/// The parked program for another CPU.
fn parked_for_aarch64(folder: &TempDir, options: &[&str]) -> Result<PathBuf, Missing> {
    let program = folder.path().join("parked");
    let mut compile = Command::new("aarch64-linux-gnu-gcc");
    compile.args(["-O2", "-g", "-fomit-frame-pointer", "-pthread"]);
    compile.args(options).arg("-o").arg(&program);
    let compiled = command::run(compile.arg(place::programs().join("parked.c")), LIMIT)?;
    assert!(compiled.status.success(), "{}", compiled.describe());
    Ok(program)
}

#[test]
fn a_core_of_qemu_for_aarch64() {
    let folder = scratch();
    let Some(program) = available(parked_for_aarch64(&folder, &["-static"])) else {
        return;
    };
    let arguments = ["qemu-aarch64-static", text(&program), "1", "crash"];
    let Some(core) = available(debugger::crashed(&folder, &arguments.map(OsStr::new))) else {
        return;
    };
    let finished = stack(&[text(&core), "--json"]);
    println!("{}", finished.describe());
    let ours = threads(&finished);
    let chains = chains(&ours);
    assert!(
        chains.iter().any(|chain| chain[..3] == ["bad_read", "crash", "main"]),
        "{chains:?}"
    );
}

#[test]
fn a_core_of_qemu_with_shared_libraries() {
    let folder = scratch();
    let Some(program) = available(parked_for_aarch64(&folder, &[])) else {
        return;
    };
    const ROOT: &str = "/usr/aarch64-linux-gnu";
    let arguments = ["qemu-aarch64-static", "-L", ROOT, text(&program), "1", "crash"];
    let Some(core) = available(debugger::crashed(&folder, &arguments.map(OsStr::new))) else {
        return;
    };
    let ours = threads(&stack(&[text(&core), "--sysroot", ROOT, "--json"]));
    // gdb reads no such core: it looks for libraries by what qemu has left out. So the source says
    // what is right.
    let chains = chains(&ours);
    let has = |wanted: &[&str]| {
        chains
            .iter()
            .any(|chain| chain.windows(wanted.len()).any(|part| part == wanted))
    };
    assert!(has(&["bad_read", "crash", "main"]), "{chains:?}");
    assert!(has(&["wait_for_condition", "middle", "outer", "begin"]), "{chains:?}");
    let first = chains
        .iter()
        .find(|chain| chain[0] == "bad_read")
        .expect("it crashed there");
    assert_eq!(first[4..], ["__libc_start_main", "_start"], "{first:?}");
    let waiting = chains
        .iter()
        .find(|chain| chain.contains(&"begin"))
        .expect("it waits there");
    assert!(
        waiting.contains(&"pthread_cond_wait") && waiting.len() == 8,
        "{waiting:?}"
    );
    // Libraries of this machine at the same addresses as the core's are distinguished from them.
    let without = stack(&[text(&core)]);
    assert_eq!(without.code(), 0, "{}", without.describe());
    assert!(
        without.stderr.contains("not found") || without.stderr.contains("mismatch"),
        "{}",
        without.describe()
    );
}

fn complaint(finished: &Finished) -> &str {
    assert_eq!(finished.code(), 2, "{}", finished.describe());
    let mut lines = finished.stderr.lines().filter(|line| !line.starts_with("help: "));
    let line = lines.next().expect("a complaint");
    assert!(
        line.starts_with("backtrail: ") && lines.next().is_none(),
        "{}",
        finished.describe()
    );
    line
}

#[test]
fn every_beginning_of_a_core() {
    let Some((folder, _, core)) = crashed(&program::PARKED, "2", "crash") else {
        return;
    };
    let bytes = fs::read(&core).expect("it is there");
    let cut = folder.path().join("cut");
    let ends = (0..12)
        .map(|step| step * 16)
        .chain((1..24).map(|step| step * 400))
        .chain((1..24).map(|step| bytes.len() * step / 24));
    let (mut refused, mut shown) = (0, 0);
    for end in ends {
        fs::write(&cut, &bytes[..end.min(bytes.len())]).expect("a scratch folder");
        let finished = stack(&[text(&cut)]);
        assert!(
            !finished.timed_out && !finished.stderr.contains("panicked"),
            "{end}: {}",
            finished.describe()
        );
        if finished.code() == 0 {
            assert!(
                finished.stderr.contains("is cut off: "),
                "{end}: {}",
                finished.describe()
            );
            shown += 1;
        } else {
            complaint(&finished);
            refused += 1;
        }
    }
    println!("{refused} refused, {shown} shown");
    assert!(refused > 10 && shown > 10);
}

#[test]
fn files_that_are_gone_or_others_are_named() {
    let Some(built) = available(program::PARKED.build()) else {
        return;
    };
    let folder = scratch();
    let own = folder.path().join("own");
    fs::copy(&built, &own).expect("a scratch folder");
    let Some(core) = available(debugger::crashed(
        &folder,
        &[own.as_os_str(), "1".as_ref(), "crash".as_ref()],
    )) else {
        return;
    };
    let here = stack(&[text(&core), "--json"]);
    fs::remove_file(&own).expect("it was there");
    let gone = stack(&[text(&core)]);
    assert_eq!(gone.code(), 0, "{}", gone.describe());
    assert!(
        gone.stderr.contains(&format!("warning: {}: not found", own.display())),
        "{}",
        gone.describe()
    );
    assert!(gone.stdout.contains("own+0x"), "{}", gone.describe());
    // Another program, at its path or given.
    let Some(other) = available(program::SPIN.build()) else {
        return;
    };
    fs::copy(&other, &own).expect("a scratch folder");
    for arguments in [vec![text(&core)], vec![text(&core), "--exe", text(&other)]] {
        let finished = stack(&arguments);
        assert!(
            finished.stderr.contains("build ID mismatch: the process has "),
            "{}",
            finished.describe()
        );
    }
    let given = stack(&[text(&core), "--exe", text(&built), "--json"]);
    assert_eq!(given.stdout, here.stdout, "{}", given.describe());
}

#[test]
fn what_is_no_core() {
    let folder = scratch();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("a scratch folder");
        path
    };
    let bits32 = file("bits32", &[b"\x7fELF\x01\x01\x01".as_slice(), &[0; 100]].concat());
    let mut other = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 100]].concat();
    (other[16], other[18]) = (4, 8);
    let mips = file("mips", &other);
    let own = std::env::current_exe().expect("a test has a file");
    let none = folder.path().join("none");
    for (path, what) in [
        (&file("empty", b""), "not an ELF file"),
        (&file("text", b"hello"), "not an ELF file"),
        (&bits32, "32-bit ELF is not supported"),
        (&mips, "ELF machine 8 is not supported"),
        (&own, "not a core file"),
        (&none, "No such file"),
        (&folder.path().to_owned(), "is a directory"),
        (
            &file("gzip", b"\x1f\x8b\x08\0garbage that is none"),
            "can't be decompressed",
        ),
        (&file("zstd", b"\x28\xb5\x2f\xfdxx"), ""),
    ] {
        let finished = stack(&[text(path)]);
        assert!(complaint(&finished).contains(what), "{what}: {}", finished.describe());
    }
}
