//! Values as gdb prints them, held against ours.

/// The parts between commas, up to the closing parenthesis; commas in quotes and braces do not
/// count.
pub(super) fn split(text: &str) -> Vec<String> {
    let (mut all, mut one) = (Vec::new(), String::new());
    let (mut depth, mut quote, mut escaped) = (0u32, None, false);
    for c in text.chars() {
        match (c, quote) {
            _ if escaped => escaped = false,
            ('\\', Some(_)) => escaped = true,
            (_, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(c),
            ('{' | '(' | '<' | '[', None) => depth += 1,
            (')', None) if depth == 0 => break,
            ('}' | ')' | '>' | ']', None) => depth = depth.saturating_sub(1),
            (',', None) if depth == 0 => {
                all.push(std::mem::take(&mut one));
                continue;
            }
            _ => {}
        }
        one.push(c);
    }
    all.push(one);
    let mut whole: Vec<String> = Vec::new();
    for one in all.iter().map(|one| one.trim()) {
        match whole.last_mut().filter(|_| one.starts_with("capacity ")) {
            // `std::vector of length 2, capacity 4 = {1, 2}`
            Some(last) => *last += &format!(", {one}"),
            None => whole.push(one.to_owned()),
        }
    }
    whole
}

/// Whether two texts of values mean the same: numbers and names must be equal, texts as far as both
/// show them, pointers without further descriptions.
pub fn is_same(ours: &str, gdbs: &str) -> bool {
    // gdb prints the type of pointers to functions first, and the name after the address.
    let gdbs = match gdbs.strip_prefix('(').and_then(|rest| rest.split_once(") 0x")) {
        Some((_, rest)) => format!("0x{rest}"),
        None => gdbs.to_owned(),
    };
    let gdbs = whole_texts(gdbs.replace("(anonymous namespace)", "anonymous"));
    // References are `@0x10: value`; those in structs, `@0x10`.
    if let Some(reference) = gdbs.strip_prefix('@') {
        let (address, value) = reference.split_once(": ").unwrap_or((reference, ""));
        let (own, shown) = ours.split_once(' ').unwrap_or((ours, ""));
        return own == address && (shown.is_empty() || value.is_empty() || is_same(shown, value));
    }
    if let Some(same) = is_same_as_printed(ours, &gdbs) {
        return same;
    }
    if ours.contains(" | ") || gdbs.contains(" | ") && gdbs.starts_with('(') {
        return flags(ours) == flags(&gdbs);
    }
    // In C++ and Rust, enumerators and variants are printed with their full paths.
    let ((name, value), (their_name, their_value)) = (with_name(ours), with_name(&gdbs));
    if (ours == "{}" || ours == "{...}") && their_value.is_empty() && gdbs.contains("::") {
        // A struct of Rust without members has only its name.
        return true;
    }
    // Without its libraries' printers, gdb shows the members of a string, among them its text.
    if ours.starts_with('"') && gdbs.starts_with('{') {
        return gdbs.contains(&format!(" {ours}"));
    }
    if let (Some(one), Some(other)) = (members(value), members(their_value)) {
        return name == their_name && are_same(&one, &other);
    }
    is_same_scalar(ours, if their_value.is_empty() { their_name } else { &gdbs })
}

/// The texts with the bytes at their ends that gdb shows after them, because they may be the start
/// of a character: `"a", <incomplete sequence \356>`.
fn whole_texts(mut text: String) -> String {
    const BETWEEN: &str = "\", <incomplete sequence ";
    while let Some(at) = text.find(BETWEEN) {
        let Some(len) = text[at + BETWEEN.len()..].find('>') else {
            break;
        };
        let bytes = text[at + BETWEEN.len()..][..len].to_owned();
        text.replace_range(at..=at + BETWEEN.len() + len, &format!("{bytes}\""));
    }
    text
}

/// Whether two numbers, names, addresses or texts are the same.
fn is_same_scalar(ours: &str, gdbs: &str) -> bool {
    let (one, other) = (words(&in_ascii(ours)), words(&in_ascii(gdbs)));
    if ours.starts_with("0x") {
        let text = |words: &[String]| words.get(1).filter(|word| word.starts_with('"')).cloned();
        return one.first() == other.first()
            && match (text(&one), text(&other)) {
                (Some(one), Some(other)) => {
                    let (one, other) = (one.trim_end_matches(['.', '"']), other.trim_end_matches(['.', '"']));
                    one.starts_with(other) || other.starts_with(one)
                }
                _ => true,
            };
    }
    if one == other {
        return true;
    }
    // The number says which character it is.
    if let Some((number, _)) = gdbs.strip_suffix('\'').and_then(|rest| rest.split_once(' ')) {
        return ours.split(' ').next() == Some(number);
    }
    match (ours.parse::<f64>(), gdbs.parse::<f64>()) {
        (Ok(one), Ok(other)) => one == other || (one - other).abs() <= one.abs() * 1e-6,
        _ => false,
    }
}

/// The names in `(A | B)`, without their paths.
pub(super) fn flags(text: &str) -> Vec<&str> {
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    let names = inner.unwrap_or(text).split(" | ");
    names.map(|name| name.rsplit("::").next().unwrap_or(name)).collect()
}

/// Whether a printer of libstdc++ or Rust has made what follows ` = ` or ` containing `.
fn is_printed(head: &str) -> bool {
    let name = head.split(['(', '<']).next().unwrap_or(head);
    let by_rust = ["(size=", "(strong="]
        .iter()
        .any(|start| head[name.len()..].starts_with(start));
    head.starts_with("std::") || head.starts_with("filesystem::") || by_rust && !name.contains(['{', '"'])
}

/// Whether ours is the value that a printer has shown; `None` if none has.
fn is_same_as_printed(ours: &str, gdbs: &str) -> Option<bool> {
    // `std::tuple containing = {[1] = 1}`
    let gdbs = &gdbs.replacen(" containing = {", " = {", 1);
    if gdbs == "empty std::shared_ptr" || gdbs == "empty std::unique_ptr" {
        return Some(ours == "0x0");
    }
    // References to what a printer shows have no address.
    if ours.starts_with("0x") && (is_printed(gdbs) && !gdbs.contains("get() = ") || gdbs.starts_with('"')) {
        return Some(ours.split_once(' ').is_none_or(|(_, shown)| is_same(shown, gdbs)));
    }
    if !is_printed(gdbs) {
        return None;
    }
    let nothing = [
        "[no contained value]",
        "of length 0, capacity 0",
        "with 0 elements",
        "(size=0)",
    ];
    if nothing.iter().any(|nothing| gdbs.ends_with(nothing)) {
        return Some(ours == "{}");
    }
    let at = [" = {", " containing "]
        .into_iter()
        .filter_map(|between| gdbs.find(between));
    let (head, rest) = gdbs.split_at(at.min()?);
    let shown = match rest.strip_prefix(" containing ") {
        Some(value) => value,
        None => rest.strip_prefix(" = {")?.strip_suffix('}')?,
    };
    if let Some(address) = shown.strip_prefix("get() = ") {
        return Some(is_same(ours, address));
    }
    let Some(own) = ours.strip_prefix('{').and_then(|own| own.strip_suffix('}')) else {
        return Some(false);
    };
    if let Some(number) = head.split_once("[index ").and_then(|(_, rest)| rest.strip_suffix(']')) {
        let value = own.strip_prefix(&format!("[{number}] = "));
        return Some(value.is_some_and(|value| is_same(value, shown)));
    }
    let value = shown.strip_prefix("[contained value] = ");
    let value = value.or((rest.starts_with(" containing ")).then_some(shown));
    Some(is_same(ours, &format!("{{{}}}", value.unwrap_or(shown))))
}

/// The name of an enumerator or a variant without its path, and the braces, parentheses or brackets
/// after it, if there are any. If the name is a struct's of Rust, from which gdb separates these by
/// a space, it is left out.
fn with_name(text: &str) -> (&str, &str) {
    let is_pointer = text.starts_with(['&', '*']);
    if !is_pointer && !text.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        return ("", text);
    }
    let (mut depth, mut last, mut before) = (0u32, 0, ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' | '[' => depth += 1,
            '>' | ']' => depth = depth.saturating_sub(1),
            // `a::{closure_env#0}`
            '{' if before == ':' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            ':' => last = at + 1,
            ' ' if text[at + 1..].starts_with(['(', '{', '[']) => return ("", &text[at + 1..]),
            '(' | '{' => return (&text[last..at], &text[at..]),
            _ if c.is_alphanumeric() || "_&*".contains(c) || c == ' ' && is_pointer => {}
            _ => return ("", text),
        }
        before = c;
    }
    (&text[last..], "")
}

