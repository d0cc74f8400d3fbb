//! What is written of the items, and when: one recording, one after the other, or none until it is
//! asked for.

use std::collections::VecDeque;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use backtrail_process::proc;
use backtrail_process::sys::SignalSource;
use backtrail_recording::{CreateError, Measured, WriteError, Writer, WriterOptions};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::folder::Folder;
use crate::{
    Error, Keep, Machine, NameSources, Options, Progress, Requests, SampledEvent, Storage, Target, Trigger, environment,
};

/// Parts in which memory is given back: a snapshot has up to one part more than what is kept.
const PARTS: u32 = 8;
/// The shortest part: each names all threads and modules again.
const SHORTEST_PART: Duration = Duration::from_secs(1);
/// The least time between two runs of a trigger that has failed.
const TRIGGER_PAUSE: Duration = Duration::from_secs(1);

/// Where items go.
pub(crate) struct Store<'o> {
    options: &'o Options,
    cpus: Vec<u32>,
    kind: Kind,
    /// Gets each of several recordings that is complete.
    progress: &'o mut dyn FnMut(Progress<'_>),
    /// How many are complete, and how many old ones were deleted.
    pub(crate) recordings: u64,
    pub(crate) forgotten: u64,
    /// Bytes of the recordings that are complete.
    bytes: u64,
}

enum Kind {
    Whole,
    Rotation {
        folder: Folder,
        /// The recording that is being written.
        current: PathBuf,
        every: Duration,
        keep: Option<Keep>,
        next: Instant,
    },
    Snapshots {
        folder: Folder,
        keep: Keep,
        requests: Requests,
        /// The parts in memory, oldest first.
        parts: VecDeque<Part>,
        is_asked: bool,
        trigger: Option<Triggering>,
    },
}

/// A part of what is in memory, which can be forgotten.
struct Part {
    number: u64,
    begin: Instant,
    /// Bytes in memory when it began.
    bytes: u64,
}

/// The command that asks for snapshots.
struct Triggering {
    command: std::ffi::OsString,
    running: Option<Child>,
    /// When it may run again.
    next: Instant,
    /// The time to the next run after it has succeeded: snapshots do not repeat each other.
    pause: Duration,
}

