//! The records of stacks that were walked in the kernel.

use backtrail_arch::{Arch, Registers};
use backtrail_wire::{Bytes, Endian};

use super::records::{Cause, Record, Sample, UserState};

/// Marks these records, where samples have the upper half of their chain's length.
pub(super) const MARK: u32 = 0x4b57_4c4b;
/// Kinds of records.
const CHAIN: u16 = 1;
const WORDS: u16 = 2;
/// Flags.
const FIRST: u16 = 1 << 0;
const LAST: u16 = 1 << 1;

/// Where a record's size is, after its header, address, threads, time and CPU.
const SIZE: usize = 40;
/// Bytes before the words: mark, kind, flags, number of the walk, lengths.
const HEAD: usize = 24;
/// The words of `struct pt_regs`, or on AArch64 of `struct user_pt_regs`.
const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 34 } else { 21 };

/// Part of a walked stack.
#[derive(Clone, Copy, Debug)]
pub struct WalkedPart<'a> {
    kind: u16,
    flags: u16,
    /// A number of the walk, among those of its CPU.
    walk: u64,
    /// What the thread and the event have in common with samples.
    ip: u64,
    pid: u32,
    tid: u32,
    /// How many addresses or words there are.
    count: usize,
    piece: usize,
    body: &'a [u8],
}

/// Decodes a record with its header, if it is one of these.
pub fn walked_part(record: &[u8]) -> Option<WalkedPart<'_>> {
    let bytes = Bytes::new(record, Endian::NATIVE);
    let mut cursor = bytes.cursor(SIZE);
    let size = cursor.u32().ok()? as usize;
    if cursor.u32().ok()? != MARK {
        return None;
    }
    let (kind, flags, walk) = (cursor.u16().ok()?, cursor.u16().ok()?, cursor.u64().ok()?);
    let (first, second) = (cursor.u32().ok()? as usize, cursor.u32().ok()? as usize);
    let body = cursor.slice(size.checked_sub(HEAD)?).ok()?;
    Some(WalkedPart {
        kind,
        flags,
        walk,
        ip: bytes.u64(8).ok()?,
        pid: bytes.u32(16).ok()?,
        tid: bytes.u32(20).ok()?,
        count: first,
        piece: second,
        body,
    })
}

/// A word of a stack, and its address.
pub(super) type Word = (u64, u64);

/// The parts of a walked stack, as they come.
#[derive(Debug)]
pub struct Walked {
    /// The number of the walk; 0 without one.
    walk: u64,
    has_words: bool,
    chain: Vec<u8>,
    registers: Registers,
    piece: Vec<u8>,
    words: Vec<Word>,
}

impl Default for Walked {
    fn default() -> Self {
        Walked {
            walk: 0,
            has_words: false,
            chain: Vec::new(),
            registers: Registers::new(0),
            piece: Vec::new(),
            words: Vec::new(),
        }
    }
}

