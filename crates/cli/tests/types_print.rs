//! `backtrail types print` and `find`: what they print is held against compilers.

use crate::{common, types};

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use backtrail_testkit::peers::{Machine, Release};
use backtrail_testkit::{available, command, place, scratch, skip};
use serde_json::Value;
use types::{Tools, corpus, kinds, must, printed, types};

/// Compiles C; its own types are in the object.
fn compile(tools: &Tools, text: &str, object: &Path) {
    let source = object.with_extension("printed.c");
    fs::write(&source, text).unwrap();
    let mut gcc = tools.gcc();
    gcc.arg("-fno-eliminate-unused-debug-types")
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(object);
    must(&mut gcc);
}

/// Each named struct and union with its size and members, as printed by objdump of binutils 2.40.
fn layouts(tools: &Tools, file: &Path) -> BTreeMap<String, Vec<String>> {
    let text = must(tools.command("objdump").arg("--ctf").arg(file));
    let mut layouts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut current = None;
    for line in text
        .lines()
        .skip_while(|line| *line != "  Types:")
        .take_while(|line| *line != "  Strings:")
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with("    0x") {
            let named = matches!(words[..], [_, "(kind", "6)" | "7)", _, name, "(size", ..] if !name.starts_with('('));
            current = named.then(|| words[3..7].join(" "));
            layouts.extend(current.clone().map(|name| (name, Vec::new())));
        } else if let (Some(name), true) = (&current, line.trim_start().starts_with('[')) {
            // Ids differ; so do the printed alignments, if attributes made them, and tags that
            // represent none.
            let words: Vec<&str> = words
                .into_iter()
                .filter(|word| !word.starts_with("0x") && !word.starts_with("anonymous_") && *word != "ID")
                .collect();
            let member = words.join(" ");
            let member = member.split(" (aligned").next().unwrap();
            if !member.contains("_padding_") {
                layouts.get_mut(name).unwrap().push(member.to_owned());
            }
        }
    }
    layouts
}

/// Checks that the output compiles, its assertions hold, and a compiler computes the same layouts
/// from it, except for `spoiled` ones, and if a member is not represented.
fn compiles_to_the_same(tools: &Tools, object: &Path, spoiled: &[&str]) {
    let path = object.to_str().unwrap();
    let text = printed(&["print", "--asserts", "--inner-first", path]);
    let again = object.with_extension("again.o");
    compile(tools, &text, &again);
    let (before, after) = (layouts(tools, object), layouts(tools, &again));
    for (name, members) in &before {
        let represented = members.iter().all(|member| member.contains("(size"));
        if represented && !spoiled.iter().any(|spoiled| name.starts_with(spoiled)) {
            assert_eq!(
                after.get(name),
                Some(members),
                "{:?}: {object:?}: {name}",
                tools.machine
            );
        }
    }
    println!("{:?}: {} structs and unions of {object:?}", tools.machine, before.len());
    assert!(before.len() > 2);
    assert!(text.matches("_Static_assert").count() > before.len());
}

/// The assertions hold of the source that the types come from, so they say what is so.
fn assertions_hold_of(tools: &Tools, source: &Path, object: &Path) {
    assertions_hold_in(
        tools,
        source,
        &printed(&["print", "--asserts", object.to_str().unwrap()]),
    );
}

fn assertions_hold_in(tools: &Tools, source: &Path, text: &str) {
    // Only the compiler itself can name its va_list, and nobody what has no name.
    let asserted = text.lines().filter(|line| {
        line.starts_with("_Static_assert") && !line.contains("__va_list") && !line.contains("anonymous_")
    });
    let asserted: Vec<&str> = asserted.collect();
    assert!(asserted.len() > 3, "{text}");
    let source = fs::read_to_string(source).unwrap() + &asserted.join("\n") + "\n";
    compile(tools, &source, &tools.path("asserted.o"));
}

fn each_machine(test: impl Fn(&Tools)) {
    for machine in [Machine::X86_64, Machine::Aarch64, Machine::S390x] {
        if let Some(tools) = Tools::new(Release::V2_40, machine) {
            test(&tools);
        }
    }
}

#[test]
fn every_kind_compiles() {
    each_machine(|tools| {
        let sources = kinds();
        let objects: Vec<_> = sources.iter().map(|source| tools.compile(source)).collect();
        for (source, object) in sources.iter().zip(&objects) {
            assertions_hold_of(tools, source, object);
        }
        compiles_to_the_same(tools, &objects[0], &[]);
        compiles_to_the_same(tools, &objects[1], &[]);
        // GNU ld makes a small enum as large as an int.
        compiles_to_the_same(tools, &tools.link(&["-shared"], &objects, "both.so"), &["struct tt "]);
    });
}

