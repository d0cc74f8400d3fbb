//! Classes of events: one for each place that records events, entered in the session's table when
//! it is first reached.

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::classes::{Entry, REFUSED, backtrail_tracer_new_class, enter};
use crate::field::{Kind, Text};
use crate::layout::{class, head};
use crate::modules;
use crate::ring::Out;
use crate::session::Session;
use crate::switch::{Level, NEW, OFF, ON, SAMPLED, STACK};
use crate::thread;

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
    /// once. `text` writes the class's text if it must be entered first. `own` functions, among
    /// them the caller if it isn't the place itself, are left out of the event's stack.
    // Inlined, so that all builds have the same frames.
    #[inline(always)]
    pub fn record(&self, text: &dyn Fn(&mut Text<'_>), own: usize, bytes: usize, body: impl Fn(&mut Out<'_>)) {
        let entry = self.entry();
        let switch = entry.switch.load(Ordering::Relaxed);
        if switch != ON {
            return self.record_with_more(text, own, bytes, &body);
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
    fn record_with_more(&self, text: &dyn Fn(&mut Text<'_>), own: usize, bytes: usize, body: &dyn Fn(&mut Out<'_>)) {
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
            if let Some(session) = Session::get() {
                modules::enter(session);
            }
        }
        // And this function.
        ring.stacks.with(own + 1, |stack| {
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
    #[inline(always)]
    pub fn record(&self, bytes: usize, body: impl Fn(&mut Out<'_>)) {
        let text = |text: &mut Text<'_>| {
            text.str(self.name);
            text.str("\t");
            text.members(self.fields);
        };
        self.head.record(&text, 0, bytes, body);
    }
}
