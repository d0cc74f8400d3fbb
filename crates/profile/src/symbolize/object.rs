//! Symbols, lines and inlined calls from the files themselves.

use std::collections::HashMap;
use std::fs::{self, File as OsFile};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use backtrail_cfi::cache;
use backtrail_cfi::go_names::{GoCall, GoNames};
use backtrail_cfi::starts::FunctionStarts;
use backtrail_ctype::threads;
use backtrail_debuginfo::lines::{DebugSections, Lines};
use backtrail_elf::debugfile::Search;
use backtrail_elf::{Image, MappedFile, Symbols};

use super::remembered::Remembered;
use super::source::{Call, FetchDebugFile, ModuleSymbols, SymbolSource, Unavailable};
use crate::demangle::demangle;
use crate::modules::File;

/// The folder of answers, below the cache folder.
const FOLDER: &str = "names-v1";

/// The files of this machine.
pub(super) struct ObjectFiles {
    search: Search,
    /// By the path in the recording: the actual path of the file.
    found: HashMap<String, PathBuf>,
    /// By the path in the recording: the lowest address and the symbols of modules that were found
    /// in memory.
    in_memory: HashMap<String, (u64, Symbols)>,
    /// The folder of answers.
    folder: Option<PathBuf>,
    /// Where other debug files come from.
    fetch: Option<FetchDebugFile>,
}

impl ObjectFiles {
    /// Searches these folders for debug files too, before others.
    pub(super) fn new(debug_dirs: &[PathBuf]) -> ObjectFiles {
        let search = debug_dirs
            .iter()
            .rev()
            .fold(Search::new(), |search, dir| search.with_dir(dir));
        ObjectFiles {
            search,
            found: HashMap::new(),
            in_memory: HashMap::new(),
            folder: None,
            fetch: None,
        }
    }
}

impl SymbolSource for ObjectFiles {
    fn found_at(&mut self, path: &str, place: PathBuf) {
        self.found.insert(path.to_owned(), place);
    }

    fn remember_in(&mut self, folder: PathBuf) {
        self.folder = Some(folder.join(FOLDER));
    }

    fn fetch_with(&mut self, fetch: FetchDebugFile) {
        self.fetch = Some(fetch);
    }

    fn found_in_memory(&mut self, path: &str, base_vaddr: u64, symbols: Symbols) {
        self.in_memory.insert(path.to_owned(), (base_vaddr, symbols));
    }

    fn open(&self, file: &File) -> Result<Box<dyn ModuleSymbols>, Unavailable> {
        if let Some((base_vaddr, symbols)) = self.in_memory.get(&file.path) {
            return Ok(Box::new(ObjectSymbols::without_file(*base_vaddr, symbols.clone())));
        }
        if file.path == "[vdso]" {
            return Ok(Box::new(own_vdso(file)?));
        }
        if file.is_anonymous() {
            return Err(Unavailable::NoFile);
        }
        let search = &self.search;
        let place = self
            .found
            .get(&file.path)
            .map_or(Path::new(&file.path), PathBuf::as_path);
        let found = match open_module(file, place, search) {
            Ok(found) => found.with_fetched(self.fetch.as_ref()),
            // The separate debug file may still exist.
            Err(reason) => {
                let path = search.by_build_id(&file.build_id);
                let path = path
                    .or_else(|| fetch(self.fetch.as_ref(), &file.build_id))
                    .ok_or(reason)?;
                Files::of(MappedFile::open(&path).map_err(|_| reason)?, &path, &path, search)
            }
        };
        Ok(Box::new(found.read(self.folder.as_deref())?))
    }
}

/// A module's file, and its separate debug files.
struct Files {
    module: MappedFile,
    debug: Option<MappedFile>,
    /// The common part of several debug files (dwz).
    supplementary: Option<MappedFile>,
    /// Identifies these files in their current state.
    stamp: u64,
}

/// The recorded file, if it is still the one at its path. A file recorded without a build id cannot
/// be distinguished from its successors and is used as it is.
fn open_module(file: &File, place: &Path, search: &Search) -> Result<Files, Unavailable> {
    let module = MappedFile::open(place).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => Unavailable::Malformed,
        _ => Unavailable::Missing,
    })?;
    let image = Image::parse(module.bytes()).map_err(|_| Unavailable::Malformed)?;
    check_build_id(file, &image)?;
    // Debug files lie beside the path that the module is known by, wherever it was opened.
    let known_by = file.path.strip_suffix(" (deleted)").unwrap_or(&file.path);
    Ok(Files::of(module, place, Path::new(known_by), search))
}

