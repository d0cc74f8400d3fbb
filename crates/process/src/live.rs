//! Live processes: stops all threads, copies their registers and the used part of their stacks, and
//! lets them go again.
//!
//! Everything happens on a separate thread that ends when it is done. The kernel then releases
//! whatever that thread traced, including threads that had not stopped in time, and even if the
//! thread or the whole program is killed. A signal that arrived meanwhile is delivered, and a
//! process that was already stopped (`SIGSTOP`) stays stopped.
//!
//! Waiting threads are stopped and copied first, running ones last, and the running ones continue
//! first. A stopped thread stays where it is, so there is a moment at which all threads stand still
//! and every copy is their state at that moment; but running threads are stopped only for the time
//! that they need themselves, however many others there are.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use backtrail_arch::{Arch, Registers};
use backtrail_wire::{Bytes, Endian};

use crate::machine::this_machine;
use crate::proc::{self, MapsEntry};
use crate::snapshot::{Mapping, NotStopped, Pieces, Snapshot, Thread};
use crate::sys::ptrace::{self, Progress};
use crate::sys::{self};

/// How long to wait for a thread in uninterruptible sleep: the others stand still meanwhile.
const UNINTERRUPTIBLE_WAIT: Duration = Duration::from_millis(5);
/// How long to wait for any other thread. It needs a CPU to stop, and many others may want one.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// New threads may start while others are stopped; a process that creates them faster than this
/// many looks is left as it is.
const MOST_ROUNDS: usize = 100;

/// Bytes of each stack that are copied first, so that a deep one does not take the room of all
/// others.
const FIRST_COPY: u64 = 64 << 10;
/// The most that is copied of one stack. Deeper parts are read afterwards.
const LONGEST_COPY: u64 = 8 << 20;
/// The most that is copied of all stacks beyond their first part.
const MOST_COPIED: u64 = 64 << 20;

/// Why a process could not be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no such process.
    Gone,
    /// It is the calling process.
    Own,
    /// It has ended, and nobody has waited for it.
    Zombie,
    /// It is a thread of the kernel.
    KernelThread,
    /// It runs 32-bit code.
    Bits32,
    /// It may not be traced.
    NotPermitted(Reason),
    /// A system call failed with this error number.
    System(i32),
}

/// Which permission is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is traced already, by this process.
    Traced(u32),
    /// It belongs to this user.
    OtherUser(u32),
    /// `kernel.yama.ptrace_scope` has this value.
    PtraceScope(u32),
    /// None of these, or not visible from here: it has more capabilities, is not dumpable, or a
    /// security module refuses.
    Unknown,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Gone => f.write_str("no such process"),
            Error::Own => f.write_str("is this command's own process"),
            Error::Zombie => f.write_str("has ended already (a zombie) and has no stack any more"),
            Error::KernelThread => f.write_str("is a thread of the kernel and has no stack of its own"),
            Error::Bits32 => f.write_str("is a 32-bit process, which is not supported"),
            Error::NotPermitted(Reason::Traced(by)) => write!(f, "is traced by process {by} already"),
            Error::NotPermitted(Reason::OtherUser(user)) => write!(f, "may not be traced: it belongs to user {user}"),
            Error::NotPermitted(Reason::PtraceScope(scope)) => {
                write!(f, "may not be traced: kernel.yama.ptrace_scope is {scope}")
            }
            Error::NotPermitted(Reason::Unknown) => f.write_str(
                "may not be traced: it has more capabilities, can't be dumped, or a security module forbids it",
            ),
            Error::System(number) => io::Error::from_raw_os_error(*number).fmt(f),
        }
    }
}

impl std::error::Error for Error {}

/// A process that is held: it stands still until this is dropped.
#[derive(Debug)]
pub struct Hold {
    release: Option<Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release.take();
        if let Some(tracer) = self.tracer.take() {
            // The thread does nothing any more that could fail.
            let _ = tracer.join();
        }
    }
}

