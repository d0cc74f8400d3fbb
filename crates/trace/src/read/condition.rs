//! Conditions by which events are chosen: `name == net:* && (len > 100 || peer == "10.*")`.

use super::event::Event;
use super::value::{Fields, Value};
use crate::description::EnvironmentValue;

/// The most conditions that contain each other.
const MAX_DEPTH: usize = 32;

/// A condition on an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition(Node);

/// Why a condition cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionError {
    /// What should be there.
    pub expected: &'static str,
    /// Bytes of the text before the place.
    pub place: usize,
}

impl std::fmt::Display for ConditionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expected {} at character {}", self.expected, self.place + 1)
    }
}

impl std::error::Error for ConditionError {}

type Result<T> = std::result::Result<T, ConditionError>;

#[derive(Clone, Debug, PartialEq)]
enum Node {
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
    /// The field is there, and not zero.
    True(Subject),
    Compare(Subject, Comparison, Operand),
}

#[derive(Clone, Debug, PartialEq)]
enum Subject {
    /// The event's name.
    Name,
    /// The processor, by the packet's or the event's context.
    Cpu,
    /// The process's number or name, by contexts or the environment.
    Process,
    /// The thread's number.
    Thread,
    /// A field of the payload, the contexts or the packet, and members of it.
    Field(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Integer(i128),
    Float(f64),
    /// With `*` and `?`.
    Text(String),
}

impl Condition {
    /// Reads a condition: comparisons of fields with numbers or texts, joined by `&&`, `||`, `!`
    /// and parentheses. `name`, `cpu`, `process` and `thread` are not fields. In texts, `*` is any
    /// text and `?` any character.
    ///
    /// # Errors
    ///
    /// The first place that is not a condition.
    pub fn parse(text: &str) -> Result<Condition> {
        let mut parser = Parser { text, place: 0 };
        let node = parser.any(0)?;
        parser.space();
        match parser.rest().is_empty() {
            true => Ok(Condition(node)),
            false => parser.fail("&&, || or the end"),
        }
    }

    /// Whether the event satisfies it. A comparison with a field that the event does not have is
    /// not satisfied, whatever it compares.
    pub fn matches(&self, event: &Event<'_>) -> bool {
        self.0.matches(event)
    }
}

impl Node {
    fn matches(&self, event: &Event<'_>) -> bool {
        match self {
            Node::All(nodes) => nodes.iter().all(|node| node.matches(event)),
            Node::Any(nodes) => nodes.iter().any(|node| node.matches(event)),
            Node::Not(node) => !node.matches(event),
            Node::True(subject) => subject.values(event).iter().any(|value| match value {
                Found::Integer(number) => *number != 0,
                Found::Float(number) => *number != 0.0,
                Found::Text(text) => !text.is_empty(),
            }),
            Node::Compare(subject, comparison, operand) => {
                let values = subject.values(event);
                // A number and its labels: unequal if none of them is equal.
                match comparison {
                    Comparison::Unequal => {
                        !values.is_empty() && !values.iter().any(|value| value.compares(Comparison::Equal, operand))
                    }
                    _ => values.iter().any(|value| value.compares(*comparison, operand)),
                }
            }
        }
    }
}

/// What a subject is in an event.
enum Found<'a> {
    Integer(i128),
    Float(f64),
    Text(&'a [u8]),
}

impl Found<'_> {
    fn compares(&self, comparison: Comparison, operand: &Operand) -> bool {
        let order = match (self, operand) {
            (Found::Integer(value), Operand::Integer(number)) => value.partial_cmp(number),
            (Found::Integer(value), Operand::Float(number)) => (*value as f64).partial_cmp(number),
            (Found::Float(value), Operand::Float(number)) => value.partial_cmp(number),
            (Found::Float(value), Operand::Integer(number)) => value.partial_cmp(&(*number as f64)),
            (Found::Text(text), Operand::Text(pattern)) if comparison == Comparison::Equal => {
                return is_like(pattern.as_bytes(), text);
            }
            (Found::Text(text), Operand::Text(other)) => Some((*text).cmp(other.as_bytes())),
            _ => None,
        };
        order.is_some_and(|order| match comparison {
            Comparison::Equal => order.is_eq(),
            Comparison::Unequal => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::AtMost => order.is_le(),
            Comparison::More => order.is_gt(),
            Comparison::AtLeast => order.is_ge(),
        })
    }
}

