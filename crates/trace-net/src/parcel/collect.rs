//! Receives the traces of senders.

pub use super::store::Gap;
use super::store::Store;
use super::udp::Assembly;
use super::{Datagram, Parcel, Secret, Transport, seal, tcp};
use std::collections::HashMap;
use std::io::{self, BufReader, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The most senders at a time.
const MOST_SENDERS: usize = 256;
/// The time between two looks for senders.
const PAUSE: Duration = Duration::from_millis(5);

/// A sender that is silent for this time has left.
const SILENCE: Duration = Duration::from_millis(300);
/// The time for which senders that stay are answered.
const FAREWELL: Duration = Duration::from_secs(3);

/// How parcels are received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CollectorOptions {
    /// Only what was encrypted with this key is taken.
    pub secret: Option<Secret>,
    /// Over UDP, the time to wait for what is missing.
    pub window: Duration,
    /// End with the first session instead of waiting for others.
    pub once: bool,
    /// Over UDP, a sender that is silent for this time has left without a word. `once` does not
    /// wait for it any longer.
    pub patience: Duration,
}

impl Default for CollectorOptions {
    fn default() -> CollectorOptions {
        CollectorOptions {
            secret: None,
            window: Duration::from_secs(2),
            once: false,
            patience: Duration::from_secs(10),
        }
    }
}

/// What was received, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Sessions of senders.
    pub sessions: u64,
    /// Those that did not end as they should.
    pub broken: u64,
    /// Streams.
    pub streams: u64,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that did not come.
    pub gaps: Vec<Gap>,
    /// Datagrams that came twice.
    pub duplicates: u64,
    /// Datagrams that came after later ones.
    pub reordered: u64,
    /// Parcels that were not encrypted with the key, or malformed.
    pub refused: u64,
    /// Traces whose last metadata could not be written.
    pub unwritten: u64,
}

impl Report {
    fn add(&mut self, session: Session) {
        self.sessions += 1;
        self.broken += u64::from(!session.ended);
        self.streams += session.store.streams() as u64;
        self.packets += session.store.packets;
        self.bytes += session.store.bytes;
        self.duplicates += session.assembly.duplicates;
        self.reordered += session.assembly.reordered;
        self.refused += session.refused;
        self.unwritten += session.store.unwritten() as u64;
        self.gaps.extend(session.store.gaps);
    }
}

/// Receives traces and writes them below a directory.
#[derive(Debug)]
pub struct Collector {
    listener: Listener,
    root: PathBuf,
    options: CollectorOptions,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

/// A sender, as far as it is known.
struct Session {
    store: Store,
    assembly: Assembly,
    peer: SocketAddr,
    ended: bool,
    refused: u64,
    /// The last parcel was refused or could not be stored: the error was reported.
    fails: bool,
}

impl Session {
    fn new(root: &Path, peer: SocketAddr) -> Session {
        Session {
            store: Store::new(root),
            assembly: Assembly::default(),
            peer,
            ended: false,
            refused: 0,
            fails: false,
        }
    }

    /// Stores a parcel. What cannot be stored is missing later; the error is returned once.
    fn take(&mut self, secret: Option<&Secret>, session: u64, number: u64, sealed: &[u8]) -> io::Result<()> {
        let opened = seal::open(secret, session, number, sealed);
        let parcel = opened.and_then(|bytes| Parcel::decode(&bytes).ok_or(seal::OpenError::Malformed));
        let result = match parcel {
            Ok(parcel) => {
                self.ended |= matches!(parcel, Parcel::End { .. });
                self.store.put(parcel)
            }
            Err(error) => {
                self.refused += 1;
                let text = format!("{}: {error}", self.peer);
                Err(io::Error::new(ErrorKind::InvalidData, text))
            }
        };
        let failed = std::mem::replace(&mut self.fails, result.is_err());
        result.or_else(|error| if failed { Ok(()) } else { Err(error) })
    }

