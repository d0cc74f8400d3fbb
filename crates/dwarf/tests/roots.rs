//! Stacks that begin in code which call frame information does not describe as such: real files have outermost rows there.

use std::path::Path;

use backtrail_dwarf::tables::Tables;
use backtrail_elf::{Image, MappedFile, Symbols};
use backtrail_sframe::Section;
use backtrail_testkit::skip;

/// Files of which at least one is on most systems, with what stack begins in them.
const LIBRARIES: [(&str, &str, &[u8]); 2] = [
    // `mov rsp, rbx; mov rdi, [rsp]; test rdi, rdi`: `__start_context`.
    (
        "/lib/x86_64-linux-gnu/libc.so.6",
        "makecontext",
        &[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff],
    ),
    // `xor rdi, rdi; call _exit`: where the first function of a fibre returns to.
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
            skip(&format!("{path} is not there"));
            continue;
        }
        let file = MappedFile::open(path).unwrap();
        let image = Image::parse(file.bytes()).unwrap();
        let table = Tables::without_cache().load(&image).unwrap();
        let section = table.section().unwrap();
        let known = Symbols::named(&image, None, |symbol| symbol == name);
        let near = known.first().expect("the library has the function").address;
        let bytes = image.data_at(near).unwrap();
        let at = bytes.windows(code.len()).position(|bytes| bytes == code);
        let Some(at) = at.filter(|at| *at < 4096) else {
            skip(&format!("{path} begins stacks in other code"));
            continue;
        };
        let start = near + at as u64;
        // Callers are looked up by the byte before the return address.
        assert!(is_outermost(&section, start - 1), "{path}: {:#x}", start - 1);
        assert!(!is_outermost(&section, near), "{path}: {near:#x}");
    }
}

fn is_outermost(section: &Section<'_>, svma: u64) -> bool {
    let found = section.lookup(svma).unwrap();
    found.is_some_and(|found| found.row.rule.is_none())
}
