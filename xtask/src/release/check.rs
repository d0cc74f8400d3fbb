//! Proves that what was made works: a second build elsewhere is equal, packages install, work and
//! leave nothing in a new Debian, and the static command runs where there is nothing else.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use backtrail_testkit::{packages, place, scratch};

use super::{Release, VERSION, deb};
use crate::cargo::{output, run};
use crate::files::{below, copy, named, write};

const TOOLS: [(&str, &str); 3] = [
    ("lintian", "lintian"),
    ("mmdebstrap", "mmdebstrap"),
    ("unshare", "util-linux"),
];

/// Checks all files; needs root and, for Debian's packages, a network.
pub(super) fn check(release: &Release) -> Result<(), String> {
    let missing = packages::install(&TOOLS);
    if !missing.is_empty() {
        return Err(format!("missing packages: {}", missing.join(" ")));
    }
    lintian(release)?;
    use_archive(release)?;
    if release.machine.is_here() {
        use_packages(release)?;
        use_static(release)?;
    }
    build_again(release)
}

fn lintian(release: &Release) -> Result<(), String> {
    let mut lintian = Command::new("lintian");
    // Debian's bug numbers are for packages of its archive.
    lintian.args(["--suppress-tags", "initial-upload-closes-no-bugs"]);
    lintian.args(["--fail-on", "error,warning", "--allow-root", "--tag-display-limit", "0"]);
    for (package, _) in deb::PACKAGES {
        lintian.arg(release.folder.join(deb::file_name(package, release.machine)));
    }
    run(&mut lintian)?;
    println!("lintian: neither errors nor warnings");
    Ok(())
}

/// Installs, uses and purges the packages in a new Debian, from where this machine has its own.
fn use_packages(release: &Release) -> Result<(), String> {
    let sources = ["indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"];
    let sources = output(Command::new("apt-get").args(sources))?;
    let (mirror, suite) = sources
        .lines()
        .find_map(|line| line.split_once(' '))
        .ok_or("apt has no sources")?;
    let folder = scratch();
    let root = folder.path().join("debian");
    let mut debootstrap = Command::new("mmdebstrap");
    debootstrap
        .args([
            "--quiet",
            "--variant=apt",
            "--include=gcc,libc6-dev,pkg-config,cmake,make",
        ])
        .arg(suite)
        .arg(&root)
        .arg(mirror);
    run(&mut debootstrap)?;
    for (package, _) in deb::PACKAGES {
        let file = deb::file_name(package, release.machine);
        copy(&release.folder.join(&file), &root.join("packages").join(&file))?;
    }
    write(&root.join("packages/check.sh"), include_str!("check/packages.sh"))?;
    run(&mut within(&root, "exec chroot \"$0\" sh /packages/check.sh"))?;
    let mut names = below(&release.folder)?;
    names.retain(|file| file.extension().is_some_and(|ending| ending == "rpm"));
    if names.is_empty() {
        return Ok(());
    }
    for name in &names {
        copy(&release.folder.join(name), &root.join("packages").join(name))?;
    }
    run(&mut within(&root, include_str!("check/rpm.sh")))
}

/// Builds a program with the archive's library, and lets it crash: the report must be whole.
fn use_archive(release: &Release) -> Result<(), String> {
    let machine = release.machine;
    let folder = scratch();
    let root = unpack(release, machine.multiarch, folder.path())?;
    let program = folder.path().join("crash");
    let source = folder.path().join("crash.c");
    write(&source, include_str!("check/crash.c"))?;
    let mut flags = Command::new("pkg-config");
    flags.env("PKG_CONFIG_PATH", root.join("lib/pkgconfig"));
    let flags = output(flags.args(["--cflags", "--libs", "backtrail"]))?;
    let mut cc = Command::new(machine.tool("cc"));
    cc.args(["-O1", "-o"])
        .args([&program, &source])
        .args(flags.split_whitespace());
    run(cc.arg(format!("-Wl,-rpath,{}", root.join("lib").display())))?;
    let crash = machine
        .command(&program)
        .output()
        .map_err(|error| named(&program, error))?;
    let report = String::from_utf8_lossy(&crash.stderr);
    println!("{report}");
    match report.contains("crash: SIGSEGV") && report.contains("\nend: the outermost frame\n") {
        true => Ok(()),
        false => Err("the archive's library does not report a crash".to_owned()),
    }
}

