//! Classes of events: one for each place that records events, entered in the session's table when
//! it is first reached.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::field::{Kind, Text};
use crate::layout::{PAGE, class, head};
use crate::map::Map;
use crate::ring::Out;
use crate::session::Session;
use crate::{rules, thread};

/// Values and bits of a class's switch.
pub(crate) const OFF: u32 = 0;
pub(crate) const ON: u32 = 1;
/// Each event gets a stack.
pub(crate) const STACK: u32 = 2;
/// One of some events gets a stack.
pub(crate) const SAMPLED: u32 = 4;
/// Not entered yet.
const NEW: u32 = 1 << 16;

/// The longest text of a class: handlers enter classes, perhaps on small stacks.
const TEXT_BYTES: usize = 2000;

/// How important an event is: LTTng's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Level {
    /// The system is unusable.
    Emergency = 0,
    /// Somebody must act at once.
    Alert = 1,
    /// A critical condition.
    Critical = 2,
    /// An error.
    Error = 3,
    /// Something that may become an error.
    Warning = 4,
    /// Normal, but significant.
    Notice = 5,
    /// Information.
    #[default]
    Info = 6,
    /// For developers.
    Debug = 14,
}

impl Level {
    const ALL: [(&'static str, Level); 8] = [
        ("emergency", Level::Emergency),
        ("alert", Level::Alert),
        ("critical", Level::Critical),
        ("error", Level::Error),
        ("warning", Level::Warning),
        ("notice", Level::Notice),
        ("info", Level::Info),
        ("debug", Level::Debug),
    ];

    /// Its number in the trace.
    pub const fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn named(name: &[u8]) -> Option<Level> {
        let found = Level::ALL.iter().find(|(known, _)| known.as_bytes() == name);
        found.map(|&(_, level)| level)
    }
}

/// A class's numbers in the table that the collector shares.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    bytes: AtomicU32,
    ready: AtomicU32,
    switch: AtomicU32,
    number: AtomicU32,
}

const _: () = assert!(size_of::<Entry>() == class::TEXT && core::mem::offset_of!(Entry, switch) == class::SWITCH);

impl Entry {
    const fn new() -> Entry {
        Entry {
            bytes: AtomicU32::new(0),
            ready: AtomicU32::new(0),
            switch: AtomicU32::new(0),
            number: AtomicU32::new(0),
        }
    }
}

/// The entry of every class that is not entered yet: off before the session starts.
#[unsafe(no_mangle)]
#[allow(unreachable_pub, non_upper_case_globals, reason = "the name that C programs use")]
pub static backtrail_tracer_new_class: Entry = Entry::new();
/// The entry of classes for which the table has no room.
static REFUSED: Entry = Entry::new();

/// From now on, classes that are reached are entered.
pub(crate) fn start_entering() {
    backtrail_tracer_new_class.switch.store(NEW, Ordering::Release);
}

/// What classes of Rust and of C have in common.
#[derive(Debug)]
#[repr(C)]
pub struct Head {
    entry: AtomicPtr<Entry>,
    level: u8,
    /// Bits of the switch that the class asks for.
    wanted: u8,
}

impl Head {
    /// A class with this level, and with a stack for each event if `stack`.
    pub const fn new(level: Level, stack: bool) -> Head {
        Head {
            entry: AtomicPtr::new((&raw const backtrail_tracer_new_class).cast_mut()),
            level: level as u8,
            wanted: if stack { STACK as u8 } else { 0 },
        }
    }

