//! Whole traces, packets and events, in.

mod event;
mod merge;
mod stream;

pub use event::{Chosen, Elements, Event, Fields, IntegerValue, Labels, Value};
pub use merge::Events;
pub(crate) use stream::decode_all;
pub use stream::{Packet, Statistics, StreamReader};

use crate::Dialect;
use crate::constants::METADATA_FILE;
use crate::description::Description;
use crate::error::{TraceError, TraceErrorKind};
use crate::metadata;
use crate::plan::Plan;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where a packet cannot be read, as after a crash: end that stream there and count it, instead of failing.
    pub recover: bool,
}

/// A trace on disk: its metadata is read, its streams are known.
#[derive(Debug)]
pub struct Trace {
    dialect: Dialect,
    plan: Arc<Plan>,
    streams: Vec<PathBuf>,
}

impl Trace {
    /// Reads the metadata of the trace in this directory and lists its streams: the files whose name begins with no dot.
    pub fn open(directory: &Path) -> Result<Trace, TraceError> {
        let io = |path: &Path, error| fail(path, TraceErrorKind::Io(error));
        let path = directory.join(METADATA_FILE);
        let text = fs::read(&path).map_err(|error| io(&path, error))?;
        let (dialect, description) = metadata::parse(&text).map_err(|kind| fail(&path, kind))?;
        let plan = Plan::new(description).map_err(|error| fail(&path, TraceErrorKind::Description(error)))?;
        let mut streams = Vec::new();
        for entry in fs::read_dir(directory).map_err(|error| io(directory, error))? {
            let entry = entry.map_err(|error| io(directory, error))?;
            let name = entry.file_name();
            let hidden = name.as_encoded_bytes().starts_with(b".");
            let is_file = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file());
            if is_file && !hidden && name != METADATA_FILE {
                streams.push(entry.path());
            }
        }
        streams.sort();
        Ok(Trace {
            dialect,
            plan: Arc::new(plan),
            streams,
        })
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

    /// Reads one stream.
    pub fn stream(&self, index: usize, options: Options) -> Result<StreamReader, TraceError> {
        StreamReader::open(self.plan.clone(), &self.streams[index], options)
    }

    /// Reads all streams in the order of time.
    pub fn events(&self, options: Options) -> Result<Events, TraceError> {
        let streams = (0..self.streams.len()).map(|index| self.stream(index, options));
        Ok(Events::new(streams.collect::<Result<_, _>>()?))
    }
}

fn fail(path: &Path, kind: TraceErrorKind) -> TraceError {
    TraceError {
        path: path.to_owned(),
        kind,
    }
}
