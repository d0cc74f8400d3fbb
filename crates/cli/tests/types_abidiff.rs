//! Pairs of libraries, compared by us and by libabigail's `abidiff`, both from debug information.
//!
//! `cargo test -p backtrail --test command types_abidiff:: -- --nocapture` prints the table that
//! docs/types.md has.

use crate::types;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::{TempDir, scratch, skip};
use types::must;

/// A change of a library: what it is, before and after. The last part says why the two judge
/// otherwise, where they do.
const PAIRS: [(&str, &str, &str, Option<&str>); 18] = [
    (
        "nothing",
        "struct s { int a; }; int f(struct s *s) { return s->a; }",
        "struct s { int a; }; int f(struct s *s) { return s->a; }",
        None,
    ),
    (
        "a struct behind a pointer grows",
        "struct s { int a; }; int f(struct s *s) { return s->a; }",
        "struct s { int a; long b; }; int f(struct s *s) { return s->a + s->b; }",
        None,
    ),
    (
        "a member's type",
        "struct s { int a; int b; }; int f(struct s *s) { return s->b; }",
        "struct s { long a; int b; }; int f(struct s *s) { return s->b; }",
        None,
    ),
    (
        "members change places",
        "struct s { int a; float b; }; int f(struct s *s) { return s->a; }",
        "struct s { float b; int a; }; int f(struct s *s) { return s->a; }",
        None,
    ),
    (
        "a struct within a struct, two pointers away",
        "struct in { int x; }; struct mid { struct in in; }; struct s { struct mid *mid; }; int f(struct s *s) { return s->mid->in.x; }",
        "struct in { char x; }; struct mid { struct in in; }; struct s { struct mid *mid; }; int f(struct s *s) { return s->mid->in.x; }",
        None,
    ),
    (
        "a value of an enum",
        "enum e { A = 1, B = 2 }; int f(enum e e) { return e; }",
        "enum e { A = 1, B = 3 }; int f(enum e e) { return e; }",
        None,
    ),
    (
        "a function goes",
        "int f(void) { return 1; } int g(void) { return 2; }",
        "int f(void) { return 1; }",
        None,
    ),
    (
        "a function comes",
        "int f(void) { return 1; }",
        "int f(void) { return 1; } int g(void) { return 2; }",
        None,
    ),
    (
        "an argument's type",
        "int f(int a) { return a; }",
        "int f(long a) { return a; }",
        None,
    ),
    (
        "what is returned",
        "int f(void) { return 1; }",
        "double f(void) { return 1; }",
        None,
    ),
    (
        "a `long double` becomes a `__float128`",
        "long double f(long double a) { return a; }",
        "__float128 f(__float128 a) { return a; }",
        None,
    ),
    ("an object's size", "int table[4] = {1};", "int table[8] = {1};", None),
    (
        "a struct behind a pointer grows, of a function that has another name inside",
        "struct s { int a; }; __attribute__((visibility(\"hidden\"))) int f_inside(struct s *s) { return s->a; } \
         extern __typeof(f_inside) f __attribute__((alias(\"f_inside\"), visibility(\"default\")));",
        "struct s { long b, a; }; __attribute__((visibility(\"hidden\"))) int f_inside(struct s *s) { return s->a; } \
         extern __typeof(f_inside) f __attribute__((alias(\"f_inside\"), visibility(\"default\")));",
        None,
    ),
    (
        "an object that has another name inside",
        "struct s { int a; }; __attribute__((visibility(\"hidden\"))) struct s inside = {1}; __asm__(\".globl o; .set o, inside; .type o, @object; .size o, 4\");",
        "struct s { float a; }; __attribute__((visibility(\"hidden\"))) struct s inside = {1}; __asm__(\".globl o; .set o, inside; .type o, @object; .size o, 4\");",
        None,
    ),
    (
        "a value more in an enum",
        "enum e { A, B }; int f(enum e e) { return e; }",
        "enum e { A, B, C }; int f(enum e e) { return e; }",
        Some("harmless: reported here, and by abidiff with --harmless"),
    ),
    (
        "a member more in a union without a name",
        "struct s { union { long a; char b[8]; } u; }; int f(struct s *s) { return s->u.a; }",
        "struct s { union { char b[8]; int *c; long a; } u; }; int f(struct s *s) { return s->u.a; }",
        Some("harmless: reported here, and by abidiff with --harmless"),
    ),
    (
        "a member's name",
        "struct s { int a; }; int f(struct s *s) { return s->a; }",
        "struct s { int other; }; int f(struct s *s) { return s->other; }",
        Some("harmless: reported here, and by abidiff with --harmless"),
    ),
    (
        "what is behind an argument is const no more",
        "int f(const char *s) { return *s; }",
        "int f(char *s) { return *s; }",
        Some("harmless: reported here, and by abidiff with --harmless"),
    ),
];