/// Unpacks an archive; returns the folder that it contains.
fn unpack(release: &Release, system: &str, folder: &Path) -> Result<PathBuf, String> {
    let name = format!("backtrail-{VERSION}-{system}");
    let mut tar = Command::new("tar");
    let (_, ending) = super::compressor(&name);
    let archive = release.folder.join(format!("{name}.{ending}"));
    run(tar.arg("-xf").arg(archive).arg("-C").arg(folder))?;
    Ok(folder.join(name))
}

/// Records and looks at a program in a folder that has the static command, the program and nothing
/// else.
fn use_static(release: &Release) -> Result<(), String> {
    const SOURCE: &str = "volatile unsigned long sum;\n\
                          void spin(void) { for (unsigned long i = 0; i < 1000000000; i++) sum += i; }\n\
                          int main(void) { spin(); }\n";
    let folder = scratch();
    let root = folder.path().join("empty");
    let unpacked = unpack(release, &format!("{}-linux-musl", release.machine.cpu), folder.path())?;
    copy(&unpacked.join("bin/backtrail"), &root.join("backtrail"))?;
    let source = folder.path().join("spin.c");
    write(&source, SOURCE)?;
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-fno-inline", "-static", "-o"]);
    run(cc.arg(root.join("spin")).arg(source))?;
    for empty in ["proc", "tmp"] {
        fs::create_dir_all(root.join(empty)).map_err(|error| named(&root, error))?;
    }
    let in_root = |line: &str| output(&mut within(&root, line));
    println!("{}", in_root("exec chroot \"$0\" /backtrail --version")?);
    in_root("exec chroot \"$0\" /backtrail record -o /spin.trace -- /spin")?;
    let report = in_root("exec chroot \"$0\" /backtrail report /spin.trace")?;
    let stack = in_root("chroot \"$0\" /spin & chroot \"$0\" /backtrail stack $!; kill $!")?;
    println!("{report}\n{stack}");
    for (what, text) in [("report", report), ("stack", stack)] {
        if !["spin", "main"].iter().all(|name| text.contains(name)) {
            return Err(format!("the static command's {what} lacks functions"));
        }
    }
    Ok(())
}

/// A shell's line with mounts of its own, in which `$0` is a folder with a `proc`.
fn within(root: &Path, line: &str) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-ec"]);
    unshare.arg(format!("mount -t proc proc \"$0/proc\"\n{line}")).arg(root);
    unshare.stdin(Stdio::null());
    unshare
}

/// Makes the release once more, in a checkout elsewhere and with another name of cargo's folder.
fn build_again(release: &Release) -> Result<(), String> {
    let folder = scratch();
    let checkout = folder.path().join("checkout");
    let files = folder.path().join("files");
    let mut clone = Command::new("git");
    run(clone.args(["clone", "--quiet"]).arg(place::workspace()).arg(&checkout))?;
    let home = env::var("CARGO_HOME").or_else(|_| env::var("HOME").map(|home| format!("{home}/.cargo")));
    let cargo_home = folder.path().join("cargo");
    symlink(home.map_err(|error| format!("HOME: {error}"))?, &cargo_home).map_err(|error| named(&cargo_home, error))?;
    let mut cargo = Command::new("cargo");
    cargo
        .args(["xtask", "release", "--target", release.machine.gnu])
        .arg(&files)
        .current_dir(&checkout)
        .env("CARGO_HOME", &cargo_home)
        .env_remove("CARGO_TARGET_DIR");
    run(&mut cargo)?;
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).map_err(|error| named(folder, error));
    let (one, other) = (sums(&release.folder)?, sums(&files)?);
    if one != other {
        return Err(format!("a second build differs:\n{one}\n{other}"));
    }
    println!(
        "a second build elsewhere: {} files, equal byte for byte",
        one.lines().count()
    );
    Ok(())
}
