//! Stacks without names.

use std::fmt;
use std::sync::Arc;

use backtrail_arch::{REGISTERS, Register, Registers};
use backtrail_process::snapshot::NotStopped;
use backtrail_recording::Module;
use backtrail_unwind::{AddressKind, Stop};

/// The stacks of a process, and what is needed to give their frames names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number; 0 where it is not told.
    pub pid: u32,
    /// The program's name, as the kernel cuts it off.
    pub name: String,
    /// The CPU, as `uname -m` names it.
    pub architecture: String,
    /// The signal that it died with.
    pub signal: Option<u32>,
    /// The threads.
    pub threads: Vec<ThreadStack>,
    /// The modules that frames lie in, by rising address.
    pub modules: Vec<Module>,
}

/// The stack of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStack {
    /// Its number.
    pub tid: u32,
    /// Its name, where it is told.
    pub name: Option<String>,
    /// The signal that it had stopped or died with.
    pub signal: Option<u32>,
    /// The frames, the innermost first.
    pub frames: Vec<Frame>,
    /// Why there are no more.
    pub end: End,
    /// Whether memory was needed that had not been copied while the process stood still: the stack
    /// ends there, or code made at run time and arguments are those of a later moment.
    pub lacked_memory: bool,
    /// The registers of the frames, where they were asked for
    /// ([`Options::registers`](crate::Options::registers)).
    pub registers: FrameRegisters,
    /// What each frame's function was called with, where that was asked for
    /// ([`Options::arguments`](crate::Options::arguments)).
    pub arguments: Vec<Vec<Argument>>,
}

/// The registers of a stack's frames.
///
/// A frame's registers are those with which it goes on: of the innermost one and of code that a
/// signal interrupted all, of the others as they are when the call has returned, which are those
/// that can be known. The CFA of a frame is the next one's stack pointer, less
/// [`Arch::sp_from_cfa`](backtrail_arch::Arch::sp_from_cfa).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameRegisters {
    /// Which are known, by DWARF number, and where their values begin.
    frames: Vec<(u32, usize)>,
    values: Vec<u64>,
}

impl FrameRegisters {
    /// The registers of the frame with this index; `None` where they were not kept.
    pub fn get(&self, frame: usize) -> Option<Registers> {
        let &(known, first) = self.frames.get(frame)?;
        let mut values = self.values.get(first..)?.iter();
        let mut registers = Registers::new(*values.next()?);
        let mut left = known;
        while left != 0 {
            registers.set(Register(left.trailing_zeros() as u8), *values.next()?);
            left &= left - 1;
        }
        Some(registers)
    }

    pub(crate) fn push(&mut self, registers: &Registers) {
        let first = self.values.len();
        self.values.push(registers.pc);
        let mut known = 0;
        for number in 0..REGISTERS as u8 {
            if let Some(value) = registers.get(Register(number)) {
                known |= 1 << number;
                self.values.push(value);
            }
        }
        self.frames.push((known, first));
    }
}

/// An argument of a frame's function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    /// Its name; empty where it has none.
    pub name: Arc<str>,
    /// Its type, where that is known.
    pub type_name: Option<Arc<str>>,
    /// Its value; `None` where it is lost.
    pub value: Option<String>,
    /// Where that was found.
    pub place: Option<Arc<str>>,
    /// The function may have changed it since: it is what it was called with.
    pub at_entry: bool,
    /// It is the address of this code.
    pub code: Option<u64>,
}

/// `name=value`; `name@entry=value` where the function may have changed it since, and `...` for
/// what is lost.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = if self.at_entry { "@entry" } else { "" };
        let value = self.value.as_deref().unwrap_or("...");
        write!(f, "{}{entry}={value}", self.name)
    }
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Program counter or return address.
    pub address: u64,
    /// Which of the two.
    pub kind: AddressKind,
    /// How it was found.
    pub how: How,
}

/// How a frame was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// By the thread's registers.
    Initial,
    /// By a row of its callee's `.sframe`.
    Sframe,
    /// By its callee's `.eh_frame`.
    EhFrame,
    /// By the frame pointer, or by the CPU's rules for calls where a call led to an address without
    /// code.
    FramePointer,
    /// By the registers that the kernel saved when a signal arrived.
    Signal,
}

impl How {
    /// All of them.
    pub const ALL: [How; 5] = [How::Initial, How::Sframe, How::EhFrame, How::FramePointer, How::Signal];

    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            How::Initial => "initial",
            How::Sframe => "sframe",
            How::EhFrame => "eh_frame",
            How::FramePointer => "frame_pointer",
            How::Signal => "signal",
        }
    }
}

/// Why a stack has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The walk ended.
    Stop(Stop),
    /// It could not begin.
    NotStopped(NotStopped),
}

impl End {
    /// The stack is complete.
    pub const COMPLETE: End = End::Stop(Stop::EndOfStack);

    const NAMES: [(&'static str, End); 11] = [
        ("end_of_stack", End::COMPLETE),
        ("no_module", End::Stop(Stop::NoModule)),
        ("no_table", End::Stop(Stop::NoTable)),
        ("unreadable", End::Stop(Stop::Unreadable(0))),
        ("did_not_advance", End::Stop(Stop::DidNotAdvance)),
        (
            "not_expressible",
            End::Stop(Stop::NotExpressible(backtrail_arch::Register(0))),
        ),
        ("limit", End::Stop(Stop::Limit)),
        ("no_call", End::Stop(Stop::NoCall)),
        ("no_start", End::Stop(Stop::NoStart)),
        ("uninterruptible", End::NotStopped(NotStopped::Uninterruptible)),
        ("not_stopped", End::NotStopped(NotStopped::Late)),
    ];

    /// Its name in JSON; those of walks are the ones of recordings.
    pub fn name(self) -> &'static str {
        let same = |end: &End| match (self, *end) {
            (End::Stop(one), End::Stop(other)) => std::mem::discriminant(&one) == std::mem::discriminant(&other),
            (one, other) => one == other,
        };
        let found = Self::NAMES.iter().find(|(_, end)| same(end));
        found.map_or("unreadable", |(name, _)| name)
    }

    /// The reason with this name; without the address or register that goes with some.
    pub fn of_name(name: &str) -> Option<End> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, end)| end)
    }
}