fn library(folder: &TempDir, name: &str, source: &str) -> PathBuf {
    let (text, library) = (folder.path().join("source.c"), folder.path().join(name));
    fs::write(&text, source).unwrap();
    must(
        Command::new("gcc")
            .args(["-g", "-shared", "-fPIC", "-O1"])
            .arg(&text)
            .arg("-o")
            .arg(&library),
    );
    let mut add = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    must(add.args(["types", "add", "-q"]).arg(&library));
    library
}

pub(crate) fn code(command: &mut Command, files: [&Path; 2]) -> Option<i32> {
    command.args(files).output().ok()?.status.code()
}

#[test]
fn pairs_of_libraries() {
    let folder = scratch();
    let mut table = "| what changes | abidiff | `types diff` | |\n|---|---|---|---|\n".to_owned();
    for (what, old, new, otherwise) in PAIRS {
        let (old, new) = (library(&folder, "old.so", old), library(&folder, "new.so", new));
        // Bit 2: the interface has changed; bits 0 and 1 are its own failures.
        let Some(theirs) = code(&mut Command::new("abidiff"), [&old, &new]) else {
            return skip("no abidiff");
        };
        assert_eq!(theirs & 3, 0, "{what}");
        let mut diff = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        let output = diff.args(["types", "diff"]).args([&old, &new]).output().unwrap();
        let ours = output.status.code().unwrap();
        let breaking = String::from_utf8_lossy(&output.stdout).contains("breaking: ");
        assert!(!(breaking && otherwise.is_some()), "{what}: {output:?}");
        let words = [theirs & 4 != 0, ours == 1].map(|changed| if changed { "changed" } else { "same" });
        table += &format!(
            "| {what} | {} | {} | {} |\n",
            words[0],
            words[1],
            otherwise.unwrap_or_default()
        );
        assert!(ours < 2, "{what}");
        assert_eq!(words[0] != words[1], otherwise.is_some(), "{what}: {words:?}");
    }
    println!("{table}");
}

/// The break that `abidiff --ctf` misses: another unit has a struct of that name.
#[test]
fn a_struct_of_two_units() {
    let folder = scratch();
    let build = |name: &str, member: &str| {
        let (one, two, library) = (
            folder.path().join("one.c"),
            folder.path().join("two.c"),
            folder.path().join(name),
        );
        fs::write(
            &one,
            format!("struct s {{ int a; {member} }}; int f(struct s *s) {{ return s->a; }}\n"),
        )
        .unwrap();
        fs::write(
            &two,
            "struct s { char *other; }; char *g(struct s *s) { return s->other; }\n",
        )
        .unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-gctf", "-shared", "-fPIC", "-O1"]).args([&one, &two]);
        must(gcc.arg("-o").arg(&library));
        library
    };
    let (old, new) = (build("old.so", ""), build("new.so", "long more[9];"));
    let mut diff = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    assert_eq!(code(diff.args(["types", "diff"]), [&old, &new]), Some(1));
    match code(Command::new("abidiff").arg("--ctf"), [&old, &new]) {
        Some(theirs) if theirs & 3 == 0 => {
            println!("abidiff --ctf: {}", if theirs & 4 == 0 { "same" } else { "changed" })
        }
        _ => skip("no abidiff --ctf"),
    }
}

