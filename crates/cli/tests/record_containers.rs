//! Programs in other roots, as in containers: each has the names of its own file, whatever else has
//! the same path.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_testkit::command::{self, Finished};
use backtrail_testkit::{available, skip};
use common::{LIMIT, Setup, setup, text};

/// Computes for as many milliseconds of CPU time as its argument says, in a function and under a
/// name that its build chooses: so each sample says which function it was in.
const SOURCE: &str = r#"
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#define STRING(name) #name
#define NAME(name) STRING(name)
volatile unsigned long sink;
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}
__attribute__((noinline)) void FUNCTION(double end) {
    while (now() < end)
        for (int i = 0; i < 100000; i++) sink += i;
}
int main(int count, char **arguments) {
    (void) count;
    prctl(PR_SET_NAME, NAME(FUNCTION));
    FUNCTION(now() + atof(arguments[1]));
    return 0;
}
"#;

const WITHOUT_BUILD_ID: &[&str] = &["-Wl,--build-id=none"];
const WITH_BUILD_ID: &[&str] = &["-Wl,--build-id"];
/// Different programs with the same build ID.
const WITH_ONE_BUILD_ID: &[&str] = &["-Wl,--build-id=0x5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e"];

/// Enters a root and runs what follows, as container runtimes do.
const PIVOT: &str = r#"mount --bind "$0" "$0" && cd "$0" && mkdir -p before && pivot_root . before && exec "$@""#;

struct Roots {
    setup: Setup,
}

impl Roots {
    fn new() -> Option<Roots> {
        let setup = setup()?;
        setup.file("source.c", SOURCE.as_bytes());
        let may_enter = Command::new("unshare").args(["-m", "chroot", "/", "true"]).status();
        if !may_enter.is_ok_and(|status| status.success()) {
            skip("no permission for mount namespaces and chroot");
            return None;
        }
        Some(Roots { setup })
    }

    fn build(&self, function: &str, flags: &[&str], place: &Path) -> Option<()> {
        fs::create_dir_all(place.parent()?).expect("the test's directory can be written");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-g", &format!("-DFUNCTION={function}")]).args(flags);
        gcc.arg(self.setup.path("source.c")).arg("-o").arg(place);
        let built = available(command::run(&mut gcc, LIMIT))?;
        assert!(built.status.success(), "{}", built.describe());
        Some(())
    }

    /// A root with libraries, and with a program at the same path as `program` outside.
    fn root(&self, name: &str, program: &Path, flags: &[&str]) -> Option<PathBuf> {
        let root = self.setup.path(name);
        let place = root.join(program.strip_prefix("/").ok()?);
        self.build(&format!("only_in_{name}"), flags, &place)?;
        let needed = available(command::run(Command::new("ldd").arg(&place), LIMIT))?;
        for file in needed.stdout.split_whitespace().filter(|word| word.starts_with('/')) {
            let copy = root.join(file.trim_start_matches('/'));
            fs::create_dir_all(copy.parent()?).expect("the test's directory can be written");
            fs::copy(file, copy).expect("a library that ldd names");
        }
        Some(root)
    }