#[test]
fn headers_compile() {
    each_machine(|tools| {
        let object = tools.compile_headers();
        assertions_hold_of(tools, &place::programs().join("types_headers.c"), &object);
        compiles_to_the_same(tools, &object, &[]);
    });
}

/// Units that give one name to different structs.
#[test]
fn names_that_clash() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let Some(sources) = corpus("talk") else { return };
    let objects: Vec<_> = sources.iter().map(|source| tools.compile(source)).collect();
    let program = tools.link(&[], &objects, "talk");
    let path = program.to_str().unwrap();
    let all = printed(&["print", "--asserts", path]);
    compile(&tools, &all, &tools.path("all.o"));
    for part in [
        "struct foo__2 {\n\tint bar;\n\tstruct foo *next;\n}",
        "struct foo__3 {\n\tint bar;\n\tint zebar;\n",
    ] {
        assert!(all.contains(part), "{all}");
    }
    let two = sources[2].to_str().unwrap();
    let unit = printed(&["print", "--asserts", "--unit", two, path]);
    assert!(!unit.contains("__2"), "{unit}");
    compile(&tools, &unit, &tools.path("unit.o"));
    assertions_hold_in(&tools, &sources[2], &unit);
    let one_type = printed(&["print", "--unit", two, path, "struct foo"]);
    assert_eq!(one_type.matches('{').count(), 1, "{one_type}");
    let missing = types(&["print", path, "struct nobody"]);
    assert_eq!(missing.status.code(), Some(2));
    let no_unit = types(&["print", path, "--unit", "nothing.c"]);
    assert!(String::from_utf8_lossy(&no_unit.stderr).contains("no unit nothing.c has types of its own"));
}

/// Two units share a nameless struct, but not its name, which means something else in most units.
#[test]
fn names_of_a_shared_type() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let bodies = ["int a; int b;", "int a; int b;", "int a; int b;", "long c;", "long c;"];
    let objects = bodies.iter().enumerate().map(|(number, body)| {
        let source = tools.path(&format!("unit{number}.c"));
        let main = if number == 0 {
            "int main(void) { return 0; }"
        } else {
            ""
        };
        let text = format!("typedef struct {{ {body} }} pair; pair *of{number}(pair *p) {{ return p; }} {main}\n");
        fs::write(&source, text).unwrap();
        tools.compile(&source)
    });
    let objects: Vec<_> = objects.collect();
    let program = tools.link(&[], &objects, "units");
    let all = printed(&["print", "--asserts", program.to_str().unwrap()]);
    compile(&tools, &all, &tools.path("all.o"));
    assert_eq!(all.matches("int c;").count(), 1, "{all}");
    assert_eq!(all.matches("typedef").count(), 3, "{all}");
    assert!(all.contains("typedef pair__2 pair__3;"), "{all}");
}

/// Functions and objects are declared with what callers need.
#[test]
fn functions_by_name() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let source = tools.path("source.c");
    fs::write(
        &source,
        "struct later; union value { int i; char text[8]; };
         struct item { union value v; struct later *later; };
         int set(struct later *l, union value v, const char *fmt, ...) { return !l + v.i + *fmt; }
         struct item table[3];
         struct unused { int a; } unused_one;\n",
    )
    .unwrap();
    let object = tools.compile(&source);
    let path = object.to_str().unwrap();
    let text = printed(&["print", path, "set", "table"]);
    assert!(
        text.contains("\nint set(struct later *, union value, const char *, ...);\n"),
        "{text}"
    );
    assert!(text.ends_with("\nextern struct item table[3];\n"), "{text}");
    assert!(!text.contains("unused"), "{text}");
    let user = format!(
        "{text}int main(void) {{ union value v = {{ .text = \"1\" }}; return set(0, v, \"\") + table[2].v.i; }}\n"
    );
    compile(&tools, &user, &tools.path("user.o"));
    let output = types(&["print", path, "set", "nobody"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.ends_with("no symbol and no type has the name nobody\n"), "{told}");
}

fn found(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(&[&["find", "--json"], arguments].concat())).unwrap()
}

