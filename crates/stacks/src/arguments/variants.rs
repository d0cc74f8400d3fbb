//! Enums with data, as debug information of Rust is converted: unions of variants, of which the
//! first members say which there is.

use backtrail_ctype::{Kind, StructMember, Type};

use super::show::{Byte, DEEPEST, Show, known};
use crate::process::Hidden;

/// Limit of variants that are searched.
const MOST_VARIANTS: usize = 1 << 12;

/// A type with variants.
pub(super) struct Variants<'d> {
    /// Enums that name the variant by the values of parts of the discriminant.
    selectors: Vec<(u64, Type<'d>)>,
    variants: Vec<StructMember<'d>>,
}

impl<'d> Variants<'d> {
    /// The variant that the value has; `None` if the value is lost, or invalid.
    pub(super) fn selected(&self, show: &Show<'_, 'd>, bytes: &[Byte]) -> Option<StructMember<'d>> {
        let mut selected: Option<Vec<bool>> = None;
        let mut names: Vec<&[u8]> = Vec::new();
        for (at, of) in &self.selectors {
            let [at, size] = [*at, of.size()].map(usize::try_from);
            let (at, size) = (at.ok()?, size.ok()?);
            let number = show.number(&known(bytes.get(at..at.checked_add(size)?)?)?)?;
            let values = of.enumerators().ok()?.take(MOST_VARIANTS).map_while(Result::ok);
            let values: Vec<_> = values.collect();
            let fits = values.iter().map(|value| u64::from(value.value as u32) == number);
            selected = Some(match selected {
                None => fits.collect(),
                Some(before) => before.into_iter().zip(fits).map(|(one, other)| one && other).collect(),
            });
            names = values.iter().map(|value| value.name).collect();
        }
        let named = names
            .iter()
            .zip(selected?)
            .find_map(|(name, selected)| selected.then_some(*name));
        let mut variants = self.variants.iter();
        variants
            .find(|variant| match named {
                Some(name) => variant.name == name,
                None => !names.contains(&variant.name),
            })
            .copied()
    }
}

impl<'d> Show<'_, 'd> {
    /// The variants of a type; `None` if it has none: no union of C begins with a number without a
    /// name.
    pub(super) fn variants(&self, found: &Type<'d>) -> Option<Variants<'d>> {
        if found.kind() != Kind::Union {
            return None;
        }
        let mut members = found
            .members()
            .ok()?
            .take(MOST_VARIANTS)
            .map_while(Result::ok)
            .peekable();
        let first = members.next().filter(|first| first.name.is_empty())?;
        if self.resolve(first.id).ok()?.kind() != Kind::Integer {
            return None;
        }
        let mut selectors = Vec::new();
        while let Some(member) = members.next_if(|member| member.name.is_empty()) {
            let of = self.resolve(member.id).ok().filter(|of| of.kind() == Kind::Enum)?;
            selectors.push((member.offset / 8, of));
        }
        Some(Variants {
            selectors,
            variants: members.collect(),
        })
    }

    /// Appends a variant by its name, with its members.
    pub(super) fn variant(&mut self, variant: &StructMember<'_>, bytes: &[Byte], depth: u32) -> Option<()> {
        let name = String::from_utf8_lossy(variant.name);
        let of = self.resolve(variant.id).ok()?;
        self.out += &name;
        if of.members().ok()?.next().is_none() {
            return Some(());
        }
        if self.shown.hides(&name) {
            self.out.push('(');
            self.leave_out(Hidden::Name);
            self.out.push(')');
        } else if depth + 1 >= DEEPEST {
            self.out.push_str("{...}");
        } else {
            self.enclosed(&of, bytes, depth)?;
        }
        Some(())
    }
}
