//! Formatting and writing text in handlers.

use core::ffi::c_int;

use super::late::{self, LONGEST_PATH};
use super::{names, system};

/// A text buffer that is written to its file descriptor when full.
pub struct Line {
    fd: c_int,
    /// When writing is given up ([`system::now`]); `None` for never.
    until: Option<u64>,
    given_up: bool,
    bytes: [u8; 256],
    used: usize,
}

impl Line {
    /// An empty buffer for `fd`.
    pub fn new(fd: c_int) -> Line {
        Line {
            fd,
            until: None,
            given_up: false,
            bytes: [0; 256],
            used: 0,
        }
    }

    /// An empty buffer for `fd`; nothing more is written once writing would wait beyond this time.
    pub(crate) fn until(fd: c_int, time: u64) -> Line {
        Line {
            until: Some(time),
            ..Line::new(fd)
        }
    }

    /// Whether writing was given up.
    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Appends text.
    pub fn push(&mut self, text: &[u8]) {
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

    /// Appends `PATH(+0xOFFSET) [0xADDRESS]`.
    pub fn push_address(&mut self, address: u64) {
        match names::named(address) {
            Some(named) => self.push_place(named.name, address.wrapping_sub(named.bias)),
            None => self.push_late(address),
        }
        self.push(b"[0x");
        self.push_hex(address);
        self.push(b"]");
    }

    /// Apart, since the stack of a handler may have no room for a path.
    #[cold]
    #[inline(never)]
    fn push_late(&mut self, address: u64) {
        let mut path = [0; LONGEST_PATH];
        if let Some(bias) = late::bias_and_path(address, &mut path) {
            self.push_place(late::until_zero(&path), address.wrapping_sub(bias));
        }
    }

    fn push_place(&mut self, path: &[u8], offset: u64) {
        self.push(path);
        self.push(b"(+0x");
        self.push_hex(offset);
        self.push(b") ");
    }

    /// Appends every byte as two hexadecimal digits.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            for nibble in [byte >> 4, byte & 15] {
                self.push(&[if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }]);
            }
        }
    }

    /// Appends a decimal number.
    pub fn push_decimal(&mut self, value: u64) {
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

    /// Appends a hexadecimal number without leading zeros.
    pub fn push_hex(&mut self, value: u64) {
        let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            let nibble = (value >> (4 * digit) & 15) as u8;
            self.push(&[if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }]);
        }
    }

    /// Writes the buffered text.
    pub fn flush(&mut self) {
        let mut rest = self.bytes.get(..self.used).unwrap_or_default();
        while !rest.is_empty() && !self.given_up {
            if let Some(until) = self.until
                && !system::wait_to_write(self.fd, until.saturating_sub(system::now()))
            {
                self.given_up = true;
                break;
            }
            match system::write(self.fd, rest) {
                Ok(count @ 1..) => rest = rest.get(count..).unwrap_or_default(),
                Err(libc::EINTR) => {}
                // An error cannot be reported anywhere.
                _ => break,
            }
        }
        self.used = 0;
    }
}
