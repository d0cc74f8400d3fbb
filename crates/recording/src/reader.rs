//! The reporter's side: reads a trace as items.

use std::fmt;
use std::path::Path;

use backtrail_cbf::Decoder;
use backtrail_trace::{Event, Events, FieldHint, Options, Recover, Trace, TraceError, Value};
use backtrail_wire::sign_extend;
use flate2::{Decompress, FlushDecompress, Status};

use crate::events::{INTERRUPT_BIT, MAX_CBF_BYTES, class, field};
use crate::origin::Origin;
use crate::places::Bases;
use crate::symbols::{self, Symbols, SymbolsError};
use crate::tree::{self, FIRST_NODE, StackNodes};
use crate::{
    Detail, FinishedCall, Frame, FrameKind, Item, Module, ProcessLabels, Sample, ThreadName, Wait, WaitKind, Waker,
};

/// The most frames of one stack: more than our recorder ever writes, and a bound for hostile
/// traces, in which a few bytes can encode billions of equal frames.
const FRAME_LIMIT: usize = 1 << 16;

/// The most occurrences of an event that a sample stands for, so that sums of damaged ones do not
/// overflow. In nanoseconds, as tracepoints of the scheduler count, it is 18 minutes.
const MOST_OCCURRENCES: u64 = 1 << 40;

/// Reads a recording's items in time order.
///
/// Damage does not end reading: a stream whose last packet is cut off ends there, and anything that
/// cannot be understood is counted. [`Reader::problems`] reports it.
#[derive(Debug)]
pub struct Reader {
    events: Events,
    decoder: ItemDecoder,
    clock_offset: u64,
    symbols: Option<Result<Symbols, SymbolsError>>,
    origin: Origin,
}

/// Why a trace cannot be read as a recording.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// It is not a trace, or a damaged one.
    Trace(TraceError),
    /// It is another kind of trace: it has no samples with stacks.
    NoRecording,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Trace(error) => error.fmt(f),
            ReadError::NoRecording => write!(f, "is a trace, but not one of backtrail record"),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<TraceError> for ReadError {
    fn from(error: TraceError) -> Self {
        ReadError::Trace(error)
    }
}

impl Reader {
    /// Opens the recording in a directory.
    pub fn open(directory: &Path) -> Result<Reader, ReadError> {
        let trace = Trace::open(directory)?;
        let mut classes = trace.description().streams.iter().flat_map(|stream| &stream.events);
        if !classes.any(|class| class.name == class::NAMES[class::SAMPLE as usize]) {
            return Err(ReadError::NoRecording);
        }
        let clock = trace.description().clocks.first();
        let seconds = clock.and_then(|clock| u64::try_from(clock.offset_seconds).ok());
        let cycles = clock.map_or(0, |clock| clock.offset_cycles);
        let origin = Origin::of(&trace.description().environment);
        Ok(Reader {
            clock_offset: seconds
                .unwrap_or(0)
                .saturating_mul(1_000_000_000)
                .saturating_add(cycles),
            events: events(&trace)?,
            decoder: ItemDecoder::default(),
            symbols: symbols::read(&trace),
            origin,
        })
    }

