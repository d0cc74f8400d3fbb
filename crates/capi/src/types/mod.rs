//! The types of a C program, read from a file: opening, finding and walking them.

mod abi;
mod handle;

pub use abi::{TypeInfo, TypePart, TypesOptions};
pub use handle::Handle;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::AssertUnwindSafe;

use backtrail_ctype::{AlignmentRule, Kind, Measures, Type};
use handle::{Id, damage};

use crate::{guarded, options};

/// Called for each type; a result other than 0 ends the walk.
pub type EachType = unsafe extern "C" fn(*mut c_void, u64) -> c_int;
/// Called for each member, value or argument; a result other than 0 ends the walk.
pub type EachPart = unsafe extern "C" fn(*mut c_void, *const TypePart) -> c_int;

/// Opens the types of a file, and stores a handle to be closed by [`backtrail_types_close`].
///
/// # Safety
/// `path` is a string, `options` null or a `struct backtrail_types_options` that begins with its
/// size, and `types` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_types_open(
    path: *const c_char,
    options: *const TypesOptions,
    types: *mut *mut Handle,
) -> c_int {
    guarded(AssertUnwindSafe(|| {
        // SAFETY: as our caller promises.
        let path = unsafe { crate::path(path) }.ok_or(libc::EINVAL)?;
        if types.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as our caller promises.
        let options = unsafe { options::read(options)? };
        let handle = Handle::open(&path, options.debug_information != 0)?;
        // SAFETY: as our caller promises.
        unsafe { types.write(Box::into_raw(Box::new(handle))) };
        Ok(())
    }))
}

/// Closes a handle of [`backtrail_types_open`]. Does nothing for null.
///
/// # Safety
/// `types` is null, or an open handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_types_close(types: *mut Handle) {
    if !types.is_null() {
        // SAFETY: as our caller promises, it is a box's.
        let handle = unsafe { Box::from_raw(types) };
        guarded(AssertUnwindSafe(|| {
            drop(handle);
            Ok(())
        }));
    }
}

/// Finds a symbol or a type by name.
///
/// # Safety
/// `types` is open, `unit` null or a string, `name` a string, and `found` a place for an id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_types_find(
    types: *const Handle,
    unit: *const c_char,
    name: *const c_char,
    found: *mut u64,
) -> c_int {
    guarded(AssertUnwindSafe(|| {
        if name.is_null() || found.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as our caller promises.
        let (types, name) = unsafe { (opened(types)?, CStr::from_ptr(name)) };
        // SAFETY: as our caller promises.
        let unit = (!unit.is_null()).then(|| unsafe { CStr::from_ptr(unit) }.to_bytes());
        let name = name.to_str().map_err(|_| libc::ENOENT)?;
        let id = types.find(unit, name).ok_or(libc::ENOENT)?;
        // SAFETY: as our caller promises.
        unsafe { found.write(id.raw()) };
        Ok(())
    }))
}

/// Calls a function for each type of all units.
///
/// # Safety
/// `types` is open; `each` may be called with `closure`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_types_walk(
    types: *const Handle,
    each: Option<EachType>,
    closure: *mut c_void,
) -> c_int {
    walked(|| {
        let each = each.ok_or(libc::EINVAL)?;
        // SAFETY: as our caller promises.
        let types = unsafe { opened(types) }?;
        // SAFETY: as our caller promises.
        let ended = types.ids().map(|id| unsafe { each(closure, id.raw()) });
        Ok(ended.into_iter().find(|&ended| ended != 0).unwrap_or(0))
    })
}

/// Describes a type.
///
/// # Safety
/// `types` is open, and `info` a `struct backtrail_type` that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_type_get(types: *const Handle, id: u64, info: *mut TypeInfo) -> c_int {
    guarded(AssertUnwindSafe(|| {
        // SAFETY: as our caller promises.
        let types = unsafe { opened(types) }?;
        let told = describe(types, Id::from_raw(id)?)?;
        // SAFETY: as our caller promises.
        unsafe { abi::give(told, info) }
    }))
}

/// Calls a function for each member, value or argument of a type.
///
/// # Safety
/// `types` is open; `each` may be called with `closure`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_type_parts(
    types: *const Handle,
    id: u64,
    each: Option<EachPart>,
    closure: *mut c_void,
) -> c_int {
    walked(|| {
        let each = each.ok_or(libc::EINVAL)?;
        // SAFETY: as our caller promises.
        let types = unsafe { opened(types) }?;
        parts(types, Id::from_raw(id)?, &mut |part| {
            // SAFETY: as our caller promises.
            unsafe { each(closure, &raw const part) }
        })
    })
}

