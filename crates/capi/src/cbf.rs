//! Compact backtraces: writing and reading.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use backtrail_cbf::{Decoder, EncodeError, Encoder, End, Ended, Frame, WordSize};

use crate::options;

/// `struct backtrail_cbf_frame`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CbfFrame {
    /// Size of the struct.
    pub size: usize,
    /// `BACKTRAIL_FRAME_…`.
    pub kind: c_int,
    /// 0.
    pub reserved: c_int,
    /// The address; the number of frames for `BACKTRAIL_FRAME_OMITTED`.
    pub address: u64,
    /// The number of consecutive copies, 1 for one frame.
    pub repeat: u64,
}

/// Called for each frame; a result other than 0 ends the reading.
pub type EachFrame = unsafe extern "C" fn(*mut c_void, *const CbfFrame) -> c_int;

const PC: c_int = 1;
const RA: c_int = 2;
const ASYNC: c_int = 3;
const OMITTED: c_int = 4;

/// What [`backtrail_cbf_decode`] returns for a backtrace that was cut off.
const TRUNCATED: c_int = 1;

/// Reads a compact backtrace, and calls `each` for its frames.
///
/// # Safety
/// `bytes` has `size` bytes; `each` may be called with `closure`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_cbf_decode(
    bytes: *const u8,
    size: usize,
    each: Option<EachFrame>,
    closure: *mut c_void,
) -> c_int {
    let read = || {
        let each = each.ok_or(libc::EINVAL)?;
        if bytes.is_null() || isize::try_from(size).is_err() {
            return Err(libc::EINVAL);
        }
        // SAFETY: as our caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, size) };
        let mut decoder = Decoder::new(bytes).map_err(|_| libc::EBADMSG)?;
        for repeated in decoder.by_ref() {
            let repeated = repeated.map_err(|_| libc::EBADMSG)?;
            let (kind, address) = match repeated.frame {
                Frame::Pc(address) => (PC, address),
                Frame::Ra(address) => (RA, address),
                Frame::Async(address) => (ASYNC, address),
                Frame::Omit(count) => (OMITTED, count),
            };
            let frame = CbfFrame {
                size: size_of::<CbfFrame>(),
                kind,
                reserved: 0,
                address,
                repeat: repeated.repeat,
            };
            // SAFETY: as our caller promises.
            let ended = unsafe { each(closure, &raw const frame) };
            if ended != 0 {
                return Ok(ended);
            }
        }
        Ok(match decoder.outcome() {
            Some(Ok(Ended::Truncated)) => TRUNCATED,
            _ => 0,
        })
    };
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => -error,
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

/// Writes addresses as a compact backtrace, and returns its length in bytes.
///
/// # Safety
/// `frames` has `count` structs, each of which begins with its size, the same for all; `out` has
/// room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrail_cbf_encode(
    frames: *const CbfFrame,
    count: usize,
    truncated: c_int,
    out: *mut u8,
    size: usize,
) -> isize {
    let write = || {
        let is_valid = !out.is_null() && isize::try_from(size).is_ok() && (count == 0 || !frames.is_null());
        if !is_valid {
            return Err(libc::EINVAL);
        }
        // SAFETY: as our caller promises; the encoder reads only what it has written.
        let out = unsafe { std::slice::from_raw_parts_mut(out, size) };
        let mut encoder = Encoder::new(out, WordSize::Bits64).map_err(|_| libc::ENOSPC)?;
        let mut end = if truncated == 0 { End::Complete } else { End::Truncated };
        for index in 0..count {
            // SAFETY: as our caller promises.
            let (frame, repeat) = unsafe { frame(frames, index) }?;
            match encoder.push_repeated(frame, repeat) {
                Ok(()) => {}
                Err(EncodeError::BufferFull) => {
                    end = End::Truncated;
                    break;
                }
                Err(_) => return Err(libc::EINVAL),
            }
        }
        Ok(encoder.finish(end))
    };
    match catch_unwind(AssertUnwindSafe(write)) {
        Ok(Ok(len)) => len as isize,
        Ok(Err(error)) => -(error as isize),
        Err(_) => -(libc::ENOTRECOVERABLE as isize),
    }
}

/// A frame of the program's array, whose structs have the size that the first one has.
unsafe fn frame(frames: *const CbfFrame, index: usize) -> Result<(Frame, u64), c_int> {
    // SAFETY: as our caller promises, there is a first one.
    let size = unsafe { frames.cast::<usize>().read_unaligned() };
    let at = size.checked_mul(index).ok_or(libc::EINVAL)?;
    // SAFETY: within the array, if the size is right.
    let frame = unsafe { options::read(frames.byte_add(at)) }?;
    if size < size_of::<CbfFrame>() || frame.size != size || frame.repeat == 0 {
        return Err(libc::EINVAL);
    }
    let kind = match frame.kind {
        PC => Frame::Pc(frame.address),
        RA => Frame::Ra(frame.address),
        ASYNC => Frame::Async(frame.address),
        OMITTED => Frame::Omit(frame.address),
        _ => return Err(libc::EINVAL),
    };
    Ok((kind, frame.repeat))
}

// SAFETY: integers.
unsafe impl options::Options for CbfFrame {}
