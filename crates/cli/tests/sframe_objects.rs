//! `backtrail sframe add` and `strip` for object files and archives: linkers merge what is added as
//! if an assembler had written it.

use crate::adding;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use adding::*;
use backtrail_testkit::command;
use backtrail_testkit::peers::{Binutils, Machine, Release, mold_3};
use backtrail_testkit::{TempDir, available, elf_file, place, scratch};
use serde_json::Value;

/// Size and rows of each function, by its start.
type Functions = BTreeMap<u64, (u64, Vec<Value>)>;

fn program(name: &str) -> PathBuf {
    place::workspace().join("crates/cli/tests/programs").join(name)
}

fn number(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
        None => value.as_u64().unwrap(),
    }
}

/// The output of `sframe show` for a file, without rows that repeat the previous one, which gas
/// writes.
fn functions(file: &Path) -> Functions {
    let (stdout, _) = sframe(0, &["show".as_ref(), "--json".as_ref(), file.as_os_str()]);
    let tables: Value = serde_json::from_str(&stdout).unwrap();
    let mut functions = Functions::new();
    for function in tables
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|table| table["functions"].as_array().unwrap())
    {
        let mut rows = function["rows"].as_array().unwrap().clone();
        let rule = |row: &Value| ["cfa", "ra", "fp", "mangled_ra", "outermost"].map(|name| row[name].clone());
        rows.dedup_by(|next, row| rule(next) == rule(row));
        functions.insert(number(&function["start"]), (number(&function["size"]), rows));
    }
    functions
}

/// What `sframe build` makes of a file, with an FDE for each function.
fn built(file: &Path, version: u8) -> Functions {
    let folder = scratch();
    let raw = folder.path().join("raw");
    let version = version.to_string();
    let arguments: [&std::ffi::OsStr; 9] = [
        "build".as_ref(),
        "-q".as_ref(),
        "--merge".as_ref(),
        "1".as_ref(),
        "--version".as_ref(),
        version.as_ref(),
        file.as_ref(),
        "-o".as_ref(),
        raw.as_ref(),
    ];
    sframe(0, &arguments);
    functions(&raw)
}

/// Names and addresses of the functions that a file defines, by binutils' nm.
fn symbols(file: &Path) -> BTreeMap<String, u64> {
    let listing = run(Command::new("nm").arg("--defined-only").arg(file)).stdout;
    let symbols = listing.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let address = u64::from_str_radix(fields.next()?, 16).ok()?;
        let kind = fields.next()?;
        let name = fields.next()?;
        matches!(kind, "t" | "T" | "w" | "W" | "u" | "V").then(|| (name.to_owned(), address))
    });
    symbols.collect()
}

/// The file with a table in the object beside it.
fn with_table(object: &Path, version: u8) -> PathBuf {
    let after = object.with_extension(format!("{version}.o"));
    add(object, &["--version", &version.to_string()], &after);
    after
}

/// Everything that holds of an object file, or an archive, and the same with tables.
#[track_caller]
fn object_holds(before: &Path, after: &Path, version: u8) {
    once_is_enough_and_can_be_undone(before, after, &["--version", &version.to_string()]);
    if version == 3
        && let Some(binutils) = Binutils::get(Release::V2_47)
    {
        let complaints = |file: &Path| {
            let mut readelf = binutils.tool(Machine::X86_64, "readelf").command();
            run(readelf.arg("-aWg").arg(file)).stderr
        };
        assert_eq!(complaints(after), complaints(before));
    }
}

/// A linker, as arguments of a compiler, and the version that it merges.
struct Linker {
    name: String,
    arguments: Vec<String>,
    version: u8,
    /// It knows the format.
    merges: bool,
    /// It keeps tables where unused sections are dropped.
    keeps: bool,
}

/// All that the machine has: GNU ld of three releases, mold, lld, and Rust's lld.
fn linkers() -> Vec<Linker> {
    let mut linkers = Vec::new();
    for release in Release::ALL {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        linkers.push(Linker {
            name: format!("ld {}", release.number()),
            arguments: vec!["-B".to_owned(), binutils.for_gcc(Machine::X86_64).display().to_string()],
            version: release.sframe_version(),
            merges: true,
            keeps: release == Release::V2_47,
        });
    }
    linkers.extend(mold_3().map(|folder| Linker {
        name: "mold".to_owned(),
        arguments: vec!["-B".to_owned(), folder.display().to_string()],
        version: 3,
        merges: true,
        keeps: true,
    }));
    let lld = |name: &str, arguments: Vec<String>| Linker {
        name: name.to_owned(),
        arguments,
        version: 3,
        merges: false,
        keeps: false,
    };
    if available(command::run(Command::new("ld.lld").arg("--version"), LIMIT)).is_some() {
        linkers.push(lld("lld", vec!["-fuse-ld=lld".to_owned()]));
    }
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"])).stdout;
    let folder = Path::new(sysroot.trim()).join(format!(
        "lib/rustlib/{}-unknown-linux-gnu/bin/gcc-ld",
        std::env::consts::ARCH
    ));
    if folder.join("ld.lld").exists() {
        linkers.push(lld(
            "rust-lld",
            vec!["-fuse-ld=lld".to_owned(), "-B".to_owned(), folder.display().to_string()],
        ));
    }
    linkers
}

