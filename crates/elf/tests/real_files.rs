//! Files of this machine, compared with the output of GNU readelf and nm.

use std::path::{Path, PathBuf};
use std::process::Command;

use backtrail_elf::budget::Budget;
use backtrail_elf::debugfile::Search;
use backtrail_elf::{CodeSegments, ErrorKind, FileBytes, Image, Kind, Symbols};

fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn files() -> Vec<PathBuf> {
    let libraries = ["libc.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6", "libm.so.6"];
    let folders = [
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib64",
        "/usr/lib64",
    ];
    let mut files: Vec<PathBuf> = libraries
        .iter()
        .filter_map(|name| {
            folders
                .iter()
                .map(|dir| Path::new(dir).join(name))
                .find(|path| path.exists())
        })
        .collect();
    files.push(std::env::current_exe().unwrap());
    files
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compiles with the machine's own compiler and linker, if installed; tests that need them are
/// otherwise skipped with a message.
fn compile(dir: &Path, source: &str, args: &[&str]) -> Option<PathBuf> {
    let input = dir.join("input.c");
    std::fs::write(&input, source).unwrap();
    let output = dir.join("output");
    let made = Command::new("gcc")
        .arg(&input)
        .args(args)
        .arg("-o")
        .arg(&output)
        .status();
    if made.is_ok_and(|status| status.success()) {
        return Some(output);
    }
    backtrail_testkit::skip("gcc cannot compile here");
    None
}

#[test]
fn headers_build_ids_and_tables_are_those_that_readelf_prints() {
    let mut compared = 0;
    for path in files() {
        let name = path.to_str().unwrap();
        let Some(text) = run("readelf", &["-hnlSW", name]) else {
            backtrail_testkit::skip(format_args!("no readelf for {name}"));
            continue;
        };
        let file = FileBytes::open(&path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let entry = format!("{:#x}", image.entry());
        assert!(
            text.lines()
                .any(|line| line.contains("Entry point address:") && line.ends_with(&entry)),
            "{name}: entry {entry}"
        );
        assert_eq!(image.kind() == Kind::Shared, text.contains("DYN ("), "{name}");
        if let Some(at) = text.find("Build ID: ") {
            let expected: String = text[at + 10..].chars().take_while(char::is_ascii_hexdigit).collect();
            assert_eq!(image.build_id().map(hex), Some(expected), "{name}");
            compared += 1;
        }
        let eh_frame = image.eh_frame().unwrap().unwrap();
        let expected = format!(" {:016x} ", eh_frame.address);
        let line = text.lines().find(|line| line.contains(" .eh_frame ")).unwrap();
        assert!(line.contains(&expected), "{name}: {line}");
    }
    println!("{compared} build ids compared");
}

/// Without section headers, program headers must lead to the same results, also in memory.
#[test]
fn segments_say_what_sections_say() {
    for path in files() {
        let file = FileBytes::open(&path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let mut bare = file.bytes().to_vec();
        bare[40..48].fill(0);
        let stripped = Image::parse(&bare).unwrap();
        assert!(stripped.sections().is_empty());

        let mut memory = vec![0; image.mem_size() as usize];
        for segment in image.segments().iter().filter(|segment| segment.is_load()) {
            let at = (segment.vaddr - image.base_vaddr()) as usize;
            let (from, len) = (segment.offset as usize, segment.filesz as usize);
            memory[at..at + len].copy_from_slice(&bare[from..from + len]);
        }
        let loaded = Image::parse_memory(&memory, 0x7fff_0000_0000).unwrap();

        let expected = image.eh_frame().unwrap().unwrap();
        let hdr = image.eh_frame_hdr().unwrap().unwrap();
        for other in [&stripped, &loaded] {
            assert_eq!(other.build_id(), image.build_id(), "{path:?}");
            assert_eq!(other.eh_frame_hdr().unwrap().unwrap(), hdr, "{path:?}");
            let found = other.eh_frame().unwrap().unwrap();
            assert_eq!(found.address, expected.address);
            assert!(expected.data.starts_with(&found.data));
            // The rest of the section is its terminator.
            assert!(expected.data[found.data.len()..].iter().all(|&byte| byte == 0));
            assert!(found.data.len() + 8 > expected.data.len());
        }
        let by_section = Symbols::new(&image);
        for other in [&stripped, &loaded] {
            for symbol in Symbols::new(other).iter() {
                let found = by_section.lookup(symbol.address).unwrap();
                assert_eq!(found.address, symbol.address);
            }
        }
        let names = |image: &Image<'_>| Symbols::new(image).len();
        assert_eq!(names(&stripped), names(&loaded));
    }
}

#[test]
fn symbols_are_those_that_nm_prints() {
    for path in files() {
        let name = path.to_str().unwrap();
        let text = [
            &["-S", "--defined-only", name][..],
            &["-D", "-S", "--defined-only", name],
        ]
        .into_iter()
        .find_map(|args| run("nm", args).filter(|text| !text.is_empty()));
        let Some(text) = text else {
            backtrail_testkit::skip(format_args!("no nm for {name}"));
            continue;
        };
        let file = FileBytes::open(&path).unwrap();
        let symbols = Symbols::new(&Image::parse(file.bytes()).unwrap());
        let mut compared = 0;
        for line in text.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [address, size, kind, _] = fields[..] else { continue };
            if !"tTiW".contains(kind) {
                continue;
            }
            let address = u64::from_str_radix(address, 16).unwrap();
            let size = u64::from_str_radix(size, 16).unwrap();
            let found = symbols.lookup(address).unwrap_or_else(|| panic!("{name}: {line}"));
            assert_eq!(found.address, address, "{name}: {line}");
            let last = symbols.lookup(address + size - 1).unwrap();
            assert!(
                last.address >= address && last.address < address + size,
                "{name}: {line}"
            );
            compared += 1;
        }
        assert!(compared > 10, "{name}: only {compared} functions");
        println!("{name}: {compared} functions compared");
    }
}

#[test]
fn debug_files_are_found_by_link_and_by_build_id_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int helper(int a){return a*3;} int main(int c,char**v){(void)v;return helper(c);}";
    let Some(program) = compile(dir.path(), source, &["-g", "-O1", "-Wl,--build-id=sha1"]) else {
        return;
    };
    let debug = dir.path().join("output.debug");
    let (program_name, debug_name) = (program.to_str().unwrap(), debug.to_str().unwrap());
    if run("objcopy", &["--only-keep-debug", program_name, debug_name]).is_none() {
        backtrail_testkit::skip("no objcopy");
        return;
    }
    let link = format!("--add-gnu-debuglink={debug_name}");
    run("objcopy", &["--strip-all", &link, program_name]).unwrap();

    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let search = Search::new();
    assert_eq!(search.debug_file(&program, &image), Some(debug.clone()));

    let debug_file = FileBytes::open(&debug).unwrap();
    let debug_image = Image::parse(debug_file.bytes()).unwrap();
    assert_eq!(debug_image.build_id(), image.build_id());
    assert_eq!(debug_image.section(".text").unwrap(), None, "SHT_NOBITS holds nothing");
    let symbols = Symbols::with_debug_file(&image, &debug_image);
    let helper = symbols.iter().find(|symbol| symbol.name == "helper").unwrap();
    assert_eq!(symbols.lookup(helper.address + 1), Some(helper));
    drop(symbols);

    // A changed file has another CRC.
    let mut changed = debug_file.bytes().to_vec();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&debug, &changed).unwrap();
    assert_eq!(search.debug_file(&program, &image), None);

    // Under another root, found by build ID, without the link.
    let root = tempfile::tempdir().unwrap();
    let id = hex(image.build_id().unwrap());
    let folder = root.path().join("usr/lib/debug/.build-id").join(&id[..2]);
    std::fs::create_dir_all(&folder).unwrap();
    let stored = folder.join(format!("{}.debug", &id[2..]));
    std::fs::write(&stored, debug_file.bytes()).unwrap();
    let search = Search::new().with_root(root.path());
    assert_eq!(search.debug_file(&program, &image), Some(stored.clone()));
    // A file of another build with that name is not accepted.
    std::fs::copy(std::env::current_exe().unwrap(), &stored).unwrap();
    assert_eq!(search.by_build_id(image.build_id().unwrap()), None);
    // A link is a name, not a way to other places.
    assert_eq!(
        search.by_debuglink(&program, b"../../etc/passwd", 0, &Budget::new()),
        None
    );
}

