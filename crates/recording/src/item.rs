//! The items of a recording, in time order.

use std::ops::Range;

/// Why a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stop {
    /// The outermost frame was reached: `_start`, or the start of a thread. The stack is complete.
    EndOfStack = 0,
    /// The address lies in no mapped file.
    NoModule = 1,
    /// The module has no table for the address.
    NoTable = 2,
    /// A word of the stack could not be read.
    Unreadable = 3,
    /// The caller's stack pointer is not above the frame's.
    DidNotAdvance = 4,
    /// The rule needs a register whose value is unknown in this frame.
    NotExpressible = 5,
    /// More frames than the limit.
    Limit = 6,
    /// There was no user stack to walk (a kernel thread, or a process that was ending).
    NoUserStack = 7,
    /// The caller's frame lies beyond the copy of the stack that came with the sample, and its
    /// memory may have changed since.
    BeyondCopy = 8,
    /// The presumed return address, found without a table row, does not follow a call that leads
    /// here.
    NoCall = 9,
    /// A chain of frame pointers ends in code that no table names as the start of a stack.
    NoStart = 10,
}

impl Stop {
    /// All reasons, by number.
    pub const ALL: [Stop; 11] = [
        Stop::EndOfStack,
        Stop::NoModule,
        Stop::NoTable,
        Stop::Unreadable,
        Stop::DidNotAdvance,
        Stop::NotExpressible,
        Stop::Limit,
        Stop::NoUserStack,
        Stop::BeyondCopy,
        Stop::NoCall,
        Stop::NoStart,
    ];

    /// The reason with this number.
    pub fn from_number(number: u8) -> Option<Stop> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name in traces and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Stop::EndOfStack => "end_of_stack",
            Stop::NoModule => "no_module",
            Stop::NoTable => "no_table",
            Stop::Unreadable => "unreadable",
            Stop::DidNotAdvance => "did_not_advance",
            Stop::NotExpressible => "not_expressible",
            Stop::Limit => "limit",
            Stop::NoUserStack => "no_user_stack",
            Stop::BeyondCopy => "beyond_copy",
            Stop::NoCall => "no_call",
            Stop::NoStart => "no_start",
        }
    }
}

/// Whether the address belongs to the kernel: on every supported CPU, the half of the address space
/// that is negative as a signed number.
pub fn is_kernel_address(address: u64) -> bool {
    (address as i64) < 0
}

/// The kind of a frame's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameKind {
    /// The instruction that was about to run: look it up as it is.
    Pc,
    /// A return address: the call lies before it.
    Ra,
    /// Not an address: `address` is the number of frames that were left out here.
    Omitted,
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The kind of its address.
    pub kind: FrameKind,
    /// The address (or the count, see [`FrameKind::Omitted`]).
    pub address: u64,
}

/// A file that is mapped into a process. A later one replaces the parts that it overlaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// When it was first seen, in nanoseconds of the trace's clock.
    pub time: u64,
    /// Process.
    pub pid: u32,
    /// Address of its first byte (the page of the lowest loaded segment).
    pub base: u64,
    /// Bytes from there to the end of its last segment.
    pub size: u64,
    /// The addresses of this mapping of the file. Programs map parts of a file again elsewhere,
    /// each with its own base. `None` means everything from the base to the end of the last
    /// segment.
    pub mapped: Option<Range<u64>>,
    /// Whether its addresses are relative to the base; those of a fixed-position executable are the
    /// absolute ones that it was linked for.
    pub position_independent: bool,
    /// Path, as the process saw it; `[vdso]` and the like if it is not a file.
    pub path: String,
    /// Build id; empty if there is none.
    pub build_id: Vec<u8>,
    /// 0 if the recorder saw this file at its path. Otherwise, it was in another root, such as a
    /// container's, or had no name any more: this number distinguishes it from all others of the
    /// recording, which may have the same path.
    pub elsewhere: u32,
}

impl Module {
    /// The addresses that belong to the module.
    pub fn addresses(&self) -> Range<u64> {
        let whole = self.base..self.base.saturating_add(self.size);
        self.mapped.clone().unwrap_or(whole)
    }
}

