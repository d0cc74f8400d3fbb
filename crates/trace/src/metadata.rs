//! Metadata files: their dialect, the packets that they may consist of, and their text.

use crate::constants::{
    METADATA_PACKET_HEADER_BYTES, METADATA_PACKET_MAGIC, PACKET_MAGIC, PMETA_PACKET_HEADER_BYTES, RECORD_SEPARATOR,
};
use crate::description::Description;
use crate::dialect::Dialect;
use crate::error::{TraceError, TraceErrorKind};
use crate::{json2, tsdl};
use backtrail_wire::{Bytes, Endian};

impl Dialect {
    /// The dialect of a metadata file, by its first bytes.
    ///
    /// # Errors
    ///
    /// They belong to no dialect.
    pub fn of_metadata(metadata: &[u8]) -> Result<Dialect, TraceErrorKind> {
        detect(metadata)
    }
}

fn detect(metadata: &[u8]) -> Result<Dialect, TraceErrorKind> {
    if metadata.first() == Some(&RECORD_SEPARATOR) {
        return Ok(Dialect::V2);
    }
    let first = [0, 1, 2, 3].map(|index| metadata.get(index).copied().unwrap_or(0));
    for magic in [u32::from_le_bytes(first), u32::from_be_bytes(first)] {
        if magic == METADATA_PACKET_MAGIC {
            // The major version is the last byte but one of the header.
            let major = metadata.get(METADATA_PACKET_HEADER_BYTES - 2);
            return Ok(if major == Some(&2) { Dialect::V2 } else { Dialect::V1_8 });
        }
        if u64::from(magic) == PACKET_MAGIC {
            return Ok(Dialect::Rfc1_1);
        }
    }
    // Any other text; the parser decides whether it is valid.
    if metadata
        .iter()
        .take(64)
        .any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace())
    {
        return Err(TraceErrorKind::UnknownDialect(first));
    }
    Ok(Dialect::V1_8)
}

/// Parses the contents of a metadata file of CTF 1.8 or 2.
///
/// # Errors
///
/// The metadata is malformed, or of another dialect.
pub fn parse_metadata(metadata: &[u8]) -> Result<(Dialect, Description), TraceErrorKind> {
    let dialect = detect(metadata)?;
    let description = match dialect {
        Dialect::V2 => {
            let unpacked = unpack(metadata, (2, 0))?;
            let text = utf8(unpacked.as_ref().map_or(metadata, |packets| &packets.text))?;
            json2::parse(text).map_err(TraceErrorKind::Json2)?
        }
        Dialect::V1_8 => {
            let unpacked = unpack(metadata, (1, 8))?;
            let text = utf8(unpacked.as_ref().map_or(metadata, |packets| &packets.text))?;
            let description = tsdl::parse(text).map_err(TraceErrorKind::Tsdl)?;
            // Packets of metadata are in the byte order that their text names (CTF 1.8.3, section
            // 7.1).
            if let Some(packets) = unpacked
                && description.byte_order.is_some_and(|stated| stated != packets.order)
            {
                return Err(TraceErrorKind::MetadataOrder);
            }
            description
        }
        Dialect::Rfc1_1 => return Err(TraceErrorKind::OtherDialect(dialect)),
    };
    Ok((dialect, description))
}

/// The text in a metadata file, without its packets.
fn text(metadata: &[u8]) -> Option<String> {
    let bytes = match detect(metadata).ok()? {
        Dialect::V1_8 => unpack(metadata, (1, 8)).ok()?.map(|packets| packets.text),
        Dialect::V2 => unpack(metadata, (2, 0)).ok()?.map(|packets| packets.text),
        Dialect::Rfc1_1 => return None,
    };
    String::from_utf8(bytes.unwrap_or_else(|| metadata.to_vec())).ok()
}

/// A line of metadata that contains an error, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Number of the line, from 1.
    pub number: u32,
    /// Column of the error in characters, from 1.
    pub column: u32,
    /// The line.
    pub text: String,
}

impl TraceError {
    /// The line of metadata that contains the error, if the file still exists.
    pub fn source_line(&self) -> Option<SourceLine> {
        self.place()?;
        self.line_in(&text(&crate::regular::read(&self.path).ok()?)?)
    }

