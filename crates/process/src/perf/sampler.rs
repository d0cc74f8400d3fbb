//! The events and their rings, one per CPU, read in time order.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use backtrail_arch::Arch;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::calls::{CallProbes, TracedFunction};
use super::counted::SampledEvent;
use super::deep::{DeepStacks, Dispatcher};
use super::error::{Entry, OpenError};
use super::other_stacks::OtherStacks;
use super::parts::Parts;
use super::probes::{self, Probes};
use super::records::{
    self, EventIds, Layout, Record, SAMPLE_TYPE, SEVERAL_SAMPLE_TYPE, WAITS_SAMPLE_TYPE, WaitsLayout,
};
use super::task_stacks::TaskStacks;
use super::walked::{self, Walked};
use super::walker::WalkLoader;
use crate::proc;
use crate::sys::{self, Attributes, Clock, Counted, Event, Ring};

/// The largest ring per CPU: at 997 Hz and 60 KiB of stack, a quarter of a second of samples,
/// enough time to convert all but the largest tables while sampling.
const MAX_RING_BYTES: usize = 16 << 20;
/// The most for the rings of all CPUs together.
const MAX_ALL_RINGS_BYTES: usize = 256 << 20;
/// A smaller ring holds too few samples to be useful.
const MIN_RING_BYTES: usize = 128 << 10;
/// Samples that must fit into a ring: if it is smaller, less stack is copied.
const LEAST_SAMPLES: usize = 32;
/// Samples that may wait in a ring before the reader is woken, as long as they fill no more than
/// half of it. A batch shares the memory that it brings into the caches: with 16, each sample took
/// half as much time again.
const SAMPLES_A_WAKEUP: u32 = 64;

/// How long a record of a waking may be invisible, in nanoseconds: an interrupt that wakes a thread
/// while the interrupted task writes a sample appears together with that one. The thread then has
/// another CPU, and says so in another ring, before its waking can be read.
const NESTED_NS: u64 = 2_000_000;

/// What triggers a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A clock, at this rate per second of CPU time.
    Clock(u64),
    /// Each call of one of these functions; there must be at least one.
    Entries(Vec<Entry>),
    /// Each time that a thread leaves the CPU, and what wakes it as far as we may know that; and a
    /// clock, at this rate.
    Waits(Option<u64>),
    /// Each of these events; there must be at least one. If there are several, samples have
    /// [`Cause::Event`](super::Cause::Event) with the event's number here.
    Counted(Vec<SampledEvent>),
    /// The calls of these functions, of which there must be at least one, that take at least this
    /// long: each pass over one of [`CallProbes`] is a sample with the probe's number.
    Calls(Vec<TracedFunction>, Duration),
}

/// What to sample.
#[derive(Clone, Debug)]
pub struct Options {
    /// What triggers a sample.
    pub trigger: Trigger,
    /// Bytes of user stack that each sample copies, a multiple of 8 below 64 KiB.
    pub stack_bytes: u32,
}

/// A ring and the CPU that fills it.
#[derive(Debug)]
struct CpuRing {
    cpu: u32,
    ring: Ring,
    scratch: Vec<u8>,
    /// Time of the next record, if there is one.
    next: Option<u64>,
    /// Events of other threads that write into the same ring.
    others: Vec<OwnedFd>,
    /// How many of the ring's events, in that order, count for threads that have ended.
    ended: usize,
    /// Whether records have the ids of their events.
    has_ids: bool,
    deep: Parts,
    walked: Walked,
    /// Lost records of programs that are not counted as lost samples.
    lost_parts: u64,
}

impl CpuRing {
    fn new(cpu: u32, ring: Ring) -> CpuRing {
        CpuRing {
            cpu,
            ring,
            scratch: Vec::new(),
            next: None,
            others: Vec::new(),
            ended: 0,
            has_ids: false,
            deep: Parts::default(),
            walked: Walked::default(),
            lost_parts: 0,
        }
    }

    /// Opens an event for all threads, and enables it: no exec does that.
    fn add_enabled(&mut self, attributes: &Attributes) -> io::Result<()> {
        let event = sys::open_event(attributes, Counted::All, self.cpu as i32)?;
        sys::redirect_output(&event, &self.ring)?;
        sys::set_enabled(&event, true)?;
        self.others.push(event);
        Ok(())
    }

