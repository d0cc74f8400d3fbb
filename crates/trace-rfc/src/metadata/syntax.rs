//! Tokens to a tree: blocks, attributes and values, whatever they mean.
//!
//! Semicolons after blocks and commas between elements come and go in the RFC's own examples, so
//! both are optional.

use backtrail_trace::constants::MAX_NESTING;
use backtrail_trace::tsdl::{Cursor, ErrorKind, Position, Result, Token, TokenKind, error};

/// The text between two braces.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) position: Position,
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(super) enum Entry {
    /// `kind { … }` or `kind name { … }`
    Block {
        kind: String,
        name: Option<String>,
        block: Block,
    },
    /// `name = value;`, also with a dot before the name, as in RFC 4.1.8.
    Attribute(Attribute),
}

#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) position: Position,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Number(i128),
    Text(String),
    Name(String),
    /// `type { … }`
    Type(Block),
    /// `{ value, value }`
    List(Vec<(Position, Value)>),
}

/// A field's type takes three levels: the list of fields, the field, the nameless type.
const MAX_DEPTH: usize = 3 * MAX_NESTING;

pub(super) fn parse(tokens: &[Token<'_>]) -> Result<Vec<Entry>> {
    let mut parser = Parser {
        at: Cursor::new(tokens, MAX_DEPTH),
    };
    let mut entries = Vec::new();
    while *parser.at.peek() != TokenKind::End {
        if !parser.at.accept(";") {
            entries.push(parser.entry()?);
        }
    }
    Ok(entries)
}

struct Parser<'t> {
    at: Cursor<'t>,
}

impl Parser<'_> {
    fn entry(&mut self) -> Result<Entry> {
        self.at.accept(".");
        let position = self.at.position();
        let first = self.at.word("a block or an attribute")?;
        if self.at.accept("=") {
            let value = self.value()?;
            let braces = matches!(value, Value::Type(_) | Value::List(_));
            if !self.at.accept(";") && !braces {
                return self.at.expected(";");
            }
            return Ok(Entry::Attribute(Attribute {
                name: first,
                position,
                value,
            }));
        }
        let name = match self.at.is("{") {
            true => None,
            false => Some(self.at.word("=")?),
        };
        let block = self.block()?;
        self.at.accept(";");
        Ok(Entry::Block {
            kind: first,
            name,
            block,
        })
    }

    fn block(&mut self) -> Result<Block> {
        let position = self.at.position();
        self.at.expect("{")?;
        self.deeper(|parser| {
            let mut entries = Vec::new();
            while !parser.at.accept("}") {
                if !parser.at.accept(";") {
                    entries.push(parser.entry()?);
                }
            }
            Ok(Block { position, entries })
        })
    }

    fn value(&mut self) -> Result<Value> {
        match self.at.peek().clone() {
            TokenKind::Text(text) => {
                self.at.advance();
                Ok(Value::Text(text.into_string()))
            }
            TokenKind::Word(word) => {
                self.at.advance();
                if word == "type" && self.at.is("{") {
                    return Ok(Value::Type(self.block()?));
                }
                self.rest_of_name(word.to_owned())
            }
            TokenKind::Mark("{") => self.list(),
            _ => self.number(),
        }
    }

    /// Names of events may have dots.
    fn rest_of_name(&mut self, first: String) -> Result<Value> {
        let mut name = first;
        while self.at.accept(".") {
            name.push('.');
            name.push_str(&self.at.word("a name")?);
        }
        Ok(Value::Name(name))
    }

    fn number(&mut self) -> Result<Value> {
        let negative = self.at.accept("-");
        let TokenKind::Number(magnitude) = *self.at.peek() else {
            return self.at.expected("a value");
        };
        self.at.advance();
        let value = i128::from(magnitude);
        Ok(Value::Number(if negative { -value } else { value }))
    }

    fn list(&mut self) -> Result<Value> {
        self.at.expect("{")?;
        self.deeper(|parser| {
            let mut elements = Vec::new();
            while !parser.at.accept("}") {
                let position = parser.at.position();
                elements.push((position, parser.value()?));
                parser.at.accept(",");
            }
            Ok(Value::List(elements))
        })
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.at.enter()?;
        let result = parse(self);
        self.at.leave();
        result
    }
}

impl Attribute {
    fn wrong<T>(&self, what: &'static str) -> Result<T> {
        error(ErrorKind::Value(what), self.position)
    }

    pub(super) fn as_u64(&self, what: &'static str) -> Result<u64> {
        match self.value {
            Value::Number(value) => u64::try_from(value).or_else(|_| self.wrong(what)),
            _ => self.wrong(what),
        }
    }

    pub(super) fn as_u32(&self, what: &'static str) -> Result<u32> {
        u32::try_from(self.as_u64(what)?).or_else(|_| self.wrong(what))
    }

    /// A name, also in quotes.
    pub(super) fn as_name(&self, what: &'static str) -> Result<&str> {
        match &self.value {
            Value::Name(name) | Value::Text(name) => Ok(name),
            _ => self.wrong(what),
        }
    }

    pub(super) fn as_bool(&self, what: &'static str) -> Result<bool> {
        match &self.value {
            Value::Name(name) if matches!(name.as_str(), "true" | "TRUE") => Ok(true),
            Value::Name(name) if matches!(name.as_str(), "false" | "FALSE") => Ok(false),
            Value::Number(1) => Ok(true),
            Value::Number(0) => Ok(false),
            _ => self.wrong(what),
        }
    }

    pub(super) fn as_list(&self, what: &'static str) -> Result<&[(Position, Value)]> {
        match &self.value {
            Value::List(elements) => Ok(elements),
            _ => self.wrong(what),
        }
    }
}
