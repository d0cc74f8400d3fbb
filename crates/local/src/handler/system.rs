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

/// The device and the inode of an open file.
pub(crate) fn identity(fd: c_int) -> Result<[u64; 2], c_int> {
    // struct stat begins with both; it is 144 bytes long, or shorter.
    let mut stat = [0u64; 18];
    let place = stat.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes a `struct stat`.
    unsafe { call(libc::SYS_fstat, [fd as usize, place, 0, 0, 0, 0]) }?;
    let [device, inode, ..] = stat;
    Ok([device, inode])
}

/// Opens an existing file, without waiting for a reader.
pub(crate) fn open_to_append(path: *const c_char) -> Result<c_int, c_int> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let arguments = [
        libc::AT_FDCWD as usize,
        path.expose_provenance(),
        flags as usize,
        0,
        0,
        0,
    ];
    harmless(libc::SYS_openat, arguments).map(|fd| fd as c_int)
}

pub(crate) fn process() -> c_int {
    harmless(libc::SYS_getpid, [0; 6]).map_or(0, |pid| pid as c_int)
}

pub(crate) fn thread() -> u32 {
    harmless(libc::SYS_gettid, [0; 6]).map_or(0, |tid| tid as u32)
}

/// Sets the alternate stack of this thread, which must not be running on its present one, and
/// returns that: address, flags and size, as in `stack_t`.
pub(crate) fn set_signal_stack(stack: [u64; 3]) -> Option<[u64; 3]> {
    let mut before = [0; 3];
    let [stack, place] = [
        stack.as_ptr().expose_provenance(),
        before.as_mut_ptr().expose_provenance(),
    ];
    // SAFETY: the kernel writes a `stack_t`.
    let done = unsafe { call(libc::SYS_sigaltstack, [stack, place, 0, 0, 0, 0]) };
    done.is_ok().then_some(before)
}

/// Lets these signals reach this thread.
pub(crate) fn unblock(signals: &[c_int]) {
    change_mask(libc::SIG_UNBLOCK, signals);
}

/// Lets a signal reach this thread only when its handler has returned.
pub(crate) fn block(signal: c_int) {
    change_mask(libc::SIG_BLOCK, &[signal]);
}

fn change_mask(how: c_int, signals: &[c_int]) {
    let set = [signals.iter().fold(0, |set, signal| set | bit(*signal))];
    let set = set.as_ptr().expose_provenance();
    let _ = harmless(libc::SYS_rt_sigprocmask, [how as usize, set, 0, SIGNALS, 0, 0]);
}

/// Ends the process.
pub(crate) fn exit(code: c_int) {
    let _ = harmless(libc::SYS_exit_group, [code as usize, 0, 0, 0, 0, 0]);
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

/// Sends a signal with a value to a thread of this process.
pub(crate) fn send_value(thread: u32, signal: c_int, value: usize) -> bool {
    // siginfo_t: the signal and an error number, the code, the sender, and the value.
    let mut info = [0u64; 16];
    info[0] = u64::from(signal as u32);
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = u64::from(process() as u32);
    info[3] = value as u64;
    let info = info.as_ptr().expose_provenance();
    let to = [process() as usize, thread as usize, signal as usize, info, 0, 0];
    harmless(libc::SYS_rt_tgsigqueueinfo, to).is_ok()
}

/// Calls `each` for the threads of this process until it returns false. Returns whether all were
/// found, which needs `/proc` and a free descriptor. `own` is the calling thread.
pub(crate) fn each_thread(own: u32, mut each: impl FnMut(u32) -> bool) -> bool {
    let mut is_own_listed = false;
    let is_listed = each_listed_thread(|thread| {
        is_own_listed = thread == own;
        !is_own_listed
    });
    if is_own_listed {
        return each_listed_thread(each);
    }
    // `/proc` is that of an outer PID namespace, in which threads have other numbers.
    let mut is_known = true;
    let is_whole = is_listed
        && each_listed_thread(|thread| {
            let inner = inner_number(thread);
            is_known &= inner.is_some();
            inner.is_none_or(&mut each)
        });
    is_whole && is_known
}

/// The number of a thread of this process in its own PID namespace.
fn inner_number(listed: u32) -> Option<u32> {
    let mut digits = [b'0'; 10];
    let (mut rest, mut count) = (listed, 0);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        count += usize::from(rest > 0);
        rest /= 10;
    }
    let before = b"/proc/self/task/".iter();
    let own = digits.iter().skip(digits.len() - count);
    let mut path = [0u8; 40];
    path.iter_mut()
        .zip(before.chain(own).chain(b"/status"))
        .for_each(|(to, from)| *to = *from);
    let place = path.as_ptr().expose_provenance();
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let file = harmless(libc::SYS_openat, [libc::AT_FDCWD as usize, place, flags, 0, 0, 0]).ok()?;
    let mut status = [0u8; 4096];
    let place = status.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes at most this many bytes.
    let read = unsafe { call(libc::SYS_read, [file, place, status.len(), 0, 0, 0]) };
    close(file as c_int);
    // Else a number may be cut.
    let read = read.ok().filter(|read| *read < status.len())?;
    innermost(status.get(..read)?)
}

