//! Tables of real files: a written table reads back as it was converted, with and without the
//! cache.

use crate::common;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backtrail_cfi::eh_frame::{self, Converted, EhFrame};
use backtrail_cfi::registers::{CallFrames, Held};
use backtrail_cfi::tables::{self, Error, Table, TableOrigin, Tables, convert};
use backtrail_elf::{FileBytes, Image, SectionData, Symbols};
use backtrail_sframe::write::{FunctionRows, Options};
use backtrail_sframe::{Base, Location, Section, Version, write};
use backtrail_testkit::available;
use backtrail_testkit::command::run;
use common::real_files;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_written_table_says_what_was_converted() {
    for path in real_files() {
        let file = FileBytes::open(&path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let Ok(converted) = convert(&image) else { continue };
        let table = Tables::without_cache().load(&image).unwrap();
        assert_eq!(table.origin, TableOrigin::Converted);
        assert_eq!(table.uncovered_bytes, converted.uncovered_bytes());
        let section = table.section().unwrap();
        let read: Vec<FunctionRows> = section
            .functions()
            .map(|function| FunctionRows::read(&function.unwrap()).unwrap())
            .collect();
        assert_eq!(read.len(), converted.functions.len());
        for (read, converted) in read.iter().zip(&converted.functions) {
            assert_eq!(read, converted, "{}", path.display());
        }
        println!(
            "{}: {} functions, {} bytes",
            path.display(),
            read.len(),
            table.bytes.len()
        );
    }
}

/// Looked up at its ends, in between, and after it.
#[test]
fn the_table_of_a_function_says_what_that_of_its_module_does() {
    for path in real_files() {
        let file = FileBytes::open(&path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let (Ok(converted), Ok(Some(frames))) = (convert(&image), image.eh_frame()) else {
            continue;
        };
        let held = |section: SectionData<'_>| Held {
            address: section.address,
            bytes: section.data.into_owned(),
        };
        let header = image.eh_frame_hdr().unwrap().map(held);
        let whole = Tables::without_cache().load(&image).unwrap();
        let asked = CallFrames::new(&image, held(frames), header);
        let (mut same, mut missing) = (0, 0);
        // One may have been looked up at the end of the function before it.
        let misdescribed = RefCell::new(BTreeSet::new());
        let correct = |function: &mut FunctionRows| {
            let is_correct = tables::correct(&image, function);
            if !is_correct {
                misdescribed.borrow_mut().insert(function.start);
            }
            is_correct
        };
        for function in converted.functions.iter().step_by(1 + converted.functions.len() / 2000) {
            let first = asked.function(function.start, correct);
            if misdescribed.borrow().contains(&function.start) {
                assert_eq!(first, None);
                continue;
            }
            let end = function.start + u64::from(function.size);
            for svma in [
                function.start,
                function.start + u64::from(function.size) / 2,
                end - 1,
                end,
            ] {
                let row = |section: &Section<'_>| {
                    let found = section.lookup(svma).unwrap()?;
                    Some((found.row.rule, found.function.signal_frame))
                };
                match asked.function(svma, correct) {
                    Some(table) => {
                        let table = Section::parse(table, 0).unwrap();
                        let by_module = row(&whole.section().unwrap());
                        assert_eq!(row(&table), by_module, "{}: {svma:#x}", path.display());
                        same += 1;
                    }
                    None => missing += usize::from(svma < end && asked.describes(svma)),
                }
            }
        }
        println!("{}: {same} addresses, {missing} missing", path.display());
        assert!(missing == 0 && same > 0);
    }
}

/// AArch64's `_start` says after its first instruction that it has no caller; what the link
/// register has until then is a leftover.
#[test]
fn the_entry_point_is_outermost_from_its_first_instruction() {
    let folder = backtrail_testkit::scratch();
    let (source, program) = (folder.path().join("main.c"), folder.path().join("main"));
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut compile = Command::new("aarch64-linux-gnu-gcc");
    let Some(compiled) = available(run(compile.arg("-o").arg(&program).arg(&source), LIMIT)) else {
        return;
    };
    assert!(compiled.status.success(), "{}", compiled.describe());
    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let (entry, section) = (image.entry(), image.eh_frame().unwrap().unwrap());
    let said = eh_frame::convert(&EhFrame::of_image(&image, &section.data, section.address));
    let first = |converted: &Converted| converted.find(entry).unwrap().rows[0].rule;
    assert_ne!(first(&said), None, "else this file shows nothing");
    assert_eq!(first(&convert(&image).unwrap()), None);
    let address = section.address;
    let bytes = section.data.into_owned();
    let asked = CallFrames::new(&image, Held { address, bytes }, None);
    let table = Section::parse(asked.function(entry, |_| true).unwrap(), 0).unwrap();
    assert_eq!(table.lookup(entry).unwrap().unwrap().row.rule, None);
}

