//! Fuzz targets for what the kernel writes about processes: names and paths in it are theirs.

use backtrail_arch::Arch;

use super::records::{self, Record, UserState};
use super::walked::{self, Walked};
use crate::proc;

/// Decodes records one after another, each with its length in its header, as in a ring.
pub fn records(data: &[u8]) {
    let mut rest = data;
    let mut walked = Walked::default();
    while let Some(header) = rest.first_chunk::<8>() {
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]])).clamp(8, rest.len());
        let (record, after) = rest.split_at(size);
        let _ = records::time(record);
        if let Some(part) = walked::walked_part(record)
            && let Some(Record::Sample(sample)) = walked.add(part)
            && let UserState::Walked { words, .. } = sample.user
        {
            assert!(words.is_sorted_by_key(|word| word.0) && 16 * words.len() <= data.len());
        }
        match records::decode(record, Arch::native()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use backtrail_testkit::text::Random;
    use std::time::{Duration, Instant};

    fn search(target: fn(&[u8]), seeds: &[Vec<u8>]) {
        let mut random = Random::new(0x2545_f491_4f6c_dd1d);
        let end = Instant::now() + Duration::from_secs(1);
        let mut runs = 0;
        while Instant::now() < end || runs < seeds.len() {
            let mut data = seeds[runs % seeds.len()].clone();
            if runs >= seeds.len() {
                random.mutate(&mut data);
            }
            target(&data);
            runs += 1;
        }
    }

    /// A record with this type, flags and body.
    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = (8 + body.len()) as u16;
        [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes(), body].concat()
    }

    #[test]
    fn damaged_records() {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let id = words(&[1 << 32 | 1, 77, 0]);
        let mmap = [
            words(&[1, 4096, 8192, 0, 5, 6, 7, 4 << 32]),
            b"/lib/x.so\0\0\0\0\0\0\0".to_vec(),
        ]
        .concat();
        let registers = vec![3; Arch::native().user.bytes / 8];
        let mut sample = words(&[0x1000, 1 << 32 | 1, 5, 2, 3, -128i64 as u64, 0x2000, -512i64 as u64, 2]);
        sample.extend(words(&registers));
        sample.extend(words(&[16, 1, 2, 16]));
        let seeds = [
            [
                record(10, 2, &[mmap.clone(), id.clone()].concat()),
                record(
                    3,
                    1 << 13,
                    &[words(&[1]), b"name\0\0\0\0".to_vec(), id.clone()].concat(),
                ),
            ]
            .concat(),
            record(10, 1 << 14, &[mmap, id.clone()].concat()),
            [
                record(7, 0, &[words(&[1, 2, 3]), id.clone()].concat()),
                record(2, 0, &[words(&[1, 2]), id].concat()),
            ]
            .concat(),
            record(9, 2, &sample),
        ];
        search(records, &seeds);
    }

    #[test]
    fn damaged_maps() {
        let own = proc::maps_text(std::process::id()).unwrap();
        search(
            maps,
            &[
                own,
                b"7f0-8f0 r-xp 00001000 fe:0a 1234    /a b/c\\012d (deleted)\n".to_vec(),
            ],
        );
    }
}
