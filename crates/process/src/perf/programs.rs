//! What the programs at the events have in common.

use std::ffi::CStr;
use std::fs;

/// The helpers that programs need are for those under the GPL.
pub(super) const LICENSE: &CStr = c"Dual MIT/GPL";

/// Numbers of the programs to continue with: the one that walks first.
pub(super) const BEGIN: u32 = 0;
/// The one that copies more of the stack.
pub(super) const COPIER: u32 = 1;
/// The one that walks.
pub(super) const WALKER: u32 = 2;
/// The one that copies other stacks than the sample's, and continues with [`COPIER`].
pub(super) const OTHERS: u32 = 3;
/// The one that copies the stacks of tasks, and continues with [`COPIER`].
pub(super) const TASKS: u32 = 4;
/// The one that looks rules up for [`WALKER`].
pub(super) const FINDER: u32 = 5;
/// How many there are.
pub(super) const PROGRAMS: u32 = 6;

/// Whether our numbers of processes are those that programs see.
pub(super) fn is_initial_namespace() -> bool {
    const INITIAL: &str = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace.to_str() == Some(INITIAL))
}
