//! An `.eh_frame` section and the offsets of its entries.

use std::ops::Range;

use backtrail_arch::Arch;
use backtrail_elf::Image;
use backtrail_wire::{Bytes, Endian};
use gimli::BaseAddresses;

use super::reason::{Error, ErrorKind};
use crate::reader::run_time;

/// The initial instructions of a CIE run again for each of its FDEs. Real CIEs have under 150
/// bytes; a limit keeps the work proportional to the input.
pub(crate) const MAX_CIE_BYTES: usize = 512;

/// The deepest nesting of `DW_CFA_remember_state`. Compilers nest once.
const MAX_REMEMBERED_STATES: usize = 16;

/// An `.eh_frame` section and the bases of its pointers. All addresses are the file's own (svma).
#[derive(Clone, Debug)]
pub struct EhFrame<'a> {
    /// The bytes of the section.
    pub data: &'a [u8],
    /// Its address: the base of `DW_EH_PE_pcrel` pointers.
    pub address: u64,
    /// The base of `DW_EH_PE_textrel` pointers, if there is one.
    pub text: Option<u64>,
    /// The base of `DW_EH_PE_datarel` pointers, if there is one.
    pub got: Option<u64>,
    /// The CPU.
    pub arch: &'static Arch,
    /// The byte order.
    pub endian: Endian,
    /// The ranges that may contain code. FDEs outside (of discarded sections, or damaged) are left
    /// out. If it is empty, code may be anywhere.
    pub code: Vec<Range<u64>>,
}

impl<'a> EhFrame<'a> {
    /// The section with contents `data` at `address` of `image`.
    pub fn of_image(image: &Image<'_>, data: &'a [u8], address: u64) -> EhFrame<'a> {
        EhFrame {
            data,
            address,
            text: image.text_address(),
            got: image.got_address(),
            arch: image.arch(),
            endian: image.endian(),
            code: image.code_ranges(),
        }
    }
}

/// The unwinder's working memory: like gimli's own, with room for more remembered states.
pub(crate) struct Storage;

impl gimli::UnwindContextStorage<usize> for Storage {
    type Rules = [(gimli::Register, gimli::RegisterRule<usize>); 192];
    type Stack = Box<[gimli::UnwindTableRow<usize, Self>; MAX_REMEMBERED_STATES]>;
}

/// The offsets of the FDEs, up to the first invalid entry. Terminators are skipped, since linkers
/// that concatenate sections leave them inside.
pub(crate) fn fdes(bytes: Bytes<'_>) -> (Vec<usize>, Option<Error>) {
    let mut offsets = Vec::new();
    let mut offset = 0usize;
    while offset < bytes.len() {
        match entry(bytes, offset) {
            Ok((end, is_fde)) => {
                if is_fde {
                    offsets.push(offset);
                }
                offset = end;
            }
            Err(error) => return (offsets, Some(error)),
        }
    }
    (offsets, None)
}

/// The end of the entry at `offset`, and whether it is an FDE.
fn entry(bytes: Bytes<'_>, offset: usize) -> Result<(usize, bool), Error> {
    let truncated = |_| Error::new(ErrorKind::Truncated, offset);
    let (len, content) = match bytes.u32(offset).map_err(truncated)? {
        0xffff_ffff => (bytes.u64(offset + 4).map_err(truncated)?, offset + 12),
        len => (u64::from(len), offset + 4),
    };
    if len == 0 {
        return Ok((content, false));
    }
    let wrong = Error::new(ErrorKind::EntryLength(len), offset);
    let end = usize::try_from(len).ok().and_then(|len| content.checked_add(len));
    let end = end.filter(|end| *end <= bytes.len()).ok_or(wrong)?;
    match bytes.u32(content) {
        // A CIE, which is read when an FDE refers to it.
        Ok(0) => Ok((end, false)),
        Ok(_) if end - content >= 4 => Ok((end, true)),
        _ => Err(wrong),
    }
}

/// The starts of all functions, from the search table of an `.eh_frame_hdr` section (LSB 5.0,
/// section 10.6.2); `None` if it has none.
pub fn search_table(data: &[u8], address: u64, endian: Endian) -> Option<Vec<u64>> {
    let endian = run_time(endian);
    let bases = BaseAddresses::default().set_eh_frame_hdr(address);
    let header = gimli::EhFrameHdr::new(data, endian).parse(&bases, 8).ok()?;
    let table = header.table()?;
    let mut starts = Vec::new();
    let mut entries = table.iter(&bases);
    while let Ok(Some((start, _))) = entries.next() {
        starts.push(start.pointer());
    }
    Some(starts)
}

pub(crate) fn bases(input: &EhFrame<'_>) -> BaseAddresses {
    let mut bases = BaseAddresses::default().set_eh_frame(input.address);
    if let Some(text) = input.text {
        bases = bases.set_text(text);
    }
    if let Some(got) = input.got {
        bases = bases.set_got(got);
    }
    bases
}