#[test]
fn debug_frame_says_what_eh_frame_says() {
    let folder = backtrail_testkit::scratch();
    let source = backtrail_testkit::place::programs().join("deep.c");
    let functions = |name: &str, flags: &[&str]| {
        let path = folder.path().join(name);
        let mut compile = Command::new("cc");
        compile.args([
            "-O2",
            "-g",
            "-fomit-frame-pointer",
            "-fPIC",
            "-shared",
            "-nostdlib",
            "-Wl,-z,now",
        ]);
        compile.args(flags).arg("-o").arg(&path).arg(&source);
        let compiled = available(run(&mut compile, LIMIT))?;
        assert!(compiled.status.success(), "{}", compiled.describe());
        let file = FileBytes::open(&path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let table = Tables::without_cache().load(&image).unwrap();
        let section = table.section().unwrap();
        let read = section
            .functions()
            .map(|function| FunctionRows::read(&function.unwrap()).unwrap());
        Some((
            image.eh_frame().unwrap().is_some(),
            read.map(|function| (function.size, function.rows)).collect::<Vec<_>>(),
        ))
    };
    let Some((true, by_eh_frame)) = functions("eh.so", &[]) else {
        return;
    };
    let flags = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let Some((has_eh_frame, by_debug_frame)) = functions("debug.so", &flags) else {
        return;
    };
    assert!(!has_eh_frame || by_debug_frame.len() < by_eh_frame.len());
    let same = by_debug_frame
        .iter()
        .filter(|function| by_eh_frame.contains(function))
        .count();
    assert!(same >= 5, "{by_debug_frame:?}\n{by_eh_frame:?}");
    assert_eq!(same, by_debug_frame.len(), "{by_debug_frame:?}\n{by_eh_frame:?}");
}

pub(crate) fn library() -> Option<PathBuf> {
    let found = real_files()
        .into_iter()
        .find(|path| path.to_string_lossy().contains("libc.so"));
    if found.is_none() {
        backtrail_testkit::skip("no C library found");
    }
    found
}

#[test]
fn the_cache_is_private_checked_and_repaired() {
    let Some(path) = library() else { return };
    let file = FileBytes::open(path).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tables = Tables::open(Some(dir.path().join("new")));
    let first = tables.load(&image).unwrap();
    assert_eq!(first.origin, TableOrigin::Converted);
    let second = tables.load(&image).unwrap();
    assert_eq!(second.origin, TableOrigin::Cached);
    assert_eq!(
        (&second.bytes, second.uncovered_bytes),
        (&first.bytes, first.uncovered_bytes)
    );

    let folder = dir.path().join("new/sframe-v19");
    let entries: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(entries.len(), 1, "one entry and nothing temporary: {entries:?}");
    let entry = &entries[0];
    assert_eq!(fs::metadata(entry).unwrap().permissions().mode() & 0o777, 0o600);
    for folder in [folder.as_path(), folder.parent().unwrap()] {
        assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
    // The section as other SFrame readers see it.
    let bytes = fs::read(entry).unwrap();
    assert!(bytes.starts_with(&first.bytes));

    let middle = bytes.len() / 2;
    let flipped = [&bytes[..middle], &[bytes[middle] ^ 4], &bytes[middle + 1..]].concat();
    for damaged in [&flipped[..], &bytes[..middle], &[], &bytes[..10]] {
        fs::write(entry, damaged).unwrap();
        assert_eq!(tables.load(&image).unwrap().origin, TableOrigin::Converted);
        assert_eq!(tables.load(&image).unwrap().origin, TableOrigin::Cached);
    }
    // Another file with the same build ID.
    let mut other = file.bytes().to_vec();
    let section = image.section_header(".eh_frame").unwrap();
    let end = (section.offset + section.size) as usize;
    // The last word is the terminator; the padding of the last FDE is before it.
    other[end - 5] = if other[end - 5] == 0 { 0x0a } else { 0 };
    let other = Image::parse(&other).unwrap();
    assert_eq!(other.build_id(), image.build_id());
    assert_eq!(tables.load(&other).unwrap().origin, TableOrigin::Converted);
}

#[test]
fn large_files_without_a_build_id_are_known_by_their_code() {
    let Some(path) = library() else { return };
    let mut bytes = FileBytes::open(path).unwrap().bytes().to_vec();
    let (note, code) = {
        let image = Image::parse(&bytes).unwrap();
        let section = |name| image.section_header(name).unwrap().offset as usize;
        (section(".note.gnu.build-id"), section(".text"))
    };
    // Another type of note.
    bytes[note + 8] ^= 0x40;
    let dir = tempfile::tempdir().unwrap();
    let tables = Tables::open(Some(dir.path().to_owned()));
    let origin = |bytes: &[u8]| {
        let image = Image::parse(bytes).unwrap();
        assert_eq!(image.build_id(), None);
        tables.load(&image).unwrap().origin
    };
    assert_eq!(
        [origin(&bytes), origin(&bytes)],
        [TableOrigin::Converted, TableOrigin::Cached]
    );
    bytes[code] ^= 1;
    assert_eq!(
        [origin(&bytes), origin(&bytes)],
        [TableOrigin::Converted, TableOrigin::Cached]
    );
}

#[test]
fn without_a_place_for_the_cache_it_works() {
    let Some(path) = library() else { return };
    let file = FileBytes::open(path).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("file");
    fs::write(&blocked, "not a folder").unwrap();
    for _ in 0..2 {
        let table = Tables::open(Some(blocked.clone())).load(&image).unwrap();
        assert_eq!(table.origin, TableOrigin::Converted);
    }
}

const PROGRAM: &str = "int f(int a){return a+1;} int main(void){return f(1);}";

/// The output of gcc for this source.
fn gcc(folder: &Path, name: &str, text: &str, options: &[&str]) -> Option<PathBuf> {
    let (source, program) = (folder.join(name), folder.join("a"));
    fs::write(&source, text).unwrap();
    let mut compile = Command::new("gcc");
    compile.args(options).arg(&source).arg("-o").arg(&program);
    let made = available(run(&mut compile, LIMIT))?;
    if made.code() != 0 {
        backtrail_testkit::skip(made.describe());
        return None;
    }
    Some(program)
}

/// A section that was added to a file is preferred to .eh_frame; a damaged one is not.
#[test]
fn a_shipped_table_is_used_where_it_is_sound() {
    let dir = backtrail_testkit::scratch();
    let Some(object) = gcc(dir.path(), "a.c", PROGRAM, &[]) else {
        return;
    };
    let file = FileBytes::open(&object).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let converted = convert(&image).unwrap();
    let abi = backtrail_cfi::tables::abi(&image);
    // objcopy sets the address of a section that is not loaded to 0.
    let written = write::section(&converted.functions, &Options::new(Version::V3, abi, 0)).unwrap();
    let mut origins = Vec::new();
    for bytes in [written.bytes.clone(), written.bytes[..written.bytes.len() - 9].to_vec()] {
        let section = dir.path().join("section");
        fs::write(&section, &bytes).unwrap();
        let output = dir.path().join("b");
        let option = format!("--add-section=.sframe={}", section.display());
        let done = Command::new("objcopy").arg(option).arg(&object).arg(&output).status();
        if !done.is_ok_and(|status| status.success()) {
            backtrail_testkit::skip("no objcopy");
            return;
        }
        let file = FileBytes::open(&output).unwrap();
        let table = Tables::without_cache()
            .load(&Image::parse(file.bytes()).unwrap())
            .unwrap();
        assert!(table.section().unwrap().num_fdes() > 0);
        origins.push(table.origin);
    }
    assert_eq!(origins, [TableOrigin::Shipped, TableOrigin::Converted]);
}

/// The output of the machine's assembler and linker: rows for the program, none for the start
/// files.
#[test]
fn a_shipped_table_is_completed() {
    let dir = backtrail_testkit::scratch();
    let Some(program) = gcc(dir.path(), "a.c", PROGRAM, &["-O1", "-Wa,--gsframe"]) else {
        return;
    };
    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let own = image.sframe().unwrap().expect("the linker keeps .sframe");
    let own = backtrail_sframe::Section::parse(&own.data, own.address).unwrap();
    let cache = Tables::open(Some(dir.path().into()));
    for expected in [TableOrigin::Completed, TableOrigin::Cached] {
        let table = cache.load(&image).unwrap();
        assert_eq!(table.origin, expected);
        let section = table.section().unwrap();
        let symbols = backtrail_elf::Symbols::new(&image);
        let main = symbols.iter().find(|symbol| symbol.name == "main").unwrap();
        for pc in main.address..main.address + main.size {
            let found = section.lookup(pc).unwrap().unwrap();
            assert_eq!(found.row.rule, own.lookup(pc).unwrap().unwrap().row.rule);
        }
        // The start file marks the ends of stacks; .sframe does not cover it.
        assert!(own.lookup(image.entry() + 4).unwrap().is_none());
        assert_eq!(section.lookup(image.entry() + 4).unwrap().unwrap().row.rule, None);
        for function in convert(&image).unwrap().functions {
            assert!(
                section.lookup(function.start).unwrap().is_some(),
                "{:#x}",
                function.start
            );
        }
    }
}

#[test]
fn the_entry_point_is_outermost_even_without_an_fde() {
    if !cfg!(target_arch = "x86_64") {
        backtrail_testkit::skip("the assembly is for x86-64");
        return;
    }
    let text = ".globl _start\n.type _start,@function\n_start: call f\n hlt\n.size _start,.-_start\n\
                .type f,@function\nf: .cfi_startproc\n ret\n.cfi_endproc\n.size f,.-f\n";
    let dir = backtrail_testkit::scratch();
    let Some(program) = gcc(dir.path(), "a.s", text, &["-nostdlib"]) else {
        return;
    };
    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let converted = convert(&image).unwrap();
    let start = converted.find(image.entry()).unwrap();
    // `call f` is 5 bytes, `hlt` 1; f follows directly.
    assert_eq!((start.start, start.size), (image.entry(), 6));
    assert_eq!(start.rows.len(), 1);
    assert_eq!(start.rows[0].rule, None);
    let f = converted.find(image.entry() + 6).unwrap();
    assert!(f.rows[0].rule.is_some());
}

#[test]
fn a_file_without_tables_says_so() {
    let dir = backtrail_testkit::scratch();
    let options = ["-nostdlib", "-static", "-Wl,--no-ld-generated-unwind-info"];
    let Some(program) = gcc(dir.path(), "a.s", ".globl _start\n_start: ret\n", &options) else {
        return;
    };
    let file = FileBytes::open(&program).unwrap();
    let error = Tables::without_cache()
        .load(&Image::parse(file.bytes()).unwrap())
        .unwrap_err();
    assert_eq!(error, Error::NoUnwindInformation);
}

/// The vdso has no file: it is read from this process's memory.
#[test]
fn the_vdso_as_it_lies_in_memory() {
    use std::io::{Read, Seek, SeekFrom};
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        backtrail_testkit::skip("no vdso in this process");
        return;
    };
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    let start = u64::from_str_radix(start, 16).unwrap();
    let end = u64::from_str_radix(end, 16).unwrap();
    let mut bytes = vec![0; (end - start) as usize];
    let mut memory = fs::File::open("/proc/self/mem").unwrap();
    memory.seek(SeekFrom::Start(start)).unwrap();
    if memory.read_exact(&mut bytes).is_err() {
        backtrail_testkit::skip("this process cannot read its own memory");
        return;
    }
    let image = Image::parse_memory(&bytes, start).unwrap();
    let symbols = backtrail_elf::Symbols::new(&image);
    let Some(time) = symbols.iter().find(|symbol| symbol.name.ends_with("clock_gettime")) else {
        panic!("no clock_gettime among {} symbols", symbols.len());
    };
    // That of AArch64 has no call frame information.
    let table = Tables::without_cache().load_any(&image, None).unwrap().unwrap();
    let found = table.section().unwrap().lookup(time.address + 1).unwrap();
    assert!(found.is_some_and(|found| found.row.rule.is_some()), "{time:?}");
}

/// Code without an FDE: objdump shows where in the linkage table the register pair is on the stack,
/// from the end of its push to the jump.
#[test]
fn linkage_tables_of_aarch64_have_rows() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("a.c");
    fs::write(&source, "#include <stdio.h>\nint main(void){return puts(\"text\");}").unwrap();
    let program = dir.path().join("a");
    let mut compile = Command::new("aarch64-linux-gnu-gcc");
    compile
        .args(["-O1", "-Wl,-z,lazy"])
        .arg(&source)
        .arg("-o")
        .arg(&program);
    let Some(made) = available(run(&mut compile, LIMIT)) else {
        return;
    };
    assert!(made.status.success(), "{}", made.describe());
    let mut disassemble = Command::new("aarch64-linux-gnu-objdump");
    disassemble
        .args(["-d", "-j", ".plt", "--no-show-raw-insn"])
        .arg(&program);
    let Some(listing) = available(run(&mut disassemble, LIMIT)) else {
        return;
    };
    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let table = Tables::without_cache().load(&image).unwrap();
    let section = table.section().unwrap();
    let mut is_pushed = false;
    let mut pushed = 0;
    let mut stubs = 0;
    for line in listing.stdout.lines() {
        let Some((address, instruction)) = line.trim_start().split_once(":\t") else {
            continue;
        };
        let Ok(pc) = u64::from_str_radix(address, 16) else {
            continue;
        };
        // Padding after the first entry's jump.
        if instruction.starts_with("nop") {
            continue;
        }
        let found = section.lookup(pc).unwrap();
        let rule = found.unwrap_or_else(|| panic!("no rows: {line}")).row.rule.unwrap();
        let (cfa, ra) = match is_pushed {
            true => (Location::register(31, 16), Location::saved(-8)),
            false => (Location::register(31, 0), Location::register(30, 0)),
        };
        assert_eq!((rule.cfa, rule.ra, rule.fp), (cfa, ra, None), "{line}");
        match is_pushed {
            true => pushed += 1,
            false => stubs += 1,
        }
        is_pushed |= instruction.starts_with("stp\tx16, x30, [sp, #-16]!");
        is_pushed &= !instruction.starts_with("br\t");
    }
    assert!(pushed >= 4 && stubs > 12, "{}", listing.stdout);

    // The same without section headers, as in memory: the linkage table is found by its
    // instructions.
    let mut bytes = file.bytes().to_vec();
    for range in [40..48, 60..64] {
        // e_shoff, e_shnum and e_shstrndx
        bytes[range].fill(0);
    }
    let bare = Image::parse(&bytes).unwrap();
    assert!(bare.sections().is_empty());
    let again = Tables::without_cache().load(&bare).unwrap();
    let lines = listing
        .stdout
        .lines()
        .filter_map(|line| line.trim_start().split_once(":\t"));
    let pcs = lines.filter_map(|(address, _)| u64::from_str_radix(address, 16).ok());
    let rule = |section: &Section<'_>, pc| section.lookup(pc).unwrap().and_then(|found| found.row.rule);
    for pc in pcs {
        assert_eq!(rule(&again.section().unwrap(), pc), rule(&section, pc), "{pc:#x}");
    }
}

