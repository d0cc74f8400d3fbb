//! Compiles C programs against the library as a user does, and runs them.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{TempDir, available, scratch};

const LIMIT: Duration = Duration::from_secs(120);

/// How a program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link<'l> {
    Shared,
    /// The shared library that is there.
    With(&'l Path),
    Static,
    /// Not at all: `LD_PRELOAD`, or `dlopen`.
    Not,
}

/// Where cargo has put the libraries for this test.
pub(crate) fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows itself");
    test.parent().expect("it lies in a folder").to_owned()
}

pub(crate) fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// A program and the folder that it and the library lie in.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) folder: TempDir,
}

/// Compiles `source`, of this folder of programs. `None`, and said aloud, where there is no
/// compiler.
pub(crate) fn compile(source: &str, flags: &[&str], link: Link<'_>) -> Option<Program> {
    let folder = scratch();
    let path = folder.path().join(Path::new(source).file_stem().expect("a name"));
    let compiler = if source.ends_with(".cc") { "g++" } else { "cc" };
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut compile = Command::new(compiler);
    compile
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        // A recursion is to stay one.
        .arg("-fno-optimize-sibling-calls")
        .args(flags);
    compile
        .arg("-I")
        .arg(include)
        .arg("-o")
        .arg(&path)
        .arg(programs().join(source));
    match link {
        Link::Shared => {
            // As cargo has made it, without a version in its name.
            let library = folder.path().join("libbacktrail.so");
            std::fs::copy(libraries().join("libbacktrail.so"), &library).expect("cargo has built it");
            compile.arg("-L").arg(folder.path()).arg("-lbacktrail");
            compile.arg(format!("-Wl,-rpath,{}", folder.path().display()));
        }
        Link::With(library) => {
            compile.arg(library);
            compile.arg(format!("-Wl,-rpath,{}", library.parent().expect("a folder").display()));
        }
        Link::Static => {
            compile.arg(libraries().join("libbacktrail.a")).arg("-lm");
        }
        Link::Not => {}
    }
    compile.arg("-ldl");
    let finished = available(command::run(&mut compile, LIMIT))?;
    assert!(finished.status.success(), "{source}: {}", finished.describe());
    Some(Program { path, folder })
}

pub(crate) fn run(program: &Program, arguments: &[&str]) -> Finished {
    let mut run = Command::new(&program.path);
    // Cargo's own leads to libraries of earlier builds.
    run.args(arguments).env_remove("LD_LIBRARY_PATH");
    command::run(&mut run, LIMIT).expect("it was just built")
}

/// Runs a program that says how many stacks it has compared, and how deep they were.
pub(crate) fn compared(program: &Program, arguments: &[&str]) -> (u32, u32) {
    let finished = run(program, arguments);
    assert!(finished.status.success(), "{arguments:?}: {}", finished.describe());
    let mut numbers = finished
        .stdout
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(count), Some(depth)) => (count, depth),
        _ => panic!("no numbers: {}", finished.describe()),
    }
}

/// Builds more of the workspace as this test was built; the folder where its programs and libraries
/// are. Cargo builds only those of a test's own package.
fn build(what: &[&str]) -> PathBuf {
    let target = libraries().parent().unwrap().parent().unwrap().to_owned();
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--target-dir"]).arg(&target).args(what);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    let built = command::run(&mut build, Duration::from_secs(600)).expect("cargo runs, as it just did");
    assert!(built.status.success(), "{}", built.describe());
    target.join("debug")
}

/// A program of the workspace. Of the whole one, since alone it would have its dependencies built
/// once more, with fewer features.
pub(crate) fn built_program(name: &str) -> PathBuf {
    build(&["--workspace", "--bin", name]).join(name)
}

/// The drop-in.
pub(crate) fn preload() -> PathBuf {
    build(&["--package", "backtrail-preload"]).join("libbacktrail_preload.so")
}
