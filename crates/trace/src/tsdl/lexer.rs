//! Splits text into tokens (CTF 1.8.3, appendix C.1).

use super::error::{ErrorKind, Position, Result, error};

/// A token and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Token<'t> {
    /// Its kind.
    pub kind: TokenKind<'t>,
    /// Its start.
    pub position: Position,
}

/// The kind of a token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TokenKind<'t> {
    /// A name or keyword.
    Word(&'t str),
    /// A number without its sign.
    Number(u64),
    /// A text with its escapes decoded, or a character constant.
    Text(Box<str>),
    /// An operator or bracket.
    Mark(&'static str),
    /// The end of the text.
    End,
}

/// Longer marks come before their prefixes.
const MARKS: [&str; 19] = [
    "...", ":=", "->", "{", "}", "[", "]", "(", ")", "<", ">", ";", ":", ",", "=", ".", "+", "-", "*",
];

struct Lexer<'t> {
    rest: &'t str,
    position: Position,
}

/// The tokens of a text; the last is [`TokenKind::End`].
///
/// # Errors
///
/// A character that does not start any token, or a token that does not end.
pub fn tokens(text: &str) -> Result<Vec<Token<'_>>> {
    let mut lexer = Lexer::new(text);
    let mut tokens = Vec::new();
    loop {
        let token = lexer.next_token()?;
        let end = token.kind == TokenKind::End;
        tokens.push(token);
        if end {
            return Ok(tokens);
        }
    }
}

/// The tokens of each outermost statement of a text, with its semicolon and a [`TokenKind::End`].
/// There may be hundreds of thousands of statements, whose tokens take many times the memory of the
/// text.
pub(super) fn statements(text: &str) -> impl Iterator<Item = Result<Vec<Token<'_>>>> {
    let mut lexer = Lexer::new(text);
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let statement = lexer.statement();
        is_over = match &statement {
            Ok((_, is_last)) => *is_last,
            Err(_) => true,
        };
        let tokens = statement.map(|(tokens, _)| tokens);
        // Only the end is left.
        Some(tokens).filter(|tokens| tokens.as_ref().map_or(true, |tokens| tokens.len() > 1))
    })
}

impl<'t> Lexer<'t> {
    fn new(text: &'t str) -> Lexer<'t> {
        Lexer {
            rest: text,
            position: Position { line: 1, column: 1 },
        }
    }

    /// The tokens of the next statement, and whether no more follow.
    fn statement(&mut self) -> Result<(Vec<Token<'t>>, bool)> {
        let (mut tokens, mut depth) = (Vec::new(), 0_u32);
        loop {
            let token = self.next_token()?;
            let (mut is_over, mut is_last) = (false, false);
            match token.kind {
                TokenKind::Mark("{") => depth = depth.saturating_add(1),
                TokenKind::Mark("}") => depth = depth.saturating_sub(1),
                TokenKind::Mark(";") => is_over = depth == 0,
                TokenKind::End => is_last = true,
                _ => {}
            }
            tokens.push(token);
            if is_last {
                return Ok((tokens, true));
            }
            if is_over {
                tokens.push(Token {
                    kind: TokenKind::End,
                    position: self.position,
                });
                return Ok((tokens, false));
            }
        }
    }

    fn next_token(&mut self) -> Result<Token<'t>> {
        self.skip_space()?;
        let position = self.position;
        let kind = self.token()?;
        Ok(Token { kind, position })
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.rest = &self.rest[character.len_utf8()..];
        if character == '\n' {
            self.position.line = self.position.line.saturating_add(1);
            self.position.column = 1;
        } else {
            self.position.column = self.position.column.saturating_add(1);
        }
        Some(character)
    }

    fn skip(&mut self, characters: usize) {
        for _ in 0..characters {
            self.next();
        }
    }

    fn skip_space(&mut self) -> Result<()> {
        loop {
            if self.rest.starts_with("/*") {
                let position = self.position;
                self.skip(2);
                while !self.rest.starts_with("*/") {
                    if self.next().is_none() {
                        return error(ErrorKind::Unterminated, position);
                    }
                }
                self.skip(2);
            } else if self.rest.starts_with("//") {
                while self.peek().is_some_and(|character| character != '\n') {
                    self.next();
                }
            } else if self.peek().is_some_and(char::is_whitespace) {
                self.next();
            } else {
                return Ok(());
            }
        }
    }