/// Files of these names and texts, compiled into a library from debug information alone.
pub(crate) fn compiled(folder: &TempDir, compiler: &str, name: &str, files: &[(&str, &str)]) -> Option<PathBuf> {
    let own = folder.path().join(format!("{name}.sources"));
    fs::create_dir_all(&own).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-g", "-w", "-shared", "-fPIC", "-O1"]).current_dir(&own);
    for (file, text) in files {
        fs::write(own.join(file), text).unwrap();
        command.args((file.ends_with(".c") || file.ends_with(".cc")).then_some(file));
    }
    let library = folder.path().join(name);
    match command.arg("-o").arg(&library).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            skip(format!("{compiler}: {error}"));
            return None;
        }
    }
    Some(library)
}

/// The exit status, and the JSON that is printed.
pub(crate) fn differences(options: &[&str], files: [&Path; 2]) -> (i32, serde_json::Value) {
    let mut diff = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let output = diff
        .args(["types", "diff", "--json"])
        .args(options)
        .args(files)
        .output()
        .unwrap();
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code().unwrap(), document)
}

/// Compilers and programmers spell one type in many ways.
#[test]
fn spellings_are_no_changes() {
    const ONE: &str = "typedef unsigned long uLong; typedef struct file FILE_; typedef FILE_ *file_p;\n\
        typedef struct { uLong at; file_p file; } state;\n\
        uLong f(uLong a, state *s, file_p p, unsigned u, short int h) { return a + s->at + u + h; }\n\
        uLong table[3]; uLong (*g(void))(unsigned long) { return 0; }\n\
        const short fixed[2][3] = {{1}}; typedef const int row[2]; row rows[2] = {{1}};\n";
    const OTHER: &str = "struct file; typedef struct { unsigned long at; struct file *file; } state;\n\
        long unsigned f(unsigned long a, state *s, struct file *p, unsigned int u, short h)\n\
        { return a + s->at + u + h; }\n\
        unsigned long int table[3]; unsigned long (*g(void))(unsigned long) { return 0; }\n\
        const short fixed[2][3] = {{1}}; const int rows[2][2] = {{1}};\n";
    const CHANGED: &str = "struct file; typedef struct { long at; struct file *file; } state;\n\
        long unsigned f(unsigned long a, state *s, struct file *p, int u, short h)\n\
        { return a + s->at + u + h; }\n\
        unsigned long int table[3]; unsigned long (*g(void))(long) { return 0; }\n\
        const short fixed[2][3] = {{1}}; const int rows[2][2] = {{1}};\n";
    let folder = scratch();
    let Some(gcc) = compiled(&folder, "gcc", "gcc.so", &[("a.c", ONE)]) else {
        return;
    };
    for (compiler, text) in [("gcc", OTHER), ("clang", ONE), ("clang", OTHER)] {
        let Some(other) = compiled(&folder, compiler, "other.so", &[("a.c", text)]) else {
            continue;
        };
        for files in [[&gcc, &other], [&other, &gcc]] {
            let (status, document) = differences(&[], files.map(PathBuf::as_path));
            assert_eq!(
                (status, &document["verdict"]),
                (0, &"same".into()),
                "{compiler}: {document}"
            );
        }
    }
    let changed = compiled(&folder, "gcc", "changed.so", &[("a.c", CHANGED)]).unwrap();
    let (status, document) = differences(&["--severity", "breaking"], [&gcc, &changed]);
    let names: Vec<_> = document["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| &change["name"])
        .collect();
    assert_eq!(
        (status, &names[..]),
        (1, &[&"f".into(), &"g".into(), &"state".into()][..]),
        "{document}"
    );
}

/// What users have only addresses of may change; headers say what that is.
#[test]
fn hidden_types_may_change() {
    const PUBLIC: &str = "struct hidden; struct seen { int a; }; typedef struct { int b; } also;\n\
        int f(struct hidden *, struct seen *, also *);\n";
    let folder = scratch();
    let build = |name: &str, header: &str, member: &str| {
        let source = format!(
            "#include \"public.h\"\n#include \"private.h\"\nstruct hidden {{ {member} int a; struct inner *in; }};\n\
             int f(struct hidden *h, struct seen *s, also *o) {{ return h->a + s->a + o->b + h->in->x; }}\n"
        );
        let inner = format!("struct inner {{ {member} int x; }};\n");
        compiled(
            &folder,
            "gcc",
            name,
            &[("public.h", header), ("private.h", &inner), ("a.c", &source)],
        )
    };
    let Some(old) = build("old.so", PUBLIC, "") else { return };
    let inside = build("inside.so", PUBLIC, "long more;").unwrap();
    let (status, document) = differences(&[], [&old, &inside]);
    assert_eq!(status, 0, "{document}");
    let (status, document) = differences(&["--all"], [&old, &inside]);
    assert_eq!((status, &document["verdict"]), (1, &"harmless".into()), "{document}");
    let grown = PUBLIC.replace("int a;", "int a; long c;").replace("int b;", "long b;");
    let outside = build("outside.so", &grown, "").unwrap();
    let headers = folder.path().join("headers");
    fs::create_dir_all(&headers).unwrap();
    fs::write(headers.join("public.h"), PUBLIC).unwrap();
    let headers = headers.to_str().unwrap();
    for options in [&[][..], &["--headers", headers]] {
        let (status, document) = differences(options, [&old, &outside]);
        let severities = |name: &str| {
            let changes = document["changes"].as_array().unwrap().iter();
            changes
                .filter(|change| change["name"] == name)
                .map(|change| change["severity"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (status, severities("seen"), severities("also")),
            (1, vec!["possible".into()], vec!["breaking".into()])
        );
    }
    // No header in this folder defines them.
    let empty = folder.path().join("empty");
    fs::create_dir_all(&empty).unwrap();
    let (status, document) = differences(&["--headers", empty.to_str().unwrap()], [&old, &outside]);
    assert_eq!(status, 0, "{document}");
    let suppress = folder.path().join("suppress");
    fs::write(&suppress, "# known\nstruct se*\ntypedef also\n").unwrap();
    let (status, document) = differences(&["--suppress", suppress.to_str().unwrap()], [&old, &outside]);
    assert_eq!((status, &document["suppressed"]), (0, &2.into()), "{document}");
}

/// What the dynamic linker says to a program that was linked with one library and finds another is
/// what we say.
#[test]
fn versions_of_symbols() {
    const SOURCE: &str = "int f(int a) { return a; } int (*chosen(void))(int) { return f; }";
    const OLD: &str = "ONE { global: f; local: *; };";
    let folder = scratch();
    let library = |name: &str, source: &str, versions: Option<&str>| {
        let own = folder.path().join(name);
        fs::create_dir_all(&own).unwrap();
        let (text, map, out) = (own.join("f.c"), own.join("f.map"), own.join("libf.so"));
        fs::write(&text, source).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-g", "-w", "-shared", "-fPIC", "-Wl,-soname,libf.so"])
            .arg(&text);
        if let Some(versions) = versions {
            fs::write(&map, versions).unwrap();
            gcc.arg(format!("-Wl,--version-script={}", map.display()));
        }
        must(gcc.arg("-o").arg(&out));
        out
    };
    let old = library("old", SOURCE, Some(OLD));
    let (text, program) = (folder.path().join("main.c"), folder.path().join("program"));
    fs::write(&text, "int f(int); int main(void) { return f(0); }").unwrap();
    must(Command::new("gcc").arg(&text).arg(&old).arg("-o").arg(&program));
    let both = "__asm__(\".symver f_one,f@ONE\"); int f_one(int a) { return a; }\n\
        __asm__(\".symver f_two,f@@TWO\"); int f_two(int a) { return a + 0; }";
    let indirect = "int one(int a) { return a; } static int (*choose(void))(int) { return one; }\n\
        int f(int) __attribute__((ifunc(\"choose\")));";
    for (name, source, versions, is_kept) in [
        ("same", SOURCE, Some(OLD), true),
        ("renamed", SOURCE, Some("TWO { global: f; local: *; };"), false),
        (
            "both",
            both,
            Some("ONE { global: f; local: *; }; TWO { global: f; } ONE;"),
            true,
        ),
        ("without", SOURCE, None, false),
        (
            "gone",
            "int g(int a) { return a; }",
            Some("ONE { global: g; local: *; };"),
            false,
        ),
        ("indirect", indirect, Some(OLD), true),
    ] {
        let new = library(name, source, versions);
        let mut run = Command::new(&program);
        let ran = run
            .env("LD_LIBRARY_PATH", new.parent().unwrap())
            .env("LD_BIND_NOW", "1")
            .output();
        assert_eq!(ran.unwrap().status.success(), is_kept, "{name}");
        let (_, found) = differences(&["--severity", "breaking"], [&old, &new]);
        let changes = found["changes"].as_array().unwrap();
        assert_eq!(changes.is_empty(), is_kept, "{name}: {found}");
        if name == "renamed" {
            assert_eq!(changes[0]["detail"], "version ONE is gone, has TWO", "{found}");
        }
    }
}

/// Functions that debug information leaves out have no types, but are missed if they are gone.
#[test]
fn functions_without_types() {
    let folder = scratch();
    let source = |argument: &str| {
        let mangled = format!("_ZN1n1fE{argument}");
        format!("__asm__(\".globl {mangled}\\n.type {mangled}, @function\\n{mangled}: ret\"); int g() {{ return 0; }}")
    };
    let [old, new] = [("old.so", "i"), ("new.so", "l")].map(|(name, argument)| {
        let (text, library) = (folder.path().join("source.cc"), folder.path().join(name));
        fs::write(&text, source(argument)).unwrap();
        let mut gcc = Command::new("g++");
        must(gcc.args(["-g", "-shared", "-fPIC"]).arg(&text).arg("-o").arg(&library));
        library
    });
    let mut diff = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let output = diff.args(["types", "diff"]).args([&old, &new]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(lines, ["breaking: symbol n::f(int): removed"], "{text}");
    assert_eq!(output.status.code(), Some(1));
}

/// A member or an argument whose type has its name still: what was and what is would be one text.
#[test]
fn types_that_change_under_their_names() {
    let folder = scratch();
    let source = |argument: &str| {
        format!(
            "typedef int (*call_t)(void *, {argument}); struct box {{ int x; call_t call; }};\n\
             int direct(call_t call) {{ return call(0, 1); }} int boxed(struct box *b) {{ return b->x; }}\n"
        )
    };
    let [old, new] = [("old.so", "int"), ("new.so", "long")].map(|(name, of)| library(&folder, name, &source(of)));
    let mut diff = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    let output = diff.args(["types", "diff"]).args([&old, &new]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "breaking: function direct: a type that it takes or returns has changed: int direct(call_t)\n",
        "breaking: struct box: call is call_t (8 bytes), which has changed\n",
        "breaking: typedef call_t: was int (*)(void *, int), is int (*)(void *, long int)\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

/// A member in former padding changes the registers in which a struct is passed. A program that was
/// compiled before shows whether it does.
#[test]
fn members_that_change_registers() {
    let folder = scratch();
    let source = folder.path().join("main.c");
    let program = folder.path().join("program");
    for (old, new) in [
        ("double d; float f;", "double d; float f; int more;"),
        ("double d; float f;", "double d; float f; float more;"),
        ("double d; int f;", "double d; int f; int more;"),
        (
            "double d; struct { float f; } in;",
            "double d; struct { float f; } in; int more;",
        ),
        ("double d[2]; float f;", "double d[2]; float f; int more;"),
    ] {
        let member = if old.contains("in;") { "in.f" } else { "f" };
        let text = |members: &str| {
            format!("typedef struct {{ {members} }} value; float get(value v) {{ return v.{member}; }}\n")
        };
        let Some(before) = compiled(&folder, "gcc", "old.so", &[("a.c", &text(old))]) else {
            return;
        };
        let after = compiled(&folder, "gcc", "new.so", &[("a.c", &text(new))]).unwrap();
        fs::write(
            &source,
            format!(
                "typedef struct {{ {old} }} value; float get(value);\n\
                 int main(void) {{ value v = {{}}; v.{member} = 7; return get(v) != 7; }}\n"
            ),
        )
        .unwrap();
        must(
            Command::new("gcc")
                .arg("-O1")
                .arg(&source)
                .arg(&after)
                .arg("-o")
                .arg(&program),
        );
        let works = Command::new(&program).status().unwrap().success();
        if !cfg!(target_arch = "x86_64") {
            return skip("the registers of x86-64");
        }
        let (_, found) = differences(&[], [&before, &after]);
        let verdict = if works { "harmless" } else { "breaking" };
        assert_eq!(found["verdict"], verdict, "{new}: {found}");
    }
}