impl Subject {
    fn values<'a>(&self, event: &Event<'a>) -> Vec<Found<'a>> {
        let named = |names: &[&str]| -> Vec<Found<'a>> {
            let contexts = [event.stream_context(), event.context(), event.packet_context()];
            let field = |name: &&str| contexts.iter().flatten().find_map(|fields| fields.get(name));
            let found: Vec<Found<'a>> = names.iter().filter_map(field).flat_map(found).collect();
            match found.is_empty() {
                true => names.iter().filter_map(|name| environment(event, name)).collect(),
                false => found,
            }
        };
        match self {
            Subject::Name => vec![Found::Text(event.name().as_bytes())],
            Subject::Cpu => named(&["cpu_id", "cpu"]),
            Subject::Process => named(&["vpid", "pid", "procname"]),
            Subject::Thread => named(&["vtid", "tid"]),
            Subject::Field(path) => field(event, path).map(found).unwrap_or_default(),
        }
    }
}

fn field<'a>(event: &Event<'a>, path: &[String]) -> Option<Value<'a>> {
    let (first, rest) = path.split_first()?;
    let scoped: Vec<Fields<'a>> = match (first.as_str(), rest.is_empty()) {
        ("fields", false) => event.payload().into_iter().collect(),
        ("context", false) => event.stream_context().into_iter().chain(event.context()).collect(),
        ("packet", false) => event.packet_context().into_iter().collect(),
        _ => Vec::new(),
    };
    let descend = |start: Option<Value<'a>>, names: &[String]| {
        names
            .iter()
            .try_fold(start?, |value, name| value.as_struct()?.get(name))
    };
    let of_scope = rest
        .split_first()
        .and_then(|(name, rest)| descend(scoped.iter().find_map(|fields| fields.get(name)), rest));
    of_scope.or_else(|| descend(event.field(first), rest))
}

/// A number with its labels, or a text.
fn found(value: Value<'_>) -> Vec<Found<'_>> {
    match value {
        Value::Integer(integer) => {
            let labels = integer.labels().into_iter().flatten();
            let labels = labels.map(|label| Found::Text(label.as_bytes()));
            std::iter::once(Found::Integer(integer.value())).chain(labels).collect()
        }
        Value::Float(number) => vec![Found::Float(number)],
        Value::Text(text) => vec![Found::Text(text)],
        Value::Boolean(is_true) => vec![Found::Integer(i128::from(is_true))],
        Value::Flags(flags) => {
            let names = flags.names().map(|name| Found::Text(name.as_bytes()));
            std::iter::once(Found::Integer(i128::from(flags.bits())))
                .chain(names)
                .collect()
        }
        Value::Variant(chosen) | Value::Optional(Some(chosen)) => chosen.value().map(found).unwrap_or_default(),
        Value::Array(_) => value.as_bytes().map(Found::Text).into_iter().collect(),
        Value::Optional(None) | Value::Struct(_) | Value::Blob(_) | Value::WideText(_) => Vec::new(),
    }
}

fn environment<'a>(event: &Event<'a>, name: &str) -> Option<Found<'a>> {
    let entry = event.environment().iter().find(|(key, _)| key == name);
    entry.map(|(_, value)| match value {
        EnvironmentValue::Integer(number) => Found::Integer(i128::from(*number)),
        EnvironmentValue::String(text) => Found::Text(text.as_bytes()),
    })
}

