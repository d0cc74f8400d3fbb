//! A crate's public items as lines.

use std::collections::BTreeSet;

use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::{Attribute, Fields, FnArg, Generics, Item, Meta, Pat, ReturnType, Signature, Token, TraitItem};

use super::exports::{Exports, Place};
use super::source::{Crate, attributes, is_hidden, is_public, is_test, joined};
use super::spell::spell;

/// The lines of a list, in the order of paths.
#[derive(Default)]
pub(super) struct Lines(BTreeSet<(Vec<String>, u8, String)>);

/// The order of lines of one path.
const ITEM: u8 = 0;
const TRAITS: u8 = 1;

impl Lines {
    pub(super) fn add(&mut self, place: &Place, text: &str) {
        let text = format!("{}{text}", gates(place));
        self.0.insert((place.path.clone(), ITEM, text));
    }

    pub(super) fn add_traits(&mut self, place: &Place, text: &str) {
        let text = format!("{}{text}", gates(place));
        self.0.insert((place.path.clone(), TRAITS, text));
    }

    pub(super) fn into_text(self) -> Vec<String> {
        self.0.into_iter().map(|(_, _, text)| text).collect()
    }
}

fn gates(place: &Place) -> String {
    place.gates.iter().map(|gate| format!("#[cfg({gate})] ")).collect()
}

/// The crate's own items, without their methods and traits.
pub(super) fn items(from: &Crate, exports: &Exports, lines: &mut Lines) {
    for module in &exports.modules {
        lines.add(module, &format!("pub mod {}", module.text()));
    }
    for (place, other) in &exports.others {
        lines.add(place, &format!("pub use {} = {other}", place.text()));
    }
    for (&(module, at), places) in &exports.items {
        let (first, others) = places.split_first().expect("it has a path");
        for other in others {
            lines.add(other, &format!("pub use {} = {}", other.text(), first.text()));
        }
        item(&from.modules[module].items[at], first, lines);
    }
    for module in &from.modules {
        for item in &module.items {
            exported_macro(from, item, lines);
        }
    }
}

fn item(item: &Item, place: &Place, lines: &mut Lines) {
    let path = place.text();
    let marks = marks(attributes(item));
    match item {
        Item::Const(item) => lines.add(place, &format!("{marks}pub const {path}: {}", text(&item.ty))),
        Item::Static(item) => lines.add(place, &format!("{marks}pub static {path}: {}", text(&item.ty))),
        Item::Fn(item) => lines.add(place, &format!("{marks}{}", signature(&item.sig, &path, None))),
        Item::Type(item) => {
            let (generics, bounds) = spelled(&item.generics);
            lines.add(
                place,
                &format!("{marks}pub type {path}{generics} = {}{bounds}", text(&item.ty)),
            );
        }
        Item::Struct(item) => {
            let (generics, bounds) = spelled(&item.generics);
            let body = match &item.fields {
                Fields::Named(_) if has_private(&item.fields) => " { /* private */ }".to_owned(),
                Fields::Named(_) => String::new(),
                Fields::Unnamed(_) => tuple(&item.fields, true),
                Fields::Unit => ";".to_owned(),
            };
            lines.add(place, &format!("{marks}pub struct {path}{generics}{bounds}{body}"));
            fields(&item.fields, place, lines);
        }
        Item::Union(item) => {
            let (generics, bounds) = spelled(&item.generics);
            lines.add(place, &format!("{marks}pub union {path}{generics}{bounds}"));
            fields(&Fields::Named(item.fields.clone()), place, lines);
        }
        Item::Enum(item) => {
            let (generics, bounds) = spelled(&item.generics);
            lines.add(place, &format!("{marks}pub enum {path}{generics}{bounds}"));
            for variant in item.variants.iter().filter(|variant| is_listed(&variant.attrs)) {
                let place = place.below(&variant.ident.to_string(), &joined(&[], &variant.attrs));
                let marks = self::marks(&variant.attrs);
                let body = match &variant.fields {
                    Fields::Named(named) => {
                        let fields = named
                            .named
                            .iter()
                            .map(|field| format!("{}: {}", text(&field.ident), text(&field.ty)));
                        format!(" {{ {} }}", fields.collect::<Vec<_>>().join(", "))
                    }
                    Fields::Unnamed(_) => tuple(&variant.fields, false),
                    Fields::Unit => String::new(),
                };
                let number = variant.discriminant.as_ref();
                let number = number.map_or(String::new(), |(_, number)| format!(" = {}", text(number)));
                lines.add(&place, &format!("{marks}pub {}{body}{number}", place.text()));
            }
        }
        Item::Trait(item) => {
            let (generics, bounds) = spelled(&item.generics);
            let is_unsafe = item.unsafety.map_or("", |_| "unsafe ");
            let above = match item.supertraits.is_empty() {
                true => String::new(),
                false => format!(": {}", text(&item.supertraits)),
            };
            lines.add(
                place,
                &format!("{marks}pub {is_unsafe}trait {path}{generics}{above}{bounds}"),
            );
            item.items.iter().for_each(|item| trait_item(item, place, lines));
        }
        _ => {}
    }
}

