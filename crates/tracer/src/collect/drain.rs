//! From one process's rings to its trace.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use backtrail_trace::constants::{METADATA_FILE, PACKET_MAGIC};
use backtrail_trace::description::Clock;
use backtrail_trace::{json2, tsdl};

use super::describe::description;
use super::{Unwritten, append_to, make_private_folder};
use crate::clock;
use crate::layout::{LENGTH_BITS, POSITION_MASK, control, flag, head, packet};
use crate::map::Map;
use crate::protocol::{Piece, Shape, piece, time_of};

/// Bytes of a packet's header and context in the trace.
const HEADER_BYTES: usize = 4 + 16 + 4 + 8 + 6 * 8 + 4;

/// What a stream's file has, and where the ring continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    drained: u64,
    file_bytes: u64,
    sequence: u64,
    /// The last time in the file.
    last: u64,
    /// Discarded events that the file has reported.
    reported: u64,
}

impl State {
    const PLACES: [usize; 5] = [
        control::DRAINED,
        control::FILE_BYTES,
        control::SEQUENCE,
        control::LAST,
        control::REPORTED,
    ];

    fn load(map: &Map, at: usize) -> State {
        let [drained, file_bytes, sequence, last, reported] =
            State::PLACES.map(|place| map.word(at + place - control::DRAINED).load(Ordering::Acquire));
        State {
            drained,
            file_bytes,
            sequence,
            last,
            reported,
        }
    }

    fn store(&self, map: &Map, at: usize) {
        let values = [self.drained, self.file_bytes, self.sequence, self.last, self.reported];
        for (place, value) in State::PLACES.into_iter().zip(values) {
            map.word(at + place - control::DRAINED).store(value, Ordering::Release);
        }
    }
}

/// Writes the trace of one process.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) map: Map,
    file: File,
    /// The folder of traces, and this trace's own.
    output: PathBuf,
    directory: PathBuf,
    pub(crate) chunk: u64,
    /// Bytes written to the current trace, and those after which the next one begins.
    written: u64,
    pub(crate) rotate_bytes: Option<u64>,
    ctf2: bool,
    /// Classes in the metadata that was written; `None` before.
    described: Option<usize>,
    /// Nanoseconds over which the clock's rate was measured for it.
    measured: u64,
    streams: Vec<Option<File>>,
    buffer: Vec<u8>,
}

impl Drain {
    pub(crate) fn new(map: Map, file: File, output: &Path, ctf2: bool, chunk: u64) -> Drain {
        let mut drain = Drain {
            map,
            file,
            output: output.to_owned(),
            directory: PathBuf::new(),
            chunk,
            written: 0,
            rotate_bytes: None,
            ctf2,
            described: None,
            measured: 0,
            streams: Vec::new(),
            buffer: Vec::new(),
        };
        drain.begin(chunk);
        drain
    }

    /// Continues the trace of a collector that has died.
    pub(crate) fn resume(&mut self) -> io::Result<()> {
        for ring in 0..self.map.geometry.rings {
            let at = self.map.geometry.control(ring);
            let (now, next) = (
                State::load(&self.map, at + control::DRAINED),
                State::load(&self.map, at + control::NEXT),
            );
            let path = self.directory.join(stream_name(ring));
            let Ok(metadata) = fs::metadata(&path) else { continue };
            // The last packet is in the file, or only a part of it.
            let state = if metadata.len() == next.file_bytes { next } else { now };
            let state = State {
                file_bytes: state.file_bytes.min(metadata.len()),
                ..state
            };
            File::options().write(true).open(&path)?.set_len(state.file_bytes)?;
            state.store(&self.map, at + control::DRAINED);
        }
        Ok(())
    }

