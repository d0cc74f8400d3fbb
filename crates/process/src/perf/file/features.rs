//! What perf notes about a recording.

use std::collections::HashMap;

use backtrail_wire::Bytes;

use super::ENDIAN;

/// Numbers of the features that are read (`HEADER_*` in `tools/perf/util/header.h`).
const BUILD_ID: u64 = 2;
const HOSTNAME: u64 = 3;
const OSRELEASE: u64 = 4;
const ARCH: u64 = 6;
const CMDLINE: u64 = 11;
const EVENT_DESC: u64 = 12;

const MISC_BUILD_ID_SIZE: u16 = 1 << 15;

/// What perf noted about the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The machine's name.
    pub hostname: String,
    /// The kernel's release.
    pub kernel: String,
    /// The CPU's name, as `uname -m` prints it.
    pub machine: String,
    /// The command of perf.
    pub command: String,
    /// Build ids by path.
    pub build_ids: HashMap<Vec<u8>, Vec<u8>>,
    /// The address of the kernel's first symbol.
    pub kernel_start: Option<u64>,
    /// The names of events.
    pub(super) events: Vec<String>,
}

impl About {
    /// Reads a feature; a damaged one is left out.
    pub(super) fn read(&mut self, feature: u64, content: &[u8]) {
        let text = || feature_text(content, 0).map(|(text, _)| text).unwrap_or_default();
        match feature {
            BUILD_ID => self.read_build_ids(content),
            HOSTNAME => self.hostname = text(),
            OSRELEASE => self.kernel = text(),
            ARCH => self.machine = text(),
            CMDLINE => self.command = command_line(content).unwrap_or_default(),
            EVENT_DESC => self.events = event_names(content).unwrap_or_default(),
            _ => {}
        }
    }

    /// Reads a list of build ids, or the record of one.
    pub(super) fn read_build_ids(&mut self, content: &[u8]) {
        let mut rest = content;
        while let Some((entry, after)) = build_id_entry(rest) {
            rest = after;
            if let Some((path, id)) = entry {
                self.build_ids.insert(path, id);
            }
        }
    }
}

/// The names of events: each follows the event's attribute, and its ids follow it.
fn event_names(content: &[u8]) -> Option<Vec<String>> {
    let bytes = Bytes::new(content, ENDIAN);
    let (count, attribute) = (bytes.u32(0).ok()?, bytes.u32(4).ok()? as usize);
    let mut offset = 8_usize;
    let mut names = Vec::new();
    for _ in 0..count {
        offset = offset.checked_add(attribute)?;
        let ids = bytes.u32(offset).ok()? as usize;
        let (name, after) = feature_text(content, offset + 4)?;
        names.push(name);
        offset = after.checked_add(ids.checked_mul(8)?)?;
    }
    Some(names)
}

/// A text with its length before it, which includes padding, and the offset of what follows.
fn feature_text(content: &[u8], offset: usize) -> Option<(String, usize)> {
    let bytes = Bytes::new(content, ENDIAN);
    let length = bytes.u32(offset).ok()? as usize;
    let text = bytes.slice(offset + 4, length).ok()?;
    let text = text.split(|&byte| byte == 0).next()?;
    Some((String::from_utf8_lossy(text).into_owned(), offset + 4 + length))
}

fn command_line(content: &[u8]) -> Option<String> {
    let count = Bytes::new(content, ENDIAN).u32(0).ok()?;
    let mut offset = 4;
    let mut words = Vec::new();
    for _ in 0..count {
        let (word, after) = feature_text(content, offset)?;
        words.push(word);
        offset = after;
    }
    Some(words.join(" "))
}

/// Path and build id.
type BuildIdEntry = (Vec<u8>, Vec<u8>);

/// The first entry of a list of build ids, if it makes sense, and what follows it.
fn build_id_entry(content: &[u8]) -> Option<(Option<BuildIdEntry>, &[u8])> {
    const PATH: usize = 36;
    let bytes = Bytes::new(content, ENDIAN);
    let (misc, length) = (bytes.u16(4).ok()?, usize::from(bytes.u16(6).ok()?));
    let (entry, rest) = content.split_at_checked(length.max(8))?;
    let size = match misc & MISC_BUILD_ID_SIZE {
        0 => 20,
        _ => usize::from(*entry.get(32)?).min(20),
    };
    let read = || {
        let id = entry.get(12..12 + size)?.to_vec();
        let path = entry.get(PATH..)?.split(|&byte| byte == 0).next()?;
        Some((path.to_vec(), id))
    };
    Some((read(), rest))
}
