//! Names of `linux/perf_event.h`, and of perf's own records in `perf.data`.

/// `PERF_RECORD_*`, of the kernel and of perf.
pub(super) mod record_type {
    pub(crate) const MMAP: u32 = 1;
    pub(crate) const LOST: u32 = 2;
    pub(crate) const COMM: u32 = 3;
    pub(crate) const EXIT: u32 = 4;
    pub(crate) const THROTTLE: u32 = 5;
    pub(crate) const FORK: u32 = 7;
    pub(crate) const SAMPLE: u32 = 9;
    pub(crate) const MMAP2: u32 = 10;
    pub(crate) const LOST_SAMPLES: u32 = 13;
    pub(crate) const SWITCH: u32 = 14;
    pub(crate) const SWITCH_CPU_WIDE: u32 = 15;
    /// Types from here on are perf's own.
    pub(crate) const USER: u32 = 64;
    pub(crate) const HEADER_ATTR: u32 = 64;
    pub(crate) const TRACING_DATA: u32 = 66;
    pub(crate) const HEADER_BUILD_ID: u32 = 67;
    pub(crate) const AUXTRACE: u32 = 71;
    pub(crate) const HEADER_FEATURE: u32 = 80;
    pub(crate) const COMPRESSED: u32 = 81;
    pub(crate) const COMPRESSED2: u32 = 83;
}

/// `PERF_SAMPLE_*`: the contents of a sample, in the order in which the kernel writes them.
pub(super) mod sample_type {
    pub(crate) const IP: u64 = 1 << 0;
    pub(crate) const TID: u64 = 1 << 1;
    pub(crate) const TIME: u64 = 1 << 2;
    pub(crate) const ADDR: u64 = 1 << 3;
    pub(crate) const READ: u64 = 1 << 4;
    pub(crate) const CALLCHAIN: u64 = 1 << 5;
    pub(crate) const ID: u64 = 1 << 6;
    pub(crate) const CPU: u64 = 1 << 7;
    pub(crate) const PERIOD: u64 = 1 << 8;
    pub(crate) const STREAM_ID: u64 = 1 << 9;
    pub(crate) const RAW: u64 = 1 << 10;
    pub(crate) const BRANCH_STACK: u64 = 1 << 11;
    pub(crate) const REGS_USER: u64 = 1 << 12;
    pub(crate) const STACK_USER: u64 = 1 << 13;
    pub(crate) const IDENTIFIER: u64 = 1 << 16;
}

/// `PERF_SAMPLE_REGS_ABI_64`.
pub(super) const REGS_ABI_64: u64 = 2;