/// What must hold of a program whose objects had tables, however it was linked. `own` are the names
/// of what the objects define.
#[track_caller]
fn is_merged(linker: &Linker, linked: &Path, own: &BTreeSet<String>, all: bool) {
    let bytes = fs::read(linked).unwrap();
    // Releases that do not keep tables where garbage is collected may drop all of them.
    if linker.merges && (all || elf_file::section(&bytes, ".sframe").is_some()) {
        let (found, expected) = (functions(linked), built(linked, linker.version));
        let plt: Vec<_> = [".plt", ".plt.got", ".plt.sec", ".iplt"]
            .iter()
            .filter_map(|name| elf_file::section(&bytes, name))
            .collect();
        // Sections of programs lie at equal distances in file and memory but for what the linker
        // says of its own stubs.
        for (start, function) in &found {
            let (size, rows) = function;
            let matches = expected.get(start).is_some_and(|built| built == function);
            let is_stub = rows.iter().any(|row| row["pc"].is_null()) || *size % 8 == 0 && !plt.is_empty();
            assert!(
                matches || is_stub,
                "{}: {start:#x}: {function:?} {:?}",
                linker.name,
                expected.get(start)
            );
        }
        let names = symbols(linked);
        let of_objects = |address: u64| {
            names
                .iter()
                .any(|(name, start)| *start == address && own.contains(name))
        };
        let missing: Vec<u64> = expected
            .keys()
            .filter(|start| !found.contains_key(start) && of_objects(**start))
            .copied()
            .collect();
        assert!(!all || missing.is_empty(), "{}: {missing:x?}", linker.name);
        assert!(
            !all || own.iter().filter(|name| names.contains_key(*name)).count() > 3,
            "{own:?}"
        );
    }
    // And whatever the linker did: repaired, it is the table of the file.
    let repaired = linked.with_extension("repaired");
    add(
        linked,
        &["--merge", "1", "--version", &linker.version.to_string()],
        &repaired,
    );
    let uncovered = checked(&repaired)["uncovered_bytes"].as_u64();
    // The others can't say that _start has no caller.
    assert!(
        uncovered == Some(0) || linker.version != 3,
        "{}: {uncovered:?}",
        linker.name
    );
    let (found, expected) = (functions(&repaired), built(&repaired, linker.version));
    for (start, function) in &expected {
        assert_eq!(found.get(start), Some(function), "{}: {start:#x}", linker.name);
    }
    assert_eq!(
        run(&mut Command::new(&repaired)).stdout,
        run(&mut Command::new(linked)).stdout
    );
}

