//! The stack of a sampled thread, as it was at the moment of the sample.
//!
//! The copy that comes with a sample is the only record of that moment: the process has continued
//! since, and its memory holds another stack later. The kernel copies without page faults, so the
//! copy ends at the first page that is not present; [`touch`] makes such pages present for later
//! samples.

use std::ops::Range;

use backtrail_unwind::Memory;

use crate::proc::{self, MapsEntry};
use crate::sys;

/// The copy of a stack that came with a sample, and the memory beyond it that is proved unchanged.
#[derive(Clone, Copy, Debug)]
pub struct SampledStack<'a> {
    /// Address of the copy's first byte: the stack pointer.
    start: u64,
    copy: &'a [u8],
    /// Words outside the copy, by ascending address.
    words: &'a [(u64, u64)],
    /// Where the last one was found: walks mostly read the next one.
    next_word: usize,
    beyond: Option<Beyond<'a>>,
    /// Memory of frames further outside.
    outer: Option<Beyond<'a>>,
    pieces: &'a [Piece<'a>],
    /// The one from which the last word outside the copy was read.
    last_piece: Piece<'a>,
    /// A bit for each of the first pieces from which a word was read.
    used: u32,
    /// [`Beyond::anchor`], or a value that is not the address of any word.
    anchor: u64,
    is_anchored: bool,
    is_outer_anchored: bool,
    /// The first word that was read apart from the sample.
    apart: Option<u64>,
    /// The first word below the copy that was wanted, but is not known.
    missed_below: Option<u64>,
}

/// A part of a stack beyond its copy, copied at the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Where the run of pieces begins that follow each other without a gap, up to this one.
    pub run: u64,
    /// Address of the first byte.
    pub start: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Piece<'_> {
    /// The address after the last byte.
    pub fn end(&self) -> u64 {
        self.start.wrapping_add(self.bytes.len() as u64)
    }
}

/// Where the bytes end that are known from a stack pointer on: those of the copy, and of the run of
/// pieces that follows it.
pub fn end_of_copy(sp: u64, copy: &[u8], pieces: &[Piece<'_>]) -> u64 {
    let end = sp.saturating_add(copy.len() as u64);
    let run = pieces.iter().filter(|piece| piece.run == end);
    run.map(Piece::end).fold(end, u64::max)
}

/// Memory of a stack that was read before the sample, under a
/// [`Watchpoint`](crate::watchpoint::Watchpoint) that was not hit until after the sample.
#[derive(Clone, Copy, Debug)]
pub struct Beyond<'a> {
    /// The watched word. A frame that has data there at the time of the sample has had it since
    /// before the memory was read, and so has every frame outside it.
    pub anchor: u64,
    /// Address of the first byte.
    pub start: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> SampledStack<'a> {
    /// Uses a copy of the bytes from `start` on.
    pub fn new(start: u64, copy: &'a [u8], beyond: Option<Beyond<'a>>) -> Self {
        SampledStack {
            start,
            copy,
            words: &[],
            next_word: 0,
            beyond,
            outer: None,
            pieces: &[],
            last_piece: Piece::default(),
            used: 0,
            anchor: beyond.map_or(u64::MAX, |beyond| beyond.anchor),
            is_anchored: false,
            is_outer_anchored: false,
            apart: None,
            missed_below: None,
        }
    }

    /// Adds words of the same moment, by ascending address.
    pub fn with_words(self, words: &'a [(u64, u64)]) -> Self {
        SampledStack { words, ..self }
    }

    #[inline]
    fn word_apart(&mut self, address: u64) -> Option<u64> {
        let next = self.words.get(self.next_word).filter(|word| word.0 == address);
        let index = match next {
            Some(_) => self.next_word,
            None => self.words.binary_search_by_key(&address, |word| word.0).ok()?,
        };
        self.next_word = index + 1;
        Some(self.words[index].1)
    }

    /// Adds memory beyond the memory already known: a frame that has kept the outer anchor's word
    /// has kept it for as long as the frames inside it have kept theirs.
    pub fn with_outer(self, outer: Option<Beyond<'a>>) -> Self {
        SampledStack { outer, ..self }
    }

    /// Adds parts of the stack that lie beyond the copy.
    pub fn with_pieces(self, pieces: &'a [Piece<'a>]) -> Self {
        SampledStack { pieces, ..self }
    }

    /// The first addresses of the runs of those pieces from which a word was read.
    pub fn used_pieces(&self) -> impl Iterator<Item = u64> {
        let used = self.used;
        let is_used = move |index: usize| used & 1_u32.checked_shl(index as u32).unwrap_or(0) != 0;
        let pieces = self.pieces.iter().enumerate();
        pieces
            .filter(move |(index, _)| is_used(*index))
            .map(|(_, piece)| piece.run)
    }

    /// Whether any word was read apart from the sample.
    pub fn was_read_apart(&self) -> bool {
        self.apart.is_some()
    }

    /// The address of the first word that was read apart from the sample.
    pub fn first_apart(&self) -> Option<u64> {
        self.apart
    }

    /// The first word below the stack pointer that a walk wanted, but that is not known.
    pub fn missed_below(&self) -> Option<u64> {
        self.missed_below
    }

    #[cold]
    fn word_beyond(&mut self, address: u64) -> Option<u64> {
        for (index, piece) in self.pieces.iter().enumerate() {
            if let Some(word) = word_in(piece.bytes, piece.start, address) {
                self.is_anchored |= address == self.anchor;
                self.used |= 1_u32.checked_shl(index as u32).unwrap_or(0);
                self.last_piece = *piece;
                return Some(word);
            }
        }
        if address < self.start {
            self.missed_below.get_or_insert(address);
        }
        let beyond = self.beyond?;
        self.is_anchored |= address == beyond.anchor;
        if !self.is_anchored {
            return None;
        }
        self.is_outer_anchored |= self.outer.is_some_and(|outer| outer.anchor == address);
        let outer = self.outer.filter(|_| self.is_outer_anchored);
        let word = word_in(beyond.bytes, beyond.start, address);
        let word = word.or_else(|| word_in(outer?.bytes, outer?.start, address))?;
        self.apart.get_or_insert(address);
        Some(word)
    }
}

