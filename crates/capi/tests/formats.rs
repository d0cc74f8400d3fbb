//! Tables and compact backtraces through the C library, and programs built with what it installs.

use crate::common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{TempDir, available, scratch, skip};
use common::{Link, compile, libraries, programs, run};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn compact_backtraces_come_back() {
    for link in [Link::Shared, Link::Static] {
        let Some(program) = compile("formats.c", &[], link) else {
            return;
        };
        let finished = run(&program, &[]);
        assert!(finished.status.success(), "{}", finished.describe());
        // The specification's bytes: pc, ra with a difference of 0x4a, a repetition.
        assert!(finished.stdout.starts_with("cbf 02"), "{}", finished.stdout);
    }
}

/// The lines of functions and rows that objdump prints, in the form of the test program.
fn of_objdump(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        if let Some((_, function)) = line.split_once(": pc = ") {
            lines.push(format!("pc = {function}"));
        } else if let Some((start, rest)) = line.trim().split_once("  ")
            && start.len() == 16
        {
            let cfa = rest.split_whitespace().next().unwrap_or_default();
            // DWARF numbers of x86-64.
            lines.push(format!("{start} {}", cfa.replace("sp", "7").replace("fp", "6")));
        }
    }
    lines
}

#[test]
fn tables_are_as_objdump_shows_them() {
    // The assembler makes its own table of this program.
    let Some(program) = compile("formats.c", &["-Wa,--gsframe"], Link::Shared) else {
        return;
    };
    let mut objdump = Command::new("objdump");
    objdump.arg("--sframe=.sframe").arg(&program.path);
    let Some(shown) = available(command::run(&mut objdump, LIMIT)) else {
        return;
    };
    if !shown.stdout.contains("Num FREs: ") || cfg!(not(target_arch = "x86_64")) {
        return skip("objdump shows no SFrame table here");
    }
    let finished = run(&program, &[program.path.to_str().expect("text")]);
    assert!(finished.status.success(), "{}", finished.describe());
    let (ours, rows) = finished.stdout.split_once("rows: ").expect("it counts rows");
    let ours: Vec<&str> = ours.lines().collect();
    assert_eq!(ours, of_objdump(&shown.stdout));
    assert!(shown.stdout.contains(&format!("Num FREs: {}", rows.trim())), "{rows}");
    assert!(ours.len() > 10, "{ours:?}");
}

/// What `cargo xtask install-library` installs, with libraries that tests build.
fn installed() -> Option<TempDir> {
    let prefix = scratch();
    let path = |name: &str| prefix.path().join(name);
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["include", "lib/pkgconfig", "lib/cmake/backtrail"] {
        fs::create_dir_all(path(folder)).unwrap();
    }
    fs::copy(own.join("include/backtrail.h"), path("include/backtrail.h")).unwrap();
    fs::copy(libraries().join("libbacktrail.a"), path("lib/libbacktrail.a")).unwrap();
    for (template, file) in [
        ("backtrail.pc.in", "lib/pkgconfig/backtrail.pc"),
        ("config.cmake.in", "lib/cmake/backtrail/backtrail-config.cmake"),
        (
            "config-version.cmake.in",
            "lib/cmake/backtrail/backtrail-config-version.cmake",
        ),
    ] {
        let text = fs::read_to_string(own.join(template)).unwrap();
        let text = text
            .replace("@prefix@", prefix.path().to_str().expect("text"))
            .replace("@lib@", "lib")
            .replace("@up@", "..")
            .replace("@version@", env!("CARGO_PKG_VERSION"))
            .replace("@package@", "backtrail")
            .replace("@name@", "backtrail");
        assert!(!text.contains('@'), "{template}");
        fs::write(path(file), text).unwrap();
    }
    let script = own.join("backtrail.map");
    let text = fs::read_to_string(&script).unwrap();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut link = Command::new("cc");
    link.args(["-shared", "-Wl,-soname,libbacktrail.so.0", "-o"]);
    link.arg(path("lib/libbacktrail.so.0"));
    link.arg(format!("-Wl,--version-script={}", script.display()));
    link.args(
        words
            .filter(|word| word.starts_with("backtrail_"))
            .map(|name| format!("-Wl,-u,{name}")),
    );
    link.arg(path("lib/libbacktrail.a")).args(["-lgcc_s", "-lc", "-lm"]);
    let linked = available(command::run(&mut link, LIMIT))?;
    assert!(linked.status.success(), "{}", linked.describe());
    symlink("libbacktrail.so.0", path("lib/libbacktrail.so")).unwrap();
    Some(prefix)
}

