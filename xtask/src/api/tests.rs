use super::*;

/// A crate with most of what lists know.
const FILES: [(&str, &str); 5] = [
    (
        "crates/api/src/lib.rs",
        "pub use backtrail_sample as sample;\n#[cfg(feature = \"other\")]\npub use backtrail_other as other;\n",
    ),
    (
        "crates/sample/src/lib.rs",
        "//! A sample.
mod inner;
pub mod open;
#[doc(hidden)]
pub mod internals { pub fn hidden() {} }
#[cfg(test)]
mod tests { pub fn test() {} }

pub use backtrail_wire::Endian;
pub use inner::{Error, Table, read as read_all};

/// Not what `inner` has.
pub(crate) fn own() {}
#[macro_export]
macro_rules! event { ($name:ident, $($field:expr),*) => { () }; ($name:ident) => {}; }
",
    ),
    (
        "crates/sample/src/inner.rs",
        "use std::fmt;
use crate::open::Walk;

#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    Short,
    #[doc(hidden)]
    Hidden,
    Wrong { at: usize },
    System(std::io::Error, u8),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { Ok(()) }
}
impl From<std::io::Error> for Error { fn from(error: std::io::Error) -> Error { Error::Short } }

pub struct Table<'t, T: Read = Bytes> {
    pub bytes: &'t [u8],
    rows: T,
}

trait Private {}
struct Own;
impl Walk for Own { type Item = u8; }
impl Private for Table<'_> {}
impl Walk for Table<'_> { type Item = u8; fn next(&mut self) -> Option<u8> { None } }

impl<'t, T: Read> Table<'t, T> {
    pub const MAGIC: u16 = 0xdee2;
    #[must_use]
    pub const fn look_up(mut self, mut pc: u64) -> Option<&'t [u8; 4]> { None }
    pub(crate) fn private(&self) {}
    #[cfg(feature = \"write\")]
    pub extern \"C\" fn write(&mut self, out: &mut dyn FnMut(&[u8]) -> bool) where T: Send {}
}

pub fn read() -> Result<Table<'static>, Error> { Err(Error::Short) }
pub fn unreachable() {}
",
    ),
    (
        "crates/sample/src/open/mod.rs",
        "pub trait Walk: Send {
    type Item;
    const LAST: bool = false;
    fn next(&mut self) -> Option<Self::Item>;
    fn all(self) -> Vec<Self::Item> where Self: Sized { Vec::new() }
}
#[repr(u8)]
#[derive(Clone)]
pub enum Level { Low = 1, High = 2 }
pub struct Id(pub u32, u8);
pub type Ids = Vec<Id>;
pub static LIMIT: usize = 4;
macro_rules! numbers { ($($t:ident $text:literal),*) => { $(impl Walk for $t {})* } }
numbers!(u8 \"a byte\", u16 \"two\");
pub use super::inner::Error;
",
    ),
    ("crates/wire/src/lib.rs", "pub enum Endian { Little, Big }\n"),
];

const SAMPLE: &str = "// The public items of backtrail-sample. `cargo xtask api --write` writes this file.
in sample: numbers!(u8 _, u16 _)
pub use sample::Endian = backtrail_wire::Endian
#[non_exhaustive] pub enum sample::Error
impl Clone, Copy, Debug, Display, From<std::io::Error>, PartialEq for sample::Error
pub sample::Error::Short
pub sample::Error::System(std::io::Error, u8)
pub sample::Error::Wrong { at: usize }
pub struct sample::Table<'t, T: Read = Bytes> { /* private */ }
impl Walk<Item = u8> for sample::Table
pub const sample::Table<'t, T>::MAGIC: u16
pub sample::Table::bytes: &'t [u8]
pub const fn sample::Table<'t, T>::look_up(self, pc: u64) -> Option<&'t [u8; 4]> where T: Read
#[cfg(feature = \"write\")] pub extern \"C\" fn sample::Table<'t, T>::write(&mut self, out: &mut dyn FnMut(&[u8]) -> bool) where T: Read where T: Send
pub macro sample::event!($name: ident)
pub macro sample::event!($name: ident, $($field: expr), *)
pub mod sample::open
pub use sample::open::Error = sample::Error
pub struct sample::open::Id(pub u32, _)
pub type sample::open::Ids = Vec<Id>
pub static sample::open::LIMIT: usize
#[repr(u8)] pub enum sample::open::Level
impl Clone for sample::open::Level
pub sample::open::Level::High = 2
pub sample::open::Level::Low = 1
pub trait sample::open::Walk: Send
pub type sample::open::Walk::Item
pub const sample::open::Walk::LAST: bool = ..
pub fn sample::open::Walk::all(self) -> Vec<Self::Item> where Self: Sized { .. }
pub fn sample::open::Walk::next(&mut self) -> Option<Self::Item>
pub fn sample::read_all() -> Result<Table<'static>, Error>
";

fn files(from: &str, to: &str) -> Vec<(String, String)> {
    FILES
        .iter()
        .map(|(name, text)| ((*name).to_owned(), text.replace(from, to)))
        .collect()
}

fn listed(files: &[(String, String)]) -> BTreeMap<String, String> {
    lists(&by_name(files)).unwrap()
}

