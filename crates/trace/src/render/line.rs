//! Prints events as lines of text, and as lines of JSON.

use super::digits::{decimal, nanoseconds, signed};
use super::pieces::PacketPieces;
use super::style::{self, LineStyle};
use super::{json, text};
use crate::read::Event;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The format of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockFormat {
    /// The local time of day.
    #[default]
    TimeOfDay,
    /// Seconds since the clock's origin.
    Seconds,
    /// The local date and time of day.
    Date,
    /// Cycles of the event's clock.
    Cycles,
}

/// Prints events in the format of `babeltrace2`, one line each. Texts are printed in their stored
/// bytes.
#[derive(Clone, Debug)]
pub struct TextWriter {
    format: ClockFormat,
    zone: TimeZone,
    style: LineStyle,
    /// Whether the time since the previous event is printed.
    delta: bool,
    last: Option<i64>,
    last_cycles: Option<u64>,
    /// The last printed second, and its text.
    second: Option<(i64, String)>,
}

impl TextWriter {
    /// Before the first event.
    pub fn new(format: ClockFormat) -> TextWriter {
        TextWriter {
            format,
            zone: match format {
                ClockFormat::TimeOfDay | ClockFormat::Date => TimeZone::system(),
                ClockFormat::Seconds | ClockFormat::Cycles => TimeZone::UTC,
            },
            style: LineStyle::default(),
            delta: true,
            last: None,
            last_cycles: None,
            second: None,
        }
    }

    /// The same with times of UTC instead of local ones.
    #[must_use]
    pub fn in_utc(self) -> TextWriter {
        TextWriter {
            zone: TimeZone::UTC,
            ..self
        }
    }

    /// The same without the time since the previous event.
    #[must_use]
    pub fn without_delta(self) -> TextWriter {
        TextWriter { delta: false, ..self }
    }

    /// The same with other names and fields.
    #[must_use]
    pub fn styled(self, style: LineStyle) -> TextWriter {
        TextWriter { style, ..self }
    }

    /// Appends the event's line to `line`.
    pub fn event(&mut self, line: &mut Vec<u8>, event: &Event<'_>) {
        match self.format {
            ClockFormat::Cycles => self.cycles(line, event.cycles()),
            _ => self.time(line, event.time()),
        }
        TextWriter::styled_fields(line, event, self.style);
    }

    /// Appends the part of a line that depends on the previous ones, in cycles of the clock.
    pub fn cycles(&mut self, line: &mut Vec<u8>, cycles: Option<u64>) {
        let Some(cycles) = cycles else { return };
        let names = self.style.header_names;
        line.extend_from_slice(if names { b"timestamp = " } else { b"[" });
        style::cycles(line, cycles, 20);
        line.extend_from_slice(if names { b", " } else { b"] " });
        let last = self.last_cycles.replace(cycles);
        if !self.delta {
            return;
        }
        line.extend_from_slice(if names { b"delta = +" } else { b"(+" });
        match last {
            None => line.extend_from_slice(b"????????????"),
            // As in babeltrace2, a time that goes back wraps around.
            Some(last) => style::cycles(line, cycles.wrapping_sub(last), 12),
        }
        line.extend_from_slice(if names { b", " } else { b") " });
    }

    /// Appends the part of a line that depends on the previous ones: the time, and the difference
    /// to the last one.
    pub fn time(&mut self, line: &mut Vec<u8>, time: Option<i64>) {
        let Some(time) = time else { return };
        if self.style.header_names {
            return self.named_time(line, time);
        }
        line.push(b'[');
        self.clock(line, time);
        match self.last.replace(time) {
            _ if !self.delta => line.extend_from_slice(b"] "),
            None => line.extend_from_slice(b"] (+?.?????????) "),
            Some(last) => {
                line.extend_from_slice(b"] (+");
                // As in babeltrace2, a time that goes back wraps around.
                let step = (time as u64).wrapping_sub(last as u64);
                decimal(line, step / PER_SECOND);
                nanoseconds(line, step % PER_SECOND);
                line.extend_from_slice(b") ");
            }
        }
    }

    /// The same with names.
    fn named_time(&mut self, line: &mut Vec<u8>, time: i64) {
        line.extend_from_slice(b"timestamp = ");
        self.clock(line, time);
        line.extend_from_slice(b", ");
        let last = self.last.replace(time);
        if !self.delta {
            return;
        }
        line.extend_from_slice(b"delta = +");
        match last {
            None => line.extend_from_slice(b"?.?????????"),
            Some(last) => {
                let step = (time as u64).wrapping_sub(last as u64);
                decimal(line, step / PER_SECOND);
                nanoseconds(line, step % PER_SECOND);
            }
        }
        line.extend_from_slice(b", ");
    }