    #[inline]
    fn entry(&self) -> &'static Entry {
        // SAFETY: one of the two statics or an entry of the table, which stays mapped; a child
        // after a fork has its own table at the same address.
        unsafe { &*self.entry.load(Ordering::Relaxed) }
    }

    /// Whether events of the class are recorded. Costs two loads if not.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.entry().switch.load(Ordering::Relaxed) != OFF
    }

    /// Records an event whose fields take `bytes` bytes, which `body` writes, perhaps more than
    /// once. `text` writes the class's text if it must be entered first.
    #[inline]
    pub fn record(&self, text: &dyn Fn(&mut Text<'_>), bytes: usize, body: impl Fn(&mut Out<'_>)) {
        let entry = self.entry();
        let switch = entry.switch.load(Ordering::Relaxed);
        if switch != ON {
            return self.record_with_more(text, bytes, &body);
        }
        let Some(ring) = thread::ring() else { return };
        let contexts = Session::contexts();
        // The table's numbers are less than this.
        let id = (entry.number.load(Ordering::Relaxed) as u16).wrapping_mul(2);
        if contexts.is_empty() {
            ring.append(id, bytes, body);
        } else {
            ring.append(id, contexts.bytes() + bytes, |out| {
                contexts.put(ring, out);
                body(out);
            });
        }
    }

    /// The same for a class that is not entered, or whose events have a stack.
    #[inline(never)]
    fn record_with_more(&self, text: &dyn Fn(&mut Text<'_>), bytes: usize, body: &dyn Fn(&mut Out<'_>)) {
        let mut entry = self.entry();
        if entry.switch.load(Ordering::Relaxed) & NEW != 0 {
            let Some(session) = Session::get() else { return };
            entry = enter(&session.map, self.level, u32::from(self.wanted), text);
            self.entry
                .store(core::ptr::from_ref(entry).cast_mut(), Ordering::Relaxed);
        }
        if core::ptr::eq(entry, &REFUSED) {
            if let Some(session) = Session::get() {
                session.map.word(head::UNREGISTERED).fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let switch = entry.switch.load(Ordering::Relaxed);
        if switch & ON == 0 {
            return;
        }
        let Some(ring) = thread::ring() else { return };
        let contexts = Session::contexts();
        let id = (entry.number.load(Ordering::Relaxed) as u16).wrapping_mul(2);
        let has_stack = switch & STACK != 0 || switch & SAMPLED != 0 && Session::is_sampled(ring.clock.now());
        if !has_stack {
            ring.append(id, contexts.bytes() + bytes, |out| {
                contexts.put(ring, out);
                body(out);
            });
            return;
        }
        if entry.ready.load(Ordering::Relaxed) & class::HAS_STACKS == 0 {
            entry.ready.fetch_or(class::HAS_STACKS, Ordering::Release);
        }
        ring.stacks.with(|stack| {
            ring.append(id + 1, contexts.bytes() + 2 + stack.len() + bytes, |out| {
                contexts.put(ring, out);
                out.put((stack.len() as u16).to_ne_bytes());
                out.bytes(stack);
                body(out);
            });
        });
    }
}

/// A class of events; [`event!`](crate::event) makes it.
#[derive(Debug)]
pub struct Class {
    /// What it has in common with those of C.
    pub head: Head,
    name: &'static str,
    fields: &'static [(&'static str, &'static Kind)],
}

impl Class {
    /// A class with this name, `provider:event`, and these fields.
    pub const fn new(
        name: &'static str,
        level: Level,
        stack: bool,
        fields: &'static [(&'static str, &'static Kind)],
    ) -> Class {
        Class {
            head: Head::new(level, stack),
            name,
            fields,
        }
    }

    /// Records an event whose fields take `bytes` bytes.
    #[inline]
    pub fn record(&self, bytes: usize, body: impl Fn(&mut Out<'_>)) {
        let text = |text: &mut Text<'_>| {
            text.str(self.name);
            text.str("\t");
            text.members(self.fields);
        };
        self.head.record(&text, bytes, body);
    }
}

/// Enters a class: finds its entry, or adds one. Takes no lock and does not allocate.
#[inline(never)]
fn enter(map: &Map, level: u8, wanted: u32, write: &dyn Fn(&mut Text<'_>)) -> &'static Entry {
    let mut memory = [0; TEXT_BYTES];
    let mut text = Text::new(&mut memory);
    text.all(&[b'0' + level / 10, b'0' + level % 10]);
    text.str("\t");
    write(&mut text);
    let Some(text) = text.finish() else { return &REFUSED };
    let bytes = (class::TEXT + text.len() + 1).next_multiple_of(8);
    let (mut at, mut number) = (PAGE, 0u32);
    let end = PAGE + map.geometry.class_bytes;
    // Readers need the zero after the last entry.
    while at + bytes + 8 <= end && number < u32::from(u16::MAX / 2) {
        let taken = map
            .half(at + class::BYTES)
            .compare_exchange(0, bytes as u32, Ordering::AcqRel, Ordering::Acquire);
        match taken {
            Ok(_) => {
                map.write(at + class::TEXT, text);
                map.half(at + class::NUMBER).store(number, Ordering::Relaxed);
                let mut rules = [0; head::RULES_BYTES];
                map.read(head::RULES, &mut rules);
                let rules = rules.split(|&byte| byte == 0).next().unwrap_or_default();
                let name = name_of(text);
                let wants = if wanted & STACK != 0 { class::WANTS_STACKS } else { 0 };
                let switch = rules::switch(rules, name, level, wanted);
                map.half(at + class::SWITCH).store(switch, Ordering::Relaxed);
                map.half(at + class::READY)
                    .store(class::IS_READY | wants, Ordering::Release);
                return entry_at(map, at);
            }
            Err(taken) if is_same(map, at, taken, text) => return entry_at(map, at),
            Err(taken) => at += (taken as usize).max(8).next_multiple_of(8),
        }
        number += 1;
    }
    &REFUSED
}

/// Calls `act` with the switch of each class of the table.
pub(crate) fn each_switch(map: &Map, act: impl Fn(&AtomicU32)) {
    each(map, |at| act(map.half(at + class::SWITCH)));
}

/// Calls `act` with the offset of each class of the table whose text is there.
pub(crate) fn each(map: &Map, mut act: impl FnMut(usize)) {
    let (mut at, end) = (PAGE, PAGE + map.geometry.class_bytes);
    while at + class::TEXT < end {
        let bytes = map.half(at + class::BYTES).load(Ordering::Acquire) as usize;
        if bytes == 0 {
            break;
        }
        if map.half(at + class::READY).load(Ordering::Acquire) & class::IS_READY != 0 {
            act(at);
        }
        at += bytes.next_multiple_of(8);
    }
}

/// Whether a class of the table may have events with a stack.
pub(crate) fn has_stacks(map: &Map, at: usize) -> bool {
    map.half(at + class::READY).load(Ordering::Acquire) & class::HAS_STACKS != 0
}

/// Applies rules to a class of the table.
pub(crate) fn apply(map: &Map, at: usize, rules: &[u8]) {
    let text = text_at(map, at);
    let mut parts = text.split(|&byte| byte == b'\t');
    let level = parts
        .next()
        .unwrap_or_default()
        .iter()
        .fold(0u8, |level, digit| level.wrapping_mul(10).wrapping_add(digit & 15));
    let wants = map.half(at + class::READY).load(Ordering::Relaxed) & class::WANTS_STACKS != 0;
    let wanted = if wants { STACK } else { 0 };
    let switch = rules::switch(rules, parts.next().unwrap_or_default(), level, wanted);
    map.half(at + class::SWITCH).store(switch, Ordering::Relaxed);
}

/// The text of a class: level, name and fields with tabs between.
pub(crate) fn text_at(map: &Map, at: usize) -> Vec<u8> {
    let bytes = map.half(at + class::BYTES).load(Ordering::Acquire) as usize;
    let mut text = vec![0; bytes.saturating_sub(class::TEXT).min(TEXT_BYTES + 8)];
    map.read(at + class::TEXT, &mut text);
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}

/// The name in a class's text: between the level and the fields.
pub(crate) fn name_of(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == b'\t').nth(1).unwrap_or_default()
}

/// Whether the entry there is the same class, as from another copy of an inlined function.
fn is_same(map: &Map, at: usize, bytes: u32, text: &[u8]) -> bool {
    let is_as_long = bytes as usize == (class::TEXT + text.len() + 1).next_multiple_of(8);
    if !is_as_long || map.half(at + class::READY).load(Ordering::Acquire) & class::IS_READY == 0 {
        return false;
    }
    let mut chunks = text.chunks(8).enumerate();
    // The last byte is zero in both.
    chunks.all(|(index, chunk)| {
        let mut theirs = [0; 8];
        map.read(at + class::TEXT + index * 8, &mut theirs);
        let rest = theirs.get(chunk.len()..).unwrap_or_default();
        theirs.starts_with(chunk) && rest.iter().all(|&byte| byte == 0)
    })
}

fn entry_at(map: &Map, at: usize) -> &'static Entry {
    // SAFETY: the caller found the whole entry within the table, which stays mapped; all of it is
    // atomics, from an address that is a multiple of 8.
    unsafe { &*map.address(at).cast::<Entry>() }
}
