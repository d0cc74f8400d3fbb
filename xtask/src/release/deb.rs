//! Packages for Debian, made with dpkg's own tools from the templates in `debian/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::place;

use super::machine::Machine;
use super::stage::{self, Part};
use super::{Release, VERSION};
use crate::cargo::{output, run};
use crate::files::{below, copy, create_folder_of, named, write};
use crate::library::Layout;

const CONTROL: &str = include_str!("debian/control");
const COPYRIGHT: &str = include_str!("debian/copyright");

/// What lintian reports and is meant.
const OVERRIDES: &str = include_str!("debian/libbacktrail0.lintian-overrides");

/// The parts of control archives besides `control`: the package, the file, its content.
const CONTROL_FILES: [(&str, &str, &str); 4] = [
    ("backtrail", "postinst", include_str!("debian/backtrail.postinst")),
    ("backtrail", "prerm", include_str!("debian/backtrail.prerm")),
    ("backtrail", "postrm", include_str!("debian/backtrail.postrm")),
    (
        "libbacktrail0",
        "triggers",
        include_str!("debian/libbacktrail0.triggers"),
    ),
];

/// The names of packages, and of what each contains.
pub(super) const PACKAGES: [(&str, Part); 4] = [
    ("backtrail", Part::Command),
    ("libbacktrail0", Part::Library),
    ("libbacktrail-dev", Part::Development),
    ("backtrail-doc", Part::Documentation),
];

/// Makes all packages.
pub(super) fn make(release: &Release, built: &Path, licences: &str) -> Result<(), String> {
    if super::is_missing("dpkg-gencontrol", "dpkg-dev") {
        return Ok(());
    }
    let debian = Debian {
        release,
        folder: release.work.join("deb"),
        version: format!("{VERSION}-1"),
    };
    let usr = debian.folder.join("all/usr");
    let lib = format!("lib/{}", release.machine.multiarch);
    let layout = Layout {
        prefix: "/usr".to_owned(),
        preloaded: format!("{lib}/backtrail"),
        lib,
        root: usr.clone(),
    };
    stage::stage(release, built, &layout)?;
    stage::put_documents(&usr)?;
    // Debian's zsh looks there.
    let zsh = usr.join("share/zsh");
    fs::rename(zsh.join("site-functions"), zsh.join("vendor-completions")).map_err(|error| named(&zsh, error))?;
    write(&debian.folder.join("debian/control"), CONTROL)?;
    write(&debian.folder.join("debian/changelog"), debian.changelog()?)?;
    for (package, part) in PACKAGES {
        debian.fill(package, part, &usr, licences)?;
        debian.pack(package, part)?;
    }
    Ok(())
}

/// The name of a package's file.
pub(super) fn file_name(package: &str, machine: &Machine) -> String {
    let is_any = CONTROL.split("\n\n").any(|paragraph| {
        paragraph.starts_with(&format!("Package: {package}\n")) && paragraph.contains("\nArchitecture: any")
    });
    let machine = if is_any { machine.debian } else { "all" };
    format!("{package}_{VERSION}-1_{machine}.deb")
}

struct Debian<'r> {
    release: &'r Release,
    folder: PathBuf,
    version: String,
}

