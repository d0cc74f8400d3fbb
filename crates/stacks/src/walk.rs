//! From a snapshot to stacks.

use backtrail_arch::Registers;
use backtrail_target::Snapshot;
use backtrail_target::snapshot::{SnapshotMemory, Thread};
use backtrail_unwind::{AddressKind, CacheEntry, Coverage, Memory, Modules, RuleCache, Stop, step};

use crate::modules::{ModuleSet, Space};
use crate::process::{End, Frame, How, Process, ThreadStack};

/// Frames of one stack. A recursion that overflowed the largest usual stack has fewer.
const MOST_FRAMES: usize = 1 << 20;
/// Rules that are kept from one frame for the next: threads stand at the same places.
const CACHED_RULES: usize = 1 << 12;

/// The stacks of all threads of the snapshot.
pub(crate) fn stacks(snapshot: &Snapshot<'_>, modules: &ModuleSet) -> Process {
    let space = Space::new(snapshot, modules);
    let mut entries = vec![CacheEntry::EMPTY; CACHED_RULES];
    let mut cache = RuleCache::new(&mut entries);
    let threads = snapshot
        .threads
        .iter()
        .map(|thread| stack(snapshot, thread, &space, &mut cache));
    let threads = threads.collect();
    Process {
        pid: snapshot.pid,
        name: snapshot.name.clone(),
        architecture: snapshot.arch.name.to_owned(),
        signal: snapshot.signal,
        threads,
        modules: space.recorded(),
    }
}

fn stack(snapshot: &Snapshot<'_>, thread: &Thread, space: &Space<'_>, cache: &mut RuleCache<'_>) -> ThreadStack {
    let mut memory = snapshot.memory();
    let mut frames = Vec::new();
    let end = match thread.registers {
        Ok(registers) => End::Stop(walk(snapshot, registers, space, &mut memory, cache, &mut frames)),
        Err(why) => End::NotStopped(why),
    };
    ThreadStack {
        tid: thread.tid,
        name: thread.name.clone(),
        signal: thread.signal,
        frames,
        end,
        was_live: memory.was_live(),
    }
}

fn walk(
    snapshot: &Snapshot<'_>,
    mut registers: Registers,
    space: &Space<'_>,
    memory: &mut SnapshotMemory<'_>,
    cache: &mut RuleCache<'_>,
    frames: &mut Vec<Frame>,
) -> Stop {
    let mut kind = AddressKind::Pc;
    let mut how = How::Initial;
    loop {
        frames.push(Frame {
            address: registers.pc,
            kind,
            how,
        });
        if frames.len() == MOST_FRAMES {
            return Stop::Limit;
        }
        how = match kind {
            AddressKind::Pc => space.how(registers.pc),
            AddressKind::Ra => space.how(registers.pc.wrapping_sub(1)),
        };
        match step(snapshot.arch, &mut registers, kind, space, memory, cache) {
            Ok(AddressKind::Pc) => {
                // The handler's return address is the trampoline's first instruction: no call is before it.
                if let Some(trampoline) = frames.last_mut() {
                    trampoline.kind = AddressKind::Pc;
                }
                (kind, how) = (AddressKind::Pc, How::Signal);
            }
            Ok(AddressKind::Ra) => kind = AddressKind::Ra,
            Err(Stop::NoModule)
                if kind == AddressKind::Pc && called_nothing(snapshot, &mut registers, space, memory) =>
            {
                (kind, how) = (AddressKind::Ra, How::FramePointer);
            }
            Err(stop) => return stop,
        }
    }
}

/// A call to an address without code, a null pointer mostly, has done nothing but to leave its return address.
fn called_nothing(
    snapshot: &Snapshot<'_>,
    registers: &mut Registers,
    space: &Space<'_>,
    memory: &mut SnapshotMemory<'_>,
) -> bool {
    let arch = snapshot.arch;
    let Some(sp) = registers.get(arch.sp) else {
        return false;
    };
    let (ra, caller_sp) = if arch.link_register {
        (registers.get(arch.ra), sp)
    } else {
        (memory.word(sp), sp.wrapping_add(u64::from(arch.pointer_bytes)))
    };
    let Some(ra) = ra.map(|ra| arch.strip(ra)).filter(|&ra| ra != 0) else {
        return false;
    };
    if matches!(space.coverage(ra.wrapping_sub(1)), Coverage::NoModule) {
        return false;
    }
    registers.pc = ra;
    registers.set(arch.sp, caller_sp);
    true
}
