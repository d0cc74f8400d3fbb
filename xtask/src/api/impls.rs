//! Methods and traits of public types, wherever in the crate they are written.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use syn::{GenericArgument, GenericParam, Generics, ImplItem, Item, ItemImpl, ItemMacro, PathArguments, Type};

use super::exports::{Exports, Place};
use super::list::{Lines, derived, is_listed, signature, text};
use super::names::Target;
use super::source::{Crate, attributes, is_public, joined};

/// Traits of one type under the same conditions: where, and the text before and after them.
type Implemented = BTreeMap<(Place, String, String), BTreeSet<String>>;

pub(super) fn impls(from: &Crate, exports: &Exports, lines: &mut Lines) {
    let mut implemented = Implemented::new();
    for (&(module, at), places) in &exports.items {
        for name in derived(attributes(&from.modules[module].items[at])) {
            let key = (places[0].clone(), "impl ".to_owned(), places[0].text());
            implemented.entry(key).or_default().insert(name);
        }
    }
    for (module, own) in from.modules.iter().enumerate() {
        for item in &own.items {
            match item {
                Item::Impl(found) if is_listed(&found.attrs) => {
                    let within = Within { from, exports, module };
                    match &found.trait_ {
                        None => within.methods(found, lines),
                        Some((name, _)) => within.traits(found, name, &mut implemented),
                    }
                }
                Item::Macro(call) => made_by_macro(from, module, call, lines),
                _ => {}
            }
        }
    }
    for ((place, before, after), traits) in implemented {
        let traits: Vec<String> = traits.into_iter().collect();
        lines.add_traits(&place, &format!("{before}{} for {after}", traits.join(", ")));
    }
}

/// Where an `impl` is.
struct Within<'c> {
    from: &'c Crate,
    exports: &'c Exports,
    module: usize,
}

impl Within<'_> {
    fn methods(&self, found: &ItemImpl, lines: &mut Lines) {
        let Some((place, own)) = self.implementor(&found.self_ty) else {
            return;
        };
        let place = place.with(&joined(&self.from.modules[self.module].gates, &found.attrs));
        for item in &found.items {
            let (attributes, visibility, name) = match item {
                ImplItem::Const(item) => (&item.attrs, &item.vis, &item.ident),
                ImplItem::Fn(item) => (&item.attrs, &item.vis, &item.sig.ident),
                ImplItem::Type(item) => (&item.attrs, &item.vis, &item.ident),
                ImplItem::Macro(item) => {
                    if let Some(call) = call_text(self.from, &item.mac) {
                        lines.add_traits(&place, &format!("in impl {own}: {call}"));
                    }
                    continue;
                }
                _ => continue,
            };
            if !is_public(visibility) || !is_listed(attributes) {
                continue;
            }
            let place = place.below(&name.to_string(), &joined(&[], attributes));
            let path = format!("{own}::{name}");
            let line = match item {
                ImplItem::Const(item) => format!("pub const {path}: {}", text(&item.ty)),
                ImplItem::Fn(item) => signature(&item.sig, &path, Some(&found.generics)),
                ImplItem::Type(item) => format!("pub type {path} = {}", text(&item.ty)),
                _ => continue,
            };
            lines.add(&place, &line);
        }
    }

    fn traits(&self, found: &ItemImpl, name: &syn::Path, implemented: &mut Implemented) {
        let Some((place, own)) = self.implementor(&found.self_ty).or_else(|| {
            let place = self.public(name)?;
            Some((place, text(&found.self_ty)))
        }) else {
            return;
        };
        if self.is_private(name) || self.is_private_type(&found.self_ty) {
            return;
        }
        let Some(segment) = name.segments.last() else { return };
        let not = found.modifiers.polarity.map_or("", |_| "!");
        let mut spelled = format!("{not}{}", text(segment));
        let types: Vec<String> = found
            .items
            .iter()
            .filter_map(|item| match item {
                ImplItem::Type(item) => Some(format!("{} = {}", item.ident, text(&item.ty))),
                _ => None,
            })
            .collect();
        if !types.is_empty() {
            let types = types.join(", ");
            spelled = match spelled.strip_suffix('>') {
                Some(open) => format!("{open}, {types}>"),
                None => format!("{spelled}<{types}>"),
            };
        }
        let (before, after) = bounds(&found.generics);
        let gates = joined(&self.from.modules[self.module].gates, &found.attrs);
        let unsafety = found.unsafety.map_or("", |_| "unsafe ");
        let key = (
            place.with(&gates),
            format!("{unsafety}impl{before} "),
            format!("{own}{after}"),
        );
        implemented.entry(key).or_default().insert(spelled);
    }

    /// The public path of a type, and its text by it.
    fn implementor(&self, of: &Type) -> Option<(Place, String)> {
        match of {
            Type::Reference(reference) => {
                let (place, own) = self.implementor(&reference.elem)?;
                let mutable = reference.mutability.map_or("", |_| "mut ");
                Some((place, format!("&{mutable}{own}")))
            }
            Type::Path(path) if path.qself.is_none() => {
                let place = self.public(&path.path)?;
                let arguments = &path.path.segments.last()?.arguments;
                let own = format!("{}{}", place.text(), without_lifetimes(arguments));
                Some((place, own))
            }
            _ => None,
        }
    }

    /// The shortest public path of a type or trait of this crate.
    fn public(&self, path: &syn::Path) -> Option<Place> {
        let places = self.targets(path).into_iter().find_map(|target| match target {
            Target::Item(module, at) => self.exports.items.get(&(module, at)),
            _ => None,
        });
        places?.first().cloned()
    }

    /// Whether a path names something of this crate that users cannot reach.
    fn is_private(&self, path: &syn::Path) -> bool {
        let targets = self.targets(path);
        let is_own = targets.iter().any(|target| matches!(target, Target::Item(..)));
        is_own && self.public(path).is_none()
    }

    fn is_private_type(&self, of: &Type) -> bool {
        match of {
            Type::Reference(reference) => self.is_private_type(&reference.elem),
            Type::Path(path) => path.qself.is_none() && self.is_private(&path.path),
            _ => false,
        }
    }

    fn targets(&self, path: &syn::Path) -> Vec<Target> {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.from.resolve(self.module, &names)
    }
}

