//! Damaged files of rings: an error or a trace, and never a panic or an endless loop.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::example;

#[test]
fn damaged_rings_break_nothing() {
    let scratch = backtrail_testkit::scratch();
    let (file, trace) = (scratch.path().join("rings"), scratch.path().join("rings.trace"));
    assert!(!example("modes").arg("crash").arg(&file).status().unwrap().success());
    let rings = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let mut random = 7u64;
    let mut next = |below: u64| {
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) % below
    };
    // The first page, the classes, and a ring's counters and first packet.
    let classes = 4096 + (1 << 20);
    let places = [(0, 256), (4096, 256), (classes, 256), (classes + 4096, 512)];
    let end = Instant::now() + Duration::from_secs(2);
    let (mut rounds, mut sound) = (0, 0);
    while rounds < 5 || Instant::now() < end {
        let mut before = Vec::new();
        for _ in 0..=next(3) {
            let (start, bytes) = places[next(places.len() as u64) as usize];
            let at = start + next(bytes);
            let mut byte = [0];
            rings.read_exact_at(&mut byte, at).unwrap();
            before.push((at, byte));
            rings.write_all_at(&[next(256) as u8], at).unwrap();
        }
        sound += u32::from(backtrail_tracer::collect::recover(&file).is_ok());
        let _ = fs::remove_dir_all(&trace);
        for (at, byte) in before.into_iter().rev() {
            rings.write_all_at(&byte, at).unwrap();
        }
        rounds += 1;
    }
    assert!(sound > 0 && rounds > sound / 2, "{sound} of {rounds}");
}
