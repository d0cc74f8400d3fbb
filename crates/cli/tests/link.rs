//! `backtrail link`: linkers and compilers run as if nothing stood before them, and what they make
//! has tables.

use crate::adding;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use adding::*;
use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{TempDir, available, elf_file, scratch, skip};

/// A folder with the program that looks at itself, as an object file.
fn object() -> Option<(TempDir, PathBuf)> {
    let folder = scratch();
    let object = folder.path().join("object.o");
    compile("gcc", &["-c"], &object, &inspect())?;
    Some((folder, object))
}

fn link(folder: &Path, options: &[&str], command: &[&str]) -> Finished {
    let mut link = backtrail();
    link.arg("link")
        .args(options)
        .arg("--")
        .args(command)
        .current_dir(folder);
    run(&mut link)
}

fn has_table(file: &Path) -> bool {
    elf_file::section(&fs::read(file).unwrap(), ".sframe").is_some()
}

#[track_caller]
fn is_whole(program: &Path) {
    assert_eq!(checked(program)["uncovered_bytes"], 0);
    let told = run(&mut Command::new(program));
    assert!(
        told.stdout.contains("AT_PHDR agrees") && told.code() == 7,
        "{}",
        told.describe()
    );
    assert_eq!(run(Command::new(program).arg("sframe")).stdout, "table\n");
}

#[test]
fn every_linker_by_every_compiler() {
    let Some((folder, _)) = object() else { return };
    let here = folder.path();
    for compiler in ["gcc", "clang"] {
        if available(command::run(Command::new(compiler).arg("--version"), LIMIT)).is_none() {
            continue;
        }
        for linker in ["bfd", "gold", "lld", "mold"] {
            let by = format!("-fuse-ld={linker}");
            let ordinary = run(Command::new(compiler).args([&by, "object.o"]).current_dir(here));
            if ordinary.code() != 0 {
                skip(format!("{compiler} {by}: {}", ordinary.stderr));
                continue;
            }
            let finished = link(here, &[], &[compiler, &by, "-o", "linked", "object.o"]);
            assert_eq!(
                (finished.code(), &*finished.stdout, &*finished.stderr),
                (0, "", ""),
                "{compiler} {by}"
            );
            is_whole(&here.join("linked"));
        }
    }
}

/// As the linker itself, by which the compiler finds its `ld` in a folder of its own.
#[test]
fn in_the_place_of_the_linker() {
    let Some((folder, _)) = object() else { return };
    let here = folder.path();
    let tools = here.join("tools");
    fs::create_dir(&tools).unwrap();
    let script = format!(
        "#!/bin/sh\nexec '{}' link -- ld \"$@\"\n",
        env!("CARGO_BIN_EXE_backtrail")
    );
    executable(&tools.join("ld"), &script);
    let finished = run(Command::new("gcc")
        .arg(format!("-B{}/", tools.display()))
        .args(["object.o", "-o", "linked"])
        .current_dir(here));
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    is_whole(&here.join("linked"));
}