#[test]
fn a_crate_is_listed() {
    let lists = listed(&files("", ""));
    let names: Vec<&str> = lists.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["crates/api/api.txt", "crates/sample/api.txt", "crates/wire/api.txt"]
    );
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&lists["crates/sample/api.txt"]), lines(SAMPLE));
    assert!(lists["crates/api/api.txt"].contains("#[cfg(feature = \"other\")] pub use api::other = backtrail_other\n"));
    assert!(lists["crates/wire/api.txt"].contains("\npub wire::Endian::Big\n"));
}

/// Findings about the sample after a change, with the lists from before it.
fn after(from: &str, to: &str) -> Vec<String> {
    let mut changed = files(from, to);
    changed.extend(listed(&files("", "")));
    findings(&changed)
}

#[test]
fn planted_changes_are_found() {
    assert_eq!(after("", ""), Vec::<String>::new());
    for (from, to, shown) in [
        (
            "mut pc: u64",
            "pc: u32",
            "  - pub const fn sample::Table<'t, T>::look_up(self, pc: u64)",
        ),
        (
            "mut pc: u64",
            "pc: u32",
            "  + pub const fn sample::Table<'t, T>::look_up(self, pc: u32)",
        ),
        ("    Short,\n", "", "  - pub sample::Error::Short"),
        (
            "Wrong { at: usize }",
            "Wrong { pos: usize }",
            "  + pub sample::Error::Wrong { pos: usize }",
        ),
        ("pub bytes:", "pub data:", "  + pub sample::Table::data: &'t [u8]"),
        ("pub bytes:", "bytes:", "  - pub sample::Table::bytes: &'t [u8]"),
        (
            "    rows: T,\n",
            "",
            "  - pub struct sample::Table<'t, T: Read = Bytes> { /* private */ }",
        ),
        ("#[non_exhaustive]\n", "", "  + pub enum sample::Error"),
        ("Clone, Copy, Debug", "Clone, Debug", "  + impl Clone, Debug, Display,"),
        (
            "impl fmt::Display",
            "impl fmt::LowerHex",
            "  + impl Clone, Copy, Debug, From<std::io::Error>, LowerHex",
        ),
        (
            "-> Option<Self::Item>;",
            "-> Option<Self::Item> { None }",
            "  + pub fn sample::open::Walk::next(&mut self)",
        ),
        (
            "feature = \"write\"",
            "feature = \"more\"",
            "  + #[cfg(feature = \"more\")] pub extern",
        ),
        ("High = 2", "High = 3", "  + pub sample::open::Level::High = 3"),
        ("read as read_all", "read", "  - pub fn sample::read_all()"),
        ("u16 \"two\"", "u32 \"two\"", "  + in sample: numbers!(u8 _, u32 _)"),
        ("pub mod open;", "mod open;", "  - pub mod sample::open"),
        ("Little, Big", "Little", "  - pub wire::Endian::Big"),
        (
            "pub use backtrail_wire::Endian;",
            "",
            "crates/wire/api.txt: api does not re-export this crate",
        ),
    ] {
        assert!(FILES.iter().any(|(_, text)| text.contains(from)), "{from}");
        let found = after(from, to).join("\n");
        assert!(found.contains(shown), "{from}: {found}");
        if found.contains("differs") {
            assert!(
                found.contains("cargo xtask api --write") && found.contains("CHANGELOG.md"),
                "{found}"
            );
        }
    }
    assert!(
        after("pub fn read(", "pub fn more() {}\npub fn read(").is_empty(),
        "`inner` is private"
    );
    let added = after("pub type Ids", "pub fn more(id: Id) {}\npub type Ids").join("\n");
    assert!(added.contains("  + pub fn sample::open::more(id: Id)"), "{added}");
}

#[test]
fn what_users_cannot_see_is_not_found() {
    for (from, to) in [
        ("pub fn unreachable() {}", ""),
        ("pub fn hidden() {}", "pub fn other() {}"),
        ("pub fn test() {}", ""),
        ("pub(crate) fn own() {}", ""),
        ("    rows: T,", "    columns: T,"),
        ("pub(crate) fn private(&self) {}", ""),
        ("#[must_use]", ""),
        ("    Hidden,", "    Other,"),
        ("0xdee2", "0xdee3"),
        ("\"a byte\"", "\"one byte\""),
        ("Err(Error::Short)", "todo!()"),
    ] {
        assert!(FILES.iter().any(|(_, text)| text.contains(from)), "{from}");
        assert_eq!(after(from, to), Vec::<String>::new(), "{from}");
    }
}

#[test]
fn a_missing_module_and_wrong_code_are_named() {
    let found = findings(&files("pub mod open;", "pub mod closed;"));
    assert_eq!(found, ["crates/sample/src/closed/mod.rs: no such file"]);
    let found = findings(&files("pub type Ids", "pub type"));
    assert!(found[0].starts_with("crates/sample/src/open/mod.rs: "), "{found:?}");
}

/// Formatting of a long list ends it with a comma.
#[test]
fn formatting_changes_nothing() {
    for (from, to) in [
        ("(mut self, mut pc: u64)", "(\n    mut self,\n    mut pc: u64,\n)"),
        ("System(std::io::Error, u8)", "System(\n std::io::Error,\n u8,\n)"),
        ("impl<'t, T: Read> Table", "impl<\n't,\n T: Read,\n> Table"),
        ("where T: Send {", "where\n    T: Send,\n{"),
        ("where Self: Sized {", "where\n    Self: Sized,\n{"),
    ] {
        assert_eq!(after(from, to), Vec::<String>::new(), "{from}");
    }
}
