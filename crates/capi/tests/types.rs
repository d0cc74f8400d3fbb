//! The types functions of the C interface, called from C and from C++.

use crate::common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::{available, command, scratch};
use common::{Link, compile, run};

const LIMIT: Duration = Duration::from_secs(60);

const SOURCE: &str = "
enum colour { RED, GREEN };
struct foo { int bar; unsigned low : 3; enum colour colour; struct foo *next; };
int add(struct foo *foo, const char *name, ...) { return foo->bar + name[0]; }
struct foo head;
";

fn compiled(folder: &Path, flags: &[&str]) -> Option<String> {
    let (source, library) = (
        folder.join("source.c"),
        folder.join(format!("library{}.so", flags.len())),
    );
    fs::write(&source, SOURCE).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-w", "-shared", "-fPIC"])
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&library);
    let finished = available(command::run(&mut gcc, LIMIT))?;
    assert!(finished.status.success(), "{}", finished.describe());
    Some(library.to_str().unwrap().to_owned())
}

#[test]
fn found_and_walked() {
    let folder = scratch();
    let (Some(ctf), Some(dwarf)) = (
        compiled(folder.path(), &["-gctf"]),
        compiled(folder.path(), &["-g", "-gdwarf-5"]),
    ) else {
        return;
    };
    let expected = "foo: kind 6, 24 bytes, 4 members
member int bar at 0 bits 0
member unsigned int low at 32 bits 3
member enum colour colour at 64 bits 0
member struct foo *next at 128 bits 0
argument struct foo * at 0 bits 0
argument const char * at 0 bits 0
1
1 types
";
    for (source, link) in [
        ("types.c", Link::Shared),
        ("types.c", Link::Static),
        ("types_cpp.cc", Link::Shared),
    ] {
        let Some(program) = compile(source, &[], link) else {
            return;
        };
        for (file, debug) in [(&ctf, "0"), (&dwarf, "1")] {
            let finished = run(&program, &[file, "-", "struct foo", "add", debug]);
            assert!(finished.status.success(), "{source} {file}: {}", finished.describe());
            assert_eq!(finished.stdout, expected, "{source} {file}");
        }
        for (file, told) in [
            (dwarf.as_str(), "open: No data available\n"),
            ("/dev/null/nothing", "open: Not a directory\n"),
            ("/etc/passwd", "open: Bad message\n"),
        ] {
            assert_eq!(run(&program, &[file]).stdout, told, "{file}");
        }
    }
}

#[test]
fn no_call_leaves_a_thread_or_a_lock_behind() {
    let folder = scratch();
    let Some(dwarf) = compiled(folder.path(), &["-g", "-gdwarf-5"]) else {
        return;
    };
    for link in [Link::Shared, Link::Static] {
        let Some(program) = compile("after_fork.c", &[], link) else {
            return;
        };
        let finished = run(&program, &[&dwarf]);
        let expected = "parent: 0, 1 threads\nchild: 0, 1 threads\n";
        assert_eq!(finished.stdout, expected, "{}", finished.describe());
    }
}
