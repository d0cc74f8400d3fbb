//! Compact ImageMap Format: the list of modules that contain a stack's addresses.
//!
//! The specification is Swift's `CompactImageMapFormat`. This module reads and writes its later
//! revision, which stores the platform's name after the information byte. Offsets are signed and
//! take the fewest big-endian bytes, as in compact backtraces.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::WordSize;
use crate::constants::{VERSION, VERSION_SHIFT};

/// The largest number of images that Swift's reader accepts.
pub const MAX_IMAGES: u64 = 1 << 20;
/// The longest build id that Swift's reader accepts, in bytes.
pub const MAX_BUILD_ID: u64 = 1024;

/// The predefined prefixes: they have a code but are not stored in the data ("String Encoding").
const FIXED_PREFIXES: [&[u8]; 12] = [
    b"/lib",
    b"/usr/lib",
    b"/usr/local/lib",
    b"/opt/lib",
    b"/System/Library/Frameworks",
    b"/System/Library/PrivateFrameworks",
    b"/System/iOSSupport",
    b"/Library/Frameworks",
    b"/System/Applications",
    b"/Applications",
    b"C:\\Windows\\System32",
    b"C:\\Program Files\\",
];
/// The code of the first prefix that comes from a stored string.
const FIRST_CODE: u64 = 32;
/// The longest string that one opcode can hold.
const MAX_CHUNK: usize = 63;
/// Codes from this one on are stored in bytes after the opcode.
const EXTENDED: u64 = 64;

/// Header byte: the base is relative to the previous image's base.
const RELATIVE: u8 = 0x80;

/// A module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Address of its first byte.
    pub base: u64,
    /// Address of the first byte after its code.
    pub end_of_text: u64,
    /// Build id; empty if the module has none.
    pub build_id: Vec<u8>,
    /// Path; empty if it is not stored. Invalid UTF-8 is replaced.
    pub path: String,
}

/// A list of modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageMap {
    /// The width of an address.
    pub word: WordSize,
    /// The platform's name, up to 255 bytes.
    pub platform: String,
    /// The modules, sorted by ascending base.
    pub images: Vec<Image>,
}

/// The kind of error found in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Unknown version.
    Version(u8),
    /// The reserved word size.
    ReservedWordSize,
    /// The data ends too early.
    Truncated,
    /// The number of images exceeds [`MAX_IMAGES`].
    Count(u64),
    /// A build id is longer than [`MAX_BUILD_ID`].
    BuildId(u64),
    /// A module's code ends before the module begins.
    EndOfText,
    /// A header byte with the reserved bit set.
    Reserved(u8),
    /// A code refers to a prefix that no earlier string defined.
    Prefix(u64),
}

/// A failed read: the kind of error and its offset in bytes from the information byte.
pub type Error = backtrail_wire::Located<ErrorKind>;

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ErrorKind::Version(version) => write!(f, "version {version} is not known, only 0 is"),
            ErrorKind::ReservedWordSize => write!(f, "reserved word size 3"),
            ErrorKind::Truncated => write!(f, "data ends too early"),
            ErrorKind::Count(count) => write!(f, "{count} images are more than {MAX_IMAGES}"),
            ErrorKind::BuildId(len) => write!(f, "a build id of {len} bytes is longer than {MAX_BUILD_ID}"),
            ErrorKind::EndOfText => write!(f, "the code ends before the module begins"),
            ErrorKind::Reserved(header) => write!(f, "reserved bit in header {header:#04x}"),
            ErrorKind::Prefix(code) => write!(f, "prefix {code} was not defined before"),
        }
    }
}

