//! What a crash report must not do: pass on what the program holds, or wait for ever.

use std::fs::{self, Permissions};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::{command, skip};

use crate::common::{Link, Program, compile, run};

const LIMIT: Duration = Duration::from_secs(60);

/// A helper that writes the environment and the descriptors that it got to a file beside it.
const HELPER: &str = r#"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern char **environ;
int main(int argc, char **argv) {
    char path[4096];
    snprintf(path, sizeof path, "%s.out", argv[0]);
    FILE *out = fopen(path, "w");
    for (char **e = environ; *e; e++) fprintf(out, "env %s\n", *e);
    DIR *fds = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(fds));) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] != '.' && fd != fileno(out) && fd != dirfd(fds)) fprintf(out, "fd %d\n", fd);
    }
    fprintf(out, "end %d\n", argc);
    return 0;
}
"#;

fn helper(folder: &Path) -> Option<PathBuf> {
    let (source, helper) = (folder.join("helper.c"), folder.join("helper"));
    fs::write(&source, HELPER.trim_start()).unwrap();
    let done = Command::new("cc").arg(&source).arg("-o").arg(&helper).status();
    if !done.is_ok_and(|status| status.success()) {
        skip("no C compiler");
        return None;
    }
    Some(helper)
}

fn crash() -> Option<Program> {
    compile(
        "crash.c",
        &["-rdynamic", "-Wno-infinite-recursion", "-Wno-div-by-zero"],
        Link::Static,
    )
}

#[test]
fn a_helper_gets_no_environment_and_no_descriptors() {
    let Some(program) = crash() else { return };
    let Some(helper) = helper(program.folder.path()) else {
        return;
    };
    let mut inherits = Command::new("sh");
    inherits
        .args(["-c", "exec 7</dev/null; exec 9</dev/null; exec \"$0\" segv \"$1\""])
        .arg(&program.path)
        .arg(&helper)
        .env("SECRET", "1");
    let finished = command::run(&mut inherits, LIMIT).unwrap();
    assert_eq!(finished.status.signal(), Some(libc::SIGSEGV), "{}", finished.describe());
    let seen = fs::read_to_string(helper.with_extension("out")).unwrap();
    assert_eq!(seen, "fd 0\nfd 1\nfd 2\nend 1\n");
}

#[test]
fn a_program_with_more_rights_than_its_caller_starts_no_helper() {
    let Some(program) = crash() else { return };
    let Some(helper) = helper(program.folder.path()) else {
        return;
    };
    fs::set_permissions(program.folder.path(), Permissions::from_mode(0o777)).unwrap();
    let as_nobody = |path: &Path| {
        let mut run = Command::new("setpriv");
        run.args(["--reuid=65534", "--clear-groups"])
            .arg(path)
            .args(["segv"])
            .arg(&helper);
        command::run(&mut run, LIMIT).ok()
    };
    let out = helper.with_extension("out");
    let privileged = program.folder.path().join("privileged");
    fs::copy(&program.path, &privileged).unwrap();
    if chown(&privileged, Some(0), None).is_err() {
        skip("only root can make a set-user-id program");
        return;
    }
    fs::set_permissions(&privileged, Permissions::from_mode(0o4755)).unwrap();
    let Some(finished) = as_nobody(&privileged) else {
        skip("no setpriv");
        return;
    };
    assert_eq!(finished.status.signal(), Some(libc::SIGSEGV), "{}", finished.describe());
    assert!(finished.stderr.contains("end: "), "{}", finished.describe());
    assert!(!out.exists(), "{}", fs::read_to_string(&out).unwrap_or_default());
    as_nobody(&program.path).unwrap();
    assert!(out.exists(), "the same without more rights starts it");
}

/// A pipe that is full, and that nobody reads.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(writer.as_fd()).unwrap();
    rustix::fs::fcntl_setfl(writer.as_fd(), flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    rustix::fs::fcntl_setfl(writer.as_fd(), flags).unwrap();
    (reader, writer)
}

/// These block for ever if the report does.
#[test]
fn a_report_that_nobody_takes_ends() {
    let Some(program) = crash() else { return };
    let never_ends = program.folder.path().join("never_ends");
    fs::write(&never_ends, "#!/bin/sh\nexec sleep 300 >/dev/null 2>&1\n").unwrap();
    fs::set_permissions(&never_ends, Permissions::from_mode(0o755)).unwrap();
    let never_ends = never_ends.to_str().unwrap();
    for how in [&["segv"][..], &["abort"], &["segv", "/bin/cat"], &["segv", never_ends]] {
        let (_reader, writer) = full_pipe();
        let status = Command::new(&program.path).args(how).stderr(writer).status().unwrap();
        let signal = if how[0] == "abort" {
            libc::SIGABRT
        } else {
            libc::SIGSEGV
        };
        assert_eq!(status.signal(), Some(signal), "{how:?}");
    }
    // With a reader, only the helper is not waited for.
    let finished = run(&program, &["segv", never_ends]);
    assert_eq!(finished.status.signal(), Some(libc::SIGSEGV), "{}", finished.describe());
    assert!(finished.stderr.contains("module: "), "{}", finished.describe());
}

/// A write blocks although there was room for it: another process takes the room in between.
#[test]
fn a_report_whose_writes_block_ends() {
    let Some(program) = crash() else { return };
    let (reader, writer) = full_pipe();
    let mut once = writer.try_clone().unwrap();
    let filler = std::thread::spawn(move || while once.write(&[b'y'; 4096]).is_ok() {});
    let mut taken = reader.try_clone().unwrap();
    let taker = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        for _ in 0..200 {
            let _ = taken.read(&mut bytes);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let status = Command::new(&program.path).arg("segv").stderr(writer).status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    taker.join().unwrap();
    drop(reader);
    filler.join().unwrap();
}