    /// The line of this metadata text that contains the error.
    pub fn line_in(&self, text: &str) -> Option<SourceLine> {
        let (number, column) = self.place()?;
        let line = text.lines().nth(number.checked_sub(1)? as usize)?;
        Some(SourceLine {
            number,
            column,
            // Columns of a fragment are counted after its separator.
            text: line.trim_start_matches(char::from(RECORD_SEPARATOR)).to_owned(),
        })
    }

    /// Line and column of the metadata.
    fn place(&self) -> Option<(u32, u32)> {
        match &self.kind {
            TraceErrorKind::Tsdl(error) => Some((error.position.line, error.position.column)),
            TraceErrorKind::Json2(error) => Some((error.line, error.column)),
            _ => None,
        }
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, TraceErrorKind> {
    std::str::from_utf8(bytes).map_err(|error| TraceErrorKind::Utf8(error.valid_up_to() as u64))
}

/// The contents of a metadata stream that consists of packets.
struct Unpacked {
    text: Vec<u8>,
    order: Endian,
}

/// The text in the packets of a metadata stream (CTF 1.8.3, section 7.1; CTF2-PMETA-1.0); `None` if
/// it is plain text.
#[expect(clippy::arithmetic_side_effects, reason = "`offset` is at most the length")]
fn unpack(metadata: &[u8], version: (u8, u8)) -> Result<Option<Unpacked>, TraceErrorKind> {
    let order = [Endian::Little, Endian::Big]
        .into_iter()
        .find(|&order| Bytes::new(metadata, order).u32(0) == Ok(METADATA_PACKET_MAGIC));
    let Some(order) = order else { return Ok(None) };
    let bytes = Bytes::new(metadata, order);
    // The header of CTF 2 is longer. Writers that use the length of 1.8's are accepted too: content
    // begins with a separator.
    let header = match metadata.get(METADATA_PACKET_HEADER_BYTES) {
        Some(&first) if version.0 == 2 && first != RECORD_SEPARATOR => PMETA_PACKET_HEADER_BYTES,
        _ => METADATA_PACKET_HEADER_BYTES,
    };
    let mut text = Vec::new();
    let mut uuid = None;
    let mut offset = 0;
    // Less than a header at the end is the rest of a longer packet that was overwritten.
    while offset == 0 || metadata.len() - offset >= header {
        let wrong = TraceErrorKind::MetadataPacket(offset as u64);
        let Some(packet) = metadata_packet(bytes, offset, header, version) else {
            return Err(wrong);
        };
        if *uuid.get_or_insert(packet.uuid) != packet.uuid {
            return Err(wrong);
        }
        text.extend_from_slice(packet.content);
        offset = packet.next.min(metadata.len());
    }
    Ok(Some(Unpacked { text, order }))
}

struct MetadataPacket<'m> {
    uuid: &'m [u8],
    content: &'m [u8],
    /// Position of the next one.
    next: usize,
}

/// The metadata packet at `offset`.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the content was compared with the header, and with the length"
)]
fn metadata_packet(bytes: Bytes<'_>, offset: usize, header: usize, version: (u8, u8)) -> Option<MetadataPacket<'_>> {
    let mut cursor = bytes.cursor(offset);
    let magic = cursor.u32().ok()?;
    let uuid = cursor.slice(16).ok()?;
    let _checksum = cursor.u32().ok()?;
    let content_bits = cursor.u32().ok()?;
    let packet_bits = cursor.u32().ok()?;
    let schemes = cursor.slice(3).ok()?;
    let stated = (cursor.u8().ok()?, cursor.u8().ok()?);
    let content = content_bits as usize / 8;
    let packet = packet_bits as usize / 8;
    let sound = magic == METADATA_PACKET_MAGIC
        && schemes == [0; 3]
        && stated == version
        && (header..=packet).contains(&content)
        && content_bits.is_multiple_of(8)
        && packet_bits.is_multiple_of(8);
    if !sound {
        return None;
    }
    // Missing padding at the end of the file is accepted.
    Some(MetadataPacket {
        uuid,
        content: bytes.slice(offset + header, content - header).ok()?,
        next: offset.checked_add(packet)?,
    })
}
