//! The library as its users get it: header, exports, pkg-config file, and the ways to load it.

use crate::common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_testkit::{available, command, program, scratch, skip};
use common::{Link, Program, compared, compile, libraries, link_versioned, named_in, preload, run, symbols};

const LIMIT: Duration = Duration::from_secs(60);

fn header() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/backtrail.h")).unwrap()
}

/// Names of functions that the header declares: they precede a parenthesis at the beginning of a
/// declaration.
fn declared() -> BTreeSet<String> {
    let header = header();
    let declarations = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']) && line.contains('('));
    let names = declarations.filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_header_declares_what_the_library_exports_and_nothing_else() {
    let Some(symbols) = symbols(&libraries().join("libbacktrail.so")) else {
        return;
    };
    let exported: BTreeSet<String> = symbols.into_iter().map(|(name, _)| name).collect();
    assert_eq!(exported, declared());
    assert!(exported.len() > 5);
}

/// As `cargo xtask install-library` links it.
#[test]
fn versions_are_those_of_the_script_and_the_header_has_no_other_names() {
    let folder = scratch();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("backtrail.map");
    let named = named_in(&script);
    assert_eq!(named, declared());
    let Some(library) = link_versioned(folder.path(), "backtrail", &script) else {
        return;
    };
    let Some(symbols) = symbols(&library) else { return };
    let names = symbols.into_iter().map(|(name, _)| name);
    let exported: BTreeSet<String> = names.filter(|name| name.contains("@@")).collect();
    assert_eq!(
        exported,
        named.iter().map(|name| format!("{name}@@BACKTRAIL_0.1")).collect()
    );
    // A program linked with the library asks for its version, and runs.
    let Some(program) = compile("interface.c", &[], Link::With(&library)) else {
        return;
    };
    let finished = run(&program, &[folder.path().join("cache").to_str().unwrap()]);
    assert!(finished.status.success(), "{}", finished.describe());
    let mut needs = Command::new("readelf");
    needs.args(["-V", "-W"]).arg(&program.path);
    if let Some(needs) = available(command::run(&mut needs, LIMIT)) {
        assert!(needs.stdout.contains("Name: BACKTRAIL_0.1"), "{}", needs.stdout);
    }
}

#[test]
fn the_header_is_c_and_c_plus_plus() {
    let folder = scratch();
    for (compiler, language, standard) in [("cc", "c", "-std=c99"), ("g++", "c++", "-std=c++11")] {
        let source = folder.path().join(format!("alone.{language}"));
        std::fs::write(&source, "#include <backtrail.h>\n").unwrap();
        let options = ["-x", language, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
        accepts(compiler, &options, &source);
    }
}

/// The code of docs/c-library.md, with what it takes for given as the arguments of a function.
#[test]
fn the_code_of_the_page_compiles() {
    let page = include_str!("../../../docs/c-library.md");
    let blocks = page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next());
    let (programs, blocks): (Vec<&str>, Vec<&str>) = blocks.partition(|block| block.starts_with("#include"));
    let mut code = "#include <backtrail.h>\n#include <sys/types.h>\n".to_owned();
    let given = "int (*each_member)(void *, const struct backtrail_type_part *), \
                 int (*each_function)(void *, const struct backtrail_function *), \
                 int (*each_row)(void *, const struct backtrail_row *), \
                 int (*each_frame)(void *, const struct backtrail_cbf_frame *), \
                 const struct backtrail_cbf_frame *frames, size_t count, void *bytes, size_t length";
    for (at, block) in blocks.into_iter().enumerate() {
        // A block of its own may name its variables as the arguments are named.
        code.push_str(&format!("void block_{at}({given})\n{{{{\n"));
        code.extend(
            block
                .lines()
                .filter(|line| !line.starts_with('#'))
                .flat_map(|line| [line, "\n"]),
        );
        code.push_str("}}\n");
    }
    assert!(
        programs.len() == 1 && code.contains("block_2"),
        "the page has fewer blocks"
    );
    let folder = scratch();
    let source = folder.path().join("page.c");
    std::fs::write(&source, code).unwrap();
    accepts("gcc", &["-Wno-unused-parameter", "-Wno-missing-prototypes"], &source);
    std::fs::write(&source, programs[0]).unwrap();
    accepts("gcc", &["-Wall", "-Wextra", "-Werror"], &source);
}

/// Whether the compiler accepts this source, which includes our header.
fn accepts(compiler: &str, options: &[&str], source: &Path) {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut check = Command::new(compiler);
    check
        .args(options)
        .args(["-fsyntax-only", "-I"])
        .arg(include)
        .arg(source);
    if let Some(checked) = available(command::run(&mut check, LIMIT)) {
        assert!(checked.status.success(), "{}", checked.describe());
    }
}

#[test]
fn promises_of_the_interface() {
    for link in [Link::Shared, Link::Static] {
        let Some(program) = compile("interface.c", &[], link) else {
            return;
        };
        let cache = program.folder.path().join("cache");
        let finished = run(&program, &[cache.to_str().unwrap()]);
        assert!(finished.status.success(), "{}", finished.describe());
        assert!(
            std::fs::read_dir(&cache).is_ok_and(|mut kept| kept.next().is_some()),
            "tables are kept"
        );
        let path = std::fs::canonicalize(&program.path).unwrap();
        let first = finished.stdout.lines().next().unwrap();
        assert!(
            first.starts_with(&format!("{}(+0x", path.display())) && first.ends_with(']'),
            "{first}"
        );
        assert!(finished.stdout.contains("\n[0x5]\n"), "{}", finished.describe());
        // The offset leads to the line of the call.
        let offset = first.split(['+', ')']).nth(1).unwrap();
        let mut resolve = Command::new("addr2line");
        resolve.arg("-fe").arg(&path).arg(offset);
        let Some(resolved) = available(command::run(&mut resolve, LIMIT)) else {
            return;
        };
        assert!(resolved.stdout.starts_with("main\n"), "{offset}: {}", resolved.stdout);
        let hex = finished
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("cbf "))
            .unwrap();
        assert!(hex.starts_with("02") && hex.ends_with("00"), "{hex}");
    }
}

/// Two libraries and a program that loads them. The second library's entry has a name of its own.
fn plugins() -> Option<(PathBuf, PathBuf, Program)> {
    let first = available(program::PLUGIN.build())?;
    let second = available(program::OTHER_PLUGIN.build())?;
    let program = compile("plugins.c", &["-fomit-frame-pointer"], Link::Shared)?;
    Some((first, second, program))
}

#[test]
fn libraries_come_and_go() {
    let Some((first, second, program)) = plugins() else {
        return;
    };
    let copy = program.folder.path().join("copy.so");
    let paths = [&first, &second, &copy].map(|path| path.to_str().unwrap());
    let (count, _) = compared(&program, &paths);
    assert_eq!(count, 40 * 4);
    let told = run(&program, &paths).stdout;
    let number = |at: usize| -> u32 {
        let mut numbers = told
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse().ok());
        numbers.nth(at).unwrap()
    };
    assert_eq!(number(2), 0, "no table is believed that was another library's: {told}");
    assert!(number(3) >= 30, "libraries came to where others had been: {told}");
}

