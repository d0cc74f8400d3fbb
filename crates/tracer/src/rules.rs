//! Rules that switch event classes: `net:*,-net:debug_*,disk:*@info,db:query+stack`.
//!
//! A rule is an optional `-`, a pattern with `*` for any text and `?` for any character, an
//! optional `@LEVEL`, up to which its classes count, and an optional `+stack` or `+sampled`. The
//! last rule that applies to a class decides. Evaluated without memory of its own, so that handlers
//! may register classes.

use crate::switch::{Level, OFF, ON, SAMPLED, STACK};

/// The switch of a class: what the last rule that applies says; off without one. `wanted` has
/// the bits that the class itself asks for.
pub fn switch(rules: &[u8], name: &[u8], level: u8, wanted: u32) -> u32 {
    let mut switch = OFF;
    for rule in rules.split(|&byte| byte == b',' || byte == b'\n') {
        if let Some(found) = apply(rule.trim_ascii(), name, level, wanted) {
            switch = found;
        }
    }
    switch
}

fn apply(rule: &[u8], name: &[u8], level: u8, wanted: u32) -> Option<u32> {
    let (is_off, rule) = match rule.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, rule),
    };
    let (rule, stack) = match rule.iter().rposition(|&byte| byte == b'+').map(|at| rule.split_at(at)) {
        Some((rest, b"+stack")) => (rest, STACK),
        Some((rest, b"+sampled")) => (rest, SAMPLED),
        _ => (rule, 0),
    };
    let (pattern, most) = match rule.iter().position(|&byte| byte == b'@') {
        Some(at) => {
            let (pattern, rest) = rule.split_at(at);
            (pattern, Level::named(rest.get(1..).unwrap_or_default())?.number())
        }
        None => (rule, u8::MAX),
    };
    if pattern.is_empty() || level > most || !matches(pattern, name) {
        return None;
    }
    Some(match is_off {
        true => OFF,
        false => ON | wanted | stack,
    })
}

/// Whether the pattern is the whole name.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut with) = (0, 0);
    // The last star, and the place in the name after what it stands for.
    let mut star = None;
    while let Some(&byte) = name.get(at) {
        match pattern.get(with) {
            Some(b'*') => {
                star = Some((with, at));
                with += 1;
            }
            Some(&wanted) if wanted == byte || wanted == b'?' => {
                at += 1;
                with += 1;
            }
            _ => {
                let Some((place, covered)) = star else { return false };
                star = Some((place, covered + 1));
                at = covered + 1;
                with = place + 1;
            }
        }
    }
    pattern
        .get(with..)
        .is_some_and(|rest| rest.iter().all(|&byte| byte == b'*'))
}

/// The first rule that is not one.
pub fn wrong(rules: &str) -> Option<&str> {
    let mut all = rules.split([',', '\n']).map(str::trim).filter(|rule| !rule.is_empty());
    all.find(|rule| {
        let (pattern, rest) = rule.split_at(rule.find(['@', '+']).unwrap_or(rule.len()));
        let (level, stack) = rest.split_at(rest.find('+').unwrap_or(rest.len()));
        let level_is_known = level.is_empty()
            || level
                .strip_prefix('@')
                .is_some_and(|name| Level::named(name.as_bytes()).is_some());
        let pattern = pattern.strip_prefix('-').unwrap_or(pattern);
        pattern.is_empty() || !level_is_known || !["", "+stack", "+sampled"].contains(&stack)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("a", "", false),
            ("net:*", "net:packet", true),
            ("*ck*t", "net:packet", true),
            ("net:?acket", "net:packet", true),
            ("net", "net:packet", false),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn the_last_rule_decides() {
        let of = |rules: &str, name: &str| switch(rules.as_bytes(), name.as_bytes(), Level::Info.number(), 0);
        assert_eq!(of("", "a:b"), OFF);
        assert_eq!(of("*", "a:b"), ON);
        assert_eq!(of("*, -a:*", "a:b"), OFF);
        assert_eq!(of("-a:*,a:b+stack", "a:b"), ON | STACK);
        assert_eq!(of("a:*@warning", "a:b"), OFF);
        assert_eq!(of("a:*@debug+sampled", "a:b"), ON | SAMPLED);
        assert_eq!(switch(b"*", b"a:b", 6, STACK), ON | STACK);
    }

    #[test]
    fn wrong_rules() {
        assert_eq!(wrong("*,-a:*@info,b+stack,c@debug+sampled\n"), None);
        assert_eq!(wrong("*,a@loud"), Some("a@loud"));
        assert_eq!(wrong("a+heap"), Some("a+heap"));
        assert_eq!(wrong("-"), Some("-"));
    }
}
