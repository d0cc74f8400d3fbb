//! Tokens to a tree of what was written (CTF 1.8.3, appendix C.2).

use super::lexer::{Token, TokenKind};
use super::{Error, ErrorKind, KEYWORDS, Position, Result, error};
use crate::constants::MAX_NESTING;

/// A block, its definitions and attributes in the order in which they stand.
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
    /// `typealias type := name;` and `typedef type name;`
    Alias {
        position: Position,
        name: String,
        class: Type,
    },
    /// `struct name { … };` and the like.
    Definition(Type),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Number {
        magnitude: u64,
        negative: bool,
    },
    /// Words with dots between them.
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
    /// Made by a declarator: `type name[length]`.
    Array {
        element: Box<Type>,
        length: Dimension,
    },
}

#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) position: Position,
    pub(super) value: Value,
}

/// What stands in the body of a struct or variant.
#[derive(Debug)]
pub(super) enum Item {
    Field {
        name: String,
        position: Position,
        class: Type,
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

pub(super) fn parse(tokens: &[Token]) -> Result<Block> {
    let mut parser = Parser {
        tokens,
        next: 0,
        depth: 0,
    };
    let mut statements = Vec::new();
    while parser.peek() != &TokenKind::End {
        if !parser.accept(";") {
            statements.push(parser.statement()?);
        }
    }
    Ok(Block {
        position: Position { line: 1, column: 1 },
        statements,
    })
}

struct Parser<'t> {
    tokens: &'t [Token],
    next: usize,
    depth: usize,
}

/// Of these several make one name.
const C_WORDS: [&str; 11] = [
    "void", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "_Bool", "_Complex",
];

const BLOCKS: [&str; 6] = ["trace", "env", "clock", "stream", "event", "callsite"];

impl Parser<'_> {
    fn token(&self) -> &Token {
        // The last token is the end, which is never consumed.
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn peek(&self) -> &TokenKind {
        &self.token().kind
    }

    fn after(&self) -> &TokenKind {
        &self.tokens[(self.next + 1).min(self.tokens.len() - 1)].kind
    }

    fn position(&self) -> Position {
        self.token().position
    }

    fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    fn is(&self, mark: &str) -> bool {
        matches!(self.peek(), TokenKind::Mark(found) if *found == mark)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), TokenKind::Word(found) if found == word)
    }

    fn accept(&mut self, mark: &str) -> bool {
        let found = self.is(mark);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, mark: &'static str) -> Result<()> {
        match self.accept(mark) {
            true => Ok(()),
            false => self.expected(mark),
        }
    }

    fn expected<T>(&self, what: &'static str) -> Result<T> {
        error(ErrorKind::Expected(what), self.position())
    }

    fn word(&mut self, what: &'static str) -> Result<String> {
        let TokenKind::Word(word) = self.peek() else {
            return self.expected(what);
        };
        let word = word.clone();
        self.advance();
        Ok(word)
    }

    /// A name that is no keyword.
    fn name(&mut self, what: &'static str) -> Result<String> {
        let position = self.position();
        let name = self.word(what)?;
        match KEYWORDS.contains(&name.as_str()) {
            true => error(ErrorKind::Expected(what), position),
            false => Ok(name),
        }
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_NESTING {
            return error(ErrorKind::TooDeep, self.position());
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn statement(&mut self) -> Result<Statement> {
        let position = self.position();
        let TokenKind::Word(first) = self.peek() else {
            return self.expected("a statement");
        };
        if BLOCKS.contains(&first.as_str()) && *self.after() == TokenKind::Mark("{") {
            let name = first.clone();
            self.advance();
            let block = self.deeper(Self::block)?;
            self.expect(";")?;
            return Ok(Statement::Block { name, block });
        }
        match first.as_str() {
            "typealias" => self.typealias(),
            "typedef" => self.typedef(),
            "struct" | "enum" | "variant" => {
                let class = self.specifier()?;
                // The semicolon is often forgotten after the bracket, and nothing else can follow.
                self.accept(";");
                Ok(Statement::Definition(class))
            }
            _ => self.assignment(position),
        }
    }

    fn block(&mut self) -> Result<Block> {
        let position = self.position();
        self.expect("{")?;
        let mut statements = Vec::new();
        while !self.accept("}") {
            if !self.accept(";") {
                statements.push(self.statement()?);
            }
        }
        Ok(Block { position, statements })
    }

    fn assignment(&mut self, position: Position) -> Result<Statement> {
        let path = self.dotted()?;
        if self.accept(":=") {
            let class = self.specifier()?;
            self.expect(";")?;
            return Ok(Statement::Binding { path, position, class });
        }
        self.expect("=")?;
        let value = self.value()?;
        self.expect(";")?;
        Ok(Statement::Attribute { path, position, value })
    }

    fn dotted(&mut self) -> Result<String> {
        let mut path = self.word("a name")?;
        while self.accept(".") {
            path.push('.');
            path.push_str(&self.word("a name")?);
        }
        Ok(path)
    }

    fn value(&mut self) -> Result<Value> {
        match self.peek() {
            TokenKind::Text(text) => {
                let mut text = text.clone();
                self.advance();
                // As in C, texts that follow each other are one.
                while let TokenKind::Text(more) = self.peek() {
                    text.push_str(more);
                    self.advance();
                }
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
        while self.is("-") || self.is("+") {
            negative ^= self.is("-");
            self.advance();
        }
        match *self.peek() {
            TokenKind::Number(magnitude) => {
                self.advance();
                Ok((magnitude, negative))
            }
            _ => self.expected("a value"),
        }
    }

    fn typealias(&mut self) -> Result<Statement> {
        self.advance();
        let class = self.specifier()?;
        let class = match self.is(":=") {
            true => class,
            false => self.declarator(class, |parser| Ok(parser.position()))?.1,
        };
        self.expect(":=")?;
        let position = self.position();
        let name = self.type_name()?;
        self.expect(";")?;
        Ok(Statement::Alias { position, name, class })
    }

    /// The words of an alias's new name.
    fn type_name(&mut self) -> Result<String> {
        let name = self.named()?;
        if self.is("*") {
            return error(ErrorKind::Unsupported("pointers"), self.position());
        }
        Ok(name)
    }

    fn typedef(&mut self) -> Result<Statement> {
        self.advance();
        let class = self.specifier()?;
        let position = self.position();
        let (name, class) = self.declarator(class, |parser| parser.name("a type's name"))?;
        if self.is(",") {
            return error(
                ErrorKind::Unsupported("several names in one definition"),
                self.position(),
            );
        }
        self.expect(";")?;
        Ok(Statement::Alias { position, name, class })
    }

    /// A name and its dimensions: `name[4][n]` is four times n elements.
    fn declarator<N>(&mut self, class: Type, name: impl FnOnce(&mut Self) -> Result<N>) -> Result<(N, Type)> {
        if self.is("*") {
            return error(ErrorKind::Unsupported("pointers"), self.position());
        }
        let name = name(self)?;
        let mut dimensions = Vec::new();
        while self.is("[") {
            if dimensions.len() >= MAX_NESTING {
                return error(ErrorKind::TooDeep, self.position());
            }
            let position = self.position();
            self.advance();
            dimensions.push((position, self.dimension()?));
            self.expect("]")?;
        }
        if self.is(":") {
            return error(ErrorKind::Unsupported("bit fields of C"), self.position());
        }
        let class = dimensions
            .into_iter()
            .rev()
            .fold(class, |element, (position, length)| Type {
                position,
                specifier: Specifier::Array {
                    element: Box::new(element),
                    length,
                },
            });
        Ok((name, class))
    }

    fn dimension(&mut self) -> Result<Dimension> {
        if let TokenKind::Word(_) = self.peek() {
            return Ok(Dimension::Path(self.path()?));
        }
        let position = self.position();
        match self.number()? {
            (number, false) => Ok(Dimension::Number(number)),
            _ => error(ErrorKind::Value("length"), position),
        }
    }

    fn path(&mut self) -> Result<Path> {
        let position = self.position();
        let mut words = vec![self.path_word()?];
        while self.accept(".") || self.accept("->") {
            words.push(self.word("a field's name")?);
        }
        Ok(Path { words, position })
    }

    /// Scopes begin with keywords.
    fn path_word(&mut self) -> Result<String> {
        match ["trace", "stream", "event"].iter().any(|scope| self.is_word(scope)) {
            true => self.word("a field's name"),
            false => self.name("a field's name"),
        }
    }

    fn specifier(&mut self) -> Result<Type> {
        self.deeper(|parser| {
            let position = parser.position();
            while parser.is_word("const") {
                parser.advance();
            }
            let TokenKind::Word(first) = parser.peek() else {
                return parser.expected("a type");
            };
            let specifier = match first.as_str() {
                "integer" => Specifier::Integer(parser.attributes()?),
                "floating_point" => Specifier::Float(parser.attributes()?),
                "string" => Specifier::String(match parser.after() {
                    TokenKind::Mark("{") => parser.attributes()?,
                    _ => {
                        parser.advance();
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

    /// C's words for numbers may be several; any other name is one word.
    fn named(&mut self) -> Result<String> {
        if !C_WORDS.iter().any(|word| self.is_word(word)) {
            return self.name("a type");
        }
        let mut name = self.word("a type")?;
        while let TokenKind::Word(word) = self.peek() {
            if word != "const" && !C_WORDS.contains(&word.as_str()) {
                break;
            }
            if word != "const" {
                name.push(' ');
                name.push_str(word);
            }
            self.advance();
        }
        Ok(name)
    }

    fn attributes(&mut self) -> Result<Vec<Attribute>> {
        self.advance();
        self.expect("{")?;
        let mut attributes = Vec::new();
        while !self.accept("}") {
            if self.accept(";") {
                continue;
            }
            let position = self.position();
            let name = self.word("an attribute")?;
            self.expect("=")?;
            let value = self.value()?;
            self.expect(";")?;
            attributes.push(Attribute { name, position, value });
        }
        Ok(attributes)
    }

    fn optional_name(&mut self) -> Option<String> {
        let TokenKind::Word(name) = self.peek() else {
            return None;
        };
        let name = name.clone();
        self.advance();
        Some(name)
    }

    fn structure(&mut self) -> Result<Specifier> {
        self.advance();
        let name = match self.is_word("align") && *self.after() == TokenKind::Mark("(") {
            true => None,
            false => self.optional_name(),
        };
        let body = match self.is("{") {
            true => Some(self.body()?),
            false => None,
        };
        if name.is_none() && body.is_none() {
            return self.expected("{");
        }
        let mut align = None;
        if self.is_word("align") && *self.after() == TokenKind::Mark("(") {
            self.advance();
            self.advance();
            let position = self.position();
            align = match self.number()? {
                (number, false) => Some(number),
                _ => return error(ErrorKind::Value("align"), position),
            };
            self.expect(")")?;
        }
        Ok(Specifier::Struct { name, body, align })
    }

    fn variant(&mut self) -> Result<Specifier> {
        self.advance();
        let name = self.optional_name();
        let mut tag = None;
        if self.accept("<") {
            tag = Some(self.path()?);
            self.expect(">")?;
        }
        let body = match self.is("{") {
            true => Some(self.body()?),
            false => None,
        };
        if name.is_none() && body.is_none() {
            return self.expected("{");
        }
        Ok(Specifier::Variant { name, tag, body })
    }

    fn body(&mut self) -> Result<Vec<Item>> {
        self.expect("{")?;
        let mut items = Vec::new();
        while !self.accept("}") {
            if self.accept(";") {
                continue;
            }
            items.push(self.item()?);
        }
        Ok(items)
    }

    fn item(&mut self) -> Result<Item> {
        if self.is_word("typealias") {
            return Ok(Item::Statement(self.typealias()?));
        }
        if self.is_word("typedef") {
            return Ok(Item::Statement(self.typedef()?));
        }
        let class = self.specifier()?;
        if self.is(";")
            && matches!(
                class.specifier,
                Specifier::Struct { .. } | Specifier::Enum { .. } | Specifier::Variant { .. }
            )
        {
            self.advance();
            return Ok(Item::Statement(Statement::Definition(class)));
        }
        let position = self.position();
        let (name, class) = self.declarator(class, |parser| parser.name("a field's name"))?;
        if self.is(",") {
            return error(
                ErrorKind::Unsupported("several fields in one declaration"),
                self.position(),
            );
        }
        self.expect(";")?;
        Ok(Item::Field { name, position, class })
    }

    fn enumeration(&mut self) -> Result<Specifier> {
        self.advance();
        let name = self.optional_name();
        let container = match self.accept(":") {
            true => Some(Box::new(self.specifier()?)),
            false => None,
        };
        let body = match self.is("{") {
            true => Some(self.labels()?),
            false => None,
        };
        if name.is_none() && body.is_none() {
            return self.expected("{");
        }
        Ok(Specifier::Enum { name, container, body })
    }

    fn labels(&mut self) -> Result<Vec<Label>> {
        self.expect("{")?;
        let mut labels = Vec::new();
        while !self.accept("}") {
            let position = self.position();
            let name = match self.peek() {
                TokenKind::Word(name) | TokenKind::Text(name) => name.clone(),
                _ => return self.expected("a label"),
            };
            self.advance();
            let mut range = None;
            if self.accept("=") {
                let first = self.signed()?;
                let last = if self.accept("...") { self.signed()? } else { first };
                range = Some((first, last));
            }
            labels.push(Label { name, position, range });
            if !self.is("}") {
                self.expect(",")?;
            }
        }
        if labels.is_empty() {
            return self.expected("a label");
        }
        Ok(labels)
    }

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

    /// A word, also in quotes.
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
