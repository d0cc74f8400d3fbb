//! What the measurements of events share: the clock of processor time, and LTTng-UST's figures.

use backtrail_testkit::peers::Lttng;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that the calling thread has used.
pub(crate) fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds of an empty event and of a stack with LTTng-UST as a flight recorder, per round.
pub(crate) fn lttng_rounds(lttng: &Lttng, count: u64) -> Vec<(f64, f64)> {
    lttng.lttng(&["create", "cost", "--snapshot"]);
    lttng.channel(&["--overwrite", "--subbuf-size=1M", "--num-subbuf=4"], &[]);
    lttng.lttng(&["start"]);
    let text = lttng.events(&[&count.to_string(), "time"]);
    lttng.lttng(&["stop"]);
    lttng.lttng(&["destroy"]);
    let rounds = text.lines().filter_map(|line| {
        let (empty, stack) = line.split_once(' ')?;
        Some((empty.parse().ok()?, stack.parse().ok()?))
    });
    rounds.collect()
}
