//! The interface of a C library: its header's declarations, and the versions of its symbols.

use std::collections::BTreeSet;

/// The lines of a library's list: its symbols, then what its header declares.
pub(super) fn list(versions: &str, header: &str) -> Result<Vec<String>, String> {
    let mut lines = symbols(versions)?;
    let text = without_comments(header);
    let (code, macros) = preprocess(&text);
    lines.extend(declarations(&code)?);
    lines.extend(macros);
    Ok(lines)
}

/// The global names of a version script, each with its version.
fn symbols(script: &str) -> Result<Vec<String>, String> {
    let mut found = BTreeSet::new();
    let script = without_comments(script);
    for node in script.split('}') {
        let Some((version, names)) = node.split_once('{') else {
            continue;
        };
        let version = version.rsplit(';').next().unwrap_or_default();
        let version = version.split_whitespace().next().ok_or("a node without a version")?;
        let mut is_global = true;
        for word in names.split([';', ' ', '\n', '\t']).filter(|word| !word.is_empty()) {
            match word {
                "global:" => is_global = true,
                "local:" => is_global = false,
                name if is_global => _ = found.insert(format!("symbol {name}@@{version}")),
                _ => {}
            }
        }
    }
    Ok(found.into_iter().collect())
}

fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"']) {
        let (before, from) = rest.split_at(at);
        code.push_str(before);
        let length = match from {
            _ if from.starts_with("/*") => {
                code.push(' ');
                from.find("*/").map_or(from.len(), |end| end + 2)
            }
            _ if from.starts_with("//") => from.find('\n').unwrap_or(from.len()),
            _ if from.starts_with('"') => {
                let length = quoted(from);
                code.push_str(&from[..length]);
                length
            }
            _ => {
                code.push('/');
                1
            }
        };
        rest = &from[length..];
    }
    code + rest
}

/// The length of quoted text.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            _ => is_escaped = c == '\\' && !is_escaped,
        }
    }
    text.len()
}

/// The code as C compilers see it, and the macros that users can use: those whose names do not end
/// with `_`, or `_` and a number.
fn preprocess(text: &str) -> (String, Vec<String>) {
    let (mut code, mut macros) = (String::new(), BTreeSet::new());
    let joined = text.replace("\\\n", " ");
    // For each `#if` around a line: whether its lines count.
    let mut counts: Vec<bool> = Vec::new();
    for line in joined.lines() {
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            if counts.iter().all(|counts| *counts) {
                code.push_str(line);
                code.push('\n');
            }
            continue;
        };
        let words = one_line(directive);
        let (word, rest) = words.split_once(' ').unwrap_or((&words, ""));
        match word {
            "ifdef" => counts.push(rest != "__cplusplus"),
            "ifndef" | "if" => counts.push(true),
            "else" | "elif" => {
                // Only C++'s part is left out; of others, all parts are listed.
                let is_first = counts.last().copied();
                if let (Some(last), Some(false)) = (counts.last_mut(), is_first) {
                    *last = true;
                }
            }
            "endif" => _ = counts.pop(),
            "define" if counts.iter().all(|counts| *counts) => {
                macros.extend(defined(rest));
            }
            _ => {}
        }
    }
    (code, macros.into_iter().collect())
}

/// A macro's line: what a function-like one takes, or the value of another one.
fn defined(rest: &str) -> Option<String> {
    let end = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    if name.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with('_') || rest.is_empty() {
        return None;
    }
    match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((arguments, _)) => Some(format!("#define {name}({arguments})")),
        None => Some(format!("#define {name}{rest}")),
    }
}

/// Types, constants, functions and variables, each a line, in this order.
fn declarations(code: &str) -> Result<Vec<String>, String> {
    let (mut types, mut functions) = (BTreeSet::new(), BTreeSet::new());
    for declaration in split(code) {
        let declaration = one_line(&declaration);
        if declaration.starts_with("enum ") {
            types.extend(constants(&declaration)?);
        } else if declaration.starts_with("struct ") && !declaration.contains('(') || is_type(&declaration) {
            types.insert(declaration);
        } else {
            let head = declaration.split('{').next().unwrap_or_default().trim();
            functions.insert(head.trim_end_matches(';').to_owned() + ";");
        }
    }
    Ok(types.into_iter().chain(functions).collect())
}

