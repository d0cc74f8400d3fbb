//! Makes fatal signals report, and gives threads a stack for that; what the signals then do is in [`handler::crash`](crash).

use std::ffi::{CStr, CString, c_int, c_void};
use std::panic::AssertUnwindSafe;

use crate::handler::crash::{self, SIGNALS};
use crate::handler::options::{self, CrashOptions};
use crate::{guarded, register};

/// What the handler needs of its stack, beyond the kernel's frame.
const STACK: usize = 64 << 10;
const PAGE: usize = 4096;
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
        // SAFETY: a string, as our caller promises.
        let helper = |_| unsafe { CStr::from_ptr(options.helper) }.to_owned();
        let helper = (!options.helper.is_null()).then_some(()).map(helper);
        crash::write_to(
            if options.fd == 0 { 2 } else { options.fd },
            helper.map(CString::into_raw),
        );
        own_stack()?;
        SIGNALS.iter().try_for_each(|&(signal, _)| take_over(signal))
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

fn take_over(signal: c_int) -> Result<(), c_int> {
    if !crash::remember(signal, |before| Box::into_raw(Box::new(before)))? {
        return Ok(());
    }
    // SAFETY: a struct of integers and pointers, for which zeros will do.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = crash::report as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is ours. What the signal did before is known before it can come to the new one.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
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
