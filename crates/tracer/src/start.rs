//! How a process's session starts, and what happens to it in forks.

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::clock::{self, Clock};
use crate::contexts::Contexts;
use crate::layout::{Geometry, MAGIC, PAGE, class, flag, head};
use crate::map::Map;
use crate::options::{Destination, Options};
use crate::ring::Ring;
use crate::session::{Session, file_name};
use crate::{classes, collect, drainer, modules, room, rules, thread};

static STARTING: Mutex<()> = Mutex::new(());

/// Room for the table of classes: thousands of them.
const CLASS_BYTES: usize = 1 << 20;

impl Session {
    /// Starts the process's session.
    pub(crate) fn start(options: Options) -> io::Result<&'static Session> {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if Session::get().is_some() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "tracing has already started",
            ));
        }
        if let Some(rule) = rules::wrong(&options.rules) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("not a rule: {rule}"),
            ));
        }
        let destination = options
            .destination
            .clone()
            .unwrap_or_else(|| Destination::Folder(collect::default_folder()));
        // A collector that started the program has precedence.
        let (destination, rules) = match collect::folder_of_starter() {
            Some(folder) => {
                let rules = fs::read_to_string(folder.join(collect::RULES_FILE));
                (Destination::Folder(folder), rules.unwrap_or_default())
            }
            None => (destination, options.rules.clone()),
        };
        if options.stacks {
            backtrail_local::init_with(modules::following())?;
        }
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "sizes of rings");
        let geometry = Geometry::new(
            options.threads as u64,
            options.packet_bytes as u64,
            options.packets as u64,
            CLASS_BYTES as u64,
        );
        let geometry = geometry.ok_or_else(invalid)?;
        let (file, name) = create(&destination)?;
        file.set_len(geometry.total() as u64)?;
        if !reserve_counters(&file, geometry) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let map = Map::new(&file, geometry)?;
        let clock = Clock::choose();
        let overwrite = matches!(destination, Destination::FlightRecorder(_));
        describe(&map, &options, &rules, clock, overwrite)?;
        let session = Session {
            map,
            rings: (0..geometry.rings)
                .map(|index| Ring::new(&map, index, overwrite, clock))
                .collect(),
            seekers: AtomicUsize::new(0),
            contexts: Contexts::new(options.contexts, options.own.iter().map(|&(_, value)| value).collect()),
            sample: options.sample,
            has_stacks: options.stacks,
            name,
            destination,
            flush: options.flush,
        };
        let session: &'static Session = Box::leak(Box::new(session));
        room::replace(file.into_raw_fd());
        session.publish();
        classes::start_entering();
        // SAFETY: the functions may run at any fork from now on.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
        Ok(session)
    }
}

/// Creates the file, and says how those of children are called.
fn create(destination: &Destination) -> io::Result<(File, Option<CString>)> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    match destination {
        Destination::Directory(folder) | Destination::Folder(folder) => {
            collect::make_meeting_folder(folder)?;
            let path = folder.join(file_name(std::process::id()));
            // That of an earlier process with this number, or of this one before an exec.
            if matches!(destination, Destination::Directory(_)) {
                collect::recover_folder(folder, Some(std::process::id()))?;
            }
            let _ = fs::remove_file(&path);
            Ok((new_file(&path)?, Some(name(&folder.join("."))?)))
        }
        Destination::FlightRecorder(Some(path)) => {
            let _ = fs::remove_file(path);
            let mut prefix = path.as_os_str().to_owned();
            prefix.push(".");
            Ok((new_file(path)?, Some(name(Path::new(&prefix))?)))
        }
        Destination::FlightRecorder(None) => Ok((in_memory()?, None)),
    }
}

