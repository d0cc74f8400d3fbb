//! Calls as compilers make them: random signatures, called from C. The callee records every
//! register that passes arguments, and the stack. Each argument's bytes must be where the
//! classification says.
//!
//! `BACKTRAIL_SIGNATURES` sets the number of signatures for each compiler; `cargo evidence
//! arguments` runs this with 10,000.

mod program;
mod types;

use backtrail_args::abi::Abi;
use backtrail_testkit::available;

use program::{Compiler, check};
use types::Dialect;

/// Number of signatures in a program.
const AT_ONCE: usize = 500;

fn wide() -> bool {
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cfg!(target_arch = "x86_64") && known.contains(" avx512bw ")
}

fn agree(compiler: &Compiler) {
    let wanted = std::env::var("BACKTRAIL_SIGNATURES")
        .ok()
        .and_then(|count| count.parse().ok());
    let mut left: usize = wanted.unwrap_or(AT_ONCE);
    let (mut seed, mut checked, mut mistakes) = (1, 0, Vec::new());
    while left > 0 {
        let count = left.min(AT_ONCE);
        let Some(found) = available(check(compiler, seed, count)) else {
            return;
        };
        mistakes.extend(found);
        checked += count;
        left -= count;
        seed += 1;
    }
    println!(
        "{}: {checked} signatures, {} arguments elsewhere",
        compiler.name,
        mistakes.len()
    );
    let shown: Vec<&str> = mistakes.iter().take(10).map(|mistake| &mistake.0[..]).collect();
    assert!(mistakes.is_empty(), "{} of them:\n{}", mistakes.len(), shown.join("\n"));
}

fn x86_64(clang: bool) -> Dialect {
    Dialect {
        x86: true,
        clang,
        vector: if wide() { 64 } else { 16 },
    }
}

#[test]
fn gcc_for_x86_64() {
    let wide = &["gcc", "-mavx512bw"][..];
    agree(&Compiler {
        name: "gcc, x86-64",
        command: if self::wide() { wide } else { &wide[..1] },
        runner: if cfg!(target_arch = "x86_64") {
            &[]
        } else {
            &["qemu-x86_64-static"]
        },
        abi: Abi::SysvX86_64,
        dialect: x86_64(false),
    });
}

#[test]
fn clang_for_x86_64() {
    let wide = &["clang", "--target=x86_64-linux-gnu", "-mavx512bw"][..];
    agree(&Compiler {
        name: "clang, x86-64",
        command: if self::wide() { wide } else { &wide[..2] },
        runner: if cfg!(target_arch = "x86_64") {
            &[]
        } else {
            &["qemu-x86_64-static"]
        },
        abi: Abi::SysvX86_64,
        dialect: x86_64(true),
    });
}

#[test]
fn gcc_for_aarch64() {
    agree(&Compiler {
        name: "gcc, AArch64",
        command: &["aarch64-linux-gnu-gcc"],
        runner: &["qemu-aarch64-static"],
        abi: Abi::Aapcs64,
        dialect: Dialect {
            x86: false,
            clang: false,
            vector: 16,
        },
    });
}

#[test]
fn clang_for_aarch64() {
    agree(&Compiler {
        name: "clang, AArch64",
        command: &["clang", "--target=aarch64-linux-gnu"],
        runner: &["qemu-aarch64-static"],
        abi: Abi::Aapcs64,
        dialect: Dialect {
            x86: false,
            clang: true,
            vector: 16,
        },
    });
}
