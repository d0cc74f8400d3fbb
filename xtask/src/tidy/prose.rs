//! How comments and documents are written: their width, and words that they do without.

use std::collections::BTreeMap;

/// Columns of a comment's line.
const COLUMNS: usize = 100;

/// Words that read like a translation, with what to write instead.
const WORDS: [(&str, &str); 10] = [
    (" told", "reported, printed, described"),
    (" tells", "says, reports, prints"),
    (" words for", "the field's own term"),
    (" is none", "is not one, does not exist"),
    (" are none", "are not, do not exist"),
    (" at hand", "current, available"),
    (" lent ", "borrowed, provided by the caller"),
    (" so many", "this many, N"),
    ("of what is met", "of what was found"),
    ("nobody asks for", "nobody needs"),
];

/// Comments that are too wide. Code, tables and layouts in comments may be.
pub(super) fn wide(name: &str, text: &str) -> Option<String> {
    let mut in_code = false;
    for (at, line) in text.lines().enumerate() {
        let Some(comment) = comment_of(line) else {
            in_code = false;
            continue;
        };
        if comment.contains("```") {
            in_code = !in_code;
        }
        let is_table = comment.contains(" | ") || comment.contains(" · ");
        if line.chars().count() > COLUMNS && !in_code && !is_table {
            return Some(format!("{name}:{}: a comment of more than {COLUMNS} columns", at + 1));
        }
    }
    None
}

/// Lines with such a word that a room may still have. The numbers only fall.
const LEFT: [(&str, usize); 11] = [
    ("crates/args", 1),
    ("crates/capi", 2),
    ("crates/cfi", 2),
    ("crates/cli", 1),
    ("crates/ctype", 1),
    ("crates/debuginfo", 1),
    ("crates/evidence", 1),
    ("crates/recording", 1),
    ("crates/stacks", 1),
    ("crates/trace", 2),
    ("crates/unwind", 1),
];

/// Rooms that have more lines with such words than are left to them, or fewer, so that the number
/// can be lowered.
pub(super) fn words(files: &[(String, String)]) -> Vec<String> {
    let mut rooms: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, text) in files {
        if name.ends_with(".rs") || name.ends_with(".md") {
            rooms.entry(room(name)).or_default().extend(found(name, text));
        }
    }
    let left = |room: &str| LEFT.iter().find(|(name, _)| *name == room).map_or(0, |(_, left)| *left);
    let finding = |(room, found): (String, Vec<String>)| match (found.len(), left(&room)) {
        (count, left) if count > left => Some(format!(
            "{room}: {count} lines with words to avoid, {left} are left; the last: {}",
            found.last().map_or("", String::as_str)
        )),
        (count, left) if count < left => Some(format!(
            "{room}: {count} lines with words to avoid; lower {left} to that in LEFT"
        )),
        _ => None,
    };
    rooms.into_iter().filter_map(finding).collect()
}

/// The crate or folder that a file belongs to.
fn room(name: &str) -> String {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        ["crates", room, ..] => format!("crates/{room}"),
        [folder, _, ..] => (*folder).to_owned(),
        _ => "the root".to_owned(),
    }
}

/// Each line of comments, or of prose in a document, that has a word of the list.
fn found(name: &str, text: &str) -> Vec<String> {
    let is_document = name.ends_with(".md");
    let prose = text.lines().enumerate().filter_map(|(at, line)| {
        let prose = if is_document { Some(line) } else { comment_of(line) }?;
        let padded = format!(" {} ", prose.to_lowercase());
        let (word, instead) = WORDS.iter().find(|(word, _)| padded.contains(word))?;
        Some(format!("{name}:{}: \"{}\", write: {instead}", at + 1, word.trim()))
    });
    prose.collect()
}

/// The text of a line that is a comment.
fn comment_of(line: &str) -> Option<&str> {
    let comment = line.trim_start().strip_prefix("//")?;
    Some(comment.trim_start_matches(['/', '!']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_comments_are_seen() {
        let long = format!("    // {}\n", "word ".repeat(20));
        assert!(wide("a.rs", &long).is_some());
        assert!(wide("a.rs", &format!("let x = \"{}\";\n", "x".repeat(120))).is_none());
        assert!(wide("a.rs", &format!("//! ```\n//! {}\n//! ```\n", "x ".repeat(60))).is_none());
        assert!(wide("a.rs", &format!("//! | a | {} |\n", "x ".repeat(60))).is_none());
    }

    #[test]
    fn words_are_found_in_prose_alone() {
        let told = ["what is to", "ld of it"].concat();
        assert_eq!(found("a.rs", &format!("// {told}\nlet a = \"{told}\";\n")).len(), 1);
        assert_eq!(found("a.md", &format!("{told}\n\nfine\n")).len(), 1);
        assert!(found("a.rs", "// Bold, gold, retold.\n").is_empty());
        let file = ("crates/planted/src/lib.rs".to_owned(), format!("// {told}\n"));
        assert_eq!(words(&[file]).len(), 1);
    }
}
