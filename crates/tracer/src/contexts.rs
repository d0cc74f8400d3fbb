//! What each event has beside its fields.

use core::sync::atomic::Ordering;

use crate::layout::context;
use crate::ring::{Out, Ring};

/// The contexts of a session.
#[derive(Debug)]
pub(crate) struct Contexts {
    pub(crate) bits: u64,
    pub(crate) pid: core::sync::atomic::AtomicU32,
    pub(crate) own: Vec<fn() -> u64>,
    pub(crate) bytes: usize,
}

impl Contexts {
    /// No contexts.
    pub(crate) const fn none() -> Contexts {
        Contexts {
            bits: 0,
            pid: core::sync::atomic::AtomicU32::new(0),
            own: Vec::new(),
            bytes: 0,
        }
    }

    pub(crate) fn new(bits: u64, own: Vec<fn() -> u64>) -> Contexts {
        let sizes = [
            (context::PID, 4),
            (context::TID, 4),
            (context::CPU, 4),
            (context::COMM, 16),
        ];
        let bytes: usize = sizes
            .iter()
            .filter(|(bit, _)| bits & bit != 0)
            .map(|(_, bytes)| bytes)
            .sum();
        Contexts {
            bits,
            pid: std::process::id().into(),
            bytes: bytes + own.len() * 8,
            own,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn put(&self, ring: &Ring, out: &mut Out<'_>) {
        if self.bits & context::PID != 0 {
            out.put(self.pid.load(Ordering::Relaxed).to_ne_bytes());
        }
        if self.bits & context::TID != 0 {
            out.put(ring.tid.load(Ordering::Relaxed).to_ne_bytes());
        }
        if self.bits & context::CPU != 0 {
            // SAFETY: it has no arguments. The C library answers from memory that the kernel keeps.
            let cpu = unsafe { libc::sched_getcpu() };
            out.put(cpu.to_ne_bytes());
        }
        if self.bits & context::COMM != 0 {
            for part in &ring.comm {
                out.put(part.load(Ordering::Relaxed).to_ne_bytes());
            }
        }
        for value in &self.own {
            out.put(value().to_ne_bytes());
        }
    }
}
