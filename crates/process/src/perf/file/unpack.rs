//! Unpacks what `perf record -z` has compressed: the records of a recording are one Zstandard frame
//! in pieces, which perf flushes after each piece, and never ends.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::{FileError, Result};

/// The longest header of a frame (RFC 8878, section 3.1.1.1).
const FRAME_HEADER: usize = 18;
/// Bytes of a block's header, and the largest content of a block (section 3.1.1.2).
const BLOCK_HEADER: usize = 3;
const MOST_CONTENT: usize = 128 << 10;
/// The window of the highest level of compression.
const LARGEST_WINDOW: u64 = 128 << 20;
/// The checksum at the end of a frame, if the frame's descriptor has this bit.
const CHECKSUM: usize = 4;
const HAS_CHECKSUM: u8 = 4;
/// The last block of a frame, empty.
const LAST_BLOCK: [u8; BLOCK_HEADER] = [1, 0, 0];

/// Puts the pieces of a frame together.
pub(super) struct Unpacker {
    decoder: FrameDecoder,
    /// What has not been decoded yet: less than a block.
    pending: Vec<u8>,
    /// Whether a frame began, and whether it ends in a checksum.
    frame: Option<bool>,
}

impl Unpacker {
    pub(super) fn new() -> Unpacker {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(LARGEST_WINDOW);
        Unpacker {
            decoder,
            pending: Vec::new(),
            frame: None,
        }
    }

    /// Adds a piece, and appends to `out` what is unpacked by now.
    pub(super) fn add(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.pending.extend_from_slice(piece);
        let mut at = 0;
        while let Some(taken) = self.decode(at, out)? {
            at += taken;
        }
        self.pending.drain(..at);
        Ok(())
    }

    /// Appends the rest, and returns whether it was whole.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) -> bool {
        let is_whole = self.pending.is_empty();
        if self.frame.take().is_some() {
            // The decoder keeps a window's length of an open frame. A checksum that it misses comes
            // after the block is decoded.
            let _ = self
                .decoder
                .decode_blocks(&LAST_BLOCK[..], BlockDecodingStrategy::UptoBlocks(1));
            let _ = self.decoder.collect_to_writer(out);
        }
        is_whole
    }

    /// Decodes the header of a frame, or a block, and returns its length; `None` if it is not
    /// there whole.
    fn decode(&mut self, at: usize, out: &mut Vec<u8>) -> Result<Option<usize>> {
        let rest = &self.pending[at..];
        let Some(has_checksum) = self.frame else {
            if rest.len() < FRAME_HEADER {
                return Ok(None);
            }
            let mut source = rest;
            self.decoder.init(&mut source).map_err(|_| FileError::Packed)?;
            self.frame = Some(rest[4] & HAS_CHECKSUM != 0);
            return Ok(Some(rest.len() - source.len()));
        };
        let Some(&[low, middle, high]) = rest.first_chunk::<BLOCK_HEADER>() else {
            return Ok(None);
        };
        let header = u32::from_le_bytes([low, middle, high, 0]);
        let (is_last, kind, size) = (header & 1 != 0, header >> 1 & 3, (header >> 3) as usize);
        if size > MOST_CONTENT {
            return Err(FileError::Packed);
        }
        const REPEATED_BYTE: u32 = 1;
        let content = if kind == REPEATED_BYTE { 1 } else { size };
        let checksum = if is_last && has_checksum { CHECKSUM } else { 0 };
        let length = BLOCK_HEADER + content + checksum;
        let Some(block) = rest.get(..length) else {
            return Ok(None);
        };
        let decoded = self.decoder.decode_blocks(block, BlockDecodingStrategy::UptoBlocks(1));
        decoded.map_err(|_| FileError::Packed)?;
        if is_last {
            self.frame = None;
        }
        let collected = self.decoder.collect_to_writer(out);
        collected.map_err(|_| FileError::Packed)?;
        Ok(Some(length))
    }
}
