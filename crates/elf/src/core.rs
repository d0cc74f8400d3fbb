//! Cores (`elf(5)`, "Notes"; `core(5)`): the memory and the threads of a process that ended or was
//! copied.
//!
//! Reads cores of the kernel, gdb's `gcore` and qemu's user mode. A truncated core is read as far
//! as possible: [`Core::missing`] is the number of bytes that its headers describe past its end.

pub mod bounded;

use backtrail_arch::{Arch, Registers};
use backtrail_wire::{Bytes, Endian};

use crate::constants::{
    NT_ARM_PAC_MASK, NT_ARM_SVE, NT_AUXV, NT_FILE, NT_PRFPREG, NT_PRPSINFO, NT_PRSTATUS, NT_SIGINFO, PT_NOTE,
};
use crate::source::Stored;
use crate::{Error, ErrorKind, Result};
use crate::{FileBytes, Image, Kind, Segment};

/// `struct elf_prstatus`: the same offsets on every 64-bit CPU.
mod prstatus {
    pub(super) const CURSIG: usize = 12;
    pub(super) const PID: usize = 32;
    pub(super) const REG: usize = 112;
}

/// `struct user_pac_mask`: the mask for data precedes it.
const INSTRUCTION_MASK: usize = 8;

/// `struct elf_prpsinfo`: the same offsets on every 64-bit CPU.
mod prpsinfo {
    pub(super) const PID: usize = 24;
    pub(super) const FNAME: usize = 40;
    pub(super) const FNAME_BYTES: usize = 16;
    pub(super) const PSARGS: usize = 56;
    pub(super) const PSARGS_BYTES: usize = 80;
}

/// A thread (`NT_PRSTATUS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread<'a> {
    /// `pr_pid`.
    pub tid: u32,
    /// `pr_cursig`: the signal that it stopped or died with; 0 if none.
    pub signal: u16,
    /// `pr_reg`.
    pub registers: Registers,
    /// Its vector registers.
    pub vectors: Vectors<'a>,
}

/// A thread's vector registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vectors<'a> {
    /// The core has none.
    #[default]
    None,
    /// The kernel's register set (`NT_PRFPREG`).
    Set(&'a [u8]),
    /// The registers of AArch64's SVE, one after the other (`NT_ARM_SVE`): gdb writes no others.
    Scalable {
        /// The registers.
        registers: &'a [u8],
        /// Bytes of each.
        length: usize,
    },
}

impl Vectors<'_> {
    /// As the kernel's register set has them: of longer registers the first 16 bytes each.
    pub fn set(&self) -> Vec<u8> {
        match *self {
            Vectors::None => Vec::new(),
            Vectors::Set(set) => set.to_vec(),
            Vectors::Scalable { registers, length } => {
                let registers = registers.chunks_exact(length.max(sve::LEAST));
                registers
                    .flat_map(|register| &register[..sve::LEAST])
                    .copied()
                    .collect()
            }
        }
    }
}

/// `struct user_sve_header`, and what follows it.
mod sve {
    pub(super) const LENGTH: usize = 8;
    pub(super) const FLAGS: usize = 12;
    /// The flag of registers of this length; without it, `struct user_fpsimd_state` follows.
    pub(super) const IS_SCALABLE: u16 = 1;
    pub(super) const REGISTERS: usize = 16;
    pub(super) const COUNT: usize = 32;
    /// Bytes of the shortest registers, and of the part that others have in common with these.
    pub(super) const LEAST: usize = 16;
}

/// The process (`NT_PRPSINFO`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// `pr_pid`.
    pub pid: u32,
    /// `pr_fname`: up to 15 bytes of the program's name.
    pub name: String,
    /// `pr_psargs`: up to 79 bytes of its arguments.
    pub arguments: String,
}

/// Why the process died (`NT_SIGINFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo {
    /// `si_signo`.
    pub signal: u32,
    /// `si_code`: positive if the kernel sent it because of what the process did.
    pub code: i32,
    /// The first field of the signal's own: an address (`si_addr`) after a fault; or the sender's
    /// process and user (`si_pid`, `si_uid`), the former in the lower half in little-endian.
    pub value: u64,
}

/// A mapped file (`NT_FILE`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Offset of the first byte in the file, in bytes.
    pub file_offset: u64,
    /// Path.
    pub path: String,
}

/// A range of memory (`PT_LOAD`).
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// First address.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Whether it is writable.
    pub writable: bool,
    /// Whether it is executable.
    pub executable: bool,
    /// Its first bytes, as far as the core contains them; may be empty.
    pub bytes: Stored<'a>,
}

