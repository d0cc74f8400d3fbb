//! The instructions of functions, from the files of recorded modules.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use backtrail_arch::Cpu;
use backtrail_elf::debugfile::program_below;
use iced_x86::{Decoder, DecoderOptions, Formatter as _, GasFormatter, Instruction as Decoded};

use super::object::ObjectFiles;
use super::source::{Call, ModuleSymbols, SymbolSource, Unavailable};
use crate::modules::File;

/// Bytes of a function that are decoded: the largest that compilers make of generated parsers and
/// interpreters fit.
const MOST_BYTES: u64 = 4 << 20;
/// Instructions whose names are looked up together: one request, if another process looks them up.
const TOGETHER: usize = 1 << 10;

/// Why instructions cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoCode {
    /// The file that was recorded is not at its path.
    NoFile {
        /// As recorded.
        path: String,
        /// As recorded; empty if it has none.
        build_id: Vec<u8>,
        /// Whether a file is there, but of another build.
        is_other: bool,
    },
    /// The file at this path cannot be read.
    Unreadable(String),
    /// The file at this path does not contain the code: it is the debug file that was split off.
    Split(String),
    /// The code is not in a file: made at run time, or the kernel's.
    NotInFile,
    /// The code of this CPU is not decoded.
    OtherCpu(&'static str),
    /// The start of the function is not known.
    NoStart,
}

impl fmt::Display for NoCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoCode::NoFile {
                path,
                build_id,
                is_other,
            } => {
                match is_other {
                    true => write!(f, "another build of {path} is here than was recorded")?,
                    false => write!(f, "{path} is not here")?,
                }
                if !build_id.is_empty() {
                    write!(f, "; its build ID is ")?;
                    build_id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                }
                write!(f, " (--sysroot names a folder that has it)")
            }
            NoCode::Unreadable(path) => write!(f, "{path} cannot be read"),
            NoCode::Split(path) => write!(f, "of {path}, only the debug file is here, which has no code"),
            NoCode::NotInFile => write!(f, "the code is in no file: it is the kernel's, or was made at run time"),
            NoCode::OtherCpu(name) => write!(f, "code of {name} is not decoded, only that of x86_64"),
            NoCode::NoStart => write!(f, "nothing says where the function starts"),
        }
    }
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The address that its file was linked for.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// In the syntax of the GNU assembler.
    pub text: String,
    /// The function that it calls or jumps to, if it is another one and has a name.
    pub target: Option<String>,
    /// The calls that it belongs to, innermost first; the last one was not inlined.
    pub calls: Vec<Call>,
}

/// The instructions of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// In the order of addresses.
    pub instructions: Vec<Instruction>,
    /// Whether the function goes on.
    pub is_cut: bool,
}

/// The files whose code is shown.
pub struct CodeFiles {
    source: Box<dyn SymbolSource>,
    sysroot: Option<PathBuf>,
    open: HashMap<File, Result<Box<dyn ModuleSymbols>, Unavailable>>,
}

impl Default for CodeFiles {
    fn default() -> Self {
        CodeFiles::new(None)
    }
}

impl CodeFiles {
    /// The files of this machine, or those below a folder.
    pub fn new(sysroot: Option<PathBuf>) -> CodeFiles {
        let mut source = ObjectFiles::new(&[]);
        if let Some(root) = &sysroot {
            source.search_below(root);
        }
        CodeFiles {
            source: Box::new(source),
            sysroot,
            open: HashMap::new(),
        }
    }

    fn symbols(&mut self, file: &File) -> Result<&dyn ModuleSymbols, NoCode> {
        if !self.open.contains_key(file) {
            if let Some(root) = &self.sysroot {
                let place = program_below(root, Path::new(&file.path), &file.build_id);
                self.source.found_at(&file.path, place);
            }
            self.open.insert(file.clone(), self.source.open(file));
        }
        let missing = |is_other| NoCode::NoFile {
            path: file.path.clone(),
            build_id: file.build_id.clone(),
            is_other,
        };
        match self.open.get(file) {
            Some(Ok(symbols)) => Ok(symbols.as_ref()),
            Some(Err(Unavailable::NoFile)) => Err(NoCode::NotInFile),
            Some(Err(Unavailable::Missing | Unavailable::Elsewhere)) | None => Err(missing(false)),
            Some(Err(Unavailable::OtherBuild)) => Err(missing(true)),
            Some(Err(_)) => Err(NoCode::Unreadable(file.path.clone())),
        }
    }

