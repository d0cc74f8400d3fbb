//! Cleans text of others where it is printed. Names come from files and processes, whose authors
//! may want a reader to see something else.

/// Whether a character does anything but show itself: it controls a terminal, ends a line, reverses
/// the order of others (U+202E and its kind), is invisible, or can't be in XML.
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{fdd0}'..='\u{fdef}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{fffe}'
                | '\u{ffff}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The text with `instead` in place of each [active](is_active) character.
pub(crate) fn clean(text: &str, instead: char) -> String {
    text.chars().map(|c| if is_active(c) { instead } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_other_text_is_replaced() {
        let name = "a\u{202e}b\u{2066}c\u{1b}[31m\nd\u{200b}e\u{e0041}f\u{ffff}";
        assert_eq!(clean(name, '?'), "a?b?c?[31m?d?e?f?");
        for fine in ["operator new[](unsigned long)", "größe", "函数", "الدالة", "क्\u{200d}ष"] {
            assert_eq!(clean(fine, '?'), fine);
        }
    }
}
