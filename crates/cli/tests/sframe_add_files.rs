//! `backtrail sframe add` and what can go wrong with files: the old one is whole until the new one
//! is.

use crate::adding;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use adding::*;
use backtrail_testkit::mounted::Mounted;
use backtrail_testkit::peers::Machine;
use backtrail_testkit::{TempDir, scratch, skip};

/// The program that looks at itself, in a folder of its own.
fn program() -> Option<(TempDir, PathBuf)> {
    let folder = scratch();
    let program = folder.path().join("program");
    compile("gcc", &["-static"], &program, &inspect())?;
    Some((folder, program))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Fails unless adding to the file fails for this reason and leaves everything as it was.
#[track_caller]
fn is_refused(file: &Path, reason: &str) {
    let (before, around) = (fs::read(file).unwrap(), names(file.parent().unwrap()));
    let (stdout, stderr) = sframe(2, &["add".as_ref(), file.as_os_str()]);
    assert_eq!(stdout, "");
    let told = format!("backtrail: {}: ", file.display());
    assert!(stderr.starts_with(&told) && stderr.contains(reason), "{stderr}");
    assert!(fs::read(file).unwrap() == before && names(file.parent().unwrap()) == around);
}

#[test]
fn what_can_get_no_table_is_told_why() {
    let Some((folder, program)) = program() else { return };
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let bytes = fs::read(&program).unwrap();
    is_refused(&put("text", b"hello, world"), "not an ELF file at offset 0x0");
    is_refused(&put("empty", b""), "not an ELF file");
    is_refused(
        &put("archive", b"!<arch>\n"),
        "no object file in it that could get a table",
    );
    is_refused(
        &put("thin", b"!<thin>\n"),
        "a thin archive, which holds no object files but their names",
    );
    is_refused(
        &put(
            "cut",
            b"!<arch>\nname.o/         0           0     0     644     9999      `\nshort",
        ),
        "a member of the archive is damaged or cut off at offset 0x8",
    );
    is_refused(&put("half", &bytes[..bytes.len() / 2]), "no .eh_frame section");
    let mut narrow = bytes.clone();
    narrow[4] = 1;
    is_refused(&put("narrow", &narrow), "32-bit ELF is not supported at offset 0x4");
    let mut appended = bytes.clone();
    appended.extend(b"PK\x03\x04 what a program finds by its own end");
    is_refused(
        &put("appended", &appended),
        "40 bytes of data appended that ELF does not know of",
    );
    let frames = backtrail_testkit::elf_file::section(&bytes, ".eh_frame").unwrap();
    let mut damaged = bytes.clone();
    damaged[frames.start..frames.start + 4].copy_from_slice(&0x7fff_fff0u32.to_le_bytes());
    is_refused(
        &put("damaged", &damaged),
        "call frame information entry of impossible length",
    );
    let missing = folder.path().join("missing");
    let (_, stderr) = sframe(2, &["add".as_ref(), missing.as_os_str()]);
    assert!(stderr.contains("No such file"), "{stderr}");
    let (_, stderr) = sframe(2, &["add".as_ref(), folder.path().as_os_str()]);
    assert!(stderr.contains("is a directory"), "{stderr}");
}

#[test]
fn mode_attributes_and_links_stay() {
    let Some((folder, program)) = program() else { return };
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4751)).unwrap();
    let (link, other) = (folder.path().join("link"), folder.path().join("other"));
    symlink("program", &link).unwrap();
    fs::hard_link(&program, &other).unwrap();
    // An attribute of a user's own, where the file system has any.
    let mut attribute = Command::new("python3");
    attribute
        .args([
            "-c",
            "import os, sys; os.setxattr(sys.argv[1], 'user.backtrail', b'kept')",
        ])
        .arg(&program);
    let has_attributes = attribute
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let before = fs::read(&program).unwrap();

    let (_, stderr) = sframe(0, &["add".as_ref(), "-q".as_ref(), link.as_os_str()]);
    assert!(stderr.contains("had 2 names (hard links)"), "{stderr}");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&program).unwrap().mode() & 0o7777, 0o4751);
    assert!(fs::read(&other).unwrap() == before);
    checked(&program);
    if has_attributes {
        let read = "import os, sys; print(os.getxattr(sys.argv[1], 'user.backtrail').decode())";
        assert_eq!(
            run(Command::new("python3").args(["-c", read]).arg(&program)).stdout,
            "kept\n"
        );
    } else {
        skip("no extended attributes here");
    }
    // A new file is as executable as the old one, and nobody else's.
    let copy = folder.path().join("copy");
    add(&program, &[], &copy);
    assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o7777, 0o751);
    let (_, stderr) = sframe(0, &["strip".as_ref(), program.as_os_str()]);
    assert_eq!(stderr, "");
    assert!(fs::read(&program).unwrap() == before);
    let (_, stderr) = sframe(0, &["strip".as_ref(), program.as_os_str()]);
    assert!(stderr.contains("has no table"), "{stderr}");
}

