//! Streams that arrive piece by piece, and traces that are followed, say what whole ones do.

use crate::support::{corpus, text_of, write_trace};
use backtrail_testkit::text::Random;
use backtrail_trace::{
    ClockFormat, Dialect, Endian, FieldHint, Follow, Options, PushReader, Recover, TextWriter, Trace, Value,
    find_traces,
};
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The text of a stream, read whole.
fn whole(trace: &Trace, index: usize, options: Options) -> String {
    let mut reader = trace.stream(index, options).unwrap();
    let (mut text, mut writer) = (Vec::new(), TextWriter::new(ClockFormat::Seconds));
    while let Some(event) = reader.next().unwrap() {
        writer.event(&mut text, &event);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The text of a stream that arrives in pieces of random size; `None` if it cannot be read.
fn pushed(trace: &Trace, index: usize, options: Options, random: &mut Random) -> Option<String> {
    let path = &trace.streams()[index];
    let bytes = fs::read(path).unwrap();
    let mut reader = PushReader::new(trace.plan().clone(), path, options);
    let (mut text, mut writer) = (Vec::new(), TextWriter::new(ClockFormat::Seconds));
    let mut rest = bytes.as_slice();
    loop {
        let most = [1, 10, 1000, 100_000][random.below(4)];
        let (piece, after) = rest.split_at(rest.len().min(1 + random.below(most)));
        rest = after;
        match piece.is_empty() {
            true => reader.finish(),
            false => reader.feed(piece),
        }
        while let Some(event) = reader.next().ok()? {
            writer.event(&mut text, &event);
        }
        if piece.is_empty() {
            assert!(reader.waiting_bytes() == 0 || options != Options::default());
            return Some(String::from_utf8_lossy(&text).into_owned());
        }
    }
}

#[test]
fn pieces_say_what_the_whole_does() {
    let mut random = Random::new(3);
    let mut directories: Vec<PathBuf> = Vec::new();
    let scratch = tempfile::tempdir().unwrap();
    for (name, dialect, order) in [
        ("one", Dialect::V1_8, Endian::Big),
        ("two", Dialect::V2, Endian::Little),
    ] {
        let directory = scratch.path().join(name);
        write_trace(&directory, dialect, order);
        directories.push(directory);
    }
    if let Some(corpus) = corpus() {
        directories.extend(find_traces(&corpus.join("cases/recorded")).unwrap());
        directories.extend(find_traces(&corpus.join("cases/bt")).unwrap());
    }
    let mut compared = 0;
    for directory in directories {
        let Ok(trace) = Trace::open(&directory) else { continue };
        for index in 0..trace.streams().len() {
            let reads = trace.stream(index, Options::default()).is_ok_and(|mut reader| {
                std::iter::repeat_with(|| reader.next().map(|event| event.is_some()))
                    .find(|result| !matches!(result, Ok(true)))
                    .is_some_and(|last| last.is_ok())
            });
            let options = Options::default();
            let text = pushed(&trace, index, options, &mut random);
            assert_eq!(text.is_some(), reads, "{}", directory.display());
            if !reads {
                continue;
            }
            let expected = whole(&trace, index, options);
            assert!(text == Some(expected), "{}", directory.display());
            compared += 1;
        }
    }
    assert!(compared > 1);
}

#[test]
fn a_part_of_what_arrives() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    write_trace(&directory, Dialect::V1_8, Endian::Little);
    let trace = Trace::open(&directory).unwrap();
    let mut times = Vec::new();
    let mut events = trace.events(Options::default()).unwrap();
    while let Some(event) = events.next().unwrap() {
        times.push(event.time().unwrap());
    }
    let mut options = Options::default();
    (options.begin, options.end) = (Some(times[times.len() / 3]), Some(times[times.len() / 2]));
    for index in 0..trace.streams().len() {
        let text = pushed(&trace, index, options, &mut Random::new(9));
        assert!(text == Some(whole(&trace, index, options)));
    }
}

/// A stream that is cut: an error, or what could be read of it.
#[test]
fn what_is_cut_is_read_as_far_as_it_goes() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trace");
    write_trace(&directory, Dialect::V1_8, Endian::Little);
    let trace = Trace::open(&directory).unwrap();
    let bytes = fs::read(&trace.streams()[0]).unwrap();
    let mut cut = bytes[..bytes.len() - 4096].to_vec();
    let options = |recover| Options {
        recover,
        ..Options::default()
    };
    // A second time with a packet in the middle that has no size.
    let times = [Recover::Never, Recover::EndStream, Recover::NextPacket];
    for (time, recover) in times.into_iter().chain(times).enumerate() {
        if time == times.len() {
            let second = trace.stream(0, Options::default()).map(|mut reader| {
                reader.next_packet().unwrap();
                reader.packet().unwrap().packet_bits / 8
            });
            cut[second.unwrap() as usize] ^= 0xff;
        }
        let file = scratch.path().join("cut");
        fs::write(&file, &cut).unwrap();
        let mut expected =
            backtrail_trace::StreamReader::in_memory(trace.plan().clone(), &file, cut.clone(), options(recover));
        let mut reader = PushReader::new(trace.plan().clone(), &file, options(recover));
        reader.feed(&cut);
        reader.finish();
        loop {
            let (ours, theirs) = (reader.next(), expected.next());
            match (&ours, &theirs) {
                (Ok(Some(ours)), Ok(Some(theirs))) => assert_eq!(ours.time(), theirs.time()),
                (Ok(None), Ok(None)) => break,
                (Err(ours), Err(theirs)) => {
                    assert_eq!(ours.to_string(), theirs.to_string());
                    break;
                }
                _ => panic!("{recover:?}: {ours:?}, not {theirs:?}"),
            }
        }
        assert_eq!(reader.problems(), expected.problems());
        assert_eq!(reader.statistics(), expected.statistics());
    }
}

