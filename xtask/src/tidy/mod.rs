//! `cargo xtask tidy`: the rules of the house that no compiler knows. They also run as a test.

mod circles;
mod doors;
mod layers;
mod links;
mod prose;
mod text;

use std::path::Path;

use backtrail_testkit::place;

use crate::api;
use crate::files::texts;

use text::without_text;

/// The only places for `unsafe`; each block there states its proof.
const UNSAFE: [&str; 26] = [
    "crates/unwind/src/local/",
    "crates/process/src/sys",
    "crates/elf/src/map.rs",
    "crates/capi/",
    "crates/cli/src/memory.rs",
    "crates/local/",
    "crates/preload/",
    "crates/unwind-capi/",
    "bench/framehop/",
    "crates/testkit/src/raw.rs",
    // Memory that threads, handlers and other processes share; the threads' own variable; clocks;
    // what the C library calls at forks, exits and crashes.
    "crates/tracer/src/map.rs",
    "crates/tracer/src/ring.rs",
    "crates/tracer/src/room.rs",
    "crates/tracer/src/thread.rs",
    "crates/tracer/src/class.rs",
    "crates/tracer/src/classes.rs",
    "crates/tracer/src/clock.rs",
    "crates/tracer/src/start.rs",
    "crates/tracer/src/contexts.rs",
    "crates/tracer/src/session.rs",
    "crates/tracer/src/stack.rs",
    "crates/tracer/src/drainer.rs",
    "crates/tracer/src/crash.rs",
    "crates/tracer/src/model.rs",
    "crates/tracer/examples/",
    "crates/tracer-capi/",
];

/// Files beyond this are two files.
const LINES: usize = 900;

/// Fails with all that is untidy.
pub(crate) fn run() -> Result<(), String> {
    let root = place::workspace();
    let findings = findings_in(&texts(&root), &root);
    if findings.is_empty() {
        println!("tidy");
        return Ok(());
    }
    Err(format!("untidy:\n{}", findings.join("\n")))
}

/// What is untidy in these files: names from the root on, and texts.
fn findings_in(files: &[(String, String)], root: &Path) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, text) in files {
        if name.ends_with("Cargo.toml") {
            findings.extend(layers::findings(name, text));
        }
        if name.ends_with(".rs") {
            findings.extend(long(name, text));
            findings.extend(unsafe_code(name, text));
            findings.extend(exhaustive(name, text));
            findings.extend(doors::findings(name, text));
            findings.extend(prose::wide(name, text));
        }
        if !name.ends_with("Cargo.lock") {
            findings.extend(private_paths(name, text, root));
        }
    }
    findings.extend(never_run(files));
    findings.extend(circles::findings(files));
    findings.extend(links::findings(files, root));
    findings.extend(prose::words(files));
    findings.extend(api::findings(files));
    findings
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

/// Public errors to which no variant can be added without breaking the programs that match them.
fn exhaustive(name: &str, text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let is_closed = |at: &usize| {
        let Some(rest) = lines[*at].strip_prefix("pub enum ") else {
            return false;
        };
        let word = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let mut above = lines[..*at].iter().rev().take_while(|line| line.starts_with("#["));
        (word.ends_with("Error") || word.ends_with("ErrorKind")) && !above.any(|line| line.contains("non_exhaustive"))
    };
    let at = (0..lines.len()).find(is_closed)?;
    Some(format!("{name}:{}: a public error without #[non_exhaustive]", at + 1))
}