/// Reads a list of modules. Time and memory are bounded by a small multiple of the data's length.
///
/// # Errors
/// Stops at the first invalid field.
pub fn decode(data: &[u8]) -> Result<ImageMap, Error> {
    let mut reader = Reader {
        data,
        at: 0,
        prefixes: Vec::new(),
    };
    let information = reader.byte()?;
    let fail = |kind, offset| Err(Error::new(kind, offset));
    if information >> VERSION_SHIFT != VERSION {
        return fail(ErrorKind::Version(information >> VERSION_SHIFT), 0);
    }
    let word = match information & 3 {
        0 => WordSize::Bits16,
        1 => WordSize::Bits32,
        2 => WordSize::Bits64,
        _ => return fail(ErrorKind::ReservedWordSize, 0),
    };
    let platform_len = usize::from(reader.byte()?);
    let platform = String::from_utf8_lossy(reader.bytes(platform_len)?).into_owned();
    let at = reader.at;
    let count = reader.number()?;
    if count > MAX_IMAGES {
        return fail(ErrorKind::Count(count), at);
    }
    let mut images: Vec<Image> = Vec::new();
    for _ in 0..count {
        let last = images.last().map_or(0, |image| image.base);
        let image = reader.image(word, last)?;
        images.push(image);
    }
    Ok(ImageMap { word, platform, images })
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    prefixes: Vec<&'a [u8]>,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let error = Error::new(ErrorKind::Truncated, self.at);
        let end = self.at.checked_add(len).ok_or(error)?;
        let bytes = self.data.get(self.at..end).ok_or(error)?;
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        self.bytes(1)?
            .first()
            .copied()
            .ok_or(Error::new(ErrorKind::Truncated, self.at))
    }

    /// Reads a number of seven bits per byte, most significant first; too large values saturate.
    fn number(&mut self) -> Result<u64, Error> {
        let mut value = 0u64;
        loop {
            let byte = self.byte()?;
            value = value
                .checked_mul(128)
                .map_or(u64::MAX, |value| value | u64::from(byte & 0x7f));
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self, len: usize) -> Result<u64, Error> {
        let bytes = self.bytes(len)?;
        let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
        let start = if negative { u64::MAX } else { 0 };
        Ok(bytes.iter().fold(start, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn image(&mut self, word: WordSize, last: u64) -> Result<Image, Error> {
        let offset = self.at;
        let fail = |kind| Err(Error::new(kind, offset));
        let header = self.byte()?;
        if header & 0x40 != 0 {
            return fail(ErrorKind::Reserved(header));
        }
        let mask = word.max();
        let mut base = self.signed(usize::from(header >> 3 & 7) + 1)?;
        if header & RELATIVE != 0 {
            base = base.wrapping_add(last);
        }
        base &= mask;
        let end_of_text = base.wrapping_add(self.signed(usize::from(header & 7) + 1)?) & mask;
        if end_of_text < base {
            return fail(ErrorKind::EndOfText);
        }
        let len = self.number()?;
        if len > MAX_BUILD_ID {
            return fail(ErrorKind::BuildId(len));
        }
        let build_id = self.bytes(len as usize)?.to_vec();
        Ok(Image {
            base,
            end_of_text,
            build_id,
            path: self.path()?,
        })
    }

    fn path(&mut self) -> Result<String, Error> {
        let mut path = Vec::new();
        loop {
            let at = self.at;
            let opcode = self.byte()?;
            let low = opcode & 0x3f;
            match opcode >> 6 {
                0 if low == 0 => return Ok(String::from_utf8_lossy(&path).into_owned()),
                0 => {
                    let chunk = self.bytes(usize::from(low))?;
                    self.prefixes.extend(inner_prefixes(chunk));
                    path.extend_from_slice(chunk);
                }
                1 => {
                    let version = self.byte()?;
                    let name = self.bytes(usize::from(low) + 1)?;
                    for part in [b"/", name, b".framework/Versions/", &[version], b"/", name] {
                        path.extend_from_slice(part);
                    }
                }
                kind => {
                    let code = if kind == 2 {
                        u64::from(low)
                    } else {
                        let bytes = self.bytes(usize::from(low) + 1)?;
                        let value = bytes
                            .iter()
                            .fold(0u64, |value, byte| value.saturating_mul(256) | u64::from(*byte));
                        value.saturating_add(EXTENDED)
                    };
                    let prefix = prefix(&self.prefixes, code).ok_or(Error::new(ErrorKind::Prefix(code), at))?;
                    path.extend_from_slice(prefix);
                }
            }
        }
    }
}

fn prefix<'p>(defined: &[&'p [u8]], code: u64) -> Option<&'p [u8]> {
    if let Some(index) = code.checked_sub(FIRST_CODE) {
        return defined.get(usize::try_from(index).ok()?).copied();
    }
    FIXED_PREFIXES.get(code as usize).copied()
}

