//! `cargo xtask api`: the public interfaces, in lists that are committed. Who changes an interface
//! has to change its list, and a reviewer sees both.
//!
//! The Rust lists have what `backtrail-api` re-exports, and what that re-exports from other crates.
//! They are made from sources alone: types are spelled as in the source, and macros not expanded.

mod exports;
mod header;
mod impls;
mod list;
mod names;
mod source;
mod spell;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use backtrail_testkit::lists::difference;
use backtrail_testkit::place;

use crate::files;

use exports::Exports;
use list::Lines;
use source::{Crate, Files};

/// The crate whose re-exports are public.
const API: &str = "api";

/// Compares the lists with the sources, or rewrites them.
pub(crate) fn run(write: bool) -> Result<(), String> {
    let root = place::workspace();
    let files = files::texts(&root);
    if write {
        for (name, list) in lists(&by_name(&files))? {
            if files.iter().all(|file| *file != (name.clone(), list.clone())) {
                files::write(&root.join(&name), list)?;
                println!("{name}");
            }
        }
        return Ok(());
    }
    match &findings(&files)[..] {
        [] => Ok(()),
        findings => Err(findings.join("\n")),
    }
}

/// How the public interfaces differ from the lists.
pub(crate) fn findings(files: &[(String, String)]) -> Vec<String> {
    let files = by_name(files);
    let lists = match lists(&files) {
        Ok(lists) => lists,
        Err(error) => return vec![error],
    };
    let mut findings: Vec<String> = lists
        .iter()
        .filter_map(|(name, list)| {
            let committed = files.get(name.as_str()).copied().unwrap_or_default();
            difference(name, committed, list, "cargo xtask api --write")
        })
        .collect();
    let is_stray = |name: &&&str| {
        name.starts_with("crates/") && name.ends_with(&format!("/{RUST_LIST}")) && !lists.contains_key(**name)
    };
    let stray = files.keys().filter(is_stray).filter(|_| !lists.is_empty());
    findings.extend(stray.map(|name| format!("{name}: {API} does not re-export this crate; delete the list")));
    findings
}

const RUST_LIST: &str = "api.txt";
const C_LIST: &str = "abi.txt";

fn by_name(files: &[(String, String)]) -> Files<'_> {
    files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect()
}

/// All lists, by the names of their files.
fn lists(files: &Files<'_>) -> Result<BTreeMap<String, String>, String> {
    let mut lists = rust_lists(files)?;
    for (name, versions) in files {
        let Some((room, file)) = name.strip_prefix("crates/").and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        let Some(library) = file.strip_suffix(".map").filter(|library| !library.contains('/')) else {
            continue;
        };
        let header = format!("crates/{room}/include/{library}.h");
        let text = files
            .get(header.as_str())
            .ok_or_else(|| format!("{header}: no such file"))?;
        let lines = header::list(versions, text).map_err(|error| format!("{header}: cannot read {error}"))?;
        let title = format!("The interface of {library}.h and its library.");
        lists.insert(format!("crates/{room}/{C_LIST}"), whole(&title, &lines));
    }
    Ok(lists)
}

/// The lists of the crates that users of `backtrail-api` reach.
fn rust_lists(files: &Files<'_>) -> Result<BTreeMap<String, String>, String> {
    let has_library = |room: &str| files.contains_key(format!("crates/{room}/src/lib.rs").as_str());
    let mut lists = BTreeMap::new();
    let mut next: BTreeSet<String> = [API.to_owned()].into_iter().filter(|room| has_library(room)).collect();
    while let Some(room) = next.pop_first() {
        let from = Crate::read(&room, files)?;
        let exports = Exports::of(&from);
        let reached = exports.others.iter().filter_map(|(_, other)| {
            let name = other.split("::").next()?.strip_prefix("backtrail_")?;
            Some(name.replace('_', "-"))
        });
        let title = format!("The public items of backtrail-{room}.");
        let file = format!("crates/{room}/{RUST_LIST}");
        lists.insert(file, whole(&title, &lines(&from, &exports)));
        let is_new = |room: &String| has_library(room) && !lists.contains_key(&format!("crates/{room}/{RUST_LIST}"));
        next.extend(reached.filter(is_new));
    }
    Ok(lists)
}

fn lines(from: &Crate, exports: &Exports) -> Vec<String> {
    let mut lines = Lines::default();
    list::items(from, exports, &mut lines);
    impls::impls(from, exports, &mut lines);
    lines.into_text()
}

/// A list's file.
fn whole(title: &str, lines: &[String]) -> String {
    let mut text = format!("// {title} `cargo xtask api --write` writes this file.\n");
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}
