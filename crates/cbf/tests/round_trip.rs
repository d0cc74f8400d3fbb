//! Encoded frames decode unchanged, for every word size and any buffer size.

use crate::fuzz::properties;
use backtrail_cbf::{
    Decoder, EncodeError, Encoder, End, Ended, EndsEncoder, ErrorKind, Frame, MAX_REP, Repeated, WordSize,
};
use proptest::prelude::*;

fn word() -> impl Strategy<Value = WordSize> {
    prop::sample::select(&WordSize::ALL[..])
}

/// Addresses of all lengths; those near the wrap-around and near each other are more frequent.
fn value(word: WordSize) -> impl Strategy<Value = u64> {
    let bits = word.bits();
    prop_oneof![
        (0..bits).prop_flat_map(move |shift| (0..=word.max()).prop_map(move |value| value >> shift)),
        (0u64..300).prop_map(move |below| word.max() - below),
        (0u64..300).prop_map(move |around| (1u64 << (bits - 1)) - 150 + around),
        0x1000u64..0x1100,
        0u64..70,
    ]
}

fn frame(word: WordSize) -> impl Strategy<Value = Frame> {
    (0..4, value(word)).prop_map(|(kind, value)| match kind {
        0 => Frame::Pc(value),
        1 => Frame::Ra(value),
        2 => Frame::Async(value),
        _ => Frame::Omit(value),
    })
}

