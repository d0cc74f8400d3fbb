//! Stores addresses of stacks relative to modules, so that a stack is the same in every process
//! that runs the same program, wherever its modules are loaded.
//!
//! Each module has a *place*, a range in a space of numbers that all processes share. A frame in a
//! module is stored as a number in the module's place; an address outside all modules (the kernel,
//! code made at run time) is stored as it is.

use rustc_hash::FxHashMap;

use crate::{Frame, FrameKind, Module};

/// Numbers below this are in places. 1 TiB of modules is more than anybody maps, and 5 bytes of a
/// compact backtrace cannot express more.
const PLACES_END: u64 = 1 << 40;
/// Added to addresses outside all modules that look like numbers in places. No CPU has addresses
/// like the sums.
const ESCAPE: u64 = 1 << 62;
/// Places begin at multiples of this, as modules do.
const PAGE: u64 = 4096;

/// Ranges of numbers, and the shift of each: from the addresses of a process to places, or back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shifts(Vec<Shift>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shift {
    start: u64,
    /// The number after the last.
    end: u64,
    /// The shifted `start`.
    to: u64,
}

impl Shifts {
    /// Shifts `size` numbers from `start` on to `to`; overlapping parts of older ranges are
    /// forgotten.
    pub(crate) fn insert(&mut self, start: u64, size: u64, to: u64) {
        let end = start.saturating_add(size);
        let first = self.0.partition_point(|shift| shift.end <= start);
        let last = self.0.partition_point(|shift| shift.start < end);
        self.0.splice(first..last.max(first), [Shift { start, end, to }]);
    }

    /// Whether exactly this range is shifted there.
    fn has(&self, start: u64, size: u64, to: u64) -> bool {
        let end = start.saturating_add(size);
        let index = self.0.partition_point(|shift| shift.end <= start);
        self.0.get(index) == Some(&Shift { start, end, to })
    }

    /// The shifted number.
    pub(crate) fn find(&self, number: u64) -> Option<u64> {
        let index = self.0.partition_point(|shift| shift.end <= number);
        let shift = self.0.get(index).filter(|shift| shift.start <= number)?;
        Some(shift.to.wrapping_add(number - shift.start))
    }

    /// The number that is shifted to `to`, by one of the shifts into the `size` numbers from there
    /// on.
    fn origin_of(&self, to: u64, size: u64) -> Option<u64> {
        let into = |shift: &&Shift| shift.to.checked_sub(to).is_some_and(|offset| offset < size);
        let shift = self.0.iter().find(into)?;
        Some(shift.start.wrapping_sub(shift.to - to))
    }
}

/// The stored form of an address outside all modules.
fn escape(address: u64) -> u64 {
    if address < PLACES_END {
        address + ESCAPE
    } else {
        address
    }
}

/// The recorder's side: assigns places to modules.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// By what identifies a file, and by how often the process already has it.
    by_module: FxHashMap<(String, Vec<u8>, u64, u32), u64>,
    next: u64,
    processes: FxHashMap<u32, Shifts>,
}

impl Places {
    /// The place of a module, where its addresses in its process are stored from now on. `None` if
    /// there is no room.
    pub(crate) fn place(&mut self, module: &Module) -> Option<u64> {
        let shifts = self.processes.entry(module.pid).or_default();
        let mapped = module.addresses();
        let offset = mapped.start.checked_sub(module.base)?;
        let len = mapped.end.checked_sub(mapped.start)?;
        // Addresses beyond the module's end have no numbers there.
        let len = len.min(module.size.checked_sub(offset)?);
        for copy in 0.. {
            let key = (module.path.clone(), module.build_id.clone(), module.size, copy);
            let place = match self.by_module.get(&key) {
                // The same file with another base in the same process.
                Some(&place)
                    if shifts
                        .origin_of(place, module.size)
                        .is_some_and(|base| base != module.base) =>
                {
                    continue;
                }
                Some(&place) => place,
                None => {
                    let place = self.next;
                    let next = place.checked_add(module.size)?.checked_next_multiple_of(PAGE)?;
                    if next > PLACES_END {
                        return None;
                    }
                    self.next = next;
                    self.by_module.insert(key, place);
                    place
                }
            };
            shifts.insert(mapped.start, len, place + offset);
            return Some(place);
        }
        None
    }

