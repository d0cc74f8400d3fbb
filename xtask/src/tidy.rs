//! `cargo xtask tidy`: the rules of the house that no compiler knows. They also run as a test.

use std::fs;
use std::path::{Path, PathBuf};

use backtrail_testkit::place;

/// The crates by layer; a crate depends on lower layers only, and on none of its own.
const LAYERS: [&[&str]; 7] = [
    &["wire", "arch"],
    &["sframe", "cbf", "trace", "ctype", "callframe"],
    &["unwind", "elf", "recording", "args", "trace-rfc"],
    &["dwarf", "target"],
    &["record", "profile"],
    &["capi", "stacks"],
    &["cli", "crash-names", "preload"],
];

/// For tests and chores; nothing that is shipped depends on it.
const TESTKIT: &str = "testkit";
/// Measures what is shipped; nothing depends on it, and it may depend on all.
const EVIDENCE: &str = "evidence";

/// The only places for `unsafe`; each block there states its proof.
const UNSAFE: [&str; 7] = [
    "crates/unwind/src/local/",
    "crates/target/src/sys",
    "crates/elf/src/map.rs",
    "crates/capi/",
    "crates/preload/",
    "bench/framehop/",
    "crates/testkit/src/raw.rs",
];

/// Files beyond this are two files.
const LINES: usize = 900;

/// Fails with all that is untidy.
pub(crate) fn run() -> Result<(), String> {
    let findings = findings(&place::workspace());
    if findings.is_empty() {
        println!("tidy");
        return Ok(());
    }
    Err(format!("untidy:\n{}", findings.join("\n")))
}

fn findings(root: &Path) -> Vec<String> {
    let mut findings = Vec::new();
    let mut files = Vec::new();
    all_files(root, &mut files);
    files.sort();
    for file in files {
        let name = file
            .strip_prefix(root)
            .expect("it lies below the root")
            .to_string_lossy()
            .into_owned();
        // What is no text has no lines to look at.
        let Ok(text) = fs::read_to_string(&file) else { continue };
        if name.ends_with("Cargo.toml") {
            findings.extend(layers(&name, &text));
        }
        if name.ends_with(".rs") {
            findings.extend(long(&name, &text));
            findings.extend(unsafe_code(&name, &text));
        }
        if !name.ends_with("Cargo.lock") {
            findings.extend(private_paths(&name, &text, root));
        }
    }
    findings
}

/// Every file of the project; what is built, and what is hidden, is not part of it.
fn all_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let hidden = name.to_string_lossy().starts_with('.') && name != ".ci" && name != ".cargo";
        let generated = ["target", "corpus", "artifacts", "coverage"]
            .iter()
            .any(|built| name == *built);
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !hidden && !generated => all_files(&path, files),
            Ok(kind) if kind.is_file() && !hidden => files.push(path),
            _ => {}
        }
    }
}

fn layer(room: &str) -> Option<usize> {
    LAYERS.iter().position(|rooms| rooms.contains(&room))
}

/// The order of the layers, in a crate's own manifest.
fn layers(name: &str, manifest: &str) -> Vec<String> {
    let Some(room) = name
        .strip_prefix("crates/")
        .and_then(|rest| rest.strip_suffix("/Cargo.toml"))
    else {
        return Vec::new();
    };
    // A program that a crate builds in order to measure it is not a member of the workspace.
    if room.contains('/') && dependencies(manifest).next().is_none() {
        return Vec::new();
    }
    let own = match layer(room) {
        Some(own) => own,
        None if room == TESTKIT => return testkit_knows_nothing(name, manifest),
        None if room == EVIDENCE => return Vec::new(),
        None => return vec![format!("{name}: the crate has no layer")],
    };
    let mut findings = Vec::new();
    for dependency in dependencies(manifest) {
        match layer(dependency) {
            Some(of_it) if of_it < own => {}
            Some(of_it) => findings.push(format!("{name}: layer {own} depends on {dependency}, of layer {of_it}")),
            None if dependency == TESTKIT => findings.push(format!("{name}: {TESTKIT} is for tests only")),
            None => findings.push(format!("{name}: {dependency} has no layer")),
        }
    }
    findings
}

/// The comparison would compare with itself.
fn testkit_knows_nothing(name: &str, manifest: &str) -> Vec<String> {
    dependencies(manifest)
        .map(|dependency| format!("{name}: {TESTKIT} depends on {dependency}, which it is to check"))
        .collect()
}

