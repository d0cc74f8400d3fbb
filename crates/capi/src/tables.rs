//! Unwind tables of a file (SFrame): opening, looking up, walking them.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use backtrail_elf::{File, FileBytes};
use backtrail_sframe::{Base, Fde, Function, Location, Row, Section};

use crate::{code_of, guarded};

/// An open table: its bytes, and the address of the section.
pub struct Table {
    bytes: Vec<u8>,
    address: u64,
}

/// `struct backtrail_function`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FunctionInfo {
    /// Size of the struct.
    pub size: usize,
    /// Address of its first byte, as in the file.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Number of its rows.
    pub rows: u64,
    /// The length of the blocks that the rows repeat for; 0 if they do not.
    pub repeat: c_int,
    /// Whether signal handlers return to it.
    pub signal_frame: c_int,
}

/// `struct backtrail_place`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PlaceInfo {
    /// A register's DWARF number; -1 for the canonical frame address; -2 if there is no rule.
    pub base: c_int,
    /// Whether the value is in memory at that address.
    pub in_memory: c_int,
    /// Bytes to add to the base.
    pub offset: i64,
}

/// `struct backtrail_row`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RowInfo {
    /// Size of the struct.
    pub size: usize,
    /// First address that the row is for.
    pub start: u64,
    /// Whether the function has no caller; the places are empty then.
    pub outermost: c_int,
    /// AArch64: whether the return address carries an authentication code.
    pub mangled_ra: c_int,
    /// The canonical frame address.
    pub cfa: PlaceInfo,
    /// The return address.
    pub ra: PlaceInfo,
    /// The caller's frame pointer.
    pub fp: PlaceInfo,
}

/// Called for each function; a result other than 0 ends the walk.
pub type EachFunction = unsafe extern "C" fn(*mut c_void, *const FunctionInfo) -> c_int;
/// Called for each row; a result other than 0 ends the walk.
pub type EachRow = unsafe extern "C" fn(*mut c_void, *const RowInfo) -> c_int;

const CFA: c_int = -1;
const NOTHING: c_int = -2;

impl Table {
    fn section(&self) -> Result<Section<'_>, c_int> {
        Section::parse(&self.bytes, self.address).map_err(|_| libc::EBADMSG)
    }

    fn open(path: &std::path::Path) -> Result<Table, c_int> {
        let file = FileBytes::open(path).map_err(code_of)?;
        let is_elf = file.bytes().starts_with(b"\x7fELF");
        let table = match is_elf {
            false => Table {
                bytes: file.bytes().to_vec(),
                address: 0,
            },
            true => {
                let parsed = File::of(&file).map_err(|_| libc::EBADMSG)?;
                let section = parsed
                    .section(".sframe")
                    .map_err(|_| libc::EBADMSG)?
                    .ok_or(libc::ENODATA)?;
                Table {
                    bytes: section.data.into_owned(),
                    address: section.address,
                }
            }
        };
        table.section()?;
        Ok(table)
    }
}

/// Opens the table of a file, and stores a handle to be closed by [`backtrail_table_close`].
///
/// # Safety
/// `path` is a string, and `table` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_table_open(path: *const c_char, table: *mut *mut Table) -> c_int {
    guarded(AssertUnwindSafe(|| {
        // SAFETY: as our caller promises.
        let path = unsafe { crate::path(path) }.ok_or(libc::EINVAL)?;
        if table.is_null() {
            return Err(libc::EINVAL);
        }
        let opened = Table::open(&path)?;
        // SAFETY: as our caller promises.
        unsafe { table.write(Box::into_raw(Box::new(opened))) };
        Ok(())
    }))
}

/// Closes a handle of [`backtrail_table_open`]. Does nothing for null.
///
/// # Safety
/// `table` is null, or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_table_close(table: *mut Table) {
    if !table.is_null() {
        // SAFETY: as our caller promises, it is a box's.
        drop(unsafe { Box::from_raw(table) });
    }
}

