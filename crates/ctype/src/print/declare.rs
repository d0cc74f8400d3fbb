//! Declarators: a name with its type around it, as C writes it.

use super::{MAX_DECLARATION, MAX_DEPTH, Printer, names};
use crate::constants::Kind;
use crate::error::{Error, ErrorKind, Result};
use crate::read::{Type, TypeId};

impl<'d> Printer<'d> {
    /// The declaration of `name` with a type, without a semicolon; the type alone if `name` is
    /// empty. `indent` is the indentation of a body in it.
    pub(super) fn declaration(
        &mut self,
        unit: usize,
        id: TypeId,
        name: &str,
        indent: usize,
        depth: usize,
    ) -> Result<String> {
        let types = self.units[unit].types;
        let mut inner = name.to_owned();
        // Qualifiers that apply to the next type.
        let mut qualifiers = String::new();
        let mut next = id;
        for _ in 0..MAX_DEPTH {
            if depth > MAX_DEPTH || inner.len() > MAX_DECLARATION {
                break;
            }
            if next.is_none() {
                return Ok(joined(&qualifiers, "void", &inner));
            }
            let found = types.get(next)?;
            next = match found.kind() {
                Kind::Volatile | Kind::Const | Kind::Restrict => {
                    let word = found.kind().name();
                    if !qualifiers.contains(word) {
                        qualifiers.push_str(word);
                        qualifiers.push(' ');
                    }
                    found.reference()?
                }
                Kind::Slice => found.reference()?,
                Kind::Pointer => {
                    inner = match &inner[..] {
                        "" => format!("*{}", qualifiers.trim_end()),
                        _ => format!("*{qualifiers}{inner}"),
                    };
                    qualifiers.clear();
                    let to = found.reference()?;
                    if self.is_array_or_function(unit, to)? {
                        inner = format!("({inner})");
                    }
                    to
                }
                Kind::Array => self.dimensions(unit, &found, &mut inner)?,
                Kind::Function => {
                    let arguments = self.arguments(unit, &found, indent, depth)?;
                    inner = format!("{inner}({arguments})");
                    // Functions can't be const.
                    qualifiers.clear();
                    found.reference()?
                }
                _ => {
                    let base = self.base(unit, &found, indent, depth)?;
                    // Only pointers can be restrict.
                    return Ok(joined(&qualifiers.replace("restrict ", ""), &base, &inner));
                }
            };
        }
        Err(Error::new(ErrorKind::TooLong(id.0), 0))
    }

    /// Appends the dimensions of an array of arrays, and returns the type of its elements.
    fn dimensions(&mut self, unit: usize, outermost: &Type<'d>, inner: &mut String) -> Result<TypeId> {
        let types = self.units[unit].types;
        let mut counts = Vec::new();
        let mut array = outermost.array()?;
        for _ in 0..MAX_DEPTH {
            counts.push(array.count);
            match types.get(array.contents) {
                Ok(found) if found.kind() == Kind::Array => array = found.array()?,
                _ => {
                    if self.options.inner_first {
                        counts.reverse();
                    }
                    counts.iter().for_each(|count| inner.push_str(&format!("[{count}]")));
                    return Ok(array.contents);
                }
            }
        }
        Err(outermost.error(ErrorKind::TooLong(outermost.id().0)))
    }

    /// Whether this is `void`, perhaps by another name.
    pub(super) fn is_void(&self, unit: usize, id: TypeId) -> bool {
        let is_void = |found: Type<'_>| found.kind() == Kind::Integer && found.size() == 0;
        id.is_none() || self.units[unit].types.resolve(id).is_ok_and(is_void)
    }

    fn is_array_or_function(&self, unit: usize, id: TypeId) -> Result<bool> {
        let types = self.units[unit].types;
        let mut next = id;
        for _ in 0..MAX_DEPTH {
            if next.is_none() {
                return Ok(false);
            }
            let found = types.get(next)?;
            match found.kind() {
                Kind::Volatile | Kind::Const | Kind::Restrict | Kind::Slice => next = found.reference()?,
                kind => return Ok(matches!(kind, Kind::Array | Kind::Function)),
            }
        }
        Err(Error::new(ErrorKind::Cycle(id.0), 0))
    }

    fn arguments(&mut self, unit: usize, function: &Type<'d>, indent: usize, depth: usize) -> Result<String> {
        let (arguments, variadic) = function.arguments()?;
        let mut texts = Vec::with_capacity(arguments.len());
        let mut bytes = 0;
        for argument in arguments {
            let argument = argument?;
            // Only other languages have such arguments; they take no place.
            if self.is_void(unit, argument) {
                continue;
            }
            let text = self.declaration(unit, argument, "", indent, depth + 1)?;
            bytes += text.len();
            if bytes > MAX_DECLARATION {
                return Err(function.error(ErrorKind::TooLong(function.id().0)));
            }
            texts.push(text);
        }
        Ok(match (texts.is_empty(), variadic) {
            (true, false) => "void".to_owned(),
            // The arguments are unknown.
            (true, true) => String::new(),
            (false, false) => texts.join(", "),
            (false, true) => texts.join(", ") + ", ...",
        })
    }

    /// The type specifier at the beginning of a declaration.
    fn base(&mut self, unit: usize, found: &Type<'d>, indent: usize, depth: usize) -> Result<String> {
        let key = self.key(unit, found.id());
        let given = self.names.get(key).map(str::to_owned);
        let keyword = match found.kind() {
            Kind::Forward => found.forwarded()?.name(),
            Kind::Unknown => Kind::Struct.name(),
            kind => kind.name(),
        };
        if self.plain {
            let name = String::from_utf8_lossy(found.name()?);
            return Ok(match (found.kind(), name.is_empty()) {
                (Kind::Integer | Kind::Float | Kind::Typedef, _) => name.into_owned(),
                (Kind::Unknown, _) => "/* not represented */".to_owned(),
                (_, false) => format!("{keyword} {name}"),
                (_, true) => format!("{keyword} {{...}}"),
            });
        }
        match (found.kind(), given) {
            (Kind::Integer | Kind::Float | Kind::Typedef, Some(name)) => Ok(name),
            (Kind::Integer | Kind::Float, None) => {
                let name = String::from_utf8_lossy(found.name()?).into_owned();
                Ok(names::base(&name, found.size()).unwrap_or_else(|| "void".to_owned()))
            }
            (Kind::Typedef, None) => Err(found.error(ErrorKind::Nameless(found.id().0))),
            (_, Some(name)) => Ok(format!("{keyword} {name}")),
            (Kind::Struct | Kind::Union | Kind::Enum, None) => match self.typedef_of(unit, found.id()) {
                Some(name) => Ok(name),
                None => self.body(unit, found, keyword, indent, depth + 1),
            },
            _ => Err(found.error(ErrorKind::Nameless(found.id().0))),
        }
    }

    /// The typedef that names a nameless type.
    pub(super) fn typedef_of(&self, unit: usize, id: TypeId) -> Option<String> {
        if let Some(printed) = self.printed_as.get(&self.key(unit, id)) {
            return Some(printed.clone());
        }
        let typedef = self.units[unit].nameless.get(&id)?.typedef?;
        self.names.get(self.key(unit, typedef)).map(str::to_owned)
    }
}

fn joined(qualifiers: &str, base: &str, inner: &str) -> String {
    let space = if inner.is_empty() { "" } else { " " };
    format!("{qualifiers}{base}{space}{inner}")
}
