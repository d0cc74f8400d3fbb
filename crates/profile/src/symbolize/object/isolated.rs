//! Names that a process without privileges looks up, in files of other users: what is sent to it,
//! and its answer.
//!
//! A request has the module's number (8), which of its files are sent (1), and addresses (8 each).
//! The answer begins with whether names are missing for a limit (1); it has, for each address in
//! the same order, the start of its function (8; [`NO_START`] if that is not known), the number of
//! calls (2), and the calls as they are remembered.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use backtrail_arch::Cpu;
use backtrail_elf::budget::Budget;
use backtrail_elf::isolation::{self, Job, Lost};
use backtrail_elf::{FileBytes, Image};
use backtrail_wire::{Bytes, Cursor, Endian};
use rustc_hash::FxHashMap;

use super::{Files, ModuleSymbols, ObjectSymbols};
use crate::symbolize::remembered::{Remembered, read_call, write_call};
use crate::symbolize::source::Call;

/// The start of a function that is not known.
const NO_START: u64 = u64::MAX;
/// More addresses are sent in several requests: each has the time of a module.
const MOST_ADDRESSES: usize = 1 << 14;
const HAS_DEBUG: u8 = 1;
const HAS_SUPPLEMENTARY: u8 = 2;

/// What is known about an address.
#[derive(Clone, Debug, Default)]
struct Answer {
    calls: Vec<Call>,
    start: Option<u64>,
}

/// The names of a module of which at least one file belongs to another user.
pub(super) struct IsolatedSymbols {
    base_vaddr: u64,
    owner: u32,
    /// Distinguishes the modules of this process.
    number: u64,
    /// The module's own is the first one.
    files: Vec<Arc<File>>,
    /// The module's contents, of which only headers and code are read here, and only for code: a
    /// program can map any number of files.
    module: OnceLock<Option<FileBytes>>,
    /// Which files follow the module's own.
    kinds: u8,
    unreadable: Option<PathBuf>,
    remembered: Mutex<Remembered>,
    answers: Mutex<FxHashMap<u64, Answer>>,
    is_limited: AtomicBool,
    lost: OnceLock<Lost>,
}

impl IsolatedSymbols {
    /// The names in these files of this user.
    pub(super) fn new(base_vaddr: u64, owner: u32, files: Files, remembered: Remembered) -> IsolatedSymbols {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let kinds = [(&files.debug, HAS_DEBUG), (&files.supplementary, HAS_SUPPLEMENTARY)];
        let kinds = kinds
            .iter()
            .filter(|(file, _)| file.is_some())
            .fold(0, |kinds, (_, kind)| kinds | kind);
        IsolatedSymbols {
            base_vaddr,
            owner,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            files: files.open,
            module: OnceLock::new(),
            unreadable: files.unreadable,
            kinds,
            remembered: Mutex::new(remembered),
            answers: Mutex::default(),
            is_limited: AtomicBool::new(false),
            lost: OnceLock::new(),
        }
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(&self) -> MutexGuard<'_, FxHashMap<u64, Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, svma: u64) -> Answer {
        if let Some(answer) = self.answers().get(&svma) {
            return answer.clone();
        }
        self.ask(&[svma]);
        self.answers().get(&svma).cloned().unwrap_or_default()
    }

    /// Asks a worker about these addresses. After a failure nothing is asked again.
    fn ask(&self, svmas: &[u64]) {
        for svmas in svmas.chunks(MOST_ADDRESSES) {
            if self.lost.get().is_some() {
                return;
            }
            let mut request = self.number.to_le_bytes().to_vec();
            request.push(self.kinds);
            request.extend(svmas.iter().flat_map(|svma| svma.to_le_bytes()));
            let files: Vec<&File> = self.files.iter().map(|file| &**file).collect();
            let answer = isolation::ask(self.owner, Job::Names, &files, &request);
            match answer.and_then(|answer| read(&answer, svmas).ok_or(Lost::Unavailable)) {
                Ok((is_limited, answers)) => {
                    self.is_limited.fetch_or(is_limited, Ordering::Relaxed);
                    self.answers().extend(answers);
                }
                Err(lost) => drop(self.lost.set(lost)),
            }
        }
    }
}

