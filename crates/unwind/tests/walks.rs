//! Walks over hand-made stacks, with tables from the SFrame writer.

use std::collections::BTreeMap;

use backtrail_arch::{Arch, Register, Registers, aarch64, x86_64};
use backtrail_sframe::write::{FunctionRows, Options, section};
use backtrail_sframe::{Base, Location, Row, Rule, Section, constants};
use backtrail_unwind::{
    AddressKind, CacheEntry, Coverage, Frame, Link, Memory, Modules, Position, RuleCache, Stop, Table, Uncovered, link,
    step, walk,
};

/// Where the only module is loaded.
const BIAS: u64 = 0x7f00_0000_0000;

#[derive(Clone, Default)]
struct Words(BTreeMap<u64, u64>);

impl Memory for Words {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }
}

struct OneModule {
    bytes: Vec<u8>,
    /// Addresses without a module.
    nowhere: std::ops::Range<u64>,
}

impl Modules for OneModule {
    fn coverage(&self, address: u64) -> Coverage<'_> {
        if self.nowhere.contains(&address) {
            return Coverage::NoModule;
        }
        if address < BIAS {
            return Coverage::FramePointer;
        }
        Coverage::Table(Table {
            section: Section::parse(&self.bytes, 0).unwrap(),
            index: None,
            bias: BIAS,
            id: 0,
        })
    }
}

fn at(base: Base, offset: i32, deref: bool) -> Location {
    Location { base, offset, deref }
}

fn sp_rule(offset: i32, fp: Option<i32>) -> Rule {
    Rule {
        cfa: at(Base::Register(7), offset, false),
        ra: at(Base::Cfa, -8, true),
        fp: fp.map(|slot| at(Base::Cfa, slot, true)),
        mangled_ra: false,
    }
}

fn function(start: u64, rules: &[(u32, Option<Rule>)]) -> FunctionRows {
    FunctionRows {
        start,
        size: 0x100,
        rows: rules.iter().map(|&(start, rule)| Row { start, rule }).collect(),
        repeat: None,
        signal_frame: false,
        pauth_key_b: false,
    }
}

fn module(functions: &[FunctionRows], abi: constants::Abi) -> OneModule {
    let output = section(functions, &Options::new(constants::Version::V3, abi, 0)).unwrap();
    assert_eq!(output.skipped, []);
    OneModule {
        bytes: output.bytes,
        nowhere: 0..0x1000,
    }
}

fn registers(arch: &Arch, pc: u64, sp: u64, fp: u64) -> Registers {
    let mut registers = Registers::new(pc);
    registers.set(arch.sp, sp);
    registers.set(arch.fp, fp);
    registers
}

/// Walks with a cache and without one; both must agree.
fn walk_all(arch: &Arch, start: &Registers, modules: &OneModule, memory: &Words) -> (Vec<Frame>, Stop) {
    let start = Position::interrupted(*start);
    let run = |entries: &mut [CacheEntry], times: usize| {
        let mut cache = RuleCache::new(entries);
        let mut result = None;
        for _ in 0..times {
            let mut frames = Vec::new();
            let stop = walk(arch, &start, modules, &mut memory.clone(), &mut cache, 100, |frame| {
                frames.push(frame)
            });
            result = Some((frames, stop));
        }
        result.unwrap()
    };
    let uncached = run(&mut [], 1);
    assert_eq!(run(&mut [CacheEntry::EMPTY; 64], 2), uncached);
    assert_eq!(run(&mut [CacheEntry::EMPTY; 3], 2), uncached);
    uncached
}

fn addresses(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.address.wrapping_sub(BIAS)).collect()
}

/// A leaf, a function that saves the frame pointer, and the outermost one.
fn three_functions() -> OneModule {
    module(
        &[
            function(0x1000, &[(0, Some(sp_rule(8, None))), (4, Some(sp_rule(32, None)))]),
            function(0x2000, &[(0, Some(sp_rule(16, Some(-16))))]),
            function(0x3000, &[(0, None)]),
        ],
        constants::Abi::Amd64Little,
    )
}

#[test]
fn to_the_outermost_frame() {
    let memory = Words(BTreeMap::from([
        (0x8018, BIAS + 0x2010),
        (0x8020, 0xf00d),
        (0x8028, BIAS + 0x3010),
    ]));
    let start = registers(&x86_64::ARCH, BIAS + 0x1008, 0x8000, 0xbeef);
    let (frames, stop) = walk_all(&x86_64::ARCH, &start, &three_functions(), &memory);
    assert_eq!(stop, Stop::EndOfStack);
    assert_eq!(addresses(&frames), [0x1008, 0x2010, 0x3010]);
    assert_eq!(frames[0].kind, AddressKind::Pc);
    assert_eq!(frames[1].kind, AddressKind::Ra);
}