fn succeeds(command: &mut Command) -> Option<Finished> {
    let finished = available(command::run(command, LIMIT))?;
    assert!(finished.status.success(), "{}", finished.describe());
    Some(finished)
}

/// Runs a program that was linked with what is in this prefix, and returns the library that it has
/// loaded, if any.
fn checks(program: &Path, prefix: &Path) -> Option<bool> {
    let with = |command: &mut Command| {
        command.env("LD_LIBRARY_PATH", prefix.join("lib"));
    };
    let mut run = Command::new(program);
    with(&mut run);
    succeeds(&mut run)?;
    let mut needs = Command::new("readelf");
    let needs = succeeds(needs.args(["-d", "-W"]).arg(program))?;
    Some(needs.stdout.contains("[libbacktrail.so.0]"))
}

#[test]
fn programs_are_built_with_pkg_config() {
    let Some(prefix) = installed() else { return };
    let build = |name: &str, flags: &str| -> Option<PathBuf> {
        let program = prefix.path().join(name);
        let line = format!("cc -o \"$1\" \"$2\" {flags}");
        let mut build = Command::new("sh");
        build
            .args(["-ec", &line, "sh"])
            .arg(&program)
            .arg(programs().join("formats.c"));
        build.env("PKG_CONFIG_PATH", prefix.path().join("lib/pkgconfig"));
        available(command::run(Command::new("pkg-config").arg("--version"), LIMIT))?;
        succeeds(&mut build)?;
        Some(program)
    };
    let Some(shared) = build("shared", "$(pkg-config --cflags --libs backtrail)") else {
        return;
    };
    assert_eq!(checks(&shared, prefix.path()), Some(true));
    let flags = "-static $(pkg-config --static --cflags --libs backtrail)";
    let Some(all_static) = build("static", flags) else {
        return;
    };
    assert_eq!(checks(&all_static, prefix.path()), Some(false));
}

#[test]
fn programs_are_built_with_cmake() {
    let Some(prefix) = installed() else { return };
    let folder = scratch();
    let project = "cmake_minimum_required(VERSION 3.10)\nproject(example C)\nfind_package(backtrail 0.1 REQUIRED)\n\
                   add_executable(shared formats.c)\ntarget_link_libraries(shared backtrail::backtrail)\n\
                   add_executable(static formats.c)\ntarget_link_libraries(static backtrail::static)\n";
    fs::write(folder.path().join("CMakeLists.txt"), project).unwrap();
    fs::copy(programs().join("formats.c"), folder.path().join("formats.c")).unwrap();
    let cmake = |arguments: &[&str]| {
        let mut cmake = Command::new("cmake");
        cmake.args(arguments).env("CMAKE_PREFIX_PATH", prefix.path());
        available(command::run(cmake.current_dir(folder.path()), LIMIT))
    };
    let Some(configured) = cmake(&["-B", "build", "."]) else {
        return;
    };
    assert!(configured.status.success(), "{}", configured.describe());
    let built = cmake(&["--build", "build"]).expect("it has just run");
    assert!(built.status.success(), "{}", built.describe());
    let program = |name: &str| folder.path().join("build").join(name);
    assert_eq!(checks(&program("shared"), prefix.path()), Some(true));
    assert_eq!(checks(&program("static"), prefix.path()), Some(false));

    let later = project.replace("backtrail 0.1", "backtrail 0.9");
    fs::write(folder.path().join("CMakeLists.txt"), later).unwrap();
    let refused = cmake(&["-B", "later", "."]).expect("it has just run");
    assert!(!refused.status.success(), "{}", refused.describe());
}
