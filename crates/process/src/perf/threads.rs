//! Threads for which a program at the event copies other stacks than the sample's.

use std::io;
use std::os::fd::AsFd as _;
use std::rc::Rc;

use super::program::{CONTEXT, Code, FRAME, Jumps, helper, op};
use crate::sys::{BpfMap, MapKind};

/// The most threads.
const MOST_THREADS: u32 = 4096;

/// What the program knows about each thread, by its number: some words.
#[derive(Clone, Debug)]
pub(super) struct Threads {
    map: Rc<BpfMap>,
    words: i16,
}

impl Threads {
    pub(super) fn new(words: i16) -> io::Result<Threads> {
        let map = BpfMap::new(MapKind::Hash, 4, 8 * words as u32, MOST_THREADS)?;
        Ok(Threads {
            map: Rc::new(map),
            words,
        })
    }

    pub(super) fn add<const WORDS: usize>(&self, tid: u32, words: [u64; WORDS]) -> io::Result<()> {
        let words = words.map(u64::to_ne_bytes);
        self.map.set(&tid.to_ne_bytes(), words.as_flattened())
    }

    pub(super) fn remove(&self, tid: u32) {
        // The thread may have ended.
        let _ = self.map.remove(&tid.to_ne_bytes());
    }
}

impl Code {
    /// Begins a program for these threads, and leaves their words in the frame, the first one in
    /// `place`. Goes `out` for others.
    pub(super) fn begin_for(&mut self, out: &mut Jumps, threads: &Threads, place: i16) {
        self.push(op::COPY, CONTEXT, 1, 0, 0);
        self.call(helper::PID_TGID);
        self.look_up(out, threads.map.as_fd());
        for word in 0..threads.words {
            self.push(op::LOAD, 1, 0, 8 * word, 0);
            self.push(op::STORE, FRAME, 1, place + 8 * word, 0);
        }
    }
}
