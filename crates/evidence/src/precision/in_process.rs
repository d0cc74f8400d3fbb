//! The C library in its own process: single-steps code that is hard to unwind beside libgcc, and
//! static programs beside glibc.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::{Missing, command, place, scratch, skip};

use super::page::number;
use super::programs;

const LIMIT: Duration = Duration::from_secs(600);

/// The stepped parts, by their names in the document and in the program.
const PARTS: [(&str, &str); 22] = [
    ("assembly with its CFA in rbx, r12 and rax", "registers"),
    ("assembly without call frame information", "silent"),
    ("glibc's memcpy, memmove, memset, strlen, …", "memory"),
    ("calls that are bound lazily", "stubs"),
    ("libcrypto: AES-128-GCM", "AES-128-GCM"),
    ("libcrypto: AES-256-GCM", "AES-256-GCM"),
    ("libcrypto: ChaCha20", "ChaCha20"),
    ("libcrypto: ChaCha20-Poly1305", "ChaCha20-Poly1305"),
    ("libcrypto: AES-128-CBC", "AES-128-CBC"),
    ("libcrypto: AES-256-CTR", "AES-256-CTR"),
    ("libcrypto: AES-128-XTS", "AES-128-XTS"),
    ("libcrypto: AES-128-OCB", "AES-128-OCB"),
    ("libcrypto: CAMELLIA-128-CBC", "CAMELLIA-128-CBC"),
    ("libcrypto: ARIA-128-CBC", "ARIA-128-CBC"),
    ("libcrypto: SM4-CBC", "SM4-CBC"),
    ("libcrypto: SHA1", "SHA1"),
    ("libcrypto: SHA256", "SHA256"),
    ("libcrypto: SHA512", "SHA512"),
    ("libcrypto: SHA3-256", "SHA3-256"),
    ("libcrypto: MD5", "MD5"),
    ("ffmpeg's libswscale", "swscale"),
    ("OpenBLAS: dgemm", "dgemm"),
];

/// How `frames.c` is linked.
const LINKED: [(&str, &[&str]); 4] = [
    ("`gcc -static`", &["-static"]),
    ("`gcc -static -s`", &["-static", "-s"]),
    ("`gcc -static-pie`", &["-static-pie"]),
    ("`gcc -no-pie`", &["-no-pie"]),
];
const MODES: [&str; 4] = ["plain", "threads", "signals", "fork"];

/// The part of the document, and everything that breaks a promise.
pub(super) fn run() -> Result<(String, Vec<String>), String> {
    let built = place::release("backtrail-capi", "libbacktrail.so")?;
    let folder = scratch();
    let library = folder.path().join("libbacktrail.so.0");
    std::fs::copy(&built, &library).map_err(|error| error.to_string())?;
    let mut broken = Vec::new();
    let mut page = String::new();
    match stepped(&library, folder.path(), &mut broken) {
        Ok(table) => page.push_str(&table),
        Err(missing) => skip(missing),
    }
    match beside_glibc(&built.with_extension("a"), folder.path()) {
        Ok(table) => page.push_str(&table),
        Err(missing) => skip(missing),
    }
    Ok((page, broken))
}

fn compile(source: &Path, to: &Path, more: &[&str]) -> Result<(), Missing> {
    let include = place::workspace().join("crates/capi/include");
    let mut compile = Command::new("gcc");
    compile.args([
        "-O2",
        "-g",
        "-pthread",
        "-fomit-frame-pointer",
        "-fno-optimize-sibling-calls",
    ]);
    compile.arg("-I").arg(include).arg("-o").arg(to).arg(source);
    programs::done(compile.args(more).args(["-lm", "-ldl"]))
}

fn stepped(library: &Path, folder: &Path, broken: &mut Vec<String>) -> Result<String, Missing> {
    let program = folder.join("steps_inproc");
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    let library = library.to_string_lossy();
    let source = place::programs().join("steps_inproc.c");
    compile(&source, &program, &[&library, &rpath, "-Wl,-z,lazy"])?;
    let mut page = String::from(
        "Each line is code that a program calls while it single-steps itself. At every instruction the chain of \
         `backtrail_backtrace_from_ucontext` is compared with that of libgcc's `_Unwind_Backtrace` from the same handler. \
         *Longer* chains have all of libgcc's frames and more; *to main* counts all chains of Backtrail that end in `main` and \
         its callers. Where libgcc crashes (it reads any value as a return address), nothing can be compared. Promised: no \
         chain is shorter or different.\n\n\
         | code | instructions | equal | longer | shorter | different | libgcc crashes | to main |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (name, part) in PARTS {
        let mut step = Command::new(&program);
        let finished = command::run(step.arg(part), LIMIT)?;
        let Some(counts) = counts(&finished.stdout) else {
            skip(format!("{name}: {}", finished.describe()));
            continue;
        };
        let [steps, equal, longer, shorter, different, whole, crashes] = counts;
        if shorter + different > 0 {
            broken.push(format!("in process, {name}: {}", finished.describe()));
        }
        let [steps, equal, longer, shorter, different, crashes] =
            [steps, equal, longer, shorter, different, crashes].map(number);
        let whole = super::page::percent(whole, counts[0]);
        let _ = writeln!(
            page,
            "| {name} | {steps} | {equal} | {longer} | {shorter} | {different} | {crashes} | {whole} |"
        );
    }
    Ok(page)
}

/// The numbers of a line, in its order.
fn counts(line: &str) -> Option<[u64; 7]> {
    let words = line.lines().next()?.split(": ").nth(1)?.split_whitespace();
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

fn beside_glibc(library: &Path, folder: &Path) -> Result<String, Missing> {
    let mut page = String::from(
        "\nPrograms linked with `libbacktrail.a`; each stack is compared with glibc's `backtrace`, frame by frame; the program ends at the first difference.\n\n\
         | linked with | part | stacks compared | the deepest | different |\n|---|---|---|---|---|\n",
    );
    let source = place::workspace().join("crates/capi/tests/programs/frames.c");
    for (name, flags) in LINKED {
        let program = folder.join("frames");
        let library = library.to_string_lossy();
        compile(&source, &program, &[flags, &[&library]].concat())?;
        for mode in MODES {
            let mut run = Command::new(&program);
            let finished = command::run(run.arg(mode), LIMIT)?;
            if !finished.status.success() {
                return Err(Missing(format!("{name}, {mode}: {}", finished.describe())));
            }
            let words = finished.stdout.split(|c: char| !c.is_ascii_digit());
            let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
            let [stacks, deepest] = numbers[..] else {
                return Err(Missing(finished.describe()));
            };
            let _ = writeln!(page, "| {name} | {mode} | {} | {deepest} | 0 |", number(stacks));
        }
    }
    Ok(page)
}
