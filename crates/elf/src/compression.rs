//! Compressed sections (gABI 4.3, "Compressed sections") and the file embedded in `.gnu_debugdata`.

use std::borrow::Cow;
use std::io::Read;
use std::ops::Range;

use backtrail_wire::{Bytes, Endian};
use flate2::bufread::ZlibDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

use crate::budget::Budget;
use crate::constants::{CHDR_BYTES, CHDR32_BYTES, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD};
use crate::header::{Class, to_usize};
use crate::source::Source;
use crate::{Error, ErrorKind, Result};

/// A deflate stream expands a byte to at most this many (RFC 1951: 258 bytes from two bits).
const ZLIB_RATIO: u64 = 1032;
/// Debug information rarely expands more, so this much memory is allocated at once.
const USUAL_RATIO: usize = 8;
/// How much is unpacked at a time if only parts are kept.
const PIECE: usize = 128 << 10;
/// A Zstandard block of four bytes can expand to 128 KiB (RFC 8878, section 3.1.1.2).
const ZSTD_RATIO: u64 = 32 << 10;

/// Size limit of an unpacked `.gnu_debugdata`: distributions ship at most a few megabytes of
/// symbols.
const MAX_DEBUGDATA: u64 = 256 << 20;
/// Limit of its expansion per byte: symbol tables pack to a fifth.
const XZ_RATIO: u64 = 1024;
/// Memory limit for unpacking it, in KiB: `xz -9` needs 65 MiB.
const XZ_MEMORY: u32 = 128 << 10;

/// How a section is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Zlib,
    Zstandard,
}

/// A section as stored in the file, compressed or not.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// Address in the file's own terms (svma); 0 if it is not loaded.
    pub address: u64,
    contents: Contents<'a>,
    /// Where the unpacked bytes are taken from.
    budget: &'a Budget,
    /// Offset in the file, for errors.
    at: u64,
}

#[derive(Clone, Copy, Debug)]
enum Contents<'a> {
    /// Not compressed: a range of the file.
    Plain {
        source: Source<'a>,
        offset: usize,
        len: usize,
    },
    Compressed {
        format: Format,
        /// Without the compression header.
        data: &'a [u8],
        /// The unpacked size in bytes; no more than the format can pack into the data.
        size: u64,
    },
}

/// Larger sections of files are read in parts if only parts are needed.
const LARGE: usize = 16 << 20;

impl<'a> Packed<'a> {
    /// A section that is stored as it is.
    pub(crate) fn plain(source: Source<'a>, address: u64, offset: usize, len: usize) -> Result<Packed<'a>> {
        let at = offset as u64;
        let missing = (offset.saturating_add(len)).saturating_sub(source.len()) as u64;
        if missing > 0 {
            return Err(Error::at(ErrorKind::Truncated { missing }, at));
        }
        Ok(Packed {
            address,
            contents: Contents::Plain { source, offset, len },
            budget: source.budget(),
            at,
        })
    }

    /// A section with `SHF_COMPRESSED`; `at` is the offset of `data` in the file.
    pub(crate) fn with_header(
        data: Bytes<'a>,
        class: Class,
        address: u64,
        at: u64,
        budget: &'a Budget,
    ) -> Result<Packed<'a>> {
        let (kind, size, header) = match class {
            Class::Elf32 => (data.u32(0)?, data.u32(4)?.into(), CHDR32_BYTES),
            Class::Elf64 => (data.u32(0)?, data.u64(8)?, CHDR_BYTES),
        };
        let packed = data.data().get(header..).ok_or_else(|| {
            let missing = (header - data.len()) as u64;
            Error::at(ErrorKind::Truncated { missing }, at)
        })?;
        let (format, ratio) = match kind {
            ELFCOMPRESS_ZLIB => (Format::Zlib, ZLIB_RATIO),
            ELFCOMPRESS_ZSTD => (Format::Zstandard, ZSTD_RATIO),
            other => return Err(Error::at(ErrorKind::Compression(other), at)),
        };
        Packed::compressed((format, ratio), packed, size, address, at, budget)
    }