fn is_type(declaration: &str) -> bool {
    ["typedef ", "struct ", "union "]
        .iter()
        .any(|word| declaration.starts_with(word))
        && (declaration.starts_with("typedef ") || declaration.contains('{'))
}

/// Declarations and definitions.
fn split(code: &str) -> Vec<String> {
    let (mut found, mut current, mut depth) = (Vec::new(), String::new(), 0_usize);
    for c in code.chars() {
        current.push(c);
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        // A function's body ends a declaration, too.
        let is_body = c == '}' && current.split('{').next().is_some_and(|head| head.contains('('));
        if depth == 0 && (c == ';' || is_body) {
            found.push(std::mem::take(&mut current));
        }
    }
    found.retain(|declaration| !declaration.trim().is_empty());
    found
}

/// The constants of an `enum` with their values.
fn constants(declaration: &str) -> Result<Vec<String>, String> {
    let (name, rest) = declaration.split_once('{').ok_or(declaration)?;
    let name = name.trim();
    let (all, _) = rest.split_once('}').ok_or(declaration)?;
    let mut lines = Vec::new();
    let mut next = 0_i64;
    for constant in all.split(',').map(str::trim).filter(|constant| !constant.is_empty()) {
        let (constant, value) = match constant.split_once('=') {
            Some((constant, value)) => (constant.trim(), value.trim().parse().map_err(|_| constant)?),
            None => (constant, next),
        };
        next = value + 1;
        lines.push(format!("{name} {{ {constant} = {value} }}"));
    }
    Ok(lines)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSIONS: &str = "/* old */ V_1 {\n global:\n  one;\n local:\n *;\n};\nV_2 { two; } V_1;\n";
    const HEADER: &str = "/* A library; for tests. */
#ifndef GUARD_H
#define GUARD_H
#include <stddef.h>
#ifdef __cplusplus
extern \"C\" {
#define ASSERT static_assert
#else
#define ASSERT _Static_assert
#endif
struct handle;
struct pair { /* two */
    size_t size; int (*each)(void *closure);
};
enum kind { FIRST = 3, SECOND };
typedef unsigned id;
int one(const struct pair *pair,
        int (*each)(void *closure)); // calls it
extern const struct pair two;
#define LEVEL 6
#define EVENT(name, ...) do { record(name \\
    ); } while (0)
#define INTERNAL_(x) x
static inline int three(void) {
    return 3;
}
#ifdef __cplusplus
}
#endif
#endif
";

    #[test]
    fn a_library_is_listed() {
        let lines = list(VERSIONS, HEADER).unwrap();
        let expected = "symbol one@@V_1
symbol two@@V_2
enum kind { FIRST = 3 }
enum kind { SECOND = 4 }
struct handle;
struct pair { size_t size; int (*each)(void *closure); };
typedef unsigned id;
extern const struct pair two;
int one(const struct pair *pair, int (*each)(void *closure));
static inline int three(void);
#define ASSERT _Static_assert
#define EVENT(name, ...)
#define LEVEL 6";
        assert_eq!(lines, expected.lines().collect::<Vec<_>>());
    }

    #[test]
    fn planted_changes_are_seen() {
        let before = list(VERSIONS, HEADER).unwrap();
        for (from, to) in [
            ("one;", "one; four;"),
            ("V_2 {", "V_3 {"),
            ("size_t size; int", "size_t bytes; int"),
            ("size_t size; int", "int size; int"),
            ("SECOND }", "SECOND, THIRD }"),
            ("FIRST = 3", "FIRST = 4"),
            ("unsigned id", "unsigned long id"),
            ("int one(", "long one("),
            ("#define LEVEL 6", "#define LEVEL 7"),
            ("EVENT(name, ...)", "EVENT(name)"),
        ] {
            assert!(VERSIONS.contains(from) || HEADER.contains(from), "{from}");
            let after = list(&VERSIONS.replace(from, to), &HEADER.replace(from, to)).unwrap();
            assert_ne!(before, after, "{from}");
        }
        // Comments, spaces and names of the inside are no part of it.
        for (from, to) in [
            ("A library", "The library"),
            ("INTERNAL_(x)", "INTERNAL_(y)"),
            ("three(void) {", "three(void)\n{"),
        ] {
            assert_eq!(before, list(VERSIONS, &HEADER.replace(from, to)).unwrap(), "{from}");
        }
    }
}
