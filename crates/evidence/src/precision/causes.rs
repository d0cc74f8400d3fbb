//! Why a chain differs: distinguishes the gaps and peculiarities of call frame information from our
//! own mistakes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use backtrail_arch::{Arch, Cpu};
use backtrail_cfi::build::{self, Skipped};
use backtrail_cfi::check;
use backtrail_cfi::tables;
use backtrail_elf::{FileBytes, Image};
use backtrail_sframe::write::Options;
use backtrail_sframe::{Base, Found, Location, Version};
use backtrail_testkit::command;
use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

use super::check::{Fault, Place, Seen};
use super::space::{Module, Source, is_described_at_calls_only, returns_above_frame};

const LIMIT: Duration = Duration::from_secs(120);

/// Places of one cause in one function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exception {
    /// Addresses in the module.
    pub(crate) addresses: Vec<u64>,
    pub(crate) instructions: u64,
    pub(crate) example: String,
}

/// Where and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// By readelf: no FDE covers the address.
    NoInformation,
    /// No file: what an emulator provides.
    NoModule,
    /// The module is without a table of its own.
    NoTable,
    /// This version cannot express what the FDE says.
    Inexpressible(&'static str),
    /// The frame is found by a register that no table keeps.
    RegisterNotKept(&'static str),
    /// The return address is in a register that no table keeps.
    ReturnNotKept(&'static str),
    /// The row is that of the place that the code is about to jump to.
    TellsOfTarget,
    /// The row says that the return address lies above the frame.
    ReturnAboveFrame,
    /// The row is right at calls only: an instruction in front has changed the register that the
    /// frame is found by, and the row is that of before.
    OnlyCalls,
    /// The program's first instruction, whose row does not say yet that it has no caller.
    Entry,
    /// Other code that the entry point's description covers, which says that it has no caller.
    BesideEntry,
    /// The program has replaced the return address.
    Overwritten,
    /// The C++ runtime has replaced saved values by those for the handler's frame.
    InstallsHandler,
    /// The code has loaded the stack pointer of the code that it is about to resume.
    Resumes,
    /// A mistake of ours.
    Unexplained(Fault),
}

impl Cause {
    pub(crate) fn text(&self) -> String {
        match self {
            Cause::NoInformation => "no call frame information".into(),
            Cause::NoModule => "the emulator's own code, in no file".into(),
            Cause::NoTable => "a file without a table".into(),
            Cause::Inexpressible(reason) => format!("cannot be said in this version: {reason}"),
            Cause::RegisterNotKept(register) => {
                format!("the frame is found by {register}, which SFrame does not restore")
            }
            Cause::ReturnNotKept(register) => {
                format!("hand-written: the return address is in {register}, which SFrame does not restore")
            }
            Cause::TellsOfTarget => "hand-written: describes the frame that it is about to jump to".into(),
            Cause::ReturnAboveFrame => {
                "hand-written: says that the return address lies above the frame, so that the caller's stack pointer is wrong".into()
            }
            Cause::OnlyCalls => "the compiler describes this function at its calls only, and not its first and last instructions".into(),
            Cause::Entry => "says only at its second instruction that it has no caller".into(),
            Cause::BesideEntry => {
                "not the entry point, but described with it, and so as code that has no caller".into()
            }
            Cause::Overwritten => "the program has overwritten this return address in memory".into(),
            Cause::InstallsHandler => {
                "the runtime has overwritten the registers that it saved, to resume in the handler's frame".into()
            }
            Cause::Resumes => {
                "has loaded the stack pointer of the code that it is about to resume, and has no caller any more".into()
            }
            Cause::Unexplained(fault) => format!("**unexplained**: {fault:?}"),
        }
    }

    pub(crate) fn is_explained(&self) -> bool {
        !matches!(self, Cause::Unexplained(_))
    }
}

/// Facts about a module besides its tables, computed on demand.
struct Known {
    fdes: Vec<Range<u64>>,
    skipped: HashMap<Source, Vec<Skipped>>,
    /// Addresses at which the table differs from `.eh_frame`.
    mismatches: Vec<Range<u64>>,
}

pub(crate) struct Causes<'c> {
    arch: &'static Arch,
    modules: BTreeMap<String, Rc<Module>>,
    known: HashMap<(String, Source), Known>,
    /// The paths of files with the `.eh_frame` that was removed.
    originals: &'c HashMap<String, PathBuf>,
}

impl<'c> Causes<'c> {
    pub(crate) fn new<'m>(
        arch: &'static Arch,
        modules: impl Iterator<Item = &'m Rc<Module>>,
        originals: &'c HashMap<String, PathBuf>,
    ) -> Self {
        let by_path = |module: &Rc<Module>| (module.path.to_string_lossy().into_owned(), module.clone());
        Causes {
            arch,
            modules: modules.map(by_path).collect(),
            known: HashMap::new(),
            originals,
        }
    }

    /// Sorts the differences of one source by cause.
    pub(crate) fn sort<'p>(
        &mut self,
        source: Source,
        places: impl Iterator<Item = (&'p Place, &'p Seen)>,
    ) -> BTreeMap<Key, Exception> {
        let mut sorted: BTreeMap<Key, Exception> = BTreeMap::new();
        for (place, seen) in places {
            let cause = self.of(source, place);
            let exception = sorted.entry(self.key(place, cause)).or_default();
            exception.addresses.push(place.svma);
            exception.instructions += seen.instructions;
            if exception.example.is_empty() {
                exception.example.clone_from(&seen.example);
            }
        }
        sorted
    }

    fn key(&self, place: &Place, cause: Cause) -> Key {
        let module = self.modules.get(&place.module);
        // A file without a table is one gap, not one for each function.
        let function = match (&cause, module) {
            (Cause::NoTable, _) => "all of it".into(),
            (_, Some(module)) => module.describe(place.svma),
            (_, None) => "?".into(),
        };
        Key {
            module: super::space::short(Path::new(&place.module)),
            function,
            cause,
        }
    }

    fn of(&mut self, source: Source, place: &Place) -> Cause {
        let Some(module) = self.modules.get(&place.module).cloned() else {
            return Cause::NoModule;
        };
        let Some(section) = module.section(source) else {
            return Cause::NoTable;
        };
        let originals = self.originals;
        let known = self
            .known
            .entry((place.module.clone(), source))
            .or_insert_with(|| Known::of(&module, source, originals.get(&place.module)));
        let holds = |range: &Range<u64>| range.contains(&place.svma);
        if !known.fdes.iter().any(holds) {
            return Cause::NoInformation;
        }
        let skipped = known.skipped.get(&source).into_iter().flatten();
        if let Some(skipped) = skipped
            .into_iter()
            .find(|skipped| (skipped.start..skipped.end()).contains(&place.svma))
        {
            return Cause::Inexpressible(skipped.reason);
        }
        if place.fault == Fault::Overwritten {
            return Cause::Overwritten;
        }
        let function = |address| Some(section.lookup(address).ok()??.function);
        let entry = module.image.entry();
        let is_beside_entry = place.svma != entry && function(entry).is_some_and(|it| function(place.svma) == Some(it));
        if is_beside_entry && place.fault == Fault::Stopped("end of stack") {
            return Cause::BesideEntry;
        }
        let found = section.lookup(place.svma).ok().flatten();
        // Rows that are not those of call frame information.
        if let Some(found) = found.filter(|found| loses_registers(self.arch, found))
            && matches!(place.fault, Fault::Stopped("register not known" | "limit"))
        {
            if module.describe(place.svma).starts_with("_Unwind_") {
                return Cause::InstallsHandler;
            }
            if has_loaded_stack_pointer(&module.image, found.function.start, place.svma) {
                return Cause::Resumes;
            }
        }
        let rule = found.and_then(|found| found.row.rule);
        // The following cases blame the call frame information; the row must agree with it.
        match rule {
            Some(rule) if !known.mismatches.iter().any(holds) => match (rule.cfa.base, rule.ra.base) {
                (Base::Register(number), _)
                    if matches!(place.fault, Fault::Stopped("register not known" | "limit"))
                        && ![self.arch.sp.0, self.arch.fp.0].contains(&number) =>
                {
                    let name = self.arch.register_name(backtrail_arch::Register(number));
                    Cause::RegisterNotKept(name.unwrap_or("a register"))
                }
                (_, Base::Register(number)) if !rule.ra.deref && number != self.arch.ra.0 => match place.is_call {
                    true => {
                        let name = self.arch.register_name(backtrail_arch::Register(number));
                        Cause::ReturnNotKept(name.unwrap_or("a register"))
                    }
                    false => Cause::TellsOfTarget,
                },
                _ if !place.is_call && is_described_at_calls_only(&module.image, section, place.svma) => {
                    Cause::OnlyCalls
                }
                _ if place.fault == Fault::Surplus && place.svma == module.image.entry() => Cause::Entry,
                _ if returns_above_frame(section, place.svma) == Some(true) => Cause::ReturnAboveFrame,
                _ if place.fault != Fault::NotCovered && module.describe(place.svma).starts_with("_Unwind_") => {
                    Cause::InstallsHandler
                }
                _ => Cause::Unexplained(place.fault),
            },
            _ => Cause::Unexplained(place.fault),
        }
    }
}