#[test]
fn a_call_as_the_last_instruction_belongs_to_the_caller() {
    // The return address is the first byte after the function; nothing covers it.
    let memory = Words(BTreeMap::from([
        (0x8018, BIAS + 0x2100),
        (0x8020, 0),
        (0x8028, BIAS + 0x3010),
    ]));
    let start = registers(&x86_64::ARCH, BIAS + 0x1008, 0x8000, 0);
    let (frames, stop) = walk_all(&x86_64::ARCH, &start, &three_functions(), &memory);
    assert_eq!(
        (addresses(&frames), stop),
        (vec![0x1008, 0x2100, 0x3010], Stop::EndOfStack)
    );
    // As a program counter the same address lies in no function.
    let start = registers(&x86_64::ARCH, BIAS + 0x2100, 0x8000, 0);
    let (frames, stop) = walk_all(&x86_64::ARCH, &start, &three_functions(), &memory);
    assert_eq!((frames.len(), stop), (1, Stop::NoTable));
}

#[test]
fn every_way_to_end_early() {
    let modules = three_functions();
    let arch = &x86_64::ARCH;
    let ends = |start: Registers, words: &[(u64, u64)]| {
        let memory = Words(words.iter().copied().collect());
        walk_all(arch, &start, &modules, &memory).1
    };
    let leaf = registers(arch, BIAS + 0x1008, 0x8000, 0);
    assert_eq!(ends(leaf, &[]), Stop::Unreadable(0x8018));
    assert_eq!(ends(leaf, &[(0x8018, 0x10)]), Stop::NoModule);
    assert_eq!(ends(leaf, &[(0x8018, BIAS + 0x9999)]), Stop::NoTable);
    assert_eq!(ends(leaf, &[(0x8018, 0)]), Stop::EndOfStack);
    assert_eq!(
        ends(Registers::new(BIAS + 0x1008), &[]),
        Stop::NotExpressible(x86_64::RSP)
    );
    let top = registers(arch, BIAS + 0x1008, u64::MAX - 4, 0);
    assert_eq!(ends(top, &[]), Stop::DidNotAdvance);
    // A return address that leads into the same function for ever, on a stack that does not end.
    let endless: Vec<(u64, u64)> = (0..1000).map(|i| (0x8018 + 32 * i, BIAS + 0x1008)).collect();
    assert_eq!(ends(leaf, &endless), Stop::Limit);
}

#[test]
fn code_without_a_table_by_frame_pointers() {
    let memory = Words(BTreeMap::from([
        (0x8010, 0x8040),
        (0x8018, 0x5555),
        (0x8040, 0x8060),
        (0x8048, BIAS + 0x2010),
        (0x8050, 0),
        (0x8058, BIAS + 0x3010),
    ]));
    let arch = &x86_64::ARCH;
    let (frames, stop) = walk_all(
        arch,
        &registers(arch, 0x4444, 0x8000, 0x8010),
        &three_functions(),
        &memory,
    );
    assert_eq!(stop, Stop::EndOfStack);
    let expected = [0x4444, 0x5555, BIAS + 0x2010, BIAS + 0x3010];
    assert_eq!(frames.iter().map(|frame| frame.address).collect::<Vec<_>>(), expected);
    for (fp, stop) in [
        (0, Stop::NoStart),
        (0x7ff8, Stop::DidNotAdvance),
        (0x8011, Stop::DidNotAdvance),
        (u64::MAX - 7, Stop::DidNotAdvance),
        (0x9000, Stop::Unreadable(0x9000)),
    ] {
        assert_eq!(
            walk_all(arch, &registers(arch, 0x4444, 0x8000, fp), &three_functions(), &memory).1,
            stop
        );
    }
}