/// A stack as runs of frames.
fn stack() -> impl Strategy<Value = (WordSize, Vec<Frame>)> {
    word().prop_flat_map(|word| {
        let run = (
            frame(word),
            prop_oneof![3 => Just(1), 1 => 1usize..20, 1 => 250usize..270],
        );
        prop::collection::vec(run, 0..20).prop_map(move |runs| {
            let frames = runs.into_iter().flat_map(|(frame, n)| std::iter::repeat_n(frame, n));
            (word, frames.collect())
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn encode_then_decode_is_the_identity((word, stack) in stack()) {
        properties::encode_prefix(word, word.max_encoded_len(stack.len()), &stack);
    }

    #[test]
    fn a_short_buffer_holds_the_first_frames((word, stack) in stack(), buffer in 0usize..200) {
        properties::encode_prefix(word, buffer, &stack);
    }

    #[test]
    fn both_ends_are_kept((word, stack) in stack(), buffer in 0usize..600, head in 0u64..40, tail in 0usize..40) {
        properties::encode_ends(word, buffer, head, tail, &stack);
    }

    #[test]
    fn pushed_together_as_pushed_one_by_one((word, stack) in stack()) {
        let size = word.max_encoded_len(stack.len());
        let (mut single, mut together) = (vec![0; size], vec![0; size]);
        let mut encoder = Encoder::new(&mut single, word).unwrap();
        for &frame in &stack {
            encoder.push(frame).unwrap();
        }
        let single_len = encoder.finish(End::Complete);
        let mut encoder = Encoder::new(&mut together, word).unwrap();
        for run in stack.chunk_by(|a, b| a == b) {
            encoder.push_repeated(run[0], run.len() as u64).unwrap();
        }
        let together_len = encoder.finish(End::Complete);
        prop_assert_eq!(&single[..single_len], &together[..together_len]);
    }

    #[test]
    fn text_is_read_as_the_frame_that_it_shows(frame in frame(WordSize::Bits64)) {
        prop_assert_eq!(frame.to_string().parse::<Frame>(), Ok(frame));
    }
}

fn encode(word: WordSize, runs: &[(Frame, u64)]) -> Vec<u8> {
    let mut buffer = vec![0; 1000];
    let mut encoder = Encoder::new(&mut buffer, word).unwrap();
    for &(frame, count) in runs {
        encoder.push_repeated(frame, count).unwrap();
    }
    let len = encoder.finish(End::Complete);
    buffer.truncate(len);
    buffer
}

#[test]
fn sizes_of_recursions() {
    // Two frames of `main` and `_start` below, and a leaf above, as in a real program.
    let stack = |depth| {
        [
            (Frame::Pc(0x55d4_c0de_1139), 1),
            (Frame::Ra(0x55d4_c0de_1151), depth),
            (Frame::Ra(0x7f12_3456_9d90), 1),
            (Frame::Ra(0x55d4_c0de_1075), 1),
        ]
    };
    // Information byte and end; 7 + 2 + 7 + 7 bytes of frames; an opcode and the number of further
    // copies.
    assert_eq!(encode(WordSize::Bits64, &stack(300)).len(), 25 + 3);
    assert_eq!(encode(WordSize::Bits64, &stack(70_000)).len(), 25 + 4);
}

#[test]
fn no_instruction_adds_more_than_the_most_copies() {
    let data = encode(WordSize::Bits64, &[(Frame::Ra(0x10), 1 + 2 * MAX_REP + 3)]);
    assert_eq!(data, b"\x02\x28\x10\x8a\x10\x00\x00\x8a\x10\x00\x00\x82\x00");
    // A count is never wider than the word.
    let data = encode(WordSize::Bits16, &[(Frame::Ra(0x10), 1 + 0xffff + 1)]);
    assert_eq!(data, b"\x00\x28\x10\x89\xff\xff\x80\x00");
    for (word, copies) in [(WordSize::Bits64, 2 * MAX_REP + 4), (WordSize::Bits16, 0x1_0001)] {
        let data = encode(word, &[(Frame::Ra(0x10), copies)]);
        let mut decoder = Decoder::new(&data).unwrap().limit(u64::MAX);
        assert_eq!(
            decoder.next(),
            Some(Ok(Repeated {
                frame: Frame::Ra(0x10),
                repeat: copies
            }))
        );
        assert_eq!(decoder.next(), None);
    }
}

#[test]
fn a_bomb_is_one_item() {
    let bomb = b"\x02\x18\x7f\x8d\x01\x00\x00\x00\x00\x00\x00";
    let mut decoder = Decoder::new(bomb).unwrap().limit(u64::MAX);
    let item = Repeated {
        frame: Frame::Pc(0x7f),
        repeat: (1 << 40) + 1,
    };
    assert_eq!(decoder.next(), Some(Ok(item)));
    assert_eq!(decoder.next(), None);
    assert_eq!(decoder.outcome(), Some(Ok(Ended::End)));

    let mut decoder = Decoder::new(bomb).unwrap().limit(10);
    assert_eq!(decoder.next().unwrap().unwrap().repeat, 10);
    let error = decoder.next().unwrap().unwrap_err();
    assert_eq!((error.kind, error.offset), (ErrorKind::FrameLimit(10), 3));
    assert_eq!(error.to_string(), "more frames than the limit of 10 at offset 0x3");

    // Counts that overflow together are more than any limit.
    let mut overflow = b"\x02\x18\x7f".to_vec();
    for _ in 0..100_000 {
        overflow.extend(b"\x8f\xff\xff\xff\xff\xff\xff\xff\xff");
    }
    let mut decoder = Decoder::new(&overflow).unwrap().limit(u64::MAX);
    assert_eq!(decoder.next().unwrap().unwrap().repeat, u64::MAX);
    assert_eq!(decoder.next().unwrap().unwrap_err().offset, 3);
}

#[test]
fn as_many_frames_as_the_limit_are_no_error() {
    // Four copies, then another frame.
    let data = b"\x02\x18\x10\x82\x20\x01\x00";
    for (limit, repeats, error) in [
        (5, &[4, 1][..], None),
        (4, &[4], Some(4)),
        (3, &[3], Some(3)),
        (1, &[1], Some(3)),
        (0, &[], Some(1)),
    ] {
        let mut decoder = Decoder::new(data).unwrap().limit(limit);
        let items: Vec<u64> = decoder.by_ref().map_while(Result::ok).map(|item| item.repeat).collect();
        assert_eq!(items, repeats, "limit {limit}");
        let outcome = decoder.outcome().unwrap();
        assert_eq!(outcome.err().map(|error| error.offset), error, "limit {limit}");
    }
}

#[test]
fn a_frame_before_a_broken_rep_is_given() {
    let mut decoder = Decoder::new(b"\x02\x18\x10\x80\x89\x01").unwrap();
    assert_eq!(decoder.next().unwrap().unwrap().repeat, 2);
    let error = decoder.next().unwrap().unwrap_err();
    assert_eq!((error.kind, error.offset), (ErrorKind::Truncated { missing: 1 }, 5));
    assert_eq!(decoder.consumed(), 4);
    assert_eq!(decoder.outcome(), Some(Err(error)));
}

#[test]
fn counts_wider_than_the_word() {
    for (data, value) in [
        (&b"\x00\x62\x01\x02\x03\x00"[..], 0x01_0203),
        (
            b"\x02\x68\x01\x02\x03\x04\x05\x06\x07\x08\x09\x00",
            0x0203_0405_0607_0809,
        ),
    ] {
        let error = Decoder::new(data).unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error.kind, ErrorKind::CountTooLong { .. }), "{error}");
        assert_eq!(error.offset, 1);
        let item = Decoder::new(data).unwrap().lenient().next().unwrap().unwrap();
        assert_eq!(item.frame, Frame::Omit(value));
    }
    // The longest `omit`: 32 bytes of count.
    let mut data = vec![0x02, 0x7f];
    data.resize(34, 0);
    data[33] = 5;
    let mut decoder = Decoder::new(&data).unwrap().lenient();
    assert_eq!(decoder.next().unwrap().unwrap().frame, Frame::Omit(5));
    assert_eq!(decoder.next(), None);
    assert_eq!(decoder.outcome(), Some(Ok(Ended::EndOfData)));
}

#[test]
fn backtraces_lie_back_to_back() {
    let mut data = encode(WordSize::Bits64, &[(Frame::Pc(0x1000), 3)]);
    data.extend(encode(WordSize::Bits32, &[(Frame::Ra(0x2000), 1)]));
    data.extend(encode(WordSize::Bits16, &[]));
    let mut rest = &data[..];
    let mut words = Vec::new();
    while !rest.is_empty() {
        let mut decoder = Decoder::new(rest).unwrap();
        assert!(decoder.by_ref().all(|item| item.is_ok()));
        words.push(decoder.word());
        rest = &rest[decoder.consumed()..];
    }
    assert_eq!(words, [WordSize::Bits64, WordSize::Bits32, WordSize::Bits16]);
}

#[test]
fn what_the_word_cannot_tell_is_refused_and_the_rest_goes_on() {
    let mut buffer = [0; 20];
    let mut encoder = Encoder::new(&mut buffer, WordSize::Bits16).unwrap();
    for frame in [Frame::Pc(0x1_0000), Frame::Omit(0x1_0000)] {
        let word = WordSize::Bits16;
        assert_eq!(encoder.push(frame), Err(EncodeError::WiderThanWord { frame, word }));
    }
    encoder.push(Frame::Pc(0xffff)).unwrap();
    let len = encoder.finish(End::Complete);
    assert_eq!(buffer[..len], *b"\x00\x18\xff\x00");

    // A count of omitted frames that exceeds the word is refused, too.
    let mut buffer = [0; 20];
    let mut encoder = EndsEncoder::new(&mut buffer, WordSize::Bits16, 1, &mut []).unwrap();
    for _ in 0..=0xffff {
        encoder.push(Frame::Ra(0x10)).unwrap();
    }
    let frame = Frame::Omit(0x1_0000);
    let word = WordSize::Bits16;
    assert_eq!(
        encoder.push(Frame::Ra(0x10)),
        Err(EncodeError::WiderThanWord { frame, word })
    );
    let len = encoder.finish(End::Truncated);
    assert_eq!(buffer[..len], *b"\x00\x28\x10\x61\xff\xff\x01");
}

#[test]
fn both_ends_of_a_deep_stack() {
    let mut buffer = [0; 100];
    let mut tail = [Frame::Pc(0); 3];
    let mut encoder = EndsEncoder::new(&mut buffer, WordSize::Bits64, 2, &mut tail).unwrap();
    encoder.push(Frame::Pc(0x1000)).unwrap();
    for depth in 1..1000 {
        encoder.push(Frame::Ra(0x1000 + depth)).unwrap();
    }
    let len = encoder.finish(End::Complete);
    let text: Vec<_> = Decoder::new(&buffer[..len])
        .unwrap()
        .map(|item| item.unwrap().to_string())
        .collect();
    assert_eq!(
        text,
        [
            "pc:0x1000",
            "ra:0x1001",
            "omit:995",
            "ra:0x13e5",
            "ra:0x13e6",
            "ra:0x13e7"
        ]
    );
}

#[test]
fn texts_that_are_no_frames() {
    for text in [
        "",
        "pc",
        "pc:",
        "pc:0x",
        "pc:+1",
        "pc:-1",
        "pc:0x+1",
        "pc:7f",
        "PC:1",
        "rep:1",
        "omit:18446744073709551616",
    ] {
        assert!(text.parse::<Frame>().is_err(), "{text}");
    }
    assert_eq!("ra:0XfF".parse(), Ok(Frame::Ra(255)));
    assert_eq!("async:16".parse(), Ok(Frame::Async(16)));
}