/// The debug file with a build ID from elsewhere, if it is that.
fn fetch(fetch: Option<&FetchDebugFile>, build_id: &[u8]) -> Option<PathBuf> {
    let path = fetch.filter(|_| !build_id.is_empty())?.get(build_id)?;
    let file = MappedFile::open(&path).ok()?;
    let is_it = Image::parse(file.bytes()).ok()?.build_id() == Some(build_id);
    is_it.then_some(path)
}

fn check_build_id(file: &File, image: &Image<'_>) -> Result<(), Unavailable> {
    if file.build_id.is_empty() || image.build_id() == Some(&file.build_id) {
        Ok(())
    } else {
        Err(Unavailable::OtherBuild)
    }
}

impl Files {
    /// The file, which was opened at `place` and is known by `path`, with its debug files.
    fn of(module: MappedFile, place: &Path, path: &Path, search: &Search) -> Files {
        let debug = Image::parse(module.bytes())
            .ok()
            .and_then(|image| search.debug_file(path, &image))
            .filter(|found| found != path);
        let with_dwarf = debug.as_deref().unwrap_or(path);
        let debug_file = debug.as_ref().and_then(|path| MappedFile::open(path).ok());
        let supplementary = Image::parse(debug_file.as_ref().unwrap_or(&module).bytes())
            .ok()
            .and_then(|image| search.supplementary(with_dwarf, &image.debugaltlink()?));
        Files {
            stamp: stamp(&[Some(place), debug.as_deref(), supplementary.as_deref()]),
            module,
            debug: debug_file,
            supplementary: supplementary.and_then(|path| MappedFile::open(&path).ok()),
        }
    }

    /// With a debug file from elsewhere, if there is none here and the file itself has no lines.
    fn with_fetched(mut self, from: Option<&FetchDebugFile>) -> Files {
        if self.debug.is_some() || from.is_none() {
            return self;
        }
        let Ok(image) = Image::parse(self.module.bytes()) else {
            return self;
        };
        let has_lines = matches!(image.section(".debug_info"), Ok(Some(_)));
        let path = match (has_lines, image.build_id()) {
            (false, Some(build_id)) => fetch(from, build_id),
            _ => None,
        };
        if let Some(path) = path {
            self.stamp ^= stamp(&[Some(&path)]);
            self.debug = MappedFile::open(&path).ok();
        }
        self
    }

    fn read(self, folder: Option<&Path>) -> Result<ObjectSymbols, Unavailable> {
        // Lines borrow from the files. Both are needed until the report is done, and a process
        // makes one report: so they are leaked, which avoids a lifetime in everything that contains
        // names.
        let files: &'static Files = Box::leak(Box::new(self));
        let image = Image::parse(files.module.bytes()).map_err(|_| Unavailable::Malformed)?;
        let entry = folder.and_then(|folder| cache::entry(folder, image.build_id()?, "names"));
        Ok(ObjectSymbols {
            base_vaddr: image.base_vaddr(),
            remembered: Mutex::new(Remembered::read(entry, files.stamp)),
            names: OnceLock::new(),
            starts: OnceLock::new(),
            files: Some(files),
        })
    }

    /// Reads names and lines, which takes long; of compressed ones only what these addresses need.
    fn names(&'static self, asked: &[u64]) -> Names {
        let parse = |file: &'static MappedFile| Image::parse(file.bytes()).ok();
        let Some(image) = parse(&self.module) else {
            return Names::default();
        };
        let debug = self.debug.as_ref().and_then(parse);
        let supplementary = self.supplementary.as_ref().and_then(parse);
        let symbols = || match &debug {
            Some(debug) => Symbols::with_debug_file(&image, debug),
            None => Symbols::new(&image),
        };
        // Damaged debugging information costs the lines, not the names.
        let sections = || {
            [Some(&image), debug.as_ref()]
                .into_iter()
                .flatten()
                .find_map(|image| DebugSections::load(image, supplementary.as_ref(), asked).ok()?)
        };
        let (sections, symbols) = threads::scoped(|| rayon::join(sections, symbols));
        let lines = sections.and_then(|sections| Lines::new(Box::leak(Box::new(sections))).ok());
        Names {
            symbols,
            lines,
            go: GoNames::of_image(&image),
        }
    }
}

/// A number that differs for other files, for changed files, and for another build of this program,
/// which may find other names in them.
fn stamp(files: &[Option<&Path>]) -> u64 {
    let program = std::env::current_exe().ok();
    let mut hasher = rustc_hash::FxHasher::default();
    for path in [program.as_deref()].iter().chain(files) {
        let metadata = path.and_then(|path| fs::metadata(path).ok());
        let facts = metadata.map(|metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec()));
        facts.hash(&mut hasher);
    }
    hasher.finish()
}

