//! A trace's directory.

use super::merge::Events;
use super::options::Options;
use super::push::PushReader;
use super::stream::StreamReader;
use crate::constants::METADATA_FILE;
use crate::content::ContentDecoder;
use crate::description::Description;
use crate::dialect::Dialect;
use crate::error::{TraceError, TraceErrorKind};
use crate::metadata::parse_metadata;
use crate::plan::Plan;
use crate::regular;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A trace on disk, with its metadata read and its streams listed.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
    dialect: Dialect,
    plan: Arc<Plan>,
    streams: Vec<PathBuf>,
    /// Index of each stream's class, if the file's name identifies it.
    classes: Vec<Option<usize>>,
    /// Reverses the transformation of packets.
    content: Option<Arc<dyn ContentDecoder>>,
}

impl Trace {
    /// Reads the metadata of the trace in this directory, of CTF 1.8 or 2, and lists its streams:
    /// the files whose name does not begin with a dot.
    ///
    /// # Errors
    ///
    /// The directory or its metadata cannot be read.
    pub fn open(directory: &Path) -> Result<Trace, TraceError> {
        let path = directory.join(METADATA_FILE);
        let text = regular::read(&path).map_err(|error| TraceError::new(&path, TraceErrorKind::Io(error)))?;
        let (dialect, description) = parse_metadata(&text).map_err(|kind| TraceError::new(&path, kind))?;
        Trace::described(directory, dialect, description, None)
    }

    /// Opens the trace in this directory, whose metadata another crate has read. `content` reverses
    /// the transformation of packets.
    ///
    /// # Errors
    ///
    /// The directory cannot be read, the description cannot be compiled, or a stream's file belongs
    /// to no class.
    pub fn described(
        directory: &Path,
        dialect: Dialect,
        description: Description,
        content: Option<Arc<dyn ContentDecoder>>,
    ) -> Result<Trace, TraceError> {
        let streams = Trace::stream_files(directory)?;
        let plan = Plan::new(description).map_err(|error| {
            let path = directory.join(METADATA_FILE);
            TraceError::new(&path, TraceErrorKind::Description(error))
        })?;
        let class = |path: &PathBuf| match plan.description().session {
            // The RFC's files have the names of their sections.
            Some(_) => match plan.description().class_of_file(path) {
                Some(class) => Ok(Some(class)),
                None => Err(TraceError::new(path, TraceErrorKind::UnknownSection)),
            },
            None => Ok(None),
        };
        let classes = streams.iter().map(class).collect::<Result<_, _>>()?;
        Ok(Trace {
            directory: directory.to_owned(),
            dialect,
            classes,
            plan: Arc::new(plan),
            streams,
            content,
        })
    }

    /// The files in a trace's directory that are neither metadata nor hidden, by name.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn stream_files(directory: &Path) -> Result<Vec<PathBuf>, TraceError> {
        let io = |error| TraceError::new(directory, TraceErrorKind::Io(error));
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

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The dialect of the metadata.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The description in the metadata.
    pub fn description(&self) -> &Description {
        self.plan.description()
    }

    /// The plan that decodes the streams.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The streams' files, by name.
    pub fn streams(&self) -> &[PathBuf] {
        &self.streams
    }

    /// Index of a stream's class, if the file's name identifies it, as in the RFC.
    pub fn class_of(&self, stream: usize) -> Option<usize> {
        self.classes.get(stream).copied().flatten()
    }

    /// Reads one stream.
    ///
    /// # Errors
    ///
    /// The stream's file cannot be opened.
    ///
    /// # Panics
    ///
    /// There is no stream with this index.
    #[expect(clippy::indexing_slicing, reason = "as many classes as streams")]
    pub fn stream(&self, index: usize, options: Options) -> Result<StreamReader, TraceError> {
        let class = self.classes[index];
        let stream = StreamReader::open(self.plan.clone(), &self.streams[index], class, options)?;
        Ok(stream.with_content(self.content.clone()))
    }

    /// Reads the bytes of a stream that it is fed, as those of this file.
    pub(super) fn push_reader(&self, index: usize, options: Options) -> PushReader {
        let path = self.streams.get(index).map_or(Path::new(""), PathBuf::as_path);
        let reader = PushReader::of_class(self.plan.clone(), path, self.class_of(index), options);
        reader.with_content(self.content.clone())
    }

    /// Reads all streams in time order.
    ///
    /// # Errors
    ///
    /// A stream's file cannot be opened.
    pub fn events(&self, options: Options) -> Result<Events, TraceError> {
        let streams = (0..self.streams.len()).map(|index| self.stream(index, options));
        Ok(Events::new(streams.collect::<Result<_, _>>()?))
    }
}
