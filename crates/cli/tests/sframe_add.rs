//! `backtrail sframe add` and `strip`: files of every sort run as before, and other tools find
//! nothing wrong in them.

use crate::adding;

use std::fs;
use std::path::Path;
use std::process::Command;

use adding::*;
use backtrail_testkit::command;
use backtrail_testkit::peers::{Binutils, Machine, Release};
use backtrail_testkit::{available, elf_file, place, scratch};
use serde_json::Value;

/// How programs are linked, and for each whether the program headers stay where they were.
const LINKED: [&[&str]; 10] = [
    &[],
    &["-no-pie"],
    &["-static"],
    &["-static-pie"],
    &["-Wl,-z,noseparate-code"],
    &["-Wl,-z,max-page-size=0x200000", "-no-pie"],
    &["-Wl,--build-id=none"],
    &["-fuse-ld=gold"],
    &["-fuse-ld=lld"],
    &["-fuse-ld=mold"],
];

#[test]
fn programs_of_every_sort_run_as_before() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("programs for x86-64");
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    for flags in LINKED {
        println!("{flags:?}");
        let (before, after, stripped) = (path("before"), path("after"), path("stripped"));
        if compile("gcc", flags, &before, &inspect()).is_none() {
            continue;
        }
        add(&before, &[], &after);
        let told = same_output(&mut Command::new(&before), &mut Command::new(&after));
        assert!(
            told.contains("AT_PHDR agrees") && told.contains("inspected: thread-local 41 41"),
            "{told}"
        );
        assert_eq!(run(Command::new(&after).arg("sframe")).stdout, "table\n");
        let report = checked(&after);
        assert_eq!(report["uncovered_bytes"], 0);
        holds(Machine::X86_64, &before, &after);
        // What strips and copies afterwards keeps the table, and the program.
        for release in Release::ALL {
            let Some(binutils) = Binutils::get(release) else {
                continue;
            };
            for tool in ["strip", "objcopy"] {
                let copied = run(binutils
                    .tool(Machine::X86_64, tool)
                    .command()
                    .arg(&after)
                    .arg(&stripped));
                let copied = match tool {
                    "strip" => run(binutils
                        .tool(Machine::X86_64, tool)
                        .command()
                        .arg("-o")
                        .arg(&stripped)
                        .arg(&after)),
                    _ => copied,
                };
                assert!(
                    copied.status.success() && copied.stderr.is_empty(),
                    "{}",
                    copied.describe()
                );
                assert_eq!(
                    checked(&stripped)["rows"],
                    report["rows"],
                    "{tool} of {}",
                    release.number()
                );
                same_output(&mut Command::new(&before), &mut Command::new(&stripped));
                assert_eq!(run(Command::new(&stripped).arg("sframe")).stdout, "table\n");
            }
        }
    }
}

/// The offset after the last byte that is loaded, by binutils' readelf.
fn loaded_end(file: &Path) -> usize {
    let listing = run(Command::new("readelf").arg("-lW").arg(file)).stdout;
    let loads = listing.lines().filter(|line| line.trim_start().starts_with("LOAD"));
    let number = |field: Option<&str>| usize::from_str_radix(field.unwrap().trim_start_matches("0x"), 16).unwrap();
    let ends = loads.map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        number(fields.next()) + number(fields.nth(2))
    });
    ends.max().unwrap()
}

/// A file without section headers has nothing that would say what is free, or what it is.
#[test]
fn programs_without_section_headers() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("programs for x86-64");
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let all = [
        &[][..],
        &["-static"],
        &["-static-pie"],
        &["-Wl,--build-id=none"],
        &["-fuse-ld=lld"],
    ];
    for (flags, cut) in all.into_iter().flat_map(|flags| [(flags, false), (flags, true)]) {
        let (before, after) = (path("before"), path("after"));
        if compile("gcc", flags, &before, &inspect()).is_none() {
            continue;
        }
        let mut bytes = fs::read(&before).unwrap();
        bytes[40..48].fill(0);
        bytes[60..64].fill(0);
        if cut {
            bytes.truncate(loaded_end(&before));
        }
        fs::write(&before, &bytes).unwrap();
        // Static ones have no .eh_frame_hdr that would lead to .eh_frame: it is searched for.
        add(&before, &[], &after);
        let told = same_output(&mut Command::new(&before), &mut Command::new(&after));
        assert!(told.contains("AT_PHDR agrees"), "{told}");
        assert_eq!(run(Command::new(&after).arg("sframe")).stdout, "table\n");
        holds(Machine::X86_64, &before, &after);
    }
}