/// Captures a process, given by its number or that of one of its threads, and lets it continue
/// unless `hold` is set.
///
/// # Errors
/// If there is no such process, or it may not be traced, or has no stack.
pub fn capture(pid: u32, hold: bool) -> Result<(Snapshot<'static>, Option<Hold>), Error> {
    let pid = process_of(pid)?;
    let (told, answer) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let tracer = thread::Builder::new()
        .name("tracer".to_owned())
        .spawn(move || trace(pid, hold, &told, &released))
        .map_err(|error| system(&error))?;
    let held = Hold {
        release: Some(release),
        tracer: Some(tracer),
    };
    let copied = answer.recv().map_err(|_| Error::System(0))?;
    let held = match (hold, copied.is_ok()) {
        (true, true) => Some(held),
        // Waits for the thread's end, which releases everything.
        _ => {
            drop(held);
            None
        }
    };
    Ok((copied?.into_snapshot(pid, held.is_some()), held))
}

/// Captures a process in which one thread stands still by itself and passes on its registers: one
/// that waits in the handler of a crash. Nothing is stopped or copied: memory is read on demand.
///
/// # Errors
/// If there is no such process, or its mappings may not be read. Where there is no such process, or
/// its mappings may not be read.
pub fn standing(pid: u32, tid: u32, registers: Registers) -> Result<Snapshot<'static>, Error> {
    let copied = Copied {
        reader: tid,
        threads: vec![CopiedThread {
            tid: tid as i32,
            name: proc::thread_name(pid, tid).ok(),
            registers: Ok(registers),
            vectors: Vec::new(),
        }],
        stacks: Vec::new(),
        maps: proc::maps_text(pid).map_err(|error| system(&error))?,
    };
    Ok(copied.into_snapshot(pid, true))
}

