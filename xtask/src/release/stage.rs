//! Lays files out as they are installed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use backtrail_testkit::place;

use super::{Release, build};
use crate::cargo::{output, run};
use crate::files::{below, copy, named, write};
use crate::library::{self, Layout};

/// Files for shells: the shell's name for `backtrail completions`, and the file.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/backtrail"),
    ("zsh", "share/zsh/site-functions/_backtrail"),
    ("fish", "share/fish/vendor_completions.d/backtrail.fish"),
];

/// Lets the command write its manual pages and completions.
pub(super) fn generate(release: &Release, built: &Path) -> Result<(), String> {
    let root = release.work.join("generated");
    let command = || release.machine.command(&built.join("backtrail"));
    run(command().args(["man", "--directory"]).arg(root.join("share/man/man1")))?;
    for (shell, file) in COMPLETIONS {
        write(&root.join(file), output(command().args(["completions", shell]))?)?;
    }
    let own = place::workspace().join("crates/cli/dist");
    for (file, folder) in [
        ("backtrail-crash-names.1", "share/man/man1"),
        ("backtrail-recorder.8", "share/man/man8"),
        ("backtrail-recorder.service", "lib/systemd/system"),
    ] {
        copy(&own.join(file), &root.join(folder).join(file))?;
    }
    Ok(())
}

/// Copies the pages, completions and the service below a prefix.
pub(super) fn put_generated(release: &Release, root: &Path) -> Result<(), String> {
    let generated = release.work.join("generated");
    for file in below(&generated)? {
        copy(&generated.join(&file), &root.join(&file))?;
    }
    Ok(())
}

/// Lays out the programs, the libraries and what belongs to them.
pub(super) fn stage(release: &Release, built: &Path, layout: &Layout) -> Result<(), String> {
    for program in ["backtrail", "backtrail-crash-names"] {
        copy(&built.join(program), &layout.root.join("bin").join(program))?;
    }
    put_generated(release, &layout.root)?;
    library::put(layout, built, &release.machine.tool("cc"))?;
    let lib = layout.root.join(&layout.lib);
    for (ending, symbols) in [(".a", "--strip-debug"), (".so.0", "--strip-unneeded")] {
        let mut files = below(&lib)?;
        files.retain(|file| file.to_string_lossy().ends_with(ending));
        let mut strip = Command::new(release.machine.tool("strip"));
        strip.args([symbols, "--enable-deterministic-archives"]);
        run(strip.current_dir(&lib).args(files))?;
    }
    Ok(())
}

/// Gives files the modes that they are installed with, and fails if one names a folder of this
/// machine.
pub(super) fn finish(root: &Path) -> Result<(), String> {
    build::names_no_folders(root)?;
    for file in below(root)? {
        let path = root.join(&file);
        if !path.is_symlink() {
            set_mode(
                &path,
                if file.parent().is_some_and(|folder| folder.ends_with("bin")) {
                    0o755
                } else {
                    0o644
                },
            )?;
        }
        for folder in file.ancestors().skip(1) {
            set_mode(&root.join(folder), 0o755)?;
        }
    }
    Ok(())
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|error| named(path, error))
}

/// What a package is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Command,
    Library,
    Development,
    Documentation,
}

impl Part {
    /// The part that a file below a prefix belongs to.
    pub(super) fn of(file: &Path) -> Self {
        let name = file.to_string_lossy();
        let is_below = |folders: &[&str]| folders.iter().any(|folder| name.contains(folder));
        if name.ends_with(".so.0") {
            Self::Library
        } else if is_below(&["share/doc/backtrail/docs/", "share/doc/backtrail/examples/"]) {
            Self::Documentation
        } else if is_below(&["include/", "share/man/man3/", "/pkgconfig/", "/cmake/"])
            || name.ends_with(".a")
            // Those for `LD_PRELOAD` are in a folder of their own.
            || name.ends_with(".so") && !name.contains("/backtrail/")
        {
            Self::Development
        } else {
            Self::Command
        }
    }
}

/// Lays out the documents of packages.
pub(super) fn put_documents(usr: &Path) -> Result<(), String> {
    let documents = usr.join("share/doc/backtrail");
    for file in ["README.md", "NOTICE"] {
        copy(&place::workspace().join(file), &documents.join(file))?;
    }
    for (from, to) in [("docs", "docs"), ("crates/tracer-capi/examples-c", "examples")] {
        let from = place::workspace().join(from);
        for file in below(&from)? {
            copy(&from.join(&file), &documents.join(to).join(&file))?;
        }
    }
    Ok(())
}

/// Compresses manual pages and changelogs as packages have them.
pub(super) fn compress(root: &Path) -> Result<(), String> {
    let mut files = below(root)?;
    files.retain(|file| {
        let name = file.to_string_lossy();
        name.contains("share/man/") || name.contains("/changelog") || name.ends_with("/LICENSES-OF-CRATES")
    });
    let mut gzip = Command::new("gzip");
    run(gzip.current_dir(root).args(["-9", "--no-name"]).args(files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_belongs_to_one_package() {
        for (file, part) in [
            ("bin/backtrail", Part::Command),
            ("lib/x86_64-linux-gnu/backtrail/libbacktrail_preload.so", Part::Command),
            ("share/doc/backtrail/README.md", Part::Command),
            ("share/man/man1/backtrail.1", Part::Command),
            ("lib64/libbacktrail.so.0", Part::Library),
            ("lib64/libbacktrail.so", Part::Development),
            ("lib/x86_64-linux-gnu/libbacktrail.a", Part::Development),
            (
                "lib/x86_64-linux-gnu/cmake/backtrail/backtrail-config.cmake",
                Part::Development,
            ),
            ("include/backtrail.h", Part::Development),
            ("share/man/man3/backtrail_init.3", Part::Development),
            ("share/doc/backtrail/docs/start/install.md", Part::Documentation),
        ] {
            assert!(Part::of(Path::new(file)) == part, "{file}");
        }
    }
}
