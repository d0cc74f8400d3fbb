//! Manual pages of section 3, from a header: each function's declaration, and the comment before
//! it.

use std::fmt::Write as _;

/// A page for a header, and one for each of its functions: the page's name and its source.
pub(super) fn pages(header: &str, text: &str) -> Vec<(String, String)> {
    let mut functions = functions(text);
    // Others are for macros of the header.
    functions.retain(|function| function.name.starts_with("backtrail_") && !function.name.ends_with('_'));
    functions.retain(|function| !function.comment.is_empty());
    let names: Vec<&str> = functions.iter().map(|function| function.name).collect();
    let pages = functions.iter().map(|function| {
        let related = related(function.name, &names);
        (function.name.to_owned(), page(header, function, &related))
    });
    let overview = overview(header, text, &functions);
    std::iter::once((header.trim_end_matches(".h").to_owned(), overview))
        .chain(pages)
        .collect()
}

/// A function of a header.
struct Function<'t> {
    name: &'t str,
    /// Without the `*` that its lines begin with.
    comment: String,
    declaration: String,
}

/// A comment belongs to the declarations that follow it without an empty line between them.
fn functions(text: &str) -> Vec<Function<'_>> {
    let mut functions = Vec::new();
    let mut comment = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("/*") {
            comment = comment_from(line, &mut lines);
        } else if is_declaration(line) {
            let mut declaration = line.to_owned();
            while !declaration.ends_with(';') {
                let Some(line) = lines.next() else { break };
                declaration = format!("{declaration} {}", line.trim());
            }
            let before = declaration.find('(').map_or("", |end| &line[..end.min(line.len())]);
            functions.push(Function {
                name: before.rsplit([' ', '*']).next().unwrap_or_default(),
                comment: comment.clone(),
                declaration,
            });
        } else {
            comment.clear();
        }
    }
    functions
}

fn is_declaration(line: &str) -> bool {
    !line.starts_with([' ', '#', '}', '/']) && line.contains('(') && !line.starts_with("typedef")
}

fn comment_from<'t>(first: &'t str, lines: &mut impl Iterator<Item = &'t str>) -> String {
    let mut comment = first.trim_start_matches("/*").trim_start().to_owned();
    while !comment.trim_end().ends_with("*/") {
        let Some(line) = lines.next() else { break };
        let line = line.trim_start();
        let line = line
            .strip_prefix('*')
            .filter(|_| !line.starts_with("*/"))
            .unwrap_or(line);
        comment.push('\n');
        comment.push_str(line.strip_prefix(' ').unwrap_or(line));
    }
    comment.trim_end().trim_end_matches("*/").trim_end().to_owned()
}

/// Functions that share the first two words of their name.
fn related<'n>(name: &str, names: &[&'n str]) -> Vec<&'n str> {
    let begin = |name: &str| {
        name.splitn(3, '_')
            .take(2)
            .collect::<Vec<_>>()
            .join("_")
            .trim_end_matches('s')
            .to_owned()
    };
    let others = names
        .iter()
        .filter(|other| **other != name && begin(other) == begin(name));
    others.copied().collect()
}

fn page(header: &str, function: &Function<'_>, related: &[&str]) -> String {
    let name = function.name;
    let text = spelled_out(&function.comment.replace('\n', " "));
    let package = header.trim_end_matches(".h");
    let mut page = head(name);
    // The writer never fails.
    let _ = write!(page, ".SH NAME\n{name} \\- {}\n", escaped(&summary(&text)));
    let _ = write!(
        page,
        ".SH LIBRARY\nlib{} (pkg\\-config {})\n",
        package.replace('-', "_"),
        escaped(package)
    );
    let _ = write!(
        page,
        ".SH SYNOPSIS\n.nf\n.B #include <{header}>\n.PP\n.BI \"{}\"\n.fi\n",
        escaped(&function.declaration)
    );
    let _ = write!(page, ".SH DESCRIPTION\n{}\n", escaped(&text));
    let others = [&[package], related].concat();
    let list: Vec<String> = others.iter().map(|name| format!(".BR {name} (3)")).collect();
    let _ = write!(page, ".SH \"SEE ALSO\"\n{}\n", list.join(" ,\n"));
    page
}

