//! A trace's metadata as a viewer gets it: it only ever grows.

use backtrail_trace::constants::METADATA_PACKET_MAGIC;
use std::collections::HashSet;

/// Bytes of a packet's header (CTF 1.8.3, section 7.1).
const HEADER: usize = 37;
/// Bytes of text in a packet.
const PIECE: usize = 32 << 10;

/// What was sent of the metadata, and what is still to be sent.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    /// The file's contents.
    seen: Vec<u8>,
    /// Descriptions of events that were sent.
    events: HashSet<Vec<u8>>,
    pending: Vec<u8>,
}

impl Metadata {
    /// Takes the file's current contents. If they do not begin with the earlier ones, only event
    /// classes that are new are sent: a tracer that rewrites its metadata adds classes, and refines
    /// clocks, which a viewer cannot learn.
    pub(crate) fn update(&mut self, bytes: &[u8], uuid: Option<[u8; 16]>) {
        if self.seen == bytes {
            return;
        }
        let magic = METADATA_PACKET_MAGIC.to_ne_bytes();
        let swapped = METADATA_PACKET_MAGIC.swap_bytes().to_ne_bytes();
        let as_it_is = bytes.starts_with(&magic) || bytes.starts_with(&swapped);
        let new = match bytes.strip_prefix(self.seen.as_slice()) {
            Some(new) => new.to_vec(),
            None if as_it_is => Vec::new(),
            None => {
                let new = blocks(bytes).filter(|block| is_event(block) && !self.events.contains(*block));
                new.flatten().copied().collect()
            }
        };
        self.events
            .extend(blocks(bytes).filter(|block| is_event(block)).map(<[u8]>::to_vec));
        match as_it_is {
            true => self.pending.extend(new),
            false => packets(&new, uuid.unwrap_or_default(), &mut self.pending),
        }
        self.seen = bytes.to_vec();
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }
}

/// The blocks of a text, each with all up to the start of the next one.
fn blocks(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let next = rest.windows(8).skip(1).position(|window| window == b"\nevent {");
        let (block, after) = rest.split_at(next.map_or(rest.len(), |next| next + 1));
        rest = after;
        Some(block)
    })
}

fn is_event(block: &[u8]) -> bool {
    block.starts_with(b"\nevent {")
}

/// Packets with the text: readers of a stream want them.
fn packets(text: &[u8], uuid: [u8; 16], out: &mut Vec<u8>) {
    for piece in text.chunks(PIECE) {
        let bits = ((HEADER + piece.len()) * 8) as u32;
        out.extend(METADATA_PACKET_MAGIC.to_ne_bytes());
        out.extend(uuid);
        // No checksum.
        out.extend([0; 4]);
        out.extend(bits.to_ne_bytes());
        out.extend(bits.to_ne_bytes());
        // No compression, encryption and checksum; version 1.8.
        out.extend([0, 0, 0, 1, 8]);
        out.extend(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_trace::parse_metadata;

    fn text(events: &[u32], offset: u64) -> String {
        let mut text = format!(
            "/* CTF 1.8 */\ntrace {{ major = 1; minor = 8; byte_order = le; }};\nclock {{ name = c; offset = {offset}; }};\n\
             stream {{ event.header := struct {{ integer {{ size = 8; }} id; }}; }};\n"
        );
        for id in events {
            text += &format!("\nevent {{\n\tname = e{id};\n\tid = {id};\n}};\n");
        }
        text
    }

    #[test]
    fn grows_whatever_happens_to_the_file() {
        let mut metadata = Metadata::default();
        let mut sent = Vec::new();
        for (events, offset) in [
            (&[1u32][..], 1),
            (&[1, 2], 1),
            (&[1, 2], 7),
            (&[2, 1, 3], 8),
            (&[2, 1, 3], 8),
        ] {
            metadata.update(text(events, offset).as_bytes(), None);
            sent.extend(metadata.take());
            let (_, description) = parse_metadata(&sent).unwrap();
            let mut ids: Vec<u64> = description.streams[0].events.iter().map(|event| event.id).collect();
            ids.sort_unstable();
            let mut expected: Vec<u64> = events.iter().map(|&id| u64::from(id)).collect();
            expected.sort_unstable();
            assert_eq!(ids, expected);
        }
        assert!(!metadata.is_pending());
    }
}