/// Each version, shared or not, joined or not: all of them can stand in for each other.
#[test]
fn a_table_is_replaced() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("programs for x86-64");
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let (before, file, alone) = (path("before"), path("file"), path("alone"));
    if compile("gcc", &["-static"], &before, &inspect()).is_none() {
        return;
    }
    add(&before, &[], &file);
    let all: [&[&str]; 7] = [
        &["--version", "1"],
        &["--version", "2", "--no-share"],
        &["--version", "3", "--no-share"],
        &["--version", "3", "--merge", "1"],
        &["--version", "3", "--merge", "16"],
        &["--version", "2", "--merge", "8"],
        &[],
    ];
    for options in all {
        add(&before, options, &alone);
        add(&file, options, &file);
        assert!(
            fs::read(&alone).unwrap() == fs::read(&file).unwrap(),
            "{options:?}: what was there before shows"
        );
        same_output(&mut Command::new(&before), &mut Command::new(&file));
    }
}

/// What GNU ld has made stays where it is if the new table fits there; its wrong rows are right
/// afterwards, and those that only it has are kept.
#[test]
fn tables_of_gnu_ld_are_repaired() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    for release in [Release::V2_44, Release::V2_47] {
        let Some(binutils) = Binutils::get(release) else {
            continue;
        };
        let tools = binutils.for_gcc(Machine::X86_64);
        // A function for which there is a row and no .eh_frame.
        let hand = path("hand.s");
        fs::write(
            &hand,
            ".cfi_sections .sframe\n.text\n.globl by_hand\n.type by_hand,@function\nby_hand:\n.cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\n\
             pop %rbx\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size by_hand,.-by_hand\n.section .note.GNU-stack,\"\"\n",
        )
        .unwrap();
        let (before, after, without) = (path("before"), path("after"), path("without"));
        let with = format!("-B{}/", tools.display());
        let flags = [&with, "-Wa,--gsframe", hand.to_str().unwrap()];
        if compile("gcc", &flags, &before, &inspect()).is_none() {
            continue;
        }
        let (wrong, _) = sframe(1, &["check".as_ref(), before.as_os_str()]);
        assert!(wrong.contains("rsp+16; .eh_frame rsp+8"), "{wrong}");
        let symbols = run(Command::new("nm").arg(&before)).stdout;
        let by_hand = symbols.lines().find(|line| line.ends_with(" by_hand")).unwrap();
        let by_hand = u64::from_str_radix(&by_hand[..16], 16).unwrap();
        for options in [&["--merge", "1"][..], &[], &["--version", "2"]] {
            add(&before, options, &after);
            same_output(&mut Command::new(&before), &mut Command::new(&after));
            // The hand-written rows are the only thing that .eh_frame does not say.
            let (told, _) = sframe(1, &["check".as_ref(), "--json".as_ref(), after.as_os_str()]);
            let told: Value = serde_json::from_str(&told).unwrap();
            let mismatches = told[0]["mismatches"].as_array().unwrap();
            assert!(
                mismatches
                    .iter()
                    .all(|found| found["what"] == "code" && found["pc"] == format!("{by_hand:#x}")),
                "{told}"
            );
            assert_eq!((mismatches.len(), &told[0]["uncovered_bytes"]), (1, &0.into()));
            let again = path("again");
            add(&after, options, &again);
            assert!(fs::read(&again).unwrap() == fs::read(&after).unwrap());
        }
        // The linker's section lies among others, and what copies the file keeps it there.
        readelf_is_content(Machine::X86_64, &after);
        sframe(
            0,
            &["strip".as_ref(), after.as_os_str(), "-o".as_ref(), without.as_os_str()],
        );
        assert!(fs::read(&without).unwrap() == fs::read(&before).unwrap());
        sframe(
            0,
            &["strip".as_ref(), before.as_os_str(), "-o".as_ref(), without.as_os_str()],
        );
        same_output(&mut Command::new(&before), &mut Command::new(&without));
        assert_eq!(segments(&without, "GNU_SFRAME"), 0);
        assert!(elf_file::section(&fs::read(&without).unwrap(), ".sframe").is_none());
        readelf_is_content(Machine::X86_64, &without);
        // Symbols still lie in the sections they lay in.
        assert_eq!(run(Command::new("nm").arg(&without)).stdout, symbols);
        if let (Some(before), Some(without)) = (elflint(&before), elflint(&without)) {
            assert_eq!(before, without);
        }
        add(&without, &[], &after);
        same_output(&mut Command::new(&before), &mut Command::new(&after));
        holds(Machine::X86_64, &without, &after);
    }
}

