//! `backtrail sframe build`, `check` and `convert`, run as scripts run them.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use backtrail_testkit::peers::Release;
use backtrail_testkit::scratch;
use serde_json::{Value, json};

use crate::adding::program;

fn sframe<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backtrail"));
    command.arg("sframe").args(arguments);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output and error of a command that must end with `code`.
#[track_caller]
fn ends<S: AsRef<OsStr>>(code: i32, arguments: &[S]) -> (String, String) {
    let output = sframe(arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    (stdout, stderr)
}

#[track_caller]
fn json_of<S: AsRef<OsStr>>(code: i32, arguments: &[S]) -> Value {
    let (stdout, stderr) = ends(code, arguments);
    assert_eq!(stderr, "");
    serde_json::from_str(&stdout).unwrap()
}

fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_gnu_ld_links_has_its_known_error_and_no_other() {
    for release in [Release::V2_44, Release::V2_47] {
        let Some((_folder, program)) = program(Some(release), &["-O2"]) else {
            continue;
        };
        let found = json_of(1, &["check", "--json", &path(&program)]);
        let file = &found[0];
        let keys: Vec<&String> = file.as_object().unwrap().keys().collect();
        let mut expected = [
            "file",
            "functions",
            "rows",
            "pcs",
            "uncovered_bytes",
            "skipped",
            "mismatches",
        ]
        .map(String::from);
        expected.sort();
        assert!(keys.into_iter().eq(&expected), "{file}");
        let [mismatch] = file["mismatches"].as_array().unwrap().as_slice() else {
            panic!("{file}");
        };
        assert!(mismatch["pc"].as_str().unwrap().starts_with("0x"));
        let told = json!({"pc": mismatch["pc"], "what": "cfa", "sframe": "rsp+16", "eh_frame": "rsp+8"});
        assert_eq!(mismatch, &told);
        assert!(file["uncovered_bytes"].as_u64().unwrap() > 0);
        assert!(file["skipped"]["absent"].as_u64().unwrap() > 0);

        let (stdout, _) = ends(1, &["check", &path(&program)]);
        assert!(
            stdout.contains("1 mismatch\n") && stdout.contains("cfa at 16 pcs: .sframe rsp+16; .eh_frame rsp+8"),
            "{stdout}"
        );
        assert!(stdout.contains(".text _start"), "{stdout}");
        // The built table of the same file has no error.
        let built = json_of(0, &["check", "--json", "--built", "3", &path(&program)]);
        assert_eq!(built[0]["mismatches"], json!([]));
        assert_eq!(
            (&built[0]["uncovered_bytes"], &built[0]["skipped"]),
            (&json!(0), &json!({}))
        );
    }
}

#[test]
fn tables_are_built_shown_checked_and_converted() {
    let Some((folder, program)) = program(None, &["-O2", "-Wl,-z,lazy"]) else {
        return;
    };
    let out = |name: &str| path(&folder.path().join(name));
    for version in ["1", "2", "3"] {
        let table = out(&format!("v{version}"));
        let (stdout, stderr) = ends(
            0,
            &[
                "build",
                &path(&program),
                "-o",
                &table,
                "--version",
                version,
                "--merge",
                "1",
            ],
        );
        assert_eq!(stdout, "");
        assert!(stderr.contains(&format!("SFrame version {version}: ")), "{stderr}");
        assert_eq!(
            stderr.contains("skipped: outermost: 1 piece"),
            version == "1",
            "{stderr}"
        );
        // The raw section is read at address 0, and says the file's own addresses.
        let (shown, _) = ends(0, &["show", &table]);
        assert!(shown.contains(&format!("SFRAME_VERSION_{version}")), "{shown}");
        let report = json_of(0, &["check", "--json", &path(&program), "--table", &table]);
        assert_eq!(report[0]["mismatches"], json!([]));
        assert_eq!(report[0]["uncovered_bytes"].as_u64().unwrap() > 0, version == "1");
        // Unshared rows are the same rows.
        let unshared = out("unshared");
        ends(
            0,
            &[
                "build",
                &path(&program),
                "-o",
                &unshared,
                "--version",
                version,
                "--no-share",
                "--merge",
                "1",
                "-q",
            ],
        );
        assert!(fs::metadata(&unshared).unwrap().len() >= fs::metadata(&table).unwrap().len());
        assert_eq!(ends(0, &["show", &unshared]).0, shown);
        let merged = out("merged");
        ends(0, &["build", &path(&program), "-o", &merged, "--version", version]);
        assert!(fs::metadata(&merged).unwrap().len() < fs::metadata(&table).unwrap().len());
        let joined = json_of(0, &["check", "--json", &path(&program), "--table", &merged]);
        assert_eq!(joined[0]["uncovered_bytes"], report[0]["uncovered_bytes"]);
    }
    for (from, to, skipped) in [
        ("v1", "3", false),
        ("v2", "3", false),
        ("v3", "2", false),
        ("v3", "1", true),
    ] {
        let converted = out("converted");
        let (stdout, stderr) = ends(0, &["convert", &out(from), "--to", to, "-o", &converted]);
        assert_eq!(
            (stdout.as_str(), stderr.contains("skipped: outermost: 1 function")),
            ("", skipped),
            "{stderr}"
        );
        let same = fs::read(&converted).unwrap() == fs::read(out(&format!("v{to}"))).unwrap();
        // Version 1 lacks the outermost frame for good.
        assert_eq!(same, from != "v1", "{from} to {to}");
        let output = sframe(&["convert", &out(from), "--to", to]);
        assert_eq!(output.stdout, fs::read(&converted).unwrap());
    }
}

/// An ELF file's own table, in another version: the functions stay where they are.
#[test]
fn tables_of_files_are_converted() {
    let Some((folder, program)) = program(Some(Release::V2_44), &["-O2"]) else {
        return;
    };
    let converted = path(&folder.path().join("converted"));
    ends(0, &["convert", &path(&program), "--to", "3", "-o", &converted]);
    let own = json_of(1, &["check", "--json", &path(&program)]);
    let after = json_of(1, &["check", "--json", &path(&program), "--table", &converted]);
    for name in ["functions", "pcs", "uncovered_bytes", "mismatches"] {
        assert_eq!(own[0][name], after[0][name], "{name}");
    }
}

/// Sections of relocatable files are placed one after the other: their code does not lie on top of
/// each other.
#[test]
fn relocatable_files() {
    for flags in [&["-O2", "-c"][..], &["-O2", "-c", "-ffunction-sections"]] {
        let Some((_folder, object)) = program(Some(Release::V2_47), flags) else {
            continue;
        };
        let own = json_of(0, &["check", "--json", &path(&object)]);
        let built = json_of(0, &["check", "--json", "--built", "3", &path(&object)]);
        for report in [&own[0], &built[0]] {
            assert_eq!(
                (&report["uncovered_bytes"], &report["mismatches"]),
                (&json!(0), &json!([])),
                "{report}"
            );
            assert!(report["functions"].as_u64().unwrap() >= 9, "{report}");
        }
        assert_eq!(own[0]["pcs"], built[0]["pcs"]);
    }
}

#[test]
fn what_is_wrong_is_told_in_a_line() {
    let folder = scratch();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (text_file, out) = (file("text", b"hello"), path(&folder.path().join("out")));
    for arguments in [&["build", &text_file, "-o", &out][..], &["check", &text_file]] {
        let (stdout, stderr) = ends(2, arguments);
        assert_eq!(
            (stdout.as_str(), stderr),
            ("", format!("backtrail: {text_file}: not an ELF file at offset 0x0\n"))
        );
    }
    let (_, stderr) = ends(2, &["convert", &text_file, "--to", "3", "-o", &out]);
    assert!(stderr.starts_with(&format!("backtrail: {text_file}: ")), "{stderr}");
    let (_, stderr) = ends(2, &["convert", &text_file, "--to", "4"]);
    assert!(stderr.contains("'4'"), "{stderr}");
    assert!(!Path::new(&out).exists());
    // A file whose .eh_frame breaks off gives what comes before, and says so.
    let Some((_kept, program)) = program(None, &["-O2"]) else {
        return;
    };
    let mut bytes = fs::read(&program).unwrap();
    let frames = backtrail_testkit::elf_file::section(&bytes, ".eh_frame").unwrap();
    let mut at = frames.start;
    for _ in 0..4 {
        at += 4 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    }
    bytes[at..at + 4].copy_from_slice(&0x7fff_fff0u32.to_le_bytes());
    let damaged = file("damaged", &bytes);
    let (_, stderr) = ends(2, &["build", &damaged, "-o", &out, "-q"]);
    let expected = format!(
        "entry of impossible length 2147483632 at offset {:#x}",
        at - frames.start
    );
    assert!(
        stderr.contains(&expected) && stderr.contains("help: the table has what comes before"),
        "{stderr}"
    );
    assert!(Path::new(&out).exists());
    let (stdout, stderr) = ends(2, &["check", "--json", &damaged, &text_file]);
    assert!(
        stderr.contains(&expected) && stderr.contains("not an ELF file"),
        "{stderr}"
    );
    assert_eq!(
        serde_json::from_str::<Value>(&stdout)
            .unwrap()
            .as_array()
            .unwrap()
            .len(),
        1
    );
}
