//! framehop as a C library: `framehop_begin` once, and `framehop_backtrace` as `backtrace(3)`. Each
//! thread has a cache of its own, which stays warm.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::cell::RefCell;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, UnwindRegsNative, Unwinder,
    UnwinderNative,
};
use object::{Object, ObjectSection};

type Policy = MustNotAllocateDuringUnwind;
static UNWINDER: OnceLock<UnwinderNative<Vec<u8>, Policy>> = OnceLock::new();
thread_local! {
    static CACHE: RefCell<CacheNative<Policy>> = RefCell::new(CacheNative::new_in());
}

/// Adds all currently loaded modules to framehop.
#[unsafe(no_mangle)]
pub extern "C" fn framehop_begin() -> c_int {
    let mut unwinder = UnwinderNative::new();
    // SAFETY: the callback gets back the pointer that is given here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut unwinder).cast()) };
    c_int::from(UNWINDER.set(unwinder).is_err())
}

unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, unwinder: *mut c_void) -> c_int {
    // SAFETY: the loader gives a module, and back the pointer that it was given.
    let (info, unwinder) = unsafe { (&*info, &mut *unwinder.cast::<UnwinderNative<Vec<u8>, Policy>>()) };
    // SAFETY: the loader's string and headers.
    let (name, headers) = unsafe {
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        (CStr::from_ptr(info.dlpi_name).to_bytes().to_vec(), headers)
    };
    let path = match name.is_empty() {
        true => OsStr::new("/proc/self/exe"),
        false => OsStr::from_bytes(&name),
    };
    // Without a file it is the kernel's.
    let Ok(bytes) = std::fs::read(path) else { return 0 };
    let Ok(file) = object::File::parse(&*bytes) else {
        return 0;
    };
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        let range = section.address()..section.address() + section.size();
        Some((range, section.data().ok()?.to_vec()))
    };
    let split = |found: Option<(std::ops::Range<u64>, Vec<u8>)>| found.unzip();
    let (text_svma, text) = split(section(".text"));
    let (eh_frame_svma, eh_frame) = split(section(".eh_frame"));
    let (eh_frame_hdr_svma, eh_frame_hdr) = split(section(".eh_frame_hdr"));
    let loads = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let end = loads.map(|load| load.p_vaddr + load.p_memsz).max().unwrap_or(0);
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma,
        text,
        eh_frame_svma,
        eh_frame,
        eh_frame_hdr_svma,
        eh_frame_hdr,
        ..Default::default()
    };
    let range = info.dlpi_addr..info.dlpi_addr + end;
    unwinder.add_module(Module::new(
        String::from_utf8_lossy(&name).into_owned(),
        range,
        info.dlpi_addr,
        sections,
    ));
    0
}

/// `backtrace(3)`.
///
/// # Safety
/// `buffer` has room for `size` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn framehop_backtrace(buffer: *mut *mut c_void, size: c_int) -> c_int {
    let (ip, sp, fp): (u64, u64, u64);
    // SAFETY: only reads registers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) ip, out(reg) sp, out(reg) fp);
    }
    // SAFETY: only reads registers.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("adr {}, .", "mov {}, sp", "mov {}, x29", out(reg) ip, out(reg) sp, out(reg) fp);
    }
    #[cfg(target_arch = "x86_64")]
    let registers = UnwindRegsNative::new(ip, sp, fp);
    // The link register: this function calls others, so that it has saved its return address.
    #[cfg(target_arch = "aarch64")]
    let registers = UnwindRegsNative::new(0, sp, fp);
    let Some(unwinder) = UNWINDER.get() else { return 0 };
    CACHE.with_borrow_mut(|cache| {
        // SAFETY: the stack of this thread, above this frame.
        let mut read = |address: u64| Ok(unsafe { (address as *const u64).read() });
        let mut frames = unwinder.iter_frames(ip, registers, cache, &mut read);
        let mut count = 0;
        // The first is this function.
        let _ = frames.next();
        while count < size
            && let Ok(Some(frame)) = frames.next()
        {
            // SAFETY: within the room that the caller gave.
            unsafe { buffer.add(count as usize).write(frame.address() as *mut c_void) };
            count += 1;
        }
        count
    })
}