/// A hint finds the field that its name finds, also where fields before it vary in length.
#[test]
fn hints_find_what_names_do() {
    let scratch = tempfile::tempdir().unwrap();
    let mut directories = vec![scratch.path().join("one")];
    write_trace(&directories[0], Dialect::V2, Endian::Little);
    if let Some(corpus) = corpus() {
        directories.extend(find_traces(&corpus.join("cases/recorded")).unwrap());
        directories.extend(find_traces(&corpus.join("cases/bt")).unwrap());
    }
    let known = |value: Option<Value<'_>>| {
        value.map(|value| {
            let bytes = value.as_bytes().map(<[u8]>::to_vec);
            (value.as_u64(), value.as_i64(), value.as_f64().map(f64::to_bits), bytes)
        })
    };
    let mut compared = 0;
    for directory in directories {
        let Ok(trace) = Trace::open(&directory) else { continue };
        let mut hints: HashMap<String, FieldHint> = HashMap::new();
        for index in 0..trace.streams().len() {
            let Ok(mut reader) = trace.stream(index, Options::default()) else {
                continue;
            };
            while let Ok(Some(event)) = reader.next() {
                let parts = [event.payload(), event.stream_context(), event.packet_context()];
                for (name, _) in parts.iter().flatten().flat_map(|fields| fields.iter()) {
                    let hint = hints.entry(name.to_owned()).or_default();
                    let expected = known(event.field(name));
                    assert_eq!(known(event.field_with(name, hint)), expected, "{name}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 10);
}

/// Appends pieces of random size to the streams in `to` until they are those in `from`.
fn grow(from: &Path, to: &Path, mut look: impl FnMut()) {
    fs::create_dir_all(to).unwrap();
    fs::copy(from.join("metadata"), to.join("metadata")).unwrap();
    let mut random = Random::new(5);
    let mut files: Vec<(PathBuf, Vec<u8>)> = Trace::stream_files(from)
        .unwrap()
        .into_iter()
        .map(|path| (to.join(path.file_name().unwrap()), fs::read(&path).unwrap()))
        .collect();
    // A stream that is found later may have earlier events.
    files.iter().for_each(|(path, _)| fs::write(path, []).unwrap());
    while !files.is_empty() {
        let place = random.below(files.len());
        let (path, rest) = &mut files[place];
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        let piece: Vec<u8> = rest.drain(..rest.len().min(1 + random.below(20_000))).collect();
        file.write_all(&piece).unwrap();
        if rest.is_empty() {
            files.remove(place);
        }
        look();
    }
}

#[test]
fn a_trace_is_followed() {
    for (dialect, order) in [(Dialect::V1_8, Endian::Little), (Dialect::V2, Endian::Big)] {
        let scratch = tempfile::tempdir().unwrap();
        let (from, root) = (scratch.path().join("from"), scratch.path().join("session"));
        write_trace(&from, dialect, order);
        fs::create_dir(&root).unwrap();
        let (mut text, mut writer) = (Vec::new(), TextWriter::new(ClockFormat::Seconds));
        let mut follow = Follow::new(
            std::slice::from_ref(&root),
            Options::default(),
            Duration::from_secs(3600),
            Trace::open,
        );
        let mut before_the_end = 0;
        let mut poll = |rest| {
            let polled = follow.poll(rest, |event| {
                writer.event(&mut text, event);
                ControlFlow::Continue(())
            });
            assert!(matches!(polled.unwrap(), ControlFlow::Continue(_)));
            text.len()
        };
        grow(&from, &root.join("trace"), || before_the_end = poll(false));
        poll(false);
        poll(true);
        assert!(before_the_end > 0);
        assert!(text == text_of(&from).unwrap());
    }
}
