//! Packed bodies: a zlib stream (RFC 1950) of pieces, which threads pack side by side.

use std::ops::Range;

use flate2::{Compress, Compression, FlushCompress, Status};
use rayon::prelude::*;

/// Bytes of a piece, but for the last one. Each knows the end of the one before it, so that the stream is hardly longer than that of one piece.
const PIECE: usize = 64 << 10;
/// How far back deflate refers (RFC 1951, section 2).
const WINDOW: usize = 32 << 10;
/// CMF and FLG: deflate with that window; the level that FLG tells is nobody's business.
const HEADER: [u8; 2] = [0x78, 0xda];

/// The stream; the same however many threads there are. `None` where the packer fails.
pub(super) fn zlib(body: &[u8], level: u32) -> Option<Vec<u8>> {
    let count = (body.len() / PIECE).max(1);
    let pieces = (0..count).into_par_iter().map(|number| {
        let start = number * PIECE;
        let is_last = number + 1 == count;
        deflate(
            body,
            start..if is_last { body.len() } else { start + PIECE },
            is_last,
            level,
        )
    });
    let pieces = pieces.collect::<Option<Vec<_>>>()?;
    let mut stream = HEADER.to_vec();
    pieces.iter().for_each(|piece| stream.extend(piece));
    let checksum = simd_adler32::adler32(&body);
    stream.extend(checksum.to_be_bytes());
    Some(stream)
}

/// A piece, which ends at a whole byte.
fn deflate(body: &[u8], piece: Range<usize>, is_last: bool, level: u32) -> Option<Vec<u8>> {
    let mut packer = Compress::new(Compression::new(level), false);
    let before = &body[piece.start.saturating_sub(WINDOW)..piece.start];
    if !before.is_empty() {
        packer.set_dictionary(before).ok()?;
    }
    let mut rest = &body[piece];
    // What does not get smaller is stored, with five bytes for each block.
    let mut packed = Vec::with_capacity(rest.len() + rest.len() / 64 + 64);
    let flush = if is_last {
        FlushCompress::Finish
    } else {
        FlushCompress::Sync
    };
    loop {
        let taken = packer.total_in();
        let status = packer.compress_vec(rest, &mut packed, flush).ok()?;
        rest = &rest[(packer.total_in() - taken) as usize..];
        // Nothing is held back where there was room for more.
        let flushed = rest.is_empty() && packed.len() < packed.capacity();
        match status {
            Status::StreamEnd => return Some(packed),
            Status::Ok | Status::BufError if flushed && !is_last => return Some(packed),
            _ => packed.reserve(1 + rest.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Streams are what another inflater takes, of every length around those of pieces, and whatever is in them.
    #[test]
    fn streams_are_whole() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let noise = (0..3 * PIECE).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        let noise: Vec<u8> = noise.collect();
        let words: Vec<u8> = noise
            .iter()
            .flat_map(|byte| (u32::from(byte % 40)).to_le_bytes())
            .collect();
        for body in [&noise, &words] {
            for len in [
                0,
                1,
                100,
                PIECE - 1,
                PIECE,
                2 * PIECE - 1,
                2 * PIECE,
                2 * PIECE + 77,
                3 * PIECE,
            ] {
                for level in [0, 1, 6, 9] {
                    let body = &body[..len];
                    let stream = zlib(body, level).unwrap_or_else(|| panic!("{len} bytes, level {level}"));
                    let mut inflated = Vec::new();
                    let mut decoder = flate2::read::ZlibDecoder::new(&stream[..]);
                    decoder.read_to_end(&mut inflated).unwrap();
                    assert!(inflated == body, "{len} bytes, level {level}");
                    assert_eq!(decoder.total_in(), stream.len() as u64);
                }
            }
        }
    }

    /// Pieces know what is before them: of a text that repeats itself over their borders, none begins anew.
    #[test]
    fn pieces_go_on() {
        let mut body: Vec<u8> = (0..WINDOW as u32 / 8)
            .flat_map(|word| (word.wrapping_mul(0x9e37_79b9)).to_le_bytes())
            .collect();
        let one = zlib(&body, 9).unwrap().len();
        while body.len() < 4 * PIECE {
            body.extend_from_within(..WINDOW / 2);
        }
        let all = zlib(&body, 9).unwrap().len();
        assert!(all < one + one / 4, "{one} bytes, repeated {all}");
    }
}