    fn begin(&mut self, chunk: u64) {
        let mut comm = [0; head::COMM_BYTES];
        self.map.read(head::COMM, &mut comm);
        let name: String = String::from_utf8_lossy(&comm)
            .chars()
            .take_while(|&c| c != '\0')
            .map(|c| {
                if c.is_ascii_alphanumeric() || "-_".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        let pid = self.map.word(head::PID).load(Ordering::Relaxed);
        let folder = match chunk {
            0 => self.output.clone(),
            chunk => self.output.join(format!("{chunk:06}")),
        };
        // An earlier process may have had this name and number.
        let names = (1u32..).map(|number| match number {
            1 => format!("{name}-{pid}"),
            _ => format!("{name}-{pid}.{number}"),
        });
        let mut directories = names.map(|name| folder.join(name));
        self.directory = directories.find(|directory| self.may_use(directory)).unwrap_or(folder);
        self.chunk = chunk;
        self.written = 0;
        self.described = None;
        self.streams.clear();
        self.streams.resize_with(self.map.geometry.rings, || None);
    }

    /// Whether the directory does not exist, or has this process's trace.
    fn may_use(&self, directory: &Path) -> bool {
        let mut uuid = [0; 16];
        self.map.read(head::UUID, &mut uuid);
        match backtrail_trace::Trace::open(directory) {
            Ok(trace) => trace.description().uuid == Some(uuid),
            Err(_) => !directory.exists(),
        }
    }

    /// Ends this trace and begins the next one.
    pub(crate) fn rotate(&mut self, chunk: u64) -> io::Result<()> {
        self.finish()?;
        self.begin(chunk);
        self.start_files();
        Ok(())
    }

    /// The files of this trace are new, whatever an earlier collector has written.
    pub(crate) fn start_files(&mut self) {
        for ring in 0..self.map.geometry.rings {
            let at = self.map.geometry.control(ring) + control::DRAINED;
            let state = State::load(&self.map, at);
            // Rings that were never used stay untouched.
            if state.file_bytes != 0 {
                State { file_bytes: 0, ..state }.store(&self.map, at);
            }
        }
    }

    fn shape(&self) -> Shape {
        shape(&self.map)
    }

    /// Writes what the rings have, with `partial` also packets that are not full. Returns the
    /// bytes.
    pub(crate) fn round(&mut self, partial: bool) -> io::Result<u64> {
        let mut written = 0;
        // Classes that these events have are in the table by now.
        let positions: Vec<u64> = (0..self.map.geometry.rings)
            .map(|ring| {
                self.map
                    .word(self.map.geometry.control(ring) + control::POSITION)
                    .load(Ordering::Acquire)
            })
            .collect();
        for (ring, &word) in positions.iter().enumerate() {
            if word != 0 {
                let before = self.written;
                self.ring(ring, word, partial)?;
                written += self.written - before;
                if self.rotate_bytes.is_some_and(|limit| self.written >= limit) {
                    self.rotate(self.chunk + 1)?;
                }
            }
        }
        Ok(written)
    }

    fn ring(&mut self, ring: usize, word: u64, partial: bool) -> io::Result<()> {
        let (shape, at) = (self.shape(), self.map.geometry.control(ring));
        let data = self.map.geometry.data(ring);
        let map = self.map;
        let mut state = State::load(&map, at + control::DRAINED);
        // A flight recorder that a collector has found: the oldest packets are gone.
        if map.word(head::FLAGS).load(Ordering::Relaxed) & flag::OVERWRITE != 0 {
            state.drained = state.drained.max(oldest(&shape, word));
        }
        loop {
            let before = |next: u64| {
                Some(
                    map.word(data + (next & shape.ring_mask) as usize + packet::BEFORE)
                        .load(Ordering::Acquire),
                )
            };
            let Some(piece) = piece(&shape, state.drained, word, before).filter(|piece| piece.whole || partial) else {
                break;
            };
            let next_packet = piece.packet.wrapping_add(shape.packet_mask + 1) & POSITION_MASK;
            let discarded = match piece.whole {
                // As it was when the next one was started.
                true => map
                    .word(data + (next_packet & shape.ring_mask) as usize + packet::DISCARDED)
                    .load(Ordering::Relaxed),
                false => self.discarded(ring),
            };
            let continues = if piece.whole { next_packet } else { piece.to };
            if piece.to > piece.from {
                if state.file_bytes == 0 && discarded > state.reported {
                    let start = data + (piece.packet & shape.ring_mask) as usize;
                    let begin = map.word(start + packet::BEGIN).load(Ordering::Relaxed);
                    state = self.open_stream(ring, state, begin.max(state.last))?;
                }
                let next = self.packet(
                    ring,
                    &shape,
                    piece,
                    State {
                        drained: continues,
                        ..state
                    },
                    discarded,
                )?;
                state = self.append(ring, next)?;
            }
            state.drained = continues;
            state.store(&map, at + control::DRAINED);
            map.word(at + control::CONSUMED)
                .store(continues & !shape.packet_mask, Ordering::Release);
        }
        Ok(())
    }

    /// Events of a ring that were discarded so far.
    fn discarded(&self, ring: usize) -> u64 {
        let counted = self
            .map
            .word(self.map.geometry.control(ring) + control::DISCARDED)
            .load(Ordering::Acquire);
        match ring {
            0 => counted + self.map.word(head::UNREGISTERED).load(Ordering::Acquire),
            _ => counted,
        }
    }

    /// Makes a packet in the buffer; `state` is the one before, but for the position.
    fn packet(&mut self, ring: usize, shape: &Shape, piece: Piece, state: State, discarded: u64) -> io::Result<State> {
        let data = self.map.geometry.data(ring);
        let start = data + (piece.packet & shape.ring_mask) as usize;
        let begin = self.map.word(start + packet::BEGIN).load(Ordering::Relaxed);
        let tid = self.map.word(start + packet::TID).load(Ordering::Relaxed);
        let bytes = (piece.to - piece.from) as usize;
        self.buffer.clear();
        self.buffer.resize(HEADER_BYTES + bytes, 0);
        let Some((header, events)) = self.buffer.split_at_mut_checked(HEADER_BYTES) else {
            return Ok(state);
        };
        self.file
            .read_exact_at(events, (data as u64) + (piece.from & shape.ring_mask))?;
        let last_at = bytes - piece.last as usize;
        let last = events
            .get(last_at..)
            .and_then(|event| event.first_chunk())
            .map(|header| u64::from_ne_bytes(*header));
        let end = last.map_or(begin, |header| time_of(header, begin));
        let packet_begin = if piece.from == piece.packet + packet::BYTES as u64 {
            begin
        } else {
            state.last.max(begin)
        };
        // What a packet reports never decreases.
        let reported = discarded.max(state.reported);
        put_header(
            header,
            &self.map,
            ring,
            [
                packet_begin,
                end.max(packet_begin),
                (HEADER_BYTES + bytes) as u64 * 8,
                (HEADER_BYTES + bytes) as u64 * 8,
                state.sequence,
                reported,
            ],
            tid as u32,
        );
        Ok(State {
            drained: state.drained,
            file_bytes: state.file_bytes + (HEADER_BYTES + bytes) as u64,
            sequence: state.sequence + 1,
            last: end.max(packet_begin),
            reported,
        })
    }

    /// An empty packet before the first one that reports discarded events: readers count what each
    /// packet reports more than the one before.
    fn open_stream(&mut self, ring: usize, state: State, time: u64) -> io::Result<State> {
        self.empty(ring, State { last: time, ..state }, state.reported)
    }

    fn empty(&mut self, ring: usize, state: State, reported: u64) -> io::Result<State> {
        self.buffer.clear();
        self.buffer.resize(HEADER_BYTES, 0);
        let bits = HEADER_BYTES as u64 * 8;
        put_header(
            &mut self.buffer,
            &self.map,
            ring,
            [state.last, state.last, bits, bits, state.sequence, reported],
            0,
        );
        let next = State {
            file_bytes: state.file_bytes + HEADER_BYTES as u64,
            sequence: state.sequence + 1,
            reported,
            ..state
        };
        let next = self.append(ring, next)?;
        next.store(&self.map, self.map.geometry.control(ring) + control::DRAINED);
        Ok(next)
    }

    /// Appends the buffer to the stream's file.
    fn append(&mut self, ring: usize, next: State) -> io::Result<State> {
        self.describe(false)?;
        next.store(&self.map, self.map.geometry.control(ring) + control::NEXT);
        let Some(place) = self.streams.get_mut(ring) else {
            return Ok(next);
        };
        let file = match place {
            Some(file) => file,
            None => place.insert(append_to(&self.directory.join(stream_name(ring)))?),
        };
        if let Err(error) = file.write_all(&self.buffer) {
            // A part of a packet: what comes next must not follow it.
            file.set_len(next.file_bytes.saturating_sub(self.buffer.len() as u64))?;
            return Err(error);
        }
        self.written += self.buffer.len() as u64;
        Ok(next)
    }

    /// Writes the metadata if there are new classes, or if the clock's rate is known much better.
    fn describe(&mut self, last: bool) -> io::Result<()> {
        let mut classes = 0;
        crate::classes::each(&self.map, |at| {
            classes += 1 + usize::from(crate::classes::has_stacks(&self.map, at))
        });
        let number = |at| self.map.word(at).load(Ordering::Relaxed);
        let elapsed = clock::monotonic().saturating_sub(number(head::BASE_MONOTONIC));
        let is_precise = number(head::FREQUENCY) != 0 || elapsed < self.measured.saturating_mul(2);
        if self.described == Some(classes) && is_precise && !last {
            return Ok(());
        }
        let (clock, measured) = trace_clock(&self.map);
        self.measured = measured;
        self.described = Some(write_metadata(&self.map, clock, &self.directory, self.ctf2)?);
        Ok(())
    }

    /// Adds what the rings have, and the trace does not.
    pub(crate) fn add_unwritten(&self, sum: &mut Unwritten) {
        for ring in 0..self.map.geometry.rings {
            let at = self.map.geometry.control(ring);
            let state = State::load(&self.map, at + control::DRAINED);
            let word = self.map.word(at + control::POSITION).load(Ordering::Acquire);
            sum.bytes += (word >> LENGTH_BITS).wrapping_sub(state.drained) & POSITION_MASK;
            sum.discarded += self.discarded(ring).saturating_sub(state.reported);
        }
    }

    /// Completes the trace: discarded events that no packet has reported, and the clock's rate as
    /// measured until now.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        for ring in 0..self.map.geometry.rings {
            let at = self.map.geometry.control(ring);
            let state = State::load(&self.map, at + control::DRAINED);
            let discarded = self.discarded(ring);
            if discarded > state.reported {
                let base = self.map.word(head::BASE_TICKS).load(Ordering::Relaxed);
                let mut state = State {
                    last: state.last.max(base),
                    ..state
                };
                if state.file_bytes == 0 {
                    state = self.open_stream(ring, state, state.last)?;
                }
                self.empty(ring, state, discarded)?;
            }
        }
        match self.described {
            Some(_) => self.describe(true),
            None => Ok(()),
        }
    }
}

