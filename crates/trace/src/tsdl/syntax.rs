//! Parses tokens into a syntax tree (CTF 1.8.3, appendix C.2).

use super::cursor::Cursor;
use super::error::{Error, ErrorKind, Position, Result, error};
use super::lexer::{Token, TokenKind};
use super::words::KEYWORDS;
use crate::constants::MAX_NESTING;
use std::rc::Rc;

/// A block, with its definitions and attributes in source order.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) position: Position,
    pub(super) statements: Vec<Statement>,
}

#[derive(Debug)]
pub(super) enum Statement {
    /// `trace { … };`, `event { … };` and so on.
    Block { name: String, block: Block },
    /// `path = value;`
    Attribute {
        path: String,
        position: Position,
        value: Value,
    },
    /// `path := type;`
    Binding {
        path: String,
        position: Position,
        class: Type,
    },
    /// `typealias type := name;` and `typedef type name, other[4];`
    Aliases(Position, Vec<Alias>),
    /// `struct name { … };` and the like.
    Definition(Type),
}

/// A name for a type.
#[derive(Debug)]
pub(super) struct Alias {
    pub(super) position: Position,
    pub(super) name: String,
    pub(super) class: Rc<Type>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Number {
        magnitude: u64,
        negative: bool,
    },
    /// Words separated by dots.
    Path(String),
}

#[derive(Debug)]
pub(super) struct Type {
    pub(super) position: Position,
    pub(super) specifier: Specifier,
}

#[derive(Debug)]
pub(super) enum Specifier {
    /// A name of one or more words, such as `unsigned long`.
    Named(String),
    Integer(Vec<Attribute>),
    Float(Vec<Attribute>),
    String(Vec<Attribute>),
    Struct {
        name: Option<String>,
        body: Option<Vec<Item>>,
        align: Option<u64>,
    },
    Enum {
        name: Option<String>,
        container: Option<Box<Type>>,
        body: Option<Vec<Label>>,
    },
    Variant {
        name: Option<String>,
        tag: Option<Path>,
        body: Option<Vec<Item>>,
    },
    /// The type of a declarator: `type name[length]`.
    Array {
        element: Rc<Type>,
        length: Dimension,
    },
}

#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) position: Position,
    pub(super) value: Value,
}

/// An entry in the body of a struct or variant.
#[derive(Debug)]
pub(super) enum Item {
    Field {
        name: String,
        position: Position,
        class: Rc<Type>,
    },
    Statement(Statement),
}

#[derive(Debug)]
pub(super) struct Label {
    pub(super) name: String,
    pub(super) position: Position,
    pub(super) range: Option<(i128, i128)>,
}

#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) words: Vec<String>,
    pub(super) position: Position,
}

#[derive(Clone, Debug)]
pub(super) enum Dimension {
    Number(u64),
    Path(Path),
}

/// Parses the tokens of statements.
pub(super) fn parse(tokens: &[Token<'_>]) -> Result<Vec<Statement>> {
    let mut parser = Parser {
        at: Cursor::new(tokens, MAX_NESTING),
    };
    let mut statements = Vec::new();
    while parser.at.peek() != &TokenKind::End {
        statements.push(parser.statement()?);
    }
    Ok(statements)
}

struct Parser<'t> {
    at: Cursor<'t>,
}

/// Words of which several form one name.
const C_WORDS: [&str; 11] = [
    "void", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "_Bool", "_Complex",
];

const BLOCKS: [&str; 6] = ["trace", "env", "clock", "stream", "event", "callsite"];

