//! Programs that crash, and the reports they write.

use crate::common;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;

use backtrail_testkit::crashes::{DEATHS, PLACES, Reporter, death};
use backtrail_testkit::{available, command, debugger, scratch, skip};
use common::{Link, Program, built_program, compile, libraries, preload, run};

const FLAGS: &[&str] = &[
    "-fomit-frame-pointer",
    "-rdynamic",
    "-Wno-infinite-recursion",
    "-Wno-div-by-zero",
];

/// A report: its signal, its frames, and its lines.
struct Report {
    frames: Vec<String>,
    lines: Vec<String>,
}

impl Report {
    fn of(program: &Program, how: &str, signal: i32, name: &str) -> Report {
        let finished = run(program, &[how]);
        assert_eq!(finished.status.signal(), Some(signal), "{how}: {}", finished.describe());
        let report = Report::from(&finished.stderr);
        let heads = report.heads();
        assert_eq!(heads.len(), 1, "{how}: {}", finished.describe());
        assert!(
            heads[0].starts_with(&format!("crash: {name} (signal {signal}, ")),
            "{}",
            heads[0]
        );
        report
    }

    fn from(text: &str) -> Report {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let frames = lines.iter().filter(|line| line.starts_with('#')).cloned().collect();
        Report { frames, lines }
    }

    fn heads(&self) -> Vec<&String> {
        self.lines.iter().filter(|line| line.starts_with("crash: ")).collect()
    }

    fn line(&self, start: &str) -> &str {
        let mut found = self.lines.iter().filter_map(|line| line.strip_prefix(start));
        found.next().unwrap_or_else(|| panic!("{start}: {:?}", self.lines))
    }

    /// The program's functions in the stack, named by addr2line.
    fn functions(&self, program: &Program) -> Vec<String> {
        let path = std::fs::canonicalize(&program.path).unwrap();
        let inside = format!(" {}(+", path.display());
        let offsets = self.frames.iter().enumerate().filter_map(|(index, frame)| {
            let offset = frame.split(&inside).nth(1)?.split(')').next()?;
            let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap();
            assert_eq!(frame.ends_with(" pc"), index == 0, "{frame}");
            Some(format!("{:#x}", offset - u64::from(!frame.ends_with(" pc"))))
        });
        let mut resolve = std::process::Command::new("addr2line");
        resolve.arg("-fe").arg(&path).args(offsets);
        let resolved = available(command::run(&mut resolve, std::time::Duration::from_secs(30)));
        let text = resolved.map(|resolved| resolved.stdout).unwrap_or_default();
        text.lines().step_by(2).map(str::to_owned).collect()
    }
}

/// Whether these occur in this order, perhaps with others between them.
fn has_in_order(functions: &[String], expected: &[&str]) -> bool {
    let mut rest = functions.iter();
    expected.iter().all(|name| rest.any(|function| function == name))
}

#[test]
fn every_way_to_crash_is_reported_and_kills_by_its_own_signal() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    for (how, signal, name, expected) in [
        ("segv", libc::SIGSEGV, "SIGSEGV", &["touch", "die", "main"][..]),
        ("null", libc::SIGSEGV, "SIGSEGV", &["call_null", "die", "main"]),
        ("division", libc::SIGFPE, "SIGFPE", &["die", "main"]),
        ("raise", libc::SIGFPE, "SIGFPE", &["die", "main"]),
        ("abort", libc::SIGABRT, "SIGABRT", &["die", "main"]),
        ("heap", libc::SIGABRT, "SIGABRT", &["corrupt", "die", "main"]),
        // The stack above the buffer is overwritten.
        ("smash", libc::SIGABRT, "SIGABRT", &["smash"]),
        (
            "overflow",
            libc::SIGSEGV,
            "SIGSEGV",
            &["overflow", "overflow", "die", "main"],
        ),
        (
            "thread",
            libc::SIGSEGV,
            "SIGSEGV",
            &["overflow", "overflow", "overflow_in_thread"],
        ),
        ("twice", libc::SIGSEGV, "SIGSEGV", &["touch", "touch_in_thread"]),
    ] {
        // Its quotient is 0 there.
        if how == "division" && cfg!(target_arch = "aarch64") {
            let finished = run(&program, &[how]);
            assert_eq!((finished.code(), finished.stderr.as_str()), (2, ""), "{how}");
            continue;
        }
        let report = Report::of(&program, how, signal, name);
        let functions = report.functions(&program);
        if functions.is_empty() {
            // There is no addr2line; the skip was reported.
            return;
        }
        assert!(
            has_in_order(&functions, expected),
            "{how}: {functions:?} {:?}",
            report.lines
        );
        let end = report.line("end: ");
        assert_eq!(
            end == "the outermost frame",
            how != "smash",
            "{how}: {:?}",
            report.lines
        );
        let cbf = report.line("cbf: ");
        assert!(cbf.starts_with("02") && cbf.len() > 8, "{how}: {cbf}");
    }
}