/// Whether a file with this path describes the code that a program makes while it runs:
/// `jit-PID.dump`, which programs map so that observers of mappings find it.
pub fn is_jit_dump(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let number = name.strip_prefix("jit-").and_then(|rest| rest.strip_suffix(".dump"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A thread's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadName {
    /// When it was first seen.
    pub time: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Name.
    pub name: String,
}

/// A sample of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// When, in nanoseconds of the trace's clock.
    pub time: u64,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The stack, from the leaf outwards. Kernel addresses (negative as signed numbers) come first.
    pub frames: &'a [Frame],
    /// Why the stack ends; `None` if its definition was lost with an earlier part of the trace, so
    /// that only the leaf is known.
    pub stop: Option<Stop>,
    /// Whether outer frames were read from the running process after the sample was taken.
    pub live: bool,
    /// Whether the kernel walked the stack at the moment of the sample, instead of copying it.
    pub in_kernel: bool,
    /// If the thread left the CPU with this stack: how long, and what woke it. `time` is when it
    /// went on.
    pub wait: Option<Wait<'a>>,
    /// If the sample is a call of the leaf's function: the values of the general registers that
    /// pass arguments, in the order of the calling convention. Empty for other samples.
    pub passed: &'a [u64],
    /// What else is known of it.
    pub detail: Detail,
}

/// Where a process runs: its control group, and its namespace of process numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessLabels {
    /// When it was noticed.
    pub time: u64,
    /// Process.
    pub pid: u32,
    /// The path of its control group, as `/proc/PID/cgroup` has it.
    pub group: String,
    /// The inode of its namespace of process numbers; 0 if it is not known.
    pub namespace: u64,
    /// Its number there.
    pub inner_pid: u32,
}

/// Why a thread left the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WaitKind {
    /// It had to wait for something.
    Blocked = 0,
    /// Another thread got the CPU.
    Preempted = 1,
    /// It had to wait, and did so until the recording ended.
    Unfinished = 2,
}

impl WaitKind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<WaitKind> {
        [WaitKind::Blocked, WaitKind::Preempted, WaitKind::Unfinished]
            .get(usize::from(number))
            .copied()
    }
}

/// A time without the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait<'a> {
    /// Why.
    pub kind: WaitKind,
    /// Nanoseconds until it went on.
    pub duration: u64,
    /// The nanoseconds of them after it was woken, in which it only waited for a CPU; 0 if that is
    /// not known.
    pub ready: u64,
    /// Who woke it, if that is known.
    pub waker: Option<Waker<'a>>,
}

/// The thread that woke another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waker<'a> {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Whether it was only interrupted: a timer or a device woke the other thread.
    pub interrupt: bool,
    /// Its stack, from the leaf outwards; empty if only its number is known.
    pub frames: &'a [Frame],
    /// Why that stack ends.
    pub stop: Option<Stop>,
}

/// What a sample says besides its stack, in recordings where samples say more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    #[default]
    Nothing,
    /// It is a call that has ended: `time` is when that was known, and the stack is that of its
    /// beginning.
    Call(FinishedCall),
    /// It is of the event with this number, in [`Origin::events`](crate::Origin).
    Event(u8),
    /// The same, and how often the event happened for this sample: it differs from sample to
    /// sample.
    Counted {
        /// The number of the event; 0 if it is the only one.
        event: u8,
        /// How often it happened.
        count: u64,
    },
}

/// A call of a function that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedCall {
    /// When it began, in nanoseconds of the machine's monotonic clock.
    pub begin: u64,
    /// How long it took, in nanoseconds.
    pub duration: u64,
}

/// One entry of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A mapped file.
    Module(Module),
    /// The process started another program; its mappings are gone.
    Exec {
        /// When.
        time: u64,
        /// Process.
        pid: u32,
    },
    /// A thread's name.
    ThreadName(ThreadName),
    /// Where a process runs.
    ProcessLabels(ProcessLabels),
    /// A new process or thread.
    Fork {
        /// When.
        time: u64,
        /// The new process (for a thread, its parent's).
        pid: u32,
        /// The new thread.
        tid: u32,
        /// The process that created it.
        parent: u32,
    },
    /// A thread ended.
    Exit {
        /// When.
        time: u64,
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    },
    /// Samples that the kernel could not deliver.
    Lost {
        /// When it was noticed.
        time: u64,
        /// How many.
        count: u64,
    },
    /// A sample.
    Sample(Sample<'a>),
}