/// lld concatenates the tables of all object files, so that readers see those of the first one.
#[test]
fn tables_that_lld_concatenates_become_one() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let Some(binutils) = Binutils::get(Release::V2_47) else {
        return;
    };
    let with = format!("-B{}/", binutils.for_gcc(Machine::X86_64).display());
    let other = path("other.c");
    fs::write(
        &other,
        "int other(int n) { int a[n + 1]; a[n] = n; return *(volatile int *)&a[n]; }\n",
    )
    .unwrap();
    let (first, second, before, after) = (path("1.o"), path("2.o"), path("before"), path("after"));
    if compile("gcc", &[&with, "-Wa,--gsframe", "-c"], &first, &other).is_none() {
        return;
    }
    compile("gcc", &[&with, "-Wa,--gsframe", "-c"], &second, &inspect()).unwrap();
    let flags = ["-fuse-ld=lld", first.to_str().unwrap()];
    if compile("gcc", &flags, &before, &second).is_none() {
        return;
    }
    let own = elf_file::section(&fs::read(&before).unwrap(), ".sframe").unwrap();
    let (shown, _) = sframe(0, &["show".as_ref(), before.as_os_str()]);
    assert!(
        shown.contains("Num FDEs: 1") && own.len() > 200,
        "lld has become better: {shown}"
    );
    add(&before, &[], &after);
    same_output(&mut Command::new(&before), &mut Command::new(&after));
    assert_eq!(run(Command::new(&after).arg("sframe")).stdout, "table\n");
    assert_eq!(checked(&after)["uncovered_bytes"], 0);
    readelf_is_content(Machine::X86_64, &after);
}

/// Libraries that every program needs, found before the system's own.
#[test]
fn libraries_serve_programs_as_before() {
    let folder = scratch();
    let mut added = 0;
    for library in [
        "libc.so.6",
        "libstdc++.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libz.so.1",
        "libpthread.so.0",
    ] {
        let places = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"];
        let found = places
            .iter()
            .map(|place| Path::new(place).join(library))
            .find(|path| path.is_file());
        let Some(found) = found else {
            backtrail_testkit::skip(format!("there is no {library}"));
            continue;
        };
        let after = folder.path().join(library);
        // glibc has kept the names of libraries that have become empty.
        let mut arguments = backtrail_testkit::command::run(
            backtrail()
                .args(["sframe", "add", "-q"])
                .arg(&found)
                .arg("-o")
                .arg(&after),
            LIMIT,
        );
        let finished = arguments.as_mut().unwrap();
        if finished.stderr.contains("no function") {
            continue;
        }
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        holds(Machine::X86_64, &found, &after);
        added += 1;
    }
    if added == 0 {
        return;
    }
    let throws = folder.path().join("throws.cc");
    fs::write(
        &throws,
        "#include <iostream>\n#include <stdexcept>\n#include <thread>\nint main() { std::thread t([] { try { throw std::runtime_error(\"caught\"); } \
         catch (const std::exception &e) { std::cout << e.what() << std::endl; } }); t.join(); return 3; }\n",
    )
    .unwrap();
    let program = folder.path().join("throws");
    if compile("g++", &["-pthread"], &program, &throws).is_none() {
        return;
    }
    let told = same_output(
        &mut Command::new(&program),
        Command::new(&program).env("LD_LIBRARY_PATH", folder.path()),
    );
    assert_eq!(told, "caught\n");
}

