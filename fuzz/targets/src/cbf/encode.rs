//! Any frames into any buffer: the result is a valid backtrace of the first frames, or of both
//! ends.

use super::properties::{encode_ends, encode_prefix};
use backtrail_cbf::{Frame, WordSize};

/// Reads a word size, the sizes of buffer, head and tail, and then nine bytes per frame from
/// `data`; encodes and decodes.
pub fn cbf_encode(data: &[u8]) {
    let [word, buffer, head, tail, rest @ ..] = data else {
        return;
    };
    let word = WordSize::ALL[usize::from(*word) % 3];
    let frames: Vec<Frame> = rest.chunks_exact(9).map(frame).collect();
    encode_prefix(word, usize::from(*buffer), &frames);
    encode_ends(
        word,
        usize::from(*buffer) * 4,
        u64::from(*head),
        usize::from(*tail % 16),
        &frames,
    );
}

fn frame(bytes: &[u8]) -> Frame {
    let mut value = u64::from_be_bytes(bytes[1..].try_into().unwrap());
    // Small values, equal frames and wide values must all be common.
    value >>= u32::from(bytes[0] >> 2);
    [Frame::Pc, Frame::Ra, Frame::Async, Frame::Omit][usize::from(bytes[0] & 3)](value)
}