impl Debian<'_> {
    fn changelog(&self) -> Result<String, String> {
        let date = output(
            Command::new("date")
                .args(["-u", "-R", "-d"])
                .arg(format!("@{}", self.release.time)),
        )?;
        let maintainer = CONTROL.lines().find_map(|line| line.strip_prefix("Maintainer: "));
        Ok(format!(
            "backtrail ({}) unstable; urgency=medium\n\n  * Release {VERSION}.\n\n -- {}  {date}",
            self.version,
            maintainer.unwrap_or_default()
        ))
    }

    /// A tool of dpkg, in the folder that has `debian`.
    fn tool(&self, name: &str) -> Command {
        let mut tool = Command::new(name);
        tool.current_dir(&self.folder)
            .env("DEB_HOST_ARCH", self.release.machine.debian)
            .env("SOURCE_DATE_EPOCH", &self.release.time);
        tool
    }

    /// Moves the files of a package into its folder, and adds those that every package has.
    fn fill(&self, package: &str, part: Part, usr: &Path, licences: &str) -> Result<(), String> {
        let root = self.folder.join(package);
        let files = below(usr)?.into_iter();
        for file in files.filter(|file| Part::of(file) == part) {
            let to = root.join("usr").join(&file);
            create_folder_of(&to)?;
            fs::rename(usr.join(&file), &to).map_err(|error| named(&to, error))?;
        }
        let documents = root.join("usr/share/doc").join(package);
        let mit = fs::read_to_string(place::workspace().join("LICENSE-MIT")).map_err(|error| error.to_string())?;
        // In this format, lines begin with a space, and empty ones have a dot.
        let mit: Vec<String> = mit
            .trim()
            .lines()
            .map(|line| format!(" {}", if line.is_empty() { "." } else { line }))
            .collect();
        write(
            &documents.join("copyright"),
            COPYRIGHT.replace("@mit@", &mit.join("\n")),
        )?;
        write(&documents.join("changelog.Debian"), self.changelog()?)?;
        copy(&place::workspace().join("CHANGELOG.md"), &documents.join("changelog"))?;
        if part != Part::Documentation {
            write(&documents.join("LICENSES-OF-CRATES"), licences)?;
        }
        if part == Part::Library {
            write(&root.join("usr/share/lintian/overrides").join(package), OVERRIDES)?;
        }
        stage::compress(&root)?;
        stage::finish(&root)
    }

    /// Writes the control files, and packs.
    fn pack(&self, package: &str, part: Part) -> Result<(), String> {
        let root = self.folder.join(package);
        let control = root.join("DEBIAN");
        let mut files = below(&root)?;
        files.retain(|file| !root.join(file).is_symlink());
        let sums = output(Command::new("md5sum").current_dir(&root).args(&files))?;
        write(&control.join("md5sums"), sums)?;
        for (_, name, content) in CONTROL_FILES.iter().filter(|(owner, _, _)| *owner == package) {
            write(&control.join(name), content)?;
        }
        files.retain(|file| file.starts_with("usr/bin") || file.to_string_lossy().contains(".so"));
        let variables = self.folder.join(format!("{package}.substvars"));
        write(&variables, "")?;
        if !files.is_empty() {
            self.find_dependencies(files.iter().map(|file| root.join(file)), &variables)?;
        }
        if part == Part::Library {
            self.write_symbols(&root)?;
        }
        run(self
            .tool("dpkg-gencontrol")
            .args([format!("-p{package}"), format!("-P{package}")])
            .arg(format!("-T{}", variables.display())))?;
        for file in below(&control)? {
            // postinst, prerm, postrm
            let is_script = file.to_string_lossy().starts_with("p");
            stage::set_mode(&control.join(&file), if is_script { 0o755 } else { 0o644 })?;
        }
        let mut deb = self.tool("dpkg-deb");
        // One thread: the number of threads changes the output.
        deb.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build", package]);
        run(deb.arg(&self.release.folder))
    }

    /// Finds the packages whose libraries these files need.
    fn find_dependencies(&self, files: impl Iterator<Item = PathBuf>, variables: &Path) -> Result<(), String> {
        let machine = self.release.machine;
        let mut tool = self.tool("dpkg-shlibdeps");
        tool.arg("-O").args(files);
        if !machine.is_here() {
            tool.arg(format!("-l/usr/{}/lib", machine.multiarch));
        }
        let found = output(&mut tool)?;
        // The libraries of Debian's cross compilers have names of their own.
        let found = found.replace(&format!(":{}", machine.debian), "");
        write(variables, found.replace(&format!("-{}-cross", machine.debian), ""))
    }

    /// The symbols that programs may need, with the version that has them first.
    fn write_symbols(&self, root: &Path) -> Result<(), String> {
        let mut tool = self.tool("dpkg-gensymbols");
        tool.args(["-plibbacktrail0", "-Plibbacktrail0", "-O", "-q"])
            .arg(format!("-v{VERSION}"));
        let symbols = output(&mut tool)?;
        let with_source = symbols.lines().map(|line| match line.starts_with("lib") {
            true => format!("{line}\n* Build-Depends-Package: libbacktrail-dev\n"),
            false => format!("{line}\n"),
        });
        write(&root.join("DEBIAN/symbols"), with_source.collect::<String>())?;
        // For tools that do not read symbols.
        let libraries = symbols
            .lines()
            .filter_map(|line| line.strip_prefix("lib")?.split_once(".so.0 "));
        let shlibs = libraries.map(|(name, _)| format!("lib{name} 0 libbacktrail0 (>= {VERSION})\n"));
        write(&root.join("DEBIAN/shlibs"), shlibs.collect::<String>())
    }
}
