//! The state kept for each thread: the bounds of its stack, its last walk, and the rules of the
//! addresses that it met.
//!
//! A thread finds its state by a pointer in initial-exec thread-local storage, which exists from
//! the thread's start, also in a handler and in a library that was loaded later. The rest is in
//! pages that the thread's first walk maps, or takes over from a thread that has ended; they are
//! never unmapped. A forked child finds them zeroed, and starts over.

use core::arch::{asm, global_asm};
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::memory::Bounds;
use super::modules::{Published, Volatile};
use super::syscall;
use crate::{CacheEntry, Memo, MemoRead, MemoState, MemoStep, RuleCache};

/// Maximum number of threads with a state; further ones are walked without, more slowly.
const MOST_THREADS: usize = 4096;
const STEPS: usize = 1024;
/// Some twenty for a signal frame, and few for other steps that read more than two words.
const READS: usize = 512;
const RULES: usize = RuleCache::USUAL;

/// About 74 KiB, of which a thread with short stacks touches a tenth.
#[repr(C, align(4096))]
struct State {
    head: Head,
    body: UnsafeCell<Body>,
}

/// The part that handlers may read while a walk that they interrupted is in progress.
struct Head {
    /// The owner: a number that nobody else was given, and the thread's id below. 0 if there is
    /// none.
    owner: AtomicU64,
    /// A walk is in progress.
    busy: AtomicBool,
    bounds: Bounds,
}

struct Body {
    /// Generation of the snapshot that the rules come from; 0 if there are no rules.
    generation: u64,
    volatile: Cell<Volatile>,
    memo: MemoState,
    steps: [MemoStep; STEPS],
    reads: [MemoRead; READS],
    rules: [CacheEntry; RULES],
}

static STATES: [AtomicPtr<State>; MOST_THREADS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MOST_THREADS];
static CLAIMS: AtomicU32 = AtomicU32::new(1);

/// The part in thread-local storage.
#[repr(C)]
struct Mine {
    state: *mut State,
    owner: u64,
}

// Stable Rust cannot select a model of thread-local storage.
global_asm!(
    ".pushsection .tbss.backtrail_mine,\"awT\",@nobits",
    ".p2align 3",
    ".hidden backtrail_mine",
    ".globl backtrail_mine",
    ".type backtrail_mine, @object",
    ".size backtrail_mine, 16",
    "backtrail_mine:",
    ".zero 16",
    ".popsection",
);

#[inline]
fn thread_pointer() -> u64 {
    let pointer: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI keeps the thread pointer there, for such reads.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the ABI keeps the thread pointer there.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer
}

