//! Calls of functions: from the probe at the first instruction to one at an instruction that
//! returns.

use std::mem;
use std::time::Duration;

use backtrail_arch::Arch;
use backtrail_process::perf::{CallProbes, ExitKind, Role, Sample, TracedFunction, UserState};
use backtrail_recording::FinishedCall;
use rustc_hash::FxHashMap;

use crate::waits::Walked;

/// The most calls that are followed at once, and frames of all their stacks.
const MOST_CALLS: usize = 1 << 18;
const MOST_FRAMES: usize = 8 << 20;

/// What became of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Calls that returned sooner than was asked for.
    pub short: u64,
    /// Calls that were left without a return: by `longjmp`, an exception, or the thread's end.
    pub left: u64,
    /// Calls that had not returned when the recording ended.
    pub unfinished: u64,
    /// Calls of which nothing is known because records were lost, or because they were too many at
    /// once.
    pub unknown: u64,
}

/// Where a thread is at a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) time: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    /// The stack pointer, which is the same when a call begins and when it returns.
    sp: u64,
    return_address: u64,
}

impl Place {
    /// `None` without registers, or if the stack's first word could not be read.
    pub(crate) fn of(time: u64, sample: &Sample<'_>, arch: &Arch) -> Option<Place> {
        let UserState::Native { registers, stack, .. } = &sample.user else {
            return None;
        };
        let return_address = match arch.link_register {
            true => arch.strip(registers.get(arch.ra)?),
            false => u64::from_ne_bytes(*stack.first_chunk()?),
        };
        Some(Place {
            time,
            pid: sample.pid,
            tid: sample.tid,
            sp: registers.get(arch.sp)?,
            return_address,
        })
    }
}

/// A call: one stack pointer belongs to one frame of a process at a time, whichever thread runs
/// it.
type Key = (u32, u64, u32);

/// A call that has begun.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) stack: Walked,
    pub(crate) passed: Box<[u64]>,
    begin: u64,
    return_address: u64,
    /// Whether its thread was seen further outside on what may be the same stack.
    is_passed: bool,
    /// When it jumped to code that is not followed, and has not been seen since.
    jumped: Option<u64>,
}

/// Calls that have begun, and those of them that took long enough.
#[derive(Debug)]
pub(crate) struct Calls {
    probes: CallProbes,
    repeats: Vec<bool>,
    at_least: u64,
    open: FxHashMap<Key, Call>,
    /// Stack pointers and functions of each thread's calls, the outermost first.
    threads: FxHashMap<u32, Vec<(u64, u32)>>,
    /// Frames of all stacks in `open`.
    frames: usize,
    /// Those that took long enough.
    finished: Vec<(Call, FinishedCall)>,
    pub(crate) counts: CallCounts,
}

impl Calls {
    pub(crate) fn new(functions: &[TracedFunction], at_least: Duration) -> Calls {
        Calls {
            probes: CallProbes::of(functions),
            repeats: functions.iter().map(|function| function.repeats).collect(),
            at_least: u64::try_from(at_least.as_nanos()).unwrap_or(u64::MAX),
            open: FxHashMap::default(),
            threads: FxHashMap::default(),
            frames: 0,
            finished: Vec::new(),
            counts: CallCounts::default(),
        }
    }

    /// What the probe with this number means.
    pub(crate) fn roles(&self, probe: u32) -> &[Role] {
        let probe = self.probes.all().get(probe as usize);
        probe.map_or(&[], |probe| &probe.roles)
    }

    /// A call begins.
    pub(crate) fn begin(&mut self, place: &Place, function: u32, stack: &Walked, passed: &[u64]) {
        self.pass(place);
        let key = (place.pid, place.sp, function);
        if let Some(call) = self.open.get_mut(&key) {
            let repeats = self.repeats.get(function as usize) == Some(&true);
            if repeats && !call.is_passed && call.return_address == place.return_address {
                call.jumped = None;
                return;
            }
            self.leave(key);
        }
        if self.open.len() >= MOST_CALLS || self.frames + stack.frames.len() > MOST_FRAMES {
            self.counts.unknown += 1;
            return;
        }
        self.frames += stack.frames.len();
        self.threads.entry(place.tid).or_default().push((place.sp, function));
        let call = Call {
            pid: place.pid,
            tid: place.tid,
            stack: stack.clone(),
            passed: passed.into(),
            begin: place.time,
            return_address: place.return_address,
            is_passed: false,
            jumped: None,
        };
        self.open.insert(key, call);
    }

