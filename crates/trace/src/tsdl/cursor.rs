//! A place among tokens, which both dialects that are written as text are parsed with.

use super::lexer::{Token, TokenKind};
use super::{ErrorKind, Position, Result, error};

#[derive(Debug)]
pub(crate) struct Cursor<'t> {
    /// The last one is the end, which is never consumed.
    tokens: &'t [Token],
    next: usize,
    depth: usize,
    /// How deep what is nested may be.
    max_depth: usize,
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(tokens: &'t [Token], max_depth: usize) -> Self {
        Cursor {
            tokens,
            next: 0,
            depth: 0,
            max_depth,
        }
    }

    fn token(&self, ahead: usize) -> &'t Token {
        &self.tokens[(self.next + ahead).min(self.tokens.len() - 1)]
    }

    pub(crate) fn peek(&self) -> &'t TokenKind {
        &self.token(0).kind
    }

    /// The token behind the next one.
    pub(crate) fn after(&self) -> &'t TokenKind {
        &self.token(1).kind
    }

    pub(crate) fn position(&self) -> Position {
        self.token(0).position
    }

    pub(crate) fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    pub(crate) fn is(&self, mark: &str) -> bool {
        matches!(self.peek(), TokenKind::Mark(found) if *found == mark)
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), TokenKind::Word(found) if found == word)
    }

    pub(crate) fn accept(&mut self, mark: &str) -> bool {
        let found = self.is(mark);
        if found {
            self.advance();
        }
        found
    }

    pub(crate) fn expect(&mut self, mark: &'static str) -> Result<()> {
        match self.accept(mark) {
            true => Ok(()),
            false => self.expected(mark),
        }
    }

    pub(crate) fn expected<T>(&self, what: &'static str) -> Result<T> {
        error(ErrorKind::Expected(what), self.position())
    }

    pub(crate) fn word(&mut self, what: &'static str) -> Result<String> {
        let TokenKind::Word(word) = self.peek() else {
            return self.expected(what);
        };
        self.advance();
        Ok(word.clone())
    }

    /// Goes a level deeper, until [`Cursor::leave`].
    pub(crate) fn enter(&mut self) -> Result<()> {
        if self.depth >= self.max_depth {
            return error(ErrorKind::TooDeep, self.position());
        }
        self.depth += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }
}
