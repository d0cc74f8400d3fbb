//! Writes parcels into a directory, where the traces are readable all the time.

use super::Parcel;
use backtrail_trace::constants::METADATA_FILE;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// The most streams and traces of a session.
const MOST: usize = 1 << 16;

/// Packets of a stream that did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The stream's file.
    pub stream: PathBuf,
    /// The number of the first one in the stream, from 0 on.
    pub first: u64,
    /// How many.
    pub packets: u64,
}

/// What came of one session.
#[derive(Debug, Default)]
pub(super) struct Store {
    root: PathBuf,
    /// Directories here, by what they are called there.
    directories: HashMap<String, PathBuf>,
    streams: HashMap<(String, String), Target>,
    /// Metadata that could not be written yet. No packet is stored before it is.
    unwritten: HashMap<String, Vec<u8>>,
    pub(super) gaps: Vec<Gap>,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
struct Target {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of whole packets in the file.
    length: u64,
    /// The number of the next packet.
    next: u64,
}

fn of_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Target {
    /// Appends a packet, whole or not at all.
    fn append(&mut self, packet: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                let file = options.append(true).create_new(true).mode(0o600).open(&self.path)?;
                self.file.insert(file)
            }
        };
        let written = file.write_all(packet);
        match &written {
            Ok(()) => self.length += packet.len() as u64,
            // Half a packet would make the whole stream unreadable.
            Err(_) if self.length > 0 => file.set_len(self.length)?,
            Err(_) => {
                self.file = None;
                fs::remove_file(&self.path)?;
            }
        }
        written.map_err(|error| of_path(&self.path, &error))
    }
}

impl Store {
    pub(super) fn new(root: &Path) -> Store {
        Store {
            root: root.to_owned(),
            ..Store::default()
        }
    }

    pub(super) fn streams(&self) -> usize {
        self.streams.values().filter(|target| target.file.is_some()).count()
    }

    pub(super) fn put(&mut self, parcel: Parcel) -> io::Result<()> {
        match parcel {
            Parcel::Metadata { directory, bytes } => {
                let written = self.put_metadata(&directory, &bytes);
                match &written {
                    Ok(()) => _ = self.unwritten.remove(&directory),
                    // This would fail again.
                    Err(error) if error.kind() == ErrorKind::InvalidData => {}
                    Err(_) => _ = self.unwritten.insert(directory, bytes),
                }
                written
            }
            Parcel::Packet {
                directory,
                stream,
                count,
                bytes,
            } => {
                self.write_rest(&directory)?;
                let target = self.target(directory, stream)?;
                let gap = count.checked_sub(target.next);
                let Some(gap) = gap else { return Ok(()) };
                target.append(&bytes)?;
                let (path, first) = (target.path.clone(), target.next);
                target.next = count.saturating_add(1);
                self.packets += 1;
                self.bytes += bytes.len() as u64;
                self.miss(path, first, gap);
                Ok(())
            }
            Parcel::End { streams } => {
                for directory in self.unwritten.keys().cloned().collect::<Vec<_>>() {
                    // If it fails again, the trace remains among the unwritten.
                    let _ = self.write_rest(&directory);
                }
                for (directory, stream, count) in streams {
                    let target = self.target(directory, stream)?;
                    let (path, first) = (target.path.clone(), target.next);
                    target.next = target.next.max(count);
                    self.miss(path, first, count.saturating_sub(first));
                }
                Ok(())
            }
        }
    }

    /// Traces whose last metadata could not be written.
    pub(super) fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    /// Whether all packets that are known of are stored, with their metadata.
    pub(super) fn is_complete(&self) -> bool {
        self.gaps.is_empty() && self.unwritten.is_empty()
    }

    fn put_metadata(&mut self, directory: &str, bytes: &[u8]) -> io::Result<()> {
        let directory = self.directory(directory)?;
        // Under a hidden name until it is complete.
        let hidden = directory.join(".metadata");
        let write = || {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&hidden)?.write_all(bytes)?;
            fs::rename(&hidden, directory.join(METADATA_FILE))
        };
        let written = write();
        if written.is_err() {
            // It takes room that others need.
            let _ = fs::remove_file(&hidden);
        }
        written.map_err(|error| of_path(&directory.join(METADATA_FILE), &error))
    }

    /// Writes a trace's metadata if that failed before.
    fn write_rest(&mut self, directory: &str) -> io::Result<()> {
        if let Some(bytes) = self.unwritten.get(directory).cloned() {
            self.put_metadata(directory, &bytes)?;
            self.unwritten.remove(directory);
        }
        Ok(())
    }

    fn miss(&mut self, stream: PathBuf, first: u64, packets: u64) {
        if packets > 0 {
            self.gaps.push(Gap { stream, first, packets });
        }
    }

    fn target(&mut self, directory: String, stream: String) -> io::Result<&mut Target> {
        let is_hidden = stream.is_empty() || stream.starts_with('.') || stream.contains('/') || stream == METADATA_FILE;
        if is_hidden || self.streams.len() >= MOST {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("stream of the name {stream:?}"),
            ));
        }
        let path = self.directory(&directory)?.join(&stream);
        let target = Target {
            path,
            file: None,
            length: 0,
            next: 0,
        };
        Ok(self.streams.entry((directory, stream)).or_insert(target))
    }

    /// The directory of a trace: below ours whatever it is called, and one of its own.
    fn directory(&mut self, name: &str) -> io::Result<PathBuf> {
        if let Some(known) = self.directories.get(name) {
            return Ok(known.clone());
        }
        if self.directories.len() >= MOST {
            return Err(io::Error::new(ErrorKind::InvalidData, "too many traces"));
        }
        let is_normal = |component: &Component<'_>| matches!(component, Component::Normal(name) if !name.as_encoded_bytes().starts_with(b"."));
        let folder: PathBuf = Path::new(name).components().filter(is_normal).collect();
        let folder = match folder.as_os_str().is_empty() {
            true => self.root.join("trace"),
            false => self.root.join(folder),
        };
        let mut parents = DirBuilder::new();
        parents.recursive(true).mode(0o700);
        if let Some(parent) = folder.parent() {
            parents.create(parent)?;
        }
        for copy in 1..MOST {
            let mut path = folder.clone().into_os_string();
            if copy > 1 {
                path.push(format!("-{copy}"));
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                // Another session's, or ours with a trace below that is already there.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    let path = PathBuf::from(&path);
                    let is_parent = self
                        .directories
                        .values()
                        .any(|other| other.starts_with(&path) && *other != path);
                    if !is_parent {
                        continue;
                    }
                }
                created => created?,
            }
            let path = PathBuf::from(path);
            self.directories.insert(name.to_owned(), path.clone());
            return Ok(path);
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}
