//! Messages of LTTng's live protocol.

/// What a viewer, and what a relay daemon sends.
pub fn messages(data: &[u8]) {
    backtrail_trace_net::internals::read_messages(data);
}
