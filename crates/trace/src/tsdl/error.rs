//! Errors in textual metadata.

/// Line and column, both from 1. The column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// An error in metadata, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Its place.
    pub position: Position,
}

/// Errors in metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A character that does not start any token.
    Character(char),
    /// A comment, string or character constant does not end.
    Unterminated,
    /// An escape sequence of C that does not exist.
    Escape,
    /// A number that is malformed or needs more than 64 bits.
    Number,
    /// Something else was expected.
    Expected(&'static str),
    /// Blocks or types nest too deeply.
    TooDeep,
    /// A part of the language that this reader does not support.
    Unsupported(&'static str),
    /// No type has this name here.
    UnknownType,
    /// A type with this name exists already in this scope.
    DuplicateType,
    /// An attribute or field of this name exists already.
    Duplicate,
    /// An attribute is missing in the block that begins here.
    Missing(&'static str),
    /// An attribute has a value of the wrong kind or out of range.
    Value(&'static str),
    /// The length or tag refers to no earlier integer or enumeration.
    UnknownReference,
    /// There is no clock with this name.
    UnknownClock,
    /// There is no stream class with this id.
    UnknownStream(u64),
    /// Types that use each other describe too many fields for the length of the text.
    TooLarge,
    /// A variant has no tag.
    NoTag,
    /// The root of a scope must be a struct.
    NotAStruct,
    /// A field cannot have an abstract type (RFC 4.1.1).
    Abstract,
    /// There is no section with this name.
    UnknownSection,
    /// A field with this reserved name does not have the class, or is not at the place, that the
    /// name requires.
    Reserved(&'static str),
    /// No option of the variant has the name of a label of its tag.
    NoLabel,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: ", self.position.line, self.position.column)?;
        match self.kind {
            ErrorKind::Character(character) => write!(f, "unexpected character {character:?}"),
            ErrorKind::Unterminated => write!(f, "unterminated comment or text"),
            ErrorKind::Escape => write!(f, "unknown escape sequence"),
            ErrorKind::Number => write!(f, "malformed number"),
            ErrorKind::Expected(what) => write!(f, "expected {what}"),
            ErrorKind::TooDeep => write!(f, "nested too deeply"),
            ErrorKind::Unsupported(what) => write!(f, "{what} are not supported"),
            ErrorKind::UnknownType => write!(f, "unknown type"),
            ErrorKind::DuplicateType => write!(f, "type is defined twice"),
            ErrorKind::Duplicate => write!(f, "name is used twice"),
            ErrorKind::Missing(what) => write!(f, "{what} is missing"),
            ErrorKind::Value(what) => write!(f, "wrong value for {what}"),
            ErrorKind::UnknownReference => write!(f, "no integer of this name before this field"),
            ErrorKind::UnknownClock => write!(f, "unknown clock"),
            ErrorKind::UnknownStream(id) => write!(f, "no stream has the id {id}"),
            ErrorKind::TooLarge => write!(f, "types describe too many fields"),
            ErrorKind::NoTag => write!(f, "variant has no tag"),
            ErrorKind::NotAStruct => write!(f, "expected a struct"),
            ErrorKind::Abstract => write!(f, "abstract type where a concrete one is needed"),
            ErrorKind::UnknownSection => write!(f, "unknown section"),
            ErrorKind::Reserved(name) => write!(f, "field with the reserved name {name} is not what it must be"),
            ErrorKind::NoLabel => write!(f, "no option of the variant has the name of a label of its tag"),
        }
    }
}

impl std::error::Error for Error {}

/// The result of reading metadata.
pub type Result<T> = std::result::Result<T, Error>;

/// An error at a place.
///
/// # Errors
///
/// Always.
pub fn error<T>(kind: ErrorKind, position: Position) -> Result<T> {
    Err(Error { kind, position })
}
