//! Installs the C libraries as systems have them: headers, pkg-config and CMake files, manual
//! pages, the static libraries, and the shared ones with versioned symbols.
//!
//! A shared library is linked here, from the static one: rustc gives the linker an anonymous
//! version script of its own, and linkers reject or ignore a second one that names versions.

mod man;

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use backtrail_testkit::place;

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

/// Libraries for `LD_PRELOAD`, and their packages.
const PRELOADED: [(&str, &str); 2] = [
    ("backtrail-preload", "libbacktrail_preload.so"),
    ("backtrail-unwind-capi", "libbacktrail_unwind.so"),
];

/// Installs all below a prefix.
pub(crate) fn install(prefix: &Path) -> Result<(), String> {
    LIBRARIES.iter().try_for_each(|library| library.install(prefix))?;
    PRELOADED.iter().try_for_each(|(package, file)| {
        let to = prefix.join("lib").join(file);
        let built = place::release(package, file)?;
        fs::copy(built, &to).map(drop).map_err(|error| named(&to, error))
    })
}

impl Library {
    fn install(&self, prefix: &Path) -> Result<(), String> {
        let (name, package) = (self.name, self.package);
        let archive = place::release(&format!("backtrail-{}", self.folder), &format!("lib{name}.a"))?;
        let (include, lib) = (prefix.join("include"), prefix.join("lib"));
        let config = lib.join("pkgconfig");
        for folder in [&include, &config, &lib.join("cmake").join(package)] {
            fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
        }
        let prefix = fs::canonicalize(prefix).map_err(|error| named(prefix, error))?;
        let own = place::workspace().join("crates").join(self.folder);
        let copy = |from: &Path, to: &Path| fs::copy(from, to).map(drop).map_err(|error| named(to, error));
        let header = format!("{package}.h");
        copy(&own.join("include").join(&header), &include.join(&header))?;
        copy(&archive, &lib.join(format!("lib{name}.a")))?;
        let shared = place::workspace().join("crates/capi");
        let cmake = lib.join("cmake").join(package);
        for (template, file) in [
            (
                own.join(format!("{package}.pc.in")),
                config.join(format!("{package}.pc")),
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
                .replace("@prefix@", &prefix.display().to_string())
                .replace("@version@", env!("CARGO_PKG_VERSION"))
                .replace("@package@", package)
                .replace("@name@", name);
            fs::write(&file, text).map_err(|error| named(&file, error))?;
        }
        let manual = prefix.join("share/man/man3");
        fs::create_dir_all(&manual).map_err(|error| named(&manual, error))?;
        let text = fs::read_to_string(include.join(&header)).map_err(|error| named(&include.join(&header), error))?;
        for (function, page) in man::pages(&header, &text) {
            let file = manual.join(format!("{function}.3"));
            fs::write(&file, page).map_err(|error| named(&file, error))?;
        }
        // The name by which programs linked with it find it.
        let soname = format!("lib{name}.so.0");
        link(
            &archive,
            &own.join(format!("{package}.map")),
            &lib.join(&soname),
            &soname,
        )?;
        let short = lib.join(format!("lib{name}.so"));
        let _ = fs::remove_file(&short);
        symlink(&soname, &short).map_err(|error| named(&short, error))
    }
}

fn named(path: &Path, error: io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Links the shared library with the versions of a script.
fn link(archive: &Path, versions: &Path, output: &Path, soname: &str) -> Result<(), String> {
    let script = fs::read_to_string(versions).map_err(|error| format!("{}: {error}", versions.display()))?;
    let names = script.split(';').filter_map(|part| part.split_whitespace().last());
    let mut cc = Command::new("cc");
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
    match cc.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{cc:?}: {status}")),
        Err(error) => Err(format!("cc can't be started: {error}")),
    }
}
