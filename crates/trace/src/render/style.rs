//! Lines with other names and fields than by default, as with babeltrace2's `--names` and
//! `--fields`.

use super::digits::decimal;
use super::level::level_name;
use super::pieces::PacketPieces;
use super::text::{Printer, UNNAMED};
use crate::description::EnvironmentValue;
use crate::read::{Event, Fields};
use std::io::Write;

/// The names and the fields that a line of text has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineStyle {
    /// Names of what is before the fields: `timestamp`, `name` and so on.
    pub header_names: bool,
    /// Names of the fields of contexts.
    pub context_names: bool,
    /// Names of the fields of payloads.
    pub payload_names: bool,
    /// Names of contexts and payloads.
    pub scope_names: bool,
    /// Print the host's name.
    pub hostname: bool,
    /// Print the domain: `ust` or `kernel`.
    pub domain: bool,
    /// Print the process's name.
    pub procname: bool,
    /// Print the process's number.
    pub vpid: bool,
    /// Print the level of the event's class.
    pub level: bool,
}

impl Default for LineStyle {
    fn default() -> LineStyle {
        LineStyle {
            header_names: false,
            context_names: true,
            payload_names: true,
            scope_names: false,
            hostname: true,
            domain: false,
            procname: true,
            vpid: true,
            level: false,
        }
    }
}

/// Appends all of a line after the time.
pub(super) fn line(line: &mut Vec<u8>, event: &Event<'_>, style: LineStyle) {
    heading(line, event, style);
    PacketPieces::with(event, |pieces| {
        let mut is_first = true;
        let mut scope = |name: &str, fields: Option<Fields<'_>>, is_named: bool, without_roles: bool| {
            let Some(fields) = fields.filter(|fields| !without_roles || fields.without_roles().next().is_some()) else {
                return;
            };
            if !std::mem::take(&mut is_first) {
                line.extend_from_slice(b", ");
            }
            if style.scope_names {
                line.extend_from_slice(name.as_bytes());
                line.extend_from_slice(b" = ");
            }
            let printer = match is_named {
                true => Printer::new(&fields, &pieces.plan.text),
                false => Printer::unnamed(&fields, pieces.plan.unnamed(event.plan())),
            };
            printer.members(line, fields.node, without_roles);
        };
        let (context, payload) = (style.context_names, style.payload_names);
        scope("stream.packet.context", event.packet_context(), context, true);
        scope("stream.event.context", event.stream_context(), context, false);
        scope("event.context", event.context(), context, false);
        scope("event.fields", event.payload(), payload, false);
    });
    line.push(b'\n');
}

/// What is between the time and the fields.
fn heading(line: &mut Vec<u8>, event: &Event<'_>, style: LineStyle) {
    let names = style.header_names;
    let mut any = false;
    let mut part = |line: &mut Vec<u8>, name: &str, value: std::fmt::Arguments<'_>| {
        match names {
            true => line.extend_from_slice(name.as_bytes()),
            false if any => line.push(b':'),
            false => {}
        }
        any = true;
        // Writing to memory cannot fail.
        let _ = line.write_fmt(value);
        if names {
            line.extend_from_slice(b", ");
        }
    };
    let environment = [
        (style.hostname, "hostname", "trace:hostname = "),
        (style.domain, "domain", "trace:domain = "),
        (style.procname, "procname", "trace:procname = "),
        (style.vpid, "vpid", "trace:vpid = "),
    ];
    for (_, key, name) in environment.into_iter().filter(|(wanted, ..)| *wanted) {
        match event.environment().iter().find(|(own, _)| own == key) {
            Some((_, EnvironmentValue::String(value))) => part(line, name, format_args!("{value}")),
            Some((_, EnvironmentValue::Integer(value))) => part(line, name, format_args!("({value})")),
            None => {}
        }
    }
    let level = event.class().log_level.filter(|_| style.level);
    if let Some((level, text)) = level.and_then(|level| Some((level, level_name(level)?))) {
        part(line, "loglevel = ", format_args!("{text} ({level})"));
    }
    let name = match event.name() {
        "" => UNNAMED,
        name => name,
    };
    match names {
        true => line.extend_from_slice(b"name = "),
        false if any => line.push(b' '),
        false => {}
    }
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(if names { b", " } else { b": " });
}

/// Cycles as babeltrace2's `--clock-cycles` prints them: at least this many digits.
pub(super) fn cycles(line: &mut Vec<u8>, cycles: u64, digits: u32) {
    let own = cycles.checked_ilog10().unwrap_or(0) + 1;
    (own..digits).for_each(|_| line.push(b'0'));
    decimal(line, cycles);
}
