//! Names, lines and inlined calls of real programs, compared with `nm` and `addr2line` (binutils).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use backtrail_elf::{FileBytes, Image};
use backtrail_profile::{Location, Symbolizer, demangle};
use backtrail_recording::{FrameKind, Module};

const BASE: u64 = 0x5555_0000_0000;

/// A file and where it would be mapped.
struct Mapped {
    symbolizer: Symbolizer,
    bias: u64,
}

impl Mapped {
    fn new(path: &Path) -> Mapped {
        let file = FileBytes::open(path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let position_independent = image.is_position_independent();
        let base = if position_independent { BASE } else { image.base_vaddr() };
        let mut symbolizer = Symbolizer::default();
        symbolizer.map(&Module {
            time: 0,
            pid: 1,
            base,
            size: image.mem_size(),
            mapped: None,
            position_independent,
            path: path.to_str().unwrap().to_string(),
            build_id: image.build_id().unwrap_or_default().to_vec(),
            elsewhere: 0,
        });
        Mapped {
            symbolizer,
            bias: base - image.base_vaddr(),
        }
    }

    fn locate(&mut self, svma: u64) -> &Location {
        let id = self.symbolizer.resolve(1, FrameKind::Pc, svma + self.bias);
        self.symbolizer.location(id)
    }
}

/// The output of a command, or `None` and a loud line where there is no such program or it fails.
fn output(command: &mut Command) -> Option<String> {
    match command.output() {
        Ok(output) if output.status.success() => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            backtrail_testkit::skip(format_args!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)));
            None
        }
        Err(error) => {
            backtrail_testkit::skip(format_args!("{command:?}: {error}"));
            None
        }
    }
}

/// A program of `tests/programs`, compiled.
fn compile(compiler: &str, flags: &[&str], source: &str, folder: &Path) -> Option<PathBuf> {
    let program = folder.join(source.replace('.', "_"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    output(Command::new(compiler).args(flags).arg(source).arg("-o").arg(&program))?;
    Some(program)
}

/// Address to size and names.
type Functions = BTreeMap<u64, (u64, Vec<String>)>;

/// Functions as `nm` prints them.
fn functions(path: &Path, dynamic: bool) -> Option<Functions> {
    let mut command = Command::new("nm");
    command.args(["-S", "--defined-only"]);
    if dynamic {
        command.arg("-D");
    }
    let mut functions = BTreeMap::new();
    for line in output(command.arg(path))?.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let &[address, size, "t" | "T" | "w" | "W" | "i", name] = &words[..] {
            let address = u64::from_str_radix(address, 16).unwrap();
            let size = u64::from_str_radix(size, 16).unwrap();
            let entry: &mut (u64, Vec<String>) = functions.entry(address).or_default();
            entry.0 = entry.0.max(size);
            // A version is no part of the name.
            entry.1.push(name.split('@').next().unwrap().to_string());
        }
    }
    Some(functions)
}

/// About `count` addresses in the functions, spread evenly.
fn sampled(functions: &Functions, count: u64) -> Vec<u64> {
    let bytes: u64 = functions.values().map(|(size, _)| size).sum();
    let step = (bytes / count).max(1);
    functions
        .iter()
        .flat_map(|(&start, &(size, _))| (start..start + size).step_by(step as usize))
        .collect()
}

/// A call as both sides tell it.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    function: String,
    file: String,
    line: u32,
}

/// What addr2line says: for each address the calls, the innermost first.
fn addr2line(path: &Path, addresses: &[u64]) -> Option<Vec<Vec<Told>>> {
    let child = Command::new("addr2line")
        .args(["-a", "-i", "-f", "-e"])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        backtrail_testkit::skip("no addr2line");
        return None;
    };
    let mut input = child.stdin.take().unwrap();
    let text: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut told: Vec<Vec<Told>> = Vec::new();
    let mut lines = out.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            told.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap();
        let (file, number) = place.rsplit_once(':').unwrap();
        told.last_mut().unwrap().push(Told {
            function: line.to_string(),
            file: base_name(file),
            // What follows a space is the discriminator.
            line: number.split(' ').next().unwrap().parse().unwrap_or(0),
        });
    }
    assert_eq!(told.len(), addresses.len());
    Some(told)
}