impl Memory for SampledStack<'_> {
    #[inline]
    fn word(&mut self, address: u64) -> Option<u64> {
        let copied = word_in(self.copy, self.start, address);
        match copied.or_else(|| word_in(self.last_piece.bytes, self.last_piece.start, address)) {
            Some(word) => {
                self.is_anchored |= address == self.anchor;
                Some(word)
            }
            None if self.words.is_empty() => self.word_beyond(address),
            None => self.word_apart(address),
        }
    }
}

#[inline]
fn word_in(bytes: &[u8], start: u64, address: u64) -> Option<u64> {
    let offset = usize::try_from(address.wrapping_sub(start)).ok()?;
    let word = bytes.get(offset..)?.first_chunk::<8>()?;
    Some(u64::from_ne_bytes(*word))
}

/// The private anonymous mapping that contains `address` in a process: a stack, as far as can be
/// seen from outside.
pub fn mapping_of_stack(pid: u32, address: u64) -> Option<Range<u64>> {
    let map = map_at(pid, address).filter(|map| map.inode == 0)?;
    Some(map.start..map.end)
}

/// The mapping of a stack, with the room that a main thread's stack has to grow.
pub fn room_of_stack(pid: u32, address: u64) -> Option<Range<u64>> {
    let maps = proc::maps(pid).ok()?;
    let index = maps.partition_point(|map| map.end <= address);
    let map = maps.get(index).filter(|map| map.start <= address && map.inode == 0)?;
    let before = index.checked_sub(1).and_then(|before| maps.get(before));
    let start = match map.path == MAIN_STACK {
        true => before.map_or(map.start, |before| before.end),
        false => map.start,
    };
    Some(start..map.end)
}