    /// The process's modules have changed.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// All processes' modules must be written again, at the same places.
    pub(crate) fn forget_processes(&mut self) {
        self.processes.clear();
    }

    /// The addresses of one process.
    pub(crate) fn of(&self, pid: u32) -> InPlace<'_> {
        InPlace(self.processes.get(&pid))
    }
}

/// Converts the addresses of one process to stored numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPlace<'a>(Option<&'a Shifts>);

impl InPlace<'_> {
    pub(crate) fn keep(self, frame: Frame) -> Frame {
        match frame.kind {
            FrameKind::Omitted => frame,
            FrameKind::Pc | FrameKind::Ra => Frame {
                address: self.number(frame.address),
                ..frame
            },
        }
    }

    fn number(self, address: u64) -> u64 {
        self.0
            .and_then(|shifts| shifts.find(address))
            .unwrap_or_else(|| escape(address))
    }
}

/// The reader's side: from stored numbers back to the addresses of a process.
#[derive(Debug, Default)]
pub(crate) struct Bases {
    /// With the number of the last change, which no other process has.
    processes: FxHashMap<u32, (u64, Shifts)>,
    changes: u64,
}

impl Bases {
    /// A module of a process has this place.
    pub(crate) fn insert(&mut self, pid: u32, place: u64, size: u64, base: u64) {
        let (changed, shifts) = self.processes.entry(pid).or_default();
        // After each checkpoint, all of them come again.
        if shifts.has(place, size, base) {
            return;
        }
        self.changes += 1;
        *changed = self.changes;
        shifts.insert(place, size, base);
    }

