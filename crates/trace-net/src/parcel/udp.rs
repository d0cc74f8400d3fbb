//! Parcels as trains of datagrams. Each parcel has a number; the receiver asks again for what it
//! misses, as long as the sender still has it.

use backtrail_wire::{Bytes, Endian};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::thread::sleep;
use std::time::{Duration, Instant};

const MAGIC: u32 = 0x4254_5544;
const HEADER: usize = 32;
/// Bytes of a parcel in a datagram: what an Ethernet frame holds with its headers.
const PIECE: usize = 1368;
/// Stands for all pieces of a parcel.
const ALL: u32 = u32::MAX;
/// The most pieces that are asked for at once.
const MOST_ASKED: usize = 100;
/// No parcel may be further ahead of the one that is waited for.
const MOST_AHEAD: u64 = 1 << 16;
/// Bytes that the sender keeps for those who ask again, and that a receiver keeps out of order.
const WINDOW_BYTES: usize = 64 << 20;
/// Bytes on the way that were not confirmed: less than a socket's buffer.
const MOST_UNCONFIRMED: usize = 128 << 10;
/// The time to wait for a confirmation before sending more.
const PATIENCE: Duration = Duration::from_millis(200);
/// The time between two questions, or two states.
const ROUND: Duration = Duration::from_millis(10);
/// The time between two repetitions of the last parcels, as long as nobody answers.
const REPETITION: Duration = Duration::from_millis(50);
/// The time to wait for the receiver's last word.
const FAREWELL: Duration = Duration::from_secs(10);

/// The kinds of datagrams, and what their header's fields are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    /// A piece of a parcel: the parcel's number, the piece's, their count.
    Piece = 1,
    /// How many parcels there are; whether there will be no more.
    State = 2,
    /// The parcel that is waited for; the pieces that are missing follow.
    Wanted = 3,
    /// The receiver has all, or, if its piece is not 0, has given up what is missing.
    Done = 4,
}

/// A datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'b> {
    kind: Kind,
    pub(super) session: u64,
    number: u64,
    piece: u32,
    pieces: u32,
    payload: &'b [u8],
}

