//! Packets of the RFC with the same content, compressed, encrypted or checked in another way.

use crate::constants::{CONTENT_SIZE, PACKET_SIZE, SCHEMES};
use crate::content::Packing;
use backtrail_trace::constants::PACKET_ALIGN_BYTES;
use backtrail_trace::content::ContentEncoder;
use backtrail_trace::description::Role;
use backtrail_trace::{CreateErrorKind, EncodeError, Options, Trace, TraceError};
use backtrail_wire::Endian;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes the packets of a stream to a new file.
pub(super) fn stream(trace: &Trace, index: usize, target: &Path, packing: Packing) -> Result<(), CreateErrorKind> {
    let order = trace.description().byte_order.unwrap_or(Endian::NATIVE);
    let number = |value: u64| {
        let value = value as u32;
        match order {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        }
    };
    let schemes = [Role::CompressionScheme, Role::EncryptionScheme, Role::ChecksumScheme]
        .map(|role| packing.number(role).unwrap_or(0) as u8);
    let read = |error: TraceError| CreateErrorKind::Read(error.kind);
    let mut reader = trace.stream(index, Options::default()).map_err(read)?;
    let mut options = OpenOptions::new();
    let file = options.append(true).create_new(true).mode(0o600).open(target);
    let mut file = file.map_err(CreateErrorKind::Io)?;
    let mut out = Vec::new();
    while reader.next_packet().map_err(read)? {
        let (header, content) = reader.packet_bytes();
        let mut put_header = |out: &mut Vec<u8>, end: u64, size: u64| {
            out.extend_from_slice(header);
            for (place, bytes) in [
                (CONTENT_SIZE, number(end).as_slice()),
                (PACKET_SIZE, &number(size)),
                (SCHEMES, &schemes),
            ] {
                let place = out.get_mut(place).ok_or(EncodeError::Packing)?;
                place.copy_from_slice(bytes);
            }
            Ok(())
        };
        let stored = packing.store(content, PACKET_ALIGN_BYTES, order, &mut out, &mut put_header);
        stored.map_err(CreateErrorKind::Encode)?;
        file.write_all(&out).map_err(CreateErrorKind::Io)?;
    }
    Ok(())
}
