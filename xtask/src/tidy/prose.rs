//! How comments and documents are written: their width, and words that they do without.

/// Columns of a comment's line.
const COLUMNS: usize = 100;

/// Words that read like a translation, with what to write instead.
const WORDS: [(&str, &str); 12] = [
    (" told", "reported, printed, described"),
    (" tells", "says, reports, prints"),
    ("words for", "the field's own term"),
    (" is none", "is not one, does not exist"),
    (" are none", "are not, do not exist"),
    ("at hand", "current, available"),
    (" lent ", "borrowed, provided by the caller"),
    (" so many", "this many, N"),
    ("of what is met", "of what was found"),
    (" wherever nobody", "if nobody"),
    ("nobody asks for", "nobody needs"),
    (" is told", "is reported"),
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

/// How many lines of comments, or of prose in a document, have a word of the list, and the first of them.
pub(super) fn count(name: &str, text: &str) -> (usize, Option<String>) {
    let is_document = name.ends_with(".md");
    let prose = text.lines().enumerate().filter_map(|(at, line)| {
        let prose = if is_document { Some(line) } else { comment_of(line) }?;
        let padded = format!(" {} ", prose.to_lowercase());
        let (word, instead) = WORDS.iter().find(|(word, _)| padded.contains(word))?;
        Some(format!("{name}:{}: \"{}\"; write: {instead}", at + 1, word.trim()))
    });
    let mut found = prose.collect::<Vec<_>>();
    (found.len(), (!found.is_empty()).then(|| found.swap_remove(0)))
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
    fn words_are_counted_in_prose_alone() {
        let told = ["what is to", "ld of it"].concat();
        assert_eq!(count("a.rs", &format!("// {told}\nlet a = \"{told}\";\n")).0, 1);
        assert_eq!(count("a.md", &format!("{told}\n\nfine\n")).0, 1);
        assert_eq!(count("a.rs", "// Bold, gold, retold.\n").0, 0);
    }
}
