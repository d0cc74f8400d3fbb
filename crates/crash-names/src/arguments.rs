//! What the functions of a crash were called with: read from the process that waits for this one.

use std::fmt::Write;

use backtrail_arch::{Arch, REGISTERS, Register, Registers};
use backtrail_process::live;
use backtrail_stacks::{Argument, Frame, Hidden, Looker, Options, Shown};

/// The arguments of a stack's frames, from the innermost outwards.
pub(crate) struct Arguments {
    frames: Vec<Frame>,
    arguments: Vec<Vec<Argument>>,
    next: usize,
    hidden: usize,
}

impl Arguments {
    /// The number of arguments whose values were not shown, because of their names.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden
    }

    /// Those of the crash that the report is of, if it was made by this process's parent: another
    /// process may have its number by now.
    pub(crate) fn of(report: &str) -> Option<Arguments> {
        let crash = report.lines().find_map(crash)?;
        let parent = rustix::process::getppid()?;
        if parent.as_raw_nonzero().get() as u32 != crash.process {
            return None;
        }
        let registers = report.lines().find_map(|line| registers(Arch::native(), line))?;
        let snapshot = live::standing(crash.process, crash.thread, registers).ok()?;
        let options = Options {
            arguments: true,
            shown: Shown::to_others(),
            ..Options::default()
        };
        let thread = Looker::new(options).stacks(&snapshot).threads.pop()?;
        Some(Arguments {
            frames: thread.frames,
            arguments: thread.arguments,
            next: 0,
            hidden: 0,
        })
    }

    /// ` (NAME=VALUE, ...)` of the next frame at this address; nothing where its function has no
    /// arguments that are known.
    pub(crate) fn at(&mut self, address: u64) -> String {
        let rest = self.frames.get(self.next..).unwrap_or_default();
        let Some(found) = rest.iter().position(|frame| frame.address == address) else {
            return String::new();
        };
        let index = self.next + found;
        self.next = index + 1;
        let mut text = String::new();
        for argument in self.arguments.get(index).into_iter().flatten() {
            self.hidden += usize::from(argument.hidden != Hidden::Nothing);
            let before = if text.is_empty() { " (" } else { ", " };
            let _ = write!(text, "{before}{argument}");
        }
        if !text.is_empty() {
            text.push(')');
        }
        text
    }
}

/// Whose crash it is.
#[derive(Debug, PartialEq, Eq)]
struct Crash {
    process: u32,
    thread: u32,
}

/// `crash: ..., process P, thread T`.
fn crash(line: &str) -> Option<Crash> {
    let line = line.strip_prefix("crash: ")?;
    let (_, numbers) = line.rsplit_once(", process ")?;
    let (process, thread) = numbers.split_once(", thread ")?;
    Some(Crash {
        process: process.parse().ok()?,
        thread: thread.parse().ok()?,
    })
}

/// `registers: pc 0x... NAME 0x...`.
fn registers(arch: &Arch, line: &str) -> Option<Registers> {
    let mut words = line.strip_prefix("registers: pc ")?.split(' ');
    let value = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut registers = Registers::new(value(words.next()?)?);
    while let Some(name) = words.next() {
        let register = (0..REGISTERS as u8)
            .map(Register)
            .find(|register| arch.register_name(*register) == Some(name))?;
        registers.set(register, value(words.next()?)?);
    }
    Some(registers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_arch::x86_64;

    #[test]
    fn lines_of_a_report() {
        let line = "crash: SIGSEGV (signal 11, code 1) at address 0x10, process 17, thread 18";
        assert_eq!(
            crash(line),
            Some(Crash {
                process: 17,
                thread: 18
            })
        );
        assert_eq!(crash("crash: SIGSEGV, process 17"), None);
        let arch = &x86_64::ARCH;
        let found = registers(arch, "registers: pc 0x1f rsp 0x7f0 rdi 0x0").expect("three are there");
        assert_eq!(found.pc, 0x1f);
        assert_eq!(found.get(arch.sp), Some(0x7f0));
        assert_eq!(found.get(arch.fp), None);
        for line in [
            "registers: pc",
            "registers: pc 1",
            "registers: pc 0x1 rsp",
            "registers: pc 0x1 nothing 0x1",
        ] {
            assert!(registers(arch, line).is_none(), "{line}");
        }
    }

    #[test]
    fn nobody_but_the_parent_is_read() {
        let own = std::process::id();
        let report = format!("crash: SIGSEGV, process {own}, thread {own}\nregisters: pc 0x1000 rsp 0x1000\n");
        assert!(Arguments::of(&report).is_none());
    }
}
