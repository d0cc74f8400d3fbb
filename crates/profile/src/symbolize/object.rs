//! Symbols, lines and inlined calls from the files themselves.

use std::fs::{self, File as OsFile};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use backtrail_elf::debugfile::Search;
use backtrail_elf::{Image, MappedFile, Symbols};

use super::{Call, ModuleSymbols, SymbolSource, Unavailable};
use crate::demangle::demangle;
use crate::modules::File;

/// The files of this machine.
pub(super) struct ObjectFiles;

impl SymbolSource for ObjectFiles {
    fn open(&self, file: &File) -> Result<Box<dyn ModuleSymbols>, Unavailable> {
        if file.path == "[vdso]" {
            return Ok(Box::new(own_vdso(file)?));
        }
        if file.is_anonymous() {
            return Err(Unavailable::NoFile);
        }
        let search = Search::new();
        let found = match open_module(file, &search) {
            Ok(found) => found,
            // What was split off may still be there.
            Err(reason) => {
                let path = search.by_build_id(&file.build_id).ok_or(reason)?;
                let module = MappedFile::open(&path).map_err(|_| reason)?;
                Files { module, debug: None }
            }
        };
        Ok(Box::new(found.read()?))
    }
}

/// A module's file, and the one with what was split off from it.
struct Files {
    module: MappedFile,
    debug: Option<MappedFile>,
}

/// The recorded file, if it is still the one at its path. One that was recorded without a build id can't be told from
/// its successors and is taken as it is.
fn open_module(file: &File, search: &Search) -> Result<Files, Unavailable> {
    let path = Path::new(&file.path);
    let module = MappedFile::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => Unavailable::Malformed,
        _ => Unavailable::Missing,
    })?;
    let image = Image::parse(module.bytes()).map_err(|_| Unavailable::Malformed)?;
    check_build_id(file, &image)?;
    let debug = search
        .debug_file(path, &image)
        .and_then(|path| MappedFile::open(path).ok());
    Ok(Files { module, debug })
}

fn check_build_id(file: &File, image: &Image<'_>) -> Result<(), Unavailable> {
    if file.build_id.is_empty() || image.build_id() == Some(&file.build_id) {
        Ok(())
    } else {
        Err(Unavailable::OtherBuild)
    }
}

impl Files {
    fn read(self) -> Result<ObjectSymbols, Unavailable> {
        let image = Image::parse(self.module.bytes()).map_err(|_| Unavailable::Malformed)?;
        let debug = self.debug.as_ref().and_then(|debug| Image::parse(debug.bytes()).ok());
        let symbols = match &debug {
            Some(debug) => Symbols::with_debug_file(&image, debug),
            None => Symbols::new(&image),
        };
        Ok(ObjectSymbols {
            base_vaddr: image.base_vaddr(),
            symbols,
        })
    }
}

/// The vdso of this process: the kernel gives the same one to all, so it has the symbols of a recorded one with the same
/// build id.
fn own_vdso(file: &File) -> Result<ObjectSymbols, Unavailable> {
    let (start, bytes) = read_own_vdso().ok_or(Unavailable::NoFile)?;
    let image = Image::parse_memory(&bytes, start).map_err(|_| Unavailable::NoFile)?;
    check_build_id(file, &image)?;
    Ok(ObjectSymbols {
        base_vaddr: image.base_vaddr(),
        symbols: Symbols::new(&image),
    })
}

fn read_own_vdso() -> Option<(u64, Vec<u8>)> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
    OsFile::open("/proc/self/mem")
        .and_then(|memory| memory.read_exact_at(&mut bytes, start))
        .ok()?;
    Some((start, bytes))
}

/// What one module's files know.
struct ObjectSymbols {
    base_vaddr: u64,
    symbols: Symbols,
}

impl ModuleSymbols for ObjectSymbols {
    fn base_vaddr(&self) -> u64 {
        self.base_vaddr
    }

    fn lookup(&self, svma: u64) -> Option<Vec<Call>> {
        let symbol = self.symbols.lookup(svma)?;
        Some(vec![Call {
            function: demangle(&symbol.name).into_owned(),
            offset: Some(svma - symbol.address),
            file: None,
            line: None,
            inlined: false,
        }])
    }
}
