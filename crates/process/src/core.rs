//! Cores: the process described by the notes and segments of an ELF core.

use std::collections::HashMap;
use std::path::Path;

use backtrail_elf::budget::Budget;
use backtrail_elf::core::{Core, Load};
use backtrail_elf::{Image, door};
use backtrail_unwind::Memory;

use crate::proc::VDSO;
use crate::snapshot::{Mapping, Pieces, Snapshot, Thread};

/// Types of entries of the auxiliary vector (`getauxval(3)`).
mod auxv {
    pub(super) const PHDR: u64 = 3;
    pub(super) const EXECFN: u64 = 31;
    pub(super) const SYSINFO_EHDR: u64 = 33;
}

/// The longest path that the kernel accepts.
const LONGEST_PATH: usize = 4096;
/// Bytes at the start of a module that contain its headers.
const HEADERS: usize = 1 << 20;
/// A longer chain of loaded objects is damaged.
const MOST_OBJECTS: usize = 1 << 16;
/// A dynamic section with more entries is damaged.
const MOST_DYNAMIC: usize = 1 << 12;

/// The process that the core describes.
pub fn snapshot<'a>(core: &Core<'a>) -> Snapshot<'a> {
    let pieces = core.loads.iter().map(|load| (load.start, load.bytes));
    let process = core.process.as_ref();
    let mut snapshot = Snapshot {
        arch: core.arch,
        endian: core.endian,
        pid: process.map_or(0, |process| process.pid),
        reader: 0,
        name: process.map_or_else(String::new, |process| process.name.clone()),
        executable: None,
        signal: core.signal.filter(|&signal| signal != 0),
        mappings: Vec::new(),
        threads: core
            .threads
            .iter()
            .enumerate()
            .map(|(index, told)| thread(core, index, told))
            .collect(),
        pieces: Pieces::stored(pieces.collect()),
        is_live: false,
        is_held: false,
    };
    snapshot.mappings = if core.files.is_empty() {
        mappings_by_headers(core, &snapshot)
    } else {
        mappings_by_note(core)
    };
    name_vdso(core, &mut snapshot.mappings);
    if !core.describes_signatures {
        snapshot.arch = core
            .arch
            .with_code_below(snapshot.mappings.last().map_or(0, |last| last.end));
    }
    snapshot.executable = core
        .auxiliary(auxv::PHDR)
        .and_then(|phdr| snapshot.mapping(phdr))
        .map(|mapping| mapping.path.clone())
        .filter(|path| !path.is_empty());
    snapshot
}

fn thread(core: &Core<'_>, index: usize, thread: &backtrail_elf::core::Thread<'_>) -> Thread {
    // The kernel reports the signal of the first thread for all threads.
    let is_the_firsts = index > 0 && core.signal == Some(u32::from(thread.signal));
    let mut vectors = thread.vectors.set();
    vectors.truncate(core.arch.vectors.map_or(0, |vectors| vectors.bytes));
    Thread {
        tid: thread.tid,
        // Cores contain no thread names.
        name: None,
        signal: Some(u32::from(thread.signal)).filter(|&signal| signal != 0 && !is_the_firsts),
        registers: Ok(thread.registers),
        vectors,
    }
}

fn mapping_of(load: &Load<'_>) -> Mapping {
    Mapping {
        start: load.start,
        end: load.end,
        writable: load.writable,
        executable: load.executable,
        file_offset: 0,
        inode: 0,
        path: String::new(),
    }
}

