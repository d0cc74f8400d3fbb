//! Reading: the header is parsed once, everything else in place.

mod fde;
mod index;
mod lookup;
mod rows;

use backtrail_wire::{Bytes, Endian};

use crate::constants::{Abi, Flags, HEADER_SIZE, SFRAME_MAGIC, Version};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Context, fde_size};

pub use fde::{Fde, Functions};
pub use index::Index;
pub use lookup::Found;
pub(crate) use rows::RawRow;
pub use rows::Rows;

/// An SFrame section whose header has been checked against the data's length.
///
/// Never panics, whatever the bytes are. Data past what the header describes is ignored, because a
/// segment that holds the section may be longer.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// From the section's start to the end of the FDE table, so that offsets in errors count from
    /// the section's start.
    fdes: Bytes<'a>,
    /// From the section's start to the end of the FRE sub-section.
    fres: Bytes<'a>,
    fdes_start: usize,
    fres_start: usize,
    address: u64,
    num_fdes: u32,
    /// The number of entries that the FDE table really has: the header's number, unless the data is
    /// cut off.
    held_fdes: u32,
    num_fres: u32,
    context: Context,
    flags: Flags,
    auxhdr_len: u8,
    pcrel: bool,
}

impl<'a> Section<'a> {
    /// Reads the header (section 1.2). `address` is the address of the section's first byte, in the
    /// address space used to report and look up functions.
    ///
    /// Fails if the header is cut off, names an unknown version or ABI, or describes more than
    /// `bytes` holds. Nothing else is checked: see [`Section::parse_strict`] and
    /// [`Section::parse_lenient`].
    #[inline]
    pub fn parse(bytes: &'a [u8], address: u64) -> Result<Section<'a>> {
        match Self::parse_lenient(bytes, address)? {
            (section, None) => Ok(section),
            (_, Some(error)) => Err(error),
        }
    }

    /// Reads the header like [`Section::parse`], but accepts data that ends too early.
    ///
    /// The section then has only the functions with complete FDEs, and the second value reports the
    /// missing data. Fails if the header is cut off or names an unknown version or ABI.
    pub fn parse_lenient(bytes: &'a [u8], address: u64) -> Result<(Section<'a>, Option<Error>)> {
        let data = Bytes::new(bytes, endian_of(bytes)?);
        let number = data.u8(2)?;
        let version = Version::from_number(number).ok_or(Error::new(ErrorKind::Version(number), 2))?;
        let flags = Flags(data.u8(3)?);
        let number = data.u8(4)?;
        let abi = Abi::from_number(number).ok_or(Error::new(ErrorKind::Abi(number), 4))?;
        let context = Context {
            version,
            abi,
            fixed_fp: data.i8(5)?,
            fixed_ra: data.i8(6)?,
        };
        let auxhdr_len = data.u8(7)?;
        let num_fdes = data.u32(8)?;
        let num_fres = data.u32(12)?;
        let fre_len = data.u32(16)?;
        let fdeoff = data.u32(20)?;
        let freoff = data.u32(24)?;

        let header_end = HEADER_SIZE + usize::from(auxhdr_len);
        let fdes_start = header_end.saturating_add(fdeoff as usize);
        let fres_start = header_end.saturating_add(freoff as usize);
        let fdes_end = fdes_start.saturating_add((num_fdes as usize).saturating_mul(fde_size(version)));
        let fres_end = fres_start.saturating_add(fre_len as usize);
        let missing = (fdes_end.max(fres_end) as u64).saturating_sub(bytes.len() as u64);
        let missing = (missing > 0).then(|| Error::new(ErrorKind::Truncated { missing }, bytes.len()));
        let up_to = |end: usize| Bytes::new(bytes.get(..end).unwrap_or(bytes), data.endian());
        let fdes = up_to(fdes_end);
        // The size of an FDE is a constant of the version and not 0.
        let held = fdes.len().saturating_sub(fdes_start).checked_div(fde_size(version));
        let held = u32::try_from(held.unwrap_or(0)).unwrap_or(u32::MAX);
        let section = Section {
            fdes,
            fres: up_to(fres_end),
            fdes_start,
            fres_start,
            address,
            num_fdes,
            held_fdes: num_fdes.min(held),
            num_fres,
            context,
            flags,
            auxhdr_len,
            pcrel: version != Version::V1 && flags.contains(Flags::FDE_FUNC_START_PCREL),
        };
        Ok((section, missing))
    }

    /// The same section with start fields that are relative to themselves although no flag is set.
    /// Relocation leaves them like that in relocatable files of binutils up to 2.44.
    pub fn starts_relative_to_field(mut self) -> Section<'a> {
        self.pcrel = true;
        self
    }

