//! Compressed sections (gABI 4.3, "Compressed sections") and the `.gnu_debugdata` file within a file.

use std::borrow::Cow;
use std::io::{self, Read as _};
use std::ops::Range;

use backtrail_wire::{Bytes, Endian};
use flate2::bufread::ZlibDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use object::read::{CompressedData, CompressionFormat};

use crate::constants::{CHDR_BYTES, CHDR32_BYTES, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD};
use crate::header::Class;
use crate::{Error, ErrorKind, Result};

/// A deflate stream cannot expand a byte to more than this many (RFC 1951: 258 bytes from two bits).
const ZLIB_RATIO: u64 = 1032;
/// Debug information rarely expands more: memory for so much is worth having at once.
const USUAL_RATIO: usize = 8;
/// What is unpacked at a time where only parts are kept.
const PIECE: usize = 128 << 10;
/// A Zstandard block of four bytes can stand for 128 KiB (RFC 8878, section 3.1.1.2).
const ZSTD_RATIO: u64 = 32 << 10;

/// What `.gnu_debugdata` may expand to: distributions ship a few megabytes of symbols at the most.
const MAX_DEBUGDATA: u64 = 256 << 20;
/// And how much a byte of it: symbol tables pack to a fifth.
const XZ_RATIO: u64 = 1024;

/// A section as the file holds it, which may be compressed.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// Address in the file's own terms (svma); 0 for what is not loaded.
    pub address: u64,
    /// Without the header of a compressed one.
    data: &'a [u8],
    /// How it is compressed, and how many bytes it is unpacked; no more than the format can pack into its length.
    compression: Option<(CompressionFormat, u64)>,
    /// Offset in the file, for errors.
    at: u64,
}

impl<'a> Packed<'a> {
    pub(crate) fn plain(data: &'a [u8], address: u64, at: u64) -> Packed<'a> {
        Packed {
            address,
            data,
            compression: None,
            at,
        }
    }

    /// A section with `SHF_COMPRESSED`; `at` is the offset of `data` in the file.
    pub(crate) fn with_header(data: Bytes<'a>, class: Class, address: u64, at: u64) -> Result<Packed<'a>> {
        let (kind, size, header) = match class {
            Class::Elf32 => (data.u32(0)?, data.u32(4)?.into(), CHDR32_BYTES),
            Class::Elf64 => (data.u32(0)?, data.u64(8)?, CHDR_BYTES),
        };
        let packed = data.data().get(header..).ok_or_else(|| {
            let missing = (header - data.len()) as u64;
            Error::new(ErrorKind::Truncated { missing }, at)
        })?;
        let (format, ratio) = match kind {
            ELFCOMPRESS_ZLIB => (CompressionFormat::Zlib, ZLIB_RATIO),
            ELFCOMPRESS_ZSTD => (CompressionFormat::Zstandard, ZSTD_RATIO),
            other => return Err(Error::new(ErrorKind::Compression(other), at)),
        };
        Packed::plain(packed, address, at).compressed(format, ratio, size)
    }

    /// A `.zdebug_*` section, as older GNU tools wrote them: "ZLIB", the size in big-endian, a zlib stream.
    pub(crate) fn zdebug(data: &'a [u8], address: u64, at: u64) -> Result<Packed<'a>> {
        if !data.starts_with(b"ZLIB") {
            return Err(Error::new(ErrorKind::Decompress, at));
        }
        let size = Bytes::new(data, Endian::Big).u64(4)?;
        Packed::plain(&data[12..], address, at).compressed(CompressionFormat::Zlib, ZLIB_RATIO, size)
    }

    fn compressed(self, format: CompressionFormat, ratio: u64, size: u64) -> Result<Packed<'a>> {
        if size > (self.data.len() as u64).saturating_mul(ratio) {
            return Err(Error::new(ErrorKind::CompressedSize(size), self.at));
        }
        Ok(Packed {
            compression: Some((format, size)),
            ..self
        })
    }

    /// Bytes of its contents, by what it says itself.
    pub fn unpacked_len(&self) -> u64 {
        self.compression.map_or(self.data.len() as u64, |(_, size)| size)
    }

    /// Its contents.
    pub fn unpack(&self) -> Result<Cow<'a, [u8]>> {
        match self.compression {
            None => Ok(Cow::Borrowed(self.data)),
            Some((CompressionFormat::Zlib, size)) => self.inflate(size),
            Some((format, size)) => {
                let compressed = CompressedData {
                    format,
                    data: self.data,
                    uncompressed_size: size,
                };
                compressed.decompress().map_err(|_| self.damaged())
            }
        }
    }

    /// Parts of its contents by their offsets, which rise: a stream is unpacked to the end of the last one, and nothing else of it is kept. `None` where
    /// it is no such stream, so that to unpack it at all is to unpack the whole.
    pub fn unpack_parts(&self, parts: &[Range<u64>]) -> Result<Option<Vec<Vec<u8>>>> {
        let Some((CompressionFormat::Zlib, _)) = self.compression else {
            return Ok(None);
        };
        let mut stream = ZlibDecoder::new(self.data);
        // What is not kept goes through memory that stays in the cache.
        let mut piece = vec![0; PIECE];
        let mut held = 0..0;
        let mut unpacked = Vec::with_capacity(parts.len());
        for wanted in parts {
            let mut part = Vec::new();
            loop {
                let (from, to) = (wanted.start.max(held.start), wanted.end.min(held.end));
                if from < to {
                    part.extend_from_slice(&piece[(from - held.start) as usize..(to - held.start) as usize]);
                }
                if wanted.end <= held.end {
                    break;
                }
                let got = stream.read(&mut piece).map_err(|_| self.damaged())? as u64;
                if got == 0 {
                    return Err(self.damaged());
                }
                held = held.end..held.end + got;
            }
            unpacked.push(part);
        }
        Ok(Some(unpacked))
    }

    /// A zlib stream of which `len` is told.
    fn inflate(&self, len: u64) -> Result<Cow<'a, [u8]>> {
        let len = usize::try_from(len).map_err(|_| self.damaged())?;
        // As much as is usual at first, and then no more than twice what came: lengths may lie.
        let mut out = vec![0; len.min(self.data.len().saturating_mul(USUAL_RATIO))];
        let mut inflater = Decompress::new(true);
        loop {
            let (read, written) = (inflater.total_in() as usize, inflater.total_out() as usize);
            let status = inflater.decompress(&self.data[read..], &mut out[written..], FlushDecompress::Finish);
            let is_whole = status.map_err(|_| self.damaged())? == Status::StreamEnd;
            match (is_whole, inflater.total_out() as usize) {
                (true, written) if written == len => return Ok(Cow::Owned(out)),
                (false, written) if written == out.len() && written < len => {}
                _ => return Err(self.damaged()),
            }
            out.resize(len.min(out.len().saturating_mul(2)), 0);
        }
    }