/// The file ranges in `NT_FILE`, and the rest of the memory. gcore leaves out unchanged memory of
/// files, so it is unknown whether such a range is code.
fn mappings_by_note(core: &Core<'_>) -> Vec<Mapping> {
    let covering = |address: u64| {
        let index = core.loads.partition_point(|load| load.end <= address);
        core.loads.get(index).filter(|load| load.start <= address)
    };
    let mut mappings: Vec<Mapping> = core
        .files
        .iter()
        .map(|file| Mapping {
            start: file.start,
            end: file.end,
            writable: covering(file.start).is_some_and(|load| load.writable),
            executable: covering(file.start).is_none_or(|load| load.executable),
            file_offset: file.file_offset,
            inode: 0,
            path: file.path.clone(),
        })
        .collect();
    mappings.sort_by_key(|mapping| mapping.start);
    let anonymous = core.loads.iter().filter(|load| {
        let index = mappings.partition_point(|mapping| mapping.end <= load.start);
        mappings.get(index).is_none_or(|mapping| mapping.start >= load.end)
    });
    let anonymous: Vec<Mapping> = anonymous.map(mapping_of).collect();
    mappings.extend(anonymous);
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

/// Without `NT_FILE`: an ELF header starts a module, whose length is in its program headers and
/// whose name is in the dynamic linker's list of loaded objects.
fn mappings_by_headers(core: &Core<'_>, snapshot: &Snapshot<'_>) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = core.loads.iter().map(mapping_of).collect();
    let mut names: Option<HashMap<u64, String>> = None;
    for load in &core.loads {
        let is_elf = load.bytes.up_to(0, 4) == Some(b"\x7fELF");
        let headers = load.bytes.up_to(0, HEADERS).filter(|_| is_elf);
        let Some(Ok(image)) = headers.map(|headers| Image::parse_memory(headers, load.start)) else {
            continue;
        };
        let bias = load.start.wrapping_sub(image.base_vaddr());
        let end = load.start.saturating_add(image.mem_size());
        let is_main = core
            .auxiliary(auxv::PHDR)
            .is_some_and(|phdr| (load.start..end).contains(&phdr));
        let path = if is_main {
            executable(core, snapshot)
        } else {
            names
                .get_or_insert_with(|| loaded_objects(core, snapshot).unwrap_or_default())
                .get(&bias)
                .cloned()
        };
        let Some(path) = path else { continue };
        for mapping in mappings
            .iter_mut()
            .filter(|mapping| load.start <= mapping.start && mapping.start < end)
        {
            let svma = mapping.start.wrapping_sub(bias);
            let segment = image.segments().iter().find(|segment| {
                let page = segment.vaddr & !0xfff;
                segment.is_load() && page <= svma && svma < segment.vaddr.saturating_add(segment.memsz)
            });
            if let Some(segment) = segment {
                mapping.path.clone_from(&path);
                mapping.file_offset = segment.offset.wrapping_add(svma.wrapping_sub(segment.vaddr));
            }
        }
    }
    name_executable(core, snapshot, &mut mappings);
    let is_unnamed = |mapping: &Mapping| mapping.executable && mapping.path.is_empty();
    if mappings.iter().any(is_unnamed) {
        let names = names.or_else(|| loaded_objects(core, snapshot)).unwrap_or_default();
        for mapping in mappings.iter_mut().filter(|mapping| is_unnamed(mapping)) {
            // For an object whose headers were left out, only its start is known, from its bias.
            if let Some(path) = names.get(&mapping.start).filter(|path| path.starts_with('/')) {
                mapping.path.clone_from(path);
            }
        }
    }
    mappings
}

/// qemu leaves out unchanged memory, headers included. The executable's headers begin where its
/// first segment does.
fn name_executable(core: &Core<'_>, snapshot: &Snapshot<'_>, mappings: &mut [Mapping]) {
    let Some(phdr) = core.auxiliary(auxv::PHDR) else {
        return;
    };
    let first = mappings
        .iter_mut()
        .find(|mapping| (mapping.start..mapping.end).contains(&phdr));
    if let Some(first) = first.filter(|first| first.path.is_empty())
        && let Some(path) = executable(core, snapshot)
    {
        first.path = path;
    }
}

/// The path that the program was started with.
fn executable(core: &Core<'_>, snapshot: &Snapshot<'_>) -> Option<String> {
    let told = core.auxiliary(auxv::EXECFN).and_then(|at| string(snapshot, at));
    let first_argument = || {
        let process = core.process.as_ref()?;
        process.arguments.split(' ').next().map(str::to_owned)
    };
    told.or_else(first_argument).filter(|path| !path.is_empty())
}

