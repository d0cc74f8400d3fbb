//! The object code that some functions reach, and nothing else: they cannot call what it does not
//! mention.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place;

/// Around audited functions that need no allocator.
pub const FRAME: &str = r#"#![no_std]
#[panic_handler]
fn halt(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
"#;

const WORKSPACE_EDITION: &str = "--edition=2024";

/// Compiles crates of the workspace alone, as a release build does, into a directory.
#[derive(Debug)]
pub struct Compiler {
    directory: PathBuf,
    crates: Vec<String>,
    /// The edition of the audited code; a dependency has its own.
    edition: &'static str,
}

impl Compiler {
    /// A compiler that keeps its output in `directory`.
    pub fn new(directory: &Path) -> Compiler {
        std::fs::create_dir_all(directory).expect("the target directory can be written");
        Compiler {
            directory: directory.to_owned(),
            crates: Vec::new(),
            edition: "--edition=2021",
        }
    }

    /// For audited functions that are part of the workspace's own code.
    pub fn as_the_workspace(mut self) -> Compiler {
        self.edition = WORKSPACE_EDITION;
        self
    }

    fn rustc(&self, name: &str, source: &Path, more: &[&str]) {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        command.args([
            "--crate-name",
            name,
            "-Copt-level=3",
            "-Coverflow-checks=off",
            "-Cpanic=abort",
        ]);
        command.arg("-Ccodegen-units=1").arg("--out-dir").arg(&self.directory);
        command.arg("-L").arg(&self.directory).args(more).arg(source);
        for dependency in &self.crates {
            let rlib = self.directory.join(format!("lib{dependency}.rlib"));
            command.arg("--extern").arg(format!("{dependency}={}", rlib.display()));
        }
        let output = command.output().expect("rustc runs, as it just did");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Adds a crate of the workspace, with the features in `flags`.
    pub fn dependency(&mut self, folder: &str, flags: &[&str]) {
        let name = format!("backtrail_{folder}");
        let source = place::workspace().join("crates").join(folder).join("src/lib.rs");
        let as_library = [WORKSPACE_EDITION, "--crate-type=rlib"];
        self.rustc(&name, &source, &[&as_library, flags].concat());
        self.crates.push(name);
    }

    /// A crate of the workspace's dependencies that needs nothing but `core`, without features, as
    /// cargo has it.
    pub fn library(&mut self, name: &str) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut ask = Command::new(cargo);
        // Dependencies of other systems may never have been fetched.
        let platform = format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH);
        ask.args(["metadata", "--format-version=1", "--offline", &platform])
            .current_dir(place::workspace());
        let told = ask.output().expect("cargo runs, as it just did");
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("cargo tells of the workspace");
        let mut packages = told["packages"].as_array().into_iter().flatten();
        let package = packages.find(|package| package["name"] == name).expect("a dependency");
        let targets = package["targets"].as_array().into_iter().flatten();
        let is_library = |target: &&serde_json::Value| target["kind"][0] == "lib";
        let library = targets.into_iter().find(is_library).expect("a library");
        let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
        let edition = format!("--edition={}", text(&library["edition"]));
        let flags = [&edition, "--crate-type=rlib", "--cap-lints=allow"];
        self.rustc(name, Path::new(&text(&library["src_path"])), &flags);
        self.crates.push(name.to_owned());
    }

    /// The object code of everything that the source's functions reach, and of nothing else: a
    /// shared library from which the compiler and the linker have removed the rest.
    pub fn reached(&self, name: &str, text: &str) -> Vec<u8> {
        std::fs::read(self.shared_library(name, text)).expect("it was just made")
    }

    /// The path of that library.
    pub fn shared_library(&self, name: &str, text: &str) -> PathBuf {
        let source = self.directory.join(format!("{name}.rs"));
        std::fs::write(&source, text).expect("the target directory can be written");
        let library = [self.edition, "--crate-type=cdylib", "-Clto=fat", "-Cstrip=none"];
        let alone = ["-Clink-arg=-nostdlib", "-Clink-arg=-Wl,--gc-sections"];
        self.rustc(name, &source, &[&library[..], &alone].concat());
        self.directory.join(format!("lib{name}.so"))
    }
}

/// Whether object code mentions a name.
pub fn mentions(object: &[u8], name: &str) -> bool {
    object.windows(name.len()).any(|window| window == name.as_bytes())
}
