//! The common parts of the events of all streams.

use backtrail_trace::EventWriter;

/// The size at which a stream's packet is written, even if it is recent.
pub(super) const PACKET_BYTES: usize = (32 << 10) - 512;

/// Writes the context of every event, except a sample's `ip`.
pub(super) fn put_context(event: &mut EventWriter<'_>, pid: u32, tid: u32) {
    // A process outside the recorder's namespace has the number -1.
    event.i32(pid as i32);
    event.i32(tid as i32);
}

/// Cuts a text at its first zero byte, which ends texts in a trace.
pub(super) fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}
