//! Hostile programs and files: a recorder outlives them, a file costs no more than its limits.

use crate::common;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use backtrail_testkit::command::{self, Finished, Running, Signal};
use backtrail_testkit::{available, program, skip, workload};
use common::{LIMIT, Setup, setup, text, without_sampling};

fn backtrail(setup: &Setup, arguments: &[&str]) -> Finished {
    command::run(&mut setup.backtrail.command(arguments), LIMIT).expect("the binary is there")
}

/// The same with this many KiB of address space.
fn within(setup: &Setup, kib: u64, arguments: &[&str]) -> Finished {
    let mut shell = Command::new("sh");
    let script = format!("ulimit -v {kib} && exec \"$0\" \"$@\"");
    shell
        .arg("-c")
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_backtrail"))
        .args(arguments);
    setup.backtrail.surroundings(&mut shell);
    command::run(&mut shell, LIMIT).expect("there is a shell")
}

/// Runs a tool that the test can't do without; `None` if it is missing or too old.
fn tool(command: &mut Command) -> Option<()> {
    let output = command.output();
    if output.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(());
    }
    skip(format!("{command:?}: {output:?}"));
    None
}

/// Compiles a program that waits in `wait_here`.
fn waiting_program(setup: &Setup, name: &str, flags: &[&str]) -> Option<std::path::PathBuf> {
    let source = b"#include <unistd.h>\n__attribute__((noipa)) int wait_here(void) { return pause(); }\n\
        int main(void) { write(1, \"ready\\n\", 6); return wait_here() + 1; }\n";
    let source = setup.file("waits.c", source);
    let path = setup.path(name);
    tool(
        Command::new("gcc")
            .args(["-O1", "-g"])
            .args(flags)
            .arg(&source)
            .arg("-o")
            .arg(&path),
    )?;
    Some(path)
}

fn start(program: &Path) -> Running {
    let running = command::start(&mut Command::new(program), LIMIT).expect("it was just built");
    assert!(running.wait_for_output("ready"));
    running
}

/// The stacks of a running program, as text.
fn stacks_of(setup: &Setup, program: &Path, arguments: &[&str]) -> Finished {
    let running = start(program);
    let pid = running.pid().to_string();
    let finished = backtrail(setup, &[&["stack", &pid][..], arguments].concat());
    running.signal(Signal::KILL);
    finished
}

#[test]
fn libraries_that_become_something_else() {
    let Some(setup) = setup() else { return };
    let Some(library) = available(program::LARGE_LIBRARY.build()) else {
        return;
    };
    for mode in ["fifo", "zeros", "loop", "swap", "shrink"] {
        let folder = setup.path(mode);
        fs::create_dir(&folder).unwrap();
        let arguments = ["1.5", mode, text(&library), text(&folder)];
        let Some(hostile) = available(workload::built("hostile", &program::HOSTILE, &arguments)) else {
            return;
        };
        let recording = setup.record(&[], &hostile);
        recording.ended_with(0).readable();
        assert!(
            recording.summary().samples > 20,
            "{mode}: {}",
            recording.finished.describe()
        );
        fs::remove_dir_all(&recording.trace).unwrap();
    }
}

#[test]
fn a_process_whose_first_thread_has_ended() {
    let setup = setup();
    let Some(setup) = setup else { return };
    let source = setup.file(
        "headless.c",
        b"#include <pthread.h>\n#include <unistd.h>\n\
        __attribute__((noipa)) void work_here(void) { for (volatile unsigned long x = 0;; x++) ; }\n\
        static void *run(void *with) { work_here(); return with; }\n\
        int main(void) { pthread_t made; write(1, \"ready\\n\", 6); pthread_create(&made, 0, run, 0); pthread_exit(0); }\n",
    );
    let program = setup.path("headless");
    let Some(()) = tool(
        Command::new("gcc")
            .args(["-O1", "-pthread"])
            .arg(&source)
            .arg("-o")
            .arg(&program),
    ) else {
        return;
    };
    let running = start(&program);
    let pid = running.pid().to_string();
    let has_ended = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    while !has_ended() {
        std::thread::yield_now();
    }
    let trace = setup.path("headless.trace");
    let recorded = backtrail(&setup, &["record", "-o", text(&trace), "--duration", "1", "-p", &pid]);
    running.signal(Signal::KILL);
    assert_eq!(recorded.code(), 0, "{}", recorded.describe());
    let report = backtrail(&setup, &["report", text(&trace)]);
    assert!(report.stdout.contains("work_here"), "{}", report.describe());
}