impl<'o> Store<'o> {
    /// Opens what the options ask for.
    pub(crate) fn begin(
        options: &'o Options,
        cpus: Vec<u32>,
        progress: &'o mut dyn FnMut(Progress<'_>),
    ) -> Result<(Store<'o>, Writer), Error> {
        let folder = || {
            Folder::open(&options.output).map_err(|error| Error::Folder {
                path: options.output.clone(),
                error,
            })
        };
        let kind = match &options.storage {
            Storage::Whole => Kind::Whole,
            &Storage::Rotation { every, keep } => {
                let folder = folder()?;
                Kind::Rotation {
                    current: folder.next(),
                    folder,
                    every,
                    keep,
                    next: Instant::now() + every,
                }
            }
            Storage::Snapshots { keep, requests } => Kind::Snapshots {
                folder: folder()?,
                keep: *keep,
                requests: requests.clone(),
                parts: VecDeque::from([Part {
                    number: 0,
                    begin: Instant::now(),
                    bytes: 0,
                }]),
                is_asked: false,
                trigger: requests.trigger.clone().map(|command| Triggering {
                    command,
                    running: None,
                    next: Instant::now(),
                    pause: match *keep {
                        Keep::Time(time) => time.max(TRIGGER_PAUSE),
                        Keep::Bytes(_) => TRIGGER_PAUSE,
                    },
                }),
            },
        };
        let store = Store {
            options,
            cpus,
            kind,
            progress,
            recordings: 0,
            forgotten: 0,
            bytes: 0,
        };
        let writer = match &store.kind {
            Kind::Whole => store.create(|options| Writer::create(&store.options.output, options)),
            Kind::Rotation { current, .. } => store.create(|options| Writer::create_whole(current, options)),
            Kind::Snapshots { .. } => store.create(Writer::in_memory),
        }?;
        Ok((store, writer))
    }

    fn create(&self, create: impl FnOnce(&WriterOptions<'_>) -> Result<Writer, CreateError>) -> Result<Writer, Error> {
        let events: Vec<(&str, u64)> = match &self.options.trigger {
            Trigger::Counted(events) => events.iter().map(named).collect(),
            _ => Vec::new(),
        };
        let writer_options = WriterOptions {
            dialect: self.options.dialect,
            cpus: &self.cpus,
            command: &subject_name(&self.options.target),
            frequency: match &self.options.trigger {
                Trigger::Clock(frequency) => Some(*frequency),
                Trigger::Waits(frequency) => *frequency,
                Trigger::Counted(events) => events.iter().find_map(frequency_of),
                Trigger::Entries(_) | Trigger::Calls(..) => None,
            },
            events: &events,
            min_duration: match &self.options.trigger {
                Trigger::Calls(_, at_least) => Some(u64::try_from(at_least.as_nanos()).unwrap_or(u64::MAX)),
                _ => None,
            },
            measured: match self.options.trigger {
                Trigger::Waits(None) => Measured::OffCpu,
                Trigger::Waits(Some(_)) => Measured::Wall,
                Trigger::Clock(_) | Trigger::Entries(_) | Trigger::Calls(..) | Trigger::Counted(_) => Measured::Cpu,
            },
            environment: environment::read().map_err(Error::Environment)?,
        };
        create(&writer_options).map_err(Error::Create)
    }

    /// A signal arrived. Returns whether it is one that asks for a snapshot.
    pub(crate) fn takes(&mut self, signal: i32) -> bool {
        let Kind::Snapshots { requests, is_asked, .. } = &mut self.kind else {
            return false;
        };
        let takes = requests.signal == Some(signal);
        *is_asked |= takes;
        takes
    }

    /// Does what is due. Everything read so far must have been given to the writer, which is
    /// another one afterwards if this returns `true`.
    pub(crate) fn look(
        &mut self,
        writer: &mut Writer,
        now: Instant,
        signals: &SignalSource,
        names: &dyn Fn() -> NameSources,
    ) -> Result<bool, WriteError> {
        match &mut self.kind {
            Kind::Whole => Ok(false),
            Kind::Rotation { folder, next, keep, .. } => {
                let mut is_due = now >= *next;
                if let Some(keep @ Keep::Bytes(most)) = *keep {
                    let current = writer.bytes();
                    self.forgotten += folder.forget(keep, current);
                    // Alone, it must not take all that may be kept.
                    is_due |= current >= most / 4;
                }
                if is_due {
                    self.rotate(writer, now, names())?;
                }
                Ok(is_due)
            }
            Kind::Snapshots {
                keep,
                parts,
                is_asked,
                trigger,
                ..
            } => {
                if let Some(trigger) = trigger {
                    *is_asked |= trigger.has_succeeded(now, signals);
                }
                forget(writer, parts, *keep, now)?;
                if std::mem::take(is_asked) {
                    self.snapshot(writer, names())?;
                }
                Ok(false)
            }
        }
    }

    /// Looks at what has changed since recordings were complete.
    pub(crate) fn measure(&mut self) {
        if let Kind::Rotation {
            folder,
            keep: Some(Keep::Bytes(_)),
            ..
        } = &mut self.kind
        {
            folder.measure();
        }
    }

    /// Ends a recording and begins the next.
    fn rotate(&mut self, writer: &mut Writer, now: Instant, names: NameSources) -> Result<(), WriteError> {
        let Kind::Rotation { folder, .. } = &self.kind else {
            return Ok(());
        };
        writer.flush()?;
        let bytes = writer.bytes();
        let following = folder.next();
        let new = self.create(|options| Writer::create_whole(&following, options));
        *writer = new.map_err(|error| io::Error::other(error.to_string()))?;
        let Kind::Rotation {
            folder,
            current,
            every,
            keep,
            next,
        } = &mut self.kind
        else {
            return Ok(());
        };
        let complete = std::mem::replace(current, following);
        *next = now + *every;
        folder.add(&complete);
        if let Some(keep) = *keep {
            self.forgotten += folder.forget(keep, 0);
        }
        self.recordings += 1;
        self.bytes += bytes;
        let recording = &complete;
        (self.progress)(Progress::Written { recording, names });
        Ok(())
    }

    fn snapshot(&mut self, writer: &mut Writer, names: NameSources) -> Result<(), WriteError> {
        if let Kind::Snapshots { folder, .. } = &mut self.kind {
            let path = folder.next();
            writer.snapshot(&path)?;
            folder.add(&path);
            self.recordings += 1;
            self.bytes += writer.bytes();
            let recording = &path;
            (self.progress)(Progress::Written { recording, names });
        }
        Ok(())
    }

    /// Bytes of all recordings.
    pub(crate) fn bytes(&self, writer: &Writer) -> u64 {
        match self.kind {
            Kind::Whole | Kind::Rotation { .. } => self.bytes + writer.bytes(),
            Kind::Snapshots { .. } => self.bytes,
        }
    }

    /// The recording is over, and the writer has everything.
    pub(crate) fn end(&mut self, writer: &mut Writer, names: NameSources) -> Result<(), WriteError> {
        match &mut self.kind {
            Kind::Whole => Ok(()),
            Kind::Rotation { current, .. } => {
                self.recordings += 1;
                let recording = current;
                (self.progress)(Progress::Written { recording, names });
                Ok(())
            }
            Kind::Snapshots {
                requests,
                is_asked,
                trigger,
                ..
            } => {
                let is_asked = std::mem::take(is_asked) || requests.exit;
                if let Some(trigger) = trigger {
                    trigger.end();
                }
                match is_asked {
                    true => self.snapshot(writer, names),
                    false => Ok(()),
                }
            }
        }
    }
}

