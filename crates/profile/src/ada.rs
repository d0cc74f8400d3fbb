//! Names of Ada's symbols as GNAT encodes them, decoded as `c++filt -s gnat` does ("Name Encoding"
//! in GNAT's `exp_dbug.ads`). Any name of C can look like one, so the caller has to know that it is
//! Ada's.

/// How GNAT spells operators.
const OPERATORS: [(&str, &str); 19] = [
    ("Oabs", "abs"),
    ("Oand", "and"),
    ("Omod", "mod"),
    ("Onot", "not"),
    ("Oor", "or"),
    ("Orem", "rem"),
    ("Oxor", "xor"),
    ("Oeq", "="),
    ("One", "/="),
    ("Olt", "<"),
    ("Ole", "<="),
    ("Ogt", ">"),
    ("Oge", ">="),
    ("Oadd", "+"),
    ("Osubtract", "-"),
    ("Oconcat", "&"),
    ("Omultiply", "*"),
    ("Odivide", "/"),
    ("Oexpon", "**"),
];

/// Names after two underscores; at most a number follows them.
const SPECIAL: [(&str, &str); 5] = [
    ("_elabb", "'Elab_Body"),
    ("_elabs", "'Elab_Spec"),
    ("_size", "'Size"),
    ("_alignment", "'Alignment"),
    ("_assign", ".\":=\""),
];

/// Whether this source file is in Ada.
pub(crate) fn is_source(path: &str) -> bool {
    path.ends_with(".adb") || path.ends_with(".ads")
}

/// The name in Ada; `None` if it is not an encoded one. A clone keeps its suffix.
pub(crate) fn decode(name: &str) -> Option<String> {
    let is_suffix = |(at, _): &(usize, &str)| name[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic());
    let suffix = name.match_indices('.').find(is_suffix);
    let (name, suffix) = name.split_at(suffix.map_or(name.len(), |(at, _)| at));
    let decoded = of_symbol(name)?;
    Some(match suffix {
        "" => decoded,
        suffix => format!("{decoded} [clone {suffix}]"),
    })
}

fn of_symbol(name: &str) -> Option<String> {
    let mut rest = name.strip_prefix("_ada_").unwrap_or(name);
    rest.starts_with(|c: char| c.is_ascii_lowercase()).then_some(())?;
    let mut out = String::with_capacity(rest.len() + 8);
    loop {
        if rest.starts_with('O') {
            let (code, text) = OPERATORS.iter().find(|(code, _)| rest.starts_with(code))?;
            out += &format!("\"{text}\"");
            rest = &rest[code.len()..];
        } else {
            let len = identifier(rest.as_bytes());
            (len > 0).then_some(())?;
            out += rest.get(..len)?;
            rest = &rest[len..];
        }
        // A task's body, or what is declared in it.
        if let Some(after) = rest.strip_prefix("TK") {
            if after == "B" {
                return Some(out);
            }
            rest = after.strip_prefix("__")?;
            out.push('.');
            continue;
        }
        // A subprogram of a protected type.
        if matches!(rest, "P" | "N") {
            return Some(out);
        }
        rest = nested(rest);
        if let Some(after) = rest.strip_prefix('S').filter(|after| is_stream(after)) {
            out += match after.as_bytes().first()? {
                b'R' => "'Read",
                b'W' => "'Write",
                b'I' => "'Input",
                b'O' => "'Output",
                _ => return None,
            };
            rest = &after[1..];
        } else if let Some(after) = rest.strip_prefix('D') {
            out += match after.as_bytes().first()? {
                b'F' => ".Finalize",
                b'A' => ".Adjust",
                _ => return None,
            };
            return Some(out);
        }
        if let Some(after) = rest.strip_prefix("__") {
            if after.starts_with(|c: char| c.is_ascii_digit()) {
                rest = nested(&after[overloading(after.as_bytes())..]);
            } else if after.starts_with('_') && !after.starts_with("__") {
                let (_, text) = SPECIAL.iter().find(|(code, _)| after.starts_with(code))?;
                return Some(out + text);
            } else {
                rest = after;
                out.push('.');
                continue;
            }
        } else if let Some(after) = rest.strip_prefix("_B").or_else(|| rest.strip_prefix("_E")) {
            // The body of an entry, or its barrier.
            return (after.trim_start_matches(|c: char| c.is_ascii_digit()) == "s").then_some(out);
        }
        // A subprogram inside of another one.
        if let Some(after) = rest.strip_prefix('.').filter(|after| !after.is_empty()) {
            let digits = after.trim_start_matches(|c: char| c.is_ascii_digit());
            (digits.len() < after.len()).then_some(())?;
            rest = digits;
        }
        return rest.is_empty().then_some(out);
    }
}

