//! `sigaction(3)`, `signal(3)` and its kin. Programs restore the default actions of signals: node
//! when it starts, others in their own handlers, before they die. The default action of the signals
//! that are reported is to report and to die.

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
    let is_default = unsafe { new.as_ref() }.is_some_and(|new| new.sa_sigaction == libc::SIG_DFL);
    match crash::action_of(signal).filter(|_| is_default) {
        // SAFETY: as our caller promises; the action is a handler's.
        Some(reporting) => unsafe { next(signal, &reporting, old) },
        // SAFETY: as our caller promises.
        None => unsafe { next(signal, new, old) },
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
            $($next.find();)*
        }
    };
}

set_handlers! {
    signal: SIGNAL = c"signal";
    sigset: SIGSET = c"sigset";
    __sysv_signal: SYSV_SIGNAL = c"__sysv_signal";
}
