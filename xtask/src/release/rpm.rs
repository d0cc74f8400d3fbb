//! Packages for systems that use RPM, with rpmbuild.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use backtrail_testkit::place;

use super::stage::{self, Part};
use super::{Release, VERSION};
use crate::cargo::run;
use crate::files::{below, copy, write};
use crate::library::Layout;

const SPEC: &str = include_str!("backtrail.spec");

/// The names of packages, and of what each contains.
const PACKAGES: [(&str, Part); 4] = [
    ("backtrail", Part::Command),
    ("libbacktrail0", Part::Library),
    ("libbacktrail-devel", Part::Development),
    ("backtrail-doc", Part::Documentation),
];

/// How rpmbuild works. Files are stripped and compressed already.
const MACROS: [&str; 9] = [
    "_buildhost localhost",
    "use_source_date_epoch_as_buildtime 1",
    "clamp_mtime_to_source_date_epoch 1",
    "_build_id_links none",
    "__os_install_post %{nil}",
    "debug_package %{nil}",
    // One thread: the number of threads changes the output.
    "_binary_payload w9.xzdio",
    "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
    "_unpackaged_files_terminate_build 1",
];

/// Makes all packages, if rpmbuild is there.
pub(super) fn make(release: &Release, built: &Path, licences: &str) -> Result<(), String> {
    if super::is_missing("rpmbuild", "rpm") {
        return Ok(());
    }
    let folder = release.work.join("rpm");
    let staged = folder.join("staged");
    let usr = staged.join("usr");
    let layout = Layout {
        prefix: "/usr".to_owned(),
        lib: "lib64".to_owned(),
        preloaded: "lib64/backtrail".to_owned(),
        root: usr.clone(),
    };
    stage::stage(release, built, &layout)?;
    stage::put_documents(&usr)?;
    for (package, part) in PACKAGES {
        if part != Part::Documentation {
            write(
                &usr.join("share/licenses").join(package).join("LICENSES-OF-CRATES"),
                licences,
            )?;
        }
        for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
            copy(
                &place::workspace().join(file),
                &usr.join("share/licenses").join(package).join(file),
            )?;
        }
    }
    stage::compress(&staged)?;
    stage::finish(&staged)?;
    let mut spec = SPEC
        .replace("@version@", VERSION)
        .replace("@staged@", &staged.display().to_string());
    for (package, part) in PACKAGES {
        let mut lines = BTreeSet::new();
        for file in below(&usr)? {
            let owner = file.strip_prefix("share/licenses").ok();
            let owner = owner.map(|rest| rest.starts_with(package));
            if owner.unwrap_or(Part::of(&file) == part) {
                lines.insert(format!("/usr/{}", file.display()));
                // Folders of other packages are theirs.
                let folders = file.ancestors().skip(1).map(|folder| folder.display().to_string());
                let own = folders.filter(|folder| folder.contains("backtrail"));
                lines.extend(own.map(|folder| format!("%dir /usr/{folder}")));
            }
        }
        let lines: Vec<String> = lines.into_iter().collect();
        spec.push_str(&format!(
            "%files -n {package}\n%defattr(-,root,root,-)\n{}\n\n",
            lines.join("\n")
        ));
    }
    write(&folder.join("backtrail.spec"), spec)?;
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.env("SOURCE_DATE_EPOCH", &release.time);
    rpmbuild.args(["-bb", "--quiet", "--target", release.machine.cpu]);
    for (name, folder) in [("_topdir", &folder), ("_rpmdir", &release.folder)] {
        rpmbuild.arg("--define").arg(format!("{name} {}", folder.display()));
    }
    for value in MACROS {
        rpmbuild.args(["--define", value]);
    }
    run(rpmbuild.arg(folder.join("backtrail.spec")))
}
