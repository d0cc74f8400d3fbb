//! Entry points of the fuzz targets and tests: any bytes give an answer or an error.

use std::io::{self, Write};

use backtrail_wire::Endian;

use backtrail_ctype::constants::{CTF_SECTION, SymbolKind};
use backtrail_ctype::dump::{self, Style};
use backtrail_ctype::link::{self, Mode};
use backtrail_ctype::print::{Name, Options, Printer};
use backtrail_ctype::write::{self, Contents};
use backtrail_ctype::{AlignmentRule, Archive, Dict, Measures, Surroundings, Symbol, Types};
use backtrail_ctype::{btf, diff, find};

/// The most dicts of an archive to read, because many may be at one offset.
const MAX_DICTS: usize = 8;
/// The most bytes of text to accept.
const MAX_TEXT: usize = 1 << 20;

/// Strings and symbols of an imaginary file around the section.
const STRINGS: &[u8] = b"\0external\0";
const SYMBOLS: [Symbol<'static>; 3] = [
    Symbol {
        name: b"one",
        kind: SymbolKind::Object,
    },
    Symbol {
        name: b"two",
        kind: SymbolKind::Function,
    },
    Symbol {
        name: b"three",
        kind: SymbolKind::Object,
    },
];

/// Reads everything in each dict, and measures every type.
pub fn read_ctype(data: &[u8]) {
    each_dict(data, |types| {
        let dict = types.dict();
        let header = dict.header();
        assert!(header.body_size() >= header.types.end as usize);
        let _ = (dict.parent_name(), dict.parent_label(), dict.cu_name());
        let _ = (dict.labels().count(), dict.variables().count());
        // Each string has a terminator, except perhaps the last.
        assert!(dict.strings().map(|(_, string)| string.len() + 1).sum::<usize>() <= header.strings.len() + 1);
        for kind in [SymbolKind::Object, SymbolKind::Function] {
            assert!(dict.symbol_types(kind, &SYMBOLS).count() <= data_words(dict));
        }
        assert!(dict.len() <= data_words(dict));
        let mut measures =
            [AlignmentRule::FirstMember, AlignmentRule::StrictestMember].map(|rule| Measures::new(types, rule));
        for id in dict.ids() {
            let found = types.get(id).expect("opening has seen it");
            assert_eq!(found.id(), id);
            let _ = (found.name(), found.reference(), found.forwarded(), found.encoding());
            let _ = (found.array(), found.slice());
            // Everything that a record describes is inside the dict.
            for member in found.members().into_iter().flatten() {
                assert!(!matches!(member, Err(error) if is_truncated(error)));
            }
            for value in found.enumerators().into_iter().flatten() {
                assert!(!matches!(value, Err(error) if is_truncated(error)));
            }
            if let Ok((arguments, _)) = found.arguments() {
                arguments.for_each(|argument| assert!(argument.is_ok()));
            }
            if let Ok(resolved) = types.resolve(id) {
                assert!(resolved.kind() != backtrail_ctype::Kind::Typedef && !resolved.kind().is_qualifier());
            }
            for measures in &mut measures {
                let _ = (measures.size(id), measures.alignment(id));
            }
        }
    });
}

/// Writes the text that objdump would print.
pub fn show_ctype(data: &[u8]) {
    each_dict(data, |types| {
        for style in [Style::Binutils2_40, Style::Binutils2_47] {
            if let Ok(Err(damage)) = dump::dump(types, style, Some(&SYMBOLS), &mut Limited(MAX_TEXT)) {
                assert!(!damage.to_string().is_empty());
            }
        }
    });
}

/// Prints C, and looks up everything that has a name.
pub fn print_ctype(data: &[u8]) {
    each_dict(data, |types| {
        let options = Options {
            assertions: true,
            inner_first: false,
        };
        let mut printer = Printer::new(options);
        printer.add("unit", types);
        let (printed, _) = printer.print(None);
        let braces = |brace: u8| printed.text.iter().filter(|&&byte| byte == brace).count();
        assert_eq!(braces(b'{'), braces(b'}'), "a body without an end");
        for name in ["one", "small", "struct small", "enum colour"] {
            for found in find::find(types, &SYMBOLS, Name::parse(name)) {
                let _ = find::describe(types, found, name);
            }
        }
    });
}

