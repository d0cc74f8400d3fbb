//! Whether the judge finds errors: damages real stacks in known ways.
//!
//! A damaged stack that could have existed, because its frames are adjacent in a real one too, is
//! not counted.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use backtrail_recording::{Frame, FrameKind, Item, Reader};
use rustc_hash::FxHashSet;

use crate::judge::copies::Copies;
use crate::judge::{Fit, Judge, program_frames};

/// The number of distinct stacks to damage for a figure that is published.
pub const STACKS: usize = 2_000;
/// How often each is damaged in each way.
const TIMES: u64 = 3;

/// A way to damage a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// One frame is missing.
    Drop,
    /// The outer frames are those of another stack.
    Splice,
    /// One return address is another stack's.
    Replace,
}

/// The judge's results for the stacks damaged in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Damaged stacks.
    pub all: u64,
    /// Those that the judge calls wrong.
    pub found: u64,
    /// The others, by the judge's classification of the pair that never occurred.
    pub missed: BTreeMap<&'static str, u64>,
}

/// The judge's results for all damaged stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Stacks that were wrong before they were damaged, each with the judge's classification of
    /// each pair; they are left out.
    pub wrong_before: Vec<String>,
    /// By the damage.
    pub by_damage: BTreeMap<Damage, Found>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (damage, found) in &self.by_damage {
            let share = found.found as f64 * 100.0 / found.all.max(1) as f64;
            writeln!(
                f,
                "{damage:?}: {} damaged, {} found ({share:.1} %)",
                found.all, found.found
            )?;
            for (fit, count) in &found.missed {
                writeln!(f, "    not found: {fit} {count}")?;
            }
        }
        Ok(())
    }
}

/// Damages the stacks of a recording, at most this many distinct ones, and has them judged.
///
/// # Errors
/// The problem with the recording, as text.
pub fn of(recording: &Path, most: usize) -> Result<Outcome, String> {
    let unreadable = |error| format!("{}: {error}", recording.display());
    let mut reader = Reader::open(recording).map_err(unreadable)?;
    let mut laboratory = Laboratory {
        judge: Judge::new(Copies::default()),
        stacks: Vec::new(),
        most,
        known: FxHashSet::default(),
        pid: None,
        outcome: Outcome::default(),
    };
    while let Some(item) = reader.next().map_err(unreadable)? {
        match item {
            Item::Module(module) => laboratory.judge.module(&module),
            // Addresses have a meaning in one process and one program only: the last one's.
            Item::Exec { pid, .. } => {
                laboratory.judge.forget(pid);
                laboratory.restart(pid);
            }
            Item::Sample(sample) => laboratory.keep(sample.pid, sample.frames),
            _ => {}
        }
    }
    laboratory.damage_all();
    Ok(laboratory.outcome)
}

struct Laboratory {
    judge: Judge,
    stacks: Vec<Vec<Frame>>,
    /// The number of distinct stacks to damage.
    most: usize,
    /// Pairs of adjacent frames that occurred.
    known: FxHashSet<(u64, u64)>,
    pid: Option<u32>,
    outcome: Outcome,
}

impl Laboratory {
    fn restart(&mut self, pid: u32) {
        self.pid = Some(pid);
        self.stacks.clear();
        self.known.clear();
    }

    fn keep(&mut self, pid: u32, frames: &[Frame]) {
        let program = program_frames(frames);
        if self.pid.is_some_and(|of| of != pid) || program.len() < 4 {
            return;
        }
        let fits = self.judge.fits(pid, program);
        if fits.iter().any(|fit| fit.is_wrong()) {
            let addresses: Vec<String> = frames.iter().map(|frame| format!("{:#x}", frame.address)).collect();
            let described = format!("{fits:?} in {}", addresses.join(" "));
            self.outcome.wrong_before.push(described);
            return;
        }
        for pair in program.windows(2) {
            let key = self.key(pid, &pair[0], &pair[1]);
            self.known.insert(key);
        }
        if self.stacks.len() < self.most && !self.stacks.iter().any(|stack| stack == program) {
            self.stacks.push(program.to_vec());
        }
    }

    /// The function of the frame above, by its extent if known, and the return address.
    fn key(&mut self, pid: u32, above: &Frame, below: &Frame) -> (u64, u64) {
        (self.judge.function_start(pid, above), below.address)
    }

    fn damage_all(&mut self) {
        let Some(pid) = self.pid else { return };
        let stacks = std::mem::take(&mut self.stacks);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for (index, stack) in stacks.iter().enumerate() {
            for _ in 0..TIMES {
                let other = &stacks[random.below(stacks.len())];
                if other == &stacks[index] {
                    continue;
                }
                let (at, from) = (1 + random.below(stack.len() - 2), 1 + random.below(other.len() - 1));
                let (head, tail) = (&stack[..at], &stack[at + 1..]);
                self.judge_damaged(pid, Damage::Drop, at, [head, tail].concat());
                self.judge_damaged(pid, Damage::Splice, at, [head, &other[from..]].concat());
                self.judge_damaged(pid, Damage::Replace, at, [head, &other[from..=from], tail].concat());
            }
        }
    }

    fn judge_damaged(&mut self, pid: u32, damage: Damage, at: usize, stack: Vec<Frame>) {
        let met = |pair: &[Frame]| {
            let key = self.key(pid, &pair[0], &pair[1]);
            self.known.contains(&key)
        };
        let all_met = stack.windows(2).all(met);
        // A frame that a signal or a kernel entry interrupted needs no call.
        if all_met || stack.iter().skip(1).any(|frame| frame.kind != FrameKind::Ra) {
            return;
        }
        let fits = self.judge.fits(pid, &stack);
        let wrong = fits.iter().any(|fit| fit.is_wrong());
        let at_fault: Fit = fits[at - 1];
        let found = self.outcome.by_damage.entry(damage).or_default();
        found.all += 1;
        if wrong {
            found.found += 1;
        } else {
            *found.missed.entry(at_fault.name()).or_default() += 1;
        }
    }
}

/// The same numbers in every run (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}