    fn token(&mut self) -> Result<TokenKind<'t>> {
        let position = self.position;
        match self.peek() {
            None => Ok(TokenKind::End),
            // C's wide texts and characters.
            Some('L') if self.rest[1..].starts_with(['"', '\'']) => {
                self.next();
                self.token()
            }
            Some('"') => self.text('"'),
            Some('\'') => self.text('\''),
            Some('0'..='9') => self.number(),
            Some(first) if first == '_' || first.is_ascii_alphabetic() => Ok(TokenKind::Word(self.take_word())),
            Some(other) => {
                let Some(mark) = MARKS.into_iter().find(|mark| self.rest.starts_with(mark)) else {
                    return error(ErrorKind::Character(other), position);
                };
                self.skip(mark.len());
                Ok(TokenKind::Mark(mark))
            }
        }
    }

    fn take_word(&mut self) -> &'t str {
        let end = self
            .rest
            .find(|character: char| character != '_' && !character.is_ascii_alphanumeric())
            .unwrap_or(self.rest.len());
        let word = &self.rest[..end];
        self.rest = &self.rest[end..];
        self.position.column = self.position.column.saturating_add(end as u32);
        word
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`digits` is a part of `word`")]
    fn number(&mut self) -> Result<TokenKind<'t>> {
        let position = self.position;
        let word = self.take_word();
        let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
        let parsed = if let Some(digits) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            u64::from_str_radix(digits, 16)
        } else if let Some(digits) = digits.strip_prefix("0b").or(digits.strip_prefix("0B")) {
            u64::from_str_radix(digits, 2)
        } else if digits.len() > 1 && digits.starts_with('0') {
            u64::from_str_radix(digits, 8)
        } else {
            digits.parse()
        };
        match parsed {
            Ok(value) if word.len() - digits.len() <= 3 => Ok(TokenKind::Number(value)),
            _ => error(ErrorKind::Number, position),
        }
    }

    fn text(&mut self, quote: char) -> Result<TokenKind<'t>> {
        let begin = self.position;
        self.next();
        let mut text = Vec::new();
        loop {
            match self.next() {
                None => return error(ErrorKind::Unterminated, begin),
                Some('\\') => self.escape(&mut text)?,
                Some(character) if character == quote => break,
                Some(character) => text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        // As in C, text ends at a zero.
        if let Some(end) = text.iter().position(|&byte| byte == 0) {
            text.truncate(end);
        }
        match String::from_utf8(text) {
            Ok(text) => Ok(TokenKind::Text(text.into_boxed_str())),
            Err(_) => error(ErrorKind::Escape, begin),
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`digit` is from 0 to 7")]
    fn escape(&mut self, text: &mut Vec<u8>) -> Result<()> {
        let position = self.position;
        let byte = match self.next() {
            Some('n') => b'\n',
            Some('t') => b'\t',
            Some('r') => b'\r',
            Some('a') => 7,
            Some('b') => 8,
            Some('f') => 12,
            Some('v') => 11,
            Some(plain @ ('\\' | '\'' | '"' | '?')) => plain as u8,
            Some('x') => return self.digits(16, 3, 0, position, text),
            Some(digit @ '0'..='7') => return self.digits(8, 2, digit as u32 - '0' as u32, position, text),
            _ => return error(ErrorKind::Escape, position),
        };
        text.push(byte);
        Ok(())
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a few digits, whose value is compared with a byte"
    )]
    fn digits(&mut self, radix: u32, most: u32, first: u32, position: Position, text: &mut Vec<u8>) -> Result<()> {
        let mut value = first;
        let mut count = 0;
        while count < most
            && let Some(digit) = self.peek().and_then(|character| character.to_digit(radix))
            && (radix == 8 || value * radix + digit <= 0xff)
        {
            value = value * radix + digit;
            self.next();
            count += 1;
        }
        if radix == 16 && count == 0 || value > 0xff {
            return error(ErrorKind::Escape, position);
        }
        text.push(value as u8);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind<'_>> {
        tokens(text).unwrap().into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn words_numbers_and_marks() {
        use TokenKind::{End, Mark, Number, Text, Word};
        assert_eq!(
            kinds("a := 0x1f /* b */ 017 ... -9ULL; // c\n\"x\\n\\\"\\x41\\101\""),
            [
                Word("a"),
                Mark(":="),
                Number(31),
                Number(15),
                Mark("..."),
                Mark("-"),
                Number(9),
                Mark(";"),
                Text("x\n\"AA".into()),
                End
            ]
        );
    }

    #[test]
    fn statements_end_at_outer_semicolons() {
        let lens = |text| {
            statements(text)
                .map(|tokens| tokens.map(|tokens| tokens.len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(lens("a { b; c; }; d; /* e */"), [Ok(9), Ok(3)]);
        assert_eq!(lens("a; }; b"), [Ok(3), Ok(3), Ok(2)]);
        assert_eq!(lens(""), []);
        assert_eq!(lens("a { b;"), [Ok(5)]);
        let error = tokens("a;\n$").unwrap_err();
        assert_eq!(lens("a;\n$"), [Ok(3), Err(error)]);
    }

    #[test]
    fn errors_say_where() {
        for (text, line, column) in [
            ("a\n  $", 2, 3),
            ("/* x", 1, 1),
            (" \"x\ny", 1, 2),
            ("18446744073709551616", 1, 1),
            ("\"\\q\"", 1, 3),
            ("08", 1, 1),
        ] {
            let error = tokens(text).unwrap_err();
            assert_eq!(error.position, Position { line, column }, "{text}");
        }
    }
}