/// A member's name and its value.
type Member = (String, String);

/// The members or elements of a struct, a tuple or an array with their names, if they have any: in
/// the format of C, of C++, which prints bases as `<space::Base>`, or of Rust, with colons.
fn members(text: &str) -> Option<Vec<Member>> {
    let end = match text.chars().next()? {
        '{' => '}',
        '(' => ')',
        '[' => ']',
        _ => return None,
    };
    let inner = text[1..].strip_suffix(end)?;
    let member = |text: &str| {
        let between: &[&str] = match text.starts_with('[') && text.contains("] = ") {
            true => &["] = "],
            false => &[" = ", ": "],
        };
        let named = between.iter().filter_map(|between| text.split_once(between));
        let (name, value) = named
            .min_by_key(|(name, _)| name.len())
            .filter(|(name, _)| name.starts_with('[') || !name.contains(['"', '{', '(']) && !is_printed(name))
            .unwrap_or(("", text));
        (name.to_owned(), value.to_owned())
    };
    let texts = split(inner)
        .into_iter()
        .filter(|one| !one.is_empty() && one != "<No data fields>");
    Some(texts.flat_map(repeated).map(|one| member(&one)).collect())
}

/// `7 <repeats 12 times>` as twelve elements.
fn repeated(one: String) -> Vec<String> {
    let parts = one
        .strip_suffix(" times>")
        .and_then(|rest| rest.rsplit_once(" <repeats "));
    match parts.and_then(|(value, times)| Some((value, times.parse().ok()?))) {
        Some((value, times @ 1..=4096)) => vec![value.to_owned(); times],
        _ => vec![one],
    }
}