/// Whether the row says that the caller's return address or frame pointer is not there any more: it
/// names a register that the machine lacks.
fn loses_registers(arch: &Arch, found: &Found) -> bool {
    let is_lost = |location: Location| match location.base {
        Base::Register(number) => arch.register_name(backtrail_arch::Register(number)).is_none(),
        Base::Cfa => false,
    };
    let rule = found.row.rule;
    rule.is_some_and(|rule| is_lost(rule.ra) || rule.fp.is_some_and(is_lost))
}

/// Whether the instructions from `start` to `svma` move something into x86-64's stack pointer.
fn has_loaded_stack_pointer(image: &Image<'_>, start: u64, svma: u64) -> bool {
    let code = image.data_in(start..svma).filter(|_| image.arch().cpu == Cpu::X86_64);
    let mut decoder = Decoder::with_ip(64, code.unwrap_or_default(), start, DecoderOptions::NONE);
    decoder
        .iter()
        .any(|instruction| instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register() == Register::RSP)
}

impl Known {
    fn of(module: &Module, source: Source, original: Option<&PathBuf>) -> Known {
        let file = original.and_then(|path| FileBytes::open(path).ok());
        let parsed = file.as_ref().and_then(|file| Image::of(file).ok());
        let image = parsed.as_ref().unwrap_or(&module.image);
        let version = match source {
            Source::Version2 => Version::V2,
            Source::Sampling | Source::Own => Version::V3,
        };
        let options = Options::new(version, tables::abi(image), 0);
        let built = tables::convert(image)
            .ok()
            .and_then(|converted| build::table(&converted, &options).ok());
        let skipped = built.map(|built| built.skipped).unwrap_or_default();
        let mismatches = mismatches(module, image, source, &skipped);
        Known {
            fdes: fdes(image).unwrap_or_default(),
            skipped: HashMap::from([(source, skipped)]),
            mismatches,
        }
    }
}

