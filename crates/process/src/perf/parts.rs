//! The parts of a stack that its sample's copy lacks, which come right before the sample.

use std::ops::Range;

use backtrail_arch::Arch;

use super::records::{DeepPart, Record, UserState};
use crate::stack::Piece;
use crate::sys::Ring;

/// Bytes of parts outside the ring whose memory is used again.
const MOST_APART: usize = 128 << 10;

/// Parts of a stack that its sample's copy lacks. A walk reads few of their words, so they stay in
/// the ring until then.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Its stack pointer; 0 without one.
    sp: u64,
    parts: Vec<Part>,
    /// Bytes of those that are not in the ring.
    apart: Vec<u8>,
}

#[derive(Debug)]
struct Part {
    /// See [`Piece::run`].
    run: u64,
    /// Address of the first byte, and after the last.
    addresses: Range<u64>,
    place: Place,
}

/// Where the bytes are.
#[derive(Debug)]
enum Place {
    /// At a position of the ring.
    Ring(u64),
    /// From an index of [`Parts::apart`] on.
    Apart(usize),
}

impl Part {
    fn len(&self) -> usize {
        (self.addresses.end - self.addresses.start) as usize
    }
}

impl Parts {
    /// Adds a part, which is the ring's next record and must stay there.
    pub(super) fn add(&mut self, part: DeepPart<'_>, ring: &Ring) {
        let at = ring.next_position() + part.offset as u64;
        let is_held = ring.held(at, part.bytes.len()).is_some();
        self.add_at(part, is_held.then_some(at));
    }

    /// Adds a part that is at this position of the ring, or anywhere else.
    fn add_at(&mut self, part: DeepPart<'_>, at: Option<u64>) {
        let DeepPart { sp, start, bytes, .. } = part;
        if self.sp != sp {
            self.clear();
            self.sp = sp;
        }
        let Some(end) = start.checked_add(bytes.len() as u64).filter(|_| sp != 0) else {
            return;
        };
        let before = self.parts.last().filter(|last| last.addresses.end == start);
        let place = at.map_or(Place::Apart(self.apart.len()), Place::Ring);
        if let Place::Apart(_) = place {
            self.apart.extend_from_slice(bytes);
        }
        self.parts.push(Part {
            run: before.map_or(start, |before| before.run),
            addresses: start..end,
            place,
        });
    }

    /// Whether there are any.
    pub(super) fn are_empty(&self) -> bool {
        self.sp == 0
    }

    /// Forgets the parts, which the ring need not keep any more.
    pub(super) fn clear(&mut self) {
        self.sp = 0;
        self.parts.clear();
        self.apart.clear();
        self.apart.shrink_to(MOST_APART);
    }

    /// Copies the parts, which the ring need not keep any more.
    pub(super) fn keep(&mut self, ring: &Ring) {
        for part in &mut self.parts {
            if let Place::Ring(at) = part.place
                && let Some(bytes) = ring.held(at, part.len())
            {
                part.place = Place::Apart(self.apart.len());
                self.apart.extend_from_slice(bytes);
            }
        }
    }

    /// The parts with their bytes.
    pub(super) fn pieces<'s>(&'s self, ring: &'s Ring) -> Vec<Piece<'s>> {
        self.pieces_by(|at, len| ring.held(at, len))
    }

    fn pieces_by<'s>(&'s self, held: impl Fn(u64, usize) -> Option<&'s [u8]>) -> Vec<Piece<'s>> {
        let pieces = self.parts.iter().filter_map(|part| {
            let bytes = match part.place {
                Place::Ring(at) => held(at, part.len()),
                Place::Apart(at) => self.apart.get(at..at + part.len()),
            };
            Some(Piece {
                run: part.run,
                start: part.addresses.start,
                bytes: bytes?,
            })
        });
        pieces.collect()
    }