    /// The descriptor to wait for. An event whose thread has ended is always ready, and reports
    /// nothing any more.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self.ended {
            0 => Some(self.ring.as_fd()),
            ended => self.others.get(ended - 1).map(|event| event.as_fd()),
        }
    }

    fn peek(&mut self) {
        let has_ids = self.has_ids;
        let record = self.ring.record(&mut self.scratch);
        self.next = record.map(|record| records::time_of(record, has_ids));
    }
}

/// Sampling events, open on every CPU.
#[derive(Debug)]
pub struct Sampler {
    rings: Vec<CpuRing>,
    arch: &'static Arch,
    kernel: bool,
    stack_bytes: u32,
    /// How records are written if switches are sampled.
    waits: Option<WaitsLayout>,
    /// The numbers of events, if there are several.
    ids: Option<EventIds>,
    /// How old a record is when it is read.
    delay_ns: u64,
    /// `None` without the right to load programs.
    dispatcher: Option<Dispatcher>,
    /// See [`keepers`].
    _keepers: Vec<OwnedFd>,
    /// Declared after the rings, whose events use them.
    _probes: Probes,
}

impl Sampler {
    /// Prepares to sample what the calling thread starts next: sampling starts with its first exec.
    pub fn for_next_child(options: &Options) -> Result<Sampler, OpenError> {
        Sampler::open(options, &[Counted::Thread(0)], true)
    }

    /// Prepares to sample all processes.
    pub fn for_machine(options: &Options) -> Result<Sampler, OpenError> {
        Sampler::open(options, &[Counted::All], false)
    }

    /// Prepares to sample the processes in these control groups, given by their directories, and in
    /// the groups below them.
    pub fn for_groups(options: &Options, directories: &[OwnedFd]) -> Result<Sampler, OpenError> {
        let groups: Vec<_> = directories.iter().map(|fd| Counted::Group(fd.as_fd())).collect();
        Sampler::open(options, &groups, false)
    }

    /// Prepares to sample running processes, with all their threads, and everything they start from
    /// now on.
    pub fn for_processes(options: &Options, pids: &[i32]) -> Result<Sampler, OpenError> {
        let mut threads = Vec::new();
        for &pid in pids {
            let tids = proc::threads(pid).map_err(|_| OpenError::NoProcess(pid))?;
            threads.extend(tids.into_iter().map(Counted::Thread));
        }
        // The first one may have ended, while the others run on.
        let mut living = &threads[..];
        loop {
            match (Sampler::open(options, living, false), living) {
                (Err(OpenError::NoProcess(_)), [_, rest @ ..]) if !rest.is_empty() => living = rest,
                (Err(OpenError::NoProcess(_)), _) => {
                    return Err(OpenError::NoProcess(pids.first().copied().unwrap_or(0)));
                }
                (opened, _) => return opened,
            }
        }
    }