/// Whether this part of a value is lost.
pub(super) fn is_lost(value: &str) -> bool {
    let unknown = ["<optimized out", "<synthetic", "<error"];
    let is_unknown = |value: &str| unknown.iter().any(|unknown| value.starts_with(unknown));
    // Rust's type may be in front.
    let after = value.split_once(" <error").filter(|(of, _)| !of.contains(['{', '"']));
    value == "..." || is_unknown(value) || after.is_some()
}

/// Whether both have the same members, as far as neither has lost them.
fn are_same(ours: &[Member], gdbs: &[Member]) -> bool {
    // Long ones are cut off, and deep ones are not shown at all.
    let is_cut = ours
        .last()
        .is_some_and(|(name, value)| name.is_empty() && value == "...");
    let is_name = |name: &str, theirs: &str| match (name.strip_prefix('['), theirs.strip_prefix('[')) {
        (Some(key), Some(theirs)) => is_same(key, theirs),
        // Printers of lists, sets and tuples count what they show.
        (None, Some(number)) if name.is_empty() => number.parse::<u32>().is_ok(),
        // A base may have the name of a typedef.
        _ => name == theirs || theirs.starts_with('<'),
    };
    let mut both = ours.iter().zip(gdbs);
    (ours.len() == gdbs.len() || is_cut && gdbs.len() + 1 >= ours.len())
        && both.all(|((name, one), (their_name, other))| {
            is_lost(one) || is_lost(other) || is_name(name, their_name) && is_same(one, other)
        })
}

/// Replaces non-ASCII characters by bytes: the two may disagree about which bytes form characters.
fn in_ascii(text: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii() {
        true => char::from(byte).to_string(),
        false => format!("\\{byte:03o}"),
    };
    text.bytes().map(byte).collect()
}

/// Words and quoted texts; spaces inside braces do not count.
fn words(text: &str) -> Vec<String> {
    let (mut all, mut one, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted => {
                all.push(std::mem::take(&mut one));
                continue;
            }
            _ => {}
        }
        one.push(c);
    }
    all.push(one);
    all
}

#[cfg(test)]
mod tests {
    use super::super::Argument;
    use super::*;