    /// Adds the parts to the sample that follows them right away.
    pub(super) fn complete<'s>(&self, record: Record<'s>, arch: &Arch, pieces: &'s [Piece<'s>]) -> Record<'s> {
        if self.sp.is_multiple_of(8)
            && let Record::Sample(mut sample) = record
            && let UserState::Native { registers, stack, .. } = sample.user
            && registers.get(arch.sp) == Some(self.sp)
        {
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
    use crate::stack::end_of_copy;
    use backtrail_arch::Registers;

    /// The end of what is known from a sample's stack pointer on, and its pieces with their
    /// lengths, after `parts` (stack pointer, start, bytes) and this sample. Every other part is in
    /// the ring.
    fn completed(parts: &[(u64, u64, &[u8])], sp: u64, copy: &[u8]) -> (u64, Vec<(u64, u64, usize)>) {
        let arch = Arch::native();
        let ring = [7; 4096];
        let mut deep = Parts::default();
        for (index, &(sp, start, bytes)) in parts.iter().enumerate() {
            let at = index.is_multiple_of(2).then_some(64 * index as u64);
            let part = DeepPart {
                sp,
                start,
                bytes,
                offset: 64,
            };
            deep.add_at(part, at);
        }
        let mut registers = Registers::new(0x10);
        registers.set(arch.sp, sp);
        let sample = Sample::for_tests(UserState::Native {
            registers,
            stack: copy,
            pieces: &[],
        });
        let pieces = deep.pieces_by(|at, len| ring.get(at as usize..at as usize + len));
        let Record::Sample(Sample {
            user: UserState::Native { stack, pieces, .. },
            ..
        }) = deep.complete(Record::Sample(sample), arch, &pieces)
        else {
            panic!("it is still a sample");
        };
        assert_eq!(stack, copy);
        assert!(pieces.iter().all(|piece| piece.bytes.iter().all(|&byte| byte == 7)));
        let found = pieces.iter().map(|piece| (piece.run, piece.start, piece.bytes.len()));
        let found = (end_of_copy(sp, stack, pieces), found.collect());
        deep.clear();
        assert!(deep.are_empty() && deep.parts.is_empty() && deep.apart.is_empty());
        found
    }

    #[test]
    fn parts_count_only_for_the_sample_of_their_stack() {
        let (copy, part) = ([1; 64], [7; 32]);
        let none = Vec::new();
        assert_eq!(
            completed(&[(0x1000, 0x1040, &part)], 0x1000, &copy),
            (0x1060, vec![(0x1040, 0x1040, 32)])
        );
        let two: [(u64, u64, &[u8]); 2] = [(0x1000, 0x1040, &part), (0x1000, 0x1060, &part)];
        assert_eq!(
            completed(&two, 0x1000, &copy),
            (0x1080, vec![(0x1040, 0x1040, 32), (0x1040, 0x1060, 32)])
        );
        // Those of a sample that was lost, and of another stack.
        let after_lost: [(u64, u64, &[u8]); 2] = [(0x2000, 0x2040, &part), (0x1000, 0x1040, &part)];
        assert_eq!(
            completed(&after_lost, 0x1000, &copy),
            (0x1060, vec![(0x1040, 0x1040, 32)])
        );
        assert_eq!(
            completed(&[(0x1000, 0x1040, &part)], 0x1008, &copy),
            (0x1048, none.clone())
        );
        assert_eq!(completed(&[], 0x1000, &copy), (0x1040, none.clone()));
        // No stack begins there, and none reaches over the end of all addresses.
        assert_eq!(completed(&[(0, 0x1040, &part)], 0, &copy), (0x40, none.clone()));
        assert_eq!(
            completed(&[(0x1000, u64::MAX - 8, &part)], 0x1000, &copy),
            (0x1040, none)
        );
    }

    #[test]
    fn parts_further_outside_are_pieces() {
        let (copy, part) = ([1; 64], [7; 32]);
        let gap: [(u64, u64, &[u8]); 3] = [
            (0x1000, 0x1080, &part),
            (0x1000, 0x10a0, &part),
            (0x1000, 0x1040, &part),
        ];
        let pieces = vec![(0x1080, 0x1080, 32), (0x1080, 0x10a0, 32), (0x1040, 0x1040, 32)];
        assert_eq!(completed(&gap, 0x1000, &copy), (0x1060, pieces));
        // Beyond a copy that ended early.
        assert_eq!(
            completed(&[(0x1000, 0x1040, &part)], 0x1000, &copy[..56]),
            (0x1038, vec![(0x1040, 0x1040, 32)])
        );
    }
}
