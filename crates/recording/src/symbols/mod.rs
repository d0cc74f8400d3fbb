//! The names of the addresses of a recording, kept in it: a report then needs no other file.
//!
//! They are events of a stream of their own, whose file is [`FILE`]: the stream can be added to a
//! recording at any time, and removed.

mod decode;
mod encode;
mod stream;

pub use decode::{SymbolsError, decode};
pub use encode::encode;
pub(crate) use stream::read;
pub use stream::{AddError, add_symbols};

/// The name of the stream's file.
pub(crate) const FILE: &str = "symbols";

/// A call that was active at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Call {
    /// The function's name, demangled; never empty.
    pub function: String,
    /// Bytes from the function's start, if it is known and the function is not inlined.
    pub offset: Option<u64>,
    /// Source file, if there is debugging information.
    pub file: Option<String>,
    /// Line in the source file, from 1.
    pub line: Option<u32>,
    /// Whether the call was inlined: it has no frame of its own on the stack.
    pub inlined: bool,
}

/// All names of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// Files, the kernel and processes.
    pub spaces: Vec<SymbolSpace>,
    /// What a report says about names that are missing, one sentence each.
    pub notes: Vec<String>,
}

/// Addresses with one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolSpace {
    /// Whose addresses they are.
    pub owner: SpaceOwner,
    /// In the order of addresses, then of times.
    pub entries: Vec<SymbolEntry>,
}

/// Who has addresses of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SpaceOwner {
    /// A file; addresses are those that it was linked for.
    File {
        /// Path, as recorded.
        path: String,
        /// Build id, as recorded.
        build_id: Vec<u8>,
        /// As [recorded](crate::Module::elsewhere).
        elsewhere: u32,
        /// The lowest address of its segments, which is loaded at a module's base.
        base_vaddr: u64,
    },
    /// The kernel.
    Kernel,
    /// A process, for its memory without files.
    Process(u32),
}

/// The names of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolEntry {
    /// The address.
    pub address: u64,
    /// In a process: nanoseconds of the monotonic clock from which on the names hold, until the
    /// next entry of the same address.
    pub time: u64,
    /// The short name of the module; empty in a file, which has it from its path.
    pub module: String,
    /// The calls, innermost first; never empty.
    pub calls: Vec<Call>,
}
