//! The parts of a stack that its sample's copy lacks, which come right before the sample.

use backtrail_arch::Arch;

use super::records::{DeepPart, Record, UserState};
use crate::stack::Piece;

/// Parts of a stack that its sample's copy lacks.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Its stack pointer; 0 without one.
    sp: u64,
    /// The parts; their memory is used again.
    pieces: Vec<Piece>,
    /// How many there are now.
    count: usize,
    /// The copy, followed by the part that follows it.
    whole: Vec<u8>,
}

impl Parts {
    pub(super) fn add(&mut self, part: DeepPart<'_>) {
        if self.sp != part.sp {
            (self.sp, self.count) = (part.sp, 0);
        }
        let last = self.pieces[..self.count].last_mut();
        if let Some(last) = last.filter(|last| last.start.wrapping_add(last.bytes.len() as u64) == part.start) {
            last.bytes.extend_from_slice(part.bytes);
            return;
        }
        if self.count == self.pieces.len() {
            self.pieces.push(Piece::default());
        }
        let piece = &mut self.pieces[self.count];
        piece.start = part.start;
        piece.bytes.clear();
        piece.bytes.extend_from_slice(part.bytes);
        self.count += 1;
    }

    /// Whether there are any.
    pub(super) fn are_empty(&self) -> bool {
        self.sp == 0
    }

    /// Adds the parts to the sample that follows them right away.
    pub(super) fn complete<'s>(&'s mut self, record: Record<'s>, arch: &Arch) -> Record<'s> {
        let (sp, count) = (std::mem::take(&mut self.sp), std::mem::take(&mut self.count));
        if sp != 0
            && sp.is_multiple_of(8)
            && let Record::Sample(mut sample) = record
            && let UserState::Native { registers, stack, .. } = sample.user
            && registers.get(arch.sp) == Some(sp)
        {
            let pieces = &self.pieces[..count];
            let end = sp.wrapping_add(stack.len() as u64);
            let mut stack = stack;
            // Most words are there: it is one with the copy.
            if let Some(next) = pieces.iter().find(|piece| piece.start == end) {
                self.whole.clear();
                self.whole.extend_from_slice(stack);
                self.whole.extend_from_slice(&next.bytes);
                stack = &self.whole;
            }
            sample.user = UserState::Native {
                registers,
                stack,
                pieces,
            };
            return Record::Sample(sample);
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::records::Sample;
    use backtrail_arch::Registers;

    /// The bytes of a sample's stack, and its pieces with their lengths, after `parts` (stack
    /// pointer, start, bytes) and this sample.
    fn completed(parts: &[(u64, u64, &[u8])], sp: u64, copy: &[u8]) -> (usize, Vec<(u64, usize)>) {
        let arch = Arch::native();
        let mut deep = Parts::default();
        for &(sp, start, bytes) in parts {
            deep.add(DeepPart { sp, start, bytes });
        }
        let mut registers = Registers::new(0x10);
        registers.set(arch.sp, sp);
        let sample = Sample::for_tests(UserState::Native {
            registers,
            stack: copy,
            pieces: &[],
        });
        let Record::Sample(Sample {
            user: UserState::Native { stack, pieces, .. },
            ..
        }) = deep.complete(Record::Sample(sample), arch)
        else {
            panic!("it is still a sample");
        };
        assert!(stack.starts_with(copy) && stack[copy.len()..].iter().all(|&byte| byte == 7));
        let found = (
            stack.len(),
            pieces.iter().map(|piece| (piece.start, piece.bytes.len())).collect(),
        );
        assert_eq!((deep.sp, deep.count), (0, 0), "used once");
        found
    }

    #[test]
    fn parts_count_only_for_the_sample_of_their_stack() {
        let (copy, part) = ([1; 64], [7; 32]);
        let none = Vec::new();
        assert_eq!(
            completed(&[(0x1000, 0x1040, &part)], 0x1000, &copy),
            (96, vec![(0x1040, 32)])
        );
        let two: [(u64, u64, &[u8]); 2] = [(0x1000, 0x1040, &part), (0x1000, 0x1060, &part)];
        assert_eq!(completed(&two, 0x1000, &copy), (128, vec![(0x1040, 64)]));
        // Those of a sample that was lost, and of another stack.
        let after_lost: [(u64, u64, &[u8]); 2] = [(0x2000, 0x2040, &part), (0x1000, 0x1040, &part)];
        assert_eq!(completed(&after_lost, 0x1000, &copy), (96, vec![(0x1040, 32)]));
        assert_eq!(completed(&[(0x1000, 0x1040, &part)], 0x1008, &copy), (64, none.clone()));
        assert_eq!(completed(&[], 0x1000, &copy), (64, none));
    }

    #[test]
    fn parts_further_outside_are_pieces() {
        let (copy, part) = ([1; 64], [7; 32]);
        let gap: [(u64, u64, &[u8]); 3] = [
            (0x1000, 0x1080, &part),
            (0x1000, 0x10a0, &part),
            (0x1000, 0x1040, &part),
        ];
        assert_eq!(completed(&gap, 0x1000, &copy), (96, vec![(0x1080, 64), (0x1040, 32)]));
        // Beyond a copy that ended early.
        assert_eq!(
            completed(&[(0x1000, 0x1040, &part)], 0x1000, &copy[..56]),
            (56, vec![(0x1040, 32)])
        );
    }
}
