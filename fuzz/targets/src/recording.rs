//! Names in recordings.

use backtrail_recording::{decode_symbols, encode_symbols};

/// Any bytes as names: what is read can be written again, and is the same then.
pub fn symbols(data: &[u8]) {
    let Ok(symbols) = decode_symbols(data) else { return };
    let encoded = encode_symbols(&symbols).unwrap_or_default();
    assert_eq!(decode_symbols(&encoded), Ok(symbols));
}