/// The last number of a status file's line `NSpid`, which begins with the outermost namespace's.
fn innermost(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let numbers = lines.find_map(|line| line.strip_prefix(b"NSpid:"))?;
    number(numbers.rsplit(|byte| *byte == b'\t').next()?)
}

/// A number in decimal digits.
fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

fn each_listed_thread(mut each: impl FnMut(u32) -> bool) -> bool {
    let path = c"/proc/self/task".as_ptr().expose_provenance();
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    let opened = harmless(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]);
    let Ok(folder) = opened else { return false };
    let mut entries = [0u8; 2048];
    let is_whole = loop {
        let place = entries.as_mut_ptr().expose_provenance();
        // SAFETY: the kernel writes at most this many bytes.
        let read = unsafe { call(libc::SYS_getdents64, [folder, place, entries.len(), 0, 0, 0]) };
        match read {
            Ok(0) => break true,
            Ok(len) if numbers(entries.get(..len).unwrap_or_default(), &mut each) => {}
            _ => break false,
        }
    };
    close(folder as c_int);
    is_whole
}

/// Calls `each` for the names that are numbers, in what `getdents64(2)` has written.
fn numbers(mut entries: &[u8], each: &mut impl FnMut(u32) -> bool) -> bool {
    /// struct linux_dirent64: inode, offset, length, type, name.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    while let (Some(&[low, high]), Some(name)) = (entries.get(LENGTH..LENGTH + 2), entries.get(NAME..)) {
        let digits = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(thread) = number(digits).filter(|&thread| thread != 0)
            && !each(thread)
        {
            return false;
        }
        let length = usize::from(u16::from_ne_bytes([low, high])).max(NAME);
        entries = entries.get(length..).unwrap_or_default();
    }
    true
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

/// Milliseconds of a clock that nobody sets; the largest number if a filter of system calls denies
/// it, so that nothing is waited for.
pub(crate) fn now() -> u64 {
    let mut time = [0u64; 2];
    let place = time.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes a time.
    let done = unsafe {
        call(
            libc::SYS_clock_gettime,
            [libc::CLOCK_MONOTONIC as usize, place, 0, 0, 0, 0],
        )
    };
    done.map_or(u64::MAX, |_| {
        time[0].saturating_mul(1000).saturating_add(time[1] / 1_000_000)
    })
}

/// Waits until something can be written to a descriptor without waiting, at most for this long. If
/// the kernel does not say, it is tried.
pub(crate) fn wait_to_write(fd: c_int, milliseconds: u64) -> bool {
    // struct pollfd: a descriptor, the events to wait for, and those that have occurred.
    let wanted = u64::from(fd as u32) | (libc::POLLOUT as u64) << 32;
    let mut waiting = [wanted];
    let place = waiting.as_mut_ptr().expose_provenance();
    let time = [milliseconds / 1000, milliseconds % 1000 * 1_000_000];
    let time = time.as_ptr().expose_provenance();
    // SAFETY: the kernel writes the struct's last two bytes.
    let ready = unsafe { call(libc::SYS_ppoll, [place, 1, time, 0, SIGNALS, 0]) };
    ready != Ok(0) && ready != Err(libc::EINTR)
}

