//! `unw_proc_info_t`.

use std::ffi::{c_char, c_int, c_void};

use backtrail_local::walks::Function;

/// What libunwind reports about a function.
#[repr(C)]
pub struct ProcInfo {
    start_ip: u64,
    end_ip: u64,
    lsda: u64,
    handler: u64,
    gp: u64,
    flags: u64,
    format: c_int,
    unwind_info_size: c_int,
    unwind_info: *mut c_void,
    extra: c_char,
}

impl ProcInfo {
    pub(crate) fn of(function: &Function) -> ProcInfo {
        /// `UNW_INFO_FORMAT_TABLE`: call frame information.
        const TABLE: c_int = 1;
        ProcInfo {
            start_ip: function.start,
            end_ip: function.end,
            lsda: function.lsda,
            handler: function.personality,
            gp: 0,
            flags: 0,
            format: TABLE,
            unwind_info_size: 0,
            unwind_info: std::ptr::null_mut(),
            extra: 0,
        }
    }
}