/// Unit tests of libraries whose manifest says that they have none: they would never run.
fn never_run(files: &[(String, String)]) -> Vec<String> {
    let has_none = |manifest: &str| {
        let library = manifest.split("\n[").find(|section| section.starts_with("lib]"));
        library.is_some_and(|section| section.lines().any(|line| line == "test = false"))
    };
    let mut findings = Vec::new();
    for (manifest, text) in files {
        let Some(folder) = manifest.strip_suffix("Cargo.toml").filter(|_| has_none(text)) else {
            continue;
        };
        let sources = format!("{folder}src/");
        let is_tested = |text: &str| text.lines().any(|line| line.trim_start().starts_with("#[test]"));
        let tested = files
            .iter()
            .filter(|(name, text)| name.starts_with(&sources) && is_tested(text));
        findings.extend(tested.map(|(name, _)| format!("{name}: tests that never run: {manifest} has `test = false`")));
    }
    findings
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
    use std::fs;

    use super::*;

    #[test]
    fn the_project_is_tidy() {
        let root = place::workspace();
        assert_eq!(findings_in(&texts(&root), &root), Vec::<String>::new());
    }

    /// Faults that are planted in a crate of this name, and a word of what is said of each.
    fn faults(room: &str) -> Vec<(Vec<(String, String)>, &'static str)> {
        let file = |name: &str, text: &str| (format!("crates/{room}/src/{name}"), text.to_owned());
        let manifest = "[dependencies]\nbacktrail.workspace = true\nbacktrail-testkit.workspace = true\n";
        let mut faults = vec![
            (
                vec![file("planted.rs", &format!("// {}\n", "word ".repeat(30)))],
                "columns",
            ),
            (
                vec![file("planted.rs", &"// it is to\u{6c}d\n".repeat(500))],
                "words to avoid",
            ),
            (
                vec![(format!("crates/{room}/PLANTED.md"), "see [it](no-such.md)\n".to_owned())],
                "broken link",
            ),
            (vec![file("target/planted.rs", &"\n".repeat(2000))], "2000 lines"),
            (
                vec![file(
                    "planted.rs",
                    "#[derive(Debug)]\npub enum PlantedError {\n    One,\n}\n",
                )],
                "non_exhaustive",
            ),
            (
                vec![file("target/planted.rs", &format!("// see /{}/me/notes\n", "home"))],
                "absolute path",
            ),
            (
                vec![
                    file("planted_a.rs", "use crate::planted_b::B;\n"),
                    file("planted_b.rs", "use crate::planted_a::A;\n"),
                ],
                "circle",
            ),
            (
                vec![
                    (
                        format!("crates/{room}/Cargo.toml"),
                        "[package]\n\n[lib]\ntest = false\n".to_owned(),
                    ),
                    file("planted.rs", "#[test]\nfn it_works() {}\n"),
                ],
                "never run",
            ),
        ];
        if !UNSAFE
            .iter()
            .any(|place| format!("crates/{room}/src/planted.rs").starts_with(place))
        {
            faults.push((vec![file("target/planted.rs", "fn f() { unsafe { g() } }\n")], "unsafe"));
        }
        if doors::ROOMS.contains(&room) {
            faults.push((
                vec![file("planted.rs", "let file = File::open(path);\n")],
                "past the door",
            ));
        }
        // `evidence` may use everything.
        if room != "evidence" {
            faults.push((
                vec![(format!("crates/{room}/Cargo.toml"), manifest.to_owned())],
                "depends",
            ));
        }
        faults
    }

    #[test]
    fn planted_faults_are_found_in_every_crate() {
        let root = place::workspace();
        let rooms: Vec<_> = fs::read_dir(root.join("crates"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(rooms.len() > 20);
        for room in rooms {
            for (planted, word) in faults(&room) {
                let found = findings_in(&planted, &root);
                let is_found = found
                    .iter()
                    .any(|finding| finding.contains(word) || finding.contains("is for tests only"));
                assert!(is_found, "{room}: {word}: {found:?}");
            }
        }
    }

    #[test]
    fn unsafe_code_is_seen_and_talk_of_it_is_not() {
        let open = "fn f() { unsafe { g() } }";
        assert!(unsafe_code("crates/wire/src/lib.rs", open).is_some());
        assert!(unsafe_code("crates/process/src/sys/ring.rs", open).is_none());
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
