//! Any bytes: the decoder's promises hold, and decoded frames survive a round trip unchanged.

use backtrail_cbf::{Decoder, Encoder, End, Ended, Error, ErrorKind, Repeated};

/// Decodes `data` strictly and leniently with several limits, and checks the decoder's promises.
pub fn cbf_decode(data: &[u8]) {
    for lenient in [false, true] {
        for limit in [0, 1, 7, backtrail_cbf::FRAME_LIMIT, u64::MAX] {
            let Ok(decoder) = Decoder::new(data) else { continue };
            let decoder = decoder.limit(limit);
            let mut decoder = if lenient { decoder.lenient() } else { decoder };
            let (items, outcome) = run(&mut decoder, data, limit);
            if let (false, Ok(ended)) = (lenient, outcome) {
                assert_written_again(&items, ended, &decoder);
            }
        }
    }
}

fn run(decoder: &mut Decoder<'_>, data: &[u8], limit: u64) -> (Vec<Repeated>, Result<Ended, Error>) {
    let mut items = Vec::new();
    let mut frames = 0u64;
    while let Some(Ok(item)) = decoder.next() {
        assert!(item.repeat > 0);
        frames = frames.checked_add(item.repeat).expect("the limit is kept");
        assert!(frames <= limit);
        if let (Some(address), false) = (item.frame.address(), decoder.word().bits() == 64) {
            assert!(
                address >> decoder.word().bits() == 0,
                "the address is wider than the word"
            );
        }
        items.push(item);
        assert!(items.len() < data.len(), "every item takes a byte at least");
    }
    let outcome = decoder.outcome().expect("iteration has ended");
    assert!(decoder.next().is_none());
    let consumed = decoder.consumed();
    match outcome {
        Ok(Ended::End) => assert_eq!(data[consumed - 1], 0),
        Ok(Ended::Truncated) => assert_eq!(data[consumed - 1], 1),
        Ok(Ended::EndOfData) => assert_eq!(consumed, data.len()),
        Err(error) => {
            assert!(error.offset >= consumed as u64 && error.offset <= data.len() as u64);
            if error.kind == ErrorKind::FrameLimit(limit) {
                assert!(frames == limit || limit == u64::MAX);
            }
        }
    }
    (items, outcome)
}

fn assert_written_again(items: &[Repeated], ended: Ended, decoder: &Decoder<'_>) {
    // A run of 2^64 frames takes terabytes, because one `rep` covers 2^20.
    if items.iter().any(|item| item.repeat > 1 << 30) {
        return;
    }
    let reps: u64 = items.iter().map(|item| item.repeat >> 15).sum();
    let mut buffer = vec![0; decoder.word().max_encoded_len(items.len() * 2) + 4 * reps as usize];
    let mut encoder = Encoder::new(&mut buffer, decoder.word()).unwrap();
    for item in items {
        encoder.push_repeated(item.frame, item.repeat).unwrap();
    }
    let (end, ended) = match ended {
        Ended::Truncated => (End::Truncated, Ended::Truncated),
        Ended::End | Ended::EndOfData => (End::Complete, Ended::End),
    };
    let len = encoder.finish(end);
    let mut again = Decoder::new(&buffer[..len]).unwrap().limit(u64::MAX);
    let decoded: Vec<Repeated> = again.by_ref().map(Result::unwrap).collect();
    assert_eq!(decoded, runs(items));
    assert_eq!(again.outcome(), Some(Ok(ended)));
    assert_eq!(again.consumed(), len);
}

/// The items with equal neighbours merged, as the encoder writes them.
fn runs(items: &[Repeated]) -> Vec<Repeated> {
    let mut runs: Vec<Repeated> = Vec::new();
    for &item in items {
        match runs.last_mut() {
            Some(last) if last.frame == item.frame => last.repeat += item.repeat,
            _ => runs.push(item),
        }
    }
    runs
}
