//! Packets of the RFC with the same content, to which something else is done.

use super::super::trace::new_file;
use super::ConvertOptions;
use crate::constants::{PACKET_ALIGN_BYTES, RFC_CONTENT_SIZE, RFC_PACKET_SIZE, RFC_SCHEMES};
use crate::description::Role;
use crate::error::CreateErrorKind;
use crate::read::Trace;
use backtrail_wire::Endian;
use std::io::Write;
use std::path::Path;

pub(super) fn stream(
    trace: &Trace,
    index: usize,
    target: &Path,
    options: ConvertOptions,
) -> Result<(), CreateErrorKind> {
    let order = trace.description().byte_order.unwrap_or(Endian::NATIVE);
    let number = |value: u64| {
        let value = value as u32;
        match order {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        }
    };
    let schemes = [Role::CompressionScheme, Role::EncryptionScheme, Role::ChecksumScheme]
        .map(|role| options.packing.scheme(role).unwrap_or(0) as u8);
    let read = |error: crate::TraceError| CreateErrorKind::Read(error.kind);
    let mut reader = trace.stream(index, options.into()).map_err(read)?;
    let mut file = new_file(target).map_err(CreateErrorKind::Io)?;
    let mut out = Vec::new();
    while reader.next_packet().map_err(read)? {
        let (header, content) = reader.packet_bytes();
        let stored = options
            .packing
            .store(content, PACKET_ALIGN_BYTES, order, &mut out, |out, end, size| {
                out.extend_from_slice(header);
                out[RFC_CONTENT_SIZE].copy_from_slice(&number(end));
                out[RFC_PACKET_SIZE].copy_from_slice(&number(size));
                out[RFC_SCHEMES].copy_from_slice(&schemes);
                Ok(())
            });
        stored.map_err(CreateErrorKind::Encode)?;
        file.write_all(&out).map_err(CreateErrorKind::Io)?;
    }
    Ok(())
}
