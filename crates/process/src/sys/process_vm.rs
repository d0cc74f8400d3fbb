//! `process_vm_readv(2)`.

use std::io;
use std::ops::Range;

/// Pages per call: the most that one vector of the kernel takes without allocating (`UIO_FASTIOV`).
const PAGES_A_CALL: usize = 8;

/// Reads up to `buffer.len()` bytes at `address` of process `pid`, and returns how many were read:
/// those before the first page that cannot be read.
///
/// # Errors
/// `ESRCH` if the process is gone, `EPERM` if it may not be read, `EFAULT` if not even the first
/// byte can be read.
pub fn read_process(pid: i32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let page = rustix::param::page_size() as u64;
    let mut done = 0;
    while done < buffer.len() {
        // One element per page: a partial transfer ends at an element's border (see the notes in
        // the manual page).
        let mut remote = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; PAGES_A_CALL];
        let mut elements = 0;
        let mut wanted = 0;
        while elements < PAGES_A_CALL && done + wanted < buffer.len() {
            let at = address.wrapping_add((done + wanted) as u64);
            let to_page_end = (page - at % page) as usize;
            let len = to_page_end.min(buffer.len() - done - wanted);
            remote[elements] = libc::iovec {
                iov_base: at as *mut libc::c_void,
                iov_len: len,
            };
            wanted += len;
            elements += 1;
        }
        let local = libc::iovec {
            iov_base: buffer[done..].as_mut_ptr().cast(),
            iov_len: wanted,
        };
        // SAFETY: `local` describes `wanted` bytes inside `buffer`, which is borrowed mutably; the
        // remote elements are addresses of the other process that the kernel checks.
        let read = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), elements as libc::c_ulong, 0) };
        if read <= 0 {
            return if done > 0 {
                Ok(done)
            } else {
                Err(io::Error::last_os_error())
            };
        }
        done += read as usize;
        if (read as usize) < wanted {
            break;
        }
    }
    Ok(done)
}

/// Reads a byte of each page in `range` of process `pid`, so that pages never touched before become
/// present. Ends at the first page that cannot be read.
pub fn touch_pages(pid: i32, range: Range<u64>) {
    let page = rustix::param::page_size() as u64;
    let mut next = range.start - range.start % page;
    let mut bytes = [0_u8; PAGES_A_CALL];
    while next < range.end {
        let mut remote = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 1,
        }; PAGES_A_CALL];
        let mut elements = 0;
        while elements < PAGES_A_CALL && next < range.end {
            remote[elements].iov_base = next as *mut libc::c_void;
            next = next.saturating_add(page);
            elements += 1;
        }
        let local = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: elements,
        };
        // SAFETY: `local` describes the first `elements` bytes of `bytes`, which nobody else uses;
        // the remote elements are addresses of the other process that the kernel checks.
        let read = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), elements as libc::c_ulong, 0) };
        if read < elements as isize {
            return;
        }
    }
}

/// Reads a byte of each of `pages` pages below `address` of process `pid`, downwards, so that pages
/// never touched before become present. Ends at the first ones that cannot be read.
pub fn touch_pages_below(pid: i32, address: u64, pages: usize) {
    let page = rustix::param::page_size() as u64;
    let mut next = address - address % page;
    let mut bytes = [0_u8; PAGES_A_CALL];
    for _ in 0..pages.div_ceil(PAGES_A_CALL) {
        let remote = std::array::from_fn::<_, PAGES_A_CALL, _>(|_| {
            next = next.saturating_sub(page);
            libc::iovec {
                iov_base: next as *mut libc::c_void,
                iov_len: 1,
            }
        });
        let local = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: `local` describes `bytes`, which nobody else uses; the remote elements are
        // addresses of the other process that the kernel checks.
        let read = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), PAGES_A_CALL as libc::c_ulong, 0) };
        if read < PAGES_A_CALL as isize {
            return;
        }
    }
}

/// The address of the list of robust mutexes of thread `tid` (`get_robust_list(2)`). It is in the
/// thread's control block, which C libraries put on top of the stack that they make for a thread.
pub fn robust_list(tid: i32) -> io::Result<u64> {
    let (mut head, mut len) = (0_u64, 0_usize);
    // SAFETY: the kernel writes a pointer and a length to these two, which outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) };
    match done {
        0 => Ok(head),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_memory_and_stops_at_the_end_of_it() {
        let pid = std::process::id() as i32;
        let data: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut copy = vec![0; data.len()];
        assert_eq!(read_process(pid, data.as_ptr() as u64, &mut copy).unwrap(), data.len());
        assert_eq!(copy, data);
        let error = read_process(pid, 8, &mut copy).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
