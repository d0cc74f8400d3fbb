//! `sigaction(3)`, `signal(3)` and its kin, `sigprocmask(3)`. Programs restore the default actions
//! of signals: node when it starts, others in their own handlers, before they die. The default
//! action of the signals that are reported is to report and to die.
//!
//! Programs also block all signals in threads that shall not handle any, or while a handler runs.
//! Blocking a signal does not stop its fault: the kernel then kills without a report. So the
//! signals of faults stay unblocked.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use backtrail_local::crash;
use backtrail_local::lookups::Next;

type SetAction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type SetHandler = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;

static SET_ACTION: Next = Next::new(c"sigaction");

fn set_action() -> Option<SetAction> {
    // SAFETY: null, or the next definition of this function, which has this type.
    unsafe { std::mem::transmute::<*mut c_void, Option<SetAction>>(SET_ACTION.get()) }
}

/// `sigaction(3)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(next) = set_action() else { return -1 };
    // SAFETY: null, or the caller's action.
    let new_action = unsafe { new.as_ref() };
    let before = once_of(signal);
    let changed = new_action.and_then(|new| match crash::action_of(signal) {
        Some(reporting) if new.sa_sigaction == libc::SIG_DFL => Some(reporting),
        Some(_) => run_only_once(signal, new),
        None => {
            let mut action = *new;
            crash::leave_unblocked(&mut action.sa_mask);
            Some(action)
        }
    });
    let new = changed.as_ref().map_or(new, std::ptr::from_ref);
    // SAFETY: as our caller promises; if the action is changed, it is a handler's.
    let result = unsafe { next(signal, new, old) };
    // SAFETY: null, or the caller's place, which the C library has filled unless it failed.
    if let Some(old) = unsafe { old.as_mut() }.filter(|_| result == 0)
        && old.sa_sigaction == run_once as *const () as usize
        && let Some((handler, flags)) = before
    {
        (old.sa_sigaction, old.sa_flags) = (handler, flags);
    }
    result
}

/// A handler of the program's own that is to run only once (`SA_RESETHAND`), and its flags.
struct Once {
    handler: AtomicUsize,
    flags: AtomicI32,
}

/// By signal.
static ONCE: [Once; 32] = [const {
    Once {
        handler: AtomicUsize::new(libc::SIG_DFL),
        flags: AtomicI32::new(0),
    }
}; 32];

fn once_of(signal: c_int) -> Option<(usize, c_int)> {
    let once = ONCE.get(usize::try_from(signal).ok()?)?;
    Some((once.handler.load(Ordering::Acquire), once.flags.load(Ordering::Acquire)))
}

/// The action that calls a program's handler once, if it is such a handler, and then reports. The
/// kernel's `SA_RESETHAND` would restore the default action that reports nothing.
fn run_only_once(signal: c_int, new: &libc::sigaction) -> Option<libc::sigaction> {
    let is_once = new.sa_flags & libc::SA_RESETHAND != 0 && new.sa_sigaction != libc::SIG_IGN;
    let once = ONCE.get(usize::try_from(signal).ok()?).filter(|_| is_once)?;
    once.handler.store(new.sa_sigaction, Ordering::Release);
    once.flags.store(new.sa_flags, Ordering::Release);
    let mut action = *new;
    action.sa_sigaction = run_once as *const () as usize;
    action.sa_flags = new.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
    Some(action)
}

extern "C" fn run_once(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some((handler, _)) = once_of(signal) else { return };
    report_again(signal);
    // SAFETY: the program has installed it. One that takes only the signal ignores the others.
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = unsafe { std::mem::transmute(handler) };
    handler(signal, info, context);
}

type SetMask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

/// Defines functions that change a thread's mask, with what they return if there is no next one,
/// and one that looks all of them up.
macro_rules! set_masks {
    ($($name:ident: $next:ident = $text:literal, $missing:expr;)*) => {
        $(
            static $next: Next = Next::new($text);

            /// As the C library's.
            ///
            /// # Safety
            /// As there.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name(
                how: c_int,
                set: *const libc::sigset_t,
                old: *mut libc::sigset_t,
            ) -> c_int {
                // SAFETY: null, or the next definition of this function, which has this type.
                let next = unsafe { std::mem::transmute::<*mut c_void, Option<SetMask>>($next.get()) };
                let Some(next) = next else { return $missing };
                // SAFETY: null, or the caller's set.
                let mut changed = unsafe { set.as_ref() }.filter(|_| how != libc::SIG_UNBLOCK).copied();
                let set = changed.as_mut().map_or(set, |changed| {
                    crash::leave_unblocked(changed);
                    std::ptr::from_ref(changed)
                });
                // SAFETY: as our caller promises.
                unsafe { next(how, set, old) }
            }
        )*

        fn find_masks() {
            $($next.find();)*
        }
    };
}

set_masks! {
    sigprocmask: SIGPROCMASK = c"sigprocmask", -1;
    pthread_sigmask: PTHREAD_SIGMASK = c"pthread_sigmask", libc::ENOSYS;
}

/// Unblocks the signals of faults, which a process inherits blocked if its parent has done so.
pub(crate) fn unblock_faults() {
    // SAFETY: the sets are ours.
    unsafe {
        let mut others = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &mut others);
        crash::leave_unblocked(&mut others);
        libc::sigprocmask(libc::SIG_SETMASK, &others, std::ptr::null_mut());
    }
}

/// Reports a signal again whose default action has been restored.
fn report_again(number: c_int) {
    if let (Some(reporting), Some(next)) = (crash::action_of(number), set_action()) {
        // SAFETY: the action is a handler's.
        unsafe { next(number, &reporting, std::ptr::null_mut()) };
    }
}

/// The same for a handler that has been installed to run only once, as `__sysv_signal` does.
fn change_if_once(number: c_int) {
    let Some(next) = set_action() else { return };
    // SAFETY: the action is ours, and a struct of integers and pointers, for which zeros will do;
    // a changed one is a handler's.
    unsafe {
        let mut now = std::mem::zeroed();
        if next(number, std::ptr::null(), &mut now) == 0
            && let Some(changed) = run_only_once(number, &now)
        {
            next(number, &changed, std::ptr::null_mut());
        }
    }
}

/// Defines functions that set a handler, and one that looks all of them up.
macro_rules! set_handlers {
    ($($name:ident: $next:ident = $text:literal;)*) => {
        $(
            static $next: Next = Next::new($text);

            /// As the C library's.
            ///
            /// # Safety
            /// As there.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
                // SAFETY: null, or the next definition of this function, which has this type.
                let next = unsafe { std::mem::transmute::<*mut c_void, Option<SetHandler>>($next.get()) };
                let Some(next) = next else { return libc::SIG_ERR };
                let once = once_of(number);
                // SAFETY: as our caller promises.
                let before = unsafe { next(number, handler) };
                if handler == libc::SIG_DFL && before != libc::SIG_ERR {
                    report_again(number);
                } else if before != libc::SIG_ERR && crash::action_of(number).is_some() {
                    change_if_once(number);
                }
                once.filter(|_| before == run_once as *const () as usize)
                    .map_or(before, |(handler, _)| handler)
            }
        )*

        /// Looks up the next library's functions, so that handlers need not.
        pub(crate) fn find_next() {
            SET_ACTION.find();
            find_masks();
            $($next.find();)*
        }
    };
}

set_handlers! {
    signal: SIGNAL = c"signal";
    sigset: SIGSET = c"sigset";
    __sysv_signal: SYSV_SIGNAL = c"__sysv_signal";
}
