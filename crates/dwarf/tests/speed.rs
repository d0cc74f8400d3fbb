//! How long the largest tables take. Run with `cargo test --release -p backtrail-dwarf --test speed -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use backtrail_dwarf::tables::{self, Tables};
use backtrail_elf::{Image, MappedFile, Symbols};

#[test]
#[ignore = "only optimised code has this speed"]
fn large_libraries() {
    let candidates = [
        "/lib/x86_64-linux-gnu/libLLVM-14.so.1",
        "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus",
        "/lib/x86_64-linux-gnu/libc.so.6",
    ];
    for path in candidates {
        let Ok(file) = MappedFile::open(path) else {
            println!("SKIPPED: no {path}");
            continue;
        };
        let image = Image::parse(file.bytes()).unwrap();
        let section = image.eh_frame().unwrap().unwrap();
        // The first run faults the file's pages in.
        tables::convert(&image).unwrap();
        let start = Instant::now();
        let converted = tables::convert(&image).unwrap();
        let convert = start.elapsed();
        let start = Instant::now();
        let table = Tables::without_cache().load(&image).unwrap();
        let load = start.elapsed();
        let start = Instant::now();
        let symbols = Symbols::new(&image);
        println!(
            "{path}: .eh_frame {} bytes, {} functions, {} bytes of SFrame, {} uncovered; convert {convert:?}, load {load:?}; {} symbols in {:?}",
            section.data.len(),
            converted.functions.len(),
            table.bytes.len(),
            converted.uncovered_bytes(),
            symbols.len(),
            start.elapsed()
        );
        assert!(convert < Duration::from_millis(500), "{path}: {convert:?}");
        let dir = tempfile::tempdir().unwrap();
        let cached = Tables::open(Some(dir.path().into()));
        cached.load(&image).unwrap();
        let start = Instant::now();
        let origin = cached.load(&image).unwrap().origin;
        println!("  {origin:?} in {:?}", start.elapsed());
    }
}
