//! The parts of a function's demangled name, and whether a user means it by a shorter one.

/// Characters of C++'s operators; `()` and `[]` are operators too.
const OPERATOR: [char; 14] = ['<', '>', '=', '!', '+', '-', '*', '/', '%', '^', '&', '|', '~', ','];

/// The brackets of a name that are in no others, from the opening one to behind the closing one. Of
/// a name that was cut within brackets, to its end.
struct Brackets<'n> {
    name: &'n str,
    at: usize,
}

impl<'n> Brackets<'n> {
    fn of(name: &'n str) -> Self {
        Brackets { name, at: 0 }
    }

    /// Skips `operator<`, `operator()` and the like, if they are here.
    fn skip_operator(&mut self) -> bool {
        let (before, here) = self.name.split_at(self.at);
        let Some(rest) = here.strip_prefix("operator") else {
            return false;
        };
        if before.ends_with(is_in_word) || rest.starts_with(is_in_word) {
            return false;
        }
        let symbol = match rest.starts_with("()") || rest.starts_with("[]") {
            true => 2,
            false => rest.len() - rest.trim_start_matches(OPERATOR).len(),
        };
        self.at += "operator".len() + symbol;
        true
    }
}

impl Iterator for Brackets<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        let bytes = self.name.as_bytes();
        let (mut depth, mut start) = (0_usize, 0);
        while let Some(&byte) = bytes.get(self.at) {
            if byte == b'o' && self.skip_operator() {
                continue;
            }
            let is_arrow = byte == b'>' && self.at > 0 && bytes[self.at - 1] == b'-';
            match byte {
                b'(' | b'[' | b'{' | b'<' => {
                    start = if depth == 0 { self.at } else { start };
                    depth += 1;
                }
                b')' | b']' | b'}' | b'>' if depth > 0 && !is_arrow => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return Some((start, self.at));
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        (depth > 0).then_some((start, self.at))
    }
}

fn is_in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// `ns::f(int)` as `ns::f`; other parentheses are part of the name: those of template arguments, of
/// `(anonymous namespace)`, of a function that a local one is in, of Go's `(*T).f`.
pub(crate) fn without_parameters(name: &str) -> &str {
    let parentheses = Brackets::of(name).filter(|(start, _)| name[*start..].starts_with('('));
    match parentheses.last() {
        Some((start, end)) if !name[end..].starts_with([':', '.']) => &name[..start],
        _ => name,
    }
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

/// `ns::Q::f` of `ns::Q<int>::f<std::vector<int> >`, of `ns::Q::f::<u8>`, of `ns::Q::f[abi:cxx11]`
/// and of Go's `ns::Q::f[...]`; Rust's `<T as Trait>::f` is whole.
fn without_arguments(name: &str) -> String {
    let mut short = String::new();
    let mut kept = 0;
    for (start, end) in Brackets::of(name) {
        let before = name[kept..start].trim_end_matches(' ');
        let is_operator = || before.contains("operator") && before.ends_with(OPERATOR);
        let named = match before.strip_suffix("::") {
            Some(path) => path,
            None if before.ends_with(is_in_word) || before.ends_with("operator()") || is_operator() => before,
            None => continue,
        };
        // `operator new[]` has no arguments.
        if matches!(name.as_bytes()[start], b'<' | b'[') && !name[start..].starts_with("[]") {
            short.push_str(named);
            kept = end;
        }
    }
    short.push_str(&name[kept..]);
    short
}

/// Whether a function is the one that a user names: by its whole name, or without what it is in
/// (namespaces, types, packages), parameters and template arguments, and what the compiler or the
/// runtime adds: `push` is also `ns::Queue::push(int)`, `push.part.0` and `JS:*push /q.js:1:8`.
pub fn matches_function(name: &str, wanted: &str) -> bool {
    let ends = |name: &str, borders: &[&str]| {
        name.strip_suffix(wanted)
            .is_some_and(|before| before.is_empty() || borders.iter().any(|border| before.ends_with(border)))
    };
    let last_word = wanted.rfind(|c| !is_in_word(c)).map_or(wanted, |at| &wanted[at..]);
    if wanted.is_empty() || !name.contains(last_word) {
        return false;
    }
    // The end of `f.cold` is no name.
    if ends(name, &["::"]) {
        return true;
    }
    let plain = without_suffix(without_parameters(of_runtime(name)));
    // Go, Java and Python separate by dots, and a type may precede a name.
    let borders = ["::", ".", "/", " ", "*", "&"];
    ends(plain, &borders) || ends(&without_arguments(plain), &borders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parameters_are_left_out() {
        for (name, short) in [
            ("main", "main"),
            ("ns::f(int, char)", "ns::f"),
            ("ns::f(int) const [clone .cold]", "ns::f"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("apply<void (*)(int)>(void (*)(int), int)", "apply<void (*)(int)>"),
            ("F::operator()(int) const", "F::operator()"),
            ("F::operator()<int>(int)", "F::operator()<int>"),
            ("F::operator->() const", "F::operator->"),
            ("bool operator< <int>(A<int>, A<int>)", "bool operator< <int>"),
            (
                "F::operator std::function<void ()>()",
                "F::operator std::function<void ()>",
            ),
            ("cooperator<int>(int)", "cooperator<int>"),
            ("f(int)::Local::g(char)", "f(int)::Local::g"),
            (
                "f(int)::{lambda(int)#1}::operator()(int) const",
                "f(int)::{lambda(int)#1}::operator()",
            ),
            ("f<decltype (g()->h)>(int)", "f<decltype (g()->h)>"),
            (
                "encoding/json.(*decodeState).object",
                "encoding/json.(*decodeState).object",
            ),
            ("main.(*T).f.func1", "main.(*T).f.func1"),
            ("f(std::map<int…", "f"),
            ("f<std::map<int…", "f<std::map<int…"),
            (")>]f(int)", ")>]f"),
        ] {
            assert_eq!(without_parameters(name), short, "{name}");
        }
    }

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
            ("operator new[](unsigned long)", "operator new", false),
            ("operator new[](unsigned long)", "operator new[]", true),
            ("apply<void (*)(int)>(void (*)(int), int)", "apply", true),
            ("apply<void (*)(int)>(void (*)(int), int)", "apply<void (*)(int)>", true),
            (
                "std::_Function_handler<void (int), f(int)::{lambda(int)#1}>::_M_invoke(int&&)",
                "_M_invoke",
                true,
            ),
            (
                "std::_Function_handler<void (int), f(int)::{lambda(int)#1}>::_M_invoke(int&&)",
                "f",
                false,
            ),
            ("ns::Queue<int, A<int> >::push<char>(int)", "Queue::push", true),
            ("ns::Queue<int, A<int> >::push<char>(int)", "Queue", false),
            ("F::operator()(int) const [clone .isra.0]", "operator()", true),
            ("F::operator()<int>(int) const", "F::operator()", true),
            ("std::ostream& operator<< <A>(std::ostream&, A)", "operator<<", true),
            ("f(int)::Local::g(char)", "g", true),
            ("f(int)::Local::g(char)", "f", false),
            ("ns::name[abi:cxx11](int)", "name", true),
            ("main.(*T).f", "f", true),
            ("main.(*T).f", "(*T).f", true),
            ("main.(*T).f.func1", "f", false),
            ("slices.SortFunc[...]", "SortFunc", true),
            ("<a::T as b::U>::c::<u8>", "<a::T as b::U>::c", true),
            ("main", "", false),
        ] {
            assert_eq!(matches_function(name, wanted), is, "{name} {wanted}");
        }
    }
}
