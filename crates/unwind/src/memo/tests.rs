//! A walk that joins the last one gives what single steps give, whatever code does with the frame
//! pointer.

extern crate std;

use core::cell::Cell;
use std::{vec, vec::Vec};

use backtrail_arch::{Arch, Register, Registers, aarch64, x86_64};
use backtrail_sframe::write::{FunctionRows, Options, section};
use backtrail_sframe::{Base, Location, Row, Rule, Section, constants};
use proptest::prelude::*;

use crate::{
    AddressKind, CacheEntry, Coverage, Memo, MemoRead, MemoState, MemoStep, Memory, Modules, Position, RuleCache, Stop,
    Table, step,
};

const STACK: u64 = 0x7000_0000;
/// Words of a stack: all stacks end at the same place.
const END: usize = 400;
const FUNCTIONS: u64 = 0x60;
/// Addresses of functions without a table, which have a frame pointer, end here.
const CODE: u64 = 0x1000;
const BASE: i32 = 16;

/// What functions do with the frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Keeps,
    /// They save it and use the register for anything.
    Clobbers,
    /// They save it and find their CFA by it.
    Uses,
    /// They find their CFA by it, and say that their caller has the same.
    Shares,
    /// They are where stacks begin.
    Begins,
    /// No table describes them.
    Unknown,
}

/// Functions are at multiples of 16.
fn kind_of(function: u64) -> Kind {
    match function {
        FUNCTIONS.. => Kind::Unknown,
        _ if function == FUNCTIONS - 1 => Kind::Begins,
        _ => match function % 8 {
            0..4 => Kind::Keeps,
            4 | 5 => Kind::Clobbers,
            6 => Kind::Uses,
            _ if function % 16 == 7 => Kind::Shares,
            _ => Kind::Clobbers,
        },
    }
}

/// Words of a function's frame, with the return address.
fn words_of(function: u64) -> usize {
    match kind_of(function) {
        Kind::Unknown => 2,
        _ => (function / 8 % 4) as usize + 3,
    }
}

fn return_address(function: u64) -> u64 {
    // Rules of the address before are kept by address if that has bit 3 set.
    function * 0x10 + if function.is_multiple_of(5) { 3 } else { 9 }
}

struct Code {
    arch: &'static Arch,
    table: Vec<u8>,
    /// Whether rules may be kept by address.
    lasts: bool,
    looked_up: Cell<usize>,
}

impl Code {
    fn new(arch: &'static Arch, lasts: bool) -> Code {
        let at = |register, offset| Location {
            base: Base::Register(register),
            offset,
            deref: false,
        };
        let saved = |words: i32| Location {
            base: Base::Cfa,
            offset: -8 * words,
            deref: true,
        };
        let rule = |function| {
            let kind = kind_of(function);
            let cfa = match kind {
                Kind::Uses | Kind::Shares => at(arch.fp.0, BASE),
                _ => at(arch.sp.0, 8 * words_of(function) as i32),
            };
            let has_saved = matches!(kind, Kind::Uses | Kind::Clobbers);
            (kind != Kind::Begins).then(|| Rule {
                cfa,
                ra: saved(1),
                fp: has_saved.then(|| saved(2)),
                mangled_ra: false,
            })
        };
        let functions = (0..FUNCTIONS).map(|function| FunctionRows {
            start: function * 0x10,
            size: 0x10,
            rows: vec![Row {
                start: 0,
                rule: rule(function),
            }],
            repeat: None,
            signal_frame: false,
            pauth_key_b: false,
        });
        let functions: Vec<FunctionRows> = functions.collect();
        let abi = match arch.link_register {
            true => constants::Abi::Aarch64Little,
            false => constants::Abi::Amd64Little,
        };
        let options = Options::new(constants::Version::V3, abi, 0);
        Code {
            arch,
            table: section(&functions, &options).unwrap().bytes,
            lasts,
            looked_up: Cell::new(0),
        }
    }
}

impl Modules for Code {
    const CAN_LAST: bool = true;

    fn is_lasting(&self, address: u64) -> bool {
        self.lasts && address & 8 != 0
    }

    fn coverage(&self, address: u64) -> Coverage<'_> {
        self.looked_up.set(self.looked_up.get() + 1);
        match address / 0x10 {
            0..FUNCTIONS => Coverage::Table(Table {
                section: Section::parse(&self.table, 0).unwrap(),
                index: None,
                bias: 0,
                id: 1,
            }),
            _ if address < CODE => Coverage::FramePointer,
            _ => Coverage::NoModule,
        }
    }
}

struct Words<'w> {
    words: &'w [u64],
}

