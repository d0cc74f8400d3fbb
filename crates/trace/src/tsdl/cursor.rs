//! A position among tokens, for the parsers of both dialects with textual metadata.

use super::error::{ErrorKind, Position, Result, error};
use super::lexer::{Token, TokenKind};

/// A position among tokens.
#[derive(Debug)]
pub struct Cursor<'t> {
    /// The last one is the end, which is never consumed.
    tokens: &'t [Token<'t>],
    next: usize,
    depth: usize,
    /// The allowed nesting depth.
    max_depth: usize,
}

impl<'t> Cursor<'t> {
    /// Starts before the first token. [`Cursor::enter`] may nest `max_depth` deep.
    pub fn new(tokens: &'t [Token<'t>], max_depth: usize) -> Self {
        Cursor {
            tokens,
            next: 0,
            depth: 0,
            max_depth,
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the last token is the end, so that there is always one"
    )]
    fn token(&self, ahead: usize) -> &'t Token<'t> {
        &self.tokens[(self.next + ahead).min(self.tokens.len() - 1)]
    }

    /// The next token.
    pub fn peek(&self) -> &'t TokenKind<'t> {
        &self.token(0).kind
    }

    /// The token after the next one.
    pub fn after(&self) -> &'t TokenKind<'t> {
        &self.token(1).kind
    }

    /// Place of the next token.
    pub fn position(&self) -> Position {
        self.token(0).position
    }

    /// Skips the next token.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the last token is the end, so that there is always one"
    )]
    pub fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    /// Whether this operator or bracket is next.
    pub fn is(&self, mark: &str) -> bool {
        matches!(self.peek(), TokenKind::Mark(found) if *found == mark)
    }

    /// Whether this word is next.
    pub fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), TokenKind::Word(found) if *found == word)
    }

    /// Skips this operator or bracket if it is next; returns whether it was.
    pub fn accept(&mut self, mark: &str) -> bool {
        let found = self.is(mark);
        if found {
            self.advance();
        }
        found
    }

    /// Skips this operator or bracket.
    ///
    /// # Errors
    ///
    /// Another token is next.
    pub fn expect(&mut self, mark: &'static str) -> Result<()> {
        match self.accept(mark) {
            true => Ok(()),
            false => self.expected(mark),
        }
    }

    /// The error of another token than `what`.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn expected<T>(&self, what: &'static str) -> Result<T> {
        error(ErrorKind::Expected(what), self.position())
    }

    /// Takes a word.
    ///
    /// # Errors
    ///
    /// Another token than `what` is next.
    pub fn word(&mut self, what: &'static str) -> Result<String> {
        let &TokenKind::Word(word) = self.peek() else {
            return self.expected(what);
        };
        self.advance();
        Ok(word.to_owned())
    }

    /// Enters a deeper level, until [`Cursor::leave`].
    ///
    /// # Errors
    ///
    /// The level is too deep.
    #[expect(clippy::arithmetic_side_effects, reason = "the depth is compared with its limit")]
    pub fn enter(&mut self) -> Result<()> {
        if self.depth >= self.max_depth {
            return error(ErrorKind::TooDeep, self.position());
        }
        self.depth += 1;
        Ok(())
    }

    /// Leaves the level that [`Cursor::enter`] entered.
    #[expect(clippy::arithmetic_side_effects, reason = "the depth is compared with its limit")]
    pub fn leave(&mut self) {
        self.depth -= 1;
    }
}
