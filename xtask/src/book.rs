//! `cargo xtask book`: the pages of `docs/` as one book.

use std::io::ErrorKind;
use std::process::Command;

use backtrail_testkit::place;

/// Runs mdBook, if it is installed.
pub(crate) fn build() -> Result<(), String> {
    let root = place::workspace();
    match Command::new("mdbook").arg("build").arg(&root).status() {
        Ok(status) if status.success() => {
            println!("{}", root.join("target/book/index.html").display());
            Ok(())
        }
        Ok(status) => Err(format!("mdbook: {status}")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err("mdBook is not installed\nhelp: cargo install mdbook".to_owned())
        }
        Err(error) => Err(format!("mdbook: {error}")),
    }
}