/// The path of each loaded object by its bias (`l_addr`), from `r_debug` (`link.h`).
fn loaded_objects(core: &Core<'_>, snapshot: &Snapshot<'_>) -> Option<HashMap<u64, String>> {
    const DT_DEBUG: u64 = 21;
    let mut memory = snapshot.memory();
    let mut at = dynamic_section(core, snapshot).or_else(|| dynamic_section_by_file(core, snapshot))?;
    let mut r_debug = None;
    for _ in 0..MOST_DYNAMIC {
        match (memory.word(at)?, memory.word(at.checked_add(8)?)?) {
            (0, _) => break,
            (DT_DEBUG, value) => r_debug = Some(value),
            _ => {}
        }
        at = at.checked_add(16)?;
    }
    let r_debug = r_debug?;
    let mut objects = HashMap::new();
    let mut link_map = memory.word(r_debug.checked_add(8)?)?;
    for _ in 0..MOST_OBJECTS {
        if link_map == 0 {
            break;
        }
        let bias = memory.word(link_map)?;
        let name = memory.word(link_map.checked_add(8)?)?;
        if let Some(name) = string(snapshot, name).filter(|name| !name.is_empty()) {
            objects.insert(bias, name);
        }
        link_map = memory.word(link_map.checked_add(24)?)?;
    }
    Some(objects)
}

const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;

/// The address of the executable's dynamic section, from its program headers in memory.
fn dynamic_section(core: &Core<'_>, snapshot: &Snapshot<'_>) -> Option<u64> {
    const AT_PHNUM: u64 = 5;
    let mut memory = snapshot.memory();
    let phdr = core.auxiliary(auxv::PHDR)?;
    let count = core.auxiliary(AT_PHNUM)?.min(1 << 16);
    let mut headers = Vec::new();
    for index in 0..count {
        let at = phdr.checked_add(index * 56)?;
        // `p_type` and `p_flags` are one word.
        let kind = match snapshot.endian {
            backtrail_wire::Endian::Little => memory.word(at)? & 0xffff_ffff,
            backtrail_wire::Endian::Big => memory.word(at)? >> 32,
        };
        headers.push((kind as u32, memory.word(at.checked_add(16)?)?));
    }
    let address_of = |wanted| {
        headers
            .iter()
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, address)| *address)
    };
    let bias = phdr.wrapping_sub(address_of(PT_PHDR)?);
    Some(address_of(PT_DYNAMIC)?.wrapping_add(bias))
}

/// The same from its file: qemu leaves out unchanged memory that begins with a header.
fn dynamic_section_by_file(core: &Core<'_>, snapshot: &Snapshot<'_>) -> Option<u64> {
    let path = executable(core, snapshot)?;
    let file = door::open(Path::new(&path)).ok()?.contents(&Budget::new()).ok()?;
    let image = Image::of(&file)
        .ok()
        .filter(|image| image.arch().cpu == core.arch.cpu)?;
    let address_of = |wanted| {
        let segment = image.segments().iter().find(|segment| segment.kind == wanted);
        segment.map(|segment| segment.vaddr)
    };
    let bias = core.auxiliary(auxv::PHDR)?.wrapping_sub(address_of(PT_PHDR)?);
    Some(address_of(PT_DYNAMIC)?.wrapping_add(bias))
}

/// The string at an address.
fn string(snapshot: &Snapshot<'_>, address: u64) -> Option<String> {
    let bytes = snapshot.pieces.at(address, LONGEST_PATH)?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

fn name_vdso(core: &Core<'_>, mappings: &mut [Mapping]) {
    let Some(start) = core.auxiliary(auxv::SYSINFO_EHDR) else {
        return;
    };
    if let Some(vdso) = mappings
        .iter_mut()
        .find(|mapping| mapping.start == start && mapping.path.is_empty())
    {
        VDSO.clone_into(&mut vdso.path);
    }
}
