//! What ends a program by its own decision: C++'s `std::terminate`, a panic, the C library's
//! assertions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::handler::{crash, message};
use crate::lookups;

type Terminate = unsafe extern "C-unwind" fn();

/// The handler that was there before.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Finds where the C library's message will be, and takes over `std::terminate`, if the program has
/// a C++ library now.
pub(super) fn listen() {
    if let Some(place) = symbol(c"__abort_msg") {
        message::read_from(place.expose_provenance() as u64);
    }
    let Some(set) = lookups::quietly(|| symbol(c"_ZSt13set_terminatePFvvE")) else {
        return;
    };
    // SAFETY: this is the function's type in the ABI of C++.
    let before = unsafe {
        let set: unsafe extern "C" fn(Terminate) -> Option<Terminate> = transmute(set);
        set(terminated)
    };
    let before = before.map_or(0, |before| before as *const () as usize);
    if before != terminated as *const () as usize {
        BEFORE.store(before, Ordering::Release);
    }
}

unsafe extern "C-unwind" fn terminated() {
    static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    if !HAS_BEGUN.swap(true, Ordering::AcqRel) {
        let described = std::panic::catch_unwind(exception).ok().flatten();
        let described = described.unwrap_or_else(|| "std::terminate without an exception".to_owned());
        message::set(described.as_bytes());
    }
    let before = BEFORE.load(Ordering::Acquire);
    if before != 0 {
        // SAFETY: what `std::set_terminate` has returned.
        unsafe { transmute::<*const (), Terminate>(std::ptr::with_exposed_provenance(before))() };
    }
    std::process::abort();
}

/// A class with a destructor, which is returned in memory; its first word is a pointer.
#[repr(C)]
struct Returned([usize; 3]);

/// The type and the message of the exception that nobody catches.
fn exception() -> Option<String> {
    // SAFETY: these are the functions' types in the ABI of C++; each is asked for what it returns.
    unsafe {
        let type_of: extern "C" fn() -> *const [*const c_char; 2] = transmute(symbol(c"__cxa_current_exception_type")?);
        let thrown = type_of();
        // A `std::type_info`: its table of functions, and its name.
        let name = *thrown.as_ref()?.get(1)?;
        let name = demangled(CStr::from_ptr(name));
        let text = what(thrown.cast()).map_or(String::new(), |text| format!(": {text}"));
        Some(format!("uncaught {name}{text}"))
    }
}

/// The name of a type.
///
/// # Safety
/// A name from a `std::type_info`.
unsafe fn demangled(name: &CStr) -> String {
    type Demangle = unsafe extern "C" fn(*const c_char, *mut c_char, *mut usize, *mut c_int) -> *mut c_char;
    let (mut status, plain) = (0, || name.to_string_lossy().into_owned());
    let Some(function) = symbol(c"__cxa_demangle") else {
        return plain();
    };
    // SAFETY: the function's type; what it returns was allocated for its caller.
    unsafe {
        let demangle: Demangle = transmute(function);
        let text = demangle(name.as_ptr(), std::ptr::null_mut(), std::ptr::null_mut(), &mut status);
        if text.is_null() {
            return plain();
        }
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        libc::free(text.cast());
        copy
    }
}

/// What `what()` returns, if the exception is a `std::exception`.
///
/// # Safety
/// The `std::type_info` of the current exception.
unsafe fn what(thrown: *const c_void) -> Option<String> {
    type Catch = unsafe extern "C" fn(*const c_void, *const c_void, *mut *mut c_void, c_uint) -> bool;
    type What = unsafe extern "C" fn(*const c_void) -> *const c_char;
    // Other C++ libraries have other functions at this place.
    symbol(c"_ZNKSt9type_info10__do_catchEPKS_PPvj")?;
    let base = symbol(c"_ZTISt9exception")?.cast::<*const Catch>();
    // SAFETY: as above; the tables of functions are those of libstdc++, `__do_catch` is the fifth
    // of a type, and `what` the third of an exception. The exception lives until the program ends.
    unsafe {
        let current: unsafe extern "C" fn() -> Returned = transmute(symbol(c"_ZSt17current_exceptionv")?);
        let Returned([object, ..]) = current();
        let mut object: *mut c_void = std::ptr::with_exposed_provenance_mut(object);
        let catches = *(*base).add(4);
        if object.is_null() || !catches(base.cast(), thrown, &mut object, 1) {
            return None;
        }
        let what = *(*object.cast::<*const What>()).add(2);
        let text = what(object);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

/// Makes panics part of crash reports: of a program that aborts when it panics, the report of the
/// abort has the panic's message; of others, each panic is reported with its stack, once, and the
/// thread unwinds as before. The earlier hook is called, too.
pub fn report_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let text = format!("thread {:?} {panic}", thread.name().unwrap_or("?"));
        match cfg!(panic = "abort") {
            true => message::set(text.as_bytes()),
            false => crash::report_panic(text.as_bytes()),
        }
        before(panic);
    }));
}