/// Arguments in angle brackets; nothing if they are lifetimes alone.
fn without_lifetimes(arguments: &PathArguments) -> String {
    match arguments {
        PathArguments::AngleBracketed(all) => {
            let is_lifetime = |argument: &GenericArgument| matches!(argument, GenericArgument::Lifetime(_));
            match all.args.iter().all(is_lifetime) {
                true => String::new(),
                false => text(arguments),
            }
        }
        _ => String::new(),
    }
}

/// The parameters of an `impl` and its `where`; nothing if they are plain lifetimes alone.
fn bounds(generics: &Generics) -> (String, String) {
    let is_plain = |parameter: &GenericParam| match parameter {
        GenericParam::Lifetime(lifetime) => lifetime.bounds.is_empty(),
        _ => false,
    };
    match generics.params.iter().all(is_plain) && generics.where_clause.is_none() {
        true => (String::new(), String::new()),
        false => super::list::spelled(generics),
    }
}

/// A call of a macro at the level of items, whose items are not read: a line with its arguments.
fn made_by_macro(from: &Crate, module: usize, item: &ItemMacro, lines: &mut Lines) {
    if item.ident.is_some() || !is_listed(&item.attrs) {
        return;
    }
    if let Some(call) = call_text(from, &item.mac) {
        let place = Place {
            path: vec![from.name.clone()],
            gates: joined(&from.modules[module].gates, &item.attrs),
        };
        lines.add_traits(&place, &format!("in {}: {call}", from.name));
    }
}

/// The text of a call of one of the crate's own macros that makes methods or traits.
fn call_text(from: &Crate, call: &syn::Macro) -> Option<String> {
    let name = call.path.get_ident()?;
    let mut items = from.modules.iter().flat_map(|module| &module.items);
    let rules = items.find_map(|item| match item {
        Item::Macro(rules) if rules.ident.as_ref() == Some(name) => Some(&rules.mac),
        _ => None,
    })?;
    let makes = text(&rules.tokens);
    let mut words = makes.split(|c: char| !c.is_alphanumeric() && c != '_');
    let makes_items = words.any(|word| word == "impl" || word == "pub");
    makes_items.then(|| format!("{name}!({})", text(&without_text(call.tokens.clone()))))
}

/// Tokens without documentation and quoted text.
fn without_text(tokens: TokenStream) -> TokenStream {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Literal(literal) if literal.to_string().starts_with('"') => {
                kept.push(TokenTree::Ident(Ident::new("_", literal.span())));
            }
            TokenTree::Group(group) if is_documentation(&group) => _ = kept.pop(),
            TokenTree::Group(group) => {
                let inside = without_text(group.stream());
                kept.push(TokenTree::Group(Group::new(group.delimiter(), inside)));
            }
            token => kept.push(token),
        }
    }
    kept.into_iter().collect()
}

/// Whether this is what follows the `#` of a comment.
fn is_documentation(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket && first.is_some_and(|word| word.to_string() == "doc")
}
