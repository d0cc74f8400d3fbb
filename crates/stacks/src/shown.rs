//! How much of the values of arguments is shown.

/// Names whose values reports that leave the machine do not show.
const SECRETS: [&str; 6] = ["*password*", "*passwd*", "*passphrase*", "*secret*", "*token*", "*key*"];
/// Takes the place of a value, or of a part of one.
pub const HIDDEN: &str = "<hidden>";

/// The values that are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Amount {
    /// None: types only.
    Types,
    /// Numbers and addresses, but no text.
    Numbers,
    /// All.
    #[default]
    All,
}

/// How much of the values of arguments is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The values.
    pub amount: Amount,
    /// The most bytes of a text; larger numbers count as 65,536.
    pub longest_text: usize,
    /// Names of arguments and members whose values are not shown, in upper or lower case; `*`
    /// stands for any letters.
    pub hidden: Vec<String>,
}

impl Default for Shown {
    /// All values, with 200 bytes of a text.
    fn default() -> Shown {
        Shown {
            amount: Amount::All,
            longest_text: 200,
            hidden: Vec::new(),
        }
    }
}

impl Shown {
    /// For reports that others read: without the values of names that are usual for secrets.
    pub fn to_others() -> Shown {
        Shown {
            hidden: SECRETS.map(str::to_owned).to_vec(),
            ..Shown::default()
        }
    }

    /// Whether the value of an argument or a member with this name is hidden.
    pub(crate) fn hides(&self, name: &str) -> bool {
        let lower = || name.to_lowercase();
        !self.hidden.is_empty() && {
            let name = lower();
            self.hidden
                .iter()
                .any(|pattern| is_like(&pattern.to_lowercase(), &name))
        }
    }
}

/// Whether a pattern with `*` for any letters matches all of a text.
pub fn is_like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some((_, after)) = rest.split_once(part) else {
            return false;
        };
        rest = after;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text) in [
            ("*", "any"),
            ("a*", "abc"),
            ("*c", "abc"),
            ("a*c*e", "abcde"),
            ("abc", "abc"),
            ("**b*", "b"),
        ] {
            assert!(is_like(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("a", "ab"),
            ("a*", "ba"),
            ("*a", "ab"),
            ("a*c*e", "abcd"),
            ("", "a"),
            ("ab*b", "ab"),
        ] {
            assert!(!is_like(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn secrets_are_hidden_in_any_case() {
        let shown = Shown::to_others();
        for name in ["password", "user_Password2", "apiKey", "SECRET", "csrf_token"] {
            assert!(shown.hides(name), "{name}");
        }
        assert!(!shown.hides("path") && !Shown::default().hides("password"));
    }
}
