//! Addresses as text, in a handler.

use std::ffi::{c_int, c_void};

use crate::register;

/// Writes each address of a backtrace on a line of its own: the module's path and the offset in its file's terms, which
/// `addr2line -e PATH OFFSET` takes, and the address. Names are not looked up, since that is nothing for a handler.
///
/// # Safety
/// `buffer` holds `size` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_backtrace_symbols_fd(buffer: *const *mut c_void, size: c_int, fd: c_int) {
    if buffer.is_null() {
        return;
    }
    // SAFETY: the variable is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    for index in 0..usize::try_from(size).unwrap_or(0) {
        // SAFETY: within what the caller gave.
        let address = unsafe { *buffer.add(index) }.addr() as u64;
        let mut line = Line::new(fd);
        line.push_address(address);
        line.push(b"\n");
        line.flush();
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Text on its way, as far as it has room: it is written when it is full.
pub(crate) struct Line {
    fd: c_int,
    bytes: [u8; 256],
    used: usize,
}

impl Line {
    pub(crate) fn new(fd: c_int) -> Line {
        Line {
            fd,
            bytes: [0; 256],
            used: 0,
        }
    }

    pub(crate) fn push(&mut self, text: &[u8]) {
        for &byte in text {
            if self.used == self.bytes.len() {
                self.flush();
            }
            if let Some(place) = self.bytes.get_mut(self.used) {
                *place = byte;
                self.used += 1;
            }
        }
    }

    /// PATH(+0xOFFSET) [0xADDRESS].
    pub(crate) fn push_address(&mut self, address: u64) {
        if let Some(named) = register::named(address) {
            self.push(named.name);
            self.push(b"(+0x");
            self.push_hex(address.wrapping_sub(named.bias));
            self.push(b") ");
        }
        self.push(b"[0x");
        self.push_hex(address);
        self.push(b"]");
    }

    /// Every byte as two digits.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            for nibble in [byte >> 4, byte & 15] {
                self.push(&[if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }]);
            }
        }
    }

    pub(crate) fn push_decimal(&mut self, value: u64) {
        let mut digits = [b'0'; 20];
        let mut rest = value;
        let mut first = digits.len() - 1;
        for (place, digit) in digits.iter_mut().enumerate().rev() {
            *digit = b'0' + (rest % 10) as u8;
            if rest > 0 {
                first = place;
            }
            rest /= 10;
        }
        self.push(digits.get(first..).unwrap_or_default());
    }

    /// Without leading zeros.
    pub(crate) fn push_hex(&mut self, value: u64) {
        let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            let nibble = (value >> (4 * digit) & 15) as u8;
            self.push(&[if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }]);
        }
    }

    pub(crate) fn flush(&mut self) {
        let mut rest = self.bytes.get(..self.used).unwrap_or_default();
        while !rest.is_empty() {
            // SAFETY: the bytes are ours; write only reads them.
            let written = unsafe { libc::write(self.fd, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(count @ 1..) => rest = rest.get(count..).unwrap_or_default(),
                // SAFETY: the variable is this thread's own.
                Err(_) if unsafe { *libc::__errno_location() } == libc::EINTR => {}
                // There is nobody to tell.
                _ => break,
            }
        }
        self.used = 0;
    }
}