impl<'b> Datagram<'b> {
    /// `None` if it is not one of ours.
    pub(crate) fn decode(bytes: &'b [u8]) -> Option<Datagram<'b>> {
        let mut cursor = Bytes::new(bytes, Endian::Little).cursor(0);
        if cursor.u32().ok()? != MAGIC {
            return None;
        }
        let kind = match cursor.u32().ok()? {
            1 => Kind::Piece,
            2 => Kind::State,
            3 => Kind::Wanted,
            4 => Kind::Done,
            _ => return None,
        };
        Some(Datagram {
            kind,
            session: cursor.u64().ok()?,
            number: cursor.u64().ok()?,
            piece: cursor.u32().ok()?,
            pieces: cursor.u32().ok()?,
            payload: bytes.get(HEADER..)?,
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.payload.len());
        out.extend(MAGIC.to_le_bytes());
        out.extend((self.kind as u32).to_le_bytes());
        out.extend(self.session.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.extend(self.piece.to_le_bytes());
        out.extend(self.pieces.to_le_bytes());
        out.extend(self.payload);
        out
    }
}

/// The sender's end.
#[derive(Debug)]
pub(super) struct Train {
    socket: UdpSocket,
    session: u64,
    /// The number of the next parcel.
    next: u64,
    /// The last parcels, the last one being that before `next`.
    kept: VecDeque<Vec<u8>>,
    kept_bytes: usize,
    /// The receiver has all parcels before this one.
    confirmed: u64,
    heard: bool,
    /// The receiver's last word: whether it has all.
    done: Option<bool>,
    stated: Instant,
    repeated: u64,
}

impl Train {
    pub(super) fn open(address: &str, session: u64) -> io::Result<Train> {
        let is_v6 = address.starts_with('[');
        let socket = UdpSocket::bind(if is_v6 { "[::]:0" } else { "0.0.0.0:0" })?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Train {
            socket,
            session,
            next: 0,
            kept: VecDeque::new(),
            kept_bytes: 0,
            confirmed: 0,
            heard: false,
            done: None,
            stated: Instant::now(),
            repeated: 0,
        })
    }

    pub(super) fn send(&mut self, sealed: Vec<u8>) -> io::Result<()> {
        if sealed.len() > WINDOW_BYTES {
            let text = "packet is too long for datagrams; tcp:// takes it";
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        self.kept_bytes += sealed.len();
        self.kept.push_back(sealed);
        self.next += 1;
        while self.kept_bytes > WINDOW_BYTES
            && let Some(old) = self.kept.pop_front()
        {
            self.kept_bytes -= old.len();
        }
        self.transmit(self.next - 1, ALL)?;
        self.wait_for_room()
    }

    /// Sends one piece of a parcel, or all; nothing if it is no longer there.
    fn transmit(&mut self, number: u64, only: u32) -> io::Result<()> {
        let first = self.next - self.kept.len() as u64;
        let place = number.checked_sub(first).and_then(|place| usize::try_from(place).ok());
        let Some(sealed) = place.and_then(|place| self.kept.get(place)) else {
            return Ok(());
        };
        let pieces = sealed.len().div_ceil(PIECE).max(1) as u32;
        for (piece, payload) in (0..).zip(sealed.chunks(PIECE)) {
            if only != ALL && only != piece {
                continue;
            }
            let datagram = Datagram {
                kind: Kind::Piece,
                session: self.session,
                number,
                piece,
                pieces,
                payload,
            };
            put(&self.socket, &datagram.encode())?;
            if piece % 32 == 31 {
                sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Reads what the receiver says, and states how far this end is.
    pub(super) fn service(&mut self) -> io::Result<()> {
        let mut buffer = [0; 2048];
        let mut wanted = Vec::new();
        loop {
            let length = match self.socket.recv(&mut buffer) {
                Ok(length) => length,
                Err(error) if is_passing(&error) => break,
                Err(error) => return Err(error),
            };
            let datagram = buffer.get(..length).and_then(Datagram::decode);
            let Some(datagram) = datagram.filter(|datagram| datagram.session == self.session) else {
                continue;
            };
            match datagram.kind {
                Kind::Wanted => {
                    self.heard = true;
                    self.confirmed = self.confirmed.max(datagram.number.min(self.next));
                    let payload = Bytes::new(datagram.payload, Endian::Little);
                    let mut cursor = payload.cursor(0);
                    while let (Ok(number), Ok(piece)) = (cursor.u64(), cursor.u32()) {
                        wanted.push((number, piece));
                    }
                }
                Kind::Done => self.done = Some(datagram.piece == 0),
                Kind::Piece | Kind::State => {}
            }
        }
        for (number, piece) in wanted {
            self.repeated += 1;
            self.transmit(number, piece)?;
        }
        if self.stated.elapsed() >= ROUND {
            self.state(false)?;
        }
        Ok(())
    }

    fn state(&mut self, ended: bool) -> io::Result<()> {
        self.stated = Instant::now();
        let state = Datagram {
            kind: Kind::State,
            session: self.session,
            number: self.next,
            piece: u32::from(ended),
            pieces: 0,
            payload: &[],
        };
        put(&self.socket, &state.encode())
    }

    /// Waits until not too much is on the way, but not for ever: perhaps nobody answers.
    fn wait_for_room(&mut self) -> io::Result<()> {
        self.service()?;
        let begin = Instant::now();
        let patience = if self.heard { PATIENCE } else { ROUND };
        while self.unconfirmed() > MOST_UNCONFIRMED && begin.elapsed() < patience {
            sleep(Duration::from_millis(1));
            self.service()?;
        }
        Ok(())
    }

    fn unconfirmed(&self) -> usize {
        let count = usize::try_from(self.next - self.confirmed).unwrap_or(usize::MAX);
        self.kept.iter().rev().take(count).map(Vec::len).sum()
    }

    /// Waits for the receiver's last word; returns how often it asked for something again. Where
    /// its words do not arrive, it cannot ask: the parcels from number `last` on are repeated then.
    pub(super) fn finish(mut self, last: u64) -> io::Result<u64> {
        let begin = Instant::now();
        let mut repeated = begin;
        while begin.elapsed() < FAREWELL {
            self.state(true)?;
            sleep(ROUND);
            if !self.heard && repeated.elapsed() >= REPETITION {
                for number in last..self.next {
                    self.transmit(number, ALL)?;
                }
                repeated = Instant::now();
            }
            self.service()?;
            match self.done {
                Some(true) => return Ok(self.repeated),
                Some(false) => {
                    let text = "packets did not arrive or could not be stored; the receiver names them";
                    return Err(io::Error::other(text));
                }
                None => {}
            }
        }
        let text = match self.heard {
            true => "the receiver did not confirm all",
            false => "no answer from the receiver: whether anything arrived is unknown",
        };
        Err(io::Error::new(ErrorKind::TimedOut, text))
    }
}

/// What a datagram socket says that is not the end of it: nothing there, no room, nobody listens.
fn is_passing(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, ConnectionReset, Interrupted, WouldBlock};
    matches!(
        error.kind(),
        WouldBlock | Interrupted | ConnectionRefused | ConnectionReset
    )
}

fn put(socket: &UdpSocket, bytes: &[u8]) -> io::Result<()> {
    match socket.send(bytes) {
        Ok(_) => Ok(()),
        // A datagram that was not sent is one that was lost.
        Err(error) if is_passing(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The receiver's end of one session: puts parcels together, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// The parcel that is waited for.
    next: u64,
    /// Parcels that exist, as far as is known.
    known: u64,
    ended: bool,
    parcels: BTreeMap<u64, Partial>,
    bytes: usize,
    asked: Option<Instant>,
    /// When something last came, and whether that was after the last answer.
    heard: Option<Instant>,
    unanswered: bool,
    /// Datagrams that came twice, and that came after later ones.
    pub(super) duplicates: u64,
    pub(super) reordered: u64,
    last: Option<(u64, u32)>,
}

/// A parcel that is not complete, or waits for its turn.
#[derive(Debug)]
struct Partial {
    since: Instant,
    /// Their count, once one came.
    pieces: Option<u32>,
    parts: BTreeMap<u32, Vec<u8>>,
}

impl Partial {
    fn new() -> Partial {
        Partial {
            since: Instant::now(),
            pieces: None,
            parts: BTreeMap::new(),
        }
    }

    fn is_whole(&self) -> bool {
        self.pieces.is_some_and(|pieces| self.parts.len() == pieces as usize)
    }
}

impl Assembly {
    /// Takes a datagram of this session.
    pub(super) fn take(&mut self, datagram: &Datagram<'_>) {
        (self.heard, self.unanswered) = (Some(Instant::now()), true);
        match datagram.kind {
            Kind::State => {
                self.ended |= datagram.piece != 0;
                self.learn(datagram.number);
            }
            Kind::Piece => self.take_piece(datagram),
            Kind::Wanted | Kind::Done => {}
        }
    }

    /// There are this many parcels.
    fn learn(&mut self, known: u64) {
        let known = known.min(self.next.saturating_add(MOST_AHEAD));
        for number in self.known.max(self.next)..known {
            self.parcels.entry(number).or_insert_with(Partial::new);
        }
        self.known = self.known.max(known);
    }

    fn take_piece(&mut self, datagram: &Datagram<'_>) {
        let Datagram {
            number,
            piece,
            pieces,
            payload,
            ..
        } = *datagram;
        let fits = payload.len() <= PIECE && self.bytes + payload.len() <= WINDOW_BYTES;
        let is_near = number < self.next.saturating_add(MOST_AHEAD);
        if !fits || !is_near || piece >= pieces || pieces as usize > WINDOW_BYTES / PIECE + 1 {
            return;
        }
        if self.last.is_some_and(|last| (number, piece) < last) {
            self.reordered += 1;
        }
        self.last = self.last.max(Some((number, piece)));
        if number < self.next {
            self.duplicates += 1;
            return;
        }
        self.learn(number + 1);
        let partial = self.parcels.entry(number).or_insert_with(Partial::new);
        if *partial.pieces.get_or_insert(pieces) != pieces {
            return;
        }
        match partial.parts.insert(piece, payload.to_vec()) {
            Some(_) => self.duplicates += 1,
            None => self.bytes += payload.len(),
        }
    }

    /// The next parcel and its number; parcels that are missing for longer than `window` are given
    /// up.
    pub(super) fn next(&mut self, window: Duration) -> Option<(u64, Vec<u8>)> {
        while let Some(first) = self.parcels.first_entry() {
            let number = *first.key();
            if !first.get().is_whole() && first.get().since.elapsed() < window {
                return None;
            }
            let partial = first.remove();
            self.next = number + 1;
            self.bytes -= partial.parts.values().map(Vec::len).sum::<usize>();
            if partial.is_whole() {
                return Some((number, partial.parts.into_values().flatten().collect()));
            }
        }
        None
    }

    /// What is to be sent to the sender now, if anything. `is_complete`: nothing is missing so far.
    pub(super) fn answer(&mut self, session: u64, is_complete: bool) -> Option<Vec<u8>> {
        let nothing = self.parcels.is_empty() && !self.unanswered;
        if nothing || self.asked.is_some_and(|asked| asked.elapsed() < ROUND) {
            return None;
        }
        self.unanswered = false;
        self.asked = Some(Instant::now());
        let mut payload = Vec::new();
        // What came just now may still be on its way.
        let late = self
            .parcels
            .iter()
            .filter(|(_, partial)| partial.since.elapsed() >= ROUND / 2);
        let missing = late.flat_map(|(&number, partial)| {
            let absent = move |piece: &u32| !partial.parts.contains_key(piece);
            let pieces = (0..partial.pieces.unwrap_or(0)).filter(absent);
            let all = partial.pieces.is_none().then_some(ALL);
            pieces.chain(all).map(move |piece| (number, piece))
        });
        for (number, piece) in missing.take(MOST_ASKED) {
            payload.extend(number.to_le_bytes());
            payload.extend(piece.to_le_bytes());
        }
        let is_done = self.is_done();
        let answer = Datagram {
            kind: if is_done { Kind::Done } else { Kind::Wanted },
            session,
            number: self.next,
            piece: u32::from(is_done && !is_complete),
            pieces: 0,
            payload: &payload,
        };
        Some(answer.encode())
    }

    /// Whether the sender has been silent for this time.
    pub(super) fn is_silent(&self, time: Duration) -> bool {
        self.heard.is_none_or(|heard| heard.elapsed() >= time)
    }

    /// Whether all parcels of a session that has ended came, or were given up.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.next >= self.known
    }
}