/// A core.
#[derive(Clone, Debug)]
pub struct Core<'a> {
    /// The CPU, with the signatures that `NT_ARM_PAC_MASK` describes.
    pub arch: &'static Arch,
    /// Whether there is such a note.
    pub describes_signatures: bool,
    /// Its byte order.
    pub endian: Endian,
    /// The threads; the kernel puts the one that died first.
    pub threads: Vec<Thread<'a>>,
    /// The process, if the core describes it.
    pub process: Option<Process>,
    /// The mapped files, if the core lists them.
    pub files: Vec<MappedRange>,
    /// The auxiliary vector: types and values.
    pub auxv: Vec<(u64, u64)>,
    /// `si_signo` of the signal that the process died with (`NT_SIGINFO`).
    pub signal: Option<u32>,
    /// The rest of that note, if it is complete.
    pub signal_info: Option<SignalInfo>,
    /// The memory, by ascending address.
    pub loads: Vec<Load<'a>>,
    /// Number of bytes that the headers describe past the file's end.
    pub missing: u64,
    /// Error in the notes; those before it were read.
    pub damage: Option<Error>,
}

impl<'a> Core<'a> {
    /// Reads a core. The memory that it allocates is bounded by the length of its headers and
    /// notes.
    ///
    /// # Errors
    /// If it is not an ELF file, not for a supported CPU, not a core, cut off within its headers,
    /// or has no thread.
    pub fn parse(bytes: &'a [u8]) -> Result<Core<'a>> {
        Core::of_image(&Image::parse(bytes)?)
    }

    /// Reads a core of whose memory only the needed parts are read.
    ///
    /// # Errors
    /// As [`Core::parse`].
    pub fn of(file: &'a FileBytes) -> Result<Core<'a>> {
        Core::of_image(&Image::of(file)?)
    }

    fn of_image(image: &Image<'a>) -> Result<Core<'a>> {
        if image.kind() != Kind::Core {
            return Err(Error::at(ErrorKind::NotCore, 16));
        }
        let promised = image
            .segments()
            .iter()
            .map(|segment| segment.offset.saturating_add(segment.filesz));
        let mut core = Core {
            arch: image.arch(),
            describes_signatures: false,
            endian: image.endian(),
            threads: Vec::new(),
            process: None,
            files: Vec::new(),
            auxv: Vec::new(),
            signal: None,
            signal_info: None,
            loads: loads(image),
            missing: promised.max().unwrap_or(0).saturating_sub(image.len() as u64),
            damage: None,
        };
        for segment in image.segments().iter().filter(|segment| segment.kind == PT_NOTE) {
            if let Err(error) = core.read_notes(image, segment) {
                core.damage.get_or_insert(error);
            }
        }
        if core.threads.is_empty() {
            return Err(core.damage.unwrap_or(Error::at(ErrorKind::NoThreads, 0)));
        }
        Ok(core)
    }

    /// The value of an entry of the auxiliary vector.
    pub fn auxiliary(&self, kind: u64) -> Option<u64> {
        self.auxv
            .iter()
            .find(|(found, _)| *found == kind)
            .map(|&(_, value)| value)
    }

    fn read_notes(&mut self, image: &Image<'a>, segment: &Segment) -> Result<()> {
        let data = Bytes::new(image.segment_bytes(segment).unwrap_or_default(), self.endian);
        let located = |at: usize, error: Error| Error {
            offset: segment.offset.saturating_add(at as u64).saturating_add(error.offset),
            ..error
        };
        // Entries in cores are aligned to four bytes, whatever the header says.
        let aligned = |len: u32| (len as usize).next_multiple_of(4);
        let mut at = 0usize;
        while at < data.len() {
            let header = |field: usize| data.u32(at + field).map_err(|error| located(0, error.into()));
            let (name_len, desc_len, kind) = (header(0)?, header(4)?, header(8)?);
            let past = || Error::at(ErrorKind::Note(kind), segment.offset.saturating_add(at as u64));
            let name = data.slice(at + 12, name_len as usize).map_err(|_| past())?;
            let desc_at = at + 12 + aligned(name_len);
            let desc = data.slice(desc_at, desc_len as usize).map_err(|_| past())?;
            let desc = Bytes::new(desc, self.endian);
            match name {
                b"CORE\0" => self.read_note(kind, desc).map_err(|error| located(desc_at, error))?,
                b"LINUX\0" if kind == NT_ARM_PAC_MASK => self.read_signatures(desc),
                b"LINUX\0" if kind == NT_ARM_SVE => self.read_scalable(desc),
                _ => {}
            }
            at = desc_at + aligned(desc_len);
        }
        if (data.len() as u64) < segment.filesz {
            let missing = segment.filesz - data.len() as u64;
            let end = segment.offset.saturating_add(data.len() as u64);
            return Err(Error::at(ErrorKind::Truncated { missing }, end));
        }
        Ok(())
    }

    /// Reads where return addresses are signed: the same in each thread's note.
    fn read_signatures(&mut self, desc: Bytes<'a>) {
        let mask = desc.u64(INSTRUCTION_MASK).ok();
        if let Some(arch) = mask.and_then(|mask| self.arch.signed_in(mask)) {
            self.arch = arch;
            self.describes_signatures = true;
        }
    }

    /// Reads the vector registers of the last thread, if there were no others before. What is
    /// damaged is left out.
    fn read_scalable(&mut self, desc: Bytes<'a>) {
        let Some(thread) = self.threads.last_mut() else { return };
        let read = || {
            let (length, flags) = (desc.u16(sve::LENGTH).ok()?, desc.u16(sve::FLAGS).ok()?);
            let length = usize::from(length).max(sve::LEAST);
            if flags & sve::IS_SCALABLE == 0 {
                let rest = desc.len().checked_sub(sve::REGISTERS)?;
                return Some(Vectors::Set(desc.slice(sve::REGISTERS, rest).ok()?));
            }
            let registers = desc.slice(sve::REGISTERS, sve::COUNT * length).ok()?;
            Some(Vectors::Scalable { registers, length })
        };
        if thread.vectors == Vectors::None {
            thread.vectors = read().unwrap_or_default();
        }
    }

    /// Reads a note; errors count from its first byte.
    fn read_note(&mut self, kind: u32, desc: Bytes<'a>) -> Result<()> {
        match kind {
            NT_PRSTATUS => {
                let user = &self.arch.user;
                let set = Bytes::new(desc.slice(prstatus::REG, user.bytes)?, self.endian);
                let registers = user.registers(|at| set.u64(at).ok());
                self.threads.push(Thread {
                    tid: desc.u32(prstatus::PID)?,
                    signal: desc.u16(prstatus::CURSIG)?,
                    registers: registers.ok_or(Error::at(ErrorKind::Note(kind), 0))?,
                    vectors: Vectors::None,
                });
            }
            // Follows its thread's NT_PRSTATUS.
            NT_PRFPREG => {
                if let Some(thread) = self.threads.last_mut() {
                    thread.vectors = Vectors::Set(desc.slice(0, desc.len())?);
                }
            }
            NT_PRPSINFO => {
                self.process = Some(Process {
                    pid: desc.u32(prpsinfo::PID)?,
                    name: text(desc.slice(prpsinfo::FNAME, prpsinfo::FNAME_BYTES)?),
                    arguments: text(desc.slice(prpsinfo::PSARGS, prpsinfo::PSARGS_BYTES)?),
                });
            }
            NT_AUXV => {
                let entries = (0..desc.len() / 16).map(|index| Ok((desc.u64(index * 16)?, desc.u64(index * 16 + 8)?)));
                let entries: Result<Vec<(u64, u64)>> = entries.collect();
                self.auxv = entries?.into_iter().take_while(|&(kind, _)| kind != 0).collect();
            }
            NT_FILE => self.files = mapped_files(desc)?,
            NT_SIGINFO => {
                let signal = desc.u32(0)?;
                self.signal = Some(signal);
                self.signal_info = desc.u32(8).ok().zip(desc.u64(16).ok()).map(|(code, value)| SignalInfo {
                    signal,
                    code: code as i32,
                    value,
                });
            }
            _ => {}
        }
        Ok(())
    }
}

fn loads<'a>(image: &Image<'a>) -> Vec<Load<'a>> {
    let mut loads: Vec<Load<'a>> = image
        .segments()
        .iter()
        .filter(|segment| segment.is_load())
        .map(|segment| Load {
            start: segment.vaddr,
            end: segment.vaddr.saturating_add(segment.memsz.max(segment.filesz)),
            writable: segment.is_writable(),
            executable: segment.is_executable(),
            bytes: image.stored(segment),
        })
        .collect();
    loads.sort_by_key(|load| load.start);
    loads
}

/// The number of entries and the page size, then the entries in pages, then their paths.
fn mapped_files(desc: Bytes<'_>) -> Result<Vec<MappedRange>> {
    const HEADER: usize = 16;
    const ENTRY: usize = 24;
    let (count, page) = (desc.u64(0)?, desc.u64(8)?);
    let room = desc.len().saturating_sub(HEADER) / ENTRY;
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= room)
        .ok_or(Error::at(ErrorKind::Note(NT_FILE), 0))?;
    let names = desc.data().get(HEADER + count * ENTRY..).unwrap_or_default();
    let mut names = names.split(|&byte| byte == 0);
    (0..count)
        .map(|index| {
            let at = HEADER + index * ENTRY;
            Ok(MappedRange {
                start: desc.u64(at)?,
                end: desc.u64(at + 8)?,
                file_offset: desc.u64(at + 16)?.saturating_mul(page),
                path: String::from_utf8_lossy(names.next().unwrap_or_default()).into_owned(),
            })
        })
        .collect()
}

/// A field of bytes up to the first zero.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_longer_registers_the_first_16_bytes_are_shown() {
        let registers: Vec<u8> = (0..96).collect();
        let set = |length| {
            Vectors::Scalable {
                registers: &registers,
                length,
            }
            .set()
        };
        let first: Vec<u8> = (0..16).chain(32..48).chain(64..80).collect();
        assert_eq!(set(32), first);
        assert_eq!(set(16), registers);
        assert_eq!(Vectors::Set(&registers).set(), registers);
    }
}