/// Members are where gdb says, read from DWARF of the same source.
#[test]
fn members_are_where_they_are() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let source = &kinds()[0];
    let object = tools.compile(source);
    let debugged = tools.path("debugged.o");
    let mut gcc = Command::new("x86_64-linux-gnu-gcc");
    must(gcc.args(["-g", "-w", "-c"]).arg(source).arg("-o").arg(&debugged));
    let mut expressions = Vec::new();
    let mut expected = Vec::new();
    for name in ["nested", "bits", "self", "packed", "cplx", "arrofp"] {
        let spelled = format!("struct {name}");
        let hit = &found(&[object.to_str().unwrap(), &spelled])[0];
        expressions.push(format!("output sizeof({spelled})"));
        expected.push(hit["size"].as_u64().unwrap());
        for member in hit["members"].as_array().unwrap() {
            // gdb gives the byte of a bit field's unit, which is not what the format says.
            if member["bits"].is_null() {
                expressions.push(format!(
                    "output (long)&(({spelled} *)0)->{}",
                    member["name"].as_str().unwrap()
                ));
                expected.push(member["offset"].as_u64().unwrap());
            }
        }
    }
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch"]).arg(&debugged);
    for expression in &expressions {
        gdb.arg("-ex").arg(expression).args(["-ex", "echo \\n"]);
    }
    let Ok(output) = gdb.output() else {
        backtrail_testkit::skip("no gdb");
        return;
    };
    let told = String::from_utf8_lossy(&output.stdout);
    let told: Vec<u64> = told.lines().filter_map(|line| line.trim().parse().ok()).collect();
    assert_eq!(told, expected, "{expressions:?}");
    assert!(told.len() > 30);
}

#[test]
fn symbols_and_types_by_name() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let Some(sources) = corpus("talk") else { return };
    let objects: Vec<_> = sources.iter().map(|source| tools.compile(source)).collect();
    // With an index, and by the order of the dynamic symbols.
    for (file, foos) in [
        (objects[1].clone(), 1),
        (tools.link(&["-shared"], &objects, "talk.so"), 3),
    ] {
        let path = file.to_str().unwrap();
        let all = found(&[path, "one_add", "one_out", "FILE", "struct foo"]);
        let all = all.as_array().unwrap();
        assert_eq!(all[0]["what"], "function");
        assert_eq!(all[0]["declaration"], "int one_add(struct foo *)");
        assert_eq!(
            (&all[0]["returns"], &all[0]["arguments"][0]),
            (&"int".into(), &"struct foo *".into())
        );
        assert_eq!(
            (&all[1]["what"], &all[1]["declaration"]),
            (&"object".into(), &"FILE *one_out".into())
        );
        assert_eq!((&all[2]["what"], &all[2]["size"]), (&"typedef".into(), &216.into()));
        assert_eq!(all.len(), 3 + foos, "{all:?}");
    }
    let missing = types(&["find", objects[0].to_str().unwrap(), "nobody", "main"]);
    assert_eq!(missing.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&missing.stdout).trim_end().split('\t').next(),
        Some("int main(void);")
    );
    assert!(String::from_utf8_lossy(&missing.stderr).ends_with("no symbol and no type has the name nobody\n"));
}

/// JSON has every type and symbol of the text.
#[test]
fn everything_as_json() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::S390x) else {
        return;
    };
    let object = tools.compile(&kinds()[0]);
    let path = object.to_str().unwrap();
    let json: Value = serde_json::from_str(&printed(&["show", "--json", path])).unwrap();
    let text = printed(&["show", path]);
    let dicts = json[0]["dicts"].as_array().unwrap();
    assert_eq!(dicts[0]["byte_order"], "big");
    let count = |what: &str| {
        dicts
            .iter()
            .map(|dict| dict[what].as_array().unwrap().len())
            .sum::<usize>()
    };
    let symbols = count("objects") + count("functions") + count("variables");
    let lines = |matched: &dyn Fn(&str) -> bool| text.lines().filter(|line| matched(line)).count();
    assert_eq!(
        count("types"),
        lines(&|line| line.starts_with("    0x") && line.contains(": (kind"))
            + lines(&|line| line.starts_with("    {0x"))
    );
    assert_eq!(
        symbols,
        lines(&|line| !line.starts_with("    0x") && !line.starts_with("    {") && line.contains(" -> 0x"))
    );
    assert!(symbols > 40);
}

