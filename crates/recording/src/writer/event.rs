//! What the events of all streams share.

use backtrail_trace::EventWriter;

/// Bytes of a stream's packet after which it is written, however young it is.
pub(super) const PACKET_BYTES: usize = (32 << 10) - 512;

/// Writes the context that every event has, but for a sample's `ip`.
pub(super) fn put_context(event: &mut EventWriter<'_>, pid: u32, tid: u32) {
    // A process outside the recorder's namespace has the number -1.
    event.i32(pid as i32);
    event.i32(tid as i32);
}

/// Texts in a trace end with a zero byte.
pub(super) fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}