/// Go's linker takes the contents of `.debug_frame` from `.gopclntab`.
#[test]
fn go_without_debug_information_says_what_it_says_with_it() {
    let folder = backtrail_testkit::scratch();
    let source = backtrail_testkit::place::workspace().join("crates/cli/tests/programs/parked.go");
    for architecture in ["amd64", "arm64"] {
        let table = |flags: &str| {
            let built = folder.path().join(format!("{architecture}{flags}"));
            let mut build = Command::new("go");
            build.args(["build", "-ldflags", flags, "-o"]).arg(&built).arg(&source);
            build.env("GOCACHE", backtrail_testkit::place::target().join("testprograms/go"));
            build.env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
            build.env("GOARCH", architecture).env("CGO_ENABLED", "0");
            let made = available(run(&mut build, LIMIT))?;
            assert!(made.status.success(), "{}", made.describe());
            let file = FileBytes::open(&built).unwrap();
            let image = Image::parse(file.bytes()).unwrap();
            let text = image.section_header(".text").unwrap();
            let text = text.address..text.address + text.size;
            let made = Tables::without_cache().load(&image).unwrap();
            // Go's linker writes no build ID, but the table takes as long to make.
            let tables = Tables::open(Some(folder.path().join("cache")));
            for origin in [TableOrigin::Converted, TableOrigin::Cached] {
                let table = tables.load(&image).unwrap();
                assert_eq!(table.origin, origin, "{architecture}{flags}");
                assert!(table.bytes == made.bytes);
            }
            Some((made, text))
        };
        let (Some((with, text)), Some((without, _))) = (table(""), table("-w")) else {
            return;
        };
        let (with, without) = (with.section().unwrap(), without.section().unwrap());
        let (mut same, mut only_without, mut first) = (0, 0, 0);
        for svma in text.step_by(4) {
            let rule = |table: &Section<'_>| Some(table.lookup(svma).unwrap()?.row.rule);
            match (rule(&with), rule(&without)) {
                (None, Some(_)) => only_without += 1,
                // The first functions of stacks: `.debug_frame` gives a return address for them,
                // though nothing has called them.
                (Some(Some(_)), Some(None)) => first += 1,
                (with, without) => {
                    assert_eq!(without, with, "{architecture} {svma:#x}");
                    same += usize::from(with.is_some());
                }
            }
        }
        println!(
            "{architecture}: {same} addresses, {only_without} without debug information only, {first} in first functions"
        );
        assert!(same > 50_000 && first < 1000);
    }
}