    /// Stores what came over UDP; what is missing for longer than `window` is given up.
    fn take_all(&mut self, secret: Option<&Secret>, id: u64, window: Duration, tell: &mut impl FnMut(io::Error)) {
        while let Some((number, sealed)) = self.assembly.next(window) {
            if let Err(error) = self.take(secret, id, number, &sealed) {
                tell(error);
            }
        }
    }

    /// Whether nothing more is to be expected from a sender over UDP.
    fn is_over(&self, patience: Duration) -> bool {
        self.assembly.is_done() || self.assembly.is_silent(patience)
    }
}

/// What the thread of a connection says.
enum News {
    Parcel(u64, u64, Vec<u8>, SocketAddr),
    End(u64, SocketAddr),
    Failed(SocketAddr, io::Error),
}

/// The connections that are open. They are closed once all that came is stored: senders wait for
/// that.
type Open = HashMap<SocketAddr, TcpStream>;

impl Collector {
    /// Listens at this address.
    ///
    /// # Errors
    ///
    /// Those of `bind(2)`.
    pub fn bind(transport: Transport, address: &str, root: &Path, options: CollectorOptions) -> io::Result<Collector> {
        let listener = match transport {
            Transport::Tcp => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Listener::Tcp(listener)
            }
            Transport::Udp => {
                let socket = UdpSocket::bind(address)?;
                socket.set_read_timeout(Some(PAUSE))?;
                Listener::Udp(socket)
            }
        };
        Ok(Collector {
            listener,
            root: root.to_owned(),
            options,
        })
    }