    /// The next item; `None` at the end.
    #[allow(
        clippy::should_implement_trait,
        reason = "it lends its buffers, which an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, ReadError> {
        while let Some(event) = self.events.next()? {
            if let Some(item) = self.decoder.take(&event, false) {
                return Ok(Some(item.lend(&self.decoder)));
            }
        }
        Ok(None)
    }

    /// The next item; a sample's callers are only named by number, so that whoever counts samples
    /// handles each distinct stack once.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, ReadError> {
        while let Some(event) = self.events.next()? {
            // Nearly all events: copying them in their general form would take most of the time.
            if self.decoder.class_of(&event) == Some(class::SAMPLE) {
                match self.decoder.plain(&event) {
                    Some(sample) => return Ok(Some(Entry::Sample(self.decoder.lend_plain(sample)))),
                    None => self.decoder.damaged += 1,
                }
            } else if let Some(found) = self.decoder.take(&event, true) {
                let decoder = &self.decoder;
                return Ok(Some(match found {
                    Found::Item(item) => Entry::Item(item),
                    Found::Sample(sample) => Entry::Sample(decoder.lend(sample)),
                }));
            }
        }
        Ok(None)
    }

    /// The names of the recording's addresses, if it has them. They can be taken once.
    pub fn take_symbols(&mut self) -> Option<Symbols> {
        match self.symbols.take()? {
            Ok(symbols) => Some(symbols),
            Err(error) => {
                self.symbols = Some(Err(error));
                None
            }
        }
    }

    /// Nanoseconds by which the times of items are ahead of the recorded machine's monotonic clock.
    pub fn clock_offset(&self) -> u64 {
        self.clock_offset
    }

    /// What the recording says about the command and the machine.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Bytes of the streams.
    pub fn stream_bytes(&self) -> u64 {
        self.events.streams().iter().map(|stream| stream.file_bytes()).sum()
    }

    /// Anything that could not be read or understood, one sentence each; complete after the last
    /// item.
    pub fn problems(&self) -> Vec<String> {
        let statistics = self.events.statistics();
        let mut problems = Vec::new();
        let mut tell = |count: u64, what: &str| {
            if count > 0 {
                problems.push(format!("{count} {what}"));
            }
        };
        tell(
            statistics.damaged,
            "streams end with a damaged packet; what was written before it is shown",
        );
        tell(statistics.lost_packets, "packets are missing");
        tell(
            self.decoder.damaged,
            "events or definitions of stacks could not be understood",
        );
        tell(
            self.decoder.limited,
            "samples stand for more than 2^40 occurrences of their event, and count as 2^40",
        );
        if let Some(Err(error)) = &self.symbols {
            problems.push(error.to_string());
        }
        problems
    }
}

/// The events of all streams but the one of names.
fn events(trace: &Trace) -> Result<Events, TraceError> {
    let options = Options {
        // Data after a damaged packet may refer to the packet's contents.
        recover: Recover::EndStream,
        ..Options::default()
    };
    let is_items = |&index: &usize| !trace.streams()[index].ends_with(symbols::FILE);
    let streams = (0..trace.streams().len()).filter(is_items);
    let streams: Result<_, _> = streams.map(|index| trace.stream(index, options)).collect();
    Ok(Events::new(streams?))
}

/// An item of a recording, whose stack is only named by number if it is a sample.
#[derive(Clone, Debug)]
pub enum Entry<'a> {
    /// Anything but a sample.
    Item(Item<'a>),
    /// A sample.
    Sample(NumberedSample<'a>),
}

/// A sample whose callers are a numbered stack.
#[derive(Clone, Copy, Debug)]
pub struct NumberedSample<'a> {
    /// When, in nanoseconds of the trace's clock.
    pub time: u64,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The address of the innermost frame ([`FrameKind::Pc`]).
    pub ip: u64,
    /// The stack of its callers, a number for [`NumberedStacks`].
    pub stack: u32,
    /// The values passed, if the sample is a call; see [`Sample::passed`].
    pub passed: &'a [u64],
    /// If the thread left the CPU with this stack.
    pub wait: Option<NumberedWait<'a>>,
    /// What else is known of it.
    pub detail: Detail,
    /// The stacks that are known now, as its process has them.
    pub stacks: NumberedStacks<'a>,
}

/// A [`Wait`] whose waker's callers are a numbered stack.
#[derive(Clone, Copy, Debug)]
pub struct NumberedWait<'a> {
    /// Why it did.
    pub kind: WaitKind,
    /// Nanoseconds until it went on.
    pub duration: u64,
    /// The nanoseconds of them after it was woken.
    pub ready: u64,
    /// Who woke it, if that is known.
    pub waker: Option<NumberedWaker<'a>>,
}

