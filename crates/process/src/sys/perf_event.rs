//! `perf_event_open(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The bytes of `struct perf_event_attr` in use: version 5, of Linux 4.1. Later kernels accept it
/// and take the rest as zero.
const ATTR_SIZE: usize = 112;

/// Offsets in `struct perf_event_attr` (`linux/perf_event.h`).
mod offset {
    pub(super) const TYPE: usize = 0;
    pub(super) const SIZE: usize = 4;
    pub(super) const CONFIG: usize = 8;
    /// The frequency, or with [`flag::FREQ`] unset the period.
    pub(super) const SAMPLE_FREQ: usize = 16;
    pub(super) const SAMPLE_TYPE: usize = 24;
    pub(super) const READ_FORMAT: usize = 32;
    pub(super) const FLAGS: usize = 40;
    pub(super) const WAKEUP_WATERMARK: usize = 48;
    pub(super) const BP_TYPE: usize = 52;
    pub(super) const BP_ADDR: usize = 56;
    pub(super) const BP_LEN: usize = 64;
    pub(super) const SAMPLE_REGS_USER: usize = 80;
    pub(super) const SAMPLE_STACK_USER: usize = 88;
    pub(super) const CLOCK_ID: usize = 92;
}

/// Bits of the flags word of `struct perf_event_attr`.
mod flag {
    pub(super) const DISABLED: u64 = 1 << 0;
    pub(super) const INHERIT: u64 = 1 << 1;
    pub(super) const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub(super) const EXCLUDE_HV: u64 = 1 << 6;
    pub(super) const EXCLUDE_IDLE: u64 = 1 << 7;
    pub(super) const MMAP: u64 = 1 << 8;
    pub(super) const COMM: u64 = 1 << 9;
    pub(super) const FREQ: u64 = 1 << 10;
    pub(super) const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub(super) const TASK: u64 = 1 << 13;
    pub(super) const WATERMARK: u64 = 1 << 14;
    pub(super) const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub(super) const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
    pub(super) const MMAP2: u64 = 1 << 23;
    pub(super) const COMM_EXEC: u64 = 1 << 24;
    pub(super) const USE_CLOCKID: u64 = 1 << 25;
    pub(super) const CONTEXT_SWITCH: u64 = 1 << 26;
    pub(super) const BUILD_ID: u64 = 1 << 34;
}

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_TYPE_BREAKPOINT: u32 = 5;
/// `HW_BREAKPOINT_W` of `linux/hw_breakpoint.h`.
const BREAKPOINT_WRITE: u32 = 2;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
const PERF_COUNT_SW_CONTEXT_SWITCHES: u64 = 3;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_COUNT_SW_BPF_OUTPUT: u64 = 10;
const PERF_FORMAT_LOST: u64 = 1 << 4;
const PERF_FLAG_PID_CGROUP: libc::c_ulong = 1 << 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
const PERF_EVENT_IOC_REFRESH: libc::c_ulong = 0x2402;
const PERF_EVENT_IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
const PERF_EVENT_IOC_ID: libc::c_ulong = 0x8008_2407;

/// The software clock that triggers samples. No hardware counter is used, because most virtual
/// machines have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `cpu-clock`: a high-resolution timer of the CPU.
    Cpu,
    /// `task-clock`: the same timer, counting the task's own time.
    Task,
}

/// What triggers a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A clock, at this rate per second of CPU time.
    Clock {
        /// The clock.
        clock: Clock,
        /// Samples per second.
        frequency: u64,
    },
    /// Every time that a thread leaves the CPU; each switch, out and in, is also reported.
    Switches,
    /// Every pass of a thread over the tracepoint with this number.
    Tracepoint(u64),
    /// An event of another kind.
    Counter {
        /// `PERF_TYPE_*`.
        kind: u32,
        /// Which one, as that kind numbers them.
        config: u64,
        /// How often it happens for one sample.
        count: u64,
    },
    /// Nothing: the event only reports what threads do.
    Nothing,
}

/// The threads that an event counts for.
#[derive(Clone, Copy, Debug)]
pub enum Counted<'a> {
    /// This thread (0: the calling one) and those that it creates later.
    Thread(i32),
    /// All threads.
    All,
    /// The threads in this control group, given by its directory, and in the groups below it.
    Group(BorrowedFd<'a>),
}

