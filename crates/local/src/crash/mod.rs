//! Makes fatal signals write a report, and gives threads a stack for that.
//!
//! The report is text: the signal, the stack, the stack as a compact backtrace, and the modules
//! with their build ids. Then the process dies of its signal as it would have otherwise; a handler
//! installed earlier is called instead.

mod last_words;

use std::cell::RefCell;
use std::ffi::{CString, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;

use crate::handler::crash::{self, SIGNALS};
use crate::handler::output::{self, OutputFile};
use crate::handler::stack;
use crate::register;

pub use last_words::report_panics;

/// Stack space that the handler needs, beyond the kernel's frame, if it may not change to another
/// stack.
const STACK: usize = 64 << 10;
/// Usable bytes of an alternate stack below those that the kernel knows of. A store of AArch64 that
/// makes a frame faults, if the frame does not fit, before it has changed the stack pointer: at
/// most 512 bytes above. The kernel kills a process whose stack pointer is then still on the
/// alternate stack; where it is below, the handler starts at the top.
const BELOW: usize = 1024;

/// Where reports go.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The file descriptor that reports are written to; `None` for standard error.
    pub fd: Option<c_int>,
    /// The absolute path of the file that `fd` refers to. A report then opens the file again if the
    /// program has closed the descriptor, as daemons do.
    pub path: Option<CString>,
    /// A program that is started for each report and reads it on its standard input, such as
    /// `backtrail-crash-names`, which repeats it with function names. It gets no environment and no
    /// other descriptors. A program that runs with more rights than its caller (set-user-id,
    /// capabilities) starts none.
    pub helper: Option<CString>,
    /// Whether no tables are made, which take seconds for large programs: reports read the call
    /// frame information of the modules instead.
    pub without_tables: bool,
}

/// Makes SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP and SIGSYS write a report before the
/// process dies of them, and gives the calling thread a stack for that. Also does what
/// [`init`](crate::init()) does, unless [without tables](Options::without_tables). Not for signal
/// handlers.
///
/// # Errors
/// As [`init`](crate::init()), and those of `sigaltstack`, `mmap` and `sigaction`.
pub fn install(options: Options) -> io::Result<()> {
    install_with(options).map_err(io::Error::from_raw_os_error)
}

fn install_with(options: Options) -> Result<(), c_int> {
    match options.without_tables {
        true => register::modules_without_tables(),
        false => register::modules(None)?,
    }
    // SAFETY: only reads what the kernel has passed to the process.
    let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let helper = options.helper.filter(|_| !is_privileged);
    if let Some(helper) = helper {
        crash::name_by(helper.into_raw());
    }
    let fd = options.fd.unwrap_or(2);
    let file = options.path.and_then(|path| OutputFile::new(fd, path.into_raw()));
    output::set(
        fd,
        file.map_or(std::ptr::null_mut(), |file| Box::into_raw(Box::new(file))),
    );
    own_stack()?;
    report_stacks()?;
    last_words::listen();
    SIGNALS.iter().try_for_each(|&(signal, _)| take_over(signal))
}

/// Gives the calling thread a stack for reports, unless it has an alternate stack. A thread without
/// one dies of a stack overflow without a report. Not for signal handlers.
///
/// # Errors
/// Those of `sigaltstack` and `mmap`.
pub fn prepare_thread() -> io::Result<()> {
    own_stack().map_err(io::Error::from_raw_os_error)
}

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