fn base_name(path: &str) -> String {
    path.rsplit('/').next().unwrap().to_string()
}

/// Without what a compiler adds to a copy of a function.
fn without_clone(name: &str) -> &str {
    let name = name.split(" [clone").next().unwrap();
    [".cold", ".part.", ".constprop.", ".isra.", ".llvm."]
        .iter()
        .fold(name, |name, suffix| name.split(suffix).next().unwrap())
}

#[test]
fn stripped_system_files_are_named_by_their_dynamic_symbols() {
    for path in system_files() {
        let Some(functions) = functions(&path, true) else {
            return;
        };
        let mut mapped = Mapped::new(&path);
        let mut checked = 0;
        let mut wrong = Vec::new();
        for address in sampled(&functions, 20_000) {
            // Functions may lie in each other; the innermost is meant.
            let covering = functions
                .range(..=address)
                .rev()
                .take(8)
                .find(|&(&start, &(size, _))| address - start < size);
            let Some((&start, (_, names))) = covering else { continue };
            let call = mapped.locate(address).calls.last().unwrap();
            checked += 1;
            let same = names.iter().any(|name| demangle(name) == call.function) && call.offset == Some(address - start);
            if !same {
                wrong.push(format!("{address:#x}: {} instead of {names:?}", call.function));
            }
        }
        println!(
            "{}: {checked} addresses in {} functions",
            path.display(),
            functions.len()
        );
        assert!(checked > 0, "{}", path.display());
        assert!(
            wrong.is_empty(),
            "{}: {} wrong: {:#?}",
            path.display(),
            wrong.len(),
            &wrong[..wrong.len().min(10)]
        );
    }
}

/// Files that most machines have, with their symbols stripped.
fn system_files() -> Vec<PathBuf> {
    let libc = "lib/x86_64-linux-gnu/libc.so.6";
    let candidates = [
        "/usr/bin/git",
        "/usr/bin/python3",
        &format!("/{libc}"),
        "/lib64/libc.so.6",
    ];
    let mut files: Vec<PathBuf> = candidates
        .iter()
        .filter_map(|path| fs::canonicalize(path).ok())
        .collect();
    files.retain(|path| functions(path, true).is_some_and(|functions| functions.len() > 10));
    files.dedup();
    if files.is_empty() {
        backtrail_testkit::skip("no git, python3 or libc on this machine");
    }
    files
}

#[test]
fn a_file_of_another_build_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", &["-g", "-O2"], "inlined.c", folder.path()) else {
        return;
    };
    let Some(functions) = functions(&program, false) else {
        return;
    };
    let (&main, _) = functions
        .iter()
        .find(|(_, (_, names))| names.iter().any(|name| name == "main"))
        .unwrap();
    let mut symbolizer = Symbolizer::default();
    symbolizer.map(&Module {
        time: 0,
        pid: 1,
        base: BASE,
        size: 0x10_000,
        mapped: None,
        position_independent: true,
        path: program.to_str().unwrap().into(),
        build_id: vec![1; 20],
        elsewhere: 0,
    });
    let id = symbolizer.resolve(1, FrameKind::Pc, BASE + main);
    assert_eq!(
        symbolizer.location(id).calls[0].function,
        format!("inlined_c+{main:#x}")
    );
    let notes = symbolizer.notes();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].starts_with("other build ids than recorded") && notes[0].contains("inlined_c"));
}

#[test]
fn the_vdso_has_names() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        backtrail_testkit::skip("no vdso");
        return;
    };
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    let start = u64::from_str_radix(start, 16).unwrap();
    let end = u64::from_str_radix(end, 16).unwrap();
    let mut symbolizer = Symbolizer::default();
    symbolizer.map(&Module {
        time: 0,
        pid: 1,
        base: start,
        size: end - start,
        mapped: None,
        position_independent: true,
        path: "[vdso]".into(),
        build_id: Vec::new(),
        elsewhere: 0,
    });
    let named: Vec<String> = (start..end)
        .step_by(8)
        .map(|address| {
            let id = symbolizer.resolve(1, FrameKind::Pc, address);
            symbolizer.location(id).calls[0].function.clone()
        })
        .collect();
    assert!(named.iter().any(|name| name.contains("gettime")), "{named:?}");
}

