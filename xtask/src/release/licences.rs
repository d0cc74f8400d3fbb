//! The licences of the crates that programs and libraries are linked with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use backtrail_testkit::place;
use serde_json::Value;

use crate::cargo::{cargo_in, output};

/// The texts of all licences, each with the crates that it belongs to. Of a choice, it is MIT's.
pub(super) fn collect(target: &str) -> Result<String, String> {
    let arguments = [
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--filter-platform",
        target,
    ];
    let metadata = output(&mut cargo_in(&place::workspace(), &arguments))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let linked = linked(&metadata);
    let mut texts: BTreeMap<String, (Vec<String>, String)> = BTreeMap::new();
    let mut text =
        "Backtrail is linked with the Rust standard library (MIT OR Apache-2.0, the Rust project's contributors)\n\
                    and with these crates:\n\n"
            .to_owned();
    for package in list(&metadata["packages"]) {
        // Crates of the workspace have no source.
        if !linked.contains(&package["id"].to_string()) || package["source"].is_null() {
            continue;
        }
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let name = format!("{} {}", field("name"), field("version"));
        // The writer never fails.
        let _ = writeln!(text, "{name}: {}", field("license"));
        let folder = Path::new(field("manifest_path")).parent().unwrap_or(Path::new(""));
        for licence in files(folder, field("license")) {
            // The same words may be wrapped differently.
            let words = licence.split_whitespace().collect::<Vec<_>>().join(" ");
            let (crates, _) = texts.entry(words).or_insert_with(|| (Vec::new(), licence));
            crates.push(name.clone());
        }
    }
    for (crates, licence) in texts.into_values() {
        let _ = write!(text, "\n---- {}\n\n{}\n", crates.join(", "), licence.trim());
    }
    Ok(text)
}

/// The packages that those of the release need when they run.
fn linked(metadata: &Value) -> BTreeSet<String> {
    let is_shipped = |package: &&Value| {
        let name = package["name"].as_str().unwrap_or_default();
        super::PACKAGES.contains(&name)
    };
    let first = list(&metadata["packages"]).iter().filter(is_shipped);
    let mut next: Vec<String> = first.map(|package| package["id"].to_string()).collect();
    let nodes = list(&metadata["resolve"]["nodes"]).iter();
    let nodes: BTreeMap<String, &Value> = nodes.map(|node| (node["id"].to_string(), node)).collect();
    let mut linked = BTreeSet::new();
    while let Some(id) = next.pop() {
        let dependencies = nodes.get(&id).map_or(&[][..], |node| list(&node["deps"]));
        if linked.insert(id) {
            // The kind of others is "dev" or "build".
            let is_normal =
                |dependency: &&Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            next.extend(
                dependencies
                    .iter()
                    .filter(is_normal)
                    .map(|dependency| dependency["pkg"].to_string()),
            );
        }
    }
    linked
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The licence's files of a crate.
fn files(folder: &Path, licence: &str) -> Vec<String> {
    const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| path.is_file());
    let upper = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    let mut paths: Vec<_> = paths
        .filter(|path| NAMES.iter().any(|name| upper(path).starts_with(name)))
        .collect();
    paths.sort();
    let is_choice = licence.contains(" OR ") || licence.contains('/');
    if is_choice && paths.iter().any(|path| upper(path).contains("MIT")) {
        paths.retain(|path| upper(path).contains("MIT"));
    }
    paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}
