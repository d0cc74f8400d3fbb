//! Runs commands: always with a time limit, with all of their output, and with their own processor
//! time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, kill_process_group};

use crate::Missing;
use crate::stat::Stat;

/// A running command, in a process group of its own.
#[derive(Debug)]
pub struct Running {
    child: Child,
    has_been_waited_for: bool,
    started: Instant,
    deadline: Instant,
    // Files, not pipes: a pipe without a reader would stop the command, and one that a left-over
    // grandchild holds would never end.
    stdout: File,
    stderr: File,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status; that of a kill if it ran out of time.
    pub status: ExitStatus,
    /// Whether it ran out of time.
    pub timed_out: bool,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// From start to end.
    pub wall: Duration,
    /// User and system time of the process itself with all its threads, but without its children.
    /// In ticks, so to 10 ms.
    pub own_cpu: Duration,
}

impl Finished {
    /// The exit status as shells report it: 128 plus the signal's number for a death by signal.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// A full description for a test's failure message.
    pub fn describe(&self) -> String {
        let late = if self.timed_out { " (out of time)" } else { "" };
        format!(
            "{}{late}\n--- stdout\n{}--- stderr\n{}",
            self.status, self.stdout, self.stderr
        )
    }
}

/// Runs a command to its end, or until the limit.
///
/// # Errors
/// [`Missing`] if there is no such program.
///
/// # Panics
/// If it cannot be started for another reason.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished, Missing> {
    Ok(start(command, limit)?.finish())
}

/// Starts a command; see [`run`].
///
/// # Errors
/// [`Missing`] if there is no such program.
pub fn start(command: &mut Command, limit: Duration) -> Result<Running, Missing> {
    let stdout = tempfile::tempfile().expect("a temporary file can be made");
    let stderr = tempfile::tempfile().expect("a temporary file can be made");
    let again = |file: &File| Stdio::from(file.try_clone().expect("a file handle can be copied"));
    let child = command
        .stdin(Stdio::null())
        .stdout(again(&stdout))
        .stderr(again(&stderr))
        .process_group(0)
        .spawn();
    let started = Instant::now();
    match child {
        Ok(child) => Ok(Running {
            child,
            has_been_waited_for: false,
            started,
            deadline: started + limit,
            stdout,
            stderr,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Missing(format!("there is no {}", command.get_program().display())))
        }
        Err(error) => panic!("{command:?}: {error}"),
    }
}

impl Running {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output so far.
    pub fn stdout_so_far(&self) -> String {
        whole(&self.stdout)
    }

    /// Waits until it has written `text` to standard output; false if it ended or ran out of time
    /// before.
    pub fn wait_for_output(&self, text: &str) -> bool {
        while !self.stdout_so_far().contains(text) {
            if self.has_ended() || Instant::now() > self.deadline {
                return self.stdout_so_far().contains(text);
            }
            sleep(Duration::from_millis(5));
        }
        true
    }

    /// Waits until it has written `text` and all its threads wait: the thread that reports
    /// readiness may still be on its way to its final place.
    pub fn wait_at_rest(&self, text: &str) -> bool {
        if !self.wait_for_output(text) {
            return false;
        }
        // Asked once: threads of a runtime's own wake up now and then.
        while !self.is_at_rest() {
            if self.has_ended() || Instant::now() > self.deadline {
                return false;
            }
            sleep(Duration::from_millis(5));
        }
        true
    }

    /// Stops it, and waits until all its threads have stopped; false if it ended or ran out of time
    /// before.
    pub fn stop(&self) -> bool {
        self.signal(Signal::STOP);
        while !self.are_all("T") {
            if self.has_ended() || Instant::now() > self.deadline {
                return false;
            }
            sleep(Duration::from_millis(1));
        }
        true
    }

    fn is_at_rest(&self) -> bool {
        self.are_all("SDT")
    }

    /// Whether all threads are in one of these states.
    fn are_all(&self, states: &str) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let mut found = tasks
            .into_iter()
            .flatten()
            .flatten()
            .map(|task| Stat::read(&task.path().join("stat")));
        found.all(|task| task.is_none_or(|stat| states.contains(stat.state)))
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: Signal) {
        // It may be gone already, which its status shows.
        let _ = kill_process(self.id(), signal);
    }

    /// Sends a signal to the process and everything it started, as a terminal does with Ctrl-C.
    pub fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(self.id(), signal);
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether it has ended; it may still have to be waited for.
    pub fn has_ended(&self) -> bool {
        Stat::read(&stat_of(self.pid())).is_none_or(|stat| stat.has_ended())
    }

    /// Waits for the end; after the limit, kills it and everything it started.
    pub fn finish(mut self) -> Finished {
        while !self.has_ended() && Instant::now() < self.deadline {
            sleep(Duration::from_millis(2));
        }
        let timed_out = !self.has_ended();
        if timed_out {
            self.signal_group(Signal::KILL);
        }
        let wall = self.started.elapsed();
        // Its times exist only until it is waited for.
        let own_cpu = Stat::read(&stat_of(self.pid()))
            .map(|stat| stat.cpu)
            .unwrap_or_default();
        let status = self.child.wait().expect("the command is this process's child");
        self.has_been_waited_for = true;
        let (stdout, stderr) = (whole(&self.stdout), whole(&self.stderr));
        Finished {
            status,
            timed_out,
            stdout,
            stderr,
            wall,
            own_cpu,
        }
    }
}

/// Nothing that a test started outlives it, also if it fails.
impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_been_waited_for {
            self.signal_group(Signal::KILL);
            // It was killed.
            let _ = self.child.wait();
        }
    }
}

/// Everything written so far. Reads at explicit offsets: the file's position is the command's,
/// which continues to write there.
fn whole(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().expect("a temporary file has a length").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("a temporary file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn stat_of(pid: u32) -> PathBuf {
    format!("/proc/{pid}/stat").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Finished {
        run(Command::new("sh").args(["-c", script]), limit).expect("there is a shell")
    }

    #[test]
    fn status_and_both_outputs_come_back() {
        let finished = shell("echo out; echo err >&2; exit 7", Duration::from_secs(10));
        assert_eq!((finished.code(), finished.timed_out), (7, false));
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(shell("kill -TERM $$", Duration::from_secs(10)).code(), 128 + 15);
    }

    #[test]
    fn a_command_without_end_is_killed_with_its_children() {
        let finished = shell("sleep 1000 & echo $!; wait", Duration::from_millis(300));
        assert!(
            finished.timed_out && finished.wall < Duration::from_secs(5),
            "{finished:?}"
        );
        let child: u32 = finished.stdout.trim().parse().expect("the child's number");
        sleep(Duration::from_millis(50));
        assert!(
            Stat::read(&stat_of(child)).is_none_or(|stat| stat.state == 'Z'),
            "the child lives on"
        );
    }

    #[test]
    fn processor_time_is_the_commands_own() {
        let child_works = shell(
            "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; exit 0",
            Duration::from_secs(30),
        );
        let itself_works = shell(
            "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done",
            Duration::from_secs(30),
        );
        assert!(itself_works.own_cpu >= Duration::from_millis(30), "{itself_works:?}");
        assert!(
            child_works.own_cpu * 3 < itself_works.own_cpu,
            "{child_works:?} {itself_works:?}"
        );
    }

    #[test]
    fn a_missing_program_is_no_failure() {
        let missing =
            run(&mut Command::new("backtrail-no-such-program"), Duration::from_secs(1)).expect_err("no such program");
        assert!(missing.0.contains("backtrail-no-such-program"));
    }
}
