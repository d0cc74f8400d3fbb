//! A handler's system calls, made directly: no `errno`, no locks of a C library, and nothing that
//! has to be bound first.

use core::ffi::{c_char, c_int, c_long, c_void};

use backtrail_unwind::local::system_call;

/// Size of the kernel's signal set, in bytes.
const SIGNALS: usize = 8;

/// A signal's action as the kernel stores it: the handler, and three words that are only passed
/// back.
pub(crate) type Action = [usize; 4];

/// Makes a system call and returns its result or an error number.
///
/// # Safety
/// As its manual says: any memory it writes must be ours to write.
unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: as our caller promises.
    let result = unsafe { system_call(number as usize, arguments) };
    match usize::try_from(result) {
        Ok(result) => Ok(result),
        Err(_) => Err(-result as c_int),
    }
}

/// Makes a system call that writes no memory of ours.
fn harmless(number: c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: the calls below only read their arguments.
    unsafe { call(number, arguments) }
}

pub(crate) fn write(fd: c_int, bytes: &[u8]) -> Result<usize, c_int> {
    harmless(
        libc::SYS_write,
        [fd as usize, bytes.as_ptr().expose_provenance(), bytes.len(), 0, 0, 0],
    )
}

pub(crate) fn close(fd: c_int) {
    let _ = harmless(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
}

pub(crate) fn process() -> c_int {
    harmless(libc::SYS_getpid, [0; 6]).map_or(0, |pid| pid as c_int)
}

pub(crate) fn thread() -> u32 {
    harmless(libc::SYS_gettid, [0; 6]).map_or(0, |tid| tid as u32)
}

/// A signal's current action.
pub(crate) fn action(signal: c_int) -> Result<Action, c_int> {
    let mut action = [0; 4];
    let place = action.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes an action.
    unsafe { call(libc::SYS_rt_sigaction, [signal as usize, 0, place, SIGNALS, 0, 0]) }?;
    Ok(action)
}

/// Sets a signal's action.
///
/// # Safety
/// The handler, if any, is a signal handler.
pub(crate) unsafe fn set_action(signal: c_int, action: &Action) {
    let place = action.as_ptr().expose_provenance();
    let _ = harmless(libc::SYS_rt_sigaction, [signal as usize, place, 0, SIGNALS, 0, 0]);
}

/// Sends a signal to a thread of this process.
pub(crate) fn send(thread: u32, signal: c_int) {
    let to = [process() as usize, thread as usize, signal as usize, 0, 0, 0];
    let _ = harmless(libc::SYS_tgkill, to);
}

/// Whether a signal is pending.
pub(crate) fn is_waiting(signal: c_int) -> bool {
    let mut set = [0u64];
    let place = set.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes a set.
    let done = unsafe { call(libc::SYS_rt_sigpending, [place, SIGNALS, 0, 0, 0, 0]) };
    done.is_ok() && set[0] & bit(signal) != 0
}

/// Discards a pending signal.
pub(crate) fn take_away(signal: c_int) {
    let (set, at_once) = ([bit(signal)], [0u64; 2]);
    let [set, at_once] = [set.as_ptr().expose_provenance(), at_once.as_ptr().expose_provenance()];
    let _ = harmless(libc::SYS_rt_sigtimedwait, [set, 0, at_once, SIGNALS, 0, 0]);
}

/// A signal's bit in a set.
fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Waits for this long, or for a signal.
pub(crate) fn sleep(milliseconds: u64) {
    let time = [milliseconds / 1000, milliseconds % 1000 * 1_000_000];
    let _ = harmless(libc::SYS_nanosleep, [time.as_ptr().expose_provenance(), 0, 0, 0, 0, 0]);
}

/// Lets a child read this process's memory if otherwise only a tracer may read its children's
/// (`kernel.yama.ptrace_scope`).
pub(crate) fn let_read(child: c_int) {
    let _ = harmless(
        libc::SYS_prctl,
        [libc::PR_SET_PTRACER as usize, child as usize, 0, 0, 0, 0],
    );
}

/// Whether a child is still running, as far as its parent knows.
pub(crate) fn is_running(child: c_int) -> bool {
    let options = [child as usize, 0, libc::WNOHANG as usize, 0, 0, 0];
    harmless(libc::SYS_wait4, options) == Ok(0)
}

/// A pipe that no other program inherits: its read end and its write end.
fn pipe() -> Result<[c_int; 2], c_int> {
    let mut ends = [-1; 2];
    let place = ends.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes two descriptors.
    unsafe { call(libc::SYS_pipe2, [place, libc::O_CLOEXEC as usize, 0, 0, 0, 0]) }?;
    Ok(ends)
}

/// Starts a program whose standard output is `output`. Returns its process id and the write end of
/// its standard input.
///
/// # Safety
/// `program` is a string.
pub(crate) unsafe fn start(program: *const c_char, output: c_int) -> Result<(c_int, c_int), c_int> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    let [read, write] = pipe()?;
    // SAFETY: the only flag is the signal of its end, so this makes a process with one thread and
    // memory of its own, which continues here. fork(3) would call handlers that other libraries
    // registered.
    let child = unsafe { call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]) };
    if child == Ok(0) {
        let none = [0u64];
        let set = [
            libc::SIG_SETMASK as usize,
            none.as_ptr().expose_provenance(),
            0,
            SIGNALS,
            0,
            0,
        ];
        let _ = harmless(libc::SYS_rt_sigprocmask, set);
        become_descriptor(read, 0);
        become_descriptor(output, 1);
        let arguments: [*const c_void; 2] = [program.cast(), core::ptr::null()];
        // SAFETY: the C library's variable, with its current value.
        let environment = unsafe { environ };
        let execute = [
            program.expose_provenance(),
            arguments.as_ptr().expose_provenance(),
            environment.expose_provenance(),
        ];
        let [program, arguments, environment] = execute;
        let _ = harmless(libc::SYS_execve, [program, arguments, environment, 0, 0, 0]);
        loop {
            let _ = harmless(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]);
        }
    }
    close(read);
    match child {
        Ok(child) => Ok((child as c_int, write)),
        Err(error) => {
            close(write);
            Err(error)
        }
    }
}

/// Duplicates one descriptor as another, which the next program inherits.
fn become_descriptor(from: c_int, to: c_int) {
    let _ = match from == to {
        true => harmless(libc::SYS_fcntl, [to as usize, libc::F_SETFD as usize, 0, 0, 0, 0]),
        false => harmless(libc::SYS_dup3, [from as usize, to as usize, 0, 0, 0, 0]),
    };
}