    fn open(options: &Options, counted: &[Counted<'_>], enable_on_exec: bool) -> Result<Sampler, OpenError> {
        let arch = Arch::native();
        let (probes, events) = events_of(&options.trigger)?;
        let waits = matches!(options.trigger, Trigger::Waits(_)).then(|| {
            let (waking, woken_at) = probes::waking().unwrap_or_default();
            WaitsLayout { waking, woken_at }
        });
        let mut events = events.into_iter();
        let (first, _) = events.next().ok_or(OpenError::NoEntries)?;
        let mut others: Vec<_> = events.collect();
        let mut ids = has_ids(&options.trigger).then(EventIds::default);
        let mut attributes = Attributes {
            event: first,
            sample_type: match (&waits, &ids) {
                (Some(_), _) => WAITS_SAMPLE_TYPE,
                (None, Some(_)) => SEVERAL_SAMPLE_TYPE,
                (None, None) => SAMPLE_TYPE,
            },
            registers: arch.perf.mask(),
            stack_bytes: options.stack_bytes,
            watermark: 0,
            kernel: true,
            enable_on_exec,
            build_ids: true,
            reports: true,
        };
        let cpus = proc::online_cpus().map_err(OpenError::Io)?;
        let first_cpu = cpus.first().copied().unwrap_or(0);
        let &first_counted = counted.first().ok_or(OpenError::NoProcess(0))?;
        let share = MAX_ALL_RINGS_BYTES / cpus.len().max(1);
        let mut ring_bytes = MAX_RING_BYTES.min(1 << share.max(MIN_RING_BYTES).ilog2());
        fit(&mut attributes, ring_bytes, options.stack_bytes);
        match &options.trigger {
            Trigger::Counted(events) => {
                negotiate_each(events, &mut others, &mut attributes, first_counted, first_cpu)?;
                events.iter().try_for_each(|event| event.check(attributes.kernel))?;
            }
            _ => drop(negotiate(&mut attributes, first_counted, first_cpu)?),
        }
        let waking = waits.map(|layout| layout.waking).filter(|&number| number != 0);
        let opened = loop {
            fit(&mut attributes, ring_bytes, options.stack_bytes);
            let events = (&others[..], waking);
            match open_rings(&cpus, counted, &attributes, events, ring_bytes, ids.as_mut()) {
                // All have the same size: what a user may lock is for all of them.
                Err(OpenError::RingNotPermitted) if ring_bytes / 2 >= MIN_RING_BYTES => ring_bytes /= 2,
                opened => break opened?,
            }
        };
        let Opened { rings, knows_wakers } = opened;
        if rings.is_empty() {
            return Err(OpenError::NoProcess(0));
        }
        let is_grouped = matches!(first_counted, Counted::Group(_));
        let keepers = match options.trigger {
            Trigger::Entries(_) | Trigger::Calls(..) => keepers(&attributes, &others, first_cpu),
            Trigger::Clock(_) | Trigger::Waits(_) | Trigger::Counted(_) => Vec::new(),
        };
        let dispatcher = match options.trigger {
            Trigger::Clock(frequency) => Dispatcher::new(frequency),
            Trigger::Entries(_) | Trigger::Calls(..) | Trigger::Waits(_) | Trigger::Counted(_) => None,
        };
        // The first event for groups takes no samples.
        let leader = |ring| {
            Some(ring)
                .filter(|_| !is_grouped)
                .map(|ring: &CpuRing| ring.ring.as_fd())
        };
        let events = rings
            .iter()
            .flat_map(|ring| ring.others.iter().map(OwnedFd::as_fd).chain(leader(ring)));
        let dispatcher =
            dispatcher.filter(|dispatcher| events.fold(true, |all, event| all & dispatcher.attach(event).is_ok()));
        Ok(Sampler {
            rings,
            arch,
            kernel: attributes.kernel,
            stack_bytes: attributes.stack_bytes,
            waits: waits.map(|layout| WaitsLayout {
                waking: if knows_wakers { layout.waking } else { 0 },
                ..layout
            }),
            ids,
            delay_ns: if waits.is_some() { NESTED_NS } else { 0 },
            dispatcher,
            _keepers: keepers,
            _probes: probes,
        })
    }

    /// Whether the threads that wake others are known.
    pub fn knows_wakers(&self) -> bool {
        self.waits.is_some_and(|layout| layout.waking != 0)
    }

    /// Whether time in the kernel is sampled too.
    pub fn samples_kernel(&self) -> bool {
        self.kernel
    }

    /// The most bytes of stack that a sample's copy has.
    pub fn stack_bytes(&self) -> u32 {
        self.stack_bytes
    }

    /// Prepares to copy more of deep stacks. `None` if that is not possible.
    pub fn deep_stacks(&mut self) -> Option<DeepStacks> {
        let rings = self.rings.iter().map(|ring| (ring.cpu, ring.ring.as_fd()));
        self.dispatcher.as_mut()?.begin(self.stack_bytes, rings)
    }

    /// Prepares to copy parts of stacks that threads have left for another one. `None` if that is
    /// not possible.
    pub fn other_stacks(&mut self) -> Option<OtherStacks> {
        let rings = self.rings.iter().map(|ring| (ring.cpu, ring.ring.as_fd()));
        self.dispatcher.as_mut()?.other_stacks(self.stack_bytes, rings)
    }

    /// Prepares to copy the stacks of tasks that threads schedule by themselves. `None` if that is
    /// not possible.
    pub fn task_stacks(&mut self) -> Option<TaskStacks> {
        let rings = self.rings.iter().map(|ring| (ring.cpu, ring.ring.as_fd()));
        self.dispatcher.as_mut()?.task_stacks(rings)
    }

    /// Prepares to walk stacks in the kernel. `None` if that is not possible.
    pub fn walk_loader(&mut self) -> Option<WalkLoader> {
        let rings = self.rings.iter().map(|ring| (ring.cpu, ring.ring.as_fd()));
        self.dispatcher.as_mut()?.walk_loader(rings)
    }

    /// The CPUs, in the order of [`Sampler::drain`]'s index.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        self.rings.iter().map(|ring| ring.cpu)
    }

