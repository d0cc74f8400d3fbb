//! C and C++ programs that trace themselves, as babeltrace2 prints them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples-c")
}

/// Builds a program and links it with the library that cargo has built.
fn build(source: &Path, compiler: &str, extra: &[&str], out: &Path) -> Option<()> {
    // `cargo test` builds no libraries.
    let folder = backtrail_testkit::place::built(&["--lib"]).expect("the workspace can be built");
    if Command::new(compiler).arg("--version").output().is_err() {
        backtrail_testkit::skip(format_args!("no {compiler}"));
        return None;
    }
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O2", "-g", "-pthread"])
        .args(extra)
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(source)
        .arg("-o")
        .arg(out)
        .arg(format!("-L{}", folder.display()))
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .arg("-lbacktrail_tracer")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

fn babeltrace2(directory: &Path) -> Option<Vec<String>> {
    let peer = backtrail_testkit::peers::babeltrace2_2_0()?;
    let output = peer.command().args(["--no-delta"]).arg(directory).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    Some(
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(str::to_owned)
            .collect(),
    )
}

fn check_fields(source: &str, compiler: &str, extra: &[&str]) {
    let scratch = backtrail_testkit::scratch();
    let (program, directory) = (scratch.path().join("program"), scratch.path().join("trace"));
    if build(&programs().join(source), compiler, extra, &program).is_none() {
        return;
    }
    assert!(Command::new(&program).arg(&directory).status().unwrap().success());
    let Some(lines) = babeltrace2(&directory) else { return };
    let expected = [
        "kinds:empty: { tid = T }, { vpid = T }, { }",
        r#"kinds:numbers: { tid = T }, { vpid = T }, { a = 200, b = -5, c = 0xFF, d = 1.5, e = -2.25, state = ( "busy" : container = 1 ) }"#,
        r#"kinds:texts: { tid = T }, { vpid = T }, { peer = "10.0.0.1", none = "" }"#,
        "kinds:arrays: { tid = T }, { vpid = T }, { _sizes_length = 3, sizes = [ [0] = 1, [1] = 2, [2] = 3 ], pair = [ [0] = 1, [1] = 2 ], \
         _some_is = ( \"some\" : container = 1 ), some = { { value = 1 } }, _nothing_is = ( \"none\" : container = 0 ), nothing = { { } }, at = { x = 3, y = -4 } }",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        let tid = line
            .split("tid = ")
            .nth(1)
            .and_then(|rest| rest.split([' ', ',']).next())
            .unwrap();
        let line = line
            .replace(&format!("tid = {tid} "), "tid = T ")
            .replace(&format!("vpid = {tid} "), "vpid = T ");
        assert!(line.ends_with(expected), "{line}\n{expected}");
    }
    assert!(
        lines[4].contains("kinds:stack") && lines[4].contains("_stack_length = "),
        "{}",
        lines[4]
    );
    assert_eq!(lines.len(), 5);
    begins_in_the_program(&directory, &program);
}

/// The innermost frame of the event with a stack is the program's, not the library's.
fn begins_in_the_program(directory: &Path, program: &Path) {
    let trace = backtrail_trace::find_traces(directory).unwrap().remove(0);
    let opened = backtrail_trace::Trace::open(&trace).unwrap();
    let mut events = opened.events(backtrail_trace::Options::default()).unwrap();
    let first = loop {
        let event = events.next().expect("one has a stack").unwrap();
        if let Some(stack) = event.field("stack") {
            let mut frames = backtrail_cbf::Decoder::new(stack.as_array().unwrap().as_bytes().unwrap()).unwrap();
            break frames.next().unwrap().unwrap();
        }
    };
    let (backtrail_cbf::Frame::Pc(first) | backtrail_cbf::Frame::Ra(first)) = first.frame else {
        panic!("{first:?}");
    };
    // First address and length of the program, from the environment.
    let metadata = std::fs::read_to_string(trace.join("metadata")).unwrap();
    let module = metadata
        .lines()
        .find(|line| line.ends_with(&format!(" {}\";", program.display())));
    let module = module
        .unwrap_or_else(|| panic!("{metadata}"))
        .split('"')
        .nth(1)
        .unwrap();
    let mut numbers = module
        .split(' ')
        .map(|number| u64::from_str_radix(number.trim_start_matches("0x"), 16));
    let (base, bytes) = (numbers.next().unwrap().unwrap(), numbers.next().unwrap().unwrap());
    assert!((base..base + bytes).contains(&first), "{first:#x} is not in {module}");
}

#[test]
fn a_c_program() {
    check_fields("fields.c", "gcc", &["-std=gnu11"]);
    check_fields("fields.c", "clang", &["-std=gnu11"]);
    check_fields("fields.c", "gcc", &["-std=c11"]);
    check_fields("fields.c", "clang", &["-std=c11"]);
}

#[test]
fn a_cpp_program() {
    check_fields("fields.c", "g++", &["-x", "c++", "-std=gnu++17"]);
    check_fields("fields.c", "clang++", &["-x", "c++", "-std=gnu++17"]);
    check_fields("fields.c", "g++", &["-x", "c++", "-std=c++11"]);
}

#[test]
fn a_server_of_many_processes() {
    let scratch = backtrail_testkit::scratch();
    let (program, directory) = (scratch.path().join("server"), scratch.path().join("trace"));
    if build(&programs().join("server.cc"), "g++", &["-std=gnu++17"], &program).is_none() {
        return;
    }
    assert!(Command::new(&program).arg(&directory).status().unwrap().success());
    let Some(lines) = babeltrace2(&directory) else { return };
    let of = |name: &str| lines.iter().filter(|line| line.contains(name)).count();
    assert_eq!(
        (of("server:start"), of("server:request"), of("server:end")),
        (1, 4 * 250, 4)
    );
}

#[test]
fn wrong_types_do_not_compile() {
    for (field, message) in [
        ("BT_U8(x, wide)", "too wide"),
        ("BT_U32(x, text)", "error"),
        ("BT_U64(x, 1.5)", "not an integer"),
        ("BT_STR(x, &wide)", "not a string"),
        ("BT_U32S(x, &wide, 1)", "another size"),
    ] {
        let scratch = backtrail_testkit::scratch();
        let source = scratch.path().join("wrong.c");
        let text = format!(
            "#include \"backtrail-tracer.h\"\nvoid f(uint64_t wide, const char *text) {{ (void)wide; (void)text; BT_EVENT(a, b, {field}); }}\n"
        );
        std::fs::write(&source, text).unwrap();
        let Ok(output) = Command::new("gcc")
            .args(["-std=gnu11", "-c", "-o", "/dev/null", "-I"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
            .arg(&source)
            .output()
        else {
            backtrail_testkit::skip("no gcc");
            return;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(message),
            "{field}: {errors}"
        );
    }
}

#[test]
fn the_program_of_the_page_does_what_it_says() {
    let page = include_str!("../../../docs/tracing.md");
    let code = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let task = include_str!("../../../docs/how-to/trace-application.md");
    assert!(
        code.is_some_and(|code| task.contains(code)),
        "a page has another program"
    );
    let scratch = backtrail_testkit::scratch();
    let (source, program) = (scratch.path().join("app.c"), scratch.path().join("app"));
    std::fs::write(&source, code.expect("the page has a program")).unwrap();
    if build(&source, "gcc", &[], &program).is_none() {
        return;
    }
    let run = Command::new(&program).current_dir(scratch.path()).status().unwrap();
    assert!(run.success());
    let Some(lines) = babeltrace2(&scratch.path().join("trace")) else {
        return;
    };
    assert_eq!(lines.len(), 4);
    assert!(lines[2].ends_with(r#"{ len = 2, peer = "10.0.0.1" }"#), "{}", lines[2]);
    assert!(
        lines[3].contains("net:lost") && lines[3].contains("count = 2"),
        "{}",
        lines[3]
    );
}

/// As `cargo xtask install-library` links it.
#[test]
fn the_version_script_has_the_names_of_the_header() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |file: &str, ends: &[char]| -> BTreeSet<String> {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let words = text.match_indices("backtrail_tracer_").map(|(at, _)| {
            let rest = &text[at..];
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap();
            rest.split_at(length)
        });
        let named = words.filter(|(_, rest)| rest.starts_with(ends));
        named.map(|(name, _)| name.to_owned()).collect()
    };
    let exported = names("backtrail-tracer.map", &[';']);
    assert!(exported.len() > 5);
    // Variables, too: the macros of events refer to one, which is the tracer's own.
    assert_eq!(exported, names("include/backtrail-tracer.h", &['(', ';']));
    let mut functions = names("src/lib.rs", &['(']);
    functions.insert("backtrail_tracer_new_class".to_owned());
    assert_eq!(exported, functions);
}