/// glibc's `_dl_runtime_resolve` and `_dl_runtime_profile`, whose call frame information leaves out
/// what stubs have pushed.
#[test]
fn the_resolvers_of_aarch64_are_entered_after_a_push() {
    const LOADER: &str = "/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1";
    const LR: u8 = 30;
    let Ok(file) = FileBytes::open(Path::new(LOADER)) else {
        backtrail_testkit::skip(format_args!("there is no {LOADER} (Debian: libc6-arm64-cross)"));
        return;
    };
    let image = Image::parse(file.bytes()).unwrap();
    let converted = convert(&image).unwrap();
    let functions = converted.functions.iter();
    let resolvers: Vec<&FunctionRows> = functions
        .filter(|function| !tables::correct(&image, &mut FunctionRows::clone(function)))
        .collect();
    assert_eq!(resolvers.len(), 2, "{resolvers:x?}");
    // Where the return address is: in the resolver's frame above, in the profiler's at its end.
    for (resolver, saved_at) in resolvers.into_iter().zip([-8, -504]) {
        let rules = || resolver.rows.iter().filter_map(|row| row.rule);
        assert_eq!(rules().next().map(|rule| rule.cfa.offset), Some(16));
        let popped = rules().find(|rule| rule.cfa.offset == 0);
        assert_eq!(popped.map(|rule| rule.ra), Some(Location::register(LR, 0)));
        let saved = rules().filter(|rule| rule.ra.deref);
        assert!(saved.clone().count() > 0 && saved.clone().all(|rule| rule.ra == Location::saved(saved_at)));
    }
}