/// Reserves the page of facts, the first page of the table of classes, and the counters of all
/// rings, which are looked at before a ring is used; false if there is no room.
fn reserve_counters(file: &File, geometry: Geometry) -> bool {
    let file = file.as_raw_fd();
    let mut counters = (0..geometry.rings).map(|ring| geometry.control(ring));
    room::reserve_in(file, 0, 2 * PAGE) && counters.all(|at| room::reserve_in(file, at, PAGE))
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn in_memory() -> io::Result<File> {
    // SAFETY: the name is a string.
    let file = unsafe { libc::memfd_create(c"backtrail".as_ptr(), libc::MFD_CLOEXEC) };
    match file {
        ..0 => Err(io::Error::last_os_error()),
        // SAFETY: a new file that nobody else has.
        file => Ok(unsafe { File::from_raw_fd(file) }),
    }
}

/// Writes the first page.
fn describe(map: &Map, options: &Options, rules: &str, clock: Clock, overwrite: bool) -> io::Result<()> {
    let geometry = &map.geometry;
    let (ticks, monotonic, wall) = clock::moment(clock);
    let mut flags = if overwrite { flag::OVERWRITE } else { 0 };
    if clock == Clock::Counter {
        flags |= flag::COUNTER;
    }
    let frequency = match clock {
        Clock::Counter => clock::frequency().unwrap_or(0),
        Clock::Monotonic => 1_000_000_000,
    };
    let pid = std::process::id();
    for (at, value) in [
        (head::FLAGS, flags),
        (head::PID, pid.into()),
        (head::RINGS, geometry.rings as u64),
        (head::PACKET_BYTES, geometry.packet_bytes as u64),
        (head::PACKETS, geometry.packets as u64),
        (head::CLASS_BYTES, geometry.class_bytes as u64),
        (head::STARTED, collect::started(pid).unwrap_or(0)),
        (head::BASE_TICKS, ticks),
        (head::BASE_MONOTONIC, monotonic),
        (head::BASE_WALL, wall),
        (head::FREQUENCY, frequency),
        (head::CONTEXTS, options.contexts),
        (head::SAMPLE, options.sample),
    ] {
        map.word(at).store(value, Ordering::Relaxed);
    }
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    map.write(head::UUID, &uuid(&random));
    map.write(head::BOOT_ID, &uuid(&boot));
    let name = |at, bytes: usize, path: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let text = text.trim_end().as_bytes();
        map.write(at, text.get(..text.len().min(bytes)).unwrap_or_default());
    };
    name(head::COMM, head::COMM_BYTES, "/proc/self/comm");
    name(head::HOST, head::HOST_BYTES, "/proc/sys/kernel/hostname");
    let own: String = options.own.iter().map(|(name, _)| format!("{name}\n")).collect();
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let fits = own.len() < head::OWN_BYTES && rules.len() < head::RULES_BYTES;
    if !fits || !options.own.iter().all(|(name, _)| is_name(name)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "names of contexts, or rules, are too long or not names",
        ));
    }
    map.write(head::OWN, own.as_bytes());
    map.write(head::RULES, rules.as_bytes());
    // Last: now the file is one of rings.
    map.word(head::MAGIC).store(MAGIC, Ordering::Release);
    Ok(())
}