/// Other CPUs, run by qemu.
#[test]
fn other_machines() {
    let folder = scratch();
    for (machine, qemu) in [
        (Machine::Aarch64, "qemu-aarch64-static"),
        (Machine::S390x, "qemu-s390x-static"),
    ] {
        let compiler = format!("{}-gcc", machine.triplet());
        let sysroot = format!("/usr/{}", machine.triplet());
        for flags in [&[][..], &["-no-pie"], &["-static"], &["-static-pie"]] {
            // glibc of s390x is not built for it.
            if machine == Machine::S390x && flags == ["-static-pie"] {
                continue;
            }
            println!("{machine:?} {flags:?}");
            let (before, after) = (folder.path().join("before"), folder.path().join("after"));
            if compile(&compiler, flags, &before, &inspect()).is_none() {
                continue;
            }
            add(&before, &[], &after);
            holds(machine, &before, &after);
            let run_by_qemu = |program: &Path| {
                let mut run = Command::new(qemu);
                run.args(["-L", &sysroot]).arg(program);
                run
            };
            if available(command::run(&mut run_by_qemu(&before), LIMIT)).is_none() {
                continue;
            }
            let told = same_output(&mut run_by_qemu(&before), &mut run_by_qemu(&after));
            assert!(told.contains("inspected: thread-local 41 41"), "{told}");
            assert_eq!(run(run_by_qemu(&after).arg("sframe")).stdout, "table\n");
            let Some(binutils) = Binutils::get(Release::V2_44) else {
                continue;
            };
            let stripped = folder.path().join("stripped");
            let done = run(binutils
                .tool(machine, "strip")
                .command()
                .arg("-o")
                .arg(&stripped)
                .arg(&after));
            assert!(done.status.success() && done.stderr.is_empty(), "{}", done.describe());
            checked(&stripped);
            same_output(&mut run_by_qemu(&before), &mut run_by_qemu(&stripped));
        }
    }
}

/// Go's own linker puts the section headers right after the program headers, and no other page can
/// precede the first one in a position-independent program, or at AArch64's lowest address.
#[test]
fn programs_of_gos_linker() {
    let folder = scratch();
    let source = folder.path().join("hello.go");
    fs::write(&source, "package main\n\nfunc main() { println(len(\"hello\")) }\n").unwrap();
    for (architecture, machine, qemu, mode) in [
        ("amd64", Machine::X86_64, None, "exe"),
        ("amd64", Machine::X86_64, None, "pie"),
        ("arm64", Machine::Aarch64, Some("qemu-aarch64-static"), "exe"),
        ("s390x", Machine::S390x, Some("qemu-s390x-static"), "exe"),
    ] {
        println!("{architecture} {mode}");
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        let mut build = Command::new("go");
        build
            .args(["build", "-buildmode", mode, "-o"])
            .arg(&before)
            .arg(&source);
        build.env("GOCACHE", place::target().join("testprograms/go"));
        build.env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
        build.env("GOARCH", architecture).env("CGO_ENABLED", "0");
        let Some(built) = available(command::run(&mut build, LIMIT)) else {
            return;
        };
        assert!(built.status.success(), "{}", built.describe());
        add(&before, &[], &after);
        holds(machine, &before, &after);
        let program = |path: &Path| match qemu {
            Some(qemu) => {
                let mut run = Command::new(qemu);
                run.arg(path);
                run
            }
            None => Command::new(path),
        };
        let can_run = qemu.is_some() || cfg!(target_arch = "x86_64");
        if !can_run || available(command::run(&mut program(&before), LIMIT)).is_none() {
            continue;
        }
        same_output(&mut program(&before), &mut program(&after));
        let Some(binutils) = Binutils::get(Release::V2_44) else {
            continue;
        };
        let stripped = folder.path().join("stripped");
        let mut strip = binutils.tool(machine, "strip").command();
        let done = run(strip.arg("-o").arg(&stripped).arg(&after));
        assert!(done.status.success() && done.stderr.is_empty(), "{}", done.describe());
        checked(&stripped);
        same_output(&mut program(&before), &mut program(&stripped));
    }
}

