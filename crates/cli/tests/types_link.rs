//! `backtrail types link`, `build`, `add` and `diff`, and `backtrail link --types`.

use crate::types;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use backtrail_testkit::objdump_types::Dicts;
use backtrail_testkit::peers::{Machine, Release};
use backtrail_testkit::{scratch, skip};
use serde_json::Value;
use types::{Tools, corpus, kinds, must, printed, types};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn tells(output: &Output, text: &str) {
    assert!(told(output).contains(text), "{}", told(output));
}

fn objects(tools: &Tools, part: &str) -> Option<Vec<PathBuf>> {
    let sources = if part == "kinds" { kinds() } else { corpus(part)? };
    Some(sources.iter().map(|source| tools.compile(source)).collect())
}

fn objdump(tools: &Tools, file: &Path) -> Dicts {
    Dicts::parse(&must(tools.command("objdump").arg("--ctf").arg(file)))
}

fn link(tools: &Tools, objects: &[PathBuf], flags: &[&str]) -> (PathBuf, Output) {
    let out = tools.path("out.ctf");
    let mut arguments = vec!["link", "-o", text(&out)];
    arguments.extend(flags);
    arguments.extend(objects.iter().map(|path| text(path)));
    let output = types(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    (out, output)
}

#[test]
fn units_are_linked() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let Some(objects) = objects(&tools, "talk") else { return };
    let (out, output) = link(&tools, &objects, &[]);
    assert!(told(&output).starts_with("3 units, "), "{}", told(&output));
    let found = printed(&["find", text(&out), "struct foo"]);
    assert_eq!(found.matches("struct foo {").count(), 2, "{found}");
    // Without a linked file no symbols are described, unless requested.
    let none = types(&["find", text(&out), "one_add"]);
    assert_eq!(none.status.code(), Some(2));
    // An archive of the objects is as good as they are.
    let (archive, whole) = (
        tools.path("all.a"),
        fs::read(link(&tools, &objects, &["-q"]).0).unwrap(),
    );
    must(tools.command("ar").arg("rc").arg(&archive).args(&objects));
    assert!(whole == fs::read(link(&tools, &[archive], &["-q"]).0).unwrap());
    let (out, _) = link(&tools, &objects, &["--symbols", "-q"]);
    assert_eq!(
        printed(&["find", text(&out), "one_add"]),
        "int one_add(struct foo *);\n"
    );
    let first = fs::read(&out).unwrap();
    let (out, _) = link(&tools, &objects, &["--symbols", "--jobs", "1"]);
    assert!(first == fs::read(out).unwrap());
    for (mode, dicts) in [("share-duplicated", 4), ("single-dict", 1)] {
        let (out, _) = link(&tools, &objects, &["--mode", mode]);
        let json: Value = serde_json::from_str(&printed(&["show", "--json", text(&out)])).unwrap();
        assert_eq!(json[0]["dicts"].as_array().unwrap().len(), dicts, "{mode}");
    }
}

/// The section is put into the file in the place of the linker's: the same types and symbols are in
/// it.
#[test]
fn sections_for_a_linked_file() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    for part in ["talk", "names", "kinds"] {
        let Some(objects) = objects(&tools, part) else { return };
        let library = tools.link(&["-shared"], &objects, "library.so");
        let theirs = objdump(&tools, &library);
        for flags in [&["--for", text(&library)][..], &["--for", text(&library), "--symtab"]] {
            let (out, _) = link(&tools, &objects, flags);
            let other = tools.path("other.so");
            let update = format!("--update-section=.ctf={}", out.display());
            must(tools.command("objcopy").arg(update).arg(&library).arg(&other));
            let missing = objdump(&tools, &other).missing(&theirs);
            // GNU ld makes this one larger than it is.
            let missing: Vec<&String> = missing
                .iter()
                .filter(|text| !text.contains("bits (size 0xa)"))
                .collect();
            assert!(missing.is_empty(), "{part} {flags:?}: {missing:#?}");
        }
    }
}

