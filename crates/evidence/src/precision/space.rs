//! The mappings of a process, and their tables.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use backtrail_cfi::build;
use backtrail_cfi::tables::{self, Tables};
use backtrail_elf::{FileBytes, Image, Symbols};
use backtrail_process::proc::{self, MapsEntry};
use backtrail_process::sys::read_process;
use backtrail_sframe::write::Options;
use backtrail_sframe::{Base, Section, Version};
use backtrail_unwind::{Coverage, Modules, Table};

use super::aarch64;

/// The table of a module to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// The table that sampling uses: the module's own, or `.eh_frame` in version 3.
    Sampling,
    /// `.eh_frame` in version 2.
    Version2,
    /// Only the module's own `.sframe`.
    Own,
}

/// A file, or the vdso, with its tables. Files stay mapped until the command ends.
pub(crate) struct Module {
    pub(crate) path: PathBuf,
    pub(crate) image: Image<'static>,
    pub(crate) symbols: Symbols,
    tables: HashMap<Source, Section<'static>>,
    /// The first of the numbers of its tables.
    id: u32,
}

impl Module {
    fn new(path: PathBuf, image: Image<'static>, sources: &[Source], id: u32) -> Module {
        let mut module = Module {
            path,
            symbols: Symbols::new(&image),
            image,
            tables: HashMap::new(),
            id,
        };
        for source in sources {
            if let Some(section) = module.table(*source) {
                module.tables.insert(*source, section);
            }
        }
        module
    }

    fn table(&self, source: Source) -> Option<Section<'static>> {
        let image = &self.image;
        let (bytes, address) = match source {
            Source::Sampling => {
                let table = Tables::without_cache().load(image).ok()?;
                (table.bytes, table.address)
            }
            Source::Version2 => {
                let options = Options::new(Version::V2, tables::abi(image), 0);
                let built = build::table(&tables::convert(image).ok()?, &options).ok()?;
                (built.bytes, 0)
            }
            Source::Own => {
                let own = image.sframe().ok()??;
                (own.data.to_vec(), own.address)
            }
        };
        Section::parse(bytes.leak(), address).ok()
    }

    pub(crate) fn section(&self, source: Source) -> Option<&Section<'static>> {
        self.tables.get(&source)
    }

    /// `function+0x12`, or the section.
    pub(crate) fn describe(&self, svma: u64) -> String {
        match self.symbols.lookup(svma) {
            Some(symbol) => symbol.name.into_owned(),
            None => match self.image.code_section(svma) {
                Some(section) => format!("in {}", String::from_utf8_lossy(section.name)),
                None => "?".to_owned(),
            },
        }
    }
}

/// Modules by file, read once.
pub(crate) struct Library {
    modules: HashMap<(String, u64), Option<Rc<Module>>>,
    sources: Vec<Source>,
    /// The CPU that modules must be for; an emulator's own modules are not.
    cpu: &'static str,
}

impl Library {
    pub(crate) fn new(sources: &[Source], cpu: &'static str) -> Library {
        Library {
            modules: HashMap::new(),
            sources: sources.to_vec(),
            cpu,
        }
    }

    pub(crate) fn modules(&self) -> impl Iterator<Item = &Rc<Module>> {
        self.modules.values().flatten()
    }

    fn get(&mut self, pid: i32, map: &MapsEntry) -> Option<Rc<Module>> {
        let key = (map.path.clone(), map.inode);
        let id = self.modules.len() as u32 * 4;
        let (sources, cpu) = (&self.sources, self.cpu);
        let module = self.modules.entry(key).or_insert_with(|| {
            let bytes = bytes_of(pid, map)?;
            let image = Image::parse(bytes).ok().filter(|image| image.arch().name() == cpu)?;
            Some(Rc::new(Module::new(PathBuf::from(&map.path), image, sources, id)))
        });
        module.clone()
    }
}

fn bytes_of(pid: i32, map: &MapsEntry) -> Option<&'static [u8]> {
    if map.path == "[vdso]" {
        let mut bytes = vec![0; usize::try_from(map.end - map.start).ok()?];
        let read = read_process(pid, map.start, &mut bytes).ok()?;
        bytes.truncate(read);
        return Some(bytes.leak());
    }
    let ways = proc::mapped_file(pid as u32, map.start, map.end, &map.path);
    let file = ways.into_iter().find_map(|path| FileBytes::open(path).ok())?;
    Some(Box::leak(Box::new(file)).bytes())
}

/// A part of a module that is mapped.
#[derive(Clone)]
pub(crate) struct Mapped {
    start: u64,
    end: u64,
    pub(crate) bias: u64,
    pub(crate) module: Rc<Module>,
}

/// Which mappings hold code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeIs {
    /// Those that may be executed.
    Executable,
    /// Those of executable segments of files for this CPU: an emulator only reads them.
    Emulated,
}

/// The code of a process, by address.
#[derive(Clone, Default)]
pub(crate) struct Space {
    mapped: Vec<Mapped>,
}

impl Space {
    pub(crate) fn read(pid: i32, library: &mut Library, code: CodeIs) -> Space {
        let maps = proc::maps(pid as u32).unwrap_or_default();
        let mut mapped = Vec::new();
        for map in maps {
            let may_be_code = match code {
                CodeIs::Executable => map.executable,
                CodeIs::Emulated => map.path.starts_with('/'),
            };
            if !may_be_code || !(map.path.starts_with('/') || map.path == "[vdso]") || map.path == "/dev/zero" {
                continue;
            }
            if let Some(found) = library.get(pid, &map).and_then(|module| place(&map, module, code)) {
                mapped.push(found);
            }
        }
        mapped.sort_by_key(|mapped| mapped.start);
        Space { mapped }
    }

    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<&Mapped> {
        let before = self.mapped.partition_point(|mapped| mapped.start <= address);
        let mapped = self.mapped.get(before.checked_sub(1)?)?;
        (address < mapped.end).then_some(mapped)
    }

