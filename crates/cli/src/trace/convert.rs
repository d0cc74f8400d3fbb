//! `backtrail trace convert`.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use backtrail_trace::{CreateError, CreateErrorKind, Dialect, TraceError};
use backtrail_trace_rfc::{Checksum, Compression, Key, Packing, convert_part, open};
use clap::{Args, ValueEnum, ValueHint};

use super::input::{Span, failure, read_key, traces_below};
use crate::counted::Counted;
use crate::error::{Failure, Status, shown};
use crate::output::directory;

/// Write a trace in another dialect: CTF 1.8, CTF 2, or that of the RFC v1.1.
///
/// CTF 1.8 and 2 have the same streams, which are copied byte for byte; only the metadata is
/// rewritten. To and from the RFC's dialect, packets and events are rewritten too. Anything the
/// target format cannot express is reported. If an event depends on it, nothing is written.
#[derive(Args)]
pub(crate) struct Convert {
    /// Trace directory, or a directory with traces somewhere below.
    #[arg(value_name = "TRACE", value_hint = ValueHint::DirPath)]
    trace: PathBuf,
    /// Create this directory; several traces get the same directories below it.
    #[arg(short, long, value_name = "OUT", value_hint = ValueHint::DirPath, value_parser = directory())]
    output: PathBuf,
    /// Write this dialect.
    #[arg(long)]
    to: Target,
    #[command(flatten)]
    span: Span,
    /// Compress packets (RFC dialect only).
    #[arg(long, value_name = "SCHEME", default_value = "none")]
    compress: Compress,
    /// Encrypt packets with the key of --key-file (RFC dialect only).
    #[arg(long, value_name = "SCHEME", default_value = "none")]
    encrypt: Encrypt,
    /// Add this checksum to packets (RFC dialect only) [default: crc32 in that dialect].
    #[arg(long, value_name = "SCHEME")]
    checksum: Option<Sum>,
    /// Read the 32-byte key for encrypted packets, of TRACE and of OUT, from FILE.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Target {
    #[value(name = "rfc1.1")]
    Rfc1_1,
    #[value(name = "1.8")]
    V1_8,
    #[value(name = "2")]
    V2,
}

impl From<Target> for Dialect {
    fn from(target: Target) -> Dialect {
        match target {
            Target::Rfc1_1 => Dialect::Rfc1_1,
            Target::V1_8 => Dialect::V1_8,
            Target::V2 => Dialect::V2,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Compress {
    None,
    Bzip2,
    Gzip,
}

#[derive(Clone, Copy, ValueEnum)]
enum Encrypt {
    None,
    Aes,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sum {
    None,
    Md5,
    Sha1,
    Crc32,
}

/// The key to read with, and how to pack what is written.
fn options(arguments: &Convert) -> Result<(Option<Key>, Packing), Failure> {
    let key = arguments.key_file.as_deref().map(read_key).transpose()?;
    let packing = Packing {
        compression: match arguments.compress {
            Compress::None => Compression::None,
            Compress::Bzip2 => Compression::Bzip2,
            Compress::Gzip => Compression::Gzip,
        },
        encryption: match (arguments.encrypt, key) {
            (Encrypt::None, _) => None,
            (Encrypt::Aes, Some(key)) => Some(key),
            (Encrypt::Aes, None) => {
                return Err(
                    Failure::new("--encrypt aes needs a key").help("--key-file FILE names the file with the key")
                );
            }
        },
        checksum: match arguments.checksum {
            Some(Sum::None) => Checksum::None,
            Some(Sum::Md5) => Checksum::Md5,
            Some(Sum::Sha1) => Checksum::Sha1,
            Some(Sum::Crc32) | None => Checksum::Crc32,
        },
    };
    let nothing = packing.compression == Compression::None
        && packing.encryption.is_none()
        && arguments.checksum.is_none_or(|sum| sum == Sum::None);
    match nothing || arguments.to == Target::Rfc1_1 {
        true => Ok((key, packing)),
        false => {
            let what = "only packets of the RFC's dialect are compressed, encrypted or have checksums";
            Err(Failure::new(what).help("--to rfc1.1 writes it"))
        }
    }
}

pub(crate) fn run(arguments: &Convert) -> Result<Status, Failure> {
    let (key, packing) = options(arguments)?;
    let output = &arguments.output;
    if fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::of(output, "directory is not empty"));
    }
    let directories = traces_below(&arguments.trace)?;
    // A sibling of the output, so that the output appears whole or not at all.
    let parent = output.parent().filter(|parent| *parent != Path::new(""));
    let parent = parent.unwrap_or(Path::new("."));
    fs::read_dir(parent).map_err(|error| Failure::of(parent, error))?;
    let scratch = tempfile::Builder::new()
        .prefix(".backtrail-")
        .tempdir_in(parent)
        .map_err(|error| Failure::of(output, error))?;
    let whole = scratch.path().join("trace");
    let mut notes = Vec::new();
    let traces = directories
        .iter()
        .map(|directory| open(directory, key).map_err(|error| failure(&error)))
        .collect::<Result<Vec<_>, _>>()?;
    let part = arguments.span.options(&traces)?;
    for (directory, trace) in directories.into_iter().zip(traces) {
        let below = directory.strip_prefix(&arguments.trace).unwrap_or(Path::new(""));
        let target = whole.join(below);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&target);
        made.map_err(|error| Failure::of(output, error))?;
        let is_rewritten = arguments.span.is_given() && trace.dialect() == Dialect::Rfc1_1;
        if is_rewritten && arguments.to == Target::Rfc1_1 {
            let what = "a part of a trace of the RFC's dialect cannot be written in that dialect";
            return Err(Failure::of(&directory, what).help("--to 1.8 or --to 2 writes it"));
        }
        let (unsaid, outside) = convert_part(&trace, &target, arguments.to.into(), packing, part)
            .map_err(|error| told(&directory, output, &whole, error))?;
        if outside > 0 {
            let remain = if outside == 1 { "remains" } else { "remain" };
            let what = format!("outside the times {remain}: the alignment in packets does not allow a cut");
            notes.push(format!("{}: {} {what}", shown(&directory), Counted(outside, "event")));
        }
        if !unsaid.is_empty() {
            let unsaid: Vec<String> = unsaid.iter().map(ToString::to_string).collect();
            let dialect = Dialect::from(arguments.to);
            let unsaid = unsaid.join(", ");
            notes.push(format!("{}: {dialect} cannot express {unsaid}", shown(&directory)));
        }
    }
    fs::rename(&whole, output).map_err(|error| Failure::of(output, error))?;
    // It is empty. If this fails, the folder's own way to remove it may not.
    if fs::remove_dir(scratch.path()).is_ok() {
        let _ = scratch.keep();
    }
    for note in notes {
        crate::error::say!("backtrail: {note}");
    }
    Ok(Status::Done)
}

/// Errors in the input name its path; those in scratch files name OUT or TRACE, because scratch
/// files do not stay.
fn told(directory: &Path, output: &Path, scratch: &Path, error: CreateError) -> Failure {
    let CreateError { path, kind } = error;
    match kind {
        CreateErrorKind::Read(kind) => failure(&TraceError { path, kind }),
        CreateErrorKind::Io(error) if path.starts_with(scratch) => Failure::of(output, error),
        kind if path.starts_with(scratch) => Failure::of(directory, &kind),
        kind => Failure::of(&path, &kind),
    }
}
