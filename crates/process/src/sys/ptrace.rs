//! `ptrace(2)`, as far as stopping and reading a thread needs it.
//!
//! The kernel ties a tracee to the *thread* that seized it: all calls for it must come from that
//! thread, and when that thread ends, for whatever reason, the kernel detaches the tracee and lets
//! it run.

use std::io;

/// `PTRACE_EVENT_STOP` (`linux/ptrace.h`): the stop requested by an interrupt, or a group-stop.
const PTRACE_EVENT_STOP: i32 = 128;

/// The state of a thread that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has not stopped yet.
    Running,
    /// It has stopped.
    Stopped {
        /// A signal that was about to be delivered, and is lost unless [`detach`] delivers it.
        signal: Option<i32>,
    },
    /// It has ended.
    Ended,
}

/// Starts to trace a thread, which keeps running.
///
/// # Errors
/// `ESRCH` if there is no such thread; `EPERM` if it may not be traced, is already traced, or has
/// ended.
pub fn seize(tid: i32) -> io::Result<()> {
    // SAFETY: PTRACE_SEIZE takes no address, and options as a number: none.
    result(unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0usize, 0usize) })
}

/// Takes note of a seized thread's end, if it has ended; does not wait. Any thread of this process
/// may do so.
pub fn take_end(tid: i32) {
    // The kernel also reports a tracee's stop to who asks for ends alone, and reports it once. So
    // this looks first, and takes what can only be an end.
    let has_ended = matches!(
        child_event(tid, libc::WNOWAIT),
        libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED
    );
    if has_ended {
        child_event(tid, 0);
    }
}

/// What has become of a tracee (`si_code` of `waitid(2)`), or 0 if there is nothing to report.
fn child_event(tid: i32, option: i32) -> i32 {
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL | option;
    // SAFETY: all bits of this struct may be 0.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a valid place for the result. A failure says that there is no such tracee.
    unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &mut info, options) };
    info.si_code
}

/// Asks a seized thread to stop. It does so at once, unless it is in uninterruptible sleep.
///
/// # Errors
/// `ESRCH` if it has ended.
pub fn interrupt(tid: i32) -> io::Result<()> {
    // SAFETY: PTRACE_INTERRUPT takes neither address nor data.
    result(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0usize, 0usize) })
}

/// The state of a thread since [`interrupt`]; does not wait.
///
/// # Errors
/// Those of `waitpid(2)`; `ECHILD` if the thread is not traced.
pub fn progress(tid: i32) -> io::Result<Progress> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    let waited = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) };
    match waited {
        0 => Ok(Progress::Running),
        -1 => Err(io::Error::last_os_error()),
        _ if libc::WIFSTOPPED(status) => {
            let event = status >> 16;
            // Without options there are no other events; a pending signal has no event.
            let signal = (event != PTRACE_EVENT_STOP).then(|| libc::WSTOPSIG(status));
            Ok(Progress::Stopped { signal })
        }
        _ => Ok(Progress::Ended),
    }
}

/// The set of general registers.
pub const NT_PRSTATUS: usize = 1;
/// The set of floating-point and vector registers.
pub const NT_PRFPREG: usize = 2;

/// Copies a set of a stopped thread's registers into `set`, and returns its length, which differs
/// between 32-bit and 64-bit threads.
///
/// # Errors
/// `ESRCH` if the thread is not stopped, or was killed.
pub fn registers(tid: i32, kind: usize, set: &mut [u8]) -> io::Result<usize> {
    let mut place = libc::iovec {
        iov_base: set.as_mut_ptr().cast(),
        iov_len: set.len(),
    };
    // SAFETY: `place` describes the bytes of `set`, which is borrowed mutably; the kernel writes no
    // more than its length.
    result(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, kind, &raw mut place) })?;
    Ok(place.iov_len)
}

/// Detaches from a stopped thread, and delivers the signal that stopped it.
///
/// # Errors
/// `ESRCH` if the thread is not stopped, or was killed.
pub fn detach(tid: i32, signal: Option<i32>) -> io::Result<()> {
    let signal = signal.unwrap_or(0) as usize;
    // SAFETY: PTRACE_DETACH takes the signal as a number.
    result(unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0usize, signal) })
}

fn result(returned: libc::c_long) -> io::Result<()> {
    if returned == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread::sleep;
    use std::time::Duration;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::proc::thread_state;

    #[test]
    fn a_stop_is_no_end() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("starts");
        let pid = child.id();
        let signal = |signal| kill_process(Pid::from_child(&child), signal).expect("lives");
        let wait_for = |state| {
            while thread_state(pid, pid) != Some(state) {
                sleep(Duration::from_millis(1));
            }
        };
        signal(Signal::STOP);
        wait_for('T');
        seize(pid as i32).expect("is a child");
        // Seizing a stopped process makes its stop the tracer's.
        wait_for('t');
        take_end(pid as i32);
        let stopped = progress(pid as i32);

        signal(Signal::KILL);
        wait_for('Z');
        take_end(pid as i32);
        assert_eq!(stopped.expect("is traced"), Progress::Stopped { signal: None });
        assert_eq!(thread_state(pid, pid), None, "nobody waits for it any more");
        child.wait().expect_err("its end was taken");
    }
}