/// Like LuaJIT's interpreter: one rule for code that makes a frame, calls a function inside its own
/// code, and leaves the frame.
#[test]
fn returns_show_where_a_rule_for_all_code_is_wrong() {
    if !cfg!(target_arch = "x86_64") {
        return backtrail_testkit::skip("the assembly is for x86-64");
    }
    const CODE: &str = "
        .globl interpreter
        .type interpreter, @function
    interpreter:
        .cfi_startproc simple
        .cfi_def_cfa rsp, 48
        .cfi_offset rip, -8
        .cfi_offset rbp, -16
        mov eax, [rdi]
        call next
        test eax, eax
        jnz interpreter
        jmp [rdi + 8]
    leave:
        add rsp, 32
        pop rbp
        ret
    next:
        cmp esi, [rdi]
        jae 1f
        lea rax, [rsp + 8]
        ret
    1:  push rbx
        cpuid
        pop rbx
        ret
        .cfi_endproc
        .size interpreter, . - interpreter
        .section .note.GNU-stack,\"\",@progbits
    ";
    // What `objdump -d` shows: the offsets of instructions, and what is between the stack pointer
    // and the caller's.
    const SHOWN: [(u64, i32); 12] = [
        (0, 48),
        (2, 48),
        (7, 48),
        (11, 48),
        (14, 48),
        (18, 16),
        (19, 8),
        (20, 8),
        (24, 8),
        (29, 8),
        (31, 16),
        (34, 8),
    ];
    let Some((library, start)) = assembled(CODE) else {
        return;
    };
    let table = table_of(&library);
    let section = table.section().unwrap();
    for (offset, cfa) in SHOWN {
        let found = section.lookup(start + offset).unwrap().unwrap();
        let rule = found.row.rule.unwrap();
        assert_eq!(
            (rule.cfa, rule.ra),
            (Location::register(7, cfa), Location::saved(-8)),
            "{offset}"
        );
    }
}

