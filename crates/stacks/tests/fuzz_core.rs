//! The fuzz targets as ordinary tests: a small core with mutations and truncations, a record, a
//! table of arguments with its types, and containers in memory.

use crate::fuzz;
use backtrail_testkit::text::Random;
use std::time::{Duration, Instant};

/// A hand-made core of one thread: a note of registers whose stack pointer lies in the second of
/// two segments, one of files, one of the process, and the auxiliary vector.
fn core() -> Vec<u8> {
    fn note(kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [5, desc.len() as u32, kind] {
            note.extend(word.to_le_bytes());
        }
        note.extend(b"CORE\0\0\0\0");
        note.extend(desc);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }
    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
    const CODE: u64 = 0x40_0000;
    const STACK: u64 = 0x7fff_0000;
    let mut status = vec![0; 336];
    status[12] = 11;
    status[32..36].copy_from_slice(&77u32.to_le_bytes());
    for (index, value) in [(4, STACK + 16), (16, CODE + 0x100), (19, STACK)] {
        status[112 + index * 8..120 + index * 8].copy_from_slice(&u64::to_le_bytes(value));
    }
    let mut files = words(&[1, 4096, CODE, CODE + 0x1000, 0]);
    files.extend(b"/bin/none\0");
    let mut notes = note(1, &status);
    notes.extend(note(3, &[b'x'; 136]));
    notes.extend(note(6, &words(&[3, CODE + 64, 5, 1, 33, STACK, 0, 0])));
    notes.extend(note(0x4649_4c45, &files));
    notes.extend(note(0x5349_4749, &[11; 128]));
    let stack = words(&[1, 2, STACK + 48, CODE + 0x120, 3, 4, 0, CODE + 0x140, 5, 6]);
    let mut code = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 0x200]].concat();
    for ra in [0x120, 0x140] {
        const CALL_RAX: [u8; 2] = [0xff, 0xd0];
        code[ra - 2..ra].copy_from_slice(&CALL_RAX);
    }
    let begin = 64 + 3 * 56;
    let mut core = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
    core.extend(words(&[0, 64, 0]));
    core.extend([0, 0, 0, 0, 64, 0, 56, 0, 3, 0, 64, 0, 0, 0, 0, 0]);
    let mut at = begin as u64;
    for (kind, flags, address, bytes) in [(4u32, 0u32, 0, &notes), (1, 5, CODE, &code), (1, 6, STACK, &stack)] {
        core.extend(kind.to_le_bytes());
        core.extend(flags.to_le_bytes());
        core.extend(words(&[at, address, 0, bytes.len() as u64, bytes.len() as u64, 1]));
        at += bytes.len() as u64;
    }
    [core, notes, code, stack].concat()
}

fn run(seed: &[u8], target: fn(&[u8]), mutate: fn(&mut Random, &mut Vec<u8>)) {
    target(seed);
    let mut random = Random::new(0x5eed);
    let start = Instant::now();
    let mut runs = 0;
    while runs <= 100 || start.elapsed() < Duration::from_secs(1) {
        let mut input = seed.to_vec();
        mutate(&mut random, &mut input);
        target(&input);
        runs += 1;
    }
}

#[test]
fn cores() {
    let core = core();
    let parsed = backtrail_elf::core::Core::parse(&core).expect("it is a core");
    assert_eq!(
        (
            parsed.threads.len(),
            parsed.files.len(),
            parsed.auxv.len(),
            parsed.signal
        ),
        (1, 1, 3, Some(0x0b0b_0b0b))
    );
    let snapshot = backtrail_process::core::snapshot(&parsed);
    let process = backtrail_stacks::Looker::new(Default::default()).stacks(&snapshot);
    // The file does not exist and has no table, so the frame pointer is used.
    let addresses: Vec<u64> = process.threads[0].frames.iter().map(|frame| frame.address).collect();
    assert_eq!(addresses, [0x40_0100, 0x40_0120, 0x40_0140]);
    for len in 0..core.len() {
        fuzz::core(&core[..len]);
    }
    run(&core, fuzz::core, |random, input| {
        for _ in 0..1 + random.below(6) {
            // Lengths and offsets matter most.
            let at = random.below(input.len());
            input[at] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
        }
        if random.below(8) == 0 {
            input.truncate(random.below(input.len()));
        }
    });
}

#[test]
fn records() {
    let record = br#"{"architecture":"x86_64","pid":7,"name":"n","signal":null,"imageMap":"AgVMaW51eAIYQACAAAAAAAA","fixedImages":[0],
        "threads":[{"tid":7,"name":null,"signal":null,"stop":"end_of_stack","backtrace":"AhpAEAAgEIkBKwA","how":[["initial",1],["eh_frame",301]]}]}"#;
    run(record, fuzz::record, |random, input| random.mutate(input));
}

/// The table of a program with structs, enums, bit fields, strings and a call through an argument,
/// as made by gcc 12 and `backtrail sframe add --args`.
#[test]
fn arguments() {
    let seed = include_bytes!("../../../fuzz/seeds/stack_args/structs");
    for len in 0..seed.len() {
        fuzz::arguments(&seed[..len]);
    }
    let shown = fuzz::arguments(seed);
    assert!(shown > 8, "{shown} values");
    run(
        seed,
        |input| {
            let _ = fuzz::arguments(input);
        },
        |random, input| random.mutate(input),
    );
}

/// Types with the names and members of containers of libstdc++ and Rust, and memory with the text
/// `hello`, three strings in a row, and pointers to these.
#[test]
fn contents() {
    let seed = include_bytes!("../../../fuzz/seeds/stack_contents/containers");
    for len in 0..seed.len() {
        fuzz::contents(&seed[..len]);
    }
    let shown = fuzz::contents(seed);
    let strings = "{\"hello\", \"hello\", \"hello\"}".to_owned();
    for expected in ["\"hello\"".to_owned(), strings] {
        assert!(shown.contains(&expected), "{shown:#?}");
    }
    run(
        seed,
        |input| {
            let _ = fuzz::contents(input);
        },
        |random, input| random.mutate(input),
    );
}

/// Types with the names and members of libstdc++'s containers of nodes, as `g++ -g` describes them,
/// and memory with a map, a hash table, a list and a queue, of one program.
#[test]
fn nodes() {
    let seed = include_bytes!("../../../fuzz/seeds/stack_contents/nodes");
    let shown = fuzz::contents(seed);
    let expected = [
        "{[0] = 0, [1] = 2, [2] = 4}",
        "{[2] = {x = 1, y = 2}, [1] = {x = 1, y = 2}, [0] = {x = 1, y = 2}}",
        "{{x = 5, y = 6}, {x = 7, y = 8}}",
        "{{x = 3, y = 4}, {x = 3, y = 4}, {x = 3, y = 4}}",
    ];
    for expected in expected {
        assert!(shown.iter().any(|value| value == expected), "{expected}: {shown:#?}");
    }
    run(
        seed,
        |input| {
            let _ = fuzz::contents(input);
        },
        |random, input| random.mutate(input),
    );
    // The memory alone: pointers that lead in circles, and counts that are too large.
    run(
        seed,
        |input| {
            let _ = fuzz::contents(input);
        },
        |random, input| {
            let types = 2 + usize::from(u16::from_le_bytes([input[0], input[1]]));
            let mut memory = input.split_off(types.min(input.len()));
            if memory.len() > 16 {
                let [to, from] = [0; 2].map(|_| random.below(memory.len() / 8 - 1) * 8);
                memory.copy_within(from..from + 8, to);
            }
            input.extend(memory);
        },
    );
}