impl Parser<'_> {
    /// A name that is not a keyword.
    fn name(&mut self, what: &'static str) -> Result<String> {
        let position = self.at.position();
        let name = self.at.word(what)?;
        match KEYWORDS.contains(&name.as_str()) {
            true => error(ErrorKind::Expected(what), position),
            false => Ok(name),
        }
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.at.enter()?;
        let result = parse(self);
        self.at.leave();
        result
    }

    fn statement(&mut self) -> Result<Statement> {
        let position = self.at.position();
        let &TokenKind::Word(first) = self.at.peek() else {
            return self.at.expected("a statement");
        };
        if BLOCKS.contains(&first) && *self.at.after() == TokenKind::Mark("{") {
            let name = first.to_owned();
            self.at.advance();
            let block = self.deeper(Self::block)?;
            self.at.expect(";")?;
            return Ok(Statement::Block { name, block });
        }
        match first {
            "typealias" => self.typealias(),
            "typedef" => self.typedef(),
            "struct" | "enum" | "variant" => {
                let class = self.specifier()?;
                // The semicolon after the brace is often forgotten, and nothing else can follow.
                self.at.accept(";");
                Ok(Statement::Definition(class))
            }
            _ => self.assignment(position),
        }
    }

    fn block(&mut self) -> Result<Block> {
        let position = self.at.position();
        self.at.expect("{")?;
        let mut statements = Vec::new();
        while !self.at.accept("}") {
            statements.push(self.statement()?);
        }
        // Most blocks have few: a description may have a million blocks.
        statements.shrink_to_fit();
        Ok(Block { position, statements })
    }

    fn assignment(&mut self, position: Position) -> Result<Statement> {
        let path = self.dotted()?;
        if self.at.accept(":=") {
            let class = self.specifier()?;
            self.at.expect(";")?;
            return Ok(Statement::Binding { path, position, class });
        }
        self.at.expect("=")?;
        let value = self.value()?;
        self.at.expect(";")?;
        Ok(Statement::Attribute { path, position, value })
    }

    fn dotted(&mut self) -> Result<String> {
        let mut path = self.at.word("a name")?;
        while self.at.accept(".") {
            path.push('.');
            path.push_str(&self.at.word("a name")?);
        }
        Ok(path)
    }

    fn value(&mut self) -> Result<Value> {
        match self.at.peek() {
            TokenKind::Text(text) => {
                let text = text.to_string();
                self.at.advance();
                Ok(Value::Text(text))
            }
            TokenKind::Word(_) => Ok(Value::Path(self.dotted()?)),
            _ => {
                let (magnitude, negative) = self.number()?;
                Ok(Value::Number { magnitude, negative })
            }
        }
    }

    fn number(&mut self) -> Result<(u64, bool)> {
        let mut negative = false;
        while self.at.is("-") || self.at.is("+") {
            negative ^= self.at.is("-");
            self.at.advance();
        }
        match *self.at.peek() {
            TokenKind::Number(magnitude) => {
                self.at.advance();
                Ok((magnitude, negative))
            }
            _ => self.at.expected("a value"),
        }
    }

    fn typealias(&mut self) -> Result<Statement> {
        self.at.advance();
        let class = Rc::new(self.specifier()?);
        let class = match self.at.is(":=") {
            true => class,
            false => self.declarator(class, |parser| Ok(parser.at.position()))?.1,
        };
        self.at.expect(":=")?;
        let position = self.at.position();
        let name = self.type_name()?;
        self.at.expect(";")?;
        Ok(Statement::Aliases(position, vec![Alias { position, name, class }]))
    }

    /// The words of an alias's new name.
    fn type_name(&mut self) -> Result<String> {
        let name = self.named()?;
        if self.at.is("*") {
            return error(ErrorKind::Unsupported("pointers"), self.at.position());
        }
        Ok(name)
    }

    fn typedef(&mut self) -> Result<Statement> {
        self.at.advance();
        let class = Rc::new(self.specifier()?);
        let first = self.at.position();
        let mut aliases = Vec::new();
        loop {
            let position = self.at.position();
            let (name, class) = self.declarator(class.clone(), |parser| parser.name("a type's name"))?;
            aliases.push(Alias { position, name, class });
            if !self.at.accept(",") {
                break;
            }
        }
        self.at.expect(";")?;
        Ok(Statement::Aliases(first, aliases))
    }

    /// A name and its dimensions: `name[4][n]` is four times n elements.
    fn declarator<N>(&mut self, class: Rc<Type>, name: impl FnOnce(&mut Self) -> Result<N>) -> Result<(N, Rc<Type>)> {
        if self.at.is("*") {
            return error(ErrorKind::Unsupported("pointers"), self.at.position());
        }
        let name = name(self)?;
        let mut dimensions = Vec::new();
        while self.at.is("[") {
            if dimensions.len() >= MAX_NESTING {
                return error(ErrorKind::TooDeep, self.at.position());
            }
            let position = self.at.position();
            self.at.advance();
            dimensions.push((position, self.dimension()?));
            self.at.expect("]")?;
        }
        if self.at.is(":") {
            return error(ErrorKind::Unsupported("bit fields of C"), self.at.position());
        }
        let class = dimensions.into_iter().rev().fold(class, |element, (position, length)| {
            let specifier = Specifier::Array { element, length };
            Rc::new(Type { position, specifier })
        });
        Ok((name, class))
    }

    fn dimension(&mut self) -> Result<Dimension> {
        if let TokenKind::Word(_) = self.at.peek() {
            return Ok(Dimension::Path(self.path()?));
        }
        let position = self.at.position();
        match self.number()? {
            (number, false) => Ok(Dimension::Number(number)),
            _ => error(ErrorKind::Value("length"), position),
        }
    }

    fn path(&mut self) -> Result<Path> {
        let position = self.at.position();
        let mut words = vec![self.path_word()?];
        while self.at.accept(".") || self.at.accept("->") {
            words.push(self.at.word("a field's name")?);
        }
        Ok(Path { words, position })
    }

    /// Scopes begin with keywords.
    fn path_word(&mut self) -> Result<String> {
        match ["trace", "stream", "event", "env"]
            .iter()
            .any(|scope| self.at.is_word(scope))
        {
            true => self.at.word("a field's name"),
            false => self.name("a field's name"),
        }
    }

    fn specifier(&mut self) -> Result<Type> {
        self.deeper(|parser| {
            let position = parser.at.position();
            while parser.at.is_word("const") {
                parser.at.advance();
            }
            let &TokenKind::Word(first) = parser.at.peek() else {
                return parser.at.expected("a type");
            };
            let specifier = match first {
                "integer" => Specifier::Integer(parser.attributes()?),
                "floating_point" => Specifier::Float(parser.attributes()?),
                "string" => Specifier::String(match parser.at.after() {
                    TokenKind::Mark("{") => parser.attributes()?,
                    _ => {
                        parser.at.advance();
                        Vec::new()
                    }
                }),
                "struct" => parser.structure()?,
                "enum" => parser.enumeration()?,
                "variant" => parser.variant()?,
                _ => Specifier::Named(parser.named()?),
            };
            Ok(Type { position, specifier })
        })
    }

    /// A name: one word, or several of C's words for numbers.
    fn named(&mut self) -> Result<String> {
        if !C_WORDS.iter().any(|word| self.at.is_word(word)) {
            return self.name("a type");
        }
        let mut name = self.at.word("a type")?;
        while let &TokenKind::Word(word) = self.at.peek() {
            if word != "const" && !C_WORDS.contains(&word) {
                break;
            }
            if word != "const" {
                name.push(' ');
                name.push_str(word);
            }
            self.at.advance();
        }
        Ok(name)
    }

    fn attributes(&mut self) -> Result<Vec<Attribute>> {
        self.at.advance();
        self.at.expect("{")?;
        let mut attributes = Vec::new();
        while !self.at.accept("}") {
            let position = self.at.position();
            let name = self.at.word("an attribute")?;
            self.at.expect("=")?;
            let value = self.value()?;
            self.at.expect(";")?;
            attributes.push(Attribute { name, position, value });
        }
        Ok(attributes)
    }

    fn optional_name(&mut self) -> Option<String> {
        let &TokenKind::Word(name) = self.at.peek() else {
            return None;
        };
        let name = name.to_owned();
        self.at.advance();
        Some(name)
    }

    fn structure(&mut self) -> Result<Specifier> {
        self.at.advance();
        let name = match self.at.is_word("align") && *self.at.after() == TokenKind::Mark("(") {
            true => None,
            false => self.optional_name(),
        };
        let body = match self.at.is("{") {
            true => Some(self.body()?),
            false => None,
        };
        if name.is_none() && body.is_none() {
            return self.at.expected("{");
        }
        let mut align = None;
        if self.at.is_word("align") && *self.at.after() == TokenKind::Mark("(") {
            self.at.advance();
            self.at.advance();
            let position = self.at.position();
            align = match self.number()? {
                (number, false) => Some(number),
                _ => return error(ErrorKind::Value("align"), position),
            };
            self.at.expect(")")?;
        }
        Ok(Specifier::Struct { name, body, align })
    }

    fn variant(&mut self) -> Result<Specifier> {
        self.at.advance();
        let name = self.optional_name();
        let mut tag = None;
        if self.at.accept("<") {
            tag = Some(self.path()?);
            self.at.expect(">")?;
        }
        let body = match self.at.is("{") {
            true => Some(self.body()?),
            false => None,
        };
        if name.is_none() && body.is_none() {
            return self.at.expected("{");
        }
        Ok(Specifier::Variant { name, tag, body })
    }

    fn body(&mut self) -> Result<Vec<Item>> {
        self.at.expect("{")?;
        let mut items = Vec::new();
        while !self.at.accept("}") {
            match () {
                () if self.at.is_word("typealias") => items.push(Item::Statement(self.typealias()?)),
                () if self.at.is_word("typedef") => items.push(Item::Statement(self.typedef()?)),
                () => self.fields(&mut items)?,
            }
        }
        Ok(items)
    }

    /// `type name, name[4];`: fields that share a type. There is always a name: a struct that only
    /// defines a type is parsed elsewhere.
    fn fields(&mut self, items: &mut Vec<Item>) -> Result<()> {
        let class = Rc::new(self.specifier()?);
        loop {
            let position = self.at.position();
            let (name, class) = self.declarator(class.clone(), |parser| parser.name("a field's name"))?;
            items.push(Item::Field { name, position, class });
            if !self.at.accept(",") {
                return self.at.expect(";");
            }
        }
    }

    fn enumeration(&mut self) -> Result<Specifier> {
        self.at.advance();
        let name = self.optional_name();
        let container = match self.at.accept(":") {
            true => Some(Box::new(self.specifier()?)),
            false => None,
        };
        let body = match self.at.is("{") {
            true => Some(self.labels()?),
            false => None,
        };
        if name.is_none() && body.is_none() {
            return self.at.expected("{");
        }
        Ok(Specifier::Enum { name, container, body })
    }

    fn labels(&mut self) -> Result<Vec<Label>> {
        self.at.expect("{")?;
        let mut labels = Vec::new();
        while !self.at.accept("}") {
            let position = self.at.position();
            let name = match self.at.peek() {
                TokenKind::Word(name) => (*name).to_owned(),
                TokenKind::Text(name) => name.to_string(),
                _ => return self.at.expected("a label"),
            };
            self.at.advance();
            let mut range = None;
            if self.at.accept("=") {
                let first = self.signed()?;
                let last = if self.at.accept("...") { self.signed()? } else { first };
                range = Some((first, last));
            }
            labels.push(Label { name, position, range });
            if !self.at.is("}") {
                self.at.expect(",")?;
            }
        }
        if labels.is_empty() {
            return self.at.expected("a label");
        }
        Ok(labels)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "64-bit numbers in 128 bits")]
    fn signed(&mut self) -> Result<i128> {
        let (magnitude, negative) = self.number()?;
        let value = i128::from(magnitude);
        Ok(if negative { -value } else { value })
    }
}

