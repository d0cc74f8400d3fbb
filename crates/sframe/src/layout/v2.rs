//! Version 2: FDEs of 20 bytes: the fields of version 1, the size of repeated blocks, and padding.

use backtrail_wire::Bytes;

use super::fde::{RawFde, row_type};
use crate::constants::{FdeInfo, FdeType};
use crate::error::{Error, ErrorKind, Result};

pub(crate) const FDE_SIZE: usize = 20;
const INFO: usize = 16;
const REP_SIZE: usize = 17;
const PADDING: usize = 18;

#[inline(always)]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the entry was read, so that it ends in the section"
)]
pub(super) fn read_fde(fdes: Bytes<'_>, at: usize, fres_start: usize) -> Result<RawFde> {
    let raw = fdes.record::<FDE_SIZE>(at)?;
    let info = FdeInfo(raw.u8::<INFO>());
    let rep_size = raw.u8::<REP_SIZE>();
    if info.pcmask() && rep_size == 0 {
        return Err(Error::new(ErrorKind::RepeatOfZero, at + REP_SIZE));
    }
    Ok(RawFde {
        start: raw.i32::<0>().into(),
        size: raw.u32::<4>(),
        num_fres: raw.u32::<12>(),
        info,
        fre_type: row_type(info, at + INFO)?,
        fde_type: FdeType::Default,
        rep_size,
        info_at: at + INFO,
        unused_bits: 0,
        rows: fres_start.saturating_add(raw.u32::<8>() as usize),
    })
}

/// `sfde_func_padding2`
pub(super) fn padding(fdes: Bytes<'_>, at: usize) -> u16 {
    fdes.u16(at.saturating_add(PADDING)).unwrap_or(0)
}

#[cfg(feature = "write")]
pub(super) fn push_fde(sink: &mut super::Sink, entry: &super::Entry) {
    sink.i32(entry.start as i32);
    sink.u32(entry.size);
    sink.u32(entry.fre_off);
    sink.u32(entry.block.num_fres);
    sink.u8(entry.info.0);
    sink.u8(entry.block.rep_size);
    sink.u16(0);
}
