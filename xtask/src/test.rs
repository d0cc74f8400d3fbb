//! `cargo xtask test`: everything that must hold before a change goes in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use backtrail_testkit::{SKIPPED, packages, place};

use crate::cargo::{cargo_in, pass_on_both};
use crate::suite::{self, Compiler};

/// A tool (or a file or folder, by its whole path) that tests compare with or work on, and Debian's
/// package of it.
const TOOLS: [(&str, &str); 67] = [
    ("cc", "gcc"),
    ("g++", "g++"),
    ("git", "git"),
    ("python3", "python3"),
    ("xz", "xz-utils"),
    ("babeltrace2", "babeltrace2"),
    ("perf", "linux-perf"),
    ("readelf", "binutils"),
    ("objdump", "binutils"),
    ("gdb", "gdb"),
    ("gdb-multiarch", "gdb-multiarch"),
    ("cmake", "cmake"),
    ("meson", "meson"),
    ("ninja", "ninja-build"),
    ("pkg-config", "pkg-config"),
    ("mount", "mount"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("clang", "clang"),
    ("llvm-dwp", "llvm"),
    ("ld.lld", "lld"),
    ("mold", "mold"),
    ("eu-elflint", "elfutils"),
    ("eu-stack", "elfutils"),
    ("perl", "perl"),
    ("sqlite3", "sqlite3"),
    ("redis-server", "redis-server"),
    ("nginx", "nginx"),
    ("node", "nodejs"),
    ("erlc", "erlang-base"),
    ("luajit", "luajit"),
    ("shellcheck", "shellcheck"),
    ("php", "php-cli"),
    ("/usr/lib/postgresql", "postgresql"),
    ("psql", "postgresql-client"),
    ("javac", "default-jdk-headless"),
    ("go", "golang-go"),
    ("chromium", "chromium"),
    ("debuginfod", "debuginfod"),
    ("npm", "npm"),
    ("pip3", "python3-pip"),
    ("bison", "bison"),
    ("flex", "flex"),
    ("patchelf", "patchelf"),
    ("dwz", "dwz"),
    ("bpftool", "bpftool"),
    ("pahole", "dwarves"),
    ("abidiff", "abigail-tools"),
    ("poke", "poke"),
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/include/stdio.h", "libc6-dev-arm64-cross"),
    ("s390x-linux-gnu-gcc", "gcc-s390x-linux-gnu"),
    ("/usr/s390x-linux-gnu/include/stdio.h", "libc6-dev-s390x-cross"),
    ("powerpc-linux-gnu-gcc", "gcc-powerpc-linux-gnu"),
    ("/usr/powerpc-linux-gnu/include/stdio.h", "libc6-dev-powerpc-cross"),
    ("qemu-aarch64-static", "qemu-user-static"),
    ("qemu-system-aarch64", "qemu-system-arm"),
    ("mke2fs", "e2fsprogs"),
    ("/lib/ld-musl-x86_64.so.1", "musl"),
    ("musl-gcc", "musl-tools"),
    ("gfortran", "gfortran"),
    ("gnatmake", "gnat"),
    ("ldc2", "ldc"),
    ("/usr/include/x86_64-linux-gnu/libunwind.h", "libunwind-dev"),
    ("/usr/lib/x86_64-linux-gnu/libswscale.so.6", "libswscale6"),
    ("/usr/lib/x86_64-linux-gnu/libopenblas.so.0", "libopenblas0-pthread"),
    (
        "/usr/lib/x86_64-linux-gnu/libboost_context.so.1.74.0",
        "libboost-context1.74.0",
    ),
];

/// Runs all steps, even after a failed one.
pub(crate) fn run() -> Result<(), String> {
    let skipped = AtomicUsize::new(0);
    let mut failed = Vec::new();
    let mut programs = Vec::new();
    let mut compiler = Compiler::Lints;
    thread::scope(|scope| {
        // The network's work, beside the compiler's.
        let installing = scope.spawn(|| packages::install(&TOOLS));
        step(&mut failed, "formatting", || {
            cargo(&["fmt", "--all", "--check"], &skipped)
        });
        step(&mut failed, "lints, and building the tests", || {
            programs = suite::build(compiler)?;
            Ok(())
        });
        if programs.is_empty() {
            compiler = Compiler::Rustc;
            step(&mut failed, "building the tests without lints", || {
                programs = suite::build(compiler)?;
                Ok(())
            });
        }
        step(&mut failed, "installing what they need", || {
            let missing = installing.join().map_err(|_| "it panicked")?;
            for package in missing {
                println!("{SKIPPED} {package} is missing and can't be installed (as root: apt-get install {package})");
                skipped.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    });
    step(&mut failed, "tests", || {
        match &suite::run(&programs, compiler, &skipped)[..] {
            [] => Ok(()),
            failed => Err(failed.join("\n")),
        }
    });
    match skipped.into_inner() {
        0 => println!("nothing was skipped"),
        count => println!("{count} times {SKIPPED} see the lines above"),
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

/// Does it, says how long it took, and notes its name if it fails.
fn step(failed: &mut Vec<String>, name: &str, act: impl FnOnce() -> Result<(), String>) {
    let started = Instant::now();
    if let Err(error) = act() {
        eprintln!("xtask: {name}: {error}");
        failed.push(name.to_owned());
    }
    println!("{name}: {} s", started.elapsed().as_secs());
}

/// Runs cargo in the workspace.
fn cargo(arguments: &[&str], skipped: &AtomicUsize) -> Result<(), String> {
    pass_on_both(&mut cargo_in(&place::workspace(), arguments), skipped)
}