/// What GCC 12 writes onto the stack for a pointer to a nested function: the caller of that code is
/// on top, wherever in it the program is.
#[test]
fn trampolines_on_the_stack_have_no_frame() {
    let arch = &x86_64::ARCH;
    // mov r11, FUNCTION; mov r10, FRAME; jmp r11; nop
    let mut code = vec![0x49, 0xbb, 0xe0, 0x11, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00];
    code.extend([0x49, 0xba, 0x40, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00]);
    code.extend([0x49, 0xff, 0xe3, 0x90, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let stepped = |code: &[u8], pc: u64, sp: u64| {
        let modules = Knowing {
            tables: three_functions(),
            uncovered: Uncovered::Unknown,
            called: true,
        };
        let words = code.chunks_exact(8).enumerate();
        let words = words.map(|(index, word)| (pc + index as u64 * 8, u64::from_le_bytes(word.try_into().unwrap())));
        let mut memory = Words(words.chain([(sp, 0x5555)]).collect());
        let mut found = registers(arch, pc, sp, 0x8010);
        let mut cache = RuleCache::new(&mut []);
        let kind = step(arch, &mut found, AddressKind::Pc, &modules, &mut memory, &mut cache);
        kind.map(|_| (found.pc, found.get(arch.sp)))
    };
    for at in [0, 10, 20] {
        assert_eq!(stepped(&code[at..], 0x8048, 0x8000), Ok((0x5555, Some(0x8008))), "{at}");
    }
    let short = [
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0xbb, 0xe0, 0x11, 0x40, 0x00],
        &code[10..],
    ]
    .concat();
    assert_eq!(stepped(&short, 0x8048, 0x8000), Ok((0x5555, Some(0x8008))));
    assert_eq!(stepped(&code[2..], 0x8048, 0x8000), Err(Stop::NoTable));
    assert_eq!(stepped(&code, 0x8048, 0x8050), Err(Stop::NoTable));
}

/// Modules with knowledge that no table contains.
struct Knowing {
    tables: OneModule,
    uncovered: Uncovered,
    called: bool,
}

impl Modules for Knowing {
    fn coverage(&self, address: u64) -> Coverage<'_> {
        self.tables.coverage(address)
    }

    fn uncovered(&self, _pc: u64, _kind: AddressKind, _in_table: bool) -> Uncovered {
        self.uncovered
    }

    fn is_called(&self, _ra: u64, _callee: u64) -> bool {
        self.called
    }

    fn calls_into(&self, ra: u64, function: (u64, u64)) -> bool {
        ra == 0x7777 && function == (0x2000, 0x3000)
    }
}

#[test]
fn what_no_table_says_is_proved() {
    let arch = &x86_64::ARCH;
    let code = |uncovered, called| Knowing {
        tables: three_functions(),
        uncovered,
        called,
    };
    // By its frame pointer the caller would be 0x5555, by a rule of the instructions 0x6666.
    let words = [(0x8008, 0x6666), (0x8010, 0x8040), (0x8018, 0x5555)];
    let by_rule = Uncovered::Rule(sp_rule(16, None));
    let by_fp = Rule::new(at(Base::Register(arch.fp.0), 16, false), Location::saved(-8));
    for (modules, pc, expected) in [
        (code(Uncovered::FramePointer, true), 0x4444, Ok(0x5555)),
        (code(Uncovered::FramePointer, false), 0x4444, Err(Stop::NoCall)),
        (code(by_rule, true), 0x4444, Ok(0x6666)),
        (code(by_rule, false), 0x4444, Err(Stop::NoCall)),
        (code(Uncovered::Linked(by_fp), true), 0x4444, Ok(0x5555)),
        (code(Uncovered::Linked(by_fp), false), 0x4444, Err(Stop::NoCall)),
        (code(Uncovered::Exact(sp_rule(16, None)), false), 0x4444, Ok(0x6666)),
        (code(Uncovered::Unknown, true), 0x4444, Err(Stop::NoTable)),
        // A hole in a table.
        (code(Uncovered::FramePointer, true), BIAS + 0x2800, Ok(0x5555)),
        (code(Uncovered::Unknown, true), BIAS + 0x2800, Err(Stop::NoTable)),
    ] {
        let from = registers(arch, pc, 0x8000, 0x8010);
        let mut found = from;
        let mut memory = Words(BTreeMap::from(words));
        let mut cache = RuleCache::new(&mut []);
        let kind = step(arch, &mut found, AddressKind::Pc, &modules, &mut memory, &mut cache);
        assert_eq!(kind.map(|_| found.pc), expected, "at {pc:#x}");
        assert!(kind.is_ok() || found == from, "registers stay as they were");
    }
}