/// The length of the identifier that a text begins with.
fn identifier(text: &[u8]) -> usize {
    if !text.first().is_some_and(u8::is_ascii_lowercase) {
        return 0;
    }
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |at: usize| match text[at] {
        b'_' => text.get(at + 1).is_some_and(|&next| is_part(next)),
        byte => is_part(byte),
    };
    (0..text.len()).find(|&at| !part(at)).unwrap_or(text.len())
}

/// The length of the number of an overloaded name.
fn overloading(text: &[u8]) -> usize {
    let part = |at: usize| match text[at] {
        b'_' => text.get(at + 1).is_some_and(u8::is_ascii_digit),
        byte => byte.is_ascii_digit(),
    };
    (0..text.len()).find(|&at| !part(at)).unwrap_or(text.len())
}

/// What follows the marks of a name that is nested in bodies.
fn nested(text: &str) -> &str {
    match text.strip_prefix('X') {
        Some(after) => after.trim_start_matches(['n', 'b']),
        None => text,
    }
}

/// Whether a letter of a stream's operation ends the name or a part of it.
fn is_stream(text: &str) -> bool {
    matches!(text.as_bytes(), [_] | [_, b'_', ..])
}

#[cfg(test)]
mod tests {
    use super::decode;

    /// Symbols of GNAT's libraries and of a program, and what `c++filt -s gnat` makes of them.
    #[test]
    fn names_of_ada() {
        for (name, expected) in [
            ("shapes__area", "shapes.area"),
            ("shapes__inner__deep__local.0", "shapes.inner.deep.local"),
            ("shapes__inner__deep__local__2", "shapes.inner.deep.local"),
            ("shapes__inner__Oadd", "shapes.inner.\"+\""),
            ("_ada_mainp", "mainp"),
            (
                "ada__directories__directory_vectors__implementation__reference_control_typeSR",
                "ada.directories.directory_vectors.implementation.reference_control_type'Read",
            ),
            ("ada__calendar___elabb", "ada.calendar'Elab_Body"),
            (
                "ada__directories__directory_entry_typeDF",
                "ada.directories.directory_entry_type.Finalize",
            ),
            (
                "ada__directories__directory_entry_typeDA",
                "ada.directories.directory_entry_type.Adjust",
            ),
            (
                "ada__real_time__timing_events__timerTKB",
                "ada.real_time.timing_events.timer",
            ),
            (
                "system__interrupts__interrupt_managerTK__bind_handler.9",
                "system.interrupts.interrupt_manager.bind_handler",
            ),
            (
                "ada__directories__directory_vectors__Oconcat__2Xn",
                "ada.directories.directory_vectors.\"&\"",
            ),
            (
                "ada__complex_text_io__aux_float__getXn",
                "ada.complex_text_io.aux_float.get",
            ),
            ("ada__directories___assign__2", "ada.directories.\":=\""),
            ("ada__directories___size__2", "ada.directories'Size"),
            ("ada__directories__search_stateP", "ada.directories.search_state"),
            (
                "gnat__semaphores__binary_semaphore__seize_B12s",
                "gnat.semaphores.binary_semaphore.seize",
            ),
            (
                "gnat__semaphores__binary_semaphore__seize_E11s",
                "gnat.semaphores.binary_semaphore.seize",
            ),
            (
                "ada__directories__directory_vectors__OconcatXn",
                "ada.directories.directory_vectors.\"&\"",
            ),
        ] {
            assert_eq!(decode(name).as_deref(), Some(expected), "{name}");
        }
    }

    #[test]
    fn clones_keep_their_suffix() {
        let shown = decode("shapes__inner__deep__local.0.constprop.0");
        assert_eq!(shown.as_deref(), Some("shapes.inner.deep.local [clone .constprop.0]"));
    }

    #[test]
    fn other_names_are_not_encoded() {
        for name in [
            "",
            "_start",
            "Main",
            "shapes__Oplus",
            "shapes__",
            "pXz",
            "shapes__z_",
            "colorE",
        ] {
            assert_eq!(decode(name), None, "{name}");
        }
    }
}