#[inline]
fn mine() -> *mut Mine {
    let offset: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: loads the variable's offset from the global offset table, where the loader has put
    // it.
    unsafe {
        asm!("mov {}, qword ptr [rip + backtrail_mine@GOTTPOFF]", out(reg) offset, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: loads the variable's offset from the global offset table, where the loader has put
    // it.
    unsafe {
        asm!("adrp {0}, :gottprel:backtrail_mine", "ldr {0}, [{0}, :gottprel_lo12:backtrail_mine]", out(reg) offset,
             options(nostack, readonly, preserves_flags));
    }
    core::ptr::with_exposed_provenance_mut(thread_pointer().wrapping_add(offset) as usize)
}

// The end of the first thread's stack, which the loader knows.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".weak __libc_stack_end",
    ".hidden backtrail_stack_end",
    ".globl backtrail_stack_end",
    ".type backtrail_stack_end, @function",
    "backtrail_stack_end:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + __libc_stack_end@GOTPCREL]",
    "ret",
    ".cfi_endproc",
    ".size backtrail_stack_end, . - backtrail_stack_end",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".weak __libc_stack_end",
    ".hidden backtrail_stack_end",
    ".globl backtrail_stack_end",
    ".type backtrail_stack_end, @function",
    "backtrail_stack_end:",
    ".cfi_startproc",
    "adrp x0, :got:__libc_stack_end",
    "ldr x0, [x0, :got_lo12:__libc_stack_end]",
    "ret",
    ".cfi_endproc",
    ".size backtrail_stack_end, . - backtrail_stack_end",
);

unsafe extern "C" {
    fn backtrail_stack_end() -> *const u64;
}

/// The end of the calling thread's stack: as the loader gives it for the first thread. For any
/// other, glibc puts the thread pointer's block at the top of the stack; if it is elsewhere, the
/// pages between are not all readable, and the result is rejected.
fn stack_bounds(pid: i32, tid: i32) -> Bounds {
    if pid != tid {
        return Bounds::ending_at(thread_pointer());
    }
    // SAFETY: it loads a pointer from the global offset table, above.
    let end = unsafe { backtrail_stack_end() };
    // SAFETY: null or the loader's variable, a pointer that is written once, before any code of
    // ours runs.
    match unsafe { end.as_ref() } {
        Some(end) => Bounds::ending_at(*end),
        None => Bounds::unknown(),
    }
}

/// A walk of a thread: the number of its state's owner, and that of the walk. No two walks that
/// differ have the same.
pub(super) type Walk = (u64, u64);

/// The state that a walk may use.
pub(super) enum Lent<'s> {
    All(Lease<'s>),
    /// Only the stack's bounds: this walk has interrupted another one of this thread, or there are
    /// too many threads.
    Bounds(&'s Bounds),
}

/// A thread's state while a walk uses it.
pub(super) struct Lease<'s> {
    head: &'s Head,
    body: &'s mut Body,
}

impl<'s> Lease<'s> {
    pub(super) fn bounds(&self) -> &'s Bounds {
        &self.head.bounds
    }

    /// Forgets the last walk and the rules if a module that they come from may have been unloaded.
    #[inline(always)]
    pub(super) fn forget_what_changed(&mut self, published: &Published) {
        if self.has_changed(published) {
            self.body.forget(published);
        }
    }

    #[inline(always)]
    pub(super) fn has_changed(&mut self, published: &Published) -> bool {
        self.body.generation != published.generation() || !published.has_all(self.body.volatile.get_mut())
    }

    /// The number of the last walk that differed from the one before.
    #[inline(always)]
    pub(super) fn walk(&self) -> Walk {
        (self.head.owner.load(Ordering::Relaxed), self.body.memo.number())
    }

    #[inline(always)]
    pub(super) fn memo(&mut self) -> Memo<'_> {
        let (_, memo, steps, reads, _) = self.parts();
        Memo::new(memo, steps, reads)
    }

    #[inline(always)]
    pub(super) fn parts(&mut self) -> Parts<'_> {
        let body = &mut *self.body;
        (
            &body.volatile,
            &mut body.memo,
            &mut body.steps,
            &mut body.reads,
            &mut body.rules,
        )
    }
}

type Parts<'s> = (
    &'s Cell<Volatile>,
    &'s mut MemoState,
    &'s mut [MemoStep],
    &'s mut [MemoRead],
    &'s mut [CacheEntry],
);

impl Body {
    #[cold]
    #[inline(never)]
    fn forget(&mut self, published: &Published) {
        // Do not touch pages that were never used.
        if self.generation != 0 {
            RuleCache::new(&mut self.rules).clear();
        }
        self.generation = published.generation();
        self.memo.forget();
        self.volatile.set(Volatile::NONE);
    }
}

