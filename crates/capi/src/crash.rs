//! Reports of crashes: written by the handler of the fatal signal, on a stack of its own, with system calls and memory that were there before. Names
//! are given by a process that the handler starts. Then the process dies of its signal, as it would have without a report.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use backtrail_cbf::{Encoder, End, Frame as CbfFrame, WordSize};
use backtrail_unwind::local::{position_of, read_words, walk};
use backtrail_unwind::{AddressKind, Frame, Position, Stop};

use crate::symbols::Line;
use crate::{guarded, options, register};

/// The signals whose default is to kill with a core dump, and that are sent for what a program has done wrong.
const SIGNALS: [(c_int, &[u8]); 7] = [
    (libc::SIGSEGV, b"SIGSEGV"),
    (libc::SIGBUS, b"SIGBUS"),
    (libc::SIGILL, b"SIGILL"),
    (libc::SIGFPE, b"SIGFPE"),
    (libc::SIGABRT, b"SIGABRT"),
    (libc::SIGTRAP, b"SIGTRAP"),
    (libc::SIGSYS, b"SIGSYS"),
];

/// What the handler needs of its stack, beyond the kernel's frame.
const STACK: usize = 64 << 10;
const PAGE: usize = 4096;
/// Frames in the text at the inner and at the outer end of a stack; those between are counted, and in the compact backtrace.
const INNER: usize = 96;
const OUTER: usize = 32;
/// Bytes of a compact backtrace; what has no room is left out at the outer end.
const CBF_BYTES: usize = 8 << 10;
/// How long the process that gives names may take, in steps of ten milliseconds.
const PATIENCE: u32 = 1000;

/// `struct backtrail_crash_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CrashOptions {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// A program that reads the report on its standard input; null for none.
    pub helper: *const c_char,
    /// Where the report is written; 0 stands for standard error.
    pub fd: c_int,
    /// Nothing; 0.
    pub reserved: c_int,
}

static FD: AtomicI32 = AtomicI32::new(2);
/// A string that lives for ever.
static HELPER: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
/// The thread that reports; 0 for none.
static REPORTER: AtomicU32 = AtomicU32::new(0);
/// What the signals did before.
static BEFORE: [AtomicPtr<libc::sigaction>; SIGNALS.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS.len()];

/// Makes all fatal signals report before the process dies of them, and gives the calling thread a stack for that. Does what
/// [`backtrail_init`](crate::backtrail_init) does, too. Not for handlers.
///
/// Returns 0, or a negative error number.
///
/// # Safety
/// `given` is null or points to a `struct backtrail_crash_options` that tells its own size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_crash_install(given: *const CrashOptions) -> c_int {
    guarded(AssertUnwindSafe(|| {
        // SAFETY: as our caller promises.
        let options = unsafe { options::read(given) }?;
        if options.fd < 0 || options.reserved != 0 {
            return Err(libc::EINVAL);
        }
        register::modules(None)?;
        if !options.helper.is_null() {
            // SAFETY: a string, as our caller promises.
            let helper = unsafe { CStr::from_ptr(options.helper) }.to_owned();
            HELPER.store(helper.into_raw(), Ordering::Release);
        }
        FD.store(if options.fd == 0 { 2 } else { options.fd }, Ordering::Release);
        own_stack()?;
        (0..SIGNALS.len()).try_for_each(take_over)
    }))
}

/// Gives the calling thread a stack for reports, unless it has an alternate stack: without one, a thread whose stack has overflown dies without a
/// report. Not for handlers.
///
/// Returns 0, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn backtrail_crash_thread() -> c_int {
    guarded(own_stack)
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

fn take_over(index: usize) -> Result<(), c_int> {
    let (Some(&(signal, _)), Some(place)) = (SIGNALS.get(index), BEFORE.get(index)) else {
        return Err(libc::EINVAL);
    };
    if !place.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    // SAFETY: a struct of integers and pointers, for which zeros will do.
    let (mut before, mut action): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = report as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both are ours. The old action is known before the signal can come to the new one.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
        if libc::sigaction(signal, std::ptr::null(), &mut before) != 0 {
            return Err(errno());
        }
        place.store(Box::into_raw(Box::new(before)), Ordering::Release);
        match libc::sigaction(signal, &action, std::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }
}

thread_local! {
    /// Takes the thread's stack back when it ends.
    static OWN: std::cell::RefCell<Option<Stack>> = const { std::cell::RefCell::new(None) };
}

