//! Whether a return address follows a call, and what that call can lead to.

use super::memory;
use super::modules::{Module, Published};

/// Functions whose tables are silent are not taken to be larger.
const LARGEST_FUNCTION: u64 = 1 << 20;

/// What a call instruction says of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A direct call.
    To(u64),
    /// A call through a register or memory.
    Indirect,
}

/// The call that a return address follows, in code of a known module.
pub(super) fn before(published: &Published, return_address: u64) -> Option<Call> {
    let module = published.module(return_address.checked_sub(1)?)?;
    let words = code::<2>(return_address.checked_sub(16)?)?;
    let mut bytes = [0; 16];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_ne_bytes();
    }
    // An instruction does not begin before the segment.
    let room = return_address.saturating_sub(module.start).min(16) as usize;
    decode(bytes.get(16 - room..)?, return_address)
}

fn code<const COUNT: usize>(address: u64) -> Option<[u64; COUNT]> {
    let mut words = [0; COUNT];
    (memory::read_words(address, &mut words) == COUNT).then_some(words)
}

/// The call whose last byte is the last of these.
#[cfg(target_arch = "x86_64")]
fn decode(bytes: &[u8], return_address: u64) -> Option<Call> {
    let ends = |count: usize| bytes.get(bytes.len().checked_sub(count)?..);
    // E8 with a distance of 32 bits.
    if let Some([0xe8, distance @ ..]) = ends(5)
        && let Some(distance) = distance.first_chunk()
    {
        let distance = i64::from(i32::from_ne_bytes(*distance));
        return Some(Call::To(return_address.wrapping_add_signed(distance)));
    }
    let is_indirect = |count: usize| ends(count).is_some_and(|bytes| indirect_length(bytes) == Some(count));
    (2..=9).any(is_indirect).then_some(Call::Indirect)
}

/// Bytes of the `FF /2` call that these begin with, its prefixes included (Intel's manual, volume 2, table 2-2).
#[cfg(target_arch = "x86_64")]
fn indirect_length(bytes: &[u8]) -> Option<usize> {
    const DS_OR_NOTRACK: u8 = 0x3e;
    let mut opcode = 0;
    while matches!(bytes.get(opcode)?, 0x2e | &DS_OR_NOTRACK | 0x64 | 0x65 | 0x66 | 0xf2) && opcode < 2 {
        opcode += 1;
    }
    if matches!(bytes.get(opcode)?, 0x40..=0x4f) {
        opcode += 1;
    }
    if *bytes.get(opcode)? != 0xff {
        return None;
    }
    let modrm = *bytes.get(opcode + 1)?;
    let (mode, extension, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
    if extension != 2 {
        return None;
    }
    let sib = usize::from(mode != 3 && rm == 4);
    let has_no_base = sib == 1 && bytes.get(opcode + 2)? & 7 == 5;
    let displacement = match mode {
        0 if rm == 5 || has_no_base => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(opcode + 2 + sib + displacement)
}

#[cfg(target_arch = "aarch64")]
fn decode(bytes: &[u8], return_address: u64) -> Option<Call> {
    let instruction = u32::from_ne_bytes(*bytes.last_chunk()?);
    if instruction >> 26 == 0b100101 {
        // BL: 26 bits of words from the instruction on.
        let words = i64::from((instruction << 6) as i32 >> 6);
        return Some(Call::To(return_address.wrapping_sub(4).wrapping_add_signed(4 * words)));
    }
    // BLR, and BLRAA, BLRAB, BLRAAZ and BLRABZ.
    let is_blr = instruction & 0xffff_fc1f == 0xd63f_0000 || instruction & 0xfeff_f800 == 0xd63f_0800;
    is_blr.then_some(Call::Indirect)
}

/// Whether code at `pc`, of which no table speaks, can be what was called at `target`: it begins there, or the linker's stub there jumps to it.
pub(super) fn can_lead_to(published: &Published, target: u64, pc: u64) -> bool {
    let can_be = |start: u64| start <= pc && pc - start < LARGEST_FUNCTION && !published.has_row(start);
    can_be(target) || stub_target(published, target).is_some_and(can_be)
}

/// Whether the linker's stub at `stub` jumps to `start`.
pub(super) fn stub_leads_to(published: &Published, stub: u64, start: u64) -> bool {
    stub_target(published, stub) == Some(start)
}

/// Where a stub of a procedure linkage table jumps to.
#[cfg(target_arch = "x86_64")]
fn stub_target(published: &Published, stub: u64) -> Option<u64> {
    published.module(stub)?;
    let words = code::<2>(stub)?;
    let bytes = [words[0].to_ne_bytes(), words[1].to_ne_bytes()];
    let bytes = bytes.as_flattened();
    let mut at = if bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
        4
    } else {
        0
    };
    if bytes.get(at) == Some(&0xf2) {
        at += 1;
    }
    // jmp through a place that is so far from the next instruction.
    let [0xff, 0x25, distance @ ..] = bytes.get(at..)? else {
        return None;
    };
    let next = stub.checked_add(at as u64 + 6)?;
    let place = next.wrapping_add_signed(i32::from_ne_bytes(*distance.first_chunk()?).into());
    code::<1>(place).map(|[target]| target)
}

#[cfg(target_arch = "aarch64")]
fn stub_target(_published: &Published, _stub: u64) -> Option<u64> {
    None
}

/// Whether a module's code is where the address is, and no table speaks of it.
pub(super) fn is_silent(published: &Published, module: &Module, pc: u64) -> bool {
    (module.start..module.end).contains(&pc) && !published.has_row(pc)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_by_their_last_bytes() {
        let at = 0x1000;
        let direct = decode(&[0x90, 0xe8, 0xfb, 0xff, 0xff, 0xff], at);
        assert_eq!(direct, Some(Call::To(at - 5)));
        for indirect in [
            &[0xff, 0xd0][..],
            &[0x41, 0xff, 0xd7],
            &[0x3e, 0xff, 0xd0],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x14, 0xd8],
            &[0x41, 0xff, 0x54, 0x24, 0x08],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0x64, 0xff, 0x14, 0x25, 0x10, 0, 0, 0],
            &[0x41, 0xff, 0x94, 0x24, 1, 2, 3, 4],
            &[0x42, 0xff, 0x14, 0xfd, 1, 2, 3, 4],
        ] {
            assert_eq!(decode(indirect, at), Some(Call::Indirect), "{indirect:x?}");
            let behind = [&[0x90; 7], indirect].concat();
            assert_eq!(decode(&behind, at), Some(Call::Indirect), "{indirect:x?}");
        }
        for other in [
            // jmp and push of the same opcode, an instruction cut short, and none.
            &[0x90, 0xff, 0xe0][..],
            &[0x90, 0xff, 0x30],
            &[0xff, 0x15, 1, 2, 3],
            &[0x48, 0x89, 0xd8],
            &[0xe8, 1, 2, 3],
            &[],
        ] {
            assert_eq!(decode(other, at), None, "{other:x?}");
        }
    }
}
