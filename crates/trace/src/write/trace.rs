//! A trace directory: the metadata, and a file for each stream.

use super::packet::{StreamOptions, StreamWriter};
use crate::constants::{METADATA_FILE, PACKET_ALIGN_BYTES};
use crate::description::{Description, Encoding, EventClass, FieldClass, StreamClass, Struct};
use crate::error::{CreateError, CreateErrorKind, EncodeError};
use crate::plan::Plan;
use crate::read::section_of;
use crate::{Dialect, json2, rfc, tsdl};
use backtrail_wire::Endian;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A trace that is being written. It is readable at any time: the metadata comes first, and files only ever get whole packets.
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
}

impl TraceWriter {
    /// Makes the directory (or takes an empty one) and writes the metadata.
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
            Dialect::Rfc1_1 => rfc_metadata(&description).map_err(|kind| CreateError::new(directory, kind))?,
        };
        let plan =
            Plan::new(description).map_err(|error| CreateError::new(directory, CreateErrorKind::Description(error)))?;
        make_empty(directory)?;
        // Under a hidden name until it is whole: readers pass over those.
        let path = directory.join(METADATA_FILE);
        let hidden = directory.join(".metadata");
        fs::write(&hidden, metadata)
            .and_then(|()| fs::rename(&hidden, &path))
            .map_err(|error| CreateError::io(&path, error))?;
        Ok(TraceWriter {
            directory: directory.to_owned(),
            plan: Arc::new(plan),
        })
    }

    /// What the trace's streams are written by.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// A new stream. Its file appears with its first packet. The result can be moved to another thread.
    pub fn stream(&self, file_name: &str, options: StreamOptions) -> Result<PacketFile, CreateError> {
        let path = self.new_stream_path(file_name, options.class_id)?;
        let writer = StreamWriter::new(self.plan.clone(), options)
            .map_err(|error| CreateError::new(&path, CreateErrorKind::Encode(error)))?;
        Ok(PacketFile {
            writer,
            path,
            file: None,
            length: 0,
        })
    }

    /// Where a stream of this class and name may be written.
    pub(super) fn new_stream_path(&self, file_name: &str, class: u64) -> Result<PathBuf, CreateError> {
        let path = self.directory.join(file_name);
        let sound = !file_name.is_empty()
            && !file_name.starts_with('.')
            && !file_name.contains('/')
            && file_name != METADATA_FILE;
        // A file of the RFC is of the section whose name it has.
        let description = self.plan.description();
        let belongs = description.session.is_none()
            || section_of(description, &path).is_ok_and(|section| description.streams[section].id == class);
        match sound && belongs && !path.exists() {
            true => Ok(path),
            false => Err(CreateError::new(&path, CreateErrorKind::StreamName)),
        }
    }
}

/// Makes the directory, or takes it if it is empty.
pub(super) fn make_empty(directory: &Path) -> Result<(), CreateError> {
    let io = |error| CreateError::io(directory, error);
    match fs::create_dir(directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match fs::read_dir(directory).map_err(io)?.next() {
            Some(_) => Err(CreateError::new(directory, CreateErrorKind::NotEmpty)),
            None => Ok(()),
        },
        result => result.map_err(io),
    }
}

/// The metadata of the RFC: each entry is an event of one string, without any header, in packets like those of the data (RFC 7).
fn rfc_metadata(description: &Description) -> Result<Vec<u8>, CreateErrorKind> {
    let entries = rfc::write(description).map_err(CreateErrorKind::Rfc)?;
    let order = description.byte_order.unwrap_or(Endian::NATIVE);
    let string = Struct::new().with("entry", FieldClass::String(Encoding::Utf8));
    let event = EventClass {
        payload: Some(string),
        ..EventClass::default()
    };
    let class = StreamClass {
        events: vec![event],
        ..StreamClass::default()
    };
    let mut stream = rfc::description(order, description.session.unwrap_or(0));
    stream.streams.push(class);
    let plan = Plan::new(stream).map_err(CreateErrorKind::Description)?;
    let longest = entries.iter().map(String::len).max().unwrap_or(0);
    let mut options = StreamOptions::for_cpu(0, 0);
    options.max_packet_bytes = options.max_packet_bytes.max(longest + 2 * PACKET_ALIGN_BYTES);
    let mut writer = StreamWriter::new(Arc::new(plan), options).map_err(CreateErrorKind::Encode)?;
    let mut metadata = Vec::new();
    for entry in &entries {
        let put = |writer: &mut StreamWriter| {
            let mut event = writer.event(0, 0);
            event.string(entry);
            event.finish()
        };
        let result = match put(&mut writer) {
            Err(EncodeError::Full) => {
                metadata.extend_from_slice(writer.finish(0).map_err(CreateErrorKind::Encode)?);
                put(&mut writer)
            }
            result => result,
        };
        result.map_err(CreateErrorKind::Encode)?;
    }
    metadata.extend_from_slice(writer.finish(0).map_err(CreateErrorKind::Encode)?);
    Ok(metadata)
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
    /// The packet that is being made.
    pub fn writer(&mut self) -> &mut StreamWriter {
        &mut self.writer
    }

    /// Where the stream is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in the file.
    pub fn bytes_written(&self) -> u64 {
        self.length
    }

    /// Finishes the packet, not before `timestamp`, and appends it with one system call. Where the file system takes
    /// only a part, that part is taken back, so that the file ends with the packet before; its events then count as
    /// discarded.
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

/// A file that was not there, for a stream.
pub(super) fn new_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create_new(true).open(path)
}

/// Writes with one call where the system takes all of it. It takes less where there is no more room; only the next call
/// says which limit that was.
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
