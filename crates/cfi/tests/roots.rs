//! Stacks that begin in code which call frame information does not describe as outermost: the
//! tables of real files have outermost rows there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use backtrail_cfi::tables::Tables;
use backtrail_elf::{FileBytes, Image, Symbols};
use backtrail_sframe::{Base, Location, Section};
use backtrail_testkit::command::run;
use backtrail_testkit::{available, readers, skip};

/// Files of which most systems have at least one, with the code of the stack that begins in them.
const LIBRARIES: [(&str, &str, &[u8]); 3] = [
    // `mov rsp, rbx; mov rdi, [rsp]; test rdi, rdi`: `__start_context`.
    (
        "/lib/x86_64-linux-gnu/libc.so.6",
        "makecontext",
        &[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff],
    ),
    // glibc 2.36: `mov x0, x19; cbnz x0, setcontext`, after a `nop`.
    (
        "/usr/aarch64-linux-gnu/lib/libc.so.6",
        "makecontext",
        &[0xe0, 0x03, 0x13, 0xaa, 0xc0, 0xf9, 0xff, 0xb5],
    ),
    // `xor rdi, rdi; call _exit`: the code to which the first function of a fibre returns.
    (
        "/usr/lib/x86_64-linux-gnu/libboost_context.so.1.74.0",
        "make_fcontext",
        &[0x48, 0x31, 0xff, 0xe8],
    ),
];

#[test]
fn fibres_begin_in_outermost_rows() {
    for (path, name, code) in LIBRARIES {
        if !Path::new(path).exists() {
            skip(format!("{path} is not there"));
            continue;
        }
        let file = FileBytes::open(path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let table = Tables::without_cache().load(&image).unwrap();
        let section = table.section().unwrap();
        let known = Symbols::named(&image, None, |symbol| symbol == name);
        let near = known.first().expect("the library has the function").address;
        let Some(&start) = places(&image, code).first() else {
            skip(format!("{path} begins stacks in other code"));
            continue;
        };
        // Callers are looked up by the byte before the return address.
        assert!(is_outermost(&section, start - 1), "{path}: {:#x}", start - 1);
        assert!(!is_outermost(&section, near), "{path}: {near:#x}");
    }
}

/// A greenlet's first function never returns, and what is above its frame belongs to others. In
/// `slp_switch`, between the addition to the stack pointer and the end of the call that fills the
/// new stack, this is true of all frames.
#[test]
fn greenlets_begin_in_outermost_rows() {
    const FIRST: &str = "_ZN8greenlet12UserGreenlet15inner_bootstrapE";
    let Some(packages) = available(readers::python("greenlet")) else {
        return;
    };
    let files = fs::read_dir(packages.join("greenlet"))
        .unwrap()
        .map(|file| file.unwrap().path());
    let library = files.filter(|path| path.extension().is_some_and(|extension| extension == "so"));
    let mut library = library.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("_greenlet"));
    let path = library.next().expect("the package has a library");
    let file = FileBytes::open(&path).unwrap();
    let image = Image::parse(file.bytes()).unwrap();
    let table = Tables::without_cache().load(&image).unwrap();
    let section = table.section().unwrap();
    let symbols = Symbols::new(&image);
    let named = Symbols::named(&image, None, |name| name.starts_with(FIRST) && !name.contains('.'));
    let start = named.first().expect(FIRST).address;
    let end = start + symbols.lookup(start).expect(FIRST).size;
    assert!(end - start > 1000);
    for address in start..end {
        assert!(is_outermost(&section, address), "{address:#x}");
    }
    for address in [start - 0x100, end + 0x100] {
        assert!(!is_outermost(&section, address), "{address:#x}");
    }

    // `add rax, rsp; add rax, rbp; call`
    let moves = [0x48, 0x01, 0xc4, 0x48, 0x01, 0xc5, 0xe8];
    if cfg!(target_arch = "x86_64") {
        let [at] = places(&image, &moves)[..] else {
            panic!("one switch in {}", path.display());
        };
        let names = symbols.lookup(at).map(|symbol| symbol.name.to_string());
        assert_eq!(names.as_deref(), Some("slp_switch"));
        for (address, outermost) in [
            (at - 1, false),
            (at, false),
            (at + 3, true),
            (at + 10, true),
            (at + 11, false),
        ] {
            assert_eq!(is_outermost(&section, address), outermost, "{address:#x}");
        }
    }
}

