//! Version 3: an FDE is split into an index of 16 bytes in the FDE table, and an attribute of 5
//! bytes, stored unaligned right before the rows.

use backtrail_wire::Bytes;

use super::fde::{RawFde, row_type};
use crate::constants::{FdeInfo, FdeType};
use crate::error::{Error, ErrorKind, Result};

pub(crate) const INDEX_SIZE: usize = 16;
pub(crate) const ATTRIBUTE_SIZE: usize = 5;
const INFO: usize = 2;
const INFO2: usize = 3;
const REP_SIZE: usize = 4;
/// The bits of the second info byte that hold the FDE type.
const FDE_TYPE: u8 = 0x1f;

#[inline(always)]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the entry was read, so that it ends in the section"
)]
pub(super) fn read_fde(fdes: Bytes<'_>, at: usize, fres: Bytes<'_>, fres_start: usize) -> Result<RawFde> {
    let index = fdes.record::<INDEX_SIZE>(at)?;
    let attribute = fres_start.saturating_add(index.u32::<12>() as usize);
    let raw = fres.record::<ATTRIBUTE_SIZE>(attribute)?;
    let info = FdeInfo(raw.u8::<INFO>());
    let fde_type = match raw.u8::<INFO2>() & FDE_TYPE {
        0 => FdeType::Default,
        1 => FdeType::Flex,
        other => return Err(Error::new(ErrorKind::FdeType(other), attribute + INFO2)),
    };
    let rep_size = raw.u8::<REP_SIZE>();
    if info.pcmask() && rep_size == 0 {
        return Err(Error::new(ErrorKind::RepeatOfZero, attribute + REP_SIZE));
    }
    Ok(RawFde {
        start: index.i64::<0>(),
        size: index.u32::<8>(),
        num_fres: raw.u16::<0>().into(),
        info,
        fre_type: row_type(info, attribute + INFO)?,
        fde_type,
        rep_size,
        info_at: attribute + INFO,
        unused_bits: raw.u8::<INFO2>() & !FDE_TYPE,
        rows: attribute + ATTRIBUTE_SIZE,
    })
}

#[cfg(feature = "write")]
pub(super) fn push_index(sink: &mut super::Sink, entry: &super::Entry) {
    sink.i64(entry.start);
    sink.u32(entry.size);
    sink.u32(entry.fre_off);
}

#[cfg(feature = "write")]
pub(super) fn push_attribute(sink: &mut super::Sink, block: &super::Block) {
    // The encoder rejects functions with more rows than 16 bits can count.
    sink.u16(block.num_fres as u16);
    sink.u8(block.info.0);
    sink.u8(block.fde_type as u8);
    sink.u8(block.rep_size);
}