/// Erlang's stacks, whose words are terms, with a tag in the two low bits, or return addresses.
#[test]
fn frames_of_tagged_words_end_at_the_next_return_address() {
    let arch = &x86_64::ARCH;
    let heap = Register(15);
    let tagged = |stack, rule| Knowing {
        tables: three_functions(),
        uncovered: Uncovered::Tagged { stack, rule, heap },
        called: true,
    };
    // Terms, with tags; a return address with the tag of a term; one of a frame further out.
    let words = [(0x8000, 0x5557), (0x8008, 0x6662), (0x8010, 0x7778), (0x8018, 0x8888)];
    let stepped = |modules: &Knowing, kind, fp: Option<u64>, heap_at| {
        let mut found = registers(arch, 0x4444, 0x8000, 0);
        found.forget(arch.fp);
        if let Some(fp) = fp {
            found.set(arch.fp, fp);
        }
        found.set(heap, heap_at);
        let mut memory = Words(BTreeMap::from(words));
        let kind = step(
            arch,
            &mut found,
            kind,
            modules,
            &mut memory,
            &mut RuleCache::new(&mut []),
        );
        kind.map(|_| (found.pc, found.get(arch.sp), found.get(arch.fp)))
    };
    let (pc, ra) = (AddressKind::Pc, AddressKind::Ra);
    let plain = tagged(None, None);
    // On top, the address of a helper's caller may have any tag.
    assert_eq!(stepped(&plain, pc, Some(1), 0x7000), Ok((0x5557, Some(0x8008), None)));
    // In outer frames, it may not.
    assert_eq!(stepped(&plain, ra, None, 0), Ok((0x7778, Some(0x8018), None)));
    assert_eq!(
        stepped(&plain, ra, Some(1), 0),
        Err(Stop::NoCall),
        "from C, on its stack"
    );
    assert_eq!(
        stepped(&plain, pc, Some(1), 0x9000),
        Err(Stop::NoCall),
        "not above the heap"
    );
    // The process's stack pointer is in another register.
    let elsewhere = tagged(Some(at(Base::Register(15), 8, false)), None);
    assert_eq!(
        stepped(&elsewhere, ra, Some(1), 0x8008),
        Ok((0x7778, Some(0x8018), None))
    );
    // The function has just begun: its instructions show a frame that ends further out.
    let begun = tagged(None, Some(sp_rule(0x20, None)));
    assert_eq!(stepped(&begun, pc, Some(1), 0x7000), Err(Stop::NoCall));
}

#[test]
fn code_below_an_interpreters_frame() {
    let arch = &x86_64::ARCH;
    let rule = sp_rule(0x50, Some(-16));
    let hosted = |function, called| Knowing {
        tables: three_functions(),
        uncovered: Uncovered::Hosted { function, rule },
        called,
    };
    // The code has 32 bytes below the frame; the address below the frame's end is no caller's.
    let stepped = |modules: &Knowing, slot: u64| {
        let mut words: BTreeMap<u64, u64> = (0x8000..0x8400).step_by(8).map(|at| (at, 0x6666)).collect();
        words.extend([(0x8040, 0x7777), (slot, 0x7777), (slot - 8, 0x9999)]);
        let mut found = registers(arch, 0x4444, 0x8000, 0);
        step(
            arch,
            &mut found,
            AddressKind::Pc,
            modules,
            &mut Words(words),
            &mut RuleCache::new(&mut []),
        )
        .map(|_| (found.pc, found.get(arch.sp), found.get(arch.fp)))
    };
    let found = Ok((0x7777, Some(0x8070), Some(0x9999)));
    assert_eq!(stepped(&hosted((0x2000, 0x3000), true), 0x8068), found);
    assert_eq!(stepped(&hosted((0x2000, 0x3000), false), 0x8068), Err(Stop::NoCall));
    assert_eq!(stepped(&hosted((0x4000, 0x5000), true), 0x8068), Err(Stop::NoCall));
    // So much is never below it.
    assert_eq!(stepped(&hosted((0x2000, 0x3000), true), 0x8200), Err(Stop::NoCall));
}

