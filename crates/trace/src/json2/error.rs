//! Errors in CTF 2 metadata.

/// Metadata that cannot be read: the error, and its fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Number of the fragment, from 1.
    pub fragment: u32,
    /// Line of the metadata, from 1: the place of a syntax error, else the start of the fragment.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

/// Errors in a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text does not begin with a record separator.
    NoSeparator,
    /// The fragment is not JSON.
    Syntax,
    /// The fragment, or part of it, is not an object.
    NotAnObject,
    /// A property is missing.
    Missing(&'static str),
    /// A property has a value of the wrong type or out of range.
    Value(&'static str),
    /// An object has an unknown property, next to this one.
    UnknownProperty(&'static str),
    /// The first fragment is not the preamble, or another one is.
    Preamble,
    /// A fragment that may occur once is repeated, or an id or name is used twice.
    Duplicate(&'static str),
    /// A fragment or field class of unknown type.
    UnknownType,
    /// A part of the specification that this reader does not support.
    Unsupported(&'static str),
    /// An extension that readers must understand.
    Extension,
    /// There is no earlier alias with this name.
    UnknownAlias,
    /// There is no clock class with this id.
    UnknownClock,
    /// There is no data stream class with this id.
    UnknownStream(u64),
    /// A field location does not lead to an earlier field.
    Location,
    /// There is no data stream class.
    NoStream,
    /// Field classes nest too deeply.
    TooDeep,
    /// Aliases that use each other describe too many fields for the length of the text.
    TooLarge,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: fragment {}: ", self.line, self.column, self.fragment)?;
        match self.kind {
            ErrorKind::NoSeparator => write!(f, "no record separator"),
            ErrorKind::Syntax => write!(f, "malformed JSON"),
            ErrorKind::NotAnObject => write!(f, "expected an object"),
            ErrorKind::Missing(name) => write!(f, "property `{name}` is missing"),
            ErrorKind::Value(name) => write!(f, "wrong value of property `{name}`"),
            ErrorKind::UnknownProperty(kind) => write!(f, "unknown property in {kind}"),
            ErrorKind::Preamble => write!(f, "the preamble must be the first fragment, and only that"),
            ErrorKind::Duplicate(what) => write!(f, "{what} twice"),
            ErrorKind::UnknownType => write!(f, "unknown type"),
            ErrorKind::Unsupported(what) => write!(f, "{what} are not supported"),
            ErrorKind::Extension => write!(f, "unknown extension"),
            ErrorKind::UnknownAlias => write!(f, "unknown field class alias"),
            ErrorKind::UnknownClock => write!(f, "unknown clock class"),
            ErrorKind::UnknownStream(id) => write!(f, "no data stream class has the id {id}"),
            ErrorKind::Location => write!(f, "field location leads to no field before it"),
            ErrorKind::NoStream => write!(f, "no data stream class"),
            ErrorKind::TooDeep => write!(f, "nested too deeply"),
            ErrorKind::TooLarge => write!(f, "aliases describe too many fields"),
        }
    }
}

impl std::error::Error for Error {}

pub(crate) type Result<T> = std::result::Result<T, ErrorKind>;