/// Each waits in a system call, in functions of its own.
#[test]
fn other_threads_are_reported_and_the_code_around_the_fault() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    for (how, signal, name) in [
        ("parked", libc::SIGSEGV, "SIGSEGV"),
        ("parked-abort", libc::SIGABRT, "SIGABRT"),
    ] {
        let report = Report::of(&program, how, signal, name);
        let mut threads: Vec<Vec<&str>> = Vec::new();
        for line in &report.lines {
            match line.strip_prefix("  ") {
                Some(inside) => threads.last_mut().expect("a thread").push(inside),
                None if line.starts_with("thread: ") => threads.push(Vec::new()),
                None => {}
            }
        }
        assert_eq!(threads.len(), 2, "{how}: {:?}", report.lines);
        for lines in threads {
            let frames = lines.iter().filter(|line| line.starts_with('#'));
            let frames: Vec<String> = frames.map(|line| (*line).to_owned()).collect();
            let thread = Report {
                frames,
                lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            };
            assert_eq!(thread.line("end: "), "the outermost frame", "{how}: {lines:?}");
            assert!(thread.line("cbf: ").starts_with("02"), "{how}: {lines:?}");
            assert!(
                thread.frames.len() >= 5 && thread.frames[0].ends_with(" pc"),
                "{how}: {lines:?}"
            );
            let path = std::fs::canonicalize(&program.path).unwrap();
            let own = thread
                .frames
                .iter()
                .filter(|frame| frame.contains(&*path.to_string_lossy()));
            // wait_inside and wait_in_thread.
            assert_eq!(own.count(), 2, "{how}: {lines:?}");
        }
        if how == "parked" {
            let (start, code) = report.line("instructions: 0x").split_once(' ').expect("an address");
            assert_eq!(code.len(), 128, "{code}");
            let pc = report.line("registers: pc 0x").split(' ').next().expect("a number");
            let number = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
            assert_eq!(number(start) + 32, number(pc));
            // touch: mov (%rdi),%eax.
            assert!(
                !cfg!(target_arch = "x86_64") || code[64..].starts_with("8b07"),
                "{code}"
            );
        }
    }
}

/// As in a container without its own `/proc`: there, threads have other numbers.
#[test]
fn threads_are_asked_although_proc_is_that_of_an_outer_pid_namespace() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    let inside = |program: &OsStr, how: &str| {
        let mut unshare = std::process::Command::new("unshare");
        unshare
            .args(["--user", "--map-root-user", "--pid", "--fork"])
            .arg(program)
            .arg(how);
        command::run(
            unshare.env("LD_LIBRARY_PATH", libraries()),
            std::time::Duration::from_secs(60),
        )
    };
    let Some(tried) = available(inside(OsStr::new("true"), "")) else {
        return;
    };
    if !tried.status.success() {
        skip(tried.stderr);
        return;
    }
    // A busy machine may not give both threads their turn in time.
    let mut answered = 0;
    for _ in 0..10 {
        let finished = available(inside(program.path.as_os_str(), "parked")).expect("unshare has just run");
        let report = Report::from(&finished.stderr);
        assert!(
            report.line("crash: ").contains("process 1, thread 1"),
            "{}",
            finished.describe()
        );
        let threads = report.lines.iter().filter_map(|line| line.strip_prefix("thread: "));
        assert_eq!(threads.collect::<Vec<_>>(), ["2", "3"], "{:?}", report.lines);
        let ends = report.lines.iter();
        answered = ends.filter(|line| *line == "  end: the outermost frame").count();
        if answered == 2 {
            break;
        }
    }
    assert_eq!(answered, 2, "threads that have written their stacks");
}