    /// Starts (or stops) sampling of processes that were already running.
    pub fn set_enabled(&mut self, enabled: bool) -> io::Result<()> {
        if !enabled {
            self.delay_ns = 0;
        }
        for ring in &self.rings {
            sys::set_enabled(&ring.ring, enabled)?;
            for event in &ring.others {
                sys::set_enabled(event, enabled)?;
            }
        }
        Ok(())
    }

    /// Sleeps until enough samples wait, one of `others` becomes readable, or `longest` is over.
    /// Returns whether one of `others` may be readable.
    pub fn wait(&mut self, others: &[BorrowedFd<'_>], longest: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        let descriptors = self
            .rings
            .iter()
            .enumerate()
            .filter_map(|(index, ring)| Some((index, ring.descriptor()?)));
        let (indices, mut waiting): (Vec<usize>, Vec<PollFd<'_>>) = descriptors
            .map(|(index, fd)| (index, PollFd::from_borrowed_fd(fd, PollFlags::IN)))
            .unzip();
        waiting.extend(others.iter().map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // What was interrupted looks at everything again.
        let polled = poll(&mut waiting, Some(&timeout));
        let is_other_ready = waiting.iter().skip(indices.len()).any(|fd| !fd.revents().is_empty());
        let hung_up: Vec<usize> = indices
            .into_iter()
            .zip(&waiting)
            .filter(|(_, ready)| ready.revents().contains(PollFlags::HUP))
            .map(|(index, _)| index)
            .collect();
        for index in hung_up {
            self.rings[index].ended += 1;
        }
        is_other_ready || polled.is_err()
    }

    /// Passes every record that is older than the call to `visit`, over all CPUs in time order: the
    /// index of its ring, its time in nanoseconds of the monotonic clock, and the record.
    pub fn drain(&mut self, mut visit: impl FnMut(usize, u64, Record<'_>)) {
        // Newer ones wait for the next call: a record with an earlier time may still be on its way
        // in another ring.
        let until = monotonic_ns().saturating_sub(self.delay_ns);
        let layout = Layout {
            waits: self.waits,
            ids: self.ids.as_ref(),
        };
        for ring in &mut self.rings {
            ring.ring.refresh();
            ring.peek();
        }
        loop {
            let earliest = self
                .rings
                .iter()
                .enumerate()
                .filter_map(|(index, ring)| Some((ring.next?, index)))
                .min();
            let Some((time, index)) = earliest.filter(|&(time, _)| time <= until) else {
                break;
            };
            let CpuRing {
                cpu,
                ring,
                scratch,
                deep,
                walked,
                lost_parts,
                ..
            } = &mut self.rings[index];
            let Some(record) = ring.record(scratch) else {
                break;
            };
            let size = record.len();
            if let Some(part) = records::deep_part(record) {
                // The ring keeps it until its sample has come.
                deep.add(part, ring);
                ring.consume(size);
                self.rings[index].peek();
                continue;
            }
            if let Some(part) = walked::walked_part(record) {
                if let Some(whole) = walked.add(part) {
                    visit(index, time, whole);
                }
            } else {
                // A record that cannot be decoded is of a kind that newer kernels send.
                let decoded = match records::decode_as(record, self.arch, layout) {
                    Ok(Record::Lost(count)) => {
                        let of_programs = self.dispatcher.as_ref().map_or(0, |dispatcher| dispatcher.lost(*cpu));
                        let parts = of_programs.saturating_sub(*lost_parts).min(count);
                        *lost_parts += parts;
                        match count - parts {
                            0 => Record::Other,
                            samples => Record::Lost(samples),
                        }
                    }
                    Ok(decoded) => decoded,
                    Err(_) => Record::Other,
                };
                if deep.are_empty() {
                    visit(index, time, decoded);
                } else {
                    let pieces = deep.pieces(ring);
                    visit(index, time, deep.complete(decoded, self.arch, &pieces));
                    drop(pieces);
                    deep.clear();
                }
            }
            ring.consume(size);
            if deep.are_empty() {
                ring.give_back();
            }
            self.rings[index].peek();
        }
        for CpuRing { ring, deep, .. } in &mut self.rings {
            if !deep.are_empty() {
                // Their sample may have found no room.
                deep.keep(ring);
                ring.give_back();
            }
        }
    }
}

/// Lets samples copy as much stack as fits into rings of this size, and wake the reader in time.
fn fit(attributes: &mut Attributes, ring_bytes: usize, stack_bytes: u32) {
    attributes.stack_bytes = stack_for(ring_bytes).min(stack_bytes);
    let half = u32::try_from(ring_bytes / 2).unwrap_or(u32::MAX);
    attributes.watermark = half.min(SAMPLES_A_WAKEUP * sample_bytes(attributes.stack_bytes));
}

/// A sample is its stack and some 500 bytes of registers and kernel frames.
fn sample_bytes(stack_bytes: u32) -> u32 {
    stack_bytes + 512
}

/// The most stack that fits into a ring.
fn stack_for(ring_bytes: usize) -> u32 {
    let room = (ring_bytes / LEAST_SAMPLES).saturating_sub(512);
    u32::try_from(room & !7).unwrap_or(u32::MAX)
}

/// Whether samples have to say which event they are of.
fn has_ids(trigger: &Trigger) -> bool {
    match trigger {
        Trigger::Calls(..) => true,
        Trigger::Counted(events) => events.len() > 1,
        Trigger::Clock(_) | Trigger::Entries(_) | Trigger::Waits(_) => false,
    }
}

/// The events that trigger samples, each with whether those have stacks, and the tracepoints that
/// must exist as long as they do.
fn events_of(trigger: &Trigger) -> Result<(Probes, Vec<(Event, bool)>), OpenError> {
    let clock = |frequency| Event::Clock {
        clock: Clock::Cpu,
        frequency,
    };
    match trigger {
        &Trigger::Clock(frequency) => Ok((Probes::default(), vec![(clock(frequency), true)])),
        &Trigger::Waits(frequency) => {
            let events = [Event::Switches].into_iter().chain(frequency.map(clock));
            Ok((Probes::default(), events.map(|event| (event, true)).collect()))
        }
        Trigger::Counted(events) => {
            let events = events.iter().map(|event| Ok((event.attribute()?, true)));
            Ok((Probes::default(), events.collect::<Result<_, OpenError>>()?))
        }
        Trigger::Entries(entries) => {
            let (probes, numbers) = Probes::at(entries)?;
            let events = numbers.into_iter().map(|number| (Event::Tracepoint(number), true));
            Ok((probes, events.collect()))
        }
        Trigger::Calls(functions, _) => {
            let wanted = CallProbes::of(functions);
            let places: Vec<Entry> = wanted.all().iter().map(|probe| probe.place.clone()).collect();
            let (probes, numbers) = Probes::at(&places)?;
            let have_stacks = wanted.all().iter().map(|probe| probe.has_stack());
            let events = numbers.into_iter().map(Event::Tracepoint).zip(have_stacks);
            Ok((probes, events.collect()))
        }
    }
}

/// Events that never count, and keep probes where they are.
///
/// The kernel removes a probe from a process if no event is for a thread of it. But when the CPU
/// passes between a thread and one that it has just created, the kernel exchanges their events
/// instead of switching them: from then on it takes the one for the other, and once one has ended,
/// the probe is removed from the other's process (Linux 6.18). An event for all threads, even if
/// disabled, prevents that; the price is that other processes stop at the probe too, for a moment
/// and without a sample.
fn keepers(first: &Attributes, others: &[(Event, bool)], cpu: u32) -> Vec<OwnedFd> {
    let events = [first.event].into_iter().chain(others.iter().map(|&(event, _)| event));
    let opened = events.map(|event| {
        let attributes = Attributes {
            event,
            reports: false,
            enable_on_exec: false,
            ..*first
        };
        sys::open_event(&attributes, Counted::All, cpu as i32)
    });
    // Without the right to sample all processes, probes are kept as long as the kernel does.
    opened.filter_map(Result::ok).collect()
}

/// An event to open on each CPU.
#[derive(Clone, Copy, Debug)]
struct Wanted<'c> {
    who: Counted<'c>,
    attributes: Attributes,
    /// Its number among several; `None` if its samples are known by something else.
    number: Option<u32>,
}

/// The bytes of stack of a sample whose stack is not wanted: the return address.
const ONE_WORD: u32 = 8;

/// The events to open on each CPU: for all that is counted the first event, which also reports what
/// threads do, and the others. What the processes of a group do is reported for all processes:
/// they may have started, and may have mapped files, in another group.
fn wanted_events<'c>(counted: &[Counted<'c>], first: &Attributes, others: &[(Event, bool)]) -> Vec<Wanted<'c>> {
    let silent = |event: Event| Attributes {
        event,
        reports: false,
        ..*first
    };
    let is_grouped = matches!(counted, [Counted::Group(_), ..]);
    let reporter = Attributes {
        event: Event::Nothing,
        ..*first
    };
    let first_of_each = match is_grouped {
        true => silent(first.event),
        false => *first,
    };
    let others = others.iter().map(|&(event, has_stack)| Attributes {
        stack_bytes: if has_stack { first.stack_bytes } else { ONE_WORD },
        ..silent(event)
    });
    let each: Vec<Attributes> = [first_of_each].into_iter().chain(others).collect();
    let all = counted.iter().flat_map(|&who| {
        each.iter().zip(0..).map(move |(&attributes, number)| Wanted {
            who,
            attributes,
            number: Some(number),
        })
    });
    let reporter = Wanted {
        who: Counted::All,
        attributes: reporter,
        number: None,
    };
    is_grouped.then_some(reporter).into_iter().chain(all).collect()
}

