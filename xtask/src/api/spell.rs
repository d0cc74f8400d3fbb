//! Tokens as text, spaced like formatted code.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// Marks of two characters that are one.
const PAIRS: [&str; 7] = ["::", "->", "=>", "..", "&&", "||", "=="];

/// After these, a parenthesis or bracket begins a type of its own.
const KEYWORDS: [&str; 10] = ["as", "const", "dyn", "else", "for", "if", "impl", "in", "mut", "where"];

/// The text of tokens.
pub(super) fn spell(tokens: TokenStream) -> String {
    let mut words = Vec::new();
    collect(tokens, &mut words);
    let mut text = String::new();
    for (at, word) in words.iter().enumerate() {
        if at > 0 && has_space(&words[at - 1], word) {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

fn collect(tokens: TokenStream, words: &mut Vec<String>) {
    // Whether the next mark belongs to the last word.
    let mut is_joint = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => {
                        collect(group.stream(), words);
                        continue;
                    }
                };
                words.push(open.to_owned());
                collect(group.stream(), words);
                words.push(close.to_owned());
                is_joint = false;
            }
            TokenTree::Punct(mark) => {
                let c = mark.as_char();
                let pair = words.last().map(|last| format!("{last}{c}"));
                match pair.filter(|pair| is_joint && PAIRS.contains(&pair.as_str())) {
                    Some(pair) => {
                        words.pop();
                        words.push(pair);
                    }
                    None => words.push(c.to_string()),
                }
                is_joint = mark.spacing() == Spacing::Joint;
            }
            TokenTree::Ident(name) => {
                match words.last_mut().filter(|last| is_joint && last.as_str() == "'") {
                    Some(quote) => quote.push_str(&name.to_string()),
                    None => words.push(name.to_string()),
                }
                is_joint = false;
            }
            TokenTree::Literal(literal) => {
                words.push(literal.to_string());
                is_joint = false;
            }
        }
    }
}

fn has_space(before: &str, after: &str) -> bool {
    if matches!(after, "," | ";" | ")" | "]" | ">" | "." | "::" | ":") {
        return after == "::" && matches!(before, "->" | "=" | ",");
    }
    if matches!(
        before,
        "(" | "[" | "<" | "&" | "&&" | "::" | "." | "#" | "!" | "*" | "?" | "$"
    ) {
        return false;
    }
    if matches!(after, "*" | "?") && before == ")" {
        // How often a part of a macro's pattern may come.
        return false;
    }
    let is_name = |word: &str| word.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    match after {
        "<" | "!" => !is_name(before),
        "(" => !(is_name(before) && !KEYWORDS.contains(&before) || before == ">"),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_spelled_as_it_is_formatted() {
        for code in [
            "fn f(&self, pc: u64) -> Option<Row>",
            "fn f<'t, T: Read + 'static>(self: &'t mut T, bytes: &'t [u8; 4]) -> Result<(), Error<'t>>",
            "impl<T> From<&T> for Vec<[u8; N]> where T: ?Sized, for<'a> &'a T: Into<u8>",
            "&mut dyn FnMut(&Item<'_>, (u8, u16)) -> ()",
            "fn(*const u8, *mut [u8]) -> !",
            "<T as Iterator>::Item",
            "Option<<T as Iterator>::Item>",
            "#[repr(C)]",
            "feature = \"write\"",
            "all(feature = \"local\", not(miri))",
            "(&'static str, &[u8])",
            "($name: ident $(, $($field: tt)*)?)",
        ] {
            assert_eq!(spell(code.parse().unwrap()), code);
        }
    }
}
