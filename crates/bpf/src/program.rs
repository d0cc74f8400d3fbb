//! The program, from its object file.

use std::fmt;

use backtrail_elf::{File, Table};

/// What `cargo xtask bpf` compiles from `program/walk.bpf.c`, for this CPU. Others have no program.
#[cfg(target_arch = "x86_64")]
const OBJECT: &[u8] = include_bytes!("program/x86_64.bpf.o");
#[cfg(target_arch = "aarch64")]
const OBJECT: &[u8] = include_bytes!("program/aarch64.bpf.o");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OBJECT: &[u8] = &[];

/// Names of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// By process number, its [ranges](crate::layout::process).
    Processes,
    /// By number, tables: maps of pages.
    Tables,
    /// By CPU, what the program keeps.
    States,
    /// By CPU, events to write to.
    Events,
    /// Programs to continue with: the copier is number 1, the walker number 2, the copier of other
    /// stacks number 3, and the finder number 5.
    Programs,
}

impl Map {
    const ALL: [(Map, &'static [u8]); 5] = [
        (Map::Processes, b"processes"),
        (Map::Tables, b"tables"),
        (Map::States, b"states"),
        (Map::Events, b"events"),
        (Map::Programs, b"programs"),
    ];
}

/// Instructions, and which of them refer to maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// `struct bpf_insn`.
    pub instructions: Vec<u64>,
    /// Numbers of the instructions that load the address of a map.
    pub maps: Vec<(usize, Map)>,
}

/// The parts of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Runs first.
    pub begin: Code,
    /// Walks some frames by rules that were looked up before, and continues with itself, or with
    /// the finder.
    pub walk: Code,
    /// Looks up the rules of some frames, walks them, and continues with the walker.
    pub find: Code,
}

/// The object is not what the compiler made, or this CPU has no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramError;

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the object of the BPF program is damaged or missing")
    }
}

impl std::error::Error for ProgramError {}

/// The program for this CPU: x86-64 or AArch64.
///
/// # Errors
/// If this crate was built for another one, or its object is damaged.
pub fn program() -> Result<Program, ProgramError> {
    let file = File::parse(OBJECT).map_err(|_| ProgramError)?;
    Ok(Program {
        begin: code(&file, "perf_event/begin").ok_or(ProgramError)?,
        walk: code(&file, "perf_event/walk").ok_or(ProgramError)?,
        find: code(&file, "perf_event/find").ok_or(ProgramError)?,
    })
}

fn code(file: &File<'_>, name: &str) -> Option<Code> {
    let instructions = words(file, name)?;
    let (symbols, _) = file.symbol_table(Table::Full)?;
    let symbols: Vec<&[u8]> = symbols.map(|symbol| symbol.name).collect();
    // Elf64_Rel: the offset, and the number of the symbol above the type (R_BPF_64_64).
    let relocations = words(file, &format!(".rel{name}"))?;
    let maps = relocations.as_chunks::<2>().0.iter().map(|&[offset, info]| {
        let named = symbols.get((info >> 32) as usize)?;
        let (map, _) = Map::ALL.into_iter().find(|(_, name)| name == named)?;
        let at = usize::try_from(offset / 8).ok().filter(|&at| at < instructions.len())?;
        Some((at, map))
    });
    let maps = maps.collect::<Option<Vec<_>>>()?;
    Some(Code { instructions, maps })
}

/// The contents of a section; the file is little-endian, like the machines it is for.
fn words(file: &File<'_>, name: &str) -> Option<Vec<u64>> {
    let section = file.section(name).ok()??;
    let words = section.data.as_chunks::<8>().0.iter();
    Some(words.map(|&word| u64::from_le_bytes(word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_all_parts() {
        let program = program().expect("it was built with this crate");
        /// `BPF_LD | BPF_IMM | BPF_DW`.
        const LOAD: u64 = 0x18;
        let all = [&program.begin, &program.walk, &program.find];
        for code in all {
            assert!(code.maps.iter().all(|&(at, _)| code.instructions[at] & 0xff == LOAD));
        }
        for (map, _) in Map::ALL {
            let uses = |code: &Code| code.maps.iter().any(|&(_, used)| used == map);
            assert!(all.into_iter().any(uses), "{map:?}");
        }
    }
}