/// Walks through unloadable modules are rechecked without a system call while nothing is loaded,
/// and otherwise with a single one for all modules. A changed module is noticed beyond unchanged
/// ones.
#[test]
fn libraries_come_and_go_within_others() {
    let Some((first, second, program)) = plugins() else {
        return;
    };
    let copy = program.folder.path().join("copy.so");
    let paths = [&first, &second, &copy, &first].map(|path| path.to_str().unwrap());
    let finished = run(&program, &paths);
    if finished.status.code() == Some(77) {
        return skip("system calls cannot be filtered here");
    }
    let (count, _) = compared(&program, &paths);
    assert_eq!(count, 40 * 4 + 8);
    let first = "deep; 0 ended early;";
    assert!(
        finished.stdout.contains(first),
        "no table is believed that was another library's: {}",
        finished.stdout
    );
}

/// Walks are complete at once in libraries opened after `backtrail_init`, whether or not a thread
/// makes their tables.
#[test]
fn libraries_that_are_opened_later_are_followed() {
    let Some(plugin) = available(program::PLUGIN.build()) else {
        return;
    };
    let Some(program) = compile("follow.c", &["-fomit-frame-pointer"], Link::Shared) else {
        return;
    };
    let plugin = plugin.to_str().unwrap();
    let followed = run(&program, &[plugin]);
    assert!(followed.status.success(), "{}", followed.describe());
    assert_eq!(followed.stdout, "0 times early\n");
    let left = run(&program, &[plugin, "not"]);
    assert_eq!(left.stdout, "0 times early\n", "{}", left.describe());
}

#[test]
fn existing_programs_are_taken_over() {
    let Some(program) = compile("existing.c", &["-fomit-frame-pointer"], Link::Not) else {
        return;
    };
    let preload = preload();
    let by_glibc = run(&program, &[]);
    let mut taken = Command::new(&program.path);
    taken.env("LD_PRELOAD", &preload);
    let ours = command::run(&mut taken, LIMIT).unwrap();
    assert!(ours.status.success(), "{}", ours.describe());
    assert!(by_glibc.stdout.lines().count() > 45, "{}", by_glibc.describe());
    assert_eq!(ours.stdout, by_glibc.stdout);
    // Checks that our library answered.
    let mut bindings = Command::new(&program.path);
    bindings.env("LD_PRELOAD", &preload).env("LD_DEBUG", "bindings");
    let told = command::run(&mut bindings, LIMIT).unwrap().stderr;
    let binding = told
        .lines()
        .find(|line| line.contains("`backtrace'"))
        .unwrap_or_default();
    assert!(binding.contains("libbacktrail_preload.so"), "{binding}");
}

#[test]
fn the_pkg_config_file_leads_to_the_library() {
    let folder = scratch();
    let template = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("backtrail.pc.in")).unwrap();
    let text = template
        .replace("@prefix@", "/somewhere")
        .replace("@lib@", "lib")
        .replace("@version@", env!("CARGO_PKG_VERSION"));
    assert!(!text.contains('@'));
    std::fs::write(folder.path().join("backtrail.pc"), text).unwrap();
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "backtrail"])
        .env("PKG_CONFIG_PATH", folder.path());
    let Some(told) = available(command::run(&mut ask, LIMIT)) else {
        return;
    };
    let words: Vec<&str> = told.stdout.split_whitespace().collect();
    assert_eq!(words, ["-I/somewhere/include", "-L/somewhere/lib", "-lbacktrail"]);
}
