//! Lines and inlined calls of freshly compiled programs, compared with GNU addr2line.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use backtrail_debuginfo::lines::{DebugSections, Frame, Lines};
use backtrail_debuginfo::split::RestsOnDemand;
use backtrail_elf::debugfile::Search;
use backtrail_elf::{FileBytes, Image, Symbols};
use backtrail_testkit::{available, program, skip};
use gimli::{EndianSlice, LittleEndian};

const SOURCE: &str = "#include <stdio.h>
static inline __attribute__((always_inline)) int inner(int a) {
  return a * printf(\"%d\", a);
}
static inline __attribute__((always_inline)) int middle(int a) {
  int b = inner(a) + 1;
  return b;
}
__attribute__((noinline)) int outer(int a) {
  return middle(a) + puts(\"x\");
}
int main(int argc, char **argv) {
  (void)argv;
  return outer(argc);
}
";

fn compile(dir: &Path, name: &str, args: &[&str]) -> Option<PathBuf> {
    compile_with("gcc", dir, name, args)
}

fn compile_with(compiler: &str, dir: &Path, name: &str, args: &[&str]) -> Option<PathBuf> {
    let source = dir.join("input.c");
    fs::write(&source, SOURCE).unwrap();
    let output = dir.join(name);
    let made = Command::new(compiler)
        .current_dir(dir)
        .arg("-O2")
        .args(args)
        .arg(&source)
        .arg("-o")
        .arg(&output)
        .status();
    if made.is_ok_and(|status| status.success()) {
        return Some(output);
    }
    backtrail_testkit::skip(format_args!("{compiler} cannot compile this here: {args:?}"));
    None
}

/// What addr2line prints for an address: function and place, innermost first.
fn by_addr2line(program: &Path, address: u64) -> Option<Vec<Frame>> {
    let output = Command::new("addr2line")
        .args(["-i", "-f", "-e"])
        .arg(program)
        .arg(format!("{address:#x}"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let lines: Vec<&str> = text.lines().collect();
    let frames = lines.chunks(2).map(|pair| {
        let (file, line) = pair[1].rsplit_once(':').unwrap();
        let line = line.split(' ').next().unwrap();
        Frame {
            function: Some(pair[0].to_owned()).filter(|name| name != "??"),
            file: Some(file.to_owned()).filter(|name| name != "??"),
            line: line.parse().ok(),
        }
    });
    Some(frames.filter(|frame| frame.function.is_some()).collect())
}

fn addresses(image: &Image<'_>, names: &[&str]) -> Vec<u64> {
    let symbols = Symbols::new(image);
    let chosen = symbols.iter().filter(|symbol| names.contains(&&*symbol.name));
    chosen
        .flat_map(|symbol| symbol.address..symbol.address + symbol.size)
        .collect()
}

/// Frames without the folders of files.
fn short(frames: &[Frame]) -> Vec<(Option<String>, Option<String>, Option<u32>)> {
    let name = |file: &Option<String>| file.as_ref().map(|file| file.rsplit('/').next().unwrap().to_owned());
    let frame = |frame: &Frame| (frame.function.clone(), name(&frame.file), frame.line);
    frames.iter().map(frame).collect()
}

#[test]
fn every_address_as_addr2line_has_it() {
    let dir = tempfile::tempdir().unwrap();
    for options in [&["-g", "-gdwarf-5"][..], &["-g", "-gdwarf-4"], &["-g", "-gz"]] {
        let Some(program) = compile(dir.path(), "a", options) else {
            return;
        };
        let file = FileBytes::open(&program).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let sections = DebugSections::load(&image, None, &[]).unwrap().unwrap();
        let lines = Lines::new(&sections).unwrap();
        let mut inlined = 0;
        for address in addresses(&image, &["main", "outer"]) {
            let found = lines.lookup(address);
            let Some(expected) = by_addr2line(&program, address) else {
                backtrail_testkit::skip("no addr2line");
                return;
            };
            assert_eq!(short(&found), short(&expected), "{options:?} {address:#x}");
            inlined += usize::from(found.len() == 3);
        }
        assert!(inlined > 0, "inner in middle in outer is inlined somewhere");
        assert_eq!(lines.lookup(1), []);
    }
}

/// The frames at these addresses, with what split units have in other files, and whether such a
/// file is missing.
fn with_rests(program: &Path, addresses: &[u64]) -> (Vec<Vec<Frame>>, bool) {
    let file = FileBytes::open(program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let sections = DebugSections::load(&image, None, addresses).unwrap().unwrap();
    let lines = Lines::new(&sections).unwrap();
    let split = lines.split_units(addresses);
    let rests = RestsOnDemand::new(&split, &[program], Box::new(|path: &Path| FileBytes::open(path)));
    let lines = lines.with_rests(&rests);
    let frames = addresses.iter().map(|address| lines.lookup(*address)).collect();
    (frames, rests.misses_some())
}

/// Functions and inlined calls of split units are found in the units' own files and in packages,
/// and are those that addr2line finds in the same program with all of its debug information.
#[test]
fn split_units_as_addr2line_has_them() {
    // dwp 2.40 does not know DWARF 5, and version 14 of LLVM's never terminates on gcc's.
    for (compiler, version, packer) in [
        ("gcc", "-gdwarf-4", Some("dwp")),
        ("gcc", "-gdwarf-5", None),
        ("clang", "-gdwarf-4", Some("dwp")),
        ("clang", "-gdwarf-5", Some("llvm-dwp")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let made = |name, more: &[&str]| compile_with(compiler, dir.path(), name, &[&["-g", version], more].concat());
        let split = ["-gsplit-dwarf", "-fdebug-types-section"];
        let (Some(whole), Some(program)) = (made("whole", &[]), made("program", &split)) else {
            return;
        };
        let asked = {
            let of = |path| addresses(&Image::of(&FileBytes::open(path).unwrap()).unwrap(), &["main", "outer"]);
            assert_eq!(of(&whole), of(&program), "{compiler} {version}: the code is the same");
            of(&whole)
        };
        let expected = asked.iter().map(|address| by_addr2line(&whole, *address));
        let Some(expected) = expected.collect::<Option<Vec<_>>>() else {
            backtrail_testkit::skip("no addr2line");
            return;
        };
        let check = |what: &str| {
            let (frames, misses_some) = with_rests(&program, &asked);
            for ((address, frames), expected) in asked.iter().zip(&frames).zip(&expected) {
                assert_eq!(
                    short(frames),
                    short(expected),
                    "{compiler} {version} {what} {address:#x}"
                );
            }
            assert!(!misses_some && frames.iter().any(|frames| frames.len() == 3));
        };
        check("units' own files");
        let package = dir.path().join("program.dwp");
        let is_packed = packer.is_some_and(|packer| {
            let mut pack = Command::new(packer);
            pack.current_dir(dir.path())
                .arg("-e")
                .arg(&program)
                .arg("-o")
                .arg(&package);
            match pack.output() {
                Ok(output) => {
                    assert!(output.status.success(), "{packer}: {output:?}");
                    true
                }
                Err(error) => {
                    skip(format_args!("{packer}: {error}"));
                    false
                }
            }
        });
        for file in fs::read_dir(dir.path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "dwo") {
                fs::remove_file(path).unwrap();
            }
        }
        if is_packed {
            check("package");
            fs::remove_file(&package).unwrap();
        }
        let (frames, misses_some) = with_rests(&program, &asked);
        assert!(misses_some && frames.iter().all(|frames| frames.len() == 1));
    }
}

#[test]
fn split_off_debug_information() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile(dir.path(), "a", &["-g"]) else {
        return;
    };
    let debug = dir.path().join("a.debug");
    let objcopy = |args: &[&str]| {
        Command::new("objcopy")
            .args(args)
            .status()
            .is_ok_and(|status| status.success())
    };
    let (name, debug_name) = (program.to_str().unwrap(), debug.to_str().unwrap());
    let link = format!("--add-gnu-debuglink={debug_name}");
    if !objcopy(&["--only-keep-debug", name, debug_name]) {
        backtrail_testkit::skip("no objcopy");
        return;
    }
    assert!(objcopy(&["--strip-debug", &link, name]));
    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    assert!(DebugSections::load(&image, None, &[]).unwrap().is_none());
    let found = Search::new().debug_file(&program, &image).unwrap();
    let debug_file = FileBytes::open(&found).unwrap();
    let debug_image = Image::parse(debug_file.bytes()).unwrap();
    let sections = DebugSections::load(&debug_image, None, &[]).unwrap().unwrap();
    let lines = Lines::new(&sections).unwrap();
    let main = addresses(&image, &["main"])[0];
    let frames = lines.lookup(main);
    assert_eq!(frames.last().unwrap().function.as_deref(), Some("main"));
    assert!(frames.last().unwrap().line.is_some());
}

/// Debug information as dwz leaves it: the function's name is in another file
/// (`DW_FORM_GNU_strp_alt`).
const WITH_ALT: &str = r#"
.globl _start
.type _start,@function
_start: nop
 nop
end: .size _start,.-_start
.section .debug_abbrev,"",@progbits
 .byte 1,0x11,1,0x11,1,0x12,7,0,0
 .byte 2,0x2e,0,3; .uleb128 0x1f21; .byte 0x11,1,0x12,7,0,0
 .byte 0
.section .debug_info,"",@progbits
 .long last-first
first: .short 4
 .long .debug_abbrev
 .byte 8
 .byte 1; .quad _start; .quad end-_start
 .byte 2; .long 6; .quad _start; .quad end-_start
 .byte 0
last:
.section .gnu_debugaltlink,"",@progbits
 .asciz "sup/shared.debug"
 .byte 0xab,0xcd,0xef,1,2,3,4,5
"#;

const ALT: &str = r#"
.section .debug_info,"",@progbits
.section .debug_str,"MS",@progbits,1
 .asciz "first"
 .asciz "shared_name"
"#;

#[test]
fn names_in_a_supplementary_file() {
    if !cfg!(target_arch = "x86_64") {
        backtrail_testkit::skip("the assembly is for x86-64");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let assemble = |text: &str, name: &str, args: &[&str]| {
        let source = dir.path().join("input.s");
        fs::write(&source, text).unwrap();
        let output = dir.path().join(name);
        let mut gcc = Command::new("gcc");
        gcc.arg("-nostdlib").args(args).arg(&source).arg("-o").arg(&output);
        gcc.status().is_ok_and(|status| status.success()).then_some(output)
    };
    fs::create_dir(dir.path().join("sup")).unwrap();
    let id = "-Wl,--build-id=0xabcdef0102030405";
    let made = (
        assemble(WITH_ALT, "program", &["-Wl,--build-id=none"]),
        assemble(ALT, "sup/shared.debug", &["-shared", id]),
    );
    let (Some(program), Some(shared)) = made else {
        backtrail_testkit::skip("gcc cannot assemble here");
        return;
    };
    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let link = image.debugaltlink().unwrap();
    let found = Search::new().supplementary(&program, &link).unwrap();
    assert_eq!(found, shared);
    let supplementary = FileBytes::open(found).unwrap();
    let supplementary = Image::parse(supplementary.bytes()).unwrap();
    let name = |with: Option<&Image<'_>>| {
        let sections = DebugSections::load(&image, with, &[]).unwrap().unwrap();
        let frames = Lines::new(&sections).unwrap().lookup(image.entry() + 1);
        frames.first().and_then(|frame| frame.function.clone())
    };
    assert_eq!(name(Some(&supplementary)).as_deref(), Some("shared_name"));
    assert_eq!(name(None), None);
    // A file with another build ID is not accepted.
    assert!(
        assemble(
            ALT,
            "sup/shared.debug",
            &["-shared", "-Wl,--build-id=0xabcdef0102030406"]
        )
        .is_some()
    );
    assert_eq!(Search::new().supplementary(&program, &link), None);
}

#[test]
fn damaged_debug_information_does_no_harm() {
    assert!(answers_of_damaged(&["-g"]).is_none_or(|answers| answers > 1000));
    // Hardly any of it can be unpacked.
    assert!(answers_of_damaged(&["-g", "-gz"]).is_none_or(|answers| answers > 0));
}

/// The number of frames from damaged debug information in a second.
fn answers_of_damaged(options: &[&str]) -> Option<usize> {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "a", options)?;
    let original = fs::read(&program).unwrap();
    let image = Image::parse(&original).unwrap();
    let targets = addresses(&image, &["main", "outer"]);
    let ranges: Vec<(usize, usize)> = image
        .sections()
        .iter()
        .filter(|section| section.name.starts_with(b".debug_"))
        .map(|section| (section.offset as usize, section.size as usize))
        .collect();
    assert!(ranges.len() >= 4);
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = move |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    let end = Instant::now() + Duration::from_secs(1);
    let mut answers = 0;
    while Instant::now() < end {
        let mut data = original.clone();
        for _ in 0..1 + random(6) {
            let (offset, size) = ranges[random(ranges.len())];
            data[offset + random(size)] = random(256) as u8;
        }
        let image = Image::parse(&data).unwrap();
        let Ok(Some(sections)) = DebugSections::load(&image, None, &targets) else {
            continue;
        };
        let Ok(lines) = Lines::new(&sections) else { continue };
        for address in &targets {
            answers += lines.lookup(*address).len();
        }
    }
    Some(answers)
}

/// The frames of an address from the addr2line crate, which reads all units first.
fn by_library(context: &addr2line::Context<EndianSlice<'_, LittleEndian>>, svma: u64) -> Vec<Frame> {
    let mut found = Vec::new();
    let location = |location: Option<addr2line::Location<'_>>| {
        let file = location.as_ref().and_then(|location| location.file);
        // In older versions, file 0 does not exist.
        let file = file.filter(|file| !file.is_empty()).map(str::to_owned);
        (file, location.and_then(|location| location.line))
    };
    let mut frames = context
        .find_frames(svma)
        .skip_all_loads()
        .expect("undamaged debug information");
    while let Some(frame) = frames.next().expect("undamaged debug information") {
        let (file, line) = location(frame.location);
        let name = frame.function.map(|name| name.raw_name().expect("text").into_owned());
        found.push(Frame {
            function: name,
            file,
            line,
        });
    }
    if found.is_empty()
        && let Some(place) = context.find_location(svma).expect("undamaged debug information")
    {
        let (file, line) = location(Some(place));
        found.push(Frame {
            function: None,
            file,
            line,
        });
    }
    found
}

/// Compares about `count` addresses of a file's code with the other reader.
fn as_the_library(path: &Path, count: u64) {
    let file = FileBytes::open(path).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let sections = DebugSections::load(&image, None, &[])
        .unwrap()
        .expect("debug information");
    let lines = Lines::new(&sections).unwrap();
    let load = |id: gimli::SectionId| {
        let section = image.section(id.name()).unwrap();
        let bytes: &[u8] = section.map_or(&[], |section| Vec::leak(section.data.into_owned()));
        Ok::<_, gimli::Error>(EndianSlice::new(bytes, LittleEndian))
    };
    let context = addr2line::Context::from_dwarf(gimli::Dwarf::load(load).unwrap()).unwrap();
    let text = image
        .sections()
        .iter()
        .find(|section| section.name == b".text")
        .unwrap();
    let (mut frames, mut inlined) = (0, 0);
    for svma in (text.address..text.address + text.size).step_by((text.size / count).max(1) as usize) {
        let (found, expected) = (lines.lookup(svma), by_library(&context, svma));
        assert_eq!(found, expected, "{} {svma:#x}", path.display());
        frames += found.len();
        inlined += found.len().saturating_sub(1);
    }
    println!("{}: {frames} frames, {inlined} inlined", path.display());
    assert!(frames > 0);
    in_part_as_in_whole(&image, &lines, text.address..text.address + text.size, 24);
}

/// Loads the sections for one address, and looks up that address and others; returns how often only
/// parts of the sections were unpacked at first.
fn in_part_as_in_whole(image: &Image<'_>, whole: &Lines<'_>, code: Range<u64>, count: u64) -> usize {
    let step = ((code.end - code.start) / count).max(1) as usize;
    let mut parts = 0;
    for asked in code.clone().step_by(step) {
        let sections = DebugSections::load(image, None, &[asked])
            .unwrap()
            .expect("debug information");
        let lines = Lines::new(&sections).unwrap();
        for svma in [asked].into_iter().chain(code.clone().step_by(step)) {
            assert_eq!(lines.lookup(svma), whole.lookup(svma), "{asked:#x}: {svma:#x}");
        }
        parts += usize::from(sections.is_partial());
    }
    parts
}

/// Compressed sections of several units; link-time optimization makes the units refer to each
/// other.
#[test]
fn what_is_unpacked_in_part_answers_as_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let unit = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let mut sources = vec![unit(
        "main.c",
        "int f0(int); int main(int c, char **v) { (void)v; return f0(c); }\n",
    )];
    for n in 0..12 {
        let text = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f{next}(int);\n\
             static inline __attribute__((always_inline)) int inner{n}(int a) {{ return a * printf(\"%d\", a); }}\n\
             __attribute__((noinline)) int f{n}(int a) {{ return inner{n}(a) + (a > {n} ? f{next}(a - 1) : 1); }}\n",
            next = (n + 1) % 12
        );
        sources.push(unit(&format!("unit{n}.c"), &text));
    }
    for options in [
        &["-gdwarf-5"][..],
        &["-gdwarf-4"],
        &["-g", "-flto", "-flto-partition=max"],
    ] {
        let program = dir.path().join("program");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-gz=zlib"])
            .args(options)
            .args(&sources)
            .arg("-o")
            .arg(&program);
        if !gcc.status().is_ok_and(|status| status.success()) {
            skip(format!("gcc cannot compile this here: {options:?}"));
            continue;
        }
        let file = FileBytes::open(&program).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let sections = DebugSections::load(&image, None, &[])
            .unwrap()
            .expect("debug information");
        assert!(!sections.is_partial());
        let lines = Lines::new(&sections).unwrap();
        let code = addresses(&image, &["f3", "f7", "main", "f11"]);
        let (first, last) = (code.iter().min().unwrap(), code.iter().max().unwrap());
        let mut named = (*first..*last)
            .flat_map(|svma| lines.lookup(svma))
            .filter_map(|frame| frame.function);
        assert!(named.any(|name| name == "f7"), "{options:?}");
        let parts = in_part_as_in_whole(&image, &lines, *first..*last + 1, 40);
        println!("{options:?}: {parts} times in parts");
        assert!(parts > 4, "{options:?}");
    }
}

#[test]
fn every_kind_of_program_as_a_reader_of_all_units_has_it() {
    // A Rust program with thousands of units, most of them from the standard library.
    as_the_library(&std::env::current_exe().unwrap(), 20_000);
    for program in [program::PARKED, program::PARKED_CPP, program::PARKED_STATIC] {
        if let Some(path) = available(program.build()) {
            as_the_library(&path, 2_000);
        }
    }
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let debug = FileBytes::open(libc).ok().and_then(|file| {
        let image = Image::parse(file.bytes()).ok()?;
        Search::new().debug_file(libc, &image)
    });
    match debug {
        Some(debug) => as_the_library(&debug, 20_000),
        None => skip("there is no debug file of the C library"),
    }
}
