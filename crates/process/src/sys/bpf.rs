//! `bpf(2)`: maps and programs.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The bytes of `union bpf_attr` in use; the kernel takes the rest as zero.
const ATTR_SIZE: usize = 96;

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const BTF_LOAD: libc::c_int = 18;
const MAP_UPDATE_BATCH: libc::c_int = 26;
const MAP_DELETE_BATCH: libc::c_int = 27;
const PROG_TYPE_PERF_EVENT: u32 = 7;

/// Kinds of maps (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// By key.
    Hash = 1,
    /// By number.
    Array = 2,
    /// Programs to continue with, by number.
    Programs = 3,
    /// Events to write to, by CPU.
    Events = 4,
    /// By key, with memory for those values only that are there.
    SparseHash = 1 | NO_PREALLOC << 8,
    /// By number, in maps that replace each other in a map of maps, whatever their lengths.
    InnerArray = 2 | INNER_MAP << 8,
    /// Maps, by number.
    Maps = 12,
}

/// `BPF_F_NO_PREALLOC` and `BPF_F_INNER_MAP`.
const NO_PREALLOC: u32 = 1 << 0;
const INNER_MAP: u32 = 1 << 12;

/// A map, which programs and we use.
#[derive(Debug)]
pub struct BpfMap {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl BpfMap {
    /// Creates a map of up to `entries` values.
    ///
    /// # Errors
    /// `EPERM` without the right to load programs.
    pub fn new(kind: MapKind, key_bytes: u32, value_bytes: u32, entries: u32) -> io::Result<BpfMap> {
        BpfMap::with_fields([kind as u32 & 0xff, key_bytes, value_bytes, entries, kind as u32 >> 8, 0])
    }

    /// Creates a map of up to `entries` maps like `inner`, by number.
    ///
    /// # Errors
    /// `EPERM` without the right to load programs.
    pub fn of_maps(inner: &BpfMap, entries: u32) -> io::Result<BpfMap> {
        let inner = inner.fd.as_raw_fd() as u32;
        BpfMap::with_fields([MapKind::Maps as u32, 4, 4, entries, 0, inner])
    }

    /// Type, bytes of keys and of values, entries, flags, descriptor of an inner map.
    fn with_fields(fields: [u32; 6]) -> io::Result<BpfMap> {
        let [_, key_bytes, value_bytes, ..] = fields;
        let mut attr = [0; ATTR_SIZE];
        for (index, field) in fields.into_iter().enumerate() {
            put(&mut attr, 4 * index, field.to_ne_bytes());
        }
        Ok(BpfMap {
            fd: descriptor(call(MAP_CREATE, &mut attr)?),
            key_bytes: key_bytes as usize,
            value_bytes: value_bytes as usize,
        })
    }

    /// Sets the value of a key; both must have the lengths that the map was created with.
    pub fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if key.len() != self.key_bytes || value.len() != self.value_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut attr = self.element(key);
        put(&mut attr, 16, (value.as_ptr().expose_provenance() as u64).to_ne_bytes());
        call(MAP_UPDATE_ELEM, &mut attr).map(drop)
    }

    /// The value of a key, which must have the length that the map was created with.
    ///
    /// # Errors
    /// `ENOENT` if it is not there.
    pub fn get(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        if key.len() != self.key_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut value = vec![0; self.value_bytes];
        let mut attr = self.element(key);
        put(
            &mut attr,
            16,
            (value.as_mut_ptr().expose_provenance() as u64).to_ne_bytes(),
        );
        call(MAP_LOOKUP_ELEM, &mut attr)?;
        Ok(value)
    }

    /// The same map by a descriptor of its own.
    ///
    /// # Errors
    /// If the process has too many descriptors.
    pub fn try_clone(&self) -> io::Result<BpfMap> {
        Ok(BpfMap {
            fd: self.fd.try_clone()?,
            ..*self
        })
    }

    /// Removes a key.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        if key.len() != self.key_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        call(MAP_DELETE_ELEM, &mut self.element(key)).map(drop)
    }

    /// Sets the values of several keys, one after the other in `keys` and `values`: at once, if the
    /// kernel can (since Linux 5.6, for maps of maps since 5.17).
    pub fn set_all(&self, keys: &[u8], values: &[u8]) -> io::Result<()> {
        let count = keys.len() / self.key_bytes;
        if keys.len() != count * self.key_bytes || values.len() != count * self.value_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if count > 1 && self.batch(MAP_UPDATE_BATCH, keys, Some(values)).is_ok() {
            return Ok(());
        }
        let keys = keys.chunks_exact(self.key_bytes);
        let mut pairs = keys.zip(values.chunks_exact(self.value_bytes));
        pairs.try_for_each(|(key, value)| self.set(key, value))
    }

    /// Removes several keys, one after the other in `keys`, those of them that are there.
    pub fn remove_all(&self, keys: &[u8]) {
        if keys.len() > self.key_bytes && self.batch(MAP_DELETE_BATCH, keys, None).is_ok() {
            return;
        }
        for key in keys.chunks_exact(self.key_bytes) {
            let _ = self.remove(key);
        }
    }

    /// `keys`, and `values` if there are any, are of the same number of elements.
    fn batch(&self, command: libc::c_int, keys: &[u8], values: Option<&[u8]>) -> io::Result<()> {
        let mut attr = [0; ATTR_SIZE];
        let address = |bytes: &[u8]| (bytes.as_ptr().expose_provenance() as u64).to_ne_bytes();
        put(&mut attr, 16, address(keys));
        put(&mut attr, 24, values.map_or([0; 8], address));
        put(&mut attr, 32, ((keys.len() / self.key_bytes) as u32).to_ne_bytes());
        put(&mut attr, 36, self.fd.as_raw_fd().to_ne_bytes());
        call(command, &mut attr).map(drop)
    }

    fn element(&self, key: &[u8]) -> [u8; ATTR_SIZE] {
        let mut attr = [0; ATTR_SIZE];
        put(&mut attr, 0, self.fd.as_raw_fd().to_ne_bytes());
        put(&mut attr, 8, (key.as_ptr().expose_provenance() as u64).to_ne_bytes());
        attr
    }
}

