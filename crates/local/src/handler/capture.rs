//! A backtrace for Rust.

use core::ffi::c_void;
use core::fmt;

use super::entry::own_return_addresses;
use super::names;

/// The return addresses of a thread's active calls, the innermost first.
///
/// Capturing one does not allocate, lock or panic, so signal handlers may do it at any moment and
/// on any stack. [`init`](crate::init()) makes it faster, and names modules.
///
/// Displayed, each frame is a line `PATH(+0xOFFSET) [0xADDRESS]`; no file is read for it.
#[derive(Clone)]
pub struct Backtrace {
    addresses: [u64; Backtrace::MOST],
    count: usize,
}

impl Backtrace {
    /// Maximum number of frames; outer ones are left out.
    pub const MOST: usize = 128;

    /// Captures the caller's stack, beginning with an address in the caller.
    #[inline(never)]
    pub fn capture() -> Backtrace {
        // The first is in this function.
        let mut found = [core::ptr::null_mut::<c_void>(); Backtrace::MOST + 1];
        // SAFETY: the buffer has this room, which an int can count.
        let count = unsafe { own_return_addresses(found.as_mut_ptr(), found.len() as i32) };
        let mut backtrace = Backtrace {
            addresses: [0; Backtrace::MOST],
            count: 0,
        };
        let callers = found.iter().take(usize::try_from(count).unwrap_or(0)).skip(1);
        for (place, address) in backtrace.addresses.iter_mut().zip(callers) {
            *place = address.addr() as u64;
            backtrace.count += 1;
        }
        backtrace
    }

    /// The return addresses.
    pub fn addresses(&self) -> &[u64] {
        self.addresses.get(..self.count).unwrap_or_default()
    }
}

impl fmt::Display for Backtrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &address in self.addresses() {
            if let Some(named) = names::named(address) {
                for chunk in named.name.utf8_chunks() {
                    f.write_str(chunk.valid())?;
                    if !chunk.invalid().is_empty() {
                        f.write_str("\u{fffd}")?;
                    }
                }
                write!(f, "(+{:#x}) ", address.wrapping_sub(named.bias))?;
            }
            writeln!(f, "[{address:#x}]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Backtrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