#[test]
fn mini_debug_info_names_what_the_file_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let source = "__attribute__((noinline)) static int hidden(int a){return a*3;} int main(int c,char**v){(void)v;return hidden(c);}";
    let Some(program) = compile(dir.path(), source, &["-O1"]) else {
        return;
    };
    let name = program.to_str().unwrap();
    let mini = dir.path().join("mini");
    let mini_name = mini.to_str().unwrap();
    let made = run("objcopy", &["--only-keep-debug", name, mini_name])
        .and_then(|_| run("xz", &["-k", mini_name]))
        .and_then(|_| {
            let section = format!(".gnu_debugdata={mini_name}.xz");
            run("objcopy", &["--strip-all", "--add-section", &section, name])
        });
    if made.is_none() {
        backtrail_testkit::skip("no objcopy or xz");
        return;
    }
    let file = FileBytes::open(&program).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let symbols = Symbols::new(&image);
    assert!(symbols.iter().any(|symbol| symbol.name == "hidden"));
}

#[test]
fn compressed_sections_are_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int main(void){return 0;}";
    let Some(plain) = compile(dir.path(), source, &["-g"]) else {
        return;
    };
    let original = FileBytes::open(&plain).unwrap();
    let original = Image::parse(original.bytes())
        .unwrap()
        .section(".debug_info")
        .unwrap()
        .unwrap();
    for format in ["zlib", "zlib-gnu", "zstd"] {
        let packed = dir.path().join(format);
        let option = format!("--compress-debug-sections={format}");
        if run("objcopy", &[&option, plain.to_str().unwrap(), packed.to_str().unwrap()]).is_none() {
            backtrail_testkit::skip(format_args!("objcopy cannot write {format}"));
            continue;
        }
        let file = FileBytes::open(&packed).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        assert_eq!(
            image.section(".debug_info").unwrap().unwrap().data,
            original.data,
            "{format}"
        );
    }
}

