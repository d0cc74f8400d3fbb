//! Compiles C programs against the library as a user does, and runs them.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{TempDir, available, place, scratch};

const LIMIT: Duration = Duration::from_secs(120);

/// How a program is linked with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link<'l> {
    Shared,
    /// This shared library.
    With(&'l Path),
    Static,
    /// Not linked: `LD_PRELOAD`, or `dlopen`.
    Not,
}

/// The folder with the workspace's libraries for C. They are built here: no Rust program links
/// them, so `cargo test` alone makes none.
pub(crate) fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build(&["--lib"]))
}

pub(crate) fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// A program, and the folder that contains it and the library.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) folder: TempDir,
}

/// Compiles `source`, from this folder of programs. `None`, with a message, if there is no
/// compiler.
pub(crate) fn compile(source: &str, flags: &[&str], link: Link<'_>) -> Option<Program> {
    let folder = scratch();
    let path = folder.path().join(Path::new(source).file_stem().expect("a name"));
    let compiler = if source.ends_with(".cc") { "g++" } else { "cc" };
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut compile = Command::new(compiler);
    compile
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        // Recursions must not become loops.
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
            // As built by cargo, without a version in its name.
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

/// The names in a version script.
pub(crate) fn named_in(script: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(script).expect("it is committed");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("backtrail_"));
    names.map(str::to_owned).collect()
}

/// What a library exports, as nm has it: names, with versions if there are any, and kinds. `None`,
/// with a message, without nm.
pub(crate) fn symbols(library: &Path) -> Option<Vec<(String, String)>> {
    let mut list = Command::new("nm");
    list.args(["-D", "--defined-only", "--format=posix"]).arg(library);
    let listing = available(command::run(&mut list, LIMIT))?;
    let symbols = listing.stdout.lines().map(|line| {
        let mut words = line.split(' ').map(str::to_owned);
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    });
    Some(symbols.collect())
}

/// The shared library of this name with the versions of a script, linked in this folder as `cargo
/// xtask install-library` links it. `None`, with a message, if there is no compiler.
pub(crate) fn link_versioned(folder: &Path, name: &str, script: &Path) -> Option<PathBuf> {
    let soname = format!("lib{name}.so.0");
    let library = folder.join(&soname);
    let mut link = Command::new("cc");
    link.arg("-shared").arg(format!("-Wl,-soname,{soname}"));
    link.arg(format!("-Wl,--version-script={}", script.display()));
    link.args(named_in(script).iter().map(|name| format!("-Wl,-u,{name}")));
    link.arg("-o").arg(&library);
    link.arg(libraries().join(format!("lib{name}.a")))
        .args(["-lgcc_s", "-lc", "-lm"]);
    let linked = available(command::run(&mut link, LIMIT))?;
    assert!(linked.status.success(), "{}", linked.describe());
    Some(library)
}

pub(crate) fn run(program: &Program, arguments: &[&str]) -> Finished {
    let mut run = Command::new(&program.path);
    // Cargo's own value leads to libraries of earlier builds.
    run.args(arguments).env_remove("LD_LIBRARY_PATH");
    command::run(&mut run, LIMIT).expect("it was just built")
}

/// Runs a program that prints how many stacks it has compared, and how deep they were.
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

fn build(what: &[&str]) -> PathBuf {
    place::built(what).expect("the workspace can be built")
}

/// A program of the workspace.
pub(crate) fn built_program(name: &str) -> PathBuf {
    build(&["--bin", name]).join(name)
}

/// The drop-in library.
pub(crate) fn preload() -> PathBuf {
    libraries().join("libbacktrail_preload.so")
}
