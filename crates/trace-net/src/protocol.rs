//! The messages of the protocol between a relay daemon and its viewers, version 2. All numbers are
//! big-endian and packed.

use backtrail_wire::{Bytes, Endian};
use std::io::{self, ErrorKind, Read, Write};

pub(crate) const PORT: u16 = 5344;
pub(crate) const MAJOR: u32 = 2;
/// Since 2.15, messages differ.
pub(crate) const MINOR: u32 = 4;

pub(crate) const CONNECT: u32 = 1;
pub(crate) const LIST_SESSIONS: u32 = 2;
pub(crate) const ATTACH_SESSION: u32 = 3;
pub(crate) const GET_NEXT_INDEX: u32 = 4;
pub(crate) const GET_PACKET: u32 = 5;
pub(crate) const GET_METADATA: u32 = 6;
pub(crate) const GET_NEW_STREAMS: u32 = 7;
pub(crate) const CREATE_SESSION: u32 = 8;
pub(crate) const DETACH_SESSION: u32 = 9;

/// The connection carries commands.
pub(crate) const CLIENT_COMMAND: u32 = 1;
pub(crate) const SEEK_BEGINNING: u32 = 1;

/// What most commands reply if they succeed.
pub(crate) const OK: u32 = 1;
pub(crate) const ATTACH_ALREADY: u32 = 2;
pub(crate) const ATTACH_UNKNOWN: u32 = 3;
pub(crate) const INDEX_RETRY: u32 = 2;
pub(crate) const INDEX_HUP: u32 = 3;
pub(crate) const INDEX_ERROR: u32 = 4;
pub(crate) const INDEX_INACTIVE: u32 = 5;
pub(crate) const PACKET_ERROR: u32 = 3;
pub(crate) const NO_NEW_METADATA: u32 = 2;
pub(crate) const METADATA_ERROR: u32 = 3;
pub(crate) const NO_NEW_STREAMS: u32 = 2;
pub(crate) const STREAMS_ERROR: u32 = 3;
pub(crate) const STREAMS_HUP: u32 = 4;

/// More metadata is needed before the packet is read.
pub(crate) const NEW_METADATA: u32 = 1;
/// The session has more streams.
pub(crate) const NEW_STREAM: u32 = 2;

pub(crate) const HOST_NAME: usize = 64;
pub(crate) const NAME: usize = 255;
pub(crate) const PATH_NAME: usize = 4096;

/// The most bytes of a packet or a piece of metadata.
pub(crate) const MOST_BYTES: u64 = 256 << 20;

/// A stream of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) id: u64,
    /// The trace that it belongs to.
    pub(crate) trace: u64,
    pub(crate) is_metadata: bool,
    pub(crate) path: String,
    pub(crate) channel: String,
}

impl Stream {
    const SIZE: usize = 20 + PATH_NAME + NAME;

    pub(crate) fn write(&self, out: &mut Message) {
        out.u64(self.id).u64(self.trace).u32(u32::from(self.is_metadata));
        out.text(&self.path, PATH_NAME).text(&self.channel, NAME);
    }

    pub(crate) fn read(input: &mut Input<'_>) -> io::Result<Stream> {
        let (id, trace, metadata) = (input.u64()?, input.u64()?, input.u32()?);
        Ok(Stream {
            id,
            trace,
            is_metadata: metadata != 0,
            path: input.text(PATH_NAME)?,
            channel: input.text(NAME)?,
        })
    }

    /// The streams that follow their number.
    pub(crate) fn read_all(input: &mut impl Read, count: u32) -> io::Result<Vec<Stream>> {
        /// More than any tracer has.
        const MOST: u32 = 1 << 16;
        if count > MOST {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("{count} streams")));
        }
        (0..count)
            .map(|_| Stream::read(&mut Input::new(&receive(input, Stream::SIZE)?)))
            .collect()
    }
}

/// Where a packet is, and what to know before it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) offset: u64,
    pub(crate) packet_bits: u64,
    pub(crate) content_bits: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) discarded: u64,
    /// The stream's class.
    pub(crate) class: u64,
    pub(crate) status: u32,
    pub(crate) flags: u32,
}

impl Index {
    pub(crate) const SIZE: usize = 64;

    pub(crate) fn write(&self, out: &mut Message) {
        let numbers = [
            self.offset,
            self.packet_bits,
            self.content_bits,
            self.begin,
            self.end,
            self.discarded,
        ];
        numbers.iter().for_each(|&number| _ = out.u64(number));
        out.u64(self.class).u32(self.status).u32(self.flags);
    }

    pub(crate) fn read(input: &mut Input<'_>) -> io::Result<Index> {
        Ok(Index {
            offset: input.u64()?,
            packet_bits: input.u64()?,
            content_bits: input.u64()?,
            begin: input.u64()?,
            end: input.u64()?,
            discarded: input.u64()?,
            class: input.u64()?,
            status: input.u32()?,
            flags: input.u32()?,
        })
    }
}

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// A command with what follows it.
    pub(crate) fn send_command(self, command: u32, out: &mut impl Write) -> io::Result<()> {
        let mut message = Message::default();
        message.u64(self.0.len() as u64).u32(command).u32(0);
        message.0.extend(self.0);
        message.send(out)
    }

    pub(crate) fn send(self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.0)
    }

    pub(crate) fn u32(&mut self, number: u32) -> &mut Message {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn u64(&mut self, number: u64) -> &mut Message {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// A text in a field of `size` bytes, with a zero behind it.
    pub(crate) fn text(&mut self, text: &str, size: usize) -> &mut Message {
        let mut end = text.len().min(size - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.extend(&text.as_bytes()[..end]);
        self.0.resize(self.0.len() + size - end, 0);
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Message {
        self.0.extend(bytes);
        self
    }
}

/// A message that was received.
pub(crate) struct Input<'b> {
    bytes: Bytes<'b>,
    place: usize,
}

impl<'b> Input<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Input<'b> {
        Input {
            bytes: Bytes::new(bytes, Endian::Big),
            place: 0,
        }
    }

    pub(crate) fn u32(&mut self) -> io::Result<u32> {
        let number = self.bytes.u32(self.place).map_err(|_| short())?;
        self.place += 4;
        Ok(number)
    }

    pub(crate) fn u64(&mut self) -> io::Result<u64> {
        let number = self.bytes.u64(self.place).map_err(|_| short())?;
        self.place += 8;
        Ok(number)
    }

    pub(crate) fn text(&mut self, size: usize) -> io::Result<String> {
        let field = self.bytes.slice(self.place, size).map_err(|_| short())?;
        self.place += size;
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(size);
        Ok(String::from_utf8_lossy(&field[..end]).into_owned())
    }
}

fn short() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "message is too short")
}

/// Receives this many bytes, which the caller has bounded.
pub(crate) fn receive(input: &mut impl Read, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(size as u64).read_to_end(&mut bytes)?;
    match bytes.len() == size {
        true => Ok(bytes),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Receives a command: its number and what follows.
pub(crate) fn receive_command(input: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    /// No command is longer.
    const MOST: u64 = 4096;
    let header = receive(input, 16)?;
    let mut header = Input::new(&header);
    let (size, command) = (header.u64()?, header.u32()?);
    if size > MOST {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("command of {size} bytes"),
        ));
    }
    Ok((command, receive(input, size as usize)?))
}
