//! Types of programs whose debug information is in packages: beside the program, and beside the
//! file that it was split off to.

use crate::types;

use std::fs;
use std::path::Path;
use std::process::Command;

use backtrail_testkit::{place, scratch, skip};
use types::{must, types};

fn build(folder: &Path, flags: &[&str], name: &str) -> Option<()> {
    let mut objects = Vec::new();
    for unit in ["types_kinds", "types_headers"] {
        let object = folder.join(format!("{name}-{unit}.o"));
        let source = place::programs().join(unit).with_extension("c");
        let mut clang = Command::new("clang");
        clang.args(["-g", "-w", "-fPIC", "-O1", "-c"]).args(flags).arg(source);
        match clang.arg("-o").arg(&object).output() {
            Ok(output) if output.status.success() => objects.push(object),
            other => {
                skip(format!("clang {flags:?}: {other:?}"));
                return None;
            }
        }
    }
    let mut link = Command::new("clang");
    must(link.args(["-shared", "-o"]).arg(folder.join(name)).args(objects));
    Some(())
}

#[test]
fn packages_are_found() {
    let folder = scratch();
    let folder = folder.path();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (Some(()), Some(())) = (
        build(folder, &["-gdwarf-5"], "whole"),
        build(folder, &["-gdwarf-5", "-gsplit-dwarf"], "split"),
    ) else {
        return;
    };
    must(Command::new("objcopy").args(["--only-keep-debug", &path("split"), &path("split.debug")]));
    must(Command::new("objcopy").args(["--strip-debug", &path("split"), &path("stripped")]));
    let link = format!("--add-gnu-debuglink={}", path("split.debug"));
    must(Command::new("objcopy").arg(link).arg(path("stripped")));
    let mut pack = Command::new("llvm-dwp");
    match pack.args(["-e", &path("split"), "-o", &path("split.dwp")]).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => return skip(format!("llvm-dwp: {error}")),
    }
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        if entry.extension().is_some_and(|extension| extension == "dwo") {
            fs::remove_file(entry).unwrap();
        }
    }
    let added = |name: &str| {
        let output = types(&["add", "--quiet", &path(name), "-o", &path("added")]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let to = path(&format!("{name}.added"));
        fs::rename(path("added"), &to).unwrap();
        (to, String::from_utf8(output.stderr).unwrap())
    };
    let (whole, left_out) = added("whole");
    for (name, package) in [
        ("split", "split.dwp"),
        ("stripped", "stripped.dwp"),
        ("stripped", "split.debug.dwp"),
    ] {
        fs::rename(path("split.dwp"), path("kept")).unwrap();
        fs::rename(path("kept"), path(package)).unwrap();
        let (split, told) = added(name);
        assert_eq!(
            told.replace(&path(name), ""),
            left_out.replace(&path("whole"), ""),
            "{package}"
        );
        let same = types(&["diff", &whole, &split]);
        assert_eq!(same.status.code(), Some(0), "{package}: {same:?}");
        let find = types(&["find", &split, "struct nested"]);
        assert_eq!(find.status.code(), Some(0), "{package}: {find:?}");
        fs::rename(path(package), path("split.dwp")).unwrap();
    }
    fs::remove_file(path("split.dwp")).unwrap();
    let output = types(&["build", "--quiet", &path("split"), "-o", &path("none")]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("in another file, which was not found: 2"), "{told}");
}

/// A type that only a source file defines is not compared, wherever the debug information is.
#[test]
fn source_files_are_known_in_split_units() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("open.h"), "struct open { int shown; };\nint use(struct open *);\n").unwrap();
    let built = |compiler: &str, version: &str, name: &str, hidden: &str| {
        let source = format!(
            "#include \"open.h\"\nstruct hidden {{ {hidden} }};\nstruct hidden *kept;\n\
             int use(struct open *open) {{ return open->shown + kept->x; }}\n"
        );
        // Each version has its own files, to which its skeletons refer.
        let file = format!("{name}.c");
        fs::write(path(&file), source).unwrap();
        let mut compile = Command::new(compiler);
        compile.args(["-g", version, "-gsplit-dwarf", "-fPIC", "-shared", "-o"]);
        match compile.args([name, &file]).current_dir(folder.path()).output() {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => skip(format!("{compiler}: {error}")),
        }
    };
    for compiler in ["gcc", "clang"] {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            built(compiler, version, "one", "int x;");
            built(compiler, version, "two", "int x, y;");
            if !Path::new(&path("two")).exists() {
                continue;
            }
            let same = types(&["diff", &path("one"), &path("two")]);
            assert_eq!(same.status.code(), Some(0), "{compiler} {version}: {same:?}");
            let all = types(&["diff", "--all", &path("one"), &path("two")]);
            println!("{compiler} {version}: {all:?}");
        }
    }
}