    fn damaged(&self) -> Error {
        Error::new(ErrorKind::Decompress, self.at)
    }
}

/// The ELF file within `.gnu_debugdata`; `None` where the stream is damaged or expands beyond any use.
pub(crate) fn unpack_debugdata(xz: &[u8]) -> Option<Vec<u8>> {
    // The decoder holds all that it unpacks, so the size must be known first.
    let size = xz_unpacked_size(xz)?;
    if size > MAX_DEBUGDATA.min((xz.len() as u64).saturating_mul(XZ_RATIO)) {
        return None;
    }
    let mut out = Vec::new();
    lzma_rs::xz_decompress(&mut io::BufReader::new(xz), &mut out).ok()?;
    Some(out)
}

/// What the LZMA2 chunks of all blocks unpack to (The .xz File Format 1.2.1, sections 2.1.1 and 3; the chunk headers
/// are those of LZMA2, which has no text of its own). `None` where other filters are used.
fn xz_unpacked_size(xz: &[u8]) -> Option<u64> {
    const STREAM_HEADER: usize = 12;
    const CHECK_BYTES: [usize; 16] = [0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64];
    let bytes = Bytes::new(xz, Endian::Big);
    let check = CHECK_BYTES[usize::from(bytes.u8(7).ok()? & 0xf)];
    let mut total = 0u64;
    let mut offset = STREAM_HEADER;
    // A block header begins with its size; 0 stands there where the index begins.
    loop {
        let header_size = (usize::from(bytes.u8(offset).ok()?) + 1) * 4;
        if header_size == 4 {
            return Some(total);
        }
        let one_filter = bytes.u8(offset + 1).ok()? & 3 == 0;
        if !one_filter {
            return None;
        }
        offset += header_size;
        loop {
            let control = bytes.u8(offset).ok()?;
            let (unpacked, chunk) = match control {
                0 => break,
                1 | 2 => {
                    let size = usize::from(bytes.u16(offset + 1).ok()?) + 1;
                    (size as u64, 3 + size)
                }
                3..0x80 => return None,
                _ => {
                    let size = u64::from(control & 0x1f) << 16 | u64::from(bytes.u16(offset + 1).ok()?);
                    let packed = usize::from(bytes.u16(offset + 3).ok()?) + 1;
                    let properties = usize::from(control >= 0xc0);
                    (size + 1, 5 + properties + packed)
                }
            };
            total += unpacked;
            offset += chunk;
        }
        offset = (offset + 1).next_multiple_of(4) + check;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Packed by the xz tool, which the decoder knows nothing of.
    fn packed(data: &[u8], options: &[&str]) -> Option<Vec<u8>> {
        let spawned = Command::new("xz")
            .arg("-c")
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = spawned else {
            backtrail_testkit::skip("no xz on this machine");
            return None;
        };
        let mut input = child.stdin.take()?;
        let data = data.to_vec();
        let writer = std::thread::spawn(move || input.write_all(&data));
        let output = child.wait_with_output().ok()?;
        writer.join().unwrap().unwrap();
        Some(output.stdout)
    }

    /// What the stream of these bytes says of itself, and how much it is said to be.
    fn zlib(data: &[u8], size: u64) -> Vec<u8> {
        let mut stream = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        stream.write_all(data).unwrap();
        let header = [1, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(size.to_le_bytes());
        header.chain([0; 8]).chain(stream.finish().unwrap()).collect()
    }

    fn packed_section(section: &[u8]) -> Result<Packed<'_>> {
        Packed::with_header(Bytes::new(section, Endian::Little), Class::Elf64, 0, 0)
    }

    #[test]
    fn parts_of_sections_are_what_the_whole_has_there() {
        // One that packs to a half, and one that packs to a thousandth.
        for data in [sample(), vec![7; 500_000]] {
            let len = data.len() as u64;
            let section = zlib(&data, len);
            let packed = packed_section(&section).unwrap();
            assert_eq!(packed.unpacked_len(), len);
            assert!(packed.unpack().unwrap() == data);
            let piece = PIECE as u64;
            for parts in [
                &[][..],
                &[0..len, len..len],
                &[0..0, 0..1, 1..100, 100..100, 5000..piece, piece..piece + 1],
                &[piece - 1..piece + 1, len - 1..len, len..len],
                &[piece / 2..piece + 20_000, len..len],
            ] {
                let unpacked = packed.unpack_parts(parts).unwrap().unwrap();
                let expected = parts.iter().map(|part| &data[part.start as usize..part.end as usize]);
                assert!(unpacked.iter().eq(expected), "{parts:?}");
            }
            assert!(packed.unpack_parts(&[0..1, 5..len + 1]).is_err());
            // What is cut off is missed only by those who ask for it.
            let cut = packed_section(&section[..section.len() - 5]).unwrap();
            assert!(
                cut.unpack().is_err() && cut.unpack_parts(&[0..0, 10..1000]).unwrap().unwrap()[1] == data[10..1000]
            );
            for wrong in [len - 1, len + 1, len + 70_000] {
                let section = zlib(&data, wrong);
                assert!(
                    packed_section(&section)
                        .and_then(|packed| packed.unpack().map(|_| ()))
                        .is_err()
                );
            }
        }
        assert!(
            Packed::plain(b"abc", 0, 0)
                .unpack_parts(&[0..1, 1..2])
                .unwrap()
                .is_none()
        );
        let small = zlib(&[1, 2, 3], 1 << 40);
        assert!(packed_section(&small).is_err());
    }

    fn sample() -> Vec<u8> {
        (0..50_000u32).flat_map(|i| (i * i / 7).to_le_bytes()).collect()
    }

    #[test]
    fn the_size_is_known_before_unpacking() {
        let data = sample();
        let Some(xz) = packed(&data, &["--block-size=20000"]) else {
            return;
        };
        assert_eq!(xz_unpacked_size(&xz), Some(data.len() as u64));
        assert!(unpack_debugdata(&xz).as_deref() == Some(&data[..]));
        // What expands a thousandfold is not symbols.
        let Some(bomb) = packed(&vec![0; 8 << 20], &[]) else {
            return;
        };
        assert_eq!(xz_unpacked_size(&bomb), Some(8 << 20));
        assert!(unpack_debugdata(&bomb).is_none());
    }

    #[test]
    fn damaged_streams_end() {
        let Some(xz) = packed(&sample()[..8000], &["--block-size=3000"]) else {
            return;
        };
        let mut state = 0x853c_49e6_748f_ea9bu64;
        let mut random = move |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % limit as u64) as usize
        };
        for _ in 0..3000 {
            let mut damaged = xz.clone();
            for _ in 0..1 + random(4) {
                let front = random(2) == 0;
                let at = random(if front { 64 } else { damaged.len() });
                damaged[at] = random(256) as u8;
            }
            if let Some(found) = unpack_debugdata(&damaged) {
                assert!(found.len() as u64 <= damaged.len() as u64 * XZ_RATIO);
            }
        }
    }
}