#[test]
fn lines_and_inlined_calls_are_those_of_addr2line() {
    let folder = tempfile::tempdir().unwrap();
    let programs = [
        compile("gcc", &["-g", "-O2"], "inlined.c", folder.path()),
        compile("g++", &["-g", "-O2"], "templates.cpp", folder.path()),
        compile("rustc", &["-g", "-O"], "traits.rs", folder.path()),
    ];
    for program in programs.iter().flatten() {
        let functions = functions(program, false).unwrap();
        compare_with_addr2line(program, &functions, 4_000);
    }
}

#[test]
fn what_was_split_off_is_found_by_its_link() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-g", "-O2", "-Wl,--build-id"];
    let Some(program) = compile("g++", &flags, "templates.cpp", folder.path()) else {
        return;
    };
    let functions = functions(&program, false).unwrap();
    let debug = folder.path().join("templates.debug");
    let objcopy = |arguments: &[&str], file: &Path| output(Command::new("objcopy").args(arguments).arg(file));
    let link = format!("--add-gnu-debuglink={}", debug.display());
    let split = objcopy(&["--only-keep-debug", program.to_str().unwrap()], &debug)
        .and_then(|_| objcopy(&["--strip-all", &link], &program));
    if split.is_some() {
        compare_with_addr2line(&program, &functions, 1_000);
    }
}

/// Compares functions, files and lines of the calls at about `count` addresses.
fn compare_with_addr2line(program: &Path, functions: &Functions, count: u64) {
    let addresses = sampled(functions, count);
    let Some(expected) = addr2line(program, &addresses) else {
        return;
    };
    let mut mapped = Mapped::new(program);
    let mut wrong = Vec::new();
    let mut inlined = 0;
    let mut with_lines = 0;
    for (&address, expected) in addresses.iter().zip(&expected) {
        let calls = &mapped.locate(address).calls;
        let told: Vec<Told> = calls
            .iter()
            .map(|call| Told {
                function: without_clone(&call.function).to_string(),
                file: call.file.as_deref().map_or_else(|| "??".to_string(), base_name),
                line: call.line.unwrap_or(0),
            })
            .collect();
        let mut expected: Vec<Told> = expected
            .iter()
            .map(|told| Told {
                function: without_clone(&demangle(&told.function)).to_string(),
                file: told.file.clone(),
                line: told.line,
            })
            .collect();
        let (_, (_, names)) = functions.range(..=address).next_back().unwrap();
        let own = told.last().unwrap();
        let outermost = expected.last_mut().unwrap();
        // Where identical functions were folded into one, either name is right.
        if names.iter().any(|name| without_clone(&demangle(name)) == own.function) {
            outermost.function = own.function.clone();
        }
        // Without debugging information addr2line prints the unit that the symbol table names
        // (STT_FILE).
        if outermost.line == 0 && own.file == "??" {
            outermost.file = own.file.clone();
        }
        inlined += usize::from(calls.len() > 1);
        with_lines += usize::from(calls[0].line.is_some());
        if told != expected {
            wrong.push(format!("{address:#x}:\n  {told:?}\n  instead of\n  {expected:?}"));
        }
    }
    println!(
        "{}: {} addresses, {with_lines} with lines, {inlined} in inlined calls, {} differ",
        program.display(),
        addresses.len(),
        wrong.len()
    );
    assert!(inlined > 0, "{}: no inlined calls", program.display());
    assert!(
        wrong.is_empty(),
        "{}: {} of {} differ: {}",
        program.display(),
        wrong.len(),
        addresses.len(),
        wrong[..wrong.len().min(8)].join("\n")
    );
}