impl Memory for Words<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let place = address.checked_sub(STACK).filter(|bytes| bytes % 8 == 0)? / 8;
        self.words.get(place as usize).copied()
    }
}

/// A stack of these functions, the innermost first, in which code that clobbers the frame pointer
/// leaves values of `noise` there, and the position in the first of them.
fn stack(arch: &Arch, functions: &[u64], noise: impl Fn(usize) -> u64) -> Option<(Vec<u64>, Position)> {
    let mut words = vec![7; END];
    // The last frame's return address is 0.
    let mut begin = END - 1;
    words[begin] = 0;
    let mut fp = noise(functions.len());
    let mut callers = functions.iter().rev().scan(0, |caller, &function| {
        let this = *caller;
        *caller = return_address(function);
        Some((function, this))
    });
    let mut place = functions.len();
    let found = callers.try_for_each(|(function, caller)| {
        place -= 1;
        let end = begin;
        begin = end.checked_sub(words_of(function))?;
        words[end - 1] = caller;
        let frame = STACK + 8 * end as u64 - BASE as u64;
        match kind_of(function) {
            Kind::Keeps | Kind::Begins => {}
            Kind::Shares => fp = frame,
            Kind::Clobbers => {
                words[end - 2] = fp;
                fp = noise(place);
            }
            Kind::Uses | Kind::Unknown => {
                words[end - 2] = fp;
                fp = frame;
            }
        }
        Some(())
    });
    found?;
    let mut registers = Registers::new(return_address(*functions.first()?));
    registers.set(arch.sp, STACK + 8 * begin as u64);
    registers.set(arch.fp, fp);
    let kind = AddressKind::Ra;
    Some((words, Position { registers, kind }))
}

/// Frames, each with its stack pointer and frame pointer, and why they end.
type Walked = (Vec<(u64, AddressKind, Option<u64>, Option<u64>)>, Stop);

/// By single steps.
fn stepped(code: &Code, words: &[u64], from: &Position) -> Walked {
    let mut memory = Words { words };
    let Position {
        mut registers,
        mut kind,
    } = *from;
    let mut frames = Vec::new();
    let mut cache = RuleCache::new(&mut []);
    loop {
        frames.push((
            registers.pc,
            kind,
            registers.get(code.arch.sp),
            registers.get(code.arch.fp),
        ));
        match step(code.arch, &mut registers, kind, code, &mut memory, &mut cache) {
            Ok(of_caller) => kind = of_caller,
            Err(stop) => return (frames, stop),
        }
    }
}

/// The buffers of one thread's memo.
struct Buffers {
    state: MemoState,
    steps: Vec<MemoStep>,
    reads: Vec<MemoRead>,
    entries: Vec<CacheEntry>,
}

impl Buffers {
    fn new(steps: usize) -> Buffers {
        Buffers {
            state: MemoState::EMPTY,
            steps: vec![MemoStep::EMPTY; steps],
            reads: vec![MemoRead::EMPTY; 100],
            entries: vec![CacheEntry::EMPTY; RuleCache::USUAL],
        }
    }
}

/// Compares a walk with single steps, and also what is kept of it.
fn compare(buffers: &mut Buffers, code: &Code, words: &[u64], from: &Position, limit: usize) {
    let (frames, stop) = stepped(code, words, from);
    let mut memory = Words { words };
    let mut found = Vec::new();
    let mut cache = RuleCache::new(&mut buffers.entries);
    let mut memo = Memo::new(&mut buffers.state, &mut buffers.steps, &mut buffers.reads);
    let found_stop = memo.walk(code.arch, from, code, &mut memory, &mut cache, limit, |frame| {
        found.push((frame.address, frame.kind))
    });
    let stop = if frames.len() > limit { Stop::Limit } else { stop };
    let expected: Vec<_> = frames.iter().take(limit).map(|frame| (frame.0, frame.1)).collect();
    assert_eq!((found, found_stop), (expected, stop));
    // Beyond a limit, words were not compared.
    if stop != Stop::Limit {
        let kept = buffers.state.kept(&buffers.steps).iter().rev();
        let kept = kept.filter(|kept| !kept.has(MemoStep::END));
        let kept: Vec<_> = kept
            .map(|kept| {
                let registers = kept.position(code.arch).registers;
                (
                    kept.pc,
                    kept.kind(),
                    registers.get(code.arch.sp),
                    registers.get(code.arch.fp),
                )
            })
            .collect();
        assert_eq!(kept, frames[..kept.len()]);
        assert!(kept.len() == frames.len() || buffers.state.was_short());
    }
}

