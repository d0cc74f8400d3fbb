//! Names that were looked up before, stored in a file per module.
//!
//! Looking up the first name of a module with debugging information takes longer than everything
//! else in a snapshot of a process, and the next snapshot needs much the same addresses.
//!
//! A file is named by the identities of the files that the names were made from, and of this
//! program. It begins with [`MAGIC`] and its name (32); then come the answers, concatenated and in
//! little-endian: address (8), number of calls (2), and for each call flags (1), offset (8), line
//! (4), and the lengths (4 each) of function and file before their bytes. The last four bytes are
//! the CRC-32 of everything before. Files that do not match are ignored.

use std::collections::BTreeMap;

use backtrail_cfi::cache::{Cache, Name};
use backtrail_wire::{Bytes, Cursor, Endian};

use super::source::Call;

/// The kind of these entries of the cache.
const KIND: &str = "names-v2";
const MAGIC: u64 = u64::from_le_bytes(*b"btnames2");

/// The most answers stored per module: reading the file should take no time.
const MOST_ANSWERS: usize = 1 << 14;
/// Longer files are not stored.
const MOST_BYTES: usize = 4 << 20;

const INLINED: u8 = 1;
const HAS_OFFSET: u8 = 2;
const HAS_LINE: u8 = 4;
const HAS_FILE: u8 = 8;

/// The remembered names of a module.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    /// Its place; `None` if it is not stored.
    place: Option<(Cache, Name)>,
    /// By address; without calls if nothing was known.
    answers: BTreeMap<u64, Vec<Call>>,
    has_new: bool,
}

impl Remembered {
    /// Reads the entry at `place`.
    pub(super) fn read(place: Option<(Cache, Name)>) -> Remembered {
        let answers = place.as_ref().and_then(|(cache, name)| {
            let content = cache.read(KIND, name, MOST_BYTES as u64)?;
            parse(&content, name)
        });
        Remembered {
            answers: answers.unwrap_or_default(),
            place,
            has_new: false,
        }
    }

    /// The answer for an address.
    pub(super) fn get(&self, svma: u64) -> Option<&Vec<Call>> {
        self.answers.get(&svma)
    }

    /// Remembers an answer.
    pub(super) fn put(&mut self, svma: u64, calls: &[Call]) {
        if self.place.is_some() && self.answers.len() < MOST_ANSWERS {
            self.answers.insert(svma, calls.to_vec());
            self.has_new = true;
        }
    }

    /// Stores new answers. If that fails, the next look takes as long as this one did.
    pub(super) fn keep(&mut self) {
        if let Some((cache, name)) = self.place.as_ref().filter(|_| self.has_new) {
            write(cache, name, &self.answers);
            self.has_new = false;
        }
    }
}

fn write(cache: &Cache, name: &Name, answers: &BTreeMap<u64, Vec<Call>>) {
    let mut content = Vec::new();
    content.extend(MAGIC.to_le_bytes());
    content.extend(name.bytes());
    for (svma, calls) in answers {
        content.extend(svma.to_le_bytes());
        content.extend((calls.len() as u16).to_le_bytes());
        for call in calls {
            write_call(&mut content, call);
        }
    }
    content.extend(crc32fast::hash(&content).to_le_bytes());
    if content.len() <= MOST_BYTES {
        let _ = cache.write(KIND, name, &content);
    }
}

/// Appends a call.
pub(super) fn write_call(content: &mut Vec<u8>, call: &Call) {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    content.push(
        flag(call.inlined, INLINED)
            | flag(call.offset.is_some(), HAS_OFFSET)
            | flag(call.line.is_some(), HAS_LINE)
            | flag(call.file.is_some(), HAS_FILE),
    );
    content.extend(call.offset.unwrap_or_default().to_le_bytes());
    content.extend(call.line.unwrap_or_default().to_le_bytes());
    let file = call.file.as_deref().unwrap_or_default();
    for text in [call.function.as_str(), file] {
        content.extend((text.len() as u32).to_le_bytes());
    }
    content.extend(call.function.as_bytes());
    content.extend(file.as_bytes());
}

fn parse(content: &[u8], name: &Name) -> Option<BTreeMap<u64, Vec<Call>>> {
    let (head, crc) = content.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*crc) != crc32fast::hash(head) {
        return None;
    }
    let mut cursor = Bytes::new(head, Endian::Little).cursor(0);
    if cursor.u64().ok()? != MAGIC || cursor.slice(32).ok()? != name.bytes() {
        return None;
    }
    let mut answers = BTreeMap::new();
    while !cursor.is_empty() {
        let (svma, count) = (cursor.u64().ok()?, cursor.u16().ok()?);
        let calls: Option<Vec<Call>> = (0..count).map(|_| read_call(&mut cursor)).collect();
        answers.insert(svma, calls?);
    }
    Some(answers)
}

/// Reads a call.
pub(super) fn read_call(cursor: &mut Cursor<'_>) -> Option<Call> {
    let flags = cursor.u8().ok()?;
    let (offset, line) = (cursor.u64().ok()?, cursor.u32().ok()?);
    let (function, file) = (cursor.u32().ok()?, cursor.u32().ok()?);
    let mut text = |len: u32| {
        let bytes = cursor.slice(len as usize).ok()?;
        Some(std::str::from_utf8(bytes).ok()?.to_owned())
    };
    let (function, file) = (text(function)?, text(file)?);
    let has = |flag: u8| flags & flag != 0;
    Some(Call {
        function,
        offset: Some(offset).filter(|_| has(HAS_OFFSET)),
        file: Some(file).filter(|_| has(HAS_FILE)),
        line: Some(line).filter(|_| has(HAS_LINE)),
        inlined: has(INLINED),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Vec<Call> {
        let inlined = Call {
            function: "inner<T>".to_owned(),
            offset: None,
            file: Some("a b.rs".to_owned()),
            line: Some(7),
            inlined: true,
        };
        let outer = Call {
            function: "outer\n".to_owned(),
            offset: Some(u64::MAX),
            ..Call::default()
        };
        vec![inlined, outer]
    }

    #[test]
    fn answers_come_back_and_damage_is_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |number: u8| Some((Cache::new(folder.path().join("new")), Name::from_bytes([number; 32])));
        let mut first = Remembered::read(place(12));
        assert_eq!(first.get(0x10), None);
        first.put(0x10, &calls());
        first.put(0x20, &[]);
        first.keep();
        let again = Remembered::read(place(12));
        assert_eq!(again.get(0x10), Some(&calls()));
        assert_eq!(again.get(0x20), Some(&Vec::new()));
        assert_eq!(again.get(0x30), None);
        let path = |number: u8| {
            folder
                .path()
                .join("new")
                .join(KIND)
                .join(Name::from_bytes([number; 32]).to_string())
        };
        let whole = std::fs::read(path(12)).expect("it was written");
        // An entry under another name is not believed.
        std::fs::write(path(13), &whole).expect("room");
        assert_eq!(Remembered::read(place(13)).get(0x10), None);
        let name = Name::from_bytes([12; 32]);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            assert_eq!(parse(&damaged, &name), None, "byte {at}");
            assert_eq!(parse(&whole[..at], &name), None, "{at} bytes");
            // An entry with the right checksum is trusted as far as it makes sense.
            let end = damaged.len() - 4;
            let crc = crc32fast::hash(&damaged[..end]).to_le_bytes();
            damaged[end..].copy_from_slice(&crc);
            let _ = parse(&damaged, &name);
        }
    }
}
