//! Makes the text of `backtrail --version`: the version, the commit if known, and the features.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let commit = of_package(Path::new(&folder)).or_else(|| of_checkout(Path::new(&folder)));
    let commit = commit.map(|commit| format!("{commit}, ")).unwrap_or_default();
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let store = match env::var_os("CARGO_FEATURE_STORE") {
        Some(_) => "with store",
        None => "without store",
    };
    println!("cargo::rustc-env=BACKTRAIL_VERSION={version} ({commit}{store})");
}

/// The commit that a published package was made from: cargo writes it into the package.
fn of_package(folder: &Path) -> Option<String> {
    const KEY: &str = "\"sha1\": \"";
    let text = fs::read_to_string(folder.join(".cargo_vcs_info.json")).ok()?;
    let from = text.find(KEY)? + KEY.len();
    let commit: String = text[from..].chars().take_while(char::is_ascii_hexdigit).collect();
    short(&commit)
}

/// The commit of the checkout around the folder.
fn of_checkout(folder: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(folder).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // A package that is unpacked in another project's checkout is not of its commit.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]).map(|path| folder.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    short(&git(&["rev-parse", "HEAD"])?)
}

fn short(commit: &str) -> Option<String> {
    commit.get(..12).map(str::to_owned)
}
