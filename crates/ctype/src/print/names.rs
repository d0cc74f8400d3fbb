//! Choosing each type's name: its own, unless that means something else in C.

use rustc_hash::FxHashMap;

use super::{Key, Printer};
use crate::constants::Kind;
use crate::read::{Type, TypeId};

/// Keywords of C and GNU C, which can't be names, nor can GNU C's macros of the system.
const KEYWORDS: [&str; 61] = [
    "auto",
    "break",
    "case",
    "char",
    "const",
    "continue",
    "default",
    "do",
    "double",
    "else",
    "enum",
    "extern",
    "float",
    "for",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "register",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "typedef",
    "union",
    "unsigned",
    "void",
    "volatile",
    "while",
    "asm",
    "typeof",
    "_Alignas",
    "_Alignof",
    "_Atomic",
    "_Bool",
    "_Complex",
    "_Generic",
    "_Imaginary",
    "_Noreturn",
    "_Static_assert",
    "_Thread_local",
    "__int128",
    "__float128",
    "_Float16",
    "_Float32",
    "_Float64",
    "_Float128",
    "_Float32x",
    "_Float64x",
    "_Decimal32",
    "_Decimal64",
    "_Decimal128",
    "__builtin_va_list",
    "i386",
    "linux",
    "unix",
];

/// Words in the names of types that need no declaration.
const BASE_WORDS: [&str; 20] = [
    "void",
    "char",
    "short",
    "int",
    "long",
    "float",
    "double",
    "signed",
    "unsigned",
    "_Bool",
    "_Complex",
    "complex",
    "__int128",
    "__float128",
    "_Float16",
    "_Float32",
    "_Float64",
    "_Float128",
    "_Float32x",
    "_Float64x",
];

/// The names that are taken.
#[derive(Debug, Default)]
pub(super) struct Names {
    given: FxHashMap<Key, String>,
    tags: FxHashMap<String, Tag>,
    /// Names of typedefs and of enum values, which share one namespace.
    ordinary: FxHashMap<String, ()>,
}

#[derive(Clone, Copy, Debug)]
struct Tag {
    kind: Kind,
    defined: bool,
}

impl Names {
    pub(super) fn get(&self, key: Key) -> Option<&str> {
        self.given.get(&key).map(String::as_str)
    }

    fn give_tag(&mut self, key: Key, kind: Kind, name: &str, defines: bool, completes: bool) {
        let name = numbered(name, |name| match self.tags.get(name) {
            None => true,
            Some(tag) if tag.kind != kind => false,
            Some(tag) => !defines || (completes && !tag.defined),
        });
        let tag = self.tags.entry(name.clone()).or_insert(Tag { kind, defined: false });
        tag.defined |= defines;
        self.given.insert(key, name);
    }

    /// Chooses a name in the ordinary namespace.
    pub(super) fn ordinary(&mut self, name: &str) -> String {
        let name = numbered(name, |name| !self.ordinary.contains_key(name));
        self.ordinary.insert(name.clone(), ());
        name
    }
}

/// The first of `name`, `name__2`, `name__3`, … that is free.
fn numbered(name: &str, free: impl Fn(&str) -> bool) -> String {
    let name = identifier(name);
    if !KEYWORDS.contains(&name.as_str()) && free(&name) {
        return name;
    }
    let mut candidates = (2u64..).map(|number| format!("{name}__{number}"));
    candidates.find(|candidate| free(candidate)).unwrap_or(name)
}

/// The name with all characters replaced that C does not allow in names.
fn identifier(name: &str) -> String {
    let fine = |c: char| c.is_alphabetic() || c.is_ascii_digit() || c == '_' || c == '$';
    let mut text: String = name.chars().map(|c| if fine(c) { c } else { '_' }).collect();
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert(0, '_');
    }
    text
}

