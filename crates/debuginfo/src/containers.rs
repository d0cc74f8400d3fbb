//! The strings, sequences and other containers of the C++ and Rust libraries, which are shown by
//! their contents.

/// Where a type of a library has its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Container {
    /// The type's name without namespaces; if it ends in punctuation, the start of the name.
    name: &'static str,
    /// The pointer to the contents, at any depth in structs; empty for the only pointer there is.
    pub start: &'static str,
    /// Where the contents end.
    pub end: End,
}

/// Where a container's contents end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A text.
    Text {
        /// The member that is its number of bytes.
        length: &'static str,
        /// Whether a zero byte follows it.
        zero: bool,
    },
    /// This member is the number of elements.
    Length(&'static str),
    /// This member is a pointer to their end.
    Pointer(&'static str),
    /// The container only owns what its pointer leads to.
    Owned,
    /// A text of libc++, which is in the object itself if it is short.
    Short {
        /// The member that is its number of bytes, if it is long.
        length: &'static str,
    },
    /// `start` is the value that the container has if this member is true.
    Maybe(&'static str),
    /// This member is the number of the alternative that the container has; the alternatives are in
    /// `start`.
    Alternative(&'static str),
}

const fn text(name: &'static str, start: &'static str, length: &'static str, zero: bool) -> Container {
    let end = End::Text { length, zero };
    Container { name, start, end }
}

const fn list(name: &'static str, start: &'static str, end: End) -> Container {
    Container { name, start, end }
}

/// Of libstdc++, libc++ and Rust. A name occurs once for each library that has it.
const CONTAINERS: [Container; 21] = [
    text("basic_string<char,", "_M_p", "_M_string_length", true),
    text("basic_string_view<char,", "_M_str", "_M_len", false),
    text("basic_string_view<char,", "__data_", "__size_", false),
    text("basic_string_view<char,", "__data", "__size", false),
    text("&str", "data_ptr", "length", false),
    text("&mut str", "data_ptr", "length", false),
    text("Box<str,", "data_ptr", "length", false),
    text("String", "pointer", "len", false),
    list("vector<", "_M_start", End::Pointer("_M_finish")),
    list("vector<", "__begin_", End::Pointer("__end_")),
    list("Vec<", "pointer", End::Length("len")),
    list("&[", "data_ptr", End::Length("length")),
    list("&mut [", "data_ptr", End::Length("length")),
    list("Box<[", "data_ptr", End::Length("length")),
    list("unique_ptr<", "", End::Owned),
    list("shared_ptr<", "_M_ptr", End::Owned),
    list("shared_ptr<", "__ptr_", End::Owned),
    list("basic_string<char,", "__data_", End::Short { length: "__size_" }),
    list("optional<", "_M_value", End::Maybe("_M_engaged")),
    list("optional<", "__val_", End::Maybe("__engaged_")),
    list("variant<", "_M_u", End::Alternative("_M_index")),
];

/// The containers that may have this name. A type is one of them only if it has the members, too.
pub fn containers(name: &[u8]) -> impl Iterator<Item = &'static Container> {
    let name = without_path(name);
    CONTAINERS.iter().filter(move |container| {
        let known = container.name.as_bytes();
        match known.last() {
            Some(b'<' | b',' | b'[') => name.starts_with(known),
            _ => name == known,
        }
    })
}

/// The name of the elements' type, without namespaces, in the name of a sequence.
pub fn element(name: &[u8]) -> Option<&[u8]> {
    let open = name.iter().position(|byte| matches!(byte, b'<' | b'['))?;
    let inner = &name[open + 1..];
    let inner = inner.strip_prefix(b"[").unwrap_or(inner);
    let mut depth = 0u32;
    let ends = |&byte: &u8| {
        match byte {
            b'<' | b'[' | b'(' => depth += 1,
            b'>' | b']' | b')' if depth > 0 => depth -= 1,
            b'>' | b']' | b')' | b',' | b';' if depth == 0 => return true,
            _ => {}
        }
        false
    };
    let path = &inner[..inner.iter().position(ends)?];
    Some(without_path(path).trim_ascii_end())
}

/// A type's name without namespaces; those of its arguments stay.
fn without_path(path: &[u8]) -> &[u8] {
    let arguments = path.iter().position(|&byte| matches!(byte, b'<' | b'['));
    let mut own = path[..arguments.unwrap_or(path.len())].windows(2);
    let colons = own.rposition(|two| two == b"::");
    &path[colons.map_or(0, |at| at + 2)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_named_as_their_types_are() {
        let cases = [
            ("vector<int, std::allocator<int> >", "int"),
            (
                "vector<std::__cxx11::basic_string<char, std::char_traits<char> >, A>",
                "basic_string<char, std::char_traits<char> >",
            ),
            ("Vec<alloc::string::String, alloc::alloc::Global>", "String"),
            ("&[u8]", "u8"),
            ("&mut [(u8, i16)]", "(u8, i16)"),
            ("Box<[f64], alloc::alloc::Global>", "f64"),
        ];
        for (name, expected) in cases {
            let found = element(name.as_bytes()).map(String::from_utf8_lossy);
            assert_eq!(found.as_deref(), Some(expected), "{name}");
        }
        assert_eq!(element(b"vector<int"), None);
    }

    #[test]
    fn names_are_whole_or_begin_so() {
        assert_eq!(containers(b"String").count(), 1);
        assert_eq!(containers(b"StringList").count(), 0);
        assert_eq!(containers(b"vector<bool, std::allocator<bool> >").count(), 2);
        assert_eq!(containers(b"alloc::boxed::Box<str, alloc::alloc::Global>").count(), 1);
        assert_eq!(containers(b"basic_string<wchar_t, X>").count(), 0);
        assert_eq!(containers(b"std::__1::basic_string<char, X>").count(), 2);
    }
}
