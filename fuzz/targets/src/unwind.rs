//! The fuzz target, which also runs as an ordinary test.

use backtrail_arch::{Arch, Register, Registers, aarch64, s390x, x86_64};
use backtrail_sframe::Section;

use backtrail_unwind::{
    AddressKind, CacheEntry, Coverage, Frame, Memo, MemoRead, MemoState, MemoStep, Memory, Modules, Position,
    RuleCache, Stop, Table, walk,
};

/// Addresses of the code and the stack, chosen so that small numbers in an input are often in one
/// of them.
const CODE: u64 = 0x1_0000;
const STACK: u64 = 0x2_0000;

const LIMIT: usize = 200;
/// Number of reads that are made to fail, one at a time.
const FAILING: usize = 100;

/// Bytes before the table and the stack: CPU, length of the table (2), and PC, SP, FP and one more
/// register (2 each).
const HEAD: usize = 12;

struct Code<'a> {
    table: Option<Section<'a>>,
}

impl Modules for Code<'_> {
    fn coverage(&self, address: u64) -> Coverage<'_> {
        match (self.table, address) {
            (Some(section), CODE..STACK) => Coverage::Table(Table {
                section,
                index: None,
                bias: CODE,
                id: 1,
            }),
            (_, 0..0x100) => Coverage::FramePointer,
            _ => Coverage::NoModule,
        }
    }
}

struct Words<'a> {
    bytes: &'a [u8],
    /// Reads until one fails.
    left: usize,
    read: usize,
}

impl Memory for Words<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.read += 1;
        self.left = self.left.checked_sub(1)?;
        let offset = usize::try_from(address.checked_sub(STACK)?).ok()?;
        let word = self.bytes.get(offset..)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*word))
    }
}

/// A walk's result: its frames, how many words it read, and how it ended.
struct Walked {
    frames: [Frame; LIMIT],
    count: usize,
    reads: usize,
    stop: Stop,
}

const NOWHERE: Frame = Frame {
    address: 0,
    kind: AddressKind::Pc,
};

fn walked(
    arch: &Arch,
    bytes: &[u8],
    left: usize,
    mut run: impl FnMut(&Arch, &mut Words<'_>, &mut dyn FnMut(Frame)) -> Stop,
) -> Walked {
    let mut memory = Words { bytes, left, read: 0 };
    let (mut frames, mut count) = ([NOWHERE; LIMIT], 0);
    let stop = run(arch, &mut memory, &mut |frame| {
        if let Some(place) = frames.get_mut(count) {
            *place = frame;
        }
        count += 1;
    });
    Walked {
        frames,
        count,
        reads: memory.read,
        stop,
    }
}

/// Walks over any stack, by any table. A walk ends, remembers nothing wrong, and a failed read
/// changes nothing before it.
///
/// # Panics
/// If one of these does not hold.
pub fn walk_stack(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<HEAD>() else {
        return;
    };
    let arch = [&x86_64::ARCH, &aarch64::ARCH, &s390x::ARCH][usize::from(head[0]) % 3];
    let number = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let (table, stack) = rest.split_at((number(1) as usize).min(rest.len()));
    let code = Code {
        table: Section::parse(table, 0).ok(),
    };
    let mut registers = Registers::new(CODE + number(3));
    registers.set(arch.sp, STACK + number(5));
    registers.set(arch.fp, STACK + number(7));
    registers.set(Register(head[11]), STACK + number(9));
    let from = Position::interrupted(registers);
    let plain = |arch: &Arch, memory: &mut Words<'_>, visit: &mut dyn FnMut(Frame)| {
        walk(arch, &from, &code, memory, &mut RuleCache::new(&mut []), LIMIT, visit)
    };
    let whole = walked(arch, stack, usize::MAX, plain);
    assert!(whole.count <= LIMIT && whole.count > 0);
    assert!(whole.stop != Stop::Limit || whole.count == LIMIT);

    let mut state = MemoState::EMPTY;
    let (mut steps, mut reads) = ([MemoStep::EMPTY; 40], [MemoRead::EMPTY; 90]);
    let mut entries = [CacheEntry::EMPTY; 16];
    for _ in 0..2 {
        let found = walked(arch, stack, usize::MAX, |arch, memory, visit| {
            let mut cache = RuleCache::new(&mut entries);
            Memo::new(&mut state, &mut steps, &mut reads).walk(arch, &from, &code, memory, &mut cache, LIMIT, visit)
        });
        assert_eq!((found.frames, found.stop), (whole.frames, whole.stop));
    }
    for failing in 0..whole.reads.min(FAILING) {
        let cut = walked(arch, stack, failing, plain);
        // A step reads twice, or all of a signal frame.
        let most_reads = 2 + arch.signal_frame.registers.len();
        let certain = (failing / most_reads).min(cut.count);
        assert_eq!(cut.frames.get(..certain), whole.frames.get(..certain));
        assert!(cut.count <= LIMIT);
    }
}