    /// The address at which it listens.
    ///
    /// # Errors
    ///
    /// Those of `getsockname(2)`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Udp(socket) => socket.local_addr(),
        }
    }

    /// Receives as long as `go_on` returns true. `tell` gets the errors of single senders.
    ///
    /// # Errors
    ///
    /// The socket fails.
    pub fn run(&self, go_on: impl FnMut() -> bool, tell: impl FnMut(io::Error)) -> io::Result<Report> {
        let mut sessions = HashMap::new();
        let mut report = Report::default();
        match &self.listener {
            Listener::Tcp(listener) => self.connections(listener, &mut sessions, go_on, tell)?,
            Listener::Udp(socket) => self.datagrams(socket, (&mut sessions, &mut report), go_on, tell)?,
        }
        sessions.into_values().for_each(|session| report.add(session));
        Ok(report)
    }

    fn datagrams(
        &self,
        socket: &UdpSocket,
        (sessions, report): (&mut HashMap<u64, Session>, &mut Report),
        mut go_on: impl FnMut() -> bool,
        mut tell: impl FnMut(io::Error),
    ) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        let mut is_last = false;
        let mut done = None;
        loop {
            match socket.recv_from(&mut buffer) {
                Ok((length, peer)) => {
                    let datagram = buffer.get(..length).and_then(Datagram::decode);
                    if sessions.len() >= MOST_SENDERS {
                        let (secret, patience) = (self.options.secret.as_ref(), self.options.patience);
                        for (id, mut session) in sessions.extract_if(|_, session| session.is_over(patience)) {
                            session.take_all(secret, id, Duration::ZERO, &mut tell);
                            report.add(session);
                        }
                    }
                    if let Some(datagram) = datagram
                        && (sessions.len() < MOST_SENDERS || sessions.contains_key(&datagram.session))
                    {
                        let fresh = || Session::new(&self.root, peer);
                        let session = sessions.entry(datagram.session).or_insert_with(fresh);
                        if session.peer == peer {
                            session.assembly.take(&datagram);
                        }
                    }
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
            let window = if is_last { Duration::ZERO } else { self.options.window };
            for (&id, session) in sessions.iter_mut() {
                session.take_all(self.options.secret.as_ref(), id, window, &mut tell);
                let is_complete = session.ended && session.store.is_complete();
                // Whoever sends what is refused must not take it for stored.
                if session.refused == 0
                    && let Some(answer) = session.assembly.answer(id, is_complete)
                {
                    // Lost or not: it is sent again.
                    let _ = socket.send_to(&answer, session.peer);
                }
            }
            if is_last {
                return Ok(());
            }
            let patience = self.options.patience;
            let over = !sessions.is_empty() && sessions.values().all(|session| session.is_over(patience));
            let since = over.then(|| *done.get_or_insert_with(Instant::now));
            // Senders repeat that they have ended until they know that all is here.
            let silent = sessions.values().all(|session| session.assembly.is_silent(SILENCE));
            let left = since.is_some_and(|since| silent || since.elapsed() >= FAREWELL);
            is_last = !go_on() || (self.options.once && left);
        }
    }

    fn connections(
        &self,
        listener: &TcpListener,
        sessions: &mut HashMap<u64, Session>,
        mut go_on: impl FnMut() -> bool,
        mut tell: impl FnMut(io::Error),
    ) -> io::Result<()> {
        thread::scope(|scope| {
            // Dropped before the threads are waited for: none must wait for room in it.
            let (news, inbox) = sync_channel(16);
            let mut open = Open::new();
            let result = loop {
                let accepted = listener.accept();
                let waits = accepted.is_ok();
                match accepted {
                    Ok((socket, peer)) if open.len() < MOST_SENDERS => match socket.try_clone() {
                        Ok(copy) => {
                            open.insert(peer, copy);
                            let news = news.clone();
                            scope.spawn(move || connection(socket, peer, &news));
                        }
                        Err(error) => tell(error),
                    },
                    Ok(_) => tell(io::Error::other("too many senders")),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => break Err(error),
                }
                self.take_news(&inbox, sessions, &mut open, &mut tell);
                // Another sender may wait behind the one that was just accepted.
                let over = !sessions.is_empty() && open.is_empty() && !waits;
                if !go_on() || (self.options.once && over) {
                    break Ok(());
                }
            };
            for socket in open.values() {
                // It may be closed already.
                let _ = socket.shutdown(std::net::Shutdown::Both);
            }
            // What is still in the channel.
            while !open.is_empty() {
                self.take_news(&inbox, sessions, &mut open, &mut tell);
            }
            result
        })
    }

    fn take_news(
        &self,
        inbox: &Receiver<News>,
        sessions: &mut HashMap<u64, Session>,
        open: &mut Open,
        tell: &mut impl FnMut(io::Error),
    ) {
        let mut next = inbox.recv_timeout(PAUSE).ok();
        while let Some(news) = next {
            match news {
                News::Parcel(id, number, sealed, peer) => {
                    let session = sessions.entry(id).or_insert_with(|| Session::new(&self.root, peer));
                    if let Err(error) = session.take(self.options.secret.as_ref(), id, number, &sealed) {
                        tell(error);
                    }
                }
                News::End(id, peer) => {
                    let is_taken =
                        |session: &Session| session.ended && session.refused == 0 && session.store.is_complete();
                    if let Some(socket) = open.get(&peer).filter(|_| sessions.get(&id).is_some_and(is_taken)) {
                        // Without it, the sender knows that something failed.
                        let _ = tcp::confirm(socket);
                    }
                    close(open, peer);
                }
                News::Failed(peer, error) => {
                    close(open, peer);
                    tell(error);
                }
            }
            next = inbox.try_recv().ok();
        }
    }
}

fn close(open: &mut Open, peer: SocketAddr) {
    if let Some(socket) = open.remove(&peer) {
        // The sender may have closed it already.
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}

/// Receives the parcels of one connection. Whoever drops the channel's other end wants no more.
fn connection(socket: TcpStream, peer: SocketAddr, news: &SyncSender<News>) {
    let receive = || -> io::Result<u64> {
        socket.set_nonblocking(false)?;
        let mut input = BufReader::new(&socket);
        let session = tcp::greet(&mut input)?;
        let mut number = 0;
        while let Some(sealed) = tcp::next(&mut input)? {
            if news.send(News::Parcel(session, number, sealed, peer)).is_err() {
                break;
            }
            number += 1;
        }
        Ok(session)
    };
    let last = match receive() {
        Ok(session) => News::End(session, peer),
        Err(error) => News::Failed(peer, io::Error::new(error.kind(), format!("{peer}: {error}"))),
    };
    let _ = news.send(last);
}
