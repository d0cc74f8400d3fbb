//! Symbols, lines and inlined calls from the files themselves.

mod isolated;
mod owned;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File as OsFile};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use backtrail_arch::Cpu;
use backtrail_cfi::cache::{Cache, FileIdentity, Name, Namer};
use backtrail_cfi::go_names::GoCall;
use backtrail_ctype::threads;
use backtrail_debuginfo::lines::DebugSections;
use backtrail_debuginfo::split::{RestsOnDemand, SplitUnit};
use backtrail_elf::budget::Budget;
use backtrail_elf::debugfile::Search;
use backtrail_elf::door::RegularFile;
use backtrail_elf::{ErrorKind, FileBytes, HeldFile, Image, Symbols, door};

pub use isolated::IsolatedNames;
use isolated::IsolatedSymbols;
use owned::{OwnedGoNames, OwnedLines, OwnedSections, OwnedStarts};

use super::remembered::Remembered;
use super::source::{Call, FetchDebugFile, ModuleSymbols, SymbolSource, Unavailable};
use crate::demangle::demangle;
use crate::modules::File;
use crate::{ada, fortran};

/// The files of this machine.
pub(super) struct ObjectFiles {
    search: Search,
    /// By the path in the recording: the actual path of the file.
    found: HashMap<String, PathBuf>,
    /// Open files that no path leads to.
    held: HashMap<File, HeldFile>,
    /// Those that were asked for, and closed.
    closed: HashSet<File>,
    /// By the path in the recording: the lowest address and the symbols of modules that were found
    /// in memory.
    in_memory: HashMap<String, (u64, Symbols)>,
    /// Stores answers.
    cache: Option<Cache>,
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
            held: HashMap::new(),
            closed: HashSet::new(),
            in_memory: HashMap::new(),
            cache: None,
            fetch: None,
        }
    }
}

impl SymbolSource for ObjectFiles {
    fn found_at(&mut self, path: &str, place: PathBuf) {
        self.found.insert(path.to_owned(), place);
    }

    fn hold(&mut self, files: Vec<HeldFile>) {
        self.held.extend(files.into_iter().map(|held| {
            let file = File {
                path: held.path.clone(),
                build_id: held.build_id.clone(),
                elsewhere: held.elsewhere,
            };
            (file, held)
        }));
    }

    fn search_below(&mut self, folder: &Path) {
        // The search has a root of its own.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
        self.search = self.search.clone().with_dir(folder.join("usr/lib/debug"));
    }

    fn remember_in(&mut self, folder: PathBuf) {
        self.cache = Some(Cache::new(folder));
    }

    fn fetch_with(&mut self, fetch: FetchDebugFile) {
        self.fetch = Some(fetch);
    }

    fn found_in_memory(&mut self, path: &str, base_vaddr: u64, symbols: Symbols) {
        self.in_memory.insert(path.to_owned(), (base_vaddr, symbols));
    }

    fn open(&mut self, file: &File) -> Result<Box<dyn ModuleSymbols>, Unavailable> {
        // One descriptor for each file would be too many in a recording without end.
        let held = self.held.remove(file);
        if held.is_some() {
            self.closed.insert(file.clone());
        }
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
        let found = match self.open_module(file, held.as_ref()) {
            Ok(found) => found.with_fetched(self.fetch.as_ref()),
            // The separate debug file may still exist.
            Err(reason) => {
                let path = search.by_build_id(&file.build_id);
                let path = path
                    .or_else(|| fetch(self.fetch.as_ref(), &file.build_id))
                    .ok_or(reason)?;
                let file = search.open(&path).and_then(|file| Opened::of(file, &Budget::new()));
                Files::of(file.map_err(|_| reason)?, &path, search, None)
            }
        };
        found.read(self.cache.as_ref())
    }
}

impl ObjectFiles {
    /// The recorded file, if it is open, or still the one at its path.
    fn open_module(&self, file: &File, held: Option<&HeldFile>) -> Result<Files, Unavailable> {
        match (held, self.found.get(&file.path)) {
            (Some(held), _) => open_held(file, held, &self.search),
            (None, Some(place)) => open_at(file, place, &self.search),
            // Nothing distinguishes it from the file that has its path here.
            (None, None) if self.closed.contains(file) || file.elsewhere != 0 && file.build_id.is_empty() => {
                Err(Unavailable::Elsewhere)
            }
            (None, None) => open_at(file, Path::new(&file.path), &self.search),
        }
    }
}

