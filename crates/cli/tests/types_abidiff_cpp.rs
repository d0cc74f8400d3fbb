//! Pairs of libraries in C++, compared by us and by libabigail's `abidiff`, both from debug
//! information, and what neither format has a word for.
//!
//! `cargo test -p backtrail --test command types_abidiff_cpp:: -- --nocapture` prints the table
//! that docs/types.md has.

use std::process::Command;

use backtrail_testkit::{scratch, skip};

use crate::types_abidiff::{code, compiled, differences};

/// A change of a library: what it is, before and after, and the verdict here.
const PAIRS: [(&str, &str, &str, &str); 22] = [
    (
        "nothing",
        "namespace n { struct s { int a; }; int f(const s &s) { return s.a; } }",
        "namespace n { struct s { int a; }; int f(const s &s) { return s.a; } }",
        "same",
    ),
    (
        "a class behind a reference grows",
        "struct s { int a; }; int f(const s &s) { return s.a; }",
        "struct s { int a; long b; }; int f(const s &s) { return s.a; }",
        "possible",
    ),
    (
        "a class that is passed by value grows",
        "struct s { int a; }; int f(s s) { return s.a; }",
        "struct s { int a; long b; }; int f(s s) { return s.a; }",
        "breaking",
    ),
    (
        "a private member",
        "class c { int a; char b; public: int get(); }; int c::get() { return a + b; }",
        "class c { int a; long b; public: int get(); }; int c::get() { return a + b; }",
        "breaking",
    ),
    (
        "a member of a base class",
        "struct base { int a; }; struct s : base { int b; }; int f(s &s) { return s.b; }",
        "struct base { int a, c; }; struct s : base { int b; }; int f(s &s) { return s.b; }",
        "breaking",
    ),
    (
        "another base class",
        "struct one { int a; }; struct two { float a; }; struct s : one { int b; }; int f(s &s) { return s.b; } float g(two &t) { return t.a; }",
        "struct one { int a; }; struct two { float a; }; struct s : two { int b; }; int f(s &s) { return s.b; } float g(two &t) { return t.a; }",
        "breaking",
    ),
    (
        "a method goes",
        "struct s { int a; int get(); void set(int); }; int s::get() { return a; } void s::set(int b) { a = b; }",
        "struct s { int a; int get(); }; int s::get() { return a; }",
        "breaking",
    ),
    (
        "a method comes",
        "struct s { int a; int get(); }; int s::get() { return a; }",
        "struct s { int a; int get(); void set(int); }; int s::get() { return a; } void s::set(int b) { a = b; }",
        "harmless",
    ),
    (
        "what a method returns",
        "struct s { int a; int get(); }; int s::get() { return a; }",
        "struct s { int a; long get(); }; long s::get() { return a; }",
        "breaking",
    ),
    (
        "an argument's type",
        "int f(int a) { return a; }",
        "int f(long a) { return a; }",
        "breaking",
    ),
    (
        "a virtual function between others",
        "struct s { virtual int a(); virtual int b(); }; int s::a() { return 1; } int s::b() { return 2; }",
        "struct s { virtual int a(); virtual int c(); virtual int b(); }; int s::a() { return 1; } int s::b() { return 2; } int s::c() { return 3; }",
        "breaking",
    ),
    (
        "a virtual function more at the end",
        "struct s { virtual int a(); }; int s::a() { return 1; }",
        "struct s { virtual int a(); virtual int b(); }; int s::a() { return 1; } int s::b() { return 2; }",
        "possible",
    ),
    (
        "virtual functions change places",
        "struct s { virtual int a(); virtual int b(); }; int s::a() { return 1; } int s::b() { return 2; }",
        "struct s { virtual int b(); virtual int a(); }; int s::a() { return 1; } int s::b() { return 2; }",
        "breaking",
    ),
    (
        "a function is virtual no more",
        "struct s { virtual ~s(); virtual int a(); int v; }; s::~s() {} int s::a() { return v; }",
        "struct s { virtual ~s(); int a(); int v; }; s::~s() {} int s::a() { return v; }",
        "breaking",
    ),
    (
        "a class in one of two namespaces that have one of its name",
        "namespace m { struct s { int a; }; int f(s &s) { return s.a; } } namespace n { struct s { char c; }; int f(s &s) { return s.c; } }",
        "namespace m { struct s { long a; }; int f(s &s) { return s.a; } } namespace n { struct s { char c; }; int f(s &s) { return s.c; } }",
        "breaking",
    ),
    (
        "the type of an enum's values",
        "enum class e : char { A }; struct s { e a; char b; }; int f(s &s) { return s.b; }",
        "enum class e : int { A }; struct s { e a; char b; }; int f(s &s) { return s.b; }",
        "breaking",
    ),
    (
        "the elements of a vector",
        "#include <vector>\nstruct s { int a; }; int f(const std::vector<s> &v) { return v[0].a; }",
        "#include <vector>\nstruct s { int a; long b; }; int f(const std::vector<s> &v) { return v[0].a; }",
        "possible",
    ),
    (
        "a class that is defined outside of another",
        "struct s { struct in; in *at; int get(); }; struct s::in { int a; }; int s::get() { return at->a; }",
        "struct s { struct in; in *at; int get(); }; struct s::in { long b; int a; }; int s::get() { return at->a; }",
        "breaking",
    ),
    (
        "a static member's size",
        "struct s { static int table[2]; }; int s::table[2] = {1};",
        "struct s { static int table[4]; }; int s::table[4] = {1};",
        "breaking",
    ),
    (
        "a function of C within C++",
        "struct s { int a; }; extern \"C\" int f(s *s) { return s->a; }",
        "struct s { long a; }; extern \"C\" int f(s *s) { return s->a; }",
        "breaking",
    ),
    (
        "what a constructor takes by its address",
        "struct o { int a; }; struct s { int v; s(o *o); }; s::s(o *o) : v(o->a) {}",
        "struct o { long b; int a; }; struct s { int v; s(o *o); }; s::s(o *o) : v(o->a) {}",
        "breaking",
    ),
    (
        "a pointer to a member becomes one to a member function",
        "struct s { int a; }; struct t { int s::*p; int b; }; int f(t &t) { return t.b; }",
        "struct s { int a; }; struct t { int (s::*p)(); int b; }; int f(t &t) { return t.b; }",
        "breaking",
    ),
];

