//! The programs that are stepped.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_elf::{FileBytes, Image};
use backtrail_testkit::{Missing, command, place};

const LIMIT: Duration = Duration::from_secs(120);
/// A standard library takes longer.
const SIGNED_LIMIT: Duration = Duration::from_secs(900);

/// A compiler, the flags that select its target, and the common flags.
type Compiler = &'static [&'static [&'static str]];

/// The flags of all C compilers.
const FLAGS: &[&str] = &["-O2", "-g", "-Wall", "-fomit-frame-pointer", "-pthread"];
const SIGNED: &[&str] = &["-mbranch-protection=standard"];
const STATIC: &[&str] = &["-static"];
const C: Compiler = &[&["gcc"], FLAGS];
const STATIC_C: Compiler = &[&["gcc"], FLAGS, STATIC];
const CPP: Compiler = &[&["g++", "-std=c++17"], FLAGS];
const RUSTC: &[&str] = &["rustc", "--edition", "2024", "-O"];
const RUST: Compiler = &[RUSTC];
const STATIC_RUST: Compiler = &[RUSTC, &["-C", "target-feature=+crt-static"]];
const AARCH64_GCC: &[&str] = &["aarch64-linux-gnu-gcc"];
const AARCH64: Compiler = &[AARCH64_GCC, FLAGS];
const AARCH64_SIGNED: Compiler = &[AARCH64_GCC, FLAGS, SIGNED];
const AARCH64_STATIC: Compiler = &[AARCH64_GCC, FLAGS, SIGNED, STATIC];
const AARCH64_GPP: &[&str] = &["aarch64-linux-gnu-g++", "-std=c++17"];
const AARCH64_CPP: Compiler = &[AARCH64_GPP, FLAGS];
const AARCH64_CPP_SIGNED: Compiler = &[AARCH64_GPP, FLAGS, SIGNED];
/// The target of Rust, and the linker.
pub(super) const AARCH64_TARGET: &str = "aarch64-unknown-linux-gnu";
pub(super) const AARCH64_LINKER: &str = AARCH64_GCC[0];
const AARCH64_RUST: Compiler = &[
    RUSTC,
    &["--target", AARCH64_TARGET, "-C", "linker=aarch64-linux-gnu-gcc"],
];

/// Where a program comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    /// Compiled: the compiler and its flags, and the source.
    Source(Compiler, &'static str),
    /// A Rust program for AArch64, compiled by nightly Rust with its standard library, so that all
    /// of its Rust code signs return addresses.
    SignedRust(&'static str),
    /// Two sources, the second one a library that is called through stubs, which are bound at their
    /// first call or at the start.
    Stubs(Compiler, &'static str),
    /// A program of the distribution.
    System(&'static str),
}

/// A program and how it is tested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) from: From,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// `.eh_frame` is removed, and only `.sframe` is left.
    pub(crate) only_sframe: bool,
    /// The C library walks in the program, too.
    pub(crate) in_process: bool,
}

const fn subject(name: &'static str, from: From, arguments: &'static [&'static str]) -> Subject {
    Subject {
        name,
        from,
        arguments,
        environment: &[],
        only_sframe: false,
        in_process: false,
    }
}

const fn only_sframe(mut subject: Subject) -> Subject {
    subject.only_sframe = true;
    subject
}

const fn in_process(mut subject: Subject) -> Subject {
    subject.in_process = true;
    subject
}

/// On this machine. The longest come first, so that two at a time end together.
pub(crate) const NATIVE: [Subject; 13] = [
    subject("C++", From::Source(CPP, "steps_throws.cc"), &["4"]),
    subject("C", From::Source(C, "steps.c"), &["2"]),
    only_sframe(subject("C, static", From::Source(STATIC_C, "steps.c"), &["2"])),
    subject("Rust", From::Source(RUST, "steps.rs"), &["4"]),
    only_sframe(subject(
        "Rust, static, without panics",
        From::Source(STATIC_RUST, "steps.rs"),
        &["4", "never"],
    )),
    subject("ls -lR", From::System("/bin/ls"), &["-lR", "/etc/apt"]),
    subject("sort", From::System("/usr/bin/sort"), &["/etc/services"]),
    subject("xz", From::System("/usr/bin/xz"), &["-0", "-c", "/etc/hostname"]),
    subject("signals", From::Source(C, "steps_signals.c"), &["6", "20000"]),
    only_sframe(subject(
        "signals, static",
        From::Source(STATIC_C, "steps_signals.c"),
        &["6"],
    )),
    subject("stubs, bound lazily", From::Stubs(C, "lazy"), &["300"]),
    subject("stubs, bound at the start", From::Stubs(C, "now"), &["300"]),
    Subject {
        environment: &[("LD_BIND_NOW", "1")],
        ..subject("C, all bound at the start", From::Source(C, "steps.c"), &["1"])
    },
];

/// Under qemu-user. The longest come first.
pub(crate) const AARCH64_PROGRAMS: [Subject; 9] = [
    in_process(subject("C++", From::Source(AARCH64_CPP, "steps_throws.cc"), &["4"])),
    in_process(subject(
        "C++, return addresses signed",
        From::Source(AARCH64_CPP_SIGNED, "steps_throws.cc"),
        &["4"],
    )),
    in_process(subject("Rust", From::Source(AARCH64_RUST, "steps.rs"), &["4"])),
    in_process(subject(
        "Rust, return addresses signed",
        From::SignedRust("steps.rs"),
        &["4"],
    )),
    in_process(subject("C", From::Source(AARCH64, "steps.c"), &["2"])),
    in_process(subject(
        "C, return addresses signed",
        From::Source(AARCH64_SIGNED, "steps.c"),
        &["2"],
    )),
    only_sframe(subject(
        "C, static, return addresses signed",
        From::Source(AARCH64_STATIC, "steps.c"),
        &["2"],
    )),
    subject("stubs, bound lazily", From::Stubs(AARCH64_SIGNED, "lazy"), &["300"]),
    subject(
        "signals",
        From::Source(AARCH64_SIGNED, "steps_signals.c"),
        &["2", "200000"],
    ),
];

/// An existing program, and where the `.eh_frame` is that it lacks.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) path: PathBuf,
    pub(crate) originals: HashMap<String, PathBuf>,
}

impl Subject {
    /// Builds it in `folder`, which must be its own.
    pub(crate) fn build(&self, folder: &Path) -> Result<Built, Missing> {
        let mut built = Built {
            path: folder.join("program"),
            originals: HashMap::new(),
        };
        match self.from {
            From::System(path) => match Path::new(path).is_file() {
                true => built.path = path.into(),
                false => return Err(Missing(format!("there is no {path}"))),
            },
            From::Source(compiler, source) => compile(compiler, &[source], &[], &built.path)?,
            From::SignedRust(source) => signed_rust(source, folder, &built.path)?,
            From::Stubs(compiler, binding) => {
                let library = folder.join("libplt.so");
                compile(compiler, &["plt_lib.c"], &["-fPIC", "-shared"], &library)?;
                let there = [
                    library.to_string_lossy().into_owned(),
                    format!("-Wl,-rpath,{}", folder.display()),
                    "-fplt".into(),
                    format!("-Wl,-z,{binding}"),
                ];
                let there: Vec<&str> = there.iter().map(String::as_str).collect();
                compile(compiler, &["steps_stubs.c"], &there, &built.path)?;
            }
        }
        if self.only_sframe {
            let original = folder.join("original");
            fs::rename(&built.path, &original).map_err(|error| Missing(error.to_string()))?;
            leave_only_sframe(&original, &built.path)?;
            let path = fs::canonicalize(&built.path).unwrap_or(built.path.clone());
            built.originals.insert(path.to_string_lossy().into_owned(), original);
        }
        Ok(built)
    }
}

fn compile(compiler: Compiler, sources: &[&str], more: &[&str], to: &Path) -> Result<(), Missing> {
    let mut words = compiler.iter().copied().flatten();
    let mut compile = Command::new(words.next().expect("a compiler has a name"));
    compile.args(words).arg("-o").arg(to);
    compile.args(sources.iter().map(|source| place::programs().join(source)));
    compile.args(more);
    done(&mut compile)
}

/// Compiles a source and Rust's standard library as `-mbranch-protection=standard` does C.
fn signed_rust(source: &str, folder: &Path, to: &Path) -> Result<(), Missing> {
    let failed = |error: std::io::Error| Missing(error.to_string());
    let source = place::programs().join(source);
    let manifest = format!(
        "[package]\nname = \"signed\"\nedition = \"2024\"\n[[bin]]\nname = \"signed\"\npath = {source:?}\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).map_err(failed)?;
    // Kept, because the standard library takes minutes.
    let target = place::target().join("signed-rust");
    let mut build = Command::new("cargo");
    build.args([
        "+nightly",
        "build",
        "--quiet",
        "--release",
        "-Zbuild-std=std,panic_unwind",
    ]);
    build.args(["--target", AARCH64_TARGET, "--target-dir"]).arg(&target);
    build.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", AARCH64_LINKER);
    build.env("RUSTFLAGS", "-Zbranch-protection=bti,pac-ret");
    // Those of the cargo that has started this command.
    for variable in ["RUSTC", "RUSTC_WORKSPACE_WRAPPER", "RUSTUP_TOOLCHAIN", "CARGO"] {
        build.env_remove(variable);
    }
    let finished = command::run(build.current_dir(folder), SIGNED_LIMIT)?;
    if !finished.status.success() {
        return Err(Missing(format!("nightly Rust with rust-src: {}", finished.describe())));
    }
    let built = target.join(AARCH64_TARGET).join("release/signed");
    fs::copy(built, to).map_err(failed)?;
    Ok(())
}

pub(super) fn done(build: &mut Command) -> Result<(), Missing> {
    let finished = command::run(build, LIMIT)?;
    match finished.status.success() {
        true => Ok(()),
        false => Err(Missing(format!("{build:?}: {}", finished.describe()))),
    }
}

/// Adds a table as users do, and overwrites the `.eh_frame` with zeros, so that nobody can fall
/// back on it.
fn leave_only_sframe(from: &Path, to: &Path) -> Result<(), Missing> {
    let binary = place::release("backtrail", "backtrail").map_err(Missing)?;
    let mut add = Command::new(binary);
    add.args(["sframe", "add", "--quiet", "-o"]).arg(to).arg(from);
    done(&mut add)?;
    let wipe = || {
        let file = FileBytes::open(to)?;
        let mut bytes = file.bytes().to_vec();
        let image = Image::of(&file).map_err(|error| std::io::Error::other(error.to_string()))?;
        for name in [".eh_frame", ".eh_frame_hdr"] {
            let data = image
                .section_header(name)
                .and_then(|section| Some((section.size, image.data_at(section.address)?)));
            // Static programs have no search table.
            let Some((size, data)) = data else { continue };
            let start = data.as_ptr() as usize - file.bytes().as_ptr() as usize;
            bytes[start..start + size as usize].fill(0);
        }
        let mode = fs::metadata(to)?.permissions();
        fs::remove_file(to)?;
        fs::write(to, bytes)?;
        fs::set_permissions(to, mode)
    };
    wipe().map_err(|error| Missing(format!("{}: {error}", to.display())))
}
