//! Steps a program for AArch64 in which the C library walks, too: a plugin of qemu's user emulation
//! sends the first thread a signal after each instruction (`steps_plugin.c`), and its handler walks
//! and waits for us (`steps_inside.c`). A step takes 100 µs; by the emulator's gdb stub it took
//! 160 to 340.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use backtrail_arch::{Register, Registers};
use backtrail_process::sys::read_process;
use backtrail_testkit::{Missing, place};

use super::aarch64::Aarch64;
use super::check::{Bounds, Checker, Thread, Trouble};
use super::shadow::Shadow;
use super::{programs, qemu};

/// With plugins, which Debian's static emulator does not have.
const QEMU: &str = "qemu-aarch64";
/// What the program needs until its libraries are initialized.
const START: Duration = Duration::from_secs(300);
/// An instruction that takes longer never ends.
const STEP: Duration = Duration::from_secs(60);
/// x0 to x30, SP and PC.
const REGISTERS: usize = 33;
const MOST: usize = 256;
/// Return addresses and stack pointers that it begins with.
const CALLERS: usize = 16;

/// What a program needs to be stepped so.
struct Inside {
    preloaded: PathBuf,
    plugin: PathBuf,
}

impl Inside {
    /// Builds it, with the C library beside it.
    fn build(folder: &Path) -> Result<Inside, Missing> {
        let (target, linker) = (programs::AARCH64_TARGET, programs::AARCH64_LINKER);
        let backtrail = place::release_for(target, linker, "backtrail-capi", "libbacktrail.so").map_err(Missing)?;
        let beside = folder.join("libbacktrail.so.0");
        std::fs::copy(backtrail, &beside).map_err(|error| Missing(error.to_string()))?;
        let inside = Inside {
            preloaded: folder.join("steps_inside.so"),
            plugin: folder.join("steps_plugin.so"),
        };
        let compiled = |compiler: &str, source: &str, to: &Path| {
            let mut compile = Command::new(compiler);
            compile.args(["-O2", "-g", "-shared", "-fPIC", "-o"]).arg(to);
            compile.arg(place::programs().join(source));
            compile
        };
        let mut compile = compiled(linker, "steps_inside.c", &inside.preloaded);
        compile.arg("-I").arg(place::workspace().join("crates/capi/include"));
        compile.arg(&beside).arg(format!("-Wl,-rpath,{}", folder.display()));
        programs::done(&mut compile)?;
        programs::done(&mut compiled("gcc", "steps_plugin.c", &inside.plugin))?;
        Ok(inside)
    }
}

fn broken(error: io::Error) -> Trouble {
    Trouble::Broken(format!("the program that walks in itself: {error}"))
}

/// Steps a program from the end of its libraries' initialization to its end, or to the bounds.
pub(crate) fn run(
    checker: &mut Checker<Aarch64>,
    command: (&Path, &[&str]),
    environment: &[(&str, &str)],
    bounds: Bounds,
) -> Result<bool, Trouble> {
    let folder = backtrail_testkit::scratch();
    let inside = Inside::build(folder.path()).map_err(|missing| Trouble::NotAllowed(missing.to_string()))?;
    let socket = folder.path().join("steps");
    let listener = UnixListener::bind(&socket).map_err(broken)?;
    let mut qemu = Command::new(QEMU);
    qemu.args(["-singlestep", "-L", "/usr/aarch64-linux-gnu", "-plugin"])
        .arg(&inside.plugin);
    qemu.arg("-E").arg(format!("LD_PRELOAD={}", inside.preloaded.display()));
    qemu.arg("-E").arg(format!("BACKTRAIL_STEPS={}", socket.display()));
    let mut child = qemu::started(&mut qemu, command, environment)
        .map_err(|error| Trouble::NotAllowed(format!("{QEMU} (Debian: qemu-user): {error}")))?;
    let done = accept(&mut child, &listener).and_then(|stream| step_all(checker, stream, child.id() as i32, bounds));
    let is_over = matches!(done, Ok(true));
    if !is_over {
        let _ = child.kill();
    }
    let status = child.wait().map_err(broken)?;
    match is_over && !status.success() {
        true => Err(Trouble::Broken(format!("the stepped program: {status}"))),
        false => done,
    }
}

fn accept(child: &mut Child, listener: &UnixListener) -> Result<UnixStream, Trouble> {
    listener.set_nonblocking(true).map_err(broken)?;
    let started = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(broken)?;
                stream.set_read_timeout(Some(STEP)).map_err(broken)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(broken(error)),
        }
        if started.elapsed() > START || child.try_wait().map_err(broken)?.is_some() {
            return Err(Trouble::Broken("the program does not begin to walk in itself".into()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The program's end of the stream.
struct Walker {
    read: BufReader<UnixStream>,
    write: UnixStream,
}

impl Walker {
    fn words<const N: usize>(&mut self) -> io::Result<[u64; N]> {
        let mut words = [0; N];
        let mut bytes = [0; 8];
        for word in &mut words {
            self.read.read_exact(&mut bytes)?;
            *word = u64::from_le_bytes(bytes);
        }
        Ok(words)
    }

    /// Its registers, and the chain that it walked; `None` at its end.
    fn next(&mut self, chain: &mut Vec<u64>) -> Result<Option<Registers>, Trouble> {
        self.write.write_all(b".").map_err(broken)?;
        let count = match self.words::<1>() {
            Ok([count]) => count,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(broken(error)),
        };
        let words = self.words::<REGISTERS>().map_err(broken)?;
        let (pc, general) = words.split_last().expect("there are some");
        let mut registers = Registers::new(*pc);
        for (number, value) in (0u8..).zip(general) {
            registers.set(Register(number), *value);
        }
        chain.clear();
        for _ in 0..count.min(MOST as u64) {
            chain.extend(self.words::<1>().map_err(broken)?);
        }
        Ok(Some(registers))
    }
}

/// Whether it ended by itself.
fn step_all(checker: &mut Checker<Aarch64>, stream: UnixStream, pid: i32, bounds: Bounds) -> Result<bool, Trouble> {
    let started = Instant::now();
    let mut walker = Walker {
        write: stream.try_clone().map_err(broken)?,
        read: BufReader::new(stream),
    };
    let [count, address] = walker.words().map_err(broken)?;
    let callers = walker.words::<{ 2 * CALLERS }>().map_err(broken)?;
    // Once, whether memory can be read from qemu itself, which has the program's memory at the same
    // addresses.
    let mut seen = [0; 16];
    let read = read_process(pid, address, &mut seen).unwrap_or(0);
    if read != 16 || seen[..8] != count.to_le_bytes() || seen[8..] != address.to_le_bytes() {
        return Err(Trouble::NotAllowed("qemu has the program's memory elsewhere".into()));
    }
    let mut shadow = Shadow::default();
    // Innermost first; the first is the constructor itself, and behind the outermost is no address.
    let callers = callers.as_chunks::<2>().0.get(1..count as usize).unwrap_or_default();
    for [address, sp] in callers.iter().rev().filter(|[address, _]| *address != 0) {
        shadow.call(*address, *sp);
    }
    checker.begin_process(pid, None);
    checker.outcome.threads = 1;
    let mut thread = Thread::new(pid, shadow);
    let mut chain = Vec::new();
    while let Some(registers) = walker.next(&mut chain)? {
        checker.arrive(&mut thread, &registers);
        checker.arrive_with(&thread, &registers, &chain);
        if checker.outcome.instructions >= bounds.instructions || started.elapsed() > bounds.time {
            return Ok(false);
        }
    }
    Ok(true)
}
