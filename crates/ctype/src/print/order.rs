//! The order of printing: a declaration suffices for a pointer's target, all other types must be
//! complete before their use.

use super::{Printer, State, names};
use crate::constants::{Encoding, Kind};
use crate::error::{Error, ErrorKind, Result};
use crate::read::{Type, TypeId};

impl<'d> Printer<'d> {
    /// Prints everything that a mention of the type needs.
    pub(super) fn declare(&mut self, unit: usize, id: TypeId, depth: usize) -> Result<()> {
        self.need(unit, id, false, depth)
    }

    /// Prints everything that an object of the type needs.
    pub(super) fn complete(&mut self, unit: usize, id: TypeId, depth: usize) -> Result<()> {
        self.need(unit, id, true, depth)
    }

    fn need(&mut self, unit: usize, id: TypeId, complete: bool, depth: usize) -> Result<()> {
        if depth > super::MAX_DEPTH {
            return Err(Error::new(ErrorKind::Cycle(id.0), 0));
        }
        if id.is_none() {
            return Ok(());
        }
        let found = self.units[unit].types.get(id)?;
        match found.kind() {
            Kind::Volatile | Kind::Const | Kind::Restrict | Kind::Slice => {
                self.need(unit, found.reference()?, complete, depth + 1)
            }
            Kind::Pointer => self.declare(unit, found.reference()?, depth + 1),
            Kind::Array => self.complete(unit, found.array()?.contents, depth + 1),
            Kind::Function => {
                self.declare(unit, found.reference()?, depth + 1)?;
                let (arguments, _) = found.arguments()?;
                for argument in arguments {
                    self.declare(unit, argument?, depth + 1)?;
                }
                Ok(())
            }
            Kind::Typedef => {
                self.typedef(unit, &found, depth)?;
                match complete && self.units[unit].measures.size(id).is_ok() {
                    true => self.complete(unit, found.reference()?, depth + 1),
                    false => Ok(()),
                }
            }
            Kind::Struct | Kind::Union => match self.names.get(self.key(unit, id)) {
                Some(_) if complete => self.define(unit, id, depth),
                Some(_) => self.declare_tag(unit, &found),
                None if self.typedef_of(unit, id).is_some() => self.define(unit, id, depth),
                None => self.members(unit, &found, depth),
            },
            Kind::Enum if self.stands_in_member(unit, id) => Ok(()),
            Kind::Enum => self.define(unit, id, depth),
            Kind::Forward | Kind::Unknown => self.declare_tag(unit, &found),
            Kind::Integer | Kind::Float => self.number(unit, &found),
        }
    }

    /// Prints `struct name;`, once.
    fn declare_tag(&mut self, unit: usize, found: &Type<'d>) -> Result<()> {
        let key = self.key(unit, found.id());
        let keyword = match found.kind() {
            Kind::Forward => found.forwarded()?.name(),
            Kind::Unknown => Kind::Struct.name(),
            kind => kind.name(),
        };
        let Some(name) = self.names.get(key) else {
            return Err(found.error(ErrorKind::Nameless(found.id().0)));
        };
        let declaration = format!("{keyword} {name};\n");
        if self.declared.insert(declaration.clone()) {
            self.out.extend(declaration.bytes());
        }
        Ok(())
    }

    /// Prints a complete struct, union or enum: under its tag, or under the typedef that names it.
    pub(super) fn define(&mut self, unit: usize, id: TypeId, depth: usize) -> Result<()> {
        if !self.begin(unit, id, depth)? {
            return Ok(());
        }
        let found = self.units[unit].types.get(id)?;
        if found.kind() != Kind::Enum {
            self.members(unit, &found, depth + 1)?;
        }
        let keyword = found.kind().name();
        let tag = self.names.get(self.key(unit, id)).map(str::to_owned);
        let typedef = self.typedef_of(unit, id);
        if let (None, Some(typedef)) = (&tag, &typedef) {
            let key = self.key(unit, id);
            self.printed_as.insert(key, typedef.clone());
        }
        let (start, end, spelled) = match (tag, typedef) {
            (Some(tag), _) => (
                format!("{keyword} {tag}"),
                String::new(),
                Some(format!("{keyword} {tag}")),
            ),
            (None, Some(name)) => (format!("typedef {keyword}"), format!(" {name}"), Some(name)),
            // Only enums are printed without any name.
            (None, None) => (keyword.to_owned(), String::new(), None),
        };
        let body = self.body(unit, &found, &start, 0, depth)?;
        self.out.extend(format!("{body}{end};\n").bytes());
        if let (Some(spelled), true) = (spelled, self.options.assertions) {
            self.assert_layout(unit, &found, &spelled)?;
        }
        self.out.push(b'\n');
        self.declared.insert(format!("{start};\n"));
        let typedef = self.units[unit].nameless.get(&id).and_then(|nameless| nameless.typedef);
        for id in [Some(id), typedef].into_iter().flatten() {
            let key = self.key(unit, id);
            self.states.insert(key, State::Done);
        }
        Ok(())
    }

