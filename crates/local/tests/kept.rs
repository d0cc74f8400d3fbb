//! A kept stack is that of a walk, whatever else was walked in between.
#![allow(unsafe_code)]

use std::hint::black_box;

use backtrail_local::Backtrace;
use backtrail_local::handler::entry::Captured;
use backtrail_unwind::local::{KeptStack, walk};
use backtrail_unwind::{AddressKind, Stop};

const FRAMES: usize = 48;
type Kept = KeptStack<FRAMES>;

backtrail_local::with_callers_registers! {
    /// Updates what is kept by the caller's stack, and compares it with another walk's.
    ///
    /// # Safety
    /// Nothing else uses `kept`.
    update(kept: *mut Kept) -> usize, update_and_compare, "rsi", "x1"
}

/// Returns 0 if nothing has changed, 1 if something has, and 2 if there is no room for the stack.
///
/// # Safety
/// Nothing else uses `kept`; `caller` was saved by `update`.
unsafe extern "C" fn update_and_compare(kept: *mut Kept, caller: *const Captured) -> usize {
    // SAFETY: as our caller promises.
    let (kept, caller) = unsafe { (&mut *kept, &*caller) };
    let (before, was_complete) = (kept.addresses().to_vec(), kept.is_complete());
    let has_changed = kept.update(caller);
    let mut walked = Vec::new();
    let stop = walk(&caller.position(), usize::MAX, |frame| {
        let mark = if frame.kind == AddressKind::Pc { Kept::IS_PC } else { 0 };
        walked.push(frame.address | mark);
    });
    assert_eq!(kept.addresses(), &walked[..walked.len().min(FRAMES)]);
    if walked.len() >= FRAMES {
        assert!(has_changed, "nobody knows what is beyond");
        return 2;
    }
    assert_eq!(kept.is_complete(), stop == Stop::EndOfStack);
    let differs = walked != before || kept.is_complete() != was_complete;
    assert_eq!(has_changed, differs);
    usize::from(has_changed)
}

/// Calls `act` at this depth, on one of many ways there.
#[inline(never)]
fn descend(depth: u32, way: u64, act: &mut dyn FnMut()) {
    match (depth, way % 2) {
        (0, _) => act(),
        (_, 0) => descend(depth - 1, way / 2, act),
        _ => descend(depth - 1, way / 2, &mut || act()),
    }
    // Not the last call, which would leave no frame.
    black_box(depth);
}

#[test]
fn a_kept_stack_is_the_one_that_was_walked() {
    backtrail_local::init().unwrap();
    let mut seen = [0; 3];
    let mut kept = [const { Kept::EMPTY }; 2];
    for seed in 0..4 {
        // One thread after another, as with a ring.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut state: u64 = seed;
                let mut random = |below: u64| {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (state >> 33) % below
                };
                for _ in 0..20_000 {
                    // The same ones often, and some that are too deep.
                    let depth = [1, 3, 3, 8, 60][random(5) as usize];
                    let (way, which) = (random(4), random(2) as usize);
                    let repeats = 1 + random(3);
                    if random(4) == 0 {
                        descend(depth, way, &mut || {
                            assert!(!black_box(Backtrace::capture()).addresses().is_empty())
                        });
                    }
                    for _ in 0..repeats {
                        let kept = &mut kept[which];
                        // SAFETY: nothing else uses it.
                        descend(depth, way, &mut || seen[unsafe { update(kept) }] += 1);
                    }
                }
            });
        });
    }
    assert!(seen.iter().all(|&count| count > 1000), "{seen:?}");
}
