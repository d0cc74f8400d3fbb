//! Circles: files of a crate that import each other.
//!
//! A file imports what it names by `crate::`, by `super::`, or by a module that it declares; a name
//! that is re-exported counts for the file that it comes from. A module and those below it are one
//! room: they may use each other.

use std::collections::{BTreeMap, BTreeSet};

use super::text::code_of;

/// The modules of a crate: the path of each in names, and its file.
type Modules<'f> = BTreeMap<Vec<&'f str>, &'f str>;

/// Every circle of the crates below `crates/`, `xtask/` and `bench/`, once.
pub(super) fn findings(files: &[(String, String)]) -> Vec<String> {
    let mut by_crate: BTreeMap<&str, Vec<&(String, String)>> = BTreeMap::new();
    for file in files.iter().filter(|(name, _)| name.ends_with(".rs")) {
        if let Some((root, _)) = file.0.split_once("/src/") {
            by_crate.entry(root).or_default().push(file);
        }
    }
    let mut findings = Vec::new();
    for (root, files) in by_crate {
        let modules: Modules<'_> = files
            .iter()
            .map(|(name, _)| (module_of(root, name), name.as_str()))
            .collect();
        let exports = files
            .iter()
            .map(|(name, text)| (name.as_str(), exports(&module_of(root, name), text, &modules)));
        let exports = exports.collect();
        let imports: BTreeMap<&str, BTreeSet<&str>> = files
            .iter()
            .map(|(name, text)| (name.as_str(), imports(&module_of(root, name), text, &modules, &exports)))
            .collect();
        findings.extend(
            circles(&imports)
                .into_iter()
                .map(|circle| format!("circle: {}", circle.join(" -> "))),
        );
    }
    findings
}

/// The path of a file's module within its crate.
fn module_of<'f>(root: &str, name: &'f str) -> Vec<&'f str> {
    let within = &name[root.len() + "/src/".len()..name.len() - ".rs".len()];
    let mut path: Vec<&str> = within.split('/').collect();
    if matches!(path.last(), Some(&("mod" | "lib" | "main"))) {
        path.pop();
    }
    path
}

/// Names that files re-export, each with where it comes from.
type Exports<'f> = BTreeMap<&'f str, BTreeMap<String, Vec<String>>>;

/// The names that a file re-exports.
fn exports(module: &[&str], text: &str, modules: &Modules<'_>) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for statement in statements(text).iter().filter_map(|statement| exported(statement)) {
        let mut paths = Vec::new();
        expand(&[], statement.trim_end_matches(';').trim(), &mut paths);
        for path in paths {
            if let (Some(absolute), Some(name)) = (resolve(module, &path, modules), path.last()) {
                found.insert(name.clone(), absolute);
            }
        }
    }
    found
}

/// What a re-export names.
fn exported(statement: &str) -> Option<&str> {
    let rest = statement.trim().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')')?.1,
        None => rest,
    };
    rest.trim_start().strip_prefix("use ")
}

/// The files that a file imports from.
fn imports<'f>(module: &[&str], text: &str, modules: &Modules<'f>, exports: &Exports<'_>) -> BTreeSet<&'f str> {
    let mut found = BTreeSet::new();
    for statement in statements(text)
        .iter()
        .filter(|statement| exported(statement).is_none())
    {
        for path in paths(statement) {
            let Some(absolute) = resolve(module, &path, modules) else {
                continue;
            };
            if let Some((path, file)) = origin(absolute, modules, exports)
                && !is_family(module, &path)
            {
                found.insert(file);
            }
        }
    }
    found
}

/// The file that a name comes from, and the path of its module.
fn origin<'f>(mut path: Vec<String>, modules: &Modules<'f>, exports: &Exports<'_>) -> Option<(Vec<String>, &'f str)> {
    /// Re-exports of re-exports.
    const MOST: usize = 8;
    for _ in 0..MOST {
        let found = (0..=path.len()).rev().find_map(|len| {
            let names: Vec<&str> = path[..len].iter().map(String::as_str).collect();
            Some((len, *modules.get(&names)?))
        });
        let (len, file) = found?;
        let next = path.get(len).and_then(|name| exports.get(file)?.get(name));
        match next {
            Some(next) if *next != path => path = next.clone(),
            _ => return Some((path[..len].to_vec(), file)),
        }
    }
    None
}

/// Whether one module is the other, or lies in it.
fn is_family(one: &[&str], other: &[String]) -> bool {
    one.iter().zip(other).all(|(one, other)| one == other)
}

/// A file's code up to its tests, in pieces that end at `;`, `{` or `}`.
fn statements(text: &str) -> Vec<String> {
    let code = code_of(text);
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut statements = Vec::new();
    let mut rest = code;
    while !rest.is_empty() {
        let start = rest.trim_start();
        let is_use = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "]
            .iter()
            .any(|word| start.starts_with(word));
        // The braces of a `use` are part of it.
        let end = match is_use {
            true => rest.find(';'),
            false => rest.find([';', '{', '}']),
        };
        let end = end.map_or(rest.len(), |end| end + 1);
        statements.push(rest[..end].to_owned());
        rest = &rest[end..];
    }
    statements
}