fn read(answer: &[u8], svmas: &[u64]) -> Option<(bool, Vec<(u64, Answer)>)> {
    let mut cursor = Bytes::new(answer, Endian::Little).cursor(0);
    let is_limited = cursor.u8().ok()? != 0;
    let read = |cursor: &mut Cursor<'_>, svma: u64| {
        let (start, count) = (cursor.u64().ok()?, cursor.u16().ok()?);
        let calls: Option<Vec<Call>> = (0..count).map(|_| read_call(cursor)).collect();
        let answer = Answer {
            calls: calls?,
            // A worker may be wrong in any way.
            start: (start <= svma).then_some(start),
        };
        Some((svma, answer))
    };
    let answers: Option<Vec<(u64, Answer)>> = svmas.iter().map(|svma| read(&mut cursor, *svma)).collect();
    Some((is_limited, answers.filter(|_| cursor.is_empty())?))
}

impl ModuleSymbols for IsolatedSymbols {
    fn base_vaddr(&self) -> u64 {
        self.base_vaddr
    }

    fn lookup(&self, svma: u64) -> Option<Vec<Call>> {
        if let Some(calls) = self.remembered().get(svma) {
            return Some(calls.clone()).filter(|calls| !calls.is_empty());
        }
        let calls = self.answer(svma).calls;
        if self.lost.get().is_none() {
            self.remembered().put(svma, &calls);
        }
        Some(calls).filter(|calls| !calls.is_empty())
    }

    fn start(&self, svma: u64) -> Option<u64> {
        self.answer(svma).start
    }

    fn code(&self, svma: u64, most: u64) -> Option<(Cpu, &[u8])> {
        let module = self.module.get_or_init(|| {
            let file = self.files.first()?.try_clone().ok()?;
            FileBytes::received(file, &Budget::new()).ok()
        });
        super::code_of(module.as_ref()?, svma, most)
    }

    fn expect(&self, svmas: &[u64]) {
        let is_new = |svma: &u64| self.remembered().get(*svma).is_none() && !self.answers().contains_key(svma);
        let asked: Vec<u64> = svmas.iter().copied().filter(is_new).collect();
        self.ask(&asked);
    }

    fn keep(&self) {
        // As for names that are looked up here.
        if !self.is_limited() {
            self.remembered().keep();
        }
    }

    fn bytes(&self) -> u64 {
        let module = self.module.get().and_then(Option::as_ref);
        module.map_or(0, |module| module.bytes_in_memory() as u64)
    }

    fn unreadable(&self) -> Option<&Path> {
        self.unreadable.as_deref()
    }

    fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    fn lost(&self) -> Option<Lost> {
        self.lost.get().copied()
    }
}

/// The modules that a worker has read.
#[derive(Default)]
pub struct IsolatedNames(HashMap<u64, Option<ObjectSymbols>>);

impl IsolatedNames {
    /// Answers a request, in the worker. `None` if it makes no sense.
    pub fn answer(&mut self, files: Vec<File>, request: &[u8]) -> Option<Vec<u8>> {
        let mut cursor = Bytes::new(request, Endian::Little).cursor(0);
        let (number, kinds) = (cursor.u64().ok()?, cursor.u8().ok()?);
        let mut svmas = Vec::new();
        while !cursor.is_empty() {
            svmas.push(cursor.u64().ok()?);
        }
        let symbols = self.0.entry(number).or_insert_with(|| open(files, kinds));
        let mut answer = vec![0];
        if let Some(symbols) = symbols {
            symbols.expect(&svmas);
        }
        for svma in svmas {
            let symbols = symbols.as_ref();
            let calls = symbols.and_then(|symbols| symbols.lookup(svma)).unwrap_or_default();
            let start = symbols.filter(|_| calls.is_empty());
            let start = start.and_then(|symbols| symbols.start(svma)).unwrap_or(NO_START);
            answer.extend(start.to_le_bytes());
            answer.extend((calls.len() as u16).to_le_bytes());
            for call in calls.iter().take(calls.len() as u16 as usize) {
                write_call(&mut answer, call);
            }
        }
        answer[0] = symbols.as_ref().is_some_and(ModuleSymbols::is_limited).into();
        Some(answer)
    }
}

fn open(files: Vec<File>, kinds: u8) -> Option<ObjectSymbols> {
    let budget = Budget::new();
    let mut files = files.into_iter();
    let mut next = || FileBytes::received(files.next()?, &budget).ok();
    let module = next()?;
    Image::of(&module).ok()?;
    let debug = (kinds & HAS_DEBUG != 0).then(&mut next).flatten();
    let supplementary = (kinds & HAS_SUPPLEMENTARY != 0).then(&mut next).flatten();
    let files = Files {
        places: None,
        module,
        debug,
        supplementary,
        open: Vec::new(),
        unreadable: None,
        name: None,
    };
    files.read_here(Remembered::default()).ok()
}
