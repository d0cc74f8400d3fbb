//! Shows the traces below a directory to viewers.

use crate::feed::{Feeds, Next, TraceFeed};
use crate::protocol::{self as wire, Index, Input, Message, Stream};
use std::io::{self, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How traces are served.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Wait for more after the last packet, until the server ends.
    pub follow: bool,
    /// A stream without a new packet for this time had no event in it.
    pub idle: Duration,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            follow: true,
            idle: Duration::from_secs(2),
        }
    }
}

/// A server of the traces below a directory.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    root: PathBuf,
    options: ServeOptions,
    /// No more packets are waited for.
    ended: AtomicBool,
}

/// The time between two looks for viewers.
const PAUSE: Duration = Duration::from_millis(10);
/// The time that viewers have to read the rest when the server ends.
const REST: Duration = Duration::from_secs(5);
/// The most viewers at a time.
const MOST_VIEWERS: usize = 32;
/// The only session.
const SESSION: u64 = 1;

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    ///
    /// Those of `bind(2)`.
    pub fn bind(address: impl ToSocketAddrs, root: &Path, options: ServeOptions) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Server {
            listener,
            root: root.to_owned(),
            options,
            ended: AtomicBool::new(!options.follow),
        })
    }

    /// The address at which it listens.
    ///
    /// # Errors
    ///
    /// Those of `getsockname(2)`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves viewers, each on a thread, as long as `go_on` returns true; then they get the rest,
    /// for at most five seconds. `tell` gets the errors of single viewers.
    ///
    /// # Errors
    ///
    /// Those of `accept(2)`.
    pub fn run(&self, mut go_on: impl FnMut() -> bool, tell: impl Fn(io::Error) + Sync) -> io::Result<()> {
        let (viewers, sockets) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            let result = loop {
                if !go_on() {
                    break Ok(());
                }
                match self.listener.accept() {
                    Ok((socket, _)) if viewers.load(Ordering::Relaxed) < MOST_VIEWERS => {
                        if let (Ok(copy), Ok(mut sockets)) = (socket.try_clone(), sockets.lock()) {
                            sockets.push(copy);
                        }
                        viewers.fetch_add(1, Ordering::Relaxed);
                        scope.spawn(|| {
                            if let Err(error) = self.serve(socket) {
                                tell(error);
                            }
                            viewers.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                    Ok(_) => tell(io::Error::other("too many viewers")),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
                    Err(error) => break Err(error),
                }
            };
            self.ended.store(true, Ordering::Relaxed);
            let end = Instant::now();
            while viewers.load(Ordering::Relaxed) > 0 && end.elapsed() < REST {
                thread::sleep(PAUSE);
            }
            let sockets = sockets.lock().map(|mut sockets| std::mem::take(&mut *sockets));
            for socket in sockets.unwrap_or_default() {
                // It may be closed already.
                let _ = socket.shutdown(std::net::Shutdown::Both);
            }
            result
        })
    }

    fn serve(&self, socket: TcpStream) -> io::Result<()> {
        socket.set_nonblocking(false)?;
        socket.set_nodelay(true)?;
        let mut input = BufReader::new(socket.try_clone()?);
        let mut viewer = Viewer {
            server: self,
            out: socket,
            feeds: Feeds::new(&self.root),
        };
        loop {
            let (command, payload) = match wire::receive_command(&mut input) {
                Err(error) if is_closed(&error) => return Ok(()),
                received => received?,
            };
            match viewer.answer(command, &payload) {
                Err(error) if is_closed(&error) => return Ok(()),
                answered => answered?,
            }
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        error.kind(),
        UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted
    )
}

/// One viewer, and what it knows.
struct Viewer<'s> {
    server: &'s Server,
    out: TcpStream,
    feeds: Feeds,
}

/// The number of a stream: of its trace, and of the stream in it, from 1 on; 0 for metadata.
fn stream_id(trace: usize, stream: Option<usize>) -> u64 {
    (trace as u64) << 32 | stream.map_or(0, |stream| stream as u64 + 1)
}

