//! Whether output has the shape that a page prints: the same words, other numbers.

use super::page::Compared;

/// Any text within a line, or any lines if it is alone on one.
pub(super) const OMITTED: &str = "…";

/// How the output differs from the page's.
pub(super) fn difference(printed: &[String], output: &str, compared: Compared) -> Option<String> {
    if compared == Compared::Nothing {
        return None;
    }
    let any_row = |line: String| match is_row(&line) {
        true if compared == Compared::AllButRows => format!("# # {OMITTED}"),
        _ => line,
    };
    let expected: Vec<String> = printed.iter().map(|line| any_row(shape(line))).collect();
    let lines: Vec<String> = without_losses(output).map(shape).collect();
    let (expected, lines) = (without_end(&expected), without_end(&lines));
    if are_alike(expected, lines) {
        return None;
    }
    // The longest beginning of the page's lines that the output has.
    let omitted = OMITTED.to_owned();
    let begins = |count: &usize| are_alike(&[&expected[..*count], std::slice::from_ref(&omitted)].concat(), lines);
    let common = (0..expected.len()).rev().find(begins).unwrap_or(0);
    let wanted = printed.get(common).map_or("nothing more", String::as_str);
    let at = common + 1;
    Some(format!(
        "from line {at} on not as printed: the page has {wanted:?}, the output is\n{output}"
    ))
}

/// The lines without the warning that samples were lost, which a busy machine causes.
fn without_losses(output: &str) -> impl Iterator<Item = &str> {
    let mut is_help = false;
    output.trim_end_matches('\n').lines().filter(move |line| {
        let is_warning = line.starts_with("backtrail: warning: ") && line.contains(" of the samples were lost");
        let is_left_out = is_warning || is_help && line.starts_with("help: ");
        is_help = is_warning;
        !is_left_out
    })
}

/// The lines without empty ones at their end.
fn without_end(lines: &[String]) -> &[String] {
    let end = lines
        .iter()
        .rposition(|line| !line.is_empty())
        .map_or(0, |last| last + 1);
    &lines[..end]
}

fn are_alike(expected: &[String], lines: &[String]) -> bool {
    match expected {
        [] => lines.is_empty(),
        [first, rest @ ..] if first == OMITTED => (0..=lines.len()).any(|skipped| are_alike(rest, &lines[skipped..])),
        // Which of two functions took more time is another number: rows may change places.
        [first, rest @ ..] if is_row(first) => {
            let count = lines.iter().position(|line| !is_row(line)).unwrap_or(lines.len());
            (0..count).any(|at| {
                let others = || [&lines[..at], &lines[at + 1..]].concat();
                is_alike(first, &lines[at]) && are_alike(rest, &others())
            })
        }
        [first, rest @ ..] => match lines {
            [line, more @ ..] => is_alike(first, line) && are_alike(rest, more),
            [] => false,
        },
    }
}

/// Whether a line is a row of a table: two numbers, then more.
fn is_row(line: &str) -> bool {
    let is_number = |word: &str| matches!(word, "#" | "-#");
    let mut words = line.split(' ');
    words.next().is_some_and(is_number) && words.next().is_some_and(is_number) && words.next().is_some()
}

/// Whether a line is that of the page, with anything where the page leaves something out.
fn is_alike(expected: &str, line: &str) -> bool {
    let parts: Vec<&str> = expected.split(OMITTED).collect();
    let [first, middle @ .., last] = parts.as_slice() else {
        return expected == line;
    };
    let Some(mut rest) = line.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    true
}

/// A line without its numbers and the width of its gaps.
fn shape(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(word_shape).collect();
    words.join(" ")
}

fn word_shape(word: &str) -> String {
    let mut shape = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let length = number(rest);
        if length > 0 {
            shape.push('#');
            rest = &rest[length..];
        } else {
            shape.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    shape
}

/// The length of the number that a text starts with: decimal, hexadecimal with 0x, with commas.
fn number(text: &str) -> usize {
    let count = |text: &str, is_digit: fn(char) -> bool| text.find(|c| !is_digit(c)).unwrap_or(text.len());
    if let Some(digits) = text.strip_prefix("0x") {
        return 2 + count(digits, |c| c.is_ascii_hexdigit());
    }
    let length = count(text, |c| c.is_ascii_digit() || c == '.' || c == ',');
    let trimmed = text[..length].trim_end_matches(['.', ',']);
    if trimmed.starts_with(|c: char| c.is_ascii_digit()) {
        trimmed.len()
    } else {
        0
    }
}

#[test]
fn shapes_differ_in_words_alone() {
    let differs = |printed: &str, output: &str| {
        let printed: Vec<String> = printed.lines().map(str::to_owned).collect();
        difference(&printed, output, Compared::All).is_some()
    };
    for (printed, output, is_other) in [
        ("3 samples, 0.5 %", "12,345 samples,  99 %\n", false),
        ("3 samples", "3 sample", true),
        ("at 0x12ab+0x1", "at 0xffee+0x22", false),
        ("a\n…\nb", "a\nx\ny\nb", false),
        ("a\n…\nb", "a\nx\ny", true),
        ("a\n…", "a", false),
        ("a", "a\nb", true),
        ("", "a", true),
        ("in main at …/a.c:3 (a)", "in main at /b/a.c:15 (a)", false),
        ("in main at …/a.c:3 (a)", "in main at /b/c.c:15 (a)", true),
        ("…", "", false),
        ("x…y…z", "x1y2z", false),
        ("x…y…z", "xz", true),
        ("1 2 a\n3 4 b\nend", "5 6 b\n7 8 a\nend", false),
        ("-1 2 a\n3 4 b", "3 4 b\n-5 6 a", false),
        ("1 2 a\n…", "5 6 b\n7 8 a\n9 9 c", false),
        ("1 2 a\n3 4 b", "5 6 b\n7 8 b", true),
        ("1 2 a\nend", "end\n1 2 a", true),
        (
            "a\nhelp: b",
            "a\nbacktrail: warning: 9 % of the samples were lost: x\nhelp: y\nhelp: b",
            false,
        ),
        ("a", "a\nbacktrail: warning: no samples\nhelp: y", true),
    ] {
        assert_eq!(differs(printed, output), is_other, "{printed:?}, {output:?}");
    }
}

#[test]
fn rows_may_be_others_where_a_page_says_so() {
    let printed = ["a", " 1.5  2 f(int)  x", "end"].map(str::to_owned);
    for (output, is_other) in [
        ("a\n 3 4 g() y\nend", false),
        ("a\nend", true),
        ("b\n 3 4 g() y\nend", true),
    ] {
        let difference = difference(&printed, output, Compared::AllButRows);
        assert_eq!(difference.is_some(), is_other, "{output:?}");
    }
    assert_eq!(difference(&printed, "else", Compared::Nothing), None);
}
