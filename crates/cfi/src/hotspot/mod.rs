//! Frames and names of compiled Java code, from what HotSpot publishes about its own memory.
//!
//! libjvm exports a table of its types' fields for debuggers (`gHotSpotVMStructs`). It leads to the
//! compiled method at an address as HotSpot itself looks it up: through the segment map of the code
//! cache. A method's header contains its frame size, which is used if the instructions agree with
//! it (`compiled`), and leads to the method's name and those of the methods inlined into it.

mod inlined;
mod names;
mod published;

use std::ops::Range;

use backtrail_arch::{Arch, Cpu};
use backtrail_sframe::{Base, Location, Rule};

use self::published::{Published, find, text};
use crate::compiled::Compiled;
use crate::libraries::Libraries;
use crate::process_code::{ProcessCode, number, word};

/// Limit of code heaps; HotSpot has three at most.
const MOST_HEAPS: u64 = 8;
/// Bytes of the largest method whose instructions are followed.
const LARGEST_METHOD: u64 = 512 << 10;
/// Limit of steps from segment to segment; each skips up to 254 segments.
const MOST_HOPS: usize = 1 << 12;
/// The size of a segment is 2 to this power, in bytes.
const SEGMENT_BITS: std::ops::RangeInclusive<u64> = 4..=16;

/// A piece of generated code, with its header.
#[derive(Debug)]
struct Blob {
    header: u64,
    /// Of what kind it is: all methods have the same name.
    name: Vec<u8>,
    code: u64,
    end: u64,
}

impl Blob {
    fn is_method(&self) -> bool {
        self.name == b"nmethod" || self.name == b"native nmethod"
    }
}

/// What a method's header says of its frame.
#[derive(Clone, Copy, Debug)]
struct Method {
    code: u64,
    end: u64,
    complete: u64,
    frame_bytes: u32,
    second_entry: u64,
    deoptimized: Option<u64>,
}

/// How to leave a frame of HotSpot's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JavaFrame {
    /// A compiled method's frame, by this rule.
    Compiled(Rule),
    /// The interpreter's frame, by this rule once it is set up.
    Interpreted(Rule),
}

/// HotSpot in the processes that run it.
#[derive(Debug)]
pub(crate) struct HotSpot<P> {
    libraries: Libraries<P, Published>,
}

impl<P> Default for HotSpot<P> {
    fn default() -> Self {
        HotSpot {
            libraries: Libraries::default(),
        }
    }
}

impl<P: Copy + Eq> HotSpot<P> {
    /// The frame at `pc`, if it belongs to a compiled method or the interpreter.
    pub(crate) fn frame(
        &mut self,
        process: &impl ProcessCode<Place = P>,
        pc: u64,
        is_return: bool,
    ) -> Option<JavaFrame> {
        let machine = self.machine(process)?;
        if machine.interpreter(pc).is_some() {
            return Some(JavaFrame::Interpreted(interpreted(process.arch())));
        }
        let method = machine.method(pc)?;
        let length = method
            .end
            .checked_sub(method.code)
            .filter(|len| *len <= LARGEST_METHOD)?;
        let mut code = vec![0; length as usize];
        if process.read(method.code, &mut code) != code.len() {
            return None;
        }
        let compiled = Compiled {
            code: &code,
            start: method.code,
            frame_bytes: method.frame_bytes,
            complete: method.complete,
            second_entry: (method.second_entry != 0).then_some(method.second_entry),
        };
        compiled.rule(process.arch(), pc, is_return).map(JavaFrame::Compiled)
    }

    /// Whether `ra` is a method's deoptimization handler. HotSpot replaces return addresses into
    /// the method with it.
    pub(crate) fn is_deoptimized(&mut self, process: &impl ProcessCode<Place = P>, ra: u64) -> bool {
        let Some(machine) = self.machine(process) else {
            return false;
        };
        let is_handler = machine.method(ra).is_some_and(|method| method.deoptimized == Some(ra));
        let mut code = [0; 13];
        is_handler
            && process.read(ra, &mut code) == code.len()
            && match process.arch().cpu {
                Cpu::Aarch64 => code.starts_with(&ITS_ADDRESS_TO_LR.to_le_bytes()),
                _ => pushes_own_address(&code, ra),
            }
    }

    fn machine<'m, C: ProcessCode<Place = P>>(&'m mut self, process: &'m C) -> Option<Machine<'m, C>> {
        let published = self.libraries.of(process, find)?;
        Some(Machine { process, published })
    }
}

/// `adr x30, #0`, with which a deoptimization handler of AArch64 begins.
const ITS_ADDRESS_TO_LR: u32 = 0x1000_001e;

/// Whether code pushes its own address, as a deoptimization handler does: `call` of the next
/// instruction; `sub qword ptr [rsp], 5`, or `mov r10, ADDRESS; push r10; jmp`.
fn pushes_own_address(code: &[u8; 13], at: u64) -> bool {
    const BY_CALL: [u8; 10] = [0xe8, 0, 0, 0, 0, 0x48, 0x83, 0x2c, 0x24, 0x05];
    match code {
        [0x49, 0xba, own @ .., 0x41, 0x52, 0xe9] => *own == at.to_le_bytes(),
        code => code.starts_with(&BY_CALL),
    }
}

/// The rule for the caller of the interpreter's frame. The caller's stack pointer is stored in the
/// frame, because arguments may lie between the two frames.
fn interpreted(arch: &Arch) -> Rule {
    let at = |offset| Location {
        base: Base::Register(arch.fp.0),
        offset,
        deref: true,
    };
    Rule {
        fp: Some(at(0)),
        ..Rule::new(at(-8), at(8))
    }
}