/// Finds the function and the row for an address.
///
/// # Safety
/// `table` is open; `function` and `row` are null or structs that begin with their sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_table_find(
    table: *const Table,
    pc: u64,
    function: *mut FunctionInfo,
    row: *mut RowInfo,
) -> c_int {
    guarded(AssertUnwindSafe(|| {
        // SAFETY: as our caller promises.
        let section = unsafe { table.as_ref() }.ok_or(libc::EINVAL)?.section()?;
        let found = section.lookup(pc).map_err(|_| libc::EBADMSG)?.ok_or(libc::ENOENT)?;
        // SAFETY: as our caller promises.
        unsafe {
            give(function_info(&found.function), function)?;
            give(row_info(found.function.start, &found.row), row)
        }
    }))
}

/// Calls a function for each function of the table.
///
/// # Safety
/// `table` is open; `each` may be called with `closure`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_table_functions(
    table: *const Table,
    each: Option<EachFunction>,
    closure: *mut c_void,
) -> c_int {
    walked(|| {
        let each = each.ok_or(libc::EINVAL)?;
        // SAFETY: as our caller promises.
        let section = unsafe { table.as_ref() }.ok_or(libc::EINVAL)?.section()?;
        for fde in section.functions() {
            let fde = fde.map_err(|_| libc::EBADMSG)?;
            let info = function_info(&fde.function());
            // SAFETY: as our caller promises.
            let ended = unsafe { each(closure, &raw const info) };
            if ended != 0 {
                return Ok(ended);
            }
        }
        Ok(0)
    })
}

/// Calls a function for each row of the function that begins at `start`.
///
/// # Safety
/// `table` is open; `each` may be called with `closure`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_table_rows(
    table: *const Table,
    start: u64,
    each: Option<EachRow>,
    closure: *mut c_void,
) -> c_int {
    walked(|| {
        let each = each.ok_or(libc::EINVAL)?;
        // SAFETY: as our caller promises.
        let section = unsafe { table.as_ref() }.ok_or(libc::EINVAL)?.section()?;
        let is_it = |fde: &Fde<'_>| fde.function().start == start;
        let fde = section.functions().flatten().find(is_it).ok_or(libc::ENOENT)?;
        for row in fde.rows() {
            let info = row_info(start, &row.map_err(|_| libc::EBADMSG)?);
            // SAFETY: as our caller promises.
            let ended = unsafe { each(closure, &raw const info) };
            if ended != 0 {
                return Ok(ended);
            }
        }
        Ok(0)
    })
}

fn walked(walk: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(walk)) {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => -error,
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

fn function_info(function: &Function) -> FunctionInfo {
    FunctionInfo {
        size: size_of::<FunctionInfo>(),
        start: function.start,
        bytes: function.size.into(),
        rows: function.rows.into(),
        repeat: function.repeat.map_or(0, c_int::from),
        signal_frame: function.signal_frame.into(),
    }
}

fn row_info(start: u64, row: &Row) -> RowInfo {
    let nothing = PlaceInfo {
        base: NOTHING,
        ..PlaceInfo::default()
    };
    RowInfo {
        size: size_of::<RowInfo>(),
        start: start.wrapping_add(row.start.into()),
        outermost: row.rule.is_none().into(),
        mangled_ra: row.rule.is_some_and(|rule| rule.mangled_ra).into(),
        cfa: row.rule.map_or(nothing, |rule| place(rule.cfa)),
        ra: row.rule.map_or(nothing, |rule| place(rule.ra)),
        fp: row.rule.and_then(|rule| rule.fp).map_or(nothing, place),
    }
}

fn place(location: Location) -> PlaceInfo {
    PlaceInfo {
        base: match location.base {
            Base::Cfa => CFA,
            Base::Register(number) => number.into(),
        },
        in_memory: location.deref.into(),
        offset: location.offset.into(),
    }
}

/// Writes a struct for a caller whose version of it has a size of its own; nothing to null. Bytes
/// that the caller knows beyond ours become 0.
///
/// # Safety
/// `to` is null or points to a struct that begins with its size; so does `T`, without padding.
unsafe fn give<T: Copy>(value: T, to: *mut T) -> Result<(), c_int> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: as our caller promises; a size comes first.
    let size = unsafe { to.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() {
        return Err(libc::EINVAL);
    }
    let known = size.min(size_of::<T>());
    // SAFETY: within both; after our struct, within the size that the caller gave. The size stays
    // the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast::<u8>(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
        to.cast::<usize>().write_unaligned(size);
    }
    Ok(())
}