/// A program that has only debug information: C's types with functions, and of C++ what C has too.
#[test]
fn files_without_a_section() {
    const SOURCE: &str = "struct point { int x, y; };\n\
        struct shape { point at; double size; shape *next; virtual ~shape() {} };\n\
        enum class colour : unsigned char { red = 1, blue = 200 };\n\
        int area(const shape &of, colour c) { return (int)of.size + (int)c + of.at.x; }\n\
        int main() { shape one; return area(one, colour::red); }\n";
    let folder = scratch();
    let build = |compiler: &str, name: &str, text: &str| {
        let (source, out) = (folder.path().join(name), folder.path().join(format!("{name}.out")));
        fs::write(&source, text).unwrap();
        let mut command = Command::new(compiler);
        command.args(["-g", "-w"]).arg(&source).arg("-o").arg(&out);
        let built = command.status().is_ok_and(|status| status.success());
        built.then(|| out.to_str().unwrap().to_owned())
    };
    let Some(c) = build(
        "gcc",
        "one.c",
        "struct s { int a; long b; }; long f(struct s *s) { return s->b; } int main() { return 0; }",
    ) else {
        return skip("no gcc");
    };
    assert_eq!(printed(&["find", &c, "f"]), "long int f(struct s *);\n");
    assert!(printed(&["print", &c, "struct s"]).contains("struct s {\n\tint a;\n\tlong int b;\n};"));
    let Some(cpp) = build("g++", "one.cc", SOURCE) else {
        return skip("no g++");
    };
    let output = types(&["print", "--asserts", &cpp]);
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("what C lacks of the types of a unit in DW_LANG_C_plus_plus"),
        "{said}"
    );
    for part in ["struct point at;", "struct shape *next;", "blue = 200,"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let checked = format!("{text}\n_Static_assert(sizeof(struct shape) == 32 && sizeof(enum colour) == 1, \"\");\n");
    let file = folder.path().join("printed.c");
    fs::write(&file, checked).unwrap();
    let gcc = Command::new("gcc")
        .args(["-w", "-fsyntax-only"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
}

/// What compilers of other languages say, and C lacks, leaves everything else as it is.
#[test]
fn files_in_other_languages() {
    let folder = scratch();
    let object = folder.path().join("other.o");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/other.ll");
    let mut clang = Command::new("clang");
    clang.arg("-c").arg(source).arg("-o").arg(&object);
    if !clang.status().is_ok_and(|status| status.success()) {
        return skip("no clang");
    }
    let text = types(&["print", "--asserts", object.to_str().unwrap()]).stdout;
    let text = String::from_utf8(text).unwrap();
    for part in [
        "int from_one[10];",
        "int from_minus_two[5];",
        "int named;",
        "unsigned char nothing[0];",
        "unsigned char linux_[8];",
        "long wide[10];",
        "int last;",
        "typedef unsigned long long unsigned_int;",
        "unsigned_int large;",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("beyond"), "{text}");
    let file = folder.path().join("printed.c");
    fs::write(&file, text).unwrap();
    let Ok(gcc) = Command::new("gcc").args(["-w", "-fsyntax-only"]).arg(&file).output() else {
        return skip("no gcc");
    };
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
}

/// The running kernel's header compiles, and a compiler finds the same layouts.
#[test]
fn the_running_kernel_compiles() {
    let kernel = "/sys/kernel/btf/vmlinux";
    if !Path::new(kernel).exists() {
        return skip("the kernel has no BTF");
    }
    let folder = scratch();
    let file = folder.path().join("kernel.c");
    fs::write(&file, printed(&["print", "--asserts", kernel])).unwrap();
    let gcc = Command::new("gcc").args(["-w", "-fsyntax-only"]).arg(&file).output();
    let Ok(gcc) = gcc else { return skip("no gcc") };
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
}

#[test]
fn qualified_pointers_without_names() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let source = tools.path("qualified.c");
    let text = "int one(int *restrict p, char *const *q, int (*const f)(void *restrict)) { return *p + **q + !f; }\n";
    fs::write(&source, text).unwrap();
    let object = tools.compile(&source);
    assert_eq!(
        printed(&["find", object.to_str().unwrap(), "one"]),
        "int one(int *restrict, char *const *, int (*const)(void *restrict));\n"
    );
}

/// clang gives complex numbers of all sizes one name.
#[test]
fn complex_numbers_of_clang() {
    const SOURCE: &str = "struct all { _Complex float f; _Complex double d; _Complex long double l; };\n\
        _Complex float f(struct all *all) { return all->f; }\n";
    let folder = scratch();
    let (source, object) = (folder.path().join("complex.c"), folder.path().join("complex.o"));
    fs::write(&source, SOURCE).unwrap();
    for compiler in ["gcc", "clang"] {
        let mut compile = Command::new(compiler);
        compile.args(["-g", "-c"]).arg(&source).arg("-o").arg(&object);
        match compile.output() {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => return skip(format!("{compiler}: {error}")),
        }
        let text = printed(&["print", "--asserts", object.to_str().unwrap()]);
        let header = folder.path().join("printed.c");
        fs::write(&header, &text).unwrap();
        for reader in ["gcc", "clang"] {
            let mut check = Command::new(reader);
            let checked = command::run(check.args(["-fsyntax-only", "-Werror"]).arg(&header), common::LIMIT);
            if let Some(checked) = available(checked) {
                assert_eq!(checked.code(), 0, "{}", checked.describe());
            }
        }
        let found = printed(&["find", object.to_str().unwrap(), "f"]);
        assert_eq!(found, "complex float f(struct all *);\n", "{compiler}");
    }
}
