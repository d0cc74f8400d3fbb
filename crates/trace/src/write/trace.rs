//! Writes a trace directory: the metadata, and a file per stream.

use super::packet::{StreamOptions, StreamWriter};
use crate::constants::METADATA_FILE;
use crate::content::ContentEncoder;
use crate::description::Description;
use crate::dialect::Dialect;
use crate::error::{CreateError, CreateErrorKind};
use crate::plan::Plan;
use crate::{json2, tsdl};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A trace that is being written. It is readable at any time: the metadata comes first, and only
/// whole packets are appended to files.
///
/// ```
/// use backtrail_trace::description::{Clock, Description, Encoding, EventClass, FieldClass, Integer, Struct};
/// use backtrail_trace::{Dialect, Endian, StreamOptions, TraceWriter};
///
/// fn write(directory: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
///     let fields = Struct::new()
///         .with("bytes", Integer::unsigned(32, Endian::NATIVE))
///         .with("path", FieldClass::String(Encoding::Utf8));
///     let events = vec![EventClass::new(0, "app:read", fields)];
///     let description = Description::of_events(Clock::nanoseconds("monotonic", 0), events);
///     let trace = TraceWriter::create(directory, description, Dialect::V1_8)?;
///     let mut stream = trace.stream("main_0", StreamOptions::for_cpu(0, 0))?;
///     let mut event = stream.writer().event(0, 1_000);
///     event.u32(512);
///     event.string("/etc/hostname");
///     event.finish()?;
///     stream.flush(2_000)?;
///     Ok(())
/// }
/// # let scratch = tempfile::tempdir().unwrap();
/// # write(&scratch.path().join("trace")).unwrap();
/// # let trace = backtrail_trace::Trace::open(&scratch.path().join("trace")).unwrap();
/// # assert!(trace.events(backtrail_trace::Options::default()).unwrap().next().unwrap().is_some());
/// ```
#[derive(Debug)]
pub struct TraceWriter {
    directory: PathBuf,
    plan: Arc<Plan>,
    /// The transformation of the packets of streams whose options contain none.
    content: Option<Arc<dyn ContentEncoder>>,
}

impl TraceWriter {
    /// Creates the directory (or uses an empty one) and writes the metadata, in CTF 1.8 or 2.
    ///
    /// # Errors
    ///
    /// The dialect cannot express the description, or the directory cannot be written or is not
    /// empty.
    pub fn create(directory: &Path, description: Description, dialect: Dialect) -> Result<TraceWriter, CreateError> {
        let metadata = match dialect {
            Dialect::V1_8 => {
                let text = tsdl::write(&description);
                text.map_err(|error| CreateError::new(directory, CreateErrorKind::Tsdl(error)))?
                    .into_bytes()
            }
            Dialect::V2 => {
                let text = json2::write(&description);
                text.map_err(|error| CreateError::new(directory, CreateErrorKind::Json2(error)))?
                    .into_bytes()
            }
            Dialect::Rfc1_1 => return Err(CreateError::new(directory, CreateErrorKind::OtherDialect(dialect))),
        };
        TraceWriter::with_metadata(directory, description, &metadata)
    }

    /// Creates the directory (or uses an empty one) and writes metadata that another crate has made
    /// from the description. Only the user may read the trace (mode 0700, files 0600).
    ///
    /// # Errors
    ///
    /// The description cannot be compiled, or the directory cannot be written or is not empty.
    pub fn with_metadata(
        directory: &Path,
        description: Description,
        metadata: &[u8],
    ) -> Result<TraceWriter, CreateError> {
        let plan =
            Plan::new(description).map_err(|error| CreateError::new(directory, CreateErrorKind::Description(error)))?;
        make_empty(directory)?;
        // Under a hidden name until it is complete: readers skip hidden files.
        let path = directory.join(METADATA_FILE);
        let hidden = directory.join(".metadata");
        new_file(&hidden)
            .and_then(|mut file| file.write_all(metadata))
            .and_then(|()| fs::rename(&hidden, &path))
            .map_err(|error| CreateError::io(&path, error))?;
        Ok(TraceWriter {
            directory: directory.to_owned(),
            plan: Arc::new(plan),
            content: None,
        })
    }

    /// Sets the transformation of the packets of streams whose [`StreamOptions::content`] is
    /// `None`.
    #[must_use]
    pub fn with_content(self, content: Arc<dyn ContentEncoder>) -> TraceWriter {
        TraceWriter {
            content: Some(content),
            ..self
        }
    }