fn shape(map: &Map) -> Shape {
    Shape {
        packet_mask: map.geometry.packet_bytes as u64 - 1,
        ring_mask: map.geometry.ring_bytes() as u64 - 1,
        overwrite: false,
    }
}

/// The oldest packet that is whole: writers may be starting the one after the current.
fn oldest(shape: &Shape, word: u64) -> u64 {
    let current = (word >> LENGTH_BITS) & !shape.packet_mask;
    current.saturating_sub(shape.ring_mask + 1 - 2 * (shape.packet_mask + 1))
}

fn stream_name(ring: usize) -> String {
    format!("thread_{ring}")
}

fn put_header(out: &mut [u8], map: &Map, ring: usize, numbers: [u64; 6], tid: u32) {
    let mut uuid = [0; 16];
    map.read(head::UUID, &mut uuid);
    let parts = (PACKET_MAGIC as u32)
        .to_ne_bytes()
        .into_iter()
        .chain(uuid)
        .chain([0; 4])
        .chain((ring as u64).to_ne_bytes());
    let parts = parts
        .chain(numbers.into_iter().flat_map(u64::to_ne_bytes))
        .chain(tid.to_ne_bytes());
    out.iter_mut().zip(parts).for_each(|(place, byte)| *place = byte);
}

fn write_metadata(map: &Map, clock: Clock, directory: &Path, ctf2: bool) -> io::Result<usize> {
    let (description, classes) = description(map, clock);
    let broken = |error: String| io::Error::new(io::ErrorKind::InvalidData, error);
    let text = match ctf2 {
        false => tsdl::write(&description).map_err(|error| broken(error.to_string()))?,
        true => json2::write(&description).map_err(|error| broken(error.to_string()))?,
    };
    make_private_folder(directory)?;
    // Readers skip hidden files, and never see half of it.
    let hidden = directory.join(".metadata");
    let written = fs::write(&hidden, text).and_then(|()| fs::rename(&hidden, directory.join(METADATA_FILE)));
    written.inspect_err(|_| drop(fs::remove_file(&hidden)))?;
    Ok(classes)
}

