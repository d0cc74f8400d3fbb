//! Follows calls until they return, and records those that took long enough.

use std::mem;

use backtrail_process::{perf, this_machine};
use backtrail_recording::{Detail, Sample, Stop, WriteError};

use super::{Session, recorded};
use crate::calls::{Call, Calls, Place};
use crate::waits::Walked;

impl Session<'_> {
    /// A thread is at a place where calls begin or end.
    pub(super) fn probe(
        &mut self,
        stream: usize,
        time: u64,
        probe: u32,
        sample: &perf::Sample<'_>,
    ) -> Result<(), WriteError> {
        let (Some(place), Some(calls)) = (Place::of(time, sample, this_machine()), &self.calls) else {
            return Ok(());
        };
        let roles = calls.roles(probe).to_vec();
        let begins = roles.iter().any(|role| role.exit.is_none());
        let mut stack = Walked::default();
        if begins {
            stack = self.stack_of(time, sample);
            self.has_news |= stack.stop == Some(Stop::BeyondCopy);
            self.note_passed(sample);
        }
        let Some(calls) = &mut self.calls else { return Ok(()) };
        for role in roles {
            match role.exit {
                None => calls.begin(&place, role.function, &stack, &self.passed),
                Some(kind) => calls.end(&place, role.function, kind),
            }
        }
        self.write_finished_calls(stream, time)
    }

    /// Ends calls otherwise than by a return.
    pub(super) fn leave_calls(
        &mut self,
        stream: usize,
        time: u64,
        leave: impl FnOnce(&mut Calls),
    ) -> Result<(), WriteError> {
        let Some(calls) = &mut self.calls else { return Ok(()) };
        leave(calls);
        self.write_finished_calls(stream, time)
    }

    pub(super) fn write_finished_calls(&mut self, stream: usize, time: u64) -> Result<(), WriteError> {
        let Some(calls) = &mut self.calls else { return Ok(()) };
        for (mut call, finished) in calls.take_finished() {
            mem::swap(&mut self.walker.frames, &mut call.stack.frames);
            let stop = call.stack.stop.unwrap_or(Stop::NoUserStack);
            self.announce(time, call.pid, call.tid, stop)?;
            let Call {
                pid,
                tid,
                passed,
                stack,
                ..
            } = call;
            self.outcome.count(stop, stack.live, self.walker.frames.len());
            self.writer.sample(
                stream,
                &Sample {
                    time,
                    cpu: 0,
                    pid: recorded(pid),
                    tid: recorded(tid),
                    frames: &self.walker.frames,
                    stop: Some(stop),
                    live: stack.live,
                    in_kernel: false,
                    wait: None,
                    passed: &passed,
                    detail: Detail::Call(finished),
                },
            )?;
        }
        Ok(())
    }
}
