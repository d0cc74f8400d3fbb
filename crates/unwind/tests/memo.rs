//! A walk with a memo gives the same result as a walk without one.

use backtrail_arch::{Arch, Register, Registers, x86_64};
use backtrail_sframe::write::{FunctionRows, Options, section};
use backtrail_sframe::{Base, Location, Row, Rule, Section, constants};
use backtrail_unwind::{
    CacheEntry, Coverage, Frame, Memo, MemoRead, MemoState, MemoStep, Memory, Modules, Position, RuleCache, Stop,
    Table, walk,
};
use proptest::prelude::*;

const ARCH: &Arch = &x86_64::ARCH;
const STACK: u64 = 0x7000_0000;
/// Return addresses below are those of code with frame pointers, at and above of the signal
/// trampoline.
const TRAMPOLINE: u64 = 0x5000;

/// Code up to an address, and a signal trampoline. The code has a table or none, and its rules may
/// be kept by address where bit 3 is set.
struct Code {
    end: u64,
    trampoline: Vec<u8>,
    table: Option<Vec<u8>>,
}

impl Code {
    fn new(end: u64, tabled: bool) -> Code {
        let from_sp = |offset| Location {
            base: Base::Register(7),
            offset,
            deref: true,
        };
        let rule = Rule {
            cfa: from_sp(160),
            ra: from_sp(168),
            fp: Some(from_sp(120)),
            mangled_ra: false,
        };
        let function = |start, size, signal_frame, rule| FunctionRows {
            start,
            size,
            rows: vec![Row {
                start: 0,
                rule: Some(rule),
            }],
            repeat: None,
            signal_frame,
            pauth_key_b: false,
        };
        let options = Options::new(constants::Version::V3, constants::Abi::Amd64Little, 0);
        let trampoline = function(TRAMPOLINE - 1, 0x100, true, rule);
        let saved = |offset| Location {
            base: Base::Cfa,
            offset,
            deref: true,
        };
        let plain = |offset| Rule {
            cfa: Location {
                base: Base::Register(6),
                offset,
                deref: false,
            },
            ra: saved(8 - offset),
            fp: Some(saved(-offset)),
            mangled_ra: false,
        };
        // Frames that are left by chains of frame pointers, as their code has them or by rules of
        // other shapes.
        let functions = (0..0x60).map(|index| {
            let offset = if index % 4 == 0 { 24 } else { 16 };
            function(index * 0x10, 0x10, false, plain(offset))
        });
        let functions: Vec<FunctionRows> = functions.collect();
        Code {
            end,
            trampoline: section(&[trampoline], &options).unwrap().bytes,
            table: tabled.then(|| section(&functions, &options).unwrap().bytes),
        }
    }
}

impl Modules for Code {
    const CAN_LAST: bool = true;

    fn is_lasting(&self, address: u64) -> bool {
        address & 8 != 0
    }

    fn coverage(&self, address: u64) -> Coverage<'_> {
        if let Some(table) = self.table.as_deref().filter(|_| address < self.end.min(0x600)) {
            return Coverage::Table(Table {
                section: Section::parse(table, 0).unwrap(),
                index: None,
                bias: 0,
                id: 1,
            });
        }
        if (TRAMPOLINE - 1..TRAMPOLINE + 0xff).contains(&address) {
            return Coverage::Table(Table {
                section: Section::parse(&self.trampoline, 0).unwrap(),
                index: None,
                bias: 0,
                id: 0,
            });
        }
        match address < self.end {
            true => Coverage::FramePointer,
            false => Coverage::NoModule,
        }
    }
}

struct Words<'w> {
    words: &'w [u64],
    read: usize,
    /// This read fails.
    broken: Option<usize>,
}

impl Memory for Words<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.read += 1;
        let place = usize::try_from(address.checked_sub(STACK)? / 8).ok()?;
        self.words.get(place).copied().filter(|_| self.broken != Some(place))
    }
}

/// Frames, each of a given number of words, that end like a chain of frame pointers. One in ten is
/// a signal frame.
fn stack(frames: &[(u8, u64)]) -> Vec<u64> {
    let mut words = Vec::new();
    let mut pairs = Vec::new();
    for &(gap, address) in frames {
        words.extend(vec![0; usize::from(gap % 8)]);
        pairs.push(words.len());
        words.extend([0, address]);
        if address == TRAMPOLINE {
            // The kernel's frame begins where the stack pointer is then.
            let begin = words.len();
            words.extend(vec![0; 32]);
            words[begin + 21] = 0x44;
            words[begin + 20] = STACK + 8 * (begin as u64 + 32);
            words[begin + 15] = u64::MAX;
        }
    }
    let places: Vec<u64> = pairs.iter().map(|pair| STACK + 8 * *pair as u64).collect();
    for (index, pair) in pairs.iter().enumerate() {
        let next = places.get(index + 1).copied().unwrap_or(0);
        words[*pair] = next;
    }
    // The frame pointer that a signal frame restores is that of the next frame.
    for (index, word) in words.iter_mut().enumerate().filter(|(_, word)| **word == u64::MAX) {
        let behind = STACK + 8 * (index as u64 - 15 + 32);
        *word = places.iter().copied().find(|place| *place >= behind).unwrap_or(0);
    }
    words
}