/// A [`Waker`](crate::Waker) whose callers are a numbered stack.
#[derive(Clone, Copy, Debug)]
pub struct NumberedWaker<'a> {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Whether it was only interrupted.
    pub interrupt: bool,
    /// The address of its innermost frame; 0 if it has no stack.
    pub ip: u64,
    /// The stack of its callers.
    pub stack: u32,
    /// The stacks that are known now, as its process has them.
    pub stacks: NumberedStacks<'a>,
}

impl NumberedWaker<'_> {
    /// Its stack, from the leaf outwards; only the leaf if the rest is not known.
    pub fn frames(&self) -> Vec<Frame> {
        if self.ip == 0 {
            return Vec::new();
        }
        let mut frames = vec![Frame {
            kind: FrameKind::Pc,
            address: self.ip,
        }];
        let mut at = self.stack;
        while frames.len() < FRAME_LIMIT
            && let Some((frame, below)) = self.stacks.innermost(at)
        {
            frames.push(frame);
            at = below;
        }
        frames
    }
}

/// The numbered stacks of a process.
#[derive(Clone, Copy, Debug)]
pub struct NumberedStacks<'a> {
    nodes: Option<&'a StackNodes>,
    bases: &'a Bases,
    pid: u32,
    generation: u64,
}

impl NumberedStacks<'_> {
    /// The most frames of a stack; a longer one is taken for damage, which must be treated as
    /// unknown.
    pub const FRAME_LIMIT: usize = FRAME_LIMIT;

    /// While this is the same, so is the meaning of the process's numbers.
    pub fn version(&self) -> (u64, u64) {
        (self.generation, self.bases.version(self.pid))
    }

    /// The innermost frame of a stack and the number of the stack without it. `None` if the number
    /// is a root's (see [`ending`](crate::ending)), or if the stack is unknown.
    pub fn innermost(&self, stack: u32) -> Option<(Frame, u32)> {
        let (mut frame, below) = self.nodes?.innermost(stack)?;
        if frame.kind != FrameKind::Omitted {
            frame.address = self.bases.address(self.pid, frame.address)?;
        }
        Some((frame, below))
    }
}

/// What every sample has.
#[derive(Clone, Copy)]
struct PlainSample {
    time: u64,
    cpu: u32,
    pid: u32,
    tid: u32,
    ip: u64,
    stack: u32,
}

