//! `backtrail sframe add` with many files: a folder, several names, and what fails among them.

use crate::adding;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use adding::*;
use backtrail_testkit::{TempDir, elf_file, scratch, skip};
use serde_json::{Value, json};

/// A folder that looks like a system's: programs with several names, libraries, and files that are
/// neither.
struct Tree(TempDir);

impl Tree {
    fn new() -> Option<Self> {
        let tree = Tree(scratch());
        for folder in ["bin", "lib", "lib/debug"] {
            fs::create_dir(tree.at(folder)).unwrap();
        }
        compile("gcc", &[], &tree.at("bin/program"), &inspect())?;
        compile("gcc", &["-shared", "-fPIC"], &tree.at("lib/library.so"), &inspect())?;
        compile("gcc", &["-c"], &tree.at("lib/crt.o"), &inspect())?;
        let mut split = Command::new("objcopy");
        split.arg("--only-keep-debug").arg(tree.at("bin/program"));
        assert_eq!(run(split.arg(tree.at("lib/debug/program.debug"))).code(), 0);
        fs::set_permissions(tree.at("bin/program"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::hard_link(tree.at("bin/program"), tree.at("lib/second-name")).unwrap();
        symlink("program", tree.at("bin/link")).unwrap();
        symlink("..", tree.at("bin/loop")).unwrap();
        let mut appended = fs::read(tree.at("lib/library.so")).unwrap();
        appended.extend(b"PK\x03\x04 an archive");
        fs::write(tree.at("lib/appended"), appended).unwrap();
        fs::write(tree.at("bin/script"), "#!/bin/sh\n").unwrap();
        fs::write(tree.at("lib/empty"), "").unwrap();
        Some(tree)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Inode and time of change of every file but symbolic links.
    fn stamps(&self) -> BTreeMap<PathBuf, (u64, i64, i64)> {
        let mut stamps = BTreeMap::new();
        let mut folders = vec![self.0.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let (path, metadata) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
                if metadata.is_dir() {
                    folders.push(path);
                } else if metadata.is_file() {
                    stamps.insert(path, (metadata.ino(), metadata.mtime(), metadata.mtime_nsec()));
                }
            }
        }
        stamps
    }
}

fn has_table(file: &Path) -> bool {
    elf_file::section(&fs::read(file).unwrap(), ".sframe").is_some()
}

/// The report of `sframe add --json` with these arguments, and what it prints as errors.
#[track_caller]
fn report(code: i32, arguments: &[&Path]) -> (Value, String) {
    let mut all: Vec<&Path> = vec!["add".as_ref(), "--json".as_ref()];
    all.extend(arguments);
    let (stdout, stderr) = sframe(code, &all);
    (serde_json::from_str(&stdout).unwrap(), stderr)
}

#[test]
fn a_tree_gets_its_tables_once() {
    let Some(tree) = Tree::new() else { return };
    let before = tree.stamps();
    let folder = ["-r".as_ref(), tree.0.path()];
    let (first, stderr) = report(0, &folder);
    assert_eq!(stderr, "");
    let refused = json!([{
        "reason": "… bytes of data appended that ELF does not know of",
        "files": [tree.at("lib/appended").to_str().unwrap()],
    }]);
    assert_eq!(
        (&first["files"], &first["added"], &first["unchanged"], &first["failed"]),
        (&json!(5), &json!(2), &json!(0), &json!([])),
        "{first}"
    );
    assert_eq!(
        first["left"],
        json!({"object files": 1, "separate debug information": 1})
    );
    assert_eq!(first["refused"], refused);
    let now = tree.stamps();
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        now.keys().collect::<Vec<_>>(),
        "no file more or less"
    );
    let changed = now.iter().filter(|&(path, stamp)| before.get(path) != Some(stamp));
    let changed: Vec<&PathBuf> = changed.map(|(path, _)| path).collect();
    assert_eq!(
        changed,
        [
            &tree.at("bin/program"),
            &tree.at("lib/library.so"),
            &tree.at("lib/second-name")
        ]
    );
    checked(&tree.at("bin/program"));
    checked(&tree.at("lib/library.so"));
    let inode = |name: &str| fs::metadata(tree.at(name)).unwrap();
    assert_eq!(inode("bin/program").ino(), inode("lib/second-name").ino());
    assert_eq!(inode("bin/program").mode() & 0o7777, 0o4751);
    assert!(fs::symlink_metadata(tree.at("bin/link")).unwrap().is_symlink());
    assert_eq!(run(&mut Command::new(tree.at("bin/program"))).code(), 7);
    let sizes = ["bin/program", "lib/library.so"].map(|name| inode(name).len());
    assert_eq!(first["bytes_after"], json!(sizes.iter().sum::<u64>()));

    // A second run has nothing to do, and one that was interrupted goes on.
    let (second, _) = report(0, &folder);
    assert_eq!((&second["added"], &second["unchanged"]), (&json!(0), &json!(2)));
    assert_eq!(tree.stamps(), now);
    sframe(0, &["strip".as_ref(), tree.at("lib/library.so").as_os_str()]);
    let (third, _) = report(0, &folder);
    assert_eq!((&third["added"], &third["unchanged"]), (&json!(1), &json!(1)));
    // Another version is another table.
    let version = [&folder[..], &["--version".as_ref(), "2".as_ref()]].concat();
    let (other, _) = report(0, &version);
    assert_eq!((&other["added"], &other["replaced"]), (&json!(2), &json!(0)));
}

/// What a table is made from may change where no table of ours has been written.
#[test]
fn a_file_that_was_changed_since_gets_a_new_table() {
    let Some(tree) = Tree::new() else { return };
    let library = tree.at("lib/library.so");
    let folder = ["-r".as_ref(), tree.0.path()];
    report(0, &folder);
    let mut bytes = fs::read(&library).unwrap();
    let frames = elf_file::section(&bytes, ".eh_frame").unwrap();
    // The last DW_CFA_def_cfa_offset: of 16, or as gcc has it on AArch64.
    let at = bytes[frames.clone()]
        .windows(2)
        .rposition(|window| matches!(window, [0x0e, 16 | 32 | 48]));
    bytes[frames.start + at.expect("a function has a frame") + 1] = 24;
    fs::write(&library, &bytes).unwrap();
    let (again, _) = report(0, &folder);
    assert_eq!((&again["added"], &again["unchanged"]), (&json!(1), &json!(1)));
    let (third, _) = report(0, &folder);
    assert_eq!((&third["added"], &third["unchanged"]), (&json!(0), &json!(2)));
}

#[test]
fn files_that_fail_do_not_stop_the_others() {
    let Some(tree) = Tree::new() else { return };
    let (missing, script) = (tree.at("bin/missing"), tree.at("bin/script"));
    let (library, folder) = (tree.at("lib/library.so"), tree.at("lib"));
    let (report, stderr) = report(2, &[&missing, &script, &folder, &library]);
    assert_eq!(report["added"], 1);
    assert_eq!(report["failed"].as_array().map(Vec::len), Some(3), "{report}");
    for part in ["No such file", "not an ELF file", "is a folder; --recursive takes"] {
        assert_eq!(stderr.matches(part).count(), 1, "{part}: {stderr}");
    }
    checked(&library);
    // A name whose file has others elsewhere stays with them.
    let program = tree.at("bin/program");
    let text = |arguments: &[&Path]| sframe(2, &[&["add".as_ref()], arguments].concat());
    let (stdout, stderr) = text(&[&program, &library]);
    assert!(stderr.contains("names (hard links) elsewhere"), "{stderr}");
    assert!(stdout.contains("1 had this table already"), "{stdout}");
    assert!(!has_table(&program));
    // All files of a build, object files among them.
    let object = tree.at("lib/crt.o");
    for added in [1, 0] {
        let (stdout, _) = sframe(0, &["add".as_ref(), object.as_os_str(), library.as_os_str()]);
        assert!(stdout.contains(&format!("{added} got a table")), "{stdout}");
    }
    let (_, stderr) = sframe(
        2,
        &[
            "add".as_ref(),
            library.as_os_str(),
            object.as_os_str(),
            "-o".as_ref(),
            "x".as_ref(),
        ],
    );
    assert!(stderr.contains("--output is for a single FILE"), "{stderr}");
}

/// A hash or signature of the old content must not say of the new one that it is damaged.
#[test]
fn signatures_of_the_old_file_are_not_copied() {
    let Some(tree) = Tree::new() else { return };
    let library = tree.at("lib/library.so");
    let attributes = |code: &str| {
        let mut python = Command::new("python3");
        run(python.args(["-c", code]).arg(&library))
    };
    let sign = "import os, sys; os.setxattr(sys.argv[1], 'security.ima', b'\\x01hash')";
    if attributes(sign).code() != 0 {
        skip("no attribute security.ima can be set here");
        return;
    }
    let folder = tree.at("lib");
    let (report, _) = report(0, &["-r".as_ref(), folder.as_path()]);
    let reasons = report["refused"].to_string();
    assert!(reasons.contains("is signed for the kernel"), "{reasons}");
    assert!(!has_table(&library));
    let (_, stderr) = sframe(0, &["add".as_ref(), "-q".as_ref(), library.as_os_str()]);
    assert!(stderr.contains("sign the file again"), "{stderr}");
    let names = attributes("import os, sys; print(os.listxattr(sys.argv[1]))").stdout;
    assert!(has_table(&library) && !names.contains("ima"), "{names}");
}

#[test]
fn a_linker_by_name_alone() {
    let Some(tree) = Tree::new() else { return };
    let linker = tree.at("backtrail-cc");
    symlink(env!("CARGO_BIN_EXE_backtrail"), &linker).unwrap();
    let program = tree.at("linked");
    assert_eq!(
        run(Command::new(&linker).arg("-o").args([&program, &tree.at("lib/crt.o")])).code(),
        0
    );
    checked(&program);
}