/// A static program without `PT_GNU_EH_FRAME`.
#[test]
fn crashes_of_static_programs() {
    let flags = [FLAGS, &["-static"]].concat();
    let Some(program) = compile("crash.c", &flags, Link::Static) else {
        return;
    };
    for (how, signal, name, expected) in [
        ("segv", libc::SIGSEGV, "SIGSEGV", &["touch", "die", "main"][..]),
        ("null", libc::SIGSEGV, "SIGSEGV", &["call_null", "die", "main"]),
        ("abort", libc::SIGABRT, "SIGABRT", &["die", "main"]),
        ("heap", libc::SIGABRT, "SIGABRT", &["corrupt", "die", "main"]),
    ] {
        let report = Report::of(&program, how, signal, name);
        let functions = report.functions(&program);
        if functions.is_empty() {
            return;
        }
        assert!(
            has_in_order(&functions, expected),
            "{how}: {functions:?} {:?}",
            report.lines
        );
        assert_eq!(report.line("end: "), "the outermost frame", "{how}: {:?}", report.lines);
    }
}

#[test]
fn a_fault_is_told_with_its_address_and_modules_with_their_build_ids() {
    let Some(program) = compile(
        "crash.c",
        &[FLAGS, &["-Wl,--build-id=0x0123456789abcdef"]].concat(),
        Link::Static,
    ) else {
        return;
    };
    let report = Report::of(&program, "segv", libc::SIGSEGV, "SIGSEGV");
    assert!(
        report.line("crash: ").contains(" at address 0x10, process "),
        "{:?}",
        report.lines
    );
    let path = std::fs::canonicalize(&program.path).unwrap();
    let own = format!(" build-id 0123456789abcdef {}", path.display());
    let modules = || report.lines.iter().filter(|line| line.starts_with("module: 0x"));
    assert!(modules().any(|line| line.ends_with(&own)), "{:?}", report.lines);
    assert!(modules().any(|line| line.contains("libc.so")), "{:?}", report.lines);
}

#[test]
fn a_deep_stack_is_told_with_both_ends() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    let report = Report::of(&program, "overflow", libc::SIGSEGV, "SIGSEGV");
    let left_out: usize = report.line("... ").split(' ').next().unwrap().parse().unwrap();
    assert!(left_out > 10_000, "{left_out}");
    let last = report.frames.last().unwrap();
    let number = last[1..].split(' ').next().unwrap();
    assert_eq!(
        number.parse::<usize>().unwrap() + 1,
        left_out + report.frames.len(),
        "{last}"
    );
}

#[test]
fn a_handler_that_was_there_before_comes_after_the_report() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    for how in ["before", "saved"] {
        let finished = run(&program, &[how]);
        assert_eq!(finished.status.code(), Some(42), "{how}: {}", finished.describe());
        assert!(finished.stderr.starts_with("crash: SIGSEGV"), "{}", finished.describe());
    }
}