    #[test]
    fn values_are_held_against_each_other() {
        assert!(is_same("3", "3") && !is_same("3", "4"));
        assert!(is_same("0x20", "(int (*)(void)) 0x20") && !is_same("0x20", "0x21"));
        assert!(is_same("0x20 \"abcdef\"", "0x20 \"abc\"...") && !is_same("0x20 \"abc\"", "0x20 \"abd\""));
        assert!(is_same("0x20 \"é\"", "0x20 \"\\303\\251\"") && !is_same("0x20 \"é\"", "0x20 \"\\303\\252\""));
        assert!(is_same("2.5", "2.5") && is_same("100000000000000000000", "1e+20"));
        assert!(!is_same("BLUE", "RED"));
        assert!(is_same("green", "shop::Colour::green") && !is_same("red", "shop::Colour::green"));
        assert!(is_same("0x20", "@0x20: {a = 1}") && !is_same("0x20", "@0x21: {a = 1}"));
        assert!(
            is_same("{a = 1, b = ...}", "{a = 1, b = <optimized out>}")
                && !is_same("{a = 1, b = ...}", "{a = 2, b = 3}")
        );
        assert!(
            is_same("{a = 1, b = 2}", "path::Of {a: 1, b: 2}") && !is_same("{a = 1, b = 2}", "path::Of {a: 2, b: 2}")
        );
        assert!(is_same(
            "{B = {x = 1}, s = 0x1 \"a, {b\"}",
            "{<n::B> = {x = 1}, s = 0x1 \"a, {b\"}"
        ));
        assert!(is_same(
            "{B = {}, c = {...}}",
            "{<n::B> = {<No data fields>}, c = {d = {e = 1}, f = 2}}"
        ));
        assert!(is_same("\"ab\"", "{p = 0x1 \"ab\", n = 2}") && !is_same("\"ab\"", "{p = 0x1 \"abc\", n = 3}"));
        assert!(is_same("{1, 0 <repeats 3 times>}", "{1, 0, 0, 0}") && !is_same("{0 <repeats 3 times>}", "{0, 0}"));
        assert!(is_same(
            "Some((1, \"a\"))",
            "core::option::Option<(i32, &str)>::Some((1, \"a\"))"
        ));
        assert!(is_same("Rect{w = 3}", "a::Shape::Rect{w: 3}") && !is_same("Rect{w = 3}", "a::Shape::Square{w: 3}"));
        assert!(is_same("{1, 2}", "std::vector of length 2, capacity 4 = {1, 2}"));
        assert!(!is_same("{1, 2}", "std::vector of length 2, capacity 4 = {1, 3}"));
        assert!(is_same("{4}", "std::optional<int> = {[contained value] = 4}"));
        assert!(
            is_same("{}", "std::optional<int> [no contained value]")
                && !is_same("{4}", "std::optional<int> [no contained value]")
        );
        assert!(is_same("{[1] = 2.5}", "std::variant<int, double> [index 1] = {2.5}"));
        assert!(!is_same("{[0] = 2.5}", "std::variant<int, double> [index 1] = {2.5}"));
        assert!(
            is_same("0x20", "std::unique_ptr<int> = {get() = 0x20}")
                && !is_same("0x20", "std::unique_ptr<int> = {get() = 0x21}")
        );
        assert!(is_same(
            "{0x20}",
            "std::vector of length 1, capacity 1 = {std::unique_ptr<int> = {get() = 0x20}}"
        ));
        assert!(is_same(
            "{[4] = {1, 2}}",
            "std::variant<X> [index 4] containing std::vector of length 2, capacity 2 = {1, 2}"
        ));
        assert!(!is_same(
            "{[4] = {1, 2}}",
            "std::variant<X> [index 4] containing std::vector of length 1, capacity 2 = {1}"
        ));
        assert!(is_same(
            r#"{"a", "b"}"#,
            r#"std::set with 2 elements = {[0] = "a", [1] = "b"}"#
        ));
        assert!(!is_same(
            r#"{"a", "c"}"#,
            r#"std::set with 2 elements = {[0] = "a", [1] = "b"}"#
        ));
        assert!(is_same("{1, 1.5}", "std::tuple containing = {[1] = 1, [2] = 1.5}"));
        let gdbs = r#"{data = 0x10 "key\001\340", <incomplete sequence \356>, size = 6}"#;
        assert!(is_same(r#"{data = 0x10 "key\001\340\356", size = 6}"#, gdbs));
        let gdbs = "std::tuple containing = {[1] = 0x0, [2] = {<No data fields>}}";
        assert!(is_same("0x10 {0x0, {}}", gdbs));
        assert!(is_same("{[1] = {x = 2}}", "std::map with 1 element = {[1] = {x = 2}}"));
        assert!(!is_same("{[1] = {x = 2}}", "std::map with 1 element = {[2] = {x = 2}}"));
        assert!(
            is_same("{\"a\", \"b\"}", "Vec(size=2) = {\"a\", \"b\"}")
                && is_same("{v = {1}}", "a::S {v: Vec(size=1) = {1}}")
                && !is_same("{1}", "Vec(size=1) = {2}")
        );
        assert!(
            is_same("{}", "Vec(size=0)") && is_same("{s = {}, n = 2}", "a::S {s: core::marker::PhantomData<u8>, n: 2}")
        );
        assert!(
            is_same("((3))", "n::NonZero<u32> (n::Inner (3))") && !is_same("((3))", "n::NonZero<u32> (n::Inner (4))")
        );
        assert!(
            is_same("{p = 0x20}", "r::Rc<a::T, a::Global> {p: 0x20}") && !is_same("{p = 0x20}", "r::Rc<T> {p: 0x21}")
        );
        assert!(is_same("({...})", "m::D<a::Global> (a::Global)") && !is_same("({...})", "m::D<u8> (7)"));
        assert!(is_same("{1, 2}", "[1, 2]") && !is_same("{1, 2}", "[1, 3]"));
        assert!(is_same("233 'é'", "233 u'\u{e9}'") && is_same("120", "120 'x'") && !is_same("120", "121 'y'"));
        assert!(is_same("(A | B)", "(s::A | s::B)") && !is_same("(A | B)", "(s::A | s::C)"));
        assert!(is_same("{r = 0x20}", "{r = @0x20}") && !is_same("{r = 0x20}", "{r = @0x21}"));
        assert!(!is_same(
            "0x20 {1, 2}",
            "@0x20: std::vector of length 2, capacity 2 = {1, 3}"
        ));
        assert!(
            is_same("{T = {p = 0x1}}", "{<std::B<A, C>> = {p = 0x1}}")
                && !is_same("{T = {p = 0x1}}", "{<B> = {p = 0x2}}")
        );
        assert!(!is_same("Some(1)", "o::Option<i32>::Some(2)") && !is_same("Some(1)", "o::Option<i32>::None"));
        assert!(!is_same("{x = 1}", "{y = 1}") && !is_same("{1, 2}", "{1, 2, 3}") && !is_same("{1, 2}", "{1, 3}"));
    }

    #[test]
    fn values_without_printers_and_numbers_count_too() {
        let argument = |value: &str, raw: Option<&str>, number| Argument {
            name: "a".to_owned(),
            at_entry: false,
            value: Some(value.to_owned()),
            raw: raw.map(str::to_owned),
            number,
            left_over: false,
            by_inlined: false,
        };
        let vector = argument(
            "std::vector of length 1, capacity 1 = {7}",
            Some("{_M_start = 0x20, _M_finish = 0x24}"),
            None,
        );
        assert!(vector.is_shown_as("{7}") && vector.is_shown_as("{_M_start = 0x20, _M_finish = 0x24}"));
        assert!(!vector.is_shown_as("{8}") && !vector.is_shown_as("{_M_start = 0x20, _M_finish = 0x28}"));
        let text = argument("\"a\"", Some("@0x20"), None);
        assert!(text.is_shown_as("0x20 \"a\"") && text.is_shown_as("0x20"));
        assert!(!text.is_shown_as("0x20 \"b\"") && !text.is_shown_as("0x21 \"a\""));
        let owner = argument(
            "std::shared_ptr<T> (use count 1, weak count 0) = {get() = 0x30}",
            Some("@0x20"),
            None,
        );
        assert!(owner.is_shown_as("0x20 0x30") && !owner.is_shown_as("0x20 0x31") && !owner.is_shown_as("0x30"));
        let flags = argument("(s::A | s::TOP)", None, Some(0x8000_0001));
        assert!(flags.is_shown_as("(A | unknown: 0x80000000)") && !flags.is_shown_as("(A | unknown: 0x40000000)"));
        assert!(!flags.is_shown_as("(B | unknown: 0x80000000)") && !flags.is_shown_as("(unknown: 0x80000000)"));
    }
}