#[test]
fn pairs_of_libraries_in_cpp() {
    let mut table = "| what changes | abidiff | `types diff` |\n|---|---|---|\n".to_owned();
    for compiler in ["g++", "clang++"] {
        for (what, old, new, verdict) in PAIRS {
            // clang describes such a class only where it is constructed; abidiff sees no more.
            if compiler == "clang++" && what == "the elements of a vector" {
                continue;
            }
            let folder = scratch();
            let build = |name, text| compiled(&folder, compiler, name, &[("a.cc", text)]);
            let (Some(old), Some(new)) = (build("old.so", old), build("new.so", new)) else {
                break;
            };
            let (status, found) = differences(&[], [&old, &new]);
            assert_eq!(found["verdict"], verdict, "{compiler}: {what}: {found}");
            assert_eq!(status, i32::from(verdict != "same"), "{compiler}: {what}");
            // Bit 2: the interface has changed; bits 0 and 1 are its own failures.
            let Some(theirs) = code(&mut Command::new("abidiff"), [&old, &new]) else {
                return skip("no abidiff");
            };
            assert_eq!(theirs & 3, 0, "{what}");
            let theirs = if theirs & 4 != 0 { "changed" } else { "same" };
            assert_eq!(theirs == "same", verdict == "same", "{compiler}: {what}");
            if compiler == "g++" {
                table += &format!("| {what} | {theirs} | {verdict} |\n");
            }
        }
    }
    println!("{table}");
}

/// The names in the text are those of the source.
#[test]
fn names_are_as_in_the_source() {
    let folder = scratch();
    let text = |member: &str, returns: &str| {
        format!(
            "namespace n {{ struct s {{ {member} a; virtual int area(int); {returns} get(const s &) const; }}; }}\n\
             int n::s::area(int i) {{ return i; }} {returns} n::s::get(const s &o) const {{ return o.a; }}\n"
        )
    };
    let build = |name, text: String| compiled(&folder, "g++", name, &[("a.cc", &text)]);
    let (Some(old), Some(new)) = (
        build("old.so", text("int", "int")),
        build("new.so", text("float", "long")),
    ) else {
        return;
    };
    let mut diff = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let output = diff.args(["types", "diff"]).args([&old, &new]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in [
        "breaking: function n::s::get(n::s const&) const: was int n::s::get(const struct n::s *, const struct n::s *), \
         is long int n::s::get(const struct n::s *, const struct n::s *)\n",
        "breaking: struct n::s: a was int (4 bytes), is float (4 bytes)\n    reached from n::s::area(int), n::s::get(n::s const&) const\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

/// The format has no vectors and no atomic types; debug information that is compared has.
#[test]
fn vectors_and_atomic_types_are_compared() {
    const TYPE: &str = "typedef float four __attribute__((vector_size(16))); ";
    let folder = scratch();
    for (what, old, new, verdict) in [
        (
            "nothing",
            "four f(four a) { return a; }",
            "four f(four a) { return a; }",
            "same",
        ),
        (
            "an argument is one",
            "float f(float a) { return a; }",
            "float f(four a) { return a[0]; }",
            "breaking",
        ),
        (
            "its elements",
            "float f(four a) { return a[0]; }",
            "typedef int other __attribute__((vector_size(16))); float f(other a) { return a[0]; }",
            "breaking",
        ),
        (
            "its size",
            "float f(four *a) { return (*a)[0]; }",
            "typedef float eight __attribute__((vector_size(32))); float f(eight *a) { return (*a)[0]; }",
            "breaking",
        ),
        (
            "an atomic member",
            "struct s { int a; }; int f(struct s *s) { return s->a; }",
            "struct s { _Atomic int a; }; int f(struct s *s) { return s->a; }",
            "harmless",
        ),
        (
            "a member",
            "struct s { four a; int b; }; int f(struct s *s) { return s->b; }",
            "struct s { int b; four a; }; int f(struct s *s) { return s->b; }",
            "breaking",
        ),
    ] {
        for (compiler, file) in [("gcc", "a.c"), ("g++", "a.cc"), ("clang", "a.c")] {
            if file == "a.cc" && new.contains("_Atomic") {
                continue;
            }
            let build = |name, text: &str| compiled(&folder, compiler, name, &[(file, &format!("{TYPE}{text}"))]);
            let (old, new) = match file {
                "a.cc" => (format!("extern \"C\" {{ {old} }}"), format!("extern \"C\" {{ {new} }}")),
                _ => (old.to_owned(), new.to_owned()),
            };
            let (Some(old), Some(new)) = (build("old.so", &old), build("new.so", &new)) else {
                continue;
            };
            let (_, found) = differences(&[], [&old, &new]);
            assert_eq!(found["verdict"], verdict, "{compiler}: {what}: {found}");
        }
    }
}
