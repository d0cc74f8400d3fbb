//! Finds places in 64-bit little-endian ELF files, to damage them there. Deliberately does not use
//! the project's ELF reader.

use std::ops::Range;

/// The range of a section's bytes in the file.
pub fn section(file: &[u8], name: &str) -> Option<Range<usize>> {
    let headers = headers(file)?;
    let names = headers.get(usize::from(u16_at(file, 62)?))?.clone();
    headers
        .iter()
        .find(|header| name_at(file, names.offset + header.name) == Some(name.as_bytes()))
        .map(|header| {
            let end = header.offset.saturating_add(header.size).min(file.len());
            header.offset.min(end)..end
        })
}

/// The value of a dynamic symbol; in an ordinary shared library whose code is mapped at its file
/// offset, this is also its offset in the file.
pub fn dynamic_symbol(file: &[u8], name: &str) -> Option<u64> {
    let symbols = section(file, ".dynsym")?;
    let names = section(file, ".dynstr")?.start;
    symbols.step_by(24).find_map(|at| {
        let start = names + u32_at(file, at)? as usize;
        (name_at(file, start)? == name.as_bytes())
            .then(|| u64_at(file, at + 8))
            .flatten()
    })
}

#[derive(Clone)]
struct Header {
    name: usize,
    offset: usize,
    size: usize,
}

fn headers(file: &[u8]) -> Option<Vec<Header>> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let start = u64_at(file, 40)? as usize;
    (0..usize::from(u16_at(file, 60)?))
        .map(|n| {
            let at = start.checked_add(n * 64)?;
            let (name, offset, size) = (u32_at(file, at)?, u64_at(file, at + 24)?, u64_at(file, at + 32)?);
            Some(Header {
                name: name as usize,
                offset: offset as usize,
                size: size as usize,
            })
        })
        .collect()
}

fn name_at(file: &[u8], at: usize) -> Option<&[u8]> {
    file.get(at..)?.split(|byte| *byte == 0).next()
}

fn bytes<const N: usize>(file: &[u8], at: usize) -> Option<[u8; N]> {
    file.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(file: &[u8], at: usize) -> Option<u16> {
    bytes(file, at).map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    bytes(file, at).map(u32::from_le_bytes)
}

fn u64_at(file: &[u8], at: usize) -> Option<u64> {
    bytes(file, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{available, program};

    #[test]
    fn finds_what_readelf_would() {
        let Some(plugin) = available(program::PLUGIN.build()) else {
            return;
        };
        let file = std::fs::read(plugin).expect("it was just built");
        let frames = section(&file, ".eh_frame").expect("a library has .eh_frame");
        assert!(
            frames.len() > 24 && file[frames.start + 8] == 1,
            "no CIE of version 1 at the start of .eh_frame"
        );
        let text = section(&file, ".text").expect("a library has .text");
        let place = dynamic_symbol(&file, "plugin_alone").expect("it is exported") as usize;
        assert!(text.contains(&place), "{place:#x} is not in {text:x?}");
        assert_eq!(
            (section(&file, ".no_such"), dynamic_symbol(&file, "no_such")),
            (None, None)
        );
        assert_eq!((section(&file[..100], ".text"), section(b"", ".text")), (None, None));
    }
}
