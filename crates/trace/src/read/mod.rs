//! Whole traces, packets and events, in.

mod event;
mod find;
mod merge;
mod parallel;
mod ring;
mod stream;

pub use event::{Chosen, Elements, Event, Fields, Flags, IntegerValue, Labels, Value, WideText};
pub(crate) use event::{PlainClass, View, float};
pub use find::find_traces;
pub use merge::Events;
pub use parallel::{Rendered, render};
pub use ring::packets_of_ring;
pub(crate) use stream::{Contents, decode_all, packet_contents};
pub use stream::{Packet, Problem, Statistics, StreamReader};

use crate::Dialect;
use crate::constants::METADATA_FILE;
use crate::content::Key;
use crate::description::Description;
use crate::error::{TraceError, TraceErrorKind};
use crate::metadata;
use crate::plan::Plan;
use backtrail_wire::Endian;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What to do where a packet cannot be read, as after a crash.
    pub recover: Recover,
    /// For encrypted packets.
    pub key: Option<Key>,
}

/// What to do where a packet cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recover {
    /// Fail.
    #[default]
    Never,
    /// End that stream there, and count it.
    EndStream,
    /// Go on with the next packet, where it can be told where that begins, and count it. A packet that the file's end has cut
    /// is read as far as it goes.
    NextPacket,
}

/// A trace on disk: its metadata is read, its streams are known.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
    dialect: Dialect,
    plan: Arc<Plan>,
    streams: Vec<PathBuf>,
    /// Index of each stream's class where the file's name tells it.
    classes: Vec<Option<usize>>,
}

impl Trace {
    /// Reads the metadata of the trace in this directory and lists its streams: the files whose name begins with no dot.
    pub fn open(directory: &Path) -> Result<Trace, TraceError> {
        let io = |path: &Path, error| fail(path, TraceErrorKind::Io(error));
        let path = directory.join(METADATA_FILE);
        let text = fs::read(&path).map_err(|error| io(&path, error))?;
        let streams = Trace::stream_files(directory)?;
        let order = data_order(&streams);
        let (dialect, description) = metadata::parse(&text, order).map_err(|kind| fail(&path, kind))?;
        let plan = Plan::new(description).map_err(|error| fail(&path, TraceErrorKind::Description(error)))?;
        let classes = streams.iter().map(|path| match dialect {
            Dialect::Rfc1_1 => section_of(plan.description(), path).map(Some),
            _ => Ok(None),
        });
        Ok(Trace {
            directory: directory.to_owned(),
            dialect,
            classes: classes.collect::<Result<_, _>>()?,
            plan: Arc::new(plan),
            streams,
        })
    }

    /// The files in a trace's directory that are no metadata and not hidden, by name.
    fn stream_files(directory: &Path) -> Result<Vec<PathBuf>, TraceError> {
        let io = |error| fail(directory, TraceErrorKind::Io(error));
        let mut streams = Vec::new();
        for entry in fs::read_dir(directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            let hidden = name.as_encoded_bytes().starts_with(b".");
            let is_file = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file());
            if is_file && !hidden && name != METADATA_FILE {
                streams.push(entry.path());
            }
        }
        streams.sort();
        Ok(streams)
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The dialect of the metadata.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// What the metadata says.
    pub fn description(&self) -> &Description {
        self.plan.description()
    }

    /// What the streams are read by.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The streams' files, by name.
    pub fn streams(&self) -> &[PathBuf] {
        &self.streams
    }

    /// Index of a stream's class where the file's name tells it: the RFC's.
    pub(crate) fn class_of(&self, stream: usize) -> Option<usize> {
        self.classes.get(stream).copied().flatten()
    }

    /// Reads one stream.
    pub fn stream(&self, index: usize, options: Options) -> Result<StreamReader, TraceError> {
        StreamReader::open(self.plan.clone(), &self.streams[index], self.classes[index], options)
    }

    /// Reads all streams in the order of time.
    pub fn events(&self, options: Options) -> Result<Events, TraceError> {
        let streams = (0..self.streams.len()).map(|index| self.stream(index, options));
        Ok(Events::new(streams.collect::<Result<_, _>>()?))
    }
}

/// Byte order of the RFC's data packets: the magic number of the first one tells. That the others agree is seen when they
/// are read.
fn data_order(streams: &[PathBuf]) -> Option<Endian> {
    streams.iter().find_map(|path| {
        let mut magic = [0; 4];
        let file = fs::File::open(path).ok()?;
        file.read_exact_at(&mut magic, 0).ok()?;
        metadata::packet_order(&magic)
    })
}

/// The section whose stream a file is: it has the section's name, or that, `_` and the number of a CPU (RFC 2).
pub(crate) fn section_of(description: &Description, path: &Path) -> Result<usize, TraceError> {
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_of = |name: &str| match file.strip_prefix(name) {
        Some("") => true,
        Some(rest) => rest
            .strip_prefix('_')
            .is_some_and(|cpu| !cpu.is_empty() && cpu.bytes().all(|byte| byte.is_ascii_digit())),
        None => false,
    };
    let names = description.streams.iter().enumerate();
    names
        .filter_map(|(index, section)| Some((section.name.as_deref()?, index)))
        .filter(|(name, _)| is_of(name))
        .max_by_key(|(name, _)| name.len())
        .map(|(_, index)| index)
        .ok_or_else(|| fail(path, TraceErrorKind::UnknownSection))
}

fn fail(path: &Path, kind: TraceErrorKind) -> TraceError {
    TraceError {
        path: path.to_owned(),
        kind,
    }
}