/// An item whose frames are stored separately.
enum Found {
    Item(Item<'static>),
    Sample(Sample<'static>),
}

impl Found {
    fn lend(self, decoder: &ItemDecoder) -> Item<'_> {
        match self {
            Found::Item(item) => item,
            Found::Sample(sample) => Item::Sample(Sample {
                frames: &decoder.frames,
                passed: &decoder.passed,
                wait: decoder.wait.map(|wait| Wait {
                    waker: wait.waker.map(|waker| Waker {
                        frames: &decoder.waker_frames,
                        ..waker
                    }),
                    ..wait
                }),
                ..sample
            }),
        }
    }
}

/// Turns events into items.
#[derive(Debug, Default)]
struct ItemDecoder {
    /// The stacks, if known.
    stacks: Option<StackNodes>,
    /// The places of the processes' modules.
    bases: Bases,
    /// A module whose build id comes with the next event.
    module: Option<Module>,
    frames: Vec<Frame>,
    /// The arguments of a call; empty after other samples.
    passed: Vec<u64>,
    /// If the last sample is one of a wait; without the waker's frames.
    wait: Option<Wait<'static>>,
    waker_frames: Vec<Frame>,
    /// The number of its waker's stack.
    waker_stack: u32,
    /// The number of the last sample's stack.
    stack: u32,
    /// Counts the times that numbers of stacks lost their meaning.
    generation: u64,
    runs: Vec<(Frame, u64)>,
    inflate: Inflate,
    damaged: u64,
    /// Samples that stand for more than [`MOST_OCCURRENCES`].
    limited: u64,
    /// The class of the last event: its indices in the description, and its number here.
    last_class: Option<((usize, usize), u64)>,
    hints: Hints,
}

/// Where the fields of samples are.
#[derive(Debug, Default)]
struct Hints {
    pid: FieldHint,
    tid: FieldHint,
    ip: FieldHint,
    stack: FieldHint,
    cpu: FieldHint,
}

/// Inflates a packet's compact backtraces.
#[derive(Debug)]
struct Inflate {
    decompress: Decompress,
    bytes: Vec<u8>,
}

impl Default for Inflate {
    fn default() -> Self {
        Inflate {
            decompress: Decompress::new(false),
            bytes: Vec::new(),
        }
    }
}

impl Inflate {
    /// `None` if they are not what the event says, or more than any writer makes.
    fn run(&mut self, event: &Event<'_>) -> Option<()> {
        self.bytes.clear();
        let expected = usize::try_from(event.field(field::CBF_BYTES)?.as_u64()?).ok()?;
        if expected > MAX_CBF_BYTES {
            return None;
        }
        self.bytes.reserve(expected);
        self.decompress.reset(false);
        let deflated = event.field(field::CBF_DEFLATED)?;
        let status = self
            .decompress
            .decompress_vec(deflated.as_bytes()?, &mut self.bytes, FlushDecompress::Finish);
        (status.ok()? == Status::StreamEnd && self.bytes.len() == expected).then_some(())
    }
}

impl ItemDecoder {
    /// A sample of which nothing else is known.
    fn lend_plain(&self, sample: PlainSample) -> NumberedSample<'_> {
        NumberedSample {
            time: sample.time,
            cpu: sample.cpu,
            pid: sample.pid,
            tid: sample.tid,
            ip: sample.ip,
            stack: sample.stack,
            passed: &[],
            wait: None,
            detail: Detail::Nothing,
            stacks: self.stacks_of(sample.pid),
        }
    }

