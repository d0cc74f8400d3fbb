//! Steps a program for AArch64 under qemu-user, with the protocol of its gdb stub (GDB's manual,
//! "Remote Protocol"). Only the first thread can be stepped; others run beside it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use backtrail_arch::{Register, Registers};
use backtrail_process::sys::read_process;

use super::aarch64::Aarch64;
use super::check::{Bounds, Checker, Thread, Trouble};
use super::shadow::Shadow;

/// x0 to x30, SP and PC in an answer to `g`.
const REGISTERS: usize = 33;
/// Qemu listens once it has loaded the program.
const START: Duration = Duration::from_secs(20);
/// An instruction that takes longer never ends.
const STEP: Duration = Duration::from_secs(60);

struct Stub {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// Why a step ended.
enum Stopped {
    Here,
    Signal(u8),
    Ended,
}

/// Starts a program in an emulator, without input and output.
pub(super) fn started(
    qemu: &mut Command,
    (program, arguments): (&Path, &[&str]),
    environment: &[(&str, &str)],
) -> io::Result<Child> {
    qemu.arg(program).args(arguments);
    qemu.envs(environment.iter().copied()).env("LC_ALL", "C");
    qemu.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}

/// Steps `command` to its end, or to the bounds.
pub(crate) fn run(
    checker: &mut Checker<Aarch64>,
    command: (&Path, &[&str]),
    environment: &[(&str, &str)],
    bounds: Bounds,
) -> Result<bool, Trouble> {
    let folder = backtrail_testkit::scratch();
    let socket = folder.path().join("stub");
    let mut qemu = Command::new("qemu-aarch64-static");
    qemu.args(["-L", "/usr/aarch64-linux-gnu", "-g"]).arg(&socket);
    let mut child = started(qemu.stderr(Stdio::null()), command, environment)
        .map_err(|error| Trouble::NotAllowed(format!("qemu-aarch64-static: {error}")))?;
    let done = connect(&mut child, &socket).and_then(|stub| step_all(checker, stub, child.id() as i32, bounds));
    let _ = child.kill();
    let _ = child.wait();
    done
}

fn broken(error: io::Error) -> Trouble {
    Trouble::Broken(format!("gdb stub: {error}"))
}

fn connect(child: &mut Child, socket: &Path) -> Result<Stub, Trouble> {
    let started = Instant::now();
    loop {
        if let Ok(stream) = UnixStream::connect(socket) {
            stream.set_read_timeout(Some(STEP)).map_err(broken)?;
            return Ok(Stub {
                stream,
                buffer: Vec::new(),
            });
        }
        if started.elapsed() > START || child.try_wait().map_err(broken)?.is_some() {
            return Err(Trouble::Broken("qemu does not listen".into()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether it ended by itself.
fn step_all(checker: &mut Checker<Aarch64>, mut stub: Stub, pid: i32, bounds: Bounds) -> Result<bool, Trouble> {
    let started = Instant::now();
    stub.ask(b"?").map_err(broken)?;
    checker.begin_process(pid, None);
    checker.outcome.threads = 1;
    let mut thread = Thread::new(pid, Shadow::default());
    let mut registers = stub.registers()?;
    check_memory(&mut stub, pid, &registers)?;
    checker.arrive(&mut thread, &registers);
    let mut signal = None;
    loop {
        let behind = match signal {
            None => behind_exclusive(pid, registers.pc),
            Some(_) => Vec::new(),
        };
        let stopped = match behind.is_empty() {
            true => stub.step(signal.take())?,
            false => stub.run_to(&behind)?,
        };
        match stopped {
            Stopped::Ended => return Ok(true),
            Stopped::Here => {
                registers = stub.registers()?;
                // The emulator does not stop after a system call.
                if let Some(passed) = checker.passed(&thread, &registers) {
                    checker.arrive(&mut thread, &passed);
                }
                checker.arrive(&mut thread, &registers);
            }
            Stopped::Signal(number) => {
                let before = registers.pc;
                registers = stub.registers()?;
                // Unlike under ptrace, an instruction may have run before the signal is reported.
                if registers.pc != before {
                    if let Some(passed) = checker.passed(&thread, &registers) {
                        checker.arrive(&mut thread, &passed);
                    }
                    checker.arrive(&mut thread, &registers);
                }
                checker.signal(&mut thread, &registers);
                signal = Some(number);
            }
        }
        if checker.outcome.instructions >= bounds.instructions || started.elapsed() > bounds.time {
            return Ok(false);
        }
    }
}

/// The exits of a load-exclusive instruction's loop, if one starts here: at each step the emulator
/// clears the exclusive monitor, as a CPU does at each exception, and the store would never succeed
/// (Arm's architecture manual, B2.9.5, K13.3). So these few instructions are run in one go.
fn behind_exclusive(pid: i32, pc: u64) -> Vec<u64> {
    const LONGEST: usize = 16;
    let mut code = [0; 4 * LONGEST];
    let read = read_process(pid, pc, &mut code).unwrap_or(0);
    let words: Vec<u32> = code[..read]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect();
    exclusive_loop(pc, &words)
}

/// As [`behind_exclusive`], of the instructions there.
fn exclusive_loop(pc: u64, words: &[u32]) -> Vec<u64> {
    // Load and store exclusive, of a register or a pair (C4.1.66): bit 22 says which of them.
    // Small pairs with bit 21 are CASP.
    let is_exclusive = |word: u32, load: u32| {
        word & 0x3f80_0000 == 0x0800_0000 && word >> 22 & 1 == load && word & 0x8020_0000 != 0x0020_0000
    };
    let Some((_, behind)) = words.split_first().filter(|(first, _)| is_exclusive(**first, 1)) else {
        return Vec::new();
    };
    let Some(store) = behind.iter().position(|word| is_exclusive(*word, 0)) else {
        return Vec::new();
    };
    let branches = behind.iter().take(store).zip(1u64..).filter_map(|(word, at)| {
        // B.cond, CBZ and CBNZ: 19 bits of a distance in instructions; TBZ and TBNZ: 14.
        let bits = match word >> 24 & 0x7f {
            0x54 | 0x34 | 0x35 => 19,
            0x36 | 0x37 => 14,
            _ => return None,
        };
        let distance = (i64::from(*word as i32) << (64 - 5 - bits)) >> (64 - bits) << 2;
        Some((pc + 4 * at).wrapping_add_signed(distance))
    });
    branches.chain([pc + 4 * (store as u64 + 2)]).collect()
}

/// Checks once that memory can be read from qemu itself, which has the program's memory at the same
/// addresses.
fn check_memory(stub: &mut Stub, pid: i32, registers: &Registers) -> Result<(), Trouble> {
    let sp = registers.get(backtrail_arch::aarch64::SP).unwrap_or(0);
    let told = stub.ask(format!("m{sp:x},40").as_bytes()).map_err(broken)?;
    let mut bytes = [0; 0x40];
    let read = read_process(pid, sp, &mut bytes).unwrap_or(0);
    let own: String = bytes[..read].iter().map(|byte| format!("{byte:02x}")).collect();
    match own.as_bytes() == told {
        true => Ok(()),
        false => Err(Trouble::NotAllowed("qemu has the program's memory elsewhere".into())),
    }
}

impl Stub {
    /// A packet and its answer, without what surrounds it.
    fn ask(&mut self, packet: &[u8]) -> io::Result<Vec<u8>> {
        let sum = packet.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        let framed = [b"$", packet, b"#", format!("{sum:02x}").as_bytes()].concat();
        self.stream.write_all(&framed)?;
        loop {
            let begin = self.buffer.iter().position(|byte| *byte == b'$');
            let end = self.buffer.iter().position(|byte| *byte == b'#');
            if let (Some(begin), Some(end)) = (begin, end)
                && self.buffer.len() >= end + 3
            {
                let answer = self.buffer[begin + 1..end].to_vec();
                self.buffer.drain(..end + 3);
                self.stream.write_all(b"+")?;
                return Ok(answer);
            }
            let mut more = [0; 4096];
            match self.stream.read(&mut more)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.buffer.extend(&more[..count]),
            }
        }
    }

    fn step(&mut self, signal: Option<u8>) -> Result<Stopped, Trouble> {
        let packet = match signal {
            None => "s".to_owned(),
            Some(number) => format!("vCont;S{number:02x}"),
        };
        self.stopped(packet.as_bytes())
    }

    /// Lets it go on, until it stops.
    fn stopped(&mut self, packet: &[u8]) -> Result<Stopped, Trouble> {
        let answer = match self.ask(packet) {
            Ok(answer) => answer,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Stopped::Ended),
            Err(error) => return Err(broken(error)),
        };
        let number = answer.get(1..3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (answer.first(), number.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (Some(b'W' | b'X'), _) => Ok(Stopped::Ended),
            // SIGTRAP
            (Some(b'T' | b'S'), Some(5)) => Ok(Stopped::Here),
            (Some(b'T' | b'S'), Some(signal)) => Ok(Stopped::Signal(signal)),
            _ => Err(Trouble::Broken(format!(
                "gdb stub: {:?}",
                String::from_utf8_lossy(&answer)
            ))),
        }
    }

    /// Runs to the first of these places.
    fn run_to(&mut self, places: &[u64]) -> Result<Stopped, Trouble> {
        for place in places {
            self.ask(format!("Z0,{place:x},4").as_bytes()).map_err(broken)?;
        }
        let stopped = self.stopped(b"c")?;
        if !matches!(stopped, Stopped::Ended) {
            for place in places {
                self.ask(format!("z0,{place:x},4").as_bytes()).map_err(broken)?;
            }
        }
        Ok(stopped)
    }

    fn registers(&mut self) -> Result<Registers, Trouble> {
        let answer = self.ask(b"g").map_err(broken)?;
        let mut values = [0u64; REGISTERS];
        for (value, hex) in values.iter_mut().zip(answer.chunks_exact(16)) {
            // Bytes in the program's order: little-endian.
            let text = std::str::from_utf8(hex).unwrap_or_default();
            *value = u64::from_str_radix(text, 16).map_or(0, u64::swap_bytes);
        }
        let (pc, general) = values.split_last().expect("there are some");
        let mut registers = Registers::new(*pc);
        for (number, value) in (0u8..).zip(general) {
            registers.set(Register(number), *value);
        }
        Ok(registers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_of_exclusive_instructions() {
        // ldaxr w0, [x2]; cmp w0, w1; b.ne +16; stxr w4, w3, [x2]; cbnz w4, -16
        let words = [0x885f_fc40, 0x6b01_001f, 0x5400_0081, 0x8804_7c43, 0x35ff_ff84];
        assert_eq!(exclusive_loop(0x1000, &words), [0x1018, 0x1010]);
        // The same, as if it went back.
        let words = [0x885f_fc40, 0x6b01_001f, 0x54ff_ff81, 0x8804_7c43];
        assert_eq!(exclusive_loop(0x1000, &words), [0xff8, 0x1010]);
        // ldadd; and a load without a store.
        assert_eq!(exclusive_loop(0x1000, &[0xb820_0041, 0x8804_7c43]), [0; 0]);
        assert_eq!(exclusive_loop(0x1000, &[0x885f_fc40, 0x6b01_001f]), [0; 0]);
        // ldar and stlr are not exclusive.
        assert_eq!(exclusive_loop(0x1000, &[0x88df_fc20, 0x889f_fc20]), [0; 0]);
    }
}
