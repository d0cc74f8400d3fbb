//! The structs that programs and the library exchange: each begins with its size, as the program
//! knows it.

use std::ffi::{c_char, c_int};

use crate::options::Options;

/// `struct backtrail_types_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TypesOptions {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// Whether types are made from debug information where the file has no section of them.
    pub debug_information: c_int,
    /// 0.
    pub reserved: c_int,
}
// SAFETY: integers.
unsafe impl Options for TypesOptions {}

/// `struct backtrail_type`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TypeInfo {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// `BACKTRAIL_KIND_…`.
    pub kind: c_int,
    /// Of a function, whether more arguments may follow.
    pub variadic: c_int,
    /// Never null.
    pub name: *const c_char,
    /// Bytes; 0 where there are none.
    pub bytes: u64,
    /// What it refers to; 0 for nothing.
    pub refers: u64,
    /// Elements of an array; members, values, arguments.
    pub count: u64,
}

/// `struct backtrail_type_part`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TypePart {
    /// Bytes of the struct.
    pub size: usize,
    /// Never null.
    pub name: *const c_char,
    /// The type of a member or an argument; 0 for none.
    pub id: u64,
    /// Bits from the struct's start to a member.
    pub bit_offset: u64,
    /// The value of an enumerator.
    pub value: i64,
    /// Bits of a bit field, else 0.
    pub bits: c_int,
    /// 0.
    pub reserved: c_int,
}

/// Writes a struct to a caller who knows as many bytes of it as its `size` says; what the caller
/// knows beyond that becomes 0.
///
/// # Safety
/// `to` is null or points to as many bytes as the size says that they begin with.
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
    // SAFETY: within both; behind what is known, within the size that the caller gave.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast::<u8>(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
    }
    Ok(())
}
