//! What a sender passes on to a receiver: metadata and packets, over TCP or UDP.

mod collect;
mod message;
mod seal;
mod send;
mod store;
mod tcp;
mod udp;

pub use collect::{Collector, CollectorOptions, Gap, Report};
pub(crate) use message::Parcel;
pub use seal::Secret;
pub use send::{Sender, Sent};
pub(crate) use udp::Datagram;

use std::io;

/// How parcels travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// One connection, in order.
    Tcp,
    /// Datagrams, which may be lost, repeated and reordered.
    Udp,
}

/// The transport and the address in `tcp://HOST:PORT` or `udp://HOST:PORT`; `None` if it is
/// neither.
pub fn parse_address(text: &str) -> Option<(Transport, &str)> {
    let (transport, address) = match text.split_once("://")? {
        ("tcp", address) => (Transport::Tcp, address),
        ("udp", address) => (Transport::Udp, address),
        _ => return None,
    };
    let (host, port) = address.rsplit_once(':')?;
    let sound = !host.is_empty() && port.parse::<u16>().is_ok();
    sound.then_some((transport, address))
}

/// A number that no other session has.
fn session_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(u64::from_le_bytes(bytes))
}