/// The buffers of one thread's memo.
struct Buffers {
    state: MemoState,
    steps: Vec<MemoStep>,
    reads: Vec<MemoRead>,
    entries: Vec<CacheEntry>,
}

impl Buffers {
    fn new(steps: usize, reads: usize) -> Buffers {
        Buffers {
            state: MemoState::EMPTY,
            steps: vec![MemoStep::EMPTY; steps],
            reads: vec![MemoRead::EMPTY; reads],
            entries: vec![CacheEntry::EMPTY; RuleCache::USUAL],
        }
    }

    fn memo(&mut self) -> Memo<'_> {
        Memo::new(&mut self.state, &mut self.steps, &mut self.reads)
    }
}

/// How to walk.
#[derive(Clone, Copy)]
struct How {
    skip: usize,
    limit: usize,
    broken: Option<usize>,
}

/// In a function that has saved nothing yet, `skip` words into the stack.
fn position(words: &[u64], skip: usize) -> Position {
    let skip = skip.min(words.len().saturating_sub(1));
    let first = words[skip..].iter().position(|&word| word >= STACK).unwrap_or(0) + skip;
    let mut registers = Registers::new(0x10 + skip as u64);
    registers.set(ARCH.sp, STACK + 8 * skip as u64);
    registers.set(ARCH.fp, STACK + 8 * first as u64);
    registers.set(Register(10), 1);
    Position::interrupted(registers)
}

/// Compares both walks. Returns how many words the one with a memo read, and the number of frames.
fn compare(buffers: &mut Buffers, code: &Code, words: &[u64], how: How) -> (usize, usize) {
    let from = position(words, how.skip);
    let fresh = || Words {
        words,
        read: 0,
        broken: how.broken,
    };
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    let stop = walk(
        ARCH,
        &from,
        code,
        &mut fresh(),
        &mut RuleCache::new(&mut []),
        how.limit,
        |frame: Frame| expected.push(frame),
    );
    let mut memory = fresh();
    let mut cache = RuleCache::new(&mut buffers.entries);
    let mut memo = Memo::new(&mut buffers.state, &mut buffers.steps, &mut buffers.reads);
    let found_stop = memo.walk(ARCH, &from, code, &mut memory, &mut cache, how.limit, |frame| {
        found.push(frame)
    });
    assert_eq!((found, found_stop), (expected.clone(), stop));
    (memory.read, expected.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 2000 }))]
    /// Holds for any changes between walks and for any buffer sizes.
    #[test]
    fn the_same_as_without_memory(
        mut frames in prop::collection::vec((any::<u8>(), 1u64..0x600), 1..40),
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), 0u64..0x660, 0usize..60, any::<bool>(), any::<bool>(),
             prop::option::weighted(0.3, 0usize..150)), 1..20),
        limits in prop::collection::vec(0usize..60, 1..5),
        (steps, reads) in (0usize..50, 0usize..130),
        tabled in any::<bool>(),
    ) {
        let code = [Code::new(1 << 12, tabled), Code::new(0x500, tabled)];
        let mut buffers = Buffers::new(steps, reads);
        let mut generation = 0;
        for (round, (place, address, skip, other, deeper, broken)) in changes.into_iter().enumerate() {
            let place = place.index(frames.len());
            frames[place].1 = if address >= 0x600 { TRAMPOLINE } else { address };
            if deeper {
                frames[place].0 ^= 3;
            }
            if generation != usize::from(other) {
                generation = usize::from(other);
                buffers.memo().clear();
                RuleCache::new(&mut buffers.entries).clear();
            }
            let words = stack(&frames);
            let limit = limits[round % limits.len()];
            for skip in [skip, 0] {
                compare(&mut buffers, &code[generation], &words, How { skip, limit, broken });
            }
        }
    }
}

/// Words of the stacks without frame pointers.
const END: usize = 800;

/// Words of the frame of the function at `16 * index`, with the return address. Without a frame
/// pointer; every third function saves the register.
fn words_of(index: u64) -> i32 {
    (index % 8) as i32 + 3
}

