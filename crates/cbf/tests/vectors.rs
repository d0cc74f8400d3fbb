//! The shared test vectors: how a strict and a lenient reader decode them, and how stacks are
//! encoded.

use backtrail_cbf::{Decoder, Encoder, End, Ended, ErrorKind, Frame, WordSize};
use serde_json::Value;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/formats/cbf-vectors.json");

fn vectors() -> Option<Value> {
    let Ok(text) = std::fs::read_to_string(VECTORS) else {
        eprintln!("SKIPPED: the shared CBF vectors are not here");
        return None;
    };
    Some(serde_json::from_str(&text).unwrap())
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

/// The frames that the JSON lists, and whether a "truncated" one follows.
fn frames(list: &Value) -> (Vec<Frame>, bool) {
    let mut frames = Vec::new();
    let mut truncated = false;
    for entry in list.as_array().unwrap() {
        assert!(!truncated, "nothing follows `trunc`");
        let value = match entry.get("addr") {
            Some(address) => u64::from_str_radix(&address.as_str().unwrap()[2..], 16).unwrap(),
            None => entry.get("count").map_or(0, |count| count.as_u64().unwrap()),
        };
        match entry["kind"].as_str().unwrap() {
            "pc" => frames.push(Frame::Pc(value)),
            "ra" => frames.push(Frame::Ra(value)),
            "async" => frames.push(Frame::Async(value)),
            "omit" => frames.push(Frame::Omit(value)),
            "truncated" => truncated = true,
            kind => panic!("frame kind {kind}"),
        }
    }
    (frames, truncated)
}

/// The frames of a backtrace one by one, how it ended, and its word size.
fn decode(data: &[u8], lenient: bool) -> Result<(Vec<Frame>, Ended, WordSize), backtrail_cbf::Error> {
    let mut decoder = Decoder::new(data)?;
    if lenient {
        decoder = decoder.lenient();
    }
    let mut frames = Vec::new();
    for item in decoder.by_ref() {
        let item = item?;
        frames.extend(std::iter::repeat_n(item.frame, item.repeat as usize));
    }
    let ended = decoder.outcome().unwrap()?;
    Ok((frames, ended, decoder.word()))
}

#[test]
fn decodes_in_both_modes() {
    let Some(vectors) = vectors() else { return };
    let decodes = vectors["decode"].as_array().unwrap();
    assert_eq!(decodes.len(), 43);
    for vector in decodes {
        let name = vector["name"].as_str().unwrap();
        let data = bytes(&vector["hex"]);
        for (mode, lenient) in [("strict", false), ("lenient", true)] {
            let expected = &vector[mode];
            let result = decode(&data, lenient);
            match expected["error"].as_str() {
                Some(error) => assert_error(name, error, result.unwrap_err(), &data),
                None => {
                    let (got, ended, word) = result.unwrap_or_else(|error| panic!("{name}, {mode}: {error}"));
                    let (frames, truncated) = frames(&expected["frames"]);
                    assert_eq!(got, frames, "{name}, {mode}");
                    assert_eq!(
                        got.len() + usize::from(truncated),
                        expected["count"].as_u64().unwrap() as usize
                    );
                    assert_eq!(ended.name(), expected["ended"].as_str().unwrap(), "{name}, {mode}");
                    assert_eq!(ended == Ended::Truncated, truncated, "{name}, {mode}");
                    assert_eq!(u64::from(word.bits()), expected["word_bits"].as_u64().unwrap());
                }
            }
        }
    }
}

/// Checks that the error has the kind that the vector names, and the right offset in its bytes.
fn assert_error(name: &str, expected: &str, error: backtrail_cbf::Error, data: &[u8]) {
    let position = |byte: u8| data.iter().position(|&b| b == byte).unwrap() as u64;
    let (same, offset) = match (expected, error.kind) {
        ("empty", kind) => (kind == ErrorKind::Empty, 0),
        ("version 1", kind) => (kind == ErrorKind::Version(1), 0),
        ("reserved size", kind) => (kind == ErrorKind::ReservedWordSize, 0),
        ("address wider than word", ErrorKind::AddressTooLong { word, bytes }) => {
            (usize::from(bytes) > word.bytes() && word != WordSize::Bits64, 1)
        }
        ("rep without frame", kind) => (kind == ErrorKind::RepWithoutFrame, 1),
        // All of them: a frame with a one-byte address at 1, then the `rep`.
        ("rep beyond limit", kind) => (kind == ErrorKind::FrameLimit(backtrail_cbf::FRAME_LIMIT), 3),
        (text, ErrorKind::ReservedOpcode(opcode)) => {
            (text == format!("reserved opcode {opcode:#04x}"), position(opcode))
        }
        (text, ErrorKind::Truncated { .. }) => {
            let offset = text
                .strip_prefix("truncated argument at ")
                .map(|at| at.parse().unwrap());
            (offset.is_some(), offset.unwrap_or(0))
        }
        _ => (false, 0),
    };
    assert!(same, "{name}: {error}, expected {expected}");
    // The info byte of a reserved opcode's vector may hold the same value as the opcode.
    if expected != "reserved opcode 0x02" {
        assert_eq!(error.offset, offset, "{name}: {error}");
    }
}

#[test]
fn encodes() {
    let Some(vectors) = vectors() else { return };
    let encodes = vectors["encode"].as_array().unwrap();
    assert_eq!(encodes.len(), 24);
    for vector in encodes {
        let name = vector["name"].as_str().unwrap();
        let word = WordSize::from_bits(vector["word_bits"].as_u64().unwrap() as u32).unwrap();
        let (mut stack, truncated) = frames(&vector["frames"]);
        // Long runs are listed only in part; `frame_count` is the full length.
        let count = vector["frame_count"].as_u64().unwrap() as usize - usize::from(truncated);
        if let Some(&last) = stack.last() {
            stack.resize(count, last);
        }

        let mut buffer = vec![0xa5; word.max_encoded_len(stack.len())];
        let mut encoder = Encoder::new(&mut buffer, word).unwrap();
        for &frame in &stack {
            encoder.push(frame).unwrap();
        }
        let len = encoder.finish(if truncated { End::Truncated } else { End::Complete });
        assert_eq!(buffer[..len], bytes(&vector["spec_hex"]), "{name}");

        // Other encodings of the same frames: without `rep`, and Swift's without `a` and `end`.
        for other in ["spec_norep_hex", "swift_model_hex", "swift_6_2_3_hex"] {
            if vector[other].is_null() {
                continue;
            }
            for lenient in [false, true] {
                let (decoded, ended, _) = decode(&bytes(&vector[other]), lenient).unwrap();
                assert_eq!(decoded, stack, "{name}, {other}");
                let without_end = other.starts_with("swift") && !truncated;
                assert_eq!(ended == Ended::EndOfData, without_end, "{name}, {other}");
            }
        }
    }
}

#[test]
fn every_prefix_of_every_vector_gives_frames_or_an_error() {
    let Some(vectors) = vectors() else { return };
    let decodes = vectors["decode"].as_array().unwrap().iter().map(|v| &v["hex"]);
    let encodes = vectors["encode"].as_array().unwrap().iter().map(|v| &v["spec_hex"]);
    let mut prefixes = 0;
    for hex in decodes.chain(encodes) {
        let whole = bytes(hex);
        for len in 0..=whole.len() {
            for lenient in [false, true] {
                let Ok(decoder) = Decoder::new(&whole[..len]) else {
                    continue;
                };
                let mut decoder = if lenient { decoder.lenient() } else { decoder };
                let items: Vec<_> = decoder.by_ref().collect();
                let outcome = decoder.outcome().expect("iteration has ended");
                assert_eq!(outcome.err(), items.last().and_then(|item| item.err()));
                assert!(
                    items.iter().rev().skip(1).all(Result::is_ok),
                    "an error is the last item"
                );
                assert!(decoder.consumed() <= len);
                assert!(decoder.next().is_none());
                prefixes += 1;
            }
        }
    }
    assert!(prefixes > 700, "{prefixes}");
}