    /// Appends the rest of the line, from the environment on, in this style.
    pub fn styled_fields(line: &mut Vec<u8>, event: &Event<'_>, style: LineStyle) {
        match style == LineStyle::default() {
            true => TextWriter::fields(line, event),
            false => style::line(line, event, style),
        }
    }

    /// Appends the rest of the line, from the environment on.
    pub fn fields(line: &mut Vec<u8>, event: &Event<'_>) {
        PacketPieces::with(event, |pieces| {
            pieces.plan.event(event).heading.append(line);
            let context = &pieces.context_text;
            context.append(line);
            let mut is_first = context.is_empty();
            for fields in [event.stream_context(), event.context(), event.payload()]
                .into_iter()
                .flatten()
            {
                if !std::mem::take(&mut is_first) {
                    line.extend_from_slice(b", ");
                }
                text::Printer::new(&fields, &pieces.plan.text).members(line, fields.node, false);
            }
        });
        line.push(b'\n');
    }

    fn clock(&mut self, line: &mut Vec<u8>, time: i64) {
        const SECOND: i64 = PER_SECOND as i64;
        if self.format == ClockFormat::Seconds {
            signed(line, time / SECOND);
            return nanoseconds(line, (time % SECOND).unsigned_abs());
        }
        let second = time.div_euclid(SECOND);
        if self.second.as_ref().is_none_or(|(last, _)| *last != second) {
            self.second = Some((second, self.second_of_day(second)));
        }
        if let Some((_, clock)) = &self.second {
            line.extend_from_slice(clock.as_bytes());
        }
        nanoseconds(line, time.rem_euclid(SECOND).unsigned_abs());
    }

    fn second_of_day(&self, second: i64) -> String {
        let format = match self.format {
            ClockFormat::Date => "%Y-%m-%d %H:%M:%S",
            _ => "%H:%M:%S",
        };
        // All seconds of 64-bit nanoseconds are in years with four digits.
        let clock = Timestamp::from_second(second).map(|timestamp| timestamp.to_zoned(self.zone.clone()));
        clock.map_or("??:??:??".to_owned(), |clock| clock.strftime(format).to_string())
    }
}

const PER_SECOND: u64 = 1_000_000_000;

/// Prints events as JSON, one object per line: `section` (of the RFC) or `stream` (the file's
/// name), `name`, `ts` (nanoseconds from the clock's origin), `packet` (fields of the packet's
/// context) and `context` if there are any, and `fields`.
///
/// Numbers stay numbers, including those of enumerations. Text that is not UTF-8 has replacement
/// characters, and numbers that JSON cannot express, such as infinity, are null. Bits with names
/// are an object, BLOBs a string of hexadecimal digits.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonWriter;

impl JsonWriter {
    /// Appends the event's line to `line`.
    pub fn event(&self, line: &mut Vec<u8>, event: &Event<'_>) {
        PacketPieces::with(event, |pieces| JsonWriter::with_pieces(line, event, pieces, false));
    }

    /// The same with labels: enumerations are `{"value", "labels"}`, and there are `level`
    /// (`{"number", "name"}`), and `clock` (`{"name", "cycles"}`) if the event has them.
    pub fn event_with_labels(&self, line: &mut Vec<u8>, event: &Event<'_>) {
        PacketPieces::with(event, |pieces| JsonWriter::with_pieces(line, event, pieces, true));
    }

    fn with_pieces(line: &mut Vec<u8>, event: &Event<'_>, pieces: &PacketPieces, labels: bool) {
        let fields_json = &pieces.plan.json;
        pieces.json_stream.append(line);
        pieces.plan.event(event).json_name.append(line);
        match event.time() {
            Some(time) => signed(line, time),
            None => line.extend_from_slice(b"null"),
        }
        match labels {
            true => json::labels(line, event, fields_json),
            false => pieces.context_json.append(line),
        }
        let contexts = [event.stream_context(), event.context()];
        if contexts.iter().flatten().any(|fields| !fields.is_empty()) {
            line.extend_from_slice(b", \"context\": {");
            for fields in contexts.into_iter().flatten() {
                json::Printer::new(&fields, fields_json, labels).members(line, fields.node, false);
            }
            json::close(line, b'}');
        }
        line.extend_from_slice(b", \"fields\": {");
        if let Some(fields) = event.payload() {
            json::Printer::new(&fields, fields_json, labels).members(line, fields.node, false);
        }
        json::close(line, b'}');
        line.extend_from_slice(b"}\n");
    }
}