impl Viewer<'_> {
    fn answer(&mut self, command: u32, payload: &[u8]) -> io::Result<()> {
        let mut input = Input::new(payload);
        let mut reply = Message::default();
        match command {
            wire::CONNECT => {
                let (_, major) = (input.u64()?, input.u32()?);
                if major != wire::MAJOR {
                    let text = format!("viewer speaks version {major} of the protocol");
                    return Err(io::Error::new(ErrorKind::InvalidData, text));
                }
                reply.u64(1).u32(wire::MAJOR).u32(wire::MINOR).u32(wire::CLIENT_COMMAND);
            }
            wire::LIST_SESSIONS => {
                self.look()?;
                let streams = self
                    .feeds
                    .traces
                    .iter()
                    .map(|feed| feed.streams.len() + 1)
                    .sum::<usize>();
                reply.u32(1).u64(SESSION).u32(LIVE_TIMER).u32(0).u32(streams as u32);
                reply.text(HOST, wire::HOST_NAME).text(&self.session_name(), wire::NAME);
            }
            wire::CREATE_SESSION | wire::DETACH_SESSION => _ = reply.u32(wire::OK),
            wire::ATTACH_SESSION => match input.u64()? {
                SESSION => {
                    self.look()?;
                    let streams = self.new_streams();
                    reply.u32(wire::OK).u32(streams.len() as u32);
                    streams.iter().for_each(|stream| stream.write(&mut reply));
                }
                _ => _ = reply.u32(wire::ATTACH_UNKNOWN).u32(0),
            },
            wire::GET_NEW_STREAMS => match input.u64()? {
                SESSION => {
                    self.look()?;
                    let streams = self.new_streams();
                    let status = match streams.is_empty() {
                        false => wire::OK,
                        true if self.is_ended() => wire::STREAMS_HUP,
                        true => wire::NO_NEW_STREAMS,
                    };
                    reply.u32(status).u32(streams.len() as u32);
                    streams.iter().for_each(|stream| stream.write(&mut reply));
                }
                _ => _ = reply.u32(wire::STREAMS_ERROR).u32(0),
            },
            wire::GET_METADATA => self.metadata(input.u64()?, &mut reply)?,
            wire::GET_NEXT_INDEX => self.next_index(input.u64()?)?.write(&mut reply),
            wire::GET_PACKET => {
                let (stream, offset, length) = (input.u64()?, input.u64()?, input.u32()?);
                self.packet(stream, offset, length, &mut reply);
            }
            other => {
                let text = format!("viewer sends the unknown command {other}");
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
        }
        reply.send(&mut self.out)?;
        self.out.flush()
    }

    fn look(&mut self) -> io::Result<()> {
        Ok(self.feeds.look()?)
    }

    fn is_ended(&self) -> bool {
        self.server.ended.load(Ordering::Relaxed)
    }

    fn session_name(&self) -> String {
        let name = self.server.root.canonicalize().ok();
        let name = name.as_deref().and_then(Path::file_name).unwrap_or_default();
        // A slash would be part of the viewer's address.
        name.to_string_lossy().into_owned()
    }

    /// The streams that the viewer does not know. With the first one of a trace comes its metadata.
    fn new_streams(&mut self) -> Vec<Stream> {
        let mut streams = Vec::new();
        for (trace, feed) in self.feeds.traces.iter_mut().enumerate() {
            let path = feed.directory().to_string_lossy().into_owned();
            let is_known = feed.streams.iter().any(|stream| stream.is_announced);
            if !is_known && !feed.streams.is_empty() {
                streams.push(Stream {
                    id: stream_id(trace, None),
                    trace: trace as u64 + 1,
                    is_metadata: true,
                    path: path.clone(),
                    channel: "metadata".to_owned(),
                });
            }
            for (index, stream) in feed.streams.iter_mut().enumerate() {
                if !std::mem::replace(&mut stream.is_announced, true) {
                    let name = stream.path.file_name().unwrap_or_default();
                    streams.push(Stream {
                        id: stream_id(trace, Some(index)),
                        trace: trace as u64 + 1,
                        is_metadata: false,
                        path: path.clone(),
                        channel: name.to_string_lossy().into_owned(),
                    });
                }
            }
        }
        streams
    }

    fn metadata(&mut self, stream: u64, reply: &mut Message) -> io::Result<()> {
        self.look()?;
        match self.trace(stream) {
            Some(feed) if feed.metadata.is_pending() => {
                let bytes = feed.metadata.take();
                reply.u64(bytes.len() as u64).u32(wire::OK).bytes(&bytes);
            }
            Some(_) => _ = reply.u64(0).u32(wire::NO_NEW_METADATA),
            None => _ = reply.u64(0).u32(wire::METADATA_ERROR),
        }
        Ok(())
    }

    fn trace(&mut self, stream: u64) -> Option<&mut TraceFeed> {
        self.feeds.traces.get_mut((stream >> 32) as usize)
    }

    fn next_index(&mut self, stream: u64) -> io::Result<Index> {
        // Before the look: what is there then is all.
        let ended = self.is_ended();
        self.look()?;
        let idle = (!ended).then_some(self.server.options.idle);
        let mut index = Index::default();
        let is_new = |feed: &TraceFeed| feed.streams.iter().any(|stream| !stream.is_announced);
        if self.feeds.traces.iter().any(is_new) {
            index.flags |= wire::NEW_STREAM;
        }
        let place = (stream as u32 as usize).checked_sub(1);
        let feed = self.trace(stream);
        let Some((feed, place)) = feed.zip(place).filter(|(feed, place)| *place < feed.streams.len()) else {
            index.status = wire::INDEX_ERROR;
            return Ok(index);
        };
        let next = feed.next(place, idle)?;
        if feed.metadata.is_pending() {
            index.flags |= wire::NEW_METADATA;
        }
        match next {
            Next::Packet(packet, class) => {
                let (Some(begin), Some(end)) = (packet.begin, packet.end) else {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "packets without times cannot be served",
                    ));
                };
                index = Index {
                    offset: packet.offset,
                    packet_bits: packet.packet_bits,
                    content_bits: packet.content_bits,
                    begin,
                    end,
                    discarded: packet.events_discarded.unwrap_or(0),
                    class,
                    status: wire::OK,
                    flags: index.flags,
                };
            }
            Next::NotBefore(end, class) => {
                (index.end, index.class, index.status) = (end, class, wire::INDEX_INACTIVE);
            }
            Next::Nothing => index.status = if ended { wire::INDEX_HUP } else { wire::INDEX_RETRY },
        }
        Ok(index)
    }

    fn packet(&mut self, stream: u64, offset: u64, length: u32, reply: &mut Message) {
        let place = (stream as u32 as usize).checked_sub(1);
        let found = self
            .trace(stream)
            .zip(place)
            .and_then(|(feed, place)| feed.streams.get(place));
        match found.map(|stream| stream.bytes(offset, u64::from(length))) {
            Some(Ok(bytes)) => _ = reply.u32(wire::OK).u32(length).u32(0).bytes(&bytes),
            _ => _ = reply.u32(wire::PACKET_ERROR).u32(0).u32(0),
        }
    }
}

/// What a viewer's address calls the host of the session.
const HOST: &str = "backtrail";
/// In microseconds, what a relay daemon says of a live session.
const LIVE_TIMER: u32 = 100_000;
