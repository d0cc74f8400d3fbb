//! What the fuzz targets and the tests call: any bytes give an answer or an error.

use std::io::{self, Write};

use crate::constants::{CTF_SECTION, SymbolKind};
use crate::dump::{self, Style};
use crate::find;
use crate::print::{Name, Options, Printer};
use crate::{AlignmentRule, Archive, Dict, Lent, Measures, Symbol, Types};

/// Dicts of an archive that are looked at: many may lie at one place.
const MAX_DICTS: usize = 8;
/// Bytes of text that are taken.
const MAX_TEXT: usize = 1 << 20;

/// Strings and symbols of a file that is not there.
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

/// Reads all that dicts have, and measures every type.
pub fn read_ctype(data: &[u8]) {
    each_dict(data, |types| {
        let dict = types.dict();
        let header = dict.header();
        assert!(header.body_size() >= header.types.end as usize);
        let _ = (dict.parent_name(), dict.parent_label(), dict.cu_name());
        let _ = (dict.labels().count(), dict.variables().count());
        // Each string has its end, or the table has.
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
            // All that a record promises lies in the dict.
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
                assert!(resolved.kind() != crate::Kind::Typedef && !resolved.kind().is_qualifier());
            }
            for measures in &mut measures {
                let _ = (measures.size(id), measures.alignment(id));
            }
        }
    });
}

/// Writes the text that objdump would.
pub fn show_ctype(data: &[u8]) {
    each_dict(data, |types| {
        for style in [Style::Binutils2_40, Style::Binutils2_47] {
            if let Ok(Err(damage)) = dump::dump(types, style, Some(&SYMBOLS), &mut Limited(MAX_TEXT)) {
                assert!(!damage.to_string().is_empty());
            }
        }
    });
}

/// Prints C, and finds what has a name.
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

fn each_dict(data: &[u8], mut look: impl FnMut(Types<'_>)) {
    let lent = Lent {
        strings: STRINGS,
        pointer: 8,
    };
    let Ok(archive) = Archive::parse(data) else { return };
    for member in archive.members().take(MAX_DICTS).flatten() {
        let Ok(dict) = member.open(lent) else { continue };
        let parent = archive.parent_of(&dict).ok().flatten();
        let parent = parent.and_then(|parent| parent.open(lent).ok());
        look(Types::with_parent(&dict, parent.as_ref()));
    }
    assert!(archive.find(CTF_SECTION).is_none() || !archive.is_empty());
}

fn is_truncated(error: crate::Error) -> bool {
    matches!(error.kind, crate::ErrorKind::Truncated { .. })
}

/// More entries than this no table of the dict can have.
fn data_words(dict: &Dict<'_>) -> usize {
    dict.header().body_size() / 2
}

/// Takes no more than so many bytes of text.
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