/// The project's own crates among a manifest's dependencies; those of tests are free.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut counts = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            counts = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        }
        let name = line.split(['.', ' ', '=']).next()?.strip_prefix("backtrail-")?;
        counts.then_some(name)
    })
}

fn long(name: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > LINES).then(|| format!("{name}: {lines} lines; {LINES} are the most"))
}

fn unsafe_code(name: &str, text: &str) -> Option<String> {
    if UNSAFE.iter().any(|place| name.starts_with(place)) {
        return None;
    }
    let word = |line: &str| {
        without_text(line)
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|word| word == "unsafe")
    };
    let at = text.lines().position(word)?;
    Some(format!(
        "{name}:{}: unsafe code outside the files that may have it",
        at + 1
    ))
}

/// A line without its comment and without what stands in quotes. Good enough for code that is formatted.
fn without_text(line: &str) -> String {
    let mut code = String::new();
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' if quoted => _ = characters.next(),
            '"' => quoted = !quoted,
            '/' if !quoted && characters.peek() == Some(&'/') => break,
            c if !quoted => code.push(c),
            _ => {}
        }
    }
    code
}

/// Paths that mean something on one machine only.
fn private_paths(name: &str, text: &str, root: &Path) -> Option<String> {
    // Put together here so that this file does not hold what it looks for.
    let homes = ["home", "root", "Users"].map(|folder| format!("/{folder}/"));
    let root = root
        .canonicalize()
        .unwrap_or_else(|_| root.to_path_buf())
        .to_string_lossy()
        .into_owned();
    let stands_alone = |line: &str, home: &str| {
        line.match_indices(home)
            .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.}".contains(c)))
    };
    let private = |line: &str| homes.iter().any(|home| stands_alone(line, home)) || stands_alone(line, &root);
    let at = text.lines().position(private)?;
    Some(format!("{name}:{}: an absolute path of somebody's machine", at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_is_tidy() {
        assert_eq!(findings(&place::workspace()), Vec::<String>::new());
    }

    #[test]
    fn layers_are_seen() {
        let manifest = "[dependencies]\nbacktrail-wire.workspace = true\nbacktrail-cbf.workspace = true\n\
                        [dev-dependencies]\nbacktrail-testkit.workspace = true\n";
        let of = |room: &str| layers(&format!("crates/{room}/Cargo.toml"), manifest).len();
        assert_eq!(
            (of("recording"), of("trace"), of("wire"), of("testkit"), of("new")),
            (0, 1, 2, 2, 1)
        );
        let testkit = "[dependencies]\nbacktrail-testkit = { path = \"../testkit\" }\n";
        assert_eq!(layers("crates/record/Cargo.toml", testkit).len(), 1);
        assert_eq!(layers("bench/Cargo.toml", testkit).len(), 0);
        let program = "[dependencies]\ntokio = \"1\"\n[workspace]\n";
        assert_eq!(layers("crates/evidence/programs/work/Cargo.toml", program).len(), 0);
        assert_eq!(layers("crates/evidence/programs/work/Cargo.toml", testkit).len(), 1);
    }

    #[test]
    fn unsafe_code_is_seen_and_talk_of_it_is_not() {
        let open = "fn f() { unsafe { g() } }";
        assert!(unsafe_code("crates/wire/src/lib.rs", open).is_some());
        assert!(unsafe_code("crates/target/src/sys/ring.rs", open).is_none());
        for fine in [
            "// no unsafe here",
            "let s = \"an unsafe \\\" word\";",
            "#![deny(unsafe_code)]",
        ] {
            assert_eq!(unsafe_code("crates/wire/src/lib.rs", fine), None, "{fine}");
        }
    }

    #[test]
    fn private_paths_are_seen() {
        let root = Path::new("/somewhere/project");
        let home = format!("see /{}/someone/notes", "home");
        assert!(private_paths("README.md", &home, root).is_some());
        assert!(private_paths("README.md", "in /somewhere/project/docs", root).is_some());
        assert!(private_paths("README.md", &format!("/proc/PID/{}/etc", "root"), root).is_none());
        assert!(private_paths("README.md", "target/testprograms", root).is_none());
    }

    #[test]
    fn long_files_are_seen() {
        assert!(long("a.rs", &"\n".repeat(LINES)).is_none());
        assert!(long("a.rs", &"\n".repeat(LINES + 1)).is_some());
    }
}
