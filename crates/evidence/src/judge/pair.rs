//! Whether one frame can have called the one above it.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::image::{Image, Slot};
use super::leaving::{Leaving, Target};
use super::space::Place;

/// How a return address and the frame above it fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fit {
    /// A direct call of the function above.
    Direct,
    /// A direct call of a function whose cold part is above.
    Cold,
    /// A call through a stub or a slot that the dynamic linker filled.
    Plt,
    /// A call of a function that ends in a jump to the one above.
    Tail,
    /// A call of a function that is chosen when the program starts; the one above is in the file
    /// that chooses.
    Chosen,
    /// A call of a function that ends in a jump to an unknown place.
    IndirectTail,
    /// A call of an unknown function.
    Indirect,
    /// A return address that was made, not pushed by a call: of a start routine, or of a signal.
    Made,
    /// A return address that an interpreter pushed from a table of its own, and jumped.
    Interpreter,
    /// The return to the kernel after a signal handler.
    Signal,
    /// Code that was interrupted by a signal, or by the kernel.
    Interrupted,
    /// A call in, or of, code without known function boundaries.
    NoExtents,
    /// A call through a slot that no mapped file fills.
    Unresolved,
    /// A call in code that was made at run time.
    Generated,
    /// Frames were left out between.
    Omitted,
    /// The code is not available.
    NoCode,
    /// There is no call before the return address.
    NoCall,
    /// There is no code there at all.
    NotCode,
    /// The call leads elsewhere.
    Elsewhere,
    /// The call is indirect, and nothing holds the address of the function above.
    NeverHeld,
    /// An interrupted instruction after a frame that nothing interrupted.
    StrayPc,
}

impl Fit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fit::Direct => "direct call",
            Fit::Cold => "cold part",
            Fit::Plt => "via PLT or GOT",
            Fit::Tail => "via tail call",
            Fit::Chosen => "IFUNC",
            Fit::IndirectTail => "via indirect tail call",
            Fit::Indirect => "indirect call",
            Fit::Made => "made return address",
            Fit::Interpreter => "pushed by the interpreter",
            Fit::Signal => "signal return",
            Fit::Interrupted => "interrupted",
            Fit::NoExtents => "function not delimited",
            Fit::Unresolved => "slot not resolved",
            Fit::Generated => "run-time code",
            Fit::Omitted => "frames omitted",
            Fit::NoCode => "no code to judge",
            Fit::NoCall => "WRONG: no call before",
            Fit::NotCode => "WRONG: no code",
            Fit::Elsewhere => "WRONG: calls another",
            Fit::NeverHeld => "WRONG: address never taken",
            Fit::StrayPc => "WRONG: stray pc",
        }
    }

    /// Whether no such stack can have existed.
    pub(crate) fn is_wrong(self) -> bool {
        self >= Fit::NoCall
    }

    /// Whether the call is known to lead to the frame above.
    pub(crate) fn is_proved(self) -> bool {
        self <= Fit::Tail
    }
}

/// The most tail calls to follow.
const HOPS: usize = 12;
/// The most functions to examine per call.
const FUNCTIONS: usize = 2000;
/// The most bytes to read of code without a known end.
const UNDELIMITED: u64 = 1 << 16;

/// Follows calls; remembers how functions are left.
#[derive(Default)]
pub(crate) struct Follower {
    left: FxHashMap<(*const Image, u64), Rc<Left>>,
}

/// How a function is left.
struct Left {
    leaving: Leaving,
    /// What the tables that it jumps through have outside of it.
    outside: Vec<u64>,
    /// Whether one of them has more than its own places: functions, or records that have functions
    /// among other things.
    is_open: bool,
}

impl Left {
    fn read(image: &Image, start: u64, end: u64) -> Left {
        let bytes = image.bytes(start);
        let length = bytes.len().min((end - start) as usize);
        let leaving = image.cpu.leaving(&bytes[..length], start);
        let (mut outside, mut is_open) = (Vec::new(), false);
        for &target in &leaving.jumps {
            let Target::Table(table) = target else { continue };
            let targets: Vec<u64> = image.table(table).collect();
            let others = outside.len();
            outside.extend(targets.iter().filter(|to| !(start..end).contains(to)));
            is_open |= outside.len() > others || targets.is_empty();
        }
        Left {
            leaving,
            outside,
            is_open,
        }
    }
}