/// Where little but relocations follows the program headers: in static programs of musl, which
/// Rust's toolchain makes too, and in libraries with a few symbols.
#[test]
fn relocations_make_room() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let library = r"
        static int values[3] = {40, 1, 1};
        static int *const pointers[] = {values, values + 1, values + 2};
        int sum(int count) {
            int sum = 0;
            for (int i = 0; i < count; i++) sum += *((int *const volatile *)pointers)[i];
            return sum;
        }";
    let program = r#"
        int sum(int);
        int puts(const char *);
        int main(void) { puts(sum(3) == 42 ? "42" : "another"); return sum(1); }"#;
    fs::write(path("library.c"), library).unwrap();
    fs::write(path("program.c"), program).unwrap();
    let small = "-Wl,--build-id=none,--hash-style=gnu,-z,noseparate-code";
    let flags = ["-shared", "-fPIC", "-nostdlib", "-fuse-ld=bfd", small];
    let (before, after) = (path("libsum.so"), path("with/libsum.so"));
    fs::create_dir(path("with")).unwrap();
    if !cfg!(target_arch = "x86_64") || compile("gcc", &flags, &before, &path("library.c")).is_none() {
        return;
    }
    add(&before, &[], &after);
    holds(Machine::X86_64, &before, &after);
    let here = format!("-L{}", folder.path().display());
    let user = path("user");
    let built = run(Command::new("gcc")
        .arg("-o")
        .args([&user, &path("program.c")])
        .args([&here, "-lsum"]));
    assert!(built.status.success(), "{}", built.describe());
    let with = |library: &Path| {
        let mut run = Command::new(&user);
        run.env("LD_LIBRARY_PATH", library.parent().unwrap());
        run
    };
    assert_eq!(same_output(&mut with(&before), &mut with(&after)), "42\n");

    let start = Path::new("/usr/lib/x86_64-linux-musl");
    if !start.join("rcrt1.o").exists() {
        backtrail_testkit::skip("no musl for static position-independent programs");
        return;
    }
    let flags = ["-fPIE", "-c"];
    for source in ["program", "library"] {
        let object = path(&format!("{source}.o"));
        compile("musl-gcc", &flags, &object, &path(&format!("{source}.c"))).expect("a compiler for musl");
    }
    let (before, after) = (path("before"), path("after"));
    let mut ld = Command::new("ld.bfd");
    ld.args([
        "-static",
        "-pie",
        "--no-dynamic-linker",
        "-z",
        "text",
        "--build-id=none",
    ]);
    ld.args(["--hash-style=gnu", "-o"]).arg(&before);
    ld.args([
        start.join("rcrt1.o"),
        start.join("crti.o"),
        path("program.o"),
        path("library.o"),
    ]);
    let linked = run(ld.args([start.join("libc.a"), start.join("crtn.o")]));
    assert!(linked.status.success(), "{}", linked.describe());
    add(&before, &[], &after);
    holds(Machine::X86_64, &before, &after);
    let same = same_output(&mut Command::new(&before), &mut Command::new(&after));
    assert_eq!(same, "42\n");
    run(Command::new("strip").arg(&after));
    same_output(&mut Command::new(&before), &mut Command::new(&after));
}