    /// Gives the directory another name, before there are streams: a trace made under a hidden name
    /// is readable from the moment it has its own.
    ///
    /// # Errors
    ///
    /// The directory cannot be renamed; nothing of it is left then.
    pub fn renamed(self, directory: &Path) -> Result<TraceWriter, CreateError> {
        match fs::rename(&self.directory, directory) {
            Ok(()) => Ok(TraceWriter {
                directory: directory.to_owned(),
                ..self
            }),
            Err(error) => {
                let _ = fs::remove_dir_all(&self.directory);
                Err(CreateError::io(directory, error))
            }
        }
    }

    /// The plan that encodes the trace's streams.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Creates a stream. Its file appears with its first packet. The result can be moved to another
    /// thread.
    ///
    /// # Errors
    ///
    /// The name is not valid for a new stream, or the stream's class cannot be written.
    pub fn stream(&self, file_name: &str, options: StreamOptions) -> Result<PacketFile, CreateError> {
        let path = self.new_stream_path(file_name, options.class_id)?;
        let writer = StreamWriter::new(self.plan.clone(), self.with_own_content(options))
            .map_err(|error| CreateError::new(&path, CreateErrorKind::Encode(error)))?;
        Ok(PacketFile {
            writer,
            path,
            file: None,
            length: 0,
        })
    }

    /// The options, with the trace's transformation of packets if they contain none.
    pub(super) fn with_own_content(&self, mut options: StreamOptions) -> StreamOptions {
        options.content = options.content.or_else(|| self.content.clone());
        options
    }

    /// The path of a new stream of this class and name.
    pub(super) fn new_stream_path(&self, file_name: &str, class: u64) -> Result<PathBuf, CreateError> {
        let path = self.directory.join(file_name);
        let sound = !file_name.is_empty()
            && !file_name.starts_with('.')
            && !file_name.contains('/')
            && file_name != METADATA_FILE;
        // A file of the RFC belongs to the section with its name.
        let description = self.plan.description();
        let belongs = description.session.is_none()
            || description
                .class_of_file(&path)
                .is_some_and(|index| description.streams[index].id == class);
        match sound && belongs && !path.exists() {
            true => Ok(path),
            false => Err(CreateError::new(&path, CreateErrorKind::StreamName)),
        }
    }
}

/// Creates the directory, or uses it if it is empty.
fn make_empty(directory: &Path) -> Result<(), CreateError> {
    let io = |error| CreateError::io(directory, error);
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match fs::read_dir(directory).map_err(io)?.next() {
            Some(_) => Err(CreateError::new(directory, CreateErrorKind::NotEmpty)),
            None => Ok(()),
        },
        result => result.map_err(io),
    }
}

/// A stream and its file.
#[derive(Debug)]
pub struct PacketFile {
    writer: StreamWriter,
    path: PathBuf,
    file: Option<File>,
    /// Bytes of whole packets.
    length: u64,
}

impl PacketFile {
    /// The packet that is being written.
    pub fn writer(&mut self) -> &mut StreamWriter {
        &mut self.writer
    }

    /// The stream's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in the file.
    pub fn bytes_written(&self) -> u64 {
        self.length
    }

    /// Finishes the packet, not before `timestamp`, and appends it with one system call. If the
    /// file system takes only a part, that part is removed, so that the file ends with the previous
    /// packet; the events then count as discarded.
    ///
    /// # Errors
    ///
    /// The packet cannot be finished, or was not written completely.
    pub fn flush(&mut self, timestamp: u64) -> Result<(), CreateError> {
        let events = self.writer.events();
        let result = self.append(timestamp);
        if matches!(&result, Err(error) if matches!(error.kind, CreateErrorKind::PacketLost(_))) {
            self.writer.lost_packet(events);
        }
        result
    }

    fn append(&mut self, timestamp: u64) -> Result<(), CreateError> {
        let packet = self
            .writer
            .finish(timestamp)
            .map_err(|error| CreateError::new(&self.path, CreateErrorKind::Encode(error)))?;
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = new_file(&self.path)
                    .map_err(|error| CreateError::new(&self.path, CreateErrorKind::PacketLost(error)))?;
                self.file.insert(file)
            }
        };
        let error = match write_once(&mut *file, packet) {
            Ok(()) => {
                self.length += packet.len() as u64;
                return Ok(());
            }
            Err(error) => error,
        };
        match file.set_len(self.length) {
            Ok(()) => Err(CreateError::new(&self.path, CreateErrorKind::PacketLost(error))),
            Err(error) => Err(CreateError::io(&self.path, error)),
        }
    }
}

/// Creates a file of a trace, which must not exist. Only the user may read it: traces contain
/// addresses, arguments and command lines.
pub(super) fn new_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create_new(true).mode(0o600).open(path)
}

/// Writes with one call if the system takes all of it. It takes less if there is no more room; only
/// the next call reports the limit.
fn write_once(mut output: impl Write, packet: &[u8]) -> std::io::Result<()> {
    let mut rest = packet;
    while !rest.is_empty() {
        match output.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
