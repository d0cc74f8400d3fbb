//! Installs the C libraries as systems have them: headers, pkg-config and CMake files, manual
//! pages, the static libraries, and the shared ones with versioned symbols.
//!
//! A shared library is linked here, from the static one: rustc gives the linker an anonymous
//! version script of its own, and linkers reject or ignore a second one that names versions.

mod man;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::place;

use crate::cargo::run;
use crate::files::{copy, named, write};

/// A library of the workspace. Its folder has the header, and templates of the version script and
/// of the pkg-config file.
struct Library {
    /// The folder of its crate.
    folder: &'static str,
    /// Its name for the linker.
    name: &'static str,
    /// The name of its header and its pkg-config file.
    package: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library {
        folder: "capi",
        name: "backtrail",
        package: "backtrail",
    },
    Library {
        folder: "tracer-capi",
        name: "backtrail_tracer",
        package: "backtrail-tracer",
    },
];

/// Libraries for `LD_PRELOAD`.
const PRELOADED: [&str; 2] = ["libbacktrail_preload.so", "libbacktrail_unwind.so"];

/// The packages that all these libraries are built from.
pub(crate) const PACKAGES: [&str; 4] = [
    "backtrail-capi",
    "backtrail-tracer-capi",
    "backtrail-preload",
    "backtrail-unwind-capi",
];

/// Where libraries and their files go.
pub(crate) struct Layout {
    /// The folder that is or becomes the prefix.
    pub(crate) root: PathBuf,
    /// The prefix that pkg-config's files name.
    pub(crate) prefix: String,
    /// The folder of libraries, below the prefix.
    pub(crate) lib: String,
    /// The folder of libraries for `LD_PRELOAD`, below the prefix.
    pub(crate) preloaded: String,
}

/// Builds everything, and installs it below a prefix.
pub(crate) fn install(prefix: &Path) -> Result<(), String> {
    for package in PACKAGES {
        place::release(package, "")?;
    }
    fs::create_dir_all(prefix).map_err(|error| named(prefix, error))?;
    let root = fs::canonicalize(prefix).map_err(|error| named(prefix, error))?;
    let layout = Layout {
        prefix: root.display().to_string(),
        root,
        lib: "lib".to_owned(),
        preloaded: "lib".to_owned(),
    };
    put(&layout, &place::target().join("release"), "cc")
}

/// Installs what cargo has built in a folder; `cc` links the shared libraries.
pub(crate) fn put(layout: &Layout, built: &Path, cc: &str) -> Result<(), String> {
    for library in &LIBRARIES {
        library.put(layout, built, cc)?;
    }
    for file in PRELOADED {
        copy(&built.join(file), &layout.root.join(&layout.preloaded).join(file))?;
    }
    Ok(())
}

impl Library {
    fn put(&self, layout: &Layout, built: &Path, cc: &str) -> Result<(), String> {
        let (name, package) = (self.name, self.package);
        let lib = layout.root.join(&layout.lib);
        let own = place::workspace().join("crates").join(self.folder);
        let header = own.join("include").join(format!("{package}.h"));
        copy(&header, &layout.root.join("include").join(format!("{package}.h")))?;
        let archive = built.join(format!("lib{name}.a"));
        copy(&archive, &lib.join(format!("lib{name}.a")))?;
        self.put_configuration(layout, &own)?;
        let text = fs::read_to_string(&header).map_err(|error| named(&header, error))?;
        for (function, page) in man::pages(&format!("{package}.h"), &text) {
            write(&layout.root.join(format!("share/man/man3/{function}.3")), &page)?;
        }
        // The name by which programs linked with it find it.
        let soname = format!("lib{name}.so.0");
        let versions = own.join(format!("{package}.map"));
        link(cc, &archive, &versions, &lib.join(&soname), &soname)?;
        let short = lib.join(format!("lib{name}.so"));
        let _ = fs::remove_file(&short);
        symlink(&soname, &short).map_err(|error| named(&short, error))
    }

    /// The files of pkg-config and CMake.
    fn put_configuration(&self, layout: &Layout, own: &Path) -> Result<(), String> {
        let (lib, package) = (layout.root.join(&layout.lib), self.package);
        let cmake = lib.join("cmake").join(package);
        let shared = place::workspace().join("crates/capi");
        for (template, file) in [
            (
                own.join(format!("{package}.pc.in")),
                lib.join(format!("pkgconfig/{package}.pc")),
            ),
            (
                shared.join("config.cmake.in"),
                cmake.join(format!("{package}-config.cmake")),
            ),
            (
                shared.join("config-version.cmake.in"),
                cmake.join(format!("{package}-config-version.cmake")),
            ),
        ] {
            let text = fs::read_to_string(&template).map_err(|error| named(&template, error))?;
            let text = text
                .replace("@prefix@", &layout.prefix)
                .replace("@lib@", &layout.lib)
                .replace(
                    "@up@",
                    &layout.lib.split('/').map(|_| "..").collect::<Vec<_>>().join("/"),
                )
                .replace("@version@", env!("CARGO_PKG_VERSION"))
                .replace("@package@", package)
                .replace("@name@", self.name);
            write(&file, &text)?;
        }
        Ok(())
    }
}

/// Links the shared library with the versions of a script.
fn link(cc: &str, archive: &Path, versions: &Path, output: &Path, soname: &str) -> Result<(), String> {
    let script = fs::read_to_string(versions).map_err(|error| named(versions, error))?;
    let names = script.split(';').filter_map(|part| part.split_whitespace().last());
    let mut cc = Command::new(cc);
    cc.args([
        "-shared",
        "-Wl,--gc-sections",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,--strip-debug",
    ]);
    cc.arg(format!("-Wl,-soname,{soname}"));
    cc.arg(format!("-Wl,--version-script={}", versions.display()));
    // Nothing else asks for what is in the archive.
    cc.args(
        names
            .filter(|name| name.starts_with("backtrail_"))
            .map(|name| format!("-Wl,-u,{name}")),
    );
    cc.arg("-o").arg(output).arg(archive).args(["-lgcc_s", "-lc", "-lm"]);
    run(&mut cc)
}