/// The rings of all CPUs, and whether they have the threads that wake others.
struct Opened {
    rings: Vec<CpuRing>,
    knows_wakers: bool,
}

/// Opens the first event, of which `attributes` are, and the others on each CPU; the last one is
/// the number of the tracepoint of wakers.
fn open_rings(
    cpus: &[u32],
    counted: &[Counted<'_>],
    attributes: &Attributes,
    (others, waking): (&[(Event, bool)], Option<u64>),
    ring_bytes: usize,
    mut ids: Option<&mut EventIds>,
) -> Result<Opened, OpenError> {
    let Some((&first_counted, &first_cpu)) = counted.first().zip(cpus.first()) else {
        return Err(OpenError::NoProcess(0));
    };
    let mut wanted = wanted_events(counted, attributes, others);
    let waking = waking.map(|number| Attributes {
        event: Event::Tracepoint(number),
        reports: false,
        ..*attributes
    });
    // Who wakes a thread is left out where we may not know it.
    let waking = waking.filter(|waking| sys::open_event(waking, first_counted, first_cpu as i32).is_ok());
    wanted.extend(waking.iter().flat_map(|waking| {
        counted.iter().map(|&who| Wanted {
            who,
            attributes: *waking,
            number: None,
        })
    }));
    // A thread's event misses who is not counted: other programs, exiting threads, and timers,
    // whose interrupt mostly comes while the CPU is idle. Those need no copy of a stack.
    let others_waking = waking.filter(|_| !matches!(first_counted, Counted::All));
    let others_waking = others_waking.map(|waking| Attributes {
        stack_bytes: 0,
        enable_on_exec: false,
        ..waking
    });
    let others_waking = others_waking.filter(|waking| sys::open_event(waking, Counted::All, first_cpu as i32).is_ok());
    let mut rings = Vec::with_capacity(cpus.len());
    for &cpu in cpus {
        let Some(mut ring) = open_on(cpu, &wanted, ring_bytes, ids.as_deref_mut())? else {
            continue;
        };
        if let Some(waking) = &others_waking {
            ring.add_enabled(waking).map_err(OpenError::Io)?;
        }
        rings.push(ring);
    }
    let knows_wakers = waking.is_some();
    Ok(Opened { rings, knows_wakers })
}

/// These events on a CPU, and the ring of all of them. `None` if no thread exists any more, or the
/// CPU does not.
fn open_on(
    cpu: u32,
    wanted: &[Wanted<'_>],
    ring_bytes: usize,
    mut ids: Option<&mut EventIds>,
) -> Result<Option<CpuRing>, OpenError> {
    let mut opened: Option<CpuRing> = None;
    for wanted in wanted {
        let event = match sys::open_event(&wanted.attributes, wanted.who, cpu as i32) {
            Ok(event) => event,
            Err(error) if gone(&error) => continue,
            Err(error) => return Err(explain(error, &wanted.attributes, wanted.who)),
        };
        if let (Some(ids), Some(number)) = (&mut ids, wanted.number) {
            ids.insert(sys::event_id(event.as_fd()).map_err(OpenError::Io)?, number);
        }
        match &mut opened {
            Some(leader) => {
                sys::redirect_output(&event, &leader.ring).map_err(OpenError::Io)?;
                leader.others.push(event);
            }
            None => opened = Some(CpuRing::new(cpu, map_ring(event, ring_bytes)?)),
        }
    }
    if let Some(ring) = &mut opened {
        ring.has_ids = ids.is_some();
    }
    Ok(opened)
}

/// Finds out what the kernel permits for each of these events, of which `attributes` are the
/// first's.
fn negotiate_each(
    events: &[SampledEvent],
    others: &mut [(Event, bool)],
    attributes: &mut Attributes,
    counted: Counted<'_>,
    cpu: u32,
) -> Result<(), OpenError> {
    let explained = |number: usize, error| match events.get(number) {
        Some(event) => event.explain(error),
        None => error,
    };
    negotiate(attributes, counted, cpu).map_err(|error| explained(0, error))?;
    for (index, (event, _)) in others.iter_mut().enumerate() {
        let mut of_event = Attributes {
            event: *event,
            reports: false,
            ..*attributes
        };
        negotiate(&mut of_event, counted, cpu).map_err(|error| explained(index + 1, error))?;
        *event = of_event.event;
        attributes.kernel &= of_event.kernel;
    }
    Ok(())
}

/// Finds out what the kernel permits by opening an event, from the most to the least.
fn negotiate(attributes: &mut Attributes, counted: Counted<'_>, cpu: u32) -> Result<OwnedFd, OpenError> {
    loop {
        let error = match sys::open_event(attributes, counted, cpu as i32) {
            Ok(event) => return Ok(event),
            Err(error) => error,
        };
        match error.raw_os_error() {
            // Kernels before 5.12 do not know the build-id flag.
            Some(libc::EINVAL) if attributes.build_ids => attributes.build_ids = false,
            Some(libc::EACCES | libc::EPERM) if attributes.kernel => {
                attributes.kernel = false;
                attributes.build_ids = true;
            }
            Some(libc::ENOENT | libc::EOPNOTSUPP)
                if let Event::Clock {
                    clock: clock @ Clock::Cpu,
                    ..
                } = &mut attributes.event =>
            {
                *clock = Clock::Task;
            }
            _ => return Err(explain(error, attributes, counted)),
        }
    }
}

fn explain(error: io::Error, attributes: &Attributes, counted: Counted<'_>) -> OpenError {
    if let (Event::Tracepoint(_), Some(libc::EACCES | libc::EPERM)) = (attributes.event, error.raw_os_error()) {
        return OpenError::EntriesNotPermitted;
    }
    match (counted, error.raw_os_error()) {
        (Counted::Thread(_), Some(libc::EACCES | libc::EPERM)) => OpenError::NotPermitted {
            paranoid: proc::setting("/proc/sys/kernel/perf_event_paranoid"),
        },
        (_, Some(libc::EACCES | libc::EPERM)) => OpenError::MachineNotPermitted {
            paranoid: proc::setting("/proc/sys/kernel/perf_event_paranoid"),
        },
        (Counted::Group(_), Some(libc::EBADF | libc::EINVAL)) => OpenError::NoGroup,
        (_, Some(libc::ENOSYS)) => OpenError::NoPerfEvents,
        (_, Some(libc::ESRCH)) => OpenError::NoProcess(0),
        (_, Some(libc::EINVAL)) => match proc::setting("/proc/sys/kernel/perf_event_max_sample_rate") {
            Some(limit) if matches!(attributes.event, Event::Clock { frequency, .. } if frequency > limit) => {
                OpenError::FrequencyTooHigh { limit }
            }
            _ => OpenError::Io(error),
        },
        _ => OpenError::Io(error),
    }
}

fn gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV))
}

fn map_ring(event: OwnedFd, ring_bytes: usize) -> Result<Ring, OpenError> {
    let mapped = Ring::map(event, ring_bytes / rustix::param::page_size());
    mapped.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOMEM) => OpenError::RingNotPermitted,
        _ => OpenError::Io(error),
    })
}

/// Nanoseconds of the clock that the times of records use.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Raises the number of files that this process may open to its limit: one event per thread and CPU
/// can be many, and so can the files that it looks up names in.
pub fn raise_open_files() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    Ok(())
}
