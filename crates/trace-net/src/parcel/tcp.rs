//! Parcels over a connection: a greeting, then each with its length. The receiver returns the
//! greeting when it has taken all.

use crate::protocol::{MOST_BYTES, receive};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

/// The first bytes of a connection.
const GREETING: [u8; 8] = *b"BTTRACE1";

/// The sender's end.
#[derive(Debug)]
pub(super) struct Connection(TcpStream);

impl Connection {
    pub(super) fn open(address: &str, session: u64) -> io::Result<Connection> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.write_all(&[GREETING, session.to_le_bytes()].concat())?;
        Ok(Connection(stream))
    }

    pub(super) fn send(&mut self, sealed: &[u8]) -> io::Result<()> {
        let length = u32::try_from(sealed.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        self.0.write_all(&length.to_le_bytes()).map_err(closed)?;
        self.0.write_all(sealed).map_err(closed)
    }

    /// Waits until the receiver has taken all, which it confirms.
    pub(super) fn finish(self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        self.0
            .take(GREETING.len() as u64)
            .read_to_end(&mut answer)
            .map_err(closed)?;
        match answer == GREETING {
            true => Ok(()),
            false => Err(io::Error::new(ErrorKind::InvalidData, "the receiver did not take all")),
        }
    }
}

/// What a connection's end means to a sender.
fn closed(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ (ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            io::Error::new(kind, "the receiver closed the connection before it took all")
        }
        _ => error,
    }
}

/// Confirms that all of a connection was taken.
pub(super) fn confirm(mut output: impl Write) -> io::Result<()> {
    output.write_all(&GREETING)
}

/// Receives the greeting; returns the session's number.
pub(super) fn greet(input: &mut impl Read) -> io::Result<u64> {
    let greeting = receive(input, 16)?;
    match greeting.split_first_chunk::<8>() {
        Some((&GREETING, session)) => Ok(session.try_into().map_or(0, u64::from_le_bytes)),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "not a sender of traces")),
    }
}

/// Receives a parcel; `None` at the end.
pub(super) fn next(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = Vec::new();
    input.take(4).read_to_end(&mut length)?;
    let length = match <[u8; 4]>::try_from(length.as_slice()) {
        Ok(length) => u64::from(u32::from_le_bytes(length)),
        Err(_) if length.is_empty() => return Ok(None),
        Err(_) => return Err(ErrorKind::UnexpectedEof.into()),
    };
    match length <= MOST_BYTES {
        true => receive(input, length as usize).map(Some),
        false => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("parcel of {length} bytes"),
        )),
    }
}