/// Like glibc's `__longjmp`: its caller is there until the stack pointer changes, whatever other
/// registers it has loaded.
#[test]
fn code_that_loads_another_frame_has_its_caller_until_it_leaves() {
    const CODE: &str = "
        .globl leave
        .type leave, @function
    leave:
        .cfi_startproc
        mov r8, [rdi + 48]
        mov r9, [rdi + 8]
        mov rdx, [rdi + 56]
        .cfi_def_cfa rdi, 0
        .cfi_register rsp, r8
        .cfi_register rbp, r9
        .cfi_register rip, rdx
        .cfi_offset rbx, 0
        mov rbx, [rdi]
        mov eax, esi
        mov rsp, r8
        mov rbp, r9
        jmp rdx
        .cfi_endproc
        .size leave, . - leave
        .section .note.GNU-stack,\"\",@progbits
    ";
    let Some((library, start)) = assembled(CODE) else {
        return;
    };
    let table = table_of(&library);
    let section = table.section().unwrap();
    let caller = |offset| places_at(&section, start + offset);
    for offset in [0, 4, 8, 12, 15, 17] {
        let called = (Location::register(7, 8), Location::saved(-8), None);
        assert_eq!(caller(offset), called, "{offset}");
    }
    for offset in [20, 23] {
        assert!(is_lost(caller(offset)), "{offset}");
    }
}

