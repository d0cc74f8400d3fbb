//! The few system calls that walking needs, made without the C library: no `errno` to save, no
//! cancellation, no lazy binding, and no interposed functions.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const MMAP: usize = 9;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const MADVISE: usize = 28;
    pub(super) const GETPID: usize = 39;
    pub(super) const SIGALTSTACK: usize = 131;
    pub(super) const GETTID: usize = 186;
    pub(super) const FUTEX: usize = 202;
    pub(super) const TGKILL: usize = 234;
    pub(super) const PROCESS_VM_READV: usize = 310;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const MMAP: usize = 222;
    pub(super) const RT_SIGPROCMASK: usize = 135;
    pub(super) const MADVISE: usize = 233;
    pub(super) const GETPID: usize = 172;
    pub(super) const FUTEX: usize = 98;
    pub(super) const SIGALTSTACK: usize = 132;
    pub(super) const GETTID: usize = 178;
    pub(super) const TGKILL: usize = 131;
    pub(super) const PROCESS_VM_READV: usize = 270;
}

const EPERM: isize = -1;
const ESRCH: isize = -3;
const EFAULT: isize = -14;
const ENOSYS: isize = -38;

/// Makes a system call by its number on this CPU. Returns its result, or a negative error number.
///
/// # Safety
/// As its manual says: any memory that it writes must be ours to write.
#[inline]
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's calling convention; it changes rax, rcx and r11, and memory as the
    // caller promises.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
             in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's calling convention; it changes x0, and memory as the caller promises.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e,
             in("x5") f, options(nostack));
    }
    result
}

pub(super) fn gettid() -> i32 {
    // SAFETY: touches no memory.
    unsafe { call(number::GETTID, [0; 6]) as i32 }
}

pub(super) fn getpid() -> i32 {
    // SAFETY: touches no memory.
    unsafe { call(number::GETPID, [0; 6]) as i32 }
}

/// Whether a thread of this process has ended.
pub(super) fn has_ended(pid: i32, tid: i32) -> bool {
    // SAFETY: signal 0 is not sent; the kernel only checks whether it could be.
    unsafe { call(number::TGKILL, [pid as usize, tid as usize, 0, 0, 0, 0]) == ESRCH }
}

const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;

/// Sleeps while the word has this value; may wake spuriously.
pub(super) fn wait_while(word: &AtomicU32, value: u32) {
    let place = word.as_ptr() as usize;
    // SAFETY: the kernel reads the word, and waits for as long as it takes.
    unsafe { call(number::FUTEX, [place, FUTEX_WAIT_PRIVATE, value as usize, 0, 0, 0]) };
}

/// Wakes a thread that sleeps on the word.
pub(super) fn wake(word: &AtomicU32) {
    let place = word.as_ptr() as usize;
    // SAFETY: the address is only compared.
    unsafe { call(number::FUTEX, [place, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0]) };
}

/// Maps zeroed memory that is zeroed again in a forked child. Null if there is none.
pub(super) fn map(bytes: usize) -> *mut u8 {
    const PROT_READ_WRITE: usize = 3;
    const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
    const MADV_WIPEONFORK: usize = 18;
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
    let address = unsafe {
        call(
            number::MMAP,
            [0, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, usize::MAX, 0],
        )
    };
    if (-4095..0).contains(&address) {
        return core::ptr::null_mut();
    }
    // SAFETY: the range is the mapping just made.
    let wiped = unsafe { call(number::MADVISE, [address as usize, bytes, MADV_WIPEONFORK, 0, 0, 0]) };
    match wiped {
        0 => address as *mut u8,
        // Linux before 4.14, which hardly anyone runs: slow is better than wrong after a fork. The
        // pages are never touched.
        _ => core::ptr::null_mut(),
    }
}

/// Bounds of the alternate signal stack, if the thread is running on it.
pub(super) fn signal_stack() -> Option<(u64, u64)> {
    const SS_ONSTACK: u64 = 1;
    // `stack_t`: address, flags (32 bits and padding), size.
    let mut stack = [0u64; 3];
    // SAFETY: the kernel writes one `stack_t` of 24 bytes.
    let result = unsafe { call(number::SIGALTSTACK, [0, stack.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    let [start, flags, size] = stack;
    (result == 0 && flags & SS_ONSTACK != 0).then(|| (start, start.saturating_add(size)))
}

/// Copies words from any address of this process. Returns the number of bytes copied, up to the
/// first unreadable one; never faults.
pub(super) fn copy_words(address: u64, words: &mut [u64]) -> Result<usize, Refused> {
    let page_end = (address | 4095).wrapping_add(1);
    let bytes = words.len() * 8;
    let first = (page_end.wrapping_sub(address) as usize).min(bytes);
    // A transfer stops between two elements: one element per page copies the first page even if the
    // second is unmapped.
    let remote = [address as usize, first, page_end as usize, bytes - first];
    let local = [words.as_mut_ptr() as usize, bytes];
    let elements = if bytes > first { 2 } else { 1 };
    // SAFETY: the local element is `words`, which is ours to write.
    unsafe { copy(&[local], remote.as_chunks().0.get(..elements).unwrap_or_default()) }
}

/// Copies words from several places, each an address and a count of up to 8, to the beginnings of
/// as many arrays. Returns whether all were readable.
pub(super) fn copy_places<const COUNT: usize>(
    places: &[(u64, usize); COUNT],
    words: &mut [[u64; 8]; COUNT],
) -> Result<bool, Refused> {
    let mut remote = [[0; 2]; COUNT];
    let mut local = [[0; 2]; COUNT];
    let mut wanted = 0;
    for ((&(address, count), words), (remote, local)) in places.iter().zip(words).zip(remote.iter_mut().zip(&mut local))
    {
        let bytes = count.min(words.len()) * 8;
        *remote = [address as usize, bytes];
        *local = [words.as_mut_ptr() as usize, bytes];
        wanted += bytes;
    }
    if wanted == 0 {
        return Ok(true);
    }
    // SAFETY: the local elements are the beginnings of the arrays, which are ours to write.
    Ok(unsafe { copy(&local, &remote) }? == wanted)
}

/// Copies between elements, each an address and a number of bytes.
///
/// # Safety
/// Local elements are the caller's to write.
unsafe fn copy(local: &[[usize; 2]], remote: &[[usize; 2]]) -> Result<usize, Refused> {
    let pid = getpid() as usize;
    // SAFETY: local elements are as our caller promises; the kernel checks remote addresses.
    let read = unsafe {
        call(
            number::PROCESS_VM_READV,
            [
                pid,
                local.as_ptr() as usize,
                local.len(),
                remote.as_ptr() as usize,
                remote.len(),
                0,
            ],
        )
    };
    match read {
        EPERM | ENOSYS => Err(Refused),
        1.. => Ok(read as usize),
        _ => Ok(0),
    }
}

/// A sandbox or an emulator does not support the call.
pub(super) struct Refused;

/// Whether the word at an address is readable now.
pub(super) fn is_readable(address: u64) -> bool {
    match copy_words(address, &mut [0]) {
        Ok(bytes) => bytes == 8,
        // The kernel reads the new mask from there before it checks the first argument, which is
        // invalid. SAFETY: with an invalid first argument nothing is changed.
        Err(Refused) => unsafe { call(number::RT_SIGPROCMASK, [usize::MAX, address as usize, 0, 8, 0, 0]) != EFAULT },
    }
}
