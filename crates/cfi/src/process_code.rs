//! The questions that unwinding asks about a process's code.

use std::hash::Hash;
use std::ops::Range;

use backtrail_arch::Arch;

use crate::registers::FunctionRule;

/// The code of a process.
pub trait ProcessCode {
    /// A piece of code that is mapped.
    type Mapping: Copy;
    /// Identifies an address: answers are cached by it.
    type Place: Copy + Eq + Hash;

    /// The CPU.
    fn arch(&self) -> &'static Arch;

    /// A number that identifies this process.
    fn process(&self) -> u32;

    /// The code that is mapped at an address.
    fn find(&self, address: u64) -> Option<Self::Mapping>;

    /// The addresses of a mapping.
    fn range(&self, mapping: Self::Mapping) -> Range<u64>;

    /// Identifies an address in, or right after, a mapping.
    fn place(&self, mapping: Self::Mapping, address: u64) -> Self::Place;

    /// Whether a mapping contains a file's code, not memory that the process filled itself.
    fn is_file(&self, mapping: Self::Mapping) -> bool;

    /// Whether two mappings belong to one file.
    fn is_same_file(&self, one: Self::Mapping, other: Self::Mapping) -> bool;

    /// Whether there is a table for a mapping.
    fn has_table(&self, mapping: Self::Mapping) -> bool;

    /// The function in a mapping's table that has the code at `address`.
    fn function_at(&self, mapping: Self::Mapping, address: u64) -> Option<Range<u64>>;

    /// The function that call frame information describes at `address`, whether or not table rows
    /// can express its rules.
    fn described_function(&self, mapping: Self::Mapping, address: u64) -> Option<Range<u64>>;

    /// Whether a mapping's file has call frame information.
    fn has_call_frames(&self, mapping: Self::Mapping) -> bool;

    /// Known starts of functions of a mapping's file in `range`, in order; there may be others.
    fn starts(&self, mapping: Self::Mapping, range: Range<u64>) -> Vec<u64>;

    /// The address of an object that a mapping's file exports.
    fn object(&self, mapping: Self::Mapping, name: &str) -> Option<u64> {
        let mut objects = self.objects(mapping, name).into_iter();
        objects.find_map(|(found, address)| (found == name).then_some(address))
    }

    /// The names and addresses of the objects that a mapping's file exports under names that begin
    /// with `prefix`.
    fn objects(&self, mapping: Self::Mapping, prefix: &str) -> Vec<(String, u64)>;

    /// Whether call frame information describes the code at `address`.
    fn is_described(&self, mapping: Self::Mapping, address: u64) -> bool;

    /// What call frame information says about the code at `address`.
    fn rule(&self, mapping: Self::Mapping, address: u64) -> Option<FunctionRule>;

    /// Copies memory from `start` on and returns the number of bytes copied.
    fn read(&self, start: u64, bytes: &mut [u8]) -> usize;

    /// All mappings.
    fn regions(&self) -> Vec<Region>;
}

/// A range of mapped memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it is writable.
    pub writable: bool,
    /// Whether it is executable.
    pub executable: bool,
    /// The file's path; empty for memory without one.
    pub path: String,
}

/// Reads a pointer.
pub(crate) fn word(process: &impl ProcessCode, address: u64) -> Option<u64> {
    number(process, address, 8)
}

/// Reads a number of up to 8 bytes.
pub(crate) fn number(process: &impl ProcessCode, address: u64, bytes: usize) -> Option<u64> {
    let mut buffer = [0; 8];
    let read = process.read(address, buffer.get_mut(..bytes)?);
    (read == bytes).then(|| u64::from_le_bytes(buffer))
}
