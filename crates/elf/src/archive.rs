//! Archives of object files (`ar`; System V, as GNU and LLVM write them, with GNU's or BSD's long
//! names), and rewriting them with new contents of some members.
//!
//! Everything except contents, sizes and the offsets in the symbol index stays the same, byte for
//! byte.

use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::Range;

use backtrail_wire::{Bytes, Endian};

use crate::edit::Rewritten;
use crate::header::to_usize;
use crate::{Error, ErrorKind, Result};

/// The magic number of an archive.
pub const MAGIC: &[u8] = b"!<arch>\n";
/// The magic number of a thin archive, which has only the names of its members.
pub const THIN_MAGIC: &[u8] = b"!<thin>\n";

/// Whether a file begins like an archive, thin or not.
pub fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC) || bytes.starts_with(THIN_MAGIC)
}

const HEADER_BYTES: usize = 60;
/// Location of the size in a member's header, in decimal digits.
const SIZE: Range<usize> = 48..58;
const END: &[u8] = b"`\n";
/// Names of the symbol index, with offsets of 4 bytes and of 8.
const INDEX: &[u8] = b"/               ";
const INDEX_64: &[u8] = b"/SYM64/         ";
const LONG_NAMES: &[u8] = b"//              ";

/// A member of an archive.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// Its name, for messages.
    pub name: Cow<'a, str>,
    /// Its contents.
    pub data: &'a [u8],
    header: &'a [u8],
    /// BSD's long name, which precedes the data and counts in its size.
    long_name: &'a [u8],
    /// Offset of its header.
    at: usize,
    is_index: bool,
}

/// A parsed archive.
#[derive(Clone, Debug)]
pub struct Archive<'a> {
    members: Vec<Member<'a>>,
}

/// The new contents of a member, if they change.
pub type Change<'a> = Option<Rewritten<'a>>;

impl<'a> Archive<'a> {
    /// Reads the headers of all members.
    ///
    /// Fails if a header makes no sense; the offset is that of the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Archive<'a>> {
        let bad = |at: usize| Error::at(ErrorKind::ArchiveMember, at as u64);
        if !bytes.starts_with(MAGIC) {
            return Err(bad(0));
        }
        let mut members = Vec::new();
        let mut long_names: &[u8] = &[];
        let mut at = MAGIC.len();
        while at < bytes.len() {
            let header = bytes.get(at..at + HEADER_BYTES).ok_or_else(|| bad(at))?;
            let size = decimal(&header[SIZE]).filter(|_| header.ends_with(END));
            let start = at + HEADER_BYTES;
            let end = size.and_then(|size| start.checked_add(size));
            let end = end.filter(|end| *end <= bytes.len()).ok_or_else(|| bad(at))?;
            let whole = &bytes[start..end];
            let (long_name, data) = match header.strip_prefix(b"#1/") {
                Some(len) => {
                    let len = decimal(&len[..13]).filter(|len| *len <= whole.len());
                    whole.split_at(len.ok_or_else(|| bad(at))?)
                }
                None => (&[][..], whole),
            };
            let is_index = header.starts_with(INDEX) || header.starts_with(INDEX_64);
            if header.starts_with(LONG_NAMES) {
                long_names = data;
            }
            members.push(Member {
                name: name(header, long_name, long_names),
                data,
                header,
                long_name,
                at,
                is_index,
            });
            // Members begin at even offsets; the last one's padding may be missing.
            at = end + end % 2;
        }
        let bsd_index = |member: &Member<'_>| member.name.starts_with("__.SYMDEF");
        match members.iter().find(|member| bsd_index(member)) {
            Some(index) => Err(Error::at(ErrorKind::ArchiveIndex, index.at as u64)),
            None => Ok(Archive { members }),
        }
    }

    /// All members, in order, including the archive's own tables.
    pub fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// Rewrites the archive with `changes`, one for each member.
    ///
    /// Fails if the symbol index cannot hold a member's new offset.
    pub fn rewrite<'c>(&'c self, changes: &'c [Change<'a>]) -> Result<RewrittenArchive<'c>> {
        let mut end = MAGIC.len();
        let mut places = Vec::with_capacity(self.members.len());
        for (member, change) in self.members.iter().zip(changes) {
            places.push((member.at, end));
            let len = change
                .as_ref()
                .map_or(member.data.len(), |change| to_usize(change.len()));
            end += HEADER_BYTES + member.long_name.len() + len;
            end += end % 2;
        }
        let mut members = Vec::with_capacity(self.members.len());
        for (member, change) in self.members.iter().zip(changes) {
            let data = match change {
                Some(change) => Data::Rewritten(change),
                None if member.is_index => Data::Bytes(Cow::Owned(moved_index(member, &places)?)),
                None => Data::Bytes(Cow::Borrowed(member.data)),
            };
            members.push((member, data));
        }
        Ok(RewrittenArchive { members })
    }
}