/// Templates, inline functions, exceptions and unused functions in two files, by both compilers,
/// through every linker.
#[test]
fn cpp_programs() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    for compiler in ["clang++", "g++"] {
        let mut objects = Vec::new();
        for source in ["shared_main.cc", "shared_parts.cc"] {
            let object = path(&format!("{source}.{compiler}.o"));
            let flags = ["-c", "-ffunction-sections", "-std=c++17"];
            if compile(compiler, &flags, &object, &program(source)).is_none() {
                return;
            }
            objects.push(object);
        }
        let own: BTreeSet<String> = objects.iter().flat_map(|object| symbols(object).into_keys()).collect();
        for version in [1, 2, 3] {
            for object in &objects {
                object_holds(object, &with_table(object, version), version);
                assert_eq!(checked(&with_table(object, version))["uncovered_bytes"], 0);
            }
        }
        let plain = path("plain");
        let finished = run(Command::new("g++").args(&objects).arg("-o").arg(&plain));
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        let expected = run(&mut Command::new(&plain)).stdout;
        assert!(
            expected.contains("caught too many") && expected.contains("caught #2"),
            "{expected}"
        );
        for linker in linkers() {
            if linker.keeps {
                // One table, as gas has it, and no more kept of what is unused than without any.
                let arguments = |objects: &[PathBuf], out: &Path| {
                    let mut link = Command::new("g++");
                    link.args(&linker.arguments)
                        .args(objects)
                        .args(["-Wl,--gc-sections", "-o"])
                        .arg(out);
                    let finished = run(&mut link);
                    assert_eq!((finished.code(), &*finished.stderr), (0, ""), "{}", linker.name);
                };
                let tables = objects.iter().map(|object| {
                    let after = object.with_extension("one.o");
                    add(object, &["--one-table"], &after);
                    after
                });
                let (with, without) = (path("with"), path("without"));
                arguments(&tables.collect::<Vec<_>>(), &with);
                arguments(&objects, &without);
                assert_eq!(
                    symbols(&with).into_keys().collect::<Vec<_>>(),
                    symbols(&without).into_keys().collect::<Vec<_>>()
                );
                is_merged(&linker, &with, &own, true);
            }
            let with_tables: Vec<PathBuf> = objects
                .iter()
                .map(|object| with_table(object, linker.version))
                .collect();
            for collect in [false, true] {
                println!("{compiler}, {}, {collect}", linker.name);
                let linked = path("linked");
                let mut link = Command::new("g++");
                link.args(&linker.arguments).args(&with_tables).arg("-o").arg(&linked);
                if collect {
                    link.arg("-Wl,--gc-sections");
                }
                let finished = run(&mut link);
                assert_eq!((finished.code(), &*finished.stderr), (0, ""), "{}", linker.name);
                assert_eq!(run(&mut Command::new(&linked)).stdout, expected);
                assert_eq!(symbols(&linked).contains_key("_Z6nobodyi"), !collect, "{}", linker.name);
                is_merged(&linker, &linked, &own, !collect || linker.keeps);
            }
        }
    }
}

/// A Rust program: its own objects, a library, and the standard library as rustup has it, all of
/// them given tables.
#[test]
fn rust_programs() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let rustc = |arguments: &[&str], source: &str| {
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2021", "-O", "-C", "debuginfo=1", "-C", "codegen-units=4"]);
        let finished = run(rustc.args(arguments).arg(program(source)).current_dir(folder.path()));
        assert_eq!(finished.code(), 0, "{}", finished.describe());
    };
    rustc(&["--crate-type", "rlib"], "parts.rs");
    let before = path("libparts.rlib");
    let after = path("with/libparts.rlib");
    fs::create_dir(path("with")).unwrap();
    add(&before, &[], &after);
    object_holds(&before, &after, 3);
    rustc(&["--extern", "parts=libparts.rlib", "-o", "plain"], "panics.rs");
    let expected = run(&mut Command::new(path("plain"))).stdout;
    assert!(
        expected.contains("hook") && expected.contains("drop level") && expected.contains("true"),
        "{expected}"
    );
    for linker in linkers() {
        // rustc hands objects and libraries to its linker, which gets copies with tables here.
        let linked = path(&format!("linked-{}", linker.name.replace(' ', "-")));
        let wrapper = path("linker");
        let script = format!(
            r#"#!/bin/bash
mkdir -p copies
all=()
for argument in "$@"; do
    case "$argument" in
    -fuse-ld=*|-B*) continue ;;
    *.o|*.rlib)
        copy="copies/$(basename "$argument")"
        if '{}' sframe add -q --version {} "$argument" -o "$copy" 2>>told; then argument="$copy"; fi ;;
    esac
    all+=("$argument")
done
exec cc {} "${{all[@]}}"
"#,
            env!("CARGO_BIN_EXE_backtrail"),
            linker.version,
            linker.arguments.join(" "),
        );
        executable(&wrapper, &script);
        let linker_is = format!("linker={}", wrapper.display());
        let out = linked.display().to_string();
        rustc(
            &["--extern", "parts=libparts.rlib", "-C", &linker_is, "-o", &out],
            "panics.rs",
        );
        assert_eq!(run(&mut Command::new(&linked)).stdout, expected);
        let own = BTreeSet::from_iter(symbols(&linked).into_keys().filter(|name| {
            // Demangled or not, what is Rust's says so.
            name.starts_with("_ZN") || name.starts_with("_R")
        }));
        // Collecting garbage is what rustc asks for.
        is_merged(&linker, &linked, &own, linker.keeps);
    }
}

