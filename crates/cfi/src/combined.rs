//! All rows for the code of a file, from every kind of call frame information in it: `.eh_frame`,
//! `.debug_frame` for code that the former does not describe, and for Go's functions `.gopclntab`.

use backtrail_elf::{Image, Kind};
use backtrail_sframe::write::FunctionRows;

use crate::eh_frame::{self, Converted, EhFrame, Reason, Skipped, debug_frame};
use crate::error::Error;
use crate::go_frames;
use crate::gopclntab;
use crate::undescribed::{self, described};

/// Whether `image` has call frame information of any kind.
pub(crate) fn has_any(image: &Image<'_>) -> Result<bool, Error> {
    let linked = image.kind() != Kind::Relocatable;
    Ok(image.eh_frame()?.is_some()
        || linked && (debug_frame::of_image(image).is_some() || gopclntab::section(image).is_some()))
}

/// The rows of `image`. In relocatable files, which have no addresses yet, only `.eh_frame` is
/// read.
///
/// Fails if a section cannot be read; there may be no rows.
pub(crate) fn of_image(image: &Image<'_>) -> Result<Converted, Error> {
    let convert =
        |data: &[u8], address| eh_frame::convert_within(&EhFrame::of_image(image, data, address), image.budget());
    let mut converted = match image.eh_frame()? {
        Some(section) => convert(&section.data, section.address),
        None => Converted::default(),
    };
    if image.kind() == Kind::Relocatable {
        return Ok(converted);
    }
    if let Some(section) = debug_frame::of_image(image) {
        complete(&mut converted, convert(&section.data, section.address), image);
    }
    if gopclntab::section(image).is_some() {
        go_frames::add(&mut converted, image);
        leave_out_lost(&mut converted);
    }
    Ok(converted)
}

/// Adds what `more` says of code that `converted` does not describe.
fn complete(converted: &mut Converted, more: Converted, image: &Image<'_>) {
    let known = described(converted);
    let is_known = |address: u64| {
        let after = known.partition_point(|range| range.start <= address);
        after > 0 && address < known[after - 1].end
    };
    let skipped = more.skipped.into_iter();
    converted
        .skipped
        .extend(skipped.filter(|skipped| !is_known(skipped.start)));
    converted.skipped.sort_by_key(|skipped| (skipped.start, skipped.reason));
    converted.unsaid.extend(more.unsaid);
    undescribed::add(converted, more.functions, &known, image);
    converted.damage = converted.damage.or(more.damage);
}

/// Leaves out code after which the stack continues at a place that no row can name.
fn leave_out_lost(converted: &mut Converted) {
    let mut functions = Vec::with_capacity(converted.functions.len());
    for function in std::mem::take(&mut converted.functions) {
        if !function.rows.iter().any(|row| row.rule == Some(go_frames::LOST)) {
            functions.push(function);
            continue;
        }
        for (index, row) in function.rows.iter().enumerate() {
            let next = function.rows.get(index + 1).map_or(function.size, |next| next.start);
            let (start, size) = (function.start + u64::from(row.start), next.saturating_sub(row.start));
            if row.rule == Some(go_frames::LOST) {
                converted.unsaid.push(start..start + u64::from(size));
                converted.skipped.push(Skipped {
                    start,
                    size: size.into(),
                    reason: Reason::StackSwitch,
                });
            } else if size > 0 {
                let rows = vec![backtrail_sframe::Row { start: 0, ..*row }];
                functions.push(FunctionRows {
                    start,
                    size,
                    rows,
                    ..function.clone()
                });
            }
        }
    }
    converted.functions = functions;
    converted.skipped.sort_by_key(|skipped| (skipped.start, skipped.reason));
}