#[test]
fn what_is_no_elf_file_says_why_and_where() {
    let file = FileBytes::open(std::env::current_exe().unwrap()).unwrap();
    let head = &file.bytes()[..4096];
    let kind = |data: &[u8]| Image::parse(data).unwrap_err();
    assert_eq!(kind(b"#!/bin/sh\n").kind, ErrorKind::NotElf);
    assert_eq!(kind(b"").kind, ErrorKind::NotElf);
    let changed = |at: usize, value: u8| {
        let mut data = head.to_vec();
        data[at] = value;
        kind(&data)
    };
    assert_eq!(changed(4, 1).to_string(), "32-bit ELF is not supported at offset 0x4");
    assert_eq!(changed(5, 7).kind, ErrorKind::ByteOrder(7));
    assert_eq!(changed(18, 243).kind, ErrorKind::Machine(243));
    assert_eq!(changed(54, 32).kind, ErrorKind::ProgramHeaderSize(32));
    assert!(matches!(kind(&head[..40]).kind, ErrorKind::Truncated { .. }));
    // The section headers are past this end, the program headers are not.
    assert!(Image::parse(head).unwrap().sections().is_empty());
}

/// Data that a program makes executable has the place that its own segment says.
#[test]
fn every_segment_has_its_own_place() {
    let file = FileBytes::open(std::env::current_exe().unwrap()).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let places = CodeSegments::of(&image);
    // Small ones may lie in a page of the file that they share.
    let large = image
        .segments()
        .iter()
        .filter(|segment| segment.is_load() && segment.filesz > 0x4000);
    let mut kinds = [0; 2];
    for segment in large {
        let middle = segment.filesz / 2;
        assert_eq!(places.address_of(segment.offset + middle), Some(segment.vaddr + middle));
        kinds[usize::from(segment.is_executable())] += 1;
    }
    assert!(kinds[0] > 0 && kinds[1] > 0, "{kinds:?}");
}

/// Of functions with and without sizes, as handlers look them up: assembly often has none.
#[test]
fn functions_without_sizes_end_where_the_next_begins() {
    let folder = tempfile::tempdir().unwrap();
    let source = r#"asm(
        ".type first, @function\n first: .byte 0, 0\n"
        ".type sized, @function\n sized: .byte 0\n .size sized, 1\n"
        ".byte 0\n"
        ".type last, @function\n last: .byte 0, 0\n");"#;
    let Some(object) = compile(folder.path(), source, &["-c"]) else {
        return;
    };
    let object = FileBytes::open(&object).unwrap();
    let names = (0..6).map(|address| {
        let symbol = backtrail_elf::nearest_symbol(object.bytes(), address);
        symbol.map(|symbol| String::from_utf8_lossy(symbol.name).into_owned())
    });
    let names: Vec<Option<String>> = names.collect();
    let expected = ["first", "first", "sized", "", "last", "last"];
    assert_eq!(
        names,
        expected.map(|name| Some(name.to_owned()).filter(|name| !name.is_empty()))
    );
}
