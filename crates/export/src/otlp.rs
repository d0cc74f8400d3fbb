//! OpenTelemetry's profiles, `v1development` as of version 1.10 of the protocol. The first entry of
//! each table is empty and means "no entry".

use std::io::{self, Write};

use rustc_hash::FxHashMap;

use crate::locations::{self, Fields};
use crate::protobuf::Message;
use crate::samples::{Frame, Samples};
use crate::strings::{Table, hex};

/// Fields of `ProfilesDictionary`.
mod dictionary {
    pub(super) const MAPPINGS: u32 = 1;
    pub(super) const LOCATIONS: u32 = 2;
    pub(super) const FUNCTIONS: u32 = 3;
    pub(super) const LINKS: u32 = 4;
    pub(super) const STRINGS: u32 = 5;
    pub(super) const ATTRIBUTES: u32 = 6;
    pub(super) const STACKS: u32 = 7;
}

const LOCATION: Fields = Fields {
    mapping: 1,
    address: 2,
    lines: 3,
};

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    Text(String),
    Number(u64),
}

#[derive(Default)]
struct Tables {
    strings: Table<String>,
    /// Key and value; numbered from 1 in the file.
    attributes: Table<(u32, Value)>,
    /// Name and source file; numbered from 1 in the file.
    functions: Table<(u32, u32)>,
}

impl Tables {
    fn attribute(&mut self, key: &str, value: Value) -> u64 {
        let key = self.strings.text(key);
        u64::from(self.attributes.of((key, value))) + 1
    }

    fn text(&mut self, key: &str, value: &str) -> u64 {
        self.attribute(key, Value::Text(value.to_owned()))
    }
}

pub(crate) fn write(samples: &Samples, out: &mut dyn Write) -> io::Result<()> {
    let mut tables = Tables::default();
    tables.strings.text("");
    let mut stacks = Table::default();
    let profile = profile(samples, &mut tables, &mut stacks);

    let mut data = Message::default();
    data.message(1, |resource_profiles| {
        resource_profiles.message(1, |resource| {
            let origin = &samples.origin;
            for (key, value) in [
                ("host.name", &origin.hostname),
                ("host.arch", &origin.machine),
                ("os.version", &origin.kernel),
                ("process.command_line", &origin.command),
            ] {
                if !value.is_empty() {
                    resource.message(1, |attribute| {
                        attribute.text(1, key);
                        attribute.message(2, |any| any.text(1, value));
                    });
                }
            }
        });
        resource_profiles.message(2, |scope_profiles| {
            scope_profiles.message(1, |scope| {
                scope.text(1, "backtrail");
                scope.text(2, env!("CARGO_PKG_VERSION"));
            });
            scope_profiles.message(2, |message| message.bytes = profile.bytes);
        });
    });
    out.write_all(&data.bytes)?;
    data.bytes.clear();
    data.message(2, |message| write_tables(message, samples, tables, &stacks));
    out.write_all(&data.bytes)
}