/// A timer of the kernel.
pub(crate) struct Timer(usize);

impl Drop for Timer {
    fn drop(&mut self) {
        let _ = harmless(libc::SYS_timer_delete, [self.0, 0, 0, 0, 0, 0]);
    }
}

/// Sends this thread a signal once this time is over and the timer still exists, and no longer
/// blocks that signal.
pub(crate) fn send_after(milliseconds: u64, thread: u32, signal: c_int) -> Option<Timer> {
    let mut timer = [0u64];
    // struct sigevent: a value, the signal, how it is sent, and the thread.
    let how = u64::from(signal as u32) | (libc::SIGEV_THREAD_ID as u64) << 32;
    let event = [0u64, how, u64::from(thread), 0, 0, 0, 0, 0];
    let clock = libc::CLOCK_MONOTONIC as usize;
    let [event, place] = [
        event.as_ptr().expose_provenance(),
        timer.as_mut_ptr().expose_provenance(),
    ];
    // SAFETY: the kernel writes the timer's number.
    unsafe { call(libc::SYS_timer_create, [clock, event, place, 0, 0, 0]) }.ok()?;
    let once = [0, 0, milliseconds / 1000, milliseconds % 1000 * 1_000_000];
    let once = once.as_ptr().expose_provenance();
    let timer = Timer(timer[0] as u32 as usize);
    let _ = harmless(libc::SYS_timer_settime, [timer.0, 0, once, 0, 0, 0]);
    unblock(&[signal]);
    Some(timer)
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

/// Starts a program whose standard output and error are `output`. It inherits nothing else: no
/// environment, no other descriptor, and no handler or blocked signal. It is killed after
/// `seconds`. Returns its process id and the write end of its standard input.
///
/// # Safety
/// `program` is a string.
pub(crate) unsafe fn start(program: *const c_char, output: c_int, seconds: u64) -> Result<(c_int, c_int), c_int> {
    let [read, write] = pipe()?;
    // SAFETY: the only flag is the signal of its end, so this makes a process with one thread and
    // memory of its own, which continues here. fork(3) would call handlers that other libraries
    // registered.
    let child = unsafe { call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]) };
    if child == Ok(0) {
        // An alarm lasts beyond execve. Its signal kills unless it is ignored or blocked.
        // SAFETY: no handler.
        unsafe { set_action(libc::SIGALRM, &[libc::SIG_DFL; 4]) };
        let alarm = [0, 0, seconds, 0];
        let alarm = alarm.as_ptr().expose_provenance();
        let _ = harmless(libc::SYS_setitimer, [libc::ITIMER_REAL as usize, alarm, 0, 0, 0, 0]);
        let none = [0u64];
        let none = none.as_ptr().expose_provenance();
        let set = [libc::SIG_SETMASK as usize, none, 0, SIGNALS, 0, 0];
        let _ = harmless(libc::SYS_rt_sigprocmask, set);
        // Beyond the numbers that they get, so that neither replaces the other.
        let beyond = |fd: c_int| {
            let copied = harmless(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD as usize, 3, 0, 0, 0]);
            copied.unwrap_or(usize::MAX)
        };
        let (read, output) = (beyond(read), beyond(output));
        for (from, to) in [(read, 0), (output, 1), (output, 2)] {
            if harmless(libc::SYS_dup3, [from, to, 0, 0, 0, 0]).is_err() {
                close(to as c_int);
            }
        }
        close_from(3);
        let arguments: [*const c_void; 2] = [program.cast(), core::ptr::null()];
        let environment: [*const c_void; 1] = [core::ptr::null()];
        let [program, arguments, environment] = [
            program.expose_provenance(),
            arguments.as_ptr().expose_provenance(),
            environment.as_ptr().expose_provenance(),
        ];
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

/// Closes all descriptors from this one on.
fn close_from(first: c_int) {
    /// Before Linux 5.9, this many are tried.
    const MANY: c_int = 4096;
    if harmless(libc::SYS_close_range, [first as usize, u32::MAX as usize, 0, 0, 0, 0]).is_err() {
        for fd in first..MANY {
            close(fd);
        }
    }
}