#[test]
fn bad_input_is_told() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let none = tools.path("none.o");
    must(
        Command::new("gcc")
            .args(["-x", "c", "-c", "/dev/null", "-o"])
            .arg(&none),
    );
    let out = tools.path("out");
    let output = types(&["link", text(&none), "-o", text(&out)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("none of the files has types") && !out.exists());
    let object = tools.compile(&kinds()[0]);
    let output = types(&["link", text(&none), text(&object), "-o", text(&out)]);
    assert_eq!(output.status.code(), Some(0));
    tells(
        &output,
        "none.o: no .ctf section, and no .BTF; it has no part in the result",
    );
    let output = types(&["build", text(&object), "-o", text(&out)]);
    assert_eq!(output.status.code(), Some(2));
    tells(&output, "no debug information\nhelp: compile with -g");
    let output = types(&["build", text(&none), "-o", text(&out)]);
    assert_eq!(output.status.code(), Some(2));
}

const PROGRAM: &str = "
struct point { int x, y; }; typedef struct point point_t; static point_t origin; point_t places[3];
int distance(const point_t *from) { return from->x - origin.y; }
int main(void) { return distance(&places[1]); }
";

/// Made from debug information, put into the program: it runs as before, gdb and objdump read it.
#[test]
fn types_are_added() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let (source, program) = (tools.path("p.c"), tools.path("p"));
    fs::write(&source, PROGRAM).unwrap();
    for compiler in ["gcc", "clang"] {
        let mut compile = Command::new(compiler);
        let compiled = compile
            .args(["-g", "-rdynamic"])
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .output();
        if !compiled.is_ok_and(|output| output.status.success()) {
            skip(format!("no {compiler}"));
            continue;
        }
        let before = fs::read(&program).unwrap();
        let raw = tools.path("raw");
        let output = types(&["build", text(&program), "-o", text(&raw), "-q"]);
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        assert_eq!(
            printed(&["find", text(&raw), "distance"]),
            "int distance(const point_t *);\n"
        );
        let added = tools.path("added");
        let output = types(&["add", text(&program), "-o", text(&added)]);
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        assert_eq!(before, fs::read(&program).unwrap());
        let status = Command::new(&added).status().unwrap();
        assert_eq!(status.code(), Command::new(&program).status().unwrap().code());
        let dicts = objdump(&tools, &added);
        let parent = dicts.get("").unwrap();
        assert!(parent.types.iter().any(|text| text.contains("struct point (size 0x8)")));
        assert!(
            parent.symbols.iter().any(|text| text.starts_with("distance -> ")),
            "{:?}",
            parent.symbols
        );
        // Again, in place: it fits where it was.
        let size = fs::metadata(&added).unwrap().len();
        assert_eq!(types(&["add", text(&added), "-q"]).status.code(), Some(0));
        assert_eq!(fs::metadata(&added).unwrap().len(), size);
        must(Command::new("readelf").args(["-SW"]).arg(&added));
        // Without debug information, gdb has these types only.
        let stripped = tools.path("stripped");
        must(Command::new("objcopy").arg("--strip-debug").arg(&added).arg(&stripped));
        let gdb = Command::new("gdb")
            .args(["-q", "-nx", "-batch", "-ex", "ptype point_t"])
            .arg(&stripped)
            .output();
        match gdb {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(text.contains("int x;") && text.contains("int y;"), "{text}");
            }
            Err(_) => skip("no gdb"),
        }
    }
}