/// The trace's clock, and nanoseconds over which its rate was measured.
fn trace_clock(map: &Map) -> (Clock, u64) {
    let number = |at| map.word(at).load(Ordering::Relaxed);
    let (ticks, monotonic, wall) = (
        number(head::BASE_TICKS),
        number(head::BASE_MONOTONIC),
        number(head::BASE_WALL),
    );
    let (frequency, measured) = match number(head::FREQUENCY) {
        0 => {
            let (now, at) = latest(map);
            let elapsed = at.saturating_sub(monotonic).max(1);
            let cycles = u128::from(now.saturating_sub(ticks));
            ((cycles * 1_000_000_000 / u128::from(elapsed)) as u64, elapsed)
        }
        known => (known, u64::MAX),
    };
    let frequency = frequency.max(1);
    let since = u128::from(ticks) * 1_000_000_000 / u128::from(frequency);
    let offset = i128::from(wall) - since as i128;
    let (seconds, rest) = (offset.div_euclid(1_000_000_000), offset.rem_euclid(1_000_000_000));
    let mut boot = [0; 16];
    map.read(head::BOOT_ID, &mut boot);
    let clock = Clock {
        name: "monotonic".to_owned(),
        uuid: Some(boot),
        description: Some("Monotonic clock of the machine".to_owned()),
        frequency,
        precision: None,
        offset_seconds: seconds as i64,
        offset_cycles: (rest as u128 * u128::from(frequency) / 1_000_000_000) as u64,
        unix_epoch: true,
    };
    (clock, measured)
}