fn mismatches(module: &Module, image: &Image<'_>, source: Source, skipped: &[Skipped]) -> Vec<Range<u64>> {
    let Some(table) = module.section(source) else {
        return Vec::new();
    };
    let Ok(report) = check::check_image(image, table, skipped) else {
        return Vec::new();
    };
    let range = |mismatch: &check::Mismatch| mismatch.pc..mismatch.pc.saturating_add(mismatch.pcs);
    report.mismatches.iter().map(range).collect()
}

/// The code that FDEs describe, according to readelf.
fn fdes(image: &Image<'_>) -> Option<Vec<Range<u64>>> {
    let folder = backtrail_testkit::scratch();
    let copy = folder.path().join("module");
    std::fs::write(&copy, image.bytes()).ok()?;
    let mut readelf = Command::new("readelf");
    readelf.args(["--debug-dump=frames", "-W"]).arg(&copy);
    let finished = command::run(&mut readelf, LIMIT).ok()?;
    // Behind it may be .debug_frame, which only debuggers read.
    let of_eh_frame = finished.stdout.split_once("Contents of the .eh_frame section")?.1;
    let of_eh_frame = of_eh_frame.split("Contents of the .debug_frame section").next()?;
    let range = |line: &str| {
        let (start, end) = line
            .split_once(" FDE ")?
            .1
            .split_once("pc=")?
            .1
            .trim()
            .split_once("..")?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some(hex(start)?..hex(end)?)
    };
    Some(of_eh_frame.lines().filter_map(range).collect())
}