/// The C library's `abort` kills when its signal's handler returns.
#[test]
fn a_thread_that_aborts_does_not_cut_off_another_one_s_report() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    // Either may be first.
    for _ in 0..20 {
        let finished = run(&program, &["both"]);
        let report = Report::from(&finished.stderr);
        let signal = match report.line("crash: ").starts_with("SIGABRT") {
            true => libc::SIGABRT,
            false => libc::SIGSEGV,
        };
        assert_eq!(report.heads().len(), 1, "{}", finished.describe());
        assert_eq!(finished.status.signal(), Some(signal), "{}", finished.describe());
        assert_eq!(report.line("end: "), "the outermost frame", "{}", finished.describe());
        report.line("thread: ");
    }
}

/// A child of `vfork` writes its report in its parent's memory.
#[test]
fn a_child_of_vfork_that_died_does_not_keep_its_parent_from_reporting() {
    let Some(program) = compile(
        "crash.c",
        &[FLAGS, &["-Wno-deprecated-declarations"]].concat(),
        Link::Shared,
    ) else {
        return;
    };
    let finished = run(&program, &["after-vfork"]);
    assert_eq!(finished.status.signal(), Some(libc::SIGABRT), "{}", finished.describe());
    let report = Report::from(&finished.stderr);
    let names = report.heads().into_iter().map(|head| head.split(' ').nth(1));
    assert!(names.eq([Some("SIGSEGV"), Some("SIGABRT")]), "{}", finished.describe());
    let ends = report.lines.iter().filter(|line| line.starts_with("end: "));
    assert!(ends.eq(["end: the outermost frame"; 2]), "{}", finished.describe());
}

/// Ruby does so, and others that have replaced a handler by `signal`.
#[test]
fn a_handler_that_calls_ours_with_the_number_only_gets_a_report() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    let finished = run(&program, &["chained"]);
    assert_eq!(finished.status.signal(), Some(libc::SIGABRT), "{}", finished.describe());
    let report = Report::from(&finished.stderr);
    assert_eq!(report.heads().len(), 1, "{}", finished.describe());
    report.line("crash: SIGSEGV (signal 11, code 0), process ");
    assert_eq!(report.line("end: "), "the outermost frame");
    let path = std::fs::canonicalize(&program.path).unwrap();
    let inside = format!(" {}(+", path.display());
    let own = report.frames.iter().filter(|frame| frame.contains(&inside)).count();
    // later, touch, die and main, at least.
    assert!(own >= 4, "{:?}", report.frames);
}

#[test]
fn libraries_that_were_loaded_later_are_named() {
    let flags = ["-shared", "-fPIC", "-Wl,--build-id=0x0123456789abcdef"];
    let built = compile("crash_late.c", FLAGS, Link::Shared).zip(compile(
        "../../../testkit/programs/plugin.c",
        &flags,
        Link::Not,
    ));
    let Some((program, plugin)) = built else { return };
    let helper = built_program("backtrail-crash-names");
    let path = plugin.path.to_str().unwrap();
    let finished = run(&program, &[path, helper.to_str().unwrap()]);
    assert_eq!(finished.status.signal(), Some(libc::SIGSEGV), "{}", finished.describe());
    let report = Report::from(&finished.stderr);
    let inside = format!(" {path}(+0x");
    let frames = report.frames.iter().filter(|frame| frame.contains(&inside)).count();
    // Two, in the report and in what the helper repeats.
    assert_eq!(frames, 4, "{}", finished.describe());
    let named = format!(" build-id 0123456789abcdef {path}");
    let modules = report
        .lines
        .iter()
        .filter(|line| line.starts_with("module: ") && line.ends_with(&named));
    assert_eq!(modules.count(), 2, "{}", finished.describe());
    for function in ["    plugin_work+0x", "    plugin_enter+0x"] {
        assert!(
            report.lines.iter().any(|line| line.starts_with(function)),
            "{}",
            finished.describe()
        );
    }
}

