//! For fuzz targets.

use crate::parcel::{Datagram, Parcel};
use crate::protocol::{Index, Input, Stream, receive_command};

/// Reads the bytes as each kind of message.
pub fn read_messages(bytes: &[u8]) {
    let _ = receive_command(&mut &bytes[..]);
    let _ = Stream::read(&mut Input::new(bytes));
    let _ = Stream::read_all(&mut &bytes[..], 3);
    let _ = Index::read(&mut Input::new(bytes));
    let _ = Datagram::decode(bytes);
    let _ = Parcel::decode(bytes);
}