/// A process that the kernel is writing a core of: all its threads stand still until that is done.
/// `dead` is what the core's notes contain: the threads, in the numbers of the process's own
/// namespace. The memory is read from the process.
///
/// # Errors
/// If there is no such process, it is not dying, or its mappings may not be read.
pub fn dumping(pid: u32, dead: &Snapshot<'_>) -> Result<Snapshot<'static>, Error> {
    let status = proc::text(&format!("/proc/{pid}/status")).map_err(|_| unseen(pid))?;
    if proc::status_field(&status, "CoreDumping") != Some(1) || dead.arch.cpu != Arch::native().cpu {
        return Err(Error::Gone);
    }
    let tids = proc::threads(pid as i32).unwrap_or_default();
    let inside: Vec<(u32, u32)> = tids
        .iter()
        .map(|&tid| (own_number(pid, tid as u32), tid as u32))
        .collect();
    let outside = |tid: u32| inside.iter().find(|(own, _)| *own == tid).map_or(tid, |(_, tid)| *tid);
    // A first thread that has ended has no memory any more.
    let has_memory = |tid: &u32| proc::maps_text(*tid).is_ok_and(|maps| !maps.is_empty());
    let reader = [pid]
        .into_iter()
        .chain(inside.iter().map(|(_, tid)| *tid))
        .find(has_memory);
    let reader = reader.ok_or(Error::Gone)?;
    let threads = dead.threads.iter().map(|thread| CopiedThread {
        tid: outside(thread.tid) as i32,
        name: proc::thread_name(pid, outside(thread.tid)).ok(),
        registers: thread.registers,
        vectors: thread.vectors.clone(),
    });
    let copied = Copied {
        reader,
        threads: threads.collect(),
        stacks: Vec::new(),
        maps: proc::maps_text(reader).map_err(|error| system(&error))?,
    };
    let mut snapshot = copied.into_snapshot(pid, true);
    snapshot.signal = dead.signal;
    let first = dead.threads.first().map(|thread| outside(thread.tid));
    if let Some(first) = first {
        snapshot.threads.sort_by_key(|thread| thread.tid != first);
    }
    if let Some(died) = snapshot.threads.first_mut() {
        died.signal = dead.signal;
    }
    Ok(snapshot)
}

/// The number of a thread in the innermost namespace that it is in.
fn own_number(pid: u32, tid: u32) -> u32 {
    let status = proc::text(&format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = numbers.and_then(|numbers| numbers.split_ascii_whitespace().next_back()?.parse().ok());
    last.unwrap_or(tid)
}

fn process_of(pid: u32) -> Result<u32, Error> {
    let status = proc::text(&format!("/proc/{pid}/status")).map_err(|_| unseen(pid))?;
    let process = proc::status_field(&status, "Tgid").ok_or(Error::Gone)?;
    if process == std::process::id() {
        return Err(Error::Own);
    }
    if proc::is_kernel_thread(process) {
        return Err(Error::KernelThread);
    }
    Ok(process)
}

/// Distinguishes processes that `/proc` hides, because they are another user's (`hidepid`).
fn unseen(pid: u32) -> Error {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    match pid.map(rustix::process::test_kill_process) {
        Some(Err(rustix::io::Errno::PERM)) => Error::NotPermitted(Reason::Unknown),
        _ => Error::Gone,
    }
}

fn system(error: &io::Error) -> Error {
    Error::System(error.raw_os_error().unwrap_or(0))
}

/// What is copied while the process stands still.
#[derive(Default)]
struct Copied {
    reader: u32,
    threads: Vec<CopiedThread>,
    stacks: Vec<(u64, Vec<u8>)>,
    maps: Vec<u8>,
}

struct CopiedThread {
    tid: i32,
    name: Option<String>,
    registers: Result<Registers, NotStopped>,
    vectors: Vec<u8>,
}

/// The set of a stopped thread's vector registers; empty if the kernel has none.
fn vector_registers(tid: i32) -> Vec<u8> {
    let mut set = vec![0; Arch::native().vectors.map_or(0, |vectors| vectors.bytes)];
    let len = ptrace::registers(tid, ptrace::NT_PRFPREG, &mut set);
    set.truncate(len.unwrap_or(0));
    set
}

impl Copied {
    /// The work that can wait until the process runs again.
    fn into_snapshot(self, pid: u32, is_held: bool) -> Snapshot<'static> {
        let stacks = self.stacks.into_iter().map(|(start, bytes)| (start, Cow::Owned(bytes)));
        let threads = self.threads.into_iter().map(|thread| Thread {
            tid: thread.tid as u32,
            name: thread.name,
            signal: None,
            registers: thread.registers,
            vectors: thread.vectors,
        });
        let mut threads: Vec<Thread> = threads.collect();
        threads.sort_by_key(|thread| (thread.tid != pid, thread.tid));
        let mappings = proc::maps_of(&self.maps).into_iter().map(|map| Mapping {
            start: map.start,
            end: map.end,
            writable: map.writable,
            executable: map.executable,
            file_offset: map.file_offset,
            inode: map.inode,
            path: map.path,
        });
        Snapshot {
            arch: this_machine(),
            endian: Endian::NATIVE,
            pid,
            reader: self.reader,
            name: proc::thread_name(pid, pid).unwrap_or_default(),
            executable: fs::read_link(format!("/proc/{}/exe", self.reader))
                .ok()
                .map(|path| path.to_string_lossy().into_owned()),
            signal: None,
            mappings: mappings.collect(),
            threads,
            pieces: Pieces::new(stacks.collect()),
            is_live: true,
            is_held,
        }
    }
}

/// How often to look for threads that have ended while others are seized.
const LOOK_FOR_ENDS: Duration = Duration::from_millis(10);

/// Seizes threads, while another thread takes note of the ends of all that are known.
///
/// A process with threads that calls `execve` waits for the ends of all others, and those that are
/// traced end only when the tracer knows it. Meanwhile, it lets nobody trace one more thread: the
/// tracer would wait for the process, and the process for the tracer, for ever. It does not wait
/// for its first thread's end, which is its parent's to know.
fn while_ends_are_taken<T>(pid: u32, tids: &HashSet<i32>, seize: impl FnOnce() -> T) -> T {
    let (over, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Without one, it mostly works as well.
        let _ = thread::Builder::new().spawn_scoped(scope, move || {
            while is_over.recv_timeout(LOOK_FOR_ENDS) == Err(RecvTimeoutError::Timeout) {
                let others = tids.iter().filter(|&&tid| tid as u32 != pid);
                others.for_each(|&tid| ptrace::take_end(tid));
            }
        });
        let seized = seize();
        drop(over);
        seized
    })
}