impl Walked {
    /// Adds a part. Returns the sample once it is whole.
    pub fn add(&mut self, part: WalkedPart<'_>) -> Option<Record<'_>> {
        if part.kind == CHAIN {
            self.clear();
            self.walk = part.walk;
            self.chain.extend_from_slice(part.body.get(..part.count)?);
            return None;
        }
        if part.kind != WORDS {
            return None;
        }
        let words_bytes = part.count.checked_mul(16)?;
        // The kernel adds up to seven bytes to a record.
        let room = part.body.len().checked_sub(8 * REGISTERS + words_bytes)? & !7;
        let words = part.body.get(8 * REGISTERS + room..)?.get(..words_bytes)?;
        if part.flags & FIRST != 0 {
            if self.has_words || self.walk != part.walk {
                self.clear();
            }
            self.walk = part.walk;
            self.has_words = true;
            self.registers = registers(part.body)?;
            let piece = part.body.get(8 * REGISTERS..)?.get(..part.piece.min(room))?;
            self.piece.extend_from_slice(piece);
        } else if !self.has_words || self.walk != part.walk {
            // The first part was lost.
            self.clear();
            return None;
        }
        let word = |bytes: &[u8; 16]| {
            let word = |half: usize| {
                bytes[8 * half..]
                    .first_chunk()
                    .map_or(0, |word| u64::from_ne_bytes(*word))
            };
            (word(0), word(1))
        };
        self.words.extend(words.as_chunks::<16>().0.iter().map(word));
        if part.flags & LAST == 0 {
            return None;
        }
        self.has_words = false;
        self.walk = 0;
        // Frames follow each other upwards, except from one stack to another.
        if !self.words.is_sorted_by_key(|word| word.0) {
            self.words.sort_by_key(|word| word.0);
        }
        Some(Record::Sample(Sample {
            cause: Cause::Time,
            ip: part.ip,
            pid: part.pid,
            tid: part.tid,
            user: UserState::Walked {
                registers: self.registers,
                stack: &self.piece,
                words: &self.words,
            },
            chain: &self.chain,
        }))
    }

    /// Forgets what was begun: the record that follows is of something else.
    pub(super) fn clear(&mut self) {
        self.walk = 0;
        self.has_words = false;
        self.chain.clear();
        self.piece.clear();
        self.words.clear();
    }
}

/// The words that debuggers see are in the same places: on x86-64 more words follow these.
fn registers(bytes: &[u8]) -> Option<Registers> {
    let words = bytes.get(..8 * REGISTERS)?;
    let word = |at: usize| words.get(at..)?.first_chunk().map(|word| u64::from_ne_bytes(*word));
    Arch::native().user.registers(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of the program's, with its header.
    fn record(kind: u16, flags: u16, sp: u64, (count, piece): (u32, u32), body: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        bytes[8..16].copy_from_slice(&0x10_u64.to_ne_bytes());
        bytes[16..24].copy_from_slice([5_u32, 6].map(u32::to_ne_bytes).as_flattened());
        let size = HEAD + 8 * body.len() + 4;
        bytes.extend((size as u32).to_ne_bytes());
        bytes.extend(MARK.to_ne_bytes());
        bytes.extend([kind, flags].map(u16::to_ne_bytes).as_flattened());
        bytes.extend(sp.to_ne_bytes());
        bytes.extend([count, piece].map(u32::to_ne_bytes).as_flattened());
        bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend([0; 4]);
        bytes
    }

    /// Registers numbered from 100 on, 256 bytes of stack, and these words.
    fn words(flags: u16, sp: u64, words: &[Word]) -> Vec<u8> {
        let mut body: Vec<u64> = (100..100 + REGISTERS as u64).collect();
        body.extend([7; 32]);
        body.extend(words.iter().flat_map(|&(address, word)| [address, word]));
        record(WORDS, flags, sp, (words.len() as u32, 256), &body)
    }

    /// The words of the sample that this record completes.
    fn completed(walked: &mut Walked, record: &[u8]) -> Option<Vec<Word>> {
        let part = walked_part(record).expect("it has the mark");
        match walked.add(part)? {
            Record::Sample(Sample {
                ip: 0x10,
                pid: 5,
                tid: 6,
                user:
                    UserState::Walked {
                        registers,
                        stack,
                        words,
                    },
                ..
            }) => {
                let arch = Arch::native();
                assert_eq!(registers.pc, 100 + arch.user.pc as u64 / 8);
                assert!(registers.get(arch.sp).is_some_and(|sp| (100..200).contains(&sp)));
                assert_eq!(stack, [7_u64; 32].map(u64::to_ne_bytes).as_flattened());
                Some(words.to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parts_of_one_walk_are_one_sample() {
        let mut walked = Walked::default();
        let one = words(FIRST | LAST, 8, &[(16, 1)]);
        assert_eq!(completed(&mut walked, &one), Some(vec![(16, 1)]));
        let (first, last) = (words(FIRST, 8, &[(32, 1)]), words(LAST, 8, &[(16, 2)]));
        assert_eq!(completed(&mut walked, &first), None);
        assert_eq!(completed(&mut walked, &last), Some(vec![(16, 2), (32, 1)]));
        // The first part was lost, or is of another stack.
        assert_eq!(completed(&mut walked, &last), None);
        assert_eq!(completed(&mut walked, &words(FIRST, 24, &[])), None);
        assert_eq!(completed(&mut walked, &last), None);
        assert_eq!(completed(&mut walked, &one), Some(vec![(16, 1)]));
    }

    #[test]
    fn the_kernels_frames_come_first() {
        let mut walked = Walked::default();
        let chain = record(
            CHAIN,
            0,
            8,
            (16, 0),
            &[0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000, 3, 3],
        );
        assert_eq!(completed(&mut walked, &chain), None);
        let one = words(FIRST | LAST, 8, &[]);
        let sample = walked.add(walked_part(&one).expect("it has the mark"));
        let Some(Record::Sample(sample)) = sample else { panic!() };
        assert!(
            sample
                .kernel_frames()
                .eq([0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000])
        );
        assert_eq!(sample.frame_pointer_chain().count(), 0);
    }

    #[test]
    fn damaged_records_do_nothing() {
        let whole = words(FIRST | LAST, 8, &[(16, 1), (24, 2)]);
        for length in 0..whole.len() {
            if let Some(part) = walked_part(&whole[..length]) {
                let _ = Walked::default().add(part);
            }
        }
        let mut damaged = whole.clone();
        for at in SIZE..SIZE + 4 + HEAD {
            for value in [0, 1, 0x7f, 0xff] {
                damaged[at] = value;
                if let Some(part) = walked_part(&damaged) {
                    let _ = Walked::default().add(part);
                }
            }
            damaged[at] = whole[at];
        }
    }
}
