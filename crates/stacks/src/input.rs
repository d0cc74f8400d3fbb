//! Opens possible cores: files or streams, compressed or not.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use backtrail_elf::FileBytes;

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
    match Compression::of(file.bytes()) {
        None => Ok(Input { file, cut: None }),
        Some(compression) => decompress(compression, file.bytes()),
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
        None => keep(whole),
        Some(compression) => decompress(compression, whole),
    }
}

fn decompress<'a>(compression: Compression, packed: impl Read + 'a) -> io::Result<Input> {
    let unpacked: Box<dyn Read + 'a> = match compression {
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
        Compression::Zstd => match ruzstd::decoding::StreamingDecoder::new(packed) {
            Ok(decoder) => Box::new(decoder),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
        },
        Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(packed)),
    };
    keep(unpacked)
}

/// Stores bytes until the end, or until a read fails.
fn keep(mut from: impl Read) -> io::Result<Input> {
    let mut file = tempfile::tempfile()?;
    let mut buffer = vec![0; 256 << 10];
    let mut len = 0u64;
    let cut = loop {
        match from.read(&mut buffer) {
            Ok(0) => break None,
            Ok(read) => {
                write_sparse(&mut file, &buffer[..read])?;
                len += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Some(error),
        }
    };
    file.set_len(len)?;
    Ok(Input {
        file: FileBytes::from_file(file)?,
        cut,
    })
}

/// Writes at the file's position. A piece of only zeros is skipped, which a file system keeps as a
/// hole.
fn write_sparse(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(4096) {
        if piece.iter().all(|&byte| byte == 0) {
            file.seek(SeekFrom::Current(piece.len() as i64))?;
        } else {
            file.write_all(piece)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn data() -> Vec<u8> {
        let mut data: Vec<u8> = (0..300_000u32).flat_map(|number| number.to_le_bytes()).collect();
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
            let half = read(&packed[..packed.len() / 2]).unwrap();
            assert!(data().starts_with(half.file.bytes()), "{tool}");
            assert!(half.cut.is_some() && half.file.bytes().len() < data().len(), "{tool}");
        }
    }

    #[test]
    fn what_is_not_compressed_comes_as_it_is() {
        let input = read(&data()[..]).unwrap();
        assert!(input.file.bytes() == data() && input.cut.is_none());
        assert!(read(&b""[..]).unwrap().file.bytes().is_empty());
    }
}