/// The frame holds the address at which the return address lies: the caller's stack begins behind
/// that, so its own return address is found.
#[test]
fn a_stack_pointer_that_the_frame_holds() {
    let arch = &x86_64::ARCH;
    let tables = module(
        &[function(0x1000, &[(0, Some(sp_rule(16, None)))])],
        constants::Abi::Amd64Little,
    );
    let stored = Rule::new(at(Base::Register(arch.sp.0), 0x20, true), Location::saved(8));
    let modules = Knowing {
        tables,
        uncovered: Uncovered::Rule(stored),
        called: true,
    };
    let words = [(0x8020, 0x8100), (0x8108, BIAS + 0x1010), (0x8118, 0x6666)];
    let start = Position::interrupted(registers(arch, 0x4444, 0x8000, 0x8010));
    let mut frames = Vec::new();
    let mut memory = Words(words.into());
    walk(
        arch,
        &start,
        &modules,
        &mut memory,
        &mut RuleCache::new(&mut []),
        3,
        |frame| frames.push(frame.address),
    );
    assert_eq!(frames, [0x4444, BIAS + 0x1010, 0x6666]);
}

#[test]
fn a_frame_whose_end_is_stored_at_the_frame_pointer_is_proved() {
    let arch = &x86_64::ARCH;
    let stored = Rule {
        cfa: at(Base::Register(arch.fp.0), -8, true),
        ..sp_rule(0, None)
    };
    let modules = |called| Knowing {
        tables: module(&[function(0x1000, &[(0, Some(stored))])], constants::Abi::Amd64Little),
        uncovered: Uncovered::Unknown,
        called,
    };
    for (called, expected) in [(true, Ok(0x5555)), (false, Err(Stop::NoCall))] {
        let from = registers(arch, BIAS + 0x1010, 0x8000, 0x8010);
        let mut found = from;
        let mut memory = Words(BTreeMap::from([(0x8008, 0x8040), (0x8038, 0x5555)]));
        let mut cache = RuleCache::new(&mut []);
        let kind = step(
            arch,
            &mut found,
            AddressKind::Ra,
            &modules(called),
            &mut memory,
            &mut cache,
        );
        assert_eq!(kind.map(|_| found.pc), expected);
        assert!(kind.is_ok() || found == from, "registers stay as they were");
    }
}

#[test]
fn chains_of_frame_pointers_pass_through_ordinary_frames() {
    let arch = &x86_64::ARCH;
    let fp_rule = Rule {
        cfa: at(Base::Register(6), 16, false),
        ..sp_rule(16, Some(-16))
    };
    let tables = module(
        &[
            function(0x1000, &[(0, Some(fp_rule))]),
            function(0x2000, &[(0, Some(sp_rule(16, Some(-16))))]),
            function(0x3000, &[(0, None)]),
        ],
        constants::Abi::Amd64Little,
    );
    let mut modules = Knowing {
        tables,
        uncovered: Uncovered::FramePointer,
        called: true,
    };
    let of = |modules: &Knowing, pc| link(arch, pc, AddressKind::Ra, modules, &mut RuleCache::new(&mut []));
    assert_eq!(of(&modules, BIAS + 0x1010), Link::Frame);
    assert_eq!(
        of(&modules, BIAS + 0x2010),
        Link::Unknown,
        "it keeps something else there"
    );
    assert_eq!(of(&modules, BIAS + 0x3010), Link::Outermost);
    assert_eq!(of(&modules, 0x4444), Link::Uncovered);
    modules.uncovered = Uncovered::Rule(sp_rule(16, None));
    assert_eq!(of(&modules, 0x4444), Link::Unknown);
    modules.uncovered = Uncovered::Rule(fp_rule);
    assert_eq!(of(&modules, 0x4444), Link::Uncovered);
    modules.uncovered = Uncovered::Linked(fp_rule);
    assert_eq!(of(&modules, 0x4444), Link::Uncovered);
}

/// What a signal's handler returns to, on x86-64, at 0x1000.
fn trampoline() -> FunctionRows {
    let from_sp = |offset| at(Base::Register(7), offset, true);
    let rule = Rule {
        cfa: from_sp(160),
        ra: from_sp(168),
        fp: Some(from_sp(120)),
        mangled_ra: false,
    };
    FunctionRows {
        signal_frame: true,
        ..function(0x1000, &[(0, Some(rule))])
    }
}

