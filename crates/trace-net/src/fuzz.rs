//! Entry points of the fuzz targets: no input may cause a panic.

use crate::protocol::{Index, Input, Stream, receive_command};

/// What a viewer, and what a relay daemon sends.
pub fn messages(data: &[u8]) {
    let _ = receive_command(&mut &data[..]);
    let _ = Stream::read(&mut Input::new(data));
    let _ = Stream::read_all(&mut &data[..], 3);
    let _ = Index::read(&mut Input::new(data));
}
