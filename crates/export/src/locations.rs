//! Locations as pprof and OpenTelemetry have them, which differ in the numbers of their fields.

use crate::protobuf::Message;
use crate::samples::{Frame, Samples};
use crate::strings::Table;

/// Field numbers of a location.
pub(crate) struct Fields {
    pub(crate) mapping: u32,
    pub(crate) address: u32,
    pub(crate) lines: u32,
}

/// Adds an entry of stacks to a location's message: its mapping and its functions, which are
/// numbered from 1, its address and its lines, the innermost call first. A function is a name and a
/// source file.
pub(crate) fn add(
    written: &mut Message,
    fields: &Fields,
    (samples, frame): (&Samples, &Frame),
    strings: &mut Table<String>,
    functions: &mut Table<(u32, u32)>,
) {
    let mut line = |function: (u32, u32), line: u32| {
        let function = functions.of(function);
        written.message(fields.lines, |inner| {
            inner.number(1, u64::from(function) + 1);
            inner.number(2, line.into());
        });
    };
    match frame {
        Frame::Marker(text) => line((strings.text(text), 0), 0),
        Frame::Code {
            address,
            file,
            location,
        } => {
            for call in &samples.locations[*location as usize].calls {
                let file = call.file.as_deref().unwrap_or_default();
                let function = (strings.text(&call.function), strings.text(file));
                line(function, call.line.unwrap_or(0));
            }
            written.number(fields.mapping, file.map_or(0, |file| u64::from(file) + 1));
            written.number(fields.address, *address);
        }
    }
}