fn trait_item(item: &TraitItem, place: &Place, lines: &mut Lines) {
    let (attributes, name) = match item {
        TraitItem::Const(item) => (&item.attrs, &item.ident),
        TraitItem::Fn(item) => (&item.attrs, &item.sig.ident),
        TraitItem::Type(item) => (&item.attrs, &item.ident),
        _ => return,
    };
    if !is_listed(attributes) {
        return;
    }
    let place = place.below(&name.to_string(), &joined(&[], attributes));
    let path = place.text();
    let line = match item {
        TraitItem::Const(item) => {
            let default = item.default.as_ref().map_or("", |_| " = ..");
            format!("pub const {path}: {}{default}", text(&item.ty))
        }
        TraitItem::Fn(item) => {
            let default = item.default.as_ref().map_or("", |_| " { .. }");
            format!("{}{default}", signature(&item.sig, &path, None))
        }
        TraitItem::Type(item) => {
            let (generics, bounds) = spelled(&item.generics);
            let limits = match item.bounds.is_empty() {
                true => String::new(),
                false => format!(": {}", text(&item.bounds)),
            };
            let default = item.default.as_ref();
            let default = default.map_or(String::new(), |(_, default)| format!(" = {}", text(default)));
            format!("pub type {path}{generics}{limits}{bounds}{default}")
        }
        _ => return,
    };
    lines.add(&place, &line);
}

/// Public fields with names, each a line.
fn fields(fields: &Fields, place: &Place, lines: &mut Lines) {
    let Fields::Named(named) = fields else { return };
    for field in &named.named {
        if let Some(name) = &field.ident
            && is_public(&field.vis)
            && is_listed(&field.attrs)
        {
            let place = place.below(&name.to_string(), &joined(&[], &field.attrs));
            lines.add(&place, &format!("pub {}: {}", place.text(), text(&field.ty)));
        }
    }
}

fn has_private(fields: &Fields) -> bool {
    fields
        .iter()
        .any(|field| !is_public(&field.vis) || is_hidden(&field.attrs))
}

/// Fields without names; private ones are `_`.
fn tuple(fields: &Fields, has_visibility: bool) -> String {
    let field = |field: &syn::Field| match (has_visibility, is_public(&field.vis)) {
        (true, true) => format!("pub {}", text(&field.ty)),
        (true, false) => "_".to_owned(),
        (false, _) => text(&field.ty),
    };
    format!("({})", fields.iter().map(field).collect::<Vec<_>>().join(", "))
}

/// A macro that users can call, with what it takes.
fn exported_macro(from: &Crate, item: &Item, lines: &mut Lines) {
    let Item::Macro(item) = item else { return };
    let is_exported = item
        .attrs
        .iter()
        .any(|attribute| attribute.path().is_ident("macro_export"));
    let Some(name) = item.ident.as_ref().filter(|_| is_exported && is_listed(&item.attrs)) else {
        return;
    };
    let root = Place {
        path: vec![from.name.clone()],
        gates: Vec::new(),
    };
    let place = root.below(&name.to_string(), &joined(&[], &item.attrs));
    // A rule is what it takes, an arrow of two marks, and what it becomes.
    let tokens: Vec<_> = item.mac.tokens.clone().into_iter().collect();
    for rule in tokens
        .split(|token| token.to_string() == ";")
        .filter(|rule| !rule.is_empty())
    {
        lines.add(
            &place,
            &format!("pub macro {}!{}", place.text(), spell(rule[0].clone().into())),
        );
    }
}