/// The mapping, if it is the stack that the thread was created with: no other thread ever runs on
/// that one, unlike on the stacks that programs make for fibres.
pub fn mapping_of_own_stack(pid: u32, tid: u32, address: u64) -> Option<Range<u64>> {
    let map = map_at(pid, address)?;
    let mapping = map.start..map.end;
    let is_own = match map.path == MAIN_STACK {
        true => tid == pid,
        false => map.inode == 0 && sys::robust_list(tid as i32).is_ok_and(|list| mapping.contains(&list)),
    };
    is_own.then_some(mapping)
}

/// The name of the main thread's stack in the list of mappings.
const MAIN_STACK: &str = "[stack]";

fn map_at(pid: u32, address: u64) -> Option<MapsEntry> {
    let maps = proc::maps(pid).ok()?;
    maps.into_iter().find(|map| (map.start..map.end).contains(&address))
}

/// Makes pages of a range present that were never touched, by reading a byte of each. They cost no
/// memory: untouched pages all share one page of zeroes.
pub fn touch(pid: u32, range: Range<u64>) {
    sys::touch_pages(pid as i32, range);
}

/// The same for `bytes` bytes below a stack pointer, as far as there is memory: the thread's next
/// calls will use them.
pub fn touch_below(pid: u32, sp: u64, bytes: u64) {
    let pages = bytes / rustix::param::page_size() as u64;
    sys::touch_pages_below(pid as i32, sp, usize::try_from(pages).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_copy() {
        let copy: Vec<u8> = (0..16_u64).flat_map(|word| word.to_ne_bytes()).collect();
        let start = 0x7ffe_0000;
        let mut stack = SampledStack::new(start, &copy, None);
        assert_eq!(stack.word(start), Some(0));
        assert_eq!(stack.word(start + 15 * 8), Some(15));
        assert!(stack.is(start + 80, u64::MAX, 10) && !stack.is(start + 80, u64::MAX, 11));
        for outside in [start - 8, start + 16 * 8, start + 15 * 8 + 1, 0, u64::MAX - 3] {
            assert_eq!(stack.word(outside), None, "{outside:#x}");
            assert!(!stack.is(outside, u64::MAX, 0), "{outside:#x}");
        }
    }

    #[test]
    fn pieces_are_read_where_the_copy_is_not() {
        let words = |from: u64| (from..from + 16).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>();
        let piece = |run, start, bytes| Piece { run, start, bytes };
        let (copy, bytes) = (words(0), words(300));
        let (first, second, third) = (words(100), words(200), words(216));
        let pieces = [
            piece(0x2000, 0x2000, &first[..]),
            piece(0x1080, 0x1080, &second),
            piece(0x1080, 0x1100, &third),
        ];
        assert_eq!(end_of_copy(0x1000, &copy, &pieces), 0x1180);
        assert_eq!(end_of_copy(0x1008, &copy, &pieces), 0x1088);
        let beyond = Beyond {
            anchor: 0x2008,
            start: 0x3000,
            bytes: &bytes,
        };
        let mut stack = SampledStack::new(0x1000, &copy, Some(beyond)).with_pieces(&pieces);
        assert_eq!((stack.word(0x1000), stack.word(0x1080)), (Some(0), Some(200)));
        assert_eq!(stack.used_pieces().collect::<Vec<_>>(), [0x1080]);
        // Beyond one piece the next, and back.
        assert_eq!((stack.word(0x10f8), stack.word(0x1100)), (Some(215), Some(216)));
        assert_eq!((stack.word(0x1080), stack.word(0x1008)), (Some(200), Some(1)));
        assert_eq!(
            (stack.word(0x1180), stack.word(0x2080), stack.word(0x3000)),
            (None, None, None)
        );
        // The watched word is in a piece: what lies beyond it is known.
        assert_eq!(stack.word(0x2008), Some(101));
        assert!(!stack.was_read_apart());
        assert_eq!(stack.word(0x3000), Some(300));
        assert!(stack.was_read_apart());
        assert_eq!(stack.used_pieces().collect::<Vec<_>>(), [0x2000, 0x1080, 0x1080]);
    }

    #[test]
    fn what_lies_beyond_counts_behind_its_anchor() {
        let words = |from: u64| (from..from + 16).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>();
        let (copy, bytes) = (words(0), words(100));
        let (start, end) = (0x1000, 0x1080);
        let beyond = |anchor| {
            let beyond = Beyond {
                anchor,
                start: end,
                bytes: &bytes,
            };
            SampledStack::new(start, &copy, Some(beyond))
        };
        let mut outside = beyond(end + 8);
        assert_eq!((outside.word(end), outside.word(end + 16)), (None, None));
        assert!(!outside.was_read_apart());
        assert_eq!((outside.word(end + 8), outside.word(end)), (Some(101), Some(100)));
        assert!(outside.was_read_apart() && outside.word(end + 16 * 8).is_none());
        let mut inside = beyond(start + 8);
        assert_eq!((inside.word(start), inside.word(end)), (Some(0), None));
        assert_eq!((inside.word(start + 8), inside.word(end)), (Some(1), Some(100)));
    }

    #[test]
    fn outer_memory_counts_behind_both_anchors() {
        let words = |from: u64| (from..from + 16).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>();
        let (copy, bytes, more) = (words(0), words(100), words(200));
        let (start, end, outside) = (0x1000, 0x1080, 0x1100);
        let part = |anchor, start, bytes| Beyond { anchor, start, bytes };
        let stack = |outer| {
            let stack = SampledStack::new(start, &copy, Some(part(end, end, &bytes)));
            stack.with_outer(Some(part(outer, outside, &more)))
        };
        let mut anchored = stack(end + 16);
        assert_eq!((anchored.word(end + 16), anchored.word(outside)), (None, None));
        assert_eq!((anchored.word(end), anchored.word(outside)), (Some(100), None));
        assert_eq!(
            (anchored.word(end + 16), anchored.word(outside)),
            (Some(102), Some(200))
        );
        let mut at_border = stack(outside);
        assert_eq!((at_border.word(end), at_border.word(outside)), (Some(100), Some(200)));
    }

    #[test]
    fn stacks_that_threads_were_made_with() {
        let pid = std::process::id();
        let own = std::thread::spawn(move || {
            let (here, tid) = (0_u8, rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let address = std::ptr::from_ref(&here).addr() as u64;
            let heap = Box::new(0_u8);
            let elsewhere = std::ptr::from_ref(&*heap).addr() as u64;
            (
                mapping_of_own_stack(pid, tid, address).is_some_and(|mapping| mapping.contains(&address)),
                mapping_of_own_stack(pid, pid, address).is_some(),
                mapping_of_own_stack(pid, tid, elsewhere).is_some(),
            )
        });
        assert_eq!(own.join().expect("it does not panic"), (true, false, false));
    }

    #[test]
    fn pages_below_become_present() {
        const PAGES: usize = 20;
        let len = PAGES * rustix::param::page_size();
        // Large zeroed vectors are mapped, and none of their pages has been touched.
        let memory = vec![0_u8; 64 * len];
        let end = memory.as_ptr().addr() as u64 + memory.len() as u64;
        let present = || {
            let page = rustix::param::page_size() as u64;
            let entry = |page: u64| {
                let file = std::fs::File::open("/proc/self/pagemap").ok()?;
                let mut entry = [0; 8];
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut entry, 8 * page).ok()?;
                Some(u64::from_ne_bytes(entry) >> 63)
            };
            (1..64).map_while(|back| entry(end / page - back)).sum::<u64>()
        };
        let before = present();
        touch_below(std::process::id(), end, len as u64);
        assert!(present() >= before + PAGES as u64 - 2, "{before} {}", present());
        // On unmapped memory, nothing happens.
        touch_below(std::process::id(), 0x1000, 1 << 20);
    }

    #[test]
    fn the_own_stack_is_found() {
        let here = 0_u8;
        let address = std::ptr::from_ref(&here).addr() as u64;
        let mapping = mapping_of_stack(std::process::id(), address).expect("it is mapped");
        assert!(mapping.contains(&address));
        let file = mapping_of_stack as *const () as u64;
        assert_eq!(mapping_of_stack(std::process::id(), file), None, "code of a file");
        assert_eq!(mapping_of_stack(std::process::id(), 8), None);
    }
}