/// The counter and the monotonic clock at the latest known moment: now, if this is still the boot
/// in which the rings were written, or the start of the last packet.
fn latest(map: &Map) -> (u64, u64) {
    let mut boot = [0; 16];
    map.read(head::BOOT_ID, &mut boot);
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let now: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let then: String = boot.iter().map(|byte| format!("{byte:02x}")).collect();
    if now == then {
        let base = map.word(head::BASE_MONOTONIC).load(Ordering::Relaxed);
        let elapsed = clock::monotonic().saturating_sub(base);
        // Long enough for a rate that is right to some millionths.
        let missing = std::time::Duration::from_millis(20).saturating_sub(std::time::Duration::from_nanos(elapsed));
        std::thread::sleep(missing);
        let (ticks, monotonic, _) = clock::moment(clock::Clock::Counter);
        return (ticks, monotonic);
    }
    let shape = shape(map);
    let starts = (0..map.geometry.rings).flat_map(|ring| {
        let word = map
            .word(map.geometry.control(ring) + control::POSITION)
            .load(Ordering::Relaxed);
        let packet = (word >> LENGTH_BITS) & !shape.packet_mask & shape.ring_mask;
        let at = map.geometry.data(ring) + packet as usize;
        let start = (
            map.word(at + packet::BEGIN).load(Ordering::Relaxed),
            map.word(at + packet::MONOTONIC).load(Ordering::Relaxed),
        );
        (word != 0).then_some(start)
    });
    starts.max().unwrap_or((1, 1))
}

/// Writes the newest events of all rings as a trace, while they are written.
pub(crate) fn snapshot(map: &Map, file: &File, directory: &Path) -> io::Result<()> {
    let mut drain = Drain::new(*map, file.try_clone()?, directory, false, 0);
    directory.clone_into(&mut drain.directory);
    make_private_folder(directory)?;
    if fs::read_dir(directory)?.next().is_some() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "directory is not empty"));
    }
    for ring in 0..map.geometry.rings {
        snapshot_of_ring(&mut drain, ring, directory)?;
    }
    drain.describe(true)
}

/// How often a snapshot may lose a packet to a writer that has come around the ring meanwhile.
/// Without a limit, a fast one could keep it for ever.
const OVERTAKEN: u32 = 100;

fn snapshot_of_ring(drain: &mut Drain, ring: usize, directory: &Path) -> io::Result<()> {
    let map = drain.map;
    let shape = shape(&map);
    let (at, data) = (map.geometry.control(ring), map.geometry.data(ring));
    let position = || map.word(at + control::POSITION).load(Ordering::Acquire);
    // The number of a packet is its place since the ring's start.
    let from_packet = |drained: u64| State {
        drained,
        sequence: drained / (shape.packet_mask + 1),
        ..State::default()
    };
    let mut word = position();
    let mut state = from_packet(oldest(&shape, word));
    let mut file = None;
    let mut overtaken = 0;
    loop {
        let before = |next: u64| {
            let word = map.word(data + (next & shape.ring_mask) as usize + packet::BEFORE);
            Some(word.load(Ordering::Acquire))
        };
        let Some(found) = piece(&shape, state.drained, word, before).filter(|_| word != 0) else {
            return Ok(());
        };
        let next = found.packet.wrapping_add(shape.packet_mask + 1) & POSITION_MASK;
        let drained = if found.whole { next } else { found.to };
        if found.to > found.from {
            drain.describe(false)?;
            let discarded = match found.whole {
                true => map
                    .word(data + (next & shape.ring_mask) as usize + packet::DISCARDED)
                    .load(Ordering::Relaxed),
                false => drain.discarded(ring),
            };
            let written = drain.packet(ring, &shape, found, State { drained, ..state }, discarded)?;
            // If the writer has come around meanwhile, the packet is gone.
            fence(Ordering::Acquire);
            let now = position();
            if oldest(&shape, now) > found.packet {
                overtaken += 1;
                if overtaken == OVERTAKEN {
                    return Ok(());
                }
                word = now;
                state = from_packet(oldest(&shape, now));
                continue;
            }
            let stream = match &mut file {
                Some(file) => file,
                None => file.insert(append_to(&directory.join(stream_name(ring)))?),
            };
            stream.write_all(&drain.buffer)?;
            state = written;
        }
        state.drained = drained;
    }
}