struct Node {
    image: Rc<Image>,
    address: u64,
    hops: usize,
    fit: Fit,
}

impl Follower {
    /// How a call in `caller` of `target` may lead to the callee; `images` are those of the
    /// process.
    pub(crate) fn follow(&mut self, caller: &Rc<Image>, target: Target, callee: &Place, images: &[Rc<Image>]) -> Fit {
        let mut search = Search {
            queue: Vec::new(),
            seen: FxHashSet::default(),
            possible: None,
            callee,
            images,
        };
        match target {
            Target::Direct(address) => search.add(caller, address, 0, Fit::Direct),
            Target::Slot(slot) if caller.is_got(slot) => search.add_slot(caller, slot, 0),
            Target::Slot(_) => return indirect(callee),
            Target::Unknown | Target::Table(_) => return indirect(callee),
        }
        let mut looked_at = 0;
        while looked_at < search.queue.len() && looked_at < FUNCTIONS {
            let node = &search.queue[looked_at];
            let (image, address) = (Rc::clone(&node.image), node.address);
            let (hops, fit) = (node.hops, node.fit);
            looked_at += 1;
            if let Some(fit) = search.arrived(&image, address, fit) {
                return fit;
            }
            if hops < HOPS {
                self.leave(&image, address, hops + 1, fit, &mut search);
            } else {
                search.may(Fit::IndirectTail);
            }
        }
        search.possible.unwrap_or(Fit::Elsewhere)
    }

    fn leave(&mut self, image: &Rc<Image>, address: u64, hops: usize, fit: Fit, search: &mut Search<'_>) {
        if image.is_stub(address) {
            for target in stub_target(image, address) {
                match target {
                    Target::Slot(slot) => search.add_slot(image, slot, hops),
                    _ => search.may(Fit::IndirectTail),
                }
            }
            return;
        }
        let extent = image.function(address);
        let end = match &extent {
            Some(extent) => extent.end,
            None => image.next_start(address).min(address.saturating_add(UNDELIMITED)),
        };
        let start = extent.as_ref().map_or(address, |extent| extent.start);
        let key = (Rc::as_ptr(image), start);
        let left = self
            .left
            .entry(key)
            .or_insert_with(|| Rc::new(Left::read(image, start, end)));
        let left = Rc::clone(left);
        let next = match fit {
            Fit::Plt => Fit::Plt,
            _ => Fit::Tail,
        };
        for &target in &left.leaving.jumps {
            match target {
                Target::Direct(target) => search.add(image, target, hops, next),
                Target::Slot(slot) if image.is_got(slot) => search.add_slot(image, slot, hops),
                Target::Slot(_) | Target::Unknown => search.may(Fit::IndirectTail),
                Target::Table(_) => {}
            }
        }
        for &target in &left.outside {
            search.add(image, target, hops, next);
        }
        if left.is_open {
            search.may(Fit::IndirectTail);
        }
        if left.leaving.falls_through {
            search.add(image, end, hops, next);
        }
        if extent.is_none() {
            // Code that nobody delimits may go anywhere in its neighbourhood.
            search.may(Fit::NoExtents);
        }
    }
}

/// The best classification of an indirect call: wrong if nothing can lead it to the function above.
pub(crate) fn indirect(callee: &Place) -> Fit {
    let image = &callee.image;
    let [Some(extent), symbol] = image.extents(callee.address) else {
        return Fit::Indirect;
    };
    let never = |extent| image.may_be_entered(extent) == Some(false);
    if never(extent) && symbol.is_none_or(never) {
        return Fit::NeverHeld;
    }
    Fit::Indirect
}

struct Search<'s> {
    queue: Vec<Node>,
    seen: FxHashSet<(*const Image, u64)>,
    /// The best possible classification, if nothing is proved.
    possible: Option<Fit>,
    callee: &'s Place,
    images: &'s [Rc<Image>],
}

