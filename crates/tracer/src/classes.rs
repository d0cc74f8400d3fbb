//! The table of classes in the session's file, which the collector shares.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::field::Text;
use crate::layout::{PAGE, class, head};
use crate::map::Map;
use crate::room;
use crate::rules;
use crate::switch::{NEW, STACK};

/// The longest text of a class: handlers enter classes, perhaps on small stacks.
const TEXT_BYTES: usize = 2000;

/// A class's numbers in the table that the collector shares.
#[derive(Debug)]
#[repr(C)]
pub struct Entry {
    bytes: AtomicU32,
    pub(crate) ready: AtomicU32,
    pub(crate) switch: AtomicU32,
    pub(crate) number: AtomicU32,
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
pub(crate) static REFUSED: Entry = Entry::new();

/// From now on, classes that are reached are entered.
pub(crate) fn start_entering() {
    backtrail_tracer_new_class.switch.store(NEW, Ordering::Release);
}

/// Enters a class: finds its entry, or adds one. Takes no lock and does not allocate.
#[inline(never)]
pub(crate) fn enter(map: &Map, level: u8, wanted: u32, write: &dyn Fn(&mut Text<'_>)) -> &'static Entry {
    let start = [b'0' + level / 10, b'0' + level % 10];
    enter_text(map, &start, level, wanted, write)
}

/// The start of a module's text, in place of a class's level.
const MODULE: &[u8; 6] = b"module";

/// Enters a module as [`enter`] does a class.
pub(crate) fn enter_module(map: &Map, write: &dyn Fn(&mut Text<'_>)) {
    enter_text(map, MODULE, 0, 0, write);
}

fn enter_text(map: &Map, start: &[u8], level: u8, wanted: u32, write: &dyn Fn(&mut Text<'_>)) -> &'static Entry {
    let mut memory = [0; TEXT_BYTES];
    let mut text = Text::new(&mut memory);
    text.all(start);
    text.str("\t");
    write(&mut text);
    let Some(text) = text.finish() else { return &REFUSED };
    let bytes = (class::TEXT + text.len() + 1).next_multiple_of(8);
    let (mut at, mut number) = (PAGE, 0u32);
    let end = PAGE + map.geometry.class_bytes;
    // Readers need the zero after the last entry.
    while at + bytes + 8 <= end && number < u32::from(u16::MAX / 2) {
        let place = map.half(at + class::BYTES);
        if place.load(Ordering::Relaxed) == 0 && !room::reserve(at, bytes + 8) {
            break;
        }
        let taken = place.compare_exchange(0, bytes as u32, Ordering::AcqRel, Ordering::Acquire);
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

/// Whether any class of the table may have events with a stack.
pub(crate) fn any_has_stacks(map: &Map) -> bool {
    let mut any = false;
    each(map, |at| any |= has_stacks(map, at));
    any
}

/// How many modules the table has.
pub(crate) fn count_modules(map: &Map) -> usize {
    let mut count = 0;
    let mut start = [0; MODULE.len()];
    each(map, |at| {
        map.read(at + class::TEXT, &mut start);
        count += usize::from(start == *MODULE);
    });
    count
}

/// The module's description, if the entry with this text is a module.
pub(crate) fn module_of(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(MODULE.as_slice())?.strip_prefix(b"\t")
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