#[test]
fn files_are_read_and_never_mapped() {
    let setup = without_sampling();
    let Some(program) = waiting_program(&setup, "waits", &["-static"]) else {
        return;
    };
    let running = start(&program);
    let calls = setup.path("calls");
    let pid = running.pid().to_string();
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-y", "-e", "trace=mmap,openat,openat2", "-o"])
        .arg(&calls);
    strace.arg(env!("CARGO_BIN_EXE_backtrail")).args(["stack", &pid]);
    setup.backtrail.surroundings(&mut strace);
    let done = tool(&mut strace);
    running.signal(Signal::KILL);
    let Some(()) = done else { return };
    let calls = fs::read_to_string(calls).unwrap();
    let opened: Vec<&str> = calls.lines().filter(|line| line.contains(text(&program))).collect();
    assert!(!opened.is_empty(), "{calls}");
    assert!(opened.iter().all(|line| !line.contains("mmap(")), "{opened:?}");
}

#[test]
fn a_section_that_expands_to_gigabytes() {
    let setup = without_sampling();
    let Some(program) = waiting_program(&setup, "bomb", &[]) else {
        return;
    };
    let zeros = setup.path("zeros");
    File::create(&zeros).unwrap().set_len(300 << 20).unwrap();
    let update = format!(".debug_info={}", text(&zeros));
    for compression in ["zlib", "zstd"] {
        let bomb = setup.path(&format!("bomb-{compression}"));
        let whole = setup.path("whole");
        let packed = format!("--compress-debug-sections={compression}");
        let made = tool(
            Command::new("objcopy")
                .args(["--update-section", &update])
                .arg(&program)
                .arg(&whole),
        )
        .and_then(|()| tool(Command::new("objcopy").arg(packed).arg(&whole).arg(&bomb)));
        let Some(()) = made else { continue };
        let _ = fs::remove_file(whole);
        assert!(fs::metadata(&bomb).unwrap().len() < 1 << 20);
        let running = start(&bomb);
        let pid = running.pid().to_string();
        // A third of what it expands to.
        let finished = within(&setup, 250 << 10, &["stack", &pid]);
        running.signal(Signal::KILL);
        assert_eq!(finished.code(), 0, "{}", finished.describe());
        assert!(finished.stdout.contains(" in wait_here"), "{}", finished.describe());
        assert!(finished.stderr.contains("--read-limits"), "{}", finished.describe());
    }
}

#[test]
fn a_debug_link_to_an_endless_file() {
    let setup = without_sampling();
    let Some(program) = waiting_program(&setup, "linked", &["-Wl,--build-id=none"]) else {
        return;
    };
    let debug = setup.file("linked.debug", b"not long yet");
    let link = format!("--add-gnu-debuglink={}", text(&debug));
    let Some(()) = tool(Command::new("objcopy").arg(link).arg(&program)) else {
        return;
    };
    if let Err(error) = File::options().write(true).open(&debug).unwrap().set_len(1 << 40) {
        return skip(format!("no file of a terabyte: {error}"));
    }
    let finished = stacks_of(&setup, &program, &[]);
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    assert!(finished.stdout.contains(" in wait_here"), "{}", finished.describe());
}