/// The interrupted code has realigned its stack: its frame is found through r10, which only the
/// signal frame contains.
#[test]
fn a_signal_frame_gives_all_registers_back() {
    let arch = &x86_64::ARCH;
    let realigned = Rule {
        cfa: at(Base::Register(10), 0, false),
        ..sp_rule(0, None)
    };
    let modules = module(
        &[
            trampoline(),
            function(0x2000, &[(0, Some(realigned))]),
            function(0x3000, &[(0, None)]),
        ],
        constants::Abi::Amd64Little,
    );
    // The signal's stack lies above the interrupted one: an alternate stack.
    let mut words: BTreeMap<u64, u64> = (0..256).map(|offset| (0x9000 + 8 * offset, 0)).collect();
    words.insert(0x9000 + 168, BIAS + 0x2000);
    words.insert(0x9000 + 160, 0x8000);
    words.insert(0x9000 + 56, 0x8100);
    words.insert(0x80f8, BIAS + 0x3010);
    let start = registers(arch, BIAS + 0x1000, 0x9000, 0);
    let (frames, stop) = walk_all(arch, &start, &modules, &Words(words));
    assert_eq!(
        (addresses(&frames), stop),
        (vec![0x1000, 0x2000, 0x3010], Stop::EndOfStack)
    );
    // The interrupted instruction is the function's first: looked up as it is, not one byte before.
    assert_eq!(frames[1].kind, AddressKind::Pc);
    // Without the signal, r10 is not known in a caller.
    let memory = Words(BTreeMap::from([(0x8000, BIAS + 0x2010)]));
    let leaf = module(
        &[
            function(0x1000, &[(0, Some(sp_rule(8, None)))]),
            function(0x2000, &[(0, Some(realigned))]),
        ],
        constants::Abi::Amd64Little,
    );
    let stop = walk_all(arch, &registers(arch, BIAS + 0x1008, 0x8000, 0), &leaf, &memory).1;
    assert_eq!(stop, Stop::NotExpressible(Register(10)));
}

/// The handler of an overflow of an alternate stack begins at its end again, and overwrites the
/// frames that the overflow was reached from: their callers are the handler's frames.
#[test]
fn an_overwritten_stack_is_no_circle() {
    let arch = &x86_64::ARCH;
    let overflows = function(0x2000, &[(0, Some(sp_rule(0x1000, None)))]);
    let modules = module(&[trampoline(), overflows], constants::Abi::Amd64Little);
    let mut words: BTreeMap<u64, u64> = (0..256).map(|offset| (0x9000 + 8 * offset, 0)).collect();
    words.insert(0x9000 + 168, BIAS + 0x2010);
    words.insert(0x9000 + 160, 0x8000);
    words.insert(0x8ff8, BIAS + 0x1001);
    let start = registers(arch, BIAS + 0x1000, 0x9000, 0);
    let (frames, stop) = walk_all(arch, &start, &modules, &Words(words));
    assert_eq!(
        (addresses(&frames), stop),
        (vec![0x1000, 0x2010, 0x1001], Stop::DidNotAdvance)
    );
}

#[test]
fn link_registers_count_in_the_innermost_frame_only() {
    let arch = &aarch64::ARCH;
    let leaf = Rule {
        cfa: at(Base::Register(31), 0, false),
        ra: at(Base::Register(30), 0, false),
        fp: None,
        mangled_ra: false,
    };
    let framed = Rule {
        cfa: at(Base::Register(29), 32, false),
        ra: at(Base::Cfa, -24, true),
        fp: Some(at(Base::Cfa, -32, true)),
        mangled_ra: true,
    };
    let modules = module(
        &[
            function(0x1000, &[(0, Some(leaf))]),
            function(0x2000, &[(0, Some(framed))]),
            function(0x3000, &[(0, None)]),
        ],
        constants::Abi::Aarch64Little,
    );
    let mut start = registers(arch, BIAS + 0x1000, 0x8000, 0x8000);
    start.set(aarch64::X30, BIAS + 0x2010);
    // The saved return address carries an authentication code.
    let memory = Words(BTreeMap::from([
        (0x8008, (BIAS + 0x3010) | 0x00ab_0000_0000_0000),
        (0x8000, 0),
    ]));
    let (frames, stop) = walk_all(arch, &start, &modules, &memory);
    assert_eq!(
        (addresses(&frames), stop),
        (vec![0x1000, 0x2010, 0x3010], Stop::EndOfStack)
    );
    start.set(aarch64::X30, BIAS + 0x1010);
    let (frames, stop) = walk_all(arch, &start, &modules, &memory);
    assert_eq!((frames.len(), stop), (2, Stop::NotExpressible(aarch64::X30)));
}

