//! Turns a core of qemu into one of a kernel with shorter addresses.

/// What the kernel says in a core about the bits of signatures.
fn mask_note(bits: std::ops::Range<u32>) -> Vec<u8> {
    const NT_ARM_PAC_MASK: u32 = 0x406;
    let mask = (1_u64 << bits.end) - (1 << bits.start);
    let head = [6, 16, NT_ARM_PAC_MASK].map(u32::to_le_bytes);
    let masks = [mask, mask].map(u64::to_le_bytes);
    [head.as_flattened(), b"LINUX\0\0\0", masks.as_flattened()].concat()
}

/// The core of a program with code below 2^32 as a kernel would have made it whose addresses have
/// 39 bits, and which signs in all bits up to the 54th. Returns how many words were signed.
pub(crate) fn with_39_bits(core: &mut Vec<u8>) -> usize {
    const SIGNATURE: u64 = 0x007f_ff80_0000_0000;
    const PT_LOAD: u32 = 1;
    const PT_NOTE: u32 = 4;
    let word = |core: &[u8], at: usize| u64::from_le_bytes(*core[at..].first_chunk().expect("it is whole"));
    let count = usize::from(u16::from_le_bytes(*core[56..].first_chunk().expect("a header")));
    let mut signed = 0;
    for header in (0..count).map(|index| 64 + 56 * index) {
        let kind = word(core, header) as u32;
        let (offset, size) = (word(core, header + 8) as usize, word(core, header + 32) as usize);
        if kind == PT_NOTE {
            let notes = [&core[offset..offset + size], &mask_note(39..55)].concat();
            let moved = [core.len() as u64, notes.len() as u64].map(u64::to_le_bytes);
            core[header + 8..header + 16].copy_from_slice(&moved[0]);
            core[header + 32..header + 40].copy_from_slice(&moved[1]);
            core.extend(notes);
        }
        for at in (offset..offset + size).step_by(8).filter(|_| kind == PT_LOAD) {
            let found = word(core, at);
            let (address, code) = (found & 0xffff_ffff, found & SIGNATURE);
            if code != 0 && found == address | code && address > 0x40_0000 {
                let other = found ^ (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 40) & 0x0000_ff80_0000_0000;
                core[at..at + 8].copy_from_slice(&other.to_le_bytes());
                signed += 1;
            }
        }
    }
    signed
}
