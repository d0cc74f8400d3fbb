//! A new trace of the RFC's dialect.

use crate::content::Packing;
use crate::metadata;
use backtrail_trace::constants::PACKET_ALIGN_BYTES;
use backtrail_trace::description::{Description, Encoding, EventClass, FieldClass, StreamClass, Struct};
use backtrail_trace::{CreateError, CreateErrorKind, EncodeError, Plan, StreamOptions, StreamWriter, TraceWriter};
use backtrail_wire::Endian;
use std::path::Path;
use std::sync::Arc;

/// Creates the directory (or takes an empty one) and writes the metadata. `packing` is what is done
/// to the content of packets, unless a stream's own [`StreamOptions::content`] says otherwise.
///
/// # Errors
///
/// The RFC cannot express the description, or the directory cannot be written or is not empty.
pub fn create(directory: &Path, description: Description, packing: Packing) -> Result<TraceWriter, CreateError> {
    let text = metadata_packets(&description).map_err(|kind| CreateError::new(directory, kind))?;
    let writer = TraceWriter::with_metadata(directory, description, &text)?;
    Ok(writer.with_content(Arc::new(packing)))
}

/// Each entry is an event of one string, without any header, in packets like those of the data (RFC
/// 7).
fn metadata_packets(description: &Description) -> Result<Vec<u8>, CreateErrorKind> {
    let entries = metadata::write(description).map_err(|error| CreateErrorKind::Inexpressible(Box::new(error)))?;
    let order = description.byte_order.unwrap_or(Endian::NATIVE);
    let string = Struct::new().with("entry", FieldClass::String(Encoding::Utf8));
    let event = EventClass {
        payload: Some(string),
        ..EventClass::default()
    };
    let class = StreamClass {
        events: vec![event],
        ..StreamClass::default()
    };
    let mut stream = metadata::description(order, description.session.unwrap_or(0));
    stream.streams.push(class);
    let plan = Plan::new(stream).map_err(CreateErrorKind::Description)?;
    let longest = entries.iter().map(String::len).max().unwrap_or(0);
    let mut options = StreamOptions::for_cpu(0, 0);
    options.max_packet_bytes = options.max_packet_bytes.max(longest + 2 * PACKET_ALIGN_BYTES);
    options.content = Some(Arc::new(Packing::default()));
    let mut writer = StreamWriter::new(Arc::new(plan), options).map_err(CreateErrorKind::Encode)?;
    let mut packets = Vec::new();
    for entry in &entries {
        let put = |writer: &mut StreamWriter| {
            let mut event = writer.event(0, 0);
            event.string(entry);
            event.finish()
        };
        let result = match put(&mut writer) {
            Err(EncodeError::Full) => {
                packets.extend_from_slice(writer.finish(0).map_err(CreateErrorKind::Encode)?);
                put(&mut writer)
            }
            result => result,
        };
        result.map_err(CreateErrorKind::Encode)?;
    }
    packets.extend_from_slice(writer.finish(0).map_err(CreateErrorKind::Encode)?);
    Ok(packets)
}