/// What to sample and what each sample carries.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// What triggers a sample.
    pub event: Event,
    /// `PERF_SAMPLE_*` bits.
    pub sample_type: u64,
    /// Kernel numbers of the user registers, as a mask.
    pub registers: u64,
    /// Bytes of user stack to copy, a multiple of 8.
    pub stack_bytes: u32,
    /// Bytes in the ring that wake up the reader.
    pub watermark: u32,
    /// Whether time in the kernel is sampled, with the kernel's frames.
    pub kernel: bool,
    /// Whether the event starts disabled and is enabled by the next exec.
    pub enable_on_exec: bool,
    /// Whether mappings are reported with their file's build id (Linux 5.12).
    pub build_ids: bool,
    /// Whether mappings, names, forks and exits are reported; only one of a thread's events does
    /// so.
    pub reports: bool,
}

impl Attributes {
    fn encode(&self) -> [u8; ATTR_SIZE] {
        let mut flags = flag::INHERIT
            | flag::DISABLED
            | flag::EXCLUDE_HV
            | flag::WATERMARK
            | flag::SAMPLE_ID_ALL
            | flag::USE_CLOCKID;
        // Timers mostly wake threads from idle CPUs.
        if !matches!(self.event, Event::Tracepoint(_)) {
            flags |= flag::EXCLUDE_IDLE;
        }
        if !self.kernel {
            // Since Linux 7.2.10 and 6.12.113, who may not sample the kernel may not ask for its
            // frames either.
            flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_CALLCHAIN_KERNEL;
        }
        if self.enable_on_exec {
            flags |= flag::ENABLE_ON_EXEC;
        }
        if self.build_ids {
            flags |= flag::BUILD_ID;
        }
        if self.reports {
            flags |= flag::MMAP | flag::MMAP2 | flag::COMM | flag::COMM_EXEC | flag::TASK;
        }
        let mut attr = [0; ATTR_SIZE];
        put(&mut attr, offset::SIZE, (ATTR_SIZE as u32).to_ne_bytes());
        match self.event {
            Event::Clock { clock, frequency } => {
                flags |= flag::FREQ;
                let clock = match clock {
                    Clock::Cpu => PERF_COUNT_SW_CPU_CLOCK,
                    Clock::Task => PERF_COUNT_SW_TASK_CLOCK,
                };
                put(&mut attr, offset::TYPE, PERF_TYPE_SOFTWARE.to_ne_bytes());
                put(&mut attr, offset::CONFIG, clock.to_ne_bytes());
                put(&mut attr, offset::SAMPLE_FREQ, frequency.to_ne_bytes());
            }
            Event::Switches => {
                flags |= flag::CONTEXT_SWITCH;
                put(&mut attr, offset::TYPE, PERF_TYPE_SOFTWARE.to_ne_bytes());
                put(&mut attr, offset::CONFIG, PERF_COUNT_SW_CONTEXT_SWITCHES.to_ne_bytes());
                put(&mut attr, offset::SAMPLE_FREQ, 1u64.to_ne_bytes());
            }
            Event::Tracepoint(number) => {
                put(&mut attr, offset::TYPE, PERF_TYPE_TRACEPOINT.to_ne_bytes());
                put(&mut attr, offset::CONFIG, number.to_ne_bytes());
                put(&mut attr, offset::SAMPLE_FREQ, 1u64.to_ne_bytes());
            }
            Event::Counter { kind, config, count } => {
                put(&mut attr, offset::TYPE, kind.to_ne_bytes());
                put(&mut attr, offset::CONFIG, config.to_ne_bytes());
                put(&mut attr, offset::SAMPLE_FREQ, count.to_ne_bytes());
            }
            Event::Nothing => {
                put(&mut attr, offset::TYPE, PERF_TYPE_SOFTWARE.to_ne_bytes());
                put(&mut attr, offset::CONFIG, PERF_COUNT_SW_DUMMY.to_ne_bytes());
            }
        }
        put(&mut attr, offset::SAMPLE_TYPE, self.sample_type.to_ne_bytes());
        put(&mut attr, offset::FLAGS, flags.to_ne_bytes());
        put(&mut attr, offset::WAKEUP_WATERMARK, self.watermark.to_ne_bytes());
        put(&mut attr, offset::SAMPLE_REGS_USER, self.registers.to_ne_bytes());
        put(&mut attr, offset::SAMPLE_STACK_USER, self.stack_bytes.to_ne_bytes());
        put(&mut attr, offset::CLOCK_ID, libc::CLOCK_MONOTONIC.to_ne_bytes());
        attr
    }
}