/// The vdso of this process: the kernel gives the same one to all processes, so it has the symbols
/// of a recorded one with the same build id.
fn own_vdso(file: &File) -> Result<ObjectSymbols, Unavailable> {
    let (start, bytes) = read_own_vdso().ok_or(Unavailable::NoFile)?;
    let image = Image::parse_memory(&bytes, start).map_err(|_| Unavailable::NoFile)?;
    check_build_id(file, &image)?;
    Ok(ObjectSymbols::without_file(image.base_vaddr(), Symbols::new(&image)))
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

/// The symbols of one module's files.
struct ObjectSymbols {
    base_vaddr: u64,
    remembered: Mutex<Remembered>,
    /// Read for the first address without a remembered answer.
    names: OnceLock<Names>,
    /// Read for the first address without a name.
    starts: OnceLock<Option<FunctionStarts<'static>>>,
    files: Option<&'static Files>,
}

#[derive(Default)]
struct Names {
    symbols: Symbols,
    lines: Option<Lines<'static>>,
    /// The names that stripped Go programs keep.
    go: Option<GoNames<'static>>,
}

impl ObjectSymbols {
    fn without_file(base_vaddr: u64, symbols: Symbols) -> ObjectSymbols {
        ObjectSymbols {
            base_vaddr,
            remembered: Mutex::default(),
            names: OnceLock::from(Names {
                symbols,
                ..Names::default()
            }),
            starts: OnceLock::new(),
            files: None,
        }
    }
}

impl ObjectSymbols {
    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self, asked: &[u64]) -> &Names {
        let read = || self.files.map(|files| files.names(asked)).unwrap_or_default();
        self.names.get_or_init(read)
    }
}

impl ModuleSymbols for ObjectSymbols {
    fn base_vaddr(&self) -> u64 {
        self.base_vaddr
    }

    fn lookup(&self, svma: u64) -> Option<Vec<Call>> {
        if let Some(calls) = self.remembered().get(svma) {
            return Some(calls.clone()).filter(|calls| !calls.is_empty());
        }
        let calls = self.names(&[]).lookup(svma);
        self.remembered().put(svma, calls.as_deref().unwrap_or_default());
        calls
    }

    fn start(&self, svma: u64) -> Option<u64> {
        let read = || FunctionStarts::of_image(&Image::parse(self.files?.module.bytes()).ok()?);
        self.starts.get_or_init(read).as_ref()?.start(svma)
    }

    fn expect(&self, svmas: &[u64]) {
        let is_new = |svma: &u64| self.remembered().get(*svma).is_none();
        let asked: Vec<u64> = svmas.iter().copied().filter(is_new).collect();
        if !asked.is_empty() {
            self.names(&asked);
        }
    }

    fn keep(&self) {
        self.remembered().keep();
    }
}

impl Names {
    fn lookup(&self, svma: u64) -> Option<Vec<Call>> {
        let symbol = self.symbols.lookup(svma);
        let frames = self.lines.as_ref().map_or_else(Vec::new, |lines| lines.lookup(svma));
        let mut calls: Vec<Call> = frames
            .into_iter()
            .map(|frame| Call {
                function: frame
                    .function
                    .map_or_else(String::new, |name| demangle(&name).into_owned()),
                offset: None,
                file: frame.file,
                line: frame.line,
                inlined: true,
            })
            .collect();
        if calls.is_empty()
            && let Some(go) = &self.go
        {
            calls = go.lookup(svma).into_iter().map(|call| of_go(call, svma)).collect();
        }
        let mut outermost = calls.pop().unwrap_or_default();
        outermost.inlined = false;
        for call in &mut calls {
            call.offset = None;
        }
        // The symbol is more precise than the debugging information: it names the clone (`.cold`,
        // `.constprop.0`).
        if let Some(symbol) = symbol {
            outermost.function = demangle(&symbol.name).into_owned();
            outermost.offset = Some(svma - symbol.address);
        }
        if outermost.function.is_empty() {
            return None;
        }
        // An inlined call without a name adds nothing to its caller.
        calls.retain(|call| !call.function.is_empty());
        calls.push(outermost);
        Some(calls)
    }
}

fn of_go(call: GoCall, svma: u64) -> Call {
    Call {
        function: call.function,
        offset: Some(svma - call.start),
        file: call.file,
        line: call.line,
        inlined: true,
    }
}