/// One process's HotSpot.
struct Machine<'m, C> {
    process: &'m C,
    published: &'m Published,
}

impl<C: ProcessCode> Machine<'_, C> {
    /// Reads a field of the object at `at`; for a static one, `at` is 0.
    fn field(&self, at: u64, owner: &'static str, name: &'static str) -> Option<u64> {
        let field = self.published.get(owner, name)?;
        number(self.process, at.checked_add(field.offset)?, field.bytes)
    }

    /// The interpreter's code, if `pc` is in it.
    fn interpreter(&self, pc: u64) -> Option<Range<u64>> {
        let queue = self.field(0, "AbstractInterpreter", "_code")?;
        let begin = self.field(queue, "StubQueue", "_stub_buffer")?;
        let length = self.field(queue, "StubQueue", "_buffer_limit")?;
        let code = begin..begin.checked_add(length)?;
        code.contains(&pc).then_some(code)
    }

    /// The blob whose code contains `pc`.
    fn blob(&self, pc: u64) -> Option<Blob> {
        let heaps = self.field(0, "CodeCache", "_heaps")?;
        let count = self.field(heaps, "GrowableArrayBase", "_len")?.min(MOST_HEAPS);
        let data = self.field(heaps, "GrowableArray<int>", "_data")?;
        (0..count).find_map(|index| {
            let heap = word(self.process, data.checked_add(index * 8)?)?;
            self.blob_in(heap, pc)
        })
    }

    fn blob_in(&self, heap: u64, pc: u64) -> Option<Blob> {
        let part = |name| heap.checked_add(self.published.get("CodeHeap", name)?.offset);
        let (memory, map) = (part("_memory")?, part("_segmap")?);
        let low = self.field(memory, "VirtualSpace", "_low")?;
        let high = self.field(memory, "VirtualSpace", "_high")?;
        if !(low..high).contains(&pc) {
            return None;
        }
        let bits = self.field(heap, "CodeHeap", "_log2_segment_size")?;
        if !SEGMENT_BITS.contains(&bits) {
            return None;
        }
        let segments = self.field(map, "VirtualSpace", "_low")?;
        let mut segment = (pc - low) >> bits;
        for _ in 0..MOST_HOPS {
            match number(self.process, segments.checked_add(segment)?, 1)? {
                0 => return self.blob_at(low.checked_add(segment << bits)?, bits, pc),
                0xff => return None,
                back => segment = segment.checked_sub(back)?,
            }
        }
        None
    }

    /// The blob in the block at `block`, if its code contains `pc`.
    fn blob_at(&self, block: u64, bits: u64, pc: u64) -> Option<Blob> {
        let used = self.published.get("HeapBlock::Header", "_used")?;
        if number(self.process, block.checked_add(used.offset)?, used.bytes)? != 1 {
            return None;
        }
        let length = self
            .field(block, "HeapBlock::Header", "_length")?
            .checked_mul(1 << bits)?;
        let header = block.checked_add((used.offset + 1).next_multiple_of(8))?;
        let name = text(self.process, self.field(header, "CodeBlob", "_name")?)?;
        let (code, end) = self.code(header)?;
        let is_inside = header <= code && code <= pc && pc < end && end <= block.checked_add(length)?;
        is_inside.then_some(Blob {
            header,
            name,
            code,
            end,
        })
    }

    /// The method whose code contains `pc`.
    fn method(&self, pc: u64) -> Option<Method> {
        let blob = self.blob(pc).filter(Blob::is_method)?;
        let Blob { header, code, end, .. } = blob;
        let offset = self.field(header, "CodeBlob", "_frame_complete_offset")?;
        // Negative offsets mean that the frame is never complete; they give no valid address.
        let complete = code.checked_add(offset).filter(|complete| *complete < end)?;
        let words = u32::try_from(self.field(header, "CodeBlob", "_frame_size")?).ok()?;
        Some(Method {
            code,
            end,
            complete,
            frame_bytes: words.checked_mul(8)?,
            second_entry: self.field(header, "nmethod", "_osr_entry_point").unwrap_or(0),
            deoptimized: self.deoptimized(header),
        })
    }

    /// The instructions of a blob. Newer versions store offsets from the header, not addresses.
    fn code(&self, blob: u64) -> Option<(u64, u64)> {
        if let Some(begin) = self.field(blob, "CodeBlob", "_code_begin") {
            return Some((begin, self.field(blob, "CodeBlob", "_code_end")?));
        }
        let begin = self.field(blob, "CodeBlob", "_code_offset")?;
        let end = self.field(blob, "CodeBlob", "_data_offset")?;
        Some((blob.checked_add(begin)?, blob.checked_add(end)?))
    }

    fn deoptimized(&self, blob: u64) -> Option<u64> {
        let by_address = self.field(blob, "CompiledMethod", "_deopt_handler_begin");
        by_address.or_else(|| blob.checked_add(self.field(blob, "nmethod", "_deopt_handler_offset")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_push_their_own_address() {
        let by_move = [0x49, 0xba, 0x1d, 0xcd, 0x44, 0xb9, 0x43, 0x7f, 0, 0, 0x41, 0x52, 0xe9];
        assert!(pushes_own_address(&by_move, 0x7f43_b944_cd1d));
        assert!(!pushes_own_address(&by_move, 0x7f43_b944_cd1e));
        let by_call = [0xe8, 0, 0, 0, 0, 0x48, 0x83, 0x2c, 0x24, 0x05, 0xe9, 0, 0];
        assert!(pushes_own_address(&by_call, 1));
        assert!(!pushes_own_address(&[0x90; 13], 1));
    }
}