/// OCaml's `caml_c_call` on AArch64: x19 has the return address while a function of C runs.
#[test]
fn a_return_address_may_be_in_a_register_that_calls_preserve() {
    let arch = &aarch64::ARCH;
    let kept = Rule {
        cfa: at(Base::Register(31), 0, false),
        ra: at(Base::Register(19), 0, false),
        fp: None,
        mangled_ra: false,
    };
    let modules = module(&[function(0x1000, &[(0, Some(kept))])], constants::Abi::Aarch64Little);
    let step_to = |x19: Option<u64>| {
        let mut registers = registers(arch, BIAS + 0x1008, 0x8000, 0);
        x19.into_iter().for_each(|x19| registers.set(Register(19), x19));
        let (mut memory, mut cache) = (Words(BTreeMap::new()), RuleCache::new(&mut []));
        step(arch, &mut registers, AddressKind::Ra, &modules, &mut memory, &mut cache).map(|_| registers.pc)
    };
    assert_eq!(step_to(Some(BIAS + 0x2010)), Ok(BIAS + 0x2010));
    assert_eq!(step_to(None), Err(Stop::NotExpressible(Register(19))));
    // It would loop.
    assert_eq!(step_to(Some(BIAS + 0x1008)), Err(Stop::DidNotAdvance));
}

/// glibc's vfork while it is in the kernel: the stack contains none of its data.
#[test]
fn a_return_address_may_be_in_a_register_of_the_innermost_frame() {
    let arch = &x86_64::ARCH;
    let popped = Rule {
        cfa: at(Base::Register(7), 0, false),
        ra: at(Base::Register(5), 0, false),
        fp: None,
        mangled_ra: false,
    };
    let modules = module(
        &[
            function(0x1000, &[(0, Some(popped))]),
            function(0x2000, &[(0, Some(sp_rule(16, None)))]),
            function(0x3000, &[(0, None)]),
        ],
        constants::Abi::Amd64Little,
    );
    let memory = Words(BTreeMap::from([(0x8008, BIAS + 0x3010)]));
    let mut start = registers(arch, BIAS + 0x1008, 0x8000, 0);
    start.set(Register(5), BIAS + 0x2010);
    let (frames, stop) = walk_all(arch, &start, &modules, &memory);
    assert_eq!(
        (addresses(&frames), stop),
        (vec![0x1008, 0x2010, 0x3010], Stop::EndOfStack)
    );
    // A caller with this rule would loop.
    start.set(Register(5), BIAS + 0x1010);
    let (frames, stop) = walk_all(arch, &start, &modules, &memory);
    assert_eq!((frames.len(), stop), (2, Stop::DidNotAdvance));
}

/// OCaml's `caml_c_call` after it has popped its return address: the word is still below the stack
/// pointer.
#[test]
fn a_return_address_may_have_been_popped_in_the_innermost_frame() {
    let arch = &x86_64::ARCH;
    let modules = module(
        &[
            function(0x1000, &[(0, Some(sp_rule(0, None)))]),
            function(0x2000, &[(0, Some(sp_rule(16, None)))]),
            function(0x3000, &[(0, None)]),
        ],
        constants::Abi::Amd64Little,
    );
    let mut words = BTreeMap::from([(0x7ff8, BIAS + 0x2010), (0x8008, BIAS + 0x3010)]);
    let start = registers(arch, BIAS + 0x1008, 0x8000, 0);
    let (frames, stop) = walk_all(arch, &start, &modules, &Words(words.clone()));
    assert_eq!(
        (addresses(&frames), stop),
        (vec![0x1008, 0x2010, 0x3010], Stop::EndOfStack)
    );
    // A caller with this rule would loop.
    words.insert(0x7ff8, BIAS + 0x1010);
    let (frames, stop) = walk_all(arch, &start, &modules, &Words(words));
    assert_eq!((frames.len(), stop), (2, Stop::DidNotAdvance));
}

