//! Steps a program of this machine, with all its threads and children, under ptrace.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use backtrail_arch::Registers;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::check::{Bounds, Checker, Thread, Trouble};
use super::shadow::Shadow;
use super::x86_64::X86_64;

/// The shell command that stops itself, so that it can be seized before the program starts.
const START: &str = "kill -STOP $$; exec \"$0\" \"$@\"";

struct Tracer<'c> {
    checker: &'c mut Checker<X86_64>,
    threads: HashMap<Pid, Thread>,
    /// Started before the event of the parent was seen.
    unclaimed: Vec<Pid>,
    /// The event of the parent was seen, but they have not started.
    expected: HashMap<Pid, Child>,
}

/// The state of the parent when it created a thread or process.
struct Child {
    process: i32,
    shadow: Shadow,
    sp: Option<u64>,
}

/// Steps `command` to its end, or to the bounds.
pub(crate) fn run(
    checker: &mut Checker<X86_64>,
    command: (&Path, &[&str]),
    environment: &[(&str, &str)],
    bounds: Bounds,
) -> Result<bool, Trouble> {
    let (program, arguments) = command;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", START]).arg(program).args(arguments);
    shell.envs(environment.iter().copied()).env("LC_ALL", "C");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = shell
        .spawn()
        .map_err(|error| Trouble::NotAllowed(format!("sh: {error}")))?;
    let pid = Pid::from_raw(child.id() as i32);
    let done = attach(pid).and_then(|()| {
        let mut tracer = Tracer {
            checker,
            threads: HashMap::new(),
            unclaimed: Vec::new(),
            expected: HashMap::new(),
        };
        let done = tracer.run(pid, bounds);
        tracer.end();
        done
    });
    let _ = child.kill();
    let _ = child.wait();
    done
}

fn broken(what: &str) -> impl Fn(Errno) -> Trouble {
    move |error| Trouble::Broken(format!("{what}: {error}"))
}

/// Seizes the shell, and lets it become the program.
fn attach(pid: Pid) -> Result<(), Trouble> {
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).map_err(broken("waitpid"))?;
    let options = Options::PTRACE_O_EXITKILL
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC;
    ptrace::attach(pid).map_err(|error| Trouble::NotAllowed(format!("ptrace: {error}")))?;
    waitpid(pid, Some(WaitPidFlag::__WALL)).map_err(broken("waitpid"))?;
    ptrace::setoptions(pid, options).map_err(broken("PTRACE_SETOPTIONS"))?;
    kill(pid, Signal::SIGCONT).map_err(broken("kill"))?;
    ptrace::cont(pid, None).map_err(broken("PTRACE_CONT"))?;
    loop {
        match waitpid(pid, Some(WaitPidFlag::__WALL)).map_err(broken("waitpid"))? {
            WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_EXEC as i32 => return Ok(()),
            WaitStatus::Stopped(_, Signal::SIGSTOP) => ptrace::cont(pid, None).map_err(broken("PTRACE_CONT"))?,
            WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal).map_err(broken("PTRACE_CONT"))?,
            other => return Err(Trouble::Broken(format!("the program could not be started: {other:?}"))),
        }
    }
}

