//! Where the packets of a stream go: to a file, or to memory until they are asked for.

use std::collections::VecDeque;
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use backtrail_trace::{PacketFile, StreamWriter};

use super::error::WriteError;

/// A stream.
#[derive(Debug)]
pub(super) enum Packets {
    /// Packets are appended to a file.
    File(Box<PacketFile>),
    /// Packets stay in memory.
    Memory(Box<MemoryStream>),
}

/// A stream whose packets stay in memory until they are forgotten.
#[derive(Debug)]
pub(super) struct MemoryStream {
    /// The name of its file, once it is written.
    pub(super) name: String,
    writer: StreamWriter,
    /// The number of the segment in which each was written, and its bytes; oldest first.
    packets: VecDeque<(u64, Box<[u8]>)>,
    bytes: u64,
    /// Bytes of all packets, including those that were forgotten.
    written: u64,
    /// The segment that is being written.
    segment: u64,
}

impl MemoryStream {
    pub(super) fn new(name: String, writer: StreamWriter) -> MemoryStream {
        MemoryStream {
            name,
            writer,
            packets: VecDeque::new(),
            bytes: 0,
            written: 0,
            segment: 0,
        }
    }

    /// Appends all packets to a file that must not exist.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        if self.packets.is_empty() {
            return Ok(());
        }
        let mut file = File::create_new(directory.join(&self.name))?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        self.packets.iter().try_for_each(|(_, packet)| file.write_all(packet))
    }
}

impl Packets {
    /// The packet that is being written.
    pub(super) fn writer(&mut self) -> &mut StreamWriter {
        match self {
            Packets::File(file) => file.writer(),
            Packets::Memory(memory) => &mut memory.writer,
        }
    }

    /// Finishes the packet, not before `time`.
    pub(super) fn flush(&mut self, time: u64) -> Result<(), WriteError> {
        match self {
            Packets::File(file) => Ok(file.flush(time)?),
            Packets::Memory(memory) => {
                let packet: Box<[u8]> = memory.writer.finish(time)?.into();
                memory.bytes += packet.len() as u64;
                memory.written += packet.len() as u64;
                memory.packets.push_back((memory.segment, packet));
                Ok(())
            }
        }
    }

    /// Bytes of all packets so far.
    pub(super) fn bytes_written(&self) -> u64 {
        match self {
            Packets::File(file) => file.bytes_written(),
            Packets::Memory(memory) => memory.written,
        }
    }

    /// Bytes that are there now: packets in memory may have been forgotten.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Packets::File(file) => file.bytes_written(),
            Packets::Memory(memory) => memory.bytes,
        }
    }

    /// Packets belong to this segment from now on.
    pub(super) fn begin_segment(&mut self, number: u64) {
        if let Packets::Memory(memory) = self {
            memory.segment = number;
        }
    }

    /// Forgets the packets of the segments before this one.
    pub(super) fn forget_before(&mut self, segment: u64) {
        if let Packets::Memory(memory) = self {
            while let Some((_, packet)) = memory.packets.pop_front_if(|packet| packet.0 < segment) {
                memory.bytes -= packet.len() as u64;
            }
        }
    }
}
