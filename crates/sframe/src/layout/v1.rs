//! Version 1: FDEs of 17 bytes (section 1.3).

use backtrail_wire::Bytes;

use super::fde::{RawFde, row_type};
use crate::constants::{FdeInfo, FdeType, V1_REPEAT};
use crate::error::Result;

pub(crate) const FDE_SIZE: usize = 17;
const INFO: usize = 16;

#[inline(always)]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the entry was read, so that it ends in the section"
)]
pub(super) fn read_fde(fdes: Bytes<'_>, at: usize, fres_start: usize) -> Result<RawFde> {
    let raw = fdes.record::<FDE_SIZE>(at)?;
    let info = FdeInfo(raw.u8::<INFO>());
    Ok(RawFde {
        start: raw.i32::<0>().into(),
        size: raw.u32::<4>(),
        num_fres: raw.u32::<12>(),
        info,
        fre_type: row_type(info, at + INFO)?,
        fde_type: FdeType::Default,
        info_at: at + INFO,
        unused_bits: 0,
        rep_size: if info.pcmask() { V1_REPEAT } else { 0 },
        rows: fres_start.saturating_add(raw.u32::<8>() as usize),
    })
}

#[cfg(feature = "write")]
pub(super) fn push_fde(sink: &mut super::Sink, entry: &super::Entry) {
    sink.i32(entry.start as i32);
    sink.u32(entry.size);
    sink.u32(entry.fre_off);
    sink.u32(entry.block.num_fres);
    sink.u8(entry.info.0);
}