/// An alternate stack, with a page below it that nobody can touch.
struct Stack {
    mapping: *mut c_void,
    bytes: usize,
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the thread is not on it, since it runs its destructors; what takes its place is no stack.
        unsafe {
            let mut now: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(std::ptr::null(), &mut now);
            if now.ss_sp == self.mapping.byte_add(PAGE) {
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
        let frame = libc::getauxval(libc::AT_MINSIGSTKSZ).max(libc::MINSIGSTKSZ as u64) as usize;
        let usable = (frame + STACK).next_multiple_of(PAGE);
        let bytes = usable + PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapping = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        if mapping == libc::MAP_FAILED {
            return Err(errno());
        }
        let stack = Stack { mapping, bytes };
        let start = mapping.byte_add(PAGE);
        if libc::mprotect(start, usable, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return Err(errno());
        }
        now = libc::stack_t {
            ss_sp: start,
            ss_flags: 0,
            ss_size: usable,
        };
        if libc::sigaltstack(&now, std::ptr::null_mut()) != 0 {
            return Err(errno());
        }
        OWN.with(|own| own.replace(Some(stack)));
        Ok(())
    }
}

unsafe extern "C" fn report(signal: c_int, info: *const libc::siginfo_t, ucontext: *const c_void) {
    // SAFETY: takes nothing and touches no memory.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    match REPORTER.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: the kernel gives both.
            unsafe { write_report(signal, info, ucontext, thread) };
        }
        // A crash in the report: there is no more to be had.
        Err(reporter) if reporter == thread => {}
        // Another thread reports, and the process dies when it is done.
        Err(_) => loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        },
    }
    // SAFETY: the kernel gives it.
    unsafe { die(signal, info, thread) };
}

/// Gives the signal its old meaning and lets it come again: where the instruction itself is at fault by going on, so that a core dump has the registers of the
/// fault; else by sending it.
unsafe fn die(signal: c_int, info: *const libc::siginfo_t, thread: u32) {
    let index = SIGNALS.iter().position(|(number, _)| *number == signal);
    let before = index
        .and_then(|index| BEFORE.get(index))
        .map(|place| place.load(Ordering::Acquire));
    // SAFETY: the kernel's struct, and an action that lives for ever; an ignored signal would not kill.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if let Some(before) = before.and_then(|before| before.as_ref())
            && before.sa_sigaction != libc::SIG_IGN
        {
            action = *before;
        }
        libc::sigaction(signal, &action, std::ptr::null_mut());
        if (*info).si_code <= 0 || signal == libc::SIGTRAP || signal == libc::SIGSYS {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal);
        }
    }
}

/// Text for the report's reader and for the helper.
struct Outputs {
    fds: [c_int; 2],
}

impl Outputs {
    fn line(&self, write: impl Fn(&mut Line)) {
        for fd in self.fds.into_iter().filter(|fd| *fd >= 0) {
            let mut line = Line::new(fd);
            write(&mut line);
            line.push(b"\n");
            line.flush();
        }
    }
}

/// # Safety
/// As the kernel gives them to a handler.
unsafe fn write_report(signal: c_int, info: *const libc::siginfo_t, ucontext: *const c_void, thread: u32) {
    let (helper, pipe) = start_helper();
    let outputs = Outputs {
        fds: [FD.load(Ordering::Acquire), pipe],
    };
    let name = SIGNALS
        .iter()
        .find(|(number, _)| *number == signal)
        .map_or(&b""[..], |(_, name)| name);
    // SAFETY: the kernel's struct; the address counts where the kernel has sent the signal for a fault.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr() as u64) };
    // SAFETY: takes nothing and touches no memory.
    let process = unsafe { libc::getpid() };
    outputs.line(|line| {
        line.push(b"crash: ");
        line.push(name);
        line.push(b" (signal ");
        line.push_decimal(signal as u64);
        line.push(b", code ");
        if code < 0 {
            line.push(b"-");
        }
        line.push_decimal(u64::from(code.unsigned_abs()));
        line.push(b")");
        if code > 0 && signal != libc::SIGABRT {
            line.push(b" at address 0x");
            line.push_hex(address);
        }
        line.push(b", process ");
        line.push_decimal(process as u64);
        line.push(b", thread ");
        line.push_decimal(u64::from(thread));
    });
    // SAFETY: as our caller promises.
    let position = unsafe { position_of(ucontext) };
    write_stack(&outputs, &position);
    for module in register::all_named() {
        outputs.line(|line| {
            line.push(b"module: 0x");
            line.push_hex(module.start);
            line.push(b"-0x");
            line.push_hex(module.end);
            line.push(b" bias 0x");
            line.push_hex(module.bias);
            line.push(b" build-id ");
            match module.build_id.is_empty() {
                true => line.push(b"none"),
                false => line.push_bytes(module.build_id),
            }
            line.push(b" ");
            line.push(module.name);
        });
    }
    if pipe >= 0 {
        // SAFETY: our own end of the pipe.
        unsafe { libc::close(pipe) };
        wait_for(helper);
    }
}