/// The tracing thread.
fn trace(pid: u32, hold: bool, told: &Sender<Result<Copied, Error>>, released: &Receiver<()>) {
    let mut tracer = Tracer {
        pid,
        threads: Vec::new(),
        known: HashSet::new(),
        copied: Copied::default(),
        left: MOST_COPIED,
    };
    let copied = tracer.stop_and_copy();
    if hold && copied.is_ok() {
        // If this fails, the caller has gone; then nobody holds the process either.
        let _ = told.send(copied);
        let _ = released.recv();
        tracer.let_go();
    } else {
        tracer.let_go();
        let _ = told.send(copied);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Seized, and still running.
    Seized,
    /// Asked to stop.
    Asked,
    Stopped {
        signal: Option<i32>,
    },
    /// No longer waited for.
    GivenUp(NotStopped),
    Ended,
}

struct Tracee {
    tid: i32,
    name: Option<String>,
    /// Whether it ran, or was ready to run, when it was seized.
    runs: bool,
    state: State,
    is_copied: bool,
}

struct Tracer {
    pid: u32,
    threads: Vec<Tracee>,
    known: HashSet<i32>,
    copied: Copied,
    /// Bytes that may still be copied from deeper parts of stacks.
    left: u64,
}

impl Tracer {
    fn stop_and_copy(&mut self) -> Result<Copied, Error> {
        // The ends of stacks hardly ever change, so this is read while the process still runs.
        self.copied.reader = living_thread(self.pid);
        let before = proc::maps(self.copied.reader).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Error::NotPermitted(missing_permission(self.pid)),
            _ => Error::Gone,
        })?;
        // Seizing does not stop a thread: all threads stop close together afterwards.
        self.seize_new(false)?;
        self.stop(|thread| !thread.runs);
        self.copy_new(&before)?;
        self.stop(|_| true);
        for _ in 0..MOST_ROUNDS {
            let seen = self.threads.len();
            if !self.are_all() {
                self.seize_new(true)?;
            }
            if self.threads.len() == seen {
                break;
            }
            self.stop(|_| true);
        }
        self.copy_new(&before)?;
        self.copied.maps = proc::maps_text(self.copied.reader).map_err(|error| match error.raw_os_error() {
            // It was killed while it stood still.
            Some(libc::ENOENT | libc::ESRCH) => Error::Gone,
            _ => system(&error),
        })?;
        if self.copied.threads.is_empty() {
            return Err(Error::Gone);
        }
        Ok(std::mem::take(&mut self.copied))
    }

    /// Whether all threads of the process are known: as many as the kernel counts.
    fn are_all(&self) -> bool {
        let alive = self.threads.iter().filter(|thread| thread.state != State::Ended);
        proc::thread_count(self.pid) == Some(alive.count())
    }

    /// Seizes the threads that were not seen before.
    fn seize_new(&mut self, is_later: bool) -> Result<(), Error> {
        let tids = match proc::threads(self.pid as i32) {
            Ok(tids) => tids,
            Err(_) if is_later => return Ok(()),
            Err(_) => return Err(Error::Gone),
        };
        let mut refused = None;
        let new: Vec<i32> = tids.into_iter().filter(|tid| self.known.insert(*tid)).collect();
        let seize = || new.iter().map(|&tid| ptrace::seize(tid)).collect::<Vec<_>>();
        let results = while_ends_are_taken(self.pid, &self.known, seize);
        for (&tid, result) in new.iter().zip(results) {
            match result {
                Ok(()) => {
                    let (name, state) = proc::thread_stat(self.pid, tid as u32).unzip();
                    self.threads.push(Tracee {
                        tid,
                        name,
                        runs: state == Some('R'),
                        state: State::Seized,
                        is_copied: false,
                    });
                }
                // It has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => refused = refused.or(Some((tid, error))),
            }
        }
        match refused {
            // A thread that has ended is left out; so is the first one, which remains as a zombie
            // for the others.
            Some((tid, error)) if self.threads.is_empty() => Err(self.why(tid, &error)),
            _ => Ok(()),
        }
    }

    fn why(&self, tid: i32, error: &io::Error) -> Error {
        match proc::thread_state(self.pid, tid as u32) {
            None => return Error::Gone,
            Some('Z' | 'X') => return Error::Zombie,
            Some(_) => {}
        }
        if error.raw_os_error() != Some(libc::EPERM) {
            return system(error);
        }
        Error::NotPermitted(missing_permission(self.pid))
    }

    /// Stops those of the running threads that `which` selects.
    fn stop(&mut self, which: impl Fn(&Tracee) -> bool) {
        let chosen = self
            .threads
            .iter_mut()
            .filter(|thread| thread.state == State::Seized && which(thread));
        for thread in chosen {
            thread.state = match ptrace::interrupt(thread.tid) {
                Ok(()) => State::Asked,
                Err(_) => State::Ended,
            };
        }
        self.wait();
    }

    fn asked(&mut self) -> impl Iterator<Item = &mut Tracee> {
        self.threads.iter_mut().filter(|thread| thread.state == State::Asked)
    }

    /// Waits until every interrupted thread has stopped, has ended, or is not worth waiting for.
    fn wait(&mut self) {
        let begin = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            let mut missing = false;
            for thread in self.asked() {
                match ptrace::progress(thread.tid) {
                    Ok(Progress::Running) => missing = true,
                    Ok(Progress::Stopped { signal }) => thread.state = State::Stopped { signal },
                    Ok(Progress::Ended) | Err(_) => thread.state = State::Ended,
                }
            }
            if !missing {
                return;
            }
            self.give_up(begin.elapsed());
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    fn give_up(&mut self, waited: Duration) {
        if waited < UNINTERRUPTIBLE_WAIT {
            return;
        }
        let pid = self.pid;
        for thread in self.asked() {
            match proc::thread_state(pid, thread.tid as u32) {
                None => thread.state = State::Ended,
                Some('D') => thread.state = State::GivenUp(NotStopped::Uninterruptible),
                Some(_) if waited > LONGEST_WAIT => thread.state = State::GivenUp(NotStopped::Late),
                Some(_) => {}
            }
        }
    }

    /// Copies the registers and stacks of the threads that have stopped since the last time.
    fn copy_new(&mut self, maps: &[MapsEntry]) -> Result<(), Error> {
        let first = self.copied.threads.len();
        self.copy_registers()?;
        self.copy_stacks(first, maps);
        Ok(())
    }

    fn copy_registers(&mut self) -> Result<(), Error> {
        let user = &Arch::native().user;
        let mut set = vec![0; user.bytes];
        for thread in self.threads.iter_mut().filter(|thread| !thread.is_copied) {
            let registers = match thread.state {
                State::Seized | State::Ended | State::Asked => continue,
                State::GivenUp(why) => Err(why),
                State::Stopped { .. } => match ptrace::registers(thread.tid, ptrace::NT_PRSTATUS, &mut set) {
                    Ok(len) if len < user.bytes => return Err(Error::Bits32),
                    Ok(_) => {
                        let set = Bytes::new(&set, Endian::NATIVE);
                        let registers = user.registers(|at| set.u64(at).ok());
                        Ok(registers.ok_or(Error::Bits32)?)
                    }
                    // It was killed while it stood still.
                    Err(_) => continue,
                },
            };
            thread.is_copied = true;
            self.copied.threads.push(CopiedThread {
                tid: thread.tid,
                name: thread.name.take(),
                registers,
                vectors: vector_registers(thread.tid),
            });
        }
        Ok(())
    }

    /// Copies the used part of each stack from this thread on: from the red zone to the end of its
    /// mapping, the first part of all stacks before more of any.
    fn copy_stacks(&mut self, first: usize, maps: &[MapsEntry]) {
        let arch = Arch::native();
        let mut stacks = Vec::with_capacity(self.copied.threads.len() - first);
        let mut deeper = Vec::new();
        for thread in &self.copied.threads[first..] {
            let Some(sp) = thread.registers.ok().and_then(|registers| registers.get(arch.sp)) else {
                continue;
            };
            let start = sp.wrapping_sub(arch.red_zone) & !7;
            let end = mapping_end(maps, sp).unwrap_or(start.saturating_add(FIRST_COPY));
            let wanted = end.saturating_sub(start).min(LONGEST_COPY);
            let first = self.copy(start, wanted.min(FIRST_COPY));
            if first.len() as u64 == FIRST_COPY && wanted > FIRST_COPY {
                deeper.push((start + FIRST_COPY, wanted - FIRST_COPY));
            }
            stacks.push((start, first));
        }
        for (start, wanted) in deeper {
            let bytes = self.copy(start, wanted.min(self.left));
            self.left -= bytes.len() as u64;
            stacks.push((start, bytes));
        }
        self.copied.stacks.append(&mut stacks);
    }

    /// Copies as much as can be read.
    fn copy(&self, start: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        let read = sys::read_process(self.copied.reader as i32, start, &mut bytes).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// Lets every stopped thread go, busy ones first. Those that were not waited for are released
    /// when this thread ends.
    fn let_go(&mut self) {
        self.threads.sort_by_key(|thread| !thread.runs);
        for thread in self.threads.drain(..) {
            if let State::Stopped { signal } = thread.state {
                // It may have been killed.
                let _ = ptrace::detach(thread.tid, signal);
            }
        }
    }
}

/// The first thread, or another if the first one has ended before them and remains as a zombie,
/// without memory.
fn living_thread(pid: u32) -> u32 {
    let has_ended = |tid: u32| matches!(proc::thread_state(pid, tid), None | Some('Z' | 'X'));
    if !has_ended(pid) {
        return pid;
    }
    let threads = proc::threads(pid as i32).unwrap_or_default();
    let living = threads.into_iter().map(|tid| tid as u32).find(|&tid| !has_ended(tid));
    living.unwrap_or(pid)
}

fn mapping_end(maps: &[MapsEntry], address: u64) -> Option<u64> {
    let index = maps.partition_point(|map| map.end <= address);
    maps.get(index).filter(|map| map.start <= address).map(|map| map.end)
}

/// Why the kernel may have returned `EPERM` (ptrace(2), "Ptrace access mode checking").
fn missing_permission(pid: u32) -> Reason {
    let status = proc::text(&format!("/proc/{pid}/status")).unwrap_or_default();
    if let Some(by) = proc::status_field(&status, "TracerPid").filter(|&by| by != 0) {
        return Reason::Traced(by);
    }
    let own = proc::text("/proc/self/status").unwrap_or_default();
    let user = proc::status_field(&status, "Uid");
    if let Some(user) = user
        && Some(user) != proc::status_field(&own, "Uid")
    {
        return Reason::OtherUser(user);
    }
    match proc::setting("/proc/sys/kernel/yama/ptrace_scope") {
        Some(scope) if scope > 0 => Reason::PtraceScope(scope),
        _ => Reason::Unknown,
    }
}
