//! Bytes without a meaning, for tests of what reads instructions.

/// 2,000 pieces of code, each with a number that depends on it.
pub(crate) fn pieces() -> impl Iterator<Item = ([u8; 256], u32)> {
    let mut state = 0x1234_5678_u32;
    (0..2000).map(move |_| {
        let code = std::array::from_fn(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        (code, state)
    })
}
