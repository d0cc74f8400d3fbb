//! Names of functions, for libraries that stand in for other unwinders. Nothing is allocated and no
//! lock is taken, so signal handlers may ask too; each look-up maps the module's file.

use std::ffi::c_int;

use backtrail_elf::nearest_symbol;

use crate::handler::late::{self, LONGEST_PATH};
use crate::handler::names;

/// Calls `visit` with the name of the function at an address, and the address at which it begins.
/// `None` if the module's file has no such symbol.
pub fn at<R>(address: u64, visit: impl FnOnce(&[u8], u64) -> R) -> Option<R> {
    let mut path = [0u8; LONGEST_PATH];
    let bias = match names::named(address) {
        Some(named) => {
            path.get_mut(..named.name.len())?.copy_from_slice(named.name);
            named.bias
        }
        None => late::bias_and_path(address, &mut path)?,
    };
    if path.last() != Some(&0) {
        return None;
    }
    let program = b"/proc/self/exe\0";
    if path.first() == Some(&0) {
        path.get_mut(..program.len())?.copy_from_slice(program);
    }
    let file = Mapped::open(&path)?;
    let symbol = nearest_symbol(file.bytes(), address.wrapping_sub(bias))?;
    Some(visit(symbol.name, symbol.value.wrapping_add(bias)))
}

/// A file, mapped as long as this lives.
struct Mapped {
    start: *mut libc::c_void,
    size: usize,
}

impl Mapped {
    /// `path` ends with a 0.
    fn open(path: &[u8; LONGEST_PATH]) -> Option<Mapped> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the path is a C string; a handler must leave errno as it was.
        unsafe {
            let errno = *libc::__errno_location();
            let fd = libc::open(path.as_ptr().cast(), flags);
            let mapped = (fd >= 0).then(|| Mapped::of(fd)).flatten();
            if fd >= 0 {
                libc::close(fd);
            }
            *libc::__errno_location() = errno;
            mapped
        }
    }

    fn of(fd: c_int) -> Option<Mapped> {
        let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel writes all of it if it returns 0.
        let status = unsafe { (libc::fstat(fd, status.as_mut_ptr()) == 0).then(|| status.assume_init()) }?;
        let size = usize::try_from(status.st_size).ok().filter(|size| *size > 0)?;
        if status.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
        (start != libc::MAP_FAILED).then_some(Mapped { start, size })
    }

    /// The file of a loaded module, which its owner must not shorten while it runs either.
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.size) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it.
        unsafe { libc::munmap(self.start, self.size) };
    }
}