fn put<const N: usize>(attr: &mut [u8; ATTR_SIZE], offset: usize, bytes: [u8; N]) {
    attr[offset..offset + N].copy_from_slice(&bytes);
}

/// Opens an event for these threads, while they run on `cpu`.
pub fn open_event(attributes: &Attributes, counted: Counted<'_>, cpu: i32) -> io::Result<OwnedFd> {
    let (target, flags) = match counted {
        Counted::Thread(tid) => (tid, 0),
        Counted::All => (-1, 0),
        Counted::Group(directory) => (directory.as_raw_fd(), PERF_FLAG_PID_CGROUP),
    };
    open_with(attributes.encode(), target, cpu, flags)
}

/// Counts the writes of thread `tid` to the word at `address`, a multiple of 8, with a debug
/// register of the CPU, once the event is [enabled](enable_for). Each write is reported with its
/// time, the registers of the mask, and up to `stack_bytes` of the stack, if not 0.
pub fn open_watchpoint(tid: i32, address: u64, registers: u64, stack_bytes: u32) -> io::Result<OwnedFd> {
    /// `PERF_SAMPLE_TIME`, `PERF_SAMPLE_REGS_USER` and `PERF_SAMPLE_STACK_USER`.
    const SAMPLE_TYPE: u64 = 1 << 2 | 1 << 12 | 1 << 13;
    let mut attr = [0; ATTR_SIZE];
    let flags = flag::DISABLED | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV | flag::USE_CLOCKID;
    put(&mut attr, offset::TYPE, PERF_TYPE_BREAKPOINT.to_ne_bytes());
    put(&mut attr, offset::SIZE, (ATTR_SIZE as u32).to_ne_bytes());
    put(&mut attr, offset::SAMPLE_FREQ, 1u64.to_ne_bytes());
    put(&mut attr, offset::FLAGS, flags.to_ne_bytes());
    put(&mut attr, offset::BP_TYPE, BREAKPOINT_WRITE.to_ne_bytes());
    put(&mut attr, offset::BP_ADDR, address.to_ne_bytes());
    put(&mut attr, offset::BP_LEN, 8u64.to_ne_bytes());
    put(&mut attr, offset::CLOCK_ID, libc::CLOCK_MONOTONIC.to_ne_bytes());
    if stack_bytes != 0 {
        put(&mut attr, offset::SAMPLE_TYPE, SAMPLE_TYPE.to_ne_bytes());
        put(&mut attr, offset::SAMPLE_REGS_USER, registers.to_ne_bytes());
        put(&mut attr, offset::SAMPLE_STACK_USER, stack_bytes.to_ne_bytes());
    }
    open(attr, tid, -1)
}

/// Opens an event that programs on `cpu` write records to, with these `PERF_SAMPLE_*` bits. Its
/// output must be [redirected](redirect_output).
pub fn open_program_output(cpu: i32, sample_type: u64) -> io::Result<OwnedFd> {
    let mut attr = [0; ATTR_SIZE];
    let flags = flag::WATERMARK | flag::SAMPLE_ID_ALL | flag::USE_CLOCKID;
    put(&mut attr, offset::TYPE, PERF_TYPE_SOFTWARE.to_ne_bytes());
    put(&mut attr, offset::SIZE, (ATTR_SIZE as u32).to_ne_bytes());
    put(&mut attr, offset::CONFIG, PERF_COUNT_SW_BPF_OUTPUT.to_ne_bytes());
    put(&mut attr, offset::SAMPLE_FREQ, 1u64.to_ne_bytes());
    put(&mut attr, offset::SAMPLE_TYPE, sample_type.to_ne_bytes());
    put(&mut attr, offset::FLAGS, flags.to_ne_bytes());
    put(&mut attr, offset::CLOCK_ID, libc::CLOCK_MONOTONIC.to_ne_bytes());
    let mut counting = attr;
    put(&mut counting, offset::READ_FORMAT, PERF_FORMAT_LOST.to_ne_bytes());
    // Since Linux 6.0.
    open(counting, -1, cpu).or_else(|_| open(attr, -1, cpu))
}

/// How many records that programs wrote to an event of [`open_program_output`] found no room in its
/// ring; 0 if the kernel does not count them.
pub fn lost_by_output(output: impl AsFd) -> u64 {
    /// The event's count, and the lost records.
    const READ_BYTES: usize = 16;
    let mut read = [0; READ_BYTES];
    match rustix::io::read(output, &mut read) {
        Ok(READ_BYTES) => u64::from_ne_bytes(read[8..].try_into().unwrap_or_default()),
        _ => 0,
    }
}