/// A module's file, and its separate debug files.
struct Files {
    module: FileBytes,
    debug: Option<FileBytes>,
    /// The common part of several debug files (dwz).
    supplementary: Option<FileBytes>,
    /// The debug file, if it can't be read.
    unreadable: Option<PathBuf>,
    /// Where split units' other files are searched for; `None` in a worker, which opens nothing.
    places: Option<Places>,
    /// These files, to send to a worker that reads them.
    open: Vec<Arc<OsFile>>,
    /// Identifies these files in their current state, and this program, which may find other names
    /// in them than another version does. `None` if one of the files cannot be identified.
    name: Option<Name>,
}

/// The paths of a module's debug file and of itself, and the search that has found them.
struct Places {
    search: Search,
    paths: Vec<PathBuf>,
}

/// An open file.
struct Opened {
    file: FileBytes,
    open: Arc<OsFile>,
    identity: Option<FileIdentity>,
}

impl Opened {
    fn of(file: RegularFile, budget: &Budget) -> io::Result<Opened> {
        Ok(Opened {
            identity: FileIdentity::of(file.metadata()),
            open: Arc::clone(file.file()),
            file: file.contents(budget)?,
        })
    }
}

/// The file at a place, if it is the recorded one. A file recorded without a build id cannot be
/// distinguished from its successors and is used as it is.
fn open_at(file: &File, place: &Path, search: &Search) -> Result<Files, Unavailable> {
    let module = door::open(place).map_err(unopened)?;
    with_debug_files(file, module, search, None)
}

/// The recorded file, which is open. Its debug files are in the root of its process, or in ours
/// under its build ID.
fn open_held(file: &File, held: &HeldFile, ours: &Search) -> Result<Files, Unavailable> {
    let module = held
        .file
        .try_clone()
        .and_then(RegularFile::try_from)
        .map_err(unopened)?;
    match held.root_path() {
        Some(root) => with_debug_files(file, module, &Search::new().with_root(root), Some(ours)),
        None => with_debug_files(file, module, ours, None),
    }
}

fn with_debug_files(
    file: &File,
    module: RegularFile,
    search: &Search,
    by_build_id: Option<&Search>,
) -> Result<Files, Unavailable> {
    let module = Opened::of(module, &Budget::new()).map_err(unopened)?;
    let image = Image::of(&module.file).map_err(unreadable)?;
    check_build_id(file, &image)?;
    // Debug files lie beside the path that the module is known by, wherever it was opened.
    let known_by = file.path.strip_suffix(" (deleted)").unwrap_or(&file.path);
    Ok(Files::of(module, Path::new(known_by), search, by_build_id))
}

fn unopened(error: io::Error) -> Unavailable {
    match error.kind() {
        io::ErrorKind::InvalidInput => Unavailable::Malformed,
        io::ErrorKind::FileTooLarge => Unavailable::Limit,
        io::ErrorKind::TimedOut => Unavailable::Late,
        _ => Unavailable::Missing,
    }
}

fn unreadable(error: backtrail_elf::Error) -> Unavailable {
    match error.kind {
        ErrorKind::Limit(_) => Unavailable::Limit,
        _ => Unavailable::Malformed,
    }
}

