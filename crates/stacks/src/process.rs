//! Stacks without function names.

use std::fmt;
use std::sync::Arc;

use backtrail_arch::{REGISTERS, Register, Registers};
use backtrail_process::snapshot::NotStopped;
use backtrail_recording::Module;
use backtrail_unwind::{AddressKind, Stop};

/// The stacks of a process, and what is needed to name their frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its process ID; 0 if unknown.
    pub pid: u32,
    /// The program's name, truncated by the kernel.
    pub name: String,
    /// The CPU, as `uname -m` names it.
    pub architecture: String,
    /// The signal that killed it.
    pub signal: Option<u32>,
    /// The threads.
    pub threads: Vec<ThreadStack>,
    /// The modules that contain frames, by ascending address.
    pub modules: Vec<Module>,
}

/// The stack of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStack {
    /// Its thread ID.
    pub tid: u32,
    /// Its name, if known.
    pub name: Option<String>,
    /// The signal that it stopped or died with.
    pub signal: Option<u32>,
    /// The frames, the innermost first.
    pub frames: Vec<Frame>,
    /// Why the stack ends there.
    pub end: End,
    /// Whether memory was needed that had not been copied while the process was stopped: the stack
    /// ends there, or arguments and code made at run time are those of a later moment.
    pub lacked_memory: bool,
    /// The registers of the frames, if requested
    /// ([`Options::registers`](crate::Options::registers)).
    pub registers: FrameRegisters,
    /// The arguments of each frame's function, if requested
    /// ([`Options::arguments`](crate::Options::arguments)).
    pub arguments: Vec<Vec<Argument>>,
}

/// The registers of a stack's frames.
///
/// A frame's registers are those with which it continues: all of them for the innermost frame and
/// for code that a signal interrupted; for other frames, the known ones after the call has
/// returned. The CFA of a frame is the next frame's stack pointer minus
/// [`Arch::sp_from_cfa`](backtrail_arch::Arch::sp_from_cfa).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameRegisters {
    /// Which are known, by DWARF number, and the index of the first value.
    frames: Vec<(u32, usize)>,
    values: Vec<u64>,
}

impl FrameRegisters {
    /// The registers of the frame with this index; `None` if they were not kept.
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

    #[doc(hidden)]
    pub fn push(&mut self, registers: &Registers) {
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
    /// Its name; empty if it has none.
    pub name: Arc<str>,
    /// Its type, if known.
    pub type_name: Option<Arc<str>>,
    /// Its value; `None` if it is lost.
    pub value: Option<String>,
    /// Where the value was found.
    pub place: Option<Arc<str>>,
    /// Whether this is the value at the call, which the function may have changed since.
    pub at_entry: bool,
    /// The addresses of functions in the value, by ascending ends of their texts there.
    pub code: Vec<(usize, u64)>,
    /// Whether it is shown in full.
    pub hidden: Hidden,
}

/// What is not shown of an argument's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hidden {
    /// Nothing is left out.
    #[default]
    Nothing,
    /// No value is shown.
    Value,
    /// Text in it is left out.
    Text,
    /// It has a name that is not shown, or a member of it has.
    Name,
}

impl Hidden {
    /// The name in JSON; `None` if nothing is hidden.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Hidden::Nothing => None,
            Hidden::Value => Some("value"),
            Hidden::Text => Some("text"),
            Hidden::Name => Some("name"),
        }
    }
}

/// Formats as `name=value`; as `name@entry=value` if the function may have changed it since, with
/// `...` for a lost value.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = if self.at_entry { "@entry" } else { "" };
        if self.hidden == Hidden::Value {
            let type_name = self.type_name.as_deref().unwrap_or("...");
            return write!(f, "{}=<{type_name}>", self.name);
        }
        let value = self.value.as_deref().unwrap_or("...");
        write!(f, "{}{entry}={value}", self.name)
    }
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Program counter or return address.
    pub address: u64,
    /// Whether it is a program counter or a return address.
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
    /// By the frame pointer, or, after a call to an address without code, by the CPU's calling
    /// rules.
    FramePointer,
    /// By the registers that the kernel saved when a signal arrived.
    Signal,
}

impl How {
    /// All ways to find a frame.
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

/// Why a stack ends.
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

    /// Its name in JSON; walks have the same names as in recordings.
    pub fn name(self) -> &'static str {
        let same = |end: &End| match (self, *end) {
            (End::Stop(one), End::Stop(other)) => std::mem::discriminant(&one) == std::mem::discriminant(&other),
            (one, other) => one == other,
        };
        let found = Self::NAMES.iter().find(|(_, end)| same(end));
        found.map_or("unreadable", |(name, _)| name)
    }

    /// The reason with this name, without the address or register that some reasons have.
    pub fn of_name(name: &str) -> Option<End> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, end)| end)
    }
}