/// From the call on in which libgcc's functions overwrite their frames, they have another return
/// address, or none.
#[test]
fn frames_that_are_overwritten_for_a_handler() {
    const LEAVING: [&str; 4] = [
        "_Unwind_RaiseException",
        "_Unwind_Resume",
        "_Unwind_ForcedUnwind",
        "_Unwind_Resume_or_Rethrow",
    ];
    for path in [
        "/lib/x86_64-linux-gnu/libgcc_s.so.1",
        "/usr/aarch64-linux-gnu/lib/libgcc_s.so.1",
    ] {
        let Ok(file) = FileBytes::open(Path::new(path)) else {
            backtrail_testkit::skip(format_args!("there is no {path}"));
            continue;
        };
        let image = Image::parse(file.bytes()).unwrap();
        let said = image.eh_frame().unwrap().unwrap();
        let said = eh_frame::convert(&EhFrame::of_image(&image, &said.data, said.address));
        let (table, symbols) = (table_of(&file), Symbols::new(&image));
        let section = table.section().unwrap();
        for name in LEAVING {
            let start = symbols.iter().find(|symbol| symbol.name == name).unwrap().address;
            let function = said.find(start).unwrap();
            let rules = (start..start + u64::from(function.size)).map(|svma| section.lookup(svma).unwrap().unwrap());
            let places: Vec<Location> = rules.map(|found| found.row.rule.unwrap().ra).collect();
            let said = |place: &Location| function.rows.iter().any(|row| row.rule.unwrap().ra == *place);
            let is_lost = |place: &Location| place.base == Base::Register(32);
            let others = places.iter().filter(|place| !said(place) && !is_lost(place));
            let others: BTreeSet<i32> = others.map(|place| place.offset).collect();
            assert!(
                others.len() == 1 && places.iter().any(is_lost),
                "{path}: {name}: {others:?}"
            );
        }
    }
}

