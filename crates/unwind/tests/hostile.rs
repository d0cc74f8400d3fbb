//! Hostile stacks: walking in place ends for the same reason as the engine over the same words, and
//! never faults.
//!
//! A single test, because publishing affects the whole process.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use backtrail_arch::{Arch, Registers};
use backtrail_unwind::local::{Module, Snapshot, loaded_range, publish, read_words, walk};
use backtrail_unwind::{AddressKind, Coverage, Frame, Memory, Modules, Position, RuleCache, Stop};
use memmap2::MmapMut;

/// Return addresses here count as code that keeps frame pointers. No code exists there, and none is
/// read.
const CODE: Range<u64> = 0x1000..0x2000;
const LIMIT: usize = 5000;
const PAGE: usize = 4096;

struct Code;

impl Modules for Code {
    fn coverage(&self, address: u64) -> Coverage<'_> {
        match CODE.contains(&address) {
            true => Coverage::FramePointer,
            false => Coverage::NoModule,
        }
    }
}

/// The same words, read through the kernel one by one.
struct Asked;

impl Memory for Asked {
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut word = [0];
        (read_words(address, &mut word) == 1).then_some(word[0])
    }
}

/// A small generator, so that failures can be reproduced.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 20
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of(&mut self, values: &[u64]) -> u64 {
        values[self.below(values.len() as u64) as usize]
    }
}

fn position(sp: u64, fp: u64) -> Position {
    let arch = Arch::native();
    let mut registers = Registers::new(CODE.start + 1);
    registers.set(arch.sp, sp);
    registers.set(arch.fp, fp);
    Position {
        registers,
        kind: AddressKind::Ra,
    }
}

/// Walks twice, the second time with the first remembered, and compares with the engine.
fn compare(from: &Position) -> Stop {
    let mut expected = Vec::new();
    let mut cache = RuleCache::new(&mut []);
    let arch = Arch::native();
    let stop = backtrail_unwind::walk(arch, from, &Code, &mut Asked, &mut cache, LIMIT, |frame| {
        expected.push(frame)
    });
    for _ in 0..2 {
        let mut found = Vec::new();
        let found_stop = walk(from, LIMIT, |frame| found.push(frame));
        // Code of a module that was not published is found by asking the loader.
        let is_loaded = |frame: &Frame| loaded_range(frame.address.wrapping_sub(1)).is_some();
        if stop == Stop::NoModule && expected.last().is_some_and(is_loaded) {
            assert!(found.starts_with(&expected), "{from:x?}: {found:x?}, {expected:x?}");
            continue;
        }
        assert_eq!((&found, found_stop), (&expected, stop), "{from:x?}");
    }
    stop
}

/// Random words, many of them addresses of each other.
fn fill(words: &mut [u8], random: &mut Random) {
    let at = words.as_ptr() as u64;
    let len = words.len() as u64;
    for (index, word) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = match random.below(16) {
            0..3 => at + random.below(len) / 8 * 8,
            3..7 => at + (index as u64 * 8 + random.below(200)) / 8 * 8,
            7..14 => CODE.start + random.below(CODE.end - CODE.start),
            14 => at + random.below(len + 100),
            _ => random.one_of(&[
                0,
                1,
                u64::MAX,
                u64::MAX - 7,
                1 << 63,
                at - 8,
                at + len,
                0xffff_8000_0000_0000,
            ]),
        };
        *word = value.to_ne_bytes();
    }
}

fn from_everywhere(words: &[u8], random: &mut Random, rounds: u32) -> Vec<Stop> {
    let (at, len) = (words.as_ptr() as u64, words.len() as u64);
    let ends = [
        1 << 63,
        0,
        1,
        8,
        u64::MAX,
        u64::MAX - 7,
        u64::MAX - 15,
        at + len,
        at + len - 8,
        at + len - 4,
    ];
    let place = |random: &mut Random| match random.below(8) {
        0 => at + random.below(len),
        1 => random.one_of(&ends),
        _ => at + random.below(len) / 8 * 8,
    };
    (0..rounds)
        .map(|_| compare(&position(place(random), place(random))))
        .collect()
}

fn own_stack(random: &mut Random) {
    let mut words = [0u8; 64 * 1024];
    for _ in 0..10 {
        fill(&mut words, random);
        let stops = from_everywhere(&words, random, 300);
        assert!(
            stops.contains(&Stop::DidNotAdvance) && stops.contains(&Stop::NoModule),
            "{stops:?}"
        );
    }
    // A chain that leads back to its own beginning.
    for (index, word) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (CODE.start + 1 + index as u64 % 2).to_ne_bytes();
    }
    let at = words.as_ptr() as u64;
    words[..8].copy_from_slice(&(at + 64).to_ne_bytes());
    words[64..72].copy_from_slice(&at.to_ne_bytes());
    assert_eq!(compare(&position(at, at)), Stop::DidNotAdvance);
}

#[test]
fn stacks_that_are_none() {
    let module = Module {
        start: CODE.start,
        end: CODE.end,
        section: None,
        index: None,
        bias: 0,
        id: 1,
        identity: None,
        call_frames: None,
        is_readable: false,
        keeps_frame_pointers: true,
    };
    publish(Box::leak(Box::new(Snapshot {
        modules: vec![module].leak(),
        generation: 1,
        arrivals: None,
    })));
    let mut random = Random(1);
    own_stack(&mut random);
    std::thread::spawn(move || own_stack(&mut Random(2))).join().unwrap();

    // Not a stack, and nothing mapped after it.
    let mut heap = MmapMut::map_anon(8 * PAGE).unwrap();
    let gone = MmapMut::map_anon(8 * PAGE).unwrap();
    let gone_at = gone.as_ptr() as u64;
    drop(gone);
    for _ in 0..10 {
        fill(&mut heap, &mut random);
        let stops = from_everywhere(&heap, &mut random, 300);
        assert!(
            stops.iter().any(|stop| matches!(stop, Stop::Unreadable(_))),
            "{stops:?}"
        );
    }
    for offset in [0, 4, 8, PAGE as u64 - 8, PAGE as u64 - 4] {
        let stop = compare(&position(gone_at, gone_at + offset));
        assert!(matches!(stop, Stop::Unreadable(_) | Stop::DidNotAdvance), "{stop:?}");
    }
    vanishing(&mut random);
}

/// Another thread keeps unmapping the memory and mapping it again.
fn vanishing(random: &mut Random) {
    let stop = AtomicBool::new(false);
    let place = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(3);
            while !stop.load(Ordering::Relaxed) {
                let mut memory = MmapMut::map_anon(4 * PAGE).unwrap();
                fill(&mut memory, &mut random);
                place.store(memory.as_ptr() as u64, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let end = Instant::now() + Duration::from_millis(700);
        let (mut walks, mut frames) = (0, 0);
        while Instant::now() < end {
            let at = place.load(Ordering::Relaxed);
            if at != 0 {
                let fp = at + random.below(4 * PAGE as u64) / 8 * 8;
                walk(&position(at, fp), LIMIT, |_| frames += 1);
                walks += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(walks > 100 && frames > walks, "{walks} walks, {frames} frames");
    });
}
