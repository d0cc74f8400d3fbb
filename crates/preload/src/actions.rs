//! `sigaction(3)`, `signal(3)` and its kin, `sigprocmask(3)`. Programs restore the default actions
//! of signals: node when it starts, others in their own handlers, before they die. The default
//! action of the signals that are reported is to report and to die.
//!
//! Programs also block all signals in threads that shall not handle any, or while a handler runs.
//! Blocking a signal does not stop its fault: the kernel then kills without a report. So the
//! signals of faults stay unblocked.

use std::ffi::{c_int, c_void};

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
    let changed = unsafe { new.as_ref() }.and_then(|new| match crash::action_of(signal) {
        Some(reporting) => (new.sa_sigaction == libc::SIG_DFL).then_some(reporting),
        None => {
            let mut action = *new;
            crash::leave_unblocked(&mut action.sa_mask);
            Some(action)
        }
    });
    let new = changed.as_ref().map_or(new, std::ptr::from_ref);
    // SAFETY: as our caller promises; if the action is changed, it is a handler's.
    unsafe { next(signal, new, old) }
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
                // SAFETY: as our caller promises.
                let before = unsafe { next(number, handler) };
                if handler == libc::SIG_DFL && before != libc::SIG_ERR {
                    report_again(number);
                }
                before
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