/// The part before each slash, except a slash at the start.
fn inner_prefixes(chunk: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = chunk.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/');
    slashes.filter_map(|(at, _)| chunk.get(..at))
}

/// Writes a list of modules as Swift does. Images must be sorted by ascending base; only the first
/// 255 bytes of the platform's name are written.
pub fn encode(map: &ImageMap) -> Vec<u8> {
    let mut out = Vec::new();
    out.push(VERSION << VERSION_SHIFT | map.word as u8);
    let platform = map.platform.as_bytes();
    let platform = platform.get(..255).unwrap_or(platform);
    out.push(platform.len() as u8);
    out.extend_from_slice(platform);
    push_number(&mut out, map.images.len() as u64);
    let mut prefixes: Vec<Vec<u8>> = Vec::new();
    let mut last = None;
    for image in &map.images {
        let absolute = signed_bytes(image.base);
        let relative = last.map(|last| signed_bytes(image.base.wrapping_sub(last)));
        let (flag, base) = match relative {
            Some(relative) if relative.len() < absolute.len() => (RELATIVE, relative),
            _ => (0, absolute),
        };
        let text = signed_bytes(image.end_of_text.wrapping_sub(image.base));
        out.push(flag | length_less_one(&base) << 3 | length_less_one(&text));
        out.extend(base);
        out.extend(text);
        push_number(&mut out, image.build_id.len() as u64);
        out.extend_from_slice(&image.build_id);
        push_path(&mut out, image.path.as_bytes(), &mut prefixes);
        last = Some(image.base);
    }
    out
}

fn length_less_one(bytes: &[u8]) -> u8 {
    (bytes.len() as u8).saturating_sub(1)
}

#[expect(clippy::arithmetic_side_effects, reason = "64 bits have at most ten groups of 7")]
fn push_number(out: &mut Vec<u8>, number: u64) {
    let groups = (64 - number.leading_zeros()).div_ceil(7).max(1);
    for group in (0..groups).rev() {
        let more = if group > 0 { 0x80 } else { 0 };
        out.push((number >> (group * 7)) as u8 & 0x7f | more);
    }
}

/// The fewest big-endian bytes that yield the number after sign extension.
#[expect(clippy::indexing_slicing, reason = "at most the length is skipped")]
fn signed_bytes(number: u64) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let sign = if number >> 63 == 1 { 0xff } else { 0 };
    let fits = |skip: &usize| bytes[..*skip].iter().all(|byte| *byte == sign) && (bytes[*skip] ^ sign) & 0x80 == 0;
    let skip = (0..bytes.len()).rev().find(fits).unwrap_or(0);
    bytes[skip..].to_vec()
}

/// Writes the longest known prefix as long as one matches; then a string.
fn push_path(out: &mut Vec<u8>, mut path: &[u8], prefixes: &mut Vec<Vec<u8>>) {
    while !path.is_empty() {
        let fixed = FIXED_PREFIXES
            .iter()
            .enumerate()
            .map(|(code, prefix)| (code as u64, *prefix));
        let defined = prefixes.iter().enumerate();
        let defined = defined.map(|(index, prefix)| ((index as u64).saturating_add(FIRST_CODE), prefix.as_slice()));
        let known = fixed.chain(defined).filter(|(_, prefix)| path.starts_with(prefix));
        if let Some((code, prefix)) = known.max_by_key(|(_, prefix)| prefix.len()) {
            path = path.get(prefix.len()..).unwrap_or_default();
            push_expand(out, code);
            continue;
        }
        let (chunk, rest) = path.split_at(path.len().min(MAX_CHUNK));
        out.push(chunk.len() as u8);
        out.extend_from_slice(chunk);
        prefixes.extend(inner_prefixes(chunk).map(<[u8]>::to_vec));
        path = rest;
    }
    out.push(0);
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "from 1 to 8 bytes of 8"
)]
fn push_expand(out: &mut Vec<u8>, code: u64) {
    let Some(value) = code.checked_sub(EXTENDED) else {
        out.push(0x80 | code as u8);
        return;
    };
    let len = (64 - value.leading_zeros()).div_ceil(8).max(1) as usize;
    out.push(0xc0 | (len as u8 - 1));
    out.extend_from_slice(&value.to_be_bytes()[8 - len..]);
}