/// Linkers write no .eh_frame for AArch64's procedure linkage tables; their rows follow from the
/// instructions, which objdump reads too.
#[test]
fn linkage_tables_of_aarch64_get_rows() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let (before, after) = (path("before"), path("after"));
    let gcc = "aarch64-linux-gnu-gcc";
    let all = [
        (gcc, &["-Wl,-z,lazy"][..]),
        (gcc, &["-mbranch-protection=standard", "-Wl,-z,force-bti"]),
        ("clang", &["--target=aarch64-linux-gnu", "-fuse-ld=lld"]),
        ("clang", &["--target=aarch64-linux-gnu", "-fuse-ld=mold"]),
    ];
    for (compiler, flags) in all {
        println!("{compiler} {flags:?}");
        if compile(compiler, flags, &before, &inspect()).is_none() {
            continue;
        }
        add(&before, &["--merge", "1"], &after);
        let report = checked(&after);
        let (shown, _) = sframe(0, &["show".as_ref(), "--json".as_ref(), after.as_os_str()]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let mut disassemble = Command::new("aarch64-linux-gnu-objdump");
        let listing = run(disassemble.args(["-d", "-j", ".plt", "--no-show-raw-insn"]).arg(&after)).stdout;
        let code = listing.lines().filter_map(|line| {
            let (address, instruction) = line.trim_start().split_once(":\t")?;
            Some((u64::from_str_radix(address, 16).ok()?, instruction.to_owned()))
        });
        let code: Vec<(u64, String)> = code.collect();
        let pushes = code
            .iter()
            .position(|(_, what)| what.starts_with("stp\tx16, x30, [sp, #-16]!"))
            .unwrap();
        let rows_at = |pc: u64| -> (i64, bool) {
            let number = |text: &Value| u64::from_str_radix(&text.as_str().unwrap()[2..], 16).unwrap();
            let all = shown[0]["functions"].as_array().unwrap();
            let holds = |function: &&Value| {
                number(&function["start"]) <= pc && pc < number(&function["start"]) + function["size"].as_u64().unwrap()
            };
            let function = all.iter().find(holds).unwrap_or_else(|| panic!("no rows at {pc:#x}"));
            let rows = function["rows"].as_array().unwrap().iter();
            let row = rows.take_while(|row| number(&row["pc"]) <= pc).last().unwrap();
            (
                row["cfa"]["offset"].as_i64().unwrap(),
                row["ra"]["deref"].as_bool().unwrap(),
            )
        };
        // In the first entry the pair is on the stack from after the push to the jump; everywhere
        // else nothing is.
        let jump = pushes
            + code[pushes..]
                .iter()
                .position(|(_, what)| what.starts_with("br\t"))
                .unwrap();
        for (index, (pc, what)) in code.iter().enumerate() {
            // Behind the jump there is padding.
            if index > jump && *pc < code[0].0 + 32 {
                continue;
            }
            let expected = if pushes < index && index <= jump {
                (16, true)
            } else {
                (0, false)
            };
            assert_eq!(rows_at(*pc), expected, "{pc:#x}: {what}");
        }
        // A push of more bytes is what the rows don't say, and the check sees it.
        let mut bytes = fs::read(&after).unwrap();
        let plt = elf_file::section(&bytes, ".plt").unwrap().start + (code[pushes].0 - code[0].0) as usize;
        bytes[plt..plt + 4].copy_from_slice(&0xa9be_7bf0u32.to_le_bytes());
        fs::write(&after, bytes).unwrap();
        let (told, _) = sframe(1, &["check".as_ref(), after.as_os_str()]);
        assert!(
            told.contains("cfa at") && told.contains("sp+32 by its instructions"),
            "{told}"
        );
        assert!(report["functions"].as_u64().unwrap() > 2);
        // Version 1 and 2 can't say where the return address is without the frame pointer's place;
        // the other entries stay.
        add(&before, &["--version", "2"], &after);
        checked(&after);
    }
}

