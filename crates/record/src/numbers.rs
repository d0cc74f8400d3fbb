//! Numbers of processes and threads that are not running.

/// Added to the numbers of processes and threads of another time: no running one has such a number
/// (`PID_MAX_LIMIT` is 2²²), so nothing is ever looked for in the wrong process.
const NOT_RUNNING: u32 = 1 << 30;

/// The number under which a process or a thread of another time is known while its stacks are
/// walked.
pub(crate) fn not_running(number: u32) -> u32 {
    match number >> 30 {
        0 => number | NOT_RUNNING,
        _ => number,
    }
}

/// The number to be recorded for it.
pub(crate) fn recorded(number: u32) -> u32 {
    match number >> 30 {
        1 => number & !NOT_RUNNING,
        _ => number,
    }
}