/// Whether a text is like a pattern, in time that is at most the product of their lengths.
fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // The last star, and the place in the text up to which it reaches.
    let mut star: Option<(usize, usize)> = None;
    while place < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[place] => {
                at += 1;
                place += 1;
            }
            _ => match &mut star {
                Some((after, reached)) => {
                    *reached += 1;
                    (at, place) = (*after + 1, *reached);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

struct Parser<'t> {
    text: &'t str,
    place: usize,
}

impl<'t> Parser<'t> {
    fn any(&mut self, depth: usize) -> Result<Node> {
        let mut nodes = vec![self.all(depth)?];
        while self.accept("||") {
            nodes.push(self.all(depth)?);
        }
        Ok(one_or(nodes, Node::Any))
    }

    fn all(&mut self, depth: usize) -> Result<Node> {
        let mut nodes = vec![self.term(depth)?];
        while self.accept("&&") {
            nodes.push(self.term(depth)?);
        }
        Ok(one_or(nodes, Node::All))
    }

    fn term(&mut self, depth: usize) -> Result<Node> {
        if depth >= MAX_DEPTH {
            return self.fail("fewer parentheses");
        }
        if self.accept("!") {
            return Ok(Node::Not(Box::new(self.term(depth + 1)?)));
        }
        if self.accept("(") {
            let node = self.any(depth + 1)?;
            return match self.accept(")") {
                true => Ok(node),
                false => self.fail("&&, || or )"),
            };
        }
        let subject = self.subject()?;
        const COMPARISONS: [(&str, Comparison); 7] = [
            ("==", Comparison::Equal),
            ("!=", Comparison::Unequal),
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
            ("=", Comparison::Equal),
            ("<", Comparison::Less),
            (">", Comparison::More),
        ];
        let comparison = COMPARISONS.iter().find(|(sign, _)| self.accept(sign));
        match comparison {
            Some(&(_, comparison)) => Ok(Node::Compare(subject, comparison, self.operand()?)),
            None => Ok(Node::True(subject)),
        }
    }

    fn subject(&mut self) -> Result<Subject> {
        let word = self.word(|character| character.is_alphanumeric() || "_.$@".contains(character));
        if word.is_empty() {
            return self.fail("the name of a field");
        }
        Ok(match word {
            "name" => Subject::Name,
            "cpu" => Subject::Cpu,
            "process" => Subject::Process,
            "thread" => Subject::Thread,
            path => Subject::Field(path.split('.').map(str::to_owned).collect()),
        })
    }

    fn operand(&mut self) -> Result<Operand> {
        if self.accept("\"") {
            let rest = self.rest();
            let Some(end) = rest.find('"') else {
                return self.fail("a text that ends with \"");
            };
            self.place += end + 1;
            return Ok(Operand::Text(rest[..end].to_owned()));
        }
        let word = self.word(|character| !character.is_whitespace() && !"()&|!<>=\"".contains(character));
        if word.is_empty() {
            return self.fail("a number or a text");
        }
        let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
        let integer = match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        };
        let starts_as_number = digits.starts_with(|first: char| first.is_ascii_digit());
        Ok(match (integer, word.parse()) {
            (Some(number), _) => Operand::Integer(sign * i128::from(number)),
            (None, Ok(number)) if starts_as_number => Operand::Float(number),
            _ => Operand::Text(word.to_owned()),
        })
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        self.space();
        let rest = self.rest();
        let end = rest.find(|character| !belongs(character)).unwrap_or(rest.len());
        self.place += end;
        &rest[..end]
    }

    fn accept(&mut self, sign: &str) -> bool {
        self.space();
        let is_next = self.rest().starts_with(sign);
        if is_next {
            self.place += sign.len();
        }
        is_next
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.place += rest.len() - rest.trim_start().len();
    }

    fn rest(&self) -> &'t str {
        &self.text[self.place..]
    }

    fn fail<T>(&self, expected: &'static str) -> Result<T> {
        Err(ConditionError {
            expected,
            place: self.place,
        })
    }
}

fn one_or(mut nodes: Vec<Node>, many: fn(Vec<Node>) -> Node) -> Node {
    match nodes.len() {
        1 => nodes.remove(0),
        _ => many(nodes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("net:*", "net:packet", true),
            ("net:*", "disk:read", false),
            ("*a*b", "xaxxab", true),
            ("*a*b", "xaxxa", false),
            ("?", "", false),
            ("a?c", "abc", true),
            ("*", "", true),
        ] {
            assert_eq!(
                is_like(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
        let (pattern, text) = ("*a".repeat(200), "a".repeat(3000) + "b");
        assert!(!is_like(pattern.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn errors_have_their_place() {
        for (text, place) in [
            ("", 0),
            ("a ==", 4),
            ("(a", 2),
            ("a b", 2),
            ("a == \"x", 6),
            ("a &&", 4),
        ] {
            assert_eq!(Condition::parse(text).unwrap_err().place, place, "{text}");
        }
        assert!(Condition::parse(&"(".repeat(100_000)).is_err());
        assert!(Condition::parse(&"!".repeat(100_000)).is_err());
    }
}