/// A function's line. `around` has the bounds of its `impl`.
pub(super) fn signature(signature: &Signature, path: &str, around: Option<&Generics>) -> String {
    let mut words = String::from("pub ");
    for (is_there, word) in [
        (signature.constness.is_some(), "const "),
        (signature.asyncness.is_some(), "async "),
        (matches!(signature.safety, syn::Safety::Unsafe(_)), "unsafe "),
    ] {
        words.push_str(if is_there { word } else { "" });
    }
    if let Some(abi) = &signature.abi {
        words.push_str(&format!("{} ", text(abi)));
    }
    let (generics, bounds) = spelled(&signature.generics);
    let mut arguments: Vec<String> = signature.inputs.iter().map(argument).collect();
    arguments.extend(signature.variadic.as_ref().map(|_| "...".to_owned()));
    let output = match &signature.output {
        ReturnType::Default => String::new(),
        output => format!(" {}", text(output)),
    };
    let outer = around.map_or(String::new(), limits);
    let arguments = arguments.join(", ");
    format!("{words}fn {path}{generics}({arguments}){output}{outer}{bounds}")
}

fn argument(argument: &FnArg) -> String {
    match argument {
        // How a function uses its own copy is not its callers' business.
        FnArg::Receiver(receiver) => text(receiver).trim_start_matches("mut ").to_owned(),
        FnArg::Typed(typed) => {
            let name = match &*typed.pat {
                Pat::Ident(name) => name.ident.to_string(),
                _ => "_".to_owned(),
            };
            format!("{name}: {}", text(&typed.ty))
        }
    }
}

/// The bounds of an `impl`, for each of its items.
fn limits(generics: &Generics) -> String {
    let bounded = generics.params.iter().filter(|parameter| match parameter {
        syn::GenericParam::Type(parameter) => !parameter.bounds.is_empty(),
        syn::GenericParam::Lifetime(parameter) => !parameter.bounds.is_empty(),
        syn::GenericParam::Const(_) => false,
    });
    let mut all: Vec<String> = bounded.map(text).collect();
    if let Some(bounds) = &generics.where_clause {
        all.extend(bounds.predicates.iter().map(text));
    }
    match all.is_empty() {
        true => String::new(),
        false => format!(" where {}", all.join(", ")),
    }
}

/// Parameters in angle brackets, and a `where`.
pub(super) fn spelled(generics: &Generics) -> (String, String) {
    let bounds = match &generics.where_clause {
        Some(bounds) => format!(" {}", text(bounds).trim_end_matches(',')),
        None => String::new(),
    };
    (text(generics), bounds)
}

/// Attributes that users notice.
fn marks(attributes: &[Attribute]) -> String {
    let noticed = attributes.iter().filter(|attribute| {
        ["non_exhaustive", "repr", "deprecated"]
            .iter()
            .any(|name| attribute.path().is_ident(name))
    });
    noticed
        .map(|attribute| match attribute.path().is_ident("deprecated") {
            true => "#[deprecated] ".to_owned(),
            false => format!("{} ", text(attribute)),
        })
        .collect()
}

/// The traits that an item derives.
pub(super) fn derived(attributes: &[Attribute]) -> Vec<String> {
    let mut traits = Vec::new();
    for attribute in attributes {
        if let Meta::List(list) = &attribute.meta
            && list.path.is_ident("derive")
            && let Ok(paths) = list.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated)
        {
            traits.extend(
                paths
                    .iter()
                    .filter_map(|path| Some(path.segments.last()?.ident.to_string())),
            );
        }
    }
    traits
}

pub(super) fn is_listed(attributes: &[Attribute]) -> bool {
    !is_hidden(attributes) && !is_test(attributes)
}

pub(super) fn text(tokens: &impl ToTokens) -> String {
    let text = spell(tokens.to_token_stream());
    // Formatted over several lines, lists end with a comma.
    text.replace(", >", ">")
        .replace(", )", ")")
        .replace(",>", ">")
        .replace(",)", ")")
}
