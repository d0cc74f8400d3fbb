//! Opens possible cores: files or streams, compressed or not.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::rc::Rc;

use backtrail_elf::budget::{self, Limit};
use backtrail_elf::{FileBytes, door};

/// An opened input.
#[derive(Debug)]
pub struct Input {
    /// The bytes, decompressed.
    pub file: FileBytes,
    /// If the bytes are incomplete, the reason.
    pub cut: Option<io::Error>,
}

/// Compressions, by the first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// LZ4 frame format.
    Lz4,
}

/// Number of bytes that identify a compression.
const MAGIC_BYTES: usize = 4;
/// How much is unpacked at a time, in bytes.
const PIECE: u64 = 256 << 10;

impl Compression {
    fn of(start: &[u8]) -> Option<Compression> {
        match start {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// Opens the file at `path`. Compressed files are decompressed into an unnamed temporary file, in
/// which zeros take no space.
///
/// # Errors
/// If it can't be opened, is not a regular file, or the temporary file can't be written.
pub fn open(path: &Path) -> io::Result<Input> {
    let file = FileBytes::open(path)?;
    let start = file.slice(0, file.len().min(MAGIC_BYTES)).unwrap_or_default();
    match Compression::of(start) {
        None => Ok(Input { file, cut: None }),
        Some(compression) => decompress(compression, door::named(path)?.reader()),
    }
}

/// Reads a stream to its end.
///
/// # Errors
/// If the temporary file can't be written.
pub fn read(stream: impl Read) -> io::Result<Input> {
    let mut stream = BufReader::new(stream);
    let mut start = Vec::new();
    stream.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut start)?;
    let whole = io::Cursor::new(start.clone()).chain(stream);
    match Compression::of(&start) {
        None => keep(whole, None),
        Some(compression) => decompress(compression, whole),
    }
}

fn decompress<'a>(compression: Compression, packed: impl Read + 'a) -> io::Result<Input> {
    let taken = Rc::new(Cell::new(0));
    let packed = BufReader::new(Counted {
        from: packed,
        taken: Rc::clone(&taken),
    });
    let unpacked: Box<dyn Read + 'a> = match compression {
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
        Compression::Zstd => match ruzstd::decoding::StreamingDecoder::new(packed) {
            Ok(decoder) => Box::new(decoder),
            Err(_) => return Err(not_decompressed("damaged zstd frame")),
        },
        Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(packed)),
    };
    keep(unpacked, Some(&taken))
}

fn not_decompressed(error: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("can't be decompressed: {error}"))
}

/// Counts the bytes that pass.
struct Counted<R> {
    from: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.taken.set(self.taken.get() + read as u64);
        Ok(read)
    }
}

/// Whether cores or records begin so.
fn may_be_core(start: &[u8]) -> bool {
    start.starts_with(b"\x7fELF") || start.trim_ascii_start().starts_with(b"{")
}

/// Stores bytes until the end, or until a read fails. Nothing is stored of what is no core, and no
/// more than a number of compressed bytes, of which `taken` were read, may expand to.
fn keep(mut from: impl Read, taken: Option<&Cell<u64>>) -> io::Result<Input> {
    let mut file = tempfile::tempfile()?;
    let mut buffer = Vec::new();
    let (mut len, mut written) = (0u64, 0u64);
    let mut cut = from.by_ref().take(PIECE).read_to_end(&mut buffer).err();
    if !may_be_core(&buffer) {
        let what = "contains neither a core nor a record of stacks";
        return Err(match cut {
            Some(error) if taken.is_some() => not_decompressed(error),
            Some(error) => error,
            None => io::Error::new(io::ErrorKind::InvalidData, what),
        });
    }
    written += write_sparse(&mut file, &buffer)?;
    len += buffer.len() as u64;
    buffer.resize(PIECE as usize, 0);
    while cut.is_none() {
        if taken.is_some_and(|taken| written > budget::most_unpacked(taken.get())) {
            cut = Some(io::Error::new(io::ErrorKind::FileTooLarge, Limit::Unpacked));
            break;
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                written += write_sparse(&mut file, &buffer[..read])?;
                len += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => cut = Some(error),
        }
    }
    file.set_len(len)?;
    Ok(Input {
        file: FileBytes::from_file(file)?,
        cut,
    })
}

/// Writes at the file's position. A piece of only zeros is skipped, which a file system keeps as a
/// hole. Returns the number of bytes that take space.
fn write_sparse(file: &mut File, bytes: &[u8]) -> io::Result<u64> {
    let mut written = 0;
    for piece in bytes.chunks(4096) {
        if piece.iter().all(|&byte| byte == 0) {
            file.seek(SeekFrom::Current(piece.len() as i64))?;
        } else {
            file.write_all(piece)?;
            written += piece.len() as u64;
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// More than the window of zstd: what is in the window when data ends is lost.
    fn data() -> Vec<u8> {
        let mut data: Vec<u8> = b"\x7fELF".to_vec();
        data.extend((0..1_500_000u32).flat_map(|number| number.to_le_bytes()));
        data.extend(vec![0; 100_000]);
        data.extend(b"the end");
        data.extend(vec![0; 5000]);
        data
    }

    /// The data as compressed by this tool.
    fn compressed(tool: &str) -> Option<Vec<u8>> {
        let folder = backtrail_testkit::scratch();
        let path = folder.path().join("data");
        std::fs::write(&path, data()).unwrap();
        let output = Command::new(tool)
            .args(["-q", "-c"])
            .arg(&path)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| backtrail_testkit::Missing(format!("{tool}: {error}")));
        let output = backtrail_testkit::available(output)?;
        assert!(output.status.success(), "{output:?}");
        Some(output.stdout)
    }

    #[test]
    fn what_the_compressors_made_is_read_whole_and_cut_off() {
        for tool in ["gzip", "zstd", "lz4"] {
            let Some(packed) = compressed(tool) else { continue };
            assert!(packed.len() < data().len());
            let folder = backtrail_testkit::scratch();
            let path = folder.path().join("packed");
            std::fs::write(&path, &packed).unwrap();
            for input in [open(&path).unwrap(), read(&packed[..]).unwrap()] {
                assert!(input.cut.is_none(), "{tool}: {:?}", input.cut);
                assert!(input.file.bytes() == data(), "{tool}");
            }
            let most = read(&packed[..packed.len() / 5 * 4]).unwrap();
            assert!(data().starts_with(most.file.bytes()), "{tool}");
            assert!(most.cut.is_some() && most.file.bytes().len() < data().len(), "{tool}");
        }
    }

    #[test]
    fn what_is_no_core_is_not_unpacked() {
        let bomb = [ruzstd_frame(&[7; 3000]), vec![0; 9]].concat();
        let error = read(&bomb[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// A core's first bytes, and a hundred megabytes that pack to almost nothing.
    #[test]
    fn what_expands_a_thousandfold_is_cut() {
        let mut whole = b"\x7fELF".to_vec();
        whole.resize(100 << 20, 7);
        let input = read(&ruzstd_frame(&whole)[..]).unwrap();
        let error = input.cut.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(input.file.len() < 90 << 20, "{}", input.file.len());
    }

    fn ruzstd_frame(data: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn what_is_not_compressed_comes_as_it_is() {
        let input = read(&data()[..]).unwrap();
        assert!(input.file.bytes() == data() && input.cut.is_none());
        assert_eq!(read(&b""[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