    fn record(&self, trace: &Path, before: &str, options: &[&str], script: &str) -> Finished {
        let folder = self.setup.path("");
        let recorded = ["sh", "-ec", script, text(&folder), PIVOT];
        let record = self.setup.backtrail.record(trace, options, &recorded);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!(r#"{before} "$0" "$@""#)]);
        // What it says is looked at.
        shell
            .arg(record.get_program())
            .args(record.get_args().filter(|option| *option != "-q"));
        self.setup.backtrail.surroundings(&mut shell);
        let finished = command::run(&mut shell, LIMIT).expect("there is a shell");
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        finished
    }

    /// Samples in functions of the source, by process and function.
    fn samples(&self, trace: &Path) -> Vec<(String, String, u64)> {
        let folded = self.setup.backtrail.folded_with(trace, &[]);
        let own = |(stack, count): (Vec<String>, u64)| {
            let process = stack.first()?.clone();
            let is_its = |frame: &&String| frame.starts_with("only_in_") || frame.contains("program");
            let function = stack[1..].iter().rev().find(is_its)?.clone();
            process.starts_with("only_in_").then_some((process, function, count))
        };
        folded.into_iter().filter_map(own).collect()
    }

    /// Fails unless all samples of these programs are in their own functions.
    fn all_have_their_own_names(&self, trace: &Path, functions: &[&str]) {
        let samples = self.samples(trace);
        for (process, function, _) in &samples {
            assert_eq!(process, function, "{samples:?}");
        }
        for function in functions {
            let count: u64 = samples
                .iter()
                .filter(|(process, ..)| process == function)
                .map(|(.., count)| count)
                .sum();
            assert!(count > 20, "{function}: {samples:?}");
        }
    }
}

/// All programs have ended when their names are looked up. `$0` is the folder of the roots, `$1`
/// enters one.
/// As services that systemd hardens: their view of the files is their own, and the files are not.
#[test]
fn a_namespace_alone_makes_no_other_file() {
    let Some(roots) = Roots::new() else { return };
    let (program, trace) = (roots.setup.path("program"), roots.setup.path("trace"));
    let Some(()) = roots.build("only_in_service", WITH_BUILD_ID, &program) else {
        return;
    };
    roots.record(&trace, "exec", &["--no-symbols"], r#"unshare -m "$0/program" 500"#);
    roots.all_have_their_own_names(&trace, &["only_in_service"]);
    let mut show = roots.setup.backtrail.command(["trace", "show"]);
    let shown = command::run(show.arg(&trace), LIMIT).expect("the binary is there");
    let modules: Vec<&str> = shown.stdout.lines().filter(|line| line.contains("bin_info")).collect();
    assert!(modules.iter().any(|line| line.contains("/program\"")), "{modules:?}");
    assert!(modules.iter().all(|line| line.contains("elsewhere = 0")), "{modules:?}");
}

#[test]
fn programs_of_one_path_have_the_names_of_their_own_files() {
    let Some(roots) = Roots::new() else { return };
    let program = roots.setup.path("program");
    for (number, flags) in [WITHOUT_BUILD_ID, WITH_BUILD_ID, WITH_ONE_BUILD_ID].iter().enumerate() {
        let all = || {
            roots.build("only_in_none", flags, &program)?;
            roots.root("one", &program, flags)?;
            roots.root("two", &program, flags)
        };
        if all().is_none() {
            return;
        }
        let script = r#"
            unshare -m sh -ec "$1" "$0"one "$0"program 200
            chroot "$0"two "$0"program 200
            "$0"program 200
            unshare -m sh -ec "$1" "$0"two "$0"program 200
            sleep 0.3"#;
        let functions = ["only_in_none", "only_in_one", "only_in_two"];
        let trace = roots.setup.path(&format!("trace{number}"));
        roots.record(&trace, "exec", &[], script);
        roots.all_have_their_own_names(&trace, &functions);

        // Without names in the recording, those of another file are not taken instead, unless its
        // build ID says that it is the same.
        if *flags == WITH_ONE_BUILD_ID {
            continue;
        }
        let bare = roots.setup.path(&format!("bare{number}"));
        roots.record(&bare, "exec", &["--no-symbols"], script);
        let wrong =
            |(process, function, _): &&(String, String, u64)| function.starts_with("only_in_") && process != function;
        let samples = roots.samples(&bare);
        assert_eq!(samples.iter().find(wrong), None, "{samples:?}");
    }
}

/// Layers of an overlay file system are other files for each mount, with the same inodes.
#[test]
fn containers_on_overlays() {
    let Some(roots) = Roots::new() else { return };
    let program = roots.setup.path("program");
    if roots.build("only_in_none", WITHOUT_BUILD_ID, &program).is_none()
        || roots.root("lower", &program, WITHOUT_BUILD_ID).is_none()
    {
        return;
    }
    for name in ["first", "second", "work1", "work2", "merged1", "merged2"] {
        fs::create_dir(roots.setup.path(name)).expect("the test's directory can be written");
    }
    // The second container has another program than the image.
    let inside = program.strip_prefix("/").expect("it is absolute");
    let changed = roots.setup.path("second").join(inside);
    if roots.build("only_in_second", WITHOUT_BUILD_ID, &changed).is_none() {
        return;
    }
    let script = r#"cd "$0"
        mount -t overlay none -o lowerdir=lower,upperdir=first,workdir=work1 merged1 || exit 0
        mount -t overlay none -o lowerdir=lower,upperdir=second,workdir=work2 merged2
        chroot merged1 "$0"program 1000; chroot merged2 "$0"program 1000
        umount -l merged1 merged2"#;
    let trace = roots.setup.path("trace");
    roots.record(&trace, "exec unshare -m", &[], script);
    if roots.samples(&trace).is_empty() {
        skip("no overlay file systems");
        return;
    }
    roots.all_have_their_own_names(&trace, &["only_in_lower", "only_in_second"]);
}

#[test]
fn a_containers_debug_files_give_lines() {
    let Some(roots) = Roots::new() else { return };
    let program = roots.setup.path("program");
    let Some(root) = roots.root("one", &program, WITHOUT_BUILD_ID) else {
        return;
    };
    let inside = root.join(program.strip_prefix("/").expect("it is absolute"));
    let folder = root
        .join("usr/lib/debug")
        .join(text(roots.setup.path("").as_path()).trim_start_matches('/'));
    fs::create_dir_all(&folder).expect("the test's directory can be written");
    let debug = folder.join("program.debug");
    for arguments in [
        vec!["--only-keep-debug", text(&inside), text(&debug)],
        vec![
            "--strip-all",
            &format!("--add-gnu-debuglink={}", text(&debug)),
            text(&inside),
        ],
    ] {
        let Some(done) = available(command::run(Command::new("objcopy").args(arguments), LIMIT)) else {
            return;
        };
        assert!(done.status.success(), "{}", done.describe());
    }
    let trace = roots.setup.path("trace");
    roots.record(&trace, "exec", &[], r#"chroot "$0"one "$0"program 500"#);
    roots.all_have_their_own_names(&trace, &["only_in_one"]);
    let lines = roots.setup.backtrail.command(["report", "--by", "line", text(&trace)]);
    let lines = command::run(&mut { lines }, LIMIT).expect("the binary is there").stdout;
    assert!(lines.contains("source.c:"), "{lines}");
}

#[test]
fn what_runs_now_in_a_container_has_its_names() {
    let Some(roots) = Roots::new() else { return };
    let program = roots.setup.path("program");
    let all = || {
        roots.build("only_in_none", WITHOUT_BUILD_ID, &program)?;
        roots.root("one", &program, WITHOUT_BUILD_ID)
    };
    if all().is_none() {
        return;
    }
    let folder = roots.setup.path("");
    let script = r#"chroot "$0"one "$0"program 700"#;
    let mut top = roots.setup.backtrail.command(["top", "--interval", "0.3", "--"]);
    top.args(["sh", "-ec", script, text(&folder)]);
    let shown = command::run(&mut top, LIMIT).expect("the binary is there");
    assert_eq!(shown.code(), 0, "{}", shown.describe());
    assert!(shown.stdout.contains("only_in_one"), "{}", shown.describe());
    assert!(!shown.stdout.contains("only_in_none"), "{}", shown.describe());
}

/// Another program is at the path when names are looked up.
#[test]
fn a_replaced_program_keeps_its_names() {
    let Some(roots) = Roots::new() else { return };
    let (old, new) = (roots.setup.path("program"), roots.setup.path("new"));
    for (number, flags) in [WITHOUT_BUILD_ID, WITH_BUILD_ID].iter().enumerate() {
        let built = roots.build("only_in_old", flags, &old);
        if built.and_then(|()| roots.build("only_in_new", flags, &new)).is_none() {
            return;
        }
        let trace = roots.setup.path(&format!("trace{number}"));
        let script = r#""$0"program 600 & sleep 0.3; mv "$0"new "$0"program; wait; "$0"program 400"#;
        roots.record(&trace, "exec", &[], script);
        roots.all_have_their_own_names(&trace, &["only_in_old", "only_in_new"]);
    }
}

/// As tests are: built, run and removed. A series looks names up in another process.
#[test]
fn a_removed_program_keeps_its_names() {
    let Some(roots) = Roots::new() else { return };
    let program = roots.setup.path("program");
    let Some(()) = roots.build("only_in_removed", WITH_BUILD_ID, &program) else {
        return;
    };
    let script = r#"cp "$0"program "$0"copied; "$0"copied 500; rm "$0"copied; sleep 0.3"#;
    let trace = roots.setup.path("trace");
    roots.record(&trace, "exec", &[], script);
    roots.all_have_their_own_names(&trace, &["only_in_removed"]);
    let folder = roots.setup.path("recordings");
    roots.record(&folder, "exec", &["--rotate", "1min"], script);
    let recordings = fs::read_dir(&folder).expect("the recorder has made it");
    for recording in recordings {
        roots.all_have_their_own_names(&recording.expect("it is read").path(), &["only_in_removed"]);
    }
}

/// A program without any path, and one whose path is no text.
#[test]
fn programs_without_a_path_that_can_be_written_have_names() {
    const IN_MEMORY: &str = "import os, sys; memory = os.memfd_create('program'); \
                             os.write(memory, open(sys.argv[1], 'rb').read()); \
                             os.execv(f'/proc/self/fd/{memory}', ['program', '500'])";
    let Some(roots) = Roots::new() else { return };
    let (one, two) = (roots.setup.path("one"), roots.setup.path("two"));
    let built = roots.build("only_in_memory", WITH_BUILD_ID, &one);
    if built
        .and_then(|()| roots.build("only_in_no_text", WITH_BUILD_ID, &two))
        .is_none()
    {
        return;
    }
    if available(command::run(Command::new("python3").args(["-c", "1"]), LIMIT)).is_none() {
        return;
    }
    let script =
        format!(r#"name=$(printf '\377'); mv "$0"two "$0$name"; "$0$name" 500; python3 -c "{IN_MEMORY}" "$0"one"#);
    let trace = roots.setup.path("trace");
    roots.record(&trace, "exec", &[], &script);
    roots.all_have_their_own_names(&trace, &["only_in_memory", "only_in_no_text"]);
}

/// Each recording has its names, which another process looks up.
#[test]
fn several_recordings_of_a_container() {
    let Some(roots) = Roots::new() else { return };
    let program = roots.setup.path("program");
    if roots.root("one", &program, WITHOUT_BUILD_ID).is_none() {
        return;
    }
    let folder = roots.setup.path("recordings");
    roots.record(
        &folder,
        "exec",
        &["--rotate", "1s"],
        r#"chroot "$0"one "$0"program 2500"#,
    );
    let recordings = fs::read_dir(&folder).expect("the recorder has made it");
    let mut traces: Vec<PathBuf> = recordings.map(|entry| entry.expect("it is read").path()).collect();
    traces.sort();
    assert!(traces.len() >= 3, "{traces:?}");
    let samples: Vec<_> = traces.iter().map(|trace| roots.samples(trace)).collect();
    let with_samples: Vec<_> = samples.iter().filter(|samples| !samples.is_empty()).collect();
    // On a busy machine, it may have ended when the recorder looks at its files for the last part.
    for samples in with_samples.iter().rev().skip(1) {
        for (process, function, _) in *samples {
            assert_eq!(process, function, "{samples:?}");
        }
    }
    // The program runs for 2.5 seconds of processor time, so it is in three of them or more.
    assert!(with_samples.len() >= 3, "{samples:?} of {traces:?}");
}

/// Some files lose their names, and nothing else happens.
#[test]
fn a_small_limit_on_open_files() {
    const PROGRAMS: usize = 40;
    let Some(roots) = Roots::new() else { return };
    let program = roots.setup.path("program");
    let Some(root) = roots.root("one", &program, WITHOUT_BUILD_ID) else {
        return;
    };
    let inside = root.join(program.strip_prefix("/").expect("it is absolute"));
    for number in 0..PROGRAMS {
        let copy = format!("{}{number}", text(&inside));
        fs::copy(&inside, copy).expect("the test's directory can be written");
    }
    let trace = roots.setup.path("trace");
    let script = format!(
        r#"for n in $(seq 0 {}); do chroot "$0"one "$0"program$n 60; done"#,
        PROGRAMS - 1
    );
    let finished = roots.record(&trace, "ulimit -n 80; exec", &[], &script);
    let samples = roots.samples(&trace);
    let has_name = |named: bool| {
        samples
            .iter()
            .filter(|(_, function, _)| function.starts_with("only_in_") == named)
            .count()
    };
    assert!(has_name(true) > 0 && has_name(false) > 0, "{samples:?}");
    assert!(
        finished.stderr.contains("files of containers"),
        "{}",
        finished.describe()
    );
    assert!(finished.stderr.contains("ulimit -n"), "{}", finished.describe());
}