fn take_over(signal: c_int) -> Result<(), c_int> {
    if !crash::remember(signal, |before| Box::into_raw(Box::new(before)))? {
        return Ok(());
    }
    let action = reporting();
    // SAFETY: the action is ours. The signal's previous action is stored before the new one can
    // run.
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

/// Signals that the kernel sends for faults. If the thread has blocked the signal, it kills the
/// process without calling the handler. By one of them, threads are asked for their stacks.
const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Takes the signals out of a set that faults and reports need and that [`install`] has taken over.
/// May be called in signal handlers.
pub fn leave_unblocked(set: &mut libc::sigset_t) {
    for signal in FAULTS.into_iter().filter(|&signal| crash::is_remembered(signal)) {
        // SAFETY: the set is the caller's.
        unsafe { libc::sigdelset(set, signal) };
    }
}

/// The action of a signal that [`install`] has taken over: a handler that reports. May be called in
/// signal handlers.
#[must_use]
pub fn action_of(signal: c_int) -> Option<libc::sigaction> {
    crash::is_remembered(signal).then(reporting)
}

fn reporting() -> libc::sigaction {
    // SAFETY: a struct of integers and pointers, for which zeros will do.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = crash::report as *const () as usize;
    // Loads of a report may fault, and so may the report itself.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the set is ours.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
        for fault in FAULTS {
            libc::sigdelset(&mut action.sa_mask, fault);
        }
    }
    action
}

thread_local! {
    /// Takes the thread's stack back when it ends.
    static OWN: RefCell<Option<Stack>> = const { RefCell::new(None) };
}

/// An alternate stack, with an inaccessible guard below it.
struct Stack {
    mapping: *mut c_void,
    bytes: usize,
    guard: usize,
}

impl Stack {
    /// With room for this, beside a frame of the kernel's.
    fn new(room: usize) -> Result<Stack, c_int> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which is unmapped only by its owner.
        unsafe {
            let frame = libc::getauxval(libc::AT_MINSIGSTKSZ).max(libc::MINSIGSTKSZ as u64) as usize;
            let guard = libc::getauxval(libc::AT_PAGESZ).max(4096) as usize;
            let usable = (frame + room + BELOW).next_multiple_of(guard);
            let bytes = usable + guard;
            let mapping = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            if mapping == libc::MAP_FAILED {
                return Err(errno());
            }
            let stack = Stack { mapping, bytes, guard };
            let start = mapping.byte_add(guard);
            match libc::mprotect(start, usable, libc::PROT_READ | libc::PROT_WRITE) {
                0 => Ok(stack),
                _ => Err(errno()),
            }
        }
    }

    /// The lowest address that the kernel knows of.
    fn start(&self) -> *mut c_void {
        self.mapping.wrapping_byte_add(self.guard + BELOW)
    }

    fn size(&self) -> usize {
        self.bytes - self.guard - BELOW
    }
}

/// Gives reports their stacks, once.
fn report_stacks() -> Result<(), c_int> {
    for place in [&stack::REPORTER, &stack::OTHER] {
        if !place.is_set() {
            let stack = ManuallyDrop::new(Stack::new(stack::BYTES)?);
            let start = stack.start().expose_provenance() as u64;
            place.set(start, start + stack.size() as u64);
        }
    }
    Ok(())
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the thread is not on it, since it is running its destructors, and it is replaced
        // by no stack.
        unsafe {
            let mut now: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(std::ptr::null(), &mut now);
            if now.ss_sp == self.start() {
                now.ss_flags = libc::SS_DISABLE;
                libc::sigaltstack(&now, std::ptr::null_mut());
            }
            libc::munmap(self.mapping, self.bytes);
        }
    }
}

fn own_stack() -> Result<(), c_int> {
    // SAFETY: the kernel fills the struct; the mapping is new, and unmapped only by its owner.
    unsafe {
        let mut now: libc::stack_t = std::mem::zeroed();
        if libc::sigaltstack(std::ptr::null(), &mut now) != 0 {
            return Err(errno());
        }
        if now.ss_flags & libc::SS_DISABLE == 0 {
            return Ok(());
        }
        let stack = Stack::new(STACK)?;
        now = libc::stack_t {
            ss_sp: stack.start(),
            ss_flags: 0,
            ss_size: stack.size(),
        };
        if libc::sigaltstack(&now, std::ptr::null_mut()) != 0 {
            return Err(errno());
        }
        OWN.with(|own| own.replace(Some(stack)));
        Ok(())
    }
}