/// The paths of names in a piece of code; groups are multiplied out.
fn paths(statement: &str) -> Vec<Vec<String>> {
    let statement = statement.trim();
    if let Some(tree) = statement.strip_prefix("use ") {
        let mut found = Vec::new();
        expand(&[], tree.trim_end_matches(';').trim(), &mut found);
        return found;
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = statement
        .split(|c: char| !is_part(c))
        .filter(|word| word.contains("::"));
    words
        .map(|word| word.split("::").map(str::to_owned).collect())
        .collect()
}

/// Multiplies a `use` tree out.
fn expand(before: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let joined = |part: &str| {
        let names = part
            .split("::")
            .map(|name| name.split(" as ").next().unwrap_or_default().trim());
        let names = names.filter(|name| !name.is_empty()).map(str::to_owned);
        before.iter().cloned().chain(names).collect::<Vec<_>>()
    };
    let Some(open) = tree.find('{') else {
        return found.push(joined(tree));
    };
    let prefix = joined(&tree[..open]);
    let inside = tree[open + 1..].strip_suffix('}').unwrap_or(&tree[open + 1..]);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&prefix, inside[start..at].trim(), found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !inside[start..].trim().is_empty() {
        expand(&prefix, inside[start..].trim(), found);
    }
}

/// A path from the crate's root, if it leads into the crate.
fn resolve(module: &[&str], path: &[String], modules: &Modules<'_>) -> Option<Vec<String>> {
    let (base, rest) = match path.first().map(String::as_str)? {
        "crate" => (&[][..], &path[1..]),
        "self" => (module, &path[1..]),
        "super" => {
            let ups = path.iter().take_while(|name| *name == "super").count();
            (&module[..module.len().checked_sub(ups)?], &path[ups..])
        }
        // A module that this file declares.
        child => {
            let declared = [module, &[child]].concat();
            modules.contains_key(&declared).then_some((module, path))?
        }
    };
    Some(
        base.iter()
            .map(|name| (*name).to_owned())
            .chain(rest.iter().cloned())
            .collect(),
    )
}

/// One circle for each set of files that reach each other.
fn circles<'f>(imports: &BTreeMap<&'f str, BTreeSet<&'f str>>) -> Vec<Vec<&'f str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|&file| (file, reach(file, imports))).collect();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut circles = Vec::new();
    for &file in imports.keys() {
        if seen.contains(file) || !reached[file].contains(file) {
            continue;
        }
        let others = reached[file].iter().filter(|other| reached[**other].contains(file));
        let circle: Vec<&str> = others.copied().collect();
        seen.extend(&circle);
        circles.push(circle);
    }
    circles
}

/// The files that a file imports, directly or not.
fn reach<'f>(file: &'f str, imports: &BTreeMap<&'f str, BTreeSet<&'f str>>) -> BTreeSet<&'f str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = imports[file].iter().copied().collect();
    while let Some(one) = next.pop() {
        if reached.insert(one) {
            next.extend(imports.get(one).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let files = files
            .iter()
            .map(|(name, text)| (format!("crates/x/src/{name}"), (*text).to_owned()));
        findings(&files.collect::<Vec<_>>())
    }

    #[test]
    fn circles_are_seen() {
        let one = ("a.rs", "use crate::b::B;\npub struct A;\n");
        assert_eq!(of(&[one, ("b.rs", "pub struct B;\n")]), Vec::<String>::new());
        assert_eq!(of(&[one, ("b.rs", "use crate::{a::A, c};\n")]).len(), 1);
        assert_eq!(of(&[one, ("b.rs", "fn f() { crate::a::g() }\n")]).len(), 1);
        assert_eq!(of(&[one, ("b.rs", "use super::a;\n")]).len(), 1);
        assert_eq!(
            of(&[one, ("b.rs", "use crate::c::C;\n"), ("c.rs", "use crate::a::A;\n")]).len(),
            1
        );
        assert!(
            of(&[
                one,
                (
                    "b.rs",
                    "// use crate::a::A;\n#[cfg(test)]\nmod tests { use crate::a::A; }\n"
                )
            ])
            .is_empty()
        );
    }

    #[test]
    fn parents_and_children_are_one_room() {
        let child = ("m/c.rs", "use super::P;\n");
        assert_eq!(
            of(&[("m/mod.rs", "mod c;\nuse c::C;\npub struct P;\n"), child]),
            Vec::<String>::new()
        );
        // What a parent re-exports is its child's.
        let parent = (
            "m/mod.rs",
            "mod c;\nmod d;\npub use c::{C, other};\npub(crate) use d::D;\n",
        );
        let (one, other) = (("m/c.rs", "use super::D;\n"), ("m/d.rs", "use crate::m::C;\n"));
        assert_eq!(of(&[parent, one, other]).len(), 1);
        assert!(of(&[parent, one, ("m/d.rs", "use crate::m::E;\n")]).is_empty());
    }
}
