//! Installs the C library as systems have it: headers, pkg-config file, the static library, and the
//! shared one with versioned symbols.
//!
//! The shared library is linked here, from the static one: rustc gives the linker an anonymous
//! version script of its own, and linkers reject or ignore a second one that names versions.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use backtrail_testkit::place;

/// The name by which programs linked with it find it.
const SONAME: &str = "libbacktrail.so.0";

/// Installs below a prefix.
pub(crate) fn install(prefix: &Path) -> Result<(), String> {
    let archive = place::release("backtrail-capi", "libbacktrail.a")?;
    let named = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    let config = lib.join("pkgconfig");
    for folder in [&include, &config] {
        fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
    }
    let prefix = fs::canonicalize(prefix).map_err(|error| named(prefix, error))?;
    let capi = place::workspace().join("crates/capi");
    let copy = |from: &Path, to: &Path| fs::copy(from, to).map(drop).map_err(|error| named(to, error));
    copy(&capi.join("include/backtrail.h"), &include.join("backtrail.h"))?;
    copy(&archive, &lib.join("libbacktrail.a"))?;
    let template = capi.join("backtrail.pc.in");
    let text = fs::read_to_string(&template).map_err(|error| named(&template, error))?;
    let text = text
        .replace("@prefix@", &prefix.display().to_string())
        .replace("@version@", env!("CARGO_PKG_VERSION"));
    let file = config.join("backtrail.pc");
    fs::write(&file, text).map_err(|error| named(&file, error))?;
    link(&archive, &capi.join("backtrail.map"), &lib.join(SONAME))?;
    let short = lib.join("libbacktrail.so");
    let _ = fs::remove_file(&short);
    symlink(SONAME, &short).map_err(|error| named(&short, error))
}

/// Links the shared library with the versions of a script.
fn link(archive: &Path, versions: &Path, output: &Path) -> Result<(), String> {
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
    cc.arg(format!("-Wl,-soname,{SONAME}"));
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