/// The epilogue of a function that realigned its stack, after `pop %rbp`: the table still says that
/// rbp is saved at (rbp), which now is the caller's frame. gcc 12 generates this for a recursive
/// function with an aligned array and `alloca`.
#[test]
fn a_frame_pointer_that_was_popped_is_the_callers() {
    let arch = &x86_64::ARCH;
    let saved_at_fp = at(Base::Register(6), 0, true);
    let epilogue = Rule {
        cfa: at(Base::Register(10), 0, false),
        fp: Some(saved_at_fp),
        ..sp_rule(0, None)
    };
    let realigned = Rule {
        cfa: at(Base::Register(6), -8, true),
        fp: Some(saved_at_fp),
        ..sp_rule(0, None)
    };
    let modules = module(
        &[
            function(0x1000, &[(0, Some(epilogue))]),
            function(0x2000, &[(0, Some(realigned))]),
            function(0x3000, &[(0, Some(realigned))]),
            function(0x4000, &[(0, None)]),
        ],
        constants::Abi::Amd64Little,
    );
    let memory = Words(BTreeMap::from([
        (0x80f8, BIAS + 0x2010),
        // The caller's frame, and the one above it.
        (0x8140, 0x8240),
        (0x8138, 0x8200),
        (0x81f8, BIAS + 0x3010),
        (0x8240, 0),
        (0x8238, 0x8300),
        (0x82f8, BIAS + 0x4010),
    ]));
    let mut start = registers(arch, BIAS + 0x1008, 0x8000, 0x8140);
    start.set(Register(10), 0x8100);
    let all = (vec![0x1008, 0x2010, 0x3010, 0x4010], Stop::EndOfStack);
    let (frames, stop) = walk_all(arch, &start, &modules, &memory);
    assert_eq!((addresses(&frames), stop), all);
    // Before it is popped, the slot is where the table says.
    let mut words = memory.0;
    words.insert(0x8040, 0x8140);
    let mut start = registers(arch, BIAS + 0x1008, 0x8000, 0x8040);
    start.set(Register(10), 0x8100);
    let (frames, stop) = walk_all(arch, &start, &modules, &Words(words));
    assert_eq!((addresses(&frames), stop), all);
}

/// A function that runs on another stack than its caller, whose frame FP points to: its whole row
/// is relative to FP.
#[test]
fn a_row_on_fp_alone_leads_into_another_stack() {
    let fp = |offset| at(Base::Register(6), offset, true);
    let elsewhere = Rule {
        cfa: at(Base::Register(6), 16, false),
        ra: fp(8),
        fp: Some(fp(0)),
        mangled_ra: false,
    };
    let usual = Rule {
        ra: at(Base::Cfa, -8, true),
        fp: Some(at(Base::Cfa, -16, true)),
        ..elsewhere
    };
    let functions = |switch: Rule| {
        let rows = [
            function(0x1000, &[(0, Some(sp_rule(16, None)))]),
            function(0x2000, &[(0, Some(switch))]),
            function(0x3000, &[(0, Some(usual))]),
            function(0x4000, &[(0, None)]),
        ];
        module(&rows, constants::Abi::Amd64Little)
    };
    // The stack that was left lies below: its frames are at 0x1000 and 0x1040.
    let words = [
        (0x8008, BIAS + 0x2010),
        (0x1000, 0x1040),
        (0x1008, BIAS + 0x3010),
        (0x1048, BIAS + 0x4010),
        (0x1040, 0),
    ];
    let memory = Words(words.into_iter().collect());
    let start = registers(&x86_64::ARCH, BIAS + 0x1008, 0x8000, 0x1000);
    let (frames, stop) = walk_all(&x86_64::ARCH, &start, &functions(elsewhere), &memory);
    let addresses: Vec<u64> = frames.iter().map(|frame| frame.address - BIAS).collect();
    assert_eq!(
        (addresses, stop),
        (vec![0x1008, 0x2010, 0x3010, 0x4010], Stop::EndOfStack)
    );
    // A row relative to the CFA stays in its stack.
    let (frames, stop) = walk_all(&x86_64::ARCH, &start, &functions(usual), &memory);
    assert_eq!((frames.len(), stop), (2, Stop::DidNotAdvance));
}

/// Frame records of AArch64 need not be at the end of a frame: a caller whose frame tables describe
/// needs the true stack pointer.
#[test]
fn a_record_does_not_show_where_the_frame_of_a_link_register_ends() {
    let arch = &aarch64::ARCH;
    let modules = Knowing {
        tables: three_functions(),
        uncovered: Uncovered::FramePointer,
        called: true,
    };
    for (ra, sp) in [(0x5555, Some(0x8020)), (BIAS + 0x1004, None)] {
        let mut found = registers(arch, 0x4444, 0x8000, 0x8010);
        let mut memory = Words(BTreeMap::from([(0x8010, 0x8040), (0x8018, ra)]));
        let mut cache = RuleCache::new(&mut []);
        step(arch, &mut found, AddressKind::Ra, &modules, &mut memory, &mut cache).unwrap();
        assert_eq!((found.pc, found.get(arch.sp)), (ra, sp));
    }
}
