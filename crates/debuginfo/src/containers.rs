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
    /// The pointer leads to counters, and the owned value after them, a member of this name.
    Counted(&'static str),
    /// `start` is the value that the container consists of.
    Value,
    /// The container has two values: `start`, and this one.
    Pair(&'static str),
    /// The values of a tuple of libstdc++, each a base class, in the reverse order.
    Tuple,
    /// Nodes of a list that ends at itself. This member is the number of elements.
    Ring(&'static str),
    /// Nodes of a list that ends with a null pointer, and this number of elements, if there is one.
    Chain(&'static str, Form),
    /// Nodes of a red-black tree; `start` is its header.
    Tree(Form),
    /// Blocks of equal size; `start` is the iterator of the first element.
    Blocks,
    /// A ring buffer with this number of elements; the first one is at that index.
    Buffer {
        /// The member that is the number.
        length: &'static str,
        /// The member that is the index.
        first: &'static str,
    },
    /// Buckets of a hash table, before their bytes of control, which `start` leads to.
    Buckets(Form),
    /// Nodes of a B-tree.
    Branches(Form),
    /// `start` is the value that the container has if this member is true.
    Maybe(&'static str),
    /// This member is the number of the alternative that the container has; the alternatives are in
    /// `start`.
    Alternative(&'static str),
    /// A container of libc++ with nodes or blocks.
    Libcxx(Libcxx),
    /// Bits from the iterator `start` to this one.
    Bits(&'static str),
    /// The pointer leads to counters, and a text or elements after them: this member is the number
    /// of bytes or elements.
    CountedLength(&'static str, Contents),
}

/// The containers of libc++ whose members differ from those of libstdc++ not only by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libcxx {
    /// `std::list`
    List,
    /// `std::forward_list`
    ForwardList,
    /// Sets and maps.
    Tree(Form),
    /// Those without order.
    Hash(Form),
    /// `std::deque`
    Deque,
    /// `std::vector<bool>`
    Bits,
    /// `std::tuple`
    Tuple,
}

/// What follows the counters of a shared value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A text.
    Text,
    /// Elements.
    Elements,
}

/// What the elements of a container are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Values.
    Values,
    /// Pairs of a key and its value.
    Pairs,
}

/// Where the type of a class's elements is, in debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    /// The class's type parameter with this number.
    Parameter(usize),
    /// The elements are in nodes: classes of one of the names, for each library, which have that
    /// parameter as their first.
    Node(&'static [&'static str], usize),
    /// This member points to them.
    Pointer(&'static str),
}

/// Classes with elements, or around one, by the starts of their names.
const WITH_ELEMENTS: [(&str, Elements); 23] = [
    ("vector<", Elements::Parameter(0)),
    ("deque<", Elements::Parameter(0)),
    ("span<", Elements::Parameter(0)),
    ("unique_ptr<", Elements::Parameter(0)),
    ("shared_ptr<", Elements::Parameter(0)),
    ("__aligned_membuf<", Elements::Parameter(0)),
    ("__aligned_buffer<", Elements::Parameter(0)),
    ("list<", Elements::Node(&["_List_node<", "__list_node<"], 0)),
    (
        "forward_list<",
        Elements::Node(&["_Fwd_list_node<", "__forward_list_node<"], 0),
    ),
    ("_Rb_tree<", Elements::Node(&["_Rb_tree_node<"], 1)),
    ("_Hashtable<", Elements::Node(&["_Hash_node<"], 1)),
    ("__tree<", Elements::Node(&["__tree_node<"], 0)),
    ("__hash_table<", Elements::Node(&["__hash_node<"], 0)),
    ("Vec<", Elements::Parameter(0)),
    ("VecDeque<", Elements::Parameter(0)),
    ("RawTable<", Elements::Parameter(0)),
    ("MaybeUninit<", Elements::Parameter(0)),
    ("NonNull<alloc::rc::Rc", Elements::Parameter(0)),
    ("NonNull<alloc::sync::ArcInner<", Elements::Parameter(0)),
    (
        "NonNull<alloc::collections::btree::node::LeafNode<",
        Elements::Parameter(0),
    ),
    ("&[", Elements::Pointer("data_ptr")),
    ("&mut [", Elements::Pointer("data_ptr")),
    ("Box<[", Elements::Pointer("data_ptr")),
];

/// The names of the nodes of [`Elements::Node`].
pub(crate) const NODES: [&str; 8] = [
    "_List_node<",
    "_Fwd_list_node<",
    "_Rb_tree_node<",
    "_Hash_node<",
    "__list_node<",
    "__forward_list_node<",
    "__tree_node<",
    "__hash_node<",
];

/// Where the type of the elements of a class with this name is.
pub(crate) fn elements(name: &[u8]) -> Option<Elements> {
    let name = without_path(name);
    let found = WITH_ELEMENTS
        .iter()
        .find(|(start, _)| name.starts_with(start.as_bytes()));
    found.map(|(_, elements)| *elements)
}

/// The node's name that this name begins with.
pub(crate) fn node(name: &[u8]) -> Option<&'static str> {
    NODES.into_iter().find(|node| name.starts_with(node.as_bytes()))
}

/// Whether this is the name of a pointer that owns what it leads to.
pub fn is_box(name: &[u8]) -> bool {
    without_path(name).starts_with(b"Box<")
}

const fn text(name: &'static str, start: &'static str, length: &'static str, zero: bool) -> Container {
    let end = End::Text { length, zero };
    Container { name, start, end }
}

const fn list(name: &'static str, start: &'static str, end: End) -> Container {
    Container { name, start, end }
}

const HASHED_VALUES: End = End::Chain("_M_element_count", Form::Values);
const HASHED_PAIRS: End = End::Chain("_M_element_count", Form::Pairs);
const RING_BUFFER: End = End::Buffer {
    length: "len",
    first: "head",
};

const COUNTED_TEXT: End = End::CountedLength("length", Contents::Text);
const COUNTED_SLICE: End = End::CountedLength("length", Contents::Elements);

const fn libcxx(name: &'static str, which: Libcxx) -> Container {
    list(name, "", End::Libcxx(which))
}

/// Of libstdc++, libc++ and Rust. A name occurs once for each library that has it.
const CONTAINERS: [Container; 65] = [
    text("basic_string<char,", "_M_p", "_M_string_length", true),
    text("basic_string_view<char,", "_M_str", "_M_len", false),
    text("basic_string_view<char,", "__data_", "__size_", false),
    text("basic_string_view<char,", "__data", "__size", false),
    text("&str", "data_ptr", "length", false),
    text("&mut str", "data_ptr", "length", false),
    text("Box<str,", "data_ptr", "length", false),
    text("String", "pointer", "len", false),
    list("vector<bool,", "_M_start", End::Bits("_M_finish")),
    libcxx("vector<bool,", Libcxx::Bits),
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
    list("Rc<str>", "data_ptr", COUNTED_TEXT),
    list("Rc<str,", "data_ptr", COUNTED_TEXT),
    list("Arc<str>", "data_ptr", COUNTED_TEXT),
    list("Arc<str,", "data_ptr", COUNTED_TEXT),
    list("Rc<[", "data_ptr", COUNTED_SLICE),
    list("Arc<[", "data_ptr", COUNTED_SLICE),
    list("Rc<", "pointer", End::Counted("value")),
    list("Arc<", "pointer", End::Counted("data")),
    list("array<", "_M_elems", End::Value),
    list("array<", "__elems_", End::Value),
    list("span<", "_M_ptr", End::Length("_M_extent_value")),
    list("pair<", "first", End::Pair("second")),
    list("tuple<", "_M_head_impl", End::Tuple),
    list("list<", "_M_next", End::Ring("_M_size")),
    list("forward_list<", "_M_next", End::Chain("", Form::Values)),
    list("set<", "_M_header", End::Tree(Form::Values)),
    list("multiset<", "_M_header", End::Tree(Form::Values)),
    list("map<", "_M_header", End::Tree(Form::Pairs)),
    list("multimap<", "_M_header", End::Tree(Form::Pairs)),
    list("unordered_set<", "_M_nxt", HASHED_VALUES),
    list("unordered_multiset<", "_M_nxt", HASHED_VALUES),
    list("unordered_map<", "_M_nxt", HASHED_PAIRS),
    list("unordered_multimap<", "_M_nxt", HASHED_PAIRS),
    list("deque<", "_M_start", End::Blocks),
    list("VecDeque<", "pointer", RING_BUFFER),
    list("HashMap<", "pointer", End::Buckets(Form::Pairs)),
    list("HashSet<", "pointer", End::Buckets(Form::Values)),
    list("BTreeMap<", "pointer", End::Branches(Form::Pairs)),
    list("BTreeSet<", "pointer", End::Branches(Form::Values)),
    list("optional<", "_M_value", End::Maybe("_M_engaged")),
    list("optional<", "__val_", End::Maybe("__engaged_")),
    list("variant<", "_M_u", End::Alternative("_M_index")),
    list("variant<", "__data", End::Alternative("__index")),
    libcxx("tuple<", Libcxx::Tuple),
    libcxx("list<", Libcxx::List),
    libcxx("forward_list<", Libcxx::ForwardList),
    libcxx("set<", Libcxx::Tree(Form::Values)),
    libcxx("multiset<", Libcxx::Tree(Form::Values)),
    libcxx("map<", Libcxx::Tree(Form::Pairs)),
    libcxx("multimap<", Libcxx::Tree(Form::Pairs)),
    libcxx("unordered_set<", Libcxx::Hash(Form::Values)),
    libcxx("unordered_multiset<", Libcxx::Hash(Form::Values)),
    libcxx("unordered_map<", Libcxx::Hash(Form::Pairs)),
    libcxx("unordered_multimap<", Libcxx::Hash(Form::Pairs)),
    libcxx("deque<", Libcxx::Deque),
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
        assert_eq!(containers(b"vector<int, std::allocator<int> >").count(), 2);
        assert_eq!(containers(b"vector<bool, std::allocator<bool> >").count(), 4);
        assert_eq!(containers(b"alloc::boxed::Box<str, alloc::alloc::Global>").count(), 1);
        assert_eq!(containers(b"basic_string<wchar_t, X>").count(), 0);
        assert_eq!(containers(b"std::__1::basic_string<char, X>").count(), 2);
    }
}