/// The name of a member.
pub(super) fn member(name: &[u8]) -> String {
    let mut name = identifier(&String::from_utf8_lossy(name));
    if KEYWORDS.contains(&name.as_str()) {
        name.push('_');
    }
    name
}

/// The C name of a number type that needs no declaration; `None` for a name of another language,
/// and for one that has fewer bytes in C on any machine: Go's `int` has eight.
pub(super) fn base(name: &str, bytes: u64) -> Option<String> {
    let words: Vec<&str> = name.split(' ').collect();
    let known = !name.is_empty() && words.iter().all(|word| BASE_WORDS.contains(word)) && bytes <= most_bytes(&words);
    known.then(|| {
        let words: Vec<&str> = words
            .into_iter()
            .map(|word| if word == "complex" { "_Complex" } else { word })
            .collect();
        words.join(" ")
    })
}

/// The largest size of the C type of these words.
fn most_bytes(words: &[&str]) -> u64 {
    let has = |word| words.contains(&word);
    let is_integer = words
        .iter()
        .all(|word| ["char", "short", "int", "long", "signed", "unsigned"].contains(word));
    match () {
        () if has("char") => 1,
        () if has("short") => 2,
        () if is_integer && has("long") => 8,
        () if is_integer => 4,
        () => u64::MAX,
    }
}

impl<'d> Printer<'d> {
    /// Gives the types of a unit their names: first root-visible types, last forwards. With
    /// `completes`, a definition completes a declaration of an earlier dict.
    pub(super) fn name_types(&mut self, unit: usize, completes: bool) {
        let types = self.units[unit].types;
        let sorted = |seen: bool, forward: bool| {
            types.dict().ids().filter(move |&id| {
                types
                    .get(id)
                    .is_ok_and(|found| (found.is_root(), found.kind() == Kind::Forward) == (seen, forward))
            })
        };
        let ids: Vec<TypeId> = [(true, false), (false, false), (true, true), (false, true)]
            .into_iter()
            .flat_map(|(seen, forward)| sorted(seen, forward))
            .collect();
        for id in ids {
            if let Ok(found) = types.get(id) {
                self.name_type(unit, &found, completes);
            }
        }
    }

    fn name_type(&mut self, unit: usize, found: &Type<'d>, completes: bool) {
        let key = self.key(unit, found.id());
        let name = String::from_utf8_lossy(found.name().unwrap_or_default());
        match found.kind() {
            kind @ (Kind::Struct | Kind::Union | Kind::Enum) => {
                let nameless = self.units[unit].nameless.get(&found.id()).copied().unwrap_or_default();
                if !name.is_empty() {
                    self.names.give_tag(key, kind, &name, true, completes);
                } else if nameless.typedef.is_none() && self.needs_tag(unit, found, nameless.references) {
                    let name = format!("anonymous_{:x}", found.id().0 & 0x7fff_ffff);
                    self.names.give_tag(key, kind, &name, true, false);
                }
            }
            Kind::Forward => {
                let kind = found.forwarded().unwrap_or(Kind::Struct);
                self.names.give_tag(key, kind, &name, false, true);
            }
            Kind::Unknown => {
                let name = format!("not_represented_{:x}", found.id().0 & 0x7fff_ffff);
                self.names.give_tag(key, Kind::Struct, &name, false, false);
            }
            Kind::Integer | Kind::Float if base(&name, found.size()).is_some() || found.size() == 0 => {}
            Kind::Integer | Kind::Float | Kind::Typedef if !name.is_empty() => {
                let name = self.names.ordinary(&name);
                self.names.given.insert(key, name);
            }
            _ => {}
        }
    }

    /// Whether a nameless type needs a tag. One that is used in a single place is printed there.
    fn needs_tag(&self, unit: usize, found: &Type<'d>, references: u32) -> bool {
        match found.kind() {
            Kind::Enum => references > 0 && !self.stands_in_member(unit, found.id()),
            _ => references > 1,
        }
    }
}