/// Calls a walk with the calling thread's state.
#[inline(always)]
pub(super) fn lend<R>(walk: impl FnOnce(Lent<'_>) -> R) -> R {
    let unknown = Bounds::unknown();
    let state = state();
    // Only this thread and its handlers read it, and a handler ends before the interrupted code
    // continues.
    let free = state.filter(|state| !state.head.busy.load(Ordering::Relaxed));
    if let Some(state) = free {
        state.head.busy.store(true, Ordering::Relaxed);
    }
    compiler_fence(Ordering::SeqCst);
    let lent = match (free, state) {
        (Some(state), _) => Lent::All(Lease {
            head: &state.head,
            // SAFETY: the state belongs to this thread, and no other walk of it is in progress: it
            // would have set `busy`. A handler that runs now finds it set.
            body: unsafe { &mut *state.body.get() },
        }),
        (None, Some(state)) => Lent::Bounds(&state.head.bounds),
        (None, None) => Lent::Bounds(&unknown),
    };
    let result = walk(lent);
    compiler_fence(Ordering::SeqCst);
    if let Some(state) = free {
        // The state's next owner sees everything that this thread's walks have written.
        state.head.busy.store(false, Ordering::Release);
    }
    result
}

/// The calling thread's state.
#[inline]
fn state() -> Option<&'static State> {
    let mine = mine();
    // SAFETY: the variable is this thread's own. A handler may interrupt here and claim a state; it
    // then does what this would do.
    let (state, owner) = unsafe { ((*mine).state, (*mine).owner) };
    // SAFETY: null or a state, which is never unmapped.
    if let Some(state) = unsafe { state.as_ref() }
        && state.head.owner.load(Ordering::Relaxed) == owner
    {
        return Some(state);
    }
    // None yet, or the pages were wiped by a fork.
    let (state, owner) = claim()?;
    // SAFETY: as above; a half-written pair has an owner that is not the state's, and is claimed
    // again.
    unsafe {
        (*mine).owner = owner;
        compiler_fence(Ordering::SeqCst);
        (*mine).state = core::ptr::from_ref(state).cast_mut();
    }
    Some(state)
}

/// Finds a state without an owner.
#[cold]
fn claim() -> Option<(&'static State, u64)> {
    let (pid, tid) = (syscall::getpid(), syscall::gettid());
    let owner = u64::from(CLAIMS.fetch_add(1, Ordering::Relaxed)) << 32 | u64::from(tid as u32);
    for place in &STATES {
        // SAFETY: null or a state, which is never unmapped.
        let state = match unsafe { place.load(Ordering::Acquire).as_ref() } {
            Some(state) => state,
            None => new_state(place)?,
        };
        let before = state.head.owner.load(Ordering::Relaxed);
        let is_free = before == 0 || syscall::has_ended(pid, before as u32 as i32);
        let claimed = is_free
            && state
                .head
                .owner
                .compare_exchange(before, owner, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if claimed {
            // The end of an earlier owner's last walk.
            state.head.busy.load(Ordering::Acquire);
            begin(state, stack_bounds(pid, tid));
            return Some((state, owner));
        }
    }
    None
}

/// Maps a state for a place without one. If another thread stores one there at the same time, that
/// one is used.
fn new_state(place: &AtomicPtr<State>) -> Option<&'static State> {
    let new = syscall::map(size_of::<State>()).cast::<State>();
    if new.is_null() {
        return None;
    }
    let put = place.compare_exchange(core::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    let state = match put {
        Ok(_) => new,
        // The unneeded pages were never touched.
        Err(theirs) => theirs,
    };
    // SAFETY: zeroed pages are a state without an owner: its atomics are 0, and the body is written
    // before it is used.
    unsafe { state.as_ref() }
}

/// Initialises a state for a new owner.
fn begin(state: &State, bounds: Bounds) {
    state.head.bounds.set(bounds);
    // SAFETY: the caller owns the state and no walk uses it yet. Steps, reads and rules are plain
    // numbers, for which zeros and an earlier owner's values are valid: none is used before it is
    // written, and rules hold for every thread and for their generation.
    unsafe {
        let body = state.body.get();
        (&raw mut (*body).volatile).write(Cell::new(Volatile::NONE));
        (&raw mut (*body).memo).write(MemoState::EMPTY);
    }
    state.head.busy.store(false, Ordering::Relaxed);
}