    /// A `.zdebug_*` section of older GNU tools: "ZLIB", the big-endian size, a zlib stream.
    pub(crate) fn zdebug(data: &'a [u8], address: u64, at: u64, budget: &'a Budget) -> Result<Packed<'a>> {
        if !data.starts_with(b"ZLIB") {
            return Err(Error::at(ErrorKind::Decompress, at));
        }
        let size = Bytes::new(data, Endian::Big).u64(4)?;
        Packed::compressed((Format::Zlib, ZLIB_RATIO), &data[12..], size, address, at, budget)
    }

    fn compressed(
        (format, ratio): (Format, u64),
        data: &'a [u8],
        size: u64,
        address: u64,
        at: u64,
        budget: &'a Budget,
    ) -> Result<Packed<'a>> {
        if size > (data.len() as u64).saturating_mul(ratio) {
            return Err(Error::at(ErrorKind::CompressedSize(size), at));
        }
        Ok(Packed {
            address,
            contents: Contents::Compressed { format, data, size },
            budget,
            at,
        })
    }

    /// Size of its contents in bytes, as stated in its header.
    pub fn unpacked_len(&self) -> u64 {
        match self.contents {
            Contents::Plain { len, .. } => len as u64,
            Contents::Compressed { size, .. } => size,
        }
    }

    /// Its contents.
    pub fn unpack(&self) -> Result<Cow<'a, [u8]>> {
        let (format, data, size) = match self.contents {
            Contents::Plain { source, offset, len } => return source.slice(offset, len).map(Cow::Borrowed),
            Contents::Compressed { format, data, size } => (format, data, size),
        };
        let taken = self.budget.take_unpacked(data.len() as u64, size);
        taken.map_err(|limit| Error::at(ErrorKind::Limit(limit), self.at))?;
        match format {
            Format::Zlib => self.inflate(data, size),
            Format::Zstandard => self.decode_zstandard(data, size),
        }
    }

    /// Consecutive Zstandard frames, as written by linkers that compress in parallel.
    fn decode_zstandard(&self, data: &'a [u8], len: u64) -> Result<Cow<'a, [u8]>> {
        let (mut rest, mut out) = (data, Vec::new());
        while !rest.is_empty() {
            let frame = StreamingDecoder::new(&mut rest).map_err(|_| self.damaged())?;
            // One byte more than expected is enough to detect a wrong size.
            let most = len - out.len() as u64 + 1;
            let read = frame.take(most).read_to_end(&mut out);
            if read.is_err() || out.len() as u64 > len {
                return Err(self.damaged());
            }
        }
        match out.len() as u64 == len {
            true => Ok(Cow::Owned(out)),
            false => Err(self.damaged()),
        }
    }

    /// Unpacks parts of the contents, given by ascending offsets: the stream is unpacked up to the
    /// end of the last part, and only the parts are kept; of a large section of a file that is not
    /// compressed, only the parts are read. `None` for others, which are unpacked as a whole.
    pub fn unpack_parts(&self, parts: &[Range<u64>]) -> Result<Option<Vec<Vec<u8>>>> {
        let (data, size) = match self.contents {
            Contents::Plain {
                source: source @ Source::File(_),
                offset,
                len,
            } if len > LARGE => {
                return parts
                    .iter()
                    .map(|part| plain_part(source, offset, len, part))
                    .collect::<Result<_>>()
                    .map(Some);
            }
            Contents::Compressed {
                format: Format::Zlib,
                data,
                size,
            } => (data, size),
            _ => return Ok(None),
        };
        let limited = |limit| Error::at(ErrorKind::Limit(limit), self.at);
        // A bomb is one whatever is kept of it: unpacking takes its time.
        let unpacked = parts.last().map_or(0, |part| part.end).min(size);
        self.budget
            .take_unpacked(data.len() as u64, unpacked)
            .map_err(limited)?;
        let mut stream = ZlibDecoder::new(data);
        // Unwanted bytes go through a buffer that stays in the cache.
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

    /// Unpacks a zlib stream with a stated size of `len`.
    fn inflate(&self, data: &'a [u8], len: u64) -> Result<Cow<'a, [u8]>> {
        let len = usize::try_from(len).map_err(|_| self.damaged())?;
        // Allocate the usual amount first, then at most twice what has arrived: stated sizes may be
        // wrong.
        let mut out = vec![0; len.min(data.len().saturating_mul(USUAL_RATIO))];
        let mut inflater = Decompress::new(true);
        loop {
            let (read, written) = (inflater.total_in() as usize, inflater.total_out() as usize);
            let status = inflater.decompress(&data[read..], &mut out[written..], FlushDecompress::Finish);
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
        Error::at(ErrorKind::Decompress, self.at)
    }
}

/// The bytes of a part of a section.
fn plain_part(source: Source<'_>, offset: usize, len: usize, part: &Range<u64>) -> Result<Vec<u8>> {
    let (start, end) = (to_usize(part.start), to_usize(part.end).min(len));
    let bytes = source.slice(offset.saturating_add(start), end.saturating_sub(start))?;
    Ok(bytes.to_vec())
}

/// Unpacks the ELF file in `.gnu_debugdata`; `None` if the stream is damaged or unreasonably large.
pub(crate) fn unpack_debugdata(xz: &[u8], budget: &Budget) -> Option<Vec<u8>> {
    let most = MAX_DEBUGDATA.min((xz.len() as u64).saturating_mul(XZ_RATIO));
    let mut out = Vec::new();
    // Its own limits are stricter; the memory counts.
    budget.take((xz.len() as u64).saturating_mul(USUAL_RATIO as u64)).ok()?;
    XzReader::new_mem_limit(xz, true, XZ_MEMORY)
        .take(most + 1)
        .read_to_end(&mut out)
        .ok()?;
    (out.len() as u64 <= most).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::CompressionLevel;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Packs data with the xz tool, which is independent of the decoder.
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

    /// A compressed section with a stream of these bytes and this stated size.
    fn zlib(data: &[u8], size: u64) -> Vec<u8> {
        let mut stream = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        stream.write_all(data).unwrap();
        let header = [1, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(size.to_le_bytes());
        header.chain([0; 8]).chain(stream.finish().unwrap()).collect()
    }

    fn packed_section(section: &[u8]) -> Result<Packed<'_>> {
        Packed::with_header(
            Bytes::new(section, Endian::Little),
            Class::Elf64,
            0,
            0,
            Budget::unlimited(),
        )
    }

    #[test]
    fn parts_of_sections_are_what_the_whole_has_there() {
        // One section that packs to a half, and one that packs to a thousandth.
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
            // A truncated end matters only to callers who ask for it.
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
            Packed::plain(Source::memory(b"abc"), 0, 0, 3)
                .unwrap()
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
    fn streams_of_all_filters_and_checks() {
        let data = sample();
        for options in [
            &["--block-size=20000"][..],
            &["-9", "--check=sha256"],
            &["--check=none"],
            &["--x86", "--lzma2"],
            &["--delta=dist=4", "--lzma2", "--check=crc64"],
        ] {
            let Some(xz) = packed(&data, options) else {
                return;
            };
            assert!(
                unpack_debugdata(&xz, Budget::unlimited()).as_deref() == Some(&data[..]),
                "{options:?}"
            );
        }
    }

    #[test]
    fn what_expands_a_thousandfold_is_refused() {
        let Some(bomb) = packed(&vec![0; 8 << 20], &[]) else {
            return;
        };
        assert!(unpack_debugdata(&bomb, Budget::unlimited()).is_none());
    }

    #[test]
    fn zstandard_frames_are_put_together() {
        let (data, other) = (sample(), [7; 1000]);
        let section = |frames: &[&[u8]], size: u64| {
            let frame = |bytes: &&[u8]| ruzstd::encoding::compress_to_vec(*bytes, CompressionLevel::Fastest);
            let header = [2, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(size.to_le_bytes());
            let frames = frames.iter().flat_map(frame);
            header.chain([0; 8]).chain(frames).collect::<Vec<u8>>()
        };
        let all = [&data[..], &other].concat();
        let size = all.len() as u64;
        let whole = section(&[&data, &other], size);
        assert!(packed_section(&whole).unwrap().unpack().unwrap() == all);
        for wrong in [size - 1, size + 1] {
            let section = section(&[&data, &other], wrong);
            assert!(packed_section(&section).unwrap().unpack().is_err(), "{wrong}");
        }
        let cut = packed_section(&whole[..whole.len() - 3]).unwrap();
        assert!(cut.unpack().is_err());
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
            if let Some(found) = unpack_debugdata(&damaged, Budget::unlimited()) {
                assert!(found.len() as u64 <= damaged.len() as u64 * XZ_RATIO);
            }
        }
    }
}