/// Tools that look into a program, and one that changes it afterwards.
#[test]
fn debuggers_and_patchelf() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("programs for x86-64");
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    for flags in [
        &[][..],
        &["-no-pie"],
        &["-static"],
        &["-rdynamic"],
        &["-fuse-ld=lld"],
        &["-fuse-ld=mold"],
    ] {
        println!("{flags:?}");
        let (before, after, patched) = (path("before"), path("after"), path("patched"));
        if compile("gcc", flags, &before, &inspect()).is_none() {
            continue;
        }
        add(&before, &[], &after);
        let debugged = |program: &Path| {
            let mut gdb = Command::new("gdb");
            gdb.args([
                "-nx",
                "-batch",
                "-ex",
                "break identity",
                "-ex",
                "run",
                "-ex",
                "backtrace",
                "-ex",
                "print initialized",
            ]);
            let finished = available(command::run(gdb.arg(program), LIMIT))?;
            Some(
                finished
                    .stdout
                    .lines()
                    .filter(|line| line.starts_with(['#', '$']))
                    .collect::<Vec<_>>()
                    .join("\n"),
            )
        };
        if let (Some(old), Some(new)) = (debugged(&before), debugged(&after)) {
            assert!(old.contains(" in main ") || old.contains("main ("), "{old}");
            assert_eq!(old, new);
        }
        if flags.contains(&"-static") {
            continue;
        }
        let changes: [&[&str]; 3] = [
            &["--set-rpath", "/nowhere"],
            &["--set-interpreter", "/lib64/../lib64/ld-linux-x86-64.so.2"],
            &["--add-needed", "libm.so.6"],
        ];
        for change in changes {
            let mut patchelf = Command::new("patchelf");
            let Some(done) = available(command::run(
                patchelf.args(change).arg("--output").arg(&patched).arg(&after),
                LIMIT,
            )) else {
                continue;
            };
            assert_eq!(done.code(), 0, "{}", done.describe());
            fs::set_permissions(&patched, fs::metadata(&after).unwrap().permissions()).unwrap();
            let told = run(&mut Command::new(&patched));
            assert!(
                told.code() == 7 && told.stdout.contains("AT_PHDR agrees"),
                "{change:?}: {}",
                told.describe()
            );
            assert_eq!(run(Command::new(&patched).arg("sframe")).stdout, "table\n");
            checked(&patched);
            // Our own work goes on from there.
            add_here(&patched);
            assert_eq!(run(Command::new(&patched).arg("sframe")).stdout, "table\n");
            let strip = || {
                sframe(0, &["strip".as_ref(), patched.as_os_str()]);
                assert_eq!(run(&mut Command::new(&patched)).code(), 7);
                segments(&patched, "GNU_SFRAME")
            };
            // The table that patchelf has kept may be back, and is removed in its turn.
            assert!(strip() == 0 || strip() == 0, "{change:?}");
        }
    }
}

/// What patchelf writes where something was that it has moved: X up to release 0.17, Z in 0.19.
const FILLERS: [u8; 2] = *b"XZ";

/// The file as the release of patchelf with this filler writes it.
fn filled_with(filler: u8, mut bytes: Vec<u8>) -> Vec<u8> {
    let runs = bytes.chunk_by_mut(|one, next| one == next);
    let filled: Vec<_> = runs
        .filter(|run| run.len() >= 64 && FILLERS.contains(&run[0]))
        .collect();
    assert!(!filled.is_empty());
    filled.into_iter().for_each(|run| run.fill(filler));
    bytes
}

/// patchelf moves what has to grow to the file's end and fills the place where it was: wheels of
/// Python and all of Nix are so.
#[test]
fn what_patchelf_has_left_is_room() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("libraries for x86-64");
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let (source, main) = (path("lib.c"), path("main.c"));
    fs::write(&source, "int twice(int n) { return 2 * n; }\n").unwrap();
    fs::write(&main, "int twice(int); int main(void) { return twice(21); }\n").unwrap();
    for flags in [
        &["-shared", "-fPIC"][..],
        &["-shared", "-fPIC", "-Wl,-z,noseparate-code"],
        &["-shared", "-fPIC", "-fuse-ld=gold"],
        &["-shared", "-fPIC", "-fuse-ld=lld"],
        &["-shared", "-fPIC", "-fuse-ld=mold"],
    ] {
        println!("{flags:?}");
        let (library, program) = (path("libtwice.so"), path("main"));
        if compile("gcc", flags, &library, &source).is_none() {
            continue;
        }
        let library_flag = library.to_str().unwrap();
        if compile(
            "gcc",
            &["-Wl,--no-as-needed", library_flag, "-Wl,-rpath,$ORIGIN"],
            &program,
            &main,
        )
        .is_none()
        {
            return;
        }
        let far = format!("$ORIGIN/{}", "far/".repeat(20));
        let mut patchelf = Command::new("patchelf");
        let Some(done) = available(command::run(patchelf.args(["--set-rpath", &far]).arg(&library), LIMIT)) else {
            return;
        };
        assert_eq!(done.code(), 0, "{}", done.describe());
        let written = fs::read(&library).unwrap();
        let patched = path("patched");
        for filler in FILLERS {
            fs::write(&library, filled_with(filler, written.clone())).unwrap();
            fs::copy(&library, &patched).unwrap();
            add_here(&library);
            assert_eq!(segments(&library, "GNU_SFRAME"), 1);
            holds(Machine::X86_64, &patched, &library);
            assert_eq!(run(&mut Command::new(&program)).code(), 42);
        }
    }
}