    fn stacks_of(&self, pid: u32) -> NumberedStacks<'_> {
        NumberedStacks {
            nodes: self.stacks.as_ref(),
            bases: &self.bases,
            pid,
            generation: self.generation,
        }
    }

    fn lend(&self, sample: Sample<'static>) -> NumberedSample<'_> {
        let waker = |waker: Waker<'_>| NumberedWaker {
            pid: waker.pid,
            tid: waker.tid,
            interrupt: waker.interrupt,
            ip: self.waker_frames.first().map_or(0, |frame| frame.address),
            stack: self.waker_stack,
            stacks: self.stacks_of(waker.pid),
        };
        NumberedSample {
            wait: self.wait.map(|wait| NumberedWait {
                kind: wait.kind,
                duration: wait.duration,
                ready: wait.ready,
                waker: wait.waker.map(waker),
            }),
            time: sample.time,
            cpu: sample.cpu,
            pid: sample.pid,
            tid: sample.tid,
            ip: self.frames.first().map_or(0, |frame| frame.address),
            stack: self.stack,
            passed: &self.passed,
            detail: sample.detail,
            stacks: self.stacks_of(sample.pid),
        }
    }

    /// The number of an event's class.
    #[inline]
    fn class_of(&mut self, event: &Event<'_>) -> Option<u64> {
        let indices = event.class_indices();
        match self.last_class {
            Some((last, known)) if last == indices => Some(known),
            _ => {
                let known = class::NAMES.iter().position(|&name| name == event.name())? as u64;
                self.last_class = Some((indices, known));
                Some(known)
            }
        }
    }

    /// The item of an event; of a sample's frames only the innermost if its stack is `numbered`.
    fn take(&mut self, event: &Event<'_>, numbered: bool) -> Option<Found> {
        let known = self.class_of(event)?;
        let item = self.decode(known, event, numbered);
        if item.is_none() && !matches!(known, class::STACKS | class::BIN_INFO | class::PLACE) {
            self.damaged += 1;
        }
        item
    }

    fn decode(&mut self, known: u64, event: &Event<'_>, numbered: bool) -> Option<Found> {
        let time = event.time()?.try_into().ok()?;
        let number = |name: &str| event.field(name).and_then(|value: Value<'_>| value.as_u64());
        let text = |name: &str| {
            let value = event.field(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()?).into_owned())
        };
        let process = |name: &str| Some(event.field(name)?.as_i64()? as u32);
        let pid = event.field_with(field::VPID, &mut self.hints.pid)?.as_i64()? as u32;
        let tid = event.field_with(field::VTID, &mut self.hints.tid)?.as_i64()? as u32;
        Some(Found::Item(match known {
            class::STACKS => {
                self.define(event);
                return None;
            }
            class::SAMPLE | class::CALL | class::WAIT | class::FINISHED_CALL | class::EVENT | class::COUNTED_EVENT => {
                self.wait = None;
                if known == class::WAIT {
                    self.wait = Some(self.wait(event, numbered)?);
                }
                self.passed.clear();
                if matches!(known, class::CALL | class::FINISHED_CALL) {
                    self.passed.extend(event.field(field::PASSED)?.as_array()?.u64s());
                }
                let detail = match known {
                    class::FINISHED_CALL => Detail::Call(FinishedCall {
                        begin: number(field::BEGIN)?,
                        duration: number(field::DURATION)?,
                    }),
                    class::EVENT => Detail::Event(u8::try_from(number(field::EVENT)?).ok()?),
                    class::COUNTED_EVENT => Detail::Counted {
                        event: u8::try_from(number(field::EVENT)?).ok()?,
                        count: self.limited(number(field::COUNT)?),
                    },
                    _ => Detail::Nothing,
                };
                return match self.sample(event, numbered)? {
                    Found::Sample(sample) => Some(Found::Sample(Sample { detail, ..sample })),
                    found => Some(found),
                };
            }
            class::START => {
                self.bases.forget_process(pid);
                Item::Exec { time, pid }
            }
            class::PLACE => {
                let (base, size) = (number(field::BADDR)?, number(field::MEMSZ)?);
                self.bases.insert(pid, number(field::PLACE)?, size, base);
                return None;
            }
            class::BIN_INFO => {
                let (base, size) = (number(field::BADDR)?, number(field::MEMSZ)?);
                // Older recordings have whole modules only.
                let mapped = match (number(field::MAPPED_START), number(field::MAPPED_END)) {
                    (Some(start), Some(end)) => Some(start..end),
                    _ => None,
                };
                let module = Module {
                    time,
                    pid,
                    base,
                    size,
                    mapped: mapped.filter(|mapped| *mapped != (base..base.saturating_add(size))),
                    position_independent: number(field::IS_PIC)? != 0,
                    path: text(field::PATH)?,
                    build_id: Vec::new(),
                    // Older recordings do not say.
                    elsewhere: number(field::ELSEWHERE).unwrap_or(0) as u32,
                };
                if number(field::HAS_BUILD_ID)? != 0 {
                    self.module = Some(module);
                    return None;
                }
                Item::Module(module)
            }
            class::BUILD_ID => {
                let mut module = self.module.take()?;
                module.build_id = event.field(field::BUILD_ID)?.as_bytes()?.to_vec();
                Item::Module(module)
            }
            class::THREAD_NAME => Item::ThreadName(ThreadName {
                time,
                pid,
                tid,
                name: text(field::NAME)?,
            }),
            class::LABELS => Item::ProcessLabels(ProcessLabels {
                time,
                pid,
                group: text(field::GROUP)?,
                namespace: number(field::NAMESPACE)?,
                inner_pid: process(field::INNER_PID)?,
            }),
            class::FORK => {
                if pid == tid {
                    self.bases.forget_process(pid);
                }
                Item::Fork {
                    time,
                    pid,
                    tid,
                    parent: process(field::PARENT_PID)?,
                }
            }
            class::EXIT => Item::Exit { time, pid, tid },
            class::LOST => Item::Lost {
                time,
                count: number(field::COUNT)?,
            },
            _ => return None,
        }))
    }

    /// Reads a packet's definitions. If an earlier packet is missing, stacks are unknown until the
    /// next checkpoint.
    fn define(&mut self, event: &Event<'_>) {
        let first = event.field(field::FIRST).and_then(|value| value.as_u64());
        if first == Some(FIRST_NODE.into()) && !self.stacks.as_mut().is_some_and(StackNodes::begin_anew) {
            self.stacks = Some(StackNodes::default());
            self.generation += 1;
        }
        let Some(nodes) = self
            .stacks
            .as_mut()
            .filter(|nodes| first == Some(nodes.next_node().into()))
        else {
            self.forget_stacks();
            return;
        };
        let parents = event.field(field::PARENTS).and_then(|value| value.as_array());
        let whole = self.inflate.run(event).is_some();
        let mut bytes = &self.inflate.bytes[..];
        if !whole {
            self.damaged += 1;
            self.forget_stacks();
            return;
        }
        for parent in parents.iter().flat_map(|parents| parents.u64s()) {
            let Some(consumed) = add_definition(nodes, &mut self.runs, parent, bytes) else {
                self.damaged += 1;
                self.forget_stacks();
                return;
            };
            bytes = &bytes[consumed..];
        }
    }

    fn forget_stacks(&mut self) {
        self.stacks = None;
        self.generation += 1;
    }

    /// What every sample has.
    #[inline]
    fn plain(&mut self, event: &Event<'_>) -> Option<PlainSample> {
        let hints = &mut self.hints;
        let process = |name, hint| Some(event.field_with(name, hint)?.as_i64()? as u32);
        let (pid, tid) = (
            process(field::VPID, &mut hints.pid)?,
            process(field::VTID, &mut hints.tid)?,
        );
        let ip = code_address(event.field_with(field::IP, &mut hints.ip)?)?;
        let stack = event.field_with(field::STACK, &mut hints.stack)?.as_u64()?;
        let cpu = event.field_with(field::CPU_ID, &mut hints.cpu);
        Some(PlainSample {
            time: event.time()?.try_into().ok()?,
            cpu: cpu.and_then(|cpu| cpu.as_u64()).unwrap_or(0) as u32,
            pid,
            tid,
            ip,
            stack: self.known(u32::try_from(stack).ok()?),
        })
    }

    fn limited(&mut self, count: u64) -> u64 {
        self.limited += u64::from(count > MOST_OCCURRENCES);
        count.min(MOST_OCCURRENCES)
    }

    fn sample(&mut self, event: &Event<'_>, numbered: bool) -> Option<Found> {
        let plain = self.plain(event)?;
        let PlainSample {
            time,
            cpu,
            pid,
            tid,
            ip,
            stack,
        } = plain;
        self.frames.clear();
        self.frames.push(Frame {
            kind: FrameKind::Pc,
            address: ip,
        });
        self.stack = stack;
        let root = match numbered {
            true => None,
            false => expand(self.stacks.as_ref(), &self.bases, (pid, stack), &mut self.frames),
        };
        let ending = root.and_then(tree::ending);
        Some(Found::Sample(Sample {
            time,
            cpu,
            pid,
            tid,
            frames: &[],
            stop: ending.map(|(stop, _)| stop),
            live: ending.is_some_and(|(_, live)| live),
            in_kernel: root.is_some_and(tree::walked_in_kernel),
            wait: None,
            passed: &[],
            detail: Detail::Nothing,
        }))
    }

    /// The number by which a stack is known, whatever its number is now.
    fn known(&self, stack: u32) -> u32 {
        self.stacks.as_ref().map_or(stack, |stacks| stacks.first_number(stack))
    }

    fn wait(&mut self, event: &Event<'_>, numbered: bool) -> Option<Wait<'static>> {
        let number = |name: &str| event.field(name).and_then(|value: Value<'_>| value.as_u64());
        let process = |name: &str| Some(event.field(name)?.as_i64()? as u32);
        let kind = u8::try_from(number(field::KIND)?).ok()?;
        let (pid, tid) = (process(field::WAKER_PID)?, process(field::WAKER_TID)?);
        let ip = code_address(event.field(field::WAKER_IP)?)?;
        self.waker_stack = self.known(u32::try_from(number(field::WAKER_STACK)?).ok()?);
        self.waker_frames.clear();
        let stop = if ip == 0 {
            // A waker without a stack: the number only says why.
            tree::ending(self.waker_stack).filter(|_| !numbered)
        } else {
            self.waker_frames.push(Frame {
                kind: FrameKind::Pc,
                address: ip,
            });
            let of = (pid, self.waker_stack);
            match numbered {
                true => None,
                false => expand(self.stacks.as_ref(), &self.bases, of, &mut self.waker_frames),
            }
            .and_then(tree::ending)
        };
        let waker = Waker {
            pid,
            tid,
            interrupt: kind >> INTERRUPT_BIT != 0,
            frames: &[],
            stop: stop.map(|(stop, _)| stop),
        };
        Some(Wait {
            kind: WaitKind::from_number(kind & ((1 << INTERRUPT_BIT) - 1))?,
            duration: number(field::DURATION)?,
            ready: number(field::READY)?,
            waker: Some(waker).filter(|waker| waker.tid != u32::MAX),
        })
    }
}

/// Adds the frames of a process's stack to those of its leaf, and returns its root; `None`, and
/// no frames but the leaf, if it is not known.
fn expand(
    stacks: Option<&StackNodes>,
    bases: &Bases,
    (pid, stack): (u32, u32),
    frames: &mut Vec<Frame>,
) -> Option<u32> {
    let root = match stacks {
        _ if stack < FIRST_NODE => Some(stack),
        Some(nodes) => nodes.expand(stack, FRAME_LIMIT, frames),
        None => None,
    };
    let root = root.filter(|_| bases.restore(pid, &mut frames[1..]));
    let root = root.filter(|&root| tree::ending(root).is_some());
    if root.is_none() {
        frames.truncate(1);
    }
    root
}

/// An address whose highest recorded bit stands for those above it.
fn code_address(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Integer(integer) => Some(sign_extend(integer.as_u64()?, integer.class().size) as u64),
        other => other.as_u64(),
    }
}

/// Adds the definition at the start of `bytes` and returns its length; `None` if it cannot be
/// understood.
fn add_definition(nodes: &mut StackNodes, runs: &mut Vec<(Frame, u64)>, parent: u64, bytes: &[u8]) -> Option<usize> {
    let mut decoder = Decoder::new(bytes).ok()?;
    runs.clear();
    for run in decoder.by_ref() {
        let run = run.ok()?;
        runs.push((from_cbf(run.frame), run.repeat));
    }
    nodes
        .define(parent.try_into().ok()?, runs)
        .then_some(decoder.consumed())
}

fn from_cbf(frame: backtrail_cbf::Frame) -> Frame {
    let (kind, address) = match frame {
        backtrail_cbf::Frame::Pc(address) => (FrameKind::Pc, address),
        // The resume address of a suspended function is looked up as the call that it waits for.
        backtrail_cbf::Frame::Ra(address) | backtrail_cbf::Frame::Async(address) => (FrameKind::Ra, address),
        backtrail_cbf::Frame::Omit(count) => (FrameKind::Omitted, count),
    };
    Frame { kind, address }
}