impl Search<'_> {
    fn may(&mut self, fit: Fit) {
        self.possible = Some(self.possible.map_or(fit, |known| known.min(fit)));
    }

    fn add(&mut self, image: &Rc<Image>, address: u64, hops: usize, fit: Fit) {
        if self.seen.insert((Rc::as_ptr(image), address)) {
            self.queue.push(Node {
                image: Rc::clone(image),
                address,
                hops,
                fit,
            });
        }
    }

    fn add_slot(&mut self, image: &Rc<Image>, slot: u64, hops: usize) {
        let linker = self.callee.image.name.starts_with("ld-") || self.callee.image.name.starts_with("ld.so");
        match image.slot(slot) {
            Some(Slot::Symbol(name)) => {
                // Bound at its first call: the dynamic linker is in between.
                if linker {
                    self.may(Fit::Plt);
                }
                let mut found = false;
                for holder in self.images.iter().chain([&self.callee.image]) {
                    for export in holder.exports(&name) {
                        found = true;
                        if export.chooses && Rc::ptr_eq(holder, &self.callee.image) {
                            self.may(Fit::Chosen);
                        }
                        self.add(holder, export.address, hops, Fit::Plt);
                    }
                }
                if !found {
                    self.may(Fit::Unresolved);
                }
            }
            Some(Slot::Address(address)) => self.add(image, address, hops, Fit::Plt),
            Some(Slot::Resolver(_)) if Rc::ptr_eq(image, &self.callee.image) => self.may(Fit::Chosen),
            Some(Slot::Resolver(_)) => {}
            None => self.may(Fit::Unresolved),
        }
    }

    /// Whether this is the function of the frame above.
    fn arrived(&mut self, image: &Rc<Image>, address: u64, fit: Fit) -> Option<Fit> {
        if !Rc::ptr_eq(image, &self.callee.image) {
            return None;
        }
        let callee = self.callee.address;
        if image.is_stub(address) {
            // The stub itself, or the common one that binds.
            let same = image.is_stub(callee)
                && (callee.wrapping_sub(address) < image.cpu.stub_bytes() || lazy(image, address, callee));
            return same.then_some(Fit::Plt);
        }
        let [frame, symbol] = image.extents(address);
        let same = |extent: Option<&super::image::Extent>| extent.is_some_and(|extent| extent.contains(callee));
        if same(frame) || same(symbol) {
            let cold = fit == Fit::Tail && image.name_of(callee).is_some_and(|name| name.contains(".cold"));
            return Some(if cold { Fit::Cold } else { fit });
        }
        // A switch may lead into another part of the same function, which only its name shows.
        if is_part(image.name_of(callee), image.name_of(address)) {
            return Some(Fit::Cold);
        }
        if frame.is_none() && symbol.is_none() && (address..image.next_start(address)).contains(&callee) {
            self.may(Fit::NoExtents);
        }
        None
    }
}

/// Whether one name is that of a part of the other function: `f.cold`, `f.warm.1`.
fn is_part(part: Option<&str>, whole: Option<&str>) -> bool {
    let (Some(part), Some(whole)) = (part, whole) else {
        return false;
    };
    let rest = part.strip_prefix(whole).unwrap_or("");
    rest.starts_with(".cold") || rest.starts_with(".warm")
}

/// Whether `callee` is in the first stub of the section, which all others jump to.
fn lazy(image: &Image, stub: u64, callee: u64) -> bool {
    callee < stub && image.bytes(callee & !15).first() == Some(&0xff) || callee & !15 < stub
}

/// Where a stub jumps to.
fn stub_target(image: &Image, address: u64) -> Vec<Target> {
    let bytes = image.bytes(address);
    let length = bytes.len().min(image.cpu.stub_bytes() as usize);
    let found = image.cpu.leaving(&bytes[..length], address).jumps;
    let slots: Vec<Target> = found.iter().copied().filter(|t| matches!(t, Target::Slot(_))).collect();
    if slots.is_empty() { vec![Target::Unknown] } else { slots }
}