/// Like glibc's `setcontext`, of which the last three bytes have an FDE of their own with what
/// reports an error, its `swapcontext`, whose FDE has one row, and its `longjmp` that checks.
#[test]
fn code_that_resumes_a_context_has_its_caller_until_it_leaves_the_stack() {
    const LOADS: &str = "
        mov rsp, [rdx + 160]
        mov rbx, [rdx + 128]
        mov rcx, [rdx + 168]
        push rcx
        mov rdx, [rdx + 136]
    ";
    let code = format!(
        "
        .type set, @function
    set:
        .cfi_startproc
        push rdi
        .cfi_adjust_cfa_offset 8
        pop rdx
        .cfi_adjust_cfa_offset -8
        cmp rax, -4095
        jae 1f
        .cfi_def_cfa rdx, 0
        .cfi_offset rip, 168
        .cfi_offset rsp, 160
        .cfi_offset rbp, 120
        {LOADS}
        .cfi_endproc
        .cfi_startproc
        xor eax, eax
        ret
    1:  or rax, -1
        ret
        .cfi_endproc
        .size set, . - set
        .type swap, @function
    swap:
        .cfi_startproc
        cmp rax, -4095
        jae 1f
        {LOADS}
        xor eax, eax
        ret
    1:  or rax, -1
        ret
        .cfi_endproc
        .size swap, . - swap
        .type jump, @function
    jump:
        .cfi_startproc
        cmp rsp, r8
        jbe 1f
        sub rsp, 8
        .cfi_adjust_cfa_offset 8
        call swap
        .cfi_adjust_cfa_offset -8
    1:  mov eax, esi
        .cfi_def_cfa rdi, 0
        .cfi_register rsp, r8
        .cfi_register rbp, r9
        .cfi_register rip, rdx
        mov rbx, [rdi]
        mov rsp, r8
        mov rbp, r9
        jmp rdx
        .cfi_endproc
        .size jump, . - jump
        .section .note.GNU-stack,\"\",@progbits
    "
    );
    let Some((library, start)) = assembled(&code) else {
        return;
    };
    let table = table_of(&library);
    let section = table.section().unwrap();
    let caller = |offset| places_at(&section, start + offset);
    let (called, pushed) = (Location::register(7, 8), Location::register(7, 16));
    let saved = Location::saved(-8);
    assert_eq!([1, 101].map(caller), [(pushed, saved, None); 2]);
    for offset in [0, 2, 8, 10, 42, 46, 47, 53, 55, 87, 91, 92, 95, 97, 106, 108, 111] {
        assert_eq!(caller(offset), (called, saved, None), "{offset}");
    }
    for offset in [17, 24, 31, 32, 39, 41, 62, 69, 76, 77, 84, 86, 114, 117] {
        assert!(is_lost(caller(offset)), "{offset}");
    }
}

/// The CFA, the return address and the frame pointer, by the rule at an address.
type Places = (Location, Location, Option<Location>);

fn places_at(section: &Section<'_>, svma: u64) -> Places {
    let rule = section.lookup(svma).unwrap().unwrap().row.rule.unwrap();
    (rule.cfa, rule.ra, rule.fp)
}

/// Whether the caller's registers are those with a number that no frame has.
fn is_lost((_, ra, fp): Places) -> bool {
    ra.base == Base::Register(32) && fp == Some(ra)
}

/// A library with this code, and where its first function is.
fn assembled(code: &str) -> Option<(FileBytes, u64)> {
    let folder = backtrail_testkit::scratch();
    let (source, library) = (folder.path().join("code.s"), folder.path().join("code.so"));
    fs::write(&source, format!(".intel_syntax noprefix\n{code}")).unwrap();
    let mut assemble = Command::new("x86_64-linux-gnu-gcc");
    assemble.args(["-shared", "-nostdlib", "-o"]).arg(&library).arg(&source);
    let assembled = available(run(&mut assemble, LIMIT))?;
    assert!(assembled.status.success(), "{}", assembled.stderr);
    let file = FileBytes::open(&library).unwrap();
    let start = convert(&Image::parse(file.bytes()).unwrap()).unwrap().functions[0].start;
    Some((file, start))
}

fn table_of(library: &FileBytes) -> Table {
    let image = Image::parse(library.bytes()).unwrap();
    Tables::without_cache().load(&image).unwrap()
}
