//! Copies within a slice.

/// `copy_within` that cannot panic: elements outside the slice are not copied.
#[inline]
pub(crate) fn copy<T: Copy>(items: &mut [T], from: core::ops::Range<usize>, to: usize) {
    let count = from.end.saturating_sub(from.start);
    let (low, high) = (to.min(from.start), to.max(from.start));
    if high - low >= count
        && let Some((front, back)) = items.split_at_mut_checked(high)
        && let (Some(front), Some(back)) = (front.get_mut(low..low + count), back.get_mut(..count))
    {
        match to < from.start {
            true => front.iter_mut().zip(back).for_each(|(to, from)| *to = *from),
            false => back.iter_mut().zip(front).for_each(|(to, from)| *to = *from),
        }
        return;
    }
    let mut one = |index: usize| {
        if let Some(item) = items.get(from.start + index).copied()
            && let Some(place) = items.get_mut(to + index)
        {
            *place = item;
        }
    };
    match to < from.start {
        true => (0..count).for_each(&mut one),
        false => (0..count).rev().for_each(&mut one),
    }
}
