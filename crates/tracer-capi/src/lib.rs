//! The C library of the tracer: `include/backtrail-tracer.h` is its interface.
//!
//! This crate only converts; `backtrail_tracer` does the work. Rust programs use that crate
//! instead.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use backtrail_tracer::{Context, Head, Options, Out, Tracer};

/// `struct bt_class`.
#[repr(C)]
#[derive(Debug)]
pub struct Class {
    head: Head,
    /// Name, tab, fields; constant.
    text: *const c_char,
}

/// `struct bt_part`: bytes of an event.
#[repr(C)]
#[derive(Debug)]
pub struct Part {
    data: *const c_void,
    bytes: usize,
}

/// Records an event that consists of these parts.
///
/// # Safety
/// `class` is a `struct bt_class` that stays; `parts` has `count` parts, whose data can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_tracer_record(class: *const Class, parts: *const Part, count: usize) {
    // SAFETY: as our caller promises.
    let (class, parts) = unsafe { (&*class, std::slice::from_raw_parts(parts, count)) };
    let bytes = parts.iter().map(|part| part.bytes).sum();
    class.head.record(
        &|text| {
            // SAFETY: the text is a constant string.
            text.all(unsafe { CStr::from_ptr(class.text) }.to_bytes());
        },
        // This function.
        1,
        bytes,
        |out| parts.iter().for_each(|part| put(part, out)),
    );
}

#[inline]
fn put(part: &Part, out: &mut Out<'_>) {
    let data = part.data.cast::<u8>();
    // SAFETY: our caller promises that this many bytes can be read. Most are single numbers, for
    // which a copy of unknown length would take longer than everything else.
    unsafe {
        match part.bytes {
            0 => {}
            4 => out.put(data.cast::<[u8; 4]>().read()),
            8 => out.put(data.cast::<[u8; 8]>().read()),
            bytes => out.bytes(std::slice::from_raw_parts(data, bytes)),
        }
    }
}

/// `struct backtrail_tracer_options`.
#[repr(C)]
#[derive(Debug)]
pub struct COptions {
    size: usize,
    directory: *const c_char,
    flight_recorder: *const c_char,
    rules: *const c_char,
    threads: usize,
    packets: usize,
    packet_bytes: usize,
    contexts: u32,
    without_stacks: u32,
}

static TRACER: Mutex<Option<Tracer>> = Mutex::new(None);

/// Converts a C string to text; `None` for null.
///
/// # Safety
/// `text` is null or a string that stays as long as the result is used.
unsafe fn string<'s>(text: *const c_char) -> Option<&'s [u8]> {
    // SAFETY: as our caller promises.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn guarded(act: impl FnOnce() -> io::Result<()> + std::panic::UnwindSafe) -> c_int {
    match catch_unwind(act) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => -error.raw_os_error().unwrap_or(match error.kind() {
            io::ErrorKind::AlreadyExists => libc::EEXIST,
            io::ErrorKind::InvalidInput => libc::EINVAL,
            _ => libc::EIO,
        }),
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

/// Starts tracing; 0 or a negative error number.
///
/// # Safety
/// `options` is null or a `struct backtrail_tracer_options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_tracer_start(options: *const COptions) -> c_int {
    // SAFETY: as our caller promises.
    let given = unsafe { options.as_ref() };
    guarded(|| {
        let mut made;
        if let Some(given) = given {
            if given.size != size_of::<COptions>() || given.contexts >> 4 != 0 {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            // SAFETY: as our caller promises.
            let (directory, recorder, rules) = unsafe {
                (
                    string(given.directory),
                    string(given.flight_recorder),
                    string(given.rules),
                )
            };
            made = match (directory, recorder) {
                (Some(_), Some(_)) => return Err(io::ErrorKind::InvalidInput.into()),
                (Some(directory), None) => Options::to_directory(path(directory)),
                (None, Some(b"")) => Options::flight_recorder(),
                (None, Some(file)) => Options::flight_recorder_in(path(file)),
                (None, None) => Options::attachable(),
            };
            if let Some(rules) = rules {
                made = made.rules(std::str::from_utf8(rules).map_err(|_| io::ErrorKind::InvalidInput)?);
            }
            if given.threads != 0 {
                made = made.threads(given.threads);
            }
            if given.packets != 0 || given.packet_bytes != 0 {
                made = made.ring(given.packets, given.packet_bytes);
            }
            if given.without_stacks != 0 {
                made = made.without_stacks();
            }
            let contexts = [Context::Pid, Context::Tid, Context::Cpu, Context::Name];
            for (bit, context) in contexts.into_iter().enumerate() {
                if given.contexts & 1 << bit != 0 {
                    made = made.context(context);
                }
            }
        } else {
            made = Options::attachable();
        }
        let tracer = backtrail_tracer::start(made)?;
        *TRACER.lock().unwrap_or_else(PoisonError::into_inner) = Some(tracer);
        Ok(())
    })
}

/// Ends tracing and writes everything.
#[unsafe(no_mangle)]
pub extern "C" fn backtrail_tracer_stop() {
    guarded(|| {
        drop(TRACER.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    });
}

/// Calls `act` with the tracer.
fn with(act: impl FnOnce(&Tracer) -> io::Result<()> + std::panic::UnwindSafe) -> c_int {
    guarded(|| match &*TRACER.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(tracer) => act(tracer),
        None => Err(io::ErrorKind::InvalidInput.into()),
    })
}

/// Writes a snapshot.
///
/// # Safety
/// `directory` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_tracer_snapshot(directory: *const c_char) -> c_int {
    // SAFETY: as our caller promises.
    let directory = unsafe { string(directory) }.unwrap_or_default();
    with(|tracer| tracer.snapshot(path(directory)))
}

/// Copies the rings to a file at a crash.
///
/// # Safety
/// `file` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_tracer_snapshot_on_crash(file: *const c_char) -> c_int {
    // SAFETY: as our caller promises.
    let file = unsafe { string(file) }.unwrap_or_default();
    with(|tracer| tracer.snapshot_on_crash(path(file)))
}

/// Switches classes.
///
/// # Safety
/// `rules` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_tracer_switch(rules: *const c_char) -> c_int {
    // SAFETY: as our caller promises.
    let rules = unsafe { string(rules) }.unwrap_or_default();
    guarded(|| backtrail_tracer::switch(std::str::from_utf8(rules).map_err(|_| io::ErrorKind::InvalidInput)?))
}