impl Value {
    pub(super) fn as_u64(&self, what: &'static str, position: Position) -> Result<u64> {
        match *self {
            Value::Number {
                magnitude,
                negative: false,
            } => Ok(magnitude),
            _ => error(ErrorKind::Value(what), position),
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "64-bit numbers in 128 bits")]
    pub(super) fn as_i128(&self, what: &'static str, position: Position) -> Result<i128> {
        match *self {
            Value::Number { magnitude, negative } => {
                let value = i128::from(magnitude);
                Ok(if negative { -value } else { value })
            }
            _ => error(ErrorKind::Value(what), position),
        }
    }

    pub(super) fn as_i64(&self, what: &'static str, position: Position) -> Result<i64> {
        i64::try_from(self.as_i128(what, position)?).map_err(|_| Error {
            kind: ErrorKind::Value(what),
            position,
        })
    }

    pub(super) fn as_text(&self, what: &'static str, position: Position) -> Result<&str> {
        match self {
            Value::Text(text) => Ok(text),
            _ => error(ErrorKind::Value(what), position),
        }
    }

    /// A word, possibly in quotes.
    pub(super) fn as_word(&self, what: &'static str, position: Position) -> Result<&str> {
        match self {
            Value::Path(word) | Value::Text(word) => Ok(word),
            Value::Number { .. } => error(ErrorKind::Value(what), position),
        }
    }

    pub(super) fn as_bool(&self, what: &'static str, position: Position) -> Result<bool> {
        match self {
            Value::Path(word) => match word.as_str() {
                "true" | "TRUE" => Ok(true),
                "false" | "FALSE" => Ok(false),
                _ => error(ErrorKind::Value(what), position),
            },
            Value::Number { magnitude: 0, .. } => Ok(false),
            Value::Number {
                magnitude: 1,
                negative: false,
            } => Ok(true),
            _ => error(ErrorKind::Value(what), position),
        }
    }
}
