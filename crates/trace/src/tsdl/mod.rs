//! TSDL, the metadata language of CTF 1.8 (CTF 1.8.3, section 7 and appendix C).
//!
//! Reading goes through small passes in this order: `lexer` makes tokens, `syntax` a tree of what
//! was written, `blocks` with `types` looks up attributes and the names of types in their scopes,
//! `link` gives lengths and tags their targets and reserved names their roles. Each pass stops at
//! its first error.

mod blocks;
mod cursor;
mod error;
mod labels;
mod lexer;
mod link;
mod parse;
mod reserved;
mod syntax;
mod types;
mod words;
mod write;

pub use cursor::Cursor;
pub use error::{Error, ErrorKind, Position, Result, error};
pub use lexer::{Token, TokenKind, tokens};
pub use parse::parse;
pub use words::{is_identifier, order_name, quoted};
pub use write::{WriteError, WriteErrorKind, write};