    /// A thread is where calls of this function end.
    pub(crate) fn end(&mut self, place: &Place, function: u32, kind: ExitKind) {
        self.pass(place);
        let key = (place.pid, place.sp, function);
        let Some(call) = self.open.get_mut(&key) else { return };
        if call.return_address != place.return_address {
            // The function's own code: the call that was here before has been left.
            if kind == ExitKind::Return {
                self.leave(key);
            }
            return;
        }
        match kind {
            ExitKind::Return => self.finish(key, place.time),
            ExitKind::ReturnElsewhere if !call.is_passed => self.finish(key, place.time),
            ExitKind::Jump if !call.is_passed => call.jumped = Some(place.time),
            ExitKind::ReturnElsewhere | ExitKind::Jump => {}
        }
    }

    /// Takes the calls that took long enough, and the counts of the others.
    pub(crate) fn take_finished(&mut self) -> Vec<(Call, FinishedCall)> {
        mem::take(&mut self.finished)
    }

    /// A thread ends.
    pub(crate) fn exit(&mut self, pid: u32, tid: u32) {
        for (sp, function) in self.threads.remove(&tid).unwrap_or_default() {
            self.leave((pid, sp, function));
        }
    }

    /// A process has ended, or runs another program.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        let keys: Vec<Key> = self.open.keys().filter(|key| key.0 == pid).copied().collect();
        keys.into_iter().for_each(|key| self.leave(key));
    }

    /// What threads did since is not known.
    pub(crate) fn records_lost(&mut self) {
        self.counts.unknown += self.open.len() as u64;
        self.open.clear();
        self.threads.clear();
        self.frames = 0;
    }

    /// The recording ends.
    pub(crate) fn end_all(&mut self) {
        let keys: Vec<Key> = self.open.keys().copied().collect();
        for key in keys {
            match self.open.get(&key) {
                Some(call) if !call.is_passed && call.jumped.is_none() => {
                    self.counts.unfinished += 1;
                    self.remove(key);
                }
                _ => self.leave(key),
            }
        }
    }

    /// The thread's calls further inside than this place are over, unless they are on another
    /// stack, which their own returns will show.
    fn pass(&mut self, place: &Place) {
        let Some(calls) = self.threads.get_mut(&place.tid) else {
            return;
        };
        while let Some(&(sp, function)) = calls.last() {
            let key = (place.pid, sp, function);
            match self.open.get_mut(&key) {
                Some(call) if sp < place.sp => call.is_passed = true,
                Some(_) => break,
                // It has returned.
                None => {}
            }
            calls.pop();
        }
    }

    /// A call is over without a return; if it has jumped elsewhere, it was over then.
    fn leave(&mut self, key: Key) {
        match self.open.get(&key).map(|call| call.jumped) {
            Some(Some(time)) => self.finish(key, time),
            Some(None) => {
                self.counts.left += 1;
                self.remove(key);
            }
            None => {}
        }
    }

    fn finish(&mut self, key: Key, time: u64) {
        let Some(call) = self.remove(key) else { return };
        let finished = FinishedCall {
            begin: call.begin,
            duration: time.saturating_sub(call.begin),
        };
        match finished.duration >= self.at_least {
            true => self.finished.push((call, finished)),
            false => self.counts.short += 1,
        }
    }

    fn remove(&mut self, key: Key) -> Option<Call> {
        let call = self.open.remove(&key)?;
        self.frames -= call.stack.frames.len();
        Some(call)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use backtrail_process::perf::Exit;

    use super::*;

    const RETURN: ExitKind = ExitKind::Return;

    fn calls(repeats: bool) -> Calls {
        let function = TracedFunction {
            file: PathBuf::from("/a"),
            entry: 0,
            exits: vec![Exit {
                offset: 8,
                kind: RETURN,
            }],
            repeats,
        };
        Calls::new(
            &[function.clone(), TracedFunction { entry: 16, ..function }],
            Duration::from_nanos(10),
        )
    }

    fn at(time: u64, sp: u64) -> Place {
        Place {
            time,
            pid: 1,
            tid: 2,
            sp,
            return_address: 0x77,
        }
    }

    /// Beginnings and durations of those that took long enough.
    fn taken(calls: &mut Calls) -> Vec<(u64, u64)> {
        let finished = calls.take_finished();
        finished.iter().map(|(_, call)| (call.begin, call.duration)).collect()
    }

    #[test]
    fn recursion_pairs_by_the_stack_pointer() {
        let mut calls = calls(false);
        let stack = Walked::default();
        for (time, sp) in [(0, 900), (10, 800), (20, 700)] {
            calls.begin(&at(time, sp), 0, &stack, &[]);
        }
        for (time, sp) in [(25, 700), (50, 800), (60, 900)] {
            calls.end(&at(time, sp), 0, RETURN);
        }
        assert_eq!(taken(&mut calls), [(10, 40), (0, 60)]);
        assert_eq!(
            calls.counts,
            CallCounts {
                short: 1,
                ..CallCounts::default()
            }
        );
        assert_eq!((calls.open.len(), calls.frames), (0, 0));
    }

    #[test]
    fn calls_that_are_left_never_end() {
        let mut calls = calls(false);
        let stack = Walked::default();
        // longjmp out of two calls; then others at the same places.
        calls.begin(&at(0, 900), 0, &stack, &[]);
        calls.begin(&at(1, 800), 1, &stack, &[]);
        calls.begin(&at(100, 900), 0, &stack, &[]);
        // A return of code that the second one might have jumped to, but its thread was outside.
        calls.end(&at(120, 800), 1, ExitKind::ReturnElsewhere);
        calls.end(&at(130, 900), 0, RETURN);
        assert_eq!(taken(&mut calls), [(100, 30)]);
        calls.exit(1, 2);
        calls.forget_process(1);
        assert_eq!(calls.counts.left, 2);
        assert_eq!((calls.open.len(), calls.threads.len()), (0, 0));
    }

    #[test]
    fn another_return_address_is_another_call() {
        let mut calls = calls(false);
        calls.begin(&at(0, 900), 0, &Walked::default(), &[]);
        let elsewhere = Place {
            return_address: 0x78,
            ..at(50, 900)
        };
        calls.end(&elsewhere, 0, RETURN);
        assert_eq!((taken(&mut calls), calls.counts.left), (vec![], 1));
    }

    #[test]
    fn jumps_end_calls_unless_they_go_on() {
        let mut calls = calls(false);
        let stack = Walked::default();
        // A switch, and then a return.
        calls.begin(&at(0, 900), 0, &stack, &[]);
        calls.end(&at(20, 900), 0, ExitKind::Jump);
        calls.end(&at(50, 900), 0, RETURN);
        assert_eq!(taken(&mut calls), [(0, 50)]);
        // A jump to unknown code.
        calls.begin(&at(100, 900), 0, &stack, &[]);
        calls.end(&at(120, 900), 0, ExitKind::Jump);
        calls.begin(&at(200, 900), 0, &stack, &[]);
        assert_eq!(taken(&mut calls), [(100, 20)]);
        calls.end_all();
        assert_eq!(
            calls.counts,
            CallCounts {
                unfinished: 1,
                ..CallCounts::default()
            }
        );
    }

    #[test]
    fn a_loop_over_the_first_instruction_is_one_call() {
        let stack = Walked::default();
        for (repeats, expected, left) in [(true, vec![(0, 90)], 0), (false, vec![(60, 30)], 2)] {
            let mut calls = calls(repeats);
            for time in [0, 30, 60] {
                calls.begin(&at(time, 900), 0, &stack, &[]);
            }
            calls.end(&at(90, 900), 0, RETURN);
            assert_eq!((taken(&mut calls), calls.counts.left), (expected, left));
        }
    }

    #[test]
    fn loss_forgets_what_is_open() {
        let mut calls = calls(false);
        calls.begin(&at(0, 900), 0, &Walked::default(), &[]);
        calls.records_lost();
        calls.end(&at(90, 900), 0, RETURN);
        assert_eq!((taken(&mut calls), calls.counts.unknown), (vec![], 1));
    }
}
