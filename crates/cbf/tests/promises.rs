//! Encoder and decoder never allocate or panic: checked in the object code of a release build.

use std::path::Path;
use std::process::Command;

/// Symbol names that code refers to if it may panic or allocate.
const FORBIDDEN: [&str; 3] = ["panicking", "__rust_alloc", "5alloc"];

/// The object code of a `no_std` crate, compiled like a release build.
fn object(name: &str, source: &Path, directory: &Path, more: &[&str]) -> Vec<u8> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let object = directory.join(format!("{name}.o"));
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=rlib", "--crate-name", name])
        .args([
            "-Copt-level=3",
            "-Ccodegen-units=1",
            "-Coverflow-checks=off",
            "-Cembed-bitcode=no",
        ])
        .arg(format!("--emit=obj={},link", object.display()))
        .arg("--out-dir")
        .arg(directory)
        .args(more)
        .arg(source)
        .output()
        .expect("rustc runs, as it just did");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(object).unwrap()
}

fn mentions(object: &[u8], name: &str) -> bool {
    object.windows(name.len()).any(|window| window == name.as_bytes())
}

#[test]
fn object_code_has_no_way_to_panic_or_to_allocate() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    object("backtrail_wire", &crates.join("wire/src/lib.rs"), directory, &[]);
    let wire = format!("backtrail_wire={}", directory.join("libbacktrail_wire.rlib").display());
    let cbf = object(
        "backtrail_cbf",
        &crates.join("cbf/src/lib.rs"),
        directory,
        &["--extern", &wire],
    );
    for function in ["push_repeated", "EndsEncoder", "Decoder"] {
        assert!(mentions(&cbf, function), "{function} was compiled");
    }
    for name in FORBIDDEN {
        assert!(!mentions(&cbf, name), "the object code mentions {name}");
    }
}

#[test]
fn object_code_that_panics_or_allocates_is_found() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join("control.rs");
    std::fs::write(
        &source,
        "#![no_std]\nextern crate alloc;\n\
         pub fn index(data: &[u8], at: usize) -> u8 { data[at] }\n\
         pub fn boxed(value: u64) -> alloc::boxed::Box<u64> { alloc::boxed::Box::new(value) }\n",
    )
    .unwrap();
    // Functions that are inlined into other crates would leave no object code.
    let control = object("control", &source, directory, &["-Clink-dead-code"]);
    for name in FORBIDDEN {
        assert!(mentions(&control, name), "{name}");
    }
}
