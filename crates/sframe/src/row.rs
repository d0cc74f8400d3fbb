//! The row type for all versions: how to get from a frame to its caller.

/// The base of an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// The canonical frame address.
    Cfa,
    /// A register of the frame, by its DWARF number.
    Register(u8),
}

/// A value: `base + offset`, or with `deref` the word in memory at that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// The base of the offset.
    pub base: Base,
    /// Signed bytes from the base.
    pub offset: i32,
    /// Whether the value is the word in memory at that address.
    pub deref: bool,
}

impl Location {
    /// The value of a register, plus `offset`.
    #[inline]
    pub const fn register(number: u8, offset: i32) -> Location {
        Location {
            base: Base::Register(number),
            offset,
            deref: false,
        }
    }

    /// The word in memory `offset` bytes from the CFA.
    #[inline]
    pub const fn saved(offset: i32) -> Location {
        Location {
            base: Base::Cfa,
            offset,
            deref: true,
        }
    }
}

/// The rule of a row. Under the ABI, the CFA determines the caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// The canonical frame address; its base is always a register.
    pub cfa: Location,
    /// The return address.
    pub ra: Location,
    /// The caller's frame pointer; `None` if the register still holds it.
    pub fp: Option<Location>,
    /// AArch64: the return address carries a pointer authentication code.
    pub mangled_ra: bool,
}

impl Rule {
    /// The rule of code that leaves the frame pointer alone.
    #[inline]
    pub const fn new(cfa: Location, ra: Location) -> Rule {
        Rule {
            cfa,
            ra,
            fp: None,
            mangled_ra: false,
        }
    }
}

/// A row (SFrame frame row entry, FRE): one rule for the code from `start` to the next row's start
/// or the function's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row {
    /// The row's start in bytes from the function's start or, in a repeated pattern, from the
    /// pattern's start.
    pub start: u32,
    /// The rule; `None` marks the outermost frame, which has no caller.
    pub rule: Option<Rule>,
}

/// The properties of a function other than its rows (SFrame function descriptor entry, FDE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Address of the first byte, in the same address space as the section's address.
    pub start: u64,
    /// The size of its code in bytes.
    pub size: u32,
    /// The number of its rows.
    pub rows: u32,
    /// The code is repeated blocks of this many bytes, each with the same rows (PCMASK; PLTs).
    pub repeat: Option<u8>,
    /// The function is a trampoline to which signal handlers return (V3).
    pub signal_frame: bool,
    /// AArch64: return addresses are signed with key B.
    pub pauth_key_b: bool,
}