impl Tracer<'_> {
    /// Whether the program ended by itself.
    fn run(&mut self, first: Pid, bounds: Bounds) -> Result<bool, Trouble> {
        let started = Instant::now();
        self.checker.begin_process(first.as_raw(), None);
        self.begin(first, Thread::new(first.as_raw(), Shadow::default()));
        let mut rounds = 0u32;
        // Only this thread's tracees: other threads may step programs of their own.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            match waitpid(Pid::from_raw(-1), Some(flags)) {
                Ok(status) => self.on(status)?,
                Err(Errno::ECHILD) => return Ok(true),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(broken("waitpid")(error)),
            }
            rounds = rounds.wrapping_add(1);
            if self.checker.outcome.instructions >= bounds.instructions
                || rounds.is_multiple_of(4096) && started.elapsed() > bounds.time
            {
                return Ok(false);
            }
        }
    }

    fn on(&mut self, status: WaitStatus) -> Result<(), Trouble> {
        match status {
            WaitStatus::Stopped(tid, signal) => match self.threads.contains_key(&tid) {
                false => self.on_new(tid),
                true if signal == Signal::SIGTRAP => self.on_step(tid),
                true => self.on_signal(tid, signal),
            },
            WaitStatus::PtraceEvent(tid, _, event) => self.on_event(tid, event),
            WaitStatus::Exited(tid, _) | WaitStatus::Signaled(tid, _, _) => {
                if self
                    .threads
                    .remove(&tid)
                    .is_some_and(|thread| thread.pid == tid.as_raw())
                {
                    self.checker.end_process(tid.as_raw());
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_step(&mut self, tid: Pid) -> Result<(), Trouble> {
        let Some(registers) = registers(tid) else { return Ok(()) };
        let thread = self.threads.get_mut(&tid).expect("it is known");
        self.checker.arrive(thread, &registers);
        step(tid, None)
    }

    fn on_signal(&mut self, tid: Pid, signal: Signal) -> Result<(), Trouble> {
        let Some(registers) = registers(tid) else { return Ok(()) };
        let thread = self.threads.get_mut(&tid).expect("it is known");
        self.checker.signal(thread, &registers);
        step(tid, signal)
    }

    fn on_event(&mut self, tid: Pid, event: i32) -> Result<(), Trouble> {
        if event == Event::PTRACE_EVENT_EXEC as i32 {
            // Of several threads only one is left, with the process's own number.
            self.threads.retain(|_, thread| thread.pid != tid.as_raw());
            self.checker.begin_process(tid.as_raw(), None);
            self.begin(tid, Thread::new(tid.as_raw(), Shadow::default()));
            return Ok(());
        }
        let is_new = [
            Event::PTRACE_EVENT_CLONE,
            Event::PTRACE_EVENT_FORK,
            Event::PTRACE_EVENT_VFORK,
        ]
        .iter()
        .any(|new| event == *new as i32);
        if is_new && let (Ok(new), Some(parent)) = (ptrace::getevent(tid), self.threads.get(&tid)) {
            let new = Pid::from_raw(new as i32);
            let process = process_of(new).unwrap_or(new.as_raw());
            let child = Child {
                process,
                shadow: parent.shadow.clone(),
                sp: registers(tid).as_ref().and_then(sp),
            };
            let parent = parent.pid;
            if process != parent {
                self.checker.begin_process(process, Some(parent));
            }
            match self.unclaimed.iter().position(|unclaimed| *unclaimed == new) {
                Some(at) => {
                    self.unclaimed.remove(at);
                    self.begin_child(new, child);
                }
                None => _ = self.expected.insert(new, child),
            }
        }
        step(tid, None)
    }

    /// The first stop of a new thread or process.
    fn on_new(&mut self, tid: Pid) -> Result<(), Trouble> {
        match self.expected.remove(&tid) {
            Some(child) => self.begin_child(tid, child),
            None => self.unclaimed.push(tid),
        }
        Ok(())
    }

    /// Only a child that continues on its parent's stack returns to its parent's callers: a thread
    /// has a stack of its own, and so have some children.
    fn begin_child(&mut self, tid: Pid, child: Child) {
        let own = registers(tid).as_ref().and_then(sp);
        let shadow = match own == child.sp {
            true => child.shadow,
            false => Shadow::default(),
        };
        self.begin(tid, Thread::new(child.process, shadow));
    }

    fn begin(&mut self, tid: Pid, mut thread: Thread) {
        self.checker.outcome.threads += 1;
        if let Some(registers) = registers(tid) {
            self.checker.arrive(&mut thread, &registers);
        }
        self.threads.insert(tid, thread);
        let _ = step(tid, None);
    }

    /// Kills what is left, and waits for its end.
    fn end(&mut self) {
        let left = self.threads.keys().chain(&self.unclaimed).chain(self.expected.keys());
        for tid in left {
            let _ = kill(*tid, Signal::SIGKILL);
        }
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        while waitpid(Pid::from_raw(-1), Some(flags)).is_ok() {}
    }
}

/// Steps one instruction. A thread that was killed meanwhile is reported later.
fn step(tid: Pid, signal: impl Into<Option<Signal>>) -> Result<(), Trouble> {
    match ptrace::step(tid, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(broken("PTRACE_SINGLESTEP")(error)),
    }
}

fn process_of(tid: Pid) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

fn sp(registers: &Registers) -> Option<u64> {
    registers.get(backtrail_arch::x86_64::RSP)
}

/// `None` if the thread is gone.
#[cfg(target_arch = "x86_64")]
fn registers(tid: Pid) -> Option<Registers> {
    let user = ptrace::getregs(tid).ok()?;
    let mut registers = Registers::new(user.rip);
    let values = [
        user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp, user.r8, user.r9, user.r10,
        user.r11, user.r12, user.r13, user.r14, user.r15,
    ];
    for (number, value) in (0u8..).zip(values) {
        registers.set(backtrail_arch::Register(number), value);
    }
    Some(registers)
}

/// Other machines are stepped under an emulator.
#[cfg(not(target_arch = "x86_64"))]
fn registers(_: Pid) -> Option<Registers> {
    None
}