/// Writes the C declaration of a name with a type, or of the type alone if the name is null.
/// Returns its length, like `snprintf`.
///
/// # Safety
/// `types` is open, `name` null or a string, and `buffer` holds `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_type_text(
    types: *const Handle,
    id: u64,
    name: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    let mut len = 0;
    let ended = guarded(AssertUnwindSafe(|| {
        // SAFETY: as our caller promises.
        let types = unsafe { opened(types) }?;
        // SAFETY: as our caller promises.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy());
        let text = types.text(Id::from_raw(id)?, name.as_deref().unwrap_or_default())?;
        len = text.len();
        if !buffer.is_null() && size > 0 {
            let given = len.min(size - 1);
            // SAFETY: within the size that the caller gave, and within the text.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, given);
                buffer.add(given).write(0);
            }
        }
        Ok(())
    }));
    match ended {
        0 => len as libc::ssize_t,
        error => error as libc::ssize_t,
    }
}

/// Converts a pointer to its handle.
///
/// # Safety
/// The pointer is null, or its handle is open and stays open.
unsafe fn opened<'h>(types: *const Handle) -> Result<&'h Handle, c_int> {
    // SAFETY: as our caller promises.
    unsafe { types.as_ref() }.ok_or(libc::EINVAL)
}

/// Runs code that may panic, or that ends with a number chosen by the program.
fn walked(act: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    let mut ended = 0;
    let error = guarded(AssertUnwindSafe(|| {
        ended = act()?;
        Ok(())
    }));
    if error == 0 { ended } else { error }
}

fn describe(types: &Handle, id: Id) -> Result<TypeInfo, c_int> {
    let of = types.types(id.dict)?;
    let found = of.get(id.id).map_err(damage)?;
    let kind = found.kind();
    let refers = match kind {
        Kind::Array => Some(found.array().map_err(damage)?.contents),
        _ => found.reference().ok(),
    };
    let (count, variadic) = count(&found)?;
    let bytes = match kind {
        Kind::Function => 0,
        _ => Measures::new(of, AlignmentRule::StrictestMember)
            .size(id.id)
            .unwrap_or(0),
    };
    Ok(TypeInfo {
        size: 0,
        kind: kind as c_int,
        variadic: variadic.into(),
        name: string(found.name().map_err(damage)?),
        bytes,
        refers: refers.map_or(0, |to| id.other(to).raw()),
        count,
    })
}

fn count(found: &Type<'_>) -> Result<(u64, bool), c_int> {
    Ok(match found.kind() {
        Kind::Array => (found.array().map_err(damage)?.count.into(), false),
        Kind::Struct | Kind::Union => (found.members().map_err(damage)?.len() as u64, false),
        Kind::Enum => (found.enumerators().map_err(damage)?.len() as u64, false),
        Kind::Function => {
            let (arguments, variadic) = found.arguments().map_err(damage)?;
            (arguments.len() as u64, variadic)
        }
        _ => (0, false),
    })
}

const NO_PART: TypePart = TypePart {
    size: size_of::<TypePart>(),
    name: c"".as_ptr(),
    id: 0,
    bit_offset: 0,
    value: 0,
    bits: 0,
    reserved: 0,
};

fn parts(types: &Handle, id: Id, each: &mut dyn FnMut(TypePart) -> c_int) -> Result<c_int, c_int> {
    let of = types.types(id.dict)?;
    let found = of.get(id.id).map_err(damage)?;
    let mut ended = 0;
    match found.kind() {
        Kind::Struct | Kind::Union => {
            for member in found.members().map_err(damage)? {
                let member = member.map_err(damage)?;
                let slice = of.get(member.id).ok().filter(|found| found.kind() == Kind::Slice);
                let slice = slice.map(|slice| slice.slice()).transpose().map_err(damage)?;
                ended = each(TypePart {
                    name: string(member.name),
                    id: id.other(slice.map_or(member.id, |slice| slice.of)).raw(),
                    bit_offset: member
                        .offset
                        .saturating_add(slice.map_or(0, |slice| slice.offset.into())),
                    bits: slice.map_or(0, |slice| slice.bits.into()),
                    ..NO_PART
                });
                if ended != 0 {
                    break;
                }
            }
        }
        Kind::Enum => {
            for value in found.enumerators().map_err(damage)? {
                let value = value.map_err(damage)?;
                ended = each(TypePart {
                    name: string(value.name),
                    value: value.value.into(),
                    ..NO_PART
                });
                if ended != 0 {
                    break;
                }
            }
        }
        Kind::Function => {
            for argument in found.arguments().map_err(damage)?.0 {
                let argument = id.other(argument.map_err(damage)?).raw();
                ended = each(TypePart {
                    id: argument,
                    ..NO_PART
                });
                if ended != 0 {
                    break;
                }
            }
        }
        _ => {}
    }
    Ok(ended)
}

/// A name in the file's string tables as a C string: reading it has already found its terminating
/// zero byte.
fn string(name: &[u8]) -> *const c_char {
    match name.is_empty() {
        true => c"".as_ptr(),
        false => name.as_ptr().cast(),
    }
}