/// In the system call that ends a signal handler, the next instruction is about to run. musl
/// describes nothing of this, and its next function begins there.
#[test]
fn handlers_return_to_the_kernel_s_frame() {
    const RESTORES: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    for (path, size) in [("/lib/x86_64-linux-gnu/libc.so.6", 10), ("/lib/ld-musl-x86_64.so.1", 9)] {
        if !Path::new(path).exists() {
            skip(format!("{path} is not there"));
            continue;
        }
        let file = FileBytes::open(path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let table = Tables::without_cache().load(&image).unwrap();
        let section = table.section().unwrap();
        let starts = places(&image, &RESTORES);
        assert!(!starts.is_empty(), "{path} restores");
        for start in starts {
            let row = |at| section.lookup(at).unwrap();
            for at in [start - 1, start, start + 7, start + size - 1] {
                let found = row(at).unwrap_or_else(|| panic!("{path}: no row at {at:#x}"));
                let rule = found.row.rule.expect("there is a caller");
                assert!(found.function.signal_frame, "{path}: {at:#x}");
                // `rsp` and `rip` in `ucontext_t` (`asm/sigcontext.h`).
                assert_eq!((rule.cfa.offset, rule.ra.offset), (160, 168), "{path}: {at:#x}");
            }
            assert!(
                row(start + size).is_none_or(|found| !found.function.signal_frame),
                "{path}"
            );
        }
    }
}

/// The first place of this code in each of a file's ranges of code.
fn places(image: &Image<'_>, code: &[u8]) -> Vec<u64> {
    let ranges = image.code_ranges().into_iter();
    let found = ranges.filter_map(|range| {
        let bytes = image.data_at(range.start)?;
        let bytes = bytes.get(..(range.end - range.start) as usize)?;
        let at = bytes.windows(code.len()).position(|bytes| bytes == code)?;
        Some(range.start + at as u64)
    });
    found.collect()
}

fn is_outermost(section: &Section<'_>, svma: u64) -> bool {
    let found = section.lookup(svma).unwrap();
    found.is_some_and(|found| found.row.rule.is_none())
}

/// The DWARF number of `rbp`.
const RSP: u8 = 7;

/// A program of Go's for Linux on this architecture. `None` without Go.
fn built_by_go(folder: &Path, architecture: &str) -> Option<FileBytes> {
    let source = backtrail_testkit::place::workspace().join("crates/cli/tests/programs/parked.go");
    let built = folder.join(architecture);
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&built).arg(&source);
    build.env("GOCACHE", backtrail_testkit::place::target().join("testprograms/go"));
    build.env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
    build.env("GOARCH", architecture).env("CGO_ENABLED", "0");
    let made = available(run(&mut build, Duration::from_secs(60)))?;
    assert!(made.status.success(), "{}", made.describe());
    Some(FileBytes::open(&built).unwrap())
}

#[test]
fn go_is_followed_by_the_frame_pointer_and_ends_where_a_goroutine_is_left() {
    let folder = backtrail_testkit::scratch();
    let Some(file) = built_by_go(folder.path(), "amd64") else {
        return;
    };
    let image = Image::parse(file.bytes()).unwrap();
    let table = Tables::without_cache().load(&image).unwrap();
    let section = table.section().unwrap();
    let symbols = Symbols::new(&image);
    let function = |name: &str| {
        let mut found = symbols.iter().filter(|symbol| symbol.name == name);
        found.next().map(|symbol| symbol.address..symbol.address + symbol.size)
    };
    let rules = |name: &str| {
        let range = function(name).unwrap_or_else(|| panic!("no {name}"));
        let rows = range.map(|svma| section.lookup(svma).unwrap().map(|found| found.row.rule));
        rows.collect::<Vec<_>>()
    };
    // The code in which a goroutine begins.
    assert!(rules("runtime.goexit.abi0").iter().all(|row| *row == Some(None)));
    // Most frames of compiled code count from the stack pointer, and have saved the frame pointer.
    let by_sp = |location: Location| location.base == Base::Register(RSP);
    let compiled = rules("runtime.mallocgc");
    let linked = compiled.iter().filter(|row| {
        row.flatten()
            .is_some_and(|rule| by_sp(rule.cfa) && rule.fp == Some(Location::saved(-16)))
    });
    assert!(linked.count() > compiled.len() / 2);
    // These have left the stack, and nothing on the new one leads back.
    for name in ["runtime.morestack.abi0", "runtime.mcall"] {
        let mut lost = rules(name).into_iter().flatten().flatten();
        assert!(lost.any(|rule| rule.cfa.base == Base::Register(16)), "{name}");
    }
}

/// Signal handlers push the link register of the code that they interrupt, and at its end
/// `asyncPreempt` has removed that too, together with its own frame.
#[test]
fn what_handlers_of_go_push_counts_for_the_interrupted_frame() {
    let folder = backtrail_testkit::scratch();
    for (architecture, name, sp) in [
        ("arm64", "runtime.asyncPreempt.abi0", 31),
        ("s390x", "runtime.asyncPreempt", 15),
    ] {
        let Some(file) = built_by_go(folder.path(), architecture) else {
            return;
        };
        let image = Image::parse(file.bytes()).unwrap();
        let table = Tables::without_cache().load(&image).unwrap();
        let section = table.section().unwrap();
        let symbols = Symbols::new(&image);
        let preempt = symbols.iter().find(|symbol| symbol.name == name).unwrap();
        // The jump back to the interrupted code, which constants may follow.
        let end = preempt.address + preempt.size;
        let mut rows = (preempt.address..end).filter_map(|svma| section.lookup(svma).unwrap());
        let last = rows.next_back().unwrap();
        assert_eq!(last.row.rule.unwrap().cfa, Location::register(sp, 0), "{architecture}");
        assert!(last.function.signal_frame, "{architecture}");
    }
}
