//! Made-up sections; `tests/go_names.rs` reads real programs.

use super::*;

const TEXT_ADDRESS: u64 = 0x40_0000;
const MEMORY: u64 = 0x50_0000;

/// A section of two functions, `main.outer` with `main.inner` inlined into its bytes 8 to 16, and
/// `main.last`; and its tree of inlined calls.
fn made_up(magic: u32, text: u64) -> (Vec<u8>, Vec<u8>) {
    let (layout, old) = match magic {
        GO_1_16 => (LAYOUT_1_16, true),
        GO_1_18 => (LAYOUT_1_18, false),
        _ => (LAYOUT_1_20, false),
    };
    let names = b"\0main.outer\0main.inner\0main.last\0".to_vec();
    let (outer, inner, last) = (1u32, 12u32, 23u32);
    let files = b"/src/a.go\0/src/b.go\0".to_vec();
    let units: Vec<u8> = [0u32, 10, u32::MAX].map(u32::to_le_bytes).concat();
    // Values by pc: the change in zigzag, starting from -1, and the bytes for which the value
    // holds.
    let zigzag = |change: i32| ((change << 1) ^ (change >> 31)) as u8;
    let mut tables = vec![0u8];
    let mut table = |values: &[(i32, u8)]| {
        let at = tables.len() as u32;
        let mut last = -1;
        for &(value, bytes) in values {
            tables.extend([zigzag(value - last), bytes]);
            last = value;
        }
        tables.push(0);
        at
    };
    let outer_files = table(&[(0, 8), (1, 8), (0, 16)]);
    let outer_lines = table(&[(10, 4), (11, 4), (40, 8), (12, 16)]);
    let outer_inlined = table(&[(-1, 8), (0, 8), (-1, 16)]);
    let last_files = table(&[(2, 16)]);
    let last_lines = table(&[(20, 16)]);

    let header = if old { 64 } else { 72 };
    let mut parts = Vec::new();
    let mut place = |bytes: &[u8]| {
        let at = header + parts.len();
        parts.extend_from_slice(bytes);
        parts.resize(parts.len().next_multiple_of(8), 0);
        at as u64
    };
    let (names_at, units_at, files_at, tables_at) = (place(&names), place(&units), place(&files), place(&tables));
    let func = |name: u32, file: u32, line: u32, inlined: u32, start: u64| {
        let mut bytes = Vec::new();
        match old {
            true => bytes.extend(start.to_le_bytes()),
            false => bytes.extend(((start - TEXT_ADDRESS) as u32).to_le_bytes()),
        }
        let tables = if inlined == 0 { 0u32 } else { 3 };
        for field in [name, 0, 0, 0, file, line, tables, 0] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.resize(layout.data_count, 0);
        bytes.push(if inlined == 0 { 0 } else { 4 });
        if inlined != 0 {
            bytes.extend([0, 0, inlined].map(u32::to_le_bytes).concat());
            match old {
                true => {
                    bytes.resize(bytes.len().next_multiple_of(8), 0);
                    bytes.extend([0u64, 0, 0, MEMORY + 16].map(u64::to_le_bytes).concat());
                }
                false => bytes.extend([u32::MAX, 0, 0, 16].map(u32::to_le_bytes).concat()),
            }
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    };
    let first = func(outer, outer_files, outer_lines, outer_inlined, TEXT_ADDRESS);
    let second = func(last, last_files, last_lines, 0, TEXT_ADDRESS + 32);
    let entries = 3 * layout.entry;
    let places = [entries, entries + first.len(), 0];
    let mut functions = Vec::new();
    for (start, place) in [0u64, 32, 48].into_iter().zip(places) {
        match old {
            true => functions.extend([TEXT_ADDRESS + start, place as u64].map(u64::to_le_bytes).concat()),
            false => functions.extend([start as u32, place as u32].map(u32::to_le_bytes).concat()),
        }
    }
    functions.extend(first);
    functions.extend(second);
    let functions_at = place(&functions);
    let mut bytes = magic.to_le_bytes().to_vec();
    bytes.extend([0, 0, 1, 8]);
    let mut words = vec![2, 1];
    words.extend((!old).then_some(text));
    words.extend([names_at, units_at, files_at, tables_at, functions_at]);
    bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
    bytes.extend(parts);

    let mut memory = vec![0xee; 16];
    let mut node = vec![0; layout.inlined.2];
    node[layout.inlined.0..][..4].copy_from_slice(&inner.to_le_bytes());
    node[layout.inlined.1..][..4].copy_from_slice(&5u32.to_le_bytes());
    memory.extend(node);
    (bytes, memory)
}

fn lines(names: &GoNames<'_>, svma: u64) -> Vec<String> {
    let calls = names.lookup(svma).into_iter();
    let line = |call: GoCall| {
        let file = call.file.unwrap_or_default();
        format!("{} {file}:{}", call.function, call.line.unwrap_or(0))
    };
    calls.map(line).collect()
}

#[test]
fn each_version_has_names_lines_and_inlined_calls() {
    for magic in [GO_1_16, GO_1_18, GO_1_20] {
        let (section, memory) = made_up(magic, TEXT_ADDRESS);
        let mut names = GoNames::parse(section.into(), Endian::Little, vec![(MEMORY, &memory)]).expect("a section");
        names.go_func.get_or_insert(MEMORY);
        assert_eq!(lines(&names, TEXT_ADDRESS), ["main.outer /src/a.go:10"]);
        assert_eq!(
            lines(&names, TEXT_ADDRESS + 9),
            ["main.inner /src/b.go:40", "main.outer /src/a.go:11"],
            "{magic:#x}"
        );
        assert_eq!(lines(&names, TEXT_ADDRESS + 31), ["main.outer /src/a.go:12"]);
        assert_eq!(lines(&names, TEXT_ADDRESS + 32), ["main.last :20"]);
        assert!(lines(&names, TEXT_ADDRESS + 48).is_empty());
        assert!(lines(&names, TEXT_ADDRESS - 1).is_empty());
    }
}

/// From Go 1.26 on, only `moduledata` contains the start of the text; the place of `go:func.*` in
/// it differs.
#[test]
fn the_runtimes_own_data_say_where_text_and_inlined_calls_are() {
    let (section, memory) = made_up(GO_1_20, 0);
    const SECTION: u64 = 0x60_0000;
    const DATA: u64 = 0x70_0000;
    for index in [38, 40, 43] {
        let mut names = GoNames::parse(section.clone().into(), Endian::Little, Vec::new()).expect("a section");
        let mut module = vec![0u64; 60];
        // A word that happens to equal the first one.
        module[1] = SECTION;
        (module[3], module[4]) = (SECTION, SECTION + names.names as u64);
        module[3 + TEXT] = TEXT_ADDRESS;
        (module[3 + 37], module[3 + index]) = (MEMORY - 8, MEMORY);
        let module: Vec<u8> = module.into_iter().flat_map(u64::to_le_bytes).collect();
        names.memory = vec![(MEMORY, &memory), (DATA, &module)];
        let at = names.module_data(SECTION).expect("it is there");
        assert_eq!(at, DATA + 24);
        names.text = names.word_at(at, TEXT).expect("a word");
        names.go_func = names.find_go_func(at);
        assert_eq!(names.go_func, Some(MEMORY));
        assert_eq!(lines(&names, TEXT_ADDRESS + 9).len(), 2);
    }
}