impl AsFd for BpfMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A function of a program beside its first one.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The number of its first instruction.
    pub at: u32,
    /// Whether it is verified by itself, as a function of two numbers that returns one.
    pub is_global: bool,
}

/// Loads a program for events of `perf_event_open(2)`, of these instructions and with these
/// functions, by their place.
///
/// # Errors
/// If the kernel does not accept the program, or the process may not load any.
pub fn load_program(instructions: &[u64], functions: &[Function], license: &CStr) -> io::Result<OwnedFd> {
    let mut attr = [0; ATTR_SIZE];
    put(&mut attr, 0, PROG_TYPE_PERF_EVENT.to_ne_bytes());
    put(&mut attr, 4, (instructions.len() as u32).to_ne_bytes());
    put(&mut attr, 8, address(instructions));
    put(&mut attr, 16, address(license.to_bytes_with_nul()));
    // `struct bpf_func_info`: an instruction and a type.
    let mut types = vec![[0, LOCAL]];
    let of = |function: &Function| [function.at, if function.is_global { GLOBAL } else { LOCAL }];
    types.extend(functions.iter().map(of));
    let descriptions;
    if !functions.is_empty() {
        descriptions = load_types()?;
        put(&mut attr, 72, descriptions.as_raw_fd().to_ne_bytes());
        put(&mut attr, 76, (size_of::<[u32; 2]>() as u32).to_ne_bytes());
        put(&mut attr, 80, address(&types));
        put(&mut attr, 88, (types.len() as u32).to_ne_bytes());
    }
    Ok(descriptor(call(PROG_LOAD, &mut attr)?))
}

/// Types of functions in what [`load_types`] loads.
const LOCAL: u32 = 3;
const GLOBAL: u32 = 4;

/// Loads the types of functions: BTF (`linux/btf.h`).
fn load_types() -> io::Result<OwnedFd> {
    const NAMES: &[u8; 11] = b"\0u64\0a\0b\0f\0";
    const INTEGER: u32 = 1 << 24;
    const FUNCTION: u32 = 12 << 24;
    const PROTOTYPE: u32 = 13 << 24;
    #[rustfmt::skip]
    const TYPES: [u32; 17] = [
        // 1: a number of 8 bytes, of 64 bits.
        1, INTEGER, 8, 64,
        // 2: what functions return and take.
        0, PROTOTYPE | 2, 1, 5, 1, 7, 1,
        // LOCAL and GLOBAL.
        9, FUNCTION, 2,
        9, FUNCTION | 1, 2,
    ];
    /// The magic and the version; bytes of the header, of the types, and of the names, which follow
    /// in this order.
    const HEADER: [u32; 6] = [
        0x1_eb9f,
        24,
        0,
        4 * TYPES.len() as u32,
        4 * TYPES.len() as u32,
        NAMES.len() as u32,
    ];
    let mut bytes = [HEADER.as_slice(), &TYPES]
        .concat()
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect::<Vec<u8>>();
    bytes.extend_from_slice(NAMES);
    let mut attr = [0; ATTR_SIZE];
    put(&mut attr, 0, address(&bytes));
    put(&mut attr, 16, (bytes.len() as u32).to_ne_bytes());
    Ok(descriptor(call(BTF_LOAD, &mut attr)?))
}

fn address<T>(of: &[T]) -> [u8; 8] {
    (of.as_ptr().expose_provenance() as u64).to_ne_bytes()
}

/// Each caller's `attr` has only pointers to memory that is borrowed for the call, and as long as
/// its command reads or writes: a map's keys and values, the number of instructions or functions, a
/// C string.
fn call(command: libc::c_int, attr: &mut [u8; ATTR_SIZE]) -> io::Result<i32> {
    // SAFETY: `attr` is a `union bpf_attr` of the size given, which the kernel may write. The
    // commands used here only read through the pointers in it, except for a look-up, which writes a
    // value into a buffer of that length; the pointers are valid as described above.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), ATTR_SIZE) } {
        done if done >= 0 => Ok(done as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

fn descriptor(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just returned this descriptor to us, so nobody else owns it. It is
    // closed on exec.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn put<const N: usize>(attr: &mut [u8; ATTR_SIZE], offset: usize, bytes: [u8; N]) {
    attr[offset..offset + N].copy_from_slice(&bytes);
}
