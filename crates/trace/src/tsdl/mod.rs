//! TSDL, the metadata language of CTF 1.8 (CTF 1.8.3, section 7 and appendix C).
//!
//! Reading has these passes in order: `lexer` makes tokens, `syntax` a syntax tree, `blocks` with
//! `types` resolves attributes and the names of types in their scopes, `link` resolves the targets
//! of lengths and tags and assigns the roles of reserved names. Each pass stops at its first error.

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
