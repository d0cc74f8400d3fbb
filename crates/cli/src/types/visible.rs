//! The types of a library that its users see, and the changes that are not to be reported.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use backtrail_ctype::Kind;
use backtrail_ctype::diff::{Change, Visible};
use backtrail_debuginfo::types::Origins;

use backtrail_stacks::shown::is_like;

use crate::error::Failure;

/// How deep folders of headers are searched.
const DEEPEST: usize = 32;
/// The endings of source files, which users do not include.
const SOURCES: [&str; 9] = ["c", "cc", "cpp", "cxx", "c++", "C", "m", "y", "l"];

/// The types that users see: those that headers in these folders define; without folders, all but
/// those that only source files define, in a library that has headers of its own.
pub(super) fn visible(origins: &Origins, folders: &[PathBuf]) -> Result<Visible, Failure> {
    if folders.is_empty() {
        let is_source = |path: &String| {
            let ending = Path::new(path).extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| SOURCES.contains(&ending))
        };
        let of_system = |path: &String| path.starts_with("/usr/include/") || path.starts_with("/usr/lib/");
        let is_own_header = |path: &String| !is_source(path) && !of_system(path) && !path.contains('<');
        if !origins.values().flatten().any(is_own_header) {
            return Ok(Visible::All);
        }
        let hidden = origins.iter().filter(|(_, files)| files.iter().all(is_source));
        return Ok(Visible::Except(hidden.map(|(key, _)| key.clone()).collect()));
    }
    let mut files = Vec::new();
    for folder in folders {
        fs::read_dir(folder).map_err(|error| Failure::of(folder, error))?;
        headers(folder, 0, &mut files);
    }
    let mut all = BTreeSet::new();
    for path in &files {
        // Other files may be among them, and not be text.
        if let Ok(text) = fs::read(path) {
            defined(&String::from_utf8_lossy(&text), &mut all);
        }
    }
    // Macros may define types, too.
    let names: BTreeSet<_> = files.iter().filter_map(|path| path.file_name()).collect();
    let is_of_header = |path: &String| Path::new(path).file_name().is_some_and(|name| names.contains(name));
    let of_headers = origins.iter().filter(|(_, files)| files.iter().any(is_of_header));
    all.extend(of_headers.map(|(key, _)| key.clone()));
    Ok(Visible::Only(all))
}

fn headers(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < DEEPEST => headers(&entry.path(), depth + 1, files),
            Ok(kind) if kind.is_dir() => {}
            _ => files.push(entry.path()),
        }
    }
}

/// Adds the types that a header defines: `struct name {`, and `name` in `} name;`.
fn defined(text: &str, all: &mut BTreeSet<(Kind, String)>) {
    let text = without_comments(text);
    let mut last: [&str; 2] = ["", ""];
    for word in words(&text) {
        let kind = match last[0] {
            "struct" | "class" => Some(Kind::Struct),
            "union" => Some(Kind::Union),
            "enum" => Some(Kind::Enum),
            _ => None,
        };
        match (kind, word) {
            (Some(kind), "{" | ":") => {
                all.insert((kind, last[1].to_owned()));
            }
            // A typedef, or a variable, whose name does no harm.
            (_, next) if last[1] == "}" && is_name(next) => {
                all.insert((Kind::Typedef, next.to_owned()));
            }
            _ => {}
        }
        // `struct __attribute__((packed)) name {`, `struct EXPORT name {`.
        let is_keyword = ["struct", "union", "enum", "class"].contains(&last[0]);
        last = match is_keyword && is_name(word) && is_name(last[1]) {
            true => [last[0], word],
            false => [last[1], word],
        };
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let len = match is_part(first) {
            true => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (word, after) = rest.split_at(len);
        rest = after;
        Some(word)
    })
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        out.push_str(&rest[..at]);
        out.push(' ');
        rest = rest[at + 2..].split_once("*/").map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    let lines = out.lines().map(|line| line.split("//").next().unwrap_or_default());
    // Directives end with their lines.
    let code = lines.filter(|line| !line.trim_start().starts_with('#'));
    code.collect::<Vec<_>>().join("\n")
}

/// The names of changes that are not reported.
pub(super) struct Patterns(Vec<(String, String)>);

impl Patterns {
    pub(super) fn read(path: &Path) -> Result<Patterns, Failure> {
        let text = fs::read_to_string(path).map_err(|error| Failure::of(path, error))?;
        let mut patterns = Vec::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let Some((kind, name)) = line.split_once(char::is_whitespace) else {
                let wrong = Failure::of(path, format_args!("no name in the line: {line}"));
                return Err(wrong.help("a line is KIND NAME, such as: struct private_*"));
            };
            patterns.push((kind.to_owned(), name.trim().to_owned()));
        }
        Ok(Patterns(patterns))
    }

    pub(super) fn has(&self, change: &Change) -> bool {
        let mut patterns = self.0.iter();
        patterns.any(|(kind, name)| is_like(kind, change.kind) && is_like(name, &change.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_define_types() {
        let text = "/* struct not { */ #define X struct no {\n\
                    struct one { int a; struct { int b; } in; };\n\
                    typedef struct { int a; } two;\n\
                    typedef struct three three;\n\
                    struct __attribute__((packed)) four { int a; } four_all;\n\
                    enum five { A, B }; union six\n{ int a; }; struct EXPORT seven { int a; }; // struct eight {\n";
        let mut all = BTreeSet::new();
        defined(&text.replace("#define", "\n#define"), &mut all);
        let has = |kind, name: &str| all.contains(&(kind, name.to_owned()));
        assert!(has(Kind::Struct, "one") && has(Kind::Typedef, "two") && has(Kind::Enum, "five"));
        assert!(
            has(Kind::Union, "six") && has(Kind::Struct, "seven") && has(Kind::Struct, "four"),
            "{all:?}"
        );
        assert!(!has(Kind::Struct, "not") && !has(Kind::Struct, "no"));
        assert!(!has(Kind::Struct, "three") && !has(Kind::Struct, "eight"));
    }
}