fn executable(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn versions_response_files_and_the_default_name() {
    let Some((folder, _)) = object() else { return };
    let here = folder.path();
    for version in ["1", "2", "3"] {
        let finished = link(here, &["--sframe", version], &["gcc", "object.o"]);
        assert_eq!((finished.code(), &*finished.stderr), (0, ""));
        let (shown, _) = sframe(0, &["show".as_ref(), here.join("a.out").as_os_str()]);
        assert!(shown.contains(&format!("SFRAME_VERSION_{version}")), "{shown}");
    }
    fs::write(here.join("arguments"), "-o 'with space' object.o\n").unwrap();
    let finished = link(here, &[], &["gcc", "@arguments"]);
    assert_eq!((finished.code(), &*finished.stderr), (0, ""));
    is_whole(&here.join("with space"));
}

#[test]
fn everything_else_passes_through() {
    let Some((folder, _)) = object() else { return };
    let here = folder.path();
    // What the linker says and how it ends.
    let failing = ["gcc", "nothing.o", "-o", "failed"];
    let (ordinary, ours) = (
        run(Command::new("gcc").args(&failing[1..]).current_dir(here)),
        link(here, &[], &failing),
    );
    assert_eq!(
        (ours.code(), &ours.stdout, &ours.stderr),
        (ordinary.code(), &ordinary.stdout, &ordinary.stderr)
    );
    assert!(ordinary.code() != 0 && !here.join("failed").exists());
    assert_eq!(link(here, &[], &["sh", "-c", "exit 42"]).code(), 42);
    assert_eq!(link(here, &[], &["sh", "-c", "kill -TERM $$"]).code(), 128 + 15);
    // Nothing is added to a command that does not link, even if a linked file is there.
    fs::copy("/bin/true", here.join("a.out")).unwrap();
    let before = fs::read(here.join("a.out")).unwrap();
    let finished = link(here, &["--strict"], &["gcc", "--version"]);
    assert!(
        finished.code() == 0 && finished.stdout.contains("gcc") && finished.stderr.is_empty(),
        "{}",
        finished.describe()
    );
    assert!(fs::read(here.join("a.out")).unwrap() == before);
    let source = inspect();
    let finished = link(
        here,
        &["--strict"],
        &["gcc", "-c", source.to_str().unwrap(), "-o", "other.o"],
    );
    assert_eq!((finished.code(), &*finished.stderr), (0, ""));
    let finished = link(here, &["--strict"], &["gcc", "-r", "object.o", "-o", "relinked.o"]);
    assert_eq!((finished.code(), &*finished.stderr), (0, ""));
    let finished = link(here, &[], &["no-such-linker"]);
    assert!(
        finished.code() == 2 && finished.stderr.starts_with("backtrail: no-such-linker: "),
        "{}",
        finished.describe()
    );
    assert_eq!(link(here, &[], &[]).code(), 2);
}

/// Without any .eh_frame there is nothing to make a table of.
#[test]
fn what_can_get_no_table_is_a_warning_unless_strict() {
    let Some((folder, _)) = object() else { return };
    let here = folder.path();
    let source = here.join("bare.c");
    fs::write(&source, "void _start(void) { for (;;) ; }\n").unwrap();
    let flags = [
        "gcc",
        "-nostdlib",
        "-static",
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
        "-fcf-protection=none",
        "-Wl,--build-id=none",
    ];
    let command = [&flags[..], &["bare.c", "-o", "bare"]].concat();
    let finished = link(here, &[], &command);
    let warning = "backtrail: warning: bare: no .eh_frame section, nor .debug_frame or .gopclntab; no stack-trace tables were added\n";
    assert_eq!((finished.code(), &*finished.stderr), (0, warning));
    assert!(here.join("bare").exists() && !has_table(&here.join("bare")));
    fs::remove_file(here.join("bare")).unwrap();
    let finished = link(here, &["--strict"], &command);
    assert_eq!(
        (finished.code(), &*finished.stderr),
        (
            2,
            "backtrail: bare: no .eh_frame section, nor .debug_frame or .gopclntab\n"
        )
    );
}

/// The two lines for cargo.
#[test]
fn cargo() {
    let folder = scratch();
    let here = folder.path();
    fs::create_dir(here.join("src")).unwrap();
    fs::write(
        here.join("Cargo.toml"),
        "[package]\nname = \"hello\"\nedition = \"2021\"\n[workspace]\n",
    )
    .unwrap();
    let source = "fn main() { let v: Vec<u32> = std::env::args().map(|a| a.len() as u32).collect(); std::process::exit(if v.len() == 2 { 5 } else { 6 }) }";
    fs::write(here.join("src/main.rs"), source).unwrap();
    let linker = here.join("linker");
    executable(
        &linker,
        &format!(
            "#!/bin/sh\nexec '{}' link --strict -- cc \"$@\"\n",
            env!("CARGO_BIN_EXE_backtrail")
        ),
    );
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--offline", "--release", "--target-dir", "target"])
        .current_dir(here);
    build.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", &linker);
    build.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &linker);
    build
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    let finished = run(&mut build);
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    let program = here.join("target/release/hello");
    assert_eq!(checked(&program)["uncovered_bytes"], 0);
    assert_eq!(run(Command::new(&program).arg("x")).code(), 5);
}