/// Functions that keep no frame pointers.
fn lean_code() -> Code {
    let saved = |words: i32| Location {
        base: Base::Cfa,
        offset: -8 * words,
        deref: true,
    };
    let function = |index: u64| FunctionRows {
        start: index * 0x10,
        size: 0x10,
        rows: vec![Row {
            start: 0,
            rule: Some(Rule {
                cfa: Location {
                    base: Base::Register(7),
                    offset: 8 * words_of(index),
                    deref: false,
                },
                ra: saved(1),
                fp: index.is_multiple_of(3).then(|| saved(2)),
                mangled_ra: false,
            }),
        }],
        repeat: None,
        signal_frame: false,
        pauth_key_b: false,
    };
    let functions: Vec<FunctionRows> = (0..0x60).map(function).collect();
    let options = Options::new(constants::Version::V3, constants::Abi::Amd64Little, 0);
    Code {
        table: Some(section(&functions, &options).unwrap().bytes),
        ..Code::new(1 << 12, true)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 1000 }))]
    /// Holds for stacks that have only their outer frames in common.
    #[test]
    fn the_same_without_frame_pointers(
        outer in prop::collection::vec(0u64..0x60, 0..40),
        inner in prop::collection::vec(prop::collection::vec(0u64..0x60, 0..30), 1..12),
        limits in prop::collection::vec(prop_oneof![0usize..60, Just(100)], 1..5),
        steps in 0usize..150,
    ) {
        let code = lean_code();
        let mut buffers = Buffers::new(steps, 40);
        for (round, inner) in inner.iter().enumerate() {
            // All stacks end at the same place.
            let callers: Vec<u64> = inner.iter().chain(&outer).copied().collect();
            let below = END - callers.iter().map(|index| words_of(*index) as usize).sum::<usize>();
            let begins_at = |skip: &usize| below - skip == words_of((0x10 + *skip as u64) / 0x10) as usize;
            let Some(skip) = (below - 10..below).find(begins_at) else {
                continue;
            };
            let mut words = vec![7; END];
            let mut end = below;
            for index in callers {
                // The address before is one whose rules are kept by address.
                words[end - 1] = index * 0x10 + 9;
                end += words_of(index) as usize;
            }
            words[end - 1] = 0;
            let limit = limits[round % limits.len()];
            compare(&mut buffers, &code, &words, How { skip, limit, broken: None });
        }
    }
}

#[test]
fn a_walk_that_was_taken_before_reads_its_words_once_and_looks_nothing_up() {
    struct Blind<'c>(&'c Code);
    impl Modules for Blind<'_> {
        fn coverage(&self, address: u64) -> Coverage<'_> {
            assert_eq!(address, 0x10, "only the innermost frame is looked up");
            self.0.coverage(address)
        }
    }
    let code = Code::new(1 << 12, false);
    let words = stack(&[(1, 0x20); 30]);
    let mut buffers = Buffers::new(40, 80);
    let all = How {
        skip: 0,
        limit: 100,
        broken: None,
    };
    let (read, frames) = compare(&mut buffers, &code, &words, all);
    let mut registers = Registers::new(0x10);
    registers.set(ARCH.sp, STACK);
    registers.set(ARCH.fp, STACK + 8);
    let mut memory = Words {
        words: &words,
        read: 0,
        broken: None,
    };
    let mut seen = 0;
    let mut cache = RuleCache::new(&mut []);
    let from = Position::interrupted(registers);
    let stop = buffers
        .memo()
        .walk(ARCH, &from, &Blind(&code), &mut memory, &mut cache, 100, |_| seen += 1);
    assert_eq!((seen, stop, memory.read), (frames, Stop::NoStart, read));
}

#[test]
fn a_limit_leaves_what_lies_beyond_known() {
    let code = Code::new(1 << 12, false);
    let words = stack(&[(0, 0x20); 30]);
    let mut buffers = Buffers::new(40, 80);
    let limits = |limit| How {
        skip: 0,
        limit,
        broken: None,
    };
    let (all, _) = compare(&mut buffers, &code, &words, limits(100));
    let (few, frames) = compare(&mut buffers, &code, &words, limits(5));
    assert_eq!((frames, few), (5, 10));
    assert_eq!(compare(&mut buffers, &code, &words, limits(100)).0, all);
}

#[test]
fn too_little_room_is_told() {
    let code = Code::new(1 << 12, false);
    let words = stack(&[(0, 0x20); 30]);
    let all = How {
        skip: 0,
        limit: 100,
        broken: None,
    };
    // A step for each of the 31 frames and one for the end; a step's reads go into its frame once
    // it is there.
    for (steps, reads, is_short) in [(32, 2, false), (31, 2, true), (32, 1, true), (200, 200, false)] {
        let mut buffers = Buffers::new(steps, reads);
        for _ in 0..3 {
            compare(&mut buffers, &code, &words, all);
            assert_eq!(buffers.state.was_short(), is_short, "{steps} {reads}");
        }
    }
}

#[test]
fn every_read_that_can_fail_fails_once() {
    let code = Code::new(1 << 12, false);
    let addresses = [0x20, TRAMPOLINE, 0x30, 0x40, 0x50, TRAMPOLINE, 0x60, 0x70];
    let frames: Vec<(u8, u64)> = addresses.iter().map(|&address| (2, address)).collect();
    let words = stack(&frames);
    let mut buffers = Buffers::new(40, 200);
    let mut ends = Vec::new();
    for broken in (0..words.len()).map(Some).chain([None]) {
        let how = How {
            skip: 0,
            limit: 100,
            broken,
        };
        // After a whole walk, and after a broken one.
        ends.push(compare(&mut buffers, &code, &words, how).1);
        compare(&mut buffers, &code, &words, how);
    }
    ends.sort_unstable();
    ends.dedup();
    assert!(ends.len() > 8, "walks end at every frame: {ends:?}");
}