#[test]
fn a_running_program_is_replaced() {
    let Some((folder, program)) = program() else { return };
    let source = folder.path().join("waits.c");
    fs::write(
        &source,
        "#include <unistd.h>\nint main(void) { char c; return read(0, &c, 1) == 1 ? c : 1; }\n",
    )
    .unwrap();
    if compile("gcc", &[], &program, &source).is_none() {
        return;
    }
    let mut waits = Command::new(&program).stdin(Stdio::piped()).spawn().unwrap();
    add_here(&program);
    std::io::Write::write_all(waits.stdin.as_mut().unwrap(), b"\x05").unwrap();
    assert_eq!(waits.wait().unwrap().code(), Some(5));
    checked(&program);
}

/// Killed at any moment, it leaves the old file or the new one; what it was writing is not taken
/// for either.
#[test]
fn killed_at_any_moment() {
    let Some((folder, program)) = program() else { return };
    let added = folder.path().join("added");
    add(&program, &[], &added);
    let (before, after) = (fs::read(&program).unwrap(), fs::read(&added).unwrap());
    let mut whole = [0, 0];
    for round in 0..60u64 {
        let mut running = backtrail().args(["sframe", "add", "-q"]).arg(&program).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(round * 400));
        let _ = running.kill();
        running.wait().unwrap();
        let now = fs::read(&program).unwrap();
        assert!(now == before || now == after, "half a file after {round}");
        whole[usize::from(now == after)] += 1;
        fs::write(&program, &before).unwrap();
    }
    assert!(whole[0] > 0, "no run was killed before its end: {whole:?}");
}

/// A disk that is full, and a folder that can't be written: a file system of its own, which only
/// root can mount.
#[test]
fn a_full_disk_leaves_the_file() {
    let Some((folder, program)) = program() else { return };
    let size = fs::metadata(&program).unwrap().len() * 3 / 2;
    let Some(mounted) = Mounted::tmpfs(&folder.path().join("mount"), &size.to_string()) else {
        return;
    };
    let file = mounted.path().join("program");
    fs::copy(&program, &file).unwrap();
    is_refused(&file, "No space left on device");
    let remounted = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(mounted.path())
        .status()
        .unwrap();
    assert!(remounted.success());
    is_refused(&file, "Read-only file system");
}

/// What another tool has changed after a table was added is not undone.
#[test]
fn later_changes_are_kept() {
    let Some((folder, program)) = program() else { return };
    let added = folder.path().join("added");
    add(&program, &[], &added);
    let mut bytes = fs::read(&added).unwrap();
    let text = backtrail_testkit::elf_file::section(&bytes, ".comment").unwrap();
    bytes[text.start] = b'!';
    let changed = folder.path().join("changed");
    fs::write(&changed, &bytes).unwrap();
    // Not where the edit was: undone all the same, with the change.
    sframe(0, &["strip".as_ref(), changed.as_os_str()]);
    let mut expected = fs::read(&program).unwrap();
    let text = backtrail_testkit::elf_file::section(&expected, ".comment").unwrap();
    expected[text.start] = b'!';
    assert!(fs::read(&changed).unwrap() == expected);
    // In the headers: only the table goes.
    bytes[9] ^= 1;
    fs::write(&changed, &bytes).unwrap();
    sframe(0, &["strip".as_ref(), changed.as_os_str()]);
    assert_eq!(segments(&changed, "GNU_SFRAME"), 0);
    assert_eq!(fs::read(&changed).unwrap()[9], bytes[9]);
    fs::set_permissions(&changed, fs::Permissions::from_mode(0o755)).unwrap();
    let told = run(&mut Command::new(&changed)).stdout;
    assert!(told.contains("AT_PHDR agrees"), "{told}");
    readelf_is_content(Machine::X86_64, &changed);
}