#[test]
fn a_helper_reads_the_report_and_one_that_cannot_be_started_does_no_harm() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    let helper = program.folder.path().join("helper");
    std::fs::write(&helper, "#!/bin/sh\nsed 's/^/helper says /'\n").unwrap();
    std::fs::set_permissions(&helper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let finished = run(&program, &["segv", helper.to_str().unwrap()]);
    assert_eq!(finished.status.signal(), Some(libc::SIGSEGV), "{}", finished.describe());
    let told: Vec<&str> = finished
        .stderr
        .lines()
        .filter(|line| !line.starts_with("helper says "))
        .collect();
    let repeated: Vec<&str> = finished
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("helper says "))
        .collect();
    assert!(told.len() > 5, "{}", finished.describe());
    assert_eq!(told, repeated);
    let missing = run(&program, &["segv", "/nonexistent/helper"]);
    assert_eq!(missing.status.signal(), Some(libc::SIGSEGV), "{}", missing.describe());
    assert!(
        missing.stderr.contains("end: the outermost frame"),
        "{}",
        missing.describe()
    );
}

#[test]
fn a_report_that_nobody_reads_does_no_harm() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    for how in [&["segv"][..], &["abort"], &["segv", "/nonexistent/helper"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(&program.path);
        let status = command.args(how).stderr(writer).status().unwrap();
        let signal = if how[0] == "abort" {
            libc::SIGABRT
        } else {
            libc::SIGSEGV
        };
        assert_eq!(status.signal(), Some(signal), "{how:?}");
    }
}

#[test]
fn the_program_for_names_gives_functions_and_lines() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    let helper = built_program("backtrail-crash-names");
    let finished = run(&program, &["segv", helper.to_str().unwrap()]);
    assert_eq!(finished.status.signal(), Some(libc::SIGSEGV), "{}", finished.describe());
    let named: Vec<&str> = finished
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    let [touch, die, ..] = named[..] else {
        panic!("{}", finished.describe());
    };
    assert!(touch.starts_with("touch+0x") && touch.contains("crash.c:"), "{touch}");
    assert!(die.starts_with("die+0x"), "{die}");
    assert!(named.iter().any(|call| call.starts_with("main+0x")), "{named:?}");
}

#[test]
fn the_program_for_names_gives_arguments_where_there_is_a_table_of_them() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    let helper = built_program("backtrail-crash-names");
    let mut add = std::process::Command::new(built_program("backtrail"));
    add.args(["sframe", "add", "--args"]).arg(&program.path);
    let mut strip = std::process::Command::new("strip");
    strip.arg("-g").arg(&program.path);
    for change in [&mut add, &mut strip] {
        let Some(changed) = available(command::run(change, std::time::Duration::from_secs(60))) else {
            return;
        };
        assert!(changed.status.success(), "{}", changed.describe());
    }
    let finished = run(&program, &["segv", helper.to_str().unwrap()]);
    assert_eq!(finished.status.signal(), Some(libc::SIGSEGV), "{}", finished.describe());
    let told = |function: &str| {
        let mut calls = finished.stderr.lines().filter_map(|line| line.strip_prefix("    "));
        calls
            .find(|call| call.starts_with(function))
            .unwrap_or_else(|| panic!("{function}: {}", finished.describe()))
    };
    assert!(told("touch+0x").ends_with(" (where=0x10)"), "{}", finished.describe());
    let die = told("die+0x");
    assert!(
        die.contains(" (how=0x") && die.ends_with(" \"segv\")"),
        "{}",
        finished.describe()
    );
    assert!(told("main+0x").contains("argv=0x"), "{}", finished.describe());
}

