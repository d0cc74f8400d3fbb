//! A kept stack is that of a walk, whatever else was walked in between.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::hint::black_box;

use backtrail_local::Backtrace;
use backtrail_local::handler::entry::Captured;
use backtrail_unwind::local::{ARCH, FrameRegisters, KeptStack, frames_of, step_once, walk};
use backtrail_unwind::{AddressKind, Position, Stop};

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
    compare_with_steps(&caller.position());
    if walked.len() >= FRAMES {
        assert!(has_changed, "nobody knows what is beyond");
        return 2;
    }
    assert_eq!(kept.is_complete(), stop == Stop::EndOfStack);
    let differs = walked != before || kept.is_complete() != was_complete;
    assert_eq!(has_changed, differs);
    usize::from(has_changed)
}

// Code that keeps anything in the frame pointer's register: calls its second argument with its
// third.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".type with_frame_pointer, @function",
    "with_frame_pointer:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbp",
    "ret",
    ".cfi_endproc",
    ".size with_frame_pointer, . - with_frame_pointer",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".type with_frame_pointer, @function",
    "with_frame_pointer:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, x0",
    "mov x0, x2",
    "blr x1",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    ".size with_frame_pointer, . - with_frame_pointer",
);

unsafe extern "C" {
    fn with_frame_pointer(value: u64, act: extern "C" fn(*mut ()), data: *mut ());
}

extern "C" fn call(act: *mut ()) {
    // SAFETY: `with_frame_pointer` passes on what `clobbered` gives it.
    unsafe { (*act.cast::<&mut dyn FnMut()>())() }
    black_box(act);
}

/// Calls `act` from code with such a frame pointer.
#[inline(never)]
fn clobbered(value: u64, mut act: &mut dyn FnMut()) {
    // SAFETY: it calls `call` with a pointer to what lives until it returns.
    unsafe { with_frame_pointer(value, call, (&raw mut act).cast()) }
    black_box(value);
}

/// Compares the frames with single steps, which nothing of the last walk is used for.
fn compare_with_steps(from: &Position) {
    let mut frames = [FrameRegisters::default(); FRAMES];
    let (count, stop) = frames_of(from, 0, &mut frames);
    let mut position = *from;
    for (index, frame) in frames[..count].iter().enumerate() {
        let register = |register| position.registers.get(register).unwrap_or(0);
        let expected = FrameRegisters {
            pc: position.registers.pc,
            sp: register(ARCH.sp),
            fp: register(ARCH.fp),
            is_return_address: position.kind == AddressKind::Ra,
        };
        assert_eq!(*frame, expected, "{index}");
        if let Err(end) = step_once(&mut position) {
            assert_eq!((index + 1, Some(end)), (count, stop));
        }
    }
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
                    let values = [random(3), random(3), random(3)];
                    if random(4) == 0 {
                        descend(depth, way, &mut || {
                            assert!(!black_box(Backtrace::capture()).addresses().is_empty())
                        });
                    }
                    for repeat in 0..repeats as usize {
                        let kept = &mut kept[which];
                        // SAFETY: nothing else uses it.
                        let mut act = || seen[unsafe { update(kept) }] += 1;
                        match values[repeat] {
                            0 => descend(depth, way, &mut act),
                            1 => clobbered(values[0], &mut || descend(depth, way, &mut act)),
                            _ => descend(depth, way, &mut || clobbered(random(1 << 40), &mut act)),
                        }
                    }
                }
            });
        });
    }
    assert!(seen.iter().all(|&count| count > 1000), "{seen:?}");
}
