//! Compares the registers of every frame with gdb's.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_arch::{Arch, Register, aarch64, x86_64};
use backtrail_elf::core::Core;
use backtrail_elf::{FileBytes, Image, Symbols};
use backtrail_process::{Snapshot, core, live};
use backtrail_stacks::{Looker, Options, Process, input};
use backtrail_testkit::command::{self, Running, Signal};
use backtrail_testkit::debugger::{self, GdbFrame, gdb_with_registers};
use backtrail_testkit::program::{self, Program};
use backtrail_testkit::{Missing, TempDir, available, scratch};
use backtrail_unwind::AddressKind;

use crate::signed_core::with_39_bits;

const LIMIT: Duration = Duration::from_secs(60);

fn look(snapshot: &Snapshot<'_>) -> Process {
    let options = Options {
        registers: true,
        ..Options::default()
    };
    Looker::new(options).stacks(snapshot)
}

/// The general registers to request from gdb.
fn asked(arch: &Arch) -> Vec<Register> {
    let preserved = arch.preserved.iter().copied();
    preserved.chain([arch.sp]).collect()
}

/// Compares each frame's registers with gdb's, and returns how many are known of how many.
fn compare(arch: &Arch, ours: &Process, gdb: &BTreeMap<u32, Vec<GdbFrame>>, what: &str) -> (usize, usize) {
    let (mut frames, mut known, mut all) = (0, 0, 0);
    for thread in &ours.threads {
        let theirs = gdb.get(&thread.tid).expect("gdb has the thread");
        let theirs: Vec<&GdbFrame> = theirs.iter().filter(|frame| !frame.inlined).collect();
        assert_eq!(thread.frames.len(), theirs.len(), "{what}: {thread:x?}\n{theirs:x?}");
        for (index, their) in theirs.iter().enumerate() {
            let registers = thread.registers.get(index).expect("they were asked for");
            assert_eq!(registers.pc, their.pc, "{what}: {thread:x?}\n{theirs:x?}");
            frames += 1;
            for register in asked(arch) {
                let name = arch.register_name(register).expect("it has a name");
                all += 1;
                let Some(value) = registers.get(register) else { continue };
                known += 1;
                assert_eq!(
                    Some(&value),
                    their.registers.get(name),
                    "{what}: {name} in frame {index}, {:?}, of thread {}",
                    their.function,
                    thread.tid
                );
            }
        }
    }
    println!("{what}: {frames} frames, {known} of {all} registers known, all as gdb has them");
    (known, all)
}

fn live_as_gdb(running: &Running, what: &str) -> Option<(usize, usize)> {
    let pid = running.pid();
    let (snapshot, hold) = live::capture(pid, false).expect("it may be traced");
    drop(hold);
    let ours = look(&snapshot);
    let arch = Arch::native();
    let names: Vec<&str> = asked(arch)
        .into_iter()
        .filter_map(|register| arch.register_name(register))
        .collect();
    let pid = pid.to_string();
    let gdb = available(gdb_with_registers("gdb", &[OsStr::new("-p"), OsStr::new(&pid)], &names))?;
    Some(compare(arch, &ours, &gdb, what))
}

fn program_as_gdb(program: &Program, arguments: &[&str]) {
    let Some(built) = available(program.build()) else {
        return;
    };
    let running = command::start(Command::new(built).args(arguments), LIMIT).expect("it was just built");
    assert!(running.wait_at_rest("ready"), "{} is not ready", program.name);
    if let Some((known, all)) = live_as_gdb(&running, program.name) {
        assert_eq!(known, all, "{}: registers are lost", program.name);
    }
    running.signal(Signal::KILL);
}

#[test]
fn c() {
    program_as_gdb(&program::PARKED, &["5"]);
}

#[test]
fn c_static() {
    program_as_gdb(&program::PARKED_STATIC, &["5"]);
}

#[test]
fn cpp() {
    program_as_gdb(&program::PARKED_CPP, &[]);
}

#[test]
fn rust() {
    program_as_gdb(&program::PARKED_RUST, &[]);
}