/// The kernel's core describes the fault itself, and all threads as they were.
#[test]
fn a_core_is_written_as_without_a_report() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    for (how, innermost) in [("parked", "touch"), ("parked-abort", "")] {
        let folder = scratch();
        let command = ["env", "WITH_CORE=1", program.path.to_str().unwrap(), how].map(OsStr::new);
        let Some(core) = available(debugger::crashed(&folder, &command)) else {
            return;
        };
        let Some(threads) = available(debugger::gdb(&[program.path.as_os_str(), core.as_os_str()])) else {
            return;
        };
        let functions = threads.values().map(|frames| {
            let names = frames.iter().map(|frame| frame.function.clone().unwrap_or_default());
            names.collect::<Vec<String>>()
        });
        let (waiting, crashed): (Vec<_>, Vec<_>) = functions.partition(|names| has_in_order(names, &["wait_inside"]));
        assert_eq!((waiting.len(), crashed.len()), (2, 1), "{how}: {crashed:?}");
        // The C library's, of which only the outermost has a name, and none on AArch64.
        let outermost = |name: &String| match cfg!(target_arch = "aarch64") {
            true => name.is_empty() || name == "thread_start",
            false => name == "clone3",
        };
        let has_ended = |names: &Vec<String>| match &names[..] {
            [.., inside, thread, _, last] => inside == "wait_inside" && thread == "wait_in_thread" && outermost(last),
            _ => false,
        };
        assert!(waiting.iter().all(has_ended), "{how}: {waiting:?}");
        let crashed = &crashed[0];
        assert!(has_in_order(crashed, &["die", "main", "_start"]), "{how}: {crashed:?}");
        assert!(crashed[0].starts_with(innermost), "{how}: {crashed:?}");
        let ours = |name: &String| name.contains("backtrail") || name.contains("signal handler");
        assert!(!crashed.iter().any(ours), "{how}: {crashed:?}");
    }
}

/// A part of what `cargo evidence crashes` tries: each place, and each way to die.
#[test]
fn deaths_are_reported_in_every_place_and_in_every_way() {
    let (library, preloaded) = (libraries().join("libbacktrail.so"), preload());
    let everywhere = PLACES.map(|place| (Reporter::Library(&library), ("overflow", libc::SIGSEGV), place));
    let however = DEATHS.map(|how| (Reporter::Library(&library), how, "filter-list"));
    let in_coroutine = DEATHS.map(|how| (Reporter::Library(&library), how, "coroutine"));
    let without_tables = [
        ("read", libc::SIGSEGV),
        ("alignment", libc::SIGBUS),
        ("data", libc::SIGSEGV),
    ];
    let without_tables = without_tables.map(|how| (Reporter::Preload(&preloaded), how, "coroutine"));
    let unasked =
        ["thread", "early-thread"].map(|place| (Reporter::Preload(&preloaded), ("overflow", libc::SIGSEGV), place));
    let with_messages =
        ["assert", "heap"].map(|how| (Reporter::Library(&library), (how, libc::SIGABRT), "filter-kill"));
    let cases = everywhere
        .into_iter()
        .chain(however)
        .chain(in_coroutine)
        .chain(without_tables)
        .chain(unasked)
        .chain(with_messages);
    for (reporter, (how, signal), place) in cases {
        let Some(died) = available(death(reporter, how, place)) else {
            continue;
        };
        assert_eq!(died.wrong(how, signal), None, "{how} {place}: {}", died.text);
        // The kernel does not know it on x86-64.
        let has_address = how != "address" || !cfg!(target_arch = "x86_64");
        assert!(
            has_address || !died.text.contains(" at address "),
            "{place}: {}",
            died.text
        );
        let message = match how {
            // The C library keeps its message in memory that this filter denies.
            "assert" | "heap" if place == "filter-list" => continue,
            "throw" => "\nmessage: uncaught std::runtime_error: nobody catches this\n",
            "assert" => "Assertion `zero == 1' failed. \n",
            "heap" => "\nmessage: free(): double free",
            _ => continue,
        };
        assert!(died.text.contains(message), "{how} {place}: {}", died.text);
    }
}

/// The thread pointer is gone, which a walk needs.
#[test]
fn a_fault_of_the_report_itself_ends_it_and_the_signal_stays() {
    let Some(program) = compile("crash.c", FLAGS, Link::Shared) else {
        return;
    };
    if cfg!(target_arch = "x86_64") {
        let report = Report::of(&program, "lost", libc::SIGFPE, "SIGFPE");
        assert!(
            report.line("end: ").starts_with("SIGSEGV while reporting, at "),
            "{:?}",
            report.lines
        );
    }
}
