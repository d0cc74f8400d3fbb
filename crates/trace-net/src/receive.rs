//! Receives the traces of a relay daemon.

use crate::protocol::{self as wire, Index, Input, Message, Stream};
use backtrail_trace::constants::METADATA_FILE;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A viewer that writes what it sees into a directory.
#[derive(Debug)]
pub struct Receiver {
    input: BufReader<TcpStream>,
    out: TcpStream,
}

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Streams, without metadata.
    pub streams: u64,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The time after which a silent daemon counts as gone.
const SILENCE: Duration = Duration::from_secs(30);
/// The time between two rounds in which nothing came.
const PAUSE: Duration = Duration::from_millis(20);

/// A stream of the daemon, and its file here.
struct Target {
    stream: Stream,
    path: PathBuf,
    file: Option<File>,
    is_over: bool,
}

impl Receiver {
    /// Connects to a relay daemon.
    ///
    /// # Errors
    ///
    /// The daemon cannot be reached, or speaks another version of the protocol.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Receiver> {
        let out = TcpStream::connect(address)?;
        out.set_nodelay(true)?;
        out.set_read_timeout(Some(SILENCE))?;
        let mut receiver = Receiver {
            input: BufReader::new(out.try_clone()?),
            out,
        };
        let mut message = Message::default();
        message
            .u64(u64::MAX)
            .u32(wire::MAJOR)
            .u32(wire::MINOR)
            .u32(wire::CLIENT_COMMAND);
        let reply = receiver.ask(wire::CONNECT, message, 20)?;
        let mut reply = Input::new(&reply);
        let (_, major) = (reply.u64()?, reply.u32()?);
        match major {
            wire::MAJOR => Ok(receiver),
            _ => Err(invalid(format!("the daemon speaks version {major} of the protocol"))),
        }
    }

    /// The daemon's sessions: numbers and names.
    ///
    /// # Errors
    ///
    /// The connection fails, or what comes is not the protocol.
    pub fn sessions(&mut self) -> io::Result<Vec<(u64, String)>> {
        /// More than any daemon has.
        const MOST: u32 = 1 << 16;
        let count = self.ask(wire::LIST_SESSIONS, Message::default(), 4)?;
        let count = Input::new(&count).u32()?;
        if count > MOST {
            return Err(invalid(format!("{count} sessions")));
        }
        let session = |_| {
            let bytes = wire::receive(&mut self.input, 20 + wire::HOST_NAME + wire::NAME)?;
            let mut input = Input::new(&bytes);
            let id = input.u64()?;
            let (_timer, _clients, _streams) = (input.u32()?, input.u32()?, input.u32()?);
            let (_host, name) = (input.text(wire::HOST_NAME)?, input.text(wire::NAME)?);
            Ok((id, name))
        };
        (0..count).map(session).collect()
    }

    /// Writes the session's traces below the directory, from their begin until they end or `go_on`
    /// returns false. They are readable all the time.
    ///
    /// # Errors
    ///
    /// The connection fails, what comes is not the protocol, or a file cannot be written.
    pub fn receive(mut self, session: u64, directory: &Path, mut go_on: impl FnMut() -> bool) -> io::Result<Received> {
        let status = self.ask(wire::CREATE_SESSION, Message::default(), 4)?;
        if Input::new(&status).u32()? != wire::OK {
            return Err(invalid("the daemon refuses viewers".to_owned()));
        }
        let mut message = Message::default();
        message.u64(session).u64(0).u32(wire::SEEK_BEGINNING);
        let mut targets = Vec::new();
        match self.streams(wire::ATTACH_SESSION, message)? {
            (wire::OK, streams) => add(&mut targets, streams, directory)?,
            (wire::ATTACH_ALREADY, _) => {
                return Err(invalid("another viewer is attached to the session".to_owned()));
            }
            (status, _) => {
                return Err(invalid(format!(
                    "the daemon does not attach the viewer (status {status})"
                )));
            }
        }
        let mut received = Received::default();
        let mut is_over = false;
        while go_on() {
            let before = received.packets;
            self.metadata(&mut targets)?;
            for place in 0..targets.len() {
                let target = &targets[place];
                if target.is_over || target.stream.is_metadata {
                    continue;
                }
                let mut message = Message::default();
                message.u64(target.stream.id);
                let index = self.ask(wire::GET_NEXT_INDEX, message, Index::SIZE)?;
                let index = Index::read(&mut Input::new(&index))?;
                match index.status {
                    wire::OK => {
                        if index.flags & wire::NEW_METADATA != 0 {
                            self.metadata(&mut targets)?;
                        }
                        let bytes = self.packet(targets[place].stream.id, &index)?;
                        targets[place].append(&bytes)?;
                        received.packets += 1;
                        received.bytes += bytes.len() as u64;
                    }
                    wire::INDEX_RETRY | wire::INDEX_INACTIVE => {}
                    wire::INDEX_HUP => targets[place].is_over = true,
                    status => return Err(invalid(format!("the daemon has no index (status {status})"))),
                }
            }
            if received.packets > before {
                continue;
            }
            let mut message = Message::default();
            message.u64(session);
            match self.streams(wire::GET_NEW_STREAMS, message)? {
                (wire::OK, streams) => add(&mut targets, streams, directory)?,
                (wire::STREAMS_HUP, _) => is_over = true,
                _ => {}
            }
            let data = || targets.iter().filter(|target| !target.stream.is_metadata);
            if is_over && data().all(|target| target.is_over) {
                break;
            }
            thread::sleep(PAUSE);
        }
        received.streams = targets.iter().filter(|target| !target.stream.is_metadata).count() as u64;
        Ok(received)
    }

    /// Sends a command, receives the first bytes of the reply.
    fn ask(&mut self, command: u32, message: Message, size: usize) -> io::Result<Vec<u8>> {
        message.send_command(command, &mut self.out)?;
        wire::receive(&mut self.input, size)
    }

    fn streams(&mut self, command: u32, message: Message) -> io::Result<(u32, Vec<Stream>)> {
        let reply = self.ask(command, message, 8)?;
        let mut reply = Input::new(&reply);
        let (status, count) = (reply.u32()?, reply.u32()?);
        match status {
            wire::OK => Ok((status, Stream::read_all(&mut self.input, count)?)),
            _ => Ok((status, Vec::new())),
        }
    }

    /// Appends what is new of all traces' metadata.
    fn metadata(&mut self, targets: &mut [Target]) -> io::Result<()> {
        for target in targets {
            if !target.stream.is_metadata || target.is_over {
                continue;
            }
            loop {
                let mut message = Message::default();
                message.u64(target.stream.id);
                let reply = self.ask(wire::GET_METADATA, message, 12)?;
                let mut reply = Input::new(&reply);
                let (size, status) = (reply.u64()?, reply.u32()?);
                let bytes = self.data(size)?;
                match status {
                    wire::OK if !bytes.is_empty() => target.append(&bytes)?,
                    wire::OK | wire::NO_NEW_METADATA => break,
                    // The session is over, and all of it was here.
                    _ => {
                        target.is_over = true;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn packet(&mut self, stream: u64, index: &Index) -> io::Result<Vec<u8>> {
        let size = index.packet_bits / 8;
        if size > wire::MOST_BYTES {
            return Err(invalid(format!("packet of {size} bytes")));
        }
        let mut message = Message::default();
        message.u64(stream).u64(index.offset).u32(size as u32);
        let reply = self.ask(wire::GET_PACKET, message, 12)?;
        let mut reply = Input::new(&reply);
        let (status, length, _flags) = (reply.u32()?, reply.u32()?, reply.u32()?);
        match status {
            wire::OK if u64::from(length) == size => self.data(size),
            _ => Err(invalid(format!("the daemon does not send a packet (status {status})"))),
        }
    }

    fn data(&mut self, size: u64) -> io::Result<Vec<u8>> {
        match size <= wire::MOST_BYTES {
            true => wire::receive(&mut self.input, size as usize),
            false => Err(invalid(format!("{size} bytes in one piece"))),
        }
    }
}

impl Target {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let folder = self.path.parent().unwrap_or(Path::new("."));
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                let mut options = OpenOptions::new();
                let file = options.append(true).create_new(true).mode(0o600).open(&self.path)?;
                self.file.insert(file)
            }
        };
        file.write_all(bytes)
    }
}

/// Files for new streams. What they are called there is part of their names here.
fn add(targets: &mut Vec<Target>, streams: Vec<Stream>, directory: &Path) -> io::Result<()> {
    for stream in streams {
        let folder: PathBuf = Path::new(&stream.path)
            .components()
            .filter(|component| matches!(component, Component::Normal(_)))
            .collect();
        let name = match stream.is_metadata {
            true => METADATA_FILE.to_owned(),
            false => stream.channel.replace('/', "_"),
        };
        let is_hidden = name.is_empty() || name.starts_with('.') || (!stream.is_metadata && name == METADATA_FILE);
        if is_hidden {
            return Err(invalid(format!("stream of the name {name:?}")));
        }
        let folder = directory.join(folder).join(format!("trace_{}", stream.trace));
        let mut path = folder.join(&name);
        // Several processes may have streams of one name.
        if targets.iter().any(|target| target.path == path) {
            path = folder.join(format!("{name}_{}", stream.id));
        }
        targets.push(Target {
            stream,
            path,
            file: None,
            is_over: false,
        });
    }
    Ok(())
}

fn invalid(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}
