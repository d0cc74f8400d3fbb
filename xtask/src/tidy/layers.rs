//! The order of the layers.

/// The crates by layer; a crate depends on lower layers only, and on none of its own.
const LAYERS: [&[&str]; 7] = [
    &["wire", "arch"],
    &["sframe", "cbf", "trace", "ctype", "callframe"],
    &["unwind", "elf", "recording", "args", "trace-rfc", "trace-net"],
    &["cfi", "debuginfo", "process", "bpf"],
    &["record", "profile", "local"],
    &["capi", "stacks", "tracer", "export", "store"],
    &["cli", "crash-names", "preload", "api", "tracer-capi", "unwind-capi"],
];

/// For tests and chores; nothing that is shipped depends on it.
const TESTKIT: &str = "testkit";
/// Measures what is shipped; nothing depends on it, and it may depend on all.
const EVIDENCE: &str = "evidence";

fn layer(room: &str) -> Option<usize> {
    LAYERS.iter().position(|rooms| rooms.contains(&room))
}

/// The order of the layers, in a crate's own manifest.
pub(super) fn findings(name: &str, manifest: &str) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_seen() {
        let manifest = "[dependencies]\nbacktrail-wire.workspace = true\nbacktrail-cbf.workspace = true\n\
                        [dev-dependencies]\nbacktrail-testkit.workspace = true\n";
        let of = |room: &str| findings(&format!("crates/{room}/Cargo.toml"), manifest).len();
        assert_eq!(
            (of("recording"), of("trace"), of("wire"), of("testkit"), of("new")),
            (0, 1, 2, 2, 1)
        );
        let testkit = "[dependencies]\nbacktrail-testkit = { path = \"../testkit\" }\n";
        assert_eq!(findings("crates/record/Cargo.toml", testkit).len(), 1);
        assert_eq!(findings("bench/Cargo.toml", testkit).len(), 0);
        let program = "[dependencies]\ntokio = \"1\"\n[workspace]\n";
        assert_eq!(findings("crates/evidence/programs/work/Cargo.toml", program).len(), 0);
        assert_eq!(findings("crates/evidence/programs/work/Cargo.toml", testkit).len(), 1);
    }
}
