//! A heap with one script, as V8 12 would have it, and what its damage leads to.

use std::collections::BTreeMap;
use std::ops::Range;

use backtrail_arch::{Arch, x86_64};

use super::*;
use crate::process_code::Region;
use crate::registers::FunctionRule;

/// The numbers that the program exports, each in a word.
const NUMBERS: [(&str, u32); 34] = [
    ("class_Map__instance_type__uint16_t", 8),
    ("type_Code__CODE_TYPE", 200),
    ("type_InstructionStream__INSTRUCTION_STREAM_TYPE", 201),
    ("class_InstructionStream__instruction_start__uintptr_t", 32),
    ("class_Code__instruction_size__int", 48),
    ("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE", 202),
    ("class_SharedFunctionInfo__name_or_scope_info__Tagged_Object_", 16),
    ("class_SharedFunctionInfo__script__Tagged_HeapObject_", 24),
    ("type_ScopeInfo__SCOPE_INFO_TYPE", 203),
    ("scopeinfo_idx_ncontextlocals", 2),
    ("scopeinfo_idx_first_vars", 3),
    ("type_Script__SCRIPT_TYPE", 204),
    ("class_Script__name__Object", 16),
    ("class_Script__source__Object", 8),
    ("type_FixedArray__FIXED_ARRAY_TYPE", 205),
    ("type_WeakFixedArray__WEAK_FIXED_ARRAY_TYPE", 206),
    ("class_FixedArrayBase__length__SMI", 8),
    ("class_FixedArray__data__uintptr_t", 16),
    ("class_String__length__int32_t", 12),
    ("IsNotStringMask", 0xffff_ff80),
    ("StringRepresentationMask", 7),
    ("OneByteStringTag", 8),
    ("SeqStringTag", 0),
    ("ConsStringTag", 1),
    ("SlicedStringTag", 3),
    ("ExternalStringTag", 2),
    ("ThinStringTag", 5),
    ("class_SeqOneByteString__chars__char", 16),
    ("class_ConsString__first__String", 16),
    ("class_ConsString__second__String", 24),
    ("class_ExternalString__resource__Object", 16),
    ("class_SlicedString__parent__String", 16),
    ("class_SlicedString__offset__SMI", 24),
    ("class_ThinString__actual__String", 16),
];
const PROGRAM: Range<u64> = 0x40_0000..0x41_0000;
const HEAP: u64 = 0x10_0000;
const OPTIMIZED: u64 = 0x20_0000;
const BASELINE: u64 = 0x20_0100;

struct Heap {
    words: BTreeMap<u64, u64>,
    free: u64,
}

impl Heap {
    /// Makes an object with these words after its map, and returns the reference to it.
    fn make(&mut self, kind: u64, words: &[u64]) -> u64 {
        let at = self.free;
        self.free += 8 * (words.len() as u64 + 1);
        self.put(at, kind, words);
        at | TAG
    }

    fn put(&mut self, at: u64, kind: u64, words: &[u64]) {
        // Maps are where no objects are, by their types.
        let map = HEAP + 0x8000 + 16 * kind;
        self.words.insert(map + 8, kind);
        self.words.insert(at, map | TAG);
        for (offset, word) in (8..).step_by(8).zip(words) {
            self.words.insert(at + offset, *word);
        }
    }

    fn string(&mut self, text: &str) -> u64 {
        let mut words = vec![(text.len() as u64) << 32];
        let characters = text.as_bytes().chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        });
        words.extend(characters);
        self.make(8, &words)
    }
}

const fn small(number: u64) -> u64 {
    number << 32
}

/// A script with two functions: `f`, which is optimized, and one that is assigned to `g`.
fn heap() -> Heap {
    let mut heap = Heap {
        words: BTreeMap::new(),
        free: HEAP,
    };
    for (at, (_, number)) in (PROGRAM.start..).step_by(8).zip(NUMBERS) {
        heap.words.insert(at, number.into());
    }
    let undefined = heap.make(131, &[]);
    let (path, first, second) = (
        heap.string("/a/script.js"),
        heap.string("/* */\nfunction f() {}\n"),
        heap.string("g = () => 1;"),
    );
    let source = heap.make(1 | 8, &[small(34), first, second]);
    let script = heap.make(204, &[source, path, undefined]);
    let outer = heap.make(203, &[0, 0, 0]);
    let (f, g) = (heap.string("f"), heap.string("g"));
    let of_f = heap.make(
        203,
        &[
            0,
            0,
            small(1),
            f,
            small(1),
            f,
            small(u64::from(u32::MAX)),
            undefined,
            small(16),
            small(21),
            outer,
        ],
    );
    let of_g = heap.make(203, &[0, 0, 0, 0, 0, g, small(26), small(33), outer]);
    let code = heap.free | TAG;
    let optimized = heap.make(202, &[code, of_f, script]);
    let array = heap.make(205, &[small(3), 0, optimized, undefined]);
    for (start, left, function) in [(OPTIMIZED, array, Some(of_f)), (BASELINE, undefined, None)] {
        let stream = (start - 32) | TAG;
        let code = heap.make(200, &[left, undefined, 0, stream, start, 64]);
        heap.put(start - 32, 201, &[code, 0, 0]);
        if function.is_none() {
            let other = heap.make(202, &[code, of_g, script]);
            let functions = heap.make(206, &[small(2), optimized | WEAK_TAG, other | WEAK_TAG]);
            heap.words.insert((script - TAG) + 24, functions);
        }
    }
    heap
}

