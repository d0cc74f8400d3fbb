//! Compressed bodies: a zlib stream (RFC 1950) of pieces that threads compress in parallel.

use std::ops::Range;

use flate2::{Compress, Compression, FlushCompress, Status};
use rayon::prelude::*;

use crate::threads;

/// The largest size of a piece, unless the body has more than [`PIECES`] of these. Each piece can
/// refer to the end of the previous one and has its own codes, so the stream is shorter than that
/// of a single piece.
const PIECE: usize = 24 << 10;
/// More pieces than this do not make the stream shorter, and readers build tables for each.
const PIECES: usize = 8;
/// How far back deflate refers (RFC 1951, section 2).
const WINDOW: usize = 32 << 10;
/// CMF and FLG: deflate with that window; readers ignore the level in FLG.
const HEADER: [u8; 2] = [0x78, 0xda];

/// Compresses a body to a stream that does not depend on the number of threads. Data from `second`
/// on is of another sort, so no piece contains some of both. `None` if compression fails.
pub(super) fn zlib(body: &[u8], second: usize, level: u32) -> Option<Vec<u8>> {
    let second = second.min(body.len());
    let most = PIECE.max(body.len() / PIECES);
    let mut pieces = cut(0..second, most);
    pieces.extend(cut(second..body.len(), most));
    if pieces.is_empty() {
        pieces.push(0..0);
    }
    let last = pieces.len() - 1;
    let pack = |(number, piece)| deflate(body, piece, number == last, level);
    let packed: Option<Vec<_>> = match last {
        0 => pieces.into_iter().enumerate().map(pack).collect(),
        _ => threads::scoped(|| pieces.into_par_iter().enumerate().with_max_len(1).map(pack).collect()),
    };
    let packed = packed?;
    let mut stream = HEADER.to_vec();
    packed.iter().for_each(|piece| stream.extend(piece));
    let checksum = simd_adler32::adler32(&body);
    stream.extend(checksum.to_be_bytes());
    Some(stream)
}

/// Pieces of about the same length, at most `most`.
fn cut(range: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let count = range.len().div_ceil(most);
    let at = |number: usize| range.start + range.len() * number / count;
    (0..count).map(|number| at(number)..at(number + 1)).collect()
}

/// Compresses a piece, which ends at a whole byte.
fn deflate(body: &[u8], piece: Range<usize>, is_last: bool, level: u32) -> Option<Vec<u8>> {
    let mut packer = Compress::new(Compression::new(level), false);
    let before = &body[piece.start.saturating_sub(WINDOW)..piece.start];
    if !before.is_empty() {
        packer.set_dictionary(before).ok()?;
    }
    let mut rest = &body[piece];
    // Incompressible data is stored, with five bytes for each block.
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
        // If there was room for more, nothing is held back.
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

    /// Another inflater accepts the streams, for lengths around those of pieces and any contents.
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
                for (level, second) in [(0, len / 3), (1, 0), (6, 7), (9, len)] {
                    let body = &body[..len];
                    let stream = zlib(body, second, level).unwrap_or_else(|| panic!("{len} bytes, level {level}"));
                    let mut inflated = Vec::new();
                    let mut decoder = flate2::read::ZlibDecoder::new(&stream[..]);
                    decoder.read_to_end(&mut inflated).unwrap();
                    assert!(inflated == body, "{len} bytes, level {level}");
                    assert_eq!(decoder.total_in(), stream.len() as u64);
                }
            }
        }
    }

    /// Pieces refer to earlier data: in a text that repeats across their boundaries, no piece
    /// starts afresh.
    #[test]
    fn pieces_go_on() {
        let mut body: Vec<u8> = (0..WINDOW as u32 / 8)
            .flat_map(|word| (word.wrapping_mul(0x9e37_79b9)).to_le_bytes())
            .collect();
        let one = zlib(&body, body.len(), 9).unwrap().len();
        while body.len() < 4 * PIECE {
            body.extend_from_within(..WINDOW / 2);
        }
        let all = zlib(&body, body.len(), 9).unwrap().len();
        assert!(all < one + one / 4, "{one} bytes, repeated {all}");
    }
}