/// Links the dicts in every mode; writes the result, reads it, and links it again.
pub fn link_ctype(data: &[u8]) {
    let surroundings = Surroundings {
        strings: STRINGS,
        pointer: 8,
        ..Surroundings::default()
    };
    let Ok(section) = link::Section::open(data, surroundings) else {
        return;
    };
    if section.len() > MAX_DICTS {
        return;
    }
    let Ok(units) = section.units(&SYMBOLS) else { return };
    for mode in [Mode::ShareUnconflicted, Mode::ShareDuplicated, Mode::SingleDict] {
        let options = link::Options {
            mode,
            symbols: link::Symbols::Named,
            variables: true,
        };
        let linked = match link::link(&units, &options) {
            Ok(linked) => linked,
            Err(error) => {
                assert!(error.unit < units.len() && !error.to_string().is_empty());
                continue;
            }
        };
        let read: usize = units.iter().map(|unit| unit.types.len()).sum();
        let written: usize = linked.children.iter().map(|child| child.types.len()).sum();
        // Ambiguous types may also be declared in the parent, and types that lead to them may be
        // there, too.
        assert!(linked.parent.types.len() + written <= 3 * read);
        let Ok(bytes) = linked.write(&write::Options::new(Endian::Little), 8) else {
            continue;
        };
        let again = link::Section::open(&bytes, Surroundings::default()).expect("what was written opens");
        let again = again.units(&[]).expect("what was written can be read");
        link::link(&again, &options).expect("what was linked can be linked");
    }
    for types in section.types() {
        let Ok(contents) = Contents::read(types, &SYMBOLS) else {
            continue;
        };
        if let Ok(bytes) = write::dict(&contents, &write::Options::new(Endian::Big)) {
            let dict = Dict::open(&bytes, Surroundings::default()).expect("what was written opens");
            let again = Contents::read(dict.types(), &[]).expect("what was written can be read");
            assert_eq!(again.types.len(), contents.types.len());
        }
    }
}

/// Reads BTF, writes it as a dict, opens that, and prints it.
pub fn read_btf(data: &[u8]) {
    let Ok(found) = btf::read(data) else { return };
    let (types, symbols) = (found.unit.types.len(), found.unit.symbols.len());
    // Each takes at least 12 bytes; void and the types of bit fields are added.
    assert!(12 * (types + symbols) <= 2 * data.len() + 12);
    let Ok(bytes) = found.to_dict(&[]) else { return };
    let dict = Dict::open(&bytes, Surroundings::default()).expect("what was written opens");
    assert_eq!(dict.len(), types);
    show_ctype(&bytes);
    print_ctype(&bytes);
}

/// Compares the first half with the whole: every change must have a name and a description.
pub fn diff_ctype(data: &[u8]) {
    let surroundings = Surroundings {
        strings: STRINGS,
        pointer: 8,
        ..Surroundings::default()
    };
    let (one, other) = (&data[..data.len() / 2], data);
    let sections = [one, other].map(|bytes| link::Section::open(bytes, surroundings).ok());
    let side = |section: &'_ Option<link::Section<'_>>| -> usize { section.as_ref().map_or(0, link::Section::len) };
    if side(&sections[0]) > MAX_DICTS || side(&sections[1]) > MAX_DICTS {
        return;
    }
    let sides = sections.each_ref().map(|section| {
        let mut side = diff::Side::default();
        for (number, types) in section.iter().flat_map(link::Section::types).enumerate() {
            let name = if number == 0 { String::new() } else { number.to_string() };
            side.units.push((name, types));
        }
        side
    });
    for change in diff::compare(&sides[0], &sides[1]) {
        assert!(!change.detail.is_empty() && !change.name.is_empty());
    }
}

fn each_dict(data: &[u8], mut look: impl FnMut(Types<'_>)) {
    let surroundings = Surroundings {
        strings: STRINGS,
        pointer: 8,
        ..Surroundings::default()
    };
    let Ok(archive) = Archive::parse(data) else { return };
    for member in archive.members().take(MAX_DICTS).flatten() {
        let Ok(dict) = member.open(surroundings) else { continue };
        let parent = archive.parent_of(&dict).ok().flatten();
        let parent = parent.and_then(|parent| parent.open(surroundings).ok());
        look(Types::with_parent(&dict, parent.as_ref()));
    }
    assert!(archive.find(CTF_SECTION).is_none() || !archive.is_empty());
}

fn is_truncated(error: backtrail_ctype::Error) -> bool {
    matches!(error.kind, backtrail_ctype::ErrorKind::Truncated { .. })
}

/// The most entries that a table of the dict can have.
fn data_words(dict: &Dict<'_>) -> usize {
    dict.header().body_size() / 2
}

/// A writer that accepts at most this many bytes of text.
struct Limited(usize);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
