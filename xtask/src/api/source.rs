//! A crate's modules, read from its files.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::{Attribute, File, Item, Meta, Token, UseTree, Visibility};

use super::spell::spell;

/// The project's files: names from the root on, and texts.
pub(super) type Files<'f> = BTreeMap<&'f str, &'f str>;

/// A crate, without what is compiled for tests only.
pub(super) struct Crate {
    /// The crate's name without `backtrail_`.
    pub(super) name: String,
    /// The first is the crate's root.
    pub(super) modules: Vec<Module>,
}

pub(super) struct Module {
    pub(super) name: String,
    pub(super) parent: Option<usize>,
    pub(super) is_public: bool,
    /// `cfg`s of the module and of those around it.
    pub(super) gates: Vec<String>,
    pub(super) items: Vec<Item>,
    pub(super) uses: Vec<Use>,
}

/// One name of a `use`.
pub(super) struct Use {
    pub(super) path: Vec<String>,
    /// The name that it has here; `*` for all.
    pub(super) name: String,
    pub(super) is_public: bool,
    pub(super) gates: Vec<String>,
}

impl Crate {
    /// Reads the library in this folder of `crates/`.
    pub(super) fn read(room: &str, files: &Files<'_>) -> Result<Crate, String> {
        let mut found = Crate {
            name: room.replace('-', "_"),
            modules: Vec::new(),
        };
        let root = Module::new(room, None, true, Vec::new());
        let folder = format!("crates/{room}/src");
        let items = parse(&format!("{folder}/lib.rs"), files)?;
        found.add(root, &folder, items, files)?;
        Ok(found)
    }

    /// Adds a module, and those that it declares. `folder` has the files of these.
    fn add(&mut self, module: Module, folder: &str, items: Vec<Item>, files: &Files<'_>) -> Result<(), String> {
        let own = self.modules.len();
        let outer = module.gates.clone();
        self.modules.push(module);
        for item in items {
            match item {
                Item::Mod(declared) if !is_test(&declared.attrs) => {
                    let name = declared.ident.to_string();
                    let inside = format!("{folder}/{name}");
                    let items = match declared.content {
                        Some((_, items)) => items,
                        None => parse_module(&inside, files)?,
                    };
                    let is_public = is_public(&declared.vis) && !is_hidden(&declared.attrs);
                    let gates = joined(&outer, &declared.attrs);
                    let module = Module::new(&name, Some(own), is_public, gates);
                    self.add(module, &inside, items, files)?;
                }
                Item::Use(used) if !is_test(&used.attrs) => {
                    let is_public = is_public(&used.vis) && !is_hidden(&used.attrs);
                    let gates = joined(&outer, &used.attrs);
                    let mut add = |path: &[String], name: &str| {
                        self.modules[own].uses.push(Use {
                            path: path.to_vec(),
                            name: name.to_owned(),
                            is_public,
                            gates: gates.clone(),
                        });
                    };
                    names(&mut Vec::new(), &used.tree, &mut add);
                }
                Item::Mod(_) | Item::Use(_) => {}
                item if is_test(attributes(&item)) => {}
                item => self.modules[own].items.push(item),
            }
        }
        Ok(())
    }
}

impl Module {
    fn new(name: &str, parent: Option<usize>, is_public: bool, gates: Vec<String>) -> Module {
        Module {
            name: name.to_owned(),
            parent,
            is_public,
            gates,
            items: Vec::new(),
            uses: Vec::new(),
        }
    }
}

/// The items of the file of a module that is not written in place.
fn parse_module(path: &str, files: &Files<'_>) -> Result<Vec<Item>, String> {
    let alone = format!("{path}.rs");
    match files.contains_key(alone.as_str()) {
        true => parse(&alone, files),
        false => parse(&format!("{path}/mod.rs"), files),
    }
}

fn parse(name: &str, files: &Files<'_>) -> Result<Vec<Item>, String> {
    let text = files.get(name).ok_or_else(|| format!("{name}: no such file"))?;
    let tokens: TokenStream = text.parse().map_err(|error| format!("{name}: {error}"))?;
    let file: File = syn::parse2(without_bodies(tokens)).map_err(|error| format!("{name}: {error}"))?;
    Ok(file.items)
}

/// Code whose functions are empty: parsing what they do would take most of the time.
fn without_bodies(tokens: TokenStream) -> TokenStream {
    let mut is_function = false;
    let kept = tokens.into_iter().map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
            let inside = match std::mem::take(&mut is_function) {
                true => TokenStream::new(),
                false => without_bodies(group.stream()),
            };
            TokenTree::Group(Group::new(Delimiter::Brace, inside))
        }
        token => {
            match &token {
                TokenTree::Ident(word) if word == "fn" => is_function = true,
                TokenTree::Punct(mark) if mark.as_char() == ';' => is_function = false,
                _ => {}
            }
            token
        }
    });
    kept.collect()
}

/// Multiplies a `use` out.
fn names(before: &mut Vec<String>, tree: &UseTree, add: &mut impl FnMut(&[String], &str)) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            names(before, &path.tree, add);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            let last = before.last().cloned().unwrap_or_default();
            add(before, &last);
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            add(&[&before[..], std::slice::from_ref(&name)].concat(), &name);
        }
        UseTree::Rename(renamed) => {
            let (name, other) = (renamed.ident.to_string(), renamed.rename.to_string());
            let own = (name != "self").then_some(name);
            add(&before.iter().cloned().chain(own).collect::<Vec<_>>(), &other);
        }
        UseTree::Glob(_) => add(before, "*"),
        UseTree::Group(group) => group.items.iter().for_each(|tree| names(before, tree, add)),
    }
}

pub(super) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The attributes of an item.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an item is compiled for tests only.
pub(super) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => list.parse_args().is_ok_and(|meta: Meta| needs_test(&meta)),
        _ => false,
    })
}

fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(needs_test)),
        _ => false,
    }
}

/// Whether documentation leaves an item out.
pub(super) fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("doc") => list
            .tokens
            .clone()
            .into_iter()
            .any(|token| token.to_string() == "hidden"),
        _ => false,
    })
}

/// The conditions of these attributes, after those of the surroundings.
pub(super) fn joined(outer: &[String], attributes: &[Attribute]) -> Vec<String> {
    let mut gates = outer.to_vec();
    for attribute in attributes {
        if let Meta::List(list) = &attribute.meta
            && list.path.is_ident("cfg")
        {
            let gate = spell(list.tokens.to_token_stream());
            if !gates.contains(&gate) {
                gates.push(gate);
            }
        }
    }
    gates
}