#[test]
fn a_symbol_table_with_a_hundred_million_symbols() {
    let setup = without_sampling();
    let Some(program) = waiting_program(&setup, "symbols", &[]) else {
        return;
    };
    // Its last part is moved behind a hole, and the header says that the table is as long.
    let mut bytes = fs::read(&program).unwrap();
    let long = 100_000_000u64 * 24;
    let Some(header) = section_header(&bytes, ".symtab") else {
        return skip("no symbol table");
    };
    let at = bytes.len() as u64;
    bytes[header + 24..header + 32].copy_from_slice(&at.to_le_bytes());
    bytes[header + 32..header + 40].copy_from_slice(&long.to_le_bytes());
    fs::write(&program, &bytes).unwrap();
    File::options()
        .write(true)
        .open(&program)
        .unwrap()
        .set_len(at + long)
        .unwrap();
    let finished = stacks_of(&setup, &program, &[]);
    assert_eq!(finished.code(), 0, "{}", finished.describe());
    assert!(finished.stdout.contains("symbols"), "{}", finished.describe());
    assert!(finished.stderr.contains("--read-limits"), "{}", finished.describe());
}

/// The offset of a section's header in a 64-bit little-endian file.
fn section_header(file: &[u8], name: &str) -> Option<usize> {
    let word = |at: usize, len: usize| {
        let bytes = file.get(at..at + len)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0usize, |word, byte| word << 8 | usize::from(*byte)),
        )
    };
    let (table, count, strings) = (word(40, 8)?, word(60, 2)?, word(62, 2)?);
    let strings = word(table + strings * 64 + 24, 8)?;
    (0..count).map(|index| table + index * 64).find(|&header| {
        let start = strings + word(header, 4).unwrap_or(0);
        file.get(start..start + name.len() + 1) == Some(&[name.as_bytes(), b"\0"].concat()[..])
    })
}

#[test]
fn names_that_reverse_the_text_after_them() {
    let setup = without_sampling();
    let source = "#include <unistd.h>\nint odd(void) __asm__(\"\\\"safe\u{202e}\u{1b}[31mname\\\"\");\n\
        __attribute__((noipa)) int odd(void) { return pause(); }\n\
        int main(void) { write(1, \"ready\\n\", 6); return odd() + 1; }\n";
    let source = setup.file("odd.c", source.as_bytes());
    let program = setup.path("odd");
    let Some(()) = tool(Command::new("gcc").arg("-O1").arg(&source).arg("-o").arg(&program)) else {
        return;
    };
    let finished = stacks_of(&setup, &program, &[]);
    assert!(
        finished.stdout.contains("safe\\u{202e}\\u{1b}[31mname"),
        "{}",
        finished.describe()
    );
    assert!(
        !finished.stdout.contains(['\u{202e}', '\u{1b}']),
        "{}",
        finished.describe()
    );
}

#[test]
fn little_memory_ends_with_an_answer_or_one_line() {
    let setup = without_sampling();
    let Some(library) = available(program::LARGE_LIBRARY.build()) else {
        return;
    };
    let Some(program) = waiting_program(&setup, "waits", &[]) else {
        return;
    };
    let out = setup.path("out");
    let commands: [&[&str]; 4] = [
        &["sframe", "add", text(&library), "-o", text(&out)],
        &["sframe", "check", text(&library)],
        &["types", "build", text(&program), "-o", text(&out)],
        &["report", "/nonexistent"],
    ];
    for command in commands {
        let mut answers = 0;
        // The loader itself needs some megabytes, more for larger binaries.
        let loads = |mib: &u64| within(&setup, mib << 10, &["--version"]).code() == 0;
        for mib in [16, 20, 24, 32, 40, 48, 64, 80, 100, 128, 160, 200, 512]
            .into_iter()
            .filter(loads)
        {
            let finished = within(&setup, mib << 10, command);
            assert!(
                [0, 1, 2].contains(&finished.code()),
                "{mib} MiB: {}",
                finished.describe()
            );
            let own = finished.stderr.lines().filter(|line| line.starts_with("backtrail: "));
            assert!(
                finished.code() != 2 || own.count() == 1,
                "{mib} MiB: {}",
                finished.describe()
            );
            assert!(
                !finished.stderr.contains("panicked"),
                "{mib} MiB: {}",
                finished.describe()
            );
            answers += 1;
        }
        assert!(answers > 5, "{command:?}");
    }
}