/// Forgets what is too old or too much, part by part.
fn forget(writer: &mut Writer, parts: &mut VecDeque<Part>, keep: Keep, now: Instant) -> Result<(), WriteError> {
    let bytes = writer.bytes();
    let Some(last) = parts.back() else { return Ok(()) };
    let is_long = match keep {
        Keep::Time(time) => now - last.begin >= (time / PARTS).max(SHORTEST_PART),
        Keep::Bytes(most) => bytes.saturating_sub(last.bytes) >= most / u64::from(PARTS),
    };
    if is_long {
        let number = writer.begin_segment()?;
        let (begin, bytes) = (now, writer.bytes());
        parts.push_back(Part { number, begin, bytes });
    }
    let is_too_much = |writer: &Writer, second: &Part| match keep {
        Keep::Time(time) => now - second.begin >= time,
        Keep::Bytes(most) => writer.bytes() > most,
    };
    while parts.get(1).is_some_and(|second| is_too_much(writer, second)) {
        let before = writer.bytes();
        parts.pop_front();
        if let Some(first) = parts.front() {
            writer.forget_before(first.number);
        }
        let gone = before - writer.bytes();
        for part in parts.iter_mut() {
            part.bytes = part.bytes.saturating_sub(gone);
        }
    }
    Ok(())
}

impl Triggering {
    /// Whether the command has just succeeded. Runs it again otherwise.
    fn has_succeeded(&mut self, now: Instant, signals: &SignalSource) -> bool {
        if let Some(running) = &mut self.running {
            let ended = running.try_wait();
            if let Ok(None) = ended {
                return false;
            }
            self.running = None;
            let succeeded = ended.is_ok_and(|status| status.is_some_and(|status| status.success()));
            self.next = now + if succeeded { self.pause } else { TRIGGER_PAUSE };
            return succeeded;
        }
        if now >= self.next {
            let mut shell = Command::new("/bin/sh");
            // Its own group: what it starts ends with it.
            shell.arg("-c").arg(&self.command).stdin(Stdio::null()).process_group(0);
            self.running = signals.unblocked(|| shell.spawn()).ok();
            self.next = now + TRIGGER_PAUSE;
        }
        false
    }

    fn end(&mut self) {
        if let Some(mut running) = self.running.take() {
            if let Some(group) = Pid::from_raw(running.id() as i32) {
                // It may just have ended.
                let _ = kill_process_group(group, Signal::TERM);
            }
            let _ = running.kill();
            let _ = running.wait();
        }
    }
}

impl Drop for Triggering {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the recording says that it is of.
fn subject_name(target: &Target) -> String {
    let joined = |parts: Vec<String>| parts.join(" ");
    match target {
        Target::Command(words) => joined(words.iter().map(|word| word.to_string_lossy().into()).collect()),
        Target::Processes(pids) => {
            let name = |&pid: &i32| proc::thread_name(pid as u32, pid as u32).unwrap_or_else(|_| pid.to_string());
            joined(pids.iter().map(name).collect())
        }
        Target::Machine(Machine { groups, .. }) if groups.is_empty() => "all processes".to_owned(),
        Target::Machine(Machine { groups, .. }) => {
            joined(groups.iter().map(|group| group.to_string_lossy().into()).collect())
        }
    }
}

/// An event's name, and how often it happens for one sample.
fn named(event: &SampledEvent) -> (&str, u64) {
    match event {
        SampledEvent::Clock(_) => (event.name(), 0),
        SampledEvent::Counted(_, count) => (event.name(), *count),
    }
}

fn frequency_of(event: &SampledEvent) -> Option<u64> {
    match event {
        &SampledEvent::Clock(frequency) => Some(frequency),
        SampledEvent::Counted(..) => None,
    }
}