    /// Whether both lie in one function, and the second is not its first byte.
    pub(crate) fn is_inside(&self, from: u64, to: u64) -> bool {
        let function = |address: u64| {
            let mapped = self.find(address)?;
            let symbol = mapped.module.symbols.lookup(address.wrapping_sub(mapped.bias))?;
            Some(symbol.address.wrapping_add(mapped.bias))
        };
        function(from).is_some_and(|start| function(to) == Some(start) && start != to)
    }
}

const PAGE: u64 = 4096;

/// The executable segment that is mapped there, from the start of its first page, or a part of it.
fn place(map: &MapsEntry, module: Rc<Module>, code: CodeIs) -> Option<Mapped> {
    let end = map.file_offset + (map.end - map.start);
    let segment = module.image.segments().iter().find(|segment| {
        let (first, last) = (segment.offset & !(PAGE - 1), segment.offset + segment.filesz);
        let overlaps = match code {
            CodeIs::Executable => first <= map.file_offset,
            CodeIs::Emulated => first < end,
        };
        segment.is_load() && segment.is_executable() && overlaps && map.file_offset < last
    })?;
    let svma = segment.vaddr.wrapping_add(map.file_offset).wrapping_sub(segment.offset);
    Some(Mapped {
        start: map.start,
        end: map.end,
        bias: map.start.wrapping_sub(svma),
        module,
    })
}

/// The tables of one source.
pub(crate) struct View<'s> {
    pub(crate) space: &'s Space,
    pub(crate) source: Source,
}

impl View<'_> {
    /// The name of the function at an address.
    pub(crate) fn function(&self, address: u64) -> String {
        let mapped = self.space.find(address);
        mapped.map_or_else(String::new, |mapped| {
            mapped.module.describe(address.wrapping_sub(mapped.bias))
        })
    }

    /// Whether an address is in `.init` or `.fini`, which are parts of functions.
    pub(crate) fn is_in_init_or_fini(&self, address: u64) -> bool {
        self.space.find(address).is_some_and(|mapped| {
            let section = mapped.module.image.code_section(address.wrapping_sub(mapped.bias));
            section.is_some_and(|section| [&b".init"[..], b".fini"].contains(&section.name))
        })
    }

    /// As [`is_described_at_calls_only`], by an address.
    pub(crate) fn is_described_at_calls_only(&self, address: u64) -> bool {
        let is_described = || {
            let mapped = self.space.find(address)?;
            let section = mapped.module.section(self.source)?;
            let svma = address.wrapping_sub(mapped.bias);
            Some(is_described_at_calls_only(&mapped.module.image, section, svma))
        };
        is_described().unwrap_or(false)
    }

    /// Whether a row of the function says that the return address lies above the frame, where no
    /// caller can have its own.
    pub(crate) fn returns_above_frame(&self, address: u64) -> bool {
        let rows = || {
            let mapped = self.space.find(address)?;
            let section = mapped.module.section(self.source)?;
            returns_above_frame(section, address.wrapping_sub(mapped.bias))
        };
        rows().unwrap_or(false)
    }
}

/// As [`View::returns_above_frame`], by the module's own address; `None` if there is no function.
pub(crate) fn returns_above_frame(section: &Section<'_>, svma: u64) -> Option<bool> {
    let found = section.lookup(svma).ok()??;
    let function = section
        .functions()
        .flatten()
        .find(|fde| fde.function() == found.function)?;
    let above = function.rows().flatten().any(|row| {
        row.rule
            .is_some_and(|rule| rule.ra.deref && rule.ra.base == Base::Cfa && rule.ra.offset >= 0)
    });
    Some(above)
}

/// Whether the row of an address is that of an earlier instruction, although an instruction between
/// them has changed the register that it finds the frame by; AArch64 only.
pub(crate) fn is_described_at_calls_only(image: &Image<'_>, section: &Section<'_>, svma: u64) -> bool {
    if image.arch().name() != "aarch64" {
        return false;
    }
    let rule = |at: u64| section.lookup(at).ok()?.map(|found| (found.function, found.row.rule));
    let Some((function, Some(row))) = rule(svma) else {
        return false;
    };
    let base = match row.cfa.base {
        Base::Register(number) => number,
        Base::Cfa => return false,
    };
    let before = (1..=64).map_while(|count| svma.checked_sub(4 * count));
    for at in before {
        let word = image.data_at(at).and_then(|bytes| bytes.first_chunk::<4>());
        let Some(word) = word.map(|bytes| u32::from_le_bytes(*bytes)) else {
            return false;
        };
        if rule(at) != Some((function, Some(row))) || aarch64::goes_elsewhere(word) {
            return false;
        }
        if aarch64::writes(word, u32::from(base)) {
            return true;
        }
    }
    false
}

impl Modules for View<'_> {
    fn coverage(&self, address: u64) -> Coverage<'_> {
        // Never by frame pointers, so that a gap remains a gap.
        let table = self.space.find(address).and_then(|mapped| {
            Some(Table {
                section: *mapped.module.section(self.source)?,
                index: None,
                bias: mapped.bias,
                id: mapped.module.id + self.source as u32,
            })
        });
        table.map_or(Coverage::NoModule, Coverage::Table)
    }
}

/// A module's name without its folder.
pub(crate) fn short(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}
