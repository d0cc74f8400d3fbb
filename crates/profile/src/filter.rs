//! Which samples of a recording count.

use std::ops::Range;

use crate::entries::without_parameters;
use crate::symbolize::Location;
use crate::threads::Thread;

/// Which samples count. By default, all do.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Filter {
    /// Nanoseconds since the recording's first sample.
    pub time: Option<Range<u64>>,
    /// Only this process: its name or its number.
    pub process: Option<String>,
    /// Only this thread: its name or its number.
    pub thread: Option<String>,
    /// Only samples on this CPU.
    pub cpu: Option<u32>,
    /// Only stacks through this function; see [`matches_function`].
    pub function: Option<String>,
}

impl Filter {
    pub(crate) fn has_time(&self, since_begin: u64) -> bool {
        self.time.as_ref().is_none_or(|time| time.contains(&since_begin))
    }

    pub(crate) fn has_cpu(&self, cpu: u32) -> bool {
        self.cpu.is_none_or(|wanted| wanted == cpu)
    }

    pub(crate) fn is_everyone(&self) -> bool {
        self.process.is_none() && self.thread.is_none()
    }

    pub(crate) fn has_thread(&self, thread: &Thread) -> bool {
        let is = |wanted: &Option<String>, name: &str, number: u32| match wanted {
            Some(wanted) => wanted == name || wanted.parse() == Ok(number),
            None => true,
        };
        is(&self.process, &thread.process, thread.pid) && is(&self.thread, &thread.name, thread.tid)
    }

    pub(crate) fn has_function(&self, location: &Location) -> bool {
        let wanted = self.function.as_deref().unwrap_or_default();
        location
            .calls
            .iter()
            .any(|call| matches_function(&call.function, wanted))
    }
}

/// Whether a function is the one that a user names: by its whole name, or without what it is in
/// (namespaces, types, packages), parameters and template arguments, and what the compiler or the
/// runtime adds: `push` is also `ns::Queue::push(int)`, `push.part.0` and `JS:*push /q.js:1:8`.
pub fn matches_function(name: &str, wanted: &str) -> bool {
    let ends = |name: &str, borders: &[&str]| {
        name.strip_suffix(wanted)
            .is_some_and(|before| before.is_empty() || borders.iter().any(|border| before.ends_with(border)))
    };
    if wanted.is_empty() {
        return false;
    }
    // The end of `f.cold` is no name.
    if ends(name, &["::"]) {
        return true;
    }
    let plain = without_suffix(without_parameters(of_runtime(name)));
    // Go, Java and Python separate by dots, and a type may precede a name.
    let borders = ["::", ".", "/", " ", "*", "&"];
    ends(plain, &borders) || ends(without_arguments(plain), &borders)
}

/// `f` of node's `JS:*f /app/a.js:1:8` and of Python's `py::f:/app/a.py`.
fn of_runtime(name: &str) -> &str {
    if let Some(function) = name.strip_prefix("JS:") {
        let function = function.trim_start_matches(['*', '~', '^', '+', '\'']);
        return function.split(' ').next().unwrap_or(function);
    }
    match name.strip_prefix("py::") {
        Some(function) => function.split(":/").next().unwrap_or(function),
        None => name,
    }
}

/// `f` of `f.isra.0`, `f.part.0.cold` and the like.
fn without_suffix(name: &str) -> &str {
    let suffixes = [".isra.", ".constprop.", ".part.", ".cold", ".lto_priv.", ".llvm."];
    let first = suffixes.iter().filter_map(|suffix| name.find(suffix)).min();
    first.map_or(name, |first| &name[..first])
}

/// `ns::f` of `ns::f<int, std::vector<int> >` and of `ns::f::<u8>`; `operator<` is whole.
fn without_arguments(name: &str) -> &str {
    if !name.ends_with('>') || name.ends_with("->") {
        return name;
    }
    let mut depth = 0_usize;
    for (at, byte) in name.bytes().enumerate().rev() {
        match byte {
            b'>' => depth += 1,
            b'<' if depth == 1 => {
                let before = &name[..at];
                return before.strip_suffix("::").unwrap_or(before);
            }
            b'<' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_match_by_their_last_names() {
        for (name, wanted, is) in [
            ("main", "main", true),
            ("domain", "main", false),
            ("ns::Queue::push(int)", "push", true),
            ("ns::Queue::push(int)", "Queue::push", true),
            ("ns::Queue::push(int)", "ns::Queue::push(int)", true),
            ("ns::Queue::push(int)", "ns::Queue", false),
            ("ns::Queue::push(int)", "", false),
            ("<T as a::B>::c", "c", true),
            ("<T as a::B>::c", "B", false),
            ("a::sort::<u8>", "sort", true),
            ("void std::sort<int*, std::less<int> >(int*, int*)", "std::sort", true),
            (
                "void std::sort<int*, std::less<int> >(int*, int*)",
                "sort<int*, std::less<int> >",
                true,
            ),
            ("bool ns::operator<(int, int)", "operator<", true),
            ("bool ns::operator>>(int, int)", "operator>>", true),
            ("T* ns::A::operator->() const", "A::operator->", true),
            ("grow.part.0.cold", "grow", true),
            ("grow.part.0.cold", "cold", false),
            ("ns::f(int) [clone .isra.0]", "f", true),
            ("encoding/json.Marshal", "Marshal", true),
            ("encoding/json.Marshal", "json.Marshal", true),
            ("int Work.f(int)", "Work.f", true),
            ("JS:*fib /app/n.js:1:13", "fib", true),
            ("JS:~Queue.push file:///app/n.js:1:13", "push", true),
            ("JS:*fib /app/n.js:1:13", "n.js:1:13", false),
            ("py::Queue.push:/app/q.py", "push", true),
            ("operator new(unsigned long)", "operator new", true),
            ("main", "", false),
        ] {
            assert_eq!(matches_function(name, wanted), is, "{name} {wanted}");
        }
    }
}