/// An archive with changed members.
pub struct RewrittenArchive<'c> {
    members: Vec<(&'c Member<'c>, Data<'c>)>,
}

enum Data<'c> {
    Bytes(Cow<'c, [u8]>),
    Rewritten(&'c Rewritten<'c>),
}

impl RewrittenArchive<'_> {
    /// Writes the whole archive.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        for (member, data) in &self.members {
            let len = match data {
                Data::Bytes(bytes) => bytes.len(),
                Data::Rewritten(file) => to_usize(file.len()),
            };
            let size = member.long_name.len() + len;
            let digits = format!("{size:<10}");
            if digits.len() != SIZE.len() {
                return Err(io::Error::other(format!("{}: too large for an archive", member.name)));
            }
            out.write_all(&member.header[..SIZE.start])?;
            out.write_all(digits.as_bytes())?;
            out.write_all(END)?;
            out.write_all(member.long_name)?;
            match data {
                Data::Bytes(bytes) => out.write_all(bytes)?,
                Data::Rewritten(file) => file.write_to(out)?,
            }
            if size % 2 == 1 {
                out.write_all(b"\n")?;
            }
        }
        Ok(())
    }
}

/// The index with the new offsets: their number, the offsets, and the symbols' names, unchanged.
fn moved_index(index: &Member<'_>, places: &[(usize, usize)]) -> Result<Vec<u8>> {
    let bad = || Error::at(ErrorKind::ArchiveIndex, index.at as u64);
    let width = if index.header.starts_with(INDEX_64) { 8 } else { 4 };
    // Big-endian on every machine.
    let words = Bytes::new(index.data, Endian::Big);
    let word = |at: usize| match width {
        8 => words.u64(at).ok(),
        _ => words.u32(at).ok().map(u64::from),
    };
    let count = to_usize(word(0).ok_or_else(bad)?);
    let mut moved = index.data.to_vec();
    let entries = count.checked_add(1).and_then(|words| words.checked_mul(width));
    if entries.is_none_or(|len| len > moved.len()) {
        return Err(bad());
    }
    for at in (1..=count).map(|entry| entry * width) {
        let old = to_usize(word(at).ok_or_else(bad)?);
        let place = places.binary_search_by_key(&old, |(old, _)| *old).map_err(|_| bad())?;
        let new = places[place].1 as u64;
        match (width, u32::try_from(new)) {
            (8, _) => moved[at..at + 8].copy_from_slice(&new.to_be_bytes()),
            (_, Ok(new)) => moved[at..at + 4].copy_from_slice(&new.to_be_bytes()),
            (_, Err(_)) => return Err(bad()),
        }
    }
    Ok(moved)
}

/// Parses digits followed by spaces.
fn decimal(field: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(field).ok()?.trim_end_matches(' ');
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn name<'a>(header: &'a [u8], long_name: &'a [u8], long_names: &'a [u8]) -> Cow<'a, str> {
    let short = header[..16].trim_ascii_end();
    let name = match short.strip_prefix(b"/").and_then(decimal) {
        Some(at) => {
            let rest = long_names.get(at..).unwrap_or_default();
            rest.split(|byte| *byte == b'\n').next().unwrap_or_default()
        }
        None if !long_name.is_empty() => long_name.split(|byte| *byte == 0).next().unwrap_or_default(),
        None => short,
    };
    let without_slash = match name {
        [rest @ .., b'/'] if !rest.is_empty() && rest != b"/" => rest,
        name => name,
    };
    String::from_utf8_lossy(without_slash)
}
