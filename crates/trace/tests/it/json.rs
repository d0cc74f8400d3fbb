//! What JSON says is what the interface says, written by other means, for every trace of the corpus
//! that can be read and for one with every class of fields.

use crate::support;
use backtrail_trace::{Dialect, Event, Fields, JsonWriter, Options, Trace, Value, find_traces};
use backtrail_wire::Endian;
use serde_json::{Map, Number, json};
use std::path::Path;

fn object<'a>(fields: impl Iterator<Item = (&'a str, Value<'a>)>) -> serde_json::Value {
    // Names may come twice: the last one counts, as when JSON is read.
    fields
        .map(|(name, field)| (name.to_owned(), value(&field)))
        .collect::<Map<_, _>>()
        .into()
}

fn value(field: &Value<'_>) -> serde_json::Value {
    match field {
        Value::Integer(integer) => match integer.class().signed {
            true => integer.as_i64().map_or_else(|| number(integer.value()), Into::into),
            false => integer.as_u64().map_or_else(|| number(integer.value()), Into::into),
        },
        Value::Float(float) => Number::from_f64(*float).into(),
        Value::Text(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::WideText(wide) => wide.chars().collect::<String>().into(),
        Value::Blob(bytes) => {
            let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            digits.concat().into()
        }
        Value::Struct(fields) => object(fields.iter()),
        Value::Array(elements) => elements.iter().map(|element| value(&element)).collect(),
        Value::Variant(chosen) => chosen.value().map(|chosen| value(&chosen)).into(),
        Value::Optional(chosen) => chosen
            .and_then(|chosen| chosen.value())
            .map(|chosen| value(&chosen))
            .into(),
        Value::Flags(flags) => json!({"bits": flags.bits(), "flags": flags.names().collect::<Vec<_>>()}),
        Value::Boolean(is_true) => (*is_true).into(),
    }
}

fn number(value: i128) -> serde_json::Value {
    serde_json::from_str(&value.to_string()).unwrap()
}

fn expected(event: &Event<'_>) -> serde_json::Value {
    let mut line = Map::new();
    match event.section() {
        Some(section) => line.insert("section".into(), section.into()),
        None => {
            let file = event.path().file_name().unwrap();
            line.insert("stream".into(), file.to_string_lossy().into())
        }
    };
    line.insert("name".into(), event.name().into());
    line.insert("ts".into(), event.time().into());
    let packet = event.packet_context().map(|context| object(context.without_roles()));
    let contexts = [event.stream_context(), event.context()];
    let context = object(contexts.iter().flatten().flat_map(Fields::iter));
    for (name, fields) in [("packet", packet.unwrap_or(json!({}))), ("context", context)] {
        if fields != json!({}) {
            line.insert(name.into(), fields);
        }
    }
    let payload = event.payload();
    line.insert("fields".into(), object(payload.iter().flat_map(Fields::iter)));
    line.into()
}

/// Holds every line against what it should say, up to an error; how many there were.
fn compare(directory: &Path) -> usize {
    let Ok(trace) = Trace::open(directory) else { return 0 };
    let Ok(mut events) = trace.events(Options::default()) else {
        return 0;
    };
    let mut count = 0;
    while let Ok(Some(event)) = events.next() {
        let mut line = Vec::new();
        JsonWriter.event(&mut line, &event);
        assert!(line.ends_with(b"}\n"), "{}", directory.display());
        let printed: serde_json::Value = serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{}: {error}: {}", directory.display(), String::from_utf8_lossy(&line)));
        assert_eq!(printed, expected(&event), "{}", directory.display());
        count += 1;
    }
    count
}

#[test]
fn every_class() {
    for dialect in [Dialect::V1_8, Dialect::V2] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("trace");
        let written = support::write_trace(&directory, dialect, Endian::Big);
        assert_eq!(compare(&directory) as u64, written);
    }
}

#[test]
fn public_traces() {
    let Some(corpus) = support::corpus() else { return };
    let mut count = 0;
    for directory in find_traces(&corpus.join("cases")).unwrap() {
        count += compare(&directory);
    }
    assert!(count > 10_000, "{count}");
}