    /// The process's modules have changed.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// A number that changes when stored numbers may stand for other addresses of the process.
    pub(crate) fn version(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |(changed, _)| *changed)
    }

    /// Replaces stored numbers by the addresses of one process. `false` if it is unknown which of
    /// the process's modules one of them is in.
    pub(crate) fn restore(&self, pid: u32, frames: &mut [Frame]) -> bool {
        frames
            .iter_mut()
            .filter(|frame| frame.kind != FrameKind::Omitted)
            .all(|frame| {
                let address = self.address(pid, frame.address);
                frame.address = address.unwrap_or_default();
                address.is_some()
            })
    }

    /// The address of one process that a stored number stands for.
    pub(crate) fn address(&self, pid: u32, number: u64) -> Option<u64> {
        if number < PLACES_END {
            return self.processes.get(&pid)?.1.find(number);
        }
        let escaped = ESCAPE..ESCAPE + PLACES_END;
        Some(if escaped.contains(&number) {
            number - ESCAPE
        } else {
            number
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(pid: u32, path: &str, base: u64, size: u64) -> Module {
        Module {
            time: 0,
            pid,
            base,
            size,
            mapped: None,
            position_independent: true,
            path: path.to_owned(),
            build_id: vec![1],
            elsewhere: 0,
        }
    }

    #[test]
    fn addresses_are_the_same_in_every_process_and_come_back() {
        let (mut places, mut bases) = (Places::default(), Bases::default());
        for module in [
            module(1, "/a", 0x5500_0000_0000, 0x1234),
            module(1, "/b", 0x7f00_0000_0000, 0x10_0000),
            module(2, "/b", 0x7f11_0000_0000, 0x10_0000),
            module(2, "/a", 0x5511_0000_0000, 0x1234),
            // Twice in one process.
            module(2, "/b", 0x7f22_0000_0000, 0x10_0000),
        ] {
            let place = places.place(&module).unwrap();
            bases.insert(module.pid, place, module.size, module.base);
        }
        let keep = |pid, address| places.of(pid).number(address);
        assert_eq!(keep(1, 0x5500_0000_1000), keep(2, 0x5511_0000_1000));
        assert_eq!(keep(1, 0x7f00_0000_0007), keep(2, 0x7f11_0000_0007));
        assert_ne!(keep(2, 0x7f22_0000_0007), keep(2, 0x7f11_0000_0007));
        for address in [
            0,
            0x1000,
            0x5500_0000_1233,
            0x5500_0000_1234,
            0x7f00_0000_0007,
            PLACES_END - 1,
            PLACES_END,
            ESCAPE - 1,
            u64::MAX,
            0xffff_ffff_8100_0000,
        ] {
            let number = keep(1, address);
            assert_eq!(bases.address(1, number), Some(address), "{address:#x}");
        }
        assert_eq!(bases.address(3, keep(1, 0x7f00_0000_0007)), None, "an unknown process");
    }

    #[test]
    fn a_repeated_module_changes_nothing() {
        let mut bases = Bases::default();
        let mut insert = |place, size, base| {
            bases.insert(1, place, size, base);
            bases.version(1)
        };
        let first = insert(0x1000, 0x2000, 0x7f00_0000_0000);
        assert_eq!(insert(0x1000, 0x2000, 0x7f00_0000_0000), first);
        let second = insert(0x2000, 0x1000, 0x7f11_0000_0000);
        assert_ne!(second, first);
        assert_ne!(insert(0x1000, 0x2000, 0x7f00_0000_0000), second, "the rest was covered");
    }

    #[test]
    fn a_later_module_replaces_what_it_covers() {
        let mut places = Places::default();
        places.place(&module(1, "/a", 0x10_0000, 0x3000));
        let b = places.place(&module(1, "/b", 0x10_1000, 0x1000)).unwrap();
        assert_eq!(places.of(1).number(0x10_1008), b + 8);
        places.forget_process(1);
        assert_eq!(places.of(1).number(0x10_1008), 0x10_1008 + ESCAPE);
    }

    /// A part that is mapped again elsewhere has its own numbers, and covers only itself.
    #[test]
    fn pieces_with_another_base_come_back() {
        let (mut places, mut bases) = (Places::default(), Bases::default());
        let pieces = [
            (0x40_0000, 0x44_0000..0x48_0000),
            (0x7f00_0000_0000, 0x7f00_0004_0000..0x7f00_0008_0000),
        ];
        for (base, mapped) in pieces {
            let mut piece = module(1, "/a", base, 0x10_0000);
            piece.mapped = Some(mapped);
            let place = places.place(&piece).unwrap();
            bases.insert(1, place, piece.size, base);
        }
        let keep = |address| places.of(1).number(address);
        assert!(keep(0x44_0008) < PLACES_END && keep(0x7f00_0004_0008) < PLACES_END);
        assert_ne!(keep(0x44_0008), keep(0x7f00_0004_0008));
        for address in [
            0x44_0008,
            0x40_0008,
            0x7f00_0004_0008,
            0x7f00_0008_0000,
            0x7f00_0000_0008,
        ] {
            assert_eq!(bases.address(1, keep(address)), Some(address), "{address:#x}");
        }
    }

    #[test]
    fn a_module_of_absurd_size_has_no_place() {
        let mut places = Places::default();
        assert_eq!(places.place(&module(1, "/huge", 0x1000, u64::MAX)), None);
        assert_eq!(places.place(&module(1, "/large", 0x1000, PLACES_END + 1)), None);
        assert_eq!(places.place(&module(1, "/sound", 0x1000, PLACES_END - PAGE)), Some(0));
        assert_eq!(places.place(&module(1, "/more", 1 << 41, 2 * PAGE)), None);
    }
}