/// The debug file with a build ID from elsewhere, if it is that.
fn fetch(fetch: Option<&FetchDebugFile>, build_id: &[u8]) -> Option<PathBuf> {
    let path = fetch.filter(|_| !build_id.is_empty())?.get(build_id)?;
    let file = door::open(&path).ok()?.contents(&Budget::new()).ok()?;
    let is_it = Image::of(&file).ok()?.build_id() == Some(build_id);
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
    /// The file, which is known by `path`, with its debug files. If `search` finds none, `others`
    /// is asked for its build ID.
    fn of(module: Opened, path: &Path, search: &Search, others: Option<&Search>) -> Files {
        let budget = module.file.budget().clone();
        let debug = Image::of(&module.file)
            .ok()
            .and_then(|image| debug_file(path, &image, search, others))
            .filter(|(_, found)| found != path);
        let (search, debug) = debug.map_or((search, None), |(search, found)| (search, Some(found)));
        let open = |path: &Path| Opened::of(search.open(path)?, &budget);
        let with_dwarf = debug.as_deref().unwrap_or(path);
        let debug_file = debug.as_ref().and_then(|path| open(path).ok());
        let unreadable = match (&debug, &debug_file) {
            (Some(path), None) => Some(path.clone()),
            (None, _) => Image::of(&module.file)
                .ok()
                .and_then(|image| search.unreadable(path, &image)),
            _ => None,
        };
        let supplementary = Image::of(&debug_file.as_ref().unwrap_or(&module).file)
            .ok()
            .and_then(|image| search.supplementary(with_dwarf, &image.debugaltlink()?))
            .and_then(|path| open(&path).ok());
        let name = name(&[Some(&module), debug_file.as_ref(), supplementary.as_ref()]);
        let all = [Some(&module), debug_file.as_ref(), supplementary.as_ref()];
        let open = all
            .into_iter()
            .flatten()
            .map(|opened| Arc::clone(&opened.open))
            .collect();
        let places = Places {
            search: search.clone(),
            paths: debug.iter().cloned().chain([path.to_owned()]).collect(),
        };
        let file = |opened: Opened| opened.file;
        Files {
            places: Some(places),
            name,
            open,
            unreadable,
            module: file(module),
            debug: debug_file.map(file),
            supplementary: supplementary.map(file),
        }
    }

    /// With a debug file from elsewhere, if there is no other and the file itself has no lines.
    fn with_fetched(mut self, from: Option<&FetchDebugFile>) -> Files {
        if self.debug.is_some() || from.is_none() {
            return self;
        }
        let Ok(image) = Image::of(&self.module) else {
            return self;
        };
        let has_lines = image.section_header(".debug_info").is_some();
        let path = match (has_lines, image.build_id()) {
            (false, Some(build_id)) => fetch(from, build_id),
            _ => None,
        };
        let opened = path.and_then(|path| Opened::of(door::open(&path).ok()?, self.module.budget()).ok());
        if let Some(opened) = opened {
            self.name = self.name.as_ref().and_then(|own| with_fetched_name(own, &opened));
            self.debug = Some(opened.file);
            self.unreadable = None;
            self.open.insert(1, opened.open);
        }
        self
    }

    fn read(mut self, cache: Option<&Cache>) -> Result<Box<dyn ModuleSymbols>, Unavailable> {
        let remembered = Remembered::read(cache.cloned().zip(self.name));
        if let Some(owner) = self.foreign_owner() {
            let base_vaddr = Image::of(&self.module).map_err(unreadable)?.base_vaddr();
            return Ok(Box::new(IsolatedSymbols::new(base_vaddr, owner, self, remembered)));
        }
        self.open = Vec::new();
        Ok(Box::new(self.read_here(remembered)?))
    }

    /// Whose files a worker should read.
    fn foreign_owner(&self) -> Option<u32> {
        self.all().find_map(FileBytes::foreign_owner)
    }

    fn all(&self) -> impl Iterator<Item = &FileBytes> {
        let others = [self.debug.as_ref(), self.supplementary.as_ref()];
        [Some(&self.module)].into_iter().chain(others).flatten()
    }

    fn read_here(self, remembered: Remembered) -> Result<ObjectSymbols, Unavailable> {
        Ok(ObjectSymbols {
            base_vaddr: Image::of(&self.module).map_err(unreadable)?.base_vaddr(),
            remembered: Mutex::new(remembered),
            names: OnceLock::new(),
            starts: OnceLock::new(),
            files: Some(Arc::new(self)),
        })
    }

    /// Reads names and lines, which takes long; of compressed ones only what these addresses need.
    fn names(self: &Arc<Self>, asked: &[u64]) -> Names {
        // They are copies, so what they are read from need not stay.
        let symbols = || {
            let again = |file: &FileBytes| file.again(file.budget()).ok();
            let (module, debug) = (again(&self.module), self.debug.as_ref().and_then(again));
            let debug = debug.as_ref().and_then(|file| Image::of(file).ok());
            match (module.as_ref().and_then(|file| Image::of(file).ok()), debug) {
                (Some(image), Some(debug)) => Symbols::with_debug_file(&image, &debug),
                (Some(image), None) => Symbols::new(&image),
                (None, _) => Symbols::default(),
            }
        };
        // Damaged debugging information costs the lines, not the names.
        let lines = || OwnedLines::of(OwnedSections::load(Arc::clone(self), asked)?, asked);
        let (lines, symbols) = threads::scoped(|| rayon::join(lines, symbols));
        Names {
            symbols,
            lines,
            go: OwnedGoNames::of(Arc::clone(self)),
        }
    }

    /// The debugging information, in the module itself or in its debug file.
    fn sections(&self, asked: &[u64]) -> Option<DebugSections<'_>> {
        let supplementary = self.supplementary.as_ref().and_then(|file| Image::of(file).ok());
        let mut files = [Some(&self.module), self.debug.as_ref()].into_iter().flatten();
        files.find_map(|file| DebugSections::load(&Image::of(file).ok()?, supplementary.as_ref(), asked).ok()?)
    }
}

impl Files {
    /// The files of split units.
    fn rests(&self, units: &[SplitUnit]) -> RestsOnDemand {
        let Some(Places { search, paths }) = &self.places else {
            return RestsOnDemand::default();
        };
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let (search, budget) = (search.clone(), self.module.budget().clone());
        let open = move |path: &Path| {
            let file = search.open(path)?.contents(&budget)?;
            // Only a worker reads another user's files.
            match file.foreign_owner() {
                Some(_) => Err(io::ErrorKind::PermissionDenied.into()),
                None => Ok(file),
            }
        };
        RestsOnDemand::new(units, &paths, Box::new(open))
    }
}