    /// The start of the function at an address, if the file says so.
    pub(crate) fn start(&mut self, file: &File, svma: u64) -> Option<u64> {
        let symbols = self.symbols(file).ok()?;
        start_of(symbols, &symbols.lookup(svma).unwrap_or_default(), svma)
    }

    /// Why the start of a function in this file is not known.
    pub(crate) fn reason(&mut self, file: &File) -> NoCode {
        self.symbols(file).err().unwrap_or(NoCode::NoStart)
    }

    /// The function that starts at an address.
    pub(crate) fn function(&mut self, file: &File, start: u64) -> Result<Code, NoCode> {
        let symbols = self.symbols(file)?;
        let Some((cpu, bytes)) = symbols.code(start, MOST_BYTES) else {
            return Err(match file.is_anonymous() {
                true => NoCode::NotInFile,
                false => NoCode::Split(file.path.clone()),
            });
        };
        match cpu {
            Cpu::X86_64 => Ok(x86_64(symbols, bytes, start)),
            other => Err(NoCode::OtherCpu(other.name())),
        }
    }
}

/// The start of the function at an address that has these names.
fn start_of(symbols: &dyn ModuleSymbols, calls: &[Call], svma: u64) -> Option<u64> {
    match calls.last().and_then(|call| call.offset) {
        Some(offset) => svma.checked_sub(offset),
        None => symbols.start(svma),
    }
}

/// Decodes until another function starts.
fn x86_64(symbols: &dyn ModuleSymbols, bytes: &[u8], start: u64) -> Code {
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_first_operand_char_index(7);
    options.set_space_after_operand_separator(false);
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_branch_leading_zeros(false);
    options.set_rip_relative_addresses(true);
    let mut code = Code::default();
    let mut decoded = Vec::new();
    while decoder.can_decode() {
        decoded.clear();
        while decoder.can_decode() && decoded.len() < TOGETHER {
            decoded.push(decoder.decode());
        }
        let targets = decoded
            .iter()
            .map(Decoded::near_branch_target)
            .filter(|&target| target != 0);
        let addresses: Vec<u64> = decoded.iter().map(Decoded::ip).chain(targets).collect();
        symbols.expect(&addresses);
        for instruction in &decoded {
            let address = instruction.ip();
            let calls = symbols.lookup(address).unwrap_or_default();
            let own_start = start_of(symbols, &calls, address);
            // Code that nothing describes is between functions.
            if own_start != Some(start) {
                return code;
            }
            let mut text = String::new();
            formatter.format(instruction, &mut text);
            if instruction.is_ip_rel_memory_operand() {
                text.push_str(&format!("  # {:#x}", instruction.ip_rel_memory_address()));
            }
            code.instructions.push(Instruction {
                address,
                bytes: instruction.len() as u64,
                text,
                target: target(symbols, instruction, start),
                calls,
            });
        }
    }
    code.is_cut = bytes.len() as u64 >= MOST_BYTES;
    code
}

/// The name of the function that an instruction leads to, if it is another than the one at
/// `own_start`.
fn target(symbols: &dyn ModuleSymbols, instruction: &Decoded, own_start: u64) -> Option<String> {
    let is_branch =
        instruction.is_call_near() || instruction.is_jmp_short_or_near() || instruction.is_jcc_short_or_near();
    if !is_branch {
        return None;
    }
    let target = instruction.near_branch_target();
    let outer = symbols.lookup(target)?.pop()?;
    // What is not a start may be a stub that only seems to belong to the function before it.
    (outer.offset? == 0 && target != own_start).then_some(outer.function)
}