/// The page of the whole library: the comment at the header's start, and all functions.
fn overview(header: &str, text: &str, functions: &[Function<'_>]) -> String {
    let package = header.trim_end_matches(".h");
    let mut lines = text.lines();
    let comment = comment_from(lines.next().unwrap_or_default(), &mut lines);
    let (first, rest) = comment.split_once("\n\n").unwrap_or((&comment, ""));
    let first = first.replace('\n', " ");
    let first = first.split_once(": ").map_or(first.as_str(), |(_, text)| text);
    let mut page = head(package);
    let _ = write!(page, ".SH NAME\n{package} \\- {}\n", escaped(&summary(first)));
    let _ = write!(
        page,
        ".SH SYNOPSIS\n.nf\n.B #include <{header}>\n.PP\ncc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs {})\n.fi\n.SH DESCRIPTION\n",
        escaped(package)
    );
    for paragraph in rest.split("\n\n") {
        let is_code = paragraph.starts_with("  ");
        let text = match is_code {
            true => paragraph.lines().map(verbatim).collect::<Vec<_>>().join("\n"),
            false => escaped(&spelled_out(&paragraph.replace('\n', " "))),
        };
        let (begin, end) = if is_code { (".nf\n", "\n.fi") } else { ("", "") };
        let _ = write!(page, ".PP\n{begin}{text}{end}\n");
    }
    page.push_str(".SH FUNCTIONS\n");
    for function in functions {
        let text = function.comment.replace('\n', " ");
        let _ = write!(page, ".TP\n.BR {} (3)\n{}\n", function.name, escaped(&summary(&text)));
    }
    page
}

fn head(name: &str) -> String {
    format!(
        ".TH {} 3 \"\" \"Backtrail {}\"\n",
        name.to_uppercase(),
        env!("CARGO_PKG_VERSION")
    )
}

/// The first clause of a comment.
fn summary(text: &str) -> String {
    let text = text.trim_start();
    let end = text.find(". ").unwrap_or(text.len());
    let sentence = text.get(..end).unwrap_or_default();
    let end = sentence.find(": ").filter(|end| *end > 10).unwrap_or(end);
    first_small(sentence.get(..end).unwrap_or_default().trim_end_matches('.'))
}

/// What the header's marks mean, for readers who have only the page.
fn spelled_out(text: &str) -> String {
    text.replace("\"In handlers\" marks functions that", "Functions for signal handlers")
        .replace("Not in handlers", "Must not be called in signal handlers")
        .replace("In handlers.", "May be called in signal handlers.")
}

fn first_small(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) if letters.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

/// A line that keeps its spaces.
fn verbatim(line: &str) -> String {
    format!("\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))
}

/// Text in which nothing is a request or an escape.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    let text = text
        .split("  ")
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;
    use std::time::Duration;

    use backtrail_testkit::{available, command, place, scratch};

    use super::*;

    #[test]
    fn every_function_has_a_page_that_groff_accepts() {
        for (header, least) in [
            ("capi/include/backtrail.h", 20),
            ("tracer-capi/include/backtrail-tracer.h", 3),
        ] {
            let path = place::workspace().join("crates").join(header);
            let text = fs::read_to_string(&path).expect("a header");
            let pages = pages("backtrail.h", &text);
            assert!(pages.len() >= least, "{header}: {}", pages.len());
            let folder = scratch();
            for (name, page) in &pages {
                assert!(!page.contains(&format!("{name} \\\\- \n")), "{name} has no comment");
                let file = folder.path().join(name);
                fs::write(&file, page).expect("a scratch folder");
                let mut groff = Command::new("groff");
                groff.args(["-man", "-Tascii", "-ww", "-z"]).arg(&file);
                let Some(finished) = available(command::run(&mut groff, Duration::from_secs(30))) else {
                    return;
                };
                assert!(
                    finished.status.success() && finished.stderr.is_empty(),
                    "{page}{}",
                    finished.describe()
                );
            }
        }
    }

    #[test]
    fn a_page_has_the_declaration_and_the_comment() {
        let text = "/* Lib: does things.\n *\n *     thing_do(-1);\n *\n * Link it. */\n\n/* Does a thing: now. Returns\n * -EINVAL. Not in handlers. */\nint backtrail_thing_do(int a,\n                 int b);\nvoid backtrail_thing_end(void);\n";
        let pages = pages("lib.h", text);
        let (name, page) = &pages[0];
        assert_eq!(name, "lib");
        assert!(page.contains("lib \\- does things\n"), "{page}");
        assert!(page.contains("\n\\&    thing_do(\\-1);\n"), "{page}");
        assert!(page.contains(".BR backtrail_thing_do (3)\ndoes a thing\n"), "{page}");
        let (name, page) = &pages[1];
        assert_eq!(name, "backtrail_thing_do");
        assert!(page.contains("backtrail_thing_do \\- does a thing\n"), "{page}");
        assert!(page.contains("int backtrail_thing_do(int a, int b);"), "{page}");
        assert!(
            page.contains("Returns \\-EINVAL. Must not be called in signal handlers.\n"),
            "{page}"
        );
        assert!(page.contains(".BR lib (3) ,\n.BR backtrail_thing_end (3)"), "{page}");
        assert_eq!(pages.len(), 3);
    }
}
