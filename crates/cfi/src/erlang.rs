//! Where Erlang's processes begin.
//!
//! Each of them has a stack of its own, on which compiled Erlang calls and returns like C. The
//! return address of a process's first function is that of compiled code which ends the process;
//! no call has pushed it. The run-time system keeps it in a variable that it exports for its other
//! parts.

use crate::process_code::{ProcessCode, Region, word};

/// `beam.smp`, and variants for debugging.
const PROGRAM: &str = "/beam.";
const NORMAL_EXIT: &str = "beam_normal_exit";

/// The address that functions of a process return to when it ends, if this process runs Erlang.
pub(crate) fn normal_exit(process: &impl ProcessCode, regions: &[Region]) -> Option<u64> {
    let is_program = |region: &&Region| {
        let file = region.path.rfind('/').and_then(|slash| region.path.get(slash..));
        region.executable && file.is_some_and(|file| file.starts_with(PROGRAM))
    };
    let program = process.find(regions.iter().find(is_program)?.range.start)?;
    word(process, process.object(program, NORMAL_EXIT)?)
}