impl ProcessCode for Heap {
    type Mapping = ();
    type Place = u64;

    fn arch(&self) -> &'static Arch {
        &x86_64::ARCH
    }

    fn process(&self) -> u32 {
        1
    }

    fn find(&self, _address: u64) -> Option<()> {
        Some(())
    }

    fn range(&self, (): ()) -> Range<u64> {
        PROGRAM
    }

    fn place(&self, (): (), address: u64) -> u64 {
        address
    }

    fn is_file(&self, (): ()) -> bool {
        true
    }

    fn is_same_file(&self, (): (), (): ()) -> bool {
        true
    }

    fn has_table(&self, (): ()) -> bool {
        false
    }

    fn function_at(&self, (): (), _address: u64) -> Option<Range<u64>> {
        None
    }

    fn described_function(&self, (): (), _address: u64) -> Option<Range<u64>> {
        None
    }

    fn has_call_frames(&self, (): ()) -> bool {
        false
    }

    fn starts(&self, (): (), _range: Range<u64>) -> Vec<u64> {
        Vec::new()
    }

    fn objects(&self, (): (), prefix: &str) -> Vec<(String, u64)> {
        let places = (PROGRAM.start..).step_by(8).zip(NUMBERS);
        places.map(|(at, (name, _))| (format!("{prefix}{name}"), at)).collect()
    }

    fn is_described(&self, (): (), _address: u64) -> bool {
        false
    }

    fn rule(&self, (): (), _address: u64) -> Option<FunctionRule> {
        None
    }

    fn read(&self, start: u64, bytes: &mut [u8]) -> usize {
        let all = HEAP..BASELINE + 0x1000;
        for (at, byte) in (start..).zip(bytes.iter_mut()) {
            if !all.contains(&at) && !PROGRAM.contains(&at) {
                return (at - start) as usize;
            }
            let word = self.words.get(&(at & !7)).copied().unwrap_or(0);
            *byte = word.to_le_bytes()[(at & 7) as usize];
        }
        bytes.len()
    }

    fn regions(&self) -> Vec<Region> {
        vec![Region {
            range: PROGRAM,
            writable: false,
            executable: true,
            path: "/usr/bin/program".to_owned(),
        }]
    }
}

fn names(heap: &Heap) -> [Option<Function>; 2] {
    let mut v8 = V8::default();
    [OPTIMIZED, BASELINE].map(|start| Some(v8.function(heap, start + 40)?.function))
}

#[test]
fn functions_are_found_from_their_code() {
    let [f, g] = names(&heap());
    let expected = |start: u64, name: &str| Some(Function::new(start..start + 64, name.to_owned()));
    assert_eq!(f, expected(OPTIMIZED, "JS:f /a/script.js:2:11"));
    assert_eq!(g, expected(BASELINE, "JS:g /a/script.js:3:5"));
}

#[test]
fn other_code_has_no_names() {
    let mut heap = heap();
    // The object that describes the code is another's.
    let (Some(at), stream) = (
        heap.words
            .iter()
            .find_map(|(at, word)| (*word == OPTIMIZED).then_some(*at)),
        OPTIMIZED - 32,
    ) else {
        panic!("it refers to the code");
    };
    heap.words.insert(at - 8, (stream + 0x100) | TAG);
    assert_eq!(names(&heap)[0], None);
    // Behind the code.
    assert_eq!(
        V8::default().function(&heap, BASELINE + 64).map(|made| made.function),
        None
    );
}

#[test]
fn damage_is_survived() {
    let whole = heap();
    let places: Vec<u64> = whole.words.keys().copied().collect();
    let values = [0, u64::MAX, u64::MAX - 2, HEAP | TAG, small(80)];
    for place in places {
        for value in values {
            let mut damaged = heap();
            damaged.words.insert(place, value);
            // Whatever it finds, it ends.
            let _ = names(&damaged);
        }
    }
}