/// A word that a hostile or unlucky program may have where another is expected.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        (0..CODE / 0x10).prop_map(return_address),
        (0..END as u64).prop_map(|place| STACK + 8 * place),
        any::<u64>(),
    ]
}

/// Functions, seldom those without a table, which end most walks.
fn function() -> impl Strategy<Value = u64> {
    prop_oneof![40 => 0..FUNCTIONS - 1, 1 => FUNCTIONS - 1..CODE / 0x10]
}

#[derive(Clone, Debug)]
struct Round {
    inner: Vec<u64>,
    /// What clobbered frame pointers are.
    noise: Vec<u64>,
    hostile: Vec<(prop::sample::Index, u64)>,
    limit: usize,
    interrupted: bool,
    other_register: bool,
}

fn round() -> impl Strategy<Value = Round> {
    (
        prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(function(), 0..12)],
        prop::collection::vec(word(), 1..4),
        prop::collection::vec((any::<prop::sample::Index>(), word()), 0..2),
        prop_oneof![1 => 0usize..40, 3 => Just(200)],
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(inner, noise, hostile, limit, interrupted, other_register)| Round {
            inner,
            noise,
            hostile,
            limit,
            interrupted,
            other_register,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 4000 }))]
    #[test]
    fn a_walk_is_the_steps_whatever_the_frame_pointer_is(
        arch in prop::sample::select(vec![&x86_64::ARCH, &aarch64::ARCH]),
        outer in prop::collection::vec(function(), 1..40),
        ends in any::<bool>(),
        rounds in prop::collection::vec(round(), 2..12),
        steps in prop_oneof![1 => 0usize..100, 3 => Just(300)],
    ) {
        let code = Code::new(arch, true);
        let mut buffers = Buffers::new(steps);
        let mut outer = outer;
        if ends {
            outer.push(FUNCTIONS - 1);
        }
        for round in rounds {
            let functions: Vec<u64> = round.inner.iter().chain(&outer).copied().collect();
            let noise = |place: usize| round.noise[(functions.len() - place) % round.noise.len()];
            let Some((mut words, mut from)) = stack(arch, &functions, noise) else { continue };
            for (place, word) in round.hostile {
                // Mostly among the frames, which are at the end.
                let used = 5 * functions.len().min(END / 5);
                words[END - 1 - place.index(used)] = word;
            }
            if round.interrupted {
                from.kind = AddressKind::Pc;
            }
            if round.other_register {
                from.registers.set(Register(10), 1);
            }
            for _ in 0..2 {
                compare(&mut buffers, &code, &words, &from, round.limit);
            }
        }
    }
}

/// Walks stacks of these functions in turn, each with another value wherever a function clobbers
/// the frame pointer. Returns the number of look-ups in each walk, and how many walks were not the
/// last one again. No rules are kept by address.
fn in_turn(arch: &'static Arch, stacks: &[&[u64]]) -> (Vec<usize>, u64) {
    let code = Code::new(arch, false);
    let mut buffers = Buffers::new(300);
    let mut noise = 0;
    let mut walk = |functions: &&[u64]| {
        noise += 1;
        let (words, from) = stack(code.arch, functions, |_| noise).unwrap();
        code.looked_up.set(0);
        // Two walks, one of them by single steps.
        compare(&mut buffers, &code, &words, &from, 200);
        code.looked_up.get() - functions.len()
    };
    let looked_up = stacks.iter().map(&mut walk).collect();
    (looked_up, buffers.state.number)
}

#[test]
fn a_frame_pointer_that_nothing_needs_does_not_matter() {
    let (keeps, clobbers, uses, begins) = (1, 4, 6, FUNCTIONS - 1);
    let mut functions = vec![keeps; 60];
    functions[59] = begins;
    for place in [0, 10, 20, 40] {
        functions[place] = clobbers;
    }
    functions[30] = uses;
    let archs: [&Arch; 2] = [&x86_64::ARCH, &aarch64::ARCH];
    // Other frames inside, and the first of those that stay has another frame pointer.
    let others: Vec<u64> = [clobbers, keeps, keeps]
        .iter()
        .chain(&functions[9..])
        .copied()
        .collect();
    for arch in archs {
        let same = in_turn(arch, &[&functions, &functions, &functions]);
        assert_eq!(same, (vec![60, 0, 0], 1));
        let (looked_up, walks) = in_turn(arch, &[&functions, &others, &functions]);
        assert_eq!((looked_up[0], walks), (60, 3));
        assert!(looked_up[1] <= 4 && looked_up[2] <= 10, "{looked_up:?}");
    }
}
