//! The fuzz target, on mutated valid sections.

use std::time::{Duration, Instant};

#[path = "../../../fuzz/targets/src/callframe.rs"]
pub mod fuzz;

use fuzz::callers;

/// A CIE of x86-64 ("zR", absolute addresses of 4 bytes), and three FDEs of 64 bytes of code each
/// with rows of many kinds.
fn section() -> Vec<u8> {
    let mut section = Vec::new();
    let mut entry = |head: &[u8], instructions: &[u8]| {
        let mut content = [head, instructions].concat();
        content.resize(content.len().next_multiple_of(4), 0);
        section.extend((content.len() as u32).to_ne_bytes());
        section.extend(content);
        section.len() as u32
    };
    let cie_head = [0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x03];
    // def_cfa rsp+8; offset ra, cfa-8
    let mut at = entry(&cie_head, &[0x0c, 7, 8, 0x90, 1]);
    let functions: [&[u8]; 3] = [
        // push rbx: def_cfa_offset 16, offset rbx, advance, def_cfa rbx+16, remember, restore
        &[0x41, 0x0e, 16, 0x83, 2, 0x43, 0x0c, 3, 16, 0x0a, 0x44, 0x0b],
        // def_cfa_expression (rsp + 160, deref), expression of rbp, val_expression of rbx
        &[0x0f, 4, 0x77, 0xa0, 1, 0x06, 0x10, 6, 2, 0x77, 40, 0x16, 3, 2, 0x77, 8],
        // def_cfa_register rax, advance_loc1, register, undefined, same_value, restore
        &[0x0d, 0, 0x02, 4, 0x09, 12, 13, 0x07, 14, 0x08, 15, 0xc3],
    ];
    for (number, instructions) in functions.into_iter().enumerate() {
        let start = 0x1_0000 + 64 * number as u32;
        let head = [(at + 4).to_ne_bytes(), start.to_ne_bytes(), 64u32.to_ne_bytes()];
        at = entry(&[head.as_flattened(), &[0]].concat(), instructions);
    }
    section.extend([0; 12]);
    section
}

#[test]
fn mutated_sections() {
    let right = section();
    // For each CPU, at three places of each function; the last function's CFA depends on a register
    // that a callee has left.
    assert_eq!(callers(&right), 2 * 9);
    let mut state = 1u64;
    let mut below = |end: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % end
    };
    let end = Instant::now() + Duration::from_secs(1);
    let mut rounds = 0;
    while Instant::now() < end {
        let mut data = right.clone();
        for _ in 0..1 + below(8) {
            let place = below(data.len());
            data[place] = below(256) as u8;
        }
        data.truncate(1 + below(2 * data.len()));
        callers(&data);
        rounds += 1;
    }
    assert!(rounds > 100, "{rounds}");
}