/// In one step with the linker; from what a linker that does not know the format leaves, too.
#[test]
fn linking_adds_types() {
    let Some(tools) = Tools::new(Release::V2_47, Machine::X86_64) else {
        return;
    };
    let Some(sources) = corpus("talk") else { return };
    for (flags, linker) in [(&["-g"], "bfd"), (&["-gctf"], "lld")] {
        let program = tools.path("program");
        let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
        command
            .args(["link", "--types", "--strict", "--", "gcc", "-rdynamic"])
            .args(flags);
        let output = command
            .arg(format!("-fuse-ld={linker}"))
            .args(&sources)
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap();
        if told(&output).contains("cannot find 'ld'") {
            skip(format!("no {linker}"));
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{linker}: {}", told(&output));
        let dicts = objdump(&tools, &program);
        assert_eq!(dicts.units().len(), 2, "{linker}: {:?}", dicts.units());
        let symbols = &dicts.get("").unwrap().symbols;
        assert!(
            symbols.iter().any(|text| text.starts_with("two_add -> ")),
            "{linker}: {symbols:?}"
        );
        assert_eq!(Command::new(&program).status().unwrap().code(), Some(0));
        let shown = Command::new(env!("CARGO_BIN_EXE_backtrail"))
            .args(["sframe", "show"])
            .arg(&program)
            .output()
            .unwrap();
        assert_eq!(shown.status.code(), Some(0));
    }
}

/// Libraries of two units, in the second of which another struct has the name.
fn library(tools: &Tools, name: &str, first: &str, linked_by_us: bool) -> PathBuf {
    let folder = scratch();
    let (one, two) = (folder.path().join("one.c"), folder.path().join("two.c"));
    fs::write(&one, first).unwrap();
    fs::write(
        &two,
        "struct foo { char other[9]; }; struct foo *two_head; int two_add(struct foo *f) { return f->other[0]; }",
    )
    .unwrap();
    let objects = [tools.compile(&one), tools.compile(&two)];
    let library = tools.link(&["-shared"], &objects, name);
    if linked_by_us {
        let (out, _) = link(tools, &objects, &["--for", text(&library)]);
        let update = format!("--update-section=.ctf={}", out.display());
        must(tools.command("objcopy").arg(update).arg(&library));
    }
    library
}

const OLD: &str = "struct foo { int bar; }; enum way { UP, DOWN }; struct held { struct foo *foo; enum way way; };
int one_add(struct foo *f) { return f->bar; } int one_hold(struct held *h) { return h->way; } int gone(void) { return 0; }
int changed(int a) { return a; } struct inner { int a; } inner; static struct hidden { int a; } hidden; int *p(void) { return &hidden.a; }";

/// The change that abidiff does not see: reached through an exported pointer, while another unit
/// has a struct with that name.
#[test]
fn changes_that_reach_users() {
    let Some(tools) = Tools::new(Release::V2_40, Machine::X86_64) else {
        return;
    };
    let new = OLD
        .replace("struct foo { int bar; }", "struct foo { int bar; long more; }")
        .replace("UP, DOWN", "UP, DOWN, LEFT")
        .replace("int gone(void) { return 0; }", "int fresh(void) { return 0; }")
        .replace("int changed(int a)", "int changed(long a)")
        .replace("struct hidden { int a; }", "struct hidden { int a, b; }");
    for linked_by_us in [false, true] {
        let old = library(&tools, "old.so", OLD, linked_by_us);
        let new = library(&tools, "new.so", &new, linked_by_us);
        let same = types(&["diff", text(&old), text(&old), "--json"]);
        assert_eq!(same.status.code(), Some(0), "{}", told(&same));
        let output = types(&["diff", text(&old), text(&new), "--json"]);
        assert_eq!(output.status.code(), Some(1), "{}", told(&output));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let changes = json["changes"].as_array().unwrap();
        let change = |kind: &str, name: &str| {
            let found = changes
                .iter()
                .find(|change| change["kind"] == kind && change["name"] == name);
            found.unwrap_or_else(|| panic!("{kind} {name}: {changes:#?}"))
        };
        let foo = change("struct", "foo");
        assert_eq!(foo["breaking"], true);
        assert!(foo["unit"].as_str().unwrap().ends_with("one.c"));
        let reaches = foo["reaches"].as_array().unwrap();
        assert!(reaches.iter().any(|name| name == "one_add") && reaches.iter().any(|name| name == "one_hold"));
        assert!(
            foo["detail"]
                .as_str()
                .unwrap()
                .contains("4 bytes, now 16; more is new at 8"),
            "{foo}"
        );
        let way = change("enum", "way");
        assert_eq!(
            (&way["breaking"], &way["reaches"]),
            (&Value::from(false), &serde_json::json!(["one_hold"]))
        );
        assert_eq!(change("function", "gone")["breaking"], true);
        assert_eq!(change("function", "fresh")["breaking"], false);
        assert_eq!(
            change("function", "changed")["detail"],
            "was int changed(int), is int changed(long int)"
        );
        // What cannot be reached is no concern of users, unless they ask.
        assert!(!changes.iter().any(|change| change["name"] == "hidden"), "{changes:#?}");
        assert_eq!(changes.len(), 5, "{changes:#?}");
        let all = types(&["diff", "--all", text(&old), text(&new)]);
        let all = String::from_utf8(all.stdout).unwrap();
        assert!(
            all.contains("harmless: struct hidden: 4 bytes, now 8; b is new at 4"),
            "{all}"
        );
        assert!(all.contains("    reached from "), "{all}");
    }
}
