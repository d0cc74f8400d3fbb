//! Code without comments and text, and comments without code.

/// A file's code, without comments and quoted text. Good enough for formatted code.
pub(super) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        code.push_str(&without_text(line));
        code.push('\n');
    }
    code
}

/// A line without its comment and without quoted text.
pub(super) fn without_text(line: &str) -> String {
    let mut code = String::new();
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' if quoted => _ = characters.next(),
            '"' => quoted = !quoted,
            '/' if !quoted && characters.peek() == Some(&'/') => break,
            c if !quoted => code.push(c),
            _ => {}
        }
    }
    code
}