fn profile(samples: &Samples, tables: &mut Tables, stacks: &mut Table<u32>) -> Message {
    let mut message = Message::default();
    let strings = &mut tables.strings;
    let (kind, unit) = match &samples.measure {
        Some(measure) if measure.is_time => (measure.name.as_str(), "microseconds"),
        Some(measure) => (measure.name.as_str(), "count"),
        None => ("samples", "count"),
    };
    let (kind, unit) = (strings.text(kind), strings.text(unit));
    message.message(1, |value_type| {
        value_type.number(1, kind.into());
        value_type.number(2, unit.into());
    });
    // One entry for all samples that differ only in their times.
    let mut places: FxHashMap<(u32, u32, u32, u8), usize> = FxHashMap::default();
    let mut groups = Vec::new();
    for row in &samples.rows {
        let key = (row.node, row.thread, row.cpu, row.ending);
        let place = *places.entry(key).or_insert(groups.len());
        if place == groups.len() {
            groups.push((key, Vec::new()));
        }
        groups[place].1.push((row.time, row.weight));
    }
    for ((node, thread, cpu, ending), times) in groups {
        let stack = u64::from(stacks.of(node)) + 1;
        let (process, thread) = (samples.process_of(thread), &samples.threads[thread as usize]);
        let ending = samples.endings[usize::from(ending)];
        let mut attributes = vec![
            tables.attribute("process.pid", Value::Number(process.pid.into())),
            tables.text("process.executable.name", &process.name),
            tables.attribute("thread.id", Value::Number(thread.tid.into())),
            tables.text("thread.name", &thread.name),
            tables.attribute("cpu.logical_number", Value::Number(cpu.into())),
            tables.text("backtrail.stack", ending.name()),
        ];
        if ending.live {
            attributes.push(tables.text("backtrail.read", "late"));
        }
        message.message(2, |sample| {
            sample.number(1, stack);
            sample.packed(2, attributes.into_iter());
            sample.packed(4, times.iter().map(|&(_, weight)| weight));
            sample.packed_fixed64(5, times.iter().map(|&(time, _)| time));
        });
    }
    if let Some((first, last)) = samples.times() {
        message.fixed64(3, first);
        message.number(4, last - first);
    }
    if let Some(period) = samples.period() {
        let (kind, unit) = (tables.strings.text("cpu"), tables.strings.text("nanoseconds"));
        message.message(5, |value_type| {
            value_type.number(1, kind.into());
            value_type.number(2, unit.into());
        });
        message.number(6, period);
    }
    message
}

fn write_tables(message: &mut Message, samples: &Samples, mut tables: Tables, stacks: &Table<u32>) {
    for table in [
        dictionary::MAPPINGS,
        dictionary::LOCATIONS,
        dictionary::FUNCTIONS,
        dictionary::LINKS,
        dictionary::ATTRIBUTES,
        dictionary::STACKS,
    ] {
        message.message(table, |_| ());
    }
    for file in &samples.files {
        let path = tables.strings.text(&file.path);
        let build_id = match file.build_id.is_empty() {
            true => None,
            false => Some(tables.text("process.executable.build_id.gnu", &hex(&file.build_id))),
        };
        message.message(dictionary::MAPPINGS, |mapping| {
            mapping.number(1, file.start);
            mapping.number(2, file.end);
            mapping.number(4, path.into());
            mapping.packed(5, build_id.into_iter());
        });
    }
    for frame in &samples.frames {
        let kind = match frame {
            Frame::Marker(_) => None,
            Frame::Code { location, .. } => match samples.locations[*location as usize].origin {
                backtrail_profile::Origin::Kernel => Some("kernel"),
                _ => Some("native"),
            },
        };
        let kind = kind.map(|kind| tables.text("profile.frame.type", kind));
        message.message(dictionary::LOCATIONS, |written| {
            let Tables { strings, functions, .. } = &mut tables;
            locations::add(written, &LOCATION, (samples, frame), strings, functions);
            written.packed(4, kind.into_iter());
        });
    }
    for &(name, file) in tables.functions.values() {
        message.message(dictionary::FUNCTIONS, |function| {
            function.number(1, name.into());
            function.number(3, file.into());
        });
    }
    for &node in stacks.values() {
        message.message(dictionary::STACKS, |stack| {
            stack.packed(1, samples.stack(node).map(|frame| u64::from(frame) + 1));
        });
    }
    for (key, value) in tables.attributes.values() {
        message.message(dictionary::ATTRIBUTES, |attribute| {
            attribute.number(1, (*key).into());
            attribute.message(2, |any| match value {
                Value::Text(text) => any.text(1, text),
                // A member of a `oneof` is written even if it is 0.
                Value::Number(0) => any.bytes.extend([3 << 3, 0]),
                Value::Number(number) => any.number(3, *number),
            });
        });
    }
    for text in tables.strings.values() {
        message.text(dictionary::STRINGS, text);
    }
}