fn executable(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// What gas writes and what is added to the same code are the same to GNU ld, for every machine and
/// version; and gas's own is replaced.
#[test]
fn as_the_assembler_would_have() {
    let machines = [
        (Machine::X86_64, "gcc", &[][..]),
        (Machine::Aarch64, "aarch64-linux-gnu-gcc", &[]),
        (Machine::Aarch64, "aarch64-linux-gnu-gcc", &["-mbig-endian"]),
        (Machine::S390x, "s390x-linux-gnu-gcc", &[]),
    ];
    let source = place::workspace().join("crates/cfi/tests/programs/frames.c");
    for release in Release::ALL {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        for (machine, gcc, flags) in machines {
            if machine == Machine::S390x && release != Release::V2_47 {
                continue;
            }
            let folder = scratch();
            let path = |name: &str| folder.path().join(name);
            let tools = binutils.for_gcc(machine).display().to_string();
            let common = [&["-B", &tools, "-ffunction-sections", "-fPIC"], flags].concat();
            let (by_gas, plain) = (path("gas.o"), path("plain.o"));
            if compile(gcc, &[&common[..], &["-c", "-Wa,--gsframe"]].concat(), &by_gas, &source).is_none() {
                continue;
            }
            compile(gcc, &[&common[..], &["-c"]].concat(), &plain, &source).unwrap();
            println!("{} {gcc} {flags:?}", release.number());
            let version = release.sframe_version();
            let ours = with_table(&plain, version);
            object_holds(&plain, &ours, version);
            // Sections in the middle of the file go, and all numbers with them.
            let replaced = with_table(&by_gas, version);
            assert_eq!(functions_by_name(&replaced), functions_by_name(&ours));
            let link = |object: &Path, name: &str| {
                let linked = path(name);
                let arguments = [&common[..], &["-shared", "-nostdlib"]].concat();
                compile(gcc, &arguments, &linked, object).unwrap();
                functions(&linked)
            };
            let (gas, mut own, replaced) = (link(&by_gas, "gas"), link(&ours, "ours"), link(&replaced, "replaced"));
            assert!(gas.len() >= 9, "{gas:?}");
            assert_eq!(own, replaced);
            let expected = built(&path("ours"), version);
            // What gas does not say, or says wrongly up to 2.44, is known; nothing else may differ.
            for (start, function) in &gas {
                let ours = own.remove(start);
                let right = expected.get(start).or(Some(function));
                assert!(
                    ours.as_ref() == Some(function) || ours.as_ref() == right,
                    "{start:#x}: {function:?} {ours:?}"
                );
            }
            for (start, function) in &own {
                assert_eq!(expected.get(start), Some(function), "{start:#x}");
            }
        }
    }
}

/// Rows of each function of an object file by its place, with its section's name.
fn functions_by_name(object: &Path) -> Vec<(u64, u64, usize)> {
    let functions = functions(object);
    functions
        .iter()
        .map(|(start, (size, rows))| (*start, *size, rows.len()))
        .collect()
}

/// Rows that were written by hand, of code without call frame information, stay.
#[test]
fn rows_that_only_the_table_has() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("assembler for x86-64");
    }
    for release in Release::ALL {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        let folder = scratch();
        let path = |name: &str| folder.path().join(name);
        let source = path("by_hand.s");
        let text = ".cfi_sections .sframe\n.text\n.globl by_hand\nby_hand:\n.cfi_startproc\nnop\npush %rbx\n.cfi_adjust_cfa_offset 8\n\
                    pop %rbx\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n.section .note.GNU-stack\n";
        fs::write(&source, text).unwrap();
        let object = path("by_hand.o");
        let mut assemble = binutils.tool(Machine::X86_64, "as").command();
        let finished = run(assemble.arg("--gsframe").arg(&source).arg("-o").arg(&object));
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        let before = functions(&object);
        assert_eq!(
            before
                .values()
                .map(|(size, rows)| (*size, rows.len()))
                .collect::<Vec<_>>(),
            [(4, 3)]
        );
        for version in [1, 2, 3] {
            assert_eq!(functions(&with_table(&object, version)), before, "{version}");
        }
    }
}

