//! Lists of public interfaces, which are committed and compared.

/// Lines of a difference that are shown.
const SHOWN: usize = 60;

/// What to print if the committed list is not the current one; `rewrite` is the command that writes
/// it.
pub fn difference(name: &str, committed: &str, current: &str, rewrite: &str) -> Option<String> {
    if committed == current {
        return None;
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (committed.lines().collect(), current.lines().collect());
    // In the order of the lists; a changed item has its old line above its new one.
    let mut shown = Vec::new();
    let mut rest = &new[..];
    for line in &old {
        match rest.iter().position(|other| other == line) {
            Some(at) => {
                shown.extend(rest[..at].iter().map(|line| format!("  + {line}")));
                rest = &rest[at + 1..];
            }
            None => shown.push(format!("  - {line}")),
        }
    }
    shown.extend(rest.iter().map(|line| format!("  + {line}")));
    let more = shown.len().saturating_sub(SHOWN);
    shown.truncate(SHOWN);
    if more > 0 {
        shown.push(format!("  … and {more} more lines"));
    }
    Some(format!(
        "{name}: the public interface differs from the list:\n{}\n  If it should change, run `{rewrite}` and \
         describe the change in CHANGELOG.md.",
        shown.join("\n")
    ))
}
