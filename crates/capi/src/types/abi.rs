//! Structs that programs exchange with the library. Each begins with its size as the program knows
//! it.

use std::ffi::{c_char, c_int};

use crate::options::Options;

/// `struct backtrail_types_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TypesOptions {
    /// Size of the struct as the program knows it.
    pub size: usize,
    /// Whether types are made from debug information if the file has no type section.
    pub debug_information: c_int,
    /// Must be 0.
    pub reserved: c_int,
}
// SAFETY: integers.
unsafe impl Options for TypesOptions {}

/// `struct backtrail_type`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TypeInfo {
    /// Size of the struct as the program knows it.
    pub size: usize,
    /// `BACKTRAIL_KIND_…`.
    pub kind: c_int,
    /// For a function, whether it is variadic.
    pub variadic: c_int,
    /// Never null.
    pub name: *const c_char,
    /// Size in bytes; 0 if there is none.
    pub bytes: u64,
    /// The type it refers to; 0 for none.
    pub refers: u64,
    /// Number of elements of an array, or of members, values or arguments.
    pub count: u64,
}

/// `struct backtrail_type_part`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TypePart {
    /// Size of the struct.
    pub size: usize,
    /// Never null.
    pub name: *const c_char,
    /// The type of a member or an argument; 0 for none.
    pub id: u64,
    /// Offset of a member from the struct's start, in bits.
    pub bit_offset: u64,
    /// The value of an enumerator.
    pub value: i64,
    /// Width of a bit field, otherwise 0.
    pub bits: c_int,
    /// 0.
    pub reserved: c_int,
}

/// Writes a struct for a caller whose version of it has `size` bytes. Bytes that the caller knows
/// beyond ours become 0.
///
/// # Safety
/// `to` is null or points to a struct that begins with its size in bytes.
pub(super) unsafe fn give(value: TypeInfo, to: *mut TypeInfo) -> Result<(), c_int> {
    if to.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as our caller promises; a size comes first.
    let size = unsafe { to.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() {
        return Err(libc::EINVAL);
    }
    let value = TypeInfo { size, ..value };
    let known = size.min(size_of::<TypeInfo>());
    // SAFETY: within both; after our struct, within the size that the caller gave.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast::<u8>(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
    }
    Ok(())
}