/// Archives of GNU's sort, with members of all sorts and names of all lengths.
#[test]
fn archives() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let long = "a_member_with_a_long_name.o";
    let (main, member, notes) = (path("main.o"), path(long), path("notes.txt"));
    let source = path("member.c");
    fs::write(&source, "#include <stdio.h>\nint shown(int n) { return printf(\"%d\\n\", n); }\nint twice(int n) { return shown(n) + shown(n); }\n").unwrap();
    let main_source = path("main.c");
    fs::write(
        &main_source,
        "int twice(int);\nint main(void) { return twice(21) != 6; }\n",
    )
    .unwrap();
    if compile("gcc", &["-c"], &member, &source).is_none() {
        return;
    }
    compile("gcc", &["-c"], &main, &main_source).unwrap();
    fs::write(&notes, "odd").unwrap();
    let before = path("libboth.a");
    let mut ar = Command::new("ar");
    ar.arg("rcs")
        .args([&before, &notes, &member])
        .current_dir(folder.path());
    assert_eq!(run(&mut ar).code(), 0);
    let listed = |archive: &Path, options: &str| {
        let finished = run(Command::new("nm").arg(options).arg(archive));
        finished
            .stdout
            .lines()
            .filter(|line| line.contains(" in "))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for linker in linkers() {
        let after = path("libafter.a");
        add(&before, &["--version", &linker.version.to_string()], &after);
        object_holds(&before, &after, linker.version);
        let index = listed(&after, "-s");
        assert!(index.len() == 2 && index == listed(&before, "-s"), "{index:?}");
        let names = run(Command::new("ar").arg("t").arg(&after)).stdout;
        assert_eq!(names, format!("notes.txt\n{long}\n"));
        let kept = run(Command::new("ar").arg("p").args([&after, Path::new("notes.txt")])).stdout;
        assert_eq!(kept, "odd");
        // By the index the linker finds it.
        let linked = path("linked");
        let mut link = Command::new("gcc");
        link.args(&linker.arguments)
            .args([&main, &after])
            .arg("-o")
            .arg(&linked);
        let finished = run(&mut link);
        // Some warn of members that are no objects.
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        assert_eq!(run(&mut Command::new(&linked)).stdout, "21\n21\n");
        let own = BTreeSet::from(["shown".to_owned(), "twice".to_owned()]);
        let covered = functions(&linked);
        let names = symbols(&linked);
        assert!(
            own.iter().all(|name| covered.contains_key(&names[name])),
            "{}",
            linker.name
        );
    }
    for verb in ["check", "show", "size", "build", "convert"] {
        let mut arguments = vec![verb.as_ref(), before.as_os_str()];
        if verb == "convert" {
            arguments.extend(["--to".as_ref(), "3".as_ref()] as [&std::ffi::OsStr; 2]);
        }
        if verb == "build" {
            arguments.extend(["-o".as_ref(), "-".as_ref()] as [&std::ffi::OsStr; 2]);
        }
        let (_, stderr) = sframe(2, &arguments);
        assert!(stderr.contains("an archive") && stderr.contains("help: "), "{stderr}");
    }
    let thin = path("libthin.a");
    assert_eq!(run(Command::new("ar").arg("rcsT").args([&thin, &member])).code(), 0);
    let (_, stderr) = sframe(2, &["add".as_ref(), thin.as_os_str()]);
    assert!(
        stderr.contains("a thin archive") && stderr.contains("help: "),
        "{stderr}"
    );
    // Damage in a member is reported with its name, and nothing is changed.
    let mut bytes = fs::read(&before).unwrap();
    let object = bytes.windows(4).position(|bytes| bytes == b"\x7fELF").unwrap();
    let frames = object + elf_file::section(&bytes[object..], ".eh_frame").unwrap().start;
    bytes[frames..frames + 4].copy_from_slice(&0x7fff_fff0u32.to_le_bytes());
    let damaged = path("libdamaged.a");
    fs::write(&damaged, &bytes).unwrap();
    let (_, stderr) = sframe(2, &["add".as_ref(), damaged.as_os_str()]);
    assert!(stderr.contains(&format!("libdamaged.a({long}): ")), "{stderr}");
    assert!(fs::read(&damaged).unwrap() == bytes);
}

/// More sections than symbols can number.
#[test]
fn a_section_for_each_of_many_functions() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("assembler for x86-64");
    }
    const FUNCTIONS: usize = 66_000;
    let Some(binutils) = Binutils::get(Release::V2_47) else {
        return;
    };
    let folder: TempDir = scratch();
    let path = |name: &str| folder.path().join(name);
    let text: String = (0..FUNCTIONS)
        .map(|index| {
            format!(
                ".section .text.f{index},\"ax\",@progbits\n.type f{index},@function\nf{index}:\n.cfi_startproc\npush %rbp\n\
                 .cfi_def_cfa_offset 16\npop %rbp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n"
            )
        })
        .collect();
    fs::write(path("many.s"), text).unwrap();
    let before = path("many.o");
    let mut assemble = binutils.tool(Machine::X86_64, "as").command();
    let finished = run(assemble.arg(path("many.s")).arg("-o").arg(&before));
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let after = with_table(&before, 3);
    object_holds(&before, &after, 3);
    let linked = path("many");
    let mut link = binutils.tool(Machine::X86_64, "ld").command();
    let finished = run(link.arg("-shared").arg(&after).arg("-o").arg(&linked));
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    assert_eq!(checked(&linked)["functions"].as_u64(), Some(FUNCTIONS as u64));
}