/// The 16 bytes of a UUID in text.
fn uuid(text: &str) -> [u8; 16] {
    let digits: Vec<u8> = text
        .bytes()
        .filter_map(|byte| char::from(byte).to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    let mut bytes = [0; 16];
    for (place, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *place = pair.iter().fold(0, |byte, digit| byte << 4 | digit);
    }
    bytes
}

thread_local! {
    /// The signals that were blocked before this thread's fork.
    static BLOCKED: Cell<Option<libc::sigset_t>> = const { Cell::new(None) };
}

/// No handler may record an event in the child while its rings are still the parent's.
extern "C" fn before_fork() {
    // SAFETY: a set of signals is plain numbers; the calls fill and read them.
    let before = unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    BLOCKED.set(Some(before));
}

extern "C" fn after_fork_in_parent() {
    restore_signals();
}

fn restore_signals() {
    if let Some(before) = BLOCKED.take() {
        // SAFETY: the set was filled by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut()) };
    }
}

/// The child goes on in rings of its own, at the same addresses.
extern "C" fn after_fork_in_child() {
    if let Some(session) = Session::get() {
        if !session.move_to_child() {
            session.become_private();
        }
        session.contexts.pid.store(std::process::id(), Ordering::Relaxed);
        thread::after_fork();
        drainer::after_fork(session);
        if session.has_stacks {
            modules::after_fork();
        }
    }
    restore_signals();
}

impl Session {
    /// Creates the child's file with the parent's classes and maps it in the place of the parent's.
    fn move_to_child(&self) -> bool {
        let pid = std::process::id();
        let path = self.name.as_ref().map(|name| {
            let mut path = std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned();
            path.push(format!("{pid}.rings"));
            PathBuf::from(path)
        });
        let file = match &path {
            None => in_memory(),
            Some(path) => {
                let _ = fs::remove_file(path);
                new_file(path)
            }
        };
        let Ok(file) = file else { return false };
        // With the zero after the last class.
        let mut bytes = vec![0; self.map.used_classes_end() + 8];
        self.map.read(0, &mut bytes);
        become_own(&mut bytes, pid);
        let copied = file.set_len(self.map.geometry.total() as u64).is_ok()
            && std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).is_ok()
            && reserve_counters(&file, self.map.geometry)
            // A writer that the forking handler has interrupted first writes its event to the end.
            && self.rings.iter().all(|ring| !ring.is_busy() || ring.reserve_current(file.as_raw_fd()));
        if !copied || !self.map.replace(file.as_raw_fd()) {
            let _ = path.map(fs::remove_file);
            return false;
        }
        self.move_to_descriptor(file.into_raw_fd());
        true
    }

    /// Gives up the file: the child of a fork that could not have one of its own records nothing.
    fn become_private(&self) {
        let Ok(nothing) = in_memory() else { return };
        let nothing = nothing.into_raw_fd();
        // SAFETY: `nothing` is ours; with this size, all classes are off and all rings are empty.
        unsafe { libc::ftruncate(nothing, self.map.geometry.total() as libc::off_t) };
        self.map.replace(nothing);
        self.move_to_descriptor(nothing);
    }

    /// In the child: the rings are in this file, in which nothing is reserved.
    fn move_to_descriptor(&self, file: libc::c_int) {
        self.rings.iter().for_each(Ring::move_to_other_file);
        let parents = room::replace(file);
        // SAFETY: the child's copy of the descriptor, which nothing else uses.
        drop(unsafe { File::from_raw_fd(parents) });
    }
}

/// Makes a child's first page of its parent's, before a collector can see it: it would take the
/// child for ended when the parent has.
fn become_own(page: &mut [u8], pid: u32) {
    let uuid = page.get(head::UUID..).and_then(|rest| rest.first_chunk());
    let uuid = uuid.map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    // Another trace: another UUID.
    let mixed = u64::from(pid).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ clock::monotonic();
    for (at, value) in [
        (head::PID, u64::from(pid)),
        (head::STARTED, collect::started(pid).unwrap_or(0)),
        (head::COLLECTOR, 0),
        (head::ENDED, 0),
        (head::UNREGISTERED, 0),
        (head::UUID, uuid ^ mixed),
    ] {
        if let Some(place) = page.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = value.to_ne_bytes();
        }
    }
}

impl Map {
    /// The end of the last class in the table.
    pub(crate) fn used_classes_end(&self) -> usize {
        let mut at = PAGE;
        while at < PAGE + self.geometry.class_bytes {
            match self.half(at + class::BYTES).load(Ordering::Acquire) as usize {
                0 => break,
                bytes => at += bytes.next_multiple_of(8),
            }
        }
        at.min(PAGE + self.geometry.class_bytes)
    }
}
