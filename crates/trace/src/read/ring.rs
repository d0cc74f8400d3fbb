//! Reads packets from the memory of a ring, whoever wrote it and however the writer ended.

use super::options::Options;
use super::state::State;
use super::stream::StreamReader;
use super::trace::Trace;
use crate::error::{TraceError, TraceErrorKind};
use crate::plan::Plan;
use crate::regular;
use crate::ring::PACKET_ALIGN;
use std::fs;
use std::path::PathBuf;

impl Trace {
    /// Reads the rings of a writer that was killed or is still writing: each file `.NAME.ring` in
    /// the directory, the mapped memory of a [`crate::Ring`], is a stream `NAME`, unless that file
    /// exists. Takes as much memory as the rings.
    ///
    /// # Errors
    ///
    /// The directory or a ring cannot be read.
    pub fn rings(&self, options: Options) -> Result<Vec<StreamReader>, TraceError> {
        let mut readers = Vec::new();
        for (ring, stream) in self.ring_files()? {
            let memory = regular::read(&ring).map_err(|error| TraceError::new(&ring, TraceErrorKind::Io(error)))?;
            let packets = packets_of_ring(self.plan(), &memory).concat();
            readers.push(StreamReader::in_memory(self.plan().clone(), &stream, packets, options));
        }
        Ok(readers)
    }

    /// The rings in the directory, and the paths of the missing streams that they stand for.
    pub(crate) fn ring_files(&self) -> Result<Vec<(PathBuf, PathBuf)>, TraceError> {
        let io = |error| TraceError::new(self.directory(), TraceErrorKind::Io(error));
        let mut rings = Vec::new();
        for entry in fs::read_dir(self.directory()).map_err(io)? {
            let ring = entry.map_err(io)?.path();
            let name = ring.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".ring"));
            let stream = name
                .filter(|name| !name.is_empty())
                .map(|name| self.directory().join(name));
            if let Some(stream) = stream.filter(|stream| !stream.exists()) {
                rings.push((ring, stream));
            }
        }
        rings.sort();
        Ok(rings)
    }
}

/// The packets of a [`crate::Ring`] in this memory, from the oldest to the newest, without one that
/// its writer had only just started.
pub fn packets_of_ring<'m>(plan: &Plan, memory: &'m [u8]) -> Vec<&'m [u8]> {
    let mut found: Vec<(u64, &[u8])> = Vec::new();
    let mut rest = memory;
    while !rest.is_empty() {
        // All have the same size, so a damaged one is skipped as a whole, once an intact one was
        // found.
        let step = found.first().map_or(PACKET_ALIGN, |(_, packet)| packet.len());
        let packet = sound_packet(plan, rest);
        rest = rest
            .get(packet.map_or(step, |(_, packet)| packet.len())..)
            .unwrap_or_default();
        found.extend(packet);
    }
    found.sort_by_key(|&(number, _)| number);
    found.into_iter().map(|(_, packet)| packet).collect()
}

/// The packet at the start, and its number.
fn sound_packet<'m>(plan: &Plan, memory: &'m [u8]) -> Option<(u64, &'m [u8])> {
    let beginning = memory.get(..PACKET_ALIGN)?;
    let mut state = State::of(plan, beginning);
    let packet = state.decode_packet(plan, 0, memory.len() as u64).ok()?;
    let bytes = usize::try_from(packet.packet_bits / 8).ok()?;
    let is_ours = bytes.is_multiple_of(PACKET_ALIGN) && packet.sequence_number.is_some();
    let number = packet.sequence_number.filter(|_| is_ours)?;
    Some((number, memory.get(..bytes).filter(|packet| !packet.is_empty())?))
}