    /// `sfp_version`.
    pub fn version(&self) -> Version {
        self.context.version
    }

    /// The byte order, found by the magic number.
    pub fn endian(&self) -> Endian {
        self.fdes.endian()
    }

    /// `sfh_abi_arch`.
    pub fn abi(&self) -> Abi {
        self.context.abi
    }

    /// `sfp_flags`, including unknown bits.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// `sfh_cfa_fixed_fp_offset`: bytes from the CFA to the saved frame pointer; 0 if the rows
    /// contain it.
    pub fn fixed_fp_offset(&self) -> i8 {
        self.context.fixed_fp
    }

    /// `sfh_cfa_fixed_ra_offset`: bytes from the CFA to the return address; 0 if the rows contain
    /// it.
    pub fn fixed_ra_offset(&self) -> i8 {
        self.context.fixed_ra
    }

    /// `sfh_auxhdr_len`: size of the auxiliary header in bytes.
    pub fn auxiliary_header_len(&self) -> u8 {
        self.auxhdr_len
    }

    /// `sfh_num_fdes`: the number of functions; the table holds that many unless the data is cut
    /// off.
    pub fn num_fdes(&self) -> u32 {
        self.num_fdes
    }

    /// `sfh_num_fres`: the number of rows that the header claims; nothing relies on it.
    pub fn num_fres(&self) -> u32 {
        self.num_fres
    }

    /// `sfh_fre_len`, `sfh_fdeoff` and `sfh_freoff` from the header.
    pub(crate) fn layout(&self) -> Result<[u32; 3]> {
        Ok([self.fdes.u32(16)?, self.fdes.u32(20)?, self.fdes.u32(24)?])
    }

    /// Whether the data ends before the FRE sub-section, of these `sfh_fre_len` bytes, does.
    pub(crate) fn is_cut_off(&self, fre_len: u32, freoff: u32) -> bool {
        let header_end = (HEADER_SIZE + usize::from(self.auxhdr_len)) as u64;
        let end = header_end.saturating_add(freoff.into()).saturating_add(fre_len.into());
        end > self.fres.len() as u64
    }

    /// Whether start fields are relative to themselves, by the flag or without it.
    pub(crate) fn has_relative_starts(&self) -> bool {
        self.pcrel
    }

    /// The section's address, as passed to [`Section::parse`].
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The number of bytes that the header describes: the section without any data after it.
    pub fn size(&self) -> usize {
        let header_end = HEADER_SIZE + usize::from(self.auxhdr_len);
        header_end.max(self.fdes.len()).max(self.fres.len())
    }
}

/// The byte order in which the first two bytes are the magic number (section 1.1.1).
fn endian_of(bytes: &[u8]) -> Result<Endian> {
    let magic = Bytes::new(bytes, Endian::Little).u16(0)?;
    if magic == SFRAME_MAGIC {
        Ok(Endian::Little)
    } else if magic.swap_bytes() == SFRAME_MAGIC {
        Ok(Endian::Big)
    } else {
        Err(Error::new(ErrorKind::Magic(magic), 0))
    }
}