/// The debug file of a module, and the search that has found it.
fn debug_file<'s>(
    path: &Path,
    image: &Image<'_>,
    search: &'s Search,
    others: Option<&'s Search>,
) -> Option<(&'s Search, PathBuf)> {
    if let Some(found) = search.debug_file(path, image) {
        return Some((search, found));
    }
    let found = others?.by_build_id(image.build_id()?)?;
    Some((others?, found))
}

/// The name of what is remembered about these files.
fn name(files: &[Option<&Opened>]) -> Option<Name> {
    let mut namer = Namer::new(concat!("backtrail ", env!("CARGO_PKG_VERSION"), " names of functions"));
    let program = fs::metadata(std::env::current_exe().ok()?).ok()?;
    namer.numbers(&[
        program.dev(),
        program.ino(),
        program.len(),
        program.ctime() as u64,
        program.ctime_nsec() as u64,
    ]);
    for file in files {
        let file = match file {
            Some(file) => Some(file.identity.as_ref()?),
            None => None,
        };
        namer.numbers(&[u64::from(file.is_some())]);
        namer.numbers(file.map_or(&[], FileIdentity::numbers));
    }
    Some(namer.name())
}

/// The same with a debug file from elsewhere.
fn with_fetched_name(own: &Name, fetched: &Opened) -> Option<Name> {
    let mut namer = Namer::new(concat!("backtrail ", env!("CARGO_PKG_VERSION"), " fetched names"));
    let fetched = fetched.identity.as_ref()?;
    Some(namer.add(own.bytes()).numbers(fetched.numbers()).name())
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
    starts: OnceLock<Option<OwnedStarts>>,
    files: Option<Arc<Files>>,
}

#[derive(Default)]
struct Names {
    symbols: Symbols,
    lines: Option<OwnedLines>,
    /// The names that stripped Go programs keep.
    go: Option<OwnedGoNames>,
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
        let read = || self.files.as_ref().map(|files| files.names(asked)).unwrap_or_default();
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
        let read = || OwnedStarts::of(Arc::clone(self.files.as_ref()?));
        self.starts.get_or_init(read).as_ref()?.start(svma)
    }

    fn code(&self, svma: u64, most: u64) -> Option<(Cpu, &[u8])> {
        code_of(&self.files.as_ref()?.module, svma, most)
    }

    fn expect(&self, svmas: &[u64]) {
        let is_new = |svma: &u64| self.remembered().get(*svma).is_none();
        let asked: Vec<u64> = svmas.iter().copied().filter(is_new).collect();
        if !asked.is_empty() {
            self.names(&asked);
        }
    }

    fn keep(&self) {
        // Names that are missing for a limit may be found with another one.
        let lines = self.names.get().and_then(|names| names.lines.as_ref());
        if !self.is_limited() && !lines.is_some_and(OwnedLines::misses_some) {
            self.remembered().keep();
        }
    }

    fn bytes(&self) -> u64 {
        let files = self.files.iter().flat_map(|files| files.all());
        let names = self.names.get().map_or(0, |names| names.symbols.bytes_in_memory());
        (names + files.map(FileBytes::bytes_in_memory).sum::<usize>()) as u64
    }

    fn unreadable(&self) -> Option<&Path> {
        self.files.as_ref()?.unreadable.as_deref()
    }

    fn is_limited(&self) -> bool {
        self.files
            .as_ref()
            .is_some_and(|files| files.module.budget().exceeded().is_some())
    }
}

/// The code from an address on. A debug file has the addresses, but not the bytes.
fn code_of(file: &FileBytes, svma: u64, most: u64) -> Option<(Cpu, &[u8])> {
    let image = Image::of(file).ok()?;
    let ranges = image.code_ranges();
    let segment = ranges.iter().find(|range| range.contains(&svma))?;
    let section = image.code_section(svma);
    if section.is_some_and(|section| !section.has_bytes()) {
        return None;
    }
    let end = section.map_or(segment.end, |section| section.memory().end);
    let code = image.data_in(svma..end.min(svma.saturating_add(most)))?;
    Some((image.arch().cpu, code))
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
                    .map_or_else(String::new, |name| readable(&name, frame.file.as_deref())),
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
            outermost.function = readable(&symbol.name, outermost.file.as_deref());
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

/// The name as in the source file, which decides whether it may be one of Ada or Fortran.
fn readable(name: &str, file: Option<&str>) -> String {
    let decoded = match file {
        Some(file) if ada::is_source(file) => ada::decode(name),
        Some(file) if fortran::is_source(file) => fortran::decode(name),
        _ => None,
    };
    decoded.unwrap_or_else(|| demangle(name).into_owned())
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
