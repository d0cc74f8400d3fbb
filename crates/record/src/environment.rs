//! The trace's description of the machine and the time.

use std::fs;
use std::io;

use backtrail_recording::Environment;
use rustix::system::uname;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Reads the environment.
pub(crate) fn read() -> io::Result<Environment> {
    let uname = uname();
    let text = |field: &std::ffi::CStr| field.to_string_lossy().into_owned();
    let mut trace_uuid = [0; 16];
    // Not from /dev, which folders that programs are confined to (chroot) often lack.
    getrandom::fill(&mut trace_uuid).map_err(io::Error::other)?;
    // RFC 9562, section 5.4: a random UUID is of version 4.
    trace_uuid[6] = trace_uuid[6] & 0x0f | 0x40;
    trace_uuid[8] = trace_uuid[8] & 0x3f | 0x80;
    Ok(Environment {
        trace_uuid,
        // The monotonic clock restarts with every boot, so this also identifies the clock.
        boot_uuid: fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .as_deref()
            .and_then(parse_uuid),
        hostname: text(uname.nodename()),
        kernel: text(uname.release()),
        machine: text(uname.machine()),
        clock_offset_ns: clock_offset(),
    })
}

/// Nanoseconds from the Unix epoch to the zero of the monotonic clock.
fn clock_offset() -> u64 {
    // The two clocks cannot be read at the same time: use the reading with the shortest interval.
    let readings = (0..8).map(|_| {
        let before = nanoseconds(clock_gettime(ClockId::Monotonic));
        let real = nanoseconds(clock_gettime(ClockId::Realtime));
        let after = nanoseconds(clock_gettime(ClockId::Monotonic));
        (after - before, real.saturating_sub(before + (after - before) / 2))
    });
    readings.min().map_or(0, |(_, offset)| offset)
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}
