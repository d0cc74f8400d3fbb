//! The packets in the memory of a ring, whoever has written it and however that ended.

use super::stream::State;
use crate::lent::PACKET_ALIGN;
use crate::plan::Plan;

/// The packets that a [`crate::Ring`] has left in this memory, from the oldest to the newest. A packet that its writer was just
/// beginning is not among them.
pub fn packets_of_ring<'m>(plan: &Plan, memory: &'m [u8]) -> Vec<&'m [u8]> {
    let mut found: Vec<(u64, &[u8])> = Vec::new();
    let mut rest = memory;
    while !rest.is_empty() {
        // All have the same size, so one that is damaged is passed over as a whole, once a sound one was met.
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

/// The packet at the beginning, and its number.
fn sound_packet<'m>(plan: &Plan, memory: &'m [u8]) -> Option<(u64, &'m [u8])> {
    let beginning = memory.get(..PACKET_ALIGN)?;
    let mut state = State::of(plan, beginning);
    let packet = state.decode_packet(plan, 0, memory.len() as u64).ok()?;
    let bytes = usize::try_from(packet.packet_bits / 8).ok()?;
    let is_ours = bytes.is_multiple_of(PACKET_ALIGN) && packet.sequence_number.is_some();
    let number = packet.sequence_number.filter(|_| is_ours)?;
    Some((number, memory.get(..bytes).filter(|packet| !packet.is_empty())?))
}