    /// Prints everything that the members need. Members without a size are printed as bytes.
    fn members(&mut self, unit: usize, found: &Type<'d>, depth: usize) -> Result<()> {
        for member in found.members()? {
            let member = member?;
            self.step(found)?;
            let inner = self.units[unit].types.get(member.id);
            let inline =
                inner.is_ok_and(|inner| matches!(inner.kind(), Kind::Struct | Kind::Union) && member.name.is_empty());
            if self.units[unit].measures.size(member.id).is_err() {
                continue;
            }
            match inline {
                true => self.members(
                    unit,
                    &self.units[unit].types.get(member.id)?,
                    self.deeper(depth, member.id)?,
                )?,
                false => self.complete(unit, member.id, depth + 1)?,
            }
        }
        Ok(())
    }

    pub(super) fn deeper(&self, depth: usize, id: TypeId) -> Result<usize> {
        match depth < super::MAX_DEPTH {
            true => Ok(depth + 1),
            false => Err(Error::new(ErrorKind::Cycle(id.0), 0)),
        }
    }

    fn typedef(&mut self, unit: usize, found: &Type<'d>, depth: usize) -> Result<()> {
        let id = found.id();
        let of = found.reference()?;
        let nameless = self.units[unit].nameless.get(&of).copied().unwrap_or_default();
        let body = self.key(unit, of);
        if nameless.typedef == Some(id) && self.names.get(body).is_none() && !self.printed_as.contains_key(&body) {
            return self.define(unit, of, depth + 1);
        }
        if !self.begin(unit, id, depth)? {
            return Ok(());
        }
        let key = self.key(unit, id);
        let Some(name) = self.names.get(key).map(str::to_owned) else {
            return Err(found.error(ErrorKind::Nameless(id.0)));
        };
        if self.is_array_of_nothing(unit, of)? {
            // C has no arrays of types without a size.
            self.out.extend(format!("typedef struct {name} {name};\n").bytes());
        } else {
            self.declare(unit, of, depth + 1)?;
            let declaration = self.declaration(unit, of, &name, 0, depth)?;
            self.out.extend(format!("typedef {declaration};\n").bytes());
        }
        self.states.insert(key, State::Done);
        Ok(())
    }

    fn is_array_of_nothing(&mut self, unit: usize, id: TypeId) -> Result<bool> {
        let resolved = self.units[unit].types.resolve(id);
        let is_array = resolved.is_ok_and(|found| found.kind() == Kind::Array);
        Ok(is_array && self.units[unit].measures.size(id).is_err())
    }

    /// Prints a number type that has another name in C.
    fn number(&mut self, unit: usize, found: &Type<'d>) -> Result<()> {
        let key = self.key(unit, found.id());
        let Some(name) = self.names.get(key).map(str::to_owned) else {
            return Ok(());
        };
        if self.is_done(key) {
            return Ok(());
        }
        let size = found.size();
        let signed = found.encoding()?.format & Encoding::SIGNED != 0;
        let base = match (found.kind(), size) {
            (Kind::Float, 4) => Some("float"),
            (Kind::Float, 8) => Some("double"),
            (Kind::Float, 16) => Some("long double"),
            (Kind::Integer, 1) if signed => Some("signed char"),
            (Kind::Integer, 1) => Some("unsigned char"),
            (Kind::Integer, 2) => Some("short"),
            (Kind::Integer, 4) => Some("int"),
            (Kind::Integer, 8) => Some("long long"),
            (Kind::Integer, 16) => Some("__int128"),
            _ => None,
        };
        let unsigned = if found.kind() == Kind::Integer && size > 1 && !signed {
            "unsigned "
        } else {
            ""
        };
        let text = match base {
            Some(base) => format!("typedef {unsigned}{base} {name};\n"),
            None => format!("typedef struct {{ unsigned char bytes[{size}]; }} {name};\n"),
        };
        debug_assert!(names::base(&name, size).is_none());
        self.out.extend(text.bytes());
        self.states.insert(key, State::Done);
        Ok(())
    }
}