fn write_stack(outputs: &Outputs, position: &Position) {
    let mut bytes = [0; CBF_BYTES];
    let mut encoder = Encoder::new(&mut bytes, WordSize::Bits64).ok();
    let mut is_full = false;
    let mut last = [None; OUTER];
    let mut count = 0usize;
    let line = |index: usize, frame: Frame| {
        outputs.line(|line| {
            line.push(b"#");
            line.push_decimal(index as u64);
            line.push(b" ");
            line.push_address(frame.address);
            // The others are return addresses: the call lies before.
            if frame.kind == AddressKind::Pc {
                line.push(b" pc");
            }
        });
    };
    let mut visit = |frame: Frame| {
        match count < INNER {
            true => line(count, frame),
            false => {
                if let Some(place) = last.get_mut(count % OUTER) {
                    *place = Some(frame);
                }
            }
        }
        let frame = match frame.kind {
            AddressKind::Pc => CbfFrame::Pc(frame.address),
            AddressKind::Ra => CbfFrame::Ra(frame.address),
        };
        is_full = is_full || encoder.as_mut().is_none_or(|encoder| encoder.push(frame).is_err());
        count += 1;
    };
    let mut stop = walk(position, usize::MAX, &mut visit);
    // A call of no code has left its return address, and nothing else.
    if stop == Stop::NoModule
        && let Some(caller) = caller_of_nothing(position)
    {
        let mut is_first = true;
        stop = walk(&caller, usize::MAX, |frame| {
            // Where there was a frame with a caller, the walk got further than this.
            if !is_first || register::named(frame.address).is_some() {
                visit(frame);
            }
            is_first = false;
        });
    }
    let left_out = count.saturating_sub(INNER + OUTER);
    if left_out > 0 {
        outputs.line(|line| {
            line.push(b"... ");
            line.push_decimal(left_out as u64);
            line.push(b" frames");
        });
    }
    for index in count.saturating_sub(OUTER).max(INNER)..count {
        if let Some(frame) = last.get(index % OUTER).copied().flatten() {
            line(index, frame);
        }
    }
    outputs.line(|line| {
        line.push(b"end: ");
        line.push(reason(stop));
    });
    let end = match stop {
        Stop::EndOfStack if !is_full => End::Complete,
        _ => End::Truncated,
    };
    let used = encoder.map_or(0, |encoder| encoder.finish(end));
    outputs.line(|line| {
        line.push(b"cbf: ");
        line.push_bytes(bytes.get(..used).unwrap_or_default());
    });
}

fn reason(stop: Stop) -> &'static [u8] {
    match stop {
        Stop::EndOfStack => b"the outermost frame",
        Stop::NoModule => b"no module at this address",
        Stop::NoTable => b"no unwind table for this address",
        Stop::Unreadable(_) => b"the stack cannot be read",
        Stop::DidNotAdvance => b"the stack does not go on upwards",
        Stop::NotExpressible(_) => b"a register is not known",
        Stop::Limit => b"too many frames",
    }
}

/// Where a call has gone to an address without code: the frame that its return would lead to.
fn caller_of_nothing(position: &Position) -> Option<Position> {
    let arch = backtrail_unwind::local::ARCH;
    let mut registers = position.registers;
    if register::named(registers.pc).is_some() {
        return None;
    }
    let sp = registers.get(arch.sp)?;
    match arch.link_register {
        true => registers.pc = arch.strip(registers.get(arch.ra)?),
        false => {
            let mut word = [0];
            if read_words(sp, &mut word) != 1 {
                return None;
            }
            [registers.pc] = word;
            registers.set(arch.sp, sp.wrapping_add(8));
        }
    }
    Some(Position {
        registers,
        kind: AddressKind::Ra,
    })
}

/// Starts the program that gives names, with the report as its standard input; its process id, and where to write.
fn start_helper() -> (c_int, c_int) {
    let helper = HELPER.load(Ordering::Acquire);
    if helper.is_null() {
        return (-1, -1);
    }
    let mut ends = [-1; 2];
    // SAFETY: the kernel writes two descriptors. The child shares nothing, has one thread, and does nothing but system calls until it is another
    // program; fork(3) would call what other libraries have registered.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return (-1, -1);
        }
        let [read, write] = ends;
        let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as c_int;
        if child == 0 {
            let mut none = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
            libc::dup2(read, 0);
            let fd = FD.load(Ordering::Acquire);
            libc::dup2(fd, 1);
            let arguments = [helper.cast_const(), std::ptr::null()];
            libc::execve(helper, arguments.as_ptr(), libc::environ.cast());
            libc::_exit(127);
        }
        libc::close(read);
        if child < 0 {
            libc::close(write);
            return (-1, -1);
        }
        (child, write)
    }
}

/// Waits for it, but not for ever.
fn wait_for(helper: c_int) {
    for _ in 0..PATIENCE {
        let ten_milliseconds = libc::timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        // SAFETY: a child of ours; the kernel writes nothing where it may not.
        unsafe {
            if libc::waitpid(helper, std::ptr::null_mut(), libc::WNOHANG) != 0 {
                return;
            }
            libc::nanosleep(&ten_milliseconds, std::ptr::null_mut());
        }
    }
}