/// A trace whose only stream has these events: their number, and a field of 32 bits.
fn trace(setup: &Setup, name: &str, classes: &str, events: impl Iterator<Item = (u32, u32)>) -> std::path::PathBuf {
    let folder = setup.path(name);
    fs::create_dir(&folder).unwrap();
    let metadata = format!(
        "/* CTF 1.8 */\n\
         typealias integer {{ size = 32; align = 8; signed = false; }} := u32;\n\
         trace {{ major = 1; minor = 8; byte_order = le; packet.header := struct {{ u32 magic; u32 stream_id; }}; }};\n\
         stream {{ id = 0; event.header := struct {{ u32 id; }}; }};\n{classes}"
    );
    fs::write(folder.join("metadata"), metadata).unwrap();
    let mut stream = Vec::new();
    stream.write_all(&0xc1fc_1fc1u32.to_le_bytes()).unwrap();
    stream.write_all(&0u32.to_le_bytes()).unwrap();
    for (id, value) in events {
        stream.write_all(&id.to_le_bytes()).unwrap();
        stream.write_all(&value.to_le_bytes()).unwrap();
    }
    fs::write(folder.join("stream"), stream).unwrap();
    folder
}

#[test]
fn an_enumeration_of_a_million_mappings() {
    const MAPPINGS: u32 = 1_000_000;
    let setup = without_sampling();
    let labels: Vec<String> = (0..MAPPINGS).map(|number| format!("L{number} = {number}")).collect();
    let class = format!(
        "event {{ id = 0; name = \"e\"; stream_id = 0; fields := struct {{ enum : u32 {{ {} }} x; }}; }};\n",
        labels.join(", ")
    );
    let events = (0..100_000).map(|number| (0, number * 7919 % MAPPINGS));
    let trace = trace(&setup, "mappings", &class, events);
    let finished = within(&setup, 900 << 10, &["trace", "show", text(&trace)]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 100_000);
    let last = 99_999 * 7919 % MAPPINGS;
    assert!(
        finished
            .stdout
            .trim_end()
            .ends_with(&format!("\"L{last}\" : container = {last} ) }}"))
    );
}

#[test]
fn three_hundred_thousand_event_classes() {
    const CLASSES: u32 = 300_000;
    let setup = without_sampling();
    let class =
        |id: u32| format!("event {{ id = {id}; name = \"e{id}\"; stream_id = 0; fields := struct {{ u32 x; }}; }};\n");
    let classes: String = (0..CLASSES).map(class).collect();
    let trace = trace(
        &setup,
        "classes",
        &classes,
        (0..1000).map(|number| (number * 293, number)),
    );
    let finished = within(&setup, 900 << 10, &["trace", "show", text(&trace)]);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1000);
}

#[test]
fn traces_with_pipes_and_devices_for_files() {
    let setup = without_sampling();
    let class = "event { id = 0; name = \"e\"; stream_id = 0; fields := struct { u32 x; }; };\n";
    let good = trace(&setup, "pipes", class, (0..10).map(|number| (0, number)));
    let Some(()) = tool(Command::new("mkfifo").arg(good.join("pipe"))) else {
        return;
    };
    std::os::unix::fs::symlink("/dev/zero", good.join("zeros")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", good.join(".zeros.ring")).unwrap();
    let finished = backtrail(&setup, &["trace", "show", text(&good)]);
    assert_eq!(finished.stdout.lines().count(), 10, "{}", finished.describe());
    for what in ["/dev/zero", "pipe"] {
        let metadata = good.join("metadata");
        fs::remove_file(&metadata).unwrap();
        match what {
            "pipe" => drop(tool(Command::new("mkfifo").arg(&metadata))),
            _ => std::os::unix::fs::symlink(what, &metadata).unwrap(),
        }
        for verb in ["show", "info", "check"] {
            let finished = backtrail(&setup, &["trace", verb, text(&good)]);
            assert_ne!(finished.code(), 0, "{}", finished.describe());
            assert!(!finished.timed_out, "{}", finished.describe());
        }
        let finished = backtrail(&setup, &["report", text(&good)]);
        assert_eq!(finished.code(), 2, "{}", finished.describe());
    }
}
