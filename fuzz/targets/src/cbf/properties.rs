//! The promises of the encoders, checked for any frames and any buffer.

use backtrail_cbf::{Decoder, EncodeError, Encoder, End, Ended, EndsEncoder, Frame, WordSize};

/// Encodes the first frames that fit, and checks that a decoder reads exactly the accepted ones.
pub fn encode_prefix(word: WordSize, buffer: usize, frames: &[Frame]) {
    let mut buffer = vec![0xee; buffer];
    let size = buffer.len();
    let mut encoder = match Encoder::new(&mut buffer, word) {
        Ok(encoder) => encoder,
        Err(error) => {
            assert_eq!(error, EncodeError::BufferTooShort { needed: 2 });
            assert!(size < 2);
            return;
        }
    };
    let mut accepted = Vec::new();
    let mut end = End::Complete;
    for &frame in frames {
        match encoder.push(frame) {
            Ok(()) => accepted.push(frame),
            Err(EncodeError::WiderThanWord { .. }) => assert!(value(frame) > word.max()),
            Err(error) => {
                assert_eq!(error, EncodeError::BufferFull);
                end = End::Truncated;
                break;
            }
        }
    }
    let len = encoder.finish(end);
    assert!(len <= word.max_encoded_len(accepted.len()));
    if end == End::Truncated {
        assert!(len + word.max_frame_bytes() > size, "a frame would have fitted");
    }
    assert!(
        buffer[len..].iter().skip(7).all(|&byte| byte == 0xee),
        "nothing is written further past the end than is promised"
    );
    assert_decodes(&buffer[..len], word, &accepted, end);
}

/// Encodes both ends; checks that they are those of the stack, and that the omission counts the
/// rest.
pub fn encode_ends(word: WordSize, buffer: usize, head: u64, tail: usize, frames: &[Frame]) {
    let mut buffer = vec![0xee; buffer];
    let mut ring = vec![Frame::Pc(0); tail];
    let size = buffer.len();
    let mut encoder = match EndsEncoder::new(&mut buffer, word, head, &mut ring) {
        Ok(encoder) => encoder,
        Err(error) => {
            let needed = word.max_encoded_len(tail + 1);
            assert_eq!(error, EncodeError::BufferTooShort { needed });
            assert!(size < needed);
            return;
        }
    };
    let mut accepted = Vec::new();
    for &frame in frames {
        match encoder.push(frame) {
            Ok(()) => accepted.push(frame),
            Err(error) => assert!(matches!(error, EncodeError::WiderThanWord { .. })),
        }
    }
    let len = encoder.finish(End::Complete);
    let decoded = decoded(&buffer[..len], word, End::Complete);
    if decoded == accepted {
        return;
    }
    let outer = accepted.len() - tail;
    let inner = decoded.len() - tail;
    assert_eq!(decoded[inner..], accepted[outer..], "the outermost frames");
    // The whole middle may have been omissions of 0 frames.
    let kept = decoded[..inner]
        .iter()
        .zip(&accepted)
        .take_while(|(d, a)| d == a)
        .count();
    let missing = |from: usize| {
        let frames = accepted[from..outer].iter();
        frames.map(|&frame| stands_for(frame)).fold(0, u64::saturating_add)
    };
    match decoded[kept..inner] {
        // A pushed omission may equal the one that absorbed it: the largest count, plus one,
        // saturates.
        [] if missing(kept) > 0 => assert_eq!(decoded[kept - 1], Frame::Omit(missing(kept - 1))),
        [] => {}
        [Frame::Omit(count)] => assert_eq!(count, missing(kept)),
        _ => panic!("head {kept}, then {:?}", &decoded[kept..inner]),
    }
    assert!(kept as u64 >= head.min(outer as u64) || size < word.max_encoded_len(head as usize + tail + 1));
}

fn assert_decodes(data: &[u8], word: WordSize, frames: &[Frame], end: End) {
    assert_eq!(decoded(data, word, end), frames);
}

fn decoded(data: &[u8], word: WordSize, end: End) -> Vec<Frame> {
    let mut decoder = Decoder::new(data).unwrap();
    assert_eq!(decoder.word(), word);
    let mut frames = Vec::new();
    for item in decoder.by_ref() {
        let item = item.unwrap();
        frames.extend(std::iter::repeat_n(item.frame, item.repeat as usize));
    }
    let ended = match end {
        End::Complete => Ended::End,
        End::Truncated => Ended::Truncated,
    };
    assert_eq!(decoder.outcome(), Some(Ok(ended)));
    assert_eq!(decoder.consumed(), data.len());
    frames
}

fn value(frame: Frame) -> u64 {
    match frame {
        Frame::Pc(value) | Frame::Ra(value) | Frame::Async(value) | Frame::Omit(value) => value,
    }
}

fn stands_for(frame: Frame) -> u64 {
    match frame {
        Frame::Omit(count) => count,
        _ => 1,
    }
}