#[test]
fn python() {
    let script = "import threading,time\n\
                  for _ in range(3): threading.Thread(target=lambda: sorted([2,1],key=lambda _:time.sleep(1000)),daemon=True).start()\n\
                  time.sleep(0.3)\nprint('ready', flush=True)\nlist(map(time.sleep, [1000]))";
    let Some(running) = available(command::start(Command::new("python3").args(["-c", script]), LIMIT)) else {
        return;
    };
    assert!(running.wait_at_rest("ready"));
    if let Some((known, all)) = live_as_gdb(&running, "python3") {
        assert_eq!(known, all, "registers are lost");
    }
    running.signal(Signal::KILL);
}

/// A core of an AArch64 program, written by qemu.
fn aarch64_core(folder: &TempDir, option: &str) -> Result<(PathBuf, PathBuf), Missing> {
    let program = folder.path().join("parked");
    let mut compile = Command::new("aarch64-linux-gnu-gcc");
    compile.args(["-O2", "-g", "-fomit-frame-pointer", "-pthread", "-static", option, "-o"]);
    compile
        .arg(&program)
        .arg(backtrail_testkit::place::programs().join("parked.c"));
    let compiled = command::run(&mut compile, LIMIT)?;
    assert!(compiled.status.success(), "{}", compiled.describe());
    let command = [
        "qemu-aarch64-static".as_ref(),
        program.as_os_str(),
        "1".as_ref(),
        "crash".as_ref(),
    ];
    let core = debugger::crashed(folder, &command)?;
    Ok((program, core))
}

#[test]
fn a_core_of_aarch64() {
    let folder = scratch();
    if let Some((program, path)) = available(aarch64_core(&folder, "-mbranch-protection=none")) {
        core_as_gdb(&program, &path, "AArch64");
    }
}

/// The source says which functions call each other: gdb 13 shows the first frame of such a core.
#[test]
fn a_core_of_a_kernel_with_short_addresses() {
    let folder = scratch();
    let Some((program, path)) = available(aarch64_core(&folder, "-mbranch-protection=standard")) else {
        return;
    };
    let mut bytes = std::fs::read(&path).expect("it was just written");
    let signed = with_39_bits(&mut bytes);
    assert!(signed >= 4, "{signed} words are signed");
    std::fs::write(&path, bytes).expect("a scratch folder");
    let input = input::open(&path).expect("it was just written");
    let core = Core::parse(input.file.bytes()).expect("a core");
    let ours = look(&core::snapshot(&core));
    let file = FileBytes::open(&program).expect("it was just built");
    let image = Image::of(&file).expect("ELF");
    let symbols = Symbols::new(&image);
    let thread = ours.threads.first().expect("it crashed there");
    let names = thread.frames.iter().map(|frame| {
        let symbol = symbols.lookup(frame.address - u64::from(frame.kind == AddressKind::Ra));
        symbol.map_or(String::new(), |symbol| symbol.name.into_owned())
    });
    let names: Vec<String> = names.collect();
    assert_eq!(names[..3], ["bad_read", "crash", "main"], "{thread:x?}");
    assert_eq!(names.last().map(String::as_str), Some("_start"), "{thread:x?}");
}

fn core_as_gdb(program: &Path, path: &Path, what: &str) {
    let input = input::open(path).expect("it was just written");
    let core = Core::parse(input.file.bytes()).expect("a core");
    let ours = look(&core::snapshot(&core));
    let arch = &aarch64::ARCH;
    let names: Vec<&str> = asked(arch)
        .into_iter()
        .filter_map(|register| arch.register_name(register))
        .collect();
    let target = [program.as_os_str(), path.as_os_str()];
    let Some(gdb) = available(gdb_with_registers("gdb-multiarch", &target, &names)) else {
        return;
    };
    let (known, all) = compare(arch, &ours, &gdb, what);
    assert_eq!(known, all, "registers are lost");
}

#[test]
fn names_of_registers_are_gdbs() {
    for arch in [&x86_64::ARCH, &aarch64::ARCH] {
        assert!(
            asked(arch)
                .iter()
                .all(|&register| arch.register_name(register).is_some())
        );
    }
}
