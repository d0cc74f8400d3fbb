//! `--for READER` of `check`, `build`, `add`, `convert` and `link`: on tables of each release of
//! GNU as and ld and on ours, with the verdict of the reader itself where it runs here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{TempDir, elf_file, place, scratch, skip};
use serde_json::Value;

use crate::adding::{add, backtrail, checked, program, run, sframe};

const READERS: [&str; 3] = ["kernel", "glibc-2.42", "binutils-2.47"];

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What `check --for` reports that a reader refuses, without the functions' addresses. The exit
/// status says whether there is anything, or a mismatch.
#[track_caller]
fn refused(reader: &str, arguments: &[&str]) -> Vec<String> {
    let mut check = backtrail();
    let finished = run(check
        .args(["sframe", "check", "--json", "--for", reader])
        .args(arguments));
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let refused = report[0]["refused"].as_array().unwrap();
    let found = !refused.is_empty() || !report[0]["mismatches"].as_array().unwrap().is_empty();
    assert_eq!(finished.code(), i32::from(found), "{}", finished.describe());
    let what = |refusal: &Value| {
        assert_eq!(refusal["reader"], reader);
        let what = refusal["what"].as_str().unwrap();
        let of_function = what.strip_prefix("function ").and_then(|what| what.split_once(": "));
        of_function.map_or(what, |(_, what)| what).to_owned()
    };
    refused.iter().map(what).collect()
}

/// What each of the readers refuses.
#[track_caller]
fn expect(arguments: &[&str], expected: [&[&str]; 3]) {
    for (reader, expected) in READERS.into_iter().zip(expected) {
        assert_eq!(refused(reader, arguments), expected, "{reader}: {arguments:?}");
    }
}

const VERSION_1: &[&str] = &["version 1"];
const VERSION_2: &[&str] = &["version 2"];
const VERSION_3: &[&str] = &["version 3"];
const OUTERMOST: &[&str] = &["row that marks the outermost frame"];
const NOT_RELATIVE: &[&str] = &["starts are not relative to their fields"];

/// What libsframe 2.47 finds in a table at each row of each function.
struct Library {
    folder: TempDir,
    program: PathBuf,
}

impl Library {
    fn new() -> Option<Library> {
        let library = Binutils::get(Release::V2_47)?.shared_library("libsframe.so");
        let Some(library) = library else {
            skip("libsframe 2.47 is not among the packages");
            return None;
        };
        let folder = scratch();
        let program = folder.path().join("find_rows");
        // A copy, so that its own libc does not come along without the loader that belongs to it.
        let copy = folder.path().join(library.file_name()?);
        fs::copy(&library, &copy).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.arg("-o").arg(&program);
        gcc.arg(place::workspace().join("crates/cli/tests/programs/find_rows.c"))
            .arg(&copy)
            .arg(format!("-Wl,-rpath,{}", folder.path().display()));
        let finished = run(&mut gcc);
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        Some(Library { folder, program })
    }