/// Runs `program` whenever `event`, or one that inherits from it later, takes a sample.
pub fn set_program(event: impl AsFd, program: impl AsFd) -> io::Result<()> {
    ioctl(event, PERF_EVENT_IOC_SET_BPF, program.as_fd().as_raw_fd().into())
}

/// Enables `event` for `times` more counts: a thread that writes to a watched word all the time
/// must not stop each time.
pub fn enable_for(event: impl AsFd, times: u64) -> io::Result<()> {
    ioctl(event, PERF_EVENT_IOC_REFRESH, times as libc::c_long)
}

fn open(attr: [u8; ATTR_SIZE], tid: i32, cpu: i32) -> io::Result<OwnedFd> {
    open_with(attr, tid, cpu, 0)
}

fn open_with(mut attr: [u8; ATTR_SIZE], target: i32, cpu: i32, flags: libc::c_ulong) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is a `struct perf_event_attr` of the size that its size field gives; the
    // kernel reads it, and writes at most its size field (on E2BIG), for which it is mutable.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr.as_mut_ptr(),
            target,
            cpu,
            -1,
            PERF_FLAG_FD_CLOEXEC | flags,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor to us, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Lets `event` write into the ring of `leader`, which must count on the same CPU.
pub fn redirect_output(event: impl AsFd, leader: impl AsFd) -> io::Result<()> {
    ioctl(event, PERF_EVENT_IOC_SET_OUTPUT, leader.as_fd().as_raw_fd().into())
}

/// Starts or stops `event`, and all events that inherit from it.
pub fn set_enabled(event: impl AsFd, enabled: bool) -> io::Result<()> {
    let request = if enabled {
        PERF_EVENT_IOC_ENABLE
    } else {
        PERF_EVENT_IOC_DISABLE
    };
    ioctl(event, request, 0)
}

/// The number that samples of `event`, and of those that inherit from it, have with
/// `PERF_SAMPLE_ID`.
pub fn event_id(event: impl AsFd) -> io::Result<u64> {
    let mut id: u64 = 0;
    // SAFETY: the request writes one number of this size, for which `id` is borrowed mutably.
    match unsafe { libc::ioctl(event.as_fd().as_raw_fd(), PERF_EVENT_IOC_ID as libc::Ioctl, &raw mut id) } {
        0 => Ok(id),
        _ => Err(io::Error::last_os_error()),
    }
}

fn ioctl(event: impl AsFd, request: libc::c_ulong, argument: libc::c_long) -> io::Result<()> {
    // SAFETY: these requests take a plain number, no pointer.
    // Requests are of the C library's type: `int` in musl.
    match unsafe { libc::ioctl(event.as_fd().as_raw_fd(), request as libc::Ioctl, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn whoever_leaves_out_the_kernel_leaves_out_its_frames() {
        let flags = |kernel: bool| {
            let attributes = Attributes {
                event: Event::Nothing,
                sample_type: 0,
                registers: 0,
                stack_bytes: 0,
                watermark: 0,
                kernel,
                enable_on_exec: false,
                build_ids: false,
                reports: false,
            };
            let attr = attributes.encode();
            let word = attr[offset::FLAGS..].first_chunk().expect("the flags are a word");
            // `exclude_kernel` and `exclude_callchain_kernel`.
            u64::from_ne_bytes(*word) & (1 << 5 | 1 << 21)
        };
        assert_eq!((flags(false), flags(true)), (1 << 5 | 1 << 21, 0));
    }

    #[test]
    fn a_watchpoint_is_met_once() {
        let word = AtomicU64::new(0);
        // Some machines have no debug registers available, and some containers no events.
        let event = open_watchpoint(0, word.as_ptr().addr() as u64, 0, 0);
        let Ok(event) = event.and_then(|event| enable_for(&event, 1).map(|()| event)) else {
            println!("SKIPPED: no hardware watchpoint is to be had here");
            return;
        };
        let mut event = File::from(event);
        let mut count = || {
            let mut count = [0; 8];
            event.read_exact(&mut count).expect("it is an event");
            u64::from_ne_bytes(count)
        };
        assert_eq!((count(), word.load(Ordering::Relaxed)), (0, 0));
        for _ in 0..1000 {
            word.fetch_add(1, Ordering::Relaxed);
        }
        assert!(
            (1..1000).contains(&count()),
            "the first write is seen, most of the others are not"
        );
    }
}
