//! Fuzz targets for what the kernel writes about processes: names and paths in it are theirs.

use backtrail_arch::Arch;

use backtrail_process::perf::{PerfFile, Record, UserState, internals};
use backtrail_process::proc;

/// Decodes records one after another, each with its length in its header, as in a ring.
pub fn records(data: &[u8]) {
    let mut rest = data;
    let mut walked = internals::Walked::default();
    while let Some(header) = rest.first_chunk::<8>() {
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]])).clamp(8, rest.len());
        let (record, after) = rest.split_at(size);
        let _ = internals::time(record);
        if let Some(part) = internals::walked_part(record)
            && let Some(Record::Sample(sample)) = walked.add(part)
            && let UserState::Walked { words, .. } = sample.user
        {
            assert!(words.is_sorted_by_key(|word| word.0) && 16 * words.len() <= data.len());
        }
        match internals::decode(record, Arch::native()) {
            Ok(Record::Sample(sample)) => {
                let frames = sample.kernel_frames().count() + sample.frame_pointer_chain().count();
                assert!(8 * frames <= record.len());
                if let UserState::Native { stack, .. } = sample.user {
                    assert!(stack.len() <= record.len());
                }
            }
            Ok(Record::Mapping(mapping)) => assert!(mapping.path.len() <= record.len()),
            Ok(_) => {}
            Err(error) => assert!(error.offset <= record.len() as u64),
        }
        rest = after;
    }
}

/// Parses the text of `/proc/PID/maps`.
pub fn maps(data: &[u8]) {
    for entry in proc::maps_of(data) {
        // A byte that is no text becomes a character of three.
        assert!(entry.path.len() <= 3 * data.len());
        let _ = proc::is_file(&entry.path);
    }
}

/// Any bytes as a `perf.data`: all its records can be asked for.
pub fn file(data: &[u8]) {
    if let Ok(mut file) = PerfFile::parse(data) {
        // Compressed records are longer than what they are made from, but not without limit.
        assert!(file.len() * 8 <= data.len() * 2_001);
        let samples: u64 = file.events().iter().map(|event| event.samples).sum();
        assert!(samples <= file.len() as u64);
        let mut last = 0;
        for number in 0..file.len() {
            if let Some(record) = file.record(number) {
                assert!(record.time >= last);
                last = record.time;
            }
        }
    }
}
