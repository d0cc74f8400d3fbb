//! Files that change places, share or fake their identity, or whose file system never answers,
//! while their programs run.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::command::{self, Finished, Running, Signal};
use backtrail_testkit::mounted::Mounted;
use backtrail_testkit::skip;
use rustix::mount::MountFlags;

use crate::common::{LIMIT, Setup, text, without_sampling};

/// Compiles a program that waits in a function of this name.
fn program(setup: &Setup, path: &Path, function: &str, flags: &[&str]) -> Option<()> {
    let source = format!(
        "#include <unistd.h>\n__attribute__((noipa)) int {function}(void) {{ return pause(); }}\n\
         int main(void) {{ write(1, \"ready\\n\", 6); return {function}() + 1; }}\n"
    );
    let source = setup.file(&format!("{function}.c"), source.as_bytes());
    let mut compile = Command::new("gcc");
    compile.args(["-O1", "-g"]).args(flags).arg(&source).arg("-o").arg(path);
    let is_built = compile.status().is_ok_and(|status| status.success());
    if !is_built {
        skip("gcc");
    }
    is_built.then_some(())
}

fn start(program: &Path) -> Running {
    let running = command::start(&mut Command::new(program), LIMIT).unwrap();
    assert!(running.wait_for_output("ready"));
    running
}

fn stack_of(setup: &Setup, running: &Running, arguments: &[&str]) -> Finished {
    let pid = running.pid().to_string();
    let finished = command::run(
        &mut setup.backtrail.command([&["stack", &pid], arguments].concat()),
        LIMIT,
    )
    .unwrap();
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    finished
}

fn folder(setup: &Setup, name: &str) -> PathBuf {
    let folder = setup.path(name);
    fs::create_dir(&folder).unwrap();
    folder
}

#[test]
fn a_folder_that_is_mounted_over_a_program_has_none_of_its_names() {
    let setup = without_sampling();
    let (own, other) = (folder(&setup, "own"), folder(&setup, "other"));
    let built = program(&setup, &own.join("p"), "own_function", &["-Wl,--build-id=none"]);
    let built = built.and_then(|()| program(&setup, &other.join("p"), "other_function", &["-Wl,--build-id=none"]));
    if built.is_none() {
        return;
    }
    let running = start(&own.join("p"));
    if rustix::mount::mount_bind(&other, &own).is_err() {
        return skip("no right to mount");
    }
    let mounted = Mounted::new(own);
    let finished = stack_of(&setup, &running, &[]);
    drop(mounted);
    running.signal(Signal::KILL);
    assert!(
        finished.stdout.contains("own_function") && !finished.stdout.contains("other_function"),
        "{}",
        finished.describe()
    );
}

#[test]
fn a_renamed_program_keeps_its_names() {
    let setup = without_sampling();
    let (own, other) = (setup.path("one"), setup.path("other"));
    let built = program(&setup, &own, "own_function", &["-Wl,--build-id=none"]);
    if built
        .and_then(|()| program(&setup, &other, "other_function", &["-Wl,--build-id=none"]))
        .is_none()
    {
        return;
    }
    let running = start(&own);
    fs::rename(&own, setup.path("elsewhere")).unwrap();
    fs::rename(&other, &own).unwrap();
    let finished = stack_of(&setup, &running, &[]);
    running.signal(Signal::KILL);
    assert!(!finished.stdout.contains("other_function"), "{}", finished.describe());
    if rustix::process::geteuid().is_root() {
        assert!(finished.stdout.contains("own_function"), "{}", finished.describe());
    }
}

#[test]
fn two_files_with_one_build_id_have_their_own_names() {
    let setup = without_sampling();
    let id = ["-Wl,--build-id=0x1122334455667788990011223344556677889900"];
    for name in ["first_function", "second_function", "first_function"] {
        let path = setup.path(name);
        if program(&setup, &path, name, &id).is_none() {
            return;
        }
        let running = start(&path);
        let finished = stack_of(&setup, &running, &[]);
        running.signal(Signal::KILL);
        let others = ["first_function", "second_function"]
            .into_iter()
            .filter(|other| *other != name);
        let has_others = others
            .into_iter()
            .any(|other| finished.stdout.contains(&format!("in {other}")));
        assert!(
            finished.stdout.contains(&format!("in {name}")) && !has_others,
            "{}",
            finished.describe()
        );
    }
}

#[test]
fn a_build_id_may_have_ten_megabytes() {
    let setup = without_sampling();
    let note = ".section .note.gnu.build-id,\"a\",@note\n.long 4\n.long 10485760\n.long 3\n.asciz \"GNU\"\n\
        .fill 10485760, 1, 0x5a\n.section .note.GNU-stack,\"\",@progbits\n";
    let note = setup.file("note.s", note.as_bytes());
    let path = setup.path("long");
    if program(&setup, &path, "long_id", &["-Wl,--build-id=none", text(&note)]).is_none() {
        return;
    }
    let running = start(&path);
    let finished = stack_of(&setup, &running, &[]);
    running.signal(Signal::KILL);
    assert!(finished.stdout.contains("long_id"), "{}", finished.describe());
    assert!(finished.stderr.len() < 4096, "{} bytes", finished.stderr.len());
}

#[test]
fn a_file_system_that_never_answers_costs_seconds() {
    let setup = without_sampling();
    let own = folder(&setup, "own");
    let path = own.join("p");
    if program(&setup, &path, "own_function", &[]).is_none() {
        return;
    }
    let running = start(&path);
    let Ok(server) = File::options().read(true).write(true).open("/dev/fuse") else {
        return skip("no /dev/fuse");
    };
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    if rustix::mount::mount("fuse", &own, "fuse", MountFlags::empty(), data.as_c_str()).is_err() {
        return skip("no right to mount");
    }
    let mounted = Mounted::new(own);
    let finished = stack_of(&setup, &running, &[]);
    // Whoever still waits gets an error.
    drop(mounted);
    drop(server);
    running.signal(Signal::KILL);
    assert!(finished.stdout.contains("pause"), "{}", finished.describe());
}

#[test]
fn a_debug_file_that_cannot_be_read_is_noted() {
    let setup = without_sampling();
    let path = setup.path("stripped");
    let id = "-Wl,--build-id=0xaabbccddeeff0011223344556677889900112233";
    if program(&setup, &path, "has_debug_file", &[id, "-s"]).is_none() {
        return;
    }
    let debug = folder(&setup, "debug");
    let place = debug.join(".build-id/aa");
    fs::create_dir_all(&place).unwrap();
    let place = place.join("bbccddeeff0011223344556677889900112233.debug");
    let running = start(&path);
    let without = stack_of(&setup, &running, &["--debug-dir", text(&debug)]);
    assert!(!without.stderr.contains("debug files"), "{}", without.describe());
    let make = |kind: &str| match kind {
        "pipe" => rustix::fs::mkfifoat(rustix::fs::CWD, &place, rustix::fs::Mode::RUSR).unwrap(),
        "text" => fs::write(&place, "no debug file").unwrap(),
        _ => fs::copy(&path, &place).map(drop).unwrap(),
    };
    for (kind, is_noted) in [("pipe", true), ("text", true), ("good", false)] {
        make(kind);
        let finished = stack_of(&setup, &running, &["--debug-dir", text(&debug)]);
        assert_eq!(
            finished.stderr.contains("debug files"),
            is_noted,
            "{kind}: {}",
            finished.describe()
        );
        fs::remove_file(&place).unwrap();
    }
    running.signal(Signal::KILL);
}