    /// Whether it finds each row that the table at `table` has, an ELF file or a raw section.
    fn finds_all(&self, table: &Path) -> bool {
        let (shown, _) = sframe(0, &["show", "--json", path(table)]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let number = |value: &Value| {
            let digits = value.as_str().unwrap().trim_start_matches("0x");
            u64::from_str_radix(digits, 16).unwrap()
        };
        let address = number(&shown[0]["address"]);
        let (mut pcs, mut expected) = (Vec::new(), Vec::new());
        for function in shown[0]["functions"].as_array().unwrap() {
            let (start, size) = (number(&function["start"]), function["size"].as_u64().unwrap());
            for row in function["rows"].as_array().unwrap() {
                let row = row["start"].as_u64().unwrap();
                if row < size {
                    pcs.extend((start + row).wrapping_sub(address).to_ne_bytes());
                    expected.push(row.to_string());
                }
            }
        }
        assert!(expected.len() > 20, "{}", expected.len());
        let bytes = fs::read(table).unwrap();
        let section = elf_file::section(&bytes, ".sframe").map_or(&bytes[..], |range| &bytes[range]);
        let file = |name: &str, bytes: &[u8]| {
            let path = self.folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let finished = run(Command::new(&self.program)
            .arg(file("section", section))
            .arg(file("pcs", &pcs)));
        // 3: the library refuses the section as a whole.
        match finished.code() {
            3 => false,
            _ => finished.stdout.lines().eq(expected.iter().map(String::as_str)),
        }
    }
}

/// readelf and objdump of 2.47 print the table without a complaint.
fn tools_are_content(file: &Path) {
    let Some(binutils) = Binutils::get(Release::V2_47) else {
        return;
    };
    for tool in ["readelf", "objdump"] {
        let mut tool = binutils.tool(Machine::X86_64, tool).command();
        let finished = run(tool.arg("--sframe").arg(file));
        assert_eq!((finished.code(), &*finished.stderr), (0, ""), "{}", finished.describe());
        assert!(finished.stdout.contains("func idx [0]"), "{}", finished.stdout);
    }
}

#[test]
fn tables_of_gnu_releases() {
    let library = Library::new();
    for (release, expected) in [
        (Release::V2_40, [VERSION_1, VERSION_1, VERSION_1]),
        (Release::V2_44, [VERSION_2, &[], NOT_RELATIVE]),
        (Release::V2_47, [&[], VERSION_3, &[]]),
    ] {
        let Some((_folder, program)) = program(Some(release), &["-O2"]) else {
            continue;
        };
        expect(&[path(&program)], expected);
        if release == Release::V2_47 {
            tools_are_content(&program);
        }
        if let Some(library) = &library {
            assert_eq!(library.finds_all(&program), expected[2].is_empty(), "{release:?}");
        }
    }
}

#[test]
fn our_tables() {
    let library = Library::new();
    let Some((folder, program)) = program(None, &["-O2", "-Wl,-z,lazy"]) else {
        return;
    };
    let out = |name: &str| folder.path().join(name);
    let merged = ["--merge", "8"];
    for (version, expected) in [
        ("1", [VERSION_1, VERSION_1, VERSION_1]),
        ("2", [VERSION_2, OUTERMOST, NOT_RELATIVE]),
        ("3", [&[], VERSION_3, &[]]),
    ] {
        for options in [&["--merge", "1"], &merged] {
            let with = out("with");
            let options = [&["--version", version][..], options].concat();
            add(&program, &options, &with);
            expect(&[path(&with)], expected);
            if let Some(library) = &library {
                assert_eq!(library.finds_all(&with), expected[2].is_empty(), "{options:?}");
            }
            if version == "3" {
                tools_are_content(&with);
            }
        }
        expect(&["--built", version, path(&program)], expected);
    }
    // Converted tables; the first is GNU's with all that it has left out.
    for (release, to, expected) in [
        (Release::V2_44, "3", [&[], VERSION_3, &[]]),
        (Release::V2_47, "2", [VERSION_2, &[], NOT_RELATIVE]),
    ] {
        let Some((_folder, linked)) = self::program(Some(release), &["-O2"]) else {
            continue;
        };
        let converted = out("converted");
        sframe(0, &["convert", path(&linked), "--to", to, "-o", path(&converted)]);
        expect(&["--table", path(&converted), path(&linked)], expected);
        if let Some(library) = &library {
            assert_eq!(library.finds_all(&converted), expected[2].is_empty(), "{release:?}");
        }
    }
}

/// Whatever the reader, the table that is made for it has nothing that it refuses, and is right.
#[test]
fn tables_for_a_reader() {
    let library = Library::new();
    let Some((folder, program)) = program(None, &["-O2", "-Wl,-z,lazy"]) else {
        return;
    };
    let out = |name: &str| folder.path().join(name);
    let source = place::workspace().join("crates/cfi/tests/programs/frames.c");
    for (reader, version, readers) in [
        ("kernel", 3, &["kernel", "binutils-2.47"][..]),
        ("glibc-2.42", 2, &["glibc-2.42", "binutils-2.47"]),
        ("binutils-2.47", 3, &["kernel", "binutils-2.47"]),
        ("binutils-2.47,glibc-2.42", 2, &["glibc-2.42", "binutils-2.47"]),
    ] {
        let is_read = |arguments: &[&str]| {
            for reader in READERS {
                let nothing = readers.contains(&reader);
                assert_eq!(
                    refused(reader, arguments).is_empty(),
                    nothing,
                    "{reader}: {arguments:?}"
                );
            }
        };
        let (table, with, linked, converted) = (out("table"), out("with"), out("linked"), out("converted"));
        let (_, stderr) = sframe(0, &["build", path(&program), "-o", path(&table), "--for", reader]);
        assert!(stderr.contains(&format!("SFrame version {version}: ")), "{stderr}");
        // What glibc does not take is left out, and counted.
        assert_eq!(
            stderr.contains("skipped: outermost: 1 piece of code, "),
            version == 2,
            "{stderr}"
        );
        is_read(&["--table", path(&table), path(&program)]);
        add(&program, &["--for", reader], &with);
        is_read(&[path(&with)]);
        assert_eq!(checked(&with)["uncovered_bytes"].as_u64() > Some(0), version == 2);
        let mut link = backtrail();
        link.args([
            "link",
            "--strict",
            "--for",
            reader,
            "--",
            "gcc",
            "-O2",
            "-o",
            path(&linked),
        ]);
        let finished = run(link.arg(&source));
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        is_read(&[path(&linked)]);
        // From a table that the reader may not take.
        add(&program, &["--version", "3"], &linked);
        let convert = ["convert", path(&linked), "--for", reader, "-o", path(&converted)];
        let (_, stderr) = sframe(0, &convert);
        assert_eq!(
            stderr.contains("skipped: outermost: 1 function"),
            version == 2,
            "{stderr}"
        );
        is_read(&["--table", path(&converted), path(&program)]);
        if let Some(library) = &library {
            for table in [&table, &with, &converted] {
                assert!(library.finds_all(table), "{reader}: {}", table.display());
            }
        }
    }
    // All files of a folder.
    let tree = out("tree");
    fs::create_dir(&tree).unwrap();
    for name in ["one", "two"] {
        fs::copy(&program, tree.join(name)).unwrap();
    }
    sframe(0, &["add", "-r", path(&tree), "--for", "glibc-2.42"]);
    for name in ["one", "two"] {
        assert!(refused("glibc-2.42", &[path(&tree.join(name))]).is_empty());
    }
}

/// Object files get what a linker makes such a table of.
#[test]
fn object_files_for_a_reader() {
    let Some((folder, object)) = program(None, &["-O2", "-c"]) else {
        return;
    };
    let object_with = folder.path().join("with.o");
    for (reader, release) in [
        ("kernel", Release::V2_47),
        ("binutils-2.47", Release::V2_47),
        ("glibc-2.42", Release::V2_44),
    ] {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        add(&object, &["--for", reader], &object_with);
        let linked = folder.path().join("linked");
        let mut gcc = Command::new("gcc");
        gcc.arg("-B").arg(binutils.for_gcc(Machine::X86_64));
        let finished = run(gcc.arg(&object_with).arg("-o").arg(&linked));
        assert_eq!((finished.code(), &*finished.stderr), (0, ""), "{reader}");
        assert!(elf_file::section(&fs::read(&linked).unwrap(), ".sframe").is_some());
        assert_eq!(refused(reader, &[path(&linked)]), Vec::<String>::new(), "{reader}");
    }
    // ld 2.47 merges version 3 only, and takes no starts that count from the section.
    let arguments = ["add", path(&object), "--for", "binutils-2.47", "--version", "2"];
    let (_, stderr) = sframe(2, &[&arguments[..], &["-o", path(&object_with)]].concat());
    let expected = "binutils-2.47 would refuse the table: starts are not relative to their fields\n";
    assert!(stderr.ends_with(expected), "{stderr}");
}

/// On AArch64, glibc takes no row in which the return address is still in its register, as in every
/// prologue; those pieces are left out, and the rest is kept.
#[test]
fn pieces_of_functions() {
    let folder = scratch();
    let object = folder.path().join("program");
    let mut gcc = Command::new("aarch64-linux-gnu-gcc");
    let source = place::workspace().join("crates/cfi/tests/programs/frames.c");
    let built = gcc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&object).arg(source);
    if !built.status().is_ok_and(|status| status.success()) {
        skip("no aarch64-linux-gnu-gcc");
        return;
    }
    let with = folder.path().join("with");
    let arguments = ["add", path(&object), "-o", path(&with), "--for", "glibc-2.42"];
    let (_, stderr) = sframe(0, &arguments);
    assert!(stderr.contains("skipped: ra_in_register: "), "{stderr}");
    assert!(refused("glibc-2.42", &[path(&with)]).is_empty());
    let report = checked(&with);
    let [uncovered, pcs] = ["uncovered_bytes", "pcs"].map(|name| report[name].as_u64().unwrap());
    assert!(0 < uncovered && uncovered < pcs / 2, "{report}");
    // Without this reader, all of it has rows.
    add(&object, &["--version", "2"], &with);
    assert!(!refused("glibc-2.42", &[path(&with)]).is_empty());
}

#[test]
fn what_one_table_cannot_be_for() {
    let folder = scratch();
    let out = folder.path().join("out");
    let file = "nowhere";
    let groups = "one table can't be for kernel,glibc-2.42,binutils-2.47: kernel reads version 3, glibc-2.42 reads \
                  version 2, binutils-2.47 reads version 2 and 3\nhelp: choose --for kernel,binutils-2.47 (version 3) \
                  or --for glibc-2.42,binutils-2.47 (version 2)\n";
    let two = "kernel does not read SFrame version 2\nhelp: --version 3 is what --for chooses\n";
    for (options, expected) in [
        (&["--for", "all"][..], groups),
        (&["--for", "kernel", "--version", "2"], two),
    ] {
        for verb in ["add", "build"] {
            let arguments = [&[verb, file, "-o", path(&out)], options].concat();
            assert_eq!(sframe(2, &arguments).1, format!("backtrail: {expected}"));
        }
    }
    let (_, stderr) = sframe(
        2,
        &["convert", file, "--for", "glibc-2.42", "--to", "3", "-o", path(&out)],
    );
    let expected = "backtrail: glibc-2.42 does not read SFrame version 3\nhelp: --to 2 is what --for chooses\n";
    assert_eq!(stderr, expected);
    // Nothing is linked first.
    let mut link = backtrail();
    link.args(["link", "--for", "kernel", "--sframe", "2", "--", "touch", path(&out)]);
    let finished = run(&mut link);
    let expected = "backtrail: kernel does not read SFrame version 2\nhelp: --sframe 3 is what --for chooses\n";
    assert_eq!((finished.code(), &*finished.stderr), (2, expected));
    assert!(!out.exists());
    let (_, stderr) = sframe(2, &["add", file, "--for", "glibc"]);
    assert!(stderr.contains("glibc-2.42"), "{stderr}");
}
